"""A Spark session that knows Delta.

Belongs here: the settings of every Spark of this project, and nothing of a particular job. The settings keep a local
Spark small (heap, code cache, no web interface) and correct (UTC, Delta's extension). `spark_conf/local` has the same
for stock Spark programs; a test compares the two.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import lakestream
import lakestream_client
import lakestream_spark
import lakestream_sql
from lakestream.lake.errors import JarsMissing
from lakestream.lake.storage import paths
from lakestream.lake.storage.clouds.known import cloud_of
from lakestream_spark import jars, pins

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_CORES = 2
DEFAULT_HEAP_MIB = 512
"""Heap of the driver's JVM. With code cache, metaspace and buffers the process stays below 1.5 GiB."""

LAKE_SETTING = "spark.lakestream.lake"
"""The lake's root, for the classes of jvm/."""
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
"""Spark's setting for filters that reach data sources in Python."""
REST_SECONDS = 20.0
"""Time without work after which the JVM returns the heap that it does not use."""

JAVA_OPTIONS = (
    "-XX:+UseSerialGC -Xms64m -XX:MinHeapFreeRatio=10 -XX:MaxHeapFreeRatio=20 -XX:-ShrinkHeapInSteps "
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:MaxDirectMemorySize=256m -Duser.timezone=UTC "
    "-XX:+IgnoreUnrecognizedVMOptions -XX:TrimNativeHeapInterval=60000"
)
"""Options with which a short-lived or small Spark starts faster and stays smaller; a cluster should not use them. The
time zone is for the texts of Delta, which ignore the session's. TrimNativeHeapInterval (ms) returns freed memory of the
C library; Java 17 before 17.0.9 does not know it."""

DELTA = {
    # After Delta's, so that it sees Delta's own statements too.
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,io.lakestream.spark.LakestreamExtensions",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    # Subjects may have `${…}` in them, and SQL texts have subjects.
    "spark.sql.variable.substitute": "false",
    # Of two concurrent commits exactly one succeeds, and the other fails.
    "spark.delta.logStore.file.impl": "io.lakestream.delta.LocalCommitLogStore",
    "spark.delta.logStore.s3a.impl": "io.lakestream.delta.ConditionalS3LogStore",
    "spark.delta.logStore.gs.impl": "io.lakestream.delta.ConditionalGcsLogStore",
    "spark.delta.logStore.abfs.impl": "io.lakestream.delta.ConditionalAzureLogStore",
    "spark.delta.logStore.abfss.impl": "io.lakestream.delta.ConditionalAzureLogStore",
    # Only the lake's owner and group read its files (0750, 0640). Hadoop sets modes by this, not by the umask.
    "spark.hadoop.fs.permissions.umask-mode": "027",
    # No `.crc` file beside each checkpoint of Spark and each checksum of Delta: they would not be synced.
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    # Exact bounds for long subjects too, so that files are skipped. Delta cuts at 32 characters by itself.
    "spark.databricks.io.skipping.stringPrefixLength": "256",
    # Reads and writes encrypted tables, with the keys in LAKESTREAM_KEYS; nothing changes for others.
    "spark.hadoop.parquet.crypto.factory.class": "io.lakestream.delta.TableKeys",
    # As in the files of the compactor. Readers of Iceberg do not know the old INT96.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A table's first commit would run a Spark job to list its files (none): 145 ms of processor time instead of 36.
    "spark.databricks.delta.allFilesInCrc.enabled": "false",
}
"""Settings of every session that reads or writes streams' tables."""

LOCAL = {
    "spark.master": f"local[{DEFAULT_CORES}]",
    "spark.driver.memory": f"{DEFAULT_HEAP_MIB}m",
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    # The tables of a small lake need no 200 tasks to shuffle, nor 50 to read a transaction log.
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    "spark.databricks.delta.vacuum.parallelDelete.enabled": "true",
    # Limits of finished work kept by a driver that runs for months.
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "200",
    "spark.sql.ui.retainedExecutions": "5",
    "spark.sql.streaming.ui.retainedQueries": "5",
    "spark.sql.streaming.numRecentProgressUpdates": "5",
    "spark.sql.streaming.minBatchesToRetain": "10",
}
"""Additional settings of a session on this machine."""


