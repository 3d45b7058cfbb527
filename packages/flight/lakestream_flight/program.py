"""The program that serves Flight SQL: `python -m lakestream_flight.program`.

Belongs here: calls of Flight as queries over NATS. Each login is a connection to the server as that user, so users,
permissions and limits are the server's own. The program has no access to the lake. The handle of a prepared statement
is the query itself, with its parameters; a ticket is that, and the name of the result that GetFlightInfo has begun.
logins.py has the logins, begun.py the results that wait to be read.

Its input begins with a line of JSON (`Settings`), and it ends with its input. It writes the bound port as a line.
"""

from __future__ import annotations

import datetime
import math
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow import flight

from lakestream import __version__
from lakestream.loop_thread import LoopThread
from lakestream.protocol import sql
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream.protocol.sql import SqlRequest, Value
from lakestream_client.errors import ClientError, QueryFailed
from lakestream_client.sql import Answer, ask
from lakestream_flight import messages as flight_sql
from lakestream_flight.begun import BegunResult, BegunResults, Recent
from lakestream_flight.logins import FlightLogins, Settings
from lakestream_flight.messages import BadFlightMessage

MAX_PARAMETERS = 1 << 20
"""Maximum size of the parameters of a statement, in bytes (1 MiB)."""
END_S = 1.0
"""Time to wait for the end of a query that nobody reads any more (1 s)."""
CATALOG, SCHEMA, TABLE = "lakestream", "delta", "TABLE"

_CATALOGS = pa.schema([pa.field("catalog_name", pa.string(), nullable=False)])
_SCHEMAS = pa.schema([("catalog_name", pa.string()), pa.field("db_schema_name", pa.string(), nullable=False)])
_TABLES = pa.schema(
    [
        ("catalog_name", pa.string()),
        ("db_schema_name", pa.string()),
        pa.field("table_name", pa.string(), nullable=False),
        pa.field("table_type", pa.string(), nullable=False),
    ]
)
_TABLE_TYPES = pa.schema([pa.field("table_type", pa.string(), nullable=False)])
_INFO_VALUES = [
    pa.field("string_value", pa.string()),
    pa.field("bool_value", pa.bool_()),
    pa.field("bigint_value", pa.int64()),
    pa.field("int32_bitmask", pa.int32()),
    pa.field("string_list", pa.list_(pa.string())),
    pa.field("int32_to_int32_list_map", pa.map_(pa.int32(), pa.list_(pa.int32()))),
]
_INFO = pa.schema(
    [
        pa.field("info_name", pa.uint32(), nullable=False),
        pa.field("value", pa.dense_union(_INFO_VALUES), nullable=False),
    ]
)
_INFOS: dict[int, str | bool] = {
    0: "lakestream",  # FLIGHT_SQL_SERVER_NAME
    1: __version__,
    2: pa.__version__,  # FLIGHT_SQL_SERVER_ARROW_VERSION
    3: True,  # FLIGHT_SQL_SERVER_READ_ONLY
    4: True,  # FLIGHT_SQL_SERVER_SQL
    5: False,  # FLIGHT_SQL_SERVER_SUBSTRAIT
    500: False,  # SQL_DDL_CATALOG
    501: False,  # SQL_DDL_SCHEMA
    502: False,  # SQL_DDL_TABLE
    504: "`",  # SQL_IDENTIFIER_QUOTE_CHAR
}


class PreparedStatement(msgspec.Struct, frozen=True):
    """A prepared statement: its handle, as JSON. `names`: of its parameters."""

    sql: str
    names: list[str] = []
    parameters: dict[str, Value] = {}


_BEGUN = "TicketStatementQuery"
"""Name of the ticket of a query: the name of its result, and the command."""
_SETTINGS = msgspec.json.Decoder(Settings)
_PREPARED = msgspec.json.Decoder(PreparedStatement)
_INTEGERS = range(-(1 << 63), 1 << 64)


class _Handshakes(flight.ServerAuthHandler):  # type: ignore[misc]
    """Accepts handshakes: the middleware has decided by then."""

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        return

    def is_valid(self, token: bytes) -> bytes:
        return b""


