"""Whether the other side of a connection that this server opened takes what it is sent, and is there at all.

Belongs here: who waits until it takes more, and when it counts as dead. Links and leaf connections have both of each.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from collections.abc import Callable

from lakestream.ports import Clock, Timer


class Drain:
    """Who waits until a transport takes more.

    Attributes:
        paused: it has more unsent bytes than its high-water mark.
    """

    def __init__(self) -> None:
        self.paused = False
        self._waiting: list[Callable[[], None]] = []

    def pause(self) -> None:
        """It takes no more."""
        self.paused = True

    def resume(self) -> None:
        """It takes more, or is gone: nobody waits any longer."""
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
    """Bytes that the transport has and the kernel does not."""
    return transport.get_write_buffer_size() if transport is not None else 0


def unconfirmed(transport: asyncio.Transport | None) -> int:
    """Bytes that were written and that the other side's TCP has not confirmed: unsent ones, and those in the kernel
    where it tells of them (Linux)."""
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
    """PINGs to the other side, and the verdict that it is dead.

    A PING waits behind what was written before it, for as long as the line takes for that. So one is only counted while
    none of that gets through: a full line is slow, a dead one takes nothing.

    Args:
        pause_ns: between two PINGs.
        most: so many PINGs without an answer and the other side is dead.
        ping: sends one.
        way: bytes written so far, and how many of them the other side's TCP has not confirmed.
        dead: hears of it, once.

    Attributes:
        rtt_ns: how long the last answered PING took; 0: none was.
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
        """The first PING leaves now."""
        self._send()

    def end(self) -> None:
        """No more PINGs. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def heard(self) -> None:
        """Something came from the other side."""
        self._unanswered = 0

    def answered(self) -> None:
        """A PONG came."""
        self._unanswered = 0
        if self._sent_ns:
            self.rtt_ns = self._clock.steady() - self._sent_ns
            self._sent_ns = 0

    def reads(self, whether: bool) -> None:
        """Whether this side reads: where it does not, answers are not read either."""
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
