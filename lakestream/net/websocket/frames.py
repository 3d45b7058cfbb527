"""Frames of WebSocket, without I/O.

Belongs here: the data of the other side's frames and what control frames ask for, with nats-server's errors, and the
frames for it. wsproto decodes and encodes; its rules are changed where nats-server's are wider (lengths in longer forms
than needed, text that is not UTF-8) and where it has no limit (inflated data).
"""

from __future__ import annotations

import zlib

from wsproto.extensions import Extension
from wsproto.frame_protocol import CloseReason, FrameDecoder, FrameProtocol, Opcode, ParseFailed, RsvBits

BATCH_BYTES = 1 << 18
"""Data of frames that is handed on together (256 KiB); the rest of what was read waits for the next turn."""

BATCH_FRAMES = 200
"""Frames that are decoded without a break (200, about 2 ms)."""

PLAIN_BYTES = 64
"""Data up to this size is not compressed (64 bytes, as in nats-server)."""

NO_LIMIT = 1 << 62
"""Bytes of a message between servers: each is handed on in pieces of `BATCH_BYTES` as it is inflated."""

MAX_CONTROL = 125
COMPRESSION_LEVEL = 1
_TAIL = b"\x00\x00\xff\xff"
"""The end of a deflated message, which is not sent."""
_UNCOMPRESSED = RsvBits(False, False, False)
_COMPRESSED = RsvBits(True, False, False)
_TEXTS = {
    "Invalid attempt to fragment control frame": "control frame does not have final bit set",
    "server received unexpected unmasked frame": "mask bit missing",
}
_CODES = (*range(1000, 1004), *range(1007, 1015))
_OWN_CODES = range(3000, 5000)


class FrameError(Exception):
    """Raised for frames that the other side may not send. The text is nats-server's.

    Attributes:
        code: of the close frame; 0: none is sent.
    """

    def __init__(self, text: str, code: int = CloseReason.PROTOCOL_ERROR) -> None:
        super().__init__(text)
        self.code = int(code)


class _Decoder(FrameDecoder):
    """wsproto's decoder with nats-server's rules for lengths and reserved bits.

    Attributes:
        compressed: the first reserved bit of the current frame.
    """

    def __init__(self, masked: bool, deflated: bool) -> None:
        super().__init__(client=not masked)
        self._deflated = deflated
        self.compressed = False

    def parse_extended_payload_length(self, opcode: Opcode, payload_len: int) -> int | None:
        if opcode.iscontrol() and payload_len > MAX_CONTROL:
            raise ParseFailed("control frame length bigger than maximum allowed of 125 bytes")
        if payload_len <= MAX_CONTROL:
            return payload_len
        data = self.buffer.consume_exactly(2 if payload_len == MAX_CONTROL + 1 else 8)
        if data is None:
            return None
        size = int.from_bytes(data, "big")
        if size >> 63:
            raise ParseFailed("invalid 64-bit payload length")
        return size

    def extension_processing(self, opcode: Opcode, rsv: RsvBits, payload_len: int) -> None:
        if rsv.rsv1 and opcode is Opcode.CONTINUATION and self._deflated:
            raise ParseFailed("invalid continuation frame")
        if rsv.rsv1 and (opcode.iscontrol() or not self._deflated):
            raise ParseFailed("compressed frame received without negotiated permessage-deflate")
        if rsv.rsv2 or rsv.rsv3:
            raise ParseFailed("RSV2 and RSV3 must be clear")
        self.compressed = rsv.rsv1


class _Inflater:
    """Inflates one message.

    Args:
        limit: bytes of the inflated message.

    Attributes:
        empty: no byte of the message came yet. A whole one without any is corrupt.
    """

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._zlib = zlib.decompressobj(-zlib.MAX_WBITS)
        self.empty = True

    @property
    def behind(self) -> bool:
        """Return True if parts of the message wait to be inflated by `more`."""
        return bool(self._zlib.unconsumed_tail)

    def feed(self, data: bytes, last: bool) -> bytes:
        """Return the beginning of what this part of the message inflates to. Raises FrameError."""
        self.empty = self.empty and not data
        if self.empty:
            return b""
        return self._inflated(data + _TAIL if last else data)

    def more(self) -> bytes:
        """Return the next piece. Raises FrameError."""
        return self._inflated(self._zlib.unconsumed_tail)

    def _inflated(self, data: bytes) -> bytes:
        try:
            inflated = self._zlib.decompress(data, min(self._left + 1, BATCH_BYTES))
        except zlib.error:
            raise FrameError("flate: corrupt input before offset 1", 0) from None
        if len(inflated) > self._left:
            raise FrameError("maximum payload exceeded", 0)
        self._left -= len(inflated)
        return inflated


