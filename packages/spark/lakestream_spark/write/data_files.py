"""Data files of one commit, written from Arrow without Spark's row format.

Belongs here: distributing decoded messages over a table's partitions, their order in a file, and Parquet files.
file_statistics.py has the statistics that the commit states of them. stream_compaction.py runs this in Spark tasks or
in the driver, and commits.

Typed columns are those that the messages at hand have; files begin anew where further ones appear, and readers take a
column that a file lacks as NULL. Columns have ids for readers of Iceberg (field_ids.py).

Messages are gathered up to `SPOOL_BYTES`, sorted by an integer key (partition, run of sequences, subject), and written
as row groups of each partition's file. Numbers, bounds and null counts are those of the columns in memory, so no
file is read again.

A reader of one subject decodes one row group of each run, if runs are whole and no group has rows of two: a group with
the end of one and the beginning of the next has subjects from the first to the last, so that every reader decodes it.
So a spool ends between two runs, and the rest waits for the next one. Where most subjects have one message in a run,
row groups have a Bloom filter of them: many groups whose bounds have a subject in them do not have it.

Dictionaries are for columns whose values repeat. Of those of each message they are larger than the values: a tenth of a
file, a third of the time that Parquet takes, and readers decode a whole one for a single row. Other columns are
plain, as every reader knows it: with DELTA_BINARY_PACKED files would have another tenth less, but it was not tried with
all readers.

Source: Delta protocol, "Add File and Remove File".
"""

from __future__ import annotations

import secrets
import string
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import lru_cache
from itertools import pairwise
from typing import Any
from urllib.parse import quote

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakestream.lake.errors import UnfitSubject
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.storage.storage import Storage
from lakestream.lake.table import encryption
from lakestream.lake.table.schema import REMOVED_COLUMN, SUBJECT_MOST, TABLE_COLUMNS, Layout, escaped, table_schema
from lakestream_client.lake import partitions
from lakestream_spark.write.field_ids import with_ids
from lakestream_spark.write.file_ends import EndWriter
from lakestream_spark.write.file_statistics import FileStatistics, Path
from lakestream_spark.write.layouts import GROUP_ROWS, PAGE_SETTING, RUN_SEQS

SPOOL_BYTES = 32 * 1024 * 1024
"""Size of the messages that are sorted together; about three times as much is in memory."""
OPEN_FILES = 64
"""Maximum number of files that stay open for further messages; with more partitions each spool has files of its own."""
PREFIX_CHARS = 2
"""Length of the random directory names of tables by subject or tokens, Delta's default."""

_UNQUOTED = "/=-_.~$&'()*+,;:@!"
"""Characters that a path in the log has as they are."""
_PAGE_ROWS = int(PAGE_SETTING[1])
_BLOOM = {"subject": {"ndv": GROUP_ROWS, "fpp": 0.1}}
"""Bloom filters have 8 KiB: 2 % of full row groups with small messages. More exact ones have twice as many bytes, and
save no more time."""
_OF_EACH = ("seq", "time", "time_ns", "data", REMOVED_COLUMN)
"""Columns without dictionaries: each message has its own value."""
_BOUNDED = ("subject", "seq", "time", "time_ns", REMOVED_COLUMN)
"""Columns of every table with bounds in the statistics of files, row groups and pages, beside typed ones."""

Values = tuple[str | None, ...]
"""Values of the partition columns, as the log spells them."""


class NewFile(msgspec.Struct, frozen=True, rename="camel"):
    """A data file: the fields of its `add` action."""

    path: str
    partition_values: dict[str, str | None]
    size: int
    modification_time: int
    stats: str
    tags: dict[str, str]
    data_change: bool = True


