"""Scenarios of message schedules: refusals, and published messages (docs/internals/streams.md#schedules)."""

from __future__ import annotations

import base64
import itertools
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.conformance.harness import Script, scenario, table
from tests.wire import header_block, pub

PATTERN = "Nats-Schedule"
TARGET = "Nats-Schedule-Target"
SOURCE = "Nats-Schedule-Source"
TTL = "Nats-Schedule-TTL"
ROLLUP = "Nats-Schedule-Rollup"
ZONE = "Nats-Schedule-Time-Zone"
NEXT = "Nats-Schedule-Next"
SCHEDULER = "Nats-Scheduler"
PAST = "@at 2020-01-01T00:00:00Z"
HOURLY = {PATTERN: "@hourly", TARGET: "s.t"}

Row = tuple[str, bytes, dict[str, str] | Sequence[tuple[str, str]] | None]


def block(headers: dict[str, str] | Sequence[tuple[str, str]] | None) -> bytes | None:
    """Return a header block, perhaps with several lines of one name."""
    if headers is None or isinstance(headers, dict):
        return header_block(headers) if headers else None
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    return f"NATS/1.0\r\n{lines}\r\n".encode()


def stage(t: Script, name: str = "S", subjects: Sequence[str] = ("s.>",), **config: Any) -> None:
    t.stream(name, subjects, **{"allow_msg_schedules": True, **config})


def judged(t: Script, stream: str, subject: str, headers: dict[str, str]) -> None:
    """Publish and record the answer; remove the message if it was stored."""
    answer = t.publish(subject, b"x", headers)
    if answer and "error" not in answer:
        t.setup(f"STREAM.PURGE.{stream}")


def together(t: Script, rows: Sequence[Row]) -> None:
    """Publish in one write, so that nothing is due before all are stored; all must be acked."""
    wire = t.wire
    replies = [wire.new_reply() for _ in rows]
    wire.send(b"".join(pub(s, d, r, block(h)) for (s, d, h), r in zip(rows, replies, strict=True)))
    for reply in replies:
        answer = wire.message(reply).json()
        assert "error" not in answer, answer


def content(t: Script, stream: str, last: int) -> None:
    """Record all messages of the stream once its last sequence is `last`."""
    t.state_when(stream, lambda state: state["last_seq"] >= last)
    for seq in range(1, last + 1):
        message = t.wire.api(f"STREAM.MSG.GET.{stream}", {"seq": seq}).get("message")
        if message is not None:
            lines = base64.b64decode(message.get("hdrs", "")).decode().split("\r\n")
            data = base64.b64decode(message.get("data", "")).decode()
            t.note(f"{stream} {seq}", [message["subject"], lines, data])


def once(target: str, *more: tuple[str, str]) -> list[tuple[str, str]]:
    """Return the headers of a schedule that is due at once."""
    return [(PATTERN, PAST), (TARGET, target), *more]


def soon(seconds: float) -> str:
    """Return an `@at` schedule this many seconds from now."""
    return f"@at {datetime.now(UTC) + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S.%f}1Z"


# ------------------------------------------------------------------------------------------------ refusals
WRONG = {
    "pattern": (PATTERN, "bad"),
    "target": (TARGET, "zz"),
    "ttl": (TTL, "bad"),
    "rollup": (ROLLUP, "bad"),
    "source": (SOURCE, "*"),
    "zone": (ZONE, "No/Where"),
    "own_rollup": ("Nats-Rollup", "all"),
    "unknown_rollup": ("Nats-Rollup", "zzz"),
    "scheduler": (SCHEDULER, "q"),
    "stream_source": ("Nats-Stream-Source", "x"),
    "expected": ("Nats-Expected-Last-Sequence", "7777"),
    "expected_id": ("Nats-Expected-Last-Msg-Id", "zz"),
}


@table([(name, *one) for name, one in WRONG.items()])
def what_is_wrong_with_it(t: Script, name: str, value: str) -> None:
    stage(t, allow_msg_ttl=True)
    judged(t, "S", "s.1", HOURLY | {name: value})
    t.state("S")


@table([(first, first) for first in list(WRONG)[:-1]])
def of_two_wrong_things_one_is_named(t: Script, first: str) -> None:
    stage(t, allow_msg_ttl=True)
    for second in list(WRONG)[list(WRONG).index(first) + 1 :]:
        judged(t, "S", "s.1", HOURLY | dict([WRONG[first], WRONG[second]]))


