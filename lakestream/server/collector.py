"""Collection of reference cycles.

Belongs here: when the interpreter looks for objects that only refer to each other; all others are freed at once, by
their reference counts. The settings apply to the whole process, so only a server's own process makes them.
"""

from __future__ import annotations

import gc

from lakestream.ports import Clock

YOUNG_OBJECTS = 2000
"""New containers (lists, dicts, instances …) after which those are looked at (2,000, 0.1 ms)."""

YOUNG_ROUNDS = 10
"""Such looks after which those that have outlived one are looked at as well (10, 1 ms)."""

FULL_NS = 10_000_000_000
"""Shortest time between two full collections (10 s)."""

FULL_SHARE = 500
"""Full collections take at most this part of the time (1/500), so that they do not show in a 99th percentile."""

_NEVER = 1 << 30


class Collector:
    """Full collections at intervals, in place of the interpreter's own.

    The interpreter collects fully whenever the number of old objects has grown by a quarter. A flood of requests lets
    it do so several times a second, 100 to 300 ms each, while nothing else runs.

    Args:
        clock: runs the collections in the event loop.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def start(self) -> None:
        """Begin, and exempt the objects that exist: modules and the server's own parts, which live as long as it."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS, YOUNG_ROUNDS, _NEVER)
        gc.enable()  # the command disabled it for the start
        self._clock.call_later(FULL_NS, self._collect)

    def _collect(self) -> None:
        began = self._clock.steady()
        gc.collect()
        took = self._clock.steady() - began
        self._clock.call_later(max(FULL_NS, took * FULL_SHARE), self._collect)
