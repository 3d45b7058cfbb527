"""Catalog of the tables that queries name.

Belongs here: resolving a name (``delta.`streams/ORDERS` ``, as_of(ORDERS, T)) and a time to a relation that DuckDB
can read: a Delta table at one version, or that table with its uncompacted segments as one live view
(lakestream_client/lake/view.py). session.py executes queries, statements.py finds the names in them, lake/table/at.py
resolves times.

All mentions of a table in one statement see the same rows, whatever is committed meanwhile: a `StatementSnapshot` is
made for each statement and caches what it resolved.
"""

from __future__ import annotations

import difflib
import itertools
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from lakestream.lake.last_messages import LastWanted
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table import departures as departure_files
from lakestream.lake.table import json_schema
from lakestream.lake.table.at import (
    NotATable,
    TableAsOf,
    TimeTravelError,
    instant,
    open_log,
    version_for_commit_time,
    version_for_message_time,
    version_for_sequence,
)
from lakestream.lake.table.log import TableLog, has_log
from lakestream.lake.table.masks import NO_MASKS, Masks, of_config, of_table
from lakestream.lake.table.schema import REMOVED_COLUMN, column_names, doubled, literal
from lakestream.log.format.departures import Point
from lakestream.protocol.client import Sight
from lakestream_sql import Timestamps, buckets, last, typed
from lakestream_sql.connection import Engine, add_functions
from lakestream_sql.explained import BadSql, SqlError, UnknownStream, excerpt
from lakestream_sql.masking import Masking
from lakestream_sql.mentions import Mention, Travel
from lakestream_sql.tokens import names_of_with
from lakestream_sql.uncompacted import LiveStreams, QueriedStream, StreamQuery
from lakestream_sql.visible import EVERYTHING, Viewer, matching, visible, within

# Payloads that are not UTF-8 are no JSON. The comparison costs nothing, while TRY decodes each row by itself.
_JSON = "CASE WHEN encode(decode(data, 'replace')) = data THEN TRY_CAST(decode(data, 'replace') AS JSON) END"
_OF_STREAMS = re.compile(f"(?:{paths.ACCOUNTS}/([^/]+)/)?{paths.STREAMS}")
"""Directories of streams' tables, with that of the account."""
_NEVER_IN_NAMES = re.compile(r"[\s.*>/\\]")
MANY_TABLES = 20
"""Tables that the error for an unknown one names."""


