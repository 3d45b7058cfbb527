"""Tests of stream configurations: defaults, refusals and updates as in nats-server 2.15.1."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.protocol.api.errors import ApiError
from lakestream.protocol.api.jsonio import dumps, parse, shown
from lakestream.stream import rules as stream_rules
from lakestream.stream.core.config import StreamConfig, StreamConfigRequest
from lakestream.stream.core.operations import UpdateStream
from lakestream.stream.info import KEPT_BYTES, config_shown, info_shown
from tests.unit.stream_world import World

pytestmark = pytest.mark.unit

S = 1_000_000_000
DEFAULTS: dict[str, Any] = {
    "name": "B",
    "subjects": ["B"],
    "retention": "limits",
    "max_consumers": -1,
    "max_msgs": -1,
    "max_bytes": -1,
    "max_age": 0,
    "max_msgs_per_subject": -1,
    "max_msg_size": -1,
    "discard": "old",
    "storage": "file",
    "num_replicas": 1,
    "duplicate_window": 120 * S,
    "compression": "none",
    "allow_direct": False,
    "mirror_direct": False,
    "sealed": False,
    "deny_delete": False,
    "deny_purge": False,
    "allow_rollup_hdrs": False,
    "consumer_limits": {},
    "allow_msg_ttl": False,
    "metadata": {"_nats.req.level": "0"},
}


def requested(fields: dict[str, Any]) -> StreamConfigRequest:
    return parse(json.dumps({"name": "B", **fields}).encode(), StreamConfigRequest)


def checked(fields: dict[str, Any]) -> StreamConfig:
    """Return the configuration that STREAM.CREATE makes of a request."""
    request = requested(fields)
    stream_rules.check_create(request)
    return stream_rules.checked(request.config(), pedantic=request.pedantic)


def refusal(fields: dict[str, Any]) -> tuple[int, str]:
    with pytest.raises(ApiError) as raised:
        checked(fields)
    return raised.value.err_code, raised.value.description


def test_defaults() -> None:
    assert shown(checked({})) == DEFAULTS


def test_fields_come_in_the_order_of_the_server() -> None:
    everything: dict[str, Any] = {
        "name": "F",
        "description": "d",
        "subjects": ["f.>"],
        "retention": "limits",
        "max_consumers": 5,
        "max_msgs": 10,
        "max_bytes": 1000,
        "max_age": S,
        "max_msgs_per_subject": 3,
        "max_msg_size": 100,
        "discard": "new",
        "storage": "memory",
        "num_replicas": 1,
        "no_ack": True,
        "duplicate_window": S,
        "placement": {"cluster": "c", "tags": ["t"]},
        "mirror": {"name": "M"},
        "sources": [
            {
                "name": "A",
                "opt_start_seq": 2,
                "opt_start_time": "2024-01-01T00:00:00.5+02:00",
                "filter_subject": "a",
                "subject_transforms": [{"src": "A", "dest": ""}],
                "external": {"api": "$JS.x.API", "deliver": "d"},
            }
        ],
        "compression": "s2",
        "first_seq": 7,
        "subject_transform": {"src": "f.*", "dest": "f.x.{{wildcard(1)}}"},
        "republish": {"src": "f.>", "dest": "r.>", "headers_only": True},
        "allow_direct": True,
        "mirror_direct": True,
        "discard_new_per_subject": True,
        "sealed": True,
        "deny_delete": True,
        "deny_purge": True,
        "allow_rollup_hdrs": True,
        "consumer_limits": {"inactive_threshold": S, "max_ack_pending": 7},
        "allow_msg_ttl": True,
        "subject_delete_marker_ttl": S,
        "allow_msg_counter": True,
        "allow_atomic": True,
        "allow_msg_schedules": True,
        "persist_mode": "async",
        "allow_batched": True,
        "metadata": {"a": "2", "b": "1"},
    }
    text = json.dumps(everything, separators=(",", ":"))
    expected = text.replace("<", "\\u003c").replace(">", "\\u003e").encode()
    shuffled = dict(sorted(everything.items(), reverse=True))
    config = parse(json.dumps(shuffled).encode(), StreamConfig)
    assert dumps(shown(config)) == expected
    assert tuple(everything) == StreamConfig.__struct_fields__


def test_answers_carry_versions_in_sorted_metadata() -> None:
    config = checked({"metadata": {"b": "1", "_x": "2"}})
    expected = {"_nats.level": "5", "_nats.req.level": "0", "_nats.ver": "2.15.1", "_x": "2", "b": "1"}
    assert list(config_shown(config, versions=True)["metadata"].items()) == list(expected.items())
    assert "_nats.ver" not in config_shown(config, versions=False)["metadata"]


@pytest.mark.parametrize("length", [1, KEPT_BYTES])
def test_stream_info_has_the_present_configuration(tmp_path: Path, length: int) -> None:
    world = World(str(tmp_path), metadata={"text": "<" * length})
    stream, answers = world.stream, set()
    for most in (5, 6):
        stream.propose(UpdateStream(msgspec.json.encode(msgspec.structs.replace(stream.config, max_msgs=most))))
        world.settle()
        for versions in (True, False):
            shown_config = dumps(info_shown(stream, 0, versions=versions)["config"])
            assert shown_config == dumps(config_shown(stream.config, versions=versions))
            answers.add(shown_config)
    assert len(answers) == 4


def test_metadata_echoed_by_clients_is_recomputed() -> None:
    echoed = {"_nats.req.level": "9", "_nats.ver": "2.14.0", "_nats.level": "4", "_nats.foo": "a", "x": ""}
    assert checked({"metadata": echoed}).metadata == {"_nats.req.level": "0", "_nats.foo": "a", "x": ""}
    assert checked({"allow_msg_ttl": True}).metadata == {"_nats.req.level": "1"}


@pytest.mark.parametrize("field", ["max_consumers", "max_msgs", "max_bytes", "max_msgs_per_subject", "max_msg_size"])
def test_unlimited_is_minus_one(field: str) -> None:
    for value in (0, -1):
        assert getattr(checked({field: value, "pedantic": True}), field) == -1
    assert getattr(checked({field: -2}), field) == -1
    assert refusal({field: -2, "pedantic": True}) == (10157, f"pedantic mode: {field} must be set to -1")
    assert getattr(checked({field: 5}), field) == 5


class Case(NamedTuple):
    """Request, with its differences from the defaults, or the refusal."""

    request: dict[str, Any]
    result: dict[str, Any] | tuple[int, str]


def _invalid(text: str) -> tuple[int, str]:
    return 10052, text


NAME_RULE = "stream name is required and can not contain '.', '*', '>', '\\', '/'"
API_OVERLAP = "subjects that overlap with jetstream api require no-ack to be true"
CREATES = [
    Case({"name": ""}, _invalid(NAME_RULE)),
    Case({"name": "a.b"}, _invalid(NAME_RULE)),
    Case({"name": "a*"}, _invalid(NAME_RULE)),
    Case({"name": "a>"}, _invalid(NAME_RULE)),
    Case({"name": "a b"}, _invalid(NAME_RULE)),
    Case({"name": "a\tb"}, _invalid(NAME_RULE)),
    Case({"name": "a/b"}, (10128, "Stream name can not contain path separators")),
    Case({"name": "a\\b"}, (10128, "Stream name can not contain path separators")),
    Case({"name": "x" * 255}, {"name": "x" * 255, "subjects": ["x" * 255]}),
    Case({"name": "x" * 256}, _invalid("stream name is too long, maximum allowed is 255")),
    Case({"name": "é"}, {"name": "é", "subjects": ["é"]}),
    Case({"description": "x" * 4096}, {"description": "x" * 4096}),
    Case({"description": "x" * 4097}, _invalid("stream description is too long, maximum allowed is 4096")),
    Case({"metadata": {"a": "x" * 131_072}}, _invalid("stream metadata exceeds maximum size of 131072 bytes")),
    Case({"max_age": -1}, _invalid("max age can not be negative")),
    Case({"max_age": 99_999_999}, _invalid("max age needs to be >= 100ms")),
    Case({"max_age": 100_000_000}, {"max_age": 100_000_000, "duplicate_window": 100_000_000}),
    Case({"max_age": S}, {"max_age": S, "duplicate_window": S}),
    Case({"max_age": 600 * S}, {"max_age": 600 * S}),
    Case({"max_age": S, "pedantic": True}, (10157, "pedantic mode: duplicate window cannot be bigger than max age")),
    Case({"duplicate_window": -1}, _invalid("duplicates window can not be negative")),
    Case({"duplicate_window": 99_999_999}, _invalid("duplicates window needs to be >= 100ms")),
    Case({"duplicate_window": 180 * S}, {"duplicate_window": 180 * S}),
    Case({"duplicate_window": 2 * S, "max_age": S}, _invalid("duplicates window can not be larger then max age")),
    Case({"discard_new_per_subject": True}, _invalid("discard new per subject requires discard new policy to be set")),
    Case(
        {"discard_new_per_subject": True, "discard": "new"},
        _invalid("discard new per subject requires max msgs per subject > 0"),
    ),
    Case(
        {"discard_new_per_subject": True, "discard": "NEW", "max_msgs_per_subject": 1},
        {"discard_new_per_subject": True, "discard": "new", "max_msgs_per_subject": 1},
    ),
    Case({"num_replicas": -1}, (10133, "replicas count cannot be negative")),
    Case({"num_replicas": 0}, {}),
    Case({"num_replicas": 2}, (10074, "replicas > 1 not supported in non-clustered mode")),
    Case({"num_replicas": 6}, _invalid("maximum replicas is 5")),
    Case({"placement": {"preferred": "x"}}, _invalid("preferred server not permitted in placement")),
    Case({"placement": {}}, {}),
    Case({"placement": {"cluster": "a", "tags": ["x"]}}, {"placement": {"cluster": "a", "tags": ["x"]}}),
    Case({"sealed": True}, _invalid("stream configuration for create can not be sealed")),
    Case({"mirror_direct": True}, _invalid("stream has no mirror but does have mirror direct")),
    Case({"deny_purge": True, "allow_rollup_hdrs": True}, _invalid("roll-ups require the purge permission")),
    Case({"allow_msg_ttl": True}, {"allow_msg_ttl": True, "metadata": {"_nats.req.level": "1"}}),
    Case({"first_seq": 5}, {"first_seq": 5}),
    Case({"storage": "memory"}, {"storage": "memory"}),
    Case({"compression": "s2"}, {"compression": "s2"}),
    Case({"retention": "interest"}, {"retention": "interest"}),
    Case({"retention": "workqueue"}, {"retention": "workqueue"}),
    Case({"no_ack": True}, {"no_ack": True}),
    Case({"persist_mode": "default"}, {}),
    Case({"consumer_limits": {"inactive_threshold": -1}}, {"consumer_limits": {"inactive_threshold": -1}}),
    # subjects
    Case({"subjects": []}, {}),
    Case({"subjects": [""]}, _invalid("invalid subject")),
    Case({"subjects": ["."]}, _invalid("invalid subject")),
    Case({"subjects": ["a..b"]}, _invalid("invalid subject")),
    Case({"subjects": ["a."]}, _invalid("invalid subject")),
    Case({"subjects": ["a b"]}, _invalid("invalid subject")),
    Case({"subjects": ["a\tb"]}, _invalid("invalid subject")),
    Case({"subjects": ["a.>.b"]}, _invalid("invalid subject")),
    Case({"subjects": ["foo*"]}, {"subjects": ["foo*"]}),
    Case({"subjects": ["x>"]}, {"subjects": ["x>"]}),
    Case({"subjects": ["*"]}, {"subjects": ["*"]}),
    Case({"subjects": ["a", "a"]}, _invalid('subject "a" overlaps with "a"')),
    Case({"subjects": ["x", "y", "x"]}, _invalid('subject "x" overlaps with "x"')),
    Case({"subjects": ["a.>", "a.b"]}, _invalid('subject "a.>" overlaps with "a.b"')),
    Case({"subjects": ["a.b", "a.*"]}, _invalid('subject "a.b" overlaps with "a.*"')),
    Case({"subjects": [">"]}, _invalid("capturing all subjects requires no-ack to be true")),
    Case(
        {"subjects": [">"], "no_ack": True, "num_replicas": 3},
        _invalid("capturing all subjects requires replicas of 1"),
    ),
    Case({"subjects": [">"], "no_ack": True}, {"subjects": [">"], "no_ack": True}),
    Case({"subjects": ["$JS.foo"]}, _invalid(API_OVERLAP)),
    Case({"subjects": ["$JS.>"]}, _invalid(API_OVERLAP)),
    Case({"subjects": ["$JSC.foo"]}, _invalid(API_OVERLAP)),
    Case({"subjects": ["$NRG.x"]}, _invalid(API_OVERLAP)),
    Case({"subjects": ["*.foo"]}, _invalid(API_OVERLAP)),
    Case({"subjects": ["*.>"]}, _invalid(API_OVERLAP)),
    Case({"subjects": ["$JS.>"], "no_ack": True}, {"subjects": ["$JS.>"], "no_ack": True}),
    Case({"subjects": ["$JS.EVENT.>"]}, {"subjects": ["$JS.EVENT.>"]}),
    Case({"subjects": ["$SYS.foo"]}, _invalid("subjects that overlap with system api require no-ack to be true")),
    Case({"subjects": ["$SYS.ACCOUNT.x"]}, {"subjects": ["$SYS.ACCOUNT.x"]}),
    # combinations that other features exclude
    Case({"subject_delete_marker_ttl": -1}, _invalid("subject delete marker TTL must not be negative")),
    Case({"subject_delete_marker_ttl": S - 1}, _invalid("subject delete marker TTL must be at least 1 second")),
    Case(
        {"subject_delete_marker_ttl": S, "pedantic": True},
        _invalid("subject delete marker cannot be set if message TTLs are disabled"),
    ),
    Case(
        {"subject_delete_marker_ttl": S, "allow_msg_ttl": True, "pedantic": True},
        _invalid("subject delete marker cannot be set if roll-ups are disabled"),
    ),
    Case({"allow_msg_counter": True, "discard": "new"}, _invalid("counter stream cannot use discard new")),
    Case({"allow_msg_counter": True, "allow_msg_ttl": True}, _invalid("counter stream cannot use message TTLs")),
    Case(
        {"allow_msg_counter": True, "allow_msg_schedules": True},
        _invalid("counter stream cannot use message schedules"),
    ),
    Case(
        {"allow_msg_counter": True, "retention": "interest"}, _invalid("counter stream can only use limits retention")
    ),
    Case({"allow_msg_schedules": True, "discard": "new"}, _invalid("message scheduling cannot use discard new")),
    Case(
        {"allow_msg_schedules": True, "pedantic": True},
        _invalid("message scheduling cannot be set if roll-ups are disabled"),
    ),
    Case(
        {"persist_mode": "async", "storage": "memory"}, _invalid("async persist mode is only supported on file storage")
    ),
    Case(
        {"persist_mode": "async", "allow_atomic": True},
        _invalid("async persist mode is not supported with atomic batch publish"),
    ),
    Case({"mirror": {"name": ""}}, (10142, "mirrored stream name is invalid")),
    Case({"mirror": {"name": "a.b"}}, (10142, "mirrored stream name is invalid")),
    Case({"mirror": {"name": "A"}, "subjects": ["x"]}, (10034, "stream mirrors can not contain subjects")),
    Case(
        {"mirror": {"name": "A"}, "sources": [{"name": "A"}]},
        (10031, "stream mirrors can not also contain other sources"),
    ),
    Case({"mirror": {"name": "A"}, "first_seq": 5}, (10143, "stream mirrors can not have first sequence configured")),
    Case({"mirror": {"name": "B"}}, _invalid("detected cycle")),
    Case(
        {"mirror": {"name": "A", "external": {"api": "$JS.API", "deliver": "x"}}},
        (10021, "stream external api prefix $JS.API must not overlap with $JS.API"),
    ),
    Case(
        {"mirror": {"name": "A", "external": {"api": "x.*"}}},
        _invalid('stream external api prefix "x.*" must be a valid subject without wildcards'),
    ),
    Case(
        {"mirror": {"name": "A", "external": {"api": "$JS.d.API", "deliver": "x.*"}}},
        (10024, "stream external delivery prefix x.* must not contain wildcards"),
    ),
    Case({"sources": [{"name": ""}]}, (10141, "sourced stream name is invalid")),
    Case({"sources": [None]}, (10141, "sourced stream name is invalid")),
    Case({"sources": [{"name": "A"}, {"name": "A"}]}, (10140, "duplicate source configuration detected")),
    Case(
        {"sources": [{"name": "A"}], "allow_msg_schedules": True},
        (10187, "stream source can not also schedule messages"),
    ),
]


@pytest.mark.parametrize("case", CREATES, ids=lambda case: json.dumps(case.request)[:60])
def test_create_rules(case: Case) -> None:
    if isinstance(case.result, tuple):
        assert refusal(case.request) == case.result
    else:
        assert shown(checked(case.request)) == {**DEFAULTS, **case.result}


def test_server_caps_duplicate_windows() -> None:
    assert stream_rules.checked(StreamConfig(name="A"), window_limit_ns=S).duplicate_window == S
    with pytest.raises(ApiError, match="duplicates window can not be larger then server limit of 1s"):
        stream_rules.checked(StreamConfig(name="A", duplicate_window=2 * S), window_limit_ns=S)


def test_metadata_counts_what_the_server_adds() -> None:
    room = stream_rules.MAX_METADATA - len("_nats.req.level") - 1
    assert checked({"metadata": {"a": "x" * (room - 1)}})
    assert refusal({"metadata": {"a": "x" * room}})[0] == 10052


# ---------------------------------------------------------------------------------------------------- updates
class Limits(NamedTuple):
    """Fields of a consumer's configuration that updates check."""

    max_ack_pending: int = 1000
    inactive_threshold: int = 0


