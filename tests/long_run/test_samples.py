"""Tests of the verdict on a long run, over runs that are made up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.long_run.samples import MIB, Run, Sample, verdict

pytestmark = pytest.mark.unit

STREAMS = 5
MEMORY, CACHE, LOG = 0, 1, 4

By = Callable[[float], float]
"""MiB by the minutes since the beginning."""


def results(rss: By, log: By = lambda minute: 20, cache: By = lambda minute: 0) -> list[str]:
    """Return the results of an hour with so much memory, log and cached messages, and restarts until minute 14."""
    made = []
    for at_s in range(10, 3600, 10):
        of_node = int(rss(at_s / 60) * MIB)
        latencies = {"publish": 0.01, "kv put": 0.01, "kv get": 0.01}
        made.append(Sample(at_s, {"n1": of_node}, {"n1": 100}, {"n1": int(cache(at_s / 60) * MIB)},
                           {"n1": int(log(at_s / 60) * MIB)}, 1, MIB, latencies, latencies, 0))  # fmt: skip
    run = Run(60, [200.0, 500.0, 840.0], made, {}, {}, [])
    return [row.result for row in verdict(run, STREAMS)]


def test_what_fills_up_before_the_comparison_is_no_growth() -> None:
    assert results(lambda minute: 100 + min(minute, 25) * 4)[MEMORY].startswith("kept")


def test_a_cache_that_fills_up_to_its_limit_is_no_growth() -> None:
    def cache(minute: float) -> float:
        return min(96, minute * 1.8)

    found = results(lambda minute: 100 + cache(minute), cache=cache)
    assert found[MEMORY].startswith("kept")
    assert found[CACHE].startswith("kept")
    assert results(lambda minute: 100, cache=lambda minute: 2 * minute)[CACHE].startswith("**not kept**")


def test_memory_that_grows_on_and_on_is_not_kept() -> None:
    assert results(lambda minute: 150 + minute)[MEMORY].startswith("**not kept**")


def test_a_log_beyond_its_retention_is_not_kept_even_for_one_sample() -> None:
    assert results(lambda minute: 150, lambda minute: 31 if 5 <= minute < 5.2 else 20)[LOG].startswith("**not kept**")
    assert results(lambda minute: 150, lambda minute: 29)[LOG].startswith("kept")
