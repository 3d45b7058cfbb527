"""Scenarios of direct get batches: their start and end, pending, max_bytes (docs/internals/api.md#direct-get)."""

from __future__ import annotations

import json
from typing import Any

from tests.conformance.harness import Script, scenario, table
from tests.wire import Frame

SUBJECTS = ["a.1", "a.2", "b.1", "a.1", "b.2", "a.3", "a.2", "b.1", "a.1", "a.2"]
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("file", {"storage": "file"}),
    ("memory", {"storage": "memory"}),
    ("one_of_each", {"max_msgs_per_subject": 1}),
    ("last_four", {"max_msgs": 4}),
    ("work_queue", {"retention": "workqueue"}),
    ("interest", {"retention": "interest"}),
    ("compressed", {"storage": "file", "compression": "s2"}),
    ("late_first", {"first_seq": 100}),
    ("ttl", {"allow_msg_ttl": True}),
]


def _stage(t: Script, **config: Any) -> None:
    t.stream("S", ["a.*", "b.*"], allow_direct=True, **config)
    t.fill(SUBJECTS)


def _told(frames: list[Frame]) -> list[Any]:
    """Return each answer as its sequence, pending count and previous sequence; then the status."""
    told: list[Any] = []
    for frame in frames:
        numbers = [frame.headers.get(f"Nats-{name}") for name in ("Sequence", "Num-Pending", "Last-Sequence")]
        told.append([frame.status or frame.data.decode(), *numbers, frame.headers.get("Nats-UpTo-Sequence")])
    return told


def _all(t: Script, body: Any) -> list[Frame]:
    """Return all answers to a batch request, not recorded."""
    reply = t.wire.new_reply()
    t.wire.publish("$JS.API.DIRECT.GET.S", json.dumps(body).encode(), reply)
    frames = [t.wire.message(reply)]
    while not frames[-1].status:
        frames.append(t.wire.message(reply))
    return frames


@table(KINDS)
def every_size_from_everywhere(t: Script, config: dict[str, Any]) -> None:
    _stage(t, **config)
    first = config.get("first_seq", 1)
    for seq in range(first, first + len(SUBJECTS) + 2):
        for batch in (1, 2, len(SUBJECTS) - seq + first, len(SUBJECTS) - seq + first + 1, 50):
            if batch > 0:
                t.note(f"{batch} from {seq}", _told(_all(t, {"seq": seq, "batch": batch})))


@table(KINDS)
def filtered(t: Script, config: dict[str, Any]) -> None:
    _stage(t, **config)
    first = config.get("first_seq", 1)
    for pattern in ("a.1", "a.*", "*.1", "b.>", ">", "*.*", "*", "c.1", "a.1.x", "", "a..b", "a.1 "):
        for seq in (0, first, first + 4, first + 9, first + 10):
            body = {"next_by_subj": pattern, "batch": 3, "seq": seq} if seq else {"next_by_subj": pattern, "batch": 3}
            t.note(f"3 of {pattern!r} from {seq}", _told(_all(t, body)))


@table(KINDS)
def after_holes(t: Script, config: dict[str, Any]) -> None:
    _stage(t, **config)
    first = config.get("first_seq", 1)
    for hole in (6, 8, 9):
        t.wire.api("STREAM.MSG.DELETE.S", {"seq": first + hole})
    for seq in range(first, first + 11):
        t.note(f"3 from {seq}", _told(_all(t, {"seq": seq, "batch": 3})))
        t.note(f"3 of a.* from {seq}", _told(_all(t, {"seq": seq, "batch": 3, "next_by_subj": "a.*"})))
    t.fill(["a.1"])
    t.note("from the last on", _told(_all(t, {"seq": first + 9, "batch": 9})))


@table([("filter", {"filter": "a.*"}), ("seq", {"seq": 5}), ("keep", {"keep": 3}), ("all", {})])
def after_a_purge(t: Script, purge: dict[str, Any]) -> None:
    _stage(t)
    t.setup("STREAM.PURGE.S", purge or None)
    for seq in (1, 4, 9, 10, 11):
        t.note(f"from {seq}", _told(_all(t, {"seq": seq, "batch": 9})))
        t.note(f"a.* from {seq}", _told(_all(t, {"seq": seq, "batch": 9, "next_by_subj": "a.*"})))
    t.fill(["b.2"])
    t.note("one more", _told(_all(t, {"seq": 1, "batch": 9})))


def _costs() -> list[tuple[str, dict[str, Any]]]:
    """Return rows for limits near each message's size: 3 bytes of subject, 10 of payload, and headers."""
    plain = [("plain", limit) for limit in (1, 12, 13, 14, 25, 26, 27, 39, 40, 129, 130, 131)]
    headers = [("headers", limit) for limit in (1, 34, 35, 36, 69, 70, 71, 105)]
    return [(f"{kind}-{limit}", {"kind": kind, "limit": limit}) for kind, limit in [*plain, *headers]]


@table(_costs())
def max_bytes(t: Script, case: dict[str, Any]) -> None:
    for storage in ("file", "memory"):
        t.stream(f"S{storage}", [f"{storage}.*"], allow_direct=True, storage=storage)
    t.stream("S", ["a.*"], allow_direct=True)
    headers = {"A": "b", "C": "d"} if case["kind"] == "headers" else None
    t.fill([f"a.{n}" for n in range(10)], b"0123456789", headers)
    limit = case["limit"]
    t.note("batch", _told(_all(t, {"seq": 1, "batch": 10, "max_bytes": limit})))
    t.note("filtered", _told(_all(t, {"seq": 3, "batch": 10, "max_bytes": limit, "next_by_subj": "a.*"})))
    t.note("multi", _told(_all(t, {"multi_last": ["a.*"], "max_bytes": limit})))
    t.note("bare", [frame.data for frame in _all(t, {"seq": 1, "batch": 10, "max_bytes": limit, "no_hdr": True})])


