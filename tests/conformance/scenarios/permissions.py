"""Scenarios of user permissions: publish, subscribe, and responses (docs/internals/protocol.md#errors)."""

from __future__ import annotations

from typing import Any

from tests.conformance.harness import Script, configured, table
from tests.conformance.user_rules import DOMAIN_RULES, USER_RULES
from tests.wire import Wire

TRACE = {"Nats-Trace-Dest": "trace"}


def _client(t: Script, user: str, **fields: Any) -> Wire:
    """Connect as that user and wait for the PONG, since nats-server does not map messages in one write with CONNECT."""
    wire = t.connect(user=user, **fields)
    wire.ping()
    return wire


def _subscriptions(t: Script, wire: Wire, *wanted: str) -> None:
    """Record the answer to each subscription: a subject, perhaps with a queue group."""
    for each in wanted:
        subject, _, queue = each.partition(" ")
        wire.subscribe(subject, queue)
        t.frames(f"SUB {each}", wire.ping())


def _publish(t: Script, wire: Wire, *subjects: str) -> None:
    """Record the answer to a message to each subject."""
    for subject in subjects:
        wire.publish(subject, b"x")
        t.frames(f"PUB {subject}", wire.ping())


PUBLISHED = ("a", "a.b", "a.no", "a.x.y", "a.*", "a.>", "b", "b.x", "b.x.y", "b.y.z", "b.*.q", "b.>", "c", "c.q.z", "d")
ODD = ("a..b", "a.", ".a", "b..c", "never", "x")


@table(
    [(user, user) for user in ("any", "pub_string", "pub_list", "pub_deny", "pub_both", "pub_empty", "sub_list")],
    USER_RULES,
)
def who_may_publish(t: Script, user: str) -> None:
    _publish(t, _client(t, user), *PUBLISHED, *ODD, "_INBOX.x", "$JS.API.INFO")


@table(
    [(user, user) for user in ("pub_both", "sub_both")],
    USER_RULES,
)
def a_pedantic_verbose_client_is_told_all(t: Script, user: str) -> None:
    wire = _client(t, user, pedantic=True, verbose=True)
    _publish(t, wire, *PUBLISHED, *ODD)
    _subscriptions(t, wire, *PUBLISHED, *ODD, "a _sys_")


SUBSCRIBED = (
    *("a", "a.b", "a.no", "a.x.y", "a.*", "*.b", "b.>", "b.*", "b.w.x", "b.w.*", "b.w.>", "b.*.*", "c", "d.1.x"),
    *("d.*.x", "d.*.*", "e", "e.a", "e.>", "e.*", ">", "*", "*.*", "*.>"),
)
QUEUES = ("q.a", "q.a grp", "q.* grp", "q.a other", "w.a v1.x", "w.a v1.x.y", "w.a v1", "w.a v2", "w.a v3")
QUEUES_TOO = ("both", "both v1", "both v2", "b.x any", "w.* v1.*", "a.b any", "a.no any", "w.a", "a.b _sys_")


@table(
    [
        (user, user)
        for user in ("any", "sub_string", "sub_list", "sub_deny", "sub_both", "sub_queue", "sub_empty", "pub_list")
    ],
    USER_RULES,
)
def who_may_subscribe(t: Script, user: str) -> None:
    _subscriptions(t, _client(t, user), *SUBSCRIBED, *QUEUES, *QUEUES_TOO, "a..b", "b..x", "x..y", ".a", "a.")


@configured(USER_RULES)
def more_than_is_allowed(t: Script) -> None:
    _subscriptions(t, _client(t, "sub_list"), "a.>", "d.1.>")
    _subscriptions(t, _client(t, "sub_queue"), "q.> grp")


@configured(USER_RULES)
def denied_and_denied_to_a_group(t: Script) -> None:
    wire = _client(t, "sub_deny_twice")
    _subscriptions(t, wire, "a.no", "a.no grp")
    _subscriptions(t, wire, "a.no other")


@configured(USER_RULES)
def all_of_what_is_denied_in_part(t: Script) -> None:
    """A deny of `b.w.*` also restricts a subscription to `b.w.>`."""
    _subscriptions(t, _client(t, "sub_deny"), "q.> grp", "q.> other", "b.w.>", "b.>", "e.>", "e.*", "a.>")


