"""Tests of the keep-alive of a leaf connection: conditions in which it is closed, or not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from lakestream.logging import Logger
from lakestream.net.hub import Hub
from lakestream.net.remote.leaf_connection import LeafConnection
from lakestream.net.remote.outgoing import MAX_PENDING, MAX_PINGS
from lakestream.net.turn import Turn
from lakestream.ports import Clock, singly
from lakestream.protocol.leaf_wire import Names

pytestmark = pytest.mark.unit


class Pings:
    """Clock whose only timer is the next PING."""

    def __init__(self) -> None:
        self.next: Callable[[], None] = lambda: None

    def now(self) -> int:
        return 1

    def steady(self) -> int:
        return self.now()

    def call_later(self, delay_ns: int, callback: Callable[[], None]) -> Pings:
        self.next = callback
        return self

    def cancel(self) -> None:
        self.next = lambda: None


class Wire(asyncio.Transport):
    """Keeps written data, of which `unsent` bytes are still to be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.unsent = 0
        self.aborted = self.paused = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)
        if self.unsent:
            self.unsent += len(data)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


class World:
    """Connection after the handshake, without the other side."""

    def __init__(self) -> None:
        self.hub, self.clock, self.wire = Hub(Turn(lambda call: call()), Logger()), Pings(), Wire()
        as_clock: Clock = self.clock  # type: ignore[assignment]
        self.connection = LeafConnection(self.hub, Names("lake", "h"), as_clock, Logger(), "hub")
        self.connection.connection_made(self.wire)
        self.connection.data_received(b'INFO {"max_payload": 100}\r\n')
        self.connection.send_connect({"name": "n1"}, [b"$JS.lake.API.>", b"d"], b"group")


async def test_a_connection_that_does_not_answer_pings_is_closed() -> None:
    world = World()
    assert world.wire.written == (b'CONNECT {"name":"n1"}\r\nLS+ $JS.lake.API.> group 1\r\nLS+ d group 1\r\nPING\r\n')
    for _ in range(5):
        world.clock.next()
        world.connection.data_received(b"PONG\r\n")
    assert world.connection.up.done()
    for _ in range(MAX_PINGS):
        assert not world.wire.aborted
        world.clock.next()
    world.clock.next()
    assert world.wire.aborted
    world.connection.connection_lost(None)
    assert world.connection.over.result() == "Stale Connection"


async def test_a_connection_whose_answers_are_not_read_is_not_closed() -> None:
    world = World()
    drained: list[Callable[[], None]] = []

    class Slow:
        def on_drain(self, callback: Callable[[], None]) -> None:
            drained.append(callback)

    def congested(*_: object) -> None:
        world.hub.turn.overrun = Slow()

    world.hub.subscribe(b"d", singly(congested))
    world.connection.data_received(b"LMSG d 0\r\n\r\n")
    assert world.wire.paused
    for _ in range(10):
        world.clock.next()
    drained.pop()()
    assert not world.wire.paused
    for left in range(20, 0, -1):  # 64 MiB over a slow link
        world.wire.unsent = left
        world.clock.next()
    assert not world.wire.aborted
    for _ in range(MAX_PINGS + 2):  # no progress any more
        world.clock.next()
    assert world.wire.aborted


async def test_a_receiver_that_is_much_too_slow_is_given_up() -> None:
    world = World()
    world.wire.unsent = MAX_PENDING + 1
    world.connection.send([b"LMSG a 0\r\n\r\n"], 1, 0)
    world.connection.flush()
    assert world.wire.aborted


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"INFO []\r\n", b"\x00\x01\x02\n"])
async def test_a_connection_with_another_protocol_is_closed(said: bytes) -> None:
    world = World()
    world.connection.data_received(said)
    assert world.wire.aborted
    world.connection.connection_lost(None)
    assert "invalid leaf node protocol" in await world.connection.over
