"""Scenarios of every field of a consumer's configuration with valid and invalid values.

On creation, repeated creation, removal of the value, update, and pedantic creation (docs/internals/consumers.md). The
rows are generated from `FIELDS`: one for each field and each configuration that it is put into. Values whose outcome
depends on timing (thresholds that expire before the next request) are left out.
"""

from __future__ import annotations

import json
from typing import Any

from tests.conformance.harness import Script, table

MS = 1_000_000
SECOND = 1000 * MS
INT32, INT64, UINT64 = (1 << 31) - 1, (1 << 63) - 1, (1 << 64) - 1
LONG_AGO, LONG_AFTER = "2024-01-02T03:04:05Z", "2090-01-01T00:00:00Z"

Config = dict[str, Any]

DURATION: list[Any] = [-1, 0, 1, 999_999, MS, 99 * MS, 100 * MS, SECOND, 60 * SECOND, INT64, INT64 + 1]
DURATION += ["1s", 1.5, None, True]
THRESHOLD: list[Any] = [-1, 0, 60 * SECOND, 3600 * SECOND, INT64, INT64 + 1, "1s", 1.5, None, True]
INT: list[Any] = [-2, -1, 0, 1, 2, 10, 1000, 1001, INT32, INT64, INT64 + 1, "5", 1.5, None, True]
BOOL: list[Any] = [True, False, 1, "true", None]

PULL: Config = {"ack_policy": "explicit"}
PUSH: Config = {"ack_policy": "explicit", "deliver_subject": "d"}
UNACKED: Config = {"ack_policy": "none"}
UNACKED_PUSH: Config = {"deliver_subject": "d"}
HEARTBEAT: Config = {**PUSH, "idle_heartbeat": SECOND}
FLOW: Config = {**HEARTBEAT, "flow_control": True}
FLOW_ACKS: Config = {**FLOW, "ack_policy": "flow_control", "max_ack_pending": 10}
OVERFLOW: Config = {**PULL, "priority_groups": ["g"], "priority_policy": "overflow"}
PINNED: Config = {**PULL, "priority_groups": ["g"], "priority_policy": "pinned_client"}
LAST: Config = {**PULL, "deliver_policy": "last_per_subject", "filter_subject": "a.1"}

