"""SQL on the streams of a lake, by DuckDB, inside this process.

Belongs here: the session (DuckDB with its delta extension, loaded from the installed wheel and never from the
network), which table and version a name in a query stands for, and errors that say what to do. The dialect is
spark_sql.py's, time travel is timetravel.py's, showing results is the command line's.

Every query reads each table at one pinned version, so that a table mentioned twice is the same table twice, whatever
the compactor commits meanwhile.
"""

from __future__ import annotations

import importlib.util
import os
import re
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from sqlglot import exp

from lakestream.lake import paths, spark_sql
from lakestream.lake.spark_sql import BadSql, SqlError, Statement, TableAt, Travel
from lakestream.lake.timetravel import (
    CommitLog,
    NotATable,
    TimeTravelError,
    version_for_commit_time,
)

if TYPE_CHECKING:
    import duckdb

__all__ = ["BadSql", "Result", "Session", "SqlError", "UnknownStream"]

HISTORY_LIMIT = 1000
"""DESCRIBE HISTORY shows at most so many commits, the newest first."""

FETCH_ROWS = 10_000
"""Rows taken from DuckDB at a time."""

_EXTENSION_PACKAGE = "duckdb_extension_delta"
_RETRIES = 3


class UnknownStream(SqlError):
    """The query names a stream that has no table; lists those that have."""


class LakeNotFound(SqlError):
    """There is no lake at the path."""


class ExtensionMissing(SqlError):
    """The delta extension for this DuckDB is not installed."""


class Result:
    """The rows of one query: `columns` and `types` (DuckDB's names), and the rows, once, by iterating."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        self._cursor = cursor
        description = cursor.description or []
        self.columns = tuple(str(column[0]) for column in description)
        self.types = tuple(str(column[1]) for column in description)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        while rows := self._cursor.fetchmany(FETCH_ROWS):
            yield from rows

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All remaining rows."""
        return list(self)


def existing_root(lake: str | os.PathLike[str]) -> Path:
    """A lake's root as a local path.

    Args:
        lake: a path, or a `file:` URL.

    Raises:
        LakeNotFound: when there is no such directory.
        UnsupportedLake: when it is not on this machine.
    """
    root = Path(paths.local_root(os.fspath(lake)))
    if not root.is_dir():
        raise LakeNotFound(f"there is no lake at {root}: start `lakestream up`, or name the lake's directory (--lake)")
    return root


def extension_path() -> Path:
    """The delta extension inside the installed wheel duckdb-extension-delta, for the DuckDB in use.

    Raises:
        ExtensionMissing: when the wheel is not there, or is for another DuckDB.
    """
    import duckdb

    spec = importlib.util.find_spec(_EXTENSION_PACKAGE)
    if spec is not None and spec.origin is not None:
        path = Path(spec.origin).parent / "extensions" / f"v{duckdb.__version__}" / "delta.duckdb_extension"
        if path.is_file():
            return path
    raise ExtensionMissing(
        f"DuckDB {duckdb.__version__} has no delta extension here: "
        "pip install duckdb==1.5.5 duckdb-extension-delta==1.5.5 (the two versions must be equal)"
    )


