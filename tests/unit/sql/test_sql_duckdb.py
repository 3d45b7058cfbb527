"""Tests of queries on real Delta tables, and of `lakestream sql` with arguments, pipes and a terminal."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import duckdb
import msgspec
import psutil
import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake
from typer.testing import CliRunner

from lakestream.cli.app import app
from lakestream.lake.errors import UnsupportedLake
from lakestream.lake.table.progress import TableProgress
from lakestream.protocol.instants import rfc3339
from lakestream_sql.batches import CountedRows, batches
from lakestream_sql.connection import ExtensionMissing, extension_path
from lakestream_sql.explained import BadSql
from lakestream_sql.session import NoLakeHere, Result, Session, SqlError, UnknownStream

pytestmark = pytest.mark.unit

T0 = 1_700_000_000_000_000_000
BATCHES = 4
COMMITTED_MS = 1_700_000_100_000

SCHEMA = pa.schema(
    [
        ("subject", pa.string()),
        ("seq", pa.int64()),
        ("time", pa.timestamp("us", "UTC")),
        ("time_ns", pa.int64()),
        ("headers", pa.map_(pa.string(), pa.list_(pa.string()))),
        ("data", pa.binary()),
    ]
)
NOT_JSON = b"\xff\x00\x1b[2J"


def row(seq: int) -> dict[str, Any]:
    """Return one of three messages a batch: two of JSON with non-ASCII letters, and one that is not text."""
    payload = (
        NOT_JSON if seq % 3 == 0 else json.dumps({"id": seq, "who": "Zoë", "tags": ["a"]}, ensure_ascii=False).encode()
    )
    return {
        "subject": f"ORDERS.{seq % 2}",
        "seq": seq,
        "time": (T0 + seq * 10**9) // 1000,
        "time_ns": T0 + seq * 10**9,
        "headers": [("Nats-Msg-Id", [str(seq)])] if seq % 2 else None,
        "data": payload,
    }


def write(table: Path, version: int, rows: list[dict[str, Any]]) -> None:
    progress = TableProgress(
        uid="u", last_index=rows[-1]["seq"], last_seq=rows[-1]["seq"], last_time_ns=rows[-1]["time_ns"]
    )
    write_deltalake(
        table,
        pa.Table.from_pylist(rows, schema=SCHEMA),
        mode="append",
        partition_by=["subject"],
        commit_properties=CommitProperties(custom_metadata={"userMetadata": msgspec.json.encode(progress).decode()}),
    )
    stamp = (COMMITTED_MS + version * 1000) * 10**6
    os.utime(table / "_delta_log" / f"{version:020d}.json", ns=(stamp, stamp))


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a lake with stream ORDERS in four commits of three messages, one second apart; PENDING is staged only."""
    root = tmp_path_factory.mktemp("lake")
    for version in range(BATCHES):
        write(root / "streams" / "ORDERS", version, [row(version * 3 + number) for number in (1, 2, 3)])
    write(root / "accounts" / "ACME" / "streams" / "ORDERS", 0, [row(1)])
    (root / "segments" / "PENDING").mkdir(parents=True)
    return root


@pytest.fixture(scope="module")
def session(lake: Path) -> Iterator[Session]:
    with Session(lake) as session:
        yield session


ORDERS = "delta.`streams/ORDERS`"


def committed(version: int, offset_ms: int = 0) -> str:
    return rfc3339((COMMITTED_MS + version * 1000 + offset_ms) * 10**6)


# ---------------------------------------------------------------------------- the session


def test_latest_version_of_a_stream(session: Session) -> None:
    result = session.query(f"SELECT seq, subject, data FROM {ORDERS} ORDER BY seq")
    assert result.columns == ("seq", "subject", "data")
    assert result.types == ("BIGINT", "VARCHAR", "BLOB")
    assert result.fetchall() == [(seq, row(seq)["subject"], row(seq)["data"]) for seq in range(1, 13)]


@pytest.mark.parametrize("version", range(BATCHES))
def test_version_as_of(session: Session, version: int) -> None:
    query = f"SELECT max(seq) FROM {ORDERS} VERSION AS OF {version}"
    assert session.query(query).fetchall() == [((version + 1) * 3,)]


@pytest.mark.parametrize(
    ("when", "seqs"),
    [
        (committed(0), 3),
        (committed(1, -1), 3),
        (committed(1), 6),
        (committed(2, 999), 9),
        (committed(3), 12),
        (committed(99), 12),
    ],
)
def test_timestamp_as_of(session: Session, when: str, seqs: int) -> None:
    assert session.query(f"SELECT count(*) FROM {ORDERS} TIMESTAMP AS OF '{when}'").fetchall() == [(seqs,)]


