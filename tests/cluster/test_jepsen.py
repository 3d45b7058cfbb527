"""Tests of the faults under which Jepsen saw nats-server 2.12.1 lose acked messages or streams.

The findings and what happens here are in docs/campaigns.md. Each test runs a load, injects the fault of one finding,
and audits every replica against all acks. `--against real` shows what nats-server does with damaged files.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import StartCluster
from tests.cluster.load import STREAM, Load
from tests.cluster.nemesis import flip_bit, segments, truncate, wait
from tests.cluster.nodes import Cluster, Node, until
from tests.cluster.supply import Power
from tests.conftest import SHOWN_LOGS
from tests.power.disk import Loss
from tests.servers import Kind, StartFailed
from tests.wire import Closed, WireTimeout

pytestmark = [pytest.mark.chaos, pytest.mark.cluster]

SMALL = "lake { enabled: false, seal_bytes: 20k }"
"""Small segments, so that damage hits sealed ones."""
SHORT_S = 1.0


def finish(load: Load, what: str) -> None:
    """Audit every replica, and print the figures."""
    print(f"{what}: {load.audit()}")


def files(node: Node, kind: str) -> list[str]:
    """Return the files of a node that hold messages, or everything else of streams and of the cluster's state."""
    messages = segments(node, STREAM)
    if kind == "messages":
        return messages
    every = (path for path in (node.store / "jetstream").rglob("*") if path.is_file() and path.stat().st_size > 10)
    return sorted(str(path) for path in every if str(path) not in messages)


def led_by_each(cluster: Cluster, nodes: list[Node], load: Load) -> None:
    """Let each of these nodes lead the stream, and audit what all nodes then have."""
    for node in nodes:
        cluster.lead(STREAM, node)
        load.audit()


DAMAGES = {"bit flip": flip_bit, "truncation": truncate}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(("size", "hurt"), [(3, 1), (5, 2)])
def test_damaged_messages_on_a_minority_lose_nothing(
    start_cluster: StartCluster, kind: Kind, size: int, hurt: int, damage: str
) -> None:
    """Single-bit errors or truncation of message files on a minority lose no acked message (nats-server #7549)."""
    rng = random.Random(f"{size} {damage}")
    cluster = start_cluster(size, durable=True, config=SMALL if kind is Kind.OURS else "")
    with Load(cluster, replicas=size) as load:
        load.wait_acks(100)
        leader = cluster.stream_leader(STREAM)
        victims = [leader, *rng.sample(cluster.others(leader), hurt - 1)]
        for node in victims:
            node.kill()
        for node in victims:
            for path in files(node, "messages"):
                DAMAGES[damage](path, rng)
        load.wait_acks(10)
        for node in victims:
            node.start()
        cluster.wait_current(STREAM, 60)
        load.wait_acks(10)
    finish(load, f"{damage} in all message files of {hurt} of {size}")
    led_by_each(cluster, victims, load)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_state_of_a_minority_deletes_no_stream(start_cluster: StartCluster, kind: Kind, damage: str) -> None:
    """Single-bit errors in snapshots and other state of two of five nodes delete no stream (nats-server #7556)."""
    rng = random.Random(damage)
    cluster = start_cluster(5, durable=True, config=SMALL if kind is Kind.OURS else "")
    with Load(cluster, replicas=5) as load:
        load.wait_acks(50)
        leader = cluster.meta_leader()
        victims = [leader, cluster.others(leader)[0]]
        for node in victims:
            node.stop()  # a clean stop writes checkpoints and snapshots
        hurt = 0
        for node in victims:
            for path in files(node, "state"):
                DAMAGES[damage](path, rng)
                hurt += 1
        load.wait_acks(10)
        started = [node for node in victims if _starts(node)]
        for node in victims:
            if node not in started:  # it says why, and its replica is made anew from the others
                print(f"{node.name} does not start: {node.log(3)}")
                cluster.wipe(node)
                node.start()
        for node in cluster.others(*victims):  # who is left are the nodes with damage, and one other
            if node is not cluster.others(*victims)[0]:
                node.kill()
        wait(SHORT_S)
        for node in cluster.nodes:
            if not node.running:
                node.start()
        cluster.wait_ready(60)
        cluster.wait_current(STREAM, 60)
        load.wait_acks(10)
    assert hurt >= 4
    finish(load, f"{damage} in {hurt} files of two of five nodes, {len(started)} of which started")
    for node in cluster.nodes:
        assert STREAM in cluster.api("STREAM.NAMES", node=node)["streams"]


