"""Tests of pull consumers on virtual time."""

from __future__ import annotations

import re

import pytest

from lakestream.ports import MessageBlock, Messages
from lakestream.stream.consumer.pull_request import BadRequest, check_fields, parse_next
from tests.unit.consumer_world import MS, SECOND, START, World

pytestmark = pytest.mark.unit


@pytest.fixture
def world() -> World:
    world = World()
    world.stream()
    return world


def test_messages_carry_their_numbers_in_the_ack_subject(world: World) -> None:
    world.store("s.a", "s.b", "s.c")
    world.consumer()
    first, second = world.pull(2)
    assert first.reply.startswith("$JS.ACK.S.c.1.1.1.")
    assert first.numbers == (1, 1, 1, 2)
    assert second.numbers == (1, 2, 2, 1)
    assert (first.subject, first.data) == ("s.a", b"x")


def test_an_open_request_gets_what_is_published_later(world: World) -> None:
    world.consumer()
    assert world.pull(3) == []
    assert world.info()["num_waiting"] == 1
    world.store("s.a", "s.b")
    assert [message.seq for message in world.client.taken()] == [1, 2]
    world.store("s.c", "s.d")
    assert [message.seq for message in world.client.taken()] == [3]
    assert world.info()["num_waiting"] == 0


def test_requests_are_served_one_message_each_in_turn(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.consumer()
    first, second = world.next({"batch": 2}), world.next({"batch": 3})
    receivers: list[str] = []
    send = world.hub.send

    def watched(messages: Messages) -> bool:
        if isinstance(messages, MessageBlock):
            receivers.extend([messages.to.decode()] * len(messages))
        return send(messages)

    monkeypatch.setattr(world.hub, "send", watched)
    world.store("s.a")
    world.store("s.a", "s.a", "s.a", "s.a")
    assert receivers == [first, second, first, second, second]


def test_no_wait_ends_with_404(world: World) -> None:
    world.store("s.a")
    world.consumer()
    assert [message.status for message in world.pull(5, no_wait=True)] == ["", "404 No Messages"]
    assert [message.status for message in world.pull(5, no_wait=True)] == ["404 No Messages"]


def test_no_wait_with_expires_waits_for_the_first_message_only(world: World) -> None:
    world.consumer()
    assert world.pull(5, no_wait=True, expires=SECOND) == []
    world.store("s.a")
    assert [message.status for message in world.client.taken()] == ["", "404 No Messages"]


def test_no_wait_behind_others_that_want_all_there_is(world: World) -> None:
    world.consumer(max_ack_pending=1)
    world.store("s.a", "s.b")
    world.pull(5)
    assert [message.status for message in world.pull(1, no_wait=True)] == ["408 Requests Pending"]


@pytest.mark.parametrize(
    ("stored", "body", "answers"),
    [
        (8, {"idle_heartbeat": SECOND}, [("404 No Messages", SECOND)]),
        (8, {}, [("408 Request Timeout", 3 * SECOND)]),
        (8, {"expires": 0}, []),
        (1, {"idle_heartbeat": SECOND}, [("404 No Messages", 0)]),
        (
            0,
            {"idle_heartbeat": SECOND},
            [*(("100 Idle Heartbeat", at * SECOND) for at in (1, 2)), ("408 Request Timeout", 3 * SECOND)],
        ),
    ],
    ids=["at_the_heartbeat", "at_expiry", "never", "nothing_left", "nothing_there"],
)
def test_no_wait_up_to_max_ack_pending(
    world: World, stored: int, body: dict[str, int], answers: list[tuple[str, int]]
) -> None:
    world.consumer(max_ack_pending=2)
    world.store(*["s.a"] * stored)
    world.next({"batch": 20, "no_wait": True, "expires": 3 * SECOND, **body})
    got = []
    for _ in range(5):
        got += [(message.status, world.clock.time - START) for message in world.client.taken() if message.status]
        world.clock.advance(SECOND)
    assert got == answers


def test_no_wait_that_acks_block_ends_with_the_time_of_another_request(world: World) -> None:
    world.consumer(max_ack_pending=1)
    world.store("s.a", "s.b")
    first = world.next({"batch": 5, "no_wait": True})
    second = world.next({"batch": 1, "expires": SECOND})
    world.client.taken()
    world.clock.advance(SECOND)
    got = [(message.subject, message.status) for message in world.client.taken()]
    assert got == [(first, "404 No Messages"), (second, "408 Request Timeout")]


def test_no_wait_while_deliveries_are_paused(world: World) -> None:
    world.consumer(pause_until="2099-01-01T00:00:00Z")
    world.store("s.a")
    assert [message.status for message in world.pull(1, no_wait=True)] == ["404 No Messages"]
    assert world.pull(1, no_wait=True, expires=SECOND) == []
    world.clock.advance(SECOND)
    assert [message.status for message in world.client.taken()] == ["408 Request Timeout"]


def test_an_expired_request_says_what_it_missed(world: World) -> None:
    world.store("s.a")
    world.consumer()
    world.next({"batch": 3, "max_bytes": 1000, "expires": SECOND})
    message = world.client.taken()[0]
    world.clock.advance(SECOND - 1)
    assert world.client.taken() == []
    world.clock.advance(1)
    used = len(message.subject) + len(message.reply) + len(message.data)
    assert world.client.taken()[0].header == (
        f"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 2\r\nNats-Pending-Bytes: {1000 - used}\r\n\r\n"
    )


def test_max_bytes_ends_a_request_before_the_message_that_does_not_fit(world: World) -> None:
    world.store("s.a", "s.a", data=b"y" * 100)
    world.consumer()
    got = world.pull(2, max_bytes=200)
    assert [message.status for message in got] == ["", "409 Message Size Exceeds MaxBytes"]
    assert "Nats-Pending-Messages: 1" in got[1].header
    got = world.pull(1, max_bytes=10)
    assert [message.status for message in got] == ["409 Message Size Exceeds MaxBytes"]
    assert world.numbers()[-1] == 1


def test_a_full_batch_with_bytes_left_is_completed_with_409(world: World) -> None:
    world.store("s.a")
    world.consumer()
    assert [message.status for message in world.pull(1, max_bytes=1000)] == ["", "409 Batch Completed"]


def test_limits_of_the_consumer(world: World) -> None:
    world.consumer(max_batch=3, max_expires=1500 * MS, max_bytes=100)
    assert world.pull(4)[0].status == "409 Exceeded MaxRequestBatch of 3"
    assert world.pull(1, expires=2 * SECOND)[0].status == "409 Exceeded MaxRequestExpires of 1.5s"
    assert world.pull(1, max_bytes=101)[0].status == "409 Exceeded MaxRequestMaxBytes of 100"


def test_max_waiting(world: World) -> None:
    world.consumer(max_waiting=2)
    for _ in range(2):
        assert world.pull(1, expires=3 * SECOND) == []
    assert world.pull(1)[0].status == "409 Exceeded MaxWaiting"
    assert world.pull(1, expires=SECOND, idle_heartbeat=100 * MS) == []
    world.clock.advance(4 * SECOND)
    world.client.taken()
    assert world.pull(1) == []


def test_max_waiting_does_not_count_requesters_that_have_gone(world: World) -> None:
    world.consumer(max_waiting=1)
    leave = world.client.subscribe("_INBOX.gone")
    world.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b"1", "_INBOX.gone")
    leave()
    world.clock.advance(2 * SECOND)
    assert world.pull(1) == []
    assert world.info()["num_waiting"] == 1


