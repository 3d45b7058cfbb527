"""Tests of parsing a server's messages as a client: however they are split, and whatever they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.protocol import delivered
from lakestream.protocol.commands import Ping, Pong, Single
from lakestream.protocol.delivered import DeliveredMessage, ErrorLine, Event, Info, ServerParser, ServerProtocolError

pytestmark = pytest.mark.unit

HEADER = b"NATS/1.0\r\n\r\n"
SPOKEN: list[tuple[bytes, list[Event]]] = [
    (b'INFO {"a":1} \r\n', [Info(b'{"a":1}')]),
    (b"PING\r\n", [Ping()]),
    (b"PONG\r\n", [Pong()]),
    (b"+OK\r\n", []),
    (b"-ERR 'Stale Connection'\r\n", [ErrorLine("Stale Connection")]),
    (b"MSG a.b 7 3\r\nabc\r\n", [DeliveredMessage(b"7", Single(b"a.b", payload=b"abc"))]),
    (b"MSG a 7 r.1 0\r\n\r\n", [DeliveredMessage(b"7", Single(b"a", b"r.1"))]),
    (b"MSG  a\t7  r 2 \r\n\r\n\r\n", [DeliveredMessage(b"7", Single(b"a", b"r", b"", b"\r\n"))]),
    (
        b"HMSG a 7 12 15\r\nNATS/1.0\r\n\r\nabc\r\n",
        [DeliveredMessage(b"7", Single(b"a", b"", HEADER, b"abc"))],
    ),
    (b"HMSG a 7 r 12 12\r\nNATS/1.0\r\n\r\n\r\n", [DeliveredMessage(b"7", Single(b"a", b"r", HEADER))]),
    (b"MSG \xc3\xa4 7 1\r\n\n\r\n", [DeliveredMessage(b"7", Single(b"\xc3\xa4", payload=b"\n"))]),
]


@given(st.lists(st.sampled_from(SPOKEN), max_size=12), st.data())
def test_however_it_is_cut_it_says_the_same(spoken: list[tuple[bytes, list[Event]]], data: st.DataObject) -> None:
    whole = b"".join(text for text, _ in spoken)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=10)))
    parser, events = ServerParser(), []
    for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        events += parser.feed(whole[begin:end])
    assert events == [event for _, those in spoken for event in those]


@given(st.binary(max_size=200))
def test_whatever_comes_is_read_or_refused(noise: bytes) -> None:
    parser = ServerParser()
    try:
        for at in range(len(noise)):
            parser.feed(noise[at : at + 1])
    except ServerProtocolError:
        pass


@pytest.mark.parametrize(
    "wrong",
    [
        b"HTTP/1.1 200 OK\r\n",
        b"MSG a 7 3\r\nabcd\r\n",
        b"MSG a 7 x\r\n",
        b"MSG a\r\n",
        b"HMSG a 7 5 3\r\nabcde\r\n",
        b"HMSG a 7 3\r\nabc\r\n",
    ],
)
def test_what_is_not_the_protocol_is_refused(wrong: bytes) -> None:
    with pytest.raises(ServerProtocolError):
        ServerParser().feed(wrong)


def test_what_would_not_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivered, "MAX_LINE", 100)
    monkeypatch.setattr(delivered, "MAX_MESSAGE", 100)
    parser = ServerParser()
    parser.feed(b"INFO {" + b" " * 80)
    with pytest.raises(ServerProtocolError, match="control line of more than"):
        parser.feed(b" " * 80)
    with pytest.raises(ServerProtocolError, match="message of"):
        ServerParser().feed(b"MSG a 7 1000\r\n")
