"""A stream as it is now: its table at one version, and the segments that are staged beyond it.

Belongs here: planning a view, and its rows as SQL and as Arrow data, in batches of exactly the types of `schema`. SQL,
Spark's source, programs and the past beyond the table read streams through it. A view is pinned to one state of the
table and to the staged segments beyond its position. Staged segments never change, and their footers tell which
messages were removed. So nothing is missing and nothing is duplicated, whatever the compactor does meanwhile. With
`flush` the server first stages what it has, and the view holds every message that was acked before it was opened.

Needs neither a JVM nor an event loop.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestream.lake.errors import LakeError, SegmentGap, VersionGone
from lakestream.lake.flush import FlushAnswer, ServerCredentials
from lakestream.lake.staging import quarantine, staging
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.storage.storage import FileEntry, Storage
from lakestream.lake.table import batches, segments, typed_columns
from lakestream.lake.table import departures as departure_files
from lakestream.lake.table.batches import CommitBatch, Removal
from lakestream.lake.table.conditions import MAX_CONDITIONS, Condition
from lakestream.lake.table.departures import DeletedMessages
from lakestream.lake.table.log import TableLog
from lakestream.lake.table.policy import ON_DELETE_PROPERTY, RETENTION_PROPERTY, of_config
from lakestream.lake.table.progress import TableProgress
from lakestream.lake.table.scan import Scan, typed
from lakestream.lake.table.schema import (
    END,
    FORMAT_COLUMN,
    REMOVED_COLUMN,
    SCHEMA_COLUMN,
    TABLE_COLUMNS,
    UID_PROPERTY,
    Layout,
    column_names,
    doubled,
    is_own,
    layout_of,
    table_schema,
)
from lakestream.lake.table.schema_catalog import SchemaCatalog
from lakestream.lake.table.segments import alive
from lakestream.lake.table.state import TableFollower, TableState, state_at
from lakestream.lake.table.typed_columns import EMPTY, NoColumns
from lakestream.lake.table.typed_rows import TypedRows
from lakestream.log.format.departures import Departures, Point
from lakestream.log.format.runs import SchemaRun
from lakestream_client.lake import partitions
from lakestream_client.lake.flusher import DEFAULT_TIMEOUT_S, Flusher, FlushFailed, StreamNotFound, asked

ATTEMPTS = 5
"""Maximum number of attempts when files disappear during planning."""
PAUSE_S = 0.05
RANGE_ROWS = 100_000
"""Approximate number of table rows that one query reads."""
_NO_LIMIT = 1 << 62
_LAST_INDEX = slice(21, 41)
"""The last index in the name of a segment (paths.segment_name)."""


class SegmentGone(LakeError):
    """Raised when a staged segment was deleted while a view over it was being read."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} is no longer staged: the table has held it for longer than the server's lake.staged_grace. "
            "Read again; if reading takes that long, raise lake.staged_grace (and staged_grace_bytes)"
        )


class StagedPart(msgspec.Struct, frozen=True):
    """A staged segment of a view: its entries with a log index above `after`; its sequences lie within the range."""

    path: str
    after: int
    size: int
    first_seq: int
    last_seq: int


DecodedParts = dict[tuple[StagedPart, tuple[str, ...], Layout | None], list[pa.RecordBatch]]
"""The rows of staged segments with a view's columns, those of removed messages too."""


Followers = dict[tuple[str, str], TableFollower]
"""Tables by path and owner."""


