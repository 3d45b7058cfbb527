"""Runs of sequences.

Belongs here: `Runs`, the map from stream sequences to rows 0, 1, 2, … of segment tables and outlines, and runs as pairs
(first, last), which `stretches` finds in a list of numbers. Streams number almost always without gaps, so the map is
one addition; after a gap a new run begins. `SchemaRun`: messages whose payloads have the same schemas.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import msgspec

MAX_GAP = 1024
"""Maximum gap of missing sequences that keep empty rows; a longer gap begins a new run, so that no table is huge."""


class SchemaRun(msgspec.Struct, frozen=True, array_like=True):
    """The schemas of messages from sequence `since` on: the stream's `lakestream.schema` ("": none), and the latest
    version of schemas, by name, that publishes are checked by. Schemas that are not in `latest` go by time."""

    since: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    rules: str
    latest: dict[str, int] = {}


class Runs:
    """Ascending runs of sequences laid back to back."""

    __slots__ = ("firsts", "next_seq", "rows", "starts")

    def __init__(self) -> None:
        self.firsts: list[int] = []  # the first sequence of each run
        self.starts: list[int] = []  # its first row
        self.rows = 0
        self.next_seq = 0  # the sequence that the next row would have

    @classmethod
    def of(cls, pairs: list[tuple[int, int]]) -> Runs:
        """Return runs from the pairs that `pairs` gave."""
        made = cls()
        for first, rows in pairs:
            made.firsts.append(first)
            made.starts.append(made.rows)
            made.rows += rows
            made.next_seq = first + rows
        return made

    def extend(self, first_seq: int, count: int) -> int:
        """Add sequences `first_seq` through `first_seq + count - 1`; return the number of empty rows before them."""
        gap = first_seq - self.next_seq
        assert gap >= 0 or not self.firsts, f"sequence {first_seq} was placed before {self.next_seq}"
        if not self.firsts or gap > MAX_GAP:
            self.firsts.append(first_seq)
            self.starts.append(self.rows)
            gap = 0
        self.rows += gap + count
        self.next_seq = first_seq + count
        return gap

    def rows_of(self, seqs: Sequence[int]) -> Sequence[int]:
        """Return the rows of sequences, ascending; a range if both lie in one run without gaps. Raise LookupError with
        the first one of a run where one has none."""
        found: list[int] = []
        at, end = 0, len(seqs)
        while at < end:
            position = bisect_right(self.firsts, seqs[at]) - 1
            stop, rows = end, self.rows
            if position + 1 < len(self.firsts):
                stop, rows = bisect_left(seqs, self.firsts[position + 1], at), self.starts[position + 1]
            if position < 0 or seqs[stop - 1] - self.firsts[position] >= rows - self.starts[position]:
                raise LookupError(seqs[at])
            shift = self.starts[position] - self.firsts[position]
            if isinstance(seqs, range) and stop - at == end:
                return range(seqs[0] + shift, seqs[-1] + shift + 1)
            if isinstance(seqs, range):
                found += range(seqs[at] + shift, seqs[stop - 1] + shift + 1)
            else:
                found += [seq + shift for seq in seqs[at:stop]]
            at = stop
        return found

    def row(self, seq: int) -> int:
        """Return the row of `seq`; -1 if it has none."""
        firsts = self.firsts
        if len(firsts) == 1:
            row = seq - firsts[0]
            return row if 0 <= row < self.rows else -1
        position = bisect_right(firsts, seq) - 1
        if position < 0:
            return -1
        row = self.starts[position] + seq - firsts[position]
        end = self.starts[position + 1] if position + 1 < len(firsts) else self.rows
        return row if row < end else -1

    def seq(self, row: int) -> int:
        """Return the sequence of `row`."""
        position = bisect_right(self.starts, row) - 1
        return self.firsts[position] + row - self.starts[position]

    def pairs(self) -> list[tuple[int, int]]:
        """Return (first sequence, rows) of each run."""
        ends = [*self.starts[1:], self.rows] if self.starts else []
        return [(first, end - start) for first, start, end in zip(self.firsts, self.starts, ends, strict=True)]


def note_runs(runs: array[int], seqs: Sequence[int]) -> None:
    """Append ascending numbers to an array of first, last, first, last, …: one pair for each run without gaps."""
    first, last = seqs[0], seqs[-1]
    if last - first + 1 == len(seqs):
        if runs and runs[-1] + 1 == first:
            runs[-1] = last
        else:
            runs.extend((first, last))
        return
    pairs = array("Q", bytes(16 * len(seqs)))  # there may be a million; the writer joins them
    pairs[::2] = pairs[1::2] = array("Q", seqs)
    runs.extend(pairs)


def joined(runs: array[int]) -> list[tuple[int, int]]:
    """Return the runs in order, with adjacent ones joined."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(zip(runs[::2], runs[1::2], strict=True)):
        if found and found[-1][1] + 1 == first:
            found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return found


def stretches(ascending: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the (first, last) of each stretch of consecutive numbers."""
    first = last = -1
    for number in ascending:
        if number == last + 1 and first >= 0:
            last = number
            continue
        if first >= 0:
            yield first, last
        first = last = number
    if first >= 0:
        yield first, last
