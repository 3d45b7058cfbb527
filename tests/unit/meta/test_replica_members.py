"""Tests of added and removed members of a replicated stream, and of the snapshots that new ones fetch."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakestream.raft.core.messages import Membership
from tests.unit.replica_world import World, change, fill, let_go

pytestmark = pytest.mark.unit


def test_a_stream_gets_another_replica_while_it_is_written_to(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream("a")
    for number in range(20):
        world.acked("s.a", b"%d" % number)
    for name in "bc":
        world.hold(name, Membership(("a",)))
        voters = "".join(sorted(world.leader().replica.membership.voters))
        change(world, voters, name)
        world.acked("s.b", name.encode())
        change(world, "".join(sorted(voters + name)))
    assert len(world.converged()) == 22
    world.leader().kill()
    assert world.acked("s.c")["seq"] == 23


def test_a_replica_that_left_is_not_missed(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream()
    world.acked("s.a")
    leader = world.leader()
    gone = world.followers()[0].name
    change(world, "".join(sorted(set("abc") - {gone})))
    done: list[object] = []
    world.nodes[gone].replicas.drop("u1", done.append)
    world.until(lambda: done)
    del world.nodes[gone]
    assert world.acked("s.a")["seq"] == 2
    assert world.leader() is leader


def test_a_replica_that_lacks_what_has_left_the_log_gets_the_state(tmp_path: Path) -> None:
    world = World(tmp_path, seal_bytes=20_000, retain_bytes=1)
    world.stream()
    world.consumer("c")
    away = world.followers()[0].name
    world.nodes[away].kill()
    for _ in range(10):
        fill(world, 20)
        world.run(0.1)
    world.pull("c", 3)
    world.run(1)
    let_go(world)
    node = world.start(away)
    leader = world.leader()
    world.until(lambda: ("reopened", "S") in node.events)
    world.until(lambda: node.stream.store.applied == leader.stream.group.last_index)
    for one in (node, leader):
        store = one.stream.store
        assert (store.msgs, store.first_seq, store.last_seq) == (200, 1, 200)
        assert [store.subject_of(seq) for seq in range(1, 6)] == [b"s.0", b"s.1", b"s.2", b"s.3", b"s.4"]
        assert one.records() == leader.records()
        assert sorted(one.stream.consumers["c"].ledger.pending) == [1, 2, 3]
    assert node.replicas.site.bytes_fetched > 10_000
    # It is a full member, also as the leader and after a restart.
    leader.replica.transfer(away)
    world.until(lambda: node.replica.leading)
    assert world.acked("s.z")["seq"] == 201
    node.stop()
    world.start(away)
    world.until(lambda: "S" in world.nodes[away].engine.streams)
    world.run(1)
    assert world.acked("s.z")["seq"] == 202
    world.until(lambda: {node.stream.store.last_seq for node in world.nodes.values()} == {202})


def test_a_new_replica_gets_the_state_and_then_the_rest(tmp_path: Path) -> None:
    world = World(tmp_path, "abcd", seal_bytes=20_000, retain_bytes=1)
    world.stream("abc")
    for _ in range(5):
        fill(world, 20)
        world.run(0.1)
    let_go(world)
    world.hold("d", Membership(tuple("abc")))
    change(world, "abc", "d")
    fill(world, 20)
    node = world.nodes["d"]
    world.until(lambda: "S" in node.engine.streams and node.stream.store.last_seq == 120)
    change(world, "abcd")
    assert node.records() == world.leader().records()
    assert [record.seq for record in node.records()][-1] == 120


def test_a_state_that_is_not_whole_yet_is_fetched_anew_after_a_kill(tmp_path: Path) -> None:
    world = World(tmp_path, seal_bytes=20_000, retain_bytes=1)
    world.stream()
    away = world.followers()[0].name
    world.nodes[away].kill()
    for _ in range(5):
        fill(world, 20)
        world.run(0.1)
    let_go(world)
    node = world.start(away)
    directory = Path(node.replica.directory)
    incoming = directory.with_name(directory.name + ".incoming")
    world.until(lambda: incoming.exists() or ("reopened", "S") in node.events)
    node.kill()
    node = world.start(away)
    world.until(lambda: "S" in node.engine.streams and node.stream.store.last_seq == 100)
    assert not incoming.exists()
