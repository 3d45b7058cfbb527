"""S2 streams, the framing of backups.

Belongs here: reading and writing the chunks of an S2 (or Snappy) stream. Reading takes everything that a Go server
writes: blocks with literals, copies and repeat offsets, uncompressed chunks, padding and skippable chunks. Writing
makes uncompressed chunks only: compressing costs more time in Python than sending the bytes, and every reader takes
them. The contents of a backup are in account/backup/archive.py.

Source: the Snappy framing format, and S2's extensions of it (identifier `S2sTwO`, blocks up to 4 MiB, repeat offsets).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

MAGIC = b"\xff\x06\x00\x00S2sTwO"
"""The first bytes of a stream."""
MAX_CHUNK = 64 << 10
"""Maximum bytes in a written chunk: Snappy's limit, so that readers of Snappy take it too."""
MAX_BLOCK = 4 << 20
"""Maximum bytes of a block that is read: the limit of the format."""

_COMPRESSED, _PLAIN, _IDENTIFIER = 0x00, 0x01, 0xFF
_FIRST_SKIPPABLE = 0x80
_BODIES = (b"S2sTwO", b"sNaPpY")
_POLYNOMIAL = 0x82F63B78
_LANE = 64
_FEWEST_LANES = 8


class S2Error(Exception):
    """Raised for bytes that are not an S2 stream, with nats-server's text."""


_CORRUPT = "s2: corrupt input"


# ---------------------------------------------------------------------------- checksum


def _byte_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _byte_table()
_PLANES = [bytes((entry >> shift) & 0xFF for entry in _TABLE) for shift in (0, 8, 16, 24)]


def _applied(columns: list[int], state: int) -> int:
    """Apply a linear map, given by the images of the bits, to a state."""
    result, bit = 0, 0
    while state:
        if state & 1:
            result ^= columns[bit]
        state >>= 1
        bit += 1
    return result


@lru_cache(maxsize=64)
def _over_zeros(length: int) -> list[int]:
    """Return the images of the bits of a state after `length` zero bytes. `length` is a power of two."""
    if length == 1:
        return [(1 << bit >> 8) ^ _TABLE[1 << bit & 0xFF] for bit in range(32)]
    half = _over_zeros(length // 2)
    return [_applied(half, column) for column in half]


@lru_cache(maxsize=64)
def _shift_tables(length: int) -> list[list[bytes]]:
    """Return `_over_zeros` as tables: by byte of the state before and after, the image of each value."""
    columns = _over_zeros(length)
    tables = []
    for before in range(4):
        images = [_applied(columns, value << 8 * before) for value in range(256)]
        tables.append([bytes((image >> 8 * after) & 0xFF for image in images) for after in range(4)])
    return tables


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of `data`.

    The standard library has none. Many lanes of the input are processed one byte at a time, all lanes in one step by
    `bytes.translate`, which is some thirty times as fast as a loop over the bytes; then the lanes are joined.
    """
    if len(data) < _LANE * _FEWEST_LANES:
        state, table = 0xFFFFFFFF, _TABLE
        for byte in data:
            state = (state >> 8) ^ table[(state ^ byte) & 0xFF]
        return state ^ 0xFFFFFFFF
    # A state of ones before the first byte is the same as a state of zero before that byte and its three successors
    # inverted; zeros in front leave a state of zero as it is. So every lane begins with zero, and all are full.
    lanes = 1 << (-(-len(data) // _LANE) - 1).bit_length()
    first = bytes(byte ^ 0xFF for byte in data[:4])
    padded = b"".join((bytes(lanes * _LANE - len(data)), first, data[4:]))
    number, planes = int.from_bytes, _PLANES
    low = second = third = high = 0
    for at in range(_LANE):
        index = (low ^ number(padded[at::_LANE], "little")).to_bytes(lanes, "little")
        low = second ^ number(index.translate(planes[0]), "little")
        second = third ^ number(index.translate(planes[1]), "little")
        third = high ^ number(index.translate(planes[2]), "little")
        high = number(index.translate(planes[3]), "little")
    return _joined([each.to_bytes(lanes, "little") for each in (low, second, third, high)], lanes) ^ 0xFFFFFFFF


def _joined(states: list[bytes], lanes: int) -> int:
    """Return the state after all lanes; `states` are theirs, one string for each of the four bytes."""
    length = _LANE
    while lanes > 1:
        lanes //= 2
        tables = _shift_tables(length)
        joined = []
        for after in range(4):
            value = int.from_bytes(states[after][1::2], "little")
            for before in range(4):
                value ^= int.from_bytes(states[before][::2].translate(tables[before][after]), "little")
            joined.append(value.to_bytes(lanes, "little"))
        states, length = joined, length * 2
    return int.from_bytes(b"".join(states), "little")


def _masked(data: bytes) -> int:
    crc = crc32c(data)
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
