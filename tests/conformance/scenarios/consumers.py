"""Scenarios of consumers: creation, validation, update, list, deletion, pause.

See docs/internals/consumers.md and docs/internals/api.md#consumers.
"""

from __future__ import annotations

import json
from typing import Any

from tests.conformance.harness import Script, scenario, table

SECOND = 1_000_000_000
LONG_AGO = "2001-01-01T00:00:00Z"
PUSH = {"deliver_subject": "to.me"}
LAST_PER_SUBJECT = {"deliver_policy": "last_per_subject", "filter_subject": "a.*"}
FROM_1 = {"deliver_policy": "by_start_sequence", "opt_start_seq": 1}


def _create(t: Script, config: dict[str, Any], subject: str = "S.c", **fields: Any) -> Any:
    return t.api(f"CONSUMER.CREATE.{subject}", {"stream_name": "S", "config": config, **fields})


# Each row: a configuration of the durable consumer c. Recorded: the whole answer, then CONSUMER.INFO.
@table(
    [
        ("durable", {}),
        ("explicit", {"ack_policy": "explicit"}),
        ("ack_all", {"ack_policy": "all"}),
        ("ack_none", {"ack_policy": "none"}),
        ("deliver_last", {"deliver_policy": "last"}),
        ("deliver_new", {"deliver_policy": "new"}),
        ("deliver_by_sequence", {"deliver_policy": "by_start_sequence", "opt_start_seq": 2}),
        ("deliver_by_time", {"deliver_policy": "by_start_time", "opt_start_time": LONG_AGO}),
        ("deliver_last_per_subject", {"deliver_policy": "last_per_subject", "filter_subject": "a.*"}),
        ("ack_wait", {"ack_policy": "explicit", "ack_wait": 5 * SECOND}),
        ("max_deliver", {"ack_policy": "explicit", "max_deliver": 3}),
        ("max_deliver_zero", {"ack_policy": "explicit", "max_deliver": 0}),
        ("max_deliver_negative", {"ack_policy": "explicit", "max_deliver": -7}),
        ("backoff", {"ack_policy": "explicit", "backoff": [SECOND, 2 * SECOND], "max_deliver": 5}),
        ("backoff_as_long_as_max_deliver", {"ack_policy": "explicit", "backoff": [SECOND, SECOND], "max_deliver": 2}),
        ("filter", {"filter_subject": "a.1"}),
        ("filters", {"filter_subjects": ["a.1", "b.>"]}),
        ("filters_overlapping_partly", {"filter_subjects": ["a.*.b", "a.a.*"]}),
        ("filter_foreign", {"filter_subject": "zzz"}),
        ("replay_original", {"replay_policy": "original"}),
        ("sample", {"ack_policy": "explicit", "sample_freq": "30%"}),
        ("sample_number", {"ack_policy": "explicit", "sample_freq": "100"}),
        ("max_waiting", {"max_waiting": 7}),
        ("max_waiting_negative", {"max_waiting": -7}),
        ("max_ack_pending", {"ack_policy": "explicit", "max_ack_pending": 7}),
        ("max_ack_pending_unlimited", {"ack_policy": "explicit", "max_ack_pending": -1}),
        ("headers_only", {"headers_only": True}),
        ("request_limits", {"max_batch": 5, "max_expires": SECOND, "max_bytes": 1000}),
        ("request_limits_negative", {"max_batch": -5, "max_expires": -1, "max_bytes": -1}),
        ("inactive_threshold", {"inactive_threshold": 60 * SECOND}),
        ("memory", {"mem_storage": True}),
        ("replicas_one", {"num_replicas": 1}),
        ("description_metadata", {"description": "<d>", "metadata": {"a": "b"}}),
        ("name_too", {"name": "c"}),
        ("paused", {"pause_until": "2099-01-01T00:00:00Z"}),
        ("push", {**PUSH}),
        ("push_queue", {**PUSH, "deliver_group": "g"}),
        ("push_heartbeat", {**PUSH, "idle_heartbeat": SECOND}),
        ("push_flow_control", {**PUSH, "idle_heartbeat": SECOND, "flow_control": True}),
        ("push_rate_limit", {**PUSH, "rate_limit_bps": 100000}),
        # refused
        ("last_with_start_sequence", {"deliver_policy": "last", "opt_start_seq": 2}),
        ("all_with_start_sequence", {"opt_start_seq": 2}),
        ("all_with_start_time", {"opt_start_time": LONG_AGO}),
        ("new_with_start_time", {"deliver_policy": "new", "opt_start_time": LONG_AGO}),
        ("by_sequence_without", {"deliver_policy": "by_start_sequence"}),
        (
            "by_sequence_with_time",
            {"deliver_policy": "by_start_sequence", "opt_start_seq": 1, "opt_start_time": LONG_AGO},
        ),
        ("by_time_without", {"deliver_policy": "by_start_time"}),
        ("by_time_with_sequence", {"deliver_policy": "by_start_time", "opt_start_seq": 1}),
        ("last_per_subject_without_filter", {"deliver_policy": "last_per_subject"}),
        (
            "last_per_subject_with_start",
            {"deliver_policy": "last_per_subject", "filter_subject": "a.*", "opt_start_seq": 1},
        ),
        ("deliver_unknown", {"deliver_policy": "some"}),
        ("ack_unknown", {"ack_policy": "maybe"}),
        ("replay_unknown", {"replay_policy": "slow"}),
        ("ack_wait_negative", {"ack_policy": "explicit", "ack_wait": -1}),
        ("backoff_negative", {"ack_policy": "explicit", "backoff": [-1], "max_deliver": 3}),
        ("backoff_too_long", {"ack_policy": "explicit", "backoff": [SECOND] * 3, "max_deliver": 2}),
        ("filter_bad", {"filter_subject": "a..1"}),
        ("both_filters", {"filter_subject": "a.1", "filter_subjects": ["a.2"]}),
        ("filters_contained", {"filter_subjects": ["a.*", "a.1"]}),
        ("filters_empty_one", {"filter_subjects": ["a.1", ""]}),
        ("filters_bad", {"filter_subjects": ["a..1", "b"]}),
        ("sample_bad", {"ack_policy": "explicit", "sample_freq": "many"}),
        ("rate_limit_on_pull", {"rate_limit_bps": 1}),
        ("heartbeat_on_pull", {"idle_heartbeat": SECOND}),
        ("flow_control_on_pull", {"flow_control": True}),
        ("direct_on_pull", {"direct": True}),
        ("max_waiting_on_push", {**PUSH, "max_waiting": 3}),
        ("heartbeat_small", {**PUSH, "idle_heartbeat": 1000}),
        ("flow_control_without_heartbeat", {**PUSH, "flow_control": True}),
        ("max_ack_pending_without_acks_on_push", {**PUSH, "ack_policy": "none", "max_ack_pending": 3}),
        ("max_ack_pending_without_acks", {"ack_policy": "none", "max_ack_pending": 3}),
        ("deliver_wildcard", {"deliver_subject": "to.*"}),
        ("deliver_bad", {"deliver_subject": "to..me"}),
        ("deliver_cycle", {"deliver_subject": "a.1"}),
        ("expires_small", {"max_expires": 1000}),
        ("replicas_three", {"num_replicas": 3}),
        ("replicas_negative", {"num_replicas": -1}),
        ("description_long", {"description": "d" * 4097}),
        ("metadata_long", {"metadata": {"k": "v" * 131072}}),
        ("unknown_field", {"colour": "red"}),
        ("wrong_type", {"max_deliver": "3"}),
        ("name_other", {"name": "d"}),
        ("durable_other", {"durable_name": "d"}),
        ("groups_without_policy", {"priority_groups": ["g"]}),
        ("policy_without_groups", {"priority_policy": "overflow"}),
        ("priority_unknown", {"priority_policy": "first", "priority_groups": ["g"]}),
    ]
)
def create(t: Script, config: dict[str, Any]) -> None:
    t.stream("S", ["a.*", "b.>"])
    t.fill(["a.1", "a.2", "b.1", "a.1"])
    _create(t, {"durable_name": "c", **config})
    t.api("CONSUMER.INFO.S.c")


