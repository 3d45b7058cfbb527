"""Fixtures for tests of the documentation."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NATS = "github.com/nats-io/natscli/nats@v0.4.0"
BUILD_TIMEOUT_S = 540


@pytest.fixture(scope="session")
def programs() -> Path:
    """Return a directory with the `nats` command, which is built once, beside the virtual environment's packages."""
    folder = Path(sys.prefix) / "nats-0.4.0"
    if (folder / "nats").exists():
        return folder
    go = shutil.which("go")
    if go is None:
        pytest.fail("the pages use the `nats` command, which needs `go`, version 1.26 or newer, on PATH", pytrace=False)
    environment = {**os.environ, "GOBIN": str(folder)}
    command = [go, "install", NATS]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
    )
    if done.returncode:
        pytest.fail(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}", pytrace=False)
    return folder
