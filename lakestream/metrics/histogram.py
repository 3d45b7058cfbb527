"""Histograms with fixed buckets.

Belongs here: counting observations, in any thread. Observe once per group commit, read or batch, never per message.
A lone publish is such a batch: observing is an append to a list, which is sorted into buckets now and then.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence

import msgspec

SECONDS = (
    0.00005,
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)
"""Upper bounds of durations of disk and table operations, 50 µs through 10 s."""
COUNTS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0)
"""Upper bounds of numbers of messages."""
BYTES = (256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 4194304.0, 16777216.0)
"""Upper bounds of sizes, 256 B through 16 MiB."""


MAX_FRESH = 256
"""Observations that wait to be sorted into buckets."""


class Buckets(msgspec.Struct, frozen=True):
    """Content of a histogram: (upper bound, observations up to it) ascending, without the last, infinite one; their
    total number and sum."""

    counts: list[tuple[float, int]]
    count: int
    sum: float


class Histogram:
    """Observations by size. Safe to use from several threads.

    Args:
        bounds: upper bounds of the buckets, ascending; the infinite one is added.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0
        self._fresh: list[float] = []
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        """Count one observation."""
        self._fresh.append(value)
        if len(self._fresh) >= MAX_FRESH:
            with self._lock:
                self._sort()

    def _sort(self) -> None:
        fresh = self._fresh[:]
        del self._fresh[: len(fresh)]  # other threads may append meanwhile
        for value in fresh:
            self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += sum(fresh)

    def read(self) -> Buckets:
        """Return the observations so far."""
        with self._lock:
            self._sort()
            counts, total = list(self._counts), self._sum
        running, found = 0, []
        for bound, count in zip(self._bounds, counts, strict=False):  # the last count has no bound
            running += count
            found.append((bound, running))
        return Buckets(found, running + counts[-1], total)
