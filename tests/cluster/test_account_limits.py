"""Tests of account limits in a cluster, where every replica of a stream counts, and of an operator's requests.

`--against real` tries these tests on three nats-servers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.nodes import Cluster, until
from tests.servers import Kind
from tests.wire import Wire

pytestmark = pytest.mark.cluster

ACCOUNTS = """\
  L { users: [{user: l, password: p}], jetstream: {max_file: 20KB, max_mem: 4000, max_streams: 4, max_consumers: 2} }
  B { users: [{user: b, password: p}], jetstream: enabled }
"""


@pytest.fixture(scope="module")
def nodes(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield three nodes, used as user `l`."""
    made = Cluster(kind, tmp_path_factory.mktemp("limits"), 3, accounts=ACCOUNTS, user=("l", "L"))
    made.start()
    yield made
    made.kill()


@pytest.fixture
def cluster(nodes: Cluster) -> Iterator[Cluster]:
    """Yield the cluster without streams in either account."""
    yield nodes
    for user in (nodes, nodes.as_user("b", "B")):
        for name in user.ask("STREAM.NAMES")["streams"] or ():
            user.api(f"STREAM.DELETE.{name}")
        until(lambda user=user: not user.ask("STREAM.NAMES")["streams"], "no streams")  # type: ignore[misc]


def code(answer: Any) -> int:
    """Return the err_code of an answer; 0 for success."""
    return int(answer["error"]["err_code"]) if "error" in answer else 0


def create(cluster: Cluster, name: str, replicas: int, **config: Any) -> int:
    body = {"name": name, "subjects": [name.lower()], "num_replicas": replicas, "storage": "file", **config}
    return code(cluster.api(f"STREAM.CREATE.{name}", body))


def update(cluster: Cluster, name: str, replicas: int, **config: Any) -> int:
    body = {"name": name, "subjects": [name.lower()], "num_replicas": replicas, "storage": "file", **config}
    return code(cluster.api(f"STREAM.UPDATE.{name}", body))


def test_every_replica_is_reserved(cluster: Cluster) -> None:
    assert create(cluster, "A", 2, max_bytes=8000) == 0
    assert create(cluster, "C", 2, max_bytes=3000) == 10047
    assert create(cluster, "C", 1, max_bytes=4480) == 0
    assert create(cluster, "D", 1, max_bytes=1) == 10047
    assert create(cluster, "M", 3, max_bytes=1000, storage="memory") == 0
    assert create(cluster, "N", 1, max_bytes=1001, storage="memory") == 10028
    assert create(cluster.as_user("b", "B"), "A", 3, max_bytes=1_000_000) == 0
    cluster.wait_current("A")
    assert update(cluster, "A", 2, max_bytes=8001) == 10047
    assert update(cluster, "A", 2, max_bytes=7000) == 0
    assert create(cluster, "D", 1, max_bytes=2000) == 0


def test_streams_are_counted_over_all_nodes(cluster: Cluster) -> None:
    for number, node in enumerate([*cluster.nodes, cluster.nodes[0]]):
        body = {"name": f"S{number}", "subjects": [f"s.{number}"]}
        assert code(cluster.api(f"STREAM.CREATE.S{number}", body, node=node)) == 0
    for node in cluster.nodes:
        assert code(cluster.api("STREAM.CREATE.X", {"name": "X", "subjects": ["x"]}, node=node)) == 10027
    assert code(cluster.api("STREAM.CREATE.S1", {"name": "S1", "subjects": ["s.1"]})) == 0
    assert code(cluster.api("STREAM.DELETE.S0")) == 0
    assert code(cluster.api("STREAM.CREATE.X", {"name": "X", "subjects": ["x"], "max_consumers": 3})) == 10026
    assert code(cluster.api("STREAM.CREATE.X", {"name": "X", "subjects": ["x"], "max_consumers": 2})) == 0


def filled(wire: Wire, subject: str, most: int = 100) -> int:
    """Publish messages of 1,000 bytes until the account's limit refuses one; return the number accepted."""
    for number in range(most):
        answer = json.loads(wire.request(subject, b"x" * 1000).data)
        if "error" in answer:
            assert answer["error"]["err_code"] == 10002
            return number
    raise AssertionError(f"{most} messages were taken")


def test_a_stream_is_full_when_all_its_replicas_are(cluster: Cluster) -> None:
    cluster.stream("A", ["a"], 3)
    with cluster.wire(cluster.nodes[1]) as wire:
        until(lambda: wire.request("a", b"x").status != 503, "A is known here")
        taken = filled(wire, "a")
        # There is room for 6 messages on three nodes; nats-server learns the other nodes' usage with a delay.
        assert taken == 6 or (cluster.kind is Kind.REAL and taken < 20)
        cluster.ask("STREAM.PURGE.A")
        until(lambda: "seq" in json.loads(wire.request("a", b"x").data or b"{}"), "room again")
    other = cluster.as_user("b", "B")
    other.stream("A", ["a"], 3)
    with other.wire() as wire:
        until(lambda: wire.request("a", b"x").status != 503, "A of B is known here")
        for _ in range(30):
            assert "error" not in json.loads(wire.request("a", b"x" * 1000).data)


