"""Tests of nodes that die, hang, or lose network or disk under load.

Every acked message is there once, in order, on all replicas. Each test prints its figures. LAKESTREAM_CLUSTER_ROUNDS
(3) is the length of the random campaign, whose seed is printed; LAKESTREAM_CLUSTER_SEED repeats its choices.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from lakestream.log.store.repair import ASIDE
from tests.chaos.audit import read_all
from tests.cluster import namespaces
from tests.cluster.conftest import StartCluster
from tests.cluster.load import STREAM, Load
from tests.cluster.nemesis import (
    Nemesis,
    flip_bit,
    frames_of,
    possible,
    remove,
    scale,
    schedule,
    segments,
    spoil,
    truncate,
    wait,
)
from tests.cluster.nodes import Cluster, Node, until
from tests.servers import Kind
from tests.wire import Closed, Wire, WireTimeout

pytestmark = [pytest.mark.chaos, pytest.mark.cluster]

ROUNDS = int(os.environ.get("LAKESTREAM_CLUSTER_ROUNDS", "3"))
BACK_GOAL_S = 5.0
"""Goal: service is restored within this time after a leader's death."""
BACK_LIMIT_S = 4 * BACK_GOAL_S
"""Limit in the tests, which share machines of any speed."""
HANG_S = 3.0
PARTITION_S = 4.0
NO_MESSAGE = 10037

needs_namespaces = pytest.mark.skipif(not namespaces.available(), reason="needs root and ip netns")
ours_only = pytest.mark.usefixtures("_ours")


@pytest.fixture
def _ours(kind: Kind) -> None:
    if kind is Kind.REAL:
        pytest.skip("about lakestream's own files")


TWO_ACCOUNTS = """\
  A { users: [{user: a, password: p}], jetstream: enabled }
  B { users: [{user: b, password: p}], jetstream: enabled }
"""


def finish(load: Load, what: str, since: float | None = None) -> None:
    """Continue the load a little, audit, and print the figures."""
    outage = ""
    if since is not None:
        first, every = load.outage(since)
        outage = f"; back after {first:.2f} s, for everyone {every:.2f} s; longest gap {load.longest_gap(since):.2f} s"
        assert every < BACK_LIMIT_S, f"service was away for {every:.1f} s"
    print(f"{what}: {load.audit()}{outage}")


def leader_of(cluster: Cluster) -> Node:
    return cluster.stream_leader(STREAM)


def follower_of(cluster: Cluster) -> Node:
    return cluster.followers(STREAM)[0]


def meta_leader_of(cluster: Cluster) -> Node:
    return cluster.meta_leader()


VICTIMS = {"leader": leader_of, "follower": follower_of, "meta leader": meta_leader_of}


@pytest.mark.parametrize("victim", [pytest.param("leader", marks=pytest.mark.smoke), "follower", "meta leader"])
def test_a_killed_node(start_cluster: StartCluster, victim: str) -> None:
    cluster = start_cluster(3)
    with Load(cluster) as load:
        node = VICTIMS[victim](cluster)
        node.kill()
        since = time.monotonic()
        load.wait_acks(50)
        node.start()
        cluster.wait_current(STREAM)
        load.wait_acks(20)
    finish(load, f"killed {victim}", since)


def test_a_node_is_killed_that_serves_two_accounts(start_cluster: StartCluster) -> None:
    cluster = start_cluster(3, accounts=TWO_ACCOUNTS, user=("a", "A"))
    other = cluster.as_user("b", "B")
    with Load(cluster) as load, Load(other) as beside:
        node = leader_of(cluster)
        other.lead(STREAM, node)
        node.kill()
        since = time.monotonic()
        for each in (load, beside):
            each.wait_acks(50)
        node.start()
        for each, seen in ((cluster, load), (other, beside)):
            each.wait_current(STREAM)
            seen.wait_acks(20)
    finish(load, "killed leader of A", since)
    finish(beside, "killed leader of B", since)