class StreamView(msgspec.Struct, frozen=True, kw_only=True):
    """One stream at one point.

    The rows of `table` at `state` without those of `hidden_sql`, and those of `tail_batches`, together are the messages
    that the stream held after log entry `last_index` (archives: all messages ever kept).

    `state` is None while there is no table. `table_last_seq` is the stream's last sequence there, `last_seq` its last
    one. `columns` are the view's, in the table's order, without typed ones. `hidden` are the messages removed since,
    `removals` the same for archives. `pending_deletes` are those removed by its position that may still be in the
    table, and `departures` tells when the rest of `hidden` was removed; None without time travel. `shredded` are runs
    of `hidden` that no past may show (secure delete). `schemas` are runs of the staged messages with the same ones;
    `empty_deletes`: those without a payload have none; `config` is the stream's configuration as JSON, b"" for one that
    is no more.
    `flushed`: the server has staged everything that was acked before; else `note` says why not.
    """

    lake: str
    stream: str
    account: str
    uid: str
    table: str
    state: TableState | None = None
    table_last_seq: int = 0
    last_index: int = 0
    last_seq: int = 0
    floor: int = 0
    columns: tuple[str, ...] = ()
    archive: bool = False
    drops_ended: bool = False
    hidden: DeletedMessages = DeletedMessages()
    removals: tuple[Removal, ...] | None = None
    parts: tuple[StagedPart, ...] = ()
    flushed: bool = False
    note: str = ""
    pending_deletes: DeletedMessages = DeletedMessages()
    departures: Departures | None = None
    shredded: tuple[tuple[int, int], ...] = ()
    schemas: tuple[SchemaRun, ...] = ()
    empty_deletes: bool = False
    config: bytes = b""

    @property
    def version(self) -> int | None:
        """Return the table's version; None while there is no table."""
        return None if self.state is None else self.state.version

    @property
    def position(self) -> int:
        """Return the log index through which the table holds the stream."""
        return 0 if self.state is None else self.state.head.position or 0

    @property
    def before(self) -> TableProgress | None:
        """Return the progress of the table; None if it is unknown."""
        return None if self.state is None else self.state.head.progress

    @property
    def schema(self) -> str:
        """Return the JSON of the table's columns; "" while there is no table."""
        return "" if self.state is None else self.state.metadata.schema_string

    @property
    def layout(self) -> Layout | None:
        """Return the table's layout if it is one of lakestream's."""
        return None if self.state is None else layout_of(self.state.metadata.partition_columns, self.schema)

    @property
    def has_removed(self) -> bool:
        """Return True if the table has the column with the time of removal."""
        return self.state is not None and REMOVED_COLUMN in column_names(self.schema)

    @property
    def typed_names(self) -> list[str]:
        """Return the columns of the table that a query of the view has, in addition to the view's own."""
        names = column_names(self.schema) if self.schema else []
        if SCHEMA_COLUMN not in names:
            return []
        return [name for name in names if name in (SCHEMA_COLUMN, FORMAT_COLUMN) or not is_own(name)]

    def at(self, point: Point) -> StreamView:
        """Return the view with messages that were removed after a point; messages stored after it are for the reader to
        skip.

        Without time travel: the view itself.
        """
        if self.departures is None:
            return self
        hidden = departure_files.both(self.pending_deletes, departure_files.gone(self.departures, point))
        return msgspec.structs.replace(self, hidden=departure_files.both(hidden, DeletedMessages(runs=self.shredded)))

    def at_version(self, version: int, hidden: DeletedMessages) -> StreamView:
        """Return the table alone, at an earlier version, without the hidden messages."""
        assert self.state is not None
        head = msgspec.structs.replace(self.state.head, version=version, progress=None)
        state = state_at(open_storage(self.lake), self.table, head)
        had = column_names(state.metadata.schema_string)
        return msgspec.structs.replace(
            self,
            state=state,
            columns=tuple(column for column in self.columns if column in had),
            drops_ended=False,
            hidden=departure_files.both(hidden, DeletedMessages(runs=self.shredded)),
            removals=None,
            parts=(),
        )

    def for_task(self, parts: Sequence[StagedPart], first: int, last: int) -> StreamView:
        """Return the view as a task needs it that reads sequences first … last, of these segments."""
        dead, state = self.hidden, self.state
        removed = tuple(seq for seq in dead.removed if first <= seq <= last)
        runs = tuple(run for run in dead.runs if run[0] <= last and run[1] >= first)
        if state is not None:
            state = TableState(state.head, state.metadata)
        return msgspec.structs.replace(
            self, state=state, parts=tuple(parts), hidden=DeletedMessages(dead.floor, removed, runs)
        )

    def table_rows(self) -> int | None:
        """Return the number of rows in the table, those of hidden messages too; None if the log does not tell."""
        if self.state is None:
            return 0
        if any(not file.rows for file in self.state.files):
            return None
        gone = (file.deleted.cardinality for file in self.state.files if file.deleted is not None)
        return sum(file.rows for file in self.state.files) - sum(gone)

    # ------------------------------------------------------------------ as SQL
    def hidden_conditions(self) -> list[str]:
        """Return SQL conditions of bounded length; a table row for which one of them holds was removed."""
        if self.state is None:
            return []
        found = batches.deletions(self.position, self.before, self.hidden)
        if self.drops_ended:
            found.append(f"{REMOVED_COLUMN} IS NOT NULL")
        return found

    def hidden_sql(self) -> str | None:
        """Return the same as one condition; None when no row of the table was removed."""
        conditions = self.hidden_conditions()
        return " OR ".join(f"({condition})" for condition in conditions) or None

    def removed_sql(self) -> str | None:
        """Return the column `removed_time_ns` of the table's rows as SQL; None except in archives."""
        if REMOVED_COLUMN not in self.columns:
            return None
        has = self.has_removed
        sql = REMOVED_COLUMN if has else "CAST(NULL AS BIGINT)"
        cases = []
        for update in batches.updates(self.position, self.before, self.removals):
            condition = update.condition if has else update.condition.replace(f"{REMOVED_COLUMN} IS NULL", "TRUE")
            cases.append(f"WHEN {condition} THEN {update.value}")
        return f"CASE {' '.join(cases)} ELSE {sql} END" if cases else sql

    def table_sql(self, source: str, columns: Sequence[str] | None = None, where: str = "") -> str:
        """Return a SELECT of the table's part of the view.

        Args:
            source: the FROM item for the table at `version`.
            columns: the wanted columns of the view; all by default.
            where: a further condition.
        """
        wanted, own = self.columns if columns is None else columns, {*self.columns}
        plain = [name if name in own else doubled(name) for name in wanted]
        chosen = ", ".join(f"{self.removed_sql()} AS {name}" if name == REMOVED_COLUMN else name for name in plain)
        hidden = self.hidden_sql()
        conditions = [f"({where})"] if where else []
        conditions += [f"NOT ({hidden})"] if hidden else []
        return f"SELECT {chosen} FROM {source}" + (f" WHERE {' AND '.join(conditions)}" if conditions else "")

    # ------------------------------------------------------------------ as Arrow data
    def tail_batches(self, first: int = 1, last: int = END) -> Iterator[pa.RecordBatch]:
        """Yield the staged messages with first ≤ seq ≤ last, in sequence order, as `table_schema(columns)`.

        Raises:
            SegmentGone: the view is too old.
        """
        removals, layout = self.removals if self.archive else None, self.layout
        for part in self.parts:
            if part.first_seq > last or part.last_seq < first:
                continue
            try:
                for batch in segments.decode(part.path, part.after, self.hidden, removals=removals):
                    yield from shaped(batch, self.columns, layout, first, last)
            except FileNotFoundError:
                raise SegmentGone(part.path) from None

    def _kept_batches(self, kept: DecodedParts) -> Iterator[pa.RecordBatch]:
        """Yield the same as `tail_batches`, for all sequences, from decoded segments as far as there are."""
        before, now = dict(kept), DecodedParts()
        kept.clear()  # what is not in the view is not kept
        for part in self.parts:
            key = part, self.columns, self.layout
            if (found := before.get(key)) is None:
                try:
                    decoded = segments.decode(part.path, part.after)
                    found = [each for batch in decoded for each in shaped(batch, self.columns, self.layout, 1, END)]
                except FileNotFoundError:
                    raise SegmentGone(part.path) from None
            now[key] = found
            for batch in found:
                living = alive(batch.column("seq").to_numpy(), self.hidden)
                yield batch if living.all() else batch.filter(pa.array(living))
        kept.update(now)

    def tail(self, kept: DecodedParts | None = None) -> pa.Table:
        """Return the staged messages with the view's columns and their typed ones.

        They are decoded as the compactor will. A version whose columns the table lacks adds them to the view; rows of
        the table are NULL there.

        Args:
            kept: segments that were decoded for an earlier view of the stream; those of this one are left there.

        Raises:
            SegmentGone: the view is too old.
        """
        batches = self.tail_batches() if kept is None or self.archive else self._kept_batches(kept)
        found = [batch for batch in batches if batch.num_rows]
        if not self.schemas or not found:
            return pa.Table.from_batches(found, table_schema(self.columns))
        catalog = SchemaCatalog(open_storage(self.lake), self.account)
        table = typed_columns.of_table(self.schema) if self.typed_names else EMPTY
        while True:
            rows = TypedRows(catalog, self.schemas, table, drop_data=False, empty_deletes=self.empty_deletes)
            parts = [pa.Table.from_batches([rows.add(batch).rows]) for batch in found]
            wider = table
            for name in sorted(rows.needed):
                try:
                    wider, _ = typed_columns.placed(wider, typed_columns.of_table(rows.needed[name]))
                except NoColumns:  # misfits
                    continue
            if wider == table:
                return self._placed(pa.concat_tables(parts, promote_options="default"))
            table = wider

    def _placed(self, rows: pa.Table) -> pa.Table:
        """Return typed rows with the partition columns that follow from their fields."""
        if (layout := self.layout) is None or layout.kind != "fields":
            return rows
        for name, values in of_fields(rows, layout).items():
            rows = rows.set_column(rows.column_names.index(name), name, values)
        return rows

    def ranges(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return ranges of about RANGE_ROWS rows that cover first … last as far as the table has them."""
        last = min(last, self.table_last_seq)
        if self.state is None or first > last:
            return []
        edges: dict[int, float] = {}
        for file in self.state.files:
            if file.min_seq <= last and file.max_seq >= first:
                low, high = file.min_seq or first, min(file.max_seq, END - 1)
                high = last if file.max_seq == END else high
                density = file.rows / max(high - low + 1, 1)
                begin, end = max(low, first), min(high, last) + 1
                edges[begin] = edges.get(begin, 0.0) + density
                edges[end] = edges.get(end, 0.0) - density
        return _cut(edges, first, last)

    def table_batches(
        self, spans: Sequence[tuple[int, int]], columns: Sequence[str], where: str = ""
    ) -> Iterator[pa.RecordBatch]:
        """Yield the table's part of the view within ranges of sequences.

        Args:
            spans: ranges (first, last).
            columns: the wanted columns of the view.
            where: a further condition, in DataFusion's SQL.

        Raises:
            VersionGone: files were deleted.
        """
        if self.state is None or not spans:
            return
        names = [*columns] if "seq" in columns else [*columns, "seq"]
        stored = [name for name in names if name != REMOVED_COLUMN or self.has_removed]
        # A table that no longer is an archive loses the rows of messages that the stream no longer has.
        ended = f"{REMOVED_COLUMN} IS NULL" if self.drops_ended else ""
        condition = " AND ".join(f"({part})" for part in (where, ended) if part)
        scan = Scan(self.table, self.version)
        for first, last in spans:
            within = f"seq >= {first} AND seq <= {last}" + (f" AND {condition}" if condition else "")
            for found in scan.rows(stored, within):
                batch = self._living(completed(typed(found), names))
                if batch.num_rows:
                    yield batch if len(names) == len(columns) else batch.select(list(columns))

    def selected(
        self,
        spans: Sequence[tuple[int, int]],
        tail: tuple[int, int],
        columns: Sequence[str],
        conditions: Sequence[Condition],
    ) -> Iterator[pa.RecordBatch]:
        """Yield the messages for which all conditions hold, with exactly these columns.

        Args:
            spans: ranges (first, last) of the table's part.
            tail: range of sequences of the staged part.
            columns: the wanted columns; one that the view does not have is NULL.
            conditions: on columns of the view.

        Raises:
            VersionGone, SegmentGone.
        """
        held = [name for name in columns if name in self.columns]
        pushed, more = conditions[:MAX_CONDITIONS], conditions[MAX_CONDITIONS:]
        where = " AND ".join(condition.sql() for condition in pushed)
        rest = [*(each for each in pushed if not each.is_exact_in_sql), *more]
        needed = [*held, *dict.fromkeys(each.column for each in rest if each.column not in held)]
        for batch in self.table_batches(spans, needed, where):
            yield from _fitting(batch, rest, columns)
        for batch in self.tail_batches(*tail):
            yield from _fitting(batch, conditions, columns)

    def _living(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch without removed rows. They are filtered here, since a long list in SQL is slow: the query
        engine overflows its stack, and the process dies, on conditions of some thousand terms."""
        seqs = batch.column("seq").to_numpy()
        if self.removals and REMOVED_COLUMN in batch.schema.names:
            at = batch.schema.names.index(REMOVED_COLUMN)
            batch = batch.set_column(at, batch.schema.field(at), _ended(batch.column(at), seqs, self.removals))
        mask = alive(seqs, self.hidden)
        return batch if mask.all() else batch.filter(pa.array(mask))


# ---------------------------------------------------------------------- opening a view
def open_view(
    lake: str,
    stream: str,
    account: str = paths.DEFAULT_ACCOUNT,
    *,
    server: str | None = None,
    flush: bool = True,
    timeout: float = DEFAULT_TIMEOUT_S,
    credentials: ServerCredentials | None = None,
    flusher: Flusher | None = None,
    answer: FlushAnswer | None = None,
    followers: Followers | None = None,
) -> StreamView:
    """Return a stream of a lake as it is now.

    Args:
        lake: the lake's root.
        server: the server's URL; by default the servers that the lake names.
        flush: have the server stage what it has. When no server that the lake names answers, the view ends at what is
            staged, and says so (`StreamView.flushed`).
        timeout: seconds for the flush.
        credentials: for logging in to the server.
        flusher: a connection to `server` to use and leave open.
        answer: a server's answer to a flush that the caller has made; no other is made then.
        followers: the tables as earlier views found them, which are not read anew; they are left there.

    Raises:
        StreamNotFound: neither lake nor server know the stream.
        FlushFailed: `server` was given and did not answer, or the stream is not in a lake.
        SegmentGap, QuarantinedSegment, BadSegment: the staging area is damaged.
    """
    storage = open_storage(lake)
    note, made = "flushing was not asked for", answer is not None
    if flush and answer is None:
        answer, note = asked(storage, stream, account, server, timeout, credentials, flusher)
    failure: Exception | None = None
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE_S * attempt)
        try:
            view = _plan(storage, stream, account, answer, {} if followers is None else followers)
        except (SegmentGap, VersionGone, FileNotFoundError) as error:
            failure = error
            continue
        if answer is None or view.last_index >= answer.last_index:
            return msgspec.structs.replace(view, flushed=answer is not None, note="" if answer else note)
        failure = FlushFailed(
            f"the server has stream {stream} through log index {answer.last_index} in its lake at {answer.lake}; the "
            f"lake at {storage.root} ends at {view.last_index}, so it is another one"
        )
        if server is None and flusher is None and not made and attempt == ATTEMPTS - 1:
            return msgspec.structs.replace(view, flushed=False, note=str(failure))
    assert failure is not None
    raise failure


