"""Scenarios of acks to replicated consumers from any node, and their effect across leader changes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tests.cluster.harness import SETTLE_S, ClusterScript, breaking, scenario
from tests.cluster.nodes import until
from tests.cluster.scenarios.consumer_progress import _changed, _heard, _numbers_when, _pulled, _tokens
from tests.wire import Frame, Wire

SECOND = 1_000_000_000
LATER = {"batch": 9, "expires": 20 * SECOND}


def _ready(script: ClusterScript, stream: str, subjects: Sequence[str], **config: Any) -> None:
    """Create a stream with messages and a consumer that all nodes know."""
    script.replicated(stream, [stream.lower()], **config.pop("settings", {}))
    script.consumer(stream, "c", **config)
    _heard(script, stream)
    script.fill_seen(stream, "c", subjects)


def _ask(script: ClusterScript, stream: str, number: int, **body: Any) -> Wire:
    """Leave a pull request waiting at a node."""
    wire = script.at(number)
    data = json.dumps({"batch": 1, "expires": 20 * SECOND, **body}).encode()
    wire.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.c", data, wire.new_reply())
    return wire


def _listening(script: ClusterScript, subject: str, number: int = 1) -> tuple[Wire, str]:
    """Return a subscription that all nodes know and that has received nothing."""
    wire = script.at(number)
    sid = wire.subscribe(subject)
    script.heard(subject.replace(">", "heard"))
    wire.ping()
    wire.waiting.clear()
    return wire, sid


@scenario
def naks_at_any_node(script: ClusterScript) -> None:
    _ready(script, "NK", ["nk"] * 3)
    frames = _pulled(script, "first", "NK", {"batch": 3}, 3)
    for number, body in ((2, b"-NAK"), (3, b"-NAK {}"), (2, b'-NAK {"delay": 100000000}')):
        script.ack(frames[0] if number == 2 else frames[1], body, wire=script.at(number))
        _pulled(script, f"{body!r}", "NK", {"batch": 1, "expires": 4 * SECOND}, 1, number)
    script.ack(frames[2], b"-NAK nonsense", wire=script.at(3))
    _pulled(script, "nonsense", "NK", {"batch": 1, "expires": 4 * SECOND}, 1)
    _numbers_when(script, "NK", "in the end", {"num_ack_pending": 3, "num_redelivered": 3})


@scenario
def redeliveries_are_counted_on(script: ClusterScript) -> None:
    _ready(script, "RC", ["rc"] * 2, ack_wait=SECOND)
    frames = _pulled(script, "first", "RC", {"batch": 2}, 2)
    script.ack(frames[0], b"-NAK")
    _pulled(script, "second", "RC", {"batch": 1}, 1, 2)
    _numbers_when(script, "RC", "before", {"num_ack_pending": 2, "num_redelivered": 1})
    script.ack(frames[1])
    _changed(script, "RC")
    _heard(script, "RC")
    _numbers_when(script, "RC", "after it", {"num_ack_pending": 1, "num_redelivered": 1})
    [frame] = _pulled(script, "third", "RC", {"batch": 1, "expires": 4 * SECOND}, 1, 3)
    script.ack(frame)
    _numbers_when(script, "RC", "in the end", {"num_ack_pending": 0, "num_redelivered": 0})


@scenario
def terms_stay(script: ClusterScript) -> None:
    wire, sid = _listening(script, "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>", 2)
    _ready(script, "TM", ["tm"] * 3, ack_wait=SECOND)
    frames = _pulled(script, "all", "TM", {"batch": 3}, 3)
    script.ack(frames[0], b"+TERM", wire=script.at(3))
    script.ack(frames[2], b"+TERM not mine", wire=script.at(1))
    script.advisories(wire, sid, ["MSG_TERMINATED"], 2)
    _changed(script, "TM")
    _heard(script, "TM")
    [frame] = _pulled(script, "what is left", "TM", {"batch": 1, "expires": 4 * SECOND}, 1, 2)
    script.ack(frame)
    _numbers_when(script, "TM", "in the end", {"num_ack_pending": 0})


@scenario
def an_ack_of_a_message_that_an_earlier_leader_sent(script: ClusterScript) -> None:
    _ready(script, "EL", ["el"] * 3)
    frames = _pulled(script, "all", "EL", {"batch": 3}, 3)
    _changed(script, "EL")
    _heard(script, "EL")
    for at in (0, 1):
        script.ack(frames[at], wire=script.at(at + 2))
    script.ack(frames[0], wire=script.at(1))  # ack again
    _numbers_when(script, "EL", "two acked", {"num_ack_pending": 1})
    script.ack(frames[2], b"-NAK", wire=script.at(3))
    _pulled(script, "the last one", "EL", {"batch": 1, "expires": 4 * SECOND}, 1, 2)


@scenario
def next_at_any_node(script: ClusterScript) -> None:
    _ready(script, "NX", ["nx"] * 6)
    [frame] = _pulled(script, "first", "NX", {"batch": 1}, 1)
    for number, body in ((2, b"+NXT"), (3, b"+NXT 2"), (1, b'+NXT {"batch": 1, "no_wait": true}')):
        wire = script.at(number)
        wire.publish(frame.reply, body, wire.new_reply())
        frames = script.collect(wire, 2 if body == b"+NXT 2" else 1)
        script.note(repr(body), _tokens(frames))
        frame = frames[-1]
    _numbers_when(script, "NX", "in the end", {"num_ack_pending": 2})


@scenario
def all_acks_stay(script: ClusterScript) -> None:
    _ready(script, "AA", ["aa"] * 5, ack_policy="all", ack_wait=SECOND)
    frames = _pulled(script, "five", "AA", {"batch": 5}, 5)
    script.ack(frames[2], wire=script.at(2))
    _changed(script, "AA")
    _heard(script, "AA")
    _numbers_when(script, "AA", "after it", {"num_ack_pending": 2})
    again = _pulled(script, "the others", "AA", {"batch": 2, "expires": 4 * SECOND}, 2, 3)
    script.note("which", sorted(frame.reply.split(".")[5] for frame in again))
    script.ack(frames[4], wire=script.at(1))
    _numbers_when(script, "AA", "in the end", {"num_ack_pending": 0})


@scenario
def the_last_delivery_is_told(script: ClusterScript) -> None:
    wire, sid = _listening(script, "$JS.EVENT.ADVISORY.CONSUMER.>", 3)
    _ready(script, "LD", ["ld"] * 2, ack_wait=SECOND // 2, max_deliver=2)
    frames = _pulled(script, "first", "LD", {"batch": 2}, 2)
    script.ack(frames[1], b"-NAK", wire=script.at(2))
    _pulled(script, "second", "LD", {"batch": 2, "expires": 4 * SECOND}, 2, 2)
    waiting = _ask(script, "LD", 1, expires=3 * SECOND)
    script.advisories(wire, sid, ["MAX_DELIVERIES", "MSG_NAKED"], 3)
    script.note("nothing more", _tokens(script.collect(waiting, 1)))
    _numbers_when(script, "LD", "in the end", {"num_ack_pending": 0})


@scenario
def a_work_queue_keeps_what_reached_max_deliver(script: ClusterScript) -> None:
    wire, sid = _listening(script, "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.WM.>", 2)
    _ready(script, "WM", ["wm"] * 4, ack_wait=SECOND // 2, max_deliver=2, settings={"retention": "workqueue"})
    frames = _pulled(script, "first", "WM", {"batch": 4}, 4)
    script.ack(frames[0], wire=script.at(2))
    _pulled(script, "second", "WM", {"batch": 3, "expires": 4 * SECOND}, 3, 3)
    waiting = _ask(script, "WM", 1, expires=3 * SECOND)
    script.advisories(wire, sid, ["MAX_DELIVERIES"], 3)
    script.note("no third time", _tokens(script.collect(waiting, 1)))
    script.state_when("WM", lambda state: state["messages"] == 3)
    _changed(script, "WM")
    script.state_when("WM", lambda state: state["messages"] == 3)
    _heard(script, "WM")
    script.ack(frames[1], wire=script.at(3))  # late, but it is an ack
    script.state_when("WM", lambda state: state["messages"] == 2)
    script.setup("CONSUMER.DELETE.WM.c")
    script.consumer("WM", "c")
    _heard(script, "WM")
    _pulled(script, "to another consumer", "WM", {"batch": 2}, 2, 2)


@breaking
def a_work_queue_keeps_them_when_its_leader_is_killed(script: ClusterScript) -> None:
    _ready(script, "WK", ["wk"] * 3, ack_wait=SECOND // 2, max_deliver=1, settings={"retention": "workqueue"})
    _pulled(script, "first", "WK", {"batch": 3}, 3)
    _numbers_when(script, "WK", "given up", {"num_ack_pending": 0})
    script.cluster.node(_consumer_leader(script, "WK")).kill()
    _heard(script, "WK")
    script.state_when("WK", lambda state: state["messages"] == 3)
    number = script.cluster.running[0].number + 1
    _pulled(script, "no second time", "WK", {"batch": 1, "expires": SECOND}, 1, number)
    script.state_when("WK", lambda state: state["messages"] == 3)


@scenario
def push_goes_on_under_another_leader(script: ClusterScript) -> None:
    script.replicated("PO", ["po"])
    wire, sid = _listening(script, "to.po", 2)
    script.consumer("PO", "c", deliver_subject="to.po", ack_wait=30 * SECOND)
    until(lambda: script.cluster.api("CONSUMER.INFO.PO.c").get("push_bound"), "a bound consumer", SETTLE_S)
    script.fill(["po"] * 3)
    frames = [wire.delivered(sid) for _ in range(3)]
    script.note("before", _tokens(frames))
    for frame in frames[:2]:
        script.ack(frame, wire=script.at(3))
    _changed(script, "PO")
    script.fill(["po"] * 2)
    script.note("after it", _tokens([wire.delivered(sid) for _ in range(2)]))
    _numbers_when(script, "PO", "in the end", {"num_ack_pending": 3})


@scenario
def a_queue_group_at_all_nodes(script: ClusterScript) -> None:
    script.replicated("QG", ["qg"])
    wires = [script.at(number) for number in (1, 2, 3)]
    sids = [wire.subscribe("to.qg", "q") for wire in wires]
    script.consumer("QG", "c", deliver_subject="to.qg", deliver_group="q")
    until(lambda: script.cluster.api("CONSUMER.INFO.QG.c").get("push_bound"), "a bound consumer", SETTLE_S)
    script.fill(["qg"] * 12)
    # nats-server mixes earlier counts with present ones, so the deliveries are compared instead.
    until(lambda: script.cluster.api("CONSUMER.INFO.QG.c").get("num_ack_pending") == 12, "unacked messages", SETTLE_S)
    until(lambda: sum(_count(wire, sid) for wire, sid in zip(wires, sids, strict=True)) == 12, "all", SETTLE_S)
    got = [frame for wire in wires for frame in wire.waiting if frame.reply]
    script.note("each once", sorted(int(frame.reply.split(".")[5]) for frame in got))


def _count(wire: Wire, sid: str) -> int:
    wire.waiting.extend(wire.ping())
    return sum(frame.sid == sid for frame in wire.waiting)


@scenario
def a_pause_ends_at_any_node(script: ClusterScript) -> None:
    _ready(script, "PE", ["pe"] * 2)
    answer = script.at(2).api("CONSUMER.PAUSE.PE.c", {"pause_until": "2090-01-01T00:00:00Z"})
    script.note("paused", answer.get("paused"))
    until(lambda: script.cluster.api("CONSUMER.INFO.PE.c").get("paused"), "a pause", SETTLE_S)
    _numbers_when(script, "PE", "while paused", {"num_pending": 2})
    answer = script.at(3).api("CONSUMER.PAUSE.PE.c", {})
    script.note("resumed", answer)
    script.fill(["pe"])  # nats-server sometimes delivers only with the next message
    _pulled(script, "then", "PE", {"batch": 3, "expires": 4 * SECOND}, 3, 2)


@scenario
def overflow_over_any_node(script: ClusterScript) -> None:
    group = {"priority_groups": ["g"], "priority_policy": "overflow"}
    _ready(script, "OV", ["ov"], **group)
    behind = _ask(script, "OV", 1, group="g", min_pending=3)
    script.numbers_when("OV", "c", lambda info: info["num_waiting"] == 1)
    _pulled(script, "one that waits for nothing", "OV", {"batch": 1, "group": "g", "expires": 4 * SECOND}, 1, 2)
    script.fill(["ov"] * 3)
    script.note("enough", _tokens(script.collect(behind, 1)))
    _pulled(script, "no group", "OV", {"batch": 1, "min_pending": 2}, 1, 3)
    _pulled(script, "unacked", "OV", {"batch": 1, "group": "g", "min_ack_pending": 2, "expires": 4 * SECOND}, 1, 3)


@scenario
def waiting_requests_of_a_priority_group_are_told(script: ClusterScript) -> None:
    _ready(script, "PT", [], priority_groups=["g"], priority_policy="pinned_client")
    wires = []
    for number in (1, 2, 3):
        wires.append(_ask(script, "PT", number, batch=3, group="g"))
        script.numbers_when("PT", "c", lambda info, n=number: info["num_waiting"] == n)  # type: ignore[misc]
    _changed(script, "PT")
    for wire in wires:
        script.frames("told", script.collect(wire, 1))


@scenario
def interest_is_over_when_all_have_acked(script: ClusterScript) -> None:
    script.replicated("IR", ["ir"], retention="interest")
    for name in ("c", "d"):
        script.consumer("IR", name)
        script.heard_consumer("IR", name)
    script.fill(["ir"] * 3)
    for name in ("c", "d"):
        script.numbers_when("IR", name, lambda info: info["num_pending"] == 3)
    frames = _pulled(script, "one", "IR", {"batch": 3}, 3)
    for frame in frames[:2]:
        script.ack(frame, wire=script.at(2))
    script.state_when("IR", lambda state: state["messages"] == 3)
    _changed(script, "IR")
    wire = script.at(3)
    others = _next_of(script, wire, "d", 3)
    for frame in others[1:]:
        script.ack(frame, wire=script.at(1))
    script.state_when("IR", lambda state: state["messages"] == 2)
    script.note("left", [frame.data for frame in frames if _stored(script, "IR", int(frame.reply.split(".")[5]))])


def _next_of(script: ClusterScript, wire: Wire, consumer: str, count: int) -> list[Frame]:
    until(lambda: script.cluster.api(f"CONSUMER.INFO.IR.{consumer}").get("cluster", {}).get("leader"), "d", SETTLE_S)
    data = json.dumps({"batch": count, "expires": 4 * SECOND}).encode()
    wire.publish(f"$JS.API.CONSUMER.MSG.NEXT.IR.{consumer}", data, wire.new_reply())
    frames = script.collect(wire, count)
    script.note(f"all of {consumer}", _tokens(frames))
    return frames


def _stored(script: ClusterScript, stream: str, seq: int) -> bool:
    return "message" in script.cluster.api(f"STREAM.MSG.GET.{stream}", {"seq": seq})


@scenario
def backoff_goes_on(script: ClusterScript) -> None:
    _ready(script, "BO", ["bo"], backoff=[SECOND // 2, SECOND, SECOND], max_deliver=4)
    _pulled(script, "first", "BO", {"batch": 1}, 1)
    _pulled(script, "second", "BO", {"batch": 1, "expires": 4 * SECOND}, 1, 2)
    _numbers_when(script, "BO", "before", {"num_redelivered": 1})
    _changed(script, "BO")
    _heard(script, "BO")
    for number in (3, 1):
        _pulled(script, f"again {number}", "BO", {"batch": 1, "expires": 4 * SECOND}, 1, number)
    _pulled(script, "no more", "BO", {"batch": 1, "expires": 2 * SECOND}, 1, 2)


@breaking
def a_leader_that_is_stopped_tells_who_waits(script: ClusterScript) -> None:
    _ready(script, "ST", [])
    leader = _consumer_leader(script, "ST")
    number = next(node.number + 1 for node in script.cluster.nodes if node.name != leader)
    wire = _ask(script, "ST", number, batch=2)
    script.numbers_when("ST", "c", lambda info: info["num_waiting"] == 1)
    script.cluster.node(leader).stop()
    script.frames("told", script.collect(wire, 1))


def _consumer_leader(script: ClusterScript, stream: str) -> str:
    def leads() -> Any:
        return script.cluster.api(f"CONSUMER.INFO.{stream}.c").get("cluster", {}).get("leader")

    leader: str = until(leads, "a leader", SETTLE_S)
    return leader


@breaking
def terms_and_counts_outlive_the_leader(script: ClusterScript) -> None:
    _ready(script, "TO", ["to"] * 5, ack_wait=SECOND, max_deliver=3)
    frames = _pulled(script, "all", "TO", {"batch": 5}, 5)
    script.ack(frames[4], b"-NAK")
    [again] = _pulled(script, "again", "TO", {"batch": 1, "expires": 4 * SECOND}, 1)
    script.ack(frames[0], b"+TERM")
    script.ack(frames[2])
    script.cluster.node(_consumer_leader(script, "TO")).kill()
    _numbers_when(script, "TO", "after it", {"num_ack_pending": 3, "num_redelivered": 1})
    _heard(script, "TO")
    script.ack(again)
    number = script.cluster.running[0].number + 1
    frames = _pulled(script, "the others", "TO", {"batch": 2, "expires": 4 * SECOND}, 2, number)
    script.note("which", sorted(frame.reply.split(".")[4:6] for frame in frames))
