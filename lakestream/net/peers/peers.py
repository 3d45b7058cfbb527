"""The other nodes of the cluster.

Belongs here: `RoutePeers` (raft/group/ports.py) over asyncio: the listener for other nodes, the handshake, heartbeats,
gossip, and callbacks for nodes that come and go. One connection is link.py's, the handshake's decisions are
handshake.py's.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import ssl
import time
from collections.abc import Callable
from typing import Any

import msgspec

from lakestream.config.errors import StartError
from lakestream.config.options import ClusterOptions, RouteUrl, TlsOptions
from lakestream.logging import Logger
from lakestream.net import tls as peer_tls
from lakestream.net.accounts.auth import HashChecks, is_hashed, same_text
from lakestream.net.accounts.certificates import user_of
from lakestream.net.listener import HANDSHAKE_FAILED, Bind, Listener, ListenError, SetupError, TlsEntry, bind
from lakestream.net.peers.calls import Handler, PeerCalls
from lakestream.net.peers.dialler import Dialler, DialTarget
from lakestream.net.peers.handshake import Decision, LinkTable
from lakestream.net.peers.link import ALIVE_NS, STALE_NS, Link
from lakestream.net.tls import PeerCertificate
from lakestream.ports import Clock
from lakestream.protocol import peer_wire as wire
from lakestream.protocol.peer_wire import Control, Hello, NodeInfo, PeerAddress
from lakestream.raft.group.ports import Channel

HEARTBEAT_S = 0.25
"""Interval of PINGs on every connection (250 ms)."""

GOSSIP_EVERY = 40
"""Heartbeats (10 s) between two rounds of gossip; each change causes a round too."""

LATE_NS = 500_000_000
"""A heartbeat that is late by this much (0.5 s) shows that this node stood still, not the others."""

MAX_STRANGERS = 128
"""Incoming connections in the handshake at once; a further one takes the place of the oldest."""

MAX_REFUSALS = 1000
"""Refused nodes and reasons that are remembered, to log each of them once. The memory is cleared when it is full."""

NAME_SHOWN = 64
"""Logged characters of a refused node's name."""

STOP_WAIT_S = 0.5
"""Time that the last records of closing connections may take (0.5 s)."""


