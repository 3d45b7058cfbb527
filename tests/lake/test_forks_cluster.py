"""Test of a replicated mirror that begins as a clone on every replica: present ones, and later ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.nodes import Cluster, Node
from tests.lake.test_forks import ALWAYS, SOON_S, Compaction, eventually, held, in_table, publish
from tests.servers import Kind

pytestmark = [pytest.mark.lake, pytest.mark.cluster]


def based(node: Node) -> bool:
    """Return True if the node's replica of the mirror began with a clone."""
    return (node.stream_directory("M") / "base" / "checkpoint").exists()


def test_every_replica_of_a_mirror_begins_with_the_same_copy(spark: Any, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    config = f'lake {{ url: "{lake}", seal_bytes: 16384, seal_age: "200ms", retain_bytes: 0, poll: "100ms" }}'
    cluster = Cluster(Kind.OURS, tmp_path, 3, config=config)
    compaction = Compaction(spark, lake)
    try:
        cluster.start()
        cluster.stream("O", ["o.*"], 1)
        with cluster.wire(timeout=60) as wire:
            publish(wire, 1, 200)
            for seq in (1, 90):
                wire.api("STREAM.MSG.DELETE.O", {"seq": seq})
        eventually(lambda: in_table(lake, "O") == 200)
        compaction.pause()
        home = cluster.stream_leader("O")
        cluster.stream("M", [], 3, mirror={"name": "O"}, metadata=ALWAYS, allow_direct=True)
        late = next(node for node in cluster.followers("M") if node is not home)
        late.kill()
        compaction.go_on()

        def copied() -> bool:
            info = cluster.ask("STREAM.INFO.M", timeout=SOON_S)
            return bool(info["state"]["last_seq"] == last and info["mirror"]["lag"] == 0)

        last = 200
        eventually(copied)
        assert based(cluster.stream_leader("M"))
        late.start()
        cluster.wait_current("M", SOON_S)
        eventually(lambda: all(map(based, cluster.nodes)))
        with cluster.wire(cluster.stream_leader("O"), timeout=60) as wire:
            publish(wire, 201, 50)
            wanted = held(wire, "O")
        last = 250
        for node in cluster.nodes:  # a replica's content is what it answers as the leader
            cluster.lead("M", node)
            eventually(copied)
            with cluster.wire(node, timeout=60) as wire:
                assert held(wire, "M", by_leader=True) == wanted, node.name
        leader = cluster.stream_leader("M")
        leader.kill()
        with cluster.wire(cluster.stream_leader("M"), timeout=60) as wire:
            assert held(wire, "M", by_leader=True) == wanted
        leader.start()
        cluster.wait_current("M", SOON_S)
        eventually(lambda: in_table(lake, "M") == 250)
    finally:
        cluster.kill()
        compaction.stop()
    assert compaction.failures == []
