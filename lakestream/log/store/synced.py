"""The synced mark of a log: the entry through which it is known to be on stable storage.

Belongs here: the file `synced` in a stream's directory, its format, and reading and writing it. Only logs of a group
of one keep it; a member of a larger group keeps the same fact in its file `raft`.

A log that was cut at its end looks like one whose last write was torn by a crash. The mark tells them apart: it is
written about once a second and at a clean stop, always after the log's own sync, so entries through it were durable
and may have been acknowledged. It never claims more than that, whatever a power loss leaves of it.

The file has two slots, SLOT bytes apart, which are written in turn; the valid one with the highest entry counts:

    magic, u32 crc of the rest, u64 index of the entry, u64 first index of its segment, u64 offset where its frame ends
"""

from __future__ import annotations

import os
import struct
import threading
from zlib import crc32

import msgspec

from lakestream.log.format.errors import CorruptLog
from lakestream.log.format.files import Files

NAME = "synced"
SLOT = 4096
"""Distance of the slots in bytes: no sector and no page holds both."""

_MAGIC = b"LKSY"
_SLOT = struct.Struct("<4sIQQQ")


class SyncedMark(msgspec.Struct, frozen=True):
    """Entries through `index` are durable, and so is the segment that begins with entry `first_index`: the newest of
    them ends there at offset `end`, in bytes, unless the segment has no entries yet."""

    index: int = 0
    first_index: int = 0
    end: int = 0


class MarkFile:
    """The mark file of one log. Its methods block; `note` and `close` may be called in any thread."""

    def __init__(self, files: Files, directory: str) -> None:
        """Name the file in the stream's `directory`, without opening it."""
        self.path = os.path.join(directory, NAME)
        self.index = self.first_index = 0
        """The entry through which the file says that the log is durable, and the first of the last segment; or 0."""
        self._files = files
        self._lock = threading.Lock()
        self._closed = False
        self._slot = -1  # the slot written last; -1: the next mark replaces the whole file

    def read(self) -> SyncedMark:
        """Return what is noted, an empty mark if there is no file. Raise CorruptLog if no slot is valid, OSError."""
        try:
            content = self._files.read(self.path)
        except FileNotFoundError:
            return SyncedMark()
        found = [mark for mark in (_decode(content, 0), _decode(content, SLOT)) if mark is not None]
        if not found:
            raise CorruptLog(self.path, 0, "neither of its two slots holds a mark")
        newest = max(found, key=lambda mark: (mark.index, mark.first_index))
        self.index, self.first_index = newest.index, newest.first_index
        return newest

    def due(self, newest: tuple[int, int, int]) -> bool:
        """Return True if there are entries, and this mark is newer than the one that was noted."""
        return newest[0] > 0 and newest[:2] > (self.index, self.first_index)

    def note(self, newest: tuple[int, int, int]) -> None:
        """Note a newer mark (index, first index, end), durably. Raise OSError; the next call tries again.

        Invariant: the log was synced through it before.
        """
        with self._lock:
            if not self._closed and self.due(newest):
                self._write(SyncedMark(*newest))

    def draft(self, newest: tuple[int, int, int]) -> list[str]:
        """Write the first mark beside its place, not durably; return the file's path, nothing if there is a mark, or
        none is to be. Raise OSError."""
        with self._lock:
            if self._closed or self._slot >= 0 or not self.due(newest):
                return []
            fd = self._files.create(path := self.path + ".tmp")
            try:
                self._files.write(fd, [_encode(SyncedMark(*newest))], 0)
            finally:
                self._files.close(fd)
            return [path]

    def place(self, newest: tuple[int, int, int]) -> None:
        """Put a draft, which was synced, and the log before it, into its place; not durably. Raise OSError."""
        with self._lock:
            self._files.replace(self.path + ".tmp", self.path)
            self._slot, (self.index, self.first_index, _) = 0, newest

    def close(self, newest: tuple[int, int, int]) -> None:
        """Note where the log ends, and nothing later: the directory may soon be another stream's. Raise OSError."""
        try:
            self.note(newest)
        finally:
            with self._lock:
                self._closed = True

    def _write(self, mark: SyncedMark) -> None:
        content = _encode(mark)
        if self._slot < 0:  # slots written by a killed process may not be durable
            self._files.write_whole(self.path, [content])
            self._slot = 0
        else:
            with self._files.opened(self.path, write=True) as fd:
                self._files.write(fd, [content], (1 - self._slot) * SLOT)
                self._files.sync(fd)
            self._slot = 1 - self._slot
        self.index, self.first_index = mark.index, mark.first_index


def _encode(mark: SyncedMark) -> bytes:
    rest = _SLOT.pack(_MAGIC, 0, mark.index, mark.first_index, mark.end)[8:]
    return _MAGIC + crc32(rest).to_bytes(4, "little") + rest


def _decode(content: bytes, at: int) -> SyncedMark | None:
    if len(content) < at + _SLOT.size:
        return None
    magic, crc, index, first_index, end = _SLOT.unpack_from(content, at)
    if magic != _MAGIC or crc32(content[at + 8 : at + _SLOT.size]) != crc:
        return None
    return SyncedMark(index, first_index, end)
