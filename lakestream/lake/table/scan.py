"""Rows of one version of a Delta table.

Belongs here: the ways from a table to its rows, and no other module knows one. `Scan` opens a version with deltalake
and queries it with DataFusion, which applies deletion vectors (deltalake's own readers reject them); of an encrypted
table, for which deltalake takes no keys, with pyarrow and DuckDB. `FileReader` reads single row groups by itself, in a
fraction of the time that a query takes to plan, and of its memory.

Rows come with their payloads. A table whose stream says `drop-when-typed` keeps none where typed columns give it back
byte for byte (`data_format` is set); other programs find NULL in `data` there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cache, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakestream.lake.errors import DamagedFile, LakeError, VersionGone
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.storage.storage import RangedFile, Storage
from lakestream.lake.table import deletion_vectors, encryption, typed_columns
from lakestream.lake.table.actions import DeletionVector, TableFile, locate
from lakestream.lake.table.conditions import SubjectRange
from lakestream.lake.table.log import TableLog, TableVersion
from lakestream.lake.table.pages import ColumnPages, Read, cells, find_pages, numbers
from lakestream.lake.table.row_groups import FileFooter, Footers, GroupSeqs, read_footer
from lakestream.lake.table.schema import (
    FORMAT_COLUMN,
    REMOVED_COLUMN,
    SCHEMA_COLUMN,
    TABLE_COLUMNS,
    column_names,
    doubled,
    table_schema,
)
from lakestream.lake.table.schema_catalog import SchemaCatalog
from lakestream.lake.table.typed_columns import plain
from lakestream.lake.table.typed_rows import given_back
from lakestream.schemas.errors import Unfit

if TYPE_CHECKING:
    from deltalake import DeltaTable, Metadata, QueryBuilder, Schema

_CONFIG = {"datafusion.execution.parquet.pushdown_filters": "true"}
_GONE = "Object at location"
"""Part of the text of the bare Exception that the query engine raises for a file that is not there."""
PIECE_BYTES = 32 * 1024 * 1024
"""Decoded size of the rows of a file that are looked at together; of a larger row group, its pages."""
KEPT_ROWS = 262_144
"""Maximum number of rows of a row group whose sequences are kept once they were decoded."""
_CHECKED = frozenset((*TABLE_COLUMNS, REMOVED_COLUMN)) - {"time"}
"""Columns whose types are checked in each file."""


class Scan:
    """A version of a table, named `t` in SQL. Safe for use by several threads.

    Args:
        table: the table's path.
        version: the version; the newest by default. `at`: the one that was current then.
        storage: where the table is; by default that of its path.

    Raises:
        FileNotFoundError: there is no table.
        VersionGone: the version is not there, or no longer, or cannot be read.
    """

    def __init__(
        self, table: str, version: int | None = None, storage: Storage | None = None, at: datetime | None = None
    ) -> None:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        self.table = table
        options = (storage or open_storage(table)).delta_options() or None
        try:
            self._delta: DeltaTable = DeltaTable(table, version=version, storage_options=options)
            if at is not None:
                self._delta.load_as_version(at)
        except DeltaError as error:
            if version is None and isinstance(error, TableNotFoundError):
                raise FileNotFoundError(str(error)) from error
            raise VersionGone(table, version, str(error)) from error
        self._lock = threading.Lock()
        self._query: QueryBuilder | None = None
        self._payloads: Payloads | None = None

    @property
    def version(self) -> int:
        """Return the version."""
        return int(self._delta.version())

    # ------------------------------------------------------------------ the table
    @property
    def metadata(self) -> Metadata:
        """Return the table's id, properties (`configuration`) and partition columns."""
        return self._delta.metadata()

    @property
    def schema(self) -> Schema:
        """Return the columns; `to_json` gives them as in the log."""
        return self._delta.schema()

    @property
    def names(self) -> list[str]:
        """Return the names of the columns."""
        return [field.name for field in self.schema.fields]

    # ------------------------------------------------------------------ its rows
    def stream(self, sql: str) -> Iterator[pa.RecordBatch]:
        """Yield the answer to a query of `t` in the engine's own types. Raises VersionGone if a file is missing."""
        try:
            for batch in self.reader(sql):
                yield pa.record_batch(batch)
        except Exception as error:  # the query engine raises bare Exception
            if _GONE not in str(error):
                raise
            raise VersionGone(self.table, self.version, str(error)) from error

    def query(self, sql: str) -> pa.Table:
        """Return the answer to a query of `t` in the engine's own types, which raises bare Exception."""
        return self.reader(sql).read_all()

    def reader(self, sql: str) -> pa.RecordBatchReader:
        """Return `query` as a stream."""
        if encryption.is_encrypted(self.table):
            return self._decrypted(sql)
        return pa.RecordBatchReader.from_stream(self._registered().execute(sql))

    def _decrypted(self, sql: str) -> pa.RecordBatchReader:
        """Return the answer to a query of an encrypted table, by DuckDB: deltalake has no keys."""
        try:
            import duckdb
        except ImportError:
            raise encryption.TableSealed(self.table, "reading it needs DuckDB; pip install lakestream-sql") from None
        state = TableLog(open_storage(self.table), self.table).state(self.version)
        connection = duckdb.connect()
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("t", encrypted_rows(self.table, state, pa.schema(self.schema.to_arrow())))
        return connection.execute(sql).to_arrow_reader()

    def rows(self, columns: Sequence[str], where: str = "") -> Iterator[pa.RecordBatch]:
        """Yield exactly these columns of the rows that meet a condition (DataFusion's SQL), in no particular order.

        Raises:
            VersionGone: a file is missing.
            PayloadUnknown: the schema of a row is missing.
        """
        payloads = self._completing()
        names = ", ".join(map(doubled, [*columns, *payloads.needed(columns)]))
        for batch in self.stream(f"SELECT {names} FROM t" + (f" WHERE {where}" if where else "")):
            if batch.schema.names == list(columns):
                yield batch
                continue
            whole = payloads.complete(pa.Table.from_batches([batch])).select(list(columns)).combine_chunks()
            yield from whole.to_batches()

    def _completing(self) -> Payloads:
        schema = self.schema.to_json()
        if self._payloads is None or self._payloads.schema != schema:
            self._payloads = Payloads(self.table, schema)
        return self._payloads

    def _registered(self) -> QueryBuilder:
        from deltalake import QueryBuilder

        with self._lock:
            if self._query is None:
                self._query = QueryBuilder(_CONFIG).register("t", self._delta)
            return self._query


