"""Scrapes: collected in slices, rendered in a thread, one collection for scrapes that come together."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from lakestream.metrics.family import GAUGE, Family, Sheet
from lakestream.ops.metrics.scrapes import Scrapes
from lakestream.ops.monitoring.pages import HttpAnswer
from tests.unit.stream_world import ManualClock, ManualIo

pytestmark = pytest.mark.unit

NUMBER = Family("demo_number", GAUGE, "A number.")


class Metrics:
    """Metrics whose collection takes longer than a slice after every step."""

    def __init__(self, steps: int, error: Exception | None = None) -> None:
        self.steps, self.error, self.collections = steps, error, 0

    def collect(self, sheet: Sheet) -> Iterator[None]:

        self.collections += 1
        sheet.put(NUMBER, self.collections)
        for _ in range(self.steps):
            until = time.monotonic_ns() + 2_500_000
            while time.monotonic_ns() < until:
                pass
            yield
        if self.error is not None:
            raise self.error

    def directory(self) -> str:
        return ""


class World:
    def __init__(self, metrics: Metrics) -> None:
        self.clock, self.io, self.logged = ManualClock(), ManualIo(), list[str]()
        log = SimpleNamespace(exception=lambda text, error: self.logged.append(f"{text}: {error}"))
        node: Any = SimpleNamespace(io=self.io, log=log)
        self.scrapes = Scrapes(node, self.clock, metrics)  # type: ignore[arg-type]
        self.answers: list[HttpAnswer] = []

    def scrape(self, accept: str = "") -> None:
        self.scrapes.scrape(accept, "", self.answers.append)

    def slices(self) -> int:
        """Let the collection end; return the number of turns of the loop that it took after the first."""
        turns = 0
        while self.clock.timers:
            self.clock.advance(10_000_000)
            turns += 1
        return turns


def test_a_long_collection_leaves_the_event_loop_between_its_slices() -> None:
    world = World(Metrics(steps=4))
    world.scrape()
    assert world.slices() == 4
    assert world.answers == []
    world.io.work()
    assert b"demo_number 1.0\n" in world.answers[0].body


def test_scrapes_that_come_during_a_collection_share_the_next_one() -> None:
    metrics = Metrics(steps=0)
    world = World(metrics)
    world.scrape()
    for accept in ("", "", "application/openmetrics-text"):
        world.scrape(accept)
    world.io.work()
    assert [b"demo_number 1.0" in each.body for each in world.answers] == [True]
    world.io.work()
    assert metrics.collections == 2
    assert not world.io.waiting
    assert all(b"demo_number 2.0" in each.body for each in world.answers[1:])
    assert [each.body.endswith(b"# EOF\n") for each in world.answers] == [False, False, False, True]


def test_a_collection_that_fails_is_logged_and_the_next_scrape_works() -> None:
    metrics = Metrics(steps=0, error=RuntimeError("no figures"))
    world = World(metrics)
    world.scrape()
    assert world.answers[0].status == 500
    assert world.logged == ["monitoring page /metrics failed: no figures"]
    metrics.error = None
    world.scrape()
    world.io.work()
    assert world.answers[1].status == 200
