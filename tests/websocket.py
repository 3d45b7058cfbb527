"""A WebSocket client for scripts that must see exactly what a server answers: its handshake, and each of its frames.

What belongs here: the handshake as bytes, frames in and out over wsproto's sans-IO core, frames that no client may
send, and a socket's face for `tests.wire.Wire`, so that the NATS protocol is spoken in frames.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from wsproto.extensions import PerMessageDeflate
from wsproto.frame_protocol import CloseReason, FrameDecoder, FrameProtocol, Opcode, RsvBits

from tests.wire import READ_SIZE, Closed, Secure, Socket, WireTimeout, dial

USUAL = {
    "Host": "{host}",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
}
"""Header fields of a good request. The key is RFC 6455's, whose answer is known."""

DEFLATE = "permessage-deflate; server_no_context_takeover; client_no_context_takeover"
MASK = b"\x11\x22\x33\x44"


class Response(NamedTuple):
    """The answer to a handshake: status line, header fields in order as they came, and the bytes after them."""

    status: str
    fields: list[tuple[str, str]]
    rest: bytes

    @property
    def accepted(self) -> bool:
        """True if frames follow."""
        return self.status.startswith("HTTP/1.1 101 ")


class Framed(NamedTuple):
    """A frame from the server; of a close frame, the code and then the reason are its data."""

    kind: str
    data: bytes
    final: bool = True


def request(
    fields: Mapping[str, str | None] | None = None, *, host: str, line: str = "GET / HTTP/1.1", usual: bool = True
) -> bytes:
    """Return a handshake's request: the usual fields, with these changed or, where None, left out."""
    chosen = {**(USUAL if usual else {}), **(fields or {})}
    lines = [f"{key}: {value.format(host=host)}" for key, value in chosen.items() if value is not None]
    return "\r\n".join([line, *lines, "", ""]).encode("latin-1")


def shake(opened: Socket, sent: bytes, timeout: float) -> Response:
    """Send a request, and read the answer as far as its header (its body too, if a length is given).

    Raises:
        Closed: the server closed the connection before the end of the header.
        WireTimeout: nothing came in time.
    """
    opened.settimeout(timeout)
    opened.sendall(sent)
    got = b""
    while b"\r\n\r\n" not in got:
        got += _read(opened)
    head, _, rest = got.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    fields = [(name, value) for name, _, value in (line.partition(": ") for line in lines)]
    missing = int(dict(fields).get("Content-Length", 0)) - len(rest)
    while missing > 0:
        rest += (more := _read(opened))
        missing -= len(more)
    return Response(status, fields, rest)


def _read(opened: Socket) -> bytes:
    try:
        data = opened.recv(READ_SIZE)
    except TimeoutError:
        raise WireTimeout from None
    except ConnectionError:
        data = b""
    if not data:
        raise Closed
    return data


