"""Scenarios of counters: increments, their sums, and refusals (docs/internals/streams.md#counters)."""

from __future__ import annotations

import base64
from typing import Any

from tests.conformance.harness import Script, scenario, table

INCR = "Nats-Incr"
SOURCES = "Nats-Counter-Sources"
MSG_ID = "Nats-Msg-Id"
SECOND = 1_000_000_000
CONFIG = {"name": "C", "subjects": ["c.>"], "storage": "memory"}
COUNTER = CONFIG | {"allow_msg_counter": True}


def content(t: Script, stream: str) -> None:
    """Record every message with its headers."""
    state = t.wire.api(f"STREAM.INFO.{stream}")["state"]
    found = []
    for seq in range(max(1, state["first_seq"]), state["last_seq"] + 1):
        message = t.wire.api(f"STREAM.MSG.GET.{stream}", {"seq": seq}).get("message")
        if message:
            block, data = (base64.b64decode(message.get(field, "")) for field in ("hdrs", "data"))
            found.append([seq, message["subject"], block, data])
    t.note(f"content of {stream}", found)
    t.note(f"size of {stream}", [state["messages"], state["bytes"]])


@table(
    [
        ("one", "1"),
        ("plus", "+2"),
        ("minus", "-3"),
        ("zero", "0"),
        ("minus_zero", "-0"),
        ("leading_zeros", "00012"),
        ("leading_blank", " 4"),
        ("trailing_blank", "4 "),
        ("tab", "\t4"),
        ("empty", ""),
        ("blank", " "),
        ("sign_alone", "+"),
        ("two_signs", "+-1"),
        ("fraction", "1.5"),
        ("exponent", "1e3"),
        ("hexadecimal", "0x1"),
        ("underscore", "1_000"),
        ("word", "NaN"),
        ("other_digits", "٣"),
        ("int64", "9223372036854775807"),
        ("beyond_int64", "9223372036854775808"),
        ("thirty_digits", "9" * 30),
        ("thirty_digits_less", "-" + "9" * 30),
        ("five_thousand_digits", "7" * 5000),
    ]
)
def increments(t: Script, value: str) -> None:
    t.stream("C", ["c.>"], allow_msg_counter=True)
    t.stream("P", ["p"])
    for _ in range(2):
        t.publish("c.a", b"", {INCR: value})
    t.publish("c.a", b"", {INCR: "5"})
    t.publish("c.b", b"", {INCR: value, "A": "b"})
    t.publish("p", b"", {INCR: value})
    t.publish("p", b"x", {INCR: value})
    content(t, "C")


@table(
    [
        ("nothing", {}, b""),
        ("a_body", {}, b"x"),
        ("another_header", {"A": "b"}, b""),
        ("other_case", {"nats-incr": "1"}, b""),
        ("increment_and_body", {INCR: "1"}, b"x"),
        ("bad_increment_and_body", {INCR: "x"}, b"x"),
        ("rollup", {INCR: "1", "Nats-Rollup": "sub"}, b""),
        ("empty_rollup", {INCR: "1", "Nats-Rollup": ""}, b""),
        ("expected_stream", {INCR: "1", "Nats-Expected-Stream": "C"}, b""),
        ("expected_other_stream", {INCR: "1", "Nats-Expected-Stream": "D"}, b""),
        ("expected_last", {INCR: "1", "Nats-Expected-Last-Sequence": "2"}, b""),
        ("empty_expected_last", {INCR: "1", "Nats-Expected-Last-Sequence": ""}, b""),
        ("expected_last_of_subject", {INCR: "1", "Nats-Expected-Last-Subject-Sequence": "2"}, b""),
        ("expected_subject", {INCR: "1", "Nats-Expected-Last-Subject-Sequence-Subject": "c.a"}, b""),
        ("expected_id", {INCR: "1", "Nats-Expected-Last-Msg-Id": "i"}, b""),
        ("ttl", {INCR: "1", "Nats-TTL": "5"}, b""),
        ("bad_ttl", {INCR: "1", "Nats-TTL": "x"}, b""),
        ("bad_ttl_alone", {"Nats-TTL": "x"}, b""),
        ("schedule", {INCR: "1", "Nats-Schedule": "@hourly", "Nats-Schedule-Target": "c.t"}, b""),
        ("source", {INCR: "1", "Nats-Stream-Source": "x"}, b""),
        ("known_id", {INCR: "1", MSG_ID: "i"}, b""),
        ("known_id_and_body", {INCR: "1", MSG_ID: "i"}, b"x"),
        ("known_id_alone", {MSG_ID: "i"}, b""),
        ("new_id", {INCR: "1", MSG_ID: "j"}, b""),
        ("rollup_alone", {"Nats-Rollup": "sub"}, b""),
        ("expected_last_alone", {"Nats-Expected-Last-Sequence": "9"}, b""),
        ("trace", {INCR: "1", "Nats-Trace-Dest": "dest"}, b""),
    ]
)
def company(t: Script, headers: dict[str, str], data: bytes) -> None:
    """Record which headers and payloads an increment accepts."""
    t.stream("C", ["c.>"], allow_msg_counter=True)
    t.wire.request("c.a", b"", {INCR: "1"})
    t.wire.request("c.a", b"", {INCR: "1", MSG_ID: "i"})
    t.publish("c.a", data, headers or None)
    t.publish("c.a", b"", {INCR: "1"})
    content(t, "C")


