"""Spans of messages with `traceparent`, as OpenTelemetry's SDK exports them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from lakestream.spans import PUBLISH, Parent, Spans, span_id
from lakestream.stream.assembly import FEATURES, MakeFeature
from lakestream.stream.features.spans import MAX_UNSTAGED, PublishSpans
from tests.unit.stream_world import World

pytestmark = pytest.mark.unit

MS = 1_000_000
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{SPAN}-01"
PARENT = Parent(int(TRACE, 16), int(SPAN, 16))


class Traced(World):
    """World whose stream exports spans to memory."""

    def __init__(self, directory: str) -> None:
        self.exporter = InMemorySpanExporter()
        spans = Spans(SimpleSpanProcessor(self.exporter), Resource.get_empty())

        def traced(make: MakeFeature) -> MakeFeature:
            def made(stream: Any) -> Any:
                feature = make(stream)
                label = (stream.account, stream.name, stream.uid)
                return PublishSpans(label, stream.clock, spans) if isinstance(feature, PublishSpans) else feature

            return made

        super().__init__(directory, features=[traced(make) for make in FEATURES])
        self.began = self.clock.time

    def spans(self) -> list[tuple[str, int, int, int]]:
        """Return (name, sequence, ms since the world began, ms of its duration) of the spans so far."""
        return [
            (
                each.name,
                each.attributes["lakestream.sequence"],  # type: ignore[index]
                (each.start_time - self.began) // MS,  # type: ignore[operator]
                (each.end_time - each.start_time) // MS,  # type: ignore[operator]
            )
            for each in self.exporter.get_finished_spans()
        ]


@pytest.fixture
def world(tmp_path: Path) -> Traced:
    return Traced(str(tmp_path))


def test_a_traced_message_has_spans_of_its_publish_its_commit_and_its_staging(world: Traced) -> None:
    reply = world.publish("s.a", traceparent=SAMPLED)
    world.clock.advance(2 * MS)
    world.clock.time += 3 * MS
    world.settle()
    assert world.answer(reply) is not None
    assert world.spans() == [("publish S", 1, 0, 5), ("commit S", 1, 2, 3)]
    world.clock.time += 10 * MS
    world.stream.spans.staged(1)
    world.stream.spans.staged(1)
    assert world.spans()[2:] == [("stage S", 1, 5, 10)]
    publish, *below = world.exporter.get_finished_spans()
    assert publish.parent is not None
    assert (publish.parent.trace_id, publish.parent.span_id) == (PARENT.trace, PARENT.span)
    assert publish.context.span_id == span_id(PARENT, "u1", 1, PUBLISH)
    assert {each.parent.span_id for each in below if each.parent} == {publish.context.span_id}
    assert {each.context.trace_id for each in below} == {PARENT.trace}


def test_a_message_that_gathers_during_a_write_is_committed_by_the_next(world: Traced) -> None:
    world.publish("s.a")
    world.clock.turn()  # its write begins
    world.publish("s.b", Traceparent=SAMPLED)
    world.clock.time += 4 * MS
    world.io.work()
    world.clock.turn()
    world.clock.time += 1 * MS
    world.settle()
    assert world.spans() == [("publish S", 2, 0, 5), ("commit S", 2, 4, 1)]


@pytest.mark.parametrize("value", [f"00-{TRACE}-{SPAN}-00", "no trace", ""])
def test_messages_that_are_not_sampled_have_none(world: Traced, value: str) -> None:
    world.acked("s.a", traceparent=value)
    world.acked("s.a", Other="raceparent: 1")
    world.stream.spans.staged(9)
    assert world.spans() == []


def test_refused_messages_have_none(world: Traced) -> None:
    assert "error" in world.acked("s.a", traceparent=SAMPLED, Nats_Expected_Stream="OTHER")
    assert world.spans() == []


def test_the_messages_that_wait_for_their_staging_are_bounded(world: Traced) -> None:
    for _ in range(MAX_UNSTAGED + 2):
        world.publish("s.a", traceparent=SAMPLED)
    world.settle()
    world.exporter.clear()
    world.stream.spans.staged(MAX_UNSTAGED + 2)
    assert [seq for _, seq, *_ in world.spans()] == list(range(3, MAX_UNSTAGED + 3))


def test_without_an_exporter_no_hook_is_called(tmp_path: Path) -> None:
    stream = World(str(tmp_path)).stream
    assert not any(isinstance(each, PublishSpans) for each in (*stream._hooks.prepared, *stream._hooks.before_write))
