"""Decoding sealed segments to Arrow.

Belongs here: the vectorised decoder. log/format/{segment,frame,record}.py define the format; this decoder
checks what they check (every frame's crc, the order of indexes) and rejects a segment whose tables do not account for
every record in its frames.

One `BinaryArray` covers the segment's bytes, with an element for each field of each record, and `take` selects the
columns: no Python object is created for a record, except for its headers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from lakestream.lake.errors import BadSegment, UnfitSubject
from lakestream.lake.staging.sealed import reader
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table.batches import Removal
from lakestream.lake.table.departures import DeletedMessages
from lakestream.lake.table.schema import fits_partition, headers_type, message_schema, split_headers, subject_text
from lakestream.log.format.errors import CorruptLog
from lakestream.log.format.files import Files
from lakestream.log.format.frame import Kind
from lakestream.log.format.packed import read_plain
from lakestream.log.format.record import FIXED
from lakestream.log.format.segment import SegmentPlaces, decode_segment_header, iter_frames, read_footer

BATCH_ROWS = 10_000
"""Maximum number of rows in a record batch."""
BATCH_BYTES = 8 * 1024 * 1024
"""A record batch ends once its records together reach this many bytes."""


def decode(
    path: str,
    after: int = 0,
    dead: DeletedMessages | None = None,
    as_partitions: bool = False,
    removals: Sequence[Removal] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a sealed segment, in sequence order, as batches of `schema.message_schema()`.

    Args:
        path: the segment file.
        after: only messages of entries with a higher log index.
        dead: messages to leave out.
        as_partitions: reject a subject that cannot be a partition value.
        removals: for archives, ordered by time; adds the column `removed_time_ns`.

    Raises:
        BadSegment: the file is damaged; the whole file is checked before the first batch is made.
        SegmentSealed: it is encrypted, and there is no key.
        UnfitSubject: with `as_partitions`.
        OSError: the file cannot be read.
    """
    with open_storage(path).fetch(path) as local:
        files = reader(local, path)
        try:
            buf = read_plain(files, local)
        except CorruptLog as error:
            raise BadSegment(path, error.offset, error.what) from None
        tables, begin = _verified(path, files, local, buf, after)
    offsets, lengths = _spans(tables, begin)
    for start, stop in _cuts(lengths):
        batch = _batch(path, buf, offsets[start:stop], lengths[start:stop], dead)
        if as_partitions:
            _check_partitions(batch)
        if batch.num_rows:
            yield batch if removals is None else _with_endings(batch, removals)


def _verified(path: str, files: Files, local: str, buf: bytes, after: int) -> tuple[SegmentPlaces, int]:
    """Check every frame; return the tables and the offset of the first frame body whose index is above `after`."""
    header = decode_segment_header(buf)
    if isinstance(header, str):
        raise BadSegment(path, 0, header)
    begin, messages = len(buf), 0
    try:
        _, tables, frames_end = read_footer(local, files)
        for frame, offset in iter_frames(buf, path, header, frames_end):
            if frame.kind == Kind.MESSAGES:
                messages += frame.count
            if frame.index > after and offset < begin:
                begin = offset
    except CorruptLog as error:
        raise BadSegment(path, error.offset, error.what) from None
    listed = sum(map(bool, tables.lengths))
    if listed != messages:
        raise BadSegment(path, frames_end, f"the tables list {listed} messages, the frames hold {messages}")
    return tables, begin


def _spans(tables: SegmentPlaces, begin: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return offsets and lengths of the records from byte `begin` on."""
    offsets = np.frombuffer(tables.offsets, np.uint32).astype(np.int64)
    lengths = np.frombuffer(tables.lengths, np.uint32).astype(np.int64)
    wanted = (lengths > 0) & (offsets >= begin)
    return offsets[wanted], lengths[wanted]


def _cuts(lengths: np.ndarray[Any, Any]) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows, each of at most BATCH_ROWS and about BATCH_BYTES."""
    ends = np.cumsum(lengths)
    start = 0
    while start < len(lengths):
        done = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, done + BATCH_BYTES)) + 1
        stop = min(stop, start + BATCH_ROWS, len(lengths))
        yield start, stop
        start = stop


@lru_cache(maxsize=1)
def _fixed() -> Any:
    """Return the fixed part of a record (log/format/record.py) as a numpy type."""
    fields = "crc <u4, seq <u8, time <i8, subject <u2, flags <u2, data <u4, reserved <u2"
    kind = np.dtype([(name, code) for name, code in (field.split() for field in fields.split(", "))])
    assert kind.itemsize == FIXED
    return kind


