"""The page of a program without an event loop, over HTTP.

Belongs here: a server in a thread of its own. Clients are served one after the other, so that they cannot take more
than one thread.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer

from lakestream.metrics.family import Sheet
from lakestream.metrics.page import render

CLIENT_SECONDS = 5.0
"""Maximum time for which a client may be silent or not read."""


class MetricsServer:
    """Serves `/metrics` until it is closed.

    Args:
        where: host and port; port 0 takes a free one.
        collect: fills a sheet; called in the server's thread.

    Raises:
        OSError: the address cannot be used.
    """

    def __init__(self, where: tuple[str, int], collect: Callable[[Sheet], None]) -> None:
        class Handler(_Handler):
            fill = staticmethod(collect)

        class MetricsHttpServer(HTTPServer):
            address_family = _family(where[0])

        self._server = MetricsHttpServer(where, Handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving. Return when the last answer is sent."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    timeout = CLIENT_SECONDS
    fill: Callable[[Sheet], None]

    def do_GET(self) -> None:
        """Answer one request; HTTP/1.0, so that the connection ends with it."""
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, explain="the metrics are at /metrics")
            return
        sheet = Sheet()
        self.fill(sheet)
        page = render(sheet, self.headers.get("Accept", ""), self.headers.get("Accept-Encoding", ""))
        self.send_response(200)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        if page.encoding:
            self.send_header("Content-Encoding", page.encoding)
        self.end_headers()
        self.wfile.write(page.body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: scrapes come every few seconds."""


def _family(host: str) -> int:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
