"""Tests of JSON payloads: checking, decoding, and giving the bytes back."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakestream.schemas.columns import List, Scalar
from lakestream.schemas.errors import BadSchema
from lakestream_schemas.json_schema.codec import JsonCodec
from tests.unit.schemas_world import Misfit, expected, payloads, schemas
from tests.unit.versions_world import named

pytestmark = pytest.mark.unit

INSTANT = {"type": "string", "format": "date-time"}
ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "order_id": {"type": "string"},
        "customer": {"type": "string"},
        "email": {"type": ["string", "null"]},
        "price": {"type": "number"},
        "qty": {"type": "integer", "minimum": 0},
        "created": {"type": "string", "format": "date-time"},
        "day": {"type": "string", "format": "date"},
        "total": {"type": "string", "format": "decimal(12,2)"},
        "country": {"enum": ["DE", "FR"]},
        "paid": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "address": {"type": "object", "properties": {"street": {"type": "string"}, "zip": {"type": "string"}}},
        "lines": {
            "type": "array",
            "items": {"type": "object", "properties": {"sku": {"type": "string"}, "n": {"type": "integer"}}},
        },
        "labels": {"type": "object", "additionalProperties": {"type": "integer"}},
        "extra": {},
    },
    "required": ["order_id"],
}
VALUE: dict[str, Any] = {
    "order_id": "9b2d",
    "customer": "Müller & <Söhne>",
    "email": None,
    "price": 129.5,
    "qty": 3,
    "created": "2026-05-01T12:34:56.789Z",
    "day": "2026-05-01",
    "total": "12.50",
    "country": "DE",
    "paid": True,
    "tags": ["new", 'a"b'],
    "address": {"street": "x", "zip": "1"},
    "lines": [{"sku": "a", "n": 1}, {"sku": "b", "n": 2}],
    "labels": {"x": 1, "ü": 2},
    "extra": {"any": [1, "x", None]},
}
ORDERS = JsonCodec(json.dumps(ORDER))


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data())
def test_a_batch_is_decoded_as_message_by_message_and_given_back_exactly(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    codec = JsonCodec(json.dumps(schema))
    batch = data.draw(st.lists(payloads(schema), min_size=1, max_size=8))
    decoded = codec.decode(batch)
    misfits = {misfit.row for misfit in decoded.misfits}
    rows = decoded.columns.to_pylist() if codec.record.fields else [{}] * len(batch)
    for row, payload in enumerate(batch):
        assert (codec.fits(payload) is not None) == (row in misfits)
        try:
            want = expected(schema, payload)
        except Misfit:
            assert row in misfits, payload
            assert all(value is None for value in rows[row].values())
        else:
            assert row not in misfits, (payload, codec.fits(payload))
            assert named(codec.record, rows[row]) == want
    kept = [None if row in misfits else payload for row, payload in enumerate(batch)]
    formats = codec.formats(decoded.columns, kept)
    for row, text in enumerate(codec.encode(decoded.columns, formats).to_pylist()):
        assert text is None or text == kept[row]
        assert (text is None) == (formats[row].as_py() is None)


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_all_usual_spellings_are_given_back(indent: int | None, ascii_only: bool, separators: tuple[str, str]) -> None:
    values = [VALUE, {"order_id": "1"}, {"qty": 1, "order_id": "Grüße"}, {**VALUE, "price": 10.0, "tags": []}]
    batch = [
        json.dumps(value, indent=indent, separators=separators, ensure_ascii=ascii_only).encode() for value in values
    ]
    columns = ORDERS.decode(batch).columns
    formats = ORDERS.formats(columns, batch)
    assert formats.null_count == 0
    assert ORDERS.encode(columns, formats).to_pylist() == batch
    assert ORDERS.encode(columns, formats.cast(pa.string())).to_pylist() == batch


def test_payloads_of_go_are_given_back() -> None:
    batch = [b'{"order_id":"a\\u0026b\\u003c\\u003e","price":100,"created":"2026-05-01T12:34:56.78Z"}']
    columns = ORDERS.decode(batch).columns
    formats = ORDERS.formats(columns, batch)
    assert formats.to_pylist() == ['hg{"order_id":$,"price":$,"created":$2Z}']
    assert ORDERS.encode(columns, formats).to_pylist() == batch


@pytest.mark.parametrize(
    "payload",
    [
        b'{"order_id":"x","price":1.50}',
        b'{"order_id":"x","price":1E2}',
        b'{"order_id":"x","qty":-0}',
        b'{"order_id":"x","qty":1.0}',
        b'{"order_id":"x","unknown":1}',
        b'{"order_id":"x","order_id":"y"}',
        b'{"order_id":"\\u0041"}',
        b'{"order_id":"\\/"}',
        b'{"order_id":"x","created":"2026-05-01T12:34:56.1234567Z"}',
        b'{"order_id":"x","created":"2026-05-01T12:34:56+02:00"}',
        b'{"order_id":"x","created":"2026-05-01 12:34:56Z"}',
        b'{"order_id":"x","total":"1.5"}',
        b'{"order_id":"x","tags":["a", "b","c"]}',
        b'{"order_id":"x","lines":[{"sku":"a","n":1},{"n":1,"sku":"a"}]}',
        b'{"order_id":"x","labels":{"a":1,"a":2}}',
    ],
)
def test_a_row_that_columns_do_not_give_back_keeps_its_payload(payload: bytes) -> None:
    decoded = ORDERS.decode([payload])
    assert decoded.misfits == []
    assert ORDERS.formats(decoded.columns, [payload]).to_pylist() == [None]


def test_a_stored_format_gives_the_same_bytes_in_all_versions() -> None:
    """Formats are stored in tables. These rows were written once, and have to read the same forever."""
    text = 'ag{"order_id": $, "price": $, "created": $3Z, "tags": [$[$$,, $]], "labels": {${: $$,, $}}, "extra": $}'
    row = {
        "order_id": "Gr\u00fc\u00dfe\n",
        "price": 1e16,
        "created": 1_777_638_896_789_000,
        "tags": ["a", "\x7f"],
        "labels": [("k", 1)],
        "extra": "[1, 2]",
    }
    columns = pa.RecordBatch.from_pylist([row], schema=ORDERS.decode([]).columns.schema)
    want = (
        b'{"order_id": "Gr\\u00fc\\u00dfe\\n", "price": 1e+16, "created": "2026-05-01T12:34:56.789Z", '
        b'"tags": ["a", "\x7f"], "labels": {"k": 1}, "extra": [1, 2]}'
    )
    assert ORDERS.encode(columns, pa.array([text])).to_pylist() == [want]


@pytest.mark.parametrize(
    "text",
    ["", "s", "x{}", "sg{", 'sg{"nothing":$}', 'sg{"created":$}', 'sg{"order_id":$}}', 'sg{"tags":[$[$$,]}', "sg[$]"],
)
def test_a_text_that_is_no_format_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        ORDERS.encode(ORDERS.decode([b'{"order_id":"x"}']).columns, pa.array([text]))


@pytest.mark.parametrize(
    "of", [{"type": "array", "items": INSTANT}, {"type": "object", "additionalProperties": INSTANT}]
)
def test_empty_lists_and_maps_of_instants_are_given_back(of: dict[str, Any]) -> None:
    """An empty one does not show how its instants are spelled."""
    codec = JsonCodec(json.dumps({"type": "object", "properties": {"id": of}}))
    full = b'{"id":["2026-05-01T12:34:56Z"]}' if of["type"] == "array" else b'{"id":{"a":"2026-05-01T12:34:56Z"}}'
    payloads = [b'{"id":[]}' if of["type"] == "array" else b'{"id":{}}', full, b"{}"]
    columns = codec.decode(payloads).columns
    formats = codec.formats(columns, payloads)
    assert formats.null_count == 0
    assert codec.encode(columns, formats).to_pylist() == payloads


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet='sgahf{}[]",:$ null0Z3idorder_', max_size=40))
def test_no_text_breaks_the_reader_of_formats(text: str) -> None:
    columns = ORDERS.decode([b'{"order_id":"x"}']).columns
    with contextlib.suppress(ValueError):
        ORDERS.encode(columns, pa.array([text]))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40) | st.text(alphabet='{}[]",:\\ntrue0.e-"order_id', max_size=40).map(str.encode))
def test_no_payload_breaks_the_decoder(payload: bytes) -> None:
    decoded = ORDERS.decode([payload])
    assert bool(decoded.misfits) == (ORDERS.fits(payload) is not None)


@pytest.mark.parametrize(
    ("change", "field", "rule"),
    [
        ({"qty": -1}, "qty", "minimum"),
        ({"qty": "1"}, "qty", "type"),
        ({"qty": 1.5}, "qty", "type"),
        ({"qty": 2**63}, "qty", "range"),
        ({"created": "yesterday"}, "created", "format"),
        ({"created": "0001-01-01T00:00:00+01:00"}, "created", "range"),
        ({"day": "2026-02-30"}, "day", "format"),
        ({"total": "1.234"}, "total", "format"),
        ({"country": "XX"}, "country", "enum"),
        ({"tags": ["a", 1]}, "tags[1]", "type"),
        ({"address": {"zip": 1}}, "address.zip", "type"),
        ({"lines": [{}, {"n": "x"}]}, "lines[1].n", "type"),
        ({"labels": {"x": 1.5}}, "labels.x", "type"),
        ({"email": 1}, "email", "type"),
    ],
)
def test_a_misfit_names_field_and_rule(change: dict[str, Any], field: str, rule: str) -> None:
    misfit = ORDERS.fits(compact({**VALUE, **change}))
    assert misfit is not None
    assert (misfit.field, misfit.rule) == (field, rule)
    assert misfit.text


@pytest.mark.parametrize(
    ("payload", "rule"),
    [
        (b"", "json"),
        (b"{", "json"),
        (b'{"order_id":"x"} x', "json"),
        (b'{"order_id":NaN}', "json"),
        (b'{"order_id":"\xff"}', "utf-8"),
        (b'{"order_id":"x","more":"\xff"}', "utf-8"),
        (b'{"order_id":"x","extra":' + b"[" * 101 + b"]" * 101 + b"}", "depth"),
        (b"[]", "type"),
        (b"{}", "required"),
        (b'{"order_id":"x","price":1e999}', "range"),
    ],
)
def test_a_payload_that_is_no_such_json_is_a_misfit(payload: bytes, rule: str) -> None:
    misfit = ORDERS.fits(payload)
    assert misfit is not None
    assert misfit.rule == rule


@pytest.mark.parametrize("payload", [b'9e999{"}', b'{"qty": 9e999,}', b"[9e999" + b"[" * 2000])
def test_a_number_beyond_a_double_hides_no_error_behind_it(payload: bytes) -> None:
    """The fast decoder stops at the number."""
    misfit = ORDERS.fits(payload)
    assert misfit is not None
    assert misfit.rule in ("json", "depth")
    assert [each.misfit.rule for each in ORDERS.decode([payload]).misfits] == [misfit.rule]


def test_numbers_beyond_a_double_are_only_refused_where_a_column_needs_them() -> None:
    assert ORDERS.fits(b'{"order_id":"x","unknown":1e999,"extra":-1e999}') is None
    assert ORDERS.fits(b'{"order_id":"x","unknown":1e999,"qty":1.0}') is None


def test_null_payloads_are_misfits() -> None:
    decoded = ORDERS.decode(pa.array([None, b'{"order_id":"x"}'], pa.binary()))
    assert [misfit.row for misfit in decoded.misfits] == [0]
    assert decoded.columns.column("order_id").to_pylist() == [None, "x"]


def test_a_pattern_is_checked_in_linear_time() -> None:
    codec = JsonCodec('{"type":"object","properties":{"a":{"type":"string","pattern":"^(a+)+$"}}}')
    assert codec.fits(b'{"a":"' + b"a" * 50_000 + b'b"}') is not None
    assert codec.fits(b'{"a":"aaa"}') is None


@pytest.mark.parametrize("pattern", ["(?=a)b", "(a)\\1", "((a{1000}){1000}){1000}", "("])
def test_a_pattern_that_needs_backtracking_or_much_memory_is_refused(pattern: str) -> None:
    with pytest.raises(BadSchema):
        JsonCodec(json.dumps({"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}))


@pytest.mark.parametrize(
    "schema",
    [
        "",
        "[]",
        "{",
        '{"type": "array"}',
        '{"type": "objct"}',
        '{"$schema": "http://json-schema.org/draft-04/schema#"}',
        '{"properties": {"a": {"$ref": "http://example.com/a.json"}}}',
        '{"properties": {"a": {"$ref": "file:///etc/passwd"}}}',
        '{"properties": {"a": {"$ref": "#/$defs/none"}}}',
        '{"properties": {"a": {"$ref": "#/properties"}}, "$ref": 1}',
        '{"$ref": "#"}',
        '{"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}',
        '{"properties": {"a": {"$dynamicRef": "#x"}}}',
        '{"properties": {"a": {"$id": "x", "type": "string"}}}',
        '{"properties": {"a": {"type": "string", "format": "decimal(50,2)"}}}',
        '{"properties": []}',
        '{"properties": ["a"]}',
        '{"allOf": [{"properties": {"a": {"type": "string"}}}, {"properties": {"a": {"const": 1}}}]}',
        '{"allOf": [{"type": "string"}]}',
        json.dumps({"properties": {"x" * 300: {}}}),
        json.dumps({"properties": {f"f{at}": {"type": "string"} for at in range(1_100)}}),
        "[" * 10_000 + "]" * 10_000,
        '{"not":' * 200 + "{}" + "}" * 200,
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_with_a_reason(schema: str) -> None:
    with pytest.raises(BadSchema, match=r"\w"):
        JsonCodec(schema)


def _doubling(levels: int) -> str:
    """Return a schema whose references meet twice at each level."""
    defs: dict[str, Any] = {
        f"d{at}": {"allOf": [{"$ref": f"#/$defs/d{at + 1}"}, {"$ref": f"#/$defs/d{at + 1}"}]} for at in range(levels)
    }
    defs[f"d{levels}"] = {"type": "string"}
    return json.dumps({"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": defs})


def test_references_that_double_the_work_at_each_level_are_refused() -> None:
    with pytest.raises(BadSchema, match="checked against more than"):
        JsonCodec(_doubling(50))
    assert JsonCodec(_doubling(4)).fits(b'{"a":"x"}') is None


def test_a_recursive_schema_that_doubles_the_work_limits_the_depth_of_payloads() -> None:
    node = {"type": "object", "properties": {"x": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}}}
    codec = JsonCodec(json.dumps(node))
    assert 4 <= codec.deepest < 20
    deep = b'{"x":' * 40 + b"{}" + b"}" * 40
    misfit = codec.fits(deep)
    assert misfit is not None
    assert misfit.rule == "depth"


def test_a_recursive_schema_is_json_text_inside() -> None:
    tree = {
        "type": "object",
        "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#"}}},
    }
    codec = JsonCodec(json.dumps(tree))
    assert codec.deepest == 100
    assert [field.type for field in codec.record.fields] == [Scalar("integer"), List(Scalar("json"))]
    decoded = codec.decode([b'{"v":1,"kids":[{"v":2}, {"v":"x"}]}', b'{"kids":[{"v":2}]}'])
    assert [(misfit.row, misfit.misfit.field) for misfit in decoded.misfits] == [(0, "kids[1].v")]
    assert decoded.columns.column("kids").to_pylist() == [None, ['{"v":2}']]


def test_draft_7_is_read() -> None:
    text = (
        '{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","definitions":{"n":{"type":"integer"}},'
        '"properties":{"a":{"$ref":"#/definitions/n"},"t":{"type":"array","items":[{"type":"string"}]}}}'
    )
    codec = JsonCodec(text)
    assert codec.fits(b'{"a":1,"t":["x",1]}') is None
    assert codec.fits(b'{"a":"x"}') is not None
    assert codec.fits(b'{"t":[1]}') is not None


def test_properties_of_allof_are_columns() -> None:
    text = json.dumps(
        {
            "allOf": [{"$ref": "#/$defs/base"}, {"properties": {"b": {"type": "string"}}, "required": ["b"]}],
            "$defs": {"base": {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}},
        }
    )
    codec = JsonCodec(text)
    assert [field.name for field in codec.record.fields] == ["id", "b"]
    assert codec.fits(b'{"id":1,"b":"x"}') is None
    assert codec.fits(b'{"id":1}') is not None
