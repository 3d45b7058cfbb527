"""Typed columns of a table: which column a field of a schema has, and how they grow.

Belongs here: the types of a table's columns as a tree, the column that each field of a schema version gets in it, and
arrays of one version in the shape of the table. typed_rows.py decodes payloads, write/ commits the columns.

A table's columns are the union over the versions that its messages had. A field gets the column of its name if that is
free or has its type. Structs are of one type, whatever their fields are: they get the union of these, inside of lists
and maps too. A field with another type than its column gets a column of its own, `<name>_<type>`: `price_string`. No
column is ever renamed, dropped or changed to another type.

Source: Delta protocol, "Schema Serialization Format".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from lakestream.lake.table.schema import is_own
from lakestream.schemas.columns import Field, List, Map, RecordType, Scalar, Type, arrow_type, walk

MAX_TABLE_FIELDS = 4_000
"""Maximum number of typed columns of a table, including nested ones. Messages of a version that needs more are misfits
with the rule `columns`."""

_DELTA = {
    "boolean": "boolean",
    "integer": "long",
    "number": "double",
    "string": "string",
    "bytes": "binary",
    "date": "date",
    "instant": "timestamp",
}
_KINDS = {name: Scalar(kind) for kind, name in _DELTA.items()}
_DECIMAL = re.compile(r"decimal\((\d+), *(\d+)\)")
_WORDS = {"integer": "bigint", "number": "double", "bytes": "binary", "instant": "timestamp"}
EMPTY = RecordType(())


class NoColumns(Exception):
    """Raised when a table cannot have the columns of another version; the text says why."""


class Place(msgspec.Struct, frozen=True):
    """Column of a field. `inside`: places of the fields of a record, also of one inside of lists and maps."""

    column: str
    inside: tuple[Place, ...] = ()


def of_table(schema: str) -> RecordType:
    """Return the typed columns of a table.

    Args:
        schema: the JSON of its schema, as in the log.
    """
    fields = msgspec.json.decode(schema)["fields"]
    return RecordType(tuple(_field(each) for each in fields if not is_own(each["name"])))


def _field(each: dict[str, Any]) -> Field:
    return Field(each["name"], each["name"], _type(each["type"]))


def _type(found: Any) -> Type:
    """Return the type of the JSON; one that no schema has is a scalar of its own, which nothing fits."""
    if isinstance(found, str):
        if (decimal := _DECIMAL.fullmatch(found)) is not None:
            return Scalar("decimal", int(decimal[1]), int(decimal[2]))
        return _KINDS.get(found, Scalar(found))
    if found["type"] == "struct":
        return RecordType(tuple(map(_field, found["fields"])))
    if found["type"] == "array":
        return List(_type(found["elementType"]))
    key = _type(found["keyType"])
    return Map(key if isinstance(key, Scalar) else Scalar("other"), _type(found["valueType"]))


def place(table: RecordType, record: RecordType) -> tuple[RecordType, tuple[Place, ...]]:
    """Return (the columns with those of a schema version, the place of each of its fields).

    The columns are equal to `table` if the version needs no others.

    Args:
        table: columns, or fields of a struct, that are there.
        record: the fields of the version.
    """
    fields = {field.column.lower(): field for field in table.fields}
    own = {field.column.lower() for field in record.fields}
    taken: set[str] = set()
    places = []
    for field in record.fields:
        for name in _candidates(field):
            key = name.lower()
            there = fields.get(key)
            if key in taken or (name != field.column and key in own):
                continue
            if there is None or _fits(there.type, field.type):
                break
        column = name if there is None else there.column
        wide, inside = _merged(None if there is None else there.type, field.type)
        fields[key] = Field(column, column, wide, comment=field.comment if there is None else there.comment)
        taken.add(key)
        places.append(Place(column, inside))
    found = RecordType(tuple(fields.values()))
    return (table if found == table else found), tuple(places)


def placed(table: RecordType, record: RecordType) -> tuple[RecordType, tuple[Place, ...]]:
    """Return `place` of the root.

    Raises:
        NoColumns: the limit of a table is exceeded, or a field is a record without fields, which Delta does not have.
    """
    found = place(table, record)
    if found[0] is table:
        return found
    for path, of in walk(found[0]):
        if path and of == EMPTY:
            raise NoColumns(f"{path} is a record without fields, which cannot be a column")
    if sum(1 for _ in walk(found[0])) > MAX_TABLE_FIELDS:
        raise NoColumns(f"the table would have more than {MAX_TABLE_FIELDS} typed columns")
    return found


def _candidates(field: Field) -> Iterator[str]:
    yield field.column
    typed = f"{field.column}_{_word(field.type)}"
    yield typed
    number = 2
    while True:
        yield f"{typed}_{number}"
        number += 1


def _word(of: Type) -> str:
    if isinstance(of, Scalar):
        if of.kind == "decimal":
            return f"decimal_{of.precision}_{of.scale}"
        return _WORDS.get(_plain(of).kind, _plain(of).kind)
    return "struct" if isinstance(of, RecordType) else "array" if isinstance(of, List) else "map"


def _plain(of: Scalar) -> Scalar:
    return Scalar("string") if of.kind == "json" else of


def _fits(there: Type, new: Type) -> bool:
    """Return True if a column can also have values of another type."""
    if isinstance(new, Scalar):
        return there == _plain(new)
    if isinstance(new, RecordType):
        return isinstance(there, RecordType)
    if isinstance(new, List):
        return isinstance(there, List) and _fits(there.of, new.of)
    return isinstance(there, Map) and there.key == _plain(new.key) and _fits(there.of, new.of)


def _merged(there: Type | None, new: Type) -> tuple[Type, tuple[Place, ...]]:
    """Return the type of a column with values of both types, and the places of fields inside of the new one."""
    if isinstance(new, Scalar):
        return _plain(new), ()
    if isinstance(new, RecordType):
        return place(there if isinstance(there, RecordType) else EMPTY, new)
    inner, inside = _merged(there.of if isinstance(there, List | Map) else None, new.of)
    return (List(inner) if isinstance(new, List) else Map(_plain(new.key), inner)), inside


# Arrays


def reshaped(array: pa.Array, new: Type, wide: Type, inside: Sequence[Place]) -> pa.Array:
    """Return an array of a field's type with the type of its column. Fields that it lacks are NULL.

    Args:
        array: the values, not a slice of another array.
        new: the field's type.
        wide: the column's type.
        inside: the places of fields inside.
    """
    arrow = arrow_type(wide)
    if array.type == arrow or isinstance(new, Scalar):
        return array
    if isinstance(new, RecordType):
        assert isinstance(wide, RecordType)
        parts = dict(zip((place.column for place in inside), range(len(inside)), strict=True))
        children = array.flatten()
        columns = []
        for field, kind in zip(wide.fields, arrow, strict=True):
            at = parts.get(field.column)
            if at is None:
                columns.append(pa.nulls(len(array), kind.type))
            else:
                columns.append(reshaped(children[at], new.fields[at].type, field.type, inside[at].inside))
        return pa.StructArray.from_arrays(columns, fields=list(arrow), mask=array.is_null())
    if isinstance(new, List):
        assert isinstance(wide, List)
        items = reshaped(array.values, new.of, wide.of, inside)
        return pa.ListArray.from_arrays(array.offsets, items, type=arrow, mask=array.is_null())
    assert isinstance(wide, Map)
    items = reshaped(array.items, new.of, wide.of, inside)
    return pa.MapArray.from_arrays(array.offsets, array.keys, items, type=arrow, mask=array.is_null())


def taken_back(array: pa.Array, new: Type, inside: Sequence[Place]) -> pa.Array:
    """Return a column's values with the type of a field: the reverse of `reshaped`. Types of text may be other ones."""
    arrow = arrow_type(new)
    if array.type == arrow:
        return array
    if isinstance(new, Scalar):
        return array.cast(arrow)
    if isinstance(new, RecordType):
        by_name = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
        columns = [
            taken_back(by_name[place.column], field.type, place.inside)
            if place.column in by_name
            else pa.nulls(len(array), arrow_type(field.type))
            for place, field in zip(inside, new.fields, strict=True)
        ]
        return pa.StructArray.from_arrays(columns, fields=list(arrow), mask=array.is_null())
    if isinstance(new, List):
        items = taken_back(array.values, new.of, inside)
        return pa.ListArray.from_arrays(array.offsets, items, type=arrow, mask=array.is_null())
    items = taken_back(array.items, new.of, inside)
    keys = array.keys.cast(arrow.key_type)
    return pa.MapArray.from_arrays(array.offsets, keys, items, type=arrow, mask=array.is_null())


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return a type that every library and function knows instead: no views, no dictionaries, no large ones."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_string_view(kind) or pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_binary_view(kind) or pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, plain_type(each.type), each.nullable) for each in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_list_view(kind):
        return pa.list_(plain_type(kind.value_type))
    return kind


