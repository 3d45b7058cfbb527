"""Scenarios of consumer state and waiting pull requests across leader changes.

nats-server elects a leader for each consumer, lakestream leads a consumer where it leads the stream: here both change.
"""

from __future__ import annotations

import json
from typing import Any

from tests.cluster.harness import SETTLE_S, ClusterScript, breaking, scenario
from tests.cluster.nodes import until
from tests.wire import Frame

SECOND = 1_000_000_000
AGAIN = {"batch": 9, "expires": 4 * SECOND}


def _leader(script: ClusterScript, stream: str, consumer: str) -> Any:
    answer = script.cluster.api(f"CONSUMER.INFO.{stream}.{consumer}")
    return answer.get("cluster", {}).get("leader")


def _changed(script: ClusterScript, stream: str, consumer: str = "c") -> None:
    """Move the leadership of the stream and of the consumer to other nodes."""
    before = script.leader(stream)
    led = _leader(script, stream, consumer)
    script.cluster.ask(f"STREAM.LEADER.STEPDOWN.{stream}")
    until(lambda: script.leader(stream) is not before, "another leader", SETTLE_S)
    if _leader(script, stream, consumer) == led:
        script.cluster.ask(f"CONSUMER.LEADER.STEPDOWN.{stream}.{consumer}")
    until(lambda: _leader(script, stream, consumer) not in (None, "", led), "another leader", SETTLE_S)


def _numbers(script: ClusterScript, stream: str, consumer: str = "c") -> Any:
    """Return the counters of INFO without times, which differ between replicas."""
    info = script.cluster.api(f"CONSUMER.INFO.{stream}.{consumer}")
    wanted = ("delivered", "ack_floor", "num_ack_pending", "num_redelivered", "num_pending")
    numbers = {key: info[key] for key in wanted if key in info}
    for position in ("delivered", "ack_floor"):
        numbers.get(position, {}).pop("last_active", None)
    return numbers


def _numbers_when(script: ClusterScript, stream: str, label: str, wanted: dict[str, Any], consumer: str = "c") -> None:
    """Record the counters once `wanted` is true for them."""

    def ready() -> Any:
        numbers = _numbers(script, stream, consumer)
        return numbers if all(numbers.get(key) == value for key, value in wanted.items()) else None

    script.note(label, until(ready, f"{wanted} of {consumer}", SETTLE_S))


def _heard(script: ClusterScript, stream: str) -> None:
    """Wait until the consumer is reachable from every node.

    The requests sent for this are refused and get no message.
    """
    subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.c"
    for node in script.cluster.running:
        wire = script.at(node.number + 1)
        until(lambda wire=wire: wire.request(subject, b'{"priority":99}').status == 400, subject, SETTLE_S)


def _tokens(frames: list[Frame]) -> list[Any]:
    """Return delivery count, stream sequence and consumer sequence of each message."""
    return [frame.reply.split(".")[4:7] if frame.reply else str(frame.status) for frame in frames]


def _pulled(script: ClusterScript, label: str, stream: str, body: Any, count: int, number: int = 1) -> list[Frame]:
    wire = script.at(number)
    wire.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.c", json.dumps(body).encode(), wire.new_reply())
    frames = script.collect(wire, count)
    script.note(label, _tokens(frames))
    return frames


@scenario
def unacked_messages_go_out_again(script: ClusterScript) -> None:
    script.replicated("UN", ["un"])
    script.consumer("UN", "c", ack_wait=SECOND)
    script.heard_consumer("UN", "c")
    script.fill_seen("UN", "c", ["un"] * 3)
    frames = _pulled(script, "first", "UN", {"batch": 3}, 3)
    script.ack(frames[1])
    _changed(script, "UN")
    _heard(script, "UN")
    until(lambda: _numbers(script, "UN").get("num_ack_pending") == 2, "both unacked", SETTLE_S)
    again = _pulled(script, "again", "UN", {"batch": 2, "expires": 4 * SECOND}, 2, 2)
    for frame in again:
        script.ack(frame)
    _numbers_when(script, "UN", "in the end", {"num_ack_pending": 0})


@scenario
def deliveries_are_counted_on(script: ClusterScript) -> None:
    script.replicated("MD", ["md"])
    script.consumer("MD", "c", ack_wait=SECOND, max_deliver=2)
    script.heard_consumer("MD", "c")
    script.fill_seen("MD", "c", ["md"])
    _pulled(script, "first", "MD", {"batch": 1}, 1)
    _changed(script, "MD")
    _heard(script, "MD")
    _pulled(script, "the last time", "MD", {"batch": 1, "expires": 4 * SECOND}, 1, 2)
    _pulled(script, "no more", "MD", {"batch": 1, "expires": 2 * SECOND}, 1, 3)


