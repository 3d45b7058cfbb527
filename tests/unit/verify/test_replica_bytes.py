"""Tests of a cluster in which bytes of one replica's files are damaged, one at a time: the others repair it.

Every file of a stopped replica is damaged in turn; verification names the file or finds it harmless, and after a start
all three replicas hold every acked message. A sample runs in `make test`, more in `make test-all`.
`LAKESTREAM_DAMAGE_SEED` chooses the cases.
"""

from __future__ import annotations

import os
import shutil
import traceback
from pathlib import Path
from random import Random

import pytest

from lakestream.log.format.errors import CorruptLog, LogError
from lakestream.log.verify.findings import Repair
from tests.unit.replica_world import World, fill
from tests.unit.verify.corruption import Case, apply, verify

pytestmark = pytest.mark.unit

SEED = int(os.environ.get("LAKESTREAM_DAMAGE_SEED", "1"))
SAMPLE = 25
MANY = 1000
NODES = "abc"
SHARE = {"raft": 4, "replica": 3, "checkpoint": 2, "synced": 1}
"""Weights of small files in the choice of a case; those of segments are 6."""


class Cluster:
    """Three stopped nodes with a stream, and the expected content."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        world = World(directory, NODES, seal_bytes=3000)
        world.stream()
        world.consumer("c")
        for _ in range(4):
            fill(world, 8, 120)
            world.run(0.1)
        fill(world, 3, 120)
        assert world.create is not None
        self.create, self.membership = world.create, world.membership
        self.content = world.converged()
        self.victim = world.followers()[0].name
        self.root = self.directory / self.victim
        world.followers()[0].stream.checkpoint()
        world.run(0.5)
        fill(world, 2, 120)
        self.content = world.converged()
        for node in list(world.nodes.values()):
            node.kill()

    def cases(self, random: Random, count: int) -> list[Case]:
        """Return cases of all files of the victim."""
        stream = self.root / "jetstream/$G/streams/S"
        files = sorted(path for path in stream.rglob("*") if path.is_file())
        chosen = random.choices(files, [SHARE.get(path.name, 6) for path in files], k=count)
        return [
            Case(
                str(path.relative_to(self.root)),
                random.randrange(path.stat().st_size),
                random.choice((0, 0xFF, 1 << random.randrange(8))),
            )
            for path in chosen
        ]

    @staticmethod
    def _read(world: World) -> list[tuple[int, bytes, bytes]]:
        """Return what all nodes hold in the end: the first read of a damaged segment fails, and has it repaired."""
        for _ in range(20):
            try:
                return world.converged()
            except CorruptLog:
                world.run(1.0)
        return world.converged()

    def judge(self, case: Case, scratch: Path) -> str:
        """Return "" if a case is as it should be, else the reason why not."""
        place = scratch / "case"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.directory, place)
        apply(place / self.victim, case)
        try:
            findings = verify(place / self.victim)
        except LogError as error:
            return f"not verified: {error}"
        except Exception:
            return traceback.format_exc(limit=-5)
        damage = [each for each in findings if not each.harmless]
        if any(each.repair not in (Repair.REPLICAS, Repair.START) for each in damage):
            return f"not to be repaired by replicas: {damage}"
        if any(not str(place / self.victim / case.file).startswith(each.file) for each in damage):
            return f"another file is blamed: {damage}"
        world = World(place, "", seal_bytes=3000)
        world.create, world.membership = self.create, self.membership
        for name in NODES:
            world.start(name)
        said = world.nodes[self.victim].log.said
        try:
            world.until(lambda: all("S" in node.engine.streams for node in world.nodes.values()), 60)
            content = self._read(world)
            configs = {node.stream.store.config for node in world.nodes.values()}
        except (AssertionError, LogError) as error:
            return f"{error}: {findings} {said}"
        finally:
            for node in list(world.nodes.values()):
                node.kill()
                node.stores._cache.sweep()
        if len(configs) > 1:
            return f"the configurations differ: {findings}"
        if content != self.content:
            return f"the content differs: {findings}"
        if damage and not said and case.mask and "seg" not in case.file:
            return f"the server says nothing about {damage}"
        return ""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    return Cluster(tmp_path_factory.mktemp("cluster"))


def check(cluster: Cluster, scratch: Path, count: int) -> None:
    wrong = []
    for case in cluster.cases(Random(SEED), count):
        why = cluster.judge(case, scratch)
        if why:
            wrong.append(f"{case}: {why}")
            assert len(wrong) < 5, "\n\n".join(wrong)
    assert not wrong, "\n\n".join(wrong)


def test_a_stopped_replica_has_no_findings(cluster: Cluster) -> None:
    assert [each for each in verify(cluster.root) if not each.harmless] == []


def test_a_sample_of_damaged_bytes_of_a_replica_is_repaired_by_the_others(cluster: Cluster, tmp_path: Path) -> None:
    check(cluster, tmp_path, SAMPLE)


@pytest.mark.heavy
@pytest.mark.timeout(7200)
def test_many_damaged_bytes_of_a_replica_are_repaired_by_the_others(cluster: Cluster, tmp_path: Path) -> None:
    check(cluster, tmp_path, MANY)