FIELDS: dict[str, tuple[list[Any], list[Config]]] = {
    "name": (["", "c", "x", "a.b", "a b", "a*", "a>", "a/b", "a\\b", "é", 5, None], [PULL]),
    "durable_name": (["", "c", "x", "a.b", 5, None], [PULL, PUSH]),
    "description": (["", "d", "d" * 4096, "d" * 4097, "é" * 2048, "é" * 2049, 5, None], [PULL]),
    "deliver_policy": (
        [
            "all",
            "last",
            "new",
            "by_start_sequence",
            "by_start_time",
            "last_per_subject",
            "",
            "ALL",
            "undefined",
            "bad",
            1,
            None,
        ],
        [
            PULL,
            {**PULL, "opt_start_seq": 2},
            {**PULL, "opt_start_time": LONG_AGO},
            {**PULL, "filter_subject": "a.*"},
            {**PULL, "filter_subject": ""},
            {**PULL, "filter_subjects": ["a.1", "a.2"]},
            {**PULL, "filter_subjects": ["a.1"], "opt_start_seq": 1},
        ],
    ),
    "opt_start_seq": (
        [0, 1, 5, 100, -1, UINT64, UINT64 + 1, "1", 1.5, None, True],
        [
            PULL,
            {**PULL, "deliver_policy": "by_start_sequence"},
            {**PULL, "deliver_policy": "by_start_time", "opt_start_time": LONG_AGO},
            {**PULL, "deliver_policy": "by_start_sequence", "opt_start_seq": 3},
        ],
    ),
    "opt_start_time": (
        [
            LONG_AGO,
            "2024-01-02T03:04:05.000000001Z",
            "2024-01-02T03:04:05+01:00",
            "0001-01-01T00:00:00Z",
            LONG_AFTER,
            "x",
            "",
            0,
            None,
        ],
        [
            PULL,
            {**PULL, "deliver_policy": "by_start_time"},
            {**PULL, "deliver_policy": "by_start_time", "opt_start_time": LONG_AGO},
            {**PULL, "deliver_policy": "by_start_sequence", "opt_start_seq": 1},
        ],
    ),
    "ack_policy": (
        ["none", "all", "explicit", "flow_control", "", "NONE", "bad", 1, None],
        [
            {},
            PULL,
            PUSH,
            FLOW,
            FLOW_ACKS,
            {**PULL, "max_ack_pending": 5},
            {**UNACKED_PUSH, "max_ack_pending": 5},
            {**PULL, "ack_wait": SECOND},
            {**PULL, "backoff": [SECOND]},
        ],
    ),
    "ack_wait": (DURATION, [PULL, UNACKED, {**PULL, "backoff": [SECOND, 2 * SECOND]}, FLOW_ACKS]),
    "max_deliver": (INT, [PULL, {**PULL, "backoff": [SECOND, 2 * SECOND]}, UNACKED_PUSH, FLOW_ACKS]),
    "backoff": (
        [
            [],
            None,
            [0],
            [1],
            [-1],
            [SECOND],
            [SECOND, 2 * SECOND],
            [2 * SECOND, SECOND],
            [SECOND] * 3,
            [SECOND] * 100,
            ["1s"],
            [1.5],
            "x",
            5,
            {},
            [None],
            [0, SECOND],
        ],
        [
            PULL,
            {**PULL, "max_deliver": 2},
            {**PULL, "ack_wait": SECOND},
            {**PULL, "ack_wait": 5 * SECOND},
            UNACKED_PUSH,
            PUSH,
            FLOW_ACKS,
        ],
    ),
    "filter_subject": (
        ["", "a.*", "a.1", "a.>", ">", "zzz", "a..b", "a. b", "a.b ", "*.1", "$x", "a.>.b", "é", 5, None],
        [PULL, PUSH, {**PULL, "filter_subjects": ["a.2"]}, {**PULL, "filter_subjects": []}, LAST],
    ),
    "filter_subjects": (
        [
            [],
            None,
            ["a.1"],
            ["a.1", "a.2"],
            ["a.2", "a.1"],
            ["a.*", "a.1"],
            ["a.1", "a.1"],
            [""],
            ["a.1", ""],
            ["t.*.b", "t.a.*"],
            ["a.>", "a.1"],
            [">"],
            [">", "a"],
            ["a..b"],
            ["a b"],
            ["zzz"],
            ["zzz", "yyy"],
            "a",
            5,
            [5],
            [None],
            {},
        ],
        [PULL, PUSH, {**PULL, "filter_subject": "a.3"}, LAST],
    ),
    "replay_policy": (["instant", "original", "", "INSTANT", "bad", 1, None], [PULL, PUSH]),
    "rate_limit_bps": ([0, 1, 1024, -1, UINT64, UINT64 + 1, "1", 1.5, None], [PULL, PUSH]),
    "sample_freq": (
        [
            "",
            "0",
            "1",
            "100",
            "100%",
            "50%",
            "%",
            "%50",
            "5%%",
            "-1",
            "-1%",
            "101",
            "1000%",
            "1.5",
            " 5",
            "5 ",
            "x",
            "+5",
            "9" * 19,
            "9" * 20,
            "0x10",
            "1_0",
            "٣",
            5,
            None,
        ],
        [PULL, PUSH, UNACKED],
    ),
    "max_waiting": (INT, [PULL, PUSH]),
    "max_ack_pending": (INT, [PULL, UNACKED, PUSH, UNACKED_PUSH, {"ack_policy": "all"}, FLOW_ACKS]),
    "flow_control": (BOOL, [PULL, PUSH, HEARTBEAT]),
    "idle_heartbeat": (DURATION, [PULL, PUSH, FLOW, FLOW_ACKS]),
    "headers_only": (BOOL, [PULL, PUSH]),
    "max_batch": (INT, [PULL, PUSH]),
    "max_expires": (DURATION, [PULL, PUSH]),
    "max_bytes": (INT, [PULL, PUSH]),
    "deliver_subject": (
        ["", "d", "d2", "d.*", "d.>", "a.5", "a.>", "b", "d..e", "d e", "_INBOX.x", ".", "$SYS.x", 5, None],
        [PULL, PUSH, {**PULL, "max_waiting": 5}, FLOW],
    ),
    "deliver_group": (["", "g", "g.h", "g h", "*", "é", 5, None], [PULL, PUSH, {**PUSH, "deliver_group": "q"}]),
    "inactive_threshold": (THRESHOLD, [PULL, PUSH, {**PULL, "durable_name": "c"}]),
    "num_replicas": ([-1, 0, 1, 2, 3, 5, 6, INT64, "1", 1.5, None], [PULL]),
    "mem_storage": (BOOL, [PULL, PUSH]),
    "direct": (BOOL, [PULL, PUSH, {**PUSH, "durable_name": "c"}, UNACKED_PUSH]),
    "sourcing": (BOOL, [PULL, PUSH, {**PUSH, "durable_name": "c"}, FLOW_ACKS]),
    "metadata": (
        [
            None,
            {},
            {"a": "b"},
            {"": ""},
            {"a": None},
            {"a": 1},
            {"_nats.x": "1"},
            {"_nats.req.level": "9"},
            {"_nats.ver": "x"},
            {"k": "v" * 131055},
            {"k": "v" * 131071},
            {"k": "v" * 131072},
            [],
            "x",
        ],
        [PULL, {**PULL, "metadata": {"o": "p"}}],
    ),
    "pause_until": (
        [LONG_AGO, LONG_AFTER, "0001-01-01T00:00:00Z", "x", "", 5, None],
        [PULL, PUSH, {**PULL, "pause_until": LONG_AFTER}],
    ),
    "priority_groups": (
        [
            [],
            None,
            ["g"],
            ["g", "h"],
            [""],
            ["g", ""],
            ["a b"],
            ["a.b"],
            ["x" * 16],
            ["x" * 17],
            ["A-Z_0/9="],
            ["é"],
            [")"],
            ["+"],
            "g",
            5,
            [5],
            ["g", "g"],
        ],
        [PULL, PUSH]
        + [{**PULL, "priority_policy": policy} for policy in ("overflow", "pinned_client", "prioritized", "none")]
        + [{**PUSH, "priority_policy": "overflow"}],
    ),
    "priority_policy": (
        ["none", "overflow", "pinned_client", "prioritized", "", "NONE", "bad", 1, None],
        [
            PULL,
            PUSH,
            OVERFLOW,
            PINNED,
            {**PUSH, "priority_groups": ["g"]},
            {**PULL, "priority_groups": ["g"], "priority_timeout": SECOND},
        ],
    ),
    "priority_timeout": (
        DURATION,
        [PULL, OVERFLOW, PINNED, PUSH, {**PULL, "priority_groups": ["g"], "priority_policy": "prioritized"}],
    ),
    "colour": ([None, "red"], [PULL]),
    "Ack_Wait": ([SECOND], [PULL]),
}

