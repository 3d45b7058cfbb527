"""Reading a stream as Arrow data.

Belongs here: the filters of a read, and the two sources: a live view of the lake, and the server by NATS. Filters are
applied where the data is: by statistics and partitions of the table, and in the server's requests. Rows come in
batches; a source holds a few of them at a time, never the stream.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

import msgspec

from lakestream.lake.errors import LakeError
from lakestream.lake.table.schema import END, REMOVED_COLUMN
from lakestream.loop_thread import LoopThread
from lakestream.protocol.instants import rfc3339
from lakestream.protocol.subjects import valid_subject
from lakestream_client.errors import BadFilter, ReadFailed
from lakestream_client.messages import Message, as_batch
from lakestream_client.past import parsed_time

if TYPE_CHECKING:
    import pyarrow as pa
    from nats.aio.client import Client as Nats

    from lakestream.lake.table.conditions import Condition
    from lakestream_client.direct_get import DirectGets
    from lakestream_client.lake.past import StreamPast
    from lakestream_client.lake.view import StreamView

BATCH_ROWS = 10_000
"""Default maximum number of rows of a batch."""

Time = datetime | str | int
"""A datetime, a text such as `2026-05-01 12:00:00` (UTC without a zone), or ns since the epoch."""
Source = Literal["auto", "lake", "nats"]
Read = TypeVar("Read", bound=Callable[..., Any])

Comparison = tuple[str, str, Any]
"""(column, operator, value), as in pyarrow's `filters`."""

_WHERE_TYPES: dict[str, type] = {"subject": str, "seq": int, "time_ns": int}
_OPERATORS = {
    "=": "=",
    "==": "=",
    "!=": "!=",
    "<": "<",
    "<=": "<=",
    ">": ">",
    ">=": ">=",
    "in": "IN",
    "not in": "NOT IN",
}


class Filters(TypedDict, total=False):
    """Filters of a read; all of them have to hold.

    Attributes:
        subject: a subject or filter with wildcards, or several of them.
        first_seq, last_seq: the range of sequences, inclusive.
        start, end: the range of store times, inclusive.
        where: further comparisons of `subject`, `seq` or `time_ns`, such as `("seq", ">", 17)`; the operators are
            =, !=, <, <=, >, >=, in, not in.
        as_of: the stream as it was at this time, inclusive. Needs the lake.
        source: `auto`: the lake if this machine can read it, else NATS; `lake`, `nats`: only that.
        batch_size: maximum number of rows of a batch.
    """

    subject: str | Sequence[str]
    first_seq: int
    last_seq: int
    start: Time
    end: Time
    where: Sequence[Comparison]
    as_of: Time
    source: Source
    batch_size: int


def with_filters(read: Read) -> Read:
    """Have `help` show the filters of a method with `**filters: Unpack[Filters]`, each as a parameter."""
    shown = inspect.signature(read)
    named = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=..., annotation=kind)
        for name, kind in Filters.__annotations__.items()
    ]
    read.__signature__ = shown.replace(parameters=[*list(shown.parameters.values())[:-1], *named])  # type: ignore[attr-defined]
    return read


