"""Tests of clients that do not read: their disconnection, its error, and the effects on other clients."""

from __future__ import annotations

import json
import re
import socket
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import StartServer
from tests.servers import Kind, Server
from tests.wire import Wire, pub

pytestmark = pytest.mark.conformance

CUT = re.compile(r'cid:\d+ - "v1:tests" - Slow Consumer Detected: (.*)')
BODY = bytes(65536)
RECEIVERS = 6


def page(server: Server, target: str) -> Any:
    with urllib.request.urlopen(f"http://{server.host}:{server.http_port}{target}", timeout=10) as answer:
        return json.load(answer)


def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.02)


def deaf(server: Server) -> Wire:
    """Return a subscriber of `flood` that stops reading, with a small receive buffer."""
    wire = Wire(server.address)
    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    wire.subscribe("flood")
    wire.ping()
    return wire


def ended(server: Server) -> list[str]:
    """Return the reasons of closed connections in /connz."""
    return [one["reason"] for one in page(server, "/connz?state=closed")["connections"]]


@pytest.mark.parametrize(
    "real", [pytest.param(True, id="nats-server", marks=pytest.mark.live), pytest.param(False, id="lakestream")]
)
def test_receivers_that_do_not_read_are_cut_at_the_write_deadline(
    start_server: StartServer, kind: Kind, real: bool
) -> None:
    server = start_server(of=Kind.REAL if real else kind, config='write_deadline: "1s"\n', args=["-m", "-1"])
    assert page(server, "/varz")["write_deadline"] == 1_000_000_000
    silent = [deaf(server) for _ in range(RECEIVERS)]
    with Wire(server.address) as sender, Wire(server.address) as other:
        sender.send(pub("flood", BODY) * 160)  # 10 MB for each, far below max_pending
        sender.ping()
        other.ping()
        until(lambda: len(ended(server)) == RECEIVERS)
        assert set(ended(server)) == {"Slow Consumer (Write Deadline)"}
        other.ping()
    varz = page(server, "/varz")
    assert varz["slow_consumers"] == varz["slow_consumer_stats"]["clients"] == RECEIVERS
    logged = CUT.findall(server.log())
    assert len(logged) == RECEIVERS
    for line in logged:
        said = re.fullmatch(r"WriteDeadline of 1s exceeded with (\d+) chunks of (\d+) total bytes\.", line)
        assert said, line
        assert int(said[1]) == -(-int(said[2]) // 65536)
    for wire in silent:
        wire.close()


def test_the_unsent_bytes_of_all_clients_together_are_bounded(start_server: StartServer) -> None:
    server = start_server(of=Kind.OURS, config="max_pending: 16MB\nmax_pending_total: 32MB\n", args=["-m", "-1"])
    silent = [deaf(server) for _ in range(20)]
    with Wire(server.address) as sender, Wire(server.address) as reading:
        sid = reading.subscribe("flood")
        reading.ping()
        for _ in range(200):  # 12 MB for each: below max_pending
            sender.publish("flood", BODY)
            assert len(reading.delivered(sid).data) == len(BODY)
        held = sum(one["pending_bytes"] for one in page(server, "/connz")["connections"])
        assert 0 < held <= 32 << 20
        assert set(ended(server)) == {"Slow Consumer (Pending Bytes)"}
        assert all(line.startswith("MaxPendingTotal of 33554432 Exceeded, ") for line in CUT.findall(server.log()))
        assert not reading.ping()
    for wire in silent:
        wire.close()


def test_a_consumer_waits_for_a_receiver_that_does_not_read_instead_of_filling_the_bound(
    start_server: StartServer,
) -> None:
    """JetStream stops delivering to a client that does not read.

    80 MB are stored for each client, and no more than its buffer is held in memory.
    """
    server = start_server(of=Kind.OURS, config="max_pending_total: 64MB\n", args=["-m", "-1"])
    with Wire(server.address, timeout=20) as client:
        client.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "storage": "memory"})
        for _ in range(20):
            client.send(pub("s", bytes(1_000_000)))
        assert client.api("STREAM.INFO.S")["state"]["messages"] <= 20
        silent = [deaf(server) for _ in range(4)]
        for number in range(4):
            config = {"name": f"C{number}", "ack_policy": "explicit", "deliver_subject": "flood"}
            client.api(f"CONSUMER.CREATE.S.C{number}", {"stream_name": "S", "config": config})
        client.ping()
        held = [one["pending_bytes"] for one in page(server, "/connz")["connections"]]
        assert max(held) < 16 << 20, held
        assert not ended(server)
    for wire in silent:
        wire.close()


def test_a_receiver_that_reads_late_gets_every_byte_in_order(start_server: StartServer, kind: Kind) -> None:
    """Its socket is full after some messages: the rest of one and the messages behind it wait in the server."""
    server = start_server(of=kind)
    with Wire(server.address) as late, Wire(server.address) as publisher:
        late.subscribe("flood")
        late.ping()
        bodies = [b"%06d" % number * 5_000 for number in range(700)]
        for body in bodies:
            publisher.send(pub("flood", body))
        publisher.ping()
        assert [late.message("flood").data for _ in bodies] == bodies
