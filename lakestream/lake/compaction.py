"""Compacting one stream: staged segments into its Delta table, exactly once.

Belongs here: the Spark side of one commit. The order is fixed:

1. rows that died leave the table (DELETE; repeating it changes nothing),
2. the new rows are appended, without those that are dead already, in one commit that also carries the transaction
   identifier `lakestream:<uid>` with the log index as its version, and the progress as user metadata.

Only step 2 moves the position. A crash anywhere before it repeats everything, a crash after it finds the position
moved. Source: Delta protocol, "Transaction Identifiers".

Invariant: nothing is read from the streaming checkpoint. What is to be done follows from the table and staging alone.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from lakestream.lake import paths, plan, segments, staging
from lakestream.lake.errors import ForeignTable, LakeError, TableBusy
from lakestream.lake.locks import JvmLock, table_lock
from lakestream.lake.plan import Batch
from lakestream.lake.position import PositionWatch, application
from lakestream.lake.schema import (
    BUCKETS,
    CREATED_PROPERTY,
    MESSAGE_DDL,
    STREAM_PROPERTY,
    SUBJECT_LIMIT,
    TABLE_DDL,
    UID_PROPERTY,
    Layout,
    layout_for,
)
from lakestream.lake.segments import Dead
from lakestream.lake.staging import StagedStream

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

TASK_BYTES = 32 * 1024 * 1024
"""Segments that one task decodes before a second one is worth its start."""

BUSY_SECONDS = 5.0
"""How long a commit waits for the table's maintenance to end, before other streams get their turn."""

TABLE_PROPERTIES = {
    "delta.enableDeletionVectors": "true",
    "delta.enableInCommitTimestamps": "true",
    # A checkpoint costs as much as a commit; replaying up to fifty small commits costs a reader some milliseconds.
    "delta.checkpointInterval": "50",
}
_BUCKET = f"cast(pmod(crc32(cast(subject as binary)), {BUCKETS}) as int)"
_TIME = "timestamp_micros(time_ns div 1000)"


class Options(msgspec.Struct, frozen=True):
    """How streams are compacted.

    `subject_limit`: a table with more distinct subjects is bucketed; `commit_bytes`: segments of one commit;
    `tasks`: most tasks of one commit.
    """

    subject_limit: int = SUBJECT_LIMIT
    commit_bytes: int = plan.COMMIT_BYTES
    tasks: int = 2


class Outcome(msgspec.Struct, frozen=True):
    """What compacting a stream did: commits made, segments and messages they took, and the position reached."""

    commits: int = 0
    segments: int = 0
    rows: int = 0
    position: int = 0


class _Table(msgspec.Struct, frozen=True):
    """An existing table: whose it is and how it is partitioned."""

    uid: str
    created_ns: int
    layout: Layout


