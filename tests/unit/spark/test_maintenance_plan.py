"""Tests of maintenance plans, from facts and from transaction logs written by the test."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table import check, policy
from lakestream.lake.table.at import open_log
from lakestream.lake.table.log import TableLog
from lakestream_spark.write import maintainer, maintenance_plan
from lakestream_spark.write.maintenance_plan import MIB, DataFile, Facts, MaintenancePlan, Policy, decide

pytestmark = pytest.mark.unit

POLICY = Policy(target_bytes=64 * MIB, min_files=4)


def facts(*files: DataFile, **values: Any) -> Facts:
    given = {
        "table": "t", "stream": "S", "uid": "U", "incarnation": "I", "version": 9, "partition_columns": ["subject"],
        "files": list(files), "since_checkpoint": 0, "oldest": 0, "keep_from": 0, "retain_ns": 0, "stale": [],
    }  # fmt: skip
    return Facts(**{**given, **values})


def small(partition: str | None = "a", size: int = MIB, seq: int = 0) -> DataFile:
    return DataFile((partition,), size, 100, min_seq=seq, max_seq=seq + 9)


def test_a_table_at_rest_needs_nothing() -> None:
    plan = decide(facts(*[small()] * 3, *[small("b", 32 * MIB)] * 20), POLICY)
    assert not plan
    assert plan.describe() == "nothing to do"


def test_enough_small_files_of_one_partition_are_worth_a_rewrite() -> None:
    plan = decide(facts(*[small()] * 4, *[small("b")] * 3, *[small(None)] * 5, small("a", 60 * MIB)), POLICY)
    assert [(each.partition, len(each.files), each.size) for each in plan.bins] == [
        (("a",), 4, 4 * MIB),
        ((None,), 5, 5 * MIB),
    ]
    assert (plan.files, plan.checkpoint) == (9, True)
    assert plan.describe() == "optimize 9 files (9.0 MiB) in 2 partitions, checkpoint"


def test_one_file_is_never_enough() -> None:
    assert not decide(facts(small()), msgspec.structs.replace(POLICY, min_files=1))


def test_a_file_is_rewritten_only_together_with_about_as_much() -> None:
    files = [small(size=MIB)] * 6
    assert decide(facts(*files, small(size=7 * MIB)), POLICY).files == 6
    assert decide(facts(*files, small(size=6 * MIB)), POLICY).files == 7
    assert decide(facts(*files, small(size=6 * MIB), small(size=13 * MIB)), POLICY).files == 7


def test_new_files_hold_narrow_ranges_of_sequences() -> None:
    files = [small(size=20 * MIB, seq=seq) for seq in (70, 10, 50, 30, 60, 20, 40)]
    bins = decide(facts(*files), POLICY).bins
    assert [[file.min_seq for file in each.files] for each in bins] == [[10, 20, 30], [40, 50, 60]]


@pytest.mark.parametrize(("deleted", "due"), [(20, 0), (21, 1)])
def test_a_worn_file_is_rewritten_however_large(deleted: int, due: int) -> None:
    assert len(decide(facts(DataFile(("a",), 60 * MIB, 100, deleted)), POLICY).bins) == due
    assert len(decide(facts(DataFile(("a",), MIB, 100, deleted)), POLICY).bins) == due


def test_a_file_from_which_rows_are_to_be_erased_is_rewritten_whatever_is_deleted_of_it() -> None:
    erased = DataFile(("a",), 60 * MIB, 1_000_000, 1, erase=True)
    (each,) = decide(facts(erased, small(), DataFile(("a",), 60 * MIB, 1_000_000, 1)), POLICY).bins
    assert each.files == [erased]
    plan = decide(facts(erase=3), POLICY)
    assert plan, "there may be files of older versions"
    assert plan.describe() == "erase 3 messages"


def test_checkpoint_log_and_vacuum() -> None:
    assert not decide(facts(since_checkpoint=19), POLICY)
    plan = decide(facts(since_checkpoint=20, oldest=50, keep_from=100, stale=["a", "b"]), POLICY)
    assert plan == MaintenancePlan(checkpoint=True, keep_from=100, expired=50, stale=["a", "b"])
    assert plan.describe() == "checkpoint, drop 50 commits from the log, vacuum 2 files"
    assert decide(facts(oldest=50, keep_from=0), POLICY).expired == 0


def outcome(sizes: list[int], policy: Policy) -> tuple[list[int], int]:
    """Return the sizes of one partition's files after its plan, and the bytes written."""
    files = [small(size=size, seq=10 * number) for number, size in enumerate(sizes)]
    bins = decide(facts(*files), policy).bins
    chosen = [file for each in bins for file in each.files]
    assert len({file.min_seq for file in chosen}) == len(chosen)
    assert all(len(each.files) > 1 and each.size <= policy.target_bytes for each in bins)
    left = [file.size for file in files if file not in chosen]
    return left + [each.size for each in bins], sum(each.size for each in bins)