def test_two_of_five_killed(start_cluster: StartCluster) -> None:
    cluster = start_cluster(5)
    with Load(cluster, replicas=5) as load:
        leader = leader_of(cluster)
        gone = [leader, cluster.others(leader)[0]]
        for node in gone:
            node.kill()
        since = time.monotonic()
        load.wait_acks(50)
        for node in gone:
            node.start()
        cluster.wait_current(STREAM)
        load.wait_acks(20)
    finish(load, "killed two of five", since)


def test_all_killed_at_once(start_cluster: StartCluster) -> None:
    cluster = start_cluster(3, durable=True)
    with Load(cluster) as load:
        for node in cluster.nodes:
            node.kill()
        since = time.monotonic()
        for node in cluster.nodes:
            node.start()
        load.wait_acks(20)
    finish(load, "killed all", since)


@pytest.mark.parametrize("victim", ["leader", "follower"])
def test_a_hanging_node(start_cluster: StartCluster, victim: str) -> None:
    cluster = start_cluster(3)
    with Load(cluster) as load:
        node = VICTIMS[victim](cluster)
        node.pause()
        since = time.monotonic()
        wait(HANG_S)
        load.wait_acks(20)
        node.resume()
        load.wait_acks(20)
    finish(load, f"hanging {victim}", since)


def _both_ways(cluster: Cluster, node: Node) -> None:
    cluster.isolate(node)


def _deaf(cluster: Cluster, node: Node) -> None:
    cluster.cut(cluster.others(node), [node])


def _mute(cluster: Cluster, node: Node) -> None:
    cluster.cut([node], cluster.others(node))


CUTS: dict[str, Callable[[Cluster, Node], None]] = {"isolated": _both_ways, "deaf": _deaf, "mute": _mute}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("victim", ["leader", "follower"])
def test_a_partition(start_cluster: StartCluster, victim: str, cut: str) -> None:
    _partition(start_cluster(3, links=True), victim, cut)


@needs_namespaces
@pytest.mark.parametrize("cut", CUTS)
def test_a_partition_between_namespaces(start_cluster: StartCluster, cut: str) -> None:
    _partition(start_cluster(3, namespaces=True), "leader", cut)


def _partition(cluster: Cluster, victim: str, cut: str) -> None:
    """Partition a node from the others.

    Clients still reach every node; those at the isolated one get no acks until the partition ends.
    """
    with Load(cluster) as load:
        node = VICTIMS[victim](cluster)
        CUTS[cut](cluster, node)
        since = time.monotonic()
        wait(PARTITION_S)
        cluster.heal()
        healed = time.monotonic()
        load.wait_acks(20)
    first, _ = load.outage(since)
    print(f"{cut} {victim}: others went on after {first:.2f} s")
    finish(load, f"{cut} {victim}, from the healing on", healed)


def test_a_majority_goes_on_without_two_of_five(start_cluster: StartCluster) -> None:
    cluster = start_cluster(5, links=True)
    with Load(cluster, replicas=5) as load:
        leader = leader_of(cluster)
        minority = [leader, cluster.others(leader)[0]]
        majority = cluster.others(*minority)
        cluster.cut(minority, majority)
        cluster.cut(majority, minority)
        since = time.monotonic()
        gone = [None, *(node.name for node in minority)]
        until(lambda: cluster.stream_cluster(STREAM, node=majority[0]).get("leader") not in gone, "another leader")
        wait(1)
        cluster.heal()
        load.wait_acks(20)
    finish(load, "split two and three", since)


@pytest.mark.parametrize("victim", ["follower", "leader"])
def test_a_slow_link(start_cluster: StartCluster, victim: str) -> None:
    cluster = start_cluster(3, links=True)
    with Load(cluster) as load:
        node = VICTIMS[victim](cluster)
        cluster.slow(node, delay_s=0.05, bytes_per_s=2e6)
        since = time.monotonic()
        load.wait_acks(30)
        cluster.heal()
        load.wait_acks(20)
    finish(load, f"slow links of the {victim}", since)


