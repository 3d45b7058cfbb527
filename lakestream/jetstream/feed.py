"""New messages for a consumer, in order, from the log or from the lake.

Belongs here: the position of one consumer in its stream: which wanted message comes next, how many are left, and
fetching those that only the lake holds. What was delivered already, and to whom, is not known here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from lakestream.jetstream.consumer_state import Ledger
from lakestream.jetstream.selection import Everything, Found, Selection, selection
from lakestream.log.record import Record

if TYPE_CHECKING:
    from lakestream.jetstream.stream import Stream

BLOCK_BYTES = 1 << 20
"""At most this many bytes (1 MiB) are read for one block; one larger message still comes alone."""

FETCH_MSGS = 4096
FETCH_BYTES = 8 << 20
"""How much one read from the lake asks for (4,096 messages, 8 MiB)."""

RETRY_NS = 1_000_000_000
"""After a failed read from the lake the next attempt waits this long (1 s)."""


class Feed:
    """The messages that a consumer has not delivered yet.

    Args:
        picked: what deliver policy last_per_subject chose, ascending; they come before `ledger.next_seq`.
        ready: called when a read from the lake has answered.
    """

    def __init__(
        self, stream: Stream, ledger: Ledger, filters: Sequence[bytes], picked: list[int], ready: Callable[[], None]
    ) -> None:
        self._stream, self._ledger, self._ready = stream, ledger, ready
        self._store = stream.store
        self.fetching = False
        self._generation = 0
        self._ahead: list[Record] = []
        self._ahead_resume = 0
        self._picked = picked
        self._picked_left = 0
        self._left = 0
        self._counted = 0
        self.choose(filters)

    def choose(self, filters: Sequence[bytes]) -> None:
        """Use these filters from now on (empty: everything)."""
        self.selection: Selection = selection(self._store, filters)
        self.rewind()

    def rewind(self) -> None:
        """The ledger's position has jumped: forget what was read ahead and count again."""
        self._generation += 1
        self._ahead = []
        self._left, self._counted = 0, self._ledger.next_seq - 1
        if self._picked:
            live, done = self._store.live, self._ledger.delivered_stream
            self._picked = [seq for seq in self._picked if seq > done and seq in live]
        self._picked_left = len(self._picked)

    def pick(self, seqs: list[int]) -> None:
        """Messages that come before all others, ascending."""
        self._picked = seqs
        self.rewind()

    def reset(self) -> None:
        """As `rewind`, and what was picked at creation does not count any more."""
        self._picked = []
        self.rewind()

    @property
    def picked(self) -> list[int]:
        """What is left of the messages chosen at creation."""
        return [seq for seq in self._picked if seq > self._ledger.delivered_stream]

    def pending(self) -> int:
        """How many wanted messages exist that were not delivered. Exact."""
        last = self._store.last_seq
        if self._counted < last:
            self._left += self.selection.count(self._counted + 1, last)
            self._counted = last
        return self._left + self._picked_left

    def removed(self, seq: int, subject: bytes) -> None:
        """The stream let a message go."""
        if seq >= self._ledger.next_seq:
            if seq <= self._counted and self.selection.matches(subject):
                self._left -= 1
        elif self._picked_left:
            at = bisect_left(self._picked, seq)
            if at < len(self._picked) and self._picked[at] == seq and seq > self._ledger.delivered_stream:
                self._picked_left -= 1

    # ------------------------------------------------------------------ reading
    def peek(self, limit: int) -> Found:
        """The next messages, at most `limit`, without taking them.

        An empty answer with `resume` beyond the stream's last sequence means that there are none for now; one with
        `remote` set, that a read from the lake is under way and `ready` will be called.
        """
        if self._ahead:
            live, floor = self._store.live, self._floor()
            self._ahead = [record for record in self._ahead if record.seq >= floor and record.seq in live]
            if self._ahead:
                if len(self._ahead) > limit:
                    return Found(self._ahead[:limit], self._ahead[limit].seq, 0)
                return Found(self._ahead, self._ahead_resume, 0)
        if self._picked_left:
            return self._peek_picked(limit)
        found = self.selection.find(self._ledger.next_seq, limit, BLOCK_BYTES, self.pending())
        if found.remote:
            self._fetch(found.remote)
        return found

    def _floor(self) -> int:
        """Below this sequence everything was delivered or passed over."""
        return self._ledger.delivered_stream + 1 if self._picked_left else self._ledger.next_seq

    def _peek_picked(self, limit: int) -> Found:
        store = self._store
        at = bisect_left(self._picked, self._ledger.delivered_stream + 1)
        seqs: list[int] = []
        size = 0
        for seq in self._picked[at : at + 4 * limit]:
            if seq in store.live:
                if not store.is_local(seq):
                    break
                seqs.append(seq)
                size += store.size_of(seq)
                if len(seqs) == limit or size >= BLOCK_BYTES:
                    break
        if seqs:
            return Found(store.read_many(seqs), 0, 0)
        following = next((seq for seq in self._picked[at:] if seq in store.live), 0)
        # Invariant: `_picked_left` counts the live ones after the last delivered.
        assert following, "messages chosen at creation are counted but gone"
        if store.is_local(following):
            return Found(store.read_many([following]), 0, 0)
        self._fetch(following)
        return Found([], 0, following)

    def advance(self, found: Found, taken: int) -> None:
        """The first `taken` messages of what `peek` gave go out. To be called before the ledger knows of them."""
        if self._ahead:
            self._ahead = self._ahead[taken:]
        if self._picked_left:
            self._picked_left -= taken
            if not self._picked_left:
                self._picked = []
            return
        self._left -= taken
        whole = taken == len(found.records)
        self._ledger.next_seq = found.resume if whole else found.records[taken].seq

    def skip(self, found: Found) -> bool:
        """Nothing is wanted below `found.resume`. False when that is the end of the stream for now."""
        self._ledger.next_seq = max(found.resume, self._ledger.next_seq)
        return self._ledger.next_seq <= self._store.last_seq

    # ------------------------------------------------------------------ the lake
    def _fetch(self, seq: int) -> None:
        self.fetching = True
        self._stream.clock.spawn(self._fetch_run(seq, self._generation))

    async def _fetch_run(self, seq: int, generation: int) -> None:
        subjects = None if self._picked_left else self.selection.narrowing()
        try:
            records = await self._stream.fetch_run(seq, FETCH_MSGS, FETCH_BYTES, subjects)
        except Exception:
            self._stream.clock.call_later(RETRY_NS, self._again)
            raise
        self.fetching = False
        if generation == self._generation and records:
            self._take_fetched(records)
        self._ready()

    def _again(self) -> None:
        self.fetching = False
        self._ready()

    def _take_fetched(self, records: list[Record]) -> None:
        """Keep what is wanted of a run that begins at the next candidate and leaves nothing out."""
        if self._picked_left:
            chosen = set(self._picked)
            self._ahead = [record for record in records if record.seq in chosen]
            self._ahead_resume = 0
            return
        wanted = self.selection.matches
        self._ahead = [record for record in records if wanted(record.subject)]
        self._ahead_resume = records[-1].seq + 1
        if not self._ahead:
            self._ledger.next_seq = max(self._ledger.next_seq, self._ahead_resume)

    @property
    def unfiltered(self) -> bool:
        """Whether every message is wanted."""
        return isinstance(self.selection, Everything)
