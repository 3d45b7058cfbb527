"""Scenarios of message schedules of replicated streams: any leader publishes, and each message only once."""

from __future__ import annotations

import itertools

from tests.cluster.harness import SETTLE_S, ClusterScript, breaking, scenario
from tests.cluster.nodes import until
from tests.conformance.scenarios.schedules import (
    HOURLY,
    NEXT,
    PATTERN,
    SCHEDULER,
    SOURCE,
    TARGET,
    WRONG,
    content,
    once,
    soon,
    together,
)

LATER = "@at 2030-01-01T00:00:00Z"


@scenario
def schedules_of_a_replicated_stream(script: ClusterScript) -> None:
    script.replicated("RS", ["rs.>"], 3, allow_msg_schedules=True)
    script.publish("rs.1", b"x", {PATTERN: "bad", TARGET: "rs.t"})
    script.publish("rs.1", b"x", {PATTERN: LATER, TARGET: "elsewhere"})
    script.publish("rs.1", b"x", {PATTERN: LATER, TARGET: "rs.t", NEXT: LATER})
    together(
        script,
        [
            ("rs.1", b"1", once("rs.t1", ("A", "b"))),
            ("rs.src", b"content", {"Of": "source"}),
            ("rs.2", b"2", once("rs.t2", (SOURCE, "rs.src"))),
            ("rs.3", b"3", {PATTERN: LATER, TARGET: "rs.t3"}),
            ("rs.x", b"x", {SCHEDULER: "rs.3", NEXT: "purge"}),
        ],
    )
    content(script, "RS", 7)
    script.settled("RS")
    script.state("RS", subjects_filter=">")


@scenario
def of_two_wrong_things_one_is_named(script: ClusterScript) -> None:
    script.replicated("TW", ["s.>"], 3, allow_msg_schedules=True, allow_msg_ttl=True)
    for first, second in itertools.combinations(WRONG, 2):
        script.publish("s.1", b"x", HOURLY | dict([WRONG[first], WRONG[second]]))
    script.state("TW")


@scenario
def schedules_go_with_the_leader(script: ClusterScript) -> None:
    script.replicated("SL", ["sl.>"], 3, allow_msg_schedules=True)
    before = script.leader("SL")
    at = soon(1.5)
    together(script, [(f"sl.{n}", b"%d" % n, {PATTERN: at, TARGET: f"sl.t{n}"}) for n in range(3)])
    script.cluster.api("STREAM.LEADER.STEPDOWN.SL")
    until(lambda: script.leader("SL") is not before, "another leader", SETTLE_S)
    content(script, "SL", 6)
    script.settled("SL")
    script.state("SL", subjects_filter=">")


@breaking
def the_leader_is_killed_with_schedules(script: ClusterScript) -> None:
    script.replicated("SK", ["sk.>"], 3, allow_msg_schedules=True)
    at = soon(0.5)
    together(script, [(f"sk.{n}", b"%d" % n, {PATTERN: at, TARGET: f"sk.t{n}"}) for n in range(3)])
    together(script, [("sk.later", b"later", {PATTERN: LATER, TARGET: "sk.t9"})])
    gone = script.leader("SK")
    gone.kill()
    until(lambda: script.leader("SK") is not gone, "another leader", SETTLE_S)
    content(script, "SK", 7)
    gone.start()
    script.settled("SK")
    script.state("SK", subjects_filter=">")
