"""The session of one client: prepared statements, portals, settings, and the order of messages.

Belongs here: what each message does. Queries go to SQL over NATS (rows.py) or to the catalogue (catalogue.py); nothing
of a result is kept but the batch that is being sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Coroutine, Sequence
from functools import cached_property
from typing import Any

import msgspec

from lakestream_postgres import copy, statements, trees, wire
from lakestream_postgres.catalogue import Catalogue
from lakestream_postgres.errors import PgError
from lakestream_postgres.listener import Connection
from lakestream_postgres.rows import Rows, Service, texts
from lakestream_postgres.statements import CLIENT_SETTINGS, KEPT, REPORTED, AskedQuery, Statement, options, seconds
from lakestream_postgres.types import TEXT, TEXTS, BadValue, decode, duckdb_type, encode
from lakestream_postgres.wire import Field

MAX_STATEMENTS, MAX_PORTALS = 1024, 16
"""Prepared statements and portals of a session."""
MAX_PREPARED = 4 << 20
"""Length of all prepared statements of a session, in characters (4 Mi)."""
ROWS = 1024
"""Rows that are encoded at a time."""
SERVER_VERSION = "15.0 (lakestream)"


class _Prepared:
    """A prepared statement. `types`: oids of its parameters, 0: unknown; `shown`: as the client gave them."""

    def __init__(self, statement: Statement, types: list[int]) -> None:
        self.statement, self.types, self.shown = statement, types, [*types]
        self.fields: Sequence[Field] | None = None
        self.is_described = False

    @cached_property
    def _names(self) -> dict[int, str]:
        return trees.names(statements.substituted(self.statement.text, "${}".format).text) if self.types else {}

    def named(self, fields: Sequence[Field]) -> Sequence[Field]:
        """Return the columns of its result under the names that clients of Postgres expect."""
        found = list(fields)
        for at, name in self._names.items():
            found[at] = msgspec.structs.replace(found[at], name=name)
        return found


class _Portal:
    """A statement with values. `rows`: once it runs; `batch`: what is left of the one that is being sent."""

    def __init__(self, prepared: _Prepared, values: list[str | None], results: tuple[int, ...] = ()) -> None:
        self.prepared, self.values, self.results = prepared, values, results
        self.rows: Rows | None = None
        self.batch: Any = None
        self.is_done = False

    def formats(self, count: int) -> list[int]:
        """Return the format of each column. Raises PgError."""
        if len(self.results) in (0, 1):
            return list(self.results or (0,)) * count
        if len(self.results) != count:
            raise PgError("08P01", f"there are {len(self.results)} formats for {count} columns")
        return list(self.results)


class Session:
    """A session.

    Args:
        nats: the login's connection.
        turn: of the user's sessions (rows.py).
        startup: parameters of the startup.
        key: process and secret of cancel requests.
    """

    def __init__(
        self, connection: Connection, nats: Any, turn: asyncio.Lock, startup: dict[str, str], key: tuple[int, int]
    ) -> None:
        self.key = key
        self._connection, self._nats = connection, nats
        user = startup.get("user", "")
        self._settings = CLIENT_SETTINGS | {"session_authorization": user, "server_version": SERVER_VERSION}
        self._limit_s = 0.0  # of statements
        self._startup = startup
        self._service = Service(nats, turn)
        self._catalogue = Catalogue(self._service, startup.get("database") or user, user, self._settings)
        self._prepared: dict[str, _Prepared] = {}
        self._portals: dict[str, _Portal] = {}
        self._status = b"I"
        self._work: asyncio.Task[None] | None = None
        self._is_cancelled = False

    def cancel(self) -> None:
        """End the statement that runs."""
        if self._work is not None:
            self._is_cancelled = True
            self._work.cancel()

    async def close(self) -> None:
        """End queries and login."""
        self._connection.is_served = False
        await self._close_portals()
        self._catalogue.close()
        await self._nats.close()

    # ------------------------------------------------------------------ messages
    async def run(self) -> None:
        """Serve until the client leaves. Raises PgError, BadMessage, ConnectionError."""
        for name, value in self._startup.items():
            if name not in ("user", "database", "options", "replication") and not name.startswith("_pq_."):
                self._set(name.lower(), value.strip("'"))
        for name, value in options(self._startup.get("options", "")):
            if name in KEPT:
                self._set(name, value)
        for name, shown in REPORTED.items():
            self._write(wire.parameter(shown, self._settings[name]))
        self._write(wire.backend_key(*self.key) + wire.ready(self._status))
        skips, self._connection.is_served = False, True
        while True:
            await self._connection.drain()
            message = await self._connection.next()
            if isinstance(message, wire.Terminate):
                return
            if isinstance(message, wire.Sync):
                skips = False
                if self._status == b"I":
                    await self._close_portals()
                self._write(wire.ready(self._status))
            elif isinstance(message, wire.Query):
                skips = False
                await self._attempt(self._simple(message.text))
                if self._status == b"I":
                    await self._close_portals()
                self._write(wire.ready(self._status))
            elif not skips:
                skips = not await self._attempt(self._extended(message))

    async def _attempt(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do some work, which can be cancelled; return False if it failed, and say so."""
        self._work, self._is_cancelled = asyncio.ensure_future(work), False
        try:
            async with asyncio.timeout(self._limit_s or None):
                await self._work
            return True
        except TimeoutError:
            error = PgError("57014", "canceling statement due to statement timeout")
        except asyncio.CancelledError:
            if not self._is_cancelled:
                self._work.cancel()
                raise
            error = PgError("57014", "canceling statement due to user request")
        except PgError as failure:
            error = failure
        except ConnectionError:
            raise  # the client is gone
        except Exception as failure:  # a defect: of this statement alone
            traceback.print_exc()
            error = PgError("XX000", f"internal error: {failure}")
        finally:
            self._work = None
        if self._status == b"T":
            self._status = b"E"
        self._write(error.encode())
        return False

    def _write(self, data: bytes) -> None:
        self._connection.write(data)

    async def _simple(self, text: str) -> None:
        for part in statements.split(text):
            portal = _Portal(_Prepared(self._read(*part), []), [])
            try:
                await self._open(portal)
                if portal.rows is not None and portal.prepared.statement.kind != "copy":
                    self._write(wire.row_description(portal.rows.fields, portal.formats(len(portal.rows.fields))))
                await self._execute(portal, 0)
            finally:
                await _close(portal)

    async def _extended(self, message: wire.Message) -> None:
        if isinstance(message, wire.Parse):
            if message.name and message.name in self._prepared:
                raise PgError("42P05", f'prepared statement "{message.name}" already exists')
            if len(message.text) > trees.MAX_TEXT:
                raise PgError("54000", f"a query has at most {trees.MAX_TEXT} characters")
            length = len(message.text) + sum(len(each.statement.text) for each in self._prepared.values())
            if len(self._prepared) >= MAX_STATEMENTS or length > MAX_PREPARED:
                raise PgError(
                    "53400", f"a session has at most {MAX_STATEMENTS} prepared statements, of {MAX_PREPARED} characters"
                )
            parts = statements.split(message.text)
            if len(parts) > 1:
                raise PgError("42601", "cannot insert multiple commands into a prepared statement")
            statement = self._read(*parts[0])
            count = max(statements.parameters(statement.text), len(message.types))
            self._prepared[message.name] = _Prepared(statement, [*message.types, *[0] * (count - len(message.types))])
            self._write(wire.PARSED)
        elif isinstance(message, wire.Bind):
            await self._bind(message)
        elif isinstance(message, wire.Describe):
            await self._describe(message)
        elif isinstance(message, wire.Execute):
            portal = self._portal(message.portal)
            await self._open(portal)
            await self._execute(portal, message.limit)
        elif isinstance(message, wire.Close):
            if message.is_statement:
                self._prepared.pop(message.name, None)
            elif (closed := self._portals.pop(message.name, None)) is not None:
                await _close(closed)
            self._write(wire.CLOSED)
        elif isinstance(message, wire.FunctionCall):
            raise PgError("0A000", "function calls are not supported")

    async def _bind(self, message: wire.Bind) -> None:
        prepared = self._statement(message.statement)
        count = len(prepared.types)
        if len(message.values) != count or len(message.formats) not in (0, 1, count):
            raise PgError("08P01", f"the statement has {count} parameters, not {len(message.values)}")
        formats = message.formats if len(message.formats) == count else (*message.formats, 0)[:1] * count
        try:
            values = [decode(*each) for each in zip(message.values, prepared.types, formats, strict=True)]
        except BadValue as error:
            raise PgError("22P03", str(error)) from None
        if (before := self._portals.pop(message.portal, None)) is not None:
            await _close(before)
        if len(self._portals) >= MAX_PORTALS:
            raise PgError("53400", f"a session has at most {MAX_PORTALS} portals")
        self._portals[message.portal] = _Portal(prepared, values, message.results)
        self._write(wire.BOUND)

    async def _describe(self, message: wire.Describe) -> None:
        if not message.is_statement:
            portal = self._portal(message.name)
            await self._open(portal)
            self._write_fields(None if portal.rows is None else portal.rows.fields, portal)
            return
        prepared = self._statement(message.name)
        if not prepared.is_described:
            await self._look(prepared)
        self._write(
            wire.parameter_description(
                [given or oid or TEXT for given, oid in zip(prepared.shown, prepared.types, strict=True)]
            )
        )
        self._write_fields(prepared.fields, _Portal(prepared, []))

    def _write_fields(self, fields: Sequence[Field] | None, portal: _Portal) -> None:
        is_copy = portal.prepared.statement.kind == "copy"
        if fields is None or is_copy:
            self._write(wire.NO_DATA)
        else:
            self._write(wire.row_description(fields, portal.formats(len(fields))))

    async def _look(self, prepared: _Prepared) -> None:
        """Find the types of parameters and columns of a statement."""
        statement, types = prepared.statement, prepared.types
        if statement.kind == "show":
            prepared.fields = self._shown(statement.name).fields
        elif statement.kind == "fetch" and statement.name in self._portals:
            cursor = self._portals[statement.name]
            await self._open(cursor)
            prepared.fields = None if cursor.rows is None else cursor.rows.fields
        elif statement.kind in ("query", "copy"):
            text = statements.substituted(statement.text, "${}".format).text
            is_catalogue = self._catalogue.knows(text)
            describe = self._catalogue.describe if is_catalogue else self._service.describe
            unknown = {number for number, oid in enumerate(types, 1) if not oid}
            if not TEXTS.isdisjoint(types):
                for number, oid in (await trees.infer(text, lambda each: describe(AskedQuery(each)), unknown)).items():
                    if number in unknown or (oid == TEXT and number <= len(types) and types[number - 1] in TEXTS):
                        types[number - 1] = oid
            prepared.fields = prepared.named(await describe(_asked(statement, types, [None] * len(types))))
        prepared.is_described = True

    # ------------------------------------------------------------------ statements
    def _read(self, text: str, place: int) -> Statement:
        found = statements.read(text, place)
        if self._status == b"E" and found.kind not in ("end", "savepoint"):
            raise PgError("25P02", "current transaction is aborted, commands ignored until end of transaction block")
        return found

    def _statement(self, name: str) -> _Prepared:
        if (found := self._prepared.get(name)) is None:
            raise PgError("26000", f'prepared statement "{name}" does not exist')
        return found

    def _portal(self, name: str) -> _Portal:
        if (found := self._portals.get(name)) is None:
            raise PgError("34000", f'portal "{name}" does not exist')
        return found

    async def _open(self, portal: _Portal) -> None:
        """Run the query of a portal, if it has one that does not run yet."""
        statement = portal.prepared.statement
        if portal.rows is not None or portal.is_done:
            return
        if statement.kind in ("query", "copy"):
            types, values = portal.prepared.types, portal.values
            if self._catalogue.knows(statements.substituted(statement.text, "${}".format).text):
                portal.rows = await self._catalogue.rows(_asked(statement, types, values, literal=True).text)
            else:
                given = {str(number): value for number, value in enumerate(values, 1)}
                portal.rows = await self._service.rows(_asked(statement, types, values), given)
            portal.rows.fields = portal.prepared.named(portal.rows.fields)
            told = portal.prepared.fields
            if told is not None and [each.oid for each in told] != [each.oid for each in portal.rows.fields]:
                text = "cached plan must not change result type\nprepare it again, or cast its parameters"
                raise PgError("0A000", text)
        elif statement.kind == "show":
            portal.rows = self._shown(statement.name)
        elif statement.kind == "fetch":
            cursor = self._portal(statement.name)
            await self._open(cursor)
            portal.rows = cursor.rows

    async def _execute(self, portal: _Portal, limit: int) -> None:
        statement = portal.prepared.statement
        if statement.kind == "fetch":
            cursor = self._portal(statement.name)
            cursor.results = portal.results
            sent = await self._send(cursor, statement.count)
            self._write(wire.complete(f"FETCH {sent}"))
        elif statement.kind == "copy":
            self._write(wire.complete(f"COPY {await self._copy(portal)}"))
        elif portal.rows is not None:
            sent = await self._send(portal, limit)
            if portal.is_done:
                self._write(wire.complete(statement.tag or f"SELECT {sent}"))
            else:
                self._write(wire.SUSPENDED)
        elif portal.is_done:
            self._write(wire.complete(statement.tag or "SELECT 0"))
        elif statement.kind == "empty":
            self._write(wire.EMPTY_QUERY)
        else:
            await self._do(statement)
            self._write(wire.complete(statement.tag))

    async def _send(self, portal: _Portal, limit: int) -> int:
        """Send at most `limit` rows (0: all); return their number. Set `is_done` at the end."""
        rows, sent = portal.rows, 0
        while rows is not None and not (limit and sent >= limit):
            if portal.batch is None or not portal.batch.num_rows:
                portal.batch = await rows.next()
                if portal.batch is None:
                    portal.is_done = True
                    break
                continue
            count = min(ROWS, limit - sent if limit else ROWS, portal.batch.num_rows)
            piece, portal.batch = portal.batch.slice(0, count), portal.batch.slice(count)
            columns = _columns(piece, rows.fields, portal.formats(len(rows.fields)))
            self._write(wire.data_rows(columns, count))
            sent += count
            await self._connection.drain()
        return sent

    async def _copy(self, portal: _Portal) -> int:
        assert portal.rows is not None  # Invariant: it was opened.
        fields, sent = portal.rows.fields, 0
        form = copy.Format(portal.prepared.statement.options, [each.name for each in fields])
        self._write(wire.copy_out([form.is_binary] * len(fields), is_binary=form.is_binary))
        head = form.head()
        if not form.is_binary and head:
            self._write(wire.copy_data(head))
            head = b""
        while (batch := await portal.rows.next()) is not None:
            for at in range(0, batch.num_rows, ROWS):
                piece = batch.slice(at, ROWS)
                columns = _columns(piece, fields, [int(form.is_binary)] * len(fields))
                written = [form.row(row) for row in zip(*columns, strict=True)]
                written[0], head = head + written[0], b""  # clients want the head of the binary form with a row
                self._write(b"".join(map(wire.copy_data, written)))
                sent += piece.num_rows
                await self._connection.drain()
        if end := head + form.end():
            self._write(wire.copy_data(end))
        self._write(wire.COPY_DONE)
        portal.is_done = True
        return sent

    async def _do(self, statement: Statement) -> None:
        """Do what a statement without rows does."""
        if statement.kind == "begin":
            self._status = b"T"
        elif statement.kind == "end":
            self._status = b"I"
            await self._close_portals()
        elif statement.kind == "savepoint" and statement.tag == "ROLLBACK":
            self._status = b"T"
        elif statement.kind == "set":
            self._set(statement.name, statement.value)
        elif statement.kind == "reset" and statement.name == "all":
            for name in KEPT:
                self._set(name, "default")
        elif statement.kind == "reset":
            self._set(statement.name, "default")
        elif statement.kind == "nothing" and statement.tag.startswith("DEALLOCATE"):
            self._prepared = {} if statement.tag.endswith("ALL") else self._prepared
            self._prepared.pop(statement.name, None)
        elif statement.kind == "declare":
            self._portals[statement.name] = _Portal(_Prepared(Statement("query", statement.text), []), [])
        elif statement.kind == "close":
            for name in list(self._portals) if not statement.name else [statement.name]:
                if (portal := self._portals.pop(name, None)) is not None:
                    await _close(portal)

    def _set(self, name: str, value: str) -> None:
        if name not in CLIENT_SETTINGS and "." not in name:
            raise PgError("42501", f'parameter "{name}" cannot be changed here')
        if name == "client_encoding" and value.replace("-", "").lower() not in ("utf8", "unicode", "default", ""):
            raise PgError("22023", f"the encoding {value} is not supported: results are UTF-8")
        if name.endswith("transaction_read_only") and value.lower() in ("off", "false", "0"):
            raise PgError("25006", "a transaction here is read-only: streams change through NATS")
        if name == "statement_timeout":
            self._limit_s = seconds(name, CLIENT_SETTINGS[name] if value.lower() == "default" else value)
        if name in KEPT:
            self._settings[name] = CLIENT_SETTINGS[name] if value.lower() == "default" else value
            if name in REPORTED:
                self._write(wire.parameter(REPORTED[name], value))

    def _shown(self, name: str) -> Rows:
        if name == "all":
            return self._catalogue.settings()
        if name not in self._settings:
            raise PgError("42704", f'unrecognized configuration parameter "{name}"')
        return texts(REPORTED.get(name, name), [self._settings[name]])

    async def _close_portals(self) -> None:
        portals, self._portals = list(self._portals.values()), {}
        for portal in portals:
            await _close(portal)


