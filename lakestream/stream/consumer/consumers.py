"""All consumers of one stream, as one part of it.

Belongs here: making and ending consumers as their operations are applied, notifying them of the stream's messages,
logging their progress (all together every `PROGRESS_INTERVAL_NS`, one at once for a confirmed ack), and their part of
the checkpoint. A single consumer is in consumer.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from lakestream.protocol.decoding import PackDecoder
from lakestream.spans import Spans
from lakestream.stream.consumer.consumer import Consumer
from lakestream.stream.consumer.filter_index import LINEAR_MATCH_LIMIT, FilterIndex
from lakestream.stream.consumer.read_ahead import Room
from lakestream.stream.consumer.retention import Retention
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.effect import Effect
from lakestream.stream.core.feature import NEVER, Feature
from lakestream.stream.core.limits import Removed
from lakestream.stream.core.operations import (
    ConsumerProgress,
    CreateConsumer,
    DeleteConsumer,
    Operation,
    Remove,
    ResetConsumer,
    UpdateConsumer,
    UpdateStream,
)
from lakestream.stream.core.stream import StreamCore

PROGRESS_INTERVAL_NS = 250_000_000
"""Consumer progress is logged at most this often (250 ms) unless a confirmed ack asks for it at once."""


DELIVERY_BYTES = 148
"""Bytes of memory of a message that a consumer delivered and whose ack it waits for."""


class _State(msgspec.Struct):
    consumers: list[tuple[str, bytes]] = []
    """(name, snapshot)."""
    removing: list[int] = []
    """Messages whose removal was decided but not on disk: acks and TTLs that led to it are no longer known."""


_STATE = PackDecoder(_State)


class Consumers(Feature, Mapping[str, Consumer]):
    """The consumers of one stream, by name."""

    operations = (CreateConsumer, UpdateConsumer, ResetConsumer, DeleteConsumer)

    def __init__(self, stream: StreamCore, exporter: Spans | None = None) -> None:
        self._stream, self.exporter = stream, exporter
        self._by_name: dict[str, Consumer] = {}
        self.index = FilterIndex(self._by_name)
        self.room = Room()
        self.retention = Retention(stream.store, stream.pipeline, stream.clock, self._by_name, self.index)
        self._holding: dict[Consumer, None] = {}
        """Consumers that may have counted or delivered messages which still are in the stream."""
        self._num_replicas = 0
        self._serving = self._progress_timer = False

    def __getitem__(self, name: str) -> Consumer:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def memory(self) -> dict[str, int]:
        return {"deliveries": DELIVERY_BYTES * sum(len(each.ledger.pending) for each in self._by_name.values())}

    def configure(self, config: StreamConfig) -> None:
        spread = self._num_replicas == 1 < config.num_replicas
        self._num_replicas = max(config.num_replicas, 1)
        self.retention.policy = config.retention
        for consumer in self._by_name.values():
            consumer.adopt()
        if spread and self._serving:
            self._log_whole_progress()  # that of volatile consumers too

    # ------------------------------------------------------------------ entries are applied
    def apply(self, operation: Operation) -> Consumer | None:
        """Apply an operation of a consumer; return the consumer, None if it does not exist."""
        assert isinstance(operation, CreateConsumer | UpdateConsumer | ResetConsumer | DeleteConsumer)
        consumer = self._by_name.get(operation.name)
        match operation:
            case CreateConsumer() if consumer is None:
                consumer = self._by_name[operation.name] = Consumer.create(self._stream, self, operation)
                self.index.put(consumer)
                if self._serving:
                    consumer.start(recovered=False)
            case UpdateConsumer() if consumer is not None:
                consumer.apply_update(operation)
                self.index.put(consumer)
            case ResetConsumer() if consumer is not None:
                consumer.apply_reset(operation.seq)
            case DeleteConsumer() if consumer is not None:
                del self._by_name[operation.name]
                self._holding.pop(consumer, None)
                self.index.drop(consumer)
                consumer.deleted()
        return consumer

    def active(self, hook: str) -> bool:
        if hook == "before_flush":  # also to propose what was done under another policy
            return self.retention.policy != "limits" or bool(self.retention.unsettled())
        return hook != "unwanted" or self.retention.policy == "interest"

    def applied(self, operation: Operation, own: bool) -> None:
        if not own and isinstance(operation, UpdateStream | DeleteConsumer):
            self.retention.recheck = True

    def progressed(self, entries: Iterable[ConsumerProgress]) -> None:
        for entry in entries:
            consumer = self._by_name.get(entry.name)
            if consumer is not None:
                consumer.ledger.apply(entry.state)
                self.holds(consumer)

    def unwanted(self, first_seq: int, subjects: Sequence[bytes]) -> Sequence[tuple[int, bytes]]:
        return self.retention.unwanted(first_seq, subjects)

    def removed(self, removed: Removed) -> None:
        for seq, subject in removed.named if self._holding else ():
            for consumer in self._holders(subject):
                if not consumer.removed(seq, subject):
                    self._holding.pop(consumer, None)
        if removed.swept:
            for consumer in self._by_name.values():
                consumer.swept(removed.swept)

    def holds(self, consumer: Consumer) -> None:
        """Report removals to a consumer from now on: it has counted or delivered messages."""
        self._holding[consumer] = None

    def _holders(self, subject: bytes) -> list[Consumer]:
        """Return the consumers that may hold messages of this subject. Idle ones, perhaps thousands, cost nothing."""
        holding = self._holding
        if len(holding) <= LINEAR_MATCH_LIMIT:
            return list(holding)
        return [one for one in self.index.concerned(subject) if one in holding]

    def purged(self, subjects: bytes, first_left: int) -> None:
        for consumer in list(self._by_name.values()):
            consumer.purged(subjects, first_left)

    def replaced(self, effect: Effect) -> None:
        for consumer in list(self._by_name.values()):
            consumer.rolled_up(effect.seq, effect.subject if effect.rollup == b"sub" else b"")

    def acknowledged(self, first_seq: int, subjects: Sequence[bytes]) -> None:
        self.index.announce(first_seq, subjects)

    def awaited(self, subjects: Sequence[bytes]) -> bool:
        return self.index.wants(subjects)

    def rebased(self) -> None:
        for consumer in list(self._by_name.values()):
            consumer.rebased()

    def finish(self, operation: Operation, then: Callable[[], None]) -> bool:
        """Remove what an operation released from an interest stream, then call `then`. Return False if it releases
        nothing."""
        if not isinstance(operation, UpdateStream | DeleteConsumer):
            return False
        self.retention.release(then, isinstance(operation, DeleteConsumer))
        return True

    # ------------------------------------------------------------------ leading begins and ends
    def lead(self, recovered: bool) -> None:
        self._serving = True
        self.retention.resume()
        for consumer in list(self._by_name.values()):
            consumer.start(recovered)
        if self._stream.replicated:
            self._log_whole_progress()

    def follow(self) -> None:
        self._serving = False
        for consumer in list(self._by_name.values()):
            consumer.rest()

    def stop(self, deleted: bool) -> None:
        self._serving = False
        for consumer in list(self._by_name.values()):
            if deleted:
                consumer.deleted()
            else:
                consumer.stop()

    def acts_at(self) -> int:
        quiet = not self.retention.unsettled() and all(each.is_quiet for each in self._by_name.values())
        return NEVER if quiet else 0

    # ------------------------------------------------------------------ progress
    def before_flush(self) -> None:
        """Propose removals before the progress that led to them."""
        self.retention.settle()

    def released(self, consumer: Consumer, seqs: Sequence[int]) -> None:
        """Take messages that one consumer of an interest or work-queue stream is done with."""
        self.retention.done(consumer, seqs)

    def request_progress(self) -> None:
        """Log the progress of all consumers within `PROGRESS_INTERVAL_NS`."""
        if not self._progress_timer and not self._stream.closed:
            self._progress_timer = True
            self._stream.clock.call_later(PROGRESS_INTERVAL_NS, self._log_progress)

    def _log_progress(self) -> None:
        self._progress_timer = False
        if self._serving and self._can_log and (entries := self._changes(self._by_name.values())):
            self._stream.pipeline.log_progress(entries)

    def progress_now(self, consumer: Consumer, done: Callable[[], object]) -> None:
        """Log one consumer's progress at once; call `done` when it is committed."""
        if self._serving and self._can_log:
            self._stream.pipeline.log_progress(self._changes([consumer]), done)

    def hand_over(self, then: Callable[[], None]) -> None:
        """Log the progress of all consumers, then call `then`: another node is about to lead."""
        if self._can_log and (entries := self._changes(self._by_name.values())):
            self._stream.pipeline.log_progress(entries, then)
        else:
            then()

    @property
    def _can_log(self) -> bool:
        return self._stream.failed is None and not self._stream.closed

    def _changes(self, consumers: Iterable[Consumer]) -> list[ConsumerProgress]:
        """Return the progress entries of these consumers, after proposing the removals that they led to."""
        self.retention.settle()
        return [ConsumerProgress(one.name, state) for one in consumers if (state := one.progress()) is not None]

    def _log_whole_progress(self) -> None:
        """Log the state of all consumers for the other members.

        An earlier leader knows of deliveries and acks that it never logged. They end here: every member, the earlier
        leader too, goes on from this entry.
        """
        entries = [
            ConsumerProgress(one.name, one.ledger.take_whole()) for one in self._by_name.values() if not one.volatile
        ]
        if entries:
            self._stream.pipeline.log_progress(entries)

    # ------------------------------------------------------------------ state
    def dump(self) -> dict[str, object]:
        """Return snapshots of all consumers, and the messages whose removal is on its way.

        The removal may come from elsewhere: what led to it is not known after a restart either.
        """
        proposed = [
            seq for each in self._stream.pipeline.pending_operations() if isinstance(each, Remove) for seq in each.seqs
        ]
        return {
            "consumers": [(name, consumer.snapshot()) for name, consumer in self._by_name.items()],
            "removing": proposed + self.retention.unsettled(),
        }

    def load(self, checkpoint: bytes) -> None:
        state = _STATE.decode(checkpoint)
        self.retention.load(state.removing)
        for name, snapshot in state.consumers:
            self._by_name[name] = Consumer.restore(self._stream, self, name, snapshot)
