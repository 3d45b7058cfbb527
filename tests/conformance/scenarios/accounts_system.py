"""Scenarios of JetStream requests that only the system account may send, on one server."""

from __future__ import annotations

import json
from typing import Any

from tests.conformance.accounts import ACCOUNTS
from tests.conformance.harness import Script, configured, table
from tests.wire import WireTimeout

SILENT_S = 0.25

_REQUESTS: tuple[tuple[str, Any], ...] = (
    ("META.LEADER.STEPDOWN", None),
    ("META.LEADER.STEPDOWN", {"placement": {"preferred": "x"}}),
    ("META.NOTHING", None),
    ("SERVER.REMOVE", None),
    ("SERVER.REMOVE", {"peer": "x"}),
    ("SERVER.REMOVE", b"{x"),
    ("SERVER.NOTHING", None),
    ("ACCOUNT.PURGE", None),
    ("ACCOUNT.PURGE.A.B", None),
    ("ACCOUNT.NOTHING", None),
    ("ACCOUNT.STREAM.MOVE.A.S", {"server": "x"}),
    ("ACCOUNT.STREAM.MOVE.A", None),
    ("ACCOUNT.STREAM.CANCEL_MOVE.A.S", None),
    ("STREAM.NOTHING", None),
    ("NOTHING", None),
    ("CONSUMER.MSG.NEXT.S.c", {"batch": 1}),
    ("DIRECT.GET.S", {"seq": 1}),
)


@table([(f"{user}-{n}-{subject}", user, subject, body) for user in ("sys", "a", "nojs")
        for n, (subject, body) in enumerate(_REQUESTS)], ACCOUNTS)  # fmt: skip
def requests(t: Script, user: str, subject: str, body: Any) -> None:
    _ask(t.as_user(user), subject, body)


def _ask(t: Script, subject: str, body: Any = None) -> None:
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    try:
        frame = t.wire.request(f"$JS.API.{subject}", data, timeout=SILENT_S)
    except WireTimeout:
        t.note(subject, "no answer")
        return
    t.note(subject, frame.json() if frame.data else t.show(frame))


@configured(ACCOUNTS)
def purging_an_account(t: Script) -> None:
    system, b = t.as_user("sys"), t.as_user("b")
    for who in (t, b):
        for name, storage in (("F", "file"), ("M", "memory")):
            who.stream(name, [f"{name}.>"], storage=storage)
            who.fill([f"{name}.1"] * 3)
            who.consumer(name, "c")
    wire = t.connect()
    sid = wire.subscribe("$JS.EVENT.ADVISORY.>")
    wire.ping()
    _ask(system, "ACCOUNT.PURGE.A")
    events = [frame.subject for frame in t.collect(wire, 4, sid=sid)]
    t.note("advisories", sorted(events))
    t.api("STREAM.NAMES")
    b.api("STREAM.NAMES")
    t.stream("F", ["F.>"], storage="file")
    t.publish("F.1", b"m")
    t.state("F")
    b.state("F")


@table([(name, name) for name in ("SYS", "NOJS", "ZZ", "$G", "B")], ACCOUNTS)
def purging_what_has_nothing(t: Script, name: str) -> None:
    _ask(t.as_user("sys"), f"ACCOUNT.PURGE.{name}")


@configured(ACCOUNTS)
def the_audit_of_a_purge(t: Script) -> None:
    system = t.as_user("sys")
    wire = t.connect(user="sys")
    sid = wire.subscribe("$JS.EVENT.ADVISORY.API")
    wire.ping()
    _ask(system, "ACCOUNT.PURGE.ZZ")
    event = wire.delivered(sid).json()
    t.note("audit", {key: event[key] for key in ("type", "subject", "client", "request", "response") if key in event})


@configured(ACCOUNTS)
def others_hear_nothing_of_the_systems_subjects(t: Script) -> None:
    wire = t.connect()
    wire.subscribe("$SYS.>")
    t.frames("SUB", wire.ping())
    other = t.connect(user="b")
    other.ping()
    other.close()
    wire.publish("$SYS.ACCOUNT.B.CONNECT", b"made up")
    t.frames("its own only", wire.ping())