def test_links_that_break_all_the_time(start_cluster: StartCluster) -> None:
    cluster = start_cluster(3, links=True)
    with Load(cluster) as load:
        since = time.monotonic()
        for turn in range(8):
            cluster.reset_links(cluster.nodes[turn % 3])
            wait(0.3)
        load.wait_acks(20)
    finish(load, "breaking links", since)


FAULTS = {"disk full": {"write": "ENOSPC"}, "fsync error": {"sync": "EIO"}}
SAID = {"disk full": os.strerror(errno.ENOSPC), "fsync error": os.strerror(errno.EIO)}


@ours_only
@pytest.mark.parametrize("fault", SAID)
@pytest.mark.parametrize("victim", ["leader", "follower"])
def test_a_disk_that_fails(start_cluster: StartCluster, victim: str, fault: str) -> None:
    cluster = start_cluster(3, faults=True)
    with Load(cluster) as load:
        node = VICTIMS[victim](cluster)
        node.fail(**FAULTS[fault])
        since = time.monotonic()
        until(lambda: SAID[fault] in node.log(), f"{node.name} saying that its disk failed")
        load.wait_acks(20)
        node.kill()
        node.fail()
        node.start()
        cluster.wait_current(STREAM)
        load.wait_acks(20)
    finish(load, f"{fault} at the {victim}", since)


@ours_only
def test_a_slow_disk(start_cluster: StartCluster) -> None:
    cluster = start_cluster(3, faults=True)
    with Load(cluster) as load:
        follower_of(cluster).fail(sync_seconds=0.3)
        since = time.monotonic()
        load.wait_acks(100)
        for node in cluster.nodes:
            node.fail()
        load.wait_acks(20)
    finish(load, "slow disk of a follower", since)


@ours_only
@pytest.mark.parametrize("seconds", [-300, 300])
def test_a_clock_that_jumps(start_cluster: StartCluster, seconds: float) -> None:
    cluster = start_cluster(3, faults=True)
    with Load(cluster) as load:
        leader = leader_of(cluster)
        leader.fail(clock_seconds=seconds)
        since = time.monotonic()
        load.wait_acks(30)
        cluster.lead(STREAM, cluster.others(leader)[0])
        load.wait_acks(30)
        for node in cluster.nodes:
            node.fail()
        load.wait_acks(20)
    finish(load, f"a clock {seconds} s off", since)
    times = _times(cluster)
    assert times == sorted(times), "times go backwards in the stream"


def _times(cluster: Cluster) -> list[str]:
    """Return the times of all messages, in stream order."""
    times: list[str] = []
    with cluster.wire() as wire:
        last = wire.api(f"STREAM.INFO.{STREAM}")["state"]["last_seq"]
        while len(times) < last:
            reply = wire.new_reply()
            wire.publish(f"$JS.API.DIRECT.GET.{STREAM}", b'{"seq":%d,"batch":1000}' % (len(times) + 1), reply)
            while not (frame := wire.message(reply)).status:
                times.append(frame.headers["Nats-Time-Stamp"].rstrip("Z"))
    return times


def test_a_rolling_restart(start_cluster: StartCluster) -> None:
    """With a single retry of each failed publish, clients lose nothing in a rolling restart."""
    cluster = start_cluster(3)
    with Load(cluster, timeout=5.0) as load:
        since = time.monotonic()
        for node in cluster.nodes:
            node.stop(signal.SIGTERM)
            node.start()
            cluster.wait_ready()
            cluster.wait_current(STREAM)
            load.wait_acks(20)
    finish(load, f"rolling restart, at most {load.most_tries()} tries", since)
    if cluster.kind is Kind.OURS:
        assert load.most_tries() <= 2


def test_a_lost_store(start_cluster: StartCluster) -> None:
    """A node with an empty store receives everything again."""
    cluster = start_cluster(3)
    with Load(cluster) as load:
        node = follower_of(cluster)
        node.kill()
        cluster.wipe(node)
        load.wait_acks(20)
        node.start()
        cluster.wait_current(STREAM)
        load.wait_acks(20)
    finish(load, "lost store of a follower")


