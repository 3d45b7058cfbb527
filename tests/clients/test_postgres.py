"""Tests of the protocol of Postgres: psql, psycopg and asyncpg against a server's listener."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import io
import re
import socket
import struct
import threading
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from tests.certificates import PLACE
from tests.clients.postgres_world import KEY, ROWS, address, port, psql, started
from tests.keys import Operator, creds, user_key
from tests.servers import Kind, Server
from tests.sql_escapes import EVERYTHING
from tests.wire import Wire

pytestmark = [pytest.mark.conformance, pytest.mark.heavy]

UTC = datetime.UTC


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield a server with a stream in each of two accounts, and a bucket."""
    server = started(tmp_path_factory.mktemp("postgres") / "store")
    yield server
    server.kill()


@pytest.fixture
def ann(server: Server) -> Iterator[psycopg.Connection[Any]]:
    """Yield a connection of psycopg."""
    with psycopg.connect(**address(server), autocommit=True) as connection:
        yield connection


# ---------------------------------------------------------------------- psql


def test_psql_reads_streams_without_lag(server: Server) -> None:
    with Wire(server.address, {"user": "ann", "pass": "pw"}, 20) as wire:
        seq = wire.request("orders.new", b"new").json()["seq"]
        found = psql(server, "SELECT seq, text(data) FROM ORDERS ORDER BY seq DESC LIMIT 1")
        assert (found.stdout, found.stderr) == (f"{seq}|new\n", "")
        wire.api("STREAM.MSG.DELETE.ORDERS", {"seq": seq})


@pytest.mark.parametrize(
    ("command", "part"),
    [
        (r"\d", "public|ORDERS|table|ann"),
        (r"\d orders", "time|timestamp with time zone"),
        (r"\d+ ORDERS", "data|bytea"),
        (r"\dt *.*", "kv|settings|table"),
        (r"\d kv.settings", "revision|bigint"),
        (r"\dn", "kv_history"),
        (r"\l", "lake|ann|UTF8"),
        (r"\du", "ann"),
        (r"\dp", "ORDERS"),
        (r"\db", "pg_default"),
        (r"\dv pg_catalog.pg_am", "pg_am|view"),
        ("SHOW server_version", "15.0 (lakestream)"),
        ("SHOW TABLES", "delta.`streams/ORDERS`"),
        ("DESCRIBE ORDERS", "subject|VARCHAR"),
        ("SELECT 1; SELECT 2", "1\n2\n"),
        ("COPY (SELECT seq, 'a' || chr(9) AS b FROM ORDERS) TO STDOUT", "1\ta\\t\n"),
        ("COPY ORDERS (subject, seq) TO STDOUT WITH (FORMAT csv, HEADER)", "subject,seq\norders.0,1\n"),
        ("SET search_path = public; SHOW search_path", "public"),
        ("BEGIN; SELECT 1; ROLLBACK", "1"),
        ('SELECT "public"."ORDERS"."seq" FROM "public"."ORDERS" WHERE seq = 2', "2"),
        ("SELECT count(*) FROM as_of(ORDERS, now())", "3"),
        ("SELECT 'public.orders'::regclass::oid > 0", "t"),
        ("SELECT 'public.orders'::regclass::oid::regclass::text", '"ORDERS"'),
        ("SELECT pg_typeof(1)", "integer"),
    ],
)
def test_psql_shows_what_there_is(server: Server, command: str, part: str) -> None:
    found = psql(server, command)
    assert found.stderr == ""
    assert part in found.stdout


def test_psql_shows_the_place_of_an_error(server: Server) -> None:
    found = psql(server, "SELECT seq,\n  nix FROM ORDERS")
    assert re.search(r'Referenced column "nix".*\nLINE 2:   nix FROM ORDERS\n *\^\n', found.stderr), found.stderr


# ---------------------------------------------------------------------- psycopg


