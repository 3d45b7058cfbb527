"""Scenarios of consumers of replicated streams, reached over any node."""

from __future__ import annotations

from typing import Any

from tests.cluster.harness import SETTLE_S, ClusterScript, scenario
from tests.cluster.nodes import until

SECOND = 1_000_000_000


def _create(script: ClusterScript, stream: str, name: str, at: int = 1, **config: Any) -> Any:
    body = {"stream_name": stream, "config": {"name": name, "durable_name": name, "ack_policy": "explicit", **config}}
    answer = script.at(at).api(f"CONSUMER.CREATE.{stream}.{name}", body)
    answer.pop("cluster", None)  # chosen by placement; see `clusters_of_consumers`
    script.note(f"create {name} {config}", answer)
    return answer


@scenario
def creating_consumers(script: ClusterScript) -> None:
    script.replicated("CC", ["cc"], 3)
    script.replicated("C1", ["c1"], 1)
    for number, replicas in enumerate((0, 1, 2, 3, 5, -1)):
        _create(script, "CC", f"r{replicas}", number % 3 + 1, num_replicas=replicas)
    _create(script, "CC", "memory", 2, mem_storage=True)
    _create(script, "C1", "three", 2, num_replicas=3)
    _create(script, "C1", "one", 3)
    _create(script, "CC", "r0", 2, ack_wait=SECOND)
    _create(script, "MISSING", "c", 2)
    names = script.cluster.api("CONSUMER.NAMES.CC")["consumers"]
    script.known_everywhere(lambda wire: wire.api("CONSUMER.NAMES.CC").get("consumers"), names)
    for number in (1, 2, 3):
        wire = script.at(number)
        script.api("CONSUMER.NAMES.CC", wire=wire)
        script.api("CONSUMER.NAMES.MISSING", wire=wire)
        script.api("CONSUMER.INFO.CC.missing", wire=wire)
        script.api("CONSUMER.INFO.MISSING.missing", wire=wire)
        script.api("CONSUMER.DELETE.CC.missing", wire=wire)
        answer = wire.api("CONSUMER.LIST.CC")
        listed = sorted(entry["name"] for entry in answer.pop("consumers"))
        script.note("CONSUMER.LIST", answer | {"names": listed})
    script.api("CONSUMER.DELETE.CC.r1", wire=script.at(3))
    script.known_everywhere(lambda wire: "r1" in wire.api("CONSUMER.NAMES.CC")["consumers"], False)


@scenario
def clusters_of_consumers(script: ClusterScript) -> None:
    script.replicated("CL", ["cl"], 3)
    script.replicated("CA", ["ca"], 1)
    script.replicated("CI", ["ci"], 3, retention="interest")
    ephemeral = {"durable_name": "", "inactive_threshold": 60 * SECOND}
    for stream, name, config in (
        ("CL", "all", {}),
        *(("CL", f"r{replicas}", {"num_replicas": replicas}) for replicas in (1, 2, 3)),
        ("CL", "passing", ephemeral),
        ("CI", "kept", {}),
        ("CI", "interested", ephemeral),
        ("CA", "only", {}),
        ("CA", "briefly", ephemeral),
    ):
        _create(script, stream, name, **config)

        def whole(stream: str = stream, name: str = name) -> Any:
            cluster = script.cluster.api(f"CONSUMER.INFO.{stream}.{name}")["cluster"]
            return cluster.get("leader") and all(r["current"] for r in cluster.get("replicas") or ()) and cluster

        script.note(f"cluster of {name}", until(whole, "a whole consumer", SETTLE_S))


@scenario
def pulling_over_any_node(script: ClusterScript) -> None:
    script.replicated("PL", ["pl"], 3)
    script.consumer("PL", "c")
    script.heard_consumer("PL", "c")
    script.fill_seen("PL", "c", ["pl"] * 9)
    for number in (1, 2, 3):
        for frame in script.pull("PL", "c", {"batch": 2, "no_wait": True}, 2, wire=script.at(number)):
            script.ack(frame, wire=script.at(number % 3 + 1))
    script.pull("PL", "c", {"batch": 9, "no_wait": True}, 4, wire=script.at(2))
    script.numbers_when("PL", "c", lambda info: info["ack_floor"]["stream_seq"] == 6)


@scenario
def waiting_pulls_are_filled_over_any_node(script: ClusterScript) -> None:
    script.replicated("WP", ["wp"], 3)
    script.consumer("WP", "c")
    script.heard_consumer("WP", "c")
    for number in (1, 2, 3):
        wire = script.at(number)
        wire.publish("$JS.API.CONSUMER.MSG.NEXT.WP.c", b'{"batch":1,"expires":5000000000}', wire.new_reply())
        wire.ping()
    until(lambda: script.cluster.api("CONSUMER.INFO.WP.c")["num_waiting"] == 3, "three waiting pulls", SETTLE_S)
    script.fill(["wp"] * 3)
    got = [script.at(number).next() for number in (1, 2, 3)]
    script.note("messages", sorted(frame.data for frame in got))


