"""Tests of examples/dbt: its models, built by dbt-duckdb and dbt-spark, also over Spark Connect, give what its README
shows."""

from __future__ import annotations

import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.test_sql_over_nats import until
from tests.cluster.nodes import free_ports
from tests.examples.test_examples import EXAMPLES, STEP, shell
from tests.lake.test_compact_job import Job
from tests.packages.environments import environ, make_venv
from tests.servers import Kind, Server

pytestmark = [pytest.mark.conformance, pytest.mark.heavy, pytest.mark.timeout(2400)]

CONFIG = 'lake { seal_age: "200ms", poll: "100ms" }'
COMPACT = "lakestream compact --once --lake data/lake"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "examples").symlink_to(EXAMPLES)
    server = Server(Kind.OURS, tmp_path / "data", config=CONFIG)
    server.start()
    yield server
    server.kill()


def staged(server: Server) -> int:
    """Return the last index of the log that is staged for the compactor."""
    segments = (server.store / "lake" / "segments").glob("ORDERS/*/*.seg")
    return max((int(path.stem.rpartition("-")[2]) for path in segments), default=0)


def test_both_adapters_build_the_models(server: Server, tmp_path: Path) -> None:
    programs = make_venv(tmp_path / "venv", environ(tmp_path), "-r", EXAMPLES / "dbt" / "requirements.txt")
    # lakestream and PySpark are those of this environment, whose protobuf dbt does not take.
    here = sysconfig.get_path("purelib")
    python = programs / "python"
    purelib = subprocess.check_output(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
    )
    (Path(purelib.strip()) / "zz_lakestream.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    steps = STEP.findall((EXAMPLES / "dbt" / "README.md").read_text())
    (publish, published), (duckdb, by_duckdb), (spark, by_spark), (connect, by_connect) = steps
    assert shell(server, publish) == published
    until(lambda: staged(server) > 60)  # one entry creates the stream, 60 are orders
    shell(server, COMPACT)
    with_dbt = f"export PATH={programs}:$PATH DO_NOT_TRACK=1\n"
    assert shell(server, with_dbt + duckdb) == by_duckdb
    assert shell(server, with_dbt + spark) == by_spark
    port = free_ports(1)[0]
    job = Job(server.store / "lake", "--connect", str(port), "--maintain-every", "0")
    try:
        job.wait_for(f"Spark Connect at 127.0.0.1:{port}")
        assert shell(server, with_dbt + connect) == by_connect
    finally:
        job.kill()
