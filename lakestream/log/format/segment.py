"""The segment file: its header, its tables, its footer.

Belongs here: the format of one file, read and written without knowing the files beside it.

    header   64 bytes: magic, version, first_index, first_seq, created_ns, salt, crc of these, zeros
    frames   see frame.py
    zeros    (open segments only) room for the next frames
    footer   (sealed segments only)
        u32 offsets[rows]    of each message's record in this file
        u32 lengths[rows]    of that record; 0 = this sequence is not in this segment
        MessagePack metadata: `Footer`
        trailer 28 bytes: u64 offset of the footer, u32 rows, u32 length of the metadata, u32 crc of the tables,
                          u32 crc of the metadata and of the trailer so far, magic

The tables are indexed by seq - first_seq. Where a stream jumps over many sequences (a purge beyond its end, a mirror)
they hold several runs back to back, which `Footer.runs` lists as (first sequence, rows); otherwise there is one run.
A sealed segment never changes again, and its footer says which of its rows, and of earlier ones, were removed by its
end.
"""

from __future__ import annotations

import builtins
import struct
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from zlib import crc32

import msgspec

from lakestream.log.format.errors import CorruptLog
from lakestream.log.format.files import Files, naming
from lakestream.log.format.frame import HEADER_SIZE as FRAME_HEADER
from lakestream.log.format.frame import Frame, decode_frame
from lakestream.log.format.record import FIXED, TIME_AT
from lakestream.log.format.runs import Runs, SchemaRun
from lakestream.protocol.decoding import DECODE_ERRORS, PackDecoder

assert sys.byteorder == "little", "the tables are written as the machine holds them"

LOG_DIRECTORY = "log"
"""Directory of the segments in a stream's directory."""
HEADER_SIZE = 64
TRAILER_SIZE = 28
VERSION = 1
PACKED_VERSION = 2
"""Version of a sealed segment whose frames are compressed (packed.py)."""
SUFFIX = ".seg"
_NAME_LENGTH = 20 + len(SUFFIX)
_MAGIC = b"LKSG"
_FOOTER_MAGIC = b"LKSF"
_TAIL_GUESS = 8192  # metadata is mostly shorter, so that one read is enough
_HEADER = struct.Struct("<4sIQQqII")
_TRAILER = struct.Struct("<QIIII4s")
assert _TRAILER.size == TRAILER_SIZE


class Header(msgspec.Struct, frozen=True):
    """Header of a segment, written when it is begun. Times in ns since the epoch."""

    first_index: int
    first_seq: int
    created_ns: int
    salt: int


class Footer(msgspec.Struct, frozen=True, kw_only=True):
    """Metadata of a sealed segment and of the stream at the moment of its sealing.

    `last_seq` is the stream's last sequence then; `count` and `bytes` are of the messages in this file, removed or not;
    `floor` is the stream's first sequence: everything below is removed; `removed` lists the sequences ≥ `floor` that
    were removed, for whatever cause, while this segment was open; `erased` are runs (first, last) of the sequences,
    also below `floor`, that a client asked to be removed then (delete, purge), which no archive keeps; `shredded` are
    runs of those of them that were securely deleted; `subjects` is the number of distinct subjects in the stream;
    `config` is the stream's configuration as JSON. Times in ns since the epoch, 0 without messages. `terms` are the
    runs (first index, term) of the entries in this file, `marks` pairs (index, offset of its frame) at some distance
    from each other; an older release wrote neither. `departures` has all removals meanwhile with their times, packed
    (departures.py); None where the stream did not keep them from the segment's beginning. `schemas` are the runs of
    messages with the same schemas, the first of which may begin before this segment; None in those of older releases.
    """

    uid: str
    stream: str
    account: str
    first_index: int
    last_index: int
    last_term: int
    first_seq: int
    last_seq: int
    count: int
    bytes: int
    first_time: int
    last_time: int
    floor: int
    removed: list[int]
    subjects: int
    config: builtins.bytes  # the field above hides the name
    closed_ns: int
    runs: list[tuple[int, int]]
    erased: list[tuple[int, int]] = []
    terms: list[tuple[int, int]] = []
    marks: list[tuple[int, int]] = []
    shredded: list[tuple[int, int]] = []
    departures: builtins.bytes | None = None
    schemas: tuple[SchemaRun, ...] | None = None


_FOOTER = PackDecoder(Footer)


