"""The figures of single streams over time: messages stored, and messages not in the table yet.

Belongs here: which streams have a memory of their own. Those have one that messages are stored in; if there is no room
for another one, it gets that of a stream without messages for an hour. Times in seconds.
"""

from __future__ import annotations

from typing import Any

from lakestream_console.ring import FigureRing, ring_bytes

SERIES = ("stored", "lag")
"""Messages stored by the second, and messages that are not in the table yet."""
BYTES = ring_bytes(len(SERIES))
"""Memory of one stream (39 KB)."""
ACTIVE_S = 10.0
"""A stream gets a memory if its last message is younger than this."""
IDLE_S = 3600.0
"""A stream without messages for so long gives its memory to another one."""

Key = tuple[str, str]
"""Account and name of a stream."""


class _Noted:
    __slots__ = ("last_at", "last_seq", "ring", "stored_at")

    def __init__(self, kept_s: int) -> None:
        self.ring = FigureRing(SERIES, kept_s)
        self.last_seq = 0
        self.last_at = self.stored_at = 0.0


class StreamFigures:
    """The memories of streams. `kept_s`: time for which figures are kept."""

    def __init__(self, kept_s: int) -> None:
        self._kept_s = kept_s
        self._noted: dict[Key, _Noted] = {}

    @property
    def bytes(self) -> int:
        """Return the memory of all rings."""
        return len(self._noted) * BYTES

    def wants(self, key: Key, stored_s: float, now_s: float, room: int) -> bool:
        """Return True if figures of this stream are noted now.

        Args:
            stored_s: when its last message was stored.
            room: memory for further rings, in bytes.
        """
        if key in self._noted:
            return True
        if now_s - stored_s > ACTIVE_S or (room < BYTES and not self._give_up(now_s - IDLE_S)):
            return False
        self._noted[key] = _Noted(self._kept_s)
        return True

    def note(
        self, key: Key, last_seq: int, stored_s: float, lag: int | None, now_s: float, created_s: float, messages: int
    ) -> None:
        """Note the figures of a stream that `wants` them.

        Args:
            created_s, messages: a stream that is new has stored its messages since its creation.
        """
        noted = self._noted[key]
        if not noted.last_at and now_s - created_s <= ACTIVE_S:
            noted.last_seq, noted.last_at = last_seq - messages, min(created_s, now_s - 1)
        grown, seconds = last_seq - noted.last_seq, now_s - noted.last_at
        known = noted.last_at > 0 and grown >= 0 and seconds > 0
        noted.ring.note(now_s, {"stored": grown / seconds if known else None, "lag": lag})
        noted.last_seq, noted.last_at, noted.stored_at = last_seq, now_s, stored_s

    def forget(self, now_s: float) -> None:
        """Forget the streams that were not noted at this moment: they are gone."""
        self._noted = {key: noted for key, noted in self._noted.items() if noted.last_at == now_s}

    def make_room(self, room: int, wanted: int) -> int:
        """Drop rings of streams, those without messages for the longest time first, until there is room; return it."""
        while room < wanted and self._give_up(float("inf")):
            room += BYTES
        return room

    def _give_up(self, before_s: float) -> bool:
        """Drop the ring of the stream that has been without messages for the longest time, if since before a moment."""
        oldest = min(self._noted.items(), key=lambda each: each[1].stored_at, default=None)
        if oldest is None or oldest[1].stored_at >= before_s:
            return False
        del self._noted[oldest[0]]
        return True

    def read(self, key: Key, now_s: float, range_s: int) -> tuple[int, list[int], dict[str, Any]] | None:
        """Return what `FigureRing.read` returns of a stream; None if nothing was noted of it."""
        noted = self._noted.get(key)
        return noted.ring.read(now_s, range_s) if noted is not None else None
