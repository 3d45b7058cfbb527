"""Functions and views of lakestream in Spark: as_of, and the typed views of JSON payloads.

Belongs here: as_of (a stream as it was at a time, by message time) for programs and for SQL, and creating the typed
views. as_of reads the version of the table that delta/time_travel.py finds, as a relation like any other, so that
filters and columns are pushed down into its files.

For SQL the function is put into the session's registry of table functions: a function from expressions to a plan, which
Spark calls on the driver while it analyzes a statement. Ours is a Python object that the JVM calls back through its
connection to Python. A Python UDTF would run as a task, pass each row through a Python worker and push nothing down.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import datetime
from typing import Any

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession, functions

from lakestream.lake.delta import departures as departure_files
from lakestream.lake.delta import schema
from lakestream.lake.delta.json_schema import BadJsonSchema, JsonSchema, parse
from lakestream.lake.delta.schema import REMOVED_COLUMN, ticked
from lakestream.lake.delta.time_travel import CommitLog, NotATable, TimeTravelError, instant, version_for_message_time
from lakestream.lake.files import paths
from lakestream.lake.files.lake import open_storage
from lakestream.lake.read import datasource
from lakestream.lake.sql import dialect
from lakestream.lake.sql.catalog import Catalog, held_sql, of_stream
from lakestream.lake.sql.typed import (
    MISFITS_SUFFIX,
    VIEW_SUFFIX,
    TypedTable,
    engine_functions,
    misfits_sql,
    typed_tables,
    view_sql,
)

__all__ = ["as_of", "register"]
_LAKE_SETTING = "spark.lakestream.lake"
_MICRO = 1000
_EXACT = ("string", "tinyint", "smallint", "int", "bigint")
_ROWS = "_lakestream_rows"
_TIMES = ("timestamp", "timestamp_ntz", "date")


def as_of(spark: SparkSession, stream: str, at: int | datetime | str, lake: str | None = None) -> DataFrame:
    """Return the messages that a stream held at a time, by message time, as far as its table has them.

    Args:
        spark: a session with Delta.
        stream: `ORDERS`, or `ACME/ORDERS` for a stream of account ACME.
        at: the time, as `time_travel.instant` takes it: exact to the ns as an integer or a text.
        lake: the lake's root; the session's own when not given.

    Raises:
        NotATable: the stream has no table.
        TimeTravelError: the versions of that time are gone, or `at` is no time.
    """
    root = paths.root(lake or spark.conf.get(_LAKE_SETTING, None) or ".")
    at_ns = instant(at)
    log = CommitLog(Catalog(root, lambda _: None, None).stream(of_stream(stream)).table)
    found = version_for_message_time(log, at_ns)
    version = log.latest if found.version is None else found.version
    reader = spark.read.format("delta").option("versionAsOf", version)
    rows = reader.load(open_storage(root).spark_path(log.table))
    if found.version is None:
        return rows.where("false")
    gone = departure_files.gone_as_of(open_storage(root), log.table, found)
    if gone.runs:
        from pyspark.sql import functions

        runs = spark.createDataFrame([*gone.runs], "first bigint, last bigint")
        one_by_one = runs.select(functions.explode(functions.sequence("first", "last")).alias("seq"))
        rows = rows.join(one_by_one, "seq", "left_anti").select(*rows.columns)
    return rows.where(held_sql(at_ns, REMOVED_COLUMN in rows.columns))


def register(spark: SparkSession, lake: str) -> None:
    """Register as_of as a table function in a session.

    Args:
        spark: a session with Delta, from a Python program.
        lake: the root of the lake.
    """
    _register(spark, dialect.AS_OF, _AsOf(spark, lake))


def register_rows(spark: SparkSession, lake: str) -> str:
    """Register a table function for a stream's rows, and return its name. Its argument is the stream's name.

    The rows are the table's, or without a table those of the data source `lakestream`, which has to be registered.
    """
    _register(spark, _ROWS, _Rows(spark, lake))
    return _ROWS


def _register(spark: SparkSession, name: str, builder: _Builder) -> None:
    gateway: Any = spark.sparkContext._gateway
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    registry = spark._jsparkSession.sessionState().tableFunctionRegistry()
    registry.createOrReplaceTempFunction(name, builder, "scala_udf")


class _Builder(ABC):
    """Implementation of scala.Function1 from the arguments' expressions to a plan."""

    def __init__(self, spark: SparkSession, lake: str) -> None:
        self._spark = spark
        self._lake = lake

    @abstractmethod
    def rows(self, values: list[Any]) -> DataFrame:
        """Return the function's result for the values of its arguments."""

    def apply(self, arguments: Any) -> Any:
        """Return the plan. Called by the JVM."""
        rows = self.rows([self._value(arguments.apply(number)) for number in range(arguments.size())])
        return rows._jdf.queryExecution().analyzed()

    def _value(self, expression: Any) -> Any:
        """Return the value of an argument: text, an integer, or a time in ns; None for anything else."""
        kind = expression.dataType().simpleString()
        if kind not in (*_EXACT, *_TIMES):
            return None
        if expression.getClass().getSimpleName() == "Literal" and kind in _EXACT:
            value = expression.value()
            return str(value.toString()) if kind == "string" and value is not None else value
        # Spark evaluates any other expression.
        jvm: Any = self._spark.sparkContext._jvm
        column = jvm.org.apache.spark.sql.classic.ExpressionUtils.column(expression)
        if kind in _TIMES:
            column = jvm.org.apache.spark.sql.functions.unix_micros(column.cast("timestamp"))
        columns = jvm.PythonUtils.toSeq([column.cast("string")])
        value = self._spark.range(1)._jdf.select(columns).head().getString(0)
        if value is None or kind == "string":
            return value
        return int(value) * _MICRO if kind in _TIMES else int(value)

    class Java:
        """Declaration of the interface for py4j."""

        implements = ("scala.Function1",)


class _AsOf(_Builder):
    """as_of(stream, moment)."""

    def rows(self, values: list[Any]) -> DataFrame:
        if len(values) != 2 or not isinstance(values[0], str) or values[1] is None:
            raise TimeTravelError("as_of takes a stream's name and a moment: as_of('ORDERS', '2026-05-01 12:00:00')")
        stream, moment = values
        try:
            return as_of(self._spark, stream, moment, self._lake)
        except NotATable:
            raise TimeTravelError(f"there is no stream {stream} in {self._lake} that has a table") from None


class _Rows(_Builder):
    """The rows of a stream of the default account."""

    def rows(self, values: list[Any]) -> DataFrame:
        [stream] = values
        table = paths.table(paths.root(self._lake), stream)
        try:
            CommitLog(table)
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


def _made(table: TypedTable) -> str:
    return f"delta.{ticked(open_storage(table.path).spark_path(table.path))}"


def _in_the_making(spark: SparkSession, lake: str, table: TypedTable) -> str:

    datasource.register(spark, lake)
    return f"{register_rows(spark, lake)}({schema.quoted(table.stream)})"
