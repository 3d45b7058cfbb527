"""Times from publish to pub ack: once per group commit, from its oldest message."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakestream.metrics.histogram import Histogram
from lakestream.stream.assembly import FEATURES, MakeFeature
from lakestream.stream.features.ack_latency import AckLatency
from tests.unit.stream_world import World

pytestmark = pytest.mark.unit

MS = 1_000_000


def _world(tmp_path: Path, seconds: Histogram) -> World:
    def measured(make: MakeFeature) -> MakeFeature:
        return lambda stream: (
            AckLatency(stream.clock, seconds) if isinstance(made := make(stream), AckLatency) else made
        )

    return World(str(tmp_path), features=[measured(make) for make in FEATURES])


def test_a_group_commit_is_observed_once_from_its_oldest_message(tmp_path: Path) -> None:
    seconds = Histogram((0.004, 0.006))
    world = _world(tmp_path, seconds)
    world.publish("s.a")
    world.clock.advance(2 * MS)  # ends the turn: the write of the first message begins
    replies = [world.publish(f"s.{number}") for number in range(3)]  # gather meanwhile
    world.clock.time += 3 * MS
    world.io.work()
    world.clock.turn()
    assert seconds.read().counts == [(0.004, 0), (0.006, 1)]  # 2 + 3 ms
    world.clock.time += 8 * MS
    world.settle()
    assert all(map(world.answer, replies))
    assert seconds.read().counts == [(0.004, 0), (0.006, 1)]
    assert seconds.read().count == 2
    assert seconds.read().sum == pytest.approx(0.005 + 0.011)


def test_what_a_step_of_the_system_clock_hides_is_measured(tmp_path: Path) -> None:
    seconds = Histogram((1.0,))
    world = _world(tmp_path, seconds)
    world.publish("s.a")
    world.clock.stepped -= 3_600_000 * MS
    world.clock.time += 2 * MS
    world.settle()
    assert seconds.read().sum == pytest.approx(0.002)
