"""Rows of a live view as Arrow.

Belongs here: the Arrow types of a table's columns, decoded messages in those columns, and reading the table's part of
a view in pieces. Every batch that leaves here has exactly the types of `schema`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lakestream.lake.delta.schema import REMOVED_COLUMN, Layout, bucket_of, headers_type
from lakestream.lake.delta.segments import Ending, alive
from lakestream.lake.errors import LakeError
from lakestream.lake.files.storage import open_storage

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

    from lakestream.lake.read.live import LiveView

RANGE_ROWS = 100_000
"""Rows of the table that one query reads, about."""
_STATISTICS = ("min.seq", "max.seq", "num_records")


class VersionGone(LakeError):
    """Files of a table's version were taken away while it was being read."""

    def __init__(self, table: str, version: int | None, reason: str) -> None:
        super().__init__(
            f"version {version} of {table} can no longer be read ({reason}). Read again; if reading takes longer than "
            "the maintainer keeps old files (--retain-hours), have it keep them longer"
        )


def schema(columns: Sequence[str]) -> pa.Schema:
    """The Arrow types of a table's columns."""
    import pyarrow as pa

    types: dict[str, Any] = {
        "seq": pa.int64(),
        "time": pa.timestamp("us", "UTC"),
        "time_ns": pa.int64(),
        "headers": headers_type(),
        "data": pa.binary(),
        "header_block": pa.binary(),
        "subject_bytes": pa.binary(),
        "bucket": pa.int32(),
        REMOVED_COLUMN: pa.int64(),
    }
    return pa.schema([(name, types.get(name, pa.string())) for name in columns])


def shaped(
    batch: pa.RecordBatch, columns: Sequence[str], layout: Layout | None, first: int, last: int
) -> Iterator[pa.RecordBatch]:
    """A batch of the decoder with a table's columns, only the rows with first ≤ seq ≤ last; nothing if there are
    none."""
    import pyarrow as pa

    seqs = batch.column("seq").to_numpy()
    if len(seqs) and (seqs[0] < first or seqs[-1] > last):  # a segment is in sequence order
        start, stop = int(seqs.searchsorted(first)), int(seqs.searchsorted(last, "right"))
        batch = batch.slice(start, stop - start)
    if not batch.num_rows:
        return
    names = batch.schema.names
    wanted = schema(columns)
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
    """How a partition column follows from the subject; None for any other column."""
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
    import pyarrow as pa

    encoded = column.dictionary_encode()
    values = pa.array([function(value) for value in encoded.dictionary.to_pylist()], kind)
    return values.take(encoded.indices)


def ranges(view: LiveView, first: int, last: int) -> list[tuple[int, int]]:
    """Ranges of sequences that cut first … last, as far as the table has them, into pieces of about RANGE_ROWS rows."""
    import pyarrow as pa

    last = min(last, view.table_last_seq)
    if view.version is None or first > last:
        return []
    adds = pa.table(_pinned(view).get_add_actions(flatten=True))
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
    """first … last in pieces of RANGE_ROWS rows, where `edges` tells by how much the rows per sequence change at some
    sequences. Files overlap, those of several subjects for instance, and each is taken to be even within."""
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
    """The table's part of a view within ranges of sequences.

    Args:
        view: the view.
        spans: ranges (first, last).
        columns: those of the view that are wanted.
        where: a further condition, in DataFusion's SQL.

    Raises:
        VersionGone: files have been taken away.
    """
    import pyarrow as pa
    from deltalake import QueryBuilder

    if view.version is None or not spans:
        return
    names = [*columns] if "seq" in columns else [*columns, "seq"]
    wanted = schema(names)
    condition = " AND ".join(f"({part})" for part in (where, view.ended_sql()) if part)
    query = QueryBuilder({"datafusion.execution.parquet.pushdown_filters": "true"}).register("t", _pinned(view))
    for first, last in spans:
        within = f"seq >= {first} AND seq <= {last}" + (f" AND {condition}" if condition else "")
        sql = f"SELECT {', '.join(_stored(view, names))} FROM t WHERE {within}"
        try:
            for found in query.execute(sql):
                batch = _living(pa.record_batch(found), wanted, view)
                if batch.num_rows:
                    yield batch if len(names) == len(columns) else batch.select(list(columns))
        except Exception as error:  # the query engine's errors have no class of their own
            if "Object at location" not in str(error):
                raise
            raise VersionGone(view.table, view.version, str(error)) from error


def _stored(view: LiveView, names: Sequence[str]) -> list[str]:
    """Columns as the table has them; what has ended since is `_ended`'s. The query engine overflows its stack, and the
    process dies of it, on conditions of some thousand terms."""
    lacks = REMOVED_COLUMN not in view.table_columns
    return [f"CAST(NULL AS BIGINT) AS {name}" if name == REMOVED_COLUMN and lacks else name for name in names]


def _pinned(view: LiveView) -> DeltaTable:
    """The table at the view's version. Raises VersionGone."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    options = open_storage(view.table).delta_options() or None
    try:
        return DeltaTable(view.table, version=view.version, storage_options=options)
    except DeltaError as error:
        raise VersionGone(view.table, view.version, str(error)) from error


def _living(batch: pa.RecordBatch, wanted: pa.Schema, view: LiveView) -> pa.RecordBatch:
    """The batch with exactly the types of `wanted`, of which query engines have narrower ones of their own, and without
    the rows that have died: here and not in SQL, where a long list takes its time."""
    import pyarrow as pa

    arrays = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(batch.columns, wanted, strict=True)
    ]
    if view.endings and REMOVED_COLUMN in wanted.names:
        at = wanted.names.index(REMOVED_COLUMN)
        arrays[at] = _ended(arrays[at], arrays[wanted.names.index("seq")].to_numpy(), view.endings)
    batch = pa.RecordBatch.from_arrays(arrays, schema=wanted)
    mask = alive(batch.column("seq").to_numpy(), view.hidden)
    return batch if mask.all() else batch.filter(pa.array(mask))


def _ended(column: pa.Array, seqs: Any, endings: Sequence[Ending]) -> pa.Array:
    """An archive's `removed_time_ns` with what the segments beyond the table say: the earliest ending counts."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    known = pc.fill_null(column, 0).to_numpy()
    times = known.copy()
    for ending in reversed(endings):
        gone = (seqs >= ending.floor_before) & (seqs < ending.floor)
        if len(ending.removed):
            gone |= np.isin(seqs, np.asarray(ending.removed, np.int64))
        times[gone] = ending.at_ns
    times[known != 0] = known[known != 0]
    return pa.array(times, pa.int64(), mask=times == 0)


def completed(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Exactly these columns, in this order; one that the batch lacks is NULL."""
    import pyarrow as pa

    names = batch.schema.names
    if names == list(columns):
        return batch
    wanted = schema(columns)
    arrays = [
        batch.column(field.name) if field.name in names else pa.nulls(batch.num_rows, field.type) for field in wanted
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)
