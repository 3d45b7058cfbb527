"""Tests of a standalone server: assignments, replicas and groups as on a cluster of one, without its files."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from lakestream.meta import stores as stores_module
from lakestream.meta.assignments import AssignStream, RemoveStream
from lakestream.meta.meta import SoloMeta
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.raft.group.solo import SoloGroup
from tests.unit.account.test_engines import World

pytestmark = pytest.mark.unit

OP = AssignStream("u", "A", "S", b'{"name":"S"}', ("srv",), 1)


def test_a_created_stream_is_assigned_and_held_in_a_group_of_one_without_files_of_raft(tmp_path: Path) -> None:
    world = World(tmp_path, "A")
    world.create("A")
    world.publish("A")
    node = world.engines.node
    assignment = node.find("A", "S")
    assert assignment is not None
    assert (assignment.peers, assignment.settled, assignment.moving) == (("srv",), ("srv",), False)
    replica = node.replicas.by_uid[assignment.uid]
    assert replica.leading
    assert isinstance(replica.group, SoloGroup)
    names = os.listdir(tmp_path / "jetstream/A/streams/S")
    assert not {"raft", "replica"} & set(names)
    assert not (tmp_path / "jetstream/_meta_").exists()
    world.stop()


def test_the_assignments_after_a_restart_are_what_the_store_holds(tmp_path: Path) -> None:
    world = World(tmp_path, "A", "B")
    for account in "AB":
        world.create(account)
    world.ask("A", "$JS.API.STREAM.UPDATE.S", {"name": "S", "description": "d"})
    world.ask("B", "$JS.API.STREAM.DELETE.S")
    before = world.engines.node.meta.state.by_uid
    world.stop()
    again = World(tmp_path, "A", "B")
    after = again.engines.node.meta.state.by_uid
    assert after.keys() == before.keys()
    for uid, assignment in after.items():
        assert assignment.config == before[uid].config
    again.stop()


def test_a_stream_whose_files_cannot_be_made_is_taken_back(tmp_path: Path) -> None:
    world = World(tmp_path, "A")
    (tmp_path / "jetstream/A/streams/S/log").mkdir(parents=True)
    answer = world.ask("A", "$JS.API.STREAM.CREATE.S", {"name": "S"})
    assert answer["error"]["err_code"] == 10049
    assert "cannot create the store" in answer["error"]["description"]
    assert not world.engines.node.meta.state.by_uid
    assert world.ask("A", "$JS.API.STREAM.NAMES")["streams"] is None
    assert world.ask("A", "$JS.API.STREAM.INFO.S")["error"]["err_code"] == 10059
    assert (tmp_path / "jetstream/A/streams/S/log").exists(), "these files are another's"
    world.stop()


def test_an_offline_stream_whose_files_cannot_be_removed_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, "A")
    world.create("A")
    world.publish("A")
    world.stop()
    (segment,) = (tmp_path / "jetstream/A/streams/S/log").glob("*.seg")
    segment.write_bytes(b"?" * 100)
    (tmp_path / "jetstream/A/streams/S/checkpoint").unlink()
    world = World(tmp_path, "A")
    assert list(world.engines.of("A").offline) == ["S"]

    def refused(*_: Any) -> None:
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as patched:
        patched.setattr(stores_module.root, "discard", refused)
        assert world.ask("A", "$JS.API.STREAM.DELETE.S")["error"]["err_code"] == 10050
    assert world.ask("A", "$JS.API.STREAM.NAMES")["streams"] == ["S"]
    assert world.ask("A", "$JS.API.STREAM.INFO.S")["error"]["err_code"] == 10194
    assert world.ask("A", "$JS.API.STREAM.DELETE.S")["success"]
    assert world.ask("A", "$JS.API.STREAM.NAMES")["streams"] is None
    world.stop()


def test_a_dormant_stream_is_not_assigned(tmp_path: Path) -> None:
    world = World(tmp_path, "A")
    world.create("A")
    node = world.engines.node
    world.engines.withdraw("A")
    world.settle()
    assert not node.meta.state.by_uid
    assert not node.replicas.by_uid
    world.engines.serve("A")
    world.settle()
    assert node.find("A", "S") is not None
    world.stop()


# ---------------------------------------------------------------- SoloMeta
def test_the_proposer_is_answered_once_the_node_has_acted() -> None:
    meta, told, acted = SoloMeta("srv"), list[Any](), list[Any]()
    meta.on_applied = lambda applied, then: acted.append(then)
    meta.propose(OP, told.append)
    assert told == []
    acted.pop()(None)
    assert told[0].after is meta.state.by_uid["u"]


def test_an_assignment_that_fails_is_removed_before_its_proposer_is_answered() -> None:
    meta, told = SoloMeta("srv"), list[Any]()
    failure: list[ApiError | None] = [api_error(10049, err="no"), None]
    meta.on_applied = lambda applied, then: then(failure.pop(0))
    meta.propose(OP, told.append)
    assert [error.err_code for error in told] == [10049]
    assert not meta.state.by_uid
    assert not meta.state.tombstones, "the same stream may be assigned again"


def test_a_removal_that_fails_is_taken_back() -> None:
    meta, told = SoloMeta("srv"), list[Any]()
    meta.learn(OP)
    meta.on_applied = lambda applied, then: then(api_error(10050, err="no"))
    meta.propose(RemoveStream("u"), told.append)
    assert told[0].err_code == 10050
    assert meta.state.find("A", "S") is not None


def test_nothing_is_acted_on_for_an_entry_that_does_not_fit() -> None:
    meta, told = SoloMeta("srv"), list[Any]()
    meta.on_applied = lambda applied, then: pytest.fail("there is nothing to do")
    meta.propose(RemoveStream("u"), told.append)
    assert told[0].refused
