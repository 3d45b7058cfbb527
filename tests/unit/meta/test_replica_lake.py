"""Tests of replicated streams with one lake: staging, releases, and the parts that a new replica needs from others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lakestream.lake.storage import lake as lakes
from lakestream.lake.storage import paths
from lakestream.raft.core.messages import Membership
from tests.unit.replica_world import Node, World, change, fill

pytestmark = pytest.mark.unit


def lake_world(tmp_path: Path, nodes: str = "abc") -> World:
    lakes.require(str(tmp_path / "lake"), create=True)
    return World(tmp_path, nodes, lake=str(tmp_path / "lake"), seal_bytes=20_000, retain_bytes=1)


def staged(world: World) -> list[str]:
    """Return the names of the staged segments."""
    directory = Path(paths.staging(world.lake, "S", "u1", "$G"))
    return sorted(each.name for each in directory.glob("*.seg")) if directory.exists() else []


def held(world: World, version: int, index: int) -> None:
    """Commit as the compactor does: the table holds the stream through this entry."""
    log = Path(paths.table(world.lake, "S", "$G")) / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    lines: list[dict[str, object]] = [
        {"commitInfo": {"operation": "WRITE"}},
        {"txn": {"appId": "lakestream:u1", "version": index}},
        {"metaData": {"id": "t"}},
    ]
    (log / f"{version:020d}.json").write_text("\n".join(json.dumps(line, separators=(",", ":")) for line in lines))


def sealed_through(node: Node) -> int:
    return node.stream.store.sealed_through[0]


def test_only_the_leader_stages_and_followers_let_go_of_what_the_lake_holds(tmp_path: Path) -> None:
    world = lake_world(tmp_path)
    world.stream()
    for _ in range(8):
        fill(world, 20)
        world.run(0.1)
    world.run(15)  # the rest is sealed by seal_age
    world.converged()
    leader = world.leader()
    through = sealed_through(leader)
    assert [sealed_through(node) for node in world.nodes.values()] == [through] * 3
    names = staged(world)
    assert int(names[-1].split("-")[1].removesuffix(".seg")) == through
    for node in world.nodes.values():
        assert node.stream.store.left_through == 0
        assert node.keeper.troubles() == {}
    held(world, 0, through)
    world.until(lambda: all(node.stream.store.left_through > through // 2 for node in world.nodes.values()), 60)
    assert [node.stream.store.msgs for node in world.nodes.values()] == [160] * 3
    assert all(node.keeper.troubles() == {} for node in world.nodes.values())


def test_a_new_leader_stages_what_is_staged_already_without_harm(tmp_path: Path) -> None:
    world = lake_world(tmp_path)
    world.stream()
    for _ in range(4):
        fill(world, 20)
        world.run(0.1)
    world.run(2)
    before = staged(world)
    assert before
    old = world.leader()
    old.replica.transfer()
    world.until(lambda: not old.stream.leading)
    new = world.leader()
    for _ in range(4):
        fill(world, 20)
        world.run(0.1)
    world.run(2)
    assert staged(world)[: len(before)] == before
    assert len(staged(world)) > len(before)
    assert new.keeper.troubles() == {}
    assert new.keeper.troubles() == old.keeper.troubles()


def test_a_new_replica_reads_the_lake_instead_of_having_everything_sent(tmp_path: Path) -> None:
    world = lake_world(tmp_path, "abcd")
    world.stream("abc")
    for _ in range(20):
        fill(world, 20)
        world.run(0.1)
    world.run(15)
    through = sealed_through(world.leader())
    held(world, 0, through)
    world.until(lambda: world.leader().stream.store.left_through > 0, 60)
    world.leader().stream.store.drop_through(through)
    world.run(2)
    world.hold("d", Membership(tuple("abc")))
    change(world, "abc", "d")
    node, leader = world.nodes["d"], world.leader()
    world.until(lambda: "S" in node.engine.streams and node.stream.store.last_seq == 400)
    store = node.stream.store
    assert (store.msgs, store.first_seq, store.bytes) == (400, 1, leader.stream.store.bytes)
    assert [store.subject_of(seq) for seq in range(1, 6)] == [b"s.0", b"s.1", b"s.2", b"s.3", b"s.4"]
    assert node.replicas.site.bytes_fetched < 50_000 < leader.stream.store.bytes // 8
    change(world, "abcd")
    assert world.acked("s.z")["seq"] == 401
