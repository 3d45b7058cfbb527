"""The server as monitoring and the system account see it.

Belongs here: the narrow interface between them and the node, and what several pages show of it. Tests pass small
servers of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from lakestream.config.options import Options
from lakestream.logging import Logger
from lakestream.metrics.histogram import Buckets, Histogram
from lakestream.net.accounts.accounts import Account, Accounts
from lakestream.net.connection import Connection
from lakestream.net.identity import Identity
from lakestream.net.peers.standalone import Standalone
from lakestream.net.statistics import Statistics
from lakestream.net.unsent import Unsent
from lakestream.protocol.accounts import GLOBAL_ACCOUNT
from lakestream.runtime import ThreadIo

if TYPE_CHECKING:
    from lakestream.account.api.subjects import Api
    from lakestream.account.engine import Engine
    from lakestream.lake.staging.compactor_files import UpkeepState
    from lakestream.meta.node import MetaNode
    from lakestream.meta.stores import FileStores
    from lakestream.net.accounts.signed_accounts import SignedAccounts
    from lakestream.net.leaf.nodes import LeafNodes
    from lakestream.net.peers.cluster import Cluster
    from lakestream.net.remote.remotes import Remotes
    from lakestream.net.tls import ServerContext

FEATURE_FLAGS = dict.fromkeys(("js_ack_fc_v2", "js_api_reply_v2", "js_raft_delete_range", "js_snapshot_sources"), False)
"""nats-server's optional features, none of which this server has."""

MAX_COMMITS = 50
"""Commits of a table that are shown (50), the newest ones."""


class StreamLag(msgspec.Struct, frozen=True):
    """Lag of a stream's table: messages, and age of the oldest of them in ns; both 0 when the table has all.
    `committed_ns` is the time of the last compaction, ns since the epoch; 0: never, or unknown. `misfits`: messages of
    the table that do not fit their schema."""

    messages: int = 0
    age_ns: int = 0
    committed_ns: int = 0
    misfits: int = 0


class Outage(msgspec.Struct, frozen=True):
    """An outage of the lake: since when (ns since the epoch), the last error, and the same with what to do."""

    since_ns: int
    reason: str
    text: str


class Stall(NamedTuple):
    """A wait of all clients for one step: its length in ns, and the function that ran; "": it was not seen."""

    length_ns: int = 0
    step: str = ""


class Stalls(Protocol):
    """The waits of all clients for one step of the event loop."""

    seconds: Histogram

    @property
    def longest(self) -> Stall:
        """Return the longest one of late."""


class HistoryFigures(msgspec.Struct, frozen=True):
    """Reads of old messages from the lake since the start.

    seconds: their durations.
    failures: those that raised an error.
    hits, misses: lookups of the block cache; `bytes`: its content.
    """

    seconds: Buckets
    failures: int
    hits: int
    misses: int
    bytes: int


class Lag(Protocol):
    """The lag of the lake."""

    root: str
    attended: bool
    """True if a compactor is at work in the lake."""
    starting: bool
    """True if one was started that is not at work yet."""

    @property
    def batch(self) -> object | None:
        """Return the last micro-batch of its query, if that is known."""

    @property
    def upkeep(self) -> UpkeepState | None:
        """Return the state of its maintenance of tables, if that is known."""

    def lag(self) -> Mapping[str, StreamLag]:
        """Return the lag of each stream's table."""

    def streams(self) -> Collection[tuple[str, str]]:
        """Return account and name of the streams that follow the lake here."""

    async def table(self, stream: tuple[str, str], commits: int) -> dict[str, Any]:
        """Return a stream's table as /lakez shows it, with so many of its last commits."""

    def lag_of(self, account: str, stream: str) -> StreamLag | None:
        """Return the lag of one stream's table; None for a stream that is not in the lake."""

    def troubles(self) -> dict[str, str]:
        """Return the streams whose tables cannot follow them, with the reason."""

    def damages(self) -> dict[tuple[str, str], str]:
        """Return the streams, by account and name, whose tables are damaged or missing, with the reason."""

    def outage(self) -> Outage | None:
        """Return the outage of the lake; None while it answers."""

    def history(self) -> HistoryFigures:
        """Return figures of the reads from the lake."""


