"""One member of a group: the Raft core with a log, a file and peers around it.

Belongs here: doing what the core says is to be done, in the order that it demands: term and vote before messages,
the log before acknowledgements, handing out in order, seals where the log says. No rule of Raft is decided here, and
what happens in the I/O thread is disk.py's.

Seals. The leader proposes a SEAL by itself when the open segment is due, and nothing else until it has sealed. Every
member seals through that entry when it has handed it out, and hands out nothing else before that is done. So sealed
ranges are the same everywhere; entries that another leader put behind a SEAL move to the next segment.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from random import Random
from typing import cast

import msgspec

from lakestream.log.format.errors import LogError, LogFrozen
from lakestream.log.format.frame import Frame, Kind
from lakestream.log.store.segment_log import Appended, SealState, SegmentLog
from lakestream.raft.core.core import Core
from lakestream.raft.core.messages import Install, Membership, Message, decode_membership
from lakestream.raft.core.ready import (
    ChangePending,
    NotLeader,
    Options,
    RaftError,
    Ready,
    Role,
    TooMuchUncommitted,
    Transferring,
)
from lakestream.raft.group.callbacks import Diverged, Owner, Telling, conflict_text
from lakestream.raft.group.disk import Replacement, Work, Worked, perform, replacing
from lakestream.raft.group.hard_state import Kept, KeptFile
from lakestream.raft.group.member import MemberProgress, core_over, of_a_group_of_one, progress_of, terms_of, to_keep
from lakestream.raft.group.outgoing import Outgoing, Outlet
from lakestream.raft.group.unstable import RECENT_BYTES, Tail, to_seal
from lakestream.raft.proposal import Proposal

__all__ = ["Member", "MemberProgress", "MembershipBusy", "NotLeader", "Replacement"]

MembershipBusy = ChangePending
KEEP_TICKS = 10
"""What is known of the other members is kept at the latest after so many ticks (1 s)."""
LOAD_BYTES = 4 << 20
"""Bytes of committed entries that are read from the log at once to be handed out."""


class Member:
    """What `Groups.member` gives. The names without underscore are for whoever opens the log; the group is the rest."""

    def __init__(
        self,
        group: str,
        me: str,
        file: KeptFile,
        kept: Kept,
        *,
        fresh: bool,
        outlet: Outlet,
        options: Options,
        rng: Random,
    ) -> None:
        """Use `Groups.member`. `fresh`: the log is new, or was that of a group of one."""
        self.group, self.me = group, me
        self.failed: Exception | None = None
        self._file, self._kept, self._fresh, self._settled = file, kept, fresh, False
        self._outlet, self._io, self._options, self._random = outlet, outlet.io, options, rng
        self._core: Core  # since `attach`, like the next four
        self._log: SegmentLog
        self._out: Outgoing
        self._owner: Telling
        self._tail: Tail
        self._started = self._stopped = self._pumping = self._touched = self._active = False
        self._writes: deque[tuple[Frame, int]] = deque()  # (frame, epoch) that are not being written yet
        self._truncate: int | None = None
        self._cut = 1 << 62  # the lowest cut since the work under way began
        self._busy = self._loading = self._wants_sync = self._room = self._wants_kept = False
        self._unkept_ticks = 0
        self._seal: tuple[SealState, int] | None = None  # waits for its turn, or is being done
        self._replacement: Replacement | None = None
        self._idle: list[Callable[[], None]] = []  # to be called when the last work has ended
        self._loaded: list[tuple[Frame, Appended]] = []  # read from the log, and not handed out yet
        self._seal_proposed = 0  # the index of a SEAL of ours that is not sealed yet
        self._unsealed = 0  # a SEAL that is in the log, or being written, behind which nothing was sealed yet
        self._log_base = 0  # entries through here have left the log, as the core knows

    # ------------------------------------------------------------------ before the log is opened
    @property
    def durable_through(self) -> int:
        """Entries through here were durable in this log: one that is not there any more is damage, not a torn write."""
        return self._kept.durable

    @property
    def commit_through(self) -> int:
        """Entries through here are known to be committed: the ones to be applied at recovery.

        In a log without a file `raft` everything is: it was that of a group of one.
        """
        return 1 << 62 if self._fresh else self._kept.hard.commit

    @property
    def recovering(self) -> bool:
        """Whether entries that this member acknowledged may be gone: it does not vote before it has them again."""
        return self._kept.recovering

    def damaged(self) -> None:
        """The log is damaged and will be cut or emptied: from now on `recovering`, durably. Blocks. Raises OSError.

        Call it before `log.salvage.salvage`, which cuts the log to what is intact.
        """
        old = self._kept
        hard = msgspec.structs.replace(old.hard, commit=0)
        self._kept = msgspec.structs.replace(
            old, hard=hard, durable=0, base=0, base_term=0, recovering=True, joining=False
        )
        self._file.write(self._kept, sync=True)
        self._fresh = False

    def attach(self, log: SegmentLog, owner: Owner) -> None:
        """The log is open, and everything through `log.applied()` is applied. For `Group`."""
        self._log = log
        log.propose_seal = self._propose_seal
        if self._fresh:
            self._kept = of_a_group_of_one(self._kept, log)
        handed = log.applied() if log.applied is not None else self._kept.hard.commit
        handed = min(handed, log.last_index)
        terms = terms_of(log, self._kept)
        handed_term = terms.term(handed) or 0
        self._tail = Tail(log.last_index, handed)
        self._core = core_over(self.me, log, self._kept, terms, handed, self._options, self._random)
        self._log_base = log.first_index - 1
        self._owner = Telling(owner, self._core, handed_term)
        self._out = Outgoing(self.group, self._core, self._outlet, self._read_done)
        self._out.unsynced = True  # nothing leaves before what recovery found is durable, and known to be

    # ------------------------------------------------------------------ state
    @property
    def core(self) -> Core:
        """To read from, not to call."""
        return self._core

    @property
    def log(self) -> SegmentLog:
        """The log; another one after a replacement."""
        return self._log

    @property
    def in_flight(self) -> bool:
        """See `Group.in_flight`. Who was told to wait is called when that is over."""
        blocked = self._blocked()
        self._owner.wake |= blocked
        return blocked

    def _blocked(self) -> bool:
        return bool(
            self._busy
            or self._seal_proposed
            or self._owner.held
            or self._seal is not None
            or self._replacement is not None
            or self._core.transferring
        )

    @property
    def at_rest(self) -> bool:
        """Whether nothing of this member is at work in a thread."""
        return not self._busy

    @property
    def leads(self) -> bool:
        """Whether the owner was told that this node leads."""
        return self._owner.leads

    @property
    def membership(self) -> Membership:
        """The one that counts: of the newest MEMBERSHIP entry; before the log is open, of the newest that is kept."""
        return self._core.membership if hasattr(self, "_core") else self._kept.membership

    def snapshot(self) -> Install:
        """See `Group.snapshot`."""
        return Install(self._core.term, self._tail.handed, self._owner.handed_term, self._kept.membership)

    def progress(self) -> list[MemberProgress]:
        """See `Group.progress`."""
        return progress_of(self._core, self._options)

    # ------------------------------------------------------------------ life
    def start(self) -> None:
        """See `Group.start`."""
        assert not self._started
        self._started = True
        self._outlet.joined(self.group, self)
        if self._core.membership.voters == (self.me,):
            self._core.campaign()
        self._active = True
        self._outlet.active(self.group, True)
        self._pump()

    def stop(self, done: Callable[[], None] | None) -> None:
        """See `Group.stop`."""
        if not self._stopped:
            self._stopped = True
            if self._started:
                self._outlet.left(self.group)
            if not self._busy:
                self._close_file()
        if done is not None and self._busy:
            self._idle.append(done)
        elif done is not None:
            done()

    def _close_file(self, keep: bool = True) -> None:
        if keep and self.failed is None and self._started:
            with contextlib.suppress(OSError):  # what must be durable is; see Kept
                self._file.write(self._to_keep(), sync=False)
        self._file.close()
        idle, self._idle = self._idle, []
        for done in idle:
            done()

    # ------------------------------------------------------------------ calls
    def tick(self) -> None:
        """100 ms passed."""
        self._core.tick()
        self._unkept_ticks += 1
        if self._unkept_ticks >= KEEP_TICKS:
            # What goes into the log brings it to the disk, too; a member that gets no entries may know more.
            self._unkept_ticks = 0
            self._wants_kept = self._kept.confirmed != tuple(self._core.confirmed.values())
        self._pump()

    def step(self, sender: str, message: Message) -> None:
        """A message arrived; `settle` after the last one of a buffer. Raises RaftError for one that is wrong."""
        if not self._stopped and self.failed is None:
            self._core.step(sender, message)

    def settle(self, announce: bool = False) -> None:
        """Do what the messages asked for. `announce`: and tell the followers what is committed."""
        if announce:
            self._core.announce()
        self._pump()

    def node_changed(self, node: str, up: bool) -> None:
        """A node came or went."""
        if node in self._core.membership.members and self.failed is None:
            (self._core.node_up if up else self._core.node_down)(node)
            self._pump()

    def unreachable(self, node: str) -> None:
        """What was sent there may be lost. What follows from that waits for the next event."""
        self._core.unreachable(node)

    def propose(self, proposals: list[Proposal]) -> None:
        """See `Group.propose`."""
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
        term, first = core.term, core.last_index + 1
        frames = []
        for index, proposal in enumerate(proposals, first):
            body = proposal.body if isinstance(proposal.body, bytes) else b"".join(proposal.body)
            frames.append(Frame(proposal.kind, term, index, proposal.count, body))
        try:
            core.propose(frames)
        except (TooMuchUncommitted, Transferring):
            self._owner.held = proposals  # proposed again when there is room, or lost with the leadership
            return
        for frame, proposal in zip(frames, proposals, strict=True):
            if proposal.context is not None:
                self._owner.contexts[frame.index] = proposal.context

    def _propose_seal(self) -> None:
        """The open segment may be due: see `SegmentLog.propose_seal`."""
        if self._seal_now():
            self._pump()

    def _seal_now(self) -> bool:
        """Propose a SEAL if this node leads and the segment is due."""
        core = self._core
        if not self._owner.leads or core.role is not Role.LEADER or self._blocked() or self.failed is not None:
            return False
        if not self._log.seal_due(self._log.now()):
            return False
        try:
            core.propose([Frame(Kind.SEAL, core.term, core.last_index + 1, 0, b"")])
        except RaftError:
            return False  # it stays due
        self._seal_proposed = core.last_index
        return True

    def propose_membership(self, membership: Membership, done: Callable[[bool], None]) -> None:
        """See `Group.propose_membership`."""
        self._owner.changes[self._core.propose_membership(membership)] = done
        self._pump()

    def read_index(self, done: Callable[[int], None]) -> None:
        """See `Group.read_index`."""
        try:
            self._core.read(done)
        except RaftError:
            done(-1)
            return
        self._pump()

    def transfer(self, to: str) -> bool:
        """See `Group.transfer`."""
        try:
            return self._core.transfer(to) != ""
        except (RaftError, ValueError):
            return False
        finally:
            self._pump()

    def step_down(self) -> None:
        """See `Group.step_down`."""
        if self._core.role is Role.LEADER:
            self._core.step_down()
            self._pump()

    def campaign(self) -> None:
        """See `Group.campaign`."""
        self._core.campaign()
        self._pump()

    def sync(self) -> None:
        """See `Group.sync`."""
        if self._log.unsynced and self.failed is None:
            self._wants_sync = True
            self._pump()

    def compact_through(self, index: int, done: Callable[[BaseException | None], None] | None) -> None:
        """See `Group.compact_through`."""
        log = self._log
        self._io.submit(lambda: log.remove_through(index), lambda _, error: done(error) if done is not None else None)

    # ------------------------------------------------------------------ what the core wants
    def _pump(self) -> None:
        """Do what the core wants, until it wants nothing more. Calls from within are done by the outer one."""
        self._touched = True  # the core may want something
        if self._pumping or self._stopped or not self._started:
            return
        self._pumping = True
        try:
            base = self._log.first_index - 1
            if base > self._log_base:  # segments leave the log for the lake without asking
                self._log_base = base
                self._core.compacted(base)
            while not self._stopped:
                ready = self._core.ready() if self._touched else None
                self._touched = ready is not None
                if ready is not None:
                    self._take(ready)
                elif not (self._start_work() or self._hand_out() or self._tell()):
                    break
        finally:
            self._pumping = False
            self._outlet.flush(False)
        active = not (self._core.quiescent or self.failed is not None or self._stopped)
        if active != self._active:
            self._active = active
            self._outlet.active(self.group, active)

    def _take(self, ready: Ready) -> None:
        if ready.hard is not None or ready.recovered or ready.rolled_back is not None:
            self._out.unsynced = True
        if ready.rolled_back is not None:  # the mark for the disk stays to the end, the core lets go of its own sooner
            self._kept = msgspec.structs.replace(self._kept, forgetful=self._core.forgetful)
        if ready.changed:
            self._check_role()
        for context in ready.lost_reads:
            cast(Callable[[int], None], context)(-1)
        if self.failed is not None:
            # Nothing is written and nothing promised any more; but somebody else shall lead.
            self._out.give_away(ready.messages)
            return
        self._owner.report(ready)
        if ready.stopped is not None:
            self._out.give_away(ready.messages)
            text = conflict_text(ready.stopped)
            self.fail(Diverged(text, text))
            return
        if ready.truncate_after is not None:
            self._cut_after(ready.truncate_after)
        if ready.append:
            self._tail.append(ready.append)
            self._writes.extend((frame, ready.epoch) for frame in ready.append)
        self._out.put((*ready.messages, *ready.sends), self._tail, self._log)
        if ready.commit is not None and self._core.role is Role.LEADER:
            self._outlet.committed(self.group)
        for context, index in ready.reads:
            self._owner.await_read(index, cast(Callable[[int], None], context))
        if ready.install is not None:
            self._owner.owner.on_install(ready.install_from, ready.install, self._installed)

    def _cut_after(self, after: int) -> None:
        self._tail.cut(after)
        self._cut = min(self._cut, after)
        while self._writes and self._writes[-1][0].index > after:
            self._writes.pop()
        self._truncate = after if self._truncate is None else min(self._truncate, after)
        if self._unsealed > after:
            self._unsealed = 0

    def _read_done(self, error: BaseException | None) -> None:
        """Entries for others were read from the disk, or could not be."""
        if self._stopped or self.failed is not None:
            return
        if error is not None and self._replacement is None:  # else the log may be gone by now
            self.fail(error)
        self._pump()

    # ------------------------------------------------------------------ the disk
    def _start_work(self) -> bool:
        """Begin the next piece of work in a thread, if there is some and none is under way."""
        if self._busy or self.failed is not None:
            return False
        work = self._next_work()
        if work is None:
            return False
        log, file = self._log, self._file
        self._busy, self._cut = True, 1 << 62
        if work.keep_synced:
            self._out.sync_begins()
        self._outlet.flush(True)  # the others' disks work while this one does
        self._io.submit(lambda: perform(work, log, file), lambda did, err: self._worked(work, did, err), work.brief)
        return True

    def _next_work(self) -> Work | None:
        replacement = self._replacement
        if replacement is not None:
            return replacing(replacement, self._to_keep())
        frames, epoch = self._next_frames()
        cut = self._truncate
        keep = self._out.unsynced or cut is not None  # a cut is known before it is done, or it would look like damage
        if not (frames or keep or self._seal is not None or self._wants_sync or self._wants_kept):
            return None
        self._kept = self._to_keep()
        settle, self._settled = not self._settled, True
        self._truncate = None
        sync, self._wants_sync = self._wants_sync, False
        kept, self._wants_kept = self._wants_kept, False
        return Work(self._kept, settle, keep, None, self._seal, cut, frames, epoch, sync, kept and not frames)

    def _next_frames(self) -> tuple[list[Frame], int]:
        """The entries of the next write: what is behind a SEAL that is committed waits until that is done."""
        frames: list[Frame] = []
        epoch, commit = 0, self._core.commit
        while self._writes and not 0 < self._unsealed <= commit:
            frame, epoch = self._writes.popleft()
            frames.append(frame)
            if frame.kind is Kind.SEAL:
                self._unsealed = frame.index
        return frames, epoch

    def _to_keep(self) -> Kept:
        durable = self._tail.placed if self._log.options.sync_always else 0
        return to_keep(self._kept, self._core, durable)

    def _worked(self, work: Work, done: Worked | None, error: BaseException | None) -> None:
        self._busy = False
        if done is not None and done.file is not None:
            self._file = done.file
        if self._stopped:  # a failed write is the last one, and a state that was put in place has its own facts
            self._close_file(keep=done is not None and work.replace is None)
            return
        if done is None:
            self.fail(error)
            return
        self._owner.wake = True
        if work.replace is not None and done.log is not None:
            self._replaced(work, work.replace, done.log)
        if work.seal is not None:
            self._tail.move([at for at in done.moved if at.index <= self._tail.placed])
            self._seal_ended(work.seal[1])
        if work.frames:
            self._tail.place([at for at in done.placed if at.index <= self._cut])
            self._core.persisted(work.frames[-1].index, work.epoch)
        if work.keep_synced:
            self._out.sync_ended(self._tail, self._log)
        self._seal_now()
        self._pump()

    def _seal_ended(self, index: int) -> None:
        self._seal = None
        if self._unsealed <= index:
            self._unsealed = 0
        if self._seal_proposed <= index:
            self._seal_proposed = 0

    def fail(self, error: BaseException | None) -> None:
        """Invariant 4: this member takes part no more, and nothing more is written."""
        if self.failed is not None:
            return
        self.failed = error if isinstance(error, Exception) else RuntimeError(f"the write was given up: {error!r}")
        if self._log.failed is None:
            self._log.failed = error if isinstance(error, LogError) else LogFrozen(self._file.path, self.failed)
        self._core.freeze()
        self._out.clear()
        self._writes.clear()
        self._owner.owner.on_failure(self.failed)
        self._check_role()
        self._pump()

    # ------------------------------------------------------------------ another state
    def _installed(self, replacement: Replacement | None) -> None:
        """The owner has fetched the state that an Install offered, or could not."""
        if self._stopped or self.failed is not None:
            return
        if replacement is None:
            self._core.install_failed()
        else:
            self._replacement = replacement
        self._pump()

    def _replaced(self, work: Work, replacement: Replacement, log: SegmentLog) -> None:
        assert log.last_index == replacement.index, "the log that was put in place does not end where its state does"
        self._log, self._kept, self._replacement = log, work.kept, None
        log.propose_seal = self._propose_seal
        self._log_base = log.first_index - 1
        self._tail = Tail(replacement.index, replacement.index)
        self._owner.handed_term = replacement.term
        self._writes.clear()
        self._truncate, self._seal, self._unsealed, self._loaded = None, None, 0, []
        self._core.installed(replacement.index, replacement.term, replacement.membership)
        replacement.swapped()

    # ------------------------------------------------------------------ handing out
    def _hand_out(self) -> bool:
        """Hand out what is committed and on disk here, at most to the next SEAL."""
        if self._seal is not None or self._loading or self._replacement is not None or self.failed is not None:
            return False
        tail = self._tail
        found, self._loaded = self._loaded, []
        if found:
            tail.handed = found[-1][0].index
            self._deliver(found)
            return True
        limit = min(self._core.commit, tail.placed)
        if tail.handed >= limit:
            return False
        found = tail.take(limit)
        if found:
            self._deliver(found)
        else:
            self._load(limit)
        return True

    def _load(self, limit: int) -> None:
        """Read entries that were in the log before this process, and were not known to be committed then."""
        log, first = self._log, self._tail.handed + 1
        self._loading = True

        def done(found: list[tuple[Frame, Appended]] | None, error: BaseException | None) -> None:
            self._loading = False
            if self._stopped or self.failed is not None or log is not self._log or self._replacement is not None:
                return
            if found is None:
                self.fail(error)
                return
            self._loaded.extend(to_seal(found[: limit + 1 - first]))
            self._pump()

        self._io.submit(lambda: log.entries(first, LOAD_BYTES), done)

    def _deliver(self, found: list[tuple[Frame, Appended]]) -> None:
        last, at = found[-1]
        for frame, _ in found:
            if frame.kind is Kind.MEMBERSHIP:
                membership = decode_membership(frame.body)
                self._kept = msgspec.structs.replace(self._kept, membership=membership, membership_index=frame.index)
                self._out.unsynced = True  # durable before a seal could take it out of sight
        self._room = True
        self._owner.commit(found)
        if last.kind is Kind.SEAL:
            if at.segment is self._log.open_segment:
                self._seal = (self._log.sealing_state(), last.index)
            else:
                self._seal_ended(last.index)
        alone = len(self._core.membership.members) < 2
        self._tail.trim(RECENT_BYTES if self._core.role is Role.LEADER and not alone else 0)

    # ------------------------------------------------------------------ telling
    def _tell(self) -> bool:
        """Tell the owner what has come true. Whether something was told."""
        if self._check_role():
            return True
        owner, core = self._owner, self._core
        if owner.reads(self._tail.handed):
            return True
        if owner.held and (self._room or owner.wake) and not core.transferring:
            held, owner.held = owner.held, []
            self._room = owner.wake = False
            self._propose(held)
            return not owner.held
        if owner.wake and owner.leads and not self._blocked():
            owner.awake()
            return True
        return False

    def _check_role(self) -> bool:
        led = self._owner.leads
        news = self._owner.role(self.failed is not None)
        if led and not self._owner.leads:
            self._seal_proposed = 0
        return news