@scenario
def gaps_below_the_floor_stay(script: ClusterScript) -> None:
    script.replicated("GP", ["gp"])
    script.consumer("GP", "c")
    script.heard_consumer("GP", "c")
    script.fill_seen("GP", "c", ["gp"] * 8)
    frames = _pulled(script, "all", "GP", {"batch": 8}, 8)
    for at in (0, 1, 4, 7):
        script.ack(frames[at])
    _changed(script, "GP")
    _numbers_when(script, "GP", "after it", {"num_ack_pending": 4})
    for at in (2, 3):
        script.ack(frames[at], wire=script.at(3))
    _numbers_when(script, "GP", "acked on", {"num_ack_pending": 2})


@scenario
def waiting_pulls_are_told(script: ClusterScript) -> None:
    script.replicated("WT", ["wt"])
    script.consumer("WT", "c")
    script.heard_consumer("WT", "c")
    wire = script.at(2)
    body = json.dumps({"batch": 3, "expires": 20 * SECOND}).encode()
    wire.publish("$JS.API.CONSUMER.MSG.NEXT.WT.c", body, wire.new_reply())
    script.numbers_when("WT", "c", lambda info: info["num_waiting"] == 1)
    _changed(script, "WT")
    script.frames("told", script.collect(wire, 1))
    _heard(script, "WT")
    wire.publish("$JS.API.CONSUMER.MSG.NEXT.WT.c", b"1", wire.new_reply())
    script.fill(["wt"])
    script.note("another one", _tokens(script.collect(wire, 1)))


