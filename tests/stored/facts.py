"""Everything that clients can read from a server about its streams, in a form that can be recorded and compared.

Values that change by themselves (times of requests, activity) are left out.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import Iterable
from typing import Any

import nats
from nats.js.errors import KeyNotFoundError

from tests.chaos.audit import read_all
from tests.wire import Wire

SHOWN_BYTES = 64
"""Longer payloads are recorded by length and digest."""
WINDOW = 200


def known(wire: Wire, without: Iterable[str] = ()) -> dict[str, Any]:
    """Return the info, messages and consumers of each stream."""
    found = {}
    for name in sorted(set(names(wire)) - set(without)):
        info = asked(wire, f"STREAM.INFO.{name}", {"subjects_filter": ">", "deleted_details": True})
        found[name] = {
            "info": stream_facts(info),
            "messages": messages(wire, name, info),
            "consumers": {each["name"]: consumer_facts(each) for each in consumers(wire, name)},
        }
        if name.startswith(("KV_", "OBJ_")):  # clients create consumers to read buckets, and leave them behind
            found[name]["consumers"].clear()
            del found[name]["info"]["state"]["consumer_count"]
    return found


def asked(wire: Wire, subject: str, body: Any = None) -> Any:
    """Return the answer to an API request; an error fails the test."""
    answer = wire.api(subject, body, 30.0)
    assert "error" not in answer, (subject, answer)
    return answer


def names(wire: Wire) -> list[str]:
    """Return the names of all streams."""
    return list(asked(wire, "STREAM.NAMES")["streams"] or ())


def consumers(wire: Wire, stream: str) -> list[dict[str, Any]]:
    """Return the info of all consumers of a stream."""
    return list(asked(wire, f"CONSUMER.LIST.{stream}")["consumers"])


def stream_facts(info: dict[str, Any]) -> dict[str, Any]:
    """Return a stream's info without fields that change by themselves."""
    facts = {key: value for key, value in info.items() if key not in ("ts", "cluster", "type")}
    if "mirror" in facts:
        facts["mirror"] = _origin(facts["mirror"])
    if "sources" in facts:
        facts["sources"] = sorted(map(_origin, facts["sources"]), key=json.dumps)
    return facts


def _origin(origin: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in origin.items() if key not in ("active", "lag", "error")}


def consumer_facts(info: dict[str, Any]) -> dict[str, Any]:
    """Return a consumer's info without fields that change by themselves."""
    changing = ("ts", "cluster", "type", "num_waiting", "push_bound", "pause_remaining", "priority_groups")
    facts = {key: value for key, value in info.items() if key not in changing}
    for place in ("delivered", "ack_floor"):
        facts[place] = {key: value for key, value in info[place].items() if key != "last_active"}
    return facts


def messages(wire: Wire, stream: str, info: dict[str, Any]) -> list[list[Any]]:
    """Return every message of a stream: sequence, time, subject, header block, payload."""
    state = info["state"]
    wanted = sorted(set(range(state["first_seq"], state["last_seq"] + 1)) - set(state.get("deleted") or ()))
    found: list[list[Any]] = []
    for at in range(0, len(wanted), WINDOW):
        replies = {seq: wire.new_reply() for seq in wanted[at : at + WINDOW]}
        for seq, reply in replies.items():
            wire.publish(f"$JS.API.STREAM.MSG.GET.{stream}", b'{"seq":%d}' % seq, reply)
        for seq, reply in replies.items():
            answer = wire.message(reply, 30.0).json()
            assert "error" not in answer, (stream, seq, answer)
            found.append(_message(answer["message"]))
    assert len(found) == state["messages"], stream
    if info["config"]["allow_direct"]:
        direct = [(each.seq, each.subject, _payload(each.data)) for each in read_all(wire, stream)]
        assert direct == [(seq, subject, data) for seq, _, subject, _, data in found], stream
    return found


def _message(message: dict[str, Any]) -> list[Any]:
    header = base64.b64decode(message.get("hdrs", "")).decode("latin-1")
    data = base64.b64decode(message.get("data", ""))
    return [message["seq"], message["time"], message["subject"], header, _payload(data)]


def _payload(data: bytes) -> str:
    if len(data) <= SHOWN_BYTES:
        return data.decode("latin-1")
    return f"{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}"


def buckets(url: str, key_values: Iterable[str], object_stores: Iterable[str], **login: str) -> dict[str, Any]:
    """Return what nats-py finds in buckets: values and histories of keys, objects and their digests."""
    return asyncio.run(_buckets(url, key_values, object_stores, login))


async def _buckets(
    url: str, key_values: Iterable[str], object_stores: Iterable[str], login: dict[str, str]
) -> dict[str, Any]:
    client = await nats.connect(url, **login)  # type: ignore[arg-type]
    js = client.jetstream(timeout=20)
    found: dict[str, Any] = {}
    for name in key_values:
        bucket = await js.key_value(name)
        for key in sorted({entry.key for entry in await _stored(await bucket.watchall(include_history=True))}):
            history = [[each.revision, each.operation, _text(each.value)] for each in await bucket.history(key)]
            try:
                value: str | None = _text((await bucket.get(key)).value)
            except KeyNotFoundError:
                value = None
            found[f"{name}/{key}"] = [value, history]
    for name in object_stores:
        store = await js.object_store(name)
        for entry in await store.list(ignore_deletes=True):
            data = (await store.get(entry.name)).data or b""
            digest = hashlib.sha256(data).hexdigest()
            assert entry.size == len(data)
            found[f"{name}/{entry.name}"] = [entry.size, entry.chunks, entry.digest, digest, entry.headers]
    await client.close()
    return found


async def _stored(watcher: Any) -> list[Any]:
    """Return the entries of a watcher that were stored before it began."""
    entries = []
    while (entry := await watcher.updates(10)) is not None:
        entries.append(entry)
    await watcher.stop()
    return entries


def _text(value: bytes | None) -> str:
    return (value or b"").decode("latin-1")