def updated(base: dict[str, Any], change: dict[str, Any], consumers: dict[str, Limits] | None = None) -> dict[str, Any]:
    """Return the fields that an update changes, with their new values."""
    old = checked(base)
    request = requested({**base, **change})
    new = stream_rules.updated(old, stream_rules.checked(request.config()), consumers or {})
    before, after = shown(old), shown(new)
    return {name: after.get(name) for name in {**before, **after} if before.get(name) != after.get(name)}


@pytest.mark.parametrize(
    ("base", "change", "result"),
    [
        ({}, {}, {}),
        ({}, {"subjects": ["B", "c"]}, {"subjects": ["B", "c"]}),
        ({}, {"max_consumers": 3}, {"max_consumers": 3}),
        ({"max_consumers": 3}, {"max_consumers": 1}, {"max_consumers": 1}),
        ({}, {"max_age": S}, {"max_age": S, "duplicate_window": S}),
        ({"max_age": S}, {"max_age": 0}, {"max_age": 0, "duplicate_window": 120 * S}),
        ({}, {"discard": "new"}, {"discard": "new"}),
        ({}, {"retention": "interest"}, {"retention": "interest"}),
        ({"retention": "interest"}, {"retention": "limits"}, {"retention": "limits"}),
        ({}, {"compression": "s2"}, {"compression": "s2"}),
        ({"first_seq": 9}, {"first_seq": 0}, {"first_seq": None}),
        ({}, {"allow_msg_ttl": True}, {"allow_msg_ttl": True, "metadata": {"_nats.req.level": "1"}}),
        ({"allow_rollup_hdrs": True}, {"allow_rollup_hdrs": False}, {"allow_rollup_hdrs": False}),
        ({}, {"mirror_direct": True}, {"mirror_direct": True}),
        ({"metadata": {"a": "1"}}, {"metadata": {}}, {"metadata": {"_nats.req.level": "0"}}),
        (
            {"allow_rollup_hdrs": True, "max_age": S},
            {"sealed": True},
            {
                "sealed": True,
                "max_age": 0,
                "discard": "new",
                "deny_delete": True,
                "deny_purge": True,
                "allow_rollup_hdrs": False,
            },
        ),
    ],
)
def test_updates(base: dict[str, Any], change: dict[str, Any], result: dict[str, Any]) -> None:
    assert updated(base, change) == result


