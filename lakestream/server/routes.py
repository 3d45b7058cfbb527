"""Interest and messages between the nodes of the cluster.

Belongs here: telling the other nodes who listens here, keeping what they tell as subscriptions of the interest graph,
and carrying messages to them, one copy a node. Every node is connected to every other, so what came from one node goes
to none of them again; the only exception is a message for a queue group that has just lost its last member here.

Back-pressure: a node is congested while its connection is, and while it has not yet said that it handed on what was
sent before. Whoever publishes to such a node is not read from until it has drained; JetStream holds its deliveries,
also while a node says that the receiver itself is congested.

What is told: the subscriptions of this node by (subject, queue group) and their number, all of it when a connection
begins, changes afterwards, gathered over a turn of the event loop. Changes leave before any message or call of their
turn, so whoever answers a request on another node knows of the inbox by then.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from lakestream.jetstream.ports import ClientInfo, Delivery
from lakestream.raft.ports import Channel
from lakestream.server.hub import Hub, Remote, Sink
from lakestream.server.interest import Subscription
from lakestream.server.peer_wire import NodeInfo
from lakestream.server.route_wire import Batch, Hold, Interest, Mark, Record, Routed, Took, Unheard, decode, encode

HIGH_WATER = 1 << 20
"""Bytes for one node (1 MiB) that are gathered at most; more leave before the end of the turn."""

MARK_EVERY = 1 << 20
"""Bytes to a node (1 MiB) after which it is asked to say when it has handed them on."""

MAX_MARKS = 8
"""So many of these without an answer count as congestion: no more than some 8 MiB are on their way to a node, however
much the sockets would take, so that a node that says `Hold` gets no more than that for its slow client."""

MAX_WEIGHT = 1000
"""Members of a queue group that one node counts for. A node with more of them gets no more messages than that."""

CHANGES_IN_A_RECORD = 1000
"""Subscriptions told in one record, and what a node takes in, or forgets, in one turn (about 10 ms): heartbeats go on
while a node with very many clients comes or goes."""

_Key = tuple[bytes, bytes]
_numbers = itertools.count(1)


class Links(Protocol):
    """The connections to other nodes, as routing needs them; see `Peers` in peers.py."""

    def send(self, node: str, channel: Channel, payload: bytes) -> bool:
        """See `raft.ports.Peers.send`."""

    def receive(self, channel: Channel, handler: Callable[[str, bytes], None]) -> None:
        """See `raft.ports.Peers.receive`."""

    def watch_links(self, callback: Callable[[NodeInfo, bool], None]) -> None:
        """Call back when a connection to a node begins (True) and when it has ended (False), alternating."""

    def congested(self, node: str) -> bool:
        """More unsent bytes to that node than the high-water mark; false without a connection."""

    def on_drain(self, node: str, callback: Callable[[], None]) -> None:
        """Call back once when the node is no longer congested, or gone; at once if it is not congested."""


class RemoteNode(Remote):
    """A connected node, as a receiver of messages for its subscribers.

    Attributes:
        id: of the connection, as traces of messages show it.
        name: of the node.
        subscriptions: what its subscribers listen to.
        backlog: what came from the node and waits for its turn.
        in_msgs, in_bytes, out_msgs, out_bytes: messages and their headers and payloads, from and to the node.
    """

    echo = True

    def __init__(self, name: str, routes: Routes) -> None:
        self.id = next(_numbers)
        self.name = name
        self.client = ClientInfo(id=0, host="", account="$G", name=name, kind="Router")
        self.subscriptions: dict[_Key, Subscription] = {}
        self.in_msgs = self.in_bytes = self.out_msgs = self.out_bytes = 0
        self._routes = routes
        self._hub = routes.hub
        self._links = routes.links
        self._out: list[Record] = []
        self._gathered = 0
        self._dirty = False
        self._gone = False
        self.backlog: deque[Record] = deque()
        self._held: dict[bytes, list[Callable[[], None]]] = {}
        self._clogged = False
        self._unmarked = self._marks = 0
        self._waiting: list[Callable[[], None]] = []

    # ------------------------------------------------------------------ sink
    @property
    def congested(self) -> bool:
        """See `Sink.congested`."""
        return not self._gone and (self._marks >= MAX_MARKS or self._links.congested(self.name))

    def on_drain(self, callback: Callable[[], None]) -> None:
        """See `Sink.on_drain`."""
        if not self.congested:
            callback()
        elif self._marks >= MAX_MARKS:
            self._waiting.append(callback)
        else:
            self._links.on_drain(self.name, lambda: self.on_drain(callback))

    def receive(
        self, sub: Subscription, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo
    ) -> None:
        """See `Sink.receive`."""
        queue = sub.queue
        if not queue:
            self._gather(Routed(subject, reply, header, payload), len(header) + len(payload))
            return
        last = self._out[-1] if self._out else None
        # The same message for one more of this node's queue groups: one copy carries all of them. (Two equal messages
        # may meet here as well; each group still gets each of them once.)
        if (
            type(last) is Routed
            and last.payload is payload
            and last.subject is subject
            and last.reply is reply
            and last.header is header
            and not last.moved
            and not last.relayed
        ):
            if last.groups is None:
                last.groups = [b"", queue]
                return
            if queue not in last.groups:
                last.groups.append(queue)
                return
        self._gather(Routed(subject, reply, header, payload, [queue]), len(header) + len(payload))

    def receive_many(self, sub: Subscription, messages: Sequence[Delivery]) -> None:
        """See `Sink.receive_many`."""
        self.carry(sub.queue, sub.subject, messages)

    # ------------------------------------------------------------------ remote
    def carry(self, queue: bytes, to: bytes, messages: Sequence[Delivery]) -> None:
        """See `Remote.carry`."""
        # The batch is the caller's: slices are copies.
        size = begin = 0
        for position, (_, _, header, payload) in enumerate(messages):
            size += len(header) + len(payload)
            if size > HIGH_WATER:
                self._gather(Batch(to, queue, messages[begin : position + 1]), size, position + 1 - begin)
                size, begin = 0, position + 1
        if begin < len(messages):
            self._gather(Batch(to, queue, messages[begin:]), size, len(messages) - begin)

    def move(self, record: Routed | Batch, queue: bytes) -> None:
        """Take what another node meant for a queue group of this one, which has no member any more."""
        if type(record) is Routed:
            moved: Record = Routed(record.subject, record.reply, record.header, record.payload, [queue], True)
            self._gather(moved, len(record.header) + len(record.payload))
        elif type(record) is Batch:
            size = sum(len(header) + len(payload) for _, _, header, payload in record.messages)
            self._gather(Batch(record.to, queue, record.messages, True), size, len(record.messages))

    def relay(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """Hand a message to the local subscribers there (`Bus.subscribe`), as if it were published there."""
        self._gather(Routed(subject, reply, header, payload, relayed=True), len(header) + len(payload))

    def holds(self, to: bytes) -> bool:
        """See `Remote.holds`."""
        return to in self._held

    def on_release(self, to: bytes, callback: Callable[[], None]) -> None:
        """See `Remote.on_release`."""
        waiting = self._held.get(to)
        if waiting is None:
            callback()
        else:
            waiting.append(callback)

    # ------------------------------------------------------------------ out
    def tell(self, record: Record) -> None:
        """Send a record at the end of the turn, behind what was gathered before."""
        self._gather(record, 0, 0)

    def _gather(self, record: Record, size: int, messages: int = 1) -> None:
        if self._gone:
            return
        self._out.append(record)
        self.out_msgs += messages
        self.out_bytes += size
        self._gathered += size
        if self._clogged:
            self._hub.overrun = self
        if not self._dirty:
            self._dirty = True
            self._hub.dirty(self)
        if self._gathered > HIGH_WATER:
            self._write()

    def flush(self) -> None:
        """See `Flushable.flush`."""
        self._dirty = False
        self._write()

    def _write(self) -> None:
        if self._out and not self._gone:
            self._routes.tell_changes()
            self._unmarked += self._gathered
            if self._unmarked >= MARK_EVERY:
                self._unmarked = 0
                self._marks += 1
                self._out.append(Mark())
            # What is not sent is lost with its connection: the links end one whose queue is full.
            self._links.send(self.name, Channel.ROUTE, encode(self._out))
            if not self._clogged and self.congested:
                self._clogged = True
                self.on_drain(self._unclog)
        self._out = []
        self._gathered = 0

    def _unclog(self) -> None:
        self._clogged = False

    def took(self) -> None:
        """The node has handed on what came before a mark."""
        self._marks -= 1
        if self._marks < MAX_MARKS:
            self._go_on()

    def _go_on(self) -> None:
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            self.on_drain(callback)

    # ------------------------------------------------------------------ in
    def learn(self, changes: Sequence[tuple[bytes, bytes, int]]) -> None:
        """The node's subscribers have changed."""
        if self._gone:
            return  # handling what came before has cost the connection
        graph = self._hub.interest_graph
        for subject, queue, count in changes:
            key = subject, queue
            old = self.subscriptions.pop(key, None)
            if count > 0:
                weight = min(count, MAX_WEIGHT) if queue else 1
                if old is not None and old.weight == weight:
                    self.subscriptions[key] = old
                    continue
                sub = Subscription(self, subject, queue, b"")
                sub.remote = self
                sub.weight = weight
                self.subscriptions[key] = sub
                # First in, then out: whoever watches the subject sees it listened to throughout.
                graph.insert(sub)
            if old is not None:
                graph.remove(old)

    def hold(self, to: bytes, on: bool) -> None:
        """A receiver there has become too slow, or fast enough again."""
        if on:
            self._held.setdefault(to, [])
        else:
            for callback in self._held.pop(to, ()):
                callback()

    def leave(self) -> None:
        """The connection has ended: nobody there listens any more."""
        self._gone = True
        self._out = []
        self.backlog.clear()
        subscriptions, self.subscriptions = self.subscriptions, {}
        # Queue groups first: what is sent to a member that is gone might have reached another one.
        self._forget(sorted(subscriptions.values(), key=lambda sub: not sub.queue))
        for to in list(self._held):
            self.hold(to, False)
        self._go_on()

    def _forget(self, subs: Sequence[Subscription]) -> None:
        for sub in subs[:CHANGES_IN_A_RECORD]:
            self._hub.interest_graph.remove(sub)
        if len(subs) > CHANGES_IN_A_RECORD:
            self._hub.soon(lambda: self._forget(subs[CHANGES_IN_A_RECORD:]))


