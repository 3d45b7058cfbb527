"""Tests of -D and -V: the log has the same lines about a client's traffic as nats-server's."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable

import pytest

from tests.conftest import Recorded
from tests.servers import Kind, Server

pytestmark = pytest.mark.conformance

SENT = (
    b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"pass":"secret"}\r\n'
    b"SUB a 1\r\nPUB a r 2\r\nhi\r\nHPUB a 12 14\r\nNATS/1.0\r\n\r\nhi\r\nUNSUB 1\r\nPING\r\n"
)
_LINE = re.compile(r"\[(TRC|DBG)\] \S+ - cid:\d+ - (.*)$")


def _lines(server: Server, until: str = "") -> list[str]:
    """Return the server's log lines about one client; stop the server once it has logged `until`."""
    with socket.create_connection(server.address, timeout=10) as client:
        client.sendall(SENT)
        got = b""
        while b"PONG" not in got:
            got += client.recv(65536)
    deadline = time.monotonic() + 10
    while until not in server.log() and time.monotonic() < deadline:
        time.sleep(0.01)
    server.stop()
    found = [match[2] for line in server.log().splitlines() if (match := _LINE.search(line))]
    return [line for line in found if "INFO" not in line and not line.startswith("<->")]


def _simple(line: str) -> str:
    """Return a line without the values that a server may order or choose: CONNECT's fields."""
    return "<<- [CONNECT …]" if "CONNECT" in line else line


def test_a_traced_connection_reads_as_with_nats_server(start_server: Callable[..., Server], recorded: Recorded) -> None:
    ours = _lines(start_server(args=["-DV"], jetstream=False), "closed")
    real = recorded(lambda: _lines(start_server(of=Kind.REAL, args=["-DV"], jetstream=False), "closed"))
    for part in (
        "<<-",
        "->>",
        "Client",
    ):  # a whole read buffer is processed before answers: only the interleaving differs
        assert [_simple(line) for line in ours if part in line] == [_simple(line) for line in real if part in line]
    assert not any("secret" in line for line in ours)


def test_without_the_flag_nothing_of_a_message_is_logged(start_server: Callable[..., Server]) -> None:
    assert _lines(start_server(of=Kind.OURS, jetstream=False)) == []
