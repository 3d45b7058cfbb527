"""Tests of Flight SQL: ADBC's driver and plain Flight clients against a server's listener."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import adbc_driver_flightsql.dbapi as adbc
import pyarrow as pa
import pytest
from adbc_driver_manager import Error
from pyarrow import flight

from lakestream_flight import messages as flight_sql
from tests.keys import Operator, user_key
from tests.servers import Kind, Server
from tests.sql_escapes import EVERYTHING
from tests.wire import Wire

pytestmark = [pytest.mark.conformance, pytest.mark.heavy]

CONFIG = """
accounts {
  A { jetstream: enabled, users: [
    { user: ann, password: pw }
    { nkey: USER }
    { user: none, password: pw, permissions { publish: { deny: "$LAKE.API.SQL" } } } ] }
  B { jetstream: enabled, users: [{ user: bob, password: pw }] }
}
lake { seal_age: "1h" }
sql { flight: "127.0.0.1:-1", max_rows: 100000 }
""".replace("USER", user_key("flight").public)
ROWS = 3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield a server with a stream in each of two accounts."""
    server = Server(Kind.OURS, tmp_path_factory.mktemp("flight") / "store", config=CONFIG)
    server.start(timeout=90)
    for user, stream in (("ann", "ORDERS"), ("bob", "SECRET")):
        with Wire(server.address, {"user": user, "pass": "pw"}, 20) as wire:
            wire.api(f"STREAM.CREATE.{stream}", {"name": stream, "subjects": [f"{stream.lower()}.>"]})
            for number in range(ROWS):
                wire.request(f"{stream.lower()}.{number}", b"%d" % number)
            wire.request(f"$LAKE.API.FLUSH.{stream}")
    yield server
    server.kill()


def uri(server: Server) -> str:
    """Return the address of the listener."""
    found = re.search(r"Flight SQL on (\S+)", server.log())
    assert found is not None
    return f"grpc://{found[1]}"


def connected(server: Server, user: str = "ann", password: str = "pw") -> adbc.Connection:
    """Return a connection of ADBC's driver."""
    login = {"username": user, "password": password}
    return adbc.connect(uri(server), db_kwargs=login, autocommit=True)


def test_adbc_reads_streams_without_lag(server: Server) -> None:
    with Wire(server.address, {"user": "ann", "pass": "pw"}, 20) as wire:
        seq = wire.request("orders.new", b"new").json()["seq"]
    with connected(server) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT seq, text(data) AS d FROM ORDERS ORDER BY seq DESC")
        assert cursor.fetchone() == (seq, "new")
        cursor.execute("SELECT range AS a FROM range(50000)")
        assert cursor.fetch_arrow_table().column("a").to_pylist() == list(range(50_000))
        cursor.execute("SELECT 1 AS a WHERE false")
        assert cursor.fetch_arrow_table().schema == pa.schema([("a", pa.int32())])
        cursor.execute("SHOW TABLES")
        assert [row[0] for row in cursor.fetchall()] == ["delta.`streams/ORDERS`"]


def test_adbc_shows_what_there_is(server: Server) -> None:
    with connected(server) as connection:
        assert connection.adbc_get_info()["vendor_name"] == "lakestream"
        assert connection.adbc_get_table_types() == ["TABLE"]
        (catalog,) = connection.adbc_get_objects(depth="all").read_all().to_pylist()
        assert catalog["catalog_name"] == "lakestream"
        (schema,) = catalog["catalog_db_schemas"]
        (table,) = schema["db_schema_tables"]
        assert (schema["db_schema_name"], table["table_name"]) == ("delta", "streams/ORDERS")
        assert [each["column_name"] for each in table["table_columns"]][:2] == ["subject", "seq"]
        assert connection.adbc_get_table_schema("streams/ORDERS", db_schema_filter="delta").names[:2] == [
            "subject",
            "seq",
        ]


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT * FROM delta.`accounts/B/streams/SECRET`", "404"),
        ("SELECT * FROM read_text('/etc/passwd')", "403"),
        ("SELECT nothing", "400"),
        ("COPY (SELECT 1) TO '/tmp/x.csv'", "400"),
        ("SELECT * FROM range(100001)", "413"),
    ],
)
def test_the_rules_are_those_of_the_service(server: Server, query: str, reason: str) -> None:
    with (
        connected(server) as connection,
        connection.cursor() as cursor,
        pytest.raises(Error, match=reason) as failed,
    ):
        cursor.execute(query).fetchall()
    assert "Traceback" not in str(failed.value)
    assert ".py" not in str(failed.value), "no path of the server's machine"


