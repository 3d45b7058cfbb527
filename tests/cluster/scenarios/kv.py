"""Scenarios of key-value buckets and object stores with three replicas across leader changes."""

from __future__ import annotations

from typing import Any

from tests.cluster.harness import SETTLE_S, ClusterScript, breaking, scenario
from tests.cluster.nodes import until
from tests.conformance.scenarios.counters import content
from tests.conformance.scenarios.kv import DELETE, EXPECTED, PURGE, SECOND, TTL, WATCH
from tests.wire import Wire

BUCKET: dict[str, Any] = {
    "max_msgs_per_subject": 5,
    "discard": "new",
    "deny_delete": True,
    "allow_rollup_hdrs": True,
    "allow_direct": True,
}


def _bucket(script: ClusterScript, name: str, **config: Any) -> None:
    script.replicated(f"KV_{name}", [f"$KV.{name}.>"], 3, **{**BUCKET, **config})


def _another_leader(script: ClusterScript, stream: str) -> None:
    script.cluster.wait_current(stream)
    before = script.leader(stream)
    script.cluster.api(f"STREAM.LEADER.STEPDOWN.{stream}")
    until(lambda: script.leader(stream) is not before, "another leader", SETTLE_S)


def _takes(script: ClusterScript, subject: str, data: bytes) -> None:
    """Publish with a message id until it is acked, as clients do.

    Nats-server's new leader may miss the first attempt.
    """
    once = {"Nats-Msg-Id": "once"}
    until(lambda: "seq" in script.wire.request(subject, data, once, 1.0).json(), "an ack", SETTLE_S)


def _watched(script: ClusterScript, bucket: str, wire: Wire, name: str, **config: Any) -> str:
    """Create a watch through this connection; return the sid."""
    sid = wire.subscribe(f"to.{name}")
    wire.ping()
    asked = {**WATCH, "name": name, "deliver_subject": f"to.{name}", "filter_subject": f"$KV.{bucket}.>", **config}
    body = {"stream_name": f"KV_{bucket}", "config": asked, "action": "create"}
    subject = f"CONSUMER.CREATE.KV_{bucket}.{name}.{asked['filter_subject']}"
    answer = wire.api(subject, body)
    script.note(f"watch {name}", [answer.get("error"), answer.get("num_pending")])
    return sid


def _told(script: ClusterScript, label: str, wire: Wire, sid: str, count: int) -> None:
    """Record the next entries of a watch, regardless of their delivery sequences."""
    seen = []
    while len(seen) < count:
        frame = wire.delivered(sid, SETTLE_S)
        if frame.status != 100:
            seen.append([frame.subject, frame.data, frame.headers, int(frame.reply.split(".")[5])])
    script.note(label, seen)


@scenario
def compare_and_set_under_another_leader(script: ClusterScript) -> None:
    _bucket(script, "cs")
    for turn in range(3):
        for value in ("0", "1", str(turn * 4 + 1), "99"):
            for key, headers in (("k", {}), (f"n{turn}", {}), ("k", DELETE), ("k", PURGE)):
                script.publish(f"$KV.cs.{key}", b"", headers | {EXPECTED: value})
        _another_leader(script, "KV_cs")
    script.settled("KV_cs")
    content(script, "KV_cs")


@scenario
def every_node_answers(script: ClusterScript) -> None:
    """Puts, gets, lists and purges work through clients of each node."""
    _bucket(script, "ev")
    for number in range(1, 4):
        wire = script.at(number)
        script.publish("$KV.ev.k", b"%d" % number, {EXPECTED: str(number - 1)}, wire=wire)
        script.publish(f"$KV.ev.of{number}", b"x", wire=wire)
        script.publish("$KV.ev.k", b"", {EXPECTED: "99"}, wire=wire)
        script.api("STREAM.MSG.GET.KV_ev", {"last_by_subj": "$KV.ev.k"}, wire=wire)
        script.api("STREAM.NAMES", {"subject": "$KV.*.>"}, wire=wire)
        wire.request(f"$KV.ev.of{number}", b"", DELETE)
        script.publish("$KV.ev.k", b"%d" % number, wire=wire)
        wire.request("$JS.API.STREAM.PURGE.KV_ev", b'{"filter":"$KV.ev.k"}')
    script.settled("KV_ev")
    for number in range(1, 4):
        script.api("STREAM.MSG.GET.KV_ev", {"last_by_subj": "$KV.ev.of1"}, wire=script.at(number))
        frame = script.at(number).request("$JS.API.DIRECT.GET.KV_ev.$KV.ev.of3")
        script.note(f"direct by {number}", script.show(frame))
    content(script, "KV_ev")


