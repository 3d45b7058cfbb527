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
from contextlib import contextmanager, nullcontext
from typing import TypeVar

import msgspec
import numpy as np

from lakestream.lake.errors import HistoryUnavailable
from lakestream.lake.read.history.cache import READERS, Block, BlockCache
from lakestream.lake.read.history.index import MAX_SUBJECTS, Choice, TableIndex, TableSnapshot
from lakestream.lake.read.history.index import wanted as wanted_of
from lakestream.lake.read.history.rows import records
from lakestream.lake.read.history.scan import STEP_BYTES, Extent, TableScan
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table.conditions import SubjectRange
from lakestream.lake.table.schema import END
from lakestream.lake.table.state import TableFollower
from lakestream.log.format.record import FIXED
from lakestream.log.format.records import NO_RECORDS, Records, joined
from lakestream.protocol.subjects import is_literal

T = TypeVar("T")

MAX_SEQS = 1_000
"""Maximum number of single sequences in one step."""
LOOK_ROWS = 4_096
"""Rows that a read by subject examines in its first step; each further step examines four times as many."""
LOOK_MOST = 1 << 24
ATTEMPTS = 3
"""Maximum number of snapshots tried for a read."""
AHEAD_ROWS = 65_536
"""Rows that a reader in sequence needs at least of each step after its first: half a run of the compactor's."""
SMALLEST_STEP = 1024 * 1024
"""Decoded bytes of a step at least, however many readers share the cache (1 MiB)."""

_owners = itertools.count(1)


