"""Events of the system account.

Belongs here: events of clients that connect and disconnect, of accounts' connections, of the server itself, and the
server's statistics every few seconds; and counting an account's clients on other nodes by these events. No event is
made without interest. nats-server also announces an account's connections for its own internal clients; there are
none here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from lakestream.config.options import CLIENT_TYPES
from lakestream.net.accounts.accounts import Account, Accounts
from lakestream.net.connection import Connection
from lakestream.net.peers.standalone import Standalone
from lakestream.net.statistics import REFUSED
from lakestream.ops.monitoring.monitored import Monitored
from lakestream.ops.monitoring.query import Query
from lakestream.ops.system.messages import SystemMessages
from lakestream.ports import ClientInfo, Clock, Single, Subscribed, singly
from lakestream.protocol.api.jsonio import dumps
from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder
from lakestream.protocol.gotime import format_time

if TYPE_CHECKING:
    from lakestream.net.leaf.accepted import AcceptedLeaf
    from lakestream.net.peers.cluster import Cluster
    from lakestream.ops.monitoring.pages import Pages
    from lakestream.ops.monitoring.workers import Together

FIRST_STATSZ_NS = 250_000_000
"""Time of the first statistics after the start (250 ms); the interval doubles from there …"""

STATSZ_NS = 10_000_000_000
"""… up to this (10 s)."""

HEARTBEAT_NS = 30_000_000_000
"""Interval at which the connections of accounts are announced without changes (30 s)."""


class _Server(msgspec.Struct):
    id: str


class _Conns(msgspec.Struct):
    """The fields that are read of an event."""

    server: _Server
    acc: str
    conns: int


_CONNS = JsonDecoder(_Conns)


class ClientCounts:
    """The clients of accounts with max_connections on the other nodes.

    Only connected nodes count. A number is as old as its event: when several clients connect at the same time on
    several nodes, more than the limit may get in (as with nats-server).
    """

    def __init__(self, accounts: Accounts, cluster: Cluster | Standalone) -> None:
        self._accounts, self._cluster = accounts, cluster
        self._counts: dict[str, dict[str, int]] = {}
        """By account and id of a server."""
        self._heard: dict[str, Subscribed] = {}

    def configured(self) -> None:
        """Take the limits of the accounts as they are now."""
        accounts = self._accounts if self._cluster.name else ()
        limited = {account.name for account in accounts if account.options.limits.max_connections >= 0}
        for name in self._heard.keys() - limited:
            self._heard.pop(name).cancel()
            self._counts.pop(name, None)
        for name in limited - self._heard.keys():
            self._heard[name] = self._accounts.system.hub.subscribe(_told(name), singly(self._hear))
            self._accounts.of(name).others = partial(self.of, name)
            self._ask(name)

    def joined(self, account: Account) -> None:
        """Ask the other nodes for their numbers when an account gets its first client here."""
        if len(account.connections) == 1 and account.name in self._heard:
            self._ask(account.name)

    def of(self, account: str) -> int:
        """Return the number of clients of that account on the other nodes."""
        counts = self._counts.get(account)
        if not counts:
            return 0
        up = {link.remote.server_id for link, _ in self._cluster.links() if link.remote is not None}
        return sum(number for server, number in counts.items() if server in up)

    def _ask(self, account: str) -> None:
        self._accounts.system.hub.send(Single(f"$SYS.REQ.ACCOUNT.{account}.CONNS".encode(), _told(account)))

    def _hear(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        try:
            event = _CONNS.decode(payload)
        except DECODE_ERRORS:
            return  # invented by a user of the system account
        self._counts.setdefault(event.acc, {})[event.server.id] = event.conns


def _told(account: str) -> bytes:
    return f"$SYS.ACCOUNT.{account}.SERVER.CONNS".encode()


class SystemEvents:
    """Publishes events to the system account. Without configured accounts it has no clients, so only rejected logins
    are published."""

    def __init__(
        self, node: Monitored, accounts: Accounts, clock: Clock, pages: Callable[[], Pages], messages: SystemMessages
    ) -> None:
        self._counts = ClientCounts(accounts, node.cluster)
        self._node, self._accounts, self._clock = node, accounts, clock
        self._pages, self._messages = pages, messages
        self._hub = accounts.system.hub
        self._id = node.identity.server_id
        self._statsz_ns = FIRST_STATSZ_NS
        self._stopped = False
        self._members: set[int] = set()
        """Announced clients by number."""

    def start(self) -> None:
        """Start the periodic events."""
        self._clock.call_later(self._statsz_ns, self._statsz)
        self._clock.call_later(HEARTBEAT_NS, self._heartbeat)

    def configured(self) -> None:
        """Take the limits of the accounts as they are now."""
        if not self._accounts.alone:
            self._counts.configured()

    # ------------------------------------------------------------------ clients
    def connected(self, connection: Connection) -> None:
        """Announce a client that authenticated."""
        if self._accounts.alone:
            return
        self._counts.joined(connection.account)
        self._members.add(connection.id)
        self._connections(connection.account)
        subject = f"$SYS.ACCOUNT.{connection.account.name}.CONNECT".encode()
        if self._hub.interest(subject):
            self._send(subject, self._messages.event("client_connect") | {"client": _client(connection)})

    def leaf_connected(self, leaf: AcceptedLeaf) -> None:
        """Announce a leaf node that is in its account."""
        if self._accounts.alone or leaf.account is None:
            return
        subject = f"$SYS.ACCOUNT.{leaf.account.name}.LEAFNODE.CONNECT".encode()
        if self._hub.interest(subject):
            self._send(subject, {"server": self._messages.server(), "acc": leaf.account.name})
        self._connections(leaf.account)

    def leaf_disconnected(self, leaf: AcceptedLeaf) -> None:
        """Announce that a leaf node that was in its account is gone."""
        if not self._accounts.alone and not self._stopped and leaf.account is not None:
            self._connections(leaf.account)

    def disconnected(self, connection: Connection) -> None:
        """Announce a client that disconnected or was rejected."""
        if connection.close_reason == REFUSED:
            self._refused(connection)
        if self._accounts.alone or self._stopped:
            return
        subject = f"$SYS.ACCOUNT.{connection.account.name}.DISCONNECT".encode()
        if self._hub.interest(subject):
            self._send(subject, self._gone(connection))
        if connection.id in self._members:
            self._members.remove(connection.id)
            self._connections(connection.account)

    def _refused(self, connection: Connection) -> None:
        own, subject = connection.account.hub, b"$SYS.ACCOUNT.CLIENT.AUTH.ERR"
        if own.interest(subject):
            own.send(Single(subject, payload=dumps(self._gone(connection))))
        subject = f"$SYS.SERVER.{self._id}.CLIENT.AUTH.ERR".encode()
        if not self._accounts.alone and self._hub.interest(subject):
            self._send(subject, self._gone(connection))

    def _gone(self, connection: Connection) -> dict[str, Any]:
        client = _client(connection, stop_ns=self._clock.now())
        return self._messages.event("client_disconnect") | {
            "client": client,
            "sent": {"msgs": connection.in_msgs, "bytes": connection.in_bytes},
            "received": {"msgs": connection.out_msgs, "bytes": connection.out_bytes},
            "reason": connection.close_reason,
        }

    def _connections(self, account: Account) -> None:
        """Announce the number of clients of an account, under the server's and the account's subjects."""
        from lakestream.ops.monitoring.accounts import account_traffic  # for servers with configured accounts

        name = account.name
        event: dict[str, Any] | None = None
        for subject in (f"$SYS.SERVER.ACCOUNT.{name}.CONNS".encode(), f"$SYS.ACCOUNT.{name}.SERVER.CONNS".encode()):
            if self._hub.interest(subject):
                if event is None:
                    event = self._messages.event("account_connections") | account_traffic(self._node, account)
                else:
                    event["server"] = self._messages.server()
                self._send(subject, event)

    def _heartbeat(self) -> None:
        self._clock.call_later(HEARTBEAT_NS, self._heartbeat)
        for account in self._accounts:
            if account.connections:
                self._connections(account)

    # ------------------------------------------------------------------ the server
    def _statsz(self) -> None:
        self._statsz_ns = min(2 * self._statsz_ns, STATSZ_NS)
        self._clock.call_later(self._statsz_ns, self._statsz)
        subject = f"$SYS.SERVER.{self._id}.STATSZ".encode()
        if not self._hub.interest(subject):
            return
        pages = self._pages()
        together = pages.together
        if together is None:
            self._send(subject, {"server": self._messages.server(), "statsz": pages.statsz()})
        elif together.first:
            self._clock.spawn(self._statsz_of_all(together, subject))

    async def _statsz_of_all(self, together: Together, subject: bytes) -> None:
        self._send(subject, {"server": self._messages.server(), "statsz": await together.page("statsz", Query())})

    def lame_duck(self) -> None:
        """Announce lame duck mode."""
        self._server("LAMEDUCK")

    def stopping(self) -> None:
        """Announce the shutdown; its clients are not announced one by one."""
        self._server("SHUTDOWN")
        self._stopped = True

    def _server(self, what: str) -> None:
        subject = f"$SYS.SERVER.{self._id}.{what}".encode()
        if not self._accounts.alone and self._hub.interest(subject):
            self._send(subject, self._messages.server())

    def _send(self, subject: bytes, event: dict[str, Any]) -> None:
        self._hub.send(Single(subject, payload=dumps(event)))


def _client(connection: Connection, stop_ns: int = 0) -> dict[str, Any]:
    """Return a client as events show it; when it is gone with its round-trip time."""
    account = connection.account.name
    page: dict[str, Any] = {
        "start": format_time(connection.start_ns),
        "host": connection.host,
        "id": connection.id,
        "acc": account,
    }
    known = {"user": connection.user, "name": connection.name, "lang": connection.lang, "ver": connection.version}
    page |= {name: value for name, value in known.items() if value}
    if stop_ns:
        page |= ({"rtt": connection.rtt_ns} if connection.rtt_ns else {}) | {"stop": format_time(stop_ns)}
    token = {"jwt": connection.client.jwt, "issuer_key": connection.client.issuer_key}
    page |= {name: value for name, value in token.items() if value}
    if connection.client.tags:
        page["tags"] = list(connection.client.tags)
    return page | {
        "name_tag": connection.account.options.shown,
        "kind": "Client",
        "client_type": CLIENT_TYPES[connection.kind],
    }
