"""A remote that this server is a leaf node of, so that its streams can be mirrored there.

Belongs here: dialling, the greeting, which node of a cluster holds the connection, and its log lines and monitoring.
One connection is in leaf_connection.py, its bytes in protocol/leaf_wire.py.

The nats-server at the other end sees a leaf node with a JetStream domain of its own: its mirrors, sources and clients
reach our streams by `$JS.<domain>.API`. All state is kept there: a mirror asks for what follows its last message. So
nothing is stored here, and the order in which the two sides stop does not matter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from lakestream.config.options import RemoteAddress, RemoteOptions
from lakestream.logging import Logger
from lakestream.net.hub import Hub
from lakestream.net.remote import dial as remote_dial
from lakestream.net.remote.leaf_connection import LeafConnection
from lakestream.ports import ClientInfo, Clock, Subscribed, Timer, singly
from lakestream.protocol.api.request import NATS_VERSION
from lakestream.protocol.durations import format_duration
from lakestream.protocol.gotime import format_time
from lakestream.protocol.leaf_wire import Names
from lakestream.protocol.subjects import short_hash

HANDSHAKE_TIMEOUT_S = 5.0
"""Time that the other side may take for its INFO, and again to answer the greeting (5 s)."""

WRONG_PORT = "; the port does not accept leaf nodes: use that of the remote's `leafnodes` block (7422 by default)"

CHECK_NS = 250_000_000
"""Interval of checks of the other nodes (0.25 s)."""

SETTLE_NS = 2_000_000_000
"""Time for which a starting node waits for the other nodes (2 s)."""

CONNECT_PATIENCE_NS = 10_000_000_000
"""A node that could not connect for this long (10 s) lets the others try, if there are any."""

YIELD_NS = 30_000_000_000
"""Time for which it lets the others try (30 s)."""


class Holder:
    """Decides which node of a cluster holds a leaf connection that several nodes have configured.

    Two connections of one cluster to one remote would bring every delivery there twice. The nodes announce by interest
    which of them may hold it and which does. That may be wrong for a moment, so nothing depends on it: all connections
    are one queue group there, and a mirror takes a message once.

    The holder keeps the connection unless it cannot connect. Without a holder the node with the lowest name takes it;
    of two holders the one with the higher name gives it up.

    Args:
        hub: of the connected account.
        remote: the remote, in the same words on every node.
        name: of this node.
        others: returns the names of the connected nodes; None: no cluster.
        changed: called with True when this node becomes the holder, with False when it ceases to be.
        connected: returns True while there is a connection.
    """

    def __init__(
        self,
        hub: Hub,
        remote: str,
        name: str,
        others: Callable[[], Iterable[str]] | None,
        clock: Clock,
        changed: Callable[[bool], None],
        connected: Callable[[], bool],
    ) -> None:
        self._hub, self._name, self._others, self._clock = hub, name, others, clock
        self._changed, self._connected = changed, connected
        self._prefix = f"$LS.LEAF.{short_hash(remote)}"
        self._able: Subscribed | None = None
        self._held: Subscribed | None = None
        self._timer: Timer | None = None
        self._since_ns = 0
        """Time of the last connection, or of the last change of the holder here."""

    @property
    def holds(self) -> bool:
        """Return True if this node is the holder."""
        return self._held is not None

    @property
    def is_elsewhere(self) -> bool:
        """Return True if another node is the holder."""
        return not self.holds and self._others is not None and bool(self._nodes("held", self._others()))

    def start(self) -> None:
        """Announce this node as a candidate."""
        if self._others is None:
            self._take()
            return
        self._able = self._listen("able")
        self._timer = self._clock.call_later(SETTLE_NS, self._check)

    def stop(self) -> None:
        """Withdraw. `changed` is not called."""
        if self._timer is not None:
            self._timer.cancel()
        for subscription in (self._able, self._held):
            if subscription is not None:
                subscription.cancel()
        self._timer = self._able = self._held = None

    def _subject(self, kind: str, name: str) -> bytes:
        return f"{self._prefix}.{kind}.{short_hash(name)}".encode()

    def _listen(self, kind: str) -> Subscribed:
        return self._hub.subscribe(self._subject(kind, self._name), singly(_ignore))

    def _nodes(self, kind: str, others: Iterable[str]) -> list[str]:
        # Literal interest only: a client may subscribe to everything.
        return [name for name in others if self._hub.bound(self._subject(kind, name))]

    def _check(self) -> None:
        self._timer = self._clock.call_later(CHECK_NS, self._check)
        others = list(self._others()) if self._others is not None else []
        if self._held is not None:
            self._check_as_holder(others)
        elif self._able is None:
            if self._clock.steady() - self._since_ns >= YIELD_NS or not self._nodes("able", others):
                self._able = self._listen("able")
        elif not self._nodes("held", others) and not any(name < self._name for name in self._nodes("able", others)):
            self._take()

    def _check_as_holder(self, others: list[str]) -> None:
        if any(name < self._name for name in self._nodes("held", others)):
            self._give_up()
        elif self._connected():
            self._since_ns = self._clock.steady()
        elif self._clock.steady() - self._since_ns >= CONNECT_PATIENCE_NS and self._nodes("able", others):
            assert self._able is not None
            self._able.cancel()
            self._able = None
            self._give_up()

    def _take(self) -> None:
        self._held, self._since_ns = self._listen("held"), self._clock.steady()
        self._changed(True)

    def _give_up(self) -> None:
        assert self._held is not None
        self._held.cancel()
        self._held, self._since_ns = None, self._clock.steady()
        self._changed(False)


def _ignore(subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
    """Ignore a message: only the interest matters."""


class LeafLink:
    """Keeps one leaf connection.

    Args:
        options: the remote.
        hub: of the connected account.
        domain: of this server's JetStream, and its name there.
        name: of this server.
        others: returns the names of the connected nodes of the cluster; None: no cluster.
        cluster: its name; "" without one.
    """

    def __init__(
        self,
        options: RemoteOptions,
        hub: Hub,
        domain: str,
        clock: Clock,
        log: Logger,
        name: str = "",
        others: Callable[[], Iterable[str]] | None = None,
        cluster: str = "",
    ) -> None:
        self.options = options
        self._hub, self._domain, self._clock, self._log = hub, domain, clock, log
        self._node = name or domain
        self._names = Names(domain, short_hash(hub.account))
        self._redial = remote_dial.Redial(options, self._attempt, log)
        remote = f"{options.account} {options.name}"
        # While two nodes of a cluster hold the connection, each message comes through one of them. Others that are
        # connected there have groups of their own.
        self._group = f"lakestream-{short_hash(' '.join((cluster or self._node, domain, remote)))}".encode()
        self._holder = Holder(hub, remote, self._node, others, clock, self._holder_changed, lambda: self.up)
        self._label = f"leaf node remote {options.name}"
        self._connection: LeafConnection | None = None
        self._address: RemoteAddress | None = None
        self._connects = self._since_ns = 0

    def start(self) -> None:
        """Start dialling, or wait to become the holder."""
        self._holder.start()

    async def stop(self) -> None:
        """End the connection, and dial no more."""
        self._holder.stop()
        await self._redial.stop()

    def _holder_changed(self, mine: bool) -> None:
        """Connect or disconnect when this node becomes the holder, or ceases to be."""
        if mine:
            self._redial.start()
        else:
            self._log.info(f"{self._label}: another node of the cluster holds the connection")
            self._clock.spawn(self._redial.stop())

    @property
    def up(self) -> bool:
        """Return True while there is a connection."""
        return self._connection is not None

    def shown(self) -> dict[str, Any]:
        """Return the remote as /varz shows it."""
        leaf = self._connection
        page: dict[str, Any] = {
            "type": "leaf",
            "domain": self._domain,
            "account": self.options.account,
            "url": (self._address or self.options.urls[0]).shown,
            "connected": leaf is not None,
            "holds": self._holder.holds,
            "since": format_time(self._since_ns),
            "connects": self._connects,
        }
        if leaf is not None:
            page |= {key: leaf.info.get(key, "") for key in ("server_name", "server_id", "version", "remote_account")}
            page |= {"remote_domain": leaf.info.get("domain", ""), "rtt": leaf.alive.rtt_ns}
        elif self._redial.error:
            page["error"] = self._redial.error
        counters = ("in_msgs", "out_msgs", "in_bytes", "out_bytes")
        page |= {name: getattr(leaf, name) if leaf is not None else 0 for name in counters}
        subscribers = leaf.subscribers if leaf is not None else None
        return page | {"subscriptions": len(subscribers) if subscribers is not None else 0}

    def leafz(self, subs: bool) -> dict[str, Any] | None:
        """Return the connection as /leafz shows it; None without one. `subs`: with the other side's interest."""
        leaf, address = self._connection, self._address
        if leaf is None or address is None or leaf.subscribers is None:
            return None
        return {
            "id": self._connects,
            "name": leaf.info.get("server_name", ""),
            "is_spoke": True,
            "account": self.options.account,
            "ip": address.host,
            "port": address.port,
            "rtt": format_duration(leaf.alive.rtt_ns),
            "in_msgs": leaf.in_msgs,
            "out_msgs": leaf.out_msgs,
            "in_bytes": leaf.in_bytes,
            "out_bytes": leaf.out_bytes,
            "subscriptions": len(leaf.subscribers),
            **({"subscriptions_list": leaf.subscribers.subjects()} if subs else {}),
        }

    # ------------------------------------------------------------------ one connection
    async def _attempt(self, address: RemoteAddress) -> str:
        made = LeafConnection(self._hub, self._names, self._clock, self._log, self._label)
        try:
            transport = await remote_dial.dial(self.options, address, made)
            why = await self._handshake(made, transport, address)
            if why:
                return why
            self._connected_to(made, address)
            why = await made.over
            self._redial.went_down(why)
            self._log.warn(f"{self._label}: connection to {address.shown} ended: {why}")
            return ""
        finally:
            if self._connection is not None:
                self._connection, self._since_ns = None, self._clock.now()
            made.end("closed by this server")

    async def _handshake(self, connection: LeafConnection, transport: asyncio.Transport, address: RemoteAddress) -> str:
        """Send the greeting; return why it failed, "" when the connection is up."""
        async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
            if not await connection.informed:
                return await connection.over
        info, tls = connection.info, self.options.tls
        if (info.get("tls_required") or tls is not None) and not (tls is not None and tls.first):
            connection.use(await remote_dial.secure(transport, connection, self.options, address))
        if info.get("domain") == self._domain:
            return f"the remote's JetStream uses domain {self._domain} too; choose another jetstream.domain here"
        keys = await asyncio.get_running_loop().run_in_executor(None, remote_dial.read_keys, self.options)
        fields = {
            "name": self._node,
            "server_id": f"{self._node}-{self._domain}",
            "version": NATS_VERSION,
            "headers": True,
            "protocol": 1,
        }
        fields |= remote_dial.login_fields(self.options, address, keys, str(info.get("nonce", "")))
        published = [subject.encode() for subject in self.options.subjects]
        connection.send_connect(
            fields, (b"$JS.%b.API.>" % self._domain.encode(), *self._names.subjects, *published), self._group
        )
        async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
            why = "" if await connection.up else await connection.over
        return why + WRONG_PORT if why.startswith("Unknown Protocol") else why

    def _connected_to(self, connection: LeafConnection, address: RemoteAddress) -> None:
        self._connection = connection
        self._address, self._since_ns = address, self._clock.now()
        self._connects += 1
        self._redial.came_up()
        urls = connection.info.get("leafnode_urls")
        if isinstance(urls, list):
            self._redial.discovered([url for url in urls if isinstance(url, str)])
        remote = connection.info.get("server_name") or connection.info.get("server_id") or "?"
        self._log.info(
            f"{self._label}: connected to {remote} at {address.shown}; streams of account {self._hub.account} are "
            f"available there in domain {self._domain}"
        )
