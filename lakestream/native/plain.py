"""Loops over many messages, in Python.

Belongs here: the functions of `lakestream.native`, for machines without the compiled module, and what each of them
returns. `fast.pyx` has the same functions, compiled: same results, same exceptions. Nothing of the server is known
here: arguments and results are bytes, numbers and lists of them (but for `renew` and `sync_paths`).

A run of messages is columns: the read buffer, the subjects, `places` with four numbers a message (offset and length of
the reply, offset and length of the payload; a message without a reply has 0 and 0 there), and `heads` with the length
of each header block, which lies before its payload; `heads` is empty if no message has one.
"""

from __future__ import annotations

import gc
import os
import re
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, chain, islice, repeat
from operator import add, gt
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar
from zlib import crc32 as crc32

if TYPE_CHECKING:
    from mmap import mmap

    from _typeshed import ReadableBuffer as Buffer

T = TypeVar("T")
Slots: TypeAlias = "bytearray | mmap"
"""Memory that can be written."""
Column: TypeAlias = tuple[int, int, bytes | None, bytes, bytes]
"""Rows, NULLs, their bitmap, fixed values or ends of parts, bytes of strings: what Arrow makes an array of."""
MakeRecord: TypeAlias = Callable[[int, int, bytes, bytes, bytes], T]
"""Constructor of a record from its sequence, time in ns, subject, header block and data."""

FIXED = 30
"""Bytes of a record before its subject, when there is no header block (lakestream/log/format/record.py)."""
FLAG_HEADER = 1
MAX_SUBJECT = 0xFFFF
"""Longest subject of a record in bytes."""
FIELDS = 4
"""Numbers of one message in `places`."""
MAX_HEAD = 0xFFFF
"""Longest header block of a message in a run."""
MAX_OWN = 32
"""Names of `Nats-` headers in a run."""

ID_CHUNKS = 1 << 12
"""Number of chunks whose ids one table can have."""

_TAG = 0xFFFFF000  # the bits of a slot that are those of an id's hash
_PRIME = (1 << 61) - 1
_MAX_OFFSET = 0xFFFFFFFF
_MAX_SEQ = (1 << 64) - 1
_CR, _LF = 13, 10
_LINE = 10
"""Bytes of the first line of a header block."""
_unpack_head = struct.Struct("<IQqHHIH").unpack_from
_unpack_u32 = struct.Struct("<I").unpack_from
_SECOND = 19
"""Bytes of a time as text, without its fraction."""
_LINES = (
    b"%b%bNats-Subject: %b\r\nNats-Sequence: %d\r\nNats-Time-Stamp: %b%b\r\n"
    b"Nats-Num-Pending: %d\r\nNats-Last-Sequence: %d\r\n\r\n"
)
_pack_u32 = struct.Struct("<I").pack
_pack_rest = struct.Struct("<QqHHIH").pack


@lru_cache(maxsize=8)
def _command(max_word: int, subjects: bytes, replies: bytes, mark: int, headers: bool) -> re.Pattern[bytes]:
    """Return the expression of a PUB or HPUB that `parse_run` takes, up to its header block or payload."""
    word, other = rb"[!-\xff]{1,%d}+" % max_word, rb"[^\x00-\x20%b]{1,%d}+" % (re.escape(bytes((mark,))), max_word)
    without = [rb"(?!%b)" % re.escape(head) if head else b"" for head in (subjects, replies)]
    verb, head = (rb"HPUB", rb"([0-9]{1,9}) ") if headers else (rb"PUB", rb"()")
    parts = (verb, without[0], word, without[1], other, head)
    return re.compile(rb"%b %b(%b) (?:%b(%b) )?%b([0-9]{1,9})\r\n" % parts)


def parse_run(
    buf: bytes,
    position: int,
    max_word: int,
    max_payload: int,
    headers: bool,
    subjects: bytes,
    replies: bytes,
    mark: int,
    header: bytes,
) -> tuple[int, list[bytes], list[int], array[int], int, array[int], list[bytes]] | None:
    """Return the leading run of plain PUB and HPUB commands at `position`, or None if there is none.

    A command is plain if it has the form that most clients write: `PUB`, single blanks, CR LF, no control character in
    a word, sizes of at most nine digits, and if it is complete; `HPUB` with a header block of at most MAX_HEAD bytes
    that begins with `NATS/1.0` and CR LF. The run ends before any other command, a word above `max_word` bytes, and
    header block and payload above `max_payload` together. Raise IndexError for a negative position.

    Args:
        headers: take HPUB too.
        subjects, replies: the run also ends before a subject, or a reply, that begins with this; b"": with none.
        mark: a byte; the run also ends before a reply that contains it. 0: none.
        header: name of a `Nats-` header; the run also ends before a message that has it.

    Returns:
        The position after the run; the subject of each message, where repeated ones mostly share one object; the
        messages whose subject differs from the one before (the first is 0); `places`; the bytes of all header blocks
        and payloads; `heads`; the names of all headers that begin with `Nats-`, at most MAX_OWN.
    """
    if position < 0:
        raise IndexError(f"position {position}")
    matches = [
        _command(max_word, subjects, replies, mark, each).match for each in ((False, True) if headers else (False,))
    ]
    stop = min(len(buf), _MAX_OFFSET)
    found_subjects: list[bytes] = []
    starts: list[int] = []
    places: list[int] = []
    heads: list[int] = []
    own: dict[bytes, None] = {}
    seen: dict[bytes, bytes] = {}
    last = b""
    payload_bytes = 0
    while (found := next(filter(None, (match(buf, position, stop) for match in matches)), None)) is not None:
        subject, block, digits = found.group(1, 3, 4)
        begin, head = found.end(), int(block or 0)
        at, end = begin + head, begin + int(digits)
        if end + 1 >= stop or buf[end] != _CR or buf[end + 1] != _LF or end - begin > max_payload or at > end:
            break
        if block and not (_LINE <= head <= MAX_HEAD and _gather_own(buf[begin:at], own, header)):
            break
        if subject != last:
            last = seen.setdefault(subject, subject)
            starts.append(len(found_subjects))
        found_subjects.append(last)
        reply_at, reply_end = found.span(2)
        places += (reply_at, reply_end - reply_at, at, end - at) if reply_at > 0 else (0, 0, at, end - at)
        heads.append(head)
        payload_bytes += end - begin
        position = end + 2
    if not found_subjects:
        return None
    blocks = array("I", heads if any(heads) else ())
    return position, found_subjects, starts, array("I", places), payload_bytes, blocks, list(own)


