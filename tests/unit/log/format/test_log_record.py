"""Tests of the record layout: decoding reverses encoding, and damage is detected."""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.log.format.errors import CorruptRecord
from lakestream.log.format.record import (
    Record,
    decode_record,
    decode_spans,
    encode_record,
    iter_records,
    record_length,
    subjects_at,
)
from lakestream.native import plain

pytestmark = pytest.mark.unit

records = st.builds(
    Record,
    seq=st.integers(1, 2**64 - 1),
    time_ns=st.integers(-(2**63), 2**63 - 1),
    subject=st.binary(min_size=1, max_size=40),
    header=st.one_of(st.just(b""), st.binary(min_size=1, max_size=40)),
    data=st.binary(max_size=80),
)


def encode(record: Record) -> bytes:
    return encode_record(record.seq, record.time_ns, record.subject, record.header, record.data)


@pytest.mark.parametrize("encode_record", [encode_record, plain.encode_record], ids=["chosen", "plain"])
def test_layout_is_the_documented_one(encode_record: Callable[..., bytes]) -> None:
    encoded = encode_record(7, 1_000_000_001, b"a.b", b"H", b"data")
    assert encoded[:4] == crc32(encoded[4:]).to_bytes(4, "little")
    assert encoded[4:12] == (7).to_bytes(8, "little")
    assert encoded[12:20] == (1_000_000_001).to_bytes(8, "little")
    assert encoded[20:30] == b"\x03\0" + b"\x01\0" + b"\x04\0\0\0" + b"\0\0"
    assert encoded[30:] == b"\x01\0\0\0" + b"a.b" + b"H" + b"data"


@pytest.mark.parametrize("size", [0, 1 << 14, (1 << 20) + 1])
@pytest.mark.parametrize("header", [b"", b"NATS/1.0\r\na: b\r\n\r\n"])
def test_large_payloads_have_the_same_layout(size: int, header: bytes) -> None:
    record = Record(7, 1_000_000_001, b"a.b", header, bytes(size))
    encoded = encode(record)
    assert decode_record(encoded) == record
    small = Record(7, 1_000_000_001, b"a.b", header, b"data")
    head = len(encoded) - len(record.data)
    assert encoded[4:24] == encode(small)[4:24]
    assert encoded[28:head] == encode(small)[28:head]
    assert len(encoded) == record_length(record.subject, record.header, record.data)


def test_length_is_what_nats_server_accounts_for() -> None:
    assert len(encode_record(1, 1, b"subj", b"", b"body")) == 22 + 4 + 4 + 8
    assert len(encode_record(1, 1, b"subj", b"head", b"body")) == 22 + 4 + 4 + 4 + 4 + 8


@given(st.lists(records, max_size=8))
def test_records_come_back(written: list[Record]) -> None:
    pieces = [encode(record) for record in written]
    buf = b"".join(pieces)
    assert [record_length(r.subject, r.header, r.data) for r in written] == [len(piece) for piece in pieces]
    assert list(iter_records(buf)) == written
    offsets = [sum(map(len, pieces[:at])) for at in range(len(pieces))]
    assert decode_spans(buf, offsets, map(len, pieces)) == written
    assert [decode_record(buf, offset) for offset in offsets] == written
    assert subjects_at(buf, offsets) == [record.subject for record in written]


@given(records, st.data())
def test_any_flipped_bit_is_found(record: Record, data: st.DataObject) -> None:
    encoded = bytearray(encode(record))
    at = data.draw(st.integers(0, len(encoded) * 8 - 1))
    encoded[at // 8] ^= 1 << at % 8
    with pytest.raises(CorruptRecord):
        decode_record(bytes(encoded))
    with pytest.raises(CorruptRecord):
        decode_spans(bytes(encoded), (0,), (len(encoded),))


@given(records, st.data())
def test_any_cut_is_found(record: Record, data: st.DataObject) -> None:
    encoded = encode(record)
    kept = data.draw(st.integers(0, len(encoded) - 1))
    for verify in (True, False):
        with pytest.raises(CorruptRecord):
            decode_record(encoded[:kept], verify=verify)
    with pytest.raises(CorruptRecord):
        decode_spans(encoded[:kept], (0,), (len(encoded),))


def test_iteration_stops_at_the_damage_and_names_its_offset() -> None:
    first, second = encode_record(1, 1, b"a", b"", b"x"), encode_record(2, 2, b"b", b"", b"y")
    damaged = first + second[:-1] + b"z"
    found = iter_records(damaged)
    assert next(found).seq == 1
    with pytest.raises(CorruptRecord) as caught:
        next(found)
    assert caught.value.offset == len(first)