class Session:
    """A DuckDB connection over the streams of one lake. Times are read and shown in UTC.

    Args:
        lake: the lake's root, a local path or `file:` URL.

    Raises:
        LakeNotFound, UnsupportedLake, ExtensionMissing.
    """

    def __init__(self, lake: str | os.PathLike[str]) -> None:
        self.root = existing_root(lake)
        extension = extension_path()
        import duckdb

        self._duckdb = duckdb
        # Nothing may reach for the network: extensions come from wheels or are built in.
        self._connection = duckdb.connect(
            config={"autoinstall_known_extensions": False, "autoload_known_extensions": False}
        )
        self._connection.execute("LOAD " + _quoted(str(extension)))
        self._connection.execute("SET GLOBAL TimeZone = 'UTC'")
        for macro in spark_sql.MACROS:
            self._connection.execute(macro)

    def close(self) -> None:
        """Close DuckDB; results not read yet are lost."""
        self._connection.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- what there is

    def tables(self) -> list[str]:
        """Names of all stream tables, as they are written between backticks after `delta.`, sorted."""
        found = [f"streams/{name}" for name in _delta_tables(self.root / "streams")]
        accounts = self.root / "accounts"
        for account in sorted(os.listdir(accounts)) if accounts.is_dir() else []:
            found += [f"accounts/{account}/streams/{name}" for name in _delta_tables(accounts / account / "streams")]
        return found

    # ---- questions

    def run(self, text: str) -> Iterator[Result]:
        """Answer each statement of a text in order; a wrong one ends it, with the earlier ones done.

        Raises:
            SqlError: BadSql with the place, UnknownStream with the streams there are, and so on.
        """
        for statement in spark_sql.parse(text):
            yield self._answer(statement, text)

    def query(self, text: str) -> Result:
        """Answer a text of exactly one statement.

        Raises:
            SqlError: as `run`; BadSql when there is none or more than one.
        """
        statements = spark_sql.parse(text)
        if len(statements) != 1:
            raise BadSql(f"one statement is expected here, not {len(statements)}", text)
        return self._answer(statements[0], text)

    def _answer(self, statement: Statement, text: str) -> Result:
        if statement.kind == "tables":
            return self._show_tables()
        if statement.kind == "history":
            assert isinstance(statement.tree.this, exp.Table)
            name, _, place = spark_sql.table_name(statement.tree.this, statement.offset)
            return self._history(self._commits(name, text, place))
        return self._execute(statement, text)

    def _execute(self, statement: Statement, text: str) -> Result:
        """Run a query; once more on newer versions when maintenance took a file from under it."""
        seen: dict[tuple[str, Travel | None], TableAt] = {}

        def locate(name: str, travel: Travel | None, place: int) -> TableAt:
            if (found := seen.get((name, travel))) is None:
                found = seen[name, travel] = self._locate(name, travel, text, place)
            return found

        for attempt in range(_RETRIES):
            before = dict(seen)
            seen.clear()
            sql = spark_sql.rewrite(statement, locate)
            if attempt > 0 and before == seen:
                break
            try:
                return Result(self._interruptible(sql))
            except self._duckdb.IOException as error:
                failure: Exception = error
            except self._duckdb.Error as error:
                raise _explained(str(error), text) from None
        raise SqlError(
            f"a file of the table could not be read: {_first_line(str(failure))}. An old version stays readable until "
            "VACUUM removes its files; DESCRIBE HISTORY shows the versions"
        ) from failure

    def _interruptible(self, sql: str) -> duckdb.DuckDBPyConnection:
        """Execute in a thread: DuckDB looks for Ctrl-C only between its tasks, which can be many seconds long."""
        cursor = self._connection.cursor()
        failures: list[BaseException] = []

        def execute() -> None:
            try:
                cursor.execute(sql)
            except BaseException as error:
                failures.append(error)

        worker = threading.Thread(target=execute, name="query", daemon=True)
        worker.start()
        try:
            worker.join()
        except KeyboardInterrupt:
            cursor.interrupt()
            worker.join()
            raise
        if failures:
            raise failures[0]
        return cursor

    def _show_tables(self) -> Result:
        rows: list[tuple[object, ...]] = [(f"delta.`{name}`", self._version(name)) for name in self.tables()]
        return self._rows('"table" VARCHAR, "version" BIGINT', rows)

    def _version(self, name: str) -> int:
        return CommitLog(self.root / name).latest

    def _history(self, log: CommitLog) -> Result:
        rows: list[tuple[object, ...]] = []
        for version in reversed(log.versions[-HISTORY_LIMIT:]):
            commit = log.commit(version)
            progress = commit.progress
            made = _moment(commit.time_ms * 1_000_000)
            until = (progress.last_seq, _moment(progress.last_time_ns)) if progress else (None, None)
            rows.append((version, made, commit.operation, *until))
        shape = "version BIGINT, timestamp TIMESTAMPTZ, operation VARCHAR, last_seq BIGINT, last_time TIMESTAMPTZ"
        return self._rows(shape, rows)

    def _rows(self, shape: str, rows: list[tuple[object, ...]]) -> Result:
        """Rows of our own as a result."""
        cursor = self._connection.cursor()
        cursor.execute(f"CREATE OR REPLACE TEMP TABLE answer ({shape})")
        if rows:
            cursor.executemany(f"INSERT INTO answer VALUES ({', '.join('?' * len(rows[0]))})", rows)
        return Result(cursor.execute("FROM answer"))

    # ---- names and times

    def _locate(self, name: str, travel: Travel | None, text: str, place: int) -> TableAt:
        log = self._commits(name, text, place)
        try:
            if travel is None:
                version = log.latest
            elif travel.kind == "VERSION":
                version = self._known_version(log, self._number(travel.value, text, place))
            else:
                version = version_for_commit_time(log, self._instant(travel.value, text, place), time.time_ns())
        except TimeTravelError as error:
            raise BadSql(str(error), text, place) from None
        return TableAt(log.table, version)

    def _commits(self, name: str, text: str, place: int) -> CommitLog:
        path = Path(unquote(urlsplit(name).path)) if name.startswith("file:") else self.root / name
        directory, _, stream = name.rpartition("/")
        # A stream's own name is understood too where its directory has to spell some characters otherwise.
        for candidate in (path, self.root / directory / paths.directory_name(stream)):
            try:
                return CommitLog(candidate)
            except NotATable:
                continue
        raise self._unknown(name, text, place)

    def _unknown(self, name: str, text: str, place: int) -> UnknownStream:
        tables = self.tables()
        known = ", ".join(f"delta.`{table}`" for table in tables) if tables else "none yet"
        staged = name.startswith("streams/") and (self.root / "segments" / name.removeprefix("streams/")).is_dir()
        if staged:
            reason = (
                f"stream {name.removeprefix('streams/')} has no table yet: its messages wait for the compactor "
                "(`lakestream up` runs one, `lakestream compact --once` does it now)"
            )
        else:
            reason = f"there is no table delta.`{name}` in {self.root}"
        return UnknownStream(f"{reason}\n{spark_sql.excerpt(text, place)}\n  the tables there are: {known}")

    def _known_version(self, log: CommitLog, version: int) -> int:
        if not log.versions[0] <= version <= log.latest:
            raise TimeTravelError(
                f"there is no version {version}; versions {log.versions[0]} to {log.latest} are known"
            )
        return version

    def _number(self, value: str, text: str, place: int) -> int:
        number = self._value(f"TRY_CAST({value} AS BIGINT)")
        if not isinstance(number, int):
            raise BadSql(f"VERSION AS OF takes a version number, not {value}", text, place)
        return number

    def _instant(self, value: str, text: str, place: int) -> int:
        micros = self._value(f"epoch_us(TRY_CAST({value} AS TIMESTAMPTZ))")
        if not isinstance(micros, int):
            raise BadSql(
                f"TIMESTAMP AS OF does not understand {value}; write '2026-05-01 12:30:00' (UTC) or "
                "'2026-05-01T12:30:00+02:00'",
                text,
                place,
            )
        return micros * 1000

    def _value(self, expression: str) -> object:
        """The value of a constant expression; None when it has none."""
        try:
            row = self._connection.cursor().execute(f"SELECT {expression}").fetchone()
        except self._duckdb.Error:
            return None
        return row[0] if row else None


def _delta_tables(directory: Path) -> list[str]:
    try:
        names = sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [name for name in names if (directory / name / "_delta_log").is_dir()]


def _moment(at_ns: int) -> datetime:
    return datetime.fromtimestamp(at_ns // 1_000_000_000, UTC).replace(microsecond=at_ns % 1_000_000_000 // 1000)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0].rstrip(".")


def _explained(message: str, text: str) -> SqlError:
    """DuckDB's complaint about the rewritten query, shown at its place in the query that the user wrote."""
    body = message.partition("\nLINE ")[0].strip()
    body = re.sub(r"^[A-Z]\w+ Error: ", "", body)
    if "BLOB" in body and "No function matches" in body:
        body = f"{_first_line(body)}.\n`data` is binary: write CAST(data AS STRING) to use it as text"
    for word in re.findall(r'"([^"]+)"|[Ff]unction with name (\w+)', body):
        name = word[0] or word[1]
        if found := re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", text, re.IGNORECASE):
            return BadSql(body, text, found.start())
    return SqlError(body)
