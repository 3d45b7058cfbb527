"""Tests of the warm Spark: clients of PySpark, `lakestream sql --engine spark`, and SQL over NATS with that engine."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from lakestream.lake.table.schema import TABLE_DDL
from lakestream_client import connect as connect_nats
from lakestream_spark import connect
from lakestream_spark.sql_engine import SparkEngine
from lakestream_sql.explained import BadSql
from tests.clients.test_sql_over_nats import Result, Session, until
from tests.cluster.nodes import free_ports
from tests.lake.test_compact_job import Job
from tests.servers import Kind, Server
from tests.sql_escapes import ANYTHING_ELSE, FUNCTIONS, PATHS, STATEMENTS, UNKNOWN

pytestmark = [pytest.mark.lake, pytest.mark.heavy]

CONFIG = """
accounts {
  A { jetstream: enabled, users: [
    { user: ann, password: pw }
    { user: one, password: pw, permissions {
      publish: ["$LAKE.API.SQL.ORDERS", "$LAKE.API.SQL.FLOW.>", "$LAKE.API.SQL.CANCEL.*"] } } ] }
  B { jetstream: enabled, users: [{ user: bob, password: pw }] }
}
lake { seal_age: "200ms", poll: "100ms" }
sql { max_time: 60s, max_rows: 1000, window: 4 }
"""
MESSAGES = 20
ORDERS = "delta.`streams/ORDERS`"
ENDLESS = "SELECT count(*) FROM range(10000000000) a CROSS JOIN range(1000000) b WHERE a.id % 7 = b.id % 11"


class World:
    """A server and a compactor that serves Spark Connect. Account A has ORDERS and OTHER, account B SECRET."""

    def __init__(self, directory: Path) -> None:
        self.server = Server(Kind.OURS, directory / "store", config=CONFIG)
        self.server.start()
        self.lake = self.server.store / "lake"
        self._fill("ann", "ORDERS", MESSAGES)
        self._fill("ann", "OTHER", 1)
        self._fill("bob", "SECRET", 2)
        bucket = Session(self.server)
        config = {"name": "KV_settings", "subjects": ["$KV.settings.>"], "max_msgs_per_subject": 5}
        bucket.wire.api("STREAM.CREATE.KV_settings", config)
        for key, value in (("a", b"1"), ("a", b"2"), ("b", b"3")):
            bucket.wire.request(f"$KV.settings.{key}", value)
        bucket.wire.close()
        self.port = free_ports(1)[0]
        self.job = Job(self.lake, "--connect", str(self.port), "--maintain-every", "0", "--interval", "0.2")
        self.job.wait_for("compactor ready")
        self.job.wait_for(f"Spark Connect at 127.0.0.1:{self.port}")
        until(lambda: self.has("A", "ORDERS", "OTHER", "KV_settings") and self.has("B", "SECRET"))
        note = connect.read_note(str(self.lake))
        assert note is not None
        self.note = note

    def _fill(self, user: str, stream: str, count: int) -> None:
        session = Session(self.server, user)
        session.fill(stream, count)
        session.wire.close()

    def has(self, account: str, *streams: str) -> bool:
        """Return True if these streams have committed messages."""
        tables = [self.lake / "accounts" / account / "streams" / stream for stream in streams]
        return all((table / "_delta_log" / f"{1:020}.json").exists() for table in tables)

    def close(self) -> None:
        """End the server and the compactor."""
        self.job.kill()
        self.server.kill()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    found = World(tmp_path_factory.mktemp("connect"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def spark(world: World) -> Iterator[Any]:
    """Yield a session of PySpark's own client."""
    found = connect.client(world.note)
    until(lambda: found.table("delta.`accounts/A/streams/ORDERS`").count() == MESSAGES)
    yield found
    found.stop()


@pytest.fixture
def ann(world: World, spark: Any) -> Iterator[Session]:
    found = Session(world.server)
    yield found
    found.wire.close()


