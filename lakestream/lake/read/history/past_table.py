"""A stream's past in its table, for the server.

Belongs here: the last message of each subject at a point of a stream, and messages as they were then, from the version
of the table that table/at.py finds and its departures file (table/departures.py). Blocks; runs in threads. The
newest version, which the server reads all the time, is history.py's.

Versions are read through deltalake's query engine. Its conditions only exclude files (sequences, and ranges of
subjects); departed messages are filtered here, since long conditions are slow there.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from lakestream.lake.errors import HistoryUnavailable, LakeError, VersionGone
from lakestream.lake.read.history.index import Choice
from lakestream.lake.read.history.rows import COLUMNS, records
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table import departures as departure_files
from lakestream.lake.table.actions import locate
from lakestream.lake.table.at import (
    KEEP_MORE,
    NotATable,
    PointVersion,
    TimeTravelError,
    open_log,
    version_of_point,
)
from lakestream.lake.table.departures import DeletedMessages
from lakestream.lake.table.ends import stated
from lakestream.lake.table.log import TableLog
from lakestream.lake.table.scan import Scan, typed
from lakestream.lake.table.segments import alive
from lakestream.log.format.departures import Point
from lakestream.log.format.record import Record

CHECKED_FILES = 1_000
"""A version of more files than this is opened without comparing their ends with the log, as is one in an object store:
that takes a read of each file."""
OPEN_VERSIONS = 2
"""Number of versions of one table that are kept open: a client that pages asks for the same one repeatedly."""

MAX_LEFT = 1 << 20
"""Maximum number of runs of departures cached for recent points, 16 bytes each; those of one point are always
cached."""

FIRST_ROWS = 32
"""Messages of a first read, until their size is known."""

_LISTED = 50
"""Maximum number of subjects listed in a query; more are given as a range."""


class PastAnswer:
    """Result of a question about a point; see `lakestream.ports.Was`."""

    def __init__(self, kept: PointVersion, through: int, newest: list[int] | None) -> None:
        self.within = kept.version is not None
        self.position = kept.progress.last_index if kept.progress is not None else 0
        self.kept = kept.progress is None or kept.progress.departed >= 0
        self.through, self.newest = through, newest


class TablePast:
    """The past of the stream `uid` whose table is at a path or URL. Safe for use by several threads."""

    def __init__(self, table: str, uid: str) -> None:
        self._table = table
        self._uid = uid
        self._storage = open_storage(table)
        self._lock = threading.Lock()
        self._log: TableLog | None = None
        self._open: OrderedDict[int, Scan] = OrderedDict()
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
        where = wanted.wanted.sql(_LISTED)
        by_text: dict[tuple[str, bytes | None], int] = {}
        for batch in self._rows(kept, point, ("seq", "subject", "subject_bytes"), where, erased):
            for subject, raw, seq in _newest(batch):
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
        listed = " OR ".join(f"seq IN ({', '.join(map(str, seqs[at : at + 20]))})" for at in range(0, len(seqs), 20))
        where = f"seq >= {seqs[0]} AND seq <= {seqs[-1]} AND ({listed})"
        batches = [_without(batch, erased) for batch in self._query(version, COLUMNS, where) if batch.num_rows]
        return list(records(pa.Table.from_batches(batches))) if batches else []

    def close(self) -> None:
        """Close open versions."""
        with self._lock:
            self._log = None
            self._open.clear()
            self._left.clear()

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
        where = f"seq > {before} AND time_ns < {point.before_ns}"
        return max(
            [
                before,
                *(max(batch["seq"].to_pylist(), default=0) for batch in self._query(kept.version, ("seq",), where)),
            ]
        )

    def _rows(
        self, kept: PointVersion, point: Point, columns: Sequence[str], where: str, erased: DeletedMessages
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of messages that the stream held at a point within its table; `seq` is one of `columns`."""
        assert kept.version is not None
        assert kept.progress is not None
        stored = f"seq <= {point.seq}" if point.seq else f"time_ns < {point.before_ns}"
        gone = self._gone(kept.progress.last_index, point) if kept.progress.departed else DeletedMessages()
        for batch in self._query(kept.version, columns, f"{stored} AND {where}" if where else stored):
            yield _without(_without(batch, gone), erased)

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

    def _query(self, version: int, columns: Sequence[str], where: str) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self._pinned(version).rows(columns, where):
                yield typed(batch)
        except VersionGone as error:
            raise _gone(self._table, version) from error
        except LakeError:
            raise
        except Exception as error:  # the query engine raises bare Exception
            raise HistoryUnavailable(f"{self._table} at version {version} could not be read: {error}") from error

    def _pinned(self, version: int) -> Scan:
        with self._lock:
            if version in self._open:
                self._open.move_to_end(version)
                return self._open[version]
        scan = Scan(self._table, version, self._storage)
        self._check(version, scan)
        with self._lock:
            self._open[version] = scan
            while len(self._open) > OPEN_VERSIONS:
                self._open.popitem(last=False)
        return scan

    def _check(self, version: int, scan: Scan) -> None:
        """Compare the ends of a version's files with the log, unless they are many: the query engine verifies nothing.

        Raises:
            DamagedFile: a footer or a page index is not as it was written.
        """
        if not self._storage.local or scan.file_count > CHECKED_FILES:
            return
        with contextlib.suppress(FileNotFoundError):  # VACUUM: the query tells
            for add in TableLog(self._storage, self._table).state(version).files.values():
                if (end := stated(add.tags)) is not None:
                    end.check_in(self._storage, locate(self._table, add.path))


def _without(batch: pa.RecordBatch, dead: DeletedMessages) -> pa.RecordBatch:
    if not len(dead.runs):
        return batch
    mask = alive(batch["seq"].to_numpy(), dead)
    return batch if mask.all() else batch.filter(pa.array(mask))


def _gone(table: str, version: int) -> TimeTravelError:
    return TimeTravelError(f"version {version} of {table} is no longer there; {KEEP_MORE}")


def _newest(batch: pa.RecordBatch) -> Iterator[tuple[str, bytes | None, int]]:
    """Yield the highest sequence of each subject in some rows."""
    if not batch.num_rows:
        return
    table = pa.Table.from_batches([batch])
    grouped = table.group_by(["subject", "subject_bytes"]).aggregate([("seq", "max")])
    columns: list[list[Any]] = [grouped.column(name).to_pylist() for name in ("subject", "subject_bytes", "seq_max")]
    yield from zip(*columns, strict=True)
