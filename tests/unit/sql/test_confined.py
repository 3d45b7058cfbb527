"""Tests of sessions that are confined to one account: names, functions, files and settings that are out of reach."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pyarrow as pa
import pytest

from lakestream.lake.values import as_json
from lakestream_sql import connection as sql_connection
from lakestream_sql.confined import confine
from lakestream_sql.connection import connect
from lakestream_sql.explained import SqlError
from lakestream_sql.session import EngineFailed, Session, UnknownStream
from tests.sql_escapes import FUNCTIONS, PATHS, STATEMENTS, UNKNOWN

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a lake with a table of the default account, one of account `A`, and one with an odd name."""
    root = tmp_path_factory.mktemp("confined") / "lake"
    for number, name in enumerate(("streams/ORDERS", "accounts/A/streams/ORDERS", "accounts/A~20B/streams/x~2Ey")):
        deltalake.write_deltalake(root / name, pa.table({"seq": [number], "subject": ["a"]}), mode="error")
    return root


@pytest.fixture(scope="module")
def session(lake: Path) -> Iterator[Session]:
    """Yield a session of the default account."""
    with Session(lake, account="$G") as session:
        yield session


def values(session: Session, query: str) -> list[Any]:
    return [row[0] for row in session.query(query)]


def test_an_account_has_its_own_tables_under_plain_names(lake: Path, session: Session) -> None:
    assert values(session, "SELECT seq FROM delta.`streams/ORDERS`") == [0]
    assert session.tables() == ["streams/ORDERS"]
    with Session(lake, account="A") as other:
        assert values(other, "SELECT seq FROM delta.`streams/ORDERS`") == [1]
        assert values(other, "SELECT seq FROM delta.`accounts/A/streams/ORDERS`") == [1]
        assert other.tables() == ["streams/ORDERS"]
    with Session(lake, account="A B") as odd:
        assert values(odd, "SELECT seq FROM delta.`streams/x.y`") == [2]
        assert values(odd, "SELECT seq FROM delta.`streams/x~2Ey`") == [2]
        assert odd.tables() == ["streams/x~2Ey"]
    with Session(lake, account="NONE") as empty:
        assert empty.tables() == []


@pytest.mark.parametrize(
    "name",
    [
        "accounts/A/streams/ORDERS",
        "accounts/$G/streams/../../A/streams/ORDERS",
        "streams/../accounts/A/streams/ORDERS",
        "streams/..",
        "streams/.",
        "streams/",
        "ORDERS",
        "",
        "/etc",
        "file:/etc",
        "s3://bucket/x",
        "streams/~2E~2E",
        "streams/%2e%2e",
    ],
)
def test_other_names_mean_nothing(session: Session, lake: Path, name: str) -> None:
    for query in (f"SELECT * FROM delta.`{name}`", f"DESCRIBE HISTORY delta.`{name}`", f"DESCRIBE delta.`{name}`"):
        with pytest.raises(SqlError):
            session.query(query)
    with pytest.raises(SqlError):
        session.query(f"SELECT * FROM delta.`{lake}/streams/ORDERS`")


def test_as_of_stays_in_the_account(session: Session) -> None:
    with pytest.raises(UnknownStream):
        session.query("SELECT * FROM as_of('A/ORDERS', now())")


@pytest.mark.parametrize("query", FUNCTIONS)
def test_functions_that_read_something_else(session: Session, query: str) -> None:
    with pytest.raises(
        SqlError, match=r"is available here|statement here reads|is not available here|is the name of|there is no table"
    ):
        session.query(query)


@pytest.mark.parametrize("query", UNKNOWN)
def test_a_name_of_no_stream_of_the_account_is_unknown(session: Session, query: str) -> None:
    with pytest.raises(UnknownStream):
        session.query(query)


@pytest.mark.parametrize("statement", STATEMENTS)
def test_statements_that_do_more_than_read(session: Session, statement: str) -> None:
    with pytest.raises(SqlError):
        session.query(statement)
    with pytest.raises(SqlError):
        list(session.run(statement))


