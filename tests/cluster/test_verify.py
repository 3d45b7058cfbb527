"""Tests of verification of replicas against each other, and of the repair of one that differs."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from lakestream.lake.staging import scan, staging
from lakestream.lake.staging.sealed import store_files
from tests.chaos.audit import read_all
from tests.cluster.conftest import StartCluster
from tests.cluster.nemesis import frames_of, segments, spoil
from tests.cluster.nodes import Cluster, Node, until
from tests.lake_faults import small_compactor
from tests.sealing import files_of
from tests.servers import Kind
from tests.stored.lake import in_table
from tests.unit.logkit import alter, flip

pytestmark = pytest.mark.cluster

CONFIG = "lake { seal_bytes: 32KB, seal_age: 1h }"
MESSAGES = 120
STAGED = "lake/segments/S/*/*.seg"


@pytest.fixture
def cluster(start_cluster: StartCluster, kind: Kind) -> Cluster:
    if kind is Kind.REAL:
        pytest.skip("nats-server verifies nothing on request")
    cluster: Cluster = start_cluster(3, config=CONFIG)
    cluster.stream("S", ["s.>"])
    publish(cluster, 1, MESSAGES)
    return cluster


def publish(cluster: Cluster, first: int, count: int) -> None:
    with cluster.wire() as wire:
        for number in range(first, first + count):
            assert wire.request(f"s.{number % 5}", b"%d" % number * 300).json()["seq"] == number


def verify(cluster: Cluster, **options: Any) -> dict[str, Any]:
    with cluster.wire(timeout=60) as wire:
        answer: dict[str, Any] = wire.request("$LAKE.API.VERIFY.S", json.dumps(options).encode()).json()
    return answer


def in_sync(cluster: Cluster) -> None:
    """Wait until all replicas have applied everything."""
    cluster.stream_leader("S")

    def current() -> bool:
        info = cluster.api("STREAM.INFO.S")
        replicas = info.get("cluster", {}).get("replicas", [])
        return len(replicas) == 2 and all(each["current"] for each in replicas)

    until(current, "all replicas have everything")


def altered(cluster: Cluster, node: Node, *seqs: int) -> None:
    """Change messages of a node's replica while it is stopped, so that its CRCs are right."""
    node.stop()
    for seq in seqs:
        alter(node.stream_directory("S") / "log", seq, files=files_of(node.store))
    node.start()
    reachable(cluster)


def lead(cluster: Cluster, node: Node) -> None:
    """Let a node lead the stream, unless it does."""
    if cluster.stream_leader("S") is not node:
        with cluster.wire(node) as wire:
            wire.api("STREAM.LEADER.STEPDOWN.S", {"placement": {"preferred": node.name}})
        until(lambda: cluster.stream_leader("S") is node, "it leads")


def reachable(cluster: Cluster) -> None:
    """Wait until all replicas have applied everything and answer their leader.

    A leader counts a node that was just restarted as current until a heartbeat is due, so that alone is too early.
    """
    in_sync(cluster)
    until(lambda: verify(cluster).get("complete"), "every node verifies its replica")


def aside(node: Node) -> list[Path]:
    return list((node.store / "jetstream/$G/aside").glob("S.differs-*"))


def staged(leader: Node) -> Path:
    """Wait until the leader has staged its first segment; return that."""
    until(lambda: any(leader.store.glob(STAGED)), "a segment is staged")
    return min(leader.store.glob(STAGED))


@pytest.mark.smoke
def test_a_replica_with_other_messages_is_found_and_filled_again(cluster: Cluster) -> None:
    in_sync(cluster)
    answer = verify(cluster)
    assert (answer["ok"], answer["complete"], answer["exact"], answer["findings"]) == (True, True, True, []), answer
    odd = cluster.others(cluster.stream_leader("S"))[0]
    altered(cluster, odd, 17)
    answer = verify(cluster)
    (finding,) = answer["findings"]
    expected = {"kind": "replica", "node": odd.name, "sequence": 17, "repair": "refill", "stream": "S"}
    assert expected.items() <= finding.items()
    assert finding["file"] == "jetstream/$G/streams/S"
    assert answer["repairs"] == []
    assert not aside(odd)
    answer = verify(cluster, repair=True)
    assert [each["node"] for each in answer["repairs"] if "done" in each] == [odd.name]
    until(lambda: len(aside(odd)) == 1, "its files are set aside")
    in_sync(cluster)
    until(lambda: verify(cluster)["ok"], "the replica has what the others have")
    publish(cluster, MESSAGES + 1, 5)


def test_a_replica_is_filled_again_although_the_lake_differs_from_the_leader(cluster: Cluster) -> None:
    """A staged segment is no replica: it neither outvotes the leader nor takes it from the majority."""
    leader = cluster.stream_leader("S")
    odd = cluster.others(leader)[0]
    segment = staged(leader)
    altered(cluster, odd, 17)
    lead(cluster, leader)
    alter(segment.parent, 18, files=store_files())
    answer = verify(cluster, repair=True)
    found = {(each["kind"], each["node"], each["sequence"]) for each in answer["findings"]}
    assert found == {("staged", leader.name, 18), ("replica", odd.name, 17)}
    assert [each["node"] for each in answer["repairs"] if "done" in each] == [odd.name], answer["repairs"]
    until(lambda: len(aside(odd)) == 1, "its files are set aside")


