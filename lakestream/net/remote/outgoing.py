"""Connections that this server opened.

Belongs here: PINGs, and the limit of unsent bytes. The protocols are in connection.py and
leaf_connection.py.
"""

from __future__ import annotations

import asyncio
from typing import cast

from lakestream.net.keep_alive import KeepAlive, unconfirmed
from lakestream.net.outbox import Drain
from lakestream.ports import Clock
from lakestream.protocol import frames

MAX_PENDING = 64 << 20
"""Unsent bytes (64 MiB) at which the connection is closed: the remote does not read."""

MAX_PINGS = 2
"""Unanswered PINGs after which a connection is closed that has no limit of its own."""


class OutgoingConnection(Drain, asyncio.Protocol):
    """A connection that this server opened.

    Args:
        ping_ns: interval of PINGs.
        max_pings: unanswered ones, while nothing else gets through, after which the connection is closed.

    Attributes:
        alive: PINGs and their answers.
    """

    def __init__(self, clock: Clock, ping_ns: int, max_pings: int = MAX_PINGS) -> None:
        super().__init__()
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

    def reads(self, on: bool) -> None:
        self.alive.reads(on)
