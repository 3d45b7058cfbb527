"""Removals of messages and their times.

Belongs here: `Departures`, the removed sequences in columns with the time of removal, its two encodings, and the search
for removals after a point of the stream; `Arrivals`, which finds the message of a batch that made each removal;
`Removals`, what is kept of removals for the open segment. A stream with time travel keeps departures for its open
segment; they go into the checkpoint and into the footer of the segment, and with the segment into the lake.

A removal has two times. `removed_seq` is the first sequence at whose storing it was over: that of the message that made
room for itself, or the next one to be stored when an operation (purge, delete, expiry) removed it. `removed_ns` is the
time of that message, or that of the operation as its proposer has written into the log. Both ascend, and neither is
read off a clock when an entry is applied, so every replica keeps the same list.
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, count
from operator import gt, sub

import msgspec

from lakestream.log.format.runs import SchemaRun, stretches

_LEVEL = 1  # of zlib: differences of ascending numbers compress well at any


class Point(msgspec.Struct, frozen=True):
    """A point in a stream's log: right after sequence `seq` was stored; or, if `seq` is 0, after everything that
    happened before `before_ns` (ns since the epoch)."""

    seq: int = 0
    before_ns: int = 0


class Displaced(msgspec.Struct, frozen=True, gc=False):
    """Removed messages in the order of their removal, each with the sequence and the time (ns) of the message that
    removed it."""

    seqs: Sequence[int]
    removed_seqs: Sequence[int]
    removed_ns: Sequence[int]


class Arrivals(msgspec.Struct, frozen=True, gc=False):
    """Messages that were stored together, with sequences from `first_seq` on; `times` returns their times in ns."""

    first_seq: int
    subjects: Sequence[bytes]
    times: Callable[[], Sequence[int]]

    def displaced(self, gone: Sequence[tuple[int, bytes]]) -> Displaced:
        """Return the removals (sequence, subject), ascending, as if the messages had been stored one at a time.

        A limit on the messages of a subject alone has removed them. Once it is reached, each message removes the oldest
        one of its subject: so the last removals of a subject belong to its last messages here, in the same order.
        """
        first = self.first_seq
        newest = dict(zip(self.subjects, count(first)))
        if len(newest) == len(self.subjects):
            removers = [newest[subject] for _, subject in gone]
        else:
            lines: dict[bytes, list[int]] = {}
            for seq, subject in enumerate(self.subjects, first):
                lines.setdefault(subject, []).append(seq)
            removers = []
            for _, subject in reversed(gone):
                line = lines[subject]
                # A first message removes all that there were too many of.
                removers.append(line.pop() if len(line) > 1 else line[0])
            removers.reverse()
        seqs = [seq for seq, _ in gone]
        if any(map(gt, removers, removers[1:])):
            pairs = sorted(zip(removers, seqs, strict=True))
            removers, seqs = [remover for remover, _ in pairs], [seq for _, seq in pairs]
        times = self.times()
        return Displaced(seqs, removers, [times[seq - first] for seq in removers])


class Departures:
    """Runs of sequences in the order in which they were removed. Only messages that were there are in a run."""

    __slots__ = ("_columns", "whole")

    def __init__(self, whole: bool = True, columns: Sequence[array[int]] = ()) -> None:
        self.whole = whole
        """True if it has all removals since the segment was begun."""
        self._columns = list(columns) or [array("q") for _ in range(4)]

    def __len__(self) -> int:
        return len(self._columns[0])

    @property
    def firsts(self) -> array[int]:
        """Return the first sequence of each run."""
        return self._columns[0]

    @property
    def lasts(self) -> array[int]:
        """Return the last sequence of each run."""
        return self._columns[1]

    @property
    def removed_seqs(self) -> array[int]:
        """Return, for each run, the first sequence at whose storing its removal was complete."""
        return self._columns[2]

    @property
    def removed_ns(self) -> array[int]:
        """Return, for each run, the time of its removal in ns."""
        return self._columns[3]

    def note(self, gone: Sequence[int], removed_seq: int, removed_ns: int) -> None:
        """Add the removal of messages (ascending). Hot: limits remove one message with each that is stored."""
        firsts, lasts, seqs, times = self._columns
        if times and removed_ns < times[-1]:
            removed_ns = times[-1]  # times ascend even if a clock was set back
        unbroken = gone[-1] - gone[0] + 1 == len(gone)
        for first, last in ((gone[0], gone[-1]),) if unbroken else stretches(gone):
            if lasts and first == lasts[-1] + 1 and removed_seq == seqs[-1] and removed_ns == times[-1]:
                lasts[-1] = last
                continue
            firsts.append(first)
            lasts.append(last)
            seqs.append(removed_seq)
            times.append(removed_ns)

    def note_each(self, gone: Displaced) -> None:
        """Add removals of single messages. Hot: as `note` for each of them."""
        firsts, lasts, seqs, times = self._columns
        begins = self.moment()
        removed_ns: Sequence[int] = gone.removed_ns
        if removed_ns[0] < begins or any(map(gt, removed_ns, removed_ns[1:])):
            removed_ns = list(accumulate(removed_ns, max, initial=begins))[1:]
        if len(set(gone.removed_seqs)) < len(gone.removed_seqs):  # one message removed several, perhaps a run
            for seq, removed_seq, at_ns in zip(gone.seqs, gone.removed_seqs, removed_ns, strict=True):
                self.note((seq,), removed_seq, at_ns)
            return
        firsts.extend(gone.seqs)
        lasts.extend(gone.seqs)
        seqs.extend(gone.removed_seqs)
        times.extend(removed_ns)

    def extend(self, later: Departures) -> None:
        """Add what followed."""
        begins = self.moment()
        for column, more in zip(self._columns, later._columns, strict=True):
            column.extend(more)
        times = self.removed_ns
        at = len(times) - len(later)
        while at < len(times) and times[at] < begins:  # as in `note`
            times[at] = begins
            at += 1
        self.whole = self.whole and later.whole

    def moment(self) -> int:
        """Return the time of the last removal; 0 if there is none."""
        return self.removed_ns[-1] if len(self) else 0

    def split(self, point: Point) -> int:
        """Return the number of runs that had been removed at a point; the later ones were still there."""
        if point.seq:
            return bisect_right(self.removed_seqs, point.seq)
        return bisect_left(self.removed_ns, point.before_ns)

    def behind(self, point: Point) -> Departures:
        """Return a copy of the runs that were removed after a point."""
        at = self.split(point)
        return Departures(self.whole, [column[at:] for column in self._columns])

    def runs(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield (first, last) of runs, in the order of removal."""
        return zip(self.firsts[start:stop], self.lasts[start:stop], strict=True)

    def to_bytes(self) -> bytes:
        """Encode in machine order: cheap, for checkpoints."""
        return bytes([self.whole]) + b"".join(column.tobytes() for column in self._columns)

    @classmethod
    def from_bytes(cls, data: bytes) -> Departures:
        """Decode what `to_bytes` returned."""
        return cls(bool(data[0]), _columns(data[1:]))

    def pack(self) -> bytes:
        """Encode compactly, for footers; it takes a few tenths of a µs for each run."""
        parts = []
        for column in self._columns:
            parts.append(array("q", map(sub, column, array("q", [0]) + column[:-1])).tobytes())
        return zlib.compress(b"".join(parts), _LEVEL)

    @classmethod
    def unpack(cls, data: bytes) -> Departures:
        """Decode what `pack` returned for a complete list."""
        return cls(True, [array("q", accumulate(column)) for column in _columns(zlib.decompress(data))])


