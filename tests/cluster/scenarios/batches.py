"""Scenarios of batches into replicated streams: the leader's staged batches, and their fate."""

from __future__ import annotations

from tests.cluster.harness import SETTLE_S, ClusterScript, breaking, scenario
from tests.cluster.nodes import until
from tests.conformance.scenarios import fast
from tests.conformance.scenarios.atomic import LAST, LAST_SUBJECT, MSG_ID, ROLLUP, M
from tests.conformance.scenarios.batches_by_chance import Chance
from tests.conformance.scenarios.fast import COMMIT, START, F, Talk

ON = {"allow_atomic": True, "allow_batched": True}


def play(script: ClusterScript, subject: str, *members: M) -> None:
    for member in members:
        script.publish(subject, member.data, member.headers)


def content(script: ClusterScript, stream: str) -> None:
    state = script.state(stream)["state"]
    for seq in range(state["first_seq"], state["last_seq"] + 1):
        script.api(f"STREAM.MSG.GET.{stream}", {"seq": seq})


@scenario
def atomic_batches_of_a_replicated_stream(script: ClusterScript) -> None:
    script.replicated("RA", ["ra"], 3, allow_rollup_hdrs=True, **ON)
    play(script, "ra", M(1), M(2), M(3, "1"), M(1), M(2, "eob"), M(2), M(1), M(3), M(1, "no"))
    play(script, "ra", M(1, None, {LAST: "5"}), M(2, "1", {MSG_ID: "m"}), M(1), M(2, "1", {MSG_ID: "m"}))
    play(script, "ra", M(1, None, {LAST_SUBJECT: "1"}), M(2, "1"), M(1), M(2, "1", {LAST_SUBJECT: "7"}))
    play(script, "ra", M(1, None, {ROLLUP: "all"}), M(2, "1"), M(1), M(2, "1", {ROLLUP: "sub"}))
    script.settled("RA")
    content(script, "RA")


@scenario
def fast_batches_of_a_replicated_stream(script: ClusterScript) -> None:
    script.replicated("RF", ["rf"], 3, **ON)
    talk = Talk(script)
    steps = [F(1, START), F(2), F(5), F(6, more=fast.WRONG), F(6, fast.PING), F(7), F(8, COMMIT), F(9)]
    talk.send([step._replace(subject="rf") for step in steps], fence="rf")
    steps = [F(1, START, "fail"), F(3, mode="fail"), F(1, COMMIT), F(2, fast.END)]
    talk.send([step._replace(subject="rf") for step in steps], fence="rf")
    script.settled("RF")
    script.state("RF")


@scenario
def batches_by_chance_into_a_replicated_stream(script: ClusterScript) -> None:
    for seed in (2, 5):
        chance = Chance(seed)
        script.replicated("S", ["a.*"], 3, **ON, **chance.config)
        talk = Talk(script)
        for step in chance.steps():
            if isinstance(step, M):
                script.publish(step.subject, step.data, step.headers or None)
            elif isinstance(step, F):
                talk.send([step])
        script.settled("S")
        content(script, "S")
        script.cluster.api("STREAM.DELETE.S")


@scenario
def another_leader_knows_of_no_open_batch(script: ClusterScript) -> None:
    script.replicated("RL", ["rl"], 3, **ON)
    talk = Talk(script)
    play(script, "rl", M(1), M(2))
    talk.send([F(1, START, subject="rl")], fence="rl")
    before = script.leader("RL")
    script.cluster.api("STREAM.LEADER.STEPDOWN.RL")
    until(lambda: script.leader("RL") is not before, "another leader", SETTLE_S)
    until(lambda: "seq" in script.wire.request("rl", b"after").json(), "an ack", SETTLE_S)
    play(script, "rl", M(3, "1"), M(1), M(2, "1"))
    talk.send([F(2, subject="rl")], fence="rl")
    script.settled("RL")


@breaking
def the_leader_is_killed_with_open_batches(script: ClusterScript) -> None:
    script.replicated("RK", ["rk"], 3, **ON)
    play(script, "rk", M(1), M(2, "1"), M(1))
    gone = script.leader("RK")
    other = next(node for node in script.cluster.nodes if node is not gone)
    wire = script.at(other.number + 1)
    talk = Talk(script, wire)
    script.heard(f"{fast.PREFIX}.x")
    talk.send([F(1, START, subject="rk"), F(2, subject="rk")], fence="rk")
    gone.kill()
    until(lambda: script.leader("RK") is not gone, "another leader", 20.0)
    until(lambda: "seq" in wire.request("rk", b"after").json(), "an ack", 20.0)
    play(script, "rk", M(2, "1"), M(1), M(2, "1"))
    talk.send([F(3, subject="rk"), F(5, subject="rk"), F(6, COMMIT, subject="rk")], fence="rk")
    gone.start()
    script.cluster.wait_current("RK", SETTLE_S)
    stored = [script.cluster.api("STREAM.MSG.GET.RK", {"seq": seq})["message"].get("hdrs") for seq in (1, 2)]
    script.note("the first batch", stored)
