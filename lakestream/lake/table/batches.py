"""Changes that staged segments bring to a stream's table.

Belongs here: the content of the next commit, as a function of the table's position and the footers of staged segments,
without Spark: segments, log indexes, removed messages, and the rows to delete or mark. So a repetition after a crash
does the same or nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from lakestream.lake.errors import BadSegment, SegmentGap
from lakestream.lake.staging.staging import StagedSegment
from lakestream.lake.table import departures as departure_files
from lakestream.lake.table.departures import DeletedMessages
from lakestream.lake.table.policy import StreamPolicy, of_config
from lakestream.lake.table.progress import TableProgress
from lakestream.lake.table.schema import REMOVED_COLUMN
from lakestream.log.format.departures import Departures
from lakestream.log.format.runs import SchemaRun, stretches
from lakestream.log.format.segment import Footer

COMMIT_BYTES = 256 * 1024 * 1024
"""Maximum size of the segments of one commit together, unless a single one is larger."""
CONDITION_TERMS = 5_000
"""Maximum number of sequences listed in one DELETE or UPDATE."""
CONDITION_RANGES = 50
"""Maximum number of ranges in one condition. Spark compiles each of them: some hundreds take minutes, some thousands
the whole heap, while a list of any length costs next to nothing."""
CONDITION_TEXT = 100_000
"""Maximum number of characters of UPDATEs that are merged into one."""


class Removal(msgspec.Struct, frozen=True):
    """Messages that the stream no longer had at `at_ns`: all below `floor`, and `removed` (ascending sequences).

    `floor_before` is that of the removal before.
    """

    at_ns: int
    floor: int
    removed: Sequence[int] = ()
    floor_before: int = 0


class Part(msgspec.Struct, frozen=True):
    """A segment's share of a commit: its entries with an index above `after`."""

    path: str
    after: int
    last_index: int
    size: int


class CommitBatch(msgspec.Struct, frozen=True):
    """Content of one commit: parts, progress at its end, number of subjects, upper bounds of rows and bytes, and the
    policy.

    `dead`: messages that must not be in the table afterwards. `removals`: None except in an archive, where it tells
    which messages the stream no longer has. `shredded`: runs of the dead whose bytes must not stay in any file (secure
    delete). `departures`: all removals, None without time travel; with it every row is written before the dead are
    deleted. `schemas`: runs of messages with the same schemas; () without any.
    """

    parts: list[Part]
    progress: TableProgress
    dead: DeletedMessages
    subjects: int
    size: int
    rows: int = 0
    policy: StreamPolicy = StreamPolicy()
    removals: list[Removal] | None = None
    shredded: list[tuple[int, int]] = []
    departures: Departures | None = None
    schemas: tuple[SchemaRun, ...] = ()

    @property
    def unwritten(self) -> DeletedMessages:
        """Return the messages that are not written at all."""
        return self.dead if self.departures is None else DeletedMessages(runs=self.shredded)


class SeqRows(msgspec.Struct, frozen=True):
    """Rows of a table by sequence: an SQL condition of bounded length, and the same as runs (first, last)."""

    sql: str
    runs: list[tuple[int, int]]


class Update(msgspec.Struct, frozen=True):
    """An UPDATE of the table: `column` = `value` where `condition`, as SQL."""

    condition: str
    value: str
    column: str = REMOVED_COLUMN


