"""Scenarios of every field of a stream's configuration with valid and invalid values.

On creation, by an update, and taken away again (docs/internals/streams.md). The rows are generated from `FIELDS`. A
field that the server under test does not have yet has no rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from tests.conformance.harness import Script, table

MS = 1_000_000
SECOND = 1000 * MS
INT32, INT64, UINT64 = (1 << 31) - 1, (1 << 63) - 1, (1 << 64) - 1

Config = dict[str, Any]


class Field(NamedTuple):
    """Values to try for a field.

    values: for CREATE, and for an UPDATE of a stream without them.
    base: fields that the stream has beside it.
    sets: values with which a stream can be created, to be taken away by an update; `values` when None.
    quiet: nothing is published after the update (there would be no answer, or messages would expire meanwhile).
    """

    values: list[Any]
    base: Mapping[str, Any] = MappingProxyType({})
    sets: list[Any] | None = None
    quiet: bool = False


def _ints(low: int, high: int, *some: Any) -> list[Any]:
    return [low - 1, low, -2, -1, 0, 1, *some, high, high + 1, "5", 1.5, None, True]


def _enum(*values: str) -> list[Any]:
    return [*values, "", values[-1].upper(), "bad", 1, None]


def _json(text: str) -> list[Any]:
    """Return the JSON values in a text, separated by blanks."""
    found, decoder = [], json.JSONDecoder()
    while text := text.strip():
        value, end = decoder.raw_decode(text)
        found.append(value)
        text = text[end:]
    return found


BOOL: list[Any] = [True, False, 1, "true", None]

FIELDS: dict[str, Field] = {
    "description": Field(["", "d", "d" * 4096, "d" * 4097, "é" * 2049, 5, None], sets=["d"]),
    "subjects": Field(
        _json(
            """null [] ["x"] ["y"] ["x","y"] ["x.*"] ["x","x"] ["x","*"] ["*","x"] [""] ["x."] ["x y"] [">"] ["*.>"]
            ["$JS.x"] ["$JSC.x"] ["$NRG.x"] ["$KV.b.>"] ["$SYS.x"] ["a.>","a"] "x" [1] [null] {}"""
        ),
        sets=[["y"], ["x", "y"]],
    ),
    "retention": Field(_enum("limits", "interest", "workqueue")),
    "max_consumers": Field(_ints(-(1 << 63), INT64), sets=[1]),
    "max_msgs": Field(_ints(-(1 << 63), INT64, 3), sets=[1, INT64]),
    "max_bytes": Field(_ints(-(1 << 63), INT64, 100), sets=[1, 100]),
    "max_age": Field([-1, 0, 1, 99 * MS, 3600 * SECOND, INT64, INT64 + 1, "1s", 1.5, None], sets=[3600 * SECOND]),
    "max_msgs_per_subject": Field(_ints(-(1 << 63), INT64, 2), sets=[1, 2]),
    "max_msg_size": Field(_ints(-INT32 - 1, INT32, 2), sets=[1, INT32]),
    "discard": Field(_enum("old", "new"), sets=["new", "NEW"]),
    "storage": Field(_enum("file", "memory"), sets=["file"]),
    "num_replicas": Field([-1, 0, 1, 2, 3, 5, 6, "3", 1.5, None], sets=[]),
    "no_ack": Field(BOOL, sets=[True], quiet=True),
    "duplicate_window": Field(
        [-1, 0, 1, 99 * MS, 100 * MS, SECOND, 120 * SECOND, 121 * SECOND, 90_000 * SECOND, INT64, "2m", 1.5, None],
        sets=[SECOND, 240 * SECOND],
    ),
    "placement": Field(
        _json(
            """null {} {"cluster":"X"} {"cluster":""} {"tags":["a"]} {"tags":[]} {"tags":null} {"preferred":"p"}
            {"cluster":"X","tags":["a","b"]} {"foo":1} {"tags":"a"} "x" []"""
        ),
        sets=[{"cluster": "X"}, {"tags": ["a"]}],
    ),
    "compression": Field(_enum("none", "s2"), base={"storage": "file"}, sets=["s2"]),
    "first_seq": Field([-1, 0, 1, 100, UINT64 + 1, "5", 1.5, None], sets=[100]),
    "allow_direct": Field(BOOL),
    "mirror_direct": Field(BOOL, sets=[]),
    "discard_new_per_subject": Field(BOOL, base={"discard": "new", "max_msgs_per_subject": 7}),
    "sealed": Field(BOOL, sets=[]),
    "deny_delete": Field(BOOL),
    "deny_purge": Field(BOOL),
    "allow_rollup_hdrs": Field(BOOL),
    "consumer_limits": Field(
        _json(
            """null {} {"inactive_threshold":1000000000} {"inactive_threshold":-1} {"max_ack_pending":5}
            {"max_ack_pending":-1} {"inactive_threshold":1,"max_ack_pending":9223372036854775807}
            {"max_ack_pending":"5"} {"foo":1} 5 []"""
        ),
        sets=[{"inactive_threshold": SECOND, "max_ack_pending": 5}],
    ),
    "allow_msg_ttl": Field(BOOL),
    "subject_delete_marker_ttl": Field(
        [-1, 0, 1, 999 * MS, SECOND, 1500 * MS, 3600 * SECOND, INT64, "1s", 1.5, None],
        sets=[SECOND, 3600 * SECOND],
    ),
    "allow_msg_counter": Field(BOOL, quiet=True),
    "allow_atomic": Field(BOOL),
    "allow_batched": Field(BOOL),
    "allow_msg_schedules": Field(BOOL),
    "persist_mode": Field(_enum("default", "async"), base={"storage": "file"}, sets=["async", "default"]),
    "subject_transform": Field(
        _json(
            """null {} {"src":"x","dest":"y"} {"src":"","dest":"y"} {"src":"x","dest":""} {"src":">","dest":"y.>"}
            {"src":"x.*","dest":"y.$1"} {"src":"x.*","dest":"y.{{wildcard(1)}}"} {"src":"x.*","dest":"y.$2"}
            {"src":"x..","dest":"y"} {"src":"x.*","dest":"y.{{foo(1)}}"} {"src":"x.*","dest":"y.*"}
            {"src":"x","dest":"y."} {"foo":1} "x" []"""
        ),
        sets=[{"src": "x", "dest": "y"}],
    ),
    "republish": Field(
        _json(
            """null {"src":"x","dest":"y"} {"src":"x","dest":"y","headers_only":true} {"dest":"y"}
            {"src":">","dest":"y.>"} {"src":"","dest":"y.>"} {"src":"x","dest":"x"} {"dest":"x"} {"src":"q","dest":"y"}
            {"src":"x.*","dest":"y.$2"} {"src":"x..","dest":"y"} {"src":"x","dest":"y","headers_only":1}
            {"foo":1} "x" []"""
        ),
        sets=[{"src": "x", "dest": "y"}, {"src": ">", "dest": "y.>", "headers_only": True}],
    ),
    "metadata": Field(
        [None, {}, {"a": "b"}, {"": ""}, {"a": None}, {"a": 1}, {"_nats.x": "1"}, {"_nats.req.level": "9"}, [], "x"],
        sets=[{"a": "b"}, {"_nats.x": "1"}],
    ),
    # Of earlier and later servers, and unknown ones.
    "template_owner": Field(["", "x", None], sets=[]),
    "pedantic": Field([True, False, 1, None], sets=[]),
    "colour": Field([None, "red"], sets=[]),
}


def _named(field: str, value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False).replace("[", "(").replace("]", ")")
    return f"{field}={text if len(text) <= 40 else f'{text[:30]}…{len(text)}'}"


def _rows(sets: bool = False) -> Iterator[tuple[Any, ...]]:
    for name, field in FIELDS.items():
        values = field.sets if sets and field.sets is not None else field.values
        seen: set[str] = set()
        for value in values:
            if sets and field.sets is None and value is not True and not isinstance(value, str):
                continue
            row = _named(name, value)
            if row not in seen:
                seen.add(row)
                yield row, name, value


def _plain(base: Mapping[str, Any]) -> Config:
    return {"name": "S", "subjects": ["x"], "storage": "memory", **base}


def _publish(t: Script, field: str) -> None:
    if not FIELDS[field].quiet:
        t.publish("x", b"new")
    t.state("S")


@table(_rows())
def create(t: Script, field: str, value: Any) -> None:
    answer = t.api("STREAM.CREATE.S", {**_plain(FIELDS[field].base), field: value})
    if "error" not in answer:
        t.api("STREAM.INFO.S")


@table(_rows())
def update(t: Script, field: str, value: Any) -> None:
    config = _plain(FIELDS[field].base)
    t.setup("STREAM.CREATE.S", config)
    t.fill(["x"] * 5)
    answer = t.api("STREAM.UPDATE.S", {**config, field: value})
    if "error" not in answer or value in (None, ""):
        t.api("STREAM.INFO.S")
        _publish(t, field)


@table(_rows(sets=True))
def unset(t: Script, field: str, value: Any) -> None:
    config = _plain(FIELDS[field].base)
    answer = t.api("STREAM.CREATE.S", {**config, field: value})
    if "error" in answer:
        return
    t.api("STREAM.UPDATE.S", config)
    t.api("STREAM.INFO.S")
    _publish(t, field)


# Each row: fields that depend on one another, in one CREATE.
_PAIRS: list[Config] = [
    {"max_msgs": -2, "pedantic": True},
    {"max_bytes": -2, "pedantic": True},
    {"max_msg_size": -2, "pedantic": True},
    {"max_consumers": -2, "pedantic": True},
    {"max_msgs_per_subject": -2, "pedantic": True},
    {"max_age": 10 * SECOND, "pedantic": True},
    {"max_age": 100 * SECOND, "duplicate_window": 200 * SECOND, "pedantic": True},
    {"num_replicas": 0, "pedantic": True},
    {"duplicate_window": 0, "pedantic": True},
    {"max_age": 100 * MS, "duplicate_window": 100 * MS},
    {"max_age": SECOND, "duplicate_window": SECOND + 1},
    {"discard": "new", "discard_new_per_subject": True, "max_msgs_per_subject": 1, "pedantic": True},
    {"discard": "new", "discard_new_per_subject": True},
    {"discard_new_per_subject": True, "max_msgs_per_subject": 1},
    {"deny_purge": True, "allow_rollup_hdrs": True},
    {"deny_purge": True, "deny_delete": True},
    {"no_ack": True, "subjects": [">"]},
    {"no_ack": True, "subjects": [">"], "num_replicas": 3},
    {"no_ack": True, "subjects": ["a", ">"]},
    {"no_ack": True, "subjects": ["$JS.API.>"]},
    {"no_ack": True, "allow_atomic": True},
    {"no_ack": True, "allow_batched": True},
    {"storage": "file", "compression": "s2", "max_bytes": 1000},
    {"storage": "memory", "compression": "s2"},
    {"first_seq": 10, "max_msgs": 5, "discard": "new"},
    {"sealed": True, "max_age": SECOND},
    {"sealed": True, "mirror_direct": True},
    {"retention": "workqueue", "discard": "new", "max_msgs": 5},
    {"retention": "interest", "allow_direct": True, "mirror_direct": False},
    {"allow_msg_ttl": True, "max_age": SECOND},
    {"subject_delete_marker_ttl": SECOND, "pedantic": True},
    {"subject_delete_marker_ttl": SECOND, "pedantic": True, "allow_msg_ttl": True},
    {"subject_delete_marker_ttl": SECOND, "pedantic": True, "allow_msg_ttl": True, "allow_rollup_hdrs": True},
    {"subject_delete_marker_ttl": SECOND, "deny_purge": True},
    {"subject_delete_marker_ttl": SECOND, "deny_purge": True, "allow_rollup_hdrs": True},
    {"subject_delete_marker_ttl": SECOND, "allow_msg_counter": True},
    {"subject_delete_marker_ttl": SECOND, "max_msgs_per_subject": 1, "retention": "interest"},
    {"allow_msg_counter": True, "discard": "new"},
    {"allow_msg_counter": True, "allow_msg_ttl": True},
    {"allow_msg_counter": True, "retention": "interest"},
    {"allow_msg_counter": True, "retention": "workqueue"},
    {"allow_msg_counter": True, "allow_msg_schedules": True},
    {"allow_msg_counter": True, "allow_atomic": True, "allow_batched": True},
    {"allow_msg_schedules": True, "discard": "new"},
    {"allow_msg_schedules": True, "pedantic": True},
    {"allow_msg_schedules": True, "deny_purge": True},
    {"allow_msg_schedules": True, "allow_rollup_hdrs": True, "pedantic": True},
    {"allow_msg_schedules": True, "retention": "workqueue", "allow_msg_ttl": True},
    {"persist_mode": "async", "storage": "memory"},
    {"persist_mode": "async", "storage": "file", "allow_atomic": True},
    {"persist_mode": "async", "storage": "file", "allow_batched": True},
    {"persist_mode": "async", "storage": "file", "num_replicas": 3},
    {"persist_mode": "async", "storage": "file", "allow_msg_counter": True},
    {"subject_transform": {"src": "x", "dest": "z"}, "republish": {"src": "z", "dest": "w"}},
    {"subject_transform": {"src": "x", "dest": "z"}, "republish": {"src": "x", "dest": "z"}},
    {"republish": {"src": "x", "dest": "y"}, "subjects": ["x", "y"]},
    {"metadata": {"k": "v" * 131_000}},
    {"metadata": {"_nats.req.level": "0", "_nats.ver": "2.15.1", "_nats.level": "5", "a": "b"}},
]


def _pair_rows() -> Iterator[tuple[Any, ...]]:
    for config in _PAIRS:
        yield ",".join(_named(name, value) for name, value in config.items()), config


@table(_pair_rows())
def together(t: Script, config: Config) -> None:
    answer = t.api("STREAM.CREATE.S", {**_plain({}), **config})
    if "error" not in answer and not config.get("no_ack"):
        t.publish("x", b"1")
        t.state("S")
        t.api("STREAM.CREATE.S", {**_plain({}), **config})


# Each row: a configuration, and the fields of an update.
_CHANGES: list[tuple[Config, Config]] = [
    ({"allow_msg_ttl": True}, {"allow_msg_ttl": True, "discard": "new"}),
    ({"allow_msg_ttl": True}, {"allow_msg_ttl": False}),
    ({"max_msgs": 3}, {"max_msgs": 2}),
    ({"max_msgs": 3, "discard": "new"}, {"max_msgs": 2, "discard": "new"}),
    ({"max_msgs_per_subject": 3}, {"max_msgs_per_subject": 5}),
    ({"max_consumers": 2}, {"max_consumers": 5}),
    ({"duplicate_window": 60 * SECOND}, {"max_age": 5 * SECOND}),
    ({"duplicate_window": 60 * SECOND}, {"max_age": 5 * SECOND, "duplicate_window": 60 * SECOND}),
    ({"max_age": 3600 * SECOND}, {"max_age": 7200 * SECOND}),
    ({"retention": "interest"}, {"retention": "limits"}),
    ({"retention": "interest"}, {"retention": "workqueue"}),
    ({"retention": "workqueue"}, {"retention": "interest"}),
    ({"storage": "file"}, {"storage": "memory"}),
    ({"storage": "file", "compression": "s2"}, {"storage": "file", "compression": "none"}),
    ({"deny_delete": True}, {"deny_delete": True, "deny_purge": True}),
    ({"deny_delete": True, "deny_purge": True}, {"deny_delete": True}),
    ({"allow_rollup_hdrs": True}, {"deny_purge": True}),
    ({"allow_rollup_hdrs": True, "max_msgs_per_subject": 3}, {"sealed": True, "allow_rollup_hdrs": True}),
    ({"subjects": ["x", "y"]}, {"subjects": ["y", "x"]}),
    ({"subjects": ["x", "y"]}, {"subjects": ["y"]}),
    ({"first_seq": 5}, {"first_seq": 50}),
    ({"placement": {"tags": ["a"]}}, {"placement": {"tags": ["b"]}}),
    ({"metadata": {"a": "1"}}, {"metadata": {"a": "2", "b": "3"}}),
    ({}, {"pedantic": True, "max_msgs": -3}),
    ({}, {"pedantic": True, "duplicate_window": 120 * SECOND}),
    ({}, {"name": "T"}),
    ({}, {"name": ""}),
    ({"allow_msg_counter": True}, {"allow_msg_counter": True, "description": "c"}),
    ({"allow_msg_schedules": True}, {"allow_msg_schedules": True, "max_msgs": 5}),
    ({"allow_msg_schedules": True}, {"allow_msg_schedules": True, "deny_purge": True}),
    ({"allow_msg_schedules": True}, {"allow_msg_schedules": True, "allow_msg_ttl": True}),
    ({"subject_delete_marker_ttl": SECOND}, {"allow_msg_ttl": True}),
    ({"subject_delete_marker_ttl": SECOND}, {"subject_delete_marker_ttl": 2 * SECOND}),
    ({"subject_delete_marker_ttl": SECOND}, {"allow_msg_ttl": True, "allow_rollup_hdrs": True}),
    ({"allow_atomic": True}, {"allow_batched": True}),
    ({"storage": "file", "persist_mode": "async"}, {"storage": "file", "persist_mode": "default"}),
    ({"storage": "file", "persist_mode": "async"}, {"storage": "file", "persist_mode": "async", "num_replicas": 3}),
    ({"storage": "file"}, {"storage": "file", "persist_mode": "async", "num_replicas": 3}),
    ({"republish": {"src": "x", "dest": "y"}}, {"republish": {"src": "x", "dest": "z"}}),
    ({"republish": {"src": "x", "dest": "y"}}, {"republish": {"src": "x", "dest": "x"}}),
    ({"subject_transform": {"src": "x", "dest": "y"}}, {"subject_transform": {"src": "x", "dest": "z"}}),
    ({"subject_transform": {"src": "x", "dest": "y"}}, {"subject_transform": {"src": "x", "dest": "y.$1"}}),
]


def _change_rows() -> Iterator[tuple[Any, ...]]:
    for first, then in _CHANGES:
        names = (",".join(_named(name, value) for name, value in part.items()) for part in (first, then))
        yield " to ".join(names), first, then


@table(_change_rows())
def change(t: Script, first: Config, then: Config) -> None:
    t.setup("STREAM.CREATE.S", _plain(first))
    for data in (b"1", b"2", b"3"):
        t.publish("x", data)
    t.api("STREAM.UPDATE.S", {**_plain({}), **then})
    t.api("STREAM.INFO.S")
    t.publish("x", b"new")
    t.state("S")
