"""Queries of the lake with Spark.

Belongs here: the same interface as lakestream_sql.session.Session, and Spark's errors as one message without its
stack trace. The Spark is that of the lake's compactor if it serves Spark Connect (connect.py), else one of its own, at
the cost of a JVM and some seconds to start.

Only statements that read are allowed, as Spark's own parser decides (Statements in jvm/).
"""

from __future__ import annotations

import difflib
import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, types
from pyspark.sql.types import DataType

from lakestream.lake.errors import JarsMissing
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table.log import has_log
from lakestream_spark import connect, jars
from lakestream_spark.lake_session import LAKE_SETTING, session
from lakestream_sql import NO_BINDINGS, Bindings, Timestamps
from lakestream_sql.explained import BadSql, ForbiddenQuery, SqlError, UnknownStream
from lakestream_sql.messages import MentionedStreams
from lakestream_sql.tokens import split

__all__ = ["ConfinedSpark", "SparkEngine", "SparkResult"]

Convert = Callable[[Any], Any]

_TYPE_NAMES = {
    "byte": "TINYINT",
    "short": "SMALLINT",
    "integer": "INTEGER",
    "long": "BIGINT",
    "string": "VARCHAR",
    "binary": "BLOB",
    "timestamp": "TIMESTAMP WITH TIME ZONE",
    "timestamp_ntz": "TIMESTAMP",
}
"""DuckDB's type names where they differ from Spark's in capitals."""

_NO_TABLE = frozenset(
    {
        "DELTA_MISSING_DELTA_TABLE",
        "DELTA_PATH_DOES_NOT_EXIST",
        "DELTA_TABLE_NOT_FOUND",
        "DELTA_TABLE_ONLY_OPERATION",
        "PATH_NOT_FOUND",
        "TABLE_OR_VIEW_NOT_FOUND",
    }
)
"""Error classes of Spark and Delta for a name or a path without a table."""
_NAME = re.compile(r"[/`]([^/`\s]+?)`?(?=[.\s]|$)")
"""The name of a table in such an error: behind a slash or in backticks."""
_ADVICE = " Verify the spelling"
"""Beginning of what Spark says of its catalogs for an unknown name."""
_STREAMS = "lakestream_streams"
"""Table function of a confined session with the streams that a query reads (jvm/, Confinement.java)."""
_REFUSED = "a query here reads streams, "
"""Beginning of the errors of Confinement.java."""
LAST_HINT = (
    "the table function last is DuckDB's engine's alone; in Spark: SELECT subject, max(seq), max_by(data, seq) FROM "
    "delta.`streams/ORDERS` GROUP BY subject"
)
_NO_BUCKET = "there is no table "
"""Beginning of the error of AsOf.java for a bucket without a table."""
_EXPLAIN = re.compile(r"(\s|--[^\n]*\n|/\*.*?\*/)*EXPLAIN\b", re.IGNORECASE | re.DOTALL)
_PLACE = re.compile(r"\bline (\d+),? pos (\d+)")


