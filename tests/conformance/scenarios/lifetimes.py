"""Scenarios of TTLs, max_age, delete markers, and the order of the header checks (docs/internals/streams.md)."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from tests.conformance.harness import Script, scenario, table
from tests.conformance.scenarios.counters import content

SECOND = 1_000_000_000
TTL = "Nats-TTL"
INCR = "Nats-Incr"
MARKED = {"subject_delete_marker_ttl": SECOND}

VALUES = (
    "5",
    "0",
    "-1",
    "5s",
    "1500ms",
    "999ms",
    "1s",
    "1m30s",
    "never",
    "NEVER",
    "01",
    "000000000000000000000005",
    "+5",
    "1S",
    "1d",
    "1.5",
    "1.5s",
    "0s",
    "2562047h",
    "2562048h",
    "9223372036",
    "9223372037",
    "9223372036854775807",
    "9223372036854775808",
    "1e3",
    "-5s",
    "+5s",
    "1h-5s",
    "1_0",
    "0x5",
    "1s500ms",
    "1us",
    "1000000us",
    ".5s",
    "1.s",
    "1.s1.s",
    "m",
    "9223372036854s",
    "0h1s",
    "1hs",
    "nev",
    "5µs",
    "1000000µs",
)


SPACED = (" 5", "5 ", "5s ", " never", "never ", "1s 500ms", "5\t", "\u0665", "")


@table([(repr(value), value) for value in (*VALUES, *SPACED)])
def values(t: Script, value: str) -> None:
    """Record valid and invalid TTL values: with TTLs enabled, disabled, and with delete markers."""
    t.stream("ON", ["on"], allow_msg_ttl=True)
    t.stream("OFF", ["off"])
    t.stream("MARKED", ["marked"], subject_delete_marker_ttl=90 * SECOND)
    for subject in ("on", "off", "marked"):
        t.publish(subject, b"x", {TTL: value, "A": "b"})
    content(t, "OFF")
    content(t, "MARKED")


def _block(*lines: str) -> bytes:
    return "\r\n".join(["NATS/1.0", *lines, "", ""]).encode()


@table(
    [
        ("first", {}, _block("Nats-TTL: 1", "Foo: bar")),
        ("last", {}, _block("Foo: bar", "Nats-TTL: 1")),
        ("in_the_middle", {}, _block("A: b", "Nats-TTL:1s", "C: d")),
        ("alone", {}, _block("Nats-TTL: 1")),
        ("twice", {}, _block("Nats-TTL: 1", "A: b", "Nats-TTL: 9h")),
        ("twice_and_long", {}, _block("Nats-TTL: 9h", "Nats-TTL: 1")),
        ("twice_and_bad", {}, _block("Nats-TTL: 1", "Nats-TTL: x")),
        ("as_long", {}, _block("Nats-TTL: 90")),
        ("as_long_in_minutes", {}, _block("Nats-TTL: 1m30s")),
        ("cut_to_as_long", {}, _block("Nats-TTL: 90900ms")),
        ("cut_below", {}, _block("Nats-TTL: 89900ms")),
        ("longer", {}, _block("Nats-TTL: 91")),
        ("never", {}, _block("Nats-TTL: never")),
        ("one_per_subject", {"max_msgs_per_subject": 1}, _block("Nats-TTL: 1")),
        ("two_per_subject", {"max_msgs_per_subject": 2}, _block("Nats-TTL: 1")),
        ("rollup", {}, _block("Nats-Rollup: sub", "Nats-TTL: 1")),
        ("id", {}, _block("Nats-Msg-Id: i", "Nats-TTL: 1")),
        ("marker_of_a_client", {}, _block("Nats-Marker-Reason: MaxAge", "Nats-TTL: 1")),
        ("half_a_second_more", {"subject_delete_marker_ttl": 1500 * 1_000_000}, _block("Nats-TTL: 1")),
        ("two_and_a_half", {"subject_delete_marker_ttl": 2500 * 1_000_000}, _block("Nats-TTL: 1")),
    ]
)
def raised(t: Script, config: dict[str, Any], block: bytes) -> None:
    """The TTL of a message is raised to that of its delete marker."""
    t.stream("S", ["a"], **{"subject_delete_marker_ttl": 90 * SECOND, "storage": "file"} | config)
    t.publish("a", b"x", block)
    content(t, "S")


@scenario
def raised_in_a_batch(t: Script) -> None:
    t.stream("S", ["s.>"], allow_atomic=True, subject_delete_marker_ttl=90 * SECOND)
    for n, ttl in enumerate(("1", "never", "100", "x"), 1):
        headers = {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": str(n), TTL: ttl}
        t.publish(f"s.{n}", b"x", headers | ({"Nats-Batch-Commit": "1"} if n == 3 else {}))
    content(t, "S")


# ------------------------------------------------------------------------------------------------ order of the checks
CONDITIONS = {
    "ttl_bad": (TTL, "x"),
    "ttl": (TTL, "5"),
    "incr_bad": (INCR, "x"),
    "incr": (INCR, "1"),
    "stream": ("Nats-Expected-Stream", "NO"),
    "last": ("Nats-Expected-Last-Sequence", "99"),
    "last_of_subject": ("Nats-Expected-Last-Subject-Sequence", "98"),
    "subject": ("Nats-Expected-Last-Subject-Sequence-Subject", "a"),
    "last_id": ("Nats-Expected-Last-Msg-Id", "zz"),
    "rollup_bad": ("Nats-Rollup", "bad"),
    "rollup": ("Nats-Rollup", "sub"),
    "source": ("Nats-Stream-Source", "x"),
    "schedule": ("Nats-Schedule", "x"),
    "scheduler": ("Nats-Scheduler", "x"),
    "batch": ("Nats-Batch-Id", "b"),
    "known_id": ("Nats-Msg-Id", "known"),
}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ttl": {"allow_msg_ttl": True},
    "counter": {"allow_msg_counter": True},
    "full": {"allow_msg_ttl": True, "discard": "new", "max_msgs": 1},
    "marked": MARKED,
}


@table([(f"{kind}-{one}", config, one) for kind, config in KINDS.items() for one in CONDITIONS])
def order(t: Script, config: dict[str, Any], one: str) -> None:
    """Record which of two violations is reported, for all that can be combined with `one`."""
    t.stream("S", ["s"], **config)
    t.wire.request("s", b"", {"Nats-Msg-Id": "known"} | ({INCR: "1"} if "allow_msg_counter" in config else {}))
    for other in CONDITIONS:
        name, value = CONDITIONS[other]
        frame = t.wire.request("s", b"", dict([CONDITIONS[one], (name, value)]))
        t.note(f"{one} and {other}", frame.json())
    t.state("S")


# ------------------------------------------------------------------------------------------------ expiry
class Life(NamedTuple):
    """Messages (subject, headers) of a stream, and its state once those with a TTL have expired."""

    config: dict[str, Any]
    messages: list[tuple[str, dict[str, str]]]
    after: tuple[int, int]
    """(messages, last_seq)"""


SOON = {TTL: "1"}
LIVES = {
    "no_markers": Life({"allow_msg_ttl": True}, [("a", SOON), ("b", {}), ("c", SOON)], (1, 3)),
    "alone": Life(MARKED, [("a", SOON)], (1, 2)),
    "in_a_file": Life(MARKED | {"storage": "file"}, [("a", SOON)], (1, 2)),
    "both": Life(MARKED, [("a", SOON), ("a", SOON)], (1, 3)),
    "older_stays": Life(MARKED, [("a", {}), ("a", SOON)], (1, 2)),
    "newer_stays": Life(MARKED, [("a", SOON), ("a", {})], (1, 2)),
    "kv_purge": Life(MARKED, [("a", SOON | {"KV-Operation": "PURGE"})], (0, 1)),
    "kv_delete": Life(MARKED, [("a", SOON | {"KV-Operation": "DEL"})], (1, 2)),
    "kv_purge_in_small_letters": Life(MARKED, [("a", SOON | {"KV-Operation": "purge"})], (1, 2)),
    "marker_of_a_client": Life(MARKED, [("a", SOON | {"Nats-Marker-Reason": "Remove"})], (0, 1)),
    "rollup": Life(MARKED, [("a", {}), ("a", SOON | {"Nats-Rollup": "sub"})], (1, 3)),
    "one_per_subject": Life(MARKED | {"max_msgs_per_subject": 1}, [("a", SOON)], (1, 2)),
    "full_subject": Life(
        MARKED | {"max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": True}, [("a", SOON)], (1, 2)
    ),
    "work_queue": Life(MARKED | {"retention": "workqueue"}, [("a", SOON)], (1, 2)),
    "no_ack": Life(MARKED | {"allow_direct": True}, [("a", SOON)], (1, 2)),
    "first_sequence": Life(MARKED | {"first_seq": 40}, [("a", SOON)], (1, 41)),
    "half_a_second": Life({"subject_delete_marker_ttl": 1500 * 1_000_000}, [("a", SOON)], (1, 2)),
    "deny_delete": Life(MARKED | {"deny_delete": True}, [("a", SOON)], (1, 2)),
}


@scenario
def messages_run_out(t: Script) -> None:
    """Messages expire by their own TTL; then the markers expire, without further markers."""
    for name, life in LIVES.items():
        t.stream(name, [f"{name}.*"], **life.config)
    for name, life in LIVES.items():
        for subject, headers in life.messages:
            t.wire.request(f"{name}.{subject}", b"x", headers)
    for name, life in LIVES.items():
        t.state_when(name, lambda state, life=life: (state["messages"], state["last_seq"]) == life.after)
        content(t, name)
    for name, life in LIVES.items():
        left = sum(TTL not in headers for _, headers in life.messages) if name != "rollup" else 0
        t.state_when(name, lambda state, left=left: state["messages"] == left)


def _follow(t: Script, stream: str) -> str:
    """Deliver every message of a stream to a new subscription."""
    sid = t.wire.subscribe(f"to.{stream}")
    config = {"deliver_subject": f"to.{stream}", "ack_policy": "none", "durable_name": "f"}
    t.setup(f"CONSUMER.CREATE.{stream}.f", {"stream_name": stream, "config": config})
    return sid


@table(
    [
        ("no_markers", {}, ["a", "b", "a", "c"], 4),
        ("markers", MARKED, ["a", "b", "a", "c"], 7),
        ("markers_in_a_file", MARKED | {"storage": "file"}, ["a", "b", "a", "c"], 7),
        ("longer_markers", {"subject_delete_marker_ttl": 90 * SECOND}, ["a"], 2),
    ]
)
def a_stream_grows_old(t: Script, config: dict[str, Any], subjects: list[str], frames: int) -> None:
    t.stream("S", ["s.*"], max_age=300_000_000, **config)
    sid = _follow(t, "S")
    for subject in subjects:
        t.publish(f"s.{subject}", b"x")
    t.note("all", [[frame.subject, frame.header, frame.data] for frame in t.collect(t.wire, frames, sid=sid)])
    t.state_when("S", lambda state: not state["messages"])
    t.numbers("S", "f")


@scenario
def some_never_grow_old(t: Script) -> None:
    t.stream("S", ["s.*"], max_age=300_000_000, allow_msg_ttl=True)
    t.stream("M", ["m.*"], max_age=300_000_000, **MARKED)
    for stream in "sm":
        for subject, headers in (
            ("a", {TTL: "never"}),
            ("a", {}),
            ("b", {}),
            ("c", {TTL: "5h"}),
            ("d", {TTL: "never"}),
            ("e", {}),
        ):
            t.publish(f"{stream}.{subject}", b"x", headers)
    t.state_when("S", lambda state: state["messages"] == 2)
    content(t, "S")
    t.state_when("M", lambda state: state["last_seq"] == 9 and state["messages"] == 2)
    content(t, "M")
    t.publish("s.a", b"y")
    t.state_when("S", lambda state: state["messages"] == 2 and state["last_seq"] == 7)
    t.api("STREAM.PURGE.S", {"keep": 1})
    t.state("S")


@scenario
def a_new_age_takes_effect_at_once(t: Script) -> None:
    t.stream("S", ["s.*"], max_age=3600 * SECOND)
    t.stream("T", ["t.*"])
    t.stream("U", ["u.*"], max_age=3600 * SECOND, allow_msg_ttl=True)
    for subject in ("s.a", "t.a", "u.a"):
        t.publish(subject)
    t.publish("u.b", b"", {TTL: "1"})
    for stream in "ST":
        config = {"name": stream, "subjects": [f"{stream.lower()}.*"], "storage": "memory"}
        t.setup(f"STREAM.UPDATE.{stream}", config | {"max_age": 200_000_000})
    t.state_when("S", lambda state: not state["messages"])
    t.state_when("T", lambda state: not state["messages"])
    t.state_when("U", lambda state: state["messages"] == 1)


@scenario
def what_may_come_meanwhile(t: Script) -> None:
    """Record deletes, purges and publishes before a TTL expires, enabling of markers, and waiting consumers."""
    t.stream("DELETED", ["deleted"], **MARKED)
    t.stream("PURGED", ["purged"], **MARKED)
    t.stream("LATER", ["later"], allow_msg_ttl=True)
    t.stream("INTEREST", ["interest.*"], retention="interest", **MARKED)
    t.consumer("INTEREST", "c", filter_subject="interest.a")
    t.stream("WAITED", ["waited"], **MARKED)
    t.consumer("WAITED", "c")
    for subject, headers in (
        ("deleted", SOON),
        ("deleted", {}),
        ("purged", SOON),
        ("later", SOON),
        ("interest.a", SOON),
        ("interest.b", SOON),
        ("waited", SOON),
    ):
        t.publish(subject, b"x", headers)
    t.api("STREAM.MSG.DELETE.DELETED", {"seq": 2})
    t.api("STREAM.PURGE.PURGED")
    config = {"name": "LATER", "subjects": ["later"], "storage": "memory", "allow_msg_ttl": True}
    t.setup("STREAM.UPDATE.LATER", config | {"subject_delete_marker_ttl": 90 * SECOND})
    frames = t.pull("WAITED", "c", {"batch": 1}, 1)
    for stream, last in (("DELETED", 3), ("LATER", 2), ("INTEREST", 3), ("WAITED", 2)):
        t.state_when(stream, lambda state, last=last: state["last_seq"] == last)
        content(t, stream)
    content(t, "PURGED")
    t.numbers("WAITED", "c")
    t.pull("WAITED", "c", {"batch": 1}, 1)
    t.ack(frames[0])
    t.numbers("INTEREST", "c")


@scenario
def markers_are_published_again(t: Script) -> None:
    t.stream("S", ["s.*"], republish={"src": "s.*", "dest": "again.$1"}, **MARKED)
    sid = t.wire.subscribe("again.>")
    t.publish("s.a", b"x", SOON)
    t.frames("again", t.collect(t.wire, 2, sid=sid))


@scenario
def a_known_id_outlives_its_message(t: Script) -> None:
    t.stream("S", ["s"], allow_msg_ttl=True)
    t.publish("s", b"x", SOON | {"Nats-Msg-Id": "i"})
    t.state_when("S", lambda state: not state["messages"])
    t.publish("s", b"x", {"Nats-Msg-Id": "i"})
    t.publish("s", b"y", {"Nats-Expected-Last-Subject-Sequence": "0"})


@scenario
def a_sealed_stream_loses_what_runs_out(t: Script) -> None:
    t.stream("S", ["s.*"], allow_msg_ttl=True)
    t.publish("s.a", b"x", SOON)
    t.publish("s.b", b"x")
    config = {"name": "S", "subjects": ["s.*"], "storage": "memory", "allow_msg_ttl": True}
    t.setup("STREAM.UPDATE.S", config | {"sealed": True})
    t.state_when("S", lambda state: state["messages"] == 1)


ROLLUPS = list(itertools.product(("limits", "interest"), ("x.a", "x.>"), ("sub", "all"), (False, True), (False, True)))


@table([("-".join(map(str, row)), *row) for row in ROLLUPS])
def a_rollup_and_a_consumer(t: Script, retention: str, wanted: str, scope: str, others: bool, pulled: bool) -> None:
    """Consumers skip messages replaced by a rollup or a marker as if they had been purged."""
    t.stream("S", ["x.>"], retention=retention, allow_rollup_hdrs=True)
    t.consumer("S", "c", filter_subject=wanted)
    if others:
        t.fill_seen("S", "c", ["x.b"], matching=int(wanted == "x.>"))
    t.fill_seen("S", "c", ["x.a", "x.a"])
    if pulled:
        t.pull("S", "c", {"batch": 1}, 1)
    t.publish("x.a", b"y", {"Nats-Rollup": scope})
    t.numbers_when(
        "S", "c", lambda numbers: numbers["num_pending"] >= 1 and numbers["delivered"]["stream_seq"] >= pulled
    )
    t.state("S")
    t.pull("S", "c", {"batch": 5, "no_wait": True}, 1)
    t.numbers("S", "c")