# Each row: the stream's configuration, and the consumers created one after another.
@table(
    [
        ("none_acks", [{"ack_policy": "none"}]),
        ("all_acks", [{"ack_policy": "all"}]),
        ("not_all", [{"ack_policy": "explicit", "deliver_policy": "new"}]),
        ("two_unfiltered", [{"ack_policy": "explicit"}, {"ack_policy": "explicit"}]),
        ("filtered_and_not", [{"ack_policy": "explicit", "filter_subject": "a.1"}, {"ack_policy": "explicit"}]),
        ("overlapping", [{"ack_policy": "explicit", "filter_subject": f} for f in ("a.*", "a.1")]),
        ("apart", [{"ack_policy": "explicit", "filter_subject": f} for f in ("a.1", "a.2")]),
        ("push", [{"ack_policy": "explicit", **PUSH}]),
        ("push_none", [{"ack_policy": "none", **PUSH}]),
    ]
)
def create_on_a_workqueue(t: Script, configs: list[dict[str, Any]]) -> None:
    t.stream("S", ["a.*"], retention="workqueue")
    for n, config in enumerate(configs):
        _create(t, {"durable_name": f"c{n}", **config}, f"S.c{n}")


# Each row: the part of the subject after CONSUMER.CREATE., the configuration.
@table(
    [
        ("name_in_subject", "S.c", {"name": "c"}),
        ("name_in_subject_only", "S.c", {}),
        ("durable_and_name", "S.c", {"name": "c", "durable_name": "c"}),
        ("durable_not_name", "S.c", {"name": "c", "durable_name": "d"}),
        ("filter_in_subject", "S.c.a.1", {"durable_name": "c", "filter_subject": "a.1"}),
        ("filter_with_wildcard", "S.c.a.*", {"durable_name": "c", "filter_subject": "a.*"}),
        ("filter_differs", "S.c.a.1", {"durable_name": "c", "filter_subject": "a.2"}),
        ("filter_in_subject_only", "S.c.a.1", {"durable_name": "c"}),
        ("filters_in_subject", "S.c.a.1", {"durable_name": "c", "filter_subjects": ["a.1", "a.2"]}),
        ("legacy_with_durable", "S", {"durable_name": "c"}),
        ("legacy_with_name", "S", {"name": "c"}),
        ("missing_stream", "T.c", {"durable_name": "c"}),
        ("name_with_slash", "S.a/b", {"durable_name": "a/b"}),
        ("name_with_backslash", "S.a\\b", {"durable_name": "a\\b"}),
        ("name_too_long", "S." + "n" * 256, {"durable_name": "n" * 256}),
        ("star_in_name", "S.c", {"durable_name": "c*"}),
    ]
)
def create_by_subject(t: Script, subject: str, config: dict[str, Any]) -> None:
    t.stream("S", ["a.*"])
    t.api(f"CONSUMER.CREATE.{subject}", {"stream_name": subject.split(".")[0], "config": config})
    t.api("CONSUMER.NAMES.S")


