"""Scenarios of object stores as clients create and use them, on the wire (docs/internals/kv-object.md; ADR-20)."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from tests.conformance.harness import Script, scenario, table
from tests.conformance.scenarios.counters import content
from tests.conformance.scenarios.kv import WATCH
from tests.wire import Frame, Wire, pub

SECOND = 1_000_000_000
ROLLUP = {"Nats-Rollup": "sub"}
CHUNK = 1000

GO = {
    "name": "OBJ_s",
    "description": "",
    "subjects": ["$O.s.C.>", "$O.s.M.>"],
    "retention": "limits",
    "max_consumers": -1,
    "max_msgs": -1,
    "max_bytes": -1,
    "discard": "new",
    "max_age": 0,
    "max_msgs_per_subject": -1,
    "storage": "file",
    "num_replicas": 1,
    "compression": "none",
    "allow_rollup_hdrs": True,
    "allow_direct": True,
    "mirror_direct": False,
    "consumer_limits": {},
}
PYTHON = {
    "name": "OBJ_s",
    "subjects": ["$O.s.C.>", "$O.s.M.>"],
    "max_age": 0,
    "max_bytes": -1,
    "max_consumers": 0,
    "num_replicas": 1,
    "discard": "new",
    "allow_rollup_hdrs": True,
    "allow_direct": True,
    "deny_delete": False,
    "deny_purge": False,
    "discard_new_per_subject": False,
    "mirror_direct": False,
    "no_ack": False,
    "sealed": False,
}
JAVASCRIPT = {
    "name": "OBJ_s",
    "max_age": 0,
    "allow_direct": True,
    "allow_rollup_hdrs": True,
    "num_replicas": 1,
    "discard": "new",
    "subjects": ["$O.s.C.>", "$O.s.M.>"],
}


def store(t: Script, **config: Any) -> None:
    """Create a store as the Go client does, as preparation; in memory by default."""
    t.setup("STREAM.CREATE.OBJ_s", {**GO, "storage": "memory", **config})


def meta_subject(name: str) -> str:
    """Return the subject of an object's metadata."""
    return f"$O.s.M.{base64.urlsafe_b64encode(name.encode()).decode()}"


def meta(name: str, nuid: str, data: bytes, **more: Any) -> bytes:
    """Return the metadata of an object with this content, as JSON."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()
    fields = {
        "name": name,
        "options": {"max_chunk_size": CHUNK},
        "bucket": "s",
        "nuid": nuid,
        "size": len(data),
        "mtime": "0001-01-01T00:00:00Z",
        "chunks": -(-len(data) // CHUNK),
        "digest": f"SHA-256={digest}",
    }
    return json.dumps(fields | more).encode()


def body(size: int) -> bytes:
    """Return the content of an object of this size."""
    return bytes((n * 7 + n // 256) % 251 for n in range(size))


def put(t: Script, name: str, nuid: str, data: bytes, wire: Wire | None = None) -> Any:
    """Publish all chunks together, then the metadata; return the metadata's ack."""
    wire = wire or t.wire
    chunks = [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]
    replies = [wire.new_reply() for _ in chunks]
    sent = zip(chunks, replies, strict=True)
    wire.send(b"".join(pub(f"$O.s.C.{nuid}", chunk, reply) for chunk, reply in sent))
    for reply in replies:
        assert "error" not in wire.message(reply).json()
    answer = wire.request(meta_subject(name), meta(name, nuid, data), ROLLUP).json()
    assert "error" not in answer, answer
    return answer


def read(t: Script, nuid: str) -> tuple[bytes, list[int]]:
    """Read an object through an ordered consumer with flow control.

    Return its data and the pending count of each chunk.
    """
    wire = t.connect()
    sid = wire.subscribe(f"to.{nuid}")
    wire.ping()
    asked = {**WATCH, "name": f"r{nuid}", "deliver_subject": f"to.{nuid}", "deliver_policy": "all"}
    asked["filter_subject"] = f"$O.s.C.{nuid}"
    t.setup(f"CONSUMER.CREATE.OBJ_s.r{nuid}", {"stream_name": "OBJ_s", "config": asked, "action": "create"})
    parts: list[bytes] = []
    pending: list[int] = []
    while not pending or pending[-1]:
        frame: Frame = wire.delivered(sid)
        if frame.status == 100:
            if frame.reply:
                wire.publish(frame.reply)
            continue
        parts.append(frame.data)
        pending.append(int(frame.reply.split(".")[-1]))
    return b"".join(parts), pending


