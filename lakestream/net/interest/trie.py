"""Filters with wildcards, by token.

Belongs here: the subscriptions of one filter (`Leaf`), what several of them select together (`merge`), and the trie of
filters. Caches, and who asks, are the interest graph's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from lakestream.protocol.domain_subjects import LINK_QUEUE

if TYPE_CHECKING:
    from lakestream.net.hub import Carrier, Remote, Sink


class Subscription:
    """One subscription of one sink.

    Attributes:
        sink: who takes the messages.
        subject: the filter, valid for SUB; never changes.
        queue: the queue group, b"" for none; never changes.
        sid: the client's own name for it.
        maximum: deliveries since SUB after which it ends; 0 = no end. Kept by the sink.
        delivered: deliveries so far. Kept by the sink.
        local: the other nodes do not hear of it.
        remote: the node whose interest this is; None for a subscription on this node.
        carrier: takes what is delivered together with where to; None: the sink knows that from the subscription.
        weight: how many members of the queue group it stands for; more than 1 only for a remote one.
    """

    __slots__ = ("carrier", "delivered", "local", "maximum", "queue", "remote", "sid", "sink", "subject", "weight")

    def __init__(self, sink: Sink, subject: bytes, queue: bytes, sid: bytes) -> None:
        self.sink = sink
        self.subject = subject
        self.queue = queue
        self.sid = sid
        self.maximum = 0
        self.delivered = 0
        self.local = False
        self.remote: Remote | None = None
        self.carrier: Carrier | None = None
        self.weight = 1


class Match:
    """Whoever listens to one subject. Never changes once made: a change of interest makes another.

    Attributes:
        plain: subscriptions without a queue group; each gets the message. Of another node or a carrier at most one.
        queues: for each queue group its subscriptions, one of each gets the message; that of another node as many
            times as it has members, so that every member of the cluster has the same chance.
        here: the part of it that a message from another node goes to (on this node, and not local); None when that is
            all of it.
    """

    __slots__ = ("here", "plain", "queues")

    def __init__(self, plain: list[Subscription], queues: list[list[Subscription]], here: Match | None = None) -> None:
        self.plain = plain
        self.queues = queues
        self.here = here


NOBODY = Match([], [])


class Leaf:
    """The subscriptions of one filter. `special` counts those of other nodes or carriers, and those that other nodes do
    not hear of."""

    __slots__ = ("plain", "queues", "special")

    def __init__(self) -> None:
        self.plain: dict[Subscription, None] = {}
        self.queues: dict[bytes, dict[Subscription, None]] | None = None
        self.special = 0

    def add(self, sub: Subscription) -> bool:
        """False when it is there already."""
        if sub.queue:
            if self.queues is None:
                self.queues = {}
            members = self.queues.setdefault(sub.queue, {})
        else:
            members = self.plain
        if sub in members:
            return False
        members[sub] = None
        if sub.remote is not None or sub.carrier is not None or sub.local:
            self.special += 1
        return True

    def discard(self, sub: Subscription) -> bool:
        """False when it is not there."""
        if not sub.queue:
            if sub not in self.plain:
                return False
            del self.plain[sub]
            if sub.remote is not None or sub.carrier is not None or sub.local:
                self.special -= 1
            return True
        members = self.queues.get(sub.queue) if self.queues is not None else None
        if members is None or sub not in members:
            return False
        del members[sub]
        if sub.remote is not None or sub.carrier is not None or sub.local:
            self.special -= 1
        if not members:
            assert self.queues is not None
            del self.queues[sub.queue]
        return True

    def empty(self) -> bool:
        return not self.plain and not self.queues

    def subscriptions(self) -> Iterator[Subscription]:
        """All of them."""
        yield from self.plain
        for members in (self.queues or {}).values():
            yield from members


class Node:
    """One token of the trie. `rest` holds the subscriptions of a `>` that follows this node."""

    __slots__ = ("children", "leaf", "rest", "star")

    def __init__(self) -> None:
        self.children: dict[bytes, Node] = {}
        self.star: Node | None = None
        self.rest: Leaf | None = None
        self.leaf: Leaf | None = None

    def empty(self) -> bool:
        return not self.children and self.star is None and self.rest is None and self.leaf is None


def merge(leaves: Iterable[Leaf]) -> Match:
    """What several filters select together; members of one queue group are one group whatever filter they used."""
    plain: list[Subscription] = []
    groups: dict[bytes, list[Subscription]] = {}
    special = 0
    for leaf in leaves:
        special += leaf.special
        plain.extend(leaf.plain)
        if leaf.queues:
            for name, members in leaf.queues.items():
                groups.setdefault(name, []).extend(members)
    if special:
        return _of_cluster(plain, list(groups.values()))
    return Match(plain, list(groups.values())) if plain or groups else NOBODY


def _of_cluster(plain: list[Subscription], groups: list[list[Subscription]]) -> Match:
    """A match that looks different from another node, or in which other nodes take part."""
    own = [sub for sub in plain if sub.remote is None]
    # Like a node, a carrier gets one copy for all of its filters.
    carriers = {sub.carrier: sub for sub in reversed(own) if sub.carrier is not None}
    if carriers:
        own = [sub for sub in own if sub.carrier is None or carriers[sub.carrier] is sub]
    # However many filters a node has that select the subject, one copy goes there: it finds its subscribers itself.
    nodes = {sub.remote: sub for sub in reversed(plain) if sub.remote is not None}
    here = [sub for sub in own if not sub.local]
    groups_here = [
        members for group in groups if (members := [sub for sub in group if sub.remote is None and not sub.local])
    ]
    weighted = [[sub for sub in _taking(group) for _ in range(sub.weight)] for group in groups]
    return Match([*own, *nodes.values()], weighted, Match(here, groups_here) if here or groups_here else NOBODY)


def _taking(group: list[Subscription]) -> list[Subscription]:
    """The members of a queue group that take part. Of the links to another server one takes all, this node's if it has
    one: what one client sends stays in order."""
    if group[0].queue != LINK_QUEUE:
        return group
    return [sub for sub in group if sub.remote is None] or [min(group, key=_name_of_node)]


def _name_of_node(sub: Subscription) -> str:
    assert sub.remote is not None, "asked of those of other nodes"
    return sub.remote.name


class Trie:
    """Filters with wildcards, by token."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root = Node()

    def add(self, sub: Subscription) -> bool:
        words = sub.subject.split(b".")
        node = self._root
        if words[-1] == b">":
            words.pop()
            node = self._descend(node, words)
            if node.rest is None:
                node.rest = Leaf()
            return node.rest.add(sub)
        node = self._descend(node, words)
        if node.leaf is None:
            node.leaf = Leaf()
        return node.leaf.add(sub)

    @staticmethod
    def _descend(node: Node, words: list[bytes]) -> Node:
        for word in words:
            if word == b"*":
                if node.star is None:
                    node.star = Node()
                node = node.star
            else:
                child = node.children.get(word)
                if child is None:
                    child = node.children[word] = Node()
                node = child
        return node

    def discard(self, sub: Subscription) -> bool:
        words = sub.subject.split(b".")
        rest = words[-1] == b">"
        if rest:
            words.pop()
        path = [self._root]
        for word in words:
            child = path[-1].star if word == b"*" else path[-1].children.get(word)
            if child is None:
                return False
            path.append(child)
        last = path[-1]
        leaf = last.rest if rest else last.leaf
        if leaf is None or not leaf.discard(sub):
            return False
        if leaf.empty():
            if rest:
                last.rest = None
            else:
                last.leaf = None
            self._prune(path, words)
        return True

    @staticmethod
    def _prune(path: list[Node], words: list[bytes]) -> None:
        """Drop nodes that hold nothing any more, from the end of the path."""
        for depth in range(len(words), 0, -1):
            if not path[depth].empty():
                return
            if words[depth - 1] == b"*":
                path[depth - 1].star = None
            else:
                del path[depth - 1].children[words[depth - 1]]

    def leaves(self) -> Iterator[Leaf]:
        """Every leaf, in no particular order."""
        nodes = [self._root]
        while nodes:
            node = nodes.pop()
            nodes.extend(node.children.values())
            if node.star is not None:
                nodes.append(node.star)
            for leaf in (node.leaf, node.rest):
                if leaf is not None:
                    yield leaf

    def reach(self, words: list[bytes]) -> tuple[list[Leaf], list[Node]]:
        """Follow `words`: the `>` leaves passed on the way, and the nodes that are reached."""
        found: list[Leaf] = []
        nodes = [self._root]
        for word in words:
            following: list[Node] = []
            for node in nodes:
                if node.rest is not None:
                    found.append(node.rest)
                child = node.children.get(word)
                if child is not None:
                    following.append(child)
                if node.star is not None:
                    following.append(node.star)
            nodes = following
            if not nodes:
                break
        return found, nodes
