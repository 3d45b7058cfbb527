"""A browser of the web console, for tests: requests over HTTP with its cookie and its CSRF text.

Belongs here: what a page of the console does with the server. Nothing is checked here.
"""

from __future__ import annotations

import http.client
import json
import ssl
from base64 import b64decode
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tests.servers import Server

TIMEOUT_S = 20.0


class Reply(NamedTuple):
    """A response: its status, its headers by lower-case name, and its body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """Return the body parsed as JSON."""
        return json.loads(self.body)


class Browser:
    """One browser: it keeps the cookie of its session.

    Args:
        server: with a monitoring port.
        secure: TLS to use; None: plain text.
    """

    def __init__(self, server: Server, secure: ssl.SSLContext | None = None) -> None:
        self.server, self.secure = server, secure
        self.cookie = self.csrf = ""

    def _connection(self) -> http.client.HTTPConnection:
        address = self.server.host, self.server.http_port
        if self.secure is not None:
            return http.client.HTTPSConnection(*address, timeout=TIMEOUT_S, context=self.secure)
        return http.client.HTTPConnection(*address, timeout=TIMEOUT_S)

    def ask(self, method: str, path: str, body: Any = None, headers: Mapping[str, str | None] | None = None) -> Reply:
        """Make a request. `body`: bytes, or what becomes JSON. `headers` of None are left out."""
        given: dict[str, str | None] = {"Cookie": self.cookie or None}
        if method == "POST":
            given |= {"Content-Type": "application/json", "X-Lakestream-Csrf": self.csrf or None}
        sent = {name: value for name, value in (given | dict(headers or {})).items() if value is not None}
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection = self._connection()
        try:
            connection.request(method, path, data, sent)
            answer = connection.getresponse()
            found = Reply(answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read())
        finally:
            connection.close()
        if "set-cookie" in found.headers:
            self.cookie = found.headers["set-cookie"].partition(";")[0]
        return found

    def get(self, name: str, **headers: str | None) -> Reply:
        """Make a GET request of the console's API."""
        return self.ask("GET", f"/console/api/{name}", headers=headers)

    def post(self, name: str, body: Any = None, **headers: str | None) -> Reply:
        """Make a POST request of the console's API."""
        return self.ask("POST", f"/console/api/{name}", {} if body is None else body, headers)

    def begin(self) -> Reply:
        """Ask for the session, which begins by itself where no login is needed."""
        return self._begun(self.get("session"))

    def log_in(self, **credentials: str) -> Reply:
        """Log in."""
        return self._begun(self.post("login", credentials))

    def _begun(self, reply: Reply) -> Reply:
        if reply.status == 200:
            self.csrf = reply.json["csrf"]
        return reply

    def request(self, subject: str, body: Any = None, **fields: Any) -> Any:
        """Make a request over NATS; return the first reply parsed as JSON."""
        reply = self.post("request", {"subject": subject, "data": "" if body is None else json.dumps(body), **fields})
        assert reply.status == 200, reply
        return json.loads(b64decode(reply.json["replies"][0]["data_base64"]))

    def live(self, *subjects: str) -> Events:
        """Open a stream of events."""
        return Events(self, "&".join(f"subject={subject}" for subject in subjects))


class Events:
    """A stream of events."""

    def __init__(self, browser: Browser, query: str) -> None:
        self._connection = browser._connection()
        self._connection.request("GET", f"/console/api/live?{query}", headers={"Cookie": browser.cookie})
        self.answer = self._connection.getresponse()
        self._first = self.answer.readline() if self.answer.status == 200 else b""

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yield name and data of each event, to the end."""
        name = ""
        while line := self.answer.readline():
            field, _, value = line.decode().rstrip("\n").partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                yield name, json.loads(value)

    def close(self) -> None:
        """Go away."""
        self.answer.close()
        self._connection.close()
