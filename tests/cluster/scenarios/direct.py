"""Scenarios of direct gets of replicated streams: every replica answers the same over any node."""

from __future__ import annotations

import json
from typing import Any

from tests.cluster.harness import SETTLE_S, ClusterScript, breaking, scenario
from tests.cluster.nodes import until
from tests.wire import Frame, Wire, WireTimeout

SUBJECTS = ["dg.a.1", "dg.a.2", "dg.b.1", "dg.a.1", "dg.b.2", "dg.a.3", "dg.a.2", "dg.b.1", "dg.a.1"]
LONG_AGO = "2001-01-01T00:00:00Z"
FAR_AWAY = "2099-01-01T00:00:00Z"
BODIES: list[Any] = [
    {"seq": 4},
    {"seq": 99},
    {"seq": 2, "no_hdr": True},
    {"seq": 0},
    {"seq": 2**64},
    {"last_by_subj": "dg.a.1"},
    {"last_by_subj": "dg.b.*"},
    {"next_by_subj": "dg.b.1", "seq": 4},
    {"start_time": LONG_AGO},
    {"start_time": FAR_AWAY},
    {"start_time": LONG_AGO, "next_by_subj": "dg.b.>"},
    {"multi_last": ["dg.z"]},
    {"multi_last": ["dg.>"], "up_to_seq": 99},
    {"multi_last": ["dg.>"], "up_to_seq": 3, "up_to_time": FAR_AWAY},
    {"seq": 1, "last_by_subj": "dg.a.1"},
    b"x",
    b"",
]
SEVERAL: list[Any] = [
    {"seq": 1, "batch": 4},
    {"seq": 5, "batch": 100},
    {"seq": 1, "batch": 100, "next_by_subj": "dg.b.*"},
    {"seq": 1, "batch": 100, "max_bytes": 30},
    {"start_time": LONG_AGO, "batch": 3},
    {"multi_last": ["dg.>"]},
    {"multi_last": ["dg.a.*", "dg.b.1"], "up_to_seq": 6},
    {"multi_last": ["dg.a.*"], "up_to_time": FAR_AWAY, "batch": 2},
]


def _ask(wire: Wire, stream: str, body: Any, *, several: bool = False) -> list[Frame]:
    """Return all answers over one connection."""
    reply = wire.new_reply()
    wire.publish(f"$JS.API.DIRECT.GET.{stream}", body if isinstance(body, bytes) else json.dumps(body).encode(), reply)
    frames = [wire.message(reply)]
    while several and not frames[-1].status:
        frames.append(wire.message(reply))
    return frames


def _shown_everywhere(script: ClusterScript, stream: str, last: int) -> None:
    """Wait until every node returns the newest message many times in a row."""
    body = json.dumps({"seq": last}).encode()
    for node in script.cluster.running:
        wire = script.at(node.number + 1)

        def shown(wire: Wire = wire) -> bool:
            try:
                asked = (wire.request(f"$JS.API.DIRECT.GET.{stream}", body, timeout=1.0) for _ in range(5))
                return all(frame.headers.get("Nats-Sequence") == str(last) for frame in asked)
            except WireTimeout:
                return False

        until(shown, f"message {last} of {stream} over {node.name}", SETTLE_S)


def _stage(script: ClusterScript, name: str, replicas: int = 3, **config: Any) -> None:
    script.replicated(name, ["dg.>"], replicas, allow_direct=True, **config)
    script.fill(SUBJECTS)
    _shown_everywhere(script, name, len(SUBJECTS))


def _over_every_node(script: ClusterScript, stream: str) -> None:
    """Send every form of the request over every node.

    Assert equal answers whichever replica answers; record them once.
    """
    for body, several in [*((body, False) for body in BODIES), *((body, True) for body in SEVERAL)]:
        for node in script.cluster.running:
            frames = _ask(script.at(node.number + 1), stream, body, several=several)
            script.frames(f"{body} over a node", frames)


@scenario
def every_form_over_every_node(script: ClusterScript) -> None:
    _stage(script, "DF")
    _over_every_node(script, "DF")


@scenario
def every_form_in_memory(script: ClusterScript) -> None:
    _stage(script, "DM", storage="memory")
    _over_every_node(script, "DM")


@scenario
def a_single_replica_is_asked_over_every_node(script: ClusterScript) -> None:
    _stage(script, "D1", 1)
    _over_every_node(script, "D1")


@scenario
def changes_show_on_every_node(script: ClusterScript) -> None:
    _stage(script, "DC", max_msgs_per_subject=2, allow_rollup_hdrs=True)
    script.publish("dg.a.1", b"newer")
    script.publish("dg.a.2", b"rolled", {"Nats-Rollup": "sub"})
    script.setup("STREAM.MSG.DELETE.DC", {"seq": 6})
    script.setup("STREAM.PURGE.DC", {"filter": "dg.b.1"})
    script.publish("dg.c", b"the last of them")
    _shown_everywhere(script, "DC", 12)
    _over_every_node(script, "DC")
    for node in script.cluster.running:
        wire = script.at(node.number + 1)
        for subject in ("dg.a.1", "dg.a.2", "dg.a.3", "dg.b.1", "dg.c", "dg.>"):
            frame = wire.request(f"$JS.API.DIRECT.GET.DC.{subject}", b"")
            script.frames(f"the last of {subject} over a node", [frame])


