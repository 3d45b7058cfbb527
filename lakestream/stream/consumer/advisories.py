"""Advisories and metrics about one consumer.

Belongs here: the events of docs/internals/api.md#advisories that consumers cause, and their JSON. Without subscribers
nothing is sent.
"""

from __future__ import annotations

from collections.abc import Mapping

from lakestream.ports import Bus, Clock
from lakestream.protocol.api.advisory import advise, measure
from lakestream.protocol.gotime import format_time


class ConsumerAdvisories:
    """Sends the advisories and metrics of one consumer."""

    def __init__(self, bus: Bus, clock: Clock, domain: str, account: str, stream: str, consumer: str) -> None:
        self._bus, self._clock, self._domain = bus, clock, domain
        self._account, self._stream, self._consumer = account, stream, consumer

    def _send(self, token: str, kind: str, fields: Mapping[str, object], account: str = "") -> None:
        """Send one event. `account`: shown before the stream, in the kinds that have it."""
        send = measure if token == "ACK" else advise
        shown: dict[str, object] = {"account": account} if account else {}
        shown |= {"stream": self._stream, "consumer": self._consumer, **fields}
        send(self._bus, self._clock, self._domain, f"CONSUMER.{token}.{self._stream}.{self._consumer}", kind, shown)

    def created(self) -> None:
        """Report that the consumer was created."""
        self._send("CREATED", "consumer_action", {"action": "create"})

    def deleted(self) -> None:
        """Report that the consumer was deleted."""
        self._send("DELETED", "consumer_action", {"action": "delete"})

    def pause(self, paused: bool, until_ns: int) -> None:
        """Report that deliveries are paused until `until_ns` (ns since the epoch), or go on."""
        self._send("PAUSE", "consumer_pause", {"paused": paused, "pause_until": format_time(until_ns)})

    def pinned(self, group: str, pin: str) -> None:
        """Report that a client of the priority group was pinned."""
        self._send("PINNED", "consumer_group_pinned", {"group": group, "pinned_id": pin}, self._account)

    def unpinned(self, group: str, reason: str) -> None:
        """Report that the group's client is no longer pinned: "timeout", or "admin" after CONSUMER.UNPIN."""
        self._send("UNPINNED", "consumer_group_unpinned", {"group": group, "reason": reason}, self._account)

    def max_deliveries(self, seq: int, deliveries: int) -> None:
        """Report that a message was delivered max_deliver times without an ack."""
        self._send("MAX_DELIVERIES", "max_deliver", {"stream_seq": seq, "deliveries": deliveries})

    def naked(self, consumer_seq: int, seq: int, deliveries: int) -> None:
        """Report a negative ack."""
        numbers = {"consumer_seq": consumer_seq, "stream_seq": seq, "deliveries": deliveries}
        self._send("MSG_NAKED", "nak", numbers)

    def terminated(self, consumer_seq: int, seq: int, deliveries: int, reason: str) -> None:
        """Report that a client ended the redelivery of a message with +TERM."""
        numbers: dict[str, object] = {"consumer_seq": consumer_seq, "stream_seq": seq, "deliveries": deliveries}
        self._send("MSG_TERMINATED", "terminated", numbers | ({"reason": reason} if reason else {}))

    def acked(self, consumer_seq: int, seq: int, ack_time_ns: int, deliveries: int) -> None:
        """Send the metric of a sampled ack; `ack_time_ns`: from delivery to ack."""
        numbers = {"consumer_seq": consumer_seq, "stream_seq": seq, "ack_time": ack_time_ns, "deliveries": deliveries}
        self._send("ACK", "consumer_ack", numbers)
