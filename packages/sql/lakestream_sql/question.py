"""A query that is put to its process.

Belongs here: the order of their messages until the columns of the result: the process tells which streams the query
reads, the server judges these, asks their leaders for what the query wants of their indexes, passes the pages on, and
has the newest messages staged. An index is read before that (lake/last_messages.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from lakestream.lake.flush import LAST
from lakestream.lake.last_messages import PAGE, LastPage, LastRequest, LastWanted
from lakestream.ops.sql.processes import Process
from lakestream.protocol.decoding import DECODE_ERRORS

MAX_QUERY = 64 << 10
"""Length of a query (64 Ki characters)."""
MAX_STREAMS = 16
"""Streams of one query (16)."""


class MentionedBy(msgspec.Struct, frozen=True):
    """The names that a query reads, as its process says: streams, the names of all (`lists`), and of indexes."""

    streams: list[str]
    lists: bool = False
    last: list[LastWanted] = []


T = TypeVar("T")
_MENTIONED = msgspec.json.Decoder(MentionedBy)
AskLast = Callable[[str, bytes], AsyncIterator[bytes]]
"""Yields the answers to a request: its subject and body. The iterator ends when there is no answer (any more)."""


async def put(
    process: Process,
    ask: object,
    judge: Callable[[MentionedBy], None],
    ask_last: AskLast,
    stage: Callable[[list[str]], Awaitable[T]],
) -> tuple[bytes, T]:
    """Put a query to a process.

    Args:
        ask: the query (Ask in lakestream_sql/messages.py).
        judge: raises for a query that may not read its streams.
        ask_last: asks a stream's leader.
        stage: has the newest messages of streams staged; raises for a query that must not run without them.

    Returns:
        The columns of the result, as the process tells them, and what `stage` returned.

    Raises:
        ProcessEnded, ProcessQueryFailed. After an error of `judge` or `stage` the process takes the next query.
    """
    await process.ask(ask)
    mentioned = _MENTIONED.decode(await process.hear())
    try:
        judge(mentioned)
    except Exception:
        await _pass_on(mentioned.last, _nothing, process)
        await process.decide(go=False)
        raise
    await _pass_on(mentioned.last, ask_last, process)
    try:
        staged = await stage(mentioned.streams)
    except Exception:
        await process.decide(go=False)
        raise
    await process.decide(go=True)
    return await process.hear(), staged


async def _nothing(subject: str, body: bytes) -> AsyncIterator[bytes]:
    answers = list[bytes]()
    for each in answers:
        yield each


async def _pass_on(wanted: Sequence[LastWanted], ask: AskLast, process: Process) -> None:
    """Answer a process for everything that its query wants. Without a whole answer of the leader it is told so, and
    searches the table. Raises ProcessEnded."""
    for each in wanted:
        done = False
        async for body in ask(f"{LAST}{each.stream}", msgspec.json.encode(LastRequest([*each.filters]))):
            try:
                done = PAGE.decode(body).done
            except DECODE_ERRORS:
                break
            await process.pass_on(body)
            if done:
                break
        if not done:
            await process.pass_on(msgspec.msgpack.encode(LastPage(error="no answer", done=True)))
