"""The client.

Belongs here: connecting, choosing the source of a read, and the operations, which past.py, bucket.py and scan.py carry
out. sync.py has the same for callers without an event loop.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack

from lakestream.lake.errors import LakeError
from lakestream.lake.storage.paths import DEFAULT_ACCOUNT
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream.protocol.sql import SqlRequest, Value
from lakestream.protocol.subjects import is_literal
from lakestream_client.bucket import Bucket
from lakestream_client.consumer import consumer_pages
from lakestream_client.direct_get import PAGE_MESSAGES, DirectGets
from lakestream_client.errors import (
    BadFilter,
    CannotConnect,
    LakeNotReachable,
    MissingPackage,
    NoSuchStream,
    PastUnavailable,
    ReadFailed,
)
from lakestream_client.messages import Message, checked_columns, of_record
from lakestream_client.past import RETENTION, TIME_TRAVEL, AsOf, PastPoint, last_messages
from lakestream_client.scan import CheckedFilters, Filters, direct_pages, of_lake, of_nats, with_filters
from lakestream_client.sql import Answer, ask

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow as pa
    from nats.aio.client import Client as Nats
    from nats.js import JetStreamContext

    from lakestream.lake.flush import FlushAnswer
    from lakestream_client.lake.past import StreamPast
    from lakestream_client.lake.view import StreamView

T = TypeVar("T")

DEFAULT_SERVER = "nats://127.0.0.1:4222"
CONNECT_S = 5.0
TIMEOUT_S = 10.0
"""Default time without an answer after which a request fails."""
EVENTS = frozenset(
    (
        "error_cb",
        "disconnected_cb",
        "closed_cb",
        "discovered_server_cb",
        "reconnected_cb",
        "lame_duck_mode_cb",
        "reconnect_to_server_handler",
    )
)
"""Callbacks among nats-py's options. Only the caller's own connection calls them, in the caller's event loop."""


async def connect(
    servers: str | list[str] = DEFAULT_SERVER,
    *,
    lake: str | os.PathLike[str] | None = None,
    domain: str | None = None,
    timeout: float = TIMEOUT_S,
    **options: Any,
) -> Client:
    """Connect to a server: lakestream, or any with JetStream.

    Args:
        servers: URL of the server, or several.
        lake: the lake's root, a path or a URL of a cloud as this machine sees it; by default as the server
            names it.
        domain: JetStream domain.
        timeout: seconds without an answer after which a request fails.
        options: of nats-py's `connect`, such as `user`, `password`, `token`, `user_credentials`, `tls`.

    Raises:
        CannotConnect: no server answers, or none takes the login.
    """
    connection = await _connected(servers, options)
    return Client(connection, servers, options, None if lake is None else os.fspath(lake), domain, timeout)


async def _connected(servers: str | list[str], options: dict[str, Any]) -> Nats:
    """Return a connection, after one attempt with each server. Raises CannotConnect."""
    import nats
    from nats.aio.client import Client as Connection
    from nats.errors import Error

    from lakestream.lake.flush import plain_url

    failures: list[Exception] = []

    async def failed(error: Exception) -> None:
        failures.append(error)

    async def quiet(_: Exception) -> None:
        return  # failures are reported by the requests

    try:
        async with asyncio.timeout(CONNECT_S):
            # nats-py tries the first connection as often as any other, for minutes.
            once = {"allow_reconnect": False, "max_reconnect_attempts": 1, "reconnect_time_wait": 0}
            probe = Connection()
            try:
                await probe.connect(servers, **{**_without_events(options), **once, "error_cb": failed})
            finally:
                await probe.close()  # also of a login that is rejected: nats-py leaves its socket open
            return await nats.connect(servers, **{"name": "lakestream client", "error_cb": quiet, **options})
    except (Error, OSError, TimeoutError) as error:
        reason = failures[-1] if failures else error
        where = ", ".join(map(plain_url, [servers] if isinstance(servers, str) else servers))
        raise CannotConnect(where, str(reason) or type(reason).__name__) from None


def _without_events(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in EVENTS}


