"""Targets: schemas that a client registers, and payloads that are checked and decoded by them."""

from __future__ import annotations

import base64
import functools
import io
import json
from collections.abc import Sequence
from typing import Any

import fastavro
from google.protobuf import (
    descriptor_pb2,
    duration_pb2,
    message_factory,
    struct_pb2,
    text_format,
    timestamp_pb2,
    wrappers_pb2,
)

from lakestream.schemas.codec import codec_of
from lakestream.schemas.errors import BadSchema, Unfit
from lakestream.schemas.schema import Format, Schema
from lakestream_schemas.compatibility import find_conflicts
from lakestream_schemas.payloads import PayloadCodec
from lakestream_schemas.protobuf.model import message_of, read_files
from tests.fuzz.target import Target

# ---------------------------------------------------------------------- schemas


def _schema(format: Format, text: str) -> None:
    """Read a schema as a registration does: its codec, payloads, and the comparison with itself."""
    schema = Schema("s", 1, format, text, compatibility="full")
    codec = codec_of(schema)
    for payload in (b"", b"{}", b'{"a":1,"b":[{"a":null}]}', b"\0\2\4", bytes(range(64))):
        _payload(codec, payload)
    assert not find_conflicts(schema, [schema])


def _json_schema(data: bytes) -> None:
    _schema("json", data.decode("utf-8", "surrogateescape"))


def _avro_schema(data: bytes) -> None:
    _schema("avro", data.decode("utf-8", "surrogateescape"))


def _proto_schema(data: bytes) -> None:
    _schema("protobuf", base64.b64encode(data).decode())


JSON_SCHEMAS: tuple[Any, ...] = (
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": ["string", "null"]}}, "required": ["a"]},
    {"type": "object", "properties": {"at": {"type": "string", "format": "date-time"}, "x": {"type": "number"}}},
    {"properties": {"p": {"type": "string", "format": "decimal(10,2)"}, "d": {"type": "string", "format": "date"}}},
    {"properties": {"l": {"type": "array", "items": {"properties": {"n": {"type": "integer", "format": "uint64"}}}}}},
    {"properties": {"m": {"type": "object", "additionalProperties": {"type": "boolean"}}}, "minProperties": 1},
    {"$defs": {"t": {"properties": {"k": {"$ref": "#/$defs/t"}}}}, "properties": {"t": {"$ref": "#/$defs/t"}}},
    {"allOf": [{"properties": {"a": {"type": "string", "pattern": "^a+$"}}}, {"properties": {"b": {"const": 1}}}]},
    {"properties": {"u": {"anyOf": [{"type": "null"}, {"type": "number"}]}, "o": {"oneOf": [{}, {"enum": [1, "x"]}]}}},
    {"if": {"properties": {"a": {"const": 1}}}, "then": {"required": ["b"]}, "properties": {"a": {"type": "integer"}}},
    {"properties": {"s": {"type": "string", "minLength": 1}}, "patternProperties": {"^x": {"type": "integer"}}},
    {"properties": {"n": {"multipleOf": 0.5, "exclusiveMaximum": 9}}, "dependentRequired": {"n": ["m"]}},
    {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"i": {"type": "integer"}},
     "properties": {"i": {"$ref": "#/definitions/i"}}, "additionalProperties": False},
)  # fmt: skip
_TREE = {"type": "record", "name": "T", "fields": [{"name": "v", "type": "int"},
         {"name": "k", "type": {"type": "array", "items": "T"}}]}  # fmt: skip
