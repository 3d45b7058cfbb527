"""Tests of SIGKILL during batches: an atomic batch is stored whole or not at all, a fast one as far as it was acked.

The seed is printed; LAKESTREAM_KILL_SEED repeats its choices.
"""

from __future__ import annotations

import os
import random
import threading
import time

import pytest

from tests.chaos.audit import AUDIT_TIMEOUT_S, SECOND, read_all
from tests.conftest import StartServer
from tests.servers import Kind
from tests.wire import Closed, Wire, pub

pytestmark = pytest.mark.chaos

ROUNDS = 6
LONGEST_LIFE_S = 0.3
OPEN = 5
"""Maximum number of unanswered commits."""

# Small segments, so that kills also fall between two of them and frames exceed the rest of a segment.
CONFIGS = {
    Kind.REAL: "jetstream { sync_interval: always }",
    Kind.OURS: "lake { seal_bytes: 200k, seal_age: 1s }",
}


class Batches:
    """Publishes atomic batches of random lengths, with single messages between them, until the connection is lost."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._next = 1
        self.acked: dict[str, tuple[int, int]] = {}
        """Last sequence and count of each acked batch."""
        self.has_ack = threading.Event()

    def prepare(self, wire: Wire) -> None:
        """Create the stream."""
        config = {"name": "B", "subjects": ["b.*"], "allow_direct": True, "allow_atomic": True}
        assert "error" not in wire.api("STREAM.CREATE.B", config | {"duplicate_window": 3600 * SECOND})

    def work(self, address: tuple[str, int]) -> None:
        """Publish until the connection is lost."""
        self.has_ack.clear()
        try:
            with Wire(address) as wire:
                waiting: list[tuple[str, str, int]] = []
                while True:
                    waiting.append(self._send(wire))
                    while len(waiting) > OPEN:
                        reply, name, count = waiting.pop(0)
                        answer = wire.message(reply).json()
                        assert (answer.get("batch"), answer.get("count")) == (name, count), answer
                        self.acked[name] = (answer["seq"], count)
                        self.has_ack.set()
        except (Closed, OSError):
            return

    def _send(self, wire: Wire) -> tuple[str, str, int]:
        name, count = f"n{self._next}", self._rng.choice((1, 2, 7, 40))
        self._next += 1
        data = b"x" * self._rng.choice((1, 100, 5000))
        reply = wire.new_reply()
        sent = []
        for seq in range(1, count + 1):
            fields = {"Nats-Batch-Id": name, "Nats-Batch-Sequence": str(seq)}
            if seq == count:
                fields["Nats-Batch-Commit"] = "1"
            subject = f"b.{self._rng.randrange(5)}"
            sent.append(
                pub(subject, b"%s %d %d %s" % (name.encode(), seq, count, data), reply if seq == count else "", fields)
            )
            if self._rng.random() < 0.1:
                sent.append(pub("b.single", b"single"))
        wire.send(b"".join(sent))
        return reply, name, count

    def audit(self, wire: Wire) -> None:
        """Assert that every batch in the stream is whole and contiguous, and that every acked one is there."""
        found: dict[str, tuple[int, int]] = {}
        wanted = (b"", 1, 0)
        for stored in read_all(wire, "B"):
            name, seq, count = b"", 1, 0
            if stored.data != b"single":
                fields = stored.data.split(b" ", 3)
                name, seq, count = fields[0], int(fields[1]), int(fields[2])
            assert seq == 1 if wanted[1] == 1 else (name, seq, count) == wanted, f"{name!r} {seq} and not {wanted}"
            wanted = (name, seq + 1, count) if seq < count else (b"", 1, 0)
            if seq == count:
                found[name.decode()] = (stored.seq, count)
        assert wanted[1] == 1, f"the stream ends before {wanted}"
        lost = {name: said for name, said in self.acked.items() if found.get(name) != said}
        assert not lost, f"acked and not there: {lost}"


class FastBatches:
    """Publishes one fast batch after the other, as far ahead of its acks as allowed, until the connection is lost."""

    FLOW = 20

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._next = 1
        self.acked: dict[str, int] = {}
        """Last acked batch sequence of each batch."""
        self.has_ack = threading.Event()

    def prepare(self, wire: Wire) -> None:
        """Create the stream."""
        config = {"name": "B", "subjects": ["b.*"], "allow_direct": True, "allow_batched": True}
        assert "error" not in wire.api("STREAM.CREATE.B", config)

    def work(self, address: tuple[str, int]) -> None:
        """Publish until the connection is lost."""
        self.has_ack.clear()
        try:
            with Wire(address) as wire:
                wire.subscribe("_INBOX.fast.>")
                while True:
                    self._one(wire, self._rng.choice((1, 30, 200)))
        except (Closed, OSError):
            return

    def _one(self, wire: Wire, count: int) -> None:
        name = f"n{self._next}"
        self._next += 1
        acked, interval, sent = 0, 1, 0
        while True:
            ahead = min(count, acked + 2 * interval)
            burst = [self._member(name, seq, count) for seq in range(sent + 1, ahead + 1)]
            sent = max(sent, ahead)
            wire.send(b"".join(burst))
            said = wire.next(lambda frame: frame.subject.startswith("_INBOX.fast.")).json()
            assert said.get("type", "ack") == "ack", said
            if "batch" in said:
                assert (said["batch"], said["count"]) == (name, count), said
                self.acked[name] = count
                self.has_ack.set()
                return
            acked, interval = said["seq"], said["msgs"]
            self.acked[name] = acked

    def _member(self, name: str, seq: int, count: int) -> bytes:
        operation = 2 if seq == count else 0 if seq == 1 else 1
        reply = f"_INBOX.fast.{name}.{self.FLOW}.fail.{seq}.{operation}.$FI"
        return pub("b.x", b"%s %d" % (name.encode(), seq), reply)

    def audit(self, wire: Wire) -> None:
        """Assert that every batch in the stream has no gaps and is at least as long as its acks said."""
        found: dict[str, int] = {}
        for stored in read_all(wire, "B"):
            name, seq = stored.data.decode().split()
            assert int(seq) == found.get(name, 0) + 1, f"{seq} of {name} after {found.get(name)}"
            found[name] = int(seq)
        lost = {name: seq for name, seq in self.acked.items() if found.get(name, 0) < seq}
        assert not lost, f"acked and not there: {lost}"


@pytest.mark.parametrize("kind_of_batch", [Batches, FastBatches])
def test_batches_after_kills(
    start_server: StartServer, kind: Kind, kind_of_batch: type[Batches] | type[FastBatches]
) -> None:
    seed = int(os.environ.get("LAKESTREAM_KILL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"LAKESTREAM_KILL_SEED={seed}")
    rng = random.Random(seed)
    batches = kind_of_batch(random.Random(rng.random()))
    server = start_server(config=CONFIGS[kind])
    with Wire(server.address) as wire:
        batches.prepare(wire)
    for _ in range(ROUNDS):
        failures: list[BaseException] = []

        def work(failures: list[BaseException] = failures) -> None:
            try:
                batches.work(server.address)
            except BaseException as error:  # raised again below, in the thread of the test
                failures.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        assert batches.has_ack.wait(AUDIT_TIMEOUT_S), "no ack at all"
        time.sleep(rng.uniform(0, LONGEST_LIFE_S))
        server.kill()
        thread.join(AUDIT_TIMEOUT_S)
        if failures:
            raise failures[0]
        server.start()
        with Wire(server.address, timeout=AUDIT_TIMEOUT_S) as wire:
            batches.audit(wire)
    print(f"{ROUNDS} kills, {len(batches.acked)} acked batches")
    assert len(batches.acked) > ROUNDS
