"""Tables of any origin, read and written as record batches.

Belongs here: reading a Delta or Parquet table in an order that is the same every time, sorting what does not fit into
memory, and writing a table of any format completely or not at all. text.py reads CSV and JSON lines.
"""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import write_deltalake
from deltalake.exceptions import DeltaError

from lakestream.lake.errors import LakeError, VersionGone
from lakestream.lake.storage.local_storage import LocalStorage
from lakestream.lake.table.log import log_directory
from lakestream.lake.table.scan import Scan
from lakestream.lake.table.schema import UID_PROPERTY, doubled, literal
from lakestream.log.format.record import Record
from lakestream.protocol.instants import instant
from lakestream_sql.connection import extension_path
from lakestream_transfer.finding import DELTA, SUFFIXES, BadSource, SourceFiles
from lakestream_transfer.mapping import MappedRows, encode_json, plain_rows
from lakestream_transfer.text import spell_binary

BATCH_ROWS = 16_384
BATCH_BYTES = 8 << 20
"""Size of the rows that are read at once, by their average size; a larger row is alone."""
SORT_BYTES = 128 << 20
"""Messages that are sorted in memory; beyond that a sort uses a temporary file."""
RECORD_BYTES = 400
"""Memory of a message besides its header and payload."""
SORT_MEMORY = "256MB"
"""Memory of DuckDB, which reads Delta tables and orders Parquet; beyond that it uses temporary files."""
LARGE_ROWS_SHARE = 0.5
"""Share of the machine's memory for rows so large that DuckDB, which reads 2,048 at once, fails with less."""

EXPORTS = {suffix: kind for suffix, kind in SUFFIXES.items() if suffix != ".tsv"}
"""Formats of an export by suffix; its CSV has commas."""

_pack, _unpack = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder().decode
_QUOTE = '"'
_QUOTED = re.compile(r'[",\r\n]|^ | $')
_PLACE = ("filename", "file_row_number")
"""Columns with which DuckDB tells a row's place."""
_NUMBER = "lakestream_row_number"


class BadTarget(LakeError):
    """Raised when a target cannot be written."""


