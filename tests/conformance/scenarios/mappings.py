"""Scenarios of subject mappings of an account."""

from __future__ import annotations

from typing import Any

from tests.conformance.harness import Script, configured, table
from tests.conformance.user_rules import USER_RULES
from tests.wire import Wire

ACCOUNT = "m"


def _client(t: Script, user: str, **fields: Any) -> Wire:
    """Connect as that user and wait for the PONG, since nats-server does not map messages in one write with CONNECT."""
    wire = t.connect(user=user, **fields)
    wire.ping()
    return wire


@table(
    [
        (subject.replace("*", "star").replace(">", "rest"), subject)
        for subject in (
            *("lit.a", "lit.c", "from.a", "from.a.b.c", "from", "swap.1.2", "swap.1", "part.x", "part.y", "part.zz"),
            *(
                "split.a-b",
                "split.a-",
                "split.ab",
                "chain.1",
                "chain.2",
                "none",
                "here",
                "one",
                "loop",
                "lost",
                "plain",
            ),
            *("from.*", "swap.*.>", "cut.x"),
        )
    ],
    USER_RULES,
)
def where_a_message_goes(t: Script, subject: str) -> None:
    wire = _client(t, ACCOUNT)
    wire.subscribe(">")
    wire.publish(subject, b"x", "lit.a")
    wire.publish(subject, b"y", headers={"A": "b"})
    t.frames(subject, wire.ping())


@configured(USER_RULES)
def subscriptions_are_not_mapped(t: Script) -> None:
    wire = _client(t, ACCOUNT)
    wire.subscribe("lit.a")
    wire.subscribe("to.a", "group")
    wire.publish("lit.a", b"x")
    wire.publish("to.a", b"y")
    t.frames("heard", wire.ping())


@configured(USER_RULES)
def nobody_listens_at_the_destination(t: Script) -> None:
    wire = _client(t, ACCOUNT)
    wire.subscribe("lit.a")
    for subject in ("lit.a", "lost", "from.x", "chain.1", "plain"):
        t.note(subject, t.show(wire.request(subject)))


@configured(USER_RULES)
def weights(t: Script) -> None:
    wire = _client(t, ACCOUNT)
    for subject in ("half", "h1", "h2"):
        wire.subscribe(subject)
    for _ in range(2000):
        wire.publish("half")
    heard = [frame.subject for frame in wire.ping()]
    shares = {"half": 1400, "h1": 200, "h2": 400}
    t.note("all arrive", len(heard))
    t.note("as often as said", {subject: abs(heard.count(subject) - share) < 100 for subject, share in shares.items()})


@configured(USER_RULES)
def permissions_are_those_of_the_destination(t: Script) -> None:
    wire = _client(t, "pm")
    for subject in ("lit.a", "lit.b", "to.b", "to.a", "from.b", "lost", "plain"):
        wire.publish(subject)
        t.frames(subject, wire.ping())


@configured(USER_RULES)
def a_stream_has_the_destination(t: Script) -> None:
    m = t.as_user(ACCOUNT)
    m.stream("S", ["s.>", "lit.a"])
    m.publish("orders.in", b"x")
    m.publish("lit.a", b"y")
    m.publish("from.s", b"z")
    m.api("STREAM.MSG.GET.S", {"seq": 1})
    m.state("S")


@configured(USER_RULES)
def requests_are_mapped(t: Script) -> None:
    wire = _client(t, ACCOUNT)
    answer = wire.request("js.info").json()
    t.note("js.info", {key: answer[key] for key in ("type", "streams", "limits")})


@configured(USER_RULES)
def what_the_server_publishes_is_not_mapped(t: Script) -> None:
    m = t.as_user(ACCOUNT)
    wire = _client(t, ACCOUNT)
    sid = wire.subscribe("rep")
    deliver = wire.subscribe("dlv")
    wire.ping()
    m.stream("S", ["s.*"], republish={"src": "s.1", "dest": "rep"})
    m.consumer("S", "c", deliver_subject="dlv", ack_policy="none")
    m.fill(["s.1"])
    t.note("republished", wire.delivered(sid).subject)
    t.note("delivered", wire.delivered(deliver).subject)


@configured(USER_RULES)
def pedantic_looks_at_what_was_sent(t: Script) -> None:
    wire = _client(t, ACCOUNT, pedantic=True, verbose=True)
    for subject in ("from.*", "cut.*", "lost", "lit.a", "from.a."):
        wire.publish(subject)
        t.frames(subject, wire.ping())


@configured(USER_RULES)
def traces_tell_of_mappings(t: Script) -> None:
    wire = _client(t, ACCOUNT, name="tracer")
    sid = wire.subscribe("trace")
    wire.subscribe("to.>")
    wire.ping()
    for subject in ("lit.a", "lost", "plain", "from.a.b", "loop"):
        wire.publish(subject, b"", "", {"Nats-Trace-Dest": "trace"})
        trace = wire.delivered(sid).json()
        for event in trace["events"]:
            event.pop("cid", None)
        t.note(subject, trace["events"])
    wire = _client(t, "pm", name="refused")
    listener = _client(t, ACCOUNT)
    sid = listener.subscribe("trace")
    listener.ping()
    wire.publish("lit.a", b"", "", {"Nats-Trace-Dest": "trace"})
    t.frames("refused", wire.ping())
    t.note("refused", [{**event, "cid": 0} for event in listener.delivered(sid).json()["events"]])
