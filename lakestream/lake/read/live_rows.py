"""Rows of a live view as Arrow data.

Belongs here: the record of a view and its SQL, the Arrow types of a table's columns, and reading the table's part and
the uncompacted part in batches. Every batch has exactly the types of `schema`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestream.lake.errors import LakeError
from lakestream.lake.read.conditions import MAX_CONDITIONS, Condition
from lakestream.lake.table import batches, segments
from lakestream.lake.table import departures as departure_files
from lakestream.lake.table.batches import Ending
from lakestream.lake.table.departures import Dead
from lakestream.lake.table.progress import Progress
from lakestream.lake.table.scan import Scan, typed
from lakestream.lake.table.schema import END, REMOVED_COLUMN, Layout, bucket_of, doubled, table_schema
from lakestream.lake.table.segments import alive
from lakestream.log.format.departures import Departures, Point
from lakestream.log.format.runs import SchemaRun

RANGE_ROWS = 100_000
"""Approximate number of table rows that one query reads."""
_STATISTICS = ("min.seq", "max.seq", "num_records")


class SegmentGone(LakeError):
    """Raised when a staged segment was deleted while a view over it was being read."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} is no longer staged: the table has held it for longer than the server's lake.staged_grace. "
            "Read again; if reading takes that long, raise lake.staged_grace (and staged_grace_bytes)"
        )


class UncompactedPart(msgspec.Struct, frozen=True):
    """A staged segment of a view: its entries with a log index above `after`; its sequences lie within the range."""

    path: str
    after: int
    size: int
    first_seq: int
    last_seq: int


class LiveView(msgspec.Struct, frozen=True, kw_only=True):
    """One stream at one point.

    The rows of `table` at `version` without those of `hidden_sql`, and those of `tail_batches`, together are the
    messages that the stream held after log entry `last_index` (archives: all messages ever kept).

    `version` is None while there is no table. `position` is the log index through which the table holds the stream,
    `table_last_seq` its last sequence there; `last_seq` is the stream's last one. `columns` are the view's, in the
    table's order. `hidden` are the messages removed since, `endings` the same for archives. `uncleared` are those
    removed by `position` that may still be in the table, and `departures` tells when the rest of `hidden` was removed;
    None without time travel. `shredded` are runs of `hidden` that no past may show (secure delete). `flushed`: the
    server has staged everything that was acked before; else `note` says why not.
    """

    lake: str
    stream: str
    account: str
    uid: str
    table: str
    version: int | None
    position: int
    table_last_seq: int
    last_index: int
    last_seq: int
    floor: int
    columns: tuple[str, ...]
    table_columns: tuple[str, ...]
    layout: Layout | None
    archive: bool
    drops_ended: bool
    hidden: Dead
    before: Progress | None
    endings: tuple[Ending, ...] | None
    parts: tuple[UncompactedPart, ...]
    flushed: bool
    note: str = ""
    uncleared: Dead = Dead()
    departures: Departures | None = None
    shredded: tuple[tuple[int, int], ...] = ()
    typed: str = ""
    """JSON of the table's columns, if it has typed ones (typed_tail.py)."""
    schemas: tuple[SchemaRun, ...] = ()
    """Runs of the uncompacted messages with the same schemas."""

    def at(self, point: Point) -> LiveView:
        """Return the view with messages that were removed after a point; messages stored after it are for the reader to
        skip.

        Without time travel: the view itself.
        """
        if self.departures is None:
            return self
        hidden = departure_files.both(self.uncleared, departure_files.gone(self.departures, point))
        return msgspec.structs.replace(self, hidden=departure_files.both(hidden, Dead(runs=self.shredded)))

    def hidden_conditions(self) -> list[str]:
        """Return SQL conditions of bounded length; a table row for which one of them holds was removed."""
        if self.version is None:
            return []
        found = batches.deletions(self.position, self.before, self.hidden)
        if self.drops_ended:
            found.append(f"{REMOVED_COLUMN} IS NOT NULL")
        return found

    def hidden_sql(self) -> str | None:
        """Return the same as one condition; None when no row of the table was removed."""
        conditions = self.hidden_conditions()
        return " OR ".join(f"({condition})" for condition in conditions) or None

    def removed_sql(self) -> str | None:
        """Return the column `removed_time_ns` of the table's rows as SQL; None except in archives."""
        if REMOVED_COLUMN not in self.columns:
            return None
        has = REMOVED_COLUMN in self.table_columns
        sql = REMOVED_COLUMN if has else "CAST(NULL AS BIGINT)"
        cases = []
        for update in batches.updates(self.position, self.before, self.endings):
            condition = update.condition if has else update.condition.replace(f"{REMOVED_COLUMN} IS NULL", "TRUE")
            cases.append(f"WHEN {condition} THEN {update.value}")
        return f"CASE {' '.join(cases)} ELSE {sql} END" if cases else sql

    def table_sql(self, source: str, columns: Sequence[str] | None = None, where: str = "") -> str:
        """Return a SELECT of the table's part of the view.

        Args:
            source: the FROM item for the table at `version`.
            columns: the wanted columns of the view; all by default.
            where: a further condition.
        """
        chosen = ", ".join(self.expressions(self.columns if columns is None else columns))
        hidden = self.hidden_sql()
        conditions = [f"({where})"] if where else []
        conditions += [f"NOT ({hidden})"] if hidden else []
        return f"SELECT {chosen} FROM {source}" + (f" WHERE {' AND '.join(conditions)}" if conditions else "")

    def expressions(self, columns: Sequence[str]) -> list[str]:
        """Return columns of the view as SQL over the table."""
        removed = self.removed_sql() if REMOVED_COLUMN in columns else None
        own = {*self.columns}
        plain = [name if name in own else doubled(name) for name in columns]
        return [f"{removed} AS {name}" if name == REMOVED_COLUMN else name for name in plain]

    def tail_batches(self, first: int = 1, last: int = END) -> Iterator[pa.RecordBatch]:
        """Yield the uncompacted messages with first ≤ seq ≤ last, in sequence order, as `table_schema(columns)`.

        Raises:
            SegmentGone: the view is too old.
        """
        endings = self.endings if self.archive else None
        for part in self.parts:
            if part.first_seq > last or part.last_seq < first:
                continue
            try:
                for batch in segments.decode(part.path, part.after, self.hidden, endings=endings):
                    yield from shaped(batch, self.columns, self.layout, first, last)
            except FileNotFoundError:
                raise SegmentGone(part.path) from None


