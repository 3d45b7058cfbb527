"""Gateways over HTTP beside the flooded server: programs of their own, and somebody who asks each of them now and then.

Belongs here: starting `lakestream registry serve`, `iceberg serve` and `sharing serve`, and the times of their answers.
"""

from __future__ import annotations

import http.client
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tests.overload.quiet import PATIENCE_S, Took
from tests.servers import Server

PROGRAMS = {
    "registry": ("registry", "serve"),
    "iceberg": ("iceberg", "serve", "--lake", "@lake"),
    "sharing": ("sharing", "serve", "--lake", "@lake"),
}
"""Command of each."""
PAGE = "/none"
"""A page that is answered at once: that it is not there."""
SECURE = "-tls"
"""Ends the name of one that has TLS."""
RATE = 5
"""Requests a second to each."""


class Gateway:
    """One running gateway. `login`: user and password of the program itself."""

    def __init__(self, name: str, server: Server, login: dict[str, str]) -> None:
        self.name, is_secure = name, name.endswith(SECURE)
        words = PROGRAMS[name.removesuffix(SECURE)]
        command = [sys.executable, "-m", "lakestream", *words, "--listen", "127.0.0.1:0"]
        command = [each.replace("@lake", str(server.store / "lake")) for each in command]
        own = f"{login['user']}:{login['pass']}@" if login else ""
        command += ["--server", f"nats://{own}{server.host}:{server.port}"]
        self._context: ssl.SSLContext | None = None
        self._connection: http.client.HTTPConnection | None = None
        if is_secure:
            files = [str(server.certificates / f"server.{each}") for each in ("pem", "key")]
            command += ["--https-cert", files[0], "--https-key", files[1]]
            self._context = ssl.create_default_context(cafile=str(Path(server.certificates) / "ca.pem"))
            self._context.check_hostname = False
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # else it would be as important as the floods
        )
        assert self.process.stdout is not None
        told = self.process.stdout.readline().split()[-1]
        self.port = int(told.partition("://")[2].partition("/")[0].rpartition(":")[2])

    def ask(self) -> None:
        """Ask for the page, over the same connection. Raise OSError, HTTPException without an answer."""
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
            if self._context is not None:
                where, patience = ("127.0.0.1", self.port), PATIENCE_S
                self._connection = http.client.HTTPSConnection(*where, timeout=patience, context=self._context)
        try:
            self._connection.request("GET", PAGE)
            self._connection.getresponse().read()
        except BaseException:
            self._connection.close()
            self._connection = None
            raise

    def end(self) -> None:
        """End the program."""
        self.process.kill()
        self.process.wait()


class Asker(threading.Thread):
    """Asks each gateway, at fixed times; a request that fails has taken `PATIENCE_S`."""

    def __init__(self, gateways: Sequence[Gateway]) -> None:
        super().__init__(daemon=True)
        self._gateways, self._stopped, self._took = gateways, threading.Event(), list[Took]()

    def run(self) -> None:
        due = time.monotonic()
        while not self._stopped.is_set():
            for gateway in self._gateways:
                at = max(due, time.monotonic() - 1.0)  # one that is late is late once
                try:
                    gateway.ask()
                    self._took.append(Took("gateway", at, time.monotonic() - at))
                except (OSError, http.client.HTTPException):
                    self._took.append(Took("gateway", at, PATIENCE_S))
            due += 1 / RATE
            self._stopped.wait(max(0.0, due - time.monotonic()))

    def end(self) -> list[Took]:
        """Stop; return its requests."""
        self._stopped.set()
        self.join()
        return self._took
