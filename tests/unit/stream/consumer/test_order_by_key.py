"""Tests of order by key: whatever members do, one message of a key is out at a time, and those of a key in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from lakestream.stream.consumer.order_by_key import KEY, MAX_GONE, KeyOrder, KeyRule
from tests.unit.consumer_world import SECOND, Client, Message, World

pytestmark = pytest.mark.unit

WAIT = 30 * SECOND


def keyed(setting: str = "token:2", **config: Any) -> dict[str, Any]:
    return {"metadata": {KEY: setting}, **config}


@pytest.fixture
def world() -> World:
    world = World()
    world.stream()
    return world


def seqs(messages: list[Message]) -> list[int]:
    return [message.seq for message in messages if message.reply]


# ---------------------------------------------------------------------- the setting
@pytest.mark.parametrize(
    ("setting", "config", "error"),
    [
        ("token:0", {}, "'token:0' is neither token:N, N from 1 to 99, nor header:Name"),
        ("subject", {}, "'subject' is neither token:N, N from 1 to 99, nor header:Name"),
        ("header:a b", {}, "'header:a b' is neither token:N, N from 1 to 99, nor header:Name"),
        ("token:2", {"deliver_subject": "d"}, "it needs a pull consumer"),
        ("token:2", {"ack_policy": "all"}, "it needs ack policy explicit"),
        (
            "token:2",
            {"max_ack_pending": -1},
            "it needs a max_ack_pending, which limits the messages that are held back",
        ),
        ("token:2", {"replay_policy": "original"}, "it needs replay policy instant"),
    ],
)
def test_a_setting_that_cannot_be_followed_is_refused(
    world: World, setting: str, config: dict[str, Any], error: str
) -> None:
    fields = {"name": "c", "durable_name": "c", "ack_policy": "explicit"} | keyed(setting) | config
    answer = world.ask("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": fields})
    assert answer["error"]["err_code"] == 10052
    assert answer["error"]["description"] == f"{KEY}: {error}"


def test_the_key_is_a_token_or_a_header() -> None:
    assert [KeyRule(token=2).key_of(subject, b"") for subject in (b"s.a.b", b"s.a", b"s")] == [b"a", b"a", b""]
    rule = KeyRule(header=b"Order-Id")
    assert rule.key_of(b"s.a", b"NATS/1.0\r\nOrder-Id: 7\r\n\r\n") == b"7"
    assert rule.key_of(b"s.a", b"") == b""


def test_the_line_of_a_key_does_not_keep_what_was_removed_behind_its_first() -> None:
    order = KeyOrder()
    assert order.add(1, b"k")
    for seq in range(2, 10 * MAX_GONE):
        assert not order.add(seq, b"k")
        assert order.settle(seq) == 0
    assert len(order._lines[b"k"]) < 2 * MAX_GONE
    assert order.settle(1) == 0
    assert b"k" not in order


# ---------------------------------------------------------------------- one at a time
def test_a_slow_key_holds_back_its_own_messages_only(world: World) -> None:
    world.store("s.a", "s.a", "s.b", "s.a", "s.b")
    world.consumer(**keyed())
    first = world.pull(5, no_wait=True)
    assert seqs(first) == [1, 3]
    assert world.numbers()[2:] == (5, 0, 0), "what is held back is pending, and not redelivered"
    world.ack(first[1])
    assert seqs(world.pull(5, no_wait=True)) == [5]
    world.ack(first[0])
    assert [message.numbers[:2] for message in world.pull(5, no_wait=True) if message.reply] == [(1, 2)]


def test_a_waiting_request_gets_the_next_message_of_a_key_with_the_ack(world: World) -> None:
    world.store("s.a", "s.a")
    world.consumer(**keyed())
    first = world.pull(2, expires=60 * SECOND)
    assert seqs(first) == [1]
    world.ack(first[0])
    assert seqs(world.client.taken()) == [2]


@pytest.mark.parametrize("payload", [b"-NAK", b'-NAK {"delay": 1000000000}', b"+WPI", b""])
def test_a_message_that_is_not_settled_comes_again_before_the_next(world: World, payload: bytes) -> None:
    world.store("s.a", "s.a")
    world.consumer(**keyed())
    first = world.pull(1)
    if payload:
        world.ack(first[0], payload)
    world.clock.advance(WAIT)
    again = world.pull(2, expires=SECOND)
    assert [message.numbers[:2] for message in again] == [(2, 1)]
    world.ack(again[0])
    assert [message.numbers[:2] for message in world.client.taken()] == [(1, 2)]


@pytest.mark.parametrize("max_deliver", [1, 2])
def test_a_message_that_is_given_up_lets_the_next_follow(world: World, max_deliver: int) -> None:
    world.store("s.a", "s.a")
    world.consumer(**keyed(max_deliver=max_deliver))
    for _ in range(max_deliver):
        assert seqs(world.pull(1)) == [1]
        world.clock.advance(WAIT)
    assert seqs(world.pull(1)) == [2]


def test_a_removed_message_lets_the_next_follow(world: World) -> None:
    world.store("s.a", "s.a", "s.a")
    world.consumer(**keyed())
    assert seqs(world.pull(3, expires=60 * SECOND)) == [1]
    world.ask("STREAM.MSG.DELETE.S", {"seq": 2})
    world.ask("STREAM.MSG.DELETE.S", {"seq": 1})
    assert seqs(world.client.taken()) == [3]


def test_a_dead_letter_holds_back_the_next_until_it_is_stored(world: World) -> None:
    world.store("s.a", "s.a")
    config = keyed()
    config["metadata"]["lakestream.dead_letter"] = "dead.s"
    world.consumer(**config)
    world.ack(world.pull(1)[0], b"+TERM")
    assert seqs(world.pull(1, no_wait=True)) == []
    world.stream("DEAD", subjects=["dead.>"])
    world.clock.advance(5 * SECOND)
    assert seqs(world.pull(1)) == [2]


def test_a_nak_of_a_message_that_nobody_has_does_nothing(world: World) -> None:
    world.store("s.a", "s.a")
    world.consumer(**keyed())
    first = world.pull(2, no_wait=True)[0]
    forged = first.reply.replace(".1.1.1.", ".1.2.2.")
    for payload in (b"-NAK", b"+WPI"):
        world.ack(forged, payload)
        world.clock.advance(WAIT // 2)
        assert seqs(world.pull(2, no_wait=True)) in ([], [1])
    world.ack(first)
    assert seqs(world.pull(2, no_wait=True)) == [2]


def test_held_back_messages_count_for_max_ack_pending(world: World) -> None:
    world.store("s.a", "s.a", "s.a", "s.b")
    world.consumer(**keyed(max_ack_pending=3))
    first = world.pull(4, expires=60 * SECOND)
    assert seqs(first) == [1]
    world.ack(first[0])
    assert seqs(world.client.taken()) == [2, 4]


# ---------------------------------------------------------------------- changes, restarts
def test_a_work_queue_keeps_what_is_held_back(world: World) -> None:
    world.stream("W", retention="workqueue")
    world.store("w.a", "w.a")
    world.consumer(stream="W", **keyed())
    for seq in (1, 2):
        world.next({"batch": 1}, stream="W")
        [message] = world.client.taken()
        assert message.seq == seq
        assert world.ask("STREAM.INFO.W")["state"]["messages"] == 3 - seq
        world.ack(message)


def test_without_its_key_a_consumer_delivers_what_it_held_back(world: World) -> None:
    world.store("s.a", "s.a", "s.a")
    world.consumer(**keyed())
    assert seqs(world.pull(3, no_wait=True)) == [1]
    world.consumer()
    assert seqs(world.pull(3, no_wait=True)) == [2, 3]


def test_a_key_that_comes_later_orders_what_is_pending(world: World) -> None:
    world.store("s.a", "s.a", "s.a")
    world.consumer()
    first = world.pull(3)
    world.consumer(**keyed())
    world.ack(first[1], b"-NAK")
    assert seqs(world.pull(3, no_wait=True)) == []
    world.ack(first[0])
    assert seqs(world.pull(3, no_wait=True)) == [2]


def test_a_reset_forgets_the_order(world: World) -> None:
    world.store("s.a", "s.a")
    world.consumer(**keyed())
    world.pull(2, no_wait=True)
    world.ask("CONSUMER.RESET.S.c")
    assert seqs(world.pull(2, no_wait=True)) == [1]


@pytest.mark.parametrize("setting", ["token:2", "header:K"])
def test_the_order_survives_a_crash(tmp_path: Path, setting: str) -> None:
    world = World(tmp_path)
    world.stream()
    for key in "aab":
        world.publish(f"s.{key}", header=f"NATS/1.0\r\nK: {key}\r\n\r\n")
    world.clock.turn()
    world.consumer(**keyed(setting))
    first = world.pull(3, no_wait=True)
    assert seqs(first) == [1, 3]
    world.clock.advance(SECOND)  # the progress is logged
    world = world.crash(tmp_path)
    assert seqs(world.pull(3, no_wait=True)) == []
    world.ack(first[0], reply=world.inbox())
    world.client.taken()
    world = world.crash(tmp_path)
    assert seqs(world.pull(3, no_wait=True)) == [2]
    world.clock.advance(WAIT)
    assert sorted(seqs(world.pull(3, no_wait=True))) == [2, 3]


# ---------------------------------------------------------------------- any members
KEYS = ["a", "b", "c", ""]
MEMBERS = 3


class Members(RuleBasedStateMachine):
    """Members pull from one consumer, ack, refuse, stall and vanish.

    The model: which messages of a key are settled, and until when the others are out. A message with `max_deliver`
    deliveries whose last one has failed may be given up at any moment.
    """

    @initialize(
        max_deliver=st.sampled_from([-1, 2]), max_ack_pending=st.integers(3, 9), setting=st.sampled_from(["token", "K"])
    )
    def begin(self, max_deliver: int, max_ack_pending: int, setting: str) -> None:
        self.world = World()
        self.world.stream(subjects=["s", "s.>"])
        rule = "token:2" if setting == "token" else "header:K"
        self.world.consumer(**keyed(rule, max_deliver=max_deliver, max_ack_pending=max_ack_pending))
        self.max_deliver, self.max_ack_pending = max_deliver, max_ack_pending
        self.members = [Client(self.world) for _ in range(MEMBERS)]
        self.leaving = [member.subscribe(f"_INBOX.m{at}.*") for at, member in enumerate(self.members)]
        self.keys: list[str] = []
        self.settled: set[int] = set()
        self.counts: dict[int, int] = {}
        self.out: dict[int, tuple[Message, int]] = {}
        """Sequence → last delivery, and until when nobody else may have the message."""
        self.refused: dict[int, int] = {}
        """Sequence → deadline of its delivery before the -NAK, which the ledger does not tell a new leader."""
        self.forgotten = 0
        """Until when a new leader may wait for such messages."""
        self.number = 0

    # ------------------------------------------------------------------ the model
    def key(self, seq: int) -> str:
        return self.keys[seq - 1]

    def is_given_up(self, seq: int) -> bool:
        return self.counts.get(seq, 0) == self.max_deliver and self.out[seq][1] <= self.world.clock.time

    def collect(self) -> list[Message]:
        self.world.clock.turn()
        got = [message for member in self.members for message in member.taken() if message.reply]
        now = self.world.clock.time
        for message in sorted(got, key=lambda message: message.seq):
            seq, key = message.seq, self.key(message.seq)
            assert seq not in self.settled
            assert seq not in self.out or self.out[seq][1] <= now, "a message that another member has"
            self.counts[seq] = self.counts.get(seq, 0) + 1
            assert message.numbers[0] == self.counts[seq]
            before = [other for other in range(1, seq) if key and self.key(other) == key]
            assert all(other in self.settled or self.is_given_up(other) for other in before), "an earlier one is open"
            self.settled.update(before)
            self.out[seq] = message, now + WAIT
            self.refused.pop(seq, 0)
        return got

    # ------------------------------------------------------------------ what happens
    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=6))
    def publish(self, keys: list[str]) -> None:
        for key in keys:
            self.keys.append(key)
            self.world.publish(f"s.{key}" if key else "s", header=f"NATS/1.0\r\nK: {key}\r\n\r\n")
        self.collect()

    @rule(member=st.integers(0, MEMBERS - 1), batch=st.integers(1, 4), wait=st.booleans())
    def pull(self, member: int, batch: int, wait: bool) -> None:
        self.number += 1
        body = b'{"batch":%d,%b}' % (batch, b'"expires":20000000000' if wait else b'"no_wait":true')
        self.world.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", body, f"_INBOX.m{member}.{self.number}")
        self.collect()

    @precondition(lambda self: self.out)
    @rule(data=st.data(), payload=st.sampled_from([b"+ACK", b"+ACK", b"", b"+TERM"]))
    def settle(self, data: st.DataObject, payload: bytes) -> None:
        seq = data.draw(st.sampled_from(sorted(self.out)))
        message, _ = self.out[seq]
        self.settled.add(seq)
        self.world.ack(message, payload)
        self.collect()

    @precondition(lambda self: self.out)
    @rule(data=st.data(), delay=st.sampled_from([0, 5]))
    def nak(self, data: st.DataObject, delay: int) -> None:
        seq = data.draw(st.sampled_from(sorted(self.out)))
        message, until = self.out[seq]
        now = self.world.clock.time
        if seq in self.settled or until <= now:
            return
        if not delay:
            self.refused[seq] = until
        self.out[seq] = message, now + delay * SECOND
        self.world.ack(message, b'-NAK {"delay":%d}' % (delay * SECOND) if delay else b"-NAK")
        self.collect()

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def work_on(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(sorted(self.out)))
        message, until = self.out[seq]
        now = self.world.clock.time
        if seq in self.settled or until <= now:
            return
        self.out[seq] = message, now + WAIT
        self.world.ack(message, b"+WPI")
        self.collect()

    @rule(seconds=st.sampled_from([1, 10, 31]))
    def wait(self, seconds: int) -> None:
        for _ in range(seconds):
            self.world.clock.advance(SECOND)
            self.collect()

    @precondition(lambda self: self.keys)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        seq = data.draw(st.integers(1, len(self.keys)))
        self.world.publish("$JS.API.STREAM.MSG.DELETE.S", b'{"seq":%d}' % seq)
        self.settled.add(seq)
        self.collect()

    @rule(member=st.integers(0, MEMBERS - 1))
    def vanish(self, member: int) -> None:
        """The member goes away with all that it has, and comes back as a new one."""
        self.leaving[member]()
        self.leaving[member] = self.members[member].subscribe(f"_INBOX.m{member}.*")
        self.collect()

    @rule()
    def lead_anew(self) -> None:
        """Another node leads: all that it knows is what the ledger has."""
        consumers = self.world.engine.streams["S"].consumers
        consumers.follow()
        consumers.lead(False)
        self.forgotten = max([self.forgotten, *self.refused.values()])
        self.world.clock.advance(SECOND)  # the timer of passed deadlines
        self.collect()

    @rule()
    def a_free_key_is_served(self) -> None:
        info = self.world.info()
        open_ = [seq for seq in range(1, len(self.keys) + 1) if seq not in self.settled and not self.given_up(seq)]
        firsts = {self.key(seq) or seq: seq for seq in reversed(open_)}.values()
        now = self.world.clock.time
        if info["num_ack_pending"] + info["num_pending"] > self.max_ack_pending:
            return  # what is held back may leave no room
        if info["num_waiting"] or self.forgotten > now:
            return
        ready = [seq for seq in firsts if seq not in self.out or self.out[seq][1] <= now]
        self.number += 1
        self.world.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"no_wait":true}', f"_INBOX.m0.{self.number}")
        assert len(self.collect()) == min(len(ready), 1)

    def given_up(self, seq: int) -> bool:
        return seq in self.out and self.is_given_up(seq)

    def teardown(self) -> None:
        """Nothing is lost: a member that acks gets all that is not settled."""
        if not hasattr(self, "world"):
            return
        for _ in range(2 * len(self.keys) + 2):
            self.world.clock.advance(WAIT)
            self.collect()
            self.pull(0, 4, False)
            for seq in sorted(self.out):
                if seq not in self.settled and self.out[seq][1] > self.world.clock.time:
                    self.settled.add(seq)
                    self.world.ack(self.out[seq][0])
                    self.collect()
        assert [seq for seq in range(1, len(self.keys) + 1) if seq not in self.settled and not self.given_up(seq)] == []
        assert self.world.numbers()[2] == self.world.numbers()[4] == 0
        assert not self.world.clock.failures


TestMembers = Members.TestCase
TestMembers.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
