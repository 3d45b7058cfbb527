"""Tests of `lakestream sql` with Spark as its engine: the same queries, answers and errors as with DuckDB."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from lakestream.cli.results import WRITERS
from lakestream.spark import LakeNotFound
from lakestream_spark.sql_engine import SparkEngine
from lakestream_sql.explained import BadSql, SqlError, UnknownStream
from lakestream_sql.session import Session
from tests.lake.tables import version

pytestmark = pytest.mark.lake

T = "delta.`streams/ORDERS`"


@pytest.fixture(scope="module")
def engine(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkEngine]:
    """Yield an engine over a lake with two tables, on the tests' Spark."""
    root = tmp_path_factory.mktemp("root") / "lake"
    for number in range(2):
        frame = spark.createDataFrame([("orders", number, b"{}")], "subject string, seq long, data binary").coalesce(1)
        frame.write.format("delta").mode("append").save(f"{root}/streams/ORDERS")
    spark.range(1).coalesce(1).write.format("delta").save(f"{root}/accounts/ACME/streams/A")
    with SparkEngine(root, keep=True) as found:
        yield found


def test_statements_are_answered_in_order(engine: SparkEngine) -> None:
    first, second = engine.run(f"SELECT seq, data FROM {T} ORDER BY seq; SELECT count(*) AS n FROM {T} VERSION AS OF 0")
    assert (first.columns, first.types) == (("seq", "data"), ("BIGINT", "BLOB"))
    assert first.fetchall() == [(0, b"{}"), (1, b"{}")]
    assert second.fetchall() == [(1,)]
    assert engine.query("SHOW TABLES").fetchall() == [
        ("delta.`streams/ORDERS`", 1),
        ("delta.`accounts/ACME/streams/A`", 0),
    ]
    assert engine.query("DESCRIBE delta.`accounts/ACME/streams/A`").fetchall() == [("id", "bigint", None)]
    assert [row[0] for row in engine.query(f"DESCRIBE HISTORY {T}")] == [1, 0]
    assert "Physical Plan" in engine.query(f"EXPLAIN SELECT * FROM {T}").fetchall()[0][1]


def test_values_are_as_with_duckdb(engine: SparkEngine) -> None:
    result = engine.query(
        "SELECT TIMESTAMP '2026-03-29 01:30:00' AS t, TIMESTAMP_NTZ '2026-03-29 02:30:00' AS n, "
        "map('Nats-Msg-Id', array('1', NULL)) AS headers, named_struct('x', X'41', 'at', array(DATE '2026-01-01')) "
        "AS s, CAST(NULL AS BINARY) AS nothing, 1.5BD AS price"
    )
    at = datetime(2026, 3, 29, 1, 30, tzinfo=UTC)
    (row,) = result.fetchall()
    assert row[:3] == (at, datetime(2026, 3, 29, 2, 30), {"Nats-Msg-Id": ["1", None]})
    assert row[3] == {"x": b"A", "at": [datetime(2026, 1, 1).date()]}
    assert row[4] is None
    assert result.types[:2] == ("TIMESTAMP WITH TIME ZONE", "TIMESTAMP")
    assert result.types[4:] == ("BLOB", "DECIMAL(2,1)")


DIFFERENCES: list[tuple[str, Any, Any]] = [
    ("CAST(3.7 AS INT)", 4, 3),
    ("concat('a', NULL)", "a", None),
    ("regexp_replace('aa', 'a', 'b')", "ba", "bb"),
    (r"'a_c' LIKE 'a\_c'", False, True),
    (r"'a\tb'", r"a\tb", "a\tb"),
    (r"'\d'", r"\d", "d"),
    ("log(100)", 2.0, math.log(100)),
    ("5 ^ 3", 125.0, 6),
    ("1 / 3.0", 1 / 3, Decimal("0.333333")),
    ("dayofweek(DATE '2026-01-04')", 0, 1),
    ("weekday(DATE '2026-01-04')", 0, 6),
    ("dayname(DATE '2026-01-05')", "Monday", "Mon"),
    ("monthname(DATE '2026-01-05')", "January", "Jan"),
    ("DATE '2026-01-05' - DATE '2026-01-01'", 4, timedelta(4)),
    ("DATE '2026-01-31' + INTERVAL 1 MONTH", datetime(2026, 2, 28), date(2026, 2, 28)),
    ("extract(second FROM TIMESTAMP '2026-01-01 00:00:05.25')", 5, Decimal("5.250000")),
    ("left('abc', -1)", "ab", ""),
    ("substring('abc', 0, 2)", "a", "ab"),
    ("ltrim('xa', 'x')", "a", ""),
]
"""Expressions that mean something else in each engine, in the order of docs/spark.md: DuckDB's value, and Spark's."""


def test_the_differences_between_the_engines_are_those_of_the_docs(engine: SparkEngine) -> None:
    query = "SELECT " + ", ".join(f"{text} AS c{at}" for at, (text, *_) in enumerate(DIFFERENCES))
    with Session(engine.root, committed=True) as session:
        assert session.query(query).fetchall() == [tuple(value for _, value, _ in DIFFERENCES)]
    (row,) = engine.query(query).fetchall()
    assert row == tuple(value for *_, value in DIFFERENCES)