def _plan(storage: Storage, stream: str, account: str, answer: FlushAnswer | None, followers: Followers) -> StreamView:
    """Plan a view once. The staging area is read first: segments that have left it by then are in the table read next.

    Raises:
        SegmentGap, VersionGone, FileNotFoundError: files changed meanwhile; another attempt may succeed.
    """
    root = storage.root
    identity = _identity(storage, stream, account)
    uid = answer.uid if answer is not None else identity.uid if identity is not None else ""
    directory = paths.staging(root, stream, uid, account) if uid else ""
    path = paths.table(root, stream, account)
    known = followers.get((path, uid))
    files = _staged(storage, directory, 0 if known is None else known.head.position or 0) if uid else []
    state = _state(storage, path, uid, followers)
    properties = {} if state is None else state.metadata.configuration
    if not uid:
        if state is None or (_was_deleted(storage, stream, account) and properties.get(ON_DELETE_PROPERTY) != "keep"):
            raise StreamNotFound(stream, f"the lake at {root}")
        uid = properties[UID_PROPERTY]
    view = StreamView(lake=root, stream=stream, account=account, uid=uid, table=path, state=state)
    position, before = view.position, view.before
    if any(entry.name.endswith(quarantine.WHY) for entry in files):
        quarantined = quarantine.find(directory, position)
        if quarantined is not None:
            raise quarantined
    chosen = batches.choose(path, position, staging.staged_segments(files), _NO_LIMIT)
    footers = [staging.footer(part.path) for part in chosen]
    batch = batches.gather(uid, chosen, footers, before) if chosen else None
    archive = properties.get(RETENTION_PROPERTY) == "archive"
    drops_ended = archive and batch is not None and not batch.policy.archive
    if batch is not None:
        archive = batch.policy.archive
    elif state is None and identity is not None:
        archive = of_config(bytes(identity.config)).archive
    reached = before.last_seq if before is not None else _last_seq(storage, view)
    pending_deletes = _pending_deletes(storage, view)
    return msgspec.structs.replace(
        view,
        table_last_seq=reached,
        last_index=batch.progress.last_index if batch is not None else position,
        last_seq=max(reached, batch.progress.last_seq if batch is not None else 0),
        floor=batch.progress.floor if batch is not None else before.floor if before is not None else 0,
        columns=_columns(view, archive),
        archive=archive,
        drops_ended=drops_ended,
        hidden=departure_files.both(batch.dead if batch is not None else DeletedMessages(), pending_deletes),
        removals=tuple(batch.removals or ()) if batch is not None and archive else () if archive else None,
        parts=tuple(
            StagedPart(part.path, part.after, part.size, footer.first_seq, footer.last_seq)
            for part, footer in zip(chosen, footers, strict=True)
            if footer.count
        ),
        pending_deletes=pending_deletes,
        departures=_departures(batch, before),
        shredded=tuple(batch.shredded) if batch is not None else (),
        schemas=batch.schemas if batch is not None else (),
        empty_deletes=batch is not None and batch.policy.empty_deletes,
        config=bytes(identity.config) if identity is not None and identity.uid == uid else b"",
    )


