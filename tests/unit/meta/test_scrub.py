"""Tests of the verification of sealed segments in the background, on a server without replicas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lakestream.log.store.segment_log import LogOptions
from lakestream.meta.replica_repair import ROUND_NS, SCRUB_DELAY_NS
from lakestream.net.interest.subscription import Subscription
from tests.unit.account.test_engines import World
from tests.unit.api_world import Client
from tests.unit.logkit import flip

pytestmark = pytest.mark.unit

SMALL = LogOptions(seal_bytes=3000, seal_age_ns=1 << 60)
HOUR_NS = 3600_000_000_000


def filled(directory: Path) -> list[Path]:
    """Create a store with sealed segments; return their paths."""
    world = World(directory, "A")
    world.stores._options = SMALL
    world.create("A")
    for number in range(60):
        world.publish("A", data=b"%d" % number * 40)
    world.stop()
    paths = sorted((directory / "jetstream/A/streams/S/log").glob("*.seg"))[:-1]
    assert len(paths) > 2
    return paths


def scrub(world: World, rounds: int) -> None:
    """Let time pass in small steps."""
    for _ in range(rounds):
        world.clock.advance(SCRUB_DELAY_NS)
        world.settle()


def advisories(world: World) -> list[Any]:
    """Subscribe to the advisories of damage; return the list of the messages."""
    client = Client()
    world.hub("A").join(Subscription(client, b"$JS.EVENT.ADVISORY.STREAM.DAMAGED.>", b"", b"9"))
    return client.got


def test_damage_that_nothing_reads_is_found_after_a_start_and_reported(tmp_path: Path) -> None:
    path = filled(tmp_path)[1]
    flip(str(path), 500)
    world = World(tmp_path, "A", scrub_rate=1 << 40)
    got = advisories(world)
    assert not world.log.errors
    scrub(world, 10)
    assert any(f"stream S: {path}: damaged at offset" in line for line in world.log.errors)
    assert any("lakestream repair" in line for line in world.log.errors)
    (advisory,) = [json.loads(each[2]) for each in got]
    assert advisory["type"] == "io.nats.jetstream.advisory.v1.stream_damaged"
    assert {"stream": "S", "server": "srv", "file": path.name, "replicated": False}.items() <= advisory.items()
    repairs = world.engines.node.replicas.repairs
    assert (repairs.damages, repairs.repaired) == (1, 0)
    assert world.publish("A")["seq"] == 61
    world.stop()


def test_everything_is_verified_again_after_the_interval(tmp_path: Path) -> None:
    paths = filled(tmp_path)
    size = sum(path.stat().st_size for path in paths)
    world = World(tmp_path, "A", scrub_rate=1 << 40, scrub_interval_ns=HOUR_NS)
    repairs = world.engines.node.replicas.repairs
    scrub(world, 10)
    assert repairs.scrubbed_bytes == size
    scrub(world, 10)
    assert repairs.scrubbed_bytes == size
    flip(str(paths[0]), 500)
    world.clock.advance(HOUR_NS)
    scrub(world, 10)
    assert repairs.scrubbed_bytes == 2 * size
    assert repairs.damages == 1
    world.stop()


def test_replicas_that_are_opened_do_not_put_off_the_next_round(tmp_path: Path) -> None:
    paths = filled(tmp_path)
    world = World(tmp_path, "A", scrub_rate=1 << 40, scrub_interval_ns=HOUR_NS)
    world.stores._options = SMALL
    world.create("A", "T")
    for number in range(60):
        world.publish("A", "T", data=b"%d" % number * 40)
    (opened,) = (each for each in world.engines.node.replicas.by_uid.values() if each.stream.name == "T")
    repairs = world.engines.node.replicas.repairs
    scrub(world, 10)
    flip(str(paths[0]), 500)
    for _ in range(6):  # two hours
        repairs.scrub(opened)
        scrub(world, 10)
        world.clock.advance(HOUR_NS // 3)
    assert repairs.damages
    world.stop()


def test_a_stream_that_was_made_since_is_verified_in_the_next_round(tmp_path: Path) -> None:
    world = World(tmp_path, "A", scrub_rate=1 << 40, scrub_interval_ns=HOUR_NS)
    world.stores._options = SMALL
    world.create("A")
    for number in range(60):
        world.publish("A", data=b"%d" % number * 40)
    repairs = world.engines.node.replicas.repairs
    scrub(world, 3)
    assert repairs.scrubbed_bytes == 0
    world.clock.advance(HOUR_NS + ROUND_NS)
    scrub(world, 10)
    assert repairs.scrubbed_bytes > 0
    world.stop()


def test_the_rate_is_bounded(tmp_path: Path) -> None:
    filled(tmp_path)
    world = World(tmp_path, "A", scrub_rate=3000)
    repairs = world.engines.node.replicas.repairs
    world.clock.advance(SCRUB_DELAY_NS)
    world.settle()
    first = repairs.scrubbed_bytes
    assert 3000 <= first <= 6000
    world.clock.advance(500_000_000)
    world.settle()
    assert repairs.scrubbed_bytes == first
    world.clock.advance(1_500_000_000)
    world.settle()
    assert first < repairs.scrubbed_bytes <= 2 * first + 6000
    world.stop()


def test_without_a_rate_nothing_is_verified(tmp_path: Path) -> None:
    flip(str(filled(tmp_path)[0]), 500)
    world = World(tmp_path, "A", scrub_rate=0)
    scrub(world, 10)
    assert not world.log.errors
    assert world.engines.node.replicas.repairs.scrubbed_bytes == 0
    world.stop()