class Gateway(flight.FlightServerBase):  # type: ignore[misc]
    """The Flight SQL server."""

    def __init__(self, settings: Settings, thread: LoopThread) -> None:
        scheme = "grpc+tls" if settings.certificate else "grpc"
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        pair = tuple(Path(path).read_bytes() for path in settings.certificate)
        self._thread = thread
        self._begun = BegunResults()
        self._heads: Recent[tuple[object, str], sql.ResultHead] = Recent()
        super().__init__(
            f"{scheme}://{host}:{settings.port}",
            auth_handler=_Handshakes(),
            tls_certificates=[pair] if pair else None,
            middleware={"login": FlightLogins(settings, thread)},
        )

    # ------------------------------------------------------------------ calls of Flight
    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        name, body = _command(descriptor.command)
        ticket = descriptor.command
        if (query := _query(name, body)) is None:
            schema = self._schema(context, name, body)
        else:
            result = BegunResult(self._batches(self._ask(context, _request(query))))
            schema, kept = result.schema, self._begun.keep(context.get_middleware("login").session, result)
            ticket = flight_sql.pack(_BEGUN, {1: kept, 2: ticket})
        return flight.FlightInfo(schema, descriptor, [flight.FlightEndpoint(flight.Ticket(ticket), [])], -1, -1)

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        return flight.SchemaResult(self._schema(context, *_command(descriptor.command)))

    def do_get(self, context: Any, ticket: Any) -> Any:
        name, body = _command(ticket.ticket)
        result = None
        if name == _BEGUN:
            found = _called(lambda: dict(flight_sql.fields(body)))
            result = self._begun.take(context.get_middleware("login").session, found.get(1))
            name, body = _command(found.get(2))
        if (query := _query(name, body)) is None:
            return flight.RecordBatchStream(self._metadata(context, name, body))
        result = result or BegunResult(self._batches(self._ask(context, _request(query))))
        return flight.GeneratorStream(result.schema, result.batches())

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        return [("CreatePreparedStatement", "a query to execute"), ("ClosePreparedStatement", "the end of one")]

    def do_action(self, context: Any, action: Any) -> Iterator[Any]:
        if action.type == "ClosePreparedStatement":
            return
        if action.type != "CreatePreparedStatement":
            raise NotImplementedError(f"the action {action.type} is not supported")
        _, body = _command(action.body.to_pybytes())
        query = _called(lambda: flight_sql.text(body, 1)) or ""
        head = self._prepared(context, query)
        values = {
            1: msgspec.json.encode(PreparedStatement(query, head.parameters)),
            2: _schema(head).serialize().to_pybytes(),
        }
        if head.parameters:
            wanted = pa.schema([(name, pa.string()) for name in head.parameters])
            values[3] = wanted.serialize().to_pybytes()
        yield flight.Result(pa.py_buffer(flight_sql.pack("ActionCreatePreparedStatementResult", values)))

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Take the parameters of a prepared statement, and answer with the handle that has them."""
        name, body = _command(descriptor.command)
        if name != "CommandPreparedStatementQuery" or (query := _query(name, body)) is None:
            raise NotImplementedError(f"the command {name} is not supported")
        rows: list[list[Any]] = []
        size = 0
        columns = reader.schema.names
        for chunk in reader:
            size += chunk.data.nbytes
            if size > MAX_PARAMETERS:
                raise pa.ArrowInvalid(f"the parameters have more than {MAX_PARAMETERS:,} bytes")
            rows += [[column[row].as_py() for column in chunk.data.columns] for row in range(chunk.data.num_rows)]
        if len(rows) != 1:
            raise pa.ArrowInvalid(f"a query takes one row of parameters, not {len(rows)}")
        values = _parameters(query.names, columns, rows[0])
        handle = msgspec.json.encode(PreparedStatement(query.sql, query.names, values))
        writer.write(pa.py_buffer(flight_sql.message({1: handle})))

    # ------------------------------------------------------------------ queries
    def _ask(self, context: Any, request: SqlRequest) -> Answer:
        session = context.get_middleware("login").session
        found: Answer = _called(lambda: self._thread.run(ask(session.nats, request)))
        return found

    def _batches(self, answer: Answer) -> Generator[Any]:
        """Yield the batches of a result; of one without rows an empty one."""
        batches = answer.batches()
        found = False
        try:
            while (batch := _called(lambda: self._thread.run(_next(batches)))) is not None:
                found = True
                yield batch
            if not found:
                yield pa.RecordBatch.from_pylist([], answer.schema)
        finally:
            self._thread.run(answer.cancel(END_S))

    def _schema(self, context: Any, name: str, body: bytes) -> Any:
        if (query := _query(name, body)) is None:
            return self._metadata(context, name, body, rows=False).schema
        return _schema(self._head(context, query))

    def _prepared(self, context: Any, text: str) -> sql.ResultHead:
        """Return the description of a query without values, which may be some seconds old: executing it tells the
        schema anew, and drivers prepare each query."""
        key = context.get_middleware("login").session, text
        if (found := self._heads.find(key)) is None:
            found = self._heads.keep(key, self._head(context, PreparedStatement(text)))
        return found

    def _head(self, context: Any, query: PreparedStatement) -> sql.ResultHead:
        """Return the description of a query."""
        answer = self._ask(context, SqlRequest(query.sql, "arrow", query.parameters, describe=True))
        self._thread.run(answer.cancel())
        return answer.head

    # ------------------------------------------------------------------ metadata
    def _metadata(self, context: Any, name: str, body: bytes, *, rows: bool = True) -> Any:
        """Return the answer to a command about tables and the like."""
        if name == "CommandGetCatalogs":
            return pa.table([[CATALOG]], schema=_CATALOGS)
        if name == "CommandGetDbSchemas":
            found = _is_wanted(body)
            return pa.table([[CATALOG] * found, [SCHEMA] * found], schema=_SCHEMAS)
        if name == "CommandGetTableTypes":
            return pa.table([[TABLE]], schema=_TABLE_TYPES)
        if name == "CommandGetSqlInfo":
            return _infos(_called(lambda: flight_sql.numbers(body, 1)))
        if name == "CommandGetTables":
            return self._tables(context, body, rows=rows)
        raise NotImplementedError(f"the command {name} is not supported")

    def _tables(self, context: Any, body: bytes, *, rows: bool) -> Any:
        with_schemas = flight_sql.flag(body, 5)
        shape = _TABLES.append(pa.field("table_schema", pa.binary(), nullable=False)) if with_schemas else _TABLES
        types = flight_sql.texts(body, 4)
        names: list[str] = []
        if rows and _is_wanted(body) and (not types or TABLE in types):
            answer = self._ask(context, SqlRequest("SHOW TABLES", "arrow"))
            tables = [each for batch in self._batches(answer) for each in batch.column(0).to_pylist()]
            names = [each.removeprefix(f"{SCHEMA}.`").removesuffix("`") for each in tables]
            names = [each for each in names if _is_like(flight_sql.text(body, 3), each)]
        columns: list[list[Any]] = [[value] * len(names) for value in (CATALOG, SCHEMA)] + [names, [TABLE] * len(names)]
        if with_schemas:
            found = [self._head(context, PreparedStatement(f"SELECT * FROM {SCHEMA}.`{name}`")) for name in names]
            columns.append([_schema(each).serialize().to_pybytes() for each in found])
        return pa.table(columns, schema=shape)


def _command(body: bytes | None) -> tuple[str, bytes]:
    found: tuple[str, bytes] = _called(lambda: flight_sql.unpack(body or b""))
    return found


def _query(name: str, body: bytes) -> PreparedStatement | None:
    """Return a query; None for other commands."""
    if name not in ("CommandStatementQuery", "CommandPreparedStatementQuery"):
        return None
    text = _called(lambda: flight_sql.text(body, 1)) or ""
    if name == "CommandStatementQuery":
        return PreparedStatement(text)
    try:
        return _PREPARED.decode(text)
    except DECODE_ERRORS:
        raise pa.ArrowInvalid("this is not the handle of a prepared statement") from None


def _request(query: PreparedStatement) -> SqlRequest:
    return SqlRequest(query.sql, "arrow", query.parameters)


def _schema(head: sql.ResultHead) -> Any:
    return pa.ipc.read_schema(pa.py_buffer(head.schema))


def _parameters(names: Sequence[str], columns: Sequence[str], values: Sequence[Any]) -> dict[str, Value]:
    """Return the values of parameters by name: that of the column, or else by their order.

    Raises:
        ArrowInvalid: their number is another one, or a value cannot be a parameter.
    """
    if len(columns) != len(names):
        raise pa.ArrowInvalid(f"the query has {len(names)} parameters, not {len(columns)}")
    by = columns if set(columns) == set(names) else names
    return {name: _parameter(name, value) for name, value in zip(by, values, strict=True)}


def _parameter(name: str, value: Any) -> Value:
    """Return a value as a request has it: what JSON has no type for is a text, which SQL converts where it is used."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if value in _INTEGERS else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return format(value, "f")
    raise pa.ArrowInvalid(f"parameter {name}: a {type(value).__name__} cannot be one; use a text, a number or a time")


