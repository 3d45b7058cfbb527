"""Writing the log: append, sync, seal, truncate.

Belongs here: everything that changes segment files, and the rule that one failed write or sync ends it for good. Its
methods block: the group calls them in an I/O thread, never two at a time. Records are read through segment_rows.py.
"""

# The problem. One file has to be three things: the Raft log (entries by index, may be cut at the end), the storage of
# messages (read by offset, for days), and, once sealed, what the lake gets. And after any crash it must be told apart
# whether the end of it is a write that was torn, which nobody was told of, or damage to what was acknowledged.
#
# The life of a segment:
#
#     open      the last one of `segments`: takes appends; may be cut behind the last applied entry
#     sealed    has a footer; its content never changes, but its file may be replaced: packed, repaired, shredded
#     gone      the lake holds it: an outline stays in its place (segment_store.py)
#
# Writes carry their own proof. Each frame has the index of the first entry that shared its sync (`write`). An append
# begins when the one before is durable, so a frame with a later `write` proves that everything before that write was
# synced: recovery.py refuses damage in it, and needs no second file that would have to be synced with each entry. At
# the end of the log nothing follows; there a mark decides that is written now and then (synced.py, or the file `raft`).
#
# Invariants:
#
#     1. The first failed write or sync freezes the log for good (`_freeze`). Trying again may succeed and still have
#        lost data: after a failed fsync Linux marks the pages clean, so the next fsync reports success.
#     2. `segment.tables` has applied entries only. What is behind the last applied one can be cut without looking into
#        tables, and a checkpoint never names what may be cut.
#     3. What is sealed was committed. `truncate` refuses to reach into a sealed segment.
#     4. A footer is written when the frames before it are durable, and the next segment exists, durably, when `seal`
#        returns. Recovery takes either file as it finds it after a crash in between.
#     5. `segments` is replaced by a new list, never changed: the event loop reads the list that it holds while a thread
#        seals.
#
# Who may write. One thread at a time, which `busy` arranges in the event loop. `_lock` is for what may come at any
# time: `close`, and readers that find a segment changing under them. So an append does not wait for a reader.
#
# SEAL entries and `_split`. With several members the leader says where a segment ends. When leaders change, entries of
# the new leader may be in the file behind that SEAL before it is applied. They are copied to the next segment and
# synced there before they are cut from the old one. In between, both files have them; recovery knows that case.
#
# Room. fdatasync also writes the metadata of a file that grew, which on ext4 is a commit of the journal for each ack.
# Small appends therefore overwrite zeros that an earlier one wrote. Room that is only reserved (posix_fallocate,
# ftruncate) does not help: the first write into each block still changes metadata.
# docs/internals/durability.md#room-behind-the-entries
#
# Relaxed logs (`sync_always` off) write without a sync, all logs do so for volatile entries; `_write` then keeps the
# mark of all appends since the last sync, so that the proof above still holds.
#
# Journaled entries (journal.py) are durable before they are written here, and here only later: `synced` says how far.
# The proof holds for them, too: recovery writes them to their places before it looks. Nothing is journaled behind an
# entry that is not durable anywhere (`_write`). Before a footer and a checkpoint, the segment is synced.

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter

import msgspec

from lakestream.log.format.entries import marks_of, read_entries, term_runs
from lakestream.log.format.errors import Compacted, CorruptLog, LogClosed, LogError, LogFrozen
from lakestream.log.format.files import Files, WriteRoom
from lakestream.log.format.frame import HEADER_SIZE as FRAME_HEADER
from lakestream.log.format.frame import MAX_BODY, Frame, encode_header
from lakestream.log.format.packed import pack, read_plain
from lakestream.log.format.record import TIME_AT
from lakestream.log.format.runs import joined, stretches
from lakestream.log.format.segment import (
    HEADER_SIZE,
    Footer,
    Header,
    SealedSegment,
    Segment,
    encode_footer,
    encode_segment_header,
    iter_frames,
    segment_name,
)
from lakestream.log.store.figures import WriteFigures
from lakestream.log.store.journal import Birth, Journal
from lakestream.log.store.log import Appended, Log, SealState
from lakestream.log.store.synced import MarkFile

_logger = logging.getLogger(__name__)