class Serving(Protocol):
    """JetStream of one account."""

    engine: Engine
    api: Api


class Streams(Protocol):
    """JetStream of a server."""

    node: MetaNode
    stores: FileStores
    ack_seconds: Histogram
    """Times from publish to pub ack."""

    @property
    def served(self) -> Mapping[str, Serving]:
        """Return the accounts with JetStream by name."""

    @property
    def keeper(self) -> Lag | None:
        """Return the lake's keeper; None without a lake."""


class QueryFigures(Protocol):
    """Queries of one account since the start, and their results."""

    queries: int
    refused: int
    failed: int
    rows: int
    bytes: int
    seconds: float


class Queries(Protocol):
    """SQL over NATS of a server."""

    @property
    def running(self) -> int:
        """Return the number of queries that run."""

    def totals(self) -> Mapping[str, QueryFigures]:
        """Return the figures of each account that has asked."""

    async def close(self) -> None:
        """End all queries and their processes."""


class WebPort(Protocol):
    """The listener for WebSocket, as /varz shows it."""

    @property
    def port(self) -> int:
        """Return the bound port."""

    @property
    def not_after(self) -> str:
        """Return the end of the certificate's validity (RFC 3339); "" without TLS."""


class Listening(Protocol):
    """The listeners of a server, as /varz shows them."""

    http_port: int
    mqtt: Any
    tls: ServerContext | None

    @property
    def websocket(self) -> WebPort | None:
        """Return the listener for WebSocket; None: there is none."""


class Monitored(Protocol):
    """The server; the node implements it."""

    options: Options
    log: Logger
    identity: Identity
    accounts: Accounts
    connections: dict[int, Connection]
    cluster: Cluster | Standalone
    remotes: Remotes | None
    leafnodes: LeafNodes | None
    statistics: Statistics
    started_ns: int
    config_loaded_ns: int
    unsent: Unsent
    io: ThreadIo
    lame_duck: bool

    @property
    def stalls(self) -> Stalls:
        """Return the waits of all clients."""

    @property
    def sql(self) -> Queries | None:
        """Return SQL over NATS; None when it is off."""

    @property
    def signed(self) -> SignedAccounts | None:
        """Return the accounts that operators sign; None without operators."""

    @property
    def listeners(self) -> Listening:
        """Return the listeners."""

    @property
    def jetstream(self) -> Streams | None:
        """Return JetStream; None when it is off."""

    def reload(self) -> str:
        """Read the configuration file again. Returns the error, or ""."""


def configured(node: Monitored) -> list[Account]:
    """Return the configured and signed accounts, without those that only other nodes have or that a reload removed."""
    names = {GLOBAL_ACCOUNT, node.accounts.system.name, *(account.name for account in node.options.accounts)}
    if node.signed is not None:
        names.update(node.signed.ended)
    return [one for one in node.accounts if one.name in names or one.options.token is not None]


def account_of(node: Monitored, name: str) -> Account | None:
    """Return the account of that name; None when it is not configured."""
    return next((account for account in configured(node) if account.name == name), None)


def sublist_stats(node: Monitored, accounts: Sequence[Account]) -> dict[str, Any]:
    """Return figures of these accounts' interest graphs.

    A message of a client is one match. Matches of the server's own messages count only where no cache had them, so that
    nothing is counted per message.
    """
    inserts = held = misses = matched = cached = fanouts = max_fanout = 0
    for account in accounts:
        figures = account.hub.interest_graph.figures()
        held += figures.subscriptions
        inserts += figures.inserts
        misses += figures.misses
        traffic = node.statistics.account(account.name, account.connections.values())
        matched += max(traffic.in_msgs, figures.misses)
        cached += figures.cached
        fanouts += figures.fanouts
        max_fanout = max(max_fanout, figures.max_fanout)
    held -= sum(node.cluster.foreign(account.name) for account in accounts)
    return {
        "num_subscriptions": held,
        "num_cache": cached,
        "num_inserts": inserts,
        "num_removes": inserts - held,
        "num_matches": matched,
        "cache_hit_rate": 1 - misses / matched if matched else 0,
        "max_fanout": max_fanout,
        "avg_fanout": fanouts / cached if cached else 0,
    }
