"""Requests of the server itself to the API of an account.

Belongs here: awaiting one answer over the account's bus.
"""

from __future__ import annotations

import asyncio

import msgspec

from lakestream.ports import Bus, ClientInfo, Clock, Single, singly
from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder
from lakestream.protocol.nuid import nuid
from lakestream.protocol.schema_api import PREFIX, ListPage


class Listed(msgspec.Struct, frozen=True):
    """The used fields of an answer to LIST. `total`: -1 if there is an error; `revision`: of the bucket."""

    total: int = -1
    revision: int = 0


_LISTED = JsonDecoder(Listed)
_NO_SCHEMAS = msgspec.json.encode(ListPage(offset=1 << 30))

TIMEOUT_NS = 5_000_000_000
"""Time to wait for an answer (5 s)."""
_INBOX = b"$JSC.R.%b"


class CallUnanswered(Exception):
    """Raised when no answer came within `TIMEOUT_NS`, or nothing listens to the subject."""


async def ask(bus: Bus, clock: Clock, subject: bytes, body: bytes, header: bytes = b"") -> bytes:
    """Publish a request and return the body of its answer.

    Raises:
        CallUnanswered: there is none. The request may have been processed.
    """
    answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def answered(subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        if not answer.done():
            answer.set_result(payload)

    def late() -> None:
        if not answer.done():
            answer.set_exception(CallUnanswered("no answer came in time"))

    inbox = _INBOX % nuid().encode()
    subscription = bus.subscribe(inbox, singly(answered))
    timer = clock.call_later(TIMEOUT_NS, late)
    try:
        if not bus.send(Single(subject, inbox, header, body)):
            raise CallUnanswered("nothing listens to the request's subject")
        return await answer
    finally:
        timer.cancel()
        subscription.cancel()


async def list_nothing(bus: Bus, clock: Clock) -> Listed:
    """Return the number of schemas of an account, and the revision of its bucket.

    Raises:
        CallUnanswered: the registry does not answer, or with an error.
    """
    try:
        answer = _LISTED.decode(await ask(bus, clock, f"{PREFIX}LIST".encode(), _NO_SCHEMAS))
    except DECODE_ERRORS as error:
        raise CallUnanswered(f"the answer does not decode: {error}") from None
    if answer.total < 0:
        raise CallUnanswered("the registry answers with an error")
    return answer