class StreamCompaction:
    """Compacts one stream of one lake. Not for use by two threads at once.

    Args:
        spark: a session with Delta.
        lake: the lake's root.
        stream: the stream's staging directory, as `staging.scan` found it.
    """

    def __init__(self, spark: SparkSession, lake: str, stream: StagedStream, options: Options | None = None) -> None:
        self._spark = spark
        self._lake = paths.local_root(lake)
        self._directory = stream.directory
        self._identity = stream.identity
        self._options = options or Options()
        self.table = paths.table(self._lake, self._identity.name, self._identity.account)
        self._watch = PositionWatch(self.table, self._identity.uid)

    def behind(self) -> bool:
        """Whether segments are staged that the table does not hold yet. Touches no JVM."""
        staged = staging.segments(self._directory)
        return bool(staged) and staged[-1].last_index > (self._watch.read() or 0)

    def run(self, stopping: Callable[[], bool] = lambda: False) -> Outcome:
        """Commit until nothing staged is missing in the table, or `stopping()`.

        Raises:
            SegmentGap, BadSegment, ForeignTable: this stream cannot go on before somebody helps.
            TableBusy: maintenance of the table takes its time; another try later helps.
        """
        outcome = Outcome(position=self._watch.read() or 0)
        while not stopping():
            parts = plan.choose(
                self.table, outcome.position, staging.segments(self._directory), self._options.commit_bytes
            )
            if not parts:
                break
            footers = [segments.footer(part.path) for part in parts]
            batch = plan.gather(self._identity.uid, parts, footers, self._watch.progress)
            with self._alone():
                committed = self._commit(batch, outcome.position)
            if not committed:
                break
            position = self._watch.read() or 0
            if position < batch.progress.last_index:
                raise LakeError(f"{self.table}: a commit through {batch.progress.last_index} left it at {position}")
            outcome = Outcome(
                outcome.commits + 1, outcome.segments + len(parts), outcome.rows + self._watch.rows, position
            )
        return outcome

    def drop_table(self) -> bool:
        """Remove the table if it is this stream's; False when there is none, or it is another's.

        The table disappears at once: its directory moves out of sight before its files are deleted.
        """
        found = self._find_table()
        if found is None or found.uid != self._identity.uid:
            return False
        with self._alone():
            self._remove(found.uid)
        return True

    # One commit

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Be the only one that commits to the table, or takes it away (see locks.py)."""
        lock = JvmLock(self._spark, table_lock(self._lake, self.table))
        until = time.monotonic() + BUSY_SECONDS
        while not lock.acquire():
            if time.monotonic() >= until:
                raise TableBusy(self.table)
            time.sleep(0.05)
        try:
            yield
        finally:
            lock.release()

    def _commit(self, batch: Batch, position: int) -> bool:
        """False when the table belongs to a younger stream of this name: this one is history."""
        found = self._find_table()
        if found is not None and found.uid != self._identity.uid:
            if found.created_ns > self._identity.created_ns:
                return False
            self._remove(found.uid)
            found = None
        wanted = layout_for(batch.subjects, self._options.subject_limit)
        if found is None:
            self._create(wanted)
            layout = wanted
        else:
            layout = found.layout
            for condition in plan.deletions(position, self._watch.progress, batch.dead):
                self._delta_table().delete(condition)
            if layout is Layout.SUBJECT and wanted is Layout.BUCKET:
                layout = self._rebucket()
        try:
            self._append(batch, layout)
        except Exception as error:
            # The exception comes out of a Python worker through the JVM, so that only its name is left.
            if layout is Layout.BUCKET or "UnfitSubject" not in str(error):
                raise
            self._append(batch, self._rebucket())
        return True

    def _append(self, batch: Batch, layout: Layout) -> None:
        rows = self._arrange(self._decoded(batch, layout), layout)
        writer = rows.write.format("delta").mode("append")
        writer = writer.option("txnAppId", application(self._identity.uid))
        writer = writer.option("txnVersion", batch.progress.last_index)
        writer.option("userMetadata", _json(batch.progress)).save(self.table)

    def _decoded(self, batch: Batch, layout: Layout) -> DataFrame:
        """The batch's messages; each task reads a run of whole segments."""
        tasks = min(self._options.tasks, len(batch.parts), 1 + batch.size // TASK_BYTES)
        numbers = self._spark.range(0, len(batch.parts), 1, tasks)
        decoder = _Decoder(batch, layout is Layout.SUBJECT)
        return numbers.mapInArrow(decoder, MESSAGE_DDL).selectExpr(*_select(_TIME))

    def _arrange(self, rows: DataFrame, layout: Layout) -> DataFrame:
        """Sorted by subject and sequence within each partition of the table, which also spares Spark a sort."""
        if layout is Layout.SUBJECT:
            return rows.sortWithinPartitions("subject", "seq")
        return rows.selectExpr("*", f"{_BUCKET} AS bucket").sortWithinPartitions("bucket", "subject", "seq")

    def _rebucket(self) -> Layout:
        """Rewrite a table partitioned by subject into buckets: one commit that changes no row and no position."""
        rows = self._spark.read.format("delta").load(self.table).repartition(2, "subject")
        writer = self._arrange(rows, Layout.BUCKET).write.format("delta").mode("overwrite")
        writer = writer.option("overwriteSchema", "true").partitionBy("bucket")
        if self._watch.progress is not None:
            writer = writer.option("userMetadata", _json(self._watch.progress))
        writer.save(self.table)
        return Layout.BUCKET

    # The table

    def _find_table(self) -> _Table | None:
        if not os.path.isdir(os.path.join(self.table, "_delta_log")):
            return None
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            metadata = DeltaTable(self.table).metadata()
        except TableNotFoundError:  # the log directory is there, but no commit in it yet
            return None
        uid = metadata.configuration.get(UID_PROPERTY)
        if uid is None:
            raise ForeignTable(self.table)
        created = int(metadata.configuration.get(CREATED_PROPERTY) or 0)
        layout = Layout.BUCKET if metadata.partition_columns == ["bucket"] else Layout.SUBJECT
        return _Table(uid, created, layout)

    def _create(self, layout: Layout) -> None:
        from delta.tables import DeltaTable
        from pyspark.sql.types import StructType

        # What a removal that was cut short, or a creation, left behind: no table, as there is no log.
        if os.path.isdir(self.table):
            self._remove(self._identity.uid)
        ddl = TABLE_DDL + (", bucket int" if layout is Layout.BUCKET else "")
        properties = {
            **TABLE_PROPERTIES,
            UID_PROPERTY: self._identity.uid,
            STREAM_PROPERTY: self._identity.name,
            CREATED_PROPERTY: str(self._identity.created_ns),
        }
        columns = StructType.fromDDL(ddl)
        assert isinstance(columns, StructType)
        builder = DeltaTable.create(self._spark).location(self.table).addColumns(columns)
        builder = builder.partitionedBy(layout.value)
        for name, value in properties.items():
            builder = builder.property(name, value)
        builder.execute()

    def _remove(self, uid: str) -> None:
        aside = f"{paths.removed(self._lake, uid)}-{time.time_ns()}"
        os.makedirs(os.path.dirname(aside), exist_ok=True)
        os.rename(self.table, aside)
        self._forget_table()
        shutil.rmtree(aside, ignore_errors=True)

    def _forget_table(self) -> None:
        """Delta keeps the state of tables by path; the next table at this path is another one."""
        jvm = self._spark.sparkContext._jvm
        assert jvm is not None
        path = jvm.org.apache.hadoop.fs.Path(self.table)
        jvm.org.apache.spark.sql.delta.DeltaLog.invalidateCache(self._spark._jsparkSession, path)

    def _delta_table(self) -> Any:
        from delta.tables import DeltaTable

        return DeltaTable.forPath(self._spark, self.table)


class _Decoder:
    """What a task runs: numbers of segments in, their messages out. Pickled, so it holds nothing of Spark."""

    def __init__(self, batch: Batch, as_partitions: bool) -> None:
        self._parts = [(part.path, part.after) for part in batch.parts]
        self._floor = batch.dead.floor
        self._removed = list(batch.dead.removed)
        self._as_partitions = as_partitions

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        dead = Dead(self._floor, self._removed)
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                path, after = self._parts[number]
                yield from segments.decode(path, after, dead, self._as_partitions)


def clear_removed(lake: str) -> None:
    """Delete what removals that were cut short have left behind."""
    shutil.rmtree(os.path.join(paths.local_root(lake), paths.REMOVED), ignore_errors=True)


def _select(time_expression: str) -> list[str]:
    """The table's columns, in order, from the decoder's."""
    columns = [column.split()[0] for column in TABLE_DDL.replace("map<string, array<string>>", "map").split(", ")]
    return [f"{time_expression} AS time" if column == "time" else column for column in columns]


def _json(progress: Any) -> str:
    return msgspec.json.encode(progress).decode()
