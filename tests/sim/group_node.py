"""Real RaftGroups, RaftGroup, Store and SegmentLog on a simulated machine with simulated files, threads and peers.

Belongs here: a small stream that logs commands as messages, as JetStream does with a store; the threads and the clock
of a process; and reporting to the checkers what has reached the disk.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from lakestream.log.format.errors import CorruptLog
from lakestream.log.format.files import Brief, Io
from lakestream.log.format.frame import HEADER_SIZE as FRAME_HEADER
from lakestream.log.format.frame import Frame, Kind, decode_frame, salt_at
from lakestream.log.format.record import encode_record, iter_records
from lakestream.log.format.segment import HEADER_SIZE as SEGMENT_HEADER
from lakestream.log.format.segment import SealedSegment
from lakestream.log.store.checkpoint import NAME as CHECKPOINT
from lakestream.log.store.checkpoint import Snapshot, write_checkpoint
from lakestream.log.store.log import Appended
from lakestream.log.store.repair import salvage
from lakestream.log.store.segment_log import LogOptions, SegmentLog
from lakestream.log.store.segment_store import open_store
from lakestream.log.store.store import Store
from lakestream.raft.core.messages import HardState, Install, Membership, decode_envelopes
from lakestream.raft.core.ready import RaftError, Role
from lakestream.raft.group.group import Callbacks, Committed, Proposal, Replacement
from lakestream.raft.group.groups import RaftGroups
from lakestream.raft.group.hard_state import NAME as KEPT
from lakestream.raft.group.hard_state import SLOT, decode_slot
from lakestream.raft.group.ports import Channel
from lakestream.raft.group.raft_group import RaftGroup
from tests.sim.checks import mark_of
from tests.sim.core_node import show
from tests.sim.disk import SECTOR, Disk, SimFiles
from tests.sim.events import EPOCH, MS, US
from tests.sim.machine import TICK_NS
from tests.sim.network import SimPeers

if TYPE_CHECKING:
    from tests.sim.world import World

GROUP = "S-sim"
DIRECTORY = "/store/sim"
ASIDE, OLD = ".new", ".old"
MAX_GATHERED = 100


class State(msgspec.Struct, frozen=True):
    """State of a member in transfer to another one."""

    install: Install
    snapshot: Snapshot
    parts: list[tuple[str, bytes]]


class SimTimer:
    """Scheduled call."""

    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class SimClock:
    """`Clock` of one process; it may run at a wrong rate."""

    def __init__(self, process: GroupProcess) -> None:
        self._process = process

    def now(self) -> int:
        return EPOCH + self._process.world.events.now

    def steady(self) -> int:
        return self.now()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._process.later(0, callback)

    def call_later(self, delay_ns: int, callback: Callable[[], None]) -> SimTimer:
        timer = SimTimer()
        delay = delay_ns * self._process.machine.tick_ns // TICK_NS
        self._process.later(delay, lambda: None if timer.cancelled else callback())
        return timer


class SimIo(Io):
    """Threads of one process: work begins some time after it was submitted, and takes as long as its files say.

    The effects of a piece of work on shared state and on the disk happen when it begins; its end is reported later.
    """

    def __init__(self, process: GroupProcess) -> None:
        self._process = process

    def submit(
        self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None], brief: Brief = Brief.NO
    ) -> None:
        process = self._process
        process.later(process.random.randrange(1, 50 * US), lambda: self._run(work, done))

    def _run(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        process = self._process
        files = process.files
        files.spent = 0
        result, failed = None, None
        try:
            result = work()
        except Exception as error:
            failed = error
        if not files.dead:
            process.later(files.spent, lambda: done(result, failed))


class GroupHost:
    """State of a machine that survives its process."""

    def __init__(self, world: World, name: str, random: Random) -> None:
        self.world, self.name, self.random = world, name, random
        self.disk = Disk(random)
        self.suspect = False
        self.running: GroupProcess | None = None

    def process(self) -> GroupProcess:
        """Return a new process."""
        self.running = GroupProcess(self.world, self.name, self)
        return self.running

    def ended(self, power: bool) -> None:
        """End the process. After a failed sync the machine restarts too, because the disk had to be repaired."""
        unsure = self.running is not None and self.running.files.unsure
        self.running = None
        if power or unsure:
            self.disk.cut_power()

    def fail(self, random: Random) -> None:
        """Schedule a fault: a failing write or sync, or a kill or power cut in the middle of one."""
        if self.running is None:
            return
        files = self.running.files
        if random.random() < 0.5:
            files.cut_after, files.power = random.randrange(6), random.random() < 0.5
        else:
            files.fail, files.code = random.choice((("sync", errno.EIO), ("write", errno.EIO), ("write", errno.ENOSPC)))

    def mend(self) -> None:
        """Cancel the scheduled faults."""
        if self.running is not None:
            self.running.files.fail, self.running.files.cut_after = "", -1

    def damage(self, random: Random) -> bool:
        """Flip a bit of a segment, or truncate one."""
        disk = self.disk
        paths = [path for path, inode in disk.files.items() if path.endswith(".seg") and inode.data]
        if not paths:
            return False
        path = random.choice(sorted(paths))
        size = len(disk.files[path].data)
        if random.random() < 0.8:
            offset = random.randrange(size)
            self.world.say(f"a bit turns at {offset} of {path} on {self.name}")
            disk.flip(path, offset, random.randrange(8))
        else:
            length = random.randrange(size)
            self.world.say(f"{path} on {self.name} is cut from {size} to {length} bytes")
            disk.files[path].truncate(length)
            disk.files[path].sync()
        self.world.checker.shadows[self.name].exposed = True
        return True

    def entries(self) -> dict[int, tuple[str, int, int]]:
        """Return the segment, the offset and the end of the frame of each entry in the log of a stopped machine."""
        found: dict[int, tuple[str, int, int]] = {}
        for path, inode in sorted(self.disk.files.items()):
            if path.startswith(f"{DIRECTORY}/log/") and path.endswith(".seg"):
                content, at = bytes(inode.data), SEGMENT_HEADER
                salt = salt_at(content, at)
                while isinstance(frame := decode_frame(content, at, len(content), salt), Frame):
                    end = at + FRAME_HEADER + len(frame.body)
                    found[frame.index], at = (path, at, end), end
        return found

    def spoil(self, index: int, random: Random) -> None:
        """Flip a bit in the frame of an entry, if it is in the log."""
        path, start, end = self.entries().get(index, ("", 0, 0))
        if not path:
            return
        offset = random.randrange(start, end)
        self.world.say(f"a bit turns at {offset} of {path} on {self.name}, in entry {index}")
        self.disk.flip(path, offset, random.randrange(8))
        self.world.checker.shadows[self.name].exposed = True

    def spoil_file(self, name: str, random: Random) -> bool:
        """Flip a bit in every 512 bytes of a file beside the log; return False if there is none."""
        path = f"{DIRECTORY}/{name}"
        if path not in self.disk.files:
            return False
        for offset in range(0, len(self.disk.files[path].data), SECTOR):
            self.disk.flip(path, offset, random.randrange(8))
        shadow = self.world.checker.shadows[self.name]
        shadow.exposed = True
        if name == KEPT:
            shadow.hard = HardState()  # its member makes no promise before it has caught up with a leader
        return True


def _violated(group: str, error: Exception) -> None:
    """Raise the error of a group's owner, which is a checker's violation and must not be handled by `RaftGroups`."""
    raise error


class GroupProcess:
    """A process with one group."""

    def __init__(self, world: World, name: str, host: GroupHost) -> None:
        self.world, self.name, self.random = world, name, host.random
        self.disk = host.disk
        self.checker = world.checker
        self.machine = world.machines[name]
        self.files = SimFiles(host.disk, host.random)
        self.files.slow = world.slowness(name)
        self.files.on_sync = self._synced
        self.io = SimIo(self)
        self.clock = SimClock(self)
        self.peers = SimPeers(world.network, name)
        self.peers.on_send = self._sent
        self.failed = False
        self.leads, self.term, self.leader = False, 0, ""
        self.groups: RaftGroups
        self.group: RaftGroup
        self.store: Store
        self._gathered: list[bytes] = []
        self._next_seq = 1
        self._lost: set[int] = set()  # contexts that were dropped
        self._asked = 0
        self._commit = 0
        self._led = 0
        self._unsynced: list[tuple[Frame, Appended]] = []  # found in the page cache at the start

    # ------------------------------------------------------------------ life
    @property
    def dead(self) -> bool:
        return self.files.dead

    @property
    def power(self) -> bool:
        return self.files.power

    @property
    def applied(self) -> int:
        return self.store.applied

    @property
    def recovering(self) -> bool:
        return self.group.recovering

    @property
    def membership(self) -> Membership:
        return self.group.membership

    def log(self) -> list[tuple[int, int]]:
        last = self.store.log.last_index
        return [(last, self.store.log.last_term)] if last else []

    def start(self) -> None:
        world = self.world
        self._finish_swap()
        self.groups = RaftGroups(
            self.peers, self.io, self.clock, random=self.random, files=self.files, options=world.options
        )
        self.groups.on_error = _violated
        try:
            self.member = self.groups.member(GROUP, DIRECTORY, world.founders)
            self._open(salvaged=False)
        except CorruptLog as error:
            if not hasattr(self, "member"):
                if not self.checker.shadows[self.name].exposed:
                    raise
                self.member = self.groups.member(GROUP, DIRECTORY, world.founders, lost=True)
            world.say(f"{self.name}: {error}")
            world.count("salvages")
            self.member.damaged()
            salvage(DIRECTORY, self.files)
            self.member.recall()
            self._open(salvaged=True)
        log = self.store.log
        assert isinstance(log, SegmentLog)
        self._watch(log)
        told = Callbacks(self._committed, self._failed, self._role, self._given_up, self._install)
        self.group = self.member.join(log, self.io, told)
        self.groups.start()
        self.group.start()

    def _finish_swap(self) -> None:
        """Complete an interrupted install: remove the old state only after the new one is in place."""
        files = self.files
        if not files.exists(f"{DIRECTORY}/{KEPT}") and files.exists(f"{DIRECTORY + OLD}/{KEPT}"):
            files.remove_tree(DIRECTORY)
            files.replace(DIRECTORY + ASIDE, DIRECTORY)
        if files.exists(os.path.dirname(DIRECTORY)):
            files.sync_directory(os.path.dirname(DIRECTORY))  # a killed process may have renamed without a sync
        files.remove_tree(DIRECTORY + ASIDE)
        files.remove_tree(DIRECTORY + OLD)

    def _open(self, salvaged: bool) -> None:
        """Open the log, read all of it, apply what is known to be committed.

        Raises:
            CorruptLog: the log is damaged.
        """
        self.store = self._store(self.member.durable_through)
        log = self.store.log
        assert isinstance(log, SegmentLog)
        base, shadow = log.first_index - 1, self.checker.shadows[self.name]
        if salvaged and base < shadow.base:  # it was emptied: others send everything, or their state
            shadow.base, shadow.base_term, shadow.marks = base, 0, []
        if base > shadow.last:  # a state was put in place, and the process ended before it reported that
            self.checker.installed(self.name, base, self.checker.committed[base - 1][0])
        elif base > shadow.base:
            self.checker.compacted(self.name, base)  # the outline was written before the removal
        found = list(log.frames(1))
        durable = [frame for frame, at in found if self._on_platter(frame, at)]
        self._unsynced = [(frame, at) for frame, at in found if not self._on_platter(frame, at)]
        self.checker.reopened(self.name, durable, salvaged)
        for frame, at in self.store.replay(through=self.member.commit_through):
            self._apply(frame, at)

    def _store(self, durable_through: int | None) -> Store:
        plan = self.world.plan
        options = LogOptions(
            seal_bytes=plan.seal_bytes, seal_age_ns=1 << 60, retain_bytes=1 << 30, retain_segments=plan.retain_segments
        )
        store = open_store(
            DIRECTORY,
            self.io,
            options,
            uid="uid",
            files=self.files,
            now=self.clock.now,
            durable_through=durable_through,
        )
        store.describe("uid", "SIM", "$G", b"{}")
        return store

    def _on_platter(self, frame: Frame, at: Appended) -> bool:
        content = self.disk.durable(at.segment.path)
        data = self.disk.files[at.segment.path].data
        start, end = at.offset - FRAME_HEADER, at.offset + len(frame.body)
        return content is not None and content[start:end] == data[start:end]

    def end(self) -> None:
        self.files.dead = True
        self.peers.dead = True

    def later(self, delay_ns: int, call: Callable[[], None]) -> None:
        """Call something later, if this process still runs then."""
        self.machine.after(self, delay_ns, call)

    def tick(self) -> None:
        """Make a slow disk slow from now on. Groups has its own timer."""
        self.files.slow = self.world.slowness(self.name)

    def receive(self, sender: str, channel: Channel, payload: bytes) -> None:
        if self.world.tracing:
            for envelope in decode_envelopes(payload):
                self.world.say(f"{sender} → {self.name} {show(envelope.message)}")
        self.peers.handlers[channel](sender, payload)

    def node_changed(self, node: str, up: bool) -> None:
        for watcher in self.peers.watchers:
            watcher(node, up)

    # ------------------------------------------------------------------ requests
    def propose(self, bodies: Sequence[bytes]) -> bool:
        if not self.leads or self.failed or len(self._gathered) > MAX_GATHERED:
            return False
        self._gathered += bodies
        self._propose()
        return True

    def _propose(self) -> None:
        if not self._gathered or self.failed or not self.leads or self.group.in_flight:
            return
        commands, self._gathered = self._gathered, []
        proposals = []
        while commands:
            count = self.random.randint(1, 3)
            batch, commands = commands[:count], commands[count:]
            records = [
                encode_record(seq, self.clock.now(), b"s", b"", command)
                for seq, command in enumerate(batch, self._next_seq)
            ]
            self._next_seq += len(batch)
            self._asked += 1
            proposals.append(Proposal(Kind.MESSAGES, records, len(records), self._asked))
        try:
            self.group.propose(proposals)
        except RaftError:
            return

    def read(self) -> None:
        before = self.checker.acked_through

        def done(index: int) -> None:
            if index >= 0:
                self.world.count("reads answered")
                self.checker.read(self.name, index, before)
                self.checker.read(self.name, self.applied, before)

        if not self.failed:
            self.group.read_index(done)

    def transfer(self, to: str) -> None:
        if not self.failed:
            self.group.transfer(to)

    def step_down(self) -> None:
        if not self.failed:
            self.group.step_down()

    def change(self, membership: Membership) -> None:
        try:
            self.group.propose_membership(membership, lambda done: None)
        except (RaftError, ValueError):
            return
        self.world.count("membership changes")

    def compact(self, random: Random) -> None:
        """Write a checkpoint, then drop sealed segments, as if the lake held them."""
        store, through = self.store, random.choice((self.applied, self.applied, random.randint(0, self.applied)))

        def saved(error: BaseException | None) -> None:
            if error is None and store is self.store and store.drop_through(through):
                self.world.count("drops")

        store.checkpoint(b"", saved)

    # ------------------------------------------------------------------ states of other members
    def export(self) -> State:
        """Return the state that another member needs to catch up with this one."""
        store, log = self.store, self.store.log
        assert isinstance(log, SegmentLog)
        parts = [(path, bytes(self.disk.files[path].data)) for path in self.outlines(store)]
        for segment in log.segments:
            if segment.first_index <= store.applied + 1:
                following = store.applied + 1 - segment.first_index
                whole = segment.footer is not None or following >= len(segment.frame_offsets)
                end = None if whole else segment.frame_offsets[following]
                if segment.footer is None and end is None:
                    end = segment.end
                parts.append((segment.path, bytes(self.disk.files[segment.path].data[:end])))
        return State(self.group.snapshot(), store.snapshot(b""), parts)

    @staticmethod
    def outlines(store: Store) -> list[str]:
        """Return the files that describe dropped segments."""
        return [outline.path for outline in store._rows.outlines]  # type: ignore[union-attr]

    def _install(self, sender: str, install: Install, done: Callable[[Replacement | None], None]) -> None:
        self.later(self.random.randrange(1 * MS, 400 * MS), lambda: self._fetch(sender, install, done))

    def _fetch(self, sender: str, install: Install, done: Callable[[Replacement | None], None]) -> None:
        other = self.world.machines[sender].process
        reachable = self.world.network.reachable(self.name, sender) and self.random.random() < 0.9
        if not isinstance(other, GroupProcess) or not reachable or other.failed or other.applied < install.index:
            done(None)
            return
        state = other.export()

        def copied(_: object, error: BaseException | None) -> None:
            done(None if error is not None else self._replacement(state))

        self.io.submit(lambda: self._copy(state), copied)

    def _copy(self, state: State) -> None:
        """Copy a state into place, in a thread."""
        files, aside = self.files, DIRECTORY + ASIDE
        files.remove_tree(aside)
        files.make_directory(aside + "/log")
        for path, content in state.parts:
            fd = files.create(aside + path[len(DIRECTORY) :])
            files.write(fd, [content], 0)
            files.sync(fd)
            files.close(fd)
        files.sync_directory(aside + "/log")
        write_checkpoint(files, f"{aside}/{CHECKPOINT}", state.snapshot)

    def _replacement(self, state: State) -> Replacement:
        install = state.install
        fresh: list[Store] = []

        def swap() -> SegmentLog:
            files = self.files
            self.store.log.close()
            files.replace(DIRECTORY, DIRECTORY + OLD)
            files.replace(DIRECTORY + ASIDE, DIRECTORY)
            files.sync_directory(os.path.dirname(DIRECTORY))
            files.remove_tree(DIRECTORY + OLD)
            store = self._store(install.index)
            fresh.append(store)
            if store.applied != install.index:
                self.checker.fail(f"{self.name} installs {install.index} and is at {store.applied}")
            self.checker.installed(self.name, install.index, install.last_term)
            assert isinstance(store.log, SegmentLog)
            self._watch(store.log)
            return store.log

        def swapped() -> None:
            self.world.count("installs")
            self.world.note(lambda: f"{self.name} installs the state as of {install.index}/{install.last_term}")
            self.store = fresh[0]

        return Replacement(install.index, install.last_term, install.membership, DIRECTORY + ASIDE, swap, swapped)

    # ------------------------------------------------------------------ callbacks of the group
    def _committed(self, entries: list[Committed]) -> None:
        for entry in entries:
            frame = entry.frame
            if frame.index != self.store.applied + 1:
                self.checker.fail(f"{self.name} is handed entry {frame.index} after {self.store.applied}")
            commands = self._apply(frame, entry.at)
            if entry.context is not None:
                if entry.context in self._lost:
                    self.checker.fail(f"{self.name}: entry {frame.index} was given up and comes back with its context")
                self.checker.acked_to_client(self.name, frame.index, commands)
        self._propose()

    def _apply(self, frame: Frame, at: Appended) -> list[bytes]:
        commands: list[bytes] = []
        if frame.kind == Kind.MESSAGES:
            records = list(iter_records(frame.body))
            commands = [record.data for record in records]
            self.store.apply_records(at, records)
        self.store.applied = frame.index
        self.checker.applied(self.name, frame.index, mark_of(frame), commands)
        return commands

    def _role(self, leads: bool, leader: str, term: int) -> None:
        self.world.note(lambda: f"{self.name} is told: {'it leads' if leads else f'{leader!r} leads'} term {term}")
        self.leads, self.leader, self.term = leads, leader, term
        self._gathered.clear()
        self._next_seq = self.store.last_seq + 1
        if leads:
            self.checker.serves(self.name, term, self.applied)

    def _given_up(self, contexts: list[object]) -> None:
        for context in contexts:
            assert isinstance(context, int)
            self._lost.add(context)

    def _failed(self, error: Exception) -> None:
        self.world.note(lambda: f"{self.name} failed: {error!r}")
        self.failed = True
        self.leads = False

    # ------------------------------------------------------------------ checks
    def _sent(self, node: str, channel: Channel, payload: bytes) -> None:
        if channel is Channel.RAFT:
            for envelope in decode_envelopes(payload):
                self.checker.sent(self.name, node, envelope.message)

    def _synced(self, path: str) -> None:
        if self._unsynced and all(self._on_platter(frame, at) for frame, at in self._unsynced):
            frames, self._unsynced = [frame for frame, _ in self._unsynced], []
            self.checker.appended(self.name, frames)
        if path in (f"{DIRECTORY}/{KEPT}", DIRECTORY):
            content = self.disk.durable(f"{DIRECTORY}/{KEPT}")
            if content is not None:
                self._hardened(content)

    def _hardened(self, content: bytes) -> None:
        slots = (decode_slot(content[at : at + SLOT]) for at in (0, SLOT))
        newest = max(slots, key=lambda slot: slot[0])[1]
        if newest is not None:
            self.checker.hardened(self.name, newest.hard)

    def _watch(self, log: SegmentLog) -> None:
        """Report the log's operations to the checkers. Only what is on disk counts."""
        append, truncate = log.append, log.truncate

        def appended(frames: list[Frame]) -> list[Appended]:
            placed = append(frames)
            if not self._on_platter(frames[-1], placed[-1]):
                self.checker.fail(f"{self.name}: entry {frames[-1].index} was synced and is not on the platter")
            self.checker.appended(self.name, frames)
            return placed

        def truncated(last_index: int) -> None:
            if last_index < log.last_index:
                self.world.count("truncations")
            self.checker.truncating(self.name, last_index)
            truncate(last_index)
            self._unsynced = [each for each in self._unsynced if each[0].index <= last_index]
            self.checker.truncated(self.name, last_index)

        log.append, log.truncate = appended, truncated  # type: ignore[method-assign]

        def sealed(segment: SealedSegment) -> None:
            self.world.count("seals")
            self.checker.sealed(self.name, segment.first_index, segment.last_index)

        log.on_sealed = sealed

    def observe(self) -> None:
        self.checker.say()
        if not hasattr(self, "group") or self.files.dead:
            return
        core = self.group._core
        self.term = core.term
        if core.role is Role.LEADER and not self.failed:
            if self._led != core.term:
                self._led = core.term
                self.world.note(lambda: f"{self.name} leads term {core.term}")
                self.checker.leads(self.name, core.term, core.log.terms.base, core.log.terms.term)
            if core.commit > self._commit:
                self.checker.leader_commits(self.name, core.term, core.commit, core.membership)
        self._commit = core.commit
        gone = self.group._log.first_index - 1
        if gone > self.checker.shadows[self.name].base:
            self.checker.compacted(self.name, gone)