def _gather_own(block: bytes, own: dict[bytes, None], apart: bytes) -> bool:
    """Add the names of the `Nats-` headers of a block to `own`. Return False if it has the header `apart`, or there are
    too many names, or it begins otherwise."""
    if not block.startswith(b"NATS/1.0\r\n"):
        return False
    for line in block.split(b"\r\n")[1:]:
        name, colon, _ = line.partition(b":")
        if colon and name.startswith(b"Nats-") and name not in own:
            if name == apart or len(own) >= MAX_OWN:
                return False
            own[name] = None
    return True


def header_values(
    buf: bytes, places: array[int], heads: array[int], begin: int, end: int, name: bytes
) -> list[bytes | None]:
    """Return the value of a header in each of the messages `begin` to `end` of a run, None for one without it.

    Blanks before a value are skipped; of several lines with the name the first counts. Raise IndexError for messages
    that are not there.
    """
    _check(buf, places, begin, end, _MAX_OFFSET, heads)
    if not heads:
        return [None] * (end - begin)
    key, values = b"\r\n" + name + b":", list[bytes | None]()
    for head, (_, _, at, _) in zip(heads[begin:end], _rows(places, begin, end), strict=True):
        _, found, rest = buf[at - head : at].partition(key)
        values.append(rest.partition(b"\r\n")[0].lstrip(b" ") if found else None)
    return values


def choose_run(
    buf: bytes, subjects: list[bytes], places: array[int], heads: array[int], positions: list[int]
) -> tuple[bytes, list[bytes], list[int], array[int], int, array[int]]:
    """Return some messages of a run as columns over a buffer of their own: the buffer, subjects, those whose subject
    differs from the one before, `places`, the bytes of their header blocks and payloads, and `heads`.

    Raise IndexError for messages that are not there.
    """
    count = len(places) // FIELDS
    _check(buf, places, 0, count, _MAX_OFFSET)
    _check(buf, places, 0, min(len(heads), count), _MAX_OFFSET, heads)
    messages = min(len(subjects), count, len(heads) or count)
    chosen, starts, some, blocks = list[bytes](), list[int](), array("I"), array("I")
    parts: list[bytes] = []
    end = size = 0
    for at, position in enumerate(positions):
        if not 0 <= position < messages:
            raise IndexError(f"message {position} of {messages}")
        if not at or subjects[position] != chosen[-1]:
            starts.append(at)
        chosen.append(subjects[position])
        reply_at, reply_length, payload_at, length = places[position * FIELDS : (position + 1) * FIELDS]
        head = heads[position] if heads else 0
        parts += (buf[reply_at : reply_at + reply_length], buf[payload_at - head : payload_at + length])
        some.extend((end if reply_length else 0, reply_length, end + reply_length + head, length))
        blocks += heads[position : position + 1]
        end, size = end + reply_length + head + length, size + head + length
    return b"".join(parts), chosen, starts, some, size, blocks


def encode_record(seq: int, time_ns: int, subject: bytes, header: bytes, data: bytes) -> bytes:
    """Encode one message as a record. `time_ns` counts from the epoch; `header` is the raw block, `b""` for none.

    Raise ValueError for a subject above MAX_SUBJECT bytes, OverflowError for other fields that do not fit.
    """
    if len(subject) > MAX_SUBJECT:
        raise ValueError(f"a subject of {len(subject)} bytes")
    try:
        head = _pack_rest(seq, time_ns, len(subject), FLAG_HEADER if header else 0, len(data), 0)
        head += (_pack_u32(len(header)) if header else b"") + subject + header
    except struct.error as error:
        raise OverflowError(str(error)) from None
    return b"".join((_pack_u32(crc32(data, crc32(head))), head, data))


def encode_run(
    buf: bytes,
    subjects: list[bytes],
    places: array[int],
    heads: array[int],
    begin: int,
    end: int,
    seq: int,
    time_ns: int,
    step_ns: int,
) -> tuple[bytes, list[int]]:
    """Encode the messages `begin` to `end` of a run as records, back to back.

    Raise ValueError for a subject above MAX_SUBJECT bytes, IndexError for messages that are not there.

    Args:
        seq: stream sequence of message `begin`.
        time_ns: store time of message `begin` in ns.
        step_ns: time between two of them.

    Returns:
        The records; the length of each in bytes.
    """
    _check(buf, places, begin, end, len(subjects), heads)
    parts: list[bytes] = []
    lengths: list[int] = []
    rows = zip(subjects[begin:end], _rows(places, begin, end), heads[begin:end] or repeat(0), strict=False)
    for subject, (_, _, at, size), head in rows:
        parts.append(encode_record(seq, time_ns, subject, buf[at - head : at], buf[at : at + size]))
        lengths.append(len(parts[-1]))
        seq, time_ns = seq + 1, time_ns + step_ns
    return b"".join(parts), lengths


