"""A store on disk.

Belongs here: opening and replaying a stream's directory, what is noted for the footers of segments, and the slow work
around a store (seal, checkpoint, release of segments, the end), cut into a part that copies state in the event loop and
a part that blocks in a thread. A kill between any two steps leaves something that recovery understands.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from lakestream.log.format.departures import Departures, Displaced, Removals
from lakestream.log.format.errors import CorruptLog, LogClosed, LogError
from lakestream.log.format.files import Files, Io, UnsyncedFiles
from lakestream.log.format.frame import HEADER_SIZE as FRAME_HEADER
from lakestream.log.format.frame import Frame, Kind
from lakestream.log.format.outline import Needed, OutlineFile, outline_segments
from lakestream.log.format.pieces import Pieces
from lakestream.log.format.runs import SchemaRun, note_runs
from lakestream.log.format.segment import LOG_DIRECTORY, Header, SealedSegment, Segment
from lakestream.log.index.cold_rows import FileBlock
from lakestream.log.index.memory_limit import Movable
from lakestream.log.index.sequences import SequenceSet
from lakestream.log.index.subject_index import SubjectIndex
from lakestream.log.store import recovery
from lakestream.log.store.base import Base, check_base, read_base
from lakestream.log.store.cache import ReadCache
from lakestream.log.store.checkpoint import NAME as CHECKPOINT
from lakestream.log.store.checkpoint import Snapshot, StoredState, StoreState, recover_checkpoint, write_checkpoint
from lakestream.log.store.export import StoreExport, StorePin
from lakestream.log.store.figures import WriteFigures
from lakestream.log.store.journal import Birth
from lakestream.log.store.log import Appended, SealState
from lakestream.log.store.memory import MemoryStore
from lakestream.log.store.pruning import needed_rows
from lakestream.log.store.repair import adopt, take_over
from lakestream.log.store.root import discard, leave
from lakestream.log.store.segment_log import LogOptions, SegmentLog, describe, last_term
from lakestream.log.store.segment_rows import SegmentRows
from lakestream.log.store.shred import Shredder
from lakestream.log.store.store import Store
from lakestream.log.store.synced import NAME as MARK
from lakestream.log.store.synced import MarkFile

CHECKPOINT_BYTES = 64 << 20
"""A checkpoint is due after this much log (64 MiB), or CHECKPOINT_FACTOR times its own size if that is more …"""
CHECKPOINT_FACTOR = 4
CHECKPOINT_SEGMENTS = 64
"""… and after this many sealed segments, so that the segments of a quiet stream can leave too."""

_logger = logging.getLogger(__name__)


def open_store(
    directory: str,
    io: Io,
    options: LogOptions | None = None,
    *,
    uid: str = "",
    memory: bool = False,
    files: Files | None = None,
    now: Callable[[], int] = time.time_ns,
    cache: ReadCache | None = None,
    durable_through: int | None = 0,
    whole: bool = True,
    figures: WriteFigures | None = None,
    present: Collection[str] | None = None,
) -> Store:
    """Open the stream kept in `directory`, or begin one there. Block.

    The caller then applies `replay()`.

    Args:
        uid: for a new stream; an older one knows its own from its checkpoint, or is told by `describe`.
        memory: the stream's storage is memory. If this node alone holds it there are no files; else its files, which
            the other members read from, are never synced.
        now: wall time in ns.
        cache: best shared by all stores of a server.
        durable_through: the index through which the log is known to have been durable. None: the log of a group of
            one, which keeps that itself in a synced mark (synced.py).
        whole: False if what the checkpoint covers may have left the log without a trace (there are no messages in it).
        figures: counts the writes of the log.
        present: the names in `directory`, if they are known.

    Raise CorruptLog naming file and offset, StoreVersionError, OSError.
    """
    if memory and durable_through is None:
        return MemoryStore(uid)
    files = UnsyncedFiles() if memory else files or Files()
    log_directory = os.path.join(directory, LOG_DIRECTORY)
    present = files.names(directory) if present is None else present
    found = recover_checkpoint(files, os.path.join(directory, CHECKPOINT), present)
    index = found[0].index if found else 0
    names = files.names(log_directory)
    outlines = recovery.find_outlines(log_directory, files, found is not None and found[0].based, names)
    outlined = max((outline.info.last_index for outline in outlines), default=0)
    marks = MarkFile(files, directory)
    mark, notes = None, list[str]()
    alone = durable_through is None
    if durable_through is None:
        if MARK in present:
            mark, notes = recovery.synced_through(marks, files)
        durable_through = mark.index if mark is not None else 0
    else:
        files.remove(marks.path)  # left by a group of one: the member's own file knows more
    log = recovery.open_log(
        log_directory,
        files,
        options or LogOptions(),
        now,
        outlined=outlined,
        checkpoint_index=index,
        durable_through=durable_through,
        known_from=marks.path if alone else "",
        mark=mark,
        names=names,
    )
    log.marks = marks if alone else None
    log.figures = None if memory else figures
    log.notes[:0] = notes
    try:
        recovery.check_whole(log.segments, outlines, index, whole)
        if found is not None and found[0].based:
            check_base(files, directory, SequenceSet.from_bytes(found[0].live), outlines)
    except (CorruptLog, OSError):
        log.close()
        raise
    log.settle_newest()
    return _store(directory, log, outlines, io, uid, cache or ReadCache(files), found)


def begin_store(
    birth: Birth,
    segment: Segment,
    io: Io,
    options: LogOptions,
    *,
    uid: str,
    files: Files,
    now: Callable[[], int],
    cache: ReadCache,
    figures: WriteFigures | None,
) -> SegmentStore:
    """Return the store of a log that the journal has just made. Block; see `open_store`.

    The caller applies its only entry; the store counts it as applied. Raise OSError.
    """
    directory = birth.directory
    log = SegmentLog(os.path.dirname(segment.path), files, options, now, [segment], last_term([segment]))
    log.marks, log.birth, log.figures = MarkFile(files, directory), birth, figures
    store = _store(directory, log, [], io, uid, cache)
    store.applied = log.last_index
    return store


def _store(
    directory: str,
    log: SegmentLog,
    outlines: list[OutlineFile],
    io: Io,
    uid: str,
    cache: ReadCache,
    found: StoredState | None = None,
) -> SegmentStore:
    """Return a store over a log, with what was found in the checkpoint."""
    store = SegmentStore(log, SegmentRows(log.segments, outlines, cache), io, uid)
    store.directory = directory
    if found is not None:
        store.restore(*found)
    store.subjects.keep_within(cache.indexes, log.files, directory)
    return store


class SegmentStore(Store):
    """A store over segment files. The lock orders its threads with `destroy`, which may come from any thread."""

    log: SegmentLog
    _rows: SegmentRows

    def __init__(self, log: SegmentLog, rows: SegmentRows, io: Io, uid: str) -> None:
        """Use `open_store`."""
        super().__init__(log, rows, uid)
        self.io: Io = io
        self.closed = False
        self.on_removing: Callable[[], None] = lambda: None
        """Set by `FileStores`, called before the directory gets another name. Block. Raise OSError."""
        self.lock = threading.Lock()
        """One of checkpoint, drop, shred, destroy writes at a time."""
        self.removed = Removals()
        self.removed.index = log.open_segment.first_index
        self._replaying = 0  # first index of the segment that is being replayed; 0 = not replaying
        self._seal_through = 0  # index through which a seal was requested
        self._checkpoint_index = 0
        self._size = 0  # of the last checkpoint
        self._floor = 0  # the first sequence there: a replay repeats later removals
        self._there: tuple[bytes, bytes | None] | None = None  # live sequences and departures there, to prune outlines
        self._extra: int | None = None  # hash of the owner's part in it; None: the one that the store was opened with
        self._seen_bytes = 0  # log.appended_bytes at the last checkpoint
        self._seals = 0  # since the last checkpoint
        self._saving = self._dropping = self._destroyed = False
        self._moved: list[Movable] = []
        self._shredder = Shredder(log, rows, io, self._lock_open, self.ask_seal)
        log.seal_state, log.seal_due, log.sealing_state = self.seal_state, self.seal_due, self.sealing_state
        log.applied = lambda: self.applied
        log.on_packed = rows.cache.forget

    def restore(self, state: StoreState, subjects: SubjectIndex, size: int, blocks: Sequence[FileBlock] = ()) -> None:
        """Take the state of a checkpoint that is `size` bytes long."""
        self.blocks = blocks
        self.uid, self.stream, self.account, self.config = state.uid, state.stream, state.account, state.config
        self.live = SequenceSet.from_bytes(state.live)
        self.subjects = subjects
        self.msgs = len(self.live)
        self.bytes, self.first_seq, self.last_seq = state.size, state.first_seq, state.last_seq
        self.last_time, self.applied, self.extra = state.last_time, state.index, state.extra
        removed = self.removed
        removed.removed, removed.any, removed.index = state.removed, state.moved, state.opened_index
        removed.erased.frombytes(state.erased_runs)
        if state.erased:
            note_runs(removed.erased, sorted(state.erased))
        removed.shredded, removed.schemas = state.shredded, state.schemas
        removed.departures = None if state.departures is None else Departures.from_bytes(state.departures)
        self._checkpoint_index, self._size, self._floor, self.based = state.index, size, state.first_seq, state.based
        self._there = state.live, state.departures
        self._shredder.restored(state.shredded)

    # ------------------------------------------------------------------ memory
    def memory(self) -> dict[str, int]:
        return super().memory() | {"segments": self._rows.memory()}

    def move(self, index: Movable) -> None:
        index.keep_within(self._rows.cache.indexes, self.log.files, self.directory)
        self._moved.append(index)

    def share(self) -> None:
        super().share()
        for index in self._moved:
            self._rows.cache.indexes.add(index)

    def unshare(self) -> None:
        super().unshare()
        for index in self._moved:
            self._rows.cache.indexes.leave(index)

    # ------------------------------------------------------------------ findings at opening

    @property
    def notes(self) -> list[str]:
        return self.log.notes

    def check_unused(self) -> None:
        names = self.log.files.names(self.directory)
        names = [name for name in names if name != LOG_DIRECTORY and not name.endswith(".tmp")]
        if names:
            what = f"the log has no entry, but beside it there is {', '.join(names)}"
            raise CorruptLog(os.path.join(self.directory, LOG_DIRECTORY), 0, what)

    def watch_damage(self, found: Callable[[CorruptLog], None]) -> None:
        self._rows.on_corrupt = found

    # ------------------------------------------------------------------ replay
    def replay(self, through: int | None = None) -> Iterator[tuple[Frame, Appended]]:
        replayed = 0
        last = self.log.last_index
        if through is not None:
            last = min(max(through, self.log.open_segment.first_index - 1), last)  # sealed entries are committed
        try:
            self._seal_restored()
            resume = True
            while resume:
                resume = False
                for frame, at in self.log.frames(self.applied + 1, last):
                    assert isinstance(at.segment, Segment)
                    self._replaying = at.segment.first_index
                    self.removals()
                    replayed += FRAME_HEADER + len(frame.body)
                    yield frame, at
                    if frame.kind == Kind.SEAL and self._seal_replayed(frame, at):
                        resume = True  # the entries behind it are in another segment now
                        break
        except CorruptLog:
            self.log.close()
            raise
        self._replaying = 0
        self.removals()
        self._seen_bytes = self.log.appended_bytes - replayed

    def _seal_restored(self) -> None:
        """Seal the open segment if the checkpoint is of an entry that ends it."""
        log, index = self.log, self.applied
        if log.open_segment.first_index <= index <= log.last_index:
            [(frame, at)] = log.entries(index, 1)
            if frame.kind == Kind.SEAL:
                self._seal_replayed(frame, at)

    def _seal_replayed(self, frame: Frame, at: Appended) -> bool:
        """Seal the open segment if the entry that was just applied ends it."""
        if at.segment is not self.log.open_segment:
            return False
        assert self.applied == frame.index, "an entry that is replayed is applied before the next one is asked for"
        self.log.seal_through(self.sealing_state(), frame.index)
        return True

    # ------------------------------------------------------------------ removals
    def removals(self) -> Removals:
        """Return the removals while the open segment was open, which may be a new one since the last call."""
        self.removed.enter(self._replaying or self.log.open_segment.first_index)
        return self.removed

    def _note_gone(self, gone: Sequence[int], displaced: Displaced | None = None) -> None:
        removals = self.removals()
        removals.any = True
        if self.erasing and gone:
            note_runs(removals.erased, gone)
        if removals.departures is not None and displaced is not None:
            removals.departures.note_each(displaced)
        elif removals.departures is not None and gone:
            at, last = self.operation_ns, self.last_time
            removals.departures.note(gone, self.last_seq + (at is not None), last if at is None else max(at, last))

    def _note_hole(self, gone: Sequence[int]) -> None:
        self.removed.removed.extend(gone)

    def _shred(self, seq: int) -> None:
        self.removed.shredded.append(seq)
        self._shredder.add(seq)

    @property
    def departures(self) -> Departures | None:
        return self.removed.departures

    @property
    def departures_index(self) -> int:
        return self.removed.index

    def keep_departures(self, wanted: bool) -> None:
        if not wanted:
            self.removed.departures = None
        elif self.removed.departures is None:
            removals = self.removals()
            removals.departures = Departures(whole=not removals.any)

    def note_schemas(self, rules: str, latest: Mapping[str, int]) -> None:
        removals = self.removals()
        # The first note after a release that kept none: what the stream has now goes for the whole segment.
        since = 0 if removals.schemas is None else self.last_seq + 1
        runs = tuple(run for run in removals.schemas or () if run.since < since)
        before = runs[-1] if runs else SchemaRun(0, "")
        if (before.rules, before.latest) != (rules, latest):
            runs = (*runs, SchemaRun(since, rules, dict(latest)))
        removals.schemas = runs

    # ------------------------------------------------------------------ seal
    def seal_state(self, now_ns: int) -> SealState | None:
        """Return the state for the footer of the open segment if it is due and everything in it is applied, else None.

        Asked by the group before each write, and by `seal_if_old`.
        """
        due = self.applied == self.log.segments[-1].last_index and self.seal_due(now_ns)
        return self.sealing_state() if due else None

    def seal_due(self, now_ns: int) -> bool:
        """Return True if the open segment should end: it is long enough, or old and of use."""
        segment, options = self.log.segments[-1], self.log.options
        if segment.last_index < segment.first_index:
            return False
        if segment.end >= options.seal_bytes:
            return True
        old = now_ns - segment.first_append_ns >= options.seal_age_ns
        return (old or segment.first_index <= self._seal_through) and self.has_unsealed

    def sealing_state(self) -> SealState:
        """Return the state as of `applied`, for the footer of the segment that ends there."""
        removals = self.removals()
        self._seals += 1
        return SealState(
            uid=self.uid,
            stream=self.stream,
            account=self.account,
            config=self.config,
            floor=self.first_seq,
            next_seq=self.last_seq + 1,
            removed=removals.removed,
            subjects=len(self.subjects),
            erased=removals.erased,
            shredded=removals.shredded,
            departures=removals.departures,
            schemas=removals.schemas,
        )

    def seal_if_old(self) -> None:
        log = self.log
        if log.failed is not None or self.closed:
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

        self.io.submit(lambda: log.seal(state), finished)

    def ask_seal(self) -> int:
        if not self.has_unsealed:
            return self.log.open_segment.first_index - 1
        self._seal_through = self.applied
        self.seal_if_old()
        return self.applied

    @property
    def has_unsealed(self) -> bool:
        return self.removals().any or self.log.open_segment.count > 0

    @property
    def sealed_through(self) -> tuple[int, int]:
        header = self.log.open_segment.header
        return header.first_index - 1, header.first_seq - 1

    def sealed(self) -> list[SealedSegment]:
        return self.log.sealed

    @property
    def left_through(self) -> int:
        return self.log.segments[0].first_index - 1

    # ------------------------------------------------------------------ checkpoint
    @property
    def checkpoint_due(self) -> bool:
        if self._saving or self.closed:
            return False
        logged = self.log.appended_bytes - self._seen_bytes
        return self._seals >= CHECKPOINT_SEGMENTS or logged >= max(CHECKPOINT_BYTES, CHECKPOINT_FACTOR * self._size)

    def checkpoint_frees(self, index: int) -> bool:
        if self._saving or self.closed:
            return False
        held = [each for each in self._droppable(index) if each.last_index > self._checkpoint_index]
        return sum(each.file_bytes for each in held) > CHECKPOINT_FACTOR * self._size

    @property
    def checkpoint_index(self) -> int:
        return self._checkpoint_index

    def checkpoint(self, extra: bytes | Pieces, done: Callable[[BaseException | None], None] | None = None) -> None:
        if self._saving or self.closed:
            return
        snapshot = self.snapshot(extra)
        self._saving = True
        self._seen_bytes, self._seals = self.log.appended_bytes, 0

        def finished(written: tuple[int, int] | None, error: BaseException | None) -> None:
            self._saving = False
            if written is not None:
                self._checkpoint_index, (self._size, self._extra) = snapshot.state.index, written
                self._floor = snapshot.state.first_seq
                self._there = snapshot.state.live, snapshot.state.departures
            elif not self.closed:
                _logger.error("%s: no checkpoint was written, the log is kept longer: %s", self.directory, error)
            if done is not None:
                done(error)

        self.io.submit(lambda: (self._write(snapshot), _hash(extra)), finished)

    def snapshot(self, extra: bytes | Pieces) -> Snapshot:
        """Return the state as of `applied` for a checkpoint, with the owner's `extra`."""
        removals = self.removals()
        state = StoreState(
            index=self.applied,
            uid=self.uid,
            stream=self.stream,
            account=self.account,
            config=self.config,
            size=self.bytes,
            first_seq=self.first_seq,
            last_seq=self.last_seq,
            last_time=self.last_time,
            opened_index=removals.index,
            removed=list(removals.removed),
            moved=removals.any,
            live=self.live.to_bytes(),
            extra=extra if isinstance(extra, bytes) else b"",
            erased_runs=removals.erased.tobytes(),
            shredded=list(removals.shredded),
            departures=None if removals.departures is None else removals.departures.to_bytes(),
            based=self.based,
            schemas=removals.schemas,
        )
        return Snapshot(state, self.subjects.snapshot(), extra if isinstance(extra, Pieces) else Pieces())

    def _write(self, snapshot: Snapshot, last: bool = False) -> int:
        """Write a checkpoint; return its size. Block. Invariant: it never runs ahead of the durable log."""
        with self.lock:
            if not last:
                self._check_open()
            self.log.sync()
            return write_checkpoint(self.log.files, os.path.join(self.directory, CHECKPOINT), snapshot)

    def _check_open(self) -> None:
        if self.closed:
            raise LogClosed(f"{self.directory}: the store is closed")

    @contextlib.contextmanager
    def _lock_open(self) -> Iterator[None]:
        """Keep other threads from writing, and the store from being closed. Raise LogClosed."""
        with self.lock:
            self._check_open()
            yield

    # ------------------------------------------------------------------ leave for the lake
    def drop_through(self, index: int) -> list[SealedSegment]:
        rows = self._rows
        if self._dropping or self.closed:
            return []
        leaving = self._droppable(min(index, self._checkpoint_index))
        if not leaving:
            return []
        self._dropping = True
        # Remove outlines without messages that are live in the checkpoint: a replay repeats later removals, and needs
        # their subjects. The newest outline stays: it tells recovery which segments have left.
        floor = self._floor
        if self.departures is not None and (footer := leaving[-1].footer) is not None:
            # Departures in the log refer to messages from here on, whose subjects readers of the past need.
            floor = min(floor, footer.floor)
        dead = [outline for outline in rows.outlines[:-1] if outline.info.last_seq < floor]
        kept = rows.outlines[len(dead) :]

        def outlined(outlines: list[OutlineFile] | None, error: BaseException | None) -> None:
            if outlines is None or self.closed:
                self._dropped(error)
                return
            rows.dropped(leaving, outlines)
            gone = [outline.path for outline in dead] + [segment.path for segment in leaving]
            self.io.submit(lambda: self._remove(leaving, gone), lambda _, error: self._dropped(error))

        there, self._there = self._there, None  # once for each checkpoint: it takes as long as one
        staying = self.log.segments[len(leaving) :]
        footers = [each.footer.departures for each in staying if each.footer is not None]
        self.io.submit(lambda: self._outline(leaving, kept, needed_rows(there, footers)), outlined)
        return [describe(segment) for segment in leaving]

    def _dropped(self, error: BaseException | None) -> None:
        self._dropping = False
        if error is not None and not self.closed:
            _logger.error("%s: segments could not leave the log: %s", self.directory, error)

    def _droppable(self, index: int) -> list[Segment]:
        log, options = self.log, self.log.options
        # Take segments from the log, not from the rows, which have no segments without messages. The newest segment of
        # the rows and all later ones stay.
        newest = self._rows.segments[-1].first_index
        sealed = [each for each in log.segments if each.footer is not None and each.first_index < newest]
        kept, size = 0, 0
        for segment in reversed(sealed):
            size += segment.file_bytes
            if kept == options.retain_segments or size > options.retain_bytes:
                break
            kept += 1
        if log.propose_seal is not None:  # with other members the log must begin with a committed entry of known term
            kept = max(min(kept, len(sealed) - self._shredder.leaving(sealed)), 1)
        return [segment for segment in sealed[: len(sealed) - kept] if segment.last_index <= index]

    def _outline(self, leaving: list[Segment], outlines: list[OutlineFile], needed: Needed | None) -> list[OutlineFile]:
        """Write outlines of segments; return all outlines there are then. Block."""
        with self._lock_open():
            return outline_segments(self.log.files, self.log.directory, leaving, outlines, needed)

    def _remove(self, leaving: list[Segment], paths: list[str]) -> None:
        """Remove what is outlined or dead. Block. A leftover is removed by recovery."""
        with self.lock:
            if self.closed:
                return
            self.log.forget(leaving)
            for path in paths:
                self.log.files.remove(path)

    @property
    def doomed(self) -> list[int]:
        return self._shredder.doomed

    def shred(self) -> bool:
        return not self.closed and self._shredder.run()

    # ------------------------------------------------------------------ other nodes
    def find_base(self) -> Base | None:
        return read_base(self.log.files, self.directory)

    def begin_with(self, base: Base) -> None:
        assert not self.msgs, "only an empty store can begin with a copy"
        self.based = True
        base.subjects.succeed(self.subjects)
        self._rows.begin_with(base.outlines)
        self.live, self.subjects = base.live, base.subjects
        self.msgs, self.bytes = len(base.live), base.size
        self.first_seq = base.live.next_at_or_after(1) or base.origin.through + 1
        # Invariant 5: sequences are given once and grow, times too.
        self.last_seq = max(self.last_seq, base.origin.through)
        self.last_time = max(self.last_time, base.last_time)

    def sealed_at(self, path: str) -> Segment | None:
        return next((each for each in self.log.segments if each.path == path and each.footer is not None), None)

    def mend(self, segment: Segment, fetched: str) -> Header:
        with self._lock_open():
            return take_over(self.log.files, segment, fetched)

    def mended(self, segment: Segment, header: Header) -> None:
        adopt(self._rows.cache, segment, header)

    def export(self, extra: bytes | Pieces, skip_through: int) -> StoreExport:
        return StoreExport(self.log, self._rows.outlines, self.snapshot(extra), skip_through, self.lock)

    def pin(self) -> StorePin:
        """Return the files as of now, for their verification; see `StorePin`."""
        return StorePin(self.log, self._rows.outlines, self.applied, self.lock, self.directory)

    # ------------------------------------------------------------------ end
    def close(self, extra: bytes | Pieces = b"") -> None:
        """Save a last checkpoint and close; none for a frozen log: recovery shall look at what is really there."""
        if self.closed:
            return
        self.closed = True
        log = self.log
        try:
            # Progress of consumers is logged with delay: it may be newer than the last entry.
            if self._extra is None:
                same = self.extra == (extra if isinstance(extra, bytes) else b"".join(extra))
            else:
                same = self._extra == _hash(extra)
            changed = self.applied > self._checkpoint_index or not same
            # The creation of a stream alone is replayed as quickly as a checkpoint is read.
            if log.failed is None and changed and (self.applied > 1 or self.last_seq):
                self._write(self.snapshot(extra), last=True)
                self._checkpoint_index = self.applied
        finally:
            self._rows.close()
            log.close()

    def abandon(self) -> None:
        self.closed = True
        with self.lock:
            self._rows.close()
            self.log.close()

    def destroy(self) -> str:
        self._empty()
        self.closed = True
        with self.lock:
            if not self._shut():
                return ""
            if self.log.birth is None:
                self.on_removing()
                gone = discard(self.log.files, self.directory)
            else:
                gone = discard(self.log.files, self.directory)
                self.on_removing()  # until then the journal makes it whole again
            self.log.journal = None
            return gone

    def leave(self, note: bytes, seal: bool) -> str:
        self.closed = True
        with self.lock:
            if seal and not self._destroyed:
                self.log.seal_rest(self.applied, self._last_seal)
            self._empty()
            self.log.settle_new()
            if not self._shut():
                return ""
            self.on_removing()
            gone = leave(self.log.files, self.directory, note)
            self.log.journal = None
            return gone

    def _last_seal(self) -> SealState | None:
        return self.sealing_state() if self.log.open_segment.count or self.removals().any else None

    def _shut(self) -> bool:
        """Close everything for good. Return False if it was closed like this already: by now the directory may belong
        to a successor."""
        if self._destroyed:
            return False
        self._destroyed = True
        self.log.marks = None  # nobody opens this log again
        try:
            self.log.close()
        except (LogError, OSError) as error:
            _logger.warning("%s: %s", self.directory, error)  # the directory is removed anyway
        self._rows.close()
        return True


def _hash(extra: bytes | Pieces) -> int:
    """Return a hash of the owner's part of a checkpoint. Pieces remember theirs, and let others go on in between."""
    return hash(extra if isinstance(extra, bytes) else tuple([hash(piece) for piece in extra]))
