"""Old messages of one stream, read from its Delta table.

Belongs here: `TableHistory`, which reads messages that have left the log: by sequence, by range, by subject, the last
of a subject, by time. It plans with an index of the table's files (index.py), reads them in the caller's thread
(scan.py) and caches messages up to a byte limit. It depends on no particular file: a compaction, OPTIMIZE or VACUUM may
replace files at any time, and a read that finds one gone is repeated on a new snapshot.

Invariant: rows below a snapshot's highest sequence never arrive later. The compactor appends in sequence order, so a
cached block stays correct except for messages deleted since, which the stream itself hides. For the same reason a read
within a snapshot needs no newer one.
"""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
import numpy as np

from lakestream.lake.errors import HistoryUnavailable
from lakestream.lake.read.history.cache import RECORD_OVERHEAD, Block, BlockCache, Slab
from lakestream.lake.read.history.index import MAX_SUBJECTS, Choice, TableIndex, TableSnapshot
from lakestream.lake.read.history.index import wanted as wanted_of
from lakestream.lake.read.history.rows import content_bytes, records
from lakestream.lake.read.history.scan import (
    ALONE,
    POINT_ROWS,
    SEQUENTIAL_BYTES,
    SEQUENTIAL_MOST,
    SEQUENTIAL_ROWS,
    SEQUENTIAL_SQL_ROWS,
    Extent,
    TableScan,
)
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table.conditions import SubjectRange
from lakestream.lake.table.schema import END
from lakestream.lake.table.state import TableFollower
from lakestream.log.format.record import Record
from lakestream.protocol.subjects import is_literal

T = TypeVar("T")

MAX_SEQS = 1_000
"""Maximum number of single sequences in one step."""
LOOK_ROWS = 4_096
"""Rows that a read by subject examines in its first step; each further step examines four times as many."""
LOOK_MOST = 1 << 24
ATTEMPTS = 3
"""Maximum number of snapshots tried for a read."""
READERS = 64
"""Maximum number of sequential readers of a table with enlarged steps."""
NEAR_FILES = 16
"""If a sequence may be in more files than this, only the file of its subject is read."""

_owners = itertools.count(1)
_seq = attrgetter("seq")


class _Narrow:
    """State of reads of one choice of subjects: owner of its slabs in the cache, and rows examined per message
    found."""

    def __init__(self, choice: Choice) -> None:
        self.choice, self.owner, self.looked = choice, next(_owners), 2