@given(st.lists(st.integers(1, 64 * MIB), max_size=200))
def test_doing_it_until_nothing_is_due_leaves_few_files(sizes: list[int]) -> None:
    total, rounds = sum(sizes), 0
    while True:
        sizes, written = outcome(sizes, POLICY)
        if not written:
            break
        rounds += 1
    assert sum(sizes) == total
    assert rounds <= 3
    # min_files - 1, and files that each exceed the sum of the smaller ones: doubling from 0.5 MiB to below 32 MiB.
    assert sum(size < POLICY.small_bytes for size in sizes) <= 3 + 7


@given(st.integers(1, 4), st.lists(st.integers(10_000, 100_000), min_size=300, max_size=300))
def test_a_growing_table_is_rewritten_a_few_times_only(often: int, commits: list[int]) -> None:
    sizes: list[int] = []
    written = most = 0
    for number, size in enumerate(commits, 1):
        sizes.append(size)
        if number % (often * 4) == 0:
            sizes, round_written = outcome(sizes, POLICY)
            written += round_written
            most = max(most, len(sizes))
    assert most <= 16 + 8
    assert written <= 8 * sum(commits) + 40 * MIB


def test_layers_take_each_partition_once() -> None:
    files = [*[small("a", 20 * MIB, seq) for seq in range(0, 80, 10)], *[small("b")] * 4, *[small("c")] * 4]
    bins = decide(facts(*files), POLICY).bins
    found = maintenance_plan.layers(bins, POLICY.target_bytes)
    assert sorted(map(id, (each for layer in found for each in layer))) == sorted(map(id, bins))
    for layer in found:
        assert len({each.partition for each in layer}) == len(layer)
        assert len(layer) == 1 or sum(each.size for each in layer) <= POLICY.target_bytes
    assert len(maintenance_plan.first_round(bins, 60 * MIB)) == 1


def test_intervals_as_delta_spells_them() -> None:
    hour = policy.HOUR_NS
    assert policy.interval_ns("interval 1 week") == 168 * hour
    assert policy.interval_ns("INTERVAL 30 days 12 Hours") == 732 * hour
    assert policy.interval_ns("P1D") == 0


def test_a_table_may_say_its_own_retention() -> None:
    assert maintainer.retention({}, Policy(retain_ns=7)) == 7
    assert maintainer.retention({"lakestream.time_travel": str(9 * policy.HOUR_NS)}, Policy(retain_ns=7)) == (
        9 * policy.HOUR_NS
    )
    assert maintainer.retention({"lakestream.time_travel": "0"}, Policy()) == policy.HOUR_NS


def test_a_table_may_state_a_shorter_retention_of_its_log() -> None:
    hour = policy.HOUR_NS
    assert maintainer.log_retention({}, 9 * hour) == 9 * hour
    assert maintainer.log_retention({"delta.logRetentionDuration": "interval 2 hours"}, 9 * hour) == 2 * hour
    assert maintainer.log_retention({"delta.logRetentionDuration": "interval 2 days"}, 9 * hour) == 9 * hour


def test_a_short_retention_is_warned_about_and_a_very_short_one_refused() -> None:
    assert maintenance_plan.check_retention(168) is None
    assert maintenance_plan.check_retention(8760) is None
    assert "reach back 24 h" in (maintenance_plan.check_retention(24) or "")
    with pytest.raises(maintenance_plan.RetentionTooShort, match=r"0\.5 h is below 1 h"):
        maintenance_plan.check_retention(0.5)


def test_only_conflicts_are_tried_again_and_not_for_ever() -> None:
    tried: list[int] = []

    def work(error: Exception | None, good: int) -> int:
        tried.append(1)
        if len(tried) < good and error is not None:
            raise error
        return len(tried)

    conflict = RuntimeError("[DELTA_CONCURRENT_DELETE_DELETE] ...")
    assert maintainer.retry(lambda: work(conflict, 3)) == 3
    tried.clear()
    with pytest.raises(RuntimeError):
        maintainer.retry(lambda: work(conflict, 9))
    assert len(tried) == maintainer.ATTEMPTS
    tried.clear()
    with pytest.raises(OSError, match="full"):
        maintainer.retry(lambda: work(OSError("disk full"), 2))
    assert len(tried) == 1


