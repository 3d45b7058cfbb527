"""Frames of WebSocket (RFC 6455, RFC 7692), without I/O.

Belongs here: the data of a client's frames and what control frames ask for, with nats-server's errors, and the frames
for a client. Rules are those of nats-server where they are wider than the RFC's: lengths in longer forms than needed,
text that is not UTF-8.
"""

from __future__ import annotations

import struct
import zlib

BATCH_BYTES = 1 << 18
"""Data of frames that is handed on together (256 KiB); the rest of what was read waits for the next turn."""

BATCH_FRAMES = 4000
"""Frames that are decoded in one turn of the event loop (4,000, about 8 ms)."""

PLAIN_BYTES = 64
"""Data up to this size is not compressed (64 bytes, as in nats-server)."""

MAX_CONTROL = 125
"""Bytes of the data of a control frame, and of a length in the second byte of a frame."""

NO_CODE, PROTOCOL_ERROR, INVALID_DATA = 1005, 1002, 1007
"""Close codes: none was sent, a frame is wrong, a reason is not UTF-8."""

COMPRESSION_LEVEL = 1
UNMASKED_AS_NUMBER = 512
"""Bytes up to which data is unmasked as one number; above it, translating each fourth byte takes less time."""

_FINAL, _COMPRESSED, _RESERVED, _MASKED = 0x80, 0x40, 0x30, 0x80
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10
_CONTROL = 8
_TAIL = b"\x00\x00\xff\xff"
"""The end of a deflated message, which is not sent."""
_XOR = [bytes(byte ^ key for byte in range(256)) for key in range(256)]
_CODES = (*range(1000, 1004), *range(1007, 1015))
_OWN_CODES = range(3000, 5000)


class FrameError(Exception):
    """Raised for frames that no client may send. The text is nats-server's.

    Attributes:
        code: of the close frame; 0: none is sent.
    """

    def __init__(self, text: str, code: int = PROTOCOL_ERROR) -> None:
        super().__init__(text)
        self.code = code


# ---------------------------------------------------------------------- frames of a client


