"""Scenarios of mirror configurations: order of refusals, values taken from the origin, updates.

See docs/internals/streams.md#mirrors-and-sources.
"""

from __future__ import annotations

from typing import Any

from tests.conformance.harness import Script, scenario, table
from tests.conformance.origins import ask

SECOND = 1_000_000_000
ORIGIN = {"name": "O"}
PREPARED = {"name": "c", "deliver_subject": "d"}
START = "2026-01-01T00:00:00Z"


def mapped(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    """Return subject transforms."""
    return [{"src": source, "dest": destination} for source, destination in pairs]


FIRST = mapped(("a", ""))


def _stage(t: Script) -> None:
    t.stream("O", ["o.>"], max_msg_size=1000)
    t.stream("D", ["d.>"], allow_direct=True)


# Each row: fields of the origin beside its name.
ORIGINS: list[tuple[str, dict[str, Any]]] = [
    ("plain", {}),
    ("no_name", {"name": ""}),
    ("name_of_two_tokens", {"name": "a.b"}),
    ("name_with_a_slash", {"name": "O/x"}),
    ("name_of_300", {"name": "x" * 300}),
    ("itself", {"name": "T"}),
    ("itself_by_a_prefix", {"name": "T", "external": {"api": "foo"}}),
    ("unknown", {"name": "none"}),
    ("filter", {"filter_subject": "o.a"}),
    ("filter_outside", {"filter_subject": "zz.>"}),
    ("filter_of_an_empty_token", {"filter_subject": "a..b"}),
    ("filter_with_a_blank", {"filter_subject": "a b"}),
    ("filter_and_transform", {"filter_subject": "o.>", "subject_transforms": mapped(("o.*", "x.$1"))}),
    ("no_transforms", {"subject_transforms": []}),
    ("transform", {"subject_transforms": mapped(("o.*", "x.$1"))}),
    ("transform_of_all", {"subject_transforms": mapped(("", "z.>"))}),
    ("transform_of_nothing", {"subject_transforms": mapped(("", ""))}),
    ("transform_only_selects", {"subject_transforms": mapped(("o.a", ""), ("o.b", ""))}),
    ("transform_of_no_subject", {"subject_transforms": mapped(("o..a", "x"))}),
    ("transform_of_no_subject_to_none", {"subject_transforms": mapped(("o..a", "x..y"))}),
    ("transform_to_no_subject", {"subject_transforms": mapped(("o.a", "a..b"))}),
    ("transform_by_no_function", {"subject_transforms": mapped(("o.*", "x.{{foo(1)}}"))}),
    ("transform_out_of_range", {"subject_transforms": mapped(("o.*", "x.$2"))}),
    ("transform_of_a_token_to_the_rest", {"subject_transforms": mapped(("o.*", "x.>"))}),
    ("transform_of_all_to_one", {"subject_transforms": mapped(("", "z"))}),
    ("transforms_overlap", {"subject_transforms": mapped(("o.>", "x.>"), ("o.a", "y"))}),
    ("transforms_of_the_same", {"subject_transforms": mapped(("o.a", ""), ("o.a", ""))}),
    ("transforms_of_all_and_one", {"subject_transforms": mapped((">", "z.>"), ("o.a", ""))}),
    ("transforms_of_any_and_one", {"subject_transforms": mapped(("", "z.>"), ("o.a", ""))}),
    ("second_transform_of_no_subject", {"subject_transforms": mapped(("o.a", "x..y"), ("a..b", "x"))}),
    ("overlap_before_a_bad_destination", {"subject_transforms": mapped(("o.a", "x"), ("o.a", "x"), ("o.b", "a..b"))}),
    ("start_sequence", {"opt_start_seq": 7}),
    ("start_time", {"opt_start_time": START}),
    ("start_time_of_a_zone", {"opt_start_time": "2026-01-01T02:00:00.5+02:00"}),
    ("start_at_zero_time", {"opt_start_time": "0001-01-01T00:00:00Z"}),
    ("start_sequence_and_time", {"opt_start_seq": 7, "opt_start_time": START}),
    ("start_at_no_time", {"opt_start_time": "bad"}),
    ("start_below_zero", {"opt_start_seq": -1}),
    ("external_empty", {"external": {}}),
    ("external_own_api", {"external": {"api": "$JS.API"}}),
    ("external_within_own_api", {"external": {"api": "$JS.API.x"}}),
    ("external_above_own_api", {"external": {"api": "$JS"}}),
    ("external_domain", {"external": {"api": "$JS.x.API"}}),
    ("external_wildcard", {"external": {"api": "$JS.*.API"}}),
    ("external_rest", {"external": {"api": "x.>"}}),
    ("external_blank", {"external": {"api": "a b"}}),
    ("external_empty_token", {"external": {"api": "x..y"}}),
    ("external_delivery", {"external": {"api": "foo", "deliver": "bar"}}),
    ("external_delivery_alone", {"external": {"deliver": "bar"}}),
    ("external_delivery_wildcard", {"external": {"api": "foo", "deliver": "b.*"}}),
    ("external_delivery_blank", {"external": {"api": "foo", "deliver": "a b"}}),
    ("external_delivery_ends_in_a_dot", {"external": {"api": "foo", "deliver": "b."}}),
    ("external_delivery_and_api_wrong", {"external": {"api": "a b", "deliver": "x.*"}}),
    ("external_own_api_and_delivery_wrong", {"external": {"api": "$JS.API", "deliver": "x.*"}}),
    ("external_delivery_to_the_api", {"external": {"api": "foo", "deliver": "$JS.API"}}),
    ("external_no_name", {"name": "", "external": {"api": "foo"}}),
    ("external_name_of_two_tokens", {"name": "a.b", "external": {"api": "foo"}}),
    ("prepared", {"consumer": PREPARED}),
    ("prepared_empty", {"consumer": {}}),
    ("prepared_without_subject", {"consumer": {"name": "c"}}),
    ("prepared_without_name", {"consumer": {"deliver_subject": "d"}}),
    ("prepared_name_of_two_tokens", {"consumer": {"name": "a.b", "deliver_subject": "d"}}),
    ("prepared_to_a_wildcard", {"consumer": {"name": "c", "deliver_subject": "d.*"}}),
    ("prepared_to_an_empty_token", {"consumer": {"name": "c", "deliver_subject": "d..e"}}),
    ("prepared_to_a_stream", {"consumer": {"name": "c", "deliver_subject": "o.x"}}),
    ("prepared_with_a_start", {"consumer": PREPARED, "opt_start_seq": 4}),
    ("prepared_with_a_start_time", {"consumer": PREPARED, "opt_start_time": START}),
    ("prepared_with_a_filter", {"consumer": PREPARED, "filter_subject": "o.a"}),
    ("prepared_with_a_transform", {"consumer": PREPARED, "subject_transforms": mapped(("o.*", "x.$1"))}),
    ("prepared_empty_and_no_name", {"name": "", "consumer": {}}),
    ("prepared_empty_and_own_api", {"consumer": {}, "external": {"api": "$JS.API"}}),
    ("prepared_empty_and_transform_of_no_subject", {"consumer": {}, "subject_transforms": mapped(("a..b", ""))}),
    ("no_name_and_own_api", {"name": "", "external": {"api": "$JS.API"}}),
    (
        "bad_name_and_filter_and_transform",
        {"name": "..", "filter_subject": "a", "subject_transforms": mapped(("a", ""))},
    ),
    ("bad_name_and_transform_of_no_subject", {"name": "..", "subject_transforms": mapped(("a..b", "x"))}),
    ("own_api_and_bad_filter", {"filter_subject": "a..b", "external": {"api": "$JS.API"}}),
    ("own_api_and_bad_transform", {"external": {"api": "$JS.API"}, "subject_transforms": mapped(("a..b", "x"))}),
    ("filter_and_bad_transform", {"filter_subject": "x", "subject_transforms": mapped(("a..b", ""))}),
    ("itself_and_bad_filter", {"name": "T", "filter_subject": "a..b"}),
]


@table([(name, fields) for name, fields in ORIGINS])
def origin(t: Script, fields: dict[str, Any]) -> None:
    _stage(t)
    config = {"name": "T", "storage": "memory", "mirror": {**ORIGIN, **fields}}
    if "error" not in ask(t, "STREAM.CREATE.T", config):
        ask(t, "STREAM.CREATE.T", config, "once more")
        ask(t, "STREAM.UPDATE.T", {**config, "max_msgs": 5}, "update of another field")
    t.api("STREAM.NAMES")


# Each row: fields of the stream beside the mirror, and fields of the origin.
STREAMS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("subjects", {"subjects": ["x"]}, {}),
    ("subjects_and_no_name", {"subjects": ["x"]}, {"name": ""}),
    ("subjects_and_first_seq", {"subjects": ["x"], "first_seq": 3}, {"name": ""}),
    ("sources", {"sources": [ORIGIN]}, {}),
    ("sources_and_subjects", {"sources": [ORIGIN], "subjects": ["x"]}, {}),
    ("sources_and_a_counter", {"sources": [ORIGIN], "allow_msg_counter": True}, {}),
    ("first_seq", {"first_seq": 5}, {}),
    ("counter", {"allow_msg_counter": True}, {}),
    ("counter_and_atomic", {"allow_msg_counter": True, "allow_atomic": True}, {}),
    ("atomic", {"allow_atomic": True}, {}),
    ("atomic_and_batched", {"allow_atomic": True, "allow_batched": True}, {}),
    ("batched", {"allow_batched": True}, {}),
    ("batched_and_schedules", {"allow_batched": True, "allow_msg_schedules": True}, {}),
    ("schedules", {"allow_msg_schedules": True}, {}),
    ("schedules_and_bad_name", {"allow_msg_schedules": True}, {"name": ".."}),
    ("markers", {"subject_delete_marker_ttl": SECOND}, {}),
    ("markers_with_all_they_need", {"subject_delete_marker_ttl": SECOND, "allow_msg_ttl": True}, {}),
    ("ttl", {"allow_msg_ttl": True}, {}),
    ("duplicate_window", {"duplicate_window": SECOND}, {}),
    ("max_age", {"max_age": SECOND}, {}),
    ("max_age_below_the_window", {"max_age": SECOND, "duplicate_window": 2 * SECOND}, {}),
    ("workqueue", {"retention": "workqueue"}, {}),
    ("interest", {"retention": "interest"}, {}),
    ("discard_new", {"discard": "new", "max_msgs": 3}, {}),
    ("discard_new_per_subject", {"discard_new_per_subject": True}, {"name": ".."}),
    ("rollup", {"allow_rollup_hdrs": True}, {}),
    ("rollup_without_purge", {"allow_rollup_hdrs": True, "deny_purge": True}, {"name": ".."}),
    ("transform", {"subject_transform": {"src": "o.*", "dest": "q.$1"}}, {}),
    ("transform_of_no_subject", {"subject_transform": {"src": "a..b", "dest": "c"}}, {}),
    ("transform_of_no_subject_and_itself", {"subject_transform": {"src": "a..b", "dest": "c"}}, {"name": "T"}),
    ("transform_of_no_subject_and_too_small", {"subject_transform": {"src": "a..b"}, "max_msg_size": 1}, {}),
    ("transform_of_no_subject_and_bad_filter", {"subject_transform": {"src": "a..b"}}, {"filter_subject": "a..b"}),
    ("republish", {"republish": {"src": ">", "dest": "rp.>"}}, {}),
    ("republish_to_no_subject_and_bad_filter", {"republish": {"src": "x", "dest": "a..b"}}, {"filter_subject": "a..b"}),
    ("deny_delete", {"deny_delete": True}, {}),
    ("no_ack", {"no_ack": True}, {}),
    ("sealed", {"sealed": True}, {}),
    ("async", {"persist_mode": "async", "storage": "file"}, {}),
    ("replicas", {"num_replicas": 3}, {}),
    ("replicas_and_bad_name", {"num_replicas": 3}, {"name": ".."}),
    ("replicas_and_bad_filter", {"num_replicas": 3}, {"filter_subject": "a..b"}),
    ("too_large_and_bad_filter", {"max_bytes": 1 << 60}, {"filter_subject": "a..b"}),
    ("max_msg_size_below", {"max_msg_size": 999}, {}),
    ("max_msg_size_equal", {"max_msg_size": 1000}, {}),
    ("max_msg_size_of_unlimited", {"max_msg_size": 10}, {"name": "D"}),
    ("max_msg_size_of_unknown", {"max_msg_size": 1}, {"name": "none"}),
    ("max_msg_size_of_another_api", {"max_msg_size": 1}, {"external": {"api": "foo"}}),
    ("max_msg_size_and_bad_filter", {"max_msg_size": 3}, {"filter_subject": "a..b"}),
    ("max_msg_size_and_bad_transform", {"max_msg_size": 3}, {"subject_transforms": mapped(("a..b", "x"))}),
    ("max_msg_size_and_direct", {"max_msg_size": 1, "mirror_direct": True}, {}),
    ("direct_of_a_plain_one", {"mirror_direct": True}, {}),
    ("direct_of_a_direct_one", {"mirror_direct": True}, {"name": "D"}),
    ("not_direct_of_a_direct_one", {}, {"name": "D"}),
    ("direct_of_unknown", {"mirror_direct": True}, {"name": "none"}),
    ("direct_of_another_api", {"mirror_direct": True}, {"external": {"api": "foo"}}),
    ("allow_direct", {"allow_direct": True}, {}),
    ("allow_direct_of_a_direct_one", {"allow_direct": True}, {"name": "D"}),
]


