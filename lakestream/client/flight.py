"""The program that serves Flight SQL: `python -m lakestream.client.flight`.

Belongs here: calls of Flight as queries over NATS. Each login is a connection to the server as that user, so users,
permissions and limits are the server's own. The program has no access to the lake. A ticket is the query itself.

Its input begins with a line of JSON (`Settings`), and it ends with its input. It writes the bound port as a line.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import secrets
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow import flight

from lakestream import __version__
from lakestream.client.errors import ClientError, QueryFailed
from lakestream.client.loop_thread import LoopThread
from lakestream.client.sql import Answer, ask
from lakestream.protocol import flight_sql
from lakestream.protocol.flight_sql import BadMessage
from lakestream.protocol.sql import Request

MAX_SESSIONS = 256
"""Logins at the same time; the one that was not used for longest ends."""
IDLE_S = 1800.0
"""Time after which a login ends that is not used (30 min)."""
LOGIN_S = 10
"""Time for a login, in seconds."""
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


class Settings(msgspec.Struct, frozen=True):
    """The first line of the input. `certificate`: PEM files of certificate and key; () without TLS. `secure`: the
    server's port for clients has TLS."""

    host: str
    port: int
    server: str
    certificate: tuple[str, ...] = ()
    secure: bool = False


_SETTINGS = msgspec.json.Decoder(Settings)


class Session:
    """A login: a connection to the server."""

    def __init__(self, nats: Any) -> None:
        self.nats = nats
        self.used = time.monotonic()


class Sessions:
    """The logins, by tokens that are made here."""

    def __init__(self, settings: Settings, thread: LoopThread) -> None:
        self._settings, self._thread = settings, thread
        self._by_token: dict[str, Session] = {}
        self._tokens: dict[bytes, str] = {}
        """Tokens by the digest of the credentials that a client sends with each call."""
        self._lock = threading.Lock()

    def find(self, authorization: str) -> tuple[str, Session]:
        """Return token and session for the field `authorization` of a call.

        Raises:
            FlightUnauthenticatedError: the server rejects the login, or the session has ended.
        """
        kind, _, value = authorization.partition(" ")
        bearer = value if kind.lower() == "bearer" else ""
        digest = hashlib.sha256(authorization.encode()).digest()
        with self._lock:
            token = bearer if bearer in self._by_token else self._tokens.get(digest, "")
            session = self._by_token.get(token)
            if session is not None and not session.nats.is_closed:
                session.used = time.monotonic()
                return token, session
        login = {"token": bearer} if bearer else _basic(value) if kind.lower() == "basic" else {}
        session = Session(self._connect(login))
        with self._lock:
            token = secrets.token_urlsafe(32)
            self._by_token[token] = session
            self._tokens[digest] = token
            self._clean()
        return token, session

    def _connect(self, login: dict[str, str]) -> Any:
        import nats

        async def quiet(_: Exception) -> None:
            return  # failures are reported by the calls

        options: dict[str, Any] = dict(login)
        if self._settings.secure:
            # The server on this machine started this program and told it its own address.
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            options["tls"] = context
        try:
            return self._thread.run(
                nats.connect(
                    self._settings.server,
                    name="lakestream flight",
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    connect_timeout=LOGIN_S,
                    error_cb=quiet,
                    **options,
                )
            )
        except Exception:
            raise flight.FlightUnauthenticatedError("the server rejects the login") from None

    def _clean(self) -> None:
        """End logins that are too old, too many or closed."""
        now = time.monotonic()
        by_use = sorted(self._by_token.items(), key=lambda item: item[1].used, reverse=True)
        for number, (token, session) in enumerate(by_use):
            if number >= MAX_SESSIONS or now - session.used > IDLE_S or session.nats.is_closed:
                del self._by_token[token]
                self._thread.submit(session.nats.close())
        self._tokens = {digest: token for digest, token in self._tokens.items() if token in self._by_token}


def _basic(value: str) -> dict[str, str]:
    try:
        user, _, password = base64.b64decode(value + "=" * (-len(value) % 4), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise flight.FlightUnauthenticatedError("the login is not valid") from None
    return {"user": user, "password": password}


class _Login(flight.ServerMiddleware):  # type: ignore[misc]
    def __init__(self, token: str, session: Session) -> None:
        self._token, self.session = token, session

    def sending_headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._token}"}


