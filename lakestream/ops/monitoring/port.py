"""The monitoring port.

Belongs here: HTTP and HTTPS for the pages of pages.py and for the console: an asyncio protocol around h11. This module,
and h11 with it, is imported only with a monitoring port.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Protocol, cast

import h11
from msgspec.structs import replace

from lakestream.config.errors import StartError
from lakestream.config.options import TlsOptions
from lakestream.net.listener import Arrival, Listener, ListenError, SetupError, TlsEntry, bind, peer_of
from lakestream.net.tls import ServerContext
from lakestream.ops.monitoring.exchange import JSON, TEXT, Events, HttpAnswer, HttpRequest, HttpSite, Outcome
from lakestream.ops.monitoring.monitored import Monitored
from lakestream.ops.monitoring.pages import Pages
from lakestream.ports import Clock

MAX_OPEN = 128
"""Open connections to the monitoring port."""

MAX_OPEN_OF_ADDRESS = 64
"""The same of one client address: others find room."""

HEAD_S = 5.0
"""Time that the head of a request may take (5 s, as in nats-server), of the first one from the connection on."""

IDLE_S = 60.0
"""Time that a connection may take without a request, and that the body of one may take (60 s)."""

MAX_BODY = 64 * 1024
"""Bytes of a request body that are read (and ignored); a longer one ends the connection. The console has limits of its
own."""

MAX_AHEAD = 64 * 1024
"""Bytes that are read of further requests while one is being answered (64 KiB)."""


class MetricsSource(Protocol):
    """The metrics of the server."""

    def scrape(self, accept: str, accept_encoding: str, done: Callable[[HttpAnswer], None]) -> None:
        """Call `done` with the page, in the event loop."""


_FULL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def entry(tls: TlsOptions) -> TlsEntry:
    """Return TLS of the monitoring port: the server's certificate; clients need none. Raises TlsError."""
    for_anybody = replace(tls, verify=False, verify_and_map=False, verify_optional=False, pinned_certs=(), first=False)
    return TlsEntry(server=ServerContext(for_anybody))