class Packing(msgspec.Struct, frozen=True):
    """Compression of a segment: the end of the frames in the plain file, their bytes in each block, and the lengths of
    the blocks behind the header."""

    frames_end: int
    block_bytes: int
    sizes: list[int]


class _Packed(msgspec.Struct):
    """The part of the metadata that describes compression."""

    packing: Packing | None = None


_PACKED = PackDecoder(_Packed)


class SealedSegment(msgspec.Struct, frozen=True):
    """Description of a sealed segment. `bytes` is the file's length; the ranges include both ends."""

    path: str
    first_index: int
    last_index: int
    first_seq: int
    last_seq: int
    bytes: int
    closed_ns: int


class SegmentPlaces:
    """Places of the records of one segment: sequence → (offset, length)."""

    __slots__ = ("lengths", "offsets", "runs")

    def __init__(self, runs: Runs, offsets: array[int], lengths: array[int]) -> None:
        self.runs = runs
        self.offsets = offsets
        self.lengths = lengths

    @classmethod
    def empty(cls) -> SegmentPlaces:
        """Return the tables of a new segment."""
        return cls(Runs(), array("I"), array("I"))

    def __len__(self) -> int:
        return len(self.offsets)

    def extend(self, first_seq: int, offsets: Sequence[int], lengths: Sequence[int]) -> None:
        """Add contiguous sequences from `first_seq` on, which is higher than all added before."""
        gap = self.runs.extend(first_seq, len(lengths))
        if gap:
            zeros = bytes(4 * gap)
            self.offsets.frombytes(zeros)
            self.lengths.frombytes(zeros)
        self.offsets.extend(offsets)
        self.lengths.extend(lengths)

    def row(self, seq: int) -> int:
        """Return the row of `seq`; -1 if this segment holds no such message."""
        row = self.runs.row(seq)
        return row if row >= 0 and self.lengths[row] else -1

    def memory(self) -> int:
        """Return roughly the bytes of memory of these tables."""
        return 8 * len(self.offsets) + 512


class Segment:
    """One segment of a log.

    `end` is where its frames end and the next one goes; `tables` is always there while it is open, and may be dropped
    and read again once `footer` is set, which is what makes it sealed. `frame_offsets[i]` is where the frame of entry
    first_index + i starts (open segments only). `terms` are its runs (first index, term). `memberships` are the
    (index, body) of the MEMBERSHIP entries that recovery found in an open segment.
    """

    __slots__ = (
        "bytes",
        "count",
        "end",
        "file_bytes",
        "first_append_ns",
        "first_index",
        "first_seq",
        "footer",
        "frame_offsets",
        "header",
        "last_index",
        "last_seq",
        "last_time",
        "memberships",
        "path",
        "tables",
        "terms",
        "used",
    )

    def __init__(self, path: str, header: Header) -> None:
        self.path = path
        self.header = header
        self.first_index = header.first_index
        self.last_index = header.first_index - 1
        self.first_seq = header.first_seq
        self.last_seq = header.first_seq - 1
        self.last_time = 0
        self.count = 0
        self.bytes = 0
        self.end = HEADER_SIZE
        self.file_bytes = 0  # once sealed: the length of the whole file
        self.first_append_ns = 0
        self.frame_offsets = array("I")
        self.tables: SegmentPlaces | None = SegmentPlaces.empty()
        self.used = False  # True if the tables were used since the cache last asked
        self.footer: Footer | None = None
        self.terms: list[tuple[int, int]] = []
        self.memberships: list[tuple[int, bytes]] = []

    @classmethod
    def sealed(cls, path: str, header: Header, footer: Footer, frames_end: int, file_bytes: int) -> Segment:
        """Return a segment whose footer was read back; its tables stay on disk."""
        made = cls(path, header)
        made.footer = footer
        made.last_index, made.last_seq, made.last_time = footer.last_index, footer.last_seq, footer.last_time
        made.first_seq, made.count, made.bytes, made.end = footer.first_seq, footer.count, footer.bytes, frames_end
        made.file_bytes = file_bytes
        # Releases without runs of terms had no other members either: all entries have one term.
        made.terms = footer.terms or [(footer.first_index, footer.last_term)]
        made.tables = None
        return made

    @property
    def newest(self) -> tuple[int, int, int]:
        """Return (index of the newest entry, first index of the segment, offset where that entry's frame ends)."""
        return self.last_index, self.first_index, self.end

    def release(self) -> None:
        """Free the tables; the cache holds only those of sealed segments."""
        assert self.footer is not None
        self.tables = None

    def asked(self) -> bool:
        used, self.used = self.used, False
        return used

    def place(self, first_seq: int, offsets: Sequence[int], lengths: Sequence[int], last_time: int) -> None:
        """Add the places of contiguous messages. Invariant: called once for each, in order, and only while open."""
        assert self.tables is not None
        assert self.footer is None
        if not self.count:
            self.first_seq = first_seq  # a purge of the empty end may have moved it since the header was written
        self.tables.extend(first_seq, offsets, lengths)
        self.count += len(lengths)
        self.bytes += sum(lengths)
        self.last_seq = first_seq + len(lengths) - 1
        self.last_time = last_time