class _Logins(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> _Login:
        given = next((values for name, values in headers.items() if name.lower() == "authorization"), [""])
        return _Login(*self._sessions.find(given[0]))


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
        super().__init__(
            f"{scheme}://{host}:{settings.port}",
            auth_handler=_Handshakes(),
            tls_certificates=[pair] if pair else None,
            middleware={"login": _Logins(Sessions(settings, thread))},
        )

    # ------------------------------------------------------------------ calls of Flight
    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        schema = self._schema(context, *_command(descriptor.command))
        endpoint = flight.FlightEndpoint(flight.Ticket(descriptor.command), [])
        return flight.FlightInfo(schema, descriptor, [endpoint], -1, -1)

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        return flight.SchemaResult(self._schema(context, *_command(descriptor.command)))

    def do_get(self, context: Any, ticket: Any) -> Any:
        name, body = _command(ticket.ticket)
        if (query := _query(name, body)) is None:
            return flight.RecordBatchStream(self._metadata(context, name, body))
        batches = self._batches(self._ask(context, Request(query, "arrow")))
        first = next(batches)
        return flight.GeneratorStream(first.schema, _all(first, batches))

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        return [("CreatePreparedStatement", "a query to execute"), ("ClosePreparedStatement", "the end of one")]

    def do_action(self, context: Any, action: Any) -> Iterator[Any]:
        if action.type == "ClosePreparedStatement":
            return
        if action.type != "CreatePreparedStatement":
            raise NotImplementedError(f"the action {action.type} is not supported")
        _, body = _command(action.body.to_pybytes())
        query = _called(lambda: flight_sql.text(body, 1)) or ""
        schema = self._described(context, query)
        values = {1: query.encode(), 2: schema.serialize().to_pybytes()}
        yield flight.Result(pa.py_buffer(flight_sql.pack("ActionCreatePreparedStatementResult", values)))

    # ------------------------------------------------------------------ queries
    def _ask(self, context: Any, request: Request) -> Answer:
        session = context.get_middleware("login").session
        found: Answer = _called(lambda: self._thread.run(ask(session.nats, request)))
        return found

    def _batches(self, answer: Answer) -> Iterator[Any]:
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
            self._thread.run(answer.cancel())

    def _schema(self, context: Any, name: str, body: bytes) -> Any:
        if (query := _query(name, body)) is None:
            return self._metadata(context, name, body, rows=False).schema
        return self._described(context, query)

    def _described(self, context: Any, query: str) -> Any:
        answer = self._ask(context, Request(query, "arrow", describe=True))
        self._thread.run(answer.cancel())
        return pa.ipc.read_schema(pa.py_buffer(answer.head.schema))

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
            answer = self._ask(context, Request("SHOW TABLES", "arrow"))
            tables = [each for batch in self._batches(answer) for each in batch.column(0).to_pylist()]
            names = [each.removeprefix(f"{SCHEMA}.`").removesuffix("`") for each in tables]
            names = [each for each in names if _is_like(flight_sql.text(body, 3), each)]
        columns: list[list[Any]] = [[value] * len(names) for value in (CATALOG, SCHEMA)] + [names, [TABLE] * len(names)]
        if with_schemas:
            found = [self._described(context, f"SELECT * FROM {SCHEMA}.`{name}`") for name in names]
            columns.append([each.serialize().to_pybytes() for each in found])
        return pa.table(columns, schema=shape)


def _command(body: bytes | None) -> tuple[str, bytes]:
    found: tuple[str, bytes] = _called(lambda: flight_sql.unpack(body or b""))
    return found


def _query(name: str, body: bytes) -> str | None:
    """Return the text of a query; None for other commands. The handle of a prepared statement is its text."""
    if name not in ("CommandStatementQuery", "CommandPreparedStatementQuery"):
        return None
    return _called(lambda: flight_sql.text(body, 1)) or ""


async def _next(batches: Any) -> Any:
    return await anext(batches, None)


def _all(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


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
    except BadMessage as error:
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


def main() -> None:
    """Serve until the input ends."""
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
