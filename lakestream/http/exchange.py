"""Requests and responses over HTTP, without I/O.

Belongs here: what the handlers of requests (monitoring, the console, Delta Sharing) get and return. HTTP itself is in
connection.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple, Protocol

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"

MAX_BODY = 64 * 1024
"""Bytes of a request body that are read (64 KiB), unless the handler says another limit; a longer one ends the
connection."""

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
    """The client of a response that is sent in parts, with or without an end."""

    @property
    def writable(self) -> bool:
        """Return False while the client does not take what was sent."""

    def begin(self, status: int, headers: Headers) -> None:
        """Send the head of a response, which has the length of its body."""

    async def drained(self) -> None:
        """Wait until the client has taken most of what was sent. Raises ConnectionError when it is gone."""

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


Outcome = HttpAnswer | Events | None
"""A response; None: all of it was sent by `HttpOutput.begin` and `HttpOutput.drained`."""


class HttpHandler:
    """The requests of one listener, and what else its clients are told."""

    def postpones(self, answer: Callable[[], None]) -> bool:
        """Return True if others have their turn first; `answer` is called later then."""
        return False

    def refuse(self, request: HttpRequest) -> HttpAnswer | int:
        """Judge a request by its head: return the answer that rejects it, or the maximum size of its body in bytes."""
        return MAX_BODY

    def answer(self, request: HttpRequest, output: HttpOutput) -> HttpAnswer | Awaitable[Outcome]:
        """Answer a request. `output` is for responses that are sent in parts."""
        raise NotImplementedError

    def completed(self, request: HttpRequest, answer: HttpAnswer) -> HttpAnswer:
        """Return an answer with the headers that all of its kind have."""
        return answer

    def invalid(self, status: int, reason: str) -> HttpAnswer:
        """Answer what is no HTTP, or too long; the connection ends with it."""
        return HttpAnswer(status, TEXT, f"{HTTPStatus(status).phrase}\n".encode())

    def failed(self, path: str, error: BaseException) -> HttpAnswer:
        """Answer a request whose handling has raised an error, and log that."""
        return HttpAnswer(500, TEXT, b"500 internal error\n")