@pytest.mark.parametrize("format", ["table", "csv", "json"])
def test_results_can_be_written(engine: SparkEngine, format: str) -> None:
    out = StringIO()
    WRITERS[format](engine.query(f"SELECT seq, data FROM {T} WHERE seq = 1"), out)  # type: ignore[arg-type]
    assert {"csv": "seq,data\n1,{}\n", "json": '[\n{"seq": 1, "data": "{}"}\n]\n'}.get(
        format, out.getvalue()
    ) == out.getvalue()
    assert "1" in out.getvalue()


@pytest.mark.parametrize(
    "statement",
    [
        f"INSERT INTO {T} VALUES ('x', 1, NULL)",
        f"WITH x AS (SELECT 1) INSERT INTO {T} SELECT 'x', 1, NULL",
        f"FROM {T} INSERT INTO {T} SELECT * INSERT INTO {T} SELECT *",
        f"DELETE FROM {T}",
        f"UPDATE {T} SET seq = 9",
        f"MERGE INTO {T} t USING {T} s ON t.seq = s.seq WHEN MATCHED THEN DELETE",
        f"OPTIMIZE {T}",
        f"VACUUM {T}",
        f"RESTORE TABLE {T} TO VERSION AS OF 0",
        f"CREATE TABLE delta.`streams/COPY` SHALLOW CLONE {T}",
        "CONVERT TO DELTA parquet.`streams/ORDERS`",
        f"REORG TABLE {T} APPLY (PURGE)",
        f"ALTER TABLE {T} ADD COLUMN x INT",
        f"TRUNCATE TABLE {T}",
        f"CREATE TABLE x USING delta AS SELECT * FROM {T}",
        f"CREATE TEMP VIEW x AS SELECT * FROM {T}",
        "DROP TABLE IF EXISTS x",
        "SET spark.lakestream.lake=/",
        "ADD JAR '/tmp/x.jar'",
    ],
)
def test_only_reading_is_let_through(engine: SparkEngine, statement: str) -> None:
    before = version(f"{engine.root}/streams/ORDERS")
    with pytest.raises(BadSql, match="streams change through NATS") as failure:
        engine.query(f"\n  {statement}")
    assert "line 2, column 3" in str(failure.value)
    assert version(f"{engine.root}/streams/ORDERS") == before


@pytest.mark.parametrize(
    ("text", "said", "place"),
    [
        ("SELEC 1", "Syntax error at or near 'SELEC'", (1, 1)),
        (f"SELECT 1;\nSELECT\n  nope FROM {T}", "`nope` cannot be resolved", (3, 3)),
        ("SELECT nofun(1)", "Cannot resolve routine `nofun`", (1, 8)),
        ("SELECT 'abc", "Syntax error", (1, 8)),
        ("SELECT 1;\nSELECT a b c d", "Syntax error at or near 'c'", (2, 12)),
        ("SELECT 1 GROUP BY", "Syntax error at or near end of input", (1, 18)),
        (f"SELECT * FROM {T} VERSION AS OF", "Syntax error at or near end of input", (1, 29 + len(T))),
    ],
)
def test_mistakes_are_shown_at_their_place(engine: SparkEngine, text: str, said: str, place: tuple[int, int]) -> None:
    with pytest.raises(BadSql, match=said) as failure:
        list(engine.run(text))
    line, column = place
    assert f"  line {line}, column {column}:\n" in str(failure.value)
    assert "\tat " not in str(failure.value)
    assert "SQLSTATE" not in str(failure.value)


@pytest.mark.parametrize("form", ["SELECT * FROM {}", "SELECT * FROM {} VERSION AS OF 1", "DESCRIBE {}"])
def test_a_missing_table_lists_those_that_are_there(engine: SparkEngine, form: str) -> None:
    with pytest.raises(
        UnknownStream, match=r"the tables there are: delta\.`streams/ORDERS`, delta\.`accounts/"
    ) as failure:
        engine.query(form.format("delta.`streams/NONE`"))
    assert f"{engine.root}/streams/NONE" in str(failure.value)


@pytest.mark.parametrize(
    ("table", "near"), [("ORDERS", True), ("ordrs", True), ("delta.`streams/ORDRES`", True), ("nowhere", False)]
)
def test_names_that_are_close_are_named(engine: SparkEngine, table: str, near: bool) -> None:
    with pytest.raises(UnknownStream) as failure:
        engine.query(f"SELECT * FROM {table}")
    said = str(failure.value).splitlines()
    assert said[0].endswith(" Did you mean delta.`streams/ORDERS`?") is near
    assert said[-1].startswith("  the tables there are: delta.`streams/ORDERS`")
    assert not re.search("Verify|Search path", str(failure.value))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"SELECT * FROM {T} VERSION AS OF 99", r"Available versions: \[0, 1\]"),
        (
            f"SELECT * FROM {T} TIMESTAMP AS OF '2040-01-01'",
            r"2040-01-01 00:00:00.0 is after the table's latest version",
        ),
        ("SELECT raise_error('no such price')", "^no such price$"),
        ("SELECT 1 / seq FROM range(1) AS t(seq)", "^Division by zero"),
        ("SELECT * FROM as_of('NONE', 5)", "^there is no stream NONE"),
        ("SELECT 1; SELECT 2", "one statement is expected here, not 2"),
    ],
)
def test_what_goes_wrong_is_one_message(engine: SparkEngine, text: str, said: str) -> None:
    with pytest.raises(SqlError, match=said) as failure:
        engine.query(text).fetchall()
    assert "\n" not in str(failure.value)


def test_there_has_to_be_a_lake(tmp_path: Path) -> None:
    with pytest.raises(LakeNotFound, match="there is no lake at"):
        SparkEngine(tmp_path / "none")
