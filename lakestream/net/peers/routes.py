"""Interest and messages between the nodes of the cluster.

Belongs here: announcing the interest of this node, handling the records of other nodes, and what happens when a node
connects or is lost. Sending to a node is remote_node.py's. Every node is connected to every other, so a message from
one node is never forwarded to another; the only exception is a message for a queue group that has just lost its last
member here.

Back-pressure: a node is congested while its connection is, and while it has not acknowledged (`Took`) what was sent
before. Publishers to a congested node are not read from until it drains; JetStream holds its deliveries, also while the
node reports that the receiver itself is congested (`Hold`).

Every subject belongs to an account (`Within`). Nothing crosses accounts here: imports are subscriptions in the
exporting account, on the node of the importing client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from lakestream.net.accounts.accounts import Accounts
from lakestream.net.hub import Hub
from lakestream.net.interest.subscription import MAX_WEIGHT, Sink, Subscription
from lakestream.net.peers.calls import Handler
from lakestream.net.peers.peers import RoutePeers
from lakestream.net.peers.remote_node import FAR, RemoteAccount, RemoteNode
from lakestream.net.turn import Turn
from lakestream.protocol.accounts import GLOBAL_ACCOUNT
from lakestream.protocol.client import TRACE_DESTINATION
from lakestream.protocol.commands import Single
from lakestream.protocol.deliveries import FirstDeliveries
from lakestream.protocol.messages import ListedMessages, MessageBlock
from lakestream.protocol.peer_wire import NodeInfo
from lakestream.protocol.publishes import STREAM_MARK, Apart, run_of
from lakestream.protocol.route_wire import (
    FlowMark,
    Hold,
    NoResponders,
    Record,
    RouteBatch,
    Routed,
    RoutedRun,
    RouteInterest,
    StoredBatch,
    Took,
    Within,
    decode,
    encode,
)
from lakestream.raft.group.ports import Channel

CHANGES_IN_A_BUFFER = 1000
"""Subscriptions announced in one buffer, and taken in from another node in one turn (about 10 ms), so that heartbeats
go on while a node with very many clients connects."""

FEW_CHANGES = 50
"""Changes of interest that are taken in between two looks at the time (some 0.5 ms)."""

FEW = 32
"""Single messages from a node that are handled between two looks at the time (some 0.1 ms)."""

APART = Apart(mark=STREAM_MARK, header=TRACE_DESTINATION)
"""Messages that no run from another node may have: streams look at each of them."""

Change = tuple[bytes, bytes, int]


class _Account:
    """The interest of one account, as announced to the other nodes."""

    def __init__(self, name: str, announcer: InterestAnnouncer) -> None:
        self.name = name
        self._announcer = announcer
        self._counts: dict[tuple[bytes, bytes], int] = {}
        self._changed: dict[tuple[bytes, bytes], None] = {}  # in the order of the changes

    def observed(self, sub: Subscription, joined: bool) -> None:
        if sub.local or sub.remote is not None:
            return
        key = sub.subject, sub.queue
        number = sub.weight * (FAR if sub.queue and sub.elsewhere else 1)
        count = self._counts.get(key, 0) + (number if joined else -number)
        assert count >= 0, f"more subscriptions of {key} left than came"
        if count:
            self._counts[key] = count
        else:
            del self._counts[key]
        # Outside of queue groups only the first and the last subscription matter.
        if (sub.queue or count == joined) and self._announcer.connected:
            if not self._changed:
                self._announcer.changed(self)
            self._changed[key] = None

    def all(self) -> list[Change]:
        return [(subject, queue, _announced(count)) for (subject, queue), count in self._counts.items()]

    def changes(self) -> list[Change]:
        """Return the changes since the last call."""
        changed, self._changed = self._changed, {}
        return [(subject, queue, _announced(self._counts.get((subject, queue), 0))) for subject, queue in changed]


def _announced(count: int) -> int:
    """Return the number that other nodes are told: members behind leaf nodes count only where there are no others."""
    far, near = divmod(count, FAR)
    return FAR + min(far, MAX_WEIGHT) if far and not near else near


class InterestAnnouncer:
    """Announces the interest of this node to the connected nodes.

    Announced are the subscriptions of clients and streams by (subject, queue group) with their number: all when a
    connection is made, changes afterwards, gathered over a turn of the event loop. Changes leave before any message or
    call of their turn, so a responder on another node knows the inbox by then.

    Args:
        nodes: the connected nodes by name; updated by the caller.
        links: the connections to them.
        turn: of this node.
    """

    def __init__(self, nodes: Mapping[str, RemoteNode], links: RoutePeers, turn: Turn) -> None:
        self._nodes, self._links, self._turn = nodes, links, turn
        self._accounts: list[_Account] = []
        self._changed: list[_Account] = []
        self._dirty = False

    def follow(self, hub: Hub) -> None:
        """Announce an account from now on. Its interest graph must be empty."""
        account = _Account(hub.account, self)
        self._accounts.append(account)
        hub.interest_graph.observe(account.observed)

    @property
    def connected(self) -> bool:
        """Return True if any node is connected."""
        return bool(self._nodes)

    def changed(self, account: _Account) -> None:
        """Note that an account has changes to announce."""
        self._changed.append(account)
        if not self._dirty:
            self._dirty = True
            self._turn.dirty(self)

    def flush(self) -> None:
        self._dirty = False
        self.announce_changes()

    def announce_changes(self) -> None:
        """Send the changes of this turn to the other nodes now."""
        if not self._changed:
            return
        changed, self._changed = self._changed, []
        announced = [(account.name, account.changes()) for account in changed]
        everything = buffers(announced)
        # Nodes of versions without accounts cannot read records of other accounts.
        without = everything
        if not all(node.accounts for node in self._nodes.values()):
            without = buffers((name, changes) for name, changes in announced if name == GLOBAL_ACCOUNT)
        for name, node in list(self._nodes.items()):
            for buffer in everything if node.accounts else without:
                # A node whose queue is full loses its connection meanwhile; then this sends nothing.
                self._links.send(name, Channel.ROUTE, buffer)

    def announce_all(self, node: RemoteNode) -> None:
        """Send the whole interest to a node that has just connected."""
        announced = [(one.name, one.all()) for one in self._accounts if node.accounts or one.name == GLOBAL_ACCOUNT]
        for buffer in buffers(announced):
            self._links.send(node.name, Channel.ROUTE, buffer)


def buffers(announced: Iterable[tuple[str, Sequence[Change]]]) -> list[bytes]:
    """Return the interest of accounts as buffers; accounts with few changes share one."""
    made: list[bytes] = []
    records: list[Record] = []
    within, room = GLOBAL_ACCOUNT, CHANGES_IN_A_BUFFER
    for account, changes in announced:
        for at in range(0, len(changes), CHANGES_IN_A_BUFFER):
            some = list(changes[at : at + CHANGES_IN_A_BUFFER])
            if len(some) > room:
                made.append(encode(records))
                records, within, room = [], GLOBAL_ACCOUNT, CHANGES_IN_A_BUFFER
            if account != within:
                within = account
                records.append(Within(account))
            records.append(RouteInterest(some))
            room -= len(some)
    return [*made, encode(records)] if records else made


class Routes:
    """Routing between this node and all others.

    Args:
        accounts: of this node; without clients so far.
        links: connections to the other nodes, none of them up yet.

    Attributes:
        nodes: the connected nodes by name.
    """

    def __init__(self, accounts: Accounts, links: RoutePeers) -> None:
        self._links = links
        self.nodes: dict[str, RemoteNode] = {}
        self._turn = accounts.default.hub.turn
        self._accounts = accounts
        self._log = accounts.default.hub.log
        self._warned: set[str] = set()
        self._announcer = InterestAnnouncer(self.nodes, links, self._turn)
        self.announce_changes = self._announcer.announce_changes
        accounts.watch(lambda account: self._announcer.follow(account.hub))
        links.receive(Channel.ROUTE, self._received)
        links.watch_links(self._link)

    def catch_up(self, name: str) -> None:
        """Send what is gathered for a node in this turn: calls must not overtake it."""
        self.announce_changes()
        node = self.nodes.get(name)
        if node is not None:
            node.flush()

    def _hub(self, account: str) -> Hub:
        return self._accounts.of(account).hub

    # ------------------------------------------------------------------ connections
    def _link(self, info: NodeInfo, up: bool) -> None:
        old = self.nodes.pop(info.name, None)
        if old is not None:
            old.leave()
        if up:
            node = RemoteNode(info, self._links, self._turn, self._hub, self.announce_changes)
            self.nodes[info.name] = node
            self._announcer.announce_all(node)
            if not node.accounts and not self._accounts.alone and info.name not in self._warned:
                self._warned.add(info.name)
                self._log.warn(
                    f"{info.name} runs a version ({info.version}) that knows no accounts: its clients and those of "
                    f"this node share account {GLOBAL_ACCOUNT} only; upgrade it"
                )

    def _received(self, name: str, payload: bytes) -> None:
        """Handle a buffer. Raises `msgspec.DecodeError` or BrokenRunError: the connection ends, as a change of interest
        may be lost."""
        node = self.nodes.get(name)
        if node is None:
            return
        if node.taking is None:
            self._take(node, self._taken(node, payload))
        elif node.wait(payload):
            self._links.reads(name, False)

    def behind(self, name: str, payload: bytes, handler: Handler) -> None:
        """Handle a buffer of another channel behind those that came from the node before."""
        node = self.nodes.get(name)
        if node is None or node.taking is None:
            handler(name, payload)
        elif node.wait(payload, handler):
            self._links.reads(name, False)

    def _take(self, node: RemoteNode, taking: Iterator[int]) -> None:
        """Handle what came from a node until its time is over: each node may speak for thousands of clients. Raft's
        messages do not wait for the rest."""
        learnt = 0
        for changes in taking:
            learnt += changes
            if learnt >= CHANGES_IN_A_BUFFER or self._turn.is_over_for_nodes():
                node.taking = taking
                self._turn.soon(lambda: self._go_on(node))
                return

    def _taken(self, node: RemoteNode, payload: bytes) -> Iterator[int]:
        """Handle a buffer and those that wait behind it. Yield where others may have their turn: the number of changes
        of interest since the last time."""
        yield from self._each(node, decode(payload))
        while node.backlog:
            payload, handler = node.next()
            if handler is None:
                yield from self._each(node, decode(payload))
            else:
                handler(node.name, payload)
                yield 0

    def _each(self, node: RemoteNode, records: Sequence[Record]) -> Iterator[int]:
        part = node.default
        arrived = part.hub.arrived
        for position, record in enumerate(records, 1):
            if type(record) is Routed:
                node.in_msgs += 1
                node.in_bytes += len(record.header) + len(record.payload)
                message = Single(record.subject, record.reply, record.header, record.payload)
                if record.relayed:
                    part.hub.relayed(message, part.client)
                elif left := arrived(message, record.groups, part.client, part):
                    self._unserved(part, message, record.groups, left, record.moved)
            elif type(record) is RoutedRun:
                self._route_run(part, record)
            elif type(record) is RouteBatch:
                size = sum(each.content_bytes for each in record.messages)
                self._deliver(part, ListedMessages(record.messages, to=record.to), record.queue, size, record.moved)
            elif type(record) is StoredBatch:
                columns = record.records, record.lengths, record.head, record.consumer, record.left, record.to
                self._deliver(part, FirstDeliveries.of_columns(*columns), record.queue, record.size)
            elif type(record) is Within:
                part = node.of(record.account)
                arrived = part.hub.arrived
            elif type(record) is Hold:
                part.hold(record.to, record.on)
            elif type(record) is FlowMark:
                node.tell(Took())
            elif type(record) is Took:
                node.took()
            elif type(record) is NoResponders:
                part.hub.undelivered(record.subject, record.reply)
            elif type(record) is RouteInterest:
                for at in range(0, len(record.changes), FEW_CHANGES):
                    changes = record.changes[at : at + FEW_CHANGES]
                    part.learn(changes)
                    yield len(changes)
            if type(record) is not Routed or not position % FEW:
                yield 0

    def _go_on(self, node: RemoteNode) -> None:
        taking, node.taking = node.taking, None
        if node.gone or taking is None:
            return
        try:
            self._take(node, taking)
        except Exception as error:
            self._links.failed(node.name, Channel.ROUTE, error)
        if node.taking is None:
            self._links.reads(node.name, True)

    # ------------------------------------------------------------------ messages
    def _route_run(self, part: RemoteAccount, record: RoutedRun) -> None:
        run, groups = run_of(record.commands, APART), record.groups
        part.node.in_msgs += len(run)
        part.node.in_bytes += run.content_bytes
        for at, left in part.hub.arrived_run(run, groups, part.client):
            self._unserved(part, run.message(at), groups, left)

    def _deliver(self, part: RemoteAccount, block: MessageBlock, queue: bytes, size: int, moved: bool = False) -> None:
        part.node.in_msgs += len(block)
        part.node.in_bytes += size
        if not part.hub.delivered(block, queue):
            if queue and not moved:
                self._move(part.hub, block, block.to, [queue])
            return
        slow = part.hub.slow_receiver(block.to)
        if slow is not None and block.to not in part.holding:
            part.holding.add(block.to)
            part.tell(Hold(block.to, True))
            self._release_later(part, block.to, slow)

    def _release_later(self, part: RemoteAccount, to: bytes, slow: Sink) -> None:
        """Let the node go on with `to` once no receiver here is congested."""

        def drained() -> None:
            if part.node.gone:
                return
            other = part.hub.slow_receiver(to)
            if other is not None:
                self._release_later(part, to, other)
            else:
                part.holding.discard(to)
                part.tell(Hold(to, False))

        slow.on_drain(drained)

    def _unserved(
        self,
        part: RemoteAccount,
        message: Single,
        groups: Sequence[bytes] | None,
        left: Sequence[bytes],
        moved_before: bool = False,
    ) -> None:
        """Move or report a message whose receivers, or some of them, are not here any more."""
        queues = [queue for queue in left if queue]
        moved = not moved_before and self._move(part.hub, message, message.subject, queues)
        meant = 1 if groups is None else len(groups)
        if message.reply and not moved and len(left) == meant:
            # Report no responders instead of a timeout, so that the requester can retry at once.
            part.tell(NoResponders(message.subject, message.reply))

    @staticmethod
    def _move(hub: Hub, messages: Single | MessageBlock, subject: bytes, queues: Sequence[bytes]) -> bool:
        """Queue groups that have no member here any more: one elsewhere gets the message. False: there was none."""
        moved = False
        for queue in queues:
            sub = hub.elsewhere(subject, queue)
            if sub is not None and isinstance(sub.remote, RemoteAccount):
                sub.remote.move(messages, queue)
                moved = True
        return moved
