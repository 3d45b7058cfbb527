"""One client connection to a remote server.

Belongs here: the asyncio shell around the client's side of the protocol: INFO, TLS, CONNECT, PINGs, reading, writing
and the end. State that outlives one connection is in link.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgspec

from lakestream import __version__
from lakestream.config.options import RemoteAddress, RemoteOptions
from lakestream.net.outbox import Outbox
from lakestream.net.remote.dial import dial, login_fields, read_keys, secure
from lakestream.net.remote.outgoing import OutgoingConnection
from lakestream.net.turn import Turn
from lakestream.ports import Clock
from lakestream.protocol import frames
from lakestream.protocol.api.jsonio import dumps
from lakestream.protocol.commands import Ping, Pong, Single
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream.protocol.delivered import DeliveredMessage, ErrorLine, Info, ServerParser, ServerProtocolError

HANDSHAKE_S = 5.0
"""Time that the remote may take for its INFO, and from CONNECT to its first PONG (5 s each)."""

PING_NS = 5_000_000_000
"""Interval of PINGs (5 s)."""

CLOSE_WAIT_NS = 1_000_000_000
"""Time that the last bytes of an orderly close may take (1 s)."""

LAST_ERROR_NS = 1_000_000_000
"""An -ERR this shortly before the end (1 s) is reported as its reason."""


class RemoteServer(msgspec.Struct, frozen=True):
    """The INFO of a remote."""

    server_id: str = ""
    server_name: str = ""
    version: str = ""
    max_payload: int = 1 << 20
    headers: bool = False
    tls_required: bool = False
    tls_available: bool = False
    jetstream: bool = False
    domain: str = ""
    cluster: str = ""
    nonce: str = ""
    ldm: bool = False
    connect_urls: tuple[str, ...] = ()


_server = msgspec.json.Decoder(RemoteServer)


class ConnectionUser(Protocol):
    """The user of a connection: its link."""

    def came_up(self) -> Iterable[bytes]:
        """Begin to use the connection, which is authenticated; return the first frames."""

    def info_changed(self, server: RemoteServer) -> None:
        """Note a changed INFO."""

    def received(self, sid: bytes, messages: list[Single]) -> None:
        """Handle a run of messages of one subscription. May end or stall the connection."""

    def error_received(self, text: str) -> None:
        """Note an -ERR that does not end the connection."""


class RemoteConnection(OutgoingConnection, Outbox[bytes]):
    """One connection.

    Args:
        options: the remote.
        address: the dialled address.
        name: the name of this server in CONNECT.
        user: receives what comes.
        clock: timers.
        turn: of this server.

    Attributes:
        server: the last INFO.
        reason: why the connection ended; "" before.
        is_up: authenticated.
    """

    def __init__(
        self, options: RemoteOptions, address: RemoteAddress, name: str, user: ConnectionUser, clock: Clock, turn: Turn
    ) -> None:
        OutgoingConnection.__init__(self, clock, PING_NS)
        Outbox.__init__(self, turn.dirty)
        self.address = address
        self.server = RemoteServer()
        self.reason = ""
        self.is_up = False
        self._options, self._name = options, name
        self._user, self._clock = user, clock
        self._parser = ServerParser()
        loop = asyncio.get_running_loop()
        self._informed: asyncio.Future[None] = loop.create_future()
        self._authenticated: asyncio.Future[None] = loop.create_future()
        self._over: asyncio.Future[None] = loop.create_future()
        self._last_error = ("", 0)
        """The last -ERR and its time."""

    # ------------------------------------------------------------------ from beginning to end
    async def run(self, read_in_thread: Callable[[Callable[[], Any]], Any]) -> str:
        """Run the connection to its end; return "" when it was up, else why it failed.

        Raises OSError, ssl.SSLError, TimeoutError, LoginError, TlsError.
        """
        keys = await read_in_thread(lambda: read_keys(self._options))
        try:
            transport = await dial(self._options, self.address, self)
            await self._within(self._informed)
            if self._wants_tls():
                self.use(await secure(transport, self, self._options, self.address))
            if self.reason:
                return self.reason
            login = login_fields(self._options, self.address, keys, self.server.nonce)
            self.write(frames.CONNECT % dumps(self._connect(login)))
            self.alive.begin()
            await self._within(self._authenticated)
            if self.is_up:
                await self._over
            return "" if self.is_up else self.reason
        finally:
            self.end("Cancelled")

    async def _within(self, future: asyncio.Future[None]) -> None:
        """Wait for a step of the handshake, or the end."""
        async with asyncio.timeout(HANDSHAKE_S):
            await asyncio.wait([future, self._over], return_when=asyncio.FIRST_COMPLETED)

    def _wants_tls(self) -> bool:
        options = self._options
        if self.reason or (options.tls is not None and options.tls.first):
            return False
        wanted = options.tls is not None or self.address.scheme == "tls"
        if wanted and not (self.server.tls_required or self.server.tls_available):
            self.end("the remote does not support TLS")
            return False
        return wanted or self.server.tls_required

    def _connect(self, login: dict[str, Any]) -> dict[str, Any]:
        return {
            "verbose": False,
            "pedantic": False,
            "tls_required": self._wants_tls(),
            "name": self._name,
            "lang": "lakestream",
            "version": __version__,
            "protocol": 1,
            "headers": True,
            "no_responders": True,
        } | login

    # ------------------------------------------------------------------ asyncio.Protocol
    def data_received(self, data: bytes) -> None:
        if self.reason:
            return
        self.alive.received()
        try:
            events = self._parser.feed(data)
        except ServerProtocolError as error:
            self.end(f"protocol error: {error}")
            return
        run, sid = list[Single](), b""
        for event in events:
            if type(event) is DeliveredMessage:
                if run and sid != event.sid:
                    self._user.received(sid, run)
                    run = []
                sid = event.sid
                run.append(event.message)
                continue
            if run:
                self._user.received(sid, run)
                run = []
            self._control(event)
            if self.reason:
                return
        if run:
            self._user.received(sid, run)

    def connection_lost(self, exc: BaseException | None) -> None:
        text, at_ns = self._last_error
        if text and self._clock.steady() - at_ns < LAST_ERROR_NS:
            self.end(f"-ERR {text}")
        self.end("connection closed" if exc is None else f"read error: {exc}")
        if not self._over.done():
            self._over.set_result(None)

    # ------------------------------------------------------------------ events other than messages
    def _control(self, event: object) -> None:
        if type(event) is Ping:
            self.write(frames.PONG)
        elif type(event) is Pong:
            self._answered()
        elif type(event) is Info:
            self._inform(event.document)
        elif type(event) is ErrorLine:
            # Before the first PONG an -ERR rejects the client.
            if self.is_up:
                self._last_error = event.text, self._clock.steady()
                self._user.error_received(event.text)
            else:
                self.end(event.text)

    def _inform(self, document: bytes) -> None:
        try:
            self.server = _server.decode(document)
        except DECODE_ERRORS as error:
            self.end(f"invalid INFO: {error}")
            return
        if not self._informed.done():
            self._informed.set_result(None)
        else:
            self._user.info_changed(self.server)

    def _answered(self) -> None:
        self.alive.answered()
        if not self.is_up and self._informed.done():
            self.is_up = True
            self.write(b"".join(self._user.came_up()))
            self._authenticated.set_result(None)

    # ------------------------------------------------------------------ writing
    def send(self, frame: bytes) -> None:
        """Write this with the rest of the turn."""
        self._out.append(frame)
        self.count(len(frame))

    def write_gathered(self) -> None:
        if out := self.taken():
            self.write(b"".join(out))

    def end(self, reason: str, *, orderly: bool = False) -> None:
        """Close. Idempotent. `orderly`: gathered frames may still be sent; otherwise none is, so that the remote
        handles nothing of this connection after the frames of the next one."""
        if self.reason:
            return
        if orderly:
            self.flush()
        self.reason = reason
        self.alive.end()
        self.resume_writing()
        if self.transport is not None and not self.transport.is_closing():
            if orderly:
                self.transport.close()
                self._clock.call_later(CLOSE_WAIT_NS, self.transport.abort)
            else:
                self.transport.abort()
        if not self._over.done():
            self._over.set_result(None)
