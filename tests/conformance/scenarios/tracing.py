"""Scenarios of message tracing.

Nats-Trace-Dest and the trace events (docs/internals/streams.md#publish-headers; ADR-41).
"""

from __future__ import annotations

import gzip
import json
from typing import Any

from tests.conformance.harness import Script, configured, scenario, table
from tests.pairs import Setup
from tests.wire import Frame, Headers, Wire, header_block

DEST, ONLY = "Nats-Trace-Dest", "Nats-Trace-Only"
TO = {DEST: "trace"}
ONLY_TO = {DEST: "trace", ONLY: "true"}
MSG_ID = "Nats-Msg-Id"
LAST, LAST_SUBJECT = "Nats-Expected-Last-Sequence", "Nats-Expected-Last-Subject-Sequence"

REFUSED: list[tuple[str, dict[str, Any], dict[str, str], bytes]] = [
    ("too_large", {"max_msg_size": 60}, {}, b"x" * 16),
    ("just_fits", {"max_msg_size": 60}, {}, b"x" * 15),
    ("headers_too_large", {}, {"Big": "y" * 66_000}, b""),
    ("other_stream", {}, {"Nats-Expected-Stream": "no"}, b""),
    ("last_sequence", {}, {LAST: "99"}, b""),
    ("last_sequence_no_number", {}, {LAST: "x"}, b""),
    ("last_sequence_negative", {}, {LAST: "-1"}, b""),
    ("last_subject_sequence", {}, {LAST_SUBJECT: "7"}, b""),
    ("last_subject_sequence_no_number", {}, {LAST_SUBJECT: "x"}, b""),
    ("last_sequence_of_others", {}, {LAST_SUBJECT: "7", f"{LAST_SUBJECT}-Subject": "s.*"}, b""),
    ("both_sequences", {}, {LAST_SUBJECT: "7", LAST: "9"}, b""),
    ("subject_alone", {}, {f"{LAST_SUBJECT}-Subject": "s.2"}, b""),
    ("last_id", {}, {"Nats-Expected-Last-Msg-Id": "q"}, b""),
    ("rollup_off", {}, {"Nats-Rollup": "sub"}, b""),
    ("rollup_invalid", {"allow_rollup_hdrs": True}, {"Nats-Rollup": "X"}, b""),
    ("ttl_off", {}, {"Nats-TTL": "5"}, b""),
    ("ttl_invalid", {"allow_msg_ttl": True}, {"Nats-TTL": "x"}, b""),
    ("incr_off", {}, {"Nats-Incr": "1"}, b""),
    ("incr_invalid", {}, {"Nats-Incr": "x"}, b""),
    ("schedule_off", {}, {"Nats-Schedule": "@every 1s"}, b""),
    ("scheduler", {}, {"Nats-Scheduler": "a"}, b""),
    ("source", {}, {"Nats-Stream-Source": "a"}, b""),
    ("batch_off", {}, {"Nats-Batch-Id": "q", "Nats-Batch-Sequence": "1"}, b""),
    ("no_room", {"discard": "new", "max_msgs": 1}, {}, b""),
]

DESTINATIONS = [
    "trace.*",
    "trace.>",
    "trace. x",
    "trace x",
    "trace.",
    ".trace",
    "",
    "trace ",
    "trace disabled",
    "*",
    "träce",
]


class Listener:
    """Second connection, which receives the traces."""

    def __init__(self, t: Script, subject: str = "trace") -> None:
        self.t = t
        self.wire = t.connect()
        self.sid = self.wire.subscribe(subject)
        self.wire.ping()
        self.names: dict[int, str] = {t.wire.info["client_id"]: "<main>", self.wire.info["client_id"]: "<listener>"}

    def call(self, wire: Wire, name: str) -> None:
        """Record this connection's number as `name`."""
        self.names[wire.info["client_id"]] = name

    def seen(self, label: str = "trace") -> None:
        """Record the next trace without parts that differ between runs."""
        frame = self.wire.delivered(self.sid)
        self.t.note(label, self.shown(frame))

    def shown(self, frame: Frame, body: bytes | None = None) -> Any:
        trace = json.loads(frame.data if body is None else body)
        server = trace.pop("server")
        trace["server"] = {name: server[name] for name in ("name", "host", "ver", "jetstream")}
        trace["server"] |= {"times": "time" in server, "counts": isinstance(server["seq"], int)}
        for event in trace["events"]:
            event["ts"] = "ts" in event
            if "cid" in event:
                event["cid"] = self.names.get(event["cid"], event["cid"])
        return {"reply": frame.reply, "header": frame.header, "trace": trace}

    def silent(self) -> None:
        """Record that there was no trace of the messages published before; the publisher has its answer already."""
        self.t.wire.ping()
        self.t.wire.publish("trace", b"fence")
        frame = self.wire.delivered(self.sid)
        self.t.note("no trace", frame.data)


