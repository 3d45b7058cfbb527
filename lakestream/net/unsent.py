"""Unsent bytes of all client connections.

Belongs here: write_deadline, the limit for all connections together (max_pending_total), and returning memory to the
system. One timer serves all connections. A connection is listed from a write until a tick finds everything sent;
nothing here costs anything per message.
"""

from __future__ import annotations

from collections.abc import Callable

from lakestream.config.options import Options
from lakestream.ports import Clock, Timer
from lakestream.protocol.durations import format_duration

PENDING_BYTES = "Slow Consumer (Pending Bytes)"
WRITE_DEADLINE = "Slow Consumer (Write Deadline)"
"""Close reasons, as in nats-server."""

TICK_NS = 1_000_000_000
"""Maximum interval between two checks of the connections (1 s)."""
TICKS = 10
"""Checks within a write deadline shorter than that many ticks."""
CHUNK_BYTES = 64 << 10
"""Size of nats-server's output buffers: its log line counts unsent bytes in these chunks."""
RELIEF = 8
"""Above max_pending_total, connections are closed until an eighth of it is free, so that they are not sorted with every
write."""
TRIM_BYTES = 64 << 20
"""Memory is returned to the system after at least this many unsent bytes were sent (64 MiB)."""


class Receiver:
    """Fields of a connection that this module keeps.

    Attributes:
        slow: the log text of a slow consumer; "" for others.
        written: bytes handed to the socket since the connection was made.
        unsent: bytes of these that were not sent when last counted.
        goal: bytes that have to be sent within the write deadline: all that were written when the current flush began.
        patient: one byte is enough, as in nats-server for leaf nodes: a line that is slow and always full stays open,
            since the other side would connect again, only to fill the same line.
        ticks: checks that found this flush unfinished.
        watched: the connection is listed.
    """

    slow = ""
    patient = False
    written = unsent = goal = ticks = 0
    watched = False

    @property
    def pending_bytes(self) -> int:
        """Return the bytes handed to the socket but not yet sent."""
        raise NotImplementedError

    def cut(self, reason: str, detail: str) -> None:
        """Close without another word. `detail` is logged."""
        raise NotImplementedError


class Unsent:
    """The unsent bytes of a server's clients.

    Args:
        limits: returns the current settings, of which max_pending, max_pending_total and write_deadline count here.
        trim: returns freed memory to the system; may block.

    Attributes:
        total: bytes as last counted for each connection; includes what was sent since then.
        stalled: times that a client was not read for a while because receivers of its messages were congested.
    """

    def __init__(self, limits: Callable[[], Options], clock: Clock, trim: Callable[[], None]) -> None:
        self._limits, self._clock, self._trim = limits, clock, trim
        self.total = self.stalled = 0
        self._peak = 0
        self._watched: list[Receiver] = []
        self._timer: Timer | None = None

    def wrote(self, receiver: Receiver, size: int, unsent: int) -> None:
        """Note that a connection has written `size` bytes, and the number of unsent ones. Hot: once per write."""
        receiver.written += size
        if not unsent and not receiver.unsent:
            return
        limits = self._limits()
        if unsent > limits.max_pending:
            self._cut(receiver, PENDING_BYTES, f"MaxPending of {limits.max_pending} Exceeded")
            return
        self.total += unsent - receiver.unsent
        receiver.unsent = unsent
        if not receiver.watched:
            self._watch(receiver)
        if self.total > limits.max_pending_total and self.total > limits.max_pending:
            self._relieve()

    def _watch(self, receiver: Receiver) -> None:
        """List a connection until everything is sent."""
        receiver.watched = True
        self._aim(receiver)
        self._watched.append(receiver)
        if self._timer is None:
            self._arm()

    def _aim(self, receiver: Receiver) -> None:
        """Begin to wait for the end of a flush."""
        sent = receiver.written - receiver.unsent
        patient = receiver.patient or self._limits().write_retry
        receiver.goal, receiver.ticks = sent + 1 if patient else receiver.written, 0

    def left(self, receiver: Receiver) -> None:
        """Stop counting a connection that is over."""
        self.total -= receiver.unsent
        receiver.unsent = 0

    def _relieve(self) -> None:
        """Count again, and close the connections with the most unsent bytes while the total is above the limit."""
        for receiver in self._watched:
            self._count(receiver)
        self._peak = max(self._peak, self.total)
        limits = self._limits()
        limit = max(limits.max_pending_total, limits.max_pending)  # one client alone may have max_pending
        if self.total <= limit:
            return
        self._watched.sort(key=lambda each: each.unsent)
        while self._watched and self.total > limit - limit // RELIEF:
            receiver = self._watched.pop()
            how = f"MaxPendingTotal of {limit} Exceeded, {receiver.unsent} bytes of it here"
            self._cut(receiver, PENDING_BYTES, how)

    # ------------------------------------------------------------------ the timer
    def _period(self) -> int:
        return max(1, min(TICK_NS, self._limits().write_deadline_ns // TICKS))

    def _arm(self) -> None:
        self._timer = self._clock.call_later(self._period(), self._tick)

    def _tick(self) -> None:
        """Close the connections whose flush has taken longer than the deadline.

        Ticks are counted, not time: neither a stepped clock nor a suspended server closes connections.
        """
        deadline = self._limits().write_deadline_ns
        patience = -(-deadline // self._period())
        watched, self._watched = self._watched, []
        late: list[Receiver] = []
        for receiver in watched:
            self._count(receiver)
            if not receiver.unsent:
                receiver.watched = False
                continue
            if receiver.written - receiver.unsent >= receiver.goal:
                self._aim(receiver)
            elif receiver.ticks == patience:
                late.append(receiver)
                continue
            else:
                receiver.ticks += 1
            self._watched.append(receiver)
        self._give_back()
        for receiver in late:
            chunks = -(-receiver.unsent // CHUNK_BYTES)
            how = f"WriteDeadline of {format_duration(deadline)} exceeded with {chunks} chunks"
            how += f" of {receiver.unsent} total bytes."
            self._cut(receiver, WRITE_DEADLINE, how)
        if self._watched or self._peak >= TRIM_BYTES:
            self._arm()
        else:
            self._timer = None

    def _give_back(self) -> None:
        """Return memory to the system once half of many unsent bytes were sent; those cut in this tick count in the
        next one."""
        if self._peak >= TRIM_BYTES and self.total <= self._peak // 2:
            self._peak = self.total
            self._trim()
        self._peak = max(self._peak, self.total)

    def _count(self, receiver: Receiver) -> None:
        size = 0 if receiver.slow else receiver.pending_bytes  # a closed connection is gone in the next turn
        self.total += size - receiver.unsent
        receiver.unsent = size

    def _cut(self, receiver: Receiver, reason: str, detail: str) -> None:
        """End a connection."""
        self.left(receiver)
        receiver.cut(reason, detail)
