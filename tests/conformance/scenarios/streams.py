"""Scenarios of streams: creation, validation, update, info, names, lists, deletion.

See docs/internals/streams.md and docs/internals/api.md.
"""

from __future__ import annotations

import json
from typing import Any

from tests.conformance.harness import Script, scenario, table

SECOND = 1_000_000_000
LONG = "n" * 256


# Each row: fields that override {"name": "S"}. Recorded: the whole answer, accepted or refused.
@table(
    [
        ("name_alone", {}),
        ("memory", {"storage": "memory"}),
        ("file", {"storage": "file"}),
        ("subjects", {"subjects": ["a.*", "b.>", "c"]}),
        (
            "all_limits",
            {"max_msgs": 5, "max_bytes": 1000, "max_age": SECOND, "max_msgs_per_subject": 2, "max_msg_size": 9},
        ),
        ("zero_limits_become_unlimited", {"max_msgs": 0, "max_bytes": 0, "max_msgs_per_subject": 0, "max_msg_size": 0}),
        ("negative_limits", {"max_msgs": -5, "max_bytes": -5, "max_msgs_per_subject": -5, "max_msg_size": -5}),
        ("negative_consumers", {"max_consumers": -5}),
        ("some_consumers", {"max_consumers": 3}),
        ("retention_interest", {"retention": "interest"}),
        ("retention_workqueue", {"retention": "workqueue"}),
        ("discard_new", {"discard": "new"}),
        ("discard_any_case", {"discard": "NEW"}),
        ("discard_new_per_subject", {"discard": "new", "discard_new_per_subject": True, "max_msgs_per_subject": 1}),
        ("description_metadata", {"description": "d <&> é", "metadata": {"a": "b", "owner": "x"}}),
        ("no_ack", {"no_ack": True}),
        ("duplicates_one_second", {"duplicate_window": SECOND}),
        ("duplicates_capped_by_age", {"max_age": 30 * SECOND}),
        ("compression", {"compression": "s2", "storage": "file"}),
        ("first_seq", {"first_seq": 100}),
        ("allow_direct", {"allow_direct": True}),
        ("deny_all", {"deny_delete": True, "deny_purge": True}),
        ("allow_rollup", {"allow_rollup_hdrs": True}),
        ("consumer_limits", {"consumer_limits": {"inactive_threshold": SECOND, "max_ack_pending": 10}}),
        ("msg_ttl", {"allow_msg_ttl": True}),
        ("replicas_zero", {"num_replicas": 0}),
        ("placement", {"placement": {"tags": ["x"]}}),
        ("own_metadata_is_overwritten", {"metadata": {"_nats.ver": "9", "_nats.level": "9", "_nats.req.level": "9"}}),
        # refused
        ("subject_bad_syntax", {"subjects": ["a..b"]}),
        ("subject_empty", {"subjects": [""]}),
        ("subject_with_blank", {"subjects": ["a b"]}),
        ("subject_twice", {"subjects": ["a", "a"]}),
        ("subjects_overlap", {"subjects": ["a.*", "a.b"]}),
        ("subject_everything", {"subjects": [">"]}),
        ("subject_js_api", {"subjects": ["$JS.API.>"]}),
        ("subject_js", {"subjects": ["$JS.>"]}),
        ("subject_js_events", {"subjects": ["$JS.EVENT.NOTHING.>"]}),
        ("subject_sys", {"subjects": ["$SYS.>"]}),
        ("subject_sys_account", {"subjects": ["$SYS.ACCOUNT.>"]}),
        ("max_age_negative", {"max_age": -1}),
        ("max_age_small", {"max_age": 1000}),
        ("duplicates_negative", {"duplicate_window": -1}),
        ("duplicates_beyond_age", {"max_age": SECOND, "duplicate_window": 2 * SECOND}),
        ("duplicates_small", {"duplicate_window": 1000}),
        ("retention_unknown", {"retention": "forever"}),
        ("discard_unknown", {"discard": "some"}),
        ("storage_unknown", {"storage": "tape"}),
        ("compression_unknown", {"compression": "zip"}),
        ("enum_wrong_case", {"storage": "File"}),
        ("per_subject_without_discard_new", {"discard_new_per_subject": True, "max_msgs_per_subject": 1}),
        ("per_subject_without_limit", {"discard": "new", "discard_new_per_subject": True}),
        ("replicas_three", {"num_replicas": 3}),
        ("replicas_six", {"num_replicas": 6}),
        ("replicas_negative", {"num_replicas": -1}),
        ("sealed", {"sealed": True}),
        ("rollup_with_deny_purge", {"allow_rollup_hdrs": True, "deny_purge": True}),
        ("description_too_long", {"description": "d" * 4097}),
        ("metadata_too_long", {"metadata": {"k": "v" * 131072}}),
        ("unknown_field", {"colour": "red"}),
        ("template_owner", {"template_owner": "x"}),
        ("wrong_type_number", {"max_msgs": "5"}),
        ("wrong_type_list", {"subjects": "a"}),
        ("wrong_type_bool", {"no_ack": 1}),
        ("fraction", {"max_msgs": 1.5}),
        ("size_beyond_int32", {"max_msg_size": 1 << 40}),
        ("field_names_in_any_case", {"Max_Msgs": 7}),
        ("mirror_direct_without_mirror", {"mirror_direct": True}),
        ("placement_preferred", {"placement": {"preferred": "x"}}),
        ("marker_ttl_small", {"subject_delete_marker_ttl": 1000}),
        ("marker_ttl_negative", {"subject_delete_marker_ttl": -SECOND}),
        ("pedantic_default_changed", {"max_msgs": 0, "pedantic": True}),
        (
            "pedantic_fine",
            {
                "max_msgs": -1,
                "max_bytes": -1,
                "max_msgs_per_subject": -1,
                "max_msg_size": -1,
                "max_consumers": -1,
                "duplicate_window": 120 * SECOND,
                "num_replicas": 1,
                "pedantic": True,
            },
        ),
        ("name_empty", {"name": ""}),
        ("name_other", {"name": "T"}),
    ]
)
def create(t: Script, config: dict[str, Any]) -> None:
    t.api("STREAM.CREATE.S", {"name": "S", **config})
    t.api("STREAM.INFO.S")


