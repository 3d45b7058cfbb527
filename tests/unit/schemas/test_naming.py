"""Tests of the names of schemas: documents, references, rules of streams, prefixes and columns."""

from __future__ import annotations

import base64
import struct

import msgspec
import pyarrow as pa
import pytest

from lakestream.schemas import framing, naming
from lakestream.schemas.codec import codec_of, encode_rows
from lakestream.schemas.columns import INTEGER, STRING, RecordType, arrow_schema, column_names, ddl
from lakestream.schemas.errors import BadSchema, Unfit
from lakestream.schemas.schema import MAX_DOCUMENT, MAX_TEXT, Reference, Schema, parse_document, parse_reference
from lakestream_schemas.avro.fingerprint import fingerprint
from lakestream_schemas.formats import prepared
from lakestream_schemas.records import record_of

pytestmark = pytest.mark.unit

TEXT = '{"type":"object","properties":{"a":{"type":"integer"}}}'
ORDERS = Schema("orders", 3, "json", TEXT, id=7)
SINGLE = '{"type":"record","name":"r","fields":[{"name":"a","type":"long"}]}'


def test_a_document_reads_back() -> None:
    assert parse_document(ORDERS.document()) == ORDERS
    assert ORDERS.reference == "orders@3"


@pytest.mark.parametrize(
    "change",
    [
        {"name": ""},
        {"name": "a b"},
        {"name": "a@b"},
        {"name": "x" * 200},
        {"name": "a..b"},
        {"version": 0},
        {"version": 65},
        {"format": "xml"},
        {"compatibility": "sideways"},
        {"text": "x" * (MAX_TEXT + 1)},
        {"id": -1},
        {"message": "A"},
    ],
)
def test_a_document_outside_of_the_limits_is_refused(change: dict[str, object]) -> None:
    document = msgspec.json.decode(ORDERS.document()) | change
    with pytest.raises(BadSchema, match=r"\w"):
        parse_document(msgspec.json.encode(document))


def test_a_document_that_is_no_document_is_refused() -> None:
    for raw in (b"", b"{}", b"[]", b"\xff", b" " * (MAX_DOCUMENT + 1)):
        with pytest.raises(BadSchema, match=r"\w"):
            parse_document(raw)


def test_references() -> None:
    assert parse_reference("orders") == parse_reference("orders@latest") == Reference("orders")
    assert parse_reference("eu.orders@12") == Reference("eu.orders", 12)
    for text in ("", "@", "orders@", "orders@0", "orders@65", "orders@1.5", "orders@new", "a b@1"):
        with pytest.raises(BadSchema, match=r"\w"):
            parse_reference(text)


def test_a_rule_per_subject_pattern_the_first_that_matches() -> None:
    rules = naming.parse('{"orders.eu.>": "eu@3", "orders.*": "orders@latest", "raw.>": "@confluent"}')
    assert rules.named(b"orders.eu.1", b"", b"") == naming.NamedSchema(Reference("eu", 3))
    assert rules.named(b"orders.us", b"", b"") == naming.NamedSchema(Reference("orders"))
    assert rules.named(b"other", b"", b"") == naming.NamedSchema()
    named = rules.named(b"raw.x", b"", b"\0\0\0\0\x09body")
    assert named.prefix is not None
    assert (named.reference, named.prefix.id, named.prefix.raw) == (None, 9, b"\0\0\0\0\x09")
    assert rules.references() == (Reference("eu", 3), Reference("orders"))
    with pytest.raises(Unfit, match="magic byte"):
        rules.named(b"raw.x", b"", b"{}")


def test_the_header_counts_before_the_rule() -> None:
    block = b"NATS/1.0\r\nNats-Schema: other@2\r\n\r\n"
    assert naming.parse("orders").named(b"a", block, b"").reference == Reference("other", 2)
    assert naming.parse("@header").named(b"a", b"", b"") == naming.NamedSchema()
    named = naming.parse("@confluent").named(b"a", block, b"\0\0\0\0\x09body")
    assert named.reference == Reference("other", 2)
    assert named.prefix is not None
    with pytest.raises(Unfit, match="Nats-Schema"):
        naming.parse("orders").named(b"a", b"NATS/1.0\r\nNats-Schema: a b\r\n\r\n", b"")