class _Narrow:
    """State of reads of one choice of subjects: owner of its blocks in the cache, and rows examined per message
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
        self._blocks, self._singles = next(_owners), next(_owners)
        self._storage = open_storage(table)
        self._index = TableIndex(follower or TableFollower(table, storage=self._storage), self._storage)
        self._scan = TableScan(table, self._storage, self._cache.footers)
        self._after = -1  # the sequence behind the last one that was read alone
        self._reached = self._ahead = -1  # the sequences behind the last run from memory, and that was loaded ahead
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
    ) -> Records:
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
            return NO_RECORDS
        if first == last and (subjects is None or all(map(is_literal, subjects))):
            return self.read_many([first], subjects)
        if subjects is None:
            return self._read_blocks(first, last, limit, max_bytes, None)
        if not subjects:
            return NO_RECORDS
        choice = Choice(subjects)
        if choice.is_narrow:
            return self._read_narrow(first, last, limit, max_bytes, choice)
        return self._read_blocks(first, last, limit, max_bytes, choice)

    def at_once(self, first: int, last: int, limit: int, max_bytes: int = 0) -> tuple[Records | None, int]:
        """Return (what `read` returns without `subjects`, None unless all of it is in memory; the sequence from which
        to `load` meanwhile, since a reader in sequence will soon come there, or 0). Does not block."""
        found, at, ahead = _Found(limit, max_bytes), first, 0
        while at <= last:
            block = self._cache.find(self._blocks, at)
            if block is None:
                return None, 0
            following = block.last + 1
            if first == self._reached and at - block.first > block.last - at and self._cache.share >= 2 * STEP_BYTES:
                ahead = following
            if found.add(_within(block, at, last, limit)):
                break
            at = following
        whole = found.whole()
        if whole:
            self._reached = whole.seqs[-1] + 1
        if ahead == self._ahead:
            return whole, 0
        self._ahead = ahead or self._ahead
        return whole, ahead

    def load(self, first: int) -> None:
        """Load messages from `first` on into memory, unless they are there.

        Raises:
            HistoryUnavailable: the table could not be read.
        """
        if self._cache.find(self._blocks, first) is None:
            self._load(first, 1)

    def read_many(self, seqs: Sequence[int], subjects: Sequence[bytes] | None = None) -> Records:
        """Return the existing messages with exactly these sequences, ascending.

        Args:
            seqs: in ascending order.
            subjects: literal subjects that all of them have; only messages of those are searched.

        Raises:
            HistoryUnavailable: the table could not be read.
        """
        only = None if subjects is None else frozenset(subjects)
        found: list[Records] = []
        missing: list[int] = []
        for seq in seqs:
            block = self._cache.find(self._blocks, seq) or self._cache.find(self._singles, seq)
            if block is None:
                missing.append(seq)
            else:
                found.append(_within(block, seq, seq))
        if len(missing) == 1 and self._follows(missing[0]):
            found.append(self._read_blocks(missing[0], missing[0], 1, 0, None))
        else:
            narrow = wanted_of(only) if only is not None and len(only) <= MAX_SUBJECTS else None
            for at in range(0, len(missing), MAX_SEQS):
                found.append(self._exactly(missing[at : at + MAX_SEQS], narrow))
        found = [each for each in found if each]
        found.sort(key=lambda some: some.seqs[0])
        whole = _merged(found)
        return whole if only is None else _chosen(whole, only.__contains__)

    def _exactly(self, seqs: Sequence[int], wanted: SubjectRange | None) -> Records:
        rows = self._ask(lambda snapshot: self._scan.of_seqs(snapshot, seqs, wanted), seqs[-1])
        found = NO_RECORDS if rows is None else records(rows)
        if len(seqs) == 1 and found:
            self._cache.put(self._singles, Block.of(seqs[0], seqs[0], found))
        return found

    def _follows(self, seq: int) -> bool:
        """Return True if a single read goes on where the last one was, so that the messages behind it will be read."""
        follows, self._after = seq == self._after, seq + 1
        return follows

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
        self._cache.drop(self._singles)
        for narrow in self._narrows.copy().values():
            self._cache.drop(narrow.owner)
        self._index.close()
        self._scan.close()

    # ------------------------------------------------------------------ blocks
    def _read_blocks(self, first: int, last: int, limit: int, max_bytes: int, choice: Choice | None) -> Records:
        found = _Found(limit, max_bytes)
        while first <= last:
            block = self._cache.find(self._blocks, first) or self._load(first, limit)
            if block is None:
                break
            taken = _within(block, first, last, limit if choice is None else END)
            if found.add(taken if choice is None else _chosen(taken, choice.has)):
                break
            first = block.last + 1
        return found.whole()

    def _load(self, first: int, limit: int) -> Block | None:
        """Load the block that covers `first`; return None beyond the table."""
        with self._alone((self._blocks, first)):
            block = self._cache.find(self._blocks, first)
            if block is not None:
                return block
            last = self._room(self._blocks, first)
            rows = max(limit, AHEAD_ROWS) if self._cache.expects(self._blocks, first) else limit
            extent = self._extent(self._blocks, first, rows)
            # Several steps at once would take several times their memory; those of a slow store wait for it, not for
            # each other.
            with self._cache.heavy if self._storage.local else nullcontext():
                block = self._ask(lambda snapshot: self._step(snapshot, first, last, extent), first)
            if block is not None:
                self._cache.put(self._blocks, block)
                self._cache.comes(self._blocks, first, block.last + 1)
        return block

    def _step(
        self, snapshot: TableSnapshot, first: int, last: int, extent: Extent, choice: Choice | None = None
    ) -> Block | None:
        """Return the block from `first` on; None beyond the table, or beyond `last`."""
        last = min(last, snapshot.max_seq)
        if first > last:
            return None
        wanted = None if choice is None else choice.wanted
        rows, through = self._scan.step(snapshot, first, last, extent, wanted)
        found = NO_RECORDS if rows is None else records(rows)
        return Block.of(first, through, found if choice is None else _chosen(found, choice.has))

    def _extent(self, owner: int, first: int, rows: int) -> Extent:
        """Return the size of the step of a reader that has come to `first`."""
        share = self._cache.comes(owner, first, first)
        return Extent(rows, max(SMALLEST_STEP, min(STEP_BYTES, share)))

    def _room(self, owner: int, first: int) -> int:
        """Return the sequence up to which nothing is cached from `first` on. A range that another thread has just
        loaded is loaded again, but not cached."""
        low, high = self._cache.room(owner, first)
        return high if low <= first else END

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

    # ------------------------------------------------------------------ subjects
    def _read_narrow(self, first: int, last: int, limit: int, max_bytes: int, choice: Choice) -> Records:
        narrow = self._narrow_of(choice)
        found = _Found(limit, max_bytes)
        while first <= last:
            block = self._cache.find(narrow.owner, first) or self._load_narrow(narrow, first, last, limit)
            if block is None or found.add(_within(block, first, last)):
                break
            first = block.last + 1
        return found.whole()

    def _load_narrow(self, narrow: _Narrow, first: int, last: int, limit: int) -> Block | None:
        """Load messages of a choice from `first` on, as many as `limit` or as the rows of one step contain; None beyond
        the table."""
        with self._alone((narrow.owner, first)):
            block = self._cache.find(narrow.owner, first)
            if block is not None:
                return block
            until = min(last, self._room(narrow.owner, first))
            rows = max(LOOK_ROWS, min(limit * narrow.looked, LOOK_MOST))
            extent = self._extent(narrow.owner, first, rows)
            block = self._ask(lambda snapshot: self._step(snapshot, first, until, extent, narrow.choice), last)
            if block is None:
                return None
            count = len(block.records)
            # Without a match, examine four times as many rows next.
            narrow.looked = min(max(rows // (count + 1), 1) * (1 if count else 4), LOOK_MOST)
            self._cache.put(narrow.owner, block)
            self._cache.comes(narrow.owner, first, block.last + 1)
        return block

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


class _Found:
    """Messages that a read has found so far, as far as its limits allow."""

    def __init__(self, limit: int, max_bytes: int) -> None:
        self._left, self._room = limit, max_bytes if max_bytes else END
        self._pieces: list[Records] = []

    def add(self, some: Records) -> bool:
        """Add messages; return True if no more may come."""
        if len(some) > self._left:
            some = some[: self._left]
        ends = np.cumsum(np.frombuffer(some.lengths, np.uint32).astype(np.int64) - FIXED)
        if len(ends) and ends[-1] > self._room:
            fitting = int(np.searchsorted(ends, self._room, "right"))
            some, self._left = some[: max(fitting, 0 if self._pieces else 1)], 0
        if some:
            self._pieces.append(some)
            self._left, self._room = self._left - len(some), self._room - int(ends[len(some) - 1])
        return self._left <= 0

    def whole(self) -> Records:
        """Return all of them."""
        return joined(self._pieces)


def _within(block: Block, first: int, last: int, limit: int = END) -> Records:
    """Return the messages of a block with first ≤ seq ≤ last, at most `limit`."""
    seqs = block.records.seqs
    start = bisect_left(seqs, first) if first > block.first else 0
    end = min(bisect_right(seqs, last) if last < block.last else len(seqs), start + limit)
    return block.records if end - start == len(seqs) else block.records[start:end]


def _chosen(some: Records, has: Callable[[bytes], bool]) -> Records:
    """Return the messages whose subjects are wanted."""
    subjects = some.subjects()
    meant = {subject for subject in set(subjects) if has(subject)}
    kept = [at for at, subject in enumerate(subjects) if subject in meant]
    return some if len(kept) == len(some) else some.chosen(kept)


def _merged(pieces: Sequence[Records]) -> Records:
    """Return the messages of pieces, none of which has a sequence of another, in sequence order."""
    whole = joined(pieces)
    if all(before.seqs[-1] < after.seqs[0] for before, after in itertools.pairwise(pieces)):
        return whole
    return whole.chosen(sorted(range(len(whole)), key=whole.seqs.__getitem__))
