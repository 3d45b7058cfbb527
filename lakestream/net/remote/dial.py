"""Dialling a remote server.

Belongs here: one task for each remote that dials its addresses in turn, back-off, which failures are logged, TLS, and
the credentials for CONNECT. The protocol is in connection.py and leaf_connection.py.
"""

from __future__ import annotations

import asyncio
import base64
import random
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

from lakestream.config.errors import reason_of
from lakestream.config.options import (
    WEBSOCKETS,
    HttpProxy,
    RemoteAddress,
    RemoteOptions,
    RemoteTls,
    RouteUrl,
)
from lakestream.logging import Logger
from lakestream.net import tls as tls_contexts
from lakestream.net.tls import TlsError
from lakestream.protocol.nkeys import BadKeyError, credentials, key_pair

DIAL_TIMEOUT_S = 5.0
"""Maximum time to connect (5 s)."""

MAX_PROXY_ANSWER = 64 << 10
"""Bytes of a proxy's answer (64 KiB)."""

FIRST_DELAY_S, MAX_DELAY_S = 0.1, 5.0
"""Pause before the second round of attempts (0.1 s); doubles with each further one, up to 5 s."""

SETTLED_S = 5.0
"""A connection that was up for less (5 s) counts as a failed attempt for the back-off."""

REPORT_EVERY = 100
"""An unchanged failure is logged once in this many attempts."""

MAX_DISCOVERED = 64
"""Discovered addresses that are kept (64), the first ones."""


class LoginError(Exception):
    """Raised when a file with a key or credentials cannot be used; the text says why."""


class Redial:
    """Keeps one connection to a remote.

    Args:
        options: the remote.
        attempt: makes one connection to an address and returns when it has ended: "" when it was up, else why it
            failed. Exceptions of sockets, TLS and keys count as failures.
        log: for failures.
        pause_ns: between two rounds of attempts; 0: it grows as the constants here say.

    Attributes:
        error: why there is no connection; "" while there is one, or before the first attempt.
        attempts: since the connection was last up.
    """

    def __init__(
        self, options: RemoteOptions, attempt: Callable[[RemoteAddress], Awaitable[str]], log: Logger, pause_ns: int = 0
    ) -> None:
        self.error = ""
        self.attempts = 0
        self._options, self._attempt, self._log = options, attempt, log
        self._pause_ns = pause_ns
        self._discovered: list[RemoteAddress] = []
        self._reported: dict[RemoteAddress, tuple[str, int]] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start dialling."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def started(self) -> bool:
        """Return True while it dials or is connected."""
        return self._task is not None

    async def stop(self) -> None:
        """Dial no more; the attempt under way is cancelled. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def came_up(self) -> None:
        """Note that the connection is up."""
        self.error = ""
        self.attempts = 0
        self._reported.clear()

    def went_down(self, why: str) -> None:
        """Note that the connection ended."""
        self.error = why

    def discovered(self, places: Iterable[str]) -> None:
        """Take the members of the remote's cluster (`host:port`): they are dialled after the configured ones."""
        if self._options.ignore_discovered:
            return
        first = self._options.urls[0]
        known = {(address.host, address.port) for address in self._options.urls}
        found: dict[RemoteAddress, None] = {}
        for place in places:
            host, colon, port = place.rpartition(":")
            if colon and port.isdecimal() and (host.strip("[]"), int(port)) not in known:
                found[first._replace(host=host.strip("[]"), port=int(port))] = None
        self._discovered = list(found)[:MAX_DISCOVERED]

    # ------------------------------------------------------------------ the task
    async def _run(self) -> None:
        delay = FIRST_DELAY_S
        while True:
            for address in (*self._options.urls, *self._discovered):
                began = time.monotonic()
                why = await self._try_one(address)
                if not why and time.monotonic() - began >= SETTLED_S:
                    delay = FIRST_DELAY_S
                if why:
                    self._failed(address, why)
                else:
                    break  # it was up: begin with the first address again
            await asyncio.sleep(self._pause_ns / 1e9 or delay * random.uniform(0.75, 1))
            delay = min(2 * delay, MAX_DELAY_S)

    async def _try_one(self, address: RemoteAddress) -> str:
        """Make one attempt; return why it failed, "" after a connection that was up."""
        try:
            return await self._attempt(address)
        except TimeoutError:
            return "timeout"
        except ssl.SSLCertVerificationError as error:
            return f"TLS: certificate verify failed: {error.verify_message}"
        except ssl.SSLError as error:
            return f"TLS: {error.reason or error}"
        except OSError as error:
            return reason_of(error)
        except (LoginError, TlsError) as error:
            return str(error)
        except Exception as error:  # go on dialling after any failure
            return f"{type(error).__name__}: {error}"

    def _failed(self, address: RemoteAddress, why: str) -> None:
        self.attempts += 1
        self.error = why
        reported, same = self._reported.get(address, ("", 0))
        same = same + 1 if reported == why else 0
        self._reported[address] = why, same
        if same % REPORT_EVERY == 0:
            name, attempt = self._options.name, f"attempt {self.attempts}"
            self._log.error(f"Error trying to connect to remote {name} ({address.shown}, {attempt}): {why}")


# ---------------------------------------------------------------------- sockets and TLS