DEFAULT_SEAL_BYTES = 16 << 20
DEFAULT_SEAL_AGE_NS = 10_000_000_000
DEFAULT_RETAIN_BYTES = 64 << 20
DEFAULT_RETAIN_SEGMENTS = 64
MAX_SEAL_BYTES = 1 << 31
ROOM_BYTES = 128 << 10
"""Maximum zeros behind the frames of an open segment; never more than its frames take, up to the next whole block."""
ROOM_APPEND_BYTES = 16 << 10
"""Longer appends write no zeros: for them a disk's bandwidth matters more than the metadata."""
JOURNALED_BYTES, JOURNALED_ENTRIES = 4 << 10, 4
"""Bytes (4 KiB) and number (4) of the entries of a new log that the journal takes when it is written to alone, the
creation included. A write with several messages is not taken then."""
TOGETHER_BYTES = 64 << 10
"""Appends of up to this many bytes (64 KiB) share a sync with those of other logs. For more, a disk's bandwidth matters
more than the sync, and the journal would write them twice."""

_BLOCK = 4096  # file systems' usual block


class LogOptions(msgspec.Struct, frozen=True):
    """Options of a log.

    seal_bytes: a segment is sealed once it is this long (plus at most one write); at most 2 GiB.
    seal_age_ns: or once its first entry is this old, if it holds messages or saw removals.
    retain_bytes, retain_segments: the newest sealed segments that stay although the lake holds them.
    sync_always: fdatasync before a write counts as done; else `sync()` is called from a timer.
    """

    seal_bytes: int = DEFAULT_SEAL_BYTES
    seal_age_ns: int = DEFAULT_SEAL_AGE_NS
    retain_bytes: int = DEFAULT_RETAIN_BYTES
    retain_segments: int = DEFAULT_RETAIN_SEGMENTS
    sync_always: bool = True

    def __post_init__(self) -> None:
        if not HEADER_SIZE < self.seal_bytes <= MAX_SEAL_BYTES:
            raise ValueError(f"seal_bytes must be above {HEADER_SIZE} and at most {MAX_SEAL_BYTES}")