async def _close(portal: _Portal) -> None:
    if portal.rows is not None and not portal.is_done and portal.prepared.statement.kind != "fetch":
        with contextlib.suppress(Exception):  # the connection to the server may be gone
            await portal.rows.close()


def _columns(batch: Any, fields: Sequence[Field], formats: list[int]) -> list[list[bytes | None]]:
    try:
        return [
            encode(column, field.oid, form) for column, field, form in zip(batch.columns, fields, formats, strict=True)
        ]
    except (ValueError, ArithmeticError, TypeError, NotImplementedError) as error:
        raise PgError("22000", f"a value cannot be shown: {error}") from None
    except Exception as error:  # struct.error, and Arrow's
        raise PgError("22003", f"a value is not of the type of its column: {error}") from None


def _asked(statement: Statement, types: list[int], values: list[str | None], *, literal: bool = False) -> AskedQuery:
    """Return a query as it is asked: parameters with a type have a cast. `literal`: with the values in their places."""

    def value(number: int) -> str:
        if not 1 <= number <= len(values):
            raise PgError("42P02", f"there is no parameter ${number}")
        given = values[number - 1]
        shown = f"${number}"
        if literal:
            shown = "NULL" if given is None else "'" + given.replace("'", "''") + "'"
        kind = duckdb_type(types[number - 1], given)
        return f"CAST({shown} AS {kind})" if kind else f" {shown} "

    return statements.substituted(statement.text, value, statement.place)
