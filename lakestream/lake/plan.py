"""What one commit to a stream's table has to do.

Belongs here: the decision, made of the table's position and the footers of staged segments, without touching Spark:
which segments, from which log index on, which messages are dead, and whether the table has to lose rows. Compaction is
a function of these, so whoever repeats it after a crash does the same or nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from lakestream.lake.errors import BadSegment, SegmentGap
from lakestream.lake.segments import Dead
from lakestream.lake.staging import StagedSegment
from lakestream.lake.timetravel import Progress
from lakestream.log.segment import Footer

COMMIT_BYTES = 256 * 1024 * 1024
"""Segments of one commit together, unless a single one is larger."""
CONDITION_TERMS = 5_000
"""Sequences and ranges named in one DELETE; more make several."""


class Part(msgspec.Struct, frozen=True):
    """One segment's share of a commit: its entries with an index above `after`."""

    path: str
    after: int
    last_index: int
    size: int


class Batch(msgspec.Struct, frozen=True):
    """One commit: its parts, where it ends, what is dead by then, and how many subjects the stream has then."""

    parts: list[Part]
    progress: Progress
    dead: Dead
    subjects: int
    size: int


def choose(table: str, position: int, staged: Sequence[StagedSegment], limit: int = COMMIT_BYTES) -> list[Part]:
    """The segments of the next commit: contiguous from `position` on, as many as `limit` bytes allow.

    Args:
        table: the table's path, for the error.
        position: the log index through which the table holds the stream; 0 when it holds nothing.
        staged: the stream's staged segments in log order; some may be in the table already.

    Raises:
        SegmentGap: an index between the position and the first segment, or between two, is missing.
    """
    parts: list[Part] = []
    size = 0
    for segment in staged:
        if segment.last_index <= position:
            continue
        if segment.first_index > position + 1:
            raise SegmentGap(table, position, segment.first_index)
        if parts and size + segment.size > limit:
            break
        parts.append(Part(segment.path, position, segment.last_index, segment.size))
        size += segment.size
        position = segment.last_index
    return parts


def gather(uid: str, parts: Sequence[Part], footers: Sequence[Footer], before: Progress | None) -> Batch:
    """Put the footers of a commit's segments together. `before` is what the table's last commit said.

    Raises:
        BadSegment: a segment belongs to another stream, or is not the one that its name promises.
    """
    last_seq, last_time_ns = (before.last_seq, before.last_time_ns) if before else (0, 0)
    floor = before.floor if before else 0
    removed: set[int] = set()
    for part, footer in zip(parts, footers, strict=True):
        if footer.uid != uid:
            raise BadSegment(part.path, part.size, f"it belongs to stream {footer.stream} with uid {footer.uid}")
        if footer.last_index != part.last_index:
            raise BadSegment(part.path, part.size, f"it ends at index {footer.last_index}, not {part.last_index}")
        last_seq = max(last_seq, footer.last_seq)
        last_time_ns = max(last_time_ns, footer.last_time)
        floor = max(floor, footer.floor)
        removed.update(footer.removed)
    progress = Progress(
        uid=uid, last_index=parts[-1].last_index, last_seq=last_seq, last_time_ns=last_time_ns, floor=floor
    )
    dead = Dead(floor, sorted(seq for seq in removed if seq >= floor))
    return Batch(list(parts), progress, dead, footers[-1].subjects, sum(part.size for part in parts))


def deletions(position: int, before: Progress | None, dead: Dead) -> list[str]:
    """SQL conditions for the rows that the table has to lose before the commit; none when no row of it can be dead.

    Args:
        position: the log index through which the table holds the stream; 0 when it holds nothing.
        before: what its last commit said; None when that is not known, so that everything has to be named.
        dead: what is dead by the end of the commit.
    """
    if position == 0:
        return []
    removed: Sequence[int] = dead.removed
    floor_moved = dead.floor > 1
    if before is not None:
        removed = [seq for seq in removed if seq <= before.last_seq]
        floor_moved = min(dead.floor - 1, before.last_seq) >= max(before.floor, 1)
    terms = [f"seq < {dead.floor}"] if floor_moved else []
    singles: list[int] = []
    for first, last in runs(removed):
        if last - first < 2:
            singles.extend(range(first, last + 1))
        else:
            terms.append(f"seq BETWEEN {first} AND {last}")
    conditions = [" OR ".join(terms[at : at + CONDITION_TERMS]) for at in range(0, len(terms), CONDITION_TERMS)]
    for at in range(0, len(singles), CONDITION_TERMS):
        some = singles[at : at + CONDITION_TERMS]
        # The range lets Delta skip files, which it does not by a long list.
        listed = ", ".join(map(str, some))
        conditions.append(f"seq BETWEEN {some[0]} AND {some[-1]} AND seq IN ({listed})")
    return conditions


def runs(ascending: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The (first, last) of each stretch of consecutive numbers."""
    first = last = 0
    for number in ascending:
        if first and number == last + 1:
            last = number
            continue
        if first:
            yield first, last
        first = last = number
    if first:
        yield first, last
