"""The table of misfits of a stream: messages whose payloads do not fit their schema.

Belongs here: writing its files and committing them, and its maintenance. The table lies beside the stream's as
`<STREAM>_misfits`, with a row for each misfit: seq, time, subject, schema, field, rule, reason. The message itself is
in the stream's table, with NULLs in typed columns.

The rows of a batch are committed before the stream's own commit. The commit states the progress of the batch, as the
stream's does, so that a repetition after a crash writes only the rows of messages that are not there yet.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakestream.lake.errors import TableBusy
from lakestream.lake.staging.staging import StreamIdentity
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.storage.storage import Storage
from lakestream.lake.table import check, encryption
from lakestream.lake.table.actions import AddFile, locate, table_file
from lakestream.lake.table.check import Damage
from lakestream.lake.table.encryption import open_file
from lakestream.lake.table.log import TableLog, log_directory
from lakestream.lake.table.masks import MISFITS
from lakestream.lake.table.misfits import owner, place
from lakestream.lake.table.progress import TableProgress, application
from lakestream.lake.table.schema import MISFITS_PROPERTY
from lakestream.lake.table.state import TableFollower
from lakestream.lake.table.typed_rows import MISFIT_SCHEMA
from lakestream_spark.write.commit import Commit, forget
from lakestream_spark.write.data_files import NewFile
from lakestream_spark.write.file_ends import EndWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RETENTION_CHECK = "spark.databricks.delta.retentionDurationCheck.enabled"
"""Setting without which Delta's VACUUM keeps the files of the last week."""
FILE_ROWS = 100_000
"""Maximum number of misfits that are held in memory before they become a file."""
SMALL_BYTES = 32 << 20
"""Files below this size (32 MiB) are merged when there are `SMALL_FILES`, up to `MERGED_BYTES` at a time."""
SMALL_FILES, MERGED_BYTES = 16, 128 << 20
_PROPERTIES = {"delta.enableInCommitTimestamps": "true", "delta.checkpointInterval": "50"}


class MisfitFiles:
    """Writes misfits into files of their table, which no commit names yet.

    Args:
        table: the table of misfits.
        after_seq: misfits up to this sequence are in the table already.
    """

    def __init__(self, table: str, after_seq: int = 0) -> None:
        self._table, self._after = table, after_seq
        self._storage = open_storage(paths.lake_of(table)[0])  # that of the table needs its directory
        self._held: list[pa.RecordBatch] = []
        self._rows = 0
        self._written: list[NewFile] = []

    def add(self, misfits: pa.RecordBatch) -> None:
        """Write misfits, in sequence order."""
        if misfits.num_rows and misfits.column("seq")[0].as_py() <= self._after:
            misfits = misfits.filter(pc.greater(misfits.column("seq"), self._after))
        if misfits.num_rows:
            self._held.append(misfits)
            self._rows += misfits.num_rows
            if self._rows >= FILE_ROWS:
                self._flush()

    def close(self, modified_ms: int | None = None) -> list[NewFile]:
        """Return the files, complete and durable.

        Args:
            modified_ms: the time of the newest row, ms since the epoch; by default now.
        """
        if self._held:
            self._flush()
        if modified_ms is None:
            return self._written
        return [msgspec.structs.replace(each, modification_time=modified_ms) for each in self._written]

    def _flush(self) -> None:
        rows = pa.Table.from_batches(self._held, MISFIT_SCHEMA)
        self._held, self._rows = [], 0
        name = f"part-{len(self._written):05}-{uuid.uuid4()}.c000.snappy.parquet"
        with self._storage.writing(f"{self._table}/{name}") as content:
            sink, keys = EndWriter(content), encryption.writing(self._table)
            options = {"write_page_checksum": True, "encryption_properties": keys}
            writer = pq.ParquetWriter(sink, MISFIT_SCHEMA, store_schema=False, **options)
            writer.write_table(rows)
            sink.begin_end()
            writer.close()
            size, tags = content.tell(), sink.end.tags()
        seqs = pc.min_max(rows.column("seq")).as_py()
        stats = {
            "numRecords": len(rows),
            "minValues": {"seq": seqs["min"]},
            "maxValues": {"seq": seqs["max"]},
            "nullCount": encryption.null_counts(rows, keys),
        }
        now_ms = time.time_ns() // 1_000_000
        self._written.append(NewFile(name, {}, size, now_ms, msgspec.json.encode(stats).decode(), tags))