@table([(f"{name}{'-pedantic' * strict}", *row, strict) for name, *row in STREAMS for strict in (False, True)])
def stream(t: Script, fields: dict[str, Any], of: dict[str, Any], pedantic: bool) -> None:
    _stage(t)
    config = {"name": "T", "storage": "memory", "mirror": {**ORIGIN, **of}, "pedantic": pedantic, **fields}
    ask(t, "STREAM.CREATE.T", config)


FORMS: tuple[Any, ...] = ("O", [], 5, True, {}, None)


@table([(str(form), form) for form in FORMS])
def forms(t: Script, form: Any) -> None:
    ask(t, "STREAM.CREATE.T", {"name": "T", "storage": "memory", "mirror": form})


# Each row: the present mirror, and a series of updates.
UPDATES: list[tuple[str, dict[str, Any], list[dict[str, Any]]]] = [
    ("another_origin", {"mirror": ORIGIN}, [{"mirror": {"name": "D"}}]),
    ("a_filter", {"mirror": ORIGIN}, [{"mirror": {**ORIGIN, "filter_subject": "o.a"}}]),
    (
        "another_start",
        {"mirror": {**ORIGIN, "opt_start_seq": 3}},
        [{"mirror": {**ORIGIN, "opt_start_seq": 4}}, {"mirror": ORIGIN}],
    ),
    ("direct", {"mirror": ORIGIN}, [{"mirror": ORIGIN, "mirror_direct": True}]),
    ("too_small", {"mirror": ORIGIN}, [{"mirror": ORIGIN, "max_msg_size": 10}]),
    ("subjects", {"mirror": ORIGIN}, [{"mirror": ORIGIN, "subjects": ["u"]}]),
    ("promotion", {"mirror": ORIGIN}, [{}, {"mirror": ORIGIN}, {"subjects": ["u"]}]),
    ("promotion_with_subjects", {"mirror": ORIGIN}, [{"subjects": ["u"], "mirror_direct": True}, {"subjects": ["v"]}]),
    ("promotion_of_a_direct_one", {"mirror": {"name": "D"}}, [{}]),
    (
        "promotion_to_sources",
        {"mirror": ORIGIN},
        [{"sources": [ORIGIN]}, {"sources": [ORIGIN], "subjects": ["u"]}, {"mirror": ORIGIN}],
    ),
    ("promotion_to_taken_subjects", {"mirror": ORIGIN}, [{"subjects": ["o.x"]}]),
    ("from_none", {}, [{"mirror": ORIGIN}, {"mirror": {"name": "T"}}]),
    ("sealed", {"mirror": ORIGIN}, [{"mirror": ORIGIN, "sealed": True}]),
    ("bad_filter", {"mirror": ORIGIN}, [{"mirror": {**ORIGIN, "filter_subject": "a..b"}}]),
]


