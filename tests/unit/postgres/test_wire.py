"""Tests of the messages of Postgres' protocol."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream_postgres import wire
from lakestream_postgres.wire import BadMessage, Decoder, Message

pytestmark = pytest.mark.unit


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">i", len(body) + 4) + body


STARTUP = message(b"", struct.pack(">I", wire.PROTOCOL) + b"user\0ann\0database\0lake\0\0")
MESSAGES: list[tuple[bytes, Message]] = [
    (message(b"p", b"pw\0"), wire.Password(b"pw\0")),
    (message(b"Q", b"SELECT 1\0"), wire.Query("SELECT 1")),
    (message(b"P", b"s\0SELECT $1\0\0\1\0\0\0\x17"), wire.Parse("s", "SELECT $1", (23,))),
    (
        message(b"B", b"p\0s\0\0\1\0\1\0\2\0\0\0\4\0\0\0\7\xff\xff\xff\xff\0\0"),
        wire.Bind("p", "s", (1,), (b"\0\0\0\7", None), ()),
    ),
    (message(b"D", b"Ss\0"), wire.Describe(True, "s")),
    (message(b"C", b"Pp\0"), wire.Close(False, "p")),
    (message(b"E", b"p\0\0\0\0\5"), wire.Execute("p", 5)),
    (message(b"E", b"p\0\xff\xff\xff\xff"), wire.Execute("p", 0)),
    (message(b"S", b""), wire.Sync()),
    (message(b"H", b""), wire.Flush()),
    (message(b"X", b""), wire.Terminate()),
    (message(b"f", b"no\0"), wire.CopyInput()),
    (message(b"F", b"\0"), wire.FunctionCall()),
]


def started() -> Decoder:
    decoder = Decoder()
    decoder.feed(STARTUP)
    assert decoder.next() == wire.Startup(0, {"user": "ann", "database": "lake"})
    return decoder


@pytest.mark.parametrize(("data", "expected"), MESSAGES)
def test_a_message_is_read(data: bytes, expected: Message) -> None:
    decoder = started()
    decoder.feed(data)
    assert decoder.next() == expected
    assert decoder.next() is None


def test_first_messages_have_no_letter() -> None:
    decoder = Decoder()
    decoder.feed(message(b"", struct.pack(">I", 80877103)) + message(b"", struct.pack(">III", 80877102, 7, 8)))
    assert decoder.next() == wire.EncryptionRequest(is_tls=True)
    assert decoder.next() == wire.CancelRequest(7, 8)


@pytest.mark.parametrize("size", [1, 3, 7])
def test_messages_arrive_in_pieces(size: int) -> None:
    data = STARTUP + b"".join(each for each, _ in MESSAGES)
    decoder, found = Decoder(), []
    for at in range(0, len(data), size):
        decoder.feed(data[at : at + size])
        while (each := decoder.next()) is not None:
            found.append(each)
    assert found[1:] == [expected for _, expected in MESSAGES]
    assert decoder.pending == 0


@pytest.mark.parametrize(
    "data",
    [
        message(b"Q", b"SELECT 1"),
        message(b"Q", b"\xff\0"),
        message(b"Q", b"SELECT 1\0more"),
        message(b"?", b""),
        message(b"D", b"Xs\0"),
        message(b"B", b"\0\0\0\1\0\2\0\0\0\0"),
        message(b"B", b"\0\0\0\0\0\1\xff\xff\xff\xfe"),
        message(b"P", b"\0\0\0\2\0\0\0\0"),
        b"Q\0\0\0\3",
        b"Q\x7f\xff\xff\xff",
        b"Q" + struct.pack(">i", wire.MAX_LOGIN + 1),
    ],
)
def test_other_bytes_are_rejected(data: bytes) -> None:
    decoder = started()
    decoder.feed(data)
    with pytest.raises(BadMessage):
        decoder.next()


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00", message(b"", b"\0\2\0\0user\0")])
def test_another_protocol_is_rejected(data: bytes) -> None:
    decoder = Decoder()
    decoder.feed(data)
    with pytest.raises(BadMessage):
        decoder.next()


@given(st.lists(st.binary(max_size=64), max_size=4), st.booleans())
def test_any_bytes_are_read_or_rejected(parts: list[bytes], begins: bool) -> None:
    decoder = started() if begins else Decoder()
    for part in parts:
        decoder.feed(part)
        try:
            while decoder.next() is not None:
                pass
        except BadMessage:
            return


@given(st.sampled_from(MESSAGES), st.integers(0, 60), st.integers(0, 255))
def test_a_changed_byte_is_read_or_rejected(known: tuple[bytes, Message], at: int, byte: int) -> None:
    data = bytearray(known[0])
    data[at % len(data)] = byte
    decoder = started()
    decoder.feed(bytes(data))
    try:
        decoder.next()
    except BadMessage:
        return


def test_rows_are_written_column_by_column() -> None:
    rows = wire.data_rows([[b"1", None], [b"ab", b""]], 2)
    first = message(b"D", b"\0\2\0\0\0\1" + b"1\0\0\0\2ab")
    assert rows == first + message(b"D", b"\0\2\xff\xff\xff\xff\0\0\0\0")
    assert wire.data_rows([], 2) == message(b"D", b"\0\0") * 2