def encrypted_rows(table: str, state: TableVersion, schema: pa.Schema) -> Any:
    """Return the rows of a version of an encrypted table in a directory as pyarrow's Dataset.

    Row groups without deleted rows are read when they are asked for; of others the rest is in memory.

    Args:
        schema: of the table's columns.

    Raises:
        TableSealed, FileNotFoundError.
    """
    import pyarrow.dataset as ds  # loads more than the server needs
    from pyarrow.fs import LocalFileSystem

    fragments, kept = list[Any](), [schema.empty_table()]
    for add in state.files.values():
        path = locate(table, add.path)
        properties = encryption.reading(path, open_storage(path).read_end(path, len(encryption.END))[0])
        options = ds.ParquetFragmentScanOptions(decryption_properties=properties)
        split = pc.scalar(True)
        for name in state.metadata.partition_columns:
            value = pa.scalar(add.partition_values.get(name)).cast(schema.field(name).type)
            split &= (ds.field(name) == value) if value.is_valid else ds.field(name).is_null()
        fragment = ds.ParquetFileFormat(default_fragment_scan_options=options).make_fragment(
            path, LocalFileSystem(), split
        )
        if add.deletion_vector is None:
            fragments.append(fragment)
            continue
        dead = deletion_vectors.load(add.deletion_vector, table, open_storage(table).read)
        starts = np.cumsum([0, *(group.num_rows for group in fragment.row_groups)])
        touched = set(np.searchsorted(starts, dead, "right") - 1)
        if whole := [at for at in range(len(starts) - 1) if at not in touched]:
            fragments.append(fragment.subset(row_group_ids=whole))
        for at in sorted(touched):
            there = ~np.isin(np.arange(starts[at], starts[at + 1]), dead)
            kept.append(fragment.subset(row_group_ids=[at]).to_table(schema=schema).filter(pa.array(there)))
    files = ds.FileSystemDataset(fragments, schema, ds.ParquetFileFormat())
    return ds.UnionDataset(schema, [files, ds.dataset(pa.concat_tables(kept))])


def typed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows in the usual types of a table's columns (`table_schema`); the query engine has narrower ones."""
    wanted = table_schema(batch.schema.names)
    columns = []
    for column, field in zip(batch.columns, wanted, strict=True):
        if pa.types.is_dictionary(column.type):  # a partition column, whose values may be views
            values = column.dictionary.cast(field.type)
            column = pa.DictionaryArray.from_arrays(column.indices, values).dictionary_decode()
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


