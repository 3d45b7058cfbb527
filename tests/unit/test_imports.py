"""Tests of the modules that a start imports: heavy ones are imported when they are first needed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

HEAVY = {
    "bcrypt",
    "boto3",
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
    "pymetastore",
    "pyspark",
    "rich",
    "sqlglot",
    "typer",
}

OF_FEATURES = {
    "encodings.idna",
    "gzip",
    "lakestream.account.backup.archive",
    "lakestream.config.conf",
    "lakestream.lake.write",
    "lakestream.meta.cluster",
    "lakestream.meta.workers",
    "lakestream.net.accounts.imports",
    "lakestream.net.peers.cluster",
    "lakestream.net.tls",
    "lakestream.ops.monitoring.pages",
    "lakestream.ops.system.system_account",
    "lakestream.raft.core.core",
    "lakestream.server.lake.clones",
    "shutil",
    "tarfile",
    "tempfile",
}
"""Modules of features that a server in plain text, alone and without configuration file does not use."""

_STARTED = """
import asyncio, json, sys
import lakestream.cli.main
from lakestream.cli import serve
from lakestream.server.node import Node

async def start(node):
    await node.start()
    loaded = set(sys.modules)
    await node.stop()
    print(json.dumps(sorted(loaded)))

class Started(Node):
    def run(self):
        asyncio.run(start(self))
        return 0

sys.exit(serve.start(sys.argv[1:], "test", serve.load, lambda options, log: serve.run(options, log, Started)))
"""


def _loaded_by(tmp_path: Path, *flags: str) -> set[str]:
    """Return the modules in a server that has just become ready."""
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
    assert loaded & OF_FEATURES == set()


def test_a_start_with_everything_loads_only_the_http_parser_besides(tmp_path: Path) -> None:
    config = tmp_path / "nats.conf"
    config.write_text("http: -1\nports_file_dir: '.'\npid_file: x.pid\nlog_file: a.log\njetstream { store_dir: store }")
    assert _loaded_by(tmp_path, "-c", str(config)) & HEAVY == {"h11"}


def test_the_modules_of_features_exist() -> None:
    assert {name for name in OF_FEATURES if importlib.util.find_spec(name) is None} == set()


def test_commands_load_what_reads_tables_only_when_they_need_it() -> None:
    text = "import sys, lakestream.cli.app; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", text], check=True, capture_output=True, text=True)
    assert not {"deltalake", "duckdb", "numpy", "pandas", "pyarrow", "pyspark"} & set(done.stdout.split())
