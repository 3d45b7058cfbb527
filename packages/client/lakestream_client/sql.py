"""SQL over NATS: a query and its result.

Belongs here: the client's side of `$LAKE.API.SQL` (protocol/sql.py): receiving batches in order, acknowledging each one
when the next is wanted, and cancelling.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import msgspec

from lakestream.protocol import sql
from lakestream.protocol.sql import ResultHead, SqlRequest
from lakestream_client.errors import NoAnswer, QueryFailed

if TYPE_CHECKING:
    import pyarrow as pa
    from nats.aio.client import Client as Nats
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

WAIT_S = 120.0
"""Default time without a message after which a query fails (2 min): the server's `max_time` is shorter."""

LOOK_S = 0.5
"""Interval at which a request without a response is looked at (0.5 s): the server may have refused it."""

_HEAD = msgspec.json.Decoder(ResultHead)
NO_RESPONDERS = "503"


class Answer:
    """The result of a query, which is received while it is read.

    Attributes:
        head: what the server says first: the columns, and streams whose newest messages may be missing.
        columns, types: of the columns; types as DuckDB calls them.
        truncated: set at the end: there are more rows than `max_rows`.
        schema: of Arrow, known with the first batch.
    """

    def __init__(self, nats: Nats, subscription: Subscription, head: ResultHead, wait_s: float) -> None:
        self._nats, self._subscription, self._wait_s = nats, subscription, wait_s
        self.head = head
        self.columns = tuple(column.name for column in head.columns)
        self.types = tuple(column.type for column in head.columns)
        self.truncated = False
        self.schema: Any = None
        self._ended = False

    async def bodies(self) -> AsyncIterator[bytes]:
        """Yield the batches as they were sent: lines of JSON, or parts of one Arrow stream.

        Raises:
            QueryFailed: the query ended with an error; batches before it are not the whole result.
            NoAnswer: no message came in time.
        """
        number = 0
        try:
            while True:
                message = await _next(self._subscription, self._wait_s)
                headers = message.headers or {}
                if headers.get(sql.PART) == "end":
                    self._ended = True
                    _check(headers)
                    if int(headers.get(sql.BATCHES, "0")) != number:
                        raise QueryFailed(sql.FAILED, "batches of the result were lost: this client was too slow")
                    self.truncated = headers.get(sql.TRUNCATED) == "true"
                    return
                number += 1
                if headers.get(sql.BATCH) != str(number):
                    raise QueryFailed(sql.FAILED, "batches of the result were lost: this client was too slow")
                yield message.data
                await self._nats.publish(message.reply, b"")
        finally:
            await self.cancel()

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """Yield the rows of a query with format `arrow`. Raises as `bodies`."""
        import pyarrow as pa

        async for body in self.bodies():
            for message in pa.ipc.MessageReader.open_stream(pa.BufferReader(body)):
                if message.type == "schema":
                    self.schema = pa.ipc.read_schema(message)
                else:
                    yield pa.ipc.read_record_batch(message, self.schema)

    async def to_arrow(self) -> pa.Table:
        """Return the whole result of a query with format `arrow`. Raises as `bodies`."""
        import pyarrow as pa

        found = [batch async for batch in self.batches()]
        return pa.Table.from_batches(found, self.schema)

    async def cancel(self, wait_s: float = 0.0) -> None:
        """End the query if it still runs. Idempotent.

        Args:
            wait_s: time to wait for its end, in seconds, behind which another query may take its place.
        """
        if not self._ended:
            self._ended = True
            await self._nats.publish(self.head.cancel, b"")
            with contextlib.suppress(NoAnswer):
                while wait_s and ((await _next(self._subscription, wait_s)).headers or {}).get(sql.PART) != "end":
                    pass
        if not self._subscription._closed:
            await self._subscription.unsubscribe()


async def ask(nats: Nats, request: SqlRequest, stream: str = "", wait_s: float = WAIT_S) -> Answer:
    """Ask a query; return its result once the columns are known.

    Args:
        stream: the only stream that the query reads, for users who may read no other; "": any.
        wait_s: time without a message after which the query fails, in seconds.

    Raises:
        QueryFailed: it is wrong, not allowed, or a limit is exceeded.
        NoAnswer: no message came in time.
    """
    inbox = nats.new_inbox()
    subscription = await nats.subscribe(inbox)
    subject = f"{sql.QUERY_STREAM}{stream}" if stream else sql.QUERY
    before = nats.last_error
    try:
        await nats.publish(subject, msgspec.json.encode(request), reply=inbox)
        first = await _first(nats, subscription, wait_s, subject, before)
        headers = first.headers or {}
        if headers.get("Status") == NO_RESPONDERS:
            raise QueryFailed(
                sql.UNAVAILABLE,
                f"nothing answers {subject}: configure `sql {{ enabled: true }}` on a server with a lake",
            )
        _check(headers)
        return Answer(nats, subscription, _HEAD.decode(first.data), wait_s)
    except BaseException:
        await subscription.unsubscribe()
        raise


async def _first(nats: Nats, subscription: Subscription, wait_s: float, subject: str, before: Exception | None) -> Msg:
    """Return the first response. Raises QueryFailed when the user may not ask, which the server says apart from it."""
    waited = 0.0
    while True:
        try:
            return await _next(subscription, min(LOOK_S, wait_s), subject)
        except NoAnswer:
            denied = nats.last_error
            # nats-py keeps the text of -ERR in lower case.
            if denied is not None and denied is not before and subject.lower() in str(denied).lower():
                raise QueryFailed(sql.FORBIDDEN, f'Permissions Violation for Publish to "{subject}"') from None
            waited += LOOK_S
            if waited >= wait_s:
                raise NoAnswer(subject, wait_s) from None


async def _next(subscription: Subscription, wait_s: float, subject: str = sql.QUERY) -> Msg:
    from nats.errors import TimeoutError as NoMessage

    try:
        return await subscription.next_msg(timeout=wait_s)
    except (TimeoutError, NoMessage):
        raise NoAnswer(subject, wait_s) from None


def _check(headers: Any) -> None:
    """Raise QueryFailed for the headers of an error."""
    if code := headers.get(sql.ERROR_CODE):
        text = headers.get(sql.ERROR_TEXT)
        raise QueryFailed(int(code), json.loads(text) if text else headers.get(sql.ERROR, ""))
