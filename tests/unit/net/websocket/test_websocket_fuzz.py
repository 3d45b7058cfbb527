"""Random input to a WebSocket, before and after its handshake: valid, changed in a few bytes, or made up.

`LAKESTREAM_FUZZ_ROUNDS` inputs (5,000) are drawn from `LAKESTREAM_FUZZ_SEED`. An input passes if nothing is raised, if
no turn of the event loop takes longer than 50 ms of the processor's time, and if what is kept stays small.
"""

from __future__ import annotations

import random
import time
import zlib

import psutil
import pytest

from lakestream.net.websocket.frames import BATCH_BYTES
from lakestream.protocol.parser import Parser
from tests.fuzzing import CAMPAIGN, ROUNDS, SEED
from tests.unit.net.websocket.world import LONGEST_MESSAGE, Client, World
from tests.websocket import DEFLATE, USUAL, frame, request

pytestmark = pytest.mark.unit

LONGEST_TURN_S = 0.05
MOST_KEPT = 64 << 20
"""Bytes by which the process may grow after the first inputs, with its allocator's slack (64 MiB)."""

COMMANDS = (
    b"PING\r\n",
    b"SUB a.* q 1\r\n",
    b"PUB a 5\r\nhello\r\n",
    b"HPUB a b 12 17\r\nNATS/1.0\r\n\r\nhello\r\n",
    b'CONNECT {"verbose":true}\r\n',
    b"PUB a 100000\r\n" + bytes(100_000) + b"\r\n",
    b"A" * 5000,
)
VALUES = (
    "",
    "websocket",
    "Upgrade",
    "close",
    "permessage-deflate",
    DEFLATE,
    "null",
    "http://h",
    "http://%zz",
    "13",
    "true",
    "a=b; c",
    'user="x"',
    "1.2.3.4",
    "Mozilla/5.0 Version/1 Safari/1",
    "\xff\x00",
    ",;=",
)
NAMES = (
    *USUAL,
    "Origin",
    "Sec-WebSocket-Extensions",
    "Cookie",
    "X-Forwarded-For",
    "User-Agent",
    "Nats-No-Masking",
    "Content-Length",
    "Transfer-Encoding",
    "a b",
)
LINES = ("GET / HTTP/1.1", "GET /mqtt HTTP/1.1", "GET /leafnode HTTP/1.1", "POST / HTTP/1.1", "GET", "GET / HTTP/2.0")


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    return (packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH))[:-4]


BOMB = frame(2, deflated(bytes(64 << 20)), reserved=4)
MANY = (frame(2, b"") * 30_000, frame(2, b"\r") * 30_000, frame(9, b"x") * 20_000, frame(2, b"\0", reserved=4) * 20_000)


