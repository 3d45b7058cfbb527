"""Tests of when reference cycles are collected."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from lakestream.server.heap import FULL_NS, YOUNG_OBJECTS, Collector
from tests.unit.stream_world import ManualClock

pytestmark = pytest.mark.unit


class Cycle:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """Restore the interpreter's own settings."""
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def old_garbage() -> weakref.ref[Cycle]:
    """Return a reference to a cycle that has outlived the young collections, and that nothing else refers to."""
    cycle = Cycle()
    gc.collect(1)
    return weakref.ref(cycle)


def test_old_cycles_are_collected_at_intervals_and_not_because_the_heap_grows() -> None:
    clock = ManualClock()
    Collector(clock).start()
    garbage = old_garbage()
    kept = [[number] for number in range(100 * YOUNG_OBJECTS)]
    assert garbage() is not None, "a full collection has come while the heap grew"
    clock.advance(FULL_NS)
    assert garbage() is None
    garbage = old_garbage()
    clock.advance(FULL_NS)
    assert garbage() is None
    assert kept
