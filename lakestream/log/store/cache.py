"""Read cache: open descriptors and loaded tables.

Belongs here: one bounded cache that all streams of a server share. Both parts evict entries that were not used since
the last look (second chance), so that a hit costs one lookup and no bookkeeping. It also carries the other limit that
all streams share, that of their subject indexes (index/memory_limit.py).

Reading happens in the event loop. `forget` may be called in any thread (a stream is destroyed in one): it only unlists
descriptors; they are closed in the event loop, so that none is closed while it is being read from.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from lakestream.log.format.files import Files
from lakestream.log.format.packed import PackedView
from lakestream.log.index.memory_limit import MAX_INDEX_MEMORY, IndexMemory

MAX_FILES = 128
"""Maximum number of segments open for reading."""
MAX_TABLE_BYTES = 128 << 20
"""Bytes of memory (128 MiB) for tables of sealed segments and for outlines: those of some 16 million messages in the
log, half as many in outlines. A limit by subject that removes old messages at random reads all of them."""


class Loaded(Protocol):
    """Holder of loaded tables that the cache can evict."""

    def release(self) -> None:
        """Drop the tables."""

    def asked(self) -> bool:
        """Return True if they were used since the last call."""


class _File:
    __slots__ = ("asked", "fd", "view")

    def __init__(self, fd: int, view: PackedView) -> None:
        self.fd = fd
        self.view = view
        self.asked = False


class ReadCache:
    """Cache of descriptors and of tables, each within its limit."""

    def __init__(
        self,
        files: Files | None = None,
        max_files: int = MAX_FILES,
        max_table_bytes: int = MAX_TABLE_BYTES,
        max_index_memory: int = MAX_INDEX_MEMORY,
    ) -> None:
        self.files = files or Files()
        self.indexes = IndexMemory(max_index_memory)
        self._max_files = max_files
        self._max_bytes = max_table_bytes
        self._open: dict[str, _File] = {}
        self._closing: deque[int] = deque()
        self._loaded: dict[Loaded, int] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def open_files(self) -> int:
        """Return the number of open descriptors."""
        return len(self._open) + len(self._closing)

    def reader(self, path: str) -> Callable[[int, int], bytes]:
        """Return `PackedView.read_at` of a segment, which is opened when it is not open yet, for the present turn.

        Raise CorruptLog, OSError.
        """
        file = self._open.get(path)
        if file is None:
            file = self._add(path)
        file.asked = True
        return file.view.read

    def keep(self, loaded: Loaded, size: int) -> None:
        """Add tables that were just loaded and take `size` bytes; evict others beyond the limit."""
        with self._lock:
            self._loaded[loaded] = size
            self._bytes += size
            while self._bytes > self._max_bytes and len(self._loaded) > 1:
                oldest = next(iter(self._loaded))
                its_size = self._loaded.pop(oldest)
                if oldest is loaded or oldest.asked():
                    self._loaded[oldest] = its_size  # second chance: asked() resets the mark
                else:
                    self._bytes -= its_size
                    oldest.release()

    def drop(self, loaded: Loaded) -> None:
        """Release tables whose file is about to be changed or removed. Any thread."""
        with self._lock:
            self._bytes -= self._loaded.pop(loaded, 0)
            loaded.release()

    def forget(self, path: str) -> None:
        """Unlist the descriptor of a file that is about to be changed or removed. Any thread."""
        file = self._open.pop(path, None)
        if file is not None:
            self._closing.append(file.fd)

    def sweep(self) -> None:
        """Close the descriptors that were forgotten."""
        while self._closing:
            self.files.close(self._closing.popleft())

    def _add(self, path: str) -> _File:
        self.sweep()
        fd = self.files.open(path)
        try:
            file = _File(fd, PackedView(self.files, fd, path))
        except BaseException:
            self.files.close(fd)
            raise
        while len(self._open) >= self._max_files:
            oldest = next(iter(self._open))
            other = self._open.pop(oldest)
            if other.asked:
                other.asked = False
                self._open[oldest] = other
            else:
                self.files.close(other.fd)
        self._open[path] = file
        return file
