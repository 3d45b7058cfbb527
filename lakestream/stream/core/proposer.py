"""Messages on their way into a stream: from a publish to an entry that waits for the log.

Belongs here: giving messages their sequences and times, gathering them in batches, and what happens to a publish that
the rules of publish.py refuse, know already, or can not judge yet (invariant 2: deciding). What becomes of a batch
once it is committed is apply.py's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec

from lakestream.log.format.record import Record
from lakestream.ports import ClientInfo
from lakestream.protocol import headers
from lakestream.protocol.api.errors import ApiError, api_error, for_clients
from lakestream.protocol.transforms import Transform
from lakestream.stream.core import limits, offline, publish
from lakestream.stream.core.batch import MAX_BATCH_BYTES, After, Batch, Effect
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.confirming import Confirming
from lakestream.stream.core.operations import Purge, Removing, UpdateStream
from lakestream.stream.core.publish import Publish
from lakestream.stream.core.state import Asked
from lakestream.stream.core.view import ProposedView
from lakestream.stream.features import traces
from lakestream.stream.features.republish import Republisher
from lakestream.stream.features.time_travel import travels
from lakestream.stream.mirroring.runs import Run

if TYPE_CHECKING:
    from lakestream.stream.assembly import Stream

MAX_BUFFERED_MSGS = 100_000
MAX_BUFFERED_BYTES = 128 << 20
"""Publishes waiting for the log beyond these are refused with 10167 (nats-server's max_buffered_msgs/_size)."""

_logger = logging.getLogger(__name__)

MEMBER_OF_FAST_BATCH = b".$FI"
"""How the reply subject of such a message ends, whatever the stream makes of it; see batches/fast.py."""

NOT_NOW = ApiError(503, 0, "not now")
"""Why a copied message is not taken when that is nobody's fault: something else has to come first."""

TELLING = frozenset({10070, 10071, 10201})
"""Refusals that tell what is stored: the last message id, the last sequence, that a message id is known."""

NO_RESPONDERS = b"NATS/1.0 503\r\n\r\n"
OVERLOADED = b"NATS/1.0 429 Too Many Requests\r\n\r\n"


class Intake:
    """The publishing side of one stream, on the node that leads it."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.view = ProposedView(stream)
        domain_part = f'"domain":"{stream.domain}",' if stream.domain else ""
        self.ack = f'{{"stream":"{stream.name}",{domain_part}"seq":'.encode()
        """How every pub ack begins; the sequence follows."""
        self._error_tail = f'"stream":"{stream.name}","seq":0}}'.encode()
        self.next_seq = 1
        """The sequence that the next message gets."""
        self.last_time = 0
        """When the newest message was stored, proposed ones included."""
        self.pending_bytes = 0
        """Record bytes of what is proposed and not committed."""
        self._batch: Batch | None = None
        self.routes: list[Callable[[Publish], bool]] = []
        """Asked in order for each message on the checked way; the first that says True has taken it over."""
        self.fetched: dict[int, Record | None] = {}
        """Messages of the lake that a rule asked for, by sequence, while what waited for them is judged."""
        self._deferred: list[tuple[Callable[[], None], bytes]] = []
        self._deferred_bytes = 0
        self.confirming = Confirming(stream)
        self._wall = stream.clock.now
        self._fetching = False
        self._guarded = self._guards = False
        self._transform: Transform | None = None
        self._republisher: Republisher | None = None

    def rewind(self) -> None:
        """Go on after what is stored: whatever was decided beyond that does not count."""
        store = self._stream.store
        self.next_seq, self.last_time = store.last_seq + 1, store.last_time
        self.pending_bytes = 0
        self._batch = None
        self._stream.ages.forget_after(store.last_seq)

    def adopt(self, config: StreamConfig) -> None:
        """Take a configuration: what follows from it is worked out once, not for each message."""
        refuses = config.sealed or config.max_msg_size > 0 or limits.refuses_new(config)
        self._guards = refuses or config.no_ack or config.subject_transform is not None
        self._guards = self._guards or config.allow_msg_counter
        self._guarded = self._guarded or self._guards
        change = config.subject_transform
        self._transform = Transform(change.src.encode(), change.dest.encode()) if change and change.dest else None
        self._republisher = Republisher.of(self._stream, config.republish)

    # ------------------------------------------------------------------ publish
    def ingest(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        """Take a published message. The pub ack leaves once the message is committed (invariant 1)."""
        if (
            header
            or self._guarded
            or self._deferred
            or len(payload) > MAX_BUFFERED_BYTES
            or reply.endswith(MEMBER_OF_FAST_BATCH)
        ):
            self._ingest_checked(subject, reply, header, payload, client)
            return
        self._append(subject, reply, b"", payload)

    def stamp(self, operation: Removing) -> int:
        """Return the time (ns) of an operation that is proposed now, which is not before any message decided so far.

        Only a stream that keeps its past (time travel) compares times of removals with times of messages. There an
        operation that can remove messages moves the stream's time to now, so that no later message is earlier. All
        others have the time of the last message, so that an import may still bring messages that are older than now. A
        mirror's time is never moved: its messages have the times of their origin.
        """
        config = self._stream.config
        if isinstance(operation, UpdateStream):
            after = offline.stream_config(operation.config)
            dated = travels(after) and limits.lowered(config, after)
        else:
            dated = travels(config)
        if not dated:
            return self.last_time
        now = max(self.last_time, self._wall())
        if config.mirror is None:
            self.last_time = now
        return now

    def _append(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, time_ns: int = 0) -> int:
        """Put a message (from `time_ns`, or now) that passed every rule into the open batch; its sequence, or 0."""
        batch = self._batch
        if batch is None or (batch.size >= MAX_BATCH_BYTES and not batch.whole):
            opened = self._open_batch()
            if opened is None:
                self.refuse(reply, self._stream.failed or api_error(10167))
                return 0
            batch = opened
        # Invariant 5: times never go backwards in a stream, whatever the clock does.
        now = time_ns or self._wall()
        if now < self.last_time:
            now = self.last_time
        self.last_time = now
        seq = self.next_seq
        self.next_seq = seq + 1
        if self._republisher is not None and not time_ns:
            again = self._republisher.prepare(subject, header, payload)
            if again is not None:
                batch.after.append((seq, now, again))
        self.pending_bytes += batch.add(seq, now, subject, reply, header, payload)
        return seq

    def _open_batch(self, whole: bool = False) -> Batch | None:
        stream = self._stream
        if stream.failed is not None or stream.closed or not stream.leading:
            return None
        if self.view.pending_msgs() > MAX_BUFFERED_MSGS or self.view.pending_bytes() > MAX_BUFFERED_BYTES:
            return None
        batch = Batch(self.next_seq, whole)
        stream.ages.stamped(self.next_seq, max(self._wall(), self.last_time))
        stream.gather_batch(batch)
        self._batch = batch
        return batch

    def close_batch(self) -> None:
        """What comes next goes into a batch of its own: something else was proposed, or the log takes this one."""
        self._batch = None

    def _ingest_checked(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        """The way of a message with headers, or into a stream whose configuration can refuse or change it."""
        header = headers.without_status(header)
        if headers.REQUEST_INFO in header:
            header = headers.remove(header, [headers.REQUEST_INFO])
        message = Publish(subject, reply, header, payload, client)
        traces.begin(self._stream, message)
        self._judge(message)

    def _judge(self, message: Publish) -> None:
        """Give a message its subject, and see who decides on it."""
        if self._stream.operations and self._changing():
            self.defer(lambda: self._judge(message), message.reply, message.size)
            return
        message.subject = self.renamed(message.subject)
        config = self._stream.config
        if not (traces.only(message) and (config.allow_atomic or config.allow_batched)):
            # What is not stored is part of no batch either.
            for route in self.routes:
                if route(message):
                    return
        self.decide(message)

    def _changing(self) -> bool:
        """Whether another configuration is in flight: what comes after it is renamed and batched as that says."""
        contexts = [proposal.context for proposal in self._stream.uncommitted()]
        return any(isinstance(each, Asked) and isinstance(each.operation, UpdateStream) for each in contexts)

    def renamed(self, subject: bytes) -> bytes:
        """What the stream's transform makes of a subject, before every rule; one that it does not select stays."""
        renamed = None if self._transform is None else self._transform.apply(subject)
        return subject if renamed is None else renamed

    def decide(self, message: Publish) -> None:
        """Judge one message and store it, or answer why not; later, where that depends on something in flight."""
        stream = self._stream
        if self._deferred or stream.operations or self.view.unsettled(message.subject, message.header):
            # A rule may depend on what a purge or delete in flight will leave, and order among publishes stays.
            self._defer(message)
            return
        if stream.config.no_ack:
            message.reply = b""
        came = (message.header, message.payload, message.tail, message.after)
        try:
            outcome = publish.check(self.view, message)
            if isinstance(outcome, publish.Duplicate):
                traces.duplicate(message)
                self._answer_duplicate(message.reply, outcome.seq)
                return
            if traces.only(message):
                traces.passed(stream, message)
                return
            length = limits.accounted(stream.config, message.subject, message.header, message.payload)
            refused = self.view.room(message.subject, length, bool(outcome.rollup))
            if refused is not None:
                if self.view.pending_msgs():
                    # What is in flight may yet make room by replacing older messages: judged again once it is stored,
                    # as it came.
                    message.header, message.payload, message.tail, message.after = came
                    self._defer(message)
                    return
                raise refused
        except publish.NotHere as missing:
            self._defer(message)
            self.fetch(missing.seq)
            return
        except ApiError as error:
            self.reject(message, error)
            return
        self.take(message, outcome)

    def take(self, message: Publish, effect: Effect | None, time_ns: int = 0) -> int:
        """Store a message that passed every rule; returns its sequence, 0 when refused. `time_ns`: see `_append`."""
        seq = self._append(message.subject, message.reply, message.header, message.payload, time_ns)
        batch = self._batch
        if not seq or batch is None:
            return seq
        if message.tail:
            batch.tails[seq] = message.tail
        for after in (message.after, traces.storing(self._stream, message)):
            if after is not None:
                batch.after.append((seq, self.last_time, after))
        if effect is None:
            return seq
        if effect.msg_id:
            self._stream.dedupe.add(effect.msg_id, seq, self._stream.ages.stored(seq, self.last_time))
        if effect.acts:
            effect.seq, effect.time_ns, effect.subject = seq, self.last_time, message.subject
            batch.effects.append(effect)
            if effect.rollup and not batch.whole:
                # A rollup ends its batch: what it removes is settled before the next message.
                self._batch = None
        return seq

    def take_whole(self, accepted: Sequence[tuple[Publish, Effect]]) -> int:
        """Store messages that passed every rule as one entry: all of them or none, whatever happens.

        Returns the sequence of the last one; 0 when refused, and then whoever waits for the last one is told. Only
        where `settled`.
        """
        self._batch = None
        batch = self._open_batch(whole=True)
        if batch is None:
            self.refuse(accepted[-1][0].reply, self._stream.failed or api_error(10167))
            return 0
        last = 0
        for message, effect in accepted:
            last = self.take(message, effect)
        self._batch = None
        return last

    def take_at(
        self, seq: int, time_ns: int, subject: bytes, header: bytes, payload: bytes, effect: Effect
    ) -> ApiError | None:
        """Store a message of a mirror, under a sequence and a time that are given; or why not."""
        stream = self._stream
        if self.moving or stream.failed is not None or stream.closed or not stream.leading:
            return NOT_NOW
        if self.pending_bytes > MAX_BUFFERED_BYTES:
            return NOT_NOW
        subject = self.renamed(subject)
        if stream.weighed or stream.config.discard == "new":
            length = limits.accounted(stream.config, subject, header, payload)
            refused = self.view.room(subject, length, bool(effect.rollup))
            if refused is not None:
                return refused
        batch = self._batch
        if batch is None or seq != self.next_seq or batch.size >= MAX_BATCH_BYTES:
            batch = self._batch = Batch(seq)
            stream.ages.taken(seq, time_ns)
            stream.gather_batch(batch)
        # Invariant 5: whatever the origin's clock did.
        effect.seq, effect.subject = seq, subject
        effect.time_ns = self.last_time = now = max(time_ns, self.last_time)
        self.next_seq = seq + 1
        if self._republisher is not None:
            again = self._republisher.prepare(subject, header, payload)
            if again is not None:
                batch.after.append((seq, now, again))
        self.pending_bytes += batch.add(seq, now, subject, b"", header, payload)
        if effect.acts:
            batch.effects.append(effect)
            if effect.rollup:
                self._batch = None
        return None

    def take_run(self, run: Run) -> int:
        """Store messages of a mirror under their sequences and times; returns how many, from the first on.

        Those that are left are to be taken one by one: something has to be looked at that this does not look at.
        """
        stream = self._stream
        if self._looks_at_each or self.moving or stream.failed is not None or stream.closed or not stream.leading:
            return 0
        for begin, end in run.stretches():
            if self.pending_bytes > MAX_BUFFERED_BYTES:
                return begin
            first, batch = run.seqs[begin], self._batch
            if batch is None or first != self.next_seq or batch.size >= MAX_BATCH_BYTES:
                batch = self._batch = Batch(first)
                stream.ages.taken(first, run.times[end - 1])
                stream.gather_batch(batch)
            # Invariant 5: whatever the origin's clock did.
            times = list(accumulate(run.times[begin:end], max, initial=self.last_time))[1:]
            part = slice(begin, end)
            self._extend(batch, first, times, run.subjects[part], run.headers[part], run.payloads[part])
        return len(run)

    def take_all(self, subjects: list[bytes], headers: list[bytes], payloads: list[bytes], effect: Effect) -> bool:
        """Store messages of a source, of which only the last has an effect that counts; False: see `take_run`."""
        if self._looks_at_each or self.moving:
            return False
        batch = self._batch
        if batch is None or batch.whole or batch.size >= MAX_BATCH_BYTES:
            batch = self._open_batch()
            if batch is None:
                return False
        now = max(self._wall(), self.last_time)
        self._extend(batch, self.next_seq, [now] * len(subjects), subjects, headers, payloads)
        effect.seq, effect.time_ns, effect.subject = self.next_seq - 1, now, subjects[-1]
        batch.effects.append(effect)
        return True

    @property
    def _looks_at_each(self) -> bool:
        """Whether something is to be done for each copied message, also for one without headers."""
        stream = self._stream
        changes = self._republisher is not None or self._transform is not None
        return changes or stream.weighed or stream.config.discard == "new"

    def _extend(
        self,
        batch: Batch,
        first: int,
        times: list[int],
        subjects: list[bytes],
        headers: list[bytes],
        payloads: list[bytes],
    ) -> None:
        self.pending_bytes += batch.extend(first, times, subjects, headers, payloads)
        self.next_seq, self.last_time = first + len(times), times[-1]

    @property
    def moving(self) -> bool:
        """Whether an operation is in flight that may move the sequence or change the rules."""
        contexts = [each.context for each in self._stream.uncommitted()] if self._stream.operations else []
        return any(isinstance(each, Asked) and isinstance(each.operation, Purge | UpdateStream) for each in contexts)

    def skip(self, through: int) -> None:
        """Sequences through this one are given out: an operation that says so is about to be proposed."""
        self._batch = None
        self.next_seq = through + 1

    def when_safe(self, then: Callable[[], None]) -> None:
        """Call `then` once every message that was taken is committed; not at all when this node ceases to lead."""
        for proposal in reversed(self._stream.uncommitted()):
            if isinstance(proposal.context, Batch):
                batch = proposal.context
                batch.after.append((batch.first_seq, batch.last_time, lambda _, __: then()))
                return
        then()

    def take_own(self, subject: bytes, header: bytes, payload: bytes, after: After | None = None) -> int:
        """Store a message of the server itself, which no rule refuses; returns its sequence, 0 where not `settled`."""
        if not self.settled:
            return 0
        subject = self.renamed(subject)
        effect = publish.effect_of(header, self._stream.config)
        return self.take(Publish(subject, b"", header, payload, None, b"", after), effect)

    @property
    def settled(self) -> bool:
        """Whether this node leads and nothing is in flight that a message would have to wait for."""
        stream = self._stream
        waits = self._deferred or stream.operations or stream.closed
        return not waits and stream.leading and stream.failed is None

    # ------------------------------------------------------------------ waiting for operations
    @property
    def waiting(self) -> bool:
        """Whether publishes wait for an operation in flight."""
        return bool(self._deferred)

    @property
    def guarded(self) -> bool:
        """Whether every message has to pass the rules, those without headers too."""
        return self._guarded

    def guard(self) -> None:
        """An operation in flight may move the sequence or change the rules: publishes behind it wait for it."""
        self._guarded = True

    def _defer(self, message: Publish) -> None:
        self.defer(lambda: self.decide(message), message.reply, message.size)

    def defer(self, again: Callable[[], None], reply: bytes, size: int) -> None:
        """Call `again` once nothing is in flight that it has to wait for, in order with the publishes that wait.

        Where too much waits, `reply` is told so at once instead; and where it will not be called, because the stream
        ends or another node leads. `size`: bytes that it holds meanwhile.
        """
        if len(self._deferred) >= MAX_BUFFERED_MSGS or self._deferred_bytes + size > MAX_BUFFERED_BYTES:
            self.refuse(reply, api_error(10167))
            return
        self._deferred_bytes += size
        self._deferred.append((again, reply))

    def fetch(self, seq: int) -> None:
        """Have a message at hand that only the lake has: what waits is judged again with it in `fetched`."""
        if not self._fetching:
            self._fetching = True
            self._stream.clock.spawn(self._fetch(seq))

    async def _fetch(self, seq: int) -> None:
        try:
            found = await self._stream.reader.fetch(seq)
        except Exception as error:
            _logger.error("%s: publishes are refused, they need history: %s", self._stream.name, error)
            self._fetching = False
            self._refuse_deferred(api_error(10077, err=for_clients(error)))
            return
        self._fetching = False
        if not self._stream.operations:
            self.resume({seq: found})

    def resume(self, fetched: dict[int, Record | None] | None = None) -> None:
        """No operation is in flight any more: judge what waited for that, in order. `fetched`: see there."""
        self._guarded = self._guards or self._stream.weighed
        if not self._deferred or self._fetching:
            return
        self.fetched |= fetched or {}
        deferred, self._deferred, self._deferred_bytes = self._deferred, [], 0
        for again, _ in deferred:
            again()
        if not self._deferred:  # an atomic batch may ask for several, one after the other
            self.fetched = {}

    def _refuse_deferred(self, error: ApiError) -> None:
        deferred, self._deferred, self._deferred_bytes = self._deferred, [], 0
        for _, reply in deferred:
            self.refuse(reply, error)

    def fail(self, error: ApiError) -> None:
        """The stream takes no more messages: tell those that waited."""
        self._batch = None
        self._refuse_deferred(error)

    def abandon(self, unproposed: Sequence[Batch]) -> None:
        """Another node leads now. What was proposed gets no answer: nobody knows whether it is stored. What was not is
        answered like a message that nobody listens to, which clients send again at once; but where another node may
        have taken it as well, it gets no answer either."""
        replies = [reply for batch in unproposed for reply in batch.replies]
        replies += [reply for batch in unproposed for reply, _ in batch.late]
        replies += [reply for _, reply in self._deferred]
        self._deferred, self._deferred_bytes = [], 0
        for reply in filter(None, replies):
            self._decline(reply)
        self._guarded = self._guards
        self.rewind()

    # ------------------------------------------------------------------ answers
    def _answer_duplicate(self, reply: bytes, seq: int) -> None:
        if reply:
            self.answer_at(seq, reply, b'%b%d,"duplicate": true}' % (self.ack, seq))

    def answer_at(self, seq: int, reply: bytes, answer: bytes) -> None:
        """Send an answer once the message with this sequence is committed, after what was said of that one before."""
        for proposal in reversed(self._stream.uncommitted()):
            batch = proposal.context
            if isinstance(batch, Batch) and batch.first_seq <= seq < batch.first_seq + len(batch):
                batch.late.append((reply, answer))
                return
        self._stream.bus.reply_many([(reply, answer)])

    def reject(self, message: Publish, error: ApiError) -> None:
        """Answer a publish that a rule refuses, and tell its trace."""
        if not traces.refused(self._stream, message, error):
            return
        if error.err_code in TELLING and message.reply:
            self._refuse_truly(message.reply, error)
        else:
            self.refuse(message.reply, error)

    def _refuse_truly(self, reply: bytes, error: ApiError) -> None:
        """Answer with what is stored by now, once that is certain: who is told of a sequence may rely on it."""
        newest, answer = self.next_seq - 1, self.refusal(error)

        def confirmed(led: bool) -> None:
            if led:
                self.answer_at(newest, reply, answer)
            else:
                self._decline(reply)

        self.confirming.leading(confirmed)

    def _decline(self, reply: bytes) -> None:
        """Say that nobody took a message, if that is certain."""
        if self._stream.group.gave_up:
            self._stream.bus.publish(reply, b"", NO_RESPONDERS, b"")

    def refuse(self, reply: bytes, error: ApiError) -> None:
        """Answer a publish with an error; in a cluster only the leader does."""
        if reply and self._stream.leading:
            header = OVERLOADED if error.err_code == 10167 else b""
            self._stream.bus.publish(reply, b"", header, self.refusal(error))

    def refusal(self, error: ApiError) -> bytes:
        """The pub ack of a publish that is refused."""
        return b'{"error":%b,%b' % (msgspec.json.encode(error.as_dict()), self._error_tail)
