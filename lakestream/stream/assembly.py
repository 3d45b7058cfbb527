"""A stream: from a published message to its ack, and every change of its state.

Belongs here: what keeps the two steps of invariant 2 together. What is decided (messages by intake.py, operations and
consumers' progress here) is gathered and handed to the group; once the group says that it is committed it is applied
(apply.py), and whoever asked gets an answer. In a group with others a stream leads or follows; what changes with that
is here too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from lakestream.log.format.frame import Frame, Kind
from lakestream.log.format.record import Record
from lakestream.log.store.store import Appended, Store
from lakestream.ports import Bus, Clock, Handler, History, Io, Past
from lakestream.protocol.api.advisory import advise
from lakestream.protocol.api.errors import ApiError, api_error, for_clients
from lakestream.raft.group.group import Committed, Group, Proposal
from lakestream.raft.group.raft_group import NotLeader
from lakestream.stream.consumer.filter_index import Audience
from lakestream.stream.consumer.read_ahead import Room
from lakestream.stream.consumer.retention import Retention
from lakestream.stream.core import offline
from lakestream.stream.core.applier import Applier
from lakestream.stream.core.batch import Batch
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.operations import (
    CreateStream,
    DeleteConsumer,
    Operation,
    Progress,
    Purge,
    Remove,
    Removing,
    UpdateStream,
    encode,
)
from lakestream.stream.core.parts import Part
from lakestream.stream.core.proposer import Intake
from lakestream.stream.core.reader import Reader
from lakestream.stream.core.state import Asked, Done, Foreign, StreamState
from lakestream.stream.core.storage_use import AccountUse
from lakestream.stream.features.ages import Ages
from lakestream.stream.features.async_persist import Syncing
from lakestream.stream.features.atomic import Atomic
from lakestream.stream.features.batches import BatchRoom
from lakestream.stream.features.dedupe import Dedupe
from lakestream.stream.features.expiry import Expiry
from lakestream.stream.features.fast import Fast
from lakestream.stream.features.schedules import Schedules
from lakestream.stream.features.secure_delete import Shredding
from lakestream.stream.mirroring.mirroring import Copying

if TYPE_CHECKING:
    from lakestream.stream.consumer.consumer import Consumer

PROGRESS_INTERVAL_NS = 250_000_000
"""Consumer progress is logged at most this often (250 ms) unless a confirmed ack asks for it at once."""


class Stream:
    """One stream on this server.

    Everything runs in the event loop; only the group's writes happen in threads. All durations are ns.
    """

    def __init__(
        self,
        create: CreateStream,
        store: Store,
        bus: Bus,
        clock: Clock,
        io: Io,
        domain: str = "",
        alone: bool = True,
        batches: BatchRoom | None = None,
    ) -> None:
        """A stream over `store`; silent until `start`, or in a group with others until `lead`.

        Args:
            create: as it was created; the configuration may have changed since.
            domain: shown in pub acks; "" for none.
            alone: in a group of its own, which is made here; else `join` comes after recovery.
            batches: what the server's streams share for their batches; one of its own without.
        """
        self.config = offline.stream_config(create.config)
        self.name, self.uid, self.account = self.config.name, create.uid, create.account
        self.created_ns = create.created_ns
        self.store, self.bus, self.clock, self.io, self.domain = store, bus, clock, io, domain
        self.consumers: dict[str, Consumer] = {}
        self.audience = Audience(self.consumers)
        self.history: History | None = None
        self.past: Past | None = None
        self.use: AccountUse | None = None
        """What it tells how much it holds, once it is among a server's streams."""
        self.failed: ApiError | None = None
        self.closed = False
        self.leading = alone
        """Whether this node decides for the stream. Only then does it take messages and operations."""
        self.serving = False
        """Whether consumers deliver and messages expire here."""
        self.restoring = self.hidden = create.restoring
        """Whether what is applied is an archive's (see `Restored`), and whether nobody is to see the stream yet."""
        self._on_revealed: Callable[[], None] = _nobody_waits
        self.created = alone
        """Whether the log holds the stream's creation. Its first leader sees to that."""
        self.reader = Reader(self)
        self.read_ahead = Room()
        self.group: Group
        self._me = ""
        if alone:
            self.group = Group(store.log, io, self.committed, self.failure)
        self.dedupe = Dedupe(self.config.duplicate_window)
        self.ages, self.expiry = Ages(clock), Expiry(self)
        self.schedules = Schedules(self)
        self.retention = Retention(self)
        self.on_updated: Callable[[Stream], None] = lambda _: None
        self.on_failed: Callable[[Stream, Exception], None] = lambda _, __: None
        self.operations = 0
        """Operations that are proposed and not applied."""
        self._open: list[Proposal] = []
        self._flying: list[Proposal] = []
        self._scheduled = self._progress_timer = False
        self.applier, self.intake = Applier(self), Intake(self)
        self.ingest: Handler = self.intake.ingest
        """What the subscriptions of the stream's subjects call; see `Intake.ingest`."""
        self.view = self.intake.view
        self.shredding, self.syncing = Shredding(self), Syncing(self)
        room = batches or BatchRoom()
        self.atomic, self.fast, self.copying = Atomic(self, room), Fast(self, room), Copying(self)
        self.intake.routes += [self.fast.route, self.atomic.route]
        self.parts: list[Part] = [self.shredding, self.syncing, self.expiry, self.schedules, self.atomic, self.fast]
        """What works only while this node leads."""
        self.parts += [self.copying, self.intake.confirming]
        self.intake.rewind()
        self.adopt(self.config)

    @property
    def next_seq(self) -> int:
        """The sequence that the next message gets."""
        return self.intake.next_seq

    @property
    def last_time(self) -> int:
        """When the newest message was stored, in ns; those on their way included."""
        return self.intake.last_time

    @property
    def guarded(self) -> bool:
        """See `Intake.guarded`."""
        return self.intake.guarded

    @property
    def weighed(self) -> bool:
        """Whether each message is looked at by `no_room`, because the server or the account holds much already."""
        return self.use is not None and self.use.tight(self.config.storage)

    def no_room(self, length: int) -> ApiError | None:
        """Why neither server nor account has room for a message of this accounted length; None when they have."""
        return self.use.refusal(self, length) if self.use is not None else None

    @property
    def replicated(self) -> bool:
        """Whether other nodes hold this stream too."""
        membership = self.group.membership
        return membership is not None and any(name != self._me for name in membership.members)

    @property
    def sealed(self) -> bool:
        """Whether no seal is under way that an applied entry asked for."""
        return self.store.sealed_through[0] >= self.applier.sealing

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

    def adopt(self, config: StreamConfig) -> None:
        """Take a configuration: what follows from it is worked out once, not for each message."""
        self.config = config
        self.store.describe(self.uid, self.name, self.account, msgspec.json.encode(config))
        self.store.log.packing = config.compression == "s2"
        self.dedupe.window_ns = config.duplicate_window
        self.intake.adopt(config)
        self.applier.adopt(config)
        self.atomic.adopt(config)
        self.fast.adopt(config)
        self.copying.adopt(config)

    # ------------------------------------------------------------------ decide
    def advise(self, event: str, kind: str, fields: dict[str, object]) -> None:
        """Tell those who listen that `event` happened to this stream; see `advisory.advise`."""
        shown = {"stream": self.name, **fields}
        advise(self.bus, self.clock, self.domain, f"STREAM.{event}.{self.name}", kind, shown)

    def gather_batch(self, batch: Batch) -> None:
        """A batch that is being filled goes into the log after what was proposed before it."""
        self._open.append(Proposal(Kind.MESSAGES, batch.records, 0, batch))
        self._schedule()

    def propose(self, operation: Operation, done: Done | None = None) -> None:
        """Log an operation; `done(result)` after it is applied, or `done(ApiError)` when that can not be said.

        The error is the stream's own when it has failed, and 10008 when another node leads: what was proposed here
        before may still be applied there.
        """
        if self.failed is not None or self.closed or not self.leading:
            if done is not None:
                done(self.failed or api_error(10059 if self.closed else 10008))
            return
        self.operations += 1
        if isinstance(operation, Removing):
            operation = msgspec.structs.replace(operation, at_ns=self.intake.stamp(operation))
        if isinstance(operation, Purge | UpdateStream):
            self.intake.guard()  # it may move the sequence or change the rules: publishes behind it wait for it
        self.intake.close_batch()
        self._open.append(Proposal(Kind.OPERATION, encode(operation), 0, Asked(operation, done)))
        self._schedule()

    def propose_foreign(self, kind: Kind, body: bytes, count: int, done: Callable[[ApiError | None], None]) -> None:
        """Log an entry of an archive, `count` messages in it; `done(None)` once it is applied, or with why it may not
        be."""
        if self.failed is not None or self.closed or not self.leading:
            done(self.failed or api_error(10059 if self.closed else 10008))
            return
        self.intake.close_batch()
        self._open.append(Proposal(kind, body, count, Foreign(done)))
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

    def hand_over(self, then: Callable[[], None]) -> None:
        """Log what consumers have done since the last time, then call `then`: another node is about to take over."""
        if self.failed is not None or self.closed:
            then()
            return
        self.retention.settle()
        states = [(one.name, one.progress()) for one in self.consumers.values()]
        entries = [Progress(name, state) for name, state in states if state is not None]
        if entries:
            self.log_progress(entries, then)
        else:
            then()

    def _propose_progress(self, consumers: Iterable[Consumer], done: Callable[[], None] | None) -> None:
        if self.failed is not None or self.closed or not self.serving:
            return
        self.retention.settle()
        entries = []
        for consumer in consumers:
            state = consumer.progress()
            if state is not None:
                entries.append(Progress(consumer.name, state))
        if entries or done is not None:
            self.log_progress(entries, done or _nobody_waits)

    def log_progress(self, entries: list[Progress], done: Callable[[], None]) -> None:
        """Log these entries after what was proposed before; `done` once they are committed."""
        self.intake.close_batch()
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
        self.fast.settle()
        proposals, self._open = self._open, []
        self.intake.close_batch()
        for proposal in proposals:
            if isinstance(proposal.context, Batch):
                proposal.count = len(proposal.context)
        # Earlier ones may still be on their way to other members: they come back first.
        self._flying += proposals
        try:
            self.group.propose(proposals)
        except NotLeader:
            self.lost([proposal.context for proposal in self._flying])

    def committed(self, entries: list[Committed]) -> None:
        """Apply what is now durable, in order, and answer for it. The group's `on_commit`."""
        if self.closed:
            return  # deleted, or the next start applies it: a last checkpoint may be on its way in a thread
        own = sum(entry.context is not None for entry in entries)
        del self._flying[:own]
        for position, entry in enumerate(entries):
            try:
                self._apply(entry)
            except Exception as error:
                rest = entries[position:]
                self._flying[:0] = [Proposal(each.frame.kind, b"", each.frame.count, each.context) for each in rest]
                self.group.give_up(error)
                raise
        if self.use is not None:
            self.use.note(self)
        if not self.operations:
            self.intake.resume()
        # The next write starts before this turn's acks are sent: the disk works while the sockets do.
        self._flush()
        self.intake.confirming.committed(own)
        self.syncing.written()
        if self.store.on_settled is not None:
            self.store.on_settled()
        if self.store.checkpoint_due and not self.closed:
            self.checkpoint()

    def _apply(self, entry: Committed) -> None:
        context = entry.context
        if context is None:  # of another node, or of an earlier leadership of this one
            self.applier.frame(entry.frame, entry.at)
            return
        if isinstance(context, Batch):
            self.intake.pending_bytes -= context.size
            self.applier.batch(entry.at, context)
            self._acknowledge(context)
        elif isinstance(context, Asked):
            result = self.applier.operation(context.operation)
            self.operations -= 1
            self._finish(context.operation, result, context.done)
        elif isinstance(context, Foreign):
            self.applier.frame(entry.frame, entry.at)
            context.done(None)
        elif callable(context):  # progress; here it was made long ago
            context()
        self.store.applied = entry.frame.index

    def _acknowledge(self, batch: Batch) -> None:
        for seq, time_ns, call in batch.after:
            call(seq, time_ns)
        first = batch.first_seq
        prefix, tails = self.intake.ack, batch.tails
        if tails:
            answers = enumerate(batch.replies, first)
            replies = [(reply, b"%b%d%b}" % (prefix, seq, tails.get(seq, b""))) for seq, reply in answers if reply]
        else:
            replies = [(reply, b"%b%d}" % (prefix, seq)) for seq, reply in enumerate(batch.replies, first) if reply]
        if batch.late:
            replies += batch.late
        if replies:
            self.bus.reply_many(replies)
        self.audience.announce(first, batch.subjects)

    def _finish(self, operation: Operation, result: object, done: Done | None) -> None:
        """Answer the proposer, after what the operation released from an interest stream has gone as well."""
        if isinstance(operation, UpdateStream | DeleteConsumer):
            finish = _nobody_waits if done is None else functools.partial(done, result)
            self.retention.release(finish, isinstance(operation, DeleteConsumer))
        elif done is not None:
            done(result)

    def apply_frame(self, frame: Frame, at: Appended) -> None:
        """Apply a committed entry at recovery."""
        self.applier.frame(frame, at)
        self.intake.rewind()

    def failure(self, error: Exception) -> None:
        """Invariant 4: a failed write freezes the stream. Nothing in flight was acked; say so to whoever waits.

        The group's `on_failure`. With other members, what is in flight may be stored by them: then nobody is told.
        """
        self.failed = api_error(10077, err=for_clients(error))
        self.on_failed(self, error)
        if self.replicated:
            self.follow()
            return
        waiting, self._flying, self._open = self._flying + self._open, [], []
        self.operations = 0
        for proposal in waiting:
            context = proposal.context
            if isinstance(context, Batch):
                for reply in [*context.replies, *(reply for reply, _ in context.late)]:
                    self.intake.refuse(reply, self.failed)
            elif isinstance(context, Asked | Foreign) and context.done is not None:
                context.done(self.failed)
        self.intake.fail(self.failed)
        self.intake.confirming.release()

    # ------------------------------------------------------------------ roles
    def join(self, group: Group, me: str) -> None:
        """Be the stream of a group that may have other members than this node; its callbacks reach this object."""
        self.group, self._me = group, me

    def lead(self, ready: Callable[[], None]) -> None:
        """Decide for the stream from now on: every committed entry was applied, and no other node can.

        Args:
            ready: called when it serves; a new stream's creation has to be logged before.
        """
        assert not self.leading, "a leader is told once"
        if self.failed is not None or self.closed:
            return
        self.leading = True
        self.intake.rewind()

        def serve(result: object = None) -> None:
            if isinstance(result, ApiError):
                return
            if self.hidden:
                self._on_revealed = serve
                return
            self.start()
            ready()

        if self.created:
            serve()
        else:
            self.propose(self._creation(), serve)

    def reveal(self) -> None:
        """The stream may be seen from now on, and serves if this node leads it."""
        self.hidden = False
        serve, self._on_revealed = self._on_revealed, _nobody_waits
        serve()

    def follow(self) -> None:
        """Another node may decide from now on. What it did not see does not count, and nobody is told about it."""
        if self.leading:
            self.lost([proposal.context for proposal in self._flying])

    def lost(self, contexts: list[object]) -> None:
        """Nobody knows whether these proposals are stored: leadership ended. The group's `on_lost`.

        Their publishers and confirmed acks get no answer and ask again; the API's callers get 10008.
        """
        self.leading = self.serving = False
        self._on_revealed = _nobody_waits
        for part in self.parts:
            part.stop()
        for consumer in list(self.consumers.values()):
            consumer.rest()
        unproposed = [proposal.context for proposal in self._open]
        contexts = contexts + unproposed
        self._flying, self._open, self.operations = [], [], 0
        self.dedupe.forget_after(self.store.last_seq)
        self.intake.abandon([context for context in unproposed if isinstance(context, Batch)])
        for context in contexts:
            if isinstance(context, Asked | Foreign) and context.done is not None:
                context.done(self.failed or api_error(10008))

    # ------------------------------------------------------------------ life
    def _creation(self) -> CreateStream:
        config = msgspec.json.encode(self.config)
        return CreateStream(self.uid, self.account, config, self.created_ns, self.restoring)

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
            create=self._creation(),
            dedupe=[],
            ids=self.dedupe.dump(self.clock.steady(), stored),
            last_msg_id=last_msg_id,
            last_msg_id_seq=last_msg_id_seq,
            ttls=self.expiry.dump(),
            schedules=self.schedules.dump(),
            intervals=self.schedules.intervals(),
            consumers=[(name, consumer.snapshot()) for name, consumer in self.consumers.items()],
            removing=removing + self.retention.unsettled(),
            created=self.created,
            sources=self.copying.positions.dump(),
            near=self.copying.near,
            ages=self.ages.dump(self.store.first_seq),
            steady_ns=self.clock.steady(),
        )
        return msgspec.msgpack.encode(state)

    def load(self, state: StreamState) -> None:
        """Take back what `dump` gave; called before the frames after the checkpoint are applied."""
        from lakestream.stream.consumer.consumer import Consumer

        self.created = state.created
        behind = self.ages.load(state.ages, state.steady_ns)
        self.dedupe.load(state.ids, state.last_msg_id, state.last_msg_id_seq, state.dedupe, behind)
        self.expiry.load(state.ttls, behind)
        self.schedules.load(state.schedules, state.intervals)
        self.copying.positions.load(state.sources)
        self.copying.near = state.near
        self.retention.load(state.removing)
        for name, snapshot in state.consumers:
            self.consumers[name] = Consumer.restore(self, name, snapshot)

    def start(self, recovered: bool = True) -> None:
        """Recovery is over, or the stream is new, or this node leads now: timers and deliveries may begin.

        `recovered`: see `Consumer.start`.
        """
        self.serving = True
        for part in self.parts:
            part.start()
        self.retention.resume()
        for consumer in list(self.consumers.values()):
            consumer.start(recovered)
        if self.replicated:
            self.log_consumers()

    def log_consumers(self) -> None:
        """Tell the other members where the consumers are.

        An earlier leader knows of deliveries and acks that it never logged. They end here: every member, the earlier
        leader too, goes on from what this entry says.
        """
        entries = [
            Progress(consumer.name, consumer.whole_progress())
            for consumer in self.consumers.values()
            if not consumer.volatile
        ]
        if entries:
            self.log_progress(entries, _nobody_waits)

    def stop(self, deleted: bool = False) -> None:
        """Stop serving. `deleted`: the stream is gone for good, and its consumers' clients are told."""
        self.closed = True
        self.serving = False
        self.store.subjects.unshare()  # a thread closes it
        if deleted:
            self.copying.removed()
        for part in self.parts:
            part.stop()
        if deleted:
            waiting, self._flying, self._open = self.uncommitted(), [], []
            for proposal in waiting:
                if isinstance(proposal.context, Asked | Foreign) and proposal.context.done is not None:
                    proposal.context.done(api_error(10059))
        for consumer in list(self.consumers.values()):
            if deleted:
                consumer.deleted()
            else:
                consumer.stop()


def _nobody_waits() -> None:
    """The context of progress that is logged by and by: entries of this node have one."""
