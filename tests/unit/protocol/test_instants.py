"""Tests of the parser of times for SQL, options and metadata (its values are in test_table_at.py)."""

from __future__ import annotations

import pytest

from lakestream.protocol import gotime
from lakestream.protocol.instants import has_zone, instant, rfc3339

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("text", ["2026-05-01T12:00:00Z", "2026-05-01 12:00 UTC", "2026-05-01+02", "2026-05-01T1:0:0"])
def test_a_zone_is_named_or_not(text: str) -> None:
    assert has_zone(text) is text.endswith(("Z", "UTC", "+02"))
    assert not has_zone(text.rstrip("ZUTC").removesuffix("+02"))


def test_it_reads_what_it_and_the_api_write() -> None:
    for ns in (0, 1, 1_777_636_800_123_456_789, -1, 1 << 62):
        assert instant(rfc3339(ns)) == ns
        assert ns == 0 or gotime.time_ns(rfc3339(ns)) == ns


def test_the_calendar_is_that_of_the_api() -> None:
    for text in ("2025-02-29", "2026-05-01 24:00", "2026-13-01"):
        with pytest.raises(ValueError, match=r"cannot read .* as a time: .*out of range"):
            instant(text)
