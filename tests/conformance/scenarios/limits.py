"""Scenarios of limits, discard policies and removal, at the boundaries.

See docs/internals/streams.md#limits and docs/internals/api.md#streams.
"""

from __future__ import annotations

from typing import Any

from tests.conformance.harness import Script, scenario, table

SECOND = 1_000_000_000


# Each row: limits, and subjects published one after another. Recorded: every ack and the final state.
@table(
    [
        ("max_msgs_old", {"max_msgs": 3}, ["a.1", "a.2", "a.3", "a.4", "a.5"]),
        ("max_msgs_new", {"max_msgs": 3, "discard": "new"}, ["a.1", "a.2", "a.3", "a.4", "a.5"]),
        ("max_msgs_one", {"max_msgs": 1}, ["a.1", "a.1", "a.2"]),
        ("max_msgs_one_new", {"max_msgs": 1, "discard": "new"}, ["a.1", "a.1", "a.2"]),
        ("max_bytes_old", {"max_bytes": 100}, ["a.1"] * 6),
        ("max_bytes_new", {"max_bytes": 100, "discard": "new"}, ["a.1"] * 6),
        ("max_bytes_too_small_for_one", {"max_bytes": 5}, ["a.1", "a.2"]),
        ("max_bytes_too_small_for_one_new", {"max_bytes": 5, "discard": "new"}, ["a.1", "a.2"]),
        ("per_subject_one", {"max_msgs_per_subject": 1}, ["a.1", "a.2", "a.1", "a.1", "a.2"]),
        ("per_subject_two", {"max_msgs_per_subject": 2}, ["a.1", "a.1", "a.1", "a.2", "a.1", "a.2", "a.2"]),
        ("per_subject_discard_new_replaces", {"max_msgs_per_subject": 1, "discard": "new"}, ["a.1", "a.1", "a.2"]),
        (
            "per_subject_new",
            {"max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": True},
            ["a.1", "a.1", "a.2", "a.2"],
        ),
        (
            "full_but_the_subject_is_replaced",
            {"max_msgs": 2, "max_msgs_per_subject": 1, "discard": "new"},
            ["a.1", "a.2", "a.1", "a.3", "a.2"],
        ),
        ("msgs_and_bytes", {"max_msgs": 4, "max_bytes": 90}, ["a.1", "a.2", "a.3", "a.4", "a.5", "a.6"]),
        ("unlimited", {}, ["a.1"] * 5),
    ]
)
def reached(t: Script, limits: dict[str, Any], subjects: list[str]) -> None:
    for storage in ("memory", "file"):
        t.stream("S", ["a.*"], storage=storage, **limits)
        for subject in subjects:
            t.publish(subject, b"0123456789")
        t.state("S", subjects_filter=">", deleted_details=True)
        t.setup("STREAM.DELETE.S")


# Each row: subject, headers, payload. Recorded: the size that the state reports for the message.
@table(
    [
        ("empty", "a", None, b""),
        ("payload", "a", None, b"x" * 100),
        ("long_subject", "a." + "s" * 100, None, b"x"),
        ("headers", "a", {"A": "b"}, b"x"),
        ("headers_only", "a", {"A": "b", "Nats-Msg-Id": "1"}, b""),
    ]
)
def size_of_a_message(t: Script, subject: str, headers: dict[str, str] | None, data: bytes) -> None:
    for storage in ("memory", "file"):
        t.stream("S", ["a", "a.*"], storage=storage)
        t.publish(subject, data, headers)
        t.state("S")
        t.setup("STREAM.DELETE.S")


@table([("exactly", 0), ("one_byte_less", -1), ("one_byte_more", 1)])
def max_bytes_to_the_byte(t: Script, off: int) -> None:
    for storage, each in (("memory", 1 + 10 + 16), ("file", 22 + 1 + 10 + 8)):
        for discard in ("old", "new"):
            t.stream("S", ["a"], storage=storage, max_bytes=3 * each + off, discard=discard)
            for _ in range(4):
                t.publish("a", b"0123456789")
            t.state("S")
            t.setup("STREAM.DELETE.S")


@table([(f"{storage}-{size}", storage, size) for storage in ("memory", "file") for size in (9, 10, 11, 40)])
def full_of_bytes_but_the_subject_is_replaced(t: Script, storage: str, size: int) -> None:
    each = 1 + 10 + 16 if storage == "memory" else 22 + 1 + 10 + 8
    limits = {"max_bytes": 3 * each, "max_msgs_per_subject": 1, "discard": "new"}
    t.stream("S", ["a", "b", "c"], storage=storage, **limits)
    t.fill(["a", "b", "c"], b"0123456789")
    t.publish("b", b"y" * size)
    t.state("S")