def changed(rng: random.Random, data: bytes) -> bytes:
    """Return the bytes with some of them changed, left out or repeated."""
    made = bytearray(data)
    for _ in range(rng.choice((0, 0, 1, 1, 2, 5))):
        at = rng.randrange(len(made) + 1)
        match rng.randrange(4):
            case 0:
                made[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 1:
                del made[at : at + rng.randrange(1, 9)]
            case 2:
                made[at : at + 1] = rng.randbytes(1)
            case 3:
                made[at:at] = made[: rng.randrange(60)]
    return bytes(made)


def handshake(rng: random.Random) -> bytes:
    """Return a request: mostly a good one that says unusual things."""
    fields = {rng.choice(NAMES): rng.choice(VALUES) for _ in range(rng.randrange(4))} if rng.random() < 0.8 else {}
    line = rng.choice(LINES) if rng.random() < 0.3 else LINES[0]
    lines = [f"{name}: {value}" for name, value in (USUAL | fields).items()]
    sent = "\r\n".join([line, *lines, "", ""]).replace("{host}", "h").encode("latin-1")
    return rng.randbytes(rng.randrange(400)) if rng.random() < 0.1 else changed(rng, sent)


def frames(rng: random.Random) -> bytes:
    """Return frames, right and wrong ones."""
    if rng.random() < 0.002:
        return rng.choice((BOMB, *MANY))
    if rng.random() < 0.1:
        return rng.randbytes(rng.randrange(1000))
    sent = b""
    for _ in range(rng.randrange(1, 8)):
        data = rng.choice(COMMANDS) if rng.random() < 0.8 else rng.randbytes(rng.randrange(200))
        compressed = rng.random() < 0.3
        data = deflated(data) if compressed else data
        pieces = rng.randrange(1, 4) if rng.random() < 0.3 else 1
        step = len(data) // pieces + 1
        for number in range(pieces):
            piece = data[number * step : (number + 1) * step]
            opcode = 0 if number else rng.choice((1, 2, 2, 2, 2))
            sent += frame(opcode, piece, final=number == pieces - 1, reserved=4 * (compressed and not number))
            if rng.random() < 0.1:
                sent += frame(rng.choice((8, 9, 10)), rng.randbytes(rng.choice((0, 1, 2, 5, 125))))
    return changed(rng, sent)


class Watched:
    """Measures the longest call.

    Attributes:
        longest_s: of the processor's time, in seconds.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0

    def __enter__(self) -> None:
        self._began = time.thread_time()

    def __exit__(self, *_: object) -> None:
        self.longest_s = max(self.longest_s, time.thread_time() - self._began)


def pieces(rng: random.Random, sent: bytes) -> list[bytes]:
    """Return the bytes as they are read: in pieces of up to 256 KiB."""
    step = rng.choice((1, 7, 100)) if len(sent) < 1000 and rng.random() < 0.3 else 1 << 18
    return [sent[at : at + step] for at in range(0, len(sent), step)]


def speak(world: World, rng: random.Random, sent: bytes, watched: Watched) -> None:
    """Send bytes after a good handshake; the connection parses what it gets."""
    offer = {"Sec-WebSocket-Extensions": DEFLATE} if rng.random() < 0.7 else {}
    agent = {"User-Agent": "Mozilla/5.0"} if rng.random() < 0.3 else {}
    socket, line = world.accepted()
    socket.data_received(request(offer | agent, host="h"))
    client, parser = world.clients.pop(), Parser()
    line.taken()
    largest = 0
    for piece in pieces(rng, sent):
        with watched:
            socket.data_received(piece)
        while True:
            largest = max(largest, _parsed(parser, client))
            line.taken()
            if not world.clock.soon:
                break
            due, world.clock.soon = world.clock.soon, []
            for callback in due:
                with watched:
                    callback()
    assert largest <= BATCH_BYTES + LONGEST_MESSAGE + (1 << 18)
    if line.open and rng.random() < 0.5:
        client.transport.write(rng.randbytes(100))  # type: ignore[attr-defined]
    socket.connection_lost(None)


def _parsed(parser: Parser, client: Client) -> int:
    data, client.received = client.data, []
    parser.feed(data)
    return len(data)


def test_random_input() -> None:
    rng, watched = random.Random(SEED), Watched()
    world = World(compression=True, same_origin=True, user_cookie="user", pass_cookie="p", token_cookie="t")
    accepted = 0
    process = psutil.Process()
    before = most = 0
    for number in range(ROUNDS):
        if rng.random() < 0.4:
            socket, line = world.accepted()
            for piece in pieces(rng, handshake(rng)):
                with watched:
                    socket.data_received(piece)
            accepted += line.written.startswith(b"HTTP/1.1 101 ")
            socket.connection_lost(None)
            world.clients.clear()
        else:
            speak(world, rng, frames(rng), watched)
        if number % 1000 == 0:
            world.clock.timers.clear()
        if number == ROUNDS // 10:
            before = process.memory_info().rss
        if number % 100 == 0 and before:
            most = max(most, process.memory_info().rss - before)
    longest_ms = watched.longest_s * 1e3
    print(f"{ROUNDS} inputs, {accepted} handshakes accepted, longest turn {longest_ms:.1f} ms, grew by {most} bytes")
    assert accepted > ROUNDS / 50
    assert most < MOST_KEPT
    assert watched.longest_s < LONGEST_TURN_S or ROUNDS < CAMPAIGN
