"""Tests of typed columns without an engine: valid schemas, and matching payloads."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.lake.table import json_schema
from lakestream.lake.table.json_schema import BadJsonSchema
from lakestream_sql import typed

pytestmark = pytest.mark.unit


def decoded(ddl: str, payload: bytes) -> Any:
    """Return the columns, or the reason why there are none."""
    try:
        return json_schema.parse(ddl).decode(payload)
    except ValueError as misfit:
        return str(misfit)


@pytest.mark.parametrize(
    ("ddl", "payload", "value"),
    [
        ("a INT", b'{"a":1}', {"a": 1}),
        ("a INT", b' {"a" : -0, "b": [1, {}]}\n', {"a": 0}),
        ("a INT", b"{}", {"a": None}),
        ("a INT", b'{"a":null}', {"a": None}),
        ("a: INT", b'{"a":2147483647}', {"a": 2147483647}),
        ("a BIGINT", b'{"a":-9223372036854775808}', {"a": -(2**63)}),
        ("a TINYINT", b'{"a":-128}', {"a": -128}),
        ("a DOUBLE", b'{"a":1}', {"a": 1.0}),
        ("a DOUBLE", b'{"a":12345678901234567890123}', {"a": 1.2345678901234568e22}),
        ("a DOUBLE", b'{"a":1e-400}', {"a": 0.0}),
        ("a FLOAT", b'{"a":3.4e38}', {"a": 3.4e38}),
        ("a STRING", rb'{"a":"\ud83d\ude00\u0000"}', {"a": "\U0001f600\0"}),
        ("a STRING", '{"a":"größe"}'.encode(), {"a": "größe"}),
        ("a BOOLEAN", b'{"a":true}', {"a": True}),
        ("a DECIMAL(5,2)", b'{"a":1.5}', {"a": Decimal("1.50")}),
        ("a DECIMAL(5,2)", b'{"a":"-999.99"}', {"a": Decimal("-999.99")}),
        ("a DECIMAL(5,2)", b'{"a":1.500}', {"a": Decimal("1.50")}),
        ("a DECIMAL", b'{"a":1e3}', {"a": Decimal(1000)}),
        ("a DATE", b'{"a":"2024-02-29"}', {"a": datetime.date(2024, 2, 29)}),
        (
            "a TIMESTAMP",
            b'{"a":"2024-01-01T00:00:00.123456+02:00"}',
            {"a": datetime.datetime(2023, 12, 31, 22, 0, 0, 123456, tzinfo=datetime.UTC)},
        ),
        ("a TIMESTAMP", b'{"a":"2024-01-01T00:00:00"}', {"a": datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)}),
        ("a ARRAY<INT>", b'{"a":[1,null]}', {"a": [1, None]}),
        ("a STRUCT<b: STRUCT<c: INT>>", b'{"a":{"b":{"c":1,"d":2}}}', {"a": {"b": {"c": 1}}}),
        ("a MAP<STRING, DECIMAL(3,1)>", b'{"a":{"x":1,"y":null}}', {"a": [("x", Decimal("1.0")), ("y", None)]}),
        ("a INT NOT NULL COMMENT 'so'", b'{"a":1}', {"a": 1}),
        ("`a b` INT, `größe` INT", '{"a b":1,"größe":2}'.encode(), {"a b": 1, "größe": 2}),
        ("a INT", b'{"a":1,"a":2}', {"a": 2}),
        ("a INT", b'{"b":"' + b"[" * 1000 + b'"}', {"a": None}),
        ("a INT", b'{"b":' + b"[" * 199 + b"]" * 199 + b"}", {"a": None}),
    ],
)
def test_what_fits(ddl: str, payload: bytes, value: Any) -> None:
    assert decoded(ddl, payload) == value
    schema = json_schema.parse(ddl)
    [row] = schema.values(pa.array([payload], pa.binary())).to_pylist()
    assert row is not None
    assert schema.reasons(pa.array([payload], pa.binary())).to_pylist() == [None]


@pytest.mark.parametrize(
    ("ddl", "payload", "reason"),
    [
        ("a INT", b"", "truncated"),
        ("a INT", b'{"a":1', "truncated"),
        ("a INT", b"null", "object"),
        ("a INT", b"[]", "object"),
        ("a INT", b"\xef\xbb\xbf{}", "malformed"),
        ("a INT", b'{"a":1} x', "trailing"),
        ("a INT", b'{"a":1}\x00', "trailing"),
        ("a INT", b'{"a":1,}', "trailing comma"),
        ("a INT", b"{'a':1}", "malformed"),
        ("a INT", b'{"a":01}', "invalid number"),
        ("a INT", b'{"a":1.0}', "float"),
        ("a INT", b'{"a":1e2}', "float"),
        ("a INT", b'{"a":"1"}', r"got `str` - at `\$\.a`"),
        ("a INT", b'{"a":true}', "bool"),
        ("a INT", b'{"a":2147483648}', "<= 2147483647"),
        ("a INT", b'{"a":"x","a":1}', "got `str`"),
        ("a INT NOT NULL", b"{}", "missing required field `a`"),
        ("a INT NOT NULL", b'{"a":null}', "null"),
        ("a DOUBLE", b'{"a":NaN}', "malformed"),
        ("a DOUBLE", b'{"a":1e400}', "out of range"),
        ("a FLOAT", b'{"a":3.5e38}', "<= 3.4"),
        ("a STRING", b'{"a":1}', "got `int`"),
        ("a STRING", b'{"a":"\xff"}', "not UTF-8"),
        ("a STRING", rb'{"a":"\ud800"}', "truncated|surrogate"),
        ("a STRING", b'{"a":"x\ty"}', "malformed"),
        ("a DECIMAL(5,2)", b'{"a":1.555}', "not exactly a DECIMAL"),
        ("a DECIMAL(5,2)", b'{"a":1000}', "not exactly a DECIMAL"),
        ("a DECIMAL(5,2)", b'{"a":"NaN"}', "not exactly a DECIMAL"),
        ("a DECIMAL(5,2)", b'{"a":1e-999999}', "not exactly|Invalid|class"),
        ("a DATE", b'{"a":"2023-02-29"}', "date"),
        ("a TIMESTAMP", b'{"a":1700000000}', "got `int`"),
        ("a TIMESTAMP", b'{"a":"0001-01-01T00:00:00+10:00"}', "out of range"),
        ("a ARRAY<STRUCT<b: INT>>", b'{"a":[{"b":1},{"b":"x"}]}', r"\$\.a\[1\]\.b"),
        ("a INT", b'{"b":' + b"[" * 200 + b"]" * 200 + b"}", "nested deeper than 200"),
        ("a INT", b'{"b":' * 100_000, "nested deeper than 200"),
    ],
)
def test_what_does_not_fit_and_why(ddl: str, payload: bytes, reason: str) -> None:
    schema = json_schema.parse(ddl)
    with pytest.raises(ValueError, match=reason):
        schema.decode(payload)
    assert schema.values(pa.array([payload], pa.binary())).to_pylist() == [None]
    assert schema.reasons(pa.array([payload], pa.binary())).null_count == 0


@pytest.mark.parametrize(
    ("ddl", "reason"),
    [
        ("", "not understood"),
        ("a", "not understood"),
        ("a FOO", "not understood"),
        ("a INT>), (b", "not understood"),
        ("a INT) --", "not understood"),
        ("a INT, A STRING", "appears twice"),
        ("a STRUCT<b: INT, B: INT>", "appears twice"),
        ("seq BIGINT", "has one of that name"),
        ("Data STRING", "has one of that name"),
        ("token2 STRING", "has one of that name"),
        ("removed_time_ns BIGINT", "has one of that name"),
        ("a BINARY", "cannot be read from JSON"),
        ("a INTERVAL", "cannot be read from JSON"),
        ("a ARRAY", "cannot be read from JSON"),
        ("a MAP<INT, INT>", "names of a map"),
        ("a DECIMAL(39, 2)", "1 to 38"),
        ("a INT DEFAULT 3", "is not supported"),
        ("a " + "STRUCT<a: " * 5000 + "INT" + ">" * 5000, "not understood"),
        (", ".join(f"c{number} INT" for number in range(1001)), "more than 1000"),
    ],
)
def test_schemas_that_mean_nothing_are_refused_in_words(ddl: str, reason: str) -> None:
    with pytest.raises(BadJsonSchema, match=reason):
        json_schema.parse(ddl)


@given(st.binary(max_size=200))
def test_any_bytes_fit_or_do_not(payload: bytes) -> None:
    schema = json_schema.parse("a INT, b STRING, c ARRAY<DOUBLE>, d MAP<STRING, TIMESTAMP>, e DECIMAL(4, 1)")
    payloads = pa.array([payload], pa.binary())
    assert schema.values(payloads).null_count == 1 - schema.reasons(payloads).null_count


def test_names_are_quoted_in_the_views() -> None:
    schema = json_schema.parse("`a b` INT, `c``d` STRING, `select` INT")
    assert "`a b`, " in typed.view_sql(schema, "t", ["subject", "seq"]).replace("AS `a b`", "`a b`")
    assert "`c``d`: STRING" in schema.spark


@pytest.mark.parametrize("text", ["a DECIMAL(" + "1" * 5000 + ", 1)", "`` DOUBLE", "a `` INT", "DECIMAL( `` 1"])
def test_what_upsets_the_parser_is_refused_like_anything_else(text: str) -> None:
    with pytest.raises(BadJsonSchema):
        json_schema.parse(text)
