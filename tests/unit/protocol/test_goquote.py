"""Tests of quoting as in Go; conformance scenarios compare it with nats-server's."""

from __future__ import annotations

import pytest

from lakestream.protocol.goquote import quoted

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"orders.new", '"orders.new"'),
        (b"", '""'),
        (b'b\x01"\xc3\xa9\xe2\x82\xac', '"b\\x01\\"\u00e9\u20ac"'),
        (b"no\xff\xfe", '"no\\xff\\xfe"'),
        (b"a\\b", '"a\\\\b"'),
        (b"\x7f\a\v\t", '"\\x7f\\a\\v\\t"'),
        ("\u200b\U0001f600\U000e0001", '"\\u200b\U0001f600\\U000e0001"'),
        ("name of it", '"name of it"'),
    ],
)
def test_quoted(data: bytes | str, wanted: str) -> None:
    assert quoted(data) == wanted
