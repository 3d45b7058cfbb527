"""Delivery: a consumer's messages on their way to its target.

Belongs here: the turn in which a consumer delivers (redeliveries first, then new messages), what limits it, the pace of
replay policy `original`, and the form of a delivered message. Finding new messages is feed.py's, which messages are
delivered again redelivery.py's, receivers are pull.py's and push.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lakestream.log.format.errors import LogError
from lakestream.log.format.record import Record
from lakestream.log.format.records import Records, seqs_of
from lakestream.ports import Clock, ListedMessages, MessageBlock, Single, Timer
from lakestream.protocol.deliveries import FirstDeliveries
from lakestream.stream.consumer.config import ConsumerConfig
from lakestream.stream.consumer.feed import Feed
from lakestream.stream.consumer.ledger import Ledger
from lakestream.stream.consumer.lifetime import Pause
from lakestream.stream.consumer.order_by_key import OrderByKey
from lakestream.stream.consumer.redelivery import Redelivery
from lakestream.stream.consumer.selection import Matches
from lakestream.stream.consumer.spans import DeliverySpans
from lakestream.stream.consumer.target import DeliveryTarget

TURN_MSGS = 1024
"""A consumer delivers at most this many messages in one turn of the event loop, then lets others run."""

TURN_NS = 2_000_000
"""The same by time (2 ms): a mirror on this server takes longer for its messages than a client's connection."""

FIRST_TURN_MSGS = 128
"""The first turn after a pause delivers at most this many, each further one twice as many: while a client reads the
first ones, the next are made."""

BLOCK_MSGS = 512
"""At most this many messages are read and sent as one block."""

SCAN_COST = 256
"""Cost of a step that scanned messages without a match, in messages of the turn's budget."""

RETRY_NS = 1_000_000_000
"""Delay before messages that could not be read are read again (1 s)."""

MIN_GAP_NS = 1_000_000
"""Gaps up to 1 ms are not reproduced under replay policy `original`."""


