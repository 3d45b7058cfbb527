"""SQL of the console, in processes of their own.

Belongs here: the limits of a session's queries, their early end, and what the server does for a query: it judges by the
user's permissions whether the streams may be read, and has their newest messages staged. The processes are those of
packages/sql/lakestream_sql/pool.py. SQL itself is in packages/sql/lakestream_sql/child.py, which is never imported
here: no query can hold up the server.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Literal

import msgspec

from lakestream.config.options import SqlOptions
from lakestream.lake.flush import FLUSH, FLUSH_WAIT_NS
from lakestream.ops.sql.processes import CannotStart, Process, ProcessEnded, ProcessQueryFailed
from lakestream.ports import Clock, Single
from lakestream.protocol.nuid import nuid
from lakestream_console.client import ConsoleClient, ConsoleError, SessionEnded
from lakestream_sql.pool import Pool, TooManyQueries
from lakestream_sql.question import MAX_QUERY, MAX_STREAMS, MentionedBy, put

MAX_PROCESSES = 4
"""Queries of all sessions at the same time, and their processes (4)."""

MAX_ROWS = 10_000
"""Rows of a result, by default and at most (10,000)."""

MAX_RESULT_BYTES = 8 << 20
"""Bytes of the rows of a result (8 MiB)."""

MAX_TIME_S = 30.0
"""Time of a query, by default and at most (30 s); at its end the process is killed."""


CANCELLED = "the query was cancelled"


class SqlBody(msgspec.Struct, frozen=True):
    """The body of a query. Limits of 0 are the defaults."""

    query: str
    max_rows: int = 0
    timeout_ms: int = 0
    engine: Literal["duckdb", "spark"] = "duckdb"


BODY = msgspec.json.Decoder(SqlBody)


class _Columns(msgspec.Struct):
    columns: msgspec.Raw


class _Summary(msgspec.Struct):
    truncated: bool


_COLUMNS, _SUMMARY = msgspec.json.Decoder(_Columns), msgspec.json.Decoder(_Summary)


class ConsoleSql:
    """The queries of a server's sessions.

    Args:
        lake: the lake's root.
        sql: returns what the block `sql` says.
    """

    def __init__(self, lake: str, clock: Clock, sql: Callable[[], SqlOptions]) -> None:
        self._clock, self._sql = clock, sql
        limits = {"max_concurrent": MAX_PROCESSES, "max_account_concurrent": MAX_PROCESSES}
        self._pool = Pool(lake, msgspec.structs.replace(sql(), **limits), clock)
        self._running: dict[ConsoleClient, Process | None] = {}
        self._cancelled: set[ConsoleClient] = set()

    async def query(self, client: ConsoleClient, body: SqlBody) -> bytes:
        """Return the JSON of the answer to a query of a session.

        Raises:
            ConsoleError: it is wrong, not allowed, or beyond a limit.
        """
        if len(body.query) > MAX_QUERY:
            raise ConsoleError(413, f"a query has at most {MAX_QUERY} characters")
        limit_s = min(body.timeout_ms / 1000, MAX_TIME_S) if body.timeout_ms > 0 else MAX_TIME_S
        rows = min(body.max_rows, MAX_ROWS) if body.max_rows > 0 else MAX_ROWS
        if client in self._running:
            raise ConsoleError(429, "another query of this session is running")
        account = client.connection.account.name
        try:
            self._pool.reserve(account)
        except TooManyQueries as error:
            raise ConsoleError(503, str(error)) from None
        self._running[client] = None
        try:
            process = self._running[client] = await self._take(account)
            with _told(client, body) as outcome:
                answer = await self._within(limit_s, process, client, body, rows)
                outcome["bytes"] = len(answer)
            return answer
        finally:
            del self._running[client]
            self._cancelled.discard(client)
            self._pool.release(account)

    def cancel(self, client: ConsoleClient) -> bool:
        """Stop the query of a session, with its process; return False if none runs."""
        if client not in self._running:
            return False
        self._cancelled.add(client)
        self.ended(client)
        return True

    def ended(self, client: ConsoleClient) -> None:
        """End the query of a session that has ended."""
        process = self._running.get(client)
        if process is not None:
            self._clock.spawn(self._pool.drop(process))

    async def _take(self, account: str) -> Process:
        try:
            return await self._pool.take(account)
        except CannotStart as error:
            raise ConsoleError(503, str(error)) from None
        except ProcessQueryFailed as error:
            raise ConsoleError(error.code, str(error)) from None
        except ProcessEnded as error:
            raise ConsoleError(500, str(error)) from None

    async def _within(self, limit_s: float, process: Process, client: ConsoleClient, body: SqlBody, rows: int) -> bytes:
        """Run a query within its time; keep the process unless something was wrong with it."""
        try:
            if client.reason or client in self._cancelled:  # while the process started
                raise ProcessEnded
            async with asyncio.timeout(limit_s):
                return await self._run(process, client, body, rows)
        except TimeoutError:
            raise ConsoleError(504, f"the query was stopped after {limit_s:g} s") from None
        except ProcessQueryFailed as error:
            raise ConsoleError(error.code if error.is_end else 400, str(error)) from None
        except ProcessEnded as error:
            if client.reason:
                raise SessionEnded(client.reason) from None
            if client in self._cancelled:
                raise ConsoleError(409, CANCELLED) from None
            raise ConsoleError(500, str(error)) from None
        finally:
            if client.reason or client in self._cancelled:  # it is killed in a moment
                await self._pool.drop(process)
            else:
                await self._pool.give(client.connection.account.name, process)

    async def _run(self, process: Process, client: ConsoleClient, body: SqlBody, rows: int) -> bytes:
        options, who = self._sql(), client.connection.client
        sees = who.sees if options.row_permissions else None
        began = self._clock.steady()
        ask = {"query": body.query, "engine": body.engine, "max_rows": rows, "form": "rows"}
        ask |= {"batch_bytes": options.batch_bytes, "max_batch_bytes": MAX_RESULT_BYTES}
        ask["viewer"] = {"sees": sees, "roles": who.roles, "mask_key": options.mask_key}

        async def stage(streams: list[str]) -> None:
            if body.engine == "duckdb":  # Spark reads what is committed
                await asyncio.gather(*(self._flush(client, stream) for stream in streams))

        head, _ = await put(process, ask, partial(_judge, client), partial(self._ask_last, client), stage)
        columns = _COLUMNS.decode(head).columns
        parts, truncated = await _rows(process)
        elapsed_ms = (self._clock.steady() - began) // 1_000_000
        head = b'{"columns":%b,"truncated":%b,"elapsed_ms":%d,"rows":[' % (columns, truncated, elapsed_ms)
        return head + b",".join(parts) + b"]}"

    async def _ask_last(self, client: ConsoleClient, subject: str, body: bytes) -> AsyncIterator[bytes]:
        """Yield the answers to a request, if they come in time."""
        replies: list[Single] = []
        with contextlib.suppress(ConsoleError):
            replies, _ = await client.request(subject.encode(), b"", body, "eob", FLUSH_WAIT_NS)
        for reply in replies:
            yield reply.payload

    async def _flush(self, client: ConsoleClient, stream: str) -> None:
        """Have the newest messages of a stream staged. Without that the query reads those that are."""
        with contextlib.suppress(ConsoleError):
            await client.request(f"{FLUSH}{stream}".encode(), b"", b"", 1, FLUSH_WAIT_NS)


async def _rows(process: Process) -> tuple[list[bytes], bytes]:
    """Return the rows of a result in JSON, and in JSON if there are more of them."""
    parts, size = list[bytes](), 0
    while True:
        await process.decide(go=True)
        kind, body = await process.next()
        if kind != b"b":
            return parts, b"true" if _SUMMARY.decode(body).truncated else b"false"
        if (size := size + len(body)) > MAX_RESULT_BYTES:
            return parts, b"true"
        parts.append(body.rstrip().replace(b"\n", b","))


@contextlib.contextmanager
def _told(client: ConsoleClient, body: SqlBody) -> Iterator[dict[str, int]]:
    """Tell an audit trail, if there is one, of a query and how it ended: it does not come over NATS. Of an error the
    status is told alone: its text may have values of rows that not everybody may see."""
    hub, who, number, outcome = client.connection.hub, client.connection.client, nuid(), dict[str, int]()

    def tell(told: dict[str, str | int]) -> None:
        hub.send(Single(b"$LAKE.EVENT.console", payload=msgspec.json.encode(told | {"id": number})))

    tell({"user": who.user, "host": who.host, "sql": body.query, "engine": body.engine})
    try:
        yield outcome
    except ConsoleError as error:
        outcome["error"] = error.status
        raise
    finally:
        tell({**outcome})


def _judge(client: ConsoleClient, mentioned: MentionedBy) -> None:
    """Judge a query by the user's permissions: SQL reads what the user may read over NATS. Raises ConsoleError."""
    if len(mentioned.streams) > MAX_STREAMS:
        raise ConsoleError(400, f"a query reads at most {MAX_STREAMS} streams")
    guard = client.connection.guard
    if guard is None or guard.rules is None:
        return
    subjects = [f"$JS.API.STREAM.MSG.GET.{stream}" for stream in mentioned.streams]
    for subject in subjects + ["$JS.API.STREAM.NAMES"] * mentioned.lists:
        if not guard.rules.may_publish(subject.encode()):
            raise ConsoleError(403, f'Permissions Violation for Publish to "{subject}"')
