"""Partition columns of rows by time and by fields of the payload (layout `fields`), as Arrow and as Spark SQL.

Belongs here: the values that a row has in these columns, and nothing that follows from the subject alone (`Layout`).
Writers, rewrites and views of the newest messages must agree on them, or a reader that prunes by them would lose rows.

A value is the text of a typed column or of a field inside one, or of the month, day or hour (UTC) of its time. NULL is
the partition of every other row: without the column, with a type that has no single spelling, or with a text that is
empty or cannot be short: longer than `MAX_VALUE` bytes.

Source: Delta protocol, "Partition Value Serialization": an empty text is NULL there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestream.lake.table.schema import BY_DAY, BY_HOUR, NULL_PARTITION, Layout, split_term

MAX_VALUE = 64
"""Maximum length of a field's value as a partition, in bytes of UTF-8; the row of a longer one is in that of NULL."""
DAY_NS, HOUR_NS = 86_400_000_000_000, 3_600_000_000_000
LENGTHS = {"month": len("2026-05"), "day": len("2026-05-01"), "hour": len("2026-05-01T13")}
"""Lengths of the texts of times."""
CONTROL = "[\\x00-\\x1f\\x7f]"
_KINDS: tuple[Callable[[Any], bool], ...] = (
    pa.types.is_string, pa.types.is_large_string, pa.types.is_integer, pa.types.is_boolean, pa.types.is_date,
)  # fmt: skip


def arrays(layout: Layout, columns: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """Return the partition columns of rows.

    Args:
        columns: the columns of the rows, `time_ns` among them.
        rows: their number.
    """
    found = {}
    for name in layout.columns:
        if name in (BY_DAY, BY_HOUR):
            times = np.asarray(columns["time_ns"])
            numbers = times // DAY_NS if name == BY_DAY else times // HOUR_NS % 24
            found[name] = pa.array(numbers.astype(np.int32), pa.int32()).cast(
                pa.date32() if name == BY_DAY else pa.int32()
            )
        else:
            function, (root, *inner) = split_term(layout.field(name))
            found[name] = _texts(_inside(columns.get(root), inner), function, rows)
    return found


def _inside(column: Any, path: list[str]) -> Any:
    """Return the column of a field inside of a struct; None if there is none."""
    for name in path:
        if column is None or not pa.types.is_struct(column.type) or column.type.get_field_index(name) < 0:
            return None
        column = pc.struct_field(column, name)
    return column


def _texts(column: Any, function: str, rows: int) -> Any:
    """Return the values of a typed column as partitions."""
    if column is not None and function:
        if pa.types.is_timestamp(column.type):
            column = pc.replace_substring(column.cast(pa.timestamp("us")).cast(pa.string()), " ", "T")
        elif not pa.types.is_date(column.type) or function == "hour":
            column = None
        else:
            column = column.cast(pa.string())
        column = None if column is None else pc.utf8_slice_codeunits(column, 0, LENGTHS[function])
    if column is None or not any(is_kind(column.type) for is_kind in _KINDS):
        return pa.nulls(rows, pa.string())
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    texts = column.cast(pa.string())
    length = pc.binary_length(texts)
    fits = pc.and_(pc.greater(length, 0), pc.less_equal(length, MAX_VALUE))
    fits = pc.and_(fits, pc.invert(pc.match_substring_regex(texts, CONTROL)))
    fits = pc.and_(fits, pc.not_equal(texts, NULL_PARTITION))
    return pc.if_else(pc.fill_null(fits, False), texts, pa.scalar(None, pa.string()))