@scenario
def max_age_removes(t: Script) -> None:
    t.stream("S", ["a.*"], max_age=SECOND // 5)
    t.fill(["a.1", "a.2", "a.1"])
    t.state_when("S", lambda state: state["messages"] == 0)
    t.publish("a.1", b"later")
    t.state_when("S", lambda state: state["messages"] == 0)


@scenario
def max_age_set_later_removes(t: Script) -> None:
    t.stream("S", ["a"])
    t.fill(["a"] * 4)
    t.setup("STREAM.UPDATE.S", {"name": "S", "subjects": ["a"], "storage": "memory", "max_age": SECOND // 5})
    t.state_when("S", lambda state: state["messages"] == 0)


@table(
    [
        ("max_msgs", {"max_msgs": 2}),
        ("max_bytes", {"max_bytes": 60}),
        ("per_subject", {"max_msgs_per_subject": 1}),
        ("both", {"max_msgs": 3, "max_msgs_per_subject": 2}),
    ]
)
def lowered_limits_trim_at_once(t: Script, limits: dict[str, Any]) -> None:
    t.stream("S", ["a.*"])
    t.fill(["a.1", "a.2", "a.1", "a.3", "a.1", "a.2"])
    t.setup("STREAM.UPDATE.S", {"name": "S", "subjects": ["a.*"], "storage": "memory", **limits})
    t.state("S", subjects_filter=">", deleted_details=True)


@table([("max_msgs", {"max_msgs": 2}), ("max_bytes", {"max_bytes": 60}), ("per_subject", {"max_msgs_per_subject": 1})])
def lowered_limits_and_discard_new(t: Script, limits: dict[str, Any]) -> None:
    t.stream("S", ["a.*"], discard="new")
    t.fill(["a.1", "a.2", "a.1", "a.3", "a.1", "a.2"])
    config = {"name": "S", "subjects": ["a.*"], "storage": "memory", "discard": "new"}
    t.setup("STREAM.UPDATE.S", config | limits)
    t.state("S", subjects_filter=">", deleted_details=True)
    t.publish("a.1")
    t.state("S", subjects_filter=">", deleted_details=True)
    t.setup("STREAM.UPDATE.S", config | limits | {"discard": "old"})
    t.state("S", subjects_filter=">", deleted_details=True)


# Each row: number of messages stored before, and True if a purge empties the stream again.
@table([("never_used", 0, False), ("emptied", 3, True), ("full", 3, False)])
def switched_to_interest(t: Script, count: int, purge: bool) -> None:
    config = {"name": "S", "subjects": ["a"], "storage": "file"}
    t.setup("STREAM.CREATE.S", config)
    t.fill(["a"] * count)
    if purge:
        t.setup("STREAM.PURGE.S")
    t.setup("STREAM.UPDATE.S", config | {"retention": "interest"})
    t.state("S")
    t.consumer("S", "C")
    t.setup("CONSUMER.DELETE.S.C")
    t.state("S")


@scenario
def a_rollup_after_limits(t: Script) -> None:
    t.stream("S", ["a.*"], max_msgs=4, allow_rollup_hdrs=True)
    t.fill(["a.1", "a.2", "a.3", "a.2"])
    t.publish("a.2", b"", {"Nats-Rollup": "sub"})  # a.1 is removed for it, although two of a.2 are removed as well
    t.state("S", subjects_filter=">")


@scenario
def discard_new_goes_on_after_room_was_made(t: Script) -> None:
    t.stream("S", ["a"], max_msgs=2, discard="new")
    for _ in range(3):
        t.publish("a")
    t.setup("STREAM.MSG.DELETE.S", {"seq": 1})
    t.publish("a")
    t.publish("a")
    t.state("S")


@scenario
def rollup_passes_the_limit_per_subject(t: Script) -> None:
    t.stream("S", ["a.*"], max_msgs_per_subject=1, discard="new", discard_new_per_subject=True, allow_rollup_hdrs=True)
    t.publish("a.1")
    t.publish("a.1")
    t.publish("a.1", b"", {"Nats-Rollup": "sub"})
    t.state("S", subjects_filter=">")


# Each row: the body of PURGE on a stream with a.1 a.2 a.1 a.3 a.1 a.2 (1…6). Recorded: answer, state, next sequence.
@table(
    [
        ("all", None),
        ("all_empty_object", {}),
        ("seq_3", {"seq": 3}),
        ("seq_1", {"seq": 1}),
        ("seq_0", {"seq": 0}),
        ("seq_last", {"seq": 6}),
        ("seq_next", {"seq": 7}),
        ("seq_beyond", {"seq": 20}),
        ("keep_2", {"keep": 2}),
        ("keep_0", {"keep": 0}),
        ("keep_all", {"keep": 6}),
        ("keep_more", {"keep": 60}),
        ("filter", {"filter": "a.1"}),
        ("filter_wildcard", {"filter": "a.*"}),
        ("filter_nothing", {"filter": "a.9"}),
        ("filter_foreign", {"filter": "b.1"}),
        ("filter_bad", {"filter": "a..1"}),
        ("filter_keep", {"filter": "a.1", "keep": 1}),
        ("filter_keep_all", {"filter": "a.1", "keep": 3}),
        ("filter_keep_wildcard", {"filter": "a.*", "keep": 2}),
        ("filter_seq", {"filter": "a.1", "seq": 5}),
        ("filter_seq_wildcard", {"filter": ">", "seq": 3}),
        ("filter_seq_beyond", {"filter": "a.1", "seq": 50}),
        ("seq_and_keep", {"seq": 3, "keep": 1}),
        ("unknown_field", {"colour": 1}),
        ("negative_seq", {"seq": -1}),
        ("no_json", b"x"),
        ("filter_with_a_blank", {"filter": "a.1 a.2"}),
        ("filter_of_a_blank", {"filter": " "}),
        ("seq_far_beyond", {"seq": 1 << 62}),
        ("seq_huge", {"seq": (1 << 63) + 5}),
        ("filter_seq_huge", {"filter": "a.1", "seq": (1 << 63) + 5}),
        ("filter_keep_huge", {"filter": "a.1", "keep": (1 << 63) + 5}),
    ]
)
def purge(t: Script, body: Any) -> None:
    t.stream("S", ["a.*"], storage="file")
    t.fill(["a.1", "a.2", "a.1", "a.3", "a.1", "a.2"])
    t.api("STREAM.PURGE.S", body)
    t.state("S", subjects_filter=">", deleted_details=True)
    t.publish("a.1", b"next")
    t.state("S", deleted_details=True)


@scenario
def purge_twice_and_when_empty(t: Script) -> None:
    t.stream("S", ["a"])
    t.api("STREAM.PURGE.S")
    t.api("STREAM.PURGE.S", {"seq": 10})
    t.state("S")
    t.fill(["a", "a"])
    t.api("STREAM.PURGE.S")
    t.api("STREAM.PURGE.S")
    t.api("STREAM.PURGE.S", {"seq": 5})
    t.state("S")


@scenario
def purge_denied_and_missing(t: Script) -> None:
    t.stream("S", ["a"], deny_purge=True)
    t.fill(["a"])
    t.api("STREAM.PURGE.S")
    t.api("STREAM.PURGE.T")
    t.state("S")


# Each row: sequences deleted from 1…6, one after another. Recorded: the state after each.
@table(
    [
        ("newest", [6]),
        ("newest_two", [6, 5]),
        ("oldest", [1]),
        ("oldest_two_backwards", [2, 1]),
        ("middle", [3]),
        ("holes", [2, 4]),
        ("all_forwards", [1, 2, 3, 4, 5, 6]),
        ("all_backwards", [6, 5, 4, 3, 2, 1]),
        ("twice", [3, 3]),
        ("absent", [7]),
        ("zero", [0]),
        ("below_first", [1, 1]),
    ]
)
def deleted(t: Script, sequences: list[int]) -> None:
    t.stream("S", ["a.*"], storage="file")
    t.fill(["a.1", "a.2", "a.1", "a.3", "a.1", "a.2"])
    for seq in sequences:
        t.api("STREAM.MSG.DELETE.S", {"seq": seq})
        t.state("S", deleted_details=True)
    t.publish("a.1", b"next")
    t.state("S", subjects_filter=">", deleted_details=True)


@table(
    [
        ("empty", None),
        ("no_json", b"x"),
        ("empty_object", {}),
        ("unknown_field", {"seq": 1, "colour": 2}),
        ("negative", {"seq": -1}),
        ("text", {"seq": "1"}),
        ("no_erase", {"seq": 1, "no_erase": True}),
    ]
)
def delete_bodies(t: Script, body: Any) -> None:
    t.stream("S", ["a"])
    t.fill(["a", "a"])
    t.api("STREAM.MSG.DELETE.S", body)
    t.state("S")


@scenario
def delete_denied_and_missing(t: Script) -> None:
    t.stream("S", ["a"], deny_delete=True)
    t.fill(["a"])
    t.api("STREAM.MSG.DELETE.S", {"seq": 1})
    t.api("STREAM.MSG.DELETE.T", {"seq": 1})
    t.state("S")


@table([("memory", "memory"), ("file", "file")])
def the_last_id_outlives_a_purge(t: Script, storage: str) -> None:
    t.stream("S", ["a"], storage=storage)
    t.publish("a", b"1", {"Nats-Msg-Id": "i1"})
    t.setup("STREAM.PURGE.S", {"seq": 20})
    t.publish("a", b"2", {"Nats-Expected-Last-Msg-Id": "zz"})
    t.publish("a", b"2", {"Nats-Expected-Last-Msg-Id": "i1"})
    t.publish("a", b"3", {"Nats-Expected-Last-Msg-Id": "i1"})
    t.state("S")
