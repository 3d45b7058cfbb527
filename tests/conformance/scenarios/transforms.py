"""Scenarios of subject transforms and republishing of streams (docs/internals/streams.md)."""

from __future__ import annotations

from typing import Any

from tests.conformance.harness import Script, scenario, table
from tests.wire import Frame

PUBLISHED = ("t.ab-cd.2", "t.-x-.5", "t.abcdefg.7", "t.a.b")

DESTINATIONS: list[tuple[str, str]] = [
    ("none", ""),
    ("literal", "o"),
    ("dollars", "o.$2.$1"),
    ("dollar_zero", "o.$0"),
    ("dollar_minus", "o.$-1"),
    ("dollar_plus", "o.$+1"),
    ("dollar_word", "o.$x"),
    ("dollar_only", "$1"),
    ("dollar_beyond", "o.$9"),
    ("dollar_huge", "o.$99999999999999999999"),
    ("wildcard", "o.{{wildcard(2)}}.{{Wildcard(1)}}.{{wildcard(2)}}"),
    ("wildcard_blanks", "o.{{ wildcard( 1 ) }}"),
    ("wildcard_doubled", "o.{{{{wildcard(1)}}}}"),
    ("wildcard_zero", "o.{{wildcard(0)}}"),
    ("wildcard_minus", "o.{{wildcard(-1)}}"),
    ("wildcard_beyond", "o.{{wildcard(3)}}"),
    ("wildcard_two", "o.{{wildcard(1,2)}}"),
    ("wildcard_none", "o.{{wildcard()}}"),
    ("wildcard_word", "o.{{wildcard(x)}}"),
    ("wildcard_twice", "o.{{wildcard(1)wildcard(2)}}"),
    ("wildcard_inside", "o.x{{wildcard(1)}}"),
    ("wildcard_before", "o.{{wildcard(1)}}x"),
    ("wildcard_open", "o.{{wildcard(1"),
    ("wildcard_half", "o.{{wildcard(1)}"),
    ("wildcard_bare", "o.{{wildcard 1}}"),
    ("upper", "o.{{WILDCARD(1)}}"),
    ("camel", "o.{{wildCard(1)}}"),
    ("partition", "o.{{partition(10,1)}}.{{partition(10,2,1)}}"),
    ("partition_blanks", "o.{{partition(7, 1,  2)}}"),
    ("partition_all", "o.{{partition(10)}}"),
    ("partition_zero", "o.{{partition(0,1)}}"),
    ("partition_minus", "o.{{partition(-1,1)}}"),
    ("partition_of_zero", "o.{{partition(3,0)}}"),
    ("partition_beyond", "o.{{partition(3,3)}}"),
    ("partition_word", "o.{{partition(3,x)}}"),
    ("partition_words", "o.{{partition(x)}}"),
    ("partition_none", "o.{{partition()}}"),
    ("partition_open", "o.{{partition(3,)}}"),
    ("partition_huge", "o.{{partition(4294967297,1)}}"),
    ("split", "o.{{split(1,-)}}"),
    ("split_many", "o.{{split(1,--)}}"),
    ("split_nothing", "o.{{split(1,)}}"),
    ("split_blank_before", "o.{{split(1, -)}}"),
    ("split_blank_after", "o.{{split(1,- )}}"),
    ("split_three", "o.{{split(1,-,x)}}"),
    ("split_one", "o.{{split(1)}}"),
    ("split_beyond", "o.{{split(9,-)}}"),
    ("split_word", "o.{{split(x,-)}}"),
    ("split_from_left", "o.{{splitfromleft(1,3)}}"),
    ("split_from_left_zero", "o.{{SplitFromLeft(1,0)}}"),
    ("split_from_left_one", "o.{{splitFromLeft(1)}}"),
    ("split_from_left_three", "o.{{splitFromLeft(1,2,3)}}"),
    ("split_from_left_word", "o.{{splitFromLeft(1,x)}}"),
    ("split_from_left_huge", "o.{{splitFromLeft(1,4294967297)}}"),
    ("split_from_right", "o.{{splitfromright(1,2)}}"),
    ("slice_from_left", "o.{{slicefromleft(1,2)}}.{{slicefromleft(1,3)}}"),
    ("slice_from_left_minus", "o.{{slicefromleft(1,-2)}}"),
    ("slice_from_right", "o.{{sliceFromRight(1,2)}}.{{slicefromright(1,5)}}"),
    ("left", "o.{{left(1,2)}}.{{Left(2,9)}}"),
    ("left_minus", "o.{{left(1,-2)}}"),
    ("left_one", "o.{{left(1)}}"),
    ("right", "o.{{right(1,2)}}.{{Right(1,0)}}"),
    ("right_word", "o.{{right(1,x)}}"),
    ("random", "o.{{random(1)}}"),
    ("random_zero", "o.{{random(0)}}.{{Random(-1)}}"),
    ("random_two", "o.{{random(1,2)}}"),
    ("random_none", "o.{{random()}}"),
    ("random_word", "o.{{random(x)}}"),
    ("unknown", "o.{{foo(1)}}"),
    ("unknown_word", "o.{{x}}"),
    ("empty_braces", "o.{{}}"),
    ("blank", "o. x"),
    ("blank_inside", "o.x y"),
    ("dot_before", ".o"),
    ("dot_after", "o."),
    ("dots", "o..x"),
    ("star", "o.*"),
    ("star_only", "*"),
    ("rest", "o.>"),
    ("rest_only", ">"),
    ("after_rest", "o.>.x"),
    ("wildcard_characters", "o.$1>.*$1"),
    ("api", "$JS.API.x"),
    ("letters", "o.é.$1"),
]

