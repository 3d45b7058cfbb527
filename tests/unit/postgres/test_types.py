"""Tests of the values of Postgres' types: parameters, and columns of Arrow."""

from __future__ import annotations

import datetime
import struct
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream_postgres import types as pg
from lakestream_postgres.types import BadValue, decode, duckdb_type, encode, oid_of

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("kind", "oid"),
    [
        ("BOOLEAN", 16), ("UTINYINT", 21), ("BIGINT", 20), ("UBIGINT", 1700), ("DECIMAL(18,3)", 1700),
        ("VARCHAR", 25), ("VARCHAR[]", 1009), ("INTEGER[3]", 1007), ("INTEGER[][]", 114), ("JSON[]", 114),
        ("STRUCT(a INTEGER)", 114), ("STRUCT(a INTEGER)[]", 114), ("TIMESTAMP_NS", 1114),
        ("MAP(VARCHAR, VARCHAR[])", 114), ("HUGEINT", 1700),
        ("TIMESTAMP WITH TIME ZONE", 1184), ("ENUM('a', 'b')", 25), ("JSON", 114), ("UUID", 2950), ('"NULL"', 25),
    ],
)  # fmt: skip
def test_a_type_of_duckdb_has_an_oid(kind: str, oid: int) -> None:
    assert oid_of(kind) == oid


@given(st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**20), max_value=10**20))
def test_a_number_is_the_same_in_binary(value: Decimal) -> None:
    (data,) = encode(pa.array([value], pa.decimal128(38, 6)), pg.NUMERIC, 1)
    assert decode(data, pg.NUMERIC, 1) == format(value, "f").removeprefix("-" if not value else "")


@given(st.integers(-(2**40), 2**40))
def test_an_integer_is_the_same_in_binary(value: int) -> None:
    (data,) = encode(pa.array([Decimal(value)], pa.decimal128(38, 0)), pg.NUMERIC, 1)
    assert decode(data, pg.NUMERIC, 1) == str(value)
    (data,) = encode(pa.array([value]), pg.INT8, 1)
    assert decode(data, pg.INT8, 1) == str(value)


@given(st.datetimes())
def test_a_moment_is_the_same_in_both_forms(value: datetime.datetime) -> None:
    column = pa.array([value], pa.timestamp("us"))
    for form in (0, 1):
        (data,) = encode(column, pg.TIMESTAMP, form)
        text = decode(data, pg.TIMESTAMP, form)
        assert text is not None
        assert datetime.datetime.fromisoformat(text) == value


@given(st.lists(st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))))
def test_duckdb_reads_a_list_as_it_was_sent(value: list[str | None]) -> None:
    column = pa.array([value], pa.list_(pa.string()))
    for form in (0, 1):
        (data,) = encode(column, 1009, form)
        text = decode(data, 1009, form)
        assert duckdb.execute(f"SELECT CAST(? AS {duckdb_type(1009)})", [text]).fetchone() == (value,)


@given(st.binary())
def test_duckdb_reads_bytes_as_they_were_sent(value: bytes) -> None:
    for form in (0, 1):
        (data,) = encode(pa.array([value]), pg.BYTEA, form)
        assert duckdb.execute("SELECT CAST(? AS BLOB)", [decode(data, pg.BYTEA, form)]).fetchone() == (value,)


@given(st.binary(max_size=40), st.sampled_from([0, *pg.TYPES, *pg.ELEMENTS]), st.sampled_from([0, 1]))
def test_any_bytes_are_a_value_or_rejected(value: bytes, oid: int, form: int) -> None:
    try:
        decode(value, oid, form)
    except BadValue:
        return


@pytest.mark.parametrize(
    ("value", "oid", "form"),
    [
        (b"\0\0\0", pg.INT4, 1), (b"\xff", pg.TEXT, 0), (b"a\0b", pg.TEXT, 0), (b"{a", 1009, 0), (b"{{1}}", 1007, 0),
        (b"{,}", 1009, 0), (struct.pack(">hhHh", 9, 0, 0, 0), pg.NUMERIC, 1), (b"\x7f" * 8, pg.TIMESTAMP, 1),
        (struct.pack(">hhHhH", 1, 30_000, 0, 0, 1), pg.NUMERIC, 1), (b"x", pg.UUID, 1), (b"\\xzz", pg.BYTEA, 0),
    ],
)  # fmt: skip
def test_values_that_are_not_of_their_type_are_rejected(value: bytes, oid: int, form: int) -> None:
    with pytest.raises(BadValue):
        decode(value, oid, form)


def test_moments_without_an_end_are_infinite() -> None:
    column = pa.array([2**63 - 1, -(2**63) + 1, None], pa.int64()).cast(pa.timestamp("us"))
    assert encode(column, pg.TIMESTAMPTZ, 0) == [b"infinity", b"-infinity", None]
    assert encode(column, pg.TIMESTAMP, 1) == [struct.pack(">q", 2**63 - 1), struct.pack(">q", -(2**63)), None]
