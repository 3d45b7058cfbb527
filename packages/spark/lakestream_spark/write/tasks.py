"""The Spark tasks that write the data files of a micro-batch.

Belongs here: what the tasks are given and what they give back. A task takes rows of the streaming source
(write/source.py), decodes the segments that they name, and writes the files of each stream; the driver commits them
(stream_compaction.py). Everything here is pickled, so it holds nothing of Spark.

An error of one stream is a row of the result. It must not end the task, which writes other streams' files too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from lakestream.lake.errors import BadSegment, LakeError, UnfitSubject
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table import segments, typed_columns
from lakestream.lake.table.batches import Removal
from lakestream.lake.table.departures import DeletedMessages
from lakestream.lake.table.schema import FORMAT_COLUMN, SCHEMA_COLUMN, TABLE_COLUMNS, Layout
from lakestream.lake.table.schema_catalog import SchemaCatalog
from lakestream.lake.table.typed_columns import NoColumns
from lakestream.lake.table.typed_rows import TypedRows
from lakestream.log.format.runs import SchemaRun
from lakestream.schemas.columns import RecordType
from lakestream_spark.write import file_statistics
from lakestream_spark.write.data_files import DataFiles, NewFile
from lakestream_spark.write.file_statistics import INDEXED, Path
from lakestream_spark.write.misfits import MisfitFiles
from lakestream_spark.write.widening import widened

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class DamagedSegment(msgspec.Struct, frozen=True):
    """A segment that does not decode (`BadSegment`)."""

    path: str
    offset: int
    reason: str


class Output(msgspec.Struct, frozen=True):
    """Result of tasks for a stream's segments: files of its table, and of its table of misfits.

    `parts`: paths of the segments that are in the files. `needed`: schema versions whose columns the table does not
    have yet, by reference, as JSON of their columns; `unfit`: a subject does not fit a partition. Then, and after a
    `failure` or with a `damaged` segment, there are no files.
    """

    parts: list[str] = []
    files: list[NewFile] = []
    misfits: list[NewFile] = []
    needed: dict[str, str] = {}
    unfit: bool = False
    damaged: DamagedSegment | None = None
    failure: str = ""

    def joined(self, more: Output) -> Output:
        """Return the output of two tasks as one."""
        return Output(
            self.parts + more.parts,
            self.files + more.files,
            self.misfits + more.misfits,
            self.needed | more.needed,
            self.unfit or more.unfit,
            self.damaged or more.damaged,
            self.failure or more.failure,
        )


_OUTPUT = msgspec.json.Decoder(Output)


class CommitColumns(msgspec.Struct, frozen=True, kw_only=True):
    """The typed columns of a commit.

    Attributes: `lake`, `account`: of the schemas; `schemas`: runs of messages with the same ones; `table`: the columns;
    `drop_data`: rows whose payload can be given back do not keep it; `misfits`: the table of misfits, which has those
    up to the sequence `misfits_after`; `indexed`: the table's `dataSkippingNumIndexedCols`; `empty_deletes`: messages
    without a payload have no schema.
    """

    lake: str
    account: str
    schemas: tuple[SchemaRun, ...]
    table: RecordType
    drop_data: bool
    misfits: str
    misfits_after: int = 0
    indexed: int = INDEXED
    empty_deletes: bool = False

    def catalog(self) -> SchemaCatalog:
        """Return the schemas."""
        return SchemaCatalog(open_storage(self.lake), self.account)

    def rows(self) -> TypedRows:
        """Return what gives messages these columns."""
        return TypedRows(self.catalog(), self.schemas, self.table, self.drop_data, self.empty_deletes)

    def extended(self, needed: Mapping[str, str]) -> CommitColumns:
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
        texts = [{"name": name, "type": "string", "nullable": True, "metadata": {}} for name in more]
        return widened(schema, [*texts, *typed_columns.delta_type(self.table)["fields"]])


def _by_version(reference: str) -> tuple[str, int, str]:
    """Return the sort key of `name@version` or `name@version message`."""
    name, _, rest = reference.partition("@")
    version, _, message = rest.partition(" ")
    return name, int(version), message


class StreamTask(msgspec.Struct, frozen=True, kw_only=True):
    """Instructions for writing a stream's segments into files.

    Attributes: `parts`: the path of each segment, and the log index after which its entries are wanted; `dead`:
    messages that are not written; `removals`: of an archive, else None; `table`, `layout`, `random`: see DataFiles;
    `columns`: the typed columns, None for a stream without schemas.
    """

    parts: dict[str, int]
    dead: DeletedMessages
    removals: list[Removal] | None
    table: str
    layout: Layout
    random: bool
    columns: CommitColumns | None = None

    def write(self, paths: Sequence[str]) -> Output:
        """Write the messages of some of the segments into files."""
        try:
            return self._written(paths)
        except UnfitSubject:
            return Output(unfit=True)
        except BadSegment as error:
            return Output(damaged=DamagedSegment(error.path, error.offset, error.reason))
        except (LakeError, OSError) as error:
            return Output(failure=str(error))
        except Exception as error:
            return Output(failure=f"{type(error).__name__}: {error}")

    def _written(self, paths: Sequence[str]) -> Output:
        archive, columns = self.removals is not None, self.columns
        rows = (batch for path in paths for batch in self._decoded(path))
        if columns is None:
            return Output(list(paths), DataFiles(self.table, self.layout, archive, self.random).write(rows))
        indexed = columns.statistics(self.layout, archive)
        files = DataFiles(self.table, self.layout, archive, self.random, indexed=indexed)
        typed = columns.rows()
        misfits = MisfitFiles(columns.misfits, columns.misfits_after)
        written = files.write(_typed(rows, typed, misfits))
        if typed.needed:
            return Output(needed=typed.needed)
        return Output(list(paths), written, misfits.close())

    def _decoded(self, path: str) -> Iterator[pa.RecordBatch]:
        as_partitions = self.layout.kind != "bucket"
        return segments.decode(path, self.parts[path], self.dead, as_partitions, self.removals)


class WriteTask:
    """Spark task: rows of the streaming source in, a row with the output of each stream out.

    Args:
        streams: the streams of the batch, by staging directory below the lake's root; rows of others are left out.
    """

    def __init__(self, streams: Mapping[str, StreamTask]) -> None:
        self._streams = dict(streams)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        paths: dict[str, list[str]] = {}
        for batch in batches:
            for directory, path in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                if (task := self._streams.get(directory)) is not None and path in task.parts:
                    paths.setdefault(directory, []).append(path)
        for directory, some in paths.items():
            output = msgspec.json.encode(self._streams[directory].write(some)).decode()
            yield pa.RecordBatch.from_arrays(
                [pa.array([directory], pa.string()), pa.array([output], pa.string())], names=["directory", "output"]
            )


def written(rows: DataFrame, streams: Mapping[str, StreamTask]) -> dict[str, Output]:
    """Write the files of streams in one Spark job, whatever their number; return the output of each.

    A stream of which no row was found has an output without parts.
    """
    found = {directory: Output() for directory in streams}
    for row in rows.mapInArrow(WriteTask(streams), "directory string, output string").collect():
        found[row.directory] = found[row.directory].joined(_OUTPUT.decode(row.output))
    return found


def _typed(rows: Iterable[pa.RecordBatch], typed: TypedRows, misfits: MisfitFiles) -> Iterator[pa.RecordBatch]:
    """Yield messages with their typed columns, while the table has all that they need."""
    for batch in rows:
        found = typed.add(batch)
        if not typed.needed:
            misfits.add(found.misfits)
            yield found.rows
