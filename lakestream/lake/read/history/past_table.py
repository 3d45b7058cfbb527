"""A stream's past in its table, for the server.

Belongs here: the last message of each subject at a point of a stream, and messages as they were then, from the version
of the table that table/at.py finds and its departures file (table/departures.py). Blocks; runs in threads. The
newest version, which the server reads all the time, is history.py's.

"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestream.lake.errors import VersionGone
from lakestream.lake.read.history.index import Choice, TableIndex, TableSnapshot
from lakestream.lake.read.history.rows import LIGHT, records
from lakestream.lake.read.history.scan import TableScan
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table import departures as departure_files
from lakestream.lake.table.at import (
    KEEP_MORE,
    NotATable,
    PointVersion,
    TimeTravelError,
    open_log,
    version_of_point,
)
from lakestream.lake.table.conditions import SubjectRange
from lakestream.lake.table.departures import DeletedMessages
from lakestream.lake.table.log import TableLog
from lakestream.lake.table.row_groups import Footers
from lakestream.lake.table.segments import alive
from lakestream.lake.table.state import TableFollower
from lakestream.log.format.departures import Point
from lakestream.log.format.record import Record

OPEN_VERSIONS = 2
"""Number of versions of one table whose lists of files are kept: a client that pages asks for the same one again."""

MAX_LEFT = 1 << 20
"""Maximum number of runs of departures cached for recent points, 16 bytes each; those of one point are always
cached."""

FIRST_ROWS = 32
"""Messages of a first read, until their size is known."""


class PastAnswer:
    """Result of a question about a point; see `lakestream.ports.Was`."""

    def __init__(self, kept: PointVersion, through: int, newest: list[int] | None) -> None:
        self.within = kept.version is not None
        self.position = kept.progress.last_index if kept.progress is not None else 0
        self.kept = kept.progress is None or kept.progress.departed >= 0
        self.through, self.newest = through, newest


class TablePast:
    """The past of the stream `uid` whose table is at a path or URL. Safe for use by several threads.

    Args:
        footers: keeps what was read of the files' ends.
    """

    def __init__(self, table: str, uid: str, footers: Footers | None = None) -> None:
        self._table = table
        self._uid = uid
        self._storage = open_storage(table)
        self._index = TableIndex(TableFollower(table, storage=self._storage), self._storage)
        self._scan = TableScan(table, self._storage, footers if footers is not None else Footers())
        self._lock = threading.Lock()
        self._log: TableLog | None = None
        self._open: OrderedDict[int, TableSnapshot] = OrderedDict()
        self._left: OrderedDict[tuple[int, Point], Any] = OrderedDict()

    def was(
        self, patterns: Sequence[bytes], point: Point, limit: int, without: Sequence[tuple[int, int]] = ()
    ) -> PastAnswer:
        """Return the last message of each subject that one of `patterns` is or matches, as the stream was at a point.

        Args:
            patterns: subjects, with or without wildcards.
            point: the point.
            limit: with more subjects than that, none is returned.
            without: runs of sequences to leave out besides those whose erasure is noted.

        Raises:
            TimeTravelError, DeparturesGone: the past at that point is not recorded, or no longer.
        """
        erased = self._erased(without)
        kept = self._find(point)
        if kept.version is None or kept.progress is None:
            return PastAnswer(kept, kept.progress.last_seq if kept.progress is not None else 0, [])
        wanted = Choice(patterns)
        by_text: dict[tuple[str, bytes | None], int] = {}
        for rows in self._rows(kept, point, wanted.wanted, erased):
            for subject, raw, seq in _newest(rows):
                known = by_text.get((subject, raw), 0)
                if seq > known and (known or wanted.has(raw if raw is not None else subject.encode())):
                    by_text[subject, raw] = seq
            if len(by_text) > limit:
                return PastAnswer(kept, kept.progress.last_seq, None)
        return PastAnswer(kept, self._through(kept, point), sorted(by_text.values()))

    def rows(self, seqs: Sequence[int], point: Point, max_bytes: int) -> list[Record]:
        """Return the first of these messages (ascending), as many as fit into `max_bytes`, at least one.

        Raises:
            TimeTravelError, DeparturesGone: as `was`.
        """
        erased = self._erased()
        kept = self._find(point)
        version = kept.version
        if version is None:
            version = self._commits().latest if kept.progress is not None else None
        if version is None:
            return []
        found: list[Record] = []
        at = size = 0
        step = FIRST_ROWS
        while at < len(seqs):
            some = seqs[at : at + step]
            for record in self._exactly(version, some, erased):
                size += len(record.subject) + len(record.header) + len(record.data)
                if found and size > max_bytes:
                    return found
                found.append(record)
            at += len(some)
            # Read as many more as fit by the size so far: a message may have megabytes.
            step = min(4 * step, max(1, (max_bytes - size) * max(len(found), 1) // max(size, 1)))
        return found

    def _exactly(self, version: int, seqs: Sequence[int], erased: DeletedMessages) -> list[Record]:
        """Return the messages with these sequences (ascending)."""
        with self._pinned(version) as snapshot:
            rows = self._scan.of_seqs(snapshot, seqs, None)
        return [] if rows is None else list(records(_without(rows, erased)))

    def close(self) -> None:
        """Close open versions."""
        with self._lock:
            self._log = None
            self._open.clear()
            self._left.clear()
            self._scan.close()

    def _erased(self, without: Sequence[tuple[int, int]] = ()) -> DeletedMessages:
        """Return the messages to leave out of every version. Read it before the version: see table/erasures.py."""
        return departure_files.erased(self._storage, self._table, without)

    def _find(self, point: Point) -> PointVersion:
        try:
            try:
                return self._found(self._commits(), point)
            except FileNotFoundError:  # log clean-up deleted the commit
                return self._found(self._commits(), point)
        except NotATable:
            return PointVersion(None, None)

    def _found(self, log: TableLog, point: Point) -> PointVersion:
        newest = log.progress(log.latest)
        if newest is not None and newest.uid != self._uid:
            self.close()  # it is being replaced by another table, whose versions begin at 0 again
            return PointVersion(None, None)
        return version_of_point(log, point)

    def _commits(self) -> TableLog:
        with self._lock:
            log = self._log = open_log(self._table) if self._log is None else self._log.renewed()
            if not log.versions:
                raise NotATable(self._table)
            return log

    def _through(self, kept: PointVersion, point: Point) -> int:
        """Return the last sequence that was stored by the point."""
        assert kept.progress is not None
        if point.seq:
            return min(point.seq, kept.progress.last_seq)
        if kept.progress.last_time_ns < point.before_ns:
            return kept.progress.last_seq
        before = kept.before.last_seq if kept.before is not None else 0
        assert kept.version is not None
        with self._pinned(kept.version) as snapshot:
            for rows in self._scan.parts(snapshot, before + 1, LIGHT):
                seqs = rows.column("seq").to_numpy()[rows.column("time_ns").to_numpy() < point.before_ns]
                before = max(before, int(seqs.max(initial=0)))
        return before

    def _rows(
        self, kept: PointVersion, point: Point, wanted: SubjectRange, erased: DeletedMessages
    ) -> Iterator[pa.Table]:
        """Yield sequences and subjects of wanted messages that the stream held at a point within its table."""
        assert kept.version is not None
        assert kept.progress is not None
        name, end = ("seq", point.seq + 1) if point.seq else ("time_ns", point.before_ns)
        gone = self._gone(kept.progress.last_index, point) if kept.progress.departed else DeletedMessages()
        with self._pinned(kept.version) as snapshot:
            for rows in self._scan.parts(snapshot, 1, ("seq", "time_ns", "subject", "subject_bytes"), wanted):
                stored = rows.filter(pc.less(rows.column(name), end))
                yield _without(_without(stored, gone), erased)

    def _gone(self, last_index: int, point: Point) -> DeletedMessages:
        """Return the messages that had left by a point of a batch, as an array that is built once for all batches of
        rows."""
        runs: Any
        with self._lock:
            if (runs := self._left.get((last_index, point))) is not None:
                self._left.move_to_end((last_index, point))
                return DeletedMessages(runs=runs)
        found = departure_files.gone(departure_files.read(self._storage, self._table, last_index), point)
        runs = np.asarray(found.runs, np.int64).reshape(-1, 2)
        with self._lock:
            self._left[last_index, point] = runs
            while len(self._left) > 1 and sum(map(len, self._left.values())) > MAX_LEFT:
                self._left.popitem(last=False)
        return DeletedMessages(runs=runs)

    @contextmanager
    def _pinned(self, version: int) -> Iterator[TableSnapshot]:
        """Return a context in which a version is read.

        Raises:
            TimeTravelError: it, or a file of it, is no longer there.
        """
        with self._lock:
            snapshot = self._open.get(version)
        try:
            snapshot = snapshot or _with_removed(self._index.at(version))
            with self._lock:
                self._open[version] = snapshot
                self._open.move_to_end(version)
                while len(self._open) > OPEN_VERSIONS:
                    self._open.popitem(last=False)
            yield snapshot
        except (VersionGone, FileNotFoundError) as error:
            raise TimeTravelError(f"version {version} of {self._table} is no longer there; {KEEP_MORE}") from error


def _with_removed(snapshot: TableSnapshot) -> TableSnapshot:
    """Return a version whose rows are read with those that an archive has marked since."""
    return msgspec.structs.replace(snapshot, shape=msgspec.structs.replace(snapshot.shape, archive=False))


def _without(rows: pa.Table, dead: DeletedMessages) -> pa.Table:
    if not len(dead.runs):
        return rows
    mask = alive(rows.column("seq").to_numpy(), dead)
    return rows if mask.all() else rows.filter(pa.array(mask))


def _newest(rows: pa.Table) -> Iterator[tuple[str, bytes | None, int]]:
    """Yield the highest sequence of each subject in some rows."""
    grouped = rows.group_by(["subject", "subject_bytes"]).aggregate([("seq", "max")])
    columns: list[list[Any]] = [grouped.column(name).to_pylist() for name in ("subject", "subject_bytes", "seq_max")]
    yield from zip(*columns, strict=True)
