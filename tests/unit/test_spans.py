"""Spans: the header of W3C Trace Context, identifiers, and the export over OTLP/HTTP to a real receiver."""

from __future__ import annotations

import socket
import time

import pytest

from lakestream.spans import (
    COMMIT,
    FLUSH_SECONDS,
    PUBLISH,
    TABLE,
    Parent,
    configured,
    open_spans,
    sampled_parent,
    span_id,
)
from tests.otlp import Receiver

pytestmark = pytest.mark.unit

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = Parent(int(TRACE, 16), int(SPAN, 16))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (f"00-{TRACE}-{SPAN}-01", PARENT),
        (f"00-{TRACE}-{SPAN}-03", PARENT),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", PARENT),
        (f"00-{TRACE}-{SPAN}-00", None),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        (f"00-{TRACE[1:]}-{SPAN}-01", None),
        (f"00-{TRACE[:-1]}g-{SPAN}-01", None),
        (f"00-{TRACE}-{SPAN}", None),
        ("", None),
    ],
)
def test_only_sampled_and_valid_parents_count(value: str, expected: Parent | None) -> None:
    assert sampled_parent(value.encode()) == expected


def test_identifiers_are_the_same_everywhere_and_differ_by_message_and_span() -> None:
    assert span_id(PARENT, "uid", 7, TABLE) == span_id(PARENT, "uid", 7, TABLE)
    others = {
        span_id(PARENT, "uid", 7, TABLE),
        span_id(PARENT, "uid", 7, COMMIT),
        span_id(PARENT, "uid", 8, TABLE),
        span_id(PARENT, "uid2", 7, TABLE),
        span_id(Parent(PARENT.trace, 9), "uid", 7, TABLE),
    }
    assert len(others) == 5
    assert all(0 < each < 1 << 64 for each in others)


@pytest.mark.parametrize(
    ("endpoint", "environ", "expected"),
    [
        ("", {}, False),
        ("http://x", {}, True),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, True),
        ("", {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x"}, True),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ("http://x", {"OTEL_SDK_DISABLED": "true"}, False),
        ("http://x", {"OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_traces_are_off_unless_there_is_an_endpoint(endpoint: str, environ: dict[str, str], expected: bool) -> None:
    assert configured(endpoint, environ) is expected


def test_spans_reach_a_collector_with_their_parents() -> None:
    with Receiver() as receiver:
        spans = open_spans("lakestream", "one", receiver.endpoint, pytest.fail)
        spans.message(PUBLISH, PARENT, ("$G", "ORDERS", "uid", 7), 1000, 3000, {"lakestream.subject": "o.1"})
        spans.message(COMMIT, PARENT, ("$G", "ORDERS", "uid", 7), 2000, 3000)
        spans.close()
        publish, commit = receiver.wait(2)
    assert (publish.name, publish.trace, publish.parent) == ("publish ORDERS", TRACE, SPAN)
    assert (commit.name, commit.trace, commit.parent) == ("commit ORDERS", TRACE, publish.id)
    assert (publish.start_ns, publish.end_ns, commit.start_ns) == (1000, 3000, 2000)
    assert publish.attributes["lakestream.subject"] == "o.1"
    assert publish.attributes["lakestream.sequence"] == 7
    assert publish.service == "lakestream"


def test_a_collector_that_is_gone_delays_the_end_by_a_few_seconds_at_most() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    lines: list[str] = []
    spans = open_spans("lakestream", "one", f"http://127.0.0.1:{port}", lines.append)
    spans.message(PUBLISH, PARENT, ("$G", "ORDERS", "uid", 7), 1000, 3000)
    began = time.monotonic()
    spans.close()
    assert time.monotonic() - began < FLUSH_SECONDS + 2
    assert any("traces: " in line for line in lines)
