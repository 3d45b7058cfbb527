"""The listener for WebSocket.

Belongs here: opening it, its TLS, and what clients and monitoring are told of it. Imported only with a `websocket`
block. What is spoken on its sockets is in net/websocket/.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from lakestream.config.errors import StartError
from lakestream.config.options import SECOND, WebSocketOptions
from lakestream.logging import Logger
from lakestream.net.identity import advertised, urls_of
from lakestream.net.listener import Listener, ListenError, TlsEntry, bind
from lakestream.net.tls import ServerContext
from lakestream.net.turn import Turn
from lakestream.net.websocket.transport import AcceptedClient, WebSockets
from lakestream.net.websocket.upgrade import Upgrade
from lakestream.ports import Clock

TLS_HANDSHAKE_NS = 60 * SECOND
"""Time of a TLS handshake without `handshake_timeout` (60 s)."""


class WebSocketListener:
    """The listener of one server.

    Args:
        options: its settings.
        make: makes the connection of an accepted client or leaf node; None: leaf nodes are not served.
        turn: the turn of the event loop that all clients share.
        shared: other processes listen there too.

    Attributes:
        port: the bound port.
        urls: `host:port` for clients.
        not_after: end of the certificate's validity (RFC 3339); "" without TLS.

    Raises:
        StartError: the address or the certificates cannot be used.
    """

    def __init__(
        self,
        options: WebSocketOptions,
        make: Callable[[Upgrade], AcceptedClient | None],
        clock: Clock,
        log: Logger,
        turn: Turn,
        *,
        shared: bool = False,
    ) -> None:
        self._options, self._log = options, log
        self._warnings: list[str] = []
        tls = self._tls_entry()
        self._sockets = WebSockets(options, make, clock, log, turn)
        try:
            advertised(options.advertise, options.port)
        except ValueError as error:
            raise StartError(f"Unable to get websocket connect URLs: {error}") from error
        try:
            listening = bind(options.host, options.port, shared=shared)
        except ListenError as error:
            raise StartError(f"Unable to listen for websocket connections: {error}") from error
        self._listener = Listener(listening, self._sockets.accepted, clock, tls=tls)
        self.port = self._listener.port
        self.urls = urls_of(options.host, self.port, advertised(options.advertise, self.port))

    async def open(self) -> None:
        """Begin to accept clients."""
        await self._listener.start()
        options = self._options
        self._log.info(f"Listening for websocket clients on {options.scheme}://{options.host}:{self.port}")
        if options.tls is None and not self._log.quiet:
            self._log.warn("Websocket not configured with TLS. DO NOT USE IN PRODUCTION!")
        for line in self._warnings:
            self._log.warn(f"websocket: {line}")

    @property
    def address(self) -> tuple[str, int]:
        """Return host and port as INFO shows them."""
        return self._options.host, self.port

    @property
    def tls_fields(self) -> Mapping[str, bool]:
        """Return the fields of INFO about TLS."""
        return {"tls_required": True, "tls_available": True} if self._options.tls is not None else {}

    def renew(self) -> None:
        """Read the certificates again, for later clients. Raises StartError; then nothing has changed."""
        if self._options.tls is not None:
            self._listener.secure(self._tls_entry())

    def close(self) -> None:
        """Accept no more; clients stay."""
        self._listener.close()
        self._sockets.close()

    def _tls_entry(self) -> TlsEntry | None:
        """Return how TLS begins: at once, as HTTPS does."""
        tls = self._options.tls
        if tls is None:
            self.not_after = ""
            return None
        time_ns = self._options.handshake_timeout_ns or TLS_HANDSHAKE_NS
        server = ServerContext(replace(tls, first=True, fallback_ns=0, timeout_ns=time_ns))
        self._warnings = server.warnings
        self.not_after = server.not_after
        return TlsEntry(server=server)
