"""Tests of signals that come while a server starts, at the import of one module after the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

_STARTED = """
import os, sys

class At:
    def find_spec(self, name, path=None, target=None):
        if name == MODULE:
            os.kill(PID, SIGNAL)

MODULE, SIGNAL, PID = sys.argv[1], int(sys.argv[2]), 0 if sys.argv[3] == "group" else os.getpid()
sys.meta_path.insert(0, At())
sys.argv[1:] = sys.argv[4:]
from lakestream.cli.main import main
main()
"""
"""Starts a server that gets a signal when it imports a module: one of a series of moments, each the same every time."""

MODULES = (
    "lakestream.cli.serve",
    "msgspec._core",
    "msgspec._utils",
    "lakestream.config.options",
    "lakestream.config.conf",
    "lakestream.native._fast",
    "lakestream.server.node",
    "ssl",
    "uvloop",
    "uvloop.loop",
    "h11",
)
WORKER = "lakestream.net.peers.workers"
"""A module that workers import and their supervisor does not."""


@contextmanager
def started(module: str, number: int, path: Path, *flags: str, whom: str = "self") -> Iterator[subprocess.Popen[str]]:
    config = path / "nats.conf"
    config.write_text("host: 127.0.0.1\nport: -1\nhttp: -1\n")
    command = [sys.executable, "-c", _STARTED, module, str(number), whom, *flags, "-c", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=path, start_new_session=True) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("module", MODULES)
def test_a_start_ends_in_silence_at_whatever_module_it_is_interrupted(module: str, tmp_path: Path) -> None:
    with started(module, signal.SIGINT if len(module) % 2 else signal.SIGTERM, tmp_path) as process:
        _, told = process.communicate(timeout=60)
    assert process.returncode == 0, told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("module", "flags"),
    [("lakestream.config.conf", ()), ("uvloop", ()), ("lakestream.server.node", ("--workers", "2"))],
)
def test_a_reload_that_is_asked_for_while_the_server_starts_follows_once_it_is_ready(
    module: str, flags: tuple[str, ...], tmp_path: Path
) -> None:
    with started(module, signal.SIGHUP, tmp_path, *flags) as process:
        assert process.stderr is not None
        told: list[str] = []
        for line in process.stderr:
            told.append(line)
            if "Reloaded server configuration" in line:
                break
        process.terminate()
        process.stderr.read()
        assert process.wait(60) == 0
    assert any('Trapped "hangup" signal' in line for line in told)


def test_a_reload_reaches_a_worker_that_starts(tmp_path: Path) -> None:
    with started(WORKER, signal.SIGHUP, tmp_path, "--workers", "2") as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "Reloaded server configuration" in line:
                break
        else:
            pytest.fail("it was not read again")
        process.terminate()
        process.stderr.read()
        assert process.wait(60) == 0


def test_ctrl_c_ends_workers_that_start(tmp_path: Path) -> None:
    with started(WORKER, signal.SIGINT, tmp_path, "--workers", "2", whom="group") as process:
        _, told = process.communicate(timeout=60)
    assert process.returncode == 0, told
    assert "Traceback" not in told
    assert told.splitlines()[-1].endswith("Server Exiting..")


def test_up_is_interrupted_in_silence(tmp_path: Path) -> None:
    with started("lakestream.cli.supervisor", signal.SIGINT, tmp_path, "up") as process:
        _, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (0, "")