class Client:
    """A connection with the operations of lakestream beside those of nats-py. `connect` makes one.

    Attributes:
        nats: nats-py's connection.
        jetstream: nats-py's JetStream context.
    """

    def __init__(
        self,
        connection: Nats,
        servers: str | list[str],
        options: dict[str, Any],
        lake: str | None,
        domain: str | None,
        timeout: float,
    ) -> None:
        self.nats: Nats = connection
        self.jetstream: JetStreamContext = connection.jetstream(domain=domain)
        self._servers, self._options, self._lake, self._timeout = servers, options, lake, timeout
        self._prefix = f"$JS.{domain}.API" if domain else "$JS.API"
        self._gets = DirectGets(connection, self._prefix, timeout)
        self._readable: dict[str, str] = {}
        """Lakes by their ids, and the reason why each cannot be read here, or ""."""
        self._is_lakestream: bool | None = None

    async def close(self) -> None:
        """Close the connection. Readers that `scan` returned go on."""
        await self.nats.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ------------------------------------------------------------------ earlier states
    def as_of(self, stream: str, time: Any = None, *, seq: int | None = None, exact: bool = True) -> AsOf:
        """Return a stream as it was at a time (inclusive), or right after sequence `seq` was stored.

        No request is made.

        Args:
            stream: the stream's name.
            time: a text such as `2026-05-01 12:00:00` (UTC), a datetime, or ns since the epoch.
            seq: a sequence.
            exact: raise NoTimeTravel for a stream that does not record its removals. False: read those messages of that
                time that are left.

        Raises:
            BadFilter: neither or both of time and seq are given, or they are invalid.
        """
        return AsOf(self._gets, self._inexact, self._last_in_lake, stream, PastPoint.of(time, seq), exact)

    async def history(self, stream: str, subject: str, *, limit: int | None = None) -> AsyncIterator[Message]:
        """Yield the messages of a subject, the newest first, with a request for each.

        Of a stream with `lakestream.time_travel` also those that newer ones replaced since; the history ends where the
        subject had no message at all. Of other streams those that are left.

        Args:
            stream: the stream's name.
            subject: a subject without wildcards.
            limit: maximum number of messages.

        Raises:
            NoSuchStream, DirectGetDisabled, NoAnswer.
            PastUnavailable: earlier messages were there, but are not recorded any more.
        """
        if not is_literal(subject.encode()):
            raise BadFilter(f"subject={subject!r}: the history is that of one subject, without wildcards")
        seq, count = int((await self._gets.stream(stream))["state"]["last_seq"]), 0
        while seq > 0 and (limit is None or count < limit):
            found = [each async for each in last_messages(self._gets, stream, PastPoint(seq=seq), [subject])]
            if not found:
                return
            yield found[0]
            seq, count = found[0].seq - 1, count + 1

    def bucket(self, name: str) -> Bucket:
        """Return a key-value bucket, to be read as it was. No request is made."""
        return Bucket(name, self.as_of, self.history)

    async def _inexact(self, stream: str) -> str:
        """Return the reason why a stream's earlier states are not known exactly, or ""."""
        metadata = (await self._gets.stream(stream))["config"].get("metadata") or {}
        if metadata.get(RETENTION) == "archive":
            return "it is an archive, whose earlier states are in the lake: read them with to_arrow(…, as_of=…)"
        if TIME_TRAVEL not in metadata:
            return "it does not record the messages that are removed"
        if self._is_lakestream is None:
            await self._flush(stream)
        return "" if self._is_lakestream else "the server is not lakestream"

    async def _last_in_lake(self, stream: str, point: PastPoint, subjects: Sequence[str]) -> list[Message]:
        import pyarrow as pa

        from lakestream.lake.table.conditions import MATCHES, Condition
        from lakestream_client.lake.past import StreamPast

        past = await self._open(stream, point)
        if isinstance(past, str):
            raise LakeNotReachable(stream, past)
        assert isinstance(past, StreamPast)

        def read() -> list[Message]:
            from lakestream.lake.read.history.rows import COLUMNS, records

            newest: dict[str, Message] = {}
            for batch in past.rows(COLUMNS, [Condition("subject", MATCHES, tuple(subjects))]):
                for message in map(of_record, records(pa.Table.from_batches([batch]))):
                    known = newest.get(message.subject)
                    if known is None or known.seq < message.seq:
                        newest[message.subject] = message
            return sorted(newest.values(), key=lambda message: message.seq)

        return await _of_lake(read)

    # ------------------------------------------------------------------ Arrow
    @with_filters
    async def scan(
        self, stream: str, columns: Sequence[str] | None = None, **filters: Unpack[Filters]
    ) -> pa.RecordBatchReader:
        """Return a stream's messages as an Arrow reader, up to the last one that was acked before.

        Rows come in batches and in no particular order. Reading blocks; in an event loop read in a thread
        (`asyncio.to_thread(reader.read_next_batch)`).

        Args:
            stream: the stream's name.
            columns: of subject, seq, time, time_ns, headers, data (the default), header_block, subject_bytes,
                removed_time_ns. Messages that an archive has removed are read only with the last one.
            subject: a subject or filter with wildcards, or several of them. All filters have to hold.
            first_seq, last_seq: the range of sequences, inclusive.
            start, end: the range of store times, inclusive.
            where: further comparisons of `subject`, `seq` or `time_ns`, such as `[("seq", ">", 17)]`.
            as_of: the stream as it was at this time, inclusive. Needs the lake.
            source: `auto`: the lake if this machine can read it, else NATS; `lake`, `nats`: only that.
            batch_size: maximum number of rows of a batch.

        Raises:
            BadFilter, NoSuchStream, ReadFailed, DirectGetDisabled.
            LakeNotReachable: `source="lake"` or `as_of`, and this machine cannot read the lake.
            PastUnavailable: the stream cannot be read as of that time.
        """
        _require("reading a stream as Arrow data", "pyarrow")
        asked = CheckedFilters.of(checked_columns(columns), filters)
        if asked.source != "nats":
            found = await self._open(stream, None if asked.as_of_ns is None else PastPoint(asked.as_of_ns))
            if not isinstance(found, str):
                return of_lake(found, asked)
            if asked.source == "lake" or asked.as_of_ns is not None:
                raise LakeNotReachable(stream, found)
        info = await self._gets.stream(stream)
        last, direct = int(info["state"]["last_seq"]), bool(info["config"].get("allow_direct"))

        async def opened() -> tuple[Nats, AsyncGenerator[list[Message], None]]:
            connection = await _connected(self._servers, _without_events(self._options))
            gets = DirectGets(connection, self._prefix, self._timeout)
            size = min(PAGE_MESSAGES, asked.batch_size)
            if direct:
                return connection, direct_pages(gets, stream, asked, last, size)
            return connection, consumer_pages(connection, self._prefix, self._timeout, stream, asked, last, size)

        return of_nats(opened, asked)

    @with_filters
    async def to_arrow(self, stream: str, columns: Sequence[str] | None = None, **filters: Unpack[Filters]) -> pa.Table:
        """Return a stream's messages as an Arrow table in memory, in sequence order.

        Args:
            stream: the stream's name.
            columns: as of `scan`, by default subject, seq, time, time_ns, headers, data.
            subject: a subject or filter with wildcards, or several of them. All filters have to hold.
            first_seq, last_seq: the range of sequences, inclusive.
            start, end: the range of store times, inclusive.
            where: further comparisons of `subject`, `seq` or `time_ns`, such as `[("seq", ">", 17)]`.
            as_of: the stream as it was at this time, inclusive. Needs the lake.
            source: `auto`: the lake if this machine can read it, else NATS; `lake`, `nats`: only that.
            batch_size: rows that are read at once.

        Raises: as `scan`.
        """
        wanted = checked_columns(columns)
        reader = await self.scan(stream, wanted if "seq" in wanted else (*wanted, "seq"), **filters)
        return await asyncio.to_thread(_in_order, reader, wanted)

    @with_filters
    async def to_polars(
        self, stream: str, columns: Sequence[str] | None = None, **filters: Unpack[Filters]
    ) -> polars.DataFrame:
        """Return what `to_arrow` returns with the same arguments, for Polars. Raises MissingPackage without polars."""
        _require("to_polars()", "polars")
        import polars

        found = polars.from_arrow(await self.to_arrow(stream, columns, **filters))
        assert isinstance(found, polars.DataFrame)
        return found

    @with_filters
    async def to_pandas(
        self, stream: str, columns: Sequence[str] | None = None, **filters: Unpack[Filters]
    ) -> pandas.DataFrame:
        """Return what `to_arrow` returns with the same arguments, for pandas. Raises MissingPackage without pandas."""
        _require("to_pandas()", "pandas")
        return (await self.to_arrow(stream, columns, **filters)).to_pandas()

    # ------------------------------------------------------------------ SQL
    async def sql(
        self,
        query: str,
        *,
        parameters: Mapping[str, Value] | Sequence[Value] | None = None,
        as_of: int | str | None = None,
        max_rows: int = 0,
        stream: str = "",
        stale: bool = False,
        format: Literal["arrow", "json"] = "arrow",
        engine: Literal["duckdb", "spark"] = "duckdb",
    ) -> Answer:
        """Ask the server a query (docs/sql-over-nats.md#sql-over-nats); return its result once the columns are known.

        Args:
            query: one statement, in the SQL of its engine (docs/sql.md).
            parameters: values of `:name` in it, or a list of those of `?`.
            as_of: a time, as the second argument of as_of; ns since the epoch, or a text.
            max_rows: rows that are wanted; 0: all.
            stream: the only stream that it reads, for users who may read no other.
            stale: accept that the newest messages of a stream may be missing.
            format: of the batches.
            engine: `spark` reads committed messages only.

        Raises:
            QueryFailed, NoAnswer.
        """
        values = dict(parameters or {}) if isinstance(parameters, Mapping | None) else list(parameters)
        request = SqlRequest(query, format, values, max_rows, as_of, stale, engine=engine)
        return await ask(self.nats, request, stream)

    # ------------------------------------------------------------------ the lake
    async def _open(self, stream: str, point: PastPoint | None) -> StreamView | StreamPast | str:
        """Return the view of a stream, or its past at a point; or the reason why this machine cannot read it.

        Raises:
            NoSuchStream, ReadFailed, PastUnavailable.
        """
        answer = await self._flush(stream)
        if isinstance(answer, str):
            return answer
        _require("reading the lake", "deltalake", "pyarrow")
        lake = self._lake or answer.lake
        if answer.lake_id not in self._readable:
            self._readable[answer.lake_id] = await asyncio.to_thread(_why_unreadable, lake, answer.lake_id)
        if reason := self._readable[answer.lake_id]:
            return reason
        if point is None:
            return await _of_lake(lambda: _view(lake, answer))
        return await _of_lake(lambda: _past(lake, answer, point))

    async def _flush(self, stream: str) -> FlushAnswer | str:
        """Have the server stage what it has; return its answer, or the reason why there is none."""
        from nats.errors import NoRespondersError

        from lakestream.lake.flush import FLUSH, FLUSHED, NOT_FOUND

        if self._is_lakestream is False:
            return "the server is not lakestream"
        try:
            body = (await self.nats.request(f"{FLUSH}{stream}", b"", timeout=self._timeout)).data
            answer = FLUSHED.decode(body)
        except NoRespondersError:
            self._is_lakestream = False
            return "the server is not lakestream, or has no lake"
        except TimeoutError:
            return f"no answer to {FLUSH}{stream}; the user needs the permission to publish there"
        except DECODE_ERRORS as error:
            return f"the server answers a flush with something else: {error}"
        self._is_lakestream = True
        if answer.error is None:
            return answer
        if answer.error.err_code == NOT_FOUND:
            raise NoSuchStream(stream)
        return answer.error.description


