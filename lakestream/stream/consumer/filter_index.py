"""Which consumers a subject concerns.

Belongs here: finding, among many consumers of a stream, those whose filters let a subject through, so that a message
costs the consumers that want it and not all there are. What follows from the log alone decides, so that every replica
finds the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakestream.stream.consumer.consumer import Consumer

FEW = 8
"""So few consumers are asked one by one."""

SUBJECTS = 65_536
"""Remembered answers; forgotten together when there are more subjects than that."""


class Audience:
    """The consumers of one stream by what they want.

    Args:
        consumers: of the stream, by name; `changed` is to be called when they or their filters change.

    Attributes:
        announced_from, announced: every message from the one through the other was told to the consumers that want it.
    """

    def __init__(self, consumers: dict[str, Consumer]) -> None:
        self._consumers = consumers
        self.announced = self.announced_from = 0
        self._stale = True
        self._everyone: list[Consumer] = []
        self._mixed: list[Consumer] = []
        # A node is a dict by token; under b"" the consumers whose filter ends there.
        self._root: dict[bytes, Any] = {}
        self._known: dict[bytes, Sequence[Consumer]] = {}

    def changed(self) -> None:
        """There is a consumer more or less, or one has other filters."""
        self._stale = True

    def announce(self, first_seq: int, subjects: Sequence[bytes]) -> None:
        """Tell the consumers of messages that were stored, the first of them at `first_seq`."""
        if first_seq != self.announced + 1:
            self.announced_from = first_seq
        self.announced = first_seq + len(subjects) - 1
        if self._consumers:
            for consumer in self.of_all(subjects):
                consumer.stored(first_seq)

    def of(self, subject: bytes) -> Sequence[Consumer]:
        """The consumers that want messages of `subject`, each once; with few consumers, all of them."""
        if len(self._consumers) <= FEW:
            return list(self._consumers.values())
        if self._stale:
            self._build()
        known = self._known.get(subject)
        if known is None:
            if len(self._known) >= SUBJECTS:
                self._known.clear()
            found = dict.fromkeys(self._everyone)
            _collect(self._root, subject.split(b"."), 0, found)
            known = self._known[subject] = tuple(found)
        return known

    def of_all(self, subjects: Iterable[bytes]) -> Iterable[Consumer]:
        """The consumers that want messages of any of these, each once."""
        if len(self._consumers) <= FEW:
            return list(self._consumers.values())
        distinct = set(subjects)
        if len(distinct) == 1:
            return self.of(distinct.pop())
        return dict.fromkeys(consumer for subject in distinct for consumer in self.of(subject))

    def concerned(self, subject: bytes) -> Sequence[Consumer]:
        """Those, and whoever may hold messages of `subject` that it would not want now: its filters were changed."""
        wanting = self.of(subject)
        if not self._mixed or len(self._consumers) <= FEW:
            return wanting
        self._mixed = [one for one in self._mixed if one.mixed]
        others = [one for one in self._mixed if one not in wanting]
        return [*wanting, *others] if others else wanting

    def _build(self) -> None:
        self._stale = False
        self._root, self._known = {}, {}
        everyone = self._everyone = []
        for consumer in self._consumers.values():
            if not consumer.config.filters:
                everyone.append(consumer)
            for one in consumer.config.filters:
                node = self._root
                for token in one.split(b"."):
                    node = node.setdefault(token, {})
                node.setdefault(b"", []).append(consumer)
        self._mixed = [consumer for consumer in self._consumers.values() if consumer.mixed]


def _collect(node: dict[bytes, Any], tokens: list[bytes], at: int, found: dict[Consumer, None]) -> None:
    """Add the consumers below `node` that match the tokens from `at` on. As deep as a subject has tokens."""
    if at == len(tokens):
        found.update(dict.fromkeys(node.get(b"", ())))
        return
    rest = node.get(b">")
    if rest is not None:
        found.update(dict.fromkeys(rest.get(b"", ())))
    for token in (tokens[at], b"*"):
        child = node.get(token)
        if child is not None:
            _collect(child, tokens, at + 1, found)
