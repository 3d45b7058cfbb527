"""What committed entries do to a stream.

Belongs here: the second step of invariant 2. An entry that the group says is committed changes the stream here, the
same way on every replica and at recovery; nothing in here reads a clock. The removal of old messages by limits is in
limits.py, what a consumer's own entries do in consumer/consumer.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakestream.log.format.frame import Frame, Kind
from lakestream.log.format.record import Record, columns, iter_records, record_length, time_of
from lakestream.log.store.store import Appended
from lakestream.stream.core import limits, offline, publish
from lakestream.stream.core.batch import Batch, Effect
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.operations import (
    CreateConsumer,
    CreateStream,
    DeleteConsumer,
    DeleteMessage,
    Expire,
    Fork,
    Near,
    Operation,
    Purge,
    Remove,
    Removing,
    ResetConsumer,
    Restored,
    Skip,
    UpdateConsumer,
    UpdateStream,
    decode_operation,
    decode_progress,
)
from lakestream.stream.features.time_travel import past_of, travels
from lakestream.stream.mirroring.clone import apply_fork
from lakestream.stream.mirroring.origin import key_of

if TYPE_CHECKING:
    from lakestream.stream.assembly import Stream
    from lakestream.stream.consumer.consumer import Consumer


class Applier:
    """Applies entries to one stream, in the order of their indexes."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._per_message = self._limited = False
        self.sealing = 0
        """The newest SEAL applied: its segment is being sealed, or is sealed."""

    def adopt(self, config: StreamConfig) -> None:
        """Take a configuration."""
        # With time travel a stream can be asked how it was after each message, not only after a batch of them.
        self._per_message = limits.needs_single_steps(config) or travels(config)
        self._stream.store.keep_departures(travels(config))
        self._stream.past = past_of(self._stream, config)
        self._limited = limits.trims_by_size(config)

    # ------------------------------------------------------------------ messages
    def batch(self, at: Appended, batch: Batch) -> None:
        """A batch that this process proposed: what it holds need not be read back from the entry."""
        if self._per_message or self._rolls_inside(batch.effects, batch.first_seq + len(batch) - 1):
            self._one_by_one(at, batch)
            return
        store = self._stream.store
        store.apply_messages(at, batch.first_seq, batch.subjects, batch.lengths, batch.last_time)
        self._after_messages(batch.first_seq, batch.subjects, batch.effects)

    def _rolls_inside(self, effects: list[Effect], last_seq: int) -> bool:
        """Whether a rollup, or a schedule that ends, before the last message of an entry makes a difference to what
        limits remove after it."""
        return self._limited and any(
            (effect.rollup or effect.schedule) and effect.seq != last_seq for effect in effects
        )

    def _one_by_one(self, at: Appended, batch: Batch) -> None:
        """Store and enforce limits message by message; see `limits.needs_single_steps`."""
        offset = at.offset
        effects = {effect.seq: effect for effect in batch.effects}
        columns = zip(batch.subjects, batch.lengths, batch.records, strict=True)
        for seq, (subject, length, record) in enumerate(columns, batch.first_seq):
            place = Appended(at.segment, offset, at.index)
            self._stream.store.apply_messages(place, seq, [subject], [length], time_of(record))
            self._after_messages(seq, [subject], [effects[seq]] if seq in effects else [])
            offset += length

    def _after_messages(self, first_seq: int, subjects: list[bytes], effects: list[Effect]) -> None:
        """What storing messages brings with it: rollups, limits, timers."""
        stream = self._stream
        store = stream.store
        for seq, subject in stream.retention.unwanted(first_seq, subjects):
            store.remove(seq, subject)
        # Limits come first: they see the stream with the new message and with what that is about to replace.
        removed = limits.enforce(stream.config, store, subjects)
        self._tell(removed)
        for effect in effects:
            if effect.source:
                stream.copying.positions.note(effect.source)
            if effect.rollup:
                self._tell(limits.roll_up(store, effect.seq, effect.rollup, effect.subject))
                for consumer in list(stream.consumers.values()):
                    consumer.rolled_up(effect.seq, effect.subject if effect.rollup == b"sub" else b"")
            if effect.ttl_ns:
                stream.expiry.track(effect.seq, effect.time_ns, effect.ttl_ns)
        if effects or len(stream.schedules):
            for subject, end in stream.schedules.stored(first_seq, subjects, effects):
                removed = limits.roll_up(store, end, b"sub", subject)
                self._removals(removed, subject if removed.total() else None)
        stream.expiry.arm()

    def _tell(self, removed: limits.Removed) -> None:
        if self._stream.consumers:
            for seq, subject in removed.named:
                self._tell_removed(seq, subject)
            if removed.swept:
                for consumer in self._stream.consumers.values():
                    consumer.swept(removed.swept)

    def _tell_removed(self, seq: int, subject: bytes) -> None:
        if self._stream.consumers:
            for consumer in self._stream.audience.concerned(subject):
                consumer.removed(seq, subject)

    # ------------------------------------------------------------------ entries of others
    def frame(self, frame: Frame, at: Appended) -> None:
        """Apply an entry that this process did not propose itself: at recovery, and on a follower."""
        stream = self._stream
        if frame.kind == Kind.MESSAGES:
            self._messages(frame.body, at)
        elif frame.kind == Kind.OPERATION:
            operation = decode_operation(frame.body)
            self.operation(operation)
            stream.retention.recheck |= isinstance(operation, UpdateStream | DeleteConsumer)
        elif frame.kind == Kind.PROGRESS:
            for entry in decode_progress(frame.body):
                if not entry.name:
                    stream.fast.learn(entry.state)
                    continue
                consumer = stream.consumers.get(entry.name)
                if consumer is not None:
                    consumer.apply_progress(entry.state)
        elif frame.kind == Kind.SEAL:
            self.sealing = frame.index
        stream.store.applied = frame.index

    def _messages(self, body: bytes, at: Appended) -> None:
        """What followers do for every message: no payload is looked at, no record is made."""
        if self._stream.restoring:
            self._foreign(list(iter_records(body)), at)
            return
        found = None if self._per_message else columns(body)
        if found is None:
            self._records(list(iter_records(body)), at)
            return
        stream, first_seq, subjects = self._stream, found.first_seq, found.subjects
        effects = [
            publish.effect_of(header, stream.config, first_seq + place, time_ns, subjects[place])
            for place, header, time_ns in found.headers
        ]
        if self._rolls_inside(effects, first_seq + len(subjects) - 1):
            self._records(list(iter_records(body)), at)
            return
        stream.store.apply_messages(at, first_seq, subjects, found.lengths, found.last_time)
        self._after_messages(first_seq, subjects, self._remember(effects, first_seq, found.last_time))

    def _records(self, records: list[Record], at: Appended) -> None:
        stream = self._stream
        effects = [
            publish.effect_of(record.header, stream.config, record.seq, record.time_ns, record.subject)
            for record in records
            if record.header
        ]
        if len(records) > 1 and (self._per_message or self._rolls_inside(effects, records[-1].seq)):
            offset = at.offset
            for record in records:
                self._records([record], Appended(at.segment, offset, at.index))
                offset += record_length(record.subject, record.header, record.data)
            return
        stream.store.apply_records(at, records)
        left = self._remember(effects, records[0].seq, records[-1].time_ns)
        self._after_messages(records[0].seq, [record.subject for record in records], left)

    def _remember(self, effects: list[Effect], first_seq: int, last_time: int) -> list[Effect]:
        """Take in times and message ids of what another process proposed; returns the effects that are left to have."""
        self._stream.ages.taken(first_seq, last_time)
        dedupe, stored = self._stream.dedupe, self._stream.ages.stored
        for effect in effects:
            if effect.msg_id:
                dedupe.add(effect.msg_id, effect.seq, stored(effect.seq, effect.time_ns))
        if effects:
            dedupe.trim(stored(first_seq, last_time))
        return [effect for effect in effects if effect.acts]

    def _foreign(self, records: list[Record], at: Appended) -> None:
        """Messages of an archive. What storing them once brought with it, rollups and message ids, is over; what is to
        come, limits, TTLs and schedules, is not. Nobody need want them: consumers may have been left out."""
        stream, config = self._stream, self._stream.config
        stream.store.apply_records(at, records)
        stream.ages.taken(records[0].seq, records[-1].time_ns)
        if config.discard != "new":  # nothing is refused, and nothing makes room for the others
            self._tell(limits.enforce(config, stream.store, [record.subject for record in records]))
        for record in records:
            effects = []
            if record.header:
                effect = publish.effect_of(record.header, config, record.seq, record.time_ns, record.subject)
                effects = [effect] if effect.schedule else []
                if effect.source:
                    stream.copying.positions.note(effect.source)
                if effect.ttl_ns and record.seq in stream.store.live:
                    stream.expiry.track(effect.seq, effect.time_ns, effect.ttl_ns)
            if effects or len(stream.schedules):
                stream.schedules.stored(record.seq, [record.subject], effects)

    def _skip(self, operation: Skip) -> None:
        store = self._stream.store
        if store.msgs:
            store.skip(operation.through)
        else:
            if operation.through > store.last_seq:
                store.last_time = max(store.last_time, operation.time_ns)
            store.set_first(operation.through + 1)

    # ------------------------------------------------------------------ operations
    def operation(self, operation: Operation) -> object:
        """Apply one operation and return what its proposer waits for. Reads no clock (invariant 2)."""
        store = self._stream.store
        store.operation_ns = operation.at_ns if isinstance(operation, Removing) else 0
        try:
            return self._operation(operation)
        finally:
            store.operation_ns = None

    def _operation(self, operation: Operation) -> object:
        stream = self._stream
        match operation:
            case CreateStream():
                stream.created, stream.restoring = True, operation.restoring
                if stream.config.first_seq:
                    stream.store.set_first(stream.config.first_seq)
                    stream.intake.next_seq = stream.store.last_seq + 1
                return None
            case UpdateStream():
                return self._update(operation)
            case DeleteMessage() | Purge():
                return self._erasure(operation)
            case Expire():
                return self._removals(limits.expire(stream.store, operation.through))
            case Remove():
                return self._removals(limits.remove_each(stream.store, operation.seqs))
            case Skip():
                self._skip(operation)
                return None
            case Fork():
                apply_fork(stream, operation)
                return None
            case Near():
                stream.copying.came_near()
                return None
            case Restored():
                stream.restoring = False
                self._sourced_before([key_of(source) for source in stream.config.sources])
                stream.intake.rewind()
                return None
            case CreateConsumer() | UpdateConsumer() | ResetConsumer() | DeleteConsumer():
                return self._consumer(operation)
            case _:
                raise TypeError(f"unknown operation {operation!r}")

    def _erasure(self, operation: DeleteMessage | Purge) -> object:
        """What somebody asked to be removed, which not even an archive keeps."""
        store = self._stream.store
        store.erasing = True
        try:
            if isinstance(operation, Purge):
                before = store.last_seq
                removed_all = limits.purge(store, operation)
                self._stream.dedupe.moved(before, store.last_seq)
                return self._removals(removed_all, operation.filter)
            store.shredding = operation.erase
            removed = store.remove(operation.seq)
        finally:
            store.erasing = store.shredding = False
        if removed is not None:
            self._tell_removed(operation.seq, removed[0])
            if operation.erase:
                self._stream.shredding.asked()
        return removed is not None

    def _removals(self, removed: limits.Removed, purged: bytes | None = None) -> int:
        stream = self._stream
        self._tell(removed)
        stream.intake.next_seq = max(stream.intake.next_seq, stream.store.last_seq + 1)
        if purged is not None and stream.consumers:
            first_left = limits.first_left(stream.store, purged)
            for consumer in list(stream.consumers.values()):
                consumer.purged(purged, first_left)
        return removed.total()

    def _update(self, operation: UpdateStream) -> object:
        stream, config = self._stream, offline.stream_config(operation.config)
        before = [key_of(source) for source in stream.config.sources]
        wanted = [key_of(source) for source in config.sources]
        self._sourced_before([key for key in wanted if key not in before])
        spread = stream.config.num_replicas <= 1 < config.num_replicas
        stream.adopt(config)
        for consumer in stream.consumers.values():
            consumer.stream_changed()
        if spread and stream.serving:
            stream.log_consumers()  # those that only this process knew, too
        self._removals(limits.enforce_all(stream.config, stream.store))
        stream.expiry.arm()
        stream.on_updated(stream)
        return None

    def _sourced_before(self, keys: list[str]) -> None:
        """The stream has these sources now, and nobody knows whether it had them: see `Positions.added`."""
        store, positions = self._stream.store, self._stream.copying.positions
        if store.first_seq > 1 and store.last_time:
            positions.added(keys, store.last_time)

    def _consumer(self, operation: CreateConsumer | UpdateConsumer | ResetConsumer | DeleteConsumer) -> Consumer | None:
        from lakestream.stream.consumer.consumer import Consumer  # the two know each other; streams come first

        stream = self._stream
        consumer = stream.consumers.get(operation.name)
        stream.audience.changed()
        match operation:
            case CreateConsumer() if consumer is None:
                consumer = Consumer.create(stream, operation)
                stream.consumers[operation.name] = consumer
                if stream.serving:
                    consumer.start(recovered=False)
            case UpdateConsumer() if consumer is not None:
                consumer.apply_update(operation)
                if operation.reset:
                    consumer.apply_reset(operation.reset)
            case ResetConsumer() if consumer is not None:
                consumer.apply_reset(operation.seq)
            case DeleteConsumer() if consumer is not None:
                del stream.consumers[operation.name]
                consumer.deleted()
        return consumer
