"""Random versions of a schema in each format, with payloads whose decoded fields are known without our codecs.

Belongs here: for JSON the decoder of schemas_world.py; for Avro and Protobuf values that are drawn first, and encoded
by the formats' own libraries.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import msgspec
from google.protobuf import descriptor_pb2, message_factory
from hypothesis import strategies as st

from lakestream.schemas.columns import List, Map, RecordType, Type
from lakestream.schemas.schema import Format
from lakestream_schemas.protobuf.model import message_of, read_files
from tests.unit import schemas_world

NAMES = ["a", "b", "B", "time", "token1", "data"]
"""Names of fields; with few of them, versions share fields of other types."""
WORDS = st.sampled_from(["", "x", "Grüße", "😀"])
LONGS = st.sampled_from([0, 1, -1, 2**31, 2**63 - 1, -(2**63)])
SMALL = st.sampled_from([0, 1, -1, 2**31 - 1, -(2**31)])
DOUBLES = st.sampled_from([0.0, 1.5, -1e300, float("inf")])
INSTANTS = st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1)).map(lambda each: each.replace(tzinfo=UTC))
DAYS = st.dates(date(1970, 1, 1), date(2200, 1, 1))
Fields = dict[str, Any]


class Version(msgspec.Struct, frozen=True):
    """A version of a schema. `payloads`: payloads with their fields by name, None for a misfit."""

    format: Format
    text: str
    payloads: st.SearchStrategy[tuple[bytes, Fields | None]]


def versions(format: Format) -> st.SearchStrategy[Version]:
    """Return versions in a format."""
    return {"json": _json, "avro": _avro, "protobuf": _protobuf}[format]()


def named(of: Type, value: Any) -> Any:
    """Return a value of a column with fields by their names in the payload; maps as lists of pairs."""
    if value is None:
        return None
    if isinstance(of, RecordType):
        return {field.name: named(field.type, value[field.column]) for field in of.fields}
    if isinstance(of, List):
        return [named(of.of, part) for part in value]
    if isinstance(of, Map):
        return {key: named(of.of, part) for key, part in value}
    if of.kind == "json":
        return (json.loads(value, parse_float=Decimal),)
    return value


# JSON


@st.composite
def _json(draw: st.DrawFn) -> Version:
    schema = draw(schemas_world.schemas())

    def decoded(payload: bytes) -> tuple[bytes, Fields | None]:
        try:
            return payload, schemas_world.expected(schema, payload)
        except schemas_world.Misfit:
            return payload, None

    return Version("json", json.dumps(schema), schemas_world.payloads(schema).map(decoded))


# Avro

Drawn = tuple[Any, st.SearchStrategy[Any]]
"""A type with its values."""


@st.composite
def _avro_type(draw: st.DrawFn, number: list[int], depth: int) -> Drawn:
    scalars: list[Drawn] = [
        ("boolean", st.booleans()),
        ("int", SMALL),
        ("long", LONGS),
        ("double", DOUBLES),
        ("string", WORDS),
        ("bytes", st.binary(max_size=3)),
        (["null", "string"], st.none() | WORDS),
        (["null", "long"], st.none() | LONGS),
        ({"type": "int", "logicalType": "date"}, DAYS),
        ({"type": "long", "logicalType": "timestamp-micros"}, INSTANTS),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            st.integers(-(10**8), 10**8).map(lambda value: Decimal(value).scaleb(-2)),
        ),
    ]
    kind = draw(st.integers(0, len(scalars) + 3))
    if kind < len(scalars) or not depth:
        return scalars[kind % len(scalars)]
    if kind == len(scalars):
        of, values = draw(_avro_type(number, depth - 1))
        return {"type": "array", "items": of}, st.lists(values, max_size=2)
    if kind == len(scalars) + 1:
        of, values = draw(_avro_type(number, depth - 1))
        return {"type": "map", "values": of}, st.dictionaries(WORDS, values, max_size=2)
    return draw(_avro_record(number, depth - 1))


@st.composite
def _avro_record(draw: st.DrawFn, number: list[int], depth: int) -> Drawn:
    number[0] += 1
    name = f"R{number[0]}"
    fields = {field: draw(_avro_type(number, depth)) for field in draw(_names())}
    schema = {"type": "record", "name": name, "fields": [{"name": n, "type": of} for n, (of, _) in fields.items()]}
    return schema, st.fixed_dictionaries({field: values for field, (_, values) in fields.items()})


def _names() -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(NAMES), unique=True, min_size=1, max_size=4)


@st.composite
def _avro(draw: st.DrawFn) -> Version:
    schema, values = draw(_avro_record([0], 2))
    parsed = fastavro.parse_schema(schema)

    def encoded(value: Any) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, value)
        return out.getvalue()

    return Version("avro", json.dumps(schema), _payloads(values, encoded, lambda payload: payload + b"\0"))


def _payloads(
    values: st.SearchStrategy[Any], encode: Callable[[Any], bytes], spoil: Callable[[bytes], bytes]
) -> st.SearchStrategy[tuple[bytes, Fields | None]]:
    """Return payloads, of which some do not fit."""

    def made(drawn: tuple[Any, int]) -> tuple[bytes, Fields | None]:
        value, kind = drawn
        return (spoil(encode(value)), None) if kind == 0 else (encode(value), value)

    return st.tuples(values, st.integers(0, 7)).map(made)


# Protobuf

_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS: dict[int, tuple[st.SearchStrategy[Any], Any]] = {
    _FIELD.TYPE_BOOL: (st.booleans(), False),
    _FIELD.TYPE_INT32: (SMALL, 0),
    _FIELD.TYPE_SINT64: (LONGS, 0),
    _FIELD.TYPE_FIXED32: (st.integers(0, 2**32 - 1), 0),
    _FIELD.TYPE_UINT64: (st.sampled_from([0, 1, 2**64 - 1]), 0),
    _FIELD.TYPE_DOUBLE: (DOUBLES, 0.0),
    _FIELD.TYPE_STRING: (WORDS, ""),
    _FIELD.TYPE_BYTES: (st.binary(max_size=3), b""),
}
"""Values, and the default, by type."""


@st.composite
def _protobuf_message(draw: st.DrawFn, message: Any, path: str, depth: int) -> st.SearchStrategy[Fields]:
    """Add fields to a message; return its values, in which a field without presence is never missing."""
    message.name = path.rpartition(".")[2]
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for number, name in enumerate(draw(_names()), 1):
        field = message.field.add(name=name, number=number)
        shape = draw(st.sampled_from(["one", "one", "optional", "repeated", "map", "message", "messages"]))
        if shape in ("message", "messages") and depth:
            inner = draw(_protobuf_message(message.nested_type.add(), f"{path}.M{number}", depth - 1))
            field.type, field.type_name = _FIELD.TYPE_MESSAGE, f"{path}.M{number}"
            field.label = _FIELD.LABEL_REPEATED if shape == "messages" else _FIELD.LABEL_OPTIONAL
            fields[name] = st.lists(inner, max_size=2) if shape == "messages" else st.none() | inner
            continue
        kind = draw(st.sampled_from(sorted(_SCALARS)))
        values, default = _SCALARS[kind]
        if kind == _FIELD.TYPE_UINT64:
            values, default = values.map(Decimal), Decimal(default)
        field.type, field.label = kind, _FIELD.LABEL_OPTIONAL
        if shape == "repeated":
            field.label = _FIELD.LABEL_REPEATED
            fields[name] = st.lists(values, max_size=2)
        elif shape == "map":
            entry = message.nested_type.add(name=f"{name.capitalize()}{number}Entry")
            entry.options.map_entry = True
            entry.field.add(name="key", number=1, type=_FIELD.TYPE_STRING, label=_FIELD.LABEL_OPTIONAL)
            entry.field.add(name="value", number=2, type=kind, label=_FIELD.LABEL_OPTIONAL)
            field.type, field.type_name = _FIELD.TYPE_MESSAGE, f"{path}.{entry.name}"
            field.label = _FIELD.LABEL_REPEATED
            fields[name] = st.dictionaries(WORDS, values, max_size=2)
        elif shape == "optional":
            field.proto3_optional, field.oneof_index = True, len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{name}{number}")
            fields[name] = st.none() | values
        else:
            fields[name] = st.just(default) | values
    return st.fixed_dictionaries(fields)


@st.composite
def _protobuf(draw: st.DrawFn) -> Version:
    file = descriptor_pb2.FileDescriptorProto(name="f.proto", syntax="proto3")
    values = draw(_protobuf_message(file.message_type.add(), ".Order", 2))
    raw: bytes = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    text = base64.b64encode(raw).decode()
    kind: Any = message_factory.GetMessageClass(message_of(read_files(text)))

    def encoded(value: Any) -> bytes:
        found: bytes = kind(**_plain(value)).SerializeToString(deterministic=True)
        return found

    return Version("protobuf", text, _payloads(values, encoded, lambda payload: payload + b"\x07"))


def _plain(value: Any) -> Any:
    """Return a value as the library takes it: without NULLs, integers for decimals."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return int(value) if isinstance(value, Decimal) else value
