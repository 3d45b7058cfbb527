"""Scenarios of TTLs, delete markers and counters of replicated streams across leader changes."""

from __future__ import annotations

from tests.cluster.harness import SETTLE_S, ClusterScript, breaking, scenario
from tests.cluster.nodes import until
from tests.conformance.scenarios.counters import content
from tests.conformance.scenarios.lifetimes import CONDITIONS, INCR, KINDS, MARKED, SOON, TTL


def _order(script: ClusterScript, kind: str) -> None:
    """Record which of two violated conditions is reported.

    Omits Nats-Expected-Last-Msg-Id: nats-server checks it when it applies an entry, and sometimes does not answer.
    """
    conditions = {name: condition for name, condition in CONDITIONS.items() if name != "last_id"}
    script.replicated("OR", ["or"], 3, **KINDS[kind])
    script.wire.request("or", b"", {"Nats-Msg-Id": "known"} | ({INCR: "1"} if kind == "counter" else {}))
    for one, condition in conditions.items():
        answers = []
        for other in conditions.values():
            answer = script.wire.request("or", b"", dict([condition, other])).json()
            answers.append(answer.get("error", answer))
        script.note(f"{one} and others", answers)
    script.state("OR")


@scenario
def of_two_refusals_one_is_told(script: ClusterScript) -> None:
    _order(script, "plain")


@scenario
def of_two_refusals_by_a_counter_one_is_told(script: ClusterScript) -> None:
    _order(script, "counter")


@scenario
def of_two_refusals_by_a_full_stream_one_is_told(script: ClusterScript) -> None:
    _order(script, "full")


def _fill(script: ClusterScript, name: str) -> None:
    for subject, headers in (
        ("a", SOON),
        ("b", {}),
        ("b", SOON),
        ("c", {TTL: "never"}),
        ("d", SOON | {"KV-Operation": "PURGE"}),
    ):
        script.publish(f"{name}.{subject}", b"x", headers)


@scenario
def messages_run_out_under_another_leader(script: ClusterScript) -> None:
    script.replicated("RO", ["ro.*"], 3, **MARKED | {"max_msgs_per_subject": 9})
    script.replicated("RP", ["rp.*"], 3, allow_msg_ttl=True)
    _fill(script, "ro")
    _fill(script, "rp")
    for name in ("RO", "RP"):
        script.cluster.wait_current(name)
        before = script.leader(name)
        script.cluster.api(f"STREAM.LEADER.STEPDOWN.{name}")
        until(lambda name=name, before=before: script.leader(name) is not before, "another leader", SETTLE_S)
    script.state_when("RO", lambda state: state["messages"] == 2 and state["last_seq"] == 6)
    content(script, "RO")
    script.state_when("RP", lambda state: state["messages"] == 2)
    content(script, "RP")


@scenario
def a_counter_under_another_leader(script: ClusterScript) -> None:
    script.replicated("CO", ["co.*"], 3, allow_msg_counter=True)
    for _ in range(3):
        before = script.leader("CO")
        for subject, value in (("a", "1"), ("b", "-7"), ("a", "99999999999999999999")):
            script.publish(f"co.{subject}", b"", {INCR: value})
        script.cluster.wait_current("CO")
        script.cluster.api("STREAM.LEADER.STEPDOWN.CO")
        until(lambda before=before: script.leader("CO") is not before, "another leader", SETTLE_S)
    script.settled("CO")
    content(script, "CO")


@breaking
def the_leader_is_killed_with_lifetimes_and_counters(script: ClusterScript) -> None:
    script.replicated("KI", ["ki.*"], 3, **MARKED)
    script.replicated("KC", ["kc"], 3, allow_msg_counter=True)
    script.cluster.lead("KC", script.leader("KI"))
    _fill(script, "ki")
    for _ in range(3):
        script.publish("kc", b"", {INCR: "5", "Nats-Msg-Id": "i"})
        script.publish("kc", b"", {INCR: "5"})
    gone = script.leader("KI")
    gone.kill()
    for name in ("KI", "KC"):
        until(lambda name=name: script.leader(name) is not gone, "another leader", SETTLE_S)
    script.publish("kc", b"", {INCR: "5", "Nats-Msg-Id": "i"})
    script.publish("kc", b"", {INCR: "5"})
    script.state_when("KI", lambda state: state["messages"] == 2 and state["last_seq"] == 6)
    content(script, "KC")
    gone.start()
    script.settled("KI")
    script.settled("KC")
    script.state_when("KI", lambda state: state["messages"] == 2)
    content(script, "KI")