def ask(session: Session, query: str, subject: str = "$LAKE.API.SQL", **more: Any) -> Result:
    return session.ask({"sql": query, "engine": "spark"} | more, subject)


# ---------------------------------------------------------------------------- clients of PySpark


def test_a_client_sees_tables_versions_and_times(spark: Any) -> None:
    table = "delta.`accounts/A/streams/ORDERS`"
    assert spark.sql(f"SELECT count(*) FROM {table} VERSION AS OF 0").head()[0] == 0
    assert spark.table(f"{table}").where("seq > 15").count() == MESSAGES - 15
    assert spark.sql("SELECT count(*) FROM as_of('A/ORDERS', :t)", {"t": "2100-01-01 00:00:00"}).head()[0] == MESSAGES
    committed = spark.sql(f"DESCRIBE HISTORY {table}").select("timestamp").head()[0]
    at = f"TIMESTAMP '{committed:%Y-%m-%d %H:%M:%S.%f}'"
    assert spark.sql(f"SELECT count(*) FROM {table} TIMESTAMP AS OF {at}").head()[0] == MESSAGES


def test_a_client_sees_typed_views(spark: Any) -> None:
    properties = "TBLPROPERTIES ('lakestream.stream' = 'TYPED', 'lakestream.json_schema' = 'n BIGINT')"
    spark.sql(f"CREATE TABLE delta.`streams/TYPED` ({TABLE_DDL}) USING delta {properties}")
    row = "named_struct('subject', 't', 'seq', id, 'time', current_timestamp(), 'time_ns', id, 'data', {})"
    for start, payload in ((0, "encode(concat('{\"n\": ', id, '}'), 'UTF-8')"), (20, "X'41'")):
        rows = spark.range(start, 20 + start // 20).selectExpr(f"{row.format(payload)} AS r").select("r.*")
        rows.write.format("delta").mode("append").save(str(spark.conf.get("spark.lakestream.lake")) + "/streams/TYPED")
    assert spark.sql("SELECT sum(a.n), count(*) FROM TYPED_json a JOIN TYPED_json b USING (seq)").head()[:] == (190, 20)
    assert spark.table("TYPED_json_misfits").select("seq").collect() == [(20,)]
    with pytest.raises(Exception, match="NONE_json"):
        spark.table("NONE_json").count()


def test_the_live_source_reads_to_the_last_ack(spark: Any, world: World) -> None:
    wire = Session(world.server).wire
    login = {"user": "ann", "password": "pw", "account": "A", "stream": "OTHER"}
    for number in range(2):
        seq = json.loads(wire.request(f"other.{number}", b"{}").data)["seq"]
        live = spark.read.format("lakestream").options(**login).load()
        assert live.where(f"seq > {seq - 1}").select("seq").collect() == [(seq,)]
    wire.close()


def test_queries_run_in_a_pool_that_yields_to_compaction(spark: Any) -> None:
    from pyspark.sql.types import StringType

    def pool(_: int) -> str | None:
        from pyspark import TaskContext

        context = TaskContext.get()
        return None if context is None else context.getLocalProperty("spark.scheduler.pool")

    spark.udf.register("pool", pool, StringType())
    assert spark.sql("SELECT pool(id) FROM range(2)").collect() == [("connect",), ("connect",)]


def test_messages_are_committed_beside_a_query_that_never_ends(spark: Any, world: World) -> None:
    spark.addTag("endless")
    failed: list[Exception] = []

    def run() -> None:
        spark.addTag("endless")
        try:
            spark.sql(ENDLESS).collect()
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        until(lambda: _holds_all_slots(world))
        wire = Session(world.server, "bob").wire
        log = world.lake / "accounts" / "B" / "streams" / "SECRET" / "_delta_log"
        before = len(list(log.glob("*.json")))

        def publish_when_committed(times: int) -> bool:
            """Return True once so many messages were committed one by one, each by stages of its own."""
            nonlocal published
            commits = len(list(log.glob("*.json"))) - before
            if published == commits < times:
                wire.request("secret.new", b"{}")
                published += 1
            return commits == times

        published = 0
        until(lambda: publish_when_committed(10))
        wire.close()
    finally:
        spark.interruptTag("endless")
        thread.join(60)
        spark.removeTag("endless")
    assert not thread.is_alive()
    assert "CANCEL" in str(failed[0]).upper()


def _holds_all_slots(world: World) -> bool:
    """Return True while all slots of the compactor's JVM run tasks: two of queries, and the one that is kept."""
    jvm = next(each for each in psutil.Process(world.job.process.pid).children() if each.name() == "java")
    names = [name.read_text() for name in Path(f"/proc/{jvm.pid}/task").glob("*/comm")]
    return sum(name.startswith("Executor task l") for name in names) >= 3


def test_the_token_is_a_secret_of_the_user(world: World) -> None:
    note = world.lake / "_compactor" / connect.NOTE
    assert stat.S_IMODE(note.stat().st_mode) == 0o600
    commands = [" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])]
    assert not [command for command in commands if world.note.token in command]
    wrong = connect.ConnectNote("127.0.0.1", world.port, "wrong", world.note.machine, 0)
    with pytest.raises(Exception, match="UNAUTHENTICATED"):
        connect.client(wrong).range(1).count()


# ---------------------------------------------------------------------------- lakestream sql


def test_sql_asks_the_warm_spark_and_only_reads(world: World, spark: Any) -> None:
    with SparkEngine(world.lake) as engine:
        assert type(engine._spark).__module__ == "pyspark.sql.connect.session"
        tables = [row[0] for row in engine.query("SHOW TABLES")]
        assert "delta.`accounts/A/streams/ORDERS`" in tables
        assert engine.query("SELECT count(*) FROM delta.`accounts/A/streams/ORDERS`").fetchall() == [(MESSAGES,)]
        for statement in ("SET spark.lakestream.statements = all", "DELETE FROM delta.`streams/TYPED`"):
            with pytest.raises(BadSql, match="streams change through NATS"):
                engine.query(statement)
        with pytest.raises(BadSql, match="line 2, column 8"):
            engine.query("SELECT 1,\n       nope FROM delta.`accounts/A/streams/ORDERS`")


def test_the_command_and_the_server_answer_in_sparks_sql(world: World, spark: Any) -> None:
    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "lakestream", "sql", "--engine", "spark", "--format", "csv", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    query = r"SELECT 'it\'s', CAST(3.7 AS INT), count(*) AS n FROM {}"
    answer = f"it's,3,{MESSAGES}\n"
    assert run("--lake", str(world.lake), "-q", query.format("delta.`accounts/A/streams/ORDERS`")).endswith(answer)
    login = ("--url", world.server.url, "--user", "ann", "--password", "pw")
    assert run(*login, "-q", query.format(ORDERS)).endswith(answer)


# ---------------------------------------------------------------------------- SQL over NATS


def test_a_query_over_nats_reads_the_accounts_tables(ann: Session) -> None:
    found = ask(ann, f"SELECT count(*) AS n, max(CAST(data AS STRING)) AS d FROM {ORDERS}")
    assert (found.code, found.rows) == (0, [{"n": MESSAGES, "d": '{"n": 9}'}])
    assert (found.head["account"], found.head["stale"]) == ("A", ["ORDERS"])
    names = [row["table"] for row in ask(ann, "SHOW TABLES").rows]
    assert names == ["delta.`streams/KV_settings`", "delta.`streams/ORDERS`", "delta.`streams/OTHER`"]
    assert ask(ann, f"SELECT seq FROM {ORDERS} WHERE seq = :x", parameters={"x": 3}).rows == [{"seq": 3}]
    assert ask(ann, f"SELECT seq FROM {ORDERS} WHERE seq = ?", parameters=[4]).rows == [{"seq": 4}]
    assert ask(ann, "WITH o AS (SELECT 1 AS x) SELECT x FROM o").rows == [{"x": 1}]
    assert ask(ann, f"SELECT count(*) AS n FROM {ORDERS} VERSION AS OF 0").rows == [{"n": 0}]
    assert ask(ann, "SELECT count(*) AS n FROM as_of('ORDERS', '2100-01-01 00:00:00')").rows == [{"n": MESSAGES}]
    few = ask(ann, f"SELECT seq FROM {ORDERS} ORDER BY seq", max_rows=2)
    assert (len(few.rows), few.end["Lake-Sql-Truncated"]) == (2, "true")
    shape = ask(ann, f"SELECT seq, data FROM {ORDERS}", describe=True)
    assert [(each["name"], each["type"]) for each in shape.head["columns"]] == [("seq", "BIGINT"), ("data", "BLOB")]


def test_a_query_over_nats_reads_the_accounts_buckets(ann: Session, spark: Any, tmp_path: Path) -> None:
    found = ask(ann, "SELECT key, CAST(value AS STRING) AS value, revision FROM kv.settings ORDER BY key")
    assert found.rows == [{"key": "a", "value": "2", "revision": 2}, {"key": "b", "value": "3", "revision": 3}]
    assert found.head["stale"] == ["KV_settings"]
    assert ask(ann, "SELECT count(*) AS n FROM kv_history.settings").rows == [{"n": 3}]
    assert ask(ann, "SELECT revision FROM kv.settings VERSION AS OF 1").rows == [{"revision": 1}]
    assert ask(ann, "SELECT * FROM kv.none").code == 404
    assert ask(ann, "SELECT * FROM obj.none").code == 404
    spark.sql("CREATE DATABASE kv")
    spark.sql(f"CREATE TABLE kv.none USING delta LOCATION '{tmp_path}/none' AS SELECT 'x' AS x")
    assert ask(ann, "SELECT * FROM kv.none").code == 404, "a table of Spark's own catalog"
    spark.sql("DROP DATABASE kv CASCADE")


def test_a_query_over_nats_reads_the_accounts_typed_views(ann: Session, world: World) -> None:
    """Those of its account alone: of the same name there may be a stream in another one."""
    for user, stream, payloads in (("ann", "PRICES", (b'{"n": 7}', b"A")), ("bob", "PRICES", (b'{"n": 8}',))):
        session = Session(world.server, user)
        metadata = {"lakestream.json_schema": "n BIGINT"}
        config = {"name": stream, "subjects": [f"{stream.lower()}.>"], "metadata": metadata}
        session.wire.api(f"STREAM.CREATE.{stream}", config)
        for payload in payloads:
            session.wire.request(f"{stream.lower()}.x", payload)
        session.wire.close()
    until(lambda: world.has("A", "PRICES") and world.has("B", "PRICES"))
    found = ask(ann, "SELECT p.n, q.seq FROM PRICES_json p JOIN PRICES_json q USING (seq)")
    assert (found.code, found.rows) == (0, [{"n": 7, "seq": 1}]), found.end
    assert found.head["stale"] == ["PRICES"]
    (misfit,) = ask(ann, "SELECT seq, reason FROM PRICES_json_misfits").rows
    assert misfit["seq"] == 2
    assert ask(ann, "WITH PRICES_json AS (SELECT 1 AS n) SELECT n FROM PRICES_json").rows == [{"n": 1}]
    # Of no schema, no stream, another account, and none that could be one of another directory.
    for query in ("ORDERS_json", "NONE_json", "SECRET_json", "`../B/streams/PRICES_json`", "`B/PRICES_json`"):
        failed = ask(ann, f"SELECT * FROM {query}")
        assert failed.code in (400, 403, 404), query
        assert failed.batches == [], query
        assert str(world.lake) not in str(failed.end), query


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("SELECT * FROM misfits.ORDERS", "table misfits.ORDERS"),
        ("SELECT * FROM last('ORDERS')", "table function last"),
    ],
)
def test_what_only_the_other_engine_has_is_refused_by_name(ann: Session, query: str, name: str) -> None:
    found = ask(ann, query)
    assert found.code == 403
    assert f"{name}, which DuckDB's engine has, is not available" in found.end["Lake-Sql-Error"]


