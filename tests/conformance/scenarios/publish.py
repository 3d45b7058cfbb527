"""Scenarios of publishing into streams: acks, header conditions, duplicates, rollup.

See docs/internals/streams.md#publish-headers and docs/internals/api.md#pub-acks.
"""

from __future__ import annotations

import time
from typing import Any

from tests.conformance.harness import Script, scenario, table
from tests.wire import header_block

SECOND = 1_000_000_000
EXPECTED_LAST = "Nats-Expected-Last-Sequence"
EXPECTED_LAST_SUBJECT = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_SUBJECT = "Nats-Expected-Last-Subject-Sequence-Subject"
EXPECTED_ID = "Nats-Expected-Last-Msg-Id"
EXPECTED_STREAM = "Nats-Expected-Stream"
MSG_ID = "Nats-Msg-Id"
ROLLUP = "Nats-Rollup"
OTHER_CONDITIONS = (
    EXPECTED_STREAM,
    EXPECTED_LAST_SUBJECT,
    EXPECTED_SUBJECT,
    "Nats-Incr",
    "Nats-Schedule",
    "Nats-Schedule-Next",
    "Nats-Scheduler",
    "Nats-Stream-Source",
    "Nats-Batch-Id",
)


@scenario
def acks_count_up(t: Script) -> None:
    t.stream("S", ["a.>"])
    for n in range(3):
        t.publish(f"a.{n}", b"x" * n)
    t.publish("a.with.headers", b"y", {"A": "b", "C": "d"})
    t.state("S")


@scenario
def without_a_reply_it_is_stored_too(t: Script) -> None:
    t.stream("S", ["a"])
    t.wire.publish("a", b"quiet")
    t.publish("a", b"loud")
    t.state("S")


@scenario
def core_subscribers_get_it_too(t: Script) -> None:
    t.stream("S", ["a"])
    other = t.connect()
    sid = other.subscribe("a")
    other.ping()
    t.publish("a", b"x", {"A": "b"})
    frame = other.delivered(sid)
    t.note("core", [frame.data, frame.header, bool(frame.reply)])


@scenario
def streams_apart(t: Script) -> None:
    t.stream("S", ["a.*"])
    t.stream("T", ["b.*"], storage="file")
    for subject in ("a.1", "b.1", "a.2", "b.2", "b.3"):
        t.publish(subject)
    t.frames("neither", [t.wire.request("c.1")])
    t.state("S")
    t.state("T")


@scenario
def no_ack_stream_stores_silently(t: Script) -> None:
    t.stream("S", ["a"], no_ack=True)
    wire = t.wire
    wire.publish("a", b"x", wire.new_reply())
    t.state_when("S", lambda state: state["messages"] == 1)
    t.frames("nothing", wire.ping())


@scenario
def interest_stream_without_consumers_acks_and_drops(t: Script) -> None:
    t.stream("S", ["a"], retention="interest")
    t.publish("a", b"x")
    t.publish("a", b"y")
    t.state("S")


@scenario
def first_sequence_is_respected(t: Script) -> None:
    t.stream("S", ["a"], first_seq=100)
    t.state("S")
    t.publish("a")
    t.publish("a")
    t.state("S")


# Each row: the first sequence of a stream. For those above 2^62 see differences.py.
@table(
    [
        ("highest", 1 << 62),
        ("above", (1 << 62) + 1),
        ("int64", (1 << 63) - 1),
        ("beyond_int64", 1 << 63),
        ("last_but_one", (1 << 64) - 2),
        ("last", (1 << 64) - 1),
    ]
)
def first_sequence_is_huge(t: Script, first: int) -> None:
    answer = t.api("STREAM.CREATE.S", {"name": "S", "subjects": ["a"], "storage": "file", "first_seq": first})
    if "error" in answer or first > 1 << 62:
        return  # after its last sequence nats-server continues with 0
    t.state("S")
    t.publish("a", b"x")
    t.publish("a", b"y")
    t.state("S")  # nothing further: nats-server does not find the second one


