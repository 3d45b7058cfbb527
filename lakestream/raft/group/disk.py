"""What a member does in an I/O thread.

Belongs here: one piece of work of a member on its log and its file, and the order in which its parts become durable.
A member has one such piece under way at a time.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from lakestream.log.format.frame import Frame
from lakestream.log.store.segment_log import Appended, SealState, SegmentLog
from lakestream.raft.core.messages import Membership
from lakestream.raft.group.hard_state import Kept, KeptFile
from lakestream.raft.proposal import brief


class Replacement(msgspec.Struct, frozen=True):
    """A state that was fetched from the leader and is to take the place of this member's.

    index, term, membership: as of which entry it is (the sender's `Group.snapshot()` when it took the state).
    directory: where it lies now. The member puts its own file `raft` there before `swap`.
    swap: called in an I/O thread while nothing else of the group is at work there: closes the old log, puts the
        directory in the place of the group's, and returns the new log, which is empty after `index`.
    swapped: called in the event loop afterwards, before anything more is handed out.
    """

    index: int
    term: int
    membership: Membership
    directory: str
    swap: Callable[[], SegmentLog]
    swapped: Callable[[], None]


class Work(msgspec.Struct):
    """What is to be done, in the order of the fields.

    settle: make durable what recovery found in the log.
    kept: written to the file, durably when `keep_synced`; without a sync when `keep`. Its `durable` is of the log as it
        will be after a cut.
    replace: another log takes the place of this one.
    seal: end the open segment with that state through that entry.
    truncate_after: cut the log.
    frames: append them, durably unless the log is relaxed; then `kept` is written again without a sync.
    sync: make durable what relaxed writes left.
    """

    kept: Kept
    settle: bool = False
    keep_synced: bool = False
    replace: Replacement | None = None
    seal: tuple[SealState, int] | None = None
    truncate_after: int | None = None
    frames: list[Frame] = []
    epoch: int = 0
    sync: bool = False
    keep: bool = False

    @property
    def brief(self) -> bool:
        """Whether it is one small append and nothing else; see `Io.submit`."""
        special = self.settle or self.keep_synced or self.keep or self.sync or self.truncate_after is not None
        return not special and self.replace is None and self.seal is None and brief(self.frames)


class Worked(msgspec.Struct):
    """What came of it: where the frames are, where the entries behind a seal are now, the log that was put in place."""

    placed: list[Appended] = []
    moved: list[Appended] = []
    log: SegmentLog | None = None
    file: KeptFile | None = None


def replacing(replacement: Replacement, now: Kept) -> Work:
    """The work that puts a fetched state in place, where the promises of `now` go on to count."""
    index = replacement.index
    hard = msgspec.structs.replace(now.hard, commit=index)
    kept = Kept(hard, replacement.membership, index, index, index, replacement.term)
    kept = msgspec.structs.replace(
        kept, recovering=now.recovering, forgetful=now.forgetful, joining=now.joining, confirmed=now.confirmed
    )
    return Work(kept, keep_synced=True, replace=replacement)


def perform(work: Work, log: SegmentLog, file: KeptFile) -> Worked:
    """Do it. Blocks. Raises LogFrozen, OSError; then the member does nothing more in this process."""
    done = Worked()
    kept = work.kept
    if work.replace is not None:
        done.file = KeptFile(log.files, work.replace.directory)
        done.file.write(kept, sync=True)  # before it is in place: a vote that was given is never forgotten
        file.close()
        done.log = work.replace.swap()
        done.log.settle()
        return done
    if work.settle:
        log.settle()
    if work.keep_synced:
        file.write(kept, sync=True)
    elif work.keep:
        file.write(kept, sync=False)
    if work.seal is not None:
        state, index = work.seal
        if log.open_segment.first_index <= index:
            done.moved = log.seal_through(state, index)
    if work.truncate_after is not None:
        log.truncate(work.truncate_after)
    if work.frames:
        done.placed = log.append(work.frames)
        if log.options.sync_always:
            file.write(msgspec.structs.replace(kept, durable=work.frames[-1].index), sync=False)
    if work.sync:
        log.sync()
    return done
