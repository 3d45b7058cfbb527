"""Interfaces of the meta layer to the accounts above it and to the other nodes.

Belongs here: protocols only. `net/` implements the nodes of a cluster, `solo.py` a server without one, `account/` the
accounts; the server passes them in, and tests pass their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from lakestream.protocol.accounts import GLOBAL_ACCOUNT
from lakestream.protocol.api.request import Request, Where
from lakestream.protocol.peer_wire import NodeInfo
from lakestream.raft.group.ports import Transport
from lakestream.stream.core.events import StreamEvents

if TYPE_CHECKING:
    from lakestream.stream.assembly import Stream


class Nodes(Transport, Protocol):
    """The nodes of the cluster and their descriptions."""

    @property
    def node(self) -> NodeInfo:
        """Return the description of this node."""

    def info(self, node: str) -> NodeInfo | None:
        """Return a node's last description, even if it is disconnected; None if it was never connected."""

    def nodes(self) -> Mapping[str, NodeInfo]:
        """Return every connected node, without this one."""

    def sees(self, node: str) -> frozenset[str]:
        """Return the nodes to which `node` is connected."""

    def routes_met(self) -> bool:
        """Return True if every node of the configured routes is connected or is this one."""

    def update(self, **changes: Any) -> None:
        """Change this node's description, and send it to the others."""

    def watch_nodes(self, callback: Callable[[Any], None]) -> None:
        """Call back when the description or the connections of a connected node change."""


class AccountStreams(Protocol):
    """The streams of one account, for its replicas."""

    account: str
    streams: dict[str, Stream]
    """Streams visible to clients of the account, by name."""
    offline: dict[str, str]
    """Streams that cannot be served, with the reason."""
    serving: bool
    """True while the account has JetStream."""
    events: StreamEvents

    def attach(self, stream: Stream) -> None:
        """Add a stream, or replace one whose state came from another node."""

    def detach(self, name: str, trouble: str = "") -> None:
        """Remove a stream; `trouble`: the reason if its log cannot be used."""

    def refresh(self, stream: Stream) -> None:
        """Renew the subscriptions after a change of the stream's subjects or role."""

    def lead(self, stream: Stream) -> None:
        """Subscribe to the acks of a stream that this node starts to lead."""

    def follow(self, name: str) -> None:
        """Cancel the subscriptions to the acks of a stream that this node stops leading."""


class AllAccounts(Protocol):
    """The accounts that have streams on this server."""

    def of(self, account: str) -> AccountStreams:
        """Return the streams of an account."""

    def get(self, account: str) -> AccountStreams | None:
        """Return the streams of an account, or None if it never had any here."""

    def __iter__(self) -> Iterator[AccountStreams]: ...


class Led(Protocol):
    """The leaders of streams, as this node knows them."""

    def lead(self, uid: str, term: int) -> None:
        """Record that this node leads and serves a stream, and announce it to every other node."""

    def note(self, uid: str, term: int, leader: str) -> None:
        """Record the leader that the stream's group on this node knows."""

    def forget(self, uid: str) -> None:
        """Forget a stream that was removed."""

    def of(self, uid: str) -> str:
        """Return the leader of a stream if it is connected; "" when none is known."""


class Dispatcher(Protocol):
    """Dispatches API requests to the node that answers them."""

    def accept(self, account: str, pattern: str, handler: Callable[[Any], None]) -> None:
        """Call `handler` with requests of this pattern that another node forwards."""

    def dispatch(
        self, request: Request, where: Where, here: Callable[[], None], decided: Callable[[], None] | None = None
    ) -> None:
        """Call `here`, forward the request, or hold it until its stream or the meta group has a leader.

        Without one the request fails with 10008, or `decided` is called: it answers what is carried out already.
        """

    def again(self, request: Request, where: Where, here: Callable[[], None]) -> None:
        """Dispatch a request again that this node could not answer because it lost leadership."""

    def answer(self, origin: str, account: str, reply: bytes, body: bytes, header: bytes = b"") -> bool:
        """Send an answer through the node that received the request; return False if the caller has to publish it."""

    def changed(self) -> None:
        """Dispatch held requests again: a leader has changed."""


def of_account(method: str, account: str) -> str:
    """Return the name of a call between nodes that concerns one account."""
    return method if account == GLOBAL_ACCOUNT else f"{method} {account}"
