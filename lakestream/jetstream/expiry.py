"""Messages whose time has run out.

Belongs here: max_age and per-message TTL of one stream: when the next message expires, and the proposal that removes
it. Only the leader looks at the clock; what it finds goes through the log as Expire or Remove, so that replicas and
recovery remove the same messages.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from lakestream.jetstream.errors import ApiError
from lakestream.jetstream.operations import Expire, Remove
from lakestream.jetstream.ports import Timer

if TYPE_CHECKING:
    from lakestream.jetstream.stream import Stream

MIN_DELAY_NS = 50_000_000
"""Expiry runs at most every 50 ms; what expires in between goes together in one entry."""

MAX_DELAY_NS = 60_000_000_000
"""And at least every minute while anything can expire, so that a clock that jumps is noticed."""

SLACK = 1024
"""TTLs of messages that limits removed first are forgotten once there are this many, and as many as messages."""


class Expiry:
    """Watches the head of a stream and its TTLs. Nothing is scanned: the oldest message says when to look again."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._ttls: list[tuple[int, int]] = []
        self._timer: Timer | None = None
        self._running = False
        self._busy = False
        self._forever: set[int] = set()

    def track(self, seq: int, time_ns: int, ttl_ns: int) -> None:
        """A message was stored with a TTL of its own (-1: never expires, not even by max_age)."""
        if ttl_ns > 0:
            heapq.heappush(self._ttls, (time_ns + ttl_ns, seq))
        else:
            self._forever.add(seq)
        if len(self._ttls) + len(self._forever) > 2 * self._stream.store.msgs + SLACK:
            live = self._stream.store.live
            self._forever = {seq for seq in self._forever if seq in live}
            self._ttls = [entry for entry in self._ttls if entry[1] in live]
            heapq.heapify(self._ttls)

    def dump(self) -> list[tuple[int, int]]:
        """(deadline, seq) of every TTL; deadline -1 means never."""
        return [*self._ttls, *((-1, seq) for seq in self._forever)]

    def load(self, ttls: list[tuple[int, int]]) -> None:
        """Take back what `dump` gave."""
        self._forever = {seq for deadline, seq in ttls if deadline < 0}
        self._ttls = [entry for entry in ttls if entry[0] >= 0]
        heapq.heapify(self._ttls)

    def start(self) -> None:
        """Begin to watch."""
        self._running = True
        self.arm()

    def stop(self) -> None:
        """Cease to watch."""
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def arm(self) -> None:
        """Make sure a timer runs if anything can expire. Cheap when one does."""
        if self._timer is not None or not self._running or self._busy:
            return
        if not self._ttls and not (self._stream.config.max_age > 0 and self._stream.store.msgs):
            return
        due = self._ttls[0][0] if self._ttls else 1 << 63
        if self._stream.config.max_age > 0 and self._stream.store.msgs:
            due = min(due, self._stream.store.first_time + self._stream.config.max_age)
        delay = min(max(due - self._stream.clock.now(), MIN_DELAY_NS), MAX_DELAY_NS)
        self._timer = self._stream.clock.call_later(delay, self._fire)

    def _fire(self) -> None:
        self._timer = None
        if not self._running:
            return
        self._busy = True
        self._stream.clock.spawn(self._expire())

    async def _expire(self) -> None:
        """Find what has expired and propose its removal. The head may lie in the lake, hence asynchronous."""
        stream = self._stream
        try:
            now = stream.clock.now()
            doomed = []
            while self._ttls and self._ttls[0][0] <= now:
                doomed.append(heapq.heappop(self._ttls))
            live = [entry for entry in doomed if entry[1] in stream.store.live]
            if live:
                stream.propose(Remove([seq for _, seq in live]), lambda result: self._removed(live, result))
            if stream.config.max_age > 0 and stream.store.msgs:
                await self._expire_by_age(now - stream.config.max_age)
        finally:
            self._busy = False
            self.arm()

    async def _expire_by_age(self, horizon: int) -> None:
        stream = self._stream
        first = await stream.reader.first_at(horizon + 1)
        through = first - 1 if first else stream.store.last_seq
        if through < stream.store.first_seq or not stream.store.msgs:
            return
        self._forever = {seq for seq in self._forever if seq in stream.store.live}
        if any(seq <= through for seq in self._forever):
            seqs = stream.reader.live_between(stream.store.first_seq, through)
            doomed = [seq for seq in seqs if seq not in self._forever]
            if doomed:
                stream.propose(Remove(doomed), self._settled)
        else:
            stream.propose(Expire(through), self._settled)

    def _removed(self, ttls: list[tuple[int, int]], result: object) -> None:
        if isinstance(result, ApiError):  # another node leads: it removes them, or this one when it leads again
            for entry in ttls:
                heapq.heappush(self._ttls, entry)
        self.arm()

    def _settled(self, _: object) -> None:
        self.arm()
