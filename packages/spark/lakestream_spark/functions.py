"""Functions and views of lakestream in Spark: as_of, and the typed views of JSON payloads.

Belongs here: as_of (a stream as it was at a time, by message time) for programs, and creating the typed views. In SQL
as_of is a part of our extension of Spark's parser (jvm/, AsOf.java), so that every front end of Spark has it.

The rows of a stream are a table function in the session's registry: a function from expressions to a plan, which Spark
calls on the driver while it analyzes a statement. Ours is a Python object that the JVM calls back through its
connection to Python. A Python UDTF would run as a task, pass each row through a Python worker and push nothing down.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession, functions

from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table import schema
from lakestream.lake.table.at import NotATable, instant, open_log
from lakestream.lake.table.json_schema import BadJsonSchema, JsonSchema, parse
from lakestream.lake.table.schema import ticked
from lakestream_spark import datasource
from lakestream_sql.typed import (
    MISFITS_SUFFIX,
    VIEW_SUFFIX,
    TypedTable,
    engine_functions,
    misfits_sql,
    typed_of,
    typed_tables,
    view_sql,
)

_LAKE_SETTING = "spark.lakestream.lake"
_ROWS = "_lakestream_rows"


def as_of(spark: SparkSession, stream: str, at: int | datetime | str, lake: str | None = None) -> DataFrame:
    """Return the messages that a stream held at a time, by message time, as far as its table has them.

    Args:
        spark: a session with lakestream's JAR.
        stream: `ORDERS`, or `ACME/ORDERS` for a stream of account ACME.
        at: the time, as `time_travel.instant` takes it: exact to the ns as an integer or a text.
        lake: the lake's root; the session's own when not given.

    Raises:
        TimeTravelError: `at` is no time.
        AnalysisException: Spark's; the stream has no table, or the versions of that time are gone.
    """
    root = paths.root(lake or spark.conf.get(_LAKE_SETTING, None) or ".")
    jvm: Any = spark.sparkContext._jvm
    found = jvm.io.lakestream.spark.AsOf.rows(spark._jsparkSession, root, stream, instant(at))
    return DataFrame(found, spark)


def register_rows(spark: SparkSession, lake: str) -> str:
    """Register a table function for a stream's rows, and return its name. Its argument is the stream's name.

    The rows are the table's, or without a table those of the data source `lakestream`, which has to be registered.
    """
    gateway: Any = spark.sparkContext._gateway
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    registry = spark._jsparkSession.sessionState().tableFunctionRegistry()
    registry.createOrReplaceTempFunction(_ROWS, _Rows(spark, lake), "scala_udf")
    return _ROWS


class _Function:
    """A scala.Function1 that the JVM calls."""

    class Java:
        """Declaration of the interface for py4j."""

        implements = ("scala.Function1",)


class _Rows(_Function):
    """Function from the name of a stream of the default account to the plan of its rows."""

    def __init__(self, spark: SparkSession, lake: str) -> None:
        self._spark = spark
        self._lake = lake

    def apply(self, arguments: Any) -> Any:
        """Return the plan. Called by the JVM."""
        return self._rows(str(arguments.head().value().toString()))._jdf.queryExecution().analyzed()

    def _rows(self, stream: str) -> DataFrame:
        table = paths.table(paths.root(self._lake), stream)
        try:
            open_log(table)
        except NotATable:
            reader = self._spark.read.format("lakestream").option("lake", self._lake)
            return reader.option("stream", stream).load()
        return self._spark.read.format("delta").load(open_storage(self._lake).spark_path(table))


def prepare_spark(spark: SparkSession, found: JsonSchema) -> None:
    """Create the two functions of the views in a Spark session. Executors need lakestream on their path."""
    arrow_udf = vars(functions)["arrow_udf"]  # its type stubs do not know it
    values, reasons = engine_functions(found.text)
    spark.udf.register(found.values_function, arrow_udf(values, found.spark))
    spark.udf.register(found.reason_function, arrow_udf(reasons, "STRING"))


def register_views(spark: SparkSession, lake: str) -> list[str]:
    """Create the temporary views `<STREAM>_json` and `<STREAM>_json_misfits` of all streams that have a schema.

    They use each stream's present schema; call it again after a change. A schema that does not parse gets none. A
    stream without a table is read by the data source `lakestream` until the table exists.

    Returns:
        The names of the views.
    """
    made: list[str] = []
    for table in typed_tables(lake):
        try:
            found = parse(table.text)
        except BadJsonSchema:
            continue
        prepare_spark(spark, found)
        source = _made(table) if table.made else _in_the_making(spark, lake, table)
        for suffix, select in (
            (VIEW_SUFFIX, view_sql(found, source, table.columns)),
            (MISFITS_SUFFIX, misfits_sql(found, source)),
        ):
            spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {ticked(table.stream + suffix)} AS {select}")
            made.append(table.stream + suffix)
    return made


def serve_views(spark: SparkSession, lake: str) -> None:
    """Let the typed views of a lake be there in all sessions of this Spark, by plans of this one."""
    gateway: Any = spark.sparkContext._gateway
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    gateway.jvm.io.lakestream.spark.TypedViews.use(_Views(spark, lake))


class _Views(_Function):
    """Function from the name of a typed view to its plan; None for another name. Before the name stand the root of a
    session that is confined to an account, and a line feed."""

    def __init__(self, spark: SparkSession, lake: str) -> None:
        self._spark = spark
        self._lake = lake

    def apply(self, name: Any) -> Any:
        """Return the plan. Called by the JVM."""
        root, _, view = str(name).partition("\n")
        stream, _, suffix = view.rpartition(VIEW_SUFFIX)
        account = root.removeprefix(open_storage(self._lake).spark_path(self._lake))
        try:
            table = typed_of(paths.table(self._lake + account, stream))
            found = None if table is None else parse(table.text)
        except BadJsonSchema:
            return None
        if table is None or found is None or (root and not table.made):  # such a session reads what is committed
            return None
        prepare_spark(self._spark, found)
        source = _made(table) if table.made else _in_the_making(self._spark, self._lake, table)
        select = misfits_sql(found, source) if suffix else view_sql(found, source, table.columns)
        return self._spark.sql(select)._jdf.queryExecution().analyzed()


def _made(table: TypedTable) -> str:
    return f"delta.{ticked(open_storage(table.path).spark_path(table.path))}"


def _in_the_making(spark: SparkSession, lake: str, table: TypedTable) -> str:
    datasource.register(spark, lake)
    return f"{register_rows(spark, lake)}({schema.quoted(table.stream)})"