@table([("go", GO), ("python", PYTHON), ("javascript", JAVASCRIPT)])
def made_by(t: Script, config: dict[str, Any]) -> None:
    """Create, find, seal and remove a store as the clients do."""
    t.api("STREAM.INFO.OBJ_s")
    made = t.api("STREAM.CREATE.OBJ_s", config)
    t.api("STREAM.CREATE.OBJ_s", config)
    t.api("STREAM.CREATE.OBJ_s", config | {"max_age": SECOND})
    t.api("STREAM.NAMES", {"subject": "$O.*.C.>"})
    t.api("STREAM.NAMES", {"subject": "$O.s.C.nuid"})
    t.api("STREAM.NAMES", {"subject": "$O.s.M.>"})
    t.publish(meta_subject("o"), meta("o", "n", b""), ROLLUP)
    t.api("STREAM.UPDATE.OBJ_s", made["config"] | {"description": "echoed, with what the server added"})
    t.api("STREAM.UPDATE.OBJ_s", made["config"] | {"sealed": True})
    t.api("STREAM.DELETE.OBJ_s")


# Each row: the store's configuration beside the Go client's usual one.
@table(
    [
        ("ttl", {"max_age": 90 * SECOND}),
        ("limits", {"max_bytes": 1000, "max_msg_size": 100}),
        ("compressed", {"compression": "s2", "storage": "file"}),
        ("metadata", {"metadata": {"owner": "tests"}}),
        ("batched", {"allow_batched": True}),
        ("sealed_at_once", {"sealed": True}),
        ("no_rollup", {"allow_rollup_hdrs": False}),
        ("without_an_age", {"max_age": None}),
        ("no_consumers", {"max_consumers": 0}),
    ]
)
def configured_with(t: Script, config: dict[str, Any]) -> None:
    made = t.api("STREAM.CREATE.OBJ_s", {**GO, "storage": "memory", **config})
    if "error" not in made:
        t.publish(meta_subject("o"), meta("o", "n", b""), ROLLUP)
        t.state("OBJ_s")


# ------------------------------------------------------------------------------------------------ contents
@table([(str(size), size) for size in (0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 10 * CHUNK, 200 * CHUNK + 3)])
def of_size(t: Script, size: int) -> None:
    """Put an object, find it by its name in both ways, read it back."""
    store(t)
    t.note("put", put(t, "o", "n", body(size)))
    t.direct(f"OBJ_s.{meta_subject('o')}", None)
    t.api("STREAM.MSG.GET.OBJ_s", {"last_by_subj": meta_subject("o")})
    t.state("OBJ_s", subjects_filter="$O.s.C.>")
    if size:
        data, pending = read(t, "n")
        t.note("whole", data == body(size))
        t.note("pending", pending)


@table([(name, name) for name in ("plain", "with space", "dir/file.txt", "ünïcödé", "a" * 200, "?>*.$", "~~~")])
def named(t: Script, name: str) -> None:
    store(t)
    put(t, name, "n", b"x")
    t.direct(f"OBJ_s.{meta_subject(name)}", None)
    t.direct("OBJ_s", {"multi_last": ["$O.s.M.>"]}, count=0)


@scenario
def replaced(t: Script) -> None:
    """A new version has new chunks and replaces the metadata; the old chunks are purged."""
    store(t)
    put(t, "o", "first", body(5000))
    put(t, "other", "second", body(2000))
    put(t, "o", "third", body(3000))
    t.state("OBJ_s", subjects_filter=">")
    t.api("STREAM.PURGE.OBJ_s", {"filter": "$O.s.C.first"})
    t.state("OBJ_s", subjects_filter=">")
    t.note("whole", read(t, "third")[0] == body(3000))
    t.note("whole", read(t, "second")[0] == body(2000))


