"""Rows of a stream's table as messages.

Belongs here: the columns of a message, and encoding Arrow rows as records, as the log has them: what delivers messages
of the log delivers those of a table, without an object for each. scan.py chooses the row groups.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestream import native
from lakestream.lake.table.scan import is_text
from lakestream.lake.table.schema import join_headers
from lakestream.log.format.records import Records

COLUMNS = ("seq", "time_ns", "subject", "subject_bytes", "headers", "header_block", "data")
"""Columns of a record."""
LIGHT = ("seq", "time_ns")
"""Columns that locate a message."""
_NONE: Any = np.empty(0, np.int32)


def records(rows: pa.Table) -> Records:
    """Encode rows of COLUMNS as records in sequence order, each sequence once."""
    seqs = _numbers(rows.column("seq"))
    order: Any = np.arange(len(seqs))
    if len(seqs) > 1 and not (np.diff(seqs) > 0).all():
        order = np.argsort(seqs, kind="stable")
        order = order[np.append(True, np.diff(seqs[order]) > 0)]
    subjects, raw = rows.column("subject"), rows.column("subject_bytes")
    if raw.null_count < len(raw):
        subjects = pc.coalesce(_one(raw).cast(pa.binary()), _one(subjects).cast(pa.string()).cast(pa.binary()))
    blocks = _header_blocks(rows.column("headers"), rows.column("header_block"))
    name_ends, names = _texts(subjects)
    head_ends, heads = (_NONE, b"") if blocks is None else _texts(blocks)
    data_ends, data = _texts(rows.column("data"))
    times = _numbers(rows.column("time_ns"))
    found = native.encode_rows(order, seqs, times, name_ends, names, head_ends, heads, data_ends, data)
    return Records(*found, _sequences(seqs[order]))


def _sequences(seqs: Any) -> Sequence[int]:
    """Return ascending sequences as a range where there are no gaps."""
    if len(seqs) and int(seqs[-1]) - int(seqs[0]) == len(seqs) - 1:
        return range(int(seqs[0]), int(seqs[-1]) + 1)
    return array("q", seqs.tobytes())


def _numbers(column: Any) -> Any:
    return np.ascontiguousarray(column.to_numpy(), np.int64)


def _texts(column: Any) -> tuple[Any, Any]:
    """Return a text or binary column as offsets of 32 bits and the bytes that they cut; a null is empty."""
    whole = _one(column)
    whole = whole.cast(pa.string() if is_text(whole.type) else pa.binary())
    if whole.null_count:
        whole = pc.fill_null(whole.cast(pa.binary()), b"")
    _, ends, content = whole.buffers()
    if ends is None:
        return np.zeros(len(whole) + 1, np.int32), b""
    return ends.slice(4 * whole.offset, 4 * (len(whole) + 1)), b"" if content is None else content


def _header_blocks(headers: Any, blocks: Any) -> Any | None:
    """Return header blocks as they were sent: the raw one where there is one, else from the map; None for no block."""
    count = len(headers)
    if headers.null_count == count and blocks.null_count == count:
        return None
    if headers.null_count == count:
        return blocks
    spelled = pa.array([None if pairs is None else join_headers(pairs) for pairs in headers.to_pylist()], pa.binary())
    return spelled if blocks.null_count == count else pc.coalesce(_one(blocks).cast(pa.binary()), spelled)


def _one(column: Any) -> Any:
    """Return a column in one piece."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
