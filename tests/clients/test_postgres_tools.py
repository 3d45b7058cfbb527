"""Tests of the catalogues of Postgres: SQLAlchemy, pgjdbc, and the queries of BI tools."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from lakestream_spark import jars
from lakestream_spark.pins import Package, Pin
from tests.clients.postgres_world import port, psql, started
from tests.servers import Server

pytestmark = [pytest.mark.conformance, pytest.mark.heavy]

HERE = Path(__file__).parent
_TEXT = (HERE / "postgres_tools.sql").read_text().split("\n\n", 1)[1]
TOOLS = re.findall(r"(.*?)\n-- expect: ?([^\n]*)\n", _TEXT, re.DOTALL)
_SHA256 = "73914527305a40cce504b0d3d90b23caf565136912d607ae8ae7c5895512332c"
PGJDBC = Package(
    "pgjdbc",
    "org.postgresql:postgresql:42.7.14",
    "org.checkerframework:*",
    {"postgresql-42.7.14.jar": Pin(1_221_004, _SHA256, "org.postgresql", "BSD-2-Clause")},
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield a server with a stream in each of two accounts, and a bucket."""
    server = started(tmp_path_factory.mktemp("postgres") / "store")
    yield server
    server.kill()


@pytest.mark.parametrize(("query", "expected"), TOOLS, ids=lambda text: text.strip()[:40])
def test_queries_of_tools_are_answered(server: Server, query: str, expected: str) -> None:
    found = psql(server, query)
    assert found.stderr == ""
    assert expected in found.stdout if expected != "-" else found.stdout == ""


def test_sqlalchemy_reflects_streams(server: Server) -> None:
    url = f"postgresql+psycopg://ann:pw@127.0.0.1:{port(server)}/lake"
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
    inspector = sa.inspect(engine)
    assert inspector.get_schema_names() == ["information_schema", "kv", "kv_history", "obj", "public"]
    assert inspector.get_table_names() == ["KV_settings", "ORDERS"]
    assert inspector.get_table_names("kv") == ["settings"]
    columns = {each["name"]: type(each["type"]) for each in inspector.get_columns("ORDERS")}
    assert (columns["seq"], columns["data"]) == (sa.BIGINT, sa.dialects.postgresql.BYTEA)
    assert inspector.get_pk_constraint("ORDERS")["constrained_columns"] == []
    assert inspector.get_foreign_keys("ORDERS") == inspector.get_indexes("ORDERS") == []
    assert inspector.has_table("ORDERS")
    assert not inspector.has_table("NIX")
    metadata = sa.MetaData()
    metadata.reflect(engine)
    orders = metadata.tables["ORDERS"]
    with engine.connect() as connection:
        query = sa.select(orders.c.seq, orders.c.subject).where(orders.c.seq > 1).order_by(orders.c.seq.desc()).limit(5)
        assert connection.execute(query).all() == [(3, "orders.2"), (2, "orders.1")]


@pytest.mark.parametrize("mode", ["extended", "simple"])
def test_pgjdbc_reads_streams_and_metadata(server: Server, mode: str, tmp_path: Path) -> None:
    (jar,) = jars._ensure(PGJDBC)
    javac = shutil.which("javac")
    assert javac is not None, "a JDK is needed, as for the JAR of lakestream"
    subprocess.run([javac, "-cp", jar, "-d", tmp_path, HERE / "PostgresProbe.java"], check=True, timeout=120)
    url = f"jdbc:postgresql://127.0.0.1:{port(server)}/lake?user=ann&password=pw&preferQueryMode={mode}"
    java = Path(javac).with_name("java")
    run = subprocess.run(
        [java, "-cp", f"{jar}:{tmp_path}", "PostgresProbe", url],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.stderr == ""
    lines = run.stdout.splitlines()
    assert lines == [
        "valid: true public",
        "version: 15.0 (lakestream)",
        "schemas: information_schema kv kv_history obj pg_catalog public",
        "catalogs: lake",
        "tables: KV_settings ORDERS",
        "columns: subject seq subject_bytes",
        "types: text int8 timestamptz int8 json bytea bytea bytea json",
        "privileges: SELECT",
        *("keys:", "imported:", "indexes:", "functions:", "udts:"),
        "keywords: true true",
        *['values: 2 true {"n": 1} {"n": 1} 1.50 2 true 2.5 2020-01-02 null'] * 7,
        "described: int8 int4",
        "parameters: x x",
        "sum: 312487500",
        "timeout: 57014",
        "copied: 1 1\ta",
        "end: 1",
    ]