def session(
    app: str = "lakestream",
    *,
    cores: int = DEFAULT_CORES,
    heap_mib: int = DEFAULT_HEAP_MIB,
    lake: str | None = None,
    extra: Mapping[str, str] | None = None,
    iceberg: bool = False,
) -> SparkSession:
    """Start Spark on this machine with Delta, or join the one that spark-submit has started for this program.

    Args:
        app: the application's name.
        cores: threads that run tasks.
        heap_mib: the JVM's heap in MiB; at least 450.
        lake: a lake's root; one in an object store needs further JARs and settings.
        extra: further Spark settings; they win over the ones here.
        iceberg: with Iceberg's library; spark-submit gets its JARs by itself.

    Raises:
        JavaMissing: no Java 17 or newer.
        JarsMissing: Delta's JARs could not be fetched, or spark-submit was started without them.
    """
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app)
    cloud = None if lake is None else cloud_of(paths.root(lake))
    if under_spark_submit():
        settings = dict(DELTA)
    else:
        environment = environ()
        os.environ.update(environment)
        settings = {**DELTA, **LOCAL, "spark.jars": ",".join(jars.ensure())}
        more = [*(jars.ensure_cloud(cloud.name) if cloud else ()), *(jars.ensure_iceberg() if iceberg else ())]
        if more:  # on the class path they are not copied at every start
            settings["spark.driver.extraClassPath"] = os.pathsep.join(more)
        settings["spark.master"] = f"local[{cores}]"
        settings["spark.driver.memory"] = f"{heap_mib}m"
        settings["spark.executorEnv.PYTHONPATH"] = environment["PYTHONPATH"]
    if cloud is not None:
        settings.update(cloud.spark_settings())
    elif lake is not None:  # for DurableFileSystem, which makes no lake anew
        settings[LAKE_SETTING] = paths.root(lake)
    settings.update(extra or {})
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel(settings.get("spark.log.level", "ERROR"))
    _require_delta(spark)
    if cloud is not None:
        require_package(spark, pins.CLOUDS[cloud.name], "the lake's object store needs it")
    return spark


class Rest:
    """Returns memory of a session's JVM when there is no work: only a full collection shrinks the heap.

    Args:
        spark: the session.
        seconds: time without work before a collection.
    """

    def __init__(self, spark: SparkSession, seconds: float = REST_SECONDS) -> None:
        self._spark, self._seconds = spark, seconds
        self._worked_at: float | None = time.monotonic()

    def worked(self) -> None:
        """Note that there was work. May be called in any thread."""
        self._worked_at = time.monotonic()

    def check(self) -> None:
        """Collect once when the last work was that long ago; call it again and again."""
        since = self._worked_at
        if since is not None and time.monotonic() - since >= self._seconds:
            self._worked_at = None
            jvm = self._spark.sparkContext._jvm
            assert jvm is not None
            jvm.System.gc()


def environ() -> dict[str, str]:
    """Return the environment of a Spark program: Java, this Python for the workers, and lakestream's packages on its
    path.

    Raises:
        JavaMissing: no Java 17 or newer.
    """
    found = jars.find_java()
    packages = (lakestream, lakestream_spark, lakestream_sql, lakestream_client)
    roots = list(dict.fromkeys(str(Path(str(each.__file__)).resolve().parents[1]) for each in packages))
    inherited = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part and part not in roots]
    return {
        "JAVA_HOME": found.home,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([*roots, *inherited]),
        "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"),
        # glibc gives the JVM's threads an arena each; freed memory stays with its arena.
        "MALLOC_ARENA_MAX": os.environ.get("MALLOC_ARENA_MAX", "2"),
    }


def under_spark_submit() -> bool:
    """Return True if spark-submit started this program, so that the JVM is running already."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _require_delta(spark: SparkSession) -> None:
    names = [*DELTA["spark.sql.extensions"].split(","), DELTA["spark.delta.logStore.file.impl"]]
    _require(
        spark,
        names,
        "start it with --jars $(python -m lakestream_spark.jars) and "
        "--properties-file spark_conf/local/spark-defaults.conf, or run the job with plain python",
    )


def require_package(spark: SparkSession, package: pins.Package, purpose: str) -> None:
    """Raise JarsMissing unless a session has the JARs of a package; `purpose` is a sentence about what needs it."""
    _require(
        spark,
        package.probes,
        f"{purpose}: start it with --jars $(python -m lakestream_spark.jars {package.option}), or with plain python",
    )


def _require(spark: SparkSession, names: Sequence[str], remedy: str) -> None:
    """Raise JarsMissing for a missing JAR; Spark only warns and fails at the first table."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    loader = jvm.Thread.currentThread().getContextClassLoader()
    for name in names:
        try:
            jvm.java.lang.Class.forName(name, False, loader)
        except Exception:
            raise JarsMissing(f"this Spark has no {name}: {remedy}") from None
