"""A Raft group: the shell around the Raft core, with a log, a hard state and peers.

Belongs here: carrying out each Ready of the core in the order that it demands: term and vote before messages, the log
before acknowledgements, committed entries handed out in order, seals where the log says. The core decides all rules of
Raft; disk.py does the work in the I/O thread.
"""

# The problem. The core says what to do and in which order (`Ready` in raft/core/ready.py). Disk, network and owner take
# their time, and the next Ready comes before the last one is carried out. This shell keeps the order without ever
# blocking the event loop, and without knowing a rule of Raft.
#
# Everything is one loop, `_pump`. It takes one step that is possible, of the first kind that has one, until there is
# none. Every event (a message, a tick, the end of disk work, a call of the owner) changes a field and pumps. Calls from
# inside, by the owner in the middle of a callback, leave the work to the loop that runs already. If each event carried
# out what it causes, calls would nest in any order: an owner proposes while entries are handed to it, say.
#
#     1. take a Ready           entries go to `_unstable` and `_disk`, messages to `_out`, a cut to `_disk`
#     2. begin disk work        at most one piece at a time: whatever is due by then (`PendingWork`), as one `Work`
#     3. hand entries out       those that are committed and on this disk, in order, at most through the next SEAL
#     4. call the owner         a change of role, answers to reads, room for proposals that were held
#
# What has to hold, and what keeps it:
#
#     - No message leaves before the term and vote it depends on are durable. `_out.unsynced` holds everything back from
#       the moment a hard state is due until the work that syncs it has ended.
#     - Entries are sent before they are written, but acknowledged only afterwards: the core hears of them by
#       `persisted`, with the epoch of the Ready, so that a write that was cut meanwhile acknowledges nothing (`uncut`).
#     - The owner applies an entry only if it is committed *and* durable here: `min(commit, placed)`. A leader whose
#       disk is slow lets others commit and applies later.
#     - A cut is noted in the file `raft` before the log is cut, or the shorter log would look like damage.
#     - Sealed ranges are equal on all members. A SEAL is an entry; behind a committed one nothing is written
#       (`must_seal`) and nothing handed out until the segment is sealed through it. Entries that another leader put
#       behind it move to the next segment. Between proposing one and having sealed, the leader proposes nothing.
#     - After a failure nothing is written and nothing promised (`fail`, invariant 4), yet the leadership is given
#       away: messages that promise nothing still leave.
#
# Two delays are on purpose. A follower that gets entries writes them first and hands out the earlier ones that they
# commit with the next `announce`, once in 2 ms (`_behind`): otherwise each entry would be applied before the next is
# written, and the leader waits for the latter. And a small segment that is merely old waits for its turn among all
# groups of the node (`seal_old`): a thousand quiet streams would otherwise seal in the same moment.
#
# What is ugly: what is due for the disk (`PendingWork`) is no state machine. As one it would be larger, since almost
# any combination happens: a cut while a write is under way, a state that is fetched while a seal waits. The rest is
# grouped by who owns it (`Unstable` entries in memory, `Outgoing` messages, `OwnerState` callbacks), and a thread gets
# its `Work` as a value, so that it reads none of it.

from __future__ import annotations

import contextlib
from collections.abc import Callable
from enum import Enum, auto
from typing import cast

import msgspec

from lakestream.log.format.errors import LogError, LogFrozen
from lakestream.log.format.files import Io
from lakestream.log.format.frame import Frame, Kind
from lakestream.log.store.log import Appended
from lakestream.log.store.segment_log import SegmentLog
from lakestream.raft.core.core import Core
from lakestream.raft.core.messages import Install, Membership, Message, decode_membership
from lakestream.raft.core.ready import NotLeader, RaftError, RaftOptions, Ready, Role, TooMuchUncommitted, Transferring
from lakestream.raft.group.callbacks import OwnerState, conflict_text
from lakestream.raft.group.disk import PendingWork, Work
from lakestream.raft.group.group import (
    Diverged,
    Group,
    GroupOwner,
    MemberProgress,
    Proposal,
    Replacement,
    Steps,
    Wait,
    failure_of,
    frames_of,
    unapplied,
)
from lakestream.raft.group.hard_state import PersistentState, StateFile, updated
from lakestream.raft.group.outgoing import Outgoing
from lakestream.raft.group.unstable import RECENT_BYTES, Unstable, to_seal