@scenario
def create_for_everything(t: Script) -> None:
    t.api("STREAM.CREATE.S", {"name": "S", "subjects": [">"], "no_ack": True})


# Each row: a raw body for STREAM.CREATE.S.
@table(
    [
        ("empty", b""),
        ("no_json", b"hello"),
        ("cut_short", b'{"name":"S"'),
        ("trailing_text", b'{"name":"S"} x'),
        ("list", b"[]"),
        ("null", b"null"),
        ("number", b"5"),
        ("text", b'"S"'),
        ("no_name", b"{}"),
        ("field_twice", b'{"name":"T","name":"S"}'),
        ("nulls", b'{"name":"S","subjects":null,"max_msgs":null,"mirror":null}'),
        ("bad_escape", b'{"name":"\\x"}'),
        ("bad_utf8", b'{"name":"S","description":"\xff"}'),
        ("enum_number", b'{"name":"S","storage":1}'),
        ("bad_time", b'{"name":"S","mirror":{"name":"T","opt_start_time":"yesterday"}}'),
    ]
)
def create_with_body(t: Script, body: bytes) -> None:
    t.api("STREAM.CREATE.S", body)


@table(
    [
        ("dot", "A.B"),
        ("star", "A*"),
        ("rest", "A>"),
        ("slash", "A/B"),
        ("backslash", "A\\B"),
        ("long", LONG),
        ("longest_usual", "n" * 200),
        ("other_letters", "Käse-1_x"),
        ("dollar", "$S"),
    ]
)
def create_named(t: Script, name: str) -> None:
    if "." not in name:
        t.api(f"STREAM.CREATE.{name}", {"name": name, "storage": "memory", "subjects": ["a"]})
    t.api(f"STREAM.CREATE.{name.replace('.', '_')}", {"name": name, "storage": "memory", "subjects": ["a"]})
    t.api("STREAM.NAMES")


@scenario
def create_the_same_again(t: Script) -> None:
    config = {"name": "S", "subjects": ["a"], "storage": "memory"}
    t.api("STREAM.CREATE.S", config)
    t.api("STREAM.CREATE.S", config)
    t.api("STREAM.CREATE.S", {**config, "max_msgs": 5})
    t.api("STREAM.CREATE.S", {**config, "max_msgs": 0, "num_replicas": 1})


