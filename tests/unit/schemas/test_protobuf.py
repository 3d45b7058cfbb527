"""Tests of Protobuf payloads."""

from __future__ import annotations

import base64
import json
from decimal import Decimal
from functools import cache
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, message_factory, text_format
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.schemas.columns import JSON, List, Map, Scalar
from lakestream.schemas.errors import BadSchema
from lakestream_schemas.protobuf.codec import ProtobufCodec
from lakestream_schemas.protobuf.model import message_of, read_files
from lakestream_schemas.protobuf.protoc import compile_proto
from lakestream_schemas.records import MAX_NESTING

pytestmark = pytest.mark.unit

PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
message Order {
  string id = 1;
  optional string note = 2;
  int64 qty = 3;
  uint64 big = 4;
  double price = 5;
  google.protobuf.Timestamp at = 6;
  enum Kind { NEW = 0; OLD = 1; }
  Kind kind = 7;
  repeated string tags = 8;
  message Line { string sku = 1; optional int32 n = 2; }
  Line line = 9;
  repeated Line lines = 10;
  oneof paid { int32 card = 11; string cash = 12; }
  map<string, Line> by_name = 13;
  map<uint64, int32> by_number = 14;
  google.protobuf.Int64Value limit = 15;
  bytes raw = 16;
  repeated Kind kinds = 17;
}
message Tree { int32 v = 1; repeated Tree kids = 2; google.protobuf.Struct free = 3; }
"""


@cache
def descriptors() -> str:
    return compile_proto(PROTO)


def message_class(name: str) -> Any:
    return message_factory.GetMessageClass(message_of(read_files(descriptors()), name))


TEXTS = st.sampled_from(["", "x", "Grüße"])
LINES = st.fixed_dictionaries({}, optional={"sku": TEXTS, "n": st.integers(-9, 9)})
ORDERS = st.fixed_dictionaries(
    {},
    optional={
        "id": TEXTS,
        "note": TEXTS,
        "qty": st.integers(-(2**63), 2**63 - 1),
        "big": st.integers(0, 2**64 - 1),
        "price": st.floats(allow_nan=False),
        "at": st.fixed_dictionaries({"seconds": st.integers(-(10**9), 10**10), "nanos": st.sampled_from([0, 1000, 7])}),
        "kind": st.integers(0, 3),
        "tags": st.lists(TEXTS, max_size=2),
        "line": LINES,
        "lines": st.lists(LINES, max_size=2),
        "card": st.integers(0, 5),
        "by_name": st.dictionaries(TEXTS, LINES, max_size=1),
        "by_number": st.dictionaries(st.integers(0, 2**64 - 1), st.integers(0, 5), max_size=1),
        "limit": st.fixed_dictionaries({"value": st.integers(-5, 5)}),
        "raw": st.binary(max_size=3),
        "kinds": st.lists(st.integers(0, 2), max_size=2),
    },
)


@settings(max_examples=80, deadline=None)
@given(st.lists(ORDERS, min_size=1, max_size=4))
def test_a_batch_has_the_values_of_the_messages_and_is_given_back(values: list[dict[str, Any]]) -> None:
    codec = ProtobufCodec(descriptors())
    messages = [message_class("shop.Order")(**value) for value in values]
    batch = [message.SerializeToString(deterministic=True) for message in messages]
    decoded = codec.decode(batch)
    assert decoded.misfits == []
    for row, message in zip(decoded.columns.to_pylist(), messages, strict=True):
        assert row["id"] == message.id
        assert row["note"] == (message.note if message.HasField("note") else None)
        assert row["big"] == Decimal(message.big)
        assert row["card"] == (message.card if message.HasField("card") else None)
        assert row["kind"] == {0: "NEW", 1: "OLD"}.get(message.kind, str(message.kind))
        assert row["tags"] == list(message.tags)
        assert row["limit"] == (message.limit.value if message.HasField("limit") else None)
        assert [line["sku"] for line in row["lines"]] == [line.sku for line in message.lines]
        assert dict(row["by_number"]) == {str(key): value for key, value in message.by_number.items()}
    formats = codec.formats(decoded.columns, batch)
    for payload, value, text in zip(batch, values, codec.encode(decoded.columns, formats).to_pylist(), strict=True):
        # Nanoseconds are more than the column has.
        assert text == (None if value.get("at", {}).get("nanos") == 7 else payload)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=30))
def test_no_payload_breaks_the_decoder(payload: bytes) -> None:
    codec = ProtobufCodec(descriptors())
    decoded = codec.decode([payload])
    assert bool(decoded.misfits) == (codec.fits(payload) is not None)
    if not decoded.misfits:
        text = codec.encode(decoded.columns, codec.formats(decoded.columns, [payload]))[0].as_py()
        assert text in (None, payload)


def test_unknown_fields_keep_the_payload() -> None:
    codec = ProtobufCodec(descriptors())
    payload = b"\x0a\x01x\xf8\x07\x01"
    decoded = codec.decode([payload])
    assert decoded.columns["id"].to_pylist() == ["x"]
    assert codec.formats(decoded.columns, [payload]).null_count == 1


@pytest.mark.parametrize(
    "payload", [b"\x0a\x01\xff", b"\x12\x01\xff", b"\x1a\x04\x0a\x00\x12\x00\x1a\x06\x0a\x01a\x12\x01\xff"]
)
def test_a_string_of_proto2_that_is_not_utf8_is_a_misfit(payload: bytes) -> None:
    text = 'syntax = "proto2"; message M { optional string a = 1; repeated string b = 2; map<string, string> c = 3; }'
    codec = ProtobufCodec(compile_proto(text))
    decoded = codec.decode([b"\x0a\x01x", payload])
    assert [(misfit.row, misfit.misfit.rule) for misfit in decoded.misfits] == [(1, "utf-8")]
    assert decoded.columns["a"].to_pylist() == ["x", None]


def test_recursive_and_free_messages_are_json_text() -> None:
    codec = ProtobufCodec(descriptors(), "shop.Tree")
    assert [field.type for field in codec.record.fields] == [Scalar("integer"), List(JSON), JSON]
    message = message_class("shop.Tree")(v=1, kids=[{"v": 2}])
    decoded = codec.decode([message.SerializeToString()])
    assert decoded.columns.to_pylist() == [{"v": 1, "kids": ['{"v": 2}'], "free": None}]


def test_a_deeply_nested_payload_is_a_misfit() -> None:
    payload = b""
    for _ in range(150):
        size = len(payload)
        length = bytes([size]) if size < 128 else bytes([size & 0x7F | 0x80, size >> 7])
        payload = b"\x12" + length + payload
    assert ProtobufCodec(descriptors(), "shop.Tree").fits(payload) is not None


ANYS = """
syntax = "proto3";
package shop;
import "google/protobuf/any.proto";
message Event { string id = 1; google.protobuf.Any what = 2; repeated google.protobuf.Any more = 3; }
message Paid { int64 cents = 1; google.protobuf.Any by = 2; }
message Node { string name = 1; Node next = 2; map<string, google.protobuf.Any> tags = 3; }
message Holder { Node node = 1; }
"""


def any_of(url: str, message: Any) -> dict[str, Any]:
    value = message if isinstance(message, bytes) else message.SerializeToString()
    return {"type_url": f"type.googleapis.com/{url}", "value": value}


def test_an_any_is_json_text_with_its_type() -> None:
    text = compile_proto(ANYS)
    kinds = {
        name: message_factory.GetMessageClass(message_of(read_files(text), f"shop.{name}"))
        for name in ("Event", "Paid", "Node", "Holder")
    }
    own, foreign = any_of("shop.Paid", kinds["Paid"](cents=5)), any_of("other.Thing", b"\x08\x01")
    nested = any_of("shop.Paid", kinds["Paid"](cents=6, by=foreign))
    well_known = any_of("google.protobuf.Duration", duration_pb2.Duration(seconds=3))
    event = kinds["Event"](id="a", what=own, more=[foreign, nested, well_known, any_of("shop.Paid", b"\xff"), {}])
    codec = ProtobufCodec(text, "shop.Event")
    payload = event.SerializeToString()
    assert codec.fits(payload) is None
    decoded = codec.decode([payload])
    assert decoded.misfits == []
    (row,) = decoded.columns.to_pylist()
    unknown = {"@type": "type.googleapis.com/other.Thing", "value": "CAE="}
    assert json.loads(row["what"]) == {"@type": "type.googleapis.com/shop.Paid", "cents": "5"}
    assert [json.loads(each) for each in row["more"]] == [
        unknown,
        {"@type": "type.googleapis.com/shop.Paid", "cents": "6", "by": unknown},
        {"@type": "type.googleapis.com/google.protobuf.Duration", "value": "3s"},
        {"@type": "type.googleapis.com/shop.Paid", "value": "/w=="},
        {},
    ]
    inner = {"name": "b", "tags": {"x": foreign, "y": own}}
    holder = kinds["Holder"](node={"name": "a", "next": inner})
    (row,) = ProtobufCodec(text, "shop.Holder").decode([holder.SerializeToString()]).columns.to_pylist()
    found = json.loads(row["node"]["next"])
    assert found == {"name": "b", "tags": {"x": unknown, "y": {"@type": "type.googleapis.com/shop.Paid", "cents": "5"}}}


def test_an_any_in_an_any_is_read_to_a_limit_only() -> None:
    text = compile_proto(ANYS)
    codec = ProtobufCodec(text, "shop.Event")
    kind = message_factory.GetMessageClass(message_of(read_files(text), "shop.Paid"))
    deep = any_of("shop.Paid", kind(cents=1))
    for _ in range(3_000):
        deep = any_of("shop.Paid", kind(by=deep))
    event = message_factory.GetMessageClass(message_of(read_files(text), "shop.Event"))(what=deep)
    (row,) = codec.decode([event.SerializeToString()]).columns.to_pylist()
    found, levels = json.loads(row["what"]), 0
    while "by" in found:
        found, levels = found["by"], levels + 1
    assert levels == MAX_NESTING
    assert found.keys() == {"@type", "value"}


def test_maps_have_keys_of_their_type() -> None:
    types = {field.name: field.type for field in ProtobufCodec(descriptors()).record.fields}
    assert isinstance(types["by_name"], Map)
    assert types["by_number"] == Map(Scalar("string"), Scalar("integer"))


@pytest.mark.parametrize("text", ["", "syntax", 'syntax="proto3"; import "/etc/passwd"; message A {}', "message {"])
def test_a_proto_text_that_does_not_compile_is_refused(text: str) -> None:
    with pytest.raises(BadSchema, match=r"\w"):
        ProtobufCodec(compile_proto(text))


def test_a_descriptor_set_that_cannot_be_used_is_refused() -> None:
    def encoded(*files: descriptor_pb2.FileDescriptorProto) -> str:
        return base64.b64encode(descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()).decode()

    one = descriptor_pb2.FileDescriptorProto(name="a", dependency=["b"])
    two = descriptor_pb2.FileDescriptorProto(name="b", dependency=["a"])
    for text in (
        "?",
        "AAAA",
        encoded(),
        encoded(one),
        encoded(one, two),
        encoded(descriptor_pb2.FileDescriptorProto(name="c")),
    ):
        with pytest.raises(BadSchema, match=r"\w"):
            ProtobufCodec(text)
    with pytest.raises(BadSchema, match="no message"):
        ProtobufCodec(descriptors(), "shop.Nothing")


def descriptor_set(text: str, *names: str) -> str:
    """Return a descriptor set in base64, with some well-known files."""
    file = text_format.Parse(text, descriptor_pb2.FileDescriptorProto())
    known = [descriptor_pb2.FileDescriptorProto() for _ in names]
    for name, proto in zip(names, known, strict=True):
        descriptor_pool.Default().FindFileByName(name).CopyToProto(proto)
    return base64.b64encode(descriptor_pb2.FileDescriptorSet(file=[*known, file]).SerializeToString()).decode()


ENTRY = """
name: "f" syntax: "proto3" message_type {{
  name: "M"
  field {{ name: "m" number: 1 type: TYPE_MESSAGE type_name: ".M.E" label: {label} }}
  nested_type {{ name: "E" options {{ map_entry: true }} {fields} }}
}}
"""
KEY = 'field { name: "key" number: 1 type: %s label: LABEL_OPTIONAL }'
VALUE = 'field { name: "value" number: 2 type: TYPE_INT32 label: LABEL_OPTIONAL }'
STAMP_FILE = "google/protobuf/timestamp.proto"
STAMP = """
name: "google/protobuf/timestamp.proto" package: "google.protobuf" syntax: "proto3"
message_type { name: "Timestamp" field { name: "seconds" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL } }
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            ENTRY.format(label="LABEL_REPEATED", fields=KEY % "TYPE_STRING" + VALUE.replace("value", "v")),
            "entries of a key and a value",
        ),
        (ENTRY.format(label="LABEL_OPTIONAL", fields=KEY % "TYPE_STRING" + VALUE), "entries of a key and a value"),
        (ENTRY.format(label="LABEL_REPEATED", fields=KEY % "TYPE_DOUBLE" + VALUE), "map key"),
        (STAMP, "Timestamp is another message"),
    ],
)
def test_a_descriptor_set_that_no_compiler_writes_is_refused(text: str, reason: str) -> None:
    with pytest.raises(BadSchema, match=reason):
        ProtobufCodec(descriptor_set(text))


def test_well_known_messages_are_those_of_the_library() -> None:
    text = """
    name: "f" syntax: "proto3" dependency: "google/protobuf/timestamp.proto" message_type {
      name: "M"
      field { name: "t" number: 1 type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp" label: LABEL_OPTIONAL }
    }"""
    codec = ProtobufCodec(descriptor_set(text, STAMP_FILE))
    assert codec.value(b"\x0a\x02\x08\x05") == (5_000_000,)