def segment_name(first_index: int) -> str:
    """Return the file name of the segment that begins with entry `first_index`."""
    return f"{first_index:020d}{SUFFIX}"


def is_segment_name(name: str) -> bool:
    """Return True if `name` is a file name that `segment_name` returns."""
    return len(name) == _NAME_LENGTH and name.endswith(SUFFIX) and name[:20].isdecimal() and name.isascii()


def first_index_of(name: str) -> int:
    """Return the index of the first entry of the segment with this file name."""
    return int(name[:20])


def encode_segment_header(header: Header, version: int = VERSION) -> bytes:
    """Return the first 64 bytes of a segment."""
    fields = (_MAGIC, version, header.first_index, header.first_seq, header.created_ns, header.salt)
    crc = crc32(_HEADER.pack(*fields, 0)[:-4])
    return _HEADER.pack(*fields, crc).ljust(HEADER_SIZE, b"\0")


def decode_segment_header(data: bytes) -> Header | str:
    """Return the header in the first bytes of a segment, or a description of the damage."""
    if len(data) < HEADER_SIZE:
        return f"the segment header is {len(data)} bytes long instead of {HEADER_SIZE}"
    magic, version, first_index, first_seq, created_ns, salt, crc = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        return "this is not a segment"
    if crc32(data[: _HEADER.size - 4]) != crc:
        return "the crc of the segment header does not match"
    if version not in (VERSION, PACKED_VERSION):
        return f"the segment has version {version}, this release reads {VERSION} and {PACKED_VERSION}"
    return Header(first_index, first_seq, created_ns, salt)


def is_packed(data: bytes) -> bool:
    """Return True if the first bytes of a segment say that its frames are compressed."""
    return data[:4] == _MAGIC and int.from_bytes(data[4:8], "little") == PACKED_VERSION


def encode_footer(footer: Footer, tables: SegmentPlaces, frames_end: int) -> list[bytes]:
    """Return the pieces that follow the frames of a sealed segment, which end at offset `frames_end`."""
    offsets, lengths = tables.offsets.tobytes(), tables.lengths.tobytes()
    metadata = msgspec.msgpack.encode(footer)
    trailer = encode_trailer(frames_end, len(tables), crc32(lengths, crc32(offsets)), metadata)
    return [offsets, lengths, metadata, trailer]


def encode_trailer(tables_at: int, rows: int, tables_crc: int, metadata: bytes) -> bytes:
    """Return the last bytes of a sealed segment, whose tables begin at offset `tables_at`."""
    fields = struct.pack("<QIII", tables_at, rows, len(metadata), tables_crc)
    return fields + struct.pack("<I4s", crc32(fields, crc32(metadata)), _FOOTER_MAGIC)


class SealedEnd(msgspec.Struct, frozen=True):
    """The end of a sealed segment: its metadata, the end of its frames (in the plain file, if `packing` says that they
    are compressed), and the place of its tables."""

    footer: Footer
    frames_end: int
    tables_at: int
    rows: int
    tables_crc: int
    file_bytes: int
    packing: Packing | None = None


def read_end(files: Files, fd: int) -> SealedEnd | None:
    """Return the metadata of a sealed segment; None if the file does not end in an undamaged footer."""
    size = files.size(fd)
    return _end_of(size, lambda offset: files.read_at(fd, size - offset, offset))


def decode_end(content: bytes) -> SealedEnd | None:
    """Return the metadata of a sealed segment from the content of its file; None without an undamaged footer."""
    return _end_of(len(content), lambda offset: content[offset:])


