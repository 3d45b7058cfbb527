"""Nodes of a cluster in one process: real hubs and routes, with connections that a test drives.

Belongs here: the event loops' turns, the connections between nodes with the buffers in flight, and clients as sinks.
Nothing happens before the test says so: `settle` runs everything, `turn` one node's turn, `arrive` delivers what one
node sent to another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from lakestream.config.account_options import AccountOptions
from lakestream.config.options import Options
from lakestream.logging import Logger
from lakestream.net.accounts.accounts import Accounts
from lakestream.net.accounts.imports import AccountImports
from lakestream.net.accounts.service_imports import ServerNames
from lakestream.net.interest.subscription import SingleSink, Subscription
from lakestream.net.peers.routes import Routes
from lakestream.net.turn import Turn
from lakestream.ports import ClientInfo, Single
from lakestream.protocol import frames
from lakestream.protocol.accounts import GLOBAL_ACCOUNT, UNLIMITED
from lakestream.protocol.messages import Messages
from lakestream.protocol.peer_wire import NodeInfo
from lakestream.protocol.publishes import NOTHING_APART, Publishes, run_of
from lakestream.protocol.route_wire import Record, decode
from lakestream.raft.group.ports import Channel
from tests.unit.stream_world import ManualClock

A, B, C = "a", "b", "c"
DEFAULT, ONE, TWO = GLOBAL_ACCOUNT, "ONE", "TWO"
ACCOUNTS = [DEFAULT, ONE, TWO]

Message = tuple[bytes, bytes, bytes, bytes]


class Client(SingleSink):
    """Client of a node: a sink that keeps what it receives, by subscription."""

    def __init__(self, node: Node, echo: bool = True, account: str = GLOBAL_ACCOUNT) -> None:
        self.node = node
        self.hub = node.accounts.of(account).hub
        self._info = ClientInfo(id=7, host="127.0.0.1", account=account)
        self.echo = echo
        self.congested = False
        self.got: list[tuple[bytes, Message]] = []
        self.from_nodes: list[str] = []
        self.alone: list[tuple[bytes, bytes]] = []
        self._drained: list[Callable[[], None]] = []

    def receive(self, sub: Subscription, message: Single, client: ClientInfo) -> None:
        self.got.append((sub.sid, (message.subject, message.reply, message.header, message.payload)))
        self.from_nodes.append(client.name if client.kind == "Router" else "")
        sub.delivered += 1
        if sub.maximum and sub.delivered >= sub.maximum:
            self.hub.leave(sub)

    def on_drain(self, callback: Callable[[], None]) -> None:
        self._drained.append(callback)

    def no_responders(self, sub: Subscription, subject: bytes, reply: bytes) -> None:
        self.alone.append((subject, reply))

    def drain(self) -> None:
        """End the congestion."""
        self.congested = False
        drained, self._drained = self._drained, []
        for callback in drained:
            callback()

    def subscribe(self, subject: bytes, queue: bytes = b"", sid: bytes = b"1", maximum: int = 0) -> Subscription:
        sub = Subscription(self, subject, queue, sid)
        sub.maximum = maximum
        self.hub.join(sub)
        return sub

    def unsubscribe(self, sub: Subscription) -> None:
        self.hub.leave(sub)

    def publish(self, subject: bytes, payload: bytes = b"", reply: bytes = b"", header: bytes = b"") -> bool:
        return self.hub.route(self, self._info, Single(subject, reply, header, payload))

    def publish_run(self, messages: Sequence[tuple[bytes, ...]]) -> list[tuple[int, int]]:
        """Publish (subject, reply, payload, perhaps header block) as a run; return what `Hub.route_run` does."""
        run = run_of(b"".join(pub(*message) for message in messages), NOTHING_APART)
        return list(self.hub.route_run(self, self._info, run, 0, len(run)))

    @property
    def payloads(self) -> list[bytes]:
        """Return the payloads in the order of arrival."""
        return [message[3] for _, message in self.got]


class ColumnarClient(Client):
    """Client that takes runs."""

    runs = 0

    columnar = True

    def take(self, sub: Subscription, messages: Messages, begin: int, end: int, client: ClientInfo) -> int:
        self.runs += isinstance(messages, Publishes)
        return super().take(sub, messages, begin, end, client)


def pub(subject: bytes, reply: bytes, payload: bytes, header: bytes = b"") -> bytes:
    """Return a PUB or HPUB command."""
    if header:
        sizes = len(header), len(header) + len(payload)
        return frames.HPUB % (subject, reply and reply + b" ", *sizes, header, payload)
    return b"PUB %b %b%d\r\n%b\r\n" % (subject, reply + b" " if reply else b"", len(payload), payload)


class Node:
    """Node: accounts, routes, and its side of the connections (`Links` of remote_node.py)."""

    def __init__(
        self,
        name: str,
        cluster: Cluster,
        accounts: Sequence[AccountOptions],
        knows_accounts: bool,
        runs: bool,
        headed: bool,
    ) -> None:
        self.name = name
        self.info = NodeInfo(
            name=name, server_id=name, accounts=knows_accounts, runs=runs, stored=runs, headed=runs and headed
        )
        self.soon: deque[Callable[[], None]] = deque()
        self.clock = ManualClock()
        self.look_ns = 0
        """Time that passes with each look at the clock."""
        self._now = 1
        self.accounts = Accounts(Options(accounts=tuple(accounts)), Turn(self.soon.append, steady=self._look), Logger())
        self.hub = self.accounts.default.hub
        self.full: set[str] = set()
        self.held: set[str] = set()
        self.breaking: set[str] = set()
        self.waiting: dict[str, list[Callable[[], None]]] = {}
        self.sent: list[tuple[str, bytes]] = []
        self.errors: list[Exception] = []
        self._cluster = cluster
        self._receiver: Callable[[str, bytes], None] = lambda name, payload: None
        self._watcher: Callable[[NodeInfo, bool], None] = lambda info, up: None
        self.routes = Routes(self.accounts, self)
        self.imports = AccountImports(self.accounts, self.clock, Logger(), lambda: ServerNames(name))
        self.accounts.follow(self.imports.changed)
        self.imports.changed(list(self.accounts))

    def _look(self) -> int:
        self._now += self.look_ns
        return self._now

    def turn(self) -> None:
        """End the event loop's turn."""
        self.clock.turn()
        while self.soon:
            self.soon.popleft()()

    # ------------------------------------------------------------------ Links
    def send(self, node: str, channel: Channel, payload: bytes) -> bool:
        way = self._cluster.ways.get((self.name, node))
        if way is None:
            return False
        if node in self.breaking:
            self.breaking.discard(node)
            self._cluster.disconnect(self.name, node)
            return False
        assert channel is Channel.ROUTE
        self.sent.append((node, payload))
        way.append(payload)
        return True

    def receive(self, channel: Channel, handler: Callable[[str, bytes], None]) -> None:
        self._receiver = handler

    def watch_links(self, callback: Callable[[NodeInfo, bool], None]) -> None:
        self._watcher = callback

    def failed(self, node: str, channel: Channel, error: Exception) -> None:
        assert channel is Channel.ROUTE
        self.errors.append(error)
        self._cluster.disconnect(self.name, node)

    def congested(self, node: str) -> bool:
        return node in self.full

    def reads(self, node: str, on: bool) -> None:
        self.held.add(node) if not on else self.held.discard(node)

    def on_drain(self, node: str, callback: Callable[[], None]) -> None:
        if node in self.full:
            self.waiting.setdefault(node, []).append(callback)
        else:
            callback()

    def drain(self, node: str) -> None:
        """Report that the queue to a node is short again."""
        self.full.discard(node)
        for callback in self.waiting.pop(node, []):
            callback()

    # ------------------------------------------------------------------ called by the cluster
    def arrived(self, sender: str, payload: bytes) -> None:
        self._receiver(sender, payload)

    def linked(self, other: Node, up: bool) -> None:
        self._watcher(other.info, up)


