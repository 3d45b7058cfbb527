"""Tests of Flight SQL: ADBC's driver and plain Flight clients against a server's listener."""

from __future__ import annotations

import re
from collections.abc import Iterator

import adbc_driver_flightsql.dbapi as adbc
import pyarrow as pa
import pytest
from adbc_driver_manager import Error
from pyarrow import flight

from lakestream.protocol import flight_sql
from tests.servers import Kind, Server
from tests.wire import Wire

pytestmark = [pytest.mark.conformance, pytest.mark.heavy]

CONFIG = """
accounts {
  A { jetstream: enabled, users: [
    { user: ann, password: pw }
    { user: none, password: pw, permissions { publish: { deny: "$LAKE.API.SQL" } } } ] }
  B { jetstream: enabled, users: [{ user: bob, password: pw }] }
}
lake { seal_age: "1h" }
sql { flight: "127.0.0.1:-1", max_rows: 100000 }
"""
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
        cursor.execute("SELECT seq, CAST(data AS STRING) AS d FROM delta.`streams/ORDERS` ORDER BY seq DESC")
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
    with connected(server) as connection, connection.cursor() as cursor, pytest.raises(Error, match=reason):
        cursor.execute(query).fetchall()


def test_users_and_permissions_are_those_of_the_server(server: Server) -> None:
    with connected(server, "bob") as connection, connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM delta.`streams/SECRET`")
        assert cursor.fetchone() == (ROWS,)
    with pytest.raises(Error, match="rejects the login"), connected(server, "ann", "wrong") as connection:
        connection.cursor().execute("SELECT 1")
    with connected(server, "none") as connection, connection.cursor() as cursor:  # noqa: SIM117
        with pytest.raises(Error, match="ermissions Violation"):
            cursor.execute("SELECT 1")


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
