"""Scenarios of counters with sources: the total of each origin counts once (docs/internals/streams.md)."""

from __future__ import annotations

import json
from typing import Any

from tests.conformance.harness import Script, scenario, table
from tests.conformance.origins import came, connected, holds, messages, origins, publish
from tests.conformance.scenarios.mirror_config import mapped


def _counter(t: Script, name: str, subject: str, **config: Any) -> None:
    t.stream(name, [subject], allow_msg_counter=True, **config)


def _add(t: Script, subject: str, *deltas: str, **headers: str) -> None:
    for delta in deltas:
        publish(t, [subject], b"", {"Nats-Incr": delta, **headers})


@scenario
def two_sources_and_own_increments(t: Script) -> None:
    _counter(t, "A", "a.*")
    _counter(t, "B", "b.*")
    sources = [{"name": name, "subject_transforms": mapped((f"{name.lower()}.*", "t.$1"))} for name in "AB"]
    _counter(t, "T", "t.*", sources=sources)
    connected(t, "T")
    for last, (subject, delta) in enumerate(
        [("a.x", "+5"), ("a.x", "3"), ("b.x", "10"), ("a.y", "1"), ("t.x", "+100"), ("a.x", "-2"), ("b.y", "0")], 1
    ):
        _add(t, subject, delta)
        came(t, "T", last)
    holds(t, "T", 7)


@scenario
def a_chain(t: Script) -> None:
    _counter(t, "A", "a.*")
    _counter(t, "B", "b.*", sources=[{"name": "A"}])
    _counter(t, "C", "c.*", sources=[{"name": "B"}])
    connected(t, "B", "C")
    _add(t, "a.x", "5", "-7", "100")
    holds(t, "B", 3)
    holds(t, "C", 3)


@scenario
def gaps_in_the_origin(t: Script) -> None:
    _counter(t, "A", "a.*")
    _add(t, "a.x", "2", "2", "2", "2")
    for seq in (1, 3):
        t.setup("STREAM.MSG.DELETE.A", {"seq": seq})
    _counter(t, "S", "s", sources=[{"name": "A"}])
    holds(t, "S", 2)
    _add(t, "a.x", "-8")
    holds(t, "S", 3, "then")


@scenario
def from_the_middle(t: Script) -> None:
    _counter(t, "A", "a.*")
    _add(t, "a.x", "2", "3", "4")
    _counter(t, "S", "s", sources=[{"name": "A", "opt_start_seq": 3}])
    holds(t, "S", 1)


@scenario
def into_a_stream_that_counts_nothing(t: Script) -> None:
    _counter(t, "A", "a.*")
    t.stream("S", sources=[{"name": "A"}])
    t.stream("M", mirror={"name": "A"})
    connected(t, "S", "M")
    _add(t, "a.x", "2", "+3")
    holds(t, "S", 2)
    holds(t, "M", 2)


@scenario
def what_is_no_counter_is_not_taken(t: Script) -> None:
    t.stream("O", ["o.*"])
    publish(t, ["o.1"])
    _counter(t, "S", "s.*", sources=[{"name": "O"}])
    connected(t, "S")
    _add(t, "s.x", "1")
    messages(t, "S")
    t.state("S")


@scenario
def other_headers_stay(t: Script) -> None:
    _counter(t, "A", "a.*")
    _counter(t, "S", "s.*", sources=[{"name": "A"}])
    connected(t, "S")
    _add(t, "a.x", "2", Before="b")
    publish(t, ["a.x"], b"", {"First": "1", "Nats-Incr": "+40", "Nats-Msg-Id": "m", "Last": "2"})
    holds(t, "S", 2)


@scenario
def large_totals(t: Script) -> None:
    _counter(t, "A", "a.*")
    _counter(t, "S", "s.*", sources=[{"name": "A"}])
    connected(t, "S")
    _add(t, "a.x", str(1 << 70), f"-{1 << 71}", "1")
    holds(t, "S", 3)
    t.note("seq", origins(t.wire.api("STREAM.INFO.S"))[0]["seq"])


@table(
    [
        ("a_number", "7"),
        ("with_a_sign", "+7"),
        ("less", "-7"),
        ("no_number", "NaN"),
        ("an_exponent", "1e3"),
        ("a_fraction", "1.5"),
        ("less_and_more", "-7x"),
        ("nothing", ""),
        ("a_blank", " 7"),
        ("two_signs", "+-7"),
        ("an_underscore", "1_0"),
        ("other_digits", "٣"),
    ]
)
def what_a_publisher_says_of_a_source(t: Script, told: str) -> None:
    _counter(t, "A", "a.*")
    _counter(t, "S", "s.*", sources=[{"name": "A", "subject_transforms": mapped(("a.*", "s.$1"))}])
    connected(t, "S")
    _add(t, "s.x", "1", **{"Nats-Counter-Sources": json.dumps({"A": {"a.x": told}, "B": None})})
    _add(t, "s.x", "1", **{"Nats-Counter-Sources": "{}"})
    _add(t, "a.x", "10")
    holds(t, "S", 3)
    _add(t, "a.x", "10")
    holds(t, "S", 4)
    _add(t, "s.x", "1")
    messages(t, "S")
