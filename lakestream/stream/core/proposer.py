"""Proposer: from a publish to an entry that waits for the log.

Belongs here: giving messages their sequences and times, gathering them in batches, and what happens to a publish that a
rule refuses, that was stored before, or that can not be judged yet (invariant 2: deciding). Batches go to the log
through the pipeline; what becomes of them once they are committed is applier.py's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import accumulate

import msgspec

from lakestream.log.format.record import Record, record_length
from lakestream.ports import Bus, ClientInfo, Clock, Messages, Single
from lakestream.protocol import headers
from lakestream.protocol.api.errors import ApiError, api_error, for_clients
from lakestream.protocol.publishes import Publishes
from lakestream.stream.core import limits
from lakestream.stream.core.batch import Batch, Run
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.effect import Effect
from lakestream.stream.core.feature import Feature, Hooks
from lakestream.stream.core.operations import Purge, UpdateStream
from lakestream.stream.core.pipeline import Pipeline, nothing_left
from lakestream.stream.core.publish import (
    MAX_RECORD_BYTES,
    Duplicate,
    IncomingMessage,
    NotHere,
    NotReady,
    Postponed,
    PublishRules,
)
from lakestream.stream.core.reader import Reader
from lakestream.stream.core.view import ProposedView


class BufferLimits(msgspec.Struct, frozen=True):
    """Limits of the publishes of one stream that wait for the log; further ones are refused with 10167.

    They are compared when a batch is opened, so that a batch may exceed them by its size, which costs nothing per
    message. Where they are `exact`, because they were configured, each message is compared.
    """

    max_msgs: int = 100_000
    max_bytes: int = 128 << 20
    exact: bool = False


SINGLY = 4
"""Messages of a run that are judged one by one between two looks at the time."""

NOT_NOW = ApiError(503, 0, "not now")
"""Returned for a copied message that can not be taken yet: something else has to come first."""

DISCLOSING = frozenset({10070, 10071, 10201})
"""Refusals that disclose what is stored: the last message id, the last sequence, that a message id is known."""

NO_RESPONDERS = b"NATS/1.0 503\r\n\r\n"
OVERLOADED = b"NATS/1.0 429 Too Many Requests\r\n\r\n"

Accepted = tuple[IncomingMessage, Effect | None]
"""A message that passed every rule, and what it does once it is stored."""

_logger = logging.getLogger(__name__)


class Proposer:
    """The publishing side of one stream, on the node that leads it.

    Args:
        label: (name of the stream, domain or "") as pub acks show them.
        buffer: limits of what waits for the log.
    """

    def __init__(
        self,
        label: tuple[str, str],
        pipeline: Pipeline,
        view: ProposedView,
        hooks: Hooks,
        reader: Reader,
        bus: Bus,
        clock: Clock,
        buffer: BufferLimits,
    ) -> None:
        name, domain = label
        self._buffer, self._max_bytes = buffer, buffer.max_bytes
        self._name = name
        self._pipeline, self.view, self._hooks = pipeline, view, hooks
        self._reader, self._bus, self._clock = reader, bus, clock
        self._suffixes: bytes | tuple[bytes, ...] = ()
        domain_part = f'"domain":"{domain}",' if domain else ""
        self.ack = f'{{"stream":"{name}",{domain_part}"seq":'.encode()
        """Beginning of every pub ack; the sequence follows."""
        self._error_tail = f'"stream":"{name}","seq":0}}'.encode()
        self.confirm: Callable[[Callable[[bool], None]], None] = lambda then: then(True)
        """Calls back with True once it is certain that this node leads."""
        self.on_refused: Callable[[], None] = nothing_left
        """Called after publishes that waited were refused."""
        self.on_overrun: Callable[[str], None] = lambda why: None
        """Called with the limit that a refused publish exceeds, `len` or `size`."""
        self.weighed: Callable[[], bool] = lambda: False
        """Returns True if each message is checked for room, because the server or the account holds much already."""
        self._deferred: list[tuple[Callable[[], None], bytes]] = []
        self._deferred_bytes = 0
        self._wall = clock.now
        self._fetching = False
        self.guarded = self._guards = False
        """True if every message has to pass the rules, those without headers too."""
        self._singly = self._bounded = self._judged = False
        """True if each message is judged by itself; if limits may refuse one; if something else judges each message."""
        self._columnar: frozenset[bytes] = frozenset()
        """Headers that features judge in runs."""
        self._settled_rules = True
        """False while every message has to pass the rules because of what is in flight, or as there is little room."""
        self._prepared: tuple[Feature, ...] = ()
        self._config = StreamConfig()
        self.rules: PublishRules
        """Rules of all features; set before the first message."""

    def configure(self, config: StreamConfig) -> None:
        """Take a configuration: what follows from it is worked out once, not for each message."""
        self._config, hooks = config, self._hooks
        judges = [each for each in hooks.judges_every_message if each.judges_every_message()]
        self._singly = config.sealed or config.no_ack or not set(judges) <= set(hooks.passes_run)
        self._bounded = config.max_msg_size > 0 or limits.refuses_new(config) or self._buffer.exact
        self._judged = self._singly or bool(judges)
        self._guards = self._judged or self._bounded
        self._columnar = frozenset[bytes]().union(*(each.columnar for each in hooks.passes_run))
        self.guarded = self.guarded or self._guards
        self._prepared = hooks.prepared
        suffixes = tuple(each.reply_suffix for each in hooks.features if each.reply_suffix)
        self._suffixes = suffixes[0] if len(suffixes) == 1 else suffixes  # the quicker form of `endswith`

    @property
    def judging(self) -> bool:
        """Return True if more than the stream's limits judges messages without headers."""
        return self._judged or not self._settled_rules

    def effect_of(self, header: bytes) -> Effect:
        """Return what a message with this header block does once stored."""
        return self.rules.effects.of(header, self._config)

    def duplicate_of(self, effect: Effect) -> int:
        """Return the sequence of the stored message that one with this effect repeats, 0 if there is none."""
        return next(filter(None, (each.duplicate_of(effect) for each in self._hooks.duplicate_of)), 0)

    # ------------------------------------------------------------------ publish
    def take(self, messages: Messages, begin: int, end: int, client: ClientInfo) -> int:
        """Take published messages (`Take`). The pub ack of each leaves once it is committed (invariant 1)."""
        if type(messages) is Single:
            one = messages
        else:
            if type(messages) is Publishes and not messages.one_by_one:
                taken = self._take_run(messages, begin, end)
                if taken > begin:
                    return taken
                messages.refuse()
            elif type(messages) is Publishes:
                last = min(end, begin + SINGLY) - 1
                for at in range(begin, last):
                    self.take(messages.message(at), 0, 1, client)
                begin = last
            one = messages.message(begin)
        header, reply, payload = one.header, one.reply, one.payload
        special = header or self._deferred or len(payload) > self._max_bytes or reply.endswith(self._suffixes)
        if special or (self.guarded and not self._passes_alone(one.subject, payload)):
            self._take_checked(one, client)
        else:
            self._append(one.subject, reply, b"", payload)
        return begin + 1

    def _take_run(self, run: Publishes, begin: int, end: int) -> int:
        """Take publishes that pass all rules as they are, and return the first one that may not, `end` without any."""
        if self._deferred or self._prepared or run.content_bytes > min(self._max_bytes, MAX_RECORD_BYTES):
            return begin
        if self.guarded or run.own:
            end = self._passing(run, begin, end)
            if end == begin:
                return begin
        pipeline = self._pipeline
        # Invariant 5: times never go backwards in a stream, whatever the clock does. Messages that came together can
        # be told apart by time, as if they had come one after the other.
        now, seq = max(self._wall(), pipeline.last_time), pipeline.next_seq
        batch = pipeline.batch
        if batch is None or batch.whole or batch.is_full() or pipeline.crowded:
            batch = self._open_batch(now)
            if batch is None:
                return begin
        pipeline.hold(batch.add_run(seq, now, run, begin, end))
        pipeline.next_seq, pipeline.last_time = seq + end - begin, batch.last_time
        if run.own:
            for each in self._hooks.taken_run:
                each.taken_run(batch, run, begin, end)
        return end

    def _passing(self, run: Publishes, begin: int, end: int) -> int:
        """Return the first message of a run that a rule may not let pass as it is; `end` if all of them pass.

        What passes here has to pass `PublishRules.check` and `ProposedView.room` unchanged. The opposite is not so: a
        message that has to be refused, or is a duplicate, or waits, is left to them.
        """
        # What is in flight may change the rules, or remove the message that decides on another one.
        if self._singly or not self._settled_rules or self._pipeline.operations:
            return begin
        for name in run.own:
            if name not in self._columnar:
                values = run.values(name)
                end = next((at for at in range(begin, end) if values[at] is not None), end)
        for each in self._hooks.passes_run:
            if begin < end:
                end = each.passes_run(self.view, run, begin, end)
        if begin < end and self._bounded:
            largest = max(run.sizes(begin, end)) if self._config.max_msg_size > 0 else 0
            fits = self._fits(run.subjects[begin:end], limits.accounted_run(run, begin, end), largest)
            return end if fits else begin
        return end

    def _passes_alone(self, subject: bytes, payload: bytes) -> bool:
        """Return True if nothing but limits judges a message without headers, and they let it pass as in `_passing`."""
        if self.judging or self._pipeline.operations or len(subject) + len(payload) > MAX_RECORD_BYTES:
            return False
        return self._fits([subject], record_length(subject, b"", payload), len(payload))

    def _fits(self, subjects: Sequence[bytes], size: int, largest: int) -> bool:
        """Return True if no limit refuses one of these messages, whatever becomes of those in flight.

        Args:
            size: the sum of their accounted bytes.
            largest: the bytes of header block and payload of the largest.
        """
        buffer = self._buffer
        if 0 < self._config.max_msg_size < largest:
            return False
        if buffer.exact:
            waiting, held = self.view.pending_msgs(), self.view.pending_bytes()
            number = len(subjects)
            if waiting + number > buffer.max_msgs or held + size > buffer.max_bytes or self._pipeline.is_crowded():
                return False
        return self.view.has_room(subjects, size)

    def _append(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, time_ns: int = 0) -> int:
        """Put a message (from `time_ns`, or now) that passed every rule into the open batch; its sequence, or 0."""
        pipeline = self._pipeline
        # Invariant 5: times never go backwards in a stream, whatever the clock does.
        now = time_ns or self._wall()
        if now < pipeline.last_time:
            now = pipeline.last_time
        batch = pipeline.batch
        if batch is None or ((batch.is_full() or pipeline.crowded) and not batch.whole):
            opened = self._open_batch(max(self._wall(), pipeline.last_time) if time_ns else now)
            if opened is None:
                self._refuse_unopened(reply)
                return 0
            batch = opened
        pipeline.last_time = now
        seq = pipeline.next_seq
        pipeline.next_seq = seq + 1
        if self._prepared and not time_ns:
            self._prepare(batch, seq, now, subject, header, payload)
        pipeline.hold(batch.add(seq, now, subject, reply, header, payload))
        return seq

    def _prepare(self, batch: Batch, seq: int, now: int, subject: bytes, header: bytes, payload: bytes) -> None:
        for each in self._prepared:
            after = each.prepared(subject, header, payload)
            if after is not None:
                batch.after.append((seq, now, after))

    def _open_batch(self, time_ns: int, seq: int = 0, whole: bool = False, copied: bool = False) -> Batch | None:
        """Begin a batch whose first message gets this time; None if the stream takes none now.

        Args:
            seq: its sequence; 0: the next one.
            copied: the sequence and the time are those of an origin.
        """
        pipeline = self._pipeline
        if not pipeline.accepts or (pipeline.pending_bytes and self._exceeded(0)):
            return None
        seq = seq or pipeline.next_seq
        batch = Batch(seq, whole)
        for each in self._hooks.opened:
            each.opened(seq, time_ns, copied)
        pipeline.add_batch(batch)
        return batch

    def _exceeded(self, more: int) -> str:
        """Return the limit that would be exceeded with a message of so many bytes: `len` or `size`; "": none."""
        buffer = self._buffer
        if self.view.pending_msgs() + bool(more) > buffer.max_msgs:
            return "len"
        too_large = self.view.pending_bytes() + more > buffer.max_bytes or self._pipeline.is_crowded()
        return "size" if too_large else ""

    def _refuse_unopened(self, reply: bytes) -> None:
        """Refuse a message for which there is no batch."""
        pipeline = self._pipeline
        if pipeline.failed is None and pipeline.accepts:
            self._overrun(reply, self._exceeded(0) == "len")
        else:
            self.refuse(reply, pipeline.failed or api_error(10167))

    def _overrun(self, reply: bytes, messages: bool) -> None:
        """Refuse a publish because too many wait, by their number or their size."""
        self.on_overrun("len" if messages else "size")
        self.refuse(reply, api_error(10167))

    def _take_checked(self, published: Single, client: ClientInfo) -> None:
        """Take a message with headers, or one of a stream whose configuration can refuse or change it."""
        header = headers.without_status(published.header)
        if headers.REQUEST_INFO in header:
            header = headers.remove(header, [headers.REQUEST_INFO])
        message = IncomingMessage(published.subject, published.reply, header, published.payload, client)
        for each in self._hooks.arrived:
            each.arrived(message)
        self._judge(message)

    def _judge(self, message: IncomingMessage) -> None:
        """Give a message its subject, and find out who decides on it."""
        if self._pipeline.operations and self._changing():
            self.defer(lambda: self._judge(message), message.reply, message.size)
            return
        message.subject = self.renamed(message.subject)
        for each in self._hooks.takes_over:
            if each.takes_over(message):
                return
        self.decide(message)

    def _changing(self) -> bool:
        """Return True if another configuration is in flight: what comes after it is renamed and batched by that."""
        return any(isinstance(each, UpdateStream) for each in self._pipeline.pending_operations())

    def renamed(self, subject: bytes) -> bytes:
        """Return the subject under which the stream keeps a message."""
        for each in self._hooks.renamed:
            subject = each.renamed(subject)
        return subject

    def decide(self, message: IncomingMessage) -> None:
        """Judge one message and store it, or answer why not; later, where that depends on something in flight."""
        if self._deferred or self._pipeline.operations or self.view.unsettled(message.subject, message.header):
            # A rule may depend on what a purge or delete in flight will leave, and order among publishes stays.
            self._defer(message)
            return
        if self._buffer.exact and (limit := self._exceeded(message.size)):
            self._overrun(message.reply, limit == "len")
            return
        if self._config.no_ack:
            message.reply = b""
        came = (message.header, message.payload, message.tail, message.after)
        try:
            outcome = self.rules.check(self.view, message)
            if isinstance(outcome, Duplicate):
                if message.observer is not None:
                    message.observer.duplicate()
                self._answer_duplicate(message.reply, outcome.seq)
                return
            if message.observer is not None and message.observer.only:
                message.observer.passed(message)
                return
            length = limits.accounted(self._config, message.subject, message.header, message.payload)
            refused = self.view.room(message.subject, length, bool(outcome.rollup))
            if refused is not None:
                if self.view.pending_msgs():
                    # What is in flight may yet make room by replacing older messages: judged again once it is stored,
                    # as it came.
                    message.header, message.payload, message.tail, message.after = came
                    self._defer(message)
                    return
                raise refused
        except Postponed as missing:
            message.header, message.payload, message.tail, message.after = came
            self._defer(message)
            self.procure(missing)
            return
        except ApiError as error:
            self.reject(message, error)
            return
        self._store(message, outcome)

    def store(self, accepted: Sequence[Accepted]) -> int:
        """Store messages that passed every rule, all of them or none: several are one entry, whatever happens.

        Return the sequence of the last one; 0 if they are refused, its publisher then gets the error. Several only
        where `settled`.
        """
        if len(accepted) == 1:
            return self._store(*accepted[0])
        pipeline, last = self._pipeline, 0
        pipeline.batch = None
        if self._open_batch(max(self._wall(), pipeline.last_time), whole=True) is None:
            self._refuse_unopened(accepted[-1][0].reply)
            return 0
        for message, effect in accepted if self._prepared else accepted[self._store_plain(accepted[:-1]) :]:
            last = self._store(message, effect)
        pipeline.batch = None
        return last

    def _store_plain(self, accepted: Sequence[Accepted]) -> int:
        """Store messages of which nothing is to be noted together; return their number, 0 if one is none of these."""
        messages = [each for each, effect in accepted if effect is None and each.observer is None]
        if len(messages) < len(accepted) or any(each.tail or each.after for each in messages):
            return 0
        pipeline, number = self._pipeline, len(messages)
        assert pipeline.batch is not None, "it was opened for them"
        now, seq = max(self._wall(), pipeline.last_time), pipeline.next_seq
        columns = zip(*[(each.subject, each.header, each.payload) for each in messages], strict=True)
        pipeline.hold(pipeline.batch.extend(seq, [now] * number, *map(list, columns)))
        pipeline.next_seq, pipeline.last_time = seq + number, now
        return number

    def _store(self, message: IncomingMessage, effect: Effect | None) -> int:
        """Store a message that passed every rule; return its sequence, 0 if refused."""
        seq = self._append(message.subject, message.reply, message.header, message.payload, message.time_ns)
        pipeline = self._pipeline
        batch = pipeline.batch
        if not seq or batch is None:
            return seq
        if message.tail:
            batch.tails[seq] = message.tail
        now = pipeline.last_time
        if message.after is not None:
            batch.after.append((seq, now, message.after))
        if message.observer is not None and (after := message.observer.storing(message)) is not None:
            batch.after.append((seq, now, after))
        if effect is not None and (effect.values or effect.acts):
            effect.subject = message.subject
            self._note(effect)
        return seq

    def _note(self, effect: Effect, own: bool = True) -> None:
        """Note the effect of a message of the open batch: the last one, unless it states a sequence. `own`: it is no
        mirrored one."""
        pipeline = self._pipeline
        batch = pipeline.batch
        assert batch is not None, "it has the message"
        effect.seq, effect.time_ns = effect.seq or pipeline.next_seq - 1, pipeline.last_time
        if own and (effect.values or effect.acts):
            for each in self._hooks.taken:
                each.taken(effect)
        if effect.acts:
            batch.act(effect)
            if effect.rollup and not batch.whole:
                # A rollup ends its batch: what it removes is settled before the next message.
                pipeline.batch = None

    # ------------------------------------------------------------------ messages of other streams
    def copy(self, run: Run, effects: Sequence[Effect] = (), own: bool = False) -> tuple[int, ApiError | None]:
        """Store messages of an origin, which no rule judges.

        It is not `take`: nobody waits for an ack, and a mirror's sequences are given, with gaps.

        Args:
            effects: of the last message, or of those whose sequences they state; the others have none that counts. With
                gaps there is none.
            own: under this stream's next sequences, now, as sources do, all or none; else as the origin has them.

        Returns:
            The number of those stored, from the first on, and why not the next one: `NOT_NOW`, or what `room` says.
        """
        pipeline, number = self._pipeline, len(run)
        each, weighed = self.looks_at_each, self.weighed() or self._config.discard == "new"
        assert not (each and own and number > 1), "all or none"
        if self.moving or not pipeline.accepts:
            return 0, NOT_NOW
        if self._hooks.renamed:
            run = msgspec.structs.replace(run, subjects=list(map(self.renamed, run.subjects)))
        parts = [(at, at + 1) for at in range(number)] if each else [(0, number)] if own else run.stretches()
        for begin, end in parts:
            if pipeline.pending_bytes > self._max_bytes or pipeline.is_crowded():
                return begin, NOT_NOW
            subjects, blocks, payloads = run.subjects[begin:end], run.headers[begin:end], run.payloads[begin:end]
            if weighed:
                length = limits.accounted(self._config, subjects[0], blocks[0], payloads[0])
                refused = self.view.room(subjects[0], length, any(effect.rollup for effect in effects))
                if refused is not None:
                    return begin, refused
            # Invariant 5: times never go backwards in a stream, whatever this or the origin's clock did.
            if own:
                times = [max(self._wall(), pipeline.last_time)] * number
            else:
                times = list(accumulate(run.times[begin:end], max, initial=pipeline.last_time))[1:]
            seq = pipeline.next_seq if own else run.seqs[begin]
            batch = pipeline.batch
            if batch is None or batch.whole or seq != pipeline.next_seq or batch.is_full():
                batch = self._open_batch(times[0] if own else run.times[end - 1], seq, copied=not own)
                if batch is None:
                    return begin, NOT_NOW
            if self._prepared:
                self._prepare(batch, seq, times[0], subjects[0], blocks[0], payloads[0])
            pipeline.hold(batch.extend(seq, times, subjects, blocks, payloads))
            pipeline.next_seq, pipeline.last_time = seq + end - begin, times[-1]
        for effect in effects:
            effect.subject = run.subjects[effect.seq - run.seqs[0] if effect.seq else -1]
            self._note(effect, own)
        return number, None

    @property
    def looks_at_each(self) -> bool:
        """Return True if something is to be done for each copied message, also for one without headers."""
        return bool(self._prepared) or self.weighed() or self._config.discard == "new"

    @property
    def moving(self) -> bool:
        """Return True if an operation is in flight that may move the sequence or change the rules."""
        if not self._pipeline.operations:
            return False
        return any(isinstance(each, Purge | UpdateStream) for each in self._pipeline.pending_operations())

    @property
    def settled(self) -> bool:
        """Return True if this node leads and nothing is in flight that a message would have to wait for."""
        return not self._deferred and not self._pipeline.operations and self._pipeline.accepts

    # ------------------------------------------------------------------ waiting for operations
    @property
    def waiting(self) -> bool:
        """Return True if publishes wait for an operation in flight."""
        return bool(self._deferred)

    def guard(self) -> None:
        """Let every message pass the rules: an operation in flight may move the sequence or change them."""
        self.guarded, self._settled_rules = True, False

    def _defer(self, message: IncomingMessage) -> None:
        self.defer(lambda: self.decide(message), message.reply, message.size)

    def defer(self, again: Callable[[], None], reply: bytes, size: int) -> bool:
        """Call `again` once nothing is in flight that it has to wait for, in order with the publishes that wait.

        If too much waits, refuse `reply` with 10167 at once instead, and return False; also answer it when the call
        will not come, because the stream ends or another node leads. `size`: bytes that it holds meanwhile.
        """
        buffer, many = self._buffer, len(self._deferred) >= self._buffer.max_msgs
        if many or self._deferred_bytes + size > buffer.max_bytes or not self._pipeline.hold_waiting(size):
            self._overrun(reply, many)
            return False
        self._deferred_bytes += size
        self._deferred.append((again, reply))
        return True

    def fetch(self, seq: int) -> None:
        """Fetch a message that only the lake has; then what waits is judged again with it in `view.fetched`."""
        if not self._fetching:
            self._fetching = True
            self._clock.spawn(self._fetch(seq))

    def procure(self, missing: Postponed) -> None:
        """Have what a rule needs; then what waits is judged again."""
        if isinstance(missing, NotHere):
            self.fetch(missing.seq)
        elif isinstance(missing, NotReady) and not self._fetching:
            self._fetching = True
            missing.wait(self._procured)

    def _procured(self, error: ApiError | None) -> None:
        self._fetching = False
        if error is not None:
            self._refuse_deferred(error)
        elif not self._pipeline.operations:
            self.resume()

    async def _fetch(self, seq: int) -> None:
        try:
            found = await self._reader.fetch(seq)
        except Exception as error:
            _logger.error("%s: publishes are refused, they need history: %s", self._name, error)
            self._fetching = False
            self._refuse_deferred(api_error(10077, err=for_clients(error)))
            return
        self._fetching = False
        if not self._pipeline.operations:
            self.resume({seq: found})

    def resume(self, fetched: dict[int, Record | None] | None = None) -> None:
        """Judge what waited, in order: no operation is in flight any more. `fetched`: messages that are at hand now."""
        self._settled_rules = not self.weighed()
        self.guarded = self._guards or not self._settled_rules
        if not self._deferred or self._fetching:
            return
        self.view.fetched |= fetched or {}
        for again, _ in self._take_deferred():
            again()
        if not self._deferred:  # an atomic batch may ask for several, one after the other
            self.view.fetched.clear()

    def _take_deferred(self) -> list[tuple[Callable[[], None], bytes]]:
        """Return what waits, which is not counted any more."""
        deferred, self._deferred, self._deferred_bytes = self._deferred, [], 0
        self._pipeline.let_waiting_go()
        return deferred

    def _refuse_deferred(self, error: ApiError) -> None:
        for _, reply in self._take_deferred():
            self.refuse(reply, error)
        self.on_refused()

    def refuse_batch(self, batch: Batch, error: ApiError) -> None:
        """Answer the publishers of a batch that was not stored with an error."""
        for reply in [*batch.all_replies(), *(reply for reply, _ in batch.late)]:
            self.refuse(reply, error)

    def fail(self, error: ApiError) -> None:
        """Refuse the publishes that wait: the stream takes no more messages."""
        self._pipeline.batch = None
        self._refuse_deferred(error)

    def abandon(self, unproposed: Sequence[Batch]) -> None:
        """Forget what waits: another node leads now.

        Proposed messages get no answer: they may or may not be stored. The others are answered with 503 (no
        responders), so that clients send them again at once; but where another node may have taken them as well, they
        get no answer either.
        """
        replies = [reply for batch in unproposed for reply in batch.all_replies()]
        replies += [reply for batch in unproposed for reply, _ in batch.late]
        replies += [reply for _, reply in self._take_deferred()]
        for reply in filter(None, replies):
            self._decline(reply)
        self.guarded, self._settled_rules = self._guards, True
        self._pipeline.rewind()

    # ------------------------------------------------------------------ answers
    def _answer_duplicate(self, reply: bytes, seq: int) -> None:
        if reply:
            self.answer_at(seq, reply, b'%b%d,"duplicate": true}' % (self.ack, seq))

    def answer_at(self, seq: int, reply: bytes, answer: bytes) -> None:
        """Send an answer once the message with this sequence is committed, after earlier answers about it."""
        for batch in self._pipeline.batches():
            if batch.first_seq <= seq < batch.first_seq + len(batch):
                batch.late.append((reply, answer))
                return
        self._bus.send(Single(reply, payload=answer))

    def reject(self, message: IncomingMessage, error: ApiError) -> None:
        """Answer a publish that a rule refuses, and tell its observer."""
        if message.observer is not None and not message.observer.refused(message, error):
            return
        if error.err_code in DISCLOSING and message.reply:
            self._refuse_truly(message.reply, error)
        else:
            self.refuse(message.reply, error)

    def _refuse_truly(self, reply: bytes, error: ApiError) -> None:
        """Refuse once the state that the error discloses is committed: a client may rely on a sequence in it."""
        newest, answer = self._pipeline.next_seq - 1, self.refusal(error)

        def confirmed(led: bool) -> None:
            if led:
                self.answer_at(newest, reply, answer)
            else:
                self._decline(reply)

        self.confirm(confirmed)

    def _decline(self, reply: bytes) -> None:
        """Send a 503 (no responders) if no other node can have taken the message."""
        if self._pipeline.group.gave_up:
            self._bus.send(Single(reply, header=NO_RESPONDERS))

    def refuse(self, reply: bytes, error: ApiError) -> None:
        """Answer a publish with an error; in a cluster only the leader does."""
        if reply and self._pipeline.leading:
            header = OVERLOADED if error.err_code == 10167 else b""
            self._bus.send(Single(reply, header=header, payload=self.refusal(error)))

    def refusal(self, error: ApiError) -> bytes:
        """Return the pub ack of a publish that is refused."""
        return b'{"error":%b,%b' % (msgspec.json.encode(error.as_dict()), self._error_tail)
