"""`lakestream sql --url`: SQL that a server answers over NATS.

Belongs here: the session that the shell uses, and the rows of answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa  # before the server waits for the first batch to be acknowledged

from lakestream.lake.errors import LakeError
from lakestream.lake.flush import ServerCredentials, plain_url
from lakestream_client.errors import ClientError
from lakestream_client.sync import SyncAnswer, connect
from lakestream_sql.tokens import Language, split


class NatsError(LakeError):
    """Raised when the server cannot be reached, or does not answer a query."""


@contextmanager
def _asking() -> Iterator[None]:
    """Return a context that raises NatsError for the client's errors."""
    try:
        yield
    except ClientError as error:
        raise NatsError(str(error)) from None


class NatsEngine:
    """A session with a server.

    Args:
        url: of the server.
        login: credentials there.
        stream: the only stream that is read; "": any.
        engine: whose SQL it is.

    Raises:
        NatsError: it cannot be reached.
        BadCredentials: a file of the login cannot be used.
    """

    def __init__(self, url: str, login: ServerCredentials, stream: str = "", engine: Language = "duckdb") -> None:
        self.root = plain_url(url)
        self._stream, self._engine = stream, engine
        with _asking():
            self._client = connect(url, **login.arguments())

    def tables(self) -> list[str]:
        """Return the names of the tables."""
        return [str(row[0]).removeprefix("delta.`").removesuffix("`") for row in self._ask("SHOW TABLES")]

    def run(self, text: str) -> Iterator[NatsRows]:
        """Ask the statements of a text in order. Raises NatsError at the first that fails."""
        done, rest = split(text, self._engine)
        for statement in (*(each for each, _ in done), *([rest] if rest else [])):
            yield self._ask(statement.strip())

    def _ask(self, statement: str) -> NatsRows:
        with _asking():
            return NatsRows(self._client.sql(statement, stream=self._stream, engine=self._engine))

    def close(self) -> None:
        """Disconnect."""
        self._client.close()


class NatsRows:
    """The result of one statement, as `results.Rows`."""

    def __init__(self, answer: SyncAnswer) -> None:
        self._answer = answer
        self.columns, self.types = answer.driven.columns, answer.driven.types

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        with duckdb.connect() as connection, _asking():  # which has the values of a session over the lake's files
            connection.execute("SET TimeZone = 'UTC'")
            try:
                for batch in self._answer.batches():
                    yield from connection.from_arrow(pa.Table.from_batches([batch])).fetchall()
            finally:
                self._answer.cancel()
