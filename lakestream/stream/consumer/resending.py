"""Messages of a consumer that go out again.

Belongs here: sending what redelivery.py says is due, reading it from the log or the lake, and what becomes of a message
that went out as often as it may. When something is due is redelivery.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from lakestream.log.format.record import Record
from lakestream.ports import Delivery

if TYPE_CHECKING:
    from lakestream.stream.consumer.consumer import Consumer

SCAN_COST = 256
"""What a step that looked at messages without finding any counts for in a turn."""

FETCH_MSGS = 256
FETCH_BYTES = 8 << 20
"""At most so many (256, 8 MiB) are read from the lake at once; one larger message comes alone."""

RETRY_NS = 1_000_000_000
"""After a failed read from the lake the next attempt waits this long (1 s)."""


class Resending:
    """Sends messages of one consumer again.

    Args:
        message: makes a delivery of a stored message and its ack subject.
        wake: asks the consumer to deliver soon.
    """

    def __init__(
        self, consumer: Consumer, message: Callable[[Record, bytes], Delivery], wake: Callable[[], None]
    ) -> None:
        self._consumer, self._message, self._wake = consumer, message, wake
        self._ledger, self._redelivery = consumer.ledger, consumer.redelivery
        self._clock = consumer.stream.clock
        self._remote: dict[int, Record] = {}
        self.fetching = False
        """Whether a read from the lake is under way."""

    def forget(self) -> None:
        """Let go of what was read."""
        self._remote = {}

    def send(self, limit: int) -> int:
        """Send messages again, in the order in which their time came. Returns what it costs of the turn."""
        redelivery, store = self._redelivery, self._consumer.stream.store
        seqs: list[int] = []
        rest: list[int] = []
        taken = [seq for seq in redelivery.take(limit) if not self._exhaust(seq)]
        for at, seq in enumerate(taken):
            if store.is_local(seq) or seq in self._remote:
                seqs.append(seq)
            elif seq in store.live:
                rest = taken[at:]
                break
        if rest:
            redelivery.put_back(rest)
            if not seqs:
                self._fetch(rest)
                return 0
        local = sorted(seq for seq in seqs if seq not in self._remote)
        records = self._remote | {record.seq: record for record in store.read_many(local)}
        found = [records[seq] for seq in seqs if seq in records]
        if not found:
            return SCAN_COST if len(redelivery) else 0
        return self._send(found)

    def _send(self, records: Sequence[Record]) -> int:
        consumer, ledger, now = self._consumer, self._ledger, self._clock.steady()
        form, left = consumer.delivering.reply, consumer.feed.pending()
        messages = []
        for at, record in enumerate(records, ledger.delivered_consumer + 1):
            reply = form % (ledger.deliveries(record.seq) + 1, record.seq, at, record.time_ns, left)
            messages.append(self._message(record, reply))
        sent = consumer.outlet.send(messages, again=True)
        if sent < len(records):
            self._redelivery.put_back([record.seq for record in records[sent:]])
        for record in records[:sent]:
            deadline = now + consumer.ack_wait(ledger.deliveries(record.seq) + 1)
            ledger.redeliver(record.seq, now, deadline)
            self._redelivery.expect(record.seq, deadline)
            self._remote.pop(record.seq, None)
        if sent:
            consumer.progressed()
        return sent

    # ------------------------------------------------------------------ the lake
    def _fetch(self, seqs: list[int]) -> None:
        """Read the first of these, which is in the lake only, and those after it that are as well."""
        store = self._consumer.stream.store
        wanted: list[int] = []
        size = 0
        for seq in seqs[:FETCH_MSGS]:
            if seq in store.live and not store.is_local(seq):
                size += store.size_of(seq)
                if wanted and size > FETCH_BYTES:
                    break
                wanted.append(seq)
        self.fetching = True
        self._clock.spawn(self._fetch_again(sorted(wanted)))

    async def _fetch_again(self, seqs: list[int]) -> None:
        try:
            records = await self._consumer.stream.reader.fetch_many(seqs)
        except Exception:
            self._clock.call_later(RETRY_NS, self._fetched)
            raise
        # What was read before and not sent has been acked meanwhile, or has gone.
        self._remote = {record.seq: record for record in records}
        for seq in seqs:
            if seq not in self._remote:
                self._redelivery.dequeue(seq)
        self._fetched()

    def _fetched(self) -> None:
        self.fetching = False
        self._wake()

    # ------------------------------------------------------------------ max_deliver
    def _exhaust(self, seq: int) -> bool:
        """End a message that went out max_deliver times. False when it may go out again.

        As in nats-server this happens when its turn to go out comes: a pull consumer that nobody asks keeps it pending.
        """
        limit, deliveries = self._consumer.config.max_deliver, self._ledger.deliveries(seq)
        if limit <= 0 or deliveries < limit:
            return False
        self._ledger.exhausted(seq, self._clock.steady())
        self._consumer.events.max_deliveries(seq, deliveries)
        self._consumer.progressed()
        return True
