"""Tests of examples/: the commands of each README print what it shows, and the notebook runs.

One server and one lake serve all of them. The lake is compacted between the examples and the notebook, so that the
notebook reads tables and uncompacted segments.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import Kind, Server

pytestmark = [pytest.mark.conformance, pytest.mark.heavy]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
NAMES = ["orders", "iot", "audit", "features", "cdc"]
OTHERS = {"dbt", "notebook"}
"""Examples with tests of their own."""
STEP = re.compile(r"```sh\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)
"""A command and its output in a README."""
TIMEOUT_S = 300


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield a server whose store is ./data of a directory with the examples, as their README says."""
    directory = tmp_path_factory.mktemp("examples")
    (directory / "examples").symlink_to(EXAMPLES)
    server = Server(Kind.OURS, directory / "data")
    server.start()
    yield server
    server.kill()


def shell(server: Server, command: str) -> str:
    """Run a command as a reader does, in the server's directory; return what it prints."""
    environment = {**os.environ, "NATS_URL": server.url, "PYTHONPATH": str(ROOT)}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", command],
        cwd=server.store.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_an_example_prints_what_its_page_shows(server: Server, name: str) -> None:
    steps = STEP.findall((EXAMPLES / name / "README.md").read_text())
    assert len(steps) >= 2
    for command, output in steps:
        assert shell(server, command) == output, command


def test_every_example_is_listed_and_run() -> None:
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir() and (path / "README.md").exists()}
    assert folders == {*NAMES, *OTHERS}
    listed = re.findall(r"\]\((\w+)/README\.md\)", (EXAMPLES / "README.md").read_text())
    assert sorted(listed) == sorted(folders)
    assert all((EXAMPLES / name).glob("*.*") for name in listed)


def test_programs_are_read_in_two_minutes() -> None:
    lengths = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in EXAMPLES.glob("*/*.py")}
    assert {name: length for name, length in lengths.items() if length > 70} == {}


def test_the_dashboard_is_the_same_from_the_table(server: Server) -> None:
    """The dashboard query of orders, once its messages are in the table."""
    shell(server, "lakestream compact --once --lake data/lake")
    query, output = STEP.findall((EXAMPLES / "orders" / "README.md").read_text())[-1]
    assert shell(server, query.replace("sql -f", "sql --committed -f")) == output


def test_the_notebook_runs(server: Server, tmp_path: Path) -> None:
    """The notebook runs from top to bottom and ends with a plot, in a directory that is not the lake's."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(EXAMPLES / "notebook" / "live.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert [cell.outputs for cell in notebook.cells if cell.cell_type == "code" and cell.outputs] == []
    environment = {
        **os.environ,
        "NATS_URL": server.url,
        "PYTHONPATH": str(ROOT),
        "LAKESTREAM_LAKE": str(server.store / "lake"),
    }
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=TIMEOUT_S, resources=resources).execute(env=environment)
    plots = [output for cell in notebook.cells for output in cell.get("outputs", []) if "image/png" in str(output)]
    assert len(plots) == 1
