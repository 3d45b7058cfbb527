"""Scenarios of the client protocol: verbs, lexical rules, limits, delivery, closing (docs/internals/protocol.md)."""

from __future__ import annotations

import itertools
import json
from typing import Any

from tests.conformance.harness import Script, configured, scenario, table
from tests.pairs import Setup
from tests.wire import Closed, pub

QUIET = b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\n'
LIKE_A_LIBRARY = (
    b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,'
    b'"protocol":1,"lang":"x","version":"1"}\r\n'
)


@scenario
def info_fields(t: Script) -> None:
    info = dict(t.connect_bare().info)
    info.pop("client_id")
    t.note("INFO", info)


@scenario
def info_comes_again_after_the_first_pong(t: Script) -> None:
    wire = t.connect(protocol=1)
    infos = wire.told()
    t.note("how many", len(infos))
    t.note("the second", infos[1])


@scenario
def info_comes_once_for_protocol_0(t: Script) -> None:
    wire = t.connect(protocol=0)
    t.note("how many", len(wire.told()))


# Each row: data sent on a connection without CONNECT, before a PING whose PONG ends the exchange.
@table(
    [
        ("nothing", b""),
        ("connect_empty_is_verbose", b"CONNECT {}\r\nSUB a 1\r\n"),
        ("no_connect_is_verbose_and_pedantic", b"SUB a 1\r\nPUB a 2\r\nhi\r\nPUB a.* 0\r\n\r\n"),
        ("verbose_ok_after_each_verb", b'CONNECT {"verbose":true}\r\nSUB a 1\r\nPUB a 1\r\nx\r\nUNSUB 1\r\n'),
        ("quiet", QUIET + b"SUB a 1\r\nPUB a 1\r\nx\r\nUNSUB 1\r\n"),
        ("verbose_ping", b'CONNECT {"verbose":true}\r\nPING\r\n'),
        ("connect_twice", QUIET + b'CONNECT {"verbose":true}\r\nSUB a 1\r\n'),
        ("unknown_connect_fields", b'CONNECT {"verbose":false,"pedantic":false,"shoe_size":44}\r\nSUB a 1\r\n'),
        ("verbs_in_any_case", b'connect {"verbose":false}\r\nsub a 1\r\nPub a 1\r\nx\r\nuNsUb 1\r\n'),
        ("tabs_and_runs_of_blanks", QUIET + b"SUB \t a  \t 1\r\nPUB   a\t1\r\nx\r\n"),
        ("bare_line_feed", QUIET + b"SUB a 1\nPUB a 1\r\nx\r\n"),
        ("blank_before_line_end", QUIET + b"SUB a 1  \r\nPUB a 1 \r\nx\r\n"),
        ("empty_payload", QUIET + b"SUB a 1\r\nPUB a 0\r\n\r\n"),
        ("payload_with_line_ends", QUIET + b"SUB a 1\r\nPUB a 8\r\na\r\nPING\n\r\n"),
        ("reply_subject", QUIET + b"SUB a 1\r\nPUB a to.me 1\r\nx\r\n"),
        ("empty_header_block", QUIET + b"SUB a 1\r\nHPUB a 12 12\r\nNATS/1.0\r\n\r\n\r\n"),
        ("headers", QUIET + b"SUB a 1\r\nHPUB a r 18 20\r\nNATS/1.0\r\nA: b\r\n\r\nhi\r\n"),
        ("header_block_is_not_looked_at", QUIET + b"SUB a 1\r\nHPUB a 5 7\r\nhellohi\r\n"),
        ("header_size_zero", QUIET + b"SUB a 1\r\nHPUB a 0 2\r\nhi\r\n"),
        ("ok_from_a_client", QUIET + b"+OK\r\nSUB a 1\r\n"),
        ("info_from_a_client", QUIET + b'INFO {"a":1}\r\nSUB a 1\r\nPUB a 1\r\nx\r\n'),
        ("pong_from_a_client", QUIET + b"PONG\r\nPONG\r\n"),
        ("sub_same_sid_twice", QUIET + b"SUB a 1\r\nSUB b 1\r\nPUB a 1\r\nx\r\nPUB b 1\r\ny\r\n"),
        ("sid_is_any_token", QUIET + b"SUB a z-9_$\r\nPUB a 1\r\nx\r\n"),
        ("two_subscriptions_of_one_subject", QUIET + b"SUB a 1\r\nSUB a 2\r\nPUB a 1\r\nx\r\n"),
        ("unsub_unknown_sid", QUIET + b"UNSUB 77\r\nUNSUB 78 5\r\n"),
        ("unsub_stops_delivery", QUIET + b"SUB a 1\r\nPUB a 1\r\nx\r\nUNSUB 1\r\nPUB a 1\r\ny\r\n"),
        ("unsub_after_two", QUIET + b"SUB a 1\r\nUNSUB 1 2\r\n" + b"PUB a 1\r\nx\r\n" * 4),
        (
            "unsub_max_counts_from_the_start",
            QUIET + b"SUB a 1\r\n" + pub("a", b"x") * 3 + b"UNSUB 1 4\r\n" + pub("a", b"y") * 3,
        ),
        ("unsub_max_already_passed", QUIET + b"SUB a 1\r\n" + pub("a", b"x") * 3 + b"UNSUB 1 2\r\n" + pub("a", b"y")),
        ("sid_free_after_unsub", QUIET + b"SUB a 1\r\nUNSUB 1\r\nSUB b 1\r\nPUB b 1\r\nx\r\n"),
        ("echo_off", b'CONNECT {"verbose":false,"pedantic":false,"echo":false}\r\nSUB a 1\r\nPUB a 1\r\nx\r\n'),
        ("sub_malformed_subjects", QUIET + b"SUB a..b 1\r\nSUB .a 2\r\nSUB a. 3\r\nSUB a.>.b 4\r\nSUB > 5\r\n"),
        (
            "sub_star_inside_a_token_is_literal",
            QUIET + b"SUB a* 1\r\nSUB a.b> 2\r\nPUB a* 1\r\nx\r\nPUB ab 1\r\ny\r\nPUB a.b> 1\r\nz\r\n",
        ),
        (
            "pedantic_publish",
            b'CONNECT {"verbose":false,"pedantic":true}\r\nSUB a.> 1\r\nPUB a.* 1\r\nx\r\nPUB a..b 1\r\ny\r\n',
        ),
        (
            "publish_is_not_validated",
            QUIET + b"SUB a.> 1\r\nSUB a.* 2\r\nPUB a.* 1\r\nx\r\nPUB a..b 1\r\ny\r\nPUB a. 1\r\nz\r\n",
        ),
        ("subjects_are_case_sensitive", QUIET + b"SUB Foo 1\r\nPUB foo 1\r\nx\r\nPUB Foo 1\r\ny\r\n"),
        ("subjects_in_utf8", QUIET + "SUB über.* 1\r\nPUB über.größe 1\r\nx\r\n".encode()),
        ("publish_to_an_ack_subject_reply", QUIET + b"SUB a 1\r\nPUB a $JS.ACK.x 1\r\ny\r\n"),
        ("publish_below_nrg", QUIET + b"PUB $NRG.x 1\r\ny\r\n"),
        ("sys_queue_group_is_refused", QUIET + b"SUB a _sys_ 1\r\n"),
    ]
)
def exchange(t: Script, sent: bytes) -> None:
    wire = t.connect_bare()
    wire.send(sent)
    t.frames("answer", wire.ping())