class Routes:
    """Routing between this node and all others.

    Args:
        hub: of this node; its interest graph is still empty.
        links: connections to the other nodes, none of them up yet.

    Attributes:
        nodes: the connected nodes by name.
    """

    def __init__(self, hub: Hub, links: Links) -> None:
        self.hub = hub
        self.links = links
        self.nodes: dict[str, RemoteNode] = {}
        self._mine: dict[_Key, int] = {}
        self._changed: set[_Key] = set()
        self._dirty = False
        self._holding: set[tuple[str, bytes]] = set()
        hub.interest_graph.observe(self._observed)
        links.receive(Channel.ROUTE, self._received)
        links.watch_links(self._link)

    # ------------------------------------------------------------------ interest of this node
    def _observed(self, sub: Subscription, joined: bool) -> None:
        if sub.local or sub.remote is not None:
            return
        key = sub.subject, sub.queue
        count = self._mine.get(key, 0) + (1 if joined else -1)
        assert count >= 0, f"more subscriptions of {key} left than came"
        if count:
            self._mine[key] = count
        else:
            del self._mine[key]
        # In no group only the first and the last one make a difference.
        if self.nodes and (sub.queue or count == joined):
            self._changed.add(key)
            if not self._dirty:
                self._dirty = True
                self.hub.dirty(self)

    def flush(self) -> None:
        """See `Flushable.flush`."""
        self._dirty = False
        self.tell_changes()

    def tell_changes(self) -> None:
        """Tell the other nodes now what has changed in this turn: before anything that may be answered from there."""
        if not self._changed:
            return
        changed, self._changed = self._changed, set()
        mine = self._mine
        for buffer in _told([(subject, queue, mine.get((subject, queue), 0)) for subject, queue in changed]):
            for name in list(self.nodes):  # one whose queue is full loses its connection meanwhile
                self.links.send(name, Channel.ROUTE, buffer)

    # ------------------------------------------------------------------ connections
    def _link(self, info: NodeInfo, up: bool) -> None:
        old = self.nodes.pop(info.name, None)
        if old is not None:
            old.leave()
            self._holding = {(name, to) for name, to in self._holding if name != info.name}
        if up:
            self.nodes[info.name] = RemoteNode(info.name, self)
            for buffer in _told([(subject, queue, count) for (subject, queue), count in self._mine.items()]):
                self.links.send(info.name, Channel.ROUTE, buffer)

    def _received(self, name: str, payload: bytes) -> None:
        """Raises `msgspec.DecodeError`; then the connection begins anew, since a change of interest may be lost."""
        node = self.nodes.get(name)
        if node is None:
            return
        records = decode(payload)
        if node.backlog:
            node.backlog.extend(records)
        else:
            self._take(node, records)

    def _take(self, node: RemoteNode, records: Sequence[Record]) -> None:
        arrived = self.hub.arrived
        for position, record in enumerate(records):
            if type(record) is Routed:
                node.in_msgs += 1
                node.in_bytes += len(record.header) + len(record.payload)
                left = arrived(record, node.client, node)
                if left:
                    self._unserved(node, record, left)
            elif type(record) is Batch:
                self._deliver(node, record)
            elif type(record) is Hold:
                node.hold(record.to, record.on)
            elif type(record) is Mark:
                node.tell(Took())
            elif type(record) is Took:
                node.took()
            elif type(record) is Unheard:
                self.hub.unheard(record.subject, record.reply)
            elif type(record) is Interest:
                node.learn(record.changes)
                if len(record.changes) >= CHANGES_IN_A_RECORD:
                    # Never empty, so that whatever comes by then queues up behind it.
                    node.backlog.extend([*records[position + 1 :], Interest([])])
                    self.hub.soon(lambda: self._go_on(node))
                    return

    def _go_on(self, node: RemoteNode) -> None:
        records = list(node.backlog)
        node.backlog.clear()
        self._take(node, records)

    def _deliver(self, node: RemoteNode, batch: Batch) -> None:
        node.in_msgs += len(batch.messages)
        node.in_bytes += sum(len(header) + len(payload) for _, _, header, payload in batch.messages)
        if not self.hub.delivered(batch):
            if batch.queue and not batch.moved:
                self._move(batch, batch.to, [batch.queue])
            return
        slow = self.hub.slow_receiver(batch.to)
        if slow is not None and (node.name, batch.to) not in self._holding:
            self._holding.add((node.name, batch.to))
            node.tell(Hold(batch.to, True))
            self._release_later(node, batch.to, slow)

    def _release_later(self, node: RemoteNode, to: bytes, slow: Sink) -> None:
        """Let the node go on with `to` once no receiver here is congested."""

        def drained() -> None:
            if self.nodes.get(node.name) is not node:
                return
            other = self.hub.slow_receiver(to)
            if other is not None:
                self._release_later(node, to, other)
            else:
                self._holding.discard((node.name, to))
                node.tell(Hold(to, False))

        slow.on_drain(drained)

    def _unserved(self, node: RemoteNode, message: Routed, left: Sequence[bytes]) -> None:
        """Whom a message was meant for is not here any more, at least not all of them."""
        moved = not message.moved and self._move(message, message.subject, [queue for queue in left if queue])
        meant = 1 if message.groups is None else len(message.groups)
        if message.reply and not moved and len(left) == meant:
            # Better than a requester that waits in vain; a stream whose leader has just changed is asked again at once.
            node.tell(Unheard(message.subject, message.reply))

    def _move(self, record: Routed | Batch, subject: bytes, queues: Sequence[bytes]) -> bool:
        """Queue groups that have no member here any more: one elsewhere gets the message. False: there was none."""
        moved = False
        for queue in queues:
            sub = self.hub.elsewhere(subject, queue)
            if sub is not None and isinstance(sub.remote, RemoteNode):
                sub.remote.move(record, queue)
                moved = True
        return moved


def _told(changes: Sequence[tuple[bytes, bytes, int]]) -> list[bytes]:
    """Changes of interest as buffers."""
    return [
        encode([Interest(list(changes[at : at + CHANGES_IN_A_RECORD]))])
        for at in range(0, len(changes), CHANGES_IN_A_RECORD)
    ]
