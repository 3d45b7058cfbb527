"""What this node tells the others of who listens here.

Belongs here: the subscriptions of this node's clients and streams as the other nodes hear of them, account by account,
and when they hear of it. What they tell in turn is kept by remote_node.py.

Told are the subscriptions by (subject, queue group) and their number: all of it when a connection begins, changes
afterwards, gathered over a turn of the event loop. Changes leave before any message or call of their turn, so whoever
answers a request on another node knows of the inbox by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lakestream.config.account_options import GLOBAL_ACCOUNT
from lakestream.net.hub import Hub
from lakestream.net.interest.interest import Subscription
from lakestream.net.peers.remote_node import Links, RemoteNode
from lakestream.net.turn import Turn
from lakestream.protocol.route_wire import Interest, Record, Within, encode
from lakestream.raft.group.ports import Channel

CHANGES_IN_A_BUFFER = 1000
"""Subscriptions told in one buffer, and what a node takes in of another in one turn (about 10 ms): heartbeats go on
while a node with very many clients comes."""

Change = tuple[bytes, bytes, int]


class _Account:
    """What the others hear of one account."""

    def __init__(self, name: str, telling: Telling) -> None:
        self.name = name
        self._telling = telling
        self._counts: dict[tuple[bytes, bytes], int] = {}
        self._changed: set[tuple[bytes, bytes]] = set()

    def observed(self, sub: Subscription, joined: bool) -> None:
        """See `Interest.observe`."""
        if sub.local or sub.remote is not None:
            return
        key = sub.subject, sub.queue
        count = self._counts.get(key, 0) + (1 if joined else -1)
        assert count >= 0, f"more subscriptions of {key} left than came"
        if count:
            self._counts[key] = count
        else:
            del self._counts[key]
        # In no group only the first and the last one make a difference.
        if (sub.queue or count == joined) and self._telling.heard:
            if not self._changed:
                self._telling.changed(self)
            self._changed.add(key)

    def all(self) -> list[Change]:
        return [(subject, queue, count) for (subject, queue), count in self._counts.items()]

    def changes(self) -> list[Change]:
        """What has changed since this was called last."""
        changed, self._changed = self._changed, set()
        return [(subject, queue, self._counts.get((subject, queue), 0)) for subject, queue in changed]


class Telling:
    """Tells the connected nodes.

    Args:
        nodes: the connected ones by name, as they are at any time.
        links: the connections to them.
        turn: of this node.
    """

    def __init__(self, nodes: Mapping[str, RemoteNode], links: Links, turn: Turn) -> None:
        self._nodes, self._links, self._turn = nodes, links, turn
        self._accounts: list[_Account] = []
        self._changed: list[_Account] = []
        self._dirty = False

    def follow(self, hub: Hub) -> None:
        """Tell of an account, whose interest graph is still empty."""
        account = _Account(hub.account, self)
        self._accounts.append(account)
        hub.interest_graph.observe(account.observed)

    @property
    def heard(self) -> bool:
        """There is somebody to tell."""
        return bool(self._nodes)

    def changed(self, account: _Account) -> None:
        """An account has changes to tell."""
        self._changed.append(account)
        if not self._dirty:
            self._dirty = True
            self._turn.dirty(self)

    def flush(self) -> None:
        """See `Flushable.flush`."""
        self._dirty = False
        self.tell_changes()

    def tell_changes(self) -> None:
        """Tell the other nodes now what has changed in this turn: before anything that may be answered from there."""
        if not self._changed:
            return
        changed, self._changed = self._changed, []
        told = [(account.name, account.changes()) for account in changed]
        everything = buffers(told)
        # A version without accounts cannot read anything of another one.
        without = everything
        if not all(node.accounts for node in self._nodes.values()):
            without = buffers((name, changes) for name, changes in told if name == GLOBAL_ACCOUNT)
        for name, node in list(self._nodes.items()):
            for buffer in everything if node.accounts else without:
                # One whose queue is full loses its connection meanwhile; then this sends nothing.
                self._links.send(name, Channel.ROUTE, buffer)

    def tell_all(self, node: RemoteNode) -> None:
        """Tell a node whose connection begins everything."""
        told = [(one.name, one.all()) for one in self._accounts if node.accounts or one.name == GLOBAL_ACCOUNT]
        for buffer in buffers(told):
            self._links.send(node.name, Channel.ROUTE, buffer)


def buffers(told: Iterable[tuple[str, Sequence[Change]]]) -> list[bytes]:
    """Interest of accounts as buffers; those of few changes share one."""
    made: list[bytes] = []
    records: list[Record] = []
    within, room = GLOBAL_ACCOUNT, CHANGES_IN_A_BUFFER
    for account, changes in told:
        for at in range(0, len(changes), CHANGES_IN_A_BUFFER):
            some = list(changes[at : at + CHANGES_IN_A_BUFFER])
            if len(some) > room:
                made.append(encode(records))
                records, within, room = [], GLOBAL_ACCOUNT, CHANGES_IN_A_BUFFER
            if account != within:
                within = account
                records.append(Within(account))
            records.append(Interest(some))
            room -= len(some)
    return [*made, encode(records)] if records else made
