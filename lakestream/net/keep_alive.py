"""PINGs of a connection to another server, and the decision that the other side is dead.

Belongs here: telling a slow line from a dead one. What a PING is, and how a connection ends, is the connection's.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from collections.abc import Callable

from lakestream.ports import Clock, Timer


class KeepAlive:
    """Sends PINGs and decides when the other side is dead.

    A PING waits behind what was written before it. So an unanswered PING only counts while none of that gets through: a
    full line is slow, a dead one takes nothing.

    Args:
        limits: returns the interval of PINGs in ns, and the unanswered ones after which the other side is dead.
        ping: sends one.
        progress: returns the bytes written so far, and how many of them the other side's TCP has not confirmed.
        dead: called once when the other side is dead.

    Attributes:
        rtt_ns: the round-trip time of the last answered PING; 0: none.
    """

    def __init__(
        self,
        clock: Clock,
        limits: Callable[[], tuple[int, int]],
        ping: Callable[[], None],
        progress: Callable[[], tuple[int, int]],
        dead: Callable[[], None],
    ) -> None:
        self.rtt_ns = 0
        self._clock, self._limits = clock, limits
        self._ping, self._progress, self._dead = ping, progress, dead
        self._unanswered = 0
        self._confirmed = 0
        self._sent_ns = 0
        self._reading = True
        self._timer: Timer | None = None

    def begin(self, after_ns: int = 0) -> None:
        """Send the first PING, now or after this time."""
        if after_ns:
            self._timer = self._clock.call_later(after_ns, self._check)
        else:
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
        interval_ns, max_pings = self._limits()
        written, left = self._progress()
        confirmed = written - left
        progresses, self._confirmed = left > 0 and confirmed > self._confirmed, confirmed
        if progresses or not self._reading:
            self._unanswered = 0
            self._timer = self._clock.call_later(interval_ns, self._check)
        elif self._unanswered >= max_pings:
            self._timer = None
            self._dead()
        else:
            self._send()

    def _send(self) -> None:
        self._unanswered += 1
        self._sent_ns = self._clock.steady()
        self._ping()
        self._timer = self._clock.call_later(self._limits()[0], self._check)


def unconfirmed(transport: asyncio.WriteTransport | None) -> int:
    """Return the written bytes that the other side's TCP has not confirmed: unsent ones, and those in the kernel where
    that is known (Linux)."""
    if transport is None or transport.is_closing():
        return 0
    kernel = 0
    socket = transport.get_extra_info("socket")
    if socket is not None:
        try:
            (kernel,) = struct.unpack("i", fcntl.ioctl(socket.fileno(), termios.TIOCOUTQ, bytes(4)))
        except OSError:
            kernel = 0
    return transport.get_write_buffer_size() + kernel
