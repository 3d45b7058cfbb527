"""OPTIMIZE, VACUUM and log cleanup of real tables: no row changes, nobody notices, and the files become few."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from lakestream.lake import maintenance, paths, position, staging, timetravel
from lakestream.lake.compaction import Options, StreamCompaction
from lakestream.lake.errors import TableBusy
from lakestream.lake.history import TableHistory
from lakestream.lake.locks import JvmLock, table_lock
from lakestream.lake.maintenance import Done, Maintainer, Policy
from tests.lake.conftest import job
from tests.lake.model import StreamModel, flights
from tests.lake.tables import ALL, records, rows, version

pytestmark = pytest.mark.lake

NOW = Policy(min_files=2, retain_ns=0)
"""Nobody else is at these tables, so that VACUUM may take everything."""
KEEP = Policy(min_files=2)
NAMES = [b"a'b\\c", b"x%y=z", "größe.»".encode(), b"plain"]


def compact(spark: Any, lake: Path, model: StreamModel, **options: int) -> None:
    found = [stream for stream in staging.scan(str(lake)) if stream.identity.uid == model.identity.uid]
    StreamCompaction(spark, str(lake), found[0], Options(**options)).run()


def grow(spark: Any, lake: Path, model: StreamModel, commits: int, **options: int) -> None:
    """So many commits of messages on subjects whose names are not the easiest, some with headers."""
    for _ in range(commits):
        blocks = [b"", b"NATS/1.0\r\nA: 1\r\n\r\n", b"NATS/1.0 503\r\n\r\n"]
        model.publish([(NAMES[n % 4], blocks[n % 3], b"%d" % n * 9) for n in range(60)])
        model.stage(lake)
    compact(spark, lake, model, commit_bytes=1, **options)


def maintain(spark: Any, lake: Path, policy: Policy) -> Done:
    (done,) = Maintainer(spark, str(lake), policy).once()
    assert done.failure is None
    return done


def files(table: str) -> int:
    return len(DeltaTable(table).file_uris())


def check(lake: Path, model: StreamModel) -> None:
    table = model.table(lake)
    assert records(table) == model.expected()
    assert TableHistory(table).read(1, ALL, 1_000_000) == model.expected()
    assert position.read(table, model.identity.uid) == model.sealed[-1].last_index


def test_files_become_few_and_every_row_stays(spark: Any, lake: Path, tmp_path: Path) -> None:
    model = StreamModel(tmp_path / "log")
    grow(spark, lake, model, 2, subject_limit=2)
    model.remove(list(range(50, 100)))
    grow(spark, lake, model, 1, subject_limit=2)
    table = model.table(lake)
    before = rows(table)
    done = maintain(spark, lake, NOW)
    assert (done.removed, done.added) == (done.plan.files, len(done.plan.partitions))
    assert files(table) == len({row["bucket"] for row in before})
    assert rows(table) == before
    check(lake, model)
    assert maintain(spark, lake, NOW).plan.stale > 0
    assert not maintain(spark, lake, NOW).plan
    assert len(list(Path(table).rglob("part-*.parquet"))) == files(table)
    grow(spark, lake, model, 1, subject_limit=2)
    check(lake, model)


def test_deletion_vectors_are_counted_and_purged(spark: Any, lake: Path, tmp_path: Path) -> None:
    model = StreamModel(tmp_path / "log")
    model.publish([(b"s", b"", b"x" * 50)] * 1000)
    model.stage(lake)
    compact(spark, lake, model)
    model.remove(list(range(1, 1000, 2)))
    model.stage(lake)
    compact(spark, lake, model)
    table = model.table(lake)
    facts = maintenance.look(table, NOW, 1 << 62)
    assert facts is not None
    assert [(file.partition, file.rows, file.deleted) for file in facts.files] == [("s", 1000, 500)]
    assert facts.stale == 0  # the deletion vector's file is in use
    done = maintain(spark, lake, NOW)
    assert (done.removed, done.added, done.plan.worn) == (1, 1, ["s"])
    maintain(spark, lake, NOW)
    assert list(Path(table).rglob("deletion_vector*.bin")) == []
    check(lake, model)


def test_a_running_reader_survives_optimize_vacuum_and_log_cleanup(spark: Any, lake: Path, tmp_path: Path) -> None:
    model = StreamModel(tmp_path / "log")
    grow(spark, lake, model, 3)
    table = model.table(lake)
    history = TableHistory(table)
    watch = position.PositionWatch(table, model.identity.uid)
    assert history.read(100, 105, 10) == model.expected()[99:105]
    assert watch.read() == model.sealed[-1].last_index
    done = maintain(spark, lake, NOW)
    assert done.plan.stale == 0  # what OPTIMIZE has just replaced was in use when it was looked at
    assert maintain(spark, lake, NOW).plan.stale > 10
    assert history.read(110, 160, 1000) == model.expected()[109:160]
    grow(spark, lake, model, 1)
    assert maintain(spark, lake, NOW).plan.expired >= 3
    assert timetravel.CommitLog(table).versions[0] > 0
    assert history.read(1, ALL, 10_000) == model.expected()
    assert history.max_seq() == model.expected()[-1].seq
    assert watch.read() == model.sealed[-1].last_index
    progress = timetravel.latest_progress(table)
    assert progress is not None
    assert progress.last_seq == model.next_seq - 1
    assert spark.read.format("delta").load(table).count() == len(model.expected())
    check(lake, model)


def test_time_travel_works_across(spark: Any, lake: Path, tmp_path: Path) -> None:
    model = StreamModel(tmp_path / "log")
    grow(spark, lake, model, 2)
    assert maintain(spark, lake, KEEP).added == 4
    grow(spark, lake, model, 1)
    table = model.table(lake)
    for seq in (1, 60, 61, 120, 121, 180):
        at_ns = model.live[seq].time_ns
        found = timetravel.as_of(table, at_ns)
        assert found.version is not None
        held = spark.read.format("delta").option("versionAsOf", found.version).load(table)
        assert sorted(row.seq for row in held.filter(f"time_ns <= {at_ns}").collect()) == list(range(1, seq + 1))
    assert timetravel.latest_progress(table) == timetravel.CommitLog(table).progress(version(table))


def test_compactor_and_maintainer_take_turns(spark: Any, lake: Path, tmp_path: Path) -> None:
    model = StreamModel(tmp_path / "log")
    grow(spark, lake, model, 2)
    outcomes: list[Done] = []
    over = threading.Event()

    def look_after() -> None:
        while not over.is_set():
            outcomes.extend(Maintainer(spark, str(lake), KEEP).once())

    beside = threading.Thread(target=look_after)
    beside.start()
    try:
        for _ in range(2):
            model.remove(sorted(model.live)[3:40:5])
            model.publish(flights(40))
            model.stage(lake)
            while position.read(model.table(lake), model.identity.uid) != model.sealed[-1].last_index:
                with contextlib.suppress(TableBusy):
                    compact(spark, lake, model)
    finally:
        over.set()
        beside.join()
    assert [done.failure for done in outcomes if done.failure] == []
    assert sum(done.added for done in outcomes) > 0
    check(lake, model)


def test_a_table_under_maintenance_is_not_committed_to(
    spark: Any, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakestream.lake.compaction.BUSY_SECONDS", 0.1)
    model = StreamModel(tmp_path / "log")
    model.publish(flights(10))
    model.stage(lake)
    lock = JvmLock(spark, table_lock(str(lake), model.table(lake)))
    assert lock.acquire()
    with pytest.raises(TableBusy, match="tried again"):
        compact(spark, lake, model)
    lock.release()
    compact(spark, lake, model)
    check(lake, model)


def test_the_program(spark: Any, lake: Path, tmp_path: Path) -> None:
    model = StreamModel(tmp_path / "log")
    grow(spark, lake, model, 2)
    other = StreamModel(tmp_path / "other", "OTHER", "UID2", "ACC")
    other.publish(flights(5))
    other.stage(lake)
    compact(spark, lake, other)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, str(job().with_name("maintain.py")), "--lake", str(lake), *arguments]
        return subprocess.run(program, capture_output=True, text=True, check=False, timeout=90)

    done = run("--dry-run", "--min-files", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "ORDERS: 8 files at version 2: optimize 8 files (0.0 MiB) in 4 partitions, checkpoint",
        "OTHER: 5 files at version 1: nothing to do",
    ]
    assert "below 1 h" in run("--once", "--retain-hours", "0.5").stderr
    holder = Maintainer(spark, str(lake))
    assert holder.acquire()
    assert not Maintainer(spark, str(lake)).acquire()
    holder.release()
    done = run("--once", "--min-files", "2", "--stream", "ORDERS", "--retain-hours", "24")
    assert done.returncode == 0, done.stderr
    assert "reach back 24 h" in done.stderr
    assert "ORDERS: optimized 8 files into 4, checkpoint, " in done.stdout
    assert "looked after 1 table" in done.stdout
    check(lake, model)
    assert paths.table(str(lake), "OTHER", "ACC") in maintenance.tables(str(lake))
