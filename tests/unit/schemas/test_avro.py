"""Tests of Avro payloads, against fastavro."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.schemas.columns import List, Map, RecordType, Type
from lakestream.schemas.errors import BadSchema
from lakestream_schemas.avro.codec import AvroCodec

pytestmark = pytest.mark.unit

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "qty", "type": "int"},
        {"name": "big", "type": "long"},
        {"name": "ratio", "type": "float"},
        {"name": "price", "type": "double"},
        {"name": "raw", "type": "bytes"},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 4}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}},
        {"name": "note", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "labels", "type": {"type": "map", "values": "long"}},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {"type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}]},
            },
        },
        {"name": "ok", "type": "boolean"},
        {"name": "sub", "type": ["null", "shop.Line"]},
    ],
}
ORDERS = AvroCodec(json.dumps(ORDER))
PARSED = fastavro.parse_schema(ORDER)
TEXTS = st.sampled_from(["", "x", "Grüße", "😀"])
WIDE_IN_FASTAVRO = {-(1 << 8 * size - 1) for size in range(1, 5)}
VALUES = st.fixed_dictionaries(
    {
        "id": TEXTS,
        "qty": st.integers(-(2**31), 2**31 - 1),
        "big": st.integers(-(2**63), 2**63 - 1),
        "ratio": st.floats(width=32, allow_nan=False),
        "price": st.floats(allow_nan=False),
        "raw": st.binary(max_size=5),
        "hash": st.binary(min_size=4, max_size=4),
        "kind": st.sampled_from(["NEW", "OLD"]),
        "note": st.none() | TEXTS,
        "at": st.integers(0, 4_000_000_000_000).map(
            lambda ms: datetime.fromtimestamp(ms // 1000, UTC).replace(microsecond=ms % 1000 * 1000)
        ),
        "day": st.dates(),
        # fastavro writes -128, -32768 … with a byte more than they need: such a row keeps its payload.
        "total": st.integers(-(10**10) + 1, 10**10 - 1)
        .filter(lambda n: n not in WIDE_IN_FASTAVRO)
        .map(lambda n: Decimal(n).scaleb(-2)),
        "tags": st.lists(st.none() | TEXTS, max_size=3),
        "labels": st.dictionaries(TEXTS, st.integers(-9, 9), max_size=3),
        "lines": st.lists(st.fixed_dictionaries({"sku": TEXTS}), max_size=2),
        "ok": st.booleans(),
        "sub": st.none() | st.fixed_dictionaries({"sku": TEXTS}),
    }
)


def written(value: dict[str, Any], schema: Any = PARSED) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


def named(of: Type, value: Any) -> Any:
    """Return a column's value with fields by their names in the payload."""
    if value is None:
        return None
    if isinstance(of, RecordType):
        return {field.name: named(field.type, value[field.column]) for field in of.fields}
    if isinstance(of, List):
        return [named(of.of, part) for part in value]
    return {key: named(of.of, part) for key, part in value} if isinstance(of, Map) else value


@settings(max_examples=60, deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=4))
def test_a_batch_is_decoded_as_fastavro_does_and_given_back_exactly(values: list[dict[str, Any]]) -> None:
    batch = [written(value) for value in values]
    decoded = ORDERS.decode(batch)
    assert decoded.misfits == []
    assert [named(ORDERS.record, row) for row in decoded.columns.to_pylist()] == [
        fastavro.schemaless_reader(io.BytesIO(payload), PARSED) for payload in batch
    ]
    formats = ORDERS.formats(decoded.columns, batch)
    assert ORDERS.encode(decoded.columns, formats).to_pylist() == batch


def test_a_decimal_with_a_byte_more_than_it_needs_keeps_its_payload() -> None:
    value = dict.fromkeys(("note", "sub")) | {
        "id": "",
        "qty": 0,
        "big": 0,
        "ratio": 0.0,
        "price": 0.0,
        "raw": b"",
        "hash": b"\0\0\0\0",
        "kind": "NEW",
        "at": datetime(1970, 1, 1, tzinfo=UTC),
        "day": date(2000, 1, 1),
        "total": Decimal("-1.28"),
        "tags": [],
        "labels": {},
        "lines": [],
        "ok": False,
    }
    batch = [written(value)]
    decoded = ORDERS.decode(batch)
    assert decoded.misfits == []
    formats = ORDERS.formats(decoded.columns, batch)
    assert formats.to_pylist() == [None]


@settings(max_examples=200, deadline=None)
@given(VALUES, st.integers(0, 300), st.integers(0, 255), st.booleans())
def test_a_changed_payload_is_a_misfit_or_decodes_as_fastavro_does(
    value: dict[str, Any], place: int, byte: int, cut: bool
) -> None:
    payload = bytearray(written(value))
    place %= len(payload)
    payload[place] = byte
    changed = bytes(payload[:place] if cut else payload)
    decoded = ORDERS.decode([changed])
    if not decoded.misfits:
        read: Any = fastavro.schemaless_reader(io.BytesIO(changed), PARSED)
        assert read["id"] == decoded.columns["id"][0].as_py()
        text = ORDERS.encode(decoded.columns, ORDERS.formats(decoded.columns, [changed]))[0].as_py()
        assert text in (None, changed)


def codec_of(*fields: Any) -> AvroCodec:
    return AvroCodec(json.dumps({"type": "record", "name": "r", "fields": list(fields)}))


