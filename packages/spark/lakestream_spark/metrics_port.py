"""The page of a program without an event loop, over HTTP.

Belongs here: a listener with an event loop in a thread of its own. Scrapes are collected one after the other.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from lakestream.http.connection import HttpConnection, HttpLimits, HttpRoom
from lakestream.http.exchange import TEXT, HttpAnswer, HttpHandler, HttpOutput, HttpRequest
from lakestream.metrics.family import Sheet
from lakestream.metrics.page import render

CLIENT_SECONDS = 5.0
"""Maximum time for which a client may be silent or not read."""


class MetricsServer(HttpHandler):
    """Serves `/metrics` until it is closed.

    Args:
        where: host and port; port 0 takes a free one.
        collect: fills a sheet; called in the server's thread.

    Raises:
        OSError: the address cannot be used.
    """

    def __init__(self, where: tuple[str, int], collect: Callable[[Sheet], None]) -> None:
        self._collect = collect
        some = CLIENT_SECONDS
        self._room = HttpRoom(HttpLimits(most=64, of_address=32, head_s=some, idle_s=some, body_s=some, stalled_s=some))
        self._loop = asyncio.new_event_loop()
        listening = self._loop.create_server(lambda: HttpConnection(self, self._room), *where)
        try:
            self._server = self._loop.run_until_complete(listening)
        except OSError:
            self._loop.close()
            raise
        self.port: int = self._server.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving. Return when the last answer is sent."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._server.close()
        self._loop.run_until_complete(self._room.close())
        self._loop.close()

    def answer(self, request: HttpRequest, output: HttpOutput) -> HttpAnswer:
        if request.path != "/metrics":
            return HttpAnswer(404, TEXT, b"the metrics are at /metrics\n")
        sheet = Sheet()
        self._collect(sheet)
        return render(sheet, request.headers.get("accept", ""), request.headers.get("accept-encoding", ""))
