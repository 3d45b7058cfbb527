"""Tests of SIGKILL at random moments: after the restart everything acked is there, exactly once and in order.

Number of rounds on one store: LAKESTREAM_KILL_ROUNDS (20). The seed is printed; LAKESTREAM_KILL_SEED repeats its
choices.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable

import pytest

from tests.chaos.audit import AUDIT_TIMEOUT_S, Operator, Publisher
from tests.conftest import StartServer
from tests.servers import Kind
from tests.wire import Wire

pytestmark = pytest.mark.chaos

ROUNDS = int(os.environ.get("LAKESTREAM_KILL_ROUNDS", "20"))
LONGEST_LIFE_S = 0.4
# nats-server acks before it writes unless sync_interval is set to always. Small segments, so that kills also fall
# between two of them.
CONFIGS = {
    Kind.REAL: "jetstream { sync_interval: always }",
    Kind.OURS: "lake { seal_bytes: 200k, seal_age: 1s }",
}


def _seed() -> int:
    seed = int(os.environ.get("LAKESTREAM_KILL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"LAKESTREAM_KILL_SEED={seed}")
    return seed


def test_what_was_acked_survives_kills(start_server: StartServer, kind: Kind) -> None:
    rng = random.Random(_seed())
    # Compression makes kills also fall into the compression of a segment.
    publisher = Publisher(random.Random(rng.random()), compression="s2")
    operator = Operator(random.Random(rng.random()), acks_survive=kind is Kind.OURS)
    server = start_server(config=CONFIGS[kind])
    with Wire(server.address) as wire:
        publisher.prepare(wire)
        operator.prepare(wire)
    for _ in range(ROUNDS):
        failures: list[BaseException] = []
        threads = [_start(worker.work, server.address, failures) for worker in (publisher, operator)]
        assert publisher.has_ack.wait(AUDIT_TIMEOUT_S), "no ack at all"
        time.sleep(rng.uniform(0, LONGEST_LIFE_S))
        server.kill()
        for thread in threads:
            thread.join(AUDIT_TIMEOUT_S)
        if failures:
            raise failures[0]
        server.start()
        with Wire(server.address, timeout=AUDIT_TIMEOUT_S) as wire:
            publisher.audit(wire)
            operator.audit(wire)
    with Wire(server.address, timeout=AUDIT_TIMEOUT_S) as wire:
        publisher.audit_everything(wire)
    print(f"{ROUNDS} kills, {len(publisher.acked)} acked publishes, {operator.confirmed} confirmed operations")
    assert len(publisher.acked) > ROUNDS
    assert operator.confirmed > ROUNDS


def test_a_killed_server_loses_nothing_of_an_async_stream(start_server: StartServer) -> None:
    """A kill of the server alone loses no async write, since the operating system still has it."""
    rng = random.Random(_seed())
    publisher = Publisher(rng, persist_mode="async")
    server = start_server(of=Kind.OURS, config=CONFIGS[Kind.OURS])
    with Wire(server.address) as wire:
        publisher.prepare(wire)
    for _ in range(5):
        failures: list[BaseException] = []
        thread = _start(publisher.work, server.address, failures)
        assert publisher.has_ack.wait(AUDIT_TIMEOUT_S), "no ack at all"
        time.sleep(rng.uniform(0, LONGEST_LIFE_S))
        server.kill()
        thread.join(AUDIT_TIMEOUT_S)
        assert not failures, failures
        server.start()
        with Wire(server.address, timeout=AUDIT_TIMEOUT_S) as wire:
            publisher.audit(wire)
    with Wire(server.address, timeout=AUDIT_TIMEOUT_S) as wire:
        publisher.audit_everything(wire)


def _start(
    work: Callable[[tuple[str, int]], None], address: tuple[str, int], failures: list[BaseException]
) -> threading.Thread:
    def run() -> None:
        try:
            work(address)
        except BaseException as error:  # raised again by the test, which runs in another thread
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_kill_while_stopping_or_starting_harms_nothing(start_server: StartServer, kind: Kind) -> None:
    rng = random.Random(_seed())
    publisher = Publisher(rng, may_refuse=True)
    server = start_server(config=CONFIGS[kind])
    with Wire(server.address) as wire:
        publisher.prepare(wire)
    for _ in range(3):
        failures: list[BaseException] = []
        thread = _start(publisher.work, server.address, failures)
        assert publisher.has_ack.wait(AUDIT_TIMEOUT_S), "no ack at all"
        assert server.process is not None
        server.process.terminate()  # the store is being closed
        time.sleep(rng.uniform(0, 0.1))
        server.kill()
        thread.join(AUDIT_TIMEOUT_S)
        assert not failures, failures
        server.start()
        server.kill()  # as soon as a client could connect
        server.start()
        with Wire(server.address, timeout=AUDIT_TIMEOUT_S) as wire:
            publisher.audit(wire)
