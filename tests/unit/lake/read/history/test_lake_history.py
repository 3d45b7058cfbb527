"""Tests of TableHistory on tables written by deltalake: blocks, subjects, times, concurrent changes."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.lake.errors import HistoryUnavailable
from lakestream.lake.read.history.cache import BLOCK_OVERHEAD, RECORD_OVERHEAD, Block, BlockCache
from lakestream.lake.read.history.history import TableHistory
from lakestream.lake.table import schema
from lakestream.lake.table.schema import END
from lakestream.log.format.record import Record, record_length
from lakestream.log.format.records import NO_RECORDS

pytestmark = pytest.mark.unit

BOUNDS = ("a", "o", "orders.3")
T0 = 1_700_000_000_000_000_000


def record(seq: int, subject: bytes = b"", data: bytes | None = None, header: bytes = b"") -> Record:
    payload = seq.to_bytes(8, "big") if data is None else data
    return Record(seq, T0 + seq * 1_000_003, subject or b"orders.%d" % (seq % 7), header, payload)


def write(table: Path, records: Iterable[Record], bucketed: bool = False, mode: str = "append") -> None:
    """Write records as the compactor does."""
    rows = list(records)
    texts = [schema.subject_text(row.subject) for row in rows]
    split = [schema.split_headers(row.header) if row.header else (None, None) for row in rows]
    columns = {
        "subject": pa.array([text for text, _ in texts], pa.string()),
        "seq": pa.array([row.seq for row in rows], pa.int64()),
        "time": pa.array([row.time_ns // 1000 for row in rows], pa.timestamp("us", tz="UTC")),
        "time_ns": pa.array([row.time_ns for row in rows], pa.int64()),
        "headers": pa.array([headers for headers, _ in split], schema.headers_type()),
        "data": pa.array([row.data for row in rows], pa.binary()),
        "header_block": pa.array([block for _, block in split], pa.binary()),
        "subject_bytes": pa.array([raw for _, raw in texts], pa.binary()),
    }
    if bucketed:
        columns["bucket"] = pa.array([schema.bucket_of(text, BOUNDS) for text, _ in texts], pa.int32())
    partition = "bucket" if bucketed else "subject"
    write_deltalake(str(table), pa.table(columns), mode=mode, partition_by=partition)


def test_a_range_comes_back_as_it_was_written(tmp_path: Path) -> None:
    header = b"NATS/1.0\r\nA: 1\r\nB:2\r\n\r\n"
    stored = [record(seq, header=header if seq % 3 else b"") for seq in range(1, 101)]
    write(tmp_path / "t", stored)
    history = TableHistory(str(tmp_path / "t"))
    assert history.read(1, 100, 1000) == stored
    assert history.read(10, 20, 1000) == stored[9:20]
    assert history.read(10, 100, 5) == stored[9:14]
    assert history.read(90, 10_000, 1000) == stored[89:]
    assert history.read(101, 10_000, 1000) == []
    assert history.read(7, 7, 1) == [stored[6]]
    assert history.max_seq() == 100


def test_parts_of_files_that_delta_rs_has_written_anew_are_read(tmp_path: Path) -> None:
    """Their columns have types of views, which pyarrow neither filters nor takes."""
    stored = [record(seq, b"orders.1", header=b"odd" if seq % 3 else b"") for seq in range(1, 101)]
    write(tmp_path / "t", stored, bucketed=True)
    DeltaTable(str(tmp_path / "t")).delete("seq = 50")
    del stored[49]
    footer = pq.read_schema(DeltaTable(str(tmp_path / "t")).file_uris()[0])
    assert pa.types.is_binary_view(footer.field("data").type)
    history = TableHistory(str(tmp_path / "t"))
    assert history.read(10, 20, 1000) == stored[9:20]
    assert TableHistory(str(tmp_path / "t")).read(40, 60, 1000, [b"orders.1"]) == stored[39:59]
    assert TableHistory(str(tmp_path / "t")).read_many([7, 8, 50, 99]) == [stored[6], stored[7], stored[97]]


def test_odd_rows_come_back_byte_for_byte(tmp_path: Path) -> None:
    stored = [
        record(1, b"a.\xff\xfe", b""),
        record(2, b"a.\\xff\\xfe", b"\x00\x01"),
        record(3, "größe.»x".encode(), b"x", b"NATS/1.0\r\n\r\n"),
        record(4, b"A.b", b"x", b"NATS/1.0 503\r\n\r\n"),
        record(5, b"a.B", b"x", b"NATS/1.0\r\nk: a\r\nj: b\r\nk: c\r\n\r\n"),
    ]
    write(tmp_path / "t", stored, bucketed=True)
    history = TableHistory(str(tmp_path / "t"))
    assert history.read(1, 5, 10) == stored
    for each in stored:
        assert history.read(1, 5, 10, [each.subject]) == [each]


def test_removed_rows_leave_gaps_that_reading_crosses(tmp_path: Path) -> None:
    kept = [record(seq) for seq in (1, 2, 5_000, 5_001, 90_000, 1_000_000, 9_000_000)]
    for each in kept:
        write(tmp_path / "t", [each])
    history = TableHistory(str(tmp_path / "t"))
    assert history.read(1, 10_000_000, 100) == kept
    assert history.read(3, 4_999, 100) == []
    assert history.read(3, 10_000_000, 1) == [kept[2]]
    one_file = tmp_path / "one"
    write(one_file, kept)
    assert TableHistory(str(one_file)).read(1, 10_000_000, 100) == kept


def test_messages_that_were_read_keep_no_pages_in_memory(tmp_path: Path) -> None:
    write(tmp_path / "t", [record(seq, b"s", b"%0100d" % seq) for seq in range(1, 20_001)])
    cache = BlockCache()
    history = TableHistory(str(tmp_path / "t"), cache)
    before = pa.total_allocated_bytes()
    for seq in (5, 9_000, 20_000):
        assert [each.seq for each in history.read_many([seq])] == [seq]
    assert len(history.read(1, 20_000, 5)) == 5
    assert pa.total_allocated_bytes() - before < 1 << 20, "decoded footers"


def test_a_message_of_one_of_many_files_is_found_by_sequences_that_were_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = [record(seq) for seq in range(1, 701)]  # a file for each of seven subjects, with sequences from 1 to 700
    write(tmp_path / "t", stored)
    opened: list[object] = []
    original = pq.ParquetFile
    monkeypatch.setattr(pq, "ParquetFile", lambda *place, **more: (opened.append(place), original(*place, **more))[1])

    def read(history: TableHistory, seq: int) -> int:
        opened.clear()
        assert history.read(seq, seq, 1) == [stored[seq - 1]]
        return len(opened)

    some = random.Random(1).sample(range(500, 701), 30)
    history = TableHistory(str(tmp_path / "t"))
    assert max(read(history, seq) for seq in some) > 2
    assert max(read(history, seq) for seq in range(499, 300, -13)) == 1, "one file, for its pages"
    assert max(read(history, seq) for seq in some) == 0, "messages are cached"
    cache = BlockCache()
    cache.footers.max_bytes = 1
    history = TableHistory(str(tmp_path / "t"), cache)
    assert max(read(history, seq) for seq in some) > 2
    assert max(read(history, seq) for seq in range(499, 300, -13)) > 2, "without room they are decoded again"


@pytest.mark.parametrize("bucketed", [False, True])
def test_subjects_narrow_a_read(tmp_path: Path, bucketed: bool) -> None:
    stored = [record(seq, b"o'brien.%d" % (seq % 5)) for seq in range(1, 301)]
    write(tmp_path / "t", stored, bucketed=bucketed)
    history = TableHistory(str(tmp_path / "t"))
    wanted = [b"o'brien.1", b"o'brien.3"]
    expected = [each for each in stored if each.subject in wanted and 50 <= each.seq <= 250]
    assert history.read(50, 250, 1000, wanted) == expected
    assert history.read(50, 250, 7, wanted) == expected[:7]
    assert history.read(50, 250, 1000, []) == []
    assert history.read(50, 250, 1000, [b"other"]) == []
    many = wanted + [b"none.%d" % n for n in range(2000)]
    assert history.read(50, 250, 1000, many) == expected


def test_max_bytes_stops_a_read_but_always_gives_one_message(tmp_path: Path) -> None:
    stored = [record(seq, b"s", bytes(100)) for seq in range(1, 51)]
    write(tmp_path / "t", stored)
    history = TableHistory(str(tmp_path / "t"))
    assert history.read(1, 50, 50, max_bytes=1) == stored[:1]
    assert history.read(1, 50, 50, max_bytes=101 * 10) == stored[:10]
    assert history.read(1, 50, 50, [b"s"], max_bytes=101 * 10) == stored[:10]


def test_first_at_finds_the_first_message_at_or_after_a_time(tmp_path: Path) -> None:
    stored = [record(seq) for seq in range(1, 301)]
    for start in (0, 100, 200):
        write(tmp_path / "t", stored[start : start + 100])
    history = TableHistory(str(tmp_path / "t"))
    assert history.first_at(0) == 1
    for seq in (1, 2, 100, 101, 250, 300):
        assert history.first_at(stored[seq - 1].time_ns) == seq
        assert history.first_at(stored[seq - 1].time_ns - 1) == seq
    assert history.first_at(stored[-1].time_ns + 1) == 0


def test_a_new_commit_is_seen_by_the_next_read(tmp_path: Path) -> None:
    stored = [record(seq) for seq in range(1, 31)]
    write(tmp_path / "t", stored[:10])
    history = TableHistory(str(tmp_path / "t"))
    assert history.read(1, 100, 100) == stored[:10]
    write(tmp_path / "t", stored[10:])
    assert history.read(1, 100, 100) == stored


def test_files_that_others_rewrite_and_delete_are_not_missed(tmp_path: Path) -> None:
    stored = [record(seq) for seq in range(1, 201)]
    for start in range(0, 200, 50):
        write(tmp_path / "t", stored[start : start + 50])
    history = TableHistory(str(tmp_path / "t"), BlockCache(0))
    assert history.read(1, 10, 10) == stored[:10]
    maintainer = DeltaTable(str(tmp_path / "t"))
    maintainer.optimize.compact()
    maintainer.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert history.read(1, 200, 200) == stored


def test_a_table_that_is_gone_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(HistoryUnavailable, match="nothing-here"):
        TableHistory(str(tmp_path / "nothing-here")).read(1, 10, 10)


def test_an_empty_table_has_nothing(tmp_path: Path) -> None:
    write(tmp_path / "t", [record(1)])
    DeltaTable(str(tmp_path / "t")).delete()
    history = TableHistory(str(tmp_path / "t"))
    assert history.read(1, 10, 10) == []
    assert history.first_at(0) == 0
    assert history.max_seq() == 0


def test_several_threads_read_the_same_table(tmp_path: Path) -> None:
    stored = [record(seq) for seq in range(1, 2001)]
    write(tmp_path / "t", stored)
    cache = BlockCache(200 * 300)
    history = TableHistory(str(tmp_path / "t"), cache)
    failures: list[object] = []

    def reader(seed: int) -> None:
        choose = random.Random(seed)
        for _ in range(15):
            first = choose.randint(1, 2000)
            count = choose.randint(1, 700)
            if history.read(first, 2000, count) != stored[first - 1 : first - 1 + count]:
                failures.append((first, count))

    threads = [threading.Thread(target=reader, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_single_reads_side_by_side_never_miss_a_message(tmp_path: Path) -> None:
    """Two threads that load adjacent blocks each get theirs, whichever is cached."""
    stored = [record(seq) for seq in range(1, 1001)]
    write(tmp_path / "t", stored)
    history = TableHistory(str(tmp_path / "t"), BlockCache(60_000))
    misses: list[int] = []
    begin = threading.Barrier(6)

    def reader(seed: int) -> None:
        choose = random.Random(seed)
        begin.wait(30)
        for _ in range(150):
            seq = choose.randint(1, 1000)
            if history.read(seq, seq, 1) != [stored[seq - 1]]:
                misses.append(seq)

    threads = [threading.Thread(target=reader, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert misses == []


def test_reading_a_block_again_needs_no_table(tmp_path: Path) -> None:
    stored = [record(seq) for seq in range(1, 101)]
    write(tmp_path / "t", stored)
    history = TableHistory(str(tmp_path / "t"))
    history.read(1, 100, 100)
    for file in (tmp_path / "t").rglob("*.parquet"):
        os.unlink(file)
    assert history.read(40, 60, 100) == stored[39:60]
    history.close()
    with pytest.raises(HistoryUnavailable):
        history.read(40, 60, 100)


def block(first: int, last: int, size: int) -> Block:
    return Block(first, last, NO_RECORDS, size)


def test_the_cache_keeps_within_its_limit_and_drops_the_least_used() -> None:
    cache = BlockCache(100)
    for first in (1, 11, 21):
        cache.put(1, block(first, first + 9, 40))
        cache.find(1, 5)
    assert cache.size == 80
    assert cache.find(1, 5) is not None
    assert cache.find(1, 15) is None
    assert cache.find(1, 25) is not None
    assert cache.room(1, 15) == (11, 20)
    assert cache.room(1, 31) == (31, END)
    cache.drop(1)
    assert cache.size == 0
    assert cache.find(1, 5) is None


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 60), st.integers(0, 15), st.integers(0, 50)), max_size=30),
    st.integers(0, 150),
)
def test_the_cache_never_overlaps_and_never_exceeds_its_limit(
    puts: list[tuple[int, int, int, int]], limit: int
) -> None:
    cache = BlockCache(limit)
    for owner, first, width, size in puts:
        cache.put(owner, block(first, first + width, size))
        held = list(cache._blocks.items())
        assert cache.size == sum(each.size for _, each in held)
        assert cache.size <= limit or len(held) == 1
        covered = [(key[0], seq) for key, each in held for seq in range(each.first, each.last + 1)]
        assert len(covered) == len(set(covered))
        for key, each in held:
            assert cache.find(key[0], each.last) is each


def test_a_block_counts_what_its_records_take(tmp_path: Path) -> None:
    for name, header in (("plain", b""), ("headers", b"NATS/1.0\r\nA: 1\r\n\r\n")):
        stored = [record(seq, b"s.\xff" if header and seq % 2 else b"", bytes(seq), header) for seq in range(1, 21)]
        write(tmp_path / name, stored, bucketed=True)
        cache = BlockCache()
        history = TableHistory(str(tmp_path / name), cache)
        assert history.read(1, 20, 20) == stored
        content = sum(record_length(each.subject, each.header, each.data) for each in stored)
        assert cache.size == content + 20 * RECORD_OVERHEAD + BLOCK_OVERHEAD


@pytest.mark.parametrize("size", [1, 100, 1000])
def test_a_read_ends_before_the_message_that_is_too_much(tmp_path: Path, size: int) -> None:
    """A read ends before the message that exceeds max_bytes, in the first block or a later one."""
    stored = [record(seq, b"s", bytes(size)) for seq in range(1, 2001)]
    write(tmp_path / "t", stored)
    history = TableHistory(str(tmp_path / "t"))
    for first in (1, 300, 7):
        for count in (1, 2, 3, 511, 512, 513, 1030, 1500):
            for more in (0, 1, size):
                found = history.read(first, 2000, 2000, max_bytes=count * (size + 1) + more)
                assert found == stored[first - 1 : first - 1 + count]
    assert history.read(1, 2000, 30, max_bytes=40 * (size + 1)) == stored[:30]
