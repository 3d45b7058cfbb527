"""Tests of the ledger of deliveries and acks."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.stream.consumer.ledger import (
    ConsumerSnapshot,
    Delta,
    Ledger,
    decode_snapshot,
    encode_delta,
    encode_snapshot,
)

pytestmark = pytest.mark.unit


def delivered(*seqs: int) -> Ledger:
    ledger = Ledger(0, 1)
    ledger.deliver(seqs, now=10, deadline=40)
    return ledger


def test_consumer_sequences_count_deliveries() -> None:
    ledger = delivered(3, 5, 9)
    assert ledger.pending == {3: 1, 5: 2, 9: 3}
    assert (ledger.delivered_consumer, ledger.delivered_stream) == (3, 9)
    ledger.redeliver(5, 50, 80)
    assert ledger.delivered_consumer == 4
    assert ledger.pending[5] == 2
    assert ledger.deliveries(5) == 2


def test_the_floor_is_before_the_oldest_pending() -> None:
    ledger = delivered(3, 5, 9)
    ledger.ack(5, 20)
    assert ledger.floor() == (0, 0)
    ledger.ack(3, 20)
    assert ledger.floor() == (2, 8)
    ledger.ack(9, 20)
    assert ledger.floor() == (3, 9)


def test_the_floor_stays_when_the_next_message_is_far_above() -> None:
    ledger = delivered(1)
    ledger.ack(1, 20)
    ledger.deliver([100], 30, 60)
    assert ledger.floor() == (1, 1)


def test_a_message_that_ended_by_max_deliver_holds_the_floor_until_nothing_is_pending() -> None:
    ledger = delivered(1, 2, 3)
    ledger.redeliver(1, 50, 80)
    ledger.exhausted(1, 90)
    ledger.ack(2, 100)
    assert ledger.floor() == (0, 0)
    assert ledger.redelivered == {1: 1}
    ledger.ack(3, 100)
    assert ledger.floor() == (4, 3)


def test_ack_all_covers_what_is_below() -> None:
    ledger = delivered(1, 2, 3, 4)
    assert ledger.ack_through(3, 20) == [1, 2, 3]
    assert ledger.floor() == (3, 3)
    assert ledger.ack_through(2, 20) == []
    assert ledger.ack_through(4, 20) == [4]
    assert ledger.floor() == (4, 4)


@pytest.mark.parametrize("consumer_seq", [2, 5, 99])
def test_ack_all_lifts_the_floor_to_the_last_delivery_when_nothing_is_pending(consumer_seq: int) -> None:
    ledger = delivered(1, 2)
    for seq in (1, 2, 2):
        ledger.redeliver(seq, 15, 30)
    assert ledger.ack_through(2, 20, consumer_seq) == [1, 2]
    assert ledger.floor() == (5, 2)


def test_ack_all_of_a_later_delivery_lifts_the_floor_to_the_first_one_of_the_message() -> None:
    ledger = delivered(1, 2, 3)
    for seq in (1, 2, 3):
        ledger.redeliver(seq, 15, 30)
    assert ledger.ack_through(2, 20, 5) == [1, 2]
    assert ledger.floor() == (2, 2)


def test_a_purge_lifts_the_stream_sequence_but_not_the_consumer_sequence() -> None:
    ledger = delivered(1, 2)
    for seq in (1, 2):
        ledger.removed(seq, 20)
    ledger.purged(9)
    assert (ledger.delivered_consumer, ledger.delivered_stream) == (2, 8)
    assert ledger.floor() == (2, 8)
    assert ledger.next_seq == 9


def test_a_ledger_that_logs_nothing_records_no_removals() -> None:
    # A follower of a work queue: deliveries come in deltas, and acked messages are removed.
    leader, follower = Ledger(0, 1), Ledger(0, 1)
    for seq in range(1, 101):
        leader.deliver([seq], now=10, deadline=40)
        follower.apply(leader.take_delta() or b"")
        leader.ack(seq, 20)
        assert follower.removed(seq, 20, log=False)
        follower.apply(leader.take_delta() or b"")
    assert not follower.pending
    assert not follower._dirty
    assert follower.floor() == leader.floor() == (100, 100)


def test_a_delta_from_before_a_reset_means_nothing_after_it() -> None:
    ledger = delivered(1, 2)
    before = ledger.take_delta()
    assert before is not None
    ledger.reset(1)
    ledger.apply(before)
    assert ledger.pending == {}
    assert ledger.delivered_consumer == 0


def test_nothing_changed_is_no_delta() -> None:
    ledger = delivered(1)
    assert ledger.take_delta() is not None
    assert ledger.take_delta() is None


def test_an_acked_redelivery_is_not_counted_after_replay() -> None:
    ledger = delivered(1, 2)
    ledger.redeliver(1, 50, 80)
    deltas = [ledger.take_delta()]
    ledger.exhausted(1, 90)
    deltas.append(ledger.take_delta())
    ledger.ack(2, 95)
    deltas.append(ledger.take_delta())
    ledger.removed(1, 99)
    deltas.append(ledger.take_delta())
    replica = Ledger(0, 1)
    for delta in deltas:
        assert delta is not None
        replica.apply(delta)
    assert replica.redelivered == {}
    assert replica.pending == {}


def test_a_snapshot_survives_encoding() -> None:
    ledger = delivered(1, 2, 7)
    ledger.ack(2, 20)
    saved = decode_snapshot(encode_snapshot(ConsumerSnapshot(b"{}", 5, [9], ledger.whole())))
    assert saved.picked == [9]
    copy = Ledger(0, 1)
    copy.apply(saved.state)
    assert copy.pending == {1: 1, 7: 3}
    assert copy.whole() == ledger.whole()


class Steps:
    """Random operations of a consumer, with a simple implementation of the rules."""

    def __init__(self) -> None:
        self.ledger = Ledger(0, 1)
        self.deltas: list[bytes] = []
        self.first_delivery: dict[int, int] = {}
        self.acked: set[int] = set()
        self.count = 0
        self.now = 100

    def do(self, step: tuple[str, int]) -> None:
        what, number = step
        self.now += 1
        ledger = self.ledger
        if what == "deliver":
            first = ledger.delivered_stream + 1 + number % 3
            seqs = list(range(first, first + 1 + number % 4))
            ledger.deliver(seqs, self.now, self.now + 30)
            for seq in seqs:
                self.count += 1
                self.first_delivery[seq] = self.count
        elif what == "log":
            delta = ledger.take_delta()
            if delta is not None:
                self.deltas.append(delta)
        elif ledger.pending:
            seq = sorted(ledger.pending)[number % len(ledger.pending)]
            if what == "ack":
                assert ledger.ack(seq, self.now)
                self.acked.add(seq)
            else:
                ledger.redeliver(seq, self.now, self.now + 30)
                self.count += 1


@given(
    st.lists(st.tuples(st.sampled_from(["deliver", "ack", "ack", "again", "log"]), st.integers(0, 1000)), max_size=60)
)
def test_agrees_with_the_naive_reading_and_replays_to_the_same(steps: list[tuple[str, int]]) -> None:
    life = Steps()
    for step in steps:
        life.do(step)
    ledger = life.ledger
    expected = {seq: number for seq, number in life.first_delivery.items() if seq not in life.acked}
    assert ledger.pending == expected
    assert list(ledger.pending) == sorted(expected)
    assert set(ledger.deadline) == set(expected)
    floor_consumer, floor_stream = ledger.floor()
    if expected:
        assert floor_stream < min(expected)
        assert floor_consumer < min(expected.values())
    elif life.acked:
        assert (floor_consumer, floor_stream) == (ledger.delivered_consumer, ledger.delivered_stream)
    life.do(("log", 0))
    replica = Ledger(0, 1)
    for delta in life.deltas:
        replica.apply(delta)
    assert replica.pending == ledger.pending
    assert replica.redelivered == ledger.redelivered
    assert replica.floor() == ledger.floor()
    assert replica.delivered_consumer == ledger.delivered_consumer


@given(
    st.lists(st.tuples(st.sampled_from(["deliver", "ack", "again", "log"]), st.integers(0, 1000)), max_size=40),
    st.integers(0, 40),
)
def test_deltas_over_a_later_checkpoint_lose_no_confirmed_ack(steps: list[tuple[str, int]], at: int) -> None:
    """Deltas applied over a later checkpoint lose no confirmed ack."""
    life = Steps()
    checkpoint: Delta | None = None
    logged = 0
    for number, step in enumerate(steps):
        if number == at:
            checkpoint, logged = life.ledger.whole(), len(life.deltas)
        life.do(step)
    life.do(("log", 0))
    recovered = Ledger(0, 1)
    if checkpoint is not None:
        recovered.apply(checkpoint)
    for delta in life.deltas[logged:]:
        recovered.apply(delta)
    assert recovered.pending == life.ledger.pending
    assert recovered.floor() == life.ledger.floor()


def test_messages_that_follow_each_other_take_no_more_than_one() -> None:
    ledger = Ledger(0, 1)
    ledger.deliver(range(1, 100_001), 5, 50)
    delta = ledger.take_delta()
    assert delta is not None
    assert len(delta) < 100
    ledger.ack(50_000, 6)
    assert len(encode_delta(ledger.whole())) < 100
    other = Ledger(0, 1)
    other.apply(delta)
    assert other.pending == dict(zip(range(1, 100_001), range(1, 100_001), strict=True))
    assert set(other.deadline.values()) == {50}
    other.apply(ledger.take_delta() or b"")
    assert 50_000 not in other.pending
    assert other.pending == ledger.pending


def test_a_delta_as_older_servers_wrote_it_is_understood() -> None:
    ledger = Ledger(0, 1)
    ledger.apply(msgspec.msgpack.encode([0, 3, 3, 0, 0, 4, 1, 0, [(1, 1, 9), (3, 3, 8)], [(1, 2)], [2]]))
    assert ledger.pending == {1: 1, 3: 3}
    assert ledger.deadline == {1: 9, 3: 8}
    assert ledger.redelivered == {1: 2}


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_the_deltas_tell_it_all(seed: int) -> None:
    """Ledgers that follow every delta, from the beginning or from a state, equal the leader's."""
    chance, leads, follows = random.Random(seed), Ledger(0, 1), Ledger(0, 1)
    seq = 0
    for now in range(1, 301):
        waiting = list(leads.pending)
        match chance.randrange(9):
            case 0 | 1 | 2:
                seqs = sorted({seq + chance.randrange(1, 4 if chance.random() < 0.5 else 2) for _ in range(4)})
                seqs = list(range(seqs[0], seqs[0] + 6)) if chance.random() < 0.6 else seqs
                seq = seqs[-1]
                leads.deliver(seqs, now, now + chance.choice([0, 10]))
            case 3 | 4 if waiting:
                for one in chance.sample(waiting, min(len(waiting), 3)):
                    leads.ack(one, now)
            case 5 if waiting:
                leads.redeliver(chance.choice(waiting), now, now + 10)
            case 6 if waiting:
                leads.ack_through(chance.choice(waiting), now)
            case 7 if waiting:
                leads.removed(chance.choice(waiting), now)
            case 8 if (delta := leads.take_delta()) is not None:
                follows.apply(delta)
    if (delta := leads.take_delta()) is not None:
        follows.apply(delta)
    fresh = Ledger(0, 1)
    fresh.apply(leads.take_whole())
    for other in (follows, fresh):
        assert list(other.pending.items()) == list(leads.pending.items())
        assert other.deadline == leads.deadline
        assert {one: leads.redelivered[one] for one in leads.pending if one in leads.redelivered} == {
            one: other.redelivered[one] for one in other.pending if one in other.redelivered
        }
        assert other.floor() == leads.floor()