@pytest.mark.parametrize(
    "query",
    [
        "SELECT count(*) FROM range(3)",
        "SELECT unnest([1, 2])",
        "FROM (VALUES (1), (2))",
        "SELECT x FROM delta.`streams/ORDERS`, unnest([1, 2]) t(x)",
        "FROM ORDERS",
        "from orders",
        "TABLE ORDERS",
        "DESCRIBE ORDERS",
        "SUMMARIZE ORDERS",
        "DESCRIBE SELECT * FROM ORDERS",
        "FROM (SUMMARIZE ORDERS)",
        'FROM ORDERS UNION ALL FROM accounts."$G".ORDERS',
        "PIVOT ORDERS ON subject USING count(*)",
        "PIVOT ORDERS ON subject IN ('a') USING count(*)",
        "FROM (PIVOT ORDERS ON subject USING count(*))",
        "UNPIVOT (SELECT seq FROM ORDERS) ON seq",
        "WITH ORDERS AS (FROM ORDERS) SELECT (SELECT count(*) FROM ORDERS) FROM ORDERS",
        "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 3) FROM n",
        "SELECT text(subject), json->>'a' FROM (SELECT subject, NULL::JSON AS json FROM ORDERS)",
        "SELECT count(*) FROM delta.`streams/ORDERS` a JOIN delta.`streams/ORDERS` VERSION AS OF 0 b USING (seq)",
        "WITH x AS (SELECT * FROM delta.`streams/ORDERS`) SELECT count(*) FROM x",
        "SELECT count(*) FROM as_of('ORDERS', now())",
        "EXPLAIN SELECT * FROM delta.`streams/ORDERS`",
        "DESCRIBE delta.`streams/ORDERS`",
        "DESCRIBE HISTORY delta.`streams/ORDERS`",
    ],
)
def test_what_may_be_asked(session: Session, query: str) -> None:
    assert session.query(query).fetchall()


@pytest.mark.parametrize("query", PATHS)
def test_no_query_shows_paths_of_the_server(session: Session, query: str) -> None:
    with pytest.raises(SqlError) as refused:
        session.query(query).fetchall()
    assert "/" not in str(refused.value).replace(query, "").replace("streams/ORDERS", "")
    assert values(session, "SELECT seq FROM delta.`streams/ORDERS`") == [0], "the session goes on"


@pytest.mark.heavy
def test_no_function_without_arguments_shows_a_path(session: Session, lake: Path) -> None:
    functions = duckdb.sql(
        "SELECT DISTINCT function_name FROM duckdb_functions() "
        "WHERE function_type IN ('scalar', 'macro') AND function_name SIMILAR TO '[a-z]\\w*' "
        "AND function_name <> 'pg_sleep'"
    ).fetchall()
    secrets = {str(Path.home()), str(lake), str(Path(duckdb.__file__).parent)} - {"/"}
    for (name,) in functions:
        try:
            found = repr(session.query(f"SELECT {name}() FROM delta.`streams/ORDERS`").fetchall())
        except SqlError as error:
            found = str(error)
        assert not [secret for secret in secrets if secret in found], name


