"""Tests of replicated streams on real nodes: damage, snapshot transfer, one lake for all nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import StartCluster
from tests.cluster.nodes import Cluster, Node, until
from tests.servers import Kind
from tests.unit.logkit import flip
from tests.wire import Frame, Wire

pytestmark = pytest.mark.cluster

SEAL = 50_000


@pytest.fixture(autouse=True)
def ours(kind: Kind) -> None:
    if kind is not Kind.OURS:
        pytest.skip("about files of lakestream")


def fill(cluster: Cluster, count: int, subject: str = "s.a", size: int = 500) -> None:
    """Publish numbered messages through any node, each until it is acked."""
    wire = cluster.wire()
    try:
        for number in range(count):
            data = b"%d:" % number + b"x" * size
            # Clients retry while there is no leader (503) or the answer was lost with a leader.
            until(lambda data=data: "seq" in json.loads(wire.request(subject, data, timeout=2.0).data), "an ack")
    finally:
        wire.close()


def content(cluster: Cluster, node: Node, stream: str = "S") -> list[bytes]:
    """Return the payloads of a stream from the node that leads it."""
    cluster.lead(stream, node)
    state = cluster.ask(f"STREAM.INFO.{stream}")["state"]
    wire = cluster.wire(node)
    try:
        found = []
        for seq in range(state["first_seq"], state["last_seq"] + 1):
            answer = wire.api(f"STREAM.MSG.GET.{stream}", {"seq": seq}, 5.0)
            assert "error" not in answer, answer
            found.append(answer["message"].get("data", "").encode())
        return found
    finally:
        wire.close()


@pytest.mark.parametrize("gentle", [True, False])
def test_bits_that_turned_in_a_replicas_files_are_repaired(start_cluster: StartCluster, gentle: bool) -> None:
    cluster = start_cluster(config=f"lake {{ enabled: false, seal_bytes: {SEAL} }}")
    cluster.stream("S", ["s.>"])
    fill(cluster, 300)
    before = content(cluster, cluster.stream_leader("S"))
    assert len(before) >= 300
    broken = cluster.followers("S")[0]
    (broken.stop if gentle else broken.kill)()
    segments = sorted((broken.stream_directory("S") / "log").glob("*.seg"))
    assert len(segments) >= 3
    for segment in segments:
        flip(str(segment), len(segment.read_bytes().rstrip(b"\0")) * 2 // 3)
    broken.start()
    cluster.wait_current("S")
    assert content(cluster, broken) == before
    assert "damaged" in broken.log(400)


@pytest.mark.smoke
def test_a_stream_in_memory_survives_its_leader(start_cluster: StartCluster) -> None:
    cluster = start_cluster(config="lake { enabled: false }")
    cluster.stream("M", ["s.>"], storage="memory")
    fill(cluster, 20)
    cluster.stream_leader("M").kill()
    until(lambda: cluster.stream_leader("M"), "another leader")
    fill(cluster, 20)
    assert cluster.ask("STREAM.INFO.M")["state"]["messages"] >= 40


def held(lake: Path, version: int, index: int) -> None:
    """Commit to the table what the compactor commits once it holds the stream through this log index."""
    (identity,) = lake.glob("segments/S/*/stream.json")
    uid = json.loads(identity.read_text())["uid"]
    log = lake / "streams" / "S" / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    lines: list[Any] = [
        {"commitInfo": {"operation": "WRITE"}},
        {"txn": {"appId": f"lakestream:{uid}", "version": index}},
        {"metaData": {"id": "t"}},
    ]
    partial = log / "partial"
    partial.write_text("\n".join(json.dumps(line, separators=(",", ":")) for line in lines))
    partial.rename(log / f"{version:020d}.json")


def flushed(cluster: Cluster, node: Node) -> Any:
    """Request a flush at a node; return the only answer."""
    wire = cluster.wire(node)
    try:
        answer = wire.request("$LAKE.API.FLUSH.S", b"", timeout=10.0)
        return json.loads(answer.data)
    finally:
        wire.close()


def test_replicas_share_a_lake_and_a_new_one_fetches_little(start_cluster: StartCluster, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    cluster = start_cluster(config=f'lake {{ url: "{lake}", seal_bytes: {SEAL}, retain_bytes: 1 }}')
    cluster.stream("S", ["s.>"], replicas=1)
    fill(cluster, 1000)
    answers = [flushed(cluster, node) for node in cluster.nodes]
    assert len({answer["last_seq"] for answer in answers}) == 1
    held(lake, 0, answers[-1]["last_index"])
    first = cluster.stream_leader("S")
    directory = first.stream_directory("S") / "log"
    until(lambda: list(directory.glob("*.outline")), "segments that leave the log", 60)
    cluster.ask("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "num_replicas": 3, "allow_direct": True})
    until(lambda: len(cluster.stream_cluster("S").get("replicas") or []) == 2, "three replicas")
    cluster.wait_current("S")
    for node in cluster.others(first):
        size = sum(each.stat().st_size for each in node.stream_directory("S").rglob("*") if each.is_file())
        assert size < 200_000, "only the tail and the outlines came from the other node"
    fill(cluster, 10)
    first.kill()
    until(lambda: cluster.stream_leader("S") is not first, "another leader")
    fill(cluster, 10)
    assert cluster.ask("STREAM.INFO.S")["state"]["messages"] >= 1020


def test_an_answer_counts_what_the_same_client_sent_before_it(start_cluster: StartCluster) -> None:
    """An answer includes what the same client published before, wherever the stream and cluster leaders are."""
    cluster = start_cluster()
    cluster.stream("S", ["s.>"], retention="workqueue")
    config = {"durable_name": "c", "ack_policy": "explicit", "max_ack_pending": -1}
    cluster.ask("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
    stored = acked = 0
    for node in cluster.nodes:
        wire = cluster.wire(node)
        try:
            sid = wire.subscribe(f"to.{node.name}")
            wire.ping()
            for _ in range(10):
                wire.publish("s.a", b"x")
                stored += 1
                assert wire.api("STREAM.INFO.S")["state"]["last_seq"] == stored
                wire.publish("s.a", b"x")
                stored += 1
                assert wire.api("CONSUMER.INFO.S.c")["num_pending"] == stored - acked
            for message in _next(wire, sid, f"to.{node.name}", 20):
                wire.publish(message.reply, b"+ACK")
            acked += 20
            assert wire.api("STREAM.INFO.S")["state"]["messages"] == stored - acked
            assert wire.api("CONSUMER.INFO.S.c")["num_ack_pending"] == 0
        finally:
            wire.close()


def _next(wire: Wire, sid: str, reply: str, count: int) -> list[Frame]:
    wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch":%d}' % count, reply)
    return [wire.delivered(sid) for _ in range(count)]