TICK_NS = 100_000_000
"""A tick of the core (100 ms)."""
KEEP_TICKS = 50
"""A member writes what its file `raft` holds without a sync once in so many ticks (5 s), if something changed."""
SMALL_BYTES = 256 << 10
"""Segments below this length (256 KiB) that are old are sealed in turn; see `SEALS_A_TICK` in groups.py."""
LOAD_BYTES = 4 << 20
"""Maximum bytes of committed entries read from the log at once to be handed out (4 MiB)."""


class Life(Enum):
    """The life of a group in this process. A group that has failed runs on, to give its leadership away."""

    NEW = auto()
    RUNNING = auto()
    STOPPED = auto()


class Outlet(msgspec.Struct):
    """The services of a node for its groups: see `RaftGroups`."""

    io: Io
    send: Callable[[str, str, Message], None]
    """(group, to, message)"""
    flush: Callable[[], None]
    """Let what was sent leave, unless more groups will send in this turn."""
    work: Callable[[RaftGroup, Work], None]
    """Do the group's disk work, then call `worked`."""
    active: Callable[[str, bool], None]
    """(group, True if it needs ticks)"""
    committed: Callable[[str], None]
    """(group) The commit index moved: call `announce` soon."""
    joined: Callable[[str, RaftGroup], None]
    left: Callable[[str], None]
    old: Callable[[RaftGroup], None]
    """Call `seal_old` when it is the group's turn."""
    many: bool = False
    """True while several groups are called one after the other, and output can leave for all of them afterwards."""


