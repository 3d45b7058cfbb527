"""SQL on the streams of a lake, by DuckDB, inside this process.

Belongs here: the session, and executing statements. statements.py finds the tables in them, catalog.py resolves these,
connection.py loads DuckDB's extensions, explained.py has DuckDB's errors; the command line shows results.

A stream is its table and the uncompacted segments beyond it, as one view (uncompacted.py). Every statement reads each
stream at one point, so that one mentioned twice has the same rows twice, whatever is published and committed meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import duckdb

from lakestream.lake.last_messages import LastPage, LastWanted
from lakestream.lake.storage import paths
from lakestream.lake.table.at import KEEP_MORE
from lakestream.lake.table.masks import of_table
from lakestream.lake.table.schema import literal
from lakestream.protocol.instants import rfc3339
from lakestream_sql import NO_BINDINGS, TAIL_BYTES, Bindings, Timestamps, buckets, explained, statements
from lakestream_sql.catalog import StatementSnapshot, StreamCatalog
from lakestream_sql.confined import BOUNDS, QueryBounds
from lakestream_sql.connection import Engine, extension_path
from lakestream_sql.explained import BadSql, SqlError, UnknownStream
from lakestream_sql.mentions import Mention
from lakestream_sql.messages import MentionedStreams
from lakestream_sql.parser import characters
from lakestream_sql.statements import Statement, parse, rewrite
from lakestream_sql.tokens import tokens
from lakestream_sql.uncompacted import FlushServer, LiveStreams, index_of
from lakestream_sql.visible import EVERYTHING

__all__ = ["BadSql", "Result", "Session", "SqlError", "UnknownStream", "extension_path"]

TABLES = '"table" VARCHAR, version BIGINT, last_seq BIGINT, tail BIGINT'
"""Columns of SHOW TABLES."""
HISTORY = "version BIGINT, timestamp TIMESTAMPTZ, operation VARCHAR, last_seq BIGINT, last_time TIMESTAMPTZ"
"""Columns of DESCRIBE HISTORY."""
_FUNCTIONS = "SELECT DISTINCT function_name AS function FROM duckdb_functions() WHERE function_name ~ '^[a-z]\\w*$'"
HISTORY_LIMIT = 1000
"""Maximum number of commits that DESCRIBE HISTORY shows, the newest first."""

FETCH_ROWS = 10_000
"""Rows fetched from DuckDB at a time."""

_RETRIES = 3
_INTERRUPTED = "Interrupted!"
"""Error of DuckDB for a query that was cancelled."""

Described = Callable[[tuple[str, ...], tuple[str, ...]], None]
"""Called with the names and types of a result's columns."""


class NoLakeHere(SqlError):
    """Raised when there is no lake at the path."""

    def __init__(self, root: str) -> None:
        super().__init__(f"there is no lake at {root}: start `lakestream up`, or name the lake's directory (--lake)")


