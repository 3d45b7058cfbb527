"""Interfaces through which the meta layer reaches the accounts above it and the other nodes.

Belongs here: protocols only. `net/` implements the nodes of a cluster, `solo.py` a server without one, `account/` the
accounts; the server passes them in, and tests pass their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from lakestream.protocol.accounts import GLOBAL_ACCOUNT
from lakestream.protocol.api.request import Request, Where
from lakestream.protocol.peer_wire import NodeInfo
from lakestream.raft.group.ports import Peers
from lakestream.stream.assembly import Stream
from lakestream.stream.core.events import StreamEvents


class Nodes(Peers, Protocol):
    """The nodes of the cluster and their descriptions."""

    @property
    def node(self) -> NodeInfo:
        """This node."""

    def info(self, node: str) -> NodeInfo | None:
        """Return a node's last description, also when it is gone; None if it was never connected."""

    def nodes(self) -> Mapping[str, NodeInfo]:
        """Return every node that is connected now, without this one."""

    def sees(self, node: str) -> frozenset[str]:
        """Return the nodes to which that one is connected."""

    def routes_met(self) -> bool:
        """Return True if every node of the configured routes is connected or is this one."""

    def update(self, **changes: Any) -> None:
        """Change this node's description, and tell the others."""

    def watch_nodes(self, callback: Callable[[Any], None]) -> None:
        """Call back when the description or the connections of a connected node change."""


class AccountStreams(Protocol):
    """The streams of one account, as replicas report to it."""

    account: str
    streams: dict[str, Stream]
    """Streams that clients of the account see, by name."""
    offline: dict[str, str]
    """Streams that cannot be served, with the reason."""
    serving: bool
    """True while the account has JetStream."""
    events: StreamEvents

    def attach(self, stream: Stream) -> None:
        """Add a stream, or replace one whose state came from another node."""

    def detach(self, name: str, trouble: str = "") -> None:
        """Remove a stream; `trouble` is the reason when its log cannot be used."""

    def refresh(self, stream: Stream) -> None:
        """Subscribe anew: the subjects or the role of the stream changed."""

    def lead(self, stream: Stream) -> None:
        """Subscribe the acks of a stream that this node leads from now on."""

    def follow(self, name: str) -> None:
        """Cancel the subscriptions of acks: this node leads the stream no more."""


class AllAccounts(Protocol):
    """The accounts that have streams on this server."""

    def of(self, account: str) -> AccountStreams:
        """Return the streams of an account."""

    def get(self, account: str) -> AccountStreams | None:
        """Return the streams of an account, or None if there never were any here."""

    def __iter__(self) -> Iterator[AccountStreams]: ...


class Led(Protocol):
    """The leaders of streams, as this node knows them."""

    def lead(self, uid: str, term: int) -> None:
        """Note that this node leads and serves a stream, and tell every other node."""

    def note(self, uid: str, term: int, leader: str) -> None:
        """Note the leader that the stream's group on this node knows of."""

    def forget(self, uid: str) -> None:
        """Forget a stream that was removed."""

    def of(self, uid: str) -> str:
        """Return the node that leads a stream, if it can be reached; "" when none is known."""


class Dispatcher(Protocol):
    """Brings API requests to the node that answers them."""

    def accept(self, account: str, pattern: str, handler: Callable[[Any], None]) -> None:
        """Call `handler` with requests of this pattern that another node forwards."""

    def dispatch(self, request: Request, where: Where, here: Callable[[], None]) -> None:
        """Call `here`, forward the request, or hold it until somebody leads what it is about."""

    def again(self, request: Request, where: Where, here: Callable[[], None]) -> None:
        """Like `dispatch`, for a request that this node could not answer because it leads no more."""

    def answer(self, origin: str, account: str, reply: bytes, body: bytes, header: bytes = b"") -> bool:
        """Send an answer through the node that the request came to; False when the caller has to publish it."""

    def changed(self) -> None:
        """Look at held requests again: somebody else leads something."""


def of_account(method: str, account: str) -> str:
    """Return the name of a call between nodes that concerns one account."""
    return method if account == GLOBAL_ACCOUNT else f"{method} {account}"
