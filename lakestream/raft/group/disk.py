"""Disk work of members, in I/O threads.

Belongs here: what is due for a member's log and its file `raft`, one batch of it, and the order in which its parts
become durable; which batches of all members of a node share a thread. A member has one batch under way at a time.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import msgspec

from lakestream.log.format.files import Brief, Io
from lakestream.log.format.frame import Frame, Kind
from lakestream.log.store.log import Appended, SealState
from lakestream.log.store.repair import ASIDE
from lakestream.log.store.segment_log import SegmentLog
from lakestream.raft.group.group import Replacement, brief
from lakestream.raft.group.hard_state import PersistentState, StateFile

T = TypeVar("T")

JOB_NS = 2_000_000
"""Batches of many members share a piece of work of about this length (2 ms), …"""
JOBS = 8
"""… and go to so many threads at once, …"""
QUICK_JOBS = 2
"""… but to so few while a batch takes less than JOB_NS: those that come meanwhile are done together afterwards."""
_NO_CUT = 1 << 62


class Work(msgspec.Struct):
    """One batch of disk work, done in the order of the fields from `settle` on.

    log, file: of the member.
    kept: written to the file, durably when `keep_synced`; None: nothing is. Its `durable` is of the log as it will be
        after a cut.
    settle: make durable what recovery found in the log.
    replace: another log takes the place of this one.
    seal: end the open segment with that state through that entry.
    truncate_after: cut the log.
    frames: append them, durably unless the log is relaxed.
    noted: written to the file behind the frames, without a sync: they are durable. None: nothing is.
    sync: make durable what relaxed writes left.
    """

    log: SegmentLog
    file: StateFile
    kept: PersistentState | None
    settle: bool = False
    keep_synced: bool = False
    replace: Replacement | None = None
    seal: tuple[SealState, int] | None = None
    truncate_after: int | None = None
    frames: list[Frame] = []
    noted: PersistentState | None = None
    epoch: int = 0
    sync: bool = False
    done: Worked | None = None
    """The result, None before that and after `error`."""
    error: BaseException | None = None

    @property
    def brief(self) -> bool:
        """Return True if it is at most one small append and writes of the file without a sync; see `Io.submit`."""
        special = self.settle or self.keep_synced or self.sync or self.truncate_after is not None
        special = special or self.replace is not None or self.seal is not None
        return not special and (not self.frames or brief(self.frames))


class Worked(msgspec.Struct):
    """Result of `Work`: places of the frames and of the entries behind a seal, the log and file put in place."""

    placed: list[Appended] = []
    moved: list[Appended] = []
    log: SegmentLog | None = None
    file: StateFile | None = None


def replacing(log: SegmentLog, file: StateFile, replacement: Replacement, now: PersistentState) -> Work:
    """Return the work that puts a fetched state in place; the term, vote and promises of `now` stay valid."""
    index, term = replacement.index, replacement.term
    hard = msgspec.structs.replace(now.hard, commit=index)
    kept = PersistentState(hard, replacement.membership, index, index, index, term, durable_term=term, had=now.had)
    kept = msgspec.structs.replace(
        kept, recovering=now.recovering, forgetful=now.forgetful, joining=now.joining, confirmed=now.confirmed
    )
    return Work(log, file, kept, keep_synced=True, replace=replacement)


class PendingWork:
    """The disk work of one member that is due, and the batch that is under way.

    Attributes:
        under_way: the batch; None: there is none.
        seal: a seal that waits for its turn, or is under way: the state behind it, and the index of its SEAL.
        replacement: a fetched state that takes the place of this one.
        unsealed: index of a SEAL that is in the log, or being written, behind which nothing was sealed yet; 0: none.
        keeps: what the file `raft` holds without a sync is to be written.
        syncs: what relaxed writes left is to be made durable.
    """

    def __init__(self) -> None:
        self.under_way: Work | None = None
        self.seal: tuple[SealState, int] | None = None
        self.replacement: Replacement | None = None
        self.unsealed = 0
        self.keeps = self.syncs = False
        self._frames: deque[tuple[Frame, int]] = deque()  # (frame, epoch)
        self._truncate_after: int | None = None
        self._lowest_cut = _NO_CUT  # since the batch under way began
        self._settled = False

    def append(self, frames: Sequence[Frame], epoch: int) -> None:
        """Note entries to be written."""
        self._frames.extend((frame, epoch) for frame in frames)

    def cut_after(self, index: int) -> None:
        """Note that the log is to end with `index`."""
        self._lowest_cut = min(self._lowest_cut, index)
        while self._frames and self._frames[-1][0].index > index:
            self._frames.pop()
        self._truncate_after = index if self._truncate_after is None else min(self._truncate_after, index)
        if self.unsealed > index:
            self.unsealed = 0

    def sealed(self, index: int) -> None:
        """Note that the SEAL at `index` is done."""
        self.seal = None
        if self.unsealed <= index:
            self.unsealed = 0

    def drop(self) -> None:
        """Write none of the entries: the member has failed."""
        self._frames.clear()

    def replaced(self) -> None:
        """Note that another state is in place, which needs none of this."""
        self._frames.clear()
        self._truncate_after = self.seal = self.replacement = None
        self.unsealed = 0

    def must_seal(self, commit: int) -> bool:
        """Return True if a committed SEAL is to be handed out, or its seal is not done."""
        return 0 < self.unsealed <= commit

    def is_due(self, unsynced: bool) -> bool:
        """Return True if a batch may begin. `unsynced`: messages wait until the file `raft` is durable."""
        if self.under_way is not None:
            return False
        asked = self._frames or self.keeps or unsynced or self._truncate_after is not None
        return bool(asked or self.seal is not None or self.syncs or self.replacement is not None)

    def begin(
        self,
        log: SegmentLog,
        file: StateFile,
        commit: int,
        unsynced: bool,
        kept: Callable[[], PersistentState],
        noted: Callable[[int], PersistentState],
    ) -> Work | None:
        """Return the next batch, which is under way then; None if what is due waits for a seal.

        Args:
            log, file: of the member.
            commit: its commit index: entries behind a committed SEAL wait until that is done.
            unsynced: messages wait until the file is durable.
            kept: returns what the file is to hold.
            noted: returns the same for a log that is durable through an index.
        """
        if self.replacement is not None:
            work = replacing(log, file, self.replacement, kept())
        else:
            frames, epoch = self._next_frames(commit)
            cut = self._truncate_after
            keep_synced = unsynced or cut is not None  # a cut is noted before it is done, or it looks like damage
            keep = self.keeps or keep_synced
            if not (frames or keep or self.seal is not None or self.syncs):
                return None
            now = kept() if keep else None
            # With each entry, or damage of the newest ones would look like a write that a crash interrupted.
            behind = noted(frames[-1].index) if frames and log.options.sync_always else None
            settle, self._settled = not self._settled, True
            work = Work(log, file, now, settle, keep_synced, None, self.seal, cut, frames, behind, epoch, self.syncs)
            self._truncate_after, self.keeps, self.syncs = None, False, False
        self.under_way, self._lowest_cut = work, _NO_CUT
        return work

    def _next_frames(self, commit: int) -> tuple[list[Frame], int]:
        """Return entries of the next write and their epoch."""
        frames: list[Frame] = []
        epoch = 0
        while self._frames and not self.must_seal(commit):
            frame, epoch = self._frames.popleft()
            frames.append(frame)
            if frame.kind is Kind.SEAL:
                self.unsealed = frame.index
        return frames, epoch

    def end(self) -> Work:
        """Return the batch that was under way."""
        work, self.under_way = self.under_way, None
        assert work is not None, "no disk work was under way"
        return work

    def uncut(self, placed: Sequence[Appended]) -> list[Appended]:
        """Return the places that were not cut since the last batch began."""
        return [at for at in placed if at.index <= self._lowest_cut]


class DiskQueue(Generic[T]):
    """The disk work of all members of a node.

    To wake a thread, and the event loop by it, costs more than a small append and its sync on a quick disk. So the
    brief batches that begin in one turn of the event loop are few pieces of work; their ends come together, too.

    Args:
        ended: called in the event loop with members whose batches have their result.
    """

    def __init__(self, io: Io, ended: Callable[[list[T]], None]) -> None:
        self._io, self._ended = io, ended
        self._waiting: list[tuple[T, Work]] = []
        self._under_way = 0
        self._batch_ns = 0  # what a batch took of late

    def begin(self, works: Sequence[tuple[T, Work]], alone: Brief) -> None:
        """Begin the batches of these members, one that is brief and alone as `alone` says."""
        for member, work in works:
            if work.brief:
                self._waiting.append((member, work))
            else:
                self._submit([(member, work)], Brief.NO, lambda _: None)
        if len(self._waiting) == 1 and not self._under_way:
            self._begin_brief(1, alone)
        else:
            self._go_on()

    def _go_on(self) -> None:
        jobs = QUICK_JOBS if self._batch_ns < JOB_NS else JOBS
        while self._waiting and (free := jobs - self._under_way) > 0:
            self._begin_brief(max(-(-len(self._waiting) // free), JOB_NS // (self._batch_ns + 1)), Brief.NO)

    def _begin_brief(self, count: int, how: Brief) -> None:
        works, self._waiting = self._waiting[:count], self._waiting[count:]
        self._under_way += 1

        def done(took_ns: int) -> None:
            self._under_way -= 1
            self._batch_ns = (3 * self._batch_ns + took_ns // len(works)) // 4
            self._go_on()

        self._submit(works, how, done)

    def _submit(self, works: list[tuple[T, Work]], how: Brief, then: Callable[[int], None]) -> None:
        def done(took_ns: int | None, error: BaseException | None) -> None:
            then(took_ns or 0)
            for _, work in works if error is not None else ():
                work.error = work.error or error
            self._ended([member for member, _ in works])

        self._io.submit(lambda: perform_all([work for _, work in works]), done, how)


def perform_all(works: Sequence[Work]) -> int:
    """Do the work of several members, each whether the others fail or not; return the time in ns. Block."""
    began = time.monotonic_ns()
    for work in works:
        try:
            work.done = perform(work)
        except Exception as error:
            work.error = error
    return time.monotonic_ns() - began


def perform(work: Work) -> Worked:
    """Do the work. Block. Raise LogFrozen, OSError; then the member does nothing more in this process."""
    log, file, kept = work.log, work.file, work.kept
    done = Worked()
    if work.replace is not None:
        assert kept is not None, "another state comes with its own file"
        done.file = StateFile(log.files, work.replace.directory)
        done.file.write(kept, sync=True)  # before it is in place, so that no vote is forgotten
        file.close()
        done.log = work.replace.swap()
        done.log.settle()
        return done
    if work.settle:
        log.settle()
    if kept is not None:
        file.write(kept, sync=work.keep_synced)
        if work.keep_synced and not kept.recovering:
            log.files.remove(os.path.join(os.path.dirname(file.path), ASIDE))
    if work.seal is not None:
        state, index = work.seal
        if log.open_segment.first_index <= index:
            done.moved = log.seal_through(state, index)
    if work.truncate_after is not None:
        log.truncate(work.truncate_after)
    if work.frames:
        done.placed = log.append(work.frames)
    if work.noted is not None:
        file.write(work.noted, sync=False)
    if work.sync:
        log.sync()
    return done
