"""Scenarios of replicated mirrors and sources across leader changes."""

from __future__ import annotations

import json
from typing import Any

from tests.cluster.harness import SETTLE_S, ClusterScript, scenario
from tests.cluster.nodes import until
from tests.conformance.origins import came, connected, holds, info_when, messages, origins, publish, times
from tests.conformance.scenarios.mirror_config import mapped


def _made(script: ClusterScript, name: str, replicas: int = 3, **config: Any) -> None:
    """Create a stream as preparation; return once all replicas exist."""
    script.setup(f"STREAM.CREATE.{name}", {"name": name, "num_replicas": replicas, **config})
    script.cluster.wait_current(name, SETTLE_S)


def _another_leader(script: ClusterScript, stream: str) -> None:
    before = script.leader(stream)
    script.setup(f"STREAM.LEADER.STEPDOWN.{stream}")
    until(lambda: script.leader(stream) is not before, f"another leader of {stream}", SETTLE_S)
    script.cluster.wait_current(stream, SETTLE_S)


@scenario
def a_mirror_with_replicas(script: ClusterScript) -> None:
    _made(script, "O", subjects=["o.*"])
    publish(script, ["o.1", "o.2", "o.3"])
    script.setup("STREAM.MSG.DELETE.O", {"seq": 2})
    _made(script, "M", mirror={"name": "O"})
    holds(script, "M", 3)
    publish(script, ["o.4"])
    holds(script, "M", 4, "then")
    there, here = times(script, "O"), times(script, "M")
    script.note("times are the origin's", all(there[seq] == at for seq, at in here.items()))
    script.settled("M")


@scenario
def numbers_of_replicas_differ(script: ClusterScript) -> None:
    _made(script, "O", 1, subjects=["o.*"])
    _made(script, "M", 3, mirror={"name": "O", "filter_subject": "o.1"})
    _made(script, "N", 1, mirror={"name": "M", "subject_transforms": mapped(("o.*", "n.$1"))})
    connected(script, "M", "N")
    publish(script, ["o.1", "o.2", "o.1"])
    holds(script, "M", 3)
    holds(script, "N", 3)


@scenario
def leaders_of_a_mirror_and_its_origin_step_down(script: ClusterScript) -> None:
    _made(script, "O", subjects=["o.*"])
    _made(script, "M", mirror={"name": "O"})
    connected(script, "M")
    publish(script, ["o.1", "o.2"])
    came(script, "M", 2)
    _another_leader(script, "M")
    publish(script, ["o.3"])
    came(script, "M", 3)
    _another_leader(script, "O")
    publish(script, ["o.4"])
    holds(script, "M", 4)


@scenario
def leaders_of_a_stream_and_its_source_step_down(script: ClusterScript) -> None:
    _made(script, "O", subjects=["o.*"])
    _made(script, "S", subjects=["s.*"], sources=[{"name": "O", "subject_transforms": mapped(("o.*", "x.$1"))}])
    connected(script, "S")
    publish(script, ["o.1", "o.2", "s.1"])
    info_when(script, "S", lambda info: info["state"]["messages"] == 3)
    _another_leader(script, "S")
    publish(script, ["o.3"])
    came(script, "S", 4)
    _another_leader(script, "O")
    publish(script, ["o.4", "o.5"])
    info_when(script, "S", lambda info: info["state"]["last_seq"] >= 6)
    script.note("of the source", origins(script.wire.api("STREAM.INFO.S"))[0]["seq"])
    subjects = [script.wire.api("STREAM.MSG.GET.S", {"seq": seq})["message"]["subject"] for seq in range(1, 7)]
    script.note("each once", sorted(subjects))


@scenario
def purged_and_led_by_another_it_goes_on(script: ClusterScript) -> None:
    _made(script, "O", subjects=["o.*"])
    _made(script, "S", sources=[{"name": "O"}])
    connected(script, "S")
    publish(script, ["o.1", "o.2", "o.3"])
    came(script, "S", 3)
    script.setup("STREAM.PURGE.S")
    _another_leader(script, "S")
    publish(script, ["o.4"])
    came(script, "S", 4)
    messages(script, "S")