def _answered(t: Script, subject: str, headers: Headers, data: bytes = b"x") -> None:
    frame = t.wire.request(subject, data, headers)
    answer = frame.json() if frame.data.startswith(b"{") else None
    if isinstance(answer, dict) and "type" in answer:
        t.note(f"answer on {subject}", answer["type"])
    else:
        t.frames(f"answer on {subject}", [frame])


def _unanswered(t: Script, to: Listener, subject: str, headers: Headers, data: bytes = b"x") -> None:
    """Publish with a reply; record the trace, and that the publisher gets nothing before or with it."""
    wire = t.wire
    reply = wire.new_reply()
    wire.publish(subject, data, reply, headers)
    to.seen(f"trace of {subject} {headers!r}")
    t.frames("no answer", [frame for frame in wire.ping() if frame.subject == reply])


# ------------------------------------------------------------------------------------------------ core subscribers
@scenario
def to_a_subscriber(t: Script) -> None:
    to = Listener(t)
    sid = t.wire.subscribe("core.*")
    t.wire.publish("core.x", b"hi", headers=TO)
    to.seen()
    t.frames("delivered", [t.wire.delivered(sid)])
    t.wire.publish("core.x", b"hi", headers=ONLY_TO)
    to.seen("trace only")
    t.frames("nothing", [frame for frame in t.wire.ping() if frame.sid == sid])


@scenario
def to_nobody(t: Script) -> None:
    to = Listener(t)
    _answered(t, "nobody", TO)
    to.seen()
    _answered(t, "nobody", ONLY_TO)
    to.seen()
    t.wire.publish("nobody", b"", headers=TO)
    to.seen()


@scenario
def to_names_and_queues(t: Script) -> None:
    to = Listener(t)
    named = t.connect(name="named")
    to.call(named, "<named>")
    named.subscribe("core", "workers")
    named.ping()
    t.wire.subscribe("core")
    t.wire.ping()
    t.wire.publish("core", b"x", headers=TO)
    to.seen()
    named.publish("core", b"x", headers=ONLY_TO)
    to.seen("by a named client")


@scenario
def without_echo(t: Script) -> None:
    to = Listener(t)
    quiet = t.connect(echo=False, name="quiet")
    to.call(quiet, "<quiet>")
    quiet.subscribe("core")
    quiet.publish("core", b"x", headers=TO)
    to.seen()
    quiet.publish("core", b"x", headers=ONLY_TO)
    to.seen()


@scenario
def a_subscription_that_ends(t: Script) -> None:
    to = Listener(t)
    sid = t.wire.subscribe("core")
    t.wire.unsubscribe(sid, 1)
    for headers in (ONLY_TO, TO, TO):
        t.wire.publish("core", b"x", headers=headers)
        to.seen()


@scenario
def the_destination_itself(t: Script) -> None:
    to = Listener(t, "trace.>")
    t.wire.publish("trace.a", b"x", headers={DEST: "trace.b"})
    t.frames("message", [to.wire.delivered(to.sid)])
    to.seen()


@scenario
def into_a_stream_of_traces(t: Script) -> None:
    t.stream("TRACES", ["trace"])
    to = Listener(t)
    t.wire.publish("nobody", b"x", headers=TO)
    to.seen()
    t.wire.request("nobody")
    assert t.wire.api("STREAM.INFO.TRACES")["state"]["messages"] == 1


@table([(f"n{number}", dest) for number, dest in enumerate(DESTINATIONS)])
def destination(t: Script, dest: str) -> None:
    to = Listener(t, ">")
    t.stream("S", ["s"])
    while to.wire.ping():
        pass
    headers = {DEST: dest}
    t.publish("s", b"x", headers)
    t.api("STREAM.MSG.GET.S", {"seq": 1})
    if dest.strip() in ("träce", "trace"):
        frame = to.wire.next(lambda frame: frame.subject == dest.strip())
        t.note("trace", to.shown(frame))


