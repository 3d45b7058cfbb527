"""Tests of the verdict on a long run, over runs that are made up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.long_run.samples import MIB, Run, Sample, verdict

pytestmark = pytest.mark.unit

STREAMS = 5
MEMORY, LOG = 0, 3


def results(rss: Callable[[float], float], log: Callable[[float], float] = lambda minute: 20) -> list[str]:
    """Return the results of an hour with these MiB of memory and log by minute, restarts until minute 14."""
    made = []
    for at_s in range(10, 3600, 10):
        of_node = int(rss(at_s / 60) * MIB)
        latencies = {"publish": 0.01, "kv put": 0.01, "kv get": 0.01}
        made.append(Sample(at_s, {"n1": of_node}, {"n1": 100}, {"n1": 0}, {"n1": int(log(at_s / 60) * MIB)}, 1, MIB,
                           latencies, latencies, 0))  # fmt: skip
    run = Run(60, [200.0, 500.0, 840.0], made, {}, {}, [])
    return [row.result for row in verdict(run, STREAMS)]


def test_caches_that_fill_up_before_the_comparison_are_no_growth() -> None:
    assert results(lambda minute: 100 + min(minute, 25) * 4)[MEMORY].startswith("kept")


def test_memory_that_grows_on_and_on_is_not_kept() -> None:
    assert results(lambda minute: 150 + minute)[MEMORY].startswith("**not kept**")


def test_a_log_beyond_its_retention_is_not_kept_even_for_one_sample() -> None:
    assert results(lambda minute: 150, lambda minute: 31 if 5 <= minute < 5.2 else 20)[LOG].startswith("**not kept**")
    assert results(lambda minute: 150, lambda minute: 29)[LOG].startswith("kept")