async def test_the_client_gets_arrow(world: World, spark: Any) -> None:
    async with await connect_nats(world.server.url, user="ann", password="pw") as client:
        answer = await client.sql(f"SELECT seq, time FROM {ORDERS} ORDER BY seq", engine="spark")
        table = await answer.to_arrow()
    assert table.column("seq").to_pylist() == list(range(1, MESSAGES + 1))


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("SELECT * FROM delta.`streams/NONE`", 404),
        (f"SELECT nope FROM {ORDERS}", 400),
        ("SELEC 1", 400),
        ("SELECT 1; SELECT 2", 400),
        ("SELECT raise_error('no such price')", 400),
        ("SELECT id FROM range(2000)", 413),
    ],
)
def test_mistakes_have_the_codes_of_the_other_engine(ann: Session, world: World, query: str, code: int) -> None:
    found = ask(ann, query)
    assert found.code == code, found.end
    assert str(world.lake) not in str(found.end)


def test_a_user_of_one_stream_reads_no_other(world: World, spark: Any) -> None:
    one, subject = Session(world.server, "one"), "$LAKE.API.SQL.ORDERS"
    assert ask(one, f"SELECT count(*) AS n FROM {ORDERS}", subject).rows == [{"n": MESSAGES}]
    for query in (
        "SELECT * FROM delta.`streams/OTHER`",
        "SELECT * FROM delta.`streams/~4FTHER`",
        f"SELECT * FROM {ORDERS} WHERE seq IN (SELECT seq FROM delta.`streams/OTHER`)",
        f"WITH w AS (SELECT * FROM as_of('OTHER', 1)) SELECT w.seq FROM w JOIN {ORDERS} USING (seq)",
        "SELECT * FROM OTHER_json",
        "SELECT * FROM OTHER_json_misfits",
        "SELECT * FROM `~4FTHER_json`",
        "SHOW TABLES",
    ):
        assert ask(one, query, subject).code == 403, query
    one.wire.close()