class StreamCatalog:
    """The streams of a lake, as queries name them.

    Args:
        engine: DuckDB. If it is confined to an account, only that account's streams have names, which need no account.
        live: opens live views.
        timestamps: the meaning of TIMESTAMP AS OF on a stream's table.
    """

    def __init__(self, engine: Engine, live: LiveStreams, timestamps: Timestamps = "commit") -> None:
        self.engine, self.live, self.timestamps = engine, live, timestamps
        self.root, self.account = engine.root, engine.account
        self.storage = open_storage(self.root)

    def tables(self) -> list[str]:
        """Return the names of all streams that can be queried, as written between backticks after `delta.`, sorted."""
        return [stream.name for stream in self.streams()]

    def streams(self) -> list[QueriedStream]:
        """Return the streams that can be queried: those with a table, and with live views those with staged
        messages."""
        root, begins, found = self.root, [""], list[QueriedStream]()
        if self.account is not None:
            root = paths.parents(self.root, self.account)[0].removesuffix(f"/{paths.STREAMS}")
        else:
            names = self.storage.directories(f"{self.root}/{paths.ACCOUNTS}")
            begins += [f"{paths.ACCOUNTS}/{name}/" for name in names]
        for begun in begins:
            parts = (f"{root}/{begun}{part}" for part in (paths.STREAMS, paths.SEGMENTS))
            named = sorted({name for part in parts for name in self.storage.directories(part)})
            found += filter(self._is_there, (self.stream(f"{begun}{paths.STREAMS}/{name}") for name in named))
        return found

    def progress(self, stream: QueriedStream) -> tuple[int | None, int | None, int | None]:
        """Return the version of a stream's table and the last sequence in it, None if it is unknown, and the number of
        messages beyond it, None if they are not read."""
        uncompacted = self.live.count(stream)
        try:
            log = open_log(stream.table)
        except NotATable:
            return None, None, uncompacted
        progress = log.progress(log.latest)
        return log.latest, None if progress is None else progress.last_seq, uncompacted

    def stream(self, name: str) -> QueriedStream:
        """Return the stream, or other table, that a name between backticks means.

        Raises:
            UnknownStream: it is not a stream of the only account.
        """
        account, path = self.account, name
        if account is None:
            path = unquote(urlsplit(name).path) if name.startswith("file:") else name
            path = path.removeprefix(f"{self.root}/")
            if path.startswith("/") or "://" in path:
                return QueriedStream("", "", path, name)
        directory, _, last = path.rpartition("/")
        found, encoded = _OF_STREAMS.fullmatch(directory), _encoded(last)
        if account is not None:
            if not found or found[1] not in (None, paths.directory_name(account)) or not encoded:
                raise UnknownStream(
                    f"delta.`{name}` is not a stream of account {account}: write delta.`{paths.STREAMS}/NAME`"
                )
            return QueriedStream(account, paths.name_of(encoded), paths.table(self.root, "", account) + encoded, name)
        if not found:
            return QueriedStream("", "", f"{self.root}/{path}", name)
        account = paths.DEFAULT_ACCOUNT if found[1] is None else paths.name_of(found[1])
        return QueriedStream(account, paths.name_of(last), f"{self.root}/{directory}/{encoded or last}", name)

    def last_wanted(self, mention: Mention) -> tuple[QueriedStream, LastWanted] | None:
        """Return the stream of a mention and the last messages that it wants of the index; None if it wants none."""
        if self.live.committed or mention.last is None or mention.travel is not None:
            return None
        stream = self.stream(self.resolved(mention).name)
        return stream, LastWanted(stream.stream, mention.last)

    def stream_of(self, mention: Mention) -> str:
        """Return the name of the stream that a mention means; "" for another table, also by a name that no stream can
        have. A typed view means its stream."""
        name = self.stream(self.resolved(mention).name).stream
        return "" if _NEVER_IN_NAMES.search(name) else name

    def resolved(self, mention: Mention) -> Mention:
        """Return a mention with the name, and the view, of what there is: that of a typed view becomes its stream's,
        and a query may write the letters of a name alone small or large. `bare` is left for a name of nothing.

        Raises:
            SqlError: a name may be that of several streams.
        """
        if mention.view is not None:
            return mention
        endings = {"": None, **typed.VIEWS}
        named = [
            (mention.name.removesuffix(each), view) for each, view in endings.items() if mention.name.endswith(each)
        ]
        found = [each for each in named if self.exists(each[0])]
        if mention.bare and not found:
            lower, tables = mention.name.lower(), self.tables()
            spelled = (
                (table, view) for each, view in endings.items() for table in tables if lower == (table + each).lower()
            )
            found = list(spelled)
            if len(found) > 1:
                names = " or ".join(f"delta.`{table}`" for table, _ in found)
                raise SqlError(f"{mention.name.rpartition('/')[2]} may be several streams: write {names}")
        name, view = found[0] if found else named[-1]
        return replace(mention, name=name, view=view, bare=mention.bare and not found)

    def exists(self, name: str) -> bool:
        """Return True if there is a stream of that name, or a table."""
        return self._is_there(self.stream(name))

    def _is_there(self, stream: QueriedStream) -> bool:
        return has_log(self.storage, stream.table) or (bool(stream.stream) and self.live.staged(stream))

    def log(self, mention: Mention, text: str) -> TableLog:
        """Return the commits of a table.

        Raises:
            UnknownStream: there is no such table.
        """
        try:
            return open_log(self.stream(mention.name).table)
        except NotATable:
            raise self.unknown(mention, text) from None

    def unknown(self, mention: Mention, text: str) -> UnknownStream:
        """Return the error for an unknown name, in which tables are spelled as it is."""
        name, place = mention.name, mention.place
        stream = self.stream(name)
        by_path = text[:place].lower().endswith("delta.")

        def spelled(name: str) -> str:
            if mention.view not in buckets.VIEWS:
                return f"delta.`{name}`" if by_path else buckets.short_name(name)
            bucket = buckets.buckets_of(name).get(mention.view)
            return "" if bucket is None else f"{mention.view}.{buckets.written(bucket)}"

        tables = [each for each in self.tables() if spelled(each)]
        known = (
            ", ".join(map(spelled, tables[:MANY_TABLES])) + (" …" if len(tables) > MANY_TABLES else "") or "none yet"
        )
        own = {table.rpartition("/")[2].lower(): spelled(table) for table in tables}
        if mention.bare:
            own |= {each.lower(): each for each in names_of_with(text)}
        near = difflib.get_close_matches(name.rpartition("/")[2].lower(), own, 3, 0.7)
        close = [own[each] for each in near if own[each] != spelled(name)]
        segments, _, directory = stream.staging.rpartition("/")
        if stream.stream and directory in self.storage.directories(segments):
            reason = (
                f"stream {stream.stream} has no table yet: its messages wait for the compactor "
                "(`lakestream up` runs one, `lakestream compact --once` does it now)"
            )
            close = []
        else:
            reason = f"there is no table {spelled(name)} in {self.root}"
        reason += f". Did you mean {' or '.join(close)}?" if close else ""
        return UnknownStream(f"{reason}\n{excerpt(text, place)}\n  the tables there are: {known}")


