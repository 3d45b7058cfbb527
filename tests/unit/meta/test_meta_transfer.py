"""Tests of the compaction of the meta log, and of the transfer of its state to nodes that need released entries."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakestream.log.store.segment_log import SegmentLog
from lakestream.meta.assignments import Applied, RemoveStream
from lakestream.meta.meta_group import KEEP_SEGMENTS
from lakestream.meta.meta_transfer import INCOMING, OUTGOING
from lakestream.protocol.api.errors import ApiError
from lakestream.raft.group.hard_state import NAME as RAFT
from tests.unit.meta_world import Server, World

pytestmark = pytest.mark.unit

SEAL_BYTES = 512
MANY = 60
"""Number of streams whose assignments fill more segments than are kept."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, "a", "b", "c", "d", seal_bytes=SEAL_BYTES)
    world.net.down = {"a", "b", "c", "d"}
    world.start("a", "b", "c")
    world.until(lambda: world.elected() and all(each.meta.caught_up for each in world.servers.values()), "a leader")
    yield world
    for server in world.servers.values():
        server.end()


def _log(server: Server) -> SegmentLog:
    assert server.meta.store is not None
    log = server.meta.store.log
    assert isinstance(log, SegmentLog)
    return log


def _remove(world: World, *names: str) -> None:
    for name in names:
        outcomes: list[Applied | ApiError] = []
        world.leader.meta.propose(RemoveStream(f"u-{name}"), outcomes.append)
        world.until(lambda outcomes=outcomes: outcomes, f"{name} is removed")  # type: ignore[misc]


def _fill(world: World, first: int = 0) -> list[str]:
    names = [f"S{number}" for number in range(first, first + MANY)]
    for name in names:
        assert isinstance(world.assign(name, "a", "b", "c"), Applied)
    return names


def _same(world: World) -> bool:
    return len({server.meta.state.dump() for server in world.servers.values()}) == 1


def test_the_log_keeps_few_segments_and_a_restart_has_everything(world: World) -> None:
    names = _fill(world)
    world.until(lambda: all(_log(server).first_index > 1 for server in world.servers.values()), "the oldest has left")

    def held() -> int:
        return max(len(_log(server).segments) for server in world.servers.values())

    world.until(lambda: held() <= 2 * KEEP_SEGMENTS + 1, "few are left, also where many were applied at once")
    for name in "abc":
        world.end(name, gracefully=name != "b")
    world.start("a", "b", "c")
    world.until(lambda: world.elected() and _same(world), "all start again")
    assert world.leader.streams == sorted(names)


def test_a_new_node_gets_the_state_when_the_entries_are_gone(world: World) -> None:
    names = _fill(world)
    world.start("d")
    world.until(lambda: "d" in world.voters() and _same(world), "d is a voter")
    new = world.servers["d"]
    assert new.streams == sorted(names)
    assert {each.after.name for each in new.applied if each.after is not None} == set(names)
    assert any("state as of entry" in line for line in new.log.lines)
    names.append("later")
    world.assign("later", "a", "b", "c")
    world.until(lambda: new.streams == sorted(names), "d follows the log from there")
    world.end("d", gracefully=False)
    world.start("d")
    world.until(lambda: world.servers["d"].streams == sorted(names), "d starts again from what it was given")


def test_a_restarted_node_gets_the_changes_in_its_absence(world: World) -> None:
    _fill(world)
    world.until(lambda: _same(world), "all have it")
    away = next(name for name, server in world.servers.items() if not server.meta.leading)
    world.net.cut(away)
    before = len(world.servers[away].applied)
    _remove(world, "S1", "S2")
    _fill(world, first=MANY)
    world.net.heal(away)
    world.until(lambda: _same(world), f"{away} has the state")
    told = world.servers[away].applied[before:]
    gone = [each.before.name for each in told if each.after is None and each.before is not None]
    assert sorted(gone) == ["S1", "S2"]
    assert world.servers[away].meta.state.removed("u-S1")
    fresh = {each.after.name for each in told if each.after is not None and each.before is None}
    assert fresh == {f"S{number}" for number in range(MANY, 2 * MANY)}
    assert world.assign("after") is not None
    world.until(lambda: _same(world), "all have what came after")


def test_what_a_node_lost_is_known_after_it_got_the_state(world: World) -> None:
    _fill(world)
    away = next(name for name, server in world.servers.items() if not server.meta.leading)
    world.end(away)
    for path in (world.directory / away).rglob("*"):
        if path.is_file():
            path.unlink()
    world.start(away)
    world.until(lambda: _same(world) and world.servers[away].meta.caught_up, f"{away} has the state")
    lost = world.servers[away].meta.lost_through
    assert lost > MANY
    world.end(away)
    world.start(away)
    assert world.servers[away].meta.lost_through == lost


@pytest.mark.parametrize("killed", ["before", "between", "after"])
def test_a_kill_while_a_state_is_put_in_place_leaves_one_of_the_two(world: World, killed: str) -> None:
    names = _fill(world)
    away = next(name for name, server in world.servers.items() if not server.meta.leading)
    world.until(lambda: _same(world), "all have it")
    world.end(away, gracefully=False)
    directory = world.directory / away / "_meta_"
    incoming, outgoing = Path(f"{directory}{INCOMING}"), Path(f"{directory}{OUTGOING}")
    if killed == "before":  # incomplete
        incoming.mkdir()
        (incoming / "checkpoint").write_bytes(b"half")
    elif killed == "between":
        directory.rename(outgoing)
        # The new state is a copy of the old one here: the test is about which of the two is found.
        shutil.copytree(outgoing, incoming)
        assert (incoming / RAFT).exists()
    else:
        outgoing.mkdir()
        (outgoing / "checkpoint").write_bytes(b"old")
    world.start(away)
    world.until(lambda: world.servers[away].streams == sorted(names), "it is there again")
    assert not incoming.exists()
    assert not outgoing.exists()
