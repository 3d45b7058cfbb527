"""A WebSocket between a socket and a connection.

Belongs here: the handshake on an accepted socket, the transport that a connection writes to and is fed by, pauses, and
the close codes. A connection speaks its protocol as over TCP: each of its writes goes out as a frame, and the data of
all frames that were read together comes in one piece.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

from lakestream.config.options import WebSocketOptions
from lakestream.logging import Logger
from lakestream.net.listener import Arrival, SetupError, peer_of
from lakestream.net.turn import Turn
from lakestream.net.websocket.frames import FrameError, FrameWriter, WebSocketReader
from lakestream.net.websocket.handshake import Handshake, Rejected
from lakestream.net.websocket.upgrade import Upgrade
from lakestream.ports import Clock, Timer

if TYPE_CHECKING:
    from lakestream.net.tls import ServerContext

MAX_WAITING = 4096
"""Sockets before the end of their handshake, of TLS too (4,096); with another one, the oldest is closed. nats-server
has no such limit, and by default none for their time either."""

MAX_WAITING_BYTES = 64 << 20
"""Bytes of incomplete requests of all sockets together (64 MiB); above it, the oldest sockets are closed."""

CLOSE_WAIT_NS = 2_000_000_000
"""Time that a client has to read the close frame after an error (2 s)."""

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
    max_payload: int
    secured_by: ServerContext | None

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...

    def data_received(self, data: bytes) -> None: ...

    def connection_lost(self, exc: BaseException | None) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def described(self) -> str:
        """Return how the log shows the client."""


class WebSockets:
    """The WebSockets of a listener.

    Args:
        options: the settings of the listener.
        make: makes the connection of an accepted client.
        turn: the turn of the event loop that all clients share.
    """

    def __init__(
        self,
        options: WebSocketOptions,
        make: Callable[[Upgrade], WebSocketClient],
        clock: Clock,
        log: Logger,
        turn: Turn,
    ) -> None:
        self.options, self.make, self.clock, self.log, self.turn = options, make, clock, log, turn
        self._handshakes: dict[WebSocket, int] = {}
        """Bytes of the request so far, by socket."""
        self._held = 0

    def accepted(self) -> WebSocket:
        """Return the protocol of an accepted socket."""
        return WebSocket(self)

    def began(self, socket: WebSocket) -> None:
        """Count a handshake; end the oldest ones when there are too many."""
        self._handshakes[socket] = 0
        self._limit()

    def fed(self, socket: WebSocket, size: int) -> None:
        """Count bytes of a request; end the oldest handshakes when all hold too many."""
        self._handshakes[socket] += size
        self._held += size
        self._limit()

    def _limit(self) -> None:
        while len(self._handshakes) > MAX_WAITING or self._held > MAX_WAITING_BYTES:
            oldest = next(iter(self._handshakes))
            self.ended(oldest)
            oldest.abort()

    def ended(self, socket: WebSocket) -> None:
        """Stop counting a handshake."""
        self._held -= self._handshakes.pop(socket, 0)

    def close(self) -> None:
        """Close the sockets before the end of their handshake."""
        for socket in list(self._handshakes):
            socket.abort()


class WebSocket(Arrival, asyncio.Transport):
    """The protocol of an accepted socket, and the transport of the connection behind it.

    With TLS it exists from the accept on, before there is a socket of the event loop.
    """

    def __init__(self, owner: WebSockets) -> None:
        self._owner = owner
        self._handshake: Handshake | None = Handshake(owner.options)
        self._client: WebSocketClient | None = None
        self._timer: Timer | None = None
        self._peer = ""
        self._closing = False
        self._opened = False  # there is a socket of the event loop
        self._paused = False  # by the client
        self._behind = False  # frames that were read wait for the next turn
        self._full = False  # the client does not take what is written
        self._plain = self._framed = 1
        """Bytes that were written, and bytes of the frames that they became."""

    # ------------------------------------------------------------------ Arrival, before TLS
    def arrived(self, host: str, port: int) -> None:
        self._peer = f"{host}:{port}"
        self._owner.began(self)

    def failed(self, error: SetupError) -> bytes:
        self._owner.ended(self)
        text, answer = error.over_https(self._peer)
        if text:
            self._owner.log.error(f"websocket: {text}")
        return answer

    # ------------------------------------------------------------------ asyncio.Protocol, for the socket
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast(asyncio.Transport, transport)
        self._opened = True
        if self._closing:
            self._socket.abort()
            return
        if not self._peer:
            self.arrived(*peer_of(transport.get_extra_info("peername")))
        if limit := self._owner.options.handshake_timeout_ns:
            self._timer = self._owner.clock.call_later(limit, self._expired)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        if self._handshake is not None:
            self._shake(self._handshake, data)
            return
        self._reader.feed(data)
        if not self._behind:
            self._read()

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
        self._owner.ended(self)
        if self._client is not None:
            self._client.connection_lost(self._reader.error or exc)
            self._client = None

    # ------------------------------------------------------------------ the handshake
    def _shake(self, handshake: Handshake, data: bytes) -> None:
        owner = self._owner
        owner.fed(self, len(data))
        if self._closing:
            return
        try:
            upgrade = handshake.feed(data)
        except Rejected as rejected:
            if rejected.logged:
                owner.log.error(f"{self._peer} - websocket handshake error: {rejected.logged}")
            self._end(rejected.answer)
            return
        if upgrade is None:  # thousands that send byte by byte take turns
            self._socket.pause_reading()
            owner.turn.wait_for_more(self._shake_on)
            return
        self._handshake = None
        owner.ended(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if upgrade.leaf:
            owner.log.error("Not configured to accept leaf node connections")
            self._end(upgrade.answer)
            return
        self._socket.write(upgrade.answer)
        self._writer = FrameWriter(deflated=upgrade.compressed, max_frame=upgrade.max_frame, whole=upgrade.whole)
        self._client = owner.make(upgrade)
        self._client.secured_by = self.secured_by
        self._reader = WebSocketReader(
            masked=upgrade.masked, deflated=upgrade.compressed, max_message=self._client.max_payload
        )
        self._client.connection_made(self)

    def _shake_on(self) -> None:
        if not self._closing:
            self._socket.resume_reading()

    def _expired(self) -> None:
        if self._handshake is None or self._closing:
            return
        if self._owner.turn.is_over():  # of thousands that came together, some now
            self._owner.turn.wait(self._expired)
        else:
            self._end(self._handshake.expired())

    def _end(self, answer: bytes | bytearray) -> None:
        """Write the last bytes and close."""
        self._closing = True
        if answer:
            self._socket.write(answer)
        self._socket.close()
        # A client that does not read must not keep the socket open.
        self._timer = self._owner.clock.call_later(CLOSE_WAIT_NS, self._socket.abort)

    # ------------------------------------------------------------------ frames of the client
    def _read(self) -> None:
        """Hand on what was read, a batch at a time."""
        client, reader = self._client, self._reader
        if client is None or self._closing:
            return
        reader.max_message = client.max_payload
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
            self._owner.turn.wait(self._catch_up)

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
        self._owner.log.error(f"{client.described()} - read error: {error}")
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
        if self._opened:
            self._socket.abort()
        elif self.abandon is not None:
            self.abandon()

    def is_closing(self) -> bool:
        return self._closing or self._socket.is_closing()

    def pause_reading(self) -> None:
        self._paused = True
        self._socket.pause_reading()

    def resume_reading(self) -> None:
        self._paused = False
        if self._behind:
            self._owner.turn.wait(self._catch_up)
        else:
            self._socket.resume_reading()

    def get_write_buffer_size(self) -> int:
        """Return the unsent bytes, counted as they were written: limits are about those."""
        return self._socket.get_write_buffer_size() * self._plain // self._framed

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._socket.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._socket.get_extra_info(name, default)