def encode_rows(
    order: Buffer,
    seqs: Buffer,
    times: Buffer,
    subject_ends: Buffer,
    subjects: Buffer,
    head_ends: Buffer,
    heads: Buffer,
    data_ends: Buffer,
    data: Buffer,
) -> tuple[bytes, array[int], array[int]]:
    """Return rows of columns as records that lie back to back, their offsets and their lengths.

    The compiled function releases the interpreter's lock. Raise ValueError for a row that is no message, and for
    columns of different lengths.

    Args:
        order: numbers of the rows (64 bits), in the order of the records.
        seqs, times: 64 bits a row.
        subject_ends, subjects: one offset more than rows (32 bits), and the text that they cut; `heads` and `data` too.
        head_ends: empty if no row has a header block.
    """
    numbers = [memoryview(each).cast("B").cast("q").tolist() for each in (order, seqs, times)]
    ends = [memoryview(each).cast("B").cast("i").tolist() for each in (subject_ends, head_ends, data_ends)]
    texts = [bytes(each) for each in (subjects, heads, data)]
    rows = len(numbers[1])
    if len(numbers[2]) != rows or {len(ends[0]), len(ends[2]), len(ends[1]) or rows + 1} != {rows + 1}:
        raise ValueError("the columns have different lengths")
    encoded: list[bytes] = []
    for row in numbers[0]:
        if not 0 <= row < rows:
            raise ValueError("a row is no message")
        spans = [(each[row], each[row + 1]) if each else (0, 0) for each in ends]
        if not all(0 <= begin <= end <= len(text) for (begin, end), text in zip(spans, texts, strict=True)):
            raise ValueError("a row is no message")
        subject, head, payload = (text[begin:end] for (begin, end), text in zip(spans, texts, strict=True))
        if len(subject) > MAX_SUBJECT:
            raise ValueError("a row is no message")
        encoded.append(encode_record(numbers[1][row] & _MAX_SEQ, numbers[2][row], subject, head, payload))
    lengths = array("I", map(len, encoded))
    return b"".join(encoded), array("I", accumulate(lengths[:-1], initial=0) if lengths else ()), lengths


def decode_record(make: MakeRecord[T], buf: bytes, offset: int, stop: int, verify: bool) -> tuple[T, int]:
    """Return `make` of the fields of the record at `offset`, and the position after it.

    Raise ValueError with an offset and a text when the record does not end by `stop` or, with `verify`, its crc is
    wrong; IndexError for positions outside `buf`.
    """
    if offset < 0 or stop > len(buf):
        raise IndexError(f"{offset} to {stop} of {len(buf)} bytes")
    crc, seq, time_ns, subject_at, header_at, data_at, end = _read(buf, offset, stop)
    if verify and crc32(buf[offset + 4 : end]) != crc:
        raise ValueError(offset, "its crc does not match")
    return make(seq, time_ns, buf[subject_at:header_at], buf[header_at:data_at], buf[data_at:end]), end


def decode_spans(make: MakeRecord[T], buf: bytes, offsets: Iterable[int], lengths: Iterable[int]) -> list[T]:
    """Return `make` of each of the records at `offsets`, which are `lengths` bytes long.

    Raise ValueError with an offset and a text when a crc or a length does not fit.
    """
    records: list[T] = []
    append, unpack_head, crc_of, size = records.append, _unpack_head, crc32, len(buf)
    for offset, length in zip(offsets, lengths, strict=True):
        if not (0 <= offset <= size and 0 <= length <= size - offset):
            raise ValueError(offset, f"{length} bytes do not lie in a buffer of {size}")
        if length >= FIXED:
            crc, seq, time_ns, subject_length, flags, data_length, _ = unpack_head(buf, offset)
            subject_end, end = offset + FIXED + subject_length, offset + length
            if not flags and subject_end + data_length == end and crc_of(buf[offset + 4 : end]) == crc:
                append(make(seq, time_ns, buf[offset + FIXED : subject_end], b"", buf[subject_end:end]))
                continue
        record, end = decode_record(make, buf, offset, offset + length, True)
        if end != offset + length:
            raise ValueError(offset, f"it has {end - offset} bytes, not {length}")
        append(record)
    return records


def split_records(buf: bytes) -> tuple[int, list[bytes], list[int], list[tuple[int, bytes, int]], int] | None:
    """Return the columns of records that lie back to back, without their payloads, or None if sequences have gaps.

    The crc is not verified. Raise ValueError with an offset and a text when the last one does not end where `buf` does.

    Returns:
        The first sequence; the subjects, where repeated ones may share one object; the lengths of the records in bytes;
        (place, header block, time in ns) of those that have a header block; the time of the last one in ns.
    """
    subjects: list[bytes] = []
    lengths: list[int] = []
    headers: list[tuple[int, bytes, int]] = []
    unpack_head, stop = _unpack_head, len(buf)
    offset, expected, first_seq, last_time = 0, -1, 0, 0
    while stop - offset >= FIXED:
        _, seq, last_time, subject_length, flags, data_length, _ = unpack_head(buf, offset)
        if seq != expected:
            if subjects:
                _read(buf, offset, stop)  # raises if this record is damaged as well
                return None
            first_seq = seq
        expected = seq + 1
        subject_at = offset + FIXED
        header_at = subject_at + subject_length
        end = header_at + data_length
        if flags:
            _, _, _, subject_at, header_at, data_at, end = _read(buf, offset, stop)
            if subject_at != offset + FIXED:
                headers.append((len(subjects), buf[header_at:data_at], last_time))
        subjects.append(buf[subject_at:header_at])
        lengths.append(end - offset)
        offset = end
    if offset != stop:
        _read(buf, offset if offset < stop else offset - lengths[-1], stop)
    return first_seq, subjects, lengths, headers, last_time