@pytest.mark.parametrize("items", ["null", "long", {"type": "record", "name": "e", "fields": []}])
def test_a_count_that_the_payload_cannot_have_is_a_misfit_at_once(items: Any) -> None:
    codec = codec_of({"name": "a", "type": {"type": "array", "items": items}})
    misfit = codec.fits(b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01")
    assert misfit is not None
    assert (misfit.field, misfit.rule) == ("a", "encoding")


def test_a_recursive_value_is_bounded_in_depth() -> None:
    codec = AvroCodec(
        '{"type":"record","name":"n","fields":[{"name":"v","type":"int"},{"name":"next","type":["null","n"]}]}'
    )
    decoded = codec.decode([b"\x02\x02\x04\x00"])
    assert decoded.columns.to_pylist() == [{"v": 1, "next": '{"n":{"v":2,"next":null}}'}]
    misfit = codec.fits(b"\x02\x02" * 100_000 + b"\x02\x00")
    assert misfit is not None
    assert misfit.rule == "depth"


def test_a_union_of_types_is_json_text_and_keeps_the_payload() -> None:
    codec = codec_of({"name": "u", "type": ["int", "string"]})
    decoded = codec.decode([b"\x00\x02", b"\x02\x02a"])
    assert decoded.columns.to_pylist() == [{"u": '{"int":1}'}, {"u": '{"string":"a"}'}]
    assert codec.formats(decoded.columns, [b"\x00\x02", b"\x02\x02a"]).null_count == 2


def test_an_overlong_number_keeps_its_payload() -> None:
    codec = codec_of({"name": "a", "type": "long"})
    decoded = codec.decode([b"\x82\x00"])
    assert decoded.columns.to_pylist() == [{"a": 1}]
    assert codec.formats(decoded.columns, [b"\x82\x00"]).null_count == 1
    assert codec.encode(decoded.columns, pa.array(["A"])).to_pylist() == [b"\x02"]


@pytest.mark.parametrize(
    ("payload", "rule"),
    [
        (b"", "encoding"),
        (b"\x02", "encoding"),
        (b"\x02\xff\x00", "utf-8"),
        (b"\x02a\x00x", "encoding"),
        (b"\x01", "encoding"),
    ],
)
def test_a_payload_that_is_no_such_value_is_a_misfit(payload: bytes, rule: str) -> None:
    misfit = codec_of({"name": "s", "type": "string"}, {"name": "n", "type": "int"}).fits(payload)
    assert misfit is not None
    assert misfit.rule == rule


def test_an_instant_beyond_the_year_9999_is_a_misfit() -> None:
    codec = codec_of({"name": "t", "type": {"type": "long", "logicalType": "timestamp-micros"}})
    misfit = codec.fits(b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01")
    assert misfit is not None
    assert (misfit.field, misfit.rule) == ("t", "range")


def test_dates_are_days() -> None:
    codec = codec_of({"name": "d", "type": {"type": "int", "logicalType": "date"}})
    assert codec.decode([b"\x02"]).columns.to_pylist() == [{"d": date(1970, 1, 2)}]


@pytest.mark.parametrize(
    "schema",
    [
        "",
        '"string"',
        '{"type":"record","name":"r"}',
        '{"type":"record","name":"r","fields":[{"name":"a","type":"what"}]}',
        '{"type":"record","name":"r","fields":[{"name":"a","type":"int"},{"name":"a","type":"int"}]}',
        '{"type":"record","name":"1r","fields":[]}',
        "[" * 5_000 + "]" * 5_000,
        json.dumps({"type": "record", "name": "r", "fields": [{"name": f"f{n}", "type": "int"} for n in range(1_100)]}),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_with_a_reason(schema: str) -> None:
    with pytest.raises(BadSchema, match=r"\w"):
        AvroCodec(schema)


@pytest.mark.parametrize("kind", ["float", "double", "int", "long", "string", "bytes", "boolean"])
def test_a_misfit_before_a_payload_that_is_given_back_is_no_error(kind: str) -> None:
    fields = [{"name": "a", "type": kind}]
    codec = AvroCodec(json.dumps({"type": "record", "name": "r", "fields": fields}))
    empty = {"float": bytes(4), "double": bytes(8)}.get(kind, b"\x00")
    payloads = [b"", empty]
    decoded = codec.decode(payloads)
    assert [each.row for each in decoded.misfits] == [0]
    formats = codec.formats(decoded.columns, [None, empty])
    assert codec.encode(decoded.columns, formats).to_pylist() == [None, empty]


def test_two_threads_may_use_the_first_schema_at_once() -> None:
    """A publish and a request for a schema did so, and one was refused: modules of fastavro import each other."""
    program = """
import sys, threading
from lakestream.schemas.schema import Schema
from lakestream_schemas.formats import AvroFormat
sys.setswitchinterval(1e-6)
start, failed = threading.Barrier(2), []
def use(work):
    start.wait()
    try:
        work(Schema(name="a", version=1, format="avro", text='"long"'))
    except Exception as error:
        failed.append(error)
threads = [threading.Thread(target=use, args=[work]) for work in (AvroFormat.fingerprint, AvroFormat.check)]
for each in threads:
    each.start()
for each in threads:
    each.join()
assert not failed, failed
"""
    for _ in range(3):
        subprocess.run([sys.executable, "-c", program], check=True)