class SparkResult:
    """The rows of one query: `columns` and `types` (DuckDB's names), and the rows, once, by iterating."""

    def __init__(self, frame: DataFrame, statement: str, offset: int, text: str) -> None:
        untyped: Any = frame
        self._rows: Callable[[], Iterator[Any]] = untyped.toLocalIterator
        self._table: Callable[[], Any] = untyped.toArrow
        self._explained: Callable[[Exception], SqlError] = lambda error: explained(error, statement, offset, text)
        fields = frame.schema.fields
        self.columns = tuple(field.name for field in fields)
        self.types = tuple(_type_name(field.dataType) for field in fields)
        self._convert = [_converter(field.dataType) for field in fields]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        try:
            # Partition by partition, so that a large result is never in memory as a whole.
            for row in self._rows():
                yield tuple(
                    value if convert is None or value is None else convert(value)
                    for value, convert in zip(row, self._convert, strict=True)
                )
        except Exception as error:
            raise self._explained(error) from None

    def batches(self, rows: int) -> Any:
        """Return the rows as a pyarrow RecordBatchReader of batches of so many rows."""
        try:
            return self._table().to_reader(rows)
        except Exception as error:
            raise self._explained(error) from None

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return all remaining rows."""
        return list(self)


class SparkEngine:
    """Spark over the streams of one lake. Times are read and shown in UTC.

    Args:
        lake: the lake's root: a directory, a file: URL, or a URL of a cloud.
        keep: leave Spark running at the end, when the caller had started it.
        timestamps: the meaning of TIMESTAMP AS OF on a stream's table.

    Raises:
        LakeNotFound, UnsupportedLake, JavaMissing, JarsMissing.
    """

    def __init__(self, lake: str | os.PathLike[str], *, keep: bool = False, timestamps: Timestamps = "commit") -> None:
        self.root = paths.root(os.fspath(lake))
        self._keep = keep
        # PySpark logs each error that it raises, with its stack trace.
        logging.getLogger("SQLQueryContextLogger").disabled = True
        note = None if keep else connect.read_note(self.root)
        self._spark = self._local() if note is None else connect.client(note)
        self._spark.conf.set("spark.lakestream.timestampAsOf", timestamps)
        self._spark.conf.set(connect.STATEMENTS, "read")

    def _local(self) -> SparkSession:
        with suppress(JarsMissing):  # only for log4j2.properties: without it Spark is louder
            os.environ.setdefault("SPARK_CONF_DIR", os.path.dirname(jars.configuration()))
        return session(self.root, app="lakestream sql")

    def close(self) -> None:
        """Stop Spark; results not read yet are lost."""
        if self._keep:
            self._spark.conf.unset(connect.STATEMENTS)
        else:
            self._spark.stop()

    def __enter__(self) -> SparkEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- what there is

    def tables(self) -> list[str]:
        """Return the names of all stream tables, as written between backticks after `delta.`, sorted."""
        accounts = sorted(open_storage(self.root).directories(f"{self.root}/{paths.ACCOUNTS}"))
        bases = ("", *(f"{paths.ACCOUNTS}/{account}/" for account in accounts))
        return [f"{base}{name}" for base in bases for name in _tables(f"{self.root}/{base}")]

    # ---- questions

    def run(self, text: str) -> Iterator[SparkResult]:
        """Answer each statement of a text in order; a wrong one ends it, with the earlier ones done.

        Raises:
            SqlError: BadSql with the place, UnknownStream with the streams there are, and so on.
        """
        for statement, offset in _statements(text):
            yield self._answer(statement, offset, text)

    def query(self, text: str) -> SparkResult:
        """Answer a text of exactly one statement.

        Raises:
            SqlError: as `run`; BadSql when there is none or more than one.
        """
        return self._answer(*_only(text), text)

    def _answer(self, statement: str, offset: int, text: str) -> SparkResult:
        try:
            if statement.upper().split() == ["SHOW", "TABLES"]:
                return SparkResult(self._listing(), statement, offset, text)
            frame = self._spark.sql(statement)
            if _EXPLAIN.match(statement):  # shown as it is, like DuckDB's
                frame = frame.selectExpr("'physical_plan' AS explain_key", "plan AS explain_value")
            return SparkResult(frame, statement, offset, text)
        except SqlError:
            raise
        except Exception as error:
            raise _with_tables(explained(error, statement, offset, text), self.tables) from None

    def _listing(self) -> DataFrame:
        rows = []
        for name in self.tables():
            history = self._spark.sql(f"DESCRIBE HISTORY delta.`{name}` LIMIT 1").collect()
            rows.append((f"delta.`{name}`", history[0]["version"]))
        return self._spark.createDataFrame(rows, "table string, version long")


class ConfinedSpark:
    """The warm Spark of a lake's compactor, for the streams of one account and for one query at a time.

    Spark's parser refuses everything that is no query of these streams (Confinement in jvm/).

    Args:
        lake: the lake's root.
        account: whose streams may be read.

    Attributes:
        most: rows of a result that are wanted; one more is asked for. 0: all.
    """

    def __init__(self, lake: str, account: str) -> None:
        self._lake = paths.root(lake)
        self._root = paths.table(self._lake, "", account).rpartition(f"/{paths.STREAMS}/")[0]
        self._note: connect.ConnectNote | None = None
        self._session: SparkSession | None = None
        self.most = 0
        logging.getLogger("SQLQueryContextLogger").disabled = True

    def mentioned(self, text: str, bindings: Bindings = NO_BINDINGS) -> MentionedStreams:
        """Return the streams that a query reads.

        Raises:
            SqlError: BadSql for a text that does not parse, ForbiddenQuery for more than such a query.
            NoSparkConnect: there is no warm Spark.
        """
        if _lists(text):
            return MentionedStreams([], lists=True)
        statement, offset = _only(text)
        spark = self._spark()
        try:
            rows = spark.sql(f"SELECT value FROM {_STREAMS}(:text)", {"text": statement}).collect()
        except Exception as error:
            raise self._failure(explained(error, statement, offset, text)) from None
        return MentionedStreams(list(dict.fromkeys(paths.name_of(row[0]) for row in rows)))

    def parameters(self, text: str) -> list[str]:
        """Return no names: Spark does not tell those of parameters."""
        return []

    def query(
        self,
        text: str,
        bindings: Bindings = NO_BINDINGS,
        described: Callable[[tuple[str, ...], tuple[str, ...]], None] = lambda columns, types: None,
    ) -> SparkResult:
        """Answer a text of exactly one query; `described` is called with the columns before its rows are computed.

        Raises:
            SqlError, NoSparkConnect: as `mentioned`.
        """
        result = self._result(text, bindings, self.most + 1 if self.most else None)
        described(result.columns, result.types)
        return result

    def shape(self, text: str, bindings: Bindings = NO_BINDINGS) -> SparkResult:
        """Return the result of a text of exactly one query without its rows. Raises as `query`."""
        return self._result(text, bindings, 0)

    def _result(self, text: str, bindings: Bindings, rows: int | None) -> SparkResult:
        if bindings.as_of is not None:
            raise BadSql("as_of of a request is DuckDB's; write as_of('ORDERS', T) in the query", text)
        statement, offset = _only(text)
        spark = self._spark()
        if _lists(text):
            names = [(f"delta.`{name}`",) for name in _tables(f"{self._root}/")]
            return SparkResult(spark.createDataFrame(names, "table string"), statement, offset, text)
        named = bindings.parameters
        # `?` has numbers for names.
        values: Any = list(named.values()) if all(name.isdigit() for name in named) else dict(named)
        try:
            frame = spark.sql(statement, values or None)
            return SparkResult(frame if rows is None else frame.limit(rows), statement, offset, text)
        except Exception as error:
            raise self._failure(explained(error, statement, offset, text)) from None

    def _failure(self, error: SqlError) -> SqlError:
        if str(error).startswith(_REFUSED):
            return ForbiddenQuery(str(error))
        return _with_tables(error, lambda: _tables(f"{self._root}/"))

    def _spark(self) -> SparkSession:
        """Return the session; another one when the compactor has started anew."""
        note = connect.read_note(self._lake)
        if note is None:
            raise connect.NoSparkConnect
        if self._session is None or note != self._note:
            self._note, self._session = note, connect.client(note)
            self._session.conf.set(connect.STATEMENTS, "confined")
            self._session.conf.set(LAKE_SETTING, open_storage(self._lake).spark_path(self._root))
        return self._session


def _with_tables(error: SqlError, tables: Callable[[], list[str]]) -> SqlError:
    """Return an error with the names of the tables that there are, if it is that of an unknown one."""
    if not isinstance(error, UnknownStream):
        return error
    said, newline, place = str(error).partition("\n")
    found = {table.rpartition("/")[2].lower(): f"delta.`{table}`" for table in tables()}
    missing = _NAME.findall(said)[-1:]
    near = [found[each] for name in missing for each in difflib.get_close_matches(name.lower(), found, 3, 0.7)]
    advice = f" Did you mean {' or '.join(near)}?" if near else ""
    known = ", ".join(found.values()) or "none yet"
    return UnknownStream(f"{said}{advice}{newline}{place}\n  the tables there are: {known}")


def _only(text: str) -> tuple[str, int]:
    """Return the only statement of a text with its position. Raises BadSql when there is none or more than one."""
    found = _statements(text)
    if len(found) != 1:
        raise BadSql(f"one statement is expected here, not {len(found)}", text)
    return found[0]


def _tables(base: str) -> list[str]:
    """Return the tables of streams below the directory of a lake or an account, `base`, which ends with a slash."""
    storage = open_storage(base)
    names = sorted(storage.directories(f"{base}{paths.STREAMS}"))
    return [f"{paths.STREAMS}/{name}" for name in names if has_log(storage, f"{base}{paths.STREAMS}/{name}")]


def _lists(text: str) -> bool:
    """Return True if a text asks for the names of all streams."""
    return text.strip().rstrip(";").upper().split() == ["SHOW", "TABLES"]


def _statements(text: str) -> list[tuple[str, int]]:
    """Return the statements of a text without surrounding blanks, each with its position."""
    done, rest = split(text, "spark")
    if rest:
        done.append((rest, len(text) - len(rest)))
    return [(part.strip(), offset + len(part) - len(part.lstrip())) for part, offset in done]


# ---- errors


def explained(error: Exception, statement: str, offset: int, text: str) -> SqlError:
    """Return Spark's error as one message, with its position in the user's text."""
    condition, message = _said(error)
    message = message.strip()
    if ours := re.search(r"^lakestream\.[\w.]+: (.+)", message, re.MULTILINE):
        return SqlError(ours.group(1))  # the text of as_of, at the end of the stack trace
    if condition == "UNRESOLVABLE_TABLE_VALUED_FUNCTION" and "`last`" in message:
        message = LAST_HINT
    place = None
    if found := _PLACE.search(message):
        line, column = int(found.group(1)), int(found.group(2))
        place = offset + sum(len(part) for part in statement.splitlines(keepends=True)[: line - 1]) + column
    body = re.sub(r"^\[[\w.]+\] ", "", message).partition(_ADVICE)[0]
    # The sentence is followed by the state, the position, the query, and the plan.
    body = (
        re.split(r" SQLSTATE: |\n== |\n+JVM stacktrace:|;\s*line \d+|;?\n['!+*]|\n\s*at ", body)[0]
        .replace("(line", "")
        .strip(" ;\n")
    )
    if (
        condition.partition(".")[0] in _NO_TABLE
        or body.endswith("_delta_log does not exist")
        or body.startswith(_NO_BUCKET)
    ):
        return UnknownStream(body if place is None else str(BadSql(body, text, place)))
    return SqlError(body) if place is None else BadSql(body, text, place)


def _said(error: Exception) -> tuple[str, str]:
    """Return Spark's name for an error, and its text; of a chain of Java exceptions, the last one with a text."""
    if isinstance(error, PySparkException):
        return error.getCondition() or "", str(error)
    cause, said = getattr(error, "java_exception", None), ""
    if cause is None:
        return "", f"{type(error).__name__}: {error}"
    while cause is not None:
        said = cause.getMessage() or said
        cause = cause.getCause()
    named = re.match(r"\[([\w.]+)\]", said)
    return named.group(1) if named else "", said or "Spark failed without a word"


# ---- values


def _type_name(kind: DataType) -> str:
    name = kind.typeName()
    return _TYPE_NAMES.get(name) or kind.simpleString().upper()


def _converter(kind: DataType) -> Convert | None:
    """Return the converter from PySpark's values to DuckDB's: bytes, times with their zone, structs as dicts."""
    if isinstance(kind, types.BinaryType):
        return bytes
    if isinstance(kind, types.TimestampType):
        # PySpark gives local times without a zone.
        return lambda value: value.astimezone(UTC)
    if isinstance(kind, types.ArrayType):
        inner = _each(_converter(kind.elementType))
        return lambda value: [inner(item) for item in value]
    if isinstance(kind, types.MapType):
        key, item = _each(_converter(kind.keyType)), _each(_converter(kind.valueType))
        return lambda value: {key(name): item(content) for name, content in value.items()}
    if isinstance(kind, types.StructType):
        parts = [(field.name, _each(_converter(field.dataType))) for field in kind.fields]
        return lambda value: {name: part(content) for (name, part), content in zip(parts, value, strict=True)}
    return None


def _each(convert: Convert | None) -> Convert:
    return lambda value: value if convert is None or value is None else convert(value)