def test_the_oldest_pending_message_is_found_at_once_however_many_before_it_are_done() -> None:
    ledger = Ledger(0, 1)
    ledger.deliver(range(1, 50_001), 1, 0)
    for seq in range(1, 49_001):
        ledger.ack(seq, 2)
    assert ledger.floor() == (49_000, 49_000)
    assert ledger._inserted == 1000
    assert list(ledger.pending) == list(range(49_001, 50_001))


def test_a_consumer_in_memory_keeps_no_changes_that_nobody_logs() -> None:
    """Naks and acks of redelivered messages were noted for ever."""
    ledger = Ledger(0, 1)
    ledger.logged = False
    for seq in range(1, 200):
        ledger.deliver([seq], seq, 1000)
        ledger.postpone(seq, 2000)
        ledger.redeliver(seq, seq, 2000)
        if seq % 3 == 0:
            ledger.exhausted(seq, seq)
        elif seq % 3 == 1:
            ledger.ack(seq, seq)
        else:
            ledger.removed(seq, seq)
    ledger.deliver([200, 201], 200, 1000)
    ledger.redeliver(200, 200, 2000)
    ledger.ack_through(200, 201)
    delta = msgspec.msgpack.decode(ledger.take_delta() or b"", type=Delta)
    assert (delta.pending, delta.redelivered, delta.gone) == ([], [], [])
