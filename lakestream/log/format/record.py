"""One stored message as bytes.

Belongs here: the record layout and nothing around it. Little-endian:

    u32 crc     of everything after it
    u64 seq
    i64 time    ns since the epoch
    u16 subject length
    u16 flags   bit 0: a header block is present
    u32 data length
    u16 -       reserved, 0
    [u32 header length, if flagged]
    subject, header block, data

The fixed part is 30 bytes, 34 with headers, so that a record's length is exactly what nats-server 2.15 accounts for
the message (docs/internals/streams.md#limits): `state.bytes` is a sum of record lengths.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise

import msgspec

from lakestream import native
from lakestream.log.format.errors import CorruptRecord
from lakestream.native import encode_record as encode_record
from lakestream.native.plain import FIXED as FIXED
from lakestream.native.plain import FLAG_HEADER as FLAG_HEADER
from lakestream.native.plain import MAX_SUBJECT as MAX_SUBJECT

TIME_AT, SUBJECT_LENGTH_AT, FLAGS_AT = 12, 20, 22
"""Offsets of single fields, for code that needs one field of many records."""

MAX_FIXED = FIXED + 4
"""Maximum number of bytes of a record beside subject, header block and data."""


class Record(msgspec.Struct, frozen=True, gc=False):
    """A stored message: stream sequence, store time in ns, raw subject, raw header block (`b""` = none), payload."""

    seq: int
    time_ns: int
    subject: bytes
    header: bytes
    data: bytes


def record_length(subject: bytes, header: bytes, data: bytes) -> int:
    """Return the bytes that `encode_record` makes of this message, which is also its share of `state.bytes`."""
    if header:
        return FIXED + 4 + len(subject) + len(header) + len(data)
    return FIXED + len(subject) + len(data)


def contiguous(records: Iterable[Record]) -> Iterator[tuple[int, list[bytes], list[int], int]]:
    """Yield (first sequence, subjects, lengths, time of the last) of each part of records without gaps."""
    subjects: list[bytes] = []
    lengths: list[int] = []
    first = following = last_time = 0
    for record in records:
        if record.seq != following and subjects:
            yield first, subjects, lengths, last_time
            subjects, lengths = [], []
        if not subjects:
            first = record.seq
        subjects.append(record.subject)
        lengths.append(record_length(record.subject, record.header, record.data))
        last_time, following = record.time_ns, record.seq + 1
    if subjects:
        yield first, subjects, lengths, last_time


def decode_record(buf: bytes, offset: int = 0, verify: bool = True) -> Record:
    """Decode the record at `offset`. Raise CorruptRecord when it is cut short or, with `verify`, its crc is wrong."""
    try:
        return native.decode_record(Record, buf, offset, len(buf), verify)[0]
    except ValueError as error:
        raise CorruptRecord(*error.args) from None


def iter_records(buf: bytes, start: int = 0) -> Iterator[Record]:
    """Yield the records that lie back to back in `buf[start:]`. Raise CorruptRecord at a damaged one."""
    offset, stop = start, len(buf)
    try:
        while offset < stop:
            record, offset = native.decode_record(Record, buf, offset, stop, True)
            yield record
    except ValueError as error:
        raise CorruptRecord(*error.args) from None


class Columns(msgspec.Struct, gc=False):
    """Records that lie back to back, with consecutive sequences from `first_seq` on, without their payloads.

    `headers` has (place, header block, time) of those that have one; times in ns.
    """

    first_seq: int
    subjects: list[bytes]
    lengths: list[int]
    headers: list[tuple[int, bytes, int]]
    last_time: int


def columns(buf: bytes) -> Columns | None:
    """Return the records of a frame whose crc was checked, or None if their sequences have gaps.

    Raise CorruptRecord when one does not end where the buffer does.
    """
    try:
        found = native.split_records(buf)
    except ValueError as error:
        raise CorruptRecord(*error.args) from None
    return None if found is None else Columns(*found)


def decode_spans(buf: bytes, offsets: Iterable[int], lengths: Iterable[int]) -> list[Record]:
    """Decode the records at `offsets`, each `lengths` bytes long.

    Raise CorruptRecord when a crc or a length does not fit.
    """
    try:
        return native.decode_spans(Record, buf, offsets, lengths)
    except ValueError as error:
        raise CorruptRecord(*error.args) from None


def time_of(record: bytes, offset: int = 0) -> int:
    """Return the time when an encoded message at an offset was stored, in ns."""
    return int.from_bytes(record[offset + TIME_AT : offset + TIME_AT + 8], "little", signed=True)


def times_of(buf: bytes, lengths: Iterable[int]) -> list[int]:
    """Return the times, in ns, of records of these lengths that lie back to back in `buf`."""
    offsets = accumulate(lengths, initial=0)
    return [int.from_bytes(buf[at + TIME_AT : at + TIME_AT + 8], "little", signed=True) for at, _ in pairwise(offsets)]


def subjects_at(buf: bytes, offsets: Iterable[int]) -> list[bytes]:
    """Return the subjects of the records at `offsets`, without decoding the rest of them."""
    subjects: list[bytes] = []
    append = subjects.append
    for offset in offsets:
        at = offset + FIXED + 4 if buf[offset + FLAGS_AT] & FLAG_HEADER else offset + FIXED
        append(buf[at : at + (buf[offset + SUBJECT_LENGTH_AT] | buf[offset + SUBJECT_LENGTH_AT + 1] << 8)])
    return subjects
