"""Secure delete in the log: destroy the bytes of deleted messages.

Belongs here: the deleted messages that the log still holds, and blanking them in sealed segments. In a group of one the
segment is written anew beside the old file, with zeros for the payload and dashes for the values of headers, and
replaces it in one step: same offsets, same lengths, valid checksums. The open segment is sealed first.

Data that applying the entry again needs is kept, until a checkpoint makes that unnecessary: subject, time and size, and
the headers whose names begin with `Nats-` or `KV-`.

With other members a frame is never changed: a member that catches up gets the original entry, and could be asked for
the message before it applies the deletion. There the segment leaves the log as soon as the lake holds it, even if it is
among those that are retained; see `SegmentStore._droppable`.
"""

from __future__ import annotations

import logging
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from zlib import crc32

from lakestream.log.format.errors import LogClosed
from lakestream.log.format.files import Files, Io
from lakestream.log.format.frame import HEADER_SIZE as FRAME_HEADER
from lakestream.log.format.frame import Frame, encode_header
from lakestream.log.format.packed import is_packed_file, pack, read_intact
from lakestream.log.format.record import FIXED, FLAG_HEADER, FLAGS_AT, SUBJECT_LENGTH_AT
from lakestream.log.format.segment import Segment, iter_frames
from lakestream.log.store.segment_log import SegmentLog
from lakestream.log.store.segment_rows import SegmentRows

KEPT_HEADERS = (b"nats-", b"kv-")
"""Prefixes of the names of headers that the server interprets, in lower case."""

_logger = logging.getLogger(__name__)


class Shredder:
    """Secure delete of one store. Runs in the event loop, except for the work on files."""

    def __init__(
        self,
        log: SegmentLog,
        rows: SegmentRows,
        io: Io,
        lock: Callable[[], AbstractContextManager[None]],
        ask_seal: Callable[[], object],
    ) -> None:
        """Hold `lock`, which raises LogClosed, while segments are rewritten; `ask_seal` seals the open segment."""
        self._log, self._rows, self._io, self._lock, self._ask_seal = log, rows, io, lock, ask_seal
        self._doomed: set[int] = set()
        self._marked: frozenset[int] = frozenset()
        """With other members: the first indexes of segments that hold such messages."""
        self._at_work = False

    def add(self, seq: int) -> None:
        """Have the bytes of a removed message destroyed; the journal may have them although the log has not."""
        if self._log.journal is not None:
            self._log.journal.outdate()
        if seq >= self._rows.local_floor:
            self._doomed.add(seq)
            if self._log.propose_seal is not None:
                self._mark()

    def restored(self, shredded: list[int]) -> None:
        """Add what may not be destroyed yet, as a checkpoint and the footers of sealed segments say."""
        footers = [segment.footer for segment in self._log.segments if segment.footer is not None]
        runs = [run for footer in footers for run in footer.shredded]
        for first, last in runs:
            for seq in range(max(first, self._rows.local_floor), last + 1):
                self.add(seq)
        for seq in shredded:
            self.add(seq)

    @property
    def doomed(self) -> list[int]:
        """Return the sequences whose bytes the log may still have, ascending."""
        floor = self._rows.local_floor
        if self._doomed and floor:
            self._doomed = {seq for seq in self._doomed if seq >= floor}
        return sorted(self._doomed)

    def leaving(self, sealed: list[Segment]) -> int:
        """Return how many of the log's first sealed segments have to leave soon, in a group of several members."""
        self._mark()
        for count in range(len(sealed), 0, -1):
            if sealed[count - 1].first_index in self._marked:
                return count
        return 0

    def _mark(self) -> None:
        """Note segments instead of messages, which may be many and wait for long."""
        rows = self._rows
        self._marked |= {place[0].first_index for place in map(rows.place_of, self.doomed) if place is not None}
        self._doomed.clear()
        first = rows.segments[0].first_index
        if any(each < first for each in self._marked):
            self._marked = frozenset(each for each in self._marked if each >= first)

    def run(self) -> bool:
        """Begin to destroy what is still there. Return False if there is nothing left to do: else ask again later."""
        log, rows = self._log, self._rows
        if log.propose_seal is not None or log.failed is not None:
            return False
        doomed = self.doomed
        if self._at_work or not doomed:
            return bool(doomed)
        places: dict[int, tuple[Segment, list[tuple[int, int]]]] = {}
        done = []
        for seq in doomed:
            found = rows.place_of(seq)
            if found is None:
                self._doomed.discard(seq)
            elif found[0].footer is None:
                self._ask_seal()
            else:
                places.setdefault(id(found[0]), (found[0], []))[1].append((found[1], found[2]))
                done.append(seq)
        if not places:
            return bool(self._doomed)
        self._at_work = True
        segments = list(places.values())

        def finished(_: None, error: BaseException | None) -> None:
            self._at_work = False
            if error is None:
                self._doomed.difference_update(done)
            elif not isinstance(error, LogClosed):
                _logger.error("%s: deleted messages could not be taken out yet: %s", log.directory, error)
            for segment, _places in segments:
                rows.cache.forget(segment.path)
            rows.cache.sweep()

        self._io.submit(lambda: self._work(segments), finished)
        return True

    def _work(self, segments: list[tuple[Segment, list[tuple[int, int]]]]) -> None:
        """Blank the records of segments. Block. Raise CorruptLog if one was damaged before, OSError, LogClosed."""
        with self._lock():
            for segment, places in segments:
                blank_segment(self._log.files, segment, places)