def _starts(node: Node) -> bool:
    try:
        node.start()
    except StartFailed:
        return False
    return True


StartPowered = Callable[[int], tuple[Cluster, Power]]


@pytest.fixture
def start_powered(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[StartPowered]:
    """Make a cluster whose nodes can lose power."""
    made: list[Cluster] = []

    def start(size: int) -> tuple[Cluster, Power]:
        cluster = Cluster(Kind.OURS, tmp_path / "powered", size, config=SMALL)
        made.append(cluster)
        request.node.stash.setdefault(SHOWN_LOGS, []).append(cluster.log)
        power = Power(cluster, tmp_path_factory.getbasetemp())
        return cluster.start(), power

    yield start
    for cluster in made:
        cluster.kill()


@pytest.mark.parametrize("loss", [Loss.SYNCED, Loss.TORN])
def test_a_power_failure_of_all_nodes_loses_nothing(start_powered: StartPowered, loss: Loss) -> None:
    """Acked messages are on stable storage when all nodes lose their power at once (nats-server #7564)."""
    cluster, power = start_powered(3)
    with Load(cluster) as load:
        load.wait_acks(50)
        changed = power.off(cluster.nodes, loss)
        for node in cluster.nodes:
            node.start()
        load.wait_acks(10)
    finish(load, f"power failure of three of three ({loss.value}), {changed} files changed")


@pytest.mark.parametrize("loss", [Loss.SYNCED, Loss.TORN])
def test_a_power_failure_of_one_node_with_pauses_splits_nothing(start_powered: StartPowered, loss: Loss) -> None:
    """A node that lost its power and two that had been paused lose no acked message (nats-server #7567).

    Two of five nodes are paused while much is acked by the other three. One of these loses its power; then the former
    two and it are the only majority.
    """
    cluster, power = start_powered(5)
    with Load(cluster, replicas=5) as load:
        leader = cluster.stream_leader(STREAM)
        others = cluster.others(leader)
        behind, ahead, victim = others[:2], [leader, others[2]], others[3]
        for node in behind:
            node.pause()
        load.wait_acks(50)
        changed = power.off([victim], loss)
        for node in ahead:
            node.pause()
        for node in behind:
            node.resume()
        victim.start()
        until(lambda: cluster.stream_leader(STREAM) not in ahead, "a leader among the others", 60)
        load.wait_acks(10, 60)
        for node in ahead:
            node.resume()
        cluster.wait_current(STREAM, 60)
        load.wait_acks(10)
    finish(load, f"power failure of one of five with pauses ({loss.value}), {changed} files changed")


def test_a_node_leaves_while_others_are_killed_and_cut_off(start_cluster: StartCluster) -> None:
    """Nodes that are cut off, killed and removed in quick succession lose no acked message (nats-server #7545)."""
    rng = random.Random(7545)
    cluster = start_cluster(5, links=True, durable=True)
    with Load(cluster, replicas=3) as load:
        for turn in range(3):
            nodes = rng.sample(cluster.nodes, 5)
            cut_off, gone, rest = nodes[0], nodes[3], nodes[4]
            cluster.isolate(cut_off)
            wait(rng.uniform(0, SHORT_S))
            for node in nodes[:3]:
                node.kill()
            try:
                print(turn, cluster.system_api("SERVER.REMOVE", {"peer": gone.name}, node=rest, timeout=SHORT_S))
            except (OSError, Closed, WireTimeout) as error:  # two of five cannot decide it
                print(f"{turn}: {error!r}")
            cluster.heal()
            for node in nodes[:3]:
                node.start()
            until(lambda gone=gone: _removed(cluster, gone), f"{gone.name} removed", 60)  # type: ignore[misc]
            gone.stop()
            gone.start()
            until(
                lambda: cluster.meta_leader().page("jsz")["meta_cluster"]["cluster_size"] == 5, "five members again", 60
            )
            cluster.wait_current(STREAM, 60)
            load.wait_acks(10, 60)
    finish(load, "cut off, killed and removed")


def _removed(cluster: Cluster, node: Node) -> bool:
    """Remove a node from the cluster; return True once it is no member."""
    asked = next(each for each in cluster.running if each is not node)
    told = cluster.system_api("SERVER.REMOVE", {"peer": node.name}, node=asked, timeout=SHORT_S)
    return bool(told.get("success")) or told.get("error", {}).get("err_code") == 10044
