"""Test of linearizability.

Sixteen clients use the keys of a bucket on three nodes while leaders die, hang and are cut off. Compare-and-set, blind
writes, markers, gets from the leader, and direct gets that ask for it must be linearizable. Other direct gets may be
stale, since every replica answers them, but return only stored values. The bucket keeps all messages, so that it shows
afterwards for each unanswered write if it happened; another one keeps only the last value. LAKESTREAM_LINEAR_ROUNDS (4)
is the number of faults. The seed is printed; LAKESTREAM_LINEAR_SEED repeats its choices.
"""

from __future__ import annotations

import os
import random
import time
from typing import Any

import pytest

from tests.cluster.conftest import StartCluster
from tests.cluster.nemesis import LEADER, Nemesis, Step, wait
from tests.cluster.nodes import Cluster, until
from tests.key_clients import BUCKET, CLIENTS, STREAM, Client, History, bucket, finish, stored
from tests.linearizable import Outcome
from tests.servers import Kind
from tests.wire import Wire, WireTimeout

pytestmark = [pytest.mark.chaos, pytest.mark.cluster]

ROUNDS = int(os.environ.get("LAKESTREAM_LINEAR_ROUNDS", "4"))
TIMEOUT_S = 1.0
"""Timeout of an operation, after which its outcome is unknown and its client goes to another node."""
REST_S = 0.01
FAULT_S = 2.5
BETWEEN_S = 0.5
FAULTS = ("pause", "isolate", "step-down", "kill", "kill-all")


@pytest.mark.parametrize("kept", [-1, 1])
def test_keys_are_linearizable_over_the_misfortunes_of_leaders(start_cluster: StartCluster, kept: int) -> None:
    seed = int(os.environ.get("LAKESTREAM_LINEAR_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"LAKESTREAM_LINEAR_SEED={seed}")
    rng = random.Random(seed)
    cluster = start_cluster(3, links=True, durable=True)
    cluster.stream(**_bucket(kept))
    nemesis = Nemesis(cluster, [STREAM])
    history = History()
    clients = [_client(cluster, number, history, rng, kept) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    for number in range(ROUNDS):
        _wait_answers(clients, 5)
        wait(rng.uniform(0, BETWEEN_S))
        fault = FAULTS[number] if number < len(FAULTS) else rng.choice(FAULTS)
        victim = nemesis.apply(Step(fault, LEADER, FAULT_S, rng.randrange(1 << 32), 0))
        print(f"{number}: {fault} {victim}", flush=True)
    _wait_answers(clients, 5)
    for client in clients:
        client.stop()
    finish(clients)
    _audit(cluster, history, kept)


def _bucket(kept: int) -> dict[str, Any]:
    config = bucket(kept, replicas=3)
    return {"name": STREAM, "subjects": config.pop("subjects"), "replicas": config.pop("num_replicas"), **config}


def _client(cluster: Cluster, number: int, history: History, rng: random.Random, kept: int) -> Client:
    mine = random.Random(rng.random())
    first = [cluster.nodes[number % 3]]

    def connect() -> Wire:
        node = first.pop() if first else mine.choice(cluster.nodes)
        return cluster.wire(node, TIMEOUT_S)

    return Client(number, history, connect, mine, keep=kept < 0, insist=True, rest_s=REST_S, consistently=True)


def _wait_answers(clients: list[Client], count: int) -> None:
    goals = [client.answered + count for client in clients]

    def reached() -> bool:
        return all(
            client.failure is not None or client.answered >= goal for client, goal in zip(clients, goals, strict=True)
        )

    until(reached, f"{count} answers to every client", 60)


def _audit(cluster: Cluster, history: History, kept: int) -> None:
    began = time.monotonic()
    cluster.wait_current(STREAM)
    copies = []
    for node in cluster.nodes:
        with cluster.wire(node) as wire:
            last = wire.api(f"STREAM.INFO.{STREAM}")["state"]["last_seq"]
            copies.append(until(lambda wire=wire, last=last: _whole(wire, last), f"all messages at {node.name}"))  # type: ignore[misc]
    assert copies[0] == copies[1] == copies[2], "replicas differ"
    unknown = history.count(Outcome.UNKNOWN)
    history.check_declined(copies[0])
    if kept < 0:
        history.resolve(copies[0])
        history.check_direct(copies[0])
    figures = history.check()
    print(f"{figures}; {unknown} were unknown; checked in {time.monotonic() - began:.1f} s")
    assert history.count(Outcome.OK) > 100
    assert history.count(Outcome.REFUSED) > 100


def _whole(wire: Wire, last: int) -> dict[int, tuple[str, str]]:
    found = stored(wire)
    return found if max(found, default=0) >= last else {}


def test_a_leader_that_is_cut_off_tells_nothing_old(start_cluster: StartCluster, kind: Kind) -> None:
    """A leader that is cut off returns no stale value.

    nats-server does: it answers gets without confirming that it still leads.
    """
    cluster = start_cluster(3, links=True, durable=True)
    cluster.stream(**_bucket(1))
    subject = f"$KV.{BUCKET}.k0"
    leader = cluster.stream_leader(STREAM)
    with cluster.wire(leader, TIMEOUT_S) as cut_off, cluster.wire(cluster.others(leader)[0], TIMEOUT_S) as others:
        assert cut_off.request(subject, b"old").json()["seq"] == 1
        cluster.isolate(leader)
        until(lambda: others.request(subject, b"new").json()["seq"] > 1, "another leader")
        told = _told(cut_off)
        assert told == ("b2xk" if kind is Kind.REAL else None)
        cluster.heal()
        until(lambda: _told(cut_off) == "bmV3", "the new value at the former leader")


def _told(wire: Wire) -> str | None:
    """Return the value in the answer to a get of the key; None without one."""
    try:
        answer = wire.api(f"STREAM.MSG.GET.{STREAM}", {"last_by_subj": f"$KV.{BUCKET}.k0"})
    except WireTimeout:
        return None
    return str(answer["message"]["data"]) if "message" in answer else None
