"""Type tree of a schema, and its mapping to columns of Arrow and Delta.

Belongs here: the types, their spelling in Spark's DDL and in Arrow, and the names of columns. Types are wide from the
start (BIGINT, DOUBLE), because several readers fail on tables with Delta's type widening or column mapping:

    boolean    BOOLEAN         integer   BIGINT           number    DOUBLE          decimal   DECIMAL(p, s)
    string     STRING          bytes     BINARY           date      DATE            instant   TIMESTAMP (µs, UTC)
    json       STRING, JSON text of a value that has no single type: unions, recursion, untyped values
    Record     STRUCT          List      ARRAY            Map       MAP
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

if TYPE_CHECKING:
    import pyarrow as pa

TABLE_NAMES = frozenset(
    {
        *("subject", "seq", "time", "time_ns", "headers", "data", "data_format", "header_block", "subject_bytes"),
        *("bucket", "removed_time_ns", "schema"),
        *("_change_type", "_commit_version", "_commit_timestamp"),  # of Delta's change data feed
    }
)
"""Names of columns that a stream's table has, or that Delta reserves, in lower case."""
_LAYOUT = re.compile(r"token\d+|by_field\d+|by_day|by_hour")
"""Names of columns that only some layouts add."""
_REFUSED = re.compile(r"[ ,;{}()\n\t=.`\x00-\x1f\x7f]")
"""Characters that Parquet and Delta refuse in names, and those that have to be quoted in paths of nested columns."""


class Scalar(msgspec.Struct, frozen=True):
    """A type without parts. `kind`: boolean, integer, number, decimal, string, bytes, date, instant or json."""

    kind: str
    precision: int = 0
    scale: int = 0


class List(msgspec.Struct, frozen=True):
    """An array; elements may be NULL."""

    of: Type


class Map(msgspec.Struct, frozen=True):
    """A map; values may be NULL. `key` is string, integer or boolean."""

    key: Scalar
    of: Type


class Field(msgspec.Struct, frozen=True):
    """A field of a record. `name`: in the payload; `column`: in the table; `nullable`: may be missing or null."""

    name: str
    column: str
    type: Type
    nullable: bool = True
    comment: str = ""


class RecordType(msgspec.Struct, frozen=True):
    """A record; the root of every schema is one."""

    fields: tuple[Field, ...]


Type: TypeAlias = Scalar | List | Map | RecordType

BOOLEAN, INTEGER, NUMBER = Scalar("boolean"), Scalar("integer"), Scalar("number")
STRING, BYTES, DATE, INSTANT, JSON = (
    Scalar("string"),
    Scalar("bytes"),
    Scalar("date"),
    Scalar("instant"),
    Scalar("json"),
)
UINT64 = Scalar("decimal", 20, 0)
_DDL = {
    "boolean": "BOOLEAN",
    "integer": "BIGINT",
    "number": "DOUBLE",
    "string": "STRING",
    "bytes": "BINARY",
    "date": "DATE",
    "instant": "TIMESTAMP",
    "json": "STRING",
}


def ddl(of: Type) -> str:
    """Return a type in Spark's DDL, which is how Delta's documentation spells types too."""
    if isinstance(of, Scalar):
        return f"DECIMAL({of.precision}, {of.scale})" if of.kind == "decimal" else _DDL[of.kind]
    if isinstance(of, List):
        return f"ARRAY<{ddl(of.of)}>"
    if isinstance(of, Map):
        return f"MAP<{ddl(of.key)}, {ddl(of.of)}>"
    return f"STRUCT<{', '.join(f'`{field.column}`: {ddl(field.type)}' for field in of.fields)}>"


def arrow_type(of: Type) -> pa.DataType:
    import pyarrow as pa

    if isinstance(of, Scalar):
        if of.kind == "decimal":
            return pa.decimal128(of.precision, of.scale)
        found: dict[str, Any] = {
            "boolean": pa.bool_(),
            "integer": pa.int64(),
            "number": pa.float64(),
            "string": pa.string(),
            "bytes": pa.binary(),
            "date": pa.date32(),
            "instant": pa.timestamp("us", "UTC"),
            "json": pa.string(),
        }
        return found[of.kind]
    if isinstance(of, List):
        return pa.list_(arrow_type(of.of))
    if isinstance(of, Map):
        return pa.map_(arrow_type(of.key), arrow_type(of.of))
    return pa.struct([(field.column, arrow_type(field.type)) for field in of.fields])


def arrow_schema(record: RecordType) -> pa.Schema:
    """Return the Arrow schema of the columns of a root."""
    import pyarrow as pa

    return pa.schema([(field.column, arrow_type(field.type)) for field in record.fields])


def column_names(names: Iterable[str], root: bool, taken: Iterable[str] = ()) -> list[str]:
    """Return the column of each field, in order.

    Refused characters become `_xHH_` (their code in hexadecimal). A name that the table uses already, or that differs
    from an earlier one in upper and lower case only, gets `_` at its end, as often as needed.

    Args:
        names: the fields.
        root: they are columns of the table itself, not of a STRUCT.
        taken: further names in use.
    """
    used = {name.lower() for name in taken}
    found = []
    for name in names:
        column = _REFUSED.sub(lambda match: f"_x{ord(match.group()):02X}_", name) or "_x_"
        while column.lower() in used or (root and (column.lower() in TABLE_NAMES or _LAYOUT.fullmatch(column.lower()))):
            column += "_"
        used.add(column.lower())
        found.append(column)
    return found


def walk(of: Type, path: str = "") -> Iterator[tuple[str, Type]]:
    """Iterate over a type and all its parts, as (path, type)."""
    yield path, of
    if isinstance(of, RecordType):
        for field in of.fields:
            yield from walk(field.type, f"{path}.{field.name}" if path else field.name)
    elif isinstance(of, List | Map):
        yield from walk(of.of, f"{path}[]" if isinstance(of, List) else f"{path}{{}}")
