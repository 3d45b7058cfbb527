"""Tests of OPTIMIZE, VACUUM and log cleanup of real tables: the rows stay the same, and the files become few."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from lakestream.lake.errors import TableBusy
from lakestream.lake.read.history.history import TableHistory
from lakestream.lake.staging import scan
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.storage.locks import open_lock, table_lock
from lakestream.lake.table import at, ends
from lakestream.lake.table.actions import locate
from lakestream.lake.table.log import TableLog
from lakestream.lake.table.policy import HOUR_NS
from lakestream.lake.table.state import TableFollower, position_of
from lakestream_spark.write import file_ends, maintainer
from lakestream_spark.write.maintainer import Maintainer, MaintenanceResult
from lakestream_spark.write.maintenance_plan import Policy
from lakestream_spark.write.rewrite import Rewriter
from lakestream_spark.write.stream_compaction import CompactionOptions
from tests.lake.compacting import compact as compact_stream
from tests.lake.conftest import job
from tests.lake.model import StreamModel, flights
from tests.lake.tables import ALL, records, rows, version

pytestmark = pytest.mark.lake

NOW = Policy(min_files=2, retain_ns=0)
"""Policy without retention, since no other process uses these tables."""
KEEP = Policy(min_files=2)
NAMES = [b"a'b\\c", b"x%y=z", "größe.»".encode(), b"plain"]


def compact(spark: Any, lake: Path, model: StreamModel, **options: int) -> None:
    found = [stream for stream in scan.Scanner(str(lake)).scan() if stream.identity.uid == model.identity.uid]
    compact_stream(spark, str(lake), found[0], CompactionOptions(**options))


def grow(spark: Any, lake: Path, model: StreamModel, commits: int, **options: int) -> None:
    """Commit messages `commits` times, on subjects with special characters, some with headers."""
    for _ in range(commits):
        blocks = [b"", b"NATS/1.0\r\nA: 1\r\n\r\n", b"NATS/1.0 503\r\n\r\n"]
        model.publish([(NAMES[n % 4], blocks[n % 3], b"%d" % n * 9) for n in range(60)])
        model.stage(lake)
    compact(spark, lake, model, commit_bytes=1, **options)


def maintain(spark: Any, lake: Path, policy: Policy, later_ns: int = 0) -> MaintenanceResult:
    (done,) = Maintainer(spark, str(lake), policy, clock=lambda: time.time_ns() + later_ns).once()
    assert done.failure is None
    return done


def files(table: str) -> int:
    return len(DeltaTable(table).file_uris())


def on_disk(table: str) -> int:
    return len(list(Path(table).rglob("part-*.parquet")))


def check(lake: Path, model: StreamModel, copied: bool = False) -> None:
    """Compare a table with its stream, and its files with what its log says of them.

    Args:
        copied: Spark has written files of it, as copies of another table's rows; these do not state their ends.
    """
    table = model.table(lake)
    assert records(table) == model.expected()
    assert TableHistory(table).read(1, ALL, 1_000_000) == model.expected()
    assert position_of(table, model.identity.uid) == model.sealed[-1].last_index
    storage = open_storage(table)
    for add in TableLog(storage, table).state().files.values():  # those that Delta has given deletion vectors, too
        known = ends.stated(add.tags)
        assert known == file_ends.of_file(storage, locate(table, add.path)) or (copied and known is None)


@pytest.mark.smoke
def test_files_become_few_and_every_row_stays(spark: Any, lake: Path, tmp_path: Path) -> None:
    model = StreamModel(tmp_path / "log")
    grow(spark, lake, model, 2, subject_limit=2)
    model.remove(list(range(50, 100)))
    grow(spark, lake, model, 1, subject_limit=2)
    table = model.table(lake)
    before, count = rows(table), files(table)
    for path in list(Path(table).rglob("part-*.parquet")):  # as earlier versions, or a power loss, left them
        (path.parent / f".{path.name}.crc").touch()
    done = maintain(spark, lake, NOW)
    assert files(table) == count - done.removed + done.added < count
    assert rows(table) == before
    check(lake, model)
    assert maintain(spark, lake, NOW).plan.stale
    assert not maintain(spark, lake, NOW).plan
    assert on_disk(table) == files(table)
    assert list(Path(table).rglob("*.bin")) == []
    assert {path.suffix for path in Path(table).rglob("*") if path.is_file() and "_delta_log" not in path.parts} == {
        ".parquet",
    }
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
    facts = maintainer.look(open_storage(lake), table, NOW, time.time_ns())
    assert facts is not None
    assert [(file.partition, file.rows, file.deleted) for file in facts.files] == [(("s",), 1000, 500)]
    (vector,) = {str(path) for path in Path(table).rglob("*.bin")} - set(facts.stale)  # in use
    done = maintain(spark, lake, NOW)
    assert (done.removed, done.added) == (1, 1)
    maintain(spark, lake, NOW)
    assert not Path(vector).exists()
    assert list(Path(table).rglob("*.bin")) == []
    check(lake, model)


def test_new_files_are_in_runs_with_statistics(spark: Any, lake: Path, tmp_path: Path) -> None:
    """New files have runs of sequences with statistics.

    In a table by subject they are sorted by sequence; in one by bucket by runs of sequences, and by subject within
    each.
    """
    for limit, name in ((50, "FEW"), (1, "MANY")):
        model = StreamModel(tmp_path / name, name, name)
        for _ in range(3):
            model.publish([(b"%s.%d" % (b"long" * 30, n % 20), b"", b"x") for n in range(200)])
            model.stage(lake)
        compact(spark, lake, model, commit_bytes=1, subject_limit=limit)
    assert [done.failure for done in Maintainer(spark, str(lake), KEEP).once()] == [None, None]
    for name in ("FEW", "MANY"):
        table = paths.table(str(lake), name)
        assert at.open_log(table).summary(version(table)).operation == "OPTIMIZE"
        actions = pa.table(DeltaTable(table).get_add_actions(flatten=True)).to_pylist()
        assert sum(action["num_records"] for action in actions) == 600
        for action in actions:
            held = pq.read_table(Path(table, action["path"]), partitioning=None)
            seqs = held.column("seq").to_pylist()
            assert (action["min.seq"], action["max.seq"]) == (min(seqs), max(seqs))
            if name == "FEW":
                assert seqs == sorted(seqs)
            else:
                subjects = held.column("subject").to_pylist()
                assert (action["min.subject"], action["max.subject"]) == (min(subjects), max(subjects))
                assert list(zip(subjects, seqs, strict=True)) == sorted(zip(subjects, seqs, strict=True))


def test_a_running_reader_survives_optimize_vacuum_and_log_cleanup(spark: Any, lake: Path, tmp_path: Path) -> None:
    model = StreamModel(tmp_path / "log")
    grow(spark, lake, model, 3)
    table = model.table(lake)
    history = TableHistory(table)
    watch = TableFollower(table, model.identity.uid)
    assert history.read(100, 105, 10) == model.expected()[99:105]
    assert watch.position() == model.sealed[-1].last_index
    done = maintain(spark, lake, NOW)
    assert done.plan.stale == []  # OPTIMIZE has just replaced it: it was in use when the plan was made
    assert len(maintain(spark, lake, NOW).plan.stale) > 10
    assert history.read(110, 160, 1000) == model.expected()[109:160]
    grow(spark, lake, model, 1)
    assert maintain(spark, lake, NOW).plan.expired >= 3
    assert at.open_log(table).versions[0] > 0
    assert history.read(1, ALL, 10_000) == model.expected()
    assert history.max_seq() == model.expected()[-1].seq
    assert watch.position() == model.sealed[-1].last_index
    progress = at.latest_progress(table)
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
        found = at.as_of(table, at_ns)
        assert found.version is not None
        held = spark.read.format("delta").option("versionAsOf", found.version).load(table)
        assert sorted(row.seq for row in held.filter(f"time_ns <= {at_ns}").collect()) == list(range(1, seq + 1))
    assert at.latest_progress(table) == at.open_log(table).progress(version(table))


def test_a_table_may_say_how_long_its_versions_stay(spark: Any, lake: Path, tmp_path: Path) -> None:
    model = StreamModel(tmp_path / "log")
    grow(spark, lake, model, 2)
    table = model.table(lake)
    held = on_disk(table)
    spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('lakestream.time_travel' = '{500 * HOUR_NS}')")
    maintain(spark, lake, NOW)
    # Delta's checkpoints drop removed files after a week; the commits still name them.
    maintain(spark, lake, NOW, 400 * HOUR_NS)
    assert on_disk(table) == held + 4
    assert spark.read.format("delta").option("versionAsOf", 2).load(table).count() == 120
    maintain(spark, lake, NOW, 502 * HOUR_NS)
    assert on_disk(table) == 4
    check(lake, model)


def test_compactor_and_maintainer_at_the_same_table(spark: Any, lake: Path, tmp_path: Path) -> None:
    model = StreamModel(tmp_path / "log")
    grow(spark, lake, model, 2)
    outcomes: list[MaintenanceResult] = []
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
            while position_of(model.table(lake), model.identity.uid) != model.sealed[-1].last_index:
                with contextlib.suppress(TableBusy):
                    compact(spark, lake, model)
    finally:
        over.set()
        beside.join()
    assert [done.failure for done in outcomes if done.failure] == []
    assert sum(done.added for done in outcomes) > 0
    check(lake, model)


def test_a_commit_in_between_is_in_the_way_only_if_it_took_the_same_files(
    spark: Any, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A concurrent commit conflicts only if it removed the same files.

    The compactor commits while new files are being written: first an append, then a DELETE too.
    """
    model = StreamModel(tmp_path / "log")
    grow(spark, lake, model, 2)
    table = model.table(lake)
    write = Rewriter._write
    attempts: list[int] = []

    def interrupted(self: Any, *arguments: Any) -> Any:
        attempts.append(1)
        if len(attempts) == 1:
            if deleting:
                model.remove([5])
            grow(spark, lake, model, 1)
        return write(self, *arguments)

    monkeypatch.setattr(Rewriter, "_write", interrupted)
    deleting = False
    done = maintain(spark, lake, KEEP)
    assert (done.removed, done.added) == (8 + 8, 4 + 4)  # a second run handles the files added meanwhile
    assert len(attempts) == 2
    deleting = True
    attempts.clear()
    grow(spark, lake, model, 1)
    maintain(spark, lake, KEEP)
    assert len(attempts) > 1
    assert files(table) == 4
    check(lake, model)
    held = on_disk(table)
    names = {path.name for path in Path(table).rglob("part-*.parquet")}
    log = "".join(path.read_text() for path in Path(table, "_delta_log").glob("*.json"))
    assert all(name in log for name in names), held  # files made useless by a conflict are removed at once


