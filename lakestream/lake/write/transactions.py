"""Delta's transactions through py4j.

Belongs here: beginning one, actions from their JSON, the commit, and the outcome of a commit that raised an error. What
is committed is decided by rewrite.py (OPTIMIZE, repair) and by table.py (new rows).

An error of a commit is not its outcome: the JVM may have been killed after the version appeared, the sync of the log's
directory may have failed, the answer of an object store may be lost, or the request may arrive there later. So only the
log tells (`is_refused`), and what it cannot tell counts as committed: nothing is deleted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

import msgspec

from lakestream.lake.delta.actions import locate
from lakestream.lake.delta.log import Log
from lakestream.lake.delta.strangers import MAPPING, MARK
from lakestream.lake.errors import UnwritableTable

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
    """Return a transaction on the newest version of the table at a path as Spark spells it."""
    there = jvm(spark)
    # Delta uses the thread's session, which would have other settings.
    there.SparkSession.setActiveSession(spark._jsparkSession)
    return there.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, spark_path).startTransaction()


def change_schema(spark: SparkSession, transaction: Any, change: Callable[[str], str], table: str) -> None:
    """Have a transaction's commit change the table's schema.

    Args:
        transaction: from `begin`.
        change: returns the JSON of the schema that the table should have, from that of the schema that it has.
        table: the table's path, for the error.

    Raises:
        UnwritableTable: Delta would give new columns other names in files than those that are written, so that every
            reader would find NULLs.
    """
    found = msgspec.json.decode(transaction.metadata().json())["metaData"]
    schema = change(found["schemaString"])
    if schema != found["schemaString"]:
        if found.get("configuration", {}).get(MAPPING, "none") != "none":
            raise UnwritableTable(table, "column mapping", 0, "ALTER TABLE delta.`{}` DROP FEATURE columnMapping")
        describe(spark, transaction, {**found, "schemaString": schema})


def describe(spark: SparkSession, transaction: Any, metadata: Mapping[str, Any]) -> None:
    """Have a transaction's commit change the table's metadata, or create the table with it. `metadata`: the fields of
    the `metaData` action."""
    read = jvm(spark).org.apache.spark.sql.delta.actions.Action
    transaction.updateMetadata(read.fromJson(msgspec.json.encode({"metaData": metadata}).decode()), False)


def commit(spark: SparkSession, transaction: Any, changes: Sequence[Mapping[str, Any]], done: Any) -> None:
    """Commit actions, given as their JSON, as one of Delta's operations. An error is not the outcome: see above."""
    transaction.commit(actions(spark, changes), done)


def operation(spark: SparkSession, name: str) -> Any:
    """Return the operation without parameters of this name in Delta's `DeltaOperations`."""
    of = jvm(spark).org.apache.spark.sql.delta
    return getattr(getattr(of, f"DeltaOperations${name}$"), "MODULE$")


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
    spark: SparkSession,
    transaction: Any,
    changes: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    metadata: str,
    metrics: Mapping[str, int],
) -> None:
    """Commit new rows as Spark's append does.

    Args:
        changes: adds and the transaction identifier.
        columns: the table's partition columns.
        metadata: userMetadata. Not through the session's settings, which other threads share.
        metrics: figures for the table's history.
    """
    there = jvm(spark)
    option = there.scala.Option
    write = getattr(there.org.apache.spark.sql.delta, "DeltaOperations$Write")
    none = option.empty()
    appended = there.org.apache.spark.sql.SaveMode.Append
    done = write(
        appended, option.apply(seq(spark, columns)), none, option.apply(metadata), none, none, none, none, none
    )
    transaction.registerSQLMetrics(spark._jsparkSession, _metrics(spark, metrics))
    commit(spark, transaction, changes, done)


def actions(spark: SparkSession, changes: Sequence[Mapping[str, Any]]) -> Any:
    """Return actions as Delta takes them."""
    read = jvm(spark).org.apache.spark.sql.delta.actions.Action
    return seq(spark, [read.fromJson(msgspec.json.encode(change).decode()) for change in changes])


def seq(spark: SparkSession, items: Sequence[Any]) -> Any:
    """Return a Scala sequence."""
    there = jvm(spark)
    found = there.java.util.ArrayList()
    for item in items:
        found.add(item)
    return there.scala.jdk.javaapi.CollectionConverters.asScala(found).toSeq()


def _metrics(spark: SparkSession, values: Mapping[str, int]) -> Any:
    there = jvm(spark)
    context = spark._jsparkSession.sparkContext()
    create = there.org.apache.spark.sql.execution.metric.SQLMetrics
    found = there.java.util.HashMap()
    for name, value in values.items():
        metric = create.createMetric(context, name)
        metric.set(value)
        found.put(name, metric)
    of = getattr(getattr(there.scala.collection.immutable, "Map$"), "MODULE$")
    return getattr(of, "from")(there.scala.jdk.javaapi.CollectionConverters.asScala(found))
