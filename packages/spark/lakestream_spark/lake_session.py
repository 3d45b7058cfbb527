"""Sessions of Spark over the streams of a lake.

Belongs here: the session for programs and notebooks, which know it as `lakestream.spark`. `session.py` has Spark's
settings. Nothing of Spark is imported before a session is asked for.

    from lakestream.spark import session

    spark = session("data/lake")
    spark.sql("SELECT subject, count(*) FROM delta.`streams/ORDERS` GROUP BY subject").show()
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakestream.lake.errors import LakeError
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAKE_SETTING = "spark.lakestream.lake"
"""The Spark setting that names the lake's root; our extension of Spark's parser reads it at every statement."""

LAKE_VARIABLE = "LAKESTREAM_LAKE"

DEFAULT_LAKE = "data/lake"


class LakeNotFound(LakeError):
    """Raised when there is no lake at the path."""


def default_lake() -> str:
    """Return the default lake: $LAKESTREAM_LAKE, else the working directory if it is a lake's root, else ./data/lake if
    it exists, else the working directory. Spark's shells decide in the same way."""
    if lake := os.environ.get(LAKE_VARIABLE, "").strip():
        return lake
    if Path("streams").is_dir() or Path("segments").is_dir() or not Path(DEFAULT_LAKE).is_dir():
        return os.curdir
    return DEFAULT_LAKE


def session(
    lake: str | os.PathLike[str] | None = None,
    *,
    app: str = "lakestream",
    cores: int | None = None,
    heap_mib: int | None = None,
    extra: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a Spark session in which ``delta.`streams/ORDERS` `` is a table of the lake.

    It is local unless spark-submit started this program. A second call joins the running Spark; for another lake it
    returns a session of its own, with its own temporary views, on the same Spark.

    Args:
        lake: the lake's root: a directory, a file: URL, or a URL of a cloud. `default_lake()` when not given.
        app: the application's name.
        cores: threads that run tasks (2).
        heap_mib: the JVM's heap in MiB (512), at least 450.
        extra: further Spark settings; they take precedence over lakestream's.

    Raises:
        LakeNotFound: there is no such directory.
        UnsupportedLake: an address of another kind.
        JavaMissing: no Java 17 or newer.
        JarsMissing: a JAR could not be fetched, or this Spark was started without one.
    """
    root = paths.root(os.fspath(lake) if lake is not None else default_lake())
    if paths.is_local(root) and not os.path.isdir(root):
        raise LakeNotFound(f"there is no lake at {root}: start `lakestream up`, or name the lake's directory")
    from lakestream_spark import datasource, functions
    from lakestream_spark import session as sessions

    spark = sessions.session(
        app,
        cores=sessions.DEFAULT_CORES if cores is None else cores,
        heap_mib=sessions.DEFAULT_HEAP_MIB if heap_mib is None else heap_mib,
        lake=root,
        extra=extra,
    )
    spelled = open_storage(root).spark_path(root)
    if spark.conf.get(LAKE_SETTING, None) not in (None, spelled):
        spark = spark.newSession()
        _activate(spark)
    spark.conf.set(LAKE_SETTING, spelled)
    datasource.register(spark, root)
    functions.register_views(spark, root)
    return spark


def _activate(spark: SparkSession) -> None:
    """Make a session this thread's own in the JVM too: Spark looks there for data sources of the same name."""
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
