"""Tests of acks and redeliveries."""

from __future__ import annotations

import gc
import json
import weakref
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.consumer_world import SECOND, Message, World

pytestmark = pytest.mark.unit

WAIT = 30 * SECOND


@pytest.fixture
def world() -> World:
    world = World()
    world.stream()
    return world


def advisories(world: World) -> list[dict[str, object]]:
    """Return the bodies of the advisories since the last call; other messages are dropped."""
    return [json.loads(message.data) for message in world.client.taken() if message.subject.startswith("$JS.EVENT.")]


def test_an_unacked_message_comes_again_after_ack_wait(world: World) -> None:
    world.store("s.a", "s.b")
    world.consumer()
    first, _ = world.pull(2)
    world.ack(first)
    world.next({"batch": 5})
    world.clock.advance(WAIT - 1)
    assert world.client.taken() == []
    world.clock.advance(1)
    assert [message.numbers for message in world.client.taken()] == [(2, 2, 3, 0)]
    assert world.numbers() == ((3, 2), (1, 1), 1, 1, 0)


def test_redeliveries_come_before_new_messages(world: World) -> None:
    world.store("s.a", "s.b", "s.c")
    world.consumer()
    world.pull(2)
    world.clock.advance(WAIT)
    assert [message.seq for message in world.pull(3)] == [1, 2, 3]


@pytest.mark.parametrize("delay", [b'-NAK {"delay": 18446744073709551615}', b"-NAK 9999999999999h", b"-NAK 1e9h"])
def test_a_nak_with_a_delay_that_is_no_duration_is_a_plain_nak(world: World, delay: bytes) -> None:
    """A nak with an invalid delay is a plain nak.

    A deadline beyond 64 bits could not be logged, nor anything else of the consumer after it.
    """
    world.store("s.a", "s.b")
    consumer = world.consumer()
    first, second = world.pull(2)
    world.ack(first, delay)
    assert [message.seq for message in world.pull()] == [1]
    world.ack(second)
    assert consumer.snapshot()
    assert world.clock.failures == []


def test_the_longest_delay_of_a_nak_can_be_logged(world: World) -> None:
    world.store("s.a")
    consumer = world.consumer()
    world.ack(world.pull()[0], b'-NAK {"delay": 9223372036854775807}')
    world.clock.advance(SECOND)
    assert world.pull(no_wait=True)[0].status == "404 No Messages"
    assert consumer.snapshot()


def test_a_consumer_at_the_last_sequence_there_can_be_is_logged_like_any_other(world: World) -> None:
    world.stream("T")
    stream = world.engine.streams["T"]
    stream.store.set_first((1 << 64) - 1)  # the first sequence of new streams is limited to less
    stream.pipeline.next_seq = (1 << 64) - 1
    consumer = world.consumer(stream="T")
    world.store("t.a")
    world.next(stream="T")
    assert world.client.taken()[0].seq == (1 << 64) - 1
    assert consumer.snapshot()
    assert world.clock.failures == []


def test_a_deleted_consumer_leaves_no_trace(world: World) -> None:
    world.store("s.a")
    consumer = weakref.ref(world.consumer())
    world.ack(world.pull()[0])
    world.ask("CONSUMER.DELETE.S.c")
    gc.collect()
    assert consumer() is None


def test_naks_come_again_in_their_order(world: World) -> None:
    world.store(*["s.a"] * 4)
    world.consumer()
    got = world.pull(4)
    for at in (3, 1, 2):
        world.ack(got[at], b"-NAK")
    assert [message.seq for message in world.pull(4)] == [4, 2, 3]


@pytest.mark.parametrize("payload", [b'-NAK {"delay": 2000000000}', b"-NAK 2s"])
def test_a_nak_with_a_delay(world: World, payload: bytes) -> None:
    world.store("s.a")
    world.consumer()
    world.ack(world.pull(1)[0], payload)
    world.next({"batch": 1})
    world.clock.advance(2 * SECOND - 1)
    assert world.client.taken() == []
    world.clock.advance(1)
    assert [message.numbers[0] for message in world.client.taken()] == [2]


def test_work_in_progress_begins_the_wait_anew(world: World) -> None:
    world.store("s.a")
    world.consumer()
    message = world.pull(1)[0]
    world.next({"batch": 1})
    for _ in range(3):
        world.clock.advance(WAIT - SECOND)
        world.ack(message, b"+WPI")
    world.clock.advance(WAIT - 1)
    assert world.client.taken() == []
    world.clock.advance(1)
    assert len(world.client.taken()) == 1