def _staged(storage: Storage, directory: str, position: int) -> list[FileEntry]:
    """Return the files of a staging directory; on this machine without segments that a table holds at a position."""
    if not storage.local:
        return storage.list(directory)
    # Segments stay for a while after their commit. To list them takes longer than all that is done with the others.
    reached = paths.segment_name(0, position)[_LAST_INDEX]
    names = sorted(name for name in storage.names(directory) if name[_LAST_INDEX] > reached or name[-4:] != ".seg")
    return [entry for name in names if (entry := storage.stat(f"{directory}/{name}")) is not None]


def _state(storage: Storage, path: str, uid: str, followers: Followers) -> TableState | None:
    """Return the state of the stream's table; None when there is none, or it belongs to another stream."""
    if (known := followers.get((path, uid))) is not None:
        with suppress(FileNotFoundError):
            state = known.advance(bounds=True)
            if state.metadata.configuration.get(UID_PROPERTY) == uid:
                return state
    metadata = TableFollower(path, storage=storage).metadata()
    owner = "" if metadata is None else metadata.configuration.get(UID_PROPERTY, "")
    if not owner or (uid and owner != uid):
        return None
    if (path, owner) not in followers:
        followers[path, owner] = TableFollower(path, owner, storage)
    return followers[path, owner].advance(bounds=True)


