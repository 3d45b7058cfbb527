"""Tokens over NATS: the entries of a token, as the server has them now.

Belongs here: looking up a token in the bucket, remembered for some seconds, and the account of the login. Every look-up
asks the server, so a revoked token ends within CACHE_S; while the server cannot be reached, nobody reads anything.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from lakestream_client.bucket import OPERATION
from lakestream_client.direct_get import DirectGets
from lakestream_client.errors import ClientError, NoSuchStream
from lakestream_sharing import grants
from lakestream_sharing.errors import Unauthenticated, Unavailable
from lakestream_sharing.grants import Shared

if TYPE_CHECKING:
    from nats.aio.client import Client as Nats

    from lakestream_client.messages import Message

CACHE_S = 5.0
"""Time for which an answer of the server is used: a revoked token ends that late."""
MAX_CACHED = 10_000
"""Tokens that are remembered, valid or not; the one that was not used for longest goes."""
TIMEOUT_S = 5.0
"""Time for the server's answer."""

LookUp = Callable[[str], Awaitable[list[Shared]]]
"""Returns the entries of a token by its hash. Raises Unavailable."""


class _Found(msgspec.Struct, frozen=True):
    entries: list[Shared]
    until: float


class Access:
    """The rights of tokens.

    Args:
        look_up: asks the server.
        now_ns: returns the present, ns since the epoch.
    """

    def __init__(self, look_up: LookUp, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._look_up, self._now_ns = look_up, now_ns
        self._found: OrderedDict[str, _Found] = OrderedDict()
        self._asking: dict[str, asyncio.Task[list[Shared]]] = {}

    async def of_header(self, authorization: str) -> tuple[str, list[Shared]]:
        """Return the hash of the token in a request's field `Authorization`, and what it covers.

        Raises:
            Unauthenticated: there is no token, or no valid one.
            Unavailable: the server cannot be asked.
        """
        kind, _, token = authorization.strip().partition(" ")
        if kind.lower() != "bearer" or not token.strip():
            raise Unauthenticated("a bearer token is needed: use the profile that came with the share")
        token_hash = grants.hash_of(token.strip())
        return token_hash, await self.of_hash(token_hash)

    async def of_hash(self, token_hash: str) -> list[Shared]:
        """Return what a token covers. Raises Unauthenticated, Unavailable."""
        found = self._found.get(token_hash)
        if found is None or found.until <= time.monotonic():
            found = _Found(await self._ask(token_hash), time.monotonic() + CACHE_S)
            self._found[token_hash] = found
            while len(self._found) > MAX_CACHED:
                self._found.popitem(last=False)
        self._found.move_to_end(token_hash)
        entries = grants.valid(found.entries, self._now_ns())
        if not entries:
            raise Unauthenticated("the token is not valid: it has expired, or was revoked")
        return entries

    async def _ask(self, token_hash: str) -> list[Shared]:
        """Ask the server, once for all that wait for the same token."""
        task = self._asking.get(token_hash)
        if task is None:
            task = self._asking[token_hash] = asyncio.ensure_future(self._look_up(token_hash))
            task.add_done_callback(lambda _: self._asking.pop(token_hash, None))
        return await asyncio.shield(task)


def over_nats(connection: Nats) -> LookUp:
    """Return the look-up in the bucket of a connection's account."""
    gets = DirectGets(connection, "$JS.API", TIMEOUT_S)

    async def look_up(token_hash: str) -> list[Shared]:
        if not connection.is_connected:
            raise Unavailable("the tokens cannot be looked up: no connection to the server")
        try:
            page = await gets.page(
                grants.STREAM, multi_last=[grants.subject(f"*.{token_hash}")], batch=grants.MAX_STREAMS
            )
        except NoSuchStream:
            return []  # no token was issued yet
        except (ClientError, OSError) as error:
            raise Unavailable("the tokens cannot be looked up: the server does not answer") from error
        return entries(page.messages)

    return look_up


def entries(messages: list[Message]) -> list[Shared]:
    """Return the entries among messages of the bucket: those that are neither removed nor damaged."""
    found = []
    for message in messages:
        if message.header(OPERATION) is not None:
            continue
        key = message.subject.removeprefix(grants.subject(""))
        if (shared := grants.decode(key, message.data, message.time_ns)) is not None:
            found.append(shared)
    return found


async def account_of(connection: Nats) -> str:
    """Return the account of a connection. Raises Unavailable."""
    from nats.errors import Error

    try:
        answer = await connection.request("$SYS.REQ.USER.INFO", b"", timeout=TIMEOUT_S)
        return str(json.loads(answer.data)["data"]["account"])
    except (Error, OSError, TimeoutError, KeyError, ValueError) as error:
        raise Unavailable("the account of the login is unknown: may it publish to $SYS.REQ.USER.INFO?") from error