WAYS: list[tuple[str, str, str]] = [
    ("all_to_all", ">", ">"),
    ("nothing_to_all", "", ">"),
    ("nothing_to_rest", "", "z.>"),
    ("nothing_to_nothing", "", ""),
    ("nothing_to_one", "", "z"),
    ("nothing_to_wildcard", "", "z.$1"),
    ("rest_to_rest", "t.>", "z.>"),
    ("rest_to_none", "t.>", "z"),
    ("rest_to_wildcard", "t.>", "z.$1.>"),
    ("literal", "t.a.b", "z.q"),
    ("literal_to_wildcard", "t.a.b", "z.$1"),
    ("literal_to_function", "t.a.b", "z.{{left(1,1)}}"),
    ("literal_to_split", "t.a.b", "z.{{split(1,-)}}"),
    ("literal_to_partition", "t.a.b", "z.{{partition(3)}}"),
    ("literal_to_partition_of_one", "t.a.b", "z.{{partition(1000,1)}}"),
    ("literal_to_partition_of_many", "t.a.b", "z.{{partition(1000,9,-1)}}"),
    ("literal_to_partition_of_word", "t.a.b", "z.{{partition(1000,x)}}"),
    ("literal_to_zero", "t.a.b", "z.$0"),
    ("literal_to_random", "t.a.b", "z.{{random(1)}}"),
    ("literal_to_nothing", "t.a.b", ""),
    ("rest_to_partition", "t.>", "z.{{partition(3)}}.>"),
    ("rest_to_partition_of_one", "t.>", "z.{{partition(3,1)}}.>"),
    ("rest_to_partition_of_zero", "t.>", "z.{{partition(1000,0)}}.>"),
    ("rest_to_random", "t.>", "z.{{random(1)}}.>"),
    ("rest_to_zero", "t.>", "z.$0.>"),
    ("rest_to_left", "t.>", "z.{{left(1,1)}}.>"),
    ("rest_to_unknown", "t.>", "z.{{x}}"),
    ("rest_to_invalid", "t.>", "z.{{wildcard(x)}}"),
    ("rest_in_the_middle", "t.*.>", "z.>.$1"),
    ("star_and_rest", "t.*.>", "z.$1.>"),
    ("star_and_rest_without", "t.*.>", "z.$1"),
    ("star_rest_and_split", "t.*.>", "z.{{split(1,-)}}.>"),
    ("star_of_another", "t.*.b", "z.$1"),
    ("other_subjects", "no.*", "z.$1"),
    ("within_the_stream", "t.*.*", "t.$2.$1"),
    ("source_dots", "t..x", "z"),
    ("source_dot_after", "t.*.", "z.$1"),
    ("source_blank", "t. x", "z"),
    ("source_is_blank", " ", "z"),
    ("source_rest_inside", "t.>.x", "z"),
    ("source_bad_destination_bad", "t..", "z.."),
]

