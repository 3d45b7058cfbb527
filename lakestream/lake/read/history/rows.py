"""Rows of a stream's table as messages.

Belongs here: the columns of a message, and converting Arrow rows to records. scan.py chooses the files.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestream.lake.table.scan import is_text
from lakestream.lake.table.schema import join_headers
from lakestream.log.format.record import Record

COLUMNS = ("seq", "time_ns", "subject", "subject_bytes", "headers", "header_block", "data")
"""Columns of a record."""
LIGHT = ("seq", "time_ns", "subject", "subject_bytes")
"""Columns that locate a message."""


def joined(parts: Sequence[Any], columns: Sequence[str]) -> Any:
    """Concatenate tables of the same columns in sequence order, each sequence once."""
    if not parts:
        return empty(columns)
    whole = (parts[0] if len(parts) == 1 else pa.concat_tables(parts, promote_options="permissive")).combine_chunks()
    whole = _owned(whole)
    seqs = whole.column("seq").to_numpy()
    if len(seqs) > 1:
        steps = np.diff(seqs)
        if not (steps > 0).all():
            _, places = np.unique(seqs, return_index=True)
            whole = whole.take(pa.array(places))
    return whole


def _owned(table: Any) -> Any:
    """Return the rows of a query in buffers of their own.

    DataFusion hands out a batch as one object: every buffer of it, be it a bitmap of nulls that a cast passes on, keeps
    all columns in memory, and columns of view types keep whole pages of the file: several MB for a few rows. So all
    columns are copied, also those that are no views.
    """
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    if not any(field.type in plain for field in table.schema):
        return table
    columns = [column.cast(plain.get(column.type, column.type)) for column in table.columns]
    return pa.table(columns, names=table.column_names).take(pa.array(np.arange(table.num_rows)))


def empty(columns: Sequence[str]) -> Any:
    """Return a table of these columns without rows."""
    return pa.table({name: pa.array([], pa.int64() if name in ("seq", "time_ns") else pa.binary()) for name in columns})


def records(table: Any) -> list[Record]:
    """Convert rows of COLUMNS to records."""
    if table.num_rows == 0:
        return []
    subjects = _shared_values(table.column("subject"))
    raw_subjects = table.column("subject_bytes")
    if raw_subjects.null_count < table.num_rows:
        kept = raw_subjects.to_pylist()
        subjects = [raw if raw is not None else text for raw, text in zip(kept, subjects, strict=True)]
    return list(
        map(
            Record,
            table.column("seq").to_numpy().tolist(),
            table.column("time_ns").to_numpy().tolist(),
            subjects,
            _header_blocks(table.column("headers"), table.column("header_block")),
            _byte_values(table.column("data")),
        )
    )


def content_bytes(table: Any, found: list[Record]) -> int:
    """Return the bytes of subjects, header blocks and payloads of rows of COLUMNS; `found` are their records."""
    plain = ("headers", "header_block", "subject_bytes")
    if any(table.column(name).null_count < table.num_rows for name in plain):
        return sum([len(one.subject) + len(one.header) + len(one.data) for one in found])
    return sum(pc.sum(pc.binary_length(table.column(name))).as_py() or 0 for name in ("subject", "data"))


def _shared_values(column: Any) -> list[bytes]:
    """Return `_byte_values` with one object for all rows that have the same value."""
    values: list[bytes] = []
    for chunk in column.chunks:
        array = chunk.dictionary_encode()
        known = _byte_values(pa.chunked_array([array.dictionary]))
        values.extend(map(known.__getitem__, array.indices.to_numpy().tolist()))
    return values


def _byte_values(column: Any) -> list[bytes]:
    """Return a string or binary column without nulls as bytes objects; much faster than `to_pylist`."""
    values: list[bytes] = []
    for chunk in column.chunks:
        array = chunk.cast(pa.large_string()).cast(pa.large_binary()) if is_text(chunk.type) else chunk
        array = array.cast(pa.large_binary())
        if array.null_count:
            values.extend(value or b"" for value in array.to_pylist())
            continue
        _, offsets, data = array.buffers()
        if data is None:
            values.extend([b""] * len(array))
            continue
        bounds = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
        content = data.slice(int(bounds[0]), int(bounds[-1] - bounds[0])).to_pybytes()
        values.extend([content[a:b] for a, b in itertools.pairwise((bounds - bounds[0]).tolist())])
    return values


def _header_blocks(headers: Any, blocks: Any) -> list[bytes]:
    """Return header blocks as they were sent: the raw one where there is one, else from the map; b"" for none."""
    count = len(headers)
    if headers.null_count == count and blocks.null_count == count:
        return [b""] * count
    found = [b"" if pairs is None else join_headers(pairs) for pairs in headers.to_pylist()]
    if blocks.null_count < count:
        kept = blocks.to_pylist()
        found = [spelled if raw is None else raw for raw, spelled in zip(kept, found, strict=True)]
    return found