VALUES: list[tuple[str, Any]] = [
    ("true", True),
    ("1::TINYINT", 1),
    ("(-2)::SMALLINT", -2),
    ("3::INTEGER", 3),
    ("(-4)::BIGINT", -4),
    ("18446744073709551615::UBIGINT", Decimal("18446744073709551615")),
    ("sum(7)", Decimal(7)),
    ("1.5::FLOAT", 1.5),
    ("0.1::DOUBLE", 0.1),
    ("1e300", 1e300),
    ("'-inf'::DOUBLE", float("-inf")),
    ("-12345.6789::DECIMAL(20,4)", Decimal("-12345.6789")),
    ("0.00001::DECIMAL(10,5)", Decimal("0.00001")),
    ("100000000::DECIMAL(18,3)", Decimal("100000000.000")),
    ("'a''b'", "a'b"),
    ("'\\xAA\\x00'::BLOB", b"\xaa\x00"),
    ("DATE '1960-02-29'", datetime.date(1960, 2, 29)),
    ("TIME '10:00:01.5'", datetime.time(10, 0, 1, 500_000)),
    ("TIMESTAMP '1999-12-31 23:59:59.000001'", datetime.datetime(1999, 12, 31, 23, 59, 59, 1)),
    ("TIMESTAMP_NS '2020-01-01 00:00:00.000001999'", datetime.datetime(2020, 1, 1, 0, 0, 0, 1)),
    ("TIMESTAMPTZ '2020-01-01 00:00:00+02'", datetime.datetime(2019, 12, 31, 22, tzinfo=UTC)),
    ("INTERVAL '2 days 3 seconds'", datetime.timedelta(days=2, seconds=3)),
    ("UUID '7f3a7e3e-3c1a-4b5e-9a4e-111111111111'", uuid.UUID("7f3a7e3e-3c1a-4b5e-9a4e-111111111111")),
    ("[1, NULL]", [1, None]),
    ("['a', 'b \"c', NULL, '', 'null', '{']", ["a", 'b "c', None, "", "null", "{"]),
    ("[]::INTEGER[]", []),
    ("[DATE '2020-01-01']", [datetime.date(2020, 1, 1)]),
    ("{'a': [1, NULL], 'b': '\\x00'::BLOB}", {"a": [1, None], "b": "AA=="}),
    ("[[1], [2]]", [[1], [2]]),
    ("MAP {'k': 1.5}", {"k": 1.5}),
    ("'{\"x\": [1]}'::JSON", {"x": [1]}),
    ("'b'::ENUM('a', 'b')", "b"),
    ("NULL", None),
]


@pytest.mark.parametrize("binary", [False, True])
def test_psycopg_gets_values_of_all_types(ann: psycopg.Connection[Any], binary: bool) -> None:
    chosen = ", ".join(f"{each} AS v{number}" for number, (each, _) in enumerate(VALUES))
    row = ann.execute(f"SELECT {chosen}", binary=binary).fetchone()
    assert row is not None
    assert [*row] == [
        pytest.approx(value) if isinstance(value, float) and value < 1e300 else value for _, value in VALUES
    ]


@pytest.mark.parametrize("form", ["%s", "%t", "%b"])
@pytest.mark.parametrize(
    "value",
    [
        1, -(2**40), 2**70, 1.5, Decimal("-1.10"), Decimal("12345.000000000000000000001"), "x'y; --", True, None,
        b"\0\1'", datetime.date(2020, 1, 2), datetime.datetime(2020, 1, 2, 3, 4, 5, 6),
        datetime.datetime(2020, 1, 2, 3, 4, 5, 6, tzinfo=UTC), datetime.time(1, 2, 3), uuid.UUID(int=5), [1, None, 3],
        datetime.timedelta(days=1, seconds=2),
    ],
    ids=str,
)  # fmt: skip
def test_psycopg_sends_typed_parameters(ann: psycopg.Connection[Any], form: str, value: Any) -> None:
    row = ann.execute(f"SELECT {form} AS v", (value,)).fetchone()
    assert row == (value,)