def shaped(
    batch: pa.RecordBatch, columns: Sequence[str], layout: Layout | None, first: int, last: int
) -> Iterator[pa.RecordBatch]:
    """Yield a decoder's batch with a table's columns, only the rows with first ≤ seq ≤ last; nothing if there are
    none."""
    seqs = batch.column("seq").to_numpy()
    if len(seqs) and (seqs[0] < first or seqs[-1] > last):  # a segment is in sequence order
        start, stop = int(seqs.searchsorted(first)), int(seqs.searchsorted(last, "right"))
        batch = batch.slice(start, max(stop - start, 0))  # Arrow does not check for a negative length
    if not batch.num_rows:
        return
    names = batch.schema.names
    wanted = table_schema(columns)
    arrays = []
    for field in wanted:
        if field.name in names:
            arrays.append(batch.column(field.name))
        elif field.name == "time":
            micros = batch.column("time_ns").to_numpy() // 1000
            arrays.append(pa.array(micros, pa.int64()).cast(field.type))
        elif (function := _of_subject(field.name, layout)) is not None:
            arrays.append(_mapped(batch.column("subject"), function, field.type))
        else:
            arrays.append(pa.nulls(batch.num_rows, field.type))
    yield pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _of_subject(column: str, layout: Layout | None) -> Callable[[str], Any] | None:
    """Return the function from a subject to a partition column; None for any other column."""
    if layout is None or column not in layout.columns:
        return None
    if layout.kind == "bucket":
        return lambda subject: bucket_of(subject, layout.bounds)
    number = int(column.removeprefix("token")) - 1

    def token(subject: str) -> str | None:
        tokens = subject.split(".")
        return (tokens[number] or None) if number < len(tokens) else None

    return token


def _mapped(column: Any, function: Callable[[str], Any], kind: Any) -> Any:
    encoded = column.dictionary_encode()
    values = pa.array([function(value) for value in encoded.dictionary.to_pylist()], kind)
    return values.take(encoded.indices)


def ranges(view: LiveView, first: int, last: int) -> list[tuple[int, int]]:
    """Return ranges of about RANGE_ROWS rows that cover first … last as far as the table has them."""
    last = min(last, view.table_last_seq)
    if view.version is None or first > last:
        return []
    adds = Scan(view.table, view.version).files()
    if not set(_STATISTICS) <= set(adds.column_names):
        return [(first, last)]
    edges: dict[int, float] = {}
    for low, high, rows in zip(*(adds.column(name).to_pylist() for name in _STATISTICS), strict=True):
        low, high = low if low is not None else first, high if high is not None else last
        if low <= last and high >= first:
            density = (rows or 0) / (high - low + 1)
            begin, end = max(low, first), min(high, last) + 1
            edges[begin] = edges.get(begin, 0.0) + density
            edges[end] = edges.get(end, 0.0) - density
    return _cut(edges, first, last)