AVRO_SCHEMAS: tuple[Any, ...] = (
    {"type": "record", "name": "R", "fields": [
        {"name": "a", "type": "long"}, {"name": "b", "type": ["null", "string"], "default": None},
        {"name": "c", "type": {"type": "map", "values": "double"}}, {"name": "d", "type": "boolean"}]},
    {"type": "record", "name": "R", "namespace": "n.s", "fields": [
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"], "default": "A"}},
        {"name": "f", "type": {"type": "fixed", "name": "F", "size": 4}}, {"name": "g", "type": "E"}]},
    {"type": "record", "name": "R", "fields": [
        {"name": "t", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "d", "type": {"type": "int", "logicalType": "date"}},
        {"name": "p", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "u", "type": {"type": "string", "logicalType": "uuid"}}]},
    {"type": "record", "name": "R", "fields": [{"name": "t", "type": _TREE}, {"name": "x", "type": ["int", "string"]}]},
    {"type": "record", "name": "R", "aliases": ["Q"], "fields": [
        {"name": "l", "aliases": ["m"], "type": {"type": "array", "items": {"type": "record", "name": "I", "fields": [
            {"name": "n", "type": "float"}, {"name": "b", "type": "bytes"}]}}, "default": []}]},
)  # fmt: skip
PROTO = """
name: "f" package: "p" syntax: "proto3"
message_type {
  name: "M"
  field { name: "a" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL }
  field { name: "b" number: 2 type: TYPE_STRING label: LABEL_REPEATED }
  field { name: "i" number: 3 type: TYPE_MESSAGE type_name: ".p.M.I" label: LABEL_REPEATED }
  field { name: "e" number: 4 type: TYPE_ENUM type_name: ".p.E" label: LABEL_OPTIONAL }
  field { name: "u" number: 5 type: TYPE_UINT64 label: LABEL_OPTIONAL oneof_index: 0 }
  field { name: "x" number: 6 type: TYPE_DOUBLE label: LABEL_OPTIONAL oneof_index: 0 }
  field { name: "m" number: 7 type: TYPE_MESSAGE type_name: ".p.M.Pair" label: LABEL_REPEATED }
  field { name: "r" number: 8 type: TYPE_BYTES label: LABEL_OPTIONAL }
  nested_type { name: "I" field { name: "n" number: 1 type: TYPE_SINT32 label: LABEL_OPTIONAL } }
  nested_type {
    name: "Pair" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type: TYPE_MESSAGE type_name: ".p.M.I" label: LABEL_OPTIONAL }
  }
  oneof_decl { name: "o" }
}
enum_type { name: "E" value { name: "Z" number: 0 } value { name: "Y" number: 1 } }
"""
TREE = """
name: "t" syntax: "proto2"
message_type {
  name: "T"
  field { name: "v" number: 1 type: TYPE_FIXED64 label: LABEL_REQUIRED }
  field { name: "k" number: 2 type: TYPE_MESSAGE type_name: ".T" label: LABEL_REPEATED }
  field { name: "f" number: 3 type: TYPE_FLOAT label: LABEL_REPEATED options { packed: true } }
}
"""


KNOWN = """
name: "k" syntax: "proto3" dependency: "google/protobuf/timestamp.proto" dependency: "google/protobuf/struct.proto"
dependency: "google/protobuf/wrappers.proto" dependency: "google/protobuf/duration.proto"
message_type {
  name: "K"
  field { name: "t" number: 1 type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp" label: LABEL_OPTIONAL }
  field { name: "s" number: 2 type: TYPE_MESSAGE type_name: ".google.protobuf.Struct" label: LABEL_OPTIONAL }
  field { name: "w" number: 3 type: TYPE_MESSAGE type_name: ".google.protobuf.Int64Value" label: LABEL_OPTIONAL }
  field { name: "k" number: 4 type: TYPE_MESSAGE type_name: ".K" label: LABEL_OPTIONAL }
  field { name: "d" number: 5 type: TYPE_MESSAGE type_name: ".google.protobuf.Duration" label: LABEL_OPTIONAL }
}
"""
PROTOS = (PROTO, TREE, KNOWN)


def _file_set(text: str) -> bytes:
    file = text_format.Parse(text, descriptor_pb2.FileDescriptorProto())
    modules = (timestamp_pb2, struct_pb2, wrappers_pb2, duration_pb2)
    imports = [descriptor_pb2.FileDescriptorProto() for _ in modules]
    for module, proto in zip(modules, imports, strict=True):
        module.DESCRIPTOR.CopyToProto(proto)
    files = [each for each in imports if each.name in file.dependency]
    found: bytes = descriptor_pb2.FileDescriptorSet(file=[*files, file]).SerializeToString()
    return found


