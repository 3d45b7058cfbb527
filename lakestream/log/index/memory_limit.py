"""Memory limit of all subject indexes and message ids of a server.

Belongs here: the limit (`max_index_memory`) and the choice of the index that makes room once it is exceeded: the
largest one, a little with each step of a growing one, so that no step takes long. An index is registered only while it
belongs to the event loop (`add`, `leave`). One that a thread opens or closes makes room alone: it shares nothing with
the others.
"""

from __future__ import annotations

import threading
import weakref
from typing import Protocol

from lakestream.log.format.files import Files

MAX_INDEX_MEMORY = 256 << 20
"""Default limit in bytes of all indexes in memory (256 MiB). The rest is read from disk when it is needed.
While a checkpoint is written, its copy of an index comes on top: at most as much again."""
STEP = 512
"""Subjects (or message ids) that leave memory in one step above the limit. If more have entered, as many leave: a
run of messages may bring several thousand."""


class Cooling(Protocol):
    """An index that can move subjects from memory to a file."""

    memory: int
    """Roughly its bytes of memory."""

    def cool(self, subjects: int) -> int:
        """Move about this many subjects out of memory; return how many were moved."""


class Movable(Cooling, Protocol):
    """One that learns where its files are to be."""

    def keep_within(self, memory: IndexMemory, files: Files, directory: str) -> None:
        """Move parts to files in this directory when the memory limit is exceeded."""


class IndexMemory:
    """The limit that all indexes of a server share."""

    def __init__(self, limit: int = MAX_INDEX_MEMORY) -> None:
        self.limit = limit
        self._indexes: weakref.WeakSet[Cooling] = weakref.WeakSet()
        self._heavy: weakref.WeakSet[Cooling] = weakref.WeakSet()  # of them those with memory: most streams have none
        self._lock = threading.Lock()  # the sets must not change during iteration

    @property
    def used(self) -> int:
        """Return the approximate memory of all indexes in bytes."""
        return sum(index.memory for index in self._with_memory())

    def used_with(self, index: Cooling) -> int:
        """Return `used` including an index that may not be registered. Any thread."""
        return sum(each.memory for each in {index, *self._with_memory()})

    @property
    def indexes(self) -> list[Cooling]:
        """Return the registered indexes."""
        with self._lock:
            return list(self._indexes)

    def add(self, index: Cooling) -> None:
        """Register an index, until `leave` or the end of its life. In the event loop, which owns it from now on."""
        with self._lock:
            self._indexes.add(index)
            self._weighed(index)

    def weighed(self, index: Cooling) -> None:
        """Note that the memory of an index, which may not be registered, was estimated. Any thread."""
        with self._lock:
            self._weighed(index)

    def _weighed(self, index: Cooling) -> None:
        if index.memory and index in self._indexes:
            self._heavy.add(index)
        else:
            self._heavy.discard(index)

    def leave(self, index: Cooling) -> None:
        """Unregister an index that is about to be given to a thread. In the event loop."""
        with self._lock:
            self._indexes.discard(index)
            self._heavy.discard(index)

    def replace(self, before: Cooling, after: Cooling) -> None:
        """Register `after` in the place of `before`, if that is registered."""
        with self._lock:
            if before in self._indexes:
                self._indexes.discard(before)
                self._heavy.discard(before)
                self._indexes.add(after)
                self._weighed(after)

    def grown(self, index: Cooling, entered: int) -> None:
        """Note that this many subjects entered an index: above the limit, the largest one that can moves some to its
        file."""
        if self.used_with(index) > self.limit:
            indexes = self._with_memory()
            if index not in indexes:
                indexes = [index]
            for each in sorted(indexes, key=lambda each: each.memory, reverse=True):
                if each.cool(max(STEP, entered)):
                    return

    def _with_memory(self) -> list[Cooling]:
        with self._lock:
            return list(self._heavy)
