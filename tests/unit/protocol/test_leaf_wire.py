"""Tests of the protocol of leaf connections: parsing of data however it is split, encoding, and subjects of acks."""

from __future__ import annotations

import random

import pytest

from lakestream.protocol import leaf_wire
from lakestream.protocol.commands import Ping, Pong, Single
from lakestream.protocol.delivered import ErrorLine
from lakestream.protocol.leaf_wire import (
    Event,
    InterestBegins,
    InterestEnds,
    LeafInfo,
    LeafMessage,
    LeafParser,
    LeafWireError,
    Names,
)

pytestmark = pytest.mark.unit

HEADER = b"NATS/1.0\r\nA: b\r\n\r\n"
STREAM: list[tuple[bytes, Event]] = [
    (b'INFO {"server_id":"X","domain":"hub"} \r\n', LeafInfo({"server_id": "X", "domain": "hub"})),
    (b"LS+ $JS.M.abc\r\n", InterestBegins(b"$JS.M.abc")),
    (b"LS+ work group 3\r\n", InterestBegins(b"work", b"group", 3)),
    (b"LS- work group\r\n", InterestEnds(b"work", b"group")),
    (b"LS- $JS.M.abc\r\n", InterestEnds(b"$JS.M.abc")),
    (b"LMSG a.b 5\r\nLS+ x\r\n", LeafMessage(Single(b"a.b", payload=b"LS+ x"))),
    (b"LMSG a.b reply 0\r\n\r\n", LeafMessage(Single(b"a.b", b"reply"))),
    (b"LMSG a.b + reply g1 g2 2\r\n\r\n\r\n", LeafMessage(Single(b"a.b", b"reply", b"", b"\r\n"), (b"g1", b"g2"))),
    (b"LMSG a.b | g1 2\r\nhi\r\n", LeafMessage(Single(b"a.b", payload=b"hi"), (b"g1",))),
    (b"HMSG a.b reply 18 20\r\n%bhi\r\n" % HEADER, LeafMessage(Single(b"a.b", b"reply", HEADER, b"hi"))),
    (b"HMSG a.b 18 18\r\n%b\r\n" % HEADER, LeafMessage(Single(b"a.b", b"", HEADER))),
    (b"HMSG a.b | g 18 20\r\n%bhi\r\n" % HEADER, LeafMessage(Single(b"a.b", b"", HEADER, b"hi"), (b"g",))),
    (b"PING\r\n", Ping()),
    (b"PONG\r\n", Pong()),
    (b"-ERR 'Authorization Violation'\r\n", ErrorLine("Authorization Violation")),
]


def test_what_is_said_is_heard_however_it_is_cut() -> None:
    rng = random.Random(7)
    data = b"".join(frame for frame, _ in STREAM) * 5
    wanted = [said for _, said in STREAM] * 5
    for most in (1, 2, 7, 50, len(data)):
        parser, heard, at = LeafParser(), list[Event](), 0
        while at < len(data):
            size = rng.randint(1, most)
            heard += parser.feed(data[at : at + size])
            at += size
        assert heard == wanted


@pytest.mark.parametrize(
    "wrong",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        b"MSG a 1 2\r\nhi\r\n",
        b"LMSG a\r\n",
        b"HMSG a 30 20\r\n" + bytes(22),
        b"HMSG a 20\r\n" + bytes(22),
        b"LMSG a 999999999\r\n",
        b"LS+ \r\n",
        b"LS+ a b\r\n",
        b"LS+ a b 1 2\r\n",
        b"LMSG a -1\r\nx\r\n",
        b"LMSG a 1\r\nxyz\r\n",
        b"INFO {\r\n",
        b"x" * (leaf_wire.MAX_LINE + 1),
    ],
)
def test_what_no_server_says_ends_the_connection(wrong: bytes) -> None:
    with pytest.raises(LeafWireError):
        LeafParser().feed(b"PING\r\n" + wrong)


def test_any_bytes_are_messages_or_an_error() -> None:
    rng = random.Random(11)
    words = [
        b"LMSG",
        b"HMSG",
        b"LS+",
        b"LS-",
        b" ",
        b" ",
        b"\r\n",
        b"1",
        b"2",
        b"a",
        b"+",
        b"|",
        b"INFO",
        b"{}",
        b"\xff",
        b"L",
    ]
    for _ in range(3000):
        parser = LeafParser()
        try:
            for _ in range(3):
                parser.feed(b"".join(rng.choices(words, k=rng.randint(1, 12))))
        except LeafWireError:
            continue