class Retained(msgspec.Struct, frozen=True):
    """The end of the misfits that are kept: those from the sequence `seq` on, and from the time `time_ns` on."""

    seq: int = 0
    time_ns: int = 0

    def plan(self, files: Iterable[AddFile]) -> tuple[list[AddFile], list[AddFile]]:
        """Return (files whose misfits are all to go, files to be merged).

        A file is as old as its newest commit, and its messages are older still.
        """
        gone, left = list[AddFile](), list[AddFile]()
        for add in files:
            found = table_file(add)
            is_old = add.modification_time * 1_000_000 < self.time_ns or (found.rows and found.max_seq < self.seq)
            (gone if is_old else left).append(add)
        # Files are read whole: rows under deletion vectors, which only other programs write here, would come back.
        return gone, small_ones(add for add in left if add.deletion_vector is None)

    def kept(self, misfits: pa.Table) -> pa.Table:
        """Return those of some misfits that are kept."""
        since = pa.scalar(self.time_ns // 1_000, pa.timestamp("us", "UTC"))
        is_kept = pc.and_(
            pc.greater_equal(misfits.column("seq"), self.seq), pc.greater_equal(misfits.column("time"), since)
        )
        return misfits.filter(is_kept)


def small_ones(files: Iterable[AddFile]) -> list[AddFile]:
    """Return the files that are to be merged: none, or the smallest ones."""
    small = sorted((add for add in files if add.size < SMALL_BYTES), key=lambda add: add.size)
    if len(small) < SMALL_FILES:
        return []
    found, size = [], 0
    for add in small:
        size += add.size
        if size > MERGED_BYTES:
            break
        found.append(add)
    return found


class MisfitTable:
    """The table of misfits of one stream, changed through Spark under the lock of the stream's table.

    Args:
        spark: a session with Delta.
        storage: the lake.
        identity: the stream.
        table: the stream's table.
    """

    def __init__(self, spark: SparkSession, storage: Storage, identity: StreamIdentity, table: str) -> None:
        self._spark, self._storage, self._identity = spark, storage, identity
        self._stream_table = table
        self._path = ""

    @property
    def path(self) -> str:
        """Return the path of the table, which need not exist: the first of `<STREAM>_misfits`, `<STREAM>_misfits_` …
        that no other table takes."""
        if not self._path:
            self._path = place(self._storage, self._stream_table, self._identity.uid)
        return self._path

    def begin_encrypted(self) -> None:
        """Make the key of the table before tasks write files of it."""
        if self._owner(self.path) is None:
            encryption.begin(self.path)

    def reached(self) -> TableProgress | None:
        """Return the progress of the last commit with misfits."""
        watch = TableFollower(self.path, self._identity.uid)
        watch.position()
        return watch.head.progress

    def commit(self, files: Sequence[NewFile], progress: TableProgress) -> int:
        """Commit the misfits of a batch; return their number.

        Raises:
            TableBusy: another stream has taken the place of the table since; the next attempt finds another one.
        """
        if not files:
            return 0
        uid = self._owner(self.path)
        if uid not in (None, self._identity.uid):
            taken, self._path = self._path, ""
            raise TableBusy(taken)
        # Of two attempts at a batch, Delta would append the files of the later one behind those of the other.
        commit = Commit(self._spark, self._storage, self.path, application(self._identity.uid))
        if uid is None:
            # The files are there already, which CREATE TABLE would refuse.
            commit.describe(self._metadata())
        commit.add(files)
        commit.append([], commit.move(progress))
        return sum(msgspec.json.decode(file.stats)["numRecords"] for file in files)

    def delete(self, conditions: Sequence[str], shred: bool = False) -> None:
        """Delete misfits, given as SQL conditions. With `shred`, no file has them afterwards, also none of an older
        version: the reason of a misfit may quote the payload.

        Raises:
            LacksFiles: with `shred`: the newest version is damaged.
        """
        from delta.tables import DeltaTable

        if not conditions or self._owner(self.path) is None:
            return
        table = DeltaTable.forPath(self._spark, self._storage.spark_path(self.path))
        for condition in conditions:
            table.delete(condition)
        if shred:
            if not self._storage.local:  # a request for a commit that is still on its way is refused from now on
                self._begun().run("update")
            check.require_whole(self._storage, self.path)
            self._spark.conf.set(RETENTION_CHECK, "false")
            try:
                table.vacuum(0)
            finally:
                self._spark.conf.unset(RETENTION_CHECK)

    def damaged(self) -> list[Damage]:
        """Return the damage of files that are missing, or of another size than the log says."""
        if self._owner(self.path) != self._identity.uid:
            return []
        state = TableLog(self._storage, self.path).state()
        return check.lacking(self._storage, self.path, map(table_file, state.files.values()))

    def listed(self, without: Sequence[Damage]) -> list[int]:
        """Return the sequences that all files but the damaged ones list."""
        gone = {each.file.path for each in without}
        found: list[int] = []
        for add in TableLog(self._storage, self.path).state().files.values():
            if add.path not in gone:
                path = locate(self.path, add.path)
                with self._storage.fetch(path) as local, open_file(path, local) as file:
                    found += file.read(columns=["seq"]).column(0).to_pylist()
        return found

    def replace(self, damaged: Sequence[Damage], rows: Sequence[pa.Table]) -> None:
        """Replace damaged files by these rows, in one commit."""
        commit, files = self._begun(), MisfitFiles(self.path)
        for batch in (batch for table in rows for batch in table.to_batches()):
            files.add(batch)
        commit.add(files.close())
        gone = {each.file.path for each in damaged}
        commit.remove(add for add in TableLog(self._storage, self.path).state().files.values() if add.path in gone)
        commit.run("update")

    def is_due(self, end: Retained) -> bool:
        """Return True if `maintain` has something to do. Uses no JVM."""
        if self._owner(self.path) != self._identity.uid:
            return False
        return any(end.plan(TableLog(self._storage, self.path).state().files.values()))

    def maintain(self, end: Retained) -> int:
        """Merge small files, and drop the misfits that are not kept any more; return the number of files that went."""
        commit, rows = self._begun(), MisfitFiles(self.path)
        gone, merged = end.plan(commit.state().files.values())
        for add in sorted(merged, key=lambda add: table_file(add).min_seq):
            path = locate(self.path, add.path)
            with self._storage.fetch(path) as local, open_file(path, local) as file:
                found = file.read(use_threads=False).cast(MISFIT_SCHEMA)
            for batch in end.kept(found).combine_chunks().to_batches():
                rows.add(batch)
        commit.remove([*gone, *merged])
        commit.add(rows.close(max((add.modification_time for add in merged), default=None)))
        commit.run("update")
        from delta.tables import DeltaTable

        DeltaTable.forPath(self._spark, self._storage.spark_path(self.path)).vacuum()
        return len(gone) + len(merged)

    def _begun(self) -> Commit:
        return Commit(self._spark, self._storage, self.path)

    def remove(self) -> None:
        """Remove the table of a stream that is deleted."""
        path = f"{self._stream_table}{MISFITS}"
        while (uid := self._owner(path)) is not None:
            if uid == self._identity.uid:
                self._storage.delete_tree(log_directory(path))
                forget(self._spark, self._storage, path)
                self._storage.delete_tree(path)
                return
            path += "_"

    def _owner(self, path: str) -> str | None:
        return owner(self._storage, path)

    def _metadata(self) -> dict[str, object]:
        """Return the `metaData` action of a new table."""
        fields, shown = [], encryption.properties(MISFIT_SCHEMA.names) if self._identity.encrypted else {}
        for field in MISFIT_SCHEMA:
            kind = {"int64": "long", "string": "string"}.get(str(field.type), "timestamp")
            fields.append({"name": field.name, "type": kind, "nullable": True, "metadata": {}})
        return {
            "id": str(uuid.uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": msgspec.json.encode({"type": "struct", "fields": fields}).decode(),
            "partitionColumns": [],
            "configuration": {**_PROPERTIES, MISFITS_PROPERTY: self._identity.uid, **shown},
            "createdTime": time.time_ns() // 1_000_000,
        }
