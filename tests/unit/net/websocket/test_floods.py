"""Tests of small input to a WebSocket that asks for much: each turn of the event loop passes on a limited amount.

Arbitrary input is sent by the target `websocket` of tests/fuzz.
"""

from __future__ import annotations

import time
import zlib

import pytest

from lakestream.net.websocket.frames import BATCH_BYTES
from tests.unit.net.websocket.world import LONGEST_MESSAGE, World
from tests.websocket import DEFLATE, frame, request

pytestmark = pytest.mark.unit

LONGEST_TURN_S = 0.5
"""Limit of the processor's time for a turn; it takes about 50 ms, and other tests run at the same time."""
READ_BYTES = 1 << 18


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    return (packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH))[:-4]


@pytest.mark.parametrize(
    "sent",
    [
        frame(2, deflated(bytes(64 << 20)), reserved=4),
        frame(2, b"") * 30_000,
        frame(2, b"\r") * 30_000,
        frame(9, b"x") * 20_000,
        frame(2, b"\0", reserved=4) * 20_000,
    ],
    ids=["bomb", "empty", "short", "pings", "inflated"],
)
def test_a_turn_passes_on_a_limited_amount(sent: bytes) -> None:
    world = World(compression=True)
    socket, line = world.accepted()
    socket.data_received(request({"Sec-WebSocket-Extensions": DEFLATE}, host="h"))
    (client,) = world.clients
    longest = largest = 0.0
    for at in range(0, len(sent), READ_BYTES):
        due = [lambda at=at: socket.data_received(sent[at : at + READ_BYTES])]  # type: ignore[misc]
        while due:
            for callback in due:
                began = time.thread_time()
                callback()
                longest = max(longest, time.thread_time() - began)
            largest, client.received = max(largest, len(client.data)), []
            line.taken()
            due, world.clock.soon = world.clock.soon, []
    assert largest <= BATCH_BYTES + LONGEST_MESSAGE + READ_BYTES
    assert longest < LONGEST_TURN_S
    socket.connection_lost(None)
