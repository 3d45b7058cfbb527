"""Tests of clusters with leaf connections: as leaf nodes of a nats-server, and with leaf nodes of their own."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.conftest import StartCluster
from tests.cluster.nodes import Cluster, Node, free_ports, until
from tests.conformance.leaf_peer import LeafPeer
from tests.conformance.leaf_world import (
    SOON_S,
    both_ways,
    copied,
    create,
    hub_config,
    lake_config,
    messages,
    reaches,
)
from tests.conftest import StartServer
from tests.servers import Kind
from tests.wire import Wire

pytestmark = [pytest.mark.cluster, pytest.mark.chaos]


def holder(cluster: Cluster) -> Node | None:
    """Return the connected node; assert that there is at most one."""
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
        # Move the leader off the link's node, then kill that node.
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


def leaf_port(node: Node) -> int:
    """Return the port on which a nats-server node accepts leaf nodes."""
    found = re.search(r"Listening for leafnode connections on \S+:(\d+)", node.log())
    return int(found[1]) if found else 0


def test_a_replicated_mirror_goes_on_when_the_node_that_the_link_leads_to_is_killed(
    start_server: StartServer, tmp_path: Path
) -> None:
    config = "jetstream { domain: hub }\nleafnodes { listen: '127.0.0.1:-1' }"
    there = Cluster(Kind.REAL, tmp_path / "there", config=config).start()
    try:
        ports = [until(functools.partial(leaf_port, node), "it listens") for node in there.nodes]
        urls = ", ".join(f"'nats-leaf://127.0.0.1:{port}'" for port in ports)
        config = f"jetstream {{ domain: lake }}\nlake {{ enabled: false }}\nremote {{ urls: [{urls}] }}"
        here = start_server(of=Kind.OURS, config=config, name="lake1")
        until(lambda: "connected to n1" in here.log(), "the link comes up", SOON_S)
        with Wire(here.address) as ours:
            create(ours, "ORDERS", subjects=["orders.>"])
            with there.wire() as theirs:
                create(theirs, "M", mirror={"name": "ORDERS", "external": {"api": "$JS.lake.API"}}, num_replicas=3)
            for n in range(200):
                assert "seq" in ours.request("orders.1", b"%d" % n).json()
            with there.wire() as theirs:
                copied(theirs, "M", 200, SOON_S)
            there.nodes[0].kill()
            for n in range(200):
                assert "seq" in ours.request("orders.1", b"%d" % n).json()
            until(lambda: re.search(r"connected to n[23]", here.log()), "the link leads to another node", SOON_S)
            with there.wire(there.nodes[1], timeout=30) as theirs:
                until(lambda: theirs.api("STREAM.INFO.M").get("state"), "the mirror has a leader", SOON_S)
                copied(theirs, "M", 400, SOON_S)
                assert messages(theirs, "M") == messages(ours, "ORDERS")
    finally:
        there.kill()


HUB = "jetstream { domain: hub }\nlake { enabled: false }\nleafnodes { listen: '127.0.0.1:-1' }\n"


@pytest.mark.parametrize("of", [Kind.REAL, Kind.OURS], ids=["nats-server", "lakestream"])
def test_leaf_nodes_of_a_cluster_reach_every_node_of_it(
    start_cluster: StartCluster, start_server: StartServer, of: Kind
) -> None:
    cluster = start_cluster(config=HUB)
    first, second, third = cluster.nodes
    lake = "lake { enabled: false }\n" if of is Kind.OURS else ""
    leaf = start_server(
        of=of,
        name="leaf",
        config=f"{lake}jetstream {{ domain: leaf }}\nhttp: '127.0.0.1:-1'\n"
        f"leafnodes {{ reconnect: '200ms', remotes: [{{ url: 'nats-leaf://127.0.0.1:{first.leaf_port}' }}] }}",
    )
    until(lambda: leaf.page("/leafz")["leafs"], "the leaf has a link", SOON_S)
    with Wire(leaf.address) as there, cluster.wire(second) as here, cluster.wire(second) as gate:
        both_ways(here, there)
        plain, queued = here.subscribe("plain"), here.subscribe("work", "g")
        here.ping()
        reaches(there, gate, "fence")
        for n in range(20):
            there.publish("plain", b"%d" % n)
            there.publish("work", b"%d" % n)
        reaches(there, gate, "fence.more")
        came = here.ping()
        assert [frame.data for frame in came if frame.sid == plain] == [b"%d" % n for n in range(20)]
        assert len([frame for frame in came if frame.sid == queued]) == 20
        create(here, "ORDERS", subjects=["orders.>"], num_replicas=3)
        create(there, "M", mirror={"name": "ORDERS", "external": {"api": "$JS.hub.API"}})
    copied(there := Wire(leaf.address), "M", publish(cluster, 20), SOON_S)
    there.close()
    first.kill()
    with Wire(leaf.address) as there, cluster.wire(third) as here:
        reaches(there, here, "over.another.node", SOON_S)
        copied(there, "M", publish(cluster, 20), SOON_S)


def test_members_behind_leaf_nodes_are_chosen_where_the_cluster_has_none(start_cluster: StartCluster) -> None:
    first, second, third = start_cluster(config=HUB.replace("lake { enabled: false }\n", "")).nodes
    port = until(functools.partial(leaf_port, second), "it listens")
    peers = [LeafPeer(("127.0.0.1", port), {"name": name, "cluster": name}) for name in ("one", "two")]
    for peer, weight in zip(peers, (1, 3), strict=True):
        peer.send(f"LS+ fence\r\nLS+ work g {weight}\r\n".encode())
        peer.heard()
    with Wire(first.address) as here, Wire(third.address) as there:
        there.subscribe("fence")
        there.ping()
        readers: list[Callable[[], list[str]]] = [
            *(
                functools.partial(lambda peer: [frame.words[0] for frame in peer.heard() if frame.words], each)
                for each in peers
            ),
            lambda: [frame.subject for frame in there.ping()],
        ]

        def shares(count: int) -> list[int]:
            """Publish on the first node; return how many messages the leaf nodes and the member on the third got."""
            for _ in range(count):
                here.publish("work", b"x")
            got: list[list[str]] = [[], [], []]

            def fenced() -> bool:
                here.publish("fence")
                here.ping()
                for subjects, read in zip(got, readers, strict=True):
                    subjects += read()
                return all("fence" in subjects for subjects in got)

            until(fenced, "the fence comes")
            return [subjects.count("work") for subjects in got]

        until(lambda: sum(shares(4)) == 4, "the members are known")
        one, two, _ = shares(400)
        assert abs(one - 100) < 60
        assert one + two == 400
        there.subscribe("work", "g")
        there.ping()
        until(lambda: shares(4)[2], "the member is known")
        assert shares(400) == [0, 0, 400]


def test_a_cluster_joins_a_hub_by_one_node(start_cluster: StartCluster, start_server: StartServer) -> None:
    hub = start_server(of=Kind.REAL, name="hub", config="http: '127.0.0.1:-1'\nleafnodes { listen: '127.0.0.1:-1' }")
    cluster = start_cluster(
        config="lake { enabled: false }\njetstream { domain: lake }\n"
        f"leafnodes {{ remotes: [{{ url: 'nats-leaf://127.0.0.1:{hub.leaf_port}' }}] }}"
    )
    until(lambda: len(hub.page("/leafz")["leafs"]) == 1, "one node connects", SOON_S)
    with Wire(hub.address) as there:
        for node in cluster.nodes:
            with cluster.wire(node) as here, cluster.wire(node) as gate:
                both_ways(here, there)
                sid = here.subscribe("once")
                here.ping()
                reaches(there, gate, f"fence.{node.name}")
                there.publish("once", b"m")
                reaches(there, gate, f"fence.more.{node.name}")
                assert len([frame for frame in here.ping() if frame.sid == sid]) == 1
        holding = next(node for node in cluster.nodes if node.page("leafz")["leafs"])
        holding.kill()
        until(lambda: hub.page("/leafz")["leafs"] == [], "the connection ends", SOON_S)
        with cluster.wire(cluster.running[0]) as here:
            reaches(there, here, "over.another.node", SOON_S)


def publish(cluster: Cluster, count: int) -> int:
    """Publish messages until they are acked; return the last sequence."""
    last = 0
    with cluster.wire(cluster.running[-1], timeout=30) as wire:

        def acked() -> int:
            return int(wire.request("orders.1", b"%d" % last).json().get("seq", 0))

        for _ in range(count):
            last = until(acked, "an ack", SOON_S)
    return last
