"""Connections that this server opened.

Belongs here: the transport, and back-pressure in both directions. The protocols are in connection.py and
leaf_connection.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from lakestream.net.interest.subscription import Congested
from lakestream.net.keep_alive import KeepAlive, unconfirmed
from lakestream.ports import Clock
from lakestream.protocol import frames

HIGH_WATER = 1 << 20
"""Unsent bytes above which a connection is congested (1 MiB). A turn's output is written early at this size."""

MAX_PENDING = 64 << 20
"""Unsent bytes (64 MiB) at which the connection is closed: the remote does not read."""

MAX_PINGS = 2
"""Unanswered PINGs after which a connection is closed that has no limit of its own."""


class OutgoingConnection(asyncio.Protocol):
    """A connection that this server opened.

    Args:
        ping_ns: interval of PINGs.
        max_pings: unanswered ones, while nothing else gets through, after which the connection is closed.

    Attributes:
        transport: None before the connection is made.
        congested: above the high-water mark of unsent bytes.
        alive: PINGs and their answers.
    """

    def __init__(self, clock: Clock, ping_ns: int, max_pings: int = MAX_PINGS) -> None:
        self.transport: asyncio.Transport | None = None
        self.congested = False
        self._waiting: list[Callable[[], None]] = []
        self._stalled = False
        self._written = 0
        self.alive = KeepAlive(
            clock,
            lambda: (ping_ns, max_pings),
            lambda: self.write(frames.PING),
            lambda: (self._written, unconfirmed(self.transport)),
            lambda: self.end("Stale Connection"),
        )

    def end(self, reason: str) -> None:
        """Close the connection. Idempotent."""
        raise NotImplementedError

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.use(cast(asyncio.Transport, transport))

    def use(self, transport: asyncio.Transport) -> None:
        """Use this transport from now on."""
        self.transport = transport
        transport.set_write_buffer_limits(high=HIGH_WATER)

    # ------------------------------------------------------------------ writing
    def write(self, data: bytes) -> None:
        """Write now. Ends the connection when too much is unsent."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        self._written += len(data)
        transport.write(data)
        if transport.get_write_buffer_size() > MAX_PENDING:
            self.end("slow consumer: more than 64 MiB pending")

    def pause_writing(self) -> None:
        self.congested = True

    def resume_writing(self) -> None:
        self.congested = False
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()

    def on_drain(self, callback: Callable[[], None]) -> None:
        """Call back once when it is not congested any more, or is gone; at once if it is not congested now."""
        if self.congested:
            self._waiting.append(callback)
        else:
            callback()

    @property
    def pending_bytes(self) -> int:
        """Return the bytes handed to the socket and not yet sent."""
        return self.transport.get_write_buffer_size() if self.transport is not None else 0

    # ------------------------------------------------------------------ reading
    def stall(self, receiver: Congested) -> None:
        """Stop reading until the receiver of what came has drained or is gone."""
        transport = self.transport
        if self._stalled or transport is None or transport.is_closing():
            return
        self._stalled = True
        self.alive.reads(False)
        transport.pause_reading()
        receiver.on_drain(self._go_on)

    def _go_on(self) -> None:
        self._stalled = False
        self.alive.reads(True)
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()