@scenario
def without_allow_msg_schedules(t: Script) -> None:
    t.stream("S", ["s.>"])
    t.fill(["s.plain"])
    for headers in (
        HOURLY,
        HOURLY | {PATTERN: "bad"},
        HOURLY | {ZONE: "No/Where"},
        {PATTERN: "@at 0001-01-01T00:00:00Z"},
        {PATTERN: ""},
        {PATTERN: "", ZONE: "No/Where"},
        {ZONE: "No/Where"},
        {ZONE: "UTC"},
        {ZONE: ""},
        {TARGET: "zz"},
        {SCHEDULER: "s.2", NEXT: "purge"},
        {SCHEDULER: "s.plain", NEXT: "purge"},
        {SCHEDULER: "s.1", NEXT: "purge"},
        {SCHEDULER: "s.2"},
        {SCHEDULER: ""},
        {SCHEDULER: "", NEXT: "purge"},
        {NEXT: "purge"},
        {NEXT: "x", SCHEDULER: "s.2"},
        {NEXT: ""},
    ):
        t.publish("s.1", b"x", headers)
    t.state("S")


@scenario
def without_allow_msg_ttl(t: Script) -> None:
    stage(t)
    for more in (
        {TTL: "5m"},
        {TTL: "bad"},
        {TTL: ""},
        {TTL: "5m", TARGET: "zz"},
        {TTL: "5m", ROLLUP: "x"},
        {TTL: "5m", SOURCE: "*"},
        {"Nats-TTL": "5m"},
        {"Nats-TTL": "5m", PATTERN: "bad"},
    ):
        judged(t, "S", "s.1", HOURLY | more)


VALUES: dict[str, tuple[str, tuple[str, ...]]] = {
    "ttl": (TTL, ("never", "NEVER", "0", "1", "01", "500ms", "1.5s", "5m", " 5", "5 ", "-1", "1d", "99999999999")),
    "target": (TARGET, ("", "s", "s.", "s..t", ".s", "s.*", "s.>", "s.1", "$JS.API.INFO", "s.t ", "s t", "S.t", "s.é")),
    "source": (SOURCE, ("", "s.3", "q.x", "s.1", "s.t", "s.*", ">", "s..2", "s.3 ", "x y")),
    "rollup": (ROLLUP, ("", "sub", "SUB", "Sub", "all", "x", " sub")),
    "own_rollup": ("Nats-Rollup", ("", "sub", "SUB", "all", "ALL", "x")),
    "zone": (
        ZONE,
        (
            *("", "UTC", "utc", "Local", "local", "Europe/Berlin", "europe/berlin", "+02:00", "CET", "EST5EDT"),
            *("../etc/passwd", "/etc/localtime", "Europe", "Europe/Berlin/", "GMT+0", "Etc/GMT+5", " UTC", "UTC "),
            *("a\\b", "Asia/Calcutta", "US/Pacific", "Zulu", "No/Where", "zone.tab"),
        ),
    ),
}


@table([(name, *values) for name, values in VALUES.items()])
def values_of(t: Script, header: str, values: Sequence[str]) -> None:
    stage(t, allow_msg_ttl=True)
    for value in values:
        judged(t, "S", "s.1", HOURLY | {header: value})


@table([("at", "@at 2030-01-01T00:00:00Z"), ("every", "@every 1h"), ("bad", "bad"), ("bad_every", "@every bad")])
def zones_of_what_is_no_calendar(t: Script, pattern: str) -> None:
    stage(t)
    for zone in ("", "UTC", "No/Where", "Local"):
        judged(t, "S", "s.1", HOURLY | {PATTERN: pattern, ZONE: zone})