class CheckedFilters(msgspec.Struct, frozen=True):
    """Checked filters. `subjects`: None for all; `as_of_ns` None: the present."""

    columns: tuple[str, ...]
    conditions: tuple[Condition, ...]
    subjects: tuple[str, ...] | None
    first: int
    last: int
    start_ns: int | None
    end_ns: int | None
    as_of_ns: int | None
    source: Source
    batch_size: int

    @classmethod
    def of(cls, columns: tuple[str, ...], filters: Filters) -> CheckedFilters:
        """Check filters. Raises BadFilter."""
        from lakestream.lake.table.conditions import MATCHES, Condition, bounds

        if unknown := set(filters) - Filters.__annotations__.keys():
            raise BadFilter(
                f"unknown filter {', '.join(sorted(unknown))}; there are {', '.join(Filters.__annotations__)}"
            )
        subject = filters.get("subject")
        subjects = None if subject is None else (subject,) if isinstance(subject, str) else tuple(subject)
        conditions = [_condition(one) for one in filters.get("where", ())]
        if subjects is not None:
            for each in subjects:
                if not isinstance(each, str) or not valid_subject(each.encode()):
                    raise BadFilter(
                        f"subject={each!r} is neither a subject nor a filter such as orders.*.eu or orders.>"
                    )
            conditions.append(Condition("subject", MATCHES, subjects))
        for name, operator in (("first_seq", ">="), ("last_seq", "<=")):
            if (value := filters.get(name)) is not None:
                conditions.append(_condition(("seq", operator, value)))
        start, end = (
            parsed_time(name, value) if (value := filters.get(name)) is not None else None for name in ("start", "end")
        )
        if start is not None:
            conditions.append(Condition("time_ns", ">=", (start,)))
        if end is not None:
            conditions.append(Condition("time_ns", "<=", (end,)))
        as_of, source = filters.get("as_of"), filters.get("source", "auto")
        if source not in ("auto", "lake", "nats") or (as_of is not None and source == "nats"):
            raise BadFilter(f"source={source!r}: auto, lake or nats is expected; `as_of` reads the lake")
        batch_size = filters.get("batch_size", BATCH_ROWS)
        if batch_size < 1:
            raise BadFilter(f"batch_size={batch_size!r}: a number of rows is expected")
        first, last = bounds(conditions)
        return cls(
            columns,
            tuple(conditions),
            subjects,
            max(first, 1),
            last,
            start,
            end,
            None if as_of is None else parsed_time("as_of", as_of),
            source,
            batch_size,
        )


def _condition(given: Any) -> Condition:
    """Return a comparison as a condition. Raises BadFilter."""
    from lakestream.lake.table.conditions import Condition

    try:
        column, operator, value = given
        found, kind = _OPERATORS[operator], _WHERE_TYPES[column]
        values = tuple(value) if found in ("IN", "NOT IN") and not isinstance(value, str) else (value,)
    except (KeyError, TypeError, ValueError):
        raise BadFilter(
            f"{given!r} is not a comparison: (column, operator, value) with a column of {', '.join(_WHERE_TYPES)} and "
            f"an operator of {' '.join(_OPERATORS)}; filter by other columns after reading"
        ) from None
    if not all(type(each) is kind and (not isinstance(each, int) or -END - 1 <= each <= END) for each in values):
        raise BadFilter(f"{given!r}: {column} is compared with values of type {kind.__name__} (of 64 bits)")
    return Condition(column, found, values)


# ------------------------------------------------------------------ the lake
def of_lake(stream: StreamView | StreamPast, asked: CheckedFilters) -> pa.RecordBatchReader:
    """Return the messages of a view or a past state as a reader; rows are in no particular order."""
    return _reader(_lake_batches(stream, asked), asked)


def _lake_batches(stream: StreamView | StreamPast, asked: CheckedFilters) -> Iterator[pa.RecordBatch]:
    from lakestream_client.lake.view import StreamView

    columns, conditions = asked.columns, asked.conditions
    try:
        if not isinstance(stream, StreamView):
            yield from stream.rows(columns, conditions)
            return
        spans, tail = stream.ranges(asked.first, asked.last), (asked.first, asked.last)
        if not stream.archive or REMOVED_COLUMN in columns:
            yield from stream.selected(spans, tail, columns, conditions)
            return
        # The table of an archive keeps the messages that the stream no longer has.
        for batch in stream.selected(spans, tail, [*columns, REMOVED_COLUMN], conditions):
            held = batch.filter(batch.column(REMOVED_COLUMN).is_null())
            if held.num_rows:
                yield held.select(list(columns))
    except LakeError as error:
        raise ReadFailed(str(error)) from error