class SegmentLog:
    """The segments of one stream, the last one open for appending."""

    durable = True

    def __init__(
        self,
        directory: str,
        files: Files,
        options: LogOptions,
        now: Callable[[], int],
        segments: list[Segment],
        last_term: int,
    ) -> None:
        """Take `segments` as recovery found them: ascending, the last one open. `now` returns wall time in ns."""
        self.directory = directory
        self.files = files
        self.options = options
        self.now = now
        self.segments = segments
        self.last_term = last_term
        self.failed: LogError | None = None
        self.busy = False
        """Used in the event loop: a write or a seal is under way."""
        self.on_idle: Callable[[BaseException | None], None] = lambda error: None
        """Set by the group, called in the event loop with the error or None when a seal of the store has ended."""
        self.on_sealed: Callable[[SealedSegment], None] | None = None
        """Called in the I/O thread after a segment is sealed and its successor exists. It must be quick."""
        self.seal_state: Callable[[int], SealState | None] = lambda now_ns: None
        """Set by the store: the stream's state when the open segment is due for sealing (at a time in ns), or None."""
        self.seal_due: Callable[[int], bool] = lambda now_ns: self.open_segment.end >= self.options.seal_bytes
        """Set by the store: return True if the open segment is due for sealing at a time in ns, applied or not."""
        self.sealing_state: Callable[[], SealState] = _stateless
        """Set by the store: the stream's state as of its applied entry, a SEAL."""
        self.applied: Callable[[], int] | None = None
        """Set by the store: the index of the newest applied entry."""
        self.propose_seal: Callable[[], None] | None = None
        """Set by a Raft group: have the open segment sealed, if it is due, by an entry of the log."""
        self.packing = False
        """Set by the store: True if segments are compressed once they are sealed."""
        self.on_packed: Callable[[str], None] = lambda path: None
        """Set by the store, called in the I/O thread when the file at a path was replaced."""
        self._lock = threading.Lock()  # writers take turns by `busy`; the lock is for `close` during a write
        self._fd = files.open(segments[-1].path, write=True)
        self._length = files.size(self._fd)  # of the open segment's file: its frames, and zeros as room for more
        self._write = 0  # the first relaxed or volatile entry since the last sync; 0 = nothing waits for a sync
        self._journaled = 0  # the newest entry that the journal has
        self.appended_bytes = 0  # by this process
        self.synced = segments[-1].newest
        """The newest entry that is on stable storage, as `Segment.newest`."""
        self.marks: MarkFile | None = None
        """Set by the store of a group of one: the file in which `synced` is noted."""
        self.journal: Journal | None = None
        """Set by `FileStores`: the journal of the store; None: nothing here can need it any more."""
        self.birth: Birth | None = None
        """Set by `begin_store`: the names of this log are not durable yet, its first entries are (journal.py)."""
        self.grown: set[Log] = set()
        self.unmarked: set[SegmentLog] = set()
        """Set by `FileStores`: the logs of which `marks` is out of date."""
        self.figures: WriteFigures | None = None
        """Set by `open_store`: counts the writes of all logs of a server."""
        self.notes: list[str] = []
        """Set by recovery: lines for the server's log about what was cut off or made anew."""

    @property
    def last_index(self) -> int:
        """Return the index of the newest entry; 0 for an empty log."""
        return self.segments[-1].last_index

    @property
    def first_index(self) -> int:
        """Return the index of the oldest entry that is still in the log; of the next entry if there is none."""
        return self.segments[0].first_index

    @property
    def terms(self) -> list[tuple[int, int]]:
        """Return (first index, term) of each run of entries with one term, ascending, from `first_index` on."""
        return term_runs(self.segments)

    @property
    def open_segment(self) -> Segment:
        """Return the segment that takes the next entry."""
        return self.segments[-1]

    @property
    def sealed(self) -> list[SealedSegment]:
        """Return the sealed segments that are still in the log, ascending."""
        return [describe(segment) for segment in list(self.segments) if segment.footer is not None]

    @property
    def unsynced(self) -> bool:
        """Return True if entries wait for a sync: relaxed ones, or volatile ones."""
        return self._write != 0

    def relax(self) -> None:
        """Let a write count before it is synced from now on; in the event loop, also for a write under way."""
        self.options = msgspec.structs.replace(self.options, sync_always=False)

    @property
    def mark_due(self) -> bool:
        """Return True if the synced mark is out of date."""
        return self.marks is not None and self.marks.due(self.synced)

    def mark(self) -> None:
        """Bring the synced mark up to date. Block. Raise OSError."""
        if self.marks is not None:
            self.marks.note(self.synced)

    def append(self, frames: list[Frame], *, volatile: bool = False) -> list[Appended]:
        """Write entries with one write and, unless relaxed or `volatile`, one fdatasync; return where they went.

        Raise ValueError, before anything is written, for a body above MAX_BODY or an index that does not follow;
        LogFrozen when the write or the sync fails, and ever after.
        """
        with self._lock:
            made = self._encode(frames)
            alone = self.birth is not None and self._takes_alone(frames)
            return self._put(made, volatile, alone and self._write_journal([(self, made)]))

    def joins(self, size: int) -> bool:
        """Return True if an append of `size` bytes shares a sync with those of other logs: see `append_together`."""
        return self._can_journal and size <= TOGETHER_BYTES and not self.files.sealed

    @property
    def _can_journal(self) -> bool:
        return self.journal is not None and self.options.sync_always and not self._write and self.failed is None

    def _takes_alone(self, frames: list[Frame]) -> bool:
        """Return True if the journal takes the next entries of this log, which is written to alone: it is new."""
        if not self._can_journal or sum(frame.count for frame in frames) > 1:
            return False
        size = sum(len(frame.body) + FRAME_HEADER for frame in frames)
        return self.last_index + len(frames) <= JOURNALED_ENTRIES and self.open_segment.end + size <= JOURNALED_BYTES

    @staticmethod
    def append_together(writes: list[tuple[SegmentLog, list[Frame]]]) -> list[list[Appended] | Exception]:
        """Append to several logs of a store with one sync; return what `append` returns or raises for each.

        The journal gets all of it, durably, then each log its part. If the journal takes nothing, each syncs its file.
        """
        found: list[list[Appended] | Exception] = []
        made: list[_Append | Exception] = []
        with contextlib.ExitStack() as held:
            for log, frames in writes:  # nobody else holds two of these locks: a log is in one append at a time
                held.enter_context(log._lock)
                try:
                    made.append(log._encode(frames))
                except (LogError, ValueError) as error:
                    made.append(error)
            pairs = [(log, each) for (log, _), each in zip(writes, made, strict=True)]
            joining = [(log, each) for log, each in pairs if isinstance(each, _Append) and log._can_journal]
            joined = {log for log, _ in joining} if joining and SegmentLog._write_journal(joining) else set()
            for log, each in pairs:
                try:
                    found.append(log._put(each, False, log in joined) if isinstance(each, _Append) else each)
                except LogError as error:
                    found.append(error)
        return found

    @staticmethod
    def _write_journal(writes: list[tuple[SegmentLog, _Append]]) -> bool:
        """Make appends durable in the journal; return False if it does not take them, or may not have."""
        first = writes[0][0]
        assert first.journal is not None
        began = time.perf_counter()
        try:
            first.journal.write([(log, each.last_index, log.open_segment, each.buffers) for log, each in writes])
        except OSError:
            return False
        if first.figures is not None:
            first.figures.sync_seconds.observe(time.perf_counter() - began)
        return True

    def _encode(self, frames: list[Frame]) -> _Append:
        """Return what is to be written for entries. Raise ValueError, LogError."""
        self._check()
        segment = self.segments[-1]
        write = self._write or frames[0].index
        buffers: list[bytes] = []
        placed: list[Appended] = []
        starts: list[int] = []
        terms: list[tuple[int, int]] = []
        term = segment.terms[-1][1] if segment.terms else -1
        offset, index = segment.end, segment.last_index + 1
        for frame in frames:
            if frame.index != index or frame.term < self.last_term or len(frame.body) > MAX_BODY:
                raise ValueError(f"entry {frame.index} (term {frame.term}, {len(frame.body)} bytes) cannot be {index}")
            if frame.term != term:
                term = frame.term
                terms.append((index, term))
            frame.write = write
            buffers += (encode_header(frame, write, segment.header.salt), frame.body)
            starts.append(offset)
            placed.append(Appended(segment, offset + FRAME_HEADER, index))
            offset += FRAME_HEADER + len(frame.body)
            index += 1
        if offset > 1 << 32:
            raise ValueError(f"one write of {offset - segment.end} bytes is too much for a segment")
        return _Append(frames, write, buffers, placed, starts, terms, index - 1, offset)

    def _put(self, append: _Append, volatile: bool, journaled: bool) -> list[Appended]:
        """Write entries to the open segment, and sync it unless they are `journaled`."""
        segment, offset, buffers = self.segments[-1], append.end, append.buffers
        length = max(self._length, offset)
        # A segment's first append writes no zeros: many streams have one message per segment.
        if offset > self._length and segment.frame_offsets and not journaled and self._small(offset - segment.end):
            length = -(-(offset + min(offset, ROOM_BYTES)) // _BLOCK) * _BLOCK
            buffers.append(WriteRoom(length - offset))
        try:
            if self.birth is not None and not journaled:
                self._settle()
            self.files.write(self._fd, buffers, segment.end)
            self._length = length
            if journaled:
                self._journaled = append.last_index
            elif not self.options.sync_always or volatile:
                self._write = append.write
            else:
                self._sync()
                self.synced, self._write = (append.last_index, segment.first_index, offset), 0
        except BaseException as error:
            raise self._freeze(segment.path, error) from error
        if not segment.first_append_ns:
            segment.first_append_ns = self.now()
        if self.figures is not None:
            self.figures.wrote(sum([frame.count for frame in append.frames]), offset - segment.end)
        if self.marks is not None:
            self.unmarked.add(self)
        self.grown.add(self)
        self.appended_bytes += offset - segment.end
        segment.frame_offsets.extend(append.starts)
        segment.terms += append.terms
        segment.end = offset
        segment.last_index = append.last_index
        self.last_term = append.frames[-1].term
        return append.placed

    def _small(self, size: int) -> bool:
        """Return True if an append of `size` bytes is mostly the price of its sync."""
        return size <= ROOM_APPEND_BYTES and self.options.sync_always and self.files.durable

    def sync(self) -> None:
        """Make durable what relaxed, volatile and journaled appends left. Raise LogFrozen."""
        with self._lock:
            self._check()
            try:
                self._settle()
                self._sync_rest()
            except BaseException as error:
                raise self._freeze(self.segments[-1].path, error) from error

    def _sync_rest(self) -> None:
        """Sync the open segment if something in it waits for that."""
        if self._write or self._behind:
            self._sync()
            self.synced, self._write = self.segments[-1].newest, 0

    @property
    def _behind(self) -> bool:
        """Return True if the journal has entries durably that the segment has not."""
        return self._journaled > self.synced[0]

    def has_durably(self, index: int) -> bool:
        """Return True if the log needs no record of the journal any more of its entries through `index`."""
        return self.journal is None or (self.synced[0] >= index and self.birth is None)

    def _lag(self) -> _Lag | None:
        """Return what is durable in the journal alone; None if there is nothing, or the log is frozen."""
        with self._lock:
            frozen = self.failed is not None and not isinstance(self.failed, LogClosed)
            if self.journal is None or (self.birth is None and not self._behind) or frozen:
                return None
            lag = _Lag(self, self.segments[-1], self.segments[-1].newest, self.birth)
        if lag.birth is not None and self.marks is not None and self.failed is None:
            with contextlib.suppress(OSError):  # `mark` tries again
                lag.draft = self.marks.draft(lag.newest)
        return lag

    @staticmethod
    def catch_up(logs: Sequence[SegmentLog]) -> list[tuple[SegmentLog, Birth]]:
        """Make journaled entries durable in the segments, also of logs that were closed; of new ones also the first
        mark and all names, except those of their directories. Return the new ones, for `settled`.

        Those that cannot be synced are frozen. Appends go on meanwhile.
        """
        sync, lags = logs[0].files.sync_each, list(filter(None, map(SegmentLog._lag, logs)))
        wrong = sync([path for lag in lags for path in (lag.segment.path, *lag.draft)])  # `_fd` is closed by a seal
        for lag in lags:
            marks = lag.log.marks  # None once its stream is deleted
            if lag.draft and marks is not None and wrong.keys().isdisjoint((lag.segment.path, *lag.draft)):
                with contextlib.suppress(OSError):
                    marks.place(lag.newest)
        wrong |= sync((), [path for lag in lags if lag.birth is not None for path in lag.birth.directories])
        settled = []
        for lag in lags:
            log, paths = lag.log, (lag.segment.path, *(lag.birth.directories if lag.birth is not None else ()))
            if error := next((wrong[path] for path in paths if path in wrong), None):
                log._freeze(lag.segment.path, error)
                continue
            with log._lock:
                if log.segments[-1] is lag.segment:
                    log.synced = max(log.synced, lag.newest)
            if lag.birth is not None:
                settled.append((log, lag.birth))
        return settled

    def settle_new(self) -> None:
        """Make all durable: the directory is about to get another name. A log that cannot be is left as it is."""
        with contextlib.suppress(LogError):
            self.sync()

    def settled(self) -> None:
        """Note that the name of the directory is durable, too."""
        self.birth = None

    def _settle(self) -> None:
        """Make a new log durable before anything is written that the journal does not have."""
        birth = self.birth
        if birth is not None:
            self.files.sync(self._fd)
            birth.settle()
            self.birth = None

    def _sync(self) -> None:
        """Make the open segment durable, and count the time that it takes."""
        began = time.perf_counter()
        self.files.sync(self._fd)
        if self.figures is not None:
            self.figures.sync_seconds.observe(time.perf_counter() - began)

    def settle(self) -> None:
        """Make durable what recovery found: a killed process may not have synced it. Raise LogFrozen."""
        with self._lock:
            self._check()
            try:
                self.files.sync(self._fd)
            except BaseException as error:
                raise self._freeze(self.segments[-1].path, error) from error

    def seal(self, state: SealState) -> SealedSegment:
        """End the open segment with a footer and begin the next one; both are durable when this returns.

        Invariant: every entry of the segment was applied before `state` was taken. Raise LogFrozen.
        """
        with self._lock:
            self._seal(state)
        return self._tell_sealed()

    def seal_through(self, state: SealState, index: int) -> list[Appended]:
        """Like `seal`, with the footer right behind entry `index`; return the new places of the entries behind it.

        Invariant: `state` is as of entry `index`, and nothing behind it was applied. Raise LogFrozen.
        """
        moved: list[Appended] = []
        with self._lock:
            if index < self.segments[-1].last_index:
                moved = self._split(state, index)
            else:
                self._seal(state)
        self._tell_sealed()
        return moved

    def seal_rest(self, index: int, state: Callable[[], SealState | None]) -> None:
        """End the open segment behind entry `index`, the last one that will ever be applied. Raise LogFrozen.

        `state` is called while no other thread writes; it returns the state as of that entry, or None not to seal.
        """
        with self._lock:
            if self.segments[-1].first_index > index or (last := state()) is None:
                return
            if index < self.segments[-1].last_index:
                self._split(last, index)
            else:
                self._seal(last)

    def _tell_sealed(self) -> SealedSegment:
        segment = self.segments[-2]
        self._settle_file(segment)
        sealed = describe(segment)
        if self.on_sealed is not None:
            try:
                self.on_sealed(sealed)
            except Exception:  # the lake must never stop the log; at the next start it sees every sealed segment
                _logger.exception("%s was sealed, but could not be handed on", sealed.path)
        return sealed

    def settle_newest(self) -> None:
        """Gather the pieces of the newest sealed segment, if the process that sealed it did not come to it: the event
        loop opens it for the first read, and takes long for thousands of them. At opening, in its thread."""
        if len(self.segments) > 1:
            self._settle_file(self.segments[-2])

    def _settle_file(self, segment: Segment) -> None:
        """Compress a sealed segment, or gather its pieces. A failure leaves the file; the stream may also be being
        destroyed."""
        try:
            size = pack(self.files, segment.path) if self.packing else 0
            if size or self.files.gather(segment.path):
                segment.file_bytes = size or segment.file_bytes
                self.on_packed(segment.path)
        except Exception as error:
            _logger.warning("%s was sealed, and could not be compressed: %s", segment.path, error)

    def _seal(self, state: SealState) -> None:
        self._check()
        segment = self.segments[-1]
        assert segment.last_index >= segment.first_index, "an empty segment is never sealed"
        try:
            self._settle()
            footer = self._end(segment, state)
            fresh, fd = begin_segment(self.directory, self.files, segment.last_index + 1, state.next_seq, self.now())
            self.files.close(self._fd)
        except BaseException as error:
            raise self._freeze(segment.path, error) from error
        self._go_on(fresh, fd, footer)

    def _end(self, segment: Segment, state: SealState) -> Footer:
        """End the file of the open segment with a footer behind its frames, durably."""
        footer = self._footer(segment, state)
        assert segment.tables is not None
        if self._write or self._behind:
            self.files.sync(self._fd)  # a power loss may not leave a footer behind frames that it took
        pieces = encode_footer(footer, segment.tables, segment.end)
        self.files.write(self._fd, pieces, segment.end)
        segment.file_bytes = segment.end + sum(map(len, pieces))
        if self._length > segment.file_bytes:
            self.files.truncate(self._fd, segment.file_bytes)
        self.files.sync(self._fd)
        return footer

    def _go_on(self, fresh: Segment, fd: int, footer: Footer) -> None:
        segment = self.segments[-1]
        self._fd, self._write, self._length = fd, 0, fresh.end
        segment.last_seq = footer.last_seq
        segment.footer = footer
        segment.frame_offsets = array("I")
        self.segments = [*self.segments, fresh]  # replaced, not changed: readers in the event loop hold the old list
        self.synced = fresh.newest

    def _split(self, state: SealState, index: int) -> list[Appended]:
        """Seal through `index`. The entries behind it are durable in the new segment before they are cut from the old
        one: recovery joins them again if the footer was not written."""
        self._check()
        segment, fd = self.segments[-1], -1
        assert segment.first_index <= index
        try:
            self._settle()
            self._sync_rest()  # before there is a next segment: the journal writes to none that has one
            frames = [frame for frame, _ in read_entries(self.files, segment, index + 1, 1 << 32)]
            fresh, fd = begin_segment(self.directory, self.files, index + 1, state.next_seq, self.now())
            placed = write_frames(self.files, fd, fresh, frames, index + 1)
            self.files.sync(fd)
            fresh.first_append_ns = self.now()
            _cut(segment, index)
            footer = self._end(segment, state)
            self.files.close(self._fd)
        except BaseException as error:
            if fd >= 0:
                self.files.close(fd)
            raise self._freeze(segment.path, error) from error
        self._go_on(fresh, fd, footer)
        return placed

    def truncate(self, last_index: int) -> None:
        """Remove the entries after `last_index`, which were never committed. Raise LogFrozen.

        Raise ValueError when that would reach into a sealed segment: what is sealed was committed.
        """
        with self._lock:
            self._check()
            segment = self.segments[-1]
            kept = last_index + 1 - segment.first_index
            if kept < 0:
                raise ValueError(f"entry {last_index + 1} is in a sealed segment and cannot be truncated")
            if last_index >= segment.last_index:
                return
            # Invariant: applied entries were committed, and committed entries are not truncated.
            assert segment.tables is not None
            assert not segment.tables.offsets or segment.tables.offsets[-1] < segment.frame_offsets[kept]
            try:
                self.files.truncate(self._fd, segment.frame_offsets[kept])
                self.files.sync(self._fd)
            except BaseException as error:
                raise self._freeze(segment.path, error) from error
            _cut(segment, last_index)
            self._write, self._length = 0, segment.end
            self.synced = segment.newest
            self.last_term = last_term(self.segments)

    def frames(self, first_index: int, last_index: int = 1 << 62) -> Iterator[tuple[Frame, Appended]]:
        """Yield the entries from `first_index` through `last_index`, as they are on disk.

        Raise CorruptLog on any damage.
        """
        for segment in list(self.segments):
            if segment.last_index < first_index:
                continue
            if segment.first_index > last_index:
                break
            content = read_plain(self.files, segment.path)
            for frame, offset in iter_frames(content, segment.path, segment.header, segment.end):
                if frame.index > last_index:
                    break
                if frame.index >= first_index:
                    yield frame, Appended(segment, offset, frame.index)

    def entries(self, first_index: int, max_bytes: int) -> list[tuple[Frame, Appended]]:
        """Return entries from `first_index` on, as many as fit into `max_bytes` and are in one segment, at least one.

        Block, in any thread, also while another one writes. Raise Compacted when the log begins after `first_index`,
        ValueError when it ends before, CorruptLog, OSError.
        """
        try:
            return self._entries(first_index, max_bytes)
        except (CorruptLog, IndexError, FileNotFoundError):
            with self._lock:  # the segment was being sealed, cut or removed meanwhile, or is damaged
                return self._entries(first_index, max_bytes)

    def _entries(self, first_index: int, max_bytes: int) -> list[tuple[Frame, Appended]]:
        segments = self.segments
        if first_index < segments[0].first_index:
            raise Compacted(f"{self.directory}: entry {first_index} has left the log")
        segment = segments[bisect_right(segments, first_index, key=attrgetter("first_index")) - 1]
        if first_index > segment.last_index:
            raise ValueError(f"{self.directory}: entry {first_index} is not in the log")
        found = read_entries(self.files, segment, first_index, max_bytes)
        return [(frame, Appended(segment, offset, frame.index)) for frame, offset in found]

    def remove_through(self, index: int) -> None:
        """Remove sealed segments whose entries are all ≤ `index`, but never the newest sealed one. Raise OSError.

        For a log without a store; the other logs lose their segments to the lake (segment_store.py).
        """
        leaving = [segment for segment in self.segments[:-2] if segment.last_index <= index]
        self.forget(leaving)
        for segment in leaving:
            self.files.remove(segment.path)

    def forget(self, segments: list[Segment]) -> None:
        """Drop sealed segments that are about to be removed from the list."""
        gone = {id(segment) for segment in segments}
        with self._lock:
            self.segments = [segment for segment in self.segments if id(segment) not in gone]

    def close(self) -> None:
        """Close the files, after a write that is under way; a frozen log is closed as it is. Idempotent."""
        with self._lock:
            if self._fd < 0:
                return
            fd, self._fd = self._fd, -1
            try:
                if (self._write or (self._behind and self.birth is None)) and self.failed is None:
                    try:
                        self.files.sync(fd)
                    except OSError as error:
                        self._freeze(self.segments[-1].path, error)
                        raise
                    self.synced = self.segments[-1].newest
                if self._length > self.segments[-1].end and self.failed is None:
                    with contextlib.suppress(OSError):  # the next start takes zeros that stay for room
                        self.files.truncate(fd, self.segments[-1].end)
            finally:
                self.files.close(fd)
                self.failed = self.failed or LogClosed(f"{self.directory}: the log is closed")
        if self.marks is not None and self.birth is None:  # the journal has all of a new log
            try:
                self.marks.close(self.synced)
            except OSError as error:
                _logger.warning("%s: its last synced mark was not written: %s", self.directory, error)

    def _check(self) -> None:
        """Raise the failure that froze the log, if any (invariant 4)."""
        if self.failed is not None:
            raise self.failed

    def _freeze(self, path: str, error: BaseException) -> LogError:
        self.failed = self.failed or LogFrozen(path, error)
        return self.failed

    def _footer(self, segment: Segment, state: SealState) -> Footer:
        assert segment.tables is not None
        first_time = 0
        if segment.count:
            stamp = self.files.read_at(self._fd, 8, segment.tables.offsets[0] + TIME_AT)
            first_time = int.from_bytes(stamp, "little", signed=True)
        return Footer(
            uid=state.uid,
            stream=state.stream,
            account=state.account,
            first_index=segment.first_index,
            last_index=segment.last_index,
            last_term=segment.terms[-1][1],
            first_seq=segment.first_seq,
            last_seq=state.next_seq - 1,
            count=segment.count,
            bytes=segment.bytes,
            first_time=first_time,
            last_time=segment.last_time,
            floor=state.floor,
            removed=sorted(seq for seq in state.removed if seq >= state.floor),
            subjects=state.subjects,
            config=state.config,
            closed_ns=self.now(),
            runs=segment.tables.runs.pairs(),
            erased=joined(state.erased),
            shredded=list(stretches(sorted(state.shredded))),
            departures=state.departures.pack() if state.departures is not None and state.departures.whole else None,
            schemas=state.schemas,
            terms=segment.terms,
            marks=marks_of(segment.first_index, segment.frame_offsets),
        )


class _Lag(msgspec.Struct):
    """Entries of the open segment, through the newest (`Segment.newest`), that are durable in the journal alone; of a
    new log its names, and the path of its first mark."""

    log: SegmentLog
    segment: Segment
    newest: tuple[int, int, int]
    birth: Birth | None
    draft: list[str] = []


class _Append(msgspec.Struct, gc=False):
    """Encoded entries: what is written, with the mark of their write; places, offsets and new terms of the frames; the
    newest entry, and where it ends."""

    frames: list[Frame]
    write: int
    buffers: list[bytes]
    placed: list[Appended]
    starts: list[int]
    terms: list[tuple[int, int]]
    last_index: int
    end: int


def _stateless() -> SealState:
    """Return the empty state of a log without a store."""
    return SealState("", "", "", b"", 0, 1, [], 0, array("Q"))


def _cut(segment: Segment, last_index: int) -> None:
    """Drop the entries of an open segment after `last_index`, none of which was applied."""
    kept = last_index + 1 - segment.first_index
    segment.end, segment.last_index = segment.frame_offsets[kept], last_index
    del segment.frame_offsets[kept:]
    segment.terms = [run for run in segment.terms if run[0] <= last_index]


def last_term(segments: list[Segment]) -> int:
    """Return the term of the newest entry; 0 for an empty log."""
    runs = segments[-1].terms or (segments[-2].terms if len(segments) > 1 else [])
    return runs[-1][1] if runs else 0


def describe(segment: Segment) -> SealedSegment:
    """Return the description of a sealed segment."""
    footer = segment.footer
    assert footer is not None
    return SealedSegment(
        path=segment.path,
        first_index=footer.first_index,
        last_index=footer.last_index,
        first_seq=footer.first_seq,
        last_seq=footer.last_seq,
        bytes=segment.file_bytes,
        closed_ns=footer.closed_ns,
    )


def begin_segment(directory: str, files: Files, first_index: int, first_seq: int, now_ns: int) -> tuple[Segment, int]:
    """Create a segment, durably; return it with a descriptor open for writing."""
    header = Header(first_index, first_seq, now_ns, files.salt())
    path = os.path.join(directory, segment_name(first_index))
    fd = files.create(path)
    try:
        files.write(fd, [encode_segment_header(header)], 0)
        files.sync(fd)
        files.sync_directory(directory)
    except BaseException:
        files.close(fd)
        raise
    return Segment(path, header), fd


def write_frames(files: Files, fd: int, segment: Segment, frames: list[Frame], write: int) -> list[Appended]:
    """Write the frames of one write to the end of an open segment and note their places; not synced."""
    buffers: list[bytes] = []
    placed: list[Appended] = []
    start, term = segment.end, segment.terms[-1][1] if segment.terms else -1
    for frame in frames:
        frame.write = write
        buffers += (encode_header(frame, write, segment.header.salt), frame.body)
        placed.append(Appended(segment, segment.end + FRAME_HEADER, frame.index))
        if frame.term != term:
            term = frame.term
            segment.terms.append((frame.index, term))
        segment.frame_offsets.append(segment.end)
        segment.end += FRAME_HEADER + len(frame.body)
        segment.last_index = frame.index
    files.write(fd, buffers, start)
    return placed
