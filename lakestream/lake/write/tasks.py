"""Spark tasks that write the data files of one commit.

Belongs here: what a task is given and what it gives back. A task is pickled, so it holds nothing of Spark.
stream_compaction.py makes one for a commit, and runs it over the segments of that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa

from lakestream.lake.delta import typed_columns
from lakestream.lake.delta.schema import FORMAT_COLUMN, SCHEMA_COLUMN, TABLE_COLUMNS, Layout
from lakestream.lake.delta.schema_catalog import SchemaCatalog
from lakestream.lake.delta.typed_columns import NoColumns
from lakestream.lake.delta.typed_rows import TypedRows
from lakestream.lake.files.lake import open_storage
from lakestream.lake.write import file_statistics
from lakestream.lake.write.data_files import DataFiles, Written
from lakestream.lake.write.file_statistics import INDEXED, Path
from lakestream.lake.write.misfits import MisfitFiles
from lakestream.log.format.runs import SchemaRun
from lakestream.schemas.columns import Record

Decode = Callable[[str, int], Iterator[pa.RecordBatch]]


class Output(msgspec.Struct, frozen=True):
    """Files of a task: of the table, and of the table of misfits.

    `needed`: schema versions whose columns the table does not have yet, by reference, as JSON of their columns. Then
    there are no files.
    """

    files: list[Written] = []
    misfits: list[Written] = []
    needed: dict[str, str] = {}


_OUTPUT = msgspec.json.Decoder(Output)


class Columns(msgspec.Struct, frozen=True, kw_only=True):
    """The typed columns of a commit.

    Attributes: `lake`, `account`: of the schemas; `schemas`: runs of messages with the same ones; `table`: the columns;
    `drop_data`: rows whose payload can be given back do not keep it; `misfits`: the table of misfits, which has those
    up to the sequence `misfits_after`; `indexed`: the table's `dataSkippingNumIndexedCols`.
    """

    lake: str
    account: str
    schemas: tuple[SchemaRun, ...]
    table: Record
    drop_data: bool
    misfits: str
    misfits_after: int = 0
    indexed: int = INDEXED

    def catalog(self) -> SchemaCatalog:
        """Return the schemas."""
        return SchemaCatalog(open_storage(self.lake), self.account)

    def extended(self, needed: Mapping[str, str]) -> Columns:
        """Return the columns with those of further schema versions (`Output.needed`)."""
        table = self.table
        for reference in sorted(needed, key=_by_version):
            with contextlib.suppress(NoColumns):  # its messages are misfits
                table, _ = typed_columns.placed(table, typed_columns.of_table(needed[reference]))
        return msgspec.structs.replace(self, table=table)

    def statistics(self, layout: Layout, archive: bool) -> tuple[Path, ...]:
        """Return the columns with statistics that only tables with schemas have."""
        own = len(TABLE_COLUMNS) + archive + 1 + self.drop_data
        typed = file_statistics.indexed(self.table, own - ("subject" in layout.columns), self.indexed)
        return ((SCHEMA_COLUMN,), *typed)

    def widen(self, schema: str) -> str:
        """Return the JSON of a table's schema with these columns."""
        more = [SCHEMA_COLUMN, *([FORMAT_COLUMN] if self.drop_data else [])]
        return typed_columns.widened(schema, self.table, more)


def _by_version(reference: str) -> tuple[str, int, str]:
    """Return the sort key of `name@version` or `name@version message`."""
    name, _, rest = reference.partition("@")
    version, _, message = rest.partition(" ")
    return name, int(version), message


class WriteTask:
    """Spark task: numbers of segments in, the files with their messages out.

    Args:
        parts: path of each segment, and the log index after which its entries are wanted.
        decode: decodes one.
        table, layout, archive, random: see DataFiles.
        columns: the typed columns; None for a stream without schemas.
    """

    def __init__(
        self,
        parts: Sequence[tuple[str, int]],
        decode: Decode,
        table: str,
        layout: Layout,
        archive: bool,
        random: bool,
        columns: Columns | None = None,
    ) -> None:
        self._parts, self._decode = list(parts), decode
        self._table, self._layout, self._archive, self._random = table, layout, archive, random
        self._columns = columns

    def typed(self, columns: Columns) -> WriteTask:
        """Return the same task with typed columns."""
        return WriteTask(self._parts, self._decode, self._table, self._layout, self._archive, self._random, columns)

    def write(self, numbers: Iterable[int]) -> Output:
        """Write the messages of these segments into files."""
        rows = (batch for number in numbers for batch in self._decode(*self._parts[number]))
        columns = self._columns
        if columns is None:
            return Output(DataFiles(self._table, self._layout, self._archive, self._random).write(rows))
        indexed = columns.statistics(self._layout, self._archive)
        files = DataFiles(self._table, self._layout, self._archive, self._random, indexed=indexed)
        typed = TypedRows(columns.catalog(), columns.schemas, columns.table, columns.drop_data)
        misfits = MisfitFiles(columns.misfits, columns.misfits_after)
        written = files.write(_typed(rows, typed, misfits))
        if typed.needed:
            return Output(needed=typed.needed)
        return Output(written, misfits.close())

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        output = self.write(number for batch in batches for number in batch.column(0).to_pylist())
        yield pa.RecordBatch.from_arrays(
            [pa.array([msgspec.json.encode(output).decode()], pa.string())], names=["output"]
        )


def _typed(rows: Iterable[pa.RecordBatch], typed: TypedRows, misfits: MisfitFiles) -> Iterator[pa.RecordBatch]:
    """Yield messages with their typed columns, while the table has all that they need."""
    for batch in rows:
        found = typed.add(batch)
        if not typed.needed:
            misfits.add(found.misfits)
            yield found.rows


def joined(outputs: Iterable[str]) -> Output:
    """Return the output of several tasks, given as JSON, as one."""
    files: list[Written] = []
    misfits: list[Written] = []
    needed: dict[str, str] = {}
    for output in map(_OUTPUT.decode, outputs):
        files += output.files
        misfits += output.misfits
        needed |= output.needed
    return Output(files, misfits, needed)
