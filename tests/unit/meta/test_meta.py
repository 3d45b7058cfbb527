"""Tests of the meta group on several nodes: membership, applied state, and starts."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from lakestream.log.format.segment import LOG_DIRECTORY
from lakestream.meta.assignments import Applied, AssignStream, RemoveStream
from lakestream.meta.meta_join import JoinAnswer
from lakestream.protocol.api.errors import ApiError
from lakestream.raft.core.messages import Membership
from tests.unit.meta_world import STEP_NS, World

pytestmark = pytest.mark.unit


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, "a", "b", "c", "d")
    world.net.down = {"a", "b", "c", "d"}
    world.start("a", "b", "c")
    world.until(lambda: world.elected() and all(each.meta.caught_up for each in world.servers.values()), "a leader")
    yield world
    for server in world.servers.values():
        server.end()


def _everywhere(world: World, *streams: str) -> Callable[[], bool]:
    return lambda: all(server.streams == sorted(streams) for server in world.servers.values())


def test_a_cluster_begins_with_all_that_are_there(world: World) -> None:
    assert world.voters() == ("a", "b", "c")
    assert all(world.net.nodes[name].node.clustered for name in "abc")


def test_the_leaders_entries_are_applied_and_reported_on_every_node(world: World) -> None:
    outcome = world.assign("S")
    assert isinstance(outcome, Applied)
    assert outcome.after is not None
    world.until(_everywhere(world, "S"), "S everywhere")
    assert len({server.meta.state.dump() for server in world.servers.values()}) == 1
    assert all(server.applied[-1].after == outcome.after for server in world.servers.values())


def test_a_follower_logs_nothing(world: World) -> None:
    follower = next(server for server in world.servers.values() if not server.meta.leading)
    outcomes: list[Applied | ApiError] = []
    follower.meta.propose(RemoveStream("u"), outcomes.append)
    assert isinstance(outcomes[0], ApiError)
    assert outcomes[0].err_code == 10008


def test_without_a_majority_nothing_is_applied(world: World) -> None:
    leader = world.leader
    for name in "abc":
        if name != leader.name:
            world.end(name, gracefully=False)
    outcomes: list[Applied | ApiError] = []
    leader.meta.propose(AssignStream("u", "$G", "S", b"{}", ("a",), 1), outcomes.append)
    world.until(lambda: outcomes and not leader.meta.leading, "it gives up")
    assert isinstance(outcomes[0], ApiError)
    assert not leader.streams


def test_a_node_that_comes_later_becomes_a_voter_and_gets_everything(world: World) -> None:
    world.assign("S")
    world.start("d")
    world.until(lambda: world.elected() and world.voters() == ("a", "b", "c", "d"), "d votes")
    world.until(
        lambda: _everywhere(world, "S")() and world.servers["d"].caught_up, "S everywhere, and d knows that it is"
    )
    assert world.servers["d"].caught_up == 1


def test_a_node_that_was_away_has_caught_up_only_once_it_has_what_it_missed(world: World) -> None:
    world.assign("S")
    world.until(_everywhere(world, "S"), "S everywhere")
    away = next(name for name in "abc" if name != world.leader.name)
    world.end(away)
    world.assign("T")
    world.start(away)
    back = world.servers[away]
    assert back.streams == ["S"]
    assert not back.meta.caught_up
    world.until(lambda: back.meta.caught_up, "it catches up")
    assert back.streams == ["S", "T"]


def test_all_nodes_start_again_from_what_they_have(world: World) -> None:
    world.assign("S")
    for name in "abc":
        world.end(name, gracefully=name != "a")
    world.start("a", "b", "c")
    world.until(lambda: world.elected() and _everywhere(world, "S")(), "S everywhere")
    assert isinstance(world.assign("T"), Applied)


def test_a_node_that_lost_its_files_is_a_member_again_and_knows_what_it_may_have_held(world: World) -> None:
    world.assign("S")
    lost = next(name for name in "abc" if name != world.leader.name)
    world.end(lost, gracefully=False)
    shutil.rmtree(world.directory / lost)
    world.start(lost)
    back = world.servers[lost]
    world.until(lambda: back.meta.caught_up and back.streams == ["S"], "everything is back")
    assert back.meta.state.by_uid["u-S"].index <= back.meta.lost_through
    world.assign("T")
    world.until(_everywhere(world, "S", "T"), "T everywhere")
    assert back.meta.state.by_uid["u-T"].index > back.meta.lost_through


def test_what_a_node_that_lost_its_files_may_have_held_is_known_after_its_next_restart_too(world: World) -> None:
    """After a node lost its files, the list of streams that it may have held also survives a second restart.

    Not all of its replicas may be created by then.
    """
    world.assign("S")
    lost = next(name for name in "abc" if name != world.leader.name)
    world.end(lost, gracefully=False)
    shutil.rmtree(world.directory / lost)
    world.start(lost)
    world.until(lambda: world.servers[lost].meta.caught_up, "everything is back")
    world.end(lost, gracefully=False)
    world.start(lost)
    back = world.servers[lost]
    world.until(lambda: back.meta.caught_up, "it catches up")
    assert back.meta.state.by_uid["u-S"].index <= back.meta.lost_through


def test_a_node_that_lost_its_files_believes_only_a_leader_how_much_there_was(world: World) -> None:
    world.assign("S")
    world.until(_everywhere(world, "S"), "S everywhere")
    leader = world.leader.name
    lost, other = (name for name in "abc" if name != leader)
    # The other follower lacks the newest entry, which the lost one had.
    world.net.cut(other)
    world.assign("T")
    world.until(lambda: world.servers[lost].streams == ["S", "T"], "T at the one that is lost")
    for name in (lost, leader):
        world.end(name, gracefully=False)
    shutil.rmtree(world.directory / lost)
    world.net.heal(other)
    world.start(lost)
    back = world.servers[lost]
    for _ in range(20):
        world.run()
        world.net.clock.advance(STEP_NS)
    assert back.meta.group is None
    world.start(leader)
    world.until(lambda: back.meta.caught_up and back.streams == ["S", "T"], "everything is back")
    assert back.meta.state.by_uid["u-T"].index <= back.meta.lost_through


def test_a_leader_that_is_cut_off_reports_no_commit_index(world: World) -> None:
    # A returning node would take it for complete, and remove or create replicas by outdated assignments.
    leader, told = world.leader, list[JoinAnswer]()
    world.net.cut(leader.name)
    assert leader.meta.leading
    leader.join._status_asked("d", b"", lambda body: told.append(msgspec.msgpack.decode(body, type=JoinAnswer)))
    assert not told
    world.until(lambda: told, "it gives up")
    assert not told[0].leads
    world.net.heal(leader.name)


def test_a_node_that_lost_its_files_reports_no_commit_index(world: World) -> None:
    world.assign("S")
    lost = next(name for name in "abc" if name != world.leader.name)
    world.end(lost, gracefully=False)
    shutil.rmtree(world.directory / lost)
    world.start(lost)
    back = world.servers[lost]
    world.until(lambda: back.meta.group is not None, "it takes part")
    assert back.meta.group is not None
    assert back.meta.group.recovering
    told: list[bytes] = []
    back.join._join_asked("d", b"", told.append)
    assert msgspec.msgpack.decode(told[0], type=JoinAnswer).membership == Membership(())


def test_a_damaged_log_is_mended_by_the_others(world: World) -> None:
    for number in range(20):
        world.assign(f"S{number}")
    hurt = next(name for name in "abc" if name != world.leader.name)
    world.end(hurt, gracefully=False)
    segment = next((world.directory / hurt / "_meta_" / LOG_DIRECTORY).glob("*.seg"))
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 0xFF
    segment.write_bytes(content)
    world.start(hurt)
    back = world.servers[hurt]
    world.until(lambda: back.meta.caught_up and len(back.streams) == 20, "everything is back")
    assert back.meta.state.dump() == world.leader.meta.state.dump()
    assert any("damaged" in line for line in back.log.lines)


def test_a_node_that_was_removed_stays_out_until_it_is_started_anew(world: World) -> None:
    world.assign("S")
    gone = next(name for name in "abc" if name != world.leader.name)
    rest = tuple(name for name in "abc" if name != gone)
    told: list[str] = []
    world.leader.meta.change_membership(Membership(rest), told.append)
    world.until(lambda: told, "it is removed")
    assert told == [""]
    removed, heard = world.servers[gone], list[str]()
    removed.join.on_removed = lambda: heard.append(gone)
    world.until(lambda: removed.join.removed, "it hears of it")
    assert heard == [gone]
    assert world.voters() == rest
    world.end(gone)
    world.start(gone)
    world.until(lambda: world.elected() and world.voters() == ("a", "b", "c"), "it is a member again")
    world.until(_everywhere(world, "S"), "S everywhere")