@pytest.mark.parametrize(
    "text", ["", "@nothing", "a b", "{", "{}", '{"a..b": "x"}', '{"a": 1}', '{"a": "@x"}', "x" * 200]
)
def test_a_rule_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(BadSchema, match=r"\w"):
        naming.parse(text)


def test_the_wire_format_of_confluent() -> None:
    assert framing.confluent(struct.pack(">xI", 5) + b"\x00rest", is_protobuf=True).path == (0,)
    found = framing.confluent(struct.pack(">xI", 5) + b"\x04\x02\x00rest", is_protobuf=True)
    assert (found.path, found.raw) == ((1, 0), b"\0\0\0\0\x05\x04\x02\x00")
    for payload in (b"", b"\0\0\0", b"\1\0\0\0\1", struct.pack(">xI", 5), struct.pack(">xI", 5) + b"\xff" * 9):
        with pytest.raises(Unfit):
            framing.confluent(payload, is_protobuf=True)


def test_the_fingerprint_is_that_of_the_specification() -> None:
    """The value for `"int"` is 0x7275d51a3f395c8f, in all implementations."""
    assert fingerprint('"int"') == bytes.fromhex("7275d51a3f395c8f")[::-1]
    found = framing.single_object(b"\xc3\x01" + fingerprint(SINGLE) + b"\x02")
    assert found.fingerprint == fingerprint(SINGLE)
    with pytest.raises(Unfit):
        framing.single_object(b"\xc3\x02")


def test_rows_are_given_back_with_their_prefixes() -> None:
    codec = codec_of(prepared(Schema("r", 1, "avro", SINGLE)))
    batch = [b"\x02", b"\x04"]
    columns = codec.decode(batch).columns
    formats = framing.prefixed(codec.formats(columns, batch), b"\0\0\0\0\x09")
    assert encode_rows(codec, columns, formats).to_pylist() == [b"\0\0\0\0\x09\x02", b"\0\0\0\0\x09\x04"]
    mixed = pa.array(["A", None])
    assert encode_rows(codec, columns, mixed).to_pylist() == [b"\x02", None]
    with pytest.raises(ValueError, match="format"):
        encode_rows(codec, columns, pa.array(["#00", "A"]))


def test_names_of_columns_avoid_those_of_the_table() -> None:
    assert column_names(
        ["seq", "Time", "token12", "a", "A", "A_", "x y", "", "tokens", "_commit_version"], root=True
    ) == [*("seq_", "Time_", "token12_", "a", "A_", "A__", "x_x20_y", "_x_", "tokens", "_commit_version_")]
    assert column_names(["seq", "a.b", "c`"], root=False) == ["seq", "a_x2E_b", "c_x60_"]
    assert column_names(["a"], root=True, taken=["A"]) == ["a_"]
    of_layouts = ["by_day", "BY_HOUR", "by_field1", "by_field12", "bucket"]
    assert column_names(of_layouts, root=True) == [f"{name}_" for name in of_layouts]
    assert column_names(others := ["by_days", "by_field", "by_fieldx"], root=True) == others


def test_a_message_without_a_payload_deletes_where_the_table_says_so() -> None:
    latest, fields, cdc = {"lakestream.table": "latest"}, {"lakestream.table": "latest($.id)"}, "lakestream.cdc"
    assert naming.empty_deletes(latest)
    assert naming.empty_deletes(fields | {cdc: "debezium"})
    assert not any(map(naming.empty_deletes, ({}, fields, fields | {cdc: "off"}, {"lakestream.table": "append"})))


def test_types_are_spelled_for_delta_and_arrow() -> None:
    inner: RecordType = record_of([("x y", INTEGER, True, "")])
    record = record_of([("a", inner, True, ""), ("subject", STRING, False, "")], root=True)
    assert ddl(record) == "STRUCT<`a`: STRUCT<`x_x20_y`: BIGINT>, `subject_`: STRING>"
    assert arrow_schema(record) == pa.schema([("a", pa.struct([("x_x20_y", pa.int64())])), ("subject_", pa.string())])


def test_a_proto_text_is_compiled_once() -> None:
    schema = prepared(Schema("p", 1, "protobuf", 'syntax = "proto3"; message A { int32 a = 1; }'))
    assert base64.b64decode(schema.descriptors)
    assert prepared(schema) == schema
    assert codec_of(schema).decode([b"\x08\x05"]).columns.to_pylist() == [{"a": 5}]
