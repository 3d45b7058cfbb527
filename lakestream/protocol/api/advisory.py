"""Advisories and metrics.

Belongs here: the envelope that all events share (docs/internals/api.md#advisories). Their contents are made where they
happen.
"""

from __future__ import annotations

from typing import Any, Protocol

from lakestream.protocol.api.jsonio import dumps
from lakestream.protocol.commands import Single
from lakestream.protocol.gotime import format_time
from lakestream.protocol.nuid import nuid

ADVISORY = "$JS.EVENT.ADVISORY."
METRIC = "$JS.EVENT.METRIC."
ADVISORY_TYPE = "io.nats.jetstream.advisory.v1."
METRIC_TYPE = "io.nats.jetstream.metric.v1."


class Publisher(Protocol):
    """The account's clients, as advisories reach them."""

    def interest(self, subject: bytes) -> bool:
        """Return True if `subject` has subscribers."""

    def send(self, messages: Single) -> bool:
        """Publish one message."""


class WallClock(Protocol):
    """The time that advisories show."""

    def now(self) -> int:
        """Return ns since the epoch."""


def advise(bus: Publisher, clock: WallClock, domain: str, subject: str, kind: str, fields: dict[str, Any]) -> None:
    """Publish an advisory to `$JS.EVENT.ADVISORY.<subject>`, if there is interest.

    Args:
        domain: shown after the fields; "" for none.
        kind: the event's type without its common prefix (`stream_action`).
        fields: its own fields, in the order in which they are shown.
    """
    _send(bus, clock, domain, ADVISORY + subject, ADVISORY_TYPE + kind, fields)


def measure(bus: Publisher, clock: WallClock, domain: str, subject: str, kind: str, fields: dict[str, Any]) -> None:
    """Publish a metric to `$JS.EVENT.METRIC.<subject>`, like `advise`."""
    _send(bus, clock, domain, METRIC + subject, METRIC_TYPE + kind, fields)


def _send(bus: Publisher, clock: WallClock, domain: str, subject: str, event_type: str, fields: dict[str, Any]) -> None:
    to = subject.encode()
    if not bus.interest(to):
        return
    event = {"type": event_type, "id": nuid(), "timestamp": format_time(clock.now()), **fields}
    if domain:
        event["domain"] = domain
    bus.send(Single(to, payload=dumps(event)))
