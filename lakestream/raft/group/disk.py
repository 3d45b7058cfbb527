"""Disk work of a member, in an I/O thread.

Belongs here: one batch of changes to a member's log and its file `raft`, and the order in which its parts become
durable. A member has one batch under way at a time.
"""

from __future__ import annotations

import msgspec

from lakestream.log.format.frame import Frame
from lakestream.log.store.log import Appended, SealState
from lakestream.log.store.segment_log import SegmentLog
from lakestream.raft.group.group import Replacement, brief
from lakestream.raft.group.hard_state import PersistentState, StateFile


class Work(msgspec.Struct):
    """One batch of disk work, done in the order of the fields.

    settle: make durable what recovery found in the log.
    kept: written to the file, durably when `keep_synced`; None: nothing is. Its `durable` is of the log as it will be
        after a cut.
    replace: another log takes the place of this one.
    seal: end the open segment with that state through that entry.
    truncate_after: cut the log.
    frames: append them, durably unless the log is relaxed.
    noted: written to the file behind the frames, without a sync: they are durable. None: nothing is.
    sync: make durable what relaxed writes left.
    """

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


def replacing(replacement: Replacement, now: PersistentState) -> Work:
    """Return the work that puts a fetched state in place; the term, vote and promises of `now` stay valid."""
    index = replacement.index
    hard = msgspec.structs.replace(now.hard, commit=index)
    kept = PersistentState(hard, replacement.membership, index, index, index, replacement.term)
    kept = msgspec.structs.replace(
        kept, recovering=now.recovering, forgetful=now.forgetful, joining=now.joining, confirmed=now.confirmed
    )
    return Work(kept, keep_synced=True, replace=replacement)


def perform(work: Work, log: SegmentLog, file: StateFile) -> Worked:
    """Do the work. Block. Raise LogFrozen, OSError; then the member does nothing more in this process."""
    done = Worked()
    kept = work.kept
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
