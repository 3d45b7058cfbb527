"""WebSockets that this server dials.

Belongs here: the handshake on a dialled socket, and the connection behind it, which is told of its transport when the
handshake is done. What is spoken then is in framed.py.
"""

from __future__ import annotations

import asyncio
from typing import cast

from lakestream.logging import Logger
from lakestream.net.turn import Turn
from lakestream.net.websocket.framed import LEAF_MESSAGE, FramedTransport, WebSocketClient
from lakestream.net.websocket.frames import NO_LIMIT, FrameWriter, WebSocketReader
from lakestream.net.websocket.handshake import DialledHandshake, NotAgreedError
from lakestream.net.websocket.upgrade import Agreement
from lakestream.ports import Clock


class DialledWebSocket(FramedTransport, asyncio.Protocol):
    """The protocol of a dialled socket, and the transport of the connection behind it.

    Args:
        client: the connection.
        handshake: the request and the checks of its answer.

    Attributes:
        agreed: done when the handshake is; with NotAgreedError if it failed.
    """

    def __init__(
        self, client: WebSocketClient, handshake: DialledHandshake, clock: Clock, log: Logger, turn: Turn
    ) -> None:
        super().__init__(clock, log, turn)
        self.agreed: asyncio.Future[Agreement] = asyncio.get_running_loop().create_future()
        self._behind_it, self._handshake = client, handshake

    # ------------------------------------------------------------------ asyncio.Protocol, for the socket
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast(asyncio.Transport, transport)
        self._socket.write(self._handshake.request)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        if self._client is None:
            self._shake(data)
            return
        self._reader.feed(data)
        if not self._behind:
            self._read()

    def connection_lost(self, exc: BaseException | None) -> None:
        if not self.agreed.done():
            self.agreed.set_exception(NotAgreedError("connection closed during the WebSocket handshake"))
        super().connection_lost(exc)

    # ------------------------------------------------------------------ the handshake
    def _shake(self, data: bytes) -> None:
        try:
            agreement = self._handshake.feed(data)
        except NotAgreedError as error:
            if not self.agreed.done():
                self.agreed.set_exception(error)
            self.abort()
            return
        if agreement is None or self.agreed.done():  # done: nobody waits for it any more
            return
        deflated = agreement.compressed
        self._writer = FrameWriter(deflated=deflated, masked=agreement.masked, max_inflated=LEAF_MESSAGE)
        self._reader = WebSocketReader(masked=False, deflated=deflated, max_message=NO_LIMIT)
        self._client = self._behind_it
        self._client.connection_made(self)
        self.agreed.set_result(agreement)
        if agreement.rest:
            self._reader.feed(agreement.rest)
            self._read()
