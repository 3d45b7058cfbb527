"""The listener for Flight SQL, in a process of its own.

Belongs here: starting the program of packages/flight, which is a client of this server, starting it again when it has
ended, and its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

import msgspec

from lakestream import extras
from lakestream.config.errors import StartError
from lakestream.config.options import Options, RouteUrl
from lakestream.logging import Logger
from lakestream.ops.sql.processes import environment
from lakestream.ports import Clock

START_S = 60.0
"""Time until the program listens (60 s)."""
AGAIN_S = 1.0
"""Pause before it is started again (1 s)."""
_PROGRAM = "lakestream_flight.program"


class FlightListener:
    """The listener of one server.

    Args:
        options: with `sql.flight`.
        port: of clients, on this machine.

    Attributes:
        port: the bound one.
    """

    def __init__(self, options: Options, port: int, clock: Clock, log: Logger) -> None:
        self._options, self._clients, self._clock, self._log = options, port, clock, log
        self.port = options.sql.flight_port
        self._process: asyncio.subprocess.Process | None = None
        self._closed = False

    async def start(self) -> None:
        """Start the program. Raises StartError."""
        try:
            extras.require("flight", "Flight SQL")
        except extras.ExtraMissing as error:
            raise StartError(str(error)) from None
        try:
            await self._start()
        except (OSError, TimeoutError, ValueError):
            where = RouteUrl(self._options.sql.flight_host, max(self.port, 0)).address
            raise StartError(f"Flight SQL cannot listen on {where}") from None
        self._log.info(f"Listening for Flight SQL on {RouteUrl(self._options.sql.flight_host, self.port).address}")
        self._clock.spawn(self._keep())

    async def _start(self) -> None:
        options = self._options
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            _PROGRAM,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=environment(),
            start_new_session=True,
            close_fds=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        host = "127.0.0.1" if options.host in ("0.0.0.0", "::", "") else options.host
        tls = options.tls
        settings = {
            "host": options.sql.flight_host,
            "port": max(self.port, 0),
            "server": f"{'tls' if tls is not None else 'nats'}://{RouteUrl(host, self._clients).address}",
            "certificate": [tls.cert_file, tls.key_file] if tls is not None else [],
            "secure": tls is not None,
        }
        process.stdin.write(msgspec.json.encode(settings) + b"\n")
        async with asyncio.timeout(START_S):
            self.port = int(await process.stdout.readline())

    async def _keep(self) -> None:
        """Start the program again when it has ended."""
        while True:
            assert self._process is not None
            await self._process.wait()
            if self._closed:
                return
            self._log.error("Flight SQL: its process has ended; it is started again")
            await asyncio.sleep(AGAIN_S)
            with contextlib.suppress(OSError, TimeoutError, ValueError):
                await self._start()

    def close(self) -> None:
        """End the program."""
        self._closed = True
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
