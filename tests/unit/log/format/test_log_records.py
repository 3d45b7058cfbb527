"""Messages in columns: the same as the records they were made from, in any part."""

from __future__ import annotations

from array import array

import pytest

from lakestream.log.format.errors import CorruptRecord
from lakestream.log.format.record import Record, encode_record
from lakestream.log.format.records import Records, back_to_back, joined, seqs_of


def messages(first: int, count: int) -> list[Record]:
    header = b"NATS/1.0\r\nA: b\r\n\r\n"
    return [Record(first + at, 1000 + at, b"s.%d" % (at % 3), header * (at % 2), b"x" * at) for at in range(count)]


def encoded(records: list[Record]) -> list[bytes]:
    return [encode_record(one.seq, one.time_ns, one.subject, one.header, one.data) for one in records]


def packed(records: list[Record]) -> Records:
    return back_to_back(encoded(records), [record.seq for record in records])


def test_columns_are_a_sequence_of_messages() -> None:
    some = messages(7, 10)
    records = packed(some)
    assert (len(records), list(records), records[3], records[-1]) == (10, some, some[3], some[-1])
    assert list(records[2:5]) == some[2:5]
    assert list(records.chosen([1, 4, 9])) == [some[1], some[4], some[9]]
    assert records.subjects() == [one.subject for one in some]
    assert seqs_of(records) == seqs_of(some) == list(range(7, 17))


def test_pieces_are_joined() -> None:
    first, second, third = messages(1, 3), messages(4, 2), messages(9, 1)
    dense = joined([packed(first), packed(second)])
    assert (list(dense), dense.seqs) == (first + second, range(1, 6))
    sparse = joined([packed(first), packed(third)])
    assert (list(sparse), sparse.seqs) == (first + third, [1, 2, 3, 9])
    assert not joined([])


def test_damage_and_displaced_records_are_refused() -> None:
    some = messages(1, 3)
    buf = b"".join(encoded(some))
    lengths = array("I", map(len, encoded(some)))
    offsets = array("I", [0, lengths[0], lengths[0] + lengths[1]])
    Records(buf, offsets, lengths, range(1, 4)).check()
    with pytest.raises(CorruptRecord, match="message 1 lies where 2 belongs") as first:
        Records(buf, offsets, lengths, range(2, 5)).check()
    with pytest.raises(CorruptRecord, match="message 3 lies where 4 belongs") as last:
        Records(buf, offsets, lengths, [1, 2, 4]).check()
    with pytest.raises(CorruptRecord, match="its crc does not match") as damaged:
        Records(buf[:-1] + b"?", offsets, lengths, range(1, 4)).check()
    assert (first.value.offset, last.value.offset, damaged.value.offset) == (0, offsets[2], offsets[2])