@scenario
def push_consumers_deliver_to_any_node(script: ClusterScript) -> None:
    script.replicated("PU", ["pu"], 3)
    for number in (1, 2, 3):
        wire = script.at(number)
        sid = wire.subscribe(f"deliver.{number}")
        script.heard(f"deliver.{number}")
        wire.ping()
        wire.waiting.clear()
        answer = _create(script, "PU", f"p{number}", number, deliver_subject=f"deliver.{number}")
        assert "error" not in answer, answer
        script.fill(["pu"])
        script.frames(f"delivered at {number}", [wire.delivered(sid) for _ in range(number)])


def _another_leader(script: ClusterScript, stream: str) -> None:
    before = script.leader(stream)
    script.cluster.wait_current(stream)
    script.api(f"STREAM.LEADER.STEPDOWN.{stream}")
    until(lambda: script.leader(stream) is not before, "another leader", SETTLE_S)


@scenario
def a_durable_consumer_in_memory_goes_on_under_another_leader(script: ClusterScript) -> None:
    script.replicated("DM", ["dm"], 3)
    _create(script, "DM", "c", 2, mem_storage=True)
    script.heard_consumer("DM", "c")
    script.fill_seen("DM", "c", ["dm"] * 6)
    for frame in script.pull("DM", "c", {"batch": 4, "no_wait": True}, 4)[:3]:
        script.ack(frame)
    script.numbers_when("DM", "c", lambda info: info["ack_floor"]["stream_seq"] == 3)
    _another_leader(script, "DM")
    script.numbers_when("DM", "c", lambda info: info["delivered"]["stream_seq"] == 4)
    script.heard_consumer("DM", "c")
    script.pull("DM", "c", {"batch": 9, "no_wait": True}, 2)


@scenario
def a_consumer_in_memory_grows_with_its_stream(script: ClusterScript) -> None:
    script.replicated("GM", ["gm"], 1)
    _create(script, "GM", "c", 2, mem_storage=True)
    script.heard_consumer("GM", "c")
    script.fill_seen("GM", "c", ["gm"] * 4)
    for frame in script.pull("GM", "c", {"batch": 3, "no_wait": True}, 3)[:2]:
        script.ack(frame)
    script.numbers_when("GM", "c", lambda info: info["ack_floor"]["stream_seq"] == 2)
    script.cluster.api("STREAM.UPDATE.GM", {"name": "GM", "subjects": ["gm"], "num_replicas": 3})
    script.wait_replicas("GM", 3)
    _another_leader(script, "GM")
    script.numbers_when("GM", "c", lambda info: info["delivered"]["stream_seq"] == 3)
    script.heard_consumer("GM", "c")
    script.pull("GM", "c", {"batch": 9, "no_wait": True}, 1)


@scenario
def a_watcher_in_memory_goes_on_under_another_leader(script: ClusterScript) -> None:
    script.replicated("WM", ["wm.*"], 3)
    wire = script.at(1)
    sid = wire.subscribe("watch.me")
    script.heard("watch.me")
    wire.ping()
    wire.waiting.clear()
    script.fill(["wm.1", "wm.2", "wm.1"])
    config = {
        "deliver_subject": "watch.me",
        "deliver_policy": "last_per_subject",
        "filter_subject": "wm.*",
        "ack_policy": "none",
        "max_deliver": 1,
        "mem_storage": True,
        "num_replicas": 1,
    }
    answer = wire.api("CONSUMER.CREATE.WM.w", {"stream_name": "WM", "config": {"name": "w", **config}})
    assert "error" not in answer, answer
    script.frames("what there is", [wire.delivered(sid) for _ in range(2)])
    _another_leader(script, "WM")
    script.fill(["wm.2", "wm.3"])
    script.frames("what comes", [wire.delivered(sid) for _ in range(2)])


@scenario
def an_ordered_reader_over_a_follower(script: ClusterScript) -> None:
    script.replicated("OR", ["or.>"], 3)
    script.fill([f"or.{n % 3}" for n in range(9)])
    follower = script.cluster.followers("OR")[0].number + 1
    wire = script.at(follower)
    # any replica may answer; a follower learns of a commit a moment after the ack
    until(lambda: all(len(_batch(wire, "OR")) == 10 for _ in range(5)), "nine messages everywhere", SETTLE_S)
    script.note("batch", [(frame.status, frame.data) for frame in _batch(wire, "OR")])


def _batch(wire: Any, stream: str) -> list[Any]:
    reply = wire.new_reply()
    wire.publish(f"$JS.API.DIRECT.GET.{stream}", b'{"seq":1,"batch":100}', reply)
    frames = [wire.message(reply)]
    while not frames[-1].status:
        frames.append(wire.message(reply))
    return frames
