"""Messages on their way into a stream: from a publish to an entry that waits for the log.

Belongs here: giving messages their sequences and times, gathering them in batches, and what happens to a publish that
the rules of publish.py refuse, know already, or can not judge yet (invariant 2: deciding). What becomes of a batch
once it is committed is apply.py's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from lakestream.jetstream import limits, publish
from lakestream.jetstream.batch import MAX_BATCH_BYTES, Batch, Effect
from lakestream.jetstream.errors import ApiError, api_error
from lakestream.jetstream.ports import ClientInfo
from lakestream.jetstream.stream_config import StreamConfig
from lakestream.jetstream.view import ProposedView
from lakestream.protocol import headers

if TYPE_CHECKING:
    from lakestream.jetstream.stream import Stream

MAX_BUFFERED_MSGS = 100_000
MAX_BUFFERED_BYTES = 128 << 20
"""Publishes waiting for the log beyond these are refused with 10167 (nats-server's max_buffered_msgs/_size)."""

NO_RESPONDERS = b"NATS/1.0 503\r\n\r\n"


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
        self._batch: Batch | None = None
        self._deferred: list[tuple[bytes, bytes, bytes, bytes, ClientInfo]] = []
        self._deferred_bytes = 0
        self._guarded = self._guards = False

    def rewind(self) -> None:
        """Go on after what is stored: whatever was decided beyond that does not count."""
        store = self._stream.store
        self.next_seq, self.last_time = store.last_seq + 1, store.last_time
        self._batch = None

    def adopt(self, config: StreamConfig) -> None:
        """Take a configuration: what follows from it is worked out once, not for each message."""
        self._guards = config.sealed or config.max_msg_size > 0 or config.no_ack or limits.refuses_new(config)
        self._guarded = self._guarded or self._guards

    # ------------------------------------------------------------------ publish
    def ingest(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        """Take a published message. The pub ack leaves once the message is committed (invariant 1)."""
        if header or self._guarded or self._deferred or len(payload) > MAX_BUFFERED_BYTES:
            self._ingest_checked(subject, reply, header, payload, client)
            return
        self._append(subject, reply, b"", payload)

    def _append(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, time_ns: int = 0) -> int:
        """Put a message (from `time_ns`, or now) that passed every rule into the open batch; its sequence, or 0."""
        batch = self._batch
        if batch is None or batch.size >= MAX_BATCH_BYTES:
            opened = self._open_batch()
            if opened is None:
                self.refuse(reply, self._stream.failed or api_error(10167))
                return 0
            batch = opened
        # Invariant 5: times never go backwards in a stream, whatever the clock does.
        now = time_ns or time.time_ns()
        if now < self.last_time:
            now = self.last_time
        self.last_time = now
        seq = self.next_seq
        self.next_seq = seq + 1
        batch.add(seq, now, subject, reply, header, payload)
        return seq

    def _open_batch(self) -> Batch | None:
        stream = self._stream
        if stream.failed is not None or stream.closed or not stream.leading:
            return None
        if self.view.pending_msgs() > MAX_BUFFERED_MSGS or self.view.pending_bytes() > MAX_BUFFERED_BYTES:
            return None
        batch = Batch(self.next_seq)
        stream.gather_batch(batch)
        self._batch = batch
        return batch

    def close_batch(self) -> None:
        """What comes next goes into a batch of its own: something else was proposed, or the log takes this one."""
        self._batch = None

    def _ingest_checked(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        """The way of a message with headers, or into a stream whose configuration can refuse it."""
        stream = self._stream
        if self._deferred or stream.operations:
            # A rule may depend on what a purge or delete in flight will leave, and order among publishes stays.
            self._defer(subject, reply, header, payload, client)
            return
        if stream.config.no_ack:
            reply = b""
        header = headers.without_status(header)
        try:
            outcome = publish.check(self.view, subject, header, payload)
            if isinstance(outcome, publish.Duplicate):
                self._answer_duplicate(reply, outcome.seq)
                return
            length = limits.accounted(stream.config, subject, header, payload)
            refused = self.view.room(subject, length, bool(outcome.rollup))
            if refused is not None:
                if self.view.pending_msgs():
                    # What is in flight may yet make room by replacing older messages: judged again once it is stored.
                    self._defer(subject, reply, header, payload, client)
                    return
                raise refused
        except ApiError as error:
            self.refuse(reply, error)
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
            self._stream.dedupe.add(effect.msg_id, seq, self.last_time)
        if effect.rollup or effect.ttl_ns:
            effect.seq = seq
            self._batch.effects.append(effect)
            if effect.rollup or time_ns:
                # A rollup ends its batch: what it removes is settled before the next message. So does an imported TTL:
                # it counts from the batch's last time, and the next message's may be days later.
                self._batch = None
        return seq

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

    def _defer(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        self._deferred_bytes += len(subject) + len(header) + len(payload)
        if len(self._deferred) >= MAX_BUFFERED_MSGS or self._deferred_bytes > MAX_BUFFERED_BYTES:
            self._deferred_bytes -= len(subject) + len(header) + len(payload)
            self.refuse(reply, api_error(10167))
            return
        self._deferred.append((subject, reply, header, payload, client))

    def resume(self) -> None:
        """No operation is in flight any more: judge what waited for that, in order."""
        self._guarded = self._guards
        if self._deferred:
            for message in self._forget_deferred():
                self.ingest(*message)

    def _forget_deferred(self) -> list[tuple[bytes, bytes, bytes, bytes, ClientInfo]]:
        deferred, self._deferred, self._deferred_bytes = self._deferred, [], 0
        return deferred

    def fail(self, error: ApiError) -> None:
        """The stream takes no more messages: tell those that waited."""
        self._batch = None
        for _, reply, _, _, _ in self._forget_deferred():
            self.refuse(reply, error)

    def abandon(self, unproposed: Sequence[Batch]) -> None:
        """Another node leads now. What was proposed gets no answer: nobody knows whether it is stored. What was not is
        answered like a message that nobody listens to, which clients send again at once."""
        replies = [reply for batch in unproposed for reply in batch.replies]
        replies += [reply for batch in unproposed for reply, _ in batch.late]
        replies += [message[1] for message in self._forget_deferred()]
        for reply in filter(None, replies):
            self._stream.bus.publish(reply, b"", NO_RESPONDERS, b"")
        self._guarded = self._guards
        self.rewind()

    # ------------------------------------------------------------------ answers
    def _answer_duplicate(self, reply: bytes, seq: int) -> None:
        if not reply:
            return
        answer = (reply, b'%b%d,"duplicate": true}' % (self.ack, seq))
        for proposal in reversed(self._stream.uncommitted()):
            batch = proposal.context
            if isinstance(batch, Batch) and batch.first_seq <= seq < batch.first_seq + len(batch):
                batch.late.append(answer)
                return
        self._stream.bus.reply_many([answer])

    def refuse(self, reply: bytes, error: ApiError) -> None:
        """Answer a publish with an error; in a cluster only the leader does."""
        if reply and self._stream.leading:
            body = msgspec.json.encode(error.as_dict())
            self._stream.bus.publish(reply, b"", b"", b'{"error":%b,%b' % (body, self._error_tail))
