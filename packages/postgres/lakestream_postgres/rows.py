"""Rows of results: from SQL over NATS, or made here.

Belongs here: asking the server, the columns of a result, and its batches one after the other.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from lakestream.protocol import sql
from lakestream.protocol.sql import ResultHead, SqlRequest
from lakestream_client.errors import ClientError, QueryFailed
from lakestream_client.sql import Answer, ask
from lakestream_postgres.errors import explained
from lakestream_postgres.statements import AskedQuery
from lakestream_postgres.types import field_of
from lakestream_postgres.wire import Field

QUEUE_S, PAUSE_S = 30.0, 0.05
"""Time for which a query waits, when its turn has come, while as many run as the account or the server may have, and
the pause before it is asked again: tools ask many at the same time, and do not try again."""


class Rows:
    """The rows of a result, which were made here: batches of Arrow.

    Attributes:
        fields: its columns.
    """

    def __init__(self, fields: Sequence[Field], batches: Sequence[Any] = ()) -> None:
        self.fields = fields
        self._batches = list(batches)

    async def next(self) -> Any:
        """Return the next batch; None at the end. Raises PgError."""
        return self._batches.pop(0) if self._batches else None

    async def close(self) -> None:
        """End the query."""
        self._batches.clear()


def texts(name: str, values: list[str | None]) -> Rows:
    """Return rows of one column of texts."""
    return Rows([field_of(name, "VARCHAR")], [pa.RecordBatch.from_arrays([pa.array(values, pa.string())], [name])])


class ServiceRows(Rows):
    """The rows of a query over NATS, which are received while they are read."""

    def __init__(self, answer: Answer, asked: AskedQuery) -> None:
        super().__init__(fields_of(answer.head))
        self._answer, self._asked = answer, asked
        self._received: AsyncIterator[Any] = answer.batches()

    async def next(self) -> Any:
        try:
            return await anext(self._received, None)
        except ClientError as error:
            raise explained(error, self._asked.text, self._asked.place) from None

    async def close(self) -> None:
        await self._answer.cancel()


def fields_of(head: ResultHead) -> list[Field]:
    """Return the columns of a result over NATS."""
    return [field_of(each.name, each.type) for each in head.columns]


class Service:
    """SQL over NATS for one login.

    Args:
        nats: its connection.
        turn: of the user's sessions, one of which waits until the account may ask again.
    """

    def __init__(self, nats: Any, turn: asyncio.Lock) -> None:
        self._nats, self._turn = nats, turn
        self._is_narrow = False
        """The user may ask about single streams alone."""

    async def rows(self, asked: AskedQuery, values: Mapping[str, str | None]) -> Rows:
        """Return the rows of a query with the values of its parameters.

        Raises:
            PgError: it failed before its first row.
        """
        return ServiceRows(await self._ask(asked, SqlRequest(asked.text, "arrow", dict(values))), asked)

    async def describe(self, asked: AskedQuery) -> list[Field]:
        """Return the columns of a query, whose parameters are NULL. Raises PgError."""
        answer = await self._ask(asked, SqlRequest(asked.text, "arrow", describe=True))
        await answer.cancel()
        return fields_of(answer.head)

    async def columns(self, asked: str) -> list[str]:
        """Return the types of the columns of a query, as DuckDB calls them. Raises PgError."""
        answer = await self._ask(AskedQuery(asked), SqlRequest(asked, "arrow", describe=True, stale=True))
        await answer.cancel()
        return [each.type for each in answer.head.columns]

    async def _ask(self, asked: AskedQuery, request: SqlRequest) -> Answer:
        try:
            if not self._turn.locked():
                try:
                    return await self._once(request)
                except QueryFailed as error:
                    if error.code != sql.TOO_MANY:
                        raise
            async with self._turn:
                until = time.monotonic() + QUEUE_S
                while True:
                    try:
                        return await self._once(request)
                    except QueryFailed as error:
                        if error.code != sql.TOO_MANY or time.monotonic() > until:
                            raise
                    await asyncio.sleep(PAUSE_S)
        except ClientError as error:
            raise explained(error, asked.text, asked.place) from None

    async def _once(self, request: SqlRequest) -> Answer:
        if not self._is_narrow:
            try:
                return await ask(self._nats, request)
            except QueryFailed as error:
                if error.code != sql.FORBIDDEN or "Permissions Violation" not in str(error):
                    raise
                self._is_narrow = True
        return await ask(self._nats, request, _stream(request.sql))


_FROM = re.compile(r'\bFROM\s+(?:delta\.`streams/)?["`]?([^\s"`,();.]+)', re.IGNORECASE)


def _stream(text: str) -> str:
    """Return the first stream that a query names, for users who may read single streams: the server checks it."""
    found = _FROM.search(text)
    return found[1] if found else ""