def _columns(view: StreamView, archive: bool) -> tuple[str, ...]:
    """Return the columns of a view: those of every table, of the layout, and of archives."""
    layout = view.layout
    extra = [column for column in (layout.columns if layout else []) if column != "subject"]
    return (*TABLE_COLUMNS, *extra, *([REMOVED_COLUMN] if archive or view.has_removed else []))


def _last_seq(storage: Storage, view: StreamView) -> int:
    """Return the last sequence of a table whose commits do not state it."""
    if not view.position:
        return 0
    found = Scan(view.table, view.version, storage).query("SELECT max(seq) AS seq FROM t")
    return int(found.column("seq")[0].as_py() or 0)


def _pending_deletes(storage: Storage, view: StreamView) -> DeletedMessages:
    """Return the messages that were removed by the table's position, and may still be in it."""
    if view.before is None or view.before.departed <= 0:
        return DeletedMessages()
    assert view.version is not None
    progress = TableLog(storage, view.table).pending_deletes(view.version)
    if progress is None:
        return DeletedMessages()
    return departure_files.gone(departure_files.read(storage, view.table, progress.last_index))


def _departures(batch: CommitBatch | None, before: TableProgress | None) -> Departures | None:
    """Return the departures beyond the table; None without time travel."""
    if batch is not None:
        return batch.departures
    return Departures() if before is not None and before.departed >= 0 else None


