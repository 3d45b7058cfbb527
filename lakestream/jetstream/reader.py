"""Reading a stream, wherever its messages lie.

Belongs here: one way to read by sequence and time that joins the log (at once) with the lake (asynchronous). Deleted
messages never appear, also while the lake's table has not caught up with their deletion.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from lakestream.log.record import Record

if TYPE_CHECKING:
    from lakestream.jetstream.stream import Stream


class HistoryUnavailableError(Exception):
    """A live message is neither in the log nor readable from the lake."""


class Reader:
    """Reads of one stream. Sequences are inclusive; results ascend."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def local(self, seq: int) -> bool:
        """Whether a live message at `seq` would be found in the log."""
        return self._stream.store.is_local(seq)

    def live_between(self, first: int, last: int) -> Iterator[int]:
        """The sequences of the messages that exist in a range."""
        live = self._stream.store.live
        seq = live.next_at_or_after(first)
        while seq and seq <= last:
            yield seq
            seq = live.next_at_or_after(seq + 1)

    def get(self, seq: int) -> Record | None:
        """One message from the log."""
        return self._stream.store.read(seq)

    def run(self, first: int, max_msgs: int, max_bytes: int) -> list[Record]:
        """Messages from `first` on, from the log."""
        return self._stream.store.read_run(first, max_msgs, max_bytes)

    async def fetch(self, seq: int) -> Record | None:
        """One message from the log or the lake. Raises HistoryUnavailableError when the lake does not answer for it."""
        store = self._stream.store
        if seq not in store.live:
            return None
        if store.is_local(seq):
            return store.read(seq)
        found = await self._from_lake(seq, seq, 1, None)
        return found[0] if found else None

    async def fetch_run(
        self, first: int, max_msgs: int, max_bytes: int, subjects: Sequence[bytes] | None = None
    ) -> list[Record]:
        """Messages from `first` on, from where they lie; one call stays on one side of the border.

        `subjects` narrows what is read from the lake; messages from the log may be of any subject.
        """
        store = self._stream.store
        first = store.live.next_at_or_after(first)
        while first and not store.is_local(first):
            last = store.local_floor - 1
            found = await self._from_lake(first, last, max_msgs, subjects)
            if found:
                return found
            if not subjects:
                first = store.live.next_at_or_after(first)
                if first and not store.is_local(first):
                    raise HistoryUnavailableError(
                        f"{self._stream.name}: sequence {first} is not readable from the lake"
                    )
            else:
                first = store.live.next_at_or_after(last + 1)
        return store.read_run(first, max_msgs, max_bytes) if first else []

    async def _from_lake(self, first: int, last: int, limit: int, subjects: Sequence[bytes] | None) -> list[Record]:
        history = self._stream.history
        if history is None:
            raise HistoryUnavailableError(
                f"{self._stream.name}: sequence {first} is only in the lake, which is not set up"
            )
        while first <= last:
            rows = await history.read(first, last, limit, subjects)
            live = self._stream.store.live
            found = [row for row in rows if row.seq in live]
            if found or len(rows) < limit:
                return found
            first = rows[-1].seq + 1
        return []

    async def first_at(self, time_ns: int) -> int:
        """The first message stored at or after `time_ns`; 0 when there is none."""
        store = self._stream.store
        local = store.first_at(time_ns)
        if local is not None:
            return local
        if self._stream.history is None:
            raise HistoryUnavailableError(f"{self._stream.name}: the messages of that time are only in the lake")
        seq = await self._stream.history.first_at(time_ns)
        if not seq or seq >= store.local_floor:
            return store.live.next_at_or_after(store.local_floor)
        return store.live.next_at_or_after(seq)
