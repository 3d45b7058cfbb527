"""Another node of the cluster, as this one sees it.

Belongs here: sending to a connected node (gathered over a turn, in order), its back-pressure, and the interest of its
subscribers. Records from it are handled in routes.py.

A node is one connection and one queue for all accounts. In the interest graph of each account it has its own sink,
`RemoteAccount`, so no message is matched against the interest of another account.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from lakestream.net.hub import Hub
from lakestream.net.interest.subscription import MAX_WEIGHT, Remote, SingleSink, Subscription
from lakestream.net.outbox import HIGH_WATER, Outbox
from lakestream.net.peers.calls import Handler
from lakestream.net.peers.peers import RoutePeers
from lakestream.net.turn import Turn
from lakestream.ports import ClientInfo, ListedMessages, MessageBlock, Messages, Single
from lakestream.protocol import frames, sql
from lakestream.protocol.accounts import GLOBAL_ACCOUNT
from lakestream.protocol.deliveries import FirstDeliveries
from lakestream.protocol.peer_wire import NodeInfo
from lakestream.protocol.publishes import PubAcks, Publishes
from lakestream.protocol.route_wire import FlowMark, Record, RouteBatch, Routed, RoutedRun, StoredBatch, Within, encode
from lakestream.raft.group.ports import Channel

MARK_EVERY = 1 << 20
"""Bytes to a node (1 MiB) after which a `FlowMark` asks it to acknowledge that it handed them on."""

MAX_MARKS = 8
"""Unacknowledged marks that count as congestion: at most some 8 MiB are on their way to a node, whatever the sockets
take, so that a node that sends `Hold` gets no more than that for its slow client."""

MAX_BACKLOG_BYTES = 4 << 20
"""Bytes from a node (4 MiB) that wait for their turn; above it nothing more is read from the node until all are
handled."""

FAR = 1 << 32
"""Added to the number of a queue group's members that are all behind leaf nodes of the node."""

_numbers = itertools.count(1)


class _Queries(SingleSink):
    """The sink of another node's service for SQL, which gets requests with those who ask: it knows the node alone."""

    def __init__(self, account: RemoteAccount) -> None:
        self._account = account

    def receive(self, sub: Subscription, message: Single, client: ClientInfo) -> None:
        header = sql.stamped(message.header, client)
        request = Single(message.subject, message.reply, header, message.payload)
        self._account.take(sub, request, 0, 1, client)