class _File:
    """A data file that is open for row groups."""

    def __init__(
        self,
        storage: Storage,
        table: str,
        relative: str,
        values: dict[str, str | None],
        schema: Any,
        indexed: Sequence[Path],
        repeating: Collection[str],
        keyed: bool,
    ) -> None:
        self.relative, self.values = relative, values
        keys = encryption.writing(table)
        self.statistics = FileStatistics(indexed, keys is not None)
        self._closing = ExitStack()
        self._content = self._closing.enter_context(storage.writing(f"{table}/{relative}"))
        bounded = [name for name in _BOUNDED if name in schema.names]
        bounded += [".".join(path) for path in indexed if path[0] in schema.names]
        self._sink = EndWriter(self._content)
        self._writer = pq.ParquetWriter(
            self._sink, with_ids(schema), write_statistics=bounded, write_page_index=True, store_schema=False,
            max_rows_per_page=_PAGE_ROWS, write_batch_size=_PAGE_ROWS, write_page_checksum=True,
            use_dictionary=[path for path in repeating if not (keyed and path == "subject")],
            bloom_filter_options=_BLOOM if keyed and keys is None else None,  # pyarrow encrypts none
            encryption_properties=keys,
        )  # fmt: skip

    def write(self, rows: pa.Table, groups: Iterable[int]) -> None:
        """Append rows, in row groups of these numbers of rows."""
        start = 0
        for count in groups:
            self._writer.write_table(rows.slice(start, count), row_group_size=count)
            start += count
        self.statistics.add(rows, tuple(self.values))

    def close(self) -> NewFile:
        """End the file, durably."""
        self._sink.begin_end()
        self._writer.close()
        size, tags = self._content.tell(), self._sink.end.tags()
        self._closing.close()
        path, now_ms = quote(self.relative, safe=_UNQUOTED), time.time_ns() // 1_000_000
        return NewFile(path, self.values, size, now_ms, self.statistics.stated(), tags)

    def abandon(self) -> None:
        """Close the file, whatever was written."""
        self._writer.close()
        self._closing.close()