REPUBLISHED: list[tuple[str, Any]] = [
    ("nothing", {}),
    ("no_destination", {"src": "a.*", "dest": ""}),
    ("no_source", {"dest": "b.>"}),
    ("no_source_one", {"dest": "b"}),
    ("all", {"src": ">", "dest": ">"}),
    ("star", {"src": "a.*", "dest": "b.*"}),
    ("literal", {"src": "a.*", "dest": "b"}),
    ("literal_source", {"src": "a.1", "dest": "b"}),
    ("bad_source", {"src": "a..", "dest": "b"}),
    ("bad_destination", {"src": "a.*", "dest": "b..c"}),
    ("blank_destination", {"src": "a.*", "dest": "b.x y"}),
    ("api", {"src": "a.*", "dest": "$JS.API.x"}),
    ("other_source", {"src": "zz", "dest": "b"}),
    ("rest", {"src": "a.>", "dest": "b.>"}),
    ("cycle", {"src": "a.*", "dest": "a.x"}),
    ("cycle_by_wildcard", {"src": "a.*", "dest": "a.$1"}),
    ("below_is_no_cycle", {"src": "a.*", "dest": "a.x.y"}),
    ("unknown_function", {"src": "a.*", "dest": "b.{{foo(1)}}"}),
    ("beyond", {"src": "a.*", "dest": "b.$7"}),
    ("headers_only", {"src": "a.*", "dest": "b.$1", "headers_only": True}),
    ("headers_only_number", {"src": "a.*", "dest": "b.$1", "headers_only": 1}),
    ("more", {"src": "a.*", "dest": "b.$1", "x": 1}),
    ("number", {"src": 5, "dest": "b"}),
    ("list", []),
    ("null", None),
]

BESIDE: list[tuple[str, dict[str, Any]]] = [
    ("invalid_subject", {"subjects": ["a..b"]}),
    ("overlapping_subjects", {"subjects": ["a.*", "a.>"]}),
    ("preferred", {"placement": {"preferred": "x"}}),
    ("nameless_source", {"sources": [{"name": ""}]}),
    ("mirror", {"mirror": {"name": "M"}}),
    ("age", {"max_age": -1}),
    ("replicas", {"num_replicas": 3}),
    ("storage", {"max_bytes": 1 << 60}),
    ("rollup", {"deny_purge": True, "allow_rollup_hdrs": True}),
]


def _subjects(t: Script, stream: str) -> None:
    t.state(stream, subjects_filter=">")


@table(DESTINATIONS)
def destination(t: Script, dest: str) -> None:
    _map(t, "t.*.*", dest)


@table(WAYS)
def way(t: Script, src: str, dest: str) -> None:
    _map(t, src, dest)


def _map(t: Script, src: str, dest: str) -> None:
    config = {"name": "T", "subjects": ["t.*.*"], "storage": "memory", "subject_transform": {"src": src, "dest": dest}}
    if "error" not in t.api("STREAM.CREATE.T", config):
        t.fill(PUBLISHED)
        _subjects(t, "T")


@scenario
def split_leaves_out_what_is_empty(t: Script) -> None:
    t.stream("T", ["t.*.*"], subject_transform={"src": "t.*.*", "dest": "o.{{split(1,-)}}.$2"})
    for token in ("a--b-", "--a", "a-", "-a", "a-b-c"):
        t.publish(f"t.{token}.x")
    _subjects(t, "T")


@table([("number", 5), ("text", "x"), ("null", None), ("nothing", {}), ("more", {"src": "a", "dest": "b", "x": 1})])
def transform_of_another_kind(t: Script, value: Any) -> None:
    t.api("STREAM.CREATE.T", {"name": "T", "subjects": ["t"], "storage": "memory", "subject_transform": value})


