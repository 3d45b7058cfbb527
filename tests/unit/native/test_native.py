"""Tests of lakestream.native: the same ones for the compiled module and its twin, then both against each other.

`LAKESTREAM_FUZZ_ROUNDS` inputs (2,000; the heavy test takes a million) are drawn from `LAKESTREAM_FUZZ_SEED`.
`LAKESTREAM_TEST_NATIVE` names another build of the compiled module: test_sanitized.py runs this file on its own.
"""

from __future__ import annotations

import errno
import gc
import importlib.machinery
import importlib.util
import os
import random
import shutil
import subprocess
import sys
import weakref
from array import array
from collections import defaultdict
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from types import CellType, FunctionType, ModuleType
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lakestream.native
import tests.conftest
from lakestream.log.format.record import Record, encode_record
from lakestream.native import plain
from lakestream.protocol import frames
from lakestream.protocol.gotime import Stamps
from tests.fuzzing import ROUNDS, SEED

pytestmark = pytest.mark.unit

MANY = 1_000_000
LIMIT, WORD = 1 << 20, 2032
APART = True, b"$NRG.", b"_R_.", ord("$"), b"Nats-Apart"
SETS = (
    APART,
    (True, b"", b"", 0, b""),
    (False, b"a", b"", 0, b""),
    (True, b"", b"_INBOX.", ord("x"), b"Nats-Msg-Id"),
    (True, b"PUB longer than any word is", b"b", 255, b"a"),
)
"""Arguments of `parse_run` that set messages apart; the first one is for all that have header blocks."""
ROOT = Path(__file__).resolve().parents[3]


def compiled() -> ModuleType:
    path = os.environ.get("LAKESTREAM_TEST_NATIVE")
    if path is None:
        return importlib.import_module("lakestream.native._fast")
    name = "lakestream.native._fast"
    loader = importlib.machinery.ExtensionFileLoader(name, path)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


fast: Any = compiled()


@pytest.fixture(params=[fast, plain], ids=["compiled", "plain"])
def native(request: pytest.FixtureRequest) -> Any:
    return request.param


def pub(subject: bytes, reply: bytes, payload: bytes, header: bytes = b"") -> bytes:
    reply = reply and reply + b" "
    if header:
        return frames.HPUB % (subject, reply, len(header), len(header) + len(payload), header, payload)
    return frames.PUB % (subject, reply, len(payload), payload)


def rows(buf: bytes, found: Any) -> list[tuple[bytes, ...]]:
    """Return subject, reply, payload and, if it has one, header block of each message of a run."""
    _, subjects, _, places, _, heads, _ = found
    assert len(places) == 4 * len(subjects)
    assert len(heads) in (0, len(subjects))
    result: list[tuple[bytes, ...]] = []
    for at, subject in enumerate(subjects):
        reply_at, reply_length, payload_at, size = places[4 * at : 4 * at + 4]
        block = (buf[payload_at - heads[at] : payload_at],) if heads and heads[at] else ()
        result.append((subject, buf[reply_at : reply_at + reply_length], buf[payload_at : payload_at + size], *block))
    return result


def outcome(call: Callable[..., Any], *args: Any) -> Any:
    """Return the result of a call, or its exception."""
    try:
        return call(*args)
    except Exception as error:
        return type(error), error.args


# ---------------------------------------------------------------------- runs of publishes
MESSAGES = [
    (b"orders.eu", b"", b"one"),
    (b"orders.eu", b"_INBOX.a.1", b""),
    (b"orders.us", b"_INBOX.a.2", b"\r\nPUB x 0\r\n\r\n"),
    (b"a", b"12", b"\x00" * 300),
    (b"\xc3\xa4.\x7f", b"", b"x"),
    (b"orders.eu", b"", b"last"),
]
BLOCK = b"NATS/1.0\r\nNats-Msg-Id:  1 \r\ntrace: Nats-A: b\r\nNats-TTL:\r\nNats-Msg-Id: 2\r\nNats-none\r\n\r\n"
HEADED = [
    (b"orders.eu", b"", b"one"),
    (b"orders.eu", b"", b"", BLOCK),
    (b"orders.eu", b"12", b"PUB", b"NATS/1.0\r\n"),
    (b"a", b"_INBOX.a.2", b"\r\nNats-Msg-Id: no\r\n", b"NATS/1.0\r\nNats-Msg-Id:3"),
    (b"a", b"", b"\x00" * 300, b"NATS/1.0\r\nNats-Other: \r\r\n\n\r\n"),
]


def test_a_run_is_columns(native: Any) -> None:
    buf = b"PING\r\n" + b"".join(pub(*each) for each in MESSAGES) + b"PING\r\n"
    found = native.parse_run(buf, 6, WORD, LIMIT, *APART)
    assert found[0] == len(buf) - 6
    assert rows(buf, found) == MESSAGES
    assert found[2] == [0, 2, 3, 4, 5]
    assert type(found[3]) is array
    assert found[3].typecode == "I"
    assert list(found[3][:2]) == [0, 0]
    assert (list(found[5]), found[6]) == ([], [])


