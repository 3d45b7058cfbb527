"""Requests and responses of the monitoring port, without I/O.

Belongs here: what the handlers of requests (pages.py, the console) get and return. HTTP itself is in port.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import NamedTuple, Protocol

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"

Headers = tuple[tuple[str, str], ...]


class HttpRequest(NamedTuple):
    """An HTTP request.

    Attributes:
        path, query: of the target, without the `?` between them.
        headers: by lower-case name; of repeated ones the last counts.
        host, port: address of the client.
        secure: it came over TLS.
    """

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = {}
    host: str = ""
    port: int = 0
    secure: bool = False
    body: bytes = b""


class HttpAnswer(NamedTuple):
    """An HTTP response."""

    status: int
    content_type: str
    body: bytes
    headers: Headers = ()


class HttpOutput(Protocol):
    """The client of a response without an end."""

    @property
    def writable(self) -> bool:
        """Return False while the client does not take what was sent."""

    def send(self, data: bytes) -> None:
        """Send bytes. They are held while the client does not take them: look at `writable` first."""

    def close(self) -> None:
        """End the response."""


class Events(Protocol):
    """A response without an end, which sends events from `begin` to `end`."""

    headers: Headers

    def begin(self, output: HttpOutput) -> None:
        """Start to send."""

    def end(self) -> None:
        """Stop: the client is gone or the response was closed. Idempotent."""


Outcome = HttpAnswer | Events


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
