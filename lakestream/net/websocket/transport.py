"""WebSockets that clients and leaf nodes open.

Belongs here: the handshake on an accepted socket, limits of handshakes, and the connection that is made after it. What
is spoken then is in framed.py, sockets that this server dials are in dialled.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, cast

from lakestream.config.options import WebSocketOptions
from lakestream.logging import Logger
from lakestream.net.listener import Arrival, SetupError, peer_of
from lakestream.net.turn import Turn
from lakestream.net.websocket.framed import LEAF_MESSAGE, FramedTransport, WebSocketClient
from lakestream.net.websocket.frames import NO_LIMIT, FrameWriter, WebSocketReader
from lakestream.net.websocket.handshake import Handshake, Rejected
from lakestream.net.websocket.upgrade import Upgrade
from lakestream.ports import Clock

if TYPE_CHECKING:
    from lakestream.net.tls import ServerContext

MAX_WAITING = 4096
"""Sockets before the end of their handshake, of TLS too (4,096); with another one, the oldest is closed. nats-server
has no such limit, and by default none for their time either."""

MAX_WAITING_BYTES = 64 << 20
"""Bytes of incomplete requests of all sockets together (64 MiB); above it, the oldest sockets are closed."""


class AcceptedClient(WebSocketClient, Protocol):
    """A connection that came to a listener."""

    secured_by: ServerContext | None


class WebSockets:
    """The WebSockets of a listener.

    Args:
        options: the settings of the listener.
        make: makes the connection of an accepted client or leaf node; None: leaf nodes are not served.
        turn: the turn of the event loop that all clients share.
    """

    def __init__(
        self,
        options: WebSocketOptions,
        make: Callable[[Upgrade], AcceptedClient | None],
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


class WebSocket(FramedTransport, Arrival):
    """The protocol of an accepted socket, and the transport of the connection behind it.

    With TLS it exists from the accept on, before there is a socket of the event loop.
    """

    def __init__(self, owner: WebSockets) -> None:
        super().__init__(owner.clock, owner.log, owner.turn)
        self._owner = owner
        self._handshake: Handshake | None = Handshake(owner.options)
        self._peer = ""
        self._opened = False  # there is a socket of the event loop
        self._is_leaf = False

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

    def connection_lost(self, exc: BaseException | None) -> None:
        self._owner.ended(self)
        super().connection_lost(exc)

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
        client = owner.make(upgrade)
        if client is None:
            owner.log.error("Not configured to accept leaf node connections")
            self._end(upgrade.answer)
            return
        self._socket.write(upgrade.answer)
        client.secured_by = self.secured_by
        self._client, self._is_leaf = client, upgrade.leaf
        self._writer = FrameWriter(
            deflated=upgrade.compressed,
            max_frame=upgrade.max_frame,
            whole=upgrade.whole,
            max_inflated=LEAF_MESSAGE if upgrade.leaf else 0,
        )
        self._reader = WebSocketReader(masked=upgrade.masked, deflated=upgrade.compressed, max_message=NO_LIMIT)
        client.connection_made(self)

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

    # ------------------------------------------------------------------ the transport
    def _read(self) -> None:
        if self._client is not None and not self._is_leaf:
            self._reader.max_message = self._client.max_payload
        super()._read()

    def abort(self) -> None:
        if self._opened:
            super().abort()
            return
        self._closing = True
        if self.abandon is not None:
            self.abandon()
