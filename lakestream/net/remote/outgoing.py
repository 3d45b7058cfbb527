"""Connections that this server opened.

Belongs here: the transport, back-pressure in both directions, and the decision that the other side is dead. The
protocols are in connection.py and leaf_connection.py.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from collections.abc import Callable
from typing import cast

from lakestream.net.interest.subscription import Congested
from lakestream.ports import Clock, Timer
from lakestream.protocol import frames

HIGH_WATER = 1 << 20
"""Unsent bytes above which a connection is congested (1 MiB). A turn's output is written early at this size."""

MAX_PENDING = 64 << 20
"""Unsent bytes (64 MiB) at which the connection is closed: the remote does not read."""

MAX_PINGS = 2
"""Unanswered PINGs, while nothing else gets through, after which the connection is closed."""


class KeepAlive:
    """Sends PINGs and decides when the other side is dead.

    A PING waits behind what was written before it. So an unanswered PING only counts while none of that gets through: a
    full line is slow, a dead one takes nothing.

    Args:
        interval_ns: interval of PINGs.
        max_pings: unanswered PINGs after which the other side is dead.
        ping: sends one.
        progress: returns the bytes written so far, and how many of them the other side's TCP has not confirmed.
        dead: called once when the other side is dead.

    Attributes:
        rtt_ns: the round-trip time of the last answered PING; 0: none.
    """

    def __init__(
        self,
        clock: Clock,
        interval_ns: int,
        max_pings: int,
        ping: Callable[[], None],
        progress: Callable[[], tuple[int, int]],
        dead: Callable[[], None],
    ) -> None:
        self.rtt_ns = 0
        self._clock, self._interval_ns, self._max_pings = clock, interval_ns, max_pings
        self._ping, self._progress, self._dead = ping, progress, dead
        self._unanswered = 0
        self._confirmed = 0
        self._sent_ns = 0
        self._reading = True
        self._timer: Timer | None = None

    def begin(self) -> None:
        """Send the first PING now."""
        self._send()

    def end(self) -> None:
        """Send no more PINGs. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def received(self) -> None:
        """Note that something came from the other side."""
        self._unanswered = 0

    def answered(self) -> None:
        """Note a PONG."""
        self._unanswered = 0
        if self._sent_ns:
            self.rtt_ns = self._clock.steady() - self._sent_ns
            self._sent_ns = 0

    def reads(self, reading: bool) -> None:
        """Note if this side reads; while it does not, PONGs are not read either."""
        self._reading = reading

    def _check(self) -> None:
        written, left = self._progress()
        confirmed = written - left
        progresses, self._confirmed = left > 0 and confirmed > self._confirmed, confirmed
        if progresses or not self._reading:
            self._unanswered = 0
            self._timer = self._clock.call_later(self._interval_ns, self._check)
        elif self._unanswered >= self._max_pings:
            self._timer = None
            self._dead()
        else:
            self._send()

    def _send(self) -> None:
        self._unanswered += 1
        self._sent_ns = self._clock.steady()
        self._ping()
        self._timer = self._clock.call_later(self._interval_ns, self._check)


class OutgoingConnection(asyncio.Protocol):
    """A connection that this server opened.

    Args:
        ping_ns: interval of PINGs.

    Attributes:
        transport: None before the connection is made.
        congested: above the high-water mark of unsent bytes.
        alive: PINGs and their answers.
    """

    def __init__(self, clock: Clock, ping_ns: int) -> None:
        self.transport: asyncio.Transport | None = None
        self.congested = False
        self._waiting: list[Callable[[], None]] = []
        self._stalled = False
        self._written = 0
        self.alive = KeepAlive(
            clock,
            ping_ns,
            MAX_PINGS,
            lambda: self.write(frames.PING),
            lambda: (self._written, self._unconfirmed()),
            lambda: self.end("Stale Connection"),
        )

    def end(self, reason: str) -> None:
        """Close the connection. Idempotent."""
        raise NotImplementedError

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.use(cast(asyncio.Transport, transport))

    def use(self, transport: asyncio.Transport) -> None:
        """Use this transport from now on."""
        self.transport = transport
        transport.set_write_buffer_limits(high=HIGH_WATER)

    # ------------------------------------------------------------------ writing
    def write(self, data: bytes) -> None:
        """Write now. Ends the connection when too much is unsent."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        self._written += len(data)
        transport.write(data)
        if transport.get_write_buffer_size() > MAX_PENDING:
            self.end("slow consumer: more than 64 MiB pending")

    def pause_writing(self) -> None:
        self.congested = True

    def resume_writing(self) -> None:
        self.congested = False
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()

    def on_drain(self, callback: Callable[[], None]) -> None:
        """Call back once when it is not congested any more, or is gone; at once if it is not congested now."""
        if self.congested:
            self._waiting.append(callback)
        else:
            callback()

    @property
    def pending_bytes(self) -> int:
        """Return the bytes handed to the socket and not yet sent."""
        return self.transport.get_write_buffer_size() if self.transport is not None else 0

    def _unconfirmed(self) -> int:
        """Return the written bytes that the other side's TCP has not confirmed: unsent ones, and those in the kernel
        where that is known (Linux)."""
        if self.transport is None or self.transport.is_closing():
            return 0
        kernel = 0
        socket = self.transport.get_extra_info("socket")
        if socket is not None:
            try:
                (kernel,) = struct.unpack("i", fcntl.ioctl(socket.fileno(), termios.TIOCOUTQ, bytes(4)))
            except OSError:
                kernel = 0
        return self.pending_bytes + kernel

    # ------------------------------------------------------------------ reading
    def stall(self, receiver: Congested) -> None:
        """Stop reading until the receiver of what came has drained or is gone."""
        transport = self.transport
        if self._stalled or transport is None or transport.is_closing():
            return
        self._stalled = True
        self.alive.reads(False)
        transport.pause_reading()
        receiver.on_drain(self._go_on)

    def _go_on(self) -> None:
        self._stalled = False
        self.alive.reads(True)
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()