def _identity(storage: Storage, stream: str, account: str) -> staging.StreamIdentity | None:
    """Return the live stream of this name according to the staging area."""
    return staging.live_identity(storage, paths.staging(storage.root, stream, "", account).rstrip("/"))


def _was_deleted(storage: Storage, stream: str, account: str) -> bool:
    parent = paths.staging(storage.root, stream, "", account).rstrip("/")
    return any(storage.exists(f"{parent}/{uid}/{paths.DELETED_FILE}") for uid in storage.directories(parent))


def is_archive(lake: str, stream: str, account: str = paths.DEFAULT_ACCOUNT) -> bool:
    """Return True if a stream's rows have the column `removed_time_ns`, as far as the lake knows the stream."""
    storage = open_storage(lake)
    identity = _identity(storage, stream, account)
    if identity is not None:
        return of_config(bytes(identity.config)).archive
    metadata = TableFollower(paths.table(storage.root, stream, account), storage=storage).metadata()
    properties = {} if metadata is None else metadata.configuration
    return UID_PROPERTY in properties and properties.get(RETENTION_PROPERTY) == "archive"


# ---------------------------------------------------------------------- rows
def shaped(
    batch: pa.RecordBatch, columns: Sequence[str], layout: Layout | None, first: int, last: int
) -> Iterator[pa.RecordBatch]:
    """Yield a decoder's batch with a table's columns, only the rows with first ≤ seq ≤ last; nothing if there are
    none."""
    seqs = batch.column("seq").to_numpy()
    if len(seqs) and (seqs[0] < first or seqs[-1] > last):  # a segment is in sequence order
        start, stop = int(seqs.searchsorted(first)), int(seqs.searchsorted(last, "right"))
        batch = batch.slice(start, max(stop - start, 0))  # Arrow does not check for a negative length
    if not batch.num_rows:
        return
    names = batch.schema.names
    wanted = table_schema(columns)
    by_time = of_fields(batch, layout) if layout is not None and layout.kind == "fields" else {}
    arrays = []
    for field in wanted:
        if field.name in names:
            arrays.append(batch.column(field.name))
        elif field.name == "time":
            micros = batch.column("time_ns").to_numpy() // 1000
            arrays.append(pa.array(micros, pa.int64()).cast(field.type))
        elif field.name in by_time:
            arrays.append(by_time[field.name])
        elif (function := _of_subject(field.name, layout)) is not None:
            arrays.append(_mapped(batch.column("subject"), function, field.type))
        else:
            arrays.append(pa.nulls(batch.num_rows, field.type))
    yield pa.RecordBatch.from_arrays(arrays, schema=wanted)


