"""What one turn of the event loop gathers on a server.

Belongs here: the sinks that have output, written once when all ready sockets are read, and whether a publisher has to
wait for another node. All accounts of a server share one: a turn knows nothing of accounts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Flushable(Protocol):
    """A sink with output to write at the end of the turn."""

    def flush(self) -> None:
        """Write everything gathered."""


class Congested(Protocol):
    """Somebody who has more to send than leaves."""

    def on_drain(self, callback: Callable[[], None]) -> None:
        """Call back once when that is over, or when it is gone."""


class Turn:
    """The present turn.

    Args:
        call_soon: runs a callback once the event loop's turn has read all ready sockets.

    Attributes:
        overrun: another node, or a remote server, that had to take a message while the way to it was congested: its
            publisher waits.
        soon: go on with something in the next turn, so that nothing holds the event loop for long.
    """

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self.overrun: Congested | None = None
        self.soon = call_soon
        self._dirty: list[Flushable] = []

    def dirty(self, sink: Flushable) -> None:
        """Note that `sink` has output; all of it is written once, at the end of the turn."""
        if not self._dirty:
            self.soon(self._flush)
        self._dirty.append(sink)

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        for sink in dirty:
            sink.flush()