PATTERNS: dict[str, tuple[str, ...]] = {
    "at": (
        *("@at 2030-01-01T00:00:00Z", "@at 2030-01-01T00:00:00", "@at 2030-01-01 00:00:00Z"),
        *("@at 2030-01-01T00:00:00+05:30", "@at 2030-01-01T0:00:00Z", "@at 2030-01-01T00:00:00,5Z"),
        *("@at 2030-02-30T00:00:00Z", "@at 2030-01-01T24:00:00Z", "@at 2030-01-01t00:00:00z"),
        *("@at 2030-01-01T00:00:60Z", "@at  2030-01-01T00:00:00Z", "@at 2030-01-01T00:00:00Z ", "@at ", "@at"),
        *("@at\t2030-01-01T00:00:00Z", "@AT 2030-01-01T00:00:00Z", "2030-01-01T00:00:00Z", "@at now"),
    ),
    "every": (
        *("@every 1s", "@every 999ms", "@every 1000ms", "@every 0.9999999999s", "@every 1", "@every -1s"),
        *("@every +1s", "@every 1h1m1s", "@every 292y", "@every 2562048h", "@every 9223372036854775808ns"),
        *("@every 1 s", "@every  1s", "@every 1s ", "@every 1000000us", "@every 1000000µs", "@every 1.5.s"),
        *("@every 1e3s", "@every .5m", "@every 1.s", "@every ", "@every", "@EVERY 1s"),
    ),
    "named": (
        *("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"),
        *("@Yearly", "@daily ", "@reboot", "@weekly x", "@minutely"),
    ),
    "fields": (
        *("* * * * * *", " * * * * * *", "* * * * * * ", "*  *\t* * * *", "* * * * *", "* * * * * * *"),
        *("? ? ? ? ? ?", "** * * * * *", "*5 * * * * *", "TZ=UTC * * * * * *", "* * * * * L", "* * * W * *"),
    ),
    "numbers": (
        *("+5 * * * * *", "05 * * * * *", "-5 * * * * *", "0x5 * * * * *", "1_0 * * * * *", "1.5 * * * * *"),
        *("60 * * * * *", "* 60 * * * *", "* * 24 * * *", "* * * 0 * *", "* * * 32 * *", "* * * * 0 *"),
        *("* * * * 13 *", "* * * * * 7", "* * * * * 6/1", "9223372036854775808 * * * * *"),
    ),
    "ranges": (
        *("5-9 * * * * *", "5- * * * * *", "1-2-3 * * * * *", "*-5 * * * * *", "*-5-6 * * * * *", "5-5 * * * * *"),
        *("9-5 * * * * *", "*,5 * * * * *", "1,2,,3 * * * * *", ",1 * * * * *", "* , * * * *", "* * * * * ,"),
    ),
    "steps": (
        *("*/0 * * * * *", "*/1 * * * * *", "*/100 * * * * *", "*/x * * * * *", "*/ * * * * *", "1/2/3 * * * * *"),
        *("50/20 * * * * *", "10-20/5 * * * * *", "?/2 * * * * *", "0-59/60 * * * * *", "* * * * jan/3 *"),
    ),
    "names": (
        *("* * * * jan-mar *", "* * * * JAN *", "* * * * Janu *", "* * * * * mon-fri", "* * * * * fri-mon"),
        *("* * * * * SUN-SAT", "* * * * jan-13 *", "* * * * * 1#2", "* * * * mon *"),
    ),
    "never": ("* * * 31 2 *", "* * * 31 4,6 *", "* * * 30 2 MON", "* * * 29 2 *", "* * * 29 2 1", "0 0 0 31 6 ?"),
}


@table(list(PATTERNS.items()))
def patterns(t: Script, tried: Sequence[str]) -> None:
    stage(t)
    for pattern in tried:
        judged(t, "S", "s.1", {PATTERN: pattern, TARGET: "s.t"})


@scenario
def the_zero_time_is_no_schedule(t: Script) -> None:
    stage(t)
    judged(t, "S", "s.1", {PATTERN: "@at 0001-01-01T00:00:00Z"})
    judged(t, "S", "s.1", {PATTERN: "@at 0001-01-01T01:00:00+01:00", "Nats-Rollup": "bad"})
    judged(t, "S", "s.1", {PATTERN: "@at 0001-01-01T00:00:01Z"})
    judged(t, "S", "s.1", {PATTERN: "@at 1970-01-01T00:00:00Z"})