class Deliverer:
    """Delivers the messages of one consumer while it serves.

    Args:
        subject: `<stream>.<consumer>`, as in ack subjects.
        progressed: called when the ledger has changed.
        released: called with messages of an interest or work-queue stream that need no ack.
    """

    def __init__(
        self,
        subject: bytes,
        clock: Clock,
        ledger: Ledger,
        feed: Feed,
        redelivery: Redelivery,
        pause: Pause,
        target: DeliveryTarget,
        progressed: Callable[[], None],
        released: Callable[[Sequence[int]], None],
        spans: DeliverySpans | None = None,
    ) -> None:
        self._clock, self._ledger, self._feed, self._pause = clock, ledger, feed, pause
        self._redelivery, self._progressed, self._released, self._spans = redelivery, progressed, released, spans
        self.target = target
        self.order: OrderByKey | None = None
        """Set for a consumer with a key."""
        self._serving = self._scheduled = False
        self._turn_msgs = FIRST_TURN_MSGS
        self._pace = OriginalPace(clock, self.wake)
        self._retry: Timer | None = None
        # One formatting operation makes an ack reply; a percent sign in a name must survive it.
        prefix = b"$JS.ACK." + subject.replace(b"%", b"%%")
        self._reply = prefix + b".%d.%d.%d.%d.%d"
        self._reply_first = prefix + b".1.%d.%d.%d.%d"
        self._head = b"$JS.ACK." + subject + b".1."

    def adopt(self, config: ConsumerConfig, retention: str) -> None:
        """Take the consumer's configuration and the stream's retention: what follows from them is computed once."""
        self._config = config
        self._acked = config.ack_policy != "none"
        self._due = config.ack_policy in ("explicit", "all")
        self._max_pending = config.max_ack_pending if self._acked and config.max_ack_pending > 0 else 0
        self._original = config.replay_policy == "original"
        self._plain = not self._original and not config.headers_only
        self._releases = not self._acked and retention != "limits"

    @property
    def full(self) -> bool:
        """Return True if max_ack_pending messages are pending."""
        return bool(self._max_pending) and len(self._ledger.pending) >= self._max_pending

    def start(self) -> None:
        """Deliver from now on, when woken."""
        self._serving = True

    def stop(self) -> None:
        """Deliver no more."""
        self._serving = False
        self._pace.stop()
        if self._retry is not None:
            self._retry.cancel()

    def stored(self) -> None:
        """Deliver in this turn if the target wants messages: some that match were committed, and are acknowledged."""
        if not self._scheduled and self._serving and self.target.wanting:
            self._scheduled = True
            self._clock.call_with_output(self.turn)

    # ------------------------------------------------------------------ the turn
    def wake(self) -> None:
        """Deliver at the end of this turn."""
        if not self._scheduled and self._serving:
            self._scheduled = True
            self._clock.call_soon(self.turn)

    def turn(self) -> None:
        """Deliver what can be delivered, at most TURN_MSGS."""
        self._scheduled = False
        budget, spent = self._turn_msgs, 0
        self._turn_msgs = FIRST_TURN_MSGS
        until = self._clock.steady() + TURN_NS
        while budget > 0 and (not spent or self._clock.steady() < until):
            if not self._serving or self._feed.fetching:
                return
            if self._pause.active:
                if not self.full:
                    self.target.caught_up()
                return
            if self._redelivery.fetching or self._pace.waiting or (self.order is not None and self.order.loading):
                return
            room = self.target.capacity()
            if not room:
                self.target.held_back()
                return
            try:
                step = self._step(min(room, budget, BLOCK_MSGS))
            except LogError as error:  # the bus logs it; what failed may be repaired meanwhile
                if self._retry is not None:  # others wake it meanwhile: one timer is enough
                    self._retry.cancel()
                self._retry = self._clock.call_later(RETRY_NS, self.wake)
                self.target.unreadable(error.for_clients)
                raise
            if not step:
                return
            budget -= step
            spent += step
        self._turn_msgs = min(2 * spent, TURN_MSGS)
        self.wake()

    def _step(self, limit: int) -> int:
        """Deliver one block. Return what it costs of the turn, 0 if nothing more can be done for now."""
        if len(self._redelivery):
            step = self._redeliver(limit)
            if step or self._redelivery.fetching or len(self._redelivery):
                return step
        if self._max_pending:
            limit = min(limit, self._max_pending - len(self._ledger.pending))
            if limit <= 0:
                return 0
        found = self._feed.peek(limit)
        if found.records:
            return self._send(found) if self.order is None else self._send_in_order(self.order, found)
        if found.remote:
            return 0
        if self._feed.skip(found):
            return SCAN_COST
        self._pace.off()
        self.target.caught_up()
        return 0

    # ------------------------------------------------------------------ new messages
    def _send(self, found: Matches) -> int:
        records = found.records
        left = self._feed.pending() - 1
        messages: MessageBlock
        if self._plain and isinstance(records, Records):
            consumer = self._ledger.delivered_consumer + 1
            messages = FirstDeliveries(
                records.buf, records.offsets, records.lengths, 0, len(records), self._head, consumer, left
            )
        else:
            messages = ListedMessages(self._single(records, left))
        taken = self.target.send(messages) if len(messages) else 0
        if taken:
            if self._spans is not None:
                self._spans.delivered(records[:taken], self._ledger.delivered_consumer + 1)
            self._account(found, taken)
        return taken

    def _send_in_order(self, order: OrderByKey, found: Matches) -> int:
        """Deliver those of these messages whose keys are free, and hold back the others. Return how many both are."""
        records, ledger, now = list(found.records), self._ledger, self._clock.steady()
        left, consumer = self._feed.pending() - 1, ledger.delivered_consumer + 1
        keys = [order.rule.key_of(record.subject, record.header) for record in records]
        free = order.free(keys)
        messages = []
        for at in free:
            record = records[at]
            reply = self._reply_first % (record.seq, consumer + at, record.time_ns, left - at)
            messages.append(self._message(record, reply))
        sent = self.target.send(ListedMessages(messages)) if messages else 0
        taken = free[sent] if sent < len(free) else len(records)
        if taken:
            seqs, deadline = [record.seq for record in records[:taken]], now + self._config.ack_wait_of(1)
            self._feed.advance(found, taken)
            ledger.deliver(seqs, now, deadline)
            ledger.hold(order.took(seqs, keys))
            if sent:
                self._redelivery.delivered([seqs[at] for at in free[:sent]], deadline)
                if self._spans is not None:
                    for at in free[:sent]:
                        self._spans.delivered((records[at],), consumer + at)
            self._progressed()
        return taken

    def _single(self, records: Sequence[Record], left: int) -> list[Single]:
        """Form messages one by one: from the lake, without payloads, or at the pace at which they were stored."""
        reply, consumer = self._reply_first, self._ledger.delivered_consumer + 1
        if self._plain:
            return first_deliveries(records, reply, consumer, left)
        if self._original:
            records = self._pace.due(records)
        return [
            self._message(record, reply % (record.seq, consumer + at, record.time_ns, left - at))
            for at, record in enumerate(records)
        ]

    def _message(self, record: Record, reply: bytes) -> Single:
        """Form a message with its ack subject."""
        if not self._config.headers_only:
            return Single(record.subject, reply, record.header, record.data)
        head = record.header[:-2] if record.header else b"NATS/1.0\r\n"
        return Single(record.subject, reply, b"%bNats-Msg-Size: %d\r\n\r\n" % (head, len(record.data)))

    def _account(self, found: Matches, taken: int) -> None:
        """Record that the first `taken` messages were sent."""
        ledger, now = self._ledger, self._clock.steady()
        seqs = seqs_of(found.records)[:taken]
        first, last = seqs[0], seqs[-1]
        self._feed.advance(found, taken)
        if self._acked:
            if last - first == taken - 1:
                seqs = range(first, last + 1)
            if self._due:
                deadline = now + self._config.ack_wait
                ledger.deliver(seqs, now, deadline)
                self._redelivery.delivered(seqs, deadline)
            else:
                ledger.deliver(seqs, now, 0)
        else:
            ledger.deliver_unacked(taken, last, now)
            if self._releases:
                self._released(seqs)
        self._progressed()

    # ------------------------------------------------------------------ redeliveries
    def _redeliver(self, limit: int) -> int:
        """Deliver a block of messages again. Return what it costs of the turn."""
        redelivery, ledger, config = self._redelivery, self._ledger, self._config
        records = redelivery.take(limit)
        if not records:
            return SCAN_COST if len(redelivery) and not redelivery.fetching else 0
        left, now = self._feed.pending(), self._clock.steady()
        messages = []
        for at, record in enumerate(records, ledger.delivered_consumer + 1):
            reply = self._reply % (ledger.deliveries(record.seq) + 1, record.seq, at, record.time_ns, left)
            messages.append(self._message(record, reply))
        sent = self.target.send(ListedMessages(messages), again=True)
        if sent < len(records):
            redelivery.put_back([record.seq for record in records[sent:]])
        if self._spans is not None:
            self._spans.delivered(records[:sent], ledger.delivered_consumer + 1)
        for record in records[:sent]:
            deadline = now + config.ack_wait_of(ledger.deliveries(record.seq) + 1)
            ledger.redeliver(record.seq, now, deadline)
            redelivery.expect(record.seq, deadline)
            redelivery.sent(record.seq)
        if sent:
            self._progressed()
        return sent