def choose(table: str, position: int, staged: Sequence[StagedSegment], limit: int = COMMIT_BYTES) -> list[Part]:
    """Return the segments of the next commit: contiguous from `position` on, as many as `limit` bytes allow.

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


def fitting(footers: Sequence[Footer], limit: int = COMMIT_BYTES) -> int:
    """Return the number of segments that stay within `limit` bytes of messages, at least one.

    Compressed files are shorter than their content.
    """
    size = 0
    for count, footer in enumerate(footers):
        size += footer.bytes
        if count and size > limit:
            return count
    return len(footers)


def gather(uid: str, parts: Sequence[Part], footers: Sequence[Footer], before: TableProgress | None) -> CommitBatch:
    """Combine the footers of a commit's segments. `before` is the progress of the table's last commit.

    Raises:
        BadSegment: a segment belongs to another stream, or does not match its name.
        BadPolicy: the stream's metadata is invalid.
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
    progress = TableProgress(
        uid=uid,
        last_index=parts[-1].last_index,
        last_seq=last_seq,
        last_time_ns=last_time_ns,
        floor=floor,
        moment_ns=before.moment_ns if before else 0,
        undone=before.undone if before else [],
    )
    # The newest segment's configuration, by the order of log entries and not of files.
    policy = of_config(footers[-1].config)
    removals = None
    dead = DeletedMessages(floor, sorted(seq for seq in removed if seq >= floor))
    if policy.archive:
        dead = DeletedMessages(runs=sorted({(first, last) for footer in footers for first, last in footer.erased}))
        removals = list(_removals(footers, before))
    size = sum(max(part.size, footer.bytes) for part, footer in zip(parts, footers, strict=True))
    rows = sum(footer.count for footer in footers)
    shredded = sorted({run for footer in footers for run in footer.shredded})
    departures = None
    if policy.time_travel_ns is not None and not policy.archive:
        departures = departure_files.of_footers(footers)
    runs = tuple(_schema_runs(footers))
    schemas = runs if any(run.rules for run in runs) else ()
    batch = CommitBatch(
        list(parts), progress, dead, footers[-1].subjects, size, rows, policy, removals, shredded, departures, schemas
    )
    return batch if departures is None else _with_past(batch, floor_before=before.floor if before else 0)


def _schema_runs(footers: Sequence[Footer]) -> Iterator[SchemaRun]:
    """Yield the schemas of the messages of segments, ascending."""
    for footer in footers:
        runs = footer.schemas
        if runs is None:  # of an older release: what was configured at its end goes for the whole segment
            runs = (SchemaRun(0, of_config(footer.config).schema or ""),)
        if not runs or runs[0].since > footer.first_seq:
            yield SchemaRun(footer.first_seq, "")
        for run in runs:
            yield SchemaRun(max(run.since, footer.first_seq), run.rules, run.latest)


def _with_past(batch: CommitBatch, floor_before: int) -> CommitBatch:
    """Return the batch with the progress fields of its departures."""
    assert batch.departures is not None
    progress = msgspec.structs.replace(
        batch.progress,
        moment_ns=max(batch.progress.moment_ns, batch.progress.last_time_ns, batch.departures.moment()),
        departed=len(batch.departures),
        deletes=len(departures_deleted(batch, floor_before)),
    )
    return msgspec.structs.replace(batch, progress=progress)


def departures_deleted(batch: CommitBatch, floor_before: int) -> list[SeqRows]:
    """Return the rows to delete behind a commit that wrote all of the batch.

    Args:
        batch: the batch, now in the table.
        floor_before: the stream's first sequence at the commit before; 0 when there was none.
    """
    written = msgspec.structs.replace(batch.progress, floor=floor_before)
    return deleted_rows(batch.progress.last_index, written, batch.dead)


def _removals(footers: Sequence[Footer], before: TableProgress | None) -> Iterator[Removal]:
    """Yield the messages that ended by the end of each segment, in order."""
    floor = before.floor if before else 0
    for footer in footers:
        if footer.removed or footer.floor > floor:
            yield Removal(footer.closed_ns, max(footer.floor, floor), footer.removed, floor)
        floor = max(floor, footer.floor)


def deletions(position: int, before: TableProgress | None, dead: DeletedMessages) -> list[str]:
    """Return `deleted_rows` as SQL conditions."""
    return [rows.sql for rows in deleted_rows(position, before, dead)]


