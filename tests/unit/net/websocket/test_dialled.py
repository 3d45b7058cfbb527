"""Tests of the dialling side: the handshake against our own listener and against garbage, and the frames behind it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lakestream.config.options import WebSocketOptions
from lakestream.logging import Logger
from lakestream.net.turn import Turn
from lakestream.net.websocket.dialled import DialledWebSocket
from lakestream.net.websocket.frames import BATCH_BYTES, NO_LIMIT, FrameWriter, WebSocketReader
from lakestream.net.websocket.handshake import MAX_ANSWER, DialledHandshake, Handshake, NotAgreedError
from lakestream.net.websocket.upgrade import Agreement
from tests.unit.net.websocket.world import Client, Line
from tests.unit.stream_world import ManualClock

pytestmark = pytest.mark.unit

AGREED = "permessage-deflate; server_no_context_takeover; client_no_context_takeover"


def answer_to(request: bytes, **options: object) -> bytes:
    """Return what our listener answers."""
    upgrade = Handshake(WebSocketOptions(**options)).feed(request)  # type: ignore[arg-type]
    assert upgrade is not None
    assert upgrade.leaf
    return upgrade.answer


@given(st.lists(st.integers(0, 1000), max_size=9), st.booleans(), st.booleans(), st.booleans(), st.binary(max_size=9))
def test_our_listener_and_our_leaf_node_agree(
    cuts: list[int], compresses: bool, unmasked: bool, listener: bool, rest: bytes
) -> None:
    shake = DialledHandshake("h:1", "/a/", compresses=compresses, unmasked=unmasked)
    assert shake.request.startswith(b"GET /a/leafnode HTTP/1.1\r\n")
    answer = answer_to(shake.request, compression=listener) + rest
    head = len(answer) - len(rest)
    points = sorted({0, *(cut % head for cut in cuts), len(answer)})
    found = [shake.feed(answer[start:end]) for start, end in itertools.pairwise(points)]
    assert found[:-1] == [None] * (len(found) - 1)
    assert found[-1] == Agreement(compressed=compresses and listener, masked=not unmasked, rest=rest)


@given(st.data())
def test_a_changed_answer_is_agreed_on_or_named(data: st.DataObject) -> None:
    shake = DialledHandshake("h:1", compresses=True, unmasked=True)
    answer = bytearray(answer_to(shake.request, compression=True))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(answer) - 1))
        answer[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    with contextlib.suppress(NotAgreedError):  # any other error fails
        found = shake.feed(bytes(answer))
        assert found is None or isinstance(found, Agreement)


@given(st.binary(max_size=400))
@example(b"HTTP/1.1 100 Continue\r\n\r\n")
@example(b"HTTP/1.1 101 \r\n\r\n")
@example(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")
@example(b"HTTP/1.1 101 x\r\nSec-WebSocket-Accept: \xff\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n")
@example(b"x" * (MAX_ANSWER + 10))
def test_garbage_is_never_agreed_on(garbage: bytes) -> None:
    with contextlib.suppress(NotAgreedError):  # any other error fails
        assert DialledHandshake("h:1").feed(garbage) is None


@pytest.mark.parametrize(
    ("extension", "asks"),
    [
        (AGREED, False),
        ("x-webkit-deflate-frame", True),
        ("permessage-deflate", True),
        ("permessage-deflate; server_no_context_takeover", True),
        (f"{AGREED}, {AGREED}", True),
    ],
)
def test_extensions_that_cannot_be_read_end_the_handshake(extension: str, asks: bool) -> None:
    shake = DialledHandshake("h:1", compresses=asks)
    line = f"\r\nSec-WebSocket-Extensions: {extension}\r\n\r\n"
    answer = answer_to(shake.request).replace(b"\r\n\r\n", line.encode())
    with pytest.raises(NotAgreedError, match=r"extension|negotiation"):
        shake.feed(answer)


@given(st.lists(st.integers(0, 200_000), min_size=1, max_size=4), st.booleans(), st.booleans(), st.integers(0, 40_000))
def test_what_is_written_is_read(sizes: list[int], deflated: bool, masked: bool, most: int) -> None:
    writer = FrameWriter(deflated=deflated, masked=masked, max_inflated=most)
    reader = WebSocketReader(masked=masked, deflated=deflated, max_message=NO_LIMIT)
    pieces = [os.urandom(size // 2) + bytes(size - size // 2) for size in sizes]
    for piece in pieces:
        reader.feed(bytes(writer.data(piece)))
    read = b""
    while reader.more:
        read += reader.read()
    assert (reader.error, read) == (None, b"".join(pieces))


def test_compressed_messages_are_no_larger_than_the_other_side_takes() -> None:
    stream = bytes(FrameWriter(deflated=True, max_inflated=1000).data(b"x" * 2500))
    reader = WebSocketReader(masked=False, deflated=True, max_message=1000)
    reader.feed(stream)
    assert (reader.read(), reader.error) == (b"x" * 2500, None)


def test_a_bomb_is_inflated_in_pieces() -> None:
    bomb = bytes(FrameWriter(deflated=True).data(bytes(50 << 20)))
    reader = WebSocketReader(masked=False, deflated=True, max_message=NO_LIMIT)
    reader.feed(bomb)
    sizes = []
    while reader.more:
        sizes.append(len(reader.read()))
    assert (sum(sizes), max(sizes) < 2 * BATCH_BYTES) == (50 << 20, True)


class Dialled:
    """A dialled socket without a network."""

    def __init__(self) -> None:
        clock = ManualClock()
        shake = DialledHandshake("h:1")
        self.answer = answer_to(shake.request)
        self.client, self.line = Client(None), Line()  # type: ignore[arg-type]
        self.socket = DialledWebSocket(self.client, shake, clock, Logger(logtime=False), Turn(clock.call_soon))
        self.socket.connection_made(self.line)
        assert self.line.taken() == shake.request


async def test_the_connection_begins_behind_the_handshake_and_its_frames_are_masked() -> None:
    dialled = Dialled()
    dialled.socket.data_received(dialled.answer + b"\x82\x04INFO")
    assert (await dialled.socket.agreed).masked
    assert dialled.client.data == b"INFO"
    dialled.client.transport.write(b"CONNECT")  # type: ignore[attr-defined]
    frame = dialled.line.taken()
    assert frame[:2] == bytes((0x82, 0x80 | 7))
    key = frame[2:6]
    assert bytes(byte ^ key[at % 4] for at, byte in enumerate(frame[6:])) == b"CONNECT"
    dialled.socket.data_received(b"\x82\x84maskMASK")
    dialled.socket.connection_lost(None)
    assert [str(error) for error in dialled.client.lost] == ["client received unexpected masked frame"]


async def test_a_refused_handshake_ends_the_socket() -> None:
    dialled = Dialled()
    dialled.socket.data_received(b"HTTP/1.1 403 Forbidden\r\n\r\n")
    assert not dialled.line.open
    with pytest.raises(NotAgreedError, match="403 Forbidden"):
        await dialled.socket.agreed
    dialled.socket.data_received(b"late")
    dialled.socket.connection_lost(None)
    assert (dialled.client.data, dialled.client.lost) == (b"", [])


async def test_an_end_during_the_handshake_is_named() -> None:
    dialled = Dialled()
    dialled.socket.connection_lost(None)
    with pytest.raises(NotAgreedError, match="closed during"):
        await asyncio.wait_for(dialled.socket.agreed, 5)