@table([("empty_messages", b"", 10), ("large_messages", b"x" * 100_000, 12), ("mixed", None, 40)])
def payloads(t: Script, data: bytes | None, count: int) -> None:
    t.stream("S", ["a.*"], allow_direct=True, storage="file")
    t.fill([f"a.{n % 7}" for n in range(count)], data)
    frames = _all(t, {"seq": 1, "batch": count})
    t.note("lengths", [(len(frame.data), frame.headers.get("Nats-Sequence")) for frame in frames])
    for limit in (150_000, 500_000, 1_000_000):
        frames = _all(t, {"seq": 1, "batch": count, "max_bytes": limit})
        t.note(f"at most {limit}", [(len(frame.data), frame.headers.get("Nats-Sequence")) for frame in frames])


@table([("batch", {"seq": 1, "batch": 3000}), ("filtered", {"seq": 1, "batch": 3000, "next_by_subj": "a.*"})])
def thousands(t: Script, body: dict[str, Any]) -> None:
    """All 3,000 messages of a batch are sent, more than a server sends at once."""
    t.stream("S", ["a.*"], allow_direct=True, storage="file")
    t.fill([f"a.{n % 100}" for n in range(3200)], b"x")
    t.note("answers", _told(_all(t, body)))


@table([(name, {"headers": headers}) for name, headers in (
    ("none", None),
    ("one", {"A": "b"}),
    ("many", {f"H-{n}": "v" * n for n in range(20)}),
    ("nats_headers", {"Nats-Expected-Stream": "S", "Nats-Anything": "x"}),
    ("its_own_names", {"Nats-Subject": "mine", "Nats-Sequence": "77", "Nats-Stream": "other"}),
    ("pending", {"Nats-Num-Pending": "5", "Nats-Last-Sequence": "9"}),
    ("empty_value", {"A": ""}),
    ("odd_case", {"nats-sequence": "5", "a": "b"}),
    ("raw_twice", b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n"),
    ("raw_no_blank", b"NATS/1.0\r\nA:1\r\n\r\n"),
    ("raw_status", b"NATS/1.0 404 Not Found\r\n\r\n"),
    ("raw_empty", b"NATS/1.0\r\n\r\n"),
)])  # fmt: skip
def stored_headers(t: Script, case: dict[str, Any]) -> None:
    t.stream("S", ["a.*"], allow_direct=True)
    t.fill(["a.1", "a.2"], b"m", case["headers"])
    t.direct("S", {"seq": 1})
    t.direct("S.a.2", None)
    t.direct("S.a.2", {"no_hdr": True})
    t.direct("S", {"seq": 1, "no_hdr": True})
    t.direct("S", {"seq": 1, "batch": 2}, 3)
    t.direct("S", {"seq": 1, "batch": 2, "no_hdr": True}, 3)
    t.direct("S", {"multi_last": ["a.*"]}, 3)


@scenario
def pages_while_others_publish(t: Script) -> None:
    """A client that pages by the next sequence sees each message once while others publish."""
    t.stream("S", ["a.*"], allow_direct=True, storage="file")
    t.fill([f"a.{n % 3}" for n in range(100)])
    writer = t.connect()
    seen: list[int] = []
    seq = 1
    while True:
        for n in range(5):
            if len(seen) < 300:
                writer.publish(f"a.{n % 3}", b"more")
        frames = _all(t, {"seq": seq, "batch": 7})
        if frames[0].status:
            if len(seen) < 300:
                continue  # faster than the writer
            break
        seen += [int(frame.headers["Nats-Sequence"]) for frame in frames[:-1]]
        seq = seen[-1] + 1
        writer.ping()
    t.note("each once, in order", seen == list(range(1, len(seen) + 1)))
    t.note("the first ones", seen[:300])


@scenario
def pages_while_messages_go(t: Script) -> None:
    t.stream("S", ["a.*"], allow_direct=True)
    t.fill([f"a.{n % 4}" for n in range(60)])
    seq, seen = 1, []
    for page in range(30):
        frames = _all(t, {"seq": seq, "batch": 5, "next_by_subj": "a.*"})
        if frames[0].status:
            break
        seen += _told(frames)
        seq = int(frames[-1].headers["Nats-Last-Sequence"]) + 1
        t.wire.api("STREAM.MSG.DELETE.S", {"seq": min(60 - page, seq + 2)})  # which may be deleted already
    t.note("seen", seen)


@scenario
def several_runs_at_once(t: Script) -> None:
    """Batches on one connection interleave by message; each is complete in itself."""
    t.stream("S", ["a.*"], allow_direct=True, storage="file")
    t.fill([f"a.{n % 5}" for n in range(500)], b"x" * 200)
    sid = t.wire.subscribe("run.*")
    bodies = [{"seq": 1 + 10 * n, "batch": 100 + n} for n in range(8)] + [{"multi_last": ["a.*"], "up_to_seq": 250}]
    for n, body in enumerate(bodies):
        t.wire.publish("$JS.API.DIRECT.GET.S", json.dumps(body).encode(), f"run.{n}")
    runs: dict[str, list[Frame]] = {}
    while sum(bool(frames[-1].status) for frames in runs.values()) < len(bodies):
        (frame,) = t.collect(t.wire, 1, sid=sid)
        if frame.verb == "MISSING":
            break
        runs.setdefault(frame.subject, []).append(frame)
    for subject, frames in sorted(runs.items()):
        t.note(subject, _told(frames))