def _read(buf: bytes, offset: int, stop: int) -> tuple[int, int, int, int, int, int, int]:
    """Return crc, sequence, time, and the positions of subject, header block, data and end of a record."""
    if stop - offset < FIXED:
        raise ValueError(offset, f"{stop - offset} bytes are left where at least {FIXED} belong")
    crc, seq, time_ns, subject_length, flags, data_length, _ = _unpack_head(buf, offset)
    subject_at, header_length = offset + FIXED, 0
    if flags & FLAG_HEADER:
        if stop - subject_at < 4:
            raise ValueError(offset, "it is cut short")
        (header_length,) = _unpack_u32(buf, subject_at)
        subject_at += 4
    header_at = subject_at + subject_length
    data_at = header_at + header_length
    end = data_at + data_length
    if end > stop:
        raise ValueError(offset, f"it claims {end - offset} bytes where {stop - offset} are left")
    return crc, seq, time_ns, subject_at, header_at, data_at, end


def frame_run(
    buf: bytes, subjects: list[bytes], places: array[int], heads: array[int], begin: int, end: int, sid: bytes
) -> bytes:
    """Return the messages `begin` to `end` of a run as MSG and HMSG frames for the subscription `sid`, or as commands.

    Raise IndexError for messages that are not there.

    Args:
        sid: b"": commands. With blanks between several ids, each message is framed for all of them.
    """
    _check(buf, places, begin, end, len(subjects), heads)
    verb, several = (b"MSG", [b" " + each for each in sid.split(b" ")]) if sid else (b"PUB", [b""])
    parts: list[bytes] = []
    rows = zip(subjects[begin:end], _rows(places, begin, end), heads[begin:end] or repeat(0), strict=False)
    for subject, (reply_at, reply_length, at, size), head in rows:
        reply = buf[reply_at : reply_at + reply_length] + b" " if reply_length else b""
        for addressed in several:
            if head:
                verbs = (b"H" + verb, subject, addressed, reply, head, head + size, buf[at - head : at + size])
                parts.append(b"%b %b%b %b%d %d\r\n%b\r\n" % verbs)
            else:
                verbs_of = (verb, subject, addressed, reply, size, buf[at : at + size])
                parts.append(b"%b %b%b %b%d\r\n%b\r\n" % verbs_of)
    return b"".join(parts)


def frame_acks(
    buf: bytes, places: array[int], begin: int, end: int, head: bytes, prefix: bytes, seq: int, sid: bytes
) -> tuple[bytes, int, int, int]:
    """Return the pub acks of messages of a run as MSG frames for the subscription `sid`, or as PUB commands without.

    An ack goes to the reply of its message and consists of `prefix`, the message's sequence and `}`. Messages without
    a reply get none. The first message whose reply is not `head` and one token more ends the frames.

    Args:
        seq: stream sequence of message `begin`.
        sid: b"": PUB commands.

    Returns:
        The frames; their number; the bytes of their payloads; the message that ended them, else `end`.
    """
    _check(buf, places, begin, end)
    parts: list[bytes] = []
    payload_bytes, length = 0, len(head)
    verb, addressed = (b"MSG", b" " + sid) if sid else (b"PUB", b"")
    # The size of a payload, and the sequence from which it is a byte more.
    size, longer = len(prefix) + len(str(seq)) + 1, 10 ** len(str(seq))
    for at, (reply_at, reply_length, _, _) in enumerate(_rows(places, begin, end), begin):
        if reply_length:
            reply_end = reply_at + reply_length
            if (
                reply_length <= length
                or not buf.startswith(head, reply_at)
                or buf.find(b".", reply_at + length, reply_end) >= 0
            ):
                return b"".join(parts), len(parts), payload_bytes, at
            payload_bytes += size
            parts.append(b"%b %b%b %d\r\n%b%d}\r\n" % (verb, buf[reply_at:reply_end], addressed, size, prefix, seq))
        seq += 1
        if seq == longer:
            size, longer = size + 1, longer * 10
    return b"".join(parts), len(parts), payload_bytes, end


def check_records(buf: bytes, offsets: array[int], lengths: array[int]) -> None:
    """Raise ValueError(offset, reason) for the first of these records whose CRC does not match."""
    _check_records(offsets, lengths, 0, len(offsets))
    for offset, length in zip(offsets, lengths, strict=True):
        body = buf[offset + 4 : offset + length]
        if length < FIXED or len(body) != length - 4:
            raise ValueError(offset, f"{length} bytes do not lie in a buffer of {len(buf)}")
        if crc32(body) != int.from_bytes(buf[offset : offset + 4], "little"):
            raise ValueError(offset, "its crc does not match")


def record_subjects(buf: bytes, offsets: array[int], lengths: array[int]) -> list[bytes]:
    """Return the subject of each record; repeated ones mostly share one object. Raise as `frame_deliveries`."""
    seen: dict[bytes, bytes] = {}
    return [seen.setdefault(one[2], one[2]) for one in _stored(buf, offsets, lengths, 0, len(offsets))]


