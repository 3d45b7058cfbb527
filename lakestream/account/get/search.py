"""Searches for subjects that take longer than a turn of the event loop has time for.

Belongs here: multi_last requests whose patterns are compared with many subjects, one request of a stream at a time, in
steps between which other clients are served. Short ones are answered at once, by query.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from lakestream.log.index.subject_leaves import IndexSnapshot
from lakestream.ports import Bus
from lakestream.protocol.subjects import Steps, SubjectFilters, subscribable

SUBJECTS_AT_ONCE = 500
"""Subjects that are compared in one step (500, about 1 ms)."""

PATTERNS_AT_ONCE = 500
"""Patterns that are prepared in one step."""


class SearchResult(NamedTuple):
    """Outcome of a search.

    Attributes:
        seqs: the newest sequence of each matching subject, ascending; None if there are too many.
        through: the stream's last sequence when the search began, or the one that was asked for.
    """

    seqs: Sequence[int] | None
    through: int


Begin = Callable[[], Steps[SearchResult]]
"""Returns the steps of a search over the subjects that exist now."""


class _Search(NamedTuple):
    reply: bytes
    begin: Begin
    done: Callable[[SearchResult | Exception], None]


def newest(
    subjects: IndexSnapshot, patterns: Sequence[bytes], limit: int, through: int, earlier: Callable[[bytes, int], int]
) -> Steps[SearchResult]:
    """Find the newest sequence ≤ `through` of every matching subject, in steps.

    Args:
        limit: most subjects; with more there is no result.
        earlier: returns a subject's last sequence ≤ `through`, 0 if there is none, where its newest is beyond that.

    Raises:
        LogError: a file of the index cannot be read.
    """
    wanted, found = SubjectFilters(), list[int]()
    for number, pattern in enumerate(patterns, 1):
        if subscribable(pattern):  # others match nothing
            wanted.add(pattern)
        if not number % PATTERNS_AT_ONCE:
            yield
    for number, (name, seq) in enumerate(subjects.newest(), 1):
        if not number % SUBJECTS_AT_ONCE:
            yield
        if wanted.match(name) and (seq := seq if seq <= through else earlier(name, through)):
            found.append(seq)
            if len(found) > limit:
                return SearchResult(None, through)
    return SearchResult(sorted(found), through)


class Searches:
    """The searches of one stream, one after the other, so that one snapshot of its subjects exists at a time.

    Args:
        bus: tells when a later turn of the event loop has time, and the client reads what it is sent.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._waiting: deque[_Search] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, reply: bytes, begin: Begin, done: Callable[[SearchResult | Exception], None]) -> None:
        """Call `done` with the outcome of a search, once those before it have ended; never if the client has gone."""
        self._waiting.append(_Search(reply, begin, done))
        if len(self._waiting) == 1:
            self._next()

    def _next(self) -> None:
        while self._waiting and not self._bus.interest(self._waiting[0].reply):
            self._waiting.popleft()  # the client has gone
        if self._waiting:
            search = self._waiting[0]
            self._bus.when_writable(search.reply, lambda: self._go_on(search, search.begin()))

    def _go_on(self, search: _Search, steps: Steps[SearchResult]) -> None:
        outcome: SearchResult | Exception
        try:
            next(steps)
            self._bus.when_writable(search.reply, lambda: self._go_on(search, steps))
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
