"""Tests of receivers: fast, slow and silent ones.

Fast receivers of large messages lose nothing, slow ones cost no more than max_pending, silent ones are disconnected.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tests.conftest import StartServer
from tests.servers import Kind
from tests.wire import Wire, pub

pytestmark = pytest.mark.chaos

LARGE = 1_000_000
COUNT = 100
"""Number of messages, together more than max_pending (64 MiB): a consumer delivers all of them in one turn."""


def peak_bytes(pid: int) -> int:
    """Return the peak resident memory of a process in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


@pytest.mark.parametrize("deliver", ["", "deliver.here"], ids=["pull", "push"])
def test_a_client_that_reads_gets_every_large_message(start_server: StartServer, deliver: str) -> None:
    server = start_server(of=Kind.OURS)
    with Wire(server.address, timeout=20) as client:
        client.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        for _ in range(COUNT):
            assert b"seq" in client.request("s", b"x" * LARGE).data
        sid = client.subscribe(deliver or "inbox")
        config = {"name": "C", "ack_policy": "explicit", "deliver_subject": deliver}
        client.api("CONSUMER.CREATE.S.C", {"stream_name": "S", "config": config})
        if not deliver:
            wanted = json.dumps({"batch": COUNT, "expires": 20_000_000_000})
            client.publish("$JS.API.CONSUMER.MSG.NEXT.S.C", wanted.encode(), "inbox")
        for _ in range(COUNT):
            assert len(client.delivered(sid).data) == LARGE


def test_a_fan_out_within_one_turn_takes_no_more_memory_than_a_receiver_may_have(start_server: StartServer) -> None:
    server = start_server(of=Kind.OURS, config="max_pending: 8MB\n")
    with Wire(server.address) as receiver, Wire(server.address) as sender:
        for _ in range(4000):
            receiver.subscribe("wide")
        receiver.ping()
        assert server.process is not None
        before = peak_bytes(server.process.pid)
        # No client reads while the server handles these in one turn: 400 MB for the one receiver.
        sender.send(pub("wide", b"x" * 1000) * 100)
        sender.ping()
        assert peak_bytes(server.process.pid) - before < 64 << 20
        receiver.until_closed()
    assert "Slow Consumer Detected" in server.log()


def test_a_silent_receiver_with_unread_bytes_goes(start_server: StartServer) -> None:
    """A silent client is disconnected even if full kernel buffers keep the last -ERR from being sent."""
    server = start_server(of=Kind.OURS, config='ping_interval: "1s"\nping_max: 1\n')
    with Wire(server.address) as silent, Wire(server.address) as sender:
        assert server.process is not None
        files = f"/proc/{server.process.pid}/fd"
        silent.subscribe("much")
        silent.ping()
        sender.send(pub("much", b"x" * 100_000) * 200)
        sender.ping()
        before = len(os.listdir(files))
        deadline = time.monotonic() + 20
        while len(os.listdir(files)) == before and time.monotonic() < deadline:
            sender.ping()
            time.sleep(0.1)
        assert len(os.listdir(files)) < before
        answer = sender.request("much")
        assert answer.header.startswith(b"NATS/1.0 503")
