"""A stream's past as its table has it, for the server.

Belongs here: from a point of a stream to the last message of each subject at that point, and to messages as they were
then, out of the version of the table that timetravel.py finds and the file beside it (departed.py). Blocks; runs in
threads. The newest version, which the server reads all the time, is history.py's.

Versions are read through deltalake's query engine. It is given what files can be left out by (sequences, and ranges of
subjects); what had left is taken out of its answer here, since long conditions are what it does worst.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lakestream.lake import departed
from lakestream.lake.errors import LakeError
from lakestream.lake.history_rows import COLUMNS, records
from lakestream.lake.live_rows import schema
from lakestream.lake.segments import Dead, alive
from lakestream.lake.storage import open_storage
from lakestream.lake.timetravel import KEEP_MORE, CommitLog, Kept, NotATable, TimeTravelError, version_of_point
from lakestream.log.departures import Point
from lakestream.log.record import Record
from lakestream.protocol.subjects import Filters

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import QueryBuilder

OPEN_VERSIONS = 2
"""Versions of one table that are held: a client that pages asks for the same one again and again."""

_CONFIG = {"datafusion.execution.parquet.pushdown_filters": "true"}
_LISTED = 50
"""Subjects that are given to the query engine; of more it is given the range."""


class Answer:
    """What a table knows of a point; see `jetstream.ports.Was`."""

    def __init__(self, kept: Kept, through: int, newest: list[int] | None) -> None:
        self.within = kept.version is not None
        self.position = kept.progress.last_index if kept.progress is not None else 0
        self.through, self.newest = through, newest


class TablePast:
    """The past of the stream whose table is at a path or URL. Safe for use by several threads."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._storage = open_storage(table)
        self._lock = threading.Lock()
        self._log: CommitLog | None = None
        self._open: OrderedDict[int, QueryBuilder] = OrderedDict()

    def was(self, patterns: Sequence[bytes], point: Point, limit: int) -> Answer:
        """The last message of each subject that one of `patterns` is or matches, as the stream was at a point.

        Raises:
            TimeTravelError, DeparturesGone: that is not kept, or no longer.
        """
        kept = self._find(point)
        if kept.version is None or kept.progress is None:
            return Answer(kept, kept.progress.last_seq if kept.progress is not None else 0, [])
        wanted = Filters(patterns)
        where = _condition(patterns)
        by_text: dict[tuple[str, bytes | None], int] = {}
        for batch in self._rows(kept, point, ("seq", "subject", "subject_bytes"), where):
            for subject, raw, seq in _newest(batch):
                if seq > by_text.get((subject, raw), 0):
                    by_text[subject, raw] = seq
        newest = [
            seq for (text, raw), seq in by_text.items() if wanted.match(raw if raw is not None else text.encode())
        ]
        return Answer(kept, self._through(kept, point), sorted(newest) if len(newest) <= limit else None)

    def rows(self, seqs: Sequence[int], point: Point, max_bytes: int) -> list[Record]:
        """The first of these messages (ascending), as many as fit into `max_bytes`, at least one.

        Raises: as `was`.
        """
        import pyarrow as pa

        kept = self._find(point)
        version = kept.version
        if version is None:
            version = self._commits().latest if kept.progress is not None else None
        if version is None:
            return []
        listed = " OR ".join(f"seq IN ({', '.join(map(str, seqs[at : at + 20]))})" for at in range(0, len(seqs), 20))
        where = f"seq >= {seqs[0]} AND seq <= {seqs[-1]} AND ({listed})"
        found: list[Record] = []
        batches = [batch for batch in self._query(version, COLUMNS, where) if batch.num_rows]
        if batches:
            found = records(pa.Table.from_batches(batches).sort_by("seq").combine_chunks())
        size = 0
        for count, record in enumerate(found):
            size += len(record.subject) + len(record.header) + len(record.data)
            if count and size > max_bytes:
                return found[:count]
        return found

    def close(self) -> None:
        """Let go of the versions held."""
        with self._lock:
            self._log = None
            self._open.clear()

    def _find(self, point: Point) -> Kept:
        try:
            log = self._commits()
            return version_of_point(log, point)
        except NotATable:
            return Kept(None, None)
        except FileNotFoundError:  # log clean-up was quicker
            return version_of_point(self._commits(), point)

    def _commits(self) -> CommitLog:
        with self._lock:
            log = self._log
            if log is None:
                log = self._log = CommitLog(self._table)
            else:
                log.refresh()
            return log

    def _through(self, kept: Kept, point: Point) -> int:
        """The last sequence that was stored by the point."""
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

    def _rows(self, kept: Kept, point: Point, columns: Sequence[str], where: str) -> Iterator[pa.RecordBatch]:
        """The rows of messages that the stream held at a point within its table; `seq` is one of `columns`."""
        import numpy as np
        import pyarrow as pa

        assert kept.version is not None
        assert kept.progress is not None
        stored = f"seq <= {point.seq}" if point.seq else f"time_ns < {point.before_ns}"
        dead = Dead()
        if kept.progress.departed:
            dead = departed.gone(departed.read(self._storage, self._table, kept.progress.last_index), point)
        if dead.runs:  # as an array once, not for each batch
            runs: Any = np.asarray(dead.runs, np.int64)
            dead = Dead(runs=runs)
        for batch in self._query(kept.version, columns, f"{stored} AND {where}" if where else stored):
            mask = alive(batch["seq"].to_numpy(), dead)
            yield batch if mask.all() else batch.filter(pa.array(mask))

    def _query(self, version: int, columns: Sequence[str], where: str) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        sql = f"SELECT {', '.join(columns)} FROM t WHERE {where}"
        try:
            for found in self._pinned(version).execute(sql):
                yield _plain(pa.record_batch(found))
        except LakeError:
            raise
        except Exception as error:  # the query engine's errors have no class of their own
            if "Object at location" not in str(error):
                raise
            raise _gone(self._table, version) from error

    def _pinned(self, version: int) -> QueryBuilder:
        from deltalake import DeltaTable, QueryBuilder
        from deltalake.exceptions import DeltaError

        with self._lock:
            if version in self._open:
                self._open.move_to_end(version)
                return self._open[version]
        options = self._storage.delta_options() or None
        try:
            table = DeltaTable(self._table, version=version, storage_options=options)
        except DeltaError as error:
            raise _gone(self._table, version) from error
        query = QueryBuilder(_CONFIG).register("t", table)
        with self._lock:
            self._open[version] = query
            while len(self._open) > OPEN_VERSIONS:
                self._open.popitem(last=False)
        return query


