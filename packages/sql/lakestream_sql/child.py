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
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from lakestream.lake.errors import LakeError, LakeSilent
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
    from lakestream_sql import Bindings
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
        from lakestream.extras import ExtraMissing
        from lakestream.lake.storage import paths
        from lakestream.lake.storage.probe import require_answer
        from lakestream_sql.confined import NO_BARRIER, QueryBounds
        from lakestream_sql.explained import ForbiddenQuery
        from lakestream_sql.session import EngineFailed, Session  # loads DuckDB

        bounds = QueryBounds(opened.memory, opened.threads)
        require_answer(paths.root(opened.lake), lambda text: None)
        session = Session(opened.lake, tail_bytes=TAIL_BYTES, account=opened.account, bounds=bounds)
    except (LakeError, ImportError) as error:
        _send(out, Failure(_public(error, opened.lake), UNAVAILABLE if isinstance(error, LakeSilent) else 400))
        return
    with contextlib.suppress(OSError):  # a sandbox may deny it
        os.nice(19)  # for queries: the server has the processor first
    _send(out, ChildReady())
    spark = _Spark(opened)
    while True:
        ask = _ask.decode(messages.get())
        try:
            require_answer(paths.root(opened.lake), lambda text: None)  # the lake may have gone since the last query
            if ask.engine != "duckdb" and ask.viewer.sees is not None:
                raise ForbiddenQuery(NO_BARRIER)
            _serve(session if ask.engine == "duckdb" else spark.session(ask), session, ask, messages.get, out)
            continue
        except (EngineFailed, LakeSilent) as error:  # another process takes the next query
            _send(out, Failure(_public(error, opened.lake), FAILED if isinstance(error, EngineFailed) else UNAVAILABLE))
            return
        except LakeError as error:
            failure = Failure(_public(error, opened.lake), _code(error))
        except ExtraMissing as error:
            failure = Failure(str(error), UNAVAILABLE)
        except RecursionError:
            failure = Failure("the query is nested too deeply")
        except MemoryError:
            failure = Failure("the query needs more memory than one may have")
        _send(out, failure)


class _Spark:
    """The other engine, which is loaded with its first query."""

    def __init__(self, opened: Open) -> None:
        self._opened = opened
        self._session: Any = None

    def session(self, ask: Ask) -> Any:
        """Return the session for a query. Raises ExtraMissing."""
        if self._session is None:
            from lakestream import extras
            from lakestream.spark import ENTRY_POINTS

            confined = extras.load(ENTRY_POINTS, "confined", "spark", "Spark SQL")
            self._session = confined(self._opened.lake, self._opened.account)
        self._session.most = ask.max_rows
        return self._session


def _public(error: BaseException, lake: str) -> str:
    """Return an error's text without the lake's address, in its own spelling or in DuckDB's."""
    return str(error).replace(lake, "the lake").replace(f"lake://{lake.replace('://', '/', 1)}", "the lake")


def _serve(session: Session, plain: Session, ask: Ask, next_message: Callable[[], bytes], out: BinaryIO) -> None:
    """Answer one query by a session; `plain` is that of DuckDB. Raises LakeError and others for one that fails."""
    from lakestream_sql import Bindings
    from lakestream_sql.confined import NO_BARRIER
    from lakestream_sql.explained import ForbiddenQuery

    bindings = Bindings(ask.parameters, ask.as_of, unbound=ask.describe and not ask.parameters)
    session.viewer = ask.viewer
    of_rows = ask.engine == "duckdb" and not ask.describe
    streams = session.streams(ask.query, bindings)
    if ask.engine != "duckdb" and plain.masked(streams, ask.viewer.roles or ()):
        raise ForbiddenQuery(NO_BARRIER)
    wanted = session.last_wanted(ask.query, bindings) if of_rows else []
    _send(out, MentionedStreams(streams, session.lists(ask.query, bindings), wanted))
    if ask.engine == "duckdb":
        session.take_last({each: list(_pages(next_message)) for each in wanted})
    if not _judgement.decode(next_message()).go:
        return
    decisions = _Wanted(next_message)
    try:
        _send_batches(session, ask, bindings, decisions, out)
    except Exception:
        if decisions.begun and not decisions.more():
            return
        raise


def _pages(next_message: Callable[[], bytes]) -> Iterator[LastPage]:
    """Yield the pages of an index, which may end with an error."""
    while True:
        yield (page := PAGE.decode(next_message()))
        if page.done:
            return


class _Wanted:
    """The server's decisions after the columns. `begun`: they were sent, so that each response waits for one."""

    def __init__(self, next_message: Callable[[], bytes]) -> None:
        self._next = next_message
        self.begun = False

    def more(self) -> bool:
        """Wait; return False if the query ends without an answer."""
        return _judgement.decode(self._next()).go


def _send_batches(session: Session, ask: Ask, bindings: Bindings, wanted: _Wanted, out: BinaryIO) -> None:
    from lakestream_sql.batches import CountedRows, batches, schema_of

    if ask.describe:
        shape = session.shape(ask.query, bindings)
        columns = _columns(shape.columns, shape.types)
        _send(out, QueryColumns(columns, schema_of(shape), session.parameters(ask.query)))
        wanted.begun = True
        if wanted.more():
            _send(out, Summary(0, False))
        return

    def described(columns: tuple[str, ...], types: tuple[str, ...]) -> None:
        _send(out, QueryColumns(_columns(columns, types)))
        wanted.begun = True

    result = session.query(ask.query, bindings, described)
    counted = CountedRows(ask.max_rows)
    for body in batches(result, ask.form, counted, ask.batch_bytes, ask.max_batch_bytes):
        if not wanted.more():
            return
        _write(out, BATCH, body)
    if wanted.more():
        _send(out, Summary(counted.rows, counted.truncated))


def _code(error: LakeError) -> int:
    from lakestream_sql.batches import RowTooLarge
    from lakestream_sql.explained import ForbiddenQuery, UnknownStream

    if (own := getattr(error, "code", None)) is not None:
        return int(own)
    codes = ((ForbiddenQuery, 403), (UnknownStream, 404), (RowTooLarge, 413))
    return next((code for kind, code in codes if isinstance(error, kind)), 400)


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


def _columns(names: Iterable[str], types: Iterable[str]) -> list[ResultColumn]:
    return [*map(ResultColumn, names, types)]


if __name__ == "__main__":
    main()
