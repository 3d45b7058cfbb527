"""Advisories and metrics about one consumer.

Belongs here: the events of docs/internals/api.md#advisories that consumers cause, and their JSON. They are sent only
when somebody listens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakestream.protocol.api.advisory import advise, measure
from lakestream.protocol.gotime import format_time

if TYPE_CHECKING:
    from lakestream.stream.assembly import Stream


class ConsumerEvents:
    """Sends the events of one consumer."""

    def __init__(self, stream: Stream, consumer: str) -> None:
        self._bus, self._clock, self._account = stream.bus, stream.clock, stream.account
        self._stream, self._consumer, self._domain = stream.name, consumer, stream.domain

    def _send(self, token: str, kind: str, account: str = "", **fields: object) -> None:
        """Send one event. `account`: shown before the stream, in the kinds that have it."""
        tell = measure if token == "ACK" else advise
        shown: dict[str, object] = {"account": account} if account else {}
        shown |= {"stream": self._stream, "consumer": self._consumer, **fields}
        tell(self._bus, self._clock, self._domain, f"CONSUMER.{token}.{self._stream}.{self._consumer}", kind, shown)

    def created(self) -> None:
        """The consumer exists."""
        self._send("CREATED", "consumer_action", action="create")

    def deleted(self) -> None:
        """The consumer is gone."""
        self._send("DELETED", "consumer_action", action="delete")

    def pause(self, paused: bool, until_ns: int) -> None:
        """Deliveries are held until then (ns since the epoch), or not any more."""
        kind = "consumer_pause"
        self._send("PAUSE", kind, paused=paused, pause_until=format_time(until_ns))

    def pinned(self, group: str, pin: str) -> None:
        """A client of the group gets all messages from now on."""
        kind = "consumer_group_pinned"
        self._send("PINNED", kind, self._account, group=group, pinned_id=pin)

    def unpinned(self, group: str, reason: str) -> None:
        """No client of the group is pinned any more: "timeout", or "admin" who asked for it."""
        kind = "consumer_group_unpinned"
        self._send("UNPINNED", kind, self._account, group=group, reason=reason)

    def max_deliveries(self, seq: int, deliveries: int) -> None:
        """A message went out as often as it may without an ack."""
        self._send(
            "MAX_DELIVERIES",
            "max_deliver",
            stream_seq=seq,
            deliveries=deliveries,
        )

    def naked(self, consumer_seq: int, seq: int, deliveries: int) -> None:
        """A client refused a message for now."""
        self._send(
            "MSG_NAKED",
            "nak",
            consumer_seq=consumer_seq,
            stream_seq=seq,
            deliveries=deliveries,
        )

    def terminated(self, consumer_seq: int, seq: int, deliveries: int, reason: str) -> None:
        """A client gave a message up."""
        why = {"reason": reason} if reason else {}
        self._send(
            "MSG_TERMINATED",
            "terminated",
            consumer_seq=consumer_seq,
            stream_seq=seq,
            deliveries=deliveries,
            **why,
        )

    def acked(self, consumer_seq: int, seq: int, ack_time_ns: int, deliveries: int) -> None:
        """The metric of a sampled ack; `ack_time_ns` from delivery to ack."""
        self._send(
            "ACK",
            "consumer_ack",
            consumer_seq=consumer_seq,
            stream_seq=seq,
            ack_time=ack_time_ns,
            deliveries=deliveries,
        )