def blank_segment(files: Files, segment: Segment, places: Iterable[tuple[int, int]]) -> bool:
    """Blank the records at (offset, length) in a sealed segment's file; return False if they already were. Block."""
    packed = is_packed_file(files, segment.path)
    _, _, content = read_intact(files, segment.path)
    blanks = [(offset, blank_record(content[offset : offset + length])) for offset, length in places]
    blanks = sorted(each for each in blanks if content[each[0] : each[0] + len(each[1])] != each[1])
    if not blanks:
        return False
    fresh = bytearray(content)
    for offset, record in blanks:
        fresh[offset : offset + len(record)] = record
    offsets = [offset for offset, _ in blanks]
    for frame, body_at in iter_frames(content, segment.path, segment.header, segment.end):
        end = body_at + len(frame.body)
        at = bisect_left(offsets, body_at)
        if at < len(offsets) and offsets[at] < end:
            changed = Frame(frame.kind, frame.term, frame.index, frame.count, bytes(fresh[body_at:end]))
            fresh[body_at - FRAME_HEADER : body_at] = encode_header(changed, frame.write, segment.header.salt)
    files.write_whole(segment.path, [bytes(fresh)])
    if packed:
        pack(files, segment.path)
    return True


def blank_record(record: bytes) -> bytes:
    """Return a record of the same length with header values and payload blanked."""
    subject_end = FIXED + int.from_bytes(record[SUBJECT_LENGTH_AT : SUBJECT_LENGTH_AT + 2], "little")
    data_at = subject_end
    header = b""
    if record[FLAGS_AT] & FLAG_HEADER:
        subject_end += 4
        data_at = subject_end + int.from_bytes(record[FIXED : FIXED + 4], "little")
        header = blank_header(record[subject_end:data_at])
    rest = record[4:subject_end] + header + bytes(len(record) - data_at)
    return struct.pack("<I", crc32(rest)) + rest


def blank_header(block: bytes) -> bytes:
    """Return a header block with blanked values, except of the headers that the server interprets."""
    status, *lines = block.split(b"\r\n")
    return b"\r\n".join([status, *map(_blank_line, lines)])


def _blank_line(line: bytes) -> bytes:
    name, colon, value = line.partition(b":")
    if not colon:
        return b"-" * len(line)
    if name.lower().startswith(KEPT_HEADERS):
        return line
    return name + colon + b"-" * len(value)
