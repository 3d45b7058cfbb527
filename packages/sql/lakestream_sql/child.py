"""The program that answers queries for the server: `python -m lakestream_sql.child`.

Belongs here: the order of messages with the server (messages.py), and the limits of a process and of a result. It
serves one account, one query at a time, and may be killed at any moment. A message is its length (4 bytes, big-endian),
a letter for its kind, and JSON. The server's first message names lake and account, and is answered once queries are
taken. A query is answered in two steps, so that the server can judge which streams it reads, and have their newest
messages staged.

A result is its columns, then batches (batches.py) and a summary, each when the server asks for it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import resource
import signal
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from lakestream import extras
from lakestream.extras import ExtraMissing
from lakestream.lake.errors import LakeError
from lakestream.lake.last_messages import PAGE, LastPage
from lakestream.protocol.sql import ResultColumn
from lakestream_sql.messages import (
    Ask,
    ChildReady,
    Failure,
    Judgement,
    MentionedStreams,
    Open,
    QueryColumns,
    Summary,
)

if TYPE_CHECKING:
    from lakestream_sql.session import Session

BESIDE_BYTES = 3 << 30
"""Memory of the process beside DuckDB's (3 GiB); a query that needs more fails."""

TAIL_BYTES = 256 << 20
"""Bytes of a stream's uncompacted segments that are read (256 MiB)."""

_LENGTH = struct.Struct(">I")


FAILED, UNAVAILABLE = 500, 503
_KINDS = {ChildReady: b"r", MentionedStreams: b"m", Failure: b"e", QueryColumns: b"c", Summary: b"s"}
BATCH = b"b"
"""The kind of a batch, whose body is not JSON but lines of JSON or a part of an Arrow stream."""
_open = msgspec.json.Decoder(Open)
_ask = msgspec.json.Decoder(Ask)
_judgement = msgspec.json.Decoder(Judgement)


def main() -> None:
    """Serve until the input ends."""
    messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, messages.put), daemon=True).start()
    out = sys.stdout.buffer
    opened = _open.decode(messages.get())
    _limit(opened)
    try:
        from lakestream.lake.storage import paths
        from lakestream_sql.confined import QueryBounds
        from lakestream_sql.first_answer import require_answer
        from lakestream_sql.session import Session  # loads DuckDB

        bounds = QueryBounds(opened.memory, opened.threads)
        require_answer(paths.root(opened.lake), lambda text: None)
        session = Session(opened.lake, tail_bytes=TAIL_BYTES, account=opened.account, bounds=bounds)
    except (LakeError, ImportError) as error:
        _send(out, _failure(error, opened.lake))
        return
    with contextlib.suppress(OSError):  # a sandbox may deny it
        os.nice(19)  # for queries: the server has the processor first
    _send(out, ChildReady())
    while True:
        ask = _ask.decode(messages.get())
        try:
            require_answer(paths.root(opened.lake), lambda text: None)  # the lake may have gone since the last query
            _serve(session, opened, ask, messages.get, out)
        except (LakeError, ExtraMissing, RecursionError, MemoryError) as error:
            failure = _failure(error, opened.lake)
            _send(out, failure)
            if failure.code >= FAILED:  # another process takes the next query
                return


@cache
def _spark(opened: Open) -> Any:
    """Return the session of the other engine, which is loaded with its first query. Raises ExtraMissing."""
    from lakestream.spark import ENTRY_POINTS

    return extras.load(ENTRY_POINTS, "confined", "spark", "Spark SQL")(opened.lake, opened.account)


def _failure(error: BaseException, lake: str) -> Failure:
    """Return an error without the lake's address, in its own spelling or in DuckDB's."""
    if isinstance(error, RecursionError):
        return Failure("the query is nested too deeply")
    if isinstance(error, MemoryError):
        return Failure("the query needs more memory than one may have")
    text = str(error).replace(lake, "the lake").replace(f"lake://{lake.replace('://', '/', 1)}", "the lake")
    return Failure(text, UNAVAILABLE if isinstance(error, ExtraMissing) else getattr(error, "code", 400))


