"""What one turn of the event loop gathers on a server.

Belongs here: the sinks that have output, written once when all ready sockets are read, and whether a publisher has to
wait for another node. All accounts of a server share one: a turn knows nothing of accounts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from lakestream.net.interest.subscription import Congested

TURN_BYTES = 16 << 20
"""Bytes for subscribers (16 MiB) after which publishers wait for the next turn, so that many large messages with many
subscribers do not keep the other clients waiting."""


class Flushable(Protocol):
    """A sink with output to write at the end of the turn."""

    def flush(self) -> None:
        """Write everything gathered."""


class Turn:
    """The present turn.

    Args:
        call_soon: runs a callback once the event loop's turn has read all ready sockets.

    Attributes:
        overrun: what the publisher that is being read waits for: another node, or a remote server, that had to take a
            message while the way to it was congested; or the next turn.
        soon: go on with something in the next turn, so that nothing holds the event loop for long.
    """

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self.overrun: Congested | None = None
        self.soon = call_soon
        self._dirty: list[Flushable] = []
        self._spent = 0

    def dirty(self, sink: Flushable) -> None:
        """Note that `sink` has output; all of it is written once, at the end of the turn."""
        if not self._dirty:
            self.soon(self._flush)
        self._dirty.append(sink)

    def read(self, size: int) -> None:
        """Note that a buffer from a client was handled. Every sink with output may have got all of it: an estimate that
        costs nothing per message."""
        if self._dirty:
            self._spent += size * len(self._dirty)
            if self._spent > TURN_BYTES and self.overrun is None:
                self.overrun = self

    def on_drain(self, callback: Callable[[], None]) -> None:
        """See `Congested.on_drain`: go on in the next turn."""
        self.soon(callback)

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        self._spent = 0
        for sink in dirty:
            sink.flush()
