"""Reading a stream, wherever its messages lie.

Belongs here: one way to read by sequence and time that joins the log (at once) with the lake (asynchronous). Deleted
messages never appear, also while the lake's table has not caught up with their deletion.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from lakestream.log.format.record import Record, record_length
from lakestream.log.index.sequences import SequenceSet
from lakestream.log.store.store import Store
from lakestream.ports import History
from lakestream.protocol.api.errors import PublicError


class HistoryUnavailableError(PublicError):
    """Raised when a live message is neither in the log nor readable from the lake."""


def all_live(some: Sequence[Record], live: SequenceSet) -> bool:
    """Return True if these messages, ascending, all exist for certain. Quick where there are no gaps between them."""
    first, last = some[0].seq, some[-1].seq
    return last - first + 1 == len(some) == live.count(first, last)


def _living(rows: list[Record], live: SequenceSet) -> list[Record]:
    """Return those of some messages, ascending, that exist."""
    return rows if rows and all_live(rows, live) else [row for row in rows if row.seq in live]


class Reader:
    """Reads of one stream. Sequences are inclusive; results ascend.

    Attributes:
        history: the lake's messages of the stream, None without a lake.
    """

    def __init__(self, name: str, store: Store) -> None:
        self._name, self._store = name, store
        self.history: History | None = None

    async def fetch(self, seq: int) -> Record | None:
        """Return a message of the log or the lake. Raise HistoryUnavailableError if the lake does not answer for it."""
        store = self._store
        if seq not in store.live:
            return None
        if store.is_local(seq):
            return store.read(seq)
        # By the subject the lake chooses among the files of that time.
        found = await self._from_lake(seq, seq, 1, [store.subject_of(seq)])
        if found:
            return found[0]
        self._expect_gone([seq])
        return None

    async def fetch_many(self, seqs: Sequence[int]) -> list[Record]:
        """Return the messages with these sequences (ascending) that still exist, with one read of the lake.

        Raise HistoryUnavailableError if the lake does not answer for them.
        """
        store = self._store
        remote = [seq for seq in seqs if seq < store.local_floor and seq in store.live]
        found: list[Record] = []
        if remote:
            history = self._history(remote[0])
            subjects = list({store.subject_of(seq) for seq in remote})
            rows = await history.read_many(remote, subjects)
            found = self._as_stored([row for row in rows if row.seq in store.live])
            self._expect_gone(sorted(set(remote).difference(row.seq for row in found)))
        # Local messages may have moved to the lake meanwhile: check each again.
        local = seqs[bisect_left(seqs, remote[-1] + 1) :] if remote else seqs
        here = {record.seq: record for record in store.read_many([seq for seq in local if store.is_local(seq)])}
        for seq in local:
            record = here.get(seq) or (await self.fetch(seq) if seq in store.live else None)
            if record is not None:
                found.append(record)
        return found

    async def fetch_run(
        self, first: int, max_msgs: int, max_bytes: int, subjects: Sequence[bytes] | None = None
    ) -> list[Record]:
        """Return messages from `first` on, either of the log or of the lake.

        `subjects` narrows what is read from the lake; messages from the log may be of any subject.
        """
        store = self._store
        first = store.live.next_at_or_after(first)
        while first and not store.is_local(first):
            last = store.local_floor - 1
            found = await self._from_lake(first, last, max_msgs, subjects, max_bytes)
            if found:
                return found
            if not subjects:
                first = store.live.next_at_or_after(first)
                if first and not store.is_local(first):
                    raise HistoryUnavailableError(f"{self._name}: sequence {first} is not readable from the lake")
            else:
                first = store.live.next_at_or_after(last + 1)
        return store.read_run(first, max_msgs, max_bytes) if first else []

    async def _from_lake(
        self, first: int, last: int, limit: int, subjects: Sequence[bytes] | None, max_bytes: int = 0
    ) -> list[Record]:
        history = self._history(first)
        while first <= last:
            rows = await history.read(first, last, limit, subjects, max_bytes)
            found = self._as_stored(_living(rows, self._store.live))
            if found or not rows or (len(rows) < limit and not max_bytes):
                return found
            first = rows[-1].seq + 1
        return []

    def _as_stored(self, rows: list[Record]) -> list[Record]:
        """Return live messages of the lake, ascending. Raise HistoryUnavailableError if the subject or the size of one
        is not that of the message that was stored: the footer of a Parquet file has no checksum.

        Of the times, the first and the last are compared. Messages that no outline describes are not.
        """
        if not rows or not (self._store.left_through or self._store.based):
            return rows
        seqs = [row.seq for row in rows]
        sizes, subjects = self._store.sizes_of(seqs), self._store.subjects_of(seqs)
        found = [record_length(row.subject, row.header, row.data) for row in rows]
        ends = [row for row in (*rows[:1], *rows[-1:]) if row.time_ns != self._store.time_of(row.seq)]
        if found != sizes or ends or [row.subject for row in rows] != subjects:
            raise HistoryUnavailableError(
                f"{self._name}: messages from sequence {seqs[0]} to {seqs[-1]} are damaged in the lake"
            )
        return rows

    def _expect_gone(self, seqs: Sequence[int]) -> None:
        """Raise HistoryUnavailableError if one of these messages, which the lake did not return, exists."""
        for seq in seqs:
            if seq in self._store.live:
                raise HistoryUnavailableError(f"{self._name}: sequence {seq} is not readable from the lake")

    def _history(self, seq: int) -> History:
        if self.history is None:
            raise HistoryUnavailableError(f"{self._name}: sequence {seq} is only in the lake, which is not set up")
        return self.history

    async def first_at(self, time_ns: int) -> int:
        """Return the first message stored at or after `time_ns`, 0 if there is none."""
        store = self._store
        local = store.first_at(time_ns)
        if local is not None:
            return local
        if self.history is None:
            raise HistoryUnavailableError(f"{self._name}: the messages of that time are only in the lake")
        seq = await self.history.first_at(time_ns)
        if not seq or seq >= store.local_floor:
            return store.live.next_at_or_after(store.local_floor)
        return store.live.next_at_or_after(seq)