@scenario
def subjects_count_apart(t: Script) -> None:
    t.stream("C", ["c.>"], allow_msg_counter=True, storage="file")
    for subject, value in (("a", "1"), ("b", "10"), ("a", "2"), ("b", "-20"), ("c.d", "7"), ("a", "-3")):
        t.publish(f"c.{subject}", b"", {INCR: value})
    content(t, "C")


@scenario
def a_value_of_one_turn_counts_on(t: Script) -> None:
    t.stream("C", ["c"], allow_msg_counter=True)
    wire = t.wire
    replies = [wire.new_reply() for _ in range(20)]
    for reply in replies:
        wire.publish("c", b"", reply, {INCR: "3"})
    t.note("values", [wire.message(reply).json() for reply in replies])
    content(t, "C")


@scenario
def what_is_removed_counts_no_more(t: Script) -> None:
    t.stream("C", ["c.>"], allow_msg_counter=True)

    def add(value: str = "1") -> None:
        t.publish("c.a", b"", {INCR: value})

    for _ in range(3):
        add()
    t.api("STREAM.MSG.DELETE.C", {"seq": 3})
    add()
    t.api("STREAM.MSG.DELETE.C", {"seq": 1})
    add()
    t.api("STREAM.PURGE.C", {"filter": "c.a", "keep": 1})
    add()
    t.api("STREAM.PURGE.C", {"filter": "c.a"})
    add("5")
    t.api("STREAM.PURGE.C", {"seq": 20})
    add("6")
    content(t, "C")


@table(
    [
        ("per_subject", {"max_msgs_per_subject": 1}),
        ("per_subject_in_files", {"max_msgs_per_subject": 2, "storage": "file"}),
        ("of_messages", {"max_msgs": 3}),
        ("of_bytes", {"max_bytes": 200, "storage": "file"}),
    ]
)
def limits(t: Script, config: dict[str, Any]) -> None:
    """A counter continues while its last message is stored, and restarts at 0 after limits removed it."""
    t.stream("C", ["c.>"], allow_msg_counter=True, **config)
    for subject in "aababbacccac":
        t.publish(f"c.{subject}", b"", {INCR: "1"})
    content(t, "C")


@table([(str(size), size) for size in (23, 30, 34, 35, 36, 37, 40)])
def max_msg_size(t: Script, size: int) -> None:
    """The limit applies to the message as it is stored."""
    t.stream("C", ["c.>"], allow_msg_counter=True, max_msg_size=size)
    for value in ("1", "8", "1", "89", "1"):
        t.publish("c.a", b"", {INCR: value})
    t.publish("c.b", b"", {INCR: "1", "A": "b"})
    t.publish("c.b", b"", {INCR: "1", MSG_ID: "i"})
    content(t, "C")


