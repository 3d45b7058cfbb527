"""Uncompacted segments in SQL: messages that are staged, and not in the table yet.

Belongs here: opening a stream's live view (lakestream_client/lake/view.py) for one statement, as SQL and Arrow tables
for DuckDB, the limit of what is read into memory, and asking the server for its index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from lakestream.lake.errors import LakeError, StorageFailed
from lakestream.lake.flush import ServerCredentials
from lakestream.lake.last_messages import LastPage, LastWanted
from lakestream.lake.staging import staging
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table import departures as departure_files
from lakestream.lake.table.departures import DeletedMessages
from lakestream.lake.table.schema import REMOVED_COLUMN, doubled
from lakestream_client.lake.flusher import DEFAULT_TIMEOUT_S, Flusher, FlushFailed, StreamNotFound, connect
from lakestream_client.lake.view import DecodedParts, Followers, StreamView, open_view
from lakestream_sql.explained import SqlError

if TYPE_CHECKING:
    from lakestream.log.format.departures import Point
    from lakestream_sql.connection import Engine

MANY_REMOVED = 1000
"""From this many removed sequences on they are joined instead of listed in a condition."""


class QueriedStream(msgspec.Struct, frozen=True):
    """A stream by its account and name; `table` is the path of its Delta table, `name` its name in queries."""

    account: str
    stream: str
    table: str
    name: str

    @property
    def staging(self) -> str:
        """Return the directory of the staged segments of streams of that name."""
        base, _, directory = self.table.rpartition(f"/{paths.STREAMS}/")
        return f"{base}/{paths.SEGMENTS}/{directory}"


class LastIndex(msgspec.Struct, frozen=True):
    """The last message of each subject.

    `begun`: the log entry as of which the answer began; `ended`: the one that it has at most.
    """

    uid: str
    begun: int
    ended: int
    seqs: Any
    subjects: Any


_TYPES = {"headers": "MAP(VARCHAR, VARCHAR[])", "header_block": "BLOB", "subject_bytes": "BLOB"}


def _filled(source: str, view: StreamView) -> str:
    """Return a FROM item that does not read columns without a value: a third of the time of a query for all columns.

    Args:
        source: the table of the view.
    """
    files = () if view.state is None else view.state.files
    empty = set[str]().union(*(each.empty for each in files[:1])).intersection(*(each.empty for each in files))
    nulls = ", ".join(f"CAST(NULL AS {_TYPES[name]}) AS {name}" for name in sorted(empty))
    return f"(SELECT * REPLACE ({nulls}) FROM {source})" if nulls else source


def selected(name: str, rows: Any) -> str:
    """Return a SELECT of a registered Arrow table.

    DuckDB may push the Bloom filter of a join down into the scan of a column that stands alone, but its scan of Arrow
    tables knows no such filters, and fails. What stops it costs 1 ms for each column and 100,000 rows.
    """
    columns = map(doubled, rows.column_names)
    return f"SELECT {', '.join(f'coalesce({each}, {each}) AS {each}' for each in columns)} FROM {name}"


def index_of(pages: Sequence[LastPage]) -> LastIndex | None:
    """Return the index of a whole answer; None for one that ended with an error, or is not whole."""
    if not pages or not pages[-1].done or any(page.error for page in pages):
        return None
    seqs = np.frombuffer(b"".join(page.seqs for page in pages), "<i8")
    lengths = np.frombuffer(b"".join(page.lengths for page in pages), "<u4")
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(page.subjects for page in pages))]
    names = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(lengths), buffers)
    return LastIndex(pages[0].uid, pages[0].applied, pages[-1].applied, seqs, names.cast(pa.string()))


class FlushServer(msgspec.Struct, frozen=True):
    """The server to ask to stage its newest messages. `url`: None for the one that the lake names."""

    url: str | None = None
    credentials: ServerCredentials = ServerCredentials()
    timeout: float = DEFAULT_TIMEOUT_S


class UncompactedTooLarge(SqlError):
    """Raised when more messages wait for the compactor than are read into memory."""

    def __init__(self, stream: str, size: int, limit: int) -> None:
        super().__init__(
            f"{size:,} bytes of stream {stream} are not in its table yet, and at most {limit:,} (tail_bytes) are read "
            "from outside of it: run the compactor (`lakestream compact --once`), or ask the table alone (--committed)"
        )


class StreamQuery:
    """A stream's live view for one statement, as SQL for DuckDB.

    Args:
        view: the view.
        table: the FROM item of its table; "" while there is none.
        tail: the uncompacted messages.
        number: makes the names of Arrow tables unique within the statement.

    Attributes:
        source: the FROM item of the table without its empty columns.
        hidden: the condition for rows of the table that are left out; "" for none.
        arrow: the Arrow tables that the SQL reads, by name.
    """

    def __init__(self, view: StreamView, table: str, tail: Any, number: int) -> None:
        self.view, self.table, self.tail = view, table, tail
        self.source, self.hidden = table and _filled(table, view), view.hidden_sql() or ""
        self.arrow = dict[str, Any]()
        self._shown, self._where, self._beyond = view, "", ""
        if table and len(view.hidden.removed) + len(view.hidden.runs) > MANY_REMOVED:
            gone = [pa.array(view.hidden.removed, pa.int64()), pa.array(departure_files.sequences(view.hidden))]
            self.arrow[f"gone_{number}"] = pa.table({"seq": pa.chunked_array(gone)})
            self._where = f"seq NOT IN (SELECT seq FROM gone_{number})"
            self._shown = msgspec.structs.replace(view, hidden=DeletedMessages(view.hidden.floor))
            floor = self._shown.hidden_sql()
            self.hidden = f"NOT ({self._where})" + (f" OR {floor}" if floor else "")
        if tail.num_rows or not table:
            self.arrow[f"tail_{number}"] = tail
            self._beyond = selected(f"tail_{number}", tail)

    def select(self, source: str = "") -> str:
        """Return a SELECT of the stream. `source`: the FROM item of the table, where the whole one is not wanted."""
        view, source = self.view, source or self.source
        removed = REMOVED_COLUMN if view.has_removed else None
        if source == self.table and not (self._beyond or self.hidden) and view.removed_sql() == removed:
            return f"SELECT * FROM {source}"
        living = source and self._shown.table_sql(source, [*view.columns, *view.typed_names], self._where)
        return " UNION ALL BY NAME ".join(filter(None, (living, self._beyond)))


class LiveStreams:
    """Opens live views of a lake's streams.

    Args:
        engine: DuckDB.
        server: the server to ask to stage its newest messages; None for none.
        tail_bytes: see `TAIL_BYTES`.
        notify: gets a line, once, when no server answers.
        committed: there are no live views: tables alone are read.

    Attributes:
        given: the last messages that the caller has asked a server for.
    """

    def __init__(
        self,
        engine: Engine,
        server: FlushServer | None,
        tail_bytes: int,
        notify: Callable[[str], None],
        *,
        committed: bool,
    ) -> None:
        self._root = engine.root
        self._storage = open_storage(engine.root)
        self._server = server
        self._tail_bytes = tail_bytes
        self._notify = notify
        self._views = engine.views
        self.committed = committed
        self._notified: set[str] = set()
        self._flushers: dict[str, Flusher] = {}
        self._decoded: dict[str, DecodedParts] = {}
        self._followers: Followers = {}
        self.given: dict[LastWanted, LastIndex | None] = {}

    def close(self) -> None:
        """Close the connections to servers."""
        while self._flushers:
            self._flushers.popitem()[1].close()

    def staged(self, stream: QueriedStream) -> bool:
        """Return True if there is a live stream of that name with staged messages, which may be read."""
        return not self.committed and staging.live_identity(self._storage, stream.staging) is not None

    def open(self, stream: QueriedStream, number: int) -> StreamQuery | None:
        """Return the stream's live view; None where only a table can be read.

        Args:
            stream: the stream.
            number: makes the names of its Arrow tables unique within the statement.

        Raises:
            UncompactedTooLarge: there is more of it than `tail_bytes`.
            SqlError: the uncompacted segments cannot be read.
        """
        if self.committed or not stream.stream:
            return None
        try:
            view = self._view(stream)
            return None if view is None else self._live(view, number)
        except (SqlError, StorageFailed):
            raise  # the table is in the same lake
        except LakeError as error:
            raise SqlError(f"{error}\n  --committed asks the table alone") from error

    def at(self, live: StreamQuery, point: Point, number: int) -> StreamQuery:
        """Return the view as of a point, still with messages stored after it. `number`: as of `open`."""
        return self._live(live.view.at(point), number)

    def count(self, stream: QueriedStream) -> int | None:
        """Return the number of messages staged beyond the table; None if they are not read."""
        if self.committed:
            return None
        parent = stream.staging
        if not any(staging.segments(f"{parent}/{uid}") for uid in self._storage.directories(parent)):
            return 0
        try:
            view = open_view(self._root, stream.stream, stream.account, flush=False)
            return int(sum(batch.num_rows for batch in view.tail_batches()))
        except LakeError:
            return 0

    def _view(self, stream: QueriedStream) -> StreamView | None:
        opened = partial(open_view, self._root, stream.stream, stream.account, followers=self._followers)
        why = ""
        if self._server is not None:
            try:
                view = opened(timeout=self._server.timeout, flusher=self._flusher(stream.account))
                return self._with_notice(view, "" if view.flushed else view.note)
            except (FlushFailed, StreamNotFound) as error:
                why = str(error)
                self.close()  # other servers may run by the next time
        try:
            return self._with_notice(opened(flush=False), why)
        except StreamNotFound:
            return None

    def _flusher(self, account: str) -> Flusher | None:
        """Return the connection for streams of an account; None when the lake names no server."""
        assert self._server is not None
        if (found := self._flushers.get(account)) is None:
            found = connect(open_storage(self._root), account, self._server.url, self._server.credentials)
            if found is not None:
                self._flushers[account] = found
        return found

    def last(self, stream: QueriedStream, wanted: LastWanted) -> LastIndex | None:
        """Return the last messages of subjects as the server's index has them; None when it cannot be asked.

        An index serves the views that are opened behind it.
        """
        found = self.given.get(wanted)
        if self._server is None or found is not None:
            return found
        with suppress(LakeError):  # the flush that follows tells why
            if (flusher := self._flusher(stream.account)) is not None:
                return index_of(flusher.last(wanted.stream, wanted.filters, self._server.timeout))
        return None

    def _with_notice(self, view: StreamView, why: str) -> StreamView:
        """Report once that a view may lack messages which a server could have."""
        parent = paths.staging(self._root, view.stream, "", view.account).rstrip("/")
        if why and why not in self._notified and self._storage.directories(parent):
            self._notified.add(why)
            self._notify(f"messages that are not staged yet are missing: {why}")
        return view

    def _kept(self, view: StreamView) -> DecodedParts:
        """Return the decoded segments of the stream, which the next query wants again; those of others are dropped
        when all of them have too many bytes."""
        for table in list(self._decoded):
            parts = (key[0] for each in self._decoded.values() for key in each)
            if table != view.table and sum(part.size for part in parts) > self._tail_bytes // 2:
                del self._decoded[table]
        return self._decoded.setdefault(view.table, {})

    def _live(self, view: StreamView, number: int) -> StreamQuery:
        size = sum(part.size for part in view.parts)
        if size > self._tail_bytes:
            raise UncompactedTooLarge(view.stream, size, self._tail_bytes)
        table = "" if view.version is None else self._views.place(view.table, view.version)
        return StreamQuery(view, table, view.tail(self._kept(view)), number)