class EngineFailed(SqlError):
    """Raised when DuckDB fails by a defect of its own: its session answers nothing any more."""

    code = 500

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
        try:
            while rows := self._cursor.fetchmany(FETCH_ROWS):
                yield from rows
        except (duckdb.InternalException, duckdb.FatalException) as error:
            raise EngineFailed(str(error)) from None
        except duckdb.Error as error:
            raise self._failure(error) from None

    def batches(self, rows: int) -> Any:
        """Return the remaining rows as a pyarrow RecordBatchReader of batches of so many rows, without dictionaries,
        which would be messages of their own in a stream. It raises SqlError for a value that fails."""
        import pyarrow as pa

        reader = self._cursor.to_arrow_reader(rows)
        kinds = [each.value_type if pa.types.is_dictionary(each) else each for each in reader.schema.types]
        named = zip(self.columns, reader.schema, kinds, strict=True)
        schema = pa.schema([field.with_name(name).with_type(kind) for name, field, kind in named])

        def plain() -> Iterator[pa.RecordBatch]:
            try:
                for batch in reader:
                    yield batch if batch.schema == schema else batch.rename_columns(self.columns).cast(schema)
            except OSError as error:
                raise self._failure(error) from None

        return pa.RecordBatchReader.from_batches(schema, plain())

    def _failure(self, error: Exception) -> SqlError:
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
        engine: DuckDB.

    Raises:
        NoLakeHere, UnsupportedLake, ExtensionMissing, NoCredentials.
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
        self.root = root = paths.root(os.fspath(lake))
        if paths.is_local(root) and not os.path.isdir(root):
            raise NoLakeHere(root)
        self.engine = Engine(root, account, bounds)
        self._last_parsed: tuple[str, Bindings, list[Statement]] = ("", NO_BINDINGS, [])
        self._live = LiveStreams(self.engine, server, tail_bytes, notify, committed=committed)
        self._catalog = StreamCatalog(self.engine, self._live, timestamps)

    def close(self) -> None:
        """Close DuckDB; results not read yet are lost."""
        self.engine.connection.close()
        self._live.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- what there is

    def tables(self) -> list[str]:
        """Return the names of all stream tables, as written between backticks after `delta.`, sorted."""
        return self._catalog.tables()

    def mentioned(self, text: str, bindings: Bindings = NO_BINDINGS) -> MentionedStreams:
        """Return the streams that a text mentions, in order, without other tables.

        Raises:
            SqlError: BadSql for a text that does not parse; UnknownStream for a stream of another account.
        """
        parsed, catalog = self._parsed(text, bindings), self._catalog
        streams, last = dict[str, None](), dict[LastWanted, None]()
        for mention in (mention for each in parsed for mention in each.mentions()):
            try:
                streams[catalog.stream_of(mention)] = None
                if (wanted := catalog.last_wanted(mention)) is not None:
                    last[wanted[1]] = None
            except UnknownStream as error:  # of another account
                raise UnknownStream(f"{error}\n{explained.excerpt(text, mention.place)}") from None
        streams.pop("", None)
        return MentionedStreams([*streams], any(each.kind == "tables" for each in parsed), [*last])

    def masked(self, streams: Iterable[str], roles: Collection[str]) -> list[str]:
        """Return those of some streams of which a user with these roles sees masked fields."""
        account, storage = self._catalog.account or paths.DEFAULT_ACCOUNT, self._catalog.storage
        tables = {each: paths.table(self.root, each, account) for each in streams}
        return [each for each, table in tables.items() if of_table(storage, table).hide_from(roles)]

    def take_last(self, pages: Mapping[LastWanted, list[LastPage]]) -> None:
        """Take what a server answered for that, before it staged its newest messages, for the next query."""
        self._live.given = {wanted: index_of(each) for wanted, each in pages.items()}

    def parameters(self, text: str) -> list[str]:
        """Return the names of the parameters of a text."""
        return statements.parameters(parse(text, self.engine.parser, None))

    # ---- questions

    def run(self, text: str) -> Iterator[Result]:
        """Execute the statements of a text in order; the first error ends it, after the earlier ones.

        Raises:
            SqlError: BadSql with the place, UnknownStream with the existing streams, and so on.
        """
        for statement in parse(text, self.engine.parser):
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
            self._last_parsed = text, bindings, parse(text, self.engine.parser, bindings)
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
            names = f"{_FUNCTIONS} UNION SELECT 'as_of' ORDER BY 1"
            result = Result(self.engine.connection.cursor().execute(names))
        elif statement.kind == "history":
            (mention,) = statement.mentions()
            result = self._history(self._catalog.resolved(mention), text)
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
            restricted = snapshot.masked or self.viewer.sees is not None
            self.engine.check(query, snapshot.sources, statement.prefix, restricted=restricted)
            if seen is not None and seen.versions == snapshot.versions:
                break
            seen = snapshot
            before, behind = (statement.prefix, "") if rows else ("SELECT * FROM (\n", "\n) LIMIT 0")

            def describe(query: str = query, snapshot: StatementSnapshot = snapshot) -> None:
                nonlocal described
                if described is None or statement.kind != "query":
                    return
                with suppress(duckdb.Error):  # which the query itself raises, too
                    columns = self.engine.execute(f"DESCRIBE (\n{query}\n)", snapshot.arrow).fetchall()
                    described(tuple(snapshot.shown(row[0]) for row in columns), tuple(row[1] for row in columns))
                    described = None

            try:
                run = partial(self.engine.execute, before + query + behind, snapshot.arrow)
                result = Result(run(describe), run, snapshot.shown)
                if described is not None:
                    described(result.columns, result.types)
                return result
            except (duckdb.InternalException, duckdb.FatalException) as error:
                raise EngineFailed(str(error)) from None
            except duckdb.Error as error:
                if isinstance(error, duckdb.IOException) and snapshot.sources:
                    failure = error  # else of a file that the query names by itself
                    continue
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
        if (place := said.place(statement.sql)) is not None:
            offset = statement.place(place)

        def columns() -> list[str]:
            return [name for each in snapshot.sources for name in self.engine.columns(each, snapshot.arrow)]

        return BadSql(explained.advised(said, columns), text, offset)

    def _show_tables(self) -> Result:
        rows: list[tuple[object, ...]] = []
        for stream in self._catalog.streams():
            progress = self._catalog.progress(stream) if self.viewer.sees is None else (None, None, None)
            names = ("delta", stream.name), *buckets.buckets_of(stream.name).items()
            rows += [(f"{view}.`{name}`", *progress) for view, name in names]
        return self._rows(TABLES, rows)

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
            shown = progress is not None and self.viewer.sees is None
            until = (progress.last_seq, rfc3339(progress.last_time_ns)) if progress and shown else (None, None)
            rows.append((version, rfc3339(commit.time_ms * 1_000_000), commit.operation, *until))
        return self._rows(HISTORY, rows)

    def _rows(self, shape: str, rows: list[tuple[object, ...]]) -> Result:
        """Return rows made here as a result: in a text, since DuckDB and Arrow import pandas for such values."""
        texts = ([literal(str(each)) if each is not None else "NULL" for each in row] for row in rows)
        listed = ", ".join(f"row({', '.join(row)})" for row in texts)
        select = f"SELECT unnest([{listed}]::STRUCT({shape})[], recursive := true)"
        return Result(self.engine.connection.cursor().execute(select))
