"""Tests of frames, with wsproto and a reader that is called byte by byte as references."""

from __future__ import annotations

import itertools
import os
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wsproto.extensions import PerMessageDeflate
from wsproto.frame_protocol import FrameProtocol

from lakestream.net.websocket.frames import (
    BATCH_BYTES,
    BATCH_FRAMES,
    FrameWriter,
    WebSocketReader,
)
from tests.websocket import frame

pytestmark = pytest.mark.unit

LIMIT = 50_000


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    return (packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH))[:-4]


def read(
    stream: bytes, cuts: list[int] | None = None, *, masked: bool = True, deflated: bool = True
) -> WebSocketReader:
    """Return a reader that was fed the stream in pieces; `data` is what it read."""
    reader = _Kept(masked=masked, deflated=deflated, max_message=LIMIT)
    points = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts or [])})
    for start, end in itertools.pairwise(points):
        reader.feed(stream[start:end])
        reader.drain()
    return reader


class _Kept(WebSocketReader):
    data = b""

    def drain(self) -> None:
        self.data += self.read()
        while self.more:
            self.data += self.read()


MESSAGES = st.lists(
    st.tuples(
        st.binary(max_size=3) | st.binary(min_size=120, max_size=130) | st.integers(0, 70_000).map(os.urandom),
        st.integers(1, 4),  # fragments
        st.booleans(),  # compressed
        st.sampled_from([b"", frame(9, b"hi"), frame(10, b"ho"), frame(9, b"x" * 125)]),  # between fragments
        st.sampled_from([1, 2]),
    ),
    max_size=6,
)
CUTS = st.lists(st.integers(0, 1 << 20), max_size=30)


@given(MESSAGES, CUTS, st.booleans())
def test_any_split_of_the_bytes_gives_the_same_data(messages: list, cuts: list[int], every_byte: bool) -> None:
    stream, wanted, pings = b"", b"", []
    for data, count, compressed, between, opcode in messages:
        data = data[:LIMIT]
        sent = deflated(data) if compressed else data
        step = len(sent) // count + 1
        pieces = [sent[at : at + step] for at in range(0, max(len(sent), 1), step)]
        for number, piece in enumerate(pieces):
            last = number == len(pieces) - 1
            stream += frame(opcode if not number else 0, piece, final=last, reserved=4 * (compressed and not number))
            stream += between
            pings += [between[6:]] if between[:1] == b"\x89" else []
        wanted += data
    points = list(range(min(len(stream), 2000))) if every_byte else cuts
    reader = read(stream, points)
    assert reader.error is None
    assert reader.data == wanted
    assert [len(ping) for ping in reader.answers] == [len(ping) for ping in pings]


@given(st.binary(max_size=300), CUTS)
def test_garbage_is_read_alike_in_any_split(stream: bytes, cuts: list[int]) -> None:
    whole, pieces = read(stream), read(stream, cuts)
    assert (pieces.data, str(pieces.error), pieces.closed) == (whole.data, str(whole.error), whole.closed)


def test_unmasked_frames_where_that_was_agreed() -> None:
    stream = frame(2, b"ab", masked=False) + frame(9, b"p", masked=False)
    reader = read(stream, [1, 2, 3], masked=False)
    assert (reader.data, reader.answers, reader.error) == (b"ab", [b"p"], None)


@pytest.mark.parametrize(
    ("stream", "text"),
    [
        (frame(2, b"a", masked=False), "mask bit missing"),
        (frame(3, b"a"), "unknown opcode 3"),
        (frame(11, b"a"), "unknown opcode 11"),
        (frame(2, b"a", reserved=2), "RSV2 and RSV3 must be clear"),
        (frame(9, b"a", reserved=4), "compressed frame received without negotiated permessage-deflate"),
        (frame(9, b"a" * 126), "control frame length bigger than maximum allowed of 125 bytes"),
        (frame(8, b"", final=False), "control frame does not have final bit set"),
        (frame(0, b"a"), "invalid continuation frame"),
        (frame(2, b"a", final=False) + frame(0, b"b", reserved=4), "invalid continuation frame"),
        (
            frame(2, b"a", final=False) + frame(2, b"b"),
            "new message started before final frame for previous message was received",
        ),
        (b"\x82\xff" + (1 << 63).to_bytes(8) + b"mask", "invalid 64-bit payload length"),
        (frame(8, b"\x03"), "close frame payload cannot be 1 byte"),
        (frame(8, b"\x03\xed"), "invalid close status code 1005"),
        (frame(2, b"\xff\xff\xff", reserved=4), "flate: corrupt input before offset 1"),
        (frame(2, deflated(bytes(LIMIT + 1)), reserved=4), "maximum payload exceeded"),
    ],
)
def test_wrong_frames(stream: bytes, text: str) -> None:
    for cuts in ([], list(range(len(stream)))):
        reader = read(stream + frame(2, b"later"), cuts)
        assert str(reader.error) == text
        assert b"later" not in reader.data


