"""The listeners of a server.

Belongs here: opening the ports for clients, WebSocket, leaf nodes and monitoring, their TLS at the start and after a
reload, the end of accepting, and the files that name the ports. The socket for the other nodes of a cluster is in
net/peers/. What is spoken on a port is up to its own module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lakestream.config.errors import StartError
from lakestream.config.options import FREE_PORT, BoundPorts, Options, RouteUrl
from lakestream.logging import Logger
from lakestream.net.connection import Connection
from lakestream.net.listener import Bind, Listener, ListenError, RateLimit, TlsEntry
from lakestream.net.turn import Turn
from lakestream.net.websocket.upgrade import Upgrade
from lakestream.ops import ports_file
from lakestream.ports import Clock
from lakestream.server.reloading import tls_changes

if TYPE_CHECKING:
    from lakestream.net.leaf.nodes import LeafNodes
    from lakestream.net.tls import ServerContext
    from lakestream.net.websocket.transport import AcceptedClient
    from lakestream.ops.monitoring.monitored import Monitored
    from lakestream.ops.monitoring.pages import Pages
    from lakestream.ops.monitoring.port import HttpSite
    from lakestream.server.websocket import WebSocketListener


class Listeners:
    """The listeners of one server.

    Args:
        options: its settings.
        make: makes the connection of an accepted client; of one over WebSocket from its handshake.
        leafnodes: its leaf nodes; None: it has none.
        turn: the turn of the event loop that all clients share.
        bind: opens the socket for clients; see `listener.bind`.

    Attributes:
        tls: of the port for clients; None: plain text.
        websocket: the listener for WebSocket; None: there is none. `mqtt`: that of packages/mqtt.
        http_port: bound port for monitoring; 0: there is none.
        has_console: it serves the web console.
    """

    def __init__(
        self,
        options: Options,
        make: Callable[[Upgrade | None], Connection],
        leafnodes: LeafNodes | None,
        clock: Clock,
        log: Logger,
        turn: Turn,
        bind: Bind,
    ) -> None:
        self._options, self._make, self._leafnodes, self._bind = options, make, leafnodes, bind
        self._clock, self._log, self._turn = clock, log, turn
        self.tls: ServerContext | None = None
        self.websocket: WebSocketListener | None = None
        self.mqtt: Any = None
        self.http_port, self.has_console = 0, False
        self._clients: Listener | None = None
        self._monitoring: Listener | None = None
        self._files: list[str] = []

    # ------------------------------------------------------------------ opening
    async def open(self, node: Monitored, monitored: Callable[[], Pages], *, shared: bool = False) -> int:
        """Open the ports for monitoring and WebSocket, and bind the one for clients; return that.

        Args:
            monitored: returns the monitoring pages; called if there is a port for them.
            shared: other processes serve clients on the same ports.

        Raises:
            StartError: an address or a certificate cannot be used.
        """
        options = self._options
        self.tls = _context(options)
        if options.http_port or options.https_port:
            from lakestream.ops.metrics.scrapes import Scrapes
            from lakestream.ops.metrics.server import ServerMetrics
            from lakestream.ops.monitoring import port as monitoring

            pages = monitored()
            scrapes = Scrapes(node, self._clock, ServerMetrics(node, pages), pages.together)
            console = self._console(node, pages) if options.console.enabled else None
            self.has_console = console is not None
            self._monitoring = await monitoring.serve(node, pages, scrapes, self._clock, self._turn, console)
            self.http_port = self._monitoring.port
            where = RouteUrl(options.http_host or options.host, self.http_port).address
            self._log.info(f"Starting {self._http} monitor on {where}")
        if options.websocket.port:
            from lakestream.server.websocket import WebSocketListener  # with HTTP and frames, which few servers need

            self.websocket = WebSocketListener(
                options.websocket, self._framed, self._clock, self._log, self._turn, shared=shared
            )
            await self.websocket.open()
        if options.mqtt is not None and options.mqtt.port and not self._log.quiet:  # the first worker has all sessions
            from lakestream import extras

            self.mqtt = extras.load("lakestream.mqtt", "Listener", "mqtt", "mqtt")(node, options.mqtt)
        try:
            listening = self._bind(options.host, options.port, shared=shared)
        except ListenError as error:
            port = options.port if options.port != FREE_PORT else 0
            raise StartError(f'Error listening on port: {RouteUrl(options.host, port).address}, "{error}"') from error
        self._rate = RateLimit(options.tls.rate_limit if options.tls is not None else 0, self._clock, self._log)
        self._clients = Listener(
            listening, lambda: self._make(None), self._clock, tls=self._tls_entry(), proxied=options.proxy_protocol
        )
        self._port = self._clients.port
        return self._port

    def _framed(self, upgrade: Upgrade) -> AcceptedClient | None:
        """Return the connection of a client or leaf node over WebSocket; None where leaf nodes are not served."""
        if not upgrade.leaf:
            return self._make(upgrade)
        return self._leafnodes.accepted(upgrade) if self._leafnodes is not None else None

    def _console(self, node: Monitored, pages: Pages) -> HttpSite | None:
        """Return the web console; None, with a line in the log, if its package is not installed."""
        from lakestream import extras

        try:
            console = extras.load("lakestream.console", "console", "console", "the web console")
        except extras.ExtraMissing as error:
            self._log.info(f"The monitoring port has no console: {error}")
            return None
        site: HttpSite = console(node, pages, lambda: self._make(None), self._clock)
        return site

    async def accept(self) -> None:
        """Begin to accept clients, then open the port for leaf nodes. Raises StartError."""
        options = self._options
        assert self._clients is not None
        await self._clients.start()
        if self.mqtt is not None:
            await self.mqtt.open()
        self._log.info(f"Listening for client connections on {RouteUrl(options.host, self._port).address}")
        if options.tls is not None:
            self._log.info("TLS required for client connections")
            if options.tls.first and not options.tls.fallback_ns and not self._log.quiet:
                self._log.warn('Clients that are not using "TLS Handshake First" option will fail to connect')
        for line in self.tls.warnings if self.tls is not None and not self._log.quiet else ():
            self._log.warn(line)
        if self._leafnodes is not None and options.leafnodes.port:
            await self._leafnodes.open()

    def _tls_entry(self) -> TlsEntry | None:
        if self.tls is None:
            return None
        return TlsEntry(server=self.tls, optional=self._options.allow_non_tls, admits=self._rate.admits)

    # ------------------------------------------------------------------ what others are told
    @property
    def urls(self) -> list[str]:
        """Return the URLs for clients."""
        return ports_file.urls("nats" if self.tls is None else "tls", self._options.host, self._port)

    @property
    def websocket_urls(self) -> tuple[str, ...]:
        """Return `host:port` for clients over WebSocket, as the cluster announces them."""
        return self.websocket.urls if self.websocket is not None else ()

    @property
    def leaf_urls(self) -> tuple[str, ...]:
        """Return `host:port` for leaf nodes, as the cluster announces them."""
        leafnodes = self._leafnodes
        return leafnodes.urls if leafnodes is not None and not self._options.leafnodes.no_advertise else ()

    @property
    def _http(self) -> str:
        return "https" if self._options.https_port else "http"

    def write_files(self, cluster_port: int) -> None:
        """Write the PID file and the ports file, once every listener is up. Raises StartError."""
        options = self._options
        if options.pid_file:
            ports_file.write_pid_file(options.pid_file)
            self._files.append(options.pid_file)
        if not options.ports_file_dir:
            return
        try:
            self._files.append(ports_file.write_ports_file(options.ports_file_dir, self.listening(cluster_port)))
        except StartError as error:
            self._log.error(str(error))

    def listening(self, cluster_port: int) -> dict[str, list[str]]:
        """Return the URLs of all listeners by kind."""
        options = self._options
        listening = (
            ("nats", "nats" if self.tls is None else "tls", options.host, self._port),
            ("websocket", options.websocket.scheme, options.websocket.host, self.websocket and self.websocket.port),
            ("monitoring", self._http, options.http_host or options.host, self.http_port),
            ("cluster", "nats", options.cluster.host, cluster_port),
            ("leafnodes", "nats", options.leafnodes.host, self._leafnodes and self._leafnodes.port),
        )
        return {kind: ports_file.urls(scheme, host, port, ipv6=True) for kind, scheme, host, port in listening if port}

    def bound(self, cluster_port: int) -> BoundPorts:
        """Return the ports that may have been any free ones when they were opened."""
        websocket = self.websocket.port if self.websocket is not None else 0
        return BoundPorts(
            self._port, cluster_port, self._leafnodes.port if self._leafnodes is not None else 0, websocket
        )

    # ------------------------------------------------------------------ reload and end
    def renewed(self, options: Options) -> ServerContext | None:
        """Read the certificates again, those for WebSocket at once; return TLS for `reload`.

        Raises:
            StartError: one cannot be used; then nothing has changed.
        """
        tls = _context(options)
        for listener in (self.websocket, self.mqtt):
            if listener is not None:
                listener.renew()
        return tls

    def reload(self, options: Options, tls: ServerContext | None) -> None:
        """Apply TLS of a new configuration; connections keep what they have."""
        before, self._options = self._options, options
        self.tls = tls
        if self._clients is not None and (tls is not None or before.tls is not None):
            self._clients.secure(self._tls_entry())
        if self._monitoring is not None and options.https_port and options.tls is not None:
            from lakestream.ops.monitoring import port as monitoring

            self._monitoring.secure(monitoring.entry(options.tls))
        for line in tls_changes(before, options):
            self._log.info(f"Reloaded: {line}")
        for line in tls.warnings if tls is not None else ():
            self._log.warn(line)

    def close(self) -> None:
        """Accept no more clients and leaf nodes; connections stay, and monitoring answers on. Idempotent."""
        for listener in (self._clients, self.websocket, self.mqtt, self._leafnodes):
            if listener is not None:
                listener.close()

    def end(self) -> None:
        """Close the port for monitoring and remove the files."""
        for path in reversed(self._files):
            ports_file.remove(path)
        if self._monitoring is not None:
            self._monitoring.close()


def _context(options: Options) -> ServerContext | None:
    """Return TLS of the port for clients; None: plain text. Raises TlsError."""
    if options.tls is None:
        return None
    from lakestream.net.tls import ServerContext  # with certificates, which a server in plain text does without

    return ServerContext(options.tls)