@scenario
def a_reader_of_the_old_version(t: Script) -> None:
    """A consumer that reads a version while it is purged gets no more messages, and its num_pending is 0."""
    store(t)
    put(t, "o", "first", body(40 * CHUNK))
    t.setup(
        "CONSUMER.CREATE.OBJ_s.r",
        {
            "stream_name": "OBJ_s",
            "config": WATCH | {"name": "r", "filter_subject": "$O.s.C.first", "deliver_policy": "all"},
        },
    )
    put(t, "o", "second", body(CHUNK))
    t.api("STREAM.PURGE.OBJ_s", {"filter": "$O.s.C.first"})
    t.numbers_when("OBJ_s", "r", lambda info: info["num_pending"] == 0)
    wire = t.connect()
    wire.subscribe("to.me")
    t.note("nothing", [frame.subject for frame in wire.ping() if not frame.status])


@scenario
def deleted(t: Script) -> None:
    store(t)
    put(t, "o", "n", body(5000))
    gone = meta("o", "n", b"", deleted=True, size=0, chunks=0, digest="")
    t.publish(meta_subject("o"), gone, ROLLUP)
    t.api("STREAM.PURGE.OBJ_s", {"filter": "$O.s.C.n"})
    t.api("STREAM.PURGE.OBJ_s", {"filter": "$O.s.C.n"})
    content(t, "OBJ_s")


@scenario
def renamed(t: Script) -> None:
    store(t)
    put(t, "old", "n", body(1500))
    t.publish(meta_subject("new"), meta("new", "n", body(1500)))
    t.api("STREAM.PURGE.OBJ_s", {"filter": meta_subject("old")})
    t.direct("OBJ_s", {"multi_last": ["$O.s.M.>"]}, count=0)
    t.note("whole", read(t, "n")[0] == body(1500))


@scenario
def meta_without_rollup_has_a_history(t: Script) -> None:
    """Without rollups the updates of an object's metadata all stay; only the last one counts."""
    store(t)
    put(t, "o", "n", body(1500))
    for n in range(3):
        t.publish(meta_subject("o"), meta("o", "n", body(1500), description=f"number {n}"))
    t.direct("OBJ_s", {"multi_last": ["$O.s.M.>"]}, count=0)
    t.state("OBJ_s", subjects_filter="$O.s.M.>")
    t.publish(meta_subject("o"), meta("o", "n", body(1500), description="the last"), ROLLUP)
    t.state("OBJ_s", subjects_filter="$O.s.M.>")


@table([("first", "0"), ("right", "5"), ("wrong", "4"), ("of_a_chunk", "1")])
def expected(t: Script, revision: str) -> None:
    """The metadata may expect the sequence of its previous revision."""
    store(t)
    t.note("put", put(t, "o", "n", body(3500)))
    t.publish(meta_subject("o"), meta("o", "m", b""), ROLLUP | {"Nats-Expected-Last-Subject-Sequence": revision})
    t.state("OBJ_s", subjects_filter="$O.s.M.>")


@scenario
def sealed(t: Script) -> None:
    store(t, storage="file")
    put(t, "o", "n", body(2500))
    config = t.wire.api("STREAM.INFO.OBJ_s")["config"]
    t.api("STREAM.UPDATE.OBJ_s", config | {"sealed": True})
    t.publish("$O.s.C.m", b"x")
    t.publish(meta_subject("o"), meta("o", "m", b""), ROLLUP)
    t.api("STREAM.PURGE.OBJ_s", {"filter": "$O.s.C.n"})
    t.api("STREAM.MSG.DELETE.OBJ_s", {"seq": 1})
    t.api("STREAM.UPDATE.OBJ_s", config)
    t.note("whole", read(t, "n")[0] == body(2500))
    t.direct(f"OBJ_s.{meta_subject('o')}", None)
    t.state("OBJ_s")


@scenario
def full(t: Script) -> None:
    """A full store refuses chunks and keeps its objects; purging half of an object makes room again."""
    store(t, max_bytes=6000)
    put(t, "o", "n", body(2000))
    for _ in range(5):
        t.publish("$O.s.C.m", body(CHUNK))
    t.publish(meta_subject("m"), meta("m", "m", body(5 * CHUNK)), ROLLUP)
    t.api("STREAM.PURGE.OBJ_s", {"filter": "$O.s.C.m"})
    t.note("put", put(t, "o", "k", body(2000)))
    t.state("OBJ_s", subjects_filter=">")


