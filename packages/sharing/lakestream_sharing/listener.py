"""The listener of Delta Sharing, with limits of connections.

Belongs here: accepting connections up to a number, and the end of those that are open.
"""

from __future__ import annotations

import asyncio
import ssl

from lakestream.http.connection import HttpConnection, HttpLimits, HttpRoom
from lakestream_sharing.app import Service

MAX_CONNECTIONS = 1_000
"""Connections at the same time. A further one takes the place of the one that has been idle longest, or is told that
there is none (503)."""
IDLE_S = 30.0
"""Time without a request after which a connection is closed, and time for a request's body."""
STALLED_S = 600.0
"""The same while the client has not read all of an answer (10 min)."""
HANDSHAKE_S = 10.0
"""Time for a TLS handshake."""
GRACE_S = 5.0
"""Time that requests under way get at the end."""


class Listener:
    """A listener for the application.

    Args:
        service: the application; closed with the listener.
        max_connections: at the same time.
        idle_s: time without a request after which a connection is closed.
    """

    def __init__(self, service: Service, max_connections: int = MAX_CONNECTIONS, idle_s: float = IDLE_S) -> None:
        self._service = service
        most = {"most": max_connections, "of_address": max_connections}  # a proxy may be the only address
        self._room = HttpRoom(HttpLimits(**most, head_s=idle_s, idle_s=idle_s, body_s=idle_s, stalled_s=STALLED_S))
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int, context: ssl.SSLContext | None = None) -> tuple[str, int]:
        """Listen; return the bound address. Raises OSError."""
        self._server = await asyncio.get_running_loop().create_server(
            lambda: HttpConnection(self._service, self._room),
            host,
            port,
            ssl=context,
            ssl_handshake_timeout=HANDSHAKE_S if context is not None else None,
        )
        bound = self._server.sockets[0].getsockname()
        return str(bound[0]), int(bound[1])

    async def close(self) -> None:
        """Stop listening; requests under way may end."""
        if self._server is not None:
            self._server.close()
        await self._room.close(GRACE_S)
        self._service.close()
