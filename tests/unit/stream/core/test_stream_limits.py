"""Tests of limits and retention applied to messages in flight, and to many at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakestream.stream.consumer import retention
from lakestream.stream.core.operations import Purge
from tests.unit import consumer_world
from tests.unit.stream_world import World

pytestmark = pytest.mark.unit
MakeWorld = Callable[..., World]


@pytest.fixture
def make(tmp_path: Path) -> MakeWorld:
    def build(**options: Any) -> World:
        return World(str(tmp_path / "S"), **options)

    return build


def together(world: World, *publishes: tuple[str, bytes, dict[str, str]]) -> list[Any]:
    """Publish in one turn of the event loop; return the sequence or the err_code of each."""
    replies = [world.publish(subject, data, **headers) for subject, data, headers in publishes]
    world.settle()
    answers = [world.answer(reply) for reply in replies]
    return [answer["seq"] or answer["error"]["err_code"] for answer in answers if answer is not None]


LAST = "Nats_Expected_Last_Subject_Sequence"


def test_what_a_message_in_flight_will_push_out_is_not_expected_any_more(make: MakeWorld) -> None:
    world = make(max_msgs=2)
    world.acked("s.a")
    world.acked("s.b")
    got = together(
        world, ("s.c", b"", {}), ("s.a", b"", {LAST: "1"}), ("s.a", b"", {LAST: "0"}), ("s.b", b"", {LAST: "2"})
    )
    assert got == [3, 10071, 4, 10071]


def test_nor_what_a_rollup_in_flight_replaces(make: MakeWorld) -> None:
    world = make(allow_rollup_hdrs=True)
    world.acked("s.a")
    assert together(
        world, ("s.b", b"", {"Nats_Rollup": "all"}), ("s.a", b"", {LAST: "1"}), ("s.a", b"", {LAST: "0"})
    ) == [
        2,
        10071,
        3,
    ]


def test_nor_what_one_with_a_wildcard_replaces(make: MakeWorld) -> None:
    world = make(allow_rollup_hdrs=True)
    world.acked("s.a")
    world.acked("s.b.c")
    rollup = ("s.*", b"", {"Nats_Rollup": "sub"})
    assert together(world, rollup, ("s.a", b"", {LAST: "1"}), ("s.a", b"", {LAST: "0"})) == [3, 10071, 4]
    assert together(world, rollup, ("s.b.c", b"", {LAST: "2"})) == [5, 6]


def test_where_nothing_of_that_can_be_nobody_waits(make: MakeWorld) -> None:
    world = make(max_msgs_per_subject=1)
    world.acked("s.a")
    world.publish("s.a", b"")
    world.clock.turn()
    assert len(world.io.waiting) == 1
    reply = world.publish("s.a", b"", **{LAST: "1"})
    world.publish("s.a", b"", **{LAST: "2"})  # checked at once: 2, in flight, can not be replaced
    assert world.answer(reply) is None, "2, which the refusal names, is not stored yet"
    world.settle()
    assert world.answer(reply)["error"]["description"] == "wrong last sequence: 2"
    assert [seq for seq, _, _ in world.content()] == [3]


def test_a_message_takes_the_place_of_another_only_once(make: MakeWorld) -> None:
    # The stream is full. The longer message is replaced by the first new one; the second new one finds a short one.
    world = make(max_bytes=2 * 43, max_msgs_per_subject=1, discard="new")
    world.acked("s.a", b"x" * 10)
    world.acked("s.b", b"x" * 10)
    assert together(world, ("s.a", b"x" * 5, {}), ("s.a", b"x" * 11, {}), ("s.a", b"x" * 5, {})) == [3, 10077, 4]


def test_a_rollup_inside_of_an_entry_comes_before_the_limits_of_later_messages(make: MakeWorld) -> None:
    world = make(max_msgs=3, allow_rollup_hdrs=True, allow_atomic=True)
    for subject in ("s.a", "s.b", "s.a"):
        world.acked(subject)
    batch = {"Nats_Batch_Id": "x"}
    world.publish("s.a", b"", **batch, Nats_Batch_Sequence="1", Nats_Rollup="sub")
    world.acked("s.c", b"", **batch, Nats_Batch_Sequence="2", Nats_Batch_Commit="1")
    left = [seq for seq, _, _ in world.content()]
    assert left == [2, 4, 5], "1 went for 4 and 3 with it, so that there was room for 5"
    world.stream.store.abandon()
    assert [seq for seq, _, _ in make().content()] == left


def test_a_purge_does_not_change_which_message_was_the_last(make: MakeWorld) -> None:
    world = make()
    world.acked("s.a", b"", Nats_Msg_Id="i1")
    world.stream.propose(Purge(seq=20))
    world.settle()
    world.stream.store.abandon()
    world = make()
    assert world.acked("s.a", b"", Nats_Expected_Last_Msg_Id="i2")["error"]["err_code"] == 10070
    assert world.acked("s.a", b"", Nats_Expected_Last_Msg_Id="i1")["seq"] == 20


# ---------------------------------------------------------------------- retention
@pytest.fixture
def interested() -> consumer_world.World:
    """Return an interest stream of 25 messages that match two consumers."""
    world = consumer_world.World()
    world.stream(retention="interest", subjects=["s.*"])
    for name in ("c", "d"):
        world.consumer(name, filter_subject="s.1")
    world.consumer("e", filter_subject="s.2")
    world.store(*["s.1", "s.1", "s.1", "s.2", "s.1"] * 5)
    return world


def state(world: consumer_world.World) -> tuple[int, int, int]:
    """Return (messages, first_seq, last_seq)."""
    told = world.ask("STREAM.INFO.S")["state"]
    return told["messages"], told["first_seq"], told["last_seq"]


def test_what_a_consumer_released_goes_part_by_part(
    interested: consumer_world.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "CHECKED_AT_ONCE", 3)
    assert interested.ask("CONSUMER.DELETE.S.c")["success"]
    assert state(interested) == (25, 1, 25), "d wants them still"
    assert interested.ask("CONSUMER.DELETE.S.d")["success"]
    assert state(interested) == (5, 4, 25)
    assert interested.ask("CONSUMER.DELETE.S.e")["success"]
    assert state(interested) == (0, 26, 25)


def test_a_stream_without_consumers_that_begins_to_ask_for_them() -> None:
    world = consumer_world.World()
    world.stream(subjects=["s.*"])
    world.store(*["s.1"] * 5)
    config = world.ask("STREAM.INFO.S")["config"]
    assert "error" not in world.ask("STREAM.UPDATE.S", config | {"retention": "interest"})
    assert state(world) == (0, 6, 5)
