"""A collector of OpenTelemetry in the process of the test: OTLP over HTTP."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class Received(NamedTuple):
    """One span; identifiers in hexadecimal."""

    name: str
    trace: str
    id: str
    parent: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    service: str


class Receiver:
    """Receives spans until its context ends."""

    def __init__(self) -> None:
        self._spans: list[Received] = []
        self._news = threading.Condition()
        receive = self._receive

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                assert self.path == "/v1/traces", self.path
                receive(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.end_headers()
                self.wfile.write(ExportTraceServiceResponse().SerializeToString())

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Receiver:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _receive(self, request: ExportTraceServiceRequest) -> None:
        with self._news:
            for each in request.resource_spans:
                resource = {pair.key: pair.value.string_value for pair in each.resource.attributes}
                for span in (span for scope in each.scope_spans for span in scope.spans):
                    self._spans.append(_received(span, resource.get("service.name", "")))
            self._news.notify_all()

    def wait(self, count: int, seconds: float = 60) -> list[Received]:
        """Return the spans, in the order of their arrival, once there are so many."""
        with self._news:
            assert self._news.wait_for(lambda: len(self._spans) >= count, seconds), self._spans
            return list(self._spans)

    def received(self) -> list[Received]:
        """Return the spans so far."""
        with self._news:
            return list(self._spans)


def _received(span: Any, service: str) -> Received:
    attributes = {
        pair.key: pair.value.int_value if pair.value.HasField("int_value") else pair.value.string_value
        for pair in span.attributes
    }
    identifiers = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
    return Received(span.name, *identifiers, span.start_time_unix_nano, span.end_time_unix_nano, attributes, service)
