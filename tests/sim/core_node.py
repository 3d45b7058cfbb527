"""Minimal shell around a Raft core: a log in memory, and a disk that consists of a few fields.

Belongs here: executing each `Ready` in the required order, as slowly and interruptibly as a disk does. It drives the
core through more interleavings per second than the real shell (group_node.py) can.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

import msgspec

from lakestream.log.format.frame import Frame, Held, Kind
from lakestream.raft.core.core import Core
from lakestream.raft.core.messages import (
    Confirmed,
    Envelope,
    HardState,
    Install,
    Membership,
    decode_envelopes,
    decode_membership,
    encode_envelopes,
    entry_of,
)
from lakestream.raft.core.ready import NotLeader, RaftError, Ready, Role, SendEntries
from lakestream.raft.core.terms import TermMap
from lakestream.raft.group.ports import Channel
from tests.sim.checks import mark_of
from tests.sim.events import MS, US

if TYPE_CHECKING:
    from tests.sim.world import World

GROUP = "sim"


class CoreDisk(msgspec.Struct):
    """Durable state: the hard state, a snapshot as of `base`, and the entries after it."""

    hard: HardState
    base: int
    base_term: int
    membership: Membership  # as of the snapshot
    frames: list[Frame]
    recovering: bool = False
    forgetful: bool = False
    confirmed: list[Confirmed] = []  # survives a kill, and in this model every power cut
    held: Held = Held()

    def copy(self) -> CoreDisk:
        """Return the copy that a backup of a stopped machine's disk would have."""
        return msgspec.structs.replace(self, frames=list(self.frames), confirmed=list(self.confirmed))

    @property
    def last(self) -> int:
        """Return the index of the last entry."""
        return self.base + len(self.frames)

    def cut(self, last: int) -> None:
        """Remove the entries after `last`."""
        del self.frames[last - self.base :]


class CoreHost:
    """State of a machine that survives its process."""

    def __init__(self, world: World, name: str, random: Random) -> None:
        self.world, self.name, self.random = world, name, random
        self.disk = CoreDisk(HardState(), 0, 0, world.founders, [])
        self.suspect = False

    def process(self) -> CoreProcess:
        """Return a new process."""
        return CoreProcess(self.world, self.name, self.disk, self.random, self)

    def ended(self, power: bool) -> None:
        """Do nothing: the process has completed or dropped its writes."""

    def fail(self, random: Random) -> None:
        """Do nothing: this disk does not fail."""

    def mend(self) -> None:
        """Do nothing: this disk does not fail."""

    def damage(self, random: Random) -> bool:
        """Remove the end of a stopped machine's log, which the process detects when it starts."""
        disk = self.disk
        if not disk.frames:
            return False
        last = disk.base + random.randrange(len(disk.frames))
        self.world.say(f"the disk of {self.name} loses the entries after {last} of {disk.base + len(disk.frames)}")
        newest, behind = disk.frames[-1], disk.frames[last - disk.base + 1 :]
        disk.cut(last)
        if not disk.recovering or (0, 0) < disk.held.newest[::-1] < (newest.term, newest.index):
            cut = (last, disk.frames[-1].term if disk.frames else disk.base_term)
            aside = {frame.index: frame for frame in behind if random.random() < 0.7}
            disk.held = Held((newest.index, newest.term), cut, aside)
        disk.recovering = True
        self.world.checker.damaged(self.name, last)
        return True


class Write(msgspec.Struct):
    """Log operations of one Ready."""

    truncate_after: int | None
    frames: list[Frame]
    epoch: int


class Copied(msgspec.Struct):
    """State in transfer between two machines."""

    index: int
    term: int
    membership: Membership


