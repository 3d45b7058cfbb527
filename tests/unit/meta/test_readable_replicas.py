"""Tests of reads from a replica: none before it has everything that clients may have read elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lakestream.meta.replica import CAUGHT_UP_LAG
from lakestream.raft.core.messages import Membership
from tests.unit.replica_world import Node, World

pytestmark = pytest.mark.unit


def told(node: Node) -> list[int]:
    """Return a list that gets the node's number of messages when it is reported to have caught up."""
    seen: list[int] = []

    def caught_up(replica: Any) -> None:
        seen.append(len(node.content()))

    node.caught_up = caught_up  # type: ignore[method-assign]
    return seen


def test_every_replica_of_a_new_stream_is_soon_read_from(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream()
    world.until(lambda: all(node.replica.readable for node in world.nodes.values()), seconds=2.5)


def test_a_replica_that_was_away_is_read_from_once_it_has_what_its_leader_has(tmp_path: Path) -> None:
    """A replica that was down answers reads only once it has caught up with its leader.

    Otherwise it would deny messages that clients have read already.
    """
    world = World(tmp_path)
    world.stream()
    world.acked("s.a", b"first")
    late = world.followers()[0]
    name = late.name
    late.kill()
    for number in range(3 * CAUGHT_UP_LAG):
        world.acked("s.a", b"%d" % number)
    world.net.split({name}, set("abc") - {name})
    late = world.start(name)
    seen = told(late)
    world.run(5)
    assert late.replica.stream is not None
    assert not late.replica.readable
    world.net.split()
    world.until(lambda: late.replica.readable)
    assert seen == [1 + 3 * CAUGHT_UP_LAG]


def test_a_replica_of_a_quiet_stream_is_read_from_after_a_restart(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream()
    world.acked("s.a", b"x")
    world.run(60)
    late = world.followers()[0]
    name = late.name
    late.kill()
    world.run(60)
    late = world.start(name)
    world.until(lambda: late.replica.readable, seconds=10)
    assert len(late.content()) == 1


def test_a_new_replica_is_not_read_from_while_it_is_empty(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream("a")
    for number in range(20):
        world.acked("s.a", b"%d" % number)
    leader, new = world.leader(), world.nodes["b"]
    world.hold("b", Membership(("a",), ("b",)))
    seen = told(new)
    world.run(1)
    assert not new.replica.readable
    assert leader.replica.group is not None
    leader.replica.group.propose_membership(Membership(("a",), ("b",)), lambda ok: None)
    world.until(lambda: new.replica.readable)
    assert seen == [20]


def test_what_was_read_from_once_stays_so_when_it_lags(tmp_path: Path) -> None:
    """A replica that has caught up once stays readable when it lags, as in nats-server."""
    world = World(tmp_path)
    world.stream()
    world.acked("s.a", b"x")
    world.until(lambda: all(node.replica.readable for node in world.nodes.values()))
    late = world.followers()[0]
    world.net.split({late.name}, set("abc") - {late.name})
    world.run(30)
    assert late.replica.readable
    assert len(late.content()) == 1
