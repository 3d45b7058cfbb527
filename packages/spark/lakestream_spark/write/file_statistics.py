"""Statistics of data files, as the commit states them: numbers of rows and NULLs, least and greatest values.

Belongs here: which columns have bounds, the bounds of a row group, and their spelling in the log. Readers skip files by
them, so a bound that cannot be exact is wider than the values, and a column whose values have no order in some reader
(NaN) has none.

Delta reads statistics of the first 32 columns of a table (`delta.dataSkippingNumIndexedCols`), with each field of a
struct as a column. The columns of every table come first, so typed ones have the rest.

Source: Delta protocol, "Per-file Statistics"; Delta's documentation, "Data skipping".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestream.lake.table.encryption import BOUNDED
from lakestream.schemas.columns import RecordType, Type

SUBJECT_CHARS = 256
"""Length at which bounds of subjects are cut, the same as in `DELTA` (session.py)."""
TEXT_CHARS = 32
"""Length at which bounds of typed columns are cut: Delta's default."""
MOST = "\U0010ffff"
"""Follows an upper bound that was cut: no character is greater."""
INDEXED_PROPERTY = "delta.dataSkippingNumIndexedCols"
INDEXED = 32
"""Number of columns with statistics, by default; -1: all."""
MAX_DIGITS = 15
"""Decimals with more digits have no bounds: some readers take these as numbers of 64 bits."""

Path = tuple[str, ...]
"""Name of a column, or of a field inside of structs."""

_ENCODER = msgspec.json.Encoder(decimal_format="number")
_DAYS = tuple(int(np.datetime64(day, "D").astype(np.int64)) for day in ("0001-01-01", "9999-12-30"))
"""Range of dates and instants that all readers can spell, also rounded up."""
_DAY_US = 24 * 60 * 60 * 1_000_000


class _NoBounds(Exception):
    """Raised for values without bounds that all readers understand."""


class _Instant(msgspec.Struct, frozen=True, order=True):
    """A timestamp in µs since the epoch."""

    us: int


class _Day(msgspec.Struct, frozen=True, order=True):
    """A date in days since the epoch."""

    days: int


def count_of(properties: Mapping[str, str]) -> int:
    """Return the number of columns with statistics that a table's properties ask for. Delta ignores case."""
    asked = {name.lower(): value for name, value in properties.items()}
    return int(asked.get(INDEXED_PROPERTY.lower(), INDEXED))


def indexed(table: RecordType, own: int, count: int) -> tuple[Path, ...]:
    """Return the typed columns that have statistics.

    Args:
        table: the typed columns of a table.
        own: number of the table's other columns in its files, which come first.
        count: the table's `INDEXED_PROPERTY`.
    """
    found = tuple(_leaves(table, ()))
    return found if count < 0 else found[: max(count - own, 0)]


def _leaves(of: Type, path: Path) -> Iterator[Path]:
    if isinstance(of, RecordType):
        for field in of.fields:
            yield from _leaves(field.type, (*path, field.column))
    else:
        yield path


class FileStatistics:
    """Statistics of a file while it is written.

    Args:
        paths: the typed columns with statistics; the file may lack some.
        encrypted: of an encrypted table: only of columns without content (`encryption.BOUNDED`).
    """

    def __init__(self, paths: Sequence[Path] = (), encrypted: bool = False) -> None:
        self._paths = () if encrypted else paths
        self._shown = BOUNDED if encrypted else None
        self._rows = 0
        self._least: dict[Path, Any] = {}
        self._most: dict[Path, Any] = {}
        self._nulls: dict[Path, int] = {}
        self._unknown: set[Path] = set()

    def add(self, rows: pa.Table, partition: Sequence[str]) -> None:
        """Include a row group. Columns of the partition have no statistics."""
        self._rows += len(rows)
        for name, column in zip(rows.column_names, rows.columns, strict=True):
            shown = self._shown is None or name in self._shown
            if shown and name not in partition and not pa.types.is_struct(column.type):
                self._count((name,), column.null_count)
        for path in self._paths:
            if path[0] not in rows.column_names:
                continue
            values = _field(rows.column(path[0]), path[1:])
            if len(path) > 1:
                self._count(path, values.null_count)
            if path not in self._unknown:
                self._bound(path, values)

    def _count(self, path: Path, nulls: int) -> None:
        self._nulls[path] = self._nulls.get(path, 0) + nulls

    def _bound(self, path: Path, values: pa.Array) -> None:
        try:
            found = _bounds(values)
        except _NoBounds:
            self._unknown.add(path)
            self._least.pop(path, None)
            self._most.pop(path, None)
            return
        if found is not None:
            self._widen(path, *found)

    def widen(self, column: str, least: Any, most: Any) -> None:
        """Include a row group's bounds of a column that is not typed."""
        if self._shown is None or column in self._shown:
            self._widen((column,), least, most)

    def _widen(self, path: Path, least: Any, most: Any) -> None:
        self._least[path] = min(self._least.get(path, least), least)
        self._most[path] = max(self._most.get(path, most), most)

    def stated(self) -> str:
        """Return the statistics as the log spells them."""
        stats = {
            "numRecords": self._rows,
            "minValues": _nested({path: _lower(path, value) for path, value in _with_time(self._least).items()}),
            "maxValues": _nested({path: _upper(path, value) for path, value in _with_time(self._most).items()}),
            "nullCount": _nested(self._nulls),
            "tightBounds": True,
        }
        return _ENCODER.encode(stats).decode()