def test_a_run_has_header_blocks(native: Any) -> None:
    buf = b"".join(pub(*each) for each in HEADED * 100) + b"PING\r\n"
    found = native.parse_run(buf, 0, WORD, LIMIT, *APART)
    assert found[0] == len(buf) - 6
    assert rows(buf, found) == HEADED * 100
    assert found[4] == 100 * sum(len(body) + sum(map(len, head)) for _, _, body, *head in HEADED)
    assert found[6] == [b"Nats-Msg-Id", b"Nats-TTL", b"Nats-Other"]
    values = {
        name: native.header_values(buf, found[3], found[5], 0, 5, name) for name in (*found[6], b"trace", b"Nats")
    }
    assert values == {
        b"Nats-Msg-Id": [None, b"1 ", None, b"3", None],
        b"Nats-TTL": [None, b"", None, None, None],
        b"Nats-Other": [None, None, None, None, b"\r"],
        b"trace": [None, b"Nats-A: b", None, None, None],
        b"Nats": [None] * 5,
    }
    assert native.header_values(buf, found[3], found[5], 1, 4, b"Nats-Msg-Id") == [b"1 ", None, b"3"]
    assert native.header_values(buf, found[3], array("I"), 1, 4, b"Nats-Msg-Id") == [None] * 3


def test_a_run_may_be_without_header_blocks(native: Any) -> None:
    buf = b"".join(pub(*each) for each in HEADED)
    found = native.parse_run(buf, 0, WORD, LIMIT, False, *APART[1:])
    assert rows(buf, found) == HEADED[:1]


def test_a_run_has_a_bounded_number_of_names(native: Any) -> None:
    blocks = [b"NATS/1.0\r\nNats-%d: x\r\n\r\n" % (at % 33) for at in range(99)]
    buf = b"".join(pub(b"s", b"", b"", block) for block in blocks)
    assert len(native.parse_run(buf, 0, WORD, LIMIT, *APART)[1]) == 32


def test_repeated_subjects_share_one_object(native: Any) -> None:
    buf = b"".join(pub(b"stream.%d" % (at % 3), b"", b"") for at in range(30))
    _, subjects, starts, *_ = native.parse_run(buf, 0, WORD, LIMIT, *APART)
    assert len({id(subject) for subject in subjects}) == 3
    assert starts == list(range(30))
    _, subjects, starts, *_ = native.parse_run(pub(b"same", b"", b"") * 1000, 0, WORD, LIMIT, *APART)
    assert len({id(subject) for subject in subjects}) == 1
    assert starts == [0]


@pytest.mark.parametrize(
    "other",
    [
        b"PING\r\n",
        b"pub a 1\r\nx\r\n",
        b"PUB  a 1\r\nx\r\n",
        b"PUB\ta 1\r\nx\r\n",
        b"PUB a\t1\r\nx\r\n",
        b"PUB a 1 \r\nx\r\n",
        b"PUB a 1\nx\r\n",
        b"PUB a 1\r\nx\n",
        b"PUB a 1\r\nxy\r\n",
        b"PUB a 2\r\nx\r\n",
        b"PUB a\x01 1\r\nx\r\n",
        b"PUB a b c 1\r\nx\r\n",
        b"PUB a\r\nx\r\n",
        b"PUB a \r\nx\r\n",
        b"PUB a b \r\nx\r\n",
        b"PUB  1\r\nx\r\n",
        b"PUB a +1\r\nx\r\n",
        b"PUB a 1x\r\nx\r\n",
        b"PUB a 0000000001\r\nx\r\n",
        b"PUB a 999999999\r\nx\r\n",
        b"PUB a 4\r\n",
        b"PUB a 4\r\nfour",
        b"PUB a 4\r\nfour\r",
        b"PUB a 9\r\nabove the limit\r\n",
        b"PUB a 9\r\nninebytes\r\n",
        b"PUB longer.word 1\r\nx\r\n",
        b"PUB a longer.word 1\r\nx\r\n",
        b"PUB $NRG.x 1\r\nx\r\n",
        b"PUB a $x 1\r\nx\r\n",
        b"PUB a b$x 1\r\nx\r\n",
        b"PUB a b$ 1\r\nx\r\n",
        b"PUB a _R_.x 1\r\nx\r\n",
        b"HPUB a 1 1\r\nx\r\n",
        b"HPUB a 10 10\r\nNATS/1.1\r\n\r\n",
        b"HPUB a 14 14\r\nNATS/1.0 503\r\n\r\n",
        b"HPUB a 10 9\r\nNATS/1.0\r\n\r\n",
        b"HPUB a 10 10 \r\nNATS/1.0\r\n\r\n",
        b"HPUB a  10 10\r\nNATS/1.0\r\n\r\n",
        b"HPUB a 10  10\r\nNATS/1.0\r\n\r\n",
        b"HPUB a b c 10 10\r\nNATS/1.0\r\n\r\n",
        b"HPUB a $x 10 10\r\nNATS/1.0\r\n\r\n",
        b"HPUB a 10\r\nNATS/1.0\r\n\r\n",
        b"HPUB a 0000000010 10\r\nNATS/1.0\r\n\r\n",
        b"HPUB a b 0000000010 10\r\nNATS/1.0\r\n\r\n",
        b"HPUB a 10 10\r\nNATS/1.0\r\n",
        b"HPUB $NRG.a 10 10\r\nNATS/1.0\r\n\r\n",
        b"hpub a 10 10\r\nNATS/1.0\r\n\r\n",
        b"HPUB a 24 24\r\nNATS/1.0\r\nNats-Apart: 1\r\n\r\n",
        b"HPUB ",
        b"PUB ",
        b"",
        b"\x00",
    ],
)
def test_a_run_ends_before_what_is_not_plain(native: Any, other: bytes) -> None:
    plain_ones = pub(b"$NRG", b"", b"x") + pub(b"$KV.b.c", b"_R_", b"12345678")
    assert native.parse_run(other, 0, 10, 8, *APART) is None
    position, subjects, *_ = native.parse_run(plain_ones + other, 0, 10, 8, *APART)
    assert (position, subjects) == (len(plain_ones), [b"$NRG", b"$KV.b.c"])


