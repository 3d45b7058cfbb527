"""Limits: which messages a stream lets go, and which it never takes.

Belongs here: max_msgs, max_bytes, max_msgs_per_subject, discard policy and purge as functions over a store. All of
them depend on the log alone, never on a clock, so that every replica removes the same messages (streams.md §4).
"""

from __future__ import annotations

from typing import Protocol

from lakestream.jetstream.errors import ApiError, api_error
from lakestream.jetstream.operations import Purge
from lakestream.jetstream.stream_config import StreamConfig
from lakestream.log.store import Store

Removed = list[tuple[int, bytes]]
"""(sequence, subject) of messages that are gone."""


class Pending(Protocol):
    """What is proposed but not committed; see view.ProposedView."""

    @property
    def config(self) -> StreamConfig:
        """The stream's configuration."""

    def pending_msgs(self) -> int:
        """Uncommitted messages."""

    def pending_bytes(self) -> int:
        """Their bytes."""

    def pending_of(self, subject: bytes) -> int:
        """Uncommitted messages of one subject."""


def accounted(config: StreamConfig, subject: bytes, header: bytes, payload: bytes) -> int:
    """Bytes that a message counts for (streams.md §4): for files the length of its record."""
    size = len(subject) + len(header) + len(payload)
    if config.storage == "memory":
        return size + 16
    return size + 30 + (4 if header else 0)


def refuses_new(config: StreamConfig) -> bool:
    """Whether discard policy `new` can refuse a message of this stream at all."""
    if config.discard != "new":
        return False
    return config.max_msgs > 0 or config.max_bytes > 0 or config.discard_new_per_subject


def needs_single_steps(config: StreamConfig) -> bool:
    """Whether limits must be enforced message by message.

    Removing at the end of a batch gives the same messages as removing after each, except where a replaced subject
    frees bytes that an earlier step had already made room for.
    """
    return config.max_bytes > 0 and config.max_msgs_per_subject > 0


def room(pending: Pending, store: Store, subject: bytes, length: int, rollup: bool) -> ApiError | None:
    """Why discard policy `new` refuses a message of `length` bytes, or None. `rollup`: it makes its own room."""
    config = pending.config
    if not refuses_new(config):
        return None
    held = 0
    if config.max_msgs_per_subject > 0:
        held = store.subjects.count(subject) + pending.pending_of(subject)
        if held >= config.max_msgs_per_subject:
            if config.discard_new_per_subject and not rollup:
                return api_error(10077, err="maximum messages per subject exceeded")
            return None  # it takes the place of its subject's oldest
    if 0 < config.max_msgs <= store.msgs + pending.pending_msgs():
        return api_error(10077, err="maximum messages exceeded")
    if 0 < config.max_bytes < store.bytes + pending.pending_bytes() + length:
        return api_error(10077, err="maximum bytes exceeded")
    return None


def enforce(config: StreamConfig, store: Store, subjects: list[bytes] | None) -> Removed:
    """Remove what is over the limits after `subjects` got new messages (None: after a change of limits, all)."""
    removed: Removed = []
    keep = config.max_msgs_per_subject
    if keep > 0:
        index = store.subjects
        for subject in set(subjects) if subjects is not None else index.matching(b">"):
            excess = index.count(subject) - keep
            if excess > 0:
                for seq in index.seqs(subject)[:excess]:
                    store.remove(seq)
                    removed.append((seq, subject))
    while 0 < config.max_msgs < store.msgs or (0 < config.max_bytes < store.bytes and store.msgs):
        seq = store.first_seq
        gone = store.remove(seq)
        # Invariant: first_seq of a stream that holds messages is itself a held message.
        assert gone is not None, f"first sequence {seq} is not in the store"
        removed.append((seq, gone[0]))
    return removed


def purge(store: Store, operation: Purge) -> Removed:
    """STREAM.PURGE in all its forms (api.md §3)."""
    if not operation.filter or operation.filter == b">":
        return _purge_all(store, operation)
    index = store.subjects
    below = operation.seq or store.last_seq + 1
    found = sorted((seq, subject) for subject in index.matching(operation.filter) for seq in index.seqs(subject))
    if operation.keep:
        found = found[: max(0, len(found) - operation.keep)]
    doomed = [(seq, subject) for seq, subject in found if seq < below]
    for seq, _ in doomed:
        store.remove(seq)
    return doomed


def _purge_all(store: Store, operation: Purge) -> Removed:
    if operation.seq:
        removed = store.remove_through(operation.seq - 1)
        if operation.seq > store.first_seq:
            store.set_first(operation.seq)
        return removed
    if operation.keep:
        excess = store.msgs - operation.keep
        if excess <= 0:
            return []
        last = store.last_seq
        for _ in range(operation.keep):
            last = store.live.previous_at_or_before(last) - 1
        return store.remove_through(last)
    if not store.last_seq:
        store.set_first(1)  # a stream that never held a message shows 0 until its first purge
    return store.remove_through(store.last_seq)


def roll_up(store: Store, seq: int, scope: bytes) -> Removed:
    """Remove what the rollup at `seq` replaces: every earlier message (`all`), or those of its subject (`sub`)."""
    if scope == b"all":
        return store.remove_through(seq - 1)
    subject = store.subject_of(seq)
    removed = [(earlier, subject) for earlier in store.subjects.seqs(subject, 0, seq - 1)]
    for earlier, _ in removed:
        store.remove(earlier)
    return removed


def remove_each(store: Store, seqs: list[int]) -> Removed:
    """Remove those of `seqs` that are still there."""
    removed: Removed = []
    for seq in seqs:
        gone = store.remove(seq)
        if gone is not None:
            removed.append((seq, gone[0]))
    return removed