# ---------------------------------------------------------------------- payloads


def _payload(codec: PayloadCodec, payload: bytes) -> None:
    """Check that a payload has the same value, or misfit, alone and between others, and is given back exactly."""
    try:
        value, misfit = codec.value(payload), None
    except Unfit as unfit:
        value, misfit = None, unfit.misfit
    assert (codec.fits(payload) is None) == (misfit is None)
    decoded = codec.decode([payload, None, payload])
    assert [each.row for each in decoded.misfits] == ([0, 1, 2] if misfit is not None else [1])
    if misfit is not None:
        assert decoded.misfits[0].misfit.rule == misfit.rule
    elif not codec.record.fields:
        return
    alone = codec.decode([payload]).columns
    assert decoded.columns.slice(2, 1).equals(alone) or "nan" in str(value), payload
    kept = [None if misfit is not None else payload, None, payload if misfit is None else None]
    formats = codec.formats(decoded.columns, kept)
    for text, given in zip(formats.to_pylist(), codec.encode(decoded.columns, formats).to_pylist(), strict=True):
        assert given == (None if text is None else payload)


def _payloads(codecs: Sequence[PayloadCodec], data: bytes) -> None:
    """Decode the rest of some bytes by the schema whose number is the first one."""
    if not data:
        return
    codec = codecs[data[0] % len(codecs)]
    _payload(codec, data[1:])
    codec.value(data[1:])


@functools.cache
def _json_codecs() -> list[PayloadCodec]:
    return [codec_of(Schema("s", 1, "json", json.dumps(each))) for each in JSON_SCHEMAS]


@functools.cache
def _avro_codecs() -> list[PayloadCodec]:
    return [codec_of(Schema("s", 1, "avro", json.dumps(each))) for each in AVRO_SCHEMAS]


@functools.cache
def _proto_sets() -> list[str]:
    return [base64.b64encode(_file_set(text)).decode() for text in PROTOS]


@functools.cache
def _proto_codecs() -> list[PayloadCodec]:
    return [codec_of(Schema("s", 1, "protobuf", text)) for text in _proto_sets()]


JSON_VALUES: tuple[tuple[int, Any], ...] = (
    (0, {"a": 1, "b": "x"}),
    (1, {"at": "2026-05-01T12:00:00.123Z", "x": 1.5}),
    (2, {"p": "12.50", "d": "2026-05-01"}),
    (3, {"l": [{"n": 1 << 63}, {}]}),
    (4, {"m": {"a": True, "é": False}}),
    (5, {"t": {"k": {"k": {}}}}),
    (6, {"a": "aa", "b": 1}),
    (7, {"u": None, "o": "z"}),
    (8, {"a": 1, "b": 2}),
    (9, {"s": "\u2028", "x1": 3}),
    (10, {"n": 2.5, "m": 0}),
    (11, {"i": -1}),
)
AVRO_VALUES: tuple[tuple[int, Any], ...] = (
    (0, {"a": -5, "b": "x", "c": {"k": 1.5}, "d": True}),
    (1, {"e": "B", "f": b"abcd", "g": "A"}),
    (2, {"t": 1_700_000_000_000_000, "d": 20_000, "p": b"\x04\xd2", "u": "00000000-0000-0000-0000-000000000000"}),
    (3, {"t": {"v": 1, "k": [{"v": 2, "k": []}]}, "x": "s"}),
    (4, {"l": [{"n": 1.0, "b": b"\0"}]}),
)
PROTO_VALUES: tuple[tuple[int, dict[str, Any]], ...] = (
    (0, {"a": -1, "b": ["x", ""], "i": [{"n": -3}, {}], "e": 1, "u": 1 << 63, "m": {"k": {"n": 1}}, "r": b"\xff"}),
    (0, {"x": -0.0, "e": 7}),
    (2, {"t": {"seconds": 5, "nanos": 7}, "w": {"value": 3}, "k": {"d": {"seconds": -1}, "s": {"a": [1, None]}}}),
    (1, {"v": 1, "k": [{"v": 2}, {"v": 3, "k": [{"v": 4}]}], "f": [1.5, float("inf")]}),
)


