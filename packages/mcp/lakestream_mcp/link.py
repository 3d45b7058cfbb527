"""A connection as one user: requests, errors, and names that fit into a subject.

Belongs here: what every tool does before and after its own work. An error is one sentence that says what to do: an
assistant reads it, and acts on it.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

from lakestream.lake.flush import ServerCredentials
from lakestream.protocol.subjects import publishable, valid_subject
from lakestream_client import Client, connect

TIMEOUT_S = 5.0
"""Time without an answer after which a request fails."""
LISTED = 200
"""Maximum number of streams, buckets, consumers, keys or schemas in one answer."""

STREAM_NOT_FOUND = 10059
NO_MESSAGE = 10037
NO_JETSTREAM = (10039, 10076)
"""Errors of the API for an account, and for a server, without JetStream."""
_NAME = re.compile(r"[^\s.*>/\\\x00-\x1f\x7f]{1,255}")
_KEY = re.compile(r"[-/_=a-zA-Z0-9]+(\.[-/_=a-zA-Z0-9]+)*")


class ToolFailed(Exception):
    """Raised when a tool cannot do what it was asked for; the text is for the assistant. `code`: the API's error."""

    def __init__(self, text: str, code: int = 0) -> None:
        self.code = code
        super().__init__(text)


def checked_name(what: str, name: str) -> str:
    """Return a name that is one token of a subject. Raises ToolFailed.

    Without this check a name with a line break would be a command of the protocol, and one with dots another request.
    """
    if _NAME.fullmatch(name) is None:
        raise ToolFailed(f"{name!r} is not the name of a {what}: it has no spaces, and none of . * > / \\")
    return name


def checked_key(key: str) -> str:
    """Return a key of a bucket. Raises ToolFailed."""
    if _KEY.fullmatch(key) is None:
        raise ToolFailed(f"{key!r} is not a key: use letters, digits and - / _ = in tokens that dots separate")
    return key


def checked_subject(subject: str, wildcards: bool = True) -> str:
    """Return a subject, or a filter. Raises ToolFailed."""
    if not valid_subject(subject.encode(), wildcards) or (not wildcards and not publishable(subject.encode())):
        kind = "subject or filter such as orders.> or orders.*.new" if wildcards else "subject without wildcards"
        raise ToolFailed(f"{subject!r} is not valid: name a {kind}")
    return subject


class Link:
    """A connection. `client` is the Python client on it. `await Link.opened(…)` makes one."""

    client: Client

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], str] = {}
        """Requests under way, with the texts by which the server's refusals name them."""

    @classmethod
    async def opened(cls, url: str, login: ServerCredentials) -> Link:
        """Return a connection that is made again whenever it breaks.

        Raises:
            CannotConnect: the server cannot be reached now, or refuses the login.
            BadCredentials: a file of the login cannot be used.
        """
        link = cls()
        options: dict[str, Any] = {"name": "lakestream mcp", "max_reconnect_attempts": -1, "error_cb": link._reported}
        link.client = await connect(url, timeout=TIMEOUT_S, **options, **login.arguments())
        return link

    async def _reported(self, error: Exception) -> None:
        """Take an error that the server sends apart from any answer: a permission that is missing."""
        text = str(error).lower()  # as nats-py keeps it
        for refused, subject in self._waiting.items():
            if "permissions violation" in text and f'"{subject}"' in text and not refused.done():
                refused.set_result(None)

    async def request(
        self, subject: str, body: bytes | dict[str, Any] = b"", headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """Return the answer to a request, a JSON object.

        Raises:
            ToolFailed: it is an error, or there is none.
        """
        from nats.errors import NoRespondersError
        from nats.errors import TimeoutError as NatsTimeoutError

        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asked = asyncio.ensure_future(self.client.nats.request(subject, data, timeout=TIMEOUT_S, headers=headers))
        both: tuple[asyncio.Future[Any], ...] = (asked, refused)
        self._waiting[refused] = subject.lower()
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if refused.done():
                raise ToolFailed(f"this user may not publish to {subject}: have it allowed, or log in as another user")
            answer = json.loads((await asked).data)
            if not isinstance(answer, dict):
                raise ValueError
        except NoRespondersError:
            raise ToolFailed(_nobody(subject)) from None
        except (NatsTimeoutError, TimeoutError):
            raise ToolFailed(f"no answer to {subject} within {TIMEOUT_S:g} s: check that the server runs") from None
        except ValueError:
            raise ToolFailed(f"{subject} is answered, but not by a stream: check the subject") from None
        finally:
            del self._waiting[refused]
            asked.cancel()
        if error := answer.get("error"):
            code, text = int(error.get("err_code", 0)), str(error.get("description", error))
            raise ToolFailed(_nobody(subject) if code in NO_JETSTREAM else text, code)
        return answer

    async def stream(self, name: str, **request: Any) -> dict[str, Any]:
        """Return a stream's configuration and state. Raises ToolFailed."""
        shown = f"bucket {name[3:]}: list_buckets" if name.startswith("KV_") else f"stream {name}: list_streams"
        try:
            return await self.request(f"$JS.API.STREAM.INFO.{checked_name('stream', name)}", request)
        except ToolFailed as error:
            if error.code != STREAM_NOT_FOUND:
                raise
            raise ToolFailed(f"there is no {shown} shows those of this account") from None

    async def listed(self, where: str, key: str, **request: Any) -> tuple[list[Any], int]:
        """Return at most LISTED items of a paged list, and the number of all. Raises ToolFailed."""
        found = list[Any]()
        while True:
            page = await self.request(where, {**request, "offset": len(found)})
            items, total = page.get(key) or [], int(page.get("total", 0))
            found += items
            if not items or len(found) >= min(total, LISTED):
                return found[:LISTED], total


def _nobody(subject: str) -> str:
    if subject.startswith("$JS."):
        return "JetStream is off for this account: start the server with -js, and enable it for the account"
    if subject.startswith("$LAKE."):
        return f"nobody answers {subject}: the server must be a lakestream with JetStream"
    return f"no stream captures {subject}, so the message was not stored: list_streams shows the subjects of streams"
