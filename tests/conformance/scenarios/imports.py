"""Scenarios of messages and requests between accounts over exports and imports, without JetStream's own subjects."""

from __future__ import annotations

import time
from typing import Any

from tests.conformance.harness import Script, configured, table
from tests.pairs import Setup
from tests.wire import Frame, Wire

_CONFIG = """\
accounts {
  E { users: [{user: e, password: p}], jetstream: enabled
    mappings: { "moved.from": "moved.to" }
    exports: [
      {stream: "ev.>"}, {stream: "tw.*.*"}, {stream: "lit"}, {stream: "part.*.x", account_token_position: 2}
      {stream: "mine.>", accounts: [I]}
      {service: "one"}, {service: "one.*.*"}, {service: "rest.>"}, {service: "sh"}, {service: "moved.from"}
      {service: "many", response_type: stream}, {service: "chunks", response_type: chunked}
      {service: "quick", threshold: "200ms"}, {service: "quick.many", response_type: stream, threshold: "200ms"}
      {service: "tok.*.get", account_token_position: 2}, {service: "both.>"}
      {service: "$JS.API.>", response_type: stream}
      {service: "timed", latency: "timing"}, {service: "timed.shared", latency: {subject: "timing", sampling: 100}}
      {service: "timed.chosen", latency: {subject: "timing", sampling: headers}}
      {service: "timed.quick", threshold: "200ms", latency: "timing"}
      {service: "seen", allow_trace: true}, {stream: "tr.>"}
      {service: "stored"}, {service: "stored.seen", allow_trace: true}
    ]
  }
  I { users: [{user: i, password: p}], jetstream: enabled
    imports: [
      {stream: {account: E, subject: "ev.>"}, prefix: via}
      {stream: {account: E, subject: "ev.a.*"}, to: "mapped.$1"}
      {stream: {account: E, subject: "tw.*.*"}, to: "turned.$2.x.$1"}
      {stream: {account: E, subject: "lit"}}, {stream: {account: E, subject: "part.I.x"}, to: "part"}
      {stream: {account: E, subject: "mine.sub.>"}}
      {service: {account: E, subject: "one"}}, {service: {account: E, subject: "one.*.*"}, to: "got.$2.$1"}
      {service: {account: E, subject: "rest.>"}, to: "all.>"}
      {service: {account: E, subject: "rest.just"}, to: "just.*"}
      {service: {account: E, subject: "sh"}, share: true}, {service: {account: E, subject: "moved.from"}, to: "moved"}
      {service: {account: E, subject: "many"}}, {service: {account: E, subject: "chunks"}}
      {service: {account: E, subject: "quick"}}, {service: {account: E, subject: "quick.many"}}
      {service: {account: E, subject: "tok.I.get"}, to: "tok"}
      {service: {account: E, subject: "$JS.API.>"}, to: "far.>"}
      {service: {account: E, subject: "timed"}}, {service: {account: E, subject: "timed.shared"}, share: true}
      {service: {account: E, subject: "seen"}}, {stream: {account: E, subject: "tr.>"}, allow_trace: true}
      {service: {account: E, subject: "stored"}}, {service: {account: E, subject: "stored.seen"}}
      {service: {account: E, subject: "timed.chosen"}}, {service: {account: E, subject: "timed.quick"}}
      {service: {account: E, subject: "both.x"}}, {service: {account: E, subject: "both.>"}}
    ]
    exports: [{service: "one"}, {service: "got.>"}, {stream: "via.>"}]
  }
  N { users: [{user: n, password: p}]
    imports: [
      {service: {account: I, subject: "one"}, to: "next"}, {service: {account: I, subject: "got.*.k"}, to: "next.*"}
      {stream: {account: I, subject: "via.>"}, prefix: again}
    ]
    exports: [{service: "next"}]
  }
  L { users: [{user: l, password: p}], imports: [{service: {account: N, subject: "next"}, to: "last", share: true}] }
  # Another account's JetStream in the place of its own, of none, and of a part of its own.
  R { users: [{user: r, password: p}], jetstream: enabled
    imports: [{service: {account: E, subject: "$JS.API.>"}}, {service: {account: E, subject: "stored"}}] }
  Q { users: [{user: q, password: p}], imports: [{service: {account: E, subject: "$JS.API.>"}}] }
  P { users: [{user: p, password: p}], jetstream: enabled
    exports: [{service: "own"}], imports: [{service: {account: E, subject: "$JS.API.STREAM.NAMES"}}] }
  # Parts of another account's JetStream, without JetStream of its own: with and without `$JS.API.INFO` among them.
  T { users: [{user: t, password: p}]
    imports: [{service: {account: E, subject: "$JS.API.INFO"}}
              {service: {account: E, subject: "$JS.API.CONSUMER.INFO.S.c"}}] }
  U { users: [{user: u, password: p}], imports: [{service: {account: E, subject: "$JS.API.CONSUMER.INFO.S.c"}}] }
  V { users: [{user: v, password: p}], imports: [{service: {account: E, subject: "$JS.API.*"}}] }
  S { users: [{user: s, password: p}], exports: [{service: x}]
    imports: [{service: {account: S, subject: x}}, {service: {account: S, subject: x}, to: y}]
  }
}
"""

