"""The newest entries of a member's log, in memory: unstable ones, and recent stable ones.

Belongs here: which entries are written and where, which were handed out, and which are kept longer for followers that
lag. Older entries are read from the log again.
"""

from __future__ import annotations

from itertools import islice

from lakestream.log.format.frame import Frame, Kind
from lakestream.log.store.log import Appended
from lakestream.raft.core.messages import LogEntry, entry_of

RECENT_BYTES = 4 << 20
"""Memory of handed-out entries that a leader keeps (4 MiB); followers that lag further are served from the disk."""

ENTRY_BYTES = 320
"""Memory of an entry besides its body (320 bytes, measured): frame, place, and the message for followers."""


class Unstable:
    """Entries `first` through `last`, those through `placed` with their place in the log.

    Invariant: first - 1 ≤ placed ≤ last, and everything that is not handed out and was not there at the start is here.
    """

    __slots__ = ("_entries", "_frames", "_places", "_size", "first", "handed", "placed")

    def __init__(self, last_index: int, handed: int) -> None:
        """Begin after the log's end `last_index`, with everything through `handed` applied."""
        self.first = last_index + 1
        self.placed = last_index
        self.handed = handed
        self._frames: list[Frame] = []
        self._entries: list[LogEntry | None] = []
        self._places: list[Appended] = []
        self._size = 0

    @property
    def last(self) -> int:
        """Return the index of the newest entry, written or not."""
        return self.first + len(self._frames) - 1

    @property
    def size(self) -> int:
        """Return the memory of the entries, in bytes."""
        return self._size

    def append(self, frames: list[Frame]) -> None:
        """Add entries that are about to be written."""
        assert not frames or frames[0].index == self.last + 1
        self._frames += frames
        self._entries += [None] * len(frames)
        self._size += sum(map(_size, frames))

    def place(self, places: list[Appended]) -> None:
        """Note the places of the next entries, which have been written."""
        self._places += places
        self.placed += len(places)

    def move(self, places: list[Appended]) -> None:
        """Note new places of the newest written entries; those that are not in memory are read from there later."""
        keep = min(len(places), len(self._places))
        if keep:
            self._places[-keep:] = places[-keep:]

    def cut(self, after: int) -> None:
        """Forget the entries after `after`. Invariant: none of them was handed out."""
        assert after >= self.handed, f"entry {after + 1} was committed and cannot be cut"
        keep = max(after + 1 - self.first, 0)
        self._size -= sum(map(_size, islice(self._frames, keep, None)))
        del self._frames[keep:], self._entries[keep:], self._places[keep:]
        self.first = min(self.first, after + 1)
        self.placed = min(self.placed, after)

    def take(self, last: int) -> list[tuple[Frame, Appended]]:
        """Return the entries after `handed` through `last`, at most through the next SEAL; they count as handed out.

        Empty if the first of them is not in memory.
        """
        at = self.handed + 1 - self.first
        if at < 0:
            return []
        stop = last + 1 - self.first
        found = []
        for position in range(at, stop):
            frame = self._frames[position]
            found.append((frame, self._places[position]))
            if frame.kind is Kind.SEAL:
                break
        self.handed += len(found)
        return found

    def entries(self, first: int, last: int, max_bytes: int) -> list[LogEntry]:
        """Return entries `first` through `last` as messages hold them, at most `max_bytes` of bodies but at least one.

        Empty if the first of them is not in memory.
        """
        found: list[LogEntry] = []
        if first < self.first:
            return found
        for position in range(first - self.first, min(last, self.last) + 1 - self.first):
            frame = self._frames[position]
            max_bytes -= len(frame.body)
            if max_bytes < 0 and found:
                break
            entry = self._entries[position]
            if entry is None:
                entry = self._entries[position] = entry_of(frame)
            found.append(entry)
        return found

    def trim(self, keep_bytes: int) -> None:
        """Drop the oldest handed-out entries beyond `keep_bytes`."""
        if self._size <= keep_bytes:
            return
        drop, most = 0, self.handed + 1 - self.first
        while drop < most and self._size > keep_bytes:
            self._size -= _size(self._frames[drop])
            drop += 1
        if drop:
            del self._frames[:drop], self._entries[:drop], self._places[:drop]
            self.first += drop


def _size(frame: Frame) -> int:
    return len(frame.body) + ENTRY_BYTES


def to_seal(found: list[tuple[Frame, Appended]]) -> list[tuple[Frame, Appended]]:
    """Return the entries that are handed out together: at most through the next SEAL."""
    for count, (frame, _) in enumerate(found, 1):
        if frame.kind is Kind.SEAL:
            return found[:count]
    return found