# Each row: data after which the server closes the connection.
@table(
    [
        ("unknown_verb", QUIET + b"HELLO\r\n"),
        ("unknown_verb_verbose", b"FOO bar\r\n"),
        ("empty_line", QUIET + b"\r\nPING\r\n"),
        ("msg_from_a_client", QUIET + b"MSG a 1 1\r\nx\r\n"),
        ("err_from_a_client", QUIET + b"-ERR 'x'\r\n"),
        ("connect_bad_json", b"CONNECT {nope\r\n"),
        ("connect_no_json", b"CONNECT \r\n"),
        ("connect_wrong_type", b'CONNECT {"verbose":"yes"}\r\n'),
        ("protocol_2", b'CONNECT {"verbose":false,"protocol":2}\r\n'),
        ("no_responders_without_headers", b'CONNECT {"verbose":false,"no_responders":true,"headers":false}\r\n'),
        ("account_field", b'CONNECT {"verbose":false,"account":"A"}\r\n'),
        ("payload_too_large", QUIET + b"PUB a 1048577\r\n"),
        ("payload_far_too_large", QUIET + b"PUB a 99999999999\r\n"),
        ("payload_size_overflow", QUIET + b"PUB a 99999999999999999999\r\n"),
        ("hpub_too_large", QUIET + b"HPUB a 12 1048577\r\n"),
        ("control_line_too_long", QUIET + b"SUB " + b"a" * 5000 + b" 1\r\n"),
        ("control_line_without_end", QUIET + b"PUB " + b"a" * 5000),
        ("payload_longer_than_said", QUIET + b"SUB a 1\r\nPUB a 1\r\nxy\r\nPING\r\n"),
        ("payload_end_wrong", QUIET + b"PUB a 1\r\nxyz"),
        ("pub_without_arguments", QUIET + b"PUB\r\n"),
        ("pub_without_size", QUIET + b"PUB a\r\n"),
        ("pub_too_many_arguments", QUIET + b"PUB a b c 1\r\nx\r\n"),
        ("pub_size_no_number", QUIET + b"PUB a x\r\n"),
        ("pub_negative_size", QUIET + b"PUB a -1\r\n\r\n"),
        (
            "hpub_without_headers_support",
            b'CONNECT {"verbose":false,"headers":false}\r\nHPUB a 12 12\r\nNATS/1.0\r\n\r\n\r\n',
        ),
        ("hpub_one_size", QUIET + b"HPUB a 12\r\nNATS/1.0\r\n\r\n\r\n"),
        ("hpub_header_larger_than_total", QUIET + b"HPUB a 14 12\r\nNATS/1.0\r\n\r\n\r\n"),
        ("hpub_negative_header", QUIET + b"HPUB a -1 12\r\nNATS/1.0\r\n\r\n\r\n"),
        ("sub_without_sid", QUIET + b"SUB a\r\n"),
        ("sub_too_many_arguments", QUIET + b"SUB a b c 1\r\n"),
        ("sub_without_arguments", QUIET + b"SUB\r\n"),
        ("unsub_without_sid", QUIET + b"UNSUB\r\n"),
        ("unsub_too_many_arguments", QUIET + b"UNSUB 1 2 3\r\n"),
        ("garbage", bytes(range(128, 256)) + b"\r\n"),
        ("zeros", bytes(64)),
        ("http", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
        ("hpub_before_connect", b"HPUB a 12 12\r\nNATS/1.0\r\n\r\n\r\n"),
    ]
)
def closes(t: Script, sent: bytes) -> None:
    wire = t.connect_bare()
    wire.send(sent)
    t.frames("answer", wire.until_closed())


@scenario
def unsub_with_a_bad_number(t: Script) -> None:
    wire = t.connect_bare()
    wire.send(QUIET + b"SUB a 1\r\nUNSUB 1 x\r\nPUB a 1\r\ny\r\n")
    try:
        t.frames("answer", wire.ping())
    except Closed:
        t.frames("closed after", list(wire.waiting))


@scenario
def largest_payload(t: Script) -> None:
    wire = t.connect()
    sid = wire.subscribe("big")
    wire.publish("big", b"x" * 1048576)
    t.note("size", len(wire.delivered(sid).data))
    wire.publish("big", b"x" * 1048000, headers={"A": "b"})
    frame = wire.delivered(sid)
    t.note("with headers", [len(frame.header), len(frame.data)])


@scenario
def longest_control_line(t: Script) -> None:
    wire = t.connect()
    subject = "s" * 4000
    sid = wire.subscribe(subject)
    wire.publish(subject, b"x")
    t.note("delivered", wire.delivered(sid).subject == subject)


# Each row: a subscription, and subjects. Recorded: the messages that arrive.
@table(
    [
        ("literal", "a.b.c", ["a.b.c", "a.b", "a.b.c.d", "a.b.C"]),
        ("star_last", "a.*", ["a.b", "a.c", "a", "a.b.c", "b.a"]),
        ("star_first", "*.a", ["b.a", "a.a", "a", "b.b.a"]),
        ("star_middle", "a.*.c", ["a.b.c", "a.c", "a.b.b.c", "a.*.c"]),
        ("stars", "*.*", ["a.b", "a", "a.b.c"]),
        ("rest", "a.>", ["a.b", "a.b.c.d.e", "a", "ab.c"]),
        ("all", ">", ["a", "a.b.c"]),
        ("star_and_rest", "*.b.>", ["a.b.c", "a.b", "a.c.c", "x.b.c.d"]),
        ("token_with_dollar", "$x.*", ["$x.1", "x.1"]),
    ]
)
def matching(t: Script, subscription: str, subjects: list[str]) -> None:
    wire = t.connect()
    wire.subscribe(subscription)
    for subject in subjects:
        wire.publish(subject, b"x")
    t.note("arrived", [frame.subject for frame in wire.ping()])


@scenario
def queue_group_gets_each_message_once(t: Script) -> None:
    publisher, *members = t.connect(), t.connect(), t.connect(), t.connect()
    for member in members:
        member.subscribe("q.>", "workers")
    plain = t.connect()
    plain.subscribe("q.*")
    for wire in (*members, plain):
        wire.ping()
    for n in range(60):
        publisher.publish(f"q.{n}", b"x")
    publisher.ping()
    got = [[frame.subject for frame in wire.ping()] for wire in members]
    t.note("together once", sorted(itertools.chain(*got), key=lambda s: int(s[2:])))
    t.note("each had some", all(got))
    t.note("order kept", all(list(g) == sorted(g, key=lambda s: int(s[2:])) for g in got))
    t.note("plain", len(plain.ping()))


@scenario
def two_queue_groups_and_a_plain_one(t: Script) -> None:
    wire = t.connect()
    sids = [wire.subscribe("x", "g1"), wire.subscribe("x", "g1"), wire.subscribe("x", "g2"), wire.subscribe("x")]
    for _ in range(20):
        wire.publish("x")
    by_sid = [frame.sid for frame in wire.ping()]
    t.note("g1", sum(by_sid.count(sid) for sid in sids[:2]))
    t.note("g2 and plain", [by_sid.count(sid) for sid in sids[2:]])


@scenario
def queue_member_without_echo_leaves_it_to_others(t: Script) -> None:
    silent, other = t.connect(echo=False), t.connect()
    silent.subscribe("x", "g")
    other.subscribe("x", "g")
    other.ping()
    for _ in range(10):
        silent.publish("x")
    silent.ping()
    t.note("other", len(other.ping()))


@scenario
def queue_unsub_with_max(t: Script) -> None:
    wire = t.connect()
    sid = wire.subscribe("x", "g")
    wire.unsubscribe(sid, 2)
    for _ in range(5):
        wire.publish("x")
    t.note("delivered", len(wire.ping()))


@scenario
def between_connections(t: Script) -> None:
    one, two = t.connect(), t.connect(headers=False, no_responders=False)
    sid_one, sid_two = one.subscribe("x.*"), two.subscribe("x.>")
    two.ping()
    one.publish("x.1", b"body", "answer.here", {"A": "1", "B": "2"})
    one.ping()
    t.note("with headers", len([f for f in one.waiting if f.sid == sid_one]))
    t.frames("without headers support", [two.delivered(sid_two)])


@scenario
def order_is_kept(t: Script) -> None:
    publisher, subscriber = t.connect(), t.connect()
    subscriber.subscribe("o.>")
    subscriber.ping()
    for n in range(500):
        publisher.publish(f"o.{n % 7}", str(n).encode())
    publisher.ping()
    t.note("order", [int(frame.data) for frame in subscriber.ping()] == list(range(500)))


@scenario
def request_and_reply(t: Script) -> None:
    asker, answerer = t.connect(), t.connect()
    sid = answerer.subscribe("service")
    answerer.ping()
    reply = asker.new_reply()
    asker.publish("service", b"question", reply)
    question = answerer.delivered(sid)
    answerer.publish(question.reply, b"answer")
    t.frames("both", [question, asker.message(reply)])


@scenario
def no_responders(t: Script) -> None:
    t.frames("503", [t.connect().request("nobody.home", b"x")])


@scenario
def no_responders_with_headers_in_the_request(t: Script) -> None:
    t.frames("503", [t.connect().request("nobody.home", b"x", {"A": "b"})])


@scenario
def no_responders_for_an_exact_subscription(t: Script) -> None:
    wire = t.connect()
    wire.subscribe("answer.to.me")
    wire.publish("nobody", b"", "answer.to.me")
    t.frames("503", wire.ping())


@scenario
def no_responders_only_when_asked_for(t: Script) -> None:
    wire = t.connect(no_responders=False)
    wire.subscribe("me")
    wire.publish("nobody", b"", "me")
    t.frames("nothing", wire.ping())


@scenario
def no_responders_not_without_own_subscription(t: Script) -> None:
    wire, other = t.connect(), t.connect()
    other.subscribe("me")
    other.ping()
    wire.publish("nobody", b"", "me")
    t.frames("sender", wire.ping())
    t.frames("other", other.ping())


@scenario
def no_responders_ends_when_somebody_listens(t: Script) -> None:
    wire = t.connect()
    sid = wire.subscribe("me")
    wire.subscribe("svc")
    wire.publish("svc", b"q", "me")
    t.frames("delivered", wire.ping())
    wire.unsubscribe("2")
    wire.publish("svc", b"q", "me")
    t.note("then 503", [(frame.sid == sid, frame.status) for frame in wire.ping()])


@scenario
def split_at_every_byte(t: Script) -> None:
    wire = t.connect_bare()
    text = LIKE_A_LIBRARY + b"SUB a.* 1\r\nPUB a.b r 5\r\nhe\r\no\r\nHPUB a.c 18 20\r\nNATS/1.0\r\nA: b\r\n\r\nhi\r\n"
    for n in range(len(text)):
        wire.send(text[n : n + 1])
    t.frames("answer", wire.ping())


@scenario
def messages_for_a_closed_connection_are_dropped(t: Script) -> None:
    gone, publisher = t.connect(), t.connect()
    gone.subscribe("x")
    gone.ping()
    gone.close()
    for _ in range(50):
        publisher.publish("x", b"y")
    t.frames("publisher", publisher.ping())


@scenario
def many_commands_in_one_packet(t: Script) -> None:
    wire = t.connect()
    wire.subscribe("p.*")
    wire.send(b"".join(pub(f"p.{n}", b"z" * (n % 40)) for n in range(2000)))
    frames = wire.ping()
    t.note("all", [(f.subject, len(f.data)) for f in frames] == [(f"p.{n}", n % 40) for n in range(2000)])


def _connected(fields: dict[str, Any]) -> bytes:
    return b"CONNECT " + json.dumps(fields).encode() + b"\r\n"


@table(
    [
        ("user_on_an_open_server", {"user": "a", "pass": "b"}),
        ("token_on_an_open_server", {"auth_token": "t"}),
        ("name_lang_version", {"name": "n", "lang": "go", "version": "1.2.3", "protocol": 1}),
        ("null_fields", {"name": None, "user": None}),
        ("tls_required_false", {"tls_required": False}),
    ]
)
def connects(t: Script, fields: dict[str, Any]) -> None:
    wire = t.connect_bare()
    wire.send(_connected({"verbose": False, "pedantic": False, **fields}) + b"SUB a 1\r\nPUB a 1\r\nx\r\n")
    t.frames("answer", wire.ping())


# ------------------------------------------------------------------------------------------------ tokens
TOKENS = Setup(
    """
max_subscription_tokens: 3
accounts { A { users: [
  {user: a, password: p}
  {user: denied, password: p, permissions { subscribe { deny: "x.>" } }}
] } }
""",
    (("a", "A"), ("denied", "A")),
)


@configured(TOKENS)
def subscriptions_with_more_tokens_than_allowed(t: Script) -> None:
    for user in ("a", "denied"):
        wire = t.as_user(user).wire
        for subject in ("a.b.c", "a.b.c.d", "a.b.>", "a.b.c.>", "x.a.b.c.d", "a..b.c", "....", "a.b.c.d group"):
            wire.send(f"SUB {subject} 7\r\n".encode())
            t.frames(f"{user} subscribes {subject}", wire.ping())
    with_replies = t.as_user("a").wire
    with_replies.publish("a.b.c.d.e.f", b"publishing has no limit")
    t.frames("published", with_replies.ping())
