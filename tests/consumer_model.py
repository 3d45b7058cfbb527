"""Model of a pull consumer with explicit acks.

Belongs here: the messages that a pull request gets and their order, ack deadlines, and the counters that CONSUMER.INFO
reports. The model has no stream, log or clock: the test passes in every event.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Waiting:
    """A delivered message that is not acked."""

    deadline: int
    deliveries: int = 1


@dataclass
class ConsumerModel:
    """One consumer.

    Attributes:
        wants: returns True if a subject matches the consumer's filters.
        wait: ack wait of the n-th delivery (ns).
        max_deliver, max_ack_pending: as configured; 0 is no limit.
        live: the stream's messages, by sequence.
        next_seq: sequence from which new messages are looked for.
        queue: redelivery queue, in order.
        again: messages delivered more than once, until they are acked or removed.
    """

    wants: Callable[[str], bool]
    wait: Callable[[int], int]
    max_deliver: int = 0
    max_ack_pending: int = 0
    live: dict[int, str] = field(default_factory=dict)
    next_seq: int = 1
    delivered: int = 0
    waiting: dict[int, Waiting] = field(default_factory=dict)
    queue: list[int] = field(default_factory=list)
    again: set[int] = field(default_factory=set)

    @property
    def num_pending(self) -> int:
        """Count the matching messages that have not been delivered."""
        return sum(seq >= self.next_seq and self.wants(subject) for seq, subject in self.live.items())

    def pull(self, batch: int, now: int) -> list[tuple[int, int]]:
        """Return (sequence, delivery count) of each message that a no_wait request gets."""
        got: list[tuple[int, int]] = []
        while self.queue and len(got) < batch:
            seq = self.queue.pop(0)
            message = self.waiting[seq]
            if 0 < self.max_deliver <= message.deliveries:
                del self.waiting[seq]
                continue
            message.deliveries += 1
            message.deadline = now + self.wait(message.deliveries)
            self.again.add(seq)
            got.append((seq, message.deliveries))
        for seq in sorted(self.live):
            if len(got) == batch or (self.max_ack_pending and len(self.waiting) >= self.max_ack_pending):
                break
            if seq >= self.next_seq and self.wants(self.live[seq]):
                self.waiting[seq] = Waiting(now + self.wait(1))
                self.next_seq = seq + 1
                got.append((seq, 1))
        self.delivered += len(got)
        return got

    def done(self, seq: int) -> None:
        """Record that a message was acked, terminated or removed from the stream."""
        self.waiting.pop(seq, None)
        self.again.discard(seq)
        if seq in self.queue:
            self.queue.remove(seq)

    def gone(self, seq: int) -> None:
        """Record that the stream removed a message."""
        self.live.pop(seq, None)
        self.done(seq)

    def nak(self, seq: int) -> None:
        """Put the message in the redelivery queue at once."""
        if seq not in self.queue:
            self.queue.append(seq)

    def nak_later(self, seq: int, deadline: int) -> None:
        """Redeliver the message at `deadline` (ns)."""
        if seq in self.queue:
            self.queue.remove(seq)
        self.waiting[seq].deadline = deadline

    def progress(self, seq: int, now: int) -> None:
        """Extend the ack deadline after a +WPI (work in progress)."""
        message = self.waiting[seq]
        message.deadline = now + self.wait(message.deliveries)

    def pass_time(self, since: int, now: int) -> None:
        """Expire the ack deadlines after `since` and until `now` (ns), in the order of time: the messages are
        redelivered, or given up if they have one delivery."""
        due = [(one.deadline, seq) for seq, one in self.waiting.items() if since < one.deadline <= now]
        for _, seq in sorted(due):
            if self.max_deliver == 1 and seq not in self.queue:
                del self.waiting[seq]
            elif seq not in self.queue:
                self.queue.append(seq)

    def restart(self, now: int) -> None:
        """Rebuild the redelivery queue as a restart does: from the ack deadlines alone, in sequence order."""
        self.queue = []
        self.pass_time(-1, now)
        self.queue.sort()