def _json_seeds() -> list[bytes]:
    return [bytes([number]) + json.dumps(value).encode() for number, value in JSON_VALUES]


def _avro_seeds() -> list[bytes]:
    found = []
    for number, value in AVRO_VALUES:
        plain = json.loads(json.dumps(AVRO_SCHEMAS[number]).replace('"logicalType"', '"was"'))
        out = io.BytesIO()
        fastavro.schemaless_writer(out, plain, value)
        found.append(bytes([number]) + out.getvalue())
    return found


def _proto_seeds() -> list[bytes]:
    found = []
    for number, value in PROTO_VALUES:
        kind: Any = message_factory.GetMessageClass(message_of(read_files(_proto_sets()[number])))
        found.append(bytes([number]) + kind(**value).SerializeToString(deterministic=True))
    return found


_KEYWORDS = (
    *("properties", "items", "$ref", "$defs", "allOf", "anyOf", "oneOf", "not", "if", "then", "enum", "const", "type"),
    *("pattern", "patternProperties", "additionalProperties", "required", "format", "multipleOf", "prefixItems"),
)

_ATTRIBUTES = ("type", "fields", "name", "items", "values", "logicalType", "size", "symbols", "default", "aliases")


def _names(words: Sequence[str]) -> list[bytes]:
    return [b'"%s":' % word.encode() for word in words]


def _texts(words: Sequence[str]) -> list[bytes]:
    return [b'"%s"' % word.encode() for word in words]


TARGETS = (
    Target(
        "json_schemas",
        "JSON Schemas, as they are registered",
        _json_schema,
        (BadSchema,),
        lambda: [json.dumps(each).encode() for each in JSON_SCHEMAS],
        [*_names(_KEYWORDS), *_texts(("#/$defs/t", "#", "object", "array", "date-time")), b"{}", b"[]"],
    ),
    Target(
        "avro_schemas",
        "Avro schemas, as they are registered",
        _avro_schema,
        (BadSchema,),
        lambda: [json.dumps(each).encode() for each in AVRO_SCHEMAS],
        [*_names(_ATTRIBUTES), *_texts(("record", "array", "map", "enum", "fixed", "null", "decimal", "date"))],
    ),
    Target(
        "proto_schemas",
        "descriptor sets of Protobuf, as they are registered",
        _proto_schema,
        (BadSchema,),
        lambda: [_file_set(text) for text in PROTOS],
        (b"\x0a\x01f", b".p.M", b"proto2", b"google/protobuf/timestamp.proto", b".google.protobuf.Timestamp"),
    ),
    Target(
        "json_payloads",
        "JSON payloads by twelve schemas: alone, in a batch, and back",
        lambda data: _payloads(_json_codecs(), data),
        (Unfit,),
        _json_seeds,
        (b"null", b"true", b"1e308", b"-0.0", b'"\\u0000"', b"\\ud800", b'"2026-05-01T12:00:00+02:00"', b"[["),
    ),
    Target(
        "avro_payloads",
        "Avro payloads by five schemas: alone, in a batch, and back",
        lambda data: _payloads(_avro_codecs(), data),
        (Unfit,),
        _avro_seeds,
        (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x01\x02", b"\x80\x00"),
    ),
    Target(
        "proto_payloads",
        "Protobuf payloads by three schemas: alone, in a batch, and back",
        lambda data: _payloads(_proto_codecs(), data),
        (Unfit,),
        _proto_seeds,
        (b"\x12\x02\x08\x01", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x1a\x00", b"\x0b\x0c"),
    ),
)
