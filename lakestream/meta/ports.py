"""Interfaces of the meta layer to the accounts above it and to the other nodes.

Belongs here: protocols, and the loopback, which takes the place of other nodes on a server that has none. `net/`
implements the nodes of a cluster, `account/` the accounts; the server passes them in, and tests pass their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from lakestream.ports import Take
from lakestream.protocol.accounts import GLOBAL_ACCOUNT
from lakestream.protocol.peer_wire import NodeInfo
from lakestream.raft.group.ports import Calls, Channel, Method, Transport
from lakestream.stream.core.events import StreamEvents

if TYPE_CHECKING:
    from lakestream.stream.assembly import Stream
    from lakestream.stream.dormant import Dormant


class Peers(Transport, Calls, Protocol):
    """The other nodes of the cluster: their descriptions, messages and requests to them."""

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
    dormant: dict[str, Dormant]
    """Streams that are not open, by name."""
    offline: dict[str, str]
    """Streams that cannot be served, with the reason."""
    serving: bool
    """True while the account has JetStream."""
    events: StreamEvents

    def attach(self, stream: Stream) -> None:
        """Add a stream, or replace one whose state came from another node."""

    def detach(self, name: str, trouble: str = "") -> None:
        """Remove a stream; `trouble`: the reason if its log cannot be used."""

    def rest(self, dormant: Dormant, take: Take | None = None) -> None:
        """Add a stream that is not open, in the place of the open one; its first use opens it. Or `take` gets what
        clients send to it and its consumers."""

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


class Loopback:
    """`Peers` of a server without other nodes, described by `node`. Calls to itself are function calls."""

    def __init__(self, node: NodeInfo) -> None:
        self.node, self.me = node, node.name
        self._methods: dict[str, Method] = {}

    def connected(self) -> list[str]:
        return []

    def alive(self, node: str) -> bool:
        return node == self.me

    def send(self, node: str, channel: Channel, payload: bytes) -> bool:
        return False

    def receive(self, channel: Channel, handler: Callable[[str, bytes], None]) -> None: ...

    def watch(self, callback: Callable[[str, bool], None]) -> None: ...

    def info(self, node: str) -> NodeInfo | None:
        return self.node if node == self.me else None

    def nodes(self) -> Mapping[str, NodeInfo]:
        return {}

    def sees(self, node: str) -> frozenset[str]:
        return frozenset()

    def routes_met(self) -> bool:
        return True

    def update(self, **changes: Any) -> None: ...

    def watch_nodes(self, callback: Callable[[Any], None]) -> None: ...

    def serve(self, method: str, handler: Method) -> None:
        self._methods[method] = handler

    def call(
        self, node: str, method: str, body: bytes, done: Callable[[bytes | None, str], None], timeout_ns: int
    ) -> None:
        self._methods[method](self.me, body, lambda answer: done(answer, ""))

    def tell(self, node: str, method: str, body: bytes) -> bool:
        self._methods[method](self.me, body, lambda answer: None)
        return True


def of_account(method: str, account: str) -> str:
    """Return the name of a call between nodes that concerns one account."""
    return method if account == GLOBAL_ACCOUNT else f"{method} {account}"
