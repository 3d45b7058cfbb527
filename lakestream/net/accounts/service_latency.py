"""Latency of requests to services in other accounts.

Belongs here: sampling, and the metric that is published to the subject of the export. When a request is answered is
decided in responses.py.

The service time is measured here, without the round trip of the responder; the total time includes the round trip of
the requester. Both use the round trip of the client's last PING.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from lakestream.config.account_options import Latency
from lakestream.net.hub import Hub
from lakestream.ports import ClientInfo, Clock, Single
from lakestream.protocol import headers
from lakestream.protocol.api.jsonio import dumps
from lakestream.protocol.client import client_shown
from lakestream.protocol.gotime import format_time
from lakestream.protocol.nuid import nuid

OK, BAD_REQUEST, REQUESTER_GONE, UNAVAILABLE, TIMEOUT = 200, 400, 408, 503, 504

_DESCRIPTIONS = {
    BAD_REQUEST: "Bad Request",
    REQUESTER_GONE: "Request Timeout",
    UNAVAILABLE: "Service Unavailable",
    TIMEOUT: "Service Timeout",
}
_UBER, _B3, _PARENT = b"Uber-Trace-Id", b"B3", b"Traceparent"
_ODD_DIGITS = (b"1", b"3", b"5", b"7", b"9", b"b", b"d", b"f", b"B", b"D", b"F")
_B3_SAMPLED, _B3_ID = b"X-B3-Sampled", b"X-B3-TraceId"


class Measured:
    """One sampled request; publishes its metric once.

    Args:
        hub: of the exporting account.
        subject: where the metric is published.
        requester: the requester as the exporting account sees it.
        traced: the headers by which the request was sampled.
    """

    __slots__ = ("_clock", "_hub", "_requester", "_start_ns", "_subject", "_traced", "server")

    def __init__(
        self,
        hub: Hub,
        clock: Clock,
        subject: bytes,
        server: str,
        requester: dict[str, Any],
        traced: dict[str, list[str]],
    ) -> None:
        self._hub, self._clock, self._subject, self.server = hub, clock, subject, server
        self._requester, self._traced = requester, traced
        self._start_ns = clock.steady()

    def answered(self, client: ClientInfo) -> None:
        """Publish the metric of a request that this client answered."""
        shown = client_shown(client, self.server) if client.kind == "Client" else {}
        took = self._clock.steady() - self._start_ns
        away, asked = shown.get("rtt", 0), self._requester.get("rtt", 0)
        # The time after the reply is handed on is negligible.
        self._tell(OK, shown, service=max(0, took - away), total=asked + took)

    def failed(self, status: int) -> None:
        """Publish the metric of a request without a reply."""
        self._tell(status, {}, service=0, total=0)

    def _tell(self, status: int, responder: dict[str, Any], service: int, total: int) -> None:
        if not self._hub.interest(self._subject):
            return
        event: dict[str, Any] = {
            "type": "io.nats.server.metric.v1.service_latency",
            "id": nuid(),
            "timestamp": format_time(self._clock.now()),
            "status": status,
        }
        if status in _DESCRIPTIONS:
            event["description"] = _DESCRIPTIONS[status]
        event["requestor"] = self._requester
        if responder:
            event["responder"] = responder
        if self._traced:
            event["header"] = self._traced
        asked = self._requester.get("rtt", 0) if status == OK else 0
        event |= {"start": format_time(self._start_ns - asked), "service": service, "system": 0, "total": total}
        self._hub.send(Single(self._subject, payload=dumps(event)))


class Sampler:
    """Chooses the requests for one service that are sampled."""

    def __init__(self, latency: Latency, draw: Callable[[], float] = random.random) -> None:
        self.subject = latency.subject.encode()
        self._share = latency.sampling / 100
        self._draw = draw

    def chosen(self, header: bytes) -> dict[str, list[str]] | None:
        """Return None if the request is not sampled, else the headers that asked for it."""
        if self._share:
            return {} if self._share >= 1 or self._draw() < self._share else None
        return _sampled(header)


def _sampled(header: bytes) -> dict[str, list[str]] | None:
    """Return the tracing headers of a request that ask for sampling: Jaeger, Zipkin and W3C."""
    uber = headers.get(header, _UBER)
    if uber is not None:
        flags = uber.split(b":")
        sampled = len(flags) == 4 and flags[3][-1:] in _ODD_DIGITS
        return _named(header, _UBER, b"Uberctx-") if sampled and len(flags[3]) <= 2 else None
    zipkin = headers.get(header, _B3_SAMPLED)
    if zipkin == b"1" or (zipkin != b"0" and headers.get(header, _B3_ID) is not None):
        return _named(header, b"X-B3-")
    single = headers.get(header, _B3)
    if zipkin != b"0" and single is not None:
        parts = single.split(b"-")
        denied = parts == [b"0"] or (len(parts) > 2 and parts[2] == b"0")
        return None if denied else _named(header, _B3)
    parent = headers.get(header, _PARENT)
    if zipkin != b"0" and parent is not None:
        parts = parent.split(b"-")
        return _named(header, _PARENT, b"Tracestate") if len(parts) == 4 and parts[3] == b"01" else None
    return None


def _named(header: bytes, *names: bytes) -> dict[str, list[str]]:
    """Return the header lines whose names begin so, with each word of a name capitalized, as in nats-server."""
    found: dict[str, list[str]] = {}
    for name, value in headers.parse(header):
        if name.startswith(names):
            words = name.decode("utf-8", "replace").split("-")
            shown = "-".join(word.capitalize() for word in words)
            found.setdefault(shown, []).append(value.decode("utf-8", "replace"))
    return found
