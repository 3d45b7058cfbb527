"""Delivery targets: the receivers of a consumer's messages.

Belongs here: the interface that pull requests and a deliver subject have in common, and the status messages that both
send (docs/internals/api.md#statuses).
"""

from __future__ import annotations

from lakestream.ports import MessageBlock
from lakestream.stream.consumer.config import ConsumerConfig
from lakestream.stream.consumer.ledger import Ledger


class DeliveryTarget:
    """A receiver of blocks of messages."""

    bound = False
    """True while a client subscribes to the deliver subject; never for pull requests."""

    @property
    def wanting(self) -> bool:
        """Return False if looking for messages is not worthwhile. Cheap."""
        raise NotImplementedError

    def last_used_ns(self, now: int) -> int:
        """Return when a client last requested messages: `now` while a request waits, 0 if it is unknown here."""
        return 0

    def capacity(self) -> int:
        """Return how many messages can be sent now. After 0 the consumer is woken when that changes."""
        raise NotImplementedError

    def send(self, messages: MessageBlock, again: bool = False) -> int:
        """Send messages in order; return how many were sent, always the first ones. `again`: these are redeliveries."""
        raise NotImplementedError

    def caught_up(self) -> None:
        """Note that there is nothing to send for now."""

    def unreadable(self, why: str) -> None:
        """Note that the next message cannot be read now, and the reason for clients."""

    def held_back(self) -> None:
        """Note that messages were not looked for, for want of capacity."""

    def update(self, config: ConsumerConfig) -> None:
        """Take a changed configuration."""
        raise NotImplementedError

    def start(self) -> None:
        """Start timers and watch interest."""

    def stop(self) -> None:
        """End without a message to clients."""

    def shut_down(self) -> None:
        """Tell waiting clients that the server shuts down, then end."""
        self.stop()

    def yielded(self) -> None:
        """Tell waiting clients that another node serves the consumer, then end."""
        self.stop()

    def deleted(self) -> None:
        """Tell waiting clients that the consumer was deleted, then end."""
        self.stop()


def heartbeat(ledger: Ledger, stalled: bytes = b"") -> bytes:
    """Return the header block of an idle heartbeat; `stalled`: the flow control request without an answer."""
    line = b"Nats-Consumer-Stalled: %b\r\n" % stalled if stalled else b""
    return b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: %d\r\nNats-Last-Stream: %d\r\n%b\r\n" % (
        ledger.delivered_consumer,
        ledger.delivered_stream,
        line,
    )


def status(text: bytes) -> bytes:
    """Return the header block of a status message, e.g. `404 No Messages`."""
    return b"NATS/1.0 %b\r\n\r\n" % text


def status_pending(text: bytes, messages: int, size: int) -> bytes:
    """Return the header block of a status message with the rest of a pull request."""
    return b"NATS/1.0 %b\r\nNats-Pending-Messages: %d\r\nNats-Pending-Bytes: %d\r\n\r\n" % (text, messages, size)