CHANGE = "stream configuration update can not "


@pytest.mark.parametrize(
    ("base", "change", "code", "text"),
    [
        ({}, {"storage": "memory"}, 10052, CHANGE + "change storage type"),
        ({}, {"retention": "workqueue"}, 10052, CHANGE + "change retention policy to/from workqueue"),
        (
            {"retention": "workqueue"},
            {"retention": "interest"},
            10052,
            CHANGE + "change retention policy to/from workqueue",
        ),
        ({"deny_delete": True}, {"deny_delete": False}, 10052, CHANGE + "cancel deny message deletes"),
        ({"deny_purge": True}, {"deny_purge": False}, 10052, CHANGE + "cancel deny purge"),
        ({"allow_msg_ttl": True}, {"allow_msg_ttl": False}, 10052, "message TTL status can not be disabled"),
        ({"allow_rollup_hdrs": True}, {"deny_purge": True}, 10052, "roll-ups require the purge permission"),
        ({"duplicate_window": S}, {"max_age": S // 2}, 10052, "duplicates window can not be larger then max age"),
        ({}, {"num_replicas": 3}, 10074, "replicas > 1 not supported in non-clustered mode"),
    ],
)
def test_refused_updates(base: dict[str, Any], change: dict[str, Any], code: int, text: str) -> None:
    with pytest.raises(ApiError) as raised:
        updated(base, change)
    assert (raised.value.err_code, raised.value.description) == (code, text)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"mirror": {"name": "A"}}, "stream mirror configuration can not be updated"),
        ({"allow_msg_counter": True}, CHANGE + "change message counter setting"),
        ({"persist_mode": "async"}, CHANGE + "change persist mode"),
    ],
)
def test_refused_updates_of_features_to_come(change: dict[str, Any], text: str) -> None:
    """Refused updates of features that are still to come.

    These rules already hold for configurations that `checked` will accept one day.
    """
    new = _with(checked({}), change)
    with pytest.raises(ApiError) as raised:
        stream_rules.updated(checked({}), new, {})
    assert raised.value.description == text