def _reader(batches: Iterable[pa.RecordBatch], asked: CheckedFilters) -> pa.RecordBatchReader:
    import pyarrow as pa

    from lakestream.lake.table.schema import table_schema

    size = asked.batch_size

    def sliced() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for at in range(0, batch.num_rows, size):
                yield batch.slice(at, size)

    return pa.RecordBatchReader.from_batches(table_schema(asked.columns), sliced())


# ------------------------------------------------------------------ NATS
Opened = Callable[[], Coroutine[Any, Any, tuple["Nats", AsyncGenerator[list[Message], None]]]]
"""Connect; return the connection and the pages of messages."""


def of_nats(opened: Opened, asked: CheckedFilters) -> pa.RecordBatchReader:
    """Return the messages that a server sends as a reader, in sequence order.

    The connection is one of its own, in a thread of its own, so that any thread may read, also that of the caller's
    event loop. It ends with the last row, or when the reader is dropped.
    """
    return _reader(_nats_batches(opened, asked), asked)


def _nats_batches(opened: Opened, asked: CheckedFilters) -> Iterator[pa.RecordBatch]:
    thread = LoopThread("lakestream scan")
    try:
        ahead = _Ahead(*thread.run(opened()))
        try:
            while (page := thread.run(ahead.next())) is not None:
                if (batch := _filtered(page, asked)).num_rows:
                    yield batch
        finally:
            thread.run(ahead.close())
    finally:
        thread.close()


class _Ahead:
    """Pages of messages, of which the next one is requested while one is used."""

    def __init__(self, connection: Nats, pages: AsyncGenerator[list[Message], None]) -> None:
        self._connection, self._pages = connection, pages
        self._coming: asyncio.Task[list[Message] | None] | None = None

    async def next(self) -> list[Message] | None:
        """Return the next page; None at the end."""
        page = await (self._coming or self._following())
        self._coming = asyncio.create_task(self._following()) if page is not None else None
        return page

    async def _following(self) -> list[Message] | None:
        return await anext(self._pages, None)

    async def close(self) -> None:
        """End the requests, then the connection."""
        if self._coming is not None:
            self._coming.cancel()
            await asyncio.wait([self._coming])
        try:
            await self._pages.aclose()
        finally:
            await self._connection.close()


def _filtered(page: Sequence[Message], asked: CheckedFilters) -> pa.RecordBatch:
    """Return a page with the wanted columns, without the messages for which a condition does not hold."""
    needed = {condition.column for condition in asked.conditions}
    batch = as_batch(page, [*asked.columns, *(needed - set(asked.columns))])
    for condition in asked.conditions:
        batch = batch.filter(condition.mask(batch))
    return batch.select(list(asked.columns))


async def direct_pages(
    gets: DirectGets, stream: str, asked: CheckedFilters, last: int, page_messages: int
) -> AsyncGenerator[list[Message], None]:
    """Yield a stream's messages through sequence `last` by direct gets.

    Subject and start are part of the requests; the caller applies the other conditions.

    Raises:
        NoSuchStream, DirectGetDisabled, NoAnswer, Refused.
    """
    from lakestream_client.direct_get import PAGE_BYTES

    last = min(last, asked.last)
    only = asked.subjects[0] if asked.subjects is not None and len(asked.subjects) == 1 else ">"
    request: dict[str, Any] = {"batch": page_messages, "max_bytes": PAGE_BYTES}
    if only != ">":
        request["next_by_subj"] = only
    start: dict[str, Any] = {"seq": asked.first}
    if asked.start_ns is not None and asked.first == 1:
        start = {"start_time": rfc3339(asked.start_ns)}
    while start.get("seq", 1) <= last:
        messages = (await gets.page(stream, **request, **start)).messages
        if not messages:
            return
        start = {"seq": messages[-1].seq + 1}
        over = messages[-1].seq > last or (asked.end_ns is not None and messages[-1].time_ns > asked.end_ns)
        if messages[-1].seq > last:
            messages = [message for message in messages if message.seq <= last]
        yield messages
        if over:
            return
