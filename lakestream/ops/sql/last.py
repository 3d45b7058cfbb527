"""The last messages of streams for a query's process.

Belongs here: asking the leader of each stream for what a query wants of its index, and passing the pages on. An index
is read before the newest messages of the stream are staged (lake/last_messages.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from lakestream.lake.flush import LAST
from lakestream.lake.last_messages import PAGE, LastPage, LastRequest, LastWanted
from lakestream.ops.sql.processes import Process
from lakestream.protocol.decoding import DECODE_ERRORS


class MentionedBy(msgspec.Struct, frozen=True):
    """The names that a query reads, as its process says: streams, the names of all (`lists`), and of indexes."""

    streams: list[str]
    lists: bool = False
    last: list[LastWanted] = []


MENTIONED = msgspec.json.Decoder(MentionedBy)
AskLast = Callable[[str, bytes], AsyncIterator[bytes]]
"""Yields the answers to a request: its subject and body. The iterator ends when there is no answer (any more)."""


async def nothing(subject: str, body: bytes) -> AsyncIterator[bytes]:
    """Yield no answer."""
    answers = list[bytes]()
    for each in answers:
        yield each


async def pass_on(wanted: Sequence[LastWanted], ask: AskLast, process: Process) -> None:
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
