"""Tests of push consumers on virtual time."""

from __future__ import annotations

import pytest

from lakestream.stream.consumer.push import FIRST_WINDOW_BYTES
from tests.unit.consumer_world import MS, SECOND, Client, World

pytestmark = pytest.mark.unit


@pytest.fixture
def world() -> World:
    world = World()
    world.stream()
    return world


def seqs(client: Client) -> list[int]:
    return [message.seq for message in client.taken() if message.reply.startswith("$JS.ACK.")]


def test_everything_then_what_comes(world: World) -> None:
    world.client.subscribe("to.me")
    world.store("s.a", "s.b")
    world.consumer(deliver_subject="to.me", ack_policy="none")
    first, second = world.client.taken()
    assert (first.subject, first.numbers) == ("s.a", (1, 1, 1, 1))
    assert second.numbers == (1, 2, 2, 0)
    world.store("s.c")
    assert seqs(world.client) == [3]
    assert world.numbers() == ((3, 3), (3, 3), 0, 0, 0)


def test_nothing_is_delivered_without_interest(world: World) -> None:
    world.store("s.a", "s.b")
    world.consumer(deliver_subject="to.me")
    assert "push_bound" not in world.info()
    leave = world.client.subscribe("to.me")
    assert seqs(world.client) == [1, 2]
    assert world.info()["push_bound"] is True
    leave()
    world.store("s.c")
    assert world.client.taken() == []
    world.client.subscribe("to.me")
    assert seqs(world.client) == [3]


def test_a_deliver_group_shares(world: World) -> None:
    members = [Client(world), Client(world)]
    world.consumer(deliver_subject="to.us", deliver_group="workers")
    lone = Client(world)
    lone.subscribe("to.us")
    world.store("s.a")
    assert world.info()["num_pending"] == 1
    for member in members:
        member.subscribe("to.us", "workers")
    world.store(*["s.a"] * 20)
    got = [seqs(member) for member in members]
    assert sorted(got[0] + got[1]) == list(range(1, 22))


def test_idle_heartbeats_fill_silence(world: World) -> None:
    world.client.subscribe("to.me")
    world.store("s.a")
    world.consumer(deliver_subject="to.me", idle_heartbeat=200 * MS)
    world.clock.advance(150 * MS)
    world.store("s.b")
    world.client.taken()
    world.clock.advance(199 * MS)
    assert world.client.taken() == []
    world.clock.advance(401 * MS)
    beats = world.client.taken()
    assert [beat.subject for beat in beats] == ["to.me"] * 3
    assert beats[0].header == "NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 2\r\nNats-Last-Stream: 2\r\n\r\n"


def test_flow_control_stops_at_the_window_until_it_is_answered(world: World) -> None:
    world.client.subscribe("to.me")
    size = FIRST_WINDOW_BYTES // 4
    world.consumer(
        deliver_subject="to.me", ack_policy="none", flow_control=True, idle_heartbeat=5 * SECOND, max_deliver=1
    )
    world.store(*["s.a"] * 12, data=b"x" * size)
    got = world.client.taken()
    assert [message.status for message in got] == ["", "", "100 FlowControl Request", "", ""]
    request = got[2].reply
    assert request.startswith("$JS.FC.S.c.")
    assert len(request) == len("$JS.FC.S.c.") + 4
    world.clock.advance(5 * SECOND)
    (beat,) = world.client.taken()
    assert beat.header.endswith(f"Nats-Last-Stream: 4\r\nNats-Consumer-Stalled: {request}\r\n\r\n")
    world.publish("$JS.FC.S.c.none")
    assert world.client.taken() == []
    world.publish(request)
    got = world.client.taken()
    assert [message.status for message in got].count("100 FlowControl Request") == 1
    assert [message.seq for message in got if message.data] == list(range(5, 11))


def test_headers_only(world: World) -> None:
    world.client.subscribe("to.me")
    world.publish("s.a", b"hello", header="NATS/1.0\r\nA: b\r\n\r\n")
    world.publish("s.a", b"you")
    world.consumer(deliver_subject="to.me", ack_policy="none", headers_only=True)
    got = world.client.taken()
    assert [message.header for message in got] == [
        "NATS/1.0\r\nA: b\r\nNats-Msg-Size: 5\r\n\r\n",
        "NATS/1.0\r\nNats-Msg-Size: 3\r\n\r\n",
    ]
    assert {message.data for message in got} == {b""}


def test_the_rate_limit(world: World) -> None:
    world.client.subscribe("to.me")
    world.store(*["s.a"] * 12, data=b"x" * ((1 << 18) - 100))
    world.consumer(deliver_subject="to.me", ack_policy="none", rate_limit_bps=8 << 18)
    assert len(seqs(world.client)) == 4
    world.clock.advance(3 * SECOND + MS)
    assert len(seqs(world.client)) == 3
    world.clock.advance(60 * SECOND)
    assert len(seqs(world.client)) == 5


