"""Reading a stream, wherever its messages lie.

Belongs here: one way to read by sequence and time that joins the log (at once) with the lake (asynchronous). Deleted
messages never appear, also while the lake's table has not caught up with their deletion.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import TypeVar

from lakestream.log.format.record import Record, record_length
from lakestream.log.format.records import Records, chosen, seqs_of, times_at
from lakestream.log.index.sequences import SequenceSet
from lakestream.log.store.store import Store
from lakestream.ports import History
from lakestream.protocol.api.errors import PublicError
from lakestream.protocol.subjects import SubjectFilters, is_literal

T = TypeVar("T")

COMPARED = 16_384
"""Number of live messages up to which their subjects are compared with patterns; above it, or if the stream has fewer
subjects, the subject index counts those that match."""


class HistoryUnavailableError(PublicError):
    """Raised when a live message is neither in the log nor readable from the lake.

    Args:
        retry_s: seconds after which to try again; 0: not before somebody has mended something.
    """

    def __init__(self, message: str, for_clients: str = "", retry_s: int = 0) -> None:
        super().__init__(message, for_clients)
        self.retry_s = retry_s


class LakeDiffersError(HistoryUnavailableError):
    """Raised when the lake answers with other messages than the stream has: some are missing, doubled or changed."""


def all_live(some: Sequence[Record], live: SequenceSet) -> bool:
    """Return True if these messages, ascending, all exist for certain. Quick where there are no gaps between them."""
    seqs = seqs_of(some)
    first, last = seqs[0], seqs[-1]
    return last - first + 1 == len(some) == live.count(first, last)


def _living(rows: Sequence[Record], live: SequenceSet) -> Sequence[Record]:
    """Return those of some messages, ascending, that exist."""
    if not rows or all_live(rows, live):
        return rows
    return chosen(rows, [at for at, seq in enumerate(seqs_of(rows)) if seq in live])


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
        return await self._again(lambda: self._fetch(seq))

    async def _fetch(self, seq: int) -> Record | None:
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
        return await self._again(lambda: self._fetch_many(seqs))

    async def _fetch_many(self, seqs: Sequence[int]) -> list[Record]:
        store = self._store
        remote = [seq for seq in seqs if seq < store.local_floor and seq in store.live]
        found: list[Record] = []
        if remote:
            history = self._history(remote[0])
            subjects = list({store.subject_of(seq) for seq in remote})
            rows = await history.read_many(remote, subjects)
            found = list(self._as_stored(_living(rows, store.live)))
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
    ) -> Sequence[Record]:
        """Return messages from `first` on, either of the log or of the lake.

        `subjects` narrows what is read from the lake; messages from the log may be of any subject. Of what the lake
        returns, the messages below the first one that it lacks are given. Raise LakeDiffersError if there are none.
        """
        return await self._again(lambda: self._fetch_run(first, max_msgs, max_bytes, subjects))

    async def _fetch_run(
        self, first: int, max_msgs: int, max_bytes: int, subjects: Sequence[bytes] | None
    ) -> Sequence[Record]:
        store = self._store
        first = store.live.next_at_or_after(first)
        while first and not store.is_local(first):
            last = store.local_floor - 1
            found = await self._from_lake(first, last, max_msgs, subjects, max_bytes)
            whole = self._without_gap(found, first, seqs_of(found)[-1] if found else last, subjects)
            if whole:
                return whole
            first = store.live.next_at_or_after(last + 1)
        return store.records_from(first, max_msgs, max_bytes) if first else []

    def _without_gap(
        self, found: Sequence[Record], first: int, last: int, subjects: Sequence[bytes] | None
    ) -> Sequence[Record]:
        """Return the messages of the lake below the first live one, of sequences `first` through `last`, that is
        missing among them. Raise LakeDiffersError if that is the first."""
        live, low = self._store.live, first
        if self._count(first, last, subjects) == len(found):
            return found
        there = set(seqs_of(found))
        asked = None if subjects is None else SubjectFilters(subjects)
        while low <= last:
            some = live.members(low, COMPARED, last)
            if not some:
                break
            lacking = [seq for seq in some if seq not in there]
            if asked is not None and lacking:
                named = zip(lacking, self._store.subjects_of(lacking), strict=True)
                lacking = [seq for seq, subject in named if asked.match(subject)]
            if lacking:
                whole = found[: bisect_left(seqs_of(found), lacking[0])]
                if not whole:
                    raise self._unreadable(lacking[0])
                return whole
            low = some[-1] + 1
        return found

    def _count(self, first: int, last: int, subjects: Sequence[bytes] | None) -> int:
        """Count the live messages of sequences `first` through `last` with one of these subjects or patterns."""
        live, index = self._store.live, self._store.subjects
        if subjects is None:
            return live.count(first, last)
        names = {subject for subject in subjects if is_literal(subject)}
        if len(names) < len(subjects):
            if live.count(first, last) <= min(COMPARED, len(index)):
                match = SubjectFilters(subjects).match
                return sum(map(match, self._store.subjects_of(live.members(first, COMPARED, last))))
            names.update(*(index.matching(pattern) for pattern in subjects if not is_literal(pattern)))
        return sum(index.count_range(name, first, last) for name in names)

    async def _again(self, read: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `read`; of a second attempt without what the history has cached if the lake differs."""
        try:
            return await read()
        except LakeDiffersError:
            if self.history is None or not self.history.forget():
                raise
        return await read()

    async def _from_lake(
        self, first: int, last: int, limit: int, subjects: Sequence[bytes] | None, max_bytes: int = 0
    ) -> Sequence[Record]:
        history = self._history(first)
        while first <= last:
            rows = await history.read(first, last, limit, subjects, max_bytes)
            found = _living(rows, self._store.live)
            if wrong := self._first_wrong(found):
                found = found[: bisect_left(seqs_of(found), wrong)]
                if not found:
                    raise self._different(wrong)
            if found or not rows or (len(rows) < limit and not max_bytes):
                return found
            first = seqs_of(rows)[-1] + 1
        return []

    def _as_stored(self, rows: Sequence[Record]) -> Sequence[Record]:
        """Return live messages of the lake, ascending. Raise LakeDiffersError if one is not as it was stored."""
        if wrong := self._first_wrong(rows):
            raise self._different(wrong)
        return rows

    def _first_wrong(self, rows: Sequence[Record]) -> int:
        """Return the lowest sequence that is among live messages of the lake, ascending, twice, or with another subject
        or size than it was stored with; 0 if there is none. The footer of a Parquet file has no checksum, and other
        programs may have written to the table.

        Of the times, the first and the last are compared. Messages that no outline describes are not.
        """
        seqs = seqs_of(rows)
        if not isinstance(seqs, range) and len(set(seqs)) < len(seqs):
            return next(one for one, other in pairwise(seqs) if one == other)
        if not rows or not (self._store.left_through or self._store.based):
            return 0
        if not (isinstance(rows, Records) and self._store.outlined_so(rows)):
            facts = zip(rows, self._store.sizes_of(seqs), self._store.subjects_of(seqs), strict=True)
            for row, size, subject in facts:
                if record_length(row.subject, row.header, row.data) != size or row.subject != subject:
                    return row.seq
        times = times_at(rows, (0, len(rows) - 1))
        return next((seqs[at] for at, time in times.items() if time != self._store.time_of(seqs[at])), 0)

    def _different(self, seq: int) -> LakeDiffersError:
        return LakeDiffersError(f"{self._name}: sequence {seq} is not in the lake as it was stored")

    def _expect_gone(self, seqs: Sequence[int]) -> None:
        """Raise LakeDiffersError if one of these messages, which the lake did not return, exists."""
        for seq in seqs:
            if seq in self._store.live:
                raise self._unreadable(seq)

    def _unreadable(self, seq: int) -> LakeDiffersError:
        return LakeDiffersError(f"{self._name}: sequence {seq} is not readable from the lake")

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
