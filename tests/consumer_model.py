"""What a pull consumer with explicit acks must do, said as plainly as possible.

Belongs here: a small model of one consumer: which messages a request gets and in which order, what waits for its ack
until when, and the numbers that CONSUMER.INFO shows. No stream, no log, no clock: the test tells it what happens.
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
        wants: whether its filters let a subject through.
        wait: how long the ack of the n-th delivery may take (ns).
        max_deliver, max_ack_pending: as configured; 0: no limit.
        live: the stream's messages, by sequence.
        next_seq: it looks for new messages from here on.
        queue: what goes out again, in order.
        again: messages that went out more than once, until they are acked or gone.
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
        """Wanted messages that did not go out."""
        return sum(seq >= self.next_seq and self.wants(subject) for seq, subject in self.live.items())

    def pull(self, batch: int, now: int) -> list[tuple[int, int]]:
        """(sequence, deliveries) of what a request without waiting gets."""
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
        """A message was acked or ended, or the stream let it go."""
        self.waiting.pop(seq, None)
        self.again.discard(seq)
        if seq in self.queue:
            self.queue.remove(seq)

    def gone(self, seq: int) -> None:
        """The stream let a message go."""
        self.live.pop(seq, None)
        self.done(seq)

    def nak(self, seq: int) -> None:
        """It goes out again as soon as somebody asks."""
        if seq not in self.queue:
            self.queue.append(seq)

    def nak_later(self, seq: int, deadline: int) -> None:
        """It goes out again after that time."""
        if seq in self.queue:
            self.queue.remove(seq)
        self.waiting[seq].deadline = deadline

    def progress(self, seq: int, now: int) -> None:
        """The client is still at work on it."""
        message = self.waiting[seq]
        message.deadline = now + self.wait(message.deliveries)

    def pass_time(self, since: int, now: int) -> None:
        """Deadlines after `since` and until `now` are over, one after another."""
        due = [(one.deadline, seq) for seq, one in self.waiting.items() if since < one.deadline <= now]
        self.queue += [seq for _, seq in sorted(due) if seq not in self.queue]

    def restart(self, now: int) -> None:
        """Who waits for a second delivery at a request is known by its deadline alone after that."""
        self.queue = sorted(seq for seq, one in self.waiting.items() if one.deadline <= now)
