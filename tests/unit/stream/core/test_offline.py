"""Tests of streams written by a newer release: not served, nothing lost, and deletable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from lakestream.config.options import JetStreamOptions, LakeOptions
from lakestream.lake.staging import scan, staging
from lakestream.lake.storage import lake as lakes
from lakestream.log.format.files import Io
from lakestream.log.format.frame import Kind
from lakestream.logging import Logger
from lakestream.meta.stores import FileStores
from lakestream.raft.group.group import Proposal
from lakestream.server.jetstream import open_stores
from lakestream.server.lake.keeper import LakeKeeper
from lakestream.stream.core.operations import CreateConsumer, Operation, UpdateStream, encode
from tests.unit.api_world import ApiWorld
from tests.unit.replica_world import World

pytestmark = pytest.mark.unit

LEVEL = "unsupported - required API level: 9, current API level: 5"
FIELD = 'decoding error: json: unknown field "colour"'


def stores(directory: Path) -> Callable[[Io], FileStores]:
    options = JetStreamOptions(store_dir=str(directory), max_memory=-1, max_file=-1)
    return lambda io: open_stores(options, LakeOptions(), io)


def newer(directory: Path, change: Callable[[dict[str, object]], None], *, checkpoint: bool = False) -> None:
    """Create streams S and T; then change the configuration of S as a newer release would."""
    world = ApiWorld(stores=stores(directory))
    for name in ("S", "T"):
        world.create(name, subjects=[f"{name}.>"])
        world.publish(f"{name}.1", b"kept")
    config = msgspec.json.decode(msgspec.json.encode(world.stream("S").config))
    change(config)
    _log(world, UpdateStream(msgspec.json.encode(config)))
    _end(world, checkpoint)


def _log(world: ApiWorld, operation: Operation) -> None:
    """Add an entry to the log of S that this release does not know."""
    stream = world.stream("S")
    stream.group.propose([Proposal(Kind.OPERATION, encode(operation), 0, lambda: None)])
    world.settle()


def _end(world: ApiWorld, checkpoint: bool) -> None:
    if checkpoint:
        world.engine.node.close()
    else:
        for stream in world.engine.streams.values():
            stream.store.abandon()
    world.engine.shared.stores.close()  # type: ignore[attr-defined]


def started(directory: Path) -> ApiWorld:
    world = ApiWorld(stores=stores(directory))
    world.engines.recover()
    world.settle()
    return world


def _level(config: dict[str, object]) -> None:
    config["metadata"] = {"_nats.req.level": "9"}


def _field(config: dict[str, object]) -> None:
    config["colour"] = "red"


@pytest.mark.parametrize(("change", "reason"), [(_level, LEVEL), (_field, FIELD)])
def test_it_is_listed_with_the_reason_and_answers_with_it(
    tmp_path: Path, change: Callable[[dict[str, object]], None], reason: str
) -> None:
    newer(tmp_path, change)
    world = started(tmp_path)
    listed = world.ask("STREAM.LIST")
    assert [each["config"]["name"] for each in listed["streams"]] == ["T"]
    assert (listed["total"], listed["missing"], listed["offline"]) == (2, ["S"], {"S": reason})
    assert world.ask("STREAM.NAMES")["streams"] == ["S", "T"]
    assert world.ask("INFO")["streams"] == 2
    expected = (500, 10194, f"stream is offline: {reason}")
    assert world.error("STREAM.INFO.S") == expected
    assert world.error("STREAM.UPDATE.S", {"name": "S", "subjects": ["S.>"]}) == expected
    assert world.error("STREAM.CREATE.S", {"name": "S", "subjects": ["S.>"]}) == expected
    reply = world.send("S.1", b"x")
    assert world.answers(reply) == [(b"503", b"")], "nobody listens"
    assert world.ask("STREAM.INFO.T")["state"]["messages"] == 1


def test_its_subjects_stay_taken(tmp_path: Path) -> None:
    newer(tmp_path, _level)
    world = started(tmp_path)
    assert world.error("STREAM.CREATE.X", {"name": "X", "subjects": ["S.a"]})[1] == 10065
    assert world.ask("STREAM.NAMES", {"subject": "S.a"})["streams"] == ["S"]


def test_it_can_be_deleted_and_its_name_used_again(tmp_path: Path) -> None:
    newer(tmp_path, _level)
    world = started(tmp_path)
    assert world.ask("STREAM.DELETE.S")["success"]
    assert not (tmp_path / "jetstream" / "$G" / "streams" / "S").exists()
    assert world.ask("STREAM.NAMES")["streams"] == ["T"]
    world.create("S", subjects=["S.>"])
    assert world.publish("S.1")["seq"] == 1


def test_nothing_of_it_is_lost_for_the_newer_release(tmp_path: Path) -> None:
    newer(tmp_path, _level)
    directory = tmp_path / "jetstream" / "$G" / "streams" / "S"
    before = {path.name: path.read_bytes() for path in directory.rglob("*.seg")}
    world = started(tmp_path)
    _end(world, checkpoint=True)
    after = {path.name: path.read_bytes() for path in directory.rglob("*.seg")}
    assert before == after
    assert started(tmp_path).engine.offline == {"S": LEVEL}


def test_a_consumer_of_a_newer_release_stops_its_stream(tmp_path: Path) -> None:
    world = ApiWorld(stores=stores(tmp_path))
    world.create("S")
    config = {"name": "c", "metadata": {"_nats.req.level": "9"}}
    _log(world, CreateConsumer("c", msgspec.json.encode(config), 0, 1))
    _end(world, checkpoint=False)
    world = started(tmp_path)
    expected = 'stream is offline: stopped - unsupported consumer "c"'
    assert world.error("STREAM.INFO.S") == (500, 10194, expected)


def test_levels_that_this_release_has_are_served(tmp_path: Path) -> None:
    world = ApiWorld(stores=stores(tmp_path))
    world.create("S", allow_msg_ttl=True)
    assert world.stream("S").config.metadata == {"_nats.req.level": "1"}
    _end(world, checkpoint=True)
    assert not started(tmp_path).engine.offline


def test_a_replica_that_needs_a_newer_release_keeps_its_files_and_says_so(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream()
    for number in range(3):
        world.acked("s.a", b"%d" % number)
    leader, followers = world.leader(), world.followers()
    config = msgspec.json.decode(msgspec.json.encode(leader.stream.config)) | {"metadata": {"_nats.req.level": "9"}}
    operation = encode(UpdateStream(msgspec.json.encode(config)))
    # The leader runs the newer release and knows its own entries.
    leader.stream.group.propose([Proposal(Kind.OPERATION, operation, 0, lambda: None)])
    world.until(lambda: all(node.engine.offline for node in followers))
    assert all(node.engine.offline == {"S": LEVEL} and not node.engine.streams for node in followers)
    name = followers[0].name
    files = {path.name: path.stat().st_size for path in (tmp_path / name).rglob("*.seg")}
    followers[0].kill()
    again = world.start(name)
    world.until(lambda: again.engine.offline)
    assert again.engine.offline == {"S": LEVEL}
    assert "S" not in again.engine.streams
    assert {path.name: path.stat().st_size for path in (tmp_path / name).rglob("*.seg")} == files


def test_the_lake_hears_of_a_stream_that_was_deleted_while_it_was_offline(tmp_path: Path) -> None:
    newer(tmp_path / "store", _level)
    world = started(tmp_path / "store")
    lake = str(tmp_path / "lake")
    lakes.require(lake, create=True)
    world.engines.shared.lake = LakeKeeper(lake, LakeOptions(), world.clock, world.io, Logger())  # type: ignore[arg-type]
    assert world.ask("STREAM.DELETE.S")["success"]
    world.settle()
    living, gone = staging.current(scan.Scanner(lake).scan())
    assert not living
    assert [(stream.identity.name, stream.identity.account) for stream in gone] == [("S", "$G")]
