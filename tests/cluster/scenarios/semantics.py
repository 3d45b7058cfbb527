"""Scenarios of limits and retention of replicated streams across leader changes."""

from __future__ import annotations

from tests.cluster.harness import SETTLE_S, ClusterScript, breaking, scenario
from tests.cluster.nodes import until


@scenario
def lowered_limits_trim_every_replica(script: ClusterScript) -> None:
    script.replicated("LL", ["ll.*"], 3)
    script.fill(["ll.1", "ll.2", "ll.1", "ll.3", "ll.1", "ll.2"])
    config = {"name": "LL", "subjects": ["ll.*"], "num_replicas": 3, "storage": "memory"}
    script.cluster.api("STREAM.UPDATE.LL", config | {"max_msgs": 4, "max_msgs_per_subject": 2})
    script.settled("LL")
    script.state("LL", subjects_filter=">", deleted_details=True)
    before = script.leader("LL")
    script.cluster.api("STREAM.LEADER.STEPDOWN.LL")
    until(lambda: script.leader("LL") is not before, "another leader", SETTLE_S)
    script.settled("LL")
    script.state("LL", subjects_filter=">", deleted_details=True)


@scenario
def interest_ends_on_every_replica(script: ClusterScript) -> None:
    script.replicated("IE", ["ie.*"], 3, retention="interest")
    script.consumer("IE", "c", filter_subject="ie.1")
    script.consumer("IE", "d", filter_subject="ie.2")
    script.fill_seen("IE", "c", ["ie.1", "ie.2", "ie.1"], matching=2)
    script.cluster.api("CONSUMER.DELETE.IE.c")
    script.settled("IE")
    script.state_when("IE", lambda state: state["messages"] == 1)
    script.cluster.api("CONSUMER.DELETE.IE.d")
    script.state_when("IE", lambda state: state["messages"] == 0)
    script.publish("ie.1", b"nobody")
    script.state("IE")


@breaking
def ids_and_sequences_outlive_the_leader(script: ClusterScript) -> None:
    script.replicated("ID", ["id.*"], 3, max_msgs_per_subject=2, storage="file")
    for number in range(6):
        script.publish(f"id.{number % 2}", b"%d" % number, {"Nats-Msg-Id": f"m{number}"})
    gone = script.leader("ID")
    gone.kill()
    until(lambda: script.leader("ID") is not gone, "another leader", SETTLE_S)
    until(lambda: "seq" in script.wire.request("id.2", b"after", {"Nats-Msg-Id": "after"}).json(), "an ack", SETTLE_S)
    for number in (0, 5):  # the limit has removed the first one
        script.publish(f"id.{number % 2}", b"again", {"Nats-Msg-Id": f"m{number}"})
    script.publish("id.1", b"next", {"Nats-Expected-Last-Subject-Sequence": "6"})
    script.publish("id.1", b"next", {"Nats-Expected-Last-Sequence": "6"})
    gone.start()
    script.settled("ID")
    script.state("ID", subjects_filter=">", deleted_details=True)