def _batch(t: Script, members: list[tuple[str, dict[str, str]]]) -> None:
    for n, (subject, headers) in enumerate(members, 1):
        batch = {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": str(n)} | headers
        t.publish(subject, b"", batch | ({"Nats-Batch-Commit": "1"} if n == len(members) else {}))


@scenario
def in_batches(t: Script) -> None:
    t.stream("C", ["c.>"], allow_atomic=True, allow_msg_counter=True)
    t.publish("c.a", b"", {INCR: "7", SOURCES: '{"A":{"x":"1"}}'})
    _batch(t, [("c.a", {INCR: "1"}), ("c.b", {INCR: "1"}), ("c.a", {INCR: "-3"})])
    for wrong in ({}, {INCR: "x"}, {INCR: "1", "Nats-Rollup": "sub"}, {INCR: "1", "Nats-TTL": "5"}):
        _batch(t, [("c.a", {INCR: "1"}), ("c.b", wrong)])
    t.publish("c.a", b"", {INCR: "7"})
    content(t, "C")


@table([(str(size), size) for size in (90, 99, 100, 110, 120)])
def max_msg_size_in_batches(t: Script, size: int) -> None:
    t.stream("C", ["c.>"], allow_atomic=True, allow_msg_counter=True, max_msg_size=size)
    _batch(t, [("c.a", {INCR: "1"}), ("c.a", {INCR: "9"}), ("c.a", {INCR: "100000000"})])
    content(t, "C")


@table(
    [
        ("one", '{"A":{"x":"1"}}'),
        ("several", '{"b":{"y":"2","x":"1"},"a":{"z":"<&>"}}'),
        ("blanks", ' {"a":{"b":"c"}} '),
        ("none", "{}"),
        ("null", "null"),
        ("null_inside", '{"a":null}'),
        ("nothing_inside", '{"a":{}}'),
        ("no_json", "zz"),
        ("list", "[]"),
        ("number", '{"a":{"b":1}}'),
        ("text", '"a"'),
    ]
)
def sources(t: Script, told: str) -> None:
    """The totals of sources in a message are carried over to the next message of its subject."""
    t.stream("C", ["c.>"], allow_msg_counter=True)
    t.publish("c.a", b"", {INCR: "1", SOURCES: told})
    t.publish("c.a", b"", {INCR: "1", "A": "b"})
    t.publish("c.a", b"", {INCR: "1", SOURCES: '{"Q":{"q":"1"}}', "A": "b"})
    t.publish("c.b", b"", {INCR: "1"})
    content(t, "C")


@scenario
def delivered_like_any_message(t: Script) -> None:
    t.stream("C", ["c.>"], allow_msg_counter=True, allow_direct=True)
    t.consumer("C", "d")
    for value in ("1", "2", "-9"):
        t.publish("c.a", b"", {INCR: value, "A": "b"})
    t.pull("C", "d", {"batch": 3, "no_wait": True}, 3)
    t.direct("C", {"last_by_subj": "c.a"})
    t.direct("C", {"multi_last": ["c.>"]}, 0)


@scenario
def a_sealed_counter_stream_takes_nothing(t: Script) -> None:
    t.stream("C", ["c"], allow_msg_counter=True)
    t.publish("c", b"", {INCR: "1"})
    t.setup("STREAM.UPDATE.C", COUNTER | {"subjects": ["c"], "sealed": True})
    for headers in ({INCR: "1"}, {INCR: "x"}, {}):
        t.publish("c", b"", headers)


@scenario
def unacknowledged_increments_count(t: Script) -> None:
    t.stream("C", ["c"], allow_msg_counter=True, no_ack=True)
    t.stream("D", ["d"], allow_msg_counter=True)
    t.wire.publish("c", b"", "", {INCR: "1"})
    t.wire.publish("c", b"", t.wire.new_reply(), {INCR: "1"})
    t.wire.publish("d", b"", "", {INCR: "4"})
    t.publish("d", b"", {INCR: "4"})
    t.state_when("C", lambda state: state["messages"] == 2)
    content(t, "C")


@table(
    [
        ("discard_new", {"discard": "new"}),
        ("ttl", {"allow_msg_ttl": True}),
        ("markers", {"subject_delete_marker_ttl": SECOND}),
        ("schedules", {"allow_msg_schedules": True}),
        ("interest", {"retention": "interest"}),
        ("workqueue", {"retention": "workqueue"}),
        ("max_age", {"max_age": 60 * SECOND}),
        ("rollups", {"allow_rollup_hdrs": True}),
        ("no_duplicate_window", {"duplicate_window": 100_000_000}),
        ("first_sequence", {"first_seq": 50}),
    ]
)
def configuration(t: Script, fields: dict[str, Any]) -> None:
    t.api("STREAM.CREATE.C", COUNTER | fields)
    t.publish("c.a", b"", {INCR: "1"})
    t.publish("c.a", b"", {INCR: "1", "Nats-Rollup": "all"})
    t.api("STREAM.UPDATE.C", CONFIG | fields)
    t.api("STREAM.UPDATE.C", COUNTER | fields | {"max_msgs": 1})
    t.publish("c.a", b"", {INCR: "1"})


@scenario
def a_stream_does_not_become_a_counter(t: Script) -> None:
    t.api("STREAM.CREATE.C", CONFIG)
    t.api("STREAM.UPDATE.C", COUNTER)
    t.publish("c.a", b"", {INCR: "1"})
