"""Scenarios of several accounts on one server: users, isolation, accounts without JetStream."""

from __future__ import annotations

import json
from typing import Any

from tests.conformance.accounts import ACCOUNTS
from tests.conformance.harness import Script, configured, table
from tests.conformance.scenarios.api_requests import REQUESTS
from tests.wire import Closed, Wire, WireTimeout

_SHOWN = ("max_payload", "auth_required", "connect_info", "remote_account", "acc_is_sys", "headers", "proto")
SILENT_S = 0.25


def _shown(info: dict[str, Any]) -> dict[str, Any]:
    return {key: info[key] for key in _SHOWN if key in info}


@table([(user, user) for user in ("sys", "nojs", "a", "a2", "conn")], ACCOUNTS)
def what_info_says_of_the_account(t: Script, user: str) -> None:
    wire = t.connect(user=user)
    first, *then = wire.told()
    t.note("first", _shown(first))
    t.note("then", [_shown(info) for info in then])


@table(
    [
        ("nobody", {"user": None}),
        ("wrong_password", {"user": "a", "pass": "x"}),
        ("no_password", {"user": "a", "pass": ""}),
        ("unknown_user", {"user": "zz"}),
        ("user_of_another_case", {"user": "A"}),
        ("names_its_account", {"user": "a", "account": "A"}),
        ("names_another_account", {"user": "a", "account": "B"}),
        ("names_no_account", {"user": "a", "account": ""}),
        ("token", {"user": None, "auth_token": "p"}),
    ],
    ACCOUNTS,
)
def connecting(t: Script, fields: dict[str, Any]) -> None:
    wire = t.connect(**fields)
    wire.send(b"PING\r\n")
    try:
        while (frame := wire.next()).verb != "PONG":
            t.note("before PONG", t.show(frame))
        t.note("account", wire.told()[-1].get("remote_account"))
    except Closed:
        t.note("closed", len(wire.infos))


def _listening(t: Script, user: str, *subjects: str) -> Wire:
    wire = t.connect(user=user)
    for subject in subjects:
        wire.subscribe(subject)
    wire.ping()
    return wire


@configured(ACCOUNTS)
def messages_stay_in_their_account(t: Script) -> None:
    heard = {user: _listening(t, user, ">", "x.*") for user in ("a", "a2", "b", "nojs")}
    for user in ("a", "b", "nojs"):
        wire = t.connect(user=user)
        wire.publish("x.1", user.encode(), "reply.to")
        wire.ping()
    for user, wire in heard.items():
        t.note(user, sorted((f.subject, f.data, f.reply) for f in wire.ping()))


@configured(ACCOUNTS)
def a_request_is_answered_in_its_account_only(t: Script) -> None:
    answering = _listening(t, "b", "ask")
    t.note("from a", t.show(t.wire.request("ask")))
    wire = t.connect(user="b")
    reply = wire.new_reply()
    wire.publish("ask", b"?", reply)
    request = answering.next()
    t.note("in b", t.show(request))
    t.wire.publish(request.reply, b"not from a")
    t.wire.ping()
    answering.publish(request.reply, b"from b")
    t.note("answer", t.show(wire.message(reply)))


@configured(ACCOUNTS)
def queue_groups_of_one_name(t: Script) -> None:
    first, second = t.connect(user="a"), t.connect(user="b")
    for wire in (first, second):
        wire.subscribe("q", "group")
        wire.ping()
    for _ in range(10):
        t.wire.publish("q")
    t.wire.ping()
    t.note("a", len(first.ping()))
    t.note("b", len(second.ping()))