ESCAPES = (
    "SELECT * FROM text.`/etc/passwd`",
    "SELECT * FROM delta.`{lake}/accounts/B/streams/SECRET`",
    "SELECT * FROM delta.`accounts/B/streams/SECRET`",
    "SELECT * FROM delta.`streams/../../B/streams/SECRET`",
    "SELECT * FROM delta.`./streams/ORDERS`",
    "SELECT * FROM as_of('B/SECRET', '2100-01-01')",
    "SELECT * FROM as_of('{lake}/accounts/B/streams/SECRET', '2100-01-01')",
    "SELECT * FROM as_of('/' || 'x', '2100-01-01')",
    "SELECT * FROM IDENTIFIER('delta.`{lake}/accounts/B/streams/SECRET`')",
    "SELECT IDENTIFIER('reflect')('java.lang.System', 'getProperty', 'user.home')",
    "SELECT reflect('java.lang.System', 'getProperty', 'user.home')",
    "SELECT java_method('java.lang.System', 'getenv', 'SPARK_CONNECT_AUTHENTICATE_TOKEN')",
    "SELECT try_reflect('java.lang.System', 'getenv', 'SPARK_CONNECT_AUTHENTICATE_TOKEN')",
    "SELECT builtin.reflect('java.lang.System', 'getProperty', 'user.home')",
    "SELECT * FROM delta.`streams/ORDERS` WHERE reflect('java.lang.System', 'gc') IS NULL",
    "SELECT (SELECT max(reflect('java.lang.System', 'gc')) FROM delta.`streams/ORDERS`)",
    "SELECT * FROM as_of('ORDERS', reflect('java.lang.System', 'nanoTime'))",
    "SELECT * FROM delta.`streams/ORDERS` TIMESTAMP AS OF reflect('java.lang.System', 'nanoTime')",
    "SELECT TRANSFORM (seq) USING 'cat /etc/passwd' FROM delta.`streams/ORDERS`",
    "SELECT * FROM TYPED_json",
    "SELECT * FROM TYPED_json WHERE EXISTS (WITH TYPED_json AS (SELECT 1) SELECT * FROM TYPED_json)",
    "WITH a AS (SELECT * FROM TYPED_json), TYPED_json AS (SELECT 1) SELECT * FROM a",
    "SELECT * FROM stolen",
    "SELECT * FROM kv.`B/prices`",
    "SELECT * FROM kv.`../prices`",
    "SELECT * FROM accounts.B.SECRET",
    "SELECT * FROM spark_catalog.default.stolen",
    "SELECT * FROM STREAM delta.`streams/ORDERS`",
    "SELECT _metadata.file_path FROM delta.`streams/ORDERS`",
    "SELECT input_file_name() FROM delta.`streams/ORDERS`",
    "SELECT * FROM python_worker_logs()",
    "SELECT * FROM read_files('/etc/passwd')",
    "SET spark.lakestream.statements = all",
    "SET",
    "RESET spark.lakestream.statements",
    "SHOW TABLES IN default",
    "SHOW FUNCTIONS",
    "DESCRIBE delta.`{lake}/accounts/B/streams/SECRET`",
    "DESCRIBE DETAIL delta.`streams/ORDERS`",
    "EXPLAIN SELECT * FROM delta.`streams/ORDERS`",
    "CACHE TABLE x AS SELECT 1",
    "CREATE TEMP VIEW x AS SELECT 1",
    "CREATE TABLE x USING delta AS SELECT 1",
    "INSERT INTO delta.`streams/ORDERS` SELECT * FROM delta.`streams/ORDERS`",
    "INSERT OVERWRITE DIRECTORY '/tmp/x' USING csv SELECT 1",
    "DELETE FROM delta.`streams/ORDERS`",
    "ADD JAR '/tmp/x.jar'",
    "CREATE FUNCTION f AS 'x.Y'",
    "USE default",
    "DECLARE x INT DEFAULT 1",
    "EXECUTE IMMEDIATE 'SELECT * FROM stolen'",
    "BEGIN SELECT 1; END",
)


