"""Answers that tell state count what the same client sent before: publishes without reply, and acks. Acks of many
clients are each for the client's own publish.

In nats-server 2.15.1 this is by chance: on two busy cores 1 to 10 of 20 answers to STREAM.INFO counted the publish that
the same client had sent just before, all of them when it waited 5 ms in between. Here it is certain.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.servers import Kind, Server
from tests.wire import Wire, pub

pytestmark = pytest.mark.conformance

StartServer = Callable[..., Server]


@pytest.fixture
def wire(start_server: StartServer) -> Iterator[Wire]:
    """A client of a server of its own."""
    with Wire(start_server(of=Kind.OURS).address, {}) as wire:
        yield wire


def _stream(wire: Wire, storage: str, retention: str = "limits") -> None:
    config = {"name": "S", "subjects": ["s"], "storage": storage, "retention": retention}
    assert "error" not in wire.api("STREAM.CREATE.S", config)


def _consumer(wire: Wire) -> None:
    config = {"durable_name": "c", "ack_policy": "explicit"}
    assert "error" not in wire.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})


def _pulled(wire: Wire, count: int) -> list[str]:
    """Ack subjects of so many messages."""
    reply = wire.new_reply()
    wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", json.dumps({"batch": count}).encode(), reply)
    return [wire.next(lambda got: got.sid == wire.inbox_sid).reply for _ in range(count)]


@pytest.mark.parametrize("storage", ["memory", "file"])
def test_publishes_without_reply_are_in_stream_info(wire: Wire, storage: str) -> None:
    _stream(wire, storage)
    seen = []
    for _ in range(20):
        wire.send(pub("s", b"x"))
        seen.append(wire.api("STREAM.INFO.S")["state"]["messages"])
    assert seen == list(range(1, 21))


@pytest.mark.parametrize("storage", ["memory", "file"])
def test_publishes_without_reply_are_in_consumer_and_account_info(wire: Wire, storage: str) -> None:
    _stream(wire, storage)
    _consumer(wire)
    wire.send(pub("s", b"x") * 100)
    assert wire.api("CONSUMER.INFO.S.c")["num_pending"] == 100
    wire.send(pub("s", b"x") * 100)
    [listed] = wire.api("STREAM.LIST")["streams"]
    assert listed["state"]["messages"] == 200
    before = wire.api("INFO")
    wire.send(pub("s", b"x") * 100)
    after = wire.api("INFO")
    assert after["memory"] + after["storage"] > before["memory"] + before["storage"]


@pytest.mark.parametrize("storage", ["memory", "file"])
def test_publishes_without_reply_are_in_every_answer_with_a_state(wire: Wire, storage: str) -> None:
    _stream(wire, storage)
    config = {"name": "S", "subjects": ["s"], "storage": storage}
    named = {"stream_name": "S", "config": {"name": "n", "durable_name": "n", "ack_policy": "explicit"}}

    def after_publishing(subject: str, body: dict[str, object]) -> dict[str, Any]:
        wire.send(pub("s", b"x") * 10)
        answer: dict[str, Any] = wire.api(subject, body)
        return answer

    assert after_publishing("STREAM.CREATE.S", config)["state"]["messages"] == 10
    assert after_publishing("STREAM.UPDATE.S", {**config, "description": "x"})["state"]["messages"] == 20
    assert after_publishing("CONSUMER.CREATE.S.n", named)["num_pending"] == 30
    assert after_publishing("CONSUMER.LIST.S", {})["consumers"][0]["num_pending"] == 40
    assert after_publishing("STREAM.SNAPSHOT.S", {"deliver_subject": "chunks"})["state"]["messages"] == 50
    assert after_publishing("STREAM.MSG.GET.S", {"last_by_subj": "s"})["message"]["seq"] == 60
    assert after_publishing("STREAM.MSG.DELETE.S", {"seq": 70})["success"] is True
    assert after_publishing("STREAM.PURGE.S", {})["purged"] == 79


@pytest.mark.parametrize("storage", ["memory", "file"])
def test_acks_are_in_stream_and_consumer_info(wire: Wire, storage: str) -> None:
    _stream(wire, storage, "workqueue")
    _consumer(wire)
    for _ in range(10):
        wire.request("s", b"x")
    for subject in _pulled(wire, 10):
        wire.publish(subject, b"+ACK")
    assert wire.api("STREAM.INFO.S")["state"]["messages"] == 0
    info = wire.api("CONSUMER.INFO.S.c")
    assert (info["num_ack_pending"], info["ack_floor"]["stream_seq"]) == (0, 10)


def test_each_of_many_clients_gets_the_ack_of_its_own_publish(start_server: StartServer) -> None:
    address = start_server(of=Kind.OURS).address
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(address, {})) for _ in range(12)]
        for name in ("S", "T"):
            config = {"name": name, "subjects": [f"{name}.*"], "duplicate_window": 10**9}
            assert "error" not in wires[0].api(f"STREAM.CREATE.{name}", config)
        for turn in range(20):
            said = [(f"{'ST'[at % 5 == 0]}.{at % 3}", f"{turn} {at}".encode()) for at in range(len(wires))]
            replies = [wire.new_reply() for wire in wires]
            for wire, reply, (subject, data) in zip(wires, replies, said, strict=True):
                wire.send(pub(subject, data, reply, {"Nats-Msg-Id": data.decode()} if data.endswith(b"1") else None))
            for wire, reply, (subject, data) in zip(wires, replies, said, strict=True):
                ack = wire.message(reply).json()
                stored = wire.api(f"STREAM.MSG.GET.{ack['stream']}", {"seq": ack["seq"]})["message"]
                assert (stored["subject"], base64.b64decode(stored["data"])) == (subject, data)
