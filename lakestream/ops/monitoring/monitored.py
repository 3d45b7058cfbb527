"""The server as the monitoring pages see it.

Belongs here: the narrow interface between the pages and the node. Tests pass small servers of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from lakestream.account.engine import Engine
from lakestream.config.options import AccountOptions, Options
from lakestream.logging import Logger
from lakestream.meta.node import MetaNode
from lakestream.net.accounts.accounts import Client
from lakestream.net.hub import Hub
from lakestream.net.identity import Identity
from lakestream.net.peers.cluster import Cluster, Standalone
from lakestream.net.statistics import Statistics
from lakestream.protocol.accounts import GLOBAL_ACCOUNT, JetStreamLimits


class StreamLag(Protocol):
    """The part of a stream that is not in its table."""

    @property
    def messages(self) -> int:
        """Return the number of messages."""

    @property
    def age_ns(self) -> int:
        """Return the age of the oldest of them; 0: none."""

    @property
    def committed_ns(self) -> int:
        """Return the time of the last compaction, ns since the epoch; 0: unknown."""


class Lag(Protocol):
    """The lag of the lake."""

    root: str

    def lag(self) -> Mapping[str, StreamLag]:
        """Return the lag of each stream's table."""

    def attended(self) -> bool:
        """Return True if a compactor is at work in the lake."""

    def troubles(self) -> dict[str, str]:
        """Return the streams whose tables cannot follow them, with the reason."""


class Calls(Protocol):
    """The counters of a JetStream API."""

    total: int
    errors: int
    internal_errors: int


class Serving(Protocol):
    """JetStream of one account."""

    @property
    def engine(self) -> Engine:
        """Return its streams."""

    @property
    def api(self) -> Calls:
        """Return its API."""


class Streams(Protocol):
    """JetStream of a server."""

    @property
    def served(self) -> Mapping[str, Serving]:
        """Return the accounts with JetStream by name."""

    @property
    def keeper(self) -> Lag | None:
        """Return the lake's keeper; None without a lake."""

    @property
    def node(self) -> MetaNode:
        """This server's part in the streams of all nodes."""


class MonitoredAccount(Protocol):
    """An account as the pages show it."""

    name: str
    hub: Hub
    is_system: bool
    options: AccountOptions
    jetstream: JetStreamLimits | None

    @property
    def connections(self) -> Mapping[int, Client]:
        """Open connections by id."""


class MonitoredAccounts(Protocol):
    """The accounts of a server."""

    @property
    def system(self) -> MonitoredAccount:
        """Return the system account."""

    def get(self, name: str) -> MonitoredAccount | None:
        """Return the account of that name."""

    def __iter__(self) -> Iterator[MonitoredAccount]:
        """Iterate over all accounts."""


class RemoteServers(Protocol):
    """The servers that this one connects to."""

    def shown(self) -> list[dict[str, Any]]:
        """Return all of them."""

    def leafs(self, subs: bool = False) -> list[dict[str, Any]]:
        """Return the leaf connections; `subs`: with the other side's interest."""


class Monitored(Protocol):
    """The server as the pages need it; the node implements it."""

    options: Options
    log: Logger
    identity: Identity
    started_ns: int
    config_loaded_ns: int
    lame_duck: bool
    statistics: Statistics

    @property
    def connections(self) -> Mapping[int, Client]:
        """Return the open connections by id, also unauthenticated ones."""

    @property
    def accounts(self) -> MonitoredAccounts:
        """Return the accounts."""

    @property
    def jetstream(self) -> Streams | None:
        """Return JetStream; None when it is off."""

    @property
    def cluster(self) -> Cluster | Standalone:
        """Return this server's part in a cluster."""

    @property
    def remotes(self) -> RemoteServers | None:
        """Return the remote servers; None without any."""

    @property
    def bound_http_port(self) -> int:
        """Return the port of the monitoring listener."""


def configured(node: Monitored) -> list[MonitoredAccount]:
    """Return the configured accounts, without those that only other nodes have or that a reload removed."""
    names = {GLOBAL_ACCOUNT, node.accounts.system.name, *(account.name for account in node.options.accounts)}
    return [account for account in node.accounts if account.name in names]


def account_of(node: Monitored, name: str) -> MonitoredAccount | None:
    """Return the account of that name; None when it is not configured."""
    return next((account for account in configured(node) if account.name == name), None)