IMPORTS = Setup(_CONFIG, (("e", "E"), ("i", "I")))

SUBJECTS = (
    "ev.a.b",
    "ev.a",
    "ev.x.y.z",
    "ev",
    "tw.1.2",
    "tw.1",
    "lit",
    "part.I.x",
    "part.O.x",
    "mine.sub.1",
    "mine.other.1",
    "via.ev.a.b",
)


def listener(t: Script, user: str, *subjects: str, queue: str = "") -> Wire:
    wire = t.connect(user=user)
    for subject in subjects:
        wire.subscribe(subject, queue)
    turn(wire)
    return wire


def turn(wire: Wire) -> None:
    """Wait until the server has processed everything sent; keep frames received meanwhile."""
    wire.waiting.extend(wire.ping())


def came(t: Script, label: str, wire: Wire, count: int = 0) -> list[Frame]:
    """Record the received frames: those within two round trips, or `count` messages within a second."""
    frames = [*wire.ping(), *wire.ping()]
    deadline = time.monotonic() + 1
    while len(frames) < count and time.monotonic() < deadline:
        frames += wire.ping()
    # Messages of one publisher are in order within a subscription, but not across subscriptions.
    for frame in frames:
        if frame.subject == "trace":
            _trace(t, frame)
    frames = [frame for frame in frames if frame.subject != "trace"]
    shown = sorted((frame for frame in frames), key=lambda frame: (int(frame.sid), frame.subject, frame.reply[:4]))
    t.note(label, [(frame.sid, t.show(frame)) for frame in shown])
    return frames


def _trace(t: Script, frame: Frame) -> None:
    """Record a trace without parts that differ between runs."""
    told = frame.json()
    for event in told["events"]:
        event.pop("ts")
        if "cid" in event:
            event["cid"] = "<cid>"
    t.note("trace", [told["request"]["header"], sorted(told["events"], key=str)])


# ---- stream imports


@table(
    [
        (listens, listens)
        for listens in (
            ">",
            "*",
            "via.>",
            "via.ev.>",
            "via.ev.*",
            "via.ev.a.*",
            "via.ev.a.b",
            "via.*.a.b",
            "*.ev.a.>",
            "*.*.a.b",
            "via.*",
            "ev.>",
            "mapped.*",
            "mapped.b",
            "mapped.>",
            "mapped.c",
            "turned.>",
            "turned.*.*.*",
            "turned.2.x.1",
            "turned.1.x.2",
            "turned.*.x.1",
            "turned.2.*.*",
            "turned.*.y.*",
            "lit",
            "part",
            "part.>",
            "mine.>",
            "mine.sub.1",
            "mine.*.1",
            "mine.other.>",
        )
    ],
    IMPORTS,
)
def what_a_subscription_hears(t: Script, listens: str) -> None:
    wire = listener(t, "i", listens)
    publisher = t.connect(user="e")
    for subject in SUBJECTS:
        publisher.publish(subject, subject.encode(), "answer.here")
    turn(publisher)
    came(t, "heard", wire)
    own = t.connect(user="i")
    own.publish("via.ev.a.b", b"own")
    own.publish("mapped.b", b"own")
    turn(own)
    came(t, "own", wire)


