"""Tests of stores of a cluster written by an earlier release: it elects leaders, serves the messages and continues."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.audit import read_all
from tests.cluster.nodes import Cluster, Node, until
from tests.servers import Kind
from tests.stored import cluster as stored
from tests.stored.recordings import unpack
from tests.stored.standalone import Filler
from tests.stored.test_standalone import place

pytestmark = pytest.mark.cluster


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[tuple[Cluster, dict[str, Any]]]:
    root, facts = unpack("cluster", tmp_path / "recorded")
    cluster = Cluster(Kind.OURS, root, config=stored.CONFIG)
    yield cluster, facts
    cluster.kill()


def test_a_recorded_cluster_elects_serves_and_goes_on(recorded: tuple[Cluster, dict[str, Any]]) -> None:
    cluster, facts = recorded
    lost = cluster.node(facts["lost"])
    for node in cluster.others(lost):  # the node that died first starts last
        node.start()
    cluster.wait_ready()
    same(cluster, facts["streams"])
    lost.start()
    cluster.wait_ready()
    for stream in stored.STREAMS:
        cluster.wait_current(stream)
    for stream in ("THREE", "PACKED", "MIRROR"):
        assert at(cluster, lost, stream) == [message[0] for message in facts["streams"][stream]["messages"]]
    cluster.lead("THREE", lost)
    same(cluster, facts["streams"])
    with cluster.wire(timeout=30.0) as wire:
        filler = Filler(wire)
        stored.store(filler, 30)
        was = facts["streams"]["THREE"]["consumers"]["explicit"]
        frame, *_ = filler.pull("THREE", "explicit", 3)
        assert place(frame) == (1, was["delivered"]["stream_seq"] + 1)
        filler.tell(frame)
        assert wire.api("STREAM.MSG.DELETE.THREE", {"seq": 4}, 30.0)["success"]
    cluster.wait_current("THREE")
    now = stored.facts(cluster)
    cluster.stream_leader("THREE").kill()
    cluster.wait_ready()
    until(lambda: cluster.stream_leader("THREE") in cluster.running, "a leader of THREE")
    for node in cluster.running:
        assert node.stop() == 0
    for node in cluster.nodes:
        node.start()
    cluster.wait_ready()
    same(cluster, now)


def at(cluster: Cluster, node: Node, stream: str) -> list[int]:
    """Return the sequences that a node reads from its own replica."""
    page = node.page("jsz?streams=true&accounts=true")
    details = {each["name"]: each for account in page["account_details"] for each in account["stream_detail"]}
    state = details[stream]["state"]
    with cluster.wire(node, timeout=30.0) as wire:
        found = [message.seq for message in read_all(wire, stream)]
    assert state["messages"] == len(found)
    return found


def same(cluster: Cluster, expected: dict[str, Any]) -> None:
    """Assert that everything is as it was recorded."""
    found = stored.facts(cluster)
    assert found.keys() == expected.keys()
    for stream, facts in expected.items():
        assert found[stream] == facts, stream