def of_fields(rows: Any, layout: Layout) -> dict[str, Any]:
    """Return the partition columns of a table by time and fields, for a batch or a table of rows."""
    return partitions.arrays(layout, dict(zip(rows.schema.names, rows.columns, strict=True)), rows.num_rows)


def _of_subject(column: str, layout: Layout | None) -> Callable[[list[str]], list[Any]] | None:
    """Return the function from subjects to values of a partition column; None for any other column."""
    if layout is None or layout.kind == "fields" or column not in layout.columns:
        return None
    if layout.kind == "bucket":
        bounds = np.array(layout.bounds, object)
        return lambda subjects: np.searchsorted(bounds, np.array(subjects, object), "right").tolist()  # as `values`
    place = layout.columns.index(column)
    return lambda subjects: [layout.values(subject)[place] for subject in subjects]


def _mapped(column: Any, function: Callable[[list[str]], list[Any]], kind: Any) -> Any:
    encoded = column.dictionary_encode()
    values = pa.array(function(encoded.dictionary.to_pylist()), kind)
    return values.take(encoded.indices)


def _cut(edges: dict[int, float], first: int, last: int) -> list[tuple[int, int]]:
    """Cut first … last into ranges of RANGE_ROWS rows. `edges` has the changes of density (rows per sequence) by
    sequence: files may overlap, and each is assumed to be even."""
    cuts: list[tuple[int, int]] = []
    start = at = first
    held = density = 0.0
    for edge in sorted(edges):
        while density > 1e-9 and held + density * (edge - at) >= RANGE_ROWS:
            stop = min(edge, at + max(1, math.ceil((RANGE_ROWS - held) / density)))
            cuts.append((start, stop - 1))
            start, at, held = stop, stop, 0.0
        held += density * (edge - at)
        density += edges[edge]
        at = edge
    if start <= last:
        cuts.append((start, last))
    return cuts


def _ended(column: pa.Array, seqs: Any, removals: Sequence[Removal]) -> pa.Array:
    """Return an archive's `removed_time_ns` with the removals of staged segments: the earliest one counts."""
    known = pc.fill_null(column, 0).to_numpy()
    times = known.copy()
    for removal in reversed(removals):
        gone = (seqs >= removal.floor_before) & (seqs < removal.floor)
        if len(removal.removed):
            gone |= np.isin(seqs, np.asarray(removal.removed, np.int64))
        times[gone] = removal.at_ns
    times[known != 0] = known[known != 0]
    return pa.array(times, pa.int64(), mask=times == 0)


def _fitting(
    batch: pa.RecordBatch, conditions: Sequence[Condition], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    for condition in conditions:
        batch = batch.filter(condition.mask(batch))
    if batch.num_rows:
        yield completed(batch, columns)


def completed(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Return exactly these columns, in this order; a column that the batch lacks is NULL."""
    names = batch.schema.names
    if names == list(columns):
        return batch
    wanted = table_schema(columns)
    arrays = [
        batch.column(field.name) if field.name in names else pa.nulls(batch.num_rows, field.type) for field in wanted
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)