@scenario
def headers_as_they_are_shown(t: Script) -> None:
    to = Listener(t)
    for lines in (
        b"Foo:x\r\nNats-Trace-Dest:   trace\r\nA: b\r\nfoo:  y \r\nFoo: z\r\nNats-Trace-Dest: other\r\nE:\r\n",
        b"Nats-Trace-Dest: trace\r\nnocolon\r\nE: 1\r\n F: 2\r\nG : 3\r\n:x\r\nH:\t4\r\nNats-Trace-Dest:\r\n",
        b"Nats-Trace-Dest:\r\nNats-Trace-Dest: trace\r\n",
        b"Nats-Trace-Only: true\r\nNats-Trace-Only: false\r\nNats-Trace-Dest: trace\r\n",
        b"Nats-Trace-Only:  TRue \r\nNats-Trace-Dest: trace\r\n",
        b"Nats-Trace-Dest: trace\r\nA: \xc3\xa4\r\n",
        b"Nats-Trace-Dest: trace\r\nNats-Trace-Hop: 7\r\n",
        b"Nats-Trace-Dest: trace\r\ntraceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n",
    ):
        t.wire.publish("nobody", b"xyz", headers=b"NATS/1.0\r\n" + lines + b"\r\n")
        to.seen()


@table(
    [
        ("status", b"NATS/1.0 503 no\r\nNats-Trace-Dest: trace\r\n\r\n"),
        ("lower", b"NATS/1.0\r\nnats-trace-dest: trace\r\n\r\n"),
        ("blank", b"NATS/1.0\r\nNats-Trace-Dest : trace\r\n\r\n"),
        ("inside", b"NATS/1.0\r\nX-Nats-Trace-Dest: trace\r\n\r\n"),
        ("account", b"NATS/1.0\r\nNats-Trace-Dest: trace\r\nNats-Trace-Origin-Account: $G\r\n\r\n"),
        ("traceparent", header_block({"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"})),
    ]
)
def not_traced(t: Script, block: bytes) -> None:
    to = Listener(t)
    sid = t.wire.subscribe("core")
    t.wire.publish("core", b"x", headers=block)
    t.frames("delivered", [t.wire.delivered(sid)])
    to.silent()


@table([(word or "none", word) for word in ("true", "TRUE", "1", "on", "false", "0", "yes", "off", "")])
def only(t: Script, word: str) -> None:
    to = Listener(t)
    sid = t.wire.subscribe("core")
    t.wire.publish("core", b"x", headers={DEST: "trace", ONLY: word})
    to.seen()
    t.frames("delivered", [frame for frame in t.wire.ping() if frame.sid == sid])


@table([(coding.replace(", ", "_"), coding) for coding in ("gzip", "GZIP", "deflate, gzip", "br", "identity")])
def encoding(t: Script, coding: str) -> None:
    to = Listener(t)
    t.wire.publish("nobody", b"x", headers={DEST: "trace", "Accept-Encoding": coding})
    frame = to.wire.delivered(to.sid)
    body = gzip.decompress(frame.data) if b"gzip" in frame.header else frame.data
    t.note("trace", to.shown(frame, body))


@table([("snappy", "snappy"), ("s2", "s2"), ("either", "gzip, S2")])
def encoding_snappy(t: Script, coding: str) -> None:
    to = Listener(t)
    t.wire.publish("nobody", b"x", headers={DEST: "trace", "Accept-Encoding": coding})
    frame = to.wire.delivered(to.sid)
    t.note("trace", [frame.header, frame.data[:10]])


# ------------------------------------------------------------------------------------------------ streams
@scenario
def into_a_stream(t: Script) -> None:
    to = Listener(t)
    t.stream("S", ["s.*"], storage="file")
    t.publish("s.1", b"a", TO)
    to.seen()
    t.publish("s.1", b"b", {"A": "b", **TO, "C": "d"})
    to.seen()
    t.wire.publish("s.2", b"c", headers=TO)
    to.seen("without a reply")
    _unanswered(t, to, "s.3", ONLY_TO)
    for seq in (1, 2, 3):
        t.api("STREAM.MSG.GET.S", {"seq": seq})
    t.state("S")