def _gone(table: str, version: int) -> TimeTravelError:
    return TimeTravelError(f"version {version} of {table} is no longer there; {KEEP_MORE}")


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Some rows in the usual types of their columns, of which query engines have narrower ones of their own."""
    import pyarrow as pa

    wanted = schema(batch.schema.names)
    columns = []
    for column, field in zip(batch.columns, wanted, strict=True):
        if pa.types.is_dictionary(column.type):  # a partition column, whose values may be views
            values = column.dictionary.cast(field.type)
            column = pa.DictionaryArray.from_arrays(column.indices, values).dictionary_decode()
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _newest(batch: pa.RecordBatch) -> Iterator[tuple[str, bytes | None, int]]:
    """The highest sequence of each subject in some rows."""
    import pyarrow as pa

    if not batch.num_rows:
        return
    table = pa.Table.from_batches([batch])
    grouped = table.group_by(["subject", "subject_bytes"]).aggregate([("seq", "max")])
    columns: list[list[Any]] = [grouped.column(name).to_pylist() for name in ("subject", "subject_bytes", "seq_max")]
    yield from zip(*columns, strict=True)


def _condition(patterns: Sequence[bytes]) -> str:
    """What rows of matching subjects have in common, as SQL by which files can be left out; "" for nothing."""
    literals, heads = [], []
    for pattern in patterns:
        tokens = pattern.split(b".")
        wild = next((at for at, token in enumerate(tokens) if token in (b"*", b">")), None)
        try:
            if wild is None:
                literals.append(pattern.decode())
            else:
                heads.append(b"".join(token + b"." for token in tokens[:wild]).decode())
        except UnicodeDecodeError:
            return ""
    if "" in heads:
        return ""
    ways = [
        f"(subject >= {_quoted(head)} AND subject < {_quoted(head + chr(0x10FFFF))})" for head in sorted(set(heads))
    ]
    if len(ways) > _LISTED:
        names = [*heads, *literals]
        return f"subject >= {_quoted(min(names))} AND subject < {_quoted(max(names) + chr(0x10FFFF))}"
    if len(literals) > _LISTED:
        ways.append(f"(subject >= {_quoted(min(literals))} AND subject <= {_quoted(max(literals))})")
    elif literals:
        ways.append(f"subject IN ({', '.join(map(_quoted, literals))})")
    return "(" + " OR ".join(ways) + ")" if ways else ""


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
