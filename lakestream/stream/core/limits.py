"""Limits: the messages that a stream removes, and those that it refuses, because of its size.

Belongs here: max_msgs, max_bytes, max_msgs_per_subject, discard policy and purge as functions over a store. All of
them depend on the log alone, never on a clock, so that every replica removes the same messages
(docs/internals/streams.md#limits).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from lakestream.log.format.departures import Arrivals
from lakestream.log.store.store import Store
from lakestream.protocol.subjects import is_literal
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.operations import Purge

SMALLEST = 16
"""Minimum number of bytes that a message counts for."""

MANY = 8192
"""Above this many messages that are removed at once, their subjects are not looked up."""
ONE_BY_ONE = 64
"""Up to this many of the oldest messages are removed one by one, which needs no preparation."""


class Removed(NamedTuple):
    """Removed messages: (sequence, subject) of each; of many only the sequences, ascending."""

    named: Sequence[tuple[int, bytes]] = ()
    swept: Sequence[int] = ()

    def total(self) -> int:
        """Return the number of messages."""
        return len(self.named) + len(self.swept)


def accounted(config: StreamConfig, subject: bytes, header: bytes, payload: bytes) -> int:
    """Return the bytes that a message counts for (docs/internals/streams.md#limits): in files the length of its
    record."""
    size = len(subject) + len(header) + len(payload)
    if config.storage == "memory":
        return size + 16
    return size + 30 + (4 if header else 0)


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
    return config.max_bytes > 0 and config.max_msgs_per_subject > 0


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


def enforce_all(config: StreamConfig, store: Store) -> Removed:
    """Enforce limits that were changed, those of the whole stream first, as nats-server does."""
    named, swept = _trim_oldest(config, store)
    if config.max_msgs_per_subject > 0:
        named = [*named, *_trim_subjects(config, store, store.subjects.matching(b">"))]
    return Removed(named, swept)


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


def purge(store: Store, operation: Purge) -> Removed:
    """Apply STREAM.PURGE in all its forms (docs/internals/api.md#streams)."""
    if not operation.filter or operation.filter == b">":
        return _purge_all(store, operation)
    return _remove_matching(store, operation.filter, operation.seq or store.last_seq + 1, operation.keep)


def _remove_matching(store: Store, pattern: bytes, below: int, keep: int = 0) -> Removed:
    """Remove the messages < `below` that `pattern` matches, without the newest `keep` of all that it matches."""
    index = store.subjects
    subjects = index.matching(pattern)
    if len(subjects) > MANY or sum(map(index.count, subjects)) > MANY:
        return Removed(swept=store.sweep_below(subjects, below, keep))
    found = sorted((seq, subject) for subject in subjects for seq in index.seqs(subject))
    if keep:
        found = found[: max(0, len(found) - keep)]
    doomed = [pair for pair in found if pair[0] < below]
    store.remove_all(doomed)
    return Removed(doomed)


def first_left(store: Store, subjects: bytes) -> int:
    """Return the first sequence that matches `subjects` (all when empty), or that of the next message if none does."""
    if subjects in (b"", b">"):
        return store.first_seq
    index = store.subjects
    return min((index.first(subject) for subject in index.matching(subjects)), default=store.last_seq + 1)


def _purge_all(store: Store, operation: Purge) -> Removed:
    if operation.seq:
        removed = _remove_through(store, operation.seq - 1)
        if operation.seq > store.first_seq:
            store.set_first(operation.seq)
        return removed
    if operation.keep:
        excess = store.msgs - operation.keep
        return _remove_through(store, store.live.nth(excess - 1)) if excess > 0 else Removed()
    return expire(store, store.last_seq)


def expire(store: Store, through: int) -> Removed:
    """Remove the messages ≤ `through`; 0 for a stream that never held any."""
    if not store.last_seq:
        store.set_first(1)  # a stream that never held a message shows 0 until its first purge
    return _remove_through(store, through)


def roll_up(store: Store, seq: int, scope: bytes, subject: bytes) -> Removed:
    """Remove what the rollup at `seq` replaces: every earlier message (`all`), or those of its `subject` (`sub`) and,
    where that has wildcards, of all that it matches.

    The rollup itself may be gone already, when no consumer of an interest stream wanted it.
    """
    if scope == b"all" or subject == b">":
        return _remove_through(store, seq - 1)
    if not is_literal(subject):
        return _remove_matching(store, subject, seq)
    removed = [(earlier, subject) for earlier in store.subjects.seqs(subject, 0, seq - 1)]
    if len(removed) > ONE_BY_ONE:
        store.remove_all(removed)
    else:
        for earlier, _ in removed:
            store.remove(earlier, subject)
    return Removed(removed)


def remove_each(store: Store, seqs: list[int]) -> Removed:
    """Remove those of `seqs` that still exist."""
    removed: list[tuple[int, bytes]] = []
    for seq in seqs:
        gone = store.remove(seq)
        if gone is not None:
            removed.append((seq, gone[0]))
    return Removed(removed)