@scenario
def create_overlapping_another(t: Script) -> None:
    t.stream("S", ["a.*", "b"])
    t.api("STREAM.CREATE.T", {"name": "T", "subjects": ["a.b"], "storage": "memory"})
    t.api("STREAM.CREATE.T", {"name": "T", "subjects": [">"], "storage": "memory", "no_ack": True})
    t.api("STREAM.CREATE.T", {"name": "T", "subjects": ["a.*.c", "c"], "storage": "memory"})
    t.api("STREAM.CREATE.U", {"name": "U", "subjects": ["a.x.c"], "storage": "memory"})
    t.api("STREAM.CREATE.b", {"name": "b", "storage": "memory"})


@scenario
def create_too_many_tokens_in_the_request(t: Script) -> None:
    t.silent("STREAM.CREATE", {"name": "S"})
    t.api("STREAM.NAMES")


# Each row: the first configuration, and the fields of the update.
@table(
    [
        ("nothing", {}, {}),
        ("description", {}, {"description": "new"}),
        ("metadata", {"metadata": {"a": "1"}}, {"metadata": {"b": "2"}}),
        ("subjects", {}, {"subjects": ["x", "y"]}),
        ("limits", {}, {"max_msgs": 3, "max_bytes": 500, "max_age": 3600 * SECOND, "max_msgs_per_subject": 2}),
        ("limits_off", {"max_msgs": 3, "max_bytes": 500}, {"max_msgs": -1, "max_bytes": -1}),
        ("discard", {}, {"discard": "new"}),
        ("duplicates", {}, {"duplicate_window": 60 * SECOND}),
        ("duplicates_zero", {}, {"duplicate_window": 0}),
        ("max_consumers", {}, {"max_consumers": 5}),
        ("no_ack", {}, {"no_ack": True}),
        ("direct", {}, {"allow_direct": True}),
        ("rollup", {}, {"allow_rollup_hdrs": True}),
        ("deny", {}, {"deny_delete": True, "deny_purge": True}),
        ("undeny_delete", {"deny_delete": True}, {"deny_delete": False}),
        ("undeny_purge", {"deny_purge": True}, {"deny_purge": False}),
        ("storage", {"storage": "memory"}, {"storage": "file"}),
        ("retention_to_interest", {}, {"retention": "interest"}),
        ("retention_to_workqueue", {}, {"retention": "workqueue"}),
        ("retention_from_workqueue", {"retention": "workqueue"}, {"retention": "limits"}),
        ("first_seq", {}, {"first_seq": 50}),
        ("replicas", {}, {"num_replicas": 3}),
        ("seal", {"max_age": 3600 * SECOND}, {"sealed": True}),
        ("ttl_on", {}, {"allow_msg_ttl": True}),
        ("ttl_off", {"allow_msg_ttl": True}, {"allow_msg_ttl": False}),
        ("name", {}, {"name": "T"}),
        ("bad_subject", {}, {"subjects": ["a..b"]}),
        ("small_age", {}, {"max_age": 5}),
        ("unknown_field", {}, {"colour": "red"}),
        ("echoed_metadata", {}, {"metadata": {"_nats.ver": "2.15.1", "_nats.level": "5", "_nats.req.level": "0"}}),
        ("consumer_limits", {}, {"consumer_limits": {"max_ack_pending": 5}}),
    ]
)
def update(t: Script, first: dict[str, Any], changes: dict[str, Any]) -> None:
    config = {"name": "S", "subjects": ["x"], "storage": "memory", **first}
    t.setup("STREAM.CREATE.S", config)
    t.fill(["x"] * 5)
    t.api("STREAM.UPDATE.S", {**config, **changes})
    t.api("STREAM.INFO.S")


@scenario
def update_a_missing_one(t: Script) -> None:
    t.api("STREAM.UPDATE.S", {"name": "S"})
    t.api("STREAM.UPDATE.S", b"nope")


@scenario
def update_into_another_streams_subjects(t: Script) -> None:
    t.stream("S", ["a"])
    t.stream("T", ["b"])
    t.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["a", "b"], "storage": "memory"})


