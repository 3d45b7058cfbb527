"""Tests of the frame layout, and of the search for frames after damage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.log.format.frame import HEADER_SIZE, Frame, Kind, decode_frame, encode_header, later_write

pytestmark = pytest.mark.unit

SALT = 0xC0FFEE


def encode(frame: Frame, salt: int = SALT) -> bytes:
    return encode_header(frame, frame.write, salt) + frame.body


frames = st.builds(
    Frame,
    kind=st.sampled_from(Kind),
    term=st.integers(0, 2**64 - 1),
    index=st.integers(1, 2**64 - 1),
    count=st.integers(0, 2**32 - 1),
    body=st.binary(max_size=100),
    write=st.integers(0, 2**64 - 1),
)


@given(frames, st.binary(max_size=10))
def test_frames_come_back(frame: Frame, before: bytes) -> None:
    encoded = before + encode(frame)
    assert decode_frame(encoded, len(before), len(encoded), SALT) == frame


@given(frames, st.data())
def test_any_flipped_bit_is_found(frame: Frame, data: st.DataObject) -> None:
    encoded = bytearray(encode(frame))
    at = data.draw(st.integers(0, len(encoded) * 8 - 1))
    encoded[at // 8] ^= 1 << at % 8
    assert isinstance(decode_frame(bytes(encoded), 0, len(encoded), SALT), str)


def test_a_frame_with_another_salt_is_none() -> None:
    encoded = encode(Frame(Kind.NOOP, 1, 1, 0, b""), salt=1)
    assert decode_frame(encoded, 0, len(encoded), 2) == "the frame does not carry the salt of its segment"


def test_a_kind_of_a_later_release_is_refused_by_name() -> None:
    frame = Frame(Kind.NOOP, 1, 1, 0, b"")
    frame.kind = 9  # type: ignore[assignment]
    encoded = encode(frame)
    assert "kind 9" in str(decode_frame(encoded, 0, len(encoded), SALT))


def test_only_a_frame_of_a_later_write_counts_as_later() -> None:
    same = encode(Frame(Kind.OPERATION, 1, 6, 0, b"abc", write=5))
    later = encode(Frame(Kind.OPERATION, 1, 7, 0, b"abc", write=7))
    junk = b"\x01" * 13
    assert later_write(junk + same, 0, len(junk + same), SALT, 5) == -1
    content = junk + same + later
    assert later_write(content, 0, len(content), SALT, 5) == len(junk + same)


def test_a_frame_inside_a_payload_is_not_taken_for_one() -> None:
    """A frame inside a payload is not recognized, since clients do not know the salt.

    Published data cannot affect recovery.
    """
    forged = encode(Frame(Kind.MESSAGES, 1, 99, 1, b"evil", write=99), salt=1)
    carrier = encode(Frame(Kind.MESSAGES, 1, 5, 1, forged, write=5))
    torn = carrier[:HEADER_SIZE] + forged + carrier[HEADER_SIZE + len(forged) : -1]
    assert later_write(torn, 0, len(torn), SALT, 5) == -1
