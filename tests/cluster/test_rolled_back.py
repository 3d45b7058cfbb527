"""Tests of a node that restarts with an old copy of its store.

Other nodes detect it from what the node had confirmed, and diverged histories are reported.
"""

from __future__ import annotations

import base64
import json
import shutil
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.cluster.conftest import StartCluster
from tests.cluster.nodes import Cluster, Node, until
from tests.sealing import files_of
from tests.servers import Kind, Server
from tests.wire import Wire

pytestmark = pytest.mark.cluster

STREAM = "S"


def publish(cluster: Cluster, node: Node, first: int, count: int, word: str = "message") -> None:
    with cluster.wire(node) as wire:
        for number in range(first, first + count):
            assert wire.request("s", f"{word} {number}".encode()).json()["seq"] == number


def bodies(cluster: Cluster, node: Node) -> list[str]:
    """Return the payloads of a node's replica of the stream."""
    with cluster.wire(node) as wire:
        last = wire.api(f"STREAM.INFO.{STREAM}")["state"]["last_seq"]
        found = [
            wire.request(f"$JS.API.DIRECT.GET.{STREAM}", json.dumps({"seq": n}).encode()) for n in range(1, last + 1)
        ]
    return [each.data.decode() for each in found]


def save(node: Node) -> None:
    """Copy a node's store while the node is stopped for a moment."""
    node.stop()
    shutil.copytree(node.store, node.store.with_name(f"{node.store.name}.copy"))
    node.start()


def restore(node: Node) -> None:
    shutil.rmtree(node.store)
    shutil.copytree(node.store.with_name(f"{node.store.name}.copy"), node.store)


def segments(node: Node) -> dict[str, bytes]:
    """Return the content of a replica's segments by their names."""
    files = files_of(node.store)
    return {path.name: files.read(str(path)) for path in (node.stream_directory(STREAM) / "log").glob("*.seg")}


def health(node: Node) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{node.host}:{node.http_port}/healthz", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def wait_for(node: Node, text: str) -> None:
    """Wait until a node has logged this text."""
    until(lambda: text in node.log(2000), f"{text!r} of {node.name}")


def begin(start_cluster: StartCluster) -> tuple[Cluster, Node, Node, Node]:
    """Return a cluster with a stream, its leader, which also leads the meta group, and the two others."""
    cluster = start_cluster(3)
    cluster.stream(STREAM, ["s"])
    leader = cluster.meta_leader()
    cluster.lead(STREAM, leader)
    one, other = cluster.others(leader)
    publish(cluster, leader, 1, 10)
    cluster.wait_current(STREAM)
    return cluster, leader, one, other


def test_a_node_with_an_old_copy_of_its_store_says_so_and_catches_up(start_cluster: StartCluster) -> None:
    cluster, leader, one, _ = begin(start_cluster)
    save(one)
    cluster.wait_current(STREAM)
    publish(cluster, leader, 11, 20)
    cluster.stream("LATER", ["later"])
    cluster.lead("LATER", leader)  # it knows at once what `one` has confirmed; followers learn it with a heartbeat
    cluster.wait_current("LATER")
    cluster.wait_current(STREAM)
    one.kill()
    restore(one)
    one.start()
    for group in (f"stream {STREAM}", "stream LATER", "the meta group"):
        wait_for(one, f"{group}: this node's log on disk ends at entry")
        wait_for(one, f"{group}: this node has caught up and votes again")
    assert "rolled back or restored from an old copy" in one.log(2000)
    cluster.wait_current(STREAM)
    cluster.wait_current("LATER")
    assert bodies(cluster, one) == [f"message {number}" for number in range(1, 31)]


def test_histories_that_have_parted_stop_the_replica_that_comes_back(
    start_cluster: StartCluster, tmp_path: Path
) -> None:
    """A replica that comes back with a diverged history stops, and keeps its entries.

    `other` is down while 60 messages are acked, then the leader; `one` comes back with a copy from before them. No
    running node knows of them. The leader, which does, stops when it comes back, and keeps them.
    """
    cluster, leader, one, other = begin(start_cluster)
    save(one)
    cluster.wait_current(STREAM)
    other.stop()
    publish(cluster, leader, 11, 60, "acked")
    leader.kill()
    one.kill()
    restore(one)
    one.start()
    other.start()
    new = cluster.stream_leader(STREAM)
    publish(cluster, new, 11, 5, "other")
    kept = segments(leader)
    leader.start()
    words = "is committed here of term"
    wait_for(leader, words)
    wait_for(new, f"at {leader.name} of term")
    until(lambda: health(leader)[0] == 503, "that it is unhealthy")
    assert f"{STREAM}' is offline" in health(leader)[1]
    publish(cluster, new, 16, 20, "other")
    for node in (leader, new):
        said = [line for line in node.log(2000).splitlines() if words in line and "[ERR]" in line]
        assert len(said) == 1, said
        assert f"stream {STREAM}" in said[0]
    assert segments(leader) == kept
    assert b"acked 70" in b"".join(kept.values())

    # The remedy: move the files away, and let the replica be made anew from the others.
    leader.stop(signal.SIGTERM)
    parted = leader.store.with_name("parted")
    shutil.move(leader.stream_directory(STREAM), parted)
    leader.start()
    cluster.wait_current(STREAM)
    assert health(leader)[0] == 200
    wanted = [f"message {n}" for n in range(1, 11)] + [f"other {n}" for n in range(11, 36)]
    assert bodies(cluster, leader) == wanted

    # Messages that only the old history has can be read on a separate server.
    # An encrypted one has the leader's key by this name (tests/servers.py).
    alone = Server(Kind.OURS, tmp_path / "alone" / leader.store.name)
    shutil.copytree(parted, alone.store / "jetstream" / "$G" / "streams" / STREAM)
    for name in ("raft", "replica"):
        (alone.store / "jetstream" / "$G" / "streams" / STREAM / name).unlink()
    try:
        alone.start()
        with Wire(alone.address) as wire:
            told = wire.api(f"STREAM.MSG.GET.{STREAM}", {"seq": 70})
            assert base64.b64decode(told["message"]["data"]) == b"acked 70"
    finally:
        alone.kill()
