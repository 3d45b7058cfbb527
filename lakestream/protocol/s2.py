"""S2 streams, the framing of backups.

Belongs here: reading and writing the chunks of an S2 (or Snappy) stream. Reading takes everything that a Go server
writes: blocks with literals, copies and repeat offsets, uncompressed chunks, padding and skippable chunks. Writing
makes uncompressed chunks only: compressing costs more time in Python than sending the bytes, and every reader takes
them. The contents of a backup are in account/backup/archive.py.

Source: the Snappy framing format, and S2's extensions of it (identifier `S2sTwO`, blocks up to 4 MiB, repeat offsets).
"""

from __future__ import annotations

from collections.abc import Iterator

import google_crc32c

MAGIC = b"\xff\x06\x00\x00S2sTwO"
"""The first bytes of a stream."""
MAX_CHUNK = 64 << 10
"""Maximum bytes in a written chunk: Snappy's limit, so that readers of Snappy take it too."""
MAX_BLOCK = 4 << 20
"""Maximum bytes of a block that is read: the limit of the format."""

_COMPRESSED, _PLAIN, _IDENTIFIER = 0x00, 0x01, 0xFF
_FIRST_SKIPPABLE = 0x80
_BODIES = (b"S2sTwO", b"sNaPpY")


class S2Error(Exception):
    """Raised for bytes that are not an S2 stream, with nats-server's text."""


_CORRUPT = "s2: corrupt input"


def _masked(data: bytes) -> int:
    crc: int = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


# ---------------------------------------------------------------------------- writing


def encode(data: bytes) -> bytes:
    """Encode `data` as chunks, without the stream's beginning (`MAGIC`). Blocks: call it in a thread if large."""
    parts: list[bytes] = []
    for at in range(0, len(data), MAX_CHUNK):
        piece = data[at : at + MAX_CHUNK]
        parts += (
            b"\x01",
            (len(piece) + 4).to_bytes(3, "little"),
            _masked(piece).to_bytes(4, "little"),
            piece,
        )
    return b"".join(parts)


# ---------------------------------------------------------------------------- reading


class Decoder:
    """Decodes a stream piece by piece."""

    def __init__(self) -> None:
        self._waiting = bytearray()
        self._begun = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the contents of whole chunks, in order; a block is unpacked when it is asked for. Raises S2Error.

        Some bytes may unpack to 4 MiB, so no more than one block is held. Ask for all of them before the next call.
        """
        waiting = self._waiting
        waiting += data
        while len(waiting) >= 4:
            length = int.from_bytes(waiting[1:4], "little")
            kind = waiting[0]
            # A block that does not shrink is larger than what it holds by its length, its crc and its literals' tags.
            if kind < _FIRST_SKIPPABLE and length > MAX_BLOCK + MAX_BLOCK // 6 + 64:
                raise S2Error(_CORRUPT)
            if not self._begun and kind != _IDENTIFIER:
                raise S2Error(_CORRUPT)
            end = 4 + length
            if end > len(waiting):
                return
            body = bytes(waiting[4:end])
            del waiting[:end]
            if piece := self._chunk(kind, body):
                yield piece

    def finish(self) -> None:
        """Check the end of the stream. Raises S2Error when it is truncated."""
        if self._waiting:
            raise S2Error(_CORRUPT)

    def _chunk(self, kind: int, body: bytes) -> bytes:
        if kind == _IDENTIFIER:
            if body not in _BODIES:
                raise S2Error(_CORRUPT)
            self._begun = True
            return b""
        if kind >= _FIRST_SKIPPABLE:
            return b""
        if kind > _PLAIN:
            raise S2Error("s2: unsupported input")
        if len(body) < 4:
            raise S2Error(_CORRUPT)
        data = body[4:] if kind == _PLAIN else decode_block(body, 4)
        if len(data) > MAX_BLOCK:
            raise S2Error(_CORRUPT)
        if _masked(data) != int.from_bytes(body[:4], "little"):
            raise S2Error("s2: corrupt input, crc mismatch")
        return data


def decode_block(block: bytes, at: int = 0) -> bytes:
    """Return the contents of a block that begins at `at` with its length. Raises S2Error."""
    try:
        size, at = _uvarint(block, at)
        if size > MAX_BLOCK:
            raise S2Error(_CORRUPT)
        return _unpacked(block, at, size)
    except IndexError:
        raise S2Error(_CORRUPT) from None


def _uvarint(block: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = block[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
        if shift > 35:
            raise S2Error(_CORRUPT)


def _unpacked(block: bytes, at: int, size: int) -> bytes:
    """Return the elements of a block from `at` on. Raises S2Error, IndexError when it is truncated."""
    out = bytearray()
    end, offset = len(block), 0
    while at < end:
        tag = block[at]
        at += 1
        kind = tag & 3
        if kind == 0:
            length = tag >> 2
            if length >= 60:
                width = length - 59
                length = int.from_bytes(block[at : at + width], "little")
                at += width
            length += 1
            if at + length > end:
                raise S2Error(_CORRUPT)
            out += block[at : at + length]
            at += length
            continue
        if kind == 1:
            length = tag >> 2 & 7
            near = (tag & 0xE0) << 3 | block[at]
            at += 1
            if near:
                offset = near
            elif length > 4:  # the offset of the copy before, and a length of its own
                width = length - 4
                more = int.from_bytes(block[at : at + width], "little")
                length = more + (4 if width == 1 else 1 << 8 * (width - 1))
                at += width
            length += 4
        else:
            width = 2 if kind == 2 else 4
            length = (tag >> 2) + 1
            offset = int.from_bytes(block[at : at + width], "little")
            at += width
        if at > end or not 0 < offset <= len(out) or len(out) + length > size:
            raise S2Error(_CORRUPT)
        if offset >= length:
            start = len(out) - offset
            out += out[start : start + length]
        else:  # the copy overlaps its own output: a pattern of `offset` bytes
            pattern = bytes(out[-offset:])
            out += (pattern * (length // offset + 1))[:length]
    if len(out) != size:
        raise S2Error(_CORRUPT)
    return bytes(out)
