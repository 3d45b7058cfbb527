"""Fast batches: many messages with few answers, at the pace that the server gives (ADR-50,
docs/internals/streams.md#fast-batches).

Belongs here: the reply subject of a member, the place of a batch, and the answers to its members. Every member is
judged and stored like a message of its own; what a batch adds is order, flow control and one pub ack at the end. The
answers that speak of stored messages leave once these are committed (invariant 1). Atomic batches are in atomic.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lakestream.ports import Clock
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.protocol.decoding import PackDecoder
from lakestream.stream.core import limits
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.effect import Effect
from lakestream.stream.core.operations import ConsumerProgress
from lakestream.stream.core.pipeline import Pipeline
from lakestream.stream.core.proposer import Proposer
from lakestream.stream.core.publish import Duplicate, IncomingMessage, Postponed
from lakestream.stream.features.batches import (
    MAX_ID_CHARS,
    Batches,
    BatchRoom,
    check_size,
    is_no_member,
    number,
    without_level,
)

MAX_INTERVAL = 500
"""Messages between two acks of all open batches of a stream together; each gets its share."""

DEFAULT_FLOW = 10
"""Messages between two acks where the reply subject does not say how many."""

START, APPEND, COMMIT, END, PING = range(5)
"""Operations: the first message, a further one, the last one, the end without a message, a question after progress."""


class FastReply(msgspec.Struct, frozen=True):
    """Fields of a reply subject `<prefix>.<id>.<flow>.<ok|fail>.<seq>.<operation>.$FI`."""

    id: bytes
    flow: int
    keeps_going: bool
    """`ok`: a gap or a refused message does not end the batch."""
    seq: int
    operation: int

    @property
    def begins(self) -> bool:
        """Return True if a batch can begin with it."""
        return self.seq == 1 and self.operation in (START, COMMIT)


def parse_reply(reply: bytes) -> FastReply:
    """Read a reply subject from the right: the prefix may have dots. Raises ApiError 10206, 10207."""
    parts = reply.rsplit(b".", 6)
    if len(parts) != 7:
        raise api_error(10206)
    _, batch_id, flow, mode, seq, operation, _ = parts
    place, wanted = number(seq), number(operation)
    if mode not in (b"ok", b"fail") or place < 1 or not START <= wanted <= PING:
        raise api_error(10206)
    if (wanted == START) != (place == 1) and wanted in (START, APPEND, END):
        raise api_error(10206)
    if not 0 < len(batch_id) <= MAX_ID_CHARS:
        raise api_error(10207)
    # Digits beyond a number's size are a large number; other text selects the default.
    asked = number(flow) if flow.isdigit() else DEFAULT_FLOW
    asked = min(asked, MAX_INTERVAL) if asked >= 0 else MAX_INTERVAL
    return FastReply(batch_id, asked or DEFAULT_FLOW, mode == b"ok", place, wanted)


class _Fast(msgspec.Struct, array_like=True):
    """An open batch; also how its place is logged."""

    id: bytes
    flow: int
    keeps_going: bool
    interval: int
    """Messages between two acks, for now."""
    next: int = 1
    """The batch sequence that comes next."""
    acked: int = 0
    """Batch sequences through here were acked, or would have been."""
    stored: int = 0
    """The stream's sequence of the last message stored, proposed ones included."""
    touched_ns: int = 0
    reply: bytes = b""
    """Reply subject of the last message."""


_encoder = msgspec.msgpack.Encoder()
_places = PackDecoder(tuple[list[_Fast], list[bytes]])


