"""Sending an advisory.

Belongs here: the envelope that all advisories share (api.md §11). What they tell is said where it happens.
"""

from __future__ import annotations

from typing import Any

from lakestream.jetstream.consumer_events import event_id
from lakestream.jetstream.gotime import format_time
from lakestream.jetstream.jsonio import dumps
from lakestream.jetstream.ports import Bus, Clock

PREFIX = "$JS.EVENT.ADVISORY."
TYPE = "io.nats.jetstream.advisory.v1."


def advise(bus: Bus, clock: Clock, domain: str, subject: str, kind: str, fields: dict[str, Any]) -> None:
    """Tell those who listen to `$JS.EVENT.ADVISORY.<subject>`; nothing is made when nobody does.

    Args:
        domain: shown after the fields; "" for none.
        kind: the event's type without its common prefix (`stream_action`).
        fields: its own fields, in the order in which they are shown.
    """
    to = (PREFIX + subject).encode()
    if not bus.interest(to):
        return
    event = {"type": TYPE + kind, "id": event_id(), "timestamp": format_time(clock.now()), **fields}
    if domain:
        event["domain"] = domain
    bus.publish(to, b"", b"", dumps(event))