def first_deliveries(records: Sequence[Record], reply: bytes, consumer: int, left: int) -> list[Single]:
    """Return messages with their ack subjects, of which `reply` is the template."""
    return [
        Single(one.subject, reply % (one.seq, consumer + at, one.time_ns, left - at), one.header, one.data)
        for at, one in enumerate(records)
    ]


class OriginalPace:
    """Replay policy `original`: messages are delivered with the gaps with which they were stored.

    Ends for good once the consumer has caught up with its stream.
    """

    def __init__(self, clock: Clock, wake: Callable[[], None]) -> None:
        self._clock, self._wake = clock, wake
        self._over = False
        self._stored_ns = 0
        """Time at which the last due message was stored."""
        self._sent_ns = 0
        """Time at which it was sent."""
        self._timer: Timer | None = None

    @property
    def waiting(self) -> bool:
        """Return True while the next message is not due."""
        return self._timer is not None

    def due(self, records: Sequence[Record]) -> Sequence[Record]:
        """Return those of the next records that are due; set a timer for the first that is not."""
        if self._over:
            return records
        now = self._clock.steady()
        for at, record in enumerate(records):
            gap = record.time_ns - self._stored_ns
            if self._stored_ns and gap > MIN_GAP_NS and self._sent_ns + gap > now:
                if not at:
                    self._timer = self._clock.call_later(self._sent_ns + gap - now, self._fire)
                return records[:at]
            self._stored_ns, self._sent_ns = record.time_ns, now
        return records

    def off(self) -> None:
        """Deliver messages as they come from now on: the consumer has caught up."""
        self._over = True

    def _fire(self) -> None:
        self._timer = None
        self._wake()

    def stop(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
