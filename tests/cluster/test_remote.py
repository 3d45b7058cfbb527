"""Tests of a cluster with a remote: any node relays the requests of streams and clients on all nodes."""

from __future__ import annotations

import pytest

from tests.cluster.conftest import StartCluster
from tests.cluster.nodes import Cluster, Node, until
from tests.conformance.remotes import EXTERNAL, create, messages, publish, state
from tests.conformance.test_move import Move, durable
from tests.conftest import StartServer
from tests.servers import Kind, Server
from tests.wire import Wire

pytestmark = [pytest.mark.cluster, pytest.mark.chaos]

SOON_S = 120.0


def block(remote: Server) -> str:
    return f"remote {{ domain: hub, url: 'nats://{remote.host}:{remote.port}' }}"


def linked(node: Node) -> bool:
    """Return True if the node's connection to the remote is up."""
    pages = node.page("varz").get("remote_servers") or [{"connected": False}]
    return bool(pages[0]["connected"])


def all_linked(cluster: Cluster) -> bool:
    return all(linked(node) for node in cluster.running)


def same(cluster: Cluster, there: Wire, name: str, origin: str) -> bool:
    """Wait until a mirror has every message of its origin; return True if the messages are equal."""
    last = state(there, origin)["last_seq"]
    until(lambda: cluster.api(f"STREAM.INFO.{name}")["state"]["last_seq"] == last, f"message {last} of {name}", SOON_S)
    with cluster.wire() as wire:
        return messages(wire, name) == messages(there, origin)


def test_a_replicated_mirror_follows_whichever_node_is_killed(
    start_cluster: StartCluster, start_server: StartServer
) -> None:
    remote = start_server(of=Kind.REAL)
    cluster = start_cluster(config=block(remote))
    until(lambda: all_linked(cluster), "a link of each node", SOON_S)
    with Wire(remote.address) as there:
        create(there, "O", subjects=["o"])
        publish(there, "o", *(b"%d" % number for number in range(100)))
        with cluster.wire() as wire:
            create(wire, "M", num_replicas=3, mirror={"name": "O", "external": EXTERNAL})
        assert same(cluster, there, "M", "O")
        for node in cluster.nodes:
            node.kill()
            publish(there, "o", *(b"%d" % number for number in range(100)))
            until(lambda: cluster.api("STREAM.INFO.M")["state"]["last_seq"] >= 100, "a leader", SOON_S)
            assert same(cluster, there, "M", "O")
            node.start()
            cluster.wait_ready()
        publish(there, "o", b"last")
        assert same(cluster, there, "M", "O")


def test_one_node_with_a_link_serves_all(start_cluster: StartCluster, start_server: StartServer) -> None:
    remote = start_server(of=Kind.REAL)
    cluster = start_cluster(config=block(remote))
    for node in cluster.nodes[1:]:
        node.config = node.config.replace(block(remote), "")
        node.reload()
    until(lambda: [linked(node) for node in cluster.nodes] == [True, False, False], "one link", SOON_S)
    with Wire(remote.address) as there, cluster.wire(cluster.nodes[1]) as here, cluster.wire(cluster.nodes[2]) as hub:
        hub.api_prefix = "$JS.hub.API"
        until(lambda: "streams" in hub.api("INFO"), "the domain at another node", SOON_S)
        create(hub, "O", subjects=["o"])
        publish(there, "o", b"1", b"2")
        # Wherever these are led: all of them are three nodes away from each other.
        for number in range(3):
            create(here, f"M{number}", mirror={"name": "O", "external": EXTERNAL})
        for number in range(3):
            assert same(cluster, there, f"M{number}", "O")
        body = {"durable_name": "c", "ack_policy": "explicit"}
        assert "error" not in hub.api("CONSUMER.DURABLE.CREATE.O.c", {"stream_name": "O", "config": body})
        inbox = hub.new_reply() + ".pull"
        sid = hub.subscribe(inbox)
        hub.ping()
        hub.publish("$JS.hub.API.CONSUMER.MSG.NEXT.O.c", b'{"batch":2,"expires":20000000000}', inbox)
        for _ in range(2):
            assert hub.request(hub.delivered(sid).reply, b"+ACK").data == b""
        pushed = {"durable_name": "p", "deliver_subject": "deliver.here", "ack_policy": "explicit"}
        assert "error" not in hub.api("CONSUMER.DURABLE.CREATE.O.p", {"stream_name": "O", "config": pushed})
        assert here.request("$JS.hub.API.CONSUMER.INFO.O.p").json()["config"]["deliver_subject"] == "deliver.here"
        sid = here.subscribe("deliver.here")
        assert [here.delivered(sid).data for _ in range(2)] == [b"1", b"2"]
        cluster.nodes[0].kill()
        told = until(
            lambda: "error" in hub.api("INFO") or hub.request("$JS.hub.API.INFO").status == 503, "the end", SOON_S
        )
        assert told