# ------------------------------------------------------------------------------------------------ listing, watching
@table([("last", "last_per_subject", 3), ("all", "all", 3), ("new", "new", 0)])
def watched(t: Script, policy: str, first: int) -> None:
    """A watch delivers only metadata: chunks have other subjects."""
    store(t)
    put(t, "a", "1", body(1500))
    put(t, "b", "2", body(500))
    put(t, "a", "3", body(2500))
    t.publish(meta_subject("c"), meta("c", "", b"", options={"link": {"bucket": "s", "name": "a"}}))
    wire = t.connect()
    sid = wire.subscribe("to.me")
    wire.ping()
    asked = WATCH | {"name": "w", "filter_subject": "$O.s.M.>", "deliver_policy": policy}
    t.api("CONSUMER.CREATE.OBJ_s.w", {"stream_name": "OBJ_s", "config": asked, "action": "create"})
    t.frames("at first", t.collect(wire, first, sid=sid))
    put(t, "b", "4", b"")
    t.publish(meta_subject("a"), meta("a", "3", b"", deleted=True), ROLLUP)
    t.frames("then", t.collect(wire, 2, sid=sid))
    t.note("no more", [t.show(frame) for frame in wire.ping()])
    t.numbers("OBJ_s", "w")


@scenario
def an_empty_store_is_watched(t: Script) -> None:
    store(t)
    t.direct("OBJ_s.$O.s.M.>", None)
    t.api("STREAM.MSG.GET.OBJ_s", {"last_by_subj": "$O.s.M.>"})
    put(t, "a", "1", body(1500))
    put(t, "b", "2", body(500))
    t.api("STREAM.MSG.GET.OBJ_s", {"last_by_subj": "$O.s.M.>"})
    t.direct("OBJ_s", {"last_by_subj": "$O.s.M.>"})


# ------------------------------------------------------------------------------------------------ interrupted
@scenario
def an_interrupted_upload_leaves_no_object(t: Script) -> None:
    """An uploader that disconnects between chunks, or within one, leaves no metadata, and earlier objects unchanged."""
    store(t, storage="file")
    put(t, "o", "old", body(2500))
    wire = t.connect()
    for part in (body(CHUNK), body(CHUNK)):
        wire.request("$O.s.C.new", part)
    wire.send(b"PUB $O.s.C.new 1000\r\nhalf of a chunk")
    wire.close()
    t.state("OBJ_s", subjects_filter=">")
    t.direct("OBJ_s", {"multi_last": ["$O.s.M.>"]}, count=0)
    t.note("whole", read(t, "old")[0] == body(2500))
    t.api("STREAM.PURGE.OBJ_s", {"filter": "$O.s.C.new"})
    t.state("OBJ_s", subjects_filter=">")


@scenario
def uploads_at_the_same_time(t: Script) -> None:
    """Of two concurrent uploads of one name the later metadata counts; each version is complete."""
    store(t)
    wires = [t.connect(), t.connect()]
    for at in range(0, 5000, CHUNK):
        for n, wire in enumerate(wires):
            wire.request(f"$O.s.C.n{n}", body(5000 + n)[at : at + CHUNK])
    for n, wire in enumerate(wires):
        t.note("meta", wire.request(meta_subject("o"), meta("o", f"n{n}", body(5000)), ROLLUP).json())
    t.direct(f"OBJ_s.{meta_subject('o')}", None)
    for n in range(2):
        t.note("whole", read(t, f"n{n}")[0] == body(5000 + n)[:5000])


@scenario
def in_a_fast_batch(t: Script) -> None:
    """Chunks and metadata are uploaded as one batch, as newer clients do."""
    store(t, allow_batched=True)
    wire = t.connect()
    inbox = "_INBOX.batch.b"
    wire.subscribe(f"{inbox}.>")
    wire.ping()
    subjects = [*["$O.s.C.n"] * 4, meta_subject("o")]
    parts = [body(4000)[at : at + CHUNK] for at in range(0, 4000, CHUNK)] + [meta("o", "n", body(4000))]
    for n, (subject, part) in enumerate(zip(subjects, parts, strict=True), 1):
        operation = 0 if n == 1 else 2 if n == len(parts) else 1
        wire.publish(subject, part, f"{inbox}.10.fail.{n}.{operation}.$FI", ROLLUP if operation == 2 else None)
    frame = wire.next(lambda frame: b'"seq"' in frame.data and b'"stream"' in frame.data)
    t.note("ack", frame.json())
    t.direct(f"OBJ_s.{meta_subject('o')}", None)
    t.note("whole", read(t, "n")[0] == body(4000))
