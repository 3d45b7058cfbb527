"""Index from subject filters to the consumers of one stream.

Belongs here: finding, among many consumers, those whose filters match a subject, so that a message costs only the
consumers that want it. The result follows from the log alone, so that every replica finds the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lakestream.stream.consumer.consumer import Consumer

LINEAR_MATCH_LIMIT = 8
"""Up to this many consumers are matched one by one; above it the filter tree is used."""

MAX_CACHED_SUBJECTS = 65_536
"""Maximum number of cached subjects; the cache is cleared when it is exceeded."""


class FilterIndex:
    """Index from subject filters to the consumers of one stream.

    Args:
        consumers: the consumers by name; `put` and `drop` are to be called when they or their filters have changed.

    Attributes:
        announced_from, announced: range of messages that were announced to the consumers that want them.
    """

    def __init__(self, consumers: Mapping[str, Consumer]) -> None:
        self._consumers = consumers
        self.announced = self.announced_from = 0
        self._built = False  # the tree, and what belongs to it, exists once there are many consumers
        # A node is a dict by token; under b"" the consumers whose filter ends there.
        self._root: dict[bytes, Any] = {}
        self._filters: dict[Consumer, Sequence[bytes]] = {}
        self._unfiltered: dict[Consumer, None] = {}
        self._known: dict[bytes, Sequence[Consumer]] = {}
        self._mixed: list[Consumer] = []

    def put(self, consumer: Consumer) -> None:
        """Note that a consumer was made, or that its filters have changed."""
        if self._built:
            self.drop(consumer)
            if self._built:
                self._add(consumer)

    def drop(self, consumer: Consumer) -> None:
        """Forget a consumer, or its earlier filters."""
        if not self._built:
            return
        if len(self._consumers) <= LINEAR_MATCH_LIMIT:
            self._forget()
            return
        self._known.clear()
        self._unfiltered.pop(consumer, None)
        for one in self._filters.pop(consumer, ()):
            _remove(self._root, one.split(b"."), consumer)
        if consumer in self._mixed:
            self._mixed.remove(consumer)

    def _forget(self) -> None:
        self._built = False
        self._root, self._filters, self._unfiltered, self._known, self._mixed = {}, {}, {}, {}, []

    def _add(self, consumer: Consumer) -> None:
        filters = tuple(dict.fromkeys(consumer.config.filters))
        self._filters[consumer] = filters
        if not filters:
            self._unfiltered[consumer] = None
        for one in filters:
            node = self._root
            for token in one.split(b"."):
                node = node.setdefault(token, {})
            node.setdefault(b"", {})[consumer] = None
        if consumer.mixed:
            self._mixed.append(consumer)

    def announce(self, first_seq: int, subjects: Sequence[bytes]) -> None:
        """Notify the consumers that want them of stored messages, the first of them at `first_seq`."""
        if first_seq != self.announced + 1:
            self.announced_from = first_seq
        self.announced = first_seq + len(subjects) - 1
        if self._consumers:
            for consumer in self.of_all(subjects):
                consumer.stored(first_seq)

    def wants(self, subjects: Sequence[bytes]) -> bool:
        """Return True if a consumer is likely to deliver messages of these subjects as soon as they are stored."""
        if not self._consumers:
            return False
        if len(subjects) > 1 and len(self._consumers) > LINEAR_MATCH_LIMIT:
            return True  # `announce` searches for them, once
        return any(consumer.delivery.target.wanting for consumer in self.of_all(subjects))

    def of(self, subject: bytes) -> Sequence[Consumer]:
        """Return the consumers whose filters match, each once; all of them if there are few."""
        if len(self._consumers) <= LINEAR_MATCH_LIMIT:
            return list(self._consumers.values())
        if not self._built:
            self._built = True
            for consumer in self._consumers.values():
                self._add(consumer)
        known = self._known.get(subject)
        if known is None:
            if len(self._known) >= MAX_CACHED_SUBJECTS:
                self._known.clear()
            found = dict.fromkeys(self._unfiltered)
            _collect(self._root, subject.split(b"."), 0, found)
            known = self._known[subject] = tuple(found)
        return known

    def of_all(self, subjects: Iterable[bytes]) -> Iterable[Consumer]:
        """Return the consumers whose filters match any of these subjects, each once; all of them if there are few."""
        if len(self._consumers) <= LINEAR_MATCH_LIMIT:
            return list(self._consumers.values())
        distinct = set(subjects)
        if len(distinct) == 1:
            return self.of(distinct.pop())
        return dict.fromkeys(consumer for subject in distinct for consumer in self.of(subject))

    def concerned(self, subject: bytes) -> Sequence[Consumer]:
        """Return the consumers of `of`, and those that may hold messages of `subject` by earlier filters."""
        wanting = self.of(subject)
        if len(self._consumers) <= LINEAR_MATCH_LIMIT or not self._mixed:
            return wanting
        self._mixed = [one for one in self._mixed if one.mixed]
        others = [one for one in self._mixed if one not in wanting]
        return [*wanting, *others] if others else wanting


def _remove(root: dict[bytes, Any], tokens: list[bytes], consumer: Consumer) -> None:
    """Remove a consumer's filter from the tree, and the nodes that only it needed."""
    path = [root]
    for token in tokens:
        path.append(path[-1][token])
    ends = path[-1][b""]
    ends.pop(consumer, None)
    if ends:
        return
    del path[-1][b""]
    for token in reversed(tokens):
        if path.pop():
            return
        del path[-1][token]


def _collect(node: dict[bytes, Any], tokens: list[bytes], at: int, found: dict[Consumer, None]) -> None:
    """Add the consumers below `node` that match the tokens from `at` on. Recursion depth: the subject's tokens."""
    if at == len(tokens):
        found.update(node.get(b"", {}))
        return
    rest = node.get(b">")
    if rest is not None:
        found.update(rest.get(b"", {}))
    for token in (tokens[at], b"*"):
        child = node.get(token)
        if child is not None:
            _collect(child, tokens, at + 1, found)
