"""Tests of the system account of a cluster of real processes: every node answers, and events reach all nodes.

`--against real` tries these tests on three nats-servers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.nodes import SYSTEM_USER, Cluster, Node, until
from tests.cluster.test_routing import connect_urls
from tests.servers import Kind
from tests.wire import Closed, Wire

pytestmark = pytest.mark.cluster

ACCOUNTS = """\
  A { users: [{user: a, password: p}] }
  B { users: [{user: b, password: p}] }
  FEW { users: [{user: few, password: p}], limits: {max_connections: 3} }
"""


@pytest.fixture(scope="module")
def nodes(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield three connected nodes without JetStream."""
    cluster = Cluster(kind, tmp_path_factory.mktemp("system"), 3, accounts=ACCOUNTS, user=("a", "A"))
    for node in cluster.nodes:
        node.jetstream = False
        node.start()
    until(lambda: all(len(connect_urls(cluster, node)) == 3 for node in cluster.nodes), "three connected nodes")
    yield cluster
    cluster.kill()


def system(node: Node) -> Wire:
    return Wire(node.address, SYSTEM_USER)


def of_user(node: Node, user: str, **fields: str) -> Wire:
    wire = Wire(node.address, {"user": user, "pass": "p", **fields})
    wire.ping()
    return wire


def answers(wire: Wire, subject: str, count: int, body: Any = None) -> list[Any]:
    """Return `count` answers, and any others that have arrived by then."""
    reply = wire.new_reply()
    wire.publish(f"$SYS.REQ.{subject}", b"" if body is None else json.dumps(body).encode(), reply)
    found = [wire.message(reply) for _ in range(count)]
    return [frame.json() for frame in [*found, *(one for one in wire.ping() if one.subject == reply)]]


def names(found: list[Any]) -> list[str]:
    return sorted(one["server"]["name"] for one in found)


def ready(cluster: Cluster, wire: Wire, subject: str = "SERVER.PING.LEAFZ") -> None:
    """Wait until every node knows the subscription for the answers."""
    until(lambda: len(answers(wire, subject, 3)) == 3, "three answers")


@pytest.mark.parametrize("page", ["VARZ", "CONNZ", "SUBSZ", "ROUTEZ", "ACCOUNTZ", "JSZ", "HEALTHZ", "STATSZ"])
def test_every_node_answers(nodes: Cluster, page: str) -> None:
    with system(nodes.nodes[0]) as wire:
        ready(nodes, wire)
        assert names(answers(wire, f"SERVER.PING.{page}", 3)) == ["n1", "n2", "n3"]


def test_the_node_that_is_named_answers_alone(nodes: Cluster) -> None:
    with system(nodes.nodes[0]) as wire:
        ready(nodes, wire)
        ids = {one["name"]: one["id"] for one in answers(wire, "SERVER.PING.IDZ", 3)}
        assert names(answers(wire, f"SERVER.{ids['n3']}.VARZ", 1)) == ["n3"]
        assert names(answers(wire, "SERVER.PING.VARZ", 1, {"server_name": "n2"})) == ["n2"]
        assert len(answers(wire, "SERVER.PING.VARZ", 3, {"cluster": "TESTS"})) == 3


def test_an_account_is_told_of_by_every_node(nodes: Cluster) -> None:
    with system(nodes.nodes[0]) as wire, of_user(nodes.nodes[1], "b", name="there"):
        ready(nodes, wire)
        clients = {
            one["server"]["name"]: [client["name"] for client in one["data"]["connections"] or ()]
            for one in answers(wire, "ACCOUNT.B.CONNZ", 3)
        }
        assert clients == {"n1": [], "n2": ["there"], "n3": []}
        assert names(answers(wire, "ACCOUNT.B.CONNS", 1)) == ["n2"]


def test_a_client_hears_of_its_account_from_every_node_and_of_itself_from_one(nodes: Cluster) -> None:
    with of_user(nodes.nodes[0], "a", name="here") as wire, of_user(nodes.nodes[2], "a", name="there"):
        ready(nodes, wire, "ACCOUNT.PING.CONNZ")
        found = answers(wire, "SERVER.PING.CONNZ", 3)
        assert names(found) == ["n1", "n2", "n3"]
        clients = {client["name"] for one in found for client in one["data"]["connections"] or ()}
        assert clients == {"here", "there"}
        assert names(answers(wire, "USER.INFO", 1)) == ["n1"]


def test_what_happens_on_another_node_is_heard(nodes: Cluster) -> None:
    with system(nodes.nodes[0]) as wire:
        wire.subscribe("$SYS.ACCOUNT.B.>")
        wire.ping()

        def told() -> bool:
            of_user(nodes.nodes[1], "b", name="visitor").close()
            return bool(wire.message("$SYS.ACCOUNT.B.DISCONNECT", timeout=1).json()["server"]["name"] == "n2")

        until(told, "a client on another node is heard of")


def test_an_accounts_clients_are_counted_over_all_nodes(nodes: Cluster) -> None:
    def room() -> bool:
        try:
            of_user(nodes.nodes[2], "few").close()
        except Closed:
            return False
        return True

    with system(nodes.nodes[2]) as wire:
        ready(nodes, wire)
    with of_user(nodes.nodes[0], "few") as first, of_user(nodes.nodes[1], "few"), of_user(nodes.nodes[1], "few"):
        until(lambda: not room(), "the third node knows of the three clients")
        first.close()
        until(room, "the third node knows of the client that has gone")


def test_a_client_of_another_node_is_kicked(nodes: Cluster) -> None:
    with system(nodes.nodes[0]) as wire, of_user(nodes.nodes[1], "b") as client:
        ready(nodes, wire)
        ids = {one["name"]: one["id"] for one in answers(wire, "SERVER.PING.IDZ", 3)}
        answer = answers(wire, f"SERVER.{ids['n2']}.KICK", 1, {"cid": client.info["client_id"]})
        assert list(answer[0]) == ["server"]
        client.until_closed()


def test_the_end_of_another_node_is_heard(nodes: Cluster) -> None:
    with system(nodes.nodes[0]) as wire:
        wire.subscribe("$SYS.SERVER.*.SHUTDOWN")
        ready(nodes, wire)
        nodes.nodes[2].stop()
        assert wire.next(lambda frame: frame.subject.endswith(".SHUTDOWN")).json()["name"] == "n3"
