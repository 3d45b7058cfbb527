"""A table's large files, read through deltalake's query engine.

Belongs here: one registered version of the table for DataFusion, and the queries that history reads need. DataFusion
skips pages of a file by their statistics, which reading a whole file cannot, but planning a query costs time, and
holding the table costs memory, for every file of it: small files are read directly instead (scan.py).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lakestream.lake.delta.schema import REMOVED_COLUMN
from lakestream.lake.files.storage import Storage
from lakestream.lake.read.history.index import Snapshot, Wanted
from lakestream.lake.read.history.rows import Pick

if TYPE_CHECKING:
    from deltalake import DeltaTable, QueryBuilder

KEEP_FILES = 2_000
"""A table of more files than this is not held between two queries: it takes up to 5 KiB for each of them."""

_CONFIG = {"datafusion.execution.parquet.pushdown_filters": "true"}
_IN_MOST = 20  # longer lists are not used for leaving out files and pages


class SqlTable:
    """One table for DataFusion. Safe for use by several threads.

    Args:
        table: path or URL of the table.
        storage: where it is.
    """

    def __init__(self, table: str, storage: Storage) -> None:
        self._table = table
        self._storage = storage
        self._lock = threading.Lock()
        self._delta: DeltaTable | None = None
        self._query: QueryBuilder | None = None

    def rows(self, snapshot: Snapshot, pick: Pick, columns: Sequence[str], limit: int = 0) -> Any:
        """The rows asked for, in sequence order, as a pyarrow Table; `limit`: at most so many."""
        sql = f"SELECT {', '.join(columns)} FROM t WHERE {_condition(snapshot, pick)} ORDER BY seq"
        return self._ask(snapshot, f"{sql} LIMIT {limit}" if limit else sql)

    def lowest_since(self, snapshot: Snapshot, first: int, last: int, time_ns: int) -> int:
        """The lowest sequence of a range whose time is at or after `time_ns`; 0: none."""
        where = f"{_condition(snapshot, Pick(first, last))} AND time_ns >= {time_ns}"
        return self._ask(snapshot, f"SELECT min(seq) AS seq FROM t WHERE {where}").column("seq")[0].as_py() or 0

    def newest(self, snapshot: Snapshot, pick: Pick) -> Any:
        """The highest sequence of each subject among the rows asked for: columns subject, subject_bytes, seq."""
        return self._ask(
            snapshot,
            "SELECT subject, subject_bytes, max(seq) AS seq FROM t "
            f"WHERE {_condition(snapshot, pick)} GROUP BY subject, subject_bytes",
        )

    def close(self) -> None:
        """Let go of the table; the next query loads it anew."""
        with self._lock:
            self._delta = self._query = None

    def _ask(self, snapshot: Snapshot, sql: str) -> Any:
        import pyarrow as pa

        query = self._registered(snapshot.version)
        found = pa.table(query.execute(sql).read_all())
        if len(snapshot.files) > KEEP_FILES:
            self.close()
        return found

    def _registered(self, version: int) -> QueryBuilder:
        """The table at `version` or later."""
        with self._lock:
            from deltalake import DeltaTable, QueryBuilder

            if self._delta is None:
                options = self._storage.delta_options()
                self._delta = DeltaTable(self._table, storage_options=options or None)
                self._query = None
            elif self._delta.version() < version:
                self._delta.update_incremental()
                self._query = None  # what is registered stays at its version
            if self._query is None:
                self._query = QueryBuilder(_CONFIG).register("t", self._delta)
            return self._query


def _condition(snapshot: Snapshot, pick: Pick) -> str:
    parts = [f"seq >= {pick.first}", f"seq <= {pick.last}"]
    if pick.seqs is not None:
        lists = [pick.seqs[at : at + _IN_MOST] for at in range(0, len(pick.seqs), _IN_MOST)]
        parts.append("(" + " OR ".join(f"seq IN ({', '.join(map(str, some))})" for some in lists) + ")")
    if pick.wanted is not None and not pick.wanted.everything:
        parts += _of_subjects(pick.wanted)
    if snapshot.shape.archive:
        parts.append(f"{REMOVED_COLUMN} IS NULL")
    return " AND ".join(parts)


def _of_subjects(wanted: Wanted) -> list[str]:
    ways = [f"(subject >= {_quoted(head)} AND subject < {_quoted(head + chr(0x10FFFF))})" for head in wanted.heads]
    if wanted.texts:
        ways.append(f"subject IN ({', '.join(map(_quoted, wanted.texts))})")
    parts = ["(" + " OR ".join(ways) + ")"]
    if len(wanted.texts) > _IN_MOST and not wanted.heads:
        parts.append(f"subject >= {_quoted(wanted.texts[0])} AND subject <= {_quoted(wanted.texts[-1])}")
    return parts


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