@configured(USER_RULES)
def a_user_without_permissions_has_the_accounts(t: Script) -> None:
    wire = _client(t, "plain")
    _publish(t, wire, "def.a", "other", "$JS.API.X")
    _subscriptions(t, wire, "def.a", "def.*", "other", ">", "_INBOX.a")


@table(
    [(user, user) for user in ("any", "pub_deny", "pub_empty", "sub_deny", "all_said", "answers_all", "m")],
    USER_RULES,
)
def what_a_user_is_told_of_itself(t: Script, user: str) -> None:
    answer = _client(t, user).request("$SYS.REQ.USER.INFO").json()
    for rules in (answer["data"].get("permissions") or {}).values():
        for name, entries in rules.items():
            rules[name] = sorted(entries) if isinstance(entries, list) else entries  # in undefined order
    t.note("USER.INFO", answer["data"])


@configured(USER_RULES)
def subjects_are_quoted(t: Script) -> None:
    wire = _client(t, "pub_string")
    for subject in (
        b'b\x01"\xc3\xa9\xe2\x82\xac',
        b"no\xff\xfe",
        b"a\\b",
        b"\x7f\x07\x0b",
        "\u200b\U0001f600\u2028".encode(),
    ):
        wire.send(b"PUB %b 0\r\n\r\n" % subject)
        wire.send(b"PUB a.b _R_.%b 0\r\n\r\n" % subject)
        t.frames("PUB", wire.ping())
    wire = _client(t, "sub_string")
    wire.send(b'SUB b\x01" q\xff 1\r\nSUB \xc3\xa9\x07 2\r\n')
    t.frames("SUB", wire.ping())


@configured(USER_RULES)
def connect_and_what_is_not_allowed_in_one_write(t: Script) -> None:
    wire = t.connect_bare()
    connect = b'CONNECT {"user":"pub_string","pass":"p","verbose":false,"pedantic":false}\r\n'
    wire.send(connect + b"PUB a.b 0\r\n\r\nPUB a.c 0\r\n\r\nPUB a.d 0\r\n\r\nPING\r\n")
    t.frames("in one", wire.until("PONG"))


@configured(USER_RULES)
def a_refused_sid_is_free(t: Script) -> None:
    wire = _client(t, "sub_list")
    wire.send(b"SUB no 7\r\nSUB a.b 7\r\nSUB no 7\r\nUNSUB 7\r\nSUB a.c 7\r\n")
    t.frames("SUB", wire.ping())
    other = _client(t, "any")
    for subject in ("no", "a.b", "a.c"):
        other.publish(subject, b"x")
    other.ping()
    t.frames("delivered", wire.ping())


@configured(USER_RULES)
def replies_are_not_looked_at_but_for_the_reserved(t: Script) -> None:
    wire = _client(t, "pub_string")
    listener = _client(t, "any")
    sid = listener.subscribe("a.b")
    listener.ping()
    for reply in ("nowhere", "a.b", "_R_.x", "$JS.ACK.x"):
        wire.publish("a.b", b"x", reply)
        wire.publish("a.c", b"x", reply)
        t.frames(f"reply {reply}", wire.ping())
    t.frames("heard", t.collect(listener, 2, sid=sid))
    t.frames("rest", listener.ping())


@configured(USER_RULES)
def refused_messages_count(t: Script) -> None:
    wire = _client(t, "pub_string", no_responders=True)
    wire.subscribe("in.>")
    t.note("request", t.show(wire.request("a.b", b"")))
    reply = wire.new_reply()
    wire.publish("a.c", b"x", reply)
    t.frames("refused request", wire.ping())


# ---- denied subjects inside a wider subscription
@configured(USER_RULES)
def denied_inside_a_wider_subscription(t: Script) -> None:
    wire, sender = _client(t, "sub_deny"), _client(t, "any")
    _subscriptions(t, wire, "a.*", "*.*.*", "q.*")
    for subject in ("a.yes", "a.no", "b.w.x", "b.v.x", "q.a", "e.a.b", "a.no", "a.more"):
        sender.publish(subject, b"x")
    sender.ping()
    t.frames("heard", wire.ping())