def test_timestamp_without_a_zone_is_utc(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    when = committed(1).replace("T", " ").removesuffix("Z")
    with Session(session.root) as elsewhere:
        assert elsewhere.query(f"SELECT count(*) FROM {ORDERS} TIMESTAMP AS OF '{when}'").fetchall() == [(6,)]
        [(at,)] = elsewhere.query(f"SELECT CAST(min(time) AS STRING) FROM {ORDERS}").fetchall()
        assert at.startswith("2023-11-14 22:13:21")


def test_timestamp_as_of_an_expression(session: Session) -> None:
    query = f"SELECT count(*) FROM {ORDERS} TIMESTAMP AS OF now() - INTERVAL 1 MINUTE"
    assert session.query(query).fetchall() == [(12,)]


def at(seq: int, offset_ns: int = 0) -> int:
    """Return the time of a message."""
    return T0 + seq * 10**9 + offset_ns


@pytest.mark.parametrize("offset", [-1, 0, 1])
@pytest.mark.parametrize("seq", range(1, 13))
def test_as_of_is_exact_to_the_ns(session: Session, seq: int, offset: int) -> None:
    held = list(range(1, seq + (offset >= 0)))
    at_ns = at(seq, offset)
    for moment in (f"{at_ns}", f"'{rfc3339(at_ns)}'", f"TIMESTAMP '{rfc3339(at_ns)}'"):
        found = session.query(f"SELECT seq FROM as_of('ORDERS', {moment}) ORDER BY seq").fetchall()
        assert [each for (each,) in found] == held, moment


@pytest.mark.parametrize(
    ("moment", "seqs"),
    [
        ("TIMESTAMP '2023-11-14 22:13:24'", 4),
        ("TIMESTAMP '2023-11-14 22:13:24' - INTERVAL 1 MICROSECOND", 3),
        ("concat('2023-11-14', ' 22:13:24.999999999')", 4),
        ("DATE '2023-11-15'", 12),
        ("current_timestamp", 12),
        ("0", 0),
        (str(2**62), 12),
    ],
)
def test_as_of_takes_any_expression(session: Session, moment: str, seqs: int) -> None:
    assert session.query(f"SELECT count(*) FROM as_of('ORDERS', {moment})").fetchall() == [(seqs,)]


def test_as_of_is_a_table_like_any_other(session: Session) -> None:
    query = f"""
        WITH was AS (SELECT * FROM as_of('streams/ORDERS', {at(5)}) o WHERE o.subject = 'ORDERS.1')
        SELECT now.seq FROM {ORDERS} now ANTI JOIN was ON now.seq = was.seq ORDER BY seq"""
    assert session.query(query).fetchall() == [(seq,) for seq in (2, 4, 6, 7, 8, 9, 10, 11, 12)]
    assert session.query(f"SELECT as_of.seq FROM as_of('ACME/ORDERS', {at(1)})").fetchall() == [(1,)]
    empty = session.query(f"SELECT * FROM as_of('ACME/ORDERS', {at(0)})")
    assert (list(empty.columns), empty.fetchall()) == ([*SCHEMA.names, "json"], [])


def test_as_of_leaves_out_what_an_archive_kept(tmp_path: Path) -> None:
    """as_of omits a message kept by an archive that left the stream before that time."""
    rows = pa.Table.from_pylist([row(1), row(2), row(3)], schema=SCHEMA)
    ended = pa.array([at(2, 5), None, None], pa.int64())
    write(tmp_path / "streams" / "OTHER", 0, [row(1)])
    progress = TableProgress(uid="u", last_index=3, last_seq=3, last_time_ns=at(3))
    metadata = {"userMetadata": msgspec.json.encode(progress).decode()}
    write_deltalake(
        tmp_path / "streams" / "ORDERS",
        rows.append_column("removed_time_ns", ended),
        commit_properties=CommitProperties(custom_metadata=metadata),
    )
    with Session(tmp_path) as session:
        found = {
            at_ns - T0: session.query(f"SELECT seq FROM as_of('ORDERS', {at_ns}) ORDER BY seq").fetchall()
            for at_ns in (at(1), at(2, 4), at(2, 5), at(3))
        }
    assert list(found.values()) == [[(1,)], [(1,), (2,)], [(2,)], [(2,), (3,)]]


def test_two_versions_in_one_query(session: Session) -> None:
    query = f"""
        WITH was AS (SELECT * FROM {ORDERS} VERSION AS OF 1)
        SELECT o.seq FROM {ORDERS} o LEFT JOIN was ON o.seq = was.seq
        WHERE was.seq IS NULL AND o.subject IN (SELECT subject FROM {ORDERS} WHERE seq = 7) ORDER BY 1"""
    assert session.query(query).fetchall() == [(7,), (9,), (11,)]


def test_a_table_mentioned_twice_is_read_at_one_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table mentioned twice is read at one version, despite a commit between the two."""
    table = tmp_path / "streams" / "ORDERS"
    write(table, 0, [row(1)])
    with Session(tmp_path) as session:
        real, mentions = session._catalog.log, 0

        def commits(*arguments: Any) -> Any:
            nonlocal mentions
            mentions += 1
            log = real(*arguments)
            write(table, mentions, [row(mentions + 1)])
            return log

        monkeypatch.setattr(session._catalog, "log", commits)
        query = f"SELECT (SELECT count(*) FROM {ORDERS}), (SELECT count(*) FROM {ORDERS})"
        assert session.query(query).fetchall() == [(1, 1)]


def test_payloads_as_text_and_as_json(session: Session) -> None:
    query = f"""
        SELECT json->>'who', text(data), (json->>'id')::INT, json->'tags'->>0, headers['Nats-Msg-Id'][1],
               split_part(subject, '.', 2)
        FROM {ORDERS} WHERE seq IN (1, 3) ORDER BY seq"""
    assert session.query(query).fetchall() == [
        ("Zoë", '{"id": 1, "who": "Zoë", "tags": ["a"]}', 1, "a", "1", "1"),
        (None, "?\x00\x1b[2J", None, None, "3", "1"),
    ]
    for stream in ("ORDERS", "orders", "ORDERS VERSION AS OF 3", f"as_of(ORDERS, {at(12)})", 'accounts."ACME".ORDERS'):
        (found,) = session.query(f"SELECT sum((json->>'id')::INT) > 0 FROM {stream}").fetchall()
        assert found == (True,), stream
    assert [column for column in session.query("FROM ORDERS").columns if column == "json"] == ["json"]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 'O''Brien', E'a\\'b', $$it's$$",
        "SELECT CAST(3.7 AS INT), dayofweek(DATE '2026-05-01'), date_diff('day', DATE '2026-05-01', DATE '2026-05-09')",
        "SELECT 'a%b' LIKE 'a\\%b' ESCAPE '\\', [1, 2, 3][1:2], {'a': 1}.a, list_transform([1, 2], lambda x: x + 1)",
        'SELECT 1 /* a /* ` */ \' */ + 1, -- `\n 2 AS "a `b` c"',
        "SELECT last(v ORDER BY v), quantile_cont(v, 0.5) FROM range(5) t(v)",
        "SELECT version AS of, version AS timestamp FROM (SELECT 3 AS version)",
        "SELECT count(*), 1_000 FROM (VALUES (1), (2)) v(x)",
        "FROM range(3) t(i) SELECT i WHERE i > 1",
        "PIVOT (SELECT unnest(['a', 'b', 'a']) AS k) ON k USING count(*)",
    ],
)
def test_every_token_reaches_duckdb_as_it_was_written(session: Session, query: str) -> None:
    own = duckdb.sql(query)
    found = session.query(query)
    assert (list(found.columns), found.fetchall()) == (own.columns, own.fetchall())


def test_other_accounts_and_absolute_paths(session: Session, lake: Path) -> None:
    for name in ("delta.`accounts/ACME/streams/ORDERS`", f"delta.'{lake}/accounts/ACME/streams/ORDERS'"):
        assert session.query(f"SELECT count(*) FROM {name}").fetchall() == [(1,)]
    assert session.query(f"SELECT count(*) FROM delta.`file://{lake}/streams/ORDERS`").fetchall() == [(12,)]


def test_a_stream_whose_directory_is_spelled_otherwise(tmp_path: Path) -> None:
    write(tmp_path / "streams" / "A~3AB", 0, [row(1)])
    with Session(tmp_path) as session:
        assert session.query("SELECT count(*) FROM delta.`streams/A:B`").fetchall() == [(1,)]


def test_show_describe_history_explain(session: Session) -> None:
    assert session.query("SHOW TABLES").fetchall() == [
        (ORDERS, 3, 12, 0),
        ("delta.`accounts/ACME/streams/ORDERS`", 0, 1, 0),
    ]
    described = session.query(f"DESCRIBE {ORDERS}").fetchall()
    assert [line[:2] for line in described][:2] == [("subject", "VARCHAR"), ("seq", "BIGINT")]
    history = session.query(f"DESCRIBE HISTORY {ORDERS}").fetchall()
    assert [(version, last_seq) for version, _, _, last_seq, _ in history] == [(3, 12), (2, 9), (1, 6), (0, 3)]
    assert history[0][1].timestamp() * 1000 == COMMITTED_MS + 3000
    assert "DELTA_SCAN" in session.query(f"EXPLAIN SELECT * FROM {ORDERS}").fetchall()[0][1]


# ---------------------------------------------------------------------------- errors


def test_unknown_stream_lists_the_streams(session: Session) -> None:
    with pytest.raises(UnknownStream) as caught:
        session.query("SELECT * FROM delta.`streams/ORDRES`")
    text = str(caught.value)
    assert "there is no table delta.`streams/ORDRES`" in text
    assert text.endswith(f"the tables there are: {ORDERS}, delta.`accounts/ACME/streams/ORDERS`")


def test_a_stream_that_waits_for_the_compactor(session: Session) -> None:
    with pytest.raises(UnknownStream, match=r"PENDING has no table yet.*lakestream compact --once"):
        session.query("SELECT * FROM delta.`streams/PENDING`")


@pytest.mark.parametrize(
    ("query", "message", "place"),
    [
        (f"SELECT nope FROM {ORDERS}", 'Referenced column "nope" not found', "nope"),
        (f"SELECT nofun(seq) FROM {ORDERS}", "nofun does not exist", "nofun"),
        (f"SELECT seq FROM {ORDERS} WHERE data LIKE 'a%'", "write text(data)", "LIKE"),
        (f"SELECT get_json_object(data, '$.a') FROM {ORDERS}", "Spark SQL: `--engine spark`", "get_json_object"),
        (f"SELECT seq FROM {ORDERS} LATERAL VIEW explode(a) t AS b", "Spark SQL: `--engine spark`", "LATERAL"),
        ("SELECT `seq` FROM ORDERS", "Spark SQL: `--engine spark`", "`"),
        ("SELECT array(1, 2)", "Spark SQL: `--engine spark`", "1"),
        ("SELECT * EXCEPT (seq) FROM ORDERS", "Spark SQL: `--engine spark`", "seq"),
        ("SELECT sequence(1, 2)", "Spark SQL: `--engine spark`", "sequence"),
        (f"SELECT seq FROM {ORDERS} VERSION AS OF 4", "there is no version 4; versions 0 to 3 are known", "`streams"),
        ("SELECT seq FROM ORDERS AS o VERSION AS OF 1", "the time stands before the alias", "o VERSION"),
        ('SELECT seq FROM ORDERS "o" VERSION AS OF 1', "the time stands before the alias", '"o"'),
        ("SELECT seq FROM ORDERS o TIMESTAMP AS OF now()", "the time stands before the alias", "o TIME"),
        (f"SELECT seq FROM {ORDERS} VERSION AS OF 'x'", "VERSION AS OF takes a version number", "`streams"),
        (f"SELECT seq FROM {ORDERS} TIMESTAMP AS OF 'soon'", "TIMESTAMP AS OF does not understand 'soon'", "`streams"),
        (f"SELECT seq FROM {ORDERS} TIMESTAMP AS OF '2001-01-01'", "is before the first commit", "`streams"),
        (f"SELECT seq FROM {ORDERS} TIMESTAMP AS OF '2901-01-01'", "is in the future", "`streams"),
        ("SELECT seq FROM as_of('ORDERS', 'soon')", "cannot read 'soon' as a time", "as_of"),
        ("SELECT seq FROM as_of('ORDERS', '2500-01-01')", "is outside of the times", "as_of"),
        ("SELECT seq FROM as_of('ORDERS', nope)", "as_of does not understand nope", "as_of"),
        ("SELECT seq FROM as_of(ORDERS)", "as_of takes a stream and a moment", "as_of"),
        ("SELECT seq FROM as_of('ORDRES', 1)", "there is no table ORDRES in", "as_of"),
        ("SELECT key FROM kv.conf", "there is no table kv.conf in", "conf"),
        ("SELECT seq FROM misfits.ORDERS", "stream ORDERS has no schema for its payloads", "ORDERS"),
        ("SELECT seq FROM misfits.ORDRES", "there is no table ORDRES in", "ORDRES"),
        ("SELECT 1; SELECT 2", "one statement is expected here, not 2", None),
        ("SELECT seq FROM ORDRES", "there is no table ORDRES in", "ORDRES"),
        ("SELECT seq FROM last(ORDRES)", "there is no table ORDRES in", "last"),
        ("SELECT o.sbject FROM ORDERS o", 'Did you mean "subject"', "o.sbject"),
        ("SELECT ORDERS.sq FROM ORDERS", '"ORDERS" has no column "sq"\nDid you mean "seq"', "ORDERS.sq"),
        ("SELECT x.nowhere FROM (SELECT seq FROM ORDERS) x", '"x" has no column "nowhere"\n  line 1', "x.nowhere"),
        ("SELECT seq\nFROM ORDERS\nWHERE nope = 'é'", 'Referenced column "nope" not found', "nope"),
        ("SELECT a.seq FROM ORDERS a JOIN ORDERS b USING (sequ)", 'left side of join!\nDid you mean "seq"?', "sequ)"),
        ("SELECT seq FROM ORDERS a JOIN ORDERS b USING (sek)", 'left side of join!\nDid you mean "seq"?', "sek)"),
        ("SELECT sek AS x, * EXCLUDE (sek) FROM ORDERS", "EXCLUDE list not found in FROM clause", "sek) FROM"),
        ("SELECT * REPLACE (1 AS sek) FROM ORDERS", 'Did you mean "seq"?', "sek) FROM"),
        ("UNPIVOT ORDERS ON sek INTO NAME n VALUE v", 'Did you mean "seq"?', "sek INTO"),
        ("SELECT nix.* FROM ORDERS", 'Referenced table "nix" not found', "nix.*"),
        ("SELECT s.b FROM (SELECT {'a': seq} AS s FROM ORDERS)", 'Could not find key "b" in struct', "b FROM"),
        ("SELECT sum(price) FROM ORDERS", "a field of JSON payloads: json->>'price'", "price)"),
        ("SELECT sum(json->>'a') FROM ORDERS", "is no number until it is cast: (json->>'price')::double", "sum("),
        ("SELECT 1 FROM ORDERS WHERE json->>'a' > 5", "is no number until it is cast", "> 5"),
        ("FROM main.ORDERS", "there is no table main.ORDERS: a stream is written as in FROM ORDERS", "main.ORDERS"),
        ("WITH newest AS (FROM ORDERS) SELECT seq FROM newst", "Did you mean newest?", "newst"),
    ],
)
def test_errors_say_what_and_where(session: Session, query: str, message: str, place: str | None) -> None:
    with pytest.raises(SqlError) as caught:
        session.query(query)
    assert message in str(caught.value)
    if place is not None:
        *_, shown, mark = [line for line in str(caught.value).splitlines() if line.startswith("  ")][:3]
        assert shown[mark.index("^") :].startswith(place)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT s.b, b FROM (SELECT {'a': seq} AS s, 1 AS b FROM ORDERS)",
        "FROM ORDERS a JOIN ORDERS b USING (seq) JOIN (SELECT 1 AS x) c USING (seq)",
    ],
)
def test_a_name_that_may_stand_in_two_places_has_none(session: Session, query: str) -> None:
    with pytest.raises(SqlError) as caught:
        session.query(query)
    assert "^" not in str(caught.value)


def test_a_typing_error_is_no_field_of_the_payload(session: Session) -> None:
    with pytest.raises(SqlError) as caught:
        session.query("SELECT subjct FROM ORDERS")
    assert "Candidate bindings" in str(caught.value)
    assert "json->>" not in str(caught.value)


def test_an_error_in_a_long_line_shows_what_is_around_its_place(session: Session) -> None:
    for columns, cut in (("seq, " * 900, "…"), ("", "")):
        with pytest.raises(SqlError) as caught:
            session.query(f"SELECT {columns}nope, {'seq, ' * 900}seq FROM ORDERS")
        said, (place, shown, mark) = str(caught.value), str(caught.value).splitlines()[-3:]
        assert f"column {len(columns) + 8}:" in place
        assert len(said) < 1000
        assert (shown[mark.index("^") :][:4], shown.strip()[0] == "…", shown[-1]) == ("nope", bool(cut), "…")


def test_a_file_that_is_not_there_is_no_file_of_a_table(session: Session) -> None:
    with pytest.raises(SqlError) as caught:
        session.query("FROM 'nowhere.parquet'")
    assert str(caught.value) == 'No files found that match the pattern "nowhere.parquet"'


def test_names_that_are_close_are_named(session: Session, lake: Path) -> None:
    for query in ("FROM ORDRES", "FROM ORDRES VERSION AS OF 1", "DESCRIBE HISTORY ordrs", "FROM as_of(ORDRS, 1)"):
        with pytest.raises(UnknownStream, match=r"Did you mean (ORDERS|accounts.ACME.ORDERS)\?"):
            session.query(query)
    with Session(lake, account="$G") as confined, pytest.raises(UnknownStream) as unknown:
        confined.query("FROM ORDRES")
    assert str(unknown.value).startswith("there is no table ORDRES in")
    assert str(unknown.value).endswith("the tables there are: ORDERS")
    for query in ("FROM nowhere", "FROM delta.`streams/PENDING`"):  # which is there, only without a table
        with pytest.raises(UnknownStream) as far:
            session.query(query)
        assert "Did you mean" not in str(far.value)


def test_a_value_that_fails_behind_others_is_one_line(session: Session) -> None:
    late = "SELECT CASE WHEN i = 999999 THEN error('no') ELSE i END FROM range(1000000) t(i)"
    with pytest.raises(SqlError, match=r"^no$"):
        session.query(late).fetchall()
    with pytest.raises(SqlError, match=r"^no$"):
        list(batches(session.query(late), "arrow", CountedRows(0), 1 << 20, 1 << 20))


@pytest.mark.parametrize("form", ["json", "arrow"])
def test_an_error_that_is_lost_to_duckdbs_own_cancel_is_found_again(form: Literal["json", "arrow"]) -> None:
    late = "SELECT CASE WHEN i = 999999 THEN error('no') ELSE i END FROM range(1000000) t(i)"
    with duckdb.connect() as connection:
        cursor = connection.cursor()
        result = Result(cursor.execute(late), lambda: connection.cursor().execute(late))
        cursor.interrupt()  # as DuckDB does for an error in another thread
        with pytest.raises(SqlError, match=r"^no$"):
            list(batches(result, form, CountedRows(0), 1 << 20, 1 << 20))


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    write(tmp_path / "streams" / "ORDERS", 0, [row(1)])
    for file in (tmp_path / "streams" / "ORDERS").rglob("*.parquet"):
        file.unlink()
    with Session(tmp_path) as session, pytest.raises(SqlError, match=r"could not be read.*VACUUM"):
        session.query(f"SELECT * FROM {ORDERS}")


def test_a_file_that_goes_is_looked_for_in_a_newer_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query on the current version whose file was removed by maintenance reads the newer version."""
    table = tmp_path / "streams" / "ORDERS"
    write(table, 0, [row(1)])
    with Session(tmp_path) as session:
        real = session._catalog.log

        def commits(*arguments: Any) -> Any:
            log = real(*arguments)
            if log.latest == 0:
                for file in table.rglob("*.parquet"):
                    file.unlink()
                rewritten = pa.Table.from_pylist([row(1)], schema=SCHEMA)
                write_deltalake(table, rewritten, mode="overwrite", partition_by=["subject"])
            return log

        monkeypatch.setattr(session._catalog, "log", commits)
        assert session.query(f"SELECT seq FROM {ORDERS}").fetchall() == [(1,)]


def test_no_lake(tmp_path: Path) -> None:
    with pytest.raises(NoLakeHere, match="there is no lake at"):
        Session(tmp_path / "none")
    with pytest.raises(UnsupportedLake):
        Session("ftp://bucket/lake")


def test_extensions_come_from_the_wheel_and_never_from_the_network(session: Session) -> None:
    assert "duckdb_extension_delta" in extension_path().parts
    loaded = session.query("SELECT install_mode FROM duckdb_extensions() WHERE extension_name = 'delta' AND loaded")
    assert loaded.fetchall() == [("NOT_INSTALLED",)]  # loaded from its file, not from an extension directory
    settings = "SELECT name, value FROM duckdb_settings() WHERE name LIKE 'auto%_known_extensions'"
    assert dict(session.query(settings).fetchall()) == {
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
    }


def test_a_missing_extension_says_what_to_install(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakestream_sql.connection._PACKAGE", "no_such_package_")
    with pytest.raises(ExtensionMissing, match=r"pip install duckdb==1\.5\.5 duckdb-extension-delta==1\.5\.5"):
        Session(lake)


# ---------------------------------------------------------------------------- the command

COMMAND = [sys.executable, "-m", "lakestream.cli.main", "sql"]


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def run(*arguments: str, stdin: str = "", **environ: str) -> Done:
    """Run the command inside this process, which is faster than starting another one."""
    result = CliRunner().invoke(app, ["sql", *arguments], input=stdin, env=environ)
    return Done(result.exit_code, result.stdout, result.stderr)


def test_json_output(lake: Path) -> None:
    done = run("--lake", str(lake), "--format", "json", "-q", f"SELECT * FROM {ORDERS} WHERE seq <= 3 ORDER BY seq")
    assert (done.returncode, done.stderr) == (0, "")
    rows = json.loads(done.stdout)
    assert [list(each) for each in rows] == [[*SCHEMA.names, "json"]] * 3
    assert rows[0]["data"] == '{"id": 1, "who": "Zoë", "tags": ["a"]}'
    assert rows[0]["headers"] == {"Nats-Msg-Id": ["1"]}
    assert rows[0]["time"] == "2023-11-14T22:13:21Z"
    assert rows[1]["headers"] is None
    assert rows[2]["data"] == "0xff001b5b324a"


def test_json_of_no_rows_and_of_equal_names(lake: Path) -> None:
    assert json.loads(run("--lake", str(lake), "-f", "json", "-q", f"SELECT * FROM {ORDERS} WHERE false").stdout) == []
    done = run("--lake", str(lake), "-f", "json", "-q", "SELECT 1 AS a, 2 AS a, CAST('nan' AS DOUBLE) AS b")
    assert json.loads(done.stdout) == [{"a": 1, "a_2": 2, "b": None}]


def test_csv_output(lake: Path) -> None:
    query = f"SELECT seq, data, headers, 'a,\"b\"' AS x FROM {ORDERS} WHERE seq <= 2 ORDER BY seq"
    done = run("-q", query, "-f", "csv", LAKESTREAM_LAKE=str(lake))
    assert done.returncode == 0
    assert list(csv.reader(io.StringIO(done.stdout))) == [
        ["seq", "data", "headers", "x"],
        ["1", '{"id": 1, "who": "Zoë", "tags": ["a"]}', '{"Nats-Msg-Id": ["1"]}', 'a,"b"'],
        ["2", '{"id": 2, "who": "Zoë", "tags": ["a"]}', "", 'a,"b"'],
    ]


def test_table_output_shows_text_and_never_control_characters(lake: Path) -> None:
    done = run("--lake", str(lake), "-q", f"SELECT seq, text(data) AS d, data FROM {ORDERS} WHERE seq IN (1, 3)")
    assert done.returncode == 0
    assert "Zoë" in done.stdout
    assert "\x1b" not in done.stdout
    assert "?\\x00\\x1b[2J" in done.stdout
    assert "0xff001b5b324a" in done.stdout
    assert done.stdout.rstrip().endswith("2 rows")


def test_statements_come_through_a_pipe_and_stop_at_the_first_wrong_one(lake: Path) -> None:
    done = run("--lake", str(lake), "-f", "csv", stdin="SELECT 1 AS a; SELECT 2 AS b;\nSELECT frm;\nSELECT 3 AS c;")
    assert done.returncode == 1
    assert done.stdout == "a\n1\nb\n2\n"
    assert 'Referenced column "frm" was not found' in done.stderr
    assert done.stderr.startswith("lakestream: ")


def test_commands_work_without_a_prompt_too(lake: Path) -> None:
    shown = run("--lake", str(lake), "-q", "SHOW TABLES").stdout
    assert "streams/ORDERS" in shown
    for done in (
        run("--lake", str(lake), "-q", " .tables;"),
        run("--lake", str(lake), stdin=".tables\n.quit\nSELECT 1"),
    ):
        assert (done.returncode, done.stdout, done.stderr) == (0, shown, "")
    after = run("--lake", str(lake), "-f", "csv", stdin=".help\n\nSELECT 1 AS a;\nSELEC 2")
    assert after.stdout.startswith("Write SQL as DuckDB has it")
    assert "  line 4, column 1:\n" in after.stderr
    unknown = run("--lake", str(lake), "-q", ".table")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert unknown.stderr == "lakestream: .table is not a command; .help shows them\n"


@pytest.mark.parametrize(
    ("text", "said", "place"),
    [
        ("SELECT FROM WHERE", 'syntax error at or near "WHERE"', (1, 13)),
        ("SELECT * FROM", "syntax error at end of input", (1, 13)),
        ("SELECT 1;\nSELECT 1 GROUP BY", "syntax error at end of input", (2, 17)),
        ("SELECT * FROM delta.`streams/ORDERS` VERSION AS OF", "AS OF needs a version or a time behind it", (1, 21)),
        ("SELECT 1 AS frm; SELECT frm", 'Referenced column "frm" was not found', (1, 25)),
    ],
)
def test_every_syntax_error_is_shown_at_its_place(lake: Path, text: str, said: str, place: tuple[int, int]) -> None:
    with Session(lake) as session, pytest.raises(BadSql) as failure:
        list(session.run(text))
    assert str(failure.value).startswith(said)
    line, column = place
    assert f"\n  line {line}, column {column}:\n" in str(failure.value)


def test_exit_codes(lake: Path, tmp_path: Path) -> None:
    process = subprocess.run([*COMMAND, "--lake", lake, "-q", "SELECT 1"], capture_output=True, check=False, timeout=60)
    assert process.returncode == 0
    assert b"1 row" in process.stdout
    assert run("--lake", str(lake), "-q", "SELECT 1").returncode == 0
    assert run("--lake", str(lake), "-q", "SELECT FROM WHERE").returncode == 1
    missing = run("--lake", str(tmp_path / "none"), "-q", "SELECT 1")
    assert missing.returncode == 1
    assert missing.stderr.count("\n") == 1
    assert missing.stderr.startswith("lakestream: there is no lake at")


def test_a_reader_that_leaves_is_no_error(lake: Path) -> None:
    many = "SELECT a.seq FROM range(300000) a(seq)"
    line = f'{" ".join(COMMAND)} --lake {lake} -f csv -q "{many}" | head -n 2; echo ${{PIPESTATUS[0]}}'
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "seq\n0\n0\n"
    assert done.stderr == ""


class Terminal:
    """`lakestream sql` on a terminal of its own."""

    def __init__(self, *arguments: str, **environ: str) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**os.environ, "TERM": "dumb", **environ},
            preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),  # make it the controlling terminal
        )
        os.close(theirs)
        self._seen = ""
        self._poll = select.poll()
        self._poll.register(self._ours, select.POLLIN)

    def expect(self, text: str, timeout: float = 30) -> str:
        """Read until `text` has appeared; return everything up to there."""
        deadline = time.monotonic() + timeout
        while text not in self._seen:
            if not self._poll.poll(max(deadline - time.monotonic(), 0) * 1000):
                raise AssertionError(f"{text!r} did not appear in {self._seen!r}")
            try:
                self._seen += os.read(self._ours, 4096).decode()
            except OSError:
                raise AssertionError(f"{text!r} did not appear in {self._seen!r} before the end") from None
        found, _, self._seen = self._seen.partition(text)
        return found

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def press_control_c_until(self, text: str) -> None:
        """Press Ctrl-C repeatedly until `text` appears: readline misses a signal right before it waits for a key."""
        for _ in range(100):
            self.type("\x03")
            try:
                self.expect(text, timeout=0.3)
            except AssertionError:
                continue
            return
        raise AssertionError(f"{text!r} did not appear in {self._seen!r}")

    def end(self) -> int:
        code = self.process.wait(30)
        os.close(self._ours)
        return code


