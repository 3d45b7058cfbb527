"""Tokens of accounts from an HTTP server.

Belongs here: the requests to it, in threads of their own, as it may be slow.
"""

from __future__ import annotations

import asyncio
import http.client
import ssl
import time
import urllib.parse
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from lakestream.config.errors import reason_of
from lakestream.config.options import SECOND, TlsOptions
from lakestream.config.tls import load_pair
from lakestream.net.accounts.resolver import Answer, Missing, ResolverError
from lakestream.protocol.goquote import quoted
from lakestream.protocol.jwt import MAX_TOKEN_BYTES

THREADS = 4
"""Requests to the URL at a time (4); further ones wait."""

MAX_LOOKUPS = 4096
"""Requests that wait or run (default 4,096); further ones fail at once."""

_PIECE = 64 << 10


class UrlResolver:
    """Asks a URL, followed by the key of an account, for the token of each account that is not known.

    Args:
        url: ends with a slash.
        tls: with the server; None: the system's authorities.
        timeout_ns: of a whole request.
    """

    def __init__(self, url: str, tls: TlsOptions | None, timeout_ns: int) -> None:
        self._url, self._timeout_ns = url, timeout_ns
        self._context = _context(tls) if url.startswith("https:") else None
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="lakestream-resolver")
        self._under_way = 0

    def lookup(self, account: str, done: Callable[[Answer], None]) -> None:
        if self._under_way >= MAX_LOOKUPS:
            done(Missing("too many accounts are looked up"))
            return
        self._under_way += 1
        work = asyncio.get_running_loop().run_in_executor(self._executor, self._answer, account)

        def finished(work: asyncio.Future[Answer]) -> None:
            self._under_way -= 1
            if not work.cancelled():
                done(work.result())

        work.add_done_callback(finished)

    def is_remote(self, account: str) -> bool:
        return False

    def preload(self, tokens: Iterable[tuple[str, str]], changed: Callable[[str, str], None]) -> None:
        """Do nothing: there are no preloaded tokens beside a URL."""

    def store(self, account: str, token: str, done: Callable[[str], None]) -> None:
        """Keep nothing: the token is used until the server stops."""
        done("")

    def check(self) -> None:
        """Get the URL itself. Blocks. Raises ResolverError."""
        self._get("")

    def close(self) -> None:
        """Cancel waiting requests."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _answer(self, account: str) -> Answer:
        try:
            return self._get(account)
        except ResolverError as error:
            return Missing(str(error))

    def _get(self, account: str) -> str:
        url = self._url + account
        failed, get = f"could not fetch <{quoted(url)}>", f"Get {quoted(url)}"
        try:
            parts = urllib.parse.urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ResolverError(f"{failed}: {get}: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ResolverError(f"{failed}: {get}: unsupported protocol scheme {quoted(parts.scheme)}")
        until = time.monotonic() + self._timeout_ns / SECOND
        connection = self._connection(parts.scheme, parts.hostname, port)
        try:
            path = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
            connection.request("GET", path)
            answer = connection.getresponse()
            if answer.status != 200:
                raise ResolverError(f"{failed}: {answer.status} {answer.reason}")
            body = bytearray()
            while piece := answer.read1(_PIECE):
                body += piece
                if len(body) > MAX_TOKEN_BYTES or time.monotonic() > until:
                    raise ResolverError(f"{failed}: the answer is too long, or comes too slowly")
            return body.decode("utf-8", "replace")
        except ConnectionRefusedError:
            address = f"{parts.hostname}:{connection.port}"
            raise ResolverError(f"{failed}: {get}: dial tcp {address}: connect: connection refused") from None
        except (OSError, http.client.HTTPException) as error:
            reason = reason_of(error) if isinstance(error, OSError) else str(error)
            raise ResolverError(f"{failed}: {get}: {reason}") from None
        finally:
            connection.close()

    def _connection(self, scheme: str, host: str, port: int | None) -> http.client.HTTPConnection:
        timeout_s = self._timeout_ns / SECOND
        if scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=timeout_s)
        return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=self._context)


def _context(tls: TlsOptions | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.ca_file or None if tls is not None else None)
    if tls is not None and tls.insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if tls is not None and tls.cert_file:
        load_pair(context, tls.cert_file, tls.key_file)
    return context
