"""What the log alone knows of a stream's past.

Belongs here: whether the segments that are still in the log hold everything that happened behind a point of it, which
messages were there at that point and have been removed since, and reading them. Removed messages stay in their
segments until these leave; what has left is the lake's to tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from lakestream.log.departures import Departures, Point
from lakestream.log.record import Record
from lakestream.log.runs import stretches
from lakestream.log.segment import Segment
from lakestream.log.segment_log import SegmentLog
from lakestream.log.segment_rows import SegmentRows

if TYPE_CHECKING:
    from lakestream.log.store import Store

PIECE = 2_000
"""Most sequences of one run."""


class LogPast:
    """The log of one store, looked at in one turn of the event loop."""

    def __init__(self, store: Store) -> None:
        assert isinstance(store.log, SegmentLog), "only files have a past"
        assert isinstance(store._rows, SegmentRows)
        self._store, self._rows = store, store._rows
        self.segments: list[Segment] = store.log.segments

    @property
    def first_index(self) -> int:
        """The first entry that is still in the log."""
        return self.segments[0].header.first_index

    def last_seq(self, point: Point) -> int | None:
        """The last sequence stored by a point; None when that was before the log's first segment. Raises CorruptLog."""
        store, begins = self._store, self.segments[0].header.first_seq
        seq = point.seq
        if not seq:
            after = self._rows.first_at(point.before_ns) if point.before_ns <= store.last_time else 0
            seq = after - 1 if after else store.last_seq
        if seq < begins and self.first_index > 1:
            return None
        return seq

    def holds(self, seq: int) -> bool:
        """Whether the log knows each removal since the entry that stored `seq`, which is in it."""
        at = 0
        for number, segment in enumerate(self.segments):
            if segment.header.first_seq <= seq:
                at = number
        return self._known(self.segments[at:])

    def holds_from(self, index: int) -> bool:
        """Whether the log has every entry from `index` on and knows each removal since. Not, if some have left."""
        return self.first_index <= index and self._known([each for each in self.segments if each.last_index >= index])

    def _known(self, segments: Sequence[Segment]) -> bool:
        here = self._store.departures
        known = all(each.footer is None or each.footer.departures is not None for each in segments)
        return known and here is not None and here.whole

    def returning(self, point: Point, through: int) -> Iterator[Sequence[int]]:
        """The sequences ≤ `through` of messages that were removed behind a point, in pieces.

        What somebody asked to be shredded does not return.
        """
        shredded = self._shredded()
        for departures in self._departures():
            for first, last in departures.runs(departures.split(point)):
                for start in range(first, min(last, through) + 1, PIECE):
                    part = range(start, min(start + PIECE - 1, last, through) + 1)
                    yield part if not shredded else [seq for seq in part if seq not in shredded]

    def _departures(self) -> Iterator[Departures]:
        for segment in self.segments:
            if segment.footer is not None and segment.footer.departures is not None:
                yield Departures.unpack(segment.footer.departures)
        if self._store.departures is not None:
            yield self._store.departures

    def _shredded(self) -> frozenset[int]:
        runs = [run for each in self.segments if each.footer is not None for run in each.footer.shredded]
        runs += list(stretches(sorted(self._store.shredded_in_segment())))
        return frozenset(seq for first, last in runs for seq in range(first, last + 1))

    def subjects(self, seqs: Sequence[int]) -> list[bytes]:
        """The subjects of messages, live or not, some of which may have left the log. Raises CorruptLog."""
        return self._rows.subjects(seqs)

    def read(self, seqs: Sequence[int], max_bytes: int) -> tuple[list[Record], int]:
        """The records of the sequences that are in the log, live or not, from the first one on that is; and how many of
        `seqs` (ascending) come before it. At least one is given, if it is there. Raises CorruptLog."""
        floor = self._rows.local_floor
        local = [seq for seq in seqs if seq >= floor]
        found = self._rows.read_seqs(local, max_bytes) if local else []
        return found, len(seqs) - len(local)