class RoutePeers:
    """The connections between nodes, for Raft (`raft.ports.RoutePeers`), routing, monitoring and the meta group.

    Args:
        node: this node as other nodes see it (`route` is set once the listener is up).
        options: the cluster block.
        clock: runs the set-up of connections.
        log: for connections.
        bind: opens the socket of the listener.
    """

    def __init__(self, node: NodeInfo, options: ClusterOptions, clock: Clock, log: Logger, bind: Bind = bind) -> None:
        self.options = options
        self.dynamic = not options.name
        self.bound_port = 0
        self.slow_consumers = self.stale_connections = 0
        self._node = msgspec.structs.replace(node, cluster=options.name or secrets.token_urlsafe(16))
        self._clock, self._log, self._bind = clock, log, bind
        self._table: LinkTable[Link] = LinkTable(lambda: self._node, lambda: self.dynamic)
        self._hash_checks = HashChecks()
        self._links: set[Link] = set()
        self._known: dict[str, NodeInfo] = {}
        self._dialler = Dialler(options, self._link, self._table.engaged, log)
        self._numbers = itertools.count(1)
        self._handlers: dict[int, Handler] = {}
        self._watchers: list[Callable[[str, bool], None]] = []
        self._link_watchers: list[Callable[[NodeInfo, bool], None]] = []
        self._node_watchers: list[Callable[[NodeInfo], None]] = []
        self._refusals: set[tuple[str, str]] = set()
        self._server: asyncio.AbstractServer | Listener | None = None
        self._tls: ssl.SSLContext | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._beats = 0
        self._beat_ns = 0
        self._open = False
        self.calls = PeerCalls(self, clock, log)
        self.serve, self.call, self.tell = self.calls.serve, self.calls.call, self.calls.tell

    # ------------------------------------------------------------------ life
    async def listen(self) -> None:
        """Open the route listener. Raises StartError: address taken, certificate unreadable."""
        options, entry = self.options, None
        if options.tls is not None:
            server = peer_tls.ServerContext(msgspec.structs.replace(options.tls, verify=True, first=False))
            self._tls, entry = server.context, TlsEntry(server=server)
        self._dialler.prepare()
        if options.host.startswith("/"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(options.host)  # of this worker's last run
            loop = asyncio.get_running_loop()
            self._server = await loop.create_unix_server(lambda: self._link(), options.host, start_serving=False)
            return
        try:
            # A node that dials too early is refused, rather than waiting for an answer.
            bound = self._bind(options.host, options.port, listens=False)
        except ListenError as error:
            raise StartError(f"Error listening on router port: {max(options.port, 0)} - {error}") from error
        self._server = Listener(bound, lambda: self._link(), self._clock, tls=entry)
        self.bound_port = port = self._server.port
        wildcard = options.host in ("", "0.0.0.0", "::")
        route = options.advertise or RouteUrl("" if wildcard else options.host, port).address
        self._node = msgspec.structs.replace(self._node, route=route)

    async def start(self) -> None:
        """Admit nodes, dial, and start heartbeats. Handlers (`receive`, `watch`, …) must be set before."""
        assert self._server is not None, "listen() comes first"
        options, log = self.options, self._log
        self._open = True
        if isinstance(self._server, Listener):
            await self._server.start()
        else:
            await self._server.start_serving()
        if not options.host.startswith("/"):
            log.info(f"Cluster name is {self._node.cluster}")
            if self.dynamic:
                log.warn("Cluster name was dynamically generated, consider setting one")
            log.info(f"Listening for route connections on {RouteUrl(options.host, self.bound_port).address}")
        self._dialler.start()
        self._beat_ns = time.monotonic_ns()
        self._timer = asyncio.get_running_loop().call_later(HEARTBEAT_S, self._beat)

    def reload(self, options: ClusterOptions) -> None:
        """Apply what a reload may change (`config.cluster.RELOADABLE`), and read the certificates again.

        Raises StartError: a certificate cannot be read; then nothing has changed.
        """
        if options.tls is not None and self._tls is not None:
            peer_tls.renew(self._tls, options.tls)
        self._dialler.reload(options)
        self.options = options

    async def stop(self) -> None:
        """Announce the stop and close all connections. Idempotent."""
        self._open = False
        self._hash_checks.close()
        if self._timer is not None:
            self._timer.cancel()
        if self._server is not None:
            self._server.close()
        await self._dialler.stop()
        links = list(self._links)
        for link in links:
            link.tell(wire.Bye("Server Shutdown"))
            link.close("Server Shutdown")
        if links:
            await asyncio.wait([link.gone for link in links], timeout=STOP_WAIT_S)

    # ------------------------------------------------------------------ raft.ports.RoutePeers
    @property
    def me(self) -> str:
        return self._node.name

    def connected(self) -> list[str]:
        return sorted(self._table.up)

    def alive(self, node: str) -> bool:
        link = self._table.up.get(node)
        return not link.silent if link is not None else node == self._node.name

    def send(self, node: str, channel: Channel, payload: bytes) -> bool:
        """Send a buffer. On `Channel.ROUTE` a full queue ends the connection in the next turn (slow consumer); on other
        channels the buffer is dropped and counted."""
        link = self._table.up.get(node)
        if link is None:
            return False
        if link.send(channel, payload):
            return True
        if channel == Channel.ROUTE and not link.full:
            # Nothing may follow a lost buffer. The connection ends in the next turn, not while its users are sending.
            link.full = True
            self.slow_consumers += 1
            self._log.info(f"{link} - Slow Consumer Detected: more than {link.max_pending} bytes pending for {node}")
            asyncio.get_running_loop().call_soon(lambda: link.abort("Slow Consumer (Pending Bytes)"))
        return False

    def receive(self, channel: Channel, handler: Handler) -> None:
        self._handlers[int(channel)] = handler

    def failed(self, node: str, channel: Channel, error: Exception) -> None:
        """Treat an error in a buffer that its handler has kept for later like one that the handler raises."""
        link = self._table.up.get(node)
        if link is not None:
            self._failed(link, channel, error)

    def watch(self, callback: Callable[[str, bool], None]) -> None:
        """Call back on liveness. A node may fall silent and send again on the same connection, without losing
        anything that was sent. For connections see `watch_links`."""
        self._watchers.append(callback)

    # ------------------------------------------------------------------ connections
    def watch_links(self, callback: Callable[[NodeInfo, bool], None]) -> None:
        """Call back when a connection to a node begins (True; buffers may be sent from now on, and none of it has
        arrived yet) and when it ends (False; nothing of it arrives any more). Strictly alternating for each node, and
        before the `watch` callbacks of the same event. This, not `watch`, is what routing builds on: a silent node
        keeps its connection, its interest and its queue."""
        self._link_watchers.append(callback)

    def congested(self, node: str) -> bool:
        """Return True above the high-water mark of unsent bytes to that node (1 MiB); False without a connection."""
        link = self._table.up.get(node)
        return link is not None and link.congested

    def on_drain(self, node: str, callback: Callable[[], None]) -> None:
        """Call back once when the node is no longer congested, or gone; at once if it is not congested."""
        link = self._table.up.get(node)
        if link is None:
            callback()
        else:
            link.on_drain(callback)

    def reads(self, node: str, on: bool) -> None:
        """Read from a node, or not while too much of what came from it waits."""
        link = self._table.up.get(node)
        if link is not None:
            link.hold(not on)

    def links(self) -> list[Link]:
        """Return the connections that are up, by the other's name; for monitoring."""
        return [link for _, link in sorted(self._table.up.items())]

    # ------------------------------------------------------------------ known nodes
    @property
    def node(self) -> NodeInfo:
        return self._node

    def update(self, **changes: Any) -> None:
        """Change fields of this node's `NodeInfo` (`clustered=True`, `lame_duck=True`, …) and announce them if they
        differ."""
        node = msgspec.structs.replace(self._node, **changes)
        if node != self._node:
            self._node = node
            self._tell_all(wire.PeerUpdate(node, self.dynamic))

    def info(self, node: str) -> NodeInfo | None:
        """Return the last `NodeInfo` of a node, also of a lost one; None: never met."""
        return self._node if node == self._node.name else self._known.get(node)

    def nodes(self) -> dict[str, NodeInfo]:
        """Return the connected nodes, without this one."""
        return {name: self._known[name] for name in sorted(self._table.up)}

    def sees(self, node: str) -> frozenset[str]:
        """Return the nodes to which that node is connected (for this node: `connected()`); empty when it is not
        connected here."""
        if node == self._node.name:
            return frozenset(self._table.up)
        link = self._table.up.get(node)
        return frozenset(address.name for address in link.linked) if link is not None else frozenset()

    async def first_attempts(self) -> None:
        """Return once the first attempt at each route, and at the nodes that were met there, is over."""
        await self._dialler.first_attempts()

    def routes_met(self) -> bool:
        """Return True if every configured route leads to a connected node or to this one."""
        return self._dialler.met(self._table.up)

    def watch_nodes(self, callback: Callable[[NodeInfo], None]) -> None:
        """Call back when a connected node changes its description (`info`) or its connections (`sees`)."""
        self._node_watchers.append(callback)

    # ------------------------------------------------------------------ LinkOwner
    def _link(self, target: DialTarget | None = None) -> Link:
        """Make the protocol of a new connection."""
        link = Link(self, next(self._numbers), self.options.auth_timeout_ns / 1e9, target)
        self._links.add(link)
        return link

    def made(self, link: Link) -> None:
        self._log.debug(f"{link} - Route connection created")
        tls = self.options.tls
        if not self._open:
            link.abort("Server Shutdown")
        elif tls is not None and tls.pinned_certs and not _is_pinned(link.certificate, tls):
            self._log.error(f"{link} - TLS handshake error: certificate not pinned")
            link.abort(HANDSHAKE_FAILED)
        elif link.target is not None:
            url = link.target.url
            who = (url.user, url.password) if url.user else (self.options.user, self.options.password)
            self._greet(link, *who)
        else:
            strangers = [one for one in self._links if one.made and not one.dialled and not one.up]
            if len(strangers) > MAX_STRANGERS:
                min(strangers, key=lambda one: one.number).abort("Maximum Connections Exceeded")

    def control(self, link: Link, record: Control) -> None:
        match record:
            case wire.PeerPing() if link.up:
                link.tell(wire.PeerPong(record.at))
            case wire.PeerPong() if link.up:
                link.rtt_ns = max(1, time.monotonic_ns() - record.at)
            case Hello() if link.remote is None:
                link.remote = self._placed(link, record.node)
                self._authenticate(link, record)
            case wire.PeerRefused() if link.dialled and not link.up:
                link.refused = record
                link.abort(f"refused: {record.text}")
            case wire.PeerReady() if link.remote is not None and not link.up and not link.dialled:
                if self._table.ready(link):
                    self._rise(link)
            case wire.Gossip() if link.up:
                self._linked(link, record.linked)
                if link.target is not None:  # the first one tells that the connection is up there, too
                    self._dialler.tried(link.target)
            case wire.PeerUpdate() if link.up:
                self._updated(link, record)
            case wire.Bye():
                link.close(f"Peer Closed: {record.reason}")
            case _:
                raise wire.PeerWireError(f"{type(record).__name__} out of turn")

    def payload(self, link: Link, channel: int, payload: bytes) -> None:
        handler = self._handlers.get(channel)
        if handler is None:
            return
        try:
            handler(link.name, payload)
        except Exception as error:
            self._failed(link, channel, error)

    def _failed(self, link: Link, channel: int, error: Exception) -> None:
        self._log.exception(f"{link} - a buffer of {link.name} on channel {channel} failed", error)
        if channel == Channel.ROUTE:
            # Interest is announced in changes: after a lost one the connection must begin anew.
            link.abort("Protocol Violation")

    def answers_again(self, link: Link) -> None:
        if link.up:
            self._log.info(f"{link} - {link.name} answers again")
            self._call(self._watchers, link.name, True)

    def lost(self, link: Link) -> None:
        self._links.discard(link)
        was_up = self._table.ended(link)
        if link.made and not was_up:
            self._log.debug(f"{link} - Router connection closed: {link.reason}")
        self._dialler.freed(link.name)
        if not was_up:
            return
        self._log.info(f"{link} - Router connection to {link.name} closed: {link.reason}")
        node = self._known[link.name]
        self._call(self._link_watchers, node, False)
        if not link.silent:
            self._call(self._watchers, link.name, False)
        self._gossip()

    def insecure(self, link: Link, error: SetupError) -> None:
        if str(error):
            text = str(error).replace("TLS handshake error", "TLS route handshake error")
            (self._log.error if error.level == "error" else self._log.debug)(f"{link} - {text}")

    # ------------------------------------------------------------------ handshake
    def _greet(self, link: Link, user: str = "", password: str = "") -> None:
        link.said = self._node
        hello = Hello(
            protocol=wire.PROTOCOL,
            node=self._node,
            attempt=link.attempt,
            user=user,
            password=password,
            dynamic=self.dynamic,
            gone=self._table.gone(),
            linked=self._addresses(),
        )
        link.tell(hello)

    def _authenticate(self, link: Link, hello: Hello) -> None:
        """Check a node that dialled this one: by its certificate, if that is to tell, else by user and password. A
        bcrypt hash is compared in a thread."""
        user, password, tls = self.options.user, self.options.password, self.options.tls
        if not link.dialled and tls is not None and (tls.verify_and_map or tls.known_urls):
            self._greeted(link, hello, trusted=_is_known(link.certificate, self.options))
        elif link.dialled or not user or hello.user != user:
            self._greeted(link, hello, trusted=link.dialled or not user)
        elif not is_hashed(password):
            self._greeted(link, hello, trusted=same_text(hello.password, password))
        else:

            def done(good: bool) -> None:
                if not link.reason:
                    self._greeted(link, hello, trusted=good)

            self._hash_checks.check(hello.password, password, done)

    def _greeted(self, link: Link, hello: Hello, *, trusted: bool) -> None:
        """Decide about the HELLO of the other side."""
        link.linked = hello.linked
        if not link.dialled:
            link.attempt = hello.attempt
        elif hello.attempt != link.attempt:
            raise wire.PeerWireError("HELLO answers another one")
        decision: Decision[Link] = (
            self._table.accept(link, hello) if link.dialled else self._table.admit(link, hello, trusted)
        )
        if decision.refused is not None:
            self._refuse(link, decision.refused)
            return
        for other in decision.replaced:
            other.abort("Replaced by a newer connection")
        if link.dialled:
            link.tell(wire.PeerReady())  # before an update, which only a connection that is up takes
            self._agree(hello.node.cluster, hello.dynamic)
            self._rise(link)
        else:
            self._agree(hello.node.cluster, hello.dynamic)
            self._greet(link)

    def _refuse(self, link: Link, refused: wire.PeerRefused) -> None:
        """Refuse a node and tell it why. Each node and reason is logged once."""
        quiet = refused.code in (wire.MYSELF, wire.ALREADY_CONNECTED)
        if not link.dialled:
            link.tell(refused)
            key = (link.name[:NAME_SHOWN], refused.code)
            if not quiet and key not in self._refusals:
                if len(self._refusals) >= MAX_REFUSALS:
                    self._refusals.clear()
                self._refusals.add(key)
                self._log.error(f"{link} - Rejecting connection of {key[0]!r}: {refused.text}")
        else:
            link.refused = msgspec.structs.replace(refused, node=link.name)
        link.close(f"refused: {refused.text}")

    def _rise(self, link: Link) -> None:
        """Note that the handshake is over: the node is connected."""
        node = link.remote
        assert node is not None  # Invariant: a link is up only after its HELLO.
        link.rise()
        if link.said != self._node:
            # `update` goes to connections that are up: this one missed the changes since its HELLO.
            link.tell(wire.PeerUpdate(self._node, self.dynamic))
        if link.target is not None:
            link.target.reached(node.name)
        self._known[node.name] = node
        self._refusals = {refusal for refusal in self._refusals if refusal[0] != node.name}
        how = "to" if link.dialled else "from"
        self._log.info(f"{link} - Route connection created {how} {node.name}")
        self._call(self._link_watchers, node, True)
        self._call(self._watchers, node.name, True)
        self._gossip()
        self._linked(link, link.linked)

    def _agree(self, cluster: str, dynamic: bool) -> None:
        """Take over the cluster name of a node that was let in, if ours was made up."""
        agreed = wire.agreed_cluster(self._node.cluster, self.dynamic, cluster, dynamic)
        if agreed is not None and (agreed != self._node.cluster or (self.dynamic and not dynamic)):
            self.dynamic = self.dynamic and dynamic
            self._log.info(f"Cluster name updated to {agreed}")
            self.update(cluster=agreed)

    @staticmethod
    def _placed(link: Link, node: NodeInfo) -> NodeInfo:
        """Fill in the host of a node that listens on all its addresses: the one that its connection comes from."""
        if node.route.startswith(":") and node.route[1:].isdecimal():
            return msgspec.structs.replace(node, route=RouteUrl(link.host, int(node.route[1:])).address)
        return node

    # ------------------------------------------------------------------ gossip
    def _addresses(self) -> tuple[PeerAddress, ...]:
        return tuple(PeerAddress(name, self._known[name].route) for name in sorted(self._table.up))

    def _gossip(self) -> None:
        if self._open:
            self._tell_all(wire.Gossip(self._addresses()))

    def _tell_all(self, record: Control) -> None:
        for link in list(self._table.up.values()):
            link.tell(record)

    def _linked(self, link: Link, linked: tuple[PeerAddress, ...]) -> None:
        """Take the list of nodes that a node is connected to, and dial those that are missing here."""
        link.linked = linked
        for address in linked:
            if address.name == self._node.name or address.name in self._table.up:
                continue
            url = parse_address(address.route)
            if url is not None:
                self._dialler.learn(address.name, url)
        self._tell_of(link)

    def _updated(self, link: Link, record: wire.PeerUpdate) -> None:
        node = self._placed(link, record.node)
        if node.name != link.name or link.remote is None or node.server_id != link.remote.server_id:
            raise wire.PeerWireError("a node does not change its name")
        link.remote = self._known[node.name] = node
        self._agree(node.cluster, record.dynamic)
        self._tell_of(link)

    def _tell_of(self, link: Link) -> None:
        if link.up and link.remote is not None:
            self._call(self._node_watchers, link.remote)

    def _call(self, callbacks: list[Any], *args: Any) -> None:
        """Call every listener, also after the failure of one."""
        for callback in callbacks:
            try:
                callback(*args)
            except Exception as error:
                self._log.exception("a callback for node changes failed", error)

    # ------------------------------------------------------------------ heartbeats
    def _beat(self) -> None:
        now = time.monotonic_ns()
        late = now - self._beat_ns - int(HEARTBEAT_S * 1e9)
        self._beat_ns = now
        self._timer = asyncio.get_running_loop().call_later(HEARTBEAT_S, self._beat)
        links = list(self._table.up.values())
        for link in links:
            if late > LATE_NS or link.held:  # meanwhile nothing was read
                link.heard_ns = now if link.held else link.heard_ns + late
            link.tell(wire.PeerPing(now))
            quiet = now - link.heard_ns
            if quiet > STALE_NS:
                self.stale_connections += 1
                link.abort("Stale Connection")
            elif link.is_stuck(now):
                self.slow_consumers += 1
                link.abort("Slow Consumer (Write Deadline)")
            elif quiet > ALIVE_NS and not link.silent:
                link.silent = True
                self._log.warn(f"{link} - {link.name} is silent")
                self._call(self._watchers, link.name, False)
        self._beats += 1
        if self._beats % GOSSIP_EVERY == 0:
            self._gossip()


def parse_address(text: str) -> RouteUrl | None:
    """Parse `host:port` as other nodes send it; None when it is invalid."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        return None
    return RouteUrl(host, int(port))


def _is_pinned(certificate: PeerCertificate | None, tls: TlsOptions) -> bool:
    return certificate is not None and certificate.key_sha256 in tls.pinned_certs


def _is_known(certificate: PeerCertificate | None, options: ClusterOptions) -> bool:
    """Return True if a certificate names the host of a route, or the user of the cluster, by whichever is to count."""
    tls = options.tls
    if certificate is None or tls is None:
        return False
    hosts = [route.host.lower().split(".") for route in options.routes]
    if tls.known_urls and any(_covers(name.lower().split("."), host) for name in certificate.names for host in hosts):
        return True
    return tls.verify_and_map and bool(options.user) and user_of(certificate, [options.user]) is not None


def _covers(name: list[str], host: list[str]) -> bool:
    """Return True if the labels of a certificate's name are those of a host, or all but the first, a `*`, are."""
    return name == host or (len(name) == len(host) and name[0] == "*" and name[1:] == host[1:])
