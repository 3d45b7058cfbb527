"""Test of `lakestream demo` end to end: its own server, nats-py, real Spark, SQL, and the verdict."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.lake


def test_demo_passes_and_leaves_nothing_running(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lakestream.cli.main", "demo", "--flights", "3000", "--dir", tmp_path / "demo"],
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
    left = [
        process.pid for process in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(process.info["cmdline"])
    ]
    assert left == []
