"""The core of a stream: from a published message to its ack, and every change of its state.

Belongs here: putting the parts of the core together, and the life of a stream. Messages are decided by the proposer and
operations by their callers; the pipeline hands both to the group; once the group says that they are committed the
applier applies them, and their proposers get an answer (invariant 2). In a group with others a stream leads or follows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec

from lakestream.log.format.errors import LogError
from lakestream.log.format.frame import Frame
from lakestream.log.format.pieces import Pieces
from lakestream.log.store.log import Appended
from lakestream.log.store.store import Store
from lakestream.ports import Bus, Clock, Io, ListedMessages, PubAcks, Single
from lakestream.protocol.api.advisory import advise
from lakestream.protocol.api.errors import ApiError, api_error, for_clients
from lakestream.protocol.decoding import PackDecoder
from lakestream.raft.group.group import Callbacks, Committed, Group, Proposal, Steps, take_all
from lakestream.raft.group.solo import SoloGroup
from lakestream.stream.core import offline
from lakestream.stream.core.applier import Applier
from lakestream.stream.core.batch import Batch
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.confirming import Confirming
from lakestream.stream.core.feature import Feature, Hooks, T, declared
from lakestream.stream.core.operations import CreateStream, DeleteMessage, Operation
from lakestream.stream.core.pipeline import Pipeline, Uncommitted, nothing_left, refuse
from lakestream.stream.core.proposer import BufferLimits, Proposer
from lakestream.stream.core.reader import Reader
from lakestream.stream.core.state import Done, Foreign, PendingOperation, StreamState, encode_checkpoint
from lakestream.stream.core.storage_use import AccountUse
from lakestream.stream.core.view import ProposedView

_STREAM_STATE = PackDecoder(StreamState)


class StreamCore:
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
        buffer: BufferLimits | None = None,
        uncommitted: Uncommitted | None = None,
        features: Sequence[Callable[[Any], Feature]] = (),
    ) -> None:
        """Open a stream over `store`; it is silent until `start`, or in a group with others until `lead`.

        Args:
            create: as it was created; the configuration may have changed since.
            domain: shown in pub acks; "" for none.
            alone: in a group of its own, which is made here; else `join` comes after recovery.
            buffer: limits of publishes that wait for the log; the defaults without.
            uncommitted: shared by the streams of the server; one of its own without.
            features: make the features, in their order; each is given this object, which has the earlier ones.
        """
        self.config = offline.stream_config(create.config)
        self.name, self.uid, self.account = self.config.name, create.uid, create.account
        self.created_ns = create.created_ns
        self.store, self.bus, self.clock, self.io, self.domain = store, bus, clock, io, domain
        self.hidden = create.restoring
        """True while an archive is restored: the stream is not shown, and does not serve."""
        self.use: AccountUse | None = None
        """Sums of the account that the stream's size counts in, once it is among a server's streams."""
        self._on_revealed: Callable[[], None] = nothing_left
        self.on_updated: Callable[[Any], None] = lambda _: None
        self.on_failed: Callable[[Any, Exception], None] = lambda _, __: None

        self._steps: Steps | None = None
        """Steps that are left of the committed entries."""

        self.features: list[Feature] = []
        self._hooks = Hooks(self.features)
        self.reader = Reader(self.name, store)
        self.pipeline = Pipeline(clock, store, self._hooks, alone, uncommitted)
        self.view = ProposedView(store, self.pipeline, self._hooks, self.no_room)
        label = (self.name, domain)
        limits = buffer or BufferLimits()
        self.proposer = Proposer(label, self.pipeline, self.view, self._hooks, self.reader, bus, clock, limits)
        self.applier = Applier(store, self.pipeline, self._hooks, self._adopt, self.updated)
        self.applier.created, self.applier.restoring = alone, create.restoring
        self.is_new = False
        """True until it serves for the first time, if its creation was logged by this process: no file of it is in the
        lake, and no consumer has lost what it had in the memory of another process."""
        self.is_handed_over = False
        """True until it serves for the first time, if another process has closed it for this one: its consumers go on
        from its checkpoint, those without progress in the log, too."""
        self.confirming = Confirming(store, self.pipeline, clock, self.proposer)
        self.proposer.confirm, self.proposer.weighed = self.confirming.leading, self.weighed
        self.pipeline.on_change, self.pipeline.on_lost = self.proposer.guard, self.lost
        if alone:
            self.pipeline.group = SoloGroup(store.log, io, Callbacks(self.committed, self.failure))
        for make in features:
            self.features.append(make(self))
        self.proposer.rules = declared(tuple(map(type, self.features)))
        self.applier.effects = self.proposer.rules.effects
        self._adopt(self.config)
        self.pipeline.rewind()

    def feature(self, kind: type[T]) -> T:
        """Return the stream's feature of this class."""
        return self._hooks.feature(kind)

    def _adopt(self, config: StreamConfig) -> None:
        """Take a configuration: what follows from it is worked out once, not for each message."""
        self.config = self.view.config = config
        self.store.describe(self.uid, self.name, self.account, msgspec.json.encode(config))
        self.store.log.packing = config.compression == "s2"
        for feature in self.features:
            feature.configure(config)
        self._hooks.bind()
        self.proposer.configure(config)
        self.applier.configure(config)

    # ------------------------------------------------------------------ properties
    @property
    def leading(self) -> bool:
        """Return True if this node decides for the stream. Only then does it take messages and operations."""
        return self.pipeline.leading

    @property
    def failed(self) -> ApiError | None:
        """Return why the stream is frozen, None while it is not."""
        return self.pipeline.failed

    @property
    def closed(self) -> bool:
        """Return True once the stream has ended here."""
        return self.pipeline.closed

    @property
    def replicated(self) -> bool:
        """Return True if other nodes hold this stream too."""
        return self.pipeline.replicated

    @property
    def group(self) -> Group:
        """Return the group that the stream's entries go through."""
        return self.pipeline.group

    def weighed(self) -> bool:
        """Return True if each message is checked by `no_room`, because server or account hold much already."""
        return self.use is not None and self.use.tight(self)

    def no_room(self, length: int) -> ApiError | None:
        """Return why server or account have no room for a message of this accounted length, None if they have."""
        return self.use.refusal(self, length) if self.use is not None else None

    def acts_at(self) -> int:
        """Return the time (steady clock, ns) at which the stream does something although its clients ask nothing, 0 if
        it may at any time. Raise LogError."""
        busy = self.failed is not None or self.hidden or bool(self.pipeline.uncommitted())
        return 0 if busy else min(feature.acts_at() for feature in self.features)

    @property
    def sealed(self) -> bool:
        """Return True if no seal is under way that an applied entry asked for."""
        return self.store.sealed_through[0] >= self.applier.sealing

    # ------------------------------------------------------------------ decide
    def propose(self, operation: Operation, done: Done | None = None, *, volatile: bool = False) -> None:
        """Log an operation; see `Pipeline.propose`."""
        self.pipeline.propose(operation, done, volatile=volatile)

    def unwanted(self, first_seq: int, subjects: Sequence[bytes]) -> list[tuple[int, bytes]]:
        """Return (sequence, subject) of the messages that the stream would not keep: no consumer wants them."""
        return [pair for each in self._hooks.unwanted for pair in each.unwanted(first_seq, subjects)]

    def advise(self, event: str, kind: str, fields: dict[str, object]) -> None:
        """Publish the advisory that `event` happened to this stream; see `advisory.advise`."""
        shown = {"stream": self.name, **fields}
        advise(self.bus, self.clock, self.domain, f"STREAM.{event}.{self.name}", kind, shown)

    @property
    def stored(self) -> bytes:
        """Return the configuration as it is stored."""
        return self.store.config

    def feature_info(self) -> dict[str, Any]:
        """Return the features' fields of StreamInfo."""
        return {name: value for each in self._hooks.info for name, value in each.info().items()}

    def updated(self) -> None:
        """Notify the server that what others see of the stream has changed."""
        self.on_updated(self)

    def rebased(self) -> None:
        """Let every part look at the store anew: it got messages that were never in the log."""
        self.pipeline.rewind()
        for each in self._hooks.rebased:
            each.rebased()

    # ------------------------------------------------------------------ apply
    def committed(self, entries: list[Committed]) -> Steps | None:
        """Apply what is now durable, in order, and answer for it. The group's `on_commit`.

        An operation that removes many messages is applied in steps, between which other streams are served: return
        those that are left. Publishes and confirmed answers wait for the last one; other reads find the messages that
        are still there.
        """
        pipeline = self.pipeline
        if pipeline.closed:
            return None  # deleted, or the next start applies it: a last checkpoint may be on its way in a thread
        own = len([entry for entry in entries if entry.context is not None])
        pipeline.committed(own)
        self.confirming.applying()
        alone = own == 1 and not pipeline.gathering and not pipeline.group.in_company
        if alone and not self.proposer.judging:
            self._acknowledge_first(entries[-1].context)
        self._steps = steps = self._apply_all(entries)
        for _ in steps:
            return steps
        return None

    def _apply_all(self, entries: list[Committed]) -> Steps:
        pipeline, index = self.pipeline, self.store.subjects
        for together in _together(entries):
            context, landed = together[0].context, 0
            try:
                if isinstance(context, Batch) and (warming := index.warming(context.subjects)) is not None:
                    yield from warming
                for _ in together if context is not None else ():
                    landed += 1
                    pipeline.landed()
                    self.confirming.landed()
                if len(together) > 1:
                    self._delete(together)
                elif (steps := self._apply(together[0])) is not None:
                    yield from steps
            except Exception as error:
                back = [Proposal(one.frame.kind, b"", one.frame.count, one.context) for one in together[:landed]]
                pipeline.put_back(back)
                pipeline.group.give_up(error)
                if isinstance(error, LogError):
                    return  # a file that cannot be read is no defect: the group has told its owner
                raise
        self._steps = None
        if pipeline.closed:
            return
        if self.use is not None:
            self.use.note(self)
        if not pipeline.operations:
            self.proposer.resume()
        # The next write starts before this turn's acks are sent: the disk works while the sockets do.
        pipeline.flush()
        self.confirming.answer()
        for each in self._hooks.committed:
            each.committed()
        if self.store.on_settled is not None:
            self.store.on_settled()
        if self.store.on_entry is not None:
            self.store.on_entry()
        if self.store.checkpoint_due and not pipeline.closed:
            self.checkpoint()

    def _apply(self, entry: Committed) -> Steps | None:
        """Apply an entry; return the steps of one that may take long."""
        context = entry.context
        if context is None:  # of another node, or of an earlier leadership of this one
            return self.applier.frame(entry.frame, entry.at)
        if isinstance(context, Batch):
            self.pipeline.let_go(context.size)
            self.applier.batch(entry.at, context)
            for seq, time_ns, call in context.after:
                call(seq, time_ns)
            if not context.acked:
                self._acknowledge(context)
            for each in self._hooks.acknowledged:
                each.acknowledged(context.first_seq, context.subjects)
        elif isinstance(context, PendingOperation):
            return self._operate(entry.frame.index, context)
        elif isinstance(context, Foreign):
            return self._import(entry, context)
        elif callable(context):  # progress; here it was made long ago
            context()
        self.store.applied = entry.frame.index
        return None

    def _operate(self, index: int, asked: PendingOperation) -> Steps:
        """Apply an operation of this node, in steps, and answer for it."""
        result = yield from self.applier.operation(asked.operation, own=True)
        self.pipeline.operated()
        self._finish(asked.operation, result, asked.done)
        self.store.applied = index

    def _delete(self, entries: list[Committed]) -> None:
        """Apply deletions of this node, and answer for them."""
        asked = [entry.context for entry in entries if isinstance(entry.context, PendingOperation)]
        operations = [each.operation for each in asked if isinstance(each.operation, DeleteMessage)]
        for one, removed in zip(asked, self.applier.deletions(operations), strict=True):
            self.pipeline.operated()
            self._finish(one.operation, removed, one.done)
        self.store.applied = entries[-1].frame.index

    def _import(self, entry: Committed, foreign: Foreign) -> Steps:
        """Apply an entry of an archive, in steps, and answer for it."""
        yield from self.applier.frame(entry.frame, entry.at) or ()
        foreign.done(None)

    def _acknowledge_first(self, context: object) -> None:
        """Send the pub acks of a batch before it is applied: it is durable, and no other publisher waits for the disk.

        Nothing is read from a socket in between: what the publisher asks next finds the messages applied. Only where
        nothing but limits, which count them as in flight, judges messages without headers: the reply subject may be one
        of the stream's. And only where no consumer waits for them: acks leave with the deliveries, which others would
        overtake otherwise.
        """
        if not isinstance(context, Batch) or context.after or self.store.subjects.warming(context.subjects) is not None:
            return
        for each in self._hooks.awaited:
            if each.awaited(context.subjects):
                return
        self._acknowledge(context)
        self.bus.flush()

    def _acknowledge(self, batch: Batch) -> None:
        batch.acked = True
        first, prefix, single = batch.first_seq, self.proposer.ack, 0
        for at, run, begin, end in batch.runs:
            if single < at:
                self.bus.send(ListedMessages(self._acks(batch, single, at)))
            self.bus.send(PubAcks(run, begin, end, prefix, first + at - begin))
            single = at + end - begin
        answers = self._acks(batch, single, len(batch.subjects))
        if batch.late:
            answers += [Single(reply, b"", b"", answer) for reply, answer in batch.late]
        if len(answers) == 1:
            self.bus.send(answers[0])
        elif answers:
            self.bus.send(ListedMessages(answers))

    def _acks(self, batch: Batch, begin: int, end: int) -> list[Single]:
        """Return the pub acks of some messages that came one by one."""
        prefix, tails, first = self.proposer.ack, batch.tails, batch.first_seq + begin
        replies = batch.replies[begin:end] if batch.runs else batch.replies
        if tails:
            return [
                Single(reply, b"", b"", b"%b%d%b}" % (prefix, seq, tails.get(seq, b"")))
                for seq, reply in enumerate(replies, first)
                if reply
            ]
        return [Single(reply, b"", b"", b"%b%d}" % (prefix, seq)) for seq, reply in enumerate(replies, first) if reply]

    def _finish(self, operation: Operation, result: object, done: Done | None) -> None:
        """Answer the proposer, after its consequences (what it released from an interest stream, say) are stored."""
        finish = nothing_left if done is None else functools.partial(done, result)
        for each in self._hooks.finish:
            if each.finish(operation, finish):
                return
        finish()

    def begin(self, creation: CreateStream) -> None:
        """Apply the entry with which this process has created the log."""
        take_all(self.applier.operation(creation, own=True))
        self.pipeline.rewind()

    def apply_frame(self, frame: Frame, at: Appended) -> None:
        """Apply a committed entry at recovery."""
        take_all(self.applier.frame(frame, at))
        self.pipeline.rewind()

    def failure(self, error: Exception) -> None:
        """Freeze the stream: a write failed (invariant 4). Refuse everything in flight: none of it was acked.

        The group's `on_failure`. In a group of several, what is in flight gets no answer: other members may store it.
        """
        failed = self.pipeline.failed = api_error(10077, err=for_clients(error))
        self._steps = None
        self.on_failed(self, error)
        if self.replicated:
            self.follow()
            return
        flying, unproposed = self.pipeline.take_all()
        for context in [*flying, *unproposed]:
            if isinstance(context, Batch):
                self.proposer.refuse_batch(context, failed)
            else:
                refuse([context], failed)
        self.proposer.fail(failed)
        self.confirming.release()

    # ------------------------------------------------------------------ roles
    def lead(self, attach: Callable[[], None], ready: Callable[[], None]) -> None:
        """Decide for the stream from now on: every committed entry was applied, and no other node can.

        Args:
            attach: called before features lead, which use the account and the lake; a new stream's creation has to be
                logged before.
            ready: called when it serves.
        """
        assert not self.leading, "lead is called once"
        if self.failed is not None or self.closed:
            return
        self.pipeline.leading = True
        self.pipeline.rewind()
        self.is_new = self.is_new or not self.applier.created

        serve = functools.partial(self._serve, attach, ready)
        if self.applier.created:
            serve()
        else:
            self.propose(self._creation(), serve)

    def _serve(self, attach: Callable[[], None], ready: Callable[[], None], result: object = None) -> None:
        """Serve from now on, once the stream's creation is logged; see `lead`."""
        if isinstance(result, ApiError):
            return
        if self.hidden:
            self._on_revealed = functools.partial(self._serve, attach, ready)
            return
        attach()
        nothing_lost, self.is_new, self.is_handed_over = self.is_new or self.is_handed_over, False, False
        self.start(recovered=not nothing_lost)
        ready()

    def reveal(self) -> None:
        """Show the stream from now on; it serves if this node leads it."""
        self.hidden = False
        serve, self._on_revealed = self._on_revealed, nothing_left
        serve()

    def follow(self) -> None:
        """Cease to decide: another node may. Proposals in flight are forgotten without an answer."""
        if self.leading:
            self.lost(self.pipeline.flying())

    def lost(self, contexts: list[object]) -> None:
        """Forget these proposals: leadership ended, and they may or may not be stored. The group's `on_lost`.

        Their publishers and confirmed acks get no answer and ask again; the API's callers get 10008.
        """
        self.pipeline.leading = self.pipeline.serving = self.is_new = False
        self._on_revealed = nothing_left
        for feature in self.features:
            feature.follow()
        _, unproposed = self.pipeline.take_all()
        self.proposer.abandon([context for context in unproposed if isinstance(context, Batch)])
        refuse([*contexts, *unproposed], self.failed or api_error(10008))

    # ------------------------------------------------------------------ life
    def _creation(self) -> CreateStream:
        config = msgspec.json.encode(self.config)
        return CreateStream(self.uid, self.account, config, self.created_ns, self.applier.restoring)

    def checkpoint(self) -> None:
        """Let the store write its indexes and the stream's state beside the log, so that recovery starts from here."""
        if self._steps is None:  # never of half an entry; it follows once that is applied
            self.store.checkpoint(self.dump())

    def dump(self) -> Pieces:
        """Return this stream's own part of the checkpoint."""
        fields: dict[str, object] = {"create": self._creation(), "created": self.applier.created}
        for feature in self.features:
            fields |= feature.dump()
        return encode_checkpoint(fields)

    def memory(self) -> dict[str, int]:
        """Return roughly the bytes of memory of this stream by what takes them, those of read caches apart."""
        held = self.store.memory()
        for feature in self.features:
            held |= feature.memory()
        return held

    def load(self, checkpoint: bytes) -> None:
        """Take back what `dump` returned, before the frames after the checkpoint are applied."""
        self.applier.created = _STREAM_STATE.decode(checkpoint).created
        for feature in self.features:
            feature.load(checkpoint)

    def start(self, recovered: bool = True) -> None:
        """Begin timers and deliveries: recovery is over, or the stream is new, or this node leads now.

        Args:
            recovered: the server was restarted, or another node led.
        """
        self.pipeline.serving = True
        for feature in self.features:
            feature.lead(recovered)

    def cease(self) -> None:
        """Apply nothing any more: another store takes the place of this one, and another object that of this stream."""
        self.pipeline.close()

    def stop(self, deleted: bool = False) -> None:
        """Stop serving. `deleted`: the stream is gone for good, and its consumers' clients get a status."""
        self.pipeline.close()
        self.pipeline.serving = False
        steps, self._steps = self._steps, None
        if not deleted:
            take_all(steps)  # the last checkpoint holds whole entries
        self.store.unshare()  # a thread closes it
        for feature in self.features:
            feature.stop(deleted)


def _together(entries: list[Committed]) -> Iterator[list[Committed]]:
    """Yield the entries in parts that are applied together: deletions in a row of the same kind and time."""
    if len(entries) == 1:
        yield entries
        return
    for kind, some in groupby(entries, _deleting):
        part = list(some)
        yield from (part,) if kind is not None else ([entry] for entry in part)


def _deleting(entry: Committed) -> tuple[bool, int] | None:
    """Return how this node's entry deletes a message, None if it does something else."""
    context = entry.context
    operation = context.operation if isinstance(context, PendingOperation) else None
    return (operation.erase, operation.at_ns) if isinstance(operation, DeleteMessage) else None
