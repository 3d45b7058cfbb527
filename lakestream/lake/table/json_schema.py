"""Typed columns of JSON payloads: the grammar and meaning of `lakestream.json_schema`.

Belongs here: parsing the list of columns, and decoding a payload by it. Both query engines hand payloads to this
decoder, as Arrow, so they agree on every row: their own JSON functions do not (duplicate names, NaN, trailing commas,
1.0 as an integer, trailing text).

A payload fits when it is one JSON object (RFC 8259) and every column that it has is of the column's type:

    BOOLEAN                     true, false
    TINYINT SMALLINT INT BIGINT a number without fraction and exponent, in range
    FLOAT DOUBLE                a number in range
    DECIMAL(p, s)               a number, or a string with one, with at most s digits after the point, exactly
    STRING                      a string
    DATE, TIMESTAMP             a string as in RFC 3339; without a zone it is UTC; more digits than µs are rounded
    ARRAY<…> MAP<STRING, …> STRUCT<…>

A missing or null value is NULL, and fits unless the column says NOT NULL. Names are case-sensitive, unknown names are
ignored, and of duplicate names the last value counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal, DecimalException
from functools import lru_cache
from types import GenericAlias
from typing import Annotated, Any

import msgspec
import pyarrow as pa

from lakestream.lake.errors import BadPolicy
from lakestream.lake.table.ddl import BadModifier, DdlColumn, DdlType, parse_columns
from lakestream.lake.table.schema import (
    JSON_SCHEMA_PROPERTY,
    REMOVED_COLUMN,
    TABLE_COLUMNS,
    doubled,
    is_partition_value,
    ticked,
)
from lakestream.schemas.scalars import exact_decimal, is_deeper, utc

MAX_DEPTH = 200
"""Maximum nesting depth of a payload; a deeper one does not fit."""
MAX_COLUMNS = 1_000
"""Maximum number of columns, including those of structs."""
_BASE = frozenset((*TABLE_COLUMNS, REMOVED_COLUMN, "bucket"))
_FLOAT_MAX = 3.4028234663852886e38
Finish = Callable[[Any], Any]


class BadJsonSchema(BadPolicy):
    """Raised for a `lakestream.json_schema` that is not a list of columns; the text says what is wrong."""

    def __init__(self, reason: str) -> None:
        super().__init__(JSON_SCHEMA_PROPERTY, f"{reason}; write it as in `price DOUBLE, tags ARRAY<STRING>`")


class _Unfit(Exception):
    """Raised for a JSON value that the column's type cannot hold."""


class _Type(msgspec.Struct, frozen=True):
    """A type in all spellings. `python`: for msgspec; `finish`: converts a decoded value, None for no conversion."""

    python: Any
    arrow: Any
    spark: str
    duckdb: str
    finish: Finish | None = None


class JsonSchema:
    """A parsed `lakestream.json_schema`, made by `parse`. Safe for use by several threads.

    Attributes: column `names`, and `struct`, `spark`, `duckdb`: the type of a row in Arrow, Spark and DuckDB.
    """

    def __init__(self, text: str, whole: _Type, names: tuple[str, ...]) -> None:
        self.text = text
        self.names = names
        self.struct: pa.DataType = whole.arrow
        self.spark = whole.spark
        self.duckdb = whole.duckdb
        self._decoder = msgspec.json.Decoder(whole.python)
        assert whole.finish is not None
        self._finish = whole.finish
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        self.values_function = f"lakestream_json_{digest}"
        self.reason_function = f"lakestream_misfit_{digest}"

    def decode(self, payload: bytes | None) -> dict[str, Any]:
        """Decode one payload to its columns; missing ones are None.

        Raises:
            ValueError: the payload does not fit; the text says why.
        """
        if payload is None:
            raise ValueError("NULL")
        try:
            if is_deeper(payload, MAX_DEPTH):
                raise _Unfit(f"nested deeper than {MAX_DEPTH}")
            found: dict[str, Any] = self._finish(self._decoder.decode(payload))
            return found
        except UnicodeDecodeError:
            raise ValueError("a string is not UTF-8") from None
        except (msgspec.MsgspecError, _Unfit, DecimalException, OverflowError, RecursionError) as error:
            raise ValueError(str(error) or type(error).__name__) from None

    def values(self, payloads: pa.Array) -> pa.Array:
        """Decode payloads to structs of the columns; NULL for each that does not fit."""
        return pa.array([self._values(payload) for payload in payloads.to_pylist()], self.struct)

    def reasons(self, payloads: pa.Array) -> pa.Array:
        """Return the reason why each payload does not fit; NULL for each that does."""
        return pa.array([self._reason(payload) for payload in payloads.to_pylist()], pa.string())

    def _values(self, payload: bytes | None) -> dict[str, Any] | None:
        try:
            return self.decode(payload)
        except ValueError:
            return None

    def _reason(self, payload: bytes | None) -> str | None:
        try:
            self.decode(payload)
        except ValueError as misfit:
            return str(misfit)
        return None


# Parsing
@lru_cache(maxsize=64)
def parse(text: str) -> JsonSchema:
    """Parse a list of columns in Spark's DDL.

    Raises:
        BadJsonSchema: it does not parse, has a type that JSON cannot represent, or a reserved name.
    """
    try:
        whole = DdlType("STRUCT", columns=parse_columns(text))
        if whole.width() > MAX_COLUMNS:
            raise BadJsonSchema(f"there are more than {MAX_COLUMNS} columns")
        found = _type(whole)
    except BadModifier as error:
        raise BadJsonSchema(f"{error} is not supported for a column here") from None
    except (RecursionError, ValueError):  # nesting or a number beyond Python's limits
        raise BadJsonSchema(f"{text[:200]!r} is not understood") from None
    names = tuple(field.name for field in found.arrow)
    for name in names:
        if name.lower() in _BASE or is_partition_value(name.lower()):
            raise BadJsonSchema(f"a column cannot be called {name!r}, the table has one of that name")
    return JsonSchema(text, found, names)


