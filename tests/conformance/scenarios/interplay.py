"""Scenarios of schedules, transforms, republishing, delete markers, batches and updates in one stream.

See docs/internals/streams.md.
"""

from __future__ import annotations

import time
from typing import Any

from tests.conformance.harness import Script, configured, scenario
from tests.conformance.scenarios.schedules import (
    NEXT,
    PATTERN,
    ROLLUP,
    SCHEDULER,
    SOURCE,
    TARGET,
    TTL,
    block,
    content,
    once,
    soon,
    stage,
    together,
)
from tests.conformance.scenarios.tracing import ONLY_TO, TO, Listener

LIMITED = "jetstream { max_memory_store: 2000, max_file_store: 2000 }\n"


def _update(t: Script, name: str, **fields: Any) -> None:
    config = t.wire.api(f"STREAM.INFO.{name}")["config"]
    t.setup(f"STREAM.UPDATE.{name}", config | fields)


@scenario
def a_schedule_whose_source_is_a_delete_marker(t: Script) -> None:
    stage(t, allow_msg_ttl=True, subject_delete_marker_ttl=60_000_000_000, max_msgs_per_subject=1)
    marker = {"Nats-Marker-Reason": "MaxAge", "Nats-TTL": "1m", "Nats-Rollup": "sub", "KV-Operation": "PURGE"}
    t.publish("s.src", b"", marker)
    t.publish("s.own", b"own", {"Nats-Marker-Reason": "Purge"})
    together(
        t,
        [
            ("s.1", b"1", once("s.t1", (SOURCE, "s.src"))),
            ("s.2", b"2", once("s.t2", (SOURCE, "s.src"), (TTL, "5s"), (ROLLUP, "sub"))),
            ("s.3", b"3", once("s.t3", (SOURCE, "s.own"), ("Nats-Marker-Reason", "Remove"))),
        ],
    )
    content(t, "S", 8)
    t.state("S", subjects_filter=">")


@scenario
def a_marker_reason_of_a_client_under_a_transform(t: Script) -> None:
    stage(t, subject_transform={"src": "s.*", "dest": "o.$1"}, allow_msg_ttl=True)
    t.publish("s.1", b"x", {"Nats-Marker-Reason": "MaxAge"})
    t.publish("s.2", b"x", {"Nats-Marker-Reason": ""})
    together(t, [("s.3", b"3", once("s.t3", ("Nats-Marker-Reason", "MaxAge")))])
    content(t, "S", 4)
    t.state("S", subjects_filter=">")


@scenario
def an_update_while_a_schedule_waits(t: Script) -> None:
    stage(t, "T", ["t.>"])
    stage(t, "R", ["r.>"])
    sid = t.wire.subscribe("again.>")
    at = soon(0.5)
    together(t, [("t.1", b"x", {PATTERN: at, TARGET: "t.t"}), ("r.1", b"x", {PATTERN: at, TARGET: "r.t"})])
    _update(t, "T", subject_transform={"src": "t.*", "dest": "o.$1"})
    _update(t, "R", republish={"src": ">", "dest": "again.>"}, max_msgs=1)
    content(t, "T", 2)
    content(t, "R", 2)
    t.state("T", subjects_filter=">")
    t.state("R", subjects_filter=">")
    t.frames("republished", t.collect(t.wire, 1, sid=sid))


@scenario
def the_end_of_a_schedule_and_limits(t: Script) -> None:
    """A finished schedule's message is removed before the next message counts towards the limits."""
    stage(t, max_msgs=4)
    plain: list[Any] = [(f"s.p{n}", b"p", None) for n in range(3)]
    together(t, plain)
    together(
        t,
        [
            ("s.1", b"plan", {PATTERN: "@at 2030-01-01T00:00:00Z", TARGET: "s.t"}),
            ("s.x", b"end", {SCHEDULER: "s.1", NEXT: "purge"}),
            ("s.y", b"after", None),
            ("s.z", b"after", None),
        ],
    )
    content(t, "S", 7)
    t.state("S", subjects_filter=">")


@scenario
def consumers_when_a_schedule_ends(t: Script) -> None:
    stage(t)
    t.consumer("S", "all")
    t.consumer("S", "plan", filter_subject="s.1")
    t.consumer("S", "target", filter_subject="s.t")
    t.consumer("S", "done")
    at = soon(0.5)
    together(t, [("s.0", b"before", None), ("s.1", b"x", {PATTERN: at, TARGET: "s.t"}), ("s.2", b"y", None)])
    for frame in t.pull("S", "done", {"batch": 3}, 3):
        t.ack(frame)
    t.pull("S", "all", {"batch": 1}, 1)
    t.pull("S", "plan", {"batch": 1}, 1)
    content(t, "S", 4)
    for name in ("all", "plan", "target", "done"):
        t.numbers_when("S", name, lambda info: info["num_pending"] < 3)
    t.pull("S", "target", {"batch": 2, "no_wait": True}, 2)