@table(UPDATES)
def update(t: Script, first: dict[str, Any], then: list[dict[str, Any]]) -> None:
    _stage(t)
    plain = {"name": "T", "storage": "memory"}
    ask(t, "STREAM.CREATE.T", {**plain, **first})
    for fields in then:
        answer = t.wire.api("STREAM.UPDATE.T", {**plain, **fields})
        t.note(f"update {fields}", answer.get("config", answer))


@scenario
def direct_follows_the_origin(t: Script) -> None:
    _stage(t)
    t.stream("M", mirror={"name": "D"}, mirror_direct=True)
    t.setup("STREAM.UPDATE.D", {"name": "D", "storage": "memory", "subjects": ["d.>"]})
    for direct in (True, False):
        answer = t.wire.api("STREAM.UPDATE.M", {"name": "M", "storage": "memory", "mirror": {"name": "D"}})
        t.note(f"updated with {direct}", answer["config"])


@scenario
def a_mirror_of_a_stream_that_comes_later(t: Script) -> None:
    t.stream("M", mirror=ORIGIN, mirror_direct=True)
    t.stream("O", ["o.>"])
    config = {"name": "M", "storage": "memory", "mirror": ORIGIN, "mirror_direct": True}
    t.note("updated", t.wire.api("STREAM.UPDATE.M", config)["config"])
    t.note("update pedantically", t.wire.api("STREAM.UPDATE.M", {**config, "pedantic": True}))