async def _next(batches: Any) -> Any:
    return await anext(batches, None)


def _called(call: Callable[[], Any]) -> Any:
    """Return what a call returns, with errors as Flight has them."""
    try:
        return call()
    except QueryFailed as error:
        text = f"{error.code} {error}"
        if error.code == 403:
            raise flight.FlightUnauthorizedError(text) from None
        if error.code == 404:
            raise pa.ArrowKeyError(text) from None
        if error.code == 408:
            raise flight.FlightTimedOutError(text) from None
        if error.code == 499:
            raise flight.FlightCancelledError(text) from None
        if error.code in (429, 503):
            raise flight.FlightUnavailableError(text) from None
        raise pa.ArrowInvalid(text) from None
    except BadFlightMessage as error:
        raise pa.ArrowInvalid(str(error)) from None
    except ClientError as error:
        raise flight.FlightUnavailableError(str(error)) from None


def _is_wanted(body: bytes) -> bool:
    """Return True if a command's catalog and pattern of schemas match the only ones."""
    return flight_sql.text(body, 1) in (None, "", CATALOG) and _is_like(flight_sql.text(body, 2), SCHEMA)


def _is_like(pattern: str | None, name: str) -> bool:
    """Return True if a name matches a pattern of LIKE; None matches all."""
    if pattern is None:
        return True
    parts = (".*" if each == "%" else "." if each == "_" else re.escape(each) for each in pattern)
    return re.fullmatch("".join(parts), name, re.DOTALL) is not None