def test_nothing_is_lost_to_a_requester_that_has_gone(world: World) -> None:
    world.consumer()
    leave = world.client.subscribe("_INBOX.gone")
    world.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b"1", "_INBOX.gone")
    world.clock.turn()
    leave()
    world.next({"batch": 1})
    world.store("s.a")
    assert [message.numbers for message in world.client.taken()] == [(1, 1, 1, 0)]


def test_idle_heartbeats_until_the_end(world: World) -> None:
    world.store("s.a")
    world.consumer()
    world.pull(2, expires=SECOND, idle_heartbeat=300 * MS)
    world.clock.advance(SECOND)
    got = world.client.taken()
    beat = "NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 1\r\nNats-Last-Stream: 1\r\n\r\n"
    assert [message.header for message in got[:3]] == [beat] * 3
    assert got[3].status == "408 Request Timeout"
    assert len(got) == 4


def test_max_ack_pending_holds_deliveries_until_an_ack(world: World) -> None:
    world.store("s.a", "s.b", "s.c")
    world.consumer(max_ack_pending=2)
    first, _ = world.pull(3)
    assert world.info()["num_waiting"] == 1
    world.ack(first)
    assert [message.seq for message in world.client.taken()] == [3]


def test_a_rollup_with_a_wildcard_leaves_nothing_else_to_deliver(world: World) -> None:
    world.stream("R", allow_rollup_hdrs=True)
    for name, subject in (("same", "r.a.*"), ("narrower", "r.a.1"), ("wider", "r.>"), ("other", "r.b")):
        world.consumer(name, "R", filter_subject=subject)
    world.store("r.a.1", "r.b", "r.a.2")
    world.publish("r.a.*", b"sum", header="NATS/1.0\r\nNats-Rollup: sub\r\n\r\n")
    world.clock.turn()
    pending = {name: world.info(name, "R")["num_pending"] for name in ("same", "narrower", "wider", "other")}
    assert pending == {"same": 1, "narrower": 0, "wider": 2, "other": 1}