@pytest.mark.parametrize(
    ("subjects", "replies", "mark", "length"),
    [
        (b"", b"", "", 5),
        (b"$", b"", "", 2),
        (b"$NRG", b"", "", 2),
        (b"$NRG.", b"", "", 3),
        (b"$NRG.x.and.more", b"", "", 5),
        (b"a", b"", "", 0),
        (b"", b"b", "", 1),
        (b"", b"b.$", "", 1),
        (b"", b"b.$x.y", "", 5),
        (b"", b"_R_.", "", 4),
        (b"", b"", "$", 1),
        (b"", b"", "b", 1),
        (b"", b"", "R", 4),
        (b"", b"", "a", 5),
        (b"", b"", "\xff", 5),
    ],
)
def test_a_run_ends_before_what_is_set_apart(
    native: Any, subjects: bytes, replies: bytes, mark: str, length: int
) -> None:
    singles = [(b"a", b""), (b"a", b"b.$x"), (b"$NRG", b""), (b"$NRG.x", b""), (b"a", b"_R_.")]
    buf = b"".join(pub(*each, b"") for each in singles)
    found = native.parse_run(buf, 0, WORD, LIMIT, False, subjects, replies, ord(mark or "\0"), b"")
    assert (len(found[1]) if found else 0) == length


def test_words_and_sizes_at_their_limits(native: Any) -> None:
    buf = b"PUB 1234567890 1234567890 000000008\r\n12345678\r\n"
    assert rows(buf, native.parse_run(buf, 0, 10, 8, *APART)) == [(b"1234567890", b"1234567890", b"12345678")]
    assert native.parse_run(buf, 0, 9, 8, *APART) is None
    assert native.parse_run(buf, 0, 10, 7, *APART) is None
    assert native.parse_run(buf, len(buf), 10, 8, *APART) is None
    assert native.parse_run(buf, len(buf) + 100, 10, 8, *APART) is None
    with pytest.raises(IndexError):
        native.parse_run(buf, -1, 10, 8, *APART)


@pytest.mark.parametrize("messages", [MESSAGES, HEADED])
def test_every_cut_of_a_run(native: Any, messages: list[tuple[bytes, ...]]) -> None:
    buf = b"".join(pub(*each) for each in messages)
    ends = list(accumulate(len(pub(*each)) for each in messages))
    for cut in range(len(buf)):
        found = native.parse_run(buf[:cut], 0, WORD, LIMIT, *APART)
        whole = sum(end <= cut for end in ends)
        assert (rows(buf, found) if found else []) == messages[:whole]


WORDS = st.binary(min_size=1, max_size=40).map(lambda word: bytes(byte | 0x21 for byte in word).replace(b"$", b"#"))
REPLIES = st.just(b"") | WORDS.filter(lambda word: not word.startswith(b"_R_."))
BLOCKS = st.just(b"") | st.binary(max_size=40).map(lambda rest: b"NATS/1.0\r\n" + rest)
RUNS = st.lists(st.tuples(WORDS, REPLIES, st.binary(max_size=200), BLOCKS), min_size=1, max_size=90)


@given(RUNS, st.binary(max_size=20), st.integers(0, 2**62), st.integers(-(2**63), 2**62), st.data())
def test_any_run(
    messages: list[tuple[bytes, bytes, bytes, bytes]], rest: bytes, seq: int, now: int, data: st.DataObject
) -> None:
    buf = b"".join(pub(*each) for each in messages)
    begin = data.draw(st.integers(0, len(messages)))
    end = data.draw(st.integers(begin, len(messages)))
    for native in (fast, plain):
        found = native.parse_run(buf + b"\n" + rest, 0, WORD, LIMIT, *APART)
        assert found[0] == len(buf)
        assert rows(buf, found) == [each if each[3] else each[:3] for each in messages]
        _, subjects, starts, places, content_bytes, heads, _ = found
        assert content_bytes == sum(len(body) + len(block) for *_, body, block in messages)
        assert starts == [at for at, each in enumerate(subjects) if at == 0 or each != subjects[at - 1]]
        chosen = messages[begin:end]
        records = [
            encode_record(seq + at, now + 7 * at, name, block, body) for at, (name, _, body, block) in enumerate(chosen)
        ]
        assert native.encode_run(buf, subjects, places, heads, begin, end, seq, now, 7) == (
            b"".join(records),
            [len(record) for record in records],
        )
        assert native.frame_run(buf, subjects, places, heads, begin, end, b"") == b"".join(
            pub(*each) for each in chosen
        )
        assert native.frame_run(buf, subjects, places, heads, begin, end, b"17") == b"".join(
            frames.HMSG % (name, b"17", reply + b" " if reply else b"", len(block), len(block + body), block, body)
            if block
            else frames.MSG % (name, b"17" + (b" " + reply if reply else b""), len(body), body)
            for name, reply, body, block in chosen
        )
        framed = [
            native.frame_run(buf, subjects, places, heads, at, at + 1, sid)
            for at in range(begin, end)
            for sid in (b"17", b"3")
        ]
        assert native.frame_run(buf, subjects, places, heads, begin, end, b"17 3") == b"".join(framed)