@configured(USER_RULES)
def what_is_denied_does_not_count_as_delivered(t: Script) -> None:
    wire, sender = _client(t, "sub_deny"), _client(t, "any")
    wire.unsubscribe(wire.subscribe("a.*"), 2)
    wire.ping()
    for subject in ("a.no", "a.no", "a.1", "a.no", "a.2", "a.3"):
        sender.publish(subject, b"x")
    sender.ping()
    t.frames("heard", wire.ping())


@configured(USER_RULES)
def nobody_hears_what_is_denied_to_all(t: Script) -> None:
    first, second, sender = _client(t, "sub_deny"), _client(t, "sub_deny"), _client(t, "any")
    for wire in (first, second):
        wire.subscribe("a.*")
        wire.subscribe("a.>", "group")
        wire.ping()
    t.note("denied", t.show(sender.request("a.no", b"x")))
    sender.publish("a.no", b"x", sender.new_reply())
    t.frames("once", [*sender.ping(), *sender.ping()])
    plain = _client(t, "any")
    plain.subscribe("a.no")
    plain.ping()
    sender.publish("a.no", b"x", sender.new_reply())
    t.frames("somebody", [*sender.ping(), *sender.ping()])


@configured(USER_RULES)
def a_member_that_may_not_is_passed_over(t: Script) -> None:
    denied, member, sender = _client(t, "sub_deny"), _client(t, "any"), _client(t, "any")
    for wire in (denied, denied, member):
        wire.subscribe("a.*", "group")
        wire.ping()
    for _ in range(30):
        sender.publish("a.no", b"x", "r")
    sender.ping()
    t.note("denied", len(denied.ping()))
    t.note("member", len(member.ping()))


@configured(USER_RULES)
def only_denied_members(t: Script) -> None:
    denied, sender = _client(t, "sub_deny"), _client(t, "any")
    denied.subscribe("a.*", "group")
    denied.subscribe("*.no", "other")
    denied.ping()
    t.note("request", t.show(sender.request("a.no", b"x")))
    t.frames("denied", denied.ping())


@configured(USER_RULES)
def denied_subjects_of_a_stream(t: Script) -> None:
    t.stream("S", ["a.>"], storage="memory")
    t.fill(["a.1", "a.no", "a.2"])
    wire = _client(t, "sub_deny")
    wire.subscribe("a.*")
    wire.subscribe("deliver")
    wire.ping()
    t.consumer("S", "push", deliver_subject="deliver", ack_policy="explicit")
    frames = [wire.next(lambda frame: frame.subject in ("a.1", "a.2")) for _ in range(2)]
    t.note("delivered", [frame.subject for frame in frames])
    t.numbers("S", "push")
    t.consumer("S", "pull")
    reply = wire.new_reply()
    wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.pull", b'{"batch":5,"no_wait":true}', reply)
    t.frames("pulled", t.collect(wire, 3))
    t.numbers("S", "pull")


# ---- allow_responses
@table(
    [(user, user) for user in ("answer", "answer2", "answers", "answer0", "answer_deny", "answer_more")],
    USER_RULES,
)
def answers(t: Script, user: str) -> None:
    wire, asker = _client(t, user), _client(t, "any")
    sid = wire.subscribe("svc.q")
    _publish(t, wire, "a.b", "x.y", "other")
    for round_ in range(2):
        asker.publish("svc.q", b"?", "x.back")
        asker.publish("svc.q", b"no reply")
        t.frames(f"asked {round_}", t.collect(wire, 2, sid=sid))
        _publish(t, wire, "x.back", "x.back", "x.other", "x.back")


@configured(USER_RULES)
def acks_are_answers(t: Script) -> None:
    """Acks of a pull consumer are responses: each message has its own reply subject."""
    t.stream("S", ["s.>"])
    t.fill(["s.1", "s.2"])
    t.consumer("S", "c")
    wire = _client(t, "answer_more")
    reply = wire.new_reply()
    wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch":2}', reply)
    first, second = t.collect(wire, 2)
    wire.publish(first.reply, b"+WPI")
    wire.publish(first.reply, b"+ACK")
    wire.publish(second.reply, b"+ACK")
    t.note("acked", [frame.text.split(".S.c.")[0] for frame in wire.ping()])
    t.numbers_when("S", "c", lambda info: info["num_ack_pending"] == 1)


