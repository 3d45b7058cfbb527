"""SQL of the console, in processes of their own.

Belongs here: limiting, reusing and ending these processes (ops/sql), and what the server does for a query: it judges by
the user's permissions whether the streams may be read, and has their newest messages staged. SQL itself is in
packages/sql/lakestream_sql/child.py, which is never imported here: no query can hold up the server.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Literal

import msgspec

from lakestream.config.options import SqlOptions
from lakestream.ops.sql import last, processes
from lakestream.ops.sql.last import MENTIONED
from lakestream.ops.sql.processes import CannotStart, Process, ProcessEnded, ProcessQueryFailed
from lakestream.ports import Clock, Single
from lakestream.protocol.nuid import nuid
from lakestream_console.client import ConsoleClient, ConsoleError, SessionEnded

MAX_PROCESSES = 4
"""Processes of all sessions (4); one that is idle ends for another session."""

MAX_ROWS = 10_000
"""Rows of a result, by default and at most (10,000)."""

MAX_RESULT_BYTES = 8 << 20
"""Bytes of the rows of a result (8 MiB)."""

MAX_TIME_S = 30.0
"""Time of a query, by default and at most (30 s); at its end the process is killed."""

MAX_QUERY = 64 << 10
"""Length of a query (64 Ki characters)."""

MAX_STREAMS = 16
"""Streams of one query (16)."""

IDLE_NS = 120_000_000_000
"""Time after which an idle process ends (2 min)."""

FLUSH_WAIT_NS = 5_000_000_000
"""Time for staging the newest messages of a stream (5 s); without an answer the query reads what is staged."""


CANCELLED = "the query was cancelled"


class SqlBody(msgspec.Struct, frozen=True):
    """The body of a query. Limits of 0 are the defaults."""

    query: str
    max_rows: int = 0
    timeout_ms: int = 0
    engine: Literal["duckdb", "spark"] = "duckdb"


class NotAllowed(ConsoleError):
    """Raised for a query that the server rejects; its process goes on."""


class SqlProcesses:
    """The processes of a server's sessions.

    Args:
        lake: the lake's root.
        sql: returns what the block `sql` says.
    """

    def __init__(self, lake: str, clock: Clock, sql: Callable[[], SqlOptions]) -> None:
        self._lake, self._clock, self._sql = lake, clock, sql
        self._held: dict[ConsoleClient, Process] = {}
        self._busy: set[ConsoleClient] = set()
        self._cancelled: set[ConsoleClient] = set()
        self._starting = 0

    async def query(self, client: ConsoleClient, body: SqlBody) -> bytes:
        """Return the JSON of the answer to a query of a session.

        Raises:
            ConsoleError: it is wrong, not allowed, or beyond a limit.
        """
        if len(body.query) > MAX_QUERY:
            raise ConsoleError(413, f"a query has at most {MAX_QUERY} characters")
        limit_s = min(body.timeout_ms / 1000, MAX_TIME_S) if body.timeout_ms > 0 else MAX_TIME_S
        rows = min(body.max_rows, MAX_ROWS) if body.max_rows > 0 else MAX_ROWS
        if client in self._busy:
            raise ConsoleError(429, "another query of this session is running")
        self._busy.add(client)
        try:
            process = self._held.get(client)
            if process is None or process.ended:
                process = await self._start(client)
            if client in self._cancelled:  # meanwhile
                raise ConsoleError(409, CANCELLED)
            with _told(client, body) as outcome:
                answer = await self._within(limit_s, process, client, body, rows)
                outcome["bytes"] = len(answer)
            return answer
        finally:
            self._busy.discard(client)
            self._cancelled.discard(client)

    def cancel(self, client: ConsoleClient) -> bool:
        """Stop the query of a session, with its process; return False if none runs."""
        if client not in self._busy:
            return False
        self._cancelled.add(client)
        self.ended(client)
        return True

    async def _within(self, limit_s: float, process: Process, client: ConsoleClient, body: SqlBody, rows: int) -> bytes:
        """Run a query within its time; keep the process unless something was wrong with it."""
        whole = False
        try:
            async with asyncio.timeout(limit_s):
                answer = await self._run(process, client, body, rows)
            whole = True
            return answer
        except TimeoutError:
            raise ConsoleError(504, f"the query was stopped after {limit_s:g} s") from None
        except ProcessQueryFailed as error:
            whole = not error.is_end
            raise ConsoleError(400 if whole else error.code, str(error)) from None
        except NotAllowed:
            whole = True
            raise
        except ProcessEnded as error:
            if client.reason:
                raise SessionEnded(client.reason) from None
            if client in self._cancelled:
                raise ConsoleError(409, CANCELLED) from None
            raise ConsoleError(500, str(error)) from None
        finally:
            if whole:
                self._rest(client, process)
            else:
                await self._end(client, process)

    async def _run(self, process: Process, client: ConsoleClient, body: SqlBody, rows: int) -> bytes:
        options, who = self._sql(), client.connection.client
        sees = who.sees if options.row_permissions else None
        ask = {"query": body.query, "engine": body.engine, "max_rows": rows, "max_bytes": MAX_RESULT_BYTES}
        await process.say(ask | {"viewer": {"sees": sees, "roles": who.roles, "mask_key": options.mask_key}})
        mentioned = MENTIONED.decode(await process.hear())
        streams = mentioned.streams
        try:
            _judge(client, streams, mentioned.lists)
        except NotAllowed:
            await last.pass_on(mentioned.last, last.nothing, process)
            await process.say({"go": False})
            raise
        await last.pass_on(mentioned.last, lambda subject, body: self._ask_last(client, subject, body), process)
        if body.engine == "duckdb":  # Spark reads what is committed
            await asyncio.gather(*(self._flush(client, stream) for stream in streams))
        await process.say({"go": True})
        return await process.hear()

    async def _ask_last(self, client: ConsoleClient, subject: str, body: bytes) -> AsyncIterator[bytes]:
        """Yield the answers to a request, if they come in time."""
        replies: list[Single] = []
        with contextlib.suppress(ConsoleError):
            replies, _ = await client.request(subject.encode(), b"", body, "eob", FLUSH_WAIT_NS)
        for reply in replies:
            yield reply.payload

    async def _flush(self, client: ConsoleClient, stream: str) -> None:
        """Have the newest messages of a stream staged. Without that the query reads those that are."""
        subject = f"$LAKE.API.FLUSH.{stream}".encode()
        with contextlib.suppress(ConsoleError):
            await client.request(subject, b"", b"", 1, FLUSH_WAIT_NS)

    # ------------------------------------------------------------------ processes
    async def _start(self, client: ConsoleClient) -> Process:
        account = client.connection.account.name
        self._held.pop(client, None)
        if len(self._held) + self._starting >= MAX_PROCESSES:
            idle = [(each.used_ns, other) for other, each in self._held.items() if other not in self._busy]
            if not idle:
                raise ConsoleError(503, f"{MAX_PROCESSES} queries are running: try again")
            _, other = min(idle, key=lambda each: each[0])
            self._starting += 1  # the place of the one that ends
            try:
                await self._end(other, self._held[other])
            finally:
                self._starting -= 1
        self._starting += 1
        try:
            process = self._held[client] = await processes.start(self._lake, account)
            return process
        except CannotStart as error:
            raise ConsoleError(503, str(error)) from None
        except ProcessQueryFailed as error:
            raise ConsoleError(error.code, str(error)) from None
        except ProcessEnded as error:
            raise ConsoleError(500, str(error)) from None
        finally:
            self._starting -= 1

    def _rest(self, client: ConsoleClient, process: Process) -> None:
        """Keep an idle process for a while."""
        process.used_ns = self._clock.steady()
        if process.timer is not None:
            process.timer.cancel()
        if client.reason:
            self._clock.spawn(self._end(client, process))
        else:
            process.timer = self._clock.call_later(IDLE_NS, lambda: self._clock.spawn(self._end(client, process)))

    async def _end(self, client: ConsoleClient, process: Process) -> None:
        if self._held.get(client) is process:
            del self._held[client]
        await process.kill()

    def ended(self, client: ConsoleClient) -> None:
        """End the process of a session that has ended."""
        process = self._held.get(client)
        if process is not None:
            self._clock.spawn(self._end(client, process))


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


def _judge(client: ConsoleClient, streams: list[str], lists: bool) -> None:
    """Judge a query by the user's permissions: SQL reads what the user may read over NATS. Raises NotAllowed."""
    if len(streams) > MAX_STREAMS:
        raise NotAllowed(400, f"a query reads at most {MAX_STREAMS} streams")
    guard = client.connection.guard
    if guard is None or guard.rules is None:
        return
    for subject in [f"$JS.API.STREAM.MSG.GET.{stream}" for stream in streams] + ["$JS.API.STREAM.NAMES"] * lists:
        if not guard.rules.may_publish(subject.encode()):
            raise NotAllowed(403, f'Permissions Violation for Publish to "{subject}"')
