"""What JetStream needs of the cluster's nodes, as protocols.

Belongs here: the narrow interfaces through which the meta group and the API see the other nodes. The server passes the
real ones in, tests pass their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from lakestream.meta.shared import GLOBAL
from lakestream.raft.group.ports import Peers


class NodeFacts(Protocol):
    """What a node says of itself. Limits are bytes."""

    @property
    def name(self) -> str:
        """Its `server_name`: the id of the node everywhere."""

    @property
    def server_id(self) -> str:
        """Made anew at every start."""

    @property
    def cluster(self) -> str:
        """The cluster's name."""

    @property
    def tags(self) -> tuple[str, ...]:
        """Its server tags."""

    @property
    def jetstream(self) -> bool:
        """Whether it keeps streams."""

    @property
    def domain(self) -> str:
        """Its JetStream domain."""

    @property
    def max_memory(self) -> int:
        """What streams in memory may take."""

    @property
    def max_storage(self) -> int:
        """What streams in files may take."""

    @property
    def clustered(self) -> bool:
        """Whether it has a meta log."""


class Nodes(Peers, Protocol):
    """The nodes of the cluster, and what they say of themselves."""

    @property
    def node(self) -> NodeFacts:
        """This node."""

    def info(self, node: str) -> NodeFacts | None:
        """What a node said of itself last, also when it is gone; None: it was never met."""

    def nodes(self) -> Mapping[str, NodeFacts]:
        """Every node that is connected now, without this one."""

    def sees(self, node: str) -> frozenset[str]:
        """The nodes to which that one says it is connected."""

    def routes_met(self) -> bool:
        """Whether every node of the configured routes is connected, or is this one."""

    def update(self, **changes: Any) -> None:
        """Change what this node says of itself, and tell the others."""

    def watch_nodes(self, callback: Callable[[Any], None]) -> None:
        """Call back when a connected node says something new of itself, or of whom it sees."""


def of_account(method: str, account: str) -> str:
    """The name of a call that is about one account: each account's engine serves its own."""
    return method if account == GLOBAL else f"{method} {account}"
