"""What monitoring needs of a server.

Belongs here: the narrow interface between the monitoring pages and the node. The node has all of it; tests pass small
servers of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from lakestream.jetstream.engine import Engine
from lakestream.server.cluster import Cluster
from lakestream.server.identity import Identity
from lakestream.server.interest import Subscription
from lakestream.server.logging import Logger
from lakestream.server.options import Options
from lakestream.server.statistics import Counted, Statistics


class Live(Counted, Protocol):
    """A connection that is open."""

    subs: dict[bytes, Subscription]

    @property
    def pending_bytes(self) -> int:
        """Bytes not yet sent."""


class Lag(Protocol):
    """Who knows how far the lake is."""

    root: str

    def lag(self) -> dict[str, int]:
        """Log entries by stream that are not in the table yet."""

    def troubles(self) -> dict[str, str]:
        """Streams whose tables do not follow them, with the reason."""


class Calls(Protocol):
    """The JetStream API's counters."""

    total: int
    errors: int


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
        """Open connections by id."""

    @property
    def engine(self) -> Engine | None:
        """None without JetStream."""

    @property
    def api(self) -> Calls | None:
        """None without JetStream."""

    @property
    def keeper(self) -> Lag | None:
        """None without JetStream."""

    @property
    def cluster(self) -> Cluster | None:
        """None without a cluster."""

    @property
    def bound_http_port(self) -> int:
        """Where the monitoring port is."""

    def subscription_count(self) -> int:
        """All subscriptions, the server's own too."""
