"""Pub acks do not overtake deliveries: what a client sends or asks once it has an ack finds the message delivered.

In nats-server 2.15.1 that is by chance: of 400 messages published to a deliver subject after the ack, 16 to 21 came
before the message that was acknowledged, and 1 of 20 gets from a mirror gave the value before. Here it is certain.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conformance.leaf_world import copied, hub_of, leaf_of, linked, until, wanted
from tests.conftest import StartServer
from tests.servers import Kind
from tests.wire import Wire

pytestmark = pytest.mark.conformance

ROUNDS = 30
STREAM = {"name": "S", "subjects": ["s"]}
PUSH = {"durable_name": "c", "ack_policy": "none", "deliver_subject": "d"}


def ask(wire: Wire, api: str, subject: str, body: Any) -> None:
    """Send a request to the API of a domain, `$JS.API` or `$JS.<domain>.API`."""
    answer = wire.request(f"{api}.{subject}", json.dumps(body).encode()).json()
    assert "error" not in answer, answer


def order(publisher: Wire, receiver: Wire, sid: str, subject: str = "d") -> list[bytes]:
    """Publish to the stream, and to `subject` once that is acknowledged; return what the receiver gets there."""
    assert "seq" in publisher.request("s", b"stored").json()
    publisher.publish(subject, b"after its ack")
    return [receiver.delivered(sid).data, receiver.delivered(sid).data]


@pytest.mark.parametrize(("storage", "consumers"), [("file", 1), ("memory", 1), ("file", 12)])
def test_a_publish_after_the_ack_does_not_overtake_a_push_consumer(
    start_server: StartServer, storage: str, consumers: int
) -> None:
    with Wire(server := start_server(of=Kind.OURS).address) as wire, Wire(server) as other:
        ask(wire, "$JS.API", "STREAM.CREATE.S", {**STREAM, "storage": storage})
        subscribed = [(receiver, receiver.subscribe("d")) for receiver in (wire, other)]
        other.ping()
        for number in range(consumers - 1):  # whose messages nobody wants
            config = {"durable_name": f"idle{number}", "ack_policy": "explicit", "filter_subject": "s"}
            ask(wire, "$JS.API", f"CONSUMER.CREATE.S.idle{number}", {"stream_name": "S", "config": config})
        ask(wire, "$JS.API", "CONSUMER.DURABLE.CREATE.S.c", {"stream_name": "S", "config": PUSH})
        for receiver, sid in subscribed:
            for _ in range(ROUNDS):
                assert order(wire, receiver, sid) == [b"stored", b"after its ack"]
            other.ping()


def test_a_publish_after_the_ack_does_not_overtake_the_answer_to_a_pull(start_server: StartServer) -> None:
    with Wire(server := start_server(of=Kind.OURS).address) as publisher, Wire(server) as receiver:
        ask(publisher, "$JS.API", "STREAM.CREATE.S", STREAM)
        config = {"durable_name": "c", "ack_policy": "explicit"}
        ask(publisher, "$JS.API", "CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
        for _ in range(ROUNDS):
            reply = receiver.new_reply()
            receiver.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch": 1, "expires": 60000000000}', reply)
            receiver.ping()
            assert order(publisher, receiver, receiver.inbox_sid, reply) == [b"stored", b"after its ack"]


def test_a_get_from_a_mirror_after_a_put_gets_that_value(start_server: StartServer) -> None:
    with Wire(start_server(of=Kind.OURS).address) as wire:
        ask(wire, "$JS.API", "STREAM.CREATE.S", STREAM)
        ask(wire, "$JS.API", "STREAM.CREATE.M", {"name": "M", "mirror": {"name": "S"}, "allow_direct": True})
        wire.request("s", b"first")
        copied(wire, "M", 1)
        for number in range(ROUNDS):
            wire.request("s", b"%d" % number)
            assert wire.request("$JS.API.DIRECT.GET.M.s").data == b"%d" % number


def test_the_same_holds_beyond_a_leaf_link(start_server: StartServer) -> None:
    """The client, its deliver subject and the mirror are on the leaf node, the stream and its consumer on the hub."""
    hub = hub_of(start_server, more="jetstream { domain: hub }", of=Kind.OURS)
    leaf = leaf_of(start_server, hub, more="jetstream { domain: leaf }", of=Kind.OURS)
    linked(hub, leaf)
    with Wire(leaf.address) as wire:
        wanted(wire, "$JS.hub.API.INFO")
        ask(wire, "$JS.hub.API", "STREAM.CREATE.S", STREAM)
        sid = wire.subscribe("d")
        wire.ping()
        ask(wire, "$JS.hub.API", "CONSUMER.DURABLE.CREATE.S.c", {"stream_name": "S", "config": PUSH})
        origin = {"name": "S", "external": {"api": "$JS.hub.API"}}
        ask(wire, "$JS.API", "STREAM.CREATE.M", {"name": "M", "mirror": origin, "allow_direct": True})
        until(lambda: "seq" in wire.request("s", b"first").json(), "the stream is known on the leaf node")
        copied(wire, "M", 1)
        wire.ping()
        for number in range(ROUNDS):
            assert order(wire, wire, sid) == [b"stored", b"after its ack"], number
            wire.request("s", b"%d" % number)
            assert wire.request("$JS.API.DIRECT.GET.M.s").data == b"%d" % number
            wire.ping()
