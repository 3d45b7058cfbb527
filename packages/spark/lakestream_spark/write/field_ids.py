"""Ids of columns for Iceberg.

Belongs here: the id of each column and nested field, Arrow schemas with these ids, which Parquet files keep, and the
ids for a Delta schema.
Readers of Iceberg find columns by id; Delta's read by name and ignore them.

An id follows from the column's path alone: whoever writes a file knows it without asking, and an Iceberg table that is
made again has the same ones. Columns of every table have small numbers, typed columns a hash. With two columns of one
id, which is improbable (1 in 100,000 for 200 columns), the table has no Iceberg metadata.

Source: Iceberg's specification, "Column Projection", "Reserved Field IDs"; pyarrow, `PARQUET:field_id`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa

from lakestream.lake.table.schema import (
    BY_DAY,
    BY_FIELD,
    BY_HOUR,
    FORMAT_COLUMN,
    REMOVED_COLUMN,
    SCHEMA_COLUMN,
    is_partition_value,
)

KEY, VALUE, ELEMENT = "key", "value", "element"
"""Names of the fields of maps and lists in Iceberg."""
ARROW_ID = b"PARQUET:field_id"

_OWN = {
    ("subject",): 1,
    ("seq",): 2,
    ("time",): 3,
    ("time_ns",): 4,
    ("headers",): 5,
    ("headers", KEY): 6,
    ("headers", VALUE): 7,
    ("headers", VALUE, ELEMENT): 8,
    ("data",): 9,
    ("header_block",): 10,
    ("subject_bytes",): 11,
    (REMOVED_COLUMN,): 12,
    (SCHEMA_COLUMN,): 13,
    (FORMAT_COLUMN,): 14,
    ("bucket",): 15,
    (BY_DAY,): 16,
    (BY_HOUR,): 17,
}
_TOKENS, _FIELDS = 100, 200
"""Ids of `token0` and `by_field0`; the highest token is 32, the highest field 4."""
_FIRST_TYPED = 1 << 10
_TYPED = (1 << 31) - (1 << 12)
"""Above are Iceberg's own ids."""

Path = tuple[str, ...]


def field_id(path: Path) -> int:
    """Return the id of a column, or of a field inside of one. `path`: names from the column inwards."""
    if (own := _OWN.get(path)) is not None:
        return own
    if len(path) == 1 and is_partition_value(path[0]):
        number = int(path[0].removeprefix("token").removeprefix(BY_FIELD))
        return number + (_FIELDS if path[0].startswith(BY_FIELD) else _TOKENS)
    digest = hashlib.blake2b("\0".join(path).encode(), digest_size=8).digest()
    return _FIRST_TYPED + int.from_bytes(digest) % (_TYPED - _FIRST_TYPED)


def with_ids(schema: pa.Schema) -> pa.Schema:
    """Return an Arrow schema with ids, which pyarrow writes into Parquet."""
    return pa.schema([_field(each, (each.name,)) for each in schema], schema.metadata)


def _field(field: pa.Field, path: Path) -> pa.Field:
    metadata: dict[Any, Any] = {**(field.metadata or {}), ARROW_ID: str(field_id(path)).encode()}
    return field.with_type(_type(field.type, path)).with_metadata(metadata)


def _type(kind: pa.DataType, path: Path) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([_field(each, (*path, each.name)) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(_field(kind.key_field, (*path, KEY)), _field(kind.item_field, (*path, VALUE)))
    if pa.types.is_list(kind):
        return pa.list_(_field(kind.value_field, (*path, ELEMENT)))
    return kind


def of_delta(schema: str) -> Iterator[tuple[Path, int]]:
    """Yield the path and the id of each field of a Delta schema, which is given as the JSON of the log."""
    return _of_type(msgspec.json.decode(schema), ())


def _of_type(kind: Any, path: Path) -> Iterator[tuple[Path, int]]:
    if isinstance(kind, str):
        return
    inner: dict[str, Any] = {}
    if kind["type"] == "struct":
        inner = {field["name"]: field["type"] for field in kind["fields"]}
    elif kind["type"] == "array":
        inner = {ELEMENT: kind["elementType"]}
    elif kind["type"] == "map":
        inner = {KEY: kind["keyType"], VALUE: kind["valueType"]}
    for name, of_field in inner.items():
        yield (*path, name), field_id((*path, name))
        yield from _of_type(of_field, (*path, name))