@scenario
def only_the_first_destination_is_disabled(t: Script) -> None:
    to = Listener(t)
    t.stream("S", ["s"])
    t.publish("s", b"x", b"NATS/1.0\r\nFoo:x\r\nNats-Trace-Dest:  trace\r\nA: b\r\nNats-Trace-Dest: other\r\n\r\n")
    to.seen()
    t.api("STREAM.MSG.GET.S", {"seq": 1})


@scenario
def a_subscriber_and_a_stream(t: Script) -> None:
    to = Listener(t)
    sid = t.wire.subscribe("s")
    t.stream("S", ["s"])
    t.publish("s", b"x", TO)
    t.frames("delivered", [t.wire.delivered(sid)])
    frame = to.shown(to.wire.delivered(to.sid))
    frame["trace"]["events"].sort(key=lambda event: event["type"])
    t.note("trace", frame)


@table(REFUSED)
def into_a_stream_that_judges(t: Script, config: dict[str, Any], headers: dict[str, str], data: bytes) -> None:
    to = Listener(t)
    t.stream("S", ["s.*"], **config)
    if config.get("discard") == "new":
        t.fill(["s.0"])
    t.publish("s.1", data, {**TO, **headers})
    to.seen()
    t.wire.publish("s.1", data, headers={**ONLY_TO, **headers})
    to.seen("only")
    t.state("S")


@scenario
def into_a_sealed_stream(t: Script) -> None:
    to = Listener(t)
    t.stream("S", ["s"])
    t.setup("STREAM.UPDATE.S", {"name": "S", "subjects": ["s"], "storage": "memory", "sealed": True})
    t.publish("s", b"x", TO)
    to.seen()


@scenario
def duplicates(t: Script) -> None:
    to = Listener(t)
    t.stream("S", ["s"])
    for headers, answered in ((ONLY_TO, False), (ONLY_TO, False), (TO, True), (TO, True), (ONLY_TO, True)):
        fields = {**headers, MSG_ID: "i"}
        if answered:
            t.publish("s", b"x", fields)
        else:
            _unanswered(t, to, "s", fields)
            continue
        to.seen()
    t.state("S")


@scenario
def nobody_is_interested(t: Script) -> None:
    to = Listener(t)
    t.stream("S", ["s.*"], retention="interest")
    t.publish("s.1", b"x", TO)
    to.seen()
    t.consumer("S", "C", filter_subject="s.1")
    for subject in ("s.1", "s.2"):
        t.publish(subject, b"x", TO)
        to.seen()
        _unanswered(t, to, subject, ONLY_TO)
    t.state("S")


@scenario
def a_subject_that_is_changed(t: Script) -> None:
    to = Listener(t)
    again = t.wire.subscribe("again.*")
    change = {"src": "s.*", "dest": "u.$1"}
    t.stream("S", ["s.*"], subject_transform=change, republish={"src": "u.*", "dest": "again.$1"})
    t.publish("s.1", b"x", TO)
    to.seen()
    t.frames("again", [t.wire.delivered(again)])
    _unanswered(t, to, "s.1", ONLY_TO)
    t.frames("not again", [frame for frame in t.wire.ping() if frame.sid == again])


@scenario
def no_ack(t: Script) -> None:
    to = Listener(t)
    t.stream("S", ["s"], no_ack=True)
    for headers in (TO, ONLY_TO, {**TO, LAST: "99"}):
        _unanswered(t, to, "s", headers)
    t.state("S")


@scenario
def delivered_by_a_consumer_it_is_not_traced_again(t: Script) -> None:
    to = Listener(t)
    t.stream("S", ["s"])
    t.consumer("S", "C")
    t.publish("s", b"x", TO)
    to.seen()
    t.state_when("S", lambda state: state["messages"] == 1)
    t.pull("S", "C", {"batch": 1}, 1)
    to.silent()


