"""Applier: what committed entries do to a stream.

Belongs here: the second step of invariant 2. An entry that the group says is committed changes the stream here, the
same way on every replica and at recovery; nothing in here reads a clock. An operation that may remove millions of
messages is applied in steps, each of which leaves the store consistent. Which messages limits remove is in limits.py;
what else an entry does is its features' (`Feature.stored`, `Feature.apply`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

from lakestream.log.format.departures import Arrivals
from lakestream.log.format.frame import Frame, Kind
from lakestream.log.format.record import Record, columns, iter_records, record_length, times_of
from lakestream.log.index.subject_index import WARMED_AT_ONCE
from lakestream.log.store.log import Appended
from lakestream.log.store.store import Store
from lakestream.raft.group.group import take_all
from lakestream.stream.core import limits, offline
from lakestream.stream.core.batch import Batch
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.effect import MARK, Effect, Effects
from lakestream.stream.core.feature import Hooks, Stored
from lakestream.stream.core.operations import (
    CreateStream,
    DeleteMessage,
    Expire,
    Operation,
    Purge,
    Remove,
    Removing,
    Restored,
    Skip,
    UpdateStream,
    decode_operation,
    decode_progress,
)
from lakestream.stream.core.pipeline import Pipeline


class Applier:
    """Applies entries to one stream, in the order of their indexes.

    Args:
        adopt: called with the configuration of an UpdateStream.
        updated: called once it is applied.

    Attributes:
        created: the log holds the stream's creation.
        restoring: what is applied is an archive's, until `Restored`.
        effects: of all features; set before the first entry.
        sealing: index of the newest SEAL applied: its segment is being sealed, or is sealed.
    """

    def __init__(
        self,
        store: Store,
        pipeline: Pipeline,
        hooks: Hooks,
        adopt: Callable[[StreamConfig], None],
        updated: Callable[[], None],
    ) -> None:
        self._store, self._pipeline, self._hooks = store, pipeline, hooks
        self._adopt, self._updated = adopt, updated
        self._config = StreamConfig()
        self._per_message = self._limited = False
        self.created = self.restoring = False
        self.sealing = 0
        self.effects: Effects

    def configure(self, config: StreamConfig) -> None:
        """Take a configuration."""
        self._config = config
        singly = self._hooks.applies_single_messages
        self._per_message = limits.needs_single_steps(config) or any(each.applies_single_messages() for each in singly)
        self._limited = limits.trims_by_size(config)

    # ------------------------------------------------------------------ messages
    def batch(self, at: Appended, batch: Batch) -> None:
        """Apply a batch that this process proposed: what it holds need not be read back from the entry."""
        if self._per_message or self._rolls_inside(batch.effects, batch.first_seq + len(batch) - 1):
            self._one_by_one(at, batch)
            return
        self._store.apply_messages(at, batch.first_seq, batch.subjects, batch.lengths, batch.last_time)
        stored = Stored(batch.first_seq, batch.subjects, batch.effects, batch.last_time)
        self._after_messages(stored, own=True, times=batch.times)

    def _rolls_inside(self, effects: Sequence[Effect], last_seq: int) -> bool:
        """Return True if what a message before the last one of an entry removes can make a difference to what limits
        remove after it, or to the times at which they do."""
        if self._store.departures is not None:
            return any(effect.removes for effect in effects)
        return self._limited and any(effect.removes and effect.seq != last_seq for effect in effects)

    def _one_by_one(self, at: Appended, batch: Batch) -> None:
        """Store and enforce limits message by message; see `limits.needs_single_steps`."""
        offset = at.offset
        effects = {effect.seq: effect for effect in batch.effects}
        rows = zip(batch.subjects, batch.lengths, batch.times(), strict=True)
        for seq, (subject, length, time_ns) in enumerate(rows, batch.first_seq):
            place = Appended(at.segment, offset, at.index)
            self._store.apply_messages(place, seq, [subject], [length], time_ns)
            self._after_messages(Stored(seq, [subject], [effects[seq]] if seq in effects else [], time_ns), own=True)
            offset += length

    def _after_messages(self, stored: Stored, own: bool, times: Callable[[], Sequence[int]] | None = None) -> None:
        """Apply what storing messages brings with it: interest, limits, rollups, and what features do.

        Args:
            times: returns the times of the messages in ns, if they are several.
        """
        store, hooks = self._store, self._hooks
        arrivals = None
        if times is not None and len(stored.subjects) > 1 and store.departures is not None:
            arrivals = Arrivals(stored.first_seq, stored.subjects, times)
        if not own:
            for each in hooks.received:
                each.received(stored)
        for each in hooks.unwanted:
            for seq, subject in each.unwanted(stored.first_seq, stored.subjects):
                store.remove(seq, subject)
        # Limits come first: they see the stream with the new message and with what that is about to replace.
        if self._limited or self._config.max_msgs_per_subject > 0:
            self._tell(limits.enforce(self._config, store, stored.subjects, arrivals))
        for effect in stored.effects:
            if effect.rollup:
                for removed in limits.roll_up(store, effect.seq, effect.rollup, effect.subject):
                    self._tell(removed)
                for each in hooks.replaced:
                    each.replaced(effect)
        for each in hooks.stored:
            each.stored(stored)

    def supersede(self, seq: int, subject: bytes) -> None:
        """Remove the messages of a subject before `seq`, as a rollup and a purge of it would."""
        total = 0
        for removed in limits.roll_up(self._store, seq, b"sub", subject):
            self._tell(removed)
            total += removed.total() if removed is not None else 0
        if total:
            take_all(self._purged(subject))

    def _tell(self, removed: limits.Removed | None) -> None:
        if removed is not None and (removed.named or removed.swept):
            for each in self._hooks.removed:
                each.removed(removed)

    # ------------------------------------------------------------------ entries of others
    def frame(self, frame: Frame, at: Appended) -> Iterator[None] | None:
        """Apply an entry that this process did not propose itself: at recovery, and on a follower.

        Return the steps of an operation, or of messages whose subjects are in files; None for another entry, which is
        applied already.
        """
        if frame.kind == Kind.OPERATION:
            return self._operation_of(frame)
        if frame.kind == Kind.MESSAGES:
            if frame.count > WARMED_AT_ONCE and self._store.subjects.cold_subjects:
                return self._messages_of(frame, at)
            self._messages(frame.body, at)
        elif frame.kind == Kind.PROGRESS:
            entries = decode_progress(frame.body)
            for each in self._hooks.progressed:
                each.progressed(entries)
        elif frame.kind == Kind.SEAL:
            self.sealing = frame.index
        self._store.applied = frame.index
        return None

    def _operation_of(self, frame: Frame) -> Iterator[None]:
        yield from self.operation(decode_operation(frame.body), own=False)
        self._store.applied = frame.index

    def _messages_of(self, frame: Frame, at: Appended) -> Iterator[None]:
        found = columns(frame.body)
        subjects = [record.subject for record in iter_records(frame.body)] if found is None else found.subjects
        yield from self._store.subjects.warming(subjects) or ()
        self._messages(frame.body, at)
        self._store.applied = frame.index

    def _messages(self, body: bytes, at: Appended) -> None:
        """Apply messages as followers do: no payload is looked at, no record is made."""
        if self.restoring:
            self._archived(list(iter_records(body)), at)
            return
        found = None if self._per_message else columns(body)
        if found is None:
            self._records(list(iter_records(body)), at)
            return
        first_seq, subjects = found.first_seq, found.subjects
        effects = [
            self.effects.of(header, self._config, first_seq + place, time_ns, subjects[place])
            for place, header, time_ns in found.headers
            if MARK in header
        ]
        if self._rolls_inside(effects, first_seq + len(subjects) - 1):
            self._records(list(iter_records(body)), at)
            return
        self._store.apply_messages(at, first_seq, subjects, found.lengths, found.last_time)
        stored = Stored(first_seq, subjects, effects, found.last_time)
        self._after_messages(stored, own=False, times=lambda: times_of(body, found.lengths))

    def _effects_of(self, records: Sequence[Record]) -> list[Effect]:
        return [
            self.effects.of(record.header, self._config, record.seq, record.time_ns, record.subject)
            for record in records
            if MARK in record.header
        ]

    def _records(self, records: list[Record], at: Appended) -> None:
        effects = self._effects_of(records)
        if len(records) > 1 and (self._per_message or self._rolls_inside(effects, records[-1].seq)):
            offset = at.offset
            for record in records:
                self._records([record], Appended(at.segment, offset, at.index))
                offset += record_length(record.subject, record.header, record.data)
            return
        self._store.apply_records(at, records)
        subjects = [record.subject for record in records]
        self._after_messages(Stored(records[0].seq, subjects, effects, records[-1].time_ns), own=False)

    def _archived(self, records: list[Record], at: Appended) -> None:
        """Apply messages of an archive, also those that no consumer needs: consumers may have been left out."""
        self._store.apply_records(at, records)
        subjects = [record.subject for record in records]
        if self._config.discard != "new":  # nothing is refused, and nothing makes room for the others
            self._tell(limits.enforce(self._config, self._store, subjects))
        begin = 0
        for end in range(1, len(records) + 1):
            if end == len(records) or records[end].seq != records[end - 1].seq + 1:  # sequences may jump
                run = records[begin:end]
                stored = Stored(run[0].seq, subjects[begin:end], self._effects_of(run), run[-1].time_ns, True)
                for each in self._hooks.received:
                    each.received(stored)
                for each in self._hooks.stored:
                    each.stored(stored)
                begin = end

    # ------------------------------------------------------------------ operations
    def operation(self, operation: Operation, own: bool) -> Generator[None, None, object]:
        """Apply one operation in steps and return what its proposer waits for. Reads no clock (invariant 2)."""
        store = self._store
        store.operation_ns = operation.at_ns if isinstance(operation, Removing) else 0
        try:
            result = yield from self._operation(operation)
        finally:
            store.operation_ns = None
        for each in self._hooks.applied:
            each.applied(operation, own)
        if isinstance(operation, UpdateStream):
            self._updated()
        return result

    def _operation(self, operation: Operation) -> Generator[None, None, object]:
        store, pipeline = self._store, self._pipeline
        match operation:
            case CreateStream():
                self.created, self.restoring = True, operation.restoring
                if self._config.first_seq:
                    store.set_first(self._config.first_seq)
                    pipeline.next_seq = store.last_seq + 1
                return None
            case UpdateStream():
                self._adopt(offline.stream_config(operation.config))
                yield from self._removals(limits.enforce_all(self._config, store))
                return None
            case DeleteMessage():
                return self._deletion(operation)
            case Purge():
                return (yield from self._purge(operation))
            case Expire():
                return (yield from self._removals(limits.expire(store, operation.through)))
            case Remove():
                return (yield from self._removals(limits.remove_each(store, operation.seqs)))
            case Skip():
                self._skip(operation)
                return None
            case Restored():
                self.restoring = False
                pipeline.rewind()
                return None
            case _:
                owner = next(each for each in reversed(self._hooks.features) if isinstance(operation, each.operations))
                return owner.apply(operation)

    def _skip(self, operation: Skip) -> None:
        store = self._store
        if store.msgs:
            store.skip(operation.through)
        else:
            if operation.through > store.last_seq:
                store.last_time = max(store.last_time, operation.time_ns)
            store.set_first(operation.through + 1)

    def _deletion(self, operation: DeleteMessage) -> bool:
        """Remove one message on request; not even an archive keeps it."""
        store = self._store
        store.erasing, store.shredding = True, operation.erase
        try:
            removed = store.remove(operation.seq)
        finally:
            store.erasing = store.shredding = False
        if removed is not None:
            self._tell(limits.Removed([(operation.seq, removed[0])]))
        return removed is not None

    def deletions(self, operations: Sequence[DeleteMessage]) -> list[bool]:
        """Apply deletions of one kind and time together; return for each True if its message was there."""
        store, first = self._store, operations[0]
        store.erasing, store.shredding, store.operation_ns = True, first.erase, first.at_ns
        try:
            seqs = sorted({each.seq for each in operations if each.seq in store.live})
            removed = list(zip(seqs, store.subjects_of(seqs), strict=True))
            store.remove_all(removed)
        finally:
            store.erasing, store.shredding, store.operation_ns = False, False, None
        self._tell(limits.Removed(removed))
        for each in self._hooks.applied:  # once: to them it makes no difference which message it is
            each.applied(first, True)
        left = dict.fromkeys(seqs, True)
        return [left.pop(each.seq, False) for each in operations]

    def _purge(self, operation: Purge) -> Generator[None, None, int]:
        """Remove messages on request; not even an archive keeps those."""
        store = self._store
        before, store.erasing = store.last_seq, True
        try:
            total = yield from self._removals(limits.purge(store, operation))
        finally:
            store.erasing = False
        for each in self._hooks.skipped:
            each.skipped(before, store.last_seq)
        yield from self._purged(operation.filter)
        return total

    def _purged(self, subjects: bytes) -> Iterator[None]:
        """Tell the features of a purge of these subjects, in steps."""
        first_left = yield from limits.first_left(self._store, subjects)
        for each in self._hooks.purged:
            each.purged(subjects, first_left)

    def _removals(self, parts: Iterable[limits.Removed | None]) -> Generator[None, None, int]:
        """Remove messages part by part, a step at each None; return their number."""
        total = 0
        for removed in parts:
            if removed is None:
                yield
            else:
                total += removed.total()
                self._tell(removed)
        # The next message follows the sequences that the operation skipped.
        self._pipeline.next_seq = max(self._pipeline.next_seq, self._store.last_seq + 1)
        return total
