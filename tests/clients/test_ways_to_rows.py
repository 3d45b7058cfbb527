"""Tests of rows and fields that a user may not see, through each way in to SQL: no attempt shows one of them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import adbc_driver_flightsql.dbapi as adbc
import psycopg
import pytest

from tests.clients import postgres_world, test_flight_sql, test_mcp
from tests.clients.test_sql_over_nats import Session
from tests.console import Browser
from tests.servers import Kind, Server
from tests.sql_escapes import COLUMNS, ROWS, TELLING

pytestmark = [pytest.mark.conformance, pytest.mark.heavy]

CONFIG = """
accounts { A { jetstream: enabled, users: [
  { user: ann, password: pw }
  { user: eu, password: pw, permissions { subscribe { allow: ["orders.eu.>", "p.>", "_INBOX.>"] } } } ] } }
lake { seal_age: "1h" }
sql { flight: "127.0.0.1:-1", postgres { listen: "127.0.0.1:-1" }, mask_key: "k", max_time: 60s }
"""
MASK = '{"$.card": "hash", "email": "null", "ssn": "last4", "$.address.street": "null"}'
PERSON = {
    "card": "4111111111",
    "email": "SECRET-QE",
    "ssn": "SECRET-Q5",
    "address": {"street": "SECRET-QS", "zip": "1"},
}
MESSAGES = [
    ("orders.eu.1", b"1"),
    ("orders.eu.2", b'{"a": 2}'),
    ("orders.us.HIDDEN", b"SECRET-Q3"),
    ("orders.us.HIDDEN", b'{"secret": "SECRET-Q4"}'),
    ("orders.eu.1", b"5"),
]
HIDDEN = ("SECRET-Q", "HIDDEN", str(PERSON["card"]))
QUERIES = [*ROWS, *TELLING, *COLUMNS]
WHOLE = "SELECT subject, text(data) AS d FROM ORDERS UNION ALL SELECT subject, text(data) FROM P"
"""A query whose answer has what is hidden, for who sees it, and what is not for others."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(Kind.OURS, tmp_path_factory.mktemp("ways") / "store", config=CONFIG, args=["-m", "-1"])
    server.start(timeout=90)
    wire = Session(server).wire
    wire.api("STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders.>"]})
    wire.api("STREAM.CREATE.P", {"name": "P", "subjects": ["p.>"], "metadata": {"lakestream.mask": MASK}})
    for subject, data in [*MESSAGES, ("p.a", json.dumps(PERSON).encode())]:
        wire.request(subject, data)
    yield server
    server.kill()


def judge(query: str, shown: str) -> None:
    """Fail if an answer, or an error, has something of what is hidden."""
    assert not any(each in shown for each in HIDDEN), (query, shown)
    if query == WHOLE:
        assert "orders.eu.2" in shown
        assert "zip" in shown


def test_over_flight_sql(server: Server) -> None:
    with test_flight_sql.connected(server, "eu") as connection, connection.cursor() as cursor:
        for query in (WHOLE, *QUERIES):
            try:
                cursor.execute(query)
                shown = repr(cursor.fetch_arrow_table().to_pydict())
            except adbc.Error as error:
                shown = str(error)
            judge(query, shown)


def test_over_postgres(server: Server) -> None:
    with psycopg.connect(**postgres_world.address(server, "eu"), autocommit=True) as connection:
        for query in (WHOLE, *QUERIES):
            try:
                shown = repr(connection.execute(query.replace("%", "%%").encode(), ()).fetchall())
            except psycopg.Error as error:
                shown = str(error)
            judge(query, shown)


def test_in_the_console(server: Server) -> None:
    browser = Browser(server)
    browser.log_in(user="eu", password="pw")
    for query in (WHOLE, *QUERIES):
        judge(query, browser.post("sql", {"query": query}).body.decode())


async def test_over_mcp(server: Server) -> None:
    async with test_mcp.assistant(server, user="eu") as client:
        for query in (WHOLE, *QUERIES):
            judge(query, await test_mcp.text(client, "query", sql=query))


def test_over_nats(server: Server) -> None:
    asked = Session(server, "eu")
    for query in (WHOLE, *QUERIES):
        found = asked.ask(query)
        judge(query, repr((found.rows, found.end)))
    assert all(each in repr(Session(server).ask(WHOLE).rows) for each in HIDDEN[:2])
