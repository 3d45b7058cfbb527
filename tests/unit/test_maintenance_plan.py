"""What a table needs, decided from facts and from transaction logs written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.lake import maintenance
from lakestream.lake.maintenance import MIB, DataFile, Facts, Plan, Policy, decide
from lakestream.lake.timetravel import CommitLog

pytestmark = pytest.mark.unit

POLICY = Policy(target_bytes=64 * MIB, min_files=4)


def facts(*files: DataFile, **values: Any) -> Facts:
    given = {
        "table": "t", "stream": "S", "uid": "U", "version": 9, "partition_column": "subject", "files": list(files),
        "since_checkpoint": 0, "oldest": 0, "keep_from": 0, "stale": 0,
    }  # fmt: skip
    return Facts(**{**given, **values})


def small(partition: str | int | None = "a", size: int = MIB) -> DataFile:
    return DataFile(partition, size, 100)


def test_a_table_at_rest_needs_nothing() -> None:
    plan = decide(facts(*[small()] * 3, *[small("b", 32 * MIB)] * 20), POLICY)
    assert not plan
    assert plan.describe() == "nothing to do"


def test_enough_small_files_of_one_partition_are_worth_a_rewrite() -> None:
    plan = decide(facts(*[small()] * 4, *[small("b")] * 3, small("a", 60 * MIB)), POLICY)
    assert (plan.partitions, plan.files, plan.size, plan.checkpoint) == (["a"], 4, 4 * MIB, True)
    assert plan.describe() == "optimize 4 files (4.0 MiB) in 1 partition, checkpoint"


def test_one_file_is_never_enough_and_no_partition_is_none_of_ours() -> None:
    assert not decide(facts(small(), *[small(None)] * 9), msgspec.structs.replace(POLICY, min_files=1))


@pytest.mark.parametrize(("deleted", "due"), [(20, []), (21, ["a"])])
def test_a_worn_file_is_rewritten_however_large(deleted: int, due: list[str]) -> None:
    assert decide(facts(DataFile("a", 60 * MIB, 100, deleted)), POLICY).partitions == due


def test_checkpoint_log_and_vacuum() -> None:
    assert not decide(facts(since_checkpoint=19), POLICY)
    plan = decide(facts(since_checkpoint=20, oldest=50, keep_from=100, stale=7), POLICY)
    assert plan == Plan(partitions=[], checkpoint=True, keep_from=100, expired=50, stale=7)
    assert plan.describe() == "checkpoint, drop 50 commits from the log, vacuum 7 files"
    assert decide(facts(oldest=50, keep_from=0), POLICY).expired == 0


@given(st.lists(st.integers(1, 64 * MIB), max_size=200))
def test_doing_it_until_nothing_is_due_leaves_few_files(sizes: list[int]) -> None:
    """Files are packed as Delta does: sorted by size, a bin ends before it would exceed the target."""
    rounds = 0
    while decide(facts(*[small(size=size) for size in sizes]), POLICY):
        rounds += 1
        chosen = sorted(size for size in sizes if size < POLICY.small_bytes)
        packed: list[int] = []
        for size in chosen:
            if packed and packed[-1] + size <= POLICY.target_bytes:
                packed[-1] += size
            else:
                packed.append(size)
        sizes = [size for size in sizes if size >= POLICY.small_bytes] + packed
    assert rounds <= 1
    assert sum(size < POLICY.small_bytes for size in sizes) < POLICY.min_files


def test_predicates_of_every_spelling() -> None:
    assert maintenance.predicate("bucket", [0, 7]) == "`bucket` IN (0, 7)"
    assert maintenance.predicate("subject", ["a'b", "c\\d"]) == "`subject` IN ('a\\'b', 'c\\\\d')"


def test_a_short_retention_is_warned_about_and_a_very_short_one_refused() -> None:
    assert maintenance.check_retention(168) is None
    assert "reach back 24 h" in (maintenance.check_retention(24) or "")
    with pytest.raises(maintenance.RetentionTooShort, match=r"0\.5 h is below 1 h"):
        maintenance.check_retention(0.5)


def test_only_conflicts_are_tried_again_and_not_for_ever() -> None:
    tried: list[int] = []

    def work(error: Exception | None, good: int) -> int:
        tried.append(1)
        if len(tried) < good and error is not None:
            raise error
        return len(tried)

    conflict = RuntimeError("[DELTA_CONCURRENT_DELETE_DELETE] ...")
    assert maintenance.retry(lambda: work(conflict, 3), maintenance.is_conflict) == 3
    tried.clear()
    with pytest.raises(RuntimeError):
        maintenance.retry(lambda: work(conflict, 9), maintenance.is_conflict)
    assert len(tried) == maintenance.ATTEMPTS
    tried.clear()
    with pytest.raises(OSError, match="full"):
        maintenance.retry(lambda: work(OSError("disk full"), 2), maintenance.is_conflict)
    assert len(tried) == 1


def write_log(table: Path, commits: int, checkpoints: list[int], speaking: set[int] | None = None) -> CommitLog:
    """A log with a commit each second, of which those in `speaking` say how far the table reaches."""
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
    return CommitLog(table)


def test_the_log_keeps_the_version_of_every_time_within_the_retention(tmp_path: Path) -> None:
    log = write_log(tmp_path, 30, [10, 20], speaking={*range(18), 25})
    written = maintenance.checkpoints(str(tmp_path))
    assert written == [10, 20]

    def floor(second: float) -> int:
        return maintenance.log_floor(log, written, int(second * 1000))

    assert [floor(-1), floor(9.9), floor(10), floor(19)] == [0, 0, 10, 10]
    # 20 to 24 leave it to 17 to speak for them.
    assert [floor(20), floor(24.9), floor(25), floor(1000)] == [10, 10, 20, 20]


def test_a_log_where_nobody_speaks_stays(tmp_path: Path) -> None:
    assert maintenance.log_floor(write_log(tmp_path, 5, [3], speaking=set()), [3], 1 << 60) == 0


def test_half_a_checkpoint_is_none(tmp_path: Path) -> None:
    write_log(tmp_path, 3, [])
    log = tmp_path / "_delta_log"
    (log / f"{1:020d}.checkpoint.0000000001.0000000002.parquet").touch()
    assert maintenance.checkpoints(str(tmp_path)) == []
    (log / f"{1:020d}.checkpoint.0000000002.0000000002.parquet").touch()
    assert maintenance.checkpoints(str(tmp_path)) == [1]


def test_expired_commits_leave_and_nothing_else(tmp_path: Path) -> None:
    write_log(tmp_path, 30, [10, 20])
    log = tmp_path / "_delta_log"
    (log / "_last_checkpoint").touch()
    assert maintenance.expire(str(tmp_path), 20) == 20
    left = sorted(path.name for path in log.iterdir())
    assert [name for name in left if name.endswith(".json")] == [f"{version:020d}.json" for version in range(20, 30)]
    assert len(left) == 10 + 10 + 2
    assert maintenance.expire(str(tmp_path), 20) == 0
    with pytest.raises(AssertionError):
        maintenance.expire(str(tmp_path), 25)


def test_tables_are_found_in_all_accounts(tmp_path: Path) -> None:
    for name in ("streams/A", "streams/B", "accounts/X/streams/A"):
        (tmp_path / name / "_delta_log").mkdir(parents=True)
    (tmp_path / "streams/NONE").mkdir()
    found = [str(Path(table).relative_to(tmp_path)) for table in maintenance.tables(str(tmp_path))]
    assert found == ["streams/A", "streams/B", "accounts/X/streams/A"]
    assert maintenance.tables(str(tmp_path / "nowhere")) == []
