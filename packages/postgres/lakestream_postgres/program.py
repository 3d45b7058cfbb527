"""The program that serves the protocol of Postgres: `python -m lakestream_postgres.program`.

Belongs here: the listener, its limits, cancel requests, and settings from the server that started it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import ssl
import sys
from weakref import WeakValueDictionary

import msgspec

from lakestream_postgres import wire
from lakestream_postgres.errors import PgError
from lakestream_postgres.listener import LOGIN_S, Connection
from lakestream_postgres.logins import Settings, log_in
from lakestream_postgres.session import Session
from lakestream_postgres.wire import BadMessage, CancelRequest, EncryptionRequest, Startup

_SETTINGS = msgspec.json.Decoder(Settings)


class Gateway:
    """The listener and its sessions."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._tls: ssl.SSLContext | None = None
        self._sessions: dict[tuple[int, int], Session] = {}
        self._strangers: dict[Connection, None] = {}  # the oldest first
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._last = 0

    def apply(self, settings: Settings) -> None:
        """Use other settings for new logins."""
        self.settings = settings
        self._tls = None
        if settings.certificate:
            self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            self._tls.load_cert_chain(*settings.certificate)

    async def listen(self) -> int:
        """Listen; return the port. Raises OSError."""
        self.apply(self.settings)
        settings = self.settings
        server = await asyncio.get_running_loop().create_server(self._accept, settings.host, settings.port)
        return int(server.sockets[0].getsockname()[1])

    def _accept(self) -> Connection:
        connection = Connection(self._tls)
        self._strangers[connection] = None
        if len(self._strangers) > self.settings.max_connections:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.close()
        connection.task = asyncio.get_running_loop().create_task(self._serve(connection))
        return connection

    async def _serve(self, connection: Connection) -> None:
        try:
            async with asyncio.timeout(LOGIN_S):
                session = await self._begin(connection)
            self._strangers.pop(connection, None)
            if session is not None:
                await self._run(session)
        except PgError as error:
            connection.write(error.encode())
        except BadMessage as error:
            connection.write(PgError("08P01", f"invalid message: {error}", is_fatal=True).encode())
        except (TimeoutError, OSError, asyncio.CancelledError):
            pass
        finally:
            self._strangers.pop(connection, None)
            connection.close()

    async def _begin(self, connection: Connection) -> Session | None:
        """Return the session of a client that has logged in; None for a cancel request."""
        while isinstance(message := await connection.next(), EncryptionRequest):
            await connection.encrypt()
        if isinstance(message, CancelRequest):
            if (session := self._sessions.get((message.process, message.key))) is not None:
                session.cancel()
            return None
        if not isinstance(message, Startup):
            raise BadMessage("the first message is a startup")
        unknown = [name for name in message.parameters if name.startswith("_pq_.")]
        if message.minor or unknown:
            connection.write(wire.negotiate(unknown))
        self._check_room()
        user = message.parameters.get("user", "")
        nats = await log_in(connection, user, self.settings)
        try:
            self._check_room()  # others have logged in meanwhile
        except PgError:
            await nats.close()
            raise
        connection.logged_in()
        self._last += 1
        turn = self._turns.setdefault(user, asyncio.Lock())
        return Session(connection, nats, turn, message.parameters, (self._last, secrets.randbits(32)))

    def _check_room(self) -> None:
        """Raise PgError if there are as many sessions as there may be."""
        if len(self._sessions) >= self.settings.max_connections:
            raise PgError("53300", f"there are {self.settings.max_connections} connections already", is_fatal=True)

    async def _run(self, session: Session) -> None:
        self._sessions[session.key] = session
        try:
            await session.run()
        finally:
            del self._sessions[session.key]
            with contextlib.suppress(Exception):
                await session.close()


async def serve() -> None:
    """Serve until the input ends."""
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=1 << 26)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    gateway = Gateway(_SETTINGS.decode(await lines.readline()))
    print(await gateway.listen(), flush=True)
    while line := await lines.readline():
        gateway.apply(_SETTINGS.decode(line))
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(serve())
