"""Tests of definitions that refer to others, without a server."""

from __future__ import annotations

import json

import fastavro
import pytest

from lakestream.schemas.schema import Schema
from lakestream_registry.definitions import PostedSchema, SchemaLink, is_equal, schema_of, shown
from lakestream_registry.errors import RegistryError
from lakestream_registry.references import of_avro, of_json

INNER = {
    "type": "record",
    "name": "In",
    "namespace": "a",
    "fields": [{"name": "k", "type": {"type": "enum", "name": "K", "symbols": ["X"]}}],
}


def test_types_of_other_avro_schemas_are_defined_at_their_first_use() -> None:
    outer = {
        "type": "record",
        "name": "Out",
        "namespace": "b",
        "fields": [
            {"name": "kind", "type": "a.K"},
            {"name": "one", "type": "a.In"},
            {"name": "more", "type": {"type": "array", "items": ["null", "a.In"]}},
        ],
    }
    text = of_avro(json.dumps(outer), {"a.In": json.dumps(INNER)})
    parsed = fastavro.parse_schema(json.loads(text))
    value = {"kind": "X", "one": {"k": "X"}, "more": [None, {"k": "X"}]}
    assert fastavro.validate(value, parsed)


def test_other_json_schemas_come_into_the_definitions() -> None:
    inner = {
        "$id": "http://x/inner.json",
        "$defs": {"n": {"type": "integer"}},
        "properties": {"n": {"$ref": "#/$defs/n"}},
    }
    outer = {"type": "object", "properties": {"i": {"$ref": "inner.json"}, "n": {"$ref": "inner.json#/$defs/n"}}}
    found = json.loads(of_json(json.dumps(outer), {"inner.json": json.dumps(inner)}))
    assert found["properties"] == {
        "i": {"$ref": "#/$defs/reference_0"},
        "n": {"$ref": "#/$defs/reference_0/$defs/n"},
    }
    assert found["$defs"]["reference_0"]["properties"]["n"] == {"$ref": "#/$defs/reference_0/$defs/n"}
    with pytest.raises(RegistryError):
        of_json('{"$ref": "http://elsewhere/x.json"}', {})


def test_a_definition_with_references_makes_columns_and_is_given_back_as_it_was() -> None:
    inner = schema_of("in", PostedSchema(schema=json.dumps(INNER)), lambda link: pytest.fail("no reference"))
    outer = {"type": "record", "name": "Out", "fields": [{"name": "i", "type": "a.In"}]}
    link = SchemaLink("a.In", "in", 1)
    found = schema_of("out", PostedSchema(schema=json.dumps(outer), references=[link]), lambda link: inner)
    assert '"symbols"' in found.text
    assert shown(found)["schema"] == json.dumps(outer, separators=(",", ":"))
    assert shown(found)["references"] == [{"name": "a.In", "subject": "in", "version": 1}]
    plain = schema_of("out", PostedSchema(schema=found.text), lambda link: inner)
    assert not is_equal(found, plain, normalized=True)


def test_avro_definitions_are_equal_however_their_names_are_ordered() -> None:
    def of(value: object, **more: object) -> Schema:
        posted = PostedSchema(schema=json.dumps(value), **more)  # type: ignore[arg-type]
        return schema_of("x", posted, lambda link: pytest.fail("no reference"))

    java = of({"type": "record", "name": "O", "namespace": "a", "fields": [{"name": "n", "type": "string"}]})
    other = {"namespace": "a", "name": "O", "fields": [{"type": {"type": "string"}, "name": "n"}], "type": "record"}
    assert java.text != of(other).text
    assert is_equal(java, of(other), normalized=False)
    assert is_equal(of("string"), of({"type": "string"}), normalized=False)
    assert not is_equal(java, of({**other, "doc": "x"}), normalized=False)
    assert not is_equal(of(other, metadata={"properties": {"a": "b"}}), java, normalized=False)
    assert not is_equal(of({"type": "long"}), of({"type": "long", "logicalType": "x"}), normalized=False)


def test_definitions_are_equal_in_any_order_when_normalized() -> None:
    def of(text: str) -> object:
        return schema_of("x", PostedSchema(schema=text, schema_type="JSON"), lambda link: pytest.fail("no reference"))

    one, other = of('{"type": "object", "title": "x"}'), of('{"title": "x", "type": "object"}')
    assert not is_equal(one, other, normalized=False)  # type: ignore[arg-type]
    assert is_equal(one, other, normalized=True)  # type: ignore[arg-type]
