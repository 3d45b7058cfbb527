"""When something is to be done about each of many waiting requests, with one timer for all.

Belongs here: the order of their times. What is done then, and who still waits, pull.py knows.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from lakestream.ports import Clock, Timer
from lakestream.stream.consumer.pull_request import Waiting


class Due:
    """The times of waiting requests.

    Args:
        work: called for each request whose time has come and that has not ended, with the present time (ns). What it
            changes of the request's times counts from then on.
    """

    def __init__(self, clock: Clock, work: Callable[[Waiting, int], None]) -> None:
        self._clock, self._work = clock, work
        self._heap: list[tuple[int, int, Waiting]] = []
        self._numbers = itertools.count()
        self._timer: Timer | None = None
        self._timer_due = 0

    def watch(self, waiting: Waiting) -> None:
        """Have its next time come up. A time that moves on later is noticed when the earlier one is over."""
        due = min((at for at in (waiting.expires_at, waiting.beat_at) if at), default=0)
        if due:
            heapq.heappush(self._heap, (due, next(self._numbers), waiting))
            self._arm(due)

    def stop(self) -> None:
        """Forget everything."""
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, due: int) -> None:
        if self._timer is not None:
            if self._timer_due <= due:
                return
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._clock.call_later(max(due - self._clock.steady(), 0), self._tick)

    def _tick(self) -> None:
        self._timer = None
        now, heap = self._clock.steady(), self._heap
        while heap and (heap[0][0] <= now or heap[0][2].ended):
            _, _, waiting = heapq.heappop(heap)
            if waiting.ended:
                continue
            self._work(waiting, now)
            if not waiting.ended:
                self.watch(waiting)
        if heap:
            self._arm(heap[0][0])