def test_backoff(world: World) -> None:
    world.store("s.a")
    world.consumer(backoff=[SECOND, 3 * SECOND], max_deliver=4)
    world.client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>")
    world.next({"batch": 10})
    times: list[tuple[int, int]] = []
    begin = world.clock.now()
    for _ in range(30):
        elapsed = (world.clock.now() - begin) // SECOND
        times += [(elapsed, message.numbers[0]) for message in world.client.taken() if message.reply]
        world.clock.advance(SECOND)
        if world.numbers()[2] == 0:
            break
    assert times == [(0, 1), (1, 2), (4, 3), (7, 4)]


def test_max_deliver_ends_a_message_once(world: World) -> None:
    world.client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.S.c")
    world.store("s.a", "s.b")
    world.consumer(max_deliver=2)
    world.next({"batch": 10})
    world.clock.advance(10 * WAIT)
    events = advisories(world)
    assert [(event["stream_seq"], event["deliveries"]) for event in events] == [(1, 2), (2, 2)]
    assert events[0]["type"] == "io.nats.jetstream.advisory.v1.max_deliver"
    assert world.numbers() == ((4, 2), (0, 0), 0, 2, 0)
    assert world.engine.streams["S"].store.msgs == 2


@pytest.mark.parametrize("most", [1, 2])
def test_without_a_request_only_a_message_with_a_single_delivery_is_given_up(world: World, most: int) -> None:
    world.client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.S.c")
    world.store("s.a")
    world.consumer(max_deliver=most)
    for _ in range(most):
        world.pull(1)
        assert world.numbers()[2] == 1
        world.clock.advance(WAIT + 1)
    assert [event["deliveries"] for event in advisories(world)] == [1] * (most == 1)
    assert world.numbers()[2] == most - 1
    world.next()
    assert [event["deliveries"] for event in advisories(world)] == [most] * (most > 1)
    assert world.numbers()[2] == 0


def test_term_ends_a_message_with_its_reason(world: World) -> None:
    world.client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.S.c")
    world.store("s.a")
    world.consumer()
    world.ack(world.pull(1)[0], b"+TERM bad row")
    (event,) = advisories(world)
    assert (event["reason"], event["stream_seq"], event["deliveries"]) == ("bad row", 1, 1)
    assert world.numbers() == ((1, 1), (1, 1), 0, 0, 0)


def test_next_acks_and_pulls(world: World) -> None:
    world.store("s.a", "s.b", "s.c")
    world.consumer()
    reply = world.inbox()
    world.ack(world.pull(1)[0], b'+NXT {"batch":2}', reply)
    assert [message.seq for message in world.client.taken()] == [2, 3]
    assert world.numbers()[1] == (1, 1)


def test_ack_all(world: World) -> None:
    world.store(*["s.a"] * 5)
    world.consumer(ack_policy="all")
    got = world.pull(4)
    world.ack(got[2])
    assert world.numbers() == ((4, 4), (3, 3), 1, 0, 1)
    world.clock.advance(WAIT)
    assert [message.seq for message in world.pull(5)] == [4, 5]


def test_acks_of_nothing_change_nothing(world: World) -> None:
    world.store("s.a")
    world.consumer()
    message = world.pull(1)[0]
    for subject in (
        message.reply.replace(".1.1.1.", ".1.77.77."),
        message.reply.replace(".1.1.1.", ".1.-1.1."),
        message.reply.replace(".1.1.1.", ".x.1.1."),
        "$JS.ACK.S.c.1.1",
        "$JS.ACK.S.other.1.1.1.1.0",
        "$JS.ACK.NONE.c.1.1.1.1.0",
    ):
        world.ack(subject, reply="_INBOX.me.none")
    assert [answer.status for answer in world.client.taken()] == ["503"] * 3, "of those that no consumer listens to"
    assert world.numbers()[2] == 1


def test_unknown_ack_payloads_are_answered_and_ignored(world: World) -> None:
    world.store("s.a")
    world.consumer()
    message = world.pull(1)[0]
    assert world.request(message.reply, b"what").data == b""
    assert world.numbers()[2] == 1


def test_version_2_ack_subjects(world: World) -> None:
    world.store("s.a", "s.b")
    world.consumer()
    for message in world.pull(2):
        rest = message.reply.removeprefix("$JS.ACK.")
        world.ack(f"$JS.ACK._.ACCOUNT.{rest}" + (".random" if message.seq == 2 else ""))
    assert world.numbers()[2] == 0


def test_sampled_acks(world: World) -> None:
    world.client.subscribe("$JS.EVENT.METRIC.CONSUMER.ACK.S.c")
    world.store("s.a")
    world.consumer(sample_freq="100%")
    message = world.pull(1)[0]
    world.clock.advance(5 * SECOND)
    world.ack(message)
    (event,) = advisories(world)
    assert (event["ack_time"], event["consumer_seq"], event["deliveries"]) == (5 * SECOND, 1, 1)