# ---- traces
def _traced(t: Script, wire: Wire, tracer: Wire, subject: str, sid: str) -> None:
    wire.publish(subject, b"x", "", TRACE)
    t.frames(f"PUB {subject}", wire.ping())
    trace = tracer.delivered(sid).json()
    for event in trace["events"]:
        event["cid"] = "<cid>" if event["cid"] else 0
    t.note(f"trace of {subject}", trace["events"])


@configured(USER_RULES)
def traces_of_what_is_refused_and_denied(t: Script) -> None:
    tracer = _client(t, "any", name="tracer")
    sid = tracer.subscribe("trace")
    tracer.ping()
    refused = _client(t, "pub_string", name="refused")
    for subject in ("a.b", "a.c", "$NRG.x"):
        refused.publish(subject, b"x", "_R_.x", TRACE)
        t.frames(f"PUB {subject}", refused.ping())
    _traced(t, _client(t, "pub_deny", name="refused"), tracer, "a.no", sid)
    denied, sender = _client(t, "sub_deny", name="denied"), _client(t, "any", name="sender")
    denied.subscribe("a.*")
    denied.ping()
    _traced(t, sender, tracer, "a.no", sid)
    _traced(t, sender, tracer, "a.yes", sid)
    t.frames("denied", [frame for frame in denied.ping() if frame.subject != "trace"])


# ---- domains
@table([(user, user) for user in ("no_delete", "api", "domain")], DOMAIN_RULES)
def requests_under_a_domains_prefix(t: Script, user: str) -> None:
    """Requests under a domain's prefix have the permissions of the request itself."""
    t.stream("S", ["s"])
    wire = _client(t, user)
    requests = ("STREAM.DELETE.S", "STREAM.INFO.S", "INFO", "OTHER.X", "$KV.b.x", "$KV.c.x", "$O.c.x")
    for subject in (*(f"$JS.D.API.{request}" for request in requests), "$JS.API.STREAM.DELETE.S", "$JS.E.API.INFO"):
        wire.publish(subject)
        t.frames(subject, wire.ping())


# ---- other accounts
@configured(USER_RULES)
def what_is_imported_may_be_denied(t: Script) -> None:
    wire, free, sender = _client(t, "i_deny"), _client(t, "i"), _client(t, "e")
    for client in (wire, free):
        client.subscribe("via.>")
        client.subscribe("via.ev.*", "group")
        client.ping()
    for subject in ("ev.yes", "ev.no", "ev.a", "ev.c"):
        sender.publish(subject, b"x")
    sender.ping()
    t.note("denied", sorted({frame.subject for frame in wire.ping()}))
    t.note("free", sorted({frame.subject for frame in free.ping()}))


@configured(USER_RULES)
def requests_into_another_account(t: Script) -> None:
    wire, service = _client(t, "i_pub"), _client(t, "e")
    sid = service.subscribe("ask.>")
    service.ping()
    for subject in ("ask.yes", "ask.no", "please"):
        wire.publish(subject, b"x", "back")
        t.frames(subject, wire.ping())
    t.note("asked", [service.delivered(sid).subject for _ in range(2)])
    t.frames("no more", service.ping())


@configured(USER_RULES)
def answers_to_another_account(t: Script) -> None:
    asker, service = _client(t, "i"), _client(t, "e_answer")
    for subject in ("ask.>", "asked.>"):
        service.subscribe(subject)
    service.ping()
    for subject in ("ask.x", "ask.m", "ask.n"):
        reply = asker.new_reply()
        asker.publish(subject, b"?", reply)
        request = service.next(lambda frame: frame.verb != "-ERR")
        t.note("asked", request.subject)
        service.publish(request.reply, b"!")
        t.note("answer", t.show(asker.message(reply)))
        service.publish(request.reply, b"!!")
        t.note("once", [frame.verb for frame in service.ping()])
