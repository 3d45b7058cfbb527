"""A connection of this server without a socket.

Belongs here: the in-memory transport between a client in this process and its `Connection`, which speaks the client
protocol over it as over TCP. There is no TLS: the bytes do not leave the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol


class PipeEnd(Protocol):
    """One end of a pipe: a protocol of asyncio."""

    def data_received(self, data: bytes) -> None:
        """Take bytes of the other end."""

    def connection_lost(self, exc: BaseException | None) -> None:
        """Note the end of the pipe."""


class Pipe(asyncio.Transport):
    """The transport of a `Connection` whose client is in this process.

    Bytes reach the other end in the next turn of the event loop, so that neither end is called by the other. The client
    takes all that is written; a write buffer therefore lasts one turn.

    Args:
        server: the connection.
        client: the client's end.
        peer: host and port that the connection shows as its client's.
        call_soon: runs a callback in the next turn of the event loop.
    """

    def __init__(
        self, server: PipeEnd, client: PipeEnd, peer: tuple[str, int], call_soon: Callable[[Callable[[], None]], object]
    ) -> None:
        super().__init__({"peername": peer})
        self._server, self._client, self._call_soon = server, client, call_soon
        self._to_client: list[bytes] = []
        self._to_server: list[bytes] = []
        self._pending = 0
        self._feeding = False
        self._closing = self._paused = self._lost = False

    # ------------------------------------------------------------------ the client's end
    def send(self, data: bytes) -> None:
        """Give bytes of the client to the server. They are discarded once the pipe is closing."""
        if self._closing:
            return
        self._to_server.append(data)
        self._feed_soon()

    def _feed_soon(self) -> None:
        if not self._feeding and not self._paused and self._to_server:
            self._feeding = True
            self._call_soon(self._feed)

    def _feed(self) -> None:
        self._feeding = False
        if self._closing or self._paused:
            return
        data, self._to_server = b"".join(self._to_server), []
        self._server.data_received(data)

    # ------------------------------------------------------------------ asyncio.Transport, for the server
    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._lost:
            return
        if not self._to_client:
            self._call_soon(self._deliver)
        self._to_client.append(bytes(data))
        self._pending += len(data)

    def _deliver(self) -> None:
        out, self._to_client = self._to_client, []
        self._pending = 0
        if out:
            self._client.data_received(b"".join(out))

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._to_server.clear()
            self._call_soon(self._lose)  # after the delivery of what was written

    def abort(self) -> None:
        self._to_client.clear()
        self._pending = 0
        self.close()

    def _lose(self) -> None:
        self._lost = True
        self._server.connection_lost(None)
        self._client.connection_lost(None)

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._feed_soon()

    def get_write_buffer_size(self) -> int:
        return self._pending

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Keep no limits: everything is taken in the next turn."""
