"""Prometheus' own checker, for tests of pages and rules."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

MODULE = "github.com/prometheus/prometheus/cmd/promtool@v0.305.0"
BUILD_SECONDS = 540
RUN_SECONDS = 60


def find_promtool(directory: Path) -> str:
    """Return the path of promtool: the installed one, else one built with `go` into a directory."""
    found = shutil.which("promtool")
    if found is not None:
        return found
    go = shutil.which("go")
    if go is None:
        pytest.fail(
            "the tests of metrics need `promtool` (apt-get install prometheus), or `go` to build it", pytrace=False
        )
    environment = {**os.environ, "GOBIN": str(directory)}
    done = subprocess.run(
        [go, "install", MODULE], env=environment, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
    )
    if done.returncode:
        pytest.fail(f"`go install {MODULE}` failed; or `apt-get install prometheus`:\n{done.stderr}", pytrace=False)
    return str(directory / "promtool")


def promtool(program: str, *arguments: str | Path, text: str = "") -> tuple[int, str]:
    """Run promtool with this standard input; return its exit code and everything that it says."""
    command = [program, *map(str, arguments)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
    return done.returncode, done.stdout + done.stderr