@pytest.mark.parametrize(("largest", "header"), [(-1, b""), (-1, b"NATS/1.0\r\nKey: value\r\n\r\n"), (100_000, b"")])
def test_the_rate_limit_counts_all_that_is_sent(world: World, largest: int, header: bytes) -> None:
    world.stream("R", max_msg_size=largest)
    for _ in range(1100):
        world.publish("r.a", b"x" * 1024, header=header.decode())
    world.clock.turn()
    world.client.subscribe("to.me")
    world.consumer(stream="R", deliver_subject="to.me", ack_policy="none", rate_limit_bps=8)
    world.clock.advance(SECOND)
    burst, sizes = (1 << 20) if largest < 0 else largest, 0
    got = world.client.taken()
    for message in got:
        sizes += len(message.subject) + len(message.reply) + len(message.header) + len(message.data)
    one = sizes / len(got)
    assert burst - one < sizes <= burst + 1


def test_replay_at_the_original_pace(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", world.clock.now)
    for _ in range(3):
        world.store("s.a", "s.a")
        world.clock.advance(2 * SECOND)
    world.client.subscribe("to.me")
    world.consumer(deliver_subject="to.me", ack_policy="none", replay_policy="original")
    assert seqs(world.client) == [1, 2]
    world.clock.advance(2 * SECOND - 1)
    assert seqs(world.client) == []
    world.clock.advance(1)
    assert seqs(world.client) == [3, 4]
    world.clock.advance(2 * SECOND)
    assert seqs(world.client) == [5, 6]
    world.clock.advance(60 * SECOND)
    world.store("s.a")
    assert seqs(world.client) == [7]


def test_a_congested_receiver_holds_the_consumer(world: World) -> None:
    slow = Client(world)
    slow.subscribe("to.me")
    slow.congested = True
    world.store("s.a", "s.b")
    world.consumer(deliver_subject="to.me")
    assert slow.taken() == []
    slow.drain()
    assert seqs(slow) == [1, 2]


def test_pause_holds_deliveries_but_not_heartbeats(world: World) -> None:
    world.client.subscribe("to.me")
    world.client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.PAUSE.S.c")
    world.consumer(deliver_subject="to.me", idle_heartbeat=SECOND)
    until = world.clock.now() + 5 * SECOND
    answer = world.ask("CONSUMER.PAUSE.S.c", {"pause_until": "2023-11-14T22:13:25Z"})
    assert until == 1_700_000_005 * SECOND
    assert answer["paused"] is True
    assert answer["pause_remaining"] == 5 * SECOND
    assert b'"paused":true' in world.client.taken()[0].data
    world.store("s.a")
    world.clock.advance(3 * SECOND)
    assert [message.status for message in world.client.taken()] == ["100 Idle Heartbeat"] * 3
    assert world.info()["paused"] is True
    world.clock.advance(2 * SECOND)
    got = world.client.taken()
    assert [message.seq for message in got if message.subject == "s.a"] == [1]
    assert any(b'"paused":false' in message.data for message in got)
    assert world.info()["config"]["pause_until"] == "2023-11-14T22:13:25Z"


def test_an_ephemeral_push_consumer_goes_after_its_last_subscriber(world: World) -> None:
    leave = world.client.subscribe("to.me")
    world.consumer(deliver_subject="to.me", inactive_threshold=SECOND)
    world.clock.advance(10 * SECOND)
    assert "error" not in world.info()
    leave()
    world.clock.advance(SECOND // 2)
    leave = world.client.subscribe("to.me")
    world.clock.advance(10 * SECOND)
    leave()
    world.clock.advance(SECOND)
    assert world.info()["error"]["err_code"] == 10014


def test_an_ephemeral_pull_consumer_without_requests_is_removed(world: World) -> None:
    world.consumer(inactive_threshold=SECOND)
    for _ in range(5):
        world.clock.advance(SECOND // 2)
        world.pull(1, no_wait=True)
    world.pull(1)
    world.clock.advance(10 * SECOND)
    assert "error" not in world.info()
    world.store("s.a")
    world.clock.advance(4 * SECOND)
    assert world.info()["error"]["err_code"] == 10014


def test_a_changed_deliver_subject(world: World) -> None:
    world.consumer(deliver_subject="to.me")
    world.client.subscribe("to.other")
    world.store("s.a")
    assert world.client.taken() == []
    world.consumer(deliver_subject="to.other")
    assert seqs(world.client) == [1]
    answer = world.ask(
        "CONSUMER.CREATE.S.c",
        {"stream_name": "S", "config": {"durable_name": "c", "ack_policy": "explicit", "deliver_subject": "to.me"}},
    )
    assert answer["error"]["err_code"] == 10013


def test_turns_begin_small_and_are_bounded(world: World) -> None:
    world.client.subscribe("to.me")
    world.store(*["s.a"] * 3000)
    world.consumer(deliver_subject="to.me", ack_policy="none")
    assert seqs(world.client) == list(range(1, 3001))
    world.consumer(name="d", deliver_subject="to.you", ack_policy="none")
    other = Client(world)
    other.subscribe("to.you")
    consumer = world.engine.streams["S"].consumers["d"]
    other.got.clear()
    consumer.apply_reset(1)
    sizes = []
    for _ in range(6):
        before = len(other.got)
        consumer.delivery.turn()
        sizes.append(len(other.got) - before)
    assert sizes == [128, 256, 512, 1024, 1024, 56]
    consumer.delivery.turn()
    world.store(*["s.a"] * 300)
    assert len(other.got) == 3300
