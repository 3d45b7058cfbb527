"""Tests of the clone requests of mirrors: which mirrors send one, for which origins, and its content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from lakestream.lake.staging import clone_request, staging
from lakestream.lake.staging.staging import StreamIdentity
from lakestream.lake.storage import lake as lakes
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.logging import Logger
from lakestream.protocol.api.errors import ApiError
from lakestream.server.lake.clones import LakeClones, _Flushed
from lakestream.stream.core.config import StreamConfig, StreamSource, SubjectTransformConfig
from lakestream.stream.mirroring.clone import can_begin_as_clone, moment, why_not
from lakestream.stream.mirroring.mirror import Mirror
from tests.unit.account.test_engines import World
from tests.unit.api_world import ApiWorld

pytestmark = pytest.mark.unit

SOURCE = StreamSource(name="O")
UID = "0123456789abcdef"


def mirror(**fields: Any) -> StreamConfig:
    return StreamConfig(**{"name": "M", "mirror": SOURCE, "max_msgs": -1, "max_bytes": -1, **fields})


def identity(config: StreamConfig, uid: str) -> StreamIdentity:
    return StreamIdentity(config.name, "$G", uid, 5, msgspec.Raw(msgspec.json.encode(config)))


def clones(root: Path) -> LakeClones:
    """Return the part that talks to the lake, without a thread or event loop."""
    return LakeClones(str(root), None, None, Logger(), lambda stream: None)  # type: ignore[arg-type]


def introduced(root: Path, config: StreamConfig, uid: str = UID) -> StreamIdentity:
    """Register a stream with the lake; return its identity."""
    found = identity(config, uid)
    lakes.require(str(root), create=True)
    directory = paths.staging(str(root), config.name, uid, "$G")
    staging.introduce(open_storage(str(root)), directory, found)
    return found


@pytest.mark.parametrize(
    "fields",
    [
        {"storage": "memory"},
        {"retention": "interest"},
        {"discard": "new"},
        {"allow_msg_ttl": True},
        {"sealed": True},
        {"mirror": None},
        {"mirror": StreamSource(name="O", opt_start_seq=2)},
        {"mirror": StreamSource(name="O", opt_start_time="2026-01-01T00:00:00Z")},
    ],
)
def test_only_plain_mirrors_begin_as_copies(fields: dict[str, Any]) -> None:
    assert can_begin_as_clone(mirror())
    assert not can_begin_as_clone(mirror(**fields))


@pytest.mark.parametrize(
    ("origin", "copy", "fits"),
    [
        ({}, {}, True),
        ({"max_msgs": 10}, {"max_msgs": 10}, True),
        ({"max_msgs": 11}, {"max_msgs": 10}, False),
        ({"max_msgs": -1}, {"max_msgs": 10}, False),
        ({"max_msgs_per_subject": 1}, {"max_msgs_per_subject": 5}, True),
        ({"retention": "workqueue"}, {}, False),
        ({"retention": "interest"}, {}, False),
        ({"sources": [StreamSource(name="X")]}, {}, False),
    ],
)
def test_limits_and_kinds_of_origins_that_a_copy_can_be_of(
    origin: dict[str, Any], copy: dict[str, Any], fits: bool
) -> None:
    assert (why_not(StreamConfig(name="O", **origin), mirror(**copy)) == "") is fits


def test_subjects_that_a_mirror_renames_do_not_count_for_a_limit_by_subject() -> None:
    renaming = StreamSource(name="O", subject_transforms=[SubjectTransformConfig(src="a.*", dest="b")])
    limits = {"max_msgs_per_subject": 1}
    assert why_not(StreamConfig(name="O", **limits), mirror(mirror=renaming, **limits))  # type: ignore[arg-type]


def test_a_request_reaches_what_was_removed_by_then(tmp_path: Path) -> None:
    """A request requires the origin's table to include the flush, which has staged all earlier removals."""
    introduced(tmp_path, StreamConfig(name="O", subjects=["o"]))
    config = mirror(metadata={"lakestream.clone": "always"})
    asking = identity(config, "aa")
    found = clones(tmp_path).ask(asking, SOURCE, _Flushed(UID, 77))
    assert (found.never, found.answer) == (None, None)
    asked = clone_request.asked_of(open_storage(str(tmp_path)), paths.staging(str(tmp_path), "M", "aa", "$G"))
    assert asked is not None
    assert (asked.origin, asked.origin_uid, asked.through, asked.index, asked.selections) == ("O", UID, 77, 1, [])


def test_a_work_queue_is_read_message_by_message(tmp_path: Path) -> None:
    """A work queue is copied message by message, otherwise the mirrored messages would stay in it for ever."""
    introduced(tmp_path, StreamConfig(name="O", subjects=["o"], retention="workqueue"))
    asking = identity(mirror(metadata={"lakestream.clone": "always"}), "aa")
    assert clones(tmp_path).ask(asking, SOURCE, _Flushed(UID, 7)).never is not None
    assert not clone_request.has_request(str(tmp_path), asking)


def test_a_forged_answer_cannot_make_it_a_clone_of_another_stream(tmp_path: Path) -> None:
    """A forged answer to a flush cannot make a mirror a clone of another stream."""
    introduced(tmp_path, StreamConfig(name="SECRET", subjects=["s"]))
    asking = identity(mirror(metadata={"lakestream.clone": "always"}), "aa")
    for uid in (f"../SECRET/{UID}", UID):
        assert clones(tmp_path).ask(asking, SOURCE, _Flushed(uid, 7)).never is not None
    assert not clone_request.has_request(str(tmp_path), asking)


def test_a_small_origin_is_not_cloned_unless_configured(tmp_path: Path) -> None:
    introduced(tmp_path, StreamConfig(name="O", subjects=["o"]))
    assert clones(tmp_path).known(identity(mirror(), "aa"), SOURCE).never == ""
    always = identity(mirror(metadata={"lakestream.clone": "always"}), "aa")
    found = clones(tmp_path).known(always, SOURCE)
    assert (found.never, found.asked) == (None, False)


def test_the_moment_of_a_mirror_can_not_be_changed() -> None:
    world = ApiWorld()
    world.create("O", subjects=["o"])
    world.create("M", mirror={"name": "O"})
    refused = world.ask(
        "STREAM.UPDATE.M", {"name": "M", "mirror": {"name": "O"}, "metadata": {"lakestream.clone_as_of": "5"}}
    )
    assert refused["error"]["err_code"] == 10052
    assert moment(world.stream("M").config) == ""


def test_without_a_lake_a_mirror_as_of_a_time_reports_that_and_copies_nothing() -> None:
    world = ApiWorld()
    world.create("O", subjects=["o"])
    world.publish("o", b"1")
    world.create("M", mirror={"name": "O"}, metadata={"lakestream.clone_as_of": "1"})
    error = world.ask("STREAM.INFO.M")["mirror"]["error"]
    assert "lake" in error["description"]
    assert isinstance(world.stream("M").mirroring._running[0].session.error, ApiError)


def test_a_mirror_of_a_standalone_server_is_attached_to_the_lake_before_it_begins(tmp_path: Path) -> None:
    world = World(tmp_path, "A", lake=True)
    world.create("A", "O", subjects=["o"])
    world.create("A", "M", mirror={"name": "O"})
    (running,) = world.engines.of("A").streams["M"].mirroring._running
    assert isinstance(running, Mirror)
    assert running.session.cloning
