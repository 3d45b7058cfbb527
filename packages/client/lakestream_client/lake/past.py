"""A stream's messages as of a time or sequence, for programs.

Belongs here: choosing what to read for a point in the past (a version of the table, or the live view cut at that point
where the table does not reach that far yet), and reading it as messages in sequence order without holding more than a
range of them. A restore sends them to a server (`lakestream restore`).

With `lakestream.time_travel` these are exactly the messages that the stream held then
(lakestream/lake/table/departures.py). Without, they include messages that limits, deletes and purges had not yet
removed from the *table* at the commit which first holds that time: the table follows the stream with the compaction's
lag.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakestream.lake.errors import LakeError
from lakestream.lake.flush import FlushAnswer, ServerCredentials
from lakestream.lake.read.history.rows import COLUMNS, records
from lakestream.lake.staging import staging
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table import departures as departure_files
from lakestream.lake.table.at import NotATable, TableAsOf, TimeTravelError, as_of, as_of_sequence, open_log
from lakestream.lake.table.conditions import Condition, bounds
from lakestream.lake.table.schema import REMOVED_COLUMN
from lakestream.log.format.record import Record
from lakestream.protocol.instants import rfc3339
from lakestream_client.lake.view import StreamView, completed, open_view


class NothingThen(LakeError):
    """Raised when the stream held no message yet, as far as the lake knows."""

    def __init__(self, stream: str, at_ns: int) -> None:
        super().__init__(f"stream {stream} held no message at {rfc3339(at_ns)}, as far as the lake knows")


class StreamPast(msgspec.Struct, frozen=True):
    """A stream at a time, or right after sequence `seq` was stored. `note`: a warning for the reader, or ""."""

    stream: str
    at_ns: int
    config: bytes
    """The stream's configuration as JSON, as far as the lake knows it: `{}` for a deleted stream."""
    note: str
    view: StreamView
    last_seq: int
    """No message of that time has a higher sequence."""
    seq: int = 0

    def messages(self) -> Iterator[list[Record]]:
        """Yield all messages, ascending, in blocks. Raises VersionGone, SegmentGone."""
        view = self.view
        columns = self._with_removal(COLUMNS)
        where = self._stored().sql()
        for span in view.ranges(1, view.table_last_seq):
            yield from self._block(list(view.table_batches([span], columns, where)), columns)
        for batch in view.tail_batches():
            yield from self._block([batch.select(columns)], columns)

    def rows(self, columns: Sequence[str], conditions: Sequence[Condition]) -> Iterator[pa.RecordBatch]:
        """Yield the messages for which all conditions hold, with exactly these columns, in no particular order.

        Raises:
            VersionGone, SegmentGone.
        """
        view, chosen = self.view, self._with_removal(columns)
        conditions = [self._stored(), *conditions]
        first, last = bounds(conditions)
        spans = view.ranges(first, last)
        for batch in view.selected(spans, (first, last), chosen, conditions):
            if REMOVED_COLUMN in chosen:
                batch = batch.filter(self._there(batch))
            if batch.num_rows:
                yield completed(batch, columns)

    def _stored(self) -> Condition:
        """Return the condition for messages that had been stored."""
        return Condition("seq", "<=", (self.seq,)) if self.seq else Condition("time_ns", "<=", (self.at_ns,))

    def _with_removal(self, columns: Sequence[str]) -> list[str]:
        """Return the columns with that of removals, in archives."""
        added = REMOVED_COLUMN in self.view.columns and REMOVED_COLUMN not in columns
        return [*columns, REMOVED_COLUMN] if added else list(columns)

    def _there(self, rows: Any) -> Any:
        """Return a mask of the messages that were not removed yet; an archive keeps those removed since."""
        return pc.fill_null(pc.greater(rows.column(REMOVED_COLUMN), self.at_ns), True)

    def _block(self, batches: Sequence[pa.RecordBatch], columns: Sequence[str]) -> Iterator[list[Record]]:
        if not batches:
            return
        table = pa.Table.from_batches(batches)
        kept: Any = self._stored().mask(table)
        if REMOVED_COLUMN in columns:
            kept = pc.and_(kept, self._there(table))
        found = list(records(table.filter(kept).select(list(COLUMNS))))
        if found:
            yield found


def open_past(
    lake: str,
    stream: str,
    at_ns: int,
    account: str = paths.DEFAULT_ACCOUNT,
    *,
    server: str | None = None,
    credentials: ServerCredentials | None = None,
    answer: FlushAnswer | None = None,
    seq: int = 0,
) -> StreamPast:
    """Return the messages that a stream held at a time, by message time, or right after a sequence was stored.

    Args:
        lake: the lake's root.
        stream: the stream's name.
        at_ns: message time, ns since the epoch; messages stored at or before it count. Ignored with `seq`.
        account: the stream's account.
        server: the URL of the server, which stages what it has when the table does not reach that far yet; by default
            the servers that the lake names.
        credentials: for logging in to it.
        answer: a server's answer to a flush that the caller made instead.
        seq: a sequence of a stream with `lakestream.time_travel` that is no archive.

    Raises:
        StreamNotFound: neither lake nor server know the stream.
        NothingThen: it held nothing.
        TimeTravelError: the version of that time is gone, or removals were not recorded at that sequence.
        FlushFailed: `server` was given and did not answer.
    """
    table = paths.table(open_storage(lake).root, stream, account)
    try:
        found = as_of_sequence(table, seq) if seq else as_of(table, at_ns)
    except NotATable:
        found = TableAsOf(None, at_ns, complete=False, seq=seq)
    if found.complete and found.version is None:
        raise NothingThen(stream, at_ns)
    # A table that reaches the time needs no flush; the view has the columns and paths.
    view = open_view(
        lake, stream, account, server=server, flush=not found.complete, credentials=credentials, answer=answer
    )
    note, last_seq = "", view.last_seq
    if found.complete:
        assert found.version is not None
        reached = open_log(view.table).progress(found.version)
        last_seq = reached.last_seq if reached is not None else last_seq
        view = view.at_version(found.version, departure_files.gone_as_of(open_storage(lake), view.table, found))
    else:
        if seq and view.departures is None:
            raise TimeTravelError(f"stream {stream} did not record removals at sequence {seq}")
        view = view.at(found.point)
    if not (found.complete or view.flushed):
        note = f"what the server has not staged yet is missing: {view.note}"
    return StreamPast(stream, at_ns, _config(view), note, view, min(last_seq, seq or last_seq), seq)


def _config(view: StreamView) -> bytes:
    identity = staging.read_identity(paths.staging(view.lake, view.stream, view.uid, view.account))
    return bytes(identity.config) if identity is not None else b"{}"
