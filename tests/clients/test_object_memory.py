"""Test that a large object costs a server no more memory than the window in flight."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.bench.bench_object import STORE, SWITCHES, Watched, get, put
from tests.servers import Server
from tests.wire import Wire

pytestmark = [pytest.mark.conformance, pytest.mark.heavy]

MIB = 1 << 20
CHUNK = MIB // 8


def test_an_object_passes_through_bounded_memory(start_server: Callable[..., Server]) -> None:
    server = start_server()
    assert server.process is not None
    with Wire(server.address, timeout=60) as wire:
        assert "error" not in wire.api("STREAM.CREATE.OBJ_big", STORE | SWITCHES)
        put(wire, "first", 10 * CHUNK, CHUNK)
        get(server.address)
        with Watched(server.process.pid) as seen:
            put(wire, "large", 256 * MIB, CHUNK)
            assert get(server.address)[0] == 256 * MIB
        answer = wire.api("STREAM.PURGE.OBJ_big", {"filter": "$O.big.C.large"})
        assert answer["purged"] == 256 * MIB // CHUNK
    assert seen.peak - seen.before <= 64 * MIB
