"""Acks: the replies of clients to delivered messages.

Belongs here: the meaning of a reply's payload (docs/internals/api.md#acks), the change of the consumer's ledger, the
confirmation of an ack once it is on disk (invariant 1), and the metric of sampled acks. This is a hot path: one call
for each ack. The consumer that a reply is for is found in stream/acks.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from lakestream.log.store.store import Store
from lakestream.ports import Bus, Clock, ListedMessages, Single
from lakestream.protocol import headers
from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder
from lakestream.protocol.durations import parse_duration
from lakestream.stream.consumer.advisories import ConsumerAdvisories
from lakestream.stream.consumer.config import ConsumerConfig
from lakestream.stream.consumer.dead_letters import TERM as TERMINATED
from lakestream.stream.consumer.dead_letters import DeadLetters
from lakestream.stream.consumer.ledger import Ledger
from lakestream.stream.consumer.lifetime import Inactivity
from lakestream.stream.consumer.order_by_key import OrderByKey
from lakestream.stream.consumer.redelivery import Redelivery
from lakestream.stream.consumer.rules import sample_percent
from lakestream.stream.consumer.spans import DeliverySpans

NAK, PROGRESS, TERM = b"-NAK", b"+WPI", b"+TERM"

LAST_CONSUMER, LAST_STREAM = b"Nats-Last-Consumer", b"Nats-Last-Stream"

MAX_DELAY_NS = (1 << 63) - 1
"""The longest delay of a negative ack: what fits into 64 bits (292 years)."""


class AckOwner(Protocol):
    """The consumer, as its acks change it."""

    def request_progress(self) -> None:
        """Log the consumer's progress soon."""

    def progress_now(self, done: Callable[[], object]) -> None:
        """Log the consumer's progress at once, then call `done`."""

    def released(self, seqs: Sequence[int]) -> None:
        """Take messages of an interest or work-queue stream that the consumer is done with."""

    def wake(self) -> None:
        """Deliver at the end of this turn, if there is something to deliver."""