def test_no_statement_leaves_the_account(ann: Session, world: World, spark: Any, tmp_path: Path) -> None:
    spark.sql(f"CREATE TABLE stolen USING delta LOCATION '{tmp_path}/stolen' AS SELECT 'x' AS x")
    others = [query for query in FUNCTIONS if "WITH duckdb_views" not in query]  # nothing but a name here
    for query in (*ESCAPES, *others, *UNKNOWN, *STATEMENTS, *PATHS, *ANYTHING_ELSE):
        found = ask(ann, query.replace("{lake}", str(world.lake)))
        assert found.code in (400, 403, 404), (query, found)
        assert found.batches == [], query
    spark.sql("DROP TABLE stolen")


def test_a_cancelled_query_ends_in_spark_too(ann: Session, spark: Any, world: World) -> None:
    ask(ann, "SELECT 1")
    sid = ann.begin({"sql": ENDLESS, "engine": "spark"})
    head = ann.wire.delivered(sid).json()
    until(lambda: _is_running(world))
    ann.wire.publish(head["cancel"])
    assert ann.rest(sid).code == 499
    until(lambda: not _is_running(world))


def _is_running(world: World) -> bool:
    """Return True while a thread of the compactor's JVM runs a query of Spark Connect."""
    jvm = next(each for each in psutil.Process(world.job.process.pid).children() if each.name() == "java")
    names = Path(f"/proc/{jvm.pid}/task").glob("*/comm")
    return any(name.read_text().startswith("SparkConnectExe") for name in names)


def test_without_a_warm_spark_the_server_says_so(ann: Session, world: World) -> None:
    note = Path(world.lake, "_compactor", connect.NOTE)
    aside = note.rename(note.with_suffix(".aside"))
    try:
        found = ask(ann, "SELECT 1")
    finally:
        aside.rename(note)
    assert found.code == 503
    assert "spark_connect: true" in found.end["Nats-Service-Error"]
