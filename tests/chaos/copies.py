"""Streams that copy from each other, and their expected contents.

Belongs here: a writer that records the acked messages, and the comparison of copies with their origins. The tests
decide when servers die.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from tests.wire import Closed, Frame, Wire, WireTimeout, pub

SOON_S = 30.0
BURST = 50

STREAMS: list[dict[str, Any]] = [
    {"name": "L", "subjects": ["l.*"]},
    {"name": "W", "subjects": ["w.*"], "retention": "workqueue"},
    {"name": "M", "mirror": {"name": "L"}},
    {"name": "MM", "mirror": {"name": "M"}},
    {"name": "S", "subjects": ["own.*"], "sources": [{"name": "L", "filter_subject": "l.1"}, {"name": "W"}]},
]


class Writer:
    """Publishes numbered messages to all streams until the server dies, and records the acked ones.

    `replicas`: of each stream. With several replicas a publish may be refused, which is not recorded.
    """

    def __init__(self, rng: random.Random, replicas: int = 1) -> None:
        self._rng, self._replicas = rng, replicas
        self._next = 1
        self.stopped = False
        self.acked: dict[str, set[bytes]] = {"l": set(), "w": set(), "own": set()}

    def prepare(self, wire: Wire) -> None:
        """Create the streams."""
        for config in STREAMS:
            fields = {"allow_direct": True, "num_replicas": self._replicas, **config}
            answer = wire.api(f"STREAM.CREATE.{config['name']}", fields)
            assert "error" not in answer, answer

    def work(self, address: tuple[str, int]) -> None:
        """Publish until the server dies or stops answering, or until `stopped`."""
        try:
            with Wire(address, timeout=5.0) as wire:
                while not self.stopped:
                    self._burst(wire)
                    if self._rng.random() < 0.3:
                        last = wire.api("STREAM.INFO.L").get("state", {}).get("last_seq", 1)
                        wire.api("STREAM.MSG.DELETE.L", {"seq": self._rng.randint(1, max(last, 1))})
                    if self._rng.random() < 0.02:
                        wire.api("STREAM.PURGE.L", {"keep": 20})
        except (Closed, OSError, WireTimeout):
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
            frame = wire.message(reply)
            answer = frame.json() if frame.data else {"error": frame.status}
            assert self._replicas > 1 or "error" not in answer, answer
            if "error" not in answer:
                self.acked[kind].add(data)


def contents(wire: Wire, stream: str) -> dict[int, Frame]:
    """Return all messages of a stream by sequence."""
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
    """Return the parts of a message that a mirror keeps unchanged."""
    fields = frame.headers
    return fields["Nats-Subject"], fields["Nats-Time-Stamp"], fields["Number"], frame.data


def wait_until_copied(ask: Callable[[str], Any]) -> None:
    """Wait until every copy has all messages of its origins and the work queue is empty.

    `ask` sends an API request.
    """
    deadline = time.monotonic() + SOON_S
    states: dict[str, Any] = {}
    while time.monotonic() < deadline:
        states = {name: ask(f"STREAM.INFO.{name}") for name in ("L", "W", "M", "MM", "S")}
        if all("state" in info for info in states.values()) and _copied(states):
            return
        time.sleep(0.1)
    raise AssertionError(states)


def _copied(states: dict[str, Any]) -> bool:
    last = {name: info["state"]["last_seq"] for name, info in states.items()}
    quiet = all(source["lag"] == 0 and source["active"] >= 0 for source in states["S"]["sources"])
    return last["L"] == last["M"] == last["MM"] and quiet and not states["W"]["state"]["messages"]


def check(wire: Wire, acked: dict[str, set[bytes]]) -> None:
    """Assert that the copies hold every message they must, and none twice."""
    origin, mirror, again, sums = (contents(wire, name) for name in ("L", "M", "MM", "S"))
    # Its mirror may answer direct gets for the origin, including messages that the origin has deleted since.
    state = wire.api("STREAM.INFO.L", {"deleted_details": True})["state"]
    gone = set(state.get("deleted") or ())
    origin = {seq: frame for seq, frame in origin.items() if seq >= state["first_seq"] and seq not in gone}
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
