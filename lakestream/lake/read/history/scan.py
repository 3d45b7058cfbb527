"""Reads of a table's files: directly, or through DataFusion.

Belongs here: the choice between reading files directly and querying DataFusion, the size of a step of a longer read,
and the queries. A file of the compactor is small; reading it whole takes less than a millisecond, while planning a
query takes several. A file of OPTIMIZE is large and holds runs of many commits; DataFusion decodes only its relevant
pages. Holding a table open for DataFusion costs memory for every file.

A read uses one snapshot and one of the two ways: they may see different versions of the table.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from lakestream.lake.read.history.cache import Slab
from lakestream.lake.read.history.index import TableSnapshot
from lakestream.lake.read.history.rows import COLUMNS, LIGHT, joined
from lakestream.lake.storage.storage import Storage
from lakestream.lake.table.actions import TableFile, locate
from lakestream.lake.table.conditions import IN_MOST, SubjectRange
from lakestream.lake.table.scan import FileReader, Pick, Scan, TooLarge
from lakestream.lake.table.schema import REMOVED_COLUMN

DIRECT_ROWS = 20_000
"""Maximum number of rows of a file that is read directly."""
DIRECT_BYTES = 8 * 1024 * 1024
"""Maximum size of such a file."""
GROUP_ROWS = 65_536
"""Maximum number of rows of the files that are read directly in one step."""
GROUP_BYTES = 24 * 1024 * 1024
"""Maximum size of those files."""
GROUP_FILES = 128
"""Maximum number of those files."""
SEQUENTIAL_ROWS = 8_192
"""Rows of a step of a sequential read from small files."""
SEQUENTIAL_SQL_ROWS = 32_768
"""Rows of such a step from large files, where a step costs more."""
SEQUENTIAL_BYTES = 8 * 1024 * 1024
"""Size that ends such a step early."""
SEQUENTIAL_MOST = 24 * 1024 * 1024
"""Maximum size to which the steps of a continuing reader grow: a query reads whole pages of every file that has some of
its rows, so larger steps read each page less often."""
POINT_ROWS = 512
"""Rows of a step when single messages are read."""
POINT_BYTES = 2 * 1024 * 1024
MOST_FILES = 8_192
"""Maximum number of files that are read directly for a few rows of each; beyond, planning a query costs less."""
MOST_FILES_AT_ONCE = 8
"""Maximum number of files of an object store that one read fetches in parallel."""
_COMPRESSION = 4  # assumed compression of a Parquet file until one was read
KEEP_FILES = 2_000
"""A table of more files than this is closed between two queries: it takes up to 5 KiB for each of them."""


class Extent(NamedTuple):
    """Size of a step over large files: maximum number of rows and, roughly, bytes."""

    rows: int = SEQUENTIAL_SQL_ROWS
    size: int = SEQUENTIAL_BYTES


ALONE = Extent(POINT_ROWS, POINT_BYTES)
"""Extent of a read of single messages."""


class TableScan:
    """Reads of one table on given snapshots. Safe for use by several threads.

    Args:
        table: path or URL of the table.
        storage: where it is.
    """

    def __init__(self, table: str, storage: Storage) -> None:
        self._table = table
        self._storage = storage
        self._files = FileReader(table, storage)
        self._sql = SqlTable(table, storage)
        self._stretch = 1  # correction of the density by file statistics
        self._row_bytes = 0  # measured size of a row

    def close(self) -> None:
        """Close the table for DataFusion."""
        self._sql.close()

    # ------------------------------------------------------------------ by sequence
    def slab(self, snapshot: TableSnapshot, first: int, room: tuple[int, int], extent: Extent) -> Slab | None:
        """Return the messages around `first`, or after it where no file covers it, within `room`; None beyond the
        table.

        Several small files are read whole, whatever `extent` says, unless it is ALONE.
        """
        places = np.flatnonzero(snapshot.maxs >= first)
        if not len(places):
            return None
        start = max(first, int(snapshot.mins[places[0]]))
        if start > room[1]:
            return Slab(first, room[1], joined([], COLUMNS), 0)
        wanted = POINT_ROWS if extent is ALONE else SEQUENTIAL_ROWS
        group, last = self._group(snapshot, places, start, wanted)
        if group:
            before = snapshot.maxs[snapshot.maxs < start]
            low = max(room[0], int(before.max()) + 1 if len(before) else 0)
            high = min(room[1], last)
            try:
                rows = self._direct(snapshot, group, Pick(low, high), COLUMNS)
            except TooLarge:
                pass
            else:
                return self._measured(Slab(low, high, rows, rows.nbytes))
        return self._slab_by_query(snapshot, first, start, room, extent)

    def _group(self, snapshot: TableSnapshot, places: Any, start: int, wanted: int) -> tuple[list[TableFile], int]:
        """Return (small files that hold all messages from `start` on, the last sequence); no files when there are none
        such."""
        group: list[TableFile] = []
        rows = size = reach = 0
        if not snapshot.shape.direct:
            return [], 0
        for place in places:
            file = snapshot.files[place]
            if file.min_seq > start and rows >= wanted and file.min_seq > reach:
                return group, file.min_seq - 1
            rows, size = rows + file.rows, size + file.size
            if not _small(file) or rows > GROUP_ROWS or size > GROUP_BYTES or len(group) >= GROUP_FILES:
                return ([], 0) if file.min_seq <= start else (group, file.min_seq - 1)
            group.append(file)
            reach = max(reach, file.max_seq)
        return group, snapshot.max_seq

    def _slab_by_query(
        self, snapshot: TableSnapshot, first: int, start: int, room: tuple[int, int], extent: Extent
    ) -> Slab:
        most, size = extent
        near = snapshot.overlapping(start, start + most)
        limit = max(1, min(most, size // self._row_size(near)))
        last = min(snapshot.max_seq, room[1], start + _span(near, limit) * self._stretch - 1)
        rows = joined([self._sql.rows(snapshot, Pick(start, last), COLUMNS, limit)], COLUMNS)
        if rows.num_rows >= limit:
            last = rows.column("seq")[-1].as_py()
            self._stretch = max(1, self._stretch // 2)
        elif rows.num_rows < limit // 4 and last < snapshot.max_seq:
            self._stretch = min(self._stretch * 4, 1 << 30)
        return self._measured(Slab(first, last, rows, rows.nbytes))

    def _row_size(self, files: Sequence[TableFile]) -> int:
        said = max((file.size // max(file.rows, 1) for file in files), default=1) + 1
        return self._row_bytes or said * _COMPRESSION

    def _measured(self, slab: Slab) -> Slab:
        if slab.rows.num_rows:
            found = slab.size // slab.rows.num_rows + 1
            # Decreases slowly: small messages may be followed by larger ones.
            self._row_bytes = max(found, self._row_bytes * 7 // 8)
        return slab

    def of_seqs(self, snapshot: TableSnapshot, seqs: Sequence[int], wanted: SubjectRange | None) -> Any:
        """Return the existing messages with exactly these sequences (ascending)."""
        pick = Pick(seqs[0], seqs[-1], wanted, seqs)
        files = snapshot.holding(seqs, wanted)
        if not files:
            return joined([], COLUMNS)
        if self._readable(snapshot, files):
            try:
                return self._direct(snapshot, files, pick, COLUMNS)
            except TooLarge:
                pass
        return joined([self._sql.rows(snapshot, pick, COLUMNS)], COLUMNS)

    # ------------------------------------------------------------------ by subject
    def of_subjects(
        self, snapshot: TableSnapshot, first: int, last: int, wanted: SubjectRange, extent: Extent, rows: int
    ) -> tuple[Any, int] | None:
        """Return (messages of some subjects from `first` on, the sequence through which they are complete); None beyond
        `last`.

        Args:
            extent: limit of rows from large files.
            rows: approximate number of rows to examine.
        """
        if first > last:
            return None
        files = snapshot.overlapping(first, last, wanted)
        if not files:
            return joined([], COLUMNS), last
        group: list[TableFile] = []
        held, through = 0, last
        for file in files:
            enough = held >= rows or (held + file.rows > GROUP_ROWS and _small(file))
            if group and enough and file.min_seq > first:
                through = file.min_seq - 1
                break
            group.append(file)
            held += file.rows
        if self._readable(snapshot, group):
            try:
                return self._direct(snapshot, group, Pick(first, through, wanted), COLUMNS), through
            except TooLarge:
                pass
        start = max(first, files[0].min_seq)
        near = snapshot.overlapping(start, start + rows, wanted)
        limit = max(1, min(extent.rows, extent.size // self._row_size(near)))
        through = min(last, start + _span(near, rows) - 1)
        found = joined([self._sql.rows(snapshot, Pick(start, through, wanted), COLUMNS, limit)], COLUMNS)
        if found.num_rows >= limit:
            through = found.column("seq")[-1].as_py()
        return found, through

    # ------------------------------------------------------------------ by time
    def first_at(self, snapshot: TableSnapshot, time_ns: int) -> int:
        """Return the lowest sequence whose time is at or after `time_ns`; 0: there is none."""
        best = 0
        for file in snapshot.files:
            if file.max_time < time_ns or (best and file.min_seq > best):
                continue
            if file.min_time >= time_ns and file.deleted is None and not snapshot.shape.archive:
                found = file.min_seq
            elif snapshot.shape.direct and _small(file):
                rows = self._direct(snapshot, [file], Pick(0, file.max_seq), LIGHT)
                late = np.flatnonzero(rows.column("time_ns").to_numpy() >= time_ns)
                found = int(rows.column("seq")[int(late[0])].as_py()) if len(late) else 0
            else:
                found = self._sql.lowest_since(snapshot, file.min_seq, file.max_seq, time_ns)
            if found and (not best or found < best):
                best = found
        return best

    # ------------------------------------------------------------------ files
    def _readable(self, snapshot: TableSnapshot, files: Sequence[TableFile]) -> bool:
        """Return True if these files should be read directly for few rows of each."""
        return snapshot.shape.direct and len(files) <= MOST_FILES and all(map(_small, files))

    def _direct(self, snapshot: TableSnapshot, files: Sequence[TableFile], pick: Pick, columns: Sequence[str]) -> Any:
        """Return rows of whole small files. Raises FileNotFoundError and TooLarge."""
        archive, schema = snapshot.shape.archive, snapshot.shape.schema

        def read(file: TableFile) -> Any | None:
            return self._files.read(file, pick, columns, archive, schema)

        if self._storage.local or len(files) == 1:
            parts = [read(file) for file in files]
        else:
            with ThreadPoolExecutor(min(len(files), MOST_FILES_AT_ONCE), "lakestream-fetch") as pool:
                parts = list(pool.map(read, files))
        return joined([part for part in parts if part is not None], columns)


def _small(file: TableFile) -> bool:
    return file.rows <= DIRECT_ROWS and file.size <= DIRECT_BYTES


def _span(files: Sequence[TableFile], rows: int) -> int:
    """Return the number of sequences that hold about `rows` messages, by the density of the files."""
    held = sum(file.rows for file in files)
    if not held:
        return rows
    width = max(file.max_seq for file in files) - min(file.min_seq for file in files) + 1
    return max(rows, rows * width // held)


class SqlTable:
    """A table open for DataFusion. Safe for use by several threads.

    Args:
        table: path or URL of the table.
        storage: where it is.
    """

    def __init__(self, table: str, storage: Storage) -> None:
        self._table = table
        self._storage = storage
        self._lock = threading.Lock()
        self._checked: set[str] = set()
        self._scan: Scan | None = None

    def rows(self, snapshot: TableSnapshot, pick: Pick, columns: Sequence[str], limit: int = 0) -> Any:
        """Return the wanted rows in sequence order, as a pyarrow Table; at most `limit`, 0 for all."""
        return self._ask(snapshot, pick, lambda scan: scan.ordered(columns, _condition(snapshot, pick), limit))

    def lowest_since(self, snapshot: TableSnapshot, first: int, last: int, time_ns: int) -> int:
        """Return the lowest sequence of a range whose time is at or after `time_ns`; 0: none."""
        pick = Pick(first, last)
        sql = f"SELECT min(seq) AS seq FROM t WHERE {_condition(snapshot, pick)} AND time_ns >= {time_ns}"
        return self._ask(snapshot, pick, lambda scan: scan.query(sql)).column("seq")[0].as_py() or 0

    def close(self) -> None:
        """Close the table; the next query opens it again."""
        with self._lock:
            self._scan = None

    def _ask(self, snapshot: TableSnapshot, pick: Pick, ask: Callable[[Scan], Any]) -> Any:
        self._check(snapshot, pick)
        found = ask(self._opened(snapshot.version))
        if len(snapshot.files) > KEEP_FILES:
            self.close()
        return found

    def _check(self, snapshot: TableSnapshot, pick: Pick) -> None:
        """Check the ends of large files before their first use. DataFusion verifies no checksum, neither of footers nor
        of pages.

        Raises:
            DamagedFile: a footer or a page index is not as it was written.
        """
        if len(self._checked) > KEEP_FILES:
            self._checked = set()
        for file in snapshot.overlapping(pick.first, pick.last, pick.wanted):
            if file.end is not None and not _small(file) and file.path not in self._checked:
                file.end.check_in(self._storage, locate(self._table, file.path))
                self._checked.add(file.path)

    def _opened(self, version: int) -> Scan:
        """Return the table at `version` or later."""
        with self._lock:
            if self._scan is None:
                self._scan = Scan(self._table, storage=self._storage)
            elif self._scan.version < version:
                self._scan.catch_up()
            return self._scan


def _condition(snapshot: TableSnapshot, pick: Pick) -> str:
    parts = [f"seq >= {pick.first}", f"seq <= {pick.last}"]
    if pick.seqs is not None:
        lists = [pick.seqs[at : at + IN_MOST] for at in range(0, len(pick.seqs), IN_MOST)]
        parts.append("(" + " OR ".join(f"seq IN ({', '.join(map(str, some))})" for some in lists) + ")")
    if pick.wanted is not None and (subjects := pick.wanted.sql()):
        parts.append(subjects)
    if snapshot.shape.archive:
        parts.append(f"{REMOVED_COLUMN} IS NULL")
    return " AND ".join(parts)
