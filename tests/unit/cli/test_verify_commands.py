"""Tests of the commands verify and repair: output, JSON, exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from lakestream.cli.app import app
from lakestream.log.store.root import StoreRoot
from tests.corruption.standalone import build
from tests.unit.logkit import flip

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("whole")
    build(directory, killed=False)
    return directory


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "store"))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_a_whole_store(store: Path) -> None:
    result = run("verify", str(store), "--no-lake")
    assert result.exit_code == 0
    assert result.stdout.startswith("5 streams, ")
    assert "0 damaged, 0 notes" in result.stdout
    result = run("repair", str(store), "--no-lake", "--yes")
    assert (result.exit_code, result.stdout) == (0, "0 files repaired, 0 findings left\n")


def test_damage_is_shown_with_file_offset_and_remedy(store: Path) -> None:
    path = store / "jetstream/A/streams/Q/checkpoint"
    flip(str(path), 200)
    result = run("verify", str(store), "--no-lake")
    assert result.exit_code == 1
    assert f"{path}:" in result.stdout
    assert "→ lakestream repair" in result.stdout
    found = json.loads(run("verify", str(store), "--no-lake", "--json").stdout)
    assert found["ok"] is False
    (finding,) = found["findings"]
    assert {"kind": "checkpoint", "account": "A", "stream": "Q", "repair": "repair"}.items() <= finding.items()
    assert run("verify", str(store), "--no-lake", "--stream", "S").exit_code == 0
    assert run("verify", str(store), "--no-lake", "--stream", "A/Q").exit_code == 1


def test_a_repair_is_only_shown_before_it_is_wanted(store: Path) -> None:
    path = store / "jetstream/A/streams/Q/checkpoint"
    flip(str(path), 200)
    damaged = path.read_bytes()
    result = run("repair", str(store), "--no-lake")
    assert result.exit_code == 1
    assert "1 file can be repaired: add --yes" in result.stdout
    assert path.read_bytes() == damaged
    result = run("repair", str(store), "--no-lake", "--yes")
    assert result.exit_code == 0, result.stdout
    (aside,) = (store / "jetstream/A/aside").iterdir()
    assert f"the damaged file is now {aside}" in result.stdout
    assert aside.read_bytes() == damaged
    assert run("verify", str(store), "--no-lake").exit_code == 0


def test_a_lake_that_lacks_messages_is_damage(store: Path) -> None:
    result = run("verify", str(store), "--json")
    assert result.exit_code == 1
    assert {each["kind"] for each in json.loads(result.stdout)["findings"]} == {"table"}


def test_what_cannot_be_verified_has_code_2(store: Path, tmp_path: Path) -> None:
    result = run("verify", str(tmp_path / "nothing"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "is not a store" in result.stderr
    foreign = tmp_path / "foreign/jetstream/$G/streams/ORDERS"
    foreign.mkdir(parents=True)
    (foreign / "meta.inf").touch()
    for command in ("verify", "repair"):
        result = run(command, str(tmp_path / "foreign"))
        assert (result.exit_code, result.stdout) == (2, "")
        (line,) = " ".join(result.stderr.split()).splitlines()
        assert "has streams of nats-server (ORDERS), which lakestream does not read" in line
        assert "`lakestream move`" in line
    root = StoreRoot.open(str(store / "jetstream"))
    for command in ("verify", "repair"):
        result = run(command, str(store))
        assert result.exit_code == 2
        assert "stop it first" in result.stderr
    root.close()
    (store / "jetstream/VERSION").write_text("99")
    assert run("verify", str(store)).exit_code == 2
