"""Spans of published messages, for OpenTelemetry.

Belongs here: the header `traceparent`, the identifiers of the spans of one message, and their export. A message that
carries the header of a sampled trace has four spans: its publish, which is a child of the span in the header, and below
it the commit in the log, the time until its segment is staged, and the commit in the table. Each delivery to a consumer
is one more below the publish, and its ack one below the delivery. Server and compactor make them independently: a
span's identifier follows from the header and the message, and the header is part of the stored message.

Sources: W3C Trace Context; OpenTelemetry, "OTLP Exporter Configuration" and "SDK Environment Variables".
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from lakestream.extras import ExtraMissing
from lakestream.protocol import headers

NAMES = (b"traceparent", b"Traceparent")
"""Spellings of the header: as W3C writes it, and as clients write it that canonicalise names."""
HINT = b"raceparent:"
"""Part of every header block with that header, and of few others."""

PUBLISH, COMMIT, STAGE, TABLE, DELIVER, ACK = "publish", "commit", "stage", "table", "deliver", "ack"
"""The spans of a message."""

MAX_QUEUE = 2048
"""Spans that wait for their export, unless OTEL_BSP_MAX_QUEUE_SIZE says otherwise; further ones push out the oldest."""
FLUSH_SECONDS = 3.0
"""Maximum time for the last export at the end of a process."""

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class Parent(msgspec.Struct, frozen=True, gc=False):
    """The span of the publisher: identifiers of its trace and of itself."""

    trace: int
    span: int


def sampled_parent(value: bytes) -> Parent | None:
    """Return the span that a `traceparent` names; None for an invalid one, and for a trace that is not sampled."""
    parts = value.strip().split(b"-")
    if len(parts) < 4 or list(map(len, parts[:4])) != [2, 32, 16, 2] or parts[0] == b"ff":
        return None
    if parts[0] == b"00" and len(parts) > 4:
        return None
    text = b"".join(parts[:4])
    if not text.isalnum() or text.lower() != text:
        return None
    try:
        trace, span, flags = int(parts[1], 16), int(parts[2], 16), int(parts[3], 16)
        int(parts[0], 16)
    except ValueError:
        return None
    return Parent(trace, span) if trace and span and flags & 1 else None


def traced(header: bytes) -> Parent | None:
    """Return the parent of a message's spans, by its header block; None if it has none."""
    if HINT not in header:
        return None
    return sampled_parent(next(filter(None, (headers.get(header, name) for name in NAMES)), b""))


def span_id(parent: Parent, uid: str, seq: int, span: str) -> int:
    """Return the identifier of a message's span: the same in every process.

    Args:
        uid: of the message's stream.
        span: its kind (PUBLISH …), for a delivery or ack the name of that one.
    """
    import hashlib  # several ms; needed with traces only

    text = f"{parent.trace:x}/{parent.span:x}/{uid}/{seq}/{span}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") or 1


class Spans:
    """Export of spans to a collector, over OTLP/HTTP, in a thread with a bounded queue.

    Args:
        processor: takes finished spans; see `open_spans`.
        resource: describes this process.
    """

    def __init__(self, processor: Any, resource: Any) -> None:
        self._processor, self._resource = processor, resource

    def message(
        self,
        span: str,
        parent: Parent,
        message: tuple[str, str, str, int],
        start_ns: int,
        end_ns: int,
        attributes: Mapping[str, str | int] | None = None,
        name: str = "",
        below: str = "",
    ) -> None:
        """Export one span of a message.

        Args:
            span: PUBLISH, COMMIT, STAGE, TABLE, DELIVER or ACK.
            message: account, stream, uid of the stream, and sequence.
            start_ns, end_ns: since the epoch.
            attributes: in addition to those of every span.
            name: for its identifier, where a message has several of the kind.
            below: name of the span above it; "": PUBLISH.
        """
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, SpanKind, TraceFlags

        account, stream, uid, seq = message
        sampled = TraceFlags(TraceFlags.SAMPLED)
        above = parent.span if span == PUBLISH else span_id(parent, uid, seq, below or PUBLISH)
        common: dict[str, str | int] = {
            "messaging.system": "nats",
            "messaging.destination.name": stream,
            "lakestream.account": account,
            "lakestream.sequence": seq,
        }
        self._processor.on_end(
            ReadableSpan(
                name=f"{span} {stream}",
                context=SpanContext(parent.trace, span_id(parent, uid, seq, name or span), False, sampled),
                parent=SpanContext(parent.trace, above, span == PUBLISH, sampled),
                resource=self._resource,
                attributes={**common, **(attributes or {})},
                kind=SpanKind.SERVER if span == PUBLISH else SpanKind.INTERNAL,
                start_time=start_ns,
                end_time=max(start_ns, end_ns),
            )
        )

    def close(self) -> None:
        """Export what waits, for `FLUSH_SECONDS` at most. Block."""
        # OpenTelemetry's own limits of time do not hold while it repeats an export.
        ending = threading.Thread(target=self._processor.shutdown, name="spans", daemon=True)
        ending.start()
        ending.join(FLUSH_SECONDS)


def configured(endpoint: str = "", environ: Mapping[str, str] = os.environ) -> bool:
    """Return True if traces are wanted: an endpoint is set here or by OpenTelemetry's own variables."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER") == "none":
        return False
    return bool(endpoint) or any(environ.get(name) for name in _ENDPOINTS)


def open_spans(service: str, instance: str, endpoint: str, complain: Callable[[str], None]) -> Spans:
    """Return an exporter to `endpoint` (http://host:port), or to that of OpenTelemetry's variables.

    Args:
        service: `service.name`, unless OTEL_SERVICE_NAME is set.
        instance: `service.instance.id`.
        complain: gets a line about each failed export; called in the exporter's thread.

    Raises:
        ExtraMissing: OpenTelemetry is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ExtraMissing("the export of traces", error.name or "opentelemetry", "otel") from None
    attributes = {"service.instance.id": instance}
    if not os.environ.get("OTEL_SERVICE_NAME"):
        attributes["service.name"] = service
    url = f"{endpoint.rstrip('/')}/v1/traces" if endpoint else None
    queue = None if os.environ.get("OTEL_BSP_MAX_QUEUE_SIZE") else MAX_QUEUE
    _pass_on(complain)
    return Spans(BatchSpanProcessor(OTLPSpanExporter(url), max_queue_size=queue), Resource.create(attributes))


class _Handler(logging.Handler):
    """Passes on what OpenTelemetry logs."""

    def __init__(self, complain: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._complain = complain

    def emit(self, record: logging.LogRecord) -> None:
        self._complain(f"traces: {record.getMessage()}")


def _pass_on(complain: Callable[[str], None]) -> None:
    logger = logging.getLogger("opentelemetry")
    logger.propagate = False
    logger.handlers = [_Handler(complain)]
