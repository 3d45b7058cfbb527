"""Tests of the figures of single streams: which have a memory, and how much that is."""

from __future__ import annotations

import pytest

from lakestream_console.stream_figures import ACTIVE_S, BYTES, IDLE_S, StreamFigures

pytestmark = pytest.mark.unit

DAY = 86_400
ROOM = 2 * BYTES


def noted(
    figures: StreamFigures, name: str, seq: int, now: float, lag: int | None = None, created: float = 0.0
) -> bool:
    key = "A", name
    if not figures.wants(key, now, now, ROOM - figures.bytes):
        return False
    figures.note(key, seq, now, lag, now, created, 10)
    return True


def stored(figures: StreamFigures, name: str, now: float) -> list[float]:
    found = figures.read(("A", name), now, 300)
    assert found is not None
    return [value for value in found[2]["stored"] if value is not None]


def test_rate_and_lag_of_a_stream() -> None:
    figures = StreamFigures(DAY)
    for at, seq in ((1000.0, 10), (1005.0, 60), (1010.0, 60), (1015.0, 5)):
        assert noted(figures, "S", seq, at, lag=seq)
    assert stored(figures, "S", 1015.0) == [10.0, 0.0], "not of the first look, nor of a stream that was made again"
    found = figures.read(("A", "S"), 1015.0, 300)
    assert found is not None
    assert [value for value in found[2]["lag"] if value is not None] == [10, 60, 60, 5]


def test_what_a_new_stream_stored_before_the_first_look_counts() -> None:
    figures = StreamFigures(DAY)
    assert noted(figures, "S", 1010, 1000.0, created=995.0)
    assert stored(figures, "S", 1000.0) == [2.0], "10 messages in 5 s; its first sequence was 1001"


def test_a_stream_without_recent_messages_gets_no_memory() -> None:
    figures = StreamFigures(DAY)
    assert not figures.wants(("A", "OLD"), 1000.0, 1001.0 + ACTIVE_S, ROOM)
    assert figures.bytes == 0


def test_memory_is_bounded_and_goes_to_streams_with_messages() -> None:
    figures = StreamFigures(DAY)
    assert noted(figures, "ONE", 1, 1000.0)
    assert noted(figures, "TWO", 1, 1500.0)
    assert not noted(figures, "THREE", 1, 1600.0), "there is no room, and both had messages within the hour"
    assert noted(figures, "THREE", 1, 1001.0 + IDLE_S)
    assert figures.read(("A", "ONE"), 1001.0 + IDLE_S, 300) is None
    assert figures.bytes == ROOM


def test_streams_give_way_to_accounts_and_are_forgotten_with_their_end() -> None:
    figures = StreamFigures(DAY)
    noted(figures, "ONE", 1, 1000.0)
    noted(figures, "TWO", 1, 1500.0)
    assert figures.make_room(0, BYTES // 2) == BYTES
    assert figures.read(("A", "ONE"), 1500.0, 300) is None
    figures.forget(1500.0)
    assert figures.read(("A", "TWO"), 1500.0, 300) is not None
    figures.forget(1505.0)
    assert figures.bytes == 0
