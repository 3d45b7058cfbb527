"""Tests of mirrors and sources on a cluster: copying resumes under another leader.

LAKESTREAM_CLUSTER_ROUNDS (3): number of leaders that are killed or step down; LAKESTREAM_CLUSTER_SEED repeats the
choices.
"""

from __future__ import annotations

import os
import random
import threading
import time

import pytest

from tests.chaos.copies import SOON_S, Writer, check, wait_until_copied
from tests.cluster.conftest import StartCluster

pytestmark = [pytest.mark.chaos, pytest.mark.cluster]

ROUNDS = int(os.environ.get("LAKESTREAM_CLUSTER_ROUNDS", "3"))
WORK_S = 1.5
COPIES = ("M", "MM", "S", "L", "W")


def test_copies_survive_changes_of_their_leaders(start_cluster: StartCluster) -> None:
    seed = int(os.environ.get("LAKESTREAM_CLUSTER_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"LAKESTREAM_CLUSTER_SEED={seed}")
    rng = random.Random(seed)
    cluster = start_cluster()
    writer = Writer(random.Random(rng.random()), replicas=3)
    with cluster.wire() as wire:
        writer.prepare(wire)
    for _ in range(ROUNDS):
        victim = cluster.stream_leader(rng.choice(COPIES))
        steps_down = rng.random() < 0.4
        address = (victim if rng.random() < 0.3 else rng.choice(cluster.others(victim))).address
        writer.stopped = False
        thread = threading.Thread(target=writer.work, args=(address,))
        thread.start()
        time.sleep(rng.uniform(0.3, WORK_S))
        if steps_down:
            for name in COPIES[:3]:
                cluster.api(f"STREAM.LEADER.STEPDOWN.{name}")
        else:
            victim.kill()
        time.sleep(rng.uniform(0.3, WORK_S))
        writer.stopped = True
        thread.join(SOON_S)
        assert not thread.is_alive()
        if not steps_down:
            victim.start()
            cluster.wait_ready()
    wait_until_copied(cluster.api)
    with cluster.wire(timeout=SOON_S) as wire:
        check(wire, writer.acked)
        print(f"{ROUNDS} changes, {sum(map(len, writer.acked.values()))} acked messages")
