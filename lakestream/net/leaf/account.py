"""The interest of an account, as leaf connections announce it.

Belongs here: counting the subscriptions of an account, and sending their changes to every leaf connection of the
account, in one write a turn and ahead of the messages of that turn. What one connection may hear of is its exchange's
(exchange.py).
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterator
from typing import Protocol

from lakestream.net.accounts.service_imports import ServiceImportSink
from lakestream.net.hub import Hub
from lakestream.net.interest.subscription import Subscription
from lakestream.protocol.leaf_wire import ACK, FLOW, SNAPSHOT, Names
from lakestream.protocol.subjects import short_hash

Key = tuple[bytes, bytes]
"""Subject and queue group; b"": none."""

LOOPS = b"$LDS."
"""Prefix of the subjects by which loops of leaf connections are found."""

REPLY_PATHS = b"_R_."
"""Prefix of reply subjects of other accounts' requests; announced with the first such request."""

NO_DOMAIN = "_"
"""The name of no domain in ack subjects, as in nats-server."""

_WITHIN = (b"$JS.API.", b"$LS.", b"$LAKE.", b"$NRG.", SNAPSHOT)
"""Prefixes of subjects that only this cluster and its own clients use."""

_LETTERS = string.ascii_letters + string.digits


class LeafMember(Protocol):
    """A leaf connection of the account.

    Attributes:
        isolated: it is not told the interest of other leaf nodes.
        cluster: of the other side; "": unknown. Its nodes know each other's interest.
    """

    isolated: bool
    cluster: str

    def own(self, key: Key) -> int:
        """Return the number of subscriptions that are its own interest."""

    def changed(self, changes: dict[Key, int]) -> None:
        """Announce the numbers of subscriptions that changed; 0: the last one is gone."""


def crosses(sub: Subscription) -> bool:
    """Return True if leaf nodes are told of this subscription.

    Acks have names of their own on the other side (`Names`), so the subscriptions of this cluster to its own acks do
    not cross; those of other leaf nodes to theirs do.
    """
    if sub.local and not isinstance(sub.sink, ServiceImportSink):
        return False
    subject = sub.subject
    if not subject.startswith(b"$"):
        return sub.elsewhere or not subject.startswith(REPLY_PATHS)
    if subject.startswith(_WITHIN):
        return False
    if subject.startswith((ACK, FLOW)):
        return sub.elsewhere and not (sub.remote is not None and _of_a_stream(subject))
    return True


def _of_a_stream(subject: bytes) -> bool:
    """Return True for the subjects by which a node of the cluster hears the acks of a stream that it leads."""
    tokens = subject.split(b".")
    return tokens[-1] == b">" and (len(tokens) <= 4 or tokens[2:4] == [b"*", b"*"])


class LeafAccount:
    """One account with leaf connections.

    Args:
        hub: of the account.
        domain: of this server's JetStream; "": none.
        is_system: it is the system account.

    Attributes:
        loop_subject: interest in it that comes back shows a loop.
        names: of this server's own subjects on the other side.
    """

    def __init__(self, hub: Hub, domain: str, *, is_system: bool) -> None:
        self.hub, self.is_system = hub, is_system
        self.loop_subject = LOOPS + "".join(secrets.choice(_LETTERS) for _ in range(22)).encode()
        self.names = Names(domain or NO_DOMAIN, short_hash(hub.account))
        self.acked = False
        """Messages that are to be acked have crossed, so acks are to be announced."""
        self._members: list[LeafMember] = []
        self._clusters: dict[str, set[LeafMember]] = {}
        self._counts: dict[Key, int] = {}
        self._of_leaves: dict[Key, int] = {}
        self._changed: set[Key] = set()
        hub.interest_graph.observe(self._observed)

    def _observed(self, sub: Subscription, joined: bool) -> None:
        if not crosses(sub):
            return
        key, number = (sub.subject, sub.queue), sub.weight if joined else -sub.weight
        _add(self._counts, key, number)
        if sub.elsewhere and sub.remote is None:
            _add(self._of_leaves, key, number)
        if self._members:
            if not self._changed:
                self.hub.dirty(self)
            self._changed.add(key)

    def number(self, member: LeafMember, key: Key) -> int:
        """Return the subscriptions that a connection is told of."""
        found = self._counts.get(key, 0)
        if member.isolated:
            return found - self._of_leaves.get(key, 0)
        return found - sum(near.own(key) for near in self._clusters.get(member.cluster, (member,)))

    def all(self, member: LeafMember) -> Iterator[tuple[Key, int]]:
        """Yield everything that a connection is told of."""
        for key in self._counts:
            if (number := self.number(member, key)) > 0:
                yield key, number

    def join(self, member: LeafMember) -> set[LeafMember]:
        """Announce changes to a connection from now on. Returns the connections to its cluster, as they change."""
        self.announce_changes()
        self._members.append(member)
        near = self._clusters.setdefault(member.cluster, set()) if member.cluster else set()
        near.add(member)
        return near

    def leave(self, member: LeafMember) -> None:
        """Announce no more to a connection. Idempotent."""
        if member in self._members:
            self._members.remove(member)
            near = self._clusters.get(member.cluster, set())
            near.discard(member)
            if not near:
                self._clusters.pop(member.cluster, None)

    def flush(self) -> None:
        self.announce_changes()

    def announce_changes(self) -> None:
        """Send the changes of this turn now."""
        if self._changed:
            changed, self._changed = self._changed, set()
            for member in list(self._members):
                member.changed({key: self.number(member, key) for key in changed})


def _add(counts: dict[Key, int], key: Key, number: int) -> None:
    counts[key] = counts.get(key, 0) + number
    if not counts[key]:
        del counts[key]
