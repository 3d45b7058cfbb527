"""What clients say about the messages that a consumer delivered.

Belongs here: acks, naks, progress and the words of flow control as changes of the ledger, the confirmation of an ack
once it is on disk (invariant 1), and the metric of sampled acks. The subjects and payloads are acks.py's. This
is a hot path: one call for each ack.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from lakestream.protocol import headers
from lakestream.stream.consumer.config import ConsumerConfig
from lakestream.stream.consumer.retention import wants
from lakestream.stream.consumer.rules import sample_percent

if TYPE_CHECKING:
    from lakestream.stream.consumer.consumer import Consumer

LAST_CONSUMER, LAST_STREAM = b"Nats-Last-Consumer", b"Nats-Last-Stream"


class Acking:
    """Takes the acks of one consumer."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._ledger, self._redelivery = consumer.ledger, consumer.redelivery
        self._clock, self._bus = consumer.stream.clock, consumer.stream.bus
        self._confirmations: list[bytes] = []
        self.adopt(consumer.config)

    def adopt(self, config: ConsumerConfig) -> None:
        """What follows from the configuration is worked out once."""
        self._acked = config.ack_policy in ("explicit", "all")
        self._explicit = config.ack_policy == "explicit"
        self._max_pending = config.max_ack_pending if self._acked and config.max_ack_pending > 0 else 0
        self._sample = sample_percent(config)
        self._volatile = self._consumer.volatile

    def rest(self) -> None:
        """Another node takes the acks from now on."""
        self._confirmations = []

    # ------------------------------------------------------------------ acks
    def ack(self, seq: int, consumer_seq: int, deliveries: int, reply: bytes, plain: bool = True) -> bool:
        """A client is done with a message. False when it was never delivered (then there is no reply either).

        Args:
            consumer_seq, deliveries: as in the ack subject, for the metric only.
            reply: where the confirmation goes once the ack is on disk (invariant 1); `b""` = nowhere.
            plain: False for +TERM, which is no sample of how long acks take.
        """
        ledger, consumer = self._ledger, self._consumer
        if seq > ledger.delivered_stream:
            return False
        full = bool(self._max_pending) and len(ledger.pending) >= self._max_pending
        now = self._clock.steady()
        consumer.inactivity.last_ns = now
        if self._explicit:
            if self._sample and plain and seq in ledger.pending:
                self._sampled(seq, consumer_seq, deliveries, now)
            acked = ledger.ack(seq, now)
            if len(self._redelivery):
                self._redelivery.dequeue(seq)
            if consumer.stream.config.retention != "limits" and (acked or self._left(seq)):
                self._done([seq])
        elif self._acked:
            self._ack_through(seq, now, consumer_seq)
        if not self._volatile:
            consumer.stream.request_progress()
        if reply:
            self._confirm(reply)
        if full:
            consumer.wake()
        return True

    def _ack_through(self, seq: int, now: int, consumer_seq: int) -> None:
        done = self._ledger.ack_through(seq, now, consumer_seq)
        if len(self._redelivery):
            for other in done:
                self._redelivery.dequeue(other)
        if done and self._consumer.stream.config.retention != "limits":
            self._done(done)

    def _sampled(self, seq: int, consumer_seq: int, deliveries: int, now: int) -> None:
        if self._sample >= 100 or random.randrange(100) < self._sample:
            delivered = self._ledger.deadline[seq] - self._consumer.ack_wait(self._ledger.deliveries(seq))
            self._consumer.events.acked(consumer_seq, seq, max(now - delivered, 0), deliveries)

    def _left(self, seq: int) -> bool:
        """Whether a message that is not pending is there all the same: it was delivered `max_deliver` times, and no ack
        came in time. A late one lets it go, as in nats-server."""
        subject = self._consumer.stream.store.subject_of(seq)
        return bool(subject) and wants(self._consumer, subject)

    def _done(self, seqs: Sequence[int]) -> None:
        """Interest and work-queue streams may let these go."""
        self._consumer.stream.consumer_done(self._consumer, seqs)

    def confirmed(self, header: bytes) -> None:
        """A client has answered a flow control request; under ack policy flow_control that says what it has had."""
        consumer_seq, seq = headers.get(header, LAST_CONSUMER), headers.get(header, LAST_STREAM)
        if not (consumer_seq and seq and consumer_seq.isdigit() and seq.isdigit()):
            return  # an answer without numbers acks nothing
        done = self._ledger.confirm(int(consumer_seq[:20]), int(seq[:20]), self._clock.steady())
        if done and self._consumer.stream.config.retention != "limits":
            self._done(done)
        self._consumer.progressed()
        self._consumer.wake()

    # ------------------------------------------------------------------ other words
    def nak(self, seq: int, consumer_seq: int, deliveries: int, delay: int) -> None:
        """A client can not take a message now; it goes out again at once, or after `delay` ns."""
        ledger = self._ledger
        if seq not in ledger.pending:
            return
        self._consumer.events.naked(consumer_seq, seq, deliveries)
        if delay > 0:
            self._redelivery.dequeue(seq)
            deadline = self._clock.steady() + delay
            ledger.postpone(seq, deadline)
            self._redelivery.expect(seq, deadline)
            self._consumer.progressed()
        else:
            self._redelivery.enqueue((seq,))
        self._consumer.wake()

    def in_progress(self, seq: int) -> None:
        """A client is still at work on a message: its ack_wait begins anew."""
        if seq in self._ledger.pending:
            deadline = self._clock.steady() + self._consumer.ack_wait(self._ledger.deliveries(seq))
            self._ledger.postpone(seq, deadline)
            self._redelivery.expect(seq, deadline)
            self._consumer.progressed()

    # ------------------------------------------------------------------ confirming
    def _confirm(self, reply: bytes) -> None:
        """Answer an ack once it is on disk; all acks of one turn share one entry."""
        if self._volatile:
            self._bus.reply_many([(reply, b"")])
            return
        if not self._confirmations:
            self._clock.call_soon(self._log_confirmations)
        self._confirmations.append(reply)

    def _log_confirmations(self) -> None:
        replies, self._confirmations = self._confirmations, []
        self._consumer.stream.progress_now(self._consumer, self._answerer(replies))

    def _answerer(self, replies: list[bytes]) -> Callable[[], None]:
        return lambda: self._bus.reply_many([(reply, b"") for reply in replies])