def test_messages_that_leave_the_stream_are_not_pending_any_more(world: World) -> None:
    world.store("s.a", "s.b", "s.a")
    world.consumer()
    world.pull(2)
    world.ask("STREAM.MSG.DELETE.S", {"seq": 1})
    assert world.numbers() == ((2, 2), (1, 1), 1, 0, 1)
    world.ask("STREAM.MSG.DELETE.S", {"seq": 3})
    assert world.numbers()[-1] == 0
    world.clock.advance(WAIT)
    assert [message.seq for message in world.pull(5)] == [2]
    world.ask("STREAM.PURGE.S")
    assert world.numbers() == ((3, 3), (3, 3), 0, 0, 0)


def test_a_purge_of_other_subjects_leaves_a_filtered_consumer_alone(world: World) -> None:
    world.store("s.a", "s.a", "s.b")
    world.consumer(filter_subject="s.b")
    world.ask("STREAM.PURGE.S", {"filter": "s.a"})
    assert world.numbers() == ((0, 0), (0, 0), 0, 0, 1)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from(["store", "pull", "ack", "ack", "nak", "wait", "delete", "limit"]), min_size=1, max_size=40
    ),
    st.sampled_from([{}, {"filter_subject": "s.a"}, {"filter_subject": "s.*", "max_ack_pending": 2}]),
    st.randoms(use_true_random=False),
)
def test_every_message_is_delivered_until_it_is_acked(steps: list[str], config: dict[str, Any], random: Random) -> None:
    """num_pending is exact at every step, and in the end every stored message was acked or is delivered again."""
    world = World()
    world.stream()
    consumer = world.consumer(**config)
    store = world.engine.streams["S"].store
    unacked: dict[int, Message] = {}
    acked: set[int] = set()
    choice = random.choice
    for step in steps:
        if step == "store":
            world.store("s.a", "s.b")
        elif step == "pull":
            world.next({"batch": 3, "no_wait": True})
        elif step == "ack" and unacked:
            seq = choice(sorted(unacked))
            world.ack(unacked.pop(seq))
            acked.add(seq)
        elif step == "nak" and unacked:
            world.ack(unacked[choice(sorted(unacked))], b"-NAK")
        elif step == "wait":
            world.clock.advance(WAIT)
        elif step == "delete" and store.msgs:
            world.ask("STREAM.MSG.DELETE.S", {"seq": choice(list(store.live.members(1, 100)))})
        elif step == "limit" and store.msgs:
            world.ask("STREAM.PURGE.S", {"keep": 3})
        for message in world.client.taken():
            if message.reply:
                assert message.seq in store.live
                assert message.seq not in acked
                unacked[message.seq] = message
        unacked = {seq: message for seq, message in unacked.items() if seq in store.live}
        wanted = [one.seq for one in store.read_run(1, 1000, 1 << 30) if consumer.feed.selection.matches(one.subject)]
        assert consumer.feed.pending() == sum(seq > consumer.ledger.delivered_stream for seq in wanted)
        assert set(consumer.ledger.pending) == set(unacked)
    for _ in range(20):
        world.clock.advance(WAIT)
        world.next({"batch": 100, "no_wait": True})
        while got := [message for message in world.client.taken() if message.reply]:
            for message in got:
                assert message.seq not in acked
                world.ack(message)
                acked.add(message.seq)
    assert acked >= set(wanted)
    assert world.numbers()[2] == 0


def test_many_deadlines_that_are_over_are_looked_at_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from lakestream.stream.consumer import redelivery

    monkeypatch.setattr(redelivery, "EXPIRED_AT_ONCE", 4)
    world = World()
    world.stream()
    world.store(*["s.a"] * 20)
    consumer = world.consumer()
    for _ in range(5):
        world.pull(4)
    parts = []
    expired = consumer.redelivery._expired

    def noted(now: int) -> list[int]:
        seqs = expired(now)
        parts.append(len(seqs))
        return seqs

    monkeypatch.setattr(consumer.redelivery, "_expired", noted)
    world.next({"batch": 20})
    world.clock.advance(2 * WAIT)
    assert [message.seq for message in world.client.taken() if message.reply] == list(range(1, 21))
    assert len(parts) > 1
    assert max(parts) <= 8


def test_a_message_that_waits_and_is_put_off_comes_after_those_that_wait_on(world: World) -> None:
    world.store("s.a", "s.b", "s.c")
    world.consumer()
    first, *_ = world.pull(3)
    world.clock.advance(WAIT)
    world.ack(first, b'-NAK {"delay":1000000000}')
    world.clock.advance(2 * SECOND)
    assert [message.seq for message in world.pull(3)] == [2, 3, 1]