def _serve(plain: Session, opened: Open, ask: Ask, next_message: Callable[[], bytes], out: BinaryIO) -> None:
    """Answer one query; `plain` is the session of DuckDB. Raises LakeError and others for one that fails."""
    from lakestream_sql import Bindings
    from lakestream_sql.batches import CountedRows, batches, schema_of
    from lakestream_sql.confined import NO_BARRIER
    from lakestream_sql.explained import ForbiddenQuery

    def goes_on() -> bool:
        return _judgement.decode(next_message()).go

    bindings, session = Bindings(ask.parameters, ask.as_of, unbound=ask.describe and not ask.parameters), plain
    if ask.engine != "duckdb":
        if ask.viewer.sees is not None:
            raise ForbiddenQuery(NO_BARRIER)
        session = _spark(opened)
        session.most = ask.max_rows
    plain.viewer = ask.viewer
    found = session.mentioned(ask.query, bindings)
    if ask.engine != "duckdb" and plain.masked(found.streams, ask.viewer.roles or ()):
        raise ForbiddenQuery(NO_BARRIER)
    wanted = [] if ask.describe else found.last
    _send(out, msgspec.structs.replace(found, last=wanted))
    plain.take_last({each: list(_pages(next_message)) for each in wanted})
    if not goes_on():
        return
    begun = False  # then each response waits for a decision

    def described(columns: Iterable[str], types: Iterable[str], **more: Any) -> None:
        nonlocal begun
        _send(out, QueryColumns([*map(ResultColumn, columns, types)], **more))
        begun = True

    counted, bodies = CountedRows(ask.max_rows), iter(list[bytes]())
    try:
        if ask.describe:
            shape = session.shape(ask.query, bindings)
            described(shape.columns, shape.types, schema=schema_of(shape), parameters=session.parameters(ask.query))
        else:
            result = session.query(ask.query, bindings, described)
            bodies = batches(result, ask.form, counted, ask.batch_bytes, ask.max_batch_bytes)
        for body in bodies:
            if not goes_on():
                return
            _write(out, BATCH, body)
        if goes_on():
            _send(out, Summary(counted.rows, counted.truncated))
    except Exception:
        if not begun or goes_on():
            raise


def _pages(next_message: Callable[[], bytes]) -> Iterator[LastPage]:
    """Yield the pages of an index, which may end with an error."""
    while True:
        yield (page := PAGE.decode(next_message()))
        if page.done:
            return


def _limit(opened: Open) -> None:
    """Limit what this process can do to its machine. It can write no file; if the lake is in an object store, only
    copies of staged segments."""
    from lakestream.lake.storage import paths
    from lakestream.lake.storage.storage import SINGLE_PUT_BYTES

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the server
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _lower(resource.RLIMIT_FSIZE, 0 if paths.is_local(opened.lake) else SINGLE_PUT_BYTES)
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_DATA, opened.memory + BESIDE_BYTES)


def _lower(kind: int, most: int) -> None:
    """Lower a limit of the process, which cannot be raised again."""
    _, hard = resource.getrlimit(kind)
    low = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (low, low))


def _read(stream: BinaryIO, put: Callable[[bytes], None]) -> None:
    """Read messages; end the process with the input, whatever it is doing."""
    while len(head := stream.read(_LENGTH.size)) == _LENGTH.size:
        put(stream.read(_LENGTH.unpack(head)[0]))
    os._exit(0)


def _send(out: BinaryIO, message: ChildReady | MentionedStreams | Failure | QueryColumns | Summary) -> None:
    _write(out, _KINDS[type(message)], msgspec.json.encode(message))


def _write(out: BinaryIO, kind: bytes, body: bytes) -> None:
    out.write(_LENGTH.pack(len(body)) + kind)
    out.write(body)
    out.flush()


if __name__ == "__main__":
    main()