def test_a_session_whose_duckdb_fails_ends_and_shows_no_stack(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise duckdb.InternalException("INTERNAL Error: a defect\n\nStack Trace:\n\n/home/of/the/server/duckdb.so")

    with monkeypatch.context() as broken:
        broken.setattr(session.engine, "execute", fail)
        with pytest.raises(EngineFailed) as failed:
            session.query("SELECT seq FROM delta.`streams/ORDERS`")
    assert str(failed.value) == "DuckDB failed: a defect"


def test_the_streams_of_a_query_are_known_before_it_runs(session: Session) -> None:
    assert session.mentioned("SELECT 1").streams == []
    text = "SELECT * FROM delta.`streams/ORDERS` a, as_of('ORDERS', 1) b, delta.`streams/ORDERS_json` c, (SELECT 1) d"
    assert session.mentioned(text).streams == ["ORDERS"]
    assert session.mentioned("DESCRIBE HISTORY delta.`streams/OTHER`").streams == ["OTHER"]
    assert session.mentioned("SHOW TABLES").lists
    assert not session.mentioned("SELECT 1").lists
    with pytest.raises(UnknownStream):
        session.mentioned("SELECT * FROM delta.`accounts/A/streams/ORDERS`")


def test_duckdb_itself_reaches_nothing_else(lake: Path, tmp_path: Path) -> None:
    """The last line of defence: these statements do not come as far as DuckDB."""
    connection, _ = connect(str(lake), itself=True)
    confine(connection, f"{lake}/streams/")
    outer = pa.table({"a": [1]})
    assert connection.execute(f"SELECT seq FROM delta_scan('{lake}/streams/ORDERS')").fetchall() == [(0,)]
    for statement in (
        f"SELECT * FROM delta_scan('{lake}/accounts/A/streams/ORDERS')",
        f"SELECT * FROM delta_scan('{lake}/streams/../accounts/A/streams/ORDERS')",
        "SELECT * FROM read_text('/etc/passwd')",
        f"SELECT * FROM read_text('{lake}/streams/../../../../../../../etc/passwd')",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM outer",
        f"COPY (SELECT 1) TO '{tmp_path}/x.csv'",
        f"ATTACH '{tmp_path}/x.db'",
        f"EXPORT DATABASE '{tmp_path}/x'",
        "INSTALL spatial",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET allowed_directories = ['/']",
        "SET memory_limit = '100GB'",
        "SET python_enable_replacements = true",
        "RESET lock_configuration",
    ):
        with pytest.raises(duckdb.Error):
            connection.execute(statement)
    assert outer.num_rows == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (True, True),
        (1 << 52, 1 << 52),
        (1 << 53, "9007199254740992"),
        (-(1 << 60), str(-(1 << 60))),
        (1.5, 1.5),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (b"\xff", "/w=="),
        (Decimal("1.10"), "1.10"),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        (datetime.timedelta(seconds=1), "0:00:01"),
        ({"a": [b"x", 1 << 60]}, {"a": ["eA==", str(1 << 60)]}),
        ((1, "x"), [1, "x"]),
    ],
)
def test_values_as_json(value: Any, shown: Any) -> None:
    assert as_json(value) == shown


def test_a_name_that_no_stream_can_have_is_not_asked_for(session: Session) -> None:
    """A server would be asked to stage its messages, which fails before the query is refused."""
    assert session.mentioned('FROM ORDERS, \'x.parquet\', "*", "a b"').streams == ["ORDERS"]
    with pytest.raises(UnknownStream, match=r'there is no table "x\.parquet" in'):
        session.query("FROM 'x.parquet'")


def test_a_stream_of_another_account_is_shown_at_its_place(session: Session) -> None:
    with pytest.raises(UnknownStream, match=r"not a stream of account \$G: .*\n  line 1, column 19:\n"):
        session.mentioned('FROM accounts."A".ORDERS')


def test_a_column_that_has_its_subquery_for_a_name_shows_no_path(lake: Path, session: Session) -> None:
    found = session.query("SELECT (SELECT max(subject) FROM ORDERS WHERE seq < 9)")
    assert found.columns == ('(SELECT max(subject) FROM "ORDERS" AS ORDERS WHERE (seq < 9))',)
    assert found.batches(1).read_all().to_pydict() == {found.columns[0]: ["a"]}
    names = list[tuple[str, ...]]()
    list(session.query("FROM (SELECT (SELECT 1 FROM ORDERS))", described=lambda columns, _: names.append(columns)))
    assert str(lake) not in str(names)


@pytest.mark.parametrize("quick_s", [0.0, 60.0])
def test_columns_of_one_name_keep_it_however_long_a_query_takes(
    session: Session, monkeypatch: pytest.MonkeyPatch, quick_s: float
) -> None:
    """A query that took longer than a moment was described as a table, which has no two columns of one name."""
    monkeypatch.setattr(sql_connection, "QUICK_S", quick_s)
    names: list[tuple[str, ...]] = []
    query = "SELECT a.seq, b.seq FROM ORDERS a JOIN ORDERS b ON a.seq = b.seq WHERE a.seq > 0 ORDER BY ALL -- same"
    list(session.query(query, described=lambda columns, _: names.append(columns)))
    assert names == [("seq", "seq")]