@scenario
def a_work_queue_as_origin(script: ClusterScript) -> None:
    _made(script, "O", subjects=["o.*"], retention="workqueue")
    _made(script, "S", sources=[{"name": "O"}])
    connected(script, "S")
    publish(script, ["o.1", "o.2"])
    holds(script, "S", 2)
    script.state_when("O", lambda state: state["messages"] == 0)
    _another_leader(script, "S")
    publish(script, ["o.3"])
    came(script, "S", 3)
    script.state_when("O", lambda state: state["messages"] == 0)


@scenario
def direct_gets_of_the_origin_are_answered(script: ClusterScript) -> None:
    _made(script, "O", subjects=["o.*"], allow_direct=True)
    publish(script, ["o.1", "o.2"])
    _made(script, "M", mirror={"name": "O"})
    came(script, "M", 2)
    for number in (1, 2, 3):
        wire, body = script.at(number), json.dumps({"seq": 2}).encode()
        who: set[str] = set()

        def asked(wire: Any = wire, body: bytes = body, who: set[str] = who) -> bool:
            frame = wire.request("$JS.API.DIRECT.GET.O", body)
            assert frame.data == b"o.2", frame
            who.add(frame.headers["Nats-Stream"])
            return len(who) == 2

        until(asked, "an answer of each", SETTLE_S)
        script.note(f"answered n{number}", sorted(who))


@scenario
def every_replica_of_a_mirror_answers_for_its_origin(script: ClusterScript) -> None:
    _made(script, "EO", 1, subjects=["eo.*"], allow_direct=True)
    publish(script, ["eo.1", "eo.2"])
    _made(script, "EM", mirror={"name": "EO"})
    came(script, "EM", 2)

    def listening() -> int:
        """Count subscriptions over all nodes; a node with replicas of both streams counts twice."""
        pages = [node.page("subsz?subs=1&limit=10000")["subscriptions_list"] for node in script.cluster.nodes]
        return sum(sub["subject"] == "$JS.API.DIRECT.GET.EO" for page in pages for sub in page)

    until(lambda: listening() == 4, "all of them", SETTLE_S)
    _another_leader(script, "EM")
    until(lambda: listening() == 4, "all of them under another leader", SETTLE_S)
    script.setup("STREAM.DELETE.EM")
    until(lambda: listening() == 1, "only the origin", SETTLE_S)
    script.note("answered", [script.at(number).request("$JS.API.DIRECT.GET.EO.eo.2").data for number in (1, 2, 3)])


@scenario
def promotion(script: ClusterScript) -> None:
    _made(script, "O", subjects=["o.*"])
    _made(script, "M", mirror={"name": "O"})
    connected(script, "M")
    publish(script, ["o.1", "o.2"])
    came(script, "M", 2)
    script.api("STREAM.DELETE.O")
    script.setup("STREAM.UPDATE.M", {"name": "M", "num_replicas": 3, "subjects": ["o.*"]})
    script.heard("o.3")
    info = script.wire.api("STREAM.INFO.M")
    script.note("config", info["config"])
    _another_leader(script, "M")
    script.note("shows no mirror", "mirror" not in script.wire.api("STREAM.INFO.M"))
    script.wire.request("o.3", b"own")
    script.note("subjects", script.wire.api("STREAM.INFO.M", {"subjects_filter": ">"})["state"]["subjects"])


