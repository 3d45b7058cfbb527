"""Test of the first hour of a new user: the README's lines on a machine with Python and Java, to a drawn dashboard.

A copy of the checkout, an empty home and no virtual environment stand for the machine; packages come from the network.
Ports are free ones, given by the environment, so that the README's lines run as they are printed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients import npm
from tests.docs import recording
from tests.packages.environments import ROOT, environ

pytestmark = [pytest.mark.heavy, pytest.mark.lake, pytest.mark.timeout(1200)]

END_S = 60
MINUTES = 5
"""Time until the dashboard is drawn, at most."""

README = ROOT / "README.md"
ACTIVATE = "source .venv/bin/activate"
READ = """
from deltalake import DeltaTable, QueryBuilder
table = DeltaTable("data/lake/streams/ORDERS")
assert len(QueryBuilder().register("orders", table).execute("SELECT seq FROM orders").read_all()["seq"])
"""


class Machine:
    """A new user's machine with a checkout.

    Attributes:
        checkout: directory of the checkout.
        log: what the first terminal shows.
    """

    def __init__(self, folder: Path) -> None:
        self.checkout, self.log = folder / "lakestream", folder / "log"
        with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
            self.port, self.http_port = one.getsockname()[1], other.getsockname()[1]
        files = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        ).stdout
        self.checkout.mkdir()
        copy = ["xargs", "-0", "cp", "--parents", "-t", str(self.checkout)]
        subprocess.run(copy, input=files, cwd=ROOT, check=True)
        beside = [part for part in os.environ["PATH"].split(":") if part != str(Path(sys.prefix, "bin"))]
        self.env = environ(
            folder / "home",
            PATH=":".join(beside),
            ARGS=f"-p {self.port} -m {self.http_port}",
            NATS_URL=f"nats://127.0.0.1:{self.port}",
            COLUMNS="100",
        )
        self._first: subprocess.Popen[bytes] | None = None

    def start(self, line: str) -> None:
        """Run a line in the first terminal."""
        with self.log.open("wb") as log:
            self._first = subprocess.Popen(
                ["bash", "-c", line],
                cwd=self.checkout,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_for(self, text: str) -> None:
        """Wait until the first terminal shows a text."""
        while text not in self.log.read_text():
            self.check()
            time.sleep(0.2)

    def check(self) -> None:
        """Fail if what runs in the first terminal has ended."""
        assert self._first is not None
        assert self._first.poll() is None, self.log.read_text()

    def second(self, line: str) -> subprocess.CompletedProcess[str]:
        """Run a line in the second terminal."""
        command = ["bash", "-c", f"{ACTIVATE} && {line}"]
        return subprocess.run(
            command, cwd=self.checkout, env=self.env, capture_output=True, text=True, timeout=120, check=False
        )

    def until(self, line: str) -> str:
        """Repeat a line in the second terminal until it succeeds, as long as the installation goes on; return its
        output."""
        while True:
            installed = "== install: complete" in self.log.read_text()
            done = self.second(line)
            if done.returncode == 0:
                return done.stdout
            assert not installed, (line, done, self.log.read_text())
            self.check()
            time.sleep(1)

    def end(self) -> None:
        """Press Ctrl-C in the first terminal, and wait until all that ran there has ended."""
        first, self._first = self._first, None
        if first is None:
            return
        number = signal.SIGINT
        deadline = time.monotonic() + END_S
        with contextlib.suppress(ProcessLookupError):
            while True:
                os.killpg(first.pid, number)
                number = 0 if time.monotonic() < deadline else signal.SIGKILL
                first.poll()
                time.sleep(0.1)


@pytest.fixture
def chromium() -> str:
    npm.install()
    npm.install(npm.SCRIPTS / "console")
    return npm.chromium()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.end()


def test_the_readme_leads_to_a_drawn_dashboard_within_five_minutes(machine: Machine, chromium: str) -> None:
    text = README.read_text()
    found = re.search(r"In a checkout.*?```sh\n([^\n]*)\n```.*?`(source [^`]*)`", text, re.DOTALL)
    shown = re.search(r"```text\n( seq .*?)```", text, re.DOTALL)
    assert found is not None
    assert shown is not None
    assert found[2] == ACTIVATE
    began = time.monotonic()
    machine.start(found[1])
    machine.wait_for("lakestream is up")
    published, queried = recording.lines()
    done = machine.second(published)
    assert (done.returncode, done.stderr) == (0, "")
    console = re.search(r"http://127\.0\.0\.1:8222/console", text)
    assert console is not None
    assert f"http://127.0.0.1:{machine.http_port}/console" in machine.log.read_text()
    address = console[0].replace("8222", str(machine.http_port))
    world = {"CHROMIUM": chromium, "CONSOLE": address, "NATS": machine.env["NATS_URL"]}
    npm.passes("console/console.mjs", "the-dashboard-is-drawn", environment=world)
    assert time.monotonic() - began < MINUTES * 60

    rows = [line.split() for line in machine.until(queried).splitlines() if line.strip()]
    wanted = [line.split() for line in shown[1].splitlines()]
    assert [rows[0], rows[2]] == [wanted[0], wanted[2]]

    machine.wait_for("compactor ready")
    while machine.second(f"python -c {shlex.quote(READ)}").returncode:  # Spark has come by now, and commits the message
        machine.check()
        time.sleep(1)
    machine.end()
    assert "Server Exiting.." in machine.log.read_text()
