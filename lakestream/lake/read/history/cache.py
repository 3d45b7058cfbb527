"""Cache of messages read from tables, with a byte limit.

Belongs here: blocks in memory, their owners, and eviction of the least recently used ones. One cache serves the
histories of all streams, so that their number does not multiply the memory.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict

import msgspec

from lakestream.lake.table.row_groups import Footers
from lakestream.lake.table.schema import END
from lakestream.log.format.records import Records

DEFAULT_BYTES = 96 * 1024 * 1024
"""Default limit of a server's history cache, in bytes of messages."""
BLOCK_OVERHEAD = 500
"""Memory of a block beyond its messages."""
RECORD_OVERHEAD = 16
"""Memory of a message beyond its record."""
READERS = 64
"""Maximum number of readers in sequence whose places are remembered."""
READER_SECONDS = 10.0
"""Time (10 s) after which a reader in sequence that has not come back is forgotten."""


class Block(msgspec.Struct, frozen=True, gc=False):
    """All messages of a table with first ≤ seq ≤ last. `size` is their cost in bytes."""

    first: int
    last: int
    records: Records
    size: int

    @classmethod
    def of(cls, first: int, last: int, records: Records) -> Block:
        """Return the block of these messages."""
        return cls(first, last, records, len(records.buf) + RECORD_OVERHEAD * len(records) + BLOCK_OVERHEAD)


class BlockCache:
    """Least recently used blocks of several owners. Safe to use from several threads.

    Invariant: the blocks of one owner do not overlap, and the sizes of all blocks together stay within the limit,
    except that the newest block stays even if it alone is larger.

    Attributes:
        size: bytes of all blocks.
        hits, misses: calls of `find` that found a block, and those that did not.
        footers: what is kept of the ends of the tables' files, within a limit of its own.
        heavy: held while a step of a longer read is decoded: one of them takes up to three times STEP_BYTES.
    """

    def __init__(self, max_bytes: int = DEFAULT_BYTES) -> None:
        self.max_bytes = max_bytes
        self.size = self.hits = self.misses = 0
        self.footers = Footers()
        self.heavy = threading.Lock()
        self._lock = threading.Lock()
        self._blocks: OrderedDict[tuple[int, int], Block] = OrderedDict()
        self._starts: dict[int, list[int]] = {}
        self._readers: OrderedDict[tuple[int, int], float] = OrderedDict()

    def find(self, owner: int, seq: int) -> Block | None:
        """Return the owner's block that covers `seq`."""
        with self._lock:
            starts = self._starts.get(owner, [])
            at = bisect_right(starts, seq) - 1
            block = self._blocks[owner, starts[at]] if at >= 0 else None
            if block is None or block.last < seq:
                self.misses += 1
                return None
            self.hits += 1
            self._blocks.move_to_end((owner, starts[at]))
            return block

    def room(self, owner: int, seq: int) -> tuple[int, int]:
        """Return the range around `seq` that no block of the owner covers."""
        with self._lock:
            starts = self._starts.get(owner, [])
            at = bisect_right(starts, seq)
            low = self._blocks[owner, starts[at - 1]].last + 1 if at else 0
            return low, starts[at] - 1 if at < len(starts) else END

    def put(self, owner: int, block: Block) -> None:
        """Add a block unless it overlaps another thread's, then evict the oldest ones."""
        with self._lock:
            starts = self._starts.setdefault(owner, [])
            at = bisect_left(starts, block.first)
            if at < len(starts) and starts[at] <= block.last:
                return
            if at > 0 and self._blocks[owner, starts[at - 1]].last >= block.first:
                return
            insort(starts, block.first)
            self._blocks[owner, block.first] = block
            self.size += block.size
            while self.size > self.max_bytes and len(self._blocks) > 1:
                (oldest, start), evicted = self._blocks.popitem(last=False)
                self.size -= evicted.size
                del self._starts[oldest][bisect_left(self._starts[oldest], start)]

    def comes(self, owner: int, seq: int, following: int) -> int:
        """Note that a reader in sequence that was expected at `seq` goes on at `following`; return the bytes of the
        cache that such a reader may use."""
        with self._lock:
            now = time.monotonic()
            self._readers.pop((owner, seq), None)
            self._readers[owner, following] = now
            while len(self._readers) > READERS or next(iter(self._readers.values())) < now - READER_SECONDS:
                self._readers.popitem(last=False)
            return self.share

    @property
    def share(self) -> int:
        """Return the bytes of the cache that each reader in sequence may use."""
        return self.max_bytes * 3 // 4 // max(len(self._readers), 1)

    def expects(self, owner: int, seq: int) -> bool:
        """Return True if a reader in sequence has come to `seq`."""
        with self._lock:
            return (owner, seq) in self._readers

    def drop(self, owner: int) -> None:
        """Remove all blocks of an owner."""
        with self._lock:
            for start in self._starts.pop(owner, []):
                self.size -= self._blocks.pop((owner, start)).size

    def clear(self) -> None:
        """Remove everything, of all owners."""
        with self._lock:
            self._blocks.clear()
            self._starts.clear()
            self.size = 0
        self.footers.drop("")

    def held(self, owner: int) -> int:
        """Return the bytes of an owner's blocks."""
        with self._lock:
            return sum(self._blocks[owner, start].size for start in self._starts.get(owner, ()))
