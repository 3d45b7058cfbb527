"""A server that this one joins as a leaf node.

Belongs here: dialling, the greeting from the leaf node's side, and the end of the connection. In a cluster one node
holds the connection, for all. What is exchanged is in exchange.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from lakestream.config.account_options import Permissions, SubjectRule
from lakestream.config.options import OFF, WEBSOCKETS, LeafOptions, LeafRemote, RemoteAddress, RouteUrl
from lakestream.logging import Logger
from lakestream.net.accounts.permissions import Rules
from lakestream.net.identity import Identity
from lakestream.net.leaf.account import LeafAccount
from lakestream.net.leaf.exchange import LOOP_PAUSE_S, Exchange, LeafEnded
from lakestream.net.leaf.packing import LeafPacking, agreed
from lakestream.net.leaf.rights import as_user, denied
from lakestream.net.remote import dial as remote_dial
from lakestream.net.remote.leaf_link import WRONG_PORT, Holder
from lakestream.net.remote.outgoing import MAX_PINGS, OutgoingConnection
from lakestream.net.websocket.upgrade import Agreement
from lakestream.ports import ClientInfo, Clock
from lakestream.protocol import frames
from lakestream.protocol.api.request import NATS_VERSION
from lakestream.protocol.commands import Ping, Pong
from lakestream.protocol.delivered import ErrorLine
from lakestream.protocol.durations import format_duration
from lakestream.protocol.leaf_wire import Event, LeafInfo, LeafParser, LeafWireError
from lakestream.protocol.s2 import S2Error

HANDSHAKE_TIMEOUT_S = 5.0
"""Time that the other side may take for its INFO, and again for its answer to CONNECT (5 s)."""

PING_NS = 15_000_000_000
"""Interval of PINGs (15 s) without `ping_interval` of the block; the first one follows CONNECT."""

PROTOCOL = 3
"""Version of the leaf node protocol in CONNECT."""

LOOP = "Loop detected"
Opened = Callable[["DialledConnection", dict[str, Any]], Exchange]


class DialledConnection(OutgoingConnection):
    """One connection.

    Args:
        identifier: its number.
        pings: their interval in ns, and the unanswered ones after which the other side is dead.
        opened: makes its exchange from the INFO that answers CONNECT.
        log: for errors of the other side.
        label: the connection in the log.

    Attributes:
        informed_first: done with True at an INFO before CONNECT, with False when the connection ended before.
        up: done with True once the exchange is open, with False when it is refused or the connection ended.
        over: done with the reason when the connection has ended.
        info: the fields of the last INFO.
        agreement: of the handshake over WebSocket; None: over TCP or TLS.
        exchange: None before `up`.
        connected: CONNECT was sent.
    """

    def __init__(
        self, identifier: int, pings: tuple[int, int], opened: Opened, clock: Clock, log: Logger, label: str
    ) -> None:
        super().__init__(clock, *pings)
        loop = asyncio.get_running_loop()
        self.id, self.name = identifier, ""
        self.informed_first: asyncio.Future[bool] = loop.create_future()
        self.up: asyncio.Future[bool] = loop.create_future()
        self.over: asyncio.Future[str] = loop.create_future()
        self.info: dict[str, Any] = {}
        self.agreement: Agreement | None = None
        self.exchange: Exchange | None = None
        self.connected = False
        self.refused = self.reason = self.close_reason = ""
        self._opened, self._log, self._label = opened, log, label
        self._parser = LeafParser()
        self._packing: LeafPacking | None = None
        self._loop = loop

    # ------------------------------------------------------------------ asyncio.Protocol
    def data_received(self, data: bytes) -> None:
        self.alive.received()
        self._guarded(lambda: self._received(self._packing.unpacked(data) if self._packing is not None else data))

    def read_on(self) -> None:
        exchange = self.exchange
        if exchange is not None and not exchange.over:
            self._guarded(lambda: exchange.read_on(self._parser))

    def _received(self, data: bytes) -> None:
        if self.exchange is not None:
            self.exchange.feed(self._parser, data)
            return
        events = iter(self._parser.feed(data))
        while self.exchange is None and (event := next(events, None)) is not None:
            self._greet(event)
        if self.exchange is not None:
            self.exchange.handle([*events], len(data))

    def _guarded(self, work: Callable[[], None]) -> None:
        """Handle what came; end the connection where it cannot go on."""
        try:
            work()
        except (LeafWireError, S2Error) as error:
            self.end(f"invalid leaf node protocol: {error}")
        except LeafEnded as ended:
            self._log.error(f"{self._label} - {ended.logged or ended.text}")
            self.write(frames.error(ended.text))
            self.end(ended.text)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.alive.end()
        if self.exchange is not None:
            self.exchange.end()
        self.resume_writing()
        reason = self.reason or self.refused or (str(exc) if exc is not None else "connection closed")
        for waiting in (self.informed_first, self.up):
            if not waiting.done():
                waiting.set_result(False)
        if not self.over.done():
            self.over.set_result(reason)

    # ------------------------------------------------------------------ the greeting
    def _greet(self, event: Event) -> None:
        match event:
            case LeafInfo(fields) if not self.connected:
                self.info = fields
                if not self.informed_first.done():
                    self.informed_first.set_result(True)
            case LeafInfo(fields):
                self.info = fields
                self.name = str(fields.get("server_name") or fields.get("server_id") or "")
                self.exchange = self._opened(self, fields)
                self.up.set_result(True)
            case ErrorLine():
                self.told(event)
            case Ping():
                self.write(frames.PONG)
            case Pong():
                self.answered()

    def again(self) -> None:
        """Wait for a further INFO before CONNECT."""
        self.informed_first = self._loop.create_future()

    def pack(self) -> None:
        """Read and write S2 streams from now on."""
        self._packing = LeafPacking()

    # ------------------------------------------------------------------ WebSocketClient
    @property
    def max_payload(self) -> int:
        """Return the bytes of the largest message that is accepted."""
        return self._parser.max_payload

    def described(self) -> str:
        """Return how the log shows the connection."""
        return self._label

    # ------------------------------------------------------------------ Line
    def write(self, data: bytes) -> None:
        super().write(self._packing.packed(data) if self._packing is not None and self.connected else data)

    def answered(self) -> None:
        self.alive.answered()

    def informed(self, info: LeafInfo) -> None:
        self.info |= info.fields

    def told(self, error: ErrorLine) -> None:
        self.refused = error.text
        self._log.error(f"{self._label} - Leafnode Error '{error.text}'")

    def complain(self, text: str) -> None:
        self._log.error(f"{self._label} - {text}")

    def end(self, reason: str) -> None:
        self.reason = self.reason or reason
        if self.transport is not None:
            self.transport.abort()


class DialledLeaf:
    """Keeps one leaf connection.

    Args:
        remote: the server to join.
        account: the account that joins.
        identity: of this server.
        cluster: its cluster's name; "" without one.
        call: runs a function in a thread; awaited.
        number: returns the number of a new connection.
        always: returns the subjects that are announced beside subscriptions.
        own: prefixes of the JetStream requests that this server answers itself.
        settings: the block of leaf nodes.
        others: returns the names of the connected nodes of the cluster; None: no cluster.
        ended: is told the counters of each exchange that ended.
    """

    def __init__(
        self,
        remote: LeafRemote,
        account: LeafAccount,
        identity: Identity,
        cluster: str,
        clock: Clock,
        log: Logger,
        call: Callable[[Callable[[], Any]], Any],
        number: Callable[[], int],
        always: Callable[[], Iterable[bytes]],
        own: tuple[bytes, ...],
        settings: LeafOptions,
        others: Callable[[], Iterable[str]] | None,
        ended: Callable[[Exchange], None],
    ) -> None:
        self._ended = ended
        self._remote, self._account, self._identity, self._cluster = remote, account, identity, cluster
        self._clock, self._log, self._call, self._number = clock, log, call, number
        self._always, self._own = always, own
        self._redial = remote_dial.Redial(remote.dial, self._attempt, log, settings.reconnect_ns)
        self._pings = settings.ping_interval_ns or PING_NS, settings.ping_max or MAX_PINGS
        where = f"{remote.dial.account} {remote.dial.urls[0].shown}"
        self._holder = Holder(
            account.hub, where, identity.server_name, others, clock, self._held, lambda: self._connection is not None
        )
        self._connection: DialledConnection | None = None
        self._address: RemoteAddress | None = None
        self._compression = OFF

    def start(self) -> None:
        """Start dialling, or wait to become the node that does."""
        self._holder.start()

    async def stop(self) -> None:
        """End the connection, and dial no more."""
        self._holder.stop()
        await self._redial.stop()

    def _held(self, mine: bool) -> None:
        if mine:
            self._redial.start()
        else:
            self._clock.spawn(self._redial.stop())

    @property
    def is_connected(self) -> bool:
        """Return True while this node has the connection, or another one of the cluster holds it and answers for it."""
        return self._live is not None or self._holder.is_elsewhere

    @property
    def _live(self) -> DialledConnection | None:
        leaf = self._connection
        return None if leaf is None or leaf.over.done() else leaf  # one that closed a loop is kept during the pause

    def leafz(self) -> tuple[dict[str, Any], Exchange, str, bool] | None:
        """Return what /leafz shows of the connection, its exchange, compression, and True if it is over WebSocket.
        None: there is no connection."""
        leaf, address = self._live, self._address
        if leaf is None or leaf.exchange is None or address is None:
            return None
        shown = {
            "id": leaf.id,
            "name": leaf.name,
            "is_spoke": True,
            "account": self._remote.dial.account,
            "ip": address.host,
            "port": address.port,
            "rtt": format_duration(leaf.alive.rtt_ns),
        }
        return shown, leaf.exchange, self._compression, leaf.agreement is not None

    # ------------------------------------------------------------------ one connection
    async def _attempt(self, address: RemoteAddress) -> str:
        number = self._number()
        over_websocket = address.scheme in WEBSOCKETS
        label = f"{address.host}:{address.port} - {'lid_ws' if over_websocket else 'lid'}:{number}"
        made = DialledConnection(number, self._pings, self._opened, self._clock, self._log, label)
        try:
            if over_websocket:
                why = await self._over_websocket(made, address)
            else:
                await remote_dial.dial(self._remote.dial, address, made)
                why = ""
            why = why or await self._greeted(made, address)
            if why:
                return why
            self._connection, self._address = made, address
            self._redial.came_up()
            urls = made.info.get("ws_connect_urls" if over_websocket else "leafnode_urls")
            if isinstance(urls, list):
                self._redial.discovered([url for url in urls if isinstance(url, str)])
            self._log.info(f"{label} - Leafnode connection created for account: {self._remote.dial.account}")
            why = await made.over
            self._redial.went_down(why)
            self._log.info(f"{label} - Leafnode connection closed: {why} - Remote: {made.name}")
            if why.startswith(LOOP):
                await asyncio.sleep(LOOP_PAUSE_S)
            return ""
        finally:
            self._connection = None
            if made.exchange is not None:
                self._ended(made.exchange)
            made.end("Client Closed")

    async def _over_websocket(self, connection: DialledConnection, address: RemoteAddress) -> str:
        """Dial and do the handshake of WebSocket; return why that failed, "" when frames follow."""
        # With HTTP and frames, which few servers need.
        from lakestream.net.websocket.dialled import DialledWebSocket
        from lakestream.net.websocket.handshake import DialledHandshake, NotAgreedError

        remote, turn = self._remote, self._account.hub.turn
        shake = DialledHandshake(
            RouteUrl(address.host, address.port).address,
            address.path,
            compresses=remote.ws_compression,
            unmasked=remote.ws_no_masking,
        )
        made = DialledWebSocket(connection, shake, self._clock, self._log, turn)
        transport = await remote_dial.dial(remote.dial, address, made, remote.proxy)
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                connection.agreement = await made.agreed
        except NotAgreedError as error:
            return str(error)
        finally:
            if connection.agreement is None:
                transport.abort()
        return ""

    async def _greeted(self, connection: DialledConnection, address: RemoteAddress) -> str:
        """Log in; return why that failed, "" when the connection is up."""
        dial = self._remote.dial
        if why := await self._informed(connection):
            return why
        tls = dial.tls
        begun = connection.agreement is not None or (tls is not None and tls.first)
        if (connection.info.get("tls_required") or tls is not None) and not begun:
            assert connection.transport is not None, "it was dialled"
            connection.use(await remote_dial.secure(connection.transport, connection, dial, address))
        if self._cluster and connection.info.get("cluster") == self._cluster:
            return "the other side has the same cluster name; choose another `cluster { name }`"
        if why := await self._negotiated(connection):
            return why
        keys = await self._call(lambda: remote_dial.read_keys(dial))
        login = remote_dial.login_fields(dial, address, keys, str(connection.info.get("nonce", "")))
        frame = frames.CONNECT % msgspec.json.encode(self._fields() | login)
        connection.connected = True
        connection.write(frame)
        connection.alive.begin()
        async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
            why = "" if await connection.up else await connection.over
        return why + WRONG_PORT if why.startswith("Unknown Protocol") else why

    async def _informed(self, connection: DialledConnection) -> str:
        async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
            return "" if await connection.informed_first else await connection.over

    async def _negotiated(self, connection: DialledConnection) -> str:
        """Begin to compress if both sides want it; return why that failed."""
        self._compression = OFF
        theirs, ours = str(connection.info.get("compression") or OFF), self._remote.compression
        if connection.agreement is not None or OFF in (ours, theirs):  # of WebSocket: see `AcceptedLeaf.offered`
            return ""
        try:
            self._compression = agreed(ours, theirs)
        except ValueError as error:
            return str(error)
        connection.again()
        connection.write(frames.INFO % (msgspec.json.encode({"server_id": "", "compression": ours}) + b" "))
        if self._compression == OFF:
            return ""
        connection.pack()
        return await self._informed(connection)

    def _fields(self) -> dict[str, Any]:
        """Return the fields of CONNECT without the login."""
        identity, remote = self._identity, self._remote
        fields: dict[str, Any] = {
            "version": NATS_VERSION,
            "server_id": identity.server_id,
            "name": identity.server_name,
            "cluster": self._cluster or identity.server_name,
            "headers": True,
            "compress_mode": self._compression,
            "remote_account": remote.dial.account,
            "protocol": PROTOCOL,
        }
        if identity.jetstream:
            fields["jetstream"] = True
        if identity.domain:
            fields["domain"] = identity.domain
        if remote.deny_imports:
            fields["deny_pub"] = list(remote.deny_imports)
        if remote.isolate:
            fields["isolate"] = True
        return fields

    def _opened(self, connection: DialledConnection, info: dict[str, Any]) -> Exchange:
        """Open the exchange with the rights that the other side tells."""
        remote, ours = self._remote, self._identity
        domain = str(info.get("domain") or "")
        # Each API without a domain is for the clients of its own server, also where one server has none.
        own = (*self._own, b"$JS.API.")
        if ours.domain != domain:
            self._log.info(f'JetStream using domains: local "{ours.domain}", remote "{domain}"')
        rules, there = rules_of(info), str(info.get("remote_account") or "") or None
        out, into = (denied(each, remote.dial.account, there) for each in (remote.deny_exports, remote.deny_imports))
        client = ClientInfo(id=connection.id, host="", account=remote.dial.account, kind="Leafnode")
        exchange = Exchange(
            connection,
            self._account,
            as_user(rules, out, into, own),
            client,
            self._clock,
            cluster=str(info.get("cluster") or ""),
            isolated=remote.isolated,
            strict=False,
        )
        exchange.open(self._always())
        return exchange


def rules_of(info: dict[str, Any]) -> Rules | None:
    """Return the permissions of our user as the other side's INFO tells them; None: all."""
    found = {
        name: SubjectRule(tuple(rule["allow"]) if rule.get("allow") else None, tuple(rule.get("deny") or ()))
        for name in ("import", "export")
        if isinstance(rule := info.get(name), dict)
    }
    if not found:
        return None
    return Rules(Permissions(publish=found.get("export"), subscribe=found.get("import")))
