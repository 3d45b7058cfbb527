"""Tests of reading history from tables that Spark wrote, deleted from, optimized and vacuumed during the reads."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from lakestream.lake.read.history.cache import BlockCache
from lakestream.lake.read.history.history import TableHistory
from lakestream.lake.read.history.index import TableIndex
from lakestream.lake.staging import scan
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table.actions import locate
from lakestream.lake.table.state import TableFollower
from lakestream.log.format.record import Record
from lakestream_spark.write.stream_compaction import CompactionOptions
from tests.lake.compacting import compact as compact_stream
from tests.lake.model import StreamModel
from tests.lake.tables import ALL, records

pytestmark = pytest.mark.lake


def compact(spark: Any, lake: Path, model: StreamModel) -> None:
    found = [stream for stream in scan.Scanner(str(lake)).scan() if stream.identity.uid == model.identity.uid]
    compact_stream(spark, str(lake), found[0], CompactionOptions(commit_bytes=1))


def grow(model: StreamModel, lake: Path, segments: int, subjects: int) -> None:
    for _ in range(segments):
        names = [b"s.%d" % (n * 31 % subjects) for n in range(200)]
        blocks = [b"NATS/1.0\r\nA: 1\r\n\r\n", b"", b"", b"", b""]
        model.publish([(name, blocks[n % 5], name * 3) for n, name in enumerate(names)])
        model.stage(lake)


def rewrite(spark: Any, table: str) -> None:
    """Optimize and vacuum without retention, as any user may; the reader copes with removed files."""
    from delta.tables import DeltaTable as SparkTable

    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    found = SparkTable.forPath(spark, table)
    found.optimize().executeCompaction()
    found.vacuum(0)


def check(history: TableHistory, rows: list[Record], seed: int) -> None:
    """Compare every kind of read with the stored rows. Deleted rows may be returned too: the stream leaves them out."""
    choose = random.Random(seed)
    alive = {row.seq for row in rows}

    def shown(found: list[Record]) -> list[Record]:
        return [row for row in found if row.seq in alive]

    assert shown(history.read(1, ALL, 1_000_000)) == rows
    some = sorted(choose.sample(range(1, rows[-1].seq + 1), 30))
    assert shown(history.read_many(some)) == [row for row in rows if row.seq in some]
    one = choose.choice(rows)
    assert history.read(one.seq, one.seq, 1, [one.subject]) == [one]
    assert shown(history.read(1, ALL, 1000, [one.subject])) == [row for row in rows if row.subject == one.subject]
    middle = rows[len(rows) // 2]
    assert history.first_at(middle.time_ns) in (middle.seq, middle.seq - 1)
    fresh = TableHistory(history.table, BlockCache(0))
    assert fresh.read(1, ALL, 1_000_000) == rows
    assert fresh.first_at(middle.time_ns) == middle.seq


@pytest.mark.parametrize("subjects", [5, 80], ids=["by subject", "buckets"])
def test_deletes_optimize_and_vacuum_under_a_reader(spark: Any, lake: Path, tmp_path: Path, subjects: int) -> None:
    model = StreamModel(tmp_path / "log")
    grow(model, lake, 3, subjects)
    compact(spark, lake, model)
    table = model.table(lake)
    small = TableHistory(table, BlockCache(0))  # hardly anything is cached
    large = TableHistory(table, BlockCache(0))
    check(small, model.expected(), 1)

    model.remove([seq for seq in model.live if seq % 3 == 0], erase=True)
    grow(model, lake, 1, subjects)
    compact(spark, lake, model)
    index = TableIndex(TableFollower(table), open_storage(table)).refresh()
    assert any(file.deleted is not None for file in index.files)
    names = {uri.rpartition("/")[2] for uri in DeltaTable(table).file_uris()}
    assert {file.path.rpartition("/")[2] for file in index.files} == names
    check(small, records(table), 2)
    assert records(table) == model.expected()

    before = [locate(table, file.path) for file in index.files]
    assert all(Path(path).exists() for path in before)
    rewrite(spark, table)
    assert not all(Path(path).exists() for path in before), "VACUUM took what the readers know"
    check(small, model.expected(), 3)
    check(large, model.expected(), 4)


def test_reads_go_on_while_files_are_rewritten_and_vacuumed(spark: Any, lake: Path, tmp_path: Path) -> None:
    model = StreamModel(tmp_path / "log")
    grow(model, lake, 2, 4)
    compact(spark, lake, model)
    rows = model.expected()
    history = TableHistory(model.table(lake), BlockCache(0))
    stop, failures = threading.Event(), []

    def reader() -> None:
        try:
            while not stop.is_set():
                assert history.read(1, rows[-1].seq, 10_000) == rows
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=reader)
    thread.start()
    grow(model, lake, 1, 4)
    compact(spark, lake, model)
    rewrite(spark, model.table(lake))
    stop.set()
    thread.join()
    assert failures == []
    assert history.read(1, ALL, 10_000) == model.expected()


def test_what_only_the_archive_has_is_no_history(spark: Any, lake: Path, tmp_path: Path) -> None:
    model = StreamModel(tmp_path / "log")
    model.configure({"lakestream.retention": "archive"})
    grow(model, lake, 2, 6)
    compact(spark, lake, model)
    table = model.table(lake)
    history = TableHistory(table, BlockCache(0))
    check(history, model.expected(), 1)
    model.remove([seq for seq in model.live if seq % 4 == 0])
    grow(model, lake, 1, 6)
    compact(spark, lake, model)
    assert len(records(table)) > len(model.expected())
    check(history, model.expected(), 2)
