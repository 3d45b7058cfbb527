"""Requests for stored messages.

Belongs here: the request of MSG.GET and DIRECT.GET, and resolving it to sequences with a store's indexes (ADR-31). The
messages themselves, in the log or the lake, are not read here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import chain, islice

import msgspec

from lakestream.log.store.store import Store
from lakestream.protocol.api.jsonio import Int, Time, Uint64
from lakestream.protocol.subjects import Steps, is_literal, subscribable

ALL = b">"

PATTERNS_AT_ONCE = 256
"""Patterns for which the subjects are walked once; preparing them is one step (up to 2 ms)."""


class MsgGetRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of MSG.GET and DIRECT.GET."""

    seq: Uint64 = 0
    last_by_subj: str = ""
    next_by_subj: str = ""
    batch: Int = 0
    max_bytes: Int = 0
    start_time: Time = None
    multi_last: list[str] = []
    up_to_seq: Uint64 = 0
    up_to_time: Time = None
    no_hdr: bool = False

    @property
    def clashes(self) -> bool:
        """Return True if the fields that select one message contradict each other."""
        return bool(
            (self.seq and (self.last_by_subj or self.start_time))
            or (self.last_by_subj and (self.next_by_subj or self.start_time))
        )

    @property
    def names_nothing(self) -> bool:
        """Return True if no field selects a message."""
        return not (self.seq or self.last_by_subj or self.next_by_subj or self.start_time)


def last_of(store: Store, pattern: bytes) -> int:
    """Return the last live sequence whose subject matches; 0 when there is none."""
    index = store.subjects
    if is_literal(pattern):  # a message may have been published to `a.>` itself: it is one of those that match
        return index.last(pattern)
    if pattern == ALL:
        return store.live.previous_at_or_before(store.last_seq)
    return max(map(index.last, index.matching(pattern)), default=0)


def next_of(store: Store, pattern: bytes, start: int) -> int:
    """Return the first live sequence ≥ `start` whose subject matches; 0 when there is none."""
    return next(from_on(store, pattern, start), 0)


def from_on(store: Store, pattern: bytes, start: int) -> Iterator[int]:
    """Iterate over the live sequences ≥ `start` whose subject matches (`b""`: any), observing changes meanwhile."""
    if pattern in (b"", ALL):
        yield from chain.from_iterable(pieces_from(store, pattern, start, 1))
        return
    following = store.subjects.next_at_or_after
    heads = [(seq, subject) for subject in store.subjects.matching(pattern) if (seq := following(subject, start))]
    heapify(heads)
    while heads:
        seq, subject = heads[0]
        yield seq
        later = following(subject, seq + 1)
        if later:
            heapreplace(heads, (later, subject))
        else:
            heappop(heads)


def pieces_from(store: Store, pattern: bytes, start: int, size: int) -> Iterator[Sequence[int]]:
    """Iterate over what `from_on` finds in pieces of `size`, of which only the last is smaller."""
    if pattern in (b"", ALL):
        while piece := store.live.members(start, size):
            yield piece
            start = piece[-1] + 1
        return
    seqs = from_on(store, pattern, start)
    while some := list(islice(seqs, size)):
        yield some


def count_from(store: Store, pattern: bytes, start: int) -> int:
    """Count the live messages ≥ `start` whose subject matches (`b""`: any)."""
    last = store.last_seq
    if pattern in (b"", ALL):
        return store.live.count(start, last)
    index = store.subjects
    return sum(index.count_range(subject, start, last) for subject in index.matching(pattern))


def multi_last(store: Store, patterns: Sequence[bytes], through: int, limit: int) -> Steps[list[int] | None]:
    """Find the newest sequence ≤ `through` of every matching subject, in steps that take up to a millisecond.

    The result is ascending; None if there are more than `limit`. Patterns that no subscription may have match nothing.

    Invariant: no sequence above `through` is in the result, whatever came since.

    Raises:
        LogError: a file of the index cannot be read.
    """
    newest: set[int] = set()
    for at in range(0, len(patterns), PATTERNS_AT_ONCE):
        for some in store.subjects.newest(list(filter(subscribable, patterns[at : at + PATTERNS_AT_ONCE])), through):
            newest.update(some)
            newest.discard(0)
            # A subject that two patterns match counts once. Stop early: a pattern may match millions of subjects.
            if len(newest) > limit:
                return None
            yield
        yield
    found = sorted(newest)
    assert not found or found[-1] <= through, f"sequence {found[-1]} is beyond {through}"
    return found


def through_time(store: Store, at_or_after: int) -> int:
    """Return the last sequence for `up_to_time` T, given the first live one stored at T or later (0: none).

    Like nats-server 2.15, a message stored at exactly T is not included.
    """
    return at_or_after - 1 if at_or_after else store.last_seq
