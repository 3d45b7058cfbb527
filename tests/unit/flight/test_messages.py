"""Tests of the commands of Flight SQL."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream_flight import messages as flight_sql
from lakestream_flight.messages import BadFlightMessage

pytestmark = pytest.mark.unit


def test_a_command_is_read_as_it_was_written() -> None:
    packed = flight_sql.pack("CommandStatementQuery", {1: b"SELECT 1" * 100})
    name, body = flight_sql.unpack(packed)
    assert (name, flight_sql.text(body, 1), flight_sql.text(body, 2)) == (
        "CommandStatementQuery",
        "SELECT 1" * 100,
        None,
    )


def test_numbers_are_packed_or_not() -> None:
    assert flight_sql.numbers(b"\x0a\x03\x00\xf4\x03\x08\x07", 1) == [0, 500, 7]
    assert flight_sql.flag(b"\x28\x01", 5)
    assert not flight_sql.flag(b"\x28\x00", 5)


@given(st.binary(max_size=64))
def test_any_bytes_are_read_or_rejected(body: bytes) -> None:
    for read in (flight_sql.unpack, lambda body: flight_sql.numbers(body, 1), lambda body: flight_sql.texts(body, 2)):
        try:
            read(body)
        except BadFlightMessage:
            continue
