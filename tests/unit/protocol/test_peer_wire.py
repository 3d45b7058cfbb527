"""Tests of frames and control records between nodes, and of the equality of cluster names."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.protocol import peer_wire as wire
from lakestream.protocol.peer_wire import FrameReader, Hello, NodeInfo, PeerAddress, PeerWireError

pytestmark = pytest.mark.unit

NODE = NodeInfo(name="a", server_id="NA", cluster="C", route="10.0.0.1:6222", tags=("ssd",), jetstream=True)
RECORDS = [
    Hello(1, NODE, "attempt", "user", "secret", True, ("x", "y"), (PeerAddress("b", "10.0.0.2:6222"),)),
    wire.PeerReady(),
    wire.PeerRefused(wire.WRONG_CLUSTER, "no", "b"),
    wire.PeerPing(1 << 62),
    wire.PeerPong(7),
    wire.Gossip((PeerAddress("b", ""),)),
    wire.PeerUpdate(NODE, True),
    wire.Bye("Server Shutdown"),
]
frames = st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=300)), max_size=12)


def written(items: list[tuple[int, bytes]]) -> bytes:
    return b"".join(wire.frame_head(channel, len(payload)) + payload for channel, payload in items)


@given(frames, st.data())
def test_frames_come_whole_however_the_bytes_are_cut(items: list[tuple[int, bytes]], data: st.DataObject) -> None:
    stream, reader, found = written(items), FrameReader(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += reader.feed(stream[:size])
        stream = stream[size:]
    assert found == items


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_any_bytes_are_frames_or_refused(chunks: list[bytes]) -> None:
    reader = FrameReader(1000)
    try:
        for chunk in chunks:
            for _, payload in reader.feed(chunk):
                assert len(payload) < 1000
    except PeerWireError:
        return


@pytest.mark.parametrize("length", [0, 101, 1 << 31, (1 << 32) - 1])
def test_a_length_that_cannot_be_is_refused_at_once(length: int) -> None:
    with pytest.raises(PeerWireError, match=f"a frame of {length} bytes; from 1 to 100"):
        list(FrameReader(100).feed(length.to_bytes(4, "big")))


def test_the_limit_may_grow_between_two_frames_of_one_read() -> None:
    reader = FrameReader(10)
    found = []
    for channel, payload in reader.feed(written([(0, b"hello"), (1, b"x" * 1000)])):
        reader.limit = 2000
        found.append((channel, len(payload)))
    assert found == [(0, 5), (1, 1000)]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_control_records_come_back_as_they_were(record: wire.Control) -> None:
    [(channel, payload)] = FrameReader().feed(wire.encode_control(record))
    assert channel == wire.CONTROL
    assert wire.decode_control(payload) == record


@given(st.binary(max_size=100) | st.recursive(st.integers(-9, 9) | st.text(), st.lists).map(msgspec.msgpack.encode))
def test_other_control_records_are_refused(payload: bytes) -> None:
    with contextlib.suppress(PeerWireError):
        wire.decode_control(payload)


@pytest.mark.parametrize("payload", [b"\x91" * 5000, b"\x92\xa5hello\x01" + b"\x91" * 5000, b"\x91\xa1\xff"])
def test_nested_or_odd_bytes_before_the_handshake_are_refused(payload: bytes) -> None:
    with pytest.raises(PeerWireError):
        wire.decode_control(payload)


@given(st.integers(0, len(RECORDS) - 1), st.integers(0, 400), st.integers(0, 255))
def test_a_damaged_control_record_is_refused_or_read(number: int, position: int, byte: int) -> None:
    payload = bytearray(wire.encode_control(RECORDS[number])[5:])
    payload[position % len(payload)] = byte
    with contextlib.suppress(PeerWireError):
        wire.decode_control(bytes(payload))


@given(st.sampled_from("abc"), st.booleans(), st.sampled_from("abc"), st.booleans())
def test_two_nodes_come_to_the_same_cluster_name(mine: str, made_up: bool, other: str, other_made_up: bool) -> None:
    agreed = wire.agreed_cluster(mine, made_up, other, other_made_up)
    assert agreed == wire.agreed_cluster(other, other_made_up, mine, made_up)
    assert (agreed is None) == (mine != other and not made_up and not other_made_up)
    if agreed is not None and not made_up:
        assert agreed == mine


def test_long_frames_are_filled_as_they_come() -> None:
    items = [(2, b"a" * 2 * wire.LONG_BYTES), (0, b"small"), (1, b"b" * (wire.LONG_BYTES + 7)), (3, b"c")]
    stream = b"".join(wire.frame_head(channel, len(payload)) + payload for channel, payload in items)
    for size in (99_991, wire.LONG_BYTES + 3, len(stream)):
        reader, found = FrameReader(wire.MAX_FRAME_BYTES), []
        for at in range(0, len(stream), size):
            found += [(channel, bytes(payload)) for channel, payload in reader.feed(stream[at : at + size])]
        assert found == items