def _encoded(name: str) -> str:
    """Return the name of a stream's directory for the stream's name, or for that of the directory; "" for neither."""
    directory, stream = paths.directory_name(name), paths.name_of(name)
    if stream == name:
        return directory
    return name if paths.directory_name(stream) == name else ""


class StatementSnapshot:
    """The resolved tables of one statement.

    Args:
        catalog: the lake.
        text: the whole query text, for errors.
        mentions: all tables of the statement.
        viewer: the user.

    Attributes, once `locate` was called for every mention:
        arrow: the Arrow tables that the query reads, by name.
        sources: the queries that stand for tables, with their names.
        versions: the tables, at their versions.
        masked: some of their fields are hidden.
    """

    def __init__(
        self,
        catalog: StreamCatalog,
        text: str,
        mentions: Sequence[Mention] = (),
        viewer: Viewer = EVERYTHING,
    ) -> None:
        self._catalog = catalog
        self._sees, self._viewer = viewer.sees, viewer
        self.masked = False
        self._text = text
        wanted = filter(None, map(catalog.last_wanted, mentions))  # an index is read before a view is opened
        self._indexes = {each: catalog.live.last(stream, each) for stream, each in wanted}
        self._found: dict[Mention, str] = {}
        self.sources: dict[str, str] = {}
        self._live: dict[str, StreamQuery | None] = {}
        self._logs: dict[str, TableLog] = {}
        self._numbers = itertools.count(1)
        self.arrow: dict[str, Any] = {}
        self.versions: set[str] = set()

    def shown(self, name: str) -> str:
        """Return the name of a column with the names of tables in it: that of a subquery without a name is its text."""
        if "query(" in name:
            for source, table in self.sources.items():
                name = name.replace(f"query({literal(source)})", table)
        return name

    def locate(self, mention: Mention) -> str | None:
        """Return the SELECT of its rows; None for the name of no stream, which may be one of DuckDB's own.

        Raises:
            SqlError: UnknownStream, and so on.
        """
        mention = self._catalog.resolved(mention)
        if mention.bare and mention.travel is None and mention.last is None and self._catalog.account is None:
            try:
                self._relation(mention)  # of a stream that is not staged yet, the server may know
            except UnknownStream:
                return None
        found = self._counted(mention) or self._with_json(mention, self._masked(mention, self._relation(mention)))
        self.sources[found] = doubled(mention.name.rpartition("/")[2])
        return found

    def _counted(self, mention: Mention) -> str | None:
        """Return as many rows as a stream has now, for a query that reads no column; None for any other."""
        is_plain = mention.last is None and mention.view is None and mention.travel is None and not mention.bare
        if not mention.counted or not is_plain or self._sees is not None:
            return None
        if (live := self._view(mention)) is None or (rows := live.view.table_rows()) is None:
            return None
        if live.hidden:
            assert live.table  # Invariant: what is hidden is hidden in the table.
            hidden = f"SELECT count(*) FROM {live.table} WHERE {live.hidden}"
            rows -= int(self._catalog.engine.rows(hidden, live.arrow)[0][0])
        return f"SELECT true AS row FROM range({rows + live.tail.num_rows})"

    def _masked(self, mention: Mention, rows: str) -> str:
        """Return rows of a stream's table, or of its typed views, with the fields masked that the user may not see."""
        masks = NO_MASKS if mention.view in buckets.VIEWS else self._masks(mention.name)
        if not masks.fields:  # or made of masked rows
            return rows
        self.masked = True
        stream, engine = self._catalog.stream(mention.name), self._catalog.engine
        masking = Masking(masks, f"{stream.account}/{stream.stream}", self._viewer.mask_key)
        add_functions(engine.connection, masking.functions())
        columns = engine.columns(rows, self.arrow)
        return masking.select(rows, columns, of_misfits="reason" in columns)

    def _masks(self, name: str) -> Masks:
        """Return the masks of a stream that are for the user."""
        if self._viewer.roles is None:
            return NO_MASKS
        live, stream = self._live.get(name), self._catalog.stream(name)
        if live is not None and live.view.config:
            masks = of_config(live.view.config)
        else:
            masks = of_table(self._catalog.storage, stream.table) if stream.stream else NO_MASKS
        return masks if masks.hide_from(self._viewer.roles) else NO_MASKS

    def _with_json(self, mention: Mention, found: str) -> str:
        """Return a stream's table with its payloads as JSON in a column `json`."""
        if mention.view is not None or not self._catalog.stream(mention.name).stream:
            return found
        if (live := self._live.get(mention.name)) is not None:
            names = [*live.view.columns, *live.view.typed_names]
        else:
            # Columns come and never go: those of an older version are among them.
            log = self._log(mention)
            names = column_names(log.metadata_of(log.latest)["schemaString"])
        if "data" not in names or "json" in map(str.lower, names):
            return found
        return f"SELECT *, {_JSON} AS json FROM ({found})"

    def _relation(self, mention: Mention) -> str:
        key = replace(mention, place=0)
        if (found := self._found.get(key)) is None:
            try:
                found = self._found[key] = self._locate(mention)
            except TimeTravelError as error:
                raise BadSql(str(error), self._text, mention.place) from None
        return found

    def _locate(self, mention: Mention) -> str:
        if mention.view is not None:
            return self._derived(mention)
        rows = self._rows(mention)
        if self._sees is not None and mention.subject is not None:  # no condition of the user comes below the barrier
            rows = f"SELECT * FROM ({rows}) WHERE subject = {literal(mention.subject)}"
        return visible(rows, self._sights(mention))

    def _sights(self, mention: Mention) -> Sequence[Sight] | None:
        """Return what the user sees of a stream as it is now, whose subjects are known: files state their range."""
        live = self._live.get(mention.name)
        if self._sees is None or live is None or mention.travel is not None:
            return self._sees
        files = [] if live.view.state is None else live.view.state.files
        lows, highs = [each.min_subject for each in files], [each.max_subject for each in files]
        if live.tail.num_rows:
            found = pc.min_max(live.tail.column("subject")).as_py()
            lows.append(found["min"])
            highs.append(found["max"])
        if not lows:
            return self._sees
        # One that has been cut stands for all that it begins.
        return within(self._sees, min(lows), max(highs)[: min(map(len, highs))])

    def _rows(self, mention: Mention) -> str:
        """Return all rows of a stream's table."""
        if mention.last is not None:
            return self._last(mention)
        travel = mention.travel
        if travel is None:
            return self._current(mention)
        if travel.kind in ("MESSAGES", "SEQUENCE"):
            return self._as_of(mention, travel)
        of_messages = self._catalog.timestamps == "message" and bool(self._catalog.stream(mention.name).stream)
        if travel.kind == "TIMESTAMP" and of_messages:
            return self._as_of(mention, replace(travel, kind="MESSAGES"))
        log = self._log(mention)
        if travel.kind == "VERSION":
            version = self._number(travel.value, mention)
            if not log.versions[0] <= version <= log.latest:
                raise TimeTravelError(
                    f"there is no version {version}; versions {log.versions[0]} to {log.latest} are known"
                )
        else:
            at_ns = self._time_ns(travel.value, mention, "TIMESTAMP AS OF")
            version = version_for_commit_time(log, at_ns, time.time_ns())
        return self._table(log.table, version)

    def _derived(self, mention: Mention) -> str:
        """Return the table of a bucket, a typed view, or the table of misfits."""
        name, view, catalog = mention.name, mention.view, self._catalog
        whole = replace(mention, view=None, subject=None)
        if view in buckets.VIEWS:
            try:
                found = self._masked(whole, self._relation(whole))
            except UnknownStream:
                raise catalog.unknown(mention, self._text) from None
            return buckets.select(view, f"({found})", catalog.engine.columns(found, self.arrow))
        if view == "misfits":
            listed = f"{name}_misfits"
            is_listed = catalog.exists(listed)
            misfits = replace(whole, name=listed if is_listed else f"{name}{typed.MISFITS_SUFFIX}")
            try:
                return self._relation(catalog.resolved(misfits))
            except UnknownStream:
                if not catalog.exists(name):
                    raise catalog.unknown(mention, self._text) from None
            raise UnknownStream(
                f"stream {catalog.stream(name).stream} has no schema for its payloads, so it has no table of misfits\n"
                f"{excerpt(self._text, mention.place)}"
            )
        with suppress(UnknownStream):
            found = self._relation(replace(mention, view=None))  # first: a flush also stages the schema
            stream = catalog.stream(name)
            if (table := typed.typed_of(stream.table) if stream.stream else None) is not None:
                schema = json_schema.parse(table.text)
                add_functions(catalog.engine.connection, typed.duckdb_functions(schema))
                if view == "json_misfits":
                    return typed.misfits_sql(schema, f"({found})")
                return typed.view_sql(schema, f"({found})", table.columns, doubled)
        raise catalog.unknown(replace(mention, name=f"{name}_{view}", view=None), self._text)

    def _log(self, mention: Mention) -> TableLog:
        if (log := self._logs.get(mention.name)) is None:
            log = self._logs[mention.name] = self._catalog.log(mention, self._text)
        return log

    def _table(self, path: str, version: int) -> str:
        table = self._catalog.engine.views.place(path, version)
        self.versions.add(table)
        return f"SELECT * FROM {table}"

    # ---- now

    def _current(self, mention: Mention) -> str:
        live = self._view(mention)
        if live is None:
            log = self._log(mention)
            return self._table(log.table, log.latest)
        return self._union(live, mention.subject)

    def _last(self, mention: Mention) -> str:
        """Return the last message of each subject: by the server's index, or where there is none from all messages."""
        every = replace(mention, last=None, pattern="", subject=None)
        filters, found = mention.last or (), None
        live = self._view(every) if mention.travel is None else None
        index = self._indexes.get(LastWanted(self._catalog.stream(mention.name).stream, filters))
        if live is not None and index is not None:
            narrowed = self._catalog.engine.views.narrowed
            found = last.by_index(live, index, filters, next(self._numbers), narrowed)
        if live is not None and found is not None:
            self._union(live)
            self.arrow.update(found[1])
            sql = found[0]
        else:
            sql = last.by_search(f"({self._relation(every)})", filters)
        return f"SELECT * FROM ({sql}) WHERE {matching([mention.pattern])}" if mention.pattern else sql

    def _view(self, mention: Mention) -> StreamQuery | None:
        """Return the live view of a stream; None where only a table can be read."""
        if mention.name not in self._live:
            stream = self._catalog.stream(mention.name)
            live = self._live[mention.name] = self._catalog.live.open(stream, next(self._numbers))
            if live is not None:
                self.arrow.update(live.arrow)
        return self._live[mention.name]

    def _union(self, live: StreamQuery, subject: str | None = None) -> str:
        """Return the SELECT of a live view, with the rows of all subjects unless only one is wanted."""
        if live.table:
            self.versions.add(live.table)
        return live.select("" if subject is None else self._catalog.engine.views.narrowed(live.view, [subject]))

    # ---- as of a moment of the stream

    def _as_of(self, mention: Mention, travel: Travel) -> str:
        point = self._point(travel, mention)
        log, found = self._version(mention, point)
        if not found.complete and (live := self._view(mention)) is not None:
            # List the log again: segments compacted before the view was opened are in a version that is listed now.
            self._logs.pop(mention.name, None)
            log, found = self._version(mention, point)
            # Messages stored by then may not have reached the table yet.
            if not found.complete and (live.view.departures is not None or _reaches(point, live)):
                live = self._catalog.live.at(live, point, next(self._numbers))
                self.arrow.update(live.arrow)
                return f"SELECT * FROM ({self._union(live)}) WHERE {_held(point, REMOVED_COLUMN in live.view.columns)}"
        if log is None:
            raise self._catalog.unknown(mention, self._text)
        if found.version is None:
            return f"{self._table(log.table, log.latest)} WHERE false"
        table = self._table(log.table, found.version)
        held = _held(point, REMOVED_COLUMN in self._catalog.engine.columns(table, self.arrow))
        gone = departure_files.gone_as_of(self._catalog.storage, log.table, found)
        if gone.runs:
            name = f"left_{next(self._numbers)}"
            self.arrow[name] = pa.table({"seq": departure_files.sequences(gone)})
            held += f" AND seq NOT IN (SELECT seq FROM {name})"
        return f"{table} WHERE {held}"

    def _version(self, mention: Mention, point: Point) -> tuple[TableLog | None, TableAsOf]:
        """Return the version for a point; no log where there is no table yet."""
        at_ns = point.before_ns - 1
        try:
            log = self._log(mention)
        except UnknownStream:
            return None, TableAsOf(None, at_ns, complete=False, seq=point.seq)
        return log, version_for_sequence(log, point.seq) if point.seq else version_for_message_time(log, at_ns)

    # ---- values

    def _point(self, travel: Travel, mention: Mention) -> Point:
        """Return the point of as_of, or of a bucket's revision."""
        if travel.kind == "MESSAGES":
            return Point(before_ns=self._moment(travel, mention) + 1)
        seq = self._number(travel.value, mention)
        if seq < 1:
            raise TimeTravelError(f"there is no revision {seq}; the first one is 1")
        return Point(seq=seq)

    def _moment(self, travel: Travel, mention: Mention) -> int:
        """Return the time of as_of in ns: an integer is in ns already, a text is exact, another time has µs."""
        value = self._catalog.engine.value(travel.value) if travel.text is None else travel.text
        if isinstance(value, int | str) and not isinstance(value, bool):
            return instant(value)
        return self._time_ns(travel.value, mention, "as_of")

    def _time_ns(self, value: str, mention: Mention, what: str) -> int:
        otherwise = (
            f"{what} does not understand {value}; write '2026-05-01 12:30:00' (UTC) or '2026-05-01T12:30:00+02:00'"
        )
        return self._integer(f"epoch_us(TRY_CAST({value} AS TIMESTAMPTZ))", mention, otherwise) * 1000

    def _number(self, value: str, mention: Mention) -> int:
        otherwise = f"VERSION AS OF takes a version number, not {value}"
        return self._integer(f"TRY_CAST({value} AS BIGINT)", mention, otherwise)

    def _integer(self, expression: str, mention: Mention, otherwise: str) -> int:
        """Return the value of an expression. Raises BadSql with the text `otherwise` if it is no integer."""
        if isinstance(found := self._catalog.engine.value(expression), int):
            return found
        raise BadSql(otherwise, self._text, mention.place)


def _held(point: Point, archive: bool) -> str:
    """Return the condition for rows of messages that the stream held at a point."""
    if point.seq:
        return f"seq <= {point.seq}"
    held = f"time_ns < {point.before_ns}"
    return f"{held} AND ({REMOVED_COLUMN} IS NULL OR {REMOVED_COLUMN} >= {point.before_ns})" if archive else held


def _reaches(point: Point, live: StreamQuery) -> bool:
    """Return True if a point is after the first message that is not in the table yet."""
    if not live.table:
        return True
    if point.seq:
        return point.seq > live.view.table_last_seq
    return bool(live.tail.num_rows) and point.before_ns > int(live.tail.column("time_ns")[0].as_py())
