"""Tests of message schedules across restarts: those due meanwhile are published once, later ones stay."""

from __future__ import annotations

import signal
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.conftest import StartServer
from tests.servers import Server
from tests.wire import Wire

pytestmark = pytest.mark.conformance


def _plan(wire: Wire, subject: str, pattern: str) -> None:
    answer = wire.request(subject, b"x", {"Nats-Schedule": pattern, "Nats-Schedule-Target": f"{subject}.t"}).json()
    assert "error" not in answer, answer


def _subjects(wire: Wire) -> dict[str, int]:
    state = wire.api("STREAM.INFO.S", {"subjects_filter": ">"})["state"]
    found: dict[str, int] = state["subjects"]
    return found


def _when(wire: Wire, ready: dict[str, int]) -> None:
    deadline = time.monotonic() + 10
    while (found := _subjects(wire)) != ready:
        assert time.monotonic() < deadline, found
        time.sleep(0.02)


def _again(server: Server, how: signal.Signals) -> None:
    server.stop(how)
    server.start()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_schedules_outlive_the_server(start_server: StartServer, how: signal.Signals) -> None:
    server = start_server()
    config: dict[str, Any] = {"name": "S", "subjects": ["s.>"], "storage": "file", "allow_msg_schedules": True}
    with Wire(server.address, timeout=20) as wire:
        assert "error" not in wire.api("STREAM.CREATE.S", config)
        due = datetime.now(UTC) + timedelta(seconds=0.5)
        _plan(wire, "s.soon", f"@at {due:%Y-%m-%dT%H:%M:%S.%f}Z")
        _plan(wire, "s.past", "@at 2020-01-01T00:00:00Z")
        _plan(wire, "s.late", "@at 2030-01-01T00:00:00Z")
        _plan(wire, "s.often", "@every 1h")
    ready = {"s.soon.t": 1, "s.past.t": 1, "s.late": 1, "s.often": 1}
    for _ in range(2):
        _again(server, how)
        with Wire(server.address, timeout=20) as wire:
            _when(wire, ready)
    with Wire(server.address, timeout=20) as wire:
        _plan(wire, "s.now", "@at 2020-01-01T00:00:00Z")
        _when(wire, ready | {"s.now.t": 1})
        _plan(wire, "s.late", "@at 2020-01-01T00:00:00Z")
        ready.pop("s.late")
        _when(wire, ready | {"s.now.t": 1, "s.late.t": 1})
