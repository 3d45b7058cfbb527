"""`lakestream sql --url`: SQL that a server answers over NATS.

Belongs here: the session that the shell uses, and the rows of answers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from lakestream.lake.errors import LakeError
from lakestream.lake.flush import ServerCredentials, plain_url
from lakestream.loop_thread import LoopThread
from lakestream_client.client import Client, connect
from lakestream_client.errors import ClientError
from lakestream_client.sql import Answer
from lakestream_sql.tokens import Language, split

if TYPE_CHECKING:
    import pyarrow as pa


class NatsError(LakeError):
    """Raised when the server cannot be reached, or does not answer a query."""


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
        options = login.arguments()
        self._thread = LoopThread("sql")
        try:
            self._client: Client = self._thread.run(connect(url, **options))
        except ClientError as error:
            self._thread.close()
            raise NatsError(str(error)) from None

    def tables(self) -> list[str]:
        """Return the names of the tables."""
        return [str(row[0]).removeprefix("delta.`").removesuffix("`") for row in self._ask("SHOW TABLES")]

    def run(self, text: str) -> Iterator[NatsRows]:
        """Ask the statements of a text in order. Raises NatsError at the first that fails."""
        done, rest = split(text, self._engine)
        for statement in (*(each for each, _ in done), *([rest] if rest else [])):
            yield self._ask(statement.strip())

    def _ask(self, statement: str) -> NatsRows:
        try:
            return NatsRows(
                self._thread, self._thread.run(self._client.sql(statement, stream=self._stream, engine=self._engine))
            )
        except ClientError as error:
            raise NatsError(str(error)) from None

    def close(self) -> None:
        """Disconnect."""
        self._thread.run(self._client.close())
        self._thread.close()


class NatsRows:
    """The result of one statement, as `results.Rows`."""

    def __init__(self, thread: LoopThread, answer: Answer) -> None:
        self._thread, self._answer = thread, answer
        self.columns, self.types = answer.columns, answer.types

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        import duckdb  # for the values of Python that a session over the lake's files has

        batches = self._answer.batches()
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            try:
                while (batch := self._thread.run(_next(batches))) is not None:
                    yield from connection.from_arrow(batch).fetchall()
            except ClientError as error:
                raise NatsError(str(error)) from None
            finally:
                self._thread.run(self._answer.cancel())


async def _next(batches: AsyncIterator[pa.RecordBatch]) -> pa.Table | None:
    """Return the next batch as a table; None at the end."""
    import pyarrow as pa

    batch = await anext(batches, None)
    return None if batch is None else pa.Table.from_batches([batch])