def _require(purpose: str, *packages: str) -> None:
    """Raise MissingPackage unless packages are installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise MissingPackage(purpose, package)


def _why_unreadable(lake: str, lake_id: str) -> str:
    """Return the reason why a lake cannot be read here, or ""."""
    from lakestream.lake.storage.lake import open_storage, read_id

    try:
        found = read_id(open_storage(lake))
    except (LakeError, OSError) as error:
        return str(error)
    if not found:
        return f"there is no lake at {lake} on this machine"
    return "" if found == lake_id or not lake_id else f"the lake at {lake} is another one than the server's"


def _view(lake: str, answer: FlushAnswer) -> StreamView:
    from lakestream_client.lake.view import open_view

    return open_view(lake, answer.stream, answer.account or DEFAULT_ACCOUNT, answer=answer)


def _past(lake: str, answer: FlushAnswer, point: PastPoint) -> StreamPast:
    from lakestream.lake.table.at import TimeTravelError
    from lakestream_client.lake.past import open_past

    try:
        account = answer.account or DEFAULT_ACCOUNT
        return open_past(lake, answer.stream, point.time_ns, account, answer=answer, seq=point.seq)
    except TimeTravelError as error:
        raise PastUnavailable(answer.stream, str(point), str(error)) from None


async def _of_lake(read: Callable[[], T]) -> T:
    """Run a blocking read of the lake in a thread. Raises ReadFailed."""
    try:
        return await asyncio.to_thread(read)
    except LakeError as error:
        raise ReadFailed(str(error)) from error


def _in_order(reader: pa.RecordBatchReader, columns: Sequence[str]) -> pa.Table:
    """Return a reader's rows, sorted by sequence."""
    import pyarrow.compute as pc

    found = reader.read_all()
    seqs = found.column("seq")
    if found.num_rows > 1 and not pc.all(pc.less(seqs[:-1], seqs[1:])).as_py():
        found = found.sort_by("seq")
    return found.select(list(columns))
