"""A WebSocket without a socket: the transport keeps what is written, and the test decides when a turn ends."""

from __future__ import annotations

import asyncio
from typing import Any

from lakestream.config.options import WebSocketOptions
from lakestream.logging import Logger
from lakestream.net.tls import ServerContext
from lakestream.net.turn import Turn
from lakestream.net.websocket.transport import WebSocket, WebSockets
from lakestream.net.websocket.upgrade import Upgrade
from tests.unit.stream_world import ManualClock
from tests.websocket import request

LONGEST_MESSAGE = 100_000


class Line(asyncio.Transport):
    """Transport that sends nothing.

    Attributes:
        written: what was written and not taken.
        open: neither side closed it.
        reading: False while it is paused.
    """

    def __init__(self) -> None:
        super().__init__({"peername": ("::ffff:192.0.2.1", 7)})
        self.written = b""
        self.open = self.reading = True

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.open = False

    abort = close

    def is_closing(self) -> bool:
        return not self.open

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def taken(self) -> bytes:
        """Return what was written since the last call."""
        written, self.written = self.written, b""
        return written


class Client:
    """The connection behind a WebSocket: keeps what it receives."""

    def __init__(self, upgrade: Upgrade) -> None:
        self.upgrade = upgrade
        self.close_reason = ""
        self.max_payload = LONGEST_MESSAGE
        self.secured_by: ServerContext | None = None
        self.received: list[bytes] = []
        self.lost: list[BaseException | None] = []
        self.full = False

    @property
    def data(self) -> bytes:
        return b"".join(self.received)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received.append(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.lost.append(exc)

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False

    def described(self) -> str:
        return "192.0.2.1:7 - wid:1"


class World:
    """The WebSockets of one listener.

    Attributes:
        clients: those whose handshake was accepted.
    """

    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        self.clients: list[Client] = []
        self.sockets = WebSockets(
            WebSocketOptions(**options), self._made, self.clock, Logger(logtime=False), Turn(self.clock.call_soon)
        )

    def _made(self, upgrade: Upgrade) -> Client:
        self.clients.append(Client(upgrade))
        return self.clients[-1]

    def accepted(self) -> tuple[WebSocket, Line]:
        """Return an accepted socket before its handshake."""
        socket, line = self.sockets.accepted(), Line()
        socket.connection_made(line)
        return socket, line

    def opened(self, **fields: str) -> tuple[WebSocket, Line, Client]:
        """Return a WebSocket after its handshake; `_` in names of fields stands for `-`."""
        socket, line = self.accepted()
        named = {name.replace("_", "-"): value for name, value in fields.items()}
        socket.data_received(request(named, host="h"))
        assert line.taken().startswith(b"HTTP/1.1 101 ")
        return socket, line, self.clients[-1]
