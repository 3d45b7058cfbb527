"""Redelivery: which delivered messages are delivered again, and when.

Belongs here: deadlines of pending messages, the queue of those to be delivered again, the one timer of a consumer for
both, reading those messages from the log or the lake, and the end of a message that was delivered max_deliver times.
Messages delivered together share a deadline and are kept as one block: there is no timer per message.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence

from lakestream.log.format.record import Record
from lakestream.log.store.store import Store
from lakestream.ports import Clock, Timer
from lakestream.stream.consumer.dead_letters import DeadLetters
from lakestream.stream.consumer.ledger import Ledger, pending_with_deadline
from lakestream.stream.core.reader import HistoryUnavailableError, Reader

MIN_DELAY_NS = 1_000_000
"""The timer is never set to less than this (1 ms)."""

BLOCK_MSGS = 1024
"""Messages of one deadline that are kept together when everything is computed anew."""

EXPIRED_AT_ONCE = 32_768
"""About this many passed deadlines are looked at in one turn of the event loop."""

FETCH_MSGS = 256
FETCH_BYTES = 8 << 20
"""At most this much is read from the lake at once (256 messages, 8 MiB); a larger message is read alone."""

RETRY_NS = 1_000_000_000
"""Pause after a failed read from the lake (1 s)."""


class Redelivery:
    """Deadlines of one consumer's pending messages, and the queue of those to be delivered again.

    Args:
        max_deliver: returns how often a message is delivered; without a limit if that is not positive.
        exhausted: called with (sequence, deliveries) for each message that was delivered max_deliver times; returns
            False if it stays pending, as the consumer has other plans for it.
        wake: called when the queue has got messages by passed deadlines, and when a read from the lake has ended.
    """

    def __init__(
        self,
        ledger: Ledger,
        store: Store,
        reader: Reader,
        clock: Clock,
        max_deliver: Callable[[], int],
        exhausted: Callable[[int, int], bool],
        wake: Callable[[], None],
    ) -> None:
        self._ledger, self._store, self._reader, self._clock = ledger, store, reader, clock
        self._max_deliver, self._exhausted, self._wake = max_deliver, exhausted, wake
        self._blocks: deque[tuple[int, Sequence[int]]] = deque()
        """(deadline, sequences), ascending in both: delivered once and not touched since."""
        self._single: list[tuple[int, int]] = []
        """Heap of (deadline, seq): redelivered, postponed or recovered messages."""
        self._queue: deque[tuple[int, int]] = deque()
        """(number, sequence). An entry counts only while `_queued` has its number: a message that was removed and put
        back has another place and another number."""
        self._queued: dict[int, int] = {}
        self._numbers = itertools.count()
        self._timer: Timer | None = None
        self._timer_due = 0
        self._running = False
        self.letters: DeadLetters | None = None
        """Set for a consumer with a dead-letter subject: its messages end at their last deadline."""
        self._remote: dict[int, Record] = {}
        """Messages read from the lake."""
        self.fetching = False
        """True while a read from the lake is under way."""

    def __len__(self) -> int:
        return len(self._queued)

    # ------------------------------------------------------------------ deadlines
    def delivered(self, seqs: Sequence[int], deadline: int) -> None:
        """Watch new messages whose acks are due at `deadline` (ns)."""
        if self._blocks and deadline < self._blocks[-1][0]:
            for seq in seqs:
                heapq.heappush(self._single, (deadline, seq))
        else:
            self._blocks.append((deadline, seqs))
        self._arm(deadline)

    def expect(self, seq: int, deadline: int) -> None:
        """Watch one message with a deadline of its own, which the ledger has already."""
        if len(self._single) > 4 * len(self._ledger.deadline) + 1024:
            self.rebuild()
        heapq.heappush(self._single, (deadline, seq))
        self._arm(deadline)

    def rebuild(self) -> None:
        """Compute the deadlines anew from the ledger: at start, and after the ledger has jumped."""
        self._blocks, self._single = deque(), []
        block: list[int] = []
        due = 0
        for seq, deadline in pending_with_deadline(self._ledger):
            if seq in self._queued:
                continue
            if deadline < due:
                self._single.append((deadline, seq))
            elif deadline == due and len(block) < BLOCK_MSGS:
                block.append(seq)
            else:
                due, block = deadline, [seq]
                self._blocks.append((due, block))
        heapq.heapify(self._single)
        self._rearm()

    def trim(self) -> None:
        """Drop blocks that are wholly acked."""
        floor, blocks = self._ledger.floor_stream, self._blocks
        while blocks and blocks[0][1][-1] <= floor:
            blocks.popleft()

    def start(self) -> None:
        """Watch deadlines from now on."""
        self._running = True
        self.rebuild()

    def stop(self) -> None:
        """Cancel the timer and drop everything."""
        self._running = False
        self._blocks.clear()
        self._single = []
        self.clear()
        self._remote = {}
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, deadline: int) -> None:
        if not self._running:
            return
        if self._timer is not None:
            if self._timer_due <= deadline:
                return
            self._timer.cancel()
        self._timer_due = deadline
        self._timer = self._clock.call_later(max(deadline - self._clock.steady(), MIN_DELAY_NS), self._fire)

    def _fire(self) -> None:
        self._timer = None
        if not self._running:
            return
        expired = self._expired(self._clock.steady())
        if expired:
            # As in nats-server; with a higher limit the next pull request ends it.
            if self._max_deliver() == 1 or self.letters is not None:
                expired = [seq for seq in expired if not self._exhaust(seq)]
            self.enqueue(expired)
            self._wake()
        self._rearm()

    def _rearm(self) -> None:
        """Set the timer to the next deadline that still counts."""
        pending, blocks, single = self._ledger.deadline, self._blocks, self._single
        while single and pending.get(single[0][1]) != single[0][0]:
            heapq.heappop(single)
        while blocks and not any(pending.get(seq) == blocks[0][0] for seq in blocks[0][1]):
            blocks.popleft()
        if blocks or single:
            self._arm(min(queue[0][0] for queue in (blocks, single) if queue))

    def _expired(self, now: int) -> list[int]:
        """Remove and return the pending messages whose deadline has passed, ascending."""
        pending, blocks, single = self._ledger.deadline, self._blocks, self._single
        found: list[int] = []
        while blocks and blocks[0][0] <= now and len(found) < EXPIRED_AT_ONCE:
            deadline, seqs = blocks.popleft()
            found += [seq for seq in seqs if pending.get(seq) == deadline and seq not in self._queued]
        while single and single[0][0] <= now and len(found) < EXPIRED_AT_ONCE:
            deadline, seq = heapq.heappop(single)
            if pending.get(seq) == deadline and seq not in self._queued:
                found.append(seq)
        return sorted(set(found))

    # ------------------------------------------------------------------ the queue
    def enqueue(self, seqs: Sequence[int]) -> None:
        """Append messages to the queue, unless they are in it, or end."""
        for seq in seqs:
            if seq not in self._queued and not (self.letters is not None and self._exhaust(seq)):
                number = self._queued[seq] = next(self._numbers)
                self._queue.append((number, seq))

    def dequeue(self, seq: int) -> None:
        """Remove a message from the queue. Cheap: its entry is dropped when the queue is read."""
        self._queued.pop(seq, 0)

    def _pop(self, limit: int) -> list[int]:
        """Remove and return the first pending messages of the queue, at most `limit`."""
        taken: list[int] = []
        queue, queued, pending = self._queue, self._queued, self._ledger.pending
        while queue and len(taken) < limit:
            number, seq = queue.popleft()
            if queued.get(seq) != number:
                continue
            del queued[seq]
            if seq in pending:
                taken.append(seq)
        return taken

    def put_back(self, seqs: Sequence[int]) -> None:
        """Put these messages at the head of the queue."""
        for seq in reversed(seqs):
            number = self._queued[seq] = next(self._numbers)
            self._queue.appendleft((number, seq))

    def clear(self) -> None:
        """Empty the queue."""
        self._queue.clear()
        self._queued.clear()

    # ------------------------------------------------------------------ reading
    def take(self, limit: int) -> list[Record]:
        """Remove and return the first messages of the queue, at most `limit`, in the queue's order.

        Where the first one is only in the lake, start a read of it (`fetching`) and return nothing.
        """
        store = self._store
        seqs: list[int] = []
        rest: list[int] = []
        taken = [seq for seq in self._pop(limit) if not self._exhaust(seq)]
        for at, seq in enumerate(taken):
            if store.is_local(seq) or seq in self._remote:
                seqs.append(seq)
            elif seq in store.live:
                rest = taken[at:]
                break
        if rest:
            self.put_back(rest)
            if not seqs:
                self._fetch(rest)
                return []
        local = sorted(seq for seq in seqs if seq not in self._remote)
        records = self._remote | {record.seq: record for record in store.read_many(local)}
        return [records[seq] for seq in seqs if seq in records]

    def sent(self, seq: int) -> None:
        """Drop a message that was delivered again."""
        self._remote.pop(seq, None)

    def _fetch(self, seqs: list[int]) -> None:
        """Read the first of these from the lake, and with it others that only the lake has."""
        store = self._store
        wanted: list[int] = []
        size = 0
        for seq in seqs[:FETCH_MSGS]:
            if seq in store.live and not store.is_local(seq):
                size += store.size_of(seq)
                if wanted and size > FETCH_BYTES:
                    break
                wanted.append(seq)
        self.fetching = True
        self._clock.spawn(self._read(sorted(wanted)))

    async def _read(self, seqs: list[int]) -> None:
        try:
            records = await self._reader.fetch_many(seqs)
        except Exception as error:
            self._clock.call_later(RETRY_NS, self._fetched)
            if isinstance(error, HistoryUnavailableError) and error.retry_s:
                return  # the lake is away, which is logged once
            raise
        # Messages of an earlier read that were not sent have been acked or removed meanwhile.
        self._remote = {record.seq: record for record in records}
        for seq in seqs:
            if seq not in self._remote:
                self.dequeue(seq)
        self._fetched()

    def _fetched(self) -> None:
        self.fetching = False
        self._wake()

    def _exhaust(self, seq: int) -> bool:
        """End a message that was delivered max_deliver times. Return False if it may be delivered again.

        This happens when it would be delivered: without pull requests it stays pending, except that a message with a
        single delivery is given up when its deadline passes (nats-server 2.15.1 and 2.15.3).
        """
        if self.letters is not None and seq in self.letters:
            return True
        max_deliver = self._max_deliver()
        deliveries = self._ledger.deliveries(seq)
        if max_deliver <= 0 or deliveries < max_deliver:
            return False
        if self._exhausted(seq, deliveries):
            self._ledger.exhausted(seq, self._clock.steady())
        return True