class Cluster:
    """Nodes, and the buffers in flight between them.

    Args:
        accounts: configured accounts besides `$G`; just the name of one without options.
        old: nodes whose version does not know accounts.
        singly: nodes whose version takes each message by itself.
        headless: nodes whose version takes those with header blocks by themselves.
    """

    def __init__(
        self,
        *names: str,
        connected: bool = True,
        accounts: Sequence[str | AccountOptions] = (),
        old: Sequence[str] = (),
        singly: Sequence[str] = (),
        headless: Sequence[str] = (),
    ) -> None:
        options = [AccountOptions(name=one, jetstream=UNLIMITED) if isinstance(one, str) else one for one in accounts]
        self.nodes = {
            name: Node(name, self, options, name not in old, name not in (*old, *singly), name not in headless)
            for name in names
        }
        self.ways: dict[tuple[str, str], deque[bytes]] = {}
        if connected:
            for name in names:
                for other in names:
                    if name < other:
                        self.connect(name, other)
            self.settle()

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def client(self, node: str, echo: bool = True, account: str = GLOBAL_ACCOUNT) -> Client:
        return Client(self.nodes[node], echo, account)

    def columnar(self, node: str, echo: bool = True, account: str = GLOBAL_ACCOUNT) -> ColumnarClient:
        return ColumnarClient(self.nodes[node], echo, account)

    def connect(self, one: str, other: str) -> None:
        self.ways[one, other] = deque()
        self.ways[other, one] = deque()
        self.nodes[one].linked(self.nodes[other], True)
        self.nodes[other].linked(self.nodes[one], True)

    def disconnect(self, one: str, other: str) -> None:
        """Disconnect two nodes; buffers in flight are lost."""
        del self.ways[one, other]
        del self.ways[other, one]
        self.nodes[one].linked(self.nodes[other], False)
        self.nodes[other].linked(self.nodes[one], False)

    def arrive(self, sender: str, receiver: str, most: int = 1 << 30) -> None:
        """Deliver buffers that one node has sent to another."""
        way = self.ways[sender, receiver]
        while way and most:
            most -= 1
            self.nodes[receiver].arrived(sender, way.popleft())

    def settle(self) -> None:
        """Run until nothing is left to do."""
        busy = True
        while busy:
            for node in self.nodes.values():
                node.turn()
            busy = any(self.ways.values())
            for sender, receiver in self.ways:
                self.arrive(sender, receiver)


def records(cluster: Cluster, sender: str, receiver: str) -> list[Record]:
    """Return the records that a node has sent to another so far."""
    return [record for to, payload in cluster[sender].sent if to == receiver for record in decode(payload)]