def test_parameters_of_conditions(ann: psycopg.Connection[Any]) -> None:
    query = "SELECT seq FROM ORDERS WHERE seq > %s AND subject = %s AND time < %s AND seq = ANY(%s) LIMIT %s"
    found = ann.execute(query, (1, "orders.2", datetime.datetime.now(UTC), [1, 2, 3], 5)).fetchall()
    assert found == [(3,)]


def test_rows_are_streamed_by_cursors_and_copies(ann: psycopg.Connection[Any]) -> None:
    with ann.transaction(), ann.cursor(name="c") as cursor:
        cursor.itersize = 1000
        cursor.execute("SELECT range FROM range(2500)")
        assert [row[0] for row in cursor] == [*range(2500)]
    with ann.cursor() as cursor:
        with cursor.copy("COPY (SELECT range AS a, 'x' AS b FROM range(3000)) TO STDOUT (FORMAT BINARY)") as copy:
            copy.set_types(["int8", "text"])
            assert [*copy.rows()] == [(number, "x") for number in range(3000)]
        with cursor.copy("COPY (SELECT NULL AS a, 'a\\b' AS b WHERE false) TO STDOUT (FORMAT BINARY)") as copy:
            assert [*copy.rows()] == []
        cursor.execute("SELECT range FROM range(300000)")
        assert len(cursor.fetchall()) == 300_000


def test_a_query_is_cancelled(server: Server, ann: psycopg.Connection[Any]) -> None:
    timer = threading.Timer(1, ann.cancel)
    timer.start()
    with pytest.raises(psycopg.errors.QueryCanceled, match="user request"):
        ann.execute("SELECT count(*) FROM range(1000000) a, range(1000000) b")
    timer.join()
    assert ann.execute("SELECT 1").fetchone() == (1,)
    for limit in ("100", "'100ms'", "'0.1 s'"):
        ann.execute(f"SET statement_timeout = {limit}")
        with pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"):
            ann.execute("SELECT count(*) FROM range(1000000) a, range(1000000) b")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match='"statement_timeout": "soon"'):
        ann.execute("SET statement_timeout = 'soon'")
    with psycopg.connect(**address(server)) as other:  # as many queries as the account may have run again
        assert other.execute("SELECT count(*) FROM ORDERS").fetchone() == (ROWS,)


def test_settings_of_the_connection_apply(server: Server) -> None:
    options = r"-c statement_timeout=1500ms --search-path=public -c geqo=off -capplication_name=a\ b"
    with psycopg.connect(**address(server), options=options) as connection:
        found = [connection.execute(f"SHOW {name}").fetchone() for name in ("statement_timeout", "application_name")]
    assert found == [("1500ms",), ("a b",)]


def test_an_error_ends_a_transaction(ann: psycopg.Connection[Any]) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable), ann.transaction():
        ann.execute("SELECT * FROM NIX")
    ann.execute("BEGIN")
    with pytest.raises(psycopg.errors.UndefinedColumn):
        ann.execute("SELECT nix FROM ORDERS")
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        ann.execute("SELECT 1")
    ann.execute("ROLLBACK")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        ann.execute("INSERT INTO ORDERS VALUES (1)")
    with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="max_rows"):
        ann.execute("SELECT range FROM range(400001)")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("SELECT 1; SELECT nix FROM public.ORDERS", "nix"),
        ("SELECT seq FROM public.ORDERS\nWHERE seq = 1 AND\n nix(seq)", "nix"),
        ("COPY (SELECT nix FROM ORDERS) TO STDOUT", "nix"),
        ("COPY ORDERS (nix) TO STDOUT", None),
        ("BEGIN; DECLARE c CURSOR FOR SELECT nix FROM ORDERS; FETCH c", None),
    ],
)
def test_the_place_of_an_error_is_one_in_what_the_client_sent(
    ann: psycopg.Connection[Any], text: str, place: str | None
) -> None:
    def ask() -> None:
        if text.startswith("COPY"):
            with ann.cursor().copy(text) as rows:
                list(rows)
        else:
            ann.execute(text)

    with pytest.raises(psycopg.Error) as failed:
        ask()
    found = failed.value.diag
    assert found.statement_position == (None if place is None else str(text.index(place) + 1))
    assert "^" not in f"{found.message_primary}{found.message_detail}"


