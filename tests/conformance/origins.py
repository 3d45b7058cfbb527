"""Helpers of the scenarios of mirrors and sources.

Belongs here: waiting until a stream holds what its origins have, and recording it without parts that differ between
runs: times, the identities of origins, and the order in which nats-server lists sources.
"""

from __future__ import annotations

import json
import time
from base64 import b64decode
from collections.abc import Callable, Sequence
from typing import Any

from tests.conformance.harness import Script
from tests.wire import Headers

WAIT_S = 40.0
"""Timeout of copying.

A session with an origin starts after 0.1 to 0.2 s; after a failure nats-server waits more than 12 s, and it may need 20
s to detect that an origin is gone.
"""

SOURCE = "Nats-Stream-Source"


def ask(t: Script, subject: str, body: Any = None, label: str = "") -> Any:
    """Send an API request; record the answer with its sources sorted."""
    answer = t.wire.api(subject, body)
    t.note(label or f"{subject} {json.dumps(body)}", ordered(answer))
    return answer


def ordered(info: dict[str, Any]) -> dict[str, Any]:
    """Return StreamInfo with its sources sorted."""
    if isinstance(info.get("sources"), list):
        return {**info, "sources": sorted(info["sources"], key=lambda each: json.dumps(_lasting(each), sort_keys=True))}
    return info


def _lasting(source: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in source.items() if name not in ("lag", "seq", "active", "error")}


def info_when(t: Script, stream: str, ready: Callable[[Any], bool]) -> Any:
    """Return StreamInfo once `ready` is true for it, without recording it."""
    deadline = time.monotonic() + WAIT_S
    while not ready(info := t.wire.api(f"STREAM.INFO.{stream}", {"deleted_details": True})):
        assert time.monotonic() < deadline, f"{stream} never became what was expected: {json.dumps(info)}"
        time.sleep(0.01)
    return info


def connected(t: Script, *streams: str) -> None:
    """Wait until each stream has a consumer at all its origins."""
    for stream in streams:
        info_when(t, stream, lambda info: all(each["active"] >= 0 for each in origins(info)))


def came(t: Script, stream: str, last: int) -> None:
    """Wait until the stream's last sequence is `last`."""
    info_when(t, stream, lambda info: info["state"]["last_seq"] == last)


def origins(info: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the origins in StreamInfo."""
    return [info["mirror"]] if "mirror" in info else list(info.get("sources", []))


def shown(t: Script, stream: str, label: str = "") -> None:
    """Record the present state and origins of a stream."""
    info = ordered(t.wire.api(f"STREAM.INFO.{stream}", {"deleted_details": True}))
    state = info.get("state", info)
    if not state.get("messages"):
        # nats-server reports sequence 0 as deleted in a stream without any message.
        state = {name: value for name, value in state.items() if name not in ("deleted", "num_deleted")}
    t.note(label or f"{stream} is", {"state": state, "origins": [_settled(each) for each in origins(info)]})


def _settled(origin: dict[str, Any]) -> dict[str, Any]:
    """Return an origin's info without the exact time of its last activity."""
    return {**origin, "active": "never" if origin["active"] < 0 else "heard"}


def holds(t: Script, stream: str, last: int, label: str = "") -> None:
    """Wait until the stream's last sequence is `last`; record its messages, state and origins."""
    info = info_when(t, stream, lambda info: info["state"]["last_seq"] >= last and not _lagging(info))
    messages(t, stream, info, label)
    shown(t, stream, f"{stream} {label} is")


def _lagging(info: dict[str, Any]) -> bool:
    return any(each["lag"] or each["active"] < 0 for each in origins(info))


def messages(t: Script, stream: str, info: dict[str, Any] | None = None, label: str = "") -> None:
    """Record every message of a stream."""
    info = info or t.wire.api(f"STREAM.INFO.{stream}")
    found = []
    for seq in range(max(1, info["state"]["first_seq"]), info["state"]["last_seq"] + 1):
        answer = t.wire.api(f"STREAM.MSG.GET.{stream}", {"seq": seq})
        if "error" not in answer:
            found.append(_message(t, answer["message"]))
    t.note(f"messages of {stream} {label}", found)


def _message(t: Script, message: dict[str, Any]) -> dict[str, Any]:
    header = b64decode(message.get("hdrs", "")).decode()
    for line in header.split("\r\n"):
        if line.startswith(f"{SOURCE}: ") and len(words := line.split(" ")) == 7:
            hide_identity(t, words[6])
    return {
        "seq": message["seq"],
        "subject": message["subject"],
        "header": header,
        "data": b64decode(message.get("data", "")),
    }


def hide_identity(t: Script, identity: str) -> None:
    """Replace the identity of an origin by the number of its first appearance in the transcript."""
    known = t.__dict__.setdefault("identities", [])
    if identity not in known:
        known.append(identity)
        t.hide(f" {identity}\r\n", f" <identity {len(known)}>\r\n")


def times(t: Script, stream: str) -> dict[int, str]:
    """Return the store times of the messages of a stream, by sequence."""
    state = t.wire.api(f"STREAM.INFO.{stream}")["state"]
    answers = {
        seq: t.wire.api(f"STREAM.MSG.GET.{stream}", {"seq": seq})
        for seq in range(max(1, state["first_seq"]), state["last_seq"] + 1)
    }
    return {seq: answer["message"]["time"] for seq, answer in answers.items() if "message" in answer}


def publish(t: Script, subjects: Sequence[str], data: bytes | None = None, headers: Headers = None) -> None:
    """Publish as preparation; bodies are the subjects unless `data` is given."""
    for subject in subjects:
        answer = t.wire.request(subject, subject.encode() if data is None else data, headers).json()
        assert "error" not in answer, answer


def retention_scene(t: Script, policy: str, name: str, **copies: Any) -> None:
    """Create an origin `O` with this retention and a stream `name` that copies it.

    Record the copy's consumer on the origin.
    """
    t.stream("O", ["o.*"], retention=policy)
    if policy == "interest":
        t.consumer("O", "keep")
    publish(t, ["o.1", "o.2"])
    t.stream(name, **copies)
    holds(t, name, 2)
    seen = [each for each in t.wire.api("CONSUMER.NAMES.O")["consumers"] or [] if each != "keep"]
    t.note("consumers that are seen", [each.rpartition("_")[0] for each in seen])
    for each in seen:
        t.hide(each, "<consumer>")
        info = t.wire.api(f"CONSUMER.INFO.O.{each}")
        t.hide(info["config"]["deliver_subject"], "<deliver>")
        t.note("as", info["config"])
    if policy == "workqueue":
        t.state_when("O", lambda state: state["messages"] == 0)
    publish(t, ["o.3"])
    holds(t, name, 3, "then")
    t.setup(f"STREAM.DELETE.{name}")
    if seen:
        info_when(t, "O", lambda info: info["state"]["consumer_count"] == (policy == "interest"))
        t.api("CONSUMER.NAMES.O")