@scenario
def watches_resume_under_another_leader(script: ClusterScript) -> None:
    """Watches through every node resume under the next leader, from the last revision seen, as clients resume them."""
    _bucket(script, "wa", max_msgs_per_subject=3)
    script.fill(["$KV.wa.a", "$KV.wa.b", "$KV.wa.a"])
    rows = [("last", {}, 2), ("all", {"deliver_policy": "all"}, 3), ("new", {"deliver_policy": "new"}, 0)]
    for number, (name, config, first) in enumerate(rows, 1):
        sid = _watched(script, "wa", script.at(number), name, **config)
        _told(script, f"{name} at first", script.at(number), sid, first)
    _another_leader(script, "KV_wa")
    script.publish("$KV.wa.a", b"meanwhile")
    resumed = {"deliver_policy": "by_start_sequence", "opt_start_seq": 4}
    watches = [(number, _watched(script, "wa", script.at(number), f"again{number}", **resumed)) for number in (1, 2, 3)]
    for key, headers in (("a", {}), ("b", DELETE), ("c", {}), ("a", PURGE)):
        script.publish(f"$KV.wa.{key}", b"", headers)
        for number, sid in watches:
            _told(script, f"through node {number}", script.at(number), sid, 1 + (key == "a" and not headers))


@scenario
def markers_under_another_leader(script: ClusterScript) -> None:
    """Messages that expire under a new leader are removed there, and watchers get each marker once."""
    _bucket(script, "ma", allow_msg_ttl=True, subject_delete_marker_ttl=SECOND)
    for key in ("a", "b"):
        script.publish(f"$KV.ma.{key}", b"x", {EXPECTED: "0", TTL: "5"})
    script.publish("$KV.ma.stays", b"x")
    _another_leader(script, "KV_ma")
    wire = script.at(2)
    sid = _watched(script, "ma", wire, "w")
    until(lambda: script.wire.api("STREAM.INFO.KV_ma")["state"]["last_seq"] == 5, "both markers", SETTLE_S)
    script.state_when("KV_ma", lambda state: state["messages"] == 1)
    seen = [wire.delivered(sid, SETTLE_S) for _ in range(5)]
    found = [[frame.subject, frame.data, frame.headers] for frame in seen]
    script.note("told", [*found[:3], *sorted(found[3:], key=str)])  # the order of the two expiries is random
    script.settled("KV_ma")


@breaking
def the_leader_of_a_bucket_is_killed(script: ClusterScript) -> None:
    """After the leader's death acked values are there, and a successful create stays successful."""
    _bucket(script, "kl", storage="file")
    for n in range(5):
        script.publish("$KV.kl.k", b"%d" % n, {EXPECTED: str(n)})
    script.publish("$KV.kl.won", b"first", {EXPECTED: "0"})
    gone = script.leader("KV_kl")
    gone.kill()
    until(lambda: script.leader("KV_kl") is not gone, "another leader", SETTLE_S)
    _takes(script, "$KV.kl.once", b"")
    for headers in ({EXPECTED: "4"}, {EXPECTED: "5"}, {EXPECTED: "6"}, {EXPECTED: "8"}):
        script.publish("$KV.kl.k", b"after", headers)
    script.publish("$KV.kl.won", b"second", {EXPECTED: "0"})
    gone.start()
    script.settled("KV_kl")
    content(script, "KV_kl")


@breaking
def an_upload_under_a_killed_leader(script: ClusterScript) -> None:
    """Acked chunks are read back in order; the object exists once its metadata is stored."""
    script.replicated(
        "OBJ_ul",
        ["$O.ul.C.>", "$O.ul.M.>"],
        3,
        discard="new",
        allow_rollup_hdrs=True,
        allow_direct=True,
        storage="file",
    )
    parts = [bytes([n]) * 5000 for n in range(20)]
    for part in parts[:10]:
        script.wire.request("$O.ul.C.n", part)
    gone = script.leader("OBJ_ul")
    gone.kill()
    until(lambda: script.leader("OBJ_ul") is not gone, "another leader", SETTLE_S)
    _takes(script, "$O.ul.C.n", parts[10])
    script.note("no object yet", script.show(script.wire.request("$JS.API.DIRECT.GET.OBJ_ul.$O.ul.M.bw==")))
    for part in parts[11:]:
        assert "error" not in script.wire.request("$O.ul.C.n", part).json()
    script.publish("$O.ul.M.bw==", b"{}", {"Nats-Rollup": "sub"})
    gone.start()
    script.settled("OBJ_ul")  # nats-server may place the reader's consumer on a node that is down
    wire = script.wire
    sid = wire.subscribe("to.me")
    wire.ping()
    asked = WATCH | {"name": "r", "deliver_policy": "all", "filter_subject": "$O.ul.C.n"}
    answer = wire.api("CONSUMER.CREATE.OBJ_ul.r", {"stream_name": "OBJ_ul", "config": asked, "action": "create"})
    script.note("pending", answer["num_pending"])
    read: list[bytes] = []
    while len(read) < len(parts):
        frame = wire.delivered(sid, SETTLE_S)
        if frame.status == 100:
            if frame.reply:
                wire.publish(frame.reply)
            continue
        read.append(frame.data)
    script.note("whole", read == parts)
    script.publish("$O.ul.M.bw==", b'{"deleted":true}', {"Nats-Rollup": "sub"})
    script.api("STREAM.PURGE.OBJ_ul", {"filter": "$O.ul.C.n"})
    script.state("OBJ_ul", subjects_filter=">")