@table(
    [
        ("right", "c", {"durable_name": "c", "ack_policy": "explicit"}),
        ("no_durable", "c", {"ack_policy": "explicit"}),
        ("other_durable", "c", {"durable_name": "d"}),
        ("name_only", "c", {"name": "c"}),
    ]
)
def create_durable_form(t: Script, name: str, config: dict[str, Any]) -> None:
    t.stream("S", ["a.*"])
    t.api(f"CONSUMER.DURABLE.CREATE.S.{name}", {"stream_name": "S", "config": config})
    t.api("CONSUMER.NAMES.S")


@table(
    [
        ("empty", b""),
        ("no_json", b"x"),
        ("empty_object", b"{}"),
        ("no_config", b'{"stream_name":"S"}'),
        ("config_null", b'{"stream_name":"S","config":null}'),
        ("other_stream", b'{"stream_name":"T","config":{"durable_name":"c"}}'),
        ("no_stream", b'{"config":{"durable_name":"c"}}'),
        ("unknown_outer_field", b'{"stream_name":"S","config":{"durable_name":"c"},"colour":1}'),
        ("unknown_action", b'{"stream_name":"S","config":{"durable_name":"c"},"action":"destroy"}'),
    ]
)
def create_bodies(t: Script, body: bytes) -> None:
    t.stream("S", ["a.*"])
    t.api("CONSUMER.CREATE.S.c", body)


@scenario
def create_ephemeral(t: Script) -> None:
    t.stream("S", ["a.*"])
    answer = t.wire.api("CONSUMER.CREATE.S", {"stream_name": "S", "config": {"ack_policy": "explicit"}})
    t.note("length of the name", len(answer["name"]))
    t.hide(answer["name"], "<ephemeral>")
    t.note("answer", answer)
    t.api(f"CONSUMER.INFO.S.{answer['name']}")
    t.api("CONSUMER.NAMES.S")