async def dial(
    options: RemoteOptions, address: RemoteAddress, protocol: asyncio.Protocol, proxy: HttpProxy | None = None
) -> asyncio.Transport:
    """Connect, with TLS at once where the options or WebSocket say so. Raises OSError, ssl.SSLError, TimeoutError,
    TlsError."""
    tls = options.tls
    first = tls is not None and (tls.first or address.scheme in WEBSOCKETS)
    async with asyncio.timeout(DIAL_TIMEOUT_S if proxy is None else proxy.timeout_ns / 1e9):
        if proxy is not None:
            transport = await _tunnelled(proxy, address)
            if first:
                transport = await secure(transport, protocol, options, address)
            else:
                transport.set_protocol(protocol)
            protocol.connection_made(transport)
            return transport
        if first:
            assert tls is not None
            context, name = tls_contexts.dialling(tls), _name(options, address)
            return await tls_contexts.connect(protocol, address.host, address.port, context, name, tls.timeout_ns)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(lambda: protocol, address.host, address.port)
        return transport


class _ProxyAnswer(asyncio.Protocol):
    """Reads the answer of a proxy: nobody speaks behind it before this side does."""

    def __init__(self) -> None:
        self.head: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._read = b""

    def data_received(self, data: bytes) -> None:
        self._read += data
        if not self.head.done() and (b"\r\n\r\n" in self._read or len(self._read) > MAX_PROXY_ANSWER):
            self.head.set_result(self._read)

    def connection_lost(self, exc: BaseException | None) -> None:
        if not self.head.done():
            self.head.set_result(self._read)


async def _tunnelled(proxy: HttpProxy, address: RemoteAddress) -> asyncio.Transport:
    """Connect through a proxy. Raises OSError."""
    answer, there = _ProxyAnswer(), RouteUrl(address.host, address.port).address
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(lambda: answer, proxy.host, proxy.port)
    try:
        login = base64.b64encode(f"{proxy.user}:{proxy.password}".encode()).decode()
        lines = [f"CONNECT {there} HTTP/1.1", f"Host: {there}"]
        lines += [f"Proxy-Authorization: Basic {login}"] if proxy.user else []
        transport.write("\r\n".join([*lines, "", ""]).encode())
        head = await answer.head
        if not re.match(rb"HTTP/1\.[01] 200(?: [^\r\n]*)?\r\n(?s:.*)\r\n\Z", head):
            status = head.partition(b"\r\n")[0][:100].decode("latin-1") or "no answer"
            raise ConnectionError(f"proxy {proxy.host}:{proxy.port}: CONNECT failed: {status}")
    except BaseException:
        transport.abort()
        raise
    return transport


async def secure(
    transport: asyncio.Transport, protocol: asyncio.Protocol, options: RemoteOptions, address: RemoteAddress
) -> asyncio.Transport:
    """Start TLS on a connection, after the remote's INFO. Raises as `dial`."""
    tls = options.tls or RemoteTls()
    context = tls_contexts.dialling(tls)
    return await tls_contexts.secure(transport, protocol, context, _name(options, address), tls.timeout_ns)


def _name(options: RemoteOptions, address: RemoteAddress) -> str:
    """Return the name that the certificate must have. Discovered members are often addresses while certificates have
    names: that is what `server_name` is for."""
    return (options.tls.server_name if options.tls is not None else "") or address.host


# ---------------------------------------------------------------------- login


class Keys(NamedTuple):
    """The seed to sign with, and the user JWT; "" where there is none."""

    jwt: str = ""
    seed: str = ""


def read_keys(options: RemoteOptions) -> Keys:
    """Read the keys of a remote from their current files, which are replaced before they expire. Blocks.

    Raises:
        LoginError: a file is missing or invalid.
    """
    file = options.credentials or options.nkey_file
    if not file:
        return Keys(options.jwt, options.nkey)
    try:
        with open(file, "rb") as stream:
            content = stream.read()
        found = Keys(*credentials(content)) if options.credentials else Keys(seed=_seed(content))
        key_pair(found.seed)
    except OSError as error:
        raise LoginError(f"cannot read {file!r}: {reason_of(error)}") from error
    except BadKeyError as error:
        raise LoginError(f"{file!r}: {error}") from error
    return found


def _seed(content: bytes) -> str:
    """Return the first line of a file that is not a comment."""
    lines = (line.strip() for line in content.decode("ascii", "replace").splitlines())
    return next((line for line in lines if line and not line.startswith("#")), "")


def login_fields(options: RemoteOptions, address: RemoteAddress, keys: Keys, nonce: str) -> dict[str, Any]:
    """Return the fields of CONNECT that authenticate. Credentials in the URL take precedence over those of the block.

    Args:
        nonce: the text to sign, from INFO; "" without one.
    """
    if address.user and not address.password:
        return {"auth_token": address.user}
    if address.user:
        return {"user": address.user, "pass": address.password}
    if keys.seed:
        pair = key_pair(keys.seed)
        signature = base64.urlsafe_b64encode(pair.sign(nonce.encode())).rstrip(b"=").decode()
        identity = {"jwt": keys.jwt} if keys.jwt else {"nkey": pair.public}
        return identity | ({"sig": signature} if nonce else {})
    if options.user:
        return {"user": options.user, "pass": options.password}
    return {"auth_token": options.token} if options.token else {}
