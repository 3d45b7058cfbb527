"""Outlines: subject, size and time of each message in segments that left the log.

Belongs here: the outline file (`log/<first_index:020d>.outline`). Once the lake holds a segment's messages their
records leave the log, but the stream still needs the subject and size of each message that is removed, and the first
message at a time. Small neighbours are merged into one outline.

    magic, u32 version, u32 length and u32 crc of the MessagePack `OutlineInfo`, u32 crc of the content
    OutlineInfo, then the MessagePack content

The last field of the content is an index, with which one row is read without the others: one may be asked for of each
of hundreds of outlines, which take ten milliseconds to load. Earlier releases ignore it, and their outlines have none.

    u32 places in the content of ids, sizes, times and their end; u32 number of names
    u32 crc of each page (4 KiB) of the content up to that end
    u32 place of every 64th name, and of the end of the last
    i64 first sequence and rows of each run
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol, overload
from zlib import crc32

import msgspec

from lakestream import native
from lakestream.log.format.errors import CorruptLog
from lakestream.log.format.files import Files
from lakestream.log.format.packed import read_plain
from lakestream.log.format.record import TIME_AT, subjects_at
from lakestream.log.format.records import Records
from lakestream.log.format.runs import Runs, stretches
from lakestream.log.format.segment import Segment, read_footer
from lakestream.protocol.decoding import PackDecoder

SUFFIX = ".outline"
VERSION = 1
MERGE_ROWS = 1 << 17
"""An outline is merged with the next one until it has this many rows."""
PRUNE_ROWS = 1024
"""An outline with at least this many rows is written again with those that are needed, once they are a quarter or
fewer."""
PRUNED_AT_ONCE = 8
"""Maximum number of older outlines that are written again at once; the others follow the next time."""

_MAGIC = b"LKOL"
_HEAD = struct.Struct("<4sIIII")
_HEAD_BYTES = 256  # at least those of the head and OutlineInfo
_INDEX = struct.Struct("<5I")
_PAGE = 4096
_STEP = 64
_time_at = struct.Struct("<q").unpack_from


class OutlineInfo(msgspec.Struct, frozen=True):
    """Range of an outline. Index and sequence ranges include both ends; times in ns, 0 without rows. `index_size` and
    `index_crc` are those of the index at the end of the file, 0 without one."""

    first_index: int
    last_index: int
    first_seq: int
    last_seq: int
    last_time: int
    rows: int
    index_size: int = 0
    index_crc: int = 0


_INFO = PackDecoder(OutlineInfo)


class OutlineFile:
    """An outline on disk, with its columns while they are in memory. `alone`: rows read without the others since."""

    __slots__ = ("alone", "info", "outline", "path", "used")

    def __init__(self, path: str, info: OutlineInfo) -> None:
        self.path = path
        self.info = info
        self.outline: Outline | None = None
        self.used = False
        self.alone = 0

    def release(self) -> None:
        self.outline = None

    def asked(self) -> bool:
        used, self.used = self.used, False
        return used


class _Content(msgspec.Struct):
    runs: list[tuple[int, int]]
    names: msgspec.Raw
    ids: memoryview
    sizes: memoryview
    times: memoryview


_CONTENT = PackDecoder(_Content)
_NAMES = PackDecoder(list[bytes])


class OutlineNames(Sequence[bytes]):
    """The subjects of an outline as they lie in its file; one becomes an object when it is asked for.

    Attributes:
        packed: a list in MessagePack.
        marks: where each begins in it, with its head, and the end of the last one.
    """

    __slots__ = ("marks", "packed")

    def __init__(self, packed: bytes) -> None:
        """Take the bytes of a list. Raise ValueError."""
        self.packed, self.marks = packed, native.split_names(packed)

    def __len__(self) -> int:
        return len(self.marks) - 1

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> list[bytes]: ...
    def __getitem__(self, at: int | slice) -> bytes | list[bytes]:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self)))]
        start = self.marks[at]
        return self.packed[start + (2 if self.packed[start] == _SHORT else 3) : self.marks[at + 1]]


_SHORT = 0xC4
"""Head of a text of up to 255 bytes in MessagePack: this and a byte with its size. A longer one has two such bytes."""


class OutlineRow(NamedTuple):
    """One message in an outline."""

    subject: bytes
    size: int
    time_ns: int


class Outline:
    """A loaded outline: columns by row. A size of 0 means that there was no such message."""

    __slots__ = ("_numbers", "ids", "names", "runs", "sizes", "times")

    def __init__(self) -> None:
        self.runs = Runs()
        self.names: OutlineNames | list[bytes] = []
        self.ids = array("I")
        self.sizes = array("I")
        self.times = array("q")
        self._numbers: dict[bytes, int] = {}

    def row(self, seq: int) -> int:
        """Return the row of `seq`; -1 if there was no such message."""
        row = self.runs.row(seq)
        return row if row >= 0 and self.sizes[row] else -1

    def matches(self, records: Records, at: int, seqs: Sequence[int]) -> bool:
        """Return True if records from index `at` on are these messages, with the subjects and sizes of their rows."""
        try:
            rows = self.runs.rows_of(seqs)
        except LookupError:
            return False
        names, places = self.names, (records.buf, records.offsets, records.lengths, at)
        assert isinstance(names, OutlineNames), "it was read from a file"
        return native.records_match(*places, rows, self.sizes, self.ids, names.packed, names.marks)

    def subjects(self, rows: Sequence[int]) -> list[bytes]:
        """Return the subjects of rows."""
        numbers = cells(self.ids, rows)
        names = {number: self.names[number] for number in set(numbers)}
        return [names[number] for number in numbers]

    def memory(self) -> int:
        """Return roughly the bytes of memory of this outline."""
        assert isinstance(self.names, OutlineNames), "it was read from a file"
        return 16 * self.runs.rows + len(self.names.packed) + 4 * len(self.names) + 512

    def add_segment(self, files: Files, path: str) -> None:
        """Add the messages of a sealed segment by reading the whole file. Block. Raise CorruptLog."""
        footer, tables, _ = read_footer(path, files)
        content = read_plain(files, path)
        there = [row for row, length in enumerate(tables.lengths) if length]
        offsets, sizes = (array("I", [column[row] for row in there]) for column in (tables.offsets, tables.lengths))
        try:  # from now on nothing but the outline says which subjects these messages have
            native.check_records(content, offsets, sizes)
        except ValueError as error:
            raise CorruptLog(path, *error.args) from error
        row = 0
        for first, rows in footer.runs:
            offsets = tables.offsets[row : row + rows]
            sizes = tables.lengths[row : row + rows]
            row += rows
            self.pad(self.runs.extend(first, rows))
            self.sizes.extend(sizes)
            subjects = iter(subjects_at(content, [offset for offset in offsets if offset]))
            time = self.times[-1] if self.times else 0
            for offset in offsets:
                if offset:
                    (time,) = _time_at(content, offset + TIME_AT)
                    self.ids.append(self._number(next(subjects)))
                else:
                    self.ids.append(0)
                self.times.append(time)  # a row without message repeats the time: the column stays sorted

    def add_outline(self, other: Outline) -> None:
        """Add the rows of another outline, of earlier messages."""
        translated = [self._number(name) for name in other.names]
        row = 0
        for first, rows in other.runs.pairs():
            self.pad(self.runs.extend(first, rows))
            ids = other.ids[row : row + rows]
            self.sizes.extend(other.sizes[row : row + rows])
            self.ids.extend([translated[number] for number in ids] if translated else ids)
            self.times.extend(other.times[row : row + rows])
            row += rows

    def only(self, seqs: Sequence[int]) -> Outline:
        """Return an outline of these messages (ascending), which have rows here, without empty rows between them."""
        made = Outline()
        made.runs = Runs.of([(first, last - first + 1) for first, last in stretches(seqs)])
        rows = self.runs.rows_of(seqs)
        made.ids.extend(map(made._number, self.subjects(rows)))
        made.sizes.extend(self.sizes[row] for row in rows)
        made.times.extend(self.times[row] for row in rows)
        return made

    def _number(self, name: bytes) -> int:
        number = self._numbers.get(name)
        if number is None:
            assert isinstance(self.names, list), "it is being made"
            number = self._numbers[name] = len(self.names)
            self.names.append(name)
        return number

    def pad(self, gap: int) -> None:
        if gap:
            self.ids.frombytes(bytes(4 * gap))
            self.sizes.frombytes(bytes(4 * gap))
            self.times.extend([self.times[-1]] * gap)


def outline_path(directory: str, first_index: int) -> str:
    """Return the path of the outline of the segments from entry `first_index` on."""
    return os.path.join(directory, f"{first_index:020d}{SUFFIX}")


def write_outline(
    files: Files, path: str, first_index: int, last_index: int, outline: Outline, last_seq: int
) -> OutlineInfo:
    """Write an outline, durably, over the one that is there. Block. Raise OSError.

    `last_seq` is the stream's at the end of the last segment; an outline without rows has that, so that outlines
    ascend.
    """
    runs = outline.runs
    fields = _Content(
        runs.pairs(),
        msgspec.Raw(msgspec.msgpack.encode(outline.names[:])),
        *(memoryview(column).cast("B") for column in (outline.ids, outline.sizes, outline.times)),
    )
    content = bytearray(msgspec.msgpack.encode(fields))
    content[0] += 1  # a map of one field more
    index = _index(content, outline)
    content += msgspec.msgpack.encode("index") + msgspec.msgpack.encode(index)
    info = OutlineInfo(
        first_index,
        last_index,
        runs.firsts[0] if runs.rows else last_seq + 1,
        runs.next_seq - 1 if runs.rows else last_seq,
        outline.times[-1] if runs.rows else 0,
        runs.rows,
        len(index),
        crc32(index),
    )
    head = msgspec.msgpack.encode(info)
    files.write_whole(path, [_HEAD.pack(_MAGIC, VERSION, len(head), crc32(head), crc32(content)), head, bytes(content)])
    return info


def _index(content: bytearray, outline: Outline) -> bytes:
    """Return the index of an encoded outline, whose content ends with its columns."""
    places, end = [len(content)], len(content)
    for name, column in (("times", outline.times), ("sizes", outline.sizes), ("ids", outline.ids)):
        size = len(column) * column.itemsize
        places.insert(0, end - size)
        end = places[0] - (2 if size < 1 << 8 else 3 if size < 1 << 16 else 5) - len(name) - 1
    parts = [outline.names[at : at + _STEP] for at in range(0, len(outline.names), _STEP)]
    sizes = [len(msgspec.msgpack.encode(part)) - (1 if len(part) < 16 else 3) for part in parts]
    marks = array("I", accumulate(sizes, initial=end - sum(sizes)))
    pages = array("I", [crc32(content[at : at + _PAGE]) for at in range(0, len(content), _PAGE)])
    runs = array("q", [number for run in outline.runs.pairs() for number in run])
    head = _INDEX.pack(*places, len(outline.names))
    return b"".join([head, pages.tobytes(), marks.tobytes(), runs.tobytes()])


class Needed(Protocol):
    """The sequences whose rows are needed, as index/sequences.py has them."""

    def count(self, low: int, high: int) -> int:
        """Return the number of members `low` through `high`, inclusive."""

    def members(self, low: int, limit: int, high: int) -> Sequence[int]:
        """Return the first `limit` members `low` through `high`, ascending."""


def outline_segments(
    files: Files,
    directory: str,
    segments: Sequence[Segment],
    before: Sequence[OutlineFile] = (),
    needed: Needed | None = None,
) -> list[OutlineFile]:
    """Write outlines of sealed segments into a directory; return all outlines there are then.

    `before` are those of the entries before them; the newest of these is replaced if it is short, and others if few of
    their rows are needed. None: all are. Block. Raise OSError, CorruptLog.
    """
    made = list(before) if needed is None else _pruned(files, before, needed)
    outline, first_index = Outline(), segments[0].first_index if segments else 0
    if made and made[-1].info.rows < MERGE_ROWS and made[-1].info.last_index:  # not one of a base
        short = made.pop()
        outline.add_outline(read_outline(files, short.path))
        first_index = short.info.first_index
    for segment in segments:
        outline.add_segment(files, segment.path)
        if outline.runs.rows >= MERGE_ROWS or segment is segments[-1]:
            path = outline_path(directory, first_index)
            outline = _only_needed(outline, needed)
            info = write_outline(files, path, first_index, segment.last_index, outline, segment.last_seq)
            made.append(OutlineFile(path, info))
            outline, first_index = Outline(), segment.last_index + 1
    return made


def _pruned(files: Files, before: Sequence[OutlineFile], needed: Needed) -> list[OutlineFile]:
    """Write those outlines again of which few rows are needed, or that have no index; return all that are there."""
    made = list(before)
    worse = [at for at, file in enumerate(made) if not file.info.index_size or _is_sparse(file.info, needed)]
    for at in [at for at in worse if made[at].info.last_index][:PRUNED_AT_ONCE]:  # not those of a base
        path, info = made[at].path, made[at].info
        outline = _only_needed(read_outline(files, path), needed)
        info = write_outline(files, path, info.first_index, info.last_index, outline, info.last_seq)
        made[at] = OutlineFile(path, info)
    return made


def _is_sparse(info: OutlineInfo, needed: Needed) -> bool:
    return info.rows >= PRUNE_ROWS and needed.count(info.first_seq, info.last_seq) * 4 <= info.rows


def _only_needed(outline: Outline, needed: Needed | None) -> Outline:
    """Return an outline of the needed rows if they are few, else the same one."""
    runs = outline.runs
    if needed is None or runs.rows < PRUNE_ROWS:
        return outline
    first, last = runs.firsts[0], runs.next_seq - 1
    count = needed.count(first, last)
    if count * 4 > runs.rows:
        return outline
    return outline.only([seq for seq in needed.members(first, count, last) if outline.row(seq) >= 0])


def read_outline_info(files: Files, path: str) -> OutlineInfo:
    """Return the range of the outline at `path`. Raise CorruptLog."""
    with files.opened(path) as fd:
        data = files.read_at(fd, _HEAD_BYTES, 0)
    return _info(path, data)[0]


def read_rows(files: Files, path: str, seqs: Sequence[int]) -> list[OutlineRow | None]:
    """Return what the outline at `path`, which has an index, says of some messages, by reading a few pages for each;
    None of those that it lacks. Raise CorruptLog."""
    with files.opened(path) as fd:
        # The file may have been written again since its range was read: its own head tells where its index is.
        info, begin, _ = _info(path, files.read_at(fd, _HEAD_BYTES, 0))
        at = max(files.size(fd) - info.index_size, 0)
        index = files.read_at(fd, info.index_size, at)
        if crc32(index) != info.index_crc:
            raise CorruptLog(path, at, "the crc of the index does not match")
        ids_at, sizes_at, times_at, end, count = _INDEX.unpack_from(index)
        marks_at = _INDEX.size - 4 * (-end // _PAGE)
        runs_at = marks_at + 4 - 4 * (-count // _STEP)
        pages, marks = (array("I", index[slice(*part)]) for part in ((_INDEX.size, marks_at), (marks_at, runs_at)))
        runs = array("q", index[runs_at:])
        rows = Runs.of(list(zip(runs[::2], runs[1::2], strict=True)))

        def cut(start: int, stop: int) -> bytes:
            number = start // _PAGE
            base = number * _PAGE
            data = files.read_at(fd, min(-(-stop // _PAGE) * _PAGE, end) - base, begin + base)
            for place in range(0, len(data), _PAGE):
                if crc32(data[place : place + _PAGE]) != pages[number + place // _PAGE]:
                    raise CorruptLog(path, begin + base + place, "the crc of a page of the outline does not match")
            return data[start - base : stop - base]

        found = list[OutlineRow | None]()
        for row in map(rows.row, seqs):
            size = int.from_bytes(cut(sizes_at + 4 * row, sizes_at + 4 * row + 4), "little") if row >= 0 else 0
            if not size:
                found.append(None)
                continue
            number = int.from_bytes(cut(ids_at + 4 * row, ids_at + 4 * row + 4), "little")
            time = int.from_bytes(cut(times_at + 8 * row, times_at + 8 * row + 8), "little", signed=True)
            mark, place = divmod(number, _STEP)
            several = min(_STEP, count - mark * _STEP).to_bytes(2, "big")
            names = _NAMES.decode(b"\xdc" + several + cut(marks[mark], marks[mark + 1]))  # with the head of a list
            found.append(OutlineRow(names[place], size, time))
        return found


def read_outline(files: Files, path: str) -> Outline:
    """Return the outline at `path`. Raise CorruptLog."""
    data = files.read(path)
    info, at, crc = _info(path, data)
    if native.crc32(memoryview(data)[at:]) != crc:
        raise CorruptLog(path, at, "the crc of the outline does not match")
    content = _CONTENT.decode(memoryview(data)[at:])
    made, names = Outline(), bytes(content.names)
    made.runs = Runs.of(content.runs)
    assert made.runs.rows == info.rows
    made.names = OutlineNames(names)
    made.ids.frombytes(content.ids)
    made.sizes.frombytes(content.sizes)
    made.times.frombytes(content.times)
    return made


def _info(path: str, data: bytes) -> tuple[OutlineInfo, int, int]:
    if len(data) < _HEAD.size:
        raise CorruptLog(path, 0, "the outline is cut short")
    magic, version, length, head_crc, content_crc = _HEAD.unpack_from(data)
    head = data[_HEAD.size : _HEAD.size + length]
    if magic != _MAGIC or version != VERSION or crc32(head) != head_crc:
        raise CorruptLog(path, 0, "the head of the outline is damaged")
    return _INFO.decode(head), _HEAD.size + length, content_crc


def cells(column: array[int], rows: Sequence[int]) -> Sequence[int]:
    """Return the cells of rows, ascending, of a column."""
    if rows and rows[-1] - rows[0] == len(rows) - 1:
        return column[rows[0] : rows[-1] + 1]
    return [column[row] for row in rows]
