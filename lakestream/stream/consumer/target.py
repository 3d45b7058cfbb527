"""Where a consumer's messages go.

Belongs here: what pull requests and a deliver subject have in common as receivers, and the status messages that both
send (docs/internals/api.md#statuses).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lakestream.ports import Delivery
from lakestream.stream.consumer.config import ConsumerConfig
from lakestream.stream.consumer.ledger import Ledger


class Outlet(Protocol):
    """A receiver of blocks of messages."""

    @property
    def wanting(self) -> bool:
        """Whether it is worth looking for messages at all. Cheap."""

    def capacity(self) -> int:
        """How many messages could go out now; 0 = none, and the consumer is woken when that changes."""

    def send(self, messages: Sequence[Delivery], again: bool = False) -> int:
        """Send messages in order; returns how many went out, always the first ones. `again`: they went out before."""

    def caught_up(self) -> None:
        """There is nothing to send for now."""

    def held_back(self) -> None:
        """There was no capacity, so that nobody looked whether there is something to send."""

    def update(self, config: ConsumerConfig) -> None:
        """The consumer's configuration has changed."""

    def start(self) -> None:
        """Begin: timers, interest."""

    def stop(self) -> None:
        """End without a word."""

    def shut_down(self) -> None:
        """The server ends; tell whoever waits, then end."""

    def yielded(self) -> None:
        """Another node serves the consumer; tell whoever waits, then end."""

    def deleted(self) -> None:
        """The consumer is gone; tell whoever waits, then end."""


def size_of(message: Delivery) -> int:
    """The bytes that a message counts for in max_bytes, flow control and status headers."""
    return len(message[0]) + len(message[1]) + len(message[2]) + len(message[3])


def heartbeat(ledger: Ledger, stalled: bytes = b"") -> bytes:
    """The header block of an idle heartbeat; `stalled` is the flow control request that nobody has answered."""
    tail = b"Nats-Consumer-Stalled: %b\r\n" % stalled if stalled else b""
    return b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: %d\r\nNats-Last-Stream: %d\r\n%b\r\n" % (
        ledger.delivered_consumer,
        ledger.delivered_stream,
        tail,
    )


def status(text: bytes) -> bytes:
    """The header block of a status message, e.g. `404 No Messages`."""
    return b"NATS/1.0 %b\r\n\r\n" % text


def status_pending(text: bytes, messages: int, size: int) -> bytes:
    """The same with what a pull request has not received."""
    return b"NATS/1.0 %b\r\nNats-Pending-Messages: %d\r\nNats-Pending-Bytes: %d\r\n\r\n" % (text, messages, size)
