"""Old messages, read back from a stream's Delta table.

Belongs here: `TableHistory`, which answers the server's questions about messages that have left the log: by sequence,
by range, by subject, by time. It reads with deltalake's query engine (DataFusion), in the caller's thread, without the
interpreter lock for most of the time, and never needs a JVM. It depends on no particular file: a compaction, OPTIMIZE
or VACUUM by anybody may replace files at any time, and a read that finds one gone takes a new snapshot and goes again.

Invariant: rows below a snapshot's highest sequence never come later. The compactor appends in sequence order, so a
block read once stays right, but for messages deleted since; those the stream itself leaves out.
"""

from __future__ import annotations

import itertools
import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from lakestream.lake.cache import Block, BlockCache, cost
from lakestream.lake.errors import HistoryUnavailable
from lakestream.lake.schema import bucket_of, subject_text
from lakestream.log.record import Record

if TYPE_CHECKING:
    from deltalake import DeltaTable, QueryBuilder

T = TypeVar("T")

BLOCK_BYTES = 2 * 1024 * 1024
"""Size that a block of messages aims at."""
BLOCK_ROWS = 8192
"""Most messages of one block when the table is read in sequence."""
POINT_ROWS = 512
"""Most messages of one block when single messages are asked for."""
QUERY_BYTES = 32 * 1024 * 1024
"""Estimated size at which a query by subject is cut into several."""
MAX_SUBJECTS = 512
"""More subjects than this are looked for in blocks rather than named in a query."""
ATTEMPTS = 3
"""Snapshots tried before a read fails."""

_COMPRESSION = 4  # how much smaller than its messages a Parquet file may well be
_COLUMNS = "seq, time_ns, subject, subject_bytes, headers, header_block, data"
_owners = itertools.count(1)


class _File(msgspec.Struct, frozen=True, gc=False):
    """What the transaction log says about one file of a snapshot."""

    min_seq: int
    max_seq: int
    min_time: int
    max_time: int
    rows: int
    size: int


class _Snapshot(msgspec.Struct, frozen=True, gc=False):
    """One version of the table, ready to be queried."""

    version: int
    query: Any
    files: list[_File]
    max_seq: int
    bucketed: bool


