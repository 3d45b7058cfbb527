"""Tests of misfits as dead letters: each one that the lake lists is sent at least once, and stored once."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakestream.protocol import headers
from lakestream.schemas.naming import MISFITS_SUBJECT_KEY
from lakestream.stream.consumer import dead_letters
from lakestream.stream.consumer.dead_letters import ListedMisfit, Misfits
from tests.unit.consumer_world import SECOND, World

pytestmark = pytest.mark.unit

TO = {MISFITS_SUBJECT_KEY: "dead.s"}


@pytest.fixture
def world() -> World:
    world = World()
    world.stream(metadata=TO)
    return world


def letters(world: World) -> None:
    """Make the stream of the letters."""
    world.stream("DEAD", subjects=["dead.>"])


def sending(world: World) -> Misfits:
    return world.engine.streams["S"].feature(Misfits)


def listed(*seqs: int) -> list[ListedMisfit]:
    return [ListedMisfit(seq, "orders@3", "n", "type", "'é'\r\nis no number") for seq in seqs]


def stored(world: World) -> list[tuple[int, bytes]]:
    """Return (sequence of the misfit, payload) of the letters."""
    found = []
    for seq in range(1, world.ask("STREAM.INFO.DEAD")["state"]["last_seq"] + 1):
        record = world.engine.streams["DEAD"].store.read(seq)
        assert record is not None
        found.append((int(headers.get(record.header, b"Dead-Letter-Sequence") or b"0"), record.data))
    return found


def test_a_misfit_is_sent_with_its_payload_and_the_reason(world: World) -> None:
    letters(world)
    world.publish("s.a", b"x", header="NATS/1.0\r\nA: 1\r\nNats-Msg-Id: 7\r\nNats-Schema: orders@3\r\n\r\n")
    assert sending(world).after == 0
    sending(world).send(listed(1))
    assert sending(world).after is None, "one at a time"
    world.clock.turn()
    record = world.engine.streams["DEAD"].store.read(1)
    assert record is not None
    assert (record.subject, record.data) == (b"dead.s", b"x")
    expected = {
        "A": b"1",
        "Dead-Letter-Reason": rb"misfit: n: type: '\xe9'\r\nis no number",
        "Dead-Letter-Schema": b"orders@3",
        "Dead-Letter-Stream": b"S",
        "Dead-Letter-Subject": b"s.a",
        "Dead-Letter-Sequence": b"1",
    }
    assert {name: headers.get(record.header, name.encode()) for name in expected} == expected
    for name in (b"Dead-Letter-Consumer", b"Dead-Letter-Deliveries", b"Nats-Schema"):
        assert headers.get(record.header, name) is None
    assert sending(world).after == 1


def test_misfits_wait_for_a_stream_that_stores_them(world: World) -> None:
    world.store("s.a", "s.b")
    sending(world).send(listed(1, 2))
    world.clock.advance(3 * dead_letters.ANSWER_NS)
    assert sending(world).after is None
    letters(world)
    world.clock.advance(dead_letters.ANSWER_NS)
    assert sorted(seq for seq, _ in stored(world)) == [1, 2]
    assert sending(world).after == 2


def test_messages_that_are_gone_and_letters_are_not_sent(world: World) -> None:
    letters(world)
    world.store("s.a", "s.b")
    world.publish("s.c", b"z", header="NATS/1.0\r\nDead-Letter-Sequence: 9\r\n\r\n")
    world.store("s.d")
    world.ask("STREAM.MSG.DELETE.S", {"seq": 1})
    sending(world).send(listed(1, 2, 3, 4))
    world.clock.turn()
    assert [seq for seq, _ in stored(world)] == [2, 4]
    assert sending(world).after == 4


def test_the_subject_can_be_taken_away_and_given_back(world: World) -> None:
    world.store("s.a")
    sending(world).send(listed(1))
    begun = sending(world).begun
    world.ask("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"]})
    assert sending(world).after is None
    world.ask("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "metadata": TO})
    assert sending(world).after == 0
    assert sending(world).begun > begun, "so that the table is read again"
    letters(world)
    world.clock.advance(2 * dead_letters.ANSWER_NS)
    assert stored(world) == [], "what was on its way is not sent on"


def test_after_a_crash_a_misfit_is_sent_again_and_stored_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream(metadata=TO)
    letters(world)
    world.store("s.a", "s.b")
    sending(world).send(listed(1))
    world.clock.advance(SECOND)
    world.engine.streams["S"].pipeline.log_progress = lambda *_: None  # type: ignore[method-assign]
    sending(world).send(listed(2))  # stored, but the server ends before the log says so
    world.clock.advance(SECOND)
    assert [seq for seq, _ in stored(world)] == [1, 2]
    again = world.crash(tmp_path)
    assert sending(again).after == 1, "the log says so"
    sending(again).send(listed(2))
    again.clock.advance(2 * SECOND)
    assert [seq for seq, _ in stored(again)] == [1, 2]
    assert sending(again).after == 2


def test_a_checkpoint_says_how_far_misfits_were_sent(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream(metadata=TO)
    letters(world)
    world.store(*["s.a"] * 200)
    sending(world).send(listed(*range(1, 201)))
    world.clock.advance(SECOND)
    assert len(stored(world)) == 200
    world.engine.streams["S"].checkpoint()
    world.clock.advance(SECOND)
    assert sending(world.crash(tmp_path)).after == 200
    assert dead_letters.MOST_MISFITS >= dead_letters.AT_ONCE