# Each row: action, and the configuration of the second request for the consumer c with explicit acks.
@table(
    [
        ("any_same", "", {"ack_policy": "explicit"}),
        ("any_different", "", {"ack_policy": "explicit", "description": "new"}),
        ("create_same", "create", {"ack_policy": "explicit"}),
        ("create_different", "create", {"ack_policy": "explicit", "description": "new"}),
        ("update_same", "update", {"ack_policy": "explicit"}),
        ("update_different", "update", {"ack_policy": "explicit", "description": "new"}),
    ]
)
def actions(t: Script, action: str, config: dict[str, Any]) -> None:
    t.stream("S", ["a.*"])
    _create(t, {"durable_name": "c", **config}, action=action)
    if action == "update":
        t.consumer("S", "c")
    _create(t, {"durable_name": "c", "ack_policy": "explicit"}, action=action)
    _create(t, {"durable_name": "c", **config}, action=action)
    t.api("CONSUMER.LIST.S")


# Each row: the first configuration, and the fields of the update.
@table(
    [
        ("description", {}, {"description": "d"}),
        ("metadata", {}, {"metadata": {"a": "b"}}),
        ("ack_wait", {}, {"ack_wait": 9 * SECOND}),
        ("max_deliver", {}, {"max_deliver": 9}),
        ("backoff", {}, {"max_deliver": 9, "backoff": [SECOND]}),
        ("filter", {}, {"filter_subject": "a.1"}),
        ("filters", {"filter_subject": "a.1"}, {"filter_subject": "", "filter_subjects": ["a.1", "a.2"]}),
        ("filter_removed", {"filter_subject": "a.1"}, {"filter_subject": ""}),
        ("sample", {}, {"sample_freq": "50"}),
        ("max_ack_pending", {}, {"max_ack_pending": 5}),
        ("headers_only", {}, {"headers_only": True}),
        ("request_limits", {}, {"max_batch": 3, "max_expires": SECOND, "max_bytes": 100}),
        ("inactive_threshold", {}, {"inactive_threshold": SECOND * 60}),
        ("deliver_subject", PUSH, {"deliver_subject": "to.you"}),
        ("deliver_policy", {}, {"deliver_policy": "new"}),
        ("start_sequence", {"deliver_policy": "by_start_sequence", "opt_start_seq": 1}, {"opt_start_seq": 2}),
        (
            "start_time",
            {"deliver_policy": "by_start_time", "opt_start_time": LONG_AGO},
            {"opt_start_time": "2002-01-01T00:00:00Z"},
        ),
        ("ack_policy", {}, {"ack_policy": "all"}),
        ("replay", {}, {"replay_policy": "original"}),
        ("max_waiting", {}, {"max_waiting": 5}),
        ("memory", {}, {"mem_storage": True}),
        ("heartbeat", {**PUSH, "idle_heartbeat": SECOND}, {"idle_heartbeat": 2 * SECOND}),
        ("flow_control", {**PUSH, "idle_heartbeat": SECOND}, {"flow_control": True}),
        ("pull_to_push", {}, PUSH),
        ("push_to_pull", PUSH, {"deliver_subject": ""}),
    ]
)
def update(t: Script, first: dict[str, Any], changes: dict[str, Any]) -> None:
    t.stream("S", ["a.*"])
    t.fill(["a.1", "a.2", "a.1", "a.3"])
    config = {"durable_name": "c", "ack_policy": "explicit", **first}
    t.setup("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
    _create(t, {**config, **changes})
    t.api("CONSUMER.INFO.S.c")


@scenario
def names_and_lists(t: Script) -> None:
    t.stream("S", ["a"])
    t.api("CONSUMER.NAMES.S")
    t.api("CONSUMER.LIST.S")
    for name in ("delta", "alpha", "charlie", "bravo"):
        t.consumer("S", name)
    t.api("CONSUMER.NAMES.S")
    t.api("CONSUMER.LIST.S")
    t.api("CONSUMER.NAMES.S", {"offset": 2})
    t.api("CONSUMER.NAMES.S", {"offset": 4})
    t.api("CONSUMER.LIST.S", {"offset": 3})
    t.api("CONSUMER.NAMES.S", {"offset": -1})
    t.api("CONSUMER.NAMES.T")
    t.api("CONSUMER.LIST.T")
    for body in (b"x", b'{"offset":"x"}', b'{"colour":1}', b'{"offset":1', b"[]"):
        t.api("CONSUMER.NAMES.S", body)
        t.api("CONSUMER.LIST.S", body)


@scenario
def info_and_delete(t: Script) -> None:
    t.stream("S", ["a"])
    t.consumer("S", "c")
    t.api("CONSUMER.INFO.S.c", b"x")
    t.api("CONSUMER.INFO.S.c", {})
    t.api("CONSUMER.INFO.S.d")
    t.api("CONSUMER.INFO.T.c")
    t.api("CONSUMER.DELETE.S.c", b"x")
    t.api("CONSUMER.DELETE.S.d")
    t.api("CONSUMER.DELETE.T.c")
    t.api("CONSUMER.DELETE.S.c")
    t.api("CONSUMER.DELETE.S.c")
    t.api("CONSUMER.INFO.S.c")
    t.state("S")


@scenario
def max_consumers(t: Script) -> None:
    t.stream("S", ["a"], max_consumers=2)
    for name in ("c1", "c2", "c3"):
        _create(t, {"durable_name": name}, f"S.{name}")
    t.setup("CONSUMER.DELETE.S.c1")
    _create(t, {"durable_name": "c3"}, "S.c3")


@scenario
def limits_of_the_stream_for_consumers(t: Script) -> None:
    t.stream("S", ["a"], consumer_limits={"max_ack_pending": 10, "inactive_threshold": 60 * SECOND})
    _create(t, {"durable_name": "c", "ack_policy": "explicit"})
    _create(t, {"durable_name": "d", "ack_policy": "explicit", "max_ack_pending": 11}, "S.d")
    _create(t, {"durable_name": "e", "ack_policy": "explicit", "inactive_threshold": 61 * SECOND}, "S.e")


@scenario
def an_inactive_ephemeral_goes_away(t: Script) -> None:
    t.stream("S", ["a"])
    config = {"name": "e", "ack_policy": "none", "inactive_threshold": SECOND // 10}
    t.setup("CONSUMER.CREATE.S.e", {"stream_name": "S", "config": config})
    t.state_when("S", lambda state: state["consumer_count"] == 0)
    t.api("CONSUMER.INFO.S.e")


@scenario
def an_inactive_durable_with_a_threshold_goes_away(t: Script) -> None:
    t.stream("S", ["a"])
    t.consumer("S", "d", inactive_threshold=SECOND // 10)
    t.consumer("S", "stays")
    t.state_when("S", lambda state: state["consumer_count"] == 1)
    t.api("CONSUMER.NAMES.S")


@scenario
def pause_and_resume(t: Script) -> None:
    t.stream("S", ["a"])
    t.fill(["a", "a"])
    t.consumer("S", "c")
    t.api("CONSUMER.PAUSE.S.c", {"pause_until": "2099-01-01T00:00:00Z"})
    t.numbers("S", "c")
    t.pull("S", "c", {"batch": 1, "expires": SECOND // 5}, 1)
    t.api("CONSUMER.PAUSE.S.c", {"pause_until": LONG_AGO})
    t.pull("S", "c", {"batch": 1, "expires": SECOND}, 1)
    t.api("CONSUMER.PAUSE.S.c")
    t.api("CONSUMER.PAUSE.S.d", {"pause_until": "2099-01-01T00:00:00Z"})


@scenario
def reset(t: Script) -> None:
    t.stream("S", ["a"])
    t.fill(["a"] * 5)
    t.consumer("S", "c")
    first = t.pull("S", "c", {"batch": 3}, 3)
    t.ack(first[0])
    t.api("CONSUMER.RESET.S.c")
    t.numbers("S", "c")
    t.pull("S", "c", {"batch": 1}, 1)
    t.api("CONSUMER.RESET.S.c", {"seq": 4})
    t.pull("S", "c", {"batch": 1}, 1)
    t.silent("CONSUMER.RESET.S.d", for_s=0.15)


@scenario
def requests_for_clusters(t: Script) -> None:
    t.stream("S", ["a"])
    t.consumer("S", "c")
    t.api("CONSUMER.LEADER.STEPDOWN.S.c")


@scenario
def order_of_fields(t: Script) -> None:
    t.stream("S", ["a"])
    body = {"stream_name": "S", "config": {"durable_name": "c", "ack_policy": "explicit", "description": "d"}}
    answer = t.wire.request("$JS.API.CONSUMER.CREATE.S.c", json.dumps(body).encode()).json()
    t.note("create", [[k, list(v) if isinstance(v, dict) else ""] for k, v in answer.items()])
    answer = t.wire.api("CONSUMER.INFO.S.c")
    t.note("info", [[k, list(v) if isinstance(v, dict) else ""] for k, v in answer.items()])


@scenario
def deleting_the_stream_deletes_its_consumers(t: Script) -> None:
    t.stream("S", ["a"])
    t.consumer("S", "c")
    t.setup("STREAM.DELETE.S")
    t.api("CONSUMER.INFO.S.c")
    t.stream("S", ["a"])
    t.api("CONSUMER.INFO.S.c")
    t.api("CONSUMER.NAMES.S")
