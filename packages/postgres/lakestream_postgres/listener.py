"""Connections of clients: bytes in and out, TLS, and limits.

Belongs here: sockets and back-pressure. wire.py knows the messages, session.py what they mean.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import sys
from collections import deque

from lakestream_postgres import wire
from lakestream_postgres.wire import BadMessage, Message

MAX_WAITING = 16
"""Decoded messages of a connection that wait; then nothing more is read from its socket."""
LOOK_S = 1.0
"""Time between two looks at a client that has sent more than is read, in seconds."""
_GONE = (7, 8)
"""States of a socket whose other end is closed (TCP_CLOSE, TCP_CLOSE_WAIT; include/net/tcp_states.h of Linux)."""
LOGIN_S = 30.0
"""Time for TLS and login, in seconds."""


class Connection(asyncio.Protocol):
    """A connection of a client. Its methods are called from one task.

    Args:
        tls: for clients that ask for it; None: there is none.

    Attributes:
        is_encrypted: TLS is in use.
        is_local: the client is on this machine.
        is_served: a session serves it.
    """

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self._tls = tls
        self._decoder = wire.Decoder()
        self._waiting: deque[Message | BadMessage] = deque()
        self._arrived, self._writable = asyncio.Event(), asyncio.Event()
        self._writable.set()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_upgrading = self._is_ended = self.is_closed = False
        self.is_encrypted = self.is_local = self.is_served = False
        self.task: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------ asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._is_ended:
            transport.close()
        peer = transport.get_extra_info("peername")
        self.is_local = bool(peer) and ipaddress.ip_address(peer[0].partition("%")[0]).is_loopback

    def data_received(self, data: bytes) -> None:
        if self._is_upgrading and not self.is_encrypted:
            self.close()  # bytes behind the request for TLS, which somebody on the way may have put there
            return
        self._decoder.feed(data)
        self._decode()

    def _decode(self) -> None:
        assert self._transport is not None
        try:
            while len(self._waiting) < MAX_WAITING and (message := self._decoder.next()) is not None:
                if isinstance(message, wire.EncryptionRequest) and message.is_tls and self._tls is not None:
                    if self._decoder.pending or self.is_encrypted:
                        raise BadMessage("bytes before TLS")
                    self._transport.pause_reading()
                    self._is_upgrading = True
                self._waiting.append(message)
        except BadMessage as error:
            self._waiting.append(error)
            self._transport.pause_reading()
        self._arrived.set()
        if len(self._waiting) >= MAX_WAITING:
            self._transport.pause_reading()
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        """End a connection whose client is gone: nothing tells of that while its socket is not read."""
        self._timer = None
        if self.is_closed or self._transport is None or len(self._waiting) < MAX_WAITING or sys.platform != "linux":
            return
        sock = self._transport.get_extra_info("socket")
        if sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in _GONE:
            self._transport.abort()
        else:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True
        self._writable.set()
        self._arrived.set()
        if self.task is not None:
            self.task.cancel()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # ------------------------------------------------------------------ for sessions
    async def next(self) -> Message:
        """Return the next message. Raises BadMessage, ConnectionError."""
        while not self._waiting:
            if self.is_closed:
                raise ConnectionResetError
            self._arrived.clear()
            await self._arrived.wait()
        found = self._waiting.popleft()
        if len(self._waiting) == MAX_WAITING - 1 and not self._is_upgrading:
            assert self._transport is not None
            self._transport.resume_reading()
            self._decode()
        if isinstance(found, BadMessage):
            raise found
        return found

    def logged_in(self) -> None:
        """Take larger messages from now on."""
        self._decoder.limit = wire.MAX_MESSAGE

    def write(self, data: bytes) -> None:
        """Send bytes."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    async def drain(self) -> None:
        """Wait until the client has taken enough of what was sent. Raises ConnectionError."""
        await self._writable.wait()
        if self.is_closed:
            raise ConnectionResetError

    async def encrypt(self) -> None:
        """Answer a request for encryption, and begin TLS if there is any. Raises OSError."""
        if self._tls is None or self.is_encrypted or not self._is_upgrading:
            self.write(wire.NO_ENCRYPTION)
            return
        assert self._transport is not None
        self.write(wire.TLS_FOLLOWS)
        self.is_encrypted = True
        loop = asyncio.get_running_loop()
        self._transport = await loop.start_tls(
            self._transport, self, self._tls, server_side=True, ssl_handshake_timeout=LOGIN_S
        )
        self._is_upgrading = False

    def close(self) -> None:
        """Close the connection when what was sent has left; one that is not made yet, once it is."""
        self._is_ended = True
        if self._transport is not None:
            self._transport.close()
