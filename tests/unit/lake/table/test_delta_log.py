"""Tests of the transaction log reader: the same states as deltalake, from supported checkpoints of any kind or none."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from lakestream.lake.errors import DamagedLog
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.storage.local_storage import LocalStorage
from lakestream.lake.table.actions import CommitInfo, locate
from lakestream.lake.table.actions import Transaction as Txn
from lakestream.lake.table.log import TableLog

pytestmark = pytest.mark.unit


def log(table: Path) -> TableLog:
    return TableLog(open_storage(table), str(table))


def append(table: Path, first: int) -> None:
    rows = pa.table({"subject": ["a", "b"], "seq": [first, first + 1]})
    mark = CommitProperties(app_transactions=[Transaction("lakestream:U", first)])
    write_deltalake(str(table), rows, mode="append", partition_by=["subject"], commit_properties=mark)


def test_every_version_has_the_files_and_transactions_that_deltalake_has(tmp_path: Path) -> None:
    choose = random.Random(7)
    for number in range(20):
        append(tmp_path, 2 * number)
        if choose.random() < 0.3:
            DeltaTable(str(tmp_path)).delete(f"seq = {choose.randrange(2 * number + 1)}")
        if number in (5, 13):
            DeltaTable(str(tmp_path)).create_checkpoint()
    found = log(tmp_path)
    assert len(found.checkpoints) == 2
    for version in found.commits:
        expected, state = DeltaTable(str(tmp_path), version=version), found.state(version)
        assert state.version == version
        assert sorted(locate(found.table, add.path) for add in state.files.values()) == sorted(expected.file_uris())
        assert state.transactions == {"lakestream:U": expected.transaction_version("lakestream:U")}
        assert state.metadata.partition_columns == ["subject"]
    gone = {action.path for action in found.tombstones(found.commits[-1])}
    assert gone.isdisjoint(add.path for add in found.state().files.values())


def test_a_log_without_a_checkpoint_is_read_without_pyarrow(tmp_path: Path) -> None:
    """Servers follow their tables' logs all the time; pyarrow would take 50 MiB of each."""
    append(tmp_path, 1)
    code = (
        "import sys; from lakestream.lake.table.log import TableLog; "
        "from lakestream.lake.storage.lake import open_storage; "
        "state = TableLog(open_storage(sys.argv[1]), sys.argv[1]).state(); assert state.files; "
        "print(sorted({'pyarrow', 'deltalake', 'numpy'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_state_needs_no_commit_before_its_checkpoint(tmp_path: Path) -> None:
    for number in range(4):
        append(tmp_path, number)
    before = log(tmp_path).state()
    DeltaTable(str(tmp_path)).create_checkpoint()
    append(tmp_path, 4)
    for path in log(tmp_path).files_before(3):
        os.unlink(path)
    after = log(tmp_path)
    assert after.commits == [3, 4]
    assert before.files.items() <= after.state().files.items()
    assert after.newest_checkpoint() == (3, after.parts(3))
    with pytest.raises(FileNotFoundError):
        after.state(2)


def test_the_time_of_a_commit_is_in_it_or_that_of_its_file(tmp_path: Path) -> None:
    directory = tmp_path / "_delta_log"
    directory.mkdir()
    (directory / f"{0:020d}.json").write_text('{"commitInfo":{"inCommitTimestamp":1234}}\n')
    (directory / f"{1:020d}.json").write_text(
        '{"txn":{"appId":"A","version":7}}\n{"commitInfo":{"operation":"WRITE"}}\n'
    )
    os.utime(directory / f"{1:020d}.json", ns=(0, 5_000_000_000))
    found = log(tmp_path)
    assert [commit.time_ms for commit in found.commits_after(-1)] == [1234, 5000]
    some = found.commit(1, (b'{"txn"',))
    assert [action.txn for action in some.actions] == [Txn("A", 7)]
    assert some.info == CommitInfo()


@pytest.mark.parametrize("content", ['{"add":{"path"', ""])
def test_a_cut_commit_is_an_error_with_its_path(tmp_path: Path, content: str) -> None:
    """An empty one would be a commit without progress: readers of earlier states would miss messages."""
    directory = tmp_path / "_delta_log"
    directory.mkdir()
    (directory / f"{0:020d}.json").write_text(content)
    with pytest.raises(DamagedLog, match=r"0{20}\.json is damaged"):
        log(tmp_path).commit(0)


def test_logs_of_two_tables_are_listed_at_the_same_time(tmp_path: Path) -> None:
    """With `functools.cached_property` of Python 3.11 one listing waited for the other: its lock is the class's."""
    together = threading.Barrier(2)

    class Waiting(LocalStorage):
        def names(self, directory: str) -> list[str]:
            together.wait(30)  # continues only when both threads are here
            return super().names(directory)

    with ThreadPoolExecutor(2) as pool:
        logs = [TableLog(Waiting(str(tmp_path)), str(tmp_path / name)) for name in ("one", "other")]
        assert list(pool.map(lambda each: each.commits, logs)) == [[], []]