@pytest.mark.parametrize("payload", [b"", b"+ACK", b"-NAK", b"+WPI", b"+TERM", b"+NXT"])
def test_a_consumer_without_acks_listens_to_none(world: World, payload: bytes) -> None:
    world.consumer(ack_policy="none")
    world.store("s.a", "s.b")
    [message] = world.pull(1)
    for _ in range(2):
        world.ack(message, payload, "_INBOX.me.ack")
        [answer] = world.client.taken()
        assert (answer.subject, answer.status) == ("_INBOX.me.ack", "503")
        assert f"Nats-Subject: {message.reply}\r\n" in answer.header
    world.ack(message, payload)
    assert world.client.taken() == []


def test_a_congested_receiver_waits_alone(world: World) -> None:
    world.consumer()
    slow = type(world.client)(world)
    slow.subscribe("_INBOX.slow")
    world.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b"5", "_INBOX.slow")
    world.next({"batch": 1})
    slow.congested = True
    world.store("s.a", "s.a")
    assert [message.seq for message in world.client.taken()] == [1]
    assert slow.taken() == []
    slow.drain()
    assert [message.seq for message in slow.taken()] == [2]


def test_deleting_the_consumer_ends_waiting_requests(world: World) -> None:
    world.consumer()
    world.pull(1)
    assert world.ask("CONSUMER.DELETE.S.c")["success"]
    assert [message.status for message in world.client.taken()] == ["409 Consumer Deleted"]


def test_deleting_the_stream_ends_waiting_requests(world: World) -> None:
    world.consumer()
    world.pull(1)
    world.ask("STREAM.DELETE.S")
    assert [message.status for message in world.client.taken()] == ["409 Consumer Deleted"]


def test_a_push_consumer_has_no_pull_requests(world: World) -> None:
    world.consumer(deliver_subject="to.me")
    assert world.pull(1)[0].status == "409 Consumer is push based"


def test_a_request_with_an_unknown_api_level(world: World) -> None:
    world.consumer()
    header = "NATS/1.0\r\nNats-Required-Api-Level: 99\r\n\r\n"
    assert world.request("$JS.API.CONSUMER.MSG.NEXT.S.c", b"", header).status == "412 Required Api Level"


@pytest.mark.parametrize(
    ("body", "batch"),
    [(b"", 1), (b"7", 7), (b" 7 ", 7), (b"seven", 1), (b"{}", 1), (b'{"batch":9,"unknown":[1]}', 9), (b"-1", -1)],
)
def test_forms_of_a_request(body: bytes, batch: int) -> None:
    assert parse_next(body).batch == batch


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"batch":"x"}', "json: cannot unmarshal string into Go struct field .batch of type int"),
        (b'{"batch":1', "unexpected end of JSON input"),
        (b'{"expires":10,"idle_heartbeat":6}', "heartbeat value too large"),
        (b'{"min_pending":1}', "Not a Overflow Priority consumer"),
    ],
)
def test_a_bad_request_is_answered_with_the_reason(world: World, body: bytes, text: str) -> None:
    with pytest.raises(BadRequest, match=f"^{re.escape(text)}$"):
        check_fields(parse_next(body), "none")
    world.consumer()
    assert world.request("$JS.API.CONSUMER.MSG.NEXT.S.c", body).status == f"400 Bad Request - {text}"


def test_a_shutdown_ends_waiting_requests(world: World) -> None:
    world.consumer()
    world.pull(3)
    world.engine.node.stop()
    (message,) = world.client.taken()
    assert message.status == "409 Server Shutdown"
    assert "Nats-Pending-Messages: 3" in message.header


def test_many_requests_that_end_one_after_another_are_not_looked_at_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.stream()
    world.consumer(max_waiting=500)
    for number in range(500):
        world.next({"batch": 1, "expires": SECOND + number * SECOND // 100})
    asked = []
    interest = world.hub.interest
    monkeypatch.setattr(world.hub, "interest", lambda *to: (asked.append(to), interest(*to))[1])
    world.clock.advance(10 * SECOND)
    assert [message.status for message in world.client.taken()] == ["408 Request Timeout"] * 500
    assert world.info()["num_waiting"] == 0
    assert len(asked) <= 600


def test_a_request_that_was_served_meanwhile_leaves_nothing_behind() -> None:
    world = World()
    world.stream()
    world.consumer()
    for _ in range(3):
        world.next({"batch": 1, "expires": 30 * SECOND, "idle_heartbeat": SECOND})
    world.store("s.a", "s.b")
    world.client.taken()
    world.clock.advance(2 * SECOND)
    assert [message.status for message in world.client.taken()] == ["100 Idle Heartbeat"] * 2
    world.store("s.c")
    world.client.taken()
    world.clock.advance(60 * SECOND)
    assert world.client.taken() == []