def test_a_compressed_frame_without_compression() -> None:
    reader = read(frame(2, deflated(b"a"), reserved=4), deflated=False)
    assert str(reader.error) == "compressed frame received without negotiated permessage-deflate"


def test_little_is_inflated_beyond_the_limit() -> None:
    """64 MiB of zeros in 64 KiB are an error after `max_message` bytes."""
    reader = read(frame(2, deflated(bytes(64 << 20)), reserved=4))
    assert str(reader.error) == "maximum payload exceeded"
    assert len(reader.data) <= LIMIT


@pytest.mark.parametrize(
    ("data", "closed"),
    [
        (b"", (1005, "")),
        (b"\x03\xe8bye", (1000, "bye")),
        (b"\x13\x87", (4999, "")),
        (b"\x03\xe8\xff", (1007, "invalid utf8 body in close frame")),
    ],
)
def test_close_frames(data: bytes, closed: tuple[int, str]) -> None:
    reader = read(frame(2, b"a") + frame(8, data) + frame(2, b"later"))
    assert (reader.data, reader.closed, reader.error) == (b"a", closed, None)


def test_one_turn_takes_a_batch() -> None:
    reader = WebSocketReader(masked=True, deflated=False, max_message=LIMIT)
    reader.feed(frame(2, b"a") * (BATCH_FRAMES + 1))
    assert (len(reader.read()), reader.more) == (BATCH_FRAMES, True)
    assert (len(reader.read()), reader.more) == (1, False)
    reader.feed(frame(2, bytes(10_000)) * 100)
    assert BATCH_BYTES <= len(reader.read()) < BATCH_BYTES + 10_000
    assert reader.more


# ---- frames for a client
@settings(max_examples=200)
@given(
    st.lists(st.binary(max_size=200) | st.integers(0, 70_000).map(os.urandom) | st.integers(0, 70_000).map(bytes)),
    st.booleans(),
    st.sampled_from([0, 4096]),
    st.booleans(),
)
def test_wsproto_reads_what_is_written(batches: list[bytes], compressed: bool, max_frame: int, whole: bool) -> None:
    extension = PerMessageDeflate()
    extension.finalize("permessage-deflate; server_no_context_takeover; client_no_context_takeover")
    client = FrameProtocol(client=True, extensions=[extension] if compressed else [])
    writer = FrameWriter(deflated=compressed, max_frame=max_frame, whole=whole)
    got = b""
    for data in batches:
        client.receive_bytes(writer.data(data))
        frames = list(client.received_frames())
        got += b"".join(bytes(each.payload) for each in frames)  # type: ignore[arg-type]
        assert all(each.opcode == 2 for each in frames)
    assert got == b"".join(batches)


@given(st.integers(0, 20_000).map(os.urandom), st.booleans())
def test_frames_for_browsers_are_small(data: bytes, compressed: bool) -> None:
    written = FrameWriter(deflated=compressed, max_frame=4096, whole=False).data(data)
    sizes, at = [], 0
    while at < len(written):
        size = written[at + 1]
        at += 2 if size < 126 else 4
        size = int.from_bytes(written[at - 2 : at]) if size == 126 else size
        sizes.append(size)
        at += size
    assert max(sizes) <= 4096


def test_a_long_reason_is_cut_between_characters() -> None:
    closed = FrameWriter(deflated=False, max_frame=0, whole=False).close(1008, "ü" * 100)
    assert closed == b"\x88\x7c\x03\xf0" + "ü".encode() * 61
