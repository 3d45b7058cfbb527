"""Tests of the loops over stored records, the same ones for what serves here and for the twin; test_native.py compares
both on drawn inputs."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from itertools import accumulate
from types import ModuleType
from typing import Any

import msgspec
import pytest

from lakestream import native
from lakestream.log.format.record import Record, decode_record, encode_record
from lakestream.log.format.records import Records
from lakestream.native import plain
from lakestream.protocol.gotime import Stamps

TWINS = [native, plain]
SUBJECTS = [b"a", b"orders.new", b"c.1", b"c.2", b"x" * 300]
HEADERS = [b"", b"NATS/1.0\r\nA: b\r\n\r\n", b"NATS/1.0\r\nA: b\r\n", b"odd", b"\r\n\r\n", b"\r\n"]
SECOND = 1_000_000_000
TIMES = [
    0,
    1,
    -1,
    -SECOND,
    1_700_000_000 * SECOND,
    1_700_000_000_123_456_789,
    951_782_400 * SECOND + 500_000_000,
    1 << 62,
]


def second(time_ns: int) -> bytes:
    return Stamps().second(time_ns)[0]


class Stored:
    """Records with bytes between them."""

    def __init__(self, records: list[Record], gap: bytes = b"") -> None:
        self.records = records
        self.buf, self.offsets, self.lengths = b"", array("I"), array("I")
        for one in records:
            encoded = encode_record(one.seq, one.time_ns, one.subject, one.header, one.data)
            self.offsets.append(len(self.buf) + len(gap))
            self.lengths.append(len(encoded))
            self.buf += gap + encoded

    def call(self, function: Callable[..., Any], *arguments: object) -> Any:
        """Return the result, or the error with its arguments."""
        try:
            return function(self.buf, self.offsets, self.lengths, *arguments)
        except (IndexError, ValueError, TypeError) as error:
            return type(error), error.args


def some_records(choose: random.Random, count: int) -> Stored:
    seq = choose.choice([1, 9_999, (1 << 63) - 500])
    records = [
        Record(
            seq + at * choose.choice([1, 1, 3]) + 2 * at,
            choose.choice([*TIMES, choose.randrange(2_000_000_000 * SECOND)]),
            choose.choice(SUBJECTS),
            choose.choice(HEADERS),
            choose.randbytes(choose.choice([0, 1, 7, 8, 9, 128, 1000])),
        )
        for at in range(count)
    ]
    return Stored(records, choose.randbytes(choose.choice([0, 0, 20])))


@pytest.fixture(params=TWINS, ids=["chosen", "plain"])
def twin(request: pytest.FixtureRequest) -> ModuleType:
    chosen: ModuleType = request.param
    return chosen


def test_deliveries_are_framed_as_one_by_one(twin: ModuleType) -> None:
    stored = some_records(random.Random(1), 40)
    expected, size = b"", 0
    for at, one in enumerate(stored.records[3:30]):
        reply = b"$JS.ACK.S.C.1.%d.%d.%d.%d" % (one.seq, 99 + at, one.time_ns, 20 - at)
        total = len(one.header) + len(one.data)
        size += total
        lengths = b"%d %d" % (len(one.header), total) if one.header else b"%d" % total
        verb = b"HMSG" if one.header else b"MSG"
        expected += b"%b %b 7 %b %b\r\n%b%b\r\n" % (verb, one.subject, reply, lengths, one.header, one.data)
    assert stored.call(twin.frame_deliveries, 3, 30, b"7", b"$JS.ACK.S.C.1.", 99, 20) == (expected, size)


def test_sizes_are_those_of_the_messages(twin: ModuleType) -> None:
    stored = some_records(random.Random(2), 40)
    for head in (b"$JS.ACK.S.C.1.", b""):
        expected = []
        for at, one in enumerate(stored.records[5:]):
            reply = b"%b%d.%d.%d.%d" % (head, one.seq, 8 + at, one.time_ns, 20 - at) if head else b""
            expected.append(len(one.subject) + len(reply) + len(one.header) + len(one.data))
        assert stored.call(twin.delivery_sizes, 5, 40, head, 8, 20) == expected


def test_direct_gets_are_framed_with_their_lines(twin: ModuleType) -> None:
    stored = some_records(random.Random(3), 40)
    expected, size, last = b"", 0, 77
    for at, one in enumerate(stored.records):
        opening = one.header.removesuffix(b"\r\n").removesuffix(b"\r\n") if one.header else b"NATS/1.0"
        block = opening + b"\r\nNats-Stream: S\r\nNats-Subject: %b\r\nNats-Sequence: %d\r\n" % (one.subject, one.seq)
        block += b"Nats-Time-Stamp: %b\r\nNats-Num-Pending: %d\r\n" % (Stamps().format(one.time_ns), 60 - at)
        block += b"Nats-Last-Sequence: %d\r\n\r\n" % last
        last, total = one.seq, len(block) + len(one.data)
        size += total
        expected += b"HMSG _INBOX.a 1 %d %d\r\n%b%b\r\n" % (len(block), total, block, one.data)
    arguments = (0, 40, b"1", b"_INBOX.a", b"Nats-Stream: S\r\n", 60, 77, second)
    assert stored.call(twin.frame_direct, *arguments) == (expected, size)


def ends_of(texts: list[bytes]) -> tuple[bytes, bytes]:
    """Return texts as a column: where each begins and ends, and all of them."""
    return array("i", accumulate(map(len, texts), initial=0)).tobytes(), b"".join(texts)


@pytest.mark.parametrize("twin", TWINS)
def test_rows_of_columns_are_the_records_of_their_messages(twin: ModuleType) -> None:
    choose = random.Random(7)
    for count in (0, 1, 2, 40):
        records = some_records(choose, count).records
        order = choose.sample(range(count), count // 2 + count % 2)
        columns = [
            array("q", order).tobytes(),
            array("q", [one.seq for one in records]).tobytes(),
            array("q", [one.time_ns for one in records]).tobytes(),
            *ends_of([one.subject for one in records]),
            *ends_of([one.header for one in records]),
            *ends_of([one.data for one in records]),
        ]
        found = Records(*twin.encode_rows(*columns), [records[at].seq for at in order])
        assert found == [records[at] for at in order]
        if found:
            found.check()
        columns[5] = columns[6] = b""
        found = Records(*twin.encode_rows(*columns), [records[at].seq for at in order])
        assert found == [msgspec.structs.replace(records[at], header=b"") for at in order]


@pytest.mark.parametrize("twin", TWINS)
def test_rows_that_are_no_messages_are_refused(twin: ModuleType) -> None:
    one = array("q", [1]).tobytes()
    name, ends = array("i", [0, 1]).tobytes(), array("i", [0, 0]).tobytes()
    fine = [bytes(8), one, one, name, b"s", b"", b"", ends, b""]
    assert len(twin.encode_rows(*fine)[0]) == 31
    for at, wrong in (
        (0, one),
        (0, array("q", [-1]).tobytes()),
        (2, b""),
        (3, array("i", [0, 2]).tobytes()),
        (3, array("i", [1, 0]).tobytes()),
        (3, array("i", [-1, 1]).tobytes()),
        (3, array("i", [0]).tobytes()),
        (5, array("i", [0]).tobytes()),
        (5, array("i", [0, 1]).tobytes()),
        (7, array("i", [0, 1]).tobytes()),
    ):
        with pytest.raises(ValueError, match=r"is no message|different lengths"):
            twin.encode_rows(*(wrong if at == place else column for place, column in enumerate(fine)))
    long = array("i", [0, 0x10000]).tobytes()
    with pytest.raises(ValueError, match="is no message"):
        twin.encode_rows(*fine[:3], long, bytes(0x10000), *fine[5:])


def test_subjects_of_records(twin: ModuleType) -> None:
    stored = some_records(random.Random(4), 40)
    assert stored.call(twin.record_subjects) == [one.subject for one in stored.records]


def test_names_are_split_where_they_begin(twin: ModuleType) -> None:
    for names in ([], [b"a"], SUBJECTS, [b"s.%d" % at for at in range(70_000)], [b"x" * 65_535] * 17):
        packed = msgspec.msgpack.encode(names)
        marks = twin.split_names(packed)
        starts = [start + 2 + (packed[start] == 0xC5) for start in marks[:-1]]
        assert [packed[start:end] for start, end in zip(starts, marks[1:], strict=True)] == names
        assert marks[-1] == len(packed)
    for wrong in (
        b"",
        b"\xc4",
        b"\xdc\x00",
        b"\x91",
        b"\x92\xc4\x01a",
        b"\x91\xa1a",
        b"\x91\xc4\x02a",
        b"\x91\xc4\x01ab",
    ):
        with pytest.raises(ValueError, match=r"list|text"):
            twin.split_names(wrong)


def test_single_texts_are_cut_out_of_a_page(twin: ModuleType) -> None:
    texts = [b"", b"a", *SUBJECTS, bytes(70_000), b"z"]
    page = b"lv" + b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    for places in ([], [0], [1, 3], range(len(texts)), [len(texts) - 1]):
        assert twin.text_cells(page, 2, places) == [texts[place] for place in places]
    for wrong, at, places in ((page, 2, [len(texts)]), (page[:-1], 2, [len(texts) - 1]), (page, len(page) + 9, [0])):
        with pytest.raises(ValueError, match="is cut short"):
            twin.text_cells(wrong, at, places)
    with pytest.raises(ValueError, match="is cut short"):
        twin.text_cells(b"\xff\xff\xff\xffabc", 0, [0])


def test_headers_of_pages(twin: ModuleType) -> None:
    plain = bytes.fromhex("1500 15a01f 15ba14 15a8ecf6f10f 1c 158020 1500 1506 1506 00 00")
    assert twin.page_header(plain + b"content") == (len(plain), 0, 2000, 1309, 2132728596, 2048, 0, 3, 3)
    dictionary = bytes.fromhex("1504 1500 1504 4c 1500 1500 00 00")
    assert twin.page_header(dictionary) == (len(dictionary), 2, 0, 2, -1, 0, -1, -1, -1)
    second = bytes.fromhex("1506 1508 1508 5c 1514 1502 1514 1500 1504 1500 11 00 00")
    assert twin.page_header(second) == (len(second), 3, 4, 4, -1, 10, -1, -1, -1)
    for size in range(len(plain)):
        with pytest.raises(IndexError):
            twin.page_header(plain[:size])
    for wrong in (b"\x1d", b"\x15" + b"\xff" * 10, b"\x05\x00\x00", b"\x1c" * 10):
        with pytest.raises(ValueError, match="it has"):
            twin.page_header(wrong)


def test_records_match_the_rows_that_describe_them(twin: ModuleType) -> None:
    stored = some_records(random.Random(9), 40)
    names = [b"zz", *SUBJECTS]
    packed = msgspec.msgpack.encode(names)
    marks = twin.split_names(packed)
    rows = [3 * at + 1 for at in range(30)]
    sizes, ids = array("I", bytes(4 * 100)), array("I", bytes(4 * 100))
    for row, one, length in zip(rows, stored.records[5:], stored.lengths[5:], strict=False):
        sizes[row], ids[row] = length, names.index(one.subject)
    assert stored.call(twin.records_match, 5, rows, sizes, ids, packed, marks) is True
    assert stored.call(twin.records_match, 4, rows, sizes, ids, packed, marks) is False
    for column, wrong in ((sizes, 1), (ids, 0)):
        good, column[rows[17]] = column[rows[17]], wrong
        assert stored.call(twin.records_match, 5, rows, sizes, ids, packed, marks) is False
        assert stored.call(twin.records_match, 5, rows[:17], sizes, ids, packed, marks) is True
        column[rows[17]] = good
    for begin, some in ((11, rows), (-1, rows), (5, [100]), (5, [-1])):
        assert stored.call(twin.records_match, begin, some, sizes, ids, packed, marks)[0] is IndexError
    ids[1] = len(names)
    assert stored.call(twin.records_match, 5, rows, sizes, ids, packed, marks)[0] is IndexError
    ids[1] = 0
    assert stored.call(twin.records_match, 5, rows, sizes, ids, packed[:3], marks)[0] is IndexError


def test_the_records_whose_subjects_match_are_chosen_and_copied(twin: ModuleType) -> None:
    stored = some_records(random.Random(8), 40)
    wanted = [at for at, one in enumerate(stored.records) if one.subject.startswith(b"c.")]
    matcher = twin.SubjectMatcher([b"c.*", b"none.>"])
    for most in (0, 1, 3, 40):
        assert stored.call(matcher.choose_records, most) == wanted[:most]
    for some in ([], [0], wanted, range(40)):
        copy = Records(*stored.call(twin.copy_records, some), [stored.records[at].seq for at in some])
        assert list(copy) == [stored.records[at] for at in some]
        assert len(copy.buf) == sum(copy.lengths)


def test_each_changed_byte_is_noticed(twin: ModuleType) -> None:
    stored = Stored([Record(5, 6, b"a.b", HEADERS[1], b"data"), Record(6, 7, b"a.b", b"", b"data")])
    assert stored.call(twin.check_records) is None
    good = stored.buf
    for at in range(len(good)):
        stored.buf = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
        kind, (offset, what) = stored.call(twin.check_records)
        assert (kind, offset) == (ValueError, 0 if at < stored.lengths[0] else stored.lengths[0])
        assert "crc" in what


def test_records_that_are_not_there_are_refused(twin: ModuleType) -> None:
    stored = some_records(random.Random(5), 4)
    for begin, end in ((-1, 2), (3, 2), (0, 5)):
        assert stored.call(twin.frame_deliveries, begin, end, b"1", b"h.", 1, 9)[0] is IndexError
        assert stored.call(twin.frame_direct, begin, end, b"1", b"to", b"", 9, 0, second)[0] is IndexError
    assert stored.call(twin.copy_records, [0, 4])[0] is IndexError
    stored.buf = stored.buf[:-1]
    assert stored.call(twin.copy_records, [0, 3])[0] is ValueError
    assert stored.call(twin.SubjectMatcher([b"zz"]).choose_records, 4)[0] is ValueError
    assert isinstance(stored.call(twin.frame_deliveries, 0, 3, b"1", b"h.", 1, 9)[0], bytes)
    assert stored.call(twin.frame_deliveries, 0, 4, b"1", b"h.", 1, 9)[0] is ValueError
    stored.lengths.pop()
    assert stored.call(twin.record_subjects)[0] is IndexError


def test_records_read_back() -> None:
    stored = some_records(random.Random(6), 20)
    assert [decode_record(stored.buf, offset) for offset in stored.offsets] == stored.records