@scenario
def who_may_end_a_schedule(t: Script) -> None:
    stage(t)
    t.fill(["s.plain"])
    t.fill(["s.schedule"], headers=HOURLY)
    for headers in (
        {NEXT: "purge", SCHEDULER: "s.9"},
        {NEXT: "purge", SCHEDULER: "s.*"},
        {NEXT: "purge", SCHEDULER: "z.9"},
        {NEXT: "purge", SCHEDULER: "s..9"},
        {NEXT: "purge", SCHEDULER: "s.1"},
        {NEXT: "PURGE", SCHEDULER: "s.9"},
        {NEXT: "purge ", SCHEDULER: "s.9"},
        {NEXT: "purge", SCHEDULER: ""},
        {NEXT: "", SCHEDULER: "s.9"},
        {NEXT: "", SCHEDULER: ""},
        {NEXT: "2030-01-01T00:00:00Z", SCHEDULER: "s.schedule"},
        {NEXT: "purge", SCHEDULER: "s.plain"},
        {NEXT: "purge", SCHEDULER: "s.schedule", "Nats-Expected-Last-Sequence": "1"},
        {NEXT: "purge", SCHEDULER: "s.schedule", "Nats-Rollup": "bad"},
        {NEXT: "purge", SCHEDULER: "s.schedule", "Nats-Stream-Source": "x"},
        {NEXT: "purge", SCHEDULER: "s.schedule"},
        {NEXT: "purge", SCHEDULER: "s.schedule"},
    ):
        t.publish("s.1", b"x", headers)
    t.state("S", subjects_filter=">")
    t.fill(["s.schedule"], headers=HOURLY)
    t.fill(["s.schedule"])
    t.publish("s.1", b"x", {NEXT: "purge", SCHEDULER: "s.schedule"})
    t.setup("STREAM.MSG.DELETE.S", {"seq": t.wire.api("STREAM.INFO.S")["state"]["last_seq"]})
    t.publish("s.1", b"x", {NEXT: "purge", SCHEDULER: "s.schedule"})
    t.publish("s.8", b"x", HOURLY | {NEXT: "purge", SCHEDULER: "s.1"})
    t.state("S", subjects_filter=">")


@scenario
def what_is_stored(t: Script) -> None:
    stage(t, allow_msg_ttl=True)
    common = {TTL: "5m", "Nats-Msg-Id": "i", "Nats-TTL": "1h", "A": "b", "Nats-Expected-Stream": "S"}
    t.publish("s.1", b"x", HOURLY | common)
    t.publish("s.1", b"x", HOURLY | common)
    t.publish("s.1", b"y", HOURLY)
    t.publish("s.2", b"x", HOURLY | {"Nats-Rollup": ""})
    t.publish("s.3", b"x", HOURLY | {"Nats-Rollup": "SUB"})
    t.publish("s.4", b"x", {PATTERN: "", ZONE: "UTC"})
    t.publish("s.5", b"x", {TARGET: "s.t"})
    t.publish("s.6", b"x", {ZONE: "Europe/Berlin"})
    t.publish("s.6", b"x", {ZONE: ""})
    t.publish("s.6", b"x", {PATTERN: "", ZONE: "No/Where"})
    content(t, "S", 7)


# ------------------------------------------------------------------------------------------------ configuration
@table(
    [
        ("discard_new", {"discard": "new"}),
        ("deny_purge", {"deny_purge": True}),
        ("mirror", {"mirror": {"name": "M"}, "subjects": None}),
        ("sources", {"sources": [{"name": "M"}], "subjects": None}),
        ("counters", {"allow_msg_counter": True}),
        ("no_rollup_pedantic", {"pedantic": True}),
        ("rollup_pedantic", {"pedantic": True, "allow_rollup_hdrs": True}),
        ("deny_purge_pedantic", {"pedantic": True, "deny_purge": True}),
    ]
)
def together_with(t: Script, fields: dict[str, Any]) -> None:
    body = {"name": "S", "subjects": ["s.>"], "storage": "memory", "allow_msg_schedules": True, **fields}
    t.api("STREAM.CREATE.S", {name: value for name, value in body.items() if value is not None})


@scenario
def switched_on_and_not_off(t: Script) -> None:
    t.stream("S", ["s.>"])
    t.publish("s.1", b"x", HOURLY)
    body = {"name": "S", "subjects": ["s.>"], "storage": "memory"}
    t.api("STREAM.UPDATE.S", body | {"allow_msg_schedules": True})
    t.publish("s.1", b"x", HOURLY)
    t.api("STREAM.UPDATE.S", body)
    t.api("STREAM.UPDATE.S", body | {"allow_msg_schedules": True, "discard": "new"})
    t.publish("s.1", b"x", HOURLY)
    t.state("S")