@scenario
def a_pause_stays(script: ClusterScript) -> None:
    script.replicated("PS", ["ps"])
    script.consumer("PS", "c")
    script.heard_consumer("PS", "c")
    script.fill_seen("PS", "c", ["ps"])
    script.api("CONSUMER.PAUSE.PS.c", {"pause_until": "2090-01-01T00:00:00Z"}, wire=script.at(2))
    _changed(script, "PS")
    info = script.cluster.api("CONSUMER.INFO.PS.c")
    script.note("still", {key: info.get(key) for key in ("paused", "num_pending")})
    _heard(script, "PS")
    _pulled(script, "nothing comes", "PS", {"batch": 1, "expires": SECOND // 2}, 1, 3)


@scenario
def a_reset_over_any_node(script: ClusterScript) -> None:
    script.replicated("RS", ["rs"])
    script.consumer("RS", "c")
    script.heard_consumer("RS", "c")
    script.fill_seen("RS", "c", ["rs"] * 5)
    _pulled(script, "some", "RS", {"batch": 3}, 3)
    for number in (1, 2, 3):
        answer = script.at(number).api("CONSUMER.RESET.RS.c", {"seq": number})
        script.note(f"reset {number}", {key: answer.get(key) for key in ("reset_seq", "delivered", "num_pending")})
    _changed(script, "RS")
    _heard(script, "RS")
    _pulled(script, "from there", "RS", {"batch": 3}, 3, 2)


@scenario
def filters_change_over_any_node(script: ClusterScript) -> None:
    script.replicated("FT", ["ft.>"])
    script.consumer("FT", "c", filter_subject="ft.a")
    script.heard_consumer("FT", "c")
    script.fill_seen("FT", "c", ["ft.a", "ft.b", "ft.a", "ft.c"], matching=2)
    config = {"durable_name": "c", "ack_policy": "explicit", "filter_subjects": ["ft.a", "ft.c"]}
    answer = script.at(3).api("CONSUMER.CREATE.FT.c", {"stream_name": "FT", "config": config})
    script.note("asked", answer.get("num_pending"))
    _changed(script, "FT")
    _numbers_when(script, "FT", "after it", {"num_pending": 3})
    _heard(script, "FT")
    _pulled(script, "all of them", "FT", {"batch": 3}, 3)


@scenario
def priority_groups_over_any_node(script: ClusterScript) -> None:
    script.replicated("PG", ["pg"])
    group = {"priority_groups": ["g"]}
    script.consumer("PG", "c", **group, priority_policy="prioritized")
    _heard(script, "PG")
    asked = {}
    for number, priority in ((1, 5), (2, 0), (3, 2)):
        wire = script.at(number)
        body = {"batch": 1, "expires": 20 * SECOND, "group": "g", "priority": priority}
        asked[priority] = wire
        wire.publish("$JS.API.CONSUMER.MSG.NEXT.PG.c", json.dumps(body).encode(), wire.new_reply())
        script.numbers_when("PG", "c", lambda info, n=number: info["num_waiting"] == n)  # type: ignore[misc]
    for priority in (0, 2, 5):
        script.fill(["pg"])
        script.note(f"priority {priority}", _tokens(script.collect(asked[priority], 1)))


@scenario
def a_pin_is_lost_with_its_leader(script: ClusterScript) -> None:
    script.replicated("PN", ["pn"])
    script.consumer("PN", "c", priority_groups=["g"], priority_policy="pinned_client")
    _heard(script, "PN")
    script.fill_seen("PN", "c", ["pn"] * 3)
    [frame] = _pulled(script, "pinned", "PN", {"batch": 1, "group": "g"}, 1)
    pin = frame.headers["Nats-Pin-Id"]
    _pulled(script, "another id", "PN", {"batch": 1, "group": "g", "id": "x"}, 1, 2)
    _pulled(script, "the same id", "PN", {"batch": 1, "group": "g", "id": pin}, 1, 3)
    _changed(script, "PN")
    _heard(script, "PN")
    [group] = script.cluster.api("CONSUMER.INFO.PN.c")["priority_groups"]
    script.note("pinned", "pinned_client_id" in group)
    _pulled(script, "the old id", "PN", {"batch": 1, "group": "g", "id": pin}, 1, 2)
    [frame] = _pulled(script, "anew", "PN", {"batch": 1, "group": "g"}, 1, 3)
    script.note("another pin", frame.headers.get("Nats-Pin-Id") not in (None, pin))


@scenario
def unpin_over_any_node(script: ClusterScript) -> None:
    script.replicated("UP", ["up"])
    script.consumer("UP", "c", priority_groups=["g"], priority_policy="pinned_client")
    script.consumer("UP", "plain")
    for number in (1, 2, 3):
        wire = script.at(number)
        for body in ({"group": "g"}, {"group": "h"}, {"group": "a b"}, {}, None):
            script.api("CONSUMER.UNPIN.UP.c", body, wire=wire)
        script.api("CONSUMER.UNPIN.UP.plain", {"group": "g"}, wire=wire)
        for body in ({"group": "g"}, {"group": "a b"}, None):
            script.api("CONSUMER.UNPIN.UP.missing", body, wire=wire)
            script.api("CONSUMER.UNPIN.MISSING.c", body, wire=wire)


def _flow_control(frame: Frame) -> bool:
    return frame.reply.startswith("$JS.FC.")


def _unacked(script: ClusterScript, count: int) -> None:
    """Record that `count` messages are unacked; in a cluster nats-server updates the other counters late."""
    until(lambda: _numbers(script, "FA").get("num_ack_pending") == count, f"{count} unacked", SETTLE_S)
    script.note("unacked", count)


@scenario
def flow_control_acks_stay(script: ClusterScript) -> None:
    script.replicated("FA", ["fa"])
    wire = script.at(1)
    sid = wire.subscribe("to.fa")
    script.consumer("FA", "c", deliver_subject="to.fa", ack_policy="flow_control", max_ack_pending=4)
    until(lambda: script.cluster.api("CONSUMER.INFO.FA.c").get("push_bound"), "a bound consumer", SETTLE_S)
    script.fill(["fa"] * 6)
    request = wire.next(_flow_control)
    script.note("at first", _tokens([wire.delivered(sid) for _ in range(4)]))
    wire.publish(request.reply, b"", headers={"Nats-Last-Consumer": "2", "Nats-Last-Stream": "2"})
    script.note("then", _tokens([wire.next(lambda frame: frame.reply.startswith("$JS.ACK.")) for _ in range(2)]))
    request = wire.next(_flow_control)
    _unacked(script, 4)
    _changed(script, "FA")
    _unacked(script, 4)
    request = wire.next(lambda frame: _flow_control(frame) and frame.reply != request.reply)
    wire.publish(request.reply, b"", headers={"Nats-Last-Consumer": "6", "Nats-Last-Stream": "6"})
    _unacked(script, 0)


@scenario
def a_workqueue_lets_go_on_all_nodes(script: ClusterScript) -> None:
    script.replicated("WQ", ["wq"], retention="workqueue")
    script.consumer("WQ", "c")
    script.heard_consumer("WQ", "c")
    script.fill_seen("WQ", "c", ["wq"] * 4)
    for frame in _pulled(script, "some", "WQ", {"batch": 3}, 3):
        script.ack(frame, wire=script.at(2))
    script.state_when("WQ", lambda state: state["messages"] == 1)
    _changed(script, "WQ")
    script.state_when("WQ", lambda state: state["messages"] == 1)


@scenario
def peers_of_consumers(script: ClusterScript) -> None:
    script.replicated("SB", ["sb"])
    script.consumer("SB", "c")
    until(lambda: _leader(script, "SB", "c"), "a leader", SETTLE_S)
    for kind in ("REMOVE", "EVACUATE"):
        for body in (b"", b"{}", b"x", b'{"foo":1}', b'{"peer":"nobody"}'):
            script.api(f"CONSUMER.PEER.{kind}.SB.c", body)
            script.api(f"CONSUMER.PEER.{kind}.SB.missing", body)


@breaking
def a_confirmed_ack_outlives_the_leader(script: ClusterScript) -> None:
    script.replicated("CA", ["ca"])
    script.consumer("CA", "c", ack_wait=SECOND)
    script.heard_consumer("CA", "c")
    script.fill_seen("CA", "c", ["ca"] * 4)
    frames = _pulled(script, "all", "CA", {"batch": 4}, 4)
    for at in (0, 2):
        script.ack(frames[at])
    script.leader("CA").kill()
    _numbers_when(script, "CA", "after it", {"num_ack_pending": 2})
    _heard(script, "CA")
    number = script.cluster.running[0].number + 1
    frames = _pulled(script, "again", "CA", {"batch": 2, "expires": 4 * SECOND}, 2, number)
    script.note("which", sorted(frame.reply.split(".")[5] for frame in frames))
