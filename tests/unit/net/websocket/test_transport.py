"""Tests of the transport between a socket and a connection."""

from __future__ import annotations

import pytest

from lakestream.config.options import SECOND
from lakestream.net.listener import SetupError
from lakestream.net.turn import LONE_SLICE_NS, Turn
from lakestream.net.websocket import framed, transport
from lakestream.net.websocket.frames import BATCH_FRAMES
from tests.unit.net.websocket.world import Line, World
from tests.websocket import DEFLATE, frame, request

pytestmark = pytest.mark.unit


def test_bytes_behind_a_handshake_are_refused() -> None:
    world = World()
    socket, line = world.accepted()
    socket.data_received(request(host="h") + frame(2, b"a"))
    assert (line.taken(), line.open, world.clients) == (b"", False, [])


def test_each_write_is_one_frame_and_limits_count_plain_bytes() -> None:
    _, line, client = World(compression=True).opened(Sec_WebSocket_Extensions=DEFLATE)
    client.transport.write(b"short")  # type: ignore[attr-defined]
    assert line.taken() == b"\x82\x05short"
    client.transport.write(b"x" * 100_000)  # type: ignore[attr-defined]
    assert len(line.written) < 1000
    assert 90_000 < client.transport.get_write_buffer_size() < 110_000  # type: ignore[attr-defined]


def test_frames_wait_for_the_next_turn_and_the_socket_is_paused() -> None:
    world = World()
    socket, line, client = world.opened()
    socket.data_received(frame(2, b"a") * (2 * BATCH_FRAMES + 1))
    assert (len(client.data), line.reading) == (BATCH_FRAMES, False)
    world.clock.turn()
    assert (len(client.data), line.reading) == (2 * BATCH_FRAMES + 1, True)


def test_a_paused_connection_gets_nothing() -> None:
    world = World()
    socket, line, client = world.opened()
    socket.data_received(frame(2, b"a") * (BATCH_FRAMES + 1))
    socket.pause_reading()
    world.clock.turn()
    assert (len(client.data), line.reading) == (BATCH_FRAMES, False)
    socket.resume_reading()
    world.clock.turn()
    assert (len(client.data), line.reading) == (BATCH_FRAMES + 1, True)


def test_only_the_last_ping_is_answered_while_the_client_reads_nothing() -> None:
    socket, line, client = World().opened()
    socket.pause_writing()
    for number in range(1000):
        socket.data_received(frame(9, b"%d" % number))
    assert (line.taken(), client.full) == (b"", True)
    socket.resume_writing()
    assert line.taken() == b"\x8a\x03999"


@pytest.mark.parametrize(("reason", "code"), [("Server Shutdown", 1001), ("Authentication Failure", 1008), ("?", 1011)])
def test_close_codes(reason: str, code: int) -> None:
    socket, line, client = World().opened()
    client.close_reason = reason
    socket.close()
    assert line.taken() == bytes((0x88, 2 + len(reason))) + code.to_bytes(2) + reason.encode()
    assert not line.open


def test_a_client_that_does_not_read_its_close_frame_is_cut() -> None:
    world = World()
    socket, line, _ = world.opened()
    socket.data_received(frame(8, b"\x03\xe8"))
    line.open = True  # bytes are left
    world.clock.advance(framed.CLOSE_WAIT_NS)
    assert not line.open


def test_the_connection_learns_of_a_wrong_frame() -> None:
    socket, _line, client = World().opened()
    socket.data_received(frame(3, b""))
    socket.connection_lost(None)
    assert [str(error) for error in client.lost] == ["unknown opcode 3"]


def test_handshakes_are_limited() -> None:
    world = World()
    lines = [world.accepted()[1] for _ in range(transport.MAX_WAITING + 1)]
    assert [line.open for line in lines[:2]] == [False, True]
    assert all(line.open for line in lines[1:])


def test_the_bytes_of_all_requests_are_limited() -> None:
    world = World()
    opened = [world.accepted() for _ in range(transport.MAX_WAITING_BYTES // 1_000_000 + 2)]
    for socket, _ in opened:
        socket.data_received(b"GET / HTTP/1.1\r\nX: " + b"x" * 1_000_000)
    still = [line.open for _, line in opened]
    assert still[0] is False
    assert all(still[2:])
    world.opened()  # whose request is complete


def test_a_handshake_over_tls_counts_from_the_accept_on() -> None:
    world = World()
    ended: list[int] = []
    first = world.sockets.accepted()
    first.abandon = lambda: ended.append(1)
    first.arrived("192.0.2.1", 7)
    for _ in range(transport.MAX_WAITING):
        world.accepted()
    assert ended == [1]
    assert first.failed(SetupError("TLS handshake error: EOF", "")) == b""


def test_a_plain_request_where_tls_is_required() -> None:
    socket = World().sockets.accepted()
    socket.arrived("192.0.2.1", 7)
    assert socket.failed(SetupError("TLS handshake error: x", "", http=True)).startswith(b"HTTP/1.0 400 Bad Request")


def test_a_handshake_that_does_not_come_in_time() -> None:
    world = World(handshake_timeout_ns=SECOND)
    socket, line = world.accepted()
    socket.data_received(b"GET / HTTP/1.1\r\n")
    world.clock.advance(SECOND)
    assert line.taken().startswith(b"HTTP/1.1 400 Bad Request")
    assert not line.open


def test_handshakes_whose_time_is_over_together_end_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(handshake_timeout_ns=SECOND)
    clock, close = world.clock, Line.close
    world.sockets.turn = Turn(clock.call_soon, steady=clock.steady)

    def slow(line: Line) -> None:
        clock.time += LONE_SLICE_NS // 3
        close(line)

    monkeypatch.setattr(Line, "close", slow)
    lines = [world.accepted()[1] for _ in range(12)]
    clock.time += SECOND
    for timer in [timer for timer in clock.timers if timer.due <= clock.time]:
        timer.callback()
    assert 0 < sum(not line.open for line in lines) < 6
    clock.turn()
    assert not any(line.open for line in lines)


def test_closing_the_listener_ends_handshakes_and_no_clients() -> None:
    world = World()
    _, waiting = world.accepted()
    _, connected, _ = world.opened()
    world.sockets.close()
    assert (waiting.open, connected.open) == (False, True)