# ------------------------------------------------------------------------------------------------ published messages
@table([("memory", "memory"), ("file", "file")])
def due_at_once(t: Script, storage: str) -> None:
    stage(t, storage=storage, allow_msg_ttl=True)
    kept = [
        *(("X", "1"), ("X", "2"), ("Nats-Msg-Id", "m1"), ("Nats-Msg-Id", "m2"), ("Nats-Expected-Stream", "S")),
        *(("empty", ""), ("Nats-Schedule-Other", "q"), ("nats-schedule-low", "q"), ("Nats-Scheduled", "q")),
        *(("Nats-Stream", "z"), ("traceparent", "tp"), ("Nats-Required-Api-Level", "1")),
        ("Nats-Trace-Dest", "trace.here"),
    ]
    source = [
        *(("Nats-Msg-Id", "s1"), ("Nats-TTL", "1h"), ("K", "src"), (SCHEDULER, ""), ("Nats-Marker-Reason", "MaxAge")),
    ]
    together(
        t,
        [
            ("s.1", b"kept", once("s.t1", *kept)),
            ("s.src", b"content", source),
            ("s.2", b"own", once("s.t2", (SOURCE, "s.src"), ("Own", "o"))),
            ("s.3", b"x", once("s.t3", (TTL, "90s"), ("Nats-TTL", "1h"), (ROLLUP, "sub"))),
            ("s.t3", b"old", None),
            ("s.keep", b"x", {PATTERN: "@every 1h", TARGET: "s.t9"}),
            ("s.4", b"both", once("s.t4", (NEXT, "purge"), (SCHEDULER, "s.keep"))),
            ("s.sched", b"schedule", {PATTERN: "@every 1h", TARGET: "s.t9", "H": "of-schedule"}),
            ("s.5", b"x", once("s.t5", (SOURCE, "s.sched"))),
            ("s.6", b"x", once("s.t6", (SOURCE, "s.none"))),
            ("s.7", b"x", once("s.t7", ("Nats-Rollup", "SUB"))),
            ("s.8", b"x", once("s.t8", ("Nats-Rollup", ""))),
            ("s.9", b"never", {PATTERN: "@at 0001-01-01T00:00:00Z", TARGET: "s.t9"}),
            ("s.10", b"replaced", once("s.t9")),
            ("s.10", b"plain", None),
            ("s.c1", b"chain", once("s.c2")),
            ("s.c2", b"chained", {PATTERN: "@at 2030-01-01T00:00:00Z", TARGET: "s.t9"}),
            ("s.o2", b"replaced too", once("s.o")),
            ("s.o1", b"first", once("s.o")),
            ("s.o2", b"second", once("s.o")),
        ],
    )
    content(t, "S", 20 + 11)
    t.state("S", subjects_filter=">")


@table(
    [
        ("interest_of_nobody", {"retention": "interest"}, 1),
        ("workqueue", {"retention": "workqueue"}, 2),
        ("max_msgs", {"max_msgs": 1}, 2),
        ("max_msgs_per_subject", {"max_msgs_per_subject": 1}, 2),
        ("deny_delete", {"deny_delete": True}, 2),
        ("no_ack", {"no_ack": True}, 2),
    ]
)
def into_a_stream_with(t: Script, config: dict[str, Any], last: int) -> None:
    stage(t, "Z", ["z.>"])
    stage(t, **config)
    t.wire.publish("s.1", b"x", headers=dict(once("s.t")))
    together(t, [("z.1", b"later", once("z.t"))])
    content(t, "Z", 2)
    content(t, "S", last)
    t.state("S")


@table([("everything", ""), ("the_schedule_alone", "s.plan.*"), ("the_product_alone", "s.t")])
def into_an_interest_stream_with_a_consumer_of(t: Script, filter: str) -> None:
    stage(t, retention="interest")
    t.consumer("S", "c", **({"filter_subject": filter} if filter else {}))
    stage(t, "Z", ["z.>"])
    together(t, [("s.plan.1", b"x", once("s.t")), ("z.1", b"later", once("z.t"))])
    content(t, "Z", 2)
    content(t, "S", 1 if filter == "s.t" else 2)
    t.numbers("S", "c")