def test_a_table_under_maintenance_is_not_committed_to(
    spark: Any, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakestream_spark.write.stream_compaction.BUSY_SECONDS", 0.1)
    model = StreamModel(tmp_path / "log")
    model.publish(flights(10))
    model.stage(lake)
    lock = open_lock(spark, table_lock(str(lake), model.table(lake)))
    assert lock.acquire()
    with pytest.raises(TableBusy, match="retrying"):
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
    done = run("--once", "--retain-hours", "0.5")
    assert (done.returncode, done.stdout) == (1, "")
    assert "below 1 h" in done.stderr
    holder = Maintainer(spark, str(lake))
    assert holder.acquire()
    assert not Maintainer(spark, str(lake)).acquire()
    holder.release()
    done = run("--once", "--min-files", "2", "--stream", "ORDERS", "--retain-hours", "24")
    assert done.returncode == 0, done.stderr
    assert "reach back 24 h" in done.stderr
    assert "ORDERS: optimized 8 files into 4, checkpoint, " in done.stdout
    assert "maintained 1 table in " in done.stdout
    check(lake, model)
    assert paths.table(str(lake), "OTHER", "ACC") in maintainer.tables(open_storage(lake))


def test_invariant_13_delta_drops_no_commits_of_a_table_by_itself(spark: Any, lake: Path, tmp_path: Path) -> None:
    """A file is missing, and commits are older than Delta keeps them: checkpoints of the compactor leave the log.

    Also in a table of an earlier release, from its next commit on.
    """
    model = StreamModel(tmp_path / "log")
    model.configure({"lakestream.properties.delta.checkpointInterval": "1"})
    grow(spark, lake, model, 1)
    table, log = model.table(lake), Path(model.table(lake), "_delta_log")
    for cleanup in ("", "true"):
        if cleanup:
            spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('delta.enableExpiredLogCleanup' = '{cleanup}')")
        commits = sorted(log.glob("*.json"))
        for path in log.iterdir():
            os.utime(path, (time.time() - 100 * 86400,) * 2)
        grow(spark, lake, model, 2)
        assert len(list(log.glob("*.checkpoint.parquet"))) > 1
        assert set(commits) <= set(log.glob("*.json"))
    check(lake, model)


def test_invariant_13_nothing_is_deleted_from_a_damaged_table_until_it_is_repaired(
    spark: Any, lake: Path, tmp_path: Path
) -> None:
    """The newest version lacks a file. Maintenance says so, deletes nothing, and asks for the repair."""
    model = StreamModel(tmp_path / "log")
    grow(spark, lake, model, 2)
    model.remove([7], shred=True)
    grow(spark, lake, model, 1)
    assert maintain(spark, lake, KEEP).plan.erase == 1
    model.remove([8], shred=True)
    grow(spark, lake, model, 1)
    table = model.table(lake)
    victim = Path(locate(table, next(iter(TableLog(open_storage(table), table).state().files.values())).path))
    victim.unlink()
    names = {path for path in Path(lake).rglob("*") if path.is_file()}
    later = time.time_ns() + 100 * HOUR_NS
    for round in range(2):
        (done,) = Maintainer(spark, str(lake), NOW, clock=lambda: later).once()
        assert done.failure is not None
        assert victim.name in done.failure, round
    assert names <= {path for path in Path(lake).rglob("*") if path.is_file()}
    assert list(Path(lake).rglob("damaged.json"))
    compact(spark, lake, model)
    check(lake, model)
    assert not list(Path(lake).rglob("damaged.json"))
    assert maintain(spark, lake, NOW).plan.erase == 1
    check(lake, model)
