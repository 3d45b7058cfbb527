"""Tests of the ring of figures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from lakestream.metrics.histogram import Buckets
from lakestream_console.history import MAX_BYTES, OF_ACCOUNT, OF_SERVER, ServerHistory, quantile
from lakestream_console.ring import COARSE_S, COARSE_STEPS, FINE_S, FINE_STEPS, FigureRing, ring_bytes
from tests.unit.consumer_world import VirtualClock

pytestmark = pytest.mark.unit

START = 1_800_000_000


def noted(seconds: int, kept_s: int = 86_400) -> FigureRing:
    """Return a ring with a figure for each fine step: the number of the step."""
    ring = FigureRing(("a",), kept_s)
    for number in range(seconds // FINE_S):
        ring.note(START + number * FINE_S, {"a": number})
    return ring


def test_five_minutes_are_read_in_fine_steps() -> None:
    step, times, series = noted(600).read(START + 599, 300)
    assert (step, len(times)) == (FINE_S, 60)
    assert times[-1] == START + 595
    assert series["a"] == [float(each) for each in range(60, 120)]


def test_a_day_is_read_in_coarse_steps_which_are_means() -> None:
    step, times, series = noted(7200).read(START + 7199, 86_400)
    assert (step, len(times)) == (COARSE_S, COARSE_STEPS)
    assert series["a"][-1] == pytest.approx(sum(range(1428, 1440)) / 12)
    assert series["a"][0] is None


def test_a_ring_forgets_what_is_older_than_a_turn() -> None:
    ring = noted(FINE_S * FINE_STEPS + 300)
    _, times, series = ring.read(START + FINE_S * FINE_STEPS + 299, 3600)
    assert (len(times), series["a"][0]) == (FINE_STEPS, 60.0)
    _, _, later = ring.read(START + 3 * FINE_S * FINE_STEPS, 3600)
    assert set(later["a"]) == {None}


def test_a_gap_stays_a_gap() -> None:
    ring = noted(300)
    ring.note(START + 600, {"a": 7})
    ring.note(START + 605, {})
    _, times, series = ring.read(START + 609, 300)
    assert [at for at, value in zip(times, series["a"], strict=True) if value is not None] == [START + 600]


def test_a_shorter_time_keeps_less() -> None:
    step, times, _ = noted(7200, kept_s=1800).read(START + 7199, 3600)
    assert (step, len(times)) == (FINE_S, 360)


def test_the_rings_of_a_server_and_44_accounts_fit() -> None:
    assert ring_bytes(len(OF_SERVER)) + 44 * ring_bytes(len(OF_ACCOUNT)) <= MAX_BYTES
    ring = FigureRing(OF_SERVER)
    held = sum(
        tier.begins.itemsize * len(tier.begins)
        + tier.noted.itemsize * len(tier.noted)
        + sum(values.itemsize * len(values) for values in tier.values.values())
        for tier in (ring._fine, ring._coarse)
    )
    assert held == ring_bytes(len(OF_SERVER))


def test_accounts_for_which_no_memory_is_left_have_no_history() -> None:
    node: Any = SimpleNamespace(started_ns=0)
    history = ServerHistory(node, cast(Any, None), VirtualClock(), 86_400)
    for number in range(100):
        history._add(str(number), OF_ACCOUNT, {"in": 0.0}, {}, {})
    kept = [number for number in range(100) if history.read(str(number), 300)["times"]]
    assert kept == list(range(MAX_BYTES // ring_bytes(len(OF_ACCOUNT))))


def test_rates_follow_from_counters_and_one_that_shrank_is_a_gap() -> None:
    node: Any = SimpleNamespace(started_ns=0)
    clock = VirtualClock()
    history = ServerHistory(node, cast(Any, None), clock, 86_400)
    for counted in (100.0, 150.0, 20.0, 30.0):
        history._add("A", OF_ACCOUNT, {"in": counted}, {}, {"connections": 3})
        clock.advance(FINE_S * 1_000_000_000)
    found = history.read("A", 300)["series"]
    assert [value for value in found["in"] if value is not None] == [10.0, 2.0]
    assert [value for value in found["connections"] if value is not None] == [3.0] * 4


def histogram(one: int, two: int, count: int) -> Buckets:
    return Buckets([(0.001, one), (0.002, two)], count, 0.0)


@pytest.mark.parametrize(
    ("after", "share", "expected"),
    [((10, 20, 20), 0.5, 0.0015), ((10, 20, 40), 0.99, 0.002), ((10, 10, 10), 0.5, None)],
)
def test_quantiles_between_two_readings(after: tuple[int, int, int], share: float, expected: float | None) -> None:
    assert quantile(histogram(10, 10, 10), histogram(*after), share) == expected
