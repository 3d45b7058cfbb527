"""Keeping a store on disk: checkpoints, letting segments go, the clean end.

Belongs here: the slow work around a store, cut into a part that copies state in the event loop and a part that blocks
in a thread. A kill between any two steps leaves something that recovery understands.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from lakestream.log.format.errors import LogClosed, LogError
from lakestream.log.format.files import Files, Io
from lakestream.log.format.outline import MERGE_ROWS, Outline, OutlineFile, outline_path, read_outline, write_outline
from lakestream.log.format.segment import Header, SealedSegment, Segment
from lakestream.log.index.sequences import SequenceSet
from lakestream.log.index.subject_index import SubjectIndex
from lakestream.log.store.base import Base, read_base
from lakestream.log.store.checkpoint import NAME as CHECKPOINT
from lakestream.log.store.checkpoint import Snapshot, State, write_checkpoint
from lakestream.log.store.export import Export
from lakestream.log.store.memory import Log, MemoryRows
from lakestream.log.store.mend import take_over
from lakestream.log.store.root import discard, leave
from lakestream.log.store.segment_log import SealState, SegmentLog, describe
from lakestream.log.store.segment_rows import SegmentRows

if TYPE_CHECKING:
    from lakestream.log.store.store import Store

CHECKPOINT_BYTES = 64 << 20
"""A checkpoint is due after this much log, or CHECKPOINT_FACTOR times its own size if that is more …"""
CHECKPOINT_FACTOR = 4
CHECKPOINT_SEGMENTS = 64
"""… and after this many sealed segments, so that the segments of a quiet stream can leave too."""

_logger = logging.getLogger(__name__)


class Upkeep:
    """The disk side of one store. The locks order it with `destroy`, which may come from any thread."""

    def __init__(self, store: Store, log: Log, rows: SegmentRows | MemoryRows, io: Io) -> None:
        self.directory = ""
        self.checkpoint_index = 0
        self.closed = False
        self.based = False
        """Whether the store began with a base (base.py)."""
        self.ready: Base | None = None
        """The base that an entry on its way names, if somebody has read it already."""
        self._store, self._log, self._rows, self._io = store, log, rows, io
        self.lock = threading.Lock()
        """One of checkpoint, drop, shred, destroy writes at a time."""
        self._size = 0  # of the last checkpoint
        self._floor = 0  # the first sequence there: what went since then goes again when the log is replayed
        self._extra: int | None = None  # what it held of JetStream, as a number; None: what the store was opened with
        self._seen_bytes = 0  # log.appended_bytes at the last checkpoint
        self._seals = 0
        self._saving = False
        self._dropping = False
        self._destroyed = False

    def restored(self, index: int, size: int, first_seq: int, based: bool) -> None:
        """The store came from a checkpoint of entry `index` that is `size` bytes long."""
        self.checkpoint_index, self._size, self._floor, self.based = index, size, first_seq, based

    def put_under(self, base: Base) -> None:
        """The empty store begins with a base; see `base.put_under`."""
        rows = self._rows
        assert isinstance(rows, SegmentRows), "a stream in memory has no table"
        self.based = True
        base.subjects.succeed(self._store.subjects)
        rows.begin_with(base.outlines)

    def find_base(self) -> Base | None:
        """The base that lies beside the log; None when there is none. Blocks. Raises CorruptLog, OSError."""
        return read_base(self._log.files, self.directory) if isinstance(self._log, SegmentLog) else None

    def replayed(self, size: int) -> None:
        """So many bytes of log were applied since that checkpoint."""
        self._seen_bytes = self._log.appended_bytes - size

    def sealing(self) -> None:
        """A segment is about to be sealed."""
        self._seals += 1

    # ------------------------------------------------------------------ seal
    def seal_if_old(self) -> None:
        """See `Store.seal_if_old`."""
        log = self._log
        if not isinstance(log, SegmentLog) or log.failed is not None or self.closed:
            return
        if log.propose_seal is not None:
            log.propose_seal()
            return
        if log.busy:
            return
        state = log.seal_state(log.now())
        if state is None:
            return
        log.busy = True

        def finished(_: SealedSegment | None, error: BaseException | None) -> None:
            log.busy = False
            log.on_idle(error)

        self._io.submit(lambda: log.seal(state), finished)

    # ------------------------------------------------------------------ checkpoint
    @property
    def checkpoint_due(self) -> bool:
        """See `Store.checkpoint_due`."""
        if self._saving or self.closed or not self._log.durable:
            return False
        logged = self._log.appended_bytes - self._seen_bytes
        return self._seals >= CHECKPOINT_SEGMENTS or logged >= max(CHECKPOINT_BYTES, CHECKPOINT_FACTOR * self._size)

    def checkpoint_frees(self, index: int) -> bool:
        """See `Store.checkpoint_frees`."""
        log, rows = self._log, self._rows
        if self._saving or self.closed or not isinstance(log, SegmentLog) or not isinstance(rows, SegmentRows):
            return False
        held = [each for each in self._droppable(rows, log, index) if each.last_index > self.checkpoint_index]
        return sum(each.file_bytes for each in held) > CHECKPOINT_FACTOR * self._size

    def checkpoint(self, extra: bytes, done: Callable[[BaseException | None], None] | None = None) -> None:
        """See `Store.checkpoint`. A failure is reported and leaves the checkpoint before in force."""
        if self._saving or self.closed or not self._log.durable:
            return
        snapshot = self._snapshot(extra)
        self._saving = True
        self._seen_bytes, self._seals = self._log.appended_bytes, 0

        def finished(size: int | None, error: BaseException | None) -> None:
            self._saving = False
            if size is not None:
                self.checkpoint_index, self._size, self._extra = snapshot.state.index, size, hash(extra)
                self._floor = snapshot.state.first_seq
            elif not self.closed:
                _logger.error("%s: no checkpoint was written, the log is kept longer: %s", self.directory, error)
            if done is not None:
                done(error)

        self._io.submit(lambda: self._write(snapshot), finished)

    def _snapshot(self, extra: bytes) -> Snapshot:
        store = self._store
        gone = store.removals()
        state = State(
            index=store.applied,
            uid=store.uid,
            stream=store.stream,
            account=store.account,
            config=store.config,
            size=store.bytes,
            first_seq=store.first_seq,
            last_seq=store.last_seq,
            last_time=store.last_time,
            opened_index=gone.index,
            removed=list(gone.removed),
            moved=gone.any,
            live=store.live.to_bytes(),
            extra=extra,
            erased_runs=gone.erased.tobytes(),
            shredded=list(gone.shredded),
            departures=None if gone.departures is None else gone.departures.to_bytes(),
            based=self.based,
        )
        return Snapshot(state, store.subjects.snapshot())

    def _write(self, snapshot: Snapshot, last: bool = False) -> int:
        """Blocks. Invariant: a checkpoint never runs ahead of the durable log."""
        log = self._log
        assert isinstance(log, SegmentLog)
        with self.lock:
            if self.closed and not last:
                raise LogClosed(f"{self.directory}: the store is closed")
            log.sync()
            return write_checkpoint(log.files, os.path.join(self.directory, CHECKPOINT), snapshot)

    def export(self, extra: bytes, skip_through: int) -> Export:
        """See `Store.export`."""
        log, rows = self._log, self._rows
        assert isinstance(log, SegmentLog), "a stream in memory has no files"
        assert isinstance(rows, SegmentRows), "a stream in memory has no files"
        return Export(log, rows.outlines, self._snapshot(extra), skip_through, self.lock)

    # ------------------------------------------------------------------ drop
    def drop_through(self, index: int) -> list[SealedSegment]:
        """See `Store.drop_through`."""
        log, rows = self._log, self._rows
        if self._dropping or self.closed or not isinstance(log, SegmentLog) or not isinstance(rows, SegmentRows):
            return []
        leaving = self._droppable(rows, log, min(index, self.checkpoint_index))
        if not leaving:
            return []
        self._dropping = True
        # An outline without messages that live in the checkpoint goes: a replay removes what went since, and asks for
        # its subjects. But never the newest: it tells recovery which segments have left.
        floor = self._floor
        if self._store.departures is not None and (footer := leaving[-1].footer) is not None:
            # Departures that stay in the log name messages from here on, and whoever reads the past asks for subjects.
            floor = min(floor, footer.floor)
        dead = [outline for outline in rows.outlines[:-1] if outline.info.last_seq < floor]
        kept = rows.outlines[len(dead) :]

        def outlined(outlines: list[OutlineFile] | None, error: BaseException | None) -> None:
            if outlines is None or self.closed:
                self._dropped(error)
                return
            rows.dropped(leaving, outlines)
            gone = [outline.path for outline in dead] + [segment.path for segment in leaving]
            self._io.submit(lambda: self._remove(log, leaving, gone), lambda _, error: self._dropped(error))

        self._io.submit(lambda: self._outline(log, leaving, kept), outlined)
        return [describe(segment) for segment in leaving]

    def _dropped(self, error: BaseException | None) -> None:
        self._dropping = False
        if error is not None and not self.closed:
            _logger.error("%s: segments could not leave the log: %s", self.directory, error)

    def _droppable(self, rows: SegmentRows, log: SegmentLog, index: int) -> list[Segment]:
        options = log.options
        # Of the log, not of the rows: those know no segment without messages. They always end with the newest segment
        # that they know, so it stays, and what comes after it.
        newest = rows.segments[-1].first_index
        sealed = [each for each in log.segments if each.footer is not None and each.first_index < newest]
        kept, size = 0, 0
        for segment in reversed(sealed):
            size += segment.file_bytes
            if kept == options.retain_segments or size > options.retain_bytes:
                break
            kept += 1
        if log.propose_seal is not None:  # with other members: what a log begins with is committed, and has a term
            kept = max(min(kept, len(sealed) - self._store.shredder.leaving(sealed)), 1)
        return [segment for segment in sealed[: len(sealed) - kept] if segment.last_index <= index]

    def _outline(self, log: SegmentLog, leaving: list[Segment], outlines: list[OutlineFile]) -> list[OutlineFile]:
        """Write outlines of segments; returns all outlines there are then. Blocks."""
        with self.lock:
            if self.closed:
                raise LogClosed(f"{self.directory}: the store is closed")
            made = list(outlines)
            outline, first_index = Outline(), leaving[0].first_index
            if made and made[-1].info.rows < MERGE_ROWS and made[-1].info.last_index:  # a base stays as it is
                before = made.pop()
                outline.add_outline(read_outline(log.files, before.path))
                first_index = before.info.first_index
            for segment in leaving:
                outline.add_segment(log.files, segment.path)
                if outline.runs.rows >= MERGE_ROWS or segment is leaving[-1]:
                    path = outline_path(log.directory, first_index)
                    info = write_outline(log.files, path, first_index, segment.last_index, outline, segment.last_seq)
                    made.append(OutlineFile(path, info))
                    outline, first_index = Outline(), segment.last_index + 1
            return made

    def _remove(self, log: SegmentLog, leaving: list[Segment], paths: list[str]) -> None:
        """Remove what is outlined or dead. Blocks. A leftover is removed by recovery."""
        with self.lock:
            if self.closed:
                return
            log.forget(leaving)
            for path in paths:
                log.files.remove(path)

    # ------------------------------------------------------------------ end
    def close(self, extra: bytes) -> None:
        """See `Store.close`. A frozen log gets no checkpoint: recovery shall look at what is really there."""
        if self.closed:
            return
        self.closed = True
        log = self._log
        try:
            # Consumers move without an entry at once: their progress may be newer than the last one.
            saved = hash(self._store.extra) if self._extra is None else self._extra
            news = self._store.applied > self.checkpoint_index or hash(extra) != saved
            if log.durable and log.failed is None and news:
                self._write(self._snapshot(extra), last=True)
        finally:
            self._rows.close()
            log.close()

    def mend(self, segment: Segment, fetched: str) -> Header:
        """See `Store.mend`."""
        with self.lock:
            if self.closed:
                raise LogClosed(f"{self.directory}: the store is closed")
            assert isinstance(self._log, SegmentLog), "only files are replaced"
            return take_over(self._log.files, segment, fetched)

    def abandon(self) -> None:
        """See `Store.abandon`."""
        self.closed = True
        with self.lock:
            self._rows.close()
            self._log.close()

    def destroy(self) -> None:
        """See `Store.destroy`. Renamed first, so that a kill leaves a whole stream or one that is known to be gone."""
        self.closed = True
        with self.lock:
            files = self._shut()
            if files is not None:
                discard(files, self.directory)

    def leave(self, note: bytes, seal: bool) -> str:
        """Like `Store.destroy`, but the files stay, with a note, where nobody takes them for a stream (leaving.py).

        Returns where that is, "" when there are none. Blocks; any thread. Raises LogError, OSError: then nothing has
        happened but that the store is closed.

        Args:
            note: what `left` streams are known by.
            seal: whether everything that is applied is sealed before, if there are messages or removals in it.
        """
        self.closed = True
        with self.lock:
            log = self._log
            if seal and not self._destroyed and isinstance(log, SegmentLog):
                log.seal_rest(self._store.applied, lambda: self._last_seal(log))
            self._store.live, self._store.subjects = SequenceSet(), SubjectIndex()  # reading finds nothing from now on
            files = self._shut()
            return leave(files, self.directory, note) if files is not None else ""

    def _last_seal(self, log: SegmentLog) -> SealState | None:
        return self._store.sealing_state() if log.open_segment.count or self._store.removals().any else None

    def _shut(self) -> Files | None:
        """Close everything for good; how files are written, if there are any, which from now on nobody uses."""
        if self._destroyed:
            return None  # by now the directory may belong to a successor
        self._destroyed = True
        try:
            self._log.close()
        except (LogError, OSError) as error:
            _logger.warning("%s: %s", self.directory, error)  # it is removed all the same
        self._rows.close()
        return self._log.files if isinstance(self._log, SegmentLog) else None