@table(REPUBLISHED)
def republish_config(t: Script, value: Any) -> None:
    config = {"name": "T", "subjects": ["a.*"], "storage": "memory", "republish": value}
    t.api("STREAM.CREATE.T", config)
    t.api("STREAM.CREATE.T", {**config, "pedantic": True})
    t.api("STREAM.CREATE.P", {**config, "name": "P", "subjects": ["p"], "pedantic": True})


@table(BESIDE)
def order_of_refusals(t: Script, more: dict[str, Any]) -> None:
    base = {"name": "T", "subjects": ["a.*"], **more}
    transform, republish = {"src": "a.*", "dest": "b.$9"}, {"src": "a.*", "dest": "a.$1"}
    t.api("STREAM.CREATE.T", {**base, "subject_transform": transform})
    t.api("STREAM.CREATE.T", {**base, "republish": republish})
    t.api("STREAM.CREATE.T", {**base, "subject_transform": transform, "republish": republish})


@scenario
def updates(t: Script) -> None:
    base = {"name": "T", "subjects": ["t.*"], "storage": "memory"}
    t.setup("STREAM.CREATE.T", base)
    for more in (
        {"subject_transform": {"src": "t.*", "dest": "v.$1"}},
        {"subject_transform": {"src": "t.*", "dest": "v.$2"}},
        {"subject_transform": {"src": "t..", "dest": "v"}},
        {"republish": {"src": "", "dest": "r.>"}},
        {"republish": {"src": "t.*", "dest": "t.$1"}},
        {"republish": {"src": "t.*", "dest": "q.$7"}},
        {},
    ):
        t.api("STREAM.UPDATE.T", {**base, **more})
        t.publish("t.a", b"x")
    _subjects(t, "T")


@scenario
def the_new_subject_is_what_rules_see(t: Script) -> None:
    last, of = "Nats-Expected-Last-Subject-Sequence", "Nats-Expected-Last-Subject-Sequence-Subject"
    t.stream("T", ["t.*"], subject_transform={"src": "t.*", "dest": "x.$1"}, max_msgs_per_subject=2)
    t.publish("t.1", b"a", {last: "0"})
    t.publish("t.1", b"b", {last: "0"})
    t.publish("t.1", b"c", {last: "1", of: "t.1"})
    t.publish("t.1", b"d", {last: "1", of: "x.*"})
    t.publish("t.1", b"e", {"Nats-Msg-Id": "i"})
    t.publish("t.1", b"e", {"Nats-Msg-Id": "i"})
    _subjects(t, "T")
    t.api("STREAM.PURGE.T", {"filter": "t.1"})
    t.api("STREAM.MSG.GET.T", {"last_by_subj": "t.1"})
    t.api("STREAM.MSG.GET.T", {"last_by_subj": "x.1"})
    t.api("STREAM.CREATE.X", {"name": "X", "subjects": ["x.*"], "storage": "memory"})


@scenario
def discard_new_counts_the_new_subject(t: Script) -> None:
    t.stream(
        "T",
        ["t.*"],
        subject_transform={"src": "t.*", "dest": "one"},
        discard="new",
        discard_new_per_subject=True,
        max_msgs_per_subject=2,
    )
    for n in range(3):
        t.publish(f"t.{n}", b"x")
    _subjects(t, "T")


@scenario
def rollup_of_the_new_subject(t: Script) -> None:
    t.stream("T", ["t.*"], subject_transform={"src": "t.*", "dest": "one"}, allow_rollup_hdrs=True)
    t.fill(["t.1", "t.2", "t.3"])
    t.publish("t.4", b"x", {"Nats-Rollup": "sub"})
    _subjects(t, "T")


@scenario
def consumers_see_the_new_subject(t: Script) -> None:
    t.stream("T", ["t.*"], storage="file", subject_transform={"src": "t.*", "dest": "x.$1"})
    t.consumer("T", "NEW", filter_subject="x.*")
    t.consumer("T", "OLD", filter_subject="t.*")
    t.fill_seen("T", "NEW", ["t.1", "t.2"])
    t.pull("T", "NEW", {"batch": 2, "no_wait": True}, 2)
    t.numbers("T", "OLD")


@scenario
def interest_is_in_the_new_subject(t: Script) -> None:
    t.stream("T", ["t.*"], retention="interest", subject_transform={"src": "t.*", "dest": "x.$1"})
    t.consumer("T", "NEW", filter_subject="x.1")
    t.publish("t.1", b"a")
    t.publish("t.2", b"b")
    t.state("T")