class Fast(Batches[_Fast]):
    """The fast batches of one stream, on the node that leads it.

    In a replicated stream every write also logs the positions of the batches whose messages it has: the next leader
    continues from there. Positions logged before a checkpoint are not remembered.
    """

    reply_suffix = b".$FI"

    def __init__(self, room: BatchRoom, clock: Clock, pipeline: Pipeline, proposer: Proposer) -> None:
        super().__init__(room, clock, pipeline, proposer)
        self._changed: dict[bytes, None] = {}
        """Ids of batches whose position differs from the logged one."""
        self._known: dict[bytes, _Fast] = {}
        """Batches at their logged positions."""

    # ------------------------------------------------------------------ life
    def lead(self, recovered: bool) -> None:
        """Go on with the batches of the leader before, and tell their writers what came."""
        horizon = self._clock.steady() - self._room.timeout_ns
        for known in self._known.values():
            if known.touched_ns > horizon and self._room.for_fast(len(self._open)):
                batch = msgspec.structs.replace(known, acked=known.next - 1)
                self._room.fast += 1
                self._touch(batch)
                self._ack(batch, batch.reply)

    def follow(self) -> None:
        super().follow()
        self._changed.clear()

    def configure(self, config: StreamConfig) -> None:
        """Take a configuration: where fast batches are off, none is open."""
        self._config = config
        if not config.allow_batched:
            self.follow()
            self._known.clear()

    def active(self, hook: str) -> bool:
        return hook != "before_write" or self._config.allow_batched

    # ------------------------------------------------------------------ the log
    def before_write(self) -> None:
        """Let the write that begins say where the batches are after it."""
        if not self._changed:
            return
        changed, self._changed = self._changed, {}
        if not self._pipeline.replicated:
            return
        batches = [self._open.get(batch_id) for batch_id in changed]
        ended = changed.keys() - {batch.id for batch in batches if batch is not None}
        state = _encoder.encode(([batch for batch in batches if batch is not None], sorted(ended)))
        self._pipeline.log_progress([ConsumerProgress("", state)], lambda: self._learn(state))

    def progressed(self, entries: Sequence[ConsumerProgress]) -> None:
        for entry in entries:
            if not entry.name:
                self._learn(entry.state)

    def _learn(self, state: bytes) -> None:
        """Apply what `before_write` logged."""
        batches, ended = _places.decode(state)
        for batch in batches:
            self._known[batch.id] = batch
        for batch_id in ended:
            self._known.pop(batch_id, None)

    def _released(self, batch: _Fast) -> None:
        self._room.fast -= 1
        self._changed[batch.id] = None

    # ------------------------------------------------------------------ members
    def takes_over(self, message: IncomingMessage) -> bool:
        """Take a message over if it belongs to a batch."""
        if not message.reply.endswith(self.reply_suffix) or is_no_member(self._config, message):
            return False
        self._take(message)
        return True

    def _take(self, message: IncomingMessage) -> None:
        proposer = self._proposer
        if proposer.waiting or self._pipeline.operations:  # what comes in order is answered in order
            proposer.defer(lambda: self._take(message), message.reply, message.size)
            return
        try:
            member, batch = self._find(message)
        except ApiError as error:
            if not self._config.no_ack:
                self._reject(message, error)
            return
        self._touch(batch)
        self._changed[batch.id] = None
        batch.reply = message.reply
        if member.operation == PING:
            self._ping(batch, member, message.reply)
        elif self._in_order(batch, member, message.reply):
            if member.operation == END:
                self._finish(batch, message.reply, member.seq - 1)
            else:
                batch.next = member.seq + 1
                if member.operation == START and not self._config.no_ack:
                    self._say(message.reply, b'{"type":"ack","seq":0,"msgs":%d}' % batch.interval)
                self._judge(batch, member, message)

    def _find(self, message: IncomingMessage) -> tuple[FastReply, _Fast]:
        """Return the batch that a message belongs to, or begins. Raise ApiError if it belongs to none."""
        config = self._config
        check_size(config, message)
        if not config.allow_batched:
            raise api_error(10205)
        member = parse_reply(message.reply)
        batch = self._open.get(member.id) or self._begin(member)
        try:
            message.header = without_level(message.header)
        except ApiError:
            self._end(batch)
            raise
        return member, batch

    def _begin(self, member: FastReply) -> _Fast:
        if not member.begins:
            raise api_error(10208)
        if not self._room.for_fast(len(self._open)):
            raise api_error(10211)
        alone = not self._open
        interval = min(member.flow, MAX_INTERVAL) if alone else 1
        batch = _Fast(member.id, member.flow, member.keeps_going, interval)
        self._room.fast += 1
        self._touch(batch)
        return batch

    def _in_order(self, batch: _Fast, member: FastReply, reply: bytes) -> bool:
        """Return True if a member can be taken. Report a gap before it, and end a batch that does not go on then."""
        if member.seq == batch.next:
            return True
        self._gap(batch, reply, member.seq)
        if member.seq > batch.next and batch.keeps_going:
            return True
        self._finish(batch, reply, batch.next - 1)
        return False

    def _ping(self, batch: _Fast, member: FastReply, reply: bytes) -> None:
        """Answer a client that has sent everything through this sequence, and asks what came."""
        if member.seq >= batch.next:
            self._gap(batch, reply, member.seq + 1)
            if not batch.keeps_going:
                self._finish(batch, reply, batch.next - 1)
                return
            batch.next = member.seq + 1
            self._advance(batch)
        self._ack(batch, reply)

    # ------------------------------------------------------------------ one message
    def _judge(self, batch: _Fast, member: FastReply, message: IncomingMessage) -> None:
        """Store a message, or say why not; later, where that depends on something in flight."""
        proposer = self._proposer

        def again() -> None:
            self._judge(batch, member, message)

        if proposer.waiting or self._pipeline.operations or proposer.view.unsettled(message.subject, message.header):
            proposer.defer(again, message.reply, message.size)
            return
        if not message.header and not proposer.guarded:  # nothing can refuse it
            self._store(batch, member, message, message, None)
            return
        judged = msgspec.structs.replace(message, reply=b"")  # the rules rewrite it; it may be judged again
        try:
            outcome = proposer.rules.check(proposer.view, judged, member=True)
            if isinstance(outcome, Duplicate):
                if message.observer is not None:
                    message.observer.duplicate()
                self._duplicate(batch, member, message.reply, outcome.seq)
                return
            length = limits.accounted(self._config, judged.subject, judged.header, judged.payload)
            refused = proposer.view.room(judged.subject, length, bool(outcome.rollup))
            if refused is not None and not proposer.view.pending_msgs():
                raise refused
        except Postponed as missing:
            proposer.defer(again, message.reply, message.size)
            proposer.procure(missing)
        except ApiError as error:
            self._refused(batch, member, message, error)
        else:
            if refused is not None:  # what is in flight may yet make room
                proposer.defer(again, message.reply, message.size)
            else:
                self._store(batch, member, message, judged, outcome)

    def _store(
        self, batch: _Fast, member: FastReply, message: IncomingMessage, judged: IncomingMessage, effect: Effect | None
    ) -> None:
        reply, judged.reply, judged.tail = message.reply, b"", b""
        seq = self._proposer.store([(judged, effect)])
        message.reply = reply
        if not seq:
            self._refused(batch, member, message, self._pipeline.failed or api_error(10167))
            return
        batch.stored = seq
        if member.operation == COMMIT:
            self._finish(batch, reply, member.seq)
        elif self._advance(batch):
            self._ack(batch, reply)

    def _duplicate(self, batch: _Fast, member: FastReply, reply: bytes, seq: int) -> None:
        """Count a message that was stored before as if it were stored now."""
        if self._advance(batch):
            self._ack(batch, reply)
        if member.operation == COMMIT and member.begins and not batch.keeps_going:
            # nats-server answers it like a single publish.
            batch.stored = seq
            self._finish(batch, reply, member.seq, b',"duplicate": true')
        elif member.operation == COMMIT:
            self._finish(batch, reply, member.seq)

    def _refused(self, batch: _Fast, member: FastReply, message: IncomingMessage, error: ApiError) -> None:
        # A gap is judged by what the batch began with, a refusal by what this message says.
        if member.begins and not member.keeps_going:
            self._end(batch)
            self._reject(message, error)
            return
        if message.observer is not None:
            message.observer.refused(message, error)
        reply = message.reply
        shown = msgspec.json.encode(error.as_dict())
        self._say(reply, b'{"type":"err","seq":%d,"error":%b}' % (member.seq, shown))
        if member.operation == COMMIT or not member.keeps_going:
            self._finish(batch, reply, member.seq - 1)

    # ------------------------------------------------------------------ flow control
    def _advance(self, batch: _Fast) -> bool:
        """Return True if an ack is due, and set the interval to the next one by the number of open batches."""
        due = (batch.next - 1 - batch.acked) // batch.interval * batch.interval
        if not due:
            return False
        batch.acked += due
        most = max(1, min(batch.flow, MAX_INTERVAL // max(1, len(self._open))))
        if batch.interval < most:
            batch.interval = min(batch.interval * 2, most)
        else:
            batch.interval = max(batch.interval // 2, most)
        return True

    # ------------------------------------------------------------------ answers
    def _ack(self, batch: _Fast, reply: bytes) -> None:
        self._say(reply, b'{"type":"ack","seq":%d,"msgs":%d}' % (batch.acked, batch.interval))

    def _gap(self, batch: _Fast, reply: bytes, seq: int) -> None:
        self._say(reply, b'{"type":"gap","last_seq":%d,"seq":%d}' % (batch.next, seq))

    def _finish(self, batch: _Fast, reply: bytes, count: int, tail: bytes = b"") -> None:
        """End the batch with a pub ack: what of it is stored."""
        self._end(batch)
        shown = msgspec.json.encode(batch.id.decode("utf-8", "replace"))
        ack = self._proposer.ack
        self._say(reply, b'%b%d%b,"batch":%b,"count":%d}' % (ack, batch.stored, tail, shown, count))

    def _reject(self, message: IncomingMessage, error: ApiError) -> None:
        """Refuse a message that belongs to no batch."""
        if error.err_code == 10167:
            self._proposer.reject(message, error)
        elif message.observer is None or message.observer.refused(message, error):
            self._say(message.reply, self._proposer.refusal(error))

    def _say(self, reply: bytes, answer: bytes) -> None:
        """Answer once everything before it is committed, so that answers come in the order of what they answer."""
        self._proposer.answer_at(self._pipeline.next_seq - 1, reply, answer)