async def serve(
    node: Monitored, pages: Pages, scrapes: MetricsSource, clock: Clock, site: HttpSite | None = None
) -> Listener:
    """Listen where the options say; return the listener.

    Args:
        node: the server.
        pages: its pages.
        scrapes: its metrics.
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
    room = _Room()
    try:
        listening = bind(host, port)
    except ListenError as error:
        raise StartError(f"Can't start monitoring: can't listen to the monitor port: {error}") from error
    tls = entry(options.tls) if options.https_port and options.tls is not None else None
    listener = Listener(listening, lambda: _Connection(node, pages, scrapes, site, room), clock, tls=tls)
    await listener.start()
    return listener


class _Room:
    """The open connections, within the limits of their number.

    Where there is no place for another one, a connection that waits for its client gives way: of the address with most
    connections, half a request before a pause between two, and the one that has waited longest. So a client that holds
    its connections open keeps nobody out, not even others behind its own address. Requests that are being answered
    are never given up.
    """

    def __init__(self) -> None:
        self._open: dict[str, set[_Connection]] = {}

    def enter(self, one: _Connection) -> bool:
        """Add a connection; return False if there is no place, and none that gives way."""
        there = self._open.get(one.host, set())
        crowded = len(there) >= MAX_OPEN_OF_ADDRESS
        if crowded or sum(map(len, self._open.values())) >= MAX_OPEN:
            waiting = (each for crowd in ([there] if crowded else self._open.values()) for each in crowd if each.waits)
            found = min(waiting, key=lambda each: (-len(self._open[each.host]), each.rests, each.since), default=None)
            if found is None:
                return False
            self.leave(found)
            found.give_way()
        self._open.setdefault(one.host, set()).add(one)
        return True

    def leave(self, one: _Connection) -> None:
        """Remove a connection. Idempotent."""
        there = self._open.get(one.host, set())
        there.discard(one)
        if not there:
            self._open.pop(one.host, None)


class _Connection(Arrival):
    """One client: requests until either side closes.

    Attributes:
        since: time of the event loop since which it waits for a request.
    """

    def __init__(
        self, node: Monitored, pages: Pages, scrapes: MetricsSource, site: HttpSite | None, room: _Room
    ) -> None:
        self._log = node.log
        self._pages, self._scrapes, self._site = pages, scrapes, site
        self._room = room
        self._wire = h11.Connection(h11.SERVER)
        self._head: HttpRequest | None = None
        self._body: list[bytes] = []
        self._size, self._limit = 0, MAX_BODY
        self._on_site = False
        self._rejection: HttpAnswer | None = None
        self._peer = ("", 0)
        self._task: asyncio.Task[Outcome] | None = None
        self._events: Events | None = None
        self._ahead = 0
        self._full = False
        self._timer: asyncio.TimerHandle | None = None
        self._arrived = False
        self._heading = True
        self.since = asyncio.get_running_loop().time()

    @property
    def host(self) -> str:
        """Return the client's address."""
        return self._peer[0]

    @property
    def waits(self) -> bool:
        """Return True while there is nothing to answer."""
        return self._task is None and self._events is None

    @property
    def rests(self) -> bool:
        """Return True between two requests."""
        return not self._heading and self._wire.their_state is h11.IDLE

    def give_way(self) -> None:
        """Close, for another connection."""
        if self.abandon is not None:
            self.abandon()
        else:
            self._transport.abort()

    def arrived(self, host: str, port: int) -> None:
        self._peer = host, port
        self._arrived = True
        if not self._room.enter(self):
            raise SetupError("too many connections", "", "debug")

    def failed(self, error: SetupError) -> bytes:
        self._room.leave(self)
        text, answer = error.over_https(f"{self._peer[0]}:{self._peer[1]}")
        if text:
            self._log.error(f"monitoring: {text}")
        return answer

    # ------------------------------------------------------------------ asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._peer = peer_of(transport.get_extra_info("peername"))
        if not self._arrived and not self._room.enter(self):
            self._transport.write(_FULL)
            self._transport.close()
            return
        self._allow(HEAD_S)

    def _allow(self, seconds: float) -> None:
        """Give the client this time from now on; 0: no limit."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._expired) if seconds else None

    def _expired(self) -> None:
        if self._full:
            self._transport.abort()  # closing would wait for a client that does not read
        else:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        if self._events is not None:
            self._transport.abort()  # nothing more may be asked behind a response without an end
            return
        self._wire.receive_data(data)
        if self._task is None:
            self._go_on()
            return
        self._ahead += len(data)
        if self._ahead > MAX_AHEAD:
            self._transport.pause_reading()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._allow(0)
        if self._task is not None:
            self._task.cancel()
        events, self._events = self._events, None
        if events is not None:
            events.end()
        self._room.leave(self)

    def pause_writing(self) -> None:
        # Responses wait in memory for a client that does not read: it gets no further ones meanwhile.
        self._full = True
        if self._events is None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._full = False
        if self._task is None:
            self._transport.resume_reading()

    # ------------------------------------------------------------------ requests
    def _go_on(self) -> None:
        """Answer every complete request that has come."""
        try:
            while self._next():
                pass
        except h11.RemoteProtocolError as error:
            self._refuse(error)

    def _next(self) -> bool:
        """Read one request and answer it; False when there is no complete one, the answer takes time, or the connection
        ends."""
        while True:
            event = self._wire.next_event()
            if event is h11.NEED_DATA or event is h11.PAUSED:
                if self.rests and self._wire.trailing_data[0]:
                    self._heading = True
                    self._allow(HEAD_S)
                return False
            if isinstance(event, h11.Request):
                self._begin(event)
            elif isinstance(event, h11.Data):
                self._size += len(event.data)
                if self._size > self._limit:
                    raise h11.RemoteProtocolError("body too long", error_status_hint=413)
                if self._on_site and self._rejection is None:
                    self._body.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                break
            else:
                self._transport.close()
                return False
        outcome = self._outcome()
        if isinstance(outcome, HttpAnswer):
            return self._finish(outcome)
        self._allow(0)
        self._ahead = 0
        self._task = asyncio.ensure_future(outcome)
        self._task.add_done_callback(self._answered)
        return False

    def _begin(self, event: Any) -> None:
        """Take the head of a request."""
        self._heading = False
        self._allow(IDLE_S)
        path, _, query = event.target.decode("latin-1").partition("?")
        host, port = self._peer
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
        secure = self.secured_by is not None
        self._head = HttpRequest(event.method.decode("latin-1"), path, query, headers, host, port, secure)
        self._body, self._size, self._limit, self._rejection = [], 0, MAX_BODY, None
        site = self._site
        self._on_site = site is not None and (path == site.path or path.startswith(f"{site.path}/"))
        if self._on_site and site is not None:
            found = site.refuse(self._head)
            if isinstance(found, HttpAnswer):
                self._rejection = found  # sent behind the body, which is read and ignored
            else:
                self._limit = found
        if self._wire.they_are_waiting_for_100_continue:
            self._transport.write(self._wire.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")

    def _outcome(self) -> HttpAnswer | Awaitable[HttpAnswer] | Awaitable[Outcome]:
        head = self._head
        assert head is not None  # Invariant: a request is complete.
        if self._rejection is not None:
            return self._rejection
        if self._on_site and self._site is not None:
            body, self._body = b"".join(self._body), []
            return self._site.answer(head._replace(body=body))
        if self._pages.is_metrics(head.path):
            return self._scraped(head)
        try:
            return self._pages.answer(head.path, head.query)
        except Exception as error:
            # A failing page must not stop the listener; it is logged.
            self._log.exception(f"monitoring page {head.path} failed", error)
            return HttpAnswer(500, TEXT, b"500 internal error\n")

    async def _scraped(self, head: HttpRequest) -> HttpAnswer:
        scraped: asyncio.Future[HttpAnswer] = asyncio.get_running_loop().create_future()

        def done(answer: HttpAnswer) -> None:
            if not scraped.done():
                scraped.set_result(answer)

        self._scrapes.scrape(head.headers.get("accept", ""), head.headers.get("accept-encoding", ""), done)
        return await scraped

    def _answered(self, task: asyncio.Task[Outcome]) -> None:
        """Send what a task has found, and go on with the next request."""
        self._task = None
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            path = self._head.path if self._head is not None else ""
            self._log.exception(f"monitoring page {path} failed", error)
            outcome: Outcome = HttpAnswer(500, TEXT, b"500 internal error\n")
        else:
            outcome = task.result()
        if self._transport.is_closing():
            if not isinstance(outcome, HttpAnswer):
                outcome.end()
            return
        if not isinstance(outcome, HttpAnswer):
            self._stream(outcome)
        elif self._finish(outcome):
            if not self._full:
                self._transport.resume_reading()
            self._go_on()

    def _finish(self, answer: HttpAnswer) -> bool:
        """Send an answer; return True if the connection goes on, with the next request."""
        self._send(answer, head=self._head is not None and self._head.method == "HEAD")
        if self._wire.our_state is not h11.DONE or self._wire.their_state is not h11.DONE:
            self._transport.close()
            return False
        self._wire.start_next_cycle()
        self.since = asyncio.get_running_loop().time()
        self._allow(IDLE_S)
        return True

    def _refuse(self, error: Any) -> None:
        """Reject a request that is not HTTP, and close."""
        self._log.debug(f"monitoring request refused: {error}")
        if self._wire.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            phrase = HTTPStatus(error.error_status_hint).phrase
            self._send(HttpAnswer(error.error_status_hint, TEXT, f"{phrase}\n".encode()))
        self._transport.close()

    def _send(self, answer: HttpAnswer, *, head: bool = False) -> None:
        headers = [("Content-Type", answer.content_type), ("Content-Length", str(len(answer.body))), *answer.headers]
        if answer.content_type == JSON and not self._on_site:
            headers.append(("Access-Control-Allow-Origin", "*"))
        reason = HTTPStatus(answer.status).phrase
        parts = [self._wire.send(h11.Response(status_code=answer.status, headers=headers, reason=reason))]
        if not head:
            parts.append(self._wire.send(h11.Data(data=answer.body)))
        parts.append(self._wire.send(h11.EndOfMessage()))
        self._transport.write(b"".join(part for part in parts if part))

    # ------------------------------------------------------------------ responses without an end
    def _stream(self, events: Events) -> None:
        response = h11.Response(status_code=200, headers=list(events.headers), reason="OK")
        self._transport.write(self._wire.send(response))
        self._transport.resume_reading()  # so that the end of the client is noticed
        self._events = events
        events.begin(self)

    @property
    def writable(self) -> bool:
        return not self._full

    def send(self, data: bytes) -> None:
        """Send a part of a response without an end."""
        if self._events is not None and not self._transport.is_closing():
            self._transport.write(self._wire.send(h11.Data(data=data)) or b"")

    def close(self) -> None:
        """End a response without an end, and the connection."""
        events, self._events = self._events, None
        if events is not None:
            events.end()
            if not self._transport.is_closing():
                self._transport.write(self._wire.send(h11.EndOfMessage()) or b"")
                self._transport.close()
