"""Test of linearizability: the operations of sixteen clients on a bucket's keys while the server is killed.

Compare-and-set, blind writes, markers, gets and direct gets, on one server, SIGKILL at random moments. Kills:
LAKESTREAM_LINEAR_KILLS (6). The seed is printed; LAKESTREAM_LINEAR_SEED repeats its choices.
"""

from __future__ import annotations

import os
import random
import threading
import time

import pytest

from tests.conftest import StartServer
from tests.key_clients import CLIENTS, STREAM, Client, History, bucket, finish
from tests.linearizable import Outcome
from tests.servers import Kind
from tests.wire import Wire

pytestmark = pytest.mark.chaos

KILLS = int(os.environ.get("LAKESTREAM_LINEAR_KILLS", "6"))
LIFE_S = (0.1, 0.8)
TIMEOUT_S = 20.0
# nats-server acks before it writes unless sync_interval is set to always.
CONFIGS = {
    Kind.REAL: "jetstream { sync_interval: always }",
    Kind.OURS: "lake { seal_bytes: 32k, seal_age: 1s }",
}


def _seed() -> int:
    seed = int(os.environ.get("LAKESTREAM_LINEAR_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"LAKESTREAM_LINEAR_SEED={seed}")
    return seed


@pytest.mark.parametrize("kept", [1, 5])
def test_keys_are_linearizable_over_kills(start_server: StartServer, kind: Kind, kept: int) -> None:
    rng = random.Random(_seed())
    server = start_server(config=CONFIGS[kind])
    with Wire(server.address) as wire:
        assert "error" not in wire.api(f"STREAM.CREATE.{STREAM}", bucket(kept))
    history = History()
    numbers = iter(range(1, 1 << 30))
    for life in range(KILLS + 1):

        def connect() -> Wire:
            return Wire(server.address, timeout=TIMEOUT_S)

        clients = [
            Client(next(numbers), history, connect, random.Random(rng.random()), keep=False, insist=False)
            for _ in range(CLIENTS)
        ]
        for client in clients:
            client.start()
        threading.Event().wait(rng.uniform(*LIFE_S))
        if life < KILLS:
            server.kill()
            history_end = time.monotonic()
        else:
            history_end = 0.0
            for client in clients:
                client.stop()
        finish(clients)
        if history_end:
            history.died(history_end)
            server.start()
    assert not history.surprises, history.surprises[:10]
    history.take_direct_gets_as_reads()
    print(f"{KILLS} kills: {history.check()}")
    assert history.count(Outcome.OK) > 20 * KILLS
    assert history.count(Outcome.REFUSED) > 20 * KILLS