def test_deliveries_say_their_subject_behind_the_ack() -> None:
    names = Names("lake", "h4sh")
    ack = b"$JS.ACK.ORDERS.C.1.5.5.1795343599914977348.0"
    theirs = b"$JS.ACK.lake.h4sh.ORDERS.C.1.5.5.1795343599914977348.0"
    plain = Single(b"orders.1", ack, b"", b"data")
    assert names.deliveries(b"$JS.M.x", b"", [plain, Single(b"orders.1", ack, HEADER, b"data")]) == [
        b"LMSG $JS.M.x %b@orders.1 4\r\ndata\r\n" % theirs,
        b"HMSG $JS.M.x %b@orders.1 18 22\r\n%bdata\r\n" % (theirs, HEADER),
    ]
    assert names.deliveries(b"$JS.M.x", b"g", [plain]) == [b"LMSG $JS.M.x + %b@orders.1 g 4\r\ndata\r\n" % theirs]
    assert names.deliveries(b"_INBOX.a", b"", [Single(b"_INBOX.a", payload=b"answer")]) == [
        b"LMSG _INBOX.a 6\r\nanswer\r\n"
    ]
    assert names.deliveries(b"_INBOX.a", b"g", [Single(b"_INBOX.a", payload=b"x")]) == [b"LMSG _INBOX.a | g 1\r\nx\r\n"]
    assert names.to_ours(theirs) == ack
    assert names.to_theirs(ack) == theirs


def test_flow_control_has_a_name_there_wherever_it_stands() -> None:
    names = Names("lake", "h4sh")
    request = Single(b"$JS.M.x", b"$JS.FC.ORDERS.C.abcd", b"NATS/1.0 100 FlowControl Request\r\n\r\n")
    beat = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 1\r\nNats-Consumer-Stalled: %b\r\n\r\n"
    asked, told = names.deliveries(b"$JS.M.x", b"", [request, Single(b"$JS.M.x", b"", beat % b"$JS.FC.ORDERS.C.abcd")])
    assert asked.startswith(b"HMSG $JS.M.x $JS.FC.lake.h4sh.ORDERS.C.abcd 36 36\r\n")
    assert beat % b"$JS.FC.lake.h4sh.ORDERS.C.abcd" in told
    assert names.to_ours(b"$JS.FC.lake.h4sh.ORDERS.C.abcd") == b"$JS.FC.ORDERS.C.abcd"
    # A stored header with this name stays as it is.
    stored = b"NATS/1.0\r\nNats-Consumer-Stalled: $JS.FC.O.C.x\r\n\r\n"
    assert stored in names.deliveries(b"$JS.M.x", b"", [Single(b"orders", b"$JS.ACK.O.C.1.1.1.1.0", stored)])[0]


def test_the_chunks_of_a_restore_have_a_name_there() -> None:
    names = Names("lake", "h4sh")
    answer = b'{"type":"io.nats.jetstream.api.v1.stream_restore_response","deliver_subject":"$JS.SNAPSHOT.RESTORE.O.x"}'
    [frame] = names.deliveries(b"_INBOX.a", b"", [Single(b"_INBOX.a", payload=answer)])
    assert b'"deliver_subject":"$JS.lake.SNAPSHOT.RESTORE.O.x"' in frame
    assert frame.startswith(b"LMSG _INBOX.a %d\r\n" % (len(answer) + len("lake.")))
    assert names.to_ours(b"$JS.lake.SNAPSHOT.RESTORE.O.x") == b"$JS.SNAPSHOT.RESTORE.O.x"
    # A stored message with this header stays as it is.
    header = b"NATS/1.0\r\nNats-Sequence: 1\r\n\r\n"
    assert answer in names.deliveries(b"_INBOX.a", b"", [Single(b"_INBOX.a", b"", header, answer)])[0]


@pytest.mark.parametrize("value", [b'"\xff"', b"[" * 2000, b"{", b"\xff"], ids=["no UTF-8", "deep", "open", "no JSON"])
@pytest.mark.parametrize("verb", [b"INFO", b"CONNECT"])
def test_what_is_no_json_is_refused_by_the_error_of_the_protocol(verb: bytes, value: bytes) -> None:
    with pytest.raises(LeafWireError):
        LeafParser().feed(b'%b {"a":%b}\r\n' % (verb, value))
