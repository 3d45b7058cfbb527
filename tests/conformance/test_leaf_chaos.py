"""Tests of a mirror in nats-server that equals the stream here, with failures of either server or of the link.

LAKESTREAM_LEAF_ROUNDS (2): number of failures; LAKESTREAM_LEAF_SEED repeats the choices.
"""

from __future__ import annotations

import os
import random
import threading

import pytest

from tests.cluster.links import Network
from tests.cluster.nodes import free_ports
from tests.conformance.leaf_world import connected, copied, create, hub_config, lake_config, messages, until
from tests.conftest import StartServer
from tests.servers import Kind, Server
from tests.wire import Closed, Wire, pub

pytestmark = [pytest.mark.conformance, pytest.mark.chaos, pytest.mark.heavy]

ROUNDS = int(os.environ.get("LAKESTREAM_LEAF_ROUNDS", "2"))
BURST = 200


class Writer:
    """Publishes in bursts while the server lives."""

    def __init__(self, server: Server, rng: random.Random) -> None:
        self._server, self._rng = server, rng
        self._over = threading.Event()
        self.bursts = self.deleted = self.last = 0
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        try:
            with Wire(self._server.address, timeout=60) as wire:
                while not self._over.is_set():
                    for n in range(self._rng.randrange(1, BURST)):
                        headers = {"A": str(n)} if n % 7 == 0 else None
                        data = self._rng.randbytes(self._rng.choice((0, 10, 300)))
                        wire.send(pub(f"orders.{n % 9}", data, "", headers))
                    self.last = last = wire.api("STREAM.INFO.ORDERS")["state"]["last_seq"]
                    for seq in {self._rng.randint(1, max(last, 1)), max(last - 1, 1)}:
                        self.deleted += bool(wire.api("STREAM.MSG.DELETE.ORDERS", {"seq": seq}).get("success"))
                    self.bursts += 1
        except (Closed, OSError):
            pass  # it was killed

    def goes_on(self) -> None:
        """Return when three more bursts have been published."""
        wanted = self.bursts + 3
        until(lambda: self.bursts >= wanted, "it is written")

    def stop(self) -> None:
        """Stop publishing and wait for the thread."""
        self._over.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


def test_a_mirror_there_equals_the_stream_whatever_fails(start_server: StartServer) -> None:
    seed = int(os.environ.get("LAKESTREAM_LEAF_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"LAKESTREAM_LEAF_SEED={seed}")
    rng = random.Random(seed)
    port, through = free_ports(2)
    network = Network()
    try:
        directions = [network.direction(), network.direction()]
        network.connect(through, ("127.0.0.1", port), *directions)
        there = start_server(of=Kind.REAL, config=hub_config(port), name="hub")
        here = start_server(of=Kind.OURS, config=lake_config(through), name="lake1")
        connected(here, through)
        with Wire(here.address) as ours, Wire(there.address) as theirs:
            create(ours, "ORDERS", subjects=["orders.>"])
            create(theirs, "M", mirror={"name": "ORDERS", "external": {"api": "$JS.lake.API"}})
        deleted = 0
        for _ in range(ROUNDS):
            writer = Writer(here, random.Random(rng.random()))
            writer.goes_on()
            with Wire(there.address, timeout=60) as theirs:  # copying is in progress during the failure
                copied(theirs, "M", writer.last)
            what = rng.choice(("here", "there", "the way", "one direction"))
            if what == "here":
                here.kill()
                here.start()
            elif what == "there":
                there.kill()
                there.start()
            elif what == "the way":
                network.reset(rng.choice(directions))
            else:
                cut = rng.choice(directions)
                network.cut(cut)
                writer.goes_on()
                network.reset(cut)
                network.restore(cut)
            writer.stop()
            deleted += writer.deleted
        with Wire(here.address, timeout=60) as ours, Wire(there.address, timeout=60) as theirs:
            last = ours.api("STREAM.INFO.ORDERS")["state"]["last_seq"]
            last = max(last, ours.request("orders.1", b"the last").json()["seq"])
            copied(theirs, "M", last)
            origin = {one.seq: one for one in messages(ours, "ORDERS")}
            mirror = {one.seq: one for one in messages(theirs, "M")}
            # The mirror holds every message unchanged, and no others except those deleted here after they were copied.
            assert origin.items() <= mirror.items()
            assert len(mirror) <= last
            assert len(mirror) > len(origin)
            print(f"{ROUNDS} failures, {len(origin)} messages, {deleted} deleted, {len(mirror) - len(origin)} since")
    finally:
        network.close()