def _with(config: StreamConfig, change: dict[str, Any]) -> StreamConfig:
    parsed = requested(change)
    return msgspec.structs.replace(config, **{name: getattr(parsed, name) for name in change})


def test_a_sealed_stream_stays_sealed() -> None:
    sealed = stream_rules.updated(checked({}), _with(checked({}), {"sealed": True}), {})
    with pytest.raises(ApiError, match="can not unseal a sealed stream"):
        stream_rules.updated(sealed, checked({}), {})


def test_new_consumer_limits_must_hold_for_the_consumers() -> None:
    consumers = {"c1": Limits(), "c2": Limits(max_ack_pending=5, inactive_threshold=9 * S)}
    with pytest.raises(ApiError) as raised:
        updated({}, {"consumer_limits": {"max_ack_pending": 5}}, consumers)
    assert (raised.value.err_code, raised.value.description) == (10069, "change to limits violates consumers: c1")
    with pytest.raises(ApiError, match="violates consumers: c2"):
        updated({}, {"consumer_limits": {"inactive_threshold": 5 * S}}, consumers)
    assert updated({}, {"consumer_limits": {"max_ack_pending": 2000}}, consumers)


# ---------------------------------------------------------------------------------------------------- properties
_fields = st.fixed_dictionaries(
    {"name": st.text("abAB01_-é", min_size=1, max_size=8)},
    optional={
        "description": st.text(max_size=8).filter(lambda text: text.isprintable()),
        "subjects": st.lists(st.text("ab.*>", min_size=1, max_size=6), max_size=3),
        "max_msgs": st.integers(-3, 10),
        "max_bytes": st.integers(-3, 10),
        "max_age": st.sampled_from([-1, 0, 1, S, 500 * S]),
        "duplicate_window": st.sampled_from([0, 1, S, 500 * S]),
        "max_msgs_per_subject": st.integers(-2, 5),
        "discard": st.sampled_from(["old", "new"]),
        "discard_new_per_subject": st.booleans(),
        "allow_direct": st.booleans(),
        "deny_purge": st.booleans(),
        "allow_rollup_hdrs": st.booleans(),
        "no_ack": st.booleans(),
        "metadata": st.dictionaries(st.sampled_from(["a", "_nats.ver", "_nats.req.level"]), st.text("xy", max_size=3)),
    },
)


@given(_fields)
def test_an_accepted_configuration_survives_reply_store_and_resend(fields: dict[str, Any]) -> None:
    """A configuration in a reply can be sent back with the same effect, and survives a round trip through the log."""
    try:
        config = checked(fields)
    except ApiError:
        return
    again = parse(dumps(config_shown(config, versions=True)), StreamConfigRequest)
    assert stream_rules.checked(again.config()) == config
    assert msgspec.json.decode(msgspec.json.encode(config), type=StreamConfig) == config
    assert stream_rules.updated(config, config, {}) == config