@configured(IMPORTS)
def one_hop_only(t: Script) -> None:
    next_account = listener(t, "n", "again.>", "via.>")
    importer = listener(t, "i", "via.>")
    publisher = t.connect(user="e")
    publisher.publish("ev.1", b"m")
    turn(publisher)
    came(t, "importer", importer)
    came(t, "next", next_account)
    importer.publish("via.own", b"m")
    turn(importer)
    came(t, "next, what the importer publishes", next_account)


@configured(IMPORTS)
def an_unsubscription_ends_an_import(t: Script) -> None:
    wire = t.connect(user="i")
    sid = wire.subscribe("via.>")
    turn(wire)
    publisher = t.connect(user="e")
    publisher.publish("ev.1", b"m")
    turn(publisher)
    came(t, "while it lasts", wire)
    wire.unsubscribe(sid)
    turn(wire)
    publisher.publish("ev.1", b"m")
    turn(publisher)
    came(t, "never", wire)


@configured(IMPORTS)
def a_maximum_counts_what_is_imported(t: Script) -> None:
    wire = t.connect(user="i")
    sid = wire.subscribe("via.>")
    wire.unsubscribe(sid, 2)
    turn(wire)
    publisher = t.connect(user="e")
    for number in range(3):
        publisher.publish(f"ev.{number}", b"m")
    turn(publisher)
    came(t, "at most two", wire)


@configured(IMPORTS)
def a_queue_group_over_an_import(t: Script) -> None:
    members = [listener(t, "i", "via.>", queue="g") for _ in range(2)]
    publisher = t.connect(user="e")
    for _ in range(60):
        publisher.publish("ev.1", b"m")
    turn(publisher)
    counts = [len(member.ping()) for member in members]
    t.note("all, each once", sum(counts))
    t.note("both members get some", all(counts))


@configured(IMPORTS)
def an_exporter_hears_no_importer(t: Script) -> None:
    exporter = listener(t, "e", ">")
    importer = t.connect(user="i")
    for subject in ("via.ev.1", "ev.1", "mapped.b", "lit"):
        importer.publish(subject, b"m")
    turn(importer)
    came(t, "heard", exporter)


@configured(IMPORTS)
def headers_and_replies_of_what_is_imported(t: Script) -> None:
    wire = listener(t, "i", "via.>", "mapped.*")
    publisher = t.connect(user="e")
    publisher.subscribe("back")
    publisher.publish("ev.a.b", b"m", "back", {"A": "1", "Nats-Request-Info": "{}"})
    turn(publisher)
    frames = came(t, "heard", wire)
    wire.publish(frames[0].reply, b"to nobody of the other account")
    turn(wire)
    came(t, "the exporter", publisher)


# ---- service imports


def serve(t: Script, *subjects: str, user: str = "e") -> Wire:
    return listener(t, user, *subjects)


@table(
    [
        (subject, subject)
        for subject in (
            "one",
            "one.a.b",
            "got.a.b",
            "got.a",
            "all.x",
            "all.x.y",
            "all",
            "just.x",
            "just.x.y",
            "sh",
            "tok",
            "tok.I.get",
            "many",
            "moved",
            "rest.just",
            "nothing",
        )
    ],
    IMPORTS,
)
def a_request_and_its_answer(t: Script, subject: str) -> None:
    server = t.connect(user="e", echo=False)
    server.subscribe(">")
    turn(server)
    client = t.connect(user="i", name="asks", lang="none", version="7")
    for headers in (None, {"A": "1"}, {"Nats-Request-Info": "mine", "A": "1"}):
        reply = client.new_reply()
        client.publish(subject, b"question", reply, headers)
        turn(client)
        for frame in came(t, "asked", server):
            server.publish(frame.reply, b"answer", "", {"B": "2"})
            turn(server)
        came(t, "answered", client)
    client.publish(subject, b"no reply wanted")
    turn(client)
    came(t, "told", server)