class RaftGroup(Group):
    """A group of several nodes, or of one that others may join. See `Group`."""

    def __init__(
        self,
        group: str,
        log: SegmentLog,
        file: StateFile,
        kept: PersistentState,
        core: Core,
        handed: tuple[int, int],
        outlet: Outlet,
        options: RaftOptions,
        owner: GroupOwner,
    ) -> None:
        """Use `RaftMember.join`. `handed` is (index, term) of the newest entry that is applied."""
        self.group, self.me = group, core.me
        self.failed: Exception | None = None
        self._core, self._file, self._kept = core, file, kept
        self._outlet, self._io, self._options = outlet, outlet.io, options
        self._ticks = 0
        self._given_up = 0  # the term in which this node began to give up leading
        self._life = Life.NEW
        self._pumping = self._touched = self._active = False
        self._disk = PendingWork()
        self._loading = self._room = self._waits = False  # `_waits`: the next step of applying waits for the owner
        self._behind = False  # on a follower: what is committed is handed out by the next `announce`
        self._idle: list[Callable[[], None]] = []  # to be called when the last work has ended
        self._loaded: list[tuple[Frame, Appended]] = []  # read from the log, and not handed out yet
        self._seal_proposed = 0  # the index of a SEAL of ours that is not sealed yet
        self._log = log
        log.propose_seal = self._propose_seal
        self._log_base = log.first_index - 1  # entries through here have left the log, as the core was told
        self._unstable = Unstable(log.last_index, handed[0])
        self._owner = OwnerState(owner, core, handed[1])
        self._out = Outgoing(core, self._io, lambda to, message: outlet.send(group, to, message), self._read_done)
        self._out.unsynced = True  # send nothing before recovered entries are durable

    # ------------------------------------------------------------------ state
    @property
    def in_flight(self) -> bool:
        """Note too that the caller waits: `on_commit` is called when it can propose."""
        blocked = self._blocked()
        self._owner.wake |= blocked
        return blocked

    def _blocked(self) -> bool:
        return bool(
            self._disk.under_way is not None
            or self._owner.applying
            or self._seal_proposed
            or self._owner.held
            or self._disk.seal is not None
            or self._disk.replacement is not None
            or self._core.transferring
        )

    @property
    def _ended(self) -> bool:
        return self._life is Life.STOPPED or self.failed is not None

    @property
    def in_company(self) -> bool:
        return self._outlet.many

    @property
    def at_rest(self) -> bool:
        return self._disk.under_way is None

    @property
    def is_leader(self) -> bool:
        return self._owner.leads

    @property
    def leader(self) -> str:
        return self._core.leader

    @property
    def term(self) -> int:
        return self._core.term

    @property
    def last_index(self) -> int:
        return self._core.last_index

    @property
    def commit_index(self) -> int:
        return self._core.commit

    @property
    def heard_commit(self) -> int:
        return self._core.heard_commit

    @property
    def membership(self) -> Membership:
        return self._core.membership

    @property
    def recovering(self) -> bool:
        return self._kept.recovering

    @property
    def handing_over(self) -> bool:
        return self._core.transferring != ""

    @property
    def gave_up(self) -> bool:
        return self._given_up > 0 and self.term <= self._given_up + 1

    def snapshot(self) -> Install:
        return Install(self._core.term, self._unstable.handed, self._owner.handed_term, self._kept.membership)

    def progress(self) -> list[MemberProgress]:
        core, found = self._core, []
        if core.role is not Role.LEADER:
            return []
        for name in core.membership.members:
            learner = name not in core.membership.voters
            if name == core.me:
                found.append(MemberProgress(name, core.durable_index, learner, True, 0))
                continue
            ticks = core.ticks_since_contact(name)
            active = ticks is not None and ticks < self._options.election_ticks
            found.append(MemberProgress(name, core.match_of(name), learner, active, (ticks or 0) * TICK_NS))
        return found

    # ------------------------------------------------------------------ life
    def start(self) -> None:
        assert self._life is Life.NEW
        self._life = Life.RUNNING
        self._outlet.joined(self.group, self)
        if self._core.membership.voters == (self.me,):
            self._core.campaign()
        self._active = True
        self._outlet.active(self.group, True)
        self._check_role()
        self._pump()

    def stop(self, done: Callable[[], None] | None = None) -> None:
        was, self._life = self._life, Life.STOPPED
        if was is Life.RUNNING:
            self._outlet.left(self.group)
        if was is not Life.STOPPED and self._disk.under_way is None:
            self._close_file(keep=was is Life.RUNNING)
        if done is not None and self._disk.under_way is not None:
            self._idle.append(done)
        elif done is not None:
            done()

    def _close_file(self, keep: bool) -> None:
        if keep and self.failed is None:
            with contextlib.suppress(OSError):  # everything that must be durable is; see PersistentState
                self._file.write(self._to_keep(), sync=False)
        self._file.close()
        idle, self._idle = self._idle, []
        for done in idle:
            done()

    # ------------------------------------------------------------------ calls
    def tick(self) -> None:
        """Advance the clock by TICK_NS."""
        moved = self._core.tick()
        self._ticks += 1
        if self._ticks % KEEP_TICKS == 0 and self._is_outdated():
            self._disk.keeps = moved = True
        if moved:
            self._pump()

    def keep(self) -> None:
        """Write what the file `raft` holds without a sync, if it is outdated: the group sleeps."""
        if self.failed is None and self._is_outdated():
            self._disk.keeps = True
            self._pump()

    def _is_outdated(self) -> bool:
        """Return True if the file `raft` is behind in what it holds without a sync."""
        kept, core = self._kept, self._core
        if (kept.hard.commit, kept.durable) != (min(core.commit, core.durable_index), self._durable()):
            return True
        return kept.confirmed != tuple(core.confirmed.values())

    def step(self, sender: str, message: Message) -> None:
        """Take a message; call `settle` after the last one of a buffer. Raise RaftError if it is invalid."""
        if not self._ended:
            self._core.step(sender, message)

    def settle(self) -> None:
        """Carry out what the messages caused."""
        self._pump()

    def announce(self) -> None:
        """Tell the followers the commit index; on a follower, hand out what is committed."""
        self._behind = False
        self._core.announce()
        self._pump()

    def node_changed(self, node: str, up: bool) -> None:
        """Note that a node came or went."""
        if node in self._core.membership.members and self.failed is None:
            (self._core.node_up if up else self._core.node_down)(node)
            self._pump()

    def unreachable(self, node: str) -> None:
        """Note that messages to `node` may be lost; they are sent again with the next event."""
        self._core.unreachable(node)

    def propose(self, proposals: list[Proposal]) -> None:
        self._given_up = 0  # an earlier transfer failed
        assert not self._blocked(), "a write is under way"
        if self.failed is not None:
            raise self.failed
        if not self._owner.leads or self._core.role is not Role.LEADER:
            raise NotLeader(self._core.leader)
        if proposals:
            self._propose(proposals)
            self._pump()

    def _propose(self, proposals: list[Proposal]) -> None:
        core, self._touched = self._core, True
        frames = frames_of(proposals, core.last_index + 1, core.term)
        try:
            core.propose(frames)
        except (TooMuchUncommitted, Transferring):
            self._owner.held = proposals  # proposed again when there is room; lost if leadership is lost
            return
        for frame, proposal in zip(frames, proposals, strict=True):
            if proposal.context is not None:
                self._owner.contexts[frame.index] = proposal.context

    def _propose_seal(self) -> None:
        """Propose a SEAL if the open segment is due; see `SegmentLog.propose_seal`."""
        if self._seal_now():
            self._pump()

    def seal_old(self) -> None:
        """Propose a SEAL if the open segment is due: the group's turn among those with an old one has come."""
        if self._seal_now(in_turn=True):
            self._pump()

    def _seal_now(self, in_turn: bool = False) -> bool:
        """Propose a SEAL if this node leads and the segment is due; return True if so.

        A small one that is merely old waits for its turn. Many streams with a few messages each would otherwise cost
        more for seals than for messages.
        """
        core = self._core
        if not self._owner.leads or core.role is not Role.LEADER or self._blocked() or self.failed is not None:
            return False
        log = self._log
        if not log.seal_due(log.now()):
            return False
        if not in_turn and log.open_segment.end < SMALL_BYTES and not log.seal_due(0):  # no segment is old at time 0
            self._outlet.old(self)
            return False
        try:
            core.propose([Frame(Kind.SEAL, core.term, core.last_index + 1, 0, b"")])
        except RaftError:
            return False  # it stays due
        self._seal_proposed = core.last_index
        return True

    def propose_membership(self, membership: Membership, done: Callable[[bool], None]) -> None:
        self._owner.changes[self._core.propose_membership(membership)] = done
        self._pump()

    def read_index(self, done: Callable[[int], None]) -> None:
        try:
            self._core.read(done)
        except RaftError:
            done(-1)
            return
        self._pump()

    def transfer(self, to: str = "") -> bool:
        try:
            begun = self._core.transfer(to) != ""
        except (RaftError, ValueError):
            begun = False
        self._pump()
        if begun:
            self._given_up = self.term
        return begun

    def stay(self) -> None:
        self._given_up = 0

    def step_down(self) -> None:
        self._given_up = self.term
        if self._core.role is Role.LEADER:
            self._core.step_down()
            self._pump()

    def campaign(self) -> None:
        self._core.campaign()
        self._pump()

    def sync(self) -> None:
        if self._log.unsynced and self.failed is None:
            self._disk.syncs = True
            self._pump()

    def compact_through(self, index: int, done: Callable[[BaseException | None], None] | None = None) -> None:
        log = self._log
        self._io.submit(lambda: log.remove_through(index), lambda _, error: done(error) if done is not None else None)

    # ------------------------------------------------------------------ Ready
    def _pump(self) -> None:
        """Carry out Readys of the core until there are none. Nested calls leave the work to the outer one."""
        self._touched = True  # the core may have a Ready
        if self._pumping or self._life is not Life.RUNNING:
            return
        self._pumping = True
        try:
            core, owner = self._core, self._owner
            base = self._log.segments[0].first_index - 1
            if base > self._log_base:  # the store removes segments that the lake holds
                self._log_base = base
                core.compacted(base)
            while self._life is Life.RUNNING:
                if self._touched:
                    self._touched = False
                    ready = core.ready()
                    if ready is not None:
                        self._take(ready)
                        continue
                # A group is called several times for an entry: whatever is not due costs no call.
                if self._disk.is_due(self._out.unsynced) and self._start_work():
                    continue
                if self._unstable.handed < core.log.commit and self._hand_out():
                    continue
                if not ((owner.wake or owner.waits or (core.leading is not None) != owner.leads) and self._notify()):
                    break
        finally:
            self._pumping = False
            self._outlet.flush()
        active = not (self._core.quiescent or self._ended)
        if active != self._active:
            self._active = active
            self._outlet.active(self.group, active)

    def _take(self, ready: Ready) -> None:
        if ready.hard is not None or ready.recovered or ready.rolled_back is not None:
            self._out.unsynced = True
        if ready.rolled_back is not None:  # the mark on disk stays until recovery ends, the core resets its own earlier
            self._kept = msgspec.structs.replace(self._kept, forgetful=self._core.forgetful)
        if ready.changed:
            self._check_role()
        for context in ready.lost_reads:
            cast(Callable[[int], None], context)(-1)
        if self.failed is not None:
            # Write and promise nothing more, but let another member lead.
            self._out.give_away(ready.messages)
            return
        if ready.warnings or ready.recovered or ready.missing or ready.rolled_back is not None:
            self._owner.report(ready)
        if ready.stopped is not None:
            self._out.give_away(ready.messages)
            text = conflict_text(ready.stopped)
            self.fail(Diverged(text, text))
            return
        if ready.truncate_after is not None:
            self._unstable.cut(ready.truncate_after)
            self._disk.cut_after(ready.truncate_after)
        if ready.append:
            self._unstable.append(ready.append)
            self._disk.append(ready.append, ready.epoch)
        if ready.messages:
            self._out.put(ready.messages, self._unstable, self._log)
        if ready.sends:
            self._touched = True  # more may follow what is sent now
            self._out.put(ready.sends, self._unstable, self._log)
        if ready.commit is not None:
            self._commit_moved(bool(ready.append))
        for context, index in ready.reads:
            self._owner.await_read(index, cast(Callable[[int], None], context))
        if ready.install is not None:
            self._owner.callbacks.on_install(ready.install_from, ready.install, self._installed)

    def _commit_moved(self, with_entries: bool) -> None:
        """Let the leader tell its followers, and a follower write new entries before it hands out the earlier ones."""
        leads = self._core.role is Role.LEADER
        self._behind = with_entries and not leads
        if leads or self._behind:
            self._outlet.committed(self.group)

    def _read_done(self, error: BaseException | None) -> None:
        """Go on after entries for other members were read from the disk, or fail with `error`."""
        if self._ended:
            return
        if error is not None and self._disk.replacement is None:  # else the log is about to be replaced
            self.fail(error)
        self._pump()

    # ------------------------------------------------------------------ the disk
    def _start_work(self) -> bool:
        """Submit the disk work that is due; return True if so."""
        disk = self._disk
        if self.failed is not None:
            return False
        if disk.replacement is not None and self._owner.applying and not self._waits:
            return False  # it takes the log from under the owner, who may be in the middle of an entry
        work = disk.begin(self._log, self._file, self._core.commit, self._out.unsynced, self._keep, self._keep_through)
        if work is None:
            return False
        if work.keep_synced:
            self._out.sync_begins()
        self._outlet.work(self, work)
        return True

    def _keep(self) -> PersistentState:
        self._kept = self._to_keep()
        return self._kept

    def _keep_through(self, durable: int) -> PersistentState:
        self._kept = updated(self._kept, self._core, durable)
        return self._kept

    def _to_keep(self) -> PersistentState:
        return updated(self._kept, self._core, self._durable())

    def _durable(self) -> int:
        """Return the index through which the log is durable; 0 if writes are not synced."""
        return self._unstable.placed if self._log.options.sync_always else 0

    def worked(self) -> None:
        """Go on after disk work, which has its result."""
        work = self._disk.end()
        done = work.done
        if done is not None and done.file is not None:
            self._file = done.file
        if self._life is Life.STOPPED:  # after a failed write nothing is written; an installed state has its own file
            self._close_file(keep=done is not None and work.replace is None)
            return
        if done is None:
            self.fail(work.error)
            return
        self._owner.wake |= self._owner.leads
        if work.replace is not None and work.kept is not None and done.log is not None:
            self._replaced(work.kept, work.replace, done.log)
        if work.seal is not None:
            self._unstable.move([at for at in done.moved if at.index <= self._unstable.placed])
            self._seal_ended(work.seal[1])
        if work.frames:
            self._unstable.place(self._disk.uncut(done.placed))
            self._core.persisted(work.frames[-1].index, work.epoch)
        if work.keep_synced:
            self._out.sync_ended(self._unstable, self._log)
        if self._owner.leads:
            self._seal_now()
        self._pump()

    def _seal_ended(self, index: int) -> None:
        self._disk.sealed(index)
        if self._seal_proposed <= index:
            self._seal_proposed = 0

    def give_up(self, error: Exception) -> None:
        self.fail(self._log.failed or unapplied(error))

    def fail(self, error: BaseException | None) -> None:
        """Leave the group and write nothing more (invariant 4)."""
        if self.failed is not None:
            return
        self.failed = failure_of(error)
        if self._log.failed is None:
            self._log.failed = error if isinstance(error, LogError) else LogFrozen(self._file.path, self.failed)
        self._core.freeze()
        self._out.clear()
        self._disk.drop()
        self._owner.callbacks.on_failure(self.failed)
        self._check_role()
        self._pump()

    # ------------------------------------------------------------------ another state
    def _installed(self, replacement: Replacement | None) -> None:
        """Take the state that the owner fetched for an Install, or None if it could not be fetched."""
        if self._ended:
            return
        if replacement is None:
            self._core.install_failed()
        else:
            self._disk.replacement = replacement
        self._pump()

    def _replaced(self, kept: PersistentState, replacement: Replacement, log: SegmentLog) -> None:
        assert log.last_index == replacement.index, "the log that was put in place does not end where its state does"
        self._log, self._kept = log, kept
        log.propose_seal = self._propose_seal
        self._log_base = log.first_index - 1
        self._unstable = Unstable(replacement.index, replacement.index)
        self._owner.handed_term = replacement.term
        self._owner.applying = self._waits = False
        self._disk.replaced()
        self._loaded = []
        self._core.installed(replacement.index, replacement.term, replacement.membership)
        replacement.swapped()

    # ------------------------------------------------------------------ handing out
    def _hand_out(self) -> bool:
        """Hand out entries that are committed and on disk here, at most through the next SEAL; return True if so."""
        disk = self._disk
        if disk.seal is not None or disk.replacement is not None or self._loading or self.failed is not None:
            return False
        if self._owner.applying:
            return False
        unstable = self._unstable
        found, self._loaded = self._loaded, []
        if found:
            unstable.handed = found[-1][0].index
            self._deliver(found)
            return True
        limit = min(self._core.commit, unstable.placed)
        if unstable.handed >= limit:
            return False
        if self._behind and not disk.must_seal(self._core.commit) and self._core.role is not Role.LEADER:
            return False  # new entries are written first, but those behind a SEAL wait for it
        found = unstable.take(limit)
        if found:
            self._deliver(found)
        else:
            self._load(limit)
        return True

    def _load(self, limit: int) -> None:
        """Read entries from the log that were there before this process and not known to be committed then."""
        log, first = self._log, self._unstable.handed + 1
        self._loading = True

        def done(found: list[tuple[Frame, Appended]] | None, error: BaseException | None) -> None:
            self._loading = False
            if self._ended or log is not self._log or self._disk.replacement is not None:
                return
            if found is None:
                self.fail(error)
                return
            self._loaded.extend(to_seal(found[: limit + 1 - first]))
            self._pump()

        self._io.submit(lambda: log.entries(first, LOAD_BYTES), done)

    def _deliver(self, found: list[tuple[Frame, Appended]]) -> None:
        for frame, _ in found:
            if frame.kind is Kind.MEMBERSHIP:
                membership = decode_membership(frame.body)
                self._kept = msgspec.structs.replace(self._kept, membership=membership, membership_index=frame.index)
                self._out.unsynced = True  # durable before a seal: recovery reads memberships of the open segment
        self._room = True
        self._go_on(self._owner.commit(found), found[-1])

    def _go_on(self, steps: Steps | None, newest: tuple[Frame, Appended], wait: Wait | None = None) -> None:
        """Leave the next step of applying the entries through `newest` to a later turn; after the last one, go on."""
        self._owner.applying, self._waits = steps is not None, wait is not None
        if steps is not None:
            if wait is not None:
                wait(lambda: self._step(steps, newest))
            else:
                self._io.submit(lambda: None, lambda _, error: self._step(steps, newest))
            return
        last, at = newest
        if last.kind is Kind.SEAL:
            if at.segment is self._log.open_segment:
                self._disk.seal = (self._log.sealing_state(), last.index)
            else:
                self._seal_ended(last.index)
        alone = len(self._core.membership.members) < 2
        self._unstable.trim(RECENT_BYTES if self._core.role is Role.LEADER and not alone else 0)

    def _step(self, steps: Steps, newest: tuple[Frame, Appended]) -> None:
        """Take one step of applying entries."""
        if self._ended:
            return
        self._owner.applying = False  # what the owner proposes with the last one is taken
        left: Steps | None = None
        wait: Wait | None = None
        for found in steps:
            left, wait = steps, found
            break
        if not self._ended:
            self._go_on(left, newest, wait)
            self._pump()

    # ------------------------------------------------------------------ callbacks
    def _notify(self) -> bool:
        """Call the owner for what has changed; return True if it was called."""
        owner, core = self._owner, self._core
        # A new leader serves once an entry of its term is handed out; every other change comes with a Ready.
        if core.role is Role.LEADER and not owner.leads and self._check_role():
            return True
        if owner.reads(self._unstable.handed):
            return True
        if owner.held and (self._room or owner.wake) and not core.transferring:
            held, owner.held = owner.held, []
            self._room = owner.wake = False
            self._propose(held)
            return not owner.held
        if owner.wake and owner.leads and not self._blocked():
            owner.resume()
            return True
        return False

    def _check_role(self) -> bool:
        led = self._owner.leads
        changed = self._owner.role(self.failed is not None)
        if led and not self._owner.leads:
            self._seal_proposed = 0
        return changed
