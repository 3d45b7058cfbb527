"""A stream's past, as far as its log holds it.

Belongs here: the test whether the segments in the log hold everything that happened after a point, the messages that
existed at that point and were removed since, and reading them. Removed messages stay in their segments until these
leave the log; then the lake has them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from lakestream.log.format.departures import Departures, Point, moment_of
from lakestream.log.format.record import Record
from lakestream.log.format.runs import stretches
from lakestream.log.format.segment import Segment
from lakestream.log.store.segment_store import SegmentStore
from lakestream.log.store.store import Store

PIECE = 1_000
"""About this many sequences form one piece."""


class LogPast:
    """The log of one store in one turn of the event loop."""

    def __init__(self, store: Store) -> None:
        assert isinstance(store, SegmentStore), "only files have a past"
        self._store, self._rows = store, store._rows
        self.segments: list[Segment] = store.log.segments

    @property
    def first_index(self) -> int:
        """Return the index of the first entry that is still in the log."""
        return self.segments[0].header.first_index

    def last_seq(self, point: Point) -> int | None:
        """Return the last sequence stored by a point; None if that was before the log's first segment.

        Raise CorruptLog.
        """
        store, begins = self._store, self.segments[0].header.first_seq
        seq = point.seq
        if not seq:
            after = self._rows.first_at(point.before_ns) if point.before_ns <= store.last_time else 0
            seq = after - 1 if after else store.last_seq
        if seq < begins and self.first_index > 1:
            return None
        return seq

    def by_now(self, point: Point) -> Point:
        """Return the point, or the present where it has yet to come: what happens from here on is behind it."""
        latest = self._store.last_time
        if point.seq or point.before_ns <= latest:
            return point
        here = self._store.departures
        moments = [0 if here is None else here.moment()]
        for segment in reversed(self.segments):
            if moments[-1]:
                break
            if segment.footer is not None and segment.footer.departures is not None:
                moments.append(moment_of(segment.footer.departures))
        return Point(before_ns=min(point.before_ns, max(latest, moments[-1]) + 1))

    def holds(self, seq: int) -> bool:
        """Return True if the log has each removal since the entry that stored `seq`, which is in it."""
        at = 0
        for number, segment in enumerate(self.segments):
            if segment.header.first_seq <= seq:
                at = number
        return self._known(self.segments[at:])

    def holds_from(self, index: int) -> bool:
        """Return True if the log has every entry from `index` on and each removal since."""
        return self.first_index <= index and self._known([each for each in self.segments if each.last_index >= index])

    def _known(self, segments: Sequence[Segment]) -> bool:
        here = self._store.departures
        known = all(each.footer is None or each.footer.departures is not None for each in segments)
        return known and here is not None and here.whole

    def returning(self, point: Point, through: int) -> Callable[[], list[Sequence[int]]]:
        """Return a function that finds the sequences ≤ `through` of messages removed after a point, ascending in
        pieces.

        It may be called in a thread, so that a million of them do not block the event loop. Securely deleted messages
        are not found.
        """
        here, index = self._store.departures, self._store.departures_index
        # Right after a seal it is the sealed segment's own list: runs that occur twice would not ascend.
        packed = [
            each.footer.departures
            for each in self.segments
            if each.footer is not None and each.header.first_index != index
        ]
        latest = None if here is None else here.behind(point)  # a copy: the list itself grows
        shredded = frozenset(seq for first, last in self.shredded() for seq in range(first, last + 1))

        def find() -> list[Sequence[int]]:
            lists = [Departures.unpack(each).behind(point) for each in packed if each is not None]
            runs = [run for each in (*lists, latest) if each is not None for run in each.runs() if run[0] <= through]
            return list(_pieces(sorted(runs), through, shredded))

        return find

    def shredded(self) -> list[tuple[int, int]]:
        """Return runs of the securely deleted sequences in the log: they are part of no past."""
        runs = [run for each in self.segments if each.footer is not None for run in each.footer.shredded]
        return runs + list(stretches(sorted(self._store.removals().shredded)))

    def subjects(self, seqs: Sequence[int]) -> list[bytes]:
        """Return the subjects of messages, live or not, some of which may have left the log. Raise CorruptLog."""
        return self._rows.subjects(seqs)

    def read(self, seqs: Sequence[int], max_bytes: int) -> tuple[list[Record], int]:
        """Return the records of the sequences that are in the log, live or not, from the first one on that is; and how
        many of `seqs` (ascending) come before it. At least one is given, if it is there. Raise CorruptLog."""
        floor = self._rows.local_floor
        local = [seq for seq in seqs if seq >= floor]
        pieces = self._rows.read_seqs(local, max_bytes) if local else []
        return list(chain.from_iterable(pieces)), len(seqs) - len(local)


def _pieces(runs: Sequence[tuple[int, int]], through: int, shredded: frozenset[int]) -> Iterator[Sequence[int]]:
    """Yield the sequences of ascending runs, about `PIECE` at a time."""
    piece = array("q")
    for first, last in runs:
        for start in range(first, min(last, through) + 1, PIECE):
            part = range(start, min(start + PIECE - 1, last, through) + 1)
            piece.extend(part if not shredded else (seq for seq in part if seq not in shredded))
            if len(piece) >= PIECE:
                yield piece
                piece = array("q")
    if piece:
        yield piece
