"""Ids of columns: those for a Delta schema are those that the compactor writes into files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from lakestream.lake.table.schema import TABLE_COLUMNS, table_schema
from lakestream_spark.write.field_ids import ARROW_ID, ELEMENT, KEY, VALUE, of_delta, with_ids

pytestmark = pytest.mark.unit


def test_a_delta_schema_has_the_ids_of_the_files() -> None:
    place = pa.struct([("zip", pa.string()), ("points", pa.list_(pa.struct([("x", pa.float64())])))])
    files = pa.schema([*table_schema(TABLE_COLUMNS), ("price", pa.int64()), ("place", place)])
    fields = [{"name": field.name, "type": _delta(field.type)} for field in files]
    found = dict(of_delta(json.dumps({"type": "struct", "fields": fields})))
    wanted = {path: number for field in with_ids(files) for path, number in _ids(field, ())}
    assert found == wanted
    assert wanted["headers", VALUE, ELEMENT] == 8
    assert len(set(found.values())) == len(found) == len(TABLE_COLUMNS) + 3 + 6


def _delta(kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind):
        return {"type": "struct", "fields": [{"name": each.name, "type": _delta(each.type)} for each in kind]}
    if pa.types.is_map(kind):
        return {"type": "map", "keyType": _delta(kind.key_type), "valueType": _delta(kind.item_type)}
    if pa.types.is_list(kind):
        return {"type": "array", "elementType": _delta(kind.value_type)}
    return str(kind)


def _ids(field: pa.Field, above: tuple[str, ...], name: str = "") -> Iterator[tuple[tuple[str, ...], int]]:
    path = (*above, name or field.name)
    yield path, int(field.metadata[ARROW_ID])
    if pa.types.is_struct(field.type):
        for each in field.type:
            yield from _ids(each, path)
    elif pa.types.is_map(field.type):
        yield from _ids(field.type.key_field, path, KEY)
        yield from _ids(field.type.item_field, path, VALUE)
    elif pa.types.is_list(field.type):
        yield from _ids(field.type.value_field, path, ELEMENT)
