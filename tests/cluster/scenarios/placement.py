"""Scenarios of creating, finding and removing streams on a cluster of three: placement, names, answering nodes."""

from __future__ import annotations

from typing import Any

from tests.cluster.harness import ClusterScript, scenario


def _create(script: ClusterScript, name: str, **config: Any) -> Any:
    return script.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [name.lower()], "storage": "memory"} | config)


@scenario
def streams_of_one_two_and_three_replicas(script: ClusterScript) -> None:
    for replicas in (0, 1, 2, 3):
        _create(script, f"R{replicas}", num_replicas=replicas)
        script.settled(f"R{replicas}")
    _create(script, "F3", num_replicas=3, storage="file")
    script.settled("F3")


@scenario
def too_many_or_impossible_replicas(script: ClusterScript) -> None:
    for replicas in (4, 5, 6, -1):
        _create(script, "BAD", num_replicas=replicas)
    script.api("STREAM.NAMES")


@scenario
def creating_twice(script: ClusterScript) -> None:
    for number in (1, 2, 3):  # the answer is the same over each node
        answer = script.at(number).api(
            "STREAM.CREATE.TWICE", {"name": "TWICE", "subjects": ["twice"], "num_replicas": 3}
        )
        script.note("did_create", [answer.get("did_create"), answer.get("error")])
    _create(script, "TWICE", num_replicas=3, storage="file", subjects=["other"])
    _create(script, "TWICE", num_replicas=1, storage="file")
    _create(script, "OTHER", num_replicas=3, subjects=["twice"])
    _create(script, "OTHER", num_replicas=1, subjects=["*"])


@scenario
def placement_by_tags(script: ClusterScript) -> None:
    """Streams are placed on nodes with their tags.

    n1 has cloud:aws and az:a, n2 cloud:gcp and az:b, n3 cloud:gcp and az:c.
    """
    for name, replicas, placement in (
        ("GCP", 2, {"tags": ["cloud:gcp"]}),
        ("AWS", 1, {"tags": ["cloud:aws"]}),
        ("BOTH", 1, {"tags": ["cloud:gcp", "az:c"]}),
        ("NOT", 1, {"tags": ["!cloud:gcp"]}),
        ("CASE", 1, {"tags": ["CLOUD:AWS"]}),
        ("NONE", 1, {"tags": ["cloud:azure"]}),
        ("FEW", 3, {"tags": ["cloud:gcp"]}),
        ("CLUSTER", 1, {"cluster": "TESTS"}),
        ("ELSEWHERE", 1, {"cluster": "OTHER"}),
        ("PREFERRED", 1, {"preferred": "n2"}),
        ("UNKNOWN", 3, {"preferred": "nowhere"}),
        ("EMPTY", 1, {}),
    ):
        answer = _create(script, name, num_replicas=replicas, placement=placement)
        if "error" not in answer:
            cluster = script.cluster.stream_cluster(name)
            nodes = sorted([cluster["leader"], *(replica["name"] for replica in cluster.get("replicas") or ())])
            # with several possible nodes, record only their number
            script.note(f"nodes of {name}", nodes if placement.get("tags") else len(nodes))


@scenario
def any_node_answers_for_any_stream(script: ClusterScript) -> None:
    script.replicated("ALL", ["all.>"], 3)
    script.replicated("ONE", ["one"], 1)
    script.known_everywhere(lambda wire: wire.api("STREAM.NAMES").get("streams"), ["ALL", "ONE"])
    for number in (1, 2, 3):
        wire = script.at(number)
        script.publish("all.x", b"from %d" % number, wire=wire)
        script.publish("one", b"from %d" % number, wire=wire)
        for name in ("ALL", "ONE", "MISSING"):
            script.api(f"STREAM.INFO.{name}", wire=wire)
            script.api(f"STREAM.MSG.GET.{name}", {"seq": 1}, wire=wire)
        script.api("STREAM.NAMES", wire=wire)
        script.api("STREAM.NAMES", {"subject": "all.y"}, wire=wire)
        script.api("STREAM.MSG.GET.ALL", {"last_by_subj": "all.x"}, wire=wire)


