"""Partition columns of rows by time and by fields of the payload (layout `fields`), as Arrow and as Spark SQL.

Belongs here: the values that a row has in these columns, and nothing that follows from the subject alone (`Layout`).
Writers, rewrites and views of the newest messages must agree on them, or a reader that prunes by them would lose rows.

A value is the text of a typed column. NULL is the partition of every other row: without the column, with a type that
has no single spelling, or with a text that is empty or cannot be short: longer than `MAX_VALUE` bytes.

Source: Delta protocol, "Partition Value Serialization": an empty text is NULL there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestream.lake.table.schema import BY_DAY, BY_HOUR, NULL_PARTITION, Layout, quoted, ticked

MAX_VALUE = 64
"""Maximum length of a field's value as a partition, in bytes of UTF-8; the row of a longer one is in that of NULL."""
DAY_NS, HOUR_NS = 86_400_000_000_000, 3_600_000_000_000
_CONTROL = "[\\x00-\\x1f\\x7f]"
_KINDS: tuple[Callable[[Any], bool], ...] = (
    pa.types.is_string, pa.types.is_large_string, pa.types.is_integer, pa.types.is_boolean, pa.types.is_date,
)  # fmt: skip
_SPARK_KINDS = frozenset(("string", "long", "integer", "short", "byte", "bigint", "int", "boolean", "date"))


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
            found[name] = _texts(columns.get(layout.field(name)), rows)
    return found


def _texts(column: Any, rows: int) -> Any:
    """Return the values of a typed column as partitions."""
    if column is None or not any(is_kind(column.type) for is_kind in _KINDS):
        return pa.nulls(rows, pa.string())
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    texts = column.cast(pa.string())
    length = pc.binary_length(texts)
    fits = pc.and_(pc.greater(length, 0), pc.less_equal(length, MAX_VALUE))
    fits = pc.and_(fits, pc.invert(pc.match_substring_regex(texts, _CONTROL)))
    fits = pc.and_(fits, pc.not_equal(texts, NULL_PARTITION))
    return pc.if_else(pc.fill_null(fits, False), texts, pa.scalar(None, pa.string()))


def spark_values(layout: Layout, types: Mapping[str, Any]) -> dict[str, str]:
    """Return the partition columns as Spark SQL over a row, by name: the same as `arrays`.

    Args:
        types: Spark's names of the types of the row's columns.
    """
    found = {}
    for name in layout.columns:
        if name == BY_DAY:
            found[name] = f"date_from_unix_date(CAST(time_ns div {DAY_NS} AS INT))"
        elif name == BY_HOUR:
            found[name] = f"CAST((time_ns div {HOUR_NS}) % 24 AS INT)"
        elif types.get(layout.field(name)) not in _SPARK_KINDS:
            found[name] = "CAST(NULL AS STRING)"
        else:
            text = f"CAST({ticked(layout.field(name))} AS STRING)"
            found[name] = (
                f"CASE WHEN octet_length({text}) BETWEEN 1 AND {MAX_VALUE} AND {text} <> {quoted(NULL_PARTITION)} "
                f"AND NOT {text} RLIKE {quoted(_CONTROL)} THEN {text} END"
            )
    return found


def combinations(values: Iterable[Mapping[str, str | None]]) -> int:
    """Return the number of different values of fields among partitions, whatever their times."""
    times = (BY_DAY, BY_HOUR)
    return len({tuple(sorted((name, text) for name, text in each.items() if name not in times)) for each in values})