def test_what_other_nodes_hold_counts(cluster: Cluster) -> None:
    for number in range(3):
        assert code(cluster.api(f"STREAM.CREATE.S{number}", {"name": f"S{number}", "subjects": [f"s.{number}"]})) == 0
    with cluster.wire() as wire:
        for number in range(3):
            until(lambda n=number: wire.request(f"s.{n}", b"").status != 503, "the stream is known here")  # type: ignore[misc]
        for _ in range(9):
            assert "error" not in json.loads(wire.request("s.0", b"x" * 1000).data)
            assert "error" not in json.loads(wire.request("s.1", b"x" * 1000).data)

        def refused() -> bool:
            answer = json.loads(wire.request("s.2", b"x" * 3000).data)
            return bool(code(answer) == 10002)

        until(refused, "S2's leader knows what the other streams hold")


def test_an_operator_removes_everything_of_an_account(cluster: Cluster) -> None:
    other = cluster.as_user("b", "B")
    for user in (cluster, other):
        user.stream("A", ["a"], 3)
        user.stream("C", ["c"], 1)
    assert cluster.system_api("ACCOUNT.PURGE.L")["initiated"]
    until(lambda: not cluster.ask("STREAM.NAMES")["streams"], "no streams in L")
    assert other.ask("STREAM.NAMES")["streams"] == ["A", "C"]
    cluster.stream("A", ["a"], 3)
    assert cluster.ask("STREAM.INFO.A")["state"]["messages"] == 0


def test_an_operator_moves_the_stream_of_one_account(cluster: Cluster) -> None:
    other = cluster.as_user("b", "B")
    cluster.stream("A", ["a"], 1)
    other.stream("A", ["a"], 1)
    with cluster.wire() as wire:
        until(lambda: wire.request("a", b"x").status != 503, "A is known here")
    before = cluster.ask("STREAM.INFO.A")["cluster"]["leader"]
    stays = other.ask("STREAM.INFO.A")["cluster"]["leader"]
    answer = cluster.system_api("ACCOUNT.STREAM.MOVE.L.A", {"server": before})
    assert answer["config"]["name"] == "A", answer
    until(lambda: cluster.ask("STREAM.INFO.A")["cluster"].get("leader") not in (before, None, ""), "another leader")
    assert other.ask("STREAM.INFO.A")["cluster"]["leader"] == stays
    until(lambda: code(cluster.system_api("ACCOUNT.STREAM.CANCEL_MOVE.L.A")) == 10129, "the move has come to its end")
    assert code(cluster.system_api("ACCOUNT.STREAM.MOVE.L.ZZ")) == 10059
    assert code(cluster.system_api("STREAM.NAMES")) == 10039


def test_jetstream_is_taken_from_an_account_and_given_back(kind: Kind, tmp_path: Path) -> None:
    if kind is Kind.REAL:
        pytest.skip("nats-server 2.15.1 does not store anything again after that, not within 30 s")
    cluster = Cluster(kind, tmp_path, 3, accounts=ACCOUNTS, user=("l", "L"))
    cluster.start()
    try:
        cluster.stream("A", ["a"], 3)
        cluster.stream("C", ["c"], 1)
        with cluster.wire() as wire:
            until(lambda: wire.request("a", b"x").status != 503, "A is known here")
            until(lambda: wire.request("c", b"x").status != 503, "C is known here")
        stored = {name: cluster.ask(f"STREAM.INFO.{name}")["state"]["messages"] for name in "AC"}
        without = re.sub(r", jetstream: \{.*?\}", "", ACCOUNTS, count=1)
        for node in cluster.nodes:
            cluster.configure(node, without)
        for node in cluster.nodes:
            until(lambda node=node: code(cluster.api("STREAM.NAMES", node=node)) == 10039, "no JetStream")  # type: ignore[misc]
            with cluster.wire(node) as wire:
                until(lambda wire=wire: wire.request("a", b"x").status == 503, "nobody stores A")  # type: ignore[misc]
                until(lambda wire=wire: wire.request("c", b"x").status == 503, "nobody stores C")  # type: ignore[misc]
        for node in cluster.nodes:
            cluster.configure(node, ACCOUNTS)
        for name in "AC":
            assert cluster.ask(f"STREAM.INFO.{name}")["state"]["messages"] >= stored[name]
        with cluster.wire() as wire:
            for name in "ac":
                until(lambda name=name: "seq" in json.loads(wire.request(name, b"x").data or b"{}"), "stored again")  # type: ignore[misc]
    finally:
        cluster.kill()
