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
    "typer",
}

OF_FEATURES = {
    "encodings.idna",
    "gzip",
    "lakestream.account.backup.archive",
    "lakestream.config.conf",
    "lakestream_spark.write",
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

OF_JETSTREAM = {
    "lakestream.account",
    "lakestream.lake.staging",
    "lakestream.lake.storage",
    "lakestream.log.store",
    "lakestream.meta",
    "lakestream.raft",
    "lakestream.schemas",
    "lakestream.server.jetstream",
    "lakestream.server.lake",
    "lakestream.stream",
    "urllib.parse",
}
"""Modules that a server without JetStream does not use; half of all."""

OF_STREAMS = {
    "lakestream.account.api.consumers",
    "lakestream.account.api.messages",
    "lakestream.account.api.streams",
    "lakestream.account.get",
    "lakestream.account.schemas.definitions",
    "lakestream.meta.replica",
    "lakestream.stream.assembly",
    "lakestream.stream.consumer",
    "lakestream.stream.mirroring",
}
"""Modules that a server without streams does not use before its first request; it loads them once it is ready."""

MOST_MODULES, MOST_WITH_JETSTREAM = 105, 262
"""Numbers of lakestream's own modules after a start. Each takes about 0.3 ms of the start."""

_STARTED = """
import asyncio, json, sys
before = set(sys.modules)  # also those of the environment, such as of an editable installation
import lakestream.cli.main
from lakestream.cli import serve
from lakestream.server.node import Node

async def start(node):
    await node.start()
    loaded = set(sys.modules) - before
    await node.stop()
    print(json.dumps(sorted(loaded)))

class Started(Node):
    def run(self):
        asyncio.run(start(self))
        return 0

sys.exit(serve.start(sys.argv[1:], "test", serve.load, lambda options, log: serve.run(options, log, Started)))
"""


_LOADED_AHEAD = """
    import threading
    from lakestream.server.jetstream import AHEAD
    from lakestream.server.node import FOR_INFO
    late = set()

    class Finder:
        def find_spec(self, name, path=None, target=None):
            if threading.current_thread() is threading.main_thread():
                late.add("in the loop: " + name)

    sys.meta_path.insert(0, Finder())
    while not {*AHEAD, FOR_INFO} <= set(sys.modules):
        await asyncio.sleep(0)
    node.logins.curve_key
    loaded = set(sys.modules) - before | late
"""


def _loaded_by(tmp_path: Path, *flags: str, program: str = _STARTED) -> set[str]:
    """Return the modules in a server that has just become ready."""
    done = subprocess.run(
        [sys.executable, "-c", program, "-a", "127.0.0.1", "-p", "-1", *flags],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def _own(loaded: set[str]) -> set[str]:
    return {name for name in loaded if name.partition(".")[0] == "lakestream"}


def test_a_start_with_jetstream_loads_nothing_heavy(tmp_path: Path) -> None:
    loaded = _loaded_by(tmp_path, "-js", "-sd", str(tmp_path / "store"))
    assert "lakestream" in loaded
    assert loaded & HEAVY == set()
    assert loaded & (OF_FEATURES | OF_STREAMS) == set()
    assert len(_own(loaded)) <= MOST_WITH_JETSTREAM


def test_ahead_is_all_that_the_first_stream_needs() -> None:
    text = """
import importlib, sys
import lakestream.server.node
from lakestream.server.jetstream import AHEAD
from lakestream.server.lake import address, keeper, schema_export
for name in AHEAD:
    importlib.import_module(name)
before = set(sys.modules)
import lakestream.account.api.streams, lakestream.account.api.messages, lakestream.account.api.consumers
import lakestream.account.get.direct, lakestream.account.schemas.definitions
import lakestream.meta.replica, lakestream.stream.rules
print(*(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", text], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []


def test_a_server_loads_what_its_first_clients_need_once_it_is_ready_and_in_a_thread(tmp_path: Path) -> None:
    text = _STARTED.replace("    loaded = set(sys.modules) - before\n", _LOADED_AHEAD)
    assert text != _STARTED
    loaded = _loaded_by(tmp_path, "-js", "-sd", str(tmp_path / "store"), program=text)
    assert loaded >= OF_STREAMS
    assert "nacl.bindings" in loaded
    assert {name for name in loaded if name.startswith("in the loop: ")} == set()


def test_a_start_without_jetstream_loads_nothing_of_it(tmp_path: Path) -> None:
    loaded = _loaded_by(tmp_path)
    assert loaded & (HEAVY | OF_FEATURES | OF_JETSTREAM) == set()
    assert len(_own(loaded)) <= MOST_MODULES


def test_a_start_without_lake_loads_no_logs_of_tables(tmp_path: Path) -> None:
    loaded = _loaded_by(tmp_path, "-js", "-sd", str(tmp_path / "store"), "--no-lake")
    assert loaded & {"lakestream.lake.table", "lakestream.server.lake.keeper"} == set()


def test_a_start_with_everything_loads_only_the_http_parser_besides(tmp_path: Path) -> None:
    config = tmp_path / "nats.conf"
    config.write_text("http: -1\nports_file_dir: '.'\npid_file: x.pid\nlog_file: a.log\njetstream { store_dir: store }")
    assert _loaded_by(tmp_path, "-c", str(config)) & HEAVY == {"h11"}


def test_the_modules_of_features_exist() -> None:
    assert {name for name in OF_FEATURES | OF_JETSTREAM if importlib.util.find_spec(name) is None} == set()


def test_commands_load_what_reads_tables_only_when_they_need_it() -> None:
    text = "import sys, lakestream.cli.app; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", text], check=True, capture_output=True, text=True)
    assert not {"deltalake", "duckdb", "numpy", "pandas", "pyarrow", "pyspark"} & set(done.stdout.split())