# Each row: headers, published to `a.1` on a stream whose last message is 4, last of a.1 is 3, last id is `id3`.
@table(
    [
        ("stream_right", {EXPECTED_STREAM: "S"}),
        ("stream_wrong", {EXPECTED_STREAM: "T"}),
        ("last_right", {EXPECTED_LAST: "4"}),
        ("last_wrong", {EXPECTED_LAST: "3"}),
        ("last_zero", {EXPECTED_LAST: "0"}),
        ("last_beyond", {EXPECTED_LAST: "44"}),
        ("last_no_number", {EXPECTED_LAST: "four"}),
        ("last_negative", {EXPECTED_LAST: "-1"}),
        ("last_empty", {EXPECTED_LAST: ""}),
        ("last_with_blanks_after", {EXPECTED_LAST: "4 "}),
        ("last_overflow", {EXPECTED_LAST: "99999999999999999999999"}),
        ("last_plus_sign", {EXPECTED_LAST: "+4"}),
        ("subject_right", {EXPECTED_LAST_SUBJECT: "3"}),
        ("subject_wrong", {EXPECTED_LAST_SUBJECT: "2"}),
        ("subject_stream_last", {EXPECTED_LAST_SUBJECT: "4"}),
        ("subject_zero", {EXPECTED_LAST_SUBJECT: "0"}),
        ("subject_no_number", {EXPECTED_LAST_SUBJECT: "x"}),
        ("other_subject_right", {EXPECTED_LAST_SUBJECT: "4", EXPECTED_SUBJECT: "a.2"}),
        ("other_subject_wrong", {EXPECTED_LAST_SUBJECT: "3", EXPECTED_SUBJECT: "a.2"}),
        ("other_subject_wildcard", {EXPECTED_LAST_SUBJECT: "4", EXPECTED_SUBJECT: "a.*"}),
        ("other_subject_wildcard_wrong", {EXPECTED_LAST_SUBJECT: "3", EXPECTED_SUBJECT: "a.*"}),
        ("other_subject_absent", {EXPECTED_LAST_SUBJECT: "0", EXPECTED_SUBJECT: "a.9"}),
        ("other_subject_alone", {EXPECTED_SUBJECT: "a.2"}),
        ("id_right", {EXPECTED_ID: "id3"}),
        ("id_wrong", {EXPECTED_ID: "id2"}),
        ("id_unknown", {EXPECTED_ID: "zzz"}),
        ("id_empty", {EXPECTED_ID: ""}),
        ("all_right", {EXPECTED_STREAM: "S", EXPECTED_LAST: "4", EXPECTED_LAST_SUBJECT: "3", EXPECTED_ID: "id3"}),
        ("first_failure_is_told", {EXPECTED_STREAM: "T", EXPECTED_LAST: "1", EXPECTED_ID: "no"}),
        ("subject_before_stream_sequence", {EXPECTED_LAST: "1", EXPECTED_LAST_SUBJECT: "1"}),
        ("duplicate", {MSG_ID: "id2"}),
        ("duplicate_with_trailing_blank", {MSG_ID: "id2 "}),
        ("new_id", {MSG_ID: "id4"}),
        ("empty_id", {MSG_ID: ""}),
        ("duplicate_with_stale_sequence", {MSG_ID: "id3", EXPECTED_LAST: "2"}),
        ("duplicate_with_right_sequence", {MSG_ID: "id3", EXPECTED_LAST: "4"}),
        ("duplicate_with_wrong_last_id", {MSG_ID: "id3", EXPECTED_ID: "no"}),
        ("duplicate_with_wrong_stream", {MSG_ID: "id3", EXPECTED_STREAM: "T"}),
        ("header_names_are_case_sensitive", {"nats-expected-last-sequence": "1", "nats-msg-id": "id3"}),
        ("rollup_not_allowed", {ROLLUP: "sub"}),
        ("rollup_all_not_allowed", {ROLLUP: "all"}),
        ("rollup_unknown_not_allowed", {ROLLUP: "some"}),
        ("stream_source", {"Nats-Stream-Source": "x"}),
        ("increment_not_allowed", {"Nats-Incr": "1"}),
        ("ttl_not_allowed", {"Nats-TTL": "5s"}),
        ("batch_not_allowed", {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1"}),
        ("schedule_not_allowed", {"Nats-Schedule": "@at 2030-01-01T00:00:00Z", "Nats-Schedule-Target": "a.x"}),
        ("own_nats_headers_are_kept", {"Nats-Something": "1", "Nats-Sequence": "7", "Status": "503"}),
        *((f"empty_{name.lower()}", {name: ""}) for name in OTHER_CONDITIONS),
        ("blanks_only", {EXPECTED_LAST: "   "}),
        ("required_level_is_ignored", {"Nats-Required-Api-Level": "99"}),
    ]
)
def conditions(t: Script, headers: dict[str, str]) -> None:
    t.stream("S", ["a.*"])
    for n, subject in enumerate(("a.1", "a.2", "a.1"), 1):
        t.fill([subject], headers={MSG_ID: f"id{n}"})
    t.fill(["a.2"])
    t.publish("a.1", b"judged", headers)
    t.state("S", subjects_filter=">")
    t.api("STREAM.MSG.GET.S", {"seq": 5})
    t.publish("a.1", b"next")


@scenario
def conditions_on_an_empty_stream(t: Script) -> None:
    t.stream("S", ["a.*"])
    t.publish("a.1", b"x", {EXPECTED_LAST: "1"})
    t.publish("a.1", b"x", {EXPECTED_ID: "no"})
    t.publish("a.1", b"x", {EXPECTED_LAST_SUBJECT: "1"})
    t.publish("a.1", b"x", {EXPECTED_LAST: "0", EXPECTED_LAST_SUBJECT: "0"})
    t.publish("a.1", b"x", {EXPECTED_LAST: "0"})


@scenario
def conditions_after_deletes(t: Script) -> None:
    t.stream("S", ["a.*"])
    t.fill(["a.1", "a.2", "a.1", "a.2"])
    t.setup("STREAM.MSG.DELETE.S", {"seq": 3})
    t.publish("a.1", b"x", {EXPECTED_LAST_SUBJECT: "3"})
    t.publish("a.1", b"x", {EXPECTED_LAST_SUBJECT: "1"})
    t.setup("STREAM.PURGE.S")
    t.publish("a.1", b"x", {EXPECTED_LAST_SUBJECT: "5"})
    t.publish("a.1", b"x", {EXPECTED_LAST_SUBJECT: "0", EXPECTED_LAST: "5"})


@scenario
def compare_and_set_loop(t: Script) -> None:
    t.stream("KV_b", ["$KV.b.>"], max_msgs_per_subject=1, discard="new", allow_rollup_hdrs=True, deny_delete=True)
    for headers in (
        {EXPECTED_LAST_SUBJECT: "0"},
        {EXPECTED_LAST_SUBJECT: "0"},
        {EXPECTED_LAST_SUBJECT: "1"},
        {EXPECTED_LAST_SUBJECT: "1"},
        {"KV-Operation": "DEL", EXPECTED_LAST_SUBJECT: "2"},
        {"KV-Operation": "PURGE", ROLLUP: "sub"},
        {EXPECTED_LAST_SUBJECT: "4"},
    ):
        t.publish("$KV.b.key", b"v", headers)
    t.state("KV_b", subjects_filter=">")


@scenario
def duplicates_across_subjects_and_time(t: Script) -> None:
    t.stream("S", ["a.*"])
    t.publish("a.1", b"1", {MSG_ID: "x"})
    t.publish("a.2", b"2", {MSG_ID: "x"})
    t.publish("a.1", b"3", {MSG_ID: "X"})
    t.publish("a.1", b"4", {MSG_ID: "y"})
    t.publish("a.1", b"5", {MSG_ID: "y"})
    t.state("S", subjects_filter=">")


@scenario
def duplicates_are_forgotten_after_the_window(t: Script) -> None:
    t.stream("S", ["a"], duplicate_window=SECOND // 5)
    t.publish("a", b"1", {MSG_ID: "x"})
    t.publish("a", b"1", {MSG_ID: "x"})
    deadline = time.monotonic() + 5
    while t.wire.request("a", b"2", {MSG_ID: "x"}).json().get("duplicate") and time.monotonic() < deadline:
        time.sleep(0.01)
    t.state("S")


@scenario
def duplicates_survive_purge_and_delete(t: Script) -> None:
    t.stream("S", ["a"])
    t.publish("a", b"1", {MSG_ID: "x"})
    t.setup("STREAM.MSG.DELETE.S", {"seq": 1})
    t.publish("a", b"1", {MSG_ID: "x"})
    t.publish("a", b"1", {MSG_ID: "y"})
    t.setup("STREAM.PURGE.S")
    t.publish("a", b"1", {MSG_ID: "y"})
    t.state("S")


@scenario
def duplicate_of_a_refused_message_is_new(t: Script) -> None:
    t.stream("S", ["a"], max_msgs=1, discard="new")
    t.publish("a", b"1", {MSG_ID: "x"})
    t.publish("a", b"2", {MSG_ID: "y"})
    t.setup("STREAM.PURGE.S")
    t.publish("a", b"2", {MSG_ID: "y"})
    t.publish("a", b"2", {MSG_ID: "y"})


# Each row: the value of Nats-Rollup on a stream that allows it.
@table([("sub", "sub"), ("all", "all"), ("sub_upper", "SUB"), ("all_mixed", "All"), ("unknown", "some"), ("empty", "")])
def rollup(t: Script, value: str) -> None:
    t.stream("S", ["a.*"], allow_rollup_hdrs=True)
    t.fill(["a.1", "a.2", "a.1", "a.3", "a.2"])
    t.publish("a.2", b"sum", {ROLLUP: value})
    t.state("S", subjects_filter=">", deleted_details=True)
    t.api("STREAM.MSG.GET.S", {"last_by_subj": "a.2"})


@scenario
def rollup_with_a_condition(t: Script) -> None:
    t.stream("S", ["a.*"], allow_rollup_hdrs=True)
    t.fill(["a.1", "a.2", "a.1"])
    t.publish("a.1", b"sum", {ROLLUP: "sub", EXPECTED_LAST_SUBJECT: "1"})
    t.publish("a.1", b"sum", {ROLLUP: "sub", EXPECTED_LAST_SUBJECT: "3"})
    t.publish("a.2", b"sum", {ROLLUP: "all", EXPECTED_LAST: "3"})
    t.publish("a.2", b"sum", {ROLLUP: "all", EXPECTED_LAST: "4"})
    t.state("S", subjects_filter=">")


@scenario
def rollup_on_an_empty_stream(t: Script) -> None:
    t.stream("S", ["a.*"], allow_rollup_hdrs=True)
    t.publish("a.1", b"x", {ROLLUP: "all"})
    t.publish("a.1", b"x", {ROLLUP: "sub"})
    t.state("S")


# Each row: a raw header block, which is stored and returned unchanged.
@table(
    [
        ("repeated_field", b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n"),
        (
            "repeated_condition_first_counts",
            b"NATS/1.0\r\nNats-Expected-Last-Sequence: 0\r\nNats-Expected-Last-Sequence: 9\r\n\r\n",
        ),
        ("no_blank_after_colon", b"NATS/1.0\r\nNats-Msg-Id:x\r\n\r\n"),
        ("many_blanks_after_colon", b"NATS/1.0\r\nNats-Msg-Id:    x\r\n\r\n"),
        ("empty_block", b"NATS/1.0\r\n\r\n"),
        ("status_line", b"NATS/1.0 503 No\r\n\r\n"),
        ("status_line_and_a_field", b"NATS/1.0 503\r\nA: b\r\n\r\n"),
        ("status_line_and_an_id", b"NATS/1.0  503 a b\r\nNats-Msg-Id: u\r\n\r\n"),
        ("status_that_is_none", b"NATS/1.0 x\r\n\r\n"),
        ("status_without_blank", b"NATS/1.0503\r\n\r\n"),
        ("status_of_another_version", b"NATS/1.1 503\r\n\r\n"),
        ("status_without_line_end", b"NATS/1.0 503 a"),
        ("garbage", b"garbage without any line end"),
        ("name_with_blank", b"NATS/1.0\r\nNats-Msg-Id : x\r\n\r\n"),
        ("condition_inside_another_name", b"NATS/1.0\r\nX-Nats-Expected-Last-Sequence: 9\r\n\r\n"),
        ("condition_inside_a_value", b"NATS/1.0\r\nX: Nats-Expected-Last-Sequence: 9\r\n\r\n"),
        ("utf8", "NATS/1.0\r\nName: Käse ✓\r\n\r\n".encode()),
    ]
)
def header_blocks(t: Script, block: bytes) -> None:
    t.stream("S", ["a"])
    t.publish("a", b"body", block)
    t.publish("a", b"again", block)
    t.api("STREAM.MSG.GET.S", {"seq": 1})
    t.state("S")


@table([("file", "file"), ("memory", "memory")])
def message_larger_than_the_stream_takes(t: Script, storage: str) -> None:
    t.stream("S", ["a"], max_msg_size=20, storage=storage)
    t.publish("a", b"x" * 20)
    t.publish("a", b"x" * 21)
    t.publish("a", b"", {"A": "b"})
    t.publish("a", b"xxx", {"A": "b"})
    t.state("S")


@scenario
def headers_of_64k(t: Script) -> None:
    t.stream("S", ["a"])
    for size in (65000, 65535, 65536, 70000):
        block = header_block({"A": "b" * (size - 17)})
        frame = t.wire.request("a", b"x", block)
        t.note(f"a block of {len(block)}", t.show(frame)["data"])
    t.state("S")


@scenario
def largest_message(t: Script) -> None:
    t.stream("S", ["a"], storage="file", allow_direct=True)
    t.note("ack", t.wire.request("a", b"z" * 1048576).data)
    answer = t.wire.request("$JS.API.DIRECT.GET.S", b'{"seq":1}')
    t.note("back", [len(answer.data), answer.data.count(b"z")])
    t.state("S")


@scenario
def pipelined_publishes_are_acked_in_order(t: Script) -> None:
    t.stream("S", ["a.>"], storage="file")
    t.fill([f"a.{n % 10}" for n in range(3000)])
    t.state("S")
    wire = t.wire
    frames = [wire.api("STREAM.MSG.GET.S", {"seq": seq})["message"] for seq in (1, 1500, 3000)]
    t.note("some", [[m["subject"], m["seq"], m["data"]] for m in frames])


@scenario
def two_publishers_share_a_stream(t: Script) -> None:
    t.stream("S", ["a.>"])
    one, two = t.connect(), t.connect()
    replies = []
    for n in range(200):
        for wire, subject in ((one, "a.1"), (two, "a.2")):
            reply = wire.new_reply()
            wire.publish(subject, str(n).encode(), reply)
            replies.append((wire, reply))
    sequences = [wire.message(reply).json()["seq"] for wire, reply in replies]
    t.note("all once", sorted(sequences) == list(range(1, 401)))
    t.note("in order each", sequences[::2] == sorted(sequences[::2]) and sequences[1::2] == sorted(sequences[1::2]))


@scenario
def ack_goes_to_the_publisher_only(t: Script) -> None:
    t.stream("S", ["a"])
    listener = t.connect()
    listener.subscribe("acks.>")
    listener.ping()
    t.wire.publish("a", b"x", "acks.here")
    t.frames("wherever the reply subject leads", [listener.next()])


@scenario
def through_a_queue_subscriber_and_a_stream(t: Script) -> None:
    t.stream("S", ["a"])
    wire = t.wire
    sid = wire.subscribe("a", "g")
    wire.ping()
    t.note("both", [bool(wire.request("a", b"x").json()["seq"]), wire.delivered(sid).data])


def _rows() -> list[tuple[Any, ...]]:
    values = ["1", "1s", "never", "90m", "1500ms", "0", "0s", "500ms", "-1", "x", ""]
    return [(value or "empty", value) for value in values]


@table(_rows())
def time_to_live(t: Script, value: str) -> None:
    t.stream("S", ["a"], allow_msg_ttl=True)
    t.publish("a", b"x", {"Nats-TTL": value})
    t.api("STREAM.MSG.GET.S", {"seq": 1})