@table(
    [
        (f"{subject} {name}", subject, answers)
        for subject in ("one", "many", "chunks")
        for name, answers in (
            ("one", [(b"1", None)]),
            ("three", [(b"1", None), (b"2", None), (b"3", None)]),
            ("an empty one last", [(b"1", None), (b"", None), (b"late", None)]),
            ("an empty one with headers", [(b"", {"A": "1"}), (b"2", None)]),
            ("a status", [(b"", b"NATS/1.0 100 Idle\r\n\r\n"), (b"2", None), (b"", None), (b"late", None)]),
            ("an empty one alone", [(b"", None), (b"late", None)]),
        )
    ],
    IMPORTS,
)
def how_many_answers(t: Script, subject: str, answers: list[tuple[bytes, Any]]) -> None:
    server = serve(t, subject)
    client = t.connect(user="i")
    client.publish(subject, b"q", client.new_reply())
    turn(client)
    [asked] = came(t, "asked", server)
    for data, headers in answers:
        server.publish(asked.reply, data, "", headers)
    turn(server)
    came(t, "answered", client)


@table([(subject, subject) for subject in ("one", "many", "chunks")], IMPORTS)
def an_answer_that_asks_back(t: Script, subject: str) -> None:
    server = serve(t, subject, "more.*")
    client = t.connect(user="i")
    client.publish(subject, b"q", client.new_reply())
    turn(client)
    [asked] = came(t, "asked", server)
    server.publish(asked.reply, b"a", "more.1", {"B": "2"})
    turn(server)
    [answer] = came(t, "answered", client)
    for number in range(2):
        client.publish(answer.reply, b"%d" % number, client.new_reply())
        turn(client)
    came(t, "asked back", server)
    server.publish(asked.reply, b"2")
    turn(server)
    came(t, "answered again", client)


@table([(subject, subject) for subject in ("quick", "quick.many")], IMPORTS)
def an_answer_too_late(t: Script, subject: str) -> None:
    server = serve(t, subject)
    client = t.connect(user="i")
    client.publish(subject, b"q", client.new_reply())
    turn(client)
    [asked] = came(t, "asked", server)
    time.sleep(1)  # after twice the threshold, when nats-server has checked
    server.publish(asked.reply, b"late")
    turn(server)
    came(t, "answered", client)


@table([(subject, subject) for subject in ("one", "many")], IMPORTS)
def a_requester_that_has_gone(t: Script, subject: str) -> None:
    server = serve(t, subject)
    client = t.connect(user="i")
    sid = client.subscribe("here")
    client.publish(subject, b"q", "here")
    turn(client)
    [asked] = came(t, "asked", server)
    client.unsubscribe(sid)
    turn(client)
    server.publish(asked.reply, b"to nobody")
    turn(server)
    client.subscribe("here")
    turn(client)
    server.publish(asked.reply, b"back again")
    turn(server)
    came(t, "answered", client)


@configured(IMPORTS)
def empty_messages_end_no_pull(t: Script) -> None:
    owner, puller = t.as_user("e"), t.as_user("i")
    owner.stream("S", ["s"])
    owner.consumer("S", "c")
    owner.fill_seen("S", "c", ["s"] * 3, b"")
    wire = puller.wire
    wire.publish("far.CONSUMER.MSG.NEXT.S.c", b'{"batch":3,"no_wait":true}', wire.new_reply())
    came(t, "pulled", wire, 3)


@table([(user, user) for user in ("r", "q", "p", "t", "u", "v")], IMPORTS)
def the_api_of_another_in_the_place_of_the_own(t: Script, user: str) -> None:
    owner = t.as_user("e")
    owner.stream("S", ["stored"])
    if user in ("t", "u"):
        owner.consumer("S", "c")
    wire = t.connect(user=user)
    for subject, body in (
        ("STREAM.NAMES", b""),
        ("STREAM.INFO.S", b""),
        ("INFO", b""),
        ("CONSUMER.CREATE.S.c", b'{"stream_name":"S","config":{"durable_name":"c","ack_policy":"explicit"}}'),
        ("CONSUMER.INFO.S.c", b""),
        ("CONSUMER.NAMES.S", b""),
        ("STREAM.CREATE.NEW", b'{"name":"NEW","subjects":["new"],"storage":"memory"}'),
        ("STREAM.DELETE.NEW", b""),
        ("META.LEADER.STEPDOWN", b""),
        ("NOTHING", b""),
    ):
        wire.publish(f"$JS.API.{subject}", body, wire.new_reply())
        frames = [*wire.ping()]
        deadline = time.monotonic() + 0.1
        while time.monotonic() < deadline:
            frames += wire.ping()
        answers = [frame.json() if frame.data else t.show(frame) for frame in frames]
        for answer in answers:
            answer.pop("api", None)
        t.note(subject, sorted(answers, key=str))
    if user == "r":
        wire.publish("stored", b"m", wire.new_reply())
        came(t, "stored", wire, 1)


