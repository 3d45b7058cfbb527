"""Scenarios of configurations of streams with three replicas.

Accepted values, updates, and their visibility on each node. The fields and values are a selection of those that
tests/conformance tries on one server.
"""

from __future__ import annotations

from typing import Any

from tests.cluster.harness import ClusterScript, scenario
from tests.cluster.nodes import until
from tests.wire import Wire

SECOND = 1_000_000_000

Config = dict[str, Any]


def _config(name: str, config: Config) -> Config:
    return {"name": name, "subjects": [name.lower()], "storage": "memory", "num_replicas": 3} | config


def _ask(script: ClusterScript, verb: str, name: str, config: Config) -> Any:
    answer = script.wire.api(f"STREAM.{verb}.{name}", _config(name, config))
    answer.pop("cluster", None)
    script.note(f"{verb} {name} {config}", answer)
    return answer


def _publish(script: ClusterScript, subject: str, wire: Wire) -> None:
    """Publish over a node that may not know the stream's interest yet; then nothing is stored."""
    frame = until(lambda: heard if (heard := wire.request(subject, b"1")).status != 503 else None, subject)
    script.note(f"publish {subject}", script.show(frame))


def _created(script: ClusterScript, configs: list[Config]) -> None:
    """Try each configuration on a stream of its own; publish through another node than the one that created it."""
    for number, config in enumerate(configs):
        name = f"C{number}"
        if "error" in _ask(script, "CREATE", name, config):
            continue
        script.cluster.wait_current(name, 15.0)
        _publish(script, name.lower(), script.at(2))
        info = script.at(3).api(f"STREAM.INFO.{name}")
        script.note(f"{name} known", (info["config"], info["state"]["messages"]))


@scenario
def limits_and_policies(script: ClusterScript) -> None:
    _created(
        script,
        [
            {"max_msgs": 1, "max_bytes": 100, "max_age": 3600 * SECOND, "max_msgs_per_subject": 1, "max_msg_size": 9},
            {"discard": "new", "max_msgs": 1, "discard_new_per_subject": True, "max_msgs_per_subject": 1},
            {"retention": "interest"},
            {"retention": "workqueue", "storage": "file"},
            {"first_seq": 50, "duplicate_window": SECOND},
            {"compression": "s2", "storage": "file", "metadata": {"a": "b"}},
            {"max_age": 1},
            {"max_msgs": 0, "pedantic": True},
        ],
    )


@scenario
def features(script: ClusterScript) -> None:
    _created(
        script,
        [
            {"allow_msg_ttl": True, "allow_rollup_hdrs": True, "allow_direct": True},
            {"subject_delete_marker_ttl": SECOND},
            {"allow_atomic": True, "allow_batched": True},
            {"allow_msg_schedules": True},
            {"subject_transform": {"src": "c4", "dest": "moved"}},
            {"republish": {"src": "c5", "dest": "again"}},
            {"persist_mode": "async", "storage": "file"},
            {"persist_mode": "async", "storage": "memory"},
            {"no_ack": True, "subjects": [">"]},
        ],
    )


@scenario
def updates(script: ClusterScript) -> None:
    script.replicated("U", ["u"], 3)
    script.fill(["u"] * 5)
    for change in (
        {"max_msgs": 3},
        {"subjects": ["u", "v"], "max_msgs": 3},
        {"discard": "new", "max_msgs": 3},
        {"storage": "memory"},
        {"retention": "workqueue"},
        {"persist_mode": "async"},
        {"allow_msg_ttl": True},
        {},
        {"allow_msg_ttl": True, "description": "d"},
        {"allow_msg_ttl": True, "deny_delete": True, "deny_purge": True},
        {"allow_msg_ttl": True, "deny_delete": True},
        {"allow_msg_ttl": True, "deny_delete": True, "deny_purge": True, "sealed": True},
        {"allow_msg_ttl": True, "deny_delete": True, "deny_purge": True},
    ):
        _ask(script, "UPDATE", "U", {"storage": "file"} | change)
    script.cluster.wait_current("U", 15.0)
    script.publish("u", b"sealed", wire=script.at(2))
    info = script.at(3).api("STREAM.INFO.U")
    script.note("known", (info["config"], info["state"]["messages"], info["state"]["last_seq"]))


@scenario
def an_update_survives_its_leader(script: ClusterScript) -> None:
    script.replicated("L", ["l"], 3)
    script.fill(["l"] * 4)
    _ask(script, "UPDATE", "L", {"storage": "file", "max_msgs": 2, "subjects": ["l", "k"]})
    before = script.leader("L").name
    script.cluster.api("STREAM.LEADER.STEPDOWN.L")
    until(lambda: script.leader("L").name != before, "another leader of L")
    _publish(script, "k", script.at(3))
    script.state("L")
    info = script.at(2).api("STREAM.INFO.L")
    script.note("known", info["config"])


@scenario
def events_of_streams_are_told_once(script: ClusterScript) -> None:
    wire = script.connect()
    sid = wire.subscribe("$JS.EVENT.ADVISORY.STREAM.>")
    wire.subscribe("ready")
    script.heard("ready")
    for replicas in (1, 3):
        name = f"E{replicas}"
        script.replicated(name, [name.lower()], replicas, storage="memory")
        script.cluster.api(f"STREAM.CREATE.{name}", _config(name, {"num_replicas": replicas}))
        script.cluster.api(f"STREAM.UPDATE.{name}", _config(name, {"num_replicas": replicas, "max_msgs": 5}))
        script.advisories(wire, sid, ("CREATED", "UPDATED"), 2)
        script.cluster.api(f"STREAM.DELETE.{name}")
        script.advisories(wire, sid, ("DELETED",), 1)
