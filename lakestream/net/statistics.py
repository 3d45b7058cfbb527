"""What has happened on a server since it started, as numbers.

Belongs here: the counters that outlive a connection, of the server and of each account, and the ring of connections
closed lately. Counting is done where a connection ends, never per message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

import msgspec

from lakestream.protocol.accounts import GLOBAL_ACCOUNT

MAX_CLOSED = 10_000
"""Closed connections that /connz?state=closed remembers; the oldest are forgotten first."""

REFUSED = "Authentication Failure"
"""Why a connection ended whose credentials were not good: it was in no account, unless a reload made them so."""


class InAccount(Protocol):
    """The account of a connection."""

    @property
    def name(self) -> str:
        """As configured."""


class Moved(Protocol):
    """Messages that came and went."""

    in_msgs: int
    in_bytes: int
    out_msgs: int
    out_bytes: int


class Counted(Moved, Protocol):
    """A connection as it is counted."""

    id: int
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

    @property
    def account(self) -> InAccount:
        """Where it is, or was."""


class Closed(msgspec.Struct, frozen=True, gc=False):
    """A connection that has ended. Times in ns since the epoch, `rtt_ns` 0 when it was never measured.

    `account_name` "": it was in none, for its credentials were not good.
    """

    id: int
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
    account_name: str


_COPIED = tuple(name for name in Closed.__struct_fields__ if name not in ("stop_ns", "account_name"))


class Traffic:
    """Messages and bytes from clients (in) and to them (out); connections cut because they did not read."""

    __slots__ = ("in_bytes", "in_msgs", "out_bytes", "out_msgs", "slow_consumers")

    def __init__(self) -> None:
        self.in_msgs = self.in_bytes = self.out_msgs = self.out_bytes = self.slow_consumers = 0

    def add(self, one: Moved) -> None:
        """Count in what a connection has moved."""
        self.in_msgs += one.in_msgs
        self.in_bytes += one.in_bytes
        self.out_msgs += one.out_msgs
        self.out_bytes += one.out_bytes


class Statistics(Traffic):
    """Counters of one server; its traffic is that of connections that have ended, live ones carry their own.

    Attributes:
        total_connections: accepted since the start.
        stale_connections: connections ended because they did not answer.
        accounts: the same traffic by account.
        closed: the last ones that ended, oldest first.
    """

    __slots__ = ("accounts", "closed", "stale_connections", "total_connections")

    def __init__(self) -> None:
        super().__init__()
        self.total_connections = self.stale_connections = 0
        self.accounts: dict[str, Traffic] = {}
        self.closed: deque[Closed] = deque(maxlen=MAX_CLOSED)

    def ended(self, connection: Counted, now_ns: int) -> None:
        """Take over the counts of a connection that has just ended."""
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
        """All that an account's clients have moved: those that have ended, and the live ones given."""
        total, ended = Traffic(), self.accounts.get(name)
        if ended is not None:
            total.add(ended)
            total.slow_consumers = ended.slow_consumers
        for one in live:
            total.add(one)
        return total
