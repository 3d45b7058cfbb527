"""Tests of header blocks and subjects as columns: readable, and without loss of the wire format."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.lake.table import schema

pytestmark = pytest.mark.unit

LINES = st.lists(
    st.tuples(st.sampled_from([b"A", b"a", b"Nats-Msg-Id", "Ü".encode(), b"", b"\xff"]), st.binary(max_size=6)),
    max_size=6,
)


def given_back(block: bytes) -> bytes:
    headers, kept = schema.split_headers(block)
    return schema.join_headers(headers) if kept is None else kept


@given(st.binary(min_size=1, max_size=80))
def test_any_block_comes_back(block: bytes) -> None:
    assert given_back(block) == block


@given(LINES, st.sampled_from([b": ", b":", b" :  "]), st.sampled_from([b"NATS/1.0", b"NATS/1.0 100 Idle"]))
def test_anything_like_a_header_block_comes_back(lines: list[tuple[bytes, bytes]], colon: bytes, first: bytes) -> None:
    block = b"\r\n".join([first, *(name + colon + value for name, value in lines), b"", b""])
    assert given_back(block) == block


def test_usual_blocks_need_no_raw_copy() -> None:
    block = b"NATS/1.0\r\nNats-Msg-Id: 17\r\nTrace: a\r\nTrace: b\r\nEmpty: \r\n\r\n"
    headers, kept = schema.split_headers(block)
    assert headers == [("Nats-Msg-Id", ["17"]), ("Trace", ["a", "b"]), ("Empty", [""])]
    assert kept is None
    assert schema.split_headers(b"NATS/1.0\r\n\r\n") == ([], None)


def test_odd_blocks_show_their_names_and_keep_their_bytes() -> None:
    for block, names in (
        (b"NATS/1.0\r\nA: 1\r\nB: 2\r\nA: 3\r\n\r\n", [("A", ["1", "3"]), ("B", ["2"])]),
        (b"NATS/1.0\r\nA:1\r\n\r\n", [("A", ["1"])]),
        (b"NATS/1.0 503\r\n\r\n", []),
        (b"NATS/1.0\r\nA: \xff\r\n\r\n", [("A", ["\\xff"])]),
        (b"NATS/1.0\r\nno colon\r\n\r\n", []),
    ):
        assert schema.split_headers(block) == (names, block)


@given(st.binary(min_size=1, max_size=30))
def test_any_subject_comes_back(subject: bytes) -> None:
    text, kept = schema.subject_text(subject)
    assert (text.encode() if kept is None else kept) == subject


@pytest.mark.parametrize(
    ("subject", "fits"),
    [
        ("orders.de", True),
        ("a" * 200, True),
        ("a" * 250, False),
        ("%" * 70, True),
        ("%" * 80, False),
        ("é" * 100, True),
        ("__HIVE_DEFAULT_PARTITION__", False),
        ("a.\0", False),
    ],
)
def test_subjects_that_make_impossible_directories_are_known(subject: str, fits: bool) -> None:
    assert schema.fits_partition(subject) is fits