def _infos(wanted: list[int]) -> Any:
    names = [name for name in _INFOS if not wanted or name in wanted]
    values = [_INFOS[name] for name in names]
    kinds = [1 if isinstance(value, bool) else 0 for value in values]
    offsets = [kinds[:at].count(kind) for at, kind in enumerate(kinds)]
    children = [
        pa.array([value for value in values if not isinstance(value, bool)], pa.string()),
        pa.array([value for value in values if isinstance(value, bool)], pa.bool_()),
        *(pa.array([], field.type) for field in _INFO_VALUES[2:]),
    ]
    union = pa.UnionArray.from_dense(
        pa.array(kinds, pa.int8()), pa.array(offsets, pa.int32()), children, [field.name for field in _INFO_VALUES]
    )
    return pa.table([pa.array(names, pa.uint32()), union], schema=_INFO)


def _kind_alone(*error: Any, **_: Any) -> list[str]:
    return [getattr(error[0], "__name__", "error")]


def main() -> None:
    """Serve until the input ends."""
    # Arrow adds the stack of an error to its text, with the paths of this machine.
    traceback.format_exception = _kind_alone
    settings = _SETTINGS.decode(sys.stdin.buffer.readline())
    gateway = Gateway(settings, LoopThread("nats"))
    print(gateway.port, flush=True)
    threading.Thread(target=_end_with_input, daemon=True).start()
    gateway.serve()


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()
