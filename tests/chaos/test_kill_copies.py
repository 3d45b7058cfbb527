"""SIGKILL while mirrors and sources copy: every message of an origin is in its copies once, wherever the server dies.

Origins of both kinds (limits, work queue) are written and deleted from meanwhile; a mirror, a mirror of the mirror and
a stream with two sources and messages of its own copy them. The seed is printed; LAKESTREAM_KILL_SEED repeats its
choices. LAKESTREAM_COPY_KILLS (4): how often the server is killed.
"""

from __future__ import annotations

import os
import random
import threading
import time
from typing import Any

import pytest

from tests.conftest import StartServer
from tests.servers import Kind
from tests.wire import Closed, Frame, Wire, pub

pytestmark = pytest.mark.chaos

KILLS = int(os.environ.get("LAKESTREAM_COPY_KILLS", "4"))
LONGEST_LIFE_S = 1.5
SOON_S = 30.0
BURST = 50
SMALL_SEGMENTS = "lake { seal_bytes: 100k, seal_age: 1s }"

STREAMS: list[dict[str, Any]] = [
    {"name": "L", "subjects": ["l.*"]},
    {"name": "W", "subjects": ["w.*"], "retention": "workqueue"},
    {"name": "M", "mirror": {"name": "L"}},
    {"name": "MM", "mirror": {"name": "M"}},
    {"name": "S", "subjects": ["own.*"], "sources": [{"name": "L", "filter_subject": "l.1"}, {"name": "W"}]},
]


class Writer:
    """Publishes numbered messages to all streams until the server is gone, and remembers which are acked."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._next = 1
        self.acked: dict[str, set[bytes]] = {"l": set(), "w": set(), "own": set()}

    def prepare(self, wire: Wire) -> None:
        """Make the streams."""
        for config in STREAMS:
            answer = wire.api(f"STREAM.CREATE.{config['name']}", {"allow_direct": True, **config})
            assert "error" not in answer, answer

    def work(self, address: tuple[str, int]) -> None:
        """Publish; returns once the server is dead."""
        try:
            with Wire(address) as wire:
                while True:
                    self._burst(wire)
                    if self._rng.random() < 0.3:
                        last = wire.api("STREAM.INFO.L")["state"]["last_seq"]
                        wire.api("STREAM.MSG.DELETE.L", {"seq": self._rng.randint(1, last)})
                    if self._rng.random() < 0.02:
                        wire.api("STREAM.PURGE.L", {"keep": 20})
        except (Closed, OSError):
            return

    def _burst(self, wire: Wire) -> None:
        sent = []
        for _ in range(self._rng.randint(1, BURST)):
            kind, data, reply = self._rng.choice(["l", "l", "w", "own"]), b"%d" % self._next, wire.new_reply()
            self._next += 1
            sent.append(
                (kind, data, reply, pub(f"{kind}.{self._rng.randint(1, 2)}", data, reply, {"Number": data.decode()}))
            )
        wire.send(b"".join(each for *_, each in sent))
        for kind, data, reply, _ in sent:
            answer = wire.message(reply).json()
            assert "error" not in answer, answer
            self.acked[kind].add(data)


def contents(wire: Wire, stream: str) -> dict[int, Frame]:
    """All messages of a stream by sequence."""
    found: dict[int, Frame] = {}
    first = 1
    while True:
        reply = wire.new_reply()
        wire.publish(f"$JS.API.DIRECT.GET.{stream}", b'{"seq":%d,"batch":1000}' % first, reply)
        frame = wire.message(reply)
        if frame.status == 404:
            return found
        while not frame.status:
            first = int(frame.headers["Nats-Sequence"]) + 1
            found[first - 1] = frame
            frame = wire.message(reply)
        if frame.headers["Nats-Num-Pending"] == "0":
            return found


def message(frame: Frame) -> tuple[str, str, str, bytes]:
    """What a mirror has to keep of a message."""
    fields = frame.headers
    return fields["Nats-Subject"], fields["Nats-Time-Stamp"], fields["Number"], frame.data


def wait_until_copied(wire: Wire) -> None:
    """Until every copy has all that its origins have, and the work queue is empty."""
    deadline = time.monotonic() + SOON_S
    while time.monotonic() < deadline:
        states = {name: wire.api(f"STREAM.INFO.{name}") for name in ("L", "W", "M", "MM", "S")}
        last = {name: info["state"]["last_seq"] for name, info in states.items()}
        quiet = all(source["lag"] == 0 and source["active"] >= 0 for source in states["S"]["sources"])
        if last["L"] == last["M"] == last["MM"] and quiet and not states["W"]["state"]["messages"]:
            return
        time.sleep(0.1)
    raise AssertionError(states)


def check(wire: Wire, acked: dict[str, set[bytes]]) -> None:
    """Whether the copies hold what they must, and nothing twice."""
    origin, mirror, again, sums = (contents(wire, name) for name in ("L", "M", "MM", "S"))
    for copy in (mirror, again):
        assert {seq: message(frame) for seq, frame in origin.items()}.items() <= {
            seq: message(frame) for seq, frame in copy.items()
        }.items()
    assert {seq: message(frame) for seq, frame in again.items()} == {
        seq: message(frame) for seq, frame in mirror.items()
    }
    numbers = [frame.data for frame in sums.values()]
    assert len(numbers) == len(set(numbers)), "something was copied twice"
    there = set(numbers)
    assert acked["own"] <= there
    assert acked["w"] <= there, "a message left the work queue and did not arrive"
    wanted = {frame.data for frame in origin.values() if frame.headers["Nats-Subject"] == "l.1"}
    assert wanted <= there
    for index in ("L", "W"):
        came = [frame.headers.get("Nats-Stream-Source", "").split() for frame in sums.values()]
        order = [int(parts[1]) for parts in came if parts and parts[0] == index]
        assert order == sorted(order), "messages of one origin are out of order"


def test_copies_survive_kills(start_server: StartServer) -> None:
    seed = int(os.environ.get("LAKESTREAM_KILL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"LAKESTREAM_KILL_SEED={seed}")
    rng = random.Random(seed)
    server = start_server(of=Kind.OURS, config=SMALL_SEGMENTS)
    writer = Writer(random.Random(rng.random()))
    with Wire(server.address) as wire:
        writer.prepare(wire)
    for _ in range(KILLS):
        thread = threading.Thread(target=writer.work, args=(server.address,))
        thread.start()
        time.sleep(rng.uniform(0.2, LONGEST_LIFE_S))
        server.kill()
        thread.join(SOON_S)
        assert not thread.is_alive()
        server.start()
    with Wire(server.address, timeout=SOON_S) as wire:
        wait_until_copied(wire)
        check(wire, writer.acked)
        print(f"{KILLS} kills, {wire.api('STREAM.INFO.S')['state']['last_seq']} messages with sources")
