"""Measure typed payloads: `python -m tests.bench.bench_schemas`.

CPU time in µs per message, the least of several rounds, for orders of about 300 bytes with ten fields: the check of one
payload (`fits`), the decoding of a batch to columns, the choice of `data_format` with its test row by row, and the
payloads back from columns. One core.

Figures: docs/typed-tables.md#cost
"""

from __future__ import annotations

import io
import json
import random
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import fastavro
from google.protobuf import message_factory

from lakestream.schemas.codec import codec_of
from lakestream.schemas.schema import Schema
from lakestream_schemas.formats import prepared
from lakestream_schemas.payloads import PayloadCodec
from lakestream_schemas.protobuf.model import message_of, read_files

MESSAGES, ROUNDS = 20_000, 7
JSON_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "order_id": {"type": "string"},
        "customer": {"type": "string"},
        "email": {"type": ["string", "null"]},
        "price": {"type": "number", "minimum": 0},
        "qty": {"type": "integer", "minimum": 1},
        "created": {"type": "string", "format": "date-time"},
        "country": {"enum": ["DE", "FR", "US"]},
        "paid": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "zip": {"type": "string"}},
            "required": ["street"],
        },
    },
    "required": ["order_id", "customer", "price", "qty"],
}
GENERAL = JSON_SCHEMA | {"if": {"required": ["email"]}, "then": {"required": ["paid"]}}
"""The same with a rule that jsonschema-rs has to check."""
AVRO = """{"type": "record", "name": "Order", "fields": [
  {"name": "order_id", "type": "string"}, {"name": "customer", "type": "string"},
  {"name": "email", "type": ["null", "string"]}, {"name": "price", "type": "double"}, {"name": "qty", "type": "long"},
  {"name": "created", "type": {"type": "long", "logicalType": "timestamp-millis"}},
  {"name": "country", "type": {"type": "enum", "name": "Country", "symbols": ["DE", "FR", "US"]}},
  {"name": "paid", "type": "boolean"}, {"name": "tags", "type": {"type": "array", "items": "string"}},
  {"name": "address", "type": {"type": "record", "name": "Address", "fields": [
    {"name": "street", "type": "string"}, {"name": "zip", "type": "string"}]}}]}"""
PROTO = """syntax = "proto3"; import "google/protobuf/timestamp.proto";
message Order { string order_id = 1; string customer = 2; optional string email = 3; double price = 4; int64 qty = 5;
  google.protobuf.Timestamp created = 6; enum Country { DE = 0; FR = 1; US = 2; } Country country = 7; bool paid = 8;
  repeated string tags = 9; message Address { string street = 1; string zip = 2; } Address address = 10; }"""


def order(chance: random.Random) -> dict[str, Any]:
    """Return one order."""
    return {
        "order_id": f"9b2de0f4-7f3e-4bb8-a9a5-{chance.randrange(16**12):012x}",
        "customer": chance.choice(["Müller & Söhne GmbH", "Smith Ltd", "Dupont SARL"]),
        "email": f"jane.doe{chance.randrange(10**6)}@example.com",
        "price": chance.randrange(1_000_000) / 100,
        "qty": chance.randrange(1, 100),
        "created": f"2026-05-01T12:{chance.randrange(60):02d}:{chance.randrange(60):02d}.{chance.randrange(1000):03d}Z",
        "country": chance.choice(["DE", "FR", "US"]),
        "paid": chance.random() < 0.5,
        "tags": ["new", "eu"][: chance.randrange(3)],
        "address": {"street": f"Hauptstrasse {chance.randrange(1000)}", "zip": "10115"},
    }


def compact(value: Any) -> bytes:
    """Return JSON as most languages write it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def of_avro(value: dict[str, Any]) -> bytes:
    """Return an order in Avro."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, AVRO_PARSED, value | {"created": datetime.fromisoformat(value["created"])})
    return out.getvalue()


def protobuf_writer(proto: Schema) -> Callable[[dict[str, Any]], bytes]:
    """Return the function that writes an order in Protobuf.

    Args:
        proto: PROTO, compiled.
    """
    message = message_factory.GetMessageClass(message_of(read_files(proto.descriptors)))

    def write(value: dict[str, Any]) -> bytes:
        found = message(**{name: part for name, part in value.items() if name != "created"})
        found.created.FromJsonString(value["created"])
        text: bytes = found.SerializeToString(deterministic=True)
        return text

    return write


AVRO_PARSED = fastavro.parse_schema(json.loads(AVRO))


def least(call: Callable[[], object], count: int) -> float:
    """Return µs of CPU time per message."""
    seconds = []
    for _ in range(ROUNDS):
        began = time.process_time()
        call()
        seconds.append(time.process_time() - began)
    return min(seconds) / count * 1e6


def row(name: str, codec: PayloadCodec, payloads: list[bytes]) -> None:
    """Print the figures of one codec."""
    columns = codec.decode(payloads).columns
    formats = codec.formats(columns, payloads)
    assert codec.encode(columns, formats).to_pylist() == payloads
    count = len(payloads)
    figures = (
        least(lambda: [codec.fits(payload) for payload in payloads], count),
        least(lambda: codec.decode(payloads), count),
        least(lambda: codec.formats(columns, payloads), count),
        least(lambda: codec.encode(columns, formats), count),
    )
    size = sum(map(len, payloads)) // count
    print(
        f"{name:32} {size:5}   "
        + "   ".join(f"{figure:7.2f}" for figure in figures)
        + f"   {len(formats.dictionary):4}"
    )


def main() -> None:
    """Print the table."""
    chance = random.Random(1)
    orders = [order(chance) for _ in range(MESSAGES)]
    print(f"{'format':32} {'bytes':>5}   {'fits':>7}   {'decode':>7}   {'formats':>7}   {'encode':>7}   skeletons")
    fast, general = (codec_of(Schema("o", 1, "json", json.dumps(text))) for text in (JSON_SCHEMA, GENERAL))
    row("JSON", fast, [compact(each) for each in orders])
    row("JSON of Python", fast, [json.dumps(each).encode() for each in orders])
    row("JSON with if/then", general, [compact(each) for each in orders])
    row("Avro", codec_of(Schema("o", 1, "avro", AVRO)), [of_avro(each) for each in orders])
    proto = prepared(Schema("o", 1, "protobuf", PROTO))
    row("Protobuf", codec_of(proto), list(map(protobuf_writer(proto), orders)))


if __name__ == "__main__":
    main()
