"""New messages of a consumer on their way to its clients.

Belongs here: the turn in which a consumer delivers (redeliveries first, then new messages), what limits it, and what a
delivered message looks like. Finding messages is feed.py's, sending them again resending.py's, receivers are pull.py's
and push.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakestream.log.format.record import Record
from lakestream.ports import Delivery
from lakestream.stream.consumer.config import ConsumerConfig
from lakestream.stream.consumer.replay import OriginalPace
from lakestream.stream.consumer.resending import SCAN_COST, Resending
from lakestream.stream.consumer.selection import Found

if TYPE_CHECKING:
    from lakestream.stream.consumer.consumer import Consumer

TURN_MSGS = 1024
"""A consumer delivers at most this many messages in one turn of the event loop, then lets others run."""

FIRST_TURN_MSGS = 128
"""The first turn after a pause delivers at most this many, each further one twice as many: while a client reads the
first ones, the next are made."""

BLOCK_MSGS = 512
"""At most this many messages are read and sent as one block."""


class Delivering:
    """Delivers for one consumer, turn by turn, while it serves."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._ledger, self._feed = consumer.ledger, consumer.feed
        self._redelivery = consumer.redelivery
        self._clock = consumer.stream.clock
        self._scheduled = False
        self._turn_msgs = FIRST_TURN_MSGS
        self.pace = OriginalPace(consumer.stream.clock, self.wake)
        self.resending = Resending(consumer, self.message, self.wake)
        base = f"{consumer.stream.name}.{consumer.name}".encode()
        # One formatting operation makes an ack reply; a percent sign in a name must survive it.
        self.reply = b"$JS.ACK." + base.replace(b"%", b"%%") + b".%d.%d.%d.%d.%d"
        self._reply_first = b"$JS.ACK." + base.replace(b"%", b"%%") + b".1.%d.%d.%d.%d"
        self.adopt(consumer.config)

    def adopt(self, config: ConsumerConfig) -> None:
        """What follows from the configuration is worked out once."""
        self._config = config
        self._acked = config.ack_policy != "none"
        self._due = config.ack_policy in ("explicit", "all")
        self._max_pending = config.max_ack_pending if self._acked and config.max_ack_pending > 0 else 0
        self._original = config.replay_policy == "original"
        self._plain = not self._original and not config.headers_only

    @property
    def full(self) -> bool:
        """Whether as many messages are unacked as may be."""
        return bool(self._max_pending) and len(self._ledger.pending) >= self._max_pending

    def stored(self) -> None:
        """Messages were committed."""
        if not self._scheduled and self._consumer.outlet.wanting:
            self.wake()

    def rest(self) -> None:
        """Another node delivers from now on."""
        self.resending.forget()

    def stop(self) -> None:
        """Forget the timer."""
        self.pace.stop()

    # ------------------------------------------------------------------ the turn
    def wake(self) -> None:
        """Look for something to deliver at the end of this turn."""
        if not self._scheduled and self._consumer.serving:
            self._scheduled = True
            self._clock.call_soon(self.turn)

    def turn(self) -> None:
        """Deliver what can be delivered, at most TURN_MSGS."""
        self._scheduled = False
        consumer, budget, spent = self._consumer, self._turn_msgs, 0
        self._turn_msgs = FIRST_TURN_MSGS
        while budget > 0:
            if not consumer.serving or consumer.pause.active or self._feed.fetching:
                return
            if self.resending.fetching or self.pace.waiting:
                return
            room = consumer.outlet.capacity()
            if not room:
                consumer.outlet.held_back()
                return
            step = self._step(min(room, budget, BLOCK_MSGS))
            if not step:
                return
            budget -= step
            spent += step
        self._turn_msgs = min(2 * spent, TURN_MSGS)
        self.wake()

    def _step(self, limit: int) -> int:
        """Deliver one block. Returns what it costs of the turn; 0 when nothing more can be done for now."""
        if len(self._redelivery):
            step = self.resending.send(limit)
            if step or self.resending.fetching or len(self._redelivery):
                return step
        if self._max_pending:
            limit = min(limit, self._max_pending - len(self._ledger.pending))
            if limit <= 0:
                return 0
        found = self._feed.peek(limit)
        if found.records:
            return self._send(found)
        if found.remote:
            return 0
        if self._feed.skip(found):
            return SCAN_COST
        self.pace.off()
        self._consumer.outlet.caught_up()
        return 0

    # ------------------------------------------------------------------ messages
    def _send(self, found: Found) -> int:
        records = found.records
        left = self._feed.pending() - 1
        if self._plain:
            reply, consumer = self._reply_first, self._ledger.delivered_consumer + 1
            messages: list[Delivery] = [
                (one.subject, reply % (one.seq, consumer + at, one.time_ns, left - at), one.header, one.data)
                for at, one in enumerate(records)
            ]
        else:
            messages = self._unusual(records, left)
        taken = self._consumer.outlet.send(messages) if messages else 0
        if taken:
            self._account(found, taken)
        return taken

    def _unusual(self, records: Sequence[Record], left: int) -> list[Delivery]:
        """Messages of a consumer that wants headers only, or the pace at which they were stored."""
        if self._original:
            records = self.pace.due(records)
        reply, consumer = self._reply_first, self._ledger.delivered_consumer + 1
        return [
            self.message(record, reply % (record.seq, consumer + at, record.time_ns, left - at))
            for at, record in enumerate(records)
        ]

    def message(self, record: Record, reply: bytes) -> Delivery:
        """A stored message as it goes out; `reply`: its ack subject."""
        if not self._config.headers_only:
            return record.subject, reply, record.header, record.data
        head = record.header[:-2] if record.header else b"NATS/1.0\r\n"
        return record.subject, reply, b"%bNats-Msg-Size: %d\r\n\r\n" % (head, len(record.data)), b""

    def _account(self, found: Found, taken: int) -> None:
        """The first `taken` messages went out."""
        records, ledger, now = found.records, self._ledger, self._clock.steady()
        first, last = records[0].seq, records[taken - 1].seq
        self._feed.advance(found, taken)
        if self._acked:
            contiguous = last - first == taken - 1
            seqs = range(first, last + 1) if contiguous else [record.seq for record in records[:taken]]
            if self._due:
                deadline = now + self._config.ack_wait
                ledger.deliver(seqs, now, deadline)
                self._redelivery.delivered(seqs, deadline)
            else:
                ledger.deliver(seqs, now, 0)
        else:
            ledger.deliver_unacked(taken, last, now)
            if self._consumer.stream.config.retention != "limits":
                self._consumer.stream.consumer_done(self._consumer, [record.seq for record in records[:taken]])
        self._consumer.progressed()