def test_what_one_client_sends_arrives_in_order_whichever_nodes_have_links(
    start_cluster: StartCluster, start_server: StartServer
) -> None:
    remote = start_server(of=Kind.REAL)
    cluster = start_cluster(config=block(remote))
    until(lambda: all_linked(cluster), "a link of each node", SOON_S)
    with Wire(remote.address) as there:
        create(there, "KV_b", subjects=["$KV.b.>"])
        for number, node in enumerate(cluster.nodes):
            if number == 1:  # from now on its clients connect through another node
                node.config = node.config.replace(block(remote), "")
                node.reload()
                until(lambda node=node: not linked(node), "no link", SOON_S)
            with cluster.wire(node) as hub:
                for value in range(500):
                    hub.publish("$JS.hub.API.$KV.b.x", b"%d" % value)
                hub.ping()
            until(lambda count=500 * (number + 1): state(there, "KV_b")["messages"] == count, "all messages", SOON_S)
        assert [int(message[-1]) for message in messages(there, "KV_b")] == list(range(500)) * 3


def test_streams_move_into_a_cluster_and_out_of_it(start_cluster: StartCluster, start_server: StartServer) -> None:
    old, last = start_server(of=Kind.REAL), start_server(of=Kind.REAL)
    cluster = start_cluster()
    urls = ",".join(f"nats://{node.host}:{node.port}" for node in cluster.nodes)
    with Wire(old.address) as there:
        for number in range(3):
            create(there, f"S{number}", subjects=[f"s{number}"])
            publish(there, f"s{number}", *(b"%d" % each for each in range(20)))
            durable(there, f"S{number}", "c")
        origin = messages(there, "S0")
    run = Move(old.url, urls, "S*", "--quiet", "1s")
    run.wait_event("created")
    cluster.nodes[1].kill()
    cluster.nodes[1].start()
    assert run.end() == 0, run.report()
    cluster.wait_ready()
    with cluster.wire() as here:
        assert messages(here, "S0") == origin
        config = here.api("STREAM.INFO.S0")["config"]
        assert "error" not in here.api("STREAM.UPDATE.S0", {**config, "num_replicas": 3})
    back = Move(urls, last.url, "S0", "--by", "backup", "--quiet", "1s")
    assert back.end() == 0, back.report()
    assert "3 replicas become 1: the new server is not a cluster" in [note["what"] for note in back.named("obstacle")]
    with Wire(last.address) as here:
        assert messages(here, "S0") == origin


def test_a_temporary_link_outlives_its_node(start_cluster: StartCluster, start_server: StartServer) -> None:
    old = start_server(of=Kind.REAL)
    cluster = start_cluster()
    urls = ",".join(f"nats://{node.host}:{node.port}" for node in cluster.nodes)
    with Wire(old.address) as there:
        create(there, "S", subjects=["s"])
        publish(there, "s", *(b"%d" % each for each in range(20)))
        run = Move(old.url, urls, "S", "--quiet", "5s")
        run.wait_event("copied")
        (holder,) = [node for node in cluster.running if linked(node)]
        holder.kill()
        publish(there, "s", b"last")
        until(lambda: any(linked(node) for node in cluster.running), "the link at another node", SOON_S)
        holder.start()
        assert run.end() == 0, run.report()
        cluster.wait_ready()
        with cluster.wire() as here:
            assert messages(here, "S") == messages(there, "S")
