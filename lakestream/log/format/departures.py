"""When messages left a stream.

Belongs here: `Departures`, a list in columns of which sequences were removed and when, its two encodings, and which of
them lie after a point of the stream. A stream with time travel keeps one for its open segment; it goes into the
checkpoint and into the footer of the segment, and with the segment into the lake.

A removal has two times. `removed_seq` is the first sequence at whose storing it was over: that of the message that made
room for itself, or the next one to be stored when an operation (purge, delete, expiry) removed it. `removed_ns` is the
time of that message, or that of the operation as its proposer has written into the log. Both ascend, and neither is
read off a clock when an entry is applied, so every replica keeps the same list.
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import sub

import msgspec

from lakestream.log.format.runs import stretches

_LEVEL = 1  # of zlib: differences of ascending numbers compress well at any


class Point(msgspec.Struct, frozen=True):
    """A place in a stream's log: right after sequence `seq` was stored; or, when `seq` is 0, behind everything that
    happened before `before_ns` (ns since the epoch)."""

    seq: int = 0
    before_ns: int = 0


class Departures:
    """Runs of sequences in the order in which they were removed. Only messages that were there are in a run."""

    __slots__ = ("_columns", "whole")

    def __init__(self, whole: bool = True, columns: Sequence[array[int]] = ()) -> None:
        self.whole = whole
        """Whether it has all removals since the segment was begun."""
        self._columns = list(columns) or [array("q") for _ in range(4)]

    def __len__(self) -> int:
        return len(self._columns[0])

    @property
    def firsts(self) -> array[int]:
        """The first sequence of each run."""
        return self._columns[0]

    @property
    def lasts(self) -> array[int]:
        """The last one, which belongs to it."""
        return self._columns[1]

    @property
    def removed_seqs(self) -> array[int]:
        """See the module."""
        return self._columns[2]

    @property
    def removed_ns(self) -> array[int]:
        """See the module."""
        return self._columns[3]

    def note(self, gone: Sequence[int], removed_seq: int, removed_ns: int) -> None:
        """Messages with these sequences (ascending) were removed. Hot: limits remove one with each that is stored."""
        firsts, lasts, seqs, times = self._columns
        if times and removed_ns < times[-1]:
            removed_ns = times[-1]  # a clock that was set back does not take a removal before the one it follows
        unbroken = gone[-1] - gone[0] + 1 == len(gone)
        for first, last in ((gone[0], gone[-1]),) if unbroken else stretches(gone):
            if lasts and first == lasts[-1] + 1 and removed_seq == seqs[-1] and removed_ns == times[-1]:
                lasts[-1] = last
                continue
            firsts.append(first)
            lasts.append(last)
            seqs.append(removed_seq)
            times.append(removed_ns)

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
        """The time of the last removal; 0 when there is none."""
        return self.removed_ns[-1] if len(self) else 0

    def split(self, point: Point) -> int:
        """How many of the runs had been removed at a point; those behind them were still there."""
        if point.seq:
            return bisect_right(self.removed_seqs, point.seq)
        return bisect_left(self.removed_ns, point.before_ns)

    def behind(self, point: Point) -> Departures:
        """Those that had yet to be removed at a point, as a list of its own."""
        at = self.split(point)
        return Departures(self.whole, [column[at:] for column in self._columns])

    def runs(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, int]]:
        """(first, last) of some runs, in the order of removal."""
        return zip(self.firsts[start:stop], self.lasts[start:stop], strict=True)

    def to_bytes(self) -> bytes:
        """As the machine holds it: cheap, for checkpoints."""
        return bytes([self.whole]) + b"".join(column.tobytes() for column in self._columns)

    @classmethod
    def from_bytes(cls, data: bytes) -> Departures:
        """The inverse of `to_bytes`."""
        return cls(bool(data[0]), _columns(data[1:]))

    def pack(self) -> bytes:
        """Short, for footers; a few tenths of a µs for each run."""
        parts = []
        for column in self._columns:
            parts.append(array("q", map(sub, column, array("q", [0]) + column[:-1])).tobytes())
        return zlib.compress(b"".join(parts), _LEVEL)

    @classmethod
    def unpack(cls, data: bytes) -> Departures:
        """The inverse of `pack`, of a list that is whole."""
        return cls(True, [array("q", accumulate(column)) for column in _columns(zlib.decompress(data))])


def moment_of(packed: bytes) -> int:
    """`moment` of a packed list."""
    return sum(_columns(zlib.decompress(packed))[3])


def _columns(data: bytes) -> list[array[int]]:
    count = len(data) // 4
    found = [array("q") for _ in range(4)]
    for number, column in enumerate(found):
        column.frombytes(data[number * count : (number + 1) * count])
    return found
