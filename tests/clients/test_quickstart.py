"""Tests of the commands of README and quickstart, run as they are printed, on one server."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs import recording
from tests.servers import Kind, Server

pytestmark = pytest.mark.conformance

ROOT = Path(__file__).resolve().parents[2]
README, QUICKSTART = ROOT / "README.md", ROOT / "docs" / "quickstart.md"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(Kind.OURS, tmp_path / "data")
    server.start()
    yield server
    server.kill()


def found(file: Path, pattern: str) -> str:
    """Return the group of a pattern that a document must contain exactly once."""
    (text,) = re.findall(pattern, file.read_text(), re.DOTALL | re.MULTILINE)
    return str(text)


def shell(server: Server, line: str) -> str:
    """Run a command line of a document in the directory where the server was started."""
    program, *arguments = shlex.split(line)
    assert program == "lakestream"
    command = [sys.executable, "-m", "lakestream.cli.main", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=server.store.parent)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_readme_then_the_quickstart_work_on_one_server(server: Server) -> None:
    published, queried = (
        found(README, r"```sh\n(lakestream pub [^\n]+)\n"),
        found(README, r"^(lakestream sql -q \"SELECT[^\n]+)$"),
    )
    asked = {published: f"{published} --server {server.url}"}
    steps = recording.record(lambda line: shell(server, asked.get(line, line)))
    assert [step.line for step in steps] == [published, queried]
    assert recording.draw(steps) == recording.FILE.read_text(), "python -m tests.docs.recording"
    shown = found(README, r"```text\n( seq .*?)```")
    assert [line.split() for line in steps[1].output.splitlines() if line.strip()][:3:2] == [
        line.split() for line in shown.splitlines()
    ][::2]

    program = found(QUICKSTART, r"(?<!-->\n)```python\n(.*?)```").replace("nats://127.0.0.1:4222", server.url)
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (said.returncode, said.stderr) == (0, "")
    assert "seq=1000" in said.stdout

    session = found(QUICKSTART, r"```text\nsql> (SELECT.*?)```").replace("...>", "")
    query, _, answer = session.partition("sql> .tables")[0].partition(";")
    rows = [line.split() for line in answer.splitlines() if line.startswith(" sales.")]
    printed = shell(server, shlex.join(["lakestream", "sql", "-q", query]))
    assert [line.split() for line in printed.splitlines() if line.startswith(" sales.")] == rows
    assert len(rows) == 2
    assert "streams/SALES" in shell(server, found(QUICKSTART, r"`(lakestream sql -q \.tables)`"))
    assert " 1000 " in shell(server, found(QUICKSTART, r"`(lakestream sql -q 'SELECT count[^']+')`"))