@scenario
def with_a_transform(t: Script) -> None:
    stage(t, subject_transform={"src": "s.>", "dest": "out.>"})
    for target, source in (("s.t", "s.src"), ("out.t", ""), ("s.1", ""), ("out.1", ""), ("s.t", "out.src")):
        headers = {PATTERN: "@at 2030-01-01T00:00:00Z", TARGET: target}
        t.publish("s.1", b"x", headers | ({SOURCE: source} if source else {}))
    t.publish("s.x", b"x", {NEXT: "purge", SCHEDULER: "out.1"})
    t.publish("s.y", b"x", {NEXT: "purge", SCHEDULER: "out.y"})
    t.publish("s.z", b"x", {NEXT: "purge", SCHEDULER: "s.z"})
    t.api("STREAM.PURGE.S")
    last = t.wire.api("STREAM.INFO.S")["state"]["last_seq"]
    together(
        t,
        [
            ("s.src", b"content", None),
            ("s.1", b"1", once("s.t")),
            ("s.2", b"2", once("s.t", (SOURCE, "s.src"))),
            ("s.3", b"3", once("s.4")),
            ("s.4", b"4", {PATTERN: "@at 2030-01-01T00:00:00Z", TARGET: "s.t"}),
        ],
    )
    content(t, "S", last + 8)
    t.state("S", subjects_filter=">")


@scenario
def with_republishing(t: Script) -> None:
    stage(t, republish={"src": "s.t", "dest": "re.x"})
    sid = t.wire.subscribe("re.>")
    together(t, [("s.1", b"x", once("s.t", ("A", "b")))])
    t.frames("republished", t.collect(t.wire, 1, sid=sid))


@scenario
def with_delete_markers(t: Script) -> None:
    stage(t, subject_delete_marker_ttl=5_000_000_000)
    together(
        t,
        [
            ("s.1", b"x", once("s.t1", (TTL, "1s"))),
            ("s.2", b"x", once("s.t2", (TTL, "never"), ("Nats-TTL", "2s"))),
            ("s.3", b"x", {PATTERN: "@every 1h", TARGET: "s.t3", TTL: "1s", "Nats-TTL": "2s"}),
        ],
    )
    content(t, "S", 5)
    t.state("S", subjects_filter=">")