@scenario
def expected_sequences_under_a_transform(t: Script) -> None:
    last = "Nats-Expected-Last-Subject-Sequence"
    t.stream("T", ["t.>"], subject_transform={"src": "t.*.*", "dest": "o.{{partition(1,1)}}.$2"}, allow_atomic=True)
    for subject, want in (("t.a.x", "0"), ("t.b.x", "0"), ("t.b.x", "1"), ("t.c.x", "2"), ("t.c.y", "0")):
        t.publish(subject, b"x", {last: want})
    batch = {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1"}
    t.publish("t.d.x", b"x", batch | {last: "3"})
    t.publish("t.e.z", b"y", batch | {"Nats-Batch-Sequence": "2", last: "0", "Nats-Batch-Commit": "1"})
    t.publish("t.d.x", b"x", batch)
    t.publish("t.e.x", b"y", batch | {"Nats-Batch-Sequence": "2", last: "5", "Nats-Batch-Commit": "1"})
    t.state("T", subjects_filter=">")


@scenario
def a_bucket_that_is_republished(t: Script) -> None:
    sid = t.wire.subscribe("kv.>")
    t.stream(
        "KV_b",
        ["$KV.b.>"],
        max_msgs_per_subject=2,
        discard="new",
        allow_rollup_hdrs=True,
        deny_delete=True,
        allow_direct=True,
        republish={"src": "$KV.b.>", "dest": "kv.>"},
    )
    last = "Nats-Expected-Last-Subject-Sequence"
    t.publish("$KV.b.k", b"1", {last: "0"})
    t.publish("$KV.b.k", b"2", {last: "0"})
    t.publish("$KV.b.k", b"2", {last: "1"})
    t.publish("$KV.b.k", b"3")
    t.publish("$KV.b.k", b"", {"KV-Operation": "DEL"})
    t.publish("$KV.b.k", b"", {"KV-Operation": "PURGE", "Nats-Rollup": "sub"})
    t.publish("$KV.b.k", b"4", {last: "5"})
    t.publish("$KV.b.a.b", b"5", {last: "0"})
    t.frames("watched", t.collect(t.wire, 7, sid=sid))


@scenario
def republishing_of_an_atomic_batch(t: Script) -> None:
    sid = t.wire.subscribe("again.>")
    change = {"src": "t.*", "dest": "o.$1"}
    t.stream("T", ["t.*"], allow_atomic=True, subject_transform=change, republish={"src": "o.>", "dest": "again.>"})
    t.publish("t.a", b"0")
    batch = {"Nats-Batch-Id": "b"}
    t.publish("t.a", b"1", batch | {"Nats-Batch-Sequence": "1", "Nats-Msg-Id": "i"})
    t.publish("t.b", b"2", batch | {"Nats-Batch-Sequence": "2"})
    t.publish("t.a", b"3", batch | {"Nats-Batch-Sequence": "3", "Nats-Batch-Commit": "1"})
    t.frames("again", t.collect(t.wire, 4, sid=sid))
    t.publish("t.a", b"1", {"Nats-Msg-Id": "i"})


@scenario
def headers_that_two_lines_or_nothing_give(t: Script) -> None:
    """The first of two lines with a name counts, a name ends at the colon, and an empty value counts as absent."""
    stage(t)
    for headers in (
        b"NATS/1.0\r\nNats-Msg-Id: a\r\nNats-Msg-Id: b\r\n\r\n",
        b"NATS/1.0\r\nNats-Msg-Id: b\r\n\r\n",
        b"NATS/1.0\r\nNats-Msg-Id: a\r\n\r\n",
        b"NATS/1.0\r\nNats-Msg-Id:\r\nNats-Msg-Id: c\r\n\r\n",
        b"NATS/1.0\r\nNats-Msg-Id: c\r\n\r\n",
        b"NATS/1.0\r\nNats-Msg-Id : d\r\nNats-Msg-Id-X: e\r\n\r\n",
        b"NATS/1.0\r\nNats-Msg-Id : d\r\nNats-Msg-Id-X: e\r\n\r\n",
        b"NATS/1.0\r\nnats-msg-id: f\r\n\r\n",
        b"NATS/1.0\r\nNats-Expected-Last-Sequence:\r\nNats-Expected-Last-Sequence: 99\r\n\r\n",
        b"NATS/1.0\r\nNats-Expected-Last-Sequence:    5\r\n\r\n",
        b"NATS/1.0\r\nNats-Expected-Last-Sequence: 6 \r\n\r\n",
        b"NATS/1.0\r\nX: y\r\n Nats-Expected-Last-Sequence: 99\r\n\r\n",
        b"NATS/1.0\r\nX: Nats-Expected-Last-Sequence: 99\r\n\r\n",
        b"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: 0\r\n"
        b"Nats-Expected-Last-Subject-Sequence-Subject: s.q\r\n\r\n",
        b"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence-Subject: s.q\r\n\r\n",
        b"NATS/1.0\r\nNats-Expected-Stream: S\r\nNats-Expected-Stream: T\r\n\r\n",
        b"NATS/1.0\r\nNats-Schedule-Time-Zone: Mars\r\nNats-Msg-Id: a\r\n\r\n",
    ):
        t.publish("s.p", b"x", headers)
    t.state("S")


@scenario
def consumers_when_their_subject_is_purged(t: Script) -> None:
    stage(t)
    t.consumer("S", "all")
    t.consumer("S", "gone", filter_subject="s.1")
    t.consumer("S", "part", filter_subject="s.1.*")
    t.consumer("S", "wide", filter_subject="s.*")
    t.consumer("S", "two", filter_subjects=["s.1", "s.2"])
    t.consumer("S", "other", filter_subject="s.9")
    plain: list[Any] = [(s, s.encode(), None) for s in ("s.0", "s.1", "s.2", "s.1.a", "s.1.b", "s.1", "s.3", "s.1.b")]
    together(t, plain)
    for name in ("all", "gone", "part"):
        t.pull("S", name, {"batch": 1}, 1)
    for body in ({"filter": "s.1", "seq": 5}, {"filter": "s.1"}, {"filter": "s.1.*", "keep": 1}, {"filter": "s.1.>"}):
        t.api("STREAM.PURGE.S", body)
        for name in ("all", "gone", "part", "wide", "two", "other"):
            t.numbers("S", name)
    t.publish("s.1", b"new")
    t.publish("s.1.a", b"new")
    for name in ("gone", "part"):
        t.pull("S", name, {"batch": 1}, 1)
    t.pull("S", "two", {"batch": 3, "no_wait": True}, 3)


@configured(LIMITED)
def a_schedule_that_is_due_when_too_much_is_stored(t: Script) -> None:
    stage(t, storage="memory")
    t.stream("T", ["t"])
    together(t, [("s.1", b"x", {PATTERN: soon(0.5), TARGET: "s.t1"})])
    for _ in range(7):
        t.publish("t", b"x" * 300)
    t.publish("t", b"x")
    time.sleep(0.8)  # there is no effect that could be awaited
    t.state("S", subjects_filter=">")
    t.api("STREAM.PURGE.T")
    together(t, [("s.2", b"y", once("s.t2"))])
    content(t, "S", 3)
    t.state("S", subjects_filter=">")


@scenario
def schedules_that_are_traced(t: Script) -> None:
    stage(t, subject_transform={"src": "s.*", "dest": "o.$1"}, republish={"src": "o.t", "dest": "again.x"})
    to = Listener(t)
    sid = t.wire.subscribe("again.>")
    for more in (
        {PATTERN: "bad", TARGET: "s.t"},
        {PATTERN: "@hourly", TARGET: "zz"},
        {PATTERN: "@hourly", TARGET: "s.t", SOURCE: "s.t"},
        {PATTERN: "@hourly", TARGET: "s.t", TTL: "x"},
        {PATTERN: "@hourly", TARGET: "s.t", TTL: "5s"},
        {PATTERN: "@hourly", TARGET: "s.t", ROLLUP: "all"},
        {SCHEDULER: "o.1", NEXT: "purge"},
    ):
        t.publish("s.1", b"x", TO | more)
        to.seen()
    t.publish("s.2", b"x", ONLY_TO | {PATTERN: "bad", TARGET: "s.t"})
    to.seen()
    t.wire.publish("s.2", b"x", t.wire.new_reply(), ONLY_TO | {PATTERN: "@hourly", TARGET: "s.t"})
    to.seen()
    together(t, [("s.3", b"x", once("s.t", *TO.items()))])
    to.seen()
    content(t, "S", 2)
    t.frames("again", t.collect(t.wire, 1, sid=sid))
    to.silent()


@scenario
def schedules_in_a_fast_batch(t: Script) -> None:
    stage(t, allow_batched=True, subject_transform={"src": "s.*", "dest": "o.$1"}, max_msgs=7)
    wire, inbox = t.wire, t.wire.new_reply()

    def member(seq: int, op: int, subject: str, headers: Any = None) -> None:
        wire.publish(subject, b"%d" % seq, f"{inbox}.b.10.ok.{seq}.{op}.$FI", headers)

    wire.subscribe(f"{inbox}.>")
    member(1, 0, "s.1", block(once("s.t")))
    member(2, 1, "s.2", block({PATTERN: "bad", TARGET: "s.t"}))
    member(3, 1, "s.3", block({PATTERN: "@at 2030-01-01T00:00:00Z", TARGET: "s.t"}))
    member(4, 1, "s.4", block({SCHEDULER: "o.3", NEXT: "purge"}))
    for seq in range(5, 9):
        member(seq, 1, "s.5")
    member(9, 2, "s.6")
    content(t, "S", 9)
    t.state("S", subjects_filter=">")