def unmasked(data: bytearray, key: bytes | bytearray) -> bytes:
    """Return data without its mask."""
    size = len(data)
    if size <= UNMASKED_AS_NUMBER:
        mask = int.from_bytes((key * (size // 4 + 1))[:size], "little")
        return (int.from_bytes(data, "little") ^ mask).to_bytes(size, "little")
    for at in range(4):
        data[at::4] = data[at::4].translate(_XOR[key[at]])
    return bytes(data)


class _Inflater:
    """Inflates one message.

    Args:
        limit: bytes of the inflated message.

    Attributes:
        empty: no data came yet.
    """

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._zlib = zlib.decompressobj(-zlib.MAX_WBITS)
        self.empty = True

    def feed(self, data: bytes, last: bool) -> bytes:
        """Return what this part of the message inflates to. Raises FrameError."""
        self.empty = self.empty and not data
        if last:
            if self.empty:
                raise FrameError("flate: corrupt input before offset 1", 0)
            data += _TAIL
        try:
            inflated = self._zlib.decompress(data, self._left + 1)
        except zlib.error:
            raise FrameError("flate: corrupt input before offset 1", 0) from None
        if len(inflated) > self._left:
            raise FrameError("maximum payload exceeded", 0)
        self._left -= len(inflated)
        return inflated


class FrameReader:
    """Reads the frames of a client.

    Args:
        masked: its frames are masked.
        deflated: permessage-deflate was agreed on.
        max_message: bytes of an inflated message.

    Attributes:
        answers: pings that came and wait for a pong.
        closed: the code and reason of the client's close frame; None: none came. Code 1005: without one.
        error: what ended the stream; None: nothing.
        more: there may be whole frames left that the last `read` did not take.
    """

    def __init__(self, *, masked: bool, deflated: bool, max_message: int) -> None:
        self.max_message = max_message
        self.answers: list[bytes] = []
        self.closed: tuple[int, str] | None = None
        self.error: FrameError | None = None
        self.more = False
        self._masked, self._deflated = masked, deflated
        self._buffer = bytearray()
        self._key = b""
        self._rest = -1
        """Bytes of the data frame that is being read, which have not come; -1: a frame begins."""
        self._last = True  # it is the last frame of its message
        self._inside_message = False
        self._inflater: _Inflater | None = None

    def feed(self, data: bytes) -> None:
        """Add bytes of the stream."""
        if self.error is None and self.closed is None:
            self._buffer += data
            self.more = True

    def read(self) -> bytes:
        """Return the data of the next frames, of incomplete ones too, up to about `BATCH_BYTES`."""
        parts: list[bytes] = []
        try:
            self._read(parts)
        except FrameError as error:
            self.error = error
        if self.error is not None or self.closed is not None:
            self.more = False
            self._buffer.clear()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read(self, parts: list[bytes]) -> None:
        """Add the data of the next frames to `parts`. Raises FrameError."""
        buffer, masked = self._buffer, self._masked
        at, end, size = 0, len(buffer), 0
        for _ in range(BATCH_FRAMES):
            rest = self._rest
            if rest < 0:
                begin = at + 2
                if begin > end:
                    self.more = False
                    break
                first, rest = buffer[at], buffer[at + 1]
                self._check(first, rest)
                rest &= 0x7F
                if rest > MAX_CONTROL:
                    begin += 2 if rest == MAX_CONTROL + 1 else 8
                    rest = int.from_bytes(buffer[at + 2 : begin])
                if masked:
                    begin += 4
                if begin > end:
                    self.more = False
                    break
                if rest >> 63:
                    raise FrameError("invalid 64-bit payload length")
                key = bytes(buffer[begin - 4 : begin]) if masked else b""
                if first & _CONTROL:
                    if begin + rest > end:
                        self.more = False
                        break
                    at = begin + rest
                    self._control(first & 0xF, unmasked(buffer[begin:at], key) if masked else bytes(buffer[begin:at]))
                    if self.closed is not None:
                        return
                    continue
                self._begin(first)
                at = begin
            else:
                key = self._key
            came = min(rest, end - at)
            if at == end and (rest or (self._inflater is not None and self._inflater.empty)):
                # Also a compressed message of no bytes: nats-server finds the error in it when more bytes come.
                self._rest, self._key, self.more = rest, key, False
                break
            piece = buffer[at : at + came]
            data = unmasked(piece, key) if masked else bytes(piece)
            at += came
            if came < rest:
                turned = came % 4
                self._rest, self._key = rest - came, key[turned:] + key[:turned]
                last = False
            else:
                self._rest = -1
                last = self._last
                self._inside_message = not last
            if self._inflater is not None:
                data = self._inflater.feed(data, last)
            parts.append(data)
            size += len(data)
            if size >= BATCH_BYTES:
                break
        del buffer[:at]

    def _check(self, first: int, second: int) -> None:
        """Check the first two bytes of a frame, in nats-server's order. Raises FrameError."""
        if self._masked and not second & _MASKED:
            raise FrameError("mask bit missing")
        opcode = first & 0xF
        if opcode in (_CLOSE, _PING, _PONG):
            if second & 0x7F > MAX_CONTROL:
                raise FrameError("control frame length bigger than maximum allowed of 125 bytes")
            if not first & _FINAL:
                raise FrameError("control frame does not have final bit set")
        elif opcode == _CONTINUATION:
            if not self._inside_message or (first & _COMPRESSED and self._deflated):
                raise FrameError("invalid continuation frame")
        elif opcode not in (_TEXT, _BINARY):
            raise FrameError(f"unknown opcode {opcode}")
        elif self._inside_message:
            raise FrameError("new message started before final frame for previous message was received")
        if first & _COMPRESSED and (opcode & _CONTROL or not self._deflated):
            raise FrameError("compressed frame received without negotiated permessage-deflate")
        if first & _RESERVED:
            raise FrameError("RSV2 and RSV3 must be clear")

    def _begin(self, first: int) -> None:
        """Begin a data frame whose header is complete."""
        self._last = bool(first & _FINAL)
        self._inside_message = True
        if first & 0xF != _CONTINUATION:
            self._inflater = _Inflater(self.max_message) if first & _COMPRESSED else None

    def _control(self, opcode: int, data: bytes) -> None:
        if opcode == _PING:
            self.answers.append(data)
        elif opcode == _CLOSE:
            self.closed = _close(data)


def _close(data: bytes) -> tuple[int, str]:
    if not data:
        return NO_CODE, ""
    if len(data) == 1:
        raise FrameError("close frame payload cannot be 1 byte")
    code = int.from_bytes(data[:2])
    if code not in _CODES and code not in _OWN_CODES:
        raise FrameError(f"invalid close status code {code}")
    try:
        return code, data[2:].decode()
    except UnicodeDecodeError:
        return INVALID_DATA, "invalid utf8 body in close frame"


# ---------------------------------------------------------------------- frames for a client


def _frame(first: int, data: bytes) -> bytes:
    size = len(data)
    if size <= MAX_CONTROL:
        return bytes((first, size)) + data
    if size < 1 << 16:
        return struct.pack("!BBH", first, MAX_CONTROL + 1, size) + data
    return struct.pack("!BBQ", first, MAX_CONTROL + 2, size) + data


class FrameWriter:
    """Makes frames for a client.

    Args:
        deflated: permessage-deflate was agreed on.
        max_frame: bytes of the largest frame; 0: no limit.
        whole: compressed messages are one frame even so.
    """

    def __init__(self, *, deflated: bool, max_frame: int, whole: bool) -> None:
        self._deflated, self._max_frame, self._whole = deflated, max_frame, whole

    def data(self, data: bytes) -> bytes:
        """Return the data as binary frames: one, or for a client with small frames several."""
        compressed = 0
        if self._deflated and len(data) > PLAIN_BYTES:
            # Without context takeover: a message is compressed whole, by itself.
            packer = zlib.compressobj(COMPRESSION_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
            data = (packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)).removesuffix(_TAIL)
            compressed = _COMPRESSED
        limit = self._max_frame
        if not limit or len(data) <= limit or (compressed and self._whole):
            return _frame(_FINAL | compressed | _BINARY, data)
        pieces = [data[at : at + limit] for at in range(0, len(data), limit)]
        if not compressed:  # messages, each of which the client can use at once
            return b"".join(_frame(_FINAL | _BINARY, piece) for piece in pieces)
        inner = (_frame(_CONTINUATION, piece) for piece in pieces[1:-1])
        ends = _frame(compressed | _BINARY, pieces[0]), _frame(_FINAL | _CONTINUATION, pieces[-1])
        return b"".join((ends[0], *inner, ends[1]))

    def pong(self, data: bytes) -> bytes:
        """Return the answer to a ping."""
        return _frame(_FINAL | _PONG, data)

    def close(self, code: int, reason: str) -> bytes:
        """Return a close frame; code 1005: without a code. A long reason is cut."""
        if code == NO_CODE:
            return _frame(_FINAL | _CLOSE, b"")
        cut = reason.encode()[: MAX_CONTROL - 2].decode(errors="ignore")
        return _frame(_FINAL | _CLOSE, code.to_bytes(2) + cut.encode())
