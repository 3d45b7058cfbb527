"""Tests of the transport between a connection and a client in the same process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from lakestream_console.pipe import Pipe

pytestmark = pytest.mark.unit


class End:
    """One end, which notes what happens to it."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.lost = 0

    def data_received(self, data: bytes) -> None:
        self.got.append(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.lost += 1


class Turns:
    """The turns of an event loop."""

    def __init__(self) -> None:
        self._soon: deque[Callable[[], None]] = deque()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)

    def run(self) -> None:
        """Run everything that is due."""
        while self._soon:
            self._soon.popleft()()


@pytest.fixture
def turns() -> Turns:
    return Turns()


@pytest.fixture
def ends(turns: Turns) -> tuple[Pipe, End, End]:
    server, client = End(), End()
    return Pipe(server, client, ("10.0.0.1", 5), turns.call_soon), server, client


def test_bytes_reach_the_other_end_in_the_next_turn(ends: tuple[Pipe, End, End], turns: Turns) -> None:
    pipe, server, client = ends
    pipe.send(b"a")
    pipe.send(b"b")
    pipe.write(b"1")
    pipe.write(bytearray(b"2"))
    assert (server.got, client.got, pipe.get_write_buffer_size()) == ([], [], 2)
    turns.run()
    assert (server.got, client.got, pipe.get_write_buffer_size()) == ([b"ab"], [b"12"], 0)
    assert pipe.get_extra_info("peername") == ("10.0.0.1", 5)
    assert pipe.get_extra_info("ssl_object") is None


def test_a_server_that_is_paused_gets_nothing(ends: tuple[Pipe, End, End], turns: Turns) -> None:
    pipe, server, _ = ends
    pipe.send(b"a")
    pipe.pause_reading()
    pipe.send(b"b")
    turns.run()
    assert server.got == []
    pipe.resume_reading()
    pipe.resume_reading()
    turns.run()
    assert server.got == [b"ab"]


def test_what_was_written_arrives_before_the_end(ends: tuple[Pipe, End, End], turns: Turns) -> None:
    pipe, server, client = ends
    pipe.send(b"late")
    pipe.write(b"last words")
    pipe.close()
    pipe.send(b"later")
    assert pipe.is_closing()
    turns.run()
    assert (server.got, client.got) == ([], [b"last words"])
    assert (server.lost, client.lost) == (1, 1)
    pipe.close()
    pipe.abort()
    pipe.write(b"too late")
    pipe.send(b"too late")
    turns.run()
    assert (client.got, server.lost, client.lost) == ([b"last words"], 1, 1)


def test_an_abort_discards_what_was_written(ends: tuple[Pipe, End, End], turns: Turns) -> None:
    pipe, server, client = ends
    pipe.write(b"never seen")
    pipe.abort()
    assert pipe.get_write_buffer_size() == 0
    turns.run()
    assert (client.got, server.lost, client.lost) == ([], 1, 1)