def plain(rows: pa.Table) -> pa.Table:
    """Return rows in such types."""
    wanted = pa.schema([(field.name, plain_type(field.type)) for field in rows.schema])
    if wanted.equals(rows.schema):
        return rows
    columns = [column.cast(field.type) for column, field in zip(rows.columns, wanted, strict=True)]
    return pa.table(columns, schema=wanted)


# The log


def schema_of(record: RecordType) -> str:
    """Return the columns of a schema version as the JSON of a table's schema."""
    return msgspec.json.encode(delta_type(record)).decode()


def _stated(field: Field) -> dict[str, Any]:
    metadata = {"comment": field.comment} if field.comment else {}
    return {"name": field.column, "type": delta_type(field.type), "nullable": True, "metadata": metadata}


def delta_type(of: Type) -> Any:
    """Return a type as the log spells it."""
    if isinstance(of, Scalar):
        return f"decimal({of.precision},{of.scale})" if of.kind == "decimal" else _DELTA[_plain(of).kind]
    if isinstance(of, RecordType):
        return {"type": "struct", "fields": [_stated(field) for field in of.fields]}
    if isinstance(of, List):
        return {"type": "array", "elementType": delta_type(of.of), "containsNull": True}
    return {
        "type": "map",
        "keyType": delta_type(of.key),
        "valueType": delta_type(of.of),
        "valueContainsNull": True,
    }
