"""Another node of the cluster, as this one sees it.

Belongs here: what goes to a connected node (gathered over a turn, in the order in which it was said), whether the way
to it is free, and what its subscribers listen to. Who gets what from there is routes.py's.

A node is one connection and one queue, whatever the account. In the interest graph of each account stands a part of it
of its own, `RemoteAccount`: so no message is ever matched against what another account listens to.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from lakestream.config.account_options import GLOBAL_ACCOUNT
from lakestream.net.hub import Hub, Remote
from lakestream.net.interest.interest import Subscription
from lakestream.ports import ClientInfo, Delivery
from lakestream.protocol.peer_wire import NodeInfo
from lakestream.protocol.route_wire import Batch, Mark, Record, Routed, Within, encode
from lakestream.raft.group.ports import Channel

if TYPE_CHECKING:
    from lakestream.net.peers.routes import Routes

HIGH_WATER = 1 << 20
"""Bytes for one node (1 MiB) that are gathered at most; more leave before the end of the turn."""

MARK_EVERY = 1 << 20
"""Bytes to a node (1 MiB) after which it is asked to say when it has handed them on."""

MAX_MARKS = 8
"""So many of these without an answer count as congestion: no more than some 8 MiB are on their way to a node, however
much the sockets would take, so that a node that says `Hold` gets no more than that for its slow client."""

MAX_WEIGHT = 1000
"""Members of a queue group that one node counts for. A node with more of them gets no more messages than that."""

FORGOTTEN_IN_A_TURN = 1000
"""Subscriptions of a node that is gone that are forgotten in one turn (about 10 ms): heartbeats go on meanwhile."""

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


class RemoteAccount(Remote):
    """One account of a connected node, as a receiver of messages for its subscribers there.

    Attributes:
        id, name: of the node's connection and of the node, as traces of messages show them.
        account: its name.
        node: the node.
        hub: of the account on this node.
        client: the origin of messages from there.
        subscriptions: what the subscribers there listen to.
        holding: the subjects for which that node was told to wait (`Hold`).
    """

    echo = True

    def __init__(self, node: RemoteNode, hub: Hub) -> None:
        self.id, self.name = node.id, node.name
        self.account = hub.account
        self.node = node
        self.hub = hub
        self.client = ClientInfo(id=0, host="", account=hub.account, name=node.name, kind="Router")
        self.subscriptions: dict[tuple[bytes, bytes], Subscription] = {}
        self.holding: set[bytes] = set()
        self._held: dict[bytes, list[Callable[[], None]]] = {}

    # ------------------------------------------------------------------ sink
    @property
    def congested(self) -> bool:
        """See `Sink.congested`."""
        return self.node.congested

    def on_drain(self, callback: Callable[[], None]) -> None:
        """See `Sink.on_drain`."""
        self.node.on_drain(callback)

    def receive(
        self, sub: Subscription, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo
    ) -> None:
        """See `Sink.receive`."""
        queue, node = sub.queue, self.node
        if not queue:
            node.gather(self, Routed(subject, reply, header, payload), len(header) + len(payload))
            return
        last = node.last(self)
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
        node.gather(self, Routed(subject, reply, header, payload, [queue]), len(header) + len(payload))

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
                self.node.gather(self, Batch(to, queue, messages[begin : position + 1]), size, position + 1 - begin)
                size, begin = 0, position + 1
        if begin < len(messages):
            self.node.gather(self, Batch(to, queue, messages[begin:]), size, len(messages) - begin)

    def move(self, record: Routed | Batch, queue: bytes) -> None:
        """Take what another node meant for a queue group of this one, which has no member any more."""
        if type(record) is Routed:
            moved: Record = Routed(record.subject, record.reply, record.header, record.payload, [queue], True)
            self.node.gather(self, moved, len(record.header) + len(record.payload))
        elif type(record) is Batch:
            size = sum(len(header) + len(payload) for _, _, header, payload in record.messages)
            self.node.gather(self, Batch(record.to, queue, record.messages, True), size, len(record.messages))

    def relay(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """Hand a message to the local subscribers there (`Bus.subscribe`), as if it were published there."""
        record = Routed(subject, reply, header, payload, relayed=True)
        self.node.gather(self, record, len(header) + len(payload))

    def tell(self, record: Record) -> None:
        """Send a record of this account at the end of the turn, behind what was gathered before."""
        self.node.gather(self, record, 0, 0)

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

    # ------------------------------------------------------------------ in
    def learn(self, changes: Sequence[tuple[bytes, bytes, int]]) -> None:
        """The node's subscribers have changed."""
        if self.node.gone:
            return  # handling what came before has cost the connection
        # Not by `Hub.join`: what another account's messages are to these subscribers, their own node looks after.
        graph = self.hub.interest_graph
        for subject, queue, count in changes:
            key = subject, queue
            old = self.subscriptions.pop(key, None)
            if count > 0:
                weight = min(count, MAX_WEIGHT) if queue else 1
                if old is not None and old.weight == weight:
                    self.subscriptions[key] = old
                    continue
                sub = Subscription(self, subject, queue, b"")
                sub.remote = sub.carrier = self
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

    def release(self) -> None:
        """The connection has ended: nobody there is slow any more."""
        for to in list(self._held):
            self.hold(to, False)


