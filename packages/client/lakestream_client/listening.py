"""Listeners of gateways over HTTP: their options, TLS, connections, and their end.

Belongs here: what Delta Sharing, the Iceberg catalog and the schema registry share. Passwords and tokens cross a
network in plain text only if somebody has said so.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import signal
import socket
import ssl
from collections.abc import Coroutine
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from lakestream.http.connection import HttpConnection, HttpLimits, HttpRoom
from lakestream.http.exchange import HttpHandler

MAX_CONNECTIONS = 1_000
"""Connections at the same time. A further one takes the place of the one that has been idle longest, or is told that
there is none (503)."""
IDLE_S = 30.0
"""Time without a request after which a connection is closed, and time for a request's body."""
STALLED_S = 600.0
"""The same while the client has not read all of an answer (10 min)."""
HANDSHAKE_S, MAX_HANDSHAKES = 10.0, 256
"""Time for a TLS handshake (10 s), and their number at the same time (256): the oldest one gives way."""
BACKLOG = 1024
"""Connections that the system accepts before the event loop does (1,024)."""
ACCEPTED_IN_A_TURN, EXHAUSTED_PAUSE_S = 4, 0.1
"""Those with TLS that are accepted in one turn of the event loop, and the pause when the process has no files left."""
GRACE_S = 5.0
"""Time that requests under way get at the end."""
ListenOption = Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="Address of the listener.")]
CertificateOption = Annotated[
    str, typer.Option("--https-cert", metavar="FILE", help="Certificate of the listener (PEM).")
]
CertificateKeyOption = Annotated[str, typer.Option("--https-key", metavar="FILE", help="Its private key (PEM).")]
InsecureOption = Annotated[
    bool, typer.Option("--insecure", help="Listen without TLS beyond loopback, behind a proxy that terminates it.")
]
_log = logging.getLogger("lakestream.listener")

T = TypeVar("T")


class BadSettings(Exception):
    """Raised for settings that cannot be served; the text says why and what to do."""


class Listening(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a listener.

    Attributes:
        host, port: its address; port 0: a free one.
        cert_file, key_file: PEM files of TLS; "": none.
        insecure: allow plain text at an address that is not loopback: a proxy in front has TLS.
    """

    host: str = "127.0.0.1"
    port: int = 0
    cert_file: str = ""
    key_file: str = ""
    insecure: bool = False

    @classmethod
    def of_options(cls, listen: str, cert_file: str, key_file: str, insecure: bool) -> Listening:
        """Return the settings that a command's options name. Raises BadSettings."""
        host, _, port = listen.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise BadSettings(f"--listen {listen}: an address such as 0.0.0.0:8480")
        host = host.removeprefix("[").removesuffix("]")
        return cls(host=host, port=int(port), cert_file=cert_file, key_file=key_file, insecure=insecure)

    def context(self) -> ssl.SSLContext | None:
        """Return the context of TLS; None without TLS.

        Raises:
            BadSettings: logins would cross a network in plain text, or the files do not load.
        """
        if not self.cert_file:
            if not self.insecure and not _is_loopback(self.host):
                raise BadSettings(
                    f"passwords and tokens would be sent in plain text to {self.host}: give --https-cert and "
                    "--https-key, or --insecure if a proxy in front of this address has TLS"
                )
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.load(context)
        return context

    def load(self, context: ssl.SSLContext) -> None:
        """Read certificate and key into a context. Raises BadSettings."""
        try:
            context.load_cert_chain(self.cert_file, self.key_file or None)
        except (OSError, ssl.SSLError) as error:
            raise BadSettings(f"cannot use {self.cert_file} and {self.key_file} for TLS: {error}") from None


class HttpListener:
    """A listener for a handler of requests.

    Args:
        handler: answers them.
        max_connections: at the same time.
        idle_s: time without a request after which a connection is closed.
    """

    def __init__(self, handler: HttpHandler, max_connections: int = MAX_CONNECTIONS, idle_s: float = IDLE_S) -> None:
        self._handler = handler
        most = {"most": max_connections, "of_address": max_connections}  # a proxy may be the only address
        self._room = HttpRoom(HttpLimits(**most, head_s=idle_s, idle_s=idle_s, body_s=idle_s, stalled_s=STALLED_S))
        self._server: asyncio.Server | None = None
        self._listening: list[socket.socket] = []
        self._handshakes: dict[asyncio.Task[None], None] = {}

    async def start(self, host: str, port: int, context: ssl.SSLContext | None = None) -> str:
        """Listen; return the origin, such as `http://127.0.0.1:8480`. Raises BadSettings."""
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._made, host, port, backlog=BACKLOG, start_serving=context is None
            )
        except OSError as error:
            raise BadSettings(f"cannot listen on {host}:{port}: {error.strerror}") from None
        if context is not None:
            self._listening = [socket.socket(fileno=os.dup(each.fileno())) for each in self._server.sockets]
            for each in self._listening:
                each.listen(BACKLOG)
                self._accept_from(each, context)
        bound = self._server.sockets[0].getsockname()
        shown = f"[{bound[0]}]:{bound[1]}" if ":" in bound[0] else f"{bound[0]}:{bound[1]}"
        return f"{'https' if context else 'http'}://{shown}"

    def _made(self) -> HttpConnection:
        return HttpConnection(self._handler, self._room)

    # A server of asyncio's with TLS has no limit of handshakes, which are no connections yet: they are begun here.
    def _accept_from(self, listening: socket.socket, context: ssl.SSLContext) -> None:
        if listening.fileno() >= 0:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening, context)

    def _accept(self, listening: socket.socket, context: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(ACCEPTED_IN_A_TURN):
            try:
                accepted, _address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # no more files can be opened
                loop.remove_reader(listening)
                loop.call_later(EXHAUSTED_PAUSE_S, self._accept_from, listening, context)
                return
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if len(self._handshakes) >= MAX_HANDSHAKES:
                oldest = next(iter(self._handshakes))
                del self._handshakes[oldest]  # now, not at its end: the next one is that of the next connection
                oldest.cancel()
            task = asyncio.ensure_future(self._shake_hands(accepted, context))
            self._handshakes[task] = None
            task.add_done_callback(lambda task: self._handshakes.pop(task, None))

    async def _shake_hands(self, accepted: socket.socket, context: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        with accepted, contextlib.suppress(OSError):  # ssl.SSLError is one
            await loop.connect_accepted_socket(
                self._made, accepted.dup(), ssl=context, ssl_handshake_timeout=HANDSHAKE_S
            )

    async def close(self) -> None:
        """Stop listening; requests under way may end."""
        for each in self._listening:
            asyncio.get_running_loop().remove_reader(each)
            each.close()
        for task in list(self._handshakes):
            task.cancel()
        if self._server is not None:
            self._server.close()
        await self._room.close(GRACE_S)


def run_gateway(serving: Coroutine[Any, Any, T]) -> T:
    """Run a gateway, with uvloop if it is installed: for each read of a few bytes asyncio's loop takes 256 KiB."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(serving)
    return uvloop.run(serving)


async def until_signal(context: ssl.SSLContext | None, settings: Listening) -> None:
    """Wait for SIGINT or SIGTERM. SIGHUP reads the certificate again."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def renew() -> None:
        if context is not None:
            try:
                settings.load(context)
                _log.info("the certificate was read again")
            except BadSettings as error:
                _log.error("%s; the old one stays", error)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    loop.add_signal_handler(signal.SIGHUP, renew)
    await ended.wait()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
