"""Tests of clusters whose nodes run different releases: rolling upgrades and back, under load, with faults.

The older program is a commit of this repository, with the Python packages of this one: the tests need its history.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.load import STREAM, Load
from tests.cluster.nemesis import frames_of, segments, spoil
from tests.cluster.nodes import READY_S, Cluster, Node, until
from tests.releases import RELEASES, ROOT, files_of, unpacked
from tests.servers import Kind, Server, StartFailed
from tests.wire import Wire

pytestmark = [pytest.mark.cluster, pytest.mark.chaos]


@pytest.fixture(params=RELEASES, ids=lambda name: name.replace(" ", "-"))
def older(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Return the environment in which `lakestream` is an older one."""
    return unpacked(request.param, tmp_path / "older").environment


@pytest.fixture
def cluster(older: dict[str, str], tmp_path: Path) -> Iterator[Cluster]:
    """Return a cluster of three nodes of the older release."""
    made = Cluster(Kind.OURS, tmp_path / "cluster", links=True)
    for node in made.nodes:
        node.environment = dict(older)
    yield made.start()
    made.kill()


def back(cluster: Cluster, node: Node, environment: dict[str, str]) -> None:
    """Start a node as the program of an environment, and wait until it has caught up."""
    node.environment = dict(environment)
    node.start()
    assert node.process is not None
    mapped = Path(f"/proc/{node.process.pid}/maps").read_text()
    assert (str(ROOT / "lakestream/native") in mapped) != bool(environment), "older programs have nothing compiled"
    cluster.wait_ready()
    caught_up(cluster)


def caught_up(cluster: Cluster) -> None:
    """Wait until all replicas follow the leader; under load one has always a message less."""

    def current() -> bool:
        replicas = cluster.stream_cluster(STREAM).get("replicas") or []
        return len(replicas) == 2 and all(each["current"] and not each.get("offline") for each in replicas)

    until(current, f"{STREAM} on all its replicas", 2 * READY_S)


@pytest.mark.parametrize("older", ["0.1.0"], indirect=True)
def test_a_release_without_encryption_refuses_an_encrypted_store_before_it_writes(
    older: dict[str, str], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    server = Server(Kind.OURS, store, config="jetstream { key: secret }\nlake: false\n")
    server.start()
    with Wire(server.address) as wire:
        assert "error" not in wire.api("STREAM.CREATE.A", {"name": "A", "subjects": ["a"], "storage": "file"})
        assert b'"seq"' in wire.request("a", b"kept").data
    server.kill()
    before = files_of(store)
    with pytest.raises(StartFailed) as refused:
        Server(Kind.OURS, store, environment=older).start()
    lines = [line for line in str(refused.value).splitlines() if "VERSION" in line]
    assert len(lines) == 1
    assert "a newer lakestream (store version 2) wrote this store" in lines[0]
    assert files_of(store) == before
    server.start()
    with Wire(server.address) as wire:
        assert wire.api("STREAM.INFO.A")["state"]["messages"] == 1
    assert server.stop() == 0


def test_a_rolling_upgrade_and_back_under_load_and_faults_loses_nothing(
    cluster: Cluster, older: dict[str, str]
) -> None:
    with Load(cluster) as load:
        for environment in ({}, older):
            for number, node in enumerate(cluster.nodes):
                if number == 0:
                    node.kill()
                else:
                    assert node.stop() == 0
                back(cluster, node, environment)
                if number == 1:  # two releases, of which the one that leads is alone
                    leader = cluster.stream_leader(STREAM)
                    cluster.isolate(leader)
                    until(lambda alone=leader: cluster.stream_leader(STREAM) is not alone, "another leader")
                    cluster.heal()
                    caught_up(cluster)
        load.wait_acks(200)
    print(load.audit())


def test_damaged_nodes_elect_an_older_one_that_is_whole(cluster: Cluster) -> None:
    """The open segments of two nodes of this release are damaged. Older nodes know nothing of how such nodes vote."""
    with Load(cluster) as load:
        for node in cluster.nodes[1:]:
            assert node.stop() == 0
            back(cluster, node, {})
        load.wait_acks(100)
        for node in cluster.nodes:
            node.kill()
        for node, place in zip(cluster.nodes[1:], (2, 4), strict=True):
            path = Path(segments(node, STREAM)[-1])
            frames = frames_of(path)
            spoil(path, frames[max(frames) - place])
        for node in cluster.nodes:
            node.start()
        cluster.wait_ready()
        caught_up(cluster)
        load.wait_acks(50)
    assert all("cannot be read here (messages: sequences" in node.log() for node in cluster.nodes[1:])
    print(load.audit())