@scenario
def the_flag_counts_on_every_node(script: ClusterScript) -> None:
    script.replicated("DN", ["dg.>"], 3)
    script.fill(["dg.1"])
    for allowed in (False, True, False):
        body = {"name": "DN", "subjects": ["dg.>"], "num_replicas": 3, "allow_direct": allowed}
        script.setup("STREAM.UPDATE.DN", body)
        wanted = 0 if allowed else 503
        for node in script.cluster.running:
            wire = script.at(node.number + 1)

            def told(wire: Wire = wire, wanted: int = wanted) -> bool:
                return all(wire.request("$JS.API.DIRECT.GET.DN.dg.1", b"").status == wanted for _ in range(3))

            until(told, f"allowed {allowed} over {node.name}", SETTLE_S)
            script.frames(f"allowed {allowed} over a node", _ask(wire, "DN", {"seq": 1}))
    script.setup("STREAM.DELETE.DN")
    for node in script.cluster.running:
        script.frames("deleted", _ask(script.at(node.number + 1), "DN", {"seq": 1}))


def _paged(script: ClusterScript, wires: list[Wire], stream: str, between: Any) -> list[Any]:
    """Return a snapshot in pages of three, each requested over another node."""
    body: dict[str, Any] = {"multi_last": ["dg.>"], "batch": 3}
    got: list[Any] = []
    page = 0
    while True:
        frames = _ask(wires[page % len(wires)], stream, body, several=True)
        got += [
            (frame.headers["Nats-Subject"], int(frame.headers["Nats-Sequence"]), frame.data) for frame in frames[:-1]
        ]
        end = frames[-1].headers
        if frames[-1].status != 204 or end["Nats-Num-Pending"] == "0":
            return got
        body |= {"up_to_seq": int(end["Nats-UpTo-Sequence"]), "seq": int(end["Nats-Last-Sequence"]) + 1}
        between(page)
        page += 1


@scenario
def pages_over_different_nodes_are_one_snapshot(script: ClusterScript) -> None:
    script.replicated("DP", ["dg.>"], 3, allow_direct=True)
    script.fill([f"dg.{n}" for n in range(20)], b"old")
    _shown_everywhere(script, "DP", 20)
    wires = [script.at(node.number + 1) for node in script.cluster.running]

    def write(page: int) -> None:
        script.fill([f"dg.{n}" for n in range(0, 24, 3)], b"new %d" % page)

    script.note("pages", _paged(script, wires, "DP", write))


@breaking
def followers_answer_while_the_leader_stands_still(script: ClusterScript) -> None:
    """A paused leader does not keep followers from answering.

    nats-server may send a request to the paused leader's replica; it is repeated then.
    """
    _stage(script, "DL")
    leader = script.leader("DL")
    wires = [script.at(node.number + 1) for node in script.cluster.followers("DL")]
    leader.pause()
    try:
        for body, several in (
            ({"seq": 3}, False),
            ({"last_by_subj": "dg.a.1"}, False),
            ({"next_by_subj": "dg.b.*", "seq": 4}, False),
            ({"seq": 1, "batch": 3}, True),
            ({"multi_last": ["dg.>"]}, True),
        ):
            for wire in wires:
                script.frames(f"{body} over a follower", _insist(wire, "DL", body, several))
    finally:
        leader.resume()


def _insist(wire: Wire, stream: str, body: Any, several: bool) -> list[Frame]:
    """Repeat the request until it is answered; return the answers."""
    usual, wire.timeout = wire.timeout, 0.5
    answers: list[list[Frame]] = []

    def answered() -> bool:
        try:
            frames = _ask(wire, stream, body, several=several)
        except WireTimeout:
            return False
        if frames[0].status != 503:
            answers.append(frames)
        return bool(answers)

    until(answered, f"an answer to {body} without the leader", SETTLE_S)
    wire.timeout = usual
    return answers[0]


@breaking
def a_leader_that_is_killed_changes_no_page(script: ClusterScript) -> None:
    """The pages before and after a kill of the leader, requested over the two other nodes, are one snapshot."""
    script.replicated("DK", ["dg.>"], 3, allow_direct=True)
    script.fill([f"dg.{n}" for n in range(20)], b"old")
    _shown_everywhere(script, "DK", 20)
    leader = script.leader("DK")
    wires = [script.at(node.number + 1) for node in script.cluster.followers("DK")]

    def change(page: int) -> None:
        if page == 0:
            script.fill([f"dg.{n}" for n in range(5)], b"new")
        if page == 1:
            leader.kill()
            until(lambda: script.leader("DK") is not leader, "another leader", SETTLE_S)
        if page > 1:
            until(lambda: "seq" in wires[0].request("dg.1", b"newer").json(), "an ack", SETTLE_S)

    script.note("pages", _paged(script, wires, "DK", change))


@breaking
def a_node_that_comes_back_answers_nothing_old(script: ClusterScript) -> None:
    """A restarted node never answers without what was acked in its absence; until then another replica answers."""
    _stage(script, "DB")
    gone = script.cluster.followers("DB")[0]
    gone.kill()
    script.fill(["dg.new"] * 50, b"while it was away")
    gone.start()
    wire = script.at(gone.number + 1)
    seen: set[str] = set()

    def answered() -> bool:
        try:
            frame = wire.request("$JS.API.DIRECT.GET.DB.dg.new", b"", timeout=1.0)
        except WireTimeout:
            return False
        seen.add(frame.headers.get("Nats-Sequence", str(frame.status)))
        return len(seen - {"503"}) > 0

    for _ in range(20):
        until(answered, "an answer", SETTLE_S)
    script.note("answers", sorted(seen - {"503"}))
