"""Histograms: counts by bucket, from several threads."""

from __future__ import annotations

import threading

import pytest

from lakestream.metrics.histogram import Buckets, Histogram

pytestmark = pytest.mark.unit


def test_each_observation_counts_in_all_buckets_from_its_size_on() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 7.0):
        histogram.observe(value)
    assert histogram.read() == Buckets([(1.0, 2), (2.0, 3)], 4, 10.0)


def test_no_observation_of_a_thread_is_lost() -> None:
    histogram, each = Histogram((1.0,)), 5_000

    def observe() -> None:
        for _ in range(each):
            histogram.observe(1.0)

    threads = [threading.Thread(target=observe) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert histogram.read() == Buckets([(1.0, 4 * each)], 4 * each, 4.0 * each)
