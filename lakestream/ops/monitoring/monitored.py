"""What monitoring needs of a server.

Belongs here: the narrow interface between the monitoring pages and the node. The node has all of it; tests pass small
servers of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from lakestream.account.engine import Engine
from lakestream.config.account_options import GLOBAL_ACCOUNT, AccountOptions
from lakestream.config.options import Options
from lakestream.logging import Logger
from lakestream.meta.node import JetStreamCluster
from lakestream.net.accounts.auth import Login
from lakestream.net.hub import Hub
from lakestream.net.identity import Identity
from lakestream.net.interest.interest import Subscription
from lakestream.net.peers.cluster import Cluster
from lakestream.net.statistics import Counted, Statistics
from lakestream.stream.core.account_limits import JetStreamLimits


class Live(Counted, Protocol):
    """A connection that is open."""

    login: Login
    subs: dict[bytes, Subscription]

    @property
    def pending_bytes(self) -> int:
        """Bytes not yet sent."""


class Behind(Protocol):
    """Part of a stream that is not in its table."""

    @property
    def messages(self) -> int:
        """Number of messages."""

    @property
    def age_ns(self) -> int:
        """The age of the oldest of them; 0 when there is none."""

    @property
    def committed_ns(self) -> int:
        """Time of the last compaction, ns since the epoch; 0 when unknown."""


class Lag(Protocol):
    """Who knows how far the lake is."""

    root: str

    def lag(self) -> Mapping[str, Behind]:
        """Return the lag of each stream's table."""

    def attended(self) -> bool:
        """Return True if a compactor is at work in the lake."""

    def troubles(self) -> dict[str, str]:
        """Streams whose tables do not follow them, with the reason."""


class Calls(Protocol):
    """Counters of a JetStream API."""

    total: int
    errors: int
    internal_errors: int


class Serving(Protocol):
    """JetStream of one account."""

    @property
    def engine(self) -> Engine:
        """Its streams."""

    @property
    def api(self) -> Calls:
        """Its API."""


class Streams(Protocol):
    """JetStream of a server."""

    @property
    def served(self) -> Mapping[str, Serving]:
        """By account, those that have JetStream."""

    @property
    def keeper(self) -> Lag | None:
        """None without a lake."""

    @property
    def cluster(self) -> JetStreamCluster | None:
        """None without a cluster."""


class Watched(Protocol):
    """An account as the pages show it."""

    name: str
    hub: Hub
    is_system: bool
    options: AccountOptions
    jetstream: JetStreamLimits | None

    @property
    def connections(self) -> Mapping[int, Live]:
        """Open connections by id."""


class WatchedAccounts(Protocol):
    """The accounts of a server."""

    @property
    def system(self) -> Watched:
        """The account of those who see to the server."""

    def get(self, name: str) -> Watched | None:
        """The account of that name."""

    def __iter__(self) -> Iterator[Watched]:
        """All of them."""


class RemoteServers(Protocol):
    """The servers that this one connects to."""

    def shown(self) -> list[dict[str, Any]]:
        """Each of them."""

    def leafs(self, subs: bool = False) -> list[dict[str, Any]]:
        """The leaf connections; `subs`: with the subjects that are listened to there."""


class Monitored(Protocol):
    """What the pages need of a server; the node has all of it."""

    options: Options
    log: Logger
    identity: Identity
    started_ns: int
    config_loaded_ns: int
    lame_duck: bool
    statistics: Statistics

    @property
    def connections(self) -> Mapping[int, Live]:
        """Open connections by id, those that have not said who they are too."""

    @property
    def accounts(self) -> WatchedAccounts:
        """See `Accounts`."""

    @property
    def jetstream(self) -> Streams | None:
        """None without JetStream."""

    @property
    def cluster(self) -> Cluster | None:
        """None without a cluster."""

    @property
    def remotes(self) -> RemoteServers | None:
        """None without any."""

    @property
    def bound_http_port(self) -> int:
        """Where the monitoring port is."""


def configured(node: Monitored) -> list[Watched]:
    """The accounts that are configured now: not those that other nodes name, or that a reload has taken away."""
    names = {GLOBAL_ACCOUNT, node.accounts.system.name, *(account.name for account in node.options.accounts)}
    return [account for account in node.accounts if account.name in names]


def account_of(node: Monitored, name: str) -> Watched | None:
    """The account of that name, None when it is not configured."""
    return next((account for account in configured(node) if account.name == name), None)
