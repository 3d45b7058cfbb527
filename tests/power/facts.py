"""Records of what clients were told, and when; the audit compares a crashed server with them.

Belongs here: the records and the questions that an audit asks of them. Times are CLOCK_MONOTONIC, as the journal's. An
answer counts from the moment the client had it; a removal may have happened from the moment it was requested.
"""

from __future__ import annotations

from random import Random

import msgspec

NEVER = 1 << 63


class Message(msgspec.Struct):
    """Message as it was sent; `seq` is the sequence in its ack, or the one it would have got (0: unknown)."""

    seq: int
    subject: str
    size: int
    asked_ns: int
    acked_ns: int = NEVER
    lost_ns: int = NEVER
    """Time from which it may be missing (ns)."""
    gone_ns: int = NEVER
    """Time from which it must be missing (ns)."""
    number: int = 0
    """Number that its content is made from; 0: its sequence."""

    def payload(self) -> bytes:
        """Return its content."""
        return payload(self.subject, self.number or self.seq, self.size)


class Consumer(msgspec.Struct):
    """Durable consumer and the times of its creation and deletion."""

    name: str
    created_ns: int = NEVER
    deleting_ns: int = NEVER
    deleted_ns: int = NEVER


class Version(msgspec.Struct):
    """Update of a stream's configuration; `number` is in its description."""

    number: int
    asked_ns: int
    acked_ns: int = NEVER


class Stream(msgspec.Struct):
    """Stream and its messages by sequence.

    `probe`: a subject to publish to after a crash, if clients may. `copies`: replicas that have every acked message.
    `doubtful`: messages without an answer, which may be stored or not.
    """

    name: str
    config: dict[str, object]
    probe: str = ""
    created_ns: int = NEVER
    deleting_ns: int = NEVER
    deleted_ns: int = NEVER
    messages: dict[int, Message] = {}
    floors: list[tuple[int, int]] = []
    """Confirmed ack floors of the durable consumer, with their times."""
    copies: int = 1
    asked: int = 0
    """Number of messages that were sent."""
    acks: set[int] = set()
    doubtful: list[Message] = []
    consumers: list[Consumer] = []
    versions: list[Version] = []

    def present(self, at_ns: int) -> dict[int, Message]:
        """Return the messages that must be readable after a crash at that moment."""
        return {seq: message for seq, message in self.messages.items() if message.acked_ns < at_ns <= message.lost_ns}

    def possible(self, at_ns: int) -> dict[int, Message]:
        """Return the messages that may be readable."""
        return {seq: message for seq, message in self.messages.items() if message.asked_ns < at_ns <= message.gone_ns}

    def last_acked(self, at_ns: int) -> int:
        """Return the highest acked sequence at that time."""
        return max((seq for seq, message in self.messages.items() if message.acked_ns < at_ns), default=0)

    def floor(self, at_ns: int) -> int:
        """Return the highest confirmed ack floor of the durable consumer."""
        return max((floor for floor, confirmed_ns in self.floors if confirmed_ns < at_ns), default=0)


def payload(subject: str, seq: int, size: int) -> bytes:
    """Return `size` bytes that differ for every message."""
    return Random(f"{subject} {seq}").randbytes(size)
