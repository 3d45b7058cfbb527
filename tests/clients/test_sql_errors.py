"""Tests of the first steps in SQL: one answer, and errors with their place and what is near, in every way in."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import adbc_driver_flightsql.dbapi as adbc
import pytest
from mcp import Client, StdioServerParameters

from tests.clients.postgres_world import PSQL
from tests.console import Browser
from tests.servers import Kind, Server
from tests.wire import Wire

pytestmark = [pytest.mark.conformance, pytest.mark.heavy]

LAKESTREAM = str(Path(sys.executable).parent / "lakestream")
CONFIG = """
lake { seal_age: "1h" }
sql { flight: "127.0.0.1:-1", postgres { listen: "127.0.0.1:-1" }, max_time: 60s }
"""
PRICES = b'{"price": 9.5}', b"no JSON", b'{"price": 1.25}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield a server with a stream without any configuration, of which nothing is compacted."""
    server = Server(Kind.OURS, tmp_path_factory.mktemp("errors") / "store", config=CONFIG, args=["-m", "-1"])
    server.start(timeout=90)
    with Wire(server.address, {}, 20) as wire:
        wire.api("STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders.>"]})
        for price in PRICES:
            wire.request("orders.de", price)
    yield server
    server.kill()


def listening(server: Server, title: str) -> str:
    """Return the address of a listener."""
    found = re.search(rf"{title} on (\S+)", server.log())
    assert found is not None
    return found[1]


def run(*command: str) -> str:
    """Return what a command prints."""
    environ = {**os.environ, "PGPASSWORD": "x", "PSQLRC": "/dev/null"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environ)
    return done.stdout + done.stderr


def by_command(server: Server, query: str) -> str:
    return run(LAKESTREAM, "sql", "--lake", str(server.store / "lake"), "--format", "csv", "-q", query)


def over_nats(server: Server, query: str) -> str:
    return run(LAKESTREAM, "sql", "--url", server.url, "--format", "csv", "-q", query)


def by_psql(server: Server, query: str) -> str:
    host, _, port = listening(server, "Postgres").rpartition(":")
    return run(PSQL, f"host={host} port={port} user=x dbname=lake", "-A", "-t", "-F", ",", "-c", query)


def by_flight(server: Server, query: str) -> str:
    with (
        adbc.connect(f"grpc://{listening(server, 'Flight SQL')}", autocommit=True) as client,
        client.cursor() as cursor,
    ):
        try:
            cursor.execute(query)
            return "\n".join(",".join(map(str, row)) for row in cursor.fetchall())
        except adbc.Error as error:
            return str(error)


def in_the_console(server: Server, query: str) -> str:
    browser = Browser(server)
    browser.begin()
    found = browser.post("sql", {"query": query}).json
    return "\n".join(",".join(map(str, row)) for row in found["rows"]) if "rows" in found else str(found["error"])


def by_assistant(server: Server, query: str) -> str:
    async def ask() -> str:
        async with Client(StdioServerParameters(command=LAKESTREAM, args=["mcp", "--server", server.url])) as client:
            (content,) = (await client.call_tool("query", {"sql": query})).content
            assert content.type == "text"
            return content.text

    return asyncio.run(ask())


WAYS = (by_command, over_nats, by_psql, by_flight, in_the_console, by_assistant)
Way = Callable[[Server, str], str]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("query", "said", "place"),
    [
        ("SELECT seq,\n  sbject FROM ORDERS", 'Candidate bindings: "subject"', "  sbject FROM ORDERS\n  ^"),
        ("SELECT seq FROM ORDERS o\nWHERE o.sek = 1", 'Did you mean "seq"?', "WHERE o.sek = 1\n      ^"),
        ("SELECT 1 FROM ORDERS a\n JOIN ORDERS b USING (sek)", 'Did you mean "seq"?', None),
        ("SELECT 1\nFROM ORDRES", "Did you mean ORDERS?", "FROM ORDRES\n     ^"),
        ("SELECT date_format(time, 'yyyy') FROM ORDERS", "Spark SQL: `--engine spark`", None),
        ("SELECT sum(price) FROM ORDERS", "a field of JSON payloads: json->>'price'", None),
    ],
)
def test_errors_say_what_is_near_and_where(server: Server, way: Way, query: str, said: str, place: str | None) -> None:
    found = way(server, query)
    # psql shows the line itself; what shows an error of Flight SQL goes on behind it.
    plain = re.sub(r"LINE \d+: ", "", found) if way is by_psql else found
    assert said in plain
    if place is not None:
        line, mark = place.split("\n")
        shown = [each.rstrip() for each in plain.splitlines()]
        number = next(number for number, each in enumerate(shown) if each.strip() == line.strip())
        assert shown[number + 1].lstrip().startswith("^")
        margin = len(shown[number]) - len(line)
        prefix = len("LINE 2: ") if way is by_psql else 0
        assert shown[number + 1].index("^") == margin + prefix + mark.index("^")


@pytest.mark.parametrize("way", WAYS)
def test_the_first_query_works_without_configuration_and_sees_what_was_just_published(server: Server, way: Way) -> None:
    with Wire(server.address, {}, 20) as wire:
        seq = wire.request("orders.fr", b'{"price": 2}').json()["seq"]
    found = way(
        server, f"SELECT subject, sum((json->>'price')::double) FROM ORDERS WHERE seq < 4 OR seq = {seq} GROUP BY 1"
    )
    rows = re.findall(r"(orders\.\w+)\W[^}\n]*?([\d.]+)\b(?!['\w])", found)
    assert sorted((subject, float(price)) for subject, price in rows) == [("orders.de", 10.75), ("orders.fr", 2.0)]
