"""Tests of deletion vectors as the protocol defines them. tests/lake/test_history.py tests those that Spark writes."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.lake.errors import BadDeletionVector
from lakestream.lake.table.actions import DeletionVector
from lakestream.lake.table.deletion_vectors import decode, load

pytestmark = pytest.mark.unit


def containers(values: list[int], runs: bool) -> bytes:
    """Return a 32-bit bitmap in the portable Roaring format; with run containers if `runs`, else without."""
    parts: dict[int, list[int]] = {}
    for value in values:
        parts.setdefault(value >> 16, []).append(value & 0xFFFF)
    if runs:
        head = struct.pack("<I", 12347 | (len(parts) - 1) << 16) + b"\xff" * ((len(parts) + 7) // 8)
    else:
        head = struct.pack("<II", 12346, len(parts))
    bodies = []
    for key, low in parts.items():
        head += struct.pack("<HH", key, len(low) - 1)
        if runs:
            pairs: list[list[int]] = []
            for value in low:
                if pairs and pairs[-1][0] + pairs[-1][1] + 1 == value:
                    pairs[-1][1] += 1
                else:
                    pairs.append([value, 0])
            bodies.append(struct.pack("<H", len(pairs)) + b"".join(struct.pack("<HH", *pair) for pair in pairs))
        elif len(low) > 4096:
            bits = bytearray(8192)
            for value in low:
                bits[value // 8] |= 1 << value % 8
            bodies.append(bytes(bits))
        else:
            bodies.append(struct.pack(f"<{len(low)}H", *low))
    if not runs or len(parts) >= 4:
        head += b"\0\0\0\0" * len(parts)
    return head + b"".join(bodies)


def encode(values: list[int], runs: bool = False) -> bytes:
    parts: dict[int, list[int]] = {}
    for value in values:
        parts.setdefault(value >> 32, []).append(value & 0xFFFFFFFF)
    body = b"".join(struct.pack("<I", key) + containers(low, runs) for key, low in parts.items())
    return struct.pack("<iq", 1681511377, len(parts)) + body


@settings(max_examples=150, deadline=None)
@given(
    st.sets(st.one_of(st.integers(0, 300), st.integers(0, 1 << 20), st.integers(0, 1 << 34)), max_size=60),
    st.integers(0, 1 << 18),
    st.integers(0, 6000),
    st.booleans(),
)
def test_a_vector_decodes_to_what_it_was_made_of(scattered: set[int], start: int, dense: int, runs: bool) -> None:
    values = sorted(scattered | set(range(start, start + dense)))
    assert decode(encode(values, runs)).tolist() == values


def vector(kind: str, path: str, body: bytes, offset: int | None = None) -> DeletionVector:
    return DeletionVector(kind, path, len(body), 0, offset)


def test_a_vector_is_found_in_its_file() -> None:
    body = encode([3, 5, 70_000])
    content = b"\x01" + b"other" + struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))
    asked: list[str] = []

    def read(path: str) -> bytes:
        asked.append(path)
        return content

    # Twenty zeros are the UUID of all zeros; the prefix before them is a directory.
    assert load(vector("u", "ab" + "0" * 20, body, 6), "/t", read).tolist() == [3, 5, 70_000]
    assert load(vector("u", "0" * 20, body, 6), "/t", read).tolist() == [3, 5, 70_000]
    assert load(vector("p", "file:///x/y.bin", body, 6), "/t", read).tolist() == [3, 5, 70_000]
    zeros = "deletion_vector_00000000-0000-0000-0000-000000000000.bin"
    assert asked == [f"/t/ab/{zeros}", f"/t/{zeros}", "/x/y.bin"]
    with pytest.raises(BadDeletionVector, match="offset 5"):
        load(vector("p", "/x", body, 5), "/t", read)
    content = content[:-5] + b"\0" + content[-4:]
    with pytest.raises(BadDeletionVector, match="checksum"):
        load(vector("p", "/x", body, 6), "/t", read)


def test_what_is_no_vector_is_an_error() -> None:
    for body in (b"", b"\0" * 12, encode([1, 2, 3])[:-1], encode([1])[:13], struct.pack("<iqII", 1681511377, 1, 0, 7)):
        with pytest.raises(BadDeletionVector):
            decode(body)
    with pytest.raises(BadDeletionVector, match="kind 'x'"):
        load(vector("x", "", b""), "/t", lambda path: b"")
    with pytest.raises(BadDeletionVector, match="Z85"):
        load(vector("i", "~~~~~", b""), "/t", lambda path: b"")


def test_an_inline_vector_is_spelled_in_z85() -> None:
    """An inline vector is encoded in Z85; the eight bytes are the example of ZeroMQ's own description."""
    from lakestream.lake.table.actions import from_z85

    assert from_z85("HelloWorld") == bytes([0x86, 0x4F, 0xD2, 0x6F, 0xB5, 0x59, 0xF7, 0x5B])