def _cut(edges: dict[int, float], first: int, last: int) -> list[tuple[int, int]]:
    """Cut first … last into ranges of RANGE_ROWS rows. `edges` has the changes of density (rows per sequence) by
    sequence: files may overlap, and each is assumed to be even."""
    cuts: list[tuple[int, int]] = []
    start = at = first
    held = density = 0.0
    for edge in sorted(edges):
        while density > 1e-9 and held + density * (edge - at) >= RANGE_ROWS:
            stop = min(edge, at + max(1, math.ceil((RANGE_ROWS - held) / density)))
            cuts.append((start, stop - 1))
            start, at, held = stop, stop, 0.0
        held += density * (edge - at)
        density += edges[edge]
        at = edge
    if start <= last:
        cuts.append((start, last))
    return cuts


def table_batches(
    view: LiveView, spans: Sequence[tuple[int, int]], columns: Sequence[str], where: str = ""
) -> Iterator[pa.RecordBatch]:
    """Yield the table's part of a view within ranges of sequences.

    Args:
        view: the view.
        spans: ranges (first, last).
        columns: the wanted columns of the view.
        where: a further condition, in DataFusion's SQL.

    Raises:
        VersionGone: files were deleted.
    """
    if view.version is None or not spans:
        return
    names = [*columns] if "seq" in columns else [*columns, "seq"]
    stored = [name for name in names if name != REMOVED_COLUMN or name in view.table_columns]
    # A table that no longer is an archive loses the rows of messages that the stream no longer has.
    ended = f"{REMOVED_COLUMN} IS NULL" if view.drops_ended else ""
    condition = " AND ".join(f"({part})" for part in (where, ended) if part)
    scan = Scan(view.table, view.version)
    for first, last in spans:
        within = f"seq >= {first} AND seq <= {last}" + (f" AND {condition}" if condition else "")
        for found in scan.rows(stored, within):
            batch = _living(completed(typed(found), names), view)
            if batch.num_rows:
                yield batch if len(names) == len(columns) else batch.select(list(columns))


def _living(batch: pa.RecordBatch, view: LiveView) -> pa.RecordBatch:
    """Return the batch without removed rows. They are filtered here, since a long list in SQL is slow: the query engine
    overflows its stack, and the process dies, on conditions of some thousand terms."""
    seqs = batch.column("seq").to_numpy()
    if view.endings and REMOVED_COLUMN in batch.schema.names:
        at = batch.schema.names.index(REMOVED_COLUMN)
        batch = batch.set_column(at, batch.schema.field(at), _ended(batch.column(at), seqs, view.endings))
    mask = alive(seqs, view.hidden)
    return batch if mask.all() else batch.filter(pa.array(mask))


def _ended(column: pa.Array, seqs: Any, endings: Sequence[Ending]) -> pa.Array:
    """Return an archive's `removed_time_ns` with the endings of uncompacted segments: the earliest one counts."""
    known = pc.fill_null(column, 0).to_numpy()
    times = known.copy()
    for ending in reversed(endings):
        gone = (seqs >= ending.floor_before) & (seqs < ending.floor)
        if len(ending.removed):
            gone |= np.isin(seqs, np.asarray(ending.removed, np.int64))
        times[gone] = ending.at_ns
    times[known != 0] = known[known != 0]
    return pa.array(times, pa.int64(), mask=times == 0)


def selected(
    view: LiveView,
    spans: Sequence[tuple[int, int]],
    tail: tuple[int, int],
    columns: Sequence[str],
    conditions: Sequence[Condition],
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a view for which all conditions hold, with exactly these columns.

    Args:
        view: the view.
        spans: ranges (first, last) of the table's part.
        tail: range of sequences of the uncompacted part.
        columns: the wanted columns; one that the view does not have is NULL.
        conditions: on columns of the view.

    Raises:
        VersionGone, SegmentGone.
    """
    held = [name for name in columns if name in view.columns]
    where = " AND ".join(condition.sql() for condition in conditions[:MAX_CONDITIONS])
    rest = [each for each in conditions[:MAX_CONDITIONS] if not each.is_exact_in_sql] + list(
        conditions[MAX_CONDITIONS:]
    )
    needed = [*held, *dict.fromkeys(each.column for each in rest if each.column not in held)]
    for batch in table_batches(view, spans, needed, where):
        yield from _fitting(batch, rest, columns)
    for batch in view.tail_batches(*tail):
        yield from _fitting(batch, conditions, columns)


def _fitting(
    batch: pa.RecordBatch, conditions: Sequence[Condition], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    for condition in conditions:
        batch = batch.filter(condition.mask(batch))
    if batch.num_rows:
        yield completed(batch, columns)


def completed(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Return exactly these columns, in this order; a column that the batch lacks is NULL."""
    names = batch.schema.names
    if names == list(columns):
        return batch
    wanted = table_schema(columns)
    arrays = [
        batch.column(field.name) if field.name in names else pa.nulls(batch.num_rows, field.type) for field in wanted
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)