def moment_of(packed: bytes) -> int:
    """Return `moment` of a packed list."""
    return sum(_columns(zlib.decompress(packed))[3])


def _columns(data: bytes) -> list[array[int]]:
    count = len(data) // 4
    found = [array("q") for _ in range(4)]
    for number, column in enumerate(found):
        column.frombytes(data[number * count : (number + 1) * count])
    return found


class Removals:
    """Removals while the open segment, which begins with entry `index`, was open.

    They go into the checkpoint, and into the segment's footer when it is sealed: from there the lake learns which rows
    to delete. The schemas of the messages in it go the same way.
    """

    def __init__(self) -> None:
        self.index = 0
        self.removed: list[int] = []
        """Removed sequences, without those that were the stream's first; see Footer.removed."""
        self.erased = array("Q")
        """Runs (first, last, first, last, …) of those that a client asked to be removed; see Footer.erased."""
        self.shredded: list[int] = []
        """Sequences that were securely deleted; see Footer.shredded."""
        self.any = False
        """True if anything was removed, listed or not."""
        self.departures: Departures | None = None
        """All removals with their times, if the stream keeps them."""
        self.schemas: tuple[SchemaRun, ...] | None = None
        """Schemas of the messages in the segment; see Footer.schemas. None: not known since its beginning."""

    def enter(self, index: int) -> None:
        """Begin anew when the log has begun a new segment.

        The old lists are left as they are: the seal that asked for them may be writing them in a thread.
        """
        if index != self.index:
            self.index = index
            self.removed, self.erased, self.shredded, self.any = [], array("Q"), [], False
            if self.departures is not None:
                self.departures = Departures()
            if self.schemas is not None:
                self.schemas = tuple(run for run in self.schemas[-1:] if run.rules)
