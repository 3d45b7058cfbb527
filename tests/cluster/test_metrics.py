"""Metrics of a cluster of real processes: groups, their leaders and members that are behind."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse_text

from lakestream.ops.metrics.names import RAFT, RAFT_LAG
from tests.cluster.nodes import Cluster, Node, until
from tests.servers import Kind
from tests.wire import Wire

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield three nodes with a stream of three replicas."""
    started = Cluster(Kind.OURS, tmp_path_factory.mktemp("metrics"), 3)
    try:
        started.start()
        started.stream("S", ["s.>"])
        yield started
    finally:
        started.kill()


def values(node: Node, group: str = "S") -> dict[str, float]:
    """Return the node's metrics of a group, by name; those of other members by name and peer."""
    with urllib.request.urlopen(f"http://{node.host}:{node.http_port}/metrics", timeout=10) as answer:
        families = list(parse_text(answer.read().decode()))
    samples = [each for family in families for each in family.samples if each.labels.get("group") == group]
    return {each.name + each.labels.get("peer", ""): each.value for each in samples}


def test_every_metric_of_groups_is_on_the_leaders_page(cluster: Cluster) -> None:
    leader = cluster.stream_leader("S")
    others = {f"{RAFT_LAG.name}{each.name}" for each in cluster.nodes if each is not leader}
    assert set(values(leader)) == {each.name for each in RAFT} | others
    assert set(values(cluster.followers("S")[0])) == {each.name for each in RAFT}
    assert "lakestream_raft_term" in values(leader, "_meta_")


def test_each_group_has_one_leader_whom_all_know(cluster: Cluster) -> None:
    leader = cluster.stream_leader("S")
    for node in cluster.nodes:
        found = values(node)
        assert found["lakestream_raft_is_leader"] == (node is leader)
        assert found["lakestream_raft_has_leader"] == 1
        assert found["lakestream_raft_members"] == 3


def test_a_member_that_is_paused_falls_behind_and_catches_up(cluster: Cluster) -> None:
    leader, paused = cluster.stream_leader("S"), cluster.followers("S")[0]
    lag = f"{RAFT_LAG.name}{paused.name}"
    paused.pause()
    try:
        with Wire(leader.address) as client:
            for number in range(20):
                client.request(f"s.{number}", b"x", timeout=30)
        assert values(leader)[lag] >= 20
    finally:
        paused.resume()
    until(lambda: values(cluster.stream_leader("S")).get(lag, 1) == 0, "the member has caught up")