class WebSocketReader:
    """Reads the frames of the other side.

    Args:
        masked: its frames are masked.
        deflated: permessage-deflate was agreed on.
        max_message: bytes of an inflated message.

    Attributes:
        answers: pings that came and wait for a pong.
        closed: the code and reason of its close frame; None: none came. Code 1005: without one.
        error: what ended the stream; None: nothing.
        more: there may be whole frames left that the last `read` did not take.
    """

    def __init__(self, *, masked: bool, deflated: bool, max_message: int) -> None:
        self.max_message = max_message
        self.answers: list[bytes] = []
        self.closed: tuple[int, str] | None = None
        self.error: FrameError | None = None
        self.more = False
        self._decoder = _Decoder(masked, deflated)
        self._inside_frame = self._inside_message = False
        self._inflater: _Inflater | None = None
        self._corrupt = False  # the last message is compressed and empty; the next byte ends the stream

    def feed(self, data: bytes) -> None:
        """Add bytes of the stream."""
        if self.error is None and self.closed is None:
            self._decoder.receive_bytes(data)
            self.more = True

    def read(self) -> bytes:
        """Return the data of the next frames, of incomplete ones too, up to about `BATCH_BYTES`."""
        if self.error is not None or self.closed is not None:
            return b""
        parts: list[bytes] = []
        size = 0
        try:
            for _ in range(BATCH_FRAMES):
                if self._inflater is not None and self._inflater.behind:
                    parts.append(self._inflater.more())
                    size += len(parts[-1])
                    if size >= BATCH_BYTES:
                        break
                    continue
                if self._corrupt and self._decoder.buffer:
                    raise FrameError("flate: corrupt input before offset 5", 0)
                frame = self._decoder.process_buffer()
                if frame is None:
                    self.more = False
                    break
                data = frame.payload
                assert isinstance(data, bytes)
                if frame.opcode.iscontrol():
                    self._control(frame.opcode, data)
                    if self.closed is not None:
                        self.more = False
                        break
                    continue
                if not self._inside_frame:
                    self._begin(frame.opcode)
                self._inside_frame = not frame.frame_finished
                last = frame.frame_finished and frame.message_finished
                self._inside_message = not last
                if self._inflater is not None:
                    data = self._inflater.feed(data, last)
                    self._corrupt = last and self._inflater.empty
                parts.append(data)
                size += len(data)
                if size >= BATCH_BYTES:
                    break
        except FrameError as error:
            self.error = error
        except ParseFailed as error:
            self.error = FrameError(_text(str(error)))
        self.more = self.more and self.error is None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _begin(self, opcode: Opcode) -> None:
        """Check the first bytes of a data frame against the message before."""
        if opcode is Opcode.CONTINUATION:
            if not self._inside_message:
                raise FrameError("invalid continuation frame")
            return
        if self._inside_message:
            raise FrameError("new message started before final frame for previous message was received")
        self._inflater = _Inflater(self.max_message) if self._decoder.compressed else None

    def _control(self, opcode: Opcode, data: bytes) -> None:
        if opcode is Opcode.PING:
            self.answers.append(data)
        elif opcode is Opcode.CLOSE:
            self.closed = _close(data)


def _close(data: bytes) -> tuple[int, str]:
    if not data:
        return int(CloseReason.NO_STATUS_RCVD), ""
    if len(data) == 1:
        raise FrameError("close frame payload cannot be 1 byte")
    code = int.from_bytes(data[:2], "big")
    if code not in _CODES and code not in _OWN_CODES:
        raise FrameError(f"invalid close status code {code}")
    try:
        return code, data[2:].decode()
    except UnicodeDecodeError:
        return int(CloseReason.INVALID_FRAME_PAYLOAD_DATA), "invalid utf8 body in close frame"


def _text(text: str) -> str:
    """Return nats-server's text for an error of wsproto."""
    if text.startswith("Invalid opcode "):
        return f"unknown opcode {int(text.rpartition(' ')[2], 16)}"
    return _TEXTS.get(text, text)


# ---------------------------------------------------------------------- frames for the other side


class _Deflate(Extension):
    """permessage-deflate for what is sent, without context takeover: a message is compressed whole, by itself.

    Attributes:
        compressed: the next frame is; its data is compressed already.
    """

    name = "permessage-deflate"

    def __init__(self) -> None:
        self.compressed = False

    def enabled(self) -> bool:
        return True

    def offer(self) -> bool:
        return True

    def frame_outbound(
        self, proto: FrameDecoder | FrameProtocol, opcode: Opcode, rsv: RsvBits, data: bytes, fin: bool
    ) -> tuple[RsvBits, bytes]:
        first = self.compressed and opcode is Opcode.BINARY
        return (_COMPRESSED if first else _UNCOMPRESSED), data


class FrameWriter:
    """Makes frames for the other side.

    Args:
        deflated: permessage-deflate was agreed on.
        max_frame: bytes of the largest frame; 0: no limit.
        whole: compressed messages are one frame even so.
        masked: as those of a client are.
        max_inflated: bytes of the largest compressed message before it is compressed; 0: no limit.
    """

    def __init__(
        self, *, deflated: bool, max_frame: int = 0, whole: bool = False, masked: bool = False, max_inflated: int = 0
    ) -> None:
        self._deflate = _Deflate() if deflated else None
        self._max_frame, self._whole, self._max_inflated = max_frame, whole, max_inflated
        self._protocol = FrameProtocol(client=masked, extensions=[self._deflate] if self._deflate else [])

    def data(self, data: bytes) -> bytes | bytearray:
        """Return the data as binary frames: one, or several where frames or messages are to be small."""
        if self._deflate is not None:
            if (most := self._max_inflated) and len(data) > most:
                return b"".join(self.data(data[at : at + most]) for at in range(0, len(data), most))
            self._deflate.compressed = compressed = len(data) > PLAIN_BYTES
            if compressed:
                packer = zlib.compressobj(COMPRESSION_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
                data = (packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)).removesuffix(_TAIL)
        else:
            compressed = False
        limit = self._max_frame
        if not limit or len(data) <= limit or (compressed and self._whole):
            return self._protocol.send_data(data)
        # Compressed: fragments of one message. Otherwise messages, each of which the client can use at once.
        pieces = range(0, len(data), limit)
        return b"".join(
            self._protocol.send_data(data[at : at + limit], fin=not compressed or at + limit >= len(data))
            for at in pieces
        )

    def pong(self, data: bytes) -> bytearray:
        """Return the answer to a ping."""
        return self._protocol.pong(data)

    def close(self, code: int, reason: str) -> bytearray:
        """Return a close frame; code 1005: without a code."""
        if code == CloseReason.NO_STATUS_RCVD:
            return self._protocol.close()
        return self._protocol.close(code, reason)
