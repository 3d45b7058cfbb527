"""Tests of S2 streams: round trips, streams written by Go, and detection of damage."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.protocol import s2
from lakestream.protocol.s2 import MAGIC, Decoder, S2Error, decode_block, encode

pytestmark = pytest.mark.unit


def read(data: bytes, step: int = 1 << 20) -> bytes:
    decoder = Decoder()
    found = [piece for at in range(0, len(data), step) for piece in decoder.feed(data[at : at + step])]
    decoder.finish()
    return b"".join(found)


@given(st.lists(st.binary(max_size=2000)), st.integers(1, 5000))
def test_what_is_written_is_read(pieces: list[bytes], step: int) -> None:
    assert read(MAGIC + b"".join(map(encode, pieces)), step) == b"".join(pieces)


def test_large_pieces_become_several_chunks() -> None:
    data = random.Random(1).randbytes(3 * s2.MAX_CHUNK + 5)
    encoded = encode(data)
    assert encoded.count(b"\x01\x04\x00\x01") >= 3
    assert read(MAGIC + encoded, 1000) == data


def block(size: int, *elements: bytes) -> bytes:
    """Return a block of `size` bytes < 128."""
    return bytes([size]) + b"".join(elements)


def literal(data: bytes) -> bytes:
    return bytes([len(data) - 1 << 2]) + data


@pytest.mark.parametrize(
    ("packed", "wanted"),
    [
        (block(0), b""),
        (block(3, literal(b"abc")), b"abc"),
        (block(62, b"\xf0\x3d", b"x" * 62), b"x" * 62),  # a literal with a length of one byte
        (block(62, b"\xf4\x3d\x00", b"x" * 62), b"x" * 62),  # of two
        (block(8, literal(b"abcd"), b"\x01\x04"), b"abcdabcd"),  # a copy with an offset of 11 bits
        (block(9, literal(b"ab"), b"\x0d\x02"), b"abababab" + b"a"),  # a copy that overlaps its own output
        (block(7, literal(b"abcd"), b"\x0a\x03\x00"), b"abcdbcd"),  # 16 bits
        (block(7, literal(b"abcd"), b"\x0b\x03\x00\x00\x00"), b"abcdbcd"),  # 32 bits
        (block(12, literal(b"abcd"), b"\x01\x04", b"\x01\x00"), b"abcd" * 3),  # the previous offset again
        (block(4 + 4 + 9, literal(b"abcd"), b"\x01\x04", b"\x15\x00\x01"), (b"abcd" * 5)[:17]),  # and a longer length
    ],
)
def test_blocks_as_go_writes_them(packed: bytes, wanted: bytes) -> None:
    assert decode_block(packed) == wanted


def test_long_repeats() -> None:
    two = b"\x90\x04" + literal(b"abcd") + b"\x01\x04" + b"\x19\x00" + (528 - 8 - 260).to_bytes(2, "little")
    assert decode_block(two) == b"abcd" * 132
    size = 65536 + 4 + 8 + 44
    head = bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14])
    three = head + literal(b"abcd") + b"\x01\x04" + b"\x1d\x00" + (44).to_bytes(3, "little")
    assert decode_block(three) == (b"abcd" * (size // 4 + 1))[:size]


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\xff\xff\xff\xff\xff\xff\xff",
        b"\xff\xff\xff\x7f" + literal(b"x"),  # larger than the maximum block
        block(2, literal(b"abc")),
        block(4, literal(b"abc")),
        block(3, literal(b"abc")[:-1]),
        block(8, b"\x01\x04"),  # nothing to copy from
        block(8, literal(b"abcd"), b"\x01\x05"),  # from before the start
        block(8, literal(b"abcd"), b"\x01\x00"),  # no previous offset
        block(8, literal(b"abcd"), b"\x0a\x03"),
        block(8, literal(b"abcd"), b"\x01"),
        block(9, b"\xfc\xff\xff\xff\xff"),
    ],
)
def test_damaged_blocks_are_refused(packed: bytes) -> None:
    with pytest.raises(S2Error, match="corrupt"):
        decode_block(packed)


def test_what_is_no_data_is_passed_over() -> None:
    padding, skipped = b"\xfe\x03\x00\x00abc", b"\x99\x01\x00\x00x"
    assert read(MAGIC + padding + encode(b"one") + skipped + MAGIC + encode(b"two")) == b"onetwo"
    assert read(b"\xff\x06\x00\x00sNaPpY" + encode(b"one")) == b"one"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (encode(b"x"), "corrupt"),
        (b"\xff\x06\x00\x00S2sTwX" + encode(b"x"), "corrupt"),
        (MAGIC + b"\x02\x01\x00\x00x", "unsupported"),
        (MAGIC + b"\x01\x01\x00\x00x", "corrupt"),
        (MAGIC + encode(b"abc").replace(b"abc", b"abd"), "crc mismatch"),
        (MAGIC + b"\x00\xff\xff\xff", "corrupt"),
        (MAGIC + encode(b"abc")[:-1], "corrupt"),
        (MAGIC[:-1], "corrupt"),
    ],
)
def test_damaged_streams_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(S2Error, match=why):
        read(data)


@given(st.binary(max_size=300))
def test_no_bytes_do_harm(data: bytes) -> None:
    for candidate in (data, MAGIC + data):
        try:
            read(candidate)
        except S2Error:
            continue
