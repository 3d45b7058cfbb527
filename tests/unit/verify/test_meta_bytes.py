"""Tests of a cluster's assignments in which bytes of one node's files are damaged, one at a time.

Verification names the file or finds the damage harmless, and after a start of the node all nodes have the same
assignments. Only a node whose file `raft` has no hard state does not start, and names that file.
`LAKESTREAM_DAMAGE_SEED` chooses the cases.
"""

from __future__ import annotations

import os
import shutil
import traceback
from pathlib import Path
from random import Random

import pytest

from lakestream.log.format.errors import CorruptLog
from lakestream.log.format.files import Files
from lakestream.log.verify.findings import Finding, Kind, Repair
from lakestream.meta.meta_group import DIRECTORY, LOST
from lakestream.verify.meta import check_meta
from tests.unit.logkit import flip
from tests.unit.meta_world import World
from tests.unit.verify.corruption import Case, apply

pytestmark = pytest.mark.unit

SEED = int(os.environ.get("LAKESTREAM_DAMAGE_SEED", "1"))
SAMPLE = 40
MANY = 5000
NODES = ("a", "b", "c")
VICTIM = "b"


def verify(root: Path) -> list[Finding]:
    return list(check_meta(Files(), str(root), lambda count: None))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Return the directory of three stopped nodes with sealed segments and a checkpoint, and the streams."""
    directory = tmp_path_factory.mktemp("meta")
    world = World(directory, *NODES, seal_bytes=1500)
    world.start(*NODES)
    world.until(world.elected, "a leader")
    for number in range(30):
        world.assign(f"S{number}")
    world.until(lambda: len({server.meta.state.dump() for server in world.servers.values()}) == 1, "they agree")
    streams = world.leader.streams
    for name in NODES:
        world.end(name, gracefully=name != VICTIM)
    return directory, streams


def judge(stopped: tuple[Path, list[str]], place: Path, case: Case) -> str:
    """Return "" if a case is as it should be, else the reason why not."""
    directory, streams = stopped
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(directory, place)
    apply(place / VICTIM, case)
    damaged = str(place / VICTIM / case.file)
    try:
        damage = [each for each in verify(place / VICTIM) if not each.harmless]
    except Exception:
        return traceback.format_exc(limit=-5)
    unknown_vote = any(each.kind is Kind.RAFT for each in damage)
    repair = Repair.NONE if unknown_vote else Repair.REPLICAS
    if any(each.repair is not repair or not damaged.startswith(each.file) for each in damage):
        return f"wrongly described: {damage}"
    world = World(place, *NODES, seal_bytes=1500)
    try:
        world.start(*NODES)
        world.until(lambda: all(server.streams == streams for server in world.servers.values()), "they agree")
    except CorruptLog as error:  # one line for the operator; the node does not start
        return "" if unknown_vote and error.file == damaged else f"{damage} {error}"
    except Exception:
        return f"{damage} {traceback.format_exc(limit=-5)}"
    finally:
        for name in list(world.servers):
            world.end(name, gracefully=False)
    return ""


def cases(root: Path, random: Random, count: int) -> list[Case]:
    files = sorted(path for path in (root / DIRECTORY).rglob("*") if path.is_file())
    chosen = random.choices(files, k=count)
    return [
        Case(
            str(path.relative_to(root)),
            random.randrange(path.stat().st_size),
            random.choice((0, 0xFF, 1 << random.randrange(8))),
        )
        for path in chosen
    ]


def check(stopped: tuple[Path, list[str]], scratch: Path, count: int) -> None:
    found = {case: judge(stopped, scratch / "case", case) for case in cases(stopped[0] / VICTIM, Random(SEED), count)}
    wrong = [f"{case}: {why}" for case, why in found.items() if why]
    assert not wrong, "\n\n".join(wrong[:5])


def test_a_stopped_node_has_no_findings(stopped: tuple[Path, list[str]]) -> None:
    for name in NODES:
        assert [each for each in verify(stopped[0] / name) if not each.harmless] == []
    assert sorted((stopped[0] / VICTIM / DIRECTORY / "log").glob("*.seg"))[1:]


def test_each_file_of_the_assignments_is_verified(stopped: tuple[Path, list[str]], tmp_path: Path) -> None:
    place = Path(shutil.copytree(stopped[0] / "a", tmp_path / "a")) / DIRECTORY
    flip(str(place / "checkpoint"), 100)
    (place / LOST).write_text("?")
    flip(str(sorted((place / "log").glob("*.seg"))[0]), 300)
    kinds = {each.kind for each in verify(place.parent) if not each.harmless}
    assert {Kind.CHECKPOINT, Kind.META, Kind.FRAME} <= kinds


def test_a_sample_of_damaged_bytes_of_the_assignments_is_repaired(
    stopped: tuple[Path, list[str]], tmp_path: Path
) -> None:
    check(stopped, tmp_path, SAMPLE)


@pytest.mark.heavy
@pytest.mark.timeout(3600)
def test_many_damaged_bytes_of_the_assignments_are_repaired(stopped: tuple[Path, list[str]], tmp_path: Path) -> None:
    check(stopped, tmp_path, MANY)