class TableHistory:
    """The messages of one stream's table. All methods block and may be called from several threads at once.

    Args:
        table: path or URL of the table.
        cache: the cache, whose limit bounds the only memory that grows with reading; a new one by default.
        below: only messages with lower sequences are read, and no file that has none of those is opened.
        follower: of the table; a new one by default.
    """

    def __init__(
        self, table: str, cache: BlockCache | None = None, below: int = END, follower: TableFollower | None = None
    ) -> None:
        self.table = table
        self.below = below
        self._cache = cache if cache is not None else BlockCache()
        self._blocks, self._slabs = next(_owners), next(_owners)
        storage = open_storage(table)
        self._index = TableIndex(follower or TableFollower(table, storage=storage), storage)
        self._scan = TableScan(table, storage)
        # Size of a sequential reader's next step, by owner and first sequence.
        self._strides: dict[tuple[int, int], Extent] = {}
        self._expected = -1  # the next sequence of a sequential read
        self._narrows: dict[frozenset[bytes], _Narrow] = {}
        self._lock = threading.Lock()
        self._loading: dict[tuple[int, int], threading.Event] = {}

    def read(
        self,
        first: int,
        last: int,
        limit: int,
        subjects: Sequence[bytes] | None = None,
        max_bytes: int = 0,
    ) -> list[Record]:
        """Return messages with first ≤ seq ≤ last, ascending, at most `limit`.

        Messages that were deleted from the stream a short time ago may be among them.

        Args:
            subjects: literal subjects and patterns; only messages of those and of what matches, when given.
            max_bytes: stop once subjects, headers and payloads together reach it (0: no limit). At least one message is
                returned if there is any, so fewer than `limit` messages below this size mean that there are no more.

        Raises:
            HistoryUnavailable: the table could not be read.
        """
        if limit <= 0 or first > last:
            return []
        if first == last and (subjects is None or all(map(is_literal, subjects))):
            return self.read_many([first], subjects)
        if subjects is None:
            return self._read_blocks(first, last, limit, max_bytes, None)
        if not subjects:
            return []
        choice = Choice(subjects)
        if choice.is_narrow:
            return self._read_narrow(first, last, limit, max_bytes, choice)
        return self._read_blocks(first, last, limit, max_bytes, choice)

    def read_many(self, seqs: Sequence[int], subjects: Sequence[bytes] | None = None) -> list[Record]:
        """Return the existing messages with exactly these sequences, ascending.

        Args:
            seqs: in ascending order.
            subjects: literal subjects that all of them have; only messages of those are searched.

        Raises:
            HistoryUnavailable: the table could not be read.
        """
        only = None if subjects is None else frozenset(subjects)
        found: list[Record] = []
        missing: list[int] = []
        for seq in seqs:
            block = self._cache.find(self._blocks, seq)
            if block is None:
                missing.append(seq)
            else:
                found += _at(block, seq)
        if len(missing) == 1 and self._nearby(missing[0], only):
            found += self._read_blocks(missing[0], missing[0], 1, 0, None)
        else:
            narrow = wanted_of(only) if only is not None and len(only) <= MAX_SUBJECTS else None
            for at in range(0, len(missing), MAX_SEQS):
                found += records(self._exactly(missing[at : at + MAX_SEQS], narrow))
        found.sort(key=_seq)
        return found if only is None else [record for record in found if record.subject in only]

    def _exactly(self, seqs: Sequence[int], wanted: SubjectRange | None) -> Any:
        return self._ask(lambda snapshot: self._scan.of_seqs(snapshot, seqs, wanted), seqs[-1])

    def first_at(self, time_ns: int) -> int:
        """Return the lowest sequence whose time is at or after `time_ns` (ns since the epoch); 0 when there is none.

        Raises:
            HistoryUnavailable: the table could not be read.
        """

        def ask(snapshot: TableSnapshot) -> int:
            return self._scan.first_at(snapshot, int(time_ns))

        # Times ascend with sequences: newer commits matter only if no known message is late enough.
        return self._ask(ask, 0) or self._ask(ask, END)

    def max_seq(self) -> int:
        """Return the highest sequence in the table, by its file statistics; 0 when it is empty."""
        return self._ask(lambda snapshot: snapshot.max_seq, END)

    def close(self) -> None:
        """Drop the snapshot and everything cached."""
        self._cache.drop(self._blocks)
        self._cache.drop(self._slabs)
        for narrow in self._narrows.copy().values():
            self._cache.drop(narrow.owner)
        self._index.close()
        self._scan.close()

    # ------------------------------------------------------------------ blocks
    def _read_blocks(self, first: int, last: int, limit: int, max_bytes: int, choice: Choice | None) -> list[Record]:
        found: list[Record] = []
        most = 0
        while first <= last:
            block = self._cache.find(self._blocks, first)
            if block is None:
                block = self._load(first, limit)
                if block is None:
                    break
            taken = _within(block, first, last)
            if choice is not None:
                meant = {subject for subject in {record.subject for record in taken} if choice.has(subject)}
                taken = [record for record in taken if record.subject in meant]
            most += block.size
            # A block's cost is an upper bound, so most blocks need no check message by message.
            full = bool(max_bytes) and most > max_bytes
            if full:
                taken, full = _fitting(taken, max_bytes - _content(found), not found)
            found += taken[: limit - len(found)]
            if full or len(found) >= limit:
                break
            first = block.last + 1
        return found

    def _load(self, first: int, limit: int) -> Block | None:
        """Load the block that covers `first`; return None beyond the table."""
        sequential = first == self._expected or limit > POINT_ROWS
        with self._alone((self._blocks, first)):
            block: Block | None = self._cache.find(self._blocks, first)
            if block is not None:
                return block
            slab = self._cache.find(self._slabs, first)
            if slab is None:
                room = self._room(self._slabs, first)
                extent = self._strides.pop((self._slabs, first), Extent()) if sequential else ALONE
                slab = self._ask(lambda it: self._scan.slab(it, first, room, extent), first)
                if slab is None:
                    return None
                self._cache.put(self._slabs, slab)
                if sequential:
                    self._stride_after(self._slabs, slab, extent)
            block = self._cut(slab, first, sequential)
            self._cache.put(self._blocks, block)
        if sequential and block.last >= slab.last:
            self._cache.discard(self._slabs, slab.first)  # read to its end: its rows are in blocks
        self._expected = block.last + 1
        return block

    def _stride_after(self, owner: int, slab: Slab, extent: Extent) -> None:
        """Double the next step of a sequential reader, as far as the cache has room beside the steps of others."""
        room = self._cache.max_bytes * 3 // 4 - self._cache.held(owner)
        size = max(SEQUENTIAL_BYTES, min(extent.size * 2, SEQUENTIAL_MOST, room))
        if len(self._strides) >= READERS:
            self._strides.clear()
        self._strides[owner, slab.last + 1] = Extent(min(extent.rows * 2, SEQUENTIAL_SQL_ROWS * 4), size)

    def _cut(self, slab: Slab, first: int, sequential: bool) -> Block:
        """Return the block around `first`: from there on for sequential reads, else aligned."""
        low, high = self._room(self._blocks, first)
        low, high = max(low, slab.first), min(high, slab.last)
        seqs = slab.rows.column("seq").to_numpy()
        begin, end = int(np.searchsorted(seqs, low)), int(np.searchsorted(seqs, high, side="right"))
        at = int(np.searchsorted(seqs, first))
        count = SEQUENTIAL_ROWS if sequential else POINT_ROWS
        if not sequential:
            begin, at = max(begin, at - at % count), max(begin, at - at % count)
            low = max(low, int(seqs[begin - 1]) + 1 if begin else 0)
        else:
            low, begin = first, at
        if end - begin > count:
            end = begin + count
            high = int(seqs[end]) - 1
        rows = slab.rows.slice(begin, end - begin)
        found = records(rows)
        return Block(low, high, found, content_bytes(rows, found) + len(found) * RECORD_OVERHEAD)

    def _room(self, owner: int, first: int) -> tuple[int, int]:
        """Return the range around `first` to load. A range that another thread has just loaded is loaded again, but not
        cached."""
        low, high = self._cache.room(owner, first)
        return (low, high) if low <= first else (first, END)

    @contextmanager
    def _alone(self, piece: tuple[int, int]) -> Iterator[None]:
        """Let one thread at a time load a piece, identified by owner and first sequence: many consumers may replay a
        stream side by side."""
        while True:
            with self._lock:
                under_way = self._loading.get(piece)
                if under_way is None:
                    done = self._loading[piece] = threading.Event()
                    break
            under_way.wait()
        try:
            yield
        finally:
            with self._lock:
                del self._loading[piece]
            done.set()

    def _nearby(self, seq: int, subjects: frozenset[bytes] | None) -> bool:
        """Return True if the messages around one should be loaded with it."""
        if subjects is None or not subjects:
            return subjects is None
        return self._ask(lambda snapshot: len(snapshot.overlapping(seq, seq)) <= NEAR_FILES, seq)

    # ------------------------------------------------------------------ subjects
    def _read_narrow(self, first: int, last: int, limit: int, max_bytes: int, choice: Choice) -> list[Record]:
        narrow = self._narrow_of(choice)
        found: list[Record] = []
        most = 0
        while first <= last:
            slab = self._cache.find(narrow.owner, first) or self._load_narrow(narrow, first, last, limit)
            if slab is None:
                break
            seqs = slab.rows.column("seq").to_numpy()
            at, end = int(np.searchsorted(seqs, first)), int(np.searchsorted(seqs, last, side="right"))
            rows = slab.rows.slice(at, min(end - at, limit - len(found)))
            taken = records(rows)
            most += slab.size  # an upper bound: most need no check message by message
            full = bool(max_bytes) and most > max_bytes
            if full:
                taken, full = _fitting(taken, max_bytes - _content(found), not found)
            found += taken
            if full or len(found) >= limit:
                break
            first = slab.last + 1
        return found

    def _load_narrow(self, narrow: _Narrow, first: int, last: int, limit: int) -> Slab | None:
        """Load messages of a choice from `first` on, as many as `limit` or as the rows of one step contain; None beyond
        the table."""
        with self._alone((narrow.owner, first)):
            slab: Slab | None = self._cache.find(narrow.owner, first)
            if slab is not None:
                return slab
            last = min(last, self._room(narrow.owner, first)[1])
            extent = self._strides.pop((narrow.owner, first), None) or Extent(max(limit, 1))
            rows = max(LOOK_ROWS, min(extent.rows * narrow.looked, LOOK_MOST))

            def ask(snapshot: TableSnapshot) -> tuple[Any, int] | None:
                until = min(last, snapshot.max_seq)
                return self._scan.of_subjects(snapshot, first, until, narrow.choice.wanted, extent, rows)

            answer = self._ask(ask, last)
            if answer is None:
                return None
            table, through = answer
            # Without a match, examine four times as many rows next.
            narrow.looked = min(max(rows // (table.num_rows + 1), 1) * (1 if table.num_rows else 4), LOOK_MOST)
            table = narrow.choice.only(table)
            slab = Slab(first, through, table, table.nbytes)
            self._cache.put(narrow.owner, slab)
            self._stride_after(narrow.owner, slab, extent)
        return slab

    def _narrow_of(self, choice: Choice) -> _Narrow:
        with self._lock:
            known = self._narrows.pop(choice.subjects, None) or _Narrow(choice)
            self._narrows[choice.subjects] = known  # the newest last
            oldest = next(iter(self._narrows.values())) if len(self._narrows) > READERS else None
            if oldest is not None:
                del self._narrows[oldest.choice.subjects]
        if oldest is not None:
            self._cache.drop(oldest.owner)
        return known

    # ------------------------------------------------------------------ snapshots
    def _ask(self, ask: Callable[[TableSnapshot], T], seq: int) -> T:
        """Ask the known snapshot if it reaches `seq`, else the newest; repeat on a newer one after a failure."""
        for attempt in range(ATTEMPTS):
            try:
                snapshot = self._index.snapshot()
                if attempt == 1:
                    self._scan.close()
                if attempt or seq > snapshot.max_seq:
                    snapshot = self._index.refresh(attempt > 1, END + 1 if attempt else seq)
                return ask(self._within(snapshot))
            except HistoryUnavailable:
                raise
            except Exception as error:  # deltalake raises bare Exception for a file that has gone
                if attempt == ATTEMPTS - 1:
                    raise HistoryUnavailable(f"{self.table} could not be read: {error}") from error
        raise AssertionError("unreachable")

    def _within(self, snapshot: TableSnapshot) -> TableSnapshot:
        """Return the part of a snapshot below `self.below`."""
        if self.below == END:
            return snapshot
        kept = snapshot.mins < self.below
        return msgspec.structs.replace(
            snapshot,
            files=[file for file in snapshot.files if file.min_seq < self.below],
            mins=snapshot.mins[kept],
            maxs=snapshot.maxs[kept],
            max_seq=min(snapshot.max_seq, self.below - 1),
        )


def _within(block: Block, first: int, last: int) -> list[Record]:
    """Return the messages of a block with first ≤ seq ≤ last."""
    stored = block.records
    start = bisect_left(stored, first, key=_seq) if first > block.first else 0
    end = bisect_right(stored, last, key=_seq) if last < block.last else len(stored)
    return stored[start:end]


def _fitting(some: list[Record], room: int, at_least_one: bool) -> tuple[list[Record], bool]:
    """Return (the first messages that together stay within `room` bytes, True if others are left over)."""
    for at, record in enumerate(some):
        room -= len(record.subject) + len(record.header) + len(record.data)
        if room < 0 and not (at_least_one and at == 0):
            return some[:at], True
    return some, False


def _content(some: list[Record]) -> int:
    return sum([len(record.subject) + len(record.header) + len(record.data) for record in some])


def _at(block: Block, seq: int) -> list[Record]:
    at = bisect_left(block.records, seq, key=_seq)
    return block.records[at : at + 1] if at < len(block.records) and block.records[at].seq == seq else []