class RemoteNode:
    """A connected node: the way to it, for all accounts.

    Args:
        info: what the node says of itself.
        routes: of this node.

    Attributes:
        id: of the connection, as traces of messages show it.
        name: of the node.
        accounts: it can read what belongs to another account than the default one.
        default: the default account there.
        gone: the connection has ended.
        backlog: what came from the node and waits for its turn.
        in_msgs, in_bytes, out_msgs, out_bytes: messages and their headers and payloads, from and to the node.
    """

    def __init__(self, info: NodeInfo, routes: Routes) -> None:
        self.id = next(_numbers)
        self.name = info.name
        self.accounts = info.accounts
        self.in_msgs = self.in_bytes = self.out_msgs = self.out_bytes = 0
        self.gone = False
        self.backlog: deque[Record] = deque()
        self._routes = routes
        self._links = routes.links
        self._turn = routes.turn
        self.default = RemoteAccount(self, routes.hub(GLOBAL_ACCOUNT))
        self._parts = {self.default.account: self.default}
        self._out: list[Record] = []
        self._within = self.default
        self._gathered = 0
        self._dirty = False
        self._clogged = False
        self._unmarked = self._marks = 0
        self._waiting: list[Callable[[], None]] = []

    def of(self, account: str) -> RemoteAccount:
        """An account of the node, also one of which this node has not heard yet: a reload may still bring it."""
        part = self._parts.get(account)
        if part is None:
            part = self._parts[account] = RemoteAccount(self, self._routes.hub(account))
        return part

    @property
    def subscriptions(self) -> list[tuple[str, Subscription]]:
        """What the subscribers there listen to, with the account of each."""
        return [(part.account, sub) for part in self._parts.values() for sub in part.subscriptions.values()]

    # ------------------------------------------------------------------ the way to it
    @property
    def congested(self) -> bool:
        """See `Sink.congested`."""
        return not self.gone and (self._marks >= MAX_MARKS or self._links.congested(self.name))

    def on_drain(self, callback: Callable[[], None]) -> None:
        """See `Sink.on_drain`."""
        if not self.congested:
            callback()
        elif self._marks >= MAX_MARKS:
            self._waiting.append(callback)
        else:
            self._links.on_drain(self.name, lambda: self.on_drain(callback))

    def last(self, part: RemoteAccount) -> Record | None:
        """The record gathered last, if it is of this account."""
        return self._out[-1] if self._out and self._within is part else None

    def gather(self, part: RemoteAccount, record: Record, size: int, messages: int = 1) -> None:
        """Send a record of an account, at the end of the turn or before, if much is gathered by then."""
        if self.gone:
            return
        if part is not self._within:
            if not self.accounts and part is not self.default:
                return  # it knows of one account only
            self._within = part
            self._out.append(Within(part.account))
        self._out.append(record)
        self.out_msgs += messages
        self.out_bytes += size
        self._gathered += size
        if self._clogged:
            self._turn.overrun = part
        if not self._dirty:
            self._dirty = True
            self._turn.dirty(self)
        if self._gathered > HIGH_WATER:
            self._write()

    def tell(self, record: Record) -> None:
        """Send a record of no account in particular."""
        self.gather(self._within, record, 0, 0)

    def flush(self) -> None:
        """See `Flushable.flush`. May be called before the turn ends, too."""
        self._dirty = False
        self._write()

    def _write(self) -> None:
        if self._out and not self.gone:
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
        self._within = self.default  # every buffer begins there
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

    # ------------------------------------------------------------------ the end
    def leave(self) -> None:
        """The connection has ended: nobody there listens any more."""
        self.gone = True
        self._out = []
        self.backlog.clear()
        subscriptions = [(part.hub, sub) for part in self._parts.values() for sub in part.subscriptions.values()]
        for part in self._parts.values():
            part.subscriptions = {}
        # Queue groups first: what is sent to a member that is gone might have reached another one.
        self._forget(sorted(subscriptions, key=lambda one: not one[1].queue))
        for part in self._parts.values():
            part.release()
        self._go_on()

    def _forget(self, subscriptions: Sequence[tuple[Hub, Subscription]]) -> None:
        for hub, sub in subscriptions[:FORGOTTEN_IN_A_TURN]:
            hub.interest_graph.remove(sub)
        if len(subscriptions) > FORGOTTEN_IN_A_TURN:
            self._turn.soon(lambda: self._forget(subscriptions[FORGOTTEN_IN_A_TURN:]))