class DataFiles:
    """Writes messages, in sequence order, into new files of one table. A task has one of its own.

    Args:
        table: the table's path.
        layout: its partitioning.
        archive: it has the column of the time of removal.
        random: directories have random names (`delta.randomizeFilePrefixes`), else those of the partition's values.
        spool_bytes, open_files: see the constants.
        indexed: typed columns with statistics (`file_statistics.indexed`).
    """

    def __init__(
        self,
        table: str,
        layout: Layout,
        archive: bool = False,
        random: bool = True,
        spool_bytes: int = SPOOL_BYTES,
        open_files: int = OPEN_FILES,
        indexed: Sequence[Path] = (),
    ) -> None:
        self._table = table
        self._storage = open_storage(table)
        self._layout = layout
        self._spool_bytes, self._open_files = spool_bytes, open_files
        self._indexed = indexed
        columns = [*TABLE_COLUMNS, *([REMOVED_COLUMN] if archive else [])]
        self._random = random
        # As Delta does: where a file's directory does not tell the partition, its columns do. Polars relies on that.
        told = [] if random else layout.columns
        columns = [column for column in columns if column not in layout.columns]
        self._partitions_in_files = [column for column in layout.columns if column not in told]
        self._plain = table_schema([*columns, *self._partitions_in_files])
        self._own = {*columns, *layout.columns, *TABLE_COLUMNS, REMOVED_COLUMN}
        self._schema = self._plain  # of the files that are open
        self._repeating = _repeating(self._schema)
        self._values_of: dict[str, Values] = {}
        self._held: list[pa.RecordBatch] = []
        self._bytes = 0
        self._open: dict[Values, _File] = {}
        self._written: list[NewFile] = []
        self._number = 0
        self._places: set[Values] = set()

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[NewFile]:
        """Write all messages and return the new files.

        On an error the files so far stay, which no commit names; VACUUM deletes them.

        Raises:
            UnfitSubject: the messages are of more than SUBJECT_MOST partitions by time and fields.
        """
        try:
            for batch in batches:
                self._held.append(batch)
                self._bytes += batch.nbytes
                if self._bytes >= self._spool_bytes:
                    rest = self._after_last_run()
                    self._flush()
                    self._held, self._bytes = rest, sum(each.nbytes for each in rest)
            if self._held:
                self._flush()
            self._close_all()
        except BaseException:
            for file in self._open.values():
                file.abandon()
            raise
        return self._written

    def _after_last_run(self) -> list[pa.RecordBatch]:
        """Take the messages of the last run away, of which more will come; nothing where there is no other run."""
        if self._layout.kind == "subject":
            return []
        rest, border = list[pa.RecordBatch](), self._held[-1]["seq"][-1].as_py() // RUN_SEQS * RUN_SEQS
        if self._held[0]["seq"][0].as_py() >= border:
            return rest
        while (seqs := self._held[-1]["seq"].to_numpy())[-1] >= border:
            batch, cut = self._held.pop(), int(np.searchsorted(seqs, border))
            rest.insert(0, batch.slice(cut))
            if cut:
                self._held.append(batch.slice(0, cut))
        return rest

    def _flush(self) -> None:
        """Sort the messages at hand and write them as row groups of each partition."""
        columns = _joined(self._held)
        self._held, self._bytes = [], 0
        self._take_schema(columns)
        subjects = columns["subject"].dictionary_encode()
        texts: list[str] = subjects.dictionary.to_pylist()
        by_text = sorted(range(len(texts)), key=texts.__getitem__)  # code points order as their UTF-8 does
        ranks = np.empty(len(texts), np.int64)
        ranks[by_text] = np.arange(len(texts))
        texts.sort()
        rank = ranks[subjects.indices.to_numpy()]
        if self._layout.kind == "fields":
            part, listed = self._parts(columns, len(rank))
        else:
            places = [self._place(text) for text in texts]
            numbers = {values: number for number, values in enumerate(dict.fromkeys(places))}
            part = np.array([numbers[values] for values in places], np.int64)[rank]
            listed = list(numbers)
        seqs, times = columns["seq"].to_numpy(), columns["time_ns"].to_numpy()
        order = _order(part, rank, seqs, self._layout)
        part = part[order]
        cuts = [0, *(np.flatnonzero(np.diff(part)) + 1).tolist(), len(part)]
        if len(self._open) + len(listed) > self._open_files:
            self._close_all()
        for start, stop in pairwise(cuts):
            rows = order[start:stop]
            values = listed[part[start]]
            keyed = len(rows) >= GROUP_ROWS and bool(2 * np.count_nonzero(np.diff(rank[rows])) > len(rows))
            file = self._open.get(values) or self._begin(values, keyed)
            file.write(self._taken(columns, rows, values), _groups(_runs(seqs[rows], self._layout)))
            file.statistics.widen("seq", int(seqs[rows].min()), int(seqs[rows].max()))
            file.statistics.widen("time_ns", int(times[rows].min()), int(times[rows].max()))
            if self._layout.kind != "subject":
                file.statistics.widen("subject", texts[rank[rows].min()], texts[rank[rows].max()])
            if REMOVED_COLUMN in columns:
                bounds = pc.min_max(columns[REMOVED_COLUMN].take(pa.array(rows))).as_py()
                if bounds["min"] is not None:
                    file.statistics.widen(REMOVED_COLUMN, bounds["min"], bounds["max"])
            if len(listed) > self._open_files:
                self._written.append(self._open.pop(values).close())

    def _take_schema(self, columns: dict[str, Any]) -> None:
        """Give the files the typed columns of these messages; open ones that lack some are closed."""
        typed = {name: column.type for name, column in columns.items() if name not in self._own}
        if typed.keys() <= set(self._schema.names):
            return
        self._close_all()
        known = {field.name: field.type for field in self._schema if field.name not in self._plain.names}
        first = len(self._plain) - len(self._partitions_in_files)
        fields = [*self._plain][:first] + [pa.field(*each) for each in {**known, **typed}.items()]
        self._schema = pa.schema(fields + [*self._plain][first:])
        self._repeating = _repeating(self._schema)

    def _parts(self, columns: dict[str, Any], rows: int) -> tuple[Any, list[Values]]:
        """Return the number of each row's partition by time and fields, and the values of each."""
        part, listed = np.zeros(rows, np.int64), list[Values]([()])
        for values in partitions.arrays(self._layout, columns, rows).values():
            encoded = values.dictionary_encode(null_encoding="encode")
            texts = [None if value is None else str(value) for value in encoded.dictionary.to_pylist()]
            both, part = np.unique(part * len(texts) + encoded.indices.to_numpy(), return_inverse=True)
            listed = [(*listed[each // len(texts)], texts[each % len(texts)]) for each in both.tolist()]
        self._places.update(listed)
        if len(self._places) > SUBJECT_MOST:
            raise UnfitSubject(", ".join(map(str, listed[-1])))
        return part, listed

    def _place(self, subject: str) -> Values:
        """Return the partition of a subject."""
        found = self._values_of.get(subject)
        if found is None:
            found = self._values_of[subject] = partition_values(subject, self._layout)
        return found

    def _begin(self, values: Values, keyed: bool) -> _File:
        """Open a new file for a partition. `keyed`: most of its subjects have one message in a run."""
        columns = self._layout.columns
        if self._random:
            directory = "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(PREFIX_CHARS))
        else:
            directory = "/".join(f"{column}={escaped(value)}" for column, value in zip(columns, values, strict=True))
        name = f"{directory}/part-{self._number:05}-{uuid.uuid4()}.c000.snappy.parquet"
        self._number += 1
        constant = dict(zip(columns, values, strict=True))
        found = _File(self._storage, self._table, name, constant, self._schema, self._indexed, self._repeating, keyed)
        self._open[values] = found
        return found

    def _taken(self, columns: dict[str, Any], rows: Any, values: Values) -> pa.Table:
        """Return these rows of a partition with the columns of the files."""
        start, count = int(rows[0]), len(rows)
        constant = dict(zip(self._layout.columns, values, strict=True))
        names = [name for name in self._schema.names if name not in constant]
        if int(rows[-1]) - start + 1 == count and bool((np.diff(rows) == 1).all()):
            found = {name: columns[name].slice(start, count) for name in names if name in columns}
        else:
            at = pa.array(rows)
            found = {name: columns[name].take(at) for name in names if name in columns}
        # Open files may have columns of earlier messages.
        found.update((name, pa.nulls(count, self._schema.field(name).type)) for name in names if name not in found)
        for name in self._schema.names[len(names) :]:
            value = constant[name]
            kind = self._schema.field(name).type
            found[name] = pa.repeat(pa.scalar(value, pa.string()).cast(kind), count)
        return pa.Table.from_pydict(found, schema=self._schema)

    def _close_all(self) -> None:
        while self._open:
            values = next(iter(self._open))
            self._written.append(self._open[values].close())
            del self._open[values]


@lru_cache(maxsize=64)
def _repeating(schema: pa.Schema) -> frozenset[str]:
    """Return the paths in Parquet of the columns with dictionaries."""
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, schema).close()
    columns = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    return frozenset(columns.column(at).path for at in range(len(columns))) - {*_OF_EACH}


def partition_values(subject: str, layout: Layout) -> Values:
    """Return the values of the partition columns for a subject, as the log spells them."""
    return tuple(None if value is None else str(value) for value in layout.values(subject))


def _runs(seqs: Any, layout: Layout) -> list[int]:
    """Return the numbers of rows of the runs of a partition."""
    if layout.kind == "subject":
        return [len(seqs)]
    borders = np.flatnonzero(np.diff(seqs // RUN_SEQS)) + 1
    return [stop - start for start, stop in pairwise([0, *borders.tolist(), len(seqs)])]


def _groups(runs: Iterable[int]) -> Iterator[int]:
    """Yield the numbers of rows of row groups for runs: equal parts of a large run, or several small runs together."""
    small = 0
    for rows in runs:
        if small and small + rows > GROUP_ROWS:
            yield small
            small = 0
        small += rows
        if small > GROUP_ROWS:
            parts = round(small / GROUP_ROWS)
            yield from (small * (at + 1) // parts - small * at // parts for at in range(parts))
            small = 0
    if small:
        yield small


def _joined(batches: Sequence[pa.RecordBatch]) -> dict[str, Any]:
    """Return the columns of the batches, each in one piece, with the column `time`."""
    kinds = {field.name: field.type for batch in batches for field in batch.schema}
    columns = {
        name: pa.concat_arrays(
            [batch.column(name) if name in batch.schema.names else pa.nulls(batch.num_rows, kind) for batch in batches]
        )
        for name, kind in kinds.items()
    }
    micros = pc.divide(columns["time_ns"], pa.scalar(1000, pa.int64()))
    return {**columns, "time": micros.cast(pa.timestamp("us", "UTC"))}


def _order(part: Any, rank: Any, seqs: Any, layout: Layout) -> Any:
    """Return the order of rows: partitions, runs of sequences in each, and subjects in each run, by sequence.

    `seqs` ascends, and the sort is stable. In a table by subject a partition has one subject.
    """
    key = part
    if layout.kind != "subject":
        runs = seqs // RUN_SEQS
        runs -= runs.min()
        key = (part * (int(runs.max()) + 1) + runs) * (int(rank.max()) + 1) + rank
    if int(key.max()) < 1 << 16:
        key = key.astype(np.uint16)  # numpy sorts these by radix
    return np.argsort(key, kind="stable")