def test_a_query_does_not_load_pandas(lake: Path) -> None:
    program = (
        "import sys; from lakestream_sql.session import Session; session = Session(sys.argv[1]); "
        "print(session.query(\"SELECT count(*), 'it''s' FROM ORDERS\").fetchall()); "
        "print(len([*session.run('SHOW TABLES; DESCRIBE HISTORY ORDERS')]), 'pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(lake)], capture_output=True, text=True, check=True)
    assert done.stdout == '[(12, "it\'s")]\n2 False\n'


@pytest.fixture
def terminal(lake: Path, tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal("--lake", str(lake), XDG_STATE_HOME=str(tmp_path))
    yield terminal
    terminal.process.kill()
    terminal.process.wait()


def test_the_prompt_names_a_lake_that_does_not_answer_any_more(tmp_path: Path) -> None:
    write(tmp_path / "lake" / "streams" / "ORDERS", 0, [row(1)])
    terminal = Terminal("--lake", str(tmp_path / "lake"), XDG_STATE_HOME=str(tmp_path))
    try:
        terminal.expect("sql> ")
        os.mkfifo(file := tmp_path / "lake" / "_lake.json")  # whoever reads it waits
        terminal.type("SELECT 6 * 7 AS n;\n")
        terminal.expect(f"waiting for the lake: reading {file}, at most 10 s")
        with open(file, "wb"):
            file.unlink()
        terminal.expect("42")
    finally:
        terminal.process.kill()
        terminal.process.wait()


def test_the_prompt(terminal: Terminal, tmp_path: Path) -> None:
    terminal.expect("2 tables. .help for help")
    terminal.expect("sql> ")
    terminal.type(".tables\n")
    terminal.expect("delta.`accounts/ACME/streams/ORDERS`")
    terminal.expect("2 rows")
    terminal.expect("sql> ")
    terminal.type("SELECT count(*) AS n\n")
    terminal.expect("...> ")
    terminal.type(f"FROM {ORDERS}; SELECT 'x;\n")
    assert "12" in terminal.expect("1 row")
    terminal.expect("...> ")
    terminal.type("y' AS z;\n")
    terminal.expect("x;\\ny")
    terminal.expect("sql> ")
    terminal.type("SELECT frm;\n")
    terminal.expect("lakestream: ")
    terminal.expect("sql> ")
    terminal.type(".help\n")
    terminal.expect("TIMESTAMP AS OF")
    terminal.expect("sql> ")
    terminal.type(".nonsense\n")
    terminal.expect(".nonsense is not a command")
    terminal.type(".quit\n")
    assert terminal.end() == 0
    assert "SELECT count(*) AS n" in (tmp_path / "lakestream" / "sql_history").read_text()


def test_rows_too_wide_for_the_terminal_are_listed(lake: Path, tmp_path: Path) -> None:
    query = f"SELECT * FROM {ORDERS} WHERE seq = 1; SELECT 7 AS seven"
    terminal = Terminal("--lake", str(lake), "-q", query, COLUMNS="60", XDG_STATE_HOME=str(tmp_path))
    assert "time_ns" not in terminal.expect("row 1")
    assert "1700000001000000000" in terminal.expect("1 row")
    assert "row 1" not in terminal.expect("1 row")
    assert terminal.end() == 0


def test_control_c_drops_what_is_typed_and_control_d_leaves(terminal: Terminal) -> None:
    terminal.expect("sql> ")
    terminal.type("SELECT nonsense\n")
    terminal.expect("...> ")
    terminal.press_control_c_until("sql> ")
    terminal.type("SELECT 41 + 1 AS n;\n")
    terminal.expect("42")
    terminal.expect("sql> ")
    terminal.type("\x04")
    assert terminal.end() == 0


def test_control_c_stops_a_query_and_not_the_prompt(terminal: Terminal) -> None:
    terminal.expect("sql> ")
    terminal.type("SELECT count(*) FROM range(1000000000000) WHERE range % 7 = 3;\n")
    # The query runs once it has used a second of CPU; a Ctrl-C before that is the case above.
    watched = psutil.Process(terminal.process.pid)
    began = sum(watched.cpu_times()[:2])
    deadline = time.monotonic() + 30
    while sum(watched.cpu_times()[:2]) < began + 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    terminal.type("\x03")
    terminal.expect("stopped")
    terminal.expect("sql> ")
    terminal.type("SELECT 41 + 1 AS n;\n")
    terminal.expect("42")
