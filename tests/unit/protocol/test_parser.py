"""Tests of the parser: lexical rules, limits, any split of the stream, and invalid bytes.

The expected commands and violations of the tables below are what nats-server 2.15.1 does with the same bytes.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import tracemalloc
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lakestream.protocol.parser as parser_module
from lakestream.protocol.commands import (
    Command,
    Connect,
    Ping,
    Pong,
    Single,
    Subscribe,
    Unsubscribe,
    Violation,
)
from lakestream.protocol.parser import Parser
from lakestream.protocol.publishes import Publishes, single

pytestmark = pytest.mark.unit

UNKNOWN = Violation("Unknown Protocol Operation", "Protocol Violation")
SILENT = Violation("", "Protocol Violation")
TOO_LARGE = Violation("Maximum Payload Violation", "Maximum Message Payload Exceeded")
TOO_LONG = Violation("maximum control line exceeded", "Maximum Control Line Exceeded")
PARSE_ERROR = Violation("", "Parse Error")


def feed_all(
    pieces: list[bytes],
    max_control_line: int = 4096,
    max_payload: int = 1 << 20,
    headers: bool = True,
    large: int = parser_module.LARGE_BYTES,
    apart: int = parser_module.APART_BYTES,
) -> list[Command]:
    parser = Parser(max_control_line, max_payload)
    parser.headers = headers
    commands: list[Command] = []
    with mock.patch.multiple(parser_module, LARGE_BYTES=large, APART_BYTES=apart):
        for piece in pieces:
            commands += single(parser.feed(piece))
    return commands


def cuts(stream: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(edges)]


# ---------------------------------------------------------------------- valid input
ACCEPTED: list[tuple[bytes, list[Command]]] = [
    (b"PING\r\n", [Ping()]),
    (b"ping\n", [Ping()]),
    (b"PINGxyz\r\n", [Ping()]),
    (b"PING foo bar\r\n", [Ping()]),
    (b"PING\rPING\r\n", [Ping()]),
    (b"PONG\r\n", [Pong()]),
    (b"PoNg zz\n", [Pong()]),
    (b"+OK\r\n", []),
    (b"+okxx\r\nPING\r\n", [Ping()]),
    (b"INFO {}\r\nPING\r\n", [Ping()]),
    (b"info{}\n", []),
    (b"INFO null\r\n", []),
    (b"PUB a 5\r\nhello\r\n", [Single(b"a", b"", b"", b"hello")]),
    (b"PUB a r 5\r\nhello\r\n", [Single(b"a", b"r", b"", b"hello")]),
    (b"PUB a 0\r\n\r\n", [Single(b"a", b"", b"", b"")]),
    (b"PUB a 00\r\n\r\n", [Single(b"a", b"", b"", b"")]),
    (b"PUB a 000000005\r\nhello\r\n", [Single(b"a", b"", b"", b"hello")]),
    (b"pUb\ta\t 5 \t\r\nhello\r\n", [Single(b"a", b"", b"", b"hello")]),
    (b"PUB  \t a \t r\t\t5\r\nhello\r\n", [Single(b"a", b"r", b"", b"hello")]),
    (b"PUB a 5\nhello\r\n", [Single(b"a", b"", b"", b"hello")]),
    (b"PUB 5 5\r\nhello\r\n", [Single(b"5", b"", b"", b"hello")]),
    (b"PUB 1 2 3\r\nabc\r\n", [Single(b"1", b"2", b"", b"abc")]),
    (b"PUB a 4\r\n\r\n\r\n\r\n", [Single(b"a", b"", b"", b"\r\n\r\n")]),
    (b"PUB a..b 1\r\nx\r\n", [Single(b"a..b", b"", b"", b"x")]),
    (b"PUB a\x0c 1\r\nx\r\n", [Single(b"a\x0c", b"", b"", b"x")]),
    (b"PUB a\rb 1\r\nx\r\n", [Single(b"a\rb", b"", b"", b"x")]),
    (b"PUB \x00\xff 1\r\nx\r\n", [Single(b"\x00\xff", b"", b"", b"x")]),
    (
        b"HPUB a 12 17\r\nNATS/1.0\r\n\r\nhello\r\n",
        [Single(b"a", b"", b"NATS/1.0\r\n\r\n", b"hello")],
    ),
    (
        b"hpub\ta  r 12\t17 \nNATS/1.0\r\n\r\nhello\r\n",
        [Single(b"a", b"r", b"NATS/1.0\r\n\r\n", b"hello")],
    ),
    (b"HPUB a 0 5\r\nhello\r\n", [Single(b"a", b"", b"", b"hello")]),
    (b"HPUB a 5 5\r\nhello\r\n", [Single(b"a", b"", b"hello", b"")]),
    (b"SUB a 1\r\n", [Subscribe(b"a", b"", b"1")]),
    (b"sub\ta.*  q\t\tx-1 \r\n", [Subscribe(b"a.*", b"q", b"x-1")]),
    (b"SUB a..b 1\n", [Subscribe(b"a..b", b"", b"1")]),
    (b"SUB a\r1\r\n", [Subscribe(b"a", b"", b"1")]),
    (b"SUB a 1\r\r\n", [Subscribe(b"a", b"", b"1")]),
    (b"UNSUB 1\r\n", [Unsubscribe(b"1", 0)]),
    (b"UNSUB 1 0\r\n", [Unsubscribe(b"1", 0)]),
    (b"unsub  1 \t0005\n", [Unsubscribe(b"1", 5)]),
    (b"UNSUB 1 999999999\r\n", [Unsubscribe(b"1", 999999999)]),
    # A count that is no number, or too long for one, means "at once".
    (b"UNSUB 1 x\r\n", [Unsubscribe(b"1", 0)]),
    (b"UNSUB 1 -1\r\n", [Unsubscribe(b"1", 0)]),
    (b"UNSUB 1 9999999999\r\n", [Unsubscribe(b"1", 0)]),
    (b"CONNECT {}\r\n", [Connect({})]),
    (b"connect\t{}\n", [Connect({})]),
    (b"CONNECT{}\r\n", [Connect({})]),
    (b"CONNECT null\r\n", [Connect({})]),
]


@pytest.mark.parametrize(("stream", "expected"), ACCEPTED, ids=[repr(stream) for stream, _ in ACCEPTED])
def test_a_client_may_say(stream: bytes, expected: list[Command]) -> None:
    assert feed_all([stream]) == expected
    assert feed_all([bytes([byte]) for byte in stream]) == expected


# ---------------------------------------------------------------------- input that closes the connection
REFUSED: list[tuple[bytes, Violation]] = [
    *[
        (stream, UNKNOWN)
        for stream in [
            b"\r\n",
            b"\n",
            b" PING\r\n",
            b"+X",
            b"G",
            b"M",
            b"R",
            b"L",
            b"A",
            b"PX",
            b"PUBX",
            b"PUB\r\n",
            b"PUB\n",
            b"HPUB\r\n",
            b"SUB\r\n",
            b"UNSUB\r\n",
            b"-ERR\r\n",
            b"-ERRx\r\n",
            b"MSG a 1 2\r\nhi\r\n",
            b"PUB a 5\nhello\n",
            b"PUB a 5\r\nhelloX",
            b"PUB a 5\r\nhello\rX",
            b"PUB a 5\r\nhelloX\n",
            b"PUB a 5\r\nhello\rX\r\n",
            b"HPUB a 2 4\r\nabcdX",
            b"HPUB a 2 4\r\nabcdX\n",
            b"HPUB a 2 4\r\nabcd\rX",
        ]
    ],
    *[
        (stream, SILENT)
        for stream in [
            b"PUB \r\n",
            b"PUB a\r\n",
            b"PUB a b c 5\r\n",
            b"PUB a -5\r\n",
            b"PUB a +5\r\n",
            b"PUB a 5x\r\n",
            b"PUB a 5\r\r\n",
            b"PUB a\r5\r\n",
            b"PUB a 0000000005\r\n",
            b"PUB a\x0b5\r\n",
            b"HPUB \r\n",
            b"HPUB a 12\r\n",
            b"HPUB a b c 12 17\r\n",
            b"HPUB a 18 17\r\n",
            b"HPUB a 6 5\r\nhello\r\n",
            b"HPUB a x 17\r\n",
            b"HPUB a 12 x\r\n",
            b"HPUB a 1048578 1048577\r\n",
            b"SUB \r\n",
            b"SUB a\r\n",
            b"SUB a q r 1\r\n",
            b"UNSUB \r\n",
            b"UNSUB 1 2 3\r\n",
            b"INFO\r\n",
            b"INFO garbage\r\n",
            b"INFO []\r\n",
            b"CONNECT\r\n",
            b"CONNECT \r\n",
            b"CONNECT []\r\n",
            b"CONNECT {} x\r\n",
            b"CONNECT {x\r\n",
        ]
    ],
    (b"PUB a 1048577\r\n", TOO_LARGE),
    (b"PUB a 999999999\r\n", TOO_LARGE),
    (b"HPUB a 12 1048577\r\n", TOO_LARGE),
    (b"-ERR 'x'\r\n", PARSE_ERROR),
    (b"-err\tx\n", PARSE_ERROR),
    (b"-ERR \r\n", PARSE_ERROR),
]


@pytest.mark.parametrize(("stream", "violation"), REFUSED, ids=[repr(stream) for stream, _ in REFUSED])
def test_a_client_must_not_say(stream: bytes, violation: Violation) -> None:
    # The commands before it are returned, those after it are not.
    expected = [Ping(), violation]
    assert feed_all([b"PING\r\n" + stream + b"PING\r\n"]) == expected
    # It is refused as soon as its own bytes are there, however they are split.
    assert feed_all([bytes([byte]) for byte in b"PING\r\n" + stream]) == expected


def test_nothing_is_taken_after_a_violation() -> None:
    parser = Parser()
    assert parser.feed(b"nonsense") == [UNKNOWN]
    assert parser.ended
    assert parser.feed(b"PING\r\n") == []


@pytest.mark.parametrize("stream", [b"PU", b"p", b"CONNEC", b"connect", b"+O", b"-ERR", b"HPUB", b"UNSUB ", b"PUB  \t"])
def test_the_beginning_of_a_verb_is_waited_for(stream: bytes) -> None:
    parser = Parser()
    assert parser.feed(stream) == []
    assert not parser.ended


# ---------------------------------------------------------------------- CONNECT
@pytest.mark.parametrize(
    ("document", "options"),
    [
        (b'{"verbose":false,"protocol":1,"name":"x"}', {"verbose": False, "protocol": 1, "name": "x"}),
        (b'{"VERBOSE":false}', {"verbose": False}),
        ('{"verbo\u017fe":false,"no\u212aey":1}'.encode(), {"verbose": False}),
        (b'{"verbose":null}', {}),
        (b'{"verbose":false,"verbose":null}', {"verbose": False}),
        (b'{"verbose":false,"Verbose":true}', {"verbose": True}),
        (b'{"Verbose":true,"verbose":false}', {"verbose": False}),
        (b'{"unknown":[1,{"a":1e999}],"echo":true}', {"echo": True}),
        (b'{"name":"\xff"}', {"name": "\ufffd"}),
        (b'{"name":"\\ud800"}', {"name": "\ufffd"}),
        (b'{"name":"\\ud83d\\ude00"}', {"name": "\U0001f600"}),
        (b'{"protocol":-1}', {"protocol": -1}),
        (b'{"export":{},"import":null}', {}),
    ],
)
def test_connect_options(document: bytes, options: dict[str, object]) -> None:
    assert feed_all([b"CONNECT " + document + b"\r\n"]) == [Connect(options)]


@pytest.mark.parametrize(
    "document",
    [
        b'{"verbose":"no"}',
        b'{"echo":1}',
        b'{"protocol":1.0}',
        b'{"protocol":1e0}',
        b'{"protocol":true}',
        b'{"protocol":99999999999999999999}',
        b'{"name":5}',
        b'{"name":"a\tb"}',
        b'{"unknown":NaN}',
        b'{"unknown":-Infinity}',
        b'{"import":5}',
        b'{"export":[]}',
        b'"x"',
        b"5",
        b"true",
        b"[" * 2000,
    ],
)
def test_connect_that_does_not_decode_closes_without_a_word(document: bytes) -> None:
    assert feed_all([b"CONNECT " + document + b"\r\n"]) == [SILENT]


def test_every_text_of_a_connect_can_be_written_again() -> None:
    (command,) = feed_all([b'CONNECT {"name":"a\\udc00b","lang":"\\ud800"}\r\n'])
    assert isinstance(command, Connect)
    for value in command.options.values():
        value.encode()


@pytest.mark.parametrize(
    ("connects", "allowed"),
    [
        ([], False),
        ([b"{}"], False),
        ([b'{"headers":false}'], False),
        ([b'{"headers":true}'], True),
        ([b'{"headers":true}', b"{}"], True),
        ([b'{"headers":true}', b'{"headers":null}'], True),
        ([b'{"headers":true}', b'{"headers":false}'], False),
    ],
)
def test_hpub_needs_a_connect_with_headers(connects: list[bytes], allowed: bool) -> None:
    lines = b"".join(b"CONNECT " + document + b"\r\n" for document in connects)
    stream = lines + b"HPUB a 2 4\r\nabcd\r\n"
    expected = Single(b"a", b"", b"ab", b"cd") if allowed else SILENT
    assert feed_all([stream], headers=False)[-1] == expected
    assert feed_all([bytes([byte]) for byte in stream], headers=False)[-1] == expected
    if not allowed:
        # Refused by its first line, even with a payload that is too large or never arrives.
        assert feed_all([lines + b"HPUB a 2 9999999\r\n"], headers=False)[-1] == SILENT


def test_a_server_without_headers_takes_no_hpub() -> None:
    parser = Parser(supports_headers=False)
    [connect] = parser.feed(b'CONNECT {"headers":true}\r\n')
    assert isinstance(connect, Connect)
    assert parser.feed(b"PUB a 1\r\nx\r\nHPUB a 2 4\r\nabcd\r\n") == [Single(b"a", b"", b"", b"x"), SILENT]


# ---------------------------------------------------------------------- limits
LINES: list[tuple[bytes, bytes]] = [
    (b"SUB ", b" 1"),
    (b"SUB       ", b" 1"),
    (b"PUB ", b" 0"),
    (b"PUB %b " % (b"s" * 30), b" 0"),
    (b"PUB %b " % (b"s" * 30), b" 000000000"),
    (b"HPUB ", b" 0 0"),
    (b"HPUB %b " % (b"s" * 30), b" 0 0"),
    (b"UNSUB ", b""),
    (b'CONNECT {"name":"', b'"}'),
    (b'INFO {"name":"', b'"}'),
]


@pytest.mark.parametrize(("start", "end"), LINES)
@pytest.mark.parametrize("limit", [64, 4096])
@pytest.mark.parametrize("newline", [b"\r\n", b"\n"])
def test_the_control_line_limit_counts_the_arguments_only(start: bytes, end: bytes, limit: int, newline: bytes) -> None:
    arguments = len(start.partition(b" ")[2].lstrip(b" ")) + len(end)
    for length, fits in [(limit, True), (limit + 1, False)]:
        line = start + b"a" * (length - arguments) + end + newline
        # With an empty payload after it, a PUB is complete at once.
        for pieces in ([line + b"\r\n"], [line[:30], line[30:-2], line[-2:-1], line[-1:]]):
            found = feed_all(pieces, max_control_line=limit)
            assert (found[-1:] == [TOO_LONG]) is not fits, (line, pieces)


def test_blanks_before_the_arguments_do_not_count_but_those_behind_do() -> None:
    assert feed_all([b"SUB " + b" " * 9000, b" " * 9000 + b"a 1\r\n"]) == [Subscribe(b"a", b"", b"1")]
    assert feed_all([b"SUB a 1" + b" " * 9000 + b"\r\n"]) == [TOO_LONG]


def test_an_endless_line_is_refused_before_it_ends() -> None:
    assert feed_all([b"SUB " + b"a" * 4096]) == []
    assert feed_all([b"SUB " + b"a" * 4097]) == [TOO_LONG]
    assert feed_all([b"SUB "] + [b"a"] * 5000) == [TOO_LONG]
    # The carriage return may be the first half of the line end.
    assert feed_all([b"SUB " + b"a" * 4094 + b" 1\r", b"\n"]) == [Subscribe(b"a" * 4094, b"", b"1")]


def test_a_line_too_long_is_reported_before_a_payload_too_large() -> None:
    assert feed_all([b"PUB " + b"a" * 5000 + b" 99999999\r\n"]) == [TOO_LONG]


@pytest.mark.parametrize("limit", [0, 10, 1 << 20])
def test_the_payload_limit_counts_header_and_body(limit: int) -> None:
    body = b"x" * limit
    assert feed_all([b"PUB a %d\r\n%b\r\n" % (limit, body)], max_payload=limit) == [Single(b"a", b"", b"", body)]
    assert feed_all([b"PUB a %d\r\n%bx\r\n" % (limit + 1, body)], max_payload=limit) == [TOO_LARGE]
    half = limit // 2
    assert feed_all([b"HPUB a %d %d\r\n%b\r\n" % (half, limit, body)], max_payload=limit) == [
        Single(b"a", b"", body[:half], body[half:])
    ]
    assert feed_all([b"HPUB a %d %d\r\n%bx\r\n" % (half, limit + 1, body)], max_payload=limit) == [TOO_LARGE]


# ---------------------------------------------------------------------- cost
class Counting(Parser):
    """Counts the bytes that the parser examines."""

    looked = 0

    def _scan(self, buf: bytes, commands: list[Command | Publishes], position: int = 0) -> None:
        self.looked += len(buf)
        super()._scan(buf, commands, position)


@pytest.mark.parametrize("piece", [100, 4096, 65536])
def test_a_large_payload_in_pieces_is_looked_at_a_bounded_number_of_times(piece: int) -> None:
    stream = b"PUB a 1048576\r\n" + b"x" * (1 << 20) + b"\r\n" + b"PING\r\n"
    parser = Counting()
    commands = [c for i in range(0, len(stream), piece) for c in single(parser.feed(stream[i : i + piece]))]
    assert [type(c) for c in commands] == [Single, Ping]
    assert parser.looked < 3 * len(stream)


def test_a_large_read_is_not_copied_behind_the_part_before_it() -> None:
    message = b"PUB a 4\r\nabcd\r\n"
    parser, read = Parser(), message[9:] + message * 5000
    assert parser.feed(message[:9]) == []
    one, run = parser.feed(read)
    assert isinstance(one, Single)
    assert one.payload == b"abcd"
    assert isinstance(run, Publishes)
    assert run.buf is read
    assert len(run) == 5000


@pytest.mark.parametrize("line", [b"PUB a.b _R 8000000", b"HPUB a.b _R 100000 8000000"])
def test_a_large_payload_is_not_copied_when_its_last_bytes_come(line: bytes) -> None:
    """At 64 MiB each copy held up the event loop for 10 to 40 ms."""
    body = random.Random(1).randbytes(8_000_000)
    stream = line + b"\r\n" + body + b"\r\nPING\r\n"
    parser = Counting(max_payload=len(body))
    parser.headers = True
    pieces = [stream[at : at + 256_000] for at in range(0, len(stream), 256_000)]
    for at, piece in enumerate(pieces[:-1], 1):
        assert parser.feed(piece) == []
        assert 0 < at * 256_000 - parser.held <= 100
    tracemalloc.start()
    try:
        publish, ping = single(parser.feed(pieces[-1]))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert isinstance(publish, Single)
    assert publish.header + publish.payload == body
    assert (publish.subject, publish.reply, len(publish.header)) == (b"a.b", b"_R", 100_000 if b"HPUB" in line else 0)
    assert ping == Ping()
    assert parser.looked <= 2 * 256_000
    assert parser.held == 0


@pytest.mark.parametrize("start", [b"PING", b"+OK", b"SUB "])
def test_an_endless_line_in_pieces_costs_and_holds_little(start: bytes) -> None:
    parser = Counting()
    parser.feed(start)
    for _ in range(10_000):
        assert parser.feed(b" " * 100) == []
        assert len(parser._held) <= 5000
    assert parser.looked < 3_000_000


# ---------------------------------------------------------------------- any split, any bytes
def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line.decode("utf-8", "replace")), dict | None)
    except ValueError:
        return False


def naive(stream: bytes, max_control_line: int, max_payload: int) -> list[Command]:
    """Parse the whole stream by the same rules, one command at a time, without optimizations."""
    commands: list[Command] = []
    while stream:
        found = re.match(rb"(?i)(PING|PONG|\+OK)|(?:(CONNECT|INFO)[ \t]*|(HPUB|PUB|SUB|UNSUB|-ERR)[ \t]+)", stream)
        if found is None:
            begun = any(
                verb.startswith(stream.upper())
                for verb in (b"PING", b"PONG", b"+OK", b"CONNECT", b"INFO", b"PUB", b"HPUB", b"SUB", b"UNSUB", b"-ERR")
            )
            return commands if begun else [*commands, UNKNOWN]
        verb = (found[1] or found[2] or found[3]).upper()
        line, newline, rest = stream[found.end() :].partition(b"\n")
        if line.endswith(b"\r"):
            line = line[:-1]
        if not found[1] and len(line) > max_control_line:
            return [*commands, TOO_LONG]
        if not newline:
            return commands
        if verb == b"PING":
            commands.append(Ping())
        elif verb == b"PONG":
            commands.append(Pong())
        elif verb in (b"PUB", b"HPUB"):
            words = [word for word in re.split(rb"[ \t]", line) if word]
            sizes = words[-2:] if verb == b"HPUB" else [b"0", *words[-1:]]
            if len(words) - (verb == b"HPUB") not in (2, 3) or not all(re.fullmatch(rb"\d{1,9}", s) for s in sizes):
                return [*commands, SILENT]
            header, total = map(int, sizes)
            if header > total:
                return [*commands, SILENT]
            if total > max_payload:
                return [*commands, TOO_LARGE]
            body, end = rest[:total], rest[total : total + 2]
            if end != b"\r\n":
                return commands if end in (b"", b"\r") else [*commands, UNKNOWN]
            reply = words[1] if len(words) - (verb == b"HPUB") == 3 else b""
            commands.append(Single(words[0], reply, body[:header], body[header:]))
            rest = rest[total + 2 :]
        elif verb in (b"SUB", b"UNSUB"):
            words = [word for word in re.split(rb"[ \t\r\n]", line) if word]
            if verb == b"SUB" and len(words) in (2, 3):
                commands.append(Subscribe(words[0], words[1] if len(words) == 3 else b"", words[-1]))
            elif verb == b"UNSUB" and len(words) in (1, 2):
                count = words[1] if len(words) == 2 else b"0"
                commands.append(Unsubscribe(words[0], int(count) if re.fullmatch(rb"\d{1,9}", count) else 0))
            else:
                return [*commands, SILENT]
        elif verb == b"-ERR":
            return [*commands, PARSE_ERROR]
        elif verb == b"CONNECT":
            if not _is_object(line):
                return [*commands, SILENT]
            commands.append(Connect({}))
        elif verb == b"INFO" and not _is_object(line):
            return [*commands, SILENT]
        stream = rest
    return commands


def _cased(verb: bytes) -> st.SearchStrategy[bytes]:
    return st.sampled_from([verb, verb, verb, verb.lower(), verb.title()])


blanks = st.sampled_from([b" ", b" ", b" ", b"\t", b"  ", b" \t "])
newlines = st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n"])
words = st.one_of(
    st.sampled_from([b"a", b"a.b", b"_INBOX.x.1", b"*", b"5", b"a\x0cb", b"a\rb", b"\xff", b"x" * 40]),
    st.binary(min_size=1, max_size=6).map(lambda raw: re.sub(rb"[ \t\r\n]", b"_", raw)),
)


@st.composite
def command_bytes(draw: st.DrawFn) -> bytes:
    kind = draw(st.sampled_from(["PUB", "PUB", "HPUB", "SUB", "UNSUB", "PING", "PONG", "+OK", "INFO", "CONNECT"]))
    verb, newline = draw(_cased(kind.encode())), draw(newlines)
    if kind in ("PING", "PONG", "+OK"):
        return verb + draw(st.sampled_from([b"", b"", b" x", b"junk"])) + newline
    if kind in ("CONNECT", "INFO"):
        return verb + draw(st.sampled_from([b" ", b"", b"\t\t"])) + b"{}" + newline
    arguments = [draw(words)]
    if draw(st.booleans()):
        arguments.append(draw(words))
    tail = b""
    if kind in ("PUB", "HPUB"):
        body = draw(st.binary(max_size=40))
        tail = body + b"\r\n"
        if kind == "HPUB":
            arguments.append(b"%d" % draw(st.integers(0, len(body))))
        arguments.append(b"%d" % len(body))
    elif kind == "SUB":
        arguments.append(draw(words))
    return verb + draw(blanks) + draw(blanks).join(arguments) + newline + tail


streams = st.lists(command_bytes(), max_size=6).map(b"".join)
places = st.lists(st.integers(0, 1 << 20), max_size=12)
LIMITS = [(4096, 1 << 20), (64, 30)]


@settings(max_examples=300, deadline=None)
@given(streams, places, st.sampled_from(LIMITS))
def test_any_cut_of_a_stream_gives_what_the_rules_say(stream: bytes, where: list[int], limits: tuple[int, int]) -> None:
    assert feed_all(cuts(stream, where), *limits) == naive(stream, *limits)
    assert feed_all(cuts(stream, where), *limits, large=2) == naive(stream, *limits)
    assert feed_all(cuts(stream, where), *limits, apart=2) == naive(stream, *limits)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Draw a valid stream with some bytes replaced, removed or inserted."""
    stream = bytearray(draw(streams))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(stream)))
        new = draw(st.one_of(st.binary(max_size=3), st.sampled_from([b"\r", b"\n", b"\r\n", b" ", b"\t", b"0", b"9"])))
        stream[at : at + draw(st.integers(0, 3))] = new
    return bytes(stream)


@settings(max_examples=500, deadline=None)
@given(damaged(), places, st.sampled_from(LIMITS))
def test_any_cut_of_a_damaged_stream_gives_what_the_rules_say(
    stream: bytes, where: list[int], limits: tuple[int, int]
) -> None:
    found = feed_all(cuts(stream, where), *limits)
    assert feed_all(cuts(stream, where), *limits, large=2) == feed_all(cuts(stream, where), *limits, apart=2) == found
    assert found == naive(stream, *limits)
    assert all(not isinstance(command, Violation) for command in found[:-1])


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), places)
def test_noise_raises_nothing_and_reads_the_same_however_it_is_cut(stream: bytes, where: list[int]) -> None:
    assert feed_all(cuts(stream, where)) == feed_all([stream]) == naive(stream, 4096, 1 << 20)
    assert feed_all(cuts(stream, where), apart=2) == feed_all([stream])