@configured(ACCOUNTS)
def streams_of_one_name_in_two_accounts(t: Script) -> None:
    a, b = t, t.as_user("b")
    a.stream("S", ["s.>"], storage="file", max_msgs=3)
    b.stream("S", ["s.>"], storage="file", max_msgs=5)
    for n in range(4):
        a.publish(f"s.{n}", b"a")
        b.publish(f"s.{n}", b"b")
    a.consumer("S", "c")
    b.consumer("S", "c", filter_subject="s.2")
    for who in (a, b):
        who.state("S", subjects_filter=">")
        who.api("STREAM.MSG.GET.S", {"seq": 3})
        who.pull("S", "c", {"batch": 1}, 1)
        who.numbers("S", "c")
        who.api("STREAM.NAMES")
        _account(who)
    a.api("STREAM.DELETE.S")
    a.api("STREAM.INFO.S")
    b.state("S")
    b.publish("s.5", b"b")
    _account(a)
    _account(b)


def _account(t: Script) -> None:
    """Record INFO without the counters over the server's whole life."""
    answer = t.wire.api("INFO")
    answer.pop("api", None)
    t.note("INFO", answer)


@configured(ACCOUNTS)
def subjects_of_one_account_are_free_in_the_next(t: Script) -> None:
    b = t.as_user("b")
    t.stream("S", ["x.>"])
    b.api("STREAM.CREATE.T", {"name": "T", "subjects": ["x.>"], "storage": "memory"})
    t.api("STREAM.CREATE.U", {"name": "U", "subjects": ["x.1"], "storage": "memory"})
    b.publish("x.1", b"m")
    t.state("S")
    b.state("T")


@configured(ACCOUNTS)
def the_same_id_is_no_duplicate_in_another_account(t: Script) -> None:
    for who in (t, t.as_user("b")):
        who.stream("S", ["s"])
        for _ in range(2):
            who.publish("s", b"m", {"Nats-Msg-Id": "id"})


@configured(ACCOUNTS)
def acks_reach_their_own_account_only(t: Script) -> None:
    a, b = t, t.as_user("b")
    for who in (a, b):
        who.stream("S", ["s"])
        who.fill(["s", "s"])
        who.consumer("S", "c")
    frame = a.pull("S", "c", {"batch": 1}, 1)[0]
    b.pull("S", "c", {"batch": 1}, 1)
    b.note("ack of a's message", b.show(b.wire.request(frame.reply, b"+ACK")))  # a subject of its own account
    a.numbers("S", "c")
    b.numbers("S", "c")


@configured(ACCOUNTS)
def advisories_and_audit_name_the_account(t: Script) -> None:
    b = t.as_user("b")
    heard = _listening(t, "b", "$JS.EVENT.>")
    deaf = _listening(t, "a2", "$JS.EVENT.>")
    b.setup("STREAM.CREATE.S", {"name": "S", "storage": "memory"})
    b.wire.api("STREAM.INFO.NONE")
    events = []
    for _ in range(3):
        frame = heard.next()
        event = frame.json()
        client = event.get("client", {})
        events.append(
            [
                frame.subject,
                event.get("subject", ""),
                client.get("acc"),
                client.get("user"),
                sorted(client.keys() - {"rtt"}),
            ]
        )
    t.note("in b", sorted(events))
    t.note("in a", [t.show(frame) for frame in deaf.ping()])


@configured(ACCOUNTS)
def requests_are_counted_by_account(t: Script) -> None:
    def counts(who: Script) -> Any:
        return who.wire.api("INFO")["api"]

    a, b = t, t.as_user("b")
    before_a, before_b = counts(a), counts(b)
    a.wire.api("STREAM.INFO.NONE")
    a.wire.api("STREAM.NAMES")
    after_a, after_b = counts(a), counts(b)
    for name, before, after in (("a", before_a, after_a), ("b", before_b, after_b)):
        t.note(name, [after["total"] - before["total"], after["errors"] - before["errors"], after["level"]])


# ---- without JetStream

