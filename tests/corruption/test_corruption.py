"""Tests of places in which every byte is damaged, one at a time; see the package.

A sample runs in `make test`, every seventh case in `make test-all`, all of them with `python -m tests.corruption`.
`LAKESTREAM_DAMAGE_SEED` chooses sample and bits.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from lakestream.lake.storage import paths
from lakestream.meta.meta_group import DIRECTORY, LOST
from lakestream.meta.stores import PARTS
from lakestream_verify.log.findings import FindingKind
from tests.corruption import kinds, members
from tests.corruption.cases import GOOD, judged
from tests.corruption.places import PLACES
from tests.unit.logkit import flip

pytestmark = pytest.mark.unit

SEED = int(os.environ.get("LAKESTREAM_DAMAGE_SEED", "1"))
SAMPLES = {
    "server": 3,
    "base": 3,
    "checkpoint": 4,
    "clone": 8,
    "table": 10,
    "replica-leader": 6,
    "replica-follower": 6,
    "replica-running": 3,
    "running-s": 4,
}
SAMPLE = 18
"""Cases of each other place."""
STORED = Path(__file__).parents[1] / "stored"


def check(name: str, tmp_path: Path, every: int = 1, sample: int = 0) -> Counter[str]:
    place = PLACES[name]
    place.build(tmp_path / name)
    cases = place.cases(tmp_path / name, SEED)[SEED % every :: every]
    if sample:
        cases = Random(SEED).sample(cases, sample)
    processes = 1 if sample else os.cpu_count() or 1
    outcomes = list(judged(place.judge, tmp_path / name, tmp_path / "work", cases, processes))
    assert len(outcomes) == len(cases)
    wrong = [each for each in outcomes if each.kind not in GOOD]
    assert not wrong, "\n\n".join(map(str, wrong[:5]))
    return Counter(each.kind for each in outcomes)


@pytest.mark.parametrize("name", PLACES)
def test_a_sample_of_damages_is_detected_or_repaired(name: str, tmp_path: Path) -> None:
    found = check(name, tmp_path, sample=SAMPLES.get(name, SAMPLE))
    assert name in SAMPLES or found["detected"] + found["repaired"] > SAMPLE // 3


@pytest.mark.heavy
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", PLACES)
def test_many_damages_are_detected_or_repaired(name: str, tmp_path: Path) -> None:
    print(f"seed {SEED}: {dict(check(name, tmp_path, every=7))}")


def test_each_kind_of_file_is_damaged(tmp_path: Path) -> None:
    found = set()
    for name, place in PLACES.items():
        place.build(tmp_path / name)
        for file in place.files(tmp_path / name):
            below = file[2:] if place.campaign == "cluster-corruption" else file  # without the node
            kind = kinds.kind_of(below)
            assert kind, file
            found.add(kind)
    assert found == set(kinds.DAMAGED)


@pytest.mark.parametrize("path", sorted(STORED.glob("*.tar.xz")), ids=lambda path: path.name.partition(".")[0])
def test_each_file_of_the_recorded_stores_has_a_kind(path: Path) -> None:
    with tarfile.open(path) as archive:
        names = [each.name for each in archive if not each.isdir() and "/" in each.name]
    below = [name[min(at for part in ("jetstream/", "lake/") if (at := name.find(part)) >= 0) :] for name in names]
    assert [name for name in below if not kinds.kind_of(name) and not kinds.left_out(name)] == []


def test_each_name_in_the_code_has_a_kind() -> None:
    """A part of a stream's directory, or a file of a lake, that no pattern names is not damaged."""
    patterns = " ".join((*kinds.DAMAGED.values(), *kinds.LEFT_OUT)).replace("\\", "")
    names = [each.strip("-.") for each in PARTS]
    names += [value for name, value in vars(paths).items() if name.endswith("_FILE") and isinstance(value, str)]
    names += [paths.TABLE_KEY, paths.SERVERS, paths.CHECKPOINT, paths.REMOVED, paths.KEPT, DIRECTORY, LOST]
    assert [name for name in names if name not in patterns] == []


def test_each_file_of_the_assignments_is_verified(tmp_path: Path) -> None:
    members.build_assignments(tmp_path / "nodes")
    for name in members.NODES:
        assert [each for each in members.verify_assignments(tmp_path / "nodes" / name) if not each.harmless] == []
    root = tmp_path / "nodes" / members.VICTIM
    place = Path(shutil.copytree(root, tmp_path / "copy")) / DIRECTORY
    flip(str(place / "checkpoint"), 100)
    (place / LOST).write_text("?")
    flip(str(sorted((place / "log").glob("*.seg"))[0]), 300)
    found = {each.kind for each in members.verify_assignments(place.parent) if not each.harmless}
    assert {FindingKind.CHECKPOINT, FindingKind.META, FindingKind.FRAME} <= found
