"""Tests of the modules that a start imports: heavy ones are imported when they are first needed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

HEAVY = {
    "bcrypt",
    "click",
    "cryptography",
    "delta",
    "deltalake",
    "duckdb",
    "h11",
    "hypothesis",
    "nacl",
    "nats",
    "opentelemetry",
    "numpy",
    "pandas",
    "prometheus_client",
    "pyarrow",
    "pyspark",
    "rich",
    "sqlglot",
    "typer",
}

_STARTED = """
import asyncio, json, sys
import lakestream.cli.main
from lakestream.cli import serve
from lakestream.server.node import Node

async def start(node):
    await node.start()
    loaded = {name.partition(".")[0] for name in sys.modules}
    await node.stop()
    print(json.dumps(sorted(loaded)))

class Started(Node):
    def run(self):
        asyncio.run(start(self))
        return 0

sys.exit(serve.start(sys.argv[1:], "test", serve.load, lambda options, log: serve.run(options, log, Started)))
"""


def _loaded_by(tmp_path: Path, *flags: str) -> set[str]:
    """Return the top-level modules in a server that has just become ready."""
    done = subprocess.run(
        [sys.executable, "-c", _STARTED, "-a", "127.0.0.1", "-p", "-1", *flags],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def test_a_start_with_jetstream_loads_nothing_heavy(tmp_path: Path) -> None:
    loaded = _loaded_by(tmp_path, "-js", "-sd", str(tmp_path / "store"))
    assert "lakestream" in loaded
    assert loaded & HEAVY == set()


def test_a_start_with_everything_loads_only_the_http_parser_besides(tmp_path: Path) -> None:
    config = tmp_path / "nats.conf"
    config.write_text("http: -1\nports_file_dir: '.'\npid_file: x.pid\nlog_file: a.log\njetstream { store_dir: store }")
    assert _loaded_by(tmp_path, "-c", str(config)) & HEAVY == {"h11"}
