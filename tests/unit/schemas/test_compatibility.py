"""Tests of the compatibility of versions."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from fastavro.read import SchemaResolutionError
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.schemas.errors import BadSchema
from lakestream.schemas.schema import Compatibility, Schema
from lakestream_schemas import compatibility
from lakestream_schemas.formats import prepared
from lakestream_schemas.json_schema.codec import JsonCodec
from tests.unit.schemas_world import payloads, schemas

pytestmark = pytest.mark.unit


def of_json(text: Any, version: int = 1, mode: Compatibility = "backward") -> Schema:
    return Schema("orders", version, "json", json.dumps(text), compatibility=mode)


def of_avro(*fields: Any, version: int = 1, mode: Compatibility = "backward") -> Schema:
    text = json.dumps({"type": "record", "name": "r", "fields": list(fields)})
    return Schema("orders", version, "avro", text, compatibility=mode)


def of_proto(body: str) -> Schema:
    return prepared(Schema("orders", 1, "protobuf", f'syntax = "proto3"; package p; {body}'))


def rules(writer: Schema, reader: Schema, strict: bool = False) -> dict[str, bool]:
    return {each.rule: each.is_compatible for each in compatibility.differences(writer, reader, strict)}


def obj(closed: bool = False, required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "properties": properties}
    return (
        found | ({"additionalProperties": False} if closed else {}) | ({"required": list(required)} if required else {})
    )


TEXT, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}


@pytest.mark.parametrize(
    ("old", "new", "rule", "is_compatible"),
    [
        (obj(a=INTEGER), obj(a=NUMBER), "type_extended", True),
        (obj(a=NUMBER), obj(a=INTEGER), "type_narrowed", False),
        (obj(a=TEXT), obj(a=INTEGER), "type_changed", False),
        (obj(), obj(a=TEXT), "property_added_to_open_content_model", True),
        (obj(), obj(a={}), "property_with_empty_schema_added_to_open_content_model", True),
        (obj(), obj(required=("a",), a=TEXT), "required_property_added_to_open_content_model", False),
        (obj(closed=True), obj(closed=True, a=TEXT), "optional_property_added_to_unopen_content_model", True),
        (obj(True), obj(True, ("a",), a=TEXT), "required_property_added_to_unopen_content_model", False),
        (
            obj(True),
            obj(True, ("a",), a=TEXT | {"default": ""}),
            "required_property_with_default_added_to_unopen_content_model",
            True,
        ),
        (obj(a=TEXT), obj(), "property_removed_from_open_content_model", True),
        (obj(True, a=TEXT), obj(True), "property_removed_from_closed_content_model", False),
        (obj(a=TEXT), obj(required=("a",), a=TEXT), "required_attribute_added", False),
        (obj(required=("a",), a=TEXT), obj(a=TEXT), "required_attribute_removed", True),
        (obj(), obj(closed=True), "additional_properties_removed", False),
        (obj(closed=True), obj(), "additional_properties_added", True),
        (obj(a={"enum": ["x"]}), obj(a={"enum": ["x", "y"]}), "enum_array_extended", True),
        (obj(a={"enum": ["x", "y"]}), obj(a={"enum": ["x"]}), "enum_array_narrowed", False),
        (obj(a=TEXT | {"maxLength": 3}), obj(a=TEXT | {"maxLength": 4}), "max_length_increased", True),
        (obj(a=TEXT), obj(a=TEXT | {"maxLength": 4}), "max_length_added", False),
        (obj(a=INTEGER | {"minimum": 3}), obj(a=INTEGER | {"minimum": 4}), "minimum_increased", False),
        (obj(a=TEXT | {"pattern": "a"}), obj(a=TEXT), "pattern_removed", True),
        (obj(a=TEXT | {"pattern": "a"}), obj(a=TEXT | {"pattern": "b"}), "pattern_changed", False),
        (obj(a=TEXT), obj(a=TEXT | {"format": "date"}), "format_added", False),
        (obj(a=INTEGER | {"multipleOf": 4}), obj(a=INTEGER | {"multipleOf": 2}), "multiple_of_reduced", True),
        (obj(a=INTEGER), obj(a={"anyOf": [INTEGER, TEXT]}), "sum_type_extended", True),
        (obj(a={"anyOf": [INTEGER, TEXT]}), obj(a=INTEGER), "combined_type_narrowed", False),
        (obj(a={"type": "array", "items": TEXT}), obj(a={"type": "array", "items": INTEGER}), "type_changed", False),
        (obj(a=TEXT), obj(a=TEXT, b={"not": {}}), "property_added_to_open_content_model", True),
        (obj(), obj() | {"dependentRequired": {"a": ["b"]}}, "dependent_required_changed", False),
    ],
)
def test_json_schema_is_compared_by_the_rules(old: Any, new: Any, rule: str, is_compatible: bool) -> None:
    assert rules(of_json(old), of_json(new)).get(rule) is is_compatible


def test_a_strict_comparison_refuses_new_properties_of_open_objects() -> None:
    assert rules(of_json(obj()), of_json(obj(a=TEXT)), strict=True) == {"property_added_to_open_content_model": False}


def test_a_recursive_schema_is_compared() -> None:
    tree = obj(v=INTEGER, kids={"type": "array", "items": {"$ref": "#"}})
    wider = obj(v=NUMBER, kids={"type": "array", "items": {"$ref": "#"}})
    assert rules(of_json(tree), of_json(wider)) == {"type_extended": True}
    assert rules(of_json(wider), of_json(tree)) == {"type_narrowed": False}


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_what_a_compatible_schema_follows_fits_it_too(data: st.DataObject) -> None:
    """With the strict rules, each payload of the writer's schema fits the reader's."""
    old, new = data.draw(schemas()), data.draw(schemas())
    if any(not each.is_compatible for each in compatibility.differences(of_json(old), of_json(new), strict=True)):
        new = old
    assert [
        each for each in compatibility.differences(of_json(old), of_json(new), strict=True) if not each.is_compatible
    ] == []
    writer, reader = JsonCodec(json.dumps(old)), JsonCodec(json.dumps(new))
    payload = data.draw(payloads(old))
    if writer.fits(payload) is None:
        assert reader.fits(payload) is None, (old, new, payload)


AVRO_TYPES = st.sampled_from(
    [
        "int",
        "long",
        "float",
        "double",
        "string",
        "bytes",
        "boolean",
        ["null", "int"],
        ["null", "string"],
        ["int", "string"],
        ["null", "double"],
        {"type": "array", "items": "int"},
        {"type": "array", "items": "double"},
        {"type": "map", "values": "long"},
        {"type": "enum", "name": "e", "symbols": ["A", "B"]},
        {"type": "enum", "name": "e", "symbols": ["A"]},
        {"type": "enum", "name": "e", "symbols": ["A"], "default": "A"},
        {"type": "fixed", "name": "f", "size": 2},
        {"type": "fixed", "name": "f", "size": 3},
        {"type": "record", "name": "s", "fields": [{"name": "x", "type": "int"}]},
        {"type": "record", "name": "s", "fields": [{"name": "x", "type": "long"}]},
        {"type": "record", "name": "s", "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "int"}]},
    ]
)
VALUES = {"int": 1, "long": 2**40, "float": 1.5, "double": 1e300, "string": "é", "bytes": b"ab", "boolean": True}


def avro_values(kind: Any) -> list[Any]:
    """Return one value for each branch of a type."""
    if isinstance(kind, list):
        return [value for branch in kind for value in avro_values(branch)]
    if isinstance(kind, str):
        return [None if kind == "null" else VALUES[kind]]
    if kind["type"] == "array":
        return [[], avro_values(kind["items"])]
    if kind["type"] == "map":
        return [{"k": value} for value in avro_values(kind["values"])]
    if kind["type"] == "enum":
        return list(kind["symbols"])
    if kind["type"] == "fixed":
        return [b"\0" * kind["size"]]
    return [{field["name"]: avro_values(field["type"])[0] for field in kind["fields"]}]


@settings(max_examples=300, deadline=None)
@given(AVRO_TYPES, AVRO_TYPES)
def test_avro_data_of_a_compatible_schema_is_read_by_fastavro(old: Any, new: Any) -> None:
    writer, reader = of_avro({"name": "a", "type": old}), of_avro({"name": "a", "type": new})
    found = compatibility.differences(writer, reader)
    is_compatible = all(each.is_compatible for each in found)
    before, after = (fastavro.parse_schema(json.loads(each.text)) for each in (writer, reader))
    failures = 0
    for value in avro_values(old):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, before, {"a": value})
        try:
            fastavro.schemaless_reader(io.BytesIO(out.getvalue()), before, after)
        except (SchemaResolutionError, ValueError, KeyError, TypeError):
            failures += 1
    if is_compatible:
        assert failures == 0
    elif {old, new} != {"bytes", "string"} if isinstance(old, str) and isinstance(new, str) else True:
        assert failures > 0, [str(each) for each in found]


def test_avro_fields_come_with_defaults_and_go() -> None:
    one = {"name": "a", "type": "int"}
    assert rules(of_avro(one), of_avro()) == {"field_removed": True}
    assert rules(of_avro(), of_avro(one)) == {"reader_field_missing_default_value": False}
    assert rules(of_avro(), of_avro(one | {"default": 1})) == {"field_with_default_added": True}
    assert rules(of_avro(one), of_avro({"name": "b", "type": "int", "aliases": ["a"]})) == {"field_renamed": True}


@pytest.mark.parametrize(
    ("old", "new", "rule", "is_compatible"),
    [
        ("message A {}", "message A { int32 a = 1; }", "field_added", True),
        ("message A { int32 a = 1; }", "message A {}", "field_removed", True),
        ("message A { int32 a = 1; }", "message A { int32 b = 1; }", "field_name_changed", True),
        ("message A { int32 a = 1; }", "message A { int64 a = 1; }", "field_scalar_type_changed", True),
        ("message A { int32 a = 1; }", "message A { sint32 a = 1; }", "field_scalar_kind_changed", False),
        ("message A { int32 a = 1; }", "message A { string a = 1; }", "field_scalar_kind_changed", False),
        ("message A { string a = 1; }", "message A { bytes a = 1; }", "field_scalar_type_changed", True),
        ("message A { int32 a = 1; }", "message A { repeated int32 a = 1; }", "field_numeric_label_changed", False),
        (
            "message A { string a = 1; }",
            "message A { repeated string a = 1; }",
            "field_string_or_bytes_label_changed",
            True,
        ),
        ("message A { oneof o { int32 a = 1; } }", "message A {}", "oneof_field_removed", False),
        (
            "message A { int32 a = 1; int32 b = 2; }",
            "message A { oneof o { int32 a = 1; int32 b = 2; } }",
            "multiple_fields_moved_to_oneof",
            False,
        ),
        ("message A {} message B {}", "message A {}", "message_removed", False),
        ("message A {}", "message A {} message B {}", "message_added", True),
        ("message A { int32 b = 1; } message B {}", "message A { B b = 1; } message B {}", "field_kind_changed", False),
    ],
)
def test_protobuf_is_compared_by_the_rules(old: str, new: str, rule: str, is_compatible: bool) -> None:
    assert rules(of_proto(old), of_proto(new)).get(rule) is is_compatible


def test_modes_choose_versions_and_directions() -> None:
    versions = [of_json(obj(a=TEXT), 1), of_json(obj(a=INTEGER), 2)]

    def found(mode: Compatibility, schema: Any) -> list[tuple[int, str]]:
        return [(each.version, each.mode) for each in compatibility.find_conflicts(of_json(schema, 3, mode), versions)]

    wider = obj(a=NUMBER)
    assert found("none", obj(a=TEXT)) == []
    assert found("backward", wider) == []
    assert found("forward", wider) == [(2, "forward")]
    assert found("full", wider) == [(2, "forward")]
    assert found("backward_transitive", wider) == [(1, "backward")]
    assert found("full_transitive", wider) == [(1, "backward"), (1, "forward"), (2, "forward")]
    assert compatibility.find_conflicts(of_json(obj()), []) == []


def test_versions_have_one_format() -> None:
    with pytest.raises(BadSchema, match="is json"):
        compatibility.find_conflicts(of_avro(), [of_json(obj())])
