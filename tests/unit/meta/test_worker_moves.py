"""Tests of what the two holders of a moving stream take, however the messages of three senders arrive."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.meta.worker_moves import MovedStream, StreamArrival, StreamDeparture
from lakestream.ports import Bus, ClientInfo, ListedMessages, Messages, Single

pytestmark = pytest.mark.unit

OLD, NEW, THIRD = "worker-0", "worker-1", "worker-2"
TURN = "turn"
MOVED = MovedStream("U", "A", "S", ["s.*"])


def client_of(worker: str, here: str) -> ClientInfo:
    """Return the client that a message has at worker `here` if it was sent to a client of `worker`."""
    return ClientInfo(1, "", "A", name=worker, kind="Client" if worker == here else "Router")


class Move:
    """A move at its third step: both holders have subscriptions, and every sender sends to both.

    Attributes:
        stored: what the stream of the new holder has taken, by sender.
    """

    def __init__(self, bus: Bus) -> None:
        self.old = StreamDeparture(MOVED, bus, NEW, lambda error: None)
        self.new = StreamArrival(MOVED, NEW, OLD)
        self.stored: dict[str, list[int]] = {OLD: [], NEW: [], THIRD: []}
        self.sent = dict.fromkeys(self.stored, 0)
        self.take = self.new.guard(b"s.*", self._store)
        self.queues: dict[tuple[str, str], deque[object]] = {
            (sender, to): deque() for sender in self.stored for to in (OLD, NEW) if sender != to
        }
        self.unturned = {NEW, THIRD}
        self.has_passed = False

    def _store(self, messages: Messages, begin: int, end: int, client: ClientInfo) -> int:
        for one in messages.messages(begin, end):
            self.stored[one.subject[2:].decode()].append(int(one.payload))
        return end

    def send(self, sender: str) -> None:
        one = Single(b"s." + sender.encode(), b"", b"", b"%d" % self.sent[sender])
        self.sent[sender] += 1
        for to in (OLD, NEW):
            if sender == to:
                self._arrive(sender, to, one)
            else:
                self.queues[sender, to].append(one)

    def turn(self, sender: str) -> None:
        self.unturned.discard(sender)
        if sender == NEW:
            self.new.turned.add(NEW)
        else:
            self.queues[sender, NEW].append(TURN)
        self.queues[sender, OLD].append(TURN)

    def deliver(self, sender: str, to: str) -> None:
        """Have the oldest message of a connection arrive."""
        self._arrive(sender, to, self.queues[sender, to].popleft())

    def _arrive(self, sender: str, to: str, what: object) -> None:
        if isinstance(what, Single):
            take = self.old.take if to == OLD else self.take
            if to == NEW or not self.has_passed:
                take(ListedMessages([what]), 0, 1, client_of(sender, to))
        elif to == NEW:
            if what is not TURN:
                self.new.passed = what  # type: ignore[assignment]
            self.new.turned.add(sender)
            if not self.new.is_over and self.new.is_complete({OLD, THIRD}):
                self.new.end()
        else:
            self.old.turned.add(sender)
            if self.old.turned == {NEW, THIRD}:
                self.has_passed = True
                self.queues[OLD, NEW].append((self.old.held, self.old.turned))


@given(st.randoms(use_true_random=False))
def test_every_message_is_stored_once_and_in_the_order_of_its_sender(chance: random.Random) -> None:
    move = Move(None)  # type: ignore[arg-type]
    for _ in range(200):
        busy = [ends for ends, queue in move.queues.items() if queue]
        if busy and chance.random() < 0.6:
            move.deliver(*chance.choice(busy))
        elif move.unturned and chance.random() < 0.05:
            move.turn(chance.choice(sorted(move.unturned)))
        else:
            move.send(chance.choice(sorted(move.sent)))
    for sender in sorted(move.unturned):
        move.turn(sender)
    while busy := [ends for ends, queue in move.queues.items() if queue]:
        move.deliver(*chance.choice(busy))
    assert move.new.is_over
    assert move.stored == {sender: list(range(number)) for sender, number in move.sent.items()}


def test_a_stream_serves_without_its_old_holder_and_without_senders_that_are_gone() -> None:
    arrival = StreamArrival(MOVED, NEW, OLD)
    assert not arrival.is_complete({OLD, THIRD})
    assert arrival.is_complete({THIRD})
    arrival.passed = [], {NEW, THIRD}
    assert not arrival.is_complete({OLD, THIRD})
    assert arrival.is_complete({OLD})
    arrival.turned.add(THIRD)
    assert arrival.is_complete({OLD, THIRD})


def test_only_subscriptions_of_the_stream_are_guarded() -> None:
    arrival = StreamArrival(MOVED, NEW, OLD)

    def take(messages: Messages, begin: int, end: int, client: ClientInfo) -> int:
        return end

    for subject in (b"s.*", b"$JS.API.CONSUMER.MSG.NEXT.S.C", b"$JS.ACK.S.>", b"$JS.ACK.*.*.S.>", b"$JS.FC.S.>"):
        assert arrival.guard(subject, take) is not take
    for subject in (b"s.a", b"$JS.API.CONSUMER.MSG.NEXT.T.S", b"$JS.ACK.T.>", b"S"):
        assert arrival.guard(subject, take) is take