def frame(opcode: int, data: bytes, *, final: bool = True, masked: bool = True, reserved: int = 0) -> bytes:
    """Return one frame as bytes, right or wrong: any opcode (0-15), any reserved bits (0-7), masked or not."""
    size = len(data)
    long = (size,) if size < 126 else (126, size.to_bytes(2)) if size < 1 << 16 else (127, size.to_bytes(8))
    head = bytes([final << 7 | reserved << 4 | opcode, masked << 7 | long[0]]) + b"".join(long[1:])
    if not masked:
        return head + data
    repeated = MASK * (size // 4 + 1)
    return head + MASK + bytes(byte ^ key for byte, key in zip(data, repeated, strict=False))


class _Seen(PerMessageDeflate):
    """The extension, which keeps of each frame whether it was compressed: frames that are read do not show it."""

    def __init__(self) -> None:
        super().__init__()
        self.compressed: list[bool] = []

    def frame_inbound_header(
        self, proto: FrameDecoder | FrameProtocol, opcode: Opcode, rsv: RsvBits, payload_length: int
    ) -> CloseReason | RsvBits:
        self.compressed.append(rsv.rsv1)
        return super().frame_inbound_header(proto, opcode, rsv, payload_length)


class WebSocket:
    """One connection whose handshake was accepted; what is sent with `sendall` goes as one binary frame.

    Args:
        address: host and port.
        fields: changes of the request's usual header fields; a None leaves one out.
        secure: TLS to use, or None.
        split: most bytes of a frame that `sendall` sends; a longer message is sent in several frames.

    Attributes:
        response: the server's answer to the handshake.
        frames: every frame that came, in order, without those that `recv` was given already.

    Raises:
        AssertionError: the handshake was refused.
    """

    def __init__(
        self,
        address: tuple[str, int],
        fields: Mapping[str, str | None] | None = None,
        timeout: float = 5.0,
        *,
        secure: Secure | None = None,
        line: str = "GET / HTTP/1.1",
        split: int = 0,
    ) -> None:
        self.socket: Socket = dial(address, timeout)
        if secure:
            self.socket = secure.wrap(self.socket)
        self._timeout: float | None = timeout
        self._split = split
        self.response = shake(self.socket, request(fields, host=f"{address[0]}:{address[1]}", line=line), timeout)
        assert self.response.accepted, self.response
        self._deflate = _Seen()
        for name, value in self.response.fields:
            if name.lower() == "sec-websocket-extensions":
                self._deflate.finalize(value)
        extensions = [self._deflate] if self._deflate.enabled() else []
        self._protocol = FrameProtocol(client=True, extensions=extensions)
        self._protocol.receive_bytes(self.response.rest)
        self.frames: deque[Framed] = deque()
        self.closed = False

    @property
    def compressed(self) -> list[bool]:
        """True for each frame that came compressed, in order; empty if no compression was agreed on."""
        return self._deflate.compressed

    def settimeout(self, seconds: float | None) -> None:
        """Set how long `recv` may wait."""
        self._timeout = seconds

    def send_raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(data)

    def sendall(self, data: bytes) -> None:
        """Send one message, in as many frames as `split` asks for."""
        step = self._split or max(len(data), 1)
        pieces = [data[at : at + step] for at in range(0, len(data), step)] or [b""]
        for number, piece in enumerate(pieces, 1):
            self.socket.sendall(self._protocol.send_data(piece, fin=number == len(pieces)))

    def ping(self, data: bytes = b"") -> None:
        """Send a ping."""
        self.socket.sendall(self._protocol.ping(data))

    def send_close(self, code: int | None = None, reason: str = "") -> None:
        """Send a close frame; `recv` and `next` go on reading."""
        self.socket.sendall(self._protocol.close(None if code is None else CloseReason(code), reason))

    def next(self, timeout: float | None = None) -> Framed:
        """Return the next frame of the server.

        Raises:
            WireTimeout: none came in time.
            Closed: the server closed the connection first.
        """
        deadline = time.monotonic() + (timeout if timeout is not None else self._timeout or 5.0)
        while not self.frames:
            self._receive(deadline)
        return self.frames.popleft()

    def until_closed(self, timeout: float = 5.0) -> list[Framed]:
        """Return all frames until the server closes the connection.

        Raises:
            WireTimeout: it did not in time.
        """
        found: list[Framed] = []
        try:
            while True:
                found.append(self.next(timeout))
        except Closed:
            return found

    def _receive(self, deadline: float) -> None:
        """Read until at least one frame is whole."""
        while True:
            for got in self._protocol.received_frames():
                match got.payload:
                    case (code, reason):
                        data = f"{int(code)} {reason or ''}".rstrip().encode()
                    case str(text):
                        data = text.encode()
                    case payload:
                        data = bytes(payload or b"")
                self.frames.append(Framed(got.opcode.name, data, got.message_finished))
            if self.frames:
                return
            left = deadline - time.monotonic()
            if left <= 0:
                raise WireTimeout
            self.socket.settimeout(left)
            self._protocol.receive_bytes(_read(self.socket))

    def recv(self, size: int) -> bytes:
        """Return the data of the next frame with data; b"" once the server closed the connection or sent a close frame.

        Other frames are passed over.
        """
        del size
        deadline = time.monotonic() + (self._timeout or 5.0)
        while True:
            try:
                got = self.next(max(0.0, deadline - time.monotonic()))
            except Closed:
                return b""
            except WireTimeout:
                raise TimeoutError from None
            if got.kind == "CLOSE":
                return b""
            if got.kind in ("TEXT", "BINARY", "CONTINUATION"):
                return got.data

    def close(self) -> None:
        """Close our end at once."""
        self.closed = True
        self.socket.close()
