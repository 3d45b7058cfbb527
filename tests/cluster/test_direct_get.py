"""Tests of direct gets of replicated streams while replicas are added, lag and stop: reads of a client are monotonic.

Behaviour that nats-server shares is in scenarios/direct.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from tests.cluster.conftest import StartCluster
from tests.cluster.nodes import Cluster, Node, until
from tests.cluster.test_streams import fill
from tests.servers import Kind
from tests.wire import Wire, WireTimeout

pytestmark = pytest.mark.cluster

COUNT = 300


@pytest.fixture(autouse=True)
def ours(kind: Kind) -> None:
    if kind is not Kind.OURS:
        pytest.skip("nats-server's replicas answer a little before they have everything")


class Reader(threading.Thread):
    """Requests the newest message through one node in a loop; keeps the answers."""

    def __init__(self, cluster: Cluster, node: Node) -> None:
        super().__init__(daemon=True)
        self._wire = cluster.wire(node, 1.0)
        self._over = threading.Event()
        self.seen: list[int] = []
        """Sequences; minus the status if there was no message."""

    def run(self) -> None:
        while not self._over.is_set():
            try:
                frame = self._wire.request("$JS.API.DIRECT.GET.S.s.a", b"")
            except WireTimeout:
                continue
            self.seen.append(int(frame.headers["Nats-Sequence"]) if not frame.status else -frame.status)

    def until(self, wanted: Callable[[list[int]], bool]) -> list[int]:
        """Read until `wanted` is true; return the answers without 503."""
        until(lambda: wanted(self.seen), "answers")
        self._over.set()
        self.join(10)
        self._wire.close()
        return [seq for seq in self.seen if seq != -503]


def test_a_stream_that_gets_more_replicas_is_read_over_every_node(start_cluster: StartCluster) -> None:
    cluster = start_cluster(config="lake { enabled: false }")
    cluster.stream("S", ["s.>"], 1, allow_direct=True)
    fill(cluster, COUNT)
    readers = [Reader(cluster, node) for node in cluster.nodes]
    for reader in readers:
        reader.start()
    config = {"name": "S", "subjects": ["s.>"], "num_replicas": 3, "allow_direct": True}
    cluster.ask("STREAM.UPDATE.S", config)
    until(lambda: len(cluster.stream_cluster("S").get("replicas") or ()) == 2, "three replicas")
    cluster.wait_current("S")
    for reader in readers:
        so_far = len(reader.seen)
        seen = reader.until(lambda seen, so_far=so_far: len(seen) > so_far + 100)  # type: ignore[misc]
        assert set(seen) == {COUNT}


def test_a_node_that_comes_back_is_read_once_it_has_what_it_missed(start_cluster: StartCluster) -> None:
    cluster = start_cluster(config="lake { enabled: false }")
    cluster.stream("S", ["s.>"], allow_direct=True)
    fill(cluster, COUNT)
    gone = cluster.followers("S")[0]
    gone.kill()
    fill(cluster, COUNT)
    gone.start()
    reader = Reader(cluster, gone)
    reader.start()
    cluster.wait_current("S")
    so_far = len(reader.seen)
    assert set(reader.until(lambda seen: len(seen) > so_far + 100)) == {2 * COUNT}


def test_a_follower_that_stood_still_forgets_nothing(start_cluster: StartCluster) -> None:
    """A follower that was paused does not answer with less than all replicas had before, while it catches up."""
    cluster = start_cluster(config="lake { enabled: false }")
    cluster.stream("S", ["s.>"], allow_direct=True)
    fill(cluster, 50)
    late = cluster.followers("S")[0]
    # Any replica may answer, and followers learn of the last commit a moment after the leader.
    for node in cluster.nodes:
        until(lambda node=node: [_newest(cluster, node) for _ in range(20)] == [50] * 20, "the newest message of all")
    reader = Reader(cluster, late)
    reader.start()
    until(lambda: len(reader.seen) > 20, "answers")
    late.pause()
    try:
        other = next(node for node in cluster.nodes if node is not late)
        wire = cluster.wire(other)
        for number in range(100):
            assert "seq" in wire.request("s.a", b"%d" % number, timeout=10.0).json()
        wire.close()
    finally:
        late.resume()
    seen = reader.until(lambda seen: seen[-1] == 150)
    assert set(seen) <= set(range(50, 151))
    assert seen[-1] == 150


@pytest.mark.parametrize("by", [pytest.param("header", marks=pytest.mark.smoke), "metadata"])
def test_a_linearizable_get_of_a_follower_has_what_was_acked_before(start_cluster: StartCluster, by: str) -> None:
    """A follower whose link to the leader is slow answers with the newest message, though it learns of it late."""
    cluster = start_cluster(links=True, config="lake { enabled: false }")
    metadata = {"lakestream.consistency": "linearizable"} if by == "metadata" else {}
    headers = {"Nats-Consistency": "linearizable"} if by == "header" else None
    cluster.stream("S", ["s.>"], allow_direct=True, metadata=metadata)
    leader = cluster.stream_leader("S")
    with ExitStack() as stack:
        publisher = stack.enter_context(cluster.wire(leader))
        wires = [stack.enter_context(cluster.wire(node)) for node in cluster.nodes]
        for number in range(1, 101):
            assert publisher.request("s.a", b"x").json()["seq"] == number
            for wire in wires:
                frame = wire.request("$JS.API.DIRECT.GET.S.s.a", b"", headers)
                assert frame.headers["Nats-Sequence"] == str(number)
                frame = wire.request("$JS.API.DIRECT.GET.S", b'{"last_by_subj":"s.a"}', headers)
                assert frame.headers["Nats-Sequence"] == str(number)


def test_a_node_that_is_cut_off_answers_no_linearizable_get(start_cluster: StartCluster) -> None:
    cluster = start_cluster(links=True, config="lake { enabled: false }")
    cluster.stream("S", ["s.>"], allow_direct=True)
    fill(cluster, 10)
    for cut_off in (cluster.stream_leader("S"), cluster.followers("S")[0]):
        cluster.isolate(cut_off)
        with cluster.wire(cut_off, 1.0) as wire:
            # A request that goes to another replica is lost while the node has not noticed that it is cut off.
            until(lambda wire=wire: _status(wire) == 503, "an answer of the node itself")  # type: ignore[misc]
        cluster.heal()
        cluster.wait_current("S")


def _status(wire: Wire) -> int:
    """Return the status of a linearizable get: 0 with a message, -1 without an answer."""
    try:
        status = wire.request("$JS.API.DIRECT.GET.S.s.a", b"", {"Nats-Consistency": "linearizable"}).status
    except WireTimeout:
        return -1
    assert status, "a message, though nobody could confirm that it is the newest"
    return status


def _newest(cluster: Cluster, node: Node) -> int:
    with cluster.wire(node) as wire:
        return int(wire.request("$JS.API.DIRECT.GET.S.s.a", b"").headers.get("Nats-Sequence", "0"))
