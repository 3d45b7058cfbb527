"""Direct gets: stored messages by request, from any JetStream server.

Belongs here: one request and its answers (ADR-31) as a page of messages, and the errors behind a status.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import msgspec

from lakestream_client.errors import DirectGetDisabled, NoAnswer, NoJetStream, NoSuchStream, Refused
from lakestream_client.messages import Message, of_direct_get

if TYPE_CHECKING:
    from nats.aio.client import Client as Nats
    from nats.aio.msg import Msg

PAGE_MESSAGES = 4096
"""Maximum number of messages of one request."""
PAGE_BYTES = 4 << 20
"""A page ends with the message with which it reaches this size (4 MiB)."""
STREAM_NOT_FOUND = 10059


class DirectGetPage(msgspec.Struct, frozen=True):
    """Answer to one request. `pending`: number of messages that match beyond it; `through`: the last sequence that
    counts, of a request for an earlier state."""

    messages: list[Message]
    pending: int = 0
    through: int = 0


class DirectGets:
    """Requests for the stored messages of one connection's account.

    Args:
        connection: of nats-py.
        prefix: of the JetStream API, such as `$JS.API`.
        timeout: seconds without any answer after which a request fails.
    """

    def __init__(self, connection: Nats, prefix: str, timeout: float) -> None:
        self._connection, self.prefix, self._timeout = connection, prefix, timeout

    async def page(self, stream: str, **request: Any) -> DirectGetPage:
        """Return the answers to one request; an empty page when nothing is found.

        Raises:
            NoSuchStream, DirectGetDisabled, NoAnswer.
            Refused: any other status.
        """
        connection = self._connection
        found: list[Msg] = []
        ended: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()

        async def take(message: Msg) -> None:
            headers = message.headers
            if headers is not None and "Nats-Sequence" in headers:
                found.append(message)
            elif not ended.done():
                ended.set_result(message)

        subject = f"{self.prefix}.DIRECT.GET.{stream}"
        inbox = connection.new_inbox()
        answers = await connection.subscribe(inbox, cb=take)
        try:
            await connection.publish(subject, json.dumps(request).encode(), reply=inbox)
            end = await self._end(ended, found, subject)
        finally:
            with contextlib.suppress(Exception):  # a closed connection has no subscriptions
                await answers.unsubscribe()
        headers = end.headers or {}
        status = int(headers.get("Status", "0"))
        if status == 404:
            return DirectGetPage([])
        if status == 503:
            await self.stream(stream)
            raise DirectGetDisabled(stream)
        if status != 204:
            raise Refused(stream, status, headers.get("Description", ""))
        return DirectGetPage(
            [of_direct_get(each) for each in found],
            int(headers.get("Nats-Num-Pending", "0")),
            int(headers.get("Nats-UpTo-Sequence", "0")),
        )

    async def _end(self, ended: asyncio.Future[Msg], found: list[Msg], subject: str) -> Msg:
        """Return the message that ends the answer. Raises NoAnswer when nothing comes for `timeout` seconds."""
        while True:
            before = len(found)
            try:
                return await asyncio.wait_for(asyncio.shield(ended), self._timeout)
            except TimeoutError:
                if len(found) == before:
                    raise NoAnswer(subject, self._timeout) from None

    async def stream(self, name: str, **request: Any) -> dict[str, Any]:
        """Return a stream's configuration and state (STREAM.INFO).

        Raises:
            NoSuchStream, NoJetStream, NoAnswer, Refused.
        """
        from nats.errors import NoRespondersError

        subject = f"{self.prefix}.STREAM.INFO.{name}"
        body = json.dumps(request).encode() if request else b""
        try:
            answer = json.loads((await self._connection.request(subject, body, timeout=self._timeout)).data)
        except NoRespondersError:
            raise NoJetStream(f"nobody answers {subject}") from None
        except TimeoutError:
            raise NoAnswer(subject, self._timeout) from None
        if (error := answer.get("error")) is None:
            return dict(answer)
        if error.get("err_code") == STREAM_NOT_FOUND:
            raise NoSuchStream(name)
        if error.get("code") == 503:
            raise NoJetStream(str(error.get("description")))
        raise Refused(name, int(error.get("code", 0)), str(error.get("description")))
