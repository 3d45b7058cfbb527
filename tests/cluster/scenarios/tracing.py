"""Scenarios of transforms, republishing and message tracing over several nodes."""

from __future__ import annotations

import json
from typing import Any

from tests.cluster.harness import SETTLE_S, ClusterScript, breaking, scenario
from tests.cluster.nodes import until
from tests.wire import Frame, Wire

OFFLINE_S = 20.0
TO = {"Nats-Trace-Dest": "trace"}
ONLY_TO = {**TO, "Nats-Trace-Only": "true"}


def _listener(script: ClusterScript, subject: str, number: int = 2) -> tuple[Wire, str]:
    wire = script.cluster.wire(script.cluster.nodes[number - 1], script.timeout)
    sid = wire.subscribe(subject)
    script.heard(subject.replace(">", "heard").replace("*", "heard"))
    script.heard(subject.replace(">", "heard").replace("*", "heard"))
    wire.ping()
    wire.waiting.clear()
    return wire, sid


def _traces(script: ClusterScript, listener: tuple[Wire, str], count: int) -> None:
    """Record the next traces, by node, without parts that differ between runs."""
    shown = []
    for _ in range(count):
        trace = json.loads(listener[0].delivered(listener[1]).data)
        trace["server"] = trace["server"]["name"]
        for event in trace["events"]:
            event.pop("ts")
            event.pop("cid", None)
        trace["events"].sort(key=lambda event: (event["type"] != "in", event.get("name", ""), event.get("queue", "")))
        shown.append(trace)
    script.note("traces", sorted(shown, key=lambda trace: trace["server"]))


@scenario
def a_trace_over_nodes(script: ClusterScript) -> None:
    listener = _listener(script, "trace")
    far = script.at(3)
    sid = far.subscribe("far.x")
    groups = [far.subscribe("far.*", group) for group in ("one", "two")]
    script.heard("far.x")
    far.ping()
    far.waiting.clear()
    sender = script.connect()
    sender.publish("far.x", b"hi", headers=TO)
    _traces(script, listener, 2)
    script.frames("delivered", [far.delivered(each) for each in (sid, *groups)])
    sender.publish("far.x", b"hi", headers=ONLY_TO)
    _traces(script, listener, 2)
    script.frames("not delivered", [frame for frame in far.ping() if frame.subject == "far.x"])


@scenario
def a_trace_into_a_replicated_stream(script: ClusterScript) -> None:
    listener = _listener(script, "trace")
    script.replicated("TS", ["ts.*"], 3, subject_transform={"src": "ts.*", "dest": "new.$1"})
    script.cluster.lead("TS", script.cluster.nodes[2])
    script.heard("ts.0")
    before = script.wire.api("STREAM.INFO.TS")["state"]["messages"]
    for headers in (TO, {**TO, "Nats-Expected-Last-Subject-Sequence": "77"}):
        answer = script.wire.request("ts.1", b"x", headers).json()
        script.note("answer", {**answer, "seq": answer["seq"] - before if answer["seq"] else 0})
        _traces(script, listener, 2)
    script.wire.publish("ts.1", b"x", headers=ONLY_TO)
    _traces(script, listener, 2)
    state: Any = script.wire.api("STREAM.INFO.TS", {"subjects_filter": "new.1"})["state"]
    script.note("stored", [state["messages"] - before, state.get("subjects")])


def _again(frame: Frame) -> Any:
    lines = frame.header.decode().split("\r\n")
    kept = [line for line in lines if not line.startswith("Nats-Time-Stamp")]
    return [frame.subject, kept, frame.data]


@scenario
def a_replicated_stream_publishes_again_once(script: ClusterScript) -> None:
    listener = _listener(script, "again.>")
    change = {"src": "rp.*", "dest": "new.$1"}
    script.replicated("RP", ["rp.*"], 3, subject_transform=change, republish={"src": ">", "dest": "again.>"})
    for number in (3, 1):
        script.cluster.lead("RP", script.cluster.nodes[number - 1])
        script.publish(f"rp.{number}", b"x", {"A": "b"})
        script.publish("rp.all", b"y")
        frames = [listener[0].delivered(listener[1]) for _ in range(2)]
        script.note("again", [_again(frame) for frame in frames])
    script.settled("RP")
    listener[0].ping()
    script.note("nothing more", len(listener[0].waiting))


@breaking
def a_leader_is_killed_that_publishes_again(script: ClusterScript) -> None:
    script.replicated("RK", ["rk.*"], 3, republish={"src": ">", "dest": "again.>"})
    gone = script.leader("RK")
    left = next(node for node in script.cluster.nodes if node is not gone)
    listener = _listener(script, "again.>", left.number + 1)
    sender = script.cluster.wire(left, script.timeout)
    for n in range(3):
        script.note("acked", sender.request("rk.a", b"%d" % n).json())
    frames = [listener[0].delivered(listener[1]) for _ in range(3)]
    script.note("again", [_again(frame) for frame in frames])
    gone.kill()
    until(lambda: script.leader("RK") is not gone, "another leader", OFFLINE_S)

    def stored() -> bool:
        return "seq" in sender.request("rk.a", b"after", {"Nats-Msg-Id": "after"}, timeout=1.0).json()

    until(stored, "an ack", OFFLINE_S)
    script.note("again by the next leader", _again(listener[0].delivered(listener[1])))
    gone.start()
    script.cluster.wait_current("RK", SETTLE_S)
    script.note("what is acked", sender.request("rk.a", b"last").json())
    script.note("last", _again(listener[0].delivered(listener[1])))
    listener[0].ping()
    script.note("nothing more", len(listener[0].waiting))
