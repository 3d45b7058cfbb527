"""Traced messages in the segments of a commit."""

from __future__ import annotations

from pathlib import Path

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from lakestream.lake.table.batches import Part
from lakestream.lake.table.departures import DeletedMessages
from lakestream.log.format.files import Files
from lakestream.log.format.packed import pack
from lakestream.spans import PUBLISH, Parent, Spans, span_id
from lakestream_spark.write.spans import CommitSpan, CommitSpans, traced
from tests.lake.model import StreamModel

pytestmark = pytest.mark.unit

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = Parent(int(TRACE, 16), int(SPAN, 16))
SAMPLED = f"NATS/1.0\r\nA: b\r\ntraceparent: 00-{TRACE}-{SPAN}-01\r\n\r\n".encode()
NOT_SAMPLED = f"NATS/1.0\r\ntraceparent: 00-{TRACE}-{SPAN}-00\r\n\r\n".encode()


def _segment(tmp_path: Path) -> tuple[str, int]:
    """Return a sealed segment, and the index of the entry of its first four messages."""
    model = StreamModel(tmp_path / "log")
    model.publish(
        [
            (b"a", b"", b"x" * 100),
            (b"a", SAMPLED, b"x" * 2000),
            (b"a", NOT_SAMPLED, b""),
            (b"a", b"NATS/1.0\r\nB: c\r\n\r\n", b"\r\ntraceparent: 00-in-the-payload"),
        ]
    )
    index = model.log.last_index
    model.publish([(b"a", SAMPLED, SAMPLED), (b"a", SAMPLED, b""), (b"a", b"", b"")])
    return model.seal().path, index


def test_sampled_messages_are_found_by_their_headers(tmp_path: Path) -> None:
    path, index = _segment(tmp_path)
    assert traced(path, 0, 10) == [(2, PARENT), (5, PARENT), (6, PARENT)]
    assert traced(path, index, 10) == [(5, PARENT), (6, PARENT)]
    assert traced(path, 0, 2) == [(2, PARENT), (5, PARENT)]


def test_compressed_segments_are_searched_as_well(tmp_path: Path) -> None:
    path, _ = _segment(tmp_path)
    assert pack(Files(), path)
    assert traced(path, 0, 10) == [(2, PARENT), (5, PARENT), (6, PARENT)]


def test_messages_that_are_not_in_the_table_have_no_span(tmp_path: Path) -> None:
    path, index = _segment(tmp_path)
    exporter = InMemorySpanExporter()
    commits = CommitSpans(Spans(SimpleSpanProcessor(exporter), Resource.get_empty()))
    parts = [Part(path, 0, index + 1, 1), Part(str(tmp_path / "gone.seg"), 0, index + 2, 1)]
    found = commits.find(parts, DeletedMessages(3, [6], []))
    commits.export(CommitSpan("$G", "ORDERS", "UID1", 9, 1000, 3000), found)
    (span,) = exporter.get_finished_spans()
    assert span.name == "table ORDERS"
    assert (span.start_time, span.end_time) == (1000, 3000)
    assert span.attributes is not None
    assert (span.attributes["lakestream.sequence"], span.attributes["lakestream.position"]) == (5, 9)
    assert span.parent is not None
    assert span.parent.span_id == span_id(PARENT, "UID1", 5, PUBLISH)
