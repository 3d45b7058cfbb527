"""Tests of steps of the system clock: times never decrease, and timers follow the real time."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from lakestream.log.store.memory import MemoryStore
from lakestream.runtime import LoopClock
from lakestream.stream.features.ages import MAX_RUNS, RESOLUTION_NS, Ages
from tests.unit import consumer_world
from tests.unit.stream_world import ManualClock, World

pytestmark = pytest.mark.unit

S = 1_000_000_000
HOUR, DAY = 3600 * S, 86_400 * S
TOLERANCE = RESOLUTION_NS + S // 2
"""Tolerance of timers in ns: the resolution of ages; expiry checks every 50 ms, these tests every 250."""


def passing(world: World, ns: int) -> None:
    """Let time pass, whatever the system clock shows."""
    for _ in range(ns // (S // 4)):
        world.clock.advance(S // 4)
        world.settle()


def kept(world: World) -> list[int]:
    return [seq for seq, _, _ in world.content()]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(str(tmp_path / "S"), allow_msg_ttl=True)


@pytest.mark.parametrize("step", [-HOUR, HOUR, -DAY, DAY])
def test_a_ttl_ends_in_time_when_the_clock_is_stepped_after_the_publish(world: World, step: int) -> None:
    world.acked("s.a", Nats_TTL="4s")
    world.clock.stepped = step
    passing(world, 3 * S)
    assert kept(world) == [1]
    passing(world, 2 * S)
    assert kept(world) == []


@pytest.mark.parametrize("step", [-HOUR, HOUR, -DAY, DAY])
def test_a_ttl_ends_in_time_when_the_clock_was_stepped_before_the_publish(world: World, step: int) -> None:
    world.acked("s.a")
    world.clock.stepped = step
    passing(world, 10 * S)
    world.acked("s.a", Nats_TTL="4s")
    passing(world, 2 * S)
    assert kept(world) == [1, 2]
    passing(world, 4 * S)
    assert kept(world) == [1]


def test_one_publish_a_day_ahead_holds_nothing_up(world: World) -> None:
    world.acked("s.a")
    world.clock.stepped = DAY
    world.acked("s.a", Nats_TTL="4s")
    world.clock.stepped = 0
    world.acked("s.a", Nats_TTL="4s")
    times = [record.time_ns for record in world.stream.store.read_run(1, 10, 1 << 20)]
    assert times == sorted(times)
    passing(world, 7 * S)
    assert kept(world) == [1]
    world.acked("s.a", Nats_TTL="4s")
    passing(world, 7 * S)
    assert kept(world) == [1]


@pytest.mark.parametrize("step", [-HOUR, HOUR, DAY])
def test_max_age_counts_the_time_that_passed(tmp_path: Path, step: int) -> None:
    world = World(str(tmp_path / "S"), max_age=20 * S)
    world.acked("s.a")
    passing(world, 5 * S)
    world.clock.stepped = step
    world.acked("s.a")
    passing(world, 5 * S)
    world.clock.stepped = 0
    world.acked("s.a")
    passing(world, 8 * S)
    assert kept(world) == [1, 2, 3]
    passing(world, 4 * S)
    assert kept(world) == [2, 3]
    passing(world, 5 * S)
    assert kept(world) == [3]
    passing(world, 5 * S)
    assert kept(world) == []


@pytest.mark.parametrize("step", [-HOUR, DAY])
def test_a_message_id_is_remembered_for_the_window(tmp_path: Path, step: int) -> None:
    world = World(str(tmp_path / "S"), duplicate_window=10 * S)
    world.clock.stepped = step
    assert world.acked("s.a", Nats_Msg_Id="one")["seq"] == 1
    world.clock.stepped = 0
    passing(world, 8 * S)
    assert world.acked("s.a", Nats_Msg_Id="one").get("duplicate")
    passing(world, 4 * S)
    assert world.acked("s.a", Nats_Msg_Id="one") == {"stream": "S", "seq": 2}


def restarted(world: World, tmp_path: Path, *, ahead: int) -> World:
    """Return the next process: its clocks start with the system clock, which is `ahead` of the real time."""
    clock = ManualClock()
    clock.time = world.clock.time + ahead
    return World(str(tmp_path / "S"), clock=clock)


def test_a_restart_under_the_right_clock_keeps_the_time_that_is_left(tmp_path: Path) -> None:
    world = World(str(tmp_path / "S"), clock=(clock := ManualClock()), allow_msg_ttl=True, max_age=HOUR)
    clock.time += DAY  # the first process starts a day ahead
    world.acked("s.a", Nats_TTL="8s")
    passing(world, 4 * S)
    world.stream.checkpoint()
    world.settle()
    after = restarted(world, tmp_path, ahead=-DAY)
    passing(after, 3 * S)
    assert kept(after) == [1]
    passing(after, 2 * S)
    assert kept(after) == []


def test_after_a_crash_a_time_in_the_future_counts_from_the_start(tmp_path: Path) -> None:
    world = World(str(tmp_path / "S"), allow_msg_ttl=True)
    world.clock.stepped = DAY
    world.acked("s.a", Nats_TTL="4s")
    after = restarted(world, tmp_path, ahead=0)
    passing(after, 3 * S)
    assert kept(after) == [1]
    passing(after, 2 * S)
    assert kept(after) == []


@pytest.mark.parametrize("seed", range(int(os.environ.get("LAKESTREAM_CLOCK_LIVES", "12"))))
def test_whatever_the_clock_does_messages_live_as_long_as_they_should(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    world = World(str(tmp_path / "S"), allow_msg_ttl=True, max_age=60 * S)
    began = world.clock.time
    due: dict[int, int] = {}
    for _ in range(120):
        roll = rng.random()
        if roll < 0.25:
            ttl = rng.choice((2, 5, 20))
            due[world.acked("s.a", Nats_TTL=f"{ttl}s")["seq"]] = world.clock.time + ttl * S
        elif roll < 0.5:
            due[world.acked("s.a")["seq"]] = world.clock.time + 60 * S
        elif roll < 0.65:
            world.clock.stepped = rng.choice((0, 0, -HOUR, DAY, -3 * S, 2 * S, 500_000_000, rng.randrange(-DAY, DAY)))
        elif roll < 0.7:
            world.stream.checkpoint()
            world.settle()
            world = World(str(tmp_path / "S"), clock=world.clock)  # a restart with the clock of the first process
        else:
            passing(world, rng.choice((S, 2 * S, 7 * S)))
        live, now = set(kept(world)), world.clock.time
        early = [seq for seq, at in due.items() if seq not in live and now < at - TOLERANCE]
        late = [seq for seq in live if now > due[seq] + TOLERANCE]
        assert not early, (seed, (now - began) / S, early)
        assert not late, (seed, (now - began) / S, late)


def test_runs_are_bounded_and_what_was_joined_is_never_early() -> None:
    clock = ManualClock()
    ages, pinned = Ages(clock, MemoryStore("u")), clock.time + DAY
    stored = {}
    for seq in range(1, 5000):  # before the newest message's time: times do not change, and the difference grows
        clock.time += 2 * S
        ages.opened(seq, pinned)
        stored[seq] = clock.time
    assert len(ages.runs()) <= MAX_RUNS
    for seq, at in stored.items():
        assert at <= ages.stored_ns(seq, pinned) <= clock.time
        low, time_ns, high = ages.through(ages.stored_ns(seq, pinned))
        assert low <= seq <= high
        assert time_ns >= pinned
    runs = len(ages.runs())
    assert len(ages.runs(4000)) < runs
    assert ages.stored_ns(4999, pinned) == stored[4999]


def test_what_was_not_stored_leaves_no_run() -> None:
    clock = ManualClock()
    ages = Ages(clock, MemoryStore("u"))
    ages.opened(5, clock.time + DAY)
    ages.rewound(3)
    assert ages.stored_ns(5, clock.time) == clock.time


@pytest.mark.parametrize("step", [-HOUR, DAY])
def test_consumers_wait_as_long_as_they_should(step: int) -> None:
    world = consumer_world.World()
    world.stream(allow_atomic=True)
    world.consumer(ack_wait=10 * S)
    world.consumer("d", inactive_threshold=30 * S)
    world.store("s.a")
    assert world.pull(1)[0].seq == 1
    world.client.taken()
    reply = world.next({"batch": 1, "expires": 20 * S}, "d")
    world.client.taken()
    again = world.next({"batch": 1, "expires": 20 * S})
    world.clock.stepped = step
    world.clock.advance(8 * S)
    assert world.client.taken() == []
    world.clock.advance(4 * S)
    (redelivered,) = world.client.taken()
    assert (redelivered.subject, redelivered.numbers[0]) == ("s.a", 2)
    assert world.info("d")["num_waiting"] == 0
    world.clock.advance(40 * S)
    assert world.ask("CONSUMER.INFO.S.d")["error"]["err_code"] == 10014
    assert reply != again


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("step", [-HOUR, -DAY])
def test_a_schedule_by_interval_waits_no_longer_than_that(tmp_path: Path, step: int, restart: bool) -> None:
    world = World(str(tmp_path / "S"), allow_msg_schedules=True)
    world.acked("s.plan", Nats_Schedule="@every 5s", Nats_Schedule_Target="s.made")
    world.clock.stepped = step
    if restart:
        world.stream.checkpoint()
        world.settle()
        world = World(str(tmp_path / "S"), clock=world.clock)
    passing(world, 24 * S)
    made = [subject for _, subject, _ in world.content()].count(b"s.made")
    assert made in (3, 4), "with up to half a second of rounding each time"


def test_a_schedule_by_interval_does_not_come_early(tmp_path: Path) -> None:
    world = World(str(tmp_path / "S"), allow_msg_schedules=True)
    world.acked("s.plan", Nats_Schedule="@every 5s", Nats_Schedule_Target="s.made")
    passing(world, 61 * S)
    assert len(world.content()) - 1 in (11, 12)


def test_one_fire_a_day_ahead_does_not_hold_up_the_next(tmp_path: Path) -> None:
    world = World(str(tmp_path / "S"), allow_msg_schedules=True)
    world.acked("s.plan", Nats_Schedule="@every 5s", Nats_Schedule_Target="s.made")
    world.clock.stepped = DAY
    passing(world, 6 * S)
    world.clock.stepped = 0
    before = len(world.content())
    passing(world, 13 * S)
    assert len(world.content()) - before >= 2


def test_steps_are_logged_once_with_size_and_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, lines = Loop(), Lines()
    wall = time.time_ns()
    monkeypatch.setattr(LoopClock, "now", staticmethod(lambda: wall + stepped))
    stepped = 0
    clock = LoopClock(loop, lines)  # type: ignore[arg-type]
    clock.watch_steps()
    for stepped in (0, -HOUR, -HOUR, -HOUR + S // 2, 0, DAY):  # noqa: B007
        loop.turn()
    found = [line[: line.index(" s:")] for line in lines.warnings]
    assert [round(float(line.rsplit(" ", 1)[1])) for line in found] == [-3600, 3600, 86_400]
    assert all(line.startswith("the system clock was stepped by ") for line in found)


class Lines:
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)


class Loop:
    def __init__(self) -> None:
        self.later: list[Callable[[], None]] = []

    def call_later(self, delay: float, callback: Callable[..., None], *args: object) -> None:
        self.later.append(partial(callback, *args))

    def turn(self) -> None:
        later, self.later = self.later, []
        for callback in later:
            callback()
