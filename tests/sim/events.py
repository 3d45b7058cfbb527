"""Virtual time.

Belongs here: the queue of future events. A run never reads a real clock or waits: time jumps to the next event. Events
of the same instant happen in the order in which they were scheduled.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

US = 1_000
MS = 1_000_000
S = 1_000_000_000
EPOCH = 1_700_000_000 * S
"""Wall clock of the simulated machines when a run begins."""


class Events:
    """Heap of (time in ns, number, callback, its arguments)."""

    def __init__(self) -> None:
        self.now = 0
        self._heap: list[tuple[int, int, Callable[..., object], tuple[Any, ...]]] = []
        self._number = 0

    def after(self, delay_ns: int, call: Callable[..., object], *args: Any) -> None:
        """Call something `delay_ns` from now; 0 is at once."""
        self._number = number = self._number + 1
        heappush(self._heap, (self.now + delay_ns, number, call, args))

    def run_until(self, end_ns: int) -> None:
        """Run all events that are due until `end_ns`."""
        heap, pop = self._heap, heappop
        while heap and heap[0][0] <= end_ns:
            self.now, _, call, args = pop(heap)
            call(*args)
        self.now = end_ns
