"""What reading keeps at hand: open descriptors and loaded tables.

Belongs here: one bounded cache that all streams of a server share. It may be used from any thread, so that a stream can
be destroyed in one while the event loop reads another.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from lakestream.log.files import Files

MAX_FILES = 128
"""Segments that are open for reading at once."""
MAX_TABLE_BYTES = 64 << 20
"""Memory for the tables of sealed segments and for outlines."""


class ReadCache:
    """Least recently used descriptors, and least recently used tables, each within its limit."""

    def __init__(
        self, files: Files | None = None, max_files: int = MAX_FILES, max_table_bytes: int = MAX_TABLE_BYTES
    ) -> None:
        self.files = files or Files()
        self._max_files = max_files
        self._max_bytes = max_table_bytes
        self._fds: OrderedDict[str, int] = OrderedDict()
        self._tables: OrderedDict[str, tuple[object, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def open_files(self) -> int:
        """How many descriptors are open."""
        return len(self._fds)

    def read_at(self, path: str, length: int, offset: int) -> bytes:
        """Read from a file, opening it when it is not open yet. Fewer bytes only at its end. Raises OSError."""
        with self._lock:
            fd = self._fds.get(path)
            if fd is None:
                fd = self._open(path)
            else:
                self._fds.move_to_end(path)
            return self.files.read_at(fd, length, offset)

    def get(self, path: str) -> object | None:
        """The loaded tables of `path`, if they are here."""
        with self._lock:
            entry = self._tables.get(path)
            if entry is None:
                return None
            self._tables.move_to_end(path)
            return entry[0]

    def put(self, path: str, tables: object, size: int) -> None:
        """Keep loaded tables that take `size` bytes, letting go of others beyond the limit (never of the newest)."""
        with self._lock:
            self._drop(path)
            self._tables[path] = (tables, size)
            self._bytes += size
            while self._bytes > self._max_bytes and len(self._tables) > 1:
                self._bytes -= self._tables.popitem(last=False)[1][1]

    def forget(self, path: str) -> None:
        """Let go of all that belongs to `path`: its file is about to change or to vanish."""
        with self._lock:
            fd = self._fds.pop(path, None)
            if fd is not None:
                self.files.close(fd)
            self._drop(path)

    def close(self) -> None:
        """Let go of everything."""
        for path in {*self._fds, *self._tables}:
            self.forget(path)

    def _open(self, path: str) -> int:
        fd = self.files.open(path)
        self._fds[path] = fd
        if len(self._fds) > self._max_files:
            self.files.close(self._fds.popitem(last=False)[1])
        return fd

    def _drop(self, path: str) -> None:
        old = self._tables.pop(path, None)
        if old is not None:
            self._bytes -= old[1]
