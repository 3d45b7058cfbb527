"""Consumers of every kind that are used until their server dies, and the audit of their deliveries.

Belongs here: a worker that publishes to a stream of any retention, receives through its consumers and answers each
delivery at random (ack, nak, term, progress, none); and the audit of past and missing deliveries. The tests decide when
and how the server dies.

One connection carries everything, so its order is meaningful: a message before a PONG was sent before the server read
what followed the PING. That does not hold if another node leads the stream (`near=False`): then a message may have been
in flight when its ack was confirmed.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable
from typing import Any

from tests.chaos.audit import read_all
from tests.wire import Closed, Frame, Wire, pub

SECOND = 1_000_000_000
ACK_WAIT_S = 0.5
DELAYS_S = (0.05, 0.2, 0.7)
UNDER_WAY_S = 2.0
ANSWER_S = 1.0
"""Timeout in seconds after which a request counts as lost with its leader."""
SOON_S = 20.0
"""Timeout in seconds for required deliveries, sufficient on slow machines."""
SUBJECTS = 3


class Told:
    """State of one consumer: deliveries, acks, and deliveries still required."""

    def __init__(self, name: str, config: dict[str, Any], numbers: set[int]) -> None:
        self.name = name
        self.config = config
        self.numbers = numbers
        """Numbers of the subjects that match its filters."""
        self.most: int = config.get("max_deliver", -1)
        self.all = config["ack_policy"] == "all"
        self.confirmed: dict[int, float] = {}
        """Sequence → time at which the ack was confirmed; the message may not be delivered again."""
        self.doubtful: set[int] = set()
        """Sequences acked without confirmation before the server died: a redelivery is allowed but not required."""
        self.settled: set[int] = set()
        """Sequences whose acks the running server has read."""
        self.said: set[int] = set()
        """Sequences acked since the last PING."""
        self.fenced: set[int] = set()
        """Sequences acked before the last PING, whose PONG has not arrived."""
        self.counts: dict[int, int] = {}
        """Sequence → upper bound of the number of deliveries so far, as far as it is known."""
        self.earliest: dict[int, float] = {}
        """Sequence → earliest time of a redelivery while the same server runs."""
        self.seen: set[int] = set()
        """Sequences delivered since the server started."""
        self.asking = 0
        """Number of messages that the last pull request may still bring."""
        self.asked_at = 0.0

    def given(self, seq: int, deliveries: int, near: bool, sent_at: float) -> None:
        """Record a delivery that was sent at `sent_at` or later; assert that it was allowed."""
        now = time.monotonic()
        since = now - self.confirmed.get(seq, now)
        assert seq not in self.confirmed or (not near and since < UNDER_WAY_S), f"{self.name}: {seq} was confirmed"
        assert not near or seq not in self.settled, f"{self.name}: {seq} was acked, and the server had read that"
        assert not near or now >= self.earliest.get(seq, 0.0), f"{self.name}: {seq} came too early"
        assert self.most < 0 or deliveries <= self.most, f"{self.name}: {seq} came for the {deliveries}th time"
        self.counts[seq] = deliveries
        self.earliest[seq] = sent_at + ACK_WAIT_S
        self.seen.add(seq)
        self.doubtful.discard(seq)

    @property
    def push(self) -> bool:
        """Return True for a push consumer."""
        return "deliver_subject" in self.config

    def covers(self, seq: int, known: Iterable[int]) -> list[int]:
        """Return the sequences that an ack of `seq` covers."""
        return [other for other in known if other <= seq] if self.all else [seq]

    def ping(self) -> None:
        """Record that a PING follows the acks sent so far."""
        self.fenced, self.said = self.said, set()

    def pong(self) -> None:
        """Record that the server has read everything sent before the last PING."""
        self.settled |= self.fenced

    def died(self) -> None:
        """Record the death of the server.

        Unconfirmed acks become doubtful, and one delivery of each message may have been lost in flight.
        """
        self.doubtful |= (self.settled | self.fenced | self.said) - set(self.confirmed)
        self.settled, self.fenced, self.said = set(), set(), set()
        self.earliest.clear()
        self.seen = set()
        self.counts = {seq: count + 1 for seq, count in self.counts.items()}
        self.asking = 0

    def owed(self, wanted: Iterable[int]) -> list[int]:
        """Return those of these sequences that must be delivered by the running server."""
        done = self.seen | set(self.confirmed) | self.doubtful
        return [seq for seq in wanted if seq not in done and not self.exhausted(seq)]

    def exhausted(self, seq: int) -> bool:
        """Return True if max_deliver may have been reached."""
        return 0 < self.most <= self.counts.get(seq, 1)


class Deliveries:
    """Uses a stream and its consumers, whose configurations and operations are drawn from a seed.

    near: the server of this connection leads the stream.
    """

    def __init__(self, rng: random.Random, name: str, *, near: bool = True, **config: Any) -> None:
        self._rng = rng
        self.name = name
        self._near = near
        self._retention = rng.choice(("limits", "workqueue", "interest"))
        self._config = {"retention": self._retention, "allow_direct": True, **config}
        self.consumers = self._draw()
        self.content: dict[int, int] = {}
        """Sequence → number of the message, known from an ack or a delivery."""
        self._sequence: dict[int, int] = {}
        self._sent = 0
        self._confirming: dict[str, tuple[Told, list[int]]] = {}
        self._pulls: dict[str, Told] = {}
        self._replies = 0
        self._pinged_at = 0.0
        self.confirmed = 0
        self._wire: Wire

    def _draw(self) -> list[Told]:
        """Draw the states of one or two consumers, as the retention allows."""
        everything = set(range(SUBJECTS))
        wanted = [everything]
        if self._rng.random() < 0.6:
            wanted = [{0}, {1, 2}] if self._retention == "workqueue" else [everything, {0, 2}]
        return [Told(f"c{at}", self._consumer(at, numbers), numbers) for at, numbers in enumerate(wanted)]

    def _consumer(self, at: int, numbers: set[int]) -> dict[str, Any]:
        rng = self._rng
        config: dict[str, Any] = {
            "durable_name": f"c{at}",
            "ack_policy": "all" if self._retention == "limits" and rng.random() < 0.25 else "explicit",
            "ack_wait": int(ACK_WAIT_S * SECOND),
            "max_ack_pending": rng.choice((-1, 20, 1000)),
            "max_deliver": rng.choice((-1, -1, 3, 6)),
        }
        if len(numbers) < SUBJECTS:
            config["filter_subjects"] = [f"{self.name}.{number}" for number in sorted(numbers)]
        if rng.random() < 0.3:
            config |= {"deliver_subject": f"to.{self.name}.{at}"}
        return config

    def __str__(self) -> str:
        return f"{self.name}: {self._config} {[told.config for told in self.consumers]}"

    def prepare(self, wire: Wire) -> None:
        """Create the stream and its consumers."""
        config = {"name": self.name, "subjects": [f"{self.name}.*"], **self._config}
        answer = wire.api(f"STREAM.CREATE.{self.name}", config)
        assert "error" not in answer, answer
        for told in self.consumers:
            body = {"stream_name": self.name, "config": told.config}
            answer = wire.api(f"CONSUMER.CREATE.{self.name}.{told.name}", body)
            assert "error" not in answer, answer

    # ---- the work

    def begin(self, wire: Wire) -> None:
        """Use this connection from now on."""
        self._wire = wire
        self._pinged_at = time.monotonic()
        wire.new_reply()  # subscribe the inbox
        self._confirming.clear()
        self._pulls.clear()
        for told in self.consumers:
            if told.push:
                wire.subscribe(told.config["deliver_subject"])

    def work(self, address: tuple[str, int]) -> None:
        """Use stream and consumers until the connection is lost."""
        try:
            with Wire(address, timeout=SOON_S) as wire:
                self.begin(wire)
                while True:
                    self.publish(self._rng.choice((0, 0, 0, 1, 6)))
                    self.ask(self._rng.choice((1, 5, 30)))
                    self.turn()
        except (Closed, OSError):
            return
        finally:
            self.died()

    def died(self) -> None:
        """Record the death of the server."""
        for told in self.consumers:
            told.died()

    def publish(self, count: int) -> None:
        """Publish `count` messages; their acks are read later."""
        frames = []
        for _ in range(count):
            number, self._sent = self._sent, self._sent + 1
            frames.append(pub(f"{self.name}.{number % SUBJECTS}", b"%d" % number, f"{self._wire.inbox}.p{number}"))
        self._wire.send(b"".join(frames))

    def ask(self, batch: int) -> None:
        """Send a pull request for each pull consumer whose last request is complete."""
        for told in self.consumers:
            now = time.monotonic()
            if told.push or (told.asking > 0 and now < told.asked_at + ANSWER_S):
                continue
            body = {"batch": batch, "expires": SECOND // 10, "no_wait": self._rng.random() < 0.5}
            self._replies += 1
            reply = f"{self._wire.inbox}.r{self._replies}"
            self._pulls[reply] = told
            told.asking, told.asked_at = batch, now
            self._wire.publish(f"$JS.API.CONSUMER.MSG.NEXT.{self.name}.{told.name}", json.dumps(body).encode(), reply)

    def turn(self, gently: bool = False) -> None:
        """Receive messages and answer them. `gently`: with confirmed acks for the most part."""
        pinged_at = time.monotonic()
        for told in self.consumers:
            told.ping()
        for frame in self._wire.ping():
            self._take(frame, gently)
        for told in self.consumers:
            told.pong()
        self._pinged_at = pinged_at

    def _take(self, frame: Frame, gently: bool) -> None:
        kind = frame.subject.rsplit(".", 1)[-1]
        if frame.subject.startswith(f"{self._wire.inbox}.p"):
            self._stored(int(kind[1:]), frame)
        elif frame.subject in self._confirming:
            told, seqs = self._confirming.pop(frame.subject)
            if frame.status:  # no responders
                assert not self._near, frame
                return
            assert not frame.data, frame
            now = time.monotonic()
            for seq in seqs:
                told.confirmed.setdefault(seq, now)
            self.confirmed += 1
        elif frame.reply.startswith("$JS.ACK."):
            self._delivered(frame, gently)
        elif frame.subject in self._pulls:
            self._pulls[frame.subject].asking = 0

    def _stored(self, number: int, frame: Frame) -> None:
        answer: dict[str, Any] = frame.json() if frame.data else {"error": frame.header}
        if "error" not in answer:
            self._learn(answer["seq"], number)
        else:  # it may be stored nevertheless
            assert not self._near, answer

    def _learn(self, seq: int, number: int) -> None:
        assert self.content.setdefault(seq, number) == number, f"{seq} is another message"
        assert self._sequence.setdefault(number, seq) == seq, f"message {number} is stored twice"

    def _delivered(self, frame: Frame, gently: bool) -> None:
        tokens = frame.reply.split(".")
        told = next(each for each in self.consumers if each.name == tokens[3])
        deliveries, seq = int(tokens[4]), int(tokens[5])
        self._learn(seq, int(frame.data))
        told.given(seq, deliveries, self._near, self._pinged_at)
        told.asking -= 1
        self._answer(told, seq, frame.reply, gently)

    # ---- answers to deliveries

    def _answer(self, told: Told, seq: int, subject: str, gently: bool) -> None:
        drawn = self._rng.random() if not gently else self._rng.uniform(0, 0.6)
        if drawn < 0.35 or (gently and drawn < 0.5):
            self._done(told, seq, subject, b"+ACK", confirm=True)
            if drawn < 0.05:  # ack twice
                self._done(told, seq, subject, b"+ACK", confirm=True)
        elif drawn < 0.5:
            self._done(told, seq, subject, self._rng.choice((b"", b"+ACK", b"+TERM no")), confirm=False)
        elif drawn < 0.57:
            self._done(told, seq, subject, b"+TERM", confirm=True)
        elif drawn < 0.7:
            told.earliest.pop(seq, None)
            self._wire.publish(subject, b"-NAK")
        elif drawn < 0.85:
            delay = self._rng.choice(DELAYS_S)
            told.earliest[seq] = time.monotonic() + delay
            self._wire.publish(subject, b'-NAK {"delay": %d}' % int(delay * SECOND))
        elif drawn < 0.92:
            told.earliest[seq] = time.monotonic() + ACK_WAIT_S
            self._wire.publish(subject, b"+WPI")
        elif drawn < 0.96 and not told.push:
            self._done(told, seq, subject, b'+NXT {"batch": 2, "no_wait": true}', confirm=False)

    def _done(self, told: Told, seq: int, subject: str, body: bytes, *, confirm: bool) -> None:
        covered = told.covers(seq, self._wanted(told))
        told.said.update(covered)
        self._replies += 1
        reply = f"{self._wire.inbox}.a{self._replies}"
        if confirm:
            self._confirming[reply] = (told, covered)
        elif not body.startswith(b"+NXT"):  # the answer to +NXT is a message
            reply = ""
        self._wire.publish(subject, body, reply)

    def _wanted(self, told: Told) -> list[int]:
        """Return the stored sequences that match the consumer's filters."""
        return [seq for seq, number in self.content.items() if number % SUBJECTS in told.numbers]

    # ---- the audit

    def audit(self, wire: Wire) -> None:
        """Audit a restarted server: no confirmed message is redelivered, and every required one is delivered."""
        self.begin(wire)
        self._check_content()
        deadline = time.monotonic() + SOON_S
        while owed := {told.name: left for told in self.consumers if (left := told.owed(self._wanted(told)))}:
            assert time.monotonic() < deadline, f"not delivered: {owed}"
            self.ask(200)
            self.turn(gently=True)

    def _check_content(self) -> None:
        """Assert that undelivered messages are stored, and that interest and work queues keep no acked ones."""
        stored = {message.seq for message in read_all(self._wire, self.name)}
        owed = {seq for told in self.consumers for seq in told.owed(self._wanted(told))}
        assert owed <= stored, f"{self.name}: gone and not acked: {sorted(owed - stored)}"
        if self._retention != "limits":
            kept = self._done_with() & stored
            assert not kept, f"{self.name}: acked by all and still there: {sorted(kept)}"
        for told in self.consumers:
            floor = self._info(told)["ack_floor"]["stream_seq"]
            under = [seq for seq in told.owed(self._wanted(told)) if seq <= floor]
            assert not under, f"{told.name}: not acked and below the floor {floor}: {under}"

    def _done_with(self) -> set[int]:
        """Return the sequences confirmed by every consumer whose filters match."""
        return {
            seq
            for seq, number in self.content.items()
            if all(seq in told.confirmed for told in self.consumers if number % SUBJECTS in told.numbers)
        }

    def finish(self, wire: Wire) -> None:
        """Ack everything; assert that num_pending and num_ack_pending reach 0 and that no message was missed."""
        self.audit(wire)
        deadline = time.monotonic() + SOON_S
        while left := [numbers for told in self.consumers if any(numbers := self._numbers(told))]:
            assert time.monotonic() < deadline, f"{self}: neither acked nor delivered: {left}"
            self.ask(200)
            self.turn(gently=True)
        self._check_content()
        for told in self.consumers:
            missing = [seq for seq in self._wanted(told) if not told.counts.get(seq) and seq not in told.confirmed]
            missing = [seq for seq in missing if seq not in told.doubtful]
            assert not missing, f"{told.name} never had {missing}"

    def _numbers(self, told: Told) -> tuple[int, int]:
        """Return num_pending and num_ack_pending of a consumer."""
        info = self._info(told)
        assert info["ack_floor"]["stream_seq"] <= info["delivered"]["stream_seq"], info
        return info["num_pending"], info["num_ack_pending"]

    def _info(self, told: Told) -> dict[str, Any]:
        info: dict[str, Any] = self._wire.api(f"CONSUMER.INFO.{self.name}.{told.name}")
        return info
