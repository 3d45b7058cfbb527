"""Interest and messages between the nodes of the cluster.

Belongs here: what becomes of what another node sends, and what is done when a node comes or goes. What goes to a node
is remote_node.py's, what it is told of who listens here route_interest.py's. Every node is connected to every other, so
what came from one node goes to none of them again; the only exception is a message for a queue group that has just lost
its last member here.

Back-pressure: a node is congested while its connection is, and while it has not yet said that it handed on what was
sent before. Whoever publishes to such a node is not read from until it has drained; JetStream holds its deliveries,
also while a node says that the receiver itself is congested.

Everything that has a subject is of an account (`Within` in route_wire.py), and nothing goes from one account to another
here: imports are subscriptions of the account whose messages they take, on the node whose clients want them.
"""

from __future__ import annotations

from collections.abc import Sequence

from lakestream.config.account_options import GLOBAL_ACCOUNT
from lakestream.net.accounts.accounts import Accounts
from lakestream.net.hub import Hub, Sink
from lakestream.net.peers.remote_node import Links, RemoteAccount, RemoteNode
from lakestream.net.peers.route_interest import CHANGES_IN_A_BUFFER, Telling
from lakestream.protocol.peer_wire import NodeInfo
from lakestream.protocol.route_wire import (
    Batch,
    Hold,
    Interest,
    Mark,
    Record,
    Routed,
    Took,
    Unheard,
    Within,
    decode,
)
from lakestream.raft.group.ports import Channel


class Routes:
    """Routing between this node and all others.

    Args:
        accounts: of this node; nobody is in them yet.
        links: connections to the other nodes, none of them up yet.

    Attributes:
        nodes: the connected nodes by name.
        turn: of this node.
    """

    def __init__(self, accounts: Accounts, links: Links) -> None:
        self.links = links
        self.nodes: dict[str, RemoteNode] = {}
        self.turn = accounts.default.hub.turn
        self._accounts = accounts
        self._log = accounts.default.hub.log
        self._warned: set[str] = set()
        self._telling = Telling(self.nodes, links, self.turn)
        self.tell_changes = self._telling.tell_changes
        accounts.watch(lambda account: self._telling.follow(account.hub))
        links.receive(Channel.ROUTE, self._received)
        links.watch_links(self._link)

    def catch_up(self, name: str) -> None:
        """Send what was gathered for a node in this turn: what goes there by another way must not overtake it."""
        self.tell_changes()
        node = self.nodes.get(name)
        if node is not None:
            node.flush()

    def hub(self, account: str) -> Hub:
        """The hub of an account on this node."""
        return self._accounts.of(account).hub

    # ------------------------------------------------------------------ connections
    def _link(self, info: NodeInfo, up: bool) -> None:
        old = self.nodes.pop(info.name, None)
        if old is not None:
            old.leave()
        if up:
            node = self.nodes[info.name] = RemoteNode(info, self)
            self._telling.tell_all(node)
            if not node.accounts and not self._accounts.alone and info.name not in self._warned:
                self._warned.add(info.name)
                self._log.warn(
                    f"{info.name} runs a version ({info.version}) that knows no accounts: its clients and those of "
                    f"this node hear each other in {GLOBAL_ACCOUNT} only, until it is upgraded"
                )

    def _received(self, name: str, payload: bytes) -> None:
        """Raises `msgspec.DecodeError`; then the connection begins anew, since a change of interest may be lost."""
        node = self.nodes.get(name)
        if node is None:
            return
        records = decode(payload)
        if node.backlog:
            node.backlog.append(Within(GLOBAL_ACCOUNT))  # where every buffer begins
            node.backlog.extend(records)
        else:
            self._take(node, records)

    def _take(self, node: RemoteNode, records: Sequence[Record]) -> None:
        part = node.default
        arrived = part.hub.arrived
        learnt = 0
        for position, record in enumerate(records):
            if type(record) is Routed:
                node.in_msgs += 1
                node.in_bytes += len(record.header) + len(record.payload)
                left = arrived(record, part.client, part)
                if left:
                    self._unserved(part, record, left)
            elif type(record) is Batch:
                self._deliver(part, record)
            elif type(record) is Within:
                part = node.of(record.account)
                arrived = part.hub.arrived
            elif type(record) is Hold:
                part.hold(record.to, record.on)
            elif type(record) is Mark:
                node.tell(Took())
            elif type(record) is Took:
                node.took()
            elif type(record) is Unheard:
                part.hub.unheard(record.subject, record.reply)
            elif type(record) is Interest:
                part.learn(record.changes)
                learnt += len(record.changes)
                if learnt >= CHANGES_IN_A_BUFFER:
                    # Never empty, so that whatever comes by then queues up behind it.
                    node.backlog.extend([Within(part.account), *records[position + 1 :]])
                    self.turn.soon(lambda: self._go_on(node))
                    return

    def _go_on(self, node: RemoteNode) -> None:
        records = list(node.backlog)
        node.backlog.clear()
        self._take(node, records)

    # ------------------------------------------------------------------ messages
    def _deliver(self, part: RemoteAccount, batch: Batch) -> None:
        part.node.in_msgs += len(batch.messages)
        part.node.in_bytes += sum(len(header) + len(payload) for _, _, header, payload in batch.messages)
        if not part.hub.delivered(batch):
            if batch.queue and not batch.moved:
                self._move(part.hub, batch, batch.to, [batch.queue])
            return
        slow = part.hub.slow_receiver(batch.to)
        if slow is not None and batch.to not in part.holding:
            part.holding.add(batch.to)
            part.tell(Hold(batch.to, True))
            self._release_later(part, batch.to, slow)

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

    def _unserved(self, part: RemoteAccount, message: Routed, left: Sequence[bytes]) -> None:
        """Whom a message was meant for is not here any more, at least not all of them."""
        queues = [queue for queue in left if queue]
        moved = not message.moved and self._move(part.hub, message, message.subject, queues)
        meant = 1 if message.groups is None else len(message.groups)
        if message.reply and not moved and len(left) == meant:
            # Better than a requester that waits in vain; a stream whose leader has just changed is asked again at once.
            part.tell(Unheard(message.subject, message.reply))

    @staticmethod
    def _move(hub: Hub, record: Routed | Batch, subject: bytes, queues: Sequence[bytes]) -> bool:
        """Queue groups that have no member here any more: one elsewhere gets the message. False: there was none."""
        moved = False
        for queue in queues:
            sub = hub.elsewhere(subject, queue)
            if sub is not None and isinstance(sub.remote, RemoteAccount):
                sub.remote.move(record, queue)
                moved = True
        return moved
