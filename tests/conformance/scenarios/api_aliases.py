"""JetStream's API under another name: nobody has the server, or who may only answer, send a request there."""

from __future__ import annotations

from typing import Any

from tests.conformance.harness import Script, configured, table
from tests.conformance.leaf_peer import LeafPeer, lmsg
from tests.pairs import Setup
from tests.wire import Wire

_CONFIG = """\
leafnodes { listen: "127.0.0.1:-1" }
accounts {
  E { users: [{user: e, password: p}], jetstream: enabled
    exports: [{service: "$JS.API.>", response_type: stream}
              {service: "next.>", response_type: stream}, {service: "ask"}]
    imports: [{service: {account: X, subject: "$JS.API.STREAM.PURGE.V"}, to: "next.purge"}]
  }
  X { users: [{user: x, password: p}], jetstream: enabled, exports: [{service: "$JS.API.>", response_type: stream}] }
  I { jetstream: enabled
    users: [
      {user: i, password: p}
      {user: answers, password: p, permissions: {subscribe: ">", publish: "own", allow_responses: true}}
    ]
    imports: [
      {service: {account: E, subject: "$JS.API.>"}, to: "far.>"}
      {service: {account: E, subject: "ask"}, to: "ask.far"}
      {service: {account: E, subject: "next.>"}, to: "chain.>"}
    ]
  }
}
"""
ALIASES = Setup(_CONFIG, (("i", "I"), ("e", "E"), ("x", "X")))
PURGE, CHAINED = "far.STREAM.PURGE.V", "chain.purge"
TARGETS = [("direct", PURGE), ("chained", CHAINED)]


def _filled(t: Script) -> tuple[Script, Script]:
    """Store three messages in the streams V of the exporting accounts."""
    others = t.as_user("e"), t.as_user("x")
    for other, subject in zip(others, ("v", "v"), strict=True):
        other.wire.api("STREAM.CREATE.V", {"name": "V", "subjects": [subject], "storage": "memory"})
        for _ in range(3):
            other.wire.request(subject, b"x")
    t.wire.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "storage": "memory", "allow_direct": True})
    return others


def _left(t: Script, others: tuple[Script, Script]) -> None:
    t.wire.ping()
    t.note("messages", [other.wire.api("STREAM.INFO.V")["state"]["messages"] for other in others])


def _stored(t: Script) -> dict[str, Any]:
    return t.wire.request("s", b"{}").json()


@table(TARGETS, ALIASES)
def requests_of_clients(t: Script, to: str) -> None:
    others = _filled(t)
    t.note("answer", t.wire.request(to).json())
    _left(t, others)
    t.wire.publish(to)
    _left(t, others)


@table(TARGETS, ALIASES)
def pub_acks(t: Script, to: str) -> None:
    others = _filled(t)
    t.wire.publish("s", b"x", to)
    _left(t, others)


@table(TARGETS, ALIASES)
def deliveries(t: Script, to: str) -> None:
    others = _filled(t)
    for policy in ("none", "explicit"):
        config = {"durable_name": policy, "deliver_subject": to, "ack_policy": policy}
        t.note(policy, t.wire.api("CONSUMER.CREATE.S." + policy, {"stream_name": "S", "config": config}).get("error"))
    _stored(t)
    _left(t, others)


@table(TARGETS, ALIASES)
def republished_messages(t: Script, to: str) -> None:
    others = _filled(t)
    created = t.wire.api(
        "STREAM.CREATE.R",
        {"name": "R", "subjects": ["r"], "storage": "memory", "republish": {"src": "r", "dest": to}},
    )
    t.note("created", created.get("error"))
    t.wire.request("r", b"{}")
    _left(t, others)


@table(TARGETS, ALIASES)
def direct_gets(t: Script, to: str) -> None:
    others = _filled(t)
    _stored(t)
    t.wire.publish("$JS.API.DIRECT.GET.S", b'{"last_by_subj":"s"}', to)
    _left(t, others)


@table(TARGETS, ALIASES)
def answers_of_the_api(t: Script, to: str) -> None:
    others = _filled(t)
    t.wire.publish("$JS.API.INFO", b"", to)
    _left(t, others)


@table(TARGETS, ALIASES)
def answers_that_alone_are_allowed(t: Script, to: str) -> None:
    others = _filled(t)
    answering = t.connect(user="answers")
    sid = answering.subscribe("asked")
    answering.ping()
    t.wire.publish("asked", b"?", to)
    answering.delivered(sid)
    for reply in ("", "own.reply"):
        answering.publish(to, b"{}", reply)
        answering.ping()
    _left(t, others)


@table(TARGETS, ALIASES)
def answers_of_an_imported_service(t: Script, to: str) -> None:
    others = _filled(t)
    service: Wire = others[0].wire
    sid = service.subscribe("ask")
    service.ping()
    t.wire.publish("ask.far", b"?", to)
    t.wire.ping()
    service.publish(service.delivered(sid).reply, b"{}")
    service.ping()
    _left(t, others)


@table(TARGETS, ALIASES)
def messages_of_leaf_nodes(t: Script, to: str) -> None:
    others = _filled(t)
    peer = t.keep(LeafPeer((t.server.host, t.server.leaf_port), {"user": "i", "pass": "p"}))
    peer.heard()
    for words in (to, f"{to} $JS.ACK.S.c.1.1.1.1.0", f"{to} own.reply"):
        peer.send(lmsg(words, b"{}"))
        peer.heard()
        _left(t, others)


@configured(ALIASES)
def copies_over_an_alias(t: Script) -> None:
    _filled(t)
    created = t.wire.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "V", "external": {"api": "far"}}})
    t.note("created", created.get("error"))