ROWS = [
    (f"{field}-{n}", field, values, base)
    for field, (values, bases) in FIELDS.items()
    for n, base in enumerate(bases, start=1)
]


class Creator:
    """Creates the consumer `c` and records the answers."""

    def __init__(self, t: Script) -> None:
        self.t = t
        t.stream("S", ["a.>", "b"])
        t.fill(["a.1", "a.2", "a.1", "b", "a.3"])

    def create(self, label: str, config: Config, **asked: Any) -> bool:
        """Request the creation; return True if the consumer exists now."""
        answer = self.t.wire.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config, **asked})
        self.t.note(label, answer)
        return "error" not in answer

    def info(self, label: str) -> None:
        """Record CONSUMER.INFO."""
        self.t.note(label, self.t.wire.api("CONSUMER.INFO.S.c"))

    def delete(self) -> None:
        """Remove the consumer and any others."""
        self.t.wire.api("CONSUMER.DELETE.S.c")  # NAMES does not list a `direct` consumer
        for name in self.t.wire.api("CONSUMER.NAMES.S")["consumers"] or []:
            self.t.wire.api(f"CONSUMER.DELETE.S.{name}")


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 50 else f"{text[:30]}…{len(text)}"


@table(ROWS)
def create(t: Script, field: str, values: list[Any], base: Config) -> None:
    """Create with a value, create again with it, and create without it."""
    consumer = Creator(t)
    for value in values:
        row, config = f"{field}={_short(value)}", {"name": "c", **base, field: value}
        if field == "durable_name":
            del config["name"]
        if consumer.create(f"create {row}", config):
            consumer.create(f"create again {row}", config, action="create")
            consumer.create(f"once more {row}", config)
            consumer.info(f"info {row}")
            consumer.create(f"without {row}", {"name": "c", **base})
            consumer.delete()
        if consumer.create(f"pedantic {row}", config, pedantic=True):
            consumer.delete()


