"""Tests of the messages of SQL over NATS."""

from __future__ import annotations

import json

import pytest

from lakestream.protocol import headers, sql

pytestmark = pytest.mark.unit


def test_an_error_keeps_the_blanks_before_the_mark_under_its_place() -> None:
    text = "no such column\n  line 1, column 8:\n  SELECT nix\n         ^"
    block = sql.encode_headers(sql.error_headers(400, text))
    found = dict(headers.parse(block))
    assert json.loads(found[sql.ERROR_TEXT.encode()]) == text