def _batch(path: str, buf: bytes, offsets: Any, lengths: Any, dead: DeletedMessages | None) -> pa.RecordBatch:
    """Decode the records at `offsets`."""
    base = int(offsets[0])
    whole = np.frombuffer(buf, np.uint8, int(offsets[-1] + lengths[-1]) - base, base)
    at = offsets - base
    head = whole[at[:, None] + np.arange(FIXED)].view(_fixed()).reshape(-1)
    flagged = head["flags"] != 0
    header_lengths = np.zeros(len(at), np.int64)
    if flagged.any():
        places = at[flagged][:, None] + np.arange(FIXED, FIXED + 4)
        header_lengths[flagged] = whole[places].view("<u4").reshape(-1)
    subject_at = at + FIXED + 4 * flagged
    header_at = subject_at + head["subject"]
    data_at = header_at + header_lengths
    end = data_at + head["data"]
    wrong = np.flatnonzero(end - at != lengths)
    if len(wrong):
        raise BadSegment(path, base + int(at[wrong[0]]), "the tables and the record disagree about its length")

    # Four bounds for each record: subject, header block, data, and the gap to the next record.
    bounds = np.empty(4 * len(at), np.int32)
    bounds[0::4], bounds[1::4], bounds[2::4], bounds[3::4] = subject_at, header_at, data_at, end
    fields = pa.Array.from_buffers(
        pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(buf).slice(base, len(whole))]
    )
    seqs = head["seq"].astype(np.int64)
    rows = np.flatnonzero(alive(seqs, dead))
    if len(rows) < len(seqs):
        head, flagged, seqs = head[rows], flagged[rows], seqs[rows]
    first = (4 * rows).astype(np.int32)
    subjects, raw_subjects = _subjects(fields.take(pa.array(first)))
    headers, blocks = _headers(fields.take(pa.array((first + 1)[flagged])).to_pylist(), flagged)
    data = fields.take(pa.array(first + 2))
    columns = [subjects, pa.array(seqs), pa.array(head["time"].copy()), headers, data, blocks, raw_subjects]
    return pa.RecordBatch.from_arrays(columns, schema=message_schema())


def alive(seqs: Any, dead: DeletedMessages | None) -> Any:
    """Return a mask of the sequences (a numpy array) that are not dead."""
    if dead is None:
        return np.ones(len(seqs), bool)
    alive = seqs >= dead.floor
    if len(dead.removed):
        alive &= ~np.isin(seqs, np.asarray(dead.removed, np.int64))
    if len(dead.runs):
        firsts, lasts = np.asarray(dead.runs, np.int64).T
        at = np.searchsorted(firsts, seqs, "right") - 1
        alive &= (at < 0) | (seqs > lasts[at])
    return alive


def _with_endings(batch: pa.RecordBatch, removals: Sequence[Removal]) -> pa.RecordBatch:
    """Return the batch with a column `removed_time_ns`: when the stream lost the message, null while it has it."""
    seqs = batch.column(1).to_numpy()
    times = np.zeros(len(seqs), np.int64)
    for removal in reversed(removals):  # the earliest one counts
        times[seqs < removal.floor] = removal.at_ns
        if len(removal.removed):
            times[np.isin(seqs, np.asarray(removal.removed, np.int64))] = removal.at_ns
    column = pa.array(times, pa.int64(), mask=times == 0)
    return pa.RecordBatch.from_arrays([*batch.columns, column], schema=message_schema(archive=True))


def _subjects(raw: Any) -> tuple[Any, Any]:
    """Return the columns `subject` and `subject_bytes`."""
    try:
        return raw.cast(pa.string()), pa.nulls(len(raw), pa.binary())
    except pa.ArrowInvalid:  # some subject is not UTF-8
        pairs = [subject_text(subject) for subject in raw.to_pylist()]
        texts = pa.array([text for text, _ in pairs], pa.string())
        return texts, pa.array([kept for _, kept in pairs], pa.binary())


def _headers(raw: list[bytes], flagged: Any) -> tuple[Any, Any]:
    """Return the columns `headers` and `header_block`; `raw` has the blocks of the rows that are `flagged`."""
    count = len(flagged)
    if not raw:
        return pa.nulls(count, headers_type()), pa.nulls(count, pa.binary())
    names: list[str] = []
    values: list[str] = []
    value_ends = [0]
    name_ends = []
    kept: list[bytes | None] = []
    for block in raw:
        headers, odd = split_headers(block)
        for name, its_values in headers:
            names.append(name)
            values.extend(its_values)
            value_ends.append(len(values))
        name_ends.append(len(names))
        kept.append(odd)
    # A row without headers takes no names, and is null.
    offsets = np.zeros(count + 1, np.int32)
    offsets[1:][flagged] = name_ends
    np.maximum.accumulate(offsets, out=offsets)
    lists = pa.ListArray.from_arrays(pa.array(value_ends, pa.int32()), pa.array(values, pa.string()))
    entries = pa.StructArray.from_arrays(
        [pa.array(names, pa.string()), lists],
        fields=[pa.field("key", pa.string(), nullable=False), pa.field("value", lists.type)],
    )
    validity = pa.py_buffer(np.packbits(flagged, bitorder="little").tobytes())
    column = pa.Array.from_buffers(
        headers_type(), count, [validity, pa.py_buffer(offsets)], null_count=count - len(raw), children=[entries]
    )
    blocks = np.full(count, None, object)
    blocks[flagged] = kept
    return column, pa.array(blocks.tolist(), pa.binary())


def _check_partitions(batch: pa.RecordBatch) -> None:
    for subject in batch.column(0).unique().to_pylist():
        if not _fits(subject):
            raise UnfitSubject(subject)


@lru_cache(maxsize=4096)
def _fits(subject: str) -> bool:
    return fits_partition(subject) and all(map(fits_partition, subject.split(".")))
