"""The monitoring port.

Belongs here: HTTP for the pages of monitoring_pages.py: one small server on asyncio streams, h11 for the protocol.
It is imported, and h11 with it, only when a monitoring port is asked for.
"""

from __future__ import annotations

import asyncio
import os
from http import HTTPStatus
from typing import Any, NamedTuple

import h11

from lakestream.server.errors import StartError
from lakestream.server.monitored import Monitored
from lakestream.server.monitoring_pages import Answer, Pages

MAX_OPEN = 128
"""Connections to the monitoring port at once; further ones are answered 503 and closed."""

IDLE_S = 60.0
"""A connection without a request for so long is closed."""

MAX_BODY = 64 * 1024
"""Bytes of a request body that are read (and ignored); a longer one ends the connection."""

_READ = 16 * 1024


class Monitor(NamedTuple):
    """A running monitoring listener and the port it got."""

    server: asyncio.AbstractServer
    port: int


async def serve(node: Monitored) -> Monitor:
    """Listen where the options say.

    Raises:
        StartError: the address is taken or not ours.
    """
    options = node.options
    host = options.http_host or options.host
    handler = _Handler(node)
    try:
        server = await asyncio.start_server(handler.connected, host, max(options.http_port, 0))
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise StartError(
            f"cannot listen for http monitoring on {host}:{options.http_port}: {reason}; choose another port with -m, "
            "or -m -1 for a free one"
        ) from error
    return Monitor(server, server.sockets[0].getsockname()[1])


class _Handler:
    """Answers requests; one per server."""

    def __init__(self, node: Monitored) -> None:
        self._log = node.log
        self._pages = Pages(node)
        self._open = 0

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open > MAX_OPEN:
                writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            else:
                await self._talk(reader, writer)
        except (OSError, TimeoutError, h11.RemoteProtocolError) as error:
            # The other side went away, fell silent or does not speak HTTP: nobody is left to be told.
            self._log.debug(f"monitoring connection ended: {type(error).__name__}: {error}")
        finally:
            self._open -= 1
            writer.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: request after request until either side closes."""
        connection = h11.Connection(h11.SERVER)
        while True:
            try:
                request = await self._request(connection, reader)
            except h11.RemoteProtocolError as error:
                if connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                    _respond(connection, writer, Answer(error.error_status_hint, "text/plain", b"400 Bad Request"))
                raise
            if request is None:
                return
            answer = self._answer(request)
            _respond(connection, writer, answer, head=request.method == b"HEAD")
            await asyncio.wait_for(writer.drain(), IDLE_S)
            if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                return
            connection.start_next_cycle()

    async def _request(self, connection: Any, reader: asyncio.StreamReader) -> Any:
        """The next request, its body read and dropped; None when the client has closed."""
        request, size = None, 0
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await asyncio.wait_for(reader.read(_READ), IDLE_S))
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                size += len(event.data)
                if size > MAX_BODY:
                    raise h11.RemoteProtocolError("request body too long", HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            elif isinstance(event, h11.EndOfMessage):
                return request
            else:
                return None

    def _answer(self, request: Any) -> Answer:
        target = request.target.decode("latin-1")
        path, _, query = target.partition("?")
        try:
            return self._pages.answer(path, query)
        except Exception as error:
            # A page must not take the listener down with it; the log has the rest.
            self._log.exception(f"monitoring page {path} failed", error)
            return Answer(500, "text/plain; charset=utf-8", b"500 internal error")


def _respond(connection: Any, writer: asyncio.StreamWriter, answer: Answer, *, head: bool = False) -> None:
    headers = [("Content-Type", answer.content_type), ("Content-Length", str(len(answer.body)))]
    if answer.content_type == "application/json":
        headers.append(("Access-Control-Allow-Origin", "*"))
    reason = HTTPStatus(answer.status).phrase
    writer.write(connection.send(h11.Response(status_code=answer.status, headers=headers, reason=reason)))
    if not head:
        writer.write(connection.send(h11.Data(data=answer.body)))
    writer.write(connection.send(h11.EndOfMessage()))
