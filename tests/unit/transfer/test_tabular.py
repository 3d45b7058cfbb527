"""Tests of writing tables: an export never overwrites other files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from lakestream.lake.table.schema import UID_PROPERTY
from lakestream.log.format.record import Record
from lakestream_transfer import tabular
from lakestream_transfer.finding import find
from lakestream_transfer.mapping import MappedRows


def test_an_export_does_not_overwrite_the_table_of_a_stream(tmp_path: Path) -> None:
    table = str(tmp_path / "lake" / "streams" / "ORDERS")
    rows = pa.table({"seq": [1, 2]})
    write_deltalake(table, rows)
    DeltaTable(table).alter.set_table_properties({UID_PROPERTY: "U"}, raise_if_not_exists=False)
    other = pa.table({"seq": [7]})
    with pytest.raises(tabular.BadTarget, match="is the table of a stream"):
        tabular.write(table, "delta", other.schema, iter(other.to_batches()), True)
    assert DeltaTable(table).version() == 1
    plain = str(tmp_path / "plain")
    write_deltalake(plain, rows)
    tabular.write(plain, "delta", other.schema, iter(other.to_batches()), True)
    assert DeltaTable(plain).to_pyarrow_table().to_pydict() == {"seq": [7]}


def test_messages_beyond_the_memory_of_a_sort_are_merged_from_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tabular, "SORT_BYTES", 2_000)
    monkeypatch.setattr(tabular, "BATCH_BYTES", 50)
    times = [(each * 7) % 50 + 1 for each in range(100)]
    records = [Record(row, time, b"s.%d" % row, b"h", b"d" * row) for row, time in enumerate(times, 1)]
    by_time = tabular.sorted_messages(MappedRows(records[at : at + 3], [], 3) for at in range(0, 100, 3))
    expected = sorted(records, key=lambda each: (each.time_ns, each.seq))
    assert [each for some in by_time for each in some] == expected
    keys = [b"%03d" % (1000 - each.time_ns) for each in records]
    by_key = tabular.sorted_messages(
        MappedRows(records[at : at + 3], [], 3, keys[at : at + 3]) for at in range(0, 100, 3)
    )
    expected = sorted(records, key=lambda each: (-each.time_ns, each.seq))
    assert [each for some in by_key for each in some] == expected


def test_rows_that_are_equal_in_the_order_asked_for_come_as_in_the_file(tmp_path: Path) -> None:
    file = str(tmp_path / "rows.parquet")
    pq.write_table(pa.table({"k": [each % 3 for each in range(60_000)], "n": list(range(60_000))}), file)
    source = tabular.TableSource(find(file), order_by=("k",))
    found = [value for batch in source.batches() for value in batch.column("n").to_pylist()]
    assert found == sorted(range(60_000), key=lambda each: each % 3)


def test_a_query_whose_rows_are_too_large_goes_on_with_more_memory() -> None:
    asked: list[str] = []

    def query(memory: str) -> Iterator[pa.RecordBatch]:
        asked.append(memory)
        for first in (0, 3, 6):
            if first == 6 and len(asked) == 1:
                raise duckdb.OutOfMemoryException("too large")
            yield from pa.table({"n": [first, first + 1, first + 2]}).to_batches()

    found = [value for batch in tabular._with_memory(query) for value in batch.column("n").to_pylist()]
    assert found == list(range(9))
    assert asked[0] == tabular.SORT_MEMORY
    assert len(asked) == 2


@pytest.mark.parametrize("name", ["out/rows.parquet", "out/rows.csv", "out/rows.json", "out/rows"])
def test_an_export_that_is_done_is_on_disk(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: dict[str, int] = {}
    really = os.fsync

    def fsync(descriptor: int) -> None:
        really(descriptor)
        synced[os.readlink(f"/proc/self/fd/{descriptor}").removesuffix(".partial")] = os.fstat(descriptor).st_size

    monkeypatch.setattr(os, "fsync", fsync)
    rows = pa.table({"seq": [1, 2]})
    target = tmp_path / name
    tabular.write(str(target), tabular.format_of(name), rows.schema, iter(rows.to_batches()), False)
    written = [path for path in [target, *target.rglob("*")] if path.is_file()]
    assert written
    assert all(synced[str(path)] == path.stat().st_size for path in written)
    assert {str(path.parent) for path in written} | {str(tmp_path)} <= synced.keys()