def page_header(content: bytes) -> tuple[int, int, int, int, int, int, int, int, int]:
    """Decode the header of a Parquet page, in Thrift's compact protocol, with which `content` begins.

    Returns:
        Its length; type of the page; sizes of the content, decompressed and in the file; CRC-32; number of values;
        encodings of these, and of levels of definition and repetition. -1 for what it lacks, 0 values in a dictionary.

    Raises:
        IndexError: it is cut short. ValueError: it is none.
    """
    own, first, second = dict[int, int](), dict[int, int](), dict[int, int]()
    length = _fields(content, 0, own, {5: first, 8: second}, 0)
    kind, crc = own.get(1, -1), own.get(4)
    counts = {0: first.get(1, -1), 2: 0, 3: second.get(1, -1)}
    encodings = first if kind == 0 else {}
    return (
        length,
        kind,
        own.get(2, -1),
        own.get(3, -1),
        -1 if crc is None else crc & 0xFFFFFFFF,
        counts.get(kind, -1),
        encodings.get(2, -1),
        encodings.get(3, -1),
        encodings.get(4, -1),
    )


def _fields(content: bytes, at: int, found: dict[int, int], within: dict[int, dict[int, int]], depth: int) -> int:
    """Decode the numbers of a struct, and of the structs in it that are wanted; return the place behind it."""
    field = 0
    if depth > 8:
        raise ValueError("it has structs within structs")
    while head := content[at]:
        at += 1
        kind = head & 15
        if head >> 4:
            field += head >> 4
        else:
            field, at = _zigzag(content, at)
        if not 0 < field < 0x8000:
            raise ValueError(f"it has a field {field}")
        if kind in (4, 5, 6):
            found[field], at = _zigzag(content, at)
        elif kind == 12:
            inner = within.get(field, {})
            inner.clear()
            at = _fields(content, at, inner, {}, depth + 1)
        elif kind == 8:
            size, at = _varint(content, at)
            at += size
        elif kind in (3, 7):
            at += 1 if kind == 3 else 8
        elif kind not in (1, 2):
            raise ValueError(f"it has a field of type {kind}")
    return at + 1


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise ValueError("it has a number of more than 64 bits")


