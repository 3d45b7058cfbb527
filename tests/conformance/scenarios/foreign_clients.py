"""Answers on which clients of other languages rely: rollups, pulls that do not wait, acks, rates, imported APIs."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from tests.conformance.harness import Script, table
from tests.pairs import Setup
from tests.wire import WireTimeout


# ---------------------------------------------------------------------- rollup
@table(
    [
        ("last_token", "s.a.*", ["s.a.1", "s.a.2", "s.b.1"]),
        ("middle_token", "s.*.1", ["s.a.1", "s.b.1", "s.a.2"]),
        ("rest", "s.>", ["s.a", "s.b.c", "s.d"]),
        ("literal", "s.a", ["s.a", "s.b", "s.a"]),
        ("star_in_a_token", "s.a*", ["s.a1", "s.a*", "s.b"]),
    ]
)
def rollup_of_a_subject_with_a_wildcard(t: Script, subject: str, filled: list[str]) -> None:
    t.stream("S", ["s.>"], allow_rollup_hdrs=True)
    t.fill(filled)
    t.publish(subject, b"sum", {"Nats-Rollup": "sub"})
    answer = t.wire.api("STREAM.INFO.S", {"subjects_filter": ">"})
    t.note("subjects", answer["state"].get("subjects"))
    t.note("messages", answer["state"]["messages"])


# ---------------------------------------------------------------------- pulls that do not wait
BEATING = {"expires": 1_999_900_000, "idle_heartbeat": 100_000_000}


@table(
    [
        ("nothing_there", 0, {"batch": 20, **BEATING}),
        ("less_there", 3, {"batch": 20, **BEATING}),
        ("more_than_acks_pend", 8, {"batch": 20, **BEATING}),
        ("more_than_acks_pend_no_heartbeat", 8, {"batch": 20, "expires": 500_000_000}),
        ("less_there_no_heartbeat", 3, {"batch": 20, "expires": 500_000_000}),
        ("no_expiry", 8, {"batch": 20}),
        ("no_expiry_less_there", 3, {"batch": 20}),
        ("as_many_as_acks_pend", 5, {"batch": 6, "expires": 500_000_000}),
    ]
)
def no_wait_up_to_the_maximum_of_pending_acks(t: Script, messages: int, body: dict[str, Any]) -> None:
    t.stream("S", ["s"])
    t.consumer("S", "c", max_ack_pending=5)
    if messages:
        t.fill(["s"] * messages)
    wire = t.wire
    reply = wire.new_reply()
    asked = json.dumps({"no_wait": True, **body}).encode()
    wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", asked, reply)
    seen: list[Any] = []
    while not seen or seen[-1] in ("message", 100):
        try:
            frame = wire.next(lambda got: got.sid == wire.inbox_sid, 2.5)
        except WireTimeout:
            seen.append("nothing more")
            continue
        seen.append(frame.status or "message")
    t.note("answers", [each for each in seen if each != 100])
    t.note("heartbeats", "several" if seen.count(100) > 2 else seen.count(100))  # how many is a matter of time
    t.note("waiting", wire.api("CONSUMER.INFO.S.c")["num_waiting"])


@table([("no_wait", {"no_wait": True}), ("with_expiry", {"no_wait": True, "expires": 2_000_000_000})])
def no_wait_to_a_paused_consumer(t: Script, body: dict[str, Any]) -> None:
    t.stream("S", ["s"])
    t.consumer("S", "c", pause_until="2099-01-01T00:00:00Z")
    t.fill(["s"] * 3)
    t.pull("S", "c", {"batch": 5, **body}, 1)


@table([(policy, policy) for policy in ("none", "all", "explicit")])
def an_ack_with_a_reply(t: Script, policy: str) -> None:
    t.stream("S", ["s"])
    t.consumer("S", "c", ack_policy=policy)
    t.fill(["s"])
    [frame] = t.pull("S", "c", {"batch": 1}, 1)
    wire = t.wire
    answer = wire.request(frame.reply, b"+ACK")
    t.note("answer", [answer.verb, answer.status])
    t.note("names the subject", answer.headers.get("Nats-Subject") == frame.reply)


# ---------------------------------------------------------------------- push at a rate
# The first burst is as large as a message may be (1 MiB): subject, ack reply, headers and payload are counted.
@table([("payload", 1024, None), ("headers", 1000, {"Key": "v" * 100}), ("large", 100_000, None)])
def messages_of_the_first_burst_at_a_rate(t: Script, size: int, headers: dict[str, str] | None) -> None:
    t.stream("S", ["a.subject"])
    t.fill(["a.subject"] * (1100 if size < 2000 else 20), b"x" * size, headers)
    wire = t.wire
    sid = wire.subscribe("deliver")
    wire.ping()
    config = {"deliver_subject": "deliver", "ack_policy": "none", "rate_limit_bps": 1024}
    t.setup("CONSUMER.CREATE.S", {"stream_name": "S", "config": config})
    found = 0
    with contextlib.suppress(WireTimeout):
        while wire.delivered(sid, 1.0):
            found += 1
    t.note("delivered", found)


# ---------------------------------------------------------------------- imports of the API
# An account without JetStream imports of itself what tells it so (10039), unless it imports the whole API.
OVERLAPPING = Setup(
    """accounts {
      HUB { users: [{user: hub, password: p}], jetstream: enabled
        exports: [{service: "$JS.API.>"}, {service: "nobody.>"}] }
      EMPTY { users: [{user: empty, password: p}], exports: [{service: "$JS.API.>"}] }
      ALL { users: [{user: all, password: p}], imports: [{service: {account: HUB, subject: "$JS.API.>"}}] }
      SOME { users: [{user: some, password: p}]
        imports: [{service: {account: HUB, subject: "$JS.API.STREAM.NAMES"}}] }
      BOTH { users: [{user: both, password: p}], imports: [
        {service: {account: HUB, subject: "$JS.API.>"}}
        {service: {account: EMPTY, subject: "$JS.API.STREAM.NAMES"}} ] }
      MAPPED { users: [{user: mapped, password: p}], imports: [
        {service: {account: HUB, subject: "$JS.API.STREAM.NAMES"}, to: "hub.NAMES"}
        {service: {account: HUB, subject: "nobody.x"}} ] }
    }
    """,
    (("hub", "HUB"),),
)
ASKED = ("$JS.API.STREAM.NAMES", "$JS.API.STREAM.LIST", "$JS.API.INFO", "$JS.API.NOTHING", "hub.NAMES", "nobody.x", "s")


@table([(user, user) for user in ("all", "some", "both", "mapped", "empty")], OVERLAPPING)
def answers_to_requests_over_imports(t: Script, user: str) -> None:
    t.stream("S", ["s"])
    other = t.connect(user=user)
    for subject in ASKED:
        other.publish(subject, b"", other.new_reply())
        answers: list[str] = []
        with contextlib.suppress(WireTimeout):
            while frame := other.next(lambda got: got.sid == other.inbox_sid, 0.3):
                error = frame.json().get("error", {}) if frame.data else {}
                answers.append(str(frame.status or error.get("err_code") or "answer"))
        t.note(subject, sorted(answers))  # which of two comes first is by chance


SERVICES = Setup(
    """accounts {
      A { users: [{user: a, password: p}], exports: [{service: "svc.>"}] }
      B { users: [{user: b, password: p}], exports: [{service: "svc.*"}] }
      C { users: [{user: c, password: p}], exports: [{service: "svc.x"}] }
      ANSWERED { users: [{user: answered, password: p}], imports: [
        {service: {account: B, subject: "svc.x"}, to: "svc.x"}
        {service: {account: A, subject: "svc.>"}} ] }
      ALONE { users: [{user: alone, password: p}], imports: [
        {service: {account: B, subject: "svc.*"}}
        {service: {account: C, subject: "svc.x"}} ] }
      SAME { users: [{user: same, password: p}], imports: [
        {service: {account: C, subject: "svc.x"}}
        {service: {account: A, subject: "svc.x"}} ] }
    }
    """,
    (("a", "A"),),
)


@table([(user, user) for user in ("answered", "alone", "same")], SERVICES)
def no_responders_of_overlapping_imports(t: Script, user: str) -> None:
    responder, requester = t.connect(user="a"), t.connect(user=user)
    served = responder.subscribe("svc.x")
    responder.ping()
    for subject in ("svc.x", "svc.y"):
        requester.publish(subject, b"asked", requester.new_reply())
        with contextlib.suppress(WireTimeout):
            responder.publish(responder.delivered(served, 0.3).reply, b"answer")
        answers: list[str] = []
        with contextlib.suppress(WireTimeout):
            while frame := requester.next(lambda got: got.sid == requester.inbox_sid, 0.3):
                answers.append(str(frame.status or frame.data.decode()))
        t.note(subject, answers)