def _type(of: DdlType) -> _Type:
    """Return a type in all spellings."""
    if of.name == "STRUCT":
        return _struct(of.columns)
    if of.name == "ARRAY" and len(of.parts) == 1:
        return _array(_type(of.parts[0]))
    if of.name == "MAP" and len(of.parts) == 2:
        return _map(_type(of.parts[0]), _type(of.parts[1]))
    if of.name == "DECIMAL":
        return _decimal(of.numbers)
    found = None if of.numbers else _scalars().get(of.name)
    if found is None:
        raise BadJsonSchema(f"{of.name} cannot be read from JSON")
    return found


@lru_cache(maxsize=1)
def _scalars() -> dict[str, _Type]:

    def integer(bits: int, spark: str) -> _Type:
        limits = msgspec.Meta(ge=-(2 ** (bits - 1)), le=2 ** (bits - 1) - 1)
        return _Type(Annotated[int, limits], getattr(pa, f"int{bits}")(), spark, spark)

    single = Annotated[float, msgspec.Meta(ge=-_FLOAT_MAX, le=_FLOAT_MAX)]
    moment = _Type(datetime, pa.timestamp("us", "UTC"), "TIMESTAMP", "TIMESTAMP WITH TIME ZONE", utc)
    return {
        "BOOLEAN": _Type(bool, pa.bool_(), "BOOLEAN", "BOOLEAN"),
        "TINYINT": integer(8, "TINYINT"),
        "SMALLINT": integer(16, "SMALLINT"),
        "INT": integer(32, "INT"),
        "BIGINT": integer(64, "BIGINT"),
        "FLOAT": _Type(single, pa.float32(), "FLOAT", "FLOAT"),
        "DOUBLE": _Type(float, pa.float64(), "DOUBLE", "DOUBLE"),
        "STRING": _Type(str, pa.string(), "STRING", "VARCHAR"),
        "DATE": _Type(date, pa.date32(), "DATE", "DATE"),
        "TIMESTAMP": moment,
    }


def _struct(columns: tuple[DdlColumn, ...]) -> _Type:
    fields: dict[str, _Type] = {}
    keys: list[Any] = []
    if not columns:
        raise ValueError("no columns")
    for name, kind, required in columns:
        of = _type(kind)
        if not name or name.lower() in (other.lower() for other in fields):
            raise BadJsonSchema(f"the name {name!r} is empty or appears twice (upper and lower case are the same)")
        key = f"f{len(keys)}"
        keys.append((key, of.python) if required else (key, of.python | None, None))
        fields[name] = of
    steps = tuple((name, of.finish) for name, of in fields.items())

    def finish(value: msgspec.Struct) -> dict[str, Any]:
        parts = zip(steps, msgspec.structs.astuple(value), strict=True)
        return {name: part if step is None or part is None else step(part) for (name, step), part in parts}

    # Under names of our own: a TypedDict would miss keys beyond ASCII.
    rename = {key[0]: name for key, name in zip(keys, fields, strict=True)}
    return _Type(
        msgspec.defstruct("Object", keys, rename=rename, kw_only=True, gc=False),
        pa.struct([(name, of.arrow) for name, of in fields.items()]),
        f"STRUCT<{', '.join(f'{ticked(name)}: {of.spark}' for name, of in fields.items())}>",
        f"STRUCT({', '.join(f'{doubled(name)} {of.duckdb}' for name, of in fields.items())})",
        finish,
    )


def _array(of: _Type) -> _Type:
    step = of.finish
    finish = None if step is None else lambda value: [None if part is None else step(part) for part in value]
    return _Type(
        GenericAlias(list, (of.python | None,)), pa.list_(of.arrow), f"ARRAY<{of.spark}>", f"{of.duckdb}[]", finish
    )


def _map(key: _Type, of: _Type) -> _Type:
    if key.python is not str:
        raise BadJsonSchema("the names of a map are STRING in JSON")
    step = of.finish

    def finish(value: dict[str, Any]) -> list[tuple[str, Any]]:
        return [(name, part if part is None or step is None else step(part)) for name, part in value.items()]

    return _Type(
        GenericAlias(dict, (str, of.python | None)),
        pa.map_(pa.string(), of.arrow),
        f"MAP<STRING, {of.spark}>",
        f"MAP(VARCHAR, {of.duckdb})",
        finish,
    )


def _decimal(numbers: tuple[int, ...]) -> _Type:
    precision, scale = (*numbers, *(10, 0)[len(numbers) :])
    if not 1 <= precision <= 38 or not 0 <= scale <= precision:
        raise BadJsonSchema(f"DECIMAL({precision}, {scale}): 1 to 38 digits, of them 0 to all after the point")

    def finish(value: Decimal) -> Decimal:
        exact = exact_decimal(value, precision, scale)
        if exact is None:
            raise _Unfit(f"{str(value)[:50]} is not exactly a DECIMAL({precision}, {scale})")
        return exact

    name = f"DECIMAL({precision}, {scale})"
    return _Type(Decimal, pa.decimal128(precision, scale), name, name, finish)