def _field(column: Any, path: Path) -> pa.Array:
    """Return a column, or a field of its structs; NULL where a struct is NULL."""
    array = column.combine_chunks()
    return pc.struct_field(array, list(path)) if path else array


def _bounds(values: pa.Array) -> tuple[Any, Any] | None:
    """Return the least and the greatest of some values; None if all are NULL, or the type has no bounds.

    Raises:
        _NoBounds: readers would not agree.
    """
    kind = values.type
    if pa.types.is_decimal(kind):
        if kind.precision > MAX_DIGITS:
            return None
    elif not (kind in (pa.int64(), pa.float64(), pa.string(), pa.date32()) or pa.types.is_timestamp(kind)):
        return None
    wrap: Any = None
    if pa.types.is_timestamp(kind):
        values, wrap, unit = values.cast(pa.int64()), _Instant, _DAY_US
    elif pa.types.is_date32(kind):
        values, wrap, unit = values.cast(pa.int32()), _Day, 1
    found = pc.min_max(values).as_py()
    least, most = found["min"], found["max"]
    if least is None:
        return None
    if wrap is not None:
        if not (_DAYS[0] * unit <= least and most < (_DAYS[1] + 1) * unit):
            raise _NoBounds
        return wrap(least), wrap(most)
    if kind == pa.float64():
        if not (math.isfinite(least) and math.isfinite(most)) or pc.any(pc.is_nan(values)).as_py():
            raise _NoBounds
        # Readers differ in the order of -0.0 and 0.0.
        return (least or -0.0), (most or 0.0)
    return least, most


def _with_time(bounds: dict[Path, Any]) -> dict[Path, Any]:
    """Return bounds with those of the column `time`, which follows from `time_ns`."""
    time_ns = bounds.get(("time_ns",))
    if time_ns is None:
        return bounds
    return {**bounds, ("time",): _Instant(abs(time_ns) // 1000 * (1 if time_ns >= 0 else -1))}


def _lower(path: Path, value: Any) -> Any:
    """Return a lower bound as JSON has it: texts are cut, instants have ms."""
    if isinstance(value, str):
        return value[: _chars(path)]
    if isinstance(value, _Instant):
        return _milliseconds(value.us // 1000)
    return str(np.datetime64(value.days, "D")) if isinstance(value, _Day) else value


def _upper(path: Path, value: Any) -> Any:
    """Return an upper bound as JSON has it: never below the value."""
    if isinstance(value, str):
        end = _chars(path)
        while value[end : end + 1] == MOST:
            end += 1
        return value if len(value) <= end else value[:end] + MOST
    if isinstance(value, _Instant):
        return _milliseconds(-(-value.us // 1000))
    return _lower(path, value)


def _chars(path: Path) -> int:
    return SUBJECT_CHARS if path == ("subject",) else TEXT_CHARS


def _milliseconds(ms: int) -> str:
    return f"{np.datetime64(ms, 'ms')}Z"


def _nested(values: dict[Path, Any]) -> dict[str, Any]:
    """Return values by path as objects of objects."""
    found: dict[str, Any] = {}
    for path, value in values.items():
        inner = found
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
        inner[path[-1]] = value
    return found
