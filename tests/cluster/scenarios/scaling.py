"""Scenarios of streams whose replicas increase, decrease or move."""

from __future__ import annotations

from typing import Any

from tests.cluster.harness import ClusterScript, scenario


def _update(script: ClusterScript, name: str, replicas: int, **config: Any) -> Any:
    body = {"name": name, "subjects": [name.lower()], "num_replicas": replicas, "allow_direct": True, **config}
    answer = script.wire.api(f"STREAM.UPDATE.{name}", body)
    answer.pop("cluster", None)  # nats-server includes it during the change
    script.note(f"UPDATE {name} to {replicas} {config or ''}", answer)
    return answer


@scenario
def up_and_down(script: ClusterScript) -> None:
    script.replicated("UD", ["ud"], 1)
    script.fill(["ud"] * 5)
    for replicas in (3, 1, 2, 3, 2, 1):
        _update(script, "UD", replicas)
        script.wait_replicas("UD", replicas)
        script.settled("UD") if replicas > 1 else script.note("leader", bool(script.leader("UD")))
        script.publish("ud", b"%d" % replicas)
    script.state("UD")
    script.direct("UD", {"seq": 1, "batch": 20}, 0)


@scenario
def a_consumer_survives_scaling(script: ClusterScript) -> None:
    script.replicated("CU", ["cu"], 1)
    script.consumer("CU", "c")
    script.fill_seen("CU", "c", ["cu"] * 4)
    frames = script.pull("CU", "c", {"batch": 2}, 2)
    for frame in frames:
        script.ack(frame)
    for replicas in (3, 1):
        _update(script, "CU", replicas)
        script.wait_replicas("CU", replicas)
        script.numbers_when("CU", "c", lambda info: info.get("num_pending") == 2)
    script.pull("CU", "c", {"batch": 2}, 2)


@scenario
def what_cannot_be_scaled(script: ClusterScript) -> None:
    script.replicated("CN", ["cn"], 1)
    for replicas in (4, 5, 6, -1):
        _update(script, "CN", replicas)
    _update(script, "CN", 3, placement={"tags": ["cloud:gcp"]})
    _update(script, "CN", 1, placement={"tags": ["cloud:azure"]})
    _update(script, "CN", 1, placement={"cluster": "OTHER"})
    _update(script, "MISSING", 3)
    script.state("CN")


@scenario
def a_stream_moves_by_its_tags(script: ClusterScript) -> None:
    script.replicated("MV", ["mv"], 1, placement={"tags": ["az:a"]})
    script.fill(["mv"] * 3)
    for tag, node in (("az:b", "n2"), ("az:c", "n3"), ("az:a", "n1")):
        _update(script, "MV", 1, placement={"tags": [tag]})
        script.wait_where("MV", [node])
        script.publish("mv", tag.encode())
    script.state("MV")


@scenario
def peers_are_removed_from_a_stream(script: ClusterScript) -> None:
    script.replicated("PR", ["pr"], 2)
    script.fill(["pr"] * 3)
    before = script.where("PR")
    _remove_leader(script, "PR")
    script.wait_other("PR", before, 2)
    script.publish("pr", b"after")
    script.state("PR")
    script.replicated("P3", ["p3"], 3)
    _remove_leader(script, "P3")
    for body in ({"peer": "nowhere"}, {}, None, b"{"):
        script.api("STREAM.PEER.REMOVE.P3", body)
    script.api("STREAM.PEER.REMOVE.MISSING", {"peer": "n1"})
    script.settled("P3")


def _remove_leader(script: ClusterScript, stream: str) -> None:
    answer = script.wire.api(f"STREAM.PEER.REMOVE.{stream}", {"peer": script.leader(stream).name})
    script.note(f"remove the leader of {stream}", answer)


@scenario
def removing_servers_that_cannot_be_removed(script: ClusterScript) -> None:
    for body in ({"peer": "nowhere"}, {}, b"{"):
        script.system("SERVER.REMOVE", body)
