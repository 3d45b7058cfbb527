"""Counters of a server since its start.

Belongs here: counters that outlive a connection, of the server and of each account, and the ring of recently closed
connections. Counting happens when a connection ends, never per message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

import msgspec

from lakestream.protocol.accounts import GLOBAL_ACCOUNT

if TYPE_CHECKING:
    from lakestream.net.tls import TlsState

MAX_CLOSED = 10_000
"""Closed connections in /connz?state=closed; the oldest are dropped first."""

REFUSED = "Authentication Failure"
"""Close reason of connections with wrong credentials, which were in no account."""


class InAccount(Protocol):
    """The account of a connection."""

    @property
    def name(self) -> str:
        """Return the configured name."""


class Moved(Protocol):
    """Message and byte counters."""

    in_msgs: int
    in_bytes: int
    out_msgs: int
    out_bytes: int


class Counted(Moved, Protocol):
    """A connection as it is counted."""

    id: int
    kind: str
    name: str
    lang: str
    version: str
    user: str
    host: str
    port: int
    start_ns: int
    last_ns: int
    rtt_ns: int
    close_reason: str
    tls: TlsState | None

    @property
    def account(self) -> InAccount:
        """Return the account that the connection is or was in."""


class Closed(msgspec.Struct, frozen=True, gc=False):
    """A connection that has ended. Times in ns since the epoch; `rtt_ns` 0: not measured.

    `account_name` is "" when its credentials were wrong.
    """

    id: int
    kind: str
    name: str
    lang: str
    version: str
    user: str
    host: str
    port: int
    start_ns: int
    last_ns: int
    stop_ns: int
    rtt_ns: int
    in_msgs: int
    in_bytes: int
    out_msgs: int
    out_bytes: int
    close_reason: str
    tls: TlsState | None
    account_name: str


_COPIED = tuple(name for name in Closed.__struct_fields__ if name not in ("stop_ns", "account_name"))


class Traffic:
    """Messages and bytes from clients (in) and to clients (out), and slow consumers."""

    __slots__ = ("in_bytes", "in_msgs", "out_bytes", "out_msgs", "slow_consumers")

    def __init__(self) -> None:
        self.in_msgs = self.in_bytes = self.out_msgs = self.out_bytes = self.slow_consumers = 0

    def add(self, one: Moved) -> None:
        """Add the counters of a connection."""
        self.in_msgs += one.in_msgs
        self.in_bytes += one.in_bytes
        self.out_msgs += one.out_msgs
        self.out_bytes += one.out_bytes


class Statistics(Traffic):
    """Counters of one server, for connections that have ended; live connections carry their own.

    Attributes:
        total_connections: accepted since the start.
        stale_connections: closed because they did not answer PINGs.
        accounts: the same counters by account.
        closed: the last ended connections, oldest first.
    """

    __slots__ = ("accounts", "closed", "stale_connections", "total_connections")

    def __init__(self) -> None:
        super().__init__()
        self.total_connections = self.stale_connections = 0
        self.accounts: dict[str, Traffic] = {}
        self.closed: deque[Closed] = deque(maxlen=MAX_CLOSED)

    def ended(self, connection: Counted, now_ns: int) -> None:
        """Add the counters of a connection that has just ended."""
        account = self.accounts.setdefault(connection.account.name, Traffic())
        self.add(connection)
        account.add(connection)
        if connection.close_reason.startswith("Slow Consumer"):
            self.slow_consumers += 1
            account.slow_consumers += 1
        elif connection.close_reason == "Stale Connection":
            self.stale_connections += 1
        fields = {name: getattr(connection, name) for name in _COPIED}
        never_in = connection.close_reason == REFUSED and connection.account.name == GLOBAL_ACCOUNT
        fields["account_name"] = "" if never_in else connection.account.name
        self.closed.append(Closed(stop_ns=now_ns, **fields))

    def account(self, name: str, live: Iterable[Moved]) -> Traffic:
        """Return the counters of an account: of its ended connections and the given live ones."""
        total, ended = Traffic(), self.accounts.get(name)
        if ended is not None:
            total.add(ended)
            total.slow_consumers = ended.slow_consumers
        for one in live:
            total.add(one)
        return total
