"""A transport that speaks in frames.

Belongs here: what a connection writes to and is fed by, pauses, and the close codes. A connection speaks its protocol
as over TCP: each of its writes goes out as a frame, and the data of all frames that were read together comes in one
piece. The handshakes are in transport.py and dialled.py.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from lakestream.logging import Logger
from lakestream.net.turn import Turn
from lakestream.net.websocket.frames import FrameError, FrameWriter, WebSocketReader
from lakestream.ports import Clock, Timer

CLOSE_WAIT_NS = 2_000_000_000
"""Time that the other side has to read the close frame after an error (2 s)."""

LEAF_MESSAGE = 1 << 15
"""Bytes of a compressed message to another server before it is compressed (32 KiB). nats-server closes a connection
with a message that inflates to more than its `max_payload`, however many messages of NATS that holds."""

_GOING_AWAY, _PROTOCOL, _POLICY, _TOO_BIG, _INTERNAL = 1001, 1002, 1008, 1009, 1011
_CODES = {
    **dict.fromkeys(("Client Closed",), 1000),
    **dict.fromkeys(("Write Error", "Read Error", "Stale Connection", "Server Shutdown"), _GOING_AWAY),
    **dict.fromkeys(("Parse Error", "Protocol Violation", "Bad Client Protocol Version"), _PROTOCOL),
    **dict.fromkeys(
        (
            "Authentication Timeout",
            "Authentication Failure",
            "Authentication Expired",
            "Credentials Revoked",
            "Maximum Account Connections Exceeded",
            "Maximum Connections Exceeded",
            "Maximum Control Line Exceeded",
            "Maximum Subscriptions Exceeded",
            "Missing Account",
        ),
        _POLICY,
    ),
    "Maximum Message Payload Exceeded": _TOO_BIG,
}
"""Close codes by the reason why a connection ends, as in nats-server; any other: internal error."""


class WebSocketClient(Protocol):
    """The connection that speaks through a WebSocket."""

    close_reason: str

    @property
    def max_payload(self) -> int:
        """Return the bytes of the largest message that it may send."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...

    def data_received(self, data: bytes) -> None: ...

    def connection_lost(self, exc: BaseException | None) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def described(self) -> str:
        """Return how the log shows the client."""


class FramedTransport(asyncio.Transport):
    """The transport of a connection that speaks in frames, over the transport of a socket.

    Args:
        turn: the turn of the event loop that all connections share.
    """

    _socket: asyncio.Transport
    _reader: WebSocketReader
    _writer: FrameWriter

    def __init__(self, clock: Clock, log: Logger, turn: Turn) -> None:
        self._clock, self._log, self._turn = clock, log, turn
        self._client: WebSocketClient | None = None
        self._timer: Timer | None = None
        self._closing = False
        self._paused = False  # by the client
        self._behind = False  # frames that were read wait for the next turn
        self._full = False  # the client does not take what is written
        self._plain = self._framed = 1
        """Bytes that were written, and bytes of the frames that they became."""

    # ------------------------------------------------------------------ asyncio.Protocol, for the socket
    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._full = True
        if self._client is not None:
            self._client.pause_writing()

    def resume_writing(self) -> None:
        self._full = False
        if self._client is not None:
            self._client.resume_writing()
            self._answer()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        if self._client is not None:
            self._client.connection_lost(self._reader.error or exc)
            self._client = None

    def _end(self, answer: bytes | bytearray) -> None:
        """Write the last bytes and close."""
        self._closing = True
        if answer:
            self._socket.write(answer)
        self._socket.close()
        # A peer that does not read must not keep the socket open.
        self._timer = self._clock.call_later(CLOSE_WAIT_NS, self._socket.abort)

    # ------------------------------------------------------------------ frames of the other side
    def _read(self) -> None:
        """Hand on what was read, a batch at a time."""
        client, reader = self._client, self._reader
        if client is None or self._closing:
            return
        data = reader.read()
        self._answer()  # first: what the commands bring the client is written within `data_received`
        if data:
            client.data_received(data)
        if self._closing:
            return
        if reader.error is not None:
            self._broken(client, reader.error)
        elif reader.closed is not None:
            self._end(self._writer.close(*reader.closed))
        elif reader.more:
            self._fall_behind()

    def _fall_behind(self) -> None:
        """Go on in a later turn, or when the client resumes."""
        if not self._behind:
            self._behind = True
            self._socket.pause_reading()
        if not self._paused:
            self._turn.wait(self._catch_up)

    def _catch_up(self) -> None:
        if self._closing or self._paused:
            return
        if self._reader.more:
            self._read()
        if not (self._closing or self._paused or self._reader.more):
            self._behind = False
            self._socket.resume_reading()

    def _answer(self) -> None:
        """Answer pings; only the last of those that come while the client does not take what is written."""
        answers = self._reader.answers
        if self._full:
            del answers[:-1]
        elif answers:
            self._socket.write(b"".join(map(self._writer.pong, answers)))
            answers.clear()

    def _broken(self, client: WebSocketClient, error: FrameError) -> None:
        self._log.error(f"{client.described()} - read error: {error}")
        self._end(self._writer.close(error.code, str(error)) if error.code else b"")

    # ------------------------------------------------------------------ asyncio.Transport, for the client
    def write(self, data: bytes | bytearray | memoryview) -> None:
        framed = self._writer.data(bytes(data))
        self._plain += len(data)
        self._framed += len(framed)
        self._socket.write(framed)

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if self._client is not None:
            reason = self._client.close_reason
            self._socket.write(self._writer.close(_CODES.get(reason, _INTERNAL), reason))
        self._socket.close()

    def abort(self) -> None:
        self._closing = True
        self._socket.abort()

    def is_closing(self) -> bool:
        return self._closing or self._socket.is_closing()

    def pause_reading(self) -> None:
        self._paused = True
        self._socket.pause_reading()

    def resume_reading(self) -> None:
        self._paused = False
        if self._behind:
            self._turn.wait(self._catch_up)
        else:
            self._socket.resume_reading()

    def get_write_buffer_size(self) -> int:
        """Return the unsent bytes, counted as they were written: limits are about those."""
        return self._socket.get_write_buffer_size() * self._plain // self._framed

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._socket.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._socket.get_extra_info(name, default)