@table(ROWS)
def update(t: Script, field: str, values: list[Any], base: Config) -> None:
    """Set a value in a consumer that was created without it."""
    consumer = Creator(t)
    for value in values:
        row, config = f"{field}={_short(value)}", {"name": "c", **base, field: value}
        if field == "durable_name":
            del config["name"]
        if consumer.create(f"base of {row}", {"name": "c", **base}):
            consumer.create(f"update {row}", config)
            consumer.info(f"info {row}")
            consumer.create(f"pedantic {row}", config, pedantic=True, action="update")
            consumer.delete()


# Each row: configurations of one consumer in turn, with the action of the request.
@table(
    [
        (f"{name}-{action or 'any'}", configs, action)
        for name, configs in {
            "named": [{"name": "c"}, {"name": "c"}],
            "named_with_default": [{"name": "c"}, {"name": "c", "inactive_threshold": 5 * SECOND}],
            "named_with_another": [{"name": "c"}, {"name": "c", "inactive_threshold": 9 * SECOND}],
            "durable": [{"durable_name": "c"}, {"durable_name": "c"}],
            "to_durable": [{"name": "c"}, {"durable_name": "c"}, {"durable_name": "c"}, {"name": "c"}],
            "to_named": [{"durable_name": "c"}, {"name": "c"}, {"name": "c"}, {"durable_name": "c"}],
            "threshold_goes": [{"durable_name": "c", "inactive_threshold": 9 * SECOND}, {"durable_name": "c"}],
            "threshold_goes_named": [{"name": "c", "inactive_threshold": 9 * SECOND}, {"name": "c"}],
            "servers_metadata": [{"name": "c"}, {"name": "c", "metadata": {"_nats.x": "1"}}, {"name": "c"}],
        }.items()
        for action in ("", "create", "update")
    ]
)
def lifetimes(t: Script, configs: list[Config], action: str) -> None:
    consumer = Creator(t)
    for n, config in enumerate(configs):
        consumer.create(f"{n} {config}", config, action="create" if action == "update" and not n else action)
        consumer.info(f"{n} info")


POLICIES: dict[str, Config] = {
    "none": PULL,
    "overflow": OVERFLOW,
    "pinned": PINNED,
    "prioritized": {**OVERFLOW, "priority_policy": "prioritized"},
    "other_group": {**OVERFLOW, "priority_groups": ["h"]},
    "two_groups": {**OVERFLOW, "priority_groups": ["g", "h"]},
    "pinned_briefly": {**PINNED, "priority_timeout": SECOND},
    "pinned_negative": {**PINNED, "priority_timeout": -1},
}


@table([(name, name) for name in POLICIES])
def priorities_change(t: Script, name: str) -> None:
    consumer = Creator(t)
    first = {"durable_name": "c", **POLICIES[name]}
    consumer.create(f"create {name}", first)
    for other, config in POLICIES.items():
        consumer.create(f"to {other}", {"durable_name": "c", **config})
        consumer.info(f"info of {other}")
        consumer.create(f"back from {other}", first)


# Each row: limits of the stream. Consumers with and without values of their own are tried, pedantic and not.
@table(
    [
        ("threshold", {"inactive_threshold": 60 * SECOND}),
        ("unacked", {"max_ack_pending": 50}),
        ("both", {"inactive_threshold": 60 * SECOND, "max_ack_pending": 50}),
        ("unlimited", {"max_ack_pending": -1}),
    ]
)
def under_limits_of_the_stream(t: Script, limits: Config) -> None:
    t.stream("S", ["a.>"], consumer_limits=limits)
    given: list[Config] = [
        {},
        {"max_ack_pending": 10},
        {"max_ack_pending": 51},
        {"max_ack_pending": -1},
        {"inactive_threshold": 9 * SECOND},
        {"inactive_threshold": 61 * SECOND},
        {"max_ack_pending": 10, "inactive_threshold": 9 * SECOND},
        {"max_ack_pending": 51, "inactive_threshold": 61 * SECOND},
    ]
    kinds = {"pull": PULL, "push": PUSH, "unacked": UNACKED, "unacked_push": UNACKED_PUSH, "durable": PULL}
    for kind, base in kinds.items():
        for config in given:
            for pedantic in (False, True):
                asked = {("durable_name" if kind == "durable" else "name"): "c", **base, **config}
                body = {"stream_name": "S", "config": asked, "pedantic": pedantic}
                t.note(f"{kind} {config} {pedantic}", t.wire.api("CONSUMER.CREATE.S.c", body))
                t.wire.api("CONSUMER.DELETE.S.c")
