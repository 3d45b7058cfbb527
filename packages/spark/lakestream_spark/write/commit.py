"""Commits to a table, through Delta's own transaction.

Belongs here: all that calls Delta's classes in the JVM: a commit from its beginning to its outcome, checkpoints, and
Delta's cache of tables. `Commit` is an `io.lakestream.delta.TableCommit` (jvm/). Every operation that changes a table
has the same outline: begin, read the version that it is based on, add and remove files, run.

An error of a commit is not its outcome: the JVM may have been killed after the version appeared, the sync of the log's
directory may have failed, the answer of an object store may be lost, or the request may arrive there later. So only the
log tells (`is_refused`), and what it cannot tell counts as committed: nothing is deleted.

Source: Delta protocol, "Actions", "Transaction Identifiers".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from lakestream.lake.errors import is_conflict
from lakestream.lake.storage.storage import Storage
from lakestream.lake.table.actions import AddFile, locate
from lakestream.lake.table.foreign_commits import MAPPING, MARK
from lakestream.lake.table.log import TableLog, TableVersion
from lakestream.lake.table.progress import TableProgress, application
from lakestream_spark.write.errors import UnwritableTable
from lakestream_spark.write.field_ids import of_delta

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

METADATA_SETTING = "spark.databricks.delta.commitInfo.userMetadata"
_KEPT_BY_REMOVE = ("path", "partitionValues", "size", "stats", "deletionVector")

Operation = Literal["create", "optimize", "restore", "update"]
"""Operation in the table's history, by the method of TableCommit: CREATE TABLE, OPTIMIZE (no row changes), RESTORE, or
any other change. `Commit.append` is the one of new rows, `Commit.delete` that of deleted ones."""


class Commit:
    """One commit to a table, begun on its newest version. Not for use by two threads at once.

    Args:
        spark: a session with Delta. Where `run` states userMetadata, a session of its own: that is a setting.
        storage: where the table is.
        table: the table's path; there need be no table yet.
        expects: the commit fails if another one moves the position of this application meanwhile. Reading the position
            by Delta would compute the state of the whole log: a second of processor time. So read it after this.

    Attributes:
        base: the version that the commit is based on; -1 for a new table.
    """

    def __init__(self, spark: SparkSession, storage: Storage, table: str, expects: str = "") -> None:
        self.table = table
        self._spark, self._storage = spark, storage
        begin = jvm(spark).io.lakestream.delta.TableCommit.begin
        self._delta = begin(spark._jsparkSession, storage.spark_path(table))
        self.base = int(self._delta.readVersion())
        if expects:
            self._delta.expectPosition(expects)
        self._actions: list[dict[str, Any]] = []
        self._rows = self._bytes = 0

    def state(self) -> TableVersion:
        """Return the version that the commit is based on."""
        return TableLog(self._storage, self.table).state(self.base)

    @property
    def stamp_ms(self) -> int:
        """Return a time for removals, ms since the epoch: the present, but not before that version."""
        return max(time.time_ns() // 1_000_000, int(self._delta.readTimestamp()))

    # ------------------------------------------------------------------ the table
    def metadata(self) -> dict[str, Any]:
        """Return the fields of the table's `metaData` action."""
        return dict(msgspec.json.decode(self._delta.metadata())["metaData"])

    def describe(self, metadata: Mapping[str, Any]) -> None:
        """Change the table's metadata, or create the table with it; `metadata`: the fields of the `metaData` action."""
        self._delta.describe(_lines([{"metaData": metadata}]))

    def replace(self, metadata: Mapping[str, Any]) -> None:
        """Give a table without rows another table's metadata."""
        self._delta.replace(_lines([{"metaData": metadata}]))

    def change_schema(self, change: Callable[[str], str]) -> None:
        """Change the table's schema.

        Args:
            change: returns the JSON of the schema that the table should have, from that of the schema that it has.

        Raises:
            UnwritableTable: Delta would give new columns other names in files than those that are written, so that
                every reader would find NULLs.
        """
        found = self.metadata()
        schema = change(found["schemaString"])
        if schema != found["schemaString"]:
            if found.get("configuration", {}).get(MAPPING, "none") != "none":
                raise UnwritableTable(
                    self.table, "column mapping", 0, "ALTER TABLE delta.`{}` DROP FEATURE columnMapping"
                )
            self.describe({**found, "schemaString": schema})

    # ------------------------------------------------------------------ its files
    def rows(self, adds: Iterable[AddFile]) -> DataFrame:
        """Return the rows of some of the table's files that are not deleted."""
        from pyspark.sql import DataFrame

        return DataFrame(self._delta.rows(_lines({"add": plain(add)} for add in adds)), self._spark)

    def write(self, rows: DataFrame) -> list[dict[str, Any]]:
        """Write rows into new files of the table; return the fields of their `add` actions."""
        return [msgspec.json.decode(line)["add"] for line in self._delta.write(rows._jdf).splitlines()]

    def identify(self, add: Mapping[str, Any], *, keep: bool = False) -> dict[str, Any]:
        """Give the columns of a new file of Spark their ids; return the fields of the `add` action of the copy that has
        them. `keep`: some version names the file itself; else it is deleted."""
        ids = {"\0".join(path): number for path, number in of_delta(self.metadata()["schemaString"])}
        path = f"{add['path'].removesuffix('.parquet')}.ids.parquet"
        source, target = locate(self.table, add["path"]), locate(self.table, path)
        places = self._storage.spark_path(source), self._storage.spark_path(target)
        copy = jvm(self._spark).io.lakestream.delta.FieldIds.copy
        size = copy(self._spark._jsparkSession, *places, msgspec.json.encode(ids).decode())
        if not keep:
            self._storage.delete(source)
        return {**add, "path": path, "size": size}

    def add(self, files: Iterable[Any]) -> None:
        """Add files: structs or mappings with the fields of the `add` action."""
        for file in files:
            self._actions.append({"add": msgspec.to_builtins(file)})

    def remove(self, files: Iterable[AddFile], stamp_ms: int | None = None, *, data_change: bool = True) -> None:
        """Remove files.

        Args:
            stamp_ms: time of the removal, `stamp_ms` of the commit by default.
            data_change: False if the table's rows stay, in other files.
        """
        stamp_ms = self.stamp_ms if stamp_ms is None else stamp_ms
        fixed = {"deletionTimestamp": stamp_ms, "dataChange": data_change, "extendedFileMetadata": True}
        for file in files:
            kept = {name: value for name, value in plain(file).items() if name in _KEPT_BY_REMOVE}
            self._actions.append({"remove": {**fixed, **kept}})

    def restate(self, metadata: Mapping[str, Any]) -> None:
        """Commit a `metaData` action as it is, with features that `describe` would check anew."""
        self._actions.append({"metaData": metadata})

    def move(self, progress: TableProgress) -> str:
        """Move the position of the stream to that of its progress; return the progress as userMetadata."""
        stamp_ms = time.time_ns() // 1_000_000
        txn = {"appId": application(progress.uid), "version": progress.last_index, "lastUpdated": stamp_ms}
        self._actions.append({"txn": txn})
        return msgspec.json.encode(progress).decode()

    # ------------------------------------------------------------------ the commit
    def append(self, columns: Sequence[str], metadata: str) -> int:
        """Commit new files of rows as Spark's append does; return the version.

        Args:
            columns: the table's partition columns.
            metadata: userMetadata. Not through the session's settings, which other threads share.
        """
        files = [action["add"] for action in self._actions if "add" in action]
        rows = sum(msgspec.json.decode(file["stats"])["numRecords"] for file in files)
        size = sum(file["size"] for file in files)
        lines = _lines(self._actions)
        return int(self._delta.append(lines, list(columns), metadata, len(files), rows, size))

    def delete(self, rows: int) -> int:
        """Commit the removal of files, and their return with deletion vectors, as Spark's DELETE does; return the
        version. `rows`: the number of rows that this deletes."""
        vectors = sum("add" in action for action in self._actions)
        return int(self._delta.delete(_lines(self._actions), rows, len(self._actions) - 2 * vectors, vectors))

    def run(self, operation: Operation, metadata: str | None = None) -> int:
        """Commit; return the version. An error is not the outcome: see above."""
        if metadata is not None:
            self._spark.conf.set(METADATA_SETTING, metadata)
        try:
            return int(getattr(self._delta, operation)(_lines(self._actions)))
        finally:
            if metadata is not None:
                self._spark.conf.unset(METADATA_SETTING)

    def is_refused(self, error: Exception) -> bool:
        """Return True if this commit, which raised an error, provably did not happen, and never will."""
        new = {locate(self.table, action["add"]["path"]) for action in self._actions if "add" in action}
        return is_refused(error, TableLog(self._storage, self.table), self.base, new)