class RemoteAccount(Remote):
    """One account of a connected node: the sink of its subscribers there.

    Attributes:
        id, name: of the node's connection and of the node, as traces show them.
        account: the account's name.
        node: the node.
        hub: of the account on this node.
        client: the sender of messages from there.
        subscriptions: the interest there.
        holding: subjects for which that node was told to wait (`Hold`).
    """

    echo = columnar = True

    def __init__(self, node: RemoteNode, hub: Hub) -> None:
        self.id, self.name = node.id, node.name
        self.account = hub.account
        self.node = node
        self.hub = hub
        self.client = ClientInfo(id=0, host="", account=hub.account, name=node.name, kind="Router")
        self.subscriptions: dict[tuple[bytes, bytes], Subscription] = {}
        self.holding: set[bytes] = set()
        self._held: dict[bytes, list[Callable[[], None]]] = {}
        self._queries = _Queries(self)

    # ------------------------------------------------------------------ sink
    @property
    def congested(self) -> bool:
        return self.node.congested

    def on_drain(self, callback: Callable[[], None]) -> None:
        self.node.on_drain(callback)

    def take(self, sub: Subscription, messages: Messages, begin: int, end: int, client: ClientInfo) -> int:
        node, queue = self.node, sub.queue
        if type(messages) is Single:
            self._route(messages, queue)
            return end
        if node.runs and type(messages) is Publishes and (node.headed or not messages.heads):
            record = RoutedRun(messages.commands(begin, end), [queue] if queue else None)
            node.gather(self, record, messages.bytes_of(begin, end), end - begin)
            return end
        if node.runs and type(messages) is PubAcks:
            commands, number, size, end = messages.frames(b"", begin, end)
            node.gather(self, RoutedRun(commands), size, number)
            return end
        if messages.to and isinstance(messages, MessageBlock):
            self._carry(queue, messages if end - begin == len(messages) else messages[begin:end])
            return end
        end = messages.stop(begin, end)
        for each in messages.messages(begin, end):
            self._route(each, queue)
        return end

    def _route(self, message: Single, queue: bytes) -> None:
        """Send a message to the subscribers of its subject there, in a queue group or (b"") in none."""
        header, payload = message.header, message.payload
        size = len(header) + len(payload)
        if not queue:
            self.node.gather(self, Routed(message.subject, message.reply, header, payload), size)
            return
        last = self.node.last(self)
        # The same message for one more of this node's queue groups: one copy carries all of them. (Two equal messages
        # may meet here as well; each group still gets each of them once.)
        if (
            type(last) is Routed
            and last.payload is payload
            and last.subject is message.subject
            and last.reply is message.reply
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
        self.node.gather(self, Routed(message.subject, message.reply, header, payload, [queue]), size)

    def no_responders(self, sub: Subscription, subject: bytes, reply: bytes) -> None:
        """Send a 503 to the requester there: the subscriber of its request here declined it."""
        self._carry(b"", ListedMessages((Single(reply, header=frames.no_responders(subject)),), to=reply))

    def _carry(self, queue: bytes, block: MessageBlock) -> None:
        """Send a batch for the subscribers of one subject, in a queue group or (b"") in none."""
        if self.node.stored and isinstance(block, FirstDeliveries):
            for part in block.parts(HIGH_WATER):
                size = part.content()
                self.node.gather(self, StoredBatch(block.to, queue, size, *part.columns()), size, len(part))
            return
        messages = list(block)  # the batch belongs to the caller
        size = begin = 0
        for position, each in enumerate(messages):
            size += each.content_bytes
            if size > HIGH_WATER:
                batch = RouteBatch(block.to, queue, messages[begin : position + 1])
                self.node.gather(self, batch, size, position + 1 - begin)
                size, begin = 0, position + 1
        if begin < len(messages):
            self.node.gather(self, RouteBatch(block.to, queue, messages[begin:]), size, len(messages) - begin)

    # ------------------------------------------------------------------ remote
    def move(self, messages: Single | MessageBlock, queue: bytes) -> None:
        """Take messages of another node for a queue group there that lost its last member here."""
        if type(messages) is Single:
            moved = Routed(messages.subject, messages.reply, messages.header, messages.payload, [queue], True)
            self.node.gather(self, moved, messages.content_bytes)
        elif isinstance(messages, MessageBlock):
            listed = list(messages)
            size = sum(each.content_bytes for each in listed)
            self.node.gather(self, RouteBatch(messages.to, queue, listed, True), size, len(listed))

    def relay(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """Hand a message to the local subscribers there (`Bus.subscribe`), as if it were published there."""
        record = Routed(subject, reply, header, payload, relayed=True)
        self.node.gather(self, record, len(header) + len(payload))

    def tell(self, record: Record) -> None:
        """Send a record of this account at the end of the turn, behind what was gathered before."""
        self.node.gather(self, record, 0, 0)

    def holds(self, to: bytes) -> bool:
        return to in self._held

    def on_release(self, to: bytes, callback: Callable[[], None]) -> None:
        waiting = self._held.get(to)
        if waiting is None:
            callback()
        else:
            waiting.append(callback)

    # ------------------------------------------------------------------ in
    def learn(self, changes: Sequence[tuple[bytes, bytes, int]]) -> None:
        """Apply changes of the node's interest."""
        if self.node.gone:
            return  # an earlier record has ended the connection
        # Not by `Hub.join`: imports for these subscribers are handled by their own node.
        graph = self.hub.interest_graph
        for subject, queue, count in changes:
            key = subject, queue
            old = self.subscriptions.pop(key, None)
            if count > 0:
                far, count = divmod(count, FAR)
                weight = min(count, MAX_WEIGHT) if queue else 1
                if old is not None and (old.far, old.weight) == (bool(far), weight):
                    self.subscriptions[key] = old
                    continue
                is_service = queue and subject.startswith(sql.QUERY.encode())
                sub = Subscription(self._queries if is_service else self, subject, queue, b"")
                sub.remote, sub.elsewhere = self, True
                sub.far, sub.weight = bool(far), weight
                self.subscriptions[key] = sub
                # Insert before removing: watchers must not see a gap in the interest.
                graph.insert(sub)
            if old is not None:
                graph.remove(old)

    def hold(self, to: bytes, on: bool) -> None:
        """Note that a receiver there is congested (`on`), or no longer."""
        if on:
            self._held.setdefault(to, [])
        else:
            for callback in self._held.pop(to, ()):
                callback()

    def release(self) -> None:
        """End all holds: the connection has ended."""
        for to in list(self._held):
            self.hold(to, False)


class RemoteNode(Outbox[Record]):
    """A connected node, for all accounts.

    Args:
        info: its `NodeInfo`.
        links: the connections to other nodes.
        turn: of this node.
        hub: returns the hub of an account on this node.
        announce: sends the changes of interest of this turn, which precede every message.

    Attributes:
        id: of the connection, as traces show it.
        name: of the node.
        accounts: it understands records of other accounts than the default one.
        runs: it understands runs of publishes; `headed`: those with header blocks, too; `stored`: stored messages in
            columns.
        default: its default account.
        gone: the connection has ended.
        taking: handles what came from the node; None: all of it is handled.
        backlog: buffers from the node that wait behind.
        in_msgs, in_bytes, out_msgs, out_bytes: messages and their headers and payloads, from and to the node.
    """

    def __init__(
        self, info: NodeInfo, links: RoutePeers, turn: Turn, hub: Callable[[str], Hub], announce: Callable[[], None]
    ) -> None:
        super().__init__(turn.dirty)
        self.id = next(_numbers)
        self.name = info.name
        self.accounts, self.runs, self.headed, self.stored = info.accounts, info.runs, info.headed, info.stored
        self.in_msgs = self.in_bytes = self.out_msgs = self.out_bytes = 0
        self.gone = False
        self.taking: Iterator[int] | None = None
        self.backlog: deque[tuple[bytes, Handler | None]] = deque()
        self._backlog_bytes = 0
        self._links, self._turn, self._hub, self._announce = links, turn, hub, announce
        self.default = RemoteAccount(self, hub(GLOBAL_ACCOUNT))
        self._parts = {self.default.account: self.default}
        self._within = self.default
        self._clogged = False
        self._unmarked = self._marks = 0
        self._waiting: list[Callable[[], None]] = []

    def of(self, account: str) -> RemoteAccount:
        """Return an account of the node, also one that is not configured here: a reload may still add it."""
        part = self._parts.get(account)
        if part is None:
            part = self._parts[account] = RemoteAccount(self, self._hub(account))
        return part

    @property
    def subscriptions(self) -> list[tuple[str, Subscription]]:
        """Return the interest of the node, with the account of each subscription."""
        return [(part.account, sub) for part in self._parts.values() for sub in part.subscriptions.values()]

    # ------------------------------------------------------------------ incoming
    def wait(self, buffer: bytes, handler: Handler | None = None) -> bool:
        """Keep a buffer for later; return True if too many bytes wait. `handler`: of another channel than `ROUTE`."""
        self.backlog.append((buffer, handler))
        self._backlog_bytes += len(buffer)
        return self._backlog_bytes > MAX_BACKLOG_BYTES

    def next(self) -> tuple[bytes, Handler | None]:
        """Return the next buffer that waits."""
        waiting = self.backlog.popleft()
        self._backlog_bytes -= len(waiting[0])
        return waiting

    # ------------------------------------------------------------------ outgoing
    @property
    def congested(self) -> bool:
        return not self.gone and (self._marks >= MAX_MARKS or self._links.congested(self.name))

    def on_drain(self, callback: Callable[[], None]) -> None:
        if not self.congested:
            callback()
        elif self._marks >= MAX_MARKS:
            self._waiting.append(callback)
        else:
            self._links.on_drain(self.name, lambda: self.on_drain(callback))

    def last(self, part: RemoteAccount) -> Record | None:
        """Return the record gathered last, if it is of this account."""
        return self._out[-1] if self._out and self._within is part else None

    def gather(self, part: RemoteAccount, record: Record, size: int, messages: int = 1) -> None:
        """Send a record of an account, at the end of the turn or before, if much is gathered by then."""
        if self.gone:
            return
        if part is not self._within:
            if not self.accounts and part is not self.default:
                return  # a version without accounts
            self._within = part
            self._out.append(Within(part.account))
        self._out.append(record)
        self.out_msgs += messages
        self.out_bytes += size
        if self._clogged:
            self._turn.overrun = part
        self.count(size)

    def tell(self, record: Record) -> None:
        """Send a record of no account in particular."""
        self.gather(self._within, record, 0, 0)

    def write_gathered(self) -> None:
        if self._out and not self.gone:
            self._announce()
            self._unmarked += self._gathered
            if self._unmarked >= MARK_EVERY:
                self._unmarked = 0
                self._marks += 1
                self._out.append(FlowMark())
            # A full queue ends the connection, so nothing is lost unnoticed.
            self._links.send(self.name, Channel.ROUTE, encode(self._out))
            if not self._clogged and self.congested:
                self._clogged = True
                self.on_drain(self._unclog)
        self.taken()
        self._within = self.default  # every buffer begins there

    def _unclog(self) -> None:
        self._clogged = False

    def took(self) -> None:
        """Note that the node acknowledged a mark."""
        self._marks -= 1
        if self._marks < MAX_MARKS:
            self._go_on()

    def _go_on(self) -> None:
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            self.on_drain(callback)

    # ------------------------------------------------------------------ the end
    def leave(self) -> None:
        """Remove the interest of a lost node."""
        self.gone = True
        self._out = []
        self.backlog.clear()
        subscriptions = [(part.hub, sub) for part in self._parts.values() for sub in part.subscriptions.values()]
        for part in self._parts.values():
            part.subscriptions = {}
        # Queue groups first: messages to a lost member could reach another one.
        subscriptions.sort(key=lambda one: not one[1].queue)
        self._turn.run_apart(self._forget(subscriptions))
        for part in self._parts.values():
            part.release()
        self._go_on()

    @staticmethod
    def _forget(subscriptions: list[tuple[Hub, Subscription]]) -> Iterator[None]:
        for hub, sub in subscriptions:
            hub.interest_graph.remove(sub)
            yield