class AckHandler:
    """Applies the acks of one consumer, its `owner`."""

    def __init__(
        self,
        ledger: Ledger,
        redelivery: Redelivery,
        inactivity: Inactivity,
        advisories: ConsumerAdvisories,
        store: Store,
        clock: Clock,
        bus: Bus,
        owner: AckOwner,
        spans: DeliverySpans | None = None,
    ) -> None:
        self._ledger, self._redelivery = ledger, redelivery
        self._inactivity, self._advisories = inactivity, advisories
        self._store, self._clock, self._bus, self._owner, self._spans = store, clock, bus, owner, spans
        self._confirmations: list[bytes] = []
        self.letters: DeadLetters | None = None
        """Set for a consumer with a dead-letter subject."""
        self.order: OrderByKey | None = None
        """Set for a consumer with a key."""

    def adopt(self, config: ConsumerConfig, retention: str, volatile: bool) -> None:
        """Take the consumer's configuration and the stream's retention: what follows from them is computed once.

        `volatile`: progress is never logged.
        """
        self._config = config
        self._acked = config.ack_policy in ("explicit", "all")
        self._explicit = config.ack_policy == "explicit"
        self._max_pending = config.max_ack_pending if self._acked and config.max_ack_pending > 0 else 0
        self._sample = sample_percent(config)
        self._releases = retention != "limits"
        self._volatile = volatile

    def rest(self) -> None:
        """Drop the confirmations that wait: another node takes the acks."""
        self._confirmations = []

    def reply(self, seq: int, consumer_seq: int, deliveries: int, payload: bytes, reply: bytes) -> None:
        """Apply a reply to a delivered message that is no plain ack. Never +NXT."""
        if seq > self._ledger.delivered_stream:
            return
        if payload.startswith(TERM):
            reason = payload[len(TERM) :].strip().decode("utf-8", "replace")
            if seq in self._ledger.pending:
                self._advisories.terminated(consumer_seq, seq, deliveries, reason)
                if self.letters is not None and self.letters.takes(TERMINATED):
                    self._redelivery.dequeue(seq)
                    self.letters.send(seq, deliveries, TERMINATED, reason, reply)
                    return
            self.ack(seq, consumer_seq, deliveries, reply, plain=False)
            return
        if payload.startswith(NAK):
            self._nak(seq, consumer_seq, deliveries, _delay(payload[len(NAK) :]))
        elif payload == PROGRESS:
            self._in_progress(seq)
        if reply:
            self._bus.send(Single(reply))

    def ack(self, seq: int, consumer_seq: int, deliveries: int, reply: bytes, plain: bool = True) -> bool:
        """Apply an ack. Return False if the message was never delivered, without an answer to `reply`.

        Args:
            consumer_seq, deliveries: as in the ack subject, for the metric only.
            reply: gets the confirmation once the ack is on disk (invariant 1); `b""` = none.
            plain: False for +TERM, which is no sample of how long acks take.
        """
        ledger = self._ledger
        if seq > ledger.delivered_stream:
            return False
        full = bool(self._max_pending) and len(ledger.pending) >= self._max_pending
        now = self._clock.steady()
        self._inactivity.last_ns = now
        if self._explicit:
            if self._sample and plain and seq in ledger.pending:
                self._sampled(seq, consumer_seq, deliveries, now)
            acked = ledger.ack(seq, now)
            if self._spans is not None:
                self._spans.acked((seq,))
            if len(self._redelivery):
                self._redelivery.dequeue(seq)
            if self.order is not None:
                self.order.settled((seq,))
            if self._releases and (acked or self._kept(seq)):
                self._owner.released([seq])
        elif self._acked:
            self._ack_through(seq, now, consumer_seq)
        if not self._volatile:
            self._owner.request_progress()
        if reply:
            self._confirm(reply)
        if full:
            self._owner.wake()
        return True

    def ack_run(self, seqs: list[int]) -> bool:
        """Apply plain acks as `ack` does each of them; return False if they have to be applied one by one."""
        ledger = self._ledger
        if not self._explicit or self._sample or max(seqs) > ledger.delivered_stream:
            return False
        full = bool(self._max_pending) and len(ledger.pending) >= self._max_pending
        now = self._clock.steady()
        self._inactivity.last_ns = now
        acked = set(ledger.ack_run(seqs, now))
        if self._spans is not None:
            self._spans.acked(seqs)
        if len(self._redelivery):
            for seq in seqs:
                self._redelivery.dequeue(seq)
        if self.order is not None:
            self.order.settled(seqs)
        if self._releases and (done := [seq for seq in dict.fromkeys(seqs) if seq in acked or self._kept(seq)]):
            self._owner.released(done)
        if not self._volatile:
            self._owner.request_progress()
        if full:
            self._owner.wake()
        return True

    def _ack_through(self, seq: int, now: int, consumer_seq: int) -> None:
        done = self._ledger.ack_through(seq, now, consumer_seq)
        if self._spans is not None:
            self._spans.acked(done)
        if len(self._redelivery):
            for other in done:
                self._redelivery.dequeue(other)
        if done and self._releases:
            self._owner.released(done)

    def _sampled(self, seq: int, consumer_seq: int, deliveries: int, now: int) -> None:
        if self._sample >= 100 or random.randrange(100) < self._sample:
            delivered = self._ledger.deadline[seq] - self._config.ack_wait_of(self._ledger.deliveries(seq))
            self._advisories.acked(consumer_seq, seq, max(now - delivered, 0), deliveries)

    def _kept(self, seq: int) -> bool:
        """Return True if a message exists and matches though it is not pending: it was delivered max_deliver times
        without an ack. As in nats-server a late ack releases it."""
        subject = self._store.subject_of(seq)
        return bool(subject) and self._config.wants(subject)

    def confirmed(self, header: bytes) -> None:
        """Apply the answer to a flow control request, which is the ack under ack policy flow_control."""
        consumer_seq, seq = headers.get(header, LAST_CONSUMER), headers.get(header, LAST_STREAM)
        if not (consumer_seq and seq and consumer_seq.isdigit() and seq.isdigit()):
            return  # an answer without numbers acks nothing
        done = self._ledger.confirm(int(consumer_seq[:20]), int(seq[:20]), self._clock.steady())
        if done and self._releases:
            self._owner.released(done)
        self._progressed()
        self._owner.wake()

    def _nak(self, seq: int, consumer_seq: int, deliveries: int, delay: int) -> None:
        """Apply a negative ack: deliver the message again at once, or after `delay` ns."""
        if not self._ledger.deadline.get(seq):  # not pending, or held back: no client has it
            return
        self._advisories.naked(consumer_seq, seq, deliveries)
        if delay > 0:
            self._redelivery.dequeue(seq)
            self._postpone(seq, self._clock.steady() + delay)
        else:
            self._redelivery.enqueue((seq,))
        self._owner.wake()

    def _in_progress(self, seq: int) -> None:
        """Begin the ack_wait of a message anew: a client is still at work on it."""
        if self._ledger.deadline.get(seq):
            self._postpone(seq, self._clock.steady() + self._config.ack_wait_of(self._ledger.deliveries(seq)))

    def _postpone(self, seq: int, deadline: int) -> None:
        self._ledger.postpone(seq, deadline)
        self._redelivery.expect(seq, deadline)
        self._progressed()

    def _progressed(self) -> None:
        if not self._volatile:
            self._owner.request_progress()

    def _confirm(self, reply: bytes) -> None:
        """Answer an ack once it is on disk; all acks of one turn share one entry."""
        if self._volatile:
            self._bus.send(Single(reply))
            return
        if not self._confirmations:
            self._clock.call_soon(self.log_confirmed)
        self._confirmations.append(reply)

    def log_confirmed(self) -> None:
        """Log the acks whose confirmations wait, and confirm them then."""
        replies, self._confirmations = self._confirmations, []
        if replies:
            self._owner.progress_now(lambda: self._bus.send(ListedMessages(list(map(Single, replies)))))


class _NakOptions(msgspec.Struct):
    delay: int = 0


_nak_options = JsonDecoder(_NakOptions)


def _delay(text: bytes) -> int:
    """Return the delay of a negative ack in ns: `{"delay": ns}` or a Go duration; 0 if absent or not understood."""
    text = text.strip()
    if not text:
        return 0
    try:
        delay = _nak_options.decode(text).delay if text[:1] == b"{" else parse_duration(text.decode())
        # A delay beyond Go's durations is invalid; such a deadline could not be logged either.
        return delay if delay <= MAX_DELAY_NS else 0
    except (*DECODE_ERRORS, ValueError):
        return 0
