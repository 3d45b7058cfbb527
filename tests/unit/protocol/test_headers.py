"""Tests of header blocks: parsed as by nats-server 2.15.1, and built so that they parse to the same fields."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.protocol import headers
from lakestream.protocol.headers import Status

pytestmark = pytest.mark.unit

BLOCK = b"NATS/1.0\r\nNats-Msg-Id: A\r\nX: 1\r\nX:  2 \r\nempty:\r\n\r\n"


# ---------------------------------------------------------------------- reading
@pytest.mark.parametrize(
    ("block", "value"),
    [
        (b"NATS/1.0\r\nId: A\r\n\r\n", b"A"),
        (b"NATS/1.0\r\nId:A\r\n\r\n", b"A"),
        (b"NATS/1.0\r\nId:    A\r\n\r\n", b"A"),
        (b"NATS/1.0\r\nId: A \r\n\r\n", b"A "),
        (b"NATS/1.0\r\nId:\tA\r\n\r\n", b"\tA"),
        (b"NATS/1.0\r\nId: A\rB\r\n\r\n", b"A\rB"),
        (b"NATS/1.0\r\nId: A\n\n", b"A\n\n"),
        (b"NATS/1.0\r\nId: A", b"A"),
        (b"NATS/1.0\r\nId:", b""),
        (b"NATS/1.0\r\nId:\r\nId: A\r\n\r\n", b""),
        (b"NATS/1.0\r\nId: A\r\nId: B\r\n\r\n", b"A"),
        (b"NATS/1.0\r\nIdX: A\r\nXId: B\r\nId: C\r\n\r\n", b"C"),
        (b"NATS/1.0\r\nX: Id: A\r\n\r\n", None),
        (b"NATS/1.0\r\nId : A\r\n\r\n", None),
        (b"NATS/1.0\r\n Id: A\r\n\r\n", None),
        (b"NATS/1.0\r\nid: A\r\n\r\n", None),
        (b"NATS/1.0\nId: A\r\n\r\n", None),
        (b"NATS/1.0\r\nX: 1\nId: A\r\n\r\n", None),
        (b"Id: A\r\n\r\n", None),
        (b"NATS/1.0\r\n\r\n", None),
        (b"", None),
    ],
)
def test_get(block: bytes, value: bytes | None) -> None:
    assert headers.get(block, b"Id") == value


def test_parse_gives_every_line_in_order() -> None:
    assert headers.parse(BLOCK) == [(b"Nats-Msg-Id", b"A"), (b"X", b"1"), (b"X", b"2 "), (b"empty", b"")]


@pytest.mark.parametrize("block", [b"", b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nno colon\r\n\r\n", b"\r\n\r\n", b"NATS/1.0"])
def test_parse_passes_over_what_is_no_line(block: bytes) -> None:
    assert headers.parse(block) == []


@pytest.mark.parametrize(
    ("block", "status"),
    [
        (b"NATS/1.0\r\n\r\n", Status(0, b"")),
        (b"", Status(0, b"")),
        (b"NATS/1.0 503\r\n\r\n", Status(503, b"")),
        (b"NATS/1.0 404 No Messages\r\n\r\n", Status(404, b"No Messages")),
        (b"NATS/1.0  100   FlowControl Request \r\nA: b\r\n\r\n", Status(100, b"FlowControl Request")),
        (b"NATS/1.0 408 Request Timeout", Status(408, b"Request Timeout")),
        (b"NATS/1.0 abc\r\n\r\n", Status(0, b"")),
        (b"NATS/1.0 12\r\n\r\n", Status(0, b"")),
        (b"HTTP/1.1 200 OK\r\n\r\n", Status(0, b"")),
    ],
)
def test_status(block: bytes, status: Status) -> None:
    assert headers.status(block) == status


_PIECES = [b"\r\n", b"\r", b"\n", b":", b" ", b"Nats-", b"Nats-A", b"Nats-B", b"NATS/1.0", b"x", b"A", b"-"]


@given(st.lists(st.sampled_from(_PIECES), max_size=40).map(b"".join))
def test_one_pass_finds_what_single_looks_find(block: bytes) -> None:
    names = {b"Nats-", b"Nats-A", b"Nats-B", b"Nats-AA", b"Nats-A "} | headers.given(block).keys()
    singly = {name: headers.get(block, name) for name in names if b":" not in name}
    assert headers.given(block) == {name: value for name, value in singly.items() if value}


# ---------------------------------------------------------------------- writing
def test_build() -> None:
    assert headers.build([]) == headers.EMPTY
    assert headers.build([(b"A", b"1"), (b"B", b"")]) == b"NATS/1.0\r\nA: 1\r\nB: \r\n\r\n"
    assert headers.build([], 503) == b"NATS/1.0 503\r\n\r\n"
    assert headers.build([(b"A", b"1")], 404, b"No Messages") == b"NATS/1.0 404 No Messages\r\nA: 1\r\n\r\n"


def test_remove_takes_every_line_of_the_names_and_nothing_else() -> None:
    assert headers.remove(BLOCK, [b"X"]) == b"NATS/1.0\r\nNats-Msg-Id: A\r\nempty:\r\n\r\n"
    assert headers.remove(BLOCK, [b"empty", b"Nats-Msg-Id"]) == b"NATS/1.0\r\nX: 1\r\nX:  2 \r\n\r\n"
    assert headers.remove(BLOCK, [b"x", b"Nats-Msg", b"Msg-Id"]) == BLOCK
    assert headers.remove(b"NATS/1.0 100 Idle\r\nX: 1\r\n\r\n", [b"X"]) == b"NATS/1.0 100 Idle\r\n\r\n"
    assert headers.remove(b"NATS/1.0\r\nX: 1", [b"X"]) == b""


def test_removing_the_last_line_leaves_no_block() -> None:
    assert headers.remove(b"NATS/1.0\r\nX: 1\r\n\r\n", [b"X"]) == b""
    assert headers.remove(BLOCK, [b"X", b"empty", b"Nats-Msg-Id"]) == b""
    assert headers.remove(b"", [b"X"]) == b""


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (b"", b"NATS/1.0\r\nA: 1\r\n\r\n"),
        (b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nA: 1\r\n\r\n"),
        (b"NATS/1.0 100 x\r\nB: 2\r\n\r\n", b"NATS/1.0 100 x\r\nB: 2\r\nA: 1\r\n\r\n"),
        (b"NATS/1.0\r\nB: 2\r\n", b"NATS/1.0\r\nB: 2\r\nA: 1\r\n\r\n"),
        (b"NATS/1.0\r\nB: 2", b"NATS/1.0\r\nB: 2\r\nA: 1\r\n\r\n"),
    ],
)
def test_append(block: bytes, expected: bytes) -> None:
    assert headers.append(block, [(b"A", b"1")]) == expected


names = st.from_regex(rb"[A-Za-z][A-Za-z0-9-]{0,8}", fullmatch=True)
values = st.from_regex(rb"([!-~][ -~]{0,8})?", fullmatch=True)
pairs = st.lists(st.tuples(names, values), max_size=6)


@given(pairs, pairs)
def test_what_is_written_reads_back(first: list[tuple[bytes, bytes]], second: list[tuple[bytes, bytes]]) -> None:
    block = headers.append(headers.build(first), second)
    everything = first + second
    assert headers.parse(block) == everything
    for name, _ in everything:
        assert headers.get(block, name) == next(value for key, value in everything if key == name)
        left = headers.remove(block, [name])
        assert headers.get(left, name) is None
        assert headers.parse(left) == [pair for pair in everything if pair[0] != name]


@given(st.binary(max_size=60), st.sampled_from([b"A", b"", b"Nats-Msg-Id"]))
def test_any_bytes_can_be_read_and_rewritten(noise: bytes, name: bytes) -> None:
    for block in (noise, b"NATS/1.0\r\n" + noise, b"NATS/1.0 " + noise, b"NATS/1.0\r\nA:" + noise + b"\r\n\r\n"):
        headers.parse(block)
        headers.status(block)
        headers.get(block, name)
        assert headers.get(headers.remove(block, [name]), name) is None
        assert headers.append(block, [(b"Z", b"1")]).endswith(b"Z: 1\r\n\r\n")
