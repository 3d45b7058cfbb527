"""Operations that remove many messages are applied in steps: none is long, and others are served in between."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lakestream.log.store.segment_store import open_store
from lakestream.stream.core import limits
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.operations import Operation, Purge, Remove, UpdateStream
from tests.unit.stream_world import ManualIo, World

pytestmark = pytest.mark.unit

SUBJECTS = 60
EACH = 5
TOTAL = SUBJECTS * EACH


@pytest.fixture(autouse=True)
def _short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, small in (("MANY", 20), ("PART_MSGS", 10), ("PART_SUBJECTS", 10)):
        monkeypatch.setattr(limits, limit, small)


def full(directory: Path, **config: Any) -> World:
    """Return a stream with EACH messages of SUBJECTS subjects."""
    world = World(str(directory / "S"), **config)
    for _ in range(EACH):
        for number in range(SUBJECTS):
            world.publish(f"s.{number % 3}.{number}", b"x")
        world.settle()
    return world


def lowered(world: World, **fields: int) -> UpdateStream:
    config = msgspec.to_builtins(world.stream.config) | fields
    return UpdateStream(msgspec.json.encode(msgspec.convert(config, StreamConfig)))


def played(world: World, operation: Operation) -> tuple[list[int], object]:
    """Apply an operation; return how many messages were left after each step, and its result."""
    results: list[object] = []
    left = [world.stream.store.msgs]
    world.stream.propose(operation, results.append)
    world.clock.turn()
    while world.io.waiting:
        world.io.work()
        left.append(world.stream.store.msgs)
        assert world.stream.store.msgs == len(world.stream.store.live)
        world.clock.turn()
    return left, results[0]


OPERATIONS: list[tuple[Callable[[World], Operation], int]] = [
    (lambda world: lowered(world, max_msgs_per_subject=1), SUBJECTS),
    (lambda world: Purge(b"s.*.*"), 0),
    (lambda world: Purge(b"s.1.>"), TOTAL - TOTAL // 3),
    (lambda world: Purge(b"s.1.>", keep=30), TOTAL - TOTAL // 3 + 30),
    (lambda world: Purge(b"s.1.>", seq=TOTAL // 2 + 1), TOTAL - TOTAL // 6),
    (lambda world: Remove([*range(2, TOTAL + 1, 2), TOTAL, TOTAL + 7]), TOTAL // 2),
]


@pytest.mark.parametrize(("make", "left"), OPERATIONS)
def test_no_step_of_a_large_removal_removes_more_than_a_part(
    make: Callable[[World], Operation], left: int, tmp_path: Path
) -> None:
    world = full(tmp_path)
    steps, _ = played(world, make(world))
    assert steps[-1] == left
    # A part ends with the subject that fills it.
    assert max(before - after for before, after in itertools.pairwise(steps)) < limits.PART_MSGS + EACH


def test_a_subject_with_many_messages_is_trimmed_and_purged_in_parts(tmp_path: Path) -> None:
    world = World(str(tmp_path / "S"))
    for _ in range(100):
        world.publish("s.long")
        world.publish("s.other")
    world.settle()
    steps, _ = played(world, lowered(world, max_msgs_per_subject=70))
    assert steps[-1] == 140
    steps, purged = played(world, Purge(b"s.long"))
    assert (steps[-1], purged) == (70, 70)
    assert max(before - after for before, after in itertools.pairwise(steps)) <= limits.PART_MSGS


@pytest.mark.parametrize("operation", [Purge(b"", TOTAL // 2 + 1), Purge(b"", 0, TOTAL // 2)])
def test_subjects_are_looked_at_in_steps_when_the_front_of_a_stream_is_removed(
    operation: Purge, tmp_path: Path
) -> None:
    world = full(tmp_path)
    steps, purged = played(world, operation)
    assert (steps[-1], purged) == (TOTAL // 2, TOTAL // 2)
    assert len(steps) > SUBJECTS // limits.PART_SUBJECTS


def test_publishes_and_other_operations_wait_for_the_last_step(tmp_path: Path) -> None:
    world = full(tmp_path)
    order: list[str] = []
    world.stream.propose(Purge(b"s.*.*"), lambda purged: order.append(f"purged {purged}"))
    world.clock.turn()
    world.io.work()  # the write, and the first step
    assert 0 < world.stream.store.msgs < TOTAL
    reply = world.publish("s.0.0")
    world.stream.confirming.after_applied(lambda: order.append(f"asked, {world.stream.store.msgs} messages"))
    world.clock.turn()
    world.io.work()
    assert order == []
    world.settle()
    answer = world.answer(reply)
    assert answer is not None
    assert answer["seq"] == TOTAL + 1
    assert order == [f"purged {TOTAL}", "asked, 1 messages"]


def test_a_stream_that_stops_between_two_steps_saves_the_whole_operation(tmp_path: Path) -> None:
    world = full(tmp_path)
    world.stream.propose(Purge(b"s.*.*"))
    world.clock.turn()
    world.io.work()
    world.stream.group.stop()
    world.stream.stop()
    assert world.stream.store.msgs == 0
    world.stream.store.close(world.stream.dump())
    store = open_store(str(tmp_path / "S"), ManualIo())
    assert [frame.index for frame, _ in store.replay()] == []
    assert store.msgs == 0
    store.abandon()


def test_no_checkpoint_holds_half_of_an_operation(tmp_path: Path) -> None:
    world = full(tmp_path)
    world.stream.propose(Purge(b"s.*.*"))
    world.clock.turn()
    world.io.work()
    before = world.stream.store.checkpoint_index
    world.stream.checkpoint()
    world.io.work()
    assert world.stream.store.checkpoint_index == before
    world.stream.store.abandon()
    again = World(str(tmp_path / "S"))  # as after a kill: recovery applies the entry
    assert again.stream.store.msgs == 0
    again.stream.store.abandon()