@pytest.mark.parametrize("name", ["encode_run", "frame_run", "header_values", "frame_acks"])
def test_messages_that_are_not_there(native: Any, name: str) -> None:
    buf = b"".join(pub(*each) for each in MESSAGES)
    _, subjects, _, places, _, none, _ = native.parse_run(buf, 0, WORD, LIMIT, *APART)

    def call(
        begin: int, end: int, places: array[int] = places, subjects: list[bytes] = subjects, heads: array[int] = none
    ) -> object:
        if name == "encode_run":
            return native.encode_run(buf, subjects, places, heads, begin, end, 1, 1, 1)
        if name == "frame_run":
            return native.frame_run(buf, subjects, places, heads, begin, end, b"1")
        if name == "header_values":
            return native.header_values(buf, places, heads, begin, end, b"Nats-TTL")
        return native.frame_acks(buf, places, begin, end, b"_INBOX.a.", b"", 1, b"1")

    for begin, end in ((-1, 1), (1, 0), (0, len(MESSAGES) + 1), (len(MESSAGES) + 1, len(MESSAGES) + 1)):
        with pytest.raises(IndexError):
            call(begin, end)
    if name in ("encode_run", "frame_run"):
        with pytest.raises(IndexError):
            call(0, 2, subjects=[b"a"])
    if name != "frame_acks":
        for wrong in (array("I", [1]), array("I", [0, places[6] + 1]), array("I", [2**32 - 1] * len(MESSAGES))):
            with pytest.raises(IndexError):
                call(0, 2, heads=wrong)
    for field in range(4):
        wrong = array("I", places)
        wrong[field] = len(buf) + 1
        with pytest.raises(IndexError):
            call(0, 1, wrong)
        wrong[field] = 0xFFFFFFFF
        with pytest.raises(IndexError):
            call(0, 1, wrong)
    call(0, 0, array("I"), [])


def test_some_messages_of_a_run(native: Any) -> None:
    buf = b"".join(pub(*each) for each in HEADED)
    _, subjects, _, places, size, heads, own = native.parse_run(buf, 0, WORD, LIMIT, *APART)
    for some in ([0, 1, 2, 3, 4], [0, 2, 3], [1, 4], []):
        copy, *columns = native.choose_run(buf, subjects, places, heads, some)
        assert rows(copy, (0, *columns, own)) == [HEADED[at] for at in some]
        assert len(copy) == sum(sum(map(len, HEADED[at][1:])) for at in some)
        assert columns[3] == sum(sum(map(len, HEADED[at][2:])) for at in some)
    assert native.choose_run(buf, subjects, places, heads, [0, 1, 3, 4])[2] == [0, 2]
    assert native.choose_run(buf, subjects, places, heads, list(range(5)))[4] == size
    for wrong in ([5], [-1], [0, 2**40]):
        with pytest.raises(IndexError):
            native.choose_run(buf, subjects, places, heads, wrong)
    for less in ((buf, subjects, places, heads[:2]), (buf[:-9], subjects, places, heads), (buf, [], places, heads)):
        with pytest.raises(IndexError):
            native.choose_run(*less, [4])


def test_a_subject_that_no_record_holds(native: Any) -> None:
    places = array("I", [0, 0, 0, 1])
    records, lengths = native.encode_run(b"x", [b"s" * 0xFFFF], places, array("I"), 0, 1, 1, 1, 1)
    assert lengths == [len(records)]
    assert native.encode_record(1, 1, b"s" * 0xFFFF, b"", b"x") == records
    with pytest.raises(ValueError, match="65536"):
        native.encode_run(b"x", [b"s" * 0x10000], places, array("I"), 0, 1, 1, 1, 1)
    with pytest.raises(ValueError, match="65536"):
        native.encode_record(1, 1, b"s" * 0x10000, b"", b"x")


@pytest.mark.parametrize(("seq", "time_ns"), [(-1, 1), (1 << 64, 1), (1, 1 << 63), (1, -(1 << 63) - 1)])
def test_numbers_that_no_record_holds(native: Any, seq: int, time_ns: int) -> None:
    with pytest.raises(OverflowError):
        native.encode_record(seq, time_ns, b"s", b"", b"x")


def test_checksums_of_all_lengths(native: Any) -> None:
    body = random.Random(SEED).randbytes(70_010)
    for size in (*range(400), 4095, 4096, 4097, 65_536, 69_999):
        places = array("I", [0, 0, size % 7, size])
        records, _ = native.encode_run(body, [b"s"], places, array("I"), 0, 1, size, -size, 1)
        assert int.from_bytes(records[:4], "little") == crc32(records[4:]), size
        before = crc32(body[size:])
        assert native.crc32(memoryview(body)[:size], before) == crc32(body[:size], before), size
    assert native.crc32(body * 4) == crc32(body * 4)  # other threads run meanwhile


# ---------------------------------------------------------------------- pub acks
def acks(native: Any, replies: list[bytes], head: bytes, seq: int = 1, begin: int = 0, end: int | None = None) -> Any:
    buf = b"".join(pub(b"s", reply, b"x") for reply in replies)
    places = native.parse_run(buf, 0, WORD, LIMIT, *APART)[3]
    return native.frame_acks(buf, places, begin, len(replies) if end is None else end, head, b'{"seq":', seq, b"3")