# ---- damaged files


DAMAGES = {"bit flip": flip_bit, "truncation": truncate, "removal": remove}


@ours_only
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("place", ["first", "last"])
@pytest.mark.parametrize("victim", ["leader", "follower"])
def test_damaged_segments_are_repaired_from_the_peers(
    start_cluster: StartCluster, victim: str, damage: str, place: str
) -> None:
    rng = random.Random(f"{victim} {damage} {place}")
    cluster = start_cluster(3, config="lake { seal_bytes: 200k, seal_age: 1s }")
    with Load(cluster) as load:
        node = VICTIMS[victim](cluster)
        until(lambda: len(segments(node, STREAM)) > 2, "some segments")
        node.kill()
        path = segments(node, STREAM)[0 if place == "first" else -1]
        DAMAGES[damage](path, rng)
        load.wait_acks(20)
        node.start()
        cluster.wait_current(STREAM)
        load.wait_acks(20)
        if place == "first":  # the end of the last segment may be torn, as after any kill
            until(lambda: "damaged at" in node.log(), "a report of the damage")
    finish(load, f"{damage} in the {place} segment of a {victim}")
    assert STREAM in cluster.api("STREAM.NAMES", node=node)["streams"]
    cluster.lead(STREAM, node)
    print(f"led by the repaired node: {load.audit()}")


@ours_only
@pytest.mark.parametrize("damage", ["bit flip", "removal"])
def test_a_damaged_node_does_not_elect_one_that_lacks_what_was_acked(start_cluster: StartCluster, damage: str) -> None:
    """A damaged node does not elect a node that lacks acked entries.

    One node is down while much is acked; then one of the other two is damaged and the other one killed. The damaged and
    the outdated node are a majority, but may not continue without the entries of the third one.
    """
    rng = random.Random(damage)
    cluster = start_cluster(3, config="lake { seal_bytes: 200k, seal_age: 1s }")
    with Load(cluster) as load:
        leader = leader_of(cluster)
        outdated, damaged = cluster.followers(STREAM)
        outdated.kill()
        until(lambda: len(segments(damaged, STREAM)) > 2, "some segments")
        load.wait_acks(50)
        for node in (damaged, leader):
            node.kill()
        DAMAGES[damage](segments(damaged, STREAM)[-2], rng)
        for node in (damaged, outdated):
            node.start()
        wait(PARTITION_S)
        leader.start()
        load.wait_acks(20)
    finish(load, f"{damage} while the leader is dead")


@ours_only
@pytest.mark.parametrize("places", [(3, 20, 40), (0, 0, 10)], ids=["apart", "the newest one on two"])
def test_damage_of_the_open_segments_on_all_nodes_loses_nothing(
    start_cluster: StartCluster, places: tuple[int, int, int]
) -> None:
    """All nodes are killed under load, and entries of the open segment are damaged on each of them.

    Places are counted from the newest entry that all nodes have. No two of them are the same on all nodes.
    """
    cluster = start_cluster(3, config="lake { seal_bytes: 64m, seal_age: 10m }")
    with Load(cluster) as load:
        load.wait_acks(200)
        for node in cluster.nodes:
            node.kill()
        paths = [Path(segments(node, STREAM)[-1]) for node in cluster.nodes]
        frames = [frames_of(path) for path in paths]
        newest = min(max(each) for each in frames)
        for path, each, place in zip(paths, frames, places, strict=True):
            spoil(path, each[newest - place])
        for node in cluster.nodes:
            node.start()
        cluster.wait_current(STREAM)
        load.wait_acks(20)
    told = ["cannot be read here (messages: sequences" in node.log() for node in cluster.nodes]
    assert sum(told) > 1, "a node may not have acknowledged its newest entry yet: then it is a torn write"
    for node in cluster.nodes:
        assert not (Path(segments(node, STREAM)[-1]).parents[1] / ASIDE).exists()
    finish(load, "damaged entries of the open segment on all nodes")


# ---- membership changes


