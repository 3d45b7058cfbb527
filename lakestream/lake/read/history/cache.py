"""Cache of messages read from tables, with a byte limit.

Belongs here: blocks in memory, their owners, and eviction of the least recently used ones. One cache serves the
histories of all streams, so that their number does not multiply the memory.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from typing import Any

import msgspec

from lakestream.lake.table.schema import END
from lakestream.log.format.record import Record

DEFAULT_BYTES = 32 * 1024 * 1024
"""Default limit of a server's history cache, in bytes of messages."""

RECORD_OVERHEAD = 250
"""Memory of a record beyond the bytes of its subject, header block and payload."""


class Slab(msgspec.Struct, frozen=True, gc=False):
    """All messages of a table with first ≤ seq ≤ last: a pyarrow Table in sequence order, and its size in memory."""

    first: int
    last: int
    rows: Any
    size: int


class Block(msgspec.Struct, frozen=True, gc=False):
    """All messages of a table with first ≤ seq ≤ last, ascending. `size` is their cost in bytes."""

    first: int
    last: int
    records: list[Record]
    size: int


class BlockCache:
    """Least recently used blocks of several owners. Safe to use from several threads.

    Invariant: the blocks of one owner do not overlap, and the sizes of all blocks together stay within the limit,
    except that the newest block stays even if it alone is larger.

    Attributes:
        size: bytes of all blocks.
        hits, misses: calls of `find` that found a block, and those that did not.
    """

    def __init__(self, max_bytes: int = DEFAULT_BYTES) -> None:
        self.max_bytes = max_bytes
        self.size = self.hits = self.misses = 0
        self._lock = threading.Lock()
        self._blocks: OrderedDict[tuple[int, int], Any] = OrderedDict()
        self._starts: dict[int, list[int]] = {}

    def find(self, owner: int, seq: int) -> Any | None:
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

    def put(self, owner: int, block: Block | Slab) -> None:
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

    def discard(self, owner: int, first: int) -> None:
        """Remove the owner's block that starts at `first`, if any."""
        with self._lock:
            block = self._blocks.pop((owner, first), None)
            if block is not None:
                self.size -= block.size
                starts = self._starts[owner]
                del starts[bisect_left(starts, first)]

    def drop(self, owner: int) -> None:
        """Remove all blocks of an owner."""
        with self._lock:
            for start in self._starts.pop(owner, []):
                self.size -= self._blocks.pop((owner, start)).size

    def held(self, owner: int) -> int:
        """Return the bytes of an owner's blocks."""
        with self._lock:
            return sum(self._blocks[owner, start].size for start in self._starts.get(owner, ()))
