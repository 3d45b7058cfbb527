"""Tests of stream placement: placing, moving and removing streams, adding and removing nodes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cluster.conftest import StartCluster
from tests.cluster.nodes import SYSTEM_USER, Cluster, Node, until
from tests.servers import Kind
from tests.wire import Wire, WireTimeout

pytestmark = pytest.mark.cluster


def _publish(wire: Wire, subject: str, number: int, start: int = 1) -> list[int]:
    """Publish `number` messages one after the other; return the sequences of their acks."""
    acks = []
    for at in range(start, start + number):
        answer = wire.request(subject, b"%d" % at).json()
        assert "error" not in answer, answer
        acks.append(answer["seq"])
    return acks


def _members(cluster: Cluster, stream: str, node: Node | None = None) -> set[str]:
    shown = cluster.stream_cluster(stream, node=node)
    return {shown["leader"], *(replica["name"] for replica in shown.get("replicas") or ())}


def _settled(cluster: Cluster, stream: str, replicas: int) -> set[str]:
    """Return the members of a stream once it has `replicas` members, all current, and no change is pending."""

    def there() -> set[str] | None:
        shown = cluster.stream_cluster(stream)
        others = shown.get("replicas") or []
        done = len(others) == replicas - 1 and all(each["current"] for each in others) and not shown.get("desired")
        return {shown["leader"], *(each["name"] for each in others)} if done else None

    found: set[str] = until(there, f"{stream} on {replicas} nodes")
    return found


def _messages(cluster: Cluster, stream: str, node: Node | None = None) -> int:
    state = cluster.api(f"STREAM.INFO.{stream}", node=node)["state"]
    return int(state["messages"])


def _held_by(cluster: Cluster, stream: str) -> set[str]:
    """Return the nodes that have files of a stream."""
    return {node.name for node in cluster.nodes if node.stream_directory(stream).exists()}


def _ok(answer: Any) -> None:
    assert answer.get("success") is True, answer


@pytest.mark.smoke
def test_a_stream_is_created_used_and_deleted_over_any_node(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    for number, node in enumerate(cluster.nodes):
        name = f"S{number}"
        made = cluster.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [name], "num_replicas": 3}, node=node)
        assert made.get("did_create") is True, made
        assert len(made["cluster"]["replicas"]) == 2
        again = {"name": name, "subjects": [name], "num_replicas": 3}
        assert "did_create" not in cluster.api(f"STREAM.CREATE.{name}", again, node=cluster.nodes[number - 1])
        for other in cluster.nodes:
            with cluster.wire(other) as wire:
                _publish(wire, name, 1)
        assert {_messages(cluster, name, other) for other in cluster.nodes} == {3}
        assert {cluster.stream_cluster(name, node=other)["leader"] for other in cluster.nodes} == {
            made["cluster"]["leader"]
        }
    for number, node in enumerate(cluster.nodes):
        _ok(cluster.api(f"STREAM.DELETE.S{number - 1 if number else 2}", node=node))
    for node in cluster.nodes:
        assert cluster.api("STREAM.NAMES", node=node)["streams"] is None
        assert cluster.api("STREAM.INFO.S1", node=node)["error"]["err_code"] == 10059
    assert all(not _held_by(cluster, f"S{number}") for number in range(3))


def test_a_stream_is_scaled_up_and_down_while_it_is_written(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    cluster.stream("UP", ["up"], 1)
    config = {"name": "UP", "subjects": ["up"], "allow_direct": True}
    with cluster.wire() as wire:
        acks = _publish(wire, "up", 50)
        for replicas in (3, 1, 3):
            answer = cluster.api("STREAM.UPDATE.UP", {**config, "num_replicas": replicas})
            assert answer["config"]["num_replicas"] == replicas
            acks += _publish(wire, "up", 50, len(acks) + 1)
            members = _settled(cluster, "UP", replicas)
            until(lambda members=members: _held_by(cluster, "UP") == members, "the files of exactly the members")
            acks += _publish(wire, "up", 50, len(acks) + 1)
    assert acks == list(range(1, len(acks) + 1))
    cluster.wait_current("UP")
    assert _messages(cluster, "UP") == len(acks)


def test_leaders_step_down_to_whom_the_request_names(start_cluster: StartCluster) -> None:
    cluster = start_cluster(tags=(("a",), ("b",), ("c",)))
    cluster.stream("LD", ["ld"], 3)
    for node in cluster.nodes:
        if cluster.stream_leader("LD") is not node:
            _ok(cluster.api("STREAM.LEADER.STEPDOWN.LD", {"placement": {"preferred": node.name}}))
            until(lambda node=node: cluster.stream_leader("LD") is node, f"{node.name} leads")
    leader = cluster.stream_leader("LD")
    other = cluster.others(leader)[0]
    tag = "abc"[other.number]
    _ok(cluster.api("STREAM.LEADER.STEPDOWN.LD", {"placement": {"tags": [tag]}}))
    until(lambda: cluster.stream_leader("LD") is other, f"the node with tag {tag} leads")
    before = cluster.meta_leader()
    _ok(cluster.system_api("META.LEADER.STEPDOWN"))
    until(lambda: cluster.meta_leader() is not before, "another leader of the meta group")
    with cluster.wire() as wire:
        _publish(wire, "ld", 10)


def test_a_node_that_joins_later_gets_streams_and_gives_them_back(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    cluster.stream("J", ["j"], 3)
    with cluster.wire() as wire:
        _publish(wire, "j", 20)
        late = cluster.add_node()
        assert cluster.api("STREAM.UPDATE.J", {"name": "J", "subjects": ["j"], "num_replicas": 4}).get("error")
        late.start()
        config = {"name": "J", "subjects": ["j"], "num_replicas": 4, "allow_direct": True}
        until(lambda: "error" not in cluster.api("STREAM.UPDATE.J", config), "a fourth node for J")
        assert late.name in _settled(cluster, "J", 4)
        _publish(wire, "j", 20)
        assert "error" not in cluster.api("STREAM.UPDATE.J", {**config, "num_replicas": 3})
        members = _settled(cluster, "J", 3)
        until(lambda: _held_by(cluster, "J") == members, "the files of exactly the members")
    cluster.wait_current("J")
    assert _messages(cluster, "J") == 40


def test_a_node_is_taken_out_of_a_stream_whether_it_lives_or_not(start_cluster: StartCluster) -> None:
    cluster = start_cluster(5)
    cluster.stream("PR", ["pr"], 3)
    with cluster.wire(timeout=20.0) as wire:
        _publish(wire, "pr", 20)
    leader = cluster.stream_leader("PR")
    _ok(cluster.api("STREAM.PEER.REMOVE.PR", {"peer": leader.name}))
    until(lambda: leader.name not in _members(cluster, "PR"), "a group without its former leader")
    _settled(cluster, "PR", 3)
    dead = cluster.followers("PR")[0]
    dead.kill()
    _ok(cluster.api("STREAM.PEER.REMOVE.PR", {"peer": dead.name}))
    until(lambda: dead.name not in _members(cluster, "PR"), "a group without the dead node")
    members = _settled(cluster, "PR", 3)
    assert _messages(cluster, "PR") == 20
    dead.start()
    until(lambda: _held_by(cluster, "PR") == members, "the dead node lets go of its files when it is back")


def test_a_server_is_removed_from_the_cluster_and_joins_again_when_it_is_started_anew(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(4)
    cluster.stream("SR", ["sr"], 3)
    with cluster.wire() as wire:
        _publish(wire, "sr", 10)
    gone = cluster.meta_leader()
    _ok(cluster.system_api("SERVER.REMOVE", {"peer": gone.name}, timeout=10.0))
    rest = cluster.others(gone)
    until(lambda: cluster.meta_leader() is not gone, "another leader of the meta group")
    until(lambda: gone.name not in _members(cluster, "SR", rest[0]), "the stream on the other nodes")
    unknown = cluster.system_api("SERVER.REMOVE", {"peer": gone.name}, node=rest[0])
    assert unknown["error"]["err_code"] == 10044
    gone.stop()
    gone.start()
    until(lambda: cluster.meta_leader().page("jsz")["meta_cluster"]["cluster_size"] == 4, "four members again")
    until(lambda: gone.name not in _held_by(cluster, "SR"), "no files of what it no longer holds")
    assert _messages(cluster, "SR", gone) == 10


@pytest.mark.smoke
def test_a_node_that_lost_its_disk_gets_everything_back_from_the_others(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    cluster.stream("WD", ["wd"], 3)
    with cluster.wire(cluster.nodes[0]) as wire:
        _publish(wire, "wd", 30)
    lost = cluster.nodes[2]
    lost.kill()
    cluster.wipe(lost)
    lost.start()
    until(lambda: lost.stream_directory("WD").exists(), "files on the new disk")
    cluster.wait_current("WD")
    for node in cluster.others(lost):
        cluster.lead("WD", lost)
        assert _messages(cluster, "WD", node) == 30


def test_a_stream_that_is_deleted_while_a_node_is_away_does_not_come_back_with_it(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    cluster.stream("DA", ["da"], 3)
    cluster.stream("DB", ["db"], 3)
    away = cluster.nodes[1]
    away.kill()
    rest = cluster.others(away)
    cluster.ask("STREAM.DELETE.DA", node=rest[0])
    cluster.ask("STREAM.DELETE.DB", node=rest[0])
    again = {"name": "DB", "subjects": ["db2"], "num_replicas": 2}
    cluster.ask("STREAM.CREATE.DB", again, node=rest[0])
    away.start()
    until(lambda: "error" not in cluster.api("STREAM.INFO.DB", node=away), "the node is back")
    until(lambda: not away.stream_directory("DA").exists(), "its files of the deleted stream are gone")
    assert cluster.api("STREAM.INFO.DA", node=away)["error"]["err_code"] == 10059
    assert cluster.api("STREAM.INFO.DB", node=away)["config"]["subjects"] == ["db2"]
    with cluster.wire(away) as wire:
        assert wire.request("da").status == 503
        _publish(wire, "db2", 3)


def test_streams_of_a_server_that_ran_alone_are_taken_into_the_cluster(kind: Kind, start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    node = cluster.nodes[0]
    cluster.kill()
    for each in cluster.nodes:
        cluster.wipe(each)
    config, node.config = node.config, "max_payload: 1MB\n"
    node.start()
    with Wire((node.host, node.wanted_port), {}) as wire:
        assert "error" not in wire.api("STREAM.CREATE.OLD", {"name": "OLD", "subjects": ["old"]})
        _publish(wire, "old", 25)
        consumer = {"stream_name": "OLD", "config": {"durable_name": "c", "ack_policy": "explicit"}}
        assert "error" not in wire.api("CONSUMER.CREATE.OLD.c", consumer)
    node.stop()
    node.config = config
    cluster.start()
    until(lambda: "error" not in cluster.api("STREAM.INFO.OLD", node=cluster.nodes[1]), "the stream in the cluster")
    assert _messages(cluster, "OLD", cluster.nodes[2]) == 25
    assert "error" not in cluster.api("CONSUMER.INFO.OLD.c", node=cluster.nodes[1])
    update = {"name": "OLD", "subjects": ["old"], "num_replicas": 3}
    assert "error" not in cluster.api("STREAM.UPDATE.OLD", update)
    _settled(cluster, "OLD", 3)
    node.kill()
    until(lambda: _messages(cluster, "OLD", cluster.nodes[1]) == 25, "the stream without the server it comes from")


def test_requests_wait_for_a_leader_instead_of_failing(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    cluster.stream("WL", ["wl"], 3)
    leader = cluster.stream_leader("WL")
    client = cluster.others(leader)[0]
    leader.kill()

    def routes() -> list[str]:
        return [route.get("remote_name") for route in client.page("routez")["routes"]]

    until(lambda: leader.name not in routes(), "the end of the connection")
    made = {"stream_name": "WL", "config": {"durable_name": "c", "ack_policy": "explicit"}}
    answer = cluster.api("CONSUMER.CREATE.WL.c", made, node=client, timeout=5.0)
    assert answer.get("error", {}).get("err_code") in (None, 10008), answer
    until(lambda: "error" not in cluster.api("CONSUMER.CREATE.WL.c", made, node=client), "a new leader", 5.0)


def test_without_a_majority_nothing_is_created(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    alone = cluster.nodes[0]
    for node in cluster.others(alone):
        node.kill()
    until(lambda: cluster.api("STREAM.NAMES", node=alone).get("error"), "no leader of the meta group")
    made = cluster.api("STREAM.CREATE.NO", {"name": "NO", "subjects": ["no"]}, node=alone)
    assert made["error"]["err_code"] == 10008, json.dumps(made)
    for node in cluster.others(alone):
        node.start()
    cluster.wait_ready()
    assert "NO" not in (cluster.api("STREAM.NAMES")["streams"] or [])


def _asked(wire: Wire, page: str, body: Any = None) -> dict[str, Any]:
    """Return the data of all answers to a request to every server, by the server's name."""
    reply, found = wire.new_reply(), {}
    wire.publish(f"$SYS.REQ.SERVER.PING.{page}", json.dumps(body).encode() if body else b"", reply)
    try:
        while True:
            answer = wire.message(reply, 1.0).json()
            found[answer["server"]["name"]] = answer["data"]
    except WireTimeout:
        return found


