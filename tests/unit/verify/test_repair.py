"""Tests of the repair of stores: what is repaired holds the same data, what is damaged moves aside, nothing is lost."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from lakestream.log.format.files import Files
from lakestream.log.format.segment import read_end
from lakestream_verify.log.findings import Finding, FindingKind, Repair
from lakestream_verify.stores import StoreCheck, lake_beside, root_of
from tests.corruption.standalone import STREAMS, build, start
from tests.unit.logkit import flip

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("whole")
    build(directory, killed=False)
    shutil.rmtree(directory / "lake/accounts/A/streams")  # there is only a position in it
    return directory


@pytest.fixture
def copy(store: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(store, tmp_path / "store"))


def repaired(store: Path) -> tuple[list[Finding], list[str], list[Finding]]:
    """Repair a store; return the findings before, the damaged files' new places, and the findings after."""
    root = root_of(str(store))
    check = StoreCheck(root, lambda account, name: True, lake_beside(root), alone=True)
    try:
        found = list(check.findings(lambda count: None))
        aside = []
        for finding in found:
            fix = check.fix(finding)
            if fix is not None:
                aside.append(fix.apply())
        return found, aside, [each for each in check.findings(lambda count: None) if not each.harmless]
    finally:
        check.close()


def content(store: Path) -> dict[str, Any]:
    found, said = start(store)
    assert not said, said
    assert found.keys() == STREAMS.keys()
    return found


def logs(store: Path, stream: str) -> list[Path]:
    return sorted((store / "jetstream/A/streams" / stream / "log").glob("*.seg"))


def staged(store: Path, stream: str) -> list[Path]:
    return sorted(store.glob(f"lake/accounts/A/segments/{stream}/*/*.seg"))


def same(store: Path, copy: Path, tmp_path: Path) -> bool:
    return content(Path(shutil.copytree(store, tmp_path / "expected"))) == content(copy)


def test_a_whole_store_is_left_alone(store: Path, copy: Path) -> None:
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    assert repaired(copy) == ([], [], [])
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before


def test_a_damaged_checkpoint_moves_aside_and_the_log_is_replayed(store: Path, copy: Path, tmp_path: Path) -> None:
    path = copy / "jetstream/A/streams/Q/checkpoint"
    flip(str(path), 200)
    damaged = path.read_bytes()
    found, (aside,), left = repaired(copy)
    assert [each.repair for each in found] == [Repair.REPAIR]
    assert left == []
    assert Path(aside).read_bytes() == damaged
    assert Path(aside).parent == copy / "jetstream/A/aside"
    assert same(store, copy, tmp_path)


def test_a_checkpoint_stays_where_entries_have_left_the_log(copy: Path) -> None:
    path = copy / "jetstream/A/streams/S/checkpoint"
    flip(str(path), 200)
    found, aside, left = repaired(copy)
    assert [each.repair for each in found] == [Repair.NONE]
    assert aside == []
    assert left
    assert path.exists()


def test_tables_of_a_footer_are_made_of_the_frames(store: Path, copy: Path, tmp_path: Path) -> None:
    path = logs(copy, "S")[0]
    with path.open("rb") as file:
        end = read_end(Files(), file.fileno())
    assert end is not None
    whole = path.read_bytes()
    flip(str(path), end.tables_at + 1)
    shutil.rmtree(copy / "lake/accounts/A/segments")
    _, (aside,), left = repaired(copy)
    assert left == []
    assert path.read_bytes() == whole
    assert aside
    assert same(store, copy, tmp_path)


@pytest.mark.parametrize("what", ["frame", "footer", "header", "all", "missing"])
def test_a_sealed_segment_is_replaced_by_its_staged_copy(store: Path, copy: Path, tmp_path: Path, what: str) -> None:
    path = logs(copy, "Z")[1]
    match what:
        case "frame":
            flip(str(path), 300)
        case "footer":
            flip(str(path), path.stat().st_size - 10)
        case "header":
            flip(str(path), 20)
        case "all":
            path.write_bytes(os.urandom(2000))
        case "missing":
            path.unlink()
    damaged = path.read_bytes() if path.exists() else None
    found, aside, left = repaired(copy)
    assert {each.repair for each in found if not each.harmless} == {Repair.REPAIR}, found
    assert left == []
    if damaged is not None:
        assert damaged in [Path(each).read_bytes() for each in aside]
    assert same(store, copy, tmp_path)


def test_a_staged_copy_that_is_damaged_or_differs_is_not_used(copy: Path) -> None:
    path = logs(copy, "Z")[1]
    flip(str(path), 300)
    (spare,) = [each for each in staged(copy, "Z") if each.name.startswith(path.name[:20])]
    flip(str(spare), 400)
    before = path.read_bytes()
    found, aside, left = repaired(copy)
    assert any(each.repair is Repair.NONE for each in found if each.file == str(path))
    assert aside == []
    assert left
    assert path.read_bytes() == before


def test_the_open_segment_is_never_replaced(copy: Path) -> None:
    path = logs(copy, "S")[-1]
    flip(str(path), 100)
    before = path.read_bytes()
    found, aside, _ = repaired(copy)
    assert [(each.kind, each.repair) for each in found if not each.harmless] == [(FindingKind.FRAME, Repair.NONE)]
    assert aside == []
    assert path.read_bytes() == before


def test_a_second_damage_does_not_replace_the_file_that_moved_aside_first(copy: Path) -> None:
    path = copy / "jetstream/A/streams/Q/checkpoint"
    whole = path.read_bytes()
    for at in (100, 200):
        path.write_bytes(whole)
        flip(str(path), at)
        repaired(copy)
    assert len(list((copy / "jetstream/A/aside").iterdir())) == 2
