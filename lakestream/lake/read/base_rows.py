"""Base of a stream that begins as a clone, from its table's rows.

Belongs here: reading subject, size and time of all messages of one version of a table, and writing them as the base of
the stream's store (log/store/base.py). No message becomes an object of its own: columns are converted to columns, a
range of sequences at a time. Blocks for seconds; runs in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestream.lake.errors import HistoryUnavailable, VersionGone
from lakestream.lake.read.history.index import TableIndex
from lakestream.lake.read.history.scan import Extent, TableScan
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table.row_groups import Footers
from lakestream.lake.table.schema import HEADER_LINE
from lakestream.lake.table.state import TableFollower
from lakestream.log.format.files import Files
from lakestream.log.format.outline import Outline
from lakestream.log.format.record import FIXED
from lakestream.log.index.subject_index import SubjectIndex
from lakestream.log.store.base import BaseOrigin, BaseWriter

OUTLINE_ROWS = 1 << 19
"""Most rows of one outline: 16 bytes each in memory while it is asked, and every file has to be synced."""
HEADER_ENDS = len(HEADER_LINE) + 2
"""Bytes of a header block without any line of its own."""
HEADER_FIELD = 4
"""Additional bytes of a record with a header block, for its length (log/format/record.py)."""
LINE_ENDS = 4
"""Bytes of a header line besides name and value: a colon and a blank, CR and LF."""


def build(
    files: Files, directory: str, table: str, origin: BaseOrigin, stopped: Callable[[], bool] = lambda: False
) -> None:
    """Write the base of the stream in `directory` from a version of its table. May be repeated.

    Args:
        table: path or URL of the stream's own table.
        origin: the version, and the last sequence of the copy.
        stopped: asked between parts; an unfinished base stays, and the next attempt replaces it.

    Raises:
        HistoryUnavailable: the table could not be read.
        OSError: the base could not be written.
    """
    writer = BaseWriter(files, directory)
    subjects, part = _Subjects(), _Part()
    try:
        for rows in _rows(table, origin):
            if stopped():
                raise HistoryUnavailable(f"{table}: the read of its rows was cancelled")
            for batch in rows.combine_chunks().to_batches():
                part.take(batch, subjects)
            if part.count >= OUTLINE_ROWS:
                part.write(writer, subjects)
                part = _Part()
    except FileNotFoundError as error:
        raise HistoryUnavailable(f"version {origin.version} of {table} could not be read: {error}") from error
    part.write(writer, subjects)
    writer.finish(origin, subjects.index())


def _rows(table: str, origin: BaseOrigin) -> Iterator[pa.Table]:
    """Yield the rows, each time those of the next range of sequences. Raises FileNotFoundError and LakeError."""
    storage = open_storage(table)
    index = TableIndex(TableFollower(table, storage=storage), storage)
    try:
        snapshot = index.at(origin.version)
    except VersionGone:
        # A row leaves the table only after its message has left the stream, which later log entries record too.
        snapshot = index.snapshot()
        if snapshot.version <= origin.version:
            raise
    scan, first, last = TableScan(table, storage, Footers()), 1, min(origin.through, snapshot.max_seq)
    while first <= last:
        rows, through = scan.step(snapshot, first, last, Extent(OUTLINE_ROWS))
        if rows is not None:
            yield rows
        first = through + 1


class _Subjects:
    """Distinct subjects by number, and the subject of each message."""

    def __init__(self) -> None:
        self.names: list[bytes] = []
        self._numbers: dict[bytes, int] = {}
        self._ids: list[np.ndarray[Any, Any]] = []
        self._seqs: list[np.ndarray[Any, Any]] = []

    def numbers(self, names: list[bytes]) -> np.ndarray[Any, Any]:
        """Return the numbers of subjects, adding new ones."""
        known = self._numbers
        for name in names:
            if name not in known:
                known[name] = len(self.names)
                self.names.append(name)
        return np.fromiter(map(known.__getitem__, names), np.uint32, len(names))

    def note(self, ids: np.ndarray[Any, Any], seqs: np.ndarray[Any, Any]) -> None:
        """Assign subjects to messages with these sequences, ascending and higher than all before."""
        self._ids.append(ids)
        self._seqs.append(seqs)

    def index(self) -> SubjectIndex:
        """Return the subject index."""
        if not self._seqs:
            return SubjectIndex()
        ids, seqs = np.concatenate(self._ids), np.concatenate(self._seqs)
        self._ids, self._seqs = [], []
        # Of each subject the newest first, as log/index/histories.py packs them.
        few = ids.astype(np.uint16) if len(self.names) <= 1 << 16 else ids  # those are sorted by their digits
        order = np.argsort(few[::-1], kind="stable")
        content = seqs[::-1][order].astype(np.uint64).tobytes()
        ends = np.cumsum(np.bincount(ids, minlength=len(self.names))).tolist()
        rows: dict[bytes, int] = {}
        start = 0
        for name, end in zip(self.names, ends, strict=True):
            rows[name] = int.from_bytes(content[8 * start : 8 * end], "little")
            start = end
        return SubjectIndex.over(rows)


class _Part:
    """Columns of numbers about some rows."""

    def __init__(self) -> None:
        self.count = 0
        self._taken: list[tuple[np.ndarray[Any, Any], ...]] = []

    def take(self, rows: pa.RecordBatch, subjects: _Subjects) -> None:
        """Add rows, in any order."""
        names, places = _named(rows)
        lengths = np.fromiter(map(len, names), np.int64, len(names))
        headers = _header_sizes(rows)
        content = lengths[places] + headers + pc.binary_length(_plain(rows.column("data"))).to_numpy()
        sizes = (FIXED + content + np.where(headers > 0, HEADER_FIELD, 0)).astype(np.uint32)
        ids = subjects.numbers(names)[places]
        # Copies: a view would keep the whole batch in memory.
        seqs, times = (rows.column(name).to_numpy().copy() for name in ("seq", "time_ns"))
        self._taken.append((seqs, times, ids, sizes))
        self.count += len(seqs)

    def write(self, writer: BaseWriter, subjects: _Subjects) -> None:
        """Write all rows as outlines."""
        if not self._taken:
            return
        columns = [np.concatenate(parts) for parts in zip(*self._taken, strict=True)]
        order = np.argsort(columns[0], kind="stable")
        seqs, times, ids, sizes = (column[order] for column in columns)
        subjects.note(ids, seqs)
        for at in range(0, len(seqs), OUTLINE_ROWS):
            part = slice(at, at + OUTLINE_ROWS)
            writer.add(_outline(seqs[part], times[part], ids[part], sizes[part], subjects.names))


def _outline(
    seqs: np.ndarray[Any, Any],
    times: np.ndarray[Any, Any],
    ids: np.ndarray[Any, Any],
    sizes: np.ndarray[Any, Any],
    names: list[bytes],
) -> Outline:
    """Return ascending rows, whose subjects are `names[id]`, as an outline."""
    if len(names) <= len(ids):
        used = np.flatnonzero(np.bincount(ids, minlength=len(names)))
        places = np.zeros(len(names), np.uint32)
        places[used] = np.arange(len(used))
        own_ids = places[ids]
    else:
        used, own_ids = np.unique(ids, return_inverse=True)
    outline = Outline()
    outline.names = [names[number] for number in used.tolist()]
    columns = [(outline.sizes, sizes), (outline.ids, own_ids.astype(np.uint32)), (outline.times, times)]
    at = 0
    # At a gap of sequences, insert rows without a message, or begin a new run.
    for end in [*(np.flatnonzero(np.diff(seqs) != 1) + 1).tolist(), len(seqs)]:
        outline.pad(outline.runs.extend(int(seqs[at]), end - at))
        for column, values in columns:
            column.frombytes(values[at:end].tobytes())
        at = end
    return outline


def _plain(column: pa.Array) -> pa.Array:
    """Return a column of text or bytes as plain bytes."""
    if pa.types.is_string(column.type) or pa.types.is_string_view(column.type):
        column = column.cast(pa.large_string())
    return column.cast(pa.large_binary())


def _named(rows: pa.RecordBatch) -> tuple[list[bytes], np.ndarray[Any, Any]]:
    """Return (distinct subjects, index of each row's subject)."""
    subjects, raw = _plain(rows.column("subject")), rows.column("subject_bytes")
    if raw.null_count < len(raw):
        subjects = pc.coalesce(_plain(raw), subjects)
    encoded = subjects.dictionary_encode()
    names: list[bytes] = encoded.dictionary.to_pylist()
    return names, encoded.indices.to_numpy()


def _header_sizes(rows: pa.RecordBatch) -> np.ndarray[Any, Any]:
    """Return the size of each row's header block as it was sent, without building it; 0 for none. See
    `schema.join_headers`."""
    count = rows.num_rows
    found = np.zeros(count, np.int64)
    headers, blocks = rows.column("headers"), rows.column("header_block")
    if headers.null_count < count:
        names, values = _sizes(headers.keys), headers.items
        text = np.concatenate(([0], np.cumsum(_sizes(values.values))))
        bounds = values.offsets.to_numpy()
        lines = text[bounds[1:]] - text[bounds[:-1]] + np.diff(bounds) * (names + LINE_ENDS)
        sums = np.concatenate(([0], np.cumsum(lines)))
        offsets = headers.offsets.to_numpy()
        found = np.where(np.asarray(headers.is_valid()), sums[offsets[1:]] - sums[offsets[:-1]] + HEADER_ENDS, 0)
    if blocks.null_count < count:
        sizes = pc.fill_null(pc.binary_length(_plain(blocks)), -1).to_numpy()
        found = np.where(sizes >= 0, sizes, found)
    return found


def _sizes(texts: pa.Array) -> np.ndarray[Any, Any]:
    """Return the size of each text in bytes."""
    found: np.ndarray[Any, Any] = pc.fill_null(pc.binary_length(_plain(texts)), 0).to_numpy().astype(np.int64)
    return found
