"""A stream: from a published message to its ack, and every change of its state.

Belongs here: the two steps of invariant 2. `ingest` and `propose` decide what shall happen and hand it to the group;
`apply` makes it happen once the group says that it is committed, the same way on every replica and at recovery.
The rules of publishing are in publish.py, the removal of old messages in limits.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from lakestream.jetstream import limits, publish
from lakestream.jetstream.batch import MAX_BATCH_BYTES, Batch, Effect
from lakestream.jetstream.dedupe import Dedupe
from lakestream.jetstream.errors import ApiError, api_error
from lakestream.jetstream.expiry import Expiry
from lakestream.jetstream.operations import (
    CreateConsumer,
    CreateStream,
    DeleteConsumer,
    DeleteMessage,
    Expire,
    Operation,
    Progress,
    Purge,
    Remove,
    ResetConsumer,
    UpdateConsumer,
    UpdateStream,
    decode_operation,
    decode_progress,
    encode,
)
from lakestream.jetstream.ports import Bus, ClientInfo, Clock, History, Io
from lakestream.jetstream.reader import Reader
from lakestream.jetstream.retention import Retention
from lakestream.jetstream.stream_config import StreamConfig
from lakestream.jetstream.stream_state import Asked, Done, StreamState
from lakestream.jetstream.view import ProposedView
from lakestream.log.frame import Frame, Kind
from lakestream.log.record import Record, iter_records, record_length
from lakestream.log.store import Appended, Store
from lakestream.protocol import headers
from lakestream.raft.group import Committed, Group, Proposal

if TYPE_CHECKING:
    from lakestream.jetstream.consumer import Consumer

PROGRESS_INTERVAL_NS = 250_000_000
"""Consumer progress is logged at most this often (250 ms) unless a confirmed ack asks for it at once."""

MAX_BUFFERED_MSGS = 100_000
MAX_BUFFERED_BYTES = 128 << 20
"""Publishes waiting for the log beyond these are refused with 10167 (nats-server's max_buffered_msgs/_size)."""


class Stream:
    """One stream on this server.

    Everything runs in the event loop; only the group's writes happen in threads. All durations are ns.
    """

    def __init__(self, create: CreateStream, store: Store, bus: Bus, clock: Clock, io: Io, domain: str = "") -> None:
        self.config = msgspec.json.decode(create.config, type=StreamConfig)
        self.name, self.uid, self.account = self.config.name, create.uid, create.account
        self.created_ns = create.created_ns
        self.store, self.bus, self.clock, self.io = store, bus, clock, io
        self.consumers: dict[str, Consumer] = {}
        self.history: History | None = None
        self.failed: ApiError | None = None
        self.closed = False
        self.reader = Reader(self)
        self.group = Group(store.log, io, self._committed, self._failure)
        self.dedupe = Dedupe(self.config.duplicate_window)
        self.expiry = Expiry(self)
        self.retention = Retention(self)
        self.on_updated: Callable[[Stream], None] = lambda _: None
        self.domain = domain
        domain_part = f'"domain":"{domain}",' if domain else ""
        self._ack = f'{{"stream":"{self.name}",{domain_part}"seq":'.encode()
        self._error_tail = f'"stream":"{self.name}","seq":0}}'.encode()
        self._next_seq = store.last_seq + 1
        self.last_time = store.last_time
        self._batch: Batch | None = None
        self._open: list[Proposal] = []
        self._flying: list[Proposal] = []
        self._scheduled = False
        self._operations = 0
        self._deferred: list[tuple[bytes, bytes, bytes, bytes, ClientInfo]] = []
        self._deferred_bytes = 0
        self._progress_timer = False
        self._started = False
        self.view = ProposedView(self)
        self.guarded = self._guards = False
        self._adopt(self.config)

    @property
    def next_seq(self) -> int:
        """The sequence that the next message gets."""
        return self._next_seq

    def uncommitted(self) -> list[Proposal]:
        """Everything proposed but not committed, oldest first."""
        return self._flying + self._open

    # Reading is the reader's; these are its short names for consumers and direct get.
    def local(self, seq: int) -> bool:
        """See `Reader.local`."""
        return self.store.is_local(seq)

    def get(self, seq: int) -> Record | None:
        """See `Reader.get`."""
        return self.store.read(seq)

    def run(self, first: int, max_msgs: int, max_bytes: int) -> list[Record]:
        """See `Reader.run`."""
        return self.store.read_run(first, max_msgs, max_bytes)

    async def fetch(self, seq: int) -> Record | None:
        """See `Reader.fetch`."""
        return await self.reader.fetch(seq)

    async def fetch_run(
        self, first: int, max_msgs: int, max_bytes: int, subjects: Sequence[bytes] | None = None
    ) -> list[Record]:
        """See `Reader.fetch_run`."""
        return await self.reader.fetch_run(first, max_msgs, max_bytes, subjects)

    async def first_at(self, time_ns: int) -> int:
        """See `Reader.first_at`."""
        return await self.reader.first_at(time_ns)

    def _adopt(self, config: StreamConfig) -> None:
        """Take a configuration: what follows from it is worked out once, not for each message."""
        self.config = config
        self.store.describe(self.uid, self.name, self.account, msgspec.json.encode(config))
        self.dedupe.window_ns = config.duplicate_window
        self._guards = config.sealed or config.max_msg_size > 0 or config.no_ack or limits.refuses_new(config)
        self.guarded = self.guarded or self._guards
        self._per_message = limits.needs_single_steps(config)

    # ------------------------------------------------------------------ publish: decide
    def ingest(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        """Take a published message. The pub ack leaves once the message is committed (invariant 1)."""
        if header or self.guarded or self._deferred or len(payload) > MAX_BUFFERED_BYTES:
            self._ingest_checked(subject, reply, header, payload, client)
            return
        self._append(subject, reply, b"", payload)

    def _append(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, time_ns: int = 0) -> int:
        """Put a message (from `time_ns`, or now) that passed every rule into the open batch; its sequence, or 0."""
        batch = self._batch
        if batch is None or batch.size >= MAX_BATCH_BYTES:
            opened = self._open_batch()
            if opened is None:
                self._refuse(reply, self.failed or api_error(10167))
                return 0
            batch = opened
        # Invariant 5: times never go backwards in a stream, whatever the clock does.
        now = time_ns or time.time_ns()
        if now < self.last_time:
            now = self.last_time
        self.last_time = now
        seq = self._next_seq
        self._next_seq = seq + 1
        batch.add(seq, now, subject, reply, header, payload)
        return seq

    def _open_batch(self) -> Batch | None:
        if self.failed is not None or self.closed:
            return None
        if self.view.pending_msgs() > MAX_BUFFERED_MSGS or self.view.pending_bytes() > MAX_BUFFERED_BYTES:
            return None
        batch = Batch(self._next_seq)
        self._batch = batch
        self._open.append(Proposal(Kind.MESSAGES, batch.records, 0, batch))
        self._schedule()
        return batch

    def _ingest_checked(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        """The way of a message with headers, or into a stream whose configuration can refuse it."""
        if self._deferred or self._operations:
            # A rule may depend on what a purge or delete in flight will leave, and order among publishes stays.
            self._defer(subject, reply, header, payload, client)
            return
        if self.config.no_ack:
            reply = b""
        header = headers.without_status(header)
        try:
            outcome = publish.check(self.view, subject, header, payload)
            if isinstance(outcome, publish.Duplicate):
                self._answer_duplicate(reply, outcome.seq)
                return
            length = limits.accounted(self.config, subject, header, payload)
            refused = self.view.room(subject, length, bool(outcome.rollup))
            if refused is not None:
                if self.view.pending_msgs():
                    # What is in flight may yet make room by replacing older messages: judged again once it is stored.
                    self._defer(subject, reply, header, payload, client)
                    return
                raise refused
        except ApiError as error:
            self._refuse(reply, error)
            return
        self.take(subject, reply, header, payload, outcome)

    def take(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, effect: Effect | None, time_ns: int = 0
    ) -> int:
        """Store a message that passed every rule; returns its sequence, 0 when refused. `time_ns`: see `_append`."""
        seq = self._append(subject, reply, header, payload, time_ns)
        if not seq or self._batch is None or effect is None:
            return seq
        if effect.msg_id:
            self.dedupe.add(effect.msg_id, seq, self.last_time)
        if effect.rollup or effect.ttl_ns:
            effect.seq = seq
            self._batch.effects.append(effect)
            if effect.rollup or time_ns:
                # A rollup ends its batch: what it removes is settled before the next message. So does an imported TTL:
                # it counts from the batch's last time, and the next message's may be days later.
                self._batch = None
        return seq

    def importable(self) -> bool:
        """Whether messages with times of their own can be taken now: nothing before them is still to be settled."""
        return not (self._deferred or self._operations or self.closed) and self.failed is None

    def _defer(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        self._deferred_bytes += len(subject) + len(header) + len(payload)
        if len(self._deferred) >= MAX_BUFFERED_MSGS or self._deferred_bytes > MAX_BUFFERED_BYTES:
            self._deferred_bytes -= len(subject) + len(header) + len(payload)
            self._refuse(reply, api_error(10167))
            return
        self._deferred.append((subject, reply, header, payload, client))

    def _answer_duplicate(self, reply: bytes, seq: int) -> None:
        if not reply:
            return
        answer = (reply, b'%b%d,"duplicate": true}' % (self._ack, seq))
        for proposal in reversed(self.uncommitted()):
            batch = proposal.context
            if isinstance(batch, Batch) and batch.first_seq <= seq < batch.first_seq + len(batch):
                batch.late.append(answer)
                return
        self.bus.reply_many([answer])

    def _refuse(self, reply: bytes, error: ApiError) -> None:
        if reply:
            body = msgspec.json.encode(error.as_dict())
            self.bus.publish(reply, b"", b"", b'{"error":%b,%b' % (body, self._error_tail))

    # ------------------------------------------------------------------ operations: decide
    def propose(self, operation: Operation, done: Done | None = None) -> None:
        """Log an operation; `done(result)` after it is applied, or `done(ApiError)` when the stream has failed."""
        if self.failed is not None or self.closed:
            if done is not None:
                done(self.failed or api_error(10059))
            return
        self._operations += 1
        if isinstance(operation, Purge | UpdateStream):
            self.guarded = True  # it may move the sequence or change the rules: publishes behind it wait for it
        self._batch = None
        self._open.append(Proposal(Kind.OPERATION, encode(operation), 0, Asked(operation, done)))
        self._schedule()

    def request_progress(self) -> None:
        """A consumer's progress has changed: log it with the others within `PROGRESS_INTERVAL_NS`."""
        if not self._progress_timer and not self.closed:
            self._progress_timer = True
            self.clock.call_later(PROGRESS_INTERVAL_NS, self._log_progress)

    def _log_progress(self) -> None:
        self._progress_timer = False
        self._propose_progress(list(self.consumers.values()), None)

    def progress_now(self, consumer: Consumer, done: Callable[[], None]) -> None:
        """Log one consumer's progress at once; `done` when it is committed (a confirmed ack)."""
        self._propose_progress([consumer], done)

    def _propose_progress(self, consumers: Iterable[Consumer], done: Callable[[], None] | None) -> None:
        if self.failed is not None or self.closed:
            return
        self.retention.settle()
        entries = []
        for consumer in consumers:
            state = consumer.progress()
            if state is not None:
                entries.append(Progress(consumer.name, state))
        if not entries and done is None:
            return
        self._batch = None
        self._open.append(Proposal(Kind.PROGRESS, encode(entries), 0, done))
        self._schedule()

    def consumer_done(self, consumer: Consumer, seqs: Sequence[int]) -> None:
        """A consumer of an interest or work-queue stream is done with these messages (acked, or sent without ack).

        Called before the progress that says so is logged.
        """
        self.retention.done(consumer, seqs)
        self._schedule()

    # ------------------------------------------------------------------ the group
    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self.clock.call_soon(self._flush)

    def _flush(self) -> None:
        """Hand over what was gathered, unless a write is under way: then it goes on gathering (group commit)."""
        self.retention.settle()
        self._scheduled = False
        if self.group.in_flight or not self._open or self.failed is not None or self.closed:
            return
        proposals, self._open = self._open, []
        self._batch = None
        for proposal in proposals:
            if isinstance(proposal.context, Batch):
                proposal.count = len(proposal.context)
        self._flying = proposals
        self.group.propose(proposals)

    def _committed(self, entries: list[Committed]) -> None:
        """Apply what is now durable, in order, and answer for it."""
        if self.closed:
            return  # deleted, or the next start applies it: a last checkpoint may be on its way in a thread
        self._flying = []
        for position, entry in enumerate(entries):
            try:
                self._apply_entry(entry)
            except Exception as error:
                rest = entries[position:]
                self._flying = [Proposal(each.frame.kind, b"", each.frame.count, each.context) for each in rest]
                self.group.give_up(error)
                raise
        if not self._operations:
            self.guarded = self._guards
        if self._deferred and not self._operations:
            deferred, self._deferred, self._deferred_bytes = self._deferred, [], 0
            for message in deferred:
                self.ingest(*message)
        # The next write starts before this turn's acks are sent: the disk works while the sockets do.
        self._flush()
        if self.store.on_settled is not None:
            self.store.on_settled()
        if self.store.checkpoint_due and not self.closed:
            self.checkpoint()

    def _apply_entry(self, entry: Committed) -> None:
        context = entry.context
        if isinstance(context, Batch):
            self._apply_batch(entry, context)
        elif isinstance(context, Asked):
            result = self.apply_operation(context.operation)
            self._operations -= 1
            self._finish(context.operation, result, context.done)
        elif callable(context):  # progress that somebody waits for
            context()
        self.store.applied = entry.frame.index

    def _finish(self, operation: Operation, result: object, done: Done | None) -> None:
        """Answer the proposer, after what the operation released from an interest stream has gone as well."""
        if isinstance(operation, UpdateStream | DeleteConsumer):
            released = self.retention.released()
            if released:
                self.propose(Remove(released), lambda _: done(result) if done is not None else None)
                return
        if done is not None:
            done(result)

    def _failure(self, error: Exception) -> None:
        """Invariant 4: a failed write freezes the stream. Nothing in flight was acked; say so to whoever waits."""
        self.failed = api_error(10077, err=str(error))
        waiting, self._flying, self._open, self._batch = self._flying + self._open, [], [], None
        self._operations = 0
        for proposal in waiting:
            context = proposal.context
            if isinstance(context, Batch):
                for reply in context.replies:
                    self._refuse(reply, self.failed)
            elif isinstance(context, Asked) and context.done is not None:
                context.done(self.failed)
        deferred, self._deferred = self._deferred, []
        for _, reply, _, _, _ in deferred:
            self._refuse(reply, self.failed)

    # ------------------------------------------------------------------ apply
    def _apply_batch(self, entry: Committed, batch: Batch) -> None:
        first = batch.first_seq
        if self._per_message:
            self._apply_one_by_one(entry.at, batch)
        else:
            self.store.apply_messages(entry.at, first, batch.subjects, batch.lengths, batch.last_time)
            self._after_messages(first, batch.subjects, batch.effects)
        prefix = self._ack
        replies = [(reply, b"%b%d}" % (prefix, seq)) for seq, reply in enumerate(batch.replies, first) if reply]
        if batch.late:
            replies += batch.late
        if replies:
            self.bus.reply_many(replies)
        last = first + len(batch) - 1
        for consumer in list(self.consumers.values()):
            consumer.stored(first, last)

    def _apply_one_by_one(self, at: Appended, batch: Batch) -> None:
        """Store and enforce limits message by message; see `limits.needs_single_steps`."""
        offset = at.offset
        effects = {effect.seq: effect for effect in batch.effects}
        for seq, (subject, length) in enumerate(zip(batch.subjects, batch.lengths, strict=True), batch.first_seq):
            place = Appended(at.segment, offset, at.index)
            self.store.apply_messages(place, seq, [subject], [length], batch.last_time)
            self._after_messages(seq, [subject], [effects[seq]] if seq in effects else [])
            offset += length

    def _after_messages(self, first_seq: int, subjects: list[bytes], effects: list[Effect]) -> None:
        """What storing messages brings with it: rollups, limits, timers."""
        for seq, subject in self.retention.unwanted(first_seq, subjects):
            self.store.remove(seq, subject)
        for effect in effects:
            if effect.rollup:
                for seq, subject in limits.roll_up(self.store, effect.seq, effect.rollup):
                    self._tell_removed(seq, subject)
            if effect.ttl_ns:
                self.expiry.track(effect.seq, self.store.last_time, effect.ttl_ns)
        for seq, subject in limits.enforce(self.config, self.store, subjects):
            self._tell_removed(seq, subject)
        self.expiry.arm()

    def _tell_removed(self, seq: int, subject: bytes) -> None:
        for consumer in self.consumers.values():
            consumer.removed(seq, subject)

    def apply_frame(self, frame: Frame, at: Appended) -> None:
        """Apply a committed frame that this process did not propose itself: recovery (and, one day, a follower)."""
        if frame.kind == Kind.MESSAGES:
            self._apply_records(list(iter_records(frame.body)), at)
        elif frame.kind == Kind.OPERATION:
            operation = decode_operation(frame.body)
            self.apply_operation(operation)
            self.retention.recheck |= isinstance(operation, UpdateStream | DeleteConsumer)
        elif frame.kind == Kind.PROGRESS:
            for entry in decode_progress(frame.body):
                consumer = self.consumers.get(entry.name)
                if consumer is not None:
                    consumer.apply_progress(entry.state)
        self.store.applied = frame.index
        self._next_seq = self.store.last_seq + 1
        self.last_time = self.store.last_time

    def _apply_records(self, records: list[Record], at: Appended) -> None:
        if self._per_message and len(records) > 1:
            offset = at.offset
            for record in records:
                self._apply_records([record], Appended(at.segment, offset, at.index))
                offset += record_length(record.subject, record.header, record.data)
            return
        self.store.apply_records(at, records)
        effects = []
        for record in records:
            if record.header:
                effect = publish.effect_of(record.header, record.seq)
                if effect.msg_id:
                    self.dedupe.add(effect.msg_id, record.seq, record.time_ns)
                if effect.rollup or effect.ttl_ns:
                    effects.append(effect)
        self._after_messages(records[0].seq, [record.subject for record in records], effects)

    def apply_operation(self, operation: Operation) -> object:
        """Apply one operation and return what its proposer waits for. Reads no clock (DESIGN §4, invariant 2)."""
        match operation:
            case CreateStream():
                if self.config.first_seq:
                    self.store.set_first(self.config.first_seq)
                    self._next_seq = self.store.last_seq + 1
                return None
            case UpdateStream():
                return self._apply_update(operation)
            case DeleteMessage() | Purge():
                return self._apply_erasure(operation)
            case Expire():
                return self._apply_removals(self.store.remove_through(operation.through))
            case Remove():
                return self._apply_removals(limits.remove_each(self.store, operation.seqs))
            case CreateConsumer() | UpdateConsumer() | ResetConsumer() | DeleteConsumer():
                return self._apply_consumer(operation)
            case _:
                raise TypeError(f"unknown operation {operation!r}")

    def _apply_erasure(self, operation: DeleteMessage | Purge) -> object:
        """What somebody asked to be removed, which not even an archive keeps."""
        self.store.erasing = True
        try:
            if isinstance(operation, Purge):
                return self._apply_removals(limits.purge(self.store, operation), operation.filter)
            removed = self.store.remove(operation.seq)
        finally:
            self.store.erasing = False
        if removed is not None:
            self._tell_removed(operation.seq, removed[0])
        return removed is not None

    def _apply_removals(self, removed: list[tuple[int, bytes]], purged: bytes | None = None) -> int:
        for seq, subject in removed:
            self._tell_removed(seq, subject)
        self._next_seq = max(self._next_seq, self.store.last_seq + 1)
        if purged is not None:
            for consumer in list(self.consumers.values()):
                consumer.purged(purged)
        return len(removed)

    def _apply_update(self, operation: UpdateStream) -> object:
        self._adopt(msgspec.json.decode(operation.config, type=StreamConfig))
        self._apply_removals(limits.enforce(self.config, self.store, None))
        self.expiry.arm()
        self.on_updated(self)
        return None

    def _apply_consumer(
        self, operation: CreateConsumer | UpdateConsumer | ResetConsumer | DeleteConsumer
    ) -> Consumer | None:
        from lakestream.jetstream.consumer import Consumer  # the two know each other; streams come first

        consumer = self.consumers.get(operation.name)
        match operation:
            case CreateConsumer() if consumer is None:
                consumer = Consumer.create(self, operation)
                self.consumers[operation.name] = consumer
                if self._started:
                    consumer.start(recovered=False)
            case UpdateConsumer() if consumer is not None:
                consumer.apply_update(operation)
            case ResetConsumer() if consumer is not None:
                consumer.apply_reset(operation)
            case DeleteConsumer() if consumer is not None:
                del self.consumers[operation.name]
                consumer.deleted()
        return consumer

    # ------------------------------------------------------------------ life
    def checkpoint(self) -> None:
        """Let the store write its indexes and our state beside the log, so that recovery starts from here."""
        self.store.checkpoint(self.dump())

    def dump(self) -> bytes:
        """This stream's own part of the checkpoint."""
        stored = self.store.last_seq
        last_msg_id, last_msg_id_seq = self.dedupe.last_through(stored)
        asked = [each.context.operation for each in self.uncommitted() if isinstance(each.context, Asked)]
        removing = [seq for operation in asked if isinstance(operation, Remove) for seq in operation.seqs]
        state = StreamState(
            create=CreateStream(self.uid, self.account, msgspec.json.encode(self.config), self.created_ns),
            dedupe=self.dedupe.dump(self.clock.now(), stored),
            last_msg_id=last_msg_id,
            last_msg_id_seq=last_msg_id_seq,
            ttls=self.expiry.dump(),
            consumers=[(name, consumer.snapshot()) for name, consumer in self.consumers.items()],
            removing=removing + self.retention.unsettled(),
        )
        return msgspec.msgpack.encode(state)

    def load(self, state: StreamState) -> None:
        """Take back what `dump` gave; called before the frames after the checkpoint are applied."""
        from lakestream.jetstream.consumer import Consumer

        self.dedupe.load(state.dedupe, state.last_msg_id, state.last_msg_id_seq)
        self.expiry.load(state.ttls)
        self.retention.load(state.removing)
        for name, snapshot in state.consumers:
            self.consumers[name] = Consumer.restore(self, name, snapshot)

    def start(self) -> None:
        """Recovery is over, or the stream is new: timers and deliveries may begin."""
        self._started = True
        self.expiry.start()
        self.retention.resume()
        for consumer in list(self.consumers.values()):
            consumer.start()

    def stop(self, deleted: bool = False) -> None:
        """Stop serving. `deleted`: the stream is gone for good, and its consumers' clients are told."""
        self.closed = True
        self.expiry.stop()
        if deleted:
            waiting, self._flying, self._open = self.uncommitted(), [], []
            for proposal in waiting:
                if isinstance(proposal.context, Asked) and proposal.context.done is not None:
                    proposal.context.done(api_error(10059))
        for consumer in list(self.consumers.values()):
            if deleted:
                consumer.deleted()
            else:
                consumer.stop()
