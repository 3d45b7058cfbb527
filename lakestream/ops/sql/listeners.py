"""Listeners of other protocols for SQL, each in a process of its own.

Belongs here: starting the programs of packages/flight and packages/postgres, which are clients of this server, starting
one again when it has ended, and their end.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from lakestream import extras
from lakestream.config.errors import StartError
from lakestream.config.options import Options, RouteUrl, TlsOptions
from lakestream.logging import Logger
from lakestream.net.accounts.auth import is_hashed
from lakestream.ops.sql.processes import environment
from lakestream.ports import Clock

START_S = 60.0
"""Time until a program listens (60 s)."""
AGAIN_S = 1.0
"""Pause before it is started again (1 s)."""


def sql_listeners(options: Callable[[], Options], port: int, clock: Clock, log: Logger) -> Iterator[SqlListener]:
    """Yield the listeners that are configured.

    Args:
        port: of clients, on this machine.
    """
    sql = options().sql
    if sql.flight_port:
        where = RouteUrl(sql.flight_host, sql.flight_port)
        yield SqlListener("flight", "Flight SQL", where, lambda: _settings(options(), port), clock, log)
    if sql.postgres.port:
        where = RouteUrl(sql.postgres.host, sql.postgres.port)
        yield SqlListener("postgres", "Postgres", where, lambda: _postgres(options(), port), clock, log)


def _settings(options: Options, port: int, tls: TlsOptions | None = None) -> dict[str, Any]:
    """Return what each program is told: the server's address, and the certificate of its own listener."""
    host = "127.0.0.1" if options.host in ("0.0.0.0", "::", "") else options.host
    tls = tls or options.tls
    return {
        "server": f"{'tls' if options.tls is not None else 'nats'}://{RouteUrl(host, port).address}",
        "certificate": [tls.cert_file, tls.key_file] if tls is not None else [],
        "secure": options.tls is not None,
    }


def _postgres(options: Options, port: int) -> dict[str, Any]:
    """Return the settings for Postgres' protocol. Passwords in plain text are needed for its authentication."""
    postgres = options.sql.postgres
    users = [*itertools.chain(options.users, *(account.users for account in options.accounts))]
    plain = {user.user: user.password for user in users if user.user and user.password and not is_hashed(user.password)}
    others = options.operators is not None or options.callout is not None or bool(options.token)
    return _settings(options, port, postgres.tls) | {
        "is_open": not users and not others,
        "users": plain,
        "is_plain": len(plain) == len(users) and not others,
        "token": bool(options.token),
        "no_auth_user": options.no_auth_user,
        "max_connections": postgres.max_connections,
    }


class SqlListener:
    """One listener.

    Args:
        extra: of the package, whose module `program` listens.
        title: of the protocol, for the log.
        where: its address; port -1: a free one.
        settings: returns what the program is told at its start, and after a reload.

    Attributes:
        port: the bound one.
    """

    def __init__(
        self, extra: str, title: str, where: RouteUrl, settings: Callable[[], dict[str, Any]], clock: Clock, log: Logger
    ) -> None:
        self._extra, self._title, self._host, self._settings = extra, title, where.host, settings
        self._clock, self._log = clock, log
        self.port = where.port
        self._process: asyncio.subprocess.Process | None = None
        self._closed = False

    async def start(self) -> None:
        """Start the program. Raises StartError."""
        try:
            extras.require(self._extra, self._title)
        except extras.ExtraMissing as error:
            raise StartError(str(error)) from None
        try:
            await self._start()
        except (OSError, TimeoutError, ValueError):
            where = RouteUrl(self._host, max(self.port, 0)).address
            raise StartError(f"{self._title} cannot listen on {where}") from None
        self._log.info(f"Listening for {self._title} on {RouteUrl(self._host, self.port).address}")
        self._clock.spawn(self._keep())

    async def _start(self) -> None:
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            f"lakestream_{self._extra}.program",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=environment(),
            start_new_session=True,
            close_fds=True,
        )
        self.tell()
        assert process.stdout is not None
        async with asyncio.timeout(START_S):
            self.port = int(await process.stdout.readline())

    def tell(self) -> None:
        """Tell the program its settings, at its start and after a reload."""
        assert self._process is not None
        assert self._process.stdin is not None
        place = {"host": self._host, "port": max(self.port, 0)}
        self._process.stdin.write(msgspec.json.encode(place | self._settings()) + b"\n")

    async def _keep(self) -> None:
        """Start the program again when it has ended."""
        while True:
            assert self._process is not None
            await self._process.wait()
            if self._closed:
                return
            self._log.error(f"{self._title}: its process has ended; restarting it")
            await asyncio.sleep(AGAIN_S)
            with contextlib.suppress(OSError, TimeoutError, ValueError):
                await self._start()

    def close(self) -> None:
        """End the program."""
        self._closed = True
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