def test_the_system_account_asks_about_groups_and_their_leaders(start_cluster: StartCluster) -> None:
    accounts = "A { users: [{user: a, password: p}], jetstream: enabled }\n"
    cluster = start_cluster(accounts=accounts, user=("a", "A"))
    cluster.stream("S", ["s"], replicas=3)
    _settled(cluster, "S", 3)
    names = {node.name for node in cluster.nodes}
    shown = cluster.stream_cluster("S")
    leader, group = shown["leader"], shown["raft_group"]
    with cluster.wire(**SYSTEM_USER) as wire:
        metas = {name: data["$SYS"] for name, data in _asked(wire, "RAFTZ").items()}
        assert {name: list(groups) for name, groups in metas.items()} == {name: ["_meta_"] for name in names}
        assert [groups["_meta_"]["size"] for groups in metas.values()] == [3, 3, 3]
        answers = {name: data["A"] for name, data in _asked(wire, "RAFTZ", {"account": "A"}).items()}
        assert {name: list(groups) for name, groups in answers.items()} == {name: [group] for name in names}
        assert {name for name, groups in answers.items() if groups[group]["state"] == "LEADER"} == {leader}
        assert {groups[group]["leader"] for groups in answers.values()} == {answers[leader][group]["id"]}
        for name, groups in answers.items():
            one = groups[group]
            assert (one["size"], one["quorum_needed"], one["ever_had_leader"]) == (3, 2, True)
            assert {peer["name"] for peer in one["peers"].values()} == names - {name}
            assert one["applied"] <= one["committed"]
        assert not any(_asked(wire, "RAFTZ", {"group": group}).values())
        assert all(_asked(wire, "RAFTZ", {"account": "A", "group": group}).values())

        assert set(_asked(wire, "JSZ", {"leader_only": True})) == {cluster.meta_leader().name}
        led = _asked(wire, "JSZ", {"account": "A", "streams": True, "stream_leader_only": True, "raft": True})
        details = {name: data["account_details"][0].get("stream_detail", []) for name, data in led.items()}
        assert {name: [each["stream_raft_group"] for each in found] for name, found in details.items()} == {
            name: [group] if name == leader else [] for name in names
        }
