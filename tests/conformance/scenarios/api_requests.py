"""Scenarios of every API request with every kind of body, for existing and missing streams, and with API level headers.

See docs/internals/api.md.
"""

from __future__ import annotations

import time
from typing import Any

from tests.conformance.harness import Script, scenario, table
from tests.wire import WireTimeout

DONE_S = 5.0
"""Timeout in seconds of operations that send no answer."""

# A valid body for each subject.
REQUESTS: dict[str, Any] = {
    "INFO": None,
    "STREAM.CREATE.S": {"name": "S", "subjects": ["s"], "storage": "memory"},
    "STREAM.UPDATE.S": {"name": "S", "subjects": ["s"], "storage": "memory", "max_msgs": 10},
    "STREAM.INFO.S": None,
    "STREAM.NAMES": None,
    "STREAM.LIST": None,
    "STREAM.DELETE.S": None,
    "STREAM.PURGE.S": {"filter": "s"},
    "STREAM.MSG.GET.S": {"seq": 1},
    "STREAM.MSG.DELETE.S": {"seq": 1},
    "STREAM.LEADER.STEPDOWN.S": None,
    "STREAM.PEER.REMOVE.S": {"peer": "x"},
    "STREAM.PEER.EVACUATE.S": {"peer": "x"},
    "STREAM.CANCEL_MOVE.S": None,
    "CONSUMER.CREATE.S": {"stream_name": "S", "config": {"name": "n"}},
    "CONSUMER.CREATE.S.n": {"stream_name": "S", "config": {"name": "n"}},
    "CONSUMER.CREATE.S.n.s": {"stream_name": "S", "config": {"name": "n", "filter_subject": "s"}},
    "CONSUMER.DURABLE.CREATE.S.n": {"stream_name": "S", "config": {"durable_name": "n", "ack_policy": "explicit"}},
    "CONSUMER.NAMES.S": None,
    "CONSUMER.LIST.S": None,
    "CONSUMER.INFO.S.c": None,
    "CONSUMER.DELETE.S.c": None,
    "CONSUMER.PAUSE.S.c": {"pause_until": "2020-01-01T00:00:00Z"},
    "CONSUMER.RESET.S.c": {"seq": 2},
    "CONSUMER.LEADER.STEPDOWN.S.c": None,
    "CONSUMER.PEER.REMOVE.S.c": {"peer": "x"},
    "CONSUMER.PEER.EVACUATE.S.c": {"peer": "x"},
}
BODIES = (
    *(b"", b" ", b"{}", b" { } ", b"{x", b"[]", b"[1]", b"null", b"5", b"x"),
    *(b'"x"', b'{"foo":1}', b'{"offset":"1"}'),
)
LEVELS = ("0", "1", "5", "6", "99999999999999999999999", "-1", "x", "", " 5", "5.0")


def _stage(t: Script) -> None:
    t.stream("S", ["s"])
    t.consumer("S", "c")
    t.fill_seen("S", "c", ["s"] * 3)


def _ask(t: Script, subject: str, body: Any, headers: dict[str, str] | None = None) -> None:
    try:
        answer = t.api(subject, body, headers=headers)
    except WireTimeout:
        t.note(subject, "no answer")
        return
    if "api" in answer:  # counters over the server's whole life
        t.transcript[-1][1].pop("api")
    if isinstance(name := answer.get("name"), str) and "config" in answer and subject == "CONSUMER.CREATE.S":
        t.hide(name, "<name>")


@table([(subject, subject) for subject in REQUESTS])
def bodies(t: Script, subject: str) -> None:
    for body in BODIES:
        _stage(t)
        _ask(t, subject, body)
        t.wire.api("STREAM.DELETE.S")
        if "RESET" not in subject:  # a missing consumer gives no answer
            _ask(t, subject, body)
        t.wire.api("STREAM.DELETE.S")


@table([(subject, subject, body) for subject, body in REQUESTS.items()])
def levels(t: Script, subject: str, body: Any) -> None:
    for level in LEVELS:
        _stage(t)
        _ask(t, subject, body, {"Nats-Required-Api-Level": level})
        t.wire.api("STREAM.DELETE.S")


ENUMS = {
    "STREAM.CREATE.F": ("retention", "discard", "storage", "compression", "persist_mode"),
    "CONSUMER.CREATE.S.n": ("ack_policy", "deliver_policy", "replay_policy", "priority_policy"),
}
NO_NAMES = ("1.5", "-1", "[1.5]", '{"a":1e400}', "1e400", "18446744073709551616", '"\\ud800"', "true", "null")


@table([(subject, subject) for subject in ENUMS])
def numbers_where_a_name_is_to_be(t: Script, subject: str) -> None:
    t.stream("S", ["s"])
    for field in ENUMS[subject]:
        for value in NO_NAMES:
            member = f'"{field}":{value}'
            config = f'{{"stream_name":"S","config":{{"name":"n",{member}}}}}' if "CONSUMER" in subject else ""
            _ask(t, subject, (config or f'{{"name":"F","subjects":["f"],{member}}}').encode())
            t.wire.api("STREAM.DELETE.F")
            t.wire.api("CONSUMER.DELETE.S.n")


@scenario
def pauses_at_the_ends_of_time(t: Script) -> None:
    t.stream("S", ["s"])
    t.consumer("S", "c")
    for until in ("0000-06-01T00:00:00Z", "9999-12-31T23:59:59Z"):
        t.api("CONSUMER.PAUSE.S.c", {"pause_until": until})
        t.api("STREAM.MSG.GET.S", {"start_time": until})
        t.api("CONSUMER.INFO.S.c")


@scenario
def pages_of_streams(t: Script) -> None:
    for number in range(12):
        t.stream(f"N{number:02}", [f"n.{number}"])
    for body in (
        {"offset": 0},
        {"offset": 5},
        {"offset": 11},
        {"offset": 12},
        {"offset": 13},
        {"offset": -3},
        {"subject": "n.*"},
        {"subject": "n.3"},
        {"subject": "n.>", "offset": 10},
        {"subject": "x"},
        {"subject": "..", "offset": 1},
        {"subject": ">"},
        {"subject": "", "offset": 11},
    ):
        t.api("STREAM.NAMES", body)
        answer = t.wire.api("STREAM.LIST", body)
        t.note(f"LIST {body}", {**answer, "streams": [each["config"]["name"] for each in answer["streams"]]})


@scenario
def tokens_that_no_name_has(t: Script) -> None:
    for name in ("a b", "é", "a\tb", "*", ">", "$S", "a/b", "a\\b", "x" * 300):
        if " " in name or "\t" in name or name in "*>":
            continue
        for verb in ("INFO", "DELETE", "PURGE", "MSG.GET", "MSG.DELETE"):
            t.api(f"STREAM.{verb}.{name}", {"seq": 1} if "MSG" in verb else None)
        t.api(f"CONSUMER.NAMES.{name}")


@scenario
def without_a_reply_nothing_is_answered_but_it_is_done(t: Script) -> None:
    deadline = time.monotonic() + DONE_S
    t.wire.publish("$JS.API.STREAM.CREATE.S", b'{"name":"S","storage":"memory"}')
    while "error" in (info := t.wire.api("STREAM.INFO.S")) and time.monotonic() < deadline:
        pass
    t.wire.publish("$JS.API.STREAM.UPDATE.S", b'{"name":"S","storage":"memory","max_msgs":7}')
    while (info := t.wire.api("STREAM.INFO.S"))["config"]["max_msgs"] != 7 and time.monotonic() < deadline:
        pass
    t.note("config", info["config"])
