"""Tests of a consumer compared with the model: publishes, acks of all kinds, time, removals, restarts, crashes."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from lakestream.protocol.subjects import matches
from lakestream.stream.consumer.consumer import Consumer
from tests.consumer_model import ConsumerModel, Waiting
from tests.unit.consumer_world import SECOND, Message, World

pytestmark = pytest.mark.unit

STEPS = int(os.environ.get("LAKESTREAM_CONSUMER_STEPS", "150"))
LIVES = int(os.environ.get("LAKESTREAM_CONSUMER_LIVES", "10"))
SEED = int(os.environ.get("LAKESTREAM_CONSUMER_SEED", "1"))
TOKENS = "abcd"

CONFIGS: list[dict[str, Any]] = [
    {},
    {"filter_subject": "s.a"},
    {"filter_subjects": ["s.b", "s.c"], "max_ack_pending": 7},
    {"max_deliver": 3, "ack_wait": 5 * SECOND},
    {"filter_subject": "s.*", "max_deliver": 4, "backoff": [1 * SECOND, 4 * SECOND, 9 * SECOND]},
]


class Life:
    """One consumer and its model."""

    def __init__(self, directory: Path, config: dict[str, Any], chance: random.Random) -> None:
        self.directory, self.chance = directory, chance
        self.world = World(directory)
        self.world.stream(max_msgs_per_subject=chance.choice([-1, -1, 6]), allow_rollup_hdrs=True)
        self.world.consumer(**config)
        filters = config.get("filter_subjects") or [config.get("filter_subject", ">")]
        backoff = config.get("backoff")
        ack_wait = config.get("ack_wait", 30 * SECOND)
        self.model = ConsumerModel(
            wants=lambda subject: any(matches(one.encode(), subject.encode()) for one in filters),
            wait=lambda nth: backoff[min(nth, len(backoff)) - 1] if backoff else ack_wait,
            max_deliver=config.get("max_deliver", 0),
            max_ack_pending=config.get("max_ack_pending", 0),
        )
        self.messages: dict[int, Message] = {}
        self.confirmed: set[int] = set()

    @property
    def consumer(self) -> Consumer:
        return self.world.engine.streams["S"].consumers["c"]

    @property
    def now(self) -> int:
        return self.world.clock.time

    def steady(self) -> int:
        return self.now()

    # ------------------------------------------------------------------ operations
    def store(self) -> None:
        subjects = [f"s.{self.chance.choice(TOKENS)}" for _ in range(self.chance.randrange(1, 6))]
        self.world.store(*subjects)
        self._look()

    def pull(self) -> None:
        model, batch = self.model, self.chance.randrange(1, 8)
        if model.max_ack_pending:  # a request for more than there is room for waits, even with no_wait
            batch = min(batch, len(model.queue) + model.max_ack_pending - len(model.waiting))
            if batch <= 0:
                return
        expected = model.pull(batch, self.now)
        self.world.next({"batch": batch, "no_wait": True})
        got = [message for message in self.world.client.taken() if message.reply]
        assert [(message.seq, message.numbers[0]) for message in got] == expected
        assert [message.numbers[2] for message in got] == list(
            range(self.model.delivered - len(got) + 1, self.model.delivered + 1)
        )
        self.messages.update((message.seq, message) for message in got)

    def ack(self) -> None:
        if (seq := self._some()) is None:
            return
        match self.chance.randrange(3):
            case 0:
                self.world.ack(self.messages[seq])
            case 1:
                self.world.ack(self.messages[seq], b"+TERM")
            case 2:
                reply = self.world.inbox()
                self.world.ack(self.messages[seq], reply=reply)
                assert any(message.subject == reply for message in self.world.client.taken()), "a confirmed ack"
                self.confirmed.add(seq)
        self.model.done(seq)

    def nak(self) -> None:
        if (seq := self._some()) is None:
            return
        match self.chance.randrange(3):
            case 0:
                self.world.ack(self.messages[seq], b"-NAK")
                self.model.nak(seq)
            case 1:
                delay = self.chance.randrange(1, 20) * SECOND
                self.world.ack(self.messages[seq], b'-NAK {"delay":%d}' % delay)
                self.model.nak_later(seq, self.now + delay)
            case 2:
                self.world.ack(self.messages[seq], b"+WPI")
                self.model.progress(seq, self.now)

    def wait(self, ns: int = 0) -> None:
        before = self.now
        self.world.clock.advance(ns or self.chance.randrange(1, 12) * SECOND)
        self.model.pass_time(before, self.now)

    def delete(self) -> None:
        if self.model.live:
            self.world.ask("STREAM.MSG.DELETE.S", {"seq": self.chance.choice(sorted(self.model.live))})
            self._look()

    def roll_up(self) -> None:
        """Publish a message that replaces those of its subject, sometimes all."""
        replaced = "all" if self.chance.random() < 0.1 else "sub"
        header = f"NATS/1.0\r\nNats-Rollup: {replaced}\r\n\r\n"
        self.world.publish(f"s.{self.chance.choice(TOKENS)}", b"", header=header)
        self.world.clock.turn()
        self._look()

    def purge(self) -> None:
        body: dict[str, Any] = {"filter": self.chance.choice(["s.a", "s.b", "s.*", "s.d"])}
        if self.chance.random() < 0.5:
            body["keep"] = self.chance.randrange(4)
        elif self.model.live and self.chance.random() < 0.5:
            body["seq"] = self.chance.choice(sorted(self.model.live))
        self.world.ask("STREAM.PURGE.S", body)
        self._look()

    def restart(self) -> None:
        self.world.engine.node.close()
        later = self.now
        self.world = World(self.directory)
        self.world.clock.time = later
        self._begin_again()

    def crash(self) -> None:
        """Kill when all progress is logged: only the order of waiting messages is lost."""
        self.wait(SECOND)
        self.world = self.world.crash(self.directory)
        self._begin_again()

    def lose(self) -> None:
        """Kill at any moment: unlogged deliveries may be repeated, but not messages with a confirmed ack."""
        before = self.model
        self.world = self.world.crash(self.directory)
        ledger = self.consumer.ledger
        skipped = {seq: subject for seq, subject in before.live.items() if seq >= before.next_seq}
        assert not [seq for seq, subject in skipped.items() if before.wants(subject) and seq <= ledger.delivered_stream]
        assert not self.confirmed & set(ledger.pending), "a confirmed ack does not come back"
        for seq in before.waiting:
            assert seq in ledger.pending or seq > ledger.delivered_stream, "what was not acked comes again"
        before.waiting = {seq: Waiting(ledger.deadline[seq], ledger.deliveries(seq)) for seq in ledger.pending}
        before.again = set(ledger.redelivered)
        before.next_seq, before.delivered = ledger.delivered_stream + 1, ledger.delivered_consumer
        self._begin_again()

    # ------------------------------------------------------------------ comparison
    def _begin_again(self) -> None:
        self.world.clock.advance(SECOND // 1000)
        self.model.restart(self.now)

    def _some(self) -> int | None:
        """Return a message that waits for its ack."""
        waiting = [seq for seq in self.model.waiting if seq in self.messages]
        return self.chance.choice(waiting) if waiting else None

    def _look(self) -> None:
        """Compare the stream's messages with the model."""
        store = self.world.engine.streams["S"].store
        live = {record.seq: record.subject.decode() for record in store.read_run(1, 1 << 20, 1 << 30)}
        for seq in set(self.model.live) - set(live):
            self.model.gone(seq)
        self.model.live = live

    def check(self) -> None:
        info = self.world.info()
        model = self.model
        assert info["num_pending"] == model.num_pending
        assert info["num_ack_pending"] == len(model.waiting)
        assert info["num_redelivered"] == len(model.again)
        assert info["delivered"]["consumer_seq"] == model.delivered
        assert all(seq > info["ack_floor"]["stream_seq"] for seq in model.waiting)

    def end(self) -> None:
        """Deliver every remaining message until it is acked."""
        for _ in range(20):
            self.wait(60 * SECOND)
            self.pull()
            for seq in list(self.model.waiting):
                self.world.ack(self.messages[seq])
                self.model.done(seq)
        if not self.model.num_pending:
            assert self.world.numbers()[2] == 0


@pytest.mark.parametrize("life", range(LIVES))
def test_a_consumer_does_what_the_model_says(tmp_path: Path, life: int) -> None:
    chance = random.Random(SEED * 1000 + life)
    one = Life(tmp_path, CONFIGS[life % len(CONFIGS)], chance)
    weights = {
        one.store: 6, one.pull: 8, one.ack: 8, one.nak: 4, one.wait: 4, one.delete: 2, one.roll_up: 2, one.purge: 1,
        one.restart: 1, one.crash: 1, one.lose: 1,
    }  # fmt: skip
    steps = chance.choices(list(weights), list(weights.values()), k=STEPS)
    for number, step in enumerate(steps):
        try:
            step()
            one.check()
        except AssertionError as error:
            raise AssertionError(
                f"LAKESTREAM_CONSUMER_SEED={SEED}, life {life}, step {number}: {step.__name__}"
            ) from error
    one.end()
    one.world.engine.node.close()
