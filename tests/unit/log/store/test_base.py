"""Tests of a store that begins with a copy whose messages are only in its table: created, reopened, read."""

from __future__ import annotations

import random
from pathlib import Path
from typing import cast

import pytest
from deltalake import DeltaTable

from lakestream.lake.read import base_rows
from lakestream.log.format.errors import CorruptLog
from lakestream.log.format.files import Files, InlineIo
from lakestream.log.format.record import Record, record_length
from lakestream.log.store.base import Base, BaseOrigin, origin_of, read_base
from lakestream.log.store.segment_log import LogOptions
from lakestream.log.store.segment_store import open_store
from lakestream.log.store.store import Store
from tests.unit.lake.read.history.test_lake_history import record, write
from tests.unit.logkit import MiniStream, close_all, message

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("closing")]

SMALL = LogOptions(seal_bytes=700, seal_age_ns=1 << 60, retain_bytes=0)
ODD = [
    record(1, b"a.\xff\xfe", b""),
    record(2, b"a.\\xff\\xfe", b"\x00\x01"),
    record(3, "größe.»x".encode(), b"x", b"NATS/1.0\r\n\r\n"),
    record(4, b"A.b", b"x", b"NATS/1.0 503\r\n\r\n"),
    record(6, b"a.B", b"x", b"NATS/1.0\r\nk: a\r\nj: b\r\nk: c\r\n\r\n"),
    record(7, b"a.B", b"longer", "NATS/1.0\r\nö: ü\r\nö: é\r\nempty: \r\n\r\n".encode()),
    record(5_000, b"A.b", b"x"),
    record(9_000_000, b"A.b", b"x", b"NATS/1.0\r\na:no blank\r\n\r\n"),
]


def based(directory: Path, table: Path, through: int) -> Store:
    """Return a new store that begins with all rows of a table."""
    store = open_store(str(directory), InlineIo(), SMALL, uid="u")
    origin = BaseOrigin(DeltaTable(str(table)).version(), through)
    base_rows.build(Files(), str(directory), str(table), origin)
    assert origin_of(Files(), str(directory)) == origin
    base = store.find_base()
    assert base is not None
    store.begin_with(base)
    return store


def check(store: Store, records: list[Record], through: int) -> None:
    """Assert that the store holds exactly these messages, with the metadata of messages released from the log."""
    assert (store.msgs, store.last_seq) == (len(records), through)
    assert store.first_seq == (records[0].seq if records else through + 1)
    assert store.bytes == sum(record_length(each.subject, each.header, each.data) for each in records)
    assert list(store.live.members(1, 1 << 60)) == [each.seq for each in records]
    newest: dict[bytes, int] = {}
    for each in records:
        newest[each.subject] = each.seq
        assert store.subject_of(each.seq) == each.subject
        assert store.size_of(each.seq) == record_length(each.subject, each.header, each.data)
        assert store.time_of(each.seq) == each.time_ns
        assert not store.is_local(each.seq)
        assert store.first_at(each.time_ns) == each.seq
    assert len(store.subjects) == len(newest)
    for subject, seq in newest.items():
        assert store.subjects.last(subject) == seq
        assert store.subjects.count(subject) == sum(each.subject == subject for each in records)


@pytest.mark.parametrize("bucketed", [False, True])
def test_a_base_tells_of_every_row_what_its_record_would_tell(tmp_path: Path, bucketed: bool) -> None:
    write(tmp_path / "t", ODD[:5], bucketed=bucketed)
    write(tmp_path / "t", ODD[5:], bucketed=bucketed)
    check(based(tmp_path / "s", tmp_path / "t", 9_000_010), ODD, 9_000_010)


def test_a_base_of_many_rows_has_several_outlines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_rows, "OUTLINE_ROWS", 40_000)
    seqs = sorted(random.Random(7).sample(range(1, 200_000), 180_000))
    write(tmp_path / "t", [record(seq) for seq in seqs], bucketed=True)
    store = based(tmp_path / "s", tmp_path / "t", 200_000)
    assert len(cast(Base, read_base(Files(), str(tmp_path / "s"))).outlines) > 2
    assert list(store.live.members(1, 1 << 60)) == seqs
    for seq in seqs[::5_003]:
        expected = record(seq)
        assert (store.subject_of(seq), store.time_of(seq)) == (expected.subject, expected.time_ns)
    assert store.bytes == sum(store.size_of(seq) for seq in seqs)


def test_an_empty_table_is_a_base_too(tmp_path: Path) -> None:
    write(tmp_path / "t", ODD[:1])
    write(tmp_path / "t", [], mode="overwrite")
    check(based(tmp_path / "s", tmp_path / "t", 17), [], 17)


def test_a_store_with_a_base_goes_on_and_comes_back_after_a_restart(tmp_path: Path) -> None:
    write(tmp_path / "t", ODD)
    directory = str(tmp_path / "s")
    stream = MiniStream(directory, SMALL)
    base_rows.build(Files(), directory, str(tmp_path / "t"), BaseOrigin(0, 9_000_010))
    base = stream.store.find_base()
    assert base is not None
    stream.store.begin_with(base)
    for first in range(0, 40, 8):
        stream.publish(*map(message, range(first, first + 8)))
    stream.operate("remove", 2)
    stream.operate("remove", 9_000_020)
    kept = {each.seq: each for each in ODD if each.seq != 2}

    def check_now(store: Store) -> None:
        assert store.last_seq == 9_000_050
        assert store.msgs == len(kept) + 39
        for seq, each in kept.items():
            assert store.subject_of(seq) == each.subject
            assert not store.is_local(seq)
        subject, header, data = message(3)
        assert store.size_of(9_000_014) == record_length(subject, header, data)

    check_now(stream.store)
    stream.store.checkpoint(b"")
    stream.store.drop_through(1 << 60)
    assert stream.store.local_floor > 9_000_011
    check_now(stream.store)
    close_all()
    again = open_store(directory, InlineIo(), SMALL)
    for _ in again.replay():
        raise AssertionError("the checkpoint has everything")
    check_now(again)
    assert again.local_floor > 9_000_011
    again.abandon()


def test_a_start_without_an_outline_of_the_base_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store was opened, and the messages of that outline had neither subject nor time."""
    monkeypatch.setattr(base_rows, "OUTLINE_ROWS", 3)
    write(tmp_path / "t", ODD)
    store = based(tmp_path / "s", tmp_path / "t", 9_000_010)
    store.checkpoint(b"")
    store.abandon()
    outlines = sorted((tmp_path / "s" / "base").glob("*.outline"))
    assert len(outlines) == 3
    for each in outlines:
        aside = each.rename(tmp_path / "aside")
        with pytest.raises(CorruptLog, match=r"s/base.* the outline with message \d+ is missing"):
            open_store(str(tmp_path / "s"), InlineIo(), SMALL)
        aside.rename(each)
    open_store(str(tmp_path / "s"), InlineIo(), SMALL).abandon()
