"""Reading messages from segment files, and from the outlines of segments that have left the log.

Belongs here: sequence → file, offset, length → record. Only committed messages are in the tables, so reading is safe
while an I/O thread appends to the same file. Used in the event loop.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, repeat
from operator import add, attrgetter
from typing import TypeVar, cast

from lakestream.log.format.errors import Compacted, CorruptLog, CorruptRecord, FileNotReadable
from lakestream.log.format.outline import Outline, OutlineFile, OutlineRow, cells, read_outline, read_rows
from lakestream.log.format.record import FIXED, TIME_AT, Record, decode_record, subjects_at
from lakestream.log.format.records import Records
from lakestream.log.format.segment import Segment, SegmentPlaces, read_footer
from lakestream.log.store.cache import ReadCache
from lakestream.log.store.log import Appended

T = TypeVar("T")

SPAN = 1 << 20
"""Maximum bytes of one read (1 MiB), unless a single record is longer."""
_HEAD_GUESS = 512  # bytes of a record that mostly include its subject
LONG = 8192
"""Mean size of records (8 KiB) from which the subject of each is read by itself, without the payloads."""
MAX_HOLE = 8192
"""Removed bytes up to this number (8 KiB) are read along rather than skipped with another read."""
ALONE = 1024
"""Rows of an outline that are loaded in about the time in which one is read alone."""
RECENT = 256
"""Maximum number of rows of outlines that are kept from one question about a message to the next."""

_first_seq = attrgetter("first_seq")
_last_seq = attrgetter("info.last_seq")


class SegmentRows:
    """`Rows` over files."""

    def __init__(self, segments: list[Segment], outlines: list[OutlineFile], cache: ReadCache) -> None:
        """Take the log's `segments`, and the `outlines` of segments that have left it; both ascending."""
        self.segments = list(segments)
        self.outlines = outlines
        self.cache = cache
        self.local_floor = self._first_local()
        self.on_corrupt: Callable[[CorruptLog], None] = lambda error: None
        """Called with damage that a read meets, before the read raises it."""
        self._recent: dict[int, OutlineRow] = {}

    def place(self, at: Appended, first_seq: int, lengths: Sequence[int], last_time: int) -> int:
        """Place messages, except in a sealed segment that recovery replays: it has their places already."""
        segment = cast(Segment, at.segment)
        if segment is not self.segments[-1]:
            self._adopt(segment)
        if segment.footer is None:
            offsets = list(accumulate(lengths, initial=at.offset))
            offsets.pop()
            segment.place(first_seq, offsets, lengths, last_time)
        if segment is self.segments[0] and segment.count == len(lengths):
            self.local_floor = segment.first_seq
        return sum(lengths)

    def memory(self) -> int:
        """Return roughly the bytes of memory of the tables and outlines that are loaded."""
        loaded = (*(segment.tables for segment in self.segments), *(file.outline for file in self.outlines))
        return sum(each.memory() for each in loaded if each is not None)

    def read(self, seq: int) -> Record:
        segment = self._segment(seq)
        tables = self._tables(segment)
        row = tables.row(seq)
        offset, length = tables.offsets[row], tables.lengths[row]
        try:
            record = decode_record(self._bytes(segment, offset, length))
        except CorruptRecord as error:
            raise self._corrupt(segment, offset, error.what) from error
        if record.seq != seq:
            raise self._corrupt(segment, offset, f"message {record.seq} lies where {seq} belongs")
        return record

    def read_seqs(self, seqs: Sequence[int], max_bytes: int) -> list[Records]:
        pieces: list[Records] = []
        for segment, part in self._by_segment(seqs):
            offsets, lengths = self._places(segment, part)
            sums = list(accumulate(lengths))
            keep = bisect_right(sums, max_bytes)
            if keep == 0 and not pieces:
                keep = 1
            if isinstance(part, range):
                for start, stop in _cut(offsets, 0, keep):
                    places = offsets[start:stop], lengths[start:stop]
                    pieces.append(self._piece(segment, *places, part[start:stop], ((0, stop - start),)))
            elif keep:
                places = offsets[:keep], lengths[:keep]
                pieces.append(self._piece(segment, *places, part[:keep], _spans(*places)))
            if keep < len(part):
                break
            max_bytes -= sums[-1]
        return pieces

    def _piece(
        self,
        segment: Segment,
        offsets: array[int],
        lengths: array[int],
        seqs: Sequence[int],
        spans: Iterable[tuple[int, int]],
    ) -> Records:
        """Return records of one segment, read by these spans of them. Hot."""
        places, size, reads = array("I"), 0, list[tuple[int, int]]()
        for start, stop in spans:
            base = offsets[start]
            length = offsets[stop - 1] + lengths[stop - 1] - base
            reads.append((length, base))
            if stop - start == 1:
                places.append(size)
            else:
                places.extend([offset - base + size for offset in offsets[start:stop]])
            size += length
        bufs = self._read(segment, reads)
        piece = Records(b"".join(bufs) if len(bufs) > 1 else bufs[0], places, lengths, seqs)
        try:
            piece.check()
        except CorruptRecord as error:
            raise self._corrupt(segment, offsets[bisect_left(places, error.offset)], error.what) from error
        return piece

    def subjects(self, seqs: Sequence[int]) -> list[bytes]:
        local = bisect_left(seqs, self.local_floor)
        names: list[bytes] = []
        for file, part in self._by_outline(seqs[:local]):
            if (few := self._few(file, part)) is not None:
                names += [row.subject for row in few]
                continue
            outline = self._outline(file)
            rows = _rows(outline, part)
            if 0 in cells(outline.sizes, rows):
                raise _unknown(next(seq for seq in part if outline.row(seq) < 0))
            names += outline.subjects(rows)
        for segment, part in self._by_segment(seqs[local:]):
            offsets, lengths = self._places(segment, part)
            if sum(lengths) >= LONG * len(part):
                names += map(self._named, repeat(segment), part, offsets, lengths)
                continue
            for start, stop in _cut(offsets, 0, len(part)) if isinstance(part, range) else _spans(offsets, lengths):
                base = offsets[start]
                buf = self._bytes(segment, base, offsets[stop - 1] + lengths[stop - 1] - base)
                names += subjects_at(buf, [offset - base for offset in offsets[start:stop]])
        return names

    def subject(self, seq: int) -> bytes:
        if seq < self.local_floor:
            return self._outlined(seq).subject
        segment = self._segment(seq)
        tables = self._tables(segment)
        row = tables.row(seq)
        return self._named(segment, seq, tables.offsets[row], tables.lengths[row])

    def _named(self, segment: Segment, seq: int, offset: int, length: int) -> bytes:
        """Return the subject of the record at `offset`, of `length` bytes."""
        length = min(length, _HEAD_GUESS)
        name = subjects_at(self._bytes(segment, offset, length), (0,))[0]
        # A subject that may be longer than what was read is rare: read the record.
        return name if len(name) < length - FIXED - 4 else self.read(seq).subject

    def place_of(self, seq: int) -> tuple[Segment, int, int] | None:
        """Return the segment, offset and length of a record, live or not; None if no segment of the log has it."""
        if seq < self.local_floor:
            return None
        segment = self._segment(seq)
        tables = self._tables(segment)
        row = tables.row(seq)
        return (segment, tables.offsets[row], tables.lengths[row]) if row >= 0 else None

    def size(self, seq: int) -> int:
        if seq < self.local_floor:
            return self._outlined(seq).size
        tables = self._tables(self._segment(seq))
        return tables.lengths[tables.row(seq)]

    def sizes(self, seqs: Sequence[int]) -> list[int]:
        return list(chain.from_iterable(self._sizes(seqs)))

    def total_size(self, seqs: Sequence[int]) -> int:
        return sum(map(sum, self._sizes(seqs)))

    def _sizes(self, seqs: Sequence[int]) -> Iterator[Iterable[int]]:
        local = bisect_left(seqs, self.local_floor)
        for file, part in self._by_outline(seqs[:local]):
            if (few := self._few(file, part)) is not None:
                yield [row.size for row in few]
                continue
            outline = self._outline(file)
            yield cells(outline.sizes, _rows(outline, part))
        for segment, part in self._by_segment(seqs[local:]):
            tables = self._tables(segment)
            if isinstance(part, range):  # one run, as in `_places`
                row = tables.row(part[0])
                yield tables.lengths[row : row + len(part)]
            else:
                yield map(tables.lengths.__getitem__, tables.runs.rows_of(part))

    def outlined_so(self, records: Records) -> bool:
        seqs, at = records.seqs, 0
        # Of a few messages each row is read alone; the end of a longer run that goes on in the next outline is not.
        if seqs[-1] >= self.local_floor or _alone(self._outlining(seqs[0]), seqs):
            return False
        for file, part in self._by_outline(seqs):
            if not self._outline(file).matches(records, at, part):
                return False
            at += len(part)
        return True

    def time(self, seq: int) -> int:
        if seq < self.local_floor:
            return self._outlined(seq).time_ns
        return self.read(seq).time_ns  # checked with its CRC: messages expire by it

    def first_at(self, time_ns: int) -> int:
        """Find the message by two binary searches: times ascend with sequences."""
        for file in self.outlines:
            if file.info.rows and file.info.last_time >= time_ns:
                outline = self._outline(file)
                return outline.runs.seq(bisect_left(outline.times, time_ns))
        for segment in self.segments:
            if segment.count and segment.last_time >= time_ns:
                tables = self._tables(segment)
                rows: Sequence[int] = range(len(tables))
                if tables.lengths.count(0):
                    rows = [row for row in rows if tables.lengths[row]]
                at = bisect_left(rows, time_ns, key=lambda row: self._time_at(segment, tables.offsets[row]))
                return tables.runs.seq(rows[at])
        return 0

    def forget(self, seqs: Sequence[int]) -> None:
        """Do nothing: the log keeps removed messages until their segment leaves."""

    def dropped(self, segments: list[Segment], outlines: list[OutlineFile]) -> None:
        """Note that `segments` left the log; `outlines` is the new list of outlines."""
        gone = {segment.path for segment in segments}
        for segment in segments:
            self.cache.forget(segment.path)
            self.cache.drop(segment)
        for outline in self.outlines:
            if outline not in outlines:
                self.cache.drop(outline)
        self.cache.sweep()
        self.segments = [segment for segment in self.segments if segment.path not in gone]
        self.outlines = outlines
        self.local_floor = self._first_local()

    def begin_with(self, outlines: list[OutlineFile]) -> None:
        """Set the outlines of a base (base.py) before all segments."""
        assert not self.outlines, "a store begins once"
        self.outlines = outlines
        self.local_floor = self._first_local()

    def _first_local(self) -> int:
        """Return the first sequence that can be in the log: above those of all outlines."""
        after = self.outlines[-1].info.last_seq + 1 if self.outlines else 0
        return max(self.segments[0].first_seq, after)

    def close(self) -> None:
        """Release what the cache holds for this stream. Any thread."""
        for segment in self.segments:
            self.cache.forget(segment.path)
            if segment.footer is not None:
                self.cache.drop(segment)
        for outline in self.outlines:
            self.cache.drop(outline)

    def _adopt(self, segment: Segment) -> None:
        """Add a segment that the log has begun; the tables of the one before may be evicted from now on."""
        known = self.segments[-1]
        if segment.first_index <= known.first_index:
            return  # recovery replays an older segment
        if known.footer is not None and known.tables is not None:
            self.cache.keep(known, known.tables.memory())
        self.segments = [*self.segments, segment]

    def _segment(self, seq: int) -> Segment:
        last = self.segments[-1]
        if seq >= last.first_seq and last.count:
            return last
        return self.segments[self._position(seq)]

    def _position(self, seq: int) -> int:
        return bisect_right(self.segments, seq, key=_first_seq) - 1

    def _tables(self, segment: Segment) -> SegmentPlaces:
        segment.used = True
        tables = segment.tables
        if tables is None:
            try:
                _, tables, _ = read_footer(segment.path, self.cache.files)
            except CorruptLog as error:
                self.on_corrupt(error)
                raise
            except OSError as error:
                raise FileNotReadable(segment.path, error) from error
            segment.tables = tables
            self.cache.keep(segment, tables.memory())
        return tables

    def _outline(self, file: OutlineFile) -> Outline:
        file.used = True
        outline = file.outline
        if outline is None:
            outline = file.outline = self._read_outline(file, read_outline)
            self.cache.keep(file, outline.memory())
        return outline

    def _read_outline(self, file: OutlineFile, read: Callable[..., T], *arguments: Sequence[int]) -> T:
        try:
            return read(self.cache.files, file.path, *arguments)
        except CorruptLog as error:
            self.on_corrupt(error)
            raise
        except OSError as error:
            raise FileNotReadable(file.path, error) from error

    def _outlined(self, seq: int) -> OutlineRow:
        file = self._outlining(seq)
        if (few := self._few(file, (seq,))) is not None:
            return few[0]
        outline = self._outline(file)
        row = _row(outline, seq)
        return OutlineRow(outline.names[outline.ids[row]], outline.sizes[row], outline.times[row])

    def _few(self, file: OutlineFile, seqs: Sequence[int]) -> list[OutlineRow] | None:
        """Return the rows of messages; None if the outline is in memory, or worth loading for them. Raise Compacted."""
        if not _alone(file, seqs):
            return None
        recent = self._recent
        lacking = [seq for seq in seqs if seq not in recent]
        file.alone += len(lacking)
        if file.alone > file.info.rows // ALONE:
            file.alone = 0
            return None
        if lacking:
            if len(recent) > RECENT:
                recent = self._recent = {seq: recent[seq] for seq in seqs if seq in recent}
            for seq, row in zip(lacking, self._read_outline(file, read_rows, lacking), strict=True):
                if row is None:
                    raise _unknown(seq)
                recent[seq] = row
        return [recent[seq] for seq in seqs]

    def _outlining(self, seq: int) -> OutlineFile:
        at = bisect_left(self.outlines, seq, key=_last_seq)
        if at == len(self.outlines):
            raise _unknown(seq)
        return self.outlines[at]

    def _by_segment(self, seqs: Sequence[int]) -> Iterator[tuple[Segment, Sequence[int]]]:
        """Cut ascending sequences where segments end."""
        position, end = 0, len(seqs)
        while position < end:
            at = self._position(seqs[position])
            stop = end
            if at + 1 < len(self.segments):
                stop = bisect_left(seqs, self.segments[at + 1].first_seq, position)
            yield self.segments[at], seqs[position:stop]
            position = stop

    def _by_outline(self, seqs: Sequence[int]) -> Iterator[tuple[OutlineFile, Sequence[int]]]:
        position, end = 0, len(seqs)
        while position < end:
            file = self._outlining(seqs[position])
            stop = bisect_right(seqs, file.info.last_seq, position)
            yield file, seqs[position:stop]
            position = stop

    def _places(self, segment: Segment, seqs: Sequence[int]) -> tuple[array[int], array[int]]:
        """Return the offsets and lengths of messages of one segment."""
        tables = self._tables(segment)
        offsets, lengths = tables.offsets, tables.lengths
        if isinstance(seqs, range):
            # Invariant: live sequences have rows, and an unbroken range of them lies in one run.
            row = tables.row(seqs[0])
            return offsets[row : row + len(seqs)], lengths[row : row + len(seqs)]
        rows = tables.runs.rows_of(seqs)
        return array("I", [offsets[row] for row in rows]), array("I", [lengths[row] for row in rows])

    def _corrupt(self, segment: Segment, offset: int, what: str) -> CorruptLog:
        error = CorruptLog(segment.path, offset, what)
        self.on_corrupt(error)
        return error

    def _bytes(self, segment: Segment, base: int, length: int) -> bytes:
        return self._read(segment, ((length, base),))[0]

    def _read(self, segment: Segment, reads: Iterable[tuple[int, int]]) -> list[bytes]:
        """Return bytes of a segment, given as (length, offset). Hot."""
        bufs, base, length = list[bytes](), 0, 0
        try:
            read = self.cache.reader(segment.path)
            for length, base in reads:
                bufs.append(read(length, base))
                if len(bufs[-1]) < length:
                    break
        except CorruptRecord as error:
            raise self._corrupt(segment, base, error.what) from error
        except CorruptLog as error:
            self.on_corrupt(error)
            raise
        except OSError as error:
            raise FileNotReadable(segment.path, error) from error
        if bufs and len(bufs[-1]) < length:
            raise self._corrupt(segment, base + len(bufs[-1]), "the file is cut short")
        return bufs

    def _time_at(self, segment: Segment, offset: int) -> int:
        return int.from_bytes(self._bytes(segment, offset + TIME_AT, 8), "little", signed=True)


