"""Back-pressure and liveness of a connection that this server opened.

Belongs here: callbacks for a transport that drains, and the decision that the other side is dead. Used by links and
leaf connections.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from collections.abc import Callable

from lakestream.ports import Clock, Timer


class Drain:
    """Callbacks that wait until a transport drains.

    Attributes:
        paused: the transport is above its high-water mark.
    """

    def __init__(self) -> None:
        self.paused = False
        self._waiting: list[Callable[[], None]] = []

    def pause(self) -> None:
        """Note that the transport is above its high-water mark."""
        self.paused = True

    def resume(self) -> None:
        """Note that the transport has drained or is gone, and call back."""
        self.paused = False
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()

    def wait(self, callback: Callable[[], None]) -> None:
        """Call back once when it takes more, or is gone; at once if it takes more now."""
        if self.paused:
            self._waiting.append(callback)
        else:
            callback()


def unsent(transport: asyncio.Transport | None) -> int:
    """Return the bytes that the transport has and the kernel does not."""
    return transport.get_write_buffer_size() if transport is not None else 0


def unconfirmed(transport: asyncio.Transport | None) -> int:
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
    return unsent(transport) + kernel


class KeepAlive:
    """Sends PINGs and decides when the other side is dead.

    A PING waits behind what was written before it. So an unanswered PING only counts while none of that gets through: a
    full line is slow, a dead one takes nothing.

    Args:
        pause_ns: interval of PINGs.
        most: unanswered PINGs after which the other side is dead.
        ping: sends one.
        way: returns the bytes written so far, and how many of them the other side's TCP has not confirmed.
        dead: called once when the other side is dead.

    Attributes:
        rtt_ns: the round-trip time of the last answered PING; 0: none.
    """

    def __init__(
        self,
        clock: Clock,
        pause_ns: int,
        most: int,
        ping: Callable[[], None],
        way: Callable[[], tuple[int, int]],
        dead: Callable[[], None],
    ) -> None:
        self.rtt_ns = 0
        self._clock, self._pause_ns, self._most = clock, pause_ns, most
        self._ping, self._way, self._dead = ping, way, dead
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

    def heard(self) -> None:
        """Note that something came from the other side."""
        self._unanswered = 0

    def answered(self) -> None:
        """Note a PONG."""
        self._unanswered = 0
        if self._sent_ns:
            self.rtt_ns = self._clock.steady() - self._sent_ns
            self._sent_ns = 0

    def reads(self, whether: bool) -> None:
        """Note whether this side reads; while it does not, PONGs are not read either."""
        self._reading = whether

    def _look(self) -> None:
        written, left = self._way()
        confirmed = written - left
        gets_through, self._confirmed = left > 0 and confirmed > self._confirmed, confirmed
        if gets_through or not self._reading:
            self._unanswered = 0
            self._timer = self._clock.call_later(self._pause_ns, self._look)
        elif self._unanswered >= self._most:
            self._timer = None
            self._dead()
        else:
            self._send()

    def _send(self) -> None:
        self._unanswered += 1
        self._sent_ns = self._clock.steady()
        self._ping()
        self._timer = self._clock.call_later(self._pause_ns, self._look)
