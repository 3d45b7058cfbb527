"""The monitoring port.

Belongs here: HTTP and HTTPS for the pages of pages.py: an asyncio protocol around h11. This module,
and h11 with it, is imported only with a monitoring port.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, cast

import h11
from msgspec.structs import replace

from lakestream.config.errors import StartError
from lakestream.config.options import TlsOptions
from lakestream.net.listener import Arrival, Listener, ListenError, SetupError, TlsEntry, bind
from lakestream.net.tls import ServerContext
from lakestream.ops.monitoring.monitored import Monitored
from lakestream.ops.monitoring.pages import Answer, Pages
from lakestream.ports import Clock

MAX_OPEN = 128
"""Open connections to the monitoring port; further ones get 503 and are closed."""

IDLE_S = 60.0
"""A connection without a complete request for this long is closed."""

MAX_BODY = 64 * 1024
"""Bytes of a request body that are read (and ignored); a longer one ends the connection."""

_FULL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def entry(tls: TlsOptions) -> TlsEntry:
    """Return TLS of the monitoring port: the server's certificate; clients need none. Raises TlsError."""
    for_anybody = replace(tls, verify=False, verify_and_map=False, pinned_certs=(), first=False)
    return TlsEntry(server=ServerContext(for_anybody))


async def serve(node: Monitored, pages: Pages, clock: Clock) -> Listener:
    """Listen where the options say; return the listener.

    Args:
        node: the server.
        pages: its pages.

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
    open_ones = set[_Connection]()
    try:
        listening = bind(host, port)
    except ListenError as error:
        raise StartError(f"Can't start monitoring: can't listen to the monitor port: {error}") from error
    tls = entry(options.tls) if options.https_port and options.tls is not None else None
    listener = Listener(listening, lambda: _Connection(node, pages, open_ones), clock, tls=tls)
    await listener.start()
    return listener


class _Connection(Arrival):
    """One client: requests until either side closes."""

    def __init__(self, node: Monitored, pages: Pages, open_ones: set[_Connection]) -> None:
        self._log = node.log
        self._pages = pages
        self._open = open_ones
        self._wire = h11.Connection(h11.SERVER)
        self._request: Any = None
        self._body = 0
        self._peer = ""

    def arrived(self, host: str, port: int) -> None:
        self._peer = f"{host}:{port}"
        if len(self._open) >= MAX_OPEN:
            raise SetupError("too many connections", "", "debug")
        self._open.add(self)

    def failed(self, error: SetupError) -> bytes:
        self._open.discard(self)
        text, answer = error.over_https(self._peer)
        if text:
            self._log.error(f"monitoring: {text}")
        return answer

    # ------------------------------------------------------------------ asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._timer = asyncio.get_running_loop().call_later(IDLE_S, self._transport.close)
        if self not in self._open and len(self._open) >= MAX_OPEN:
            self._transport.write(_FULL)
            self._transport.close()
            return
        self._open.add(self)

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        self._wire.receive_data(data)
        self._go_on()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._timer.cancel()
        self._open.discard(self)

    def pause_writing(self) -> None:
        # Responses wait in memory for a client that does not read: it gets no further ones meanwhile.
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._transport.resume_reading()

    # ------------------------------------------------------------------ requests
    def _go_on(self) -> None:
        """Answer every complete request that has come."""
        try:
            while self._next():
                self._wire.start_next_cycle()
        except h11.RemoteProtocolError as error:
            self._refuse(error)

    def _next(self) -> bool:
        """Read one request and answer it; False when there is no complete one, or the connection ends."""
        while True:
            event = self._wire.next_event()
            if event is h11.NEED_DATA or event is h11.PAUSED:
                return False
            if isinstance(event, h11.Request):
                self._request, self._body = event, 0
            elif isinstance(event, h11.Data):
                self._body += len(event.data)
                if self._body > MAX_BODY:
                    raise h11.RemoteProtocolError("body too long", error_status_hint=413)
            elif isinstance(event, h11.EndOfMessage):
                break
            else:
                self._transport.close()
                return False
        self._send(self._answer(), head=self._request.method == b"HEAD")
        if self._wire.our_state is not h11.DONE or self._wire.their_state is not h11.DONE:
            self._transport.close()
            return False
        self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(IDLE_S, self._transport.close)
        return True

    def _answer(self) -> Answer:
        path, _, query = self._request.target.decode("latin-1").partition("?")
        try:
            return self._pages.answer(path, query)
        except Exception as error:
            # A failing page must not stop the listener; it is logged.
            self._log.exception(f"monitoring page {path} failed", error)
            return Answer(500, "text/plain; charset=utf-8", b"500 internal error\n")

    def _refuse(self, error: Any) -> None:
        """Reject a request that is not HTTP, and close."""
        self._log.debug(f"monitoring request refused: {error}")
        if self._wire.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            phrase = HTTPStatus(error.error_status_hint).phrase
            self._send(Answer(error.error_status_hint, "text/plain; charset=utf-8", f"{phrase}\n".encode()))
        self._transport.close()

    def _send(self, answer: Answer, *, head: bool = False) -> None:
        headers = [("Content-Type", answer.content_type), ("Content-Length", str(len(answer.body)))]
        if answer.content_type == "application/json":
            headers.append(("Access-Control-Allow-Origin", "*"))
        reason = HTTPStatus(answer.status).phrase
        parts = [self._wire.send(h11.Response(status_code=answer.status, headers=headers, reason=reason))]
        if not head:
            parts.append(self._wire.send(h11.Data(data=answer.body)))
        parts.append(self._wire.send(h11.EndOfMessage()))
        self._transport.write(b"".join(part for part in parts if part))
