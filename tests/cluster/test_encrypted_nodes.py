"""Tests of clusters whose nodes have different keys, or none: docs/security.md#encryption-at-rest."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakestream.log.sealing.keys import SUFFIX, VARIABLE, Keyring, WrongKey
from tests.cluster.nodes import Cluster, Node, until
from tests.servers import Kind, StartFailed
from tests.wire import Wire

pytestmark = pytest.mark.cluster

SECRETS = (b"SECRETTEXT", b"SECRETSUBJECT", b"SECRETCONSUMER")
KEYS = {"n1": "key: one", "n2": "key: two, cipher: aes", "n3": "sync_interval: 2m"}
"""Settings of each node's `jetstream`: the third one is not encrypted."""
LAKE = 'seal_bytes: 4KB, seal_age: "200ms", retain_bytes: 0, poll: "100ms", staged_grace: 0'


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(Kind.OURS, tmp_path, tags=[[name] for name in KEYS])
    plain = [node.config for node in cluster.nodes]
    for node, config in zip(cluster.nodes, plain, strict=True):
        set_key(node, f"{config}\nlake: false\njetstream {{ {KEYS[node.name]} }}\n", "")
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.kill()


def set_key(node: Node, config: str, settings: str) -> None:
    """Give a node a configuration, with other settings of `jetstream` unless these are ""."""
    node.config = f"{config.partition('jetstream {')[0]}jetstream {{ {settings} }}\n" if settings else config


def publish(cluster: Cluster, count: int) -> None:
    with cluster.wire(cluster.stream_leader("S")) as wire:
        for _ in range(count):
            seq = wire.request("SECRETSUBJECT.a", b"SECRETTEXT").json()["seq"]
    assert seq


def messages(cluster: Cluster, node: Node) -> list[bytes]:
    """Return the payloads that a node's replica has."""
    with Wire((node.host, node.wanted_port), timeout=20) as wire:
        last = wire.api("STREAM.INFO.S")["state"]["last_seq"]
        return [wire.request("$JS.API.DIRECT.GET.S", json.dumps({"seq": n}).encode()).data for n in range(1, last + 1)]


def shown(node: Node) -> set[bytes]:
    """Return the secrets that the files of a node show."""
    files = [path.read_bytes() for path in (node.store / "jetstream").rglob("*") if path.is_file()]
    return {secret for secret in SECRETS if any(secret in content for content in files)}


def test_nodes_have_keys_of_their_own(cluster: Cluster) -> None:
    """One is killed and gets another key, one loses its disk, and one gets its first key; all agree."""
    cluster.stream("S", ["SECRETSUBJECT.>"])
    body = {"stream_name": "S", "config": {"durable_name": "SECRETCONSUMER", "ack_policy": "explicit"}}
    cluster.ask("CONSUMER.CREATE.S.SECRETCONSUMER", body)
    publish(cluster, 100)
    cluster.wait_current("S")
    one, two, three = cluster.nodes
    assert [shown(node) for node in cluster.nodes] == [set(), set(), set(SECRETS)]
    assert [bool(node.logged("Encryption:")) for node in cluster.nodes] == [True, True, False]
    changes = [(one, "key: uno, prev_key: one"), (two, ""), (three, "key: three")]
    for number, (node, settings) in enumerate(changes, 1):
        node.kill()
        publish(cluster, 50)
        set_key(node, node.config or "", settings)
        if node is two:
            cluster.wipe(two)
        node.start()
        cluster.wait_current("S")
        assert messages(cluster, node) == [b"SECRETTEXT"] * (100 + 50 * number)
    for node in cluster.nodes:
        node.stop(signal.SIGTERM)
    assert [shown(node) for node in cluster.nodes] == [set()] * 3


def test_a_stream_moves_between_nodes_of_different_keys(cluster: Cluster) -> None:
    """Its only replica goes to each node in turn, also to the one without a key and back; each is killed with it."""
    config = {"name": "S", "subjects": ["SECRETSUBJECT.>"], "num_replicas": 1, "allow_direct": True}
    one, two, three = cluster.nodes
    cluster.ask("STREAM.CREATE.S", {**config, "placement": {"tags": [one.name]}})
    for number, (node, after) in enumerate([(one, two), (two, three), (three, one), (one, two)], 1):
        assert cluster.stream_leader("S") is node
        publish(cluster, 50)
        cluster.ask("STREAM.UPDATE.S", {**config, "placement": {"tags": [after.name]}})
        until(lambda after=after: cluster.stream_leader("S") is after, "the other node leads it")
        until(lambda node=node: not node.stream_directory("S").exists(), "the first one has removed it")
        after.kill()
        assert shown(after) == (set(SECRETS[:2]) if after is three else set())
        after.start()
        until(lambda after=after: cluster.stream_leader("S") is after, "it leads it again")
        assert messages(cluster, after) == [b"SECRETTEXT"] * 50 * number


def test_a_node_with_a_wrong_key_leaves_the_others_alone(cluster: Cluster) -> None:
    cluster.stream("S", ["SECRETSUBJECT.>"])
    publish(cluster, 20)
    cluster.wait_current("S")
    leader = cluster.stream_leader("S")
    node = next(each for each in cluster.nodes if each is not leader and each.name != "n3")
    own = node.config or ""
    node.stop(signal.SIGTERM)
    set_key(node, own, "key: wrong")
    with pytest.raises(StartFailed, match=r"set jetstream \{ key \}"):
        node.start()
    publish(cluster, 20)
    node.config = own
    node.start()
    cluster.wait_current("S")
    assert messages(cluster, node) == [b"SECRETTEXT"] * 40


@pytest.mark.parametrize("every", [True, False], ids=["with_all_keys", "with_its_own_key"])
def test_nodes_that_share_a_lake_need_the_keys_of_all(tmp_path: Path, every: bool) -> None:
    """A leader reads what earlier ones have staged; without their keys it says which setting is missing."""
    cluster = Cluster(Kind.OURS, tmp_path, config=f'lake {{ url: "{tmp_path}/lake", encryption: storage, {LAKE} }}')
    for node in cluster.nodes:
        node.config = f"{node.config}jetstream {{ key: {node.name} }}\n"
        node.environment[VARIABLE] = "\n".join(each.name for each in cluster.nodes) if every else node.name
    (tmp_path / "lake").mkdir()
    missing = f"add the keys of all nodes to {VARIABLE}"
    try:
        cluster.start()
        cluster.stream("S", ["SECRETSUBJECT.>"])
        for node in cluster.nodes:
            cluster.lead("S", node)
            publish(cluster, 30)
            until(lambda node=node: staged(tmp_path) >= {node.name} or missing in node.log(), "its segments are staged")
        assert any(missing in node.log() for node in cluster.nodes) is not every
        assert len(staged(tmp_path)) == 3 or not every
    finally:
        cluster.kill()


def staged(directory: Path) -> set[str]:
    """Return the keys that the segments of the lake are encrypted with."""
    found = set()
    for path in (directory / "lake" / "segments").rglob(f"*{SUFFIX}"):
        for name in KEYS:
            with contextlib.suppress(WrongKey):
                Keyring([name]).unwrap(str(path), path.read_bytes())
                found.add(name)
    return found
