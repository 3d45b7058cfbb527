"""Targets: what clients and leaf nodes send.

Commands must not depend on how the byte stream is cut, and the compiled module must agree with its twin.
"""

from __future__ import annotations

import contextlib
import importlib
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from lakestream.native import plain
from lakestream.net.connection import APART
from lakestream.net.websocket.frames import BATCH_BYTES
from lakestream.protocol import headers
from lakestream.protocol.leaf_wire import LeafParser, LeafWireError
from lakestream.protocol.parser import Parser
from lakestream.protocol.publishes import NOTHING_APART, Apart, Publishes, single
from tests.fuzz.target import Target
from tests.unit.net.websocket.world import LONGEST_MESSAGE, World
from tests.websocket import DEFLATE, frame, request

fast: Any = importlib.import_module("lakestream.native._fast")
WORD, LIMIT = 2032, 1 << 20
CUTS = (1, 2, 3, 7, 16, 64, 256, 1 << 20)
"""Sizes of the pieces in which a stream is read, in bytes."""


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def outcome(call: Callable[..., Any], *args: Any) -> Any:
    """Return the result of a call, or its exception."""
    try:
        return call(*args)
    except Exception as error:
        return type(error), error.args


# ---------------------------------------------------------------------- clients


def _commands(parts: Sequence[bytes], longest_line: int, longest: int, apart: Apart) -> list[Any]:
    parser = Parser(longest_line, longest, apart=apart)
    return [command for part in parts for command in single(parser.feed(part))]


def _protocol(data: bytes) -> None:
    if not data:
        return
    how, sent = data[0], data[1:]
    limits = (4096, LIMIT) if how & 8 else (64, 100)
    apart = APART if how & 16 else NOTHING_APART
    whole = _commands([sent], *limits, apart)
    cut = _commands(pieces(sent, CUTS[how & 7]), *limits, apart)
    assert repr(whole) == repr(cut), (whole, cut)
    at = sent.find(b"PUB ")
    while at >= 0:
        at -= sent[at - 1 : at] == b"H"
        found = outcome(fast.parse_run, sent, at, WORD, limits[1], True, *apart)
        assert found == outcome(plain.parse_run, sent, at, WORD, limits[1], True, *apart)
        if found is not None:
            _stored(sent, found)
        at = sent.find(b"PUB ", found[0] if found is not None else at + 2)


def _fields(*fields: Any) -> tuple[Any, ...]:
    return fields


def _stored(sent: bytes, run: tuple[Any, ...]) -> None:
    """Compare the twins in everything that is done with a run: records, their checks, and back."""
    end, subjects, _, places, _, heads, own = run
    messages = list(Publishes(sent, *run[1:]).messages())
    for name in own:
        columns = outcome(fast.header_values, sent, places, heads, 0, len(subjects), name)
        assert columns == outcome(plain.header_values, sent, places, heads, 0, len(subjects), name)
        assert columns == [headers.get(message.header, name) for message in messages]
    args = (sent, subjects, places, heads, 0, len(subjects), 5, 1_700_000_000_000_000_000, 3)
    encoded = outcome(fast.encode_run, *args)
    assert encoded == outcome(plain.encode_run, *args)
    records, lengths = encoded
    assert sum(lengths) == len(records)
    at = 0
    for seq, (message, length) in enumerate(zip(messages, lengths, strict=True), 5):
        made = fast.decode_record(_fields, records, at, at + length, True)
        assert made == plain.decode_record(_fields, records, at, at + length, True)
        (read_seq, _, subject, header, payload), _ = made
        assert (read_seq, subject, header, payload) == (seq, message.subject, message.header, message.payload)
        at += length
    assert end <= len(sent)


# ---------------------------------------------------------------------- leaf nodes


def _events(parts: Sequence[bytes], longest: int) -> tuple[list[Any], str]:
    parser, events = LeafParser(longest), []
    with contextlib.suppress(LeafWireError):
        for part in parts:
            events += parser.feed(part)
        return events, ""
    return [], "refused"


def _leaf(data: bytes) -> None:
    if not data:
        return
    how, sent = data[0], data[1:]
    longest = 1 << 20 if how & 8 else 100
    whole, cut = _events([sent], longest), _events(pieces(sent, CUTS[how & 7]), longest)
    assert repr(whole) == repr(cut), (whole, cut)


# ---------------------------------------------------------------------- WebSocket


class _Taken:
    """The server's sockets, made anew from time to time."""

    def __init__(self) -> None:
        self.left, self.world = 0, None

    def get(self) -> World:
        if not self.left or self.world is None:
            options = {"same_origin": True, "user_cookie": "user", "pass_cookie": "p", "token_cookie": "t"}
            self.left, self.world = 500, World(compression=True, **options)
        self.left -= 1
        return self.world


_sockets = _Taken()