@scenario
def an_atomic_batch_tells_with_its_commit(t: Script) -> None:
    to = Listener(t)
    t.stream("S", ["s.*"], allow_atomic=True)
    batch = {**TO, "Nats-Batch-Id": "b"}
    t.publish("s.1", b"a", {**batch, "Nats-Batch-Sequence": "1"})
    t.publish("s.2", b"b", {**batch, "Nats-Batch-Sequence": "2"})
    to.silent()
    t.publish("s.3", b"c", {**batch, "Nats-Batch-Sequence": "3", "Nats-Batch-Commit": "1"})
    to.seen()
    for seq in (1, 3):
        t.api("STREAM.MSG.GET.S", {"seq": seq})


def _batch(number: int, commit: str = "", **more: str) -> dict[str, str]:
    fields = {**TO, "Nats-Batch-Id": "b", "Nats-Batch-Sequence": str(number)}
    return fields | ({"Nats-Batch-Commit": commit} if commit else {}) | more


@table(
    [
        ("gap", [_batch(1), _batch(3)]),
        ("unknown", [_batch(2)]),
        ("id", [_batch(1) | {"Nats-Batch-Id": "x" * 65}]),
        ("commit", [_batch(1), _batch(2, "no")]),
        ("end_only", [_batch(1, "eob")]),
        ("end", [_batch(1), _batch(2, "eob")]),
        ("single", [_batch(1, "1")]),
        ("last_sequence", [_batch(1) | {LAST: "77"}, _batch(2, "1")]),
        ("unsupported", [_batch(1) | {"Nats-Expected-Last-Msg-Id": "i"}, _batch(2, "1")]),
        ("duplicate", [_batch(1) | {MSG_ID: "i"}, _batch(2, "1") | {MSG_ID: "i"}]),
    ]
)
def an_atomic_batch(t: Script, members: list[dict[str, str]]) -> None:
    to = Listener(t)
    t.stream("S", ["s"], allow_atomic=True)
    for headers in members[:-1]:
        t.publish("s", b"x", headers)
    t.publish("s", b"x", members[-1])
    to.seen()
    to.silent()
    t.state("S")


@scenario
def a_fast_batch(t: Script) -> None:
    to = Listener(t)
    t.stream("S", ["s"], allow_batched=True)
    answers = t.connect()
    answers.subscribe("fast.>")
    answers.ping()
    for number, operation in ((1, 0), (2, 1), (3, 1), (4, 2), (5, 1)):
        headers = {**TO, LAST: "99"} if number == 3 else TO
        t.wire.publish("s", b"x", f"fast.b.10.ok.{number}.{operation}.$FI", headers)
        to.seen(f"message {number}")
    t.state("S")


@scenario
def counters(t: Script) -> None:
    to = Listener(t)
    t.stream("S", ["s"], allow_msg_counter=True)
    for number in ("5", "1"):
        _unanswered(t, to, "s", {**ONLY_TO, "Nats-Incr": "3"}, b"")
        t.publish("s", b"", {**TO, "Nats-Incr": number})
        to.seen()
    t.publish("s", b"", TO)
    to.seen()


# ------------------------------------------------------------------------------------------------ requests
@table(
    [
        ("info", "$JS.API.INFO"),
        ("stream", "$JS.API.STREAM.INFO.S"),
        ("no_stream", "$JS.API.STREAM.INFO.NONE"),
        ("direct_none", "$JS.API.DIRECT.GET.NONE"),
        ("next_none", "$JS.API.CONSUMER.MSG.NEXT.S.NONE"),
        ("other", "$JS.X"),
    ]
)
def request(t: Script, subject: str) -> None:
    to = Listener(t)
    t.stream("S", ["s"])
    _answered(t, subject, TO, b"")
    to.seen()
    _answered(t, subject, ONLY_TO, b"")
    to.seen("only")


@scenario
def unknown_request(t: Script) -> None:
    to = Listener(t)
    _unanswered(t, to, "$JS.API.NOPE", TO, b"")
    _answered(t, "$JS.API.NOPE", ONLY_TO, b"")
    to.seen("only")


@scenario
def request_that_would_change_something(t: Script) -> None:
    to = Listener(t)
    _answered(t, "$JS.API.STREAM.CREATE.NEW", ONLY_TO, b'{"name":"NEW","storage":"memory"}')
    to.seen()
    t.api("STREAM.NAMES")


@scenario
def user_info(t: Script) -> None:
    to = Listener(t)
    t.wire.request("$SYS.REQ.USER.INFO", b"", TO)
    to.seen()
    _answered(t, "$SYS.REQ.USER.INFO", ONLY_TO, b"")
    to.seen("only")


