"""SQL on the streams of a lake, by DuckDB, inside this process.

Belongs here: the session, and executing statements. statements.py finds the tables in them, catalog.py resolves these,
connection.py loads DuckDB's extensions, explained.py has DuckDB's errors; the command line shows results.

A stream is its table and the uncompacted segments beyond it, as one view (uncompacted.py). Every statement reads each
stream at one point, so that one mentioned twice has the same rows twice, whatever is published and committed meanwhile.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import duckdb
import msgspec

from lakestream.lake.storage import paths
from lakestream.lake.table.at import KEEP_MORE
from lakestream.lake.table.masks import of_table
from lakestream_sql import NO_BINDINGS, TAIL_BYTES, Bindings, Timestamps, buckets, explained, statements
from lakestream_sql.catalog import StatementSnapshot, StreamCatalog, TableStatus
from lakestream_sql.confined import BOUNDS, Checker, QueryBounds, confine
from lakestream_sql.connection import add_functions, connect, extension_path, reads_tables
from lakestream_sql.explained import BadSql, SqlError, UnknownStream
from lakestream_sql.file_views import FileViews
from lakestream_sql.mentions import Mention
from lakestream_sql.parser import SqlParser, characters
from lakestream_sql.statements import Statement, parse, rewrite
from lakestream_sql.tokens import tokens
from lakestream_sql.uncompacted import FlushServer, LiveStreams, index_of
from lakestream_sql.visible import EVERYTHING

if TYPE_CHECKING:
    from lakestream.lake.last_messages import LastPage, LastWanted

__all__ = ["BadSql", "Result", "Session", "SqlError", "UnknownStream", "extension_path"]

HISTORY = "version BIGINT, timestamp TIMESTAMPTZ, operation VARCHAR, last_seq BIGINT, last_time TIMESTAMPTZ"
"""Columns of DESCRIBE HISTORY."""
HISTORY_LIMIT = 1000
"""Maximum number of commits that DESCRIBE HISTORY shows, the newest first."""

FETCH_ROWS = 10_000
"""Rows fetched from DuckDB at a time."""

QUICK_S = 0.05
"""Time (50 ms) after which the columns of a result are told before its rows are there."""

_RETRIES = 3
_INTERRUPTED = "Interrupted!"
"""Error of DuckDB for a query that was cancelled."""

Described = Callable[[tuple[str, ...], tuple[str, ...]], None]
"""Called with the names and types of a result's columns."""


class NoLakeHere(SqlError):
    """Raised when there is no lake at the path."""


class EngineFailed(SqlError):
    """Raised when DuckDB fails by a defect of its own: its session answers nothing any more."""

    def __init__(self, message: str) -> None:
        # The text goes on with a stack, which has the paths of this machine.
        super().__init__(f"DuckDB failed: {explained.first_line(message)}")