@scenario
def update_violating_consumers(t: Script) -> None:
    t.stream("S", ["a"])
    t.consumer("S", "c1", max_ack_pending=100)
    changed = {"name": "S", "subjects": ["a"], "storage": "memory", "consumer_limits": {"max_ack_pending": 5}}
    t.api("STREAM.UPDATE.S", changed)


@scenario
def updated_subjects_take_effect(t: Script) -> None:
    t.stream("S", ["a"])
    t.fill(["a"])
    t.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["b"], "storage": "memory"})
    t.publish("a", b"gone")
    t.publish("b", b"new")
    t.state("S", subjects_filter=">")


@scenario
def sealed_refuses_everything(t: Script) -> None:
    t.stream("S", ["a"])
    t.fill(["a", "a"])
    t.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["a"], "storage": "memory", "sealed": True})
    t.publish("a", b"x")
    t.api("STREAM.PURGE.S")
    t.api("STREAM.MSG.DELETE.S", {"seq": 1})
    t.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["a"], "storage": "memory", "sealed": False})
    t.api("STREAM.MSG.GET.S", {"seq": 1})
    t.state("S")


@scenario
def info_of_a_missing_one(t: Script) -> None:
    t.api("STREAM.INFO.NONE")
    t.api("STREAM.INFO.NONE", {})
    t.silent("STREAM.INFO")
    t.silent("STREAM.INFO.a.b")


@scenario
def info_with_subjects(t: Script) -> None:
    t.stream("S", ["a.*"])
    t.fill(["a.1", "a.2", "a.2", "a.3", "a.3", "a.3"])
    t.api("STREAM.INFO.S", {"subjects_filter": ">"})
    t.api("STREAM.INFO.S", {"subjects_filter": "a.2"})
    t.api("STREAM.INFO.S", {"subjects_filter": "b.*"})
    t.api("STREAM.INFO.S", {"subjects_filter": ">", "offset": 2})
    t.api("STREAM.INFO.S", {"subjects_filter": ">", "offset": 9})


@scenario
def info_with_deleted(t: Script) -> None:
    t.stream("S", ["a"])
    t.fill(["a"] * 8)
    for seq in (1, 3, 5, 8):
        t.setup("STREAM.MSG.DELETE.S", {"seq": seq})
    t.api("STREAM.INFO.S", {"deleted_details": True})
    t.api("STREAM.INFO.S")


@table(
    [
        ("no_json", b"x"),
        ("unknown_field", b'{"colour":1}'),
        ("bad_type", b'{"offset":"1"}'),
        ("empty_object", b"{}"),
        ("negative_offset", b'{"subjects_filter":">","offset":-1}'),
    ]
)
def info_bodies(t: Script, body: bytes) -> None:
    t.stream("S", ["a"])
    t.fill(["a"])
    t.api("STREAM.INFO.S", body)


@scenario
def names_and_lists_when_empty(t: Script) -> None:
    t.api("STREAM.NAMES")
    t.api("STREAM.LIST")
    t.api("STREAM.NAMES", {"subject": "a"})


@scenario
def names_and_lists(t: Script) -> None:
    for name in ("delta", "alpha", "charlie", "bravo"):
        t.stream(name, [f"{name}.*"])
    t.api("STREAM.NAMES")
    t.api("STREAM.LIST")
    t.api("STREAM.NAMES", {"offset": 2})
    t.api("STREAM.NAMES", {"offset": 4})
    t.api("STREAM.NAMES", {"offset": 99})
    t.api("STREAM.NAMES", {"offset": -3})
    t.api("STREAM.LIST", {"offset": 3})
    t.api("STREAM.NAMES", {"subject": "bravo.x"})
    t.api("STREAM.NAMES", {"subject": "*.x"})
    t.api("STREAM.NAMES", {"subject": "nothing.here"})
    t.api("STREAM.LIST", {"subject": "alpha.>"})
    for body in (b"garbage", b'{"offset":"x"}', b'{"colour":1}', b'{"offset":1', b"[]"):
        t.api("STREAM.NAMES", body)
        t.api("STREAM.LIST", body)