class CoreProcess:
    """Core, the view of its log, and the operations that have not reached the disk."""

    def __init__(self, world: World, name: str, disk: CoreDisk, random: Random, host: CoreHost) -> None:
        self.world, self.name, self.disk, self.random, self.host = world, name, disk, random, host
        self.checker = world.checker
        self.machine = world.machines[name]
        self.base, self.base_term = disk.base, disk.base_term
        self.frames = list(disk.frames)
        self.applied = self.base
        self.failed = self.dead = self.power = False
        self.core: Core
        self._todo: deque[Ready] = deque()
        self._hardening = False
        self._writes: list[Write] = []
        self._writing = False
        self._installing: Copied | None = None
        self._contexts: dict[int, tuple[int, bytes]] = {}
        self._led = 0
        self._commit = 0

    # ------------------------------------------------------------------ state
    @property
    def leads(self) -> bool:
        return self.core.role is Role.LEADER

    @property
    def term(self) -> int:
        return self.core.term

    @property
    def leader(self) -> str:
        return self.core.leader

    @property
    def recovering(self) -> bool:
        return self.disk.recovering

    @property
    def membership(self) -> Membership:
        return self.core.membership

    @property
    def last(self) -> int:
        return self.base + len(self.frames)

    def log(self) -> list[tuple[int, int]]:
        return [(frame.index, frame.term) for frame in self.frames]

    def term_of(self, index: int) -> int | None:
        for ready in reversed(self._todo):  # the core already sees what waits for the hard state
            if ready.append and index >= ready.append[0].index:
                return ready.append[index - ready.append[0].index].term if index <= ready.append[-1].index else None
        if index == self.base:
            return self.base_term
        return self.frames[index - self.base - 1].term if self.base < index <= self.last else None

    # ------------------------------------------------------------------ start and end
    def start(self) -> None:
        disk = self.disk
        runs: list[tuple[int, int]] = []
        for frame in self.frames:
            if not runs or runs[-1][1] != frame.term:
                runs.append((frame.index, frame.term))
        self.core = self.world.core_class(
            self.name,
            disk.membership,
            disk.hard,
            TermMap(self.base, self.base_term, runs, self.last),
            options=self.world.options,
            random=self.random,
            changes=[(f.index, decode_membership(f.body)) for f in self.frames if f.kind == Kind.MEMBERSHIP],
            recovering=disk.recovering,
            forgetful=disk.forgetful,
            confirmed=disk.confirmed,
            held=disk.held,
        )
        self._work()

    def end(self) -> None:
        """End the process; pending writes may have reached the disk in part."""
        if self._writing and self._writes:
            through = self.random.randrange(min(4, len(self._writes)) + 1)
            for position, write in enumerate(self._writes[:through], 1):
                self._store(write, partly=position == through)

    def tick(self) -> None:
        if self.core.quiescent:
            self.world.count("quiescent ticks")
        else:
            self.core.tick()
            self._work()

    def receive(self, sender: str, channel: Channel, payload: bytes) -> None:
        for envelope in decode_envelopes(payload):
            self.world.note(lambda e=envelope: f"{sender} → {self.name} {show(e.message)}")  # type: ignore[misc]
            self.core.step(sender, envelope.message)
        self._work()

    def node_changed(self, node: str, up: bool) -> None:
        if up:
            self.core.node_up(node)
        else:
            self.core.node_down(node)
        self._work()

    # ------------------------------------------------------------------ requests
    def propose(self, bodies: Sequence[bytes]) -> bool:
        core = self.core
        first = core.last_index + 1
        frames = [Frame(Kind.MESSAGES, core.term, index, 1, body) for index, body in enumerate(bodies, first)]
        try:
            core.propose(frames)
        except RaftError:
            return False
        for frame in frames:
            self._contexts[frame.index] = (frame.term, frame.body)
        self._work()
        return True

    def read(self) -> None:
        try:
            self.core.read(self.checker.acked_through)
        except NotLeader:
            return
        self._work()

    def transfer(self, to: str) -> None:
        try:
            self.core.transfer(to)
        except (RaftError, ValueError):
            return
        self._work()

    def step_down(self) -> None:
        try:
            self.core.step_down()
        except NotLeader:
            return
        self._work()

    def change(self, membership: Membership) -> None:
        try:
            self.core.propose_membership(membership)
        except (RaftError, ValueError):  # decided now, executed perhaps after a pause
            return
        self.world.count("membership changes")
        self.world.note(lambda: f"{self.name} proposes {membership}")
        self._work()

    def compact(self, random: Random) -> None:
        through = min(self.applied, self.disk.base + len(self.disk.frames))
        if through <= self.base or self._installing is not None or self._writing:
            return
        index = random.randint(self.base + 1, through)
        disk, term = self.disk, self.term_of(index)
        assert term is not None
        membership = self._membership_at(index)
        self.world.note(lambda: f"{self.name} compacts through {index}")
        del self.frames[: index - self.base]
        del disk.frames[: index - disk.base]
        self.base = disk.base = index
        self.base_term = disk.base_term = term
        disk.membership = membership
        self.checker.compacted(self.name, index)
        self.core.compacted(index)
        self._work()

    def _membership_at(self, index: int) -> Membership:
        found = self.disk.membership
        for frame in self.frames:
            if frame.kind == Kind.MEMBERSHIP and frame.index <= index:
                found = decode_membership(frame.body)
        return found

    # ------------------------------------------------------------------ executing Ready
    def _work(self) -> None:
        while (ready := self.core.ready()) is not None:
            self.observe()
            self._todo.append(ready)
            self._advance()
        self.disk.confirmed = list(self.core.confirmed.values())
        self.observe()
        self._apply()

    def _advance(self) -> None:
        while self._todo and not self._hardening:
            ready = self._todo[0]
            if ready.hard is not None:
                self._hardening = True
                hard, ready.hard = ready.hard, None
                self._later(self._disk_time(), lambda hard=hard: self._hardened(hard))  # type: ignore[misc]
                return
            self._todo.popleft()
            self._do(ready)

    def _hardened(self, hard: HardState) -> None:
        self.disk.hard = hard
        self.checker.hardened(self.name, hard)
        self._hardening = False
        self._advance()
        self._work()

    def _do(self, ready: Ready) -> None:
        if ready.truncate_after is not None:
            self.world.count("truncations")
            del self.frames[ready.truncate_after - self.base :]
        self.frames += ready.append
        if ready.truncate_after is not None or ready.append:
            self._writes.append(Write(ready.truncate_after, ready.append, ready.epoch))
            self._write()
        if ready.stopped is not None:
            self.checker.parted(self.name, ready.stopped)
        if ready.rolled_back is not None:
            self.disk.recovering, self.disk.forgetful = True, self.core.forgetful
            self.host.suspect = False
            self.world.count("rolled back")
            self.world.note(lambda: f"{self.name}: {ready.rolled_back}")
        if ready.recovered:
            self.disk.recovering = self.disk.forgetful = False
            self.disk.held = Held()
            self.world.count("recovered")
        for to, message in ready.messages:
            self._send(to, message)
        for send in ready.sends:
            if self.random.random() < 0.3:  # as if read from disk
                self._later(self._disk_time(), lambda send=send: self._fill_late(send))  # type: ignore[misc]
            else:
                self._fill(send)
        if ready.install is not None:
            self._fetch(ready.install, ready.install_from)
        for context, index in ready.reads:
            assert isinstance(context, int)
            self.checker.read(self.name, index, context)
            self.world.count("reads answered")

    def _fill_late(self, send: SendEntries) -> None:
        self._fill(send)
        self._work()

    def _fill(self, send: SendEntries) -> None:
        entries = []
        room = send.max_bytes
        if send.first > self.base:
            for frame in self.frames[send.first - self.base - 1 : send.last - self.base]:
                room -= len(frame.body)
                if room < 0 and entries:
                    break
                entries.append(entry_of(frame))
        message = self.core.fill(send, entries)
        if message is not None:
            self._send(send.to, message)

    def _send(self, to: str, message: object) -> None:
        self.checker.sent(self.name, to, message)  # type: ignore[arg-type]
        payload = encode_envelopes([Envelope(GROUP, message)])  # type: ignore[arg-type]
        if not self.world.network.send(self.name, to, Channel.RAFT, payload):
            self._later(0, lambda: self._unreachable(to))

    def _unreachable(self, to: str) -> None:
        self.core.unreachable(to)
        self._work()

    # ------------------------------------------------------------------ the disk
    def _write(self) -> None:
        if not self._writing and self._writes:
            self._writing = True
            count = len(self._writes)
            self._later(self._disk_time(), lambda: self._written(count))

    def _written(self, count: int) -> None:
        self._writing = False
        done, self._writes = self._writes[:count], self._writes[count:]
        for write in done:
            self._store(write, partly=False)
        self._write()
        self.core.persisted(self.disk.base + len(self.disk.frames), done[-1].epoch)
        self._work()

    def _store(self, write: Write, partly: bool) -> None:
        disk = self.disk
        if write.truncate_after is not None:
            self.checker.truncated(self.name, write.truncate_after)
            disk.cut(write.truncate_after)
        frames = write.frames
        if partly:
            frames = frames[: self.random.randrange(len(frames) + 1)]
        frames = [frame for frame in frames if frame.index > disk.base]
        self.checker.appended(self.name, frames)
        disk.frames += frames

    def _apply(self) -> None:
        through = min(self.core.commit, self.disk.base + len(self.disk.frames))
        while self.applied < through and not self._writes and self.applied >= self.base:
            frame = self.frames[self.applied - self.base]
            self.applied = frame.index
            commands = [frame.body] if frame.kind == Kind.MESSAGES else []
            self.checker.applied(self.name, frame.index, mark_of(frame), commands)
            context = self._contexts.pop(frame.index, None)
            if context is not None and context[0] == frame.term:
                self.checker.acked_to_client(self.name, frame.index, commands)

    # ------------------------------------------------------------------ installing snapshots
    def _fetch(self, install: Install, sender: str) -> None:
        delay = self.random.randrange(1 * MS, 400 * MS)
        self._later(delay, lambda: self._fetched(install, sender))

    def _fetched(self, install: Install, sender: str) -> None:
        other = self.world.machines[sender].process
        network = self.world.network
        if not isinstance(other, CoreProcess) or not network.reachable(self.name, sender) or self.random.random() < 0.1:
            self._failed_install()
            return
        index = other.applied
        term = other.term_of(index)
        if index < install.index or term is None:
            self._failed_install()
            return
        copied = self._installing = Copied(index, term, other._membership_at(index))
        self._later(self._disk_time(), lambda: self._install(copied))

    def _failed_install(self) -> None:
        self.core.install_failed()
        self._work()

    def _install(self, copied: Copied) -> None:
        if self._writing or self._todo:
            self._later(1 * MS, lambda: self._install(copied))
            return
        self._installing = None
        if copied.index <= self.applied:
            self._failed_install()
            return
        self.world.count("installs")
        self.world.note(lambda: f"{self.name} installs the state as of {copied.index}/{copied.term}")
        disk = self.disk
        disk.base = self.base = self.applied = copied.index
        disk.base_term = self.base_term = copied.term
        disk.membership = copied.membership
        disk.frames, self.frames, self._writes = [], [], []
        self._contexts.clear()
        self.checker.installed(self.name, copied.index, copied.term)
        self.core.installed(copied.index, copied.term, copied.membership)
        self._work()

    # ------------------------------------------------------------------ checks
    def observe(self) -> None:
        core = self.core
        if core.role is Role.LEADER:
            if self._led != core.term:
                self._led = core.term
                self.world.note(lambda: f"{self.name} leads term {core.term}")
                self.checker.leads(self.name, core.term, self.base, self.term_of)
            if core.commit > self._commit:
                self.checker.leader_commits(self.name, core.term, core.commit, core.membership)
        self._commit = core.commit

    def _later(self, delay: int, call: object) -> None:
        self.machine.after(self, delay, call)  # type: ignore[arg-type]

    def _disk_time(self) -> int:
        return self.random.randrange(100 * US, 5 * MS) * self.world.slowness(self.name)


def show(message: object) -> str:
    """Return a message as one short line."""
    fields = {name: getattr(message, name) for name in message.__struct_fields__}  # type: ignore[attr-defined]
    entries = fields.pop("entries", None)
    shown = " ".join(f"{name}={value}" for name, value in fields.items())
    if entries:
        shown += f" entries={entries[0].index}..{entries[-1].index} of {entries[0].term}"
    return f"{type(message).__name__} {shown}"