# ---------------------------------------------------------------------- asyncpg


@pytest.mark.parametrize(
    ("text", "values", "place"),
    [
        ("SELECT seq FROM ORDERS WHERE seq = $1 AND nix = $2", (1, "a"), "nix"),
        ("SELECT $1::int, nix FROM public.ORDERS", (1,), "nix"),
        ("SELECT seq FROM ORDERS\nWHERE seq = $1 AND\n nix(seq) = 1", (1,), "nix"),
        ("SELECT seq FROM ORDERS WHERE seq = $1 AN", (1,), "AN"),
        ("SELECT seq FROM public.NIX WHERE seq = $1", (1,), "NIX"),
        ("SELECT $1::int, subject::DATE FROM ORDERS", (1,), "::DATE"),
    ],
)
async def test_an_error_with_parameters_shows_nothing_of_the_query_as_it_is_asked(
    server: Server, text: str, values: tuple[Any, ...], place: str
) -> None:
    login = {"host": "127.0.0.1", "port": port(server), "user": "ann", "password": "pw", "database": "lake"}
    connection = await asyncpg.connect(**login)
    try:
        with pytest.raises(asyncpg.PostgresError) as failed:
            await connection.fetch(text, *values)
    finally:
        await connection.close()
    assert failed.value.position == str(text.rindex(place) + 1)
    assert not re.search(r"CAST|\^|BIGINT", f"{failed.value.message} {failed.value.detail}")


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ("$1::INT", ["?column?"]),
        ("$1::INT + 1, upper($2::TEXT), $1 AS a, seq", ["?column?", "upper", "a", "seq"]),
        ("seq, *, coalesce(seq, $1::INT), $2::TEXT", ["seq", "...", "coalesce", "?column?"]),
        ("CASE WHEN $1::INT > 0 THEN $2::TEXT END, seq", ["case", "seq"]),
    ],
)
@pytest.mark.parametrize("source", ["FROM ORDERS", "FROM (SELECT 1 AS seq)"])
async def test_columns_of_parameters_are_named_as_in_postgres(
    server: Server, columns: str, names: list[str], source: str
) -> None:
    login = {"host": "127.0.0.1", "port": port(server), "user": "ann", "password": "pw", "database": "lake"}
    connection = await asyncpg.connect(**login)
    values = [1, "x"][: 1 + ("$2" in columns)]
    try:
        row = await connection.fetchrow(f"SELECT {columns} {source} LIMIT 1", *values)
    finally:
        await connection.close()
    found = [*row.keys()]
    at = names.index("...") if "..." in names else len(names)
    assert (found[:at], found[len(found) - len(names[at + 1 :]) :]) == (names[:at], names[at + 1 :])


