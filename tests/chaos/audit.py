"""Clients that use a server until it is killed, and audit it after its restart.

Belongs here: for each guarantee (an acked publish, a confirmed delete, purge or ack) the work that collects
confirmations, and the audit of a restarted server against them. The tests decide when and how the server dies.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.wire import Closed, Frame, Wire, pub

SECOND = 1_000_000_000
AUDIT_TIMEOUT_S = 20.0
WINDOW = 256
"""Maximum number of unanswered publishes of one connection."""


class Stored(NamedTuple):
    """Message as read from a stream."""

    seq: int
    subject: str
    msg_id: str
    data: bytes


def read_all(wire: Wire, stream: str, first: int = 1) -> Iterator[Stored]:
    """Yield all messages of a stream from a sequence on, read by direct get batches."""
    while True:
        reply = wire.new_reply()
        wire.publish(f"$JS.API.DIRECT.GET.{stream}", b'{"seq":%d,"batch":1000}' % first, reply)
        frame = wire.message(reply)
        if frame.status == 404:
            return
        while not frame.status:
            fields = frame.headers
            first = int(fields["Nats-Sequence"]) + 1
            yield Stored(first - 1, fields["Nats-Subject"], fields.get("Nats-Msg-Id", ""), frame.data)
            frame = wire.message(reply)
        assert frame.status == 204, frame
        if frame.headers["Nats-Num-Pending"] == "0":
            return


class Publisher:
    """Publishes numbered messages, pipelined, and records every ack.

    may_refuse: the server is being stopped and may answer with errors, which end the work; otherwise an error fails the
    test. config: configuration fields that override the defaults.
    """

    stream = "KILLED"

    def __init__(self, rng: random.Random, *, may_refuse: bool = False, **config: Any) -> None:
        self._rng = rng
        self._config = config
        self._may_refuse = may_refuse
        self._next = 1
        self._sent: dict[int, tuple[str, bytes]] = {}
        self.acked: dict[int, int] = {}
        self._audited = 0
        self.has_ack = threading.Event()

    def prepare(self, wire: Wire) -> None:
        """Create the stream."""
        config = {
            "name": self.stream,
            "subjects": ["killed.>"],
            "allow_direct": True,
            "duplicate_window": 3600 * SECOND,
            **self._config,
        }
        assert "error" not in wire.api(f"STREAM.CREATE.{self.stream}", config)

    def work(self, address: tuple[str, int]) -> None:
        """Publish until the connection is lost."""
        self.has_ack.clear()
        try:
            with Wire(address, timeout=AUDIT_TIMEOUT_S) as wire:
                waiting: set[int] = set()
                while True:
                    self._send(wire, [self._new() for _ in range(WINDOW - len(waiting))], waiting)
                    self._take(wire.next(), waiting)
                    while wire.waiting:
                        self._take(wire.next(), waiting)
        except (Closed, OSError):
            return

    def _new(self) -> int:
        number, self._next = self._next, self._next + 1
        size = self._rng.choice((0, 10, 100, 1000))
        self._sent[number] = (f"killed.{number % 7}", b"%d:" % number + b"x" * size)
        return number

    def _send(self, wire: Wire, numbers: list[int], waiting: set[int]) -> None:
        if not waiting:
            wire.new_reply()  # subscribe the inbox
        waiting.update(numbers)
        frames = []
        for number in numbers:
            subject, data = self._sent[number]
            frames.append(pub(subject, data, f"{wire.inbox}.n{number}", {"Nats-Msg-Id": str(number)}))
        wire.send(b"".join(frames))

    def _take(self, frame: Frame, waiting: set[int]) -> None:
        number = int(frame.subject.rsplit(".n", 1)[1])
        answer: dict[str, Any] = frame.json() if frame.data else {"error": frame.header}
        if "error" in answer and self._may_refuse:
            raise Closed
        assert "error" not in answer, answer
        self.acked[number] = answer["seq"]
        waiting.discard(number)
        self.has_ack.set()

    def audit(self, wire: Wire) -> None:
        """Assert that the server kept every ack since the last audit; then publish the unacked messages again."""
        self._compare(list(read_all(wire, self.stream, self._audited + 1)), self._audited)
        unacked = [number for number in self._sent if number not in self.acked]
        for start in range(0, len(unacked), WINDOW):
            waiting: set[int] = set()
            self._send(wire, unacked[start : start + WINDOW], waiting)
            while waiting:
                self._take(wire.next(), waiting)
        self._repeat_some(wire)
        self._compare(list(read_all(wire, self.stream, self._audited + 1)), self._audited)
        self._audited = max(self.acked.values(), default=0)
        info = wire.api(f"STREAM.INFO.{self.stream}")["state"]
        assert (info["messages"], info["first_seq"], info["last_seq"]) == (self._audited, 1, self._audited), info

    def audit_everything(self, wire: Wire) -> None:
        """Assert that the server kept every ack ever received."""
        self._compare(list(read_all(wire, self.stream)), 0)

    def _repeat_some(self, wire: Wire) -> None:
        """Publish acked messages again within the duplicate window.

        Assert that they are duplicates with the old sequence.
        """
        for number in self._rng.sample(sorted(self.acked), min(8, len(self.acked))):
            subject, data = self._sent[number]
            answer = wire.request(subject, data, {"Nats-Msg-Id": str(number)}).json()
            assert (answer.get("duplicate"), answer["seq"]) == (True, self.acked[number]), (number, answer)

    def _compare(self, stored: list[Stored], after: int) -> None:
        ids = [int(message.msg_id) for message in stored]
        assert ids == sorted(set(ids)), "stored twice, or out of order"
        by_seq = {message.seq: message for message in stored}
        assert list(by_seq) == list(range(after + 1, after + len(stored) + 1)), "sequences have holes"
        for message in stored:
            subject, data = self._sent[int(message.msg_id)]
            assert (message.subject, message.data) == (subject, data), f"content of {message.seq} changed"
        lost = {number: seq for number, seq in self.acked.items() if seq > after and seq not in by_seq}
        assert not lost, f"acked and lost: {lost}"
        moved = [number for number, seq in self.acked.items() if seq > after and int(by_seq[seq].msg_id) != number]
        assert not moved, f"another message has the acked sequence of {moved}"


class Operator:
    """Publishes, deletes, purges, and acks through a consumer; records the confirmed operations.

    acks_survive: a confirmed ack must outlive a kill. (nats-server confirms acks before they are on disk.)
    """

    stream = "OPERATED"

    def __init__(self, rng: random.Random, *, acks_survive: bool) -> None:
        self._rng = rng
        self._acks_survive = acks_survive
        self._live: dict[int, tuple[str, bytes]] = {}
        self._gone: set[int] = set()
        self._in_doubt: set[int] = set()
        self.acked: set[int] = set()
        self._number = 0
        self.confirmed = 0

    def prepare(self, wire: Wire) -> None:
        """Create the stream and its consumer."""
        config: dict[str, Any] = {"name": self.stream, "subjects": ["operated.*"], "allow_direct": True}
        assert "error" not in wire.api(f"STREAM.CREATE.{self.stream}", config)
        config = {"durable_name": "c", "ack_policy": "explicit", "ack_wait": SECOND // 2, "max_ack_pending": -1}
        body = {"stream_name": self.stream, "config": config}
        assert "error" not in wire.api(f"CONSUMER.CREATE.{self.stream}.c", body)

    def work(self, address: tuple[str, int]) -> None:
        """Operate until the connection is lost."""
        try:
            with Wire(address, timeout=AUDIT_TIMEOUT_S) as wire:
                while True:
                    for _ in range(6):
                        self._publish(wire)
                    self._rng.choice((self._delete, self._delete, self._purge, self._ack, self._ack, self._ack))(wire)
        except (Closed, OSError):
            return

    def _publish(self, wire: Wire) -> None:
        self._number += 1
        subject, data = f"operated.{self._rng.randrange(5)}", b"%d" % self._number
        seq = wire.request(subject, data).json()["seq"]
        self._live[seq] = (subject, data)

    def _remove(self, sequences: list[int], wire: Wire, subject: str, body: dict[str, Any]) -> None:
        self._in_doubt.update(sequences)
        answer = wire.api(f"{subject}.{self.stream}", body)
        assert answer.get("success"), answer
        self._settle(sequences)
        self.confirmed += 1

    def _settle(self, gone: list[int]) -> None:
        self._in_doubt.difference_update(gone)
        self._gone.update(gone)
        for seq in gone:
            self._live.pop(seq, None)

    def _delete(self, wire: Wire) -> None:
        if self._live:
            seq = self._rng.choice(sorted(self._live))
            self._remove([seq], wire, "STREAM.MSG.DELETE", {"seq": seq})

    def _purge(self, wire: Wire) -> None:
        subject = f"operated.{self._rng.randrange(5)}"
        matching = sorted(seq for seq, (of, _) in self._live.items() if of == subject)
        keep = self._rng.randrange(1, 4)
        self._remove(matching[:-keep], wire, "STREAM.PURGE", {"filter": subject, "keep": keep})

    def _ack(self, wire: Wire) -> None:
        for frame in self._pull(wire, 10):
            if self._rng.random() < 0.7:
                self._confirm(wire, frame)

    def _pull(self, wire: Wire, batch: int) -> list[Frame]:
        """Pull the next messages; assert that none of them has a confirmed ack."""
        wire.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.c", b'{"batch":%d,"no_wait":true}' % batch, wire.new_reply()
        )
        frames: list[Frame] = []
        while len(frames) < batch:
            frame = wire.next()
            if frame.status:
                break
            frames.append(frame)
        sequences = [int(frame.reply.split(".")[5]) for frame in frames]
        back = [seq for seq in sequences if seq in self.acked]
        assert not back, f"confirmed acks came back: {back}"
        return frames

    def _confirm(self, wire: Wire, frame: Frame) -> None:
        answer = wire.request(frame.reply, b"+ACK")
        assert not answer.data, answer
        self.acked.add(int(frame.reply.split(".")[5]))
        self.confirmed += 1

    def audit(self, wire: Wire) -> None:
        """Assert that the server kept what it had confirmed."""
        if not self._acks_survive:
            self.acked.clear()
        stored = {message.seq: (message.subject, message.data) for message in read_all(wire, self.stream)}
        back = self._gone & set(stored)
        assert not back, f"removed and back: {sorted(back)}"
        lost = [seq for seq in self._live if seq not in stored and seq not in self._in_doubt]
        assert not lost, f"acked and lost: {lost}"
        changed = [seq for seq, message in self._live.items() if seq in stored and stored[seq] != message]
        assert not changed, f"content changed: {changed}"
        self._settle([seq for seq in self._in_doubt if seq not in stored])
        self._in_doubt.clear()
        self._live = stored  # includes messages that were stored but not acked
        for frame in self._pull(wire, 10_000):
            if self._rng.random() < 0.5:
                self._confirm(wire, frame)
