"""Tests of SIGKILL and of stops at random moments, for streams that are closed when nobody uses them.

Idle streams are closed a few times a second, so that closing, opening, publishes and the end of the process meet.
Ends on one store: LAKESTREAM_DORMANT_KILLS (5). The seed is printed; LAKESTREAM_KILL_SEED repeats its choices.
"""

from __future__ import annotations

import base64
import json
import os
import random
import threading
import time

import pytest

from tests.conftest import StartServer
from tests.servers import Kind
from tests.wire import Closed, Wire

pytestmark = [pytest.mark.chaos, pytest.mark.smoke]

ENDS = int(os.environ.get("LAKESTREAM_DORMANT_KILLS", "5"))
STREAMS, WORKERS = 12, 3
LONGEST_LIFE_S = 1.5
CONFIG = "jetstream { close_idle_streams: 100ms }\nlake { seal_bytes: 32k, seal_age: 200ms }"


class Publisher:
    """Publishes to streams of its own, with pauses in which they are closed."""

    def __init__(self, rng: random.Random, names: list[str]) -> None:
        self._rng, self.names, self._number = rng, names, 0
        self.acked: dict[str, dict[int, bytes]] = {name: {} for name in names}
        self.unanswered: TimeoutError | None = None

    def work(self, address: tuple[str, int]) -> None:
        """Publish until the server ends."""
        try:
            with Wire(address, timeout=20) as wire:
                while True:
                    name = self._rng.choice(self.names)
                    for _ in range(self._rng.randrange(1, 4)):
                        self._number += 1
                        data = b"%d" % self._number
                        answer = json.loads(wire.request(name, data, timeout=20).data or b"{}")
                        if "seq" in answer:
                            self.acked[name][answer["seq"]] = data
                    time.sleep(self._rng.choice((0, 0.01, 0.2)))
        except TimeoutError as error:
            self.unanswered = error
        except (OSError, Closed):
            return

    def audit(self, wire: Wire) -> None:
        """Compare what was acked with what the server has."""
        for name in self.names:
            state = wire.api(f"STREAM.INFO.{name}")["state"]
            acked = self.acked[name]
            assert state["last_seq"] >= max(acked, default=0)
            assert state["messages"] == state["last_seq"]
            for seq in self._rng.sample(sorted(acked), min(len(acked), 5)):
                message = wire.api(f"STREAM.MSG.GET.{name}", {"seq": seq})["message"]
                assert base64.b64decode(message["data"]) == acked[seq]


def test_what_was_acked_survives_ends_while_streams_are_opened_and_closed(start_server: StartServer) -> None:
    seed = int(os.environ.get("LAKESTREAM_KILL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"LAKESTREAM_KILL_SEED={seed}")
    rng = random.Random(seed)
    server = start_server(of=Kind.OURS, config=CONFIG)
    names = [f"D{number}" for number in range(STREAMS)]
    with Wire(server.address) as wire:
        for name in names:
            assert "error" not in wire.api(f"STREAM.CREATE.{name}", {"name": name})
    publishers = [Publisher(random.Random(rng.random()), names[at::WORKERS]) for at in range(WORKERS)]
    for _ in range(ENDS):
        threads = [threading.Thread(target=each.work, args=(server.address,), daemon=True) for each in publishers]
        for thread in threads:
            thread.start()
        time.sleep(rng.uniform(0.1, LONGEST_LIFE_S))
        if rng.random() < 0.5:
            server.kill()
        else:
            assert server.stop() == 0
        for thread in threads:
            thread.join(20)
        server.start()
        with Wire(server.address, timeout=30) as wire:
            for each in publishers:
                assert each.unanswered is None
                each.audit(wire)
    assert "[ERR]" not in server.log()
    opened = [line for line in server.logged("Restored") if "message" in line]
    assert len(opened) > STREAMS, "streams were opened again and again"
    assert sum(len(acked) for each in publishers for acked in each.acked.values()) > ENDS