async def test_asyncpg_learns_the_types_of_parameters(server: Server) -> None:
    login = {"host": "127.0.0.1", "port": port(server), "user": "ann", "password": "pw", "database": "lake"}
    connection = await asyncpg.connect(**login)
    query = "SELECT seq, data FROM ORDERS WHERE seq > $1 AND subject = $2 AND time > $3 LIMIT $4"
    rows = await connection.fetch(query, 1, "orders.1", datetime.datetime(2020, 1, 1, tzinfo=UTC), 5)
    assert [tuple(row) for row in rows] == [(2, b'{"n": 1}')]
    rows = await connection.fetch("SELECT seq FROM ORDERS WHERE seq = ANY($1) OR seq IN ($2, 9) ORDER BY 1", [1], 3)
    assert [row["seq"] for row in rows] == [1, 3]
    row = await connection.fetchrow(
        "SELECT $1::INT + 1 AS a, $2 AS b, $3::DOUBLE AS c, $4::DATE AS d", 1, "x", 0.5, datetime.date(2020, 1, 1)
    )
    assert tuple(row) == (2, "x", 0.5, datetime.date(2020, 1, 1))
    async with connection.transaction():
        cursor = await connection.cursor("SELECT range FROM range(10000)")
        assert [len(await cursor.fetch(each)) for each in (7, 5, 20_000)] == [7, 5, 9988]
    written = io.BytesIO()
    query = "SELECT range AS a, NULL AS b FROM range(2)"
    assert await connection.copy_from_query(query, output=written, format="csv", header=True) == "COPY 2"
    assert written.getvalue() == b"a,b\n0,\n1,\n"
    with pytest.raises(TimeoutError):
        await connection.fetch("SELECT count(*) FROM range(1000000) a, range(1000000) b", timeout=1)
    assert await connection.fetchval("SELECT 5") == 5
    await connection.close()
    async with asyncpg.create_pool(**login, min_size=8, max_size=8) as pool:  # more than the account may ask at once
        query = "SELECT count(*) FROM ORDERS"
        assert await asyncio.gather(*[pool.fetchval(query) for _ in range(8)]) == [ROWS] * 8
        query = "SELECT count(*) FROM information_schema.tables WHERE table_schema = 'public'"
        assert await asyncio.gather(*[pool.fetchval(query) for _ in range(8)]) == [2] * 8


# ---------------------------------------------------------------------- logins and limits


@pytest.mark.parametrize(
    ("user", "password", "stream"),
    [("bob", "pw", "SECRET"), ("hashed", "pw", "ORDERS"), ("any", KEY.seed, "ORDERS"), ("one", "pw", "ORDERS")],
)
def test_users_and_permissions_are_those_of_the_server(server: Server, user: str, password: str, stream: str) -> None:
    with psycopg.connect(**address(server, user, password)) as connection:
        assert connection.execute(f"SELECT count(*) FROM {stream}").fetchone() == (ROWS,)


@pytest.mark.parametrize(
    ("user", "password"), [("ann", "wrong"), ("hashed", "wrong"), ("nobody", "pw"), ("any", user_key("x").seed)]
)
def test_wrong_logins_are_rejected(server: Server, user: str, password: str) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(**address(server, user, password))


def test_a_user_without_permission_reads_nothing(server: Server) -> None:
    for user, query in (("none", "SELECT 1 FROM ORDERS"), ("one", "SELECT * FROM KV_settings"), ("one", "SHOW TABLES")):
        with psycopg.connect(**address(server, user)) as connection:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(query)
            connection.rollback()
            assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)


def test_users_of_operator_mode_log_in_with_their_credentials_over_tls(tmp_path: Path) -> None:
    operator = Operator()
    files = f'cert_file: "{PLACE}/server.pem", key_file: "{PLACE}/server.key"'
    sql = f'sql {{ postgres {{ listen: "0.0.0.0:-1", tls {{ {files} }} }} }}\n'
    server = Server(Kind.OURS, tmp_path / "store", config=f'{operator.config}\nlake {{ seal_age: "1h" }}\n{sql}')
    server.start(timeout=90)
    try:
        where = {"host": "localhost", "port": port(server), "user": "any", "dbname": "lake"}
        safe = {"sslmode": "verify-full", "sslrootcert": str(server.certificates / "ca.pem")}
        token = operator.user_token(bearer_token=True)
        for password in (creds(operator.token, operator.user), f"{operator.token}:{operator.user.seed}", token):
            with psycopg.connect(**where, **safe, password=password) as connection:
                assert connection.execute("SELECT 1 FROM range(1)").fetchone() == (1,)
                assert connection.pgconn.ssl_in_use
        with socket.create_connection(("localhost", port(server)), 20) as plain:  # CVE-2021-23222 of Postgres
            plain.sendall(struct.pack(">II", 8, 80877103) + b"before TLS")
            assert plain.recv(4096).startswith(b"E")
            assert plain.recv(4096) == b""
        for password in (f"{operator.token}:{user_key('other').seed}", operator.token, "pw"):
            with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
                psycopg.connect(**where, **safe, password=password)
    finally:
        server.kill()