def _alone(file: OutlineFile, seqs: Sequence[int]) -> bool:
    """Return True if rows of an outline that is not in memory are so few that they are read without the others."""
    return file.outline is None and file.info.index_size > 0 and len(seqs) <= file.info.rows // ALONE


def _rows(outline: Outline, seqs: Sequence[int]) -> Sequence[int]:
    """Return the rows of sequences, ascending, in an outline. Raise Compacted."""
    try:
        return outline.runs.rows_of(seqs)
    except LookupError as error:
        raise _unknown(error.args[0]) from None


def _row(outline: Outline, seq: int) -> int:
    row = outline.row(seq)
    if row < 0:
        raise _unknown(seq)
    return row


def _unknown(seq: int) -> Compacted:
    return Compacted(f"what is known of messages that have left the log does not include sequence {seq}")


def _spans(offsets: Sequence[int], lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Cut places into reads of about SPAN bytes, also at holes above MAX_HOLE. Hot."""
    ends = map(add, offsets, lengths)
    holes = enumerate(zip(offsets[1:], ends, strict=False), 1)
    start = 0
    for stop in [at for at, (offset, end) in holes if offset - end > MAX_HOLE]:
        yield from _cut(offsets, start, stop) if stop - start > 1 else ((start, stop),)
        start = stop
    yield from _cut(offsets, start, len(offsets))


def _cut(offsets: Sequence[int], start: int, end: int) -> Iterator[tuple[int, int]]:
    """Cut the places from `start` to `end` into reads of about SPAN bytes."""
    while start < end:
        stop = max(start + 1, bisect_left(offsets, offsets[start] + SPAN, start, end))
        yield start, stop
        start = stop