def test_acks_of_one_inbox(native: Any) -> None:
    framed = b'MSG _INBOX.a.1 3 9\r\n{"seq":9}\r\nMSG _INBOX.a.22 3 10\r\n{"seq":11}\r\n'
    assert acks(native, [b"_INBOX.a.1", b"", b"_INBOX.a.22"], b"_INBOX.a.", 9) == (framed, 2, 19, 3)
    assert acks(native, [b"x", b"_INBOX.a.1", b"", b"_INBOX.a.22", b"x"], b"_INBOX.a.", 9, 1, 4) == (framed, 2, 19, 4)
    assert acks(native, [b"x"], b"_INBOX.a.", 1, 1) == (b"", 0, 0, 1)
    assert acks(native, [b"", b""], b"_INBOX.a.") == (b"", 0, 0, 2)


def test_acks_without_a_subscription_are_publishes(native: Any) -> None:
    buf = b"".join(pub(b"s", reply, b"x") for reply in (b"_INBOX.a.1", b"", b"_INBOX.a.22"))
    places = native.parse_run(buf, 0, WORD, LIMIT, *APART)[3]
    framed, number, size, stop = native.frame_acks(buf, places, 0, 3, b"_INBOX.a.", b'{"seq":', 9, b"")
    assert framed == b'PUB _INBOX.a.1 9\r\n{"seq":9}\r\nPUB _INBOX.a.22 10\r\n{"seq":11}\r\n'
    assert (number, size, stop) == (2, 19, 3)


@pytest.mark.parametrize(
    "other", [b"_INBOX.b.1", b"_INBOX.a", b"_INBOX.a.", b"_INBOX.a.1.2", b"_INBOX.a..", b"x", b"~" * 99]
)
def test_acks_end_at_another_inbox(native: Any, other: bytes) -> None:
    framed = b'MSG _INBOX.a.1 3 9\r\n{"seq":9}\r\n'
    assert acks(native, [b"_INBOX.a.1", b"", other, b"_INBOX.a.2"], b"_INBOX.a.", 9) == (framed, 1, 9, 2)
    assert acks(native, [other], b"_INBOX.a.") == (b"", 0, 0, 0)


def test_acks_with_more_digits(native: Any) -> None:
    for seq in (8, 98, 10**9 - 2, 2**62):
        framed, number, payload, _ = acks(native, [b"a.%d" % at for at in range(5)], b"a.", seq)
        bodies = [b'{"seq":%d}' % (seq + at) for at in range(5)]
        assert framed == b"".join(frames.MSG % (b"a.%d" % at, b"3", len(body), body) for at, body in enumerate(bodies))
        assert (number, payload) == (5, sum(map(len, bodies)))


# ---------------------------------------------------------------------- records
STORED = [
    Record(7, 100, b"orders.eu", b"", b"one"),
    Record(8, 101, b"orders.eu", b"NATS/1.0\r\na: b\r\n\r\n", b""),
    Record(9, -5, b"orders.us", b"", b"x" * 500),
    Record(10, 103, b"orders.eu", b"NATS/1.0\r\n\r\n", b"last"),
]


def encoded(records: list[Record]) -> list[bytes]:
    return [encode_record(each.seq, each.time_ns, each.subject, each.header, each.data) for each in records]


def test_records_as_columns(native: Any) -> None:
    parts = encoded(STORED)
    assert native.split_records(b"".join(parts)) == (
        7,
        [each.subject for each in STORED],
        [len(part) for part in parts],
        [(1, STORED[1].header, 101), (3, STORED[3].header, 103)],
        103,
    )
    assert native.split_records(b"") == (0, [], [], [], 0)
    assert native.split_records(b"".join((*parts[:2], parts[3]))) is None
    assert native.split_records(parts[0] * 2) is None
    assert native.split_records(parts[1] + parts[0]) is None
    last, first = encoded([Record(2**64 - 1, 1, b"a", b"", b""), Record(0, 1, b"a", b"", b"")])
    assert native.split_records(last + first) is None


def test_records_are_decoded(native: Any) -> None:
    parts = encoded(STORED)
    buf, offsets = b"".join(parts), list(accumulate(map(len, parts), initial=0))
    assert native.decode_spans(Record, buf, offsets[:-1], map(len, parts)) == STORED
    assert native.decode_spans(Record, buf, [], []) == []
    for record, offset, end in zip(STORED, offsets, offsets[1:], strict=False):
        assert native.decode_record(Record, buf, offset, len(buf), True) == (record, end)
    for offset, stop in ((-1, 5), (0, len(buf) + 1)):
        with pytest.raises(IndexError):
            native.decode_record(Record, buf, offset, stop, True)
    with pytest.raises(ValueError, match="zip"):
        native.decode_spans(Record, buf, [0], [])


def test_damaged_records_are_named_by_their_offset(native: Any) -> None:
    parts = encoded(STORED)
    offset = len(parts[0])
    for part in parts:
        for at in range(len(part)):
            changed = bytearray(parts[0] + part)
            changed[offset + at] ^= 1 << at % 8
            buf = bytes(changed)
            assert damage(native.decode_record, Record, buf, offset, len(buf), True) == offset
            assert damage(native.decode_spans, Record, buf, [0, offset], [offset, len(part)]) == offset


