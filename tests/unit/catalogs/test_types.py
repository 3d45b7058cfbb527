"""Types of columns in the languages of catalogs."""

from __future__ import annotations

from typing import Any

import pytest

from lakestream_catalogs.entries import CatalogField, Column
from lakestream_catalogs.types import NoType, hive_fields, hive_type, sql_type, unity_name

STRUCT = {"type": "struct", "fields": [{"name": "zip", "type": "string"}, {"name": "n", "type": "decimal(20, 0)"}]}
ARRAY = {"type": "array", "elementType": STRUCT, "containsNull": True}
MAP = {"type": "map", "keyType": "string", "valueType": ARRAY, "valueContainsNull": True}


@pytest.mark.parametrize(
    ("of", "text", "name"),
    [
        ("long", "bigint", "LONG"),
        ("integer", "int", "INT"),
        ("string", "string", "STRING"),
        ("binary", "binary", "BINARY"),
        ("timestamp", "timestamp", "TIMESTAMP"),
        ("date", "date", "DATE"),
        ("decimal(20,0)", "decimal(20,0)", "DECIMAL"),
        (STRUCT, "struct<zip:string,n:decimal(20,0)>", "STRUCT"),
        (ARRAY, "array<struct<zip:string,n:decimal(20,0)>>", "ARRAY"),
        (MAP, "map<string,array<struct<zip:string,n:decimal(20,0)>>>", "MAP"),
    ],
)
def test_types(of: Any, text: str, name: str) -> None:
    assert hive_type(of) == sql_type(of) == text
    assert unity_name(of)[0] == name


def test_decimals_have_precision_and_scale() -> None:
    assert unity_name("decimal(10, 2)") == ("DECIMAL", 10, 2)


def test_times_without_zone() -> None:
    assert (hive_type("timestamp_ntz"), sql_type("timestamp_ntz")) == ("timestamp", "timestamp_ntz")


def test_odd_names_in_structs_are_quoted_in_sql_and_not_written_for_hive() -> None:
    odd = {"type": "struct", "fields": [{"name": "a:b", "type": "string"}]}
    assert sql_type(odd) == "struct<`a:b`:string>"
    with pytest.raises(NoType):
        hive_type(odd)


def test_columns_without_a_type_there_are_left_out() -> None:
    wide = {"type": "struct", "fields": [{"name": f"field_{number}", "type": "string"} for number in range(400)]}
    columns = (Column("Seq", "long", "the\nsequence"), Column("v", "variant"), Column("wide", wide))
    assert hive_fields(columns, 6) == (CatalogField("seq", "bigint", "the s…"),)