_FURTHER: dict[str, Any] = {
    "CONSUMER.MSG.NEXT.S.c": {"batch": 1},
    "CONSUMER.UNPIN.S.c": {"group": "g"},
    "DIRECT.GET.S": {"seq": 1},
    "DIRECT.GET.S.s": None,
    "STREAM.SNAPSHOT.S": {"deliver_subject": "to"},
    "STREAM.RESTORE.S": {"config": {"name": "S"}, "state": {}},
    "STREAM.TEMPLATE.NAMES": None,
    "META.LEADER.STEPDOWN": None,
    "SERVER.REMOVE": None,
    "ACCOUNT.PURGE.A": None,
    "ACCOUNT.STREAM.MOVE.A.S": None,
    "NOTHING": None,
    "STREAM.NOTHING": None,
    "STREAM.INFO": None,
}


def _ask(t: Script, subject: str, body: Any) -> None:
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    try:
        frame = t.wire.request(f"{t.prefix}.{subject}", data, timeout=SILENT_S)
    except WireTimeout:
        t.note(subject, "no answer")
        return
    t.note(subject, frame.json() if frame.data else t.show(frame))


@table(
    [
        (f"{user}-{subject}", user, subject, body)
        for user in ("nojs", "sys")
        for subject, body in (REQUESTS | _FURTHER).items()
        if user == "nojs" or not subject.startswith(("META", "SERVER", "ACCOUNT"))
    ],
    ACCOUNTS,
)
def without_jetstream(t: Script, user: str, subject: str, body: Any) -> None:
    other = t.as_user(user)
    _ask(other, subject, body)
    _ask(other, subject, b"{x")


@configured(ACCOUNTS)
def publishing_where_there_is_no_jetstream(t: Script) -> None:
    t.stream("S", ["s"])
    for user in ("nojs", "sys"):
        other = t.as_user(user)
        other.publish("s", b"m")
        other.publish("$JS.ACK.S.c.1.1.1.1.0", b"")
        other.publish("$JS.FC.S.c.x", b"")
    t.state("S")


# ---- connection limits


@configured(ACCOUNTS)
def one_connection_too_many(t: Script) -> None:
    kept = [t.connect(user="conn") for _ in range(2)]
    for wire in kept:
        wire.ping()
    t.frames("third", t.connect(user="conn").until_closed())
    for wire in kept:
        wire.ping()
    kept[0].close()
    other = t.connect(user="b")  # another account has room
    other.ping()


@configured(ACCOUNTS)
def subscriptions_of_a_connection(t: Script) -> None:
    wire = t.connect(user="conn")
    for number in range(5):
        wire.subscribe(f"x.{number}")
        t.frames(f"SUB {number}", wire.ping())
    for number in range(5):
        wire.publish(f"x.{number}", b"m")
    t.frames("delivered", wire.ping())
    wire.unsubscribe("1")
    wire.subscribe("x.4")
    t.frames("after UNSUB", wire.ping())
    second = t.connect(user="conn")
    second.subscribe("y")
    t.frames("the other connection", second.ping())


@configured(ACCOUNTS)
def payload_of_an_account(t: Script) -> None:
    wire = t.connect(user="conn")
    sid = wire.subscribe("x")
    wire.publish("x", b"m" * 100)
    t.frames("100", [wire.delivered(sid)])
    wire.publish("x", b"m" * 60, headers={"A": "b" * 30})
    t.frames("101 with headers", wire.until_closed())
    t.wire.publish("x", b"m" * 101)
    t.frames("another account", t.wire.ping())


@configured(ACCOUNTS)
def connect_and_publish_in_one_packet(t: Script) -> None:
    heard = {user: _listening(t, user, "one.packet") for user in ("b", "a2")}
    bare = t.connect_bare()
    fields = json.dumps({"verbose": False, "user": "b", "pass": "p"}).encode()
    bare.send(b"CONNECT " + fields + b"\r\nPUB one.packet 1\r\nm\r\nPING\r\n")
    t.frames("before PONG", bare.until("PONG"))
    for user, wire in heard.items():
        t.frames(user, wire.ping())
