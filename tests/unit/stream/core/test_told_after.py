"""Tests of answers about state: they include what the same client sent before, and wait for nothing else."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from lakestream.log.format.files import Files
from lakestream.stream.core import confirming
from lakestream.stream.core.operations import Remove
from tests.unit.consumer_world import World
from tests.unit.stream_world import World as StreamWorld

pytestmark = pytest.mark.unit


def sent(world: World, subject: str, body: Any = None) -> str:
    """Send a request without ending the turn, as several requests of one read; return the reply subject."""
    reply = world.inbox()
    data = b"" if body is None else json.dumps(body).encode()
    world.publish(f"$JS.API.{subject}", data, reply)
    return reply


def answers(world: World, *replies: str) -> list[Any]:
    world.clock.turn()
    found = {message.subject: json.loads(message.data) for message in world.client.taken()}
    return [found[reply] for reply in replies]


@pytest.fixture(params=["file", "memory"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    made = World(tmp_path if request.param == "file" else None)
    made.stream()
    made.consumer()
    return made


def test_infos_between_publishes_count_those_before_them(world: World) -> None:
    replies = []
    for number in range(20):
        world.publish("s.a", b"%d" % number)
        replies.append(sent(world, "STREAM.INFO.S"))
    counts = [info["state"]["messages"] for info in answers(world, *replies)]
    assert all(count > before for before, count in enumerate(counts)), counts


def test_every_answer_that_tells_state_counts_publishes_before_it(world: World) -> None:
    for _ in range(3):
        world.publish("s.a", b"x")
    asked = {
        "STREAM.INFO.S": {"subjects_filter": ">", "deleted_details": True},
        "STREAM.LIST": None,
        "CONSUMER.INFO.S.c": None,
        "CONSUMER.LIST.S": None,
        "INFO": None,
        "STREAM.MSG.GET.S": {"seq": 3},
    }
    info, listed, consumer, consumers, account, got = answers(
        world, *[sent(world, subject, body) for subject, body in asked.items()]
    )
    assert (info["state"]["messages"], info["state"]["subjects"]) == (3, {"s.a": 3})
    assert listed["streams"][0]["state"]["messages"] == 3
    assert consumer["num_pending"] == consumers["consumers"][0]["num_pending"] == 3
    assert account["storage"] == info["state"]["bytes"] > 0
    assert got["message"]["seq"] == 3


def test_what_was_published_can_be_deleted_and_is_purged(world: World) -> None:
    for _ in range(3):
        world.publish("s.a", b"x")
    deleted, info = answers(world, sent(world, "STREAM.MSG.DELETE.S", {"seq": 3}), sent(world, "STREAM.INFO.S"))
    assert deleted["success"]
    assert (info["state"]["messages"], info["state"]["last_seq"]) == (2, 3)
    world.publish("s.a", b"x")
    (purged,) = answers(world, sent(world, "STREAM.PURGE.S"))
    assert purged["purged"] == 3


def test_acks_before_an_info_are_counted_and_their_messages_gone(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream(retention="workqueue")
    world.consumer()
    world.store(*["s.a"] * 12)
    messages = world.pull(10)
    for message in messages:
        world.publish(message.reply, b"+ACK")
    info, consumer = answers(world, sent(world, "STREAM.INFO.S"), sent(world, "CONSUMER.INFO.S.c"))
    assert info["state"]["messages"] == 2
    assert (consumer["num_ack_pending"], consumer["ack_floor"]["stream_seq"]) == (0, 10)
    for message in world.pull(1):
        world.publish(message.reply, b"+ACK")
    (purged,) = answers(world, sent(world, "STREAM.PURGE.S"))
    assert purged["purged"] == 1


def test_publishes_that_wait_for_a_change_are_counted(world: World) -> None:
    world.publish("$JS.API.STREAM.UPDATE.S", b'{"name":"S","subjects":["s.>"],"max_msg_size":100}')
    for _ in range(3):
        world.publish("s.a", b"x")
    (info,) = answers(world, sent(world, "STREAM.INFO.S"))
    assert info["state"]["messages"] == 3


def test_nothing_in_flight_is_waited_for_by_nobody(world: World) -> None:
    reply = sent(world, "STREAM.INFO.S")
    assert [message.subject for message in world.client.got] == [reply], "the turn has not ended"


def test_an_answer_waits_for_what_was_before_it_and_for_no_more(tmp_path: Path) -> None:
    world = StreamWorld(str(tmp_path / "log"))
    told: list[int] = []
    world.publish("s.a")
    world.clock.turn()  # is being written
    world.stream.confirming.after_applied(lambda: told.append(world.stream.store.msgs))
    world.publish("s.a")
    assert not told
    world.io.work()
    assert told == [1]
    world.settle()


class FullDisk(Files):
    full = False

    def write(self, fd: int, buffers: Any, offset: int) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(fd, buffers, offset)


def test_an_answer_is_given_when_what_it_waits_for_cannot_be_written(tmp_path: Path) -> None:
    files = FullDisk()
    world = StreamWorld(str(tmp_path / "log"), files=files)
    told: list[int] = []
    files.full = True
    world.publish("s.a")
    world.stream.confirming.after_applied(lambda: told.append(world.stream.store.msgs))
    world.settle()
    assert told == [0]


def test_an_answer_is_given_when_its_stream_ends(tmp_path: Path) -> None:
    world = StreamWorld(str(tmp_path / "log"))
    told: list[bool] = []
    world.publish("s.a")
    world.stream.confirming.after_applied(lambda: told.append(world.stream.closed))
    world.stream.stop(deleted=True)
    assert told == [True]


def test_an_answer_behind_publishes_that_wait_again_and_again_counts_them(tmp_path: Path) -> None:
    world = StreamWorld(str(tmp_path / "log"))
    told: list[int] = []
    world.stream.propose(Remove([1]))
    world.publish("s.a", Nats_Msg_Id="waits for the operation")
    world.stream.confirming.after_applied(lambda: told.append(world.stream.store.msgs))
    world.publish("s.b", Nats_Msg_Id="came later")
    for _ in range(10):
        world.clock.turn()
        world.stream.propose(Remove([1]))  # the publishes wait for this one as well
        world.io.work()
        assert not told
    world.settle()
    assert told == [2], "it was asked for between the two, which are one write"


def test_an_answer_behind_publishes_that_wait_is_given_when_they_are_refused(tmp_path: Path) -> None:
    files = FullDisk()
    world = StreamWorld(str(tmp_path / "log"), files=files)
    told: list[int] = []
    files.full = True
    world.stream.propose(Remove([1]))
    world.publish("s.a", Nats_Msg_Id="waits for the operation")
    world.stream.confirming.after_applied(lambda: told.append(world.stream.store.msgs))
    world.settle()
    assert told == [0]


def test_answers_beyond_the_limit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirming, "MAX_WAITING", 2)
    world = StreamWorld(str(tmp_path / "log"))
    told: list[int] = []
    world.publish("s.a")
    taken = [
        world.stream.confirming.after_applied(lambda number=number: told.append(number))  # type: ignore[misc]
        for number in range(3)
    ]
    assert taken == [True, True, False]
    world.settle()
    assert told == [0, 1]


def test_requests_whose_answers_would_lag_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(confirming, "MAX_WAITING", 2)
    world = World(tmp_path)
    world.stream()
    world.publish("s.a")
    replies = [sent(world, "STREAM.INFO.S") for _ in range(5)]
    world.clock.turn()
    assert [message.subject for message in world.client.taken()] == replies[:2]
    assert "JetStream API info queue limit reached, dropping 3 requests" in capfd.readouterr().err