@pytest.mark.parametrize("query", EVERYTHING)
def test_queries_of_anything_else_are_refused(server: Server, query: str) -> None:
    with connected(server) as connection, connection.cursor() as cursor:
        with pytest.raises((Error, UnicodeError)) as refused:
            cursor.execute(query.replace("{lake}", str(server.store / "lake")).replace("\x00", ""))
        assert not any(word in str(refused.value) for word in (str(server.store), "root:"))
        cursor.execute("SELECT 1")
        assert cursor.fetchone() == (1,)


def test_users_and_permissions_are_those_of_the_server(server: Server) -> None:
    with connected(server, "bob") as connection, connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM delta.`streams/SECRET`")
        assert cursor.fetchone() == (ROWS,)
    with pytest.raises(Error, match="rejects the login"), connected(server, "ann", "wrong") as connection:
        connection.cursor().execute("SELECT 1")
    with connected(server, "none") as connection, connection.cursor() as cursor:  # noqa: SIM117
        with pytest.raises(Error, match="ermissions Violation"):
            cursor.execute("SELECT 1")


def test_statements_have_parameters(server: Server) -> None:
    with connected(server) as connection, connection.cursor() as cursor:
        query = "SELECT seq, text(data) AS d FROM ORDERS WHERE seq > ? AND subject = ?"
        cursor.execute(query, (1, "orders.2"))
        assert cursor.fetchall() == [(3, "2")]
        cursor.execute(query, (2, "orders.0"))
        assert cursor.fetchall() == []
        values = pa.RecordBatch.from_pylist([{"none": None, "1": 2.5, "name": "it's; --"}])
        cursor.execute("SELECT :name AS a, :none AS b, ? AS c", values)
        assert cursor.fetchall() == [("it's; --", None, 2.5)]
        day = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.UTC)
        cursor.execute(
            "SELECT count(*) FROM delta.`streams/ORDERS` WHERE time > ? AND time > ? AND seq < ? AND ?",
            (day, day.date(), Decimal("2.50"), True),
        )
        assert cursor.fetchone() == (2,)
        cursor.execute("SELECT CAST(? AS DOUBLE) AS a", (float("inf"),))
        assert cursor.fetchone() == (float("inf"),)
        schema = cursor.adbc_prepare("SELECT 1 AS a, :a AS b, ? AS c")
        assert schema is not None
        assert schema.names == ["1", "a"]
        with pytest.raises(Error, match="the query has 1 parameters, not 2"):
            cursor.execute("SELECT ?", (1, 2))
        with pytest.raises(Error, match="a bytes cannot be one"):
            cursor.execute("SELECT ?", (b"x",))
        with pytest.raises(Error, match="more than 1,048,576 bytes"):
            cursor.execute("SELECT ?", ("x" * (2 << 20),))
        with pytest.raises(Error, match="one row of parameters"):
            cursor.execute("SELECT ?", pa.RecordBatch.from_pylist([{"1": 1}, {"1": 2}]))
        with pytest.raises(Error, match="column 8"):
            cursor.execute("SELECT nothing, ?", (1,))


def test_a_user_with_a_key_logs_in_with_its_seed(server: Server) -> None:
    key = user_key("flight")
    with connected(server, key.public, key.seed) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT count(*) >= ? FROM delta.`streams/ORDERS`", (ROWS,))
        assert cursor.fetchone() == (True,)
    for seed, reason in ((user_key("other").seed, "another key"), ("pw", "is its seed")):
        with pytest.raises(Error, match=reason), connected(server, key.public, seed) as connection:
            connection.cursor().execute("SELECT 1")


