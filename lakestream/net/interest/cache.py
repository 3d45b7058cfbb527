"""Caches of the interest graph.

Belongs here: the keys and limits of cached matches, and what a change of interest drops. Matching is in interest.py.

A change of interest drops at least what it can affect: one subject (literal), one head (`head.*`), or, for any other
filter, all entries that share its first two literal tokens (or its only one). The cost is proportional to what is
dropped, so that no sequence of SUB and UNSUB costs more than the matches that filled the caches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from lakestream.net.interest.subscription import Match

MAX_CACHED = 8192
"""Entries in each cache (default). When a cache is full, its older half is dropped."""

MAX_CACHED_SUBJECT = 512
"""Longest cached subject in bytes, which bounds the caches in bytes too. Longer ones are matched each time."""

MAX_DEPTH = 5
"""Tokens of the longest prefix by which matches are cached: `$JS.ACK.<stream>.<consumer>.<deliveries>`."""


class Deep:
    """Matches by the first `depth` tokens (3 or more) of subjects that share their first two.

    Attributes:
        depth: the number of tokens behind which no subscription differs.
        matches: complete matches.
    """

    __slots__ = ("depth", "matches")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.matches: dict[bytes, Match] = {}

    def find(self, subject: bytes, second: int) -> Match | None:
        """Return the cached match of a subject; `second` is the position of the dot behind its first two tokens."""
        end = second
        for _ in range(self.depth - 2):
            end = subject.find(b".", end + 1)
            if end < 0:
                return None
        return self.matches.get(subject[:end])


def prefixes_of(subject: bytes) -> Iterator[bytes]:
    """Yield the first token of `subject` and its first two, where at least one more token follows."""
    first = subject.find(b".")
    if first >= 0:
        yield subject[:first]
        second = subject.find(b".", first + 1)
        if second >= 0:
            yield subject[:second]


def _first_two(head: bytes) -> tuple[bytes, bytes]:
    """Return the first token of `head`, and its first two joined (the first again, when it has no other)."""
    first = head.find(b".")
    if first < 0:
        return head, head
    second = head.find(b".", first + 1)
    return head[:first], head if second < 0 else head[:second]


class Caches:
    """The caches of one interest graph.

    Attributes:
        subjects: complete matches by subject.
        heads: the part of a match that comes from wildcards, by all but the subject's last token, where no filter
            depends on the last token.
        inboxes: the same for heads where that is the complete match, because no literal subject is below them, and
            which have a `head.*` subscription of their own. Not more of them than such subscriptions.
        firsts: complete matches by the first token, where no subscription depends on more.
        seconds: complete matches by the first two tokens, where no subscription depends on more; grouped by the first.
        deeps: complete matches by more tokens, where only filters depend on tokens behind the first two; grouped by
            the first token, then by the first two.
    """

    __slots__ = (
        "_deep_count",
        "_groups",
        "_limit",
        "_second_count",
        "_under",
        "deeps",
        "firsts",
        "heads",
        "inboxes",
        "seconds",
        "subjects",
    )

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.subjects: dict[bytes, Match] = {}
        self.heads: dict[bytes, Match] = {}
        self.inboxes: dict[bytes, Match] = {}
        self.firsts: dict[bytes, Match] = {}
        self.seconds: dict[bytes, dict[bytes, Match]] = {}
        self._second_count = 0
        self.deeps: dict[bytes, dict[bytes, Deep]] = {}
        self._deep_count = 0
        # Invariant: a subject is in `subjects` exactly when it is in `_under[its head]`.
        self._under: dict[bytes, dict[bytes, None]] = {}
        # Invariant: a head is in `_groups[its first token][its first two]` exactly when it is in `heads`, `inboxes`
        # or `_under`.
        self._groups: dict[bytes, dict[bytes, dict[bytes, None]]] = {}

    def matches(self) -> Iterator[Match]:
        """Yield every cached match."""
        for cache in (self.subjects, self.heads, self.inboxes, self.firsts, *self.seconds.values()):
            yield from cache.values()
        for by_two in self.deeps.values():
            for deep in by_two.values():
                yield from deep.matches.values()

    # ------------------------------------------------------------------ keep
    def add_subject(self, subject: bytes, head: bytes, match: Match) -> None:
        """Cache the complete match of one subject."""
        if len(subject) > MAX_CACHED_SUBJECT:
            return
        if len(self.subjects) >= self._limit:
            for old in self._older_half(self.subjects):
                self.forget_subject(old, old.rpartition(b".")[0])
        self.subjects[subject] = match
        under = self._under.get(head)
        if under is None:
            under = self._under[head] = {}
            self._group(head)
        under[subject] = None

    def add_head(self, head: bytes, match: Match) -> None:
        """Cache the match of the wildcards below `head`."""
        if len(head) > MAX_CACHED_SUBJECT:
            return
        if len(self.heads) >= self._limit:
            for old in self._older_half(self.heads):
                del self.heads[old]
                self._ungroup(old)
        self.heads[head] = match
        self._group(head)

    def add_inbox(self, head: bytes, match: Match) -> None:
        """Cache the complete match of every subject right below `head`."""
        self.inboxes[head] = match
        self._group(head)

    def add_prefix(self, prefix: bytes, match: Match) -> None:
        """Cache the complete match of every subject below one or two tokens."""
        if len(prefix) > MAX_CACHED_SUBJECT:
            return
        first, two = _first_two(prefix)
        if first == two:
            if len(self.firsts) >= self._limit:
                for old in self._older_half(self.firsts):
                    del self.firsts[old]
            self.firsts[first] = match
            return
        if self._second_count >= self._limit:
            self.seconds.clear()
            self._second_count = 0
        self.seconds.setdefault(first, {})[two] = match
        self._second_count += 1

    def add_deep(self, prefix: bytes, depth: int, match: Match) -> None:
        """Cache the complete match of every subject below a prefix of `depth` tokens."""
        if len(prefix) > MAX_CACHED_SUBJECT:
            return
        first, two = _first_two(prefix)
        deep = self.deeps.get(first, {}).get(two)
        if deep is not None and (deep.depth < depth or self._deep_count >= self._limit):
            self._forget_deep(first, two)
            deep = None
        if self._deep_count >= self._limit:
            self.deeps.clear()
            self._deep_count = 0
        if deep is None:
            deep = self.deeps.setdefault(first, {})[two] = Deep(depth)
        assert deep.depth == depth, "results of one depth"
        self._deep_count += prefix not in deep.matches
        deep.matches[prefix] = match

    def depth(self, two: bytes) -> int:
        """Return the depth of the cached matches below these two tokens; 0: none."""
        deep = self.deeps.get(two[: two.find(b".")], {}).get(two)
        return deep.depth if deep is not None else 0

    def _forget_deep(self, first: bytes, two: bytes) -> None:
        by_two = self.deeps.get(first)
        if by_two is not None and (deep := by_two.pop(two, None)) is not None:
            self._deep_count -= len(deep.matches)
            if not by_two:
                del self.deeps[first]

    @staticmethod
    def _older_half(cache: Iterable[bytes]) -> list[bytes]:
        keys = list(cache)
        return list(islice(keys, (len(keys) + 1) // 2))

    def _group(self, head: bytes) -> None:
        first, two = _first_two(head)
        self._groups.setdefault(first, {}).setdefault(two, {})[head] = None

    def _ungroup(self, head: bytes) -> None:
        """Leave the group, unless some cache still knows `head`."""
        if head in self.heads or head in self.inboxes or head in self._under:
            return
        first, two = _first_two(head)
        by_two = self._groups[first]
        members = by_two[two]
        del members[head]
        if not members:
            del by_two[two]
            if not by_two:
                del self._groups[first]

    # ------------------------------------------------------------------ forget
    def forget_subject(self, subject: bytes, head: bytes) -> None:
        """Drop the match of one subject."""
        if self.subjects.pop(subject, None) is not None:
            under = self._under[head]
            del under[subject]
            if not under:
                del self._under[head]
                self._ungroup(head)

    def forget_wild(self, head: bytes) -> None:
        """Drop the matches of all subjects right below `head`, except those of single subjects."""
        if self.heads.pop(head, None) is not None or self.inboxes.pop(head, None) is not None:
            self._ungroup(head)

    def forget_head(self, head: bytes) -> None:
        """Drop every match right below `head`."""
        if head in self._under or head in self.heads or head in self.inboxes:
            self._drop(head)
            self._ungroup(head)

    def forget_prefix(self, prefix: bytes) -> None:
        """Drop the matches by these one or two tokens."""
        first, two = _first_two(prefix)
        if first == two:
            self.firsts.pop(first, None)
            return
        self._forget_deep(first, two)
        by_two = self.seconds.get(first)
        if by_two is not None and by_two.pop(two, None) is not None:
            self._second_count -= 1
            if not by_two:
                del self.seconds[first]

    def forget_below(self, start: bytes) -> None:
        """Drop every match that a filter with the literal tokens `start` before its first wildcard may affect.

        Every matching subject has at least one token more than `start`, so its head is `start` or lies below.
        """
        if not start:
            self.clear()
            return
        first, two = _first_two(start)
        self.firsts.pop(first, None)
        if first == two:
            self._second_count -= len(self.seconds.pop(first, ()))
            self._deep_count -= sum(len(deep.matches) for deep in self.deeps.pop(first, {}).values())
            for members in self._groups.pop(first, {}).values():
                for head in members:
                    self._drop(head)
            return
        self.forget_prefix(two)
        by_two = self._groups.get(first)
        if by_two is not None:
            for head in by_two.pop(two, ()):
                self._drop(head)
            if not by_two:
                del self._groups[first]

    def _drop(self, head: bytes) -> None:
        self.heads.pop(head, None)
        self.inboxes.pop(head, None)
        for subject in self._under.pop(head, ()):
            del self.subjects[subject]

    def clear(self) -> None:
        """Drop everything."""
        for cache in (self.subjects, self.heads, self.inboxes, self.firsts, self.seconds, self.deeps):
            cache.clear()
        self._under.clear()
        self._groups.clear()
        self._second_count = self._deep_count = 0

    def check(self) -> None:
        """Assert the invariants. For tests: the cost is linear."""
        under = [(subject, head) for head, subjects in self._under.items() for subject in subjects]
        assert sorted(subject for subject, _ in under) == sorted(self.subjects)
        assert all(subject.rpartition(b".")[0] == head for subject, head in under)
        assert not any(head in self.inboxes for head in self.heads)
        grouped = [
            (first, two, head) for first, g in self._groups.items() for two, heads in g.items() for head in heads
        ]
        assert sorted(head for _, _, head in grouped) == sorted({*self.heads, *self.inboxes, *self._under})
        assert all(_first_two(head) == (first, two) for first, two, head in grouped)
        assert self._second_count == sum(map(len, self.seconds.values()))
        assert all(self.seconds.values())
        deeps = [deep for by_two in self.deeps.values() for deep in by_two.values()]
        assert self._deep_count == sum(len(deep.matches) for deep in deeps)
        assert all(prefix.count(b".") == deep.depth - 1 for deep in deeps for prefix in deep.matches)
        assert all(self.deeps.values())
        for size in (len(self.subjects), len(self.heads), len(self.firsts), self._second_count, self._deep_count):
            assert size <= self._limit, "a cache outgrew its limit"