def own_session(spark: SparkSession) -> SparkSession:
    """Return a session whose commits have the mark of the compactor, unless they state the progress of a stream."""
    own = spark.newSession()
    own.conf.set(METADATA_SETTING, MARK)
    return own


def jvm(spark: SparkSession) -> Any:
    """Return py4j's view of Spark's JVM."""
    found = spark.sparkContext._jvm
    assert found is not None
    return found


def forget(spark: SparkSession, storage: Storage, table: str) -> None:
    """Clear Delta's cache of a table: another table may be there by now."""
    there = jvm(spark)
    path = there.org.apache.hadoop.fs.Path(storage.spark_path(table))
    there.org.apache.spark.sql.delta.DeltaLog.invalidateCache(spark._jsparkSession, path)


def write_checkpoint(spark: SparkSession, storage: Storage, table: str) -> None:
    """Write a checkpoint of a table's newest version. Where the table lets it, Delta cleans up the log then."""
    forget(spark, storage, table)
    delta = jvm(spark).org.apache.spark.sql.delta.DeltaLog
    delta.forTable(spark._jsparkSession, storage.spark_path(table)).checkpoint()


def plain(add: AddFile, data_change: bool = False) -> dict[str, Any]:
    """Return a file as an action's JSON without null fields, which Delta would take for values."""
    found = {**msgspec.to_builtins(add), "dataChange": data_change}
    return {name: value for name, value in found.items() if value is not None}


def is_refused(error: Exception, log: TableLog, read: int, files: Set[str]) -> bool:
    """Return True if a commit that raised an error provably did not happen, and never will.

    Delta reports a conflict once it has found a version taken, and tries no further one. A taken version refuses also a
    request that is still on its way. Every other error, and a conflict with the commit itself (its answer was lost and
    the client tried again), leaves the outcome open.

    Args:
        error: raised by the commit.
        log: the table's, listed after the error.
        read: the version that the transaction has read.
        files: paths of the data files that it would have added.
    """
    later = [version for version in log.commits if version > read]
    if not is_conflict(error) or not later:
        return False
    added = (action.add for version in later for action in log.commit(version).actions if action.add is not None)
    return not any(locate(log.table, add.path) in files for add in added)


def _lines(changes: Iterable[Mapping[str, Any]]) -> str:
    """Return actions as the lines of a commit."""
    return "\n".join(msgspec.json.encode(change).decode() for change in changes)