def test_scaling_under_load(start_cluster: StartCluster) -> None:
    """A stream under load is scaled from three replicas to one and back, twice; then its peers move."""
    cluster = start_cluster(5)
    with Load(cluster) as load:
        since = time.monotonic()
        for replicas in (1, 3, 5, 3):
            scale(cluster, STREAM, replicas)
            load.wait_acks(20)
        cluster.ask(f"STREAM.PEER.REMOVE.{STREAM}", {"peer": leader_of(cluster).name})
        load.wait_acks(50)
        cluster.wait_current(STREAM)
    finish(load, "scaled 3, 1, 3, 5, 3, and the leader removed", since)


def test_compare_and_set_over_failovers(start_cluster: StartCluster) -> None:
    """Clients on different nodes increment one subject with compare-and-set; no increment is lost."""
    cluster = start_cluster(3)
    cluster.stream("COUNT", ["count"])
    counters = [Counter(cluster, node) for node in cluster.nodes]
    for counter in counters:
        counter.start()
    for turn in range(3):
        wait(1)
        if turn % 2:
            cluster.stream_leader("COUNT").pause()
            wait(HANG_S)
            next(node for node in cluster.nodes if node.paused).resume()
        else:
            node = cluster.stream_leader("COUNT")
            node.kill()
            wait(1)
            node.start()
    wait(2)
    for counter in counters:
        counter.stop()
    cluster.wait_current("COUNT")
    with cluster.wire() as wire:
        stored = [int(message.data) for message in read_all(wire, "COUNT")]
    print(f"{len(stored)} steps, acked {[len(counter.acked) for counter in counters]}")
    assert stored == list(range(1, len(stored) + 1))
    acked = [step for counter in counters for step in counter.acked]
    assert sorted(acked) == sorted(set(acked)), "two clients made the same step"
    assert set(acked) <= set(stored)
    assert len(acked) > 30


class Counter(threading.Thread):
    """Client that increments in a loop: reads the last value at the stream's leader and stores the next one."""

    def __init__(self, cluster: Cluster, node: Node) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self._node = node
        self._stopped = threading.Event()
        self.acked: list[int] = []

    def run(self) -> None:
        """Increment until `stop`."""
        while not self._stopped.is_set():
            with contextlib.suppress(OSError, Closed, WireTimeout), self._cluster.wire(self._node, 1.0) as wire:
                while not self._stopped.is_set():
                    self._step(wire)
            self._stopped.wait(0.1)

    def _step(self, wire: Wire) -> None:
        found = wire.api("STREAM.MSG.GET.COUNT", {"last_by_subj": "count"})
        if (error := found.get("error", {}).get("err_code")) not in (None, NO_MESSAGE):
            return
        last, step = (0, 0) if error else (found["message"]["seq"], int(base64.b64decode(found["message"]["data"])))
        expected = {"Nats-Expected-Last-Subject-Sequence": str(last)}
        answer = wire.request("count", b"%d" % (step + 1), expected)
        if answer.data and "error" not in answer.json():
            self.acked.append(step + 1)

    def stop(self) -> None:
        """Stop, and wait for the thread."""
        self._stopped.set()
        self.join(10)


# ---- random faults


def test_a_random_campaign(start_cluster: StartCluster, kind: Kind) -> None:
    seed = int(os.environ.get("LAKESTREAM_CLUSTER_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"LAKESTREAM_CLUSTER_SEED={seed}")
    ours = kind is Kind.OURS
    config = "lake { seal_bytes: 200k, seal_age: 2s }" if ours else ""
    cluster = start_cluster(3, links=True, durable=True, faults=ours, config=config)
    with Load(cluster) as load:
        nemesis = Nemesis(cluster, [STREAM])
        for turn, step in enumerate(islice(schedule(seed, possible(kind, 3, lake=False), 3), ROUNDS)):
            print(f"{turn}: {step}", flush=True)
            nemesis.apply(step)
            load.wait_acks(5, 60)
    finish(load, f"{ROUNDS} faults")
