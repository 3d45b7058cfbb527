"""The listener of Delta Sharing, with limits of connections.

Belongs here: accepting connections up to a number, and closing those that are idle. aiohttp closes a connection between
two requests, but waits for the first one, and for the rest of a header, without end. Its log has no request that is no
HTTP: anybody can send as many of these as they like, and the client gets the error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import ssl
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

MAX_CONNECTIONS = 1_000
"""Connections at the same time. A further one takes the place of the one that has been idle longest, or is closed at
once."""
IDLE_S = 30.0
"""Time without a request after which a connection is closed."""
STALLED_S = 600.0
"""The same while the client has not read all of an answer (10 min)."""
HANDSHAKE_S = 10.0
"""Time for a TLS handshake."""
GRACE_S = 5.0
"""Time that requests under way get at the end."""


class _WithoutBadRequests(logging.Filter):
    """Drops what aiohttp logs, with a traceback, of requests that it cannot parse."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.exc_info is None or not isinstance(record.exc_info[1], HttpProcessingError)


_log = logging.getLogger("lakestream.sharing.http")
_log.addFilter(_WithoutBadRequests())


class Listener:
    """A listener for an application.

    Args:
        application: is changed: it gets a middleware.
        max_connections: at the same time.
        idle_s: time without a request after which a connection is closed.
    """

    def __init__(
        self, application: web.Application, max_connections: int = MAX_CONNECTIONS, idle_s: float = IDLE_S
    ) -> None:
        application.middlewares.insert(0, self._watched)
        # No access log: its lines would have URLs with signatures.
        self._runner = web.AppRunner(
            application,
            handle_signals=False,
            access_log=None,
            logger=_log,
            keepalive_timeout=idle_s,
            shutdown_timeout=GRACE_S,
        )
        self._max, self._idle_s = max_connections, idle_s
        self._busy: dict[Any, int] = {}
        """Requests under way by connection."""
        self._used: dict[Any, float] = {}
        """Time at which each connection was seen first, or its last request ended."""
        self._server: asyncio.Server | None = None
        self._sweeping: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int, context: ssl.SSLContext | None = None) -> tuple[str, int]:
        """Listen; return the bound address. Raises OSError."""
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        handshake = HANDSHAKE_S if context is not None else None
        self._server = await loop.create_server(
            self._accepted, host, port, ssl=context, ssl_handshake_timeout=handshake
        )
        self._sweeping = asyncio.create_task(self._sweep())
        bound = self._server.sockets[0].getsockname()
        return str(bound[0]), int(bound[1])

    async def close(self) -> None:
        """Stop listening; requests under way may end."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeping
        if self._server is not None:
            self._server.close()
        await self._runner.cleanup()

    def _accepted(self) -> asyncio.BaseProtocol:
        server = self._runner.server
        assert server is not None  # Invariant: the runner is set up.
        if len(server.connections) < self._max:
            return server()
        idle = [each for each in server.connections if each not in self._busy and not _unread(each.transport)]
        if not idle:
            return _Refused()
        transport = min(idle, key=lambda each: self._used.get(each, math.inf)).transport
        assert transport is not None
        transport.abort()
        return server()

    @web.middleware
    async def _watched(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        connection = request.protocol
        self._busy[connection] = self._busy.get(connection, 0) + 1
        try:
            return await handler(request)
        finally:
            self._busy[connection] -= 1
            if not self._busy[connection]:
                del self._busy[connection]
            self._used[connection] = asyncio.get_running_loop().time()

    async def _sweep(self) -> None:
        """Close idle connections, until cancelled."""
        server = self._runner.server
        assert server is not None
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._idle_s / 3)
            now, there = loop.time(), server.connections
            self._used = {each: self._used.get(each, now) for each in there}
            for each in there:
                transport = each.transport
                if transport is None or each in self._busy:
                    continue
                if now - self._used[each] > (STALLED_S if _unread(transport) else self._idle_s):
                    transport.abort()


def _unread(transport: asyncio.Transport | None) -> bool:
    """Return True while the client has not read all of an answer, and once the connection ends."""
    return transport is None or transport.is_closing() or transport.get_write_buffer_size() > 0


class _Refused(asyncio.Protocol):
    """A connection above the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