def deleted_rows(position: int, before: TableProgress | None, dead: DeletedMessages) -> list[SeqRows]:
    """Return the rows to delete before the commit, a commit for each item; none when no row of the table can be dead.

    Args:
        position: the log index through which the table holds the stream; 0 when it holds nothing.
        before: progress of the table's last commit; None when unknown, so that everything has to be named.
        dead: the dead messages by the end of the commit.
    """
    if position == 0:
        return []
    removed: Sequence[int] = dead.removed
    floor_moved = dead.floor > 1
    erased = list(dead.runs)
    if before is not None:
        removed = [seq for seq in removed if seq <= before.last_seq]
        floor_moved = min(dead.floor - 1, before.last_seq) >= max(before.floor, 1)
        erased = [(first, min(last, before.last_seq)) for first, last in erased if first <= before.last_seq]
    terms = [SeqRows(f"seq < {dead.floor}", [(0, dead.floor - 1)])] if floor_moved else []
    return _bounded(terms, [*stretches(removed), *erased])


def erasures(position: int, before: TableProgress | None, shredded: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the runs of sequences that `deletions` takes out of the table and whose bytes must not stay in its files.

    Other erased messages never reach the table.
    """
    if position == 0:
        return []
    most = max((last for _, last in shredded), default=0) if before is None else before.last_seq
    return [(first, min(last, most)) for first, last in shredded if first <= most]


def updates(position: int, before: TableProgress | None, removals: Sequence[Removal] | None) -> list[Update]:
    """Return the UPDATEs of an archive before the commit: the time at which the stream no longer had a message."""
    found: list[Update] = []
    if position == 0:
        return found
    for removal in removals or ():
        removed: Sequence[int] = removal.removed
        first, last = removal.floor_before, removal.floor - 1
        if before is not None:
            removed = [seq for seq in removed if seq <= before.last_seq]
            last = min(last, before.last_seq)
        terms = [_between(first, last)] if last >= max(first, 1) else []
        for rows in _bounded(terms, list(stretches(removed))):
            found.append(Update(f"{REMOVED_COLUMN} IS NULL AND ({rows.sql})", str(removal.at_ns)))
    return _joined(found)


def _joined(found: list[Update]) -> list[Update]:
    """Merge short updates, since each costs a commit. The first one that applies to a row counts, as in sequence."""
    groups: list[list[Update]] = []
    text = ranges = 0
    for update in found:
        length, named = len(update.condition), update.condition.count(" BETWEEN ")
        if not groups or text + length > CONDITION_TEXT or ranges + named > CONDITION_RANGES:
            groups.append([])
            text = ranges = 0
        groups[-1].append(update)
        text, ranges = text + length, ranges + named
    return [_one(group) for group in groups]


def _one(group: list[Update]) -> Update:
    if len(group) == 1:
        return group[0]
    cases = " ".join(f"WHEN {update.condition} THEN {update.value}" for update in group)
    return Update(" OR ".join(f"({update.condition})" for update in group), f"CASE {cases} END")


def _between(first: int, last: int) -> SeqRows:
    return SeqRows(f"seq BETWEEN {first} AND {last}", [(first, last)])


def _bounded(terms: list[SeqRows], runs: Sequence[tuple[int, int]]) -> list[SeqRows]:
    """Return rows with conditions of bounded length that together are `terms` and all sequences of `runs`."""
    terms = list(terms)
    singles: list[int] = []
    # With many runs, list short ones too: lists are cheaper than ranges.
    many = len(runs) > CONDITION_RANGES
    shortest = CONDITION_TERMS // CONDITION_RANGES if many else 3
    for first, last in runs:
        if last - first + 1 < shortest:
            singles.extend(range(first, last + 1))
        else:
            terms.append(_between(first, last))
    found = []
    for at in range(0, len(terms), CONDITION_RANGES):
        some = terms[at : at + CONDITION_RANGES]
        found.append(SeqRows(" OR ".join(each.sql for each in some), [run for each in some for run in each.runs]))
    singles.sort()
    for at in range(0, len(singles), CONDITION_TERMS):
        listed = singles[at : at + CONDITION_TERMS]
        # Delta skips files by the range, but not by a long list.
        condition = f"seq BETWEEN {listed[0]} AND {listed[-1]} AND seq IN ({', '.join(map(str, listed))})"
        found.append(SeqRows(condition, list(stretches(listed))))
    return found
