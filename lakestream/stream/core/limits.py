"""Limits: the messages that a stream removes, and those that it refuses, because of its size.

Belongs here: max_msgs, max_bytes, max_msgs_per_subject, discard policy and purge as functions over a store. All of
them depend on the log alone, never on a clock, so that every replica removes the same messages
(docs/internals/streams.md#limits).

A purge or a lowered limit may remove millions of messages, or compare millions of subjects with a filter, which takes
seconds. Those functions return `Parts`: the caller serves others at each None among them. The store is consistent
there, and holds what is not removed yet. A crash in between needs no care: recovery applies the whole entry.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import NamedTuple

from lakestream.log.format.departures import Arrivals
from lakestream.log.format.record import MAX_FIXED
from lakestream.log.index.subject_leaves import LEAF_ROWS
from lakestream.log.store.store import Store
from lakestream.protocol.publishes import Publishes
from lakestream.protocol.subjects import is_literal
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.operations import Purge

SMALLEST = 16
"""Minimum number of bytes that a message counts for."""

MANY = 8192
"""Above this many messages that are removed at once, their subjects are not looked up."""
PART_MSGS = 1024
"""Number of messages (1,024) that are removed between two steps of an operation: 1 to 3 ms."""

PART_SUBJECTS = 4096
"""Number of subjects (4,096) that are compared with a filter between two steps of an operation: about 1 ms."""

ONE_BY_ONE = 64
"""Up to this many of the oldest messages are removed one by one, which needs no preparation."""


class Removed(NamedTuple):
    """Removed messages: (sequence, subject) of each; of many only the sequences, ascending."""

    named: Sequence[tuple[int, bytes]] = ()
    swept: Sequence[int] = ()

    def total(self) -> int:
        """Return the number of messages."""
        return len(self.named) + len(self.swept)


Parts = Iterator[Removed | None]
"""A removal in parts. At each None others may have a turn."""


def accounted(config: StreamConfig, subject: bytes, header: bytes, payload: bytes) -> int:
    """Return the bytes that a message counts for (docs/internals/streams.md#limits): in files the length of its
    record."""
    size = len(subject) + len(header) + len(payload)
    if config.storage == "memory":
        return size + 16
    return size + 30 + (4 if header else 0)


def accounted_run(run: Publishes, begin: int, end: int) -> int:
    """Return the bytes that some messages of a run count for at most."""
    return run.bytes_of(begin, end) + sum(map(len, run.subjects[begin:end])) + (end - begin) * MAX_FIXED


def refuses_new(config: StreamConfig) -> bool:
    """Return True if discard policy `new` can refuse a message of this stream."""
    if config.discard != "new":
        return False
    return config.max_msgs > 0 or config.max_bytes > 0 or config.discard_new_per_subject


def needs_single_steps(config: StreamConfig) -> bool:
    """Return True if limits must be enforced message by message.

    Removing at the end of a batch gives the same messages as removing after each, except where a replaced subject
    frees bytes that an earlier step had already made room for.
    """
    return trims_by_size(config) and config.max_bytes > 0 and config.max_msgs_per_subject > 0


def trims_by_size(config: StreamConfig) -> bool:
    """Return True if a new message can cause the removal of older ones of other subjects."""
    return config.discard == "old" and (config.max_msgs > 0 or config.max_bytes > 0)


def lowered(before: StreamConfig, after: StreamConfig) -> bool:
    """Return True if an update from `before` to `after` can make `enforce_all` remove messages."""
    trims = trims_by_size(after)
    if trims and not trims_by_size(before):
        return True
    pairs = [(before.max_msgs, after.max_msgs), (before.max_bytes, after.max_bytes)] if trims else []
    pairs.append((before.max_msgs_per_subject, after.max_msgs_per_subject))
    return any(now > 0 and not 0 < was <= now for was, now in pairs)


def most_trimmed(config: StreamConfig, store: Store, msgs: int, size: int) -> int:
    """Return how many of the oldest messages go at most once `msgs` more, of `size` bytes in total, are stored."""
    if not trims_by_size(config):
        return 0
    over = store.msgs + msgs - config.max_msgs if config.max_msgs > 0 else 0
    if config.max_bytes > 0:
        over = max(over, -(-(store.bytes + size - config.max_bytes) // SMALLEST))
    return max(0, over)


def enforce(config: StreamConfig, store: Store, subjects: Sequence[bytes], arrivals: Arrivals | None = None) -> Removed:
    """Enforce the limits after `subjects` got new messages: `arrivals`, if departures tell them apart."""
    trimmed = _trim_subjects(config, store, set(subjects), arrivals)
    named, swept = _trim_oldest(config, store)
    return Removed([*trimmed, *named] if trimmed else named, swept)


def enforce_all(config: StreamConfig, store: Store) -> Parts:
    """Enforce limits that were changed, those of the whole stream first, as nats-server does."""
    excess = store.excess(config.max_msgs, config.max_bytes) if trims_by_size(config) else 0
    if excess > 0:
        yield from _through(store, store.live.nth(excess - 1))
    keep = config.max_msgs_per_subject
    for some in _some_subjects(store, b">") if keep > 0 else ():
        if some is None:
            yield None
            continue
        together: list[bytes] = []
        found = 0
        for subject in some:
            while (excess := store.subjects.count(subject) - keep) > PART_MSGS:
                yield _oldest_of(store, subject)
                yield None
            if excess <= 0:
                continue
            together.append(subject)
            found += excess
            if found >= PART_MSGS:
                yield Removed(store.trim(together, keep))
                yield None
                together, found = [], 0
        if together:
            yield Removed(store.trim(together, keep))


def _trim_subjects(
    config: StreamConfig, store: Store, subjects: Iterable[bytes], arrivals: Arrivals | None = None
) -> list[tuple[int, bytes]]:
    """Keep the newest max_msgs_per_subject messages of each subject."""
    return store.trim(subjects, config.max_msgs_per_subject, arrivals) if config.max_msgs_per_subject > 0 else []


def _trim_oldest(config: StreamConfig, store: Store) -> Removed:
    """Remove the oldest messages until max_msgs and max_bytes are kept.

    Not with discard policy `new`: there an update that lowers the limits removes nothing.
    """
    removed: list[tuple[int, bytes]] = []
    if not trims_by_size(config):
        return Removed(removed)
    while 0 < config.max_msgs < store.msgs or (0 < config.max_bytes < store.bytes and store.msgs):
        seq = store.first_seq
        if len(removed) == ONE_BY_ONE:
            number = store.excess(config.max_msgs, config.max_bytes)
            named, swept = _remove_through(store, store.live.nth(number - 1))
            return Removed([*removed, *named], swept)
        gone = store.remove(seq)
        # Invariant: first_seq of a stream that holds messages is itself a held message.
        assert gone is not None, f"first sequence {seq} is not in the store"
        removed.append((seq, gone[0]))
    return Removed(removed)


def _remove_through(store: Store, seq: int) -> Removed:
    """Remove the messages ≤ `seq`."""
    if store.live.count(store.first_seq, seq) > MANY:
        return Removed(swept=store.sweep_through(seq))
    return Removed(store.remove_through(seq))


def _through(store: Store, seq: int) -> Parts:
    """Remove the messages ≤ `seq`, in parts."""
    gone = store.live.count(store.first_seq, seq)
    if min(gone, store.msgs - gone) > MANY:
        # The subject index first, while the messages still count: then one step removes them all.
        border = seq + 1
        for some in _some_subjects(store, b">"):
            if some is None:
                yield None
            else:
                store.subjects.cut(some, border)
        yield Removed(swept=store.cut_front(seq))
    else:
        yield _remove_through(store, seq)


def _some_subjects(store: Store, pattern: bytes) -> Iterator[list[bytes] | None]:
    """Yield the subjects that match `pattern` in lists, and None where others may have a turn."""
    if is_literal(pattern):
        if pattern in store.subjects:
            yield [pattern]
        return
    compared = 0
    for some in store.subjects.some_matching(pattern):
        for at in range(0, len(some), PART_SUBJECTS):
            yield some[at : at + PART_SUBJECTS]
            compared += LEAF_ROWS
            if compared >= PART_SUBJECTS or len(some) > PART_SUBJECTS:
                yield None
                compared = 0


def purge(store: Store, operation: Purge) -> Parts:
    """Apply STREAM.PURGE in all its forms (docs/internals/api.md#streams)."""
    if operation.filter and operation.filter != b">":
        yield from _matching(store, operation.filter, operation.seq or store.last_seq + 1, operation.keep)
    elif operation.seq:
        yield from _through(store, operation.seq - 1)
        if operation.seq > store.first_seq:
            store.set_first(operation.seq)
    elif operation.keep:
        excess = store.msgs - operation.keep
        if excess > 0:
            yield from _through(store, store.live.nth(excess - 1))
    else:
        yield from expire(store, store.last_seq)


def expire(store: Store, through: int) -> Parts:
    """Remove the messages ≤ `through`; 0 for a stream that never held any."""
    if not store.last_seq:
        store.set_first(1)  # a stream that never held a message shows 0 until its first purge
    yield from _through(store, through)


def _matching(store: Store, pattern: bytes, below: int, keep: int = 0) -> Parts:
    """Remove the messages < `below` that `pattern` matches, without the newest `keep` of all that it matches."""
    index, few, number = store.subjects, list[bytes](), 0
    for some in _some_subjects(store, pattern):
        if some is None:
            yield None
            continue
        few += some
        number += sum(map(index.count, some))
        if number > MANY:
            break
    else:
        yield _remove_few(store, few, below, keep)
        return
    if keep:
        below = min(below, (yield from _border(store, pattern, keep)))
    for some in _some_subjects(store, pattern):
        if some is None:
            yield None
            continue
        together: list[bytes] = []
        number = 0
        for subject in some:
            while index.count(subject) > PART_MSGS and index.nth(subject, PART_MSGS - 1) < below:
                yield _oldest_of(store, subject)
                yield None
            together.append(subject)
            number += index.count(subject)
            if number >= PART_MSGS:
                yield Removed(swept=store.sweep_below(together, below))
                yield None
                together, number = [], 0
        if together:
            yield Removed(swept=store.sweep_below(together, below))


def _remove_few(store: Store, subjects: list[bytes], below: int, keep: int) -> Removed:
    index = store.subjects
    found = sorted((seq, subject) for subject in subjects for seq in index.seqs(subject))
    if keep:
        found = found[: max(0, len(found) - keep)]
    doomed = [pair for pair in found if pair[0] < below]
    store.remove_all(doomed)
    return Removed(doomed)


def _oldest_of(store: Store, subject: bytes) -> Removed:
    """Remove the oldest PART_MSGS messages of a subject that has more."""
    border = store.subjects.nth(subject, PART_MSGS)
    return Removed(swept=store.sweep_below([subject], border))


def _border(store: Store, pattern: bytes, keep: int) -> Generator[None, None, int]:
    """Return the sequence of the oldest among the newest `keep` messages that `pattern` matches; 0 if all are kept."""
    parts: list[array[int]] = []
    for some in _some_subjects(store, pattern):
        if some is None:
            yield None
        else:
            parts.append(array("Q", sorted(store.subjects.together(some))))
    if sum(map(len, parts)) <= keep:
        return 0
    low, high = store.first_seq, store.last_seq
    while low < high:  # at least `keep` are ≥ low, and fewer are > high
        middle = (low + high + 1) // 2
        if sum(len(part) - bisect_left(part, middle) for part in parts) >= keep:
            low = middle
        else:
            high = middle - 1
        yield None
    return low


def first_left(store: Store, subjects: bytes) -> Generator[None, None, int]:
    """Return the first sequence that matches `subjects` (all when empty), or that of the next message if none does."""
    if subjects in (b"", b">"):
        return store.first_seq
    first = store.last_seq + 1
    for some in _some_subjects(store, subjects):
        if some is None:
            yield None
        else:
            first = min(first, *map(store.subjects.first, some))
    return first


def roll_up(store: Store, seq: int, scope: bytes, subject: bytes) -> Parts:
    """Remove what the rollup at `seq` replaces: every earlier message (`all`), or those of its `subject` (`sub`) and,
    where that has wildcards, of all that it matches.

    The rollup itself may be gone already, when no consumer of an interest stream wanted it.
    """
    if scope == b"all" or subject == b">":
        yield from _through(store, seq - 1)
    elif not is_literal(subject):
        yield from _matching(store, subject, seq)
    else:
        removed = [(earlier, subject) for earlier in store.subjects.seqs(subject, 0, seq - 1)]
        if len(removed) > ONE_BY_ONE:
            store.remove_all(removed)
        else:
            for earlier, _ in removed:
                store.remove(earlier, subject)
        yield Removed(removed)


def remove_each(store: Store, seqs: list[int]) -> Parts:
    """Remove those of `seqs` that still exist, many in parts."""
    if len(seqs) <= ONE_BY_ONE:
        yield Removed([(seq, gone[0]) for seq in seqs if (gone := store.remove(seq)) is not None])
        return
    for at in range(0, len(seqs), PART_MSGS):
        live = sorted({seq for seq in seqs[at : at + PART_MSGS] if seq in store.live})
        removed = list(zip(live, store.subjects_of(live), strict=True))
        store.remove_all(removed)
        yield Removed(removed)
        yield None
