"""Which delivered messages go out again, and when.

Belongs here: deadlines of pending messages, the queue of those whose time has come, and the one timer of a consumer
for both. There is no timer per message: messages delivered together share a deadline and are kept as one block.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence

from lakestream.ports import Clock, Timer
from lakestream.stream.consumer.ledger import Ledger, pending_with_deadline

MIN_DELAY_NS = 1_000_000
"""The timer is never set to less than this (1 ms)."""

BLOCK_MSGS = 1024
"""Messages of one deadline that are kept together when everything is worked out anew."""

EXPIRED_AT_ONCE = 32_768
"""Of deadlines that are over, about so many are looked at before others have their turn."""


class Redelivery:
    """Deadlines and the redelivery queue of one consumer.

    Args:
        due: called after deadlines have passed; takes the expired sequences, ascending.
    """

    def __init__(self, ledger: Ledger, clock: Clock, due: Callable[[list[int]], None]) -> None:
        self._ledger, self._clock, self._due = ledger, clock, due
        self._blocks: deque[tuple[int, Sequence[int]]] = deque()
        """(deadline, sequences) in order of both: what was delivered once and not touched since."""
        self._single: list[tuple[int, int]] = []
        """Heap of (deadline, seq): redelivered, postponed or recovered messages."""
        self._queue: deque[tuple[int, int]] = deque()
        """(number, sequence). An entry counts while `_queued` has its number: what was taken out and put in again later
        has another place, and another number."""
        self._queued: dict[int, int] = {}
        self._numbers = itertools.count()
        self._timer: Timer | None = None
        self._timer_due = 0
        self._running = False

    def __len__(self) -> int:
        return len(self._queued)

    # ------------------------------------------------------------------ deadlines
    def delivered(self, seqs: Sequence[int], deadline: int) -> None:
        """New messages went out, their acks due at `deadline` (ns)."""
        if self._blocks and deadline < self._blocks[-1][0]:
            for seq in seqs:
                heapq.heappush(self._single, (deadline, seq))
        else:
            self._blocks.append((deadline, seqs))
        self._arm(deadline)

    def expect(self, seq: int, deadline: int) -> None:
        """One message has a deadline of its own. The ledger must know it already."""
        if len(self._single) > 4 * len(self._ledger.deadline) + 1024:
            self.rebuild()
        heapq.heappush(self._single, (deadline, seq))
        self._arm(deadline)

    def rebuild(self) -> None:
        """Work everything out from the ledger: at start, and when the ledger has jumped."""
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
        """Let go of blocks that are wholly acked."""
        floor, blocks = self._ledger.floor_stream, self._blocks
        while blocks and blocks[0][1][-1] <= floor:
            blocks.popleft()

    def start(self) -> None:
        """Begin to watch."""
        self._running = True
        self.rebuild()

    def stop(self) -> None:
        """Cease to watch and forget everything."""
        self._running = False
        self._blocks.clear()
        self._single = []
        self.clear()
        self._cancel()

    def _cancel(self) -> None:
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
            self._due(expired)
        self._rearm()

    def _rearm(self) -> None:
        """Set the timer to the next deadline that still means something."""
        pending, blocks, single = self._ledger.deadline, self._blocks, self._single
        while single and pending.get(single[0][1]) != single[0][0]:
            heapq.heappop(single)
        while blocks and not any(pending.get(seq) == blocks[0][0] for seq in blocks[0][1]):
            blocks.popleft()
        if blocks or single:
            self._arm(min(queue[0][0] for queue in (blocks, single) if queue))

    def _expired(self, now: int) -> list[int]:
        """Pending messages whose time is over, ascending; they leave the deadlines."""
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
        """Send these again as soon as possible, after those that already wait."""
        for seq in seqs:
            if seq not in self._queued:
                number = self._queued[seq] = next(self._numbers)
                self._queue.append((number, seq))

    def dequeue(self, seq: int) -> None:
        """Do not send this one, after all. Cheap; the queue itself is tidied when it is read."""
        self._queued.pop(seq, 0)

    def take(self, limit: int) -> list[int]:
        """The next ones to send, at most `limit`, in order; `put_back` what could not be sent."""
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
        """They come first again."""
        for seq in reversed(seqs):
            number = self._queued[seq] = next(self._numbers)
            self._queue.appendleft((number, seq))

    def clear(self) -> None:
        """Forget the queue."""
        self._queue.clear()
        self._queued.clear()
