"""The page of a program, over HTTP."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request

import pytest

from lakestream.metrics.family import GAUGE, Family, Row, Sheet
from lakestream_spark.metrics_port import MetricsServer

pytestmark = pytest.mark.unit

NUMBER = Family("demo_number", GAUGE, "A number.")


def _get(port: int, path: str = "/metrics") -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        return answer.read()


def test_each_scrape_collects_anew_and_other_paths_are_not_found() -> None:
    numbers = iter(range(1, 9))
    server = MetricsServer(("127.0.0.1", 0), lambda sheet: sheet.put(NUMBER, next(numbers)))
    try:
        assert b"\ndemo_number 1.0\n" in _get(server.port)
        assert b"\ndemo_number 2.0\n" in _get(server.port)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            _get(server.port, "/")
    finally:
        server.close()


def test_a_client_that_goes_away_ends_nothing() -> None:
    server = MetricsServer(("127.0.0.1", 0), lambda sheet: sheet.put(NUMBER, 1))
    try:
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(b"GET /metr")
        assert b"demo_number" in _get(server.port)
    finally:
        server.close()


def test_a_silent_client_does_not_hold_up_a_scrape() -> None:
    """Clients were served one after the other, and a silent one had five seconds."""
    server = MetricsServer(("127.0.0.1", 0), lambda sheet: sheet.put(NUMBER, 1))
    try:
        with socket.create_connection(("127.0.0.1", server.port), 10) as silent:
            assert b"demo_number" in _get(server.port)
            silent.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            assert silent.recv(12) == b"HTTP/1.1 200", "it was not given up for the other"
    finally:
        server.close()


def test_a_taken_port_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        MetricsServer(("127.0.0.1", taken.getsockname()[1]), lambda sheet: None)


def test_a_collection_fills_one_sheet() -> None:
    sheet = Sheet()
    sheet.put(NUMBER, 1)
    sheet.put(NUMBER, 2, {"a": "b"})
    (rows,) = sheet.rows()
    assert rows.rows == [Row({}, (1,)), Row({"a": "b"}, (2,))]
