"""One query over NATS, from the request to its last response.

Belongs here: the order of its steps, its limits, and its early end. protocol/sql.py has the messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from lakestream.config.options import SECOND, SqlOptions
from lakestream.lake.flush import FLUSH, FLUSH_WAIT_NS, FLUSHED
from lakestream.ops.sql.processes import CannotStart, Process, ProcessEnded, ProcessQueryFailed
from lakestream.ports import Bus, ClientInfo, Clock, Single, singly
from lakestream.protocol import sql
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream.protocol.durations import format_duration
from lakestream.protocol.nuid import nuid
from lakestream.protocol.sql import SqlRequest
from lakestream_sql.messages import Ask, QueryColumns, Summary
from lakestream_sql.over_nats.figures import SqlFigures
from lakestream_sql.pool import Pool
from lakestream_sql.question import MAX_STREAMS, MentionedBy, put
from lakestream_sql.visible import Viewer

INTEREST_NS = SECOND
"""Interval at which a query is ended whose client is gone (1 s)."""

OUTCOME = "$LAKE.EVENT.sql"
"""Subject of the outcome of each query, for an audit trail."""

RESERVED_BYTES = 4096
"""Bytes of a message beside its payload: headers of a batch are shorter."""


_COLUMNS = msgspec.json.Decoder(QueryColumns)
_SUMMARY = msgspec.json.Decoder(Summary)


class QueryRefused(Exception):
    """Raised for a query that ends with an error."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class SqlOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """End of a query. `reply`: the reply subject of its request, which names it. `error`: a code, without the text,
    which may have values of rows that not everybody may see."""

    reply: str
    rows: int = 0
    bytes: int = 0
    error: int = 0


class ClientGone(Exception):
    """Raised when nobody receives the responses."""


class QueryRequest(msgspec.Struct, frozen=True):
    """A request: its account, the only stream that it may read ("": any), the subject of its responses, and the
    user."""

    account: str
    stream: str
    reply: bytes
    request: SqlRequest
    viewer: Viewer


class RunningQuery:
    """A query that runs.

    Args:
        server: the server's name.
        max_payload: of messages of the account's clients; bytes.
    """

    def __init__(
        self,
        asked: QueryRequest,
        bus: Bus,
        pool: Pool,
        options: SqlOptions,
        figures: SqlFigures,
        clock: Clock,
        server: str,
        max_payload: int,
    ) -> None:
        self._asked, self._bus, self._pool, self._options = asked, bus, pool, options
        self._figures, self._clock, self._server, self._max_payload = figures, clock, server, max_payload
        self.id = nuid()
        self._room = asyncio.Semaphore(options.window)  # for batches that are not acknowledged
        self._began_ns = clock.steady()
        self._rows = self._bytes = self._sent = self._acknowledged = 0
        self._truncated = False
        self._task: asyncio.Task[None] | None = None
        self._stopped: Exception | None = None

    async def run(self) -> None:
        """Answer the request."""
        self._task = asyncio.create_task(self._answer())
        watch = self._clock.call_later(INTEREST_NS, self._watch)
        subscriptions = [
            self._bus.subscribe(f"{sql.FLOW}{self.id}.*".encode(), singly(self._take_ack)),
            self._bus.subscribe(f"{sql.CANCEL}{self.id}".encode(), singly(self._cancelled)),
        ]
        try:
            await self._task
            self._end()
        except TimeoutError:
            limit = format_duration(self._options.max_time_ns)
            self._fail(QueryRefused(sql.TIMED_OUT, f"the query was stopped after {limit} (sql.max_time)"))
        except asyncio.CancelledError:
            if isinstance(self._stopped, QueryRefused):
                self._fail(self._stopped)
            elif self._stopped is None:
                raise
        except (QueryRefused, ProcessQueryFailed, ProcessEnded, CannotStart) as error:
            self._fail(error)
        except ClientGone:
            pass
        finally:
            self._task.cancel()
            watch.cancel()
            for subscription in subscriptions:
                subscription.cancel()
            self._pool.release(self._asked.account)
            self._figures.rows += self._rows
            self._figures.bytes += self._bytes
            self._figures.seconds += (self._clock.steady() - self._began_ns) / SECOND

    # ------------------------------------------------------------------ messages of the client
    def _take_ack(self, subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo) -> None:
        """Note that the client has a batch and those before it."""
        number = subject.rpartition(b".")[2][:18]
        while number.isdigit() and self._acknowledged < int(number) <= self._sent:
            self._acknowledged += 1
            self._room.release()

    def _cancelled(self, subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo) -> None:
        self.stop(QueryRefused(sql.CANCELLED, "the query was cancelled"))
        if reply:
            self._bus.send(Single(reply))

    def stop(self, reason: Exception) -> None:
        """End the query early."""
        if self._task is not None and self._stopped is None:
            self._stopped = reason
            self._task.cancel()

    def _watch(self) -> None:
        """End the query when its client is gone."""
        if self._task is None or self._task.done():
            return
        if not self._bus.interest(self._asked.reply):
            self.stop(ClientGone())
            return
        self._clock.call_later(INTEREST_NS, self._watch)

    # ------------------------------------------------------------------ steps
    async def _answer(self) -> None:
        process = await self._pool.take(self._asked.account)
        try:
            async with asyncio.timeout(self._options.max_time_ns / SECOND):
                await self._run(process)
        finally:
            await self._pool.give(self._asked.account, process)

    async def _run(self, process: Process) -> None:
        request, options = self._asked.request, self._options
        most = max(self._max_payload - RESERVED_BYTES, RESERVED_BYTES)
        wanted = min(request.max_rows or options.max_rows, options.max_rows)
        ask = Ask(
            request.sql,
            wanted,
            form=request.format,
            batch_bytes=min(options.batch_bytes, most),
            max_batch_bytes=most,
            parameters=sql.by_name(request.parameters),
            as_of=request.as_of,
            describe=request.describe,
            engine=request.engine,
            viewer=self._asked.viewer,
        )
        body, stale = await put(process, ask, self._judge, self._ask, self._stage)
        columns = _COLUMNS.decode(body)
        if not request.describe:
            self._send_columns(columns, stale)
        while True:
            await self._may_send()
            await process.decide(go=True)
            kind, body = await process.next()
            if kind != b"b":
                break
            self._send_batch(body)
        if request.describe:  # that is all; its client may cancel at once
            self._send_columns(columns, stale)
        summary = _SUMMARY.decode(body)
        self._rows, self._truncated = summary.rows, summary.truncated
        if self._truncated and wanted == options.max_rows and request.max_rows != wanted:
            raise QueryRefused(sql.TOO_LARGE, f"the result has more than {options.max_rows:,} rows (sql.max_rows)")

    async def _may_send(self) -> None:
        """Wait until another batch may be sent. Raises Refused when the client does not acknowledge."""
        try:
            async with asyncio.timeout(self._options.ack_wait_ns / SECOND):
                await self._room.acquire()
        except TimeoutError:
            waited = format_duration(self._options.ack_wait_ns)
            first = self._acknowledged + 1
            raise QueryRefused(
                sql.TIMED_OUT, f"batch {first} was not acknowledged within {waited} (sql.ack_wait)"
            ) from None

    # ------------------------------------------------------------------ streams
    def _judge(self, mentioned: MentionedBy) -> None:
        """Raise Refused for a query that may not read its streams."""
        only = self._asked.stream
        if only and (mentioned.lists or any(stream != only for stream in mentioned.streams)):
            raise QueryRefused(
                sql.FORBIDDEN, f"{sql.QUERY_STREAM}{only} reads stream {only} alone; {sql.QUERY} reads all"
            )
        if len(mentioned.streams) > MAX_STREAMS:
            raise QueryRefused(sql.WRONG, f"a query reads at most {MAX_STREAMS} streams")

    async def _ask(self, subject: str, body: bytes = b"") -> AsyncGenerator[bytes, None]:
        """Yield the answers to a request, each within the time for staging."""
        answers: asyncio.Queue[bytes] = asyncio.Queue()

        def take(subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo) -> None:
            answers.put_nowait(body)

        inbox = f"_INBOX.{nuid()}".encode()
        subscription = self._bus.subscribe(inbox, singly(take))
        try:
            if self._bus.send(Single(subject.encode(), inbox, payload=body)):
                while True:
                    async with asyncio.timeout(FLUSH_WAIT_NS / SECOND):
                        answer = await answers.get()
                    yield answer
        except TimeoutError:
            return
        finally:
            subscription.cancel()

    async def _stage(self, streams: list[str]) -> list[str]:
        """Have the newest messages staged; return the streams for which that failed. Raises Refused."""
        if self._asked.request.engine == "spark":  # it reads what is committed
            return streams
        reasons = await asyncio.gather(*map(self._flush, streams))
        stale = {stream: why for stream, why in zip(streams, reasons, strict=True) if why}
        if stale and not self._asked.request.stale:
            stream, why = next(iter(stale.items()))
            raise QueryRefused(
                sql.UNAVAILABLE,
                f"the newest messages of stream {stream} could not be staged: {why}; try again, or ask with "
                '"stale": true for what is staged already',
            )
        return list(stale)

    async def _flush(self, stream: str) -> str:
        """Have the newest messages of a stream staged. Returns why that failed; "" if every message is readable."""
        async with aclosing(self._ask(f"{FLUSH}{stream}")) as answers:
            body = await anext(answers, None)
        if body is None:
            return f"no server answers within {format_duration(FLUSH_WAIT_NS)}"
        try:
            answer = FLUSHED.decode(body)
        except DECODE_ERRORS as error:
            return str(error)
        # If the stream is not in the lake, or not there any more, no message is missing beyond the table.
        return "" if answer.error is None or answer.is_refusal else answer.error.description

    # ------------------------------------------------------------------ responses
    def _send(self, reply: bytes, values: dict[str, str | int], body: bytes) -> None:
        if not self._bus.send(Single(self._asked.reply, reply, sql.encode_headers(values), body)):
            raise ClientGone

    def _send_columns(self, columns: QueryColumns, stale: list[str]) -> None:
        head = sql.ResultHead(
            sql.RESPONSE_TYPE,
            self._asked.account,
            self._server,
            self.id,
            self._asked.request.format,
            columns.columns,
            self._options.window,
            f"{sql.CANCEL}{self.id}",
            stale,
            columns.schema,
            columns.parameters,
        )
        self._send(b"", {sql.PART: "columns"}, msgspec.json.encode(head))

    def _send_batch(self, body: bytes) -> None:
        if self._bytes + len(body) > self._options.max_bytes:
            raise QueryRefused(
                sql.TOO_LARGE, f"the result has more than {self._options.max_bytes:,} bytes (sql.max_bytes)"
            )
        self._bytes += len(body)
        self._sent += 1
        reply = f"{sql.FLOW}{self.id}.{self._sent}".encode()
        self._send(reply, {sql.PART: "batch", sql.BATCH: self._sent}, body)

    def _end(self, code: int = 0, error: str = "") -> None:
        values: dict[str, str | int] = {
            sql.PART: "end",
            sql.ROWS: self._rows,
            sql.BYTES: self._bytes,
            sql.BATCHES: self._sent,
            sql.DURATION: self._clock.steady() - self._began_ns,
        }
        if self._truncated:
            values[sql.TRUNCATED] = "true"
        values |= sql.error_headers(code, error) if code else {}
        self._bus.send(Single(self._asked.reply, header=sql.encode_headers(values)))
        tell_outcome(self._bus, self._asked.reply, self._rows, self._bytes, code)

    def _fail(self, error: QueryRefused | ProcessQueryFailed | ProcessEnded | CannotStart) -> None:
        self._figures.failed += 1
        self._figures.last_error = f"{error.code}:{str(error).splitlines()[0] if str(error) else ''}"
        self._end(error.code, str(error))


def tell_outcome(bus: Bus, reply: bytes, rows: int = 0, size: int = 0, error: int = 0) -> None:
    """Tell an audit trail, if there is one, how a query ended."""
    if bus.interest(OUTCOME.encode()):
        outcome = SqlOutcome(reply.decode("utf-8", "replace"), rows, size, error)
        bus.send(Single(OUTCOME.encode(), payload=msgspec.json.encode(outcome)))
