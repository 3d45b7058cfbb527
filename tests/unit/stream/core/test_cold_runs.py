"""Runs of messages whose subjects are in files: read in steps, between which others are served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lakestream.log.format.errors import FileNotReadable
from lakestream.log.index import subject_index
from lakestream.log.index.cold_rows import FileBlock
from lakestream.raft.group.group import Committed, take_all
from lakestream.stream.core import applier
from tests.unit.stream_world import World

pytestmark = pytest.mark.unit

SUBJECTS = 40
NEW = 10
"""Subjects of a run that the stream does not have yet."""
STEP = 8


@pytest.fixture(autouse=True)
def _short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (subject_index, applier):
        monkeypatch.setattr(module, "WARMED_AT_ONCE", STEP)


def cold(directory: Path, **config: Any) -> World:
    """Return a stream with a message of each of SUBJECTS subjects, which are all in a file."""
    world = World(str(directory / "S"), **config)
    for number in range(SUBJECTS):
        world.publish(f"s.{number}", b"first")
    world.settle()
    assert world.stream.store.subjects.cool(SUBJECTS) == SUBJECTS
    return world


def run_of(world: World) -> list[bytes]:
    """Publish a run of messages to all subjects and some new ones, all written with one entry; return the replies."""
    replies = [world.publish(f"s.{number}", b"second") for number in range(SUBJECTS + NEW)]
    world.clock.turn()
    return replies


def test_a_run_of_subjects_in_files_is_applied_behind_steps_that_read_them(tmp_path: Path) -> None:
    world = cold(tmp_path)
    replies, steps = run_of(world), 0
    order: list[str] = []
    world.stream.confirming.after_applied(lambda: order.append(f"{world.stream.store.msgs} messages"))
    while world.stream.store.msgs == SUBJECTS:
        assert not any(map(world.answer, replies))
        assert len(world.stream.store.subjects) == SUBJECTS
        assert order == []
        world.io.work()
        world.clock.turn()
        steps += 1
    assert steps > (SUBJECTS + NEW) // STEP
    assert [answer["seq"] for answer in map(world.answer, replies) if answer] == [
        *range(SUBJECTS + 1, 2 * SUBJECTS + NEW + 1)
    ]
    assert order == [f"{2 * SUBJECTS + NEW} messages"]
    index = world.stream.store.subjects
    assert len(index) == SUBJECTS + NEW
    assert index.seqs(b"s.1") == [2, SUBJECTS + 2]
    assert index.seqs(b"s.%d" % SUBJECTS) == [2 * SUBJECTS + 1]


def test_a_publish_between_two_of_these_steps_is_judged_by_the_messages_before_it(tmp_path: Path) -> None:
    world = cold(tmp_path, max_msgs=2 * SUBJECTS + NEW + 1, discard="new")
    run_of(world)
    world.io.work()
    assert world.stream.store.msgs == SUBJECTS, "the first step alone was taken"
    stale = world.publish("s.3", b"third", Nats_Expected_Last_Subject_Sequence="4")
    right = world.publish("s.3", b"third", Nats_Expected_Last_Subject_Sequence=f"{SUBJECTS + 4}")
    beyond = world.publish("s.4", b"third")
    world.settle()
    found = [world.answer(reply) for reply in (stale, right, beyond)]
    assert found[0] is not None
    assert found[0]["error"]["err_code"] == 10071
    assert found[1] == {"stream": "S", "seq": 2 * SUBJECTS + NEW + 1}
    assert found[2] is not None
    assert found[2]["error"]["err_code"] == 10077


def test_a_limit_by_subject_removes_what_such_a_run_replaces(tmp_path: Path) -> None:
    world = cold(tmp_path, max_msgs_per_subject=1)
    run_of(world)
    world.settle()
    assert world.content() == [(SUBJECTS + 1 + n, b"s.%d" % n, b"second") for n in range(SUBJECTS + NEW)]


def test_a_stream_that_stops_between_two_of_these_steps_keeps_the_run(tmp_path: Path) -> None:
    world = cold(tmp_path)
    run_of(world)
    world.io.work()
    world.stream.group.stop()
    world.stream.stop()
    world.stream.store.close(world.stream.dump())
    again = World(str(tmp_path / "S"))
    assert again.stream.store.msgs == 2 * SUBJECTS + NEW
    again.stream.store.abandon()


def test_a_follower_and_recovery_apply_such_a_run_in_steps_too(tmp_path: Path) -> None:
    world = cold(tmp_path)
    run_of(world)
    world.io.work()  # the entry is in the log
    log = world.stream.store.log
    [(frame, at)] = log.entries(log.last_index, 1)
    world.stream.store.abandon()
    again = World(str(tmp_path / "S"))
    assert again.stream.store.msgs == 2 * SUBJECTS + NEW
    again.stream.store.abandon()
    follower = cold(tmp_path / "other")
    steps = follower.stream.committed([Committed(frame, at, None)])
    assert steps is not None
    assert follower.stream.store.msgs == SUBJECTS
    take_all(steps)
    assert follower.stream.store.msgs == 2 * SUBJECTS + NEW
    assert follower.stream.store.applied == frame.index


def test_leadership_that_ends_between_two_of_these_steps_takes_no_message_away(tmp_path: Path) -> None:
    world = cold(tmp_path)
    run_of(world)
    world.io.work()
    world.stream.follow()
    world.settle()
    assert world.stream.store.msgs == 2 * SUBJECTS + NEW
    world.stream.lead(lambda: None, lambda: None)
    assert world.acked("s.1", b"third")["seq"] == 2 * SUBJECTS + NEW + 1


def test_a_file_that_can_not_be_read_refuses_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = cold(tmp_path)
    replies = run_of(world)

    def unreadable(block: FileBlock) -> bytes:
        raise FileNotReadable("index.cold", OSError(5, "Input/output error"))

    monkeypatch.setattr(FileBlock, "read", unreadable)
    world.settle()
    assert {answer["error"]["err_code"] for answer in map(world.answer, replies) if answer} == {10077}
    assert all(map(world.answer, replies))
