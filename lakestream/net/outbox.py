"""Output of one turn, and back-pressure.

Belongs here: what every connection that carries messages has: output that is gathered over a turn of the event loop and
written at its end (`Outbox`), and whoever waits until a transport has sent it (`Drain`), accepted connections with the
server's limits of unsent bytes (`Accepted`). Forms of output are the connections'.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from lakestream.net.interest.subscription import Congested
from lakestream.net.turn import Flushable
from lakestream.net.unsent import Receiver, Unsent

T = TypeVar("T")

HIGH_WATER = 1 << 20
"""Unsent bytes (default 1 MiB) above which a connection counts as congested and JetStream holds its deliveries.
A turn's output is written early at this size, so that this limit and max_pending also hold within a turn."""


class Outbox(Generic[T]):
    """Output that is gathered over one turn and written at its end, or early above HIGH_WATER.

    Args:
        dirty: calls `flush` at the end of the turn, such as `Turn.dirty`.
    """

    def __init__(self, dirty: Callable[[Flushable], object]) -> None:
        self._out: list[T] = []
        self._gathered = 0
        self._dirty = False  # `flush` will be called
        self._ask = dirty

    def count(self, size: int) -> None:
        """Note that output of `size` bytes was added to `_out`."""
        self._gathered += size
        if not self._dirty:
            self.await_flush()
        if self._gathered > HIGH_WATER:
            self.write_gathered()

    def await_flush(self) -> None:
        """Have `flush` called at the end of the turn."""
        self._dirty = True
        self._ask(self)

    def flush(self) -> None:
        """Write what this turn gathered; also possible before it ends."""
        self._dirty = False
        self.write_gathered()

    def taken(self) -> list[T]:
        """Return what is gathered, to be written now."""
        out, self._out = self._out, []
        self._gathered = 0
        return out

    def write_gathered(self) -> None:
        """Write what is gathered now."""
        raise NotImplementedError


class Drain:
    """The back-pressure of a transport, in both directions.

    Attributes:
        transport: None before the connection is made.
        congested: more than HIGH_WATER is unsent.
    """

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.congested = False
        self._stalled = False
        self._waiting: list[Callable[[], None]] = []

    def use(self, transport: asyncio.Transport) -> None:
        """Use this transport from now on."""
        self.transport = transport
        transport.set_write_buffer_limits(high=HIGH_WATER)

    @property
    def pending_bytes(self) -> int:
        """Return the bytes handed to the transport and not yet sent."""
        return self.transport.get_write_buffer_size() if self.transport is not None else 0

    def on_drain(self, callback: Callable[[], None]) -> None:
        """Call back once when it is not congested any more, or is gone; at once if it is not congested now."""
        if self.congested:
            self._waiting.append(callback)
        else:
            callback()

    def pause_writing(self) -> None:
        self.congested = True

    def resume_writing(self) -> None:
        self.congested = False
        self.release()

    def release(self) -> None:
        """Call everything that waits: nothing is congested, or the connection is over."""
        self.congested = False
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()

    # ------------------------------------------------------------------ reading
    def stall(self, receiver: Congested) -> None:
        """Stop reading until the receiver of what came has drained or is gone, or the turn ends."""
        transport = self.transport
        if self._stalled or transport is None or transport.is_closing():
            return
        self._stalled = True
        self.reads(False)
        transport.pause_reading()
        receiver.on_drain(self._go_on)

    def _go_on(self) -> None:
        self._stalled = False
        self.reads(True)
        self.resume()

    def reads(self, on: bool) -> None:
        """Note that reading stops for a receiver, or goes on."""

    def read_on(self) -> None:
        """Handle what was read already; it may stall again."""

    def resume(self) -> None:
        """Read again, unless something else holds the connection up."""
        if not self._stalled:
            self.read_on()
        if not self._stalled and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()


class Accepted(Drain, Receiver, ABC):
    """An accepted connection.

    Attributes:
        abandon: ends the set-up before there is a transport; None: there is none under way.
        close_reason: why it ended; "" while it is open.
    """

    abandon: Callable[[], object] | None = None

    def __init__(self, unsent: Unsent) -> None:
        super().__init__()
        self._unsent = unsent
        self.close_reason = ""

    def reads(self, on: bool) -> None:
        self._unsent.stalled += not on

    def cut(self, reason: str, detail: str) -> None:
        if not self.close_reason:
            self.close_reason, self.slow = reason, detail
            self._leave()
        if self.transport is not None:
            self.transport.abort()
        elif self.abandon is not None:
            self.abandon()

    @abstractmethod
    def _leave(self) -> None:
        """Take no more part in the account."""