# ---- several accounts


@table([("two", "n", "next"), ("two, turned", "n", "next.v"), ("three", "l", "last")], IMPORTS)
def a_request_over_several_accounts(t: Script, user: str, subject: str) -> None:
    server = serve(t, "one", "one.*.*")
    between = serve(t, "one", "got.>", user="i")
    client = t.connect(user=user, name="asks", lang="none", version="7")
    client.publish(subject, b"q", client.new_reply(), {"A": "1"})
    turn(client)
    came(t, "between", between)
    for frame in came(t, "asked", server):
        server.publish(frame.reply, b"a", "", {"B": "2"})
    turn(server)
    came(t, "answered", client)


@table([(subject, subject) for subject in ("x", "y")], IMPORTS)
def a_service_of_the_account_itself(t: Script, subject: str) -> None:
    server = serve(t, "x", user="s")
    client = t.connect(user="s")
    client.publish(subject, b"q", client.new_reply())
    turn(client)
    frames = came(t, "asked", server)
    for number, frame in enumerate(sorted(frames, key=lambda frame: frame.reply)):
        server.publish(frame.reply, b"%d" % number)
    turn(server)
    t.note("answers", len(client.ping()))


@configured(IMPORTS)
def two_imports_of_one_subject(t: Script) -> None:
    server = serve(t, "both.x")
    client = t.connect(user="i")
    client.publish("both.x", b"q", client.new_reply())
    turn(client)
    frames = came(t, "asked", server)
    for frame in frames:
        server.publish(frame.reply, b"a")
    turn(server)
    came(t, "answered", client)


# ---- no responders


@table(
    [
        (f"{user} {subject} {where}", user, subject, where)
        for user, subject in (("i", "one"), ("i", "got.a.b"), ("i", "all.x"), ("n", "next"), ("l", "last"))
        for where in ("nobody", "importer", "importer in a group", "between", "exporter", "without reply")
    ],
    IMPORTS,
)
def who_hears_that_nobody_listens(t: Script, user: str, subject: str, where: str) -> None:
    if where.startswith("importer"):
        listener(t, user, subject, queue="g" if "group" in where else "")
    elif where == "between":
        listener(t, "i", "one")
    elif where == "exporter":
        listener(t, "e", ">")
    client = t.connect(user=user)
    client.publish(subject, b"q", "" if where == "without reply" else client.new_reply())
    turn(client)
    came(t, "heard", client)


@configured(IMPORTS)
def no_503_for_who_did_not_ask_for_it(t: Script) -> None:
    client = t.connect(user="i", no_responders=False)
    client.publish("one", b"q", client.new_reply())
    turn(client)
    came(t, "heard", client)


@configured(IMPORTS)
def reserved_replies_in_any_account(t: Script) -> None:
    for user in ("e", "i"):
        wire = t.connect(user=user)
        for reply in ("_R_.a.b", "$JS.ACK.S.c"):
            wire.publish("one", b"", reply)
        t.frames(user, wire.ping())


@configured(IMPORTS)
def answers_seen_in_the_exporters_account(t: Script) -> None:
    """Internal reply subjects are visible in the exporter's account, and only the answer in the importer's."""
    server = serve(t, "one")
    there, here = listener(t, "e", "_R_.>"), listener(t, "i", "_R_.>", "_INBOX.>")
    client = t.connect(user="i")
    client.publish("one", b"q", client.new_reply())
    turn(client)
    for frame in came(t, "asked", server):
        server.publish(frame.reply, b"a")
    turn(server)
    came(t, "there", there)
    came(t, "here", here)
    came(t, "answered", client)
