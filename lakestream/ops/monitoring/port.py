"""The monitoring port.

Belongs here: the listener for HTTP and HTTPS, and which of the pages of pages.py, the metrics and the console answers a
request. This module, and h11 with it, is imported only with a monitoring port.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from msgspec.structs import replace

from lakestream.config.errors import StartError
from lakestream.config.options import TlsOptions
from lakestream.http.connection import HttpConnection, HttpLimits, HttpRoom
from lakestream.http.exchange import JSON, HttpAnswer, HttpHandler, HttpOutput, HttpRequest, Outcome
from lakestream.net.listener import Arrival, Listener, ListenError, SetupError, TlsEntry, bind, peer_of
from lakestream.net.tls import ServerContext
from lakestream.ops.monitoring.monitored import Monitored
from lakestream.ops.monitoring.pages import Pages
from lakestream.ports import Clock, Share

LIMITS = HttpLimits(most=128, of_address=64, head_s=5.0, idle_s=60.0, body_s=60.0, stalled_s=60.0)
"""Limits of connections to the port. The time for the head of a request is nats-server's."""


class MetricsSource(Protocol):
    """The metrics of the server."""

    def scrape(self, accept: str, accept_encoding: str, done: Callable[[HttpAnswer], None]) -> None:
        """Call `done` with the page, in the event loop."""


class HttpSite(Protocol):
    """The handler of all paths below one.

    Attributes:
        path: the first of them, without a slash at the end.
    """

    path: str

    def refuse(self, request: HttpRequest) -> HttpAnswer | int:
        """Judge a request by its head: return the answer that rejects it, or the maximum size of its body in bytes."""

    def answer(self, request: HttpRequest) -> Awaitable[Outcome]:
        """Answer a request."""


def entry(tls: TlsOptions) -> TlsEntry:
    """Return TLS of the monitoring port: the server's certificate; clients need none. Raises TlsError."""
    for_anybody = replace(tls, verify=False, verify_and_map=False, verify_optional=False, pinned_certs=(), first=False)
    return TlsEntry(server=ServerContext(for_anybody))


async def serve(
    node: Monitored, pages: Pages, scrapes: MetricsSource, clock: Clock, share: Share, site: HttpSite | None = None
) -> Listener:
    """Listen where the options say; return the listener.

    Args:
        node: the server.
        pages: its pages.
        scrapes: its metrics.
        share: the time that requests have in a turn of the event loop, together with clients.
        site: the console; None: there is none.

    Raises:
        StartError: the address cannot be used, or TLS is not configured.
    """
    options = node.options
    if options.http_port and options.https_port:
        ports = f"HTTP ({options.http_port}) and HTTPs ({options.https_port})"
        raise StartError(f"Can't start monitoring: can't specify both {ports} ports")
    if options.https_port and (options.tls is None or not (options.tls.cert_file or options.tls.certs)):
        raise StartError("Can't start monitoring: TLS cert and key required for HTTPS")
    host = options.http_host or options.host
    port = options.https_port or options.http_port
    room, handler = HttpRoom(LIMITS), _Handler(node, pages, scrapes, share, site)
    try:
        listening = bind(host, port)
    except ListenError as error:
        raise StartError(f"Can't start monitoring: can't listen to the monitor port: {error}") from error
    tls = entry(options.tls) if options.https_port and options.tls is not None else None
    listener = Listener(listening, lambda: _Connection(handler, room), clock, tls=tls)
    await listener.start()
    return listener


class _Handler(HttpHandler):
    """Pages, metrics and console of one server."""

    def __init__(
        self, node: Monitored, pages: Pages, scrapes: MetricsSource, share: Share, site: HttpSite | None
    ) -> None:
        self.log, self._share = node.log, share
        self._pages, self._scrapes, self._site = pages, scrapes, site

    def _on_site(self, path: str) -> HttpSite | None:
        site = self._site
        return site if site is not None and (path == site.path or path.startswith(f"{site.path}/")) else None

    def postpones(self, answer: Callable[[], None]) -> bool:
        if not self._share.is_over():
            return False
        self._share.wait(answer)
        return True

    def refuse(self, request: HttpRequest) -> HttpAnswer | int:
        site = self._on_site(request.path)
        return super().refuse(request) if site is None else site.refuse(request)

    def answer(self, request: HttpRequest, output: HttpOutput) -> HttpAnswer | Awaitable[Outcome]:
        if (site := self._on_site(request.path)) is not None:
            return site.answer(request)
        if self._pages.is_metrics(request.path):
            return self._scraped(request)
        return self._pages.answer(request.path, request.query)

    def completed(self, request: HttpRequest, answer: HttpAnswer) -> HttpAnswer:
        if answer.content_type != JSON or self._on_site(request.path) is not None:
            return answer
        return answer._replace(headers=(*answer.headers, ("Access-Control-Allow-Origin", "*")))

    async def _scraped(self, request: HttpRequest) -> HttpAnswer:
        scraped: asyncio.Future[HttpAnswer] = asyncio.get_running_loop().create_future()

        def done(answer: HttpAnswer) -> None:
            if not scraped.done():
                scraped.set_result(answer)

        self._scrapes.scrape(request.headers.get("accept", ""), request.headers.get("accept-encoding", ""), done)
        return await scraped

    def invalid(self, status: int, reason: str) -> HttpAnswer:
        self.log.debug(f"monitoring request refused: {reason}")
        return super().invalid(status, reason)

    def failed(self, path: str, error: BaseException) -> HttpAnswer:
        self.log.exception(f"monitoring page {path} failed", error)
        return super().failed(path, error)


class _Connection(HttpConnection, Arrival):
    """One client of the port."""

    def __init__(self, handler: _Handler, room: HttpRoom) -> None:
        super().__init__(handler, room)
        self._log = handler.log

    @property
    def secure(self) -> bool:
        return self.secured_by is not None

    def address_of(self, name: Any) -> tuple[str, int]:
        return peer_of(name)

    def give_way(self) -> None:
        if self.abandon is not None:
            self.abandon()
        else:
            super().give_way()

    def arrived(self, host: str, port: int) -> None:
        self.peer = host, port
        if not self.enter():
            raise SetupError("too many connections", "", "debug")

    def failed(self, error: SetupError) -> bytes:
        self._room.leave(self)
        text, answer = error.over_https(f"{self.peer[0]}:{self.peer[1]}")
        if text:
            self._log.error(f"monitoring: {text}")
        return answer
