"""Tests of the columns that the fields of schema versions get in a table."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from lakestream.lake.table import typed_columns
from lakestream.lake.table.scan import Payloads
from lakestream.lake.table.schema import FORMAT_COLUMN, SCHEMA_COLUMN, column_names
from lakestream.lake.table.typed_columns import EMPTY, MAX_TABLE_FIELDS, NoColumns, place, placed
from lakestream.schemas.columns import (
    BYTES,
    INSTANT,
    INTEGER,
    JSON,
    NUMBER,
    STRING,
    UINT64,
    List,
    Map,
    RecordType,
    Type,
    arrow_type,
    ddl,
)
from lakestream_schemas.records import record_of
from lakestream_spark.write.widening import widened

pytestmark = pytest.mark.unit


def version(**fields: Type) -> RecordType:
    """Return the fields of a schema version."""
    return record_of([(name, of, True, "") for name, of in fields.items()], root=True)


def struct(**fields: Type) -> RecordType:
    return record_of([(name, of, True, "") for name, of in fields.items()])


def columns(*versions: RecordType) -> dict[str, str]:
    """Return the columns of a table that had messages of these versions."""
    table = EMPTY
    for each in versions:
        table, _ = place(table, each)
    return {field.column: ddl(field.type) for field in table.fields}


def test_new_fields_are_new_columns_behind_the_others() -> None:
    assert columns(version(a=INTEGER), version(b=STRING, a=INTEGER)) == {"a": "BIGINT", "b": "STRING"}


def test_a_field_that_goes_keeps_its_column() -> None:
    table, _ = place(EMPTY, version(a=INTEGER, b=STRING))
    assert place(table, version(a=INTEGER))[0] is table


def test_a_field_with_another_type_gets_a_column_of_its_own() -> None:
    found = columns(version(price=NUMBER), version(price=STRING), version(price=UINT64), version(price=NUMBER))
    assert found == {"price": "DOUBLE", "price_string": "STRING", "price_decimal_20_0": "DECIMAL(20, 0)"}


@pytest.mark.parametrize(
    ("of", "name"),
    [
        (INTEGER, "x_bigint"),
        (NUMBER, "x_double"),
        (BYTES, "x_binary"),
        (INSTANT, "x_timestamp"),
        (List(INTEGER), "x_array"),
        (Map(STRING, INTEGER), "x_map"),
        (struct(a=INTEGER), "x_struct"),
    ],
)
def test_the_column_is_named_after_the_type(of: Type, name: str) -> None:
    assert list(columns(version(x=STRING), version(x=of))) == ["x", name]


def test_json_text_is_a_string_like_any_other() -> None:
    assert columns(version(x=STRING), version(x=JSON)) == {"x": "STRING"}


def test_a_field_that_is_named_like_a_retyped_one_has_its_own_name() -> None:
    both = version(x=STRING, x_string=STRING)
    table, places = place(place(EMPTY, version(x=INTEGER))[0], both)
    assert [each.column for each in places] == ["x_string_2", "x_string"]
    assert place(table, both) == (table, places)


def test_names_that_differ_in_case_only_are_one_column() -> None:
    table, places = place(place(EMPTY, version(Price=NUMBER))[0], version(price=NUMBER))
    assert [field.column for field in table.fields] == [places[0].column] == ["Price"]


def test_structs_have_the_fields_of_all_versions() -> None:
    first, second = version(at=struct(zip=STRING)), version(at=struct(city=STRING, zip=INTEGER))
    assert columns(first, second) == {"at": "STRUCT<`zip`: STRING, `city`: STRING, `zip_bigint`: BIGINT>"}


def test_structs_grow_inside_of_lists_and_maps() -> None:
    first = version(a=List(struct(n=INTEGER)), m=Map(STRING, List(struct(n=INTEGER))))
    second = version(a=List(struct(q=NUMBER)), m=Map(STRING, List(struct(n=STRING))))
    assert columns(first, second) == {
        "a": "ARRAY<STRUCT<`n`: BIGINT, `q`: DOUBLE>>",
        "m": "MAP<STRING, ARRAY<STRUCT<`n`: BIGINT, `n_string`: STRING>>>",
    }


def test_lists_of_different_types_are_different_columns() -> None:
    assert columns(version(a=List(INTEGER)), version(a=List(STRING))) == {
        "a": "ARRAY<BIGINT>",
        "a_array": "ARRAY<STRING>",
    }


def test_a_column_of_another_program_is_not_used() -> None:
    own = json.dumps({"type": "struct", "fields": [{"name": "x", "type": "float", "nullable": True, "metadata": {}}]})
    table = typed_columns.of_table(own)
    assert place(table, version(x=NUMBER))[1][0].column == "x_double"


def test_too_many_columns_are_refused() -> None:
    wide = version(**{f"f{number}": STRING for number in range(MAX_TABLE_FIELDS)})
    with pytest.raises(NoColumns, match=str(MAX_TABLE_FIELDS)):
        placed(EMPTY, wide)


def test_a_record_without_fields_can_be_no_column() -> None:
    with pytest.raises(NoColumns, match="e is a record without fields"):
        placed(EMPTY, version(e=RecordType(())))
    assert placed(EMPTY, RecordType(())) == (EMPTY, ())


def test_the_schema_in_the_log_keeps_what_it_has() -> None:
    bucket = {"name": "bucket", "type": "integer", "nullable": True, "metadata": {"lakestream.bounds": ["b"]}}
    names: list[Any] = [
        bucket,
        *({"name": name, "type": "string", "nullable": True, "metadata": {}} for name in ("seq", "token12")),
    ]
    before = json.dumps({"type": "struct", "fields": names})
    assert typed_columns.of_table(before) == EMPTY
    wide, _ = place(
        EMPTY, record_of([("a", List(struct(n=INTEGER)), True, "parts"), ("d", UINT64, True, "")], root=True)
    )
    text = {"name": "schema", "type": "string", "nullable": True, "metadata": {}}
    found = widened(before, [text, *typed_columns.delta_type(wide)["fields"]])
    assert json.loads(found)["fields"][:3] == names
    assert [field["name"] for field in json.loads(found)["fields"]] == ["bucket", "seq", "token12", "schema", "a", "d"]
    assert json.loads(found)["fields"][4]["metadata"] == {"comment": "parts"}
    assert place(typed_columns.of_table(found), wide)[0] == typed_columns.of_table(found)
    wider, _ = place(typed_columns.of_table(found), version(a=List(struct(q=NUMBER))))
    again = json.loads(widened(found, typed_columns.delta_type(wider)["fields"]))["fields"][4]
    assert [field["name"] for field in again["type"]["elementType"]["fields"]] == ["n", "q"]
    assert again["metadata"] == {"comment": "parts"}
    assert widened(found, [text, *typed_columns.delta_type(wide)["fields"]]) == found


VALUES: list[tuple[Type, list[Any]]] = [
    (INTEGER, [1, None]),
    (struct(a=INTEGER, b=STRING), [{"a": 1, "b": "x"}, None, {"a": None, "b": None}]),
    (List(struct(b=STRING)), [[{"b": "x"}, None], None, []]),
    (Map(STRING, struct(b=STRING)), [[("k", {"b": "x"}), ("l", None)], None, []]),
    (List(List(struct(b=STRING))), [[[{"b": "x"}], None, []], None]),
]


@pytest.mark.parametrize(("of", "values"), VALUES, ids=[ddl(of) for of, _ in VALUES])
def test_values_come_back_from_wider_columns(of: Type, values: list[Any]) -> None:
    other = {
        "STRUCT": struct(z=NUMBER, b=INTEGER),
        "ARRAY<STRUCT": List(struct(z=NUMBER, b=INTEGER)),
        "MAP": Map(STRING, struct(z=NUMBER, b=INTEGER)),
        "ARRAY<ARRAY": List(List(struct(z=NUMBER, b=INTEGER))),
    }
    wider = next((each for start, each in reversed(other.items()) if ddl(of).startswith(start)), of)
    table, _ = place(EMPTY, version(x=wider))
    table, (at,) = place(table, version(x=of))
    wide = {field.column: field.type for field in table.fields}[at.column]
    array = pa.array(values, arrow_type(of))
    found = typed_columns.reshaped(array, of, wide, at.inside)
    assert found.type == arrow_type(wide)
    assert found.is_null().to_pylist() == array.is_null().to_pylist()
    assert typed_columns.taken_back(found, of, at.inside).to_pylist() == array.to_pylist()


def test_a_field_of_a_struct_is_no_column_of_the_table() -> None:
    text = {"type": "string", "nullable": True, "metadata": {}}
    fields = [{"name": name, **text} for name in (FORMAT_COLUMN, SCHEMA_COLUMN)]
    document = {"name": "document", "type": {"type": "struct", "fields": fields}, "nullable": True, "metadata": {}}
    schema = msgspec.json.encode({"type": "struct", "fields": [{"name": "data", **text}, document]}).decode()
    assert column_names(schema) == ["data", "document"]
    assert Payloads("/lake/streams/ORDERS", schema).needed(["data"]) == []
