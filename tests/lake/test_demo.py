"""Test of `lakestream demo` end to end: its own server, nats-py, real Spark, SQL, and the verdict."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests import nursery
from tests.servers import Kind, Server
from tests.terminal import Terminal

pytestmark = pytest.mark.lake
LAKESTREAM = [sys.executable, "-m", "lakestream.cli.main"]


def left(directory: Path) -> list[int]:
    """Return the processes that have the directory in their command lines."""
    every = psutil.process_iter(["cmdline"])
    return [process.pid for process in every if str(directory) in str(process.info["cmdline"])]


def test_ctrl_c_stops_the_demo_with_its_server_and_the_next_one_begins_anew(tmp_path: Path) -> None:
    command = [*LAKESTREAM, "demo", "--dir", str(tmp_path / "demo")]
    for _ in range(2):
        with Terminal(command) as terminal:
            terminal.read_until("publish")
            terminal.interrupt()
            assert terminal.wait() == 130, terminal.text
            assert "stopped; the demo begins anew next time" in terminal.text
            assert "Traceback" not in terminal.text
        assert "Server Exiting.." in (tmp_path / "demo" / "server.log").read_text()
        assert left(tmp_path) == []


def test_demo_passes_and_leaves_nothing_running(tmp_path: Path) -> None:
    done = subprocess.run(
        [*LAKESTREAM, "demo", "--flights", "3000", "--dir", tmp_path / "demo"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "COLUMNS": "120"},
    )
    log = (tmp_path / "demo" / "server.log").read_text()
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{log}"
    assert "every answer is equal" in done.stdout
    assert done.stdout.count("rows, equal") == 3
    assert "John F Kennedy Intl  ✓" in done.stdout
    assert "Server Exiting.." in log
    assert "[ERR]" not in log
    assert left(tmp_path) == []


def test_a_running_server_is_used_in_the_account_of_the_login(tmp_path: Path) -> None:
    config = "accounts { A { jetstream: enabled, users: [{user: a, password: p}] } }"
    server = Server(Kind.OURS, tmp_path / "store", config=config).start()
    lake = str(tmp_path / "store" / "lake")
    where = ["demo", "--flights", "500", "--lake", lake, "--server", server.url, "--user", "a"]
    with subprocess.Popen([*LAKESTREAM, "compact", "--lake", lake], stdout=subprocess.DEVNULL) as compactor:
        try:
            done = nursery.run([*where, "--password", "p"], timeout=240)
            refused = nursery.run([*where, "--password", "wrong"])
        finally:
            compactor.terminate()
            server.stop()
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "every answer is equal" in done.stdout
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "Authorization Violation" in refused.stderr
    assert "Traceback" not in refused.stderr