@scenario
def in_an_atomic_batch(t: Script) -> None:
    stage(t, allow_atomic=True)
    batch = {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1"}
    t.publish("s.1", b"x", dict(once("s.t")) | batch)
    t.publish("s.2", b"y", batch | {"Nats-Batch-Sequence": "2", "Nats-Batch-Commit": "1"})
    content(t, "S", 3)
    for headers in (
        HOURLY | {PATTERN: "bad"},
        HOURLY | {TARGET: "zz"},
        HOURLY | {"Nats-Rollup": "all"},
        HOURLY | {"Nats-Rollup": "sub"},
        {SCHEDULER: "s.9"},
        {SCHEDULER: "s.2", NEXT: "purge"},
        {SCHEDULER: "s.9", NEXT: "purge"},
    ):
        t.publish("s.3", b"x", batch | headers)
        t.publish("s.4", b"y", batch | {"Nats-Batch-Sequence": "2", "Nats-Batch-Commit": "1"})
    t.publish("s.5", b"x", batch | HOURLY)
    t.publish("s.6", b"x", batch | {"Nats-Batch-Sequence": "2", SCHEDULER: "s.5", NEXT: "purge"})
    t.publish("s.7", b"y", batch | {"Nats-Batch-Sequence": "3", "Nats-Batch-Commit": "1"})
    t.state("S", subjects_filter=">")


@scenario
def where_it_can_not_be_stored(t: Script) -> None:
    stage(t, "BIG", ["b.>"], max_msg_size=300)
    stage(t, "SEALED", ["q.>"])
    stage(t, "MOVED", ["m.>", "n.>"])
    stage(t, "Z", ["z.>"])
    together(t, [("b.src", b"z" * 290, None), ("b.1", b"x", once("b.t", (SOURCE, "b.src")))])
    together(t, [("q.1", b"x", once("q.t")), ("m.1", b"x", once("n.t"))])
    config = t.wire.api("STREAM.INFO.SEALED")["config"]
    t.setup("STREAM.UPDATE.SEALED", config | {"sealed": True})
    config = t.wire.api("STREAM.INFO.MOVED")["config"]
    t.setup("STREAM.UPDATE.MOVED", config | {"subjects": ["m.>"]})
    together(t, [("z.1", b"x", once("z.t"))])
    content(t, "Z", 2)
    content(t, "BIG", 2)
    content(t, "SEALED", 1)
    content(t, "MOVED", 2)


@scenario
def its_product_is_a_message_like_any_other(t: Script) -> None:
    stage(t)
    t.consumer("S", "c")
    sid = t.wire.subscribe("s.t")
    together(t, [("s.1", b"x", once("s.t", ("A", "b")))])
    content(t, "S", 2)
    t.pull("S", "c", {"batch": 5, "no_wait": True}, 2)
    t.frames("core subscribers", t.wire.ping())
    t.wire.unsubscribe(sid)
    t.direct("S", {"last_by_subj": "s.t"})


@scenario
def what_ends_a_schedule_before_it_is_due(t: Script) -> None:
    stage(t)
    at = soon(0.6)
    plan = [f"s.{how}" for how in ("message", "plain", "deleted", "purged", "revived", "other", "kept")]
    together(t, [(subject, subject.encode(), {PATTERN: at, TARGET: f"{subject}.t"}) for subject in plan])
    t.publish("s.x", b"cancel", {NEXT: "purge", SCHEDULER: "s.message"})
    t.publish("s.plain", b"plain")
    t.api("STREAM.MSG.DELETE.S", {"seq": 3})
    t.api("STREAM.PURGE.S", {"filter": "s.purged"})
    top = t.publish("s.revived", b"on top")
    t.api("STREAM.MSG.DELETE.S", {"seq": top["seq"]})
    t.publish("s.other", b"other", {PATTERN: "@at 2030-01-01T00:00:00Z", TARGET: "s.other.t"})
    content(t, "S", 12)
    t.state("S", subjects_filter=">")


@scenario
def again_and_again(t: Script) -> None:
    stage(t, allow_msg_ttl=True)
    together(
        t,
        [
            ("s.every", b"e", {PATTERN: "@every 1s", TARGET: "s.every.t", "A": "b"}),
            ("s.uneven", b"u", {PATTERN: "@every 1500ms", TARGET: "s.uneven.t", TTL: "5m"}),
            ("s.cron", b"c", {PATTERN: "* * * * * *", TARGET: "s.cron.t", ZONE: "Asia/Kolkata", ROLLUP: "sub"}),
            ("s.src", b"old", {"Of": "source"}),
            ("s.sampled", b"own", {PATTERN: "@every 1s", TARGET: "s.sampled.t", SOURCE: "s.src"}),
        ],
    )
    for subject, count in (("s.every.t", 2), ("s.uneven.t", 1), ("s.cron.t", 1), ("s.sampled.t", 2)):
        planned = t.wire.api("STREAM.MSG.GET.S", {"last_by_subj": subject.removesuffix(".t")})["message"]["time"]
        times = [_seconds(planned) + 0.5]
        times[0] -= times[0] % 1
        seq = 1
        for _ in range(count):
            message = _next_on(t, subject, seq)
            seq = message["seq"] + 1
            lines = base64.b64decode(message["hdrs"]).decode().split("\r\n")
            at = next(n for n, line in enumerate(lines) if line.startswith(f"{NEXT}: "))
            shown = lines[at].removeprefix(f"{NEXT}: ")
            times.append(_seconds(shown))
            lines[at] = f"{NEXT}: …{shown[19:]}"
            t.note(subject, [lines, base64.b64decode(message["data"]).decode()])
        if subject != "s.cron.t":  # some of them were replaced
            t.note(f"seconds between times of {subject}", [b - a for a, b in itertools.pairwise(times)])
    t.note("left", len(t.wire.api("STREAM.INFO.S", {"subjects_filter": "s.cron.t"})["state"]["subjects"]))


def _seconds(text: str) -> float:
    """Return a time in seconds since the epoch, to the microsecond."""
    whole, zone = text[:19], text[19:]
    fraction = zone.rstrip("Z").split("+")[0]
    offset = zone.removeprefix(fraction)
    moment = datetime.fromisoformat(whole + ("+00:00" if offset == "Z" else offset))
    return moment.timestamp() + float(f"0{fraction}" if fraction else "0")


def _next_on(t: Script, subject: str, seq: int) -> Any:
    """Return the first message of a subject from `seq` on, once there is one."""
    deadline = time.monotonic() + t.timeout
    while True:
        answer = t.wire.api("STREAM.MSG.GET.S", {"seq": seq, "next_by_subj": subject})
        if "message" in answer:
            return answer["message"]
        assert time.monotonic() < deadline, f"nothing on {subject}"
        time.sleep(0.02)