@scenario
def gets_and_pulls_and_acks(t: Script) -> None:
    to = Listener(t)
    t.stream("S", ["s"], allow_direct=True)
    t.consumer("S", "C")
    t.fill_seen("S", "C", ["s", "s", "s"])
    for headers in (TO, ONLY_TO):
        for subject, body in (("$JS.API.DIRECT.GET.S", b'{"seq":1}'), ("$JS.API.DIRECT.GET.S.s", b"")):
            _answered(t, subject, headers, body)
            to.seen()
        wire = t.wire
        wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.C", b"", wire.new_reply(), headers)
        frame = t.collect(wire, 1)[0]
        t.frames("pulled", [frame])
        to.seen()
        t.hide(frame.reply, "<ack>")
        _answered(t, frame.reply, headers, b"+ACK")
        to.seen()
    t.numbers("S", "C")


# ------------------------------------------------------------------------------------------------ traceparent
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331"
SAMPLED = {"traceparent": f"{PARENT}-01"}
EXTERNAL = Setup(
    """
accounts {
  A { jetstream: enabled, msg_trace { dest: trace, sampling: "100%" }
    users: [{user: a, password: p}, {user: denied, password: p, permissions { publish { deny: trace } }}] }
  OTHER { users: [{user: o, password: p}] }
}
""",
    (("a", "A"), ("denied", "A"), ("o", "OTHER")),
)


@table(
    [
        ("sampled", SAMPLED),
        ("not_sampled", {"traceparent": f"{PARENT}-00"}),
        ("other_flags", {"traceparent": f"{PARENT}-03"}),
        ("all_flags", {"traceparent": f"{PARENT}-7f"}),
        ("too_many_flags", {"traceparent": f"{PARENT}-81"}),
        ("one_digit", {"traceparent": f"{PARENT}-1"}),
        ("no_digits", {"traceparent": f"{PARENT}-zz"}),
        ("more_words", {"traceparent": f"{PARENT}-01-01"}),
        ("other_words", {"traceparent": "a-b-c-01"}),
        ("mixed_case", {"TraceParent": f"{PARENT}-01"}),
        ("with_a_destination", {"Nats-Trace-Dest": "elsewhere", **SAMPLED}),
        ("with_a_bad_destination", {"Nats-Trace-Dest": "else where", **SAMPLED}),
        ("disabled", {"Nats-Trace-Dest": "trace disabled", **SAMPLED}),
        ("never_only_traced", {"Nats-Trace-Only": "true", **SAMPLED}),
        ("of_another_account", {"Nats-Trace-Origin-Account": "A", **SAMPLED}),
    ],
    EXTERNAL,
)
def an_account_that_follows_traceparent(t: Script, headers: dict[str, str]) -> None:
    to = Listener(t)
    sid = t.wire.subscribe("core.*")
    t.wire.ping()
    t.wire.publish("core.x", b"before")
    t.wire.publish("core.x", b"hi", headers=headers)
    t.frames("delivered", [t.wire.delivered(sid), t.wire.delivered(sid)])
    t.wire.publish("core.y", b"last", headers=SAMPLED)
    to.seen()


@configured(EXTERNAL)
def a_stream_in_an_account_that_follows_traceparent(t: Script) -> None:
    to = Listener(t)
    t.stream("S", ["s"])
    _answered(t, "s", SAMPLED)
    to.seen()
    t.frames("stored", [t.wire.request("$JS.API.STREAM.MSG.GET.S", b'{"seq":1}')])


@configured(EXTERNAL)
def a_user_who_may_not_publish_to_the_destination(t: Script) -> None:
    denied = t.as_user("denied")
    sid = t.wire.subscribe("core")
    t.wire.ping()
    denied.wire.publish("core", b"x", headers=SAMPLED)
    t.frames("error", denied.wire.ping())
    t.frames("nothing", [frame for frame in t.wire.ping() if frame.sid == sid])


@configured(EXTERNAL)
def an_account_that_follows_nothing(t: Script) -> None:
    other = t.as_user("o")
    sid = other.wire.subscribe(">")
    other.wire.publish("core", b"x", headers=SAMPLED)
    t.frames("delivered", [frame for frame in other.wire.ping() if frame.sid == sid])