def _websocket(data: bytes) -> None:
    """Bit 0 of the first byte: a handshake, otherwise frames after one; bits 1-3: pieces; 4, 5: compression, masks."""
    if not data:
        return
    how, sent = data[0], data[1:]
    world = _sockets.get()
    socket, line = world.accepted()
    try:
        if not how & 1:
            offer = {"Sec-WebSocket-Extensions": DEFLATE} if how & 16 else {}
            agent = {"User-Agent": "Mozilla/5.0"} if how & 32 else {}
            socket.data_received(request(offer | agent, host="h"))
        for piece in pieces(sent, CUTS[how >> 1 & 7]):
            socket.data_received(piece)
            _turns(world)
        line.taken()
    finally:
        socket.connection_lost(None)
        world.clients.clear()
        world.clock.timers.clear()
        world.clock.soon.clear()


def _turns(world: World) -> None:
    """Run turns of the event loop until nothing is due; each passes on a limited amount."""
    parsers = [Parser() for _ in world.clients]
    while True:
        for client, parser in zip(world.clients, parsers, strict=True):
            assert len(client.data) <= BATCH_BYTES + LONGEST_MESSAGE + (1 << 18)
            parser.feed(client.data)
            client.received = []
        if not world.clock.soon:
            return
        due, world.clock.soon = world.clock.soon, []
        for callback in due:
            callback()


def _deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    return (packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH))[:-4]


COMMANDS = (
    b"PING\r\n",
    b"SUB a.* q 1\r\nUNSUB 1 5\r\n",
    b"PUB a 5\r\nhello\r\nPUB a b 0\r\n\r\nPUB c 1\r\nx\r\n",
    b'CONNECT {"verbose":true,"headers":true}\r\nHPUB a b 12 17\r\nNATS/1.0\r\n\r\nhello\r\n',
    b"PUB $NRG.a _R_.b 2\r\nab\r\nPUB a $JS.ACK.x 2\r\nab\r\n",
    b"pub\ta\t3\r\nabc\r\n+OK\r\n-ERR 'x'\r\nINFO {}\r\nPONG\n",
)


def _websocket_seeds() -> list[bytes]:
    found = [b"\x01" + request(fields, host="h") for fields in ({}, {"Origin": "http://h"}, {"Cookie": "user=a; p=b"})]
    for command in COMMANDS:
        found.append(b"\x0e" + frame(2, command))
        found.append(b"\x1e" + frame(1, command[:3], final=False) + frame(9, b"x") + frame(0, command[3:]))
        found.append(b"\x1e" + frame(2, _deflated(command * 20), reserved=4) + frame(8, b"\x03\xe8bye"))
    return found


TARGETS = (
    Target(
        "protocol",
        "client protocol (parser, and the compiled module beside its twin)",
        _protocol,
        (),
        lambda: [bytes([how]) + command for command in COMMANDS for how in (1, 15)],
        (b"PUB ", b"HPUB ", b"SUB ", b"UNSUB ", b"CONNECT {", b"PING", b"\r\n", b"NATS/1.0\r\n\r\n", b"$NRG.", b"_R_."),
    ),
    Target(
        "leaf",
        "leaf node protocol",
        _leaf,
        (),
        lambda: [
            b"\x0bLS+ a.> 1\r\nLS+ b q 3\r\nLS- b q\r\nLMSG a 2\r\nab\r\nLMSG a + r q 2\r\nab\r\n",
            b"\x08HMSG a b 12 14\r\nNATS/1.0\r\n\r\nab\r\nHMSG a | q p 12 12\r\nNATS/1.0\r\n\r\n\r\n",
            b'\x02INFO {"server_id":"x","max_payload":9}\r\nCONNECT {"name":"n"}\r\nPING\r\nPONG\r\n-ERR \'x\'\r\n',
            b'\x0fCONNECT {"a":' + b"[" * 2000 + b"\r\n",
            b'\x0fINFO {"a":' + b"[" * 2000 + b"\r\n",
            b"\x0fPUB a 2\r\nab\r\nHPUB a 12 13\r\nNATS/1.0\r\n\r\nx\r\nLMSG $JS.ACK.a r@b 0\r\n\r\n",
        ],
        (b"LMSG ", b"HMSG ", b"LS+ ", b"LS- ", b"INFO {", b"CONNECT {", b"\r\n", b" + ", b" | ", b"-ERR ", b"PING"),
    ),
    Target(
        "websocket",
        "WebSocket: handshakes and frames",
        _websocket,
        (),
        _websocket_seeds,
        (
            b"\x82\x85",
            b"\xc2",
            b"\x88\x82",
            b"GET / HTTP/1.1\r\n",
            b"Sec-WebSocket-Extensions: ",
            b"Cookie: ",
            b"\r\n\r\n",
        ),
    ),
)
