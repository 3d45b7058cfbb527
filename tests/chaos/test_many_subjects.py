"""Test of a stream with more subjects than fit in memory, through restarts, compared with a dict.

Most of the stream's subject index is in files: `max_index_memory` is a fraction of what it needs.
"""

from __future__ import annotations

import random

import pytest

from tests.conftest import StartServer
from tests.servers import Kind, Server
from tests.wire import Wire, pub

pytestmark = pytest.mark.chaos

SUBJECTS = 45_000
BLOCK = 500
HISTORY = 3
CONFIG = {"name": "KV_MANY", "subjects": ["kv.>"], "max_msgs_per_subject": HISTORY, "allow_direct": True}


class Buckets:
    """Expected contents of the stream."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.seq = 0
        self.held: dict[str, list[tuple[int, bytes]]] = {}

    def publish(self, wire: Wire, numbers: list[int]) -> None:
        """Publish a message to each of these subjects; wait for every 500th ack."""
        for first in range(0, len(numbers), BLOCK):
            lines = []
            some = numbers[first : first + BLOCK]
            for number in some:
                self.seq += 1
                name, data = key(number), b"%d" % self.seq
                self.held[name] = [*self.held.get(name, []), (self.seq, data)][-HISTORY:]
                lines.append((name, data))
            reply = wire.new_reply()
            wire.send(b"".join(pub(name, data) for name, data in lines[:-1]) + pub(*lines[-1], reply))
            assert wire.message(reply, timeout=120).json()["seq"] == self.seq

    def purge(self, wire: Wire, pattern: str, beginning: str) -> None:
        """Purge a pattern, and remove the subjects with this prefix from the expected contents."""
        gone = [name for name in self.held if name.startswith(beginning)]
        purged = wire.api("STREAM.PURGE.KV_MANY", {"filter": pattern}, timeout=120)["purged"]
        assert purged == sum(len(self.held.pop(name)) for name in gone)

    def check(self, wire: Wire) -> None:
        """Check the counts, and a sample of each kind of read."""
        state = wire.api("STREAM.INFO.KV_MANY", timeout=120)["state"]
        assert (state["num_subjects"], state["last_seq"]) == (len(self.held), self.seq)
        assert state["messages"] == sum(map(len, self.held.values()))
        group = self.rng.randrange(100)
        shown = wire.api("STREAM.INFO.KV_MANY", {"subjects_filter": f"kv.{group:02}.*"}, timeout=120)["state"]
        wanted = {name: held for name, held in self.held.items() if name.startswith(f"kv.{group:02}.")}
        assert shown.get("subjects", {}) == {name: len(held) for name, held in wanted.items()}
        self._check_last(wire, wanted, f"kv.{group:02}.>")
        for name in [key(self.rng.randrange(SUBJECTS)) for _ in range(50)]:
            frame = wire.request(f"$JS.API.DIRECT.GET.KV_MANY.{name}", timeout=120)
            if name in self.held:
                seq, data = self.held[name][-1]
                assert (frame.headers["Nats-Sequence"], frame.data) == (str(seq), data)
            else:
                assert frame.status == 404

    def _check_last(self, wire: Wire, wanted: dict[str, list[tuple[int, bytes]]], pattern: str) -> None:
        reply = wire.new_reply()
        wire.send(pub("$JS.API.DIRECT.GET.KV_MANY", b'{"multi_last": ["%s"]}' % pattern.encode(), reply))
        found: dict[str, tuple[int, bytes]] = {}
        while (frame := wire.message(reply, timeout=120)).status not in (204, 404):
            found[frame.headers["Nats-Subject"]] = (int(frame.headers["Nats-Sequence"]), frame.data)
        assert found == {name: held[-1] for name, held in wanted.items()}


def key(number: int) -> str:
    """Return the subject of that number, in one of a hundred groups."""
    return f"kv.{number % 100:02}.{number:06}"


def test_many_subjects_in_little_memory_survive_restarts(start_server: StartServer, kind: Kind) -> None:
    rng = random.Random(7)
    buckets = Buckets(rng)
    server = start_server(config="jetstream { max_index_memory: 1MB }" if kind is Kind.OURS else None)
    with Wire(server.address, timeout=120) as wire:
        assert "error" not in wire.api("STREAM.CREATE.KV_MANY", CONFIG)
        buckets.publish(wire, list(range(SUBJECTS)))
        buckets.check(wire)
    for turn, end in enumerate((Server.stop, Server.kill, Server.stop)):
        with Wire(server.address, timeout=120) as wire:
            buckets.publish(wire, [rng.randrange(SUBJECTS) for _ in range(8000)])
            buckets.purge(wire, f"kv.{turn * 7:02}.>", f"kv.{turn * 7:02}.")
            buckets.check(wire)
        if kind is Kind.REAL:
            server.stop()  # its acks do not survive a kill
        else:
            end(server)
        server.start()
        with Wire(server.address, timeout=120) as wire:
            buckets.check(wire)
