"""The computer that a server runs on.

Belongs here: what a server takes from its operating system besides the event loop, as one dependency: clock, threads,
files, listening sockets and the size of its memory. A test passes a simulated one.
"""

from __future__ import annotations

import asyncio
import socket

from lakestream.log.format.files import Files
from lakestream.logging import Logger
from lakestream.net.listener import bind
from lakestream.runtime import LoopClock, Phases, ThreadIo
from lakestream.server import heap


class Machine:
    """The real one.

    Attributes:
        files: of the store.
    """

    def __init__(self) -> None:
        self.files = Files()

    def clock(self, loop: asyncio.AbstractEventLoop, log: Logger, phases: Phases) -> LoopClock:
        """Return the clock of a server."""
        return LoopClock(loop, log, phases)

    def io(self, loop: asyncio.AbstractEventLoop, phases: Phases) -> ThreadIo:
        """Return the threads of a server."""
        return ThreadIo(loop, phases=phases)

    def threads(self, loop: asyncio.AbstractEventLoop, count: int) -> ThreadIo:
        """Return so many threads for work that must not hold up the log's."""
        return ThreadIo(loop, count)

    def bind(self, host: str, port: int, *, shared: bool = False, listens: bool = True) -> socket.socket:
        """Return a listening socket; see `listener.bind`. Raise ListenError."""
        return bind(host, port, shared=shared, listens=listens)

    def resident(self) -> int:
        """Return the resident memory of the server in bytes (Linux)."""
        return heap.resident()
