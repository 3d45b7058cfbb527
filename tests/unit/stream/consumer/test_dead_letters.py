"""Tests of dead letters: nothing that a consumer gives up is dropped before its letter is stored, once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lakestream.protocol import headers
from lakestream.protocol.dead_letters import KEY
from lakestream.stream.consumer import dead_letters
from tests.unit.consumer_world import SECOND, World

pytestmark = pytest.mark.unit

WAIT = 30 * SECOND


@pytest.fixture
def world() -> World:
    world = World()
    world.stream(retention="workqueue")
    return world


def letters(world: World) -> None:
    """Make the stream of the letters."""
    world.stream("DEAD", subjects=["dead.>"])


def consumer(world: World, setting: str = "dead.s", **config: Any) -> None:
    world.consumer(metadata={KEY: setting}, **{"max_deliver": 2, **config})


def stored(world: World) -> list[tuple[str, dict[str, str], bytes]]:
    """Return (subject, headers, payload) of the letters."""
    found = []
    for seq in range(1, world.ask("STREAM.INFO.DEAD")["state"]["last_seq"] + 1):
        record = world.engine.streams["DEAD"].store.read(seq)
        assert record is not None
        found.append((record.subject.decode(), dict(headers.given(record.header)), record.data))
    return found


def value(world: World, seq: int, name: bytes) -> bytes | None:
    record = world.engine.streams["DEAD"].store.read(seq)
    assert record is not None
    return headers.get(record.header, name)


def left(world: World) -> int:
    found: int = world.ask("STREAM.INFO.S")["state"]["messages"]
    return found


def test_a_message_without_an_ack_becomes_a_letter_at_its_last_deadline(world: World) -> None:
    letters(world)
    world.publish("s.a", b"x", header="NATS/1.0\r\nA: 1\r\nNats-Msg-Id: 7\r\n\r\n")
    consumer(world)
    world.pull()
    world.clock.advance(WAIT)
    world.pull()
    assert not stored(world)
    world.clock.advance(WAIT - 1)
    assert left(world) == 1
    world.clock.advance(1)  # nobody pulls
    assert [(subject, data) for subject, _, data in stored(world)] == [("dead.s", b"x")]
    assert left(world) == 0
    expected = {"A": b"1", "Dead-Letter-Reason": b"max_deliver", "Dead-Letter-Deliveries": b"2"}
    expected |= {"Dead-Letter-Stream": b"S", "Dead-Letter-Consumer": b"c", "Dead-Letter-Subject": b"s.a"}
    expected |= {"Dead-Letter-Sequence": b"1"}
    assert {name: value(world, 1, name.encode()) for name in expected} == expected
    assert value(world, 1, b"Nats-Msg-Id") != b"7"
    assert world.numbers()[2:4] == (0, 0)


def test_a_refused_message_becomes_a_letter_and_its_client_is_answered_then(world: World) -> None:
    world.store("s.a")
    consumer(world)
    reply = world.inbox()
    world.ack(world.pull()[0], b"+TERM no such order", reply)
    world.clock.advance(2 * WAIT)
    assert [message for message in world.client.taken() if message.subject == reply] == []
    assert left(world) == 1, "nothing stores letters yet"
    assert world.pull(no_wait=True)[0].status == "404 No Messages", "it is not delivered again"
    letters(world)
    world.clock.advance(dead_letters.ANSWER_NS)
    assert value(world, 1, b"Dead-Letter-Reason") == b"term: no such order"
    assert [message.data for message in world.client.taken() if message.subject == reply] == [b""]
    assert left(world) == 0


@pytest.mark.parametrize(("after", "payload", "letter"), [("term", b"-NAK", 0), ("max_deliver", b"+TERM", 0)])
def test_only_the_reasons_that_are_asked_for_make_letters(
    world: World, after: str, payload: bytes, letter: int
) -> None:
    letters(world)
    world.store("s.a")
    consumer(world, json.dumps({"subject": "dead.s", "after": after}), max_deliver=1)
    world.ack(world.pull()[0], payload)
    world.clock.advance(2 * WAIT)
    assert len(stored(world)) == letter


def test_a_nak_of_the_last_delivery_makes_a_letter_at_once(world: World) -> None:
    letters(world)
    world.store("s.a", "s.b")
    consumer(world, max_deliver=1)
    first, second = world.pull(2)
    world.ack(second)
    world.ack(first, b"-NAK")
    world.clock.turn()
    assert len(stored(world)) == 1


def test_a_late_ack_is_in_time_until_the_letter_is_sent(world: World) -> None:
    world.store("s.a")
    consumer(world, max_deliver=1)
    message = world.pull()[0]
    world.clock.advance(WAIT)
    world.ack(message)
    letters(world)
    world.clock.advance(10 * SECOND)
    assert not stored(world)
    assert left(world) == 0


def test_many_letters_wait_their_turn(world: World) -> None:
    count = 3 * dead_letters.AT_ONCE
    letters(world)
    world.store(*["s.a"] * count)
    consumer(world, max_deliver=1)
    world.pull(count)
    world.clock.advance(WAIT + SECOND)
    assert len(stored(world)) == count
    assert left(world) == 0


def test_an_answer_that_comes_late_lets_no_more_letters_on_their_way(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "AT_ONCE", 1)
    world.client.subscribe("dead.s")
    world.store("s.a", "s.b", "s.c")
    consumer(world, max_deliver=1)
    world.pull(3)
    world.clock.advance(WAIT)
    sent = [message for message in world.client.taken() if message.subject == "dead.s"]
    assert len(sent) == 1
    world.clock.advance(dead_letters.ANSWER_NS)  # it waits behind the others now
    assert len([message for message in world.client.taken() if message.subject == "dead.s"]) == 1
    world.publish(sent[0].reply, b'{"stream":"ELSEWHERE","seq":1}')
    world.clock.turn()
    assert left(world) == 2
    assert [message for message in world.client.taken() if message.subject == "dead.s"] == []


def test_after_a_restart_a_letter_is_sent_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream(retention="workqueue")
    letters(world)
    world.store("s.a")
    consumer(world, max_deliver=1)
    world.pull()
    world.clock.advance(SECOND)  # the delivery is logged
    before = world.engine.streams["S"].consumers["c"]
    before.acks.ack = lambda *_, **__: True  # type: ignore[method-assign]  # the server ends before it can ack
    world.clock.advance(WAIT)
    assert len(stored(world)) == 1
    again = world.crash(tmp_path)
    again.clock.advance(2 * WAIT)
    assert len(stored(again)) == 1
    assert left(again) == 0


@pytest.mark.parametrize(
    ("setting", "config", "wrong"),
    [
        ("dead.*", {}, "is not a subject to publish to"),
        ("t.dead", {}, "the consumer would get its own letters"),
        ('{"subject":"dead.s","after":"nak"}', {}, "`after` is max_deliver or term"),
        ('{"subject":"dead.s","afer":"term"}', {}, "neither a subject nor a JSON object"),
        ("dead.s", {"ack_policy": "none"}, "it needs ack policy explicit"),
    ],
)
def test_a_setting_that_cannot_be_followed_is_refused(
    world: World, setting: str, config: dict[str, Any], wrong: str
) -> None:
    made = {"durable_name": "c", "ack_policy": "explicit", "metadata": {KEY: setting}, **config}
    world.stream("T")
    answer = world.ask("CONSUMER.DURABLE.CREATE.T.c", {"stream_name": "T", "config": made})
    assert wrong in answer["error"]["description"]