def test_records_cut_short(native: Any) -> None:
    parts = encoded(STORED)
    buf, offsets = b"".join(parts), list(accumulate(map(len, parts), initial=0))
    for cut in set(range(len(buf))) - set(offsets):
        at = max(offset for offset in offsets if offset < cut)
        assert damage(native.split_records, buf[:cut]) == at
        assert damage(native.decode_record, Record, buf, at, cut, False) == at
        assert damage(native.decode_spans, Record, buf, [at], [cut - at]) == at
        assert damage(native.decode_spans, Record, buf[:cut], [at], [len(buf)]) == at


def damage(call: Callable[..., Any], *args: Any) -> int:
    """Return the offset that a call reports as damaged."""
    kind, (offset, text) = outcome(call, *args)
    assert kind is ValueError
    assert isinstance(text, str)
    return int(offset)


# ---------------------------------------------------------------------- which one serves
def serving(**environment: str) -> str:
    """Return what a process with this environment uses."""
    code = "from lakestream import native; print(native.parse_run.__module__, native.NATIVE, native.WHY)"
    env = {**os.environ, **environment}
    env.pop("LD_PRELOAD", None)
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, check=True, capture_output=True, text=True
    ).stdout


def changed_sources(directory: Path) -> Path:
    """Make a package `lakestream` in a directory whose compiled module is that of this one, and its sources are not."""
    package = directory / "lakestream"
    package.mkdir()
    for each in (ROOT / "lakestream").iterdir():
        if each.name != "native":
            (package / each.name).symlink_to(each)
    shutil.copytree(ROOT / "lakestream" / "native", package / "native")
    with (package / "native" / "columns.h").open("a") as file:
        file.write("// another line\n")
    return package


class Ended:
    """An object that refers to itself, to parts and to others."""

    def __init__(self, shared: object) -> None:
        self.me, self.shared = self, shared
        self.parts = [self, {"of": self}, lambda: self]
        self.large = [[self], [], [], []]
        self.unknown = {self}
        self.namespace = {"__name__": [self]}


def test_what_has_ended_is_collected_though_it_was_exempt(native: Any) -> None:
    kinds = defaultdict[type, bool](bool, dict.fromkeys((list, dict, FunctionType, tuple, CellType), True))
    shared: list[object] = [[]]
    ended, other = Ended(shared), Ended([])
    gc.collect()
    gc.freeze()
    try:
        # It, a list, a dict, a function with its closure (tuple and cell); with some interpreters a dict of its own.
        assert native.renew(ended, (shared,), kinds, 1000, 3) in (6, 7)
        assert native.renew(other, (), kinds, 1, 3) == 1
        gone = weakref.ref(ended)
        ended.unknown.clear()
        ended.large.clear()
        ended.namespace.clear()
        del ended
        gc.collect(1)
        assert gone() is None
    finally:
        gc.unfreeze()