class TableSource:
    """A table to read: Delta or Parquet.

    Args:
        files: where it is.
        version: of a Delta table; `at`: its version at that time.
        order_by: columns to sort by.

    Raises:
        BadSource: it cannot be read.
    """

    def __init__(
        self, files: SourceFiles, version: int | None = None, at: str = "", order_by: tuple[str, ...] = ()
    ) -> None:
        self.path, self._files = files.path, files
        self._order_by = order_by
        self.delta = files.kind == DELTA
        try:
            if self.delta:
                self._open_delta(version, at)
            else:
                self._open_files()
        except (OSError, ValueError) as error:
            raise BadSource(f"{self.path} cannot be read: {error}") from None
        self.names: list[str] = self.schema.names
        """The columns."""
        if missing := [column for column in order_by if column not in self.names]:
            raise BadSource(f"--order-by: {self.path} has no column {missing[0]!r}; it has {', '.join(self.names)}")

    def _open_delta(self, version: int | None, at: str) -> None:
        time = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=instant(at) // 1000) if at else None
        try:
            table = Scan(self.path, version, at=time)
        except VersionGone as error:
            raise BadSource(f"{self.path} cannot be read: {error.reason}") from None
        self.version, self._table_id = table.version, table.metadata.id
        schema = self._delta("LIMIT 0", "*").schema
        kept = [field for field in schema if field.name not in _PLACE]
        self.schema: pa.Schema = pa.schema(kept)
        self.rows: int | None = None

    def _delta(self, suffix: str, columns: str, memory: str = SORT_MEMORY) -> Any:
        """Query the table by DuckDB, which reads deletion vectors right, as a reader of record batches."""
        connection = _duckdb(memory)
        connection.execute(f"LOAD {literal(str(extension_path()))}")
        # The positions in the files are the only order that a Delta table has.
        scan = f"delta_scan({literal(self.path)}, version={self.version}, filename=true, file_row_number=true)"
        return connection.execute(f"SELECT {columns} FROM {scan} {suffix}").to_arrow_reader(BATCH_ROWS)

    def _open_files(self) -> None:
        names, base = list(self._files.names), self._files.base
        self._dataset = ds.dataset(names, format="parquet", partitioning="hive", partition_base_dir=base)
        self.schema = self._dataset.schema
        self.rows = self._dataset.count_rows()
        groups = [group for fragment in self._dataset.get_fragments() for group in fragment.row_groups]
        largest = max((group.total_byte_size // max(group.num_rows, 1) for group in groups), default=0)
        self._batch_rows = max(min(BATCH_BYTES // max(largest, 1), BATCH_ROWS), 1)

    @property
    def identity(self) -> str:
        """Return an id that is the same for the same rows in the same order."""
        text = f"delta {self._table_id} {self.version}" if self.delta else self._files.identity
        order = ",".join(self._order_by)
        return hashlib.sha256(f"{text}\n{order}".encode()).hexdigest()[:16]

    def batches(self, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield all rows, in the same order each time. Raises BadSource when a file is damaged or gone."""
        try:
            yield from self._batches(columns)
        except (duckdb.Error, OSError, ValueError) as error:  # pyarrow's errors are ValueErrors
            raise BadSource(f"{self.path} cannot be read: {error}") from None

    def _batches(self, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
        order = ", ".join(doubled(column) for column in self._order_by)
        if self.delta:
            names = ", ".join(doubled(column) for column in columns or self.schema.names)
            order = ", ".join([order, *_PLACE] if order else _PLACE)
            yield from _with_memory(lambda memory: self._delta(f"ORDER BY {order}", names, memory))
        elif order and not self._is_ordered():
            yield from _with_memory(lambda memory: self._ordered(order, columns, memory))
        else:
            yield from self._scan(columns)

    def _scan(self, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
        scanner = self._dataset.scanner(columns=columns, batch_size=self._batch_rows, fragment_readahead=1)
        yield from (batch for batch in scanner.to_batches() if batch.num_rows)

    def _ordered(self, order: str, columns: list[str] | None, memory: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order; equal ones in that of the files, so that it is the same each time."""
        connection = _duckdb(memory)
        numbered = pa.RecordBatchReader.from_batches(
            self.schema.append(pa.field(_NUMBER, pa.int64())), self._numbered()
        )
        connection.register("source", numbered)
        names = ", ".join(doubled(column) for column in columns or self.names)
        query = f"SELECT {names} FROM source ORDER BY {order}, {_NUMBER}"
        yield from connection.execute(query).to_arrow_reader(BATCH_ROWS)

    def _numbered(self) -> Iterator[pa.RecordBatch]:
        row = 0
        for batch in self._scan(None):
            numbers = pa.array(range(row, row + batch.num_rows), pa.int64())
            yield batch.append_column(_NUMBER, numbers)
            row += batch.num_rows

    def _is_ordered(self) -> bool:
        """Return True if the rows are in their order already, as those of an export are: no sort is needed."""
        (name, *others), last = self._order_by, None
        if others or not pa.types.is_integer(self.schema.field(name).type):
            return False
        for batch in self._scan([name]):
            values = batch.column(0).to_pylist()
            if None in values or (last is not None and values[0] < last) or values != sorted(values):
                return False
            last = values[-1]
        return True


def _duckdb(memory: str = SORT_MEMORY) -> Any:
    directory = tempfile.gettempdir()
    config: dict[str, Any] = {"memory_limit": memory, "temp_directory": directory, "threads": 2}
    connection = duckdb.connect(config={**config, "autoinstall_known_extensions": False})
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def _with_memory(query: Callable[[str], Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a query, which is repeated with more memory if its rows are too large for SORT_MEMORY."""
    done = 0
    try:
        for batch in query(SORT_MEMORY):
            yield batch
            done += batch.num_rows
    except duckdb.OutOfMemoryException:
        most = int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * LARGE_ROWS_SHARE)
        skip = done
        for batch in query(f"{most}B"):
            if skip < batch.num_rows:
                yield batch.slice(skip)
            skip = max(skip - batch.num_rows, 0)


def sorted_messages(messages: Iterable[MappedRows]) -> Iterator[list[Record]]:
    """Yield messages by their keys, by time without keys, in their original order where these are equal.

    Up to SORT_BYTES are sorted in memory. Beyond that, sorted runs go to a temporary file and are merged, one message
    of each run in memory at a time: a database would want thousands of rows at once, and each may have megabytes.
    """
    held: list[_Keyed] = []
    runs: list[tuple[int, int]] = []
    size = 0
    with tempfile.TemporaryFile() as file:
        for some in messages:
            keys: Iterable[Any] = some.keys if some.keys is not None else (each.time_ns for each in some.messages)
            held += [(key, each.seq, each) for key, each in zip(keys, some.messages, strict=True)]
            size += sum(len(each.data) + len(each.header) + RECORD_BYTES for each in some.messages)
            if size >= SORT_BYTES:
                runs.append(_spilled(file, held))
                held, size = [], 0
        held.sort()
        file.flush()
        ordered = heapq.merge(*(_read_run(file.fileno(), *run) for run in runs), held)
        yield from _cut(record for _, _, record in ordered)


_Keyed = tuple[Any, int, Record]
"""A sort key, a row, and its message; rows differ, so messages are never compared."""


def _spilled(file: IO[bytes], held: list[_Keyed]) -> tuple[int, int]:
    """Write a sorted run; return its positions in the file."""
    start = file.tell()
    held.sort()
    for key, seq, record in held:
        body = _pack((key, seq, record.time_ns, record.subject, record.header, record.data))
        file.write(len(body).to_bytes(4, "big") + body)
    return start, file.tell()


def _read_run(descriptor: int, at: int, end: int) -> Iterator[_Keyed]:
    while at < end:
        length = int.from_bytes(os.pread(descriptor, 4, at), "big")
        key, seq, *rest = _unpack(os.pread(descriptor, length, at + 4))
        yield key, seq, Record(seq, *rest)
        at += 4 + length


def _cut(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Yield records in lists of limited size."""
    some: list[Record] = []
    size = 0
    for record in records:
        some.append(record)
        size += len(record.data)
        if size >= BATCH_BYTES or len(some) == BATCH_ROWS:
            yield some
            some, size = [], 0
    if some:
        yield some


# ---------------------------------------------------------------------- writing


def format_of(target: str) -> str:
    """Return the format of a target by the suffix of its name; Delta without one.

    Raises:
        BadTarget: the suffix is unknown.
    """
    suffix = Path(target).suffix.lower()
    if not suffix or os.path.isdir(log_directory(target)):
        return DELTA
    if suffix not in EXPORTS:
        raise BadTarget(
            f"{target}: {suffix} is not a format of an export; there are {', '.join(EXPORTS)}, and a name without a "
            "suffix is the directory of a Delta table; --format names the format of any other name"
        )
    return EXPORTS[suffix]


def write(target: str, format: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch], overwrite: bool) -> None:
    """Write a table, one batch in memory at a time. A file appears under its name when it is complete.

    Raises:
        BadTarget: the target exists and `overwrite` is not given, or it cannot be written.
    """
    path = os.path.abspath(target)
    if os.path.exists(path) and not overwrite and not (os.path.isdir(path) and not os.listdir(path)):
        raise BadTarget(f"{target} is there already; --overwrite puts the export in its place")
    if format == "delta":
        if os.path.isfile(path):
            raise BadTarget(f"{target} is a file, and a Delta table is a directory")
        _write_delta(path, schema, batches)
        return
    if os.path.isdir(path):
        raise BadTarget(f"{target} is a directory; name the {format} file to write")
    there = LocalStorage(os.path.dirname(path))
    partial = f"{path}.partial"
    try:
        there.make_directory(there.root)
        _WRITERS[format](partial, schema, batches)
        there.sync_files([partial])
        there.move(partial, path)
    except OSError as error:
        raise BadTarget(f"{target} cannot be written: {error}") from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial)


def _write_delta(path: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    fresh = not os.path.exists(path)
    if not fresh and os.listdir(path) and not os.path.isdir(log_directory(path)):
        raise BadTarget(f"{path} has files and is no Delta table: an export does not overwrite that")
    if _is_a_streams(path):
        raise BadTarget(f"{path} is the table of a stream: the server reads old messages from it; export elsewhere")
    failures: list[BaseException] = []

    def noted() -> Iterator[pa.RecordBatch]:
        # The writer would replace an error from here by its own, without its type.
        try:
            yield from batches
        except BaseException as error:
            failures.append(error)
            raise

    try:
        reader = pa.RecordBatchReader.from_batches(schema, noted())
        there = LocalStorage(path)
        there.make_directory(path)
        write_deltalake(path, reader, mode="overwrite", schema_mode="overwrite")
        there.sync_files([path, *(entry.path for entry in there.tree(path))])  # the writer does not
    except BaseException as error:
        if fresh:
            shutil.rmtree(path, ignore_errors=True)
        if failures:
            raise failures[0] from None
        if isinstance(error, DeltaError | OSError):
            raise BadTarget(f"{path} cannot be written: {error}") from None
        raise


def _is_a_streams(path: str) -> bool:
    """Return True if a path is a table in a lake, or a clone of one."""
    if not os.path.isdir(log_directory(path)):
        return False
    try:
        return UID_PROPERTY in Scan(path).metadata.configuration
    except (FileNotFoundError, VersionGone) as error:
        raise BadTarget(f"{path} cannot be written: {getattr(error, 'reason', error)}") from None


def _write_parquet(path: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in batches:
            writer.write_batch(batch)


def _write_csv(path: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    """Write RFC 4180 with a header line; maps, lists and structs become JSON, binary becomes text or base64."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(_csv_line(schema.names))
        for batch in batches:
            file.writelines(_csv_line(map(_cell, row.values())) for row in plain_rows(batch))


def _csv_line(cells: Iterable[str]) -> str:
    """Return a record with its line end."""
    # The csv module leaves a lone carriage return without quotes, and readers end the record there.
    quoted = [f'"{cell.replace(_QUOTE, _QUOTE * 2)}"' if _QUOTED.search(cell) else cell for cell in cells]
    return (",".join(quoted) if quoted != [""] else '""') + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, dict | list):
        return encode_json(value).decode()
    if isinstance(value, bytes):
        return spell_binary(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _write_json(path: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    """Write one object per line; binary becomes base64."""
    with open(path, "wb") as file:
        for batch in batches:
            file.writelines(encode_json(row) + b"\n" for row in plain_rows(batch))


_WRITERS = {"parquet": _write_parquet, "csv": _write_csv, "json": _write_json}
