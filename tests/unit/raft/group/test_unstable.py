"""Tests of the entries that a member keeps in memory."""

from __future__ import annotations

import tracemalloc

import pytest

from lakestream.log.format.frame import Frame, Kind
from lakestream.log.store.log import Appended
from lakestream.raft.group.unstable import RECENT_BYTES, Unstable

pytestmark = pytest.mark.unit


def test_many_small_entries_take_no_more_memory_than_few_large_ones() -> None:
    """Acks are entries of some bytes: without what surrounds them, a leader kept ten times the limit."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept = Unstable(0, 0)
        for index in range(1, 40_001):
            frame = Frame(Kind.PROGRESS, 1, index, index, index.to_bytes(16, "little"))
            kept.append([frame])
            kept.place([Appended(b"", index, index)])
            kept.take(index)
            kept.entries(index, index, 1)
            kept.trim(RECENT_BYTES)
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert RECENT_BYTES // 2 < used < RECENT_BYTES * 5 // 4
    assert kept.first > 1
