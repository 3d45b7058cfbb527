"""Tests of priority groups and ack policy flow_control on virtual time, beyond the scenarios with a real server."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.unit.consumer_world import MS, SECOND, Message, World

pytestmark = pytest.mark.unit

PIN = "Nats-Pin-Id: "


@pytest.fixture
def world() -> World:
    world = World()
    world.stream()
    return world


def grouped(world: World, policy: str, **config: Any) -> None:
    world.consumer(priority_groups=["g"], priority_policy=policy, **config)


def pin_of(message: Message) -> str:
    lines = [line for line in message.header.split("\r\n") if line.startswith(PIN)]
    return lines[0].removeprefix(PIN) if lines else ""


def pull(world: World, batch: int = 1, **fields: Any) -> list[Message]:
    return world.pull(batch, group="g", **fields)


def shown(world: World) -> dict[str, Any]:
    [group] = world.info()["priority_groups"]
    return dict(group)


# ---------------------------------------------------------------------------------------------------- overflow
def test_overflow_cuts_a_block_where_too_little_is_pending(world: World) -> None:
    world.store(*["s.a"] * 1000)
    grouped(world, "overflow", max_ack_pending=-1)
    assert [message.seq for message in pull(world, 2000, min_pending=301)] == list(range(1, 701))
    assert world.info()["num_waiting"] == 1
    world.store("s.a")
    assert [message.seq for message in world.client.taken()] == [701]


def test_a_closed_gate_does_not_keep_the_loop_busy(world: World) -> None:
    world.store(*["s.a"] * 10)
    grouped(world, "overflow", ack_wait=SECOND)
    assert len(pull(world, 5)) == 5
    assert pull(world, 5, min_pending=100) == []
    world.clock.advance(5 * SECOND)  # redeliveries are due, and no request may have them
    assert world.client.taken() == []
    assert len(pull(world, 20)) == 10


def test_overflow_at_random(world: World) -> None:
    """With policy overflow, every request served had enough pending or unacked messages."""
    chance = random.Random(7)
    grouped(world, "overflow", max_ack_pending=-1)
    delivered: list[Message] = []
    asked: dict[int, tuple[int, int]] = {}
    stored = 0
    for _ in range(300):
        if chance.random() < 0.4:
            least, least_unacked = chance.randint(0, 5), chance.randint(0, 5)
            world.next({"batch": 1, "group": "g", "min_pending": least, "min_ack_pending": least_unacked})
            asked[len(asked)] = least, least_unacked
        elif chance.random() < 0.7:
            world.store("s.a")
            stored += 1
        elif delivered:
            world.ack(delivered.pop(chance.randrange(len(delivered))))
        delivered += world.client.taken()
        info = world.info()
        assert info["delivered"]["stream_seq"] + info["num_pending"] == stored
        assert info["num_ack_pending"] == len(delivered)
        if info["num_pending"] and info["num_waiting"]:
            policy = world.engine.streams["S"].consumers["c"].target
            assert not policy.capacity(), "somebody who may be served waits"


# ---------------------------------------------------------------------------------------------------- prioritized
def test_a_lone_better_request_takes_a_block(world: World) -> None:
    grouped(world, "prioritized")
    worse, better = (world.next({"batch": 50, "group": "g", "priority": number}) for number in (2, 1))
    world.store(*["s.a"] * 60)
    assert [message.seq for message in world.client.taken()] == list(range(1, 61))
    assert world.info()["num_waiting"] == 1
    assert worse != better


# ---------------------------------------------------------------------------------------------------- pinned client
def test_a_pin_ends_at_its_time(world: World) -> None:
    world.store("s.a", "s.b", "s.c")
    grouped(world, "pinned_client", priority_timeout=10 * SECOND)
    [first] = pull(world)
    pin = pin_of(first)
    assert len(pin) == 22
    assert shown(world)["pinned_client_id"] == pin
    assert pull(world, expires=60 * SECOND) == []
    world.clock.advance(9 * SECOND)
    [again] = pull(world, id=pin)
    assert pin_of(again) == pin
    world.clock.advance(9 * SECOND)
    assert world.client.taken() == []
    world.clock.advance(2 * SECOND)
    [other] = world.client.taken()
    assert pin_of(other) not in ("", pin)
    world.clock.advance(10 * SECOND)
    assert shown(world) == {"group": "g", "pinned_ts": "0001-01-01T00:00:00Z"}


def test_a_client_that_has_gone_is_not_pinned(world: World) -> None:
    grouped(world, "pinned_client")
    world.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"group":"g"}', "nobody.listens")
    world.next({"group": "g"})
    world.store("s.a")
    [message] = world.client.taken()
    assert shown(world)["pinned_client_id"] == pin_of(message)


def test_a_pin_does_not_outlive_the_server(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream()
    world.store("s.a", "s.b")
    grouped(world, "pinned_client")
    [message] = pull(world)
    world.clock.advance(SECOND)
    world = world.crash(tmp_path)
    assert "pinned_client_id" not in shown(world)
    assert pull(world, id=pin_of(message))[0].status == "423 Nats-Wrong-Pin-Id"
    assert pin_of(pull(world)[0]) not in ("", pin_of(message))


def test_another_policy_ends_the_pin(world: World) -> None:
    world.store("s.a", "s.b")
    grouped(world, "pinned_client", priority_timeout=SECOND)
    pull(world)
    grouped(world, "overflow")
    assert shown(world) == {"group": "g", "pinned_ts": "0001-01-01T00:00:00Z"}
    world.client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.UNPINNED.>")
    world.clock.advance(5 * SECOND)
    assert world.client.taken() == []
    assert [message.seq for message in pull(world)] == [2]


def test_what_waits_is_served_by_the_new_policy(world: World) -> None:
    grouped(world, "overflow")
    for number in (3, 1, 2):
        world.next({"batch": 1, "group": "g", "priority": number})
    grouped(world, "prioritized")
    queue = world.engine.streams["S"].consumers["c"].target._queue  # type: ignore[union-attr]
    assert [waiting.priority for waiting in queue] == [1, 2, 3]


# ---------------------------------------------------------------------------------------------------- flow_control
ANSWER = "NATS/1.0\r\nNats-Last-Consumer: %d\r\nNats-Last-Stream: %d\r\n\r\n"


def flow_acked(world: World, **config: Any) -> None:
    world.consumer(ack_policy="flow_control", deliver_subject="to.me", **config)


def request_of(messages: list[Message]) -> str:
    [request] = [message.reply for message in messages if message.reply.startswith("$JS.FC.")]
    return request


def test_flow_control_acks_survive_a_crash_and_nothing_comes_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream()
    world.client.subscribe("to.me")
    world.store(*["s.a"] * 10)
    flow_acked(world, max_ack_pending=6)
    world.publish(request_of(world.client.taken()), b"", "", ANSWER % (4, 4))
    assert [message.seq for message in world.client.taken() if not message.status] == [7, 8, 9, 10]
    world.clock.advance(SECOND // 2)
    world = world.crash(tmp_path)
    assert world.numbers() == ((10, 10), (4, 4), 6, 0, 0)
    world.client.subscribe("to.me")
    world.clock.advance(120 * SECOND)
    statuses = {message.status for message in world.client.taken()}
    assert statuses == {"100 Idle Heartbeat", "100 FlowControl Request"}
    assert world.numbers() == ((10, 10), (4, 4), 6, 0, 0)


def test_a_word_about_the_future_acks_nothing(world: World) -> None:
    world.client.subscribe("to.me")
    world.store(*["s.a"] * 10)
    flow_acked(world, max_ack_pending=6)
    world.publish(request_of(world.client.taken()), b"", "", ANSWER % (99, 99))
    assert [message.seq for message in world.client.taken() if not message.status] == [7, 8, 9, 10]
    assert world.numbers()[1] == (0, 0)


def test_flow_control_acks_release_a_workqueue(world: World) -> None:
    world.stream("W", retention="workqueue")
    world.client.subscribe("to.me")
    world.store(*["w.a"] * 6)
    config = {"ack_policy": "flow_control", "deliver_subject": "to.me", "max_ack_pending": 6}
    world.consumer(stream="W", **config)
    world.publish(request_of(world.client.taken()), b"", "", ANSWER % (5, 5))
    world.clock.turn()
    world.clock.advance(10 * MS)
    assert world.engine.streams["W"].store.msgs == 1


def test_an_update_does_not_make_them_due(world: World) -> None:
    world.client.subscribe("to.me")
    world.store(*["s.a"] * 3)
    flow_acked(world)
    flow_acked(world, description="changed")
    world.clock.advance(3600 * SECOND)
    assert not any(message.reply.startswith("$JS.ACK.S.c.2.") for message in world.client.taken())
