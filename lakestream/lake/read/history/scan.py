"""Reads of a table's row groups.

Belongs here: which row groups a read needs, and how far a longer read goes in one step.

A row group has some thousand rows. In the files of compactor and maintainer they are sorted by subject within a run of
sequences, so one message is in one or two groups, and the messages of a run are in all of its groups. A longer read
therefore goes to the end of a run if it can, since the groups of a run have to be decoded whole for any part of it. Of
runs that are larger than a step it takes a part: memory is bounded, whatever another program has written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from heapq import heappop, heappush
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from lakestream.lake.errors import HistoryUnavailable
from lakestream.lake.read.history.index import TableSnapshot
from lakestream.lake.read.history.rows import COLUMNS, LIGHT
from lakestream.lake.storage.storage import Storage
from lakestream.lake.table.actions import TableFile
from lakestream.lake.table.conditions import SubjectRange
from lakestream.lake.table.row_groups import Footers, RowGroup
from lakestream.lake.table.scan import FileReader, Pick
from lakestream.lake.table.schema import END

STEP_BYTES = 24 * 1024 * 1024
"""Maximum decoded size of the rows of one step of a longer read: a run of the compactor with messages of 128 bytes."""
STEP_ROWS = 262_144
"""Maximum number of those rows."""
LOOKED_STEPS = 3
"""Row groups of this many steps are looked at to find the end of one, and all that begin before them."""
LOOKED_FILES = 1_024
"""Maximum number of files whose footers are read for that."""
GOOD = 0.85
"""A step ends at the first place where at least this share of what it decodes, of the best possible, is wanted."""
LEAST = 4
"""A step that would end below this part of its size, since the next run is larger than a step, takes a part of it."""
MOST_FILES_AT_ONCE = 8
"""Maximum number of files of an object store that one read fetches in parallel."""

_file = attrgetter("file")


class Extent(NamedTuple):
    """Size of a step: the number of rows that are needed at least, and the decoded bytes at most."""

    rows: int
    size: int = STEP_BYTES


class TableScan:
    """Reads of one table on given snapshots. Safe for use by several threads.

    Args:
        table: path or URL of the table.
        storage: where it is.
        footers: keeps what was read of the files' ends.
    """

    def __init__(self, table: str, storage: Storage, footers: Footers) -> None:
        self._table = table
        self._storage = storage
        self._files = FileReader(table, storage, footers)

    def close(self) -> None:
        """Drop what is kept of the files."""
        self._files.forget()

    def step(
        self, snapshot: TableSnapshot, first: int, last: int, extent: Extent, wanted: SubjectRange | None = None
    ) -> tuple[pa.Table | None, int]:
        """Return (messages from `first` on, the sequence up to which they are complete), as far as one step goes.

        Args:
            last: the sequence to stop at.
            wanted: subjects; all by default.
        """
        self._require(snapshot)
        groups, border = self._gathered(snapshot, first, last, extent, wanted)
        if not groups:
            return None, border
        through = _cut(groups, first, border, extent)
        groups = [group for group in groups if group.min_seq <= through]
        return self._read(snapshot, groups, Pick(first, through, wanted), COLUMNS), through

    def parts(
        self, snapshot: TableSnapshot, first: int, columns: Sequence[str], wanted: SubjectRange | None = None
    ) -> Iterator[pa.Table]:
        """Yield columns of the messages from `first` on, some row groups at a time, in no particular order."""
        self._require(snapshot)
        pick = Pick(first, END, wanted)
        for file in snapshot.overlapping(first, END, wanted):
            footer = self._files.footer(file)
            numbers = footer.holding(first, END, wanted if file.subject is None else None)
            for _, some in groupby(numbers, (footer.starts // STEP_ROWS).__getitem__):
                if (rows := self._read(snapshot, footer.groups(file, some), pick, columns)) is not None:
                    yield rows

    def of_seqs(self, snapshot: TableSnapshot, seqs: Sequence[int], wanted: SubjectRange | None) -> pa.Table | None:
        """Return the existing messages with exactly these sequences (ascending)."""
        self._require(snapshot)
        asked = np.asarray(seqs, np.int64)
        groups: list[RowGroup] = []
        for file in snapshot.holding(seqs, wanted):
            footer = self._files.footer(file)
            among = wanted if file.subject is None else None
            numbers = footer.holding(seqs[0], seqs[-1], among)
            if len(seqs) > 1:
                low, high = footer.mins[numbers], footer.maxs[numbers]
                there = np.searchsorted(asked, low, "left") < np.searchsorted(asked, high, "right")
                numbers = np.asarray(numbers)[there].tolist()
            groups += footer.groups(file, numbers)
        pick = Pick(seqs[0], seqs[-1], wanted, seqs, len(groups) == 1)
        if len(seqs) > 1 or not self._storage.local:
            return self._read(snapshot, groups, pick, COLUMNS)
        # One message: those first that have the fewest other sequences.
        for group in sorted(groups, key=lambda group: group.max_seq - group.min_seq):
            if (found := self._read(snapshot, [group], pick, COLUMNS)) is not None:
                return found
        return None

    def first_at(self, snapshot: TableSnapshot, time_ns: int) -> int:
        """Return the lowest sequence whose time is at or after `time_ns`; 0: there is none."""
        self._require(snapshot)
        best = 0
        for file in snapshot.files:
            if file.max_time < time_ns or (best and file.min_seq > best):
                continue
            if file.min_time >= time_ns and file.deleted is None and not snapshot.shape.archive:
                best = min(best or file.min_seq, file.min_seq)
                continue
            footer = self._files.footer(file)
            late = footer.groups(file, footer.holding(0, best or file.max_seq, since_ns=time_ns))
            for group in sorted(late, key=attrgetter("min_seq")):
                if best and group.min_seq > best:
                    break
                rows = self._read(snapshot, [group], Pick(group.min_seq, group.max_seq), LIGHT)
                if rows is not None:
                    seqs = rows.column("seq").to_numpy()[rows.column("time_ns").to_numpy() >= time_ns]
                    best = min(best or int(seqs.min()), int(seqs.min())) if len(seqs) else best
        return best

    # ------------------------------------------------------------------ row groups
    def _require(self, snapshot: TableSnapshot) -> None:
        if snapshot.shape.refusal:
            raise HistoryUnavailable(f"{self._table} {snapshot.shape.refusal}")

    def _gathered(
        self, snapshot: TableSnapshot, first: int, last: int, extent: Extent, wanted: SubjectRange | None
    ) -> tuple[list[RowGroup], int]:
        """Return (row groups, the sequence up to which no others have wanted messages from `first` on)."""
        found: list[RowGroup] = []
        size, later = 0, list[tuple[int, int]]()  # of groups that begin before the file, and of those behind
        for number, file in enumerate(snapshot.overlapping(first, last, wanted)):
            while later and later[0][0] < file.min_seq:
                size += heappop(later)[1]
            if (size > LOOKED_STEPS * extent.size or number >= LOOKED_FILES) and file.min_seq > first:
                border = file.min_seq - 1
                return [group for group in found if group.min_seq <= border], border
            footer = self._files.footer(file)
            groups = footer.groups(file, footer.holding(first, last, wanted if file.subject is None else None))
            found += groups
            for group in groups:
                heappush(later, (group.min_seq, group.size))
        return found, last

    def _read(
        self, snapshot: TableSnapshot, groups: Sequence[RowGroup], pick: Pick, columns: Sequence[str]
    ) -> pa.Table | None:
        """Return rows of row groups. Raises FileNotFoundError and DamagedFile."""
        archive, schema = snapshot.shape.archive, snapshot.shape.schema

        def read(part: tuple[TableFile, list[int]]) -> pa.Table | None:
            return self._files.read(part[0], pick, columns, archive, schema, part[1])

        parts = list(_by_file(groups))
        if self._storage.local or len(parts) < 2:
            found = list(map(read, parts))
        else:
            with ThreadPoolExecutor(min(len(parts), MOST_FILES_AT_ONCE), "lakestream-fetch") as pool:
                found = list(pool.map(read, parts))
        some = [rows for rows in found if rows is not None]
        return pa.concat_tables(some, promote_options="permissive") if some else None


def _by_file(groups: Sequence[RowGroup]) -> Iterator[tuple[TableFile, list[int]]]:
    for file, some in groupby(groups, _file):
        yield file, [group.number for group in some]


def _cut(groups: Sequence[RowGroup], first: int, border: int, extent: Extent) -> int:
    """Return the sequence at which a step ends that begins at `first`, at most `border`.

    Rows are taken to lie evenly within the bounds of a group. The places where a step may end are those before a group
    begins: behind them one group less has to be decoded.
    """
    mins = np.maximum([group.min_seq for group in groups], first)
    maxs = np.minimum([group.max_seq for group in groups], border)
    width = np.array([group.max_seq - group.min_seq + 1 for group in groups], np.float64)
    rows = np.array([group.rows for group in groups], np.float64)
    sizes = np.array([group.size for group in groups], np.float64)
    ends = np.unique(np.append(mins[mins > first] - 1, border))
    share = np.clip((np.minimum(ends[:, None], maxs) - mins + 1) / width, 0, 1)
    kept_rows, kept = (share * rows).sum(1), (share * sizes).sum(1)
    decoded = np.where(mins <= ends[:, None], sizes, 0).sum(1)
    fitting = np.flatnonzero((kept <= extent.size) & (kept_rows <= STEP_ROWS))
    if len(fitting):
        worth = kept[fitting] / np.maximum(decoded[fitting], 1)
        enough = (kept_rows[fitting] >= extent.rows) | (fitting == fitting[-1])
        good = worth >= GOOD * worth[enough].max()
        best = int(fitting[np.flatnonzero(good & enough)[0]])
        if best == len(ends) - 1 or kept_rows[best] >= extent.rows or kept[best] >= extent.size / LEAST:
            return int(ends[best])
    # One run is larger than a step: take as much of it as one may have.
    over = int(np.flatnonzero((kept > extent.size) | (kept_rows > STEP_ROWS))[0])
    share_of_it = min(extent.size / kept[over], STEP_ROWS / max(kept_rows[over], 1))
    return first + int((int(ends[over]) - first) * share_of_it)