def _zigzag(content: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(content, at)
    return value >> 1 ^ -(value & 1), at


def text_cells(page: bytes, at: int, places: Sequence[int]) -> list[bytes]:
    """Return the texts with these numbers, ascending, of those that lie one behind the other from `at` on, each behind
    its length in 32 bits (PLAIN in Parquet). Raise ValueError."""
    found, number, size = list[bytes](), 0, len(page)
    for place in places:
        while True:
            end = at + 4 + int.from_bytes(page[at : at + 4], "little")
            if at + 4 > size or end > size:
                raise ValueError(f"text {number} is cut short")
            text, at, number = page[at + 4 : end], end, number + 1
            if number > place:
                break
        found.append(text)
    return found


def split_names(packed: bytes) -> array[int]:
    """Return where each text of a MessagePack list of binary texts of 1 to 65,535 bytes begins, with its head, and
    where the last one ends, as an array of 'I'. Raise ValueError."""
    head, size = packed[:1], len(packed)
    if head and head[0] >> 4 == 9:
        at, count = 1, head[0] & 15
    elif size >= 3 and head == b"\xdc":
        at, count = 3, int.from_bytes(packed[1:3], "big")
    elif size >= 5 and head == b"\xdd":
        at, count = 5, int.from_bytes(packed[1:5], "big")
    else:
        raise ValueError("this is no list")
    if count > size:
        raise ValueError(f"{count} texts are not in {size} bytes")
    marks = array("I")
    for number in range(count):
        marks.append(at)
        if at + 2 < size and packed[at] == 0xC4:
            at += 2 + packed[at + 1]
        elif at + 3 < size and packed[at] == 0xC5:
            at += 3 + int.from_bytes(packed[at + 1 : at + 3], "big")
        else:
            raise ValueError(f"text {number} has another form")
    if at != size:
        raise ValueError(f"{count} texts are {at} bytes, not {size}")
    marks.append(at)
    return marks


def records_match(
    buf: bytes,
    offsets: array[int],
    lengths: array[int],
    begin: int,
    rows: Sequence[int],
    sizes: array[int],
    ids: array[int],
    packed: bytes,
    marks: array[int],
) -> bool:
    """Return True if the records from index `begin` on, as many as `rows`, have the sizes of those rows, and the
    subjects whose numbers are in `ids`: `packed` has them, `marks` are those of `split_names`. Hot. Raise as
    `frame_deliveries`, IndexError for a row or a number without a cell."""
    _check_records(offsets, lengths, begin, begin + len(rows))
    _check_records(ids, sizes, 0, len(ids))
    for row, at in zip(rows, range(begin, begin + len(rows)), strict=True):
        if not 0 <= row < len(ids):
            raise IndexError(f"row {row} of {len(ids)}")
        if lengths[at] != sizes[row]:
            return False
        start, end = marks[ids[row]], marks[ids[row] + 1]
        if not start + 3 <= end <= len(packed):
            raise IndexError(f"name {ids[row]} is not in {len(packed)} bytes")
        if (
            _stored(buf, offsets, lengths, at, at + 1)[0][2]
            != packed[start + (2 if packed[start] == 0xC4 else 3) : end]
        ):
            return False
    return True


def copy_records(
    buf: bytes, offsets: array[int], lengths: array[int], some: Sequence[int]
) -> tuple[bytes, array[int], array[int]]:
    """Return the records with these indexes back to back, where each begins, and their lengths. Hot.

    Raise IndexError for an index without a record, ValueError for a place that is not in `buf`, OverflowError for more
    bytes than an offset can have.
    """
    _check_records(offsets, lengths, 0, len(offsets))
    copies: list[bytes] = []
    for at in some:
        if not 0 <= at < len(offsets):
            raise IndexError(f"record {at} of {len(offsets)}")
        offset, length = offsets[at], lengths[at]
        if offset + length > len(buf):
            raise ValueError(offset, f"{length} bytes do not lie in a buffer of {len(buf)}")
        copies.append(buf[offset : offset + length])
    sizes = array("I", map(len, copies))
    return b"".join(copies), array("I", accumulate(sizes[:-1], initial=0) if copies else ()), sizes


def delivery_sizes(
    buf: bytes, offsets: array[int], lengths: array[int], begin: int, end: int, head: bytes, consumer: int, pending: int
) -> list[int]:
    """Return the bytes of subject, ack subject, header block and payload of each message of `frame_deliveries`; without
    ack subjects if `head` is empty. Raise as that does."""
    stored = _stored(buf, offsets, lengths, begin, end)
    sizes = [len(subject) + len(header) + len(data) for _, _, subject, header, data in stored]
    if not head:
        return sizes
    return [
        size + len(b"%b%d.%d.%d.%d" % (head, one[0], consumer + at, one[1], pending - at))
        for at, (size, one) in enumerate(zip(sizes, stored, strict=True))
    ]


def frame_deliveries(
    buf: bytes,
    offsets: array[int],
    lengths: array[int],
    begin: int,
    end: int,
    sid: bytes,
    head: bytes,
    consumer: int,
    pending: int,
) -> tuple[bytes, int]:
    """Return the records `begin` to `end` as MSG and HMSG frames for the subscription `sid`, and the bytes of their
    header blocks and payloads.

    The reply is the ack subject: `head`, stream sequence, consumer sequence, store time, and the messages that are
    left. Raise IndexError for records that are not there, ValueError(offset, reason) for one that its lengths do not
    fit.

    Args:
        offsets, lengths: place of each record in `buf`.
        consumer: consumer sequence of record `begin`.
        pending: messages that are left after record `begin`.
    """
    parts: list[bytes] = []
    size = 0
    for seq, time_ns, subject, header, data in _stored(buf, offsets, lengths, begin, end):
        n = len(header)
        count = n + len(data)
        size += count
        numbers = (subject, sid, head, seq, consumer, time_ns, pending)
        if n:
            parts.append(b"HMSG %b %b %b%d.%d.%d.%d %d %d\r\n%b%b\r\n" % (*numbers, n, count, header, data))
        else:
            parts.append(b"MSG %b %b %b%d.%d.%d.%d %d\r\n%b\r\n" % (*numbers, count, data))
        consumer += 1
        pending -= 1
    return b"".join(parts), size


def frame_direct(
    buf: bytes,
    offsets: array[int],
    lengths: array[int],
    begin: int,
    end: int,
    sid: bytes,
    subject: bytes,
    stream: bytes,
    pending: int,
    last_seq: int,
    second: Callable[[int], bytes],
) -> tuple[bytes, int]:
    """Return the records `begin` to `end` as the HMSG frames of a direct get, and the bytes of their header blocks and
    payloads.

    A header block is the stored one, then the lines `stream`, and those of subject, sequence, time, the messages that
    follow and the sequence before. Raise as `frame_deliveries`.

    Args:
        subject: the reply subject of the request.
        pending: messages that follow record `begin`.
        last_seq: sequence of the message before record `begin`, 0 for none.
        second: returns the second of a time in ns as text (RFC 3339), without a fraction.
    """
    parts: list[bytes] = []
    size, known, when = 0, None, b""
    for seq, time_ns, name, header, data in _stored(buf, offsets, lengths, begin, end):
        opening = b"NATS/1.0\r\n"
        if header:
            opening = header[:-2] if header.endswith(b"\r\n\r\n") else header
            opening = opening if opening.endswith(b"\r\n") else opening + b"\r\n"
        seconds, nanos = divmod(time_ns, 1_000_000_000)
        if seconds != known:
            known, when = seconds, second(time_ns)
            if len(when) != _SECOND:
                raise ValueError(when, "it is no second of RFC 3339")
        fraction = b".%09dZ" % nanos if nanos % 10 else (b".%09d" % nanos).rstrip(b"0").rstrip(b".") + b"Z"
        block = _LINES % (opening, stream, name, seq, when, fraction, pending, last_seq)
        pending, last_seq = pending - 1, seq
        count = len(block) + len(data)
        size += count
        parts.append(b"HMSG %b %b %d %d\r\n%b%b\r\n" % (subject, sid, len(block), count, block, data))
    return b"".join(parts), size


def _stored(
    buf: bytes, offsets: array[int], lengths: array[int], begin: int, end: int
) -> list[tuple[int, int, bytes, bytes, bytes]]:
    """Return sequence, time, subject, header block and payload of some records."""
    _check_records(offsets, lengths, begin, end)
    stored: list[tuple[int, int, bytes, bytes, bytes]] = []
    append, unpack, size = stored.append, _unpack_head, len(buf)
    for offset, length in zip(offsets[begin:end], lengths[begin:end], strict=True):
        stop = offset + length
        if stop > size:
            raise ValueError(offset, f"{length} bytes do not lie in a buffer of {size}")
        if length >= FIXED:
            _, seq, time_ns, subject_length, flags, data_length, _ = unpack(buf, offset)
            subject_at, data_at = offset + FIXED, stop - data_length
            if not flags and subject_at + subject_length == data_at:
                append((seq, time_ns, buf[subject_at:data_at], b"", buf[data_at:stop]))
                continue
        _, seq, time_ns, subject_at, header_at, data_at, last = _read(buf, offset, stop)
        if last != stop:
            raise ValueError(offset, f"it has {last - offset} bytes, not {length}")
        append((seq, time_ns, buf[subject_at:header_at], buf[header_at:data_at], buf[data_at:stop]))
    return stored


def _check_records(offsets: array[int], lengths: array[int], begin: int, end: int) -> None:
    if not 0 <= begin <= end <= len(offsets) or len(offsets) != len(lengths):
        raise IndexError(f"records {begin} to {end} of {len(offsets)} and {len(lengths)}")


def _check(
    buf: bytes, places: array[int], begin: int, end: int, subjects: int = _MAX_OFFSET, heads: Sequence[int] = ()
) -> None:
    """Raise IndexError for messages that are not there."""
    count = len(places) // FIELDS
    if not 0 <= begin <= end <= min(count, subjects):
        raise IndexError(f"messages {begin} to {end} of {count}")
    size, chosen = len(buf), places[FIELDS * begin : FIELDS * end]
    if max(map(add, chosen[::2], chosen[1::2]), default=0) > size:
        at = next(at for at, length in zip(chosen[::2], chosen[1::2], strict=True) if at + length > size)
        raise IndexError(f"a message at {at} does not lie in {size} bytes")
    if heads and end > len(heads):
        raise IndexError(f"messages {begin} to {end} of {len(heads)}")
    if heads and any(map(gt, heads[begin:end], chosen[2::FIELDS])):
        raise IndexError("a header block lies before its buffer")


def _rows(places: array[int], begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Return the four numbers of each of the messages `begin` to `end`."""
    numbers = iter(places[FIELDS * begin : FIELDS * end])
    return zip(numbers, numbers, numbers, numbers, strict=True)


class SubjectMatcher:
    """Selects the subjects that match one of many patterns, by walking the tokens of both at once.

    Subjects are stored ones, and no token is empty. `*` matches one token, `>` at the end one or more.

    Args:
        patterns: valid filters.
    """

    def __init__(self, patterns: Iterable[bytes]) -> None:
        # A node is a dict by token. No token has a dot, so that b"." marks the end of a pattern.
        self._root: dict[bytes, Any] = {}
        for pattern in patterns:
            node = self._root
            for token in pattern.split(b"."):
                node = node.setdefault(token, {})
            node[b"."] = None

    def choose(self, subjects: list[bytes]) -> list[bytes]:
        """Return the matching ones of these subjects, in their order. Hot."""
        return [subject for subject in subjects if self._matches(subject.split(b"."))]

    def choose_records(self, buf: bytes, offsets: array[int], lengths: array[int], most: int) -> list[int]:
        """Return the indexes of the first records, at most `most`, whose subjects match; raise as `frame_deliveries`.
        Hot."""
        subjects = record_subjects(buf, offsets, lengths)
        return list(islice((at for at, one in enumerate(subjects) if self._matches(one.split(b"."))), most))

    def _matches(self, tokens: list[bytes]) -> bool:
        nodes = [self._root]
        for token in tokens:
            following = []
            for node in nodes:
                if b"." in (rest := node.get(b">", ())):
                    return True
                if token in node and token != b"*" and (token != b">" or rest):
                    following.append(node[token])
                if b"*" in node:
                    following.append(node[b"*"])
            nodes = following
        return any(b"." in node for node in nodes)


class SortedNames(Protocol):
    """Leaf of a `SubjectSeeker.walk`."""

    @property
    def block(self) -> object: ...

    def in_order(self) -> list[bytes]: ...


class SubjectSeeker:
    """Skips the subjects between two that match one of some patterns, in the order of bytes.

    Args:
        patterns: valid filters that have a token `*`, and a last token that is literal.
    """

    def __init__(self, patterns: Iterable[bytes]) -> None:
        self._parted = [pattern.split(b".") for pattern in patterns]

    def bound(self, low: bytes) -> bytes:
        """Return a lower bound, not below `low`, of the matching subjects from `low` on."""
        return min([_sought(tokens, low) for tokens in self._parted])

    def choose(self, names: list[bytes], low: bytes, end: bytes) -> tuple[list[bytes], bytes]:
        """Return those of the names, ascending, from `low` on and before `end` (if any) that match, with others between
        them perhaps; and a lower bound of the matches behind them. Hot."""
        found = []
        at, stop = 0, bisect_left(names, end) if end else len(names)
        while (at := bisect_left(names, low, at)) < stop:
            name = names[at]
            low = self.bound(name)
            if low == name:
                found.append(name)
                at += 1
                low = name + b"\0"
        return found, low

    def walk(
        self, lows: list[bytes], leaves: Sequence[SortedNames], low: bytes, end: bytes, most: int
    ) -> tuple[list[bytes], bytes | None, int]:
        """Do `choose` in at most so many leaves, each of which has the names from one of `lows` on, up to the next.

        Return (the chosen names, where to go on, -1); None behind the last leaf. A leaf with a block ends the walk: it
        is the third, and `low` is the lower bound in it. Hot.
        """
        found: list[bytes] = []
        for _ in range(most):
            low = self.bound(low)
            if end and low >= end:
                return found, None, -1
            at = bisect_right(lows, low) - 1
            if leaves[at].block is not None:
                return found, low, at
            some, low = self.choose(leaves[at].in_order(), low, end)
            found += some
            if at + 1 == len(lows) or (end and lows[at + 1] >= end):
                return found, None, -1
            low = max(low, lows[at + 1])
        return found, low, -1


def _sought(tokens: Sequence[bytes], low: bytes) -> bytes:
    """Return a lower bound of the subjects from `low` on that match a pattern."""
    at, last, beyond = 0, len(tokens) - 1, low
    for number, token in enumerate(tokens):
        if token == b"*":
            end = low.find(b".", at)
            if end < 0:
                return low
            at, beyond = end + 1, low[:end] + b"/"  # the byte after the dot: behind all with the same tokens up to here
            continue
        wanted = token if number == last else token + b"."
        there = low[at : at + len(wanted)]
        if wanted != there:
            return low[:at] + wanted if wanted > there else beyond
        at += len(wanted)
    return low if at == len(low) else beyond


def note_ids(slots: Slots, ids: Iterable[bytes], chunk: int) -> None:
    """Note in a table that a chunk has these ids. Hot. Raise ValueError if there is no free slot, or no such chunk.

    A slot has 32 bits: 20 of the hash of an id, of which one at least is set, and the chunk; an empty one is 0. The
    table says where an id may be; `seek_ids` may also find one that is nowhere.

    Args:
        slots: the table, zeros at first. A seek is quick while an eighth of its slots is free.
        chunk: less than `ID_CHUNKS`.
    """
    number = len(slots) // 4
    if not number or not 0 <= chunk < ID_CHUNKS:
        raise ValueError(f"chunk {chunk} in a table of {number} slots")
    view = memoryview(slots).cast("I")
    for each in ids:
        first, tag = _place_of(each, number)
        for at in chain(range(first, number), range(first)):
            if not view[at]:
                view[at] = tag | chunk
                break
        else:
            raise ValueError(f"all {number} slots of the table are taken")


def seek_ids(tables: Sequence[Slots], ids: Sequence[bytes | None]) -> list[tuple[int, int, int]]:
    """Return (place in `ids`, table, chunk) wherever the tables say that an id may be, in no order. Hot.

    None and b"" are no ids.
    """
    found = []
    for which, slots in enumerate(tables):
        view = memoryview(slots).cast("I")
        for place, each in enumerate(ids):
            if each and len(view):
                first, tag = _place_of(each, len(view))
                for at in chain(range(first, len(view)), range(first)):
                    if not view[at]:
                        break
                    if view[at] & _TAG == tag:
                        found.append((place, which, view[at] & ~_TAG))
    return found


def _place_of(each: bytes, number: int) -> tuple[int, int]:
    """Return the first slot of an id in a table with this many, and its tag."""
    mixed = (int.from_bytes(each, "little") % _PRIME + len(each)) * 0x9E3779B97F4A7C15 & _MAX_SEQ
    mixed = (mixed ^ mixed >> 32) * 0xD6E8FEB86659FD93 & _MAX_SEQ
    return (mixed >> 32) * number >> 32, mixed & _TAG or ID_CHUNKS


class ColumnReader:
    """Reads payloads straight into columns, as far as they are usual: other rows are odd, and have NULLs.

    An odd row may fit its schema or not: the caller decodes it by itself. So readers may differ in which rows are odd.
    This one takes none.

    Args:
        form: format of the payloads: "json", "avro" or "protobuf".
        plan: nodes (`lakestream_schemas.plan.ColumnNode`): the root, and behind each node its children.
        deepest: maximum nesting of objects and arrays.
    """

    def __init__(self, form: str, plan: list[Any], deepest: int) -> None: ...

    def takes(self, payload: bytes) -> bool:
        """Return True if a payload certainly fits. Hot."""
        return False

    def read(self, data: memoryview, ends: memoryview) -> tuple[list[Column] | None, list[int]]:
        """Return (the column of each node, the odd rows); no columns if no row was taken. Hot.

        Args:
            data: the payloads.
            ends: where each begins (32-bit integers), and the end of the last one.
        """
        return None, list(range(len(ends) - 1))


# ---------------------------------------------------------------------- objects
def renew(ended: object, shared: tuple[object, ...], kinds: dict[type, bool], most: int, large: int) -> int:
    """Let the next collections of cycles look at an object and its parts, although they are exempt; return their
    number.

    Args:
        shared: objects that are no parts.
        kinds: True for classes whose objects may be parts.
        most: number of parts after which no further object is looked at for others.
        large: dicts, lists and sets with more entries are no parts; nor are namespaces of modules.
    """
    import ctypes  # 1 ms

    found, seen = [ended], {id(ended), *map(id, shared)}
    for part in found:
        if len(found) >= most:
            break
        for each in gc.get_referents(part):
            kind = type(each)
            if not gc.is_tracked(each) or not kinds[kind] or id(each) in seen:
                continue
            if kind in (dict, list, set) and (len(each) > large or "__name__" in each):
                continue
            seen.add(id(each))
            found.append(each)
    untrack, track = ctypes.pythonapi.PyObject_GC_UnTrack, ctypes.pythonapi.PyObject_GC_Track
    for part in found:
        untrack(ctypes.py_object(part))
        track(ctypes.py_object(part))
    return len(found)


def sync_paths(files: Sequence[str], directories: Sequence[str]) -> dict[str, OSError]:
    """Make files, then the names inside directories, durable; return the errors by path. Block."""
    wrong: dict[str, OSError] = {}
    for path in (*files, *directories):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            wrong[path] = OSError(error.errno, error.strerror, path)
    return wrong
