"""Tests of Go durations: the text that clients send and read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.protocol.durations import format_duration, parse_duration

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0", 0),
        ("5s", 5_000_000_000),
        ("1.5s", 1_500_000_000),
        ("1h2m3s", 3_723_000_000_000),
        ("-250ms", -250_000_000),
        ("3us", 3_000),
        ("3µs", 3_000),
        (".5ms", 500_000),
    ],
)
def test_parses_what_go_parses(text: str, ns: int) -> None:
    assert parse_duration(text) == ns


@pytest.mark.parametrize("text", ["", "5", "s", "5 s", "5x", "1s2", "--1s", "1.2.3s"])
def test_refuses_what_go_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="invalid duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0s"),
        (1, "1ns"),
        (1_100, "1.1µs"),
        (2_000_000, "2ms"),
        (90_000_000_000, "1m30s"),
        (3_600_000_000_000, "1h0m0s"),
    ],
)
def test_writes_as_go_writes(ns: int, text: str) -> None:
    assert format_duration(ns) == text


@given(st.integers(min_value=-(10**18), max_value=10**18))
def test_reads_back_what_it_wrote(ns: int) -> None:
    assert parse_duration(format_duration(ns)) == ns
