"""Searches for subjects that take longer than a turn of the event loop has time for.

Belongs here: what is left of multi_last requests that match many subjects, one request of a stream at a time, in steps
between which other clients are served. query.py has the search itself; most end at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from lakestream.ports import Bus, Clock
from lakestream.protocol.subjects import Steps

STEP_NS = 1_000_000
"""Time (1 ms) that a search takes of one turn of the event loop."""

Found = Sequence[int] | None
"""Outcome of a search: the newest sequence of each matching subject, ascending; None if there are too many."""


class _Search(NamedTuple):
    reply: bytes
    steps: Steps[Found]
    done: Callable[[Found | Exception], None]


class Searches:
    """The searches of one stream, one after the other.

    Args:
        bus: tells when a later turn of the event loop has time, and the client reads what it is sent.
        clock: the time.
    """

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bus, self._clock = bus, clock
        self._waiting: deque[_Search] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, reply: bytes, steps: Steps[Found], done: Callable[[Found | Exception], None]) -> None:
        """Call `done` with the outcome of a search, once those before it have ended; never if the client has gone."""
        self._waiting.append(_Search(reply, steps, done))
        if len(self._waiting) == 1:
            self._next()

    def _next(self) -> None:
        while self._waiting and not self._bus.interest(self._waiting[0].reply):
            self._waiting.popleft()  # the client has gone
        if self._waiting:
            search = self._waiting[0]
            self._bus.when_writable(search.reply, lambda: self._go_on(search))

    def _go_on(self, search: _Search) -> None:
        outcome: Found | Exception
        until = self._clock.steady() + STEP_NS
        try:
            next(search.steps)
            while self._clock.steady() < until:
                next(search.steps)
            self._bus.when_writable(search.reply, lambda: self._go_on(search))
            return
        except StopIteration as end:
            outcome = end.value
        except Exception as error:
            outcome = error
        self._waiting.popleft()
        try:
            search.done(outcome)
        finally:
            self._next()
