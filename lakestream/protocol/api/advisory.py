"""Sending an advisory or a metric.

Belongs here: the envelope that all events share (docs/internals/api.md#advisories). What they tell is said where it
happens.
"""

from __future__ import annotations

from typing import Any

from lakestream.ports import Bus, Clock
from lakestream.protocol.api.jsonio import dumps
from lakestream.protocol.gotime import format_time
from lakestream.protocol.nuid import nuid

ADVISORY = "$JS.EVENT.ADVISORY."
METRIC = "$JS.EVENT.METRIC."
ADVISORY_TYPE = "io.nats.jetstream.advisory.v1."
METRIC_TYPE = "io.nats.jetstream.metric.v1."


def advise(bus: Bus, clock: Clock, domain: str, subject: str, kind: str, fields: dict[str, Any]) -> None:
    """Tell those who listen to `$JS.EVENT.ADVISORY.<subject>`; nothing is made when nobody does.

    Args:
        domain: shown after the fields; "" for none.
        kind: the event's type without its common prefix (`stream_action`).
        fields: its own fields, in the order in which they are shown.
    """
    _send(bus, clock, domain, ADVISORY + subject, ADVISORY_TYPE + kind, fields)


def measure(bus: Bus, clock: Clock, domain: str, subject: str, kind: str, fields: dict[str, Any]) -> None:
    """The same for a metric: `$JS.EVENT.METRIC.<subject>`."""
    _send(bus, clock, domain, METRIC + subject, METRIC_TYPE + kind, fields)


def _send(bus: Bus, clock: Clock, domain: str, subject: str, event_type: str, fields: dict[str, Any]) -> None:
    to = subject.encode()
    if not bus.interest(to):
        return
    event = {"type": event_type, "id": nuid(), "timestamp": format_time(clock.now()), **fields}
    if domain:
        event["domain"] = domain
    bus.publish(to, b"", b"", dumps(event))