@scenario
def list_and_account_info(script: ClusterScript) -> None:
    script.replicated("LA", ["la"], 3)
    script.replicated("LB", ["lb"], 2)
    script.replicated("LC", ["lc"], 1)
    script.known_everywhere(lambda wire: wire.api("STREAM.NAMES").get("streams"), ["LA", "LB", "LC"])
    for number in (1, 2, 3):
        wire = script.at(number)
        answer = wire.api("STREAM.LIST")
        names = [entry["config"]["name"] for entry in answer.pop("streams")]
        script.note("STREAM.LIST", answer | {"names": sorted(names)})
        script.api("STREAM.LIST", {"subject": "lb"}, wire=wire)
        script.api("STREAM.LIST", {"offset": 5}, wire=wire)
    info = script.wire.api("INFO")
    script.note("INFO", {key: info[key] for key in ("type", "streams", "consumers", "limits")})


@scenario
def deleting_and_purging_from_any_node(script: ClusterScript) -> None:
    script.replicated("DEL", ["del.>"], 3)
    script.fill(["del.a", "del.b", "del.a", "del.c"])
    script.api("STREAM.MSG.DELETE.DEL", {"seq": 2}, wire=script.at(2))
    script.api("STREAM.MSG.DELETE.DEL", {"seq": 2}, wire=script.at(3))
    script.api("STREAM.PURGE.DEL", {"filter": "del.a"}, wire=script.at(3))
    script.state("DEL", deleted_details=True)
    script.api("STREAM.PURGE.DEL", wire=script.at(1))
    script.state("DEL")
    script.api("STREAM.DELETE.DEL", wire=script.at(2))
    script.known_everywhere(lambda wire: wire.api("STREAM.NAMES").get("streams"), None)
    for number in (1, 2, 3):
        script.api("STREAM.INFO.DEL", wire=script.at(number))
        script.api("STREAM.DELETE.DEL", wire=script.at(number))
        script.api("STREAM.PURGE.DEL", wire=script.at(number))


@scenario
def a_stream_of_the_same_name_begins_anew(script: ClusterScript) -> None:
    for round in (1, 2, 3):
        script.replicated("AGAIN", ["again"], 3)
        script.publish("again", b"%d" % round)
        script.state("AGAIN")
        script.api("STREAM.DELETE.AGAIN")
        script.known_everywhere(lambda wire: wire.api("STREAM.NAMES").get("streams"), None)


@scenario
def bad_requests(script: ClusterScript) -> None:
    script.api("STREAM.CREATE.BAD", b"{")
    script.api("STREAM.CREATE.BAD", {"name": "GOOD", "subjects": ["x"], "num_replicas": 3})
    script.api("STREAM.UPDATE.BAD", {"name": "BAD", "subjects": ["x"], "num_replicas": 3})
    script.api("STREAM.INFO.BAD", b"{")
    script.api("STREAM.DELETE.BAD")
    script.api("STREAM.NAMES", b"[")


@scenario
def publish_rules_hold_on_every_node(script: ClusterScript) -> None:
    script.replicated("RULES", ["rules.>"], 3)
    for number in (1, 2, 3):
        wire = script.at(number)
        script.publish("rules.a", b"x", {"Nats-Msg-Id": "one"}, wire=wire)
        script.publish("rules.a", b"x", {"Nats-Expected-Last-Sequence": "9"}, wire=wire)
        script.publish("rules.a", b"x", {"Nats-Expected-Stream": "OTHER"}, wire=wire)
        script.publish("rules.a", b"x", {"Nats-Expected-Last-Sequence": str(number)}, wire=wire)
        script.publish("unheard", b"x", wire=wire)
    script.state("RULES")