class TableHistory:
    """The messages of one stream's table.

    All methods block and may be called from several threads at once.

    Args:
        table: path of the table.
        cache: where blocks are kept; its limit is the only memory that grows. A cache of its own when not given.
    """

    def __init__(self, table: str, cache: BlockCache | None = None) -> None:
        self.table = table
        self._cache = cache if cache is not None else BlockCache()
        self._owner = next(_owners)
        self._lock = threading.Lock()
        self._delta: DeltaTable | None = None
        self._snapshot: _Snapshot | None = None
        self._expected = -1  # where sequential reading would go on
        self._stretch = 1  # how much sparser than the file statistics say the table turned out to be

    def read(
        self,
        first: int,
        last: int,
        limit: int,
        subjects: Sequence[bytes] | None = None,
        max_bytes: int = 0,
    ) -> list[Record]:
        """Messages with first ≤ seq ≤ last, ascending, at most `limit`.

        Messages that were deleted from the stream a short time ago may be among them.

        Args:
            subjects: literal subjects; only their messages, when given.
            max_bytes: stop once subjects, headers and payloads together reach it (0: no limit). At least one message
                is returned if there is any, so fewer than `limit` messages below this size mean that there are no more.

        Raises:
            HistoryUnavailable: the table could not be read.
        """
        if limit <= 0 or first > last:
            return []
        if subjects is None:
            return self._read_blocks(first, last, limit, max_bytes, None)
        if len(subjects) > MAX_SUBJECTS:
            return self._read_blocks(first, last, limit, max_bytes, frozenset(subjects))
        return self._read_subjects(first, last, limit, max_bytes, subjects) if subjects else []

    def first_at(self, time_ns: int) -> int:
        """The lowest sequence whose time is at or after `time_ns` (ns since the epoch); 0 when there is none.

        Raises:
            HistoryUnavailable: the table could not be read.
        """

        def ask(snapshot: _Snapshot) -> int:
            # Times rise with sequences, so a file that starts at or after the time bounds the answer.
            bound = min((file.min_seq for file in snapshot.files if file.min_time >= time_ns), default=snapshot.max_seq)
            if not any(file.max_time >= time_ns for file in snapshot.files):
                return 0
            sql = f"SELECT min(seq) AS seq FROM t WHERE time_ns >= {int(time_ns)} AND seq <= {bound}"
            rows = _execute(snapshot.query, sql)
            return rows.column("seq")[0].as_py() or 0

        return self._with_snapshot(ask)

    def max_seq(self) -> int:
        """The highest sequence in the table, by its file statistics; 0 when it is empty."""
        return self._with_snapshot(lambda snapshot: snapshot.max_seq)

    def close(self) -> None:
        """Forget the snapshot and the cached blocks."""
        self._cache.drop(self._owner)
        with self._lock:
            self._delta = self._snapshot = None

    # Blocks

    def _read_blocks(
        self, first: int, last: int, limit: int, max_bytes: int, subjects: frozenset[bytes] | None
    ) -> list[Record]:
        found: list[Record] = []
        size = 0
        while first <= last:
            block = self._cache.find(self._owner, first)
            if block is None:
                block = self._load(first, limit)
                if block is None:
                    break
            records = block.records
            start = bisect_left(records, first, key=_seq)
            for at in range(start, len(records)):
                record = records[at]
                if record.seq > last:
                    return found
                if subjects is not None and record.subject not in subjects:
                    continue
                size += len(record.subject) + len(record.header) + len(record.data)
                if max_bytes and found and size > max_bytes:
                    return found
                found.append(record)
                if len(found) >= limit:
                    return found
            first = block.last + 1
        return found

    def _load(self, first: int, limit: int) -> Block | None:
        """Read the block that starts at `first` (or at the next sequence any file holds); None beyond the table."""
        sequential = first == self._expected or limit > POINT_ROWS

        def ask(snapshot: _Snapshot) -> Block | None:
            start = min((max(file.min_seq, first) for file in snapshot.files if file.max_seq >= first), default=None)
            if start is None:
                return None
            rows = min(_rows_within(snapshot, start, BLOCK_BYTES), BLOCK_ROWS if sequential else POINT_ROWS)
            last = min(snapshot.max_seq, start + _span(snapshot, start, rows) * self._stretch - 1)
            following = self._cache.next_start(self._owner, first)
            if following is not None:
                last = min(last, following - 1)
            if last < start:  # nothing between the gap and the next cached block
                return Block(first, last, [], 0)
            sql = f"SELECT {_COLUMNS} FROM t WHERE seq >= {start} AND seq <= {last} ORDER BY seq LIMIT {rows}"
            records = _records(_execute(snapshot.query, sql))
            if len(records) >= rows:
                last = records[-1].seq
            if len(records) < rows // 4 and last < snapshot.max_seq:
                self._stretch = min(self._stretch * 4, 1 << 30)
            elif len(records) >= rows:
                self._stretch = max(1, self._stretch // 2)
            return Block(first, last, records, cost(records))

        block = self._with_snapshot(ask)
        if block is not None:
            self._cache.put(self._owner, block)
            self._expected = block.last + 1
        return block

    # Subjects

    def _read_subjects(
        self, first: int, last: int, limit: int, max_bytes: int, subjects: Sequence[bytes]
    ) -> list[Record]:
        wanted = frozenset(subjects)
        texts = sorted({subject_text(subject)[0] for subject in wanted})
        names = ", ".join("'" + text.replace("'", "''") + "'" for text in texts)
        buckets = ", ".join(map(str, sorted({bucket_of(text) for text in texts})))
        found: list[Record] = []
        size = 0
        while first <= last and len(found) < limit:
            asked = 0

            def ask(snapshot: _Snapshot, first: int = first) -> list[Record]:
                nonlocal asked
                asked = min(limit - len(found), _rows_within(snapshot, first, QUERY_BYTES))
                where = f"seq >= {first} AND seq <= {min(last, snapshot.max_seq)} AND subject IN ({names})"
                if snapshot.bucketed:
                    where += f" AND bucket IN ({buckets})"
                sql = f"SELECT {_COLUMNS} FROM t WHERE {where} ORDER BY seq LIMIT {asked}"
                return _records(_execute(snapshot.query, sql))

            records = self._with_snapshot(ask)
            for record in records:
                if record.subject not in wanted:  # two raw subjects with one text
                    continue
                size += len(record.subject) + len(record.header) + len(record.data)
                if max_bytes and found and size > max_bytes:
                    return found
                found.append(record)
            if len(records) < asked:
                break
            first = records[-1].seq + 1
        return found

    # Snapshots

    def _with_snapshot(self, ask: Callable[[_Snapshot], T]) -> T:
        """Ask the newest snapshot; a failure is answered with a freshly loaded one, up to ATTEMPTS times."""
        for attempt in range(ATTEMPTS):
            try:
                return ask(self._current(reload=attempt > 0))
            except Exception as error:  # deltalake raises bare Exception for a file that has gone
                if attempt == ATTEMPTS - 1:
                    raise HistoryUnavailable(f"{self.table} could not be read: {error}") from error
        raise AssertionError("unreachable")

    def _current(self, reload: bool) -> _Snapshot:
        with self._lock:
            snapshot = self._snapshot
            if snapshot is not None and not reload:
                known = self._has_commit(snapshot.version)
                if known and not self._has_commit(snapshot.version + 1):
                    return snapshot
                reload = not known  # log cleanup took this version's commit, and maybe the next one's too
            from deltalake import DeltaTable

            if self._delta is None or reload:
                self._delta = DeltaTable(self.table)
            else:
                self._delta.update_incremental()
            self._snapshot = _take_snapshot(self._delta)
            return self._snapshot

    def _has_commit(self, version: int) -> bool:
        return os.path.exists(os.path.join(self.table, "_delta_log", f"{version:020d}.json"))


def _take_snapshot(delta: DeltaTable) -> _Snapshot:
    from deltalake import QueryBuilder

    query = QueryBuilder().register("t", delta)
    bucketed = any(field.name == "bucket" for field in delta.schema().fields)
    files = _files(delta)
    if files is None:  # some writer left the statistics out
        row = _execute(query, "SELECT max(seq) AS m, max(time_ns) AS t, count(*) AS n FROM t")
        top = row.column("m")[0].as_py() or 0
        files = [_File(1, top, 0, row.column("t")[0].as_py() or 0, row.column("n")[0].as_py(), 1)] if top else []
    max_seq = max((file.max_seq for file in files), default=0)
    return _Snapshot(delta.version(), query, files, max_seq, bucketed)


def _files(delta: DeltaTable) -> list[_File] | None:
    """Statistics of the snapshot's files; None unless every file has them."""
    import pyarrow as pa

    actions = pa.table(delta.get_add_actions(flatten=True))
    if actions.num_rows == 0:
        return []
    names = ("min.seq", "max.seq", "min.time_ns", "max.time_ns", "num_records", "size_bytes")
    if not set(names) <= set(actions.schema.names) or any(actions.column(name).null_count for name in names):
        return None
    return [_File(*row) for row in zip(*(actions.column(name).to_pylist() for name in names), strict=True)]


def _rows_within(snapshot: _Snapshot, first: int, size: int) -> int:
    """How many messages from `first` on fit into about `size` bytes; at least 1."""
    per_row = max((f.size // max(f.rows, 1) for f in snapshot.files if f.max_seq >= first), default=1)
    return max(1, size // (per_row * _COMPRESSION + 1))


def _span(snapshot: _Snapshot, first: int, rows: int) -> int:
    """How many sequences from `first` on hold about `rows` messages, by the density of the files there."""
    near = [f for f in snapshot.files if f.max_seq >= first and f.min_seq < first + rows]
    held = sum(f.rows for f in near)
    if not held:
        return rows
    width = max(f.max_seq for f in near) - min(f.min_seq for f in near) + 1
    return max(rows, rows * width // held)


def _execute(query: QueryBuilder, sql: str) -> Any:
    """Run a query and return a pyarrow Table."""
    import pyarrow as pa

    return pa.table(query.execute(sql).read_all())


def _records(table: Any) -> list[Record]:
    """Rows of `_COLUMNS` as records."""
    if table.num_rows == 0:
        return []
    subjects = _byte_values(table.column("subject"))
    raw_subjects = table.column("subject_bytes")
    if raw_subjects.null_count < table.num_rows:
        kept = raw_subjects.to_pylist()
        subjects = [raw if raw is not None else text for raw, text in zip(kept, subjects, strict=True)]
    return list(
        map(
            Record,
            table.column("seq").to_pylist(),
            table.column("time_ns").to_pylist(),
            subjects,
            _header_blocks(table.column("headers"), table.column("header_block")),
            _byte_values(table.column("data")),
        )
    )


def _byte_values(column: Any) -> list[bytes]:
    """A string or binary column without nulls as bytes objects; much faster than `to_pylist`."""
    import pyarrow as pa

    values: list[bytes] = []
    for chunk in column.chunks:
        array = chunk.cast(pa.large_string()).cast(pa.large_binary()) if _is_text(chunk.type) else chunk
        array = array.cast(pa.large_binary())
        if array.null_count:
            values.extend(value or b"" for value in array.to_pylist())
            continue
        _, offsets, data = array.buffers()
        if data is None:
            values.extend([b""] * len(array))
            continue
        bounds = memoryview(offsets).cast("q")[array.offset : array.offset + len(array) + 1].tolist()
        base = bounds[0]
        content = data.slice(base, bounds[-1] - base).to_pybytes()
        values.extend([content[a - base : b - base] for a, b in itertools.pairwise(bounds)])
    return values


def _is_text(type_: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_))


def _header_blocks(headers: Any, blocks: Any) -> list[bytes]:
    """Header blocks as they were sent: the raw one where it was kept, else spelled from the map; b"" for none."""
    from lakestream.lake.schema import join_headers

    count = len(headers)
    if headers.null_count == count and blocks.null_count == count:
        return [b""] * count
    found = [b"" if pairs is None else join_headers(pairs) for pairs in headers.to_pylist()]
    if blocks.null_count < count:
        kept = blocks.to_pylist()
        found = [spelled if raw is None else raw for raw, spelled in zip(kept, found, strict=True)]
    return found


def _seq(record: Record) -> int:
    return record.seq
