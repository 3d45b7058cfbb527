"""Delta's transactions.

Belongs here: beginning one, the commit, and the outcome of a commit that raised an error. A transaction is an object of
`io.lakestream.delta.TableCommit` (jvm/), which knows Delta's classes. What is committed is decided by rewrite.py
(OPTIMIZE, repair) and by table.py (new rows).

An error of a commit is not its outcome: the JVM may have been killed after the version appeared, the sync of the log's
directory may have failed, the answer of an object store may be lost, or the request may arrive there later. So only the
log tells (`is_refused`), and what it cannot tell counts as committed: nothing is deleted.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

import msgspec

from lakestream.lake.errors import UnwritableTable
from lakestream.lake.table.actions import locate
from lakestream.lake.table.foreign_commits import MAPPING, MARK
from lakestream.lake.table.log import Log
from lakestream.lake.write.data_files import Written

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

METADATA_SETTING = "spark.databricks.delta.commitInfo.userMetadata"
_CONFLICT = re.compile(r"DELTA_(CONCURRENT_|METADATA_CHANGED|PROTOCOL_CHANGED)|Concurrent\w*Exception")


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


def begin(spark: SparkSession, spark_path: str) -> Any:
    """Return a transaction on the newest version of the table at a path as Spark spells it; there need be none."""
    return jvm(spark).io.lakestream.delta.TableCommit.begin(spark._jsparkSession, spark_path)


def change_schema(transaction: Any, change: Callable[[str], str], table: str) -> None:
    """Have a transaction's commit change the table's schema.

    Args:
        transaction: from `begin`.
        change: returns the JSON of the schema that the table should have, from that of the schema that it has.
        table: the table's path, for the error.

    Raises:
        UnwritableTable: Delta would give new columns other names in files than those that are written, so that every
            reader would find NULLs.
    """
    found = msgspec.json.decode(transaction.metadata())["metaData"]
    schema = change(found["schemaString"])
    if schema != found["schemaString"]:
        if found.get("configuration", {}).get(MAPPING, "none") != "none":
            raise UnwritableTable(table, "column mapping", 0, "ALTER TABLE delta.`{}` DROP FEATURE columnMapping")
        describe(transaction, {**found, "schemaString": schema})


def describe(transaction: Any, metadata: Mapping[str, Any]) -> None:
    """Have a transaction's commit change the table's metadata, or create the table with it. `metadata`: the fields of
    the `metaData` action."""
    transaction.describe(lines([{"metaData": metadata}]))


def commit(transaction: Any, operation: str, changes: Sequence[Mapping[str, Any]], *more: Any) -> int:
    """Commit actions; return the version. An error is not the outcome: see above.

    Args:
        transaction: from `begin`.
        operation: a method of TableCommit: `append`, `optimize`, `restore` or `update`.
        changes: the actions, as their JSON.
        more: further arguments of the method.
    """
    return int(getattr(transaction, operation)(lines(changes), *more))


def lines(changes: Iterable[Mapping[str, Any]]) -> str:
    """Return actions as the lines of a commit."""
    return "\n".join(msgspec.json.encode(change).decode() for change in changes)


def is_conflict(error: Exception) -> bool:
    """Return True if Delta rejected a commit because of a concurrent one, so that another attempt may succeed."""
    return _CONFLICT.search(f"{type(error).__name__}: {error}") is not None


def is_refused(error: Exception, log: Log, read: int, files: Set[str]) -> bool:
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


def append(
    transaction: Any, files: Sequence[Written], columns: Sequence[str], txn: tuple[str, int], metadata: str
) -> None:
    """Commit new files of rows as Spark's append does, with a transaction identifier (application, version).

    Args:
        columns: the table's partition columns.
        metadata: userMetadata. Not through the session's settings, which other threads share.
    """
    application, version = txn
    identifier = {"appId": application, "version": version, "lastUpdated": time.time_ns() // 1_000_000}
    changes = [{"txn": identifier}, *({"add": msgspec.to_builtins(file)} for file in files)]
    rows = sum(msgspec.json.decode(file.stats)["numRecords"] for file in files)
    commit(transaction, "append", changes, list(columns), metadata, len(files), rows, sum(file.size for file in files))