def test_users_of_operator_mode_log_in_with_their_tokens(tmp_path: Path) -> None:
    operator = Operator()
    more = 'lake { seal_age: "1h" }\nsql { flight: "127.0.0.1:-1" }\n'
    server = Server(Kind.OURS, tmp_path / "store", config=operator.config + more)
    server.start(timeout=90)
    try:
        plain, token = operator.token, operator.user_token(bearer_token=True)
        query = "SELECT 1 AS a"
        with connected(server, plain, operator.user.seed) as connection, connection.cursor() as cursor:
            cursor.execute(query)
            assert cursor.fetchone() == (1,)
        header = {"adbc.flight.sql.authorization_header": f"Bearer {token}"}
        with adbc.connect(uri(server), db_kwargs=header, autocommit=True) as connection:
            cursor = connection.cursor()
            cursor.execute(query)
            assert cursor.fetchone() == (1,)
            cursor.close()
        refused = [
            {"username": plain, "password": user_key("other").seed},
            {"adbc.flight.sql.authorization_header": f"Bearer {plain}"},
            {"adbc.flight.sql.authorization_header": f"Bearer {token[:-4]}AAAA"},
        ]
        for login in refused:
            with (
                pytest.raises(Error, match="rejects the login"),
                adbc.connect(uri(server), db_kwargs=login, autocommit=True) as connection,
            ):
                connection.cursor().execute(query)
    finally:
        server.kill()


def test_logins_of_a_user_at_the_same_time_are_one(server: Server) -> None:
    def token(number: int) -> tuple[bytes, bytes]:
        with flight.connect(uri(server)) as client:
            found: tuple[bytes, bytes] = client.authenticate_basic_token("bob", "pw")
            return found

    with ThreadPoolExecutor(12) as pool:
        assert len(set(pool.map(token, range(12)))) == 1


def test_a_plain_flight_client_logs_in_once(server: Server) -> None:
    client = flight.connect(uri(server))
    token = client.authenticate_basic_token("ann", "pw")
    options = flight.FlightCallOptions(headers=[token])
    query = flight_sql.pack("CommandStatementQuery", {1: b"SELECT 1 AS a"})
    info = client.get_flight_info(flight.FlightDescriptor.for_command(query), options)
    assert info.schema == pa.schema([("a", pa.int32())])
    assert client.do_get(info.endpoints[0].ticket, options).read_all().to_pylist() == [{"a": 1}]
    with pytest.raises(flight.FlightUnauthenticatedError):
        client.get_flight_info(flight.FlightDescriptor.for_command(query))
    with pytest.raises(pa.ArrowInvalid):
        client.get_flight_info(flight.FlightDescriptor.for_command(b"x"), options)


def test_a_query_is_executed_once(server: Server) -> None:
    """GetFlightInfo and DoGet share one query, of which the service counts one; a second DoGet is another."""
    command = flight_sql.pack("CommandStatementQuery", {1: b"SELECT seq, subject FROM ORDERS"})
    with Wire(server.address, {"user": "ann", "pass": "pw"}, 20) as wire, flight.connect(uri(server)) as client:

        def asked() -> int:
            found = wire.request("$SRV.STATS.lakestream-sql").json()["endpoints"]
            return sum(each["num_requests"] for each in found)

        options = flight.FlightCallOptions(headers=[client.authenticate_basic_token("ann", "pw")])
        before = asked()
        info = client.get_flight_info(flight.FlightDescriptor.for_command(command), options)
        (endpoint,) = info.endpoints
        found = client.do_get(endpoint.ticket, options).read_all()
        assert found.schema == info.schema
        assert asked() == before + 1
        again = client.do_get(endpoint.ticket, options).read_all()
        assert again == found
        assert asked() == before + 2


def test_the_ticket_of_another_login_has_nothing_to_read(server: Server) -> None:
    """A ticket is no way to the result of another user: what bob sends of ann's is bob's own query."""
    command = flight_sql.pack("CommandStatementQuery", {1: b"SELECT * FROM ORDERS"})
    with flight.connect(uri(server)) as client:
        ann, bob = (
            flight.FlightCallOptions(headers=[client.authenticate_basic_token(user, "pw")]) for user in ("ann", "bob")
        )
        (endpoint,) = client.get_flight_info(flight.FlightDescriptor.for_command(command), ann).endpoints
        with pytest.raises(KeyError, match="404"):
            client.do_get(endpoint.ticket, bob)


def test_large_results_that_nobody_reads_leave_room_for_others(server: Server) -> None:
    """Each keeps one of the account's two places until its login begins another one."""
    large = flight_sql.pack("CommandStatementQuery", {1: b"SELECT range, repeat('x', 500) AS x FROM range(90000)"})
    with flight.connect(uri(server)) as client:
        options = flight.FlightCallOptions(headers=[client.authenticate_basic_token("ann", "pw")])
        for _ in range(6):
            info = client.get_flight_info(flight.FlightDescriptor.for_command(large), options)
        assert client.do_get(info.endpoints[0].ticket, options).read_all().num_rows == 90_000