def test_connections_that_do_not_log_in_keep_no_client_out(server: Server) -> None:
    with contextlib.ExitStack() as made:
        half = [made.enter_context(socket.create_connection(("127.0.0.1", port(server)), 20)) for _ in range(50)]
        with psycopg.connect(**address(server)) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        assert half[0].recv(1) == b"", "the oldest made room"


def test_a_listener_has_so_many_connections(server: Server) -> None:
    with contextlib.ExitStack() as made:
        for _ in range(20):
            made.enter_context(psycopg.connect(**address(server)))
        with pytest.raises(psycopg.OperationalError, match="20 connections already"):
            psycopg.connect(**address(server))
    for _ in range(3):
        with psycopg.connect(**address(server)) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_reload_changes_passwords_and_ends_logins(tmp_path: Path) -> None:
    config = "authorization {{ users: [{{ user: ann, password: {} }}] }}\n{}"
    rest = 'lake { seal_age: "1h" }\nsql { postgres { listen: "127.0.0.1:-1" } }\n'
    server = Server(Kind.OURS, tmp_path / "store", config=config.format("old", rest))
    server.start(timeout=90)
    try:
        with psycopg.connect(**address(server, password="old")) as connection:
            server.reload(config.format("new", rest))
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT count(*) FROM range(1)")
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(**address(server, password="old"))
        with psycopg.connect(**address(server, password="new")) as connection:
            assert connection.execute("SELECT count(*) FROM range(1)").fetchone() == (1,)
            name = connection.execute("SELECT current_user").fetchone()
            assert name == ("ann",)
    finally:
        server.kill()


def test_a_server_without_logins_wants_none(tmp_path: Path) -> None:
    config = 'lake { seal_age: "1h" }\nsql { postgres { listen: "127.0.0.1:-1" } }\n'
    server = Server(Kind.OURS, tmp_path / "store", config=config)
    server.start(timeout=90)
    try:
        with psycopg.connect(host="127.0.0.1", port=port(server), user="anybody", dbname="lake") as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    finally:
        server.kill()


# ---------------------------------------------------------------------- confinement


@pytest.mark.parametrize("query", EVERYTHING)
def test_queries_of_anything_else_are_refused(server: Server, ann: psycopg.Connection[Any], query: str) -> None:
    """Catalogues and settings are those of Postgres here, which show nothing of this machine."""
    asked = query.replace("{lake}", str(server.store / "lake")).replace("\x00", "")
    shown = ""
    with contextlib.nullcontext() if query in ANSWERED else pytest.raises(psycopg.Error) as refused:
        cursor = ann.execute(asked.encode())
        shown = str(cursor.fetchall()) if cursor.description else ""
        assert cursor.description or cursor.statusmessage is None, cursor.statusmessage
        if not asked:
            raise psycopg.ProgrammingError("there is nothing to be refused")
    if refused is not None:
        assert refused.value.sqlstate not in ("XX000", "08006"), refused.value
        shown = f"{refused.value.diag.message_primary} {refused.value.diag.message_detail}"  # libpq adds the query
    for word in (str(server.store), "root:", "SECRET'", "/root"):
        assert word not in shown
    assert ann.execute("SELECT 1").fetchone() == (1,)


ANSWERED = {
    "FROM pg_catalog.pg_settings",
    "FROM information_schema.tables",
    "SELECT current_setting('secret_directory')",
    "SELECT (SELECT max(current_setting('home_directory')))",
    "SELECT 1; SELECT 2",
}
"""Queries of Postgres' catalogues, and two statements in one text."""
