"""How much memory the subject indexes of a server take together.

Belongs here: the limit (`max_index_memory`), and who makes room once it is exceeded: the index with the most in
memory, a little with each step of whoever grows, so that nobody waits long. An index is among the others only while
it belongs to the event loop (`add`, `leave`). One that a thread opens or closes makes room alone: nobody else touches
it, and it touches nobody else.
"""

from __future__ import annotations

import threading
import weakref
from typing import Protocol

MAX_INDEX_MEMORY = 256 << 20
"""Bytes of all subject indexes in memory. What is beyond it is read from disk when it is asked for. While a checkpoint
is written, what it keeps of an index comes on top: no more than there was."""
STEP = 2048
"""Subjects that leave memory in one step; a step comes with every 1,024 that enter."""


class Cooling(Protocol):
    """An index that can move what it has in memory to a file."""

    memory: int
    """Roughly how many bytes it has in memory."""

    def cool(self, subjects: int) -> int:
        """Move about so many subjects out of memory; returns how many it were."""


class IndexMemory:
    """The limit that all indexes of a server share."""

    def __init__(self, limit: int = MAX_INDEX_MEMORY) -> None:
        self.limit = limit
        self._indexes: weakref.WeakSet[Cooling] = weakref.WeakSet()
        self._lock = threading.Lock()  # a set must not change while it is looked through

    @property
    def used(self) -> int:
        """Roughly how many bytes all of them have in memory."""
        return sum(index.memory for index in self._all())

    def used_with(self, index: Cooling) -> int:
        """The same with an index that may not be among them. Any thread."""
        return sum(each.memory for each in {index, *self._all()})

    def add(self, index: Cooling) -> None:
        """Another index, until it leaves, for as long as it lives. In the event loop, which has it from now on."""
        with self._lock:
            self._indexes.add(index)

    def leave(self, index: Cooling) -> None:
        """It is about to be given to a thread. In the event loop."""
        with self._lock:
            self._indexes.discard(index)

    def replace(self, before: Cooling, after: Cooling) -> None:
        """One index takes the place of another, if that is among them."""
        with self._lock:
            if before in self._indexes:
                self._indexes.discard(before)
                self._indexes.add(after)

    def grown(self, index: Cooling) -> None:
        """This one has taken in subjects: if it is too much by now, the largest gives up a few."""
        if self.used_with(index) > self.limit:
            indexes = self._all()
            largest = max(indexes, key=lambda each: each.memory) if index in indexes else index
            largest.cool(STEP)

    def _all(self) -> list[Cooling]:
        with self._lock:
            return list(self._indexes)