@scenario
def core_subscribers_see_the_old_subject(t: Script) -> None:
    t.stream("T", ["t.*"], subject_transform={"src": "t.*", "dest": "x.$1"})
    wire = t.wire
    old, new = wire.subscribe("t.*"), wire.subscribe("x.*")
    t.publish("t.1", b"a")
    t.frames("old", [wire.delivered(old)])
    t.frames("new", [frame for frame in wire.ping() if frame.sid == new])


# ------------------------------------------------------------------------------------------------ republishing
@scenario
def what_a_schedule_makes_has_a_new_subject_too(t: Script) -> None:
    seen = _again(t, 2)
    change = {"src": "s.*", "dest": "x.$1"}
    t.stream(
        "S",
        ["s.*"],
        allow_msg_schedules=True,
        subject_transform=change,
        republish={"src": ">", "dest": "again.>"},
    )
    schedule = {"Nats-Schedule": "@at 2020-01-01T00:00:00Z", "Nats-Schedule-Target": "s.t"}
    t.publish("s.a", b"x", schedule)
    seen()
    _subjects(t, "S")
    t.publish("s.a", b"x", {**schedule, "Nats-Schedule-Target": "x.b"})


def _again(t: Script, count: int, pattern: str = "again.>") -> Any:
    """Subscribe to republished messages; return a function that records the next `count` of them."""
    other = t.connect()
    sid = other.subscribe(pattern)
    other.ping()

    def seen(count: int = count) -> list[Frame]:
        frames = t.collect(other, count, sid=sid)
        t.frames("again", frames)
        return frames

    return seen


@scenario
def a_delete_marker_comes_again(t: Script) -> None:
    seen = _again(t, 2)
    t.stream(
        "T",
        ["t.*"],
        allow_msg_ttl=True,
        subject_delete_marker_ttl=1_000_000_000,
        subject_transform={"src": "t.*", "dest": "x.$1"},
        republish={"src": ">", "dest": "again.>"},
    )
    t.publish("t.1", b"x", {"Nats-TTL": "1"})
    seen()


@scenario
def comes_again_with_headers(t: Script) -> None:
    seen = _again(t, 5)
    t.stream("T", ["t.*"], republish={"src": "t.*", "dest": "again.{{wildcard(1)}}.x"})
    t.publish("t.1", b"a")
    t.publish("t.2", b"b", {"A": "b"})
    t.publish("t.1", b"", {"Nats-Sequence": "77"})
    t.publish("t.1", b"d", b"NATS/1.0 100 x\r\n\r\n")
    t.publish("t.1", b"e", b"NATS/1.0\r\n\r\n")
    seen()


@scenario
def comes_again_without_its_body(t: Script) -> None:
    seen = _again(t, 3)
    t.stream("T", ["t.*"], republish={"src": ">", "dest": "again.>", "headers_only": True})
    t.publish("t.1", b"abc")
    t.publish("t.1", b"", {"A": "b"})
    t.publish("t.2", b"x" * 1000, {"Nats-Msg-Size": "5"})
    seen()


@scenario
def only_what_the_source_selects(t: Script) -> None:
    seen = _again(t, 2)
    t.stream("T", ["t.>"], republish={"src": "t.*.y", "dest": "again.$1"})
    for subject in ("t.1", "t.1.y", "t.2.x", "t.3.y"):
        t.publish(subject, b"x")
    seen()


@scenario
def the_source_is_the_new_subject(t: Script) -> None:
    seen = _again(t, 1)
    change = {"src": "t.*", "dest": "u.$1"}
    t.stream("OLD", ["t.*"], subject_transform=change, republish={"src": "t.*", "dest": "again.old.$1"})
    t.publish("t.1", b"x")
    t.setup(
        "STREAM.UPDATE.OLD",
        {
            "name": "OLD",
            "subjects": ["t.*"],
            "storage": "memory",
            "subject_transform": change,
            "republish": {"src": "u.*", "dest": "again.new.$1"},
        },
    )
    t.publish("t.1", b"y")
    seen()