def test_files_and_directories_are_synced_and_each_has_its_own_error(native: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    wrong = native.sync_paths([f"{tmp_path}/file", f"{tmp_path}/missing"], [f"{tmp_path}", f"{tmp_path}/file/below"])
    errors = {path: (type(error), error.errno, error.filename) for path, error in wrong.items()}
    missing, below = f"{tmp_path}/missing", f"{tmp_path}/file/below"
    assert errors == {
        missing: (FileNotFoundError, errno.ENOENT, missing),
        below: (NotADirectoryError, errno.ENOTDIR, below),
    }
    assert native.sync_paths([], ()) == {}


def test_an_environment_variable_chooses_the_twin() -> None:
    assert serving(LAKESTREAM_NATIVE="") == "lakestream.native._fast True \n"
    assert serving(LAKESTREAM_NATIVE="off") == "lakestream.native.plain False LAKESTREAM_NATIVE=off\n"


def test_a_compiled_module_of_other_sources_does_not_serve(tmp_path: Path) -> None:
    package = changed_sources(tmp_path)
    code = "from lakestream import native; print(native.parse_run.__module__, native.STALE, native.WHY)"
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert found.startswith("lakestream.native.plain True it was compiled from other sources")
    assert "`make setup`" in found
    assert "pip install --force-reinstall" in found
    (package / "native" / "fast.pyx").unlink()
    found = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert found == "lakestream.native._fast False \n", "without sources there is nothing that it should fit"


def test_no_test_runs_on_a_compiled_module_of_other_sources(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lakestream.native, "STALE", True)
    with pytest.raises(pytest.UsageError, match=r"lakestream\.native"):
        tests.conftest.pytest_configure(pytestconfig)


# ---------------------------------------------------------------------- both against each other
PIECES = [b"a", b"abc", b"$JS.x", b"_R_.x.y", b"_INBOX.abc.1", b"_INBOX.abc.22", b"_INBOX.abc.1.2", b"x$y", b"12", b"7"]
PIECES += [b"f" * 20, b"\xff\xfe", b"de\x01f", b"", b"subject.one.two.3", b"subject.one.two.4"]
SIZES = [0, 1, 5, 30, 100]
BEGINNINGS = [b"NATS/1.0\r\n"] * 7 + [b"NATS/1.0", b""]
LINES = [
    b"Nats-Msg-Id: 7",
    b"Nats-Msg-Id:",
    b"a: Nats-TTL:",
    b"Nats-TTL:   x ",
    b"Nats-",
    b"Nats-Apart",
    b"",
    b"\r",
    b"\n",
]
LINES += [b"Nats-Apart:b", b"Nats-%d: y" % 9]
ODD = [0, 10, 13, 32, 36, 48, 255]


def drawn_commands(rng: random.Random) -> bytes:
    """Return PUB commands, now and then with a mistake, and mostly whole."""
    parts = []
    for _ in range(rng.randrange(8)):
        body = rng.randbytes(rng.choice(SIZES))
        words = [rng.choice(PIECES) for _ in range(rng.choice((1, 2, 2, 2, 3) if rng.random() < 0.1 else (1, 2)))]
        size = len(body) + (rng.choice((-1, 1)) if rng.random() < 0.03 else 0)
        words.append(b"%d" % size if rng.random() < 0.9 else b"%03d" % max(size, 0))
        verb = b"PUB " if rng.random() < 0.97 else b"pub "
        if rng.random() < 0.4:
            block = rng.choice(BEGINNINGS) + b"\r\n".join(rng.choice(LINES) for _ in range(rng.randrange(4)))
            verb, body, words[-1:] = b"H" + verb, block + body, [b"%d" % len(block), b"%d" % (size + len(block))]
        command = verb + b" ".join(words) + b"\r\n" + body + b"\r\n"
        parts.append(command if rng.random() > 0.05 else damaged(rng, command))
    buf = b"".join(parts)
    return buf[: len(buf) - rng.choice((0, 0, 0, 1, 2, 5))]


def drawn_records(rng: random.Random) -> tuple[bytes, list[int]]:
    """Return records with consecutive sequences, now and then with damage, and their lengths."""
    seq = rng.choice((0, 1, 1000, 2**64 - 3))
    records = []
    for _ in range(rng.randrange(5)):
        header = rng.choice((b"", b"", b"NATS/1.0\r\n\r\n", b"odd\r\n", b"odd"))
        time_ns = rng.choice((rng.randrange(2**40), rng.randrange(2**62), -1, -(2**63), 10**18, 10**18 + 5 * 10**8))
        records.append(encode_record(seq, time_ns, rng.choice(PIECES), header, rng.randbytes(rng.choice(SIZES))))
        seq = (seq + (1 if rng.random() < 0.95 else 2)) % 2**64
    lengths = [len(record) for record in records]
    buf = b"".join(records)
    if rng.random() < 0.4:
        buf = damaged(rng, buf)
    return buf[: len(buf) - rng.choice((0, 0, 0, 1, 29, 31))], lengths


def damaged(rng: random.Random, text: bytes) -> bytes:
    if not text:
        return b"\x00"
    changed = bytearray(text)
    changed[rng.randrange(len(changed))] = rng.choice(ODD)
    return bytes(changed)


def same(name: str, *args: Any) -> Any:
    """Call both with the same arguments; return the result, after it was compared."""
    one, other = outcome(getattr(plain, name), *args), outcome(getattr(fast, name), *args)
    assert one == other, (name, args)
    return one


def compare(rng: random.Random) -> None:
    buf = drawn_commands(rng)
    found = same(
        "parse_run",
        buf,
        rng.choice((0, 0, 0, 0, 1, -1, 20)),
        rng.choice((1, 3, 12, WORD)),
        rng.choice((0, 4, 30, LIMIT)),
        *rng.choice(SETS),
    )
    if found is not None and isinstance(found[0], int):
        _, subjects, _, places, _, heads, own = found
        begin, end = 0, len(subjects)
        if rng.random() < 0.3:
            begin, end = rng.randrange(-1, end + 2), rng.randrange(-1, end + 2)
        if rng.random() < 0.05:
            wrong = rng.choice((places, heads or places))
            wrong[rng.randrange(len(wrong))] = rng.choice((0, 1, len(buf), len(buf) + 1, 2**32 - 1))
        seq, now = rng.choice((0, 1, 2**63 - 9)), rng.choice((-5, 10**18))
        same("encode_run", buf, subjects, places, heads, begin, end, seq, now, 9)
        parts = [buf[: rng.choice((0, 0, 9))], buf[: rng.randrange(70)], buf[rng.randrange(len(buf) + 1) :]]
        same("encode_record", seq, now, parts[1], parts[0], parts[2])
        same("frame_run", buf, subjects, places, heads, begin, end, rng.choice((b"", b"17", b"17 3")))
        same("header_values", buf, places, heads, begin, end, rng.choice((*own, b"Nats-Msg-Id", b"a")))
        some = [at for at in range(len(subjects)) if rng.random() < 0.6]
        same("choose_run", buf, subjects, places, heads, some if rng.random() < 0.95 else [rng.randrange(-2, 9)])
        head = rng.choice((b"_INBOX.abc.", b"_INBOX.abc.", b"", b"a"))
        same(
            "frame_acks",
            buf,
            places,
            begin,
            end,
            head,
            rng.choice((b"", b'{"seq":')),
            rng.choice((0, 8, 2**63)),
            rng.choice((b"", b"1", b"17")),
        )
    buf, lengths = drawn_records(rng)
    same("split_records", buf)
    offsets = list(accumulate(lengths, initial=0))[:-1]
    if offsets and rng.random() < 0.2:
        wrong = rng.choice((offsets, lengths))
        wrong[rng.randrange(len(wrong))] += rng.choice((-40, -1, 1, 2**62))
    same("decode_spans", Record, buf, offsets, lengths)
    compare_columns(rng, buf, offsets, lengths)
    same(
        "decode_record", Record, buf, rng.randrange(-1, 3), len(buf) + rng.choice((0, 0, 0, -1, 1)), rng.random() < 0.5
    )


def compare_columns(rng: random.Random, buf: bytes, offsets: list[int], lengths: list[int]) -> None:
    columns = [array("I", [number & 0xFFFFFFFF for number in numbers]) for numbers in (offsets, lengths)]
    if rng.random() < 0.02:
        columns[0].append(0)
    same("check_records", buf, *columns)
    same("record_subjects", buf, *columns)
    same("copy_records", buf, *columns, [rng.randrange(5) for _ in range(rng.randrange(4))])
    begin, end = 0, len(columns[0])
    if rng.random() < 0.3:
        begin, end = rng.randrange(-1, end + 2), rng.randrange(-1, end + 2)
    number, left = rng.choice((0, 9, 99_998, 2**64 - 20)), rng.choice((-3, 0, 5, 10**6, 2**62))
    same("delivery_sizes", buf, *columns, begin, end, rng.choice((b"", b"$JS.ACK.S.C.1.")), number, left)
    same("frame_deliveries", buf, *columns, begin, end, b"7", b"$JS.ACK.S.C.1.", number, left)
    stream = rng.choice((b"", b"Nats-Stream: S\r\n"))
    same("frame_direct", buf, *columns, begin, end, b"7", rng.choice(PIECES), stream, left, number, second)


def second(time_ns: int) -> bytes:
    return Stamps().second(time_ns)[0]


def test_both_agree_on_drawn_inputs() -> None:
    rng = random.Random(SEED)
    for _ in range(ROUNDS):
        compare(rng)


@pytest.mark.heavy
@pytest.mark.timeout(1800)
def test_both_agree_on_a_million_inputs() -> None:
    rng = random.Random(f"million {SEED}")
    for _ in range(max(MANY, ROUNDS)):
        compare(rng)


@given(
    st.binary(max_size=300),
    st.integers(0, 20),
    st.integers(1, 50),
    st.integers(0, 300),
    st.tuples(st.booleans(), st.binary(max_size=3), st.binary(max_size=3), st.integers(0, 255), st.binary(max_size=6)),
)
def test_both_agree_on_any_bytes(
    buf: bytes, position: int, word: int, limit: int, apart: tuple[bool, bytes, bytes, int, bytes]
) -> None:
    same("parse_run", buf, position, word, limit, *apart)
    same("parse_run", b"PUB " + buf, 0, word, limit, *apart)
    same("parse_run", b"HPUB " + buf, 0, word, limit, *apart)
    same("split_records", buf)
    same("decode_record", Record, buf, position, len(buf), True)
    same("decode_record", Record, buf, position, len(buf), False)


# ---------------------------------------------------------------------- message ids


@given(
    st.lists(st.tuples(st.lists(st.binary(min_size=1, max_size=20), max_size=8), st.integers(0, plain.ID_CHUNKS - 1))),
    st.integers(1, 60),
)
def test_tables_of_ids_are_the_same(runs: list[tuple[list[bytes], int]], slots: int) -> None:
    tables = bytearray(4 * slots), bytearray(4 * slots)
    noted = []
    for ids, chunk in runs:
        if len(noted) + len(ids) >= slots:
            break
        for native, table in zip((fast, plain), tables, strict=True):
            native.note_ids(table, ids, chunk)
        noted += [(each, chunk) for each in ids]
    assert tables[0] == tables[1]
    asked: list[bytes | None] = [*(each for each, _ in noted), None, b"", b"another"]
    found = fast.seek_ids([tables[0], bytearray(), tables[0]], asked)
    assert sorted(found) == sorted(plain.seek_ids([tables[0], bytearray(), tables[0]], asked))
    for place, (_, chunk) in enumerate(noted):
        assert (place, 0, chunk) in found
        assert (place, 2, chunk) in found
    assert not any(len(noted) <= place < len(noted) + 2 for place, _, _ in found)


def test_a_table_of_ids_that_is_full_or_a_chunk_that_cannot_be(native: Any) -> None:
    table = bytearray(8)
    native.note_ids(table, [b"a", b"b"], 1)
    assert len(native.seek_ids([table], [b"a"])) >= 1, "it ends, without a free slot"
    with pytest.raises(ValueError, match="all 2 slots"):
        native.note_ids(table, [b"c"], 1)
    for chunk in (-1, plain.ID_CHUNKS):
        with pytest.raises(ValueError, match="chunk"):
            native.note_ids(bytearray(8), [b"a"], chunk)
    with pytest.raises(ValueError, match="0 slots"):
        native.note_ids(bytearray(3), [b"a"], 0)


def test_few_ids_are_found_that_are_not_in_a_table(native: Any) -> None:
    count = 7_000
    table = bytearray(4 * count * 8 // 7)
    native.note_ids(table, [b"%022d" % number for number in range(count)], 5)
    assert len(native.seek_ids([table], [b"x%021d" % number for number in range(count)])) < 10


HEADER_BYTES = [*range(0x11, 0x1D), 0x2C, 0x3C, 0x05, 0x25, 0, 1, 2, 3, 8, 0x80, 0xFF]


@settings(max_examples=1500, deadline=None)
@given(st.lists(st.sampled_from(HEADER_BYTES), max_size=40).map(bytes))
def test_both_decode_the_same_headers_of_pages(content: bytes) -> None:
    def outcome(native: Any) -> object:
        try:
            return native.page_header(content)
        except (IndexError, ValueError) as error:
            return type(error)

    assert outcome(fast) == outcome(plain)
