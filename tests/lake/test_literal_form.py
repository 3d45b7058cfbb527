"""Tests of ``SELECT … FROM delta.`streams/ORDERS` `` in our session, stock spark-sql, pyspark and Thrift server."""

from __future__ import annotations

import os
import socket
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakestream.spark import LakeNotFound, session
from lakestream_spark import jars
from lakestream_spark.session import JAVA_OPTIONS

pytestmark = pytest.mark.lake

T = "delta.`streams/ORDERS`"
THRIFT_SERVER = "org.apache.spark.sql.hive.thriftserver.HiveThriftServer2"
BEELINE = ("--silent=true", "--outputformat=csv2")
# An in-memory metastore; by default Spark creates one in the working directory.
METASTORE = "spark.hadoop.javax.jdo.option.ConnectionURL=jdbc:derby:memory:metastore;create=true"


@pytest.fixture(scope="module")
def lake(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a lake with two versions of ORDERS, and tables whose names need quoting."""
    root = tmp_path_factory.mktemp("root") / "lake of $X #1"
    for number in range(2):
        frame = spark.createDataFrame([(f"orders.{number}", number)], "subject string, seq long").coalesce(1)
        frame.write.format("delta").mode("append").save(f"{root}/streams/ORDERS")
    for name in ("streams/a~2Bb", "accounts/ACME/streams/ORDERS"):
        spark.range(7, 8).coalesce(1).write.format("delta").save(f"{root}/{name}")
    return root


@pytest.fixture(scope="module")
def sql(spark: Any, lake: Path) -> Any:
    """Return a function that queries one of our sessions; rows are tuples."""
    ours = session(lake)

    def ask(text: str, **arguments: Any) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in ours.sql(text, **arguments).collect()]

    return ask


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (f"SELECT * FROM {T} ORDER BY seq", [("orders.0", 0), ("orders.1", 1)]),
        (f"SELECT count(*) FROM {T} VERSION AS OF 0", [(1,)]),
        (f"SELECT count(*) FROM {T} FOR SYSTEM_VERSION AS OF 0", [(1,)]),
        ("SELECT count(*) FROM delta.`streams/ORDERS@v0`", [(1,)]),
        (f"SELECT subject FROM {T} WHERE seq = (SELECT max(seq) FROM {T})", [("orders.1",)]),
        (f"SELECT 1 WHERE EXISTS (SELECT 1 FROM {T} WHERE seq > 0)", [(1,)]),
        (f"SELECT a.seq FROM {T} a JOIN {T} VERSION AS OF 0 b ON a.seq = b.seq", [(0,)]),
        (f"WITH o AS (SELECT seq FROM {T}), p AS (SELECT * FROM o WHERE seq > 0) SELECT * FROM p", [(1,)]),
        (f"SELECT seq FROM {T} VERSION AS OF 0 UNION ALL SELECT seq + 9 FROM {T} VERSION AS OF 0", [(0,), (9,)]),
        (f"SELECT {T}.seq FROM {T} WHERE `streams/ORDERS`.seq = 1", [(1,)]),
        (f"SELECT {T}.* FROM {T} WHERE seq = 1", [("orders.1", 1)]),
        (f"DESCRIBE {T}", [("subject", "string", None), ("seq", "bigint", None)]),
        (f"SHOW COLUMNS IN {T}", [("subject",), ("seq",)]),
        (f"SELECT count(*) FROM IDENTIFIER('{T}')", [(2,)]),
        ("SELECT count(*) FROM delta.`./streams/ORDERS`", [(2,)]),
        ("SELECT * FROM delta.`streams/a+b`", [(7,)]),
        ("SELECT * FROM delta.`streams/a~2Bb`", [(7,)]),
        ("SELECT * FROM DELTA.`accounts/ACME/streams/ORDERS`", [(7,)]),
        ("SELECT delta.`a/b` FROM (SELECT named_struct('a/b', 5) AS delta)", [(5,)]),
        (f"BEGIN SELECT count(*) FROM {T}; END", [(2,)]),
    ],
)
def test_relative_paths_are_tables_of_the_lake(sql: Any, text: str, answer: list[tuple[Any, ...]]) -> None:
    assert sorted(sql(text)) == sorted(answer)


def test_times_by_commit(spark: Any, sql: Any, lake: Path) -> None:
    history = session(lake).sql(f"DESCRIBE HISTORY {T}").selectExpr("version", "CAST(timestamp AS STRING) AS at")
    at = {row["version"]: row["at"] for row in history.collect()}
    assert sql(f"SELECT count(*) FROM {T} TIMESTAMP AS OF '{at[0]}'") == [(1,)]
    assert sql(f"SELECT count(*) FROM {T} TIMESTAMP AS OF '{at[1]}'") == [(2,)]
    # Delta itself does not accept expressions here for tables by path.
    assert sql(f"SELECT count(*) FROM {T} TIMESTAMP AS OF TIMESTAMP '{at[1]}' - INTERVAL 1 MILLISECOND") == [(1,)]
    assert sql(f"SELECT count(*) FROM {T} TIMESTAMP AS OF date_trunc('MILLISECOND', '{at[0]}')") == [(1,)]
    with pytest.raises(Exception, match=r"DELTA_TIMESTAMP_GREATER_THAN_COMMIT"):
        sql(f"SELECT * FROM {T} TIMESTAMP AS OF current_timestamp() + INTERVAL 1 DAY")


def test_parameters_reach_the_statement(sql: Any) -> None:
    assert sql(f"SELECT count(*) FROM {T} WHERE seq >= :least", args={"least": 1}) == [(1,)]
    assert sql(f"SELECT count(*) FROM {T} WHERE seq >= ?", args=[0]) == [(2,)]
    assert sql("SELECT count(*) FROM IDENTIFIER(:table)", args={"table": T}) == [(2,)]
    assert len(sql(f"DESCRIBE HISTORY {T} LIMIT 1", args={"unused": 1})) == 1


def test_views_and_names_outside_of_sql(spark: Any, sql: Any, lake: Path) -> None:
    ours = session(lake)
    sql(f"CREATE OR REPLACE TEMP VIEW orders_now AS SELECT * FROM {T}")
    assert sql("SELECT count(*) FROM orders_now") == [(2,)]
    assert ours.table(T).count() == 2
    assert ours.catalog.tableExists(T)
    assert ours.range(1).selectExpr(f"(SELECT max(seq) FROM {T}) AS last").collect()[0]["last"] == 1


def test_statements_of_delta(sql: Any, lake: Path) -> None:
    name = "delta.`streams/CHANGING`"
    sql(f"CREATE TABLE {name} (seq BIGINT) USING delta")
    sql(f"INSERT INTO {name} SELECT seq FROM {T}")
    sql(f"INSERT INTO {name} VALUES (2)")
    assert (lake / "streams" / "CHANGING" / "_delta_log").is_dir()
    assert sql(f"OPTIMIZE {name}")[0][0].endswith("/streams/CHANGING")
    assert sql(f"UPDATE {name} SET seq = 5 WHERE seq = 2") == [(1,)]
    assert sql(f"DELETE FROM {name} WHERE seq = 5") == [(1,)]
    sql(f"MERGE INTO {name} t USING {T} s ON t.seq = s.seq WHEN MATCHED THEN DELETE")
    assert sql(f"SELECT * FROM {name}") == []
    assert sql(f"RESTORE TABLE {name} TO VERSION AS OF 1")
    assert sql(f"VACUUM {name} DRY RUN") == []
    assert sql(f"DESCRIBE DETAIL {name}")[0][0] == "delta"
    assert [row[0] for row in sql(f"DESCRIBE HISTORY {name}")] == list(
        range(sql(f"DESCRIBE HISTORY {name}")[0][0], -1, -1)
    )


def test_other_names_are_left_alone(spark: Any, sql: Any, lake: Path) -> None:
    for path in (f"{lake}/streams/ORDERS", f"file:{lake}/streams/ORDERS"):
        assert sql(f"SELECT count(*) FROM delta.`{path}`") == [(2,)]
    sql("CREATE DATABASE delta")
    try:
        sql(f"CREATE TABLE delta.orders USING delta LOCATION '{lake}/streams/ORDERS'")
        assert sql("SELECT count(*) FROM delta.orders VERSION AS OF 0") == [(1,)]
    finally:
        sql("DROP DATABASE delta CASCADE")
    for name in ("parquet.`streams/ORDERS`", "elsewhere.`streams/ORDERS`"):
        with pytest.raises(Exception, match=r"PATH_NOT_FOUND|TABLE_OR_VIEW_NOT_FOUND") as failure:
            sql(f"SELECT * FROM {name}")
        assert str(lake) not in str(failure.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SELECT * FROM delta.`streams/NONE`", "PATH_NOT_FOUND"),
        ("DESCRIBE delta.`streams/NONE`", "DELTA_MISSING_DELTA_TABLE"),
        ("DESCRIBE HISTORY delta.`streams/NONE`", "DELTA_TABLE_ONLY_OPERATION"),
    ],
)
def test_a_missing_table_is_named_by_its_full_path(sql: Any, lake: Path, text: str, said: str) -> None:
    with pytest.raises(Exception, match=said) as failure:
        sql(text)
    assert f"{lake}/streams/NONE" in str(failure.value)


@pytest.mark.parametrize(
    ("root", "table"),
    [
        ("s3a://bucket/lake/", "s3a://bucket/lake/streams/ORDERS"),
        ("s3://bucket", "s3a://bucket/streams/ORDERS"),
        ("file:///srv/my%20lake", "/srv/my lake/streams/ORDERS"),
        ("/srv/lake/../other/", "/srv/other/streams/ORDERS"),
        ("relative", f"{os.getcwd()}/relative/streams/ORDERS"),
        ("~/lake", f"{os.path.expanduser('~')}/lake/streams/ORDERS"),
    ],
)
def test_the_root_may_be_changed_and_be_a_url(spark: Any, root: str, table: str) -> None:
    other = spark.newSession()
    other.sql(f"SET spark.lakestream.lake={root}").collect()
    plan = other._jsparkSession.sessionState().sqlParser().parsePlan(f"SELECT * FROM {T} VERSION AS OF 3")
    assert f"[delta, {table}]" in plan.toString()


def test_two_lakes_in_one_spark(spark: Any, lake: Path, tmp_path: Path) -> None:
    spark.range(3).write.format("delta").save(f"{tmp_path}/streams/ORDERS")
    ours, other = session(lake), session(tmp_path)
    assert [ours.table(T).count(), other.table(T).count()] == [2, 3]
    with pytest.raises(LakeNotFound, match="there is no lake at"):
        session(tmp_path / "nowhere")


# ---- stock programs


def options(*more: str) -> list[str]:
    """Return the options with which docs/spark.md starts Spark's programs."""
    return ["--jars", ",".join(jars.ensure()), "--properties-file", jars.configuration(), "--conf", METASTORE, *more]


def program(name: str) -> str:
    return os.path.join(sysconfig.get_path("scripts"), name)


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a shell with the virtual environment activated."""
    ours = ("PYSPARK_", "LAKESTREAM_", "SPARK_", "PYTHONPATH")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    path = os.pathsep.join([sysconfig.get_path("scripts"), kept["PATH"]])
    return {**kept, "PATH": path, "JAVA_HOME": jars.find_java().home, "SPARK_LOCAL_IP": "127.0.0.1", **more}


def test_the_stock_spark_sql_shell(lake: Path, tmp_path: Path) -> None:
    text = f"SELECT count(*) + 40 FROM {T}; SELECT count(*) + 60 FROM {T} VERSION AS OF 0; DESCRIBE {T}; "
    text += "SELECT * FROM delta.`streams/NONE`"
    done = subprocess.run(
        [program("spark-sql"), *options(), "-S", "-e", text],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        env=environment(LAKESTREAM_LAKE=str(lake)),
        check=False,
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines == [["42"], ["61"], ["subject", "string"], ["seq", "bigint"]], done.stderr
    assert f"Path does not exist: {lake}/streams/NONE" in done.stderr
    assert done.returncode != 0


def test_the_stock_pyspark_shell(lake: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [program("pyspark"), *options("--conf", f"spark.lakestream.lake={lake}")],
        input=f'print("answer", spark.sql("SELECT count(*) + 60 AS n FROM {T} VERSION AS OF 0").first().n)\n',
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        env=environment(PYSPARK_DRIVER_PYTHON_OPTS="-i"),
        check=False,
    )
    assert "answer 61" in done.stdout, done.stderr


@pytest.fixture
def thrift_server(lake: Path, tmp_path: Path) -> Iterator[int]:
    """Yield the port of a Thrift server whose working directory is the lake."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    classes = ["--driver-class-path", os.pathsep.join(jars.ensure()), "--class", THRIFT_SERVER, "spark-internal"]
    hive = ["--hiveconf", f"hive.server2.thrift.port={port}", "--hiveconf", "hive.server2.thrift.bind.host=127.0.0.1"]
    log = f"spark.driver.extraJavaOptions={JAVA_OPTIONS} -Dderby.stream.error.file={tmp_path}/derby.log"
    server = subprocess.Popen(
        [program("spark-submit"), *options("--conf", log), *classes, *hive],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=lake,
        env=environment(SPARK_CONF_DIR=str(logging_to_stdout(tmp_path))),
    )
    try:
        assert server.stdout is not None
        said = []
        for line in server.stdout:
            said.append(line)
            if "ThriftBinaryCLIService on port" in line:
                break
        else:
            pytest.fail("".join(said))
        yield port
    finally:
        server.terminate()
        server.communicate(timeout=60)


def logging_to_stdout(directory: Path) -> Path:
    """Return a log4j configuration with which the server prints when it is ready."""
    text = """
rootLogger.level = error
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %m%n
logger.ready.name = org.apache.hive.service.cli.thrift
logger.ready.level = info
"""
    (directory / "log4j2.properties").write_text(text)
    return directory


def test_the_stock_thrift_server(thrift_server: int, tmp_path: Path) -> None:
    text = f"SELECT count(*) AS n FROM {T} VERSION AS OF 0; SELECT max(seq) AS seq FROM {T}; DESCRIBE {T}"
    done = subprocess.run(
        [program("beeline"), "-u", f"jdbc:hive2://127.0.0.1:{thrift_server}/", *BEELINE, "-e", text],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        env=environment(),
        check=False,
    )
    lines = [line.rpartition("> ")[2] for line in done.stdout.splitlines()]
    expected = ["n", "1", "seq", "1", "col_name,data_type,comment", "subject,string,", "seq,bigint,"]
    assert [line.removesuffix("NULL") for line in lines if line] == expected, done.stderr