# ---------------------------------------------------------------------- one file
class Pick:
    """Wanted rows of a file: a range of sequences, or exactly `seqs`; and subjects, when given. `is_only`: no other row
    group may have them."""

    def __init__(
        self,
        first: int,
        last: int,
        wanted: SubjectRange | None = None,
        seqs: Sequence[int] | None = None,
        is_only: bool = False,
    ) -> None:
        self.first, self.last, self.wanted, self.seqs, self.is_only = first, last, wanted, seqs, is_only


class FileReader:
    """Reads row groups of the files of one table, without the query engine. Safe for use by several threads.

    Args:
        table: the table's path.
        storage: where it is.
        footers: keeps what was read of the files' ends.
    """

    def __init__(self, table: str, storage: Storage, footers: Footers | None = None) -> None:
        self._table, self._storage = table, storage
        self._footers = footers if footers is not None else Footers()
        self._payloads: Payloads | None = None

    def footer(self, file: TableFile) -> FileFooter:
        """Return a file's footer.

        Raises:
            FileNotFoundError: the file has gone.
            DamagedFile: it does not end as it was written.
        """
        path = locate(self._table, file.path)

        def load() -> FileFooter:
            found, data = read_footer(self._storage, path, file)
            _check(path, data)
            self._footers.get((path, "data"), lambda: data, found.cost_of, is_spare=True)
            return found

        return self._footers.get((path, ""), load, lambda footer: footer.cost)

    def _data(self, path: str, footer: FileFooter) -> Any:
        return self._footers.get((path, "data"), partial(footer.data, path), footer.cost_of, is_spare=True)

    def forget(self) -> None:
        """Drop the footers and deletion vectors of the table."""
        self._footers.drop(f"{self._table}/")

    def read(
        self,
        file: TableFile,
        pick: Pick,
        columns: Sequence[str],
        archive: bool,
        schema: str = "",
        numbers: Sequence[int] | None = None,
    ) -> Any | None:
        """Return the wanted rows of one file as a pyarrow Table of `columns`; None when there are none.

        Args:
            archive: leave out the rows of messages that an archive keeps.
            schema: the JSON of the table's columns; "": all of its rows keep their payloads.
            numbers: of the row groups to read; by default all that may have such rows.

        Raises:
            PayloadUnknown: the schema of a row is missing.
            FileNotFoundError: the file has gone.
            DamagedFile: it is not as it was written: each page has a checksum, and the footer one in the table's log.
        """
        footer, path = self.footer(file), locate(self._table, file.path)
        payloads = None if not schema else self._completing(schema)
        if numbers is None:
            numbers = footer.holding(pick.first, pick.last, None if file.subject is not None else pick.wanted)
        names = [name for name in columns if name not in file.empty]
        names += [REMOVED_COLUMN] if archive else []
        names += payloads.needed(columns) if payloads is not None else []
        found: list[pa.Table] = []
        is_sparse = pick.seqs is not None or (pick.wanted is not None and not pick.wanted.everything)
        try:
            pieces = (
                self._sparse(path, footer, numbers, names, pick, file)
                if is_sparse
                else self._pieces(path, footer, numbers, names)
            )
            for at, rows in pieces:
                kept = self._kept(file, pick, at, rows, archive)
                if kept.num_rows:
                    kept = kept if payloads is None else payloads.complete(kept)
                    found.append(_shaped(kept, file, columns))
        except (FileNotFoundError, LakeError):
            raise
        except (pa.ArrowException, OSError, ValueError) as error:
            raise DamagedFile(path, str(error)) from error
        return pa.concat_tables(found) if found else None

    def _sparse(
        self,
        path: str,
        footer: FileFooter,
        numbers: Sequence[int],
        names: Sequence[str],
        pick: Pick,
        file: TableFile,
    ) -> Iterator[tuple[np.ndarray[Any, Any], pa.Table]]:
        """Yield (positions in the file, rows) as `_pieces`, of few rows: of the columns by which they are chosen all,
        of the others only the pages that have some."""
        looked = [name for name in names if name == "seq" or (name == "subject" and pick.seqs is None)]
        others = [name for name in names if name not in looked]
        for number in numbers:
            for positions, rows in self._chosen(path, footer, number, looked, pick, file):
                more = self._of_rows(path, footer, number, others, (positions - footer.starts[number]).tolist())
                for name, column in more.items():
                    rows = rows.append_column(name, column)
                yield positions, rows

    def _chosen(
        self, path: str, footer: FileFooter, number: int, looked: Sequence[str], pick: Pick, file: TableFile
    ) -> Iterator[tuple[np.ndarray[Any, Any], pa.Table]]:
        """Yield (positions in the file, rows) of the wanted rows of a row group, of the columns by which they are."""
        start, end = footer.starts[number : number + 2].tolist()
        if pick.seqs is not None and end - start <= KEPT_ROWS:
            decoded = cache(partial(self._seqs, path, footer, number))
            if pick.is_only or self._footers.get(
                (path, f"{number}/"), lambda: GroupSeqs.of(decoded()), attrgetter("cost")
            ).has_any(pick.seqs):
                seqs = self._footers.get((path, f"{number}"), decoded, attrgetter("nbytes"), is_spare=True)
                places = np.flatnonzero(_are_among(seqs, pick.seqs))
                yield start + places, pa.table({"seq": seqs[places]})
            return
        for at, rows in self._pieces(path, footer, [number], looked):
            if len(places := np.flatnonzero(_wanted(rows, pick, file))):
                yield at[places], rows.take(pa.array(places))

    def _seqs(self, path: str, footer: FileFooter, number: int) -> Any:
        with self._source(path, footer, number, ["seq"]) as read:
            pages = self._pages(path, footer, number, "seq", read)
            seqs = numbers(pages, read) if pages is not None else None
        if seqs is not None:
            return seqs
        with self._opened(path, footer, [number], ["seq"]) as parquet:
            column = parquet.read_row_group(number, columns=["seq"], use_threads=False).column(0)
        if column.null_count:
            raise ValueError("its column seq lacks values")
        return column.to_numpy()

    def _of_rows(
        self, path: str, footer: FileFooter, number: int, names: Sequence[str], rows: Sequence[int]
    ) -> dict[str, Any]:
        """Return columns of some rows, ascending, of a row group."""
        found: dict[str, Any] = {}
        whole: list[str] = []
        with self._source(path, footer, number, names) as read:
            for field in table_schema(names):
                pages = self._pages(path, footer, number, field.name, read) if field.name in _CHECKED else None
                if pages is None or (values := cells(pages, rows, read)) is None:
                    whole.append(field.name)
                else:
                    found[field.name] = pa.array(values, field.type)
        if whole:
            with self._opened(path, footer, [number], whole) as parquet:
                table = plain(parquet.read_row_group(number, columns=whole, use_threads=False)).take(pa.array(rows))
            found.update(zip(table.column_names, table.columns, strict=True))
        return found

    def _pages(self, path: str, footer: FileFooter, number: int, name: str, read: Read) -> ColumnPages | None:
        """Return the pages of a column in a row group, of a nested one those of its first leaf; None if the file lacks
        it, or is encrypted."""

        def load() -> ColumnPages | None:
            data = self._data(path, footer)
            places = range(data.num_columns) if footer.keys is None else ()
            described = map(data.schema.column, places)
            at = next((at for at, each in enumerate(described) if each.path.partition(".")[0] == name), None)
            if at is None:
                return None
            group = data.row_group(number)
            return find_pages(group.column(at), data.schema.column(at), group.num_rows, read)

        cost: Callable[[ColumnPages | None], int] = lambda pages: pages.cost if pages is not None else 100  # noqa: E731
        return self._footers.get((path, f"{number}/{name}"), load, cost, is_spare=True)

    @contextmanager
    def _source(self, path: str, footer: FileFooter, number: int, names: Sequence[str]) -> Iterator[Read]:
        """Return a context with a function that reads bytes of a row group."""
        if not self._storage.local:
            yield self._fetched(path, footer, [number], names).read_at
            return
        file = os.open(path, os.O_RDONLY)
        try:
            yield lambda offset, size: os.pread(file, size, offset)
        finally:
            os.close(file)

    def _pieces(
        self, path: str, footer: FileFooter, numbers: Sequence[int], names: Sequence[str]
    ) -> Iterator[tuple[np.ndarray[Any, Any], pa.Table]]:
        """Yield (positions in the file, rows) of row groups, as many at once as PIECE_BYTES allow.

        Rows have plain types: those of views, which delta-rs writes, can be neither filtered nor taken.
        """
        starts = footer.starts
        for some in _together(numbers, footer.sizes):
            with self._opened(path, footer, some, names) as parquet:
                positions = np.concatenate([np.arange(starts[number], starts[number + 1]) for number in some])
                if len(some) > 1 or footer.sizes[some[0]] <= PIECE_BYTES:
                    yield positions, plain(parquet.read_row_groups(some, columns=names, use_threads=False))
                    continue
                # Of another writer, or of payloads that compress well: its pages one after the other.
                most = max(1, len(positions) * PIECE_BYTES // int(footer.sizes[some[0]]))
                for batch in parquet.iter_batches(most, row_groups=some, columns=names, use_threads=False):
                    yield positions[: len(batch)], plain(pa.Table.from_batches([batch]))
                    positions = positions[len(batch) :]

    def _opened(self, path: str, footer: FileFooter, numbers: Sequence[int], names: Sequence[str]) -> pq.ParquetFile:
        source: Any = path
        if not self._storage.local:
            source = pa.PythonFile(self._fetched(path, footer, numbers, names), "r")
        options = {"metadata": self._data(path, footer), "decryption_properties": footer.keys}
        return pq.ParquetFile(source, page_checksum_verification=True, **options)

    def _fetched(self, path: str, footer: FileFooter, numbers: Sequence[int], names: Sequence[str]) -> Fetched:
        return Fetched(self._storage, path, footer.length, self._data(path, footer), numbers, names)

    def _kept(self, file: TableFile, pick: Pick, at: np.ndarray[Any, Any], rows: pa.Table, archive: bool) -> pa.Table:
        """Return the wanted ones of rows at these positions in a file."""
        for name in ("seq", "time_ns"):
            if name in rows.column_names and rows.column(name).null_count:
                raise ValueError(f"its column {name} lacks values")
        keep = _wanted(rows, pick, file)
        if file.deleted is not None and keep.any():
            keep &= ~np.isin(at, self._deleted(file.deleted), assume_unique=True)
        if archive and REMOVED_COLUMN in rows.column_names:
            keep &= rows.column(REMOVED_COLUMN).is_null().to_numpy()
        return rows if keep.all() else rows.filter(pa.array(keep))

    def _deleted(self, vector: DeletionVector) -> np.ndarray[Any, Any]:
        """Return the positions of the rows that a deletion vector has."""
        key = f"{self._table}/", vector.key
        load = partial(deletion_vectors.load, vector, self._table, self._storage.read)
        return self._footers.get(key, load, attrgetter("nbytes"))

    def _completing(self, schema: str) -> Payloads:
        if self._payloads is None or self._payloads.schema != schema:
            self._payloads = Payloads(self._table, schema)
        return self._payloads


class Fetched(RangedFile):
    """File of an object store, of which a part is fetched at once: the columns of some row groups."""

    def __init__(
        self, storage: Storage, path: str, length: int, data: Any, numbers: Sequence[int], names: Sequence[str]
    ) -> None:
        super().__init__(storage, path, length)
        wanted = set(names)
        starts, ends = [], [0]
        for number in numbers:
            group = data.row_group(number)
            for at in range(group.num_columns):
                column = group.column(at)
                if column.path_in_schema.partition(".")[0] in wanted:
                    first = column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
                    starts.append(first)
                    ends.append(first + column.total_compressed_size)
        self._start = min(starts, default=0)
        self._content = super().read_at(self._start, max(ends) - self._start) if starts else b""

    def read_at(self, offset: int, size: int) -> bytes:
        """Read from an offset on."""
        first = offset - self._start
        if first >= 0 and first + size <= len(self._content):
            return self._content[first : first + size]
        return super().read_at(offset, size)


def _together(numbers: Sequence[int], sizes: np.ndarray[Any, Any]) -> Iterator[list[int]]:
    """Yield row groups that are read at once."""
    some: list[int] = []
    size = 0
    for number in numbers:
        size += int(sizes[number])
        if some and size > PIECE_BYTES:
            yield some
            some, size = [], int(sizes[number])
        some.append(number)
    if some:
        yield some


def _check(path: str, data: Any) -> None:
    """Raise DamagedFile unless columns have the types that a table has: a damaged footer may tell of others."""
    there = data.schema.to_arrow_schema()
    for field in table_schema(name for name in there.names if name in _CHECKED):
        found = there.field(field.name).type
        if not _is_stored_as(found, field.type):
            raise DamagedFile(path, f"its column {field.name} is {found} instead of {field.type}")


def _is_stored_as(found: Any, wanted: Any) -> bool:
    """Return True if a file may have a column of type `wanted` so. Other writers than ours may use other text types."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    if pa.types.is_map(wanted):
        return bool(pa.types.is_map(found))
    if wanted == pa.string():
        return is_text(found)
    if wanted == pa.binary():
        return bool(pa.types.is_binary(found) or pa.types.is_large_binary(found) or pa.types.is_binary_view(found))
    return bool(found == wanted)


def _wanted(rows: pa.Table, pick: Pick, file: TableFile) -> np.ndarray[Any, Any]:
    """Return a mask of the rows with wanted sequences or, as far as they have the column, subjects in the range."""
    seqs = rows.column("seq").to_numpy()
    keep: np.ndarray[Any, Any] = (seqs >= pick.first) & (seqs <= pick.last)
    if pick.seqs is not None:
        keep &= _are_among(seqs, pick.seqs)
    if pick.wanted is not None and pick.seqs is None and file.subject is None and "subject" in rows.column_names:
        keep &= _of_subjects(rows.column("subject"), pick.wanted)
    return keep


def _are_among(seqs: Any, some: Sequence[int]) -> Any:
    return seqs == some[0] if len(some) == 1 else np.isin(seqs, np.asarray(some, np.int64))


def _of_subjects(column: Any, wanted: SubjectRange) -> np.ndarray[Any, Any]:
    if wanted.everything:
        return np.ones(len(column), bool)
    found: np.ndarray[Any, Any] = pc.is_in(column, pa.array(wanted.texts, column.type)).to_numpy()
    for head in wanted.heads:
        found = found | pc.starts_with(column, head).to_numpy()
    return found


def _shaped(found: Any, file: TableFile, columns: Sequence[str]) -> Any:
    """Return the table with exactly these columns in their usual types; writers and layouts leave out some."""
    types = {field.name: field.type for field in table_schema(columns)}
    have = set(found.column_names)
    arrays = []
    for name in columns:
        if name in have:
            column = found.column(name)
            arrays.append(column if column.type == types[name] or name == "headers" else column.cast(types[name]))
        elif name == "subject" and file.subject is not None:
            value = pa.scalar(file.subject, pa.string())
            arrays.append(pa.chunked_array([pa.repeat(value, found.num_rows)]))
        else:
            arrays.append(pa.chunked_array([pa.nulls(found.num_rows, types[name])]))
    return pa.table(arrays, names=list(columns))


def is_text(type_: Any) -> bool:
    """Return True for any type of texts."""
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_))


# ---------------------------------------------------------------------- payloads
class PayloadUnknown(LakeError):
    """Raised when the payload of a row cannot be made of its columns."""

    def __init__(self, table: str, reason: str) -> None:
        super().__init__(
            f"{table}: rows that do not keep their payload (data_format) cannot be read: {reason}; bring the schema "
            "back from a copy of the lake (schemas/<name>/<version>.json)"
        )


class Payloads:
    """Payloads of the rows of one table. Safe for use by several threads.

    Args:
        table: the table's path.
        schema: the JSON of its columns, of the version that is read or a later one.
    """

    def __init__(self, table: str, schema: str) -> None:
        self.schema = schema
        self._path = table
        self._columns = typed_columns.of_table(schema)
        self._has_formats = FORMAT_COLUMN in column_names(schema)
        self._catalog: SchemaCatalog | None = None

    def needed(self, columns: Sequence[str]) -> list[str]:
        """Return the columns to read, besides these: none, unless `data` is one of them and rows may lack it."""
        if not self._has_formats or "data" not in columns:
            return []
        more = [FORMAT_COLUMN, SCHEMA_COLUMN, *(field.column for field in self._columns.fields)]
        return [name for name in more if name not in columns]

    def complete(self, rows: pa.Table) -> pa.Table:
        """Return rows with all payloads.

        Args:
            rows: with the columns that are `needed`, as far as a file has them.

        Raises:
            PayloadUnknown: the schema of a row is missing, or cannot be read.
        """
        if FORMAT_COLUMN not in rows.column_names or rows.column(FORMAT_COLUMN).null_count == rows.num_rows:
            return rows
        catalog = self._catalog or self._opened()
        try:
            made = given_back(catalog, self._columns, plain(rows))
        except (Unfit, ValueError) as error:
            self._catalog = None  # it remembers what is missing
            raise PayloadUnknown(self._path, str(error)) from None
        self._catalog = catalog
        return rows.set_column(rows.column_names.index("data"), "data", made)

    def _opened(self) -> SchemaCatalog:
        lake, account = paths.lake_of(self._path)
        return SchemaCatalog(open_storage(lake), account)
