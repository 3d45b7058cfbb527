"""Filters with wildcards, by token.

Belongs here: the subscriptions of one filter (`TrieLeaf`), the union of several (`merge`), and the trie of filters.
Caches are in cache.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lakestream.net.interest.subscription import MAX_PLACES, Match, Subscription
from lakestream.protocol.domain_subjects import LINK_QUEUE

NO_MATCH = Match([], [])


class TrieLeaf:
    """The subscriptions of one filter. `special` counts those of other servers, and local ones."""

    __slots__ = ("plain", "queues", "special")

    def __init__(self) -> None:
        self.plain: dict[Subscription, None] = {}
        self.queues: dict[bytes, dict[Subscription, None]] | None = None
        self.special = 0

    def add(self, sub: Subscription) -> bool:
        """Add a subscription; return False when it is there already."""
        if sub.queue:
            if self.queues is None:
                self.queues = {}
            members = self.queues.setdefault(sub.queue, {})
        else:
            members = self.plain
        if sub in members:
            return False
        members[sub] = None
        if sub.elsewhere or sub.local:
            self.special += 1
        return True

    def discard(self, sub: Subscription) -> bool:
        """Remove a subscription; return False when it is not there."""
        queues = self.queues or {}
        members = queues.get(sub.queue, {}) if sub.queue else self.plain
        if sub not in members:
            return False
        del members[sub]
        if sub.elsewhere or sub.local:
            self.special -= 1
        if sub.queue and not members:
            del queues[sub.queue]
        return True

    def empty(self) -> bool:
        return not self.plain and not self.queues

    def subscriptions(self) -> Iterator[Subscription]:
        """Iterate over the subscriptions."""
        yield from self.plain
        for members in (self.queues or {}).values():
            yield from members


class TrieNode:
    """One token of the trie. `rest` holds the subscriptions of a `>` behind this node."""

    __slots__ = ("children", "leaf", "rest", "star")

    def __init__(self) -> None:
        self.children: dict[bytes, TrieNode] = {}
        self.star: TrieNode | None = None
        self.rest: TrieLeaf | None = None
        self.leaf: TrieLeaf | None = None

    def empty(self) -> bool:
        return not self.children and self.star is None and self.rest is None and self.leaf is None


def merge(leaves: Iterable[TrieLeaf]) -> Match:
    """Return the union of several filters' subscriptions. A queue group is one group across filters."""
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
    return Match(plain, list(groups.values())) if plain or groups else NO_MATCH


def _of_cluster(plain: list[Subscription], groups: list[list[Subscription]]) -> Match:
    """Return a match in which other servers take part, or that has local subscriptions."""
    own = [sub for sub in plain if sub.remote is None]
    # Like a node, another server gets one copy for all of its filters.
    servers = {sub.sink: sub for sub in reversed(own) if sub.elsewhere}
    if servers:
        own = [sub for sub in own if not sub.elsewhere or servers[sub.sink] is sub]
    # A node gets one copy however many of its filters match: it finds its subscribers itself.
    nodes = {sub.remote: sub for sub in reversed(plain) if sub.remote is not None}
    here = [sub for sub in own if not sub.local]
    groups_here = [
        _weighted(members)
        for group in groups
        if (members := [sub for sub in group if sub.remote is None and not sub.local])
    ]
    in_all = [_weighted(group) for group in groups]
    return Match([*own, *nodes.values()], in_all, Match(here, groups_here) if here or groups_here else NO_MATCH)


def _weighted(group: list[Subscription]) -> list[Subscription]:
    """Return the members of a queue group that may be chosen, each as often as it is to be."""
    taking = _taking(group)
    total = sum([sub.weight for sub in taking])
    if total <= MAX_PLACES:
        return [sub for sub in taking for _ in range(sub.weight)]
    return [sub for sub in taking for _ in range(max(1, round(sub.weight * MAX_PLACES / total)))]


def _taking(group: list[Subscription]) -> list[Subscription]:
    """Return the members of a queue group that may be chosen: those behind leaf nodes only where there are no others,
    as in nats-server. Of links to another server that is one, preferably of this node, so that the messages of one
    client stay in order."""
    if group[0].queue != LINK_QUEUE:
        return [sub for sub in group if not sub.elsewhere or (sub.remote is not None and not sub.far)] or group
    return [sub for sub in group if sub.remote is None] or [min(group, key=_name_of_node)]


def _name_of_node(sub: Subscription) -> str:
    assert sub.remote is not None, "only called for subscriptions of other nodes"
    return sub.remote.name


class Trie:
    """Trie of filters with wildcards."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root = TrieNode()

    def add(self, sub: Subscription) -> bool:
        words = sub.subject.split(b".")
        node = self._root
        if words[-1] == b">":
            words.pop()
            node = self._descend(node, words)
            if node.rest is None:
                node.rest = TrieLeaf()
            return node.rest.add(sub)
        node = self._descend(node, words)
        if node.leaf is None:
            node.leaf = TrieLeaf()
        return node.leaf.add(sub)

    @staticmethod
    def _descend(node: TrieNode, words: list[bytes]) -> TrieNode:
        for word in words:
            if word == b"*":
                if node.star is None:
                    node.star = TrieNode()
                node = node.star
            else:
                child = node.children.get(word)
                if child is None:
                    child = node.children[word] = TrieNode()
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
    def _prune(path: list[TrieNode], words: list[bytes]) -> None:
        """Remove empty nodes from the end of the path."""
        for depth in range(len(words), 0, -1):
            if not path[depth].empty():
                return
            if words[depth - 1] == b"*":
                path[depth - 1].star = None
            else:
                del path[depth - 1].children[words[depth - 1]]

    def leaves(self) -> Iterator[TrieLeaf]:
        """Iterate over all leaves, in no particular order."""
        nodes = [self._root]
        while nodes:
            node = nodes.pop()
            nodes.extend(node.children.values())
            if node.star is not None:
                nodes.append(node.star)
            for leaf in (node.leaf, node.rest):
                if leaf is not None:
                    yield leaf

    def reach(self, words: list[bytes]) -> tuple[list[TrieLeaf], list[TrieNode]]:
        """Follow `words`; return the `>` leaves on the way, and the nodes reached."""
        found: list[TrieLeaf] = []
        nodes = [self._root]
        for word in words:
            following: list[TrieNode] = []
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