@scenario
def a_page_of_names_ends_at_1024(t: Script) -> None:
    wire, replies = t.wire, []
    wire.timeout = 60.0  # some seconds on a busy machine
    for n in range(1030):
        body = json.dumps({"name": f"P{n:04d}", "subjects": [f"p{n}"], "storage": "memory"}).encode()
        replies.append(wire.new_reply())
        wire.publish(f"$JS.API.STREAM.CREATE.P{n:04d}", body, replies[-1])
    t.note("created", sum("did_create" in wire.message(reply).json() for reply in replies))
    first = wire.api("STREAM.NAMES")
    t.note("first page", [first["total"], first["limit"], first["offset"], len(first["streams"]), first["streams"][-1]])
    t.note("second page", wire.api("STREAM.NAMES", {"offset": 1024}))
    for offset in (0, 900):
        page = wire.api("STREAM.LIST", {"offset": offset})
        names = [stream["config"]["name"] for stream in page["streams"]]
        t.note(f"details from {offset}", [page["total"], page["limit"], len(names), names[0], names[-1]])


@scenario
def delete(t: Script) -> None:
    t.stream("S", ["a"])
    t.fill(["a"])
    t.api("STREAM.DELETE.S", b"x")
    t.api("STREAM.DELETE.S")
    t.api("STREAM.DELETE.S")
    t.api("STREAM.INFO.S")
    t.frames("nobody stores it now", [t.wire.request("a")])
    t.stream("S", ["a"])
    t.publish("a", b"first again")
    t.stream("T", ["t"])
    t.api("STREAM.DELETE.T", {})


@scenario
def a_file_stream_comes_back_empty_after_delete(t: Script) -> None:
    for _ in range(2):
        t.stream("S", ["a"], storage="file")
        t.fill(["a"] * 3)
        t.state("S")
        t.setup("STREAM.DELETE.S")


@scenario
def unknown_requests_are_not_answered(t: Script) -> None:
    t.silent("NOTHING.LIKE.THIS", for_s=0.15)
    t.silent("STREAM.FOO.S", for_s=0.15)
    t.silent("STREAM.TEMPLATE.NAMES", for_s=0.15)
    t.silent("META.LEADER.STEPDOWN", for_s=0.15)


@scenario
def clustered_requests_on_a_single_server(t: Script) -> None:
    t.stream("S", ["a"])
    t.api("STREAM.LEADER.STEPDOWN.S")
    t.api("STREAM.PEER.REMOVE.S", {"peer": "x"})
    t.api("STREAM.CANCEL_MOVE.S")


@scenario
def required_api_level(t: Script) -> None:
    t.api("STREAM.NAMES", headers={"Nats-Required-Api-Level": "5"})
    t.api("STREAM.NAMES", headers={"Nats-Required-Api-Level": "99"})
    t.api("STREAM.NAMES", headers={"Nats-Required-Api-Level": "x"})
    t.api("STREAM.CREATE.S", {"name": "S"}, headers={"Nats-Required-Api-Level": "99"})


@scenario
def order_of_fields(t: Script) -> None:
    config = {"name": "S", "subjects": ["a"], "storage": "memory", "description": "d", "metadata": {"a": "b"}}
    answer = t.wire.request("$JS.API.STREAM.CREATE.S", json.dumps(config).encode())
    t.note("create", _order(json.loads(answer.data)))
    t.note("info", _order(t.wire.api("STREAM.INFO.S", {"subjects_filter": ">", "deleted_details": True})))
    t.note("list", _order(t.wire.api("STREAM.LIST")))
    t.note("names", _order(t.wire.api("STREAM.NAMES")))
    t.note("error", _order(t.wire.api("STREAM.INFO.T")))
    t.note("ack", t.wire.request("a").data)


def _order(value: Any) -> Any:
    if isinstance(value, dict):
        return [[key, _order(inner)] for key, inner in value.items()]
    if isinstance(value, list):
        return [_order(inner) for inner in value]
    return ""


@scenario
def text_is_escaped_as_go_does(t: Script) -> None:
    body = json.dumps({"name": "S", "storage": "memory", "description": '<a> & \u2028 é \u0001 " \\ /'}).encode()
    answer = t.wire.request("$JS.API.STREAM.CREATE.S", body).data
    start = answer.index(b'"description":')
    t.note("raw", answer[start : answer.index(b",", start)])
