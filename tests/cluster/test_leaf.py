"""A cluster is a leaf node of a nats-server through one of its nodes, and through another when that is gone."""

from __future__ import annotations

import pytest

from tests.cluster.conftest import StartCluster
from tests.cluster.nodes import Cluster, Node, free_ports, until
from tests.conformance.leaf_world import copied, create, hub_config, lake_config, messages
from tests.conftest import StartServer
from tests.servers import Kind
from tests.wire import Wire

pytestmark = [pytest.mark.cluster, pytest.mark.chaos]

SOON_S = 120.0


def holder(cluster: Cluster) -> Node | None:
    """The node that is connected; never are there two."""
    pages = {node.name: node.page("varz")["remote_servers"][0] for node in cluster.running}
    up = [name for name, page in pages.items() if page["connected"]]
    return cluster.node(up[0]) if len(up) == 1 else None


def test_a_mirror_follows_a_replicated_stream_whichever_node_is_killed(
    start_cluster: StartCluster, start_server: StartServer
) -> None:
    [port] = free_ports(1)
    there = start_server(of=Kind.REAL, config=hub_config(port), name="hub")
    cluster = start_cluster(config=lake_config(port))
    first = until(lambda: holder(cluster), "one node connects", SOON_S)
    with Wire(there.address) as theirs:
        with cluster.wire() as wire:
            create(wire, "ORDERS", subjects=["orders.>"], num_replicas=3)
        create(theirs, "M", mirror={"name": "ORDERS", "external": {"api": "$JS.lake.API"}})
        last = publish(cluster, 50)
        copied(theirs, "M", last)
        # The leader goes on another node than the link's, then the link's node goes.
        for victim in (cluster.stream_leader("ORDERS"), first):
            if not victim.running:
                continue
            victim.kill()
            last = publish(cluster, 50)
            until(lambda: holder(cluster), "one node connects", SOON_S)
            copied(theirs, "M", last)
            victim.start()
            cluster.wait_ready()
        last = publish(cluster, 10)
        copied(theirs, "M", last)
        assert until(lambda: holder(cluster), "still one node is connected", SOON_S)
        with cluster.wire() as wire:
            assert messages(theirs, "M") == messages(wire, "ORDERS")


def publish(cluster: Cluster, count: int) -> int:
    """Messages that are acked; returns the last sequence."""
    last = 0
    with cluster.wire(cluster.running[-1], timeout=30) as wire:

        def acked() -> int:
            return int(wire.request("orders.1", b"%d" % last).json().get("seq", 0))

        for _ in range(count):
            last = until(acked, "an ack", SOON_S)
    return last
