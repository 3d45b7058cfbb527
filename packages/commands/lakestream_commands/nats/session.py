"""A connection for one command, requests to JetStream, and errors as lines.

Belongs here: what every command of this folder does before and after its own requests.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import typer

from lakestream.cli.link import connect_once, exits
from lakestream.cli.server_options import Server
from lakestream.lake.flush import plain_url

if TYPE_CHECKING:
    from nats.aio.client import Client

TIMEOUT_S = 5.0
"""Time without an answer after which a request fails, as of the nats command."""
PAGE = 1024
"""Names or streams that a page of a list has at most (nats-server's)."""


class CommandFailed(Exception):
    """Raised when a command cannot do what it was asked for; the text says why and what to do."""


class ApiRefused(CommandFailed):
    """Raised for an error of JetStream's API. `code`: its number (`err_code`)."""

    def __init__(self, subject: str, error: dict[str, Any]) -> None:
        self.code = int(error.get("err_code", 0))
        named = _named(subject)
        told = f"{error.get('description', error)} ({self.code})" if self.code else str(error)
        super().__init__(f"{named}: {told}" if named else told)


def _named(subject: str) -> str:
    """Return the stream, or the stream and the consumer, that a request is about; "" if it is about none."""
    found = re.match(r"(STREAM|CONSUMER)\.(?:MSG\.)?[A-Z_]+\.([^.]+)(?:\.([^.]+))?", subject)
    return " > ".join(filter(None, found.groups()[1:])) if found else ""


class NatsSession:
    """A connection to a server, and JetStream's API over it.

    Args:
        client: the connection.
        url: of the server, for texts.
        errors: what the server reported on the connection (refused publishes, say) is added here.
    """

    def __init__(self, client: Client, url: str, errors: list[Exception]) -> None:
        self.client = client
        self._url = url
        self._errors = errors

    async def api(self, subject: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the answer to a request to `$JS.API.<subject>`.

        Raises:
            ApiRefused: it is an error.
            CommandFailed: there is none.
        """
        data = b"" if body is None else json.dumps(body).encode()
        answer: dict[str, Any] = json.loads((await self.request(f"$JS.API.{subject}", data)).data)
        if error := answer.get("error"):
            raise ApiRefused(subject, error)
        return answer

    async def request(self, subject: str, data: bytes, timeout: float = TIMEOUT_S) -> Any:
        """Return the answer to a request. Raises CommandFailed when there is none."""
        from nats.errors import NoRespondersError
        from nats.errors import TimeoutError as NatsTimeoutError

        try:
            return await self.client.request(subject, data, timeout=timeout)
        except NoRespondersError:
            what = "JetStream is off for this account" if subject.startswith("$JS.") else "nothing answers there"
            raise CommandFailed(f"{subject}: {what}") from None
        except (NatsTimeoutError, TimeoutError):
            self.check()
            raise CommandFailed(f"{subject}: no answer within {timeout:g} s") from None

    async def flush(self) -> None:
        """Return when the server has everything that was sent. Raises CommandFailed if it refused some of it."""
        await self.client.flush(int(TIMEOUT_S))
        self.check()

    def check(self) -> None:
        """Raise CommandFailed if the server has reported an error."""
        if self._errors:
            raise CommandFailed(f"{plain_url(self._url)}: {str(self._errors[0]).removeprefix('nats: ')}")

    async def pages(self, subject: str, key: str, body: dict[str, Any] | None = None) -> list[Any]:
        """Return all items of a paged list.

        Args:
            subject: of the request.
            key: of the items in an answer.
            body: of the request, without the offset.
        """
        found = list[Any]()
        while True:
            page = await self.api(subject, {**(body or {}), "offset": len(found)})
            items = page.get(key) or []
            found += items
            if not items or len(found) >= page.get("total", 0):
                return found


def over_nats(server: Server, work: Callable[[NatsSession], Awaitable[None]], stopped: str = "") -> None:
    """Connect, do the work of a command, and close; its errors end the program with a line and code 1.

    Args:
        server: the server.
        work: the command.
        stopped: line after Ctrl-C; "": none.
    """
    import nats.errors
    import nats.js.errors

    async def run() -> None:
        errors = list[Exception]()
        client = await connect_once(server, "lakestream", errors)
        try:
            await work(NatsSession(client, server.url, errors))
        finally:
            await client.close()

    with exits(stopped, CommandFailed, nats.errors.Error, nats.js.errors.Error, TimeoutError):
        try:
            asyncio.run(run())
        except nats.js.errors.APIError as error:
            raise CommandFailed(f"{error.description} ({error.err_code})") from None


def confirm(question: str, force: bool) -> None:
    """Ask before something is deleted; end the program unless the answer is yes.

    Raises:
        typer.BadParameter: there is no terminal to ask at.
    """
    if force:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter("there is no terminal to ask at; --force does it without asking", param_hint="--force")
    typer.confirm(question, abort=True)