def write_log(table: Path, commits: int, checkpoints: list[int], speaking: set[int] | None = None) -> TableLog:
    """Write a log with a commit each second; those in `speaking` contain the table's position."""
    log = table / "_delta_log"
    log.mkdir(parents=True)
    for version in range(commits):
        info: dict[str, object] = {"operation": "WRITE", "inCommitTimestamp": version * 1000}
        if speaking is None or version in speaking:
            said = {"uid": "U", "last_index": version + 1, "last_seq": version + 1, "last_time_ns": version}
            info["userMetadata"] = json.dumps(said)
        (log / f"{version:020d}.json").write_text(json.dumps({"commitInfo": info}) + "\n")
        (log / f".{version:020d}.json.crc").touch()
    for version in checkpoints:
        (log / f"{version:020d}.checkpoint.parquet").touch()
    return open_log(table)


def names(table: Path) -> list[str]:
    return [path.name for path in (table / "_delta_log").iterdir()]


def test_the_log_keeps_the_version_of_every_time_within_the_retention(tmp_path: Path) -> None:
    log = write_log(tmp_path, 30, [10, 20], speaking={*range(18), 25})
    written = TableLog(open_storage(tmp_path), str(tmp_path)).checkpoints
    assert written == [10, 20]

    def floor(second: float) -> int:
        return maintenance_plan.log_floor(log, written, int(second * 1000))

    assert [floor(-1), floor(9.9), floor(10), floor(19)] == [0, 0, 10, 10]
    # 20 to 24 have no position of their own, so that of 17 counts.
    assert [floor(20), floor(24.9), floor(25), floor(1000)] == [10, 10, 20, 20]


def test_a_log_without_positions_is_kept(tmp_path: Path) -> None:
    assert maintenance_plan.log_floor(write_log(tmp_path, 5, [3], speaking=set()), [3], 1 << 60) == 0


def test_half_a_checkpoint_is_none(tmp_path: Path) -> None:
    write_log(tmp_path, 3, [])
    log = tmp_path / "_delta_log"
    (log / f"{1:020d}.checkpoint.0000000001.0000000002.parquet").touch()
    assert TableLog(open_storage(tmp_path), str(tmp_path)).checkpoints == []
    (log / f"{1:020d}.checkpoint.0000000002.0000000002.parquet").touch()
    assert TableLog(open_storage(tmp_path), str(tmp_path)).checkpoints == [1]


@pytest.fixture
def names_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a log count as that of a whole table whose files have names and no content."""
    monkeypatch.setattr(check, "require_whole", lambda storage, table: None)


@pytest.mark.usefixtures("names_only")
def test_a_checkpoint_is_on_disk_before_what_it_stands_for_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "_delta_log"
    log.mkdir()
    for name in (f"{0:020d}.json", f"{1:020d}.json", f"{1:020d}.checkpoint.parquet"):
        (log / name).write_bytes(b"")
    calls: list[str] = []
    really_sync, really_unlink = os.fsync, os.unlink

    def fsync(descriptor: int) -> None:
        really_sync(descriptor)
        calls.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    def unlink(path: str) -> None:
        really_unlink(path)
        calls.append(f"deleted {path}")

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "unlink", unlink)
    assert maintainer.expire(open_storage(tmp_path), str(tmp_path), 1) == 1
    assert calls == [f"{log}/{1:020d}.checkpoint.parquet", str(log), f"deleted {log}/{0:020d}.json"]


@pytest.mark.usefixtures("names_only")
def test_expired_commits_leave_and_nothing_else(tmp_path: Path) -> None:
    write_log(tmp_path, 30, [10, 20])
    log = tmp_path / "_delta_log"
    (log / "_last_checkpoint").touch()
    assert maintainer.expire(open_storage(tmp_path), str(tmp_path), 20) == 20
    left = sorted(path.name for path in log.iterdir())
    assert [name for name in left if name.endswith(".json")] == [f"{version:020d}.json" for version in range(20, 30)]
    assert len(left) == 10 + 10 + 2
    assert maintainer.expire(open_storage(tmp_path), str(tmp_path), 20) == 0
    with pytest.raises(AssertionError):
        maintainer.expire(open_storage(tmp_path), str(tmp_path), 25)


def test_tables_are_found_in_all_accounts(tmp_path: Path) -> None:
    for name in ("streams/A", "streams/B", "accounts/X/streams/A"):
        (tmp_path / name / "_delta_log").mkdir(parents=True)
    (tmp_path / "streams/NONE").mkdir()
    found = [str(Path(table).relative_to(tmp_path)) for table in maintainer.tables(open_storage(tmp_path))]
    assert found == ["streams/A", "streams/B", "accounts/X/streams/A"]
    assert maintainer.tables(open_storage(tmp_path / "nowhere")) == []
