"""How long staged segments stay after the table holds them.

Belongs here: the choice of which ones go now. A reader that planned its view a moment before the compactor's commit
still reads them, so they stay for a while, but never more than so many bytes of one stream.
"""

from __future__ import annotations

from collections.abc import Sequence

from lakestream.lake.files.staging import StagedSegment

MOST_FILES = 1_000
"""Segments of one stream that stay for this reason, the newest first: each is looked at again and again."""


class Grace:
    """Of one stream's staged segments, which are done with. Not for use by two threads at once.

    Args:
        time_ns: how long a segment stays after the table was first seen to hold it.
        most_bytes: how much of the stream stays for that reason, the newest first.
    """

    def __init__(self, time_ns: int, most_bytes: int) -> None:
        self._time_ns = time_ns
        self._most_bytes = most_bytes
        self._held_since: dict[str, int] = {}

    def due(self, staged: Sequence[StagedSegment], position: int, now_ns: int) -> list[str]:
        """Paths of the segments to delete.

        Args:
            staged: what is staged, in log order.
            position: the log index through which the table holds the stream.
            now_ns: a clock that never goes back.
        """
        held = [segment for segment in staged if segment.last_index <= position]
        since = {segment.path: self._held_since.get(segment.path, now_ns) for segment in held}
        kept_bytes = 0
        gone = []
        for number, segment in enumerate(reversed(held)):
            kept_bytes += segment.size
            too_many = number >= MOST_FILES or kept_bytes > self._most_bytes
            if too_many or now_ns - since[segment.path] >= self._time_ns:
                gone.append(segment.path)
        for path in gone:
            del since[path]
        self._held_since = since
        return gone