def test_a_leader_with_other_messages_is_found_and_filled_again_by_the_next(cluster: Cluster) -> None:
    """The lake shows it, too, as it has the message as it was, and the leader's log is compared with it."""
    odd = cluster.stream_leader("S")
    staged(odd)
    altered(cluster, odd, 17)
    lead(cluster, odd)
    reachable(cluster)
    answer = verify(cluster, repair=True)
    found = [(each["kind"], each["node"], each["sequence"]) for each in answer["findings"]]
    assert found == [("staged", odd.name, 17), ("replica", odd.name, 17)]
    until(lambda: len(aside(odd)) == 1, "its files are set aside")
    in_sync(cluster)
    assert cluster.stream_leader("S") is not odd
    until(lambda: verify(cluster).get("ok"), "the replica has what the others have")


def test_replicas_without_a_majority_stay_as_they_are(cluster: Cluster) -> None:
    one, other = cluster.nodes[:2]
    altered(cluster, one, 17)
    altered(cluster, other, 17, 18)
    for stem in (b"s.9", b"s.8"):
        node = one if stem == b"s.9" else other
        node.stop()
        alter(node.stream_directory("S") / "log", 17, stem, files=files_of(node.store))
        node.start()
        reachable(cluster)
    answer = verify(cluster, repair=True)
    found = {(each["sequence"], each["node"], "no majority" in each["what"]) for each in answer["findings"]}
    assert (17, "", True) in found
    assert (18, other.name, False) in found
    assert ["refused" in each for each in answer["repairs"]] == [True]
    assert not aside(one)
    assert not aside(other)


def test_a_damaged_segment_of_one_replica_is_found_and_repaired_from_the_others(cluster: Cluster) -> None:
    in_sync(cluster)
    odd = cluster.others(cluster.stream_leader("S"))[0]
    path = sorted((odd.stream_directory("S") / "log").glob("*.seg"))[0]
    flip(str(path), 2000)
    damaged = path.read_bytes()
    (finding,) = verify(cluster)["findings"]
    assert (finding["node"], finding["repair"], Path(finding["file"]).name) == (odd.name, "replicas", path.name)
    until(lambda: path.read_bytes() != damaged and verify(cluster)["ok"], "another replica has sent the segment")
    until(lambda: odd.logged("was repaired from"), "the log names it")


def test_a_missing_node_makes_the_result_incomplete_and_the_others_are_compared(cluster: Cluster) -> None:
    in_sync(cluster)
    gone = cluster.others(cluster.stream_leader("S"))[0]
    gone.stop()
    until(lambda: verify(cluster).get("ok") is not None, "there is a leader")
    answer = verify(cluster)
    assert (answer["ok"], answer["complete"]) == (True, False)
    assert [each["node"] for each in answer["nodes"] if each["error"]] == [gone.name]


def test_replicas_are_compared_while_messages_are_published_and_removed(cluster: Cluster) -> None:
    cluster.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "num_replicas": 3, "max_msgs": 100})
    with cluster.wire() as wire, cluster.wire(timeout=60) as other:
        reply = other.new_reply()
        exact = []
        for round_ in range(5):
            other.publish("$LAKE.API.VERIFY.S", b"", reply)
            other.ping()
            for number in range(300):
                wire.publish(f"s.{number % 5}", b"%d" % round_ * 400)
            answer = other.message(reply).json()
            assert (answer["ok"], answer["findings"]) == (True, []), answer
            exact.append(answer["exact"])
        assert any(exact)


def test_an_entry_that_is_damaged_on_all_replicas_comes_back_from_the_table(
    start_cluster: StartCluster, kind: Kind, tmp_path: Path
) -> None:
    if kind is Kind.REAL:
        pytest.skip("nats-server has no tables")
    lake = tmp_path / "lake"
    lake.mkdir()
    cluster = start_cluster(3, config=f'lake {{ url: "{lake}", seal_bytes: 16KB, seal_age: "1s", poll: "200ms" }}')
    cluster.stream("S", ["s.>"])
    publish(cluster, 1, MESSAGES)

    def is_tabled() -> bool:
        for stream in staging.current(scan.Scanner(str(lake)).scan())[0]:
            with contextlib.suppress(Exception):  # nothing is staged yet: the next round does it
                small_compactor.compact(str(lake), stream)
        return in_table(lake, "S") == MESSAGES

    until(is_tabled, "everything in the table")
    in_sync(cluster)
    for node in cluster.nodes:
        assert node.stop() == 0
    entries = {index: at for index, at in frames_of(Path(segments(cluster.nodes[0], "S")[0])).items() if index > 5}
    for index in list(entries)[:2]:
        for node in cluster.nodes:
            spoil(Path(segments(node, "S")[0]), entries[index])
    for node in cluster.nodes:
        node.start()
    for node in cluster.nodes:
        until(lambda node=node: "was repaired from all members" in node.log(2000), f"a repair at {node.name}", 60)
    for node in cluster.nodes:
        with cluster.wire(node) as wire:
            assert [each.data for each in read_all(wire, "S")] == [b"%d" % number * 300 for number in range(1, 121)]
