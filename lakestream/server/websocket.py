"""The listener for WebSocket.

Belongs here: opening it, its addresses for clients, and its certificates. Imported only with a `websocket` block. What
is spoken on its sockets is in net/websocket/.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

from lakestream.config.errors import StartError, reason_of
from lakestream.config.options import MAX_PORT, WebSocketOptions
from lakestream.logging import Logger
from lakestream.net import tls
from lakestream.net.connection import Connection
from lakestream.net.identity import advertised
from lakestream.net.peers.cluster import urls_of
from lakestream.net.websocket.handshake import Upgrade
from lakestream.net.websocket.transport import WebSockets
from lakestream.ports import Clock

TLS_HANDSHAKE_S = 60.0
"""Time of a TLS handshake without `handshake_timeout` (60 s)."""

_WILDCARDS = ("", "0.0.0.0", "::")


class WebSocketListener:
    """The listener of one server.

    Args:
        options: its settings.
        make: makes the connection of an accepted client.

    Attributes:
        port: the bound port; 0 before `open`.
        urls: `host:port` for clients.
    """

    def __init__(
        self, options: WebSocketOptions, make: Callable[[Upgrade], Connection], clock: Clock, log: Logger
    ) -> None:
        self.options = options
        self.port = 0
        self.urls: tuple[str, ...] = ()
        self._log = log
        self._sockets = WebSockets(options, make, clock, log)
        self._server: asyncio.Server | None = None
        self._context = tls.accepting(options.tls) if options.tls is not None else None

    async def open(self) -> None:
        """Listen. Raises StartError."""
        options = self.options
        if options.advertise.count(":") > 1 and not options.advertise.startswith("["):
            raise StartError(
                f"Unable to get websocket connect URLs: address {options.advertise}: too many colons in address"
            )
        self._server = await listen(options.host, options.port, self._sockets.accepted, options, self._context)
        self.port = self._server.sockets[0].getsockname()[1]
        self.urls = urls_of(options.host, self.port, advertised(options.advertise, self.port))
        scheme = "wss" if options.secure else "ws"
        self._log.info(f"Listening for websocket clients on {scheme}://{options.host}:{self.port}")
        if not options.secure:
            self._log.warn("Websocket not configured with TLS. DO NOT USE IN PRODUCTION!")

    def renew(self) -> None:
        """Read the certificates again, for later clients. Raises StartError; then nothing has changed."""
        if self._context is not None and self.options.tls is not None:
            tls.renew(self._context, self.options.tls)

    def close(self) -> None:
        """Accept no more; clients stay."""
        if self._server is not None:
            self._server.close()
        self._sockets.close()


async def listen(
    host: str,
    port: int,
    make: Callable[[], asyncio.Protocol],
    options: WebSocketOptions,
    context: ssl.SSLContext | None,
) -> asyncio.Server:
    """Return a server that makes a protocol for each accepted socket. Raises StartError."""
    wanted = max(port, 0)
    if not -1 <= port <= MAX_PORT:
        raise StartError(f"Unable to listen for websocket connections: listen tcp: address {port}: invalid port")
    try:
        if host in _WILDCARDS and socket.has_dualstack_ipv6():
            bound = socket.create_server(("::", wanted), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True)
        else:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            bound = socket.create_server((host, wanted), family=family, backlog=1024)
    except OSError as error:
        raise StartError(
            f"Unable to listen for websocket connections: listen tcp {host}:{port}: bind: {reason_of(error).lower()}"
        ) from error
    handshake_s = (options.handshake_timeout_ns / 1e9 or TLS_HANDSHAKE_S) if context is not None else None
    return await asyncio.get_running_loop().create_server(
        make, sock=bound, backlog=1024, ssl=context, ssl_handshake_timeout=handshake_s
    )
