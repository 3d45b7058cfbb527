"""Scenarios of stepdown of streams, consumers and the meta group."""

from __future__ import annotations

from tests.cluster.harness import SETTLE_S, ClusterScript, scenario
from tests.cluster.nodes import until


@scenario
def a_stream_leader_steps_down(script: ClusterScript) -> None:
    script.replicated("SD", ["sd"], 3)
    before = script.leader("SD")
    script.publish("sd", b"1")
    script.api("STREAM.LEADER.STEPDOWN.SD")
    until(lambda: script.leader("SD") is not before, "another leader", SETTLE_S)
    script.publish("sd", b"2")
    script.settled("SD")
    script.state("SD")


@scenario
def a_stream_leader_steps_down_for_a_preferred_one(script: ClusterScript) -> None:
    script.replicated("PF", ["pf"], 3)
    script.cluster.lead("PF", script.cluster.nodes[-1])
    for node in script.cluster.nodes:
        script.cluster.wait_current("PF")
        script.api("STREAM.LEADER.STEPDOWN.PF", {"placement": {"preferred": node.name}})
        until(lambda node=node: script.leader("PF") is node, "the preferred leader", SETTLE_S)
        script.publish("pf", node.name.encode())
    script.settled("PF")
    script.state("PF")


@scenario
def stepdowns_that_cannot_be(script: ClusterScript) -> None:
    script.replicated("NO", ["no"], 3)
    script.replicated("ALONE", ["alone"], 1)
    script.cluster.lead("NO", script.cluster.nodes[0])
    for body in (
        {"placement": {"preferred": "n1"}},
        {"placement": {"preferred": "nowhere"}},
        {"placement": {"tags": ["cloud:azure"]}},
        {"placement": {"cluster": "OTHER"}},
        b"{",
        b"[]",
    ):
        script.api("STREAM.LEADER.STEPDOWN.NO", body)
    script.note("still leads", script.leader("NO").name)
    script.api("STREAM.LEADER.STEPDOWN.MISSING")
    script.api("STREAM.LEADER.STEPDOWN.ALONE")
    script.cluster.wait_current("ALONE")
    script.publish("alone", b"x")


@scenario
def a_stepdown_with_tags_chooses_among_them(script: ClusterScript) -> None:
    script.replicated("TG", ["tg"], 3)
    script.cluster.lead("TG", script.cluster.nodes[1])
    script.api("STREAM.LEADER.STEPDOWN.TG", {"placement": {"tags": ["cloud:aws"]}})
    until(lambda: script.leader("TG").name == "n1", "n1 as leader", SETTLE_S)
    script.note("leads", script.leader("TG").name)


@scenario
def the_meta_leader_steps_down(script: ClusterScript) -> None:
    before = script.cluster.meta_leader()
    script.system("META.LEADER.STEPDOWN")
    until(lambda: script.cluster.meta_leader() is not before, "another meta leader", SETTLE_S)
    script.replicated("AFTER", ["after"], 3)
    goal = script.cluster.others(script.cluster.meta_leader())[0]
    script.cluster.system_api("META.LEADER.STEPDOWN", {"placement": {"preferred": goal.name}})
    until(lambda: script.cluster.meta_leader() is goal, "the preferred meta leader", SETTLE_S)
    script.api("STREAM.DELETE.AFTER")
    for body in ({"placement": {"tags": ["cloud:azure"]}}, {"placement": {"preferred": "nowhere"}}, b"{"):
        script.system("META.LEADER.STEPDOWN", body)
    script.note("still leads", script.cluster.meta_leader() is goal)


@scenario
def a_consumer_goes_on_after_stepdowns(script: ClusterScript) -> None:
    script.replicated("CS", ["cs"], 3)
    script.consumer("CS", "c")
    script.fill(["cs"] * 6)
    first = script.pull("CS", "c", {"batch": 3}, 3)
    script.ack(first[0])
    script.ack(first[1])
    before = script.leader("CS")
    script.api("STREAM.LEADER.STEPDOWN.CS")
    until(lambda: script.leader("CS") is not before, "another leader", SETTLE_S)
    script.ack(first[2])
    script.numbers_when("CS", "c", lambda info: info.get("ack_floor", {}).get("stream_seq") == 3)
    script.pull("CS", "c", {"batch": 3}, 3)
    script.api("CONSUMER.LEADER.STEPDOWN.CS.c")
    until(lambda: script.cluster.api("CONSUMER.INFO.CS.c")["cluster"].get("leader"), "a leader", SETTLE_S)
    script.api("CONSUMER.LEADER.STEPDOWN.CS.missing")
    script.api("CONSUMER.LEADER.STEPDOWN.MISSING.c")


@scenario
def a_cluster_with_a_leader_needs_no_rescue(script: ClusterScript) -> None:
    for body in (None, {}, b"{x", {"foo": 1}, *({"quorum_needed": quorum} for quorum in (-1, 0, 1, 2, 3))):
        answer = script.cluster.system_api("META.RESCUE", body)
        script.note(f"META.RESCUE {body}", {key: answer[key] for key in answer if not key.startswith("server")})
