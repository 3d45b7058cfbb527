"""Partition columns of rows by time and by fields of the payload (layout `fields`), as Arrow and as Spark SQL.

Belongs here: the values that a row has in these columns, and nothing that follows from the subject alone (`Layout`).
Writers, rewrites and views of the newest messages must agree on them, or a reader that prunes by them would lose rows.

A value is the text of a typed column or of a field inside one, or of the month, day or hour (UTC) of its time. NULL is
the partition of every other row: without the column, with a type that has no single spelling, or with a text that is
empty or cannot be short: longer than `MAX_VALUE` bytes.

Source: Delta protocol, "Partition Value Serialization": an empty text is NULL there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestream.lake.table.schema import BY_DAY, BY_HOUR, NULL_PARTITION, Layout, quoted, split_term, ticked

MAX_VALUE = 64
"""Maximum length of a field's value as a partition, in bytes of UTF-8; the row of a longer one is in that of NULL."""
DAY_NS, HOUR_NS = 86_400_000_000_000, 3_600_000_000_000
_LENGTHS = {"month": len("2026-05"), "day": len("2026-05-01"), "hour": len("2026-05-01T13")}
"""Lengths of the texts of times."""
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
        column = None if column is None else pc.utf8_slice_codeunits(column, 0, _LENGTHS[function])
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
        types: Spark's names of the types of the row's columns and of the fields inside of them, by path (`a.b`).
    """
    found = {}
    for name in layout.columns:
        if name == BY_DAY:
            found[name] = f"date_from_unix_date(CAST(time_ns div {DAY_NS} AS INT))"
        elif name == BY_HOUR:
            found[name] = f"CAST((time_ns div {HOUR_NS}) % 24 AS INT)"
        elif (text := _spark_text(layout.field(name), types)) is None:
            found[name] = "CAST(NULL AS STRING)"
        else:
            found[name] = (
                f"CASE WHEN octet_length({text}) BETWEEN 1 AND {MAX_VALUE} AND {text} <> {quoted(NULL_PARTITION)} "
                f"AND NOT {text} RLIKE {quoted(_CONTROL)} THEN {text} END"
            )
    return found


def _spark_text(field: str, types: Mapping[str, Any]) -> str | None:
    """Return `_texts` as an expression; None: NULL."""
    function, path = split_term(field)
    kind, column = types.get(".".join(path)), ".".join(map(ticked, path))
    if not function:
        return f"CAST({column} AS STRING)" if kind in _SPARK_KINDS else None
    day = f"CAST({column} AS STRING)"
    if kind == "timestamp":  # whatever the session's time zone is
        micros, of_day, of_hour = f"unix_micros({column})", DAY_NS // 1000, HOUR_NS // 1000
        days = f"CAST(({micros} - pmod({micros}, {of_day})) div {of_day} AS INT)"
        hour = f"lpad(CAST(pmod({micros}, {of_day}) div {of_hour} AS STRING), 2, '0')"
        day = f"concat(CAST(date_from_unix_date({days}) AS STRING), 'T', {hour})"
    elif kind != "date" or function == "hour":
        return None
    return f"substr({day}, 1, {_LENGTHS[function]})"


def combinations(values: Iterable[Mapping[str, str | None]]) -> int:
    """Return the number of different values of fields among partitions, whatever their times."""
    times = (BY_DAY, BY_HOUR)
    return len({tuple(sorted((name, text) for name, text in each.items() if name not in times)) for each in values})
