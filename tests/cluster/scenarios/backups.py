"""Scenarios of snapshots and restores of replicated streams."""

from __future__ import annotations

import json
from typing import Any

from lakestream.protocol import s2
from tests.cluster.harness import ClusterScript, breaking, scenario
from tests.cluster.nodes import until
from tests.conformance.scenarios.backups import DURABLE, FOUR, HALFWAY, consumer, packed, raw, shown, state, stream
from tests.wire import Wire

SECOND = 1_000_000_000


def restore(wire: Wire, data: bytes, config: dict[str, Any], saved: Any) -> Any:
    """Restore a stream through one node; return the outcome."""
    answer = wire.api(f"STREAM.RESTORE.{config['name']}", {"config": config, "state": saved})
    if "error" in answer:
        return answer
    ack = wire.request(answer["deliver_subject"], data)
    assert not ack.data, ack
    return wire.request(answer["deliver_subject"]).json()


def snapshot(wire: Wire, name: str) -> tuple[Any, bytes]:
    """Take a snapshot through one node; return the answer and the data."""
    sid = wire.subscribe("BACKUP.here")
    answer = wire.api(f"STREAM.SNAPSHOT.{name}", {"deliver_subject": "BACKUP.here"})
    data = b""
    while (frame := wire.delivered(sid)).data:
        data += frame.data
        if frame.reply:
            wire.publish(frame.reply)
    wire.unsubscribe(sid)
    return answer, data


def progress(script: ClusterScript) -> None:
    """Record the progress of the restored consumer; nats-server does not always count its pending messages."""

    def told() -> Any:
        return script.wire.api("CONSUMER.INFO.R.C")

    # On a busy machine nats-server's consumer sometimes answers before its state is restored.
    until(lambda: told().get("delivered", {}).get("consumer_seq", 0), "the restored consumer to have its state")
    info = told()
    script.note("progress", {key: info.get(key) for key in ("delivered", "ack_floor", "num_ack_pending", "error")})


ARCHIVE = packed(
    raw(state(1, 4, 4, 1), [consumer("C", {"config": {**DURABLE, "ack_wait": 3600 * SECOND}, "state": HALFWAY}), *FOUR])
)


@scenario
def a_restored_stream_is_everywhere(script: ClusterScript) -> None:
    outcome = restore(script.at(2), ARCHIVE, stream(num_replicas=3), state(1, 4, 4, 1))
    script.note("outcome", {key: outcome.get(key) for key in ("type", "config", "state", "error")})
    script.settled("R")
    for number in (1, 2, 3):
        info = script.at(number).api("STREAM.INFO.R", {"deleted_details": True})
        script.note("info", {key: info.get(key) for key in ("config", "state", "error")})
        script.note("message", script.at(number).api("STREAM.MSG.GET.R", {"seq": 3}))
    progress(script)
    script.publish("r.9", b"more")
    script.api("STREAM.RESTORE.R", {"config": stream(), "state": state()})
    script.note("names", script.at(3).api("STREAM.NAMES"))


@scenario
def what_can_not_be_restored(script: ClusterScript) -> None:
    script.replicated("T", ["t.*"], 3)
    overlapping = stream(name="O", subjects=["t.1"])
    script.note("overlapping", "error" in restore(script.at(3), ARCHIVE, overlapping, state(1, 4, 4, 1)))
    many = stream(name="M", subjects=["m"], num_replicas=5)
    script.note("too many replicas", "error" in restore(script.at(2), ARCHIVE, many, state(1, 4, 4, 1)))
    script.note("no archive", restore(script.at(1), b"no good", stream(num_replicas=3), state()))
    script.note("exists", restore(script.at(2), ARCHIVE, stream(name="T"), state()))


@scenario
def a_snapshot_comes_through_any_node(script: ClusterScript) -> None:
    script.replicated("S", ["s.*"], 3)
    script.fill(["s.1", "s.2", "s.3"])
    script.cluster.api("STREAM.MSG.DELETE.S", {"seq": 2})
    script.cluster.wait_current("S", 15.0)
    for number in (1, 2, 3):
        answer, data = snapshot(script.at(number), "S")
        script.note("answer", answer.get("state"))
        script.note("entries", list(shown(b"".join(s2.Decoder().feed(data)))))
    script.cluster.api("STREAM.DELETE.S")
    outcome = restore(script.at(2), data, answer["config"], answer["state"])
    script.note("outcome", outcome.get("state"))
    script.settled("S")
    script.note("state", script.at(3).api("STREAM.INFO.S", {"deleted_details": True})["state"])


@breaking
def a_restored_stream_outlives_its_leader(script: ClusterScript) -> None:
    restore(script.at(1), ARCHIVE, stream(num_replicas=3), state(1, 4, 4, 1))
    script.cluster.wait_current("R", 15.0)
    script.leader("R").kill()
    script.leader("R")
    info = script.api("STREAM.INFO.R", json.loads('{"deleted_details":true}'))
    assert info["state"]["messages"] == 4
    script.publish("r.9", b"more")
