"""Advisories and metrics about one consumer.

Belongs here: the events of api.md §11 that consumers cause, and their JSON. They are sent only when somebody listens.
"""

from __future__ import annotations

import secrets
import string
from typing import TYPE_CHECKING

from lakestream.jetstream.gotime import format_time
from lakestream.jetstream.jsonio import dumps

if TYPE_CHECKING:
    from lakestream.jetstream.stream import Stream

_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_ADVISORY = "$JS.EVENT.ADVISORY.CONSUMER."
_METRIC = "$JS.EVENT.METRIC.CONSUMER."


def event_id() -> str:
    """A fresh identifier of 22 characters, as NATS uses them."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(22))


class ConsumerEvents:
    """Sends the events of one consumer."""

    def __init__(self, stream: Stream, consumer: str) -> None:
        self._bus, self._clock, self._account = stream.bus, stream.clock, stream.account
        self._stream, self._consumer, self._domain = stream.name, consumer, stream.domain

    def _send(self, kind: str, event_type: str, account: str = "", **fields: object) -> None:
        """Send one event. `account`: shown before the stream, in the kinds that have it."""
        prefix = _METRIC if kind == "ACK" else _ADVISORY
        subject = f"{prefix}{kind}.{self._stream}.{self._consumer}".encode()
        if not self._bus.interest(subject):
            return
        event: dict[str, object] = {
            "type": event_type,
            "id": event_id(),
            "timestamp": format_time(self._clock.now()),
            **({"account": account} if account else {}),
            "stream": self._stream,
            "consumer": self._consumer,
            **fields,
        }
        if self._domain:
            event["domain"] = self._domain
        self._bus.publish(subject, b"", b"", dumps(event))

    def created(self) -> None:
        """The consumer exists."""
        self._send("CREATED", "io.nats.jetstream.advisory.v1.consumer_action", action="create")

    def deleted(self) -> None:
        """The consumer is gone."""
        self._send("DELETED", "io.nats.jetstream.advisory.v1.consumer_action", action="delete")

    def pause(self, paused: bool, until_ns: int) -> None:
        """Deliveries are held until then (ns since the epoch), or not any more."""
        kind = "io.nats.jetstream.advisory.v1.consumer_pause"
        self._send("PAUSE", kind, paused=paused, pause_until=format_time(until_ns))

    def pinned(self, group: str, pin: str) -> None:
        """A client of the group gets all messages from now on."""
        kind = "io.nats.jetstream.advisory.v1.consumer_group_pinned"
        self._send("PINNED", kind, self._account, group=group, pinned_id=pin)

    def unpinned(self, group: str, reason: str) -> None:
        """No client of the group is pinned any more: "timeout", or "admin" who asked for it."""
        kind = "io.nats.jetstream.advisory.v1.consumer_group_unpinned"
        self._send("UNPINNED", kind, self._account, group=group, reason=reason)

    def max_deliveries(self, seq: int, deliveries: int) -> None:
        """A message went out as often as it may without an ack."""
        self._send(
            "MAX_DELIVERIES",
            "io.nats.jetstream.advisory.v1.max_deliver",
            stream_seq=seq,
            deliveries=deliveries,
        )

    def naked(self, consumer_seq: int, seq: int, deliveries: int) -> None:
        """A client refused a message for now."""
        self._send(
            "MSG_NAKED",
            "io.nats.jetstream.advisory.v1.nak",
            consumer_seq=consumer_seq,
            stream_seq=seq,
            deliveries=deliveries,
        )

    def terminated(self, consumer_seq: int, seq: int, deliveries: int, reason: str) -> None:
        """A client gave a message up."""
        why = {"reason": reason} if reason else {}
        self._send(
            "MSG_TERMINATED",
            "io.nats.jetstream.advisory.v1.terminated",
            consumer_seq=consumer_seq,
            stream_seq=seq,
            deliveries=deliveries,
            **why,
        )

    def acked(self, consumer_seq: int, seq: int, ack_time_ns: int, deliveries: int) -> None:
        """The metric of a sampled ack; `ack_time_ns` from delivery to ack."""
        self._send(
            "ACK",
            "io.nats.jetstream.metric.v1.consumer_ack",
            consumer_seq=consumer_seq,
            stream_seq=seq,
            ack_time=ack_time_ns,
            deliveries=deliveries,
        )
