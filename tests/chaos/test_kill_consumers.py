"""Tests of SIGKILL at random moments, for consumers: no confirmed ack is redelivered, no unacked message is lost.

Streams of every retention with consumers of every kind are used at the same time: acks, double acks, naks with and
without delay, terms, progress, max_deliver. Kills on one store: LAKESTREAM_CONSUMER_KILLS (4). The seed is printed;
LAKESTREAM_KILL_SEED repeats its choices.
"""

from __future__ import annotations

import os
import random
import threading
import time

import pytest

from tests.chaos.deliveries import SOON_S, Deliveries
from tests.conftest import StartServer
from tests.servers import Kind
from tests.wire import Wire

pytestmark = [pytest.mark.chaos, pytest.mark.smoke]

KILLS = int(os.environ.get("LAKESTREAM_CONSUMER_KILLS", "4"))
STREAMS = 3
LONGEST_LIFE_S = 0.8
SMALL_SEGMENTS = "lake { seal_bytes: 32k, seal_age: 1s }"


def test_acks_and_messages_survive_kills(start_server: StartServer) -> None:
    seed = int(os.environ.get("LAKESTREAM_KILL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"LAKESTREAM_KILL_SEED={seed}")
    rng = random.Random(seed)
    workers = [Deliveries(random.Random(rng.random()), f"D{number}") for number in range(STREAMS)]
    server = start_server(of=Kind.OURS, config=SMALL_SEGMENTS)
    with Wire(server.address) as wire:
        for worker in workers:
            print(worker)
            worker.prepare(wire)
    for _ in range(KILLS):
        failures: list[BaseException] = []
        threads = [_start(worker, server.address, failures) for worker in workers]
        time.sleep(rng.uniform(0.05, LONGEST_LIFE_S))
        server.kill()
        for thread in threads:
            thread.join(SOON_S)
        if failures:
            raise failures[0]
        server.start()
        for worker in workers:
            with Wire(server.address, timeout=SOON_S) as wire:
                worker.audit(wire)
                worker.died()  # only the connection is lost; the server stays
    for worker in workers:
        with Wire(server.address, timeout=SOON_S) as wire:
            worker.finish(wire)
    confirmed, stored = (
        sum(numbers) for numbers in zip(*((w.confirmed, len(w.content)) for w in workers), strict=True)
    )
    print(f"{KILLS} kills, {stored} messages, {confirmed} confirmed acks")
    assert confirmed > KILLS * STREAMS


def _start(worker: Deliveries, address: tuple[str, int], failures: list[BaseException]) -> threading.Thread:
    def run() -> None:
        try:
            worker.work(address)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread
