"""Tests of restores in a cluster whose nodes fail meanwhile: a stream is restored completely or not at all."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.cluster.conftest import StartCluster
from tests.cluster.nodes import Cluster, Node, until
from tests.conformance.test_backups import CHUNK, large
from tests.servers import Kind
from tests.wire import Closed, WireTimeout

pytestmark = pytest.mark.cluster

COUNT = 8_000


@pytest.fixture(autouse=True)
def ours(kind: Kind) -> None:
    if kind is not Kind.OURS:
        pytest.skip("about what lakestream promises")


class Sending:
    """Restore through one node, in a thread."""

    def __init__(self, cluster: Cluster, node: Node) -> None:
        self.request, self.data = large(COUNT)
        self.request["config"]["num_replicas"] = 3
        self.outcome: Any = None
        self.sent = threading.Event()
        self._cluster, self._node = cluster, node
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        try:
            wire = self._cluster.wire(self._node, 30.0)
            to = wire.api("STREAM.RESTORE.S", self.request)["deliver_subject"]
            for at in range(0, len(self.data), CHUNK):
                wire.request(to, self.data[at : at + CHUNK])
            self.sent.set()
            self.outcome = wire.request(to).json()
            wire.close()
        except (Closed, WireTimeout, OSError):
            return
        finally:
            self.sent.set()

    def over(self) -> Any:
        self._thread.join()
        return self.outcome


def holders(cluster: Cluster, *, files: bool = False) -> list[Node]:
    """Return the running nodes with a directory for the stream, or with `files` those with messages of it."""
    found = []
    for node in cluster.running:
        directory = node.stream_directory("S")
        if directory.exists() and (
            not files or any(path.stat().st_size > 500_000 for path in directory.rglob("*.seg"))
        ):
            found.append(node)
    return found


def gone(cluster: Cluster) -> bool:
    """Return True if no node knows or stores anything of the stream."""
    names = [cluster.api("STREAM.NAMES", node=node).get("streams") for node in cluster.running]
    return not any(names) and not holders(cluster)


def whole(cluster: Cluster) -> bool:
    """Return True if the stream exists; assert that it has all its messages then."""
    info = cluster.api("STREAM.INFO.S", node=cluster.running[0])
    if "error" in info or not info["cluster"].get("leader"):
        return False  # without a leader a node may answer from old state
    assert info["state"]["messages"] == COUNT
    return True


def all_or_nothing(cluster: Cluster) -> bool:
    """Wait until the stream is completely restored or gone; return True if it is restored."""
    until(lambda: whole(cluster) or gone(cluster), "all or nothing", 30.0)
    return whole(cluster)


def test_the_node_that_restores_is_killed(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    node = cluster.nodes[0]
    sending = Sending(cluster, node)
    assert sending.sent.wait(60.0)
    until(lambda: len(holders(cluster, files=True)) >= 2, "something of the stream")
    node.kill()
    assert sending.over() is None
    if all_or_nothing(cluster):
        return  # the restore was quicker
    node.start()
    cluster.wait_ready()
    until(lambda: gone(cluster), "nothing of the stream anywhere", 30.0)
    assert "error" not in Sending(cluster, cluster.nodes[1]).over()
    assert whole(cluster)


def test_the_leader_of_the_stream_is_killed(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    meta = cluster.meta_leader()
    node = next(each for each in cluster.nodes if each is not meta)
    sending = Sending(cluster, node)
    assert sending.sent.wait(60.0)
    until(lambda: len(holders(cluster, files=True)) >= 2, "something of the stream")
    victim = next(each for each in cluster.nodes if each is not node)
    victim.kill()
    outcome = sending.over()
    assert outcome is not None, "the node that restores answers whatever becomes of the others"
    if all_or_nothing(cluster):
        return
    assert outcome["error"]["err_code"] == 10062
    outcome = Sending(cluster, node).over()
    assert "error" not in outcome, outcome
    assert whole(cluster)


def test_all_nodes_are_killed(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    sending = Sending(cluster, cluster.nodes[2])
    assert sending.sent.wait(60.0)
    until(lambda: len(holders(cluster, files=True)) >= 2, "something of the stream")
    restart(cluster)
    sending.over()
    if not all_or_nothing(cluster):
        assert "error" not in Sending(cluster, cluster.nodes[1]).over()
        assert whole(cluster)
    restart(cluster)
    until(lambda: whole(cluster), "all of it", 30.0)
    cluster.wait_current("S")


def restart(cluster: Cluster) -> None:
    """Kill all nodes and start them again."""
    for node in cluster.nodes:
        node.kill()
    for node in cluster.nodes:
        node.start()
    cluster.wait_ready()