def _end_of(size: int, read_from: Callable[[int], bytes]) -> SealedEnd | None:
    if size < HEADER_SIZE + TRAILER_SIZE:
        return None
    tail = read_from(max(0, size - _TAIL_GUESS))
    trailer = tail[-TRAILER_SIZE:]
    if len(trailer) < TRAILER_SIZE:
        return None
    tables_at, rows, metadata_length, tables_crc, crc, magic = _TRAILER.unpack(trailer)
    metadata_at = tables_at + 8 * rows
    if magic != _FOOTER_MAGIC or tables_at < HEADER_SIZE or metadata_at + metadata_length + TRAILER_SIZE != size:
        return None
    if metadata_length + TRAILER_SIZE > len(tail):
        tail = read_from(metadata_at)
    metadata = tail[-TRAILER_SIZE - metadata_length : -TRAILER_SIZE]
    if crc32(trailer[:-8], crc32(metadata)) != crc:
        return None
    try:
        footer = _FOOTER.decode(metadata)
        packing = _PACKED.decode(metadata).packing
    except DECODE_ERRORS:
        return None
    frames_end = packing.frames_end if packing is not None else tables_at
    return SealedEnd(footer, frames_end, tables_at, rows, tables_crc, size, packing)


def read_tables(files: Files, fd: int, path: str, end: SealedEnd) -> SegmentPlaces:
    """Return the tables of a sealed segment. Raise CorruptLog when they are damaged."""
    data = files.read_at(fd, 8 * end.rows, end.tables_at)
    runs = Runs.of(end.footer.runs)
    if len(data) != 8 * end.rows or crc32(data) != end.tables_crc or runs.rows != end.rows:
        raise CorruptLog(path, end.tables_at, "the tables in the footer of this sealed segment are damaged")
    offsets, lengths = array("I"), array("I")
    offsets.frombytes(data[: 4 * end.rows])
    lengths.frombytes(data[4 * end.rows :])
    return SegmentPlaces(runs, offsets, lengths)


def read_footer(path: str, files: Files | None = None) -> tuple[Footer, SegmentPlaces, int]:
    """Return the footer of the sealed segment at `path`, its tables, and the offset where its frames end.

    Raise CorruptLog when there is no undamaged footer.
    """
    files = files or Files()
    with files.opened(path) as fd, naming(path):
        end = read_end(files, fd)
        if end is None:
            at = max(0, files.size(fd) - TRAILER_SIZE)
            raise CorruptLog(path, at, "the footer of this sealed segment is damaged")
        return end.footer, read_tables(files, fd, path, end), end.frames_end


def iter_frames(buf: bytes, path: str, header: Header, end: int) -> Iterator[tuple[Frame, int]]:
    """Yield every frame of a segment's content with the offset of its body; `end` is where the frames end.

    For bytes that must be intact: raise CorruptLog at the first frame that is damaged or out of order.
    """
    offset, index = HEADER_SIZE, header.first_index
    while offset < end:
        frame = decode_frame(buf, offset, end, header.salt)
        if isinstance(frame, str):
            raise CorruptLog(path, offset, frame)
        if frame.index != index:
            raise CorruptLog(path, offset, f"the frame has index {frame.index} where {index} belongs")
        yield frame, offset + FRAME_HEADER
        offset += FRAME_HEADER + len(frame.body)
        index += 1


def record_spans(body: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (sequence, offset in the body, length) of each record of a MESSAGES body whose crc was already checked."""
    head = struct.Struct("<4xQ8xHHI2x").unpack_from
    offset, end = 0, len(body)
    while offset < end:
        seq, subject_length, flags, data_length = head(body, offset)
        length: int = FIXED + subject_length + data_length
        if flags:
            length += 4 + int.from_bytes(body[offset + FIXED : offset + FIXED + 4], "little")
        yield seq, offset, length
        offset += length


def place_body(segment: Segment, body: bytes, at: int) -> None:
    """Add the records of a MESSAGES body at offset `at` to the tables of an open segment."""
    first, next_seq = 0, 0
    offsets: list[int] = []
    lengths: list[int] = []
    last_time = segment.last_time
    for seq, offset, length in record_spans(body):
        if seq != next_seq and lengths:
            segment.place(first, offsets, lengths, last_time)
            offsets, lengths = [], []
        if not lengths:
            first = seq
        offsets.append(at + offset)
        lengths.append(length)
        last_time = int.from_bytes(body[offset + TIME_AT : offset + TIME_AT + 8], "little", signed=True)
        next_seq = seq + 1
    if lengths:
        segment.place(first, offsets, lengths, last_time)
