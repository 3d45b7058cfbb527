"""Tests of the spans that a consumer makes of traced messages: each delivery, and its ack below it.

tests/lake/test_metrics.py has those of the publish and of the commit in the table.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import StartServer
from tests.otlp import Received, Receiver
from tests.servers import Kind
from tests.wire import Frame, Wire

pytestmark = pytest.mark.conformance

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACED = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
OTHERS = 20
"""Messages without the header around each traced one."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def wire(kind: Kind, start_server: StartServer, receiver: Receiver) -> Iterator[Wire]:
    if kind is not Kind.OURS:
        pytest.fail("spans are lakestream's", pytrace=False)
    config = f'otel {{ endpoint: "{receiver.endpoint}" }}\n'
    server = start_server(config=config, args=["--no-lake"], environment={"OTEL_BSP_SCHEDULE_DELAY": "50"})
    with Wire(server.address) as wire:
        wire.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
        yield wire


def publish(wire: Wire, traced: int) -> None:
    for _ in range(traced):
        for _ in range(OTHERS):
            wire.request("s.other", b"untraced")
        wire.request("s.traced", b"traced", headers=TRACED)


def consumer(wire: Wire, name: str, **config: object) -> None:
    config = {"durable_name": name, "ack_policy": "explicit", **config}
    assert "error" not in wire.api(f"CONSUMER.CREATE.S.{name}", {"stream_name": "S", "config": config})


def named(spans: list[Received], kind: str) -> list[Received]:
    return [span for span in spans if span.name == f"{kind} S"]


def pull(wire: Wire, name: str, count: int) -> list[Frame]:
    inbox = wire.new_reply()
    wire.publish(f"$JS.API.CONSUMER.MSG.NEXT.S.{name}", b"%d" % count, inbox)
    return [wire.next(lambda frame: bool(frame.reply)) for _ in range(count)]


def test_each_delivery_and_its_ack_is_a_span(wire: Wire, receiver: Receiver) -> None:
    publish(wire, 1)
    consumer(wire, "worker", filter_subject="s.traced")
    [again] = pull(wire, "worker", 1)
    wire.publish(again.reply, b"-NAK")
    [message] = pull(wire, "worker", 1)
    wire.request(message.reply, b"")
    spans = receiver.wait(5)
    [published] = named(spans, "publish")
    first, second = named(spans, "deliver")
    [ack] = named(spans, "ack")
    assert {span.trace for span in spans} == {TRACE}
    assert (first.parent, second.parent, ack.parent) == (published.id, published.id, second.id)
    assert first.start_ns <= published.end_ns <= first.end_ns == second.start_ns <= second.end_ns == ack.start_ns
    assert ack.start_ns <= ack.end_ns
    of = {"messaging.consumer.group.name": "worker", "lakestream.sequence": OTHERS + 1, "lakestream.account": "$G"}
    assert of.items() <= ack.attributes.items() & second.attributes.items() & first.attributes.items()


def test_traced_messages_among_others_have_their_spans(wire: Wire, receiver: Receiver) -> None:
    publish(wire, 3)
    consumer(wire, "all", ack_policy="all")
    messages = pull(wire, "all", 3 * (OTHERS + 1))
    wire.request(messages[-1].reply, b"")
    spans = receiver.wait(3 * 4)
    sequences = [(OTHERS + 1) * number for number in (1, 2, 3)]
    for kind in ("deliver", "ack"):
        assert [span.attributes["lakestream.sequence"] for span in named(spans, kind)] == sequences
    assert len(spans) == 3 * 4