@scenario
def refused_and_repeated_messages_do_not_come_again(t: Script) -> None:
    seen = _again(t, 2)
    t.stream("T", ["t.*"], republish={"src": ">", "dest": "again.>"})
    t.publish("t.1", b"a", {"Nats-Msg-Id": "i"})
    t.publish("t.1", b"a", {"Nats-Msg-Id": "i"})
    t.publish("t.1", b"a", {"Nats-Expected-Last-Sequence": "9"})
    t.publish("t.1", b"b")
    seen()


@scenario
def what_nobody_is_interested_in_does_not_come_again(t: Script) -> None:
    seen = _again(t, 1)
    t.stream("T", ["t.*"], retention="interest", republish={"src": ">", "dest": "again.>"})
    t.publish("t.1", b"a")
    t.consumer("T", "C", filter_subject="t.2")
    t.publish("t.1", b"b")
    t.publish("t.2", b"c")
    seen()


@scenario
def what_limits_remove_at_once_comes_again(t: Script) -> None:
    seen = _again(t, 3)
    t.stream("T", ["t.*"], storage="file", max_bytes=60, republish={"src": ">", "dest": "again.>"})
    t.publish("t.1", b"x" * 100)
    t.publish("t.1", b"y")
    t.publish("t.1", b"z")
    seen()
    t.state("T")


@scenario
def last_sequences_after_rollups_and_deletes(t: Script) -> None:
    seen = _again(t, 6)
    t.stream("T", ["t.*"], allow_rollup_hdrs=True, max_msgs_per_subject=2, republish={"src": ">", "dest": "again.>"})
    t.publish("t.1", b"a")
    t.publish("t.1", b"b", {"Nats-Rollup": "sub"})
    t.publish("t.2", b"c", {"Nats-Rollup": "all"})
    t.publish("t.1", b"d")
    t.api("STREAM.MSG.DELETE.T", {"seq": 4})
    t.publish("t.1", b"e")
    t.setup("STREAM.PURGE.T")
    t.publish("t.1", b"f")
    seen()


@scenario
def many_at_once_come_again_in_order(t: Script) -> None:
    seen = _again(t, 6)
    t.stream("T", ["t.*"], storage="file", republish={"src": ">", "dest": "again.>"})
    t.fill(["t.1", "t.2", "t.1", "t.3", "t.1", "t.2"])
    seen()


@scenario
def from_one_stream_into_the_next(t: Script) -> None:
    seen = _again(t, 1)
    t.stream("ONE", ["one.*"], storage="file", republish={"src": "one.*", "dest": "two.$1"})
    t.stream("TWO", ["two.*"], republish={"src": "two.*", "dest": "again.$1"})
    t.publish("one.a", b"x", {"K": "v"})
    seen()


@scenario
def without_an_ack_it_comes_again_too(t: Script) -> None:
    seen = _again(t, 2)
    t.stream("T", ["t.*"], no_ack=True, republish={"src": ">", "dest": "again.>"})
    t.wire.publish("t.1", b"a", t.wire.new_reply())
    t.wire.publish("t.1", b"b")
    seen()


@scenario
def an_empty_destination_does_nothing(t: Script) -> None:
    t.stream("T", ["t.*"], republish={"src": "t.*", "dest": ""})
    sid = t.wire.subscribe(">")
    t.publish("t.1", b"a")
    t.wire.unsubscribe(sid)
    frames = [frame for frame in t.wire.ping() if frame.sid == sid and not frame.subject.startswith("_INBOX")]
    t.frames("nothing more", frames)


@scenario
def republishing_ends_with_an_update(t: Script) -> None:
    seen = _again(t, 2)
    base = {"name": "T", "subjects": ["t.*"], "storage": "memory"}
    t.setup("STREAM.CREATE.T", {**base, "republish": {"src": ">", "dest": "again.>"}})
    t.publish("t.1", b"a")
    t.setup("STREAM.UPDATE.T", base)
    t.publish("t.1", b"b")
    t.setup("STREAM.UPDATE.T", {**base, "republish": {"src": ">", "dest": "again.new.>"}})
    t.publish("t.1", b"c")
    seen()