@scenario
def a_source_is_added_and_removed(script: ClusterScript) -> None:
    for name in "OP":
        _made(script, name, subjects=[f"{name.lower()}.*"])
    _made(script, "S", sources=[{"name": "O"}])
    connected(script, "S")
    publish(script, ["o.1", "p.1"])
    came(script, "S", 1)
    script.setup("STREAM.UPDATE.S", {"name": "S", "num_replicas": 3, "sources": [{"name": "O"}, {"name": "P"}]})
    came(script, "S", 2)
    script.setup("STREAM.UPDATE.S", {"name": "S", "num_replicas": 3, "sources": [{"name": "P"}]})
    _another_leader(script, "S")
    connected(script, "S")
    publish(script, ["o.2", "p.2"])
    came(script, "S", 3)
    messages(script, "S")


@scenario
def counters(script: ClusterScript) -> None:
    for name in "AB":
        _made(script, name, subjects=[f"{name.lower()}.*"], allow_msg_counter=True)
    sources = [{"name": name, "subject_transforms": mapped((f"{name.lower()}.*", "t.$1"))} for name in "AB"]
    _made(script, "T", subjects=["t.*"], allow_msg_counter=True, sources=sources)
    connected(script, "T")
    for last, (subject, delta) in enumerate([("a.x", "5"), ("b.x", "10"), ("t.x", "100"), ("a.x", "-7")], 1):
        publish(script, [subject], b"", {"Nats-Incr": delta})
        came(script, "T", last)
    _another_leader(script, "T")
    publish(script, ["b.x"], b"", {"Nats-Incr": "1"})
    holds(script, "T", 5)


@scenario
def what_is_refused(script: ClusterScript) -> None:
    _made(script, "O", 1, subjects=["o.*"], max_msg_size=100)
    configs: list[dict[str, Any]] = [
        {"mirror": {"name": "O"}, "max_msg_size": 50},
        {"mirror": {"name": "R2"}},
        {"mirror": {"name": "O"}, "subjects": ["x"]},
        {"sources": [{"name": "O"}], "max_msg_size": 50},
        {"sources": [{"name": "O"}, {"name": "O"}]},
        {"sources": [{"name": "O"}], "subjects": ["o.1"]},
        {"mirror": {"name": "O", "external": {"api": "$JS.API"}}},
        {"mirror": {"name": "O", "subject_transforms": mapped(("o.*", "x.$2"))}},
    ]
    for number, config in enumerate(configs):
        answer = script.wire.api(f"STREAM.CREATE.R{number}", {"name": f"R{number}", "num_replicas": 3, **config})
        script.note(f"{config}", answer.get("error", "made"))


@scenario
def alternates(script: ClusterScript) -> None:
    """StreamInfo lists mirrors as alternates."""
    _made(script, "O", 1, subjects=["o.*"])
    script.note("of a stream alone", sorted(script.wire.api("STREAM.INFO.O")))
    _made(script, "N", 1, mirror={"name": "O"})
    _made(script, "M", 3, mirror={"name": "O", "filter_subject": "o.1"})
    _made(script, "P", 1, mirror={"name": "O", "subject_transforms": mapped(("o.*", "p.$1"))})
    _made(script, "MM", 1, mirror={"name": "M"})
    _made(script, "X", 1, mirror={"name": "O", "external": {"api": "elsewhere"}})
    _made(script, "S", 1, sources=[{"name": "O"}])
    script.known_everywhere(lambda wire: len(wire.api("STREAM.NAMES")["streams"]), 7)
    for name in ("O", "N", "M", "P", "MM", "X", "S"):
        info = script.wire.api(f"STREAM.INFO.{name}")
        found = info.get("alternates")
        script.note(f"of {name}", found and sorted(map(json.dumps, found)))  # in undefined order
    listed = script.wire.api("STREAM.LIST")["streams"]
    script.note("in a list", ["alternates" in each for each in listed])
    script.setup("STREAM.UPDATE.N", {"name": "N", "subjects": ["n"]})
    until(lambda: len(script.wire.api("STREAM.INFO.O")["alternates"]) == 4, "one mirror fewer", SETTLE_S)
    script.note("one fewer", sorted(map(json.dumps, script.wire.api("STREAM.INFO.O")["alternates"])))