class Result:
    """The result of one query: `columns` and `types` (DuckDB's names), and an iterator over the rows.

    Args:
        cursor: has executed the query.
        again: executes it once more.
        shown: returns the name of a column as the user gets it.
    """

    def __init__(
        self,
        cursor: duckdb.DuckDBPyConnection,
        again: Callable[[], duckdb.DuckDBPyConnection] | None = None,
        shown: Callable[[str], str] = str,
    ) -> None:
        self._cursor, self._again = cursor, again
        description = cursor.description or []
        self._named = [str(column[0]) for column in description]
        self.columns = tuple(map(shown, self._named))
        self.types = tuple(str(column[1]) for column in description)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        while rows := self._fetched():
            yield from rows

    def _fetched(self) -> list[tuple[Any, ...]]:
        try:
            return self._cursor.fetchmany(FETCH_ROWS)
        except (duckdb.InternalException, duckdb.FatalException) as error:
            raise EngineFailed(str(error)) from None
        except duckdb.Error as error:
            raise self.failure(error) from None

    def batches(self, rows: int) -> Any:
        """Return the remaining rows as a pyarrow RecordBatchReader of batches of so many rows. It raises OSError for a
        value that fails (`failure`)."""
        reader = self._cursor.to_arrow_reader(rows)
        if self.columns == tuple(self._named):
            return reader
        import pyarrow as pa

        named = zip(self.columns, reader.schema, strict=True)
        schema = pa.schema([field.with_name(name) for name, field in named])
        return pa.RecordBatchReader.from_batches(
            schema, (pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in reader)
        )

    def failure(self, error: Exception) -> SqlError:
        """Return the error of a value behind rows that were right.

        DuckDB stops the other threads of a query that fails with the flag of a cancel. If it is seen before the error
        that set it, the error is lost: then the query runs again, to the same end.
        """
        said = explained.first_line(error)
        for _ in range(_RETRIES if self._again is not None else 0):
            if said != _INTERRUPTED:
                break
            assert self._again is not None
            try:
                for _ in self._again().to_arrow_reader(FETCH_ROWS):
                    pass
            except (duckdb.Error, OSError) as found:
                said = explained.first_line(found)
        return SqlError(said)

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return all remaining rows."""
        return list(self)


def existing_root(lake: str | os.PathLike[str]) -> str:
    """Return a lake's root, as an absolute path or a URL.

    Args:
        lake: a path, a `file:` URL, or a URL of a cloud.

    Raises:
        LakeNotFound: when there is no such directory.
        UnsupportedLake: when it is an address of another kind.
    """
    root = paths.root(os.fspath(lake))
    if paths.is_local(root) and not os.path.isdir(root):
        raise NoLakeHere(f"there is no lake at {root}: start `lakestream up`, or name the lake's directory (--lake)")
    return root


class Session:
    """A DuckDB connection over the streams of one lake. Times are read and shown in UTC.

    Args:
        lake: the lake's root: a path, a `file:` URL, or a URL of a cloud.
        committed: read only what is committed to the tables, without uncompacted segments.
        server: the server to ask to stage its newest messages; None for what is staged already.
        tail_bytes: maximum size of one stream's uncompacted segments that are read into memory, in bytes.
        notify: gets a line that the reader of a result should know, such as that no server answered.
        account: confine the session to the streams of this account, for users who are not trusted; None: no account
            and no file is out of reach.
        bounds: memory and threads of a confined session.
        timestamps: the meaning of TIMESTAMP AS OF on a stream's table.

    Attributes:
        viewer: the user of the next queries.

    Raises:
        LakeNotFound, UnsupportedLake, ExtensionMissing, NoCredentials.
    """

    viewer = EVERYTHING

    def __init__(
        self,
        lake: str | os.PathLike[str],
        *,
        committed: bool = False,
        server: FlushServer | None = None,
        tail_bytes: int = TAIL_BYTES,
        notify: Callable[[str], None] = lambda _: None,
        account: str | None = None,
        bounds: QueryBounds = BOUNDS,
        timestamps: Timestamps = "commit",
    ) -> None:
        self.root = existing_root(lake)
        itself = reads_tables(self.root, confined=account is not None)
        self._connection, files = connect(self.root, itself=itself)
        self._parser = SqlParser(self._connection)
        self._last_parsed: tuple[str, Bindings, list[Statement]] = ("", NO_BINDINGS, [])
        self._checker: Checker | None = None
        if account is not None:
            tables = paths.table(self.root, "", account)
            confine(self._connection, tables if files is None else files.spelled(tables), bounds)
            self._checker = Checker(self._connection, self._parser)
        self._tables = views = FileViews(self.root, self._connection, files)
        self._live = None if committed else LiveStreams(self.root, server, tail_bytes, notify, views)

        add = partial(add_functions, self._connection)
        self._catalog = StreamCatalog(
            self.root, self._value, self._rows_of, self._live, add, views.place, account, timestamps
        )

    def close(self) -> None:
        """Close DuckDB; results not read yet are lost."""
        self._connection.close()
        if self._live is not None:
            self._live.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- what there is

    def tables(self) -> list[str]:
        """Return the names of all stream tables, as written between backticks after `delta.`, sorted."""
        return self._catalog.tables()

    def streams(self, text: str, bindings: Bindings = NO_BINDINGS) -> list[str]:
        """Return the names of the streams that a text mentions, in order, without those of other tables.

        Raises:
            SqlError: BadSql for a text that does not parse; UnknownStream for a stream of another account.
        """
        found = list[str]()
        for mention in (mention for each in self._parsed(text, bindings) for mention in each.mentions()):
            try:
                found.append(self._catalog.stream_of(mention))
            except UnknownStream as error:  # of another account
                raise UnknownStream(f"{error}\n{explained.excerpt(text, mention.place)}") from None
        return [name for name in dict.fromkeys(found) if name]

    def last_wanted(self, text: str, bindings: Bindings = NO_BINDINGS) -> list[LastWanted]:
        """Return the last messages that a text wants from the indexes of streams. Raises SqlError as `streams`."""
        if self._live is None:
            return []
        mentions = [mention for each in self._parsed(text, bindings) for mention in each.mentions()]
        return [each for some in self._catalog.last_wanted(mentions).values() for each in some]

    def masked(self, streams: Iterable[str], roles: Collection[str]) -> list[str]:
        """Return those of some streams of which a user with these roles sees masked fields."""
        tables = {
            each: paths.table(self.root, each, self._catalog.account or paths.DEFAULT_ACCOUNT) for each in streams
        }
        return [each for each, table in tables.items() if of_table(self._catalog.storage, table).hide_from(roles)]

    def take_last(self, pages: Mapping[LastWanted, list[LastPage]]) -> None:
        """Take what a server answered for that, before it staged its newest messages, for the next query."""
        if self._live is not None:
            self._live.given = {wanted: index_of(each) for wanted, each in pages.items()}

    def lists(self, text: str, bindings: Bindings = NO_BINDINGS) -> bool:
        """Return True if a text asks for the names of all streams. Raises SqlError as `streams`."""
        return any(statement.kind == "tables" for statement in self._parsed(text, bindings))

    def parameters(self, text: str) -> list[str]:
        """Return the names of the parameters of a text."""
        return statements.parameters(parse(text, self._parser, None))

    # ---- questions

    def run(self, text: str) -> Iterator[Result]:
        """Execute the statements of a text in order; the first error ends it, after the earlier ones.

        Raises:
            SqlError: BadSql with the place, UnknownStream with the existing streams, and so on.
        """
        for statement in parse(text, self._parser):
            yield self._answer(statement, text)

    def query(self, text: str, bindings: Bindings = NO_BINDINGS, described: Described | None = None) -> Result:
        """Execute a text of exactly one statement.

        Args:
            described: called with the columns of the result before the statement is executed.

        Raises:
            SqlError: as `run`; BadSql when there is none or more than one.
        """
        return self._answer(self._only(text, bindings), text, described)

    def shape(self, text: str, bindings: Bindings = NO_BINDINGS) -> Result:
        """Return the result of a text of exactly one statement without its rows, which are not computed.

        Raises:
            SqlError: as `query`.
        """
        statement = self._only(text, bindings)
        if statement.kind != "query":
            return self._answer(statement, text)
        return self._execute(statement, text, None, rows=False)

    def _parsed(self, text: str, bindings: Bindings) -> list[Statement]:
        """Return the statements of a text, which is asked for again and again while one query is answered."""
        if self._last_parsed[:2] != (text, bindings):
            self._last_parsed = text, bindings, parse(text, self._parser, bindings)
        return self._last_parsed[2]

    def _only(self, text: str, bindings: Bindings) -> Statement:
        found = self._parsed(text, bindings)
        if len(found) != 1:
            raise BadSql(f"one statement is expected here, not {len(found)}", text)
        return found[0]

    def _answer(self, statement: Statement, text: str, described: Described | None = None) -> Result:
        if statement.kind == "tables":
            result = self._show_tables()
        elif statement.kind == "functions":
            names = (
                "SELECT DISTINCT function_name AS function FROM duckdb_functions() WHERE function_name ~ '^[a-z]\\w*$'"
            )
            result = Result(self._connection.cursor().execute(f"{names} UNION SELECT 'as_of' ORDER BY 1"))
        elif statement.kind == "history":
            (mention,) = statement.mentions()
            if mention.bare and (name := self._catalog.spelled(mention.name)) is not None:
                mention = msgspec.structs.replace(mention, name=name)
            result = self._history(mention, text)
        else:
            return self._execute(statement, text, described)
        if described is not None:
            described(result.columns, result.types)
        return result

    def _execute(self, statement: Statement, text: str, described: Described | None, *, rows: bool = True) -> Result:
        """Run a query; once more on newer versions when maintenance deleted one of its files."""
        seen: StatementSnapshot | None = None
        for _ in range(_RETRIES):
            snapshot = StatementSnapshot(self._catalog, text, statement.mentions(), self.viewer)
            edited = rewrite(statement, snapshot.locate)
            query = edited.text
            if self._checker is not None:
                restricted = snapshot.masked or self.viewer.sees is not None
                self._checker.check(query, snapshot.sources(), statement.prefix, restricted=restricted)
            if seen is not None and seen.versions == snapshot.versions:
                break
            seen = snapshot
            before, behind = (statement.prefix, "") if rows else ("SELECT * FROM (\n", "\n) LIMIT 0")

            def describe(query: str = query, snapshot: StatementSnapshot = snapshot) -> None:
                nonlocal described
                if described is None or statement.kind != "query":
                    return
                with suppress(duckdb.Error):  # which the query itself raises, too
                    columns = self._interruptible(f"DESCRIBE (\n{query}\n)", snapshot.arrow).fetchall()
                    described(tuple(snapshot.shown(row[0]) for row in columns), tuple(row[1] for row in columns))
                    described = None

            try:
                run = partial(self._interruptible, before + query + behind, snapshot.arrow)
                result = Result(run(describe), run, snapshot.shown)
                if described is not None:
                    described(result.columns, result.types)
                return result
            except duckdb.IOException as error:
                if not snapshot.sources():  # of a file that the query names by itself
                    raise self._explained(explained.read(error), text, None, statement, snapshot) from None
                failure: Exception = error
            except (duckdb.InternalException, duckdb.FatalException) as error:
                raise EngineFailed(str(error)) from None
            except duckdb.Error as error:
                said, at = explained.read(error), None
                if said.position is not None:
                    offset = characters(before + query + behind, said.position) - len(before)
                    at = statement.place(edited.place(max(offset, 0)))
                raise self._explained(said, text, at, statement, snapshot) from None
        raise SqlError(
            f"a file of the table could not be read: {explained.first_line(failure)}. An old version stays readable "
            f"until VACUUM removes its files; DESCRIBE HISTORY shows the versions; {KEEP_MORE}"
        ) from failure

    def _explained(
        self,
        said: explained.DuckdbError,
        text: str,
        offset: int | None,
        statement: Statement,
        snapshot: StatementSnapshot,
    ) -> SqlError:
        """Return DuckDB's error, shown at its place in the user's query."""
        if said.kind == "Table" and said.missing and offset is not None:
            first = next(tokens(text[offset:])).name
            if first.lower() != said.missing.lower():
                reason = f"there is no table {first}.{said.missing}: a stream is written as in FROM ORDERS"
                return BadSql(reason, text, offset)
            return self._catalog.unknown(Mention(f"{paths.STREAMS}/{said.missing}", place=offset, bare=True), text)
        lost = explained.lost(said)
        if lost is not None and (offset is None or lost.behind) and (place := lost.place(statement.sql)) is not None:
            offset = statement.place(place)
        is_column = (lost is not None and lost.is_column) or (said.missing and not said.kind)
        described = snapshot.sources() if is_column else ()
        known = [str(row[0]) for each in described for row in self._rows_of(f"DESCRIBE {each}", snapshot.arrow)]
        if lost is not None and lost.is_column:
            return BadSql(explained.no_column(said, lost, known), text, offset)
        advised = explained.advised(said)
        return BadSql(explained.with_field(advised, said.missing, known) if is_column else advised, text, offset)

    def _interruptible(
        self, sql: str, arrow: dict[str, Any], meanwhile: Callable[[], None] | None = None
    ) -> duckdb.DuckDBPyConnection:
        """Execute in a thread: DuckDB checks for Ctrl-C only between its tasks, which can be many seconds long.

        Args:
            meanwhile: called if it takes longer than `QUICK_S`.
        """
        cursor = self._connection.cursor()
        arrow = {**arrow, **self._tables.encrypted}
        for name in filter(sql.__contains__, arrow):  # to register one costs 0.4 ms
            cursor.register(name, arrow[name])
        failures: list[BaseException] = []

        def execute() -> None:
            try:
                cursor.execute(sql)
            except BaseException as error:
                failures.append(error)

        worker = threading.Thread(target=execute, name="query", daemon=True)
        worker.start()
        try:
            if meanwhile is not None:
                worker.join(QUICK_S)
                if worker.is_alive():
                    meanwhile()
            worker.join()
        except KeyboardInterrupt:
            cursor.interrupt()
            worker.join()
            raise
        if failures:
            raise failures[0]
        return cursor

    def _show_tables(self) -> Result:
        rows: list[tuple[object, ...]] = []
        for stream in self._catalog.streams():
            state = self._catalog.state(stream) if self.viewer.sees is None else TableStatus(None, None, None)
            for name in (f"delta.`{stream.name}`", *buckets.names_of(stream.name)):
                rows.append((name, state.version, state.last_seq, state.uncompacted))
        return self._rows('"table" VARCHAR, "version" BIGINT, last_seq BIGINT, tail BIGINT', rows)

    def _history(self, mention: Mention, text: str) -> Result:
        rows: list[tuple[object, ...]] = []
        try:
            log = self._catalog.log(mention, text)
        except UnknownStream:
            if StatementSnapshot(self._catalog, text).locate(mention) is None:
                raise
            return self._rows(HISTORY, rows)  # a stream whose messages are not in a table yet
        for version in reversed(log.versions[-HISTORY_LIMIT:]):
            commit = log.summary(version)
            progress = commit.progress
            made = _moment(commit.time_ms * 1_000_000)
            shown = progress is not None and self.viewer.sees is None
            until = (progress.last_seq, _moment(progress.last_time_ns)) if progress and shown else (None, None)
            rows.append((version, made, commit.operation, *until))
        return self._rows(HISTORY, rows)

    def _rows(self, shape: str, rows: list[tuple[object, ...]]) -> Result:
        """Return rows made here as a result."""
        cursor = self._connection.cursor()
        cursor.execute(f"CREATE OR REPLACE TEMP TABLE answer ({shape})")
        if rows:
            cursor.executemany(f"INSERT INTO answer VALUES ({', '.join('?' * len(rows[0]))})", rows)
        return Result(cursor.execute("FROM answer"))

    def _value(self, expression: str) -> object:
        """Return the value of a constant expression; None when it has none."""
        if self._checker is not None:
            self._checker.check(f"SELECT {expression}")
        try:
            row = self._connection.cursor().execute(f"SELECT {expression}").fetchone()
        except duckdb.Error:
            return None
        return row[0] if row else None

    def _rows_of(self, sql: str, arrow: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Return the rows of a query of our own."""
        try:
            return self._interruptible(sql, arrow).fetchall()
        except duckdb.Error as error:
            raise SqlError(explained.first_line(error)) from None


def _moment(at_ns: int) -> datetime:
    return datetime.fromtimestamp(at_ns // 1_000_000_000, UTC).replace(microsecond=at_ns % 1_000_000_000 // 1000)
