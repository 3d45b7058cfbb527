"""Tests of when reference cycles are collected."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakestream.meta.replica import Replica
from lakestream.meta.replicas import ENDED_NS
from lakestream.server.heap import OLD_ROUNDS, YOUNG_OBJECTS, YOUNG_ROUNDS, Collector
from tests.unit.account.test_engines import World as Stores
from tests.unit.consumer_world import World

pytestmark = pytest.mark.unit

STREAMS = 100


class Cycle:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """Restore the interpreter's own settings."""
    before, calls = gc.get_threshold(), list(gc.callbacks)
    yield
    gc.callbacks[:] = calls
    gc.freeze()  # as before: the tests and all modules
    gc.set_threshold(*before)


def streams() -> int:
    """Return the number of replicas that exist."""
    gc.unfreeze()
    return sum(type(each) is Replica for each in gc.get_objects())


def test_old_objects_are_looked_at_in_pieces_however_many_there_are() -> None:
    looked: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            looked.append(sum(len(gc.get_objects(generation)) for generation in range(info["generation"] + 1)))

    Collector().start()
    gc.callbacks.append(note)
    kept = [[number] for number in range(100 * YOUNG_OBJECTS)]
    gc.callbacks.remove(note)
    assert looked
    assert max(looked) < YOUNG_OBJECTS * (YOUNG_ROUNDS + 2) * (OLD_ROUNDS + 2) < len(kept)


def test_cycles_that_end_early_are_collected() -> None:
    Collector().start()
    garbage = weakref.ref(Cycle())
    kept = [[number] for number in range(YOUNG_OBJECTS * (YOUNG_ROUNDS + 2))]
    assert garbage() is None
    assert kept


def test_a_deleted_consumer_is_freed_though_it_was_exempt() -> None:
    world = World()
    world.stream()
    consumer = weakref.ref(world.consumer("c"))
    world.pull()
    gc.collect()
    gc.freeze()
    assert world.ask("CONSUMER.DELETE.S.c")["success"]
    world.clock.advance(1_000_000_000)
    gc.collect(1)
    assert consumer() is None


def test_a_deleted_stream_is_freed_though_it_was_exempt() -> None:
    before, world = streams(), World()
    world.stream()
    world.consumer("c")
    gc.collect()
    gc.freeze()
    assert world.ask("STREAM.DELETE.S")["success"]
    world.clock.advance(2 * ENDED_NS)
    gc.collect(1)
    assert streams() <= before


def test_a_start_leaves_no_cycles_for_its_streams(tmp_path: Path) -> None:
    """`Collector.start` exempts garbage of a start from collection."""
    before = Stores(tmp_path, "A")
    for number in range(STREAMS):
        before.create("A", f"S{number}")
        before.publish("A", f"S{number}")
    before.stop()
    gc.collect()
    gc.disable()
    try:
        world = Stores(tmp_path, "A")
        found = gc.collect()
    finally:
        gc.enable()
    assert len(world.engines.of("A").streams) == STREAMS
    assert found < STREAMS
    world.stop()
