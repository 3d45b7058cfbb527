"""Tests of reading the compactor's position from transaction logs as Delta writes them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from lakestream.lake.errors import DamagedLog
from lakestream.lake.read.history.index import TableIndex
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.storage.local_storage import LocalStorage
from lakestream.lake.storage.storage import FileEntry
from lakestream.lake.table.check import Budget, TableCheck
from lakestream.lake.table.log import TableLog
from lakestream.lake.table.progress import TableProgress
from lakestream.lake.table.state import TableFollower, position_of

pytestmark = pytest.mark.unit


def commit(table: Path, version: int, index: int | None = None, uid: str = "U", text: str | None = None) -> None:
    """Write one commit file as Spark does: whole, under its final name."""
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    info: dict[str, object] = {"operation": "WRITE", "operationMetrics": {"numOutputRows": "12"}}
    if text is not None:
        info["userMetadata"] = text
    lines: list[dict[str, object]] = [{"commitInfo": info}]
    if index is not None:
        lines.append({"txn": {"appId": f"lakestream:{uid}", "version": index}})
    partial = log / "partial"
    partial.write_text("\n".join(map(json.dumps, lines)).replace('": ', '":'))
    partial.rename(log / f"{version:020d}.json")


def test_a_table_that_is_not_there_has_no_position(tmp_path: Path) -> None:
    assert position_of(str(tmp_path / "t"), "U") is None


def test_the_position_moves_with_the_commits(tmp_path: Path) -> None:
    watch = TableFollower(str(tmp_path), "U")
    commit(tmp_path, 0)
    assert watch.position() is None
    progress = '{"uid":"U","last_index":7,"last_seq":5,"last_time_ns":4,"floor":1}'
    commit(tmp_path, 1, 7, text=progress)
    assert watch.position() == 7
    assert watch.head.progress == TableProgress(uid="U", last_index=7, last_seq=5, last_time_ns=4, floor=1)
    assert watch.head.rows == 12
    commit(tmp_path, 2)
    assert watch.position() == 7
    commit(tmp_path, 3, 9, text="somebody's note")
    commit(tmp_path, 4, 99, uid="OTHER")
    assert watch.position() == 9
    assert watch.head.progress is None
    assert position_of(str(tmp_path), "U") == 9
    assert position_of(str(tmp_path), "OTHER") == 99


def test_a_commit_that_states_a_position_and_does_not_set_it_is_damaged(tmp_path: Path) -> None:
    """A flipped bit in the name of the application hides the position; the table would be taken for shorter."""
    early = '{"uid":"U","last_index":7,"last_seq":5,"last_time_ns":4}'
    late = early.replace("7", "9")
    commit(tmp_path, 0, 7, text=early)
    watch = TableFollower(str(tmp_path), "U")
    assert watch.position() == 7
    commit(tmp_path, 1, text=early)  # a change of the layout
    assert watch.position() == 7
    assert position_of(str(tmp_path), "U") == 7
    commit(tmp_path, 2, 9, uid="V", text=late)
    for one in (watch, TableFollower(str(tmp_path), "U")):
        with pytest.raises(DamagedLog, match="states the log index 9"):
            one.position()


def test_a_table_made_anew_is_noticed_at_the_same_version(tmp_path: Path) -> None:
    watch = TableFollower(str(tmp_path), "U")
    commit(tmp_path, 0)
    commit(tmp_path, 1, 50, uid="OLD")
    assert watch.position() is None
    for name in os.listdir(tmp_path / "_delta_log"):
        os.unlink(tmp_path / "_delta_log" / name)
    assert watch.position() is None
    commit(tmp_path, 0)
    commit(tmp_path, 1, 3)
    assert watch.position() == 3


def test_nothing_new_costs_no_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(tmp_path, 0, 5)
    watch = TableFollower(str(tmp_path), "U")
    assert watch.position() == 5

    def refuse(*_: object) -> None:
        raise AssertionError("read a commit again")

    monkeypatch.setattr(watch, "_read", refuse)
    monkeypatch.setattr(watch, "_start", refuse)
    assert watch.position() == 5


def test_a_position_older_than_the_kept_commits_comes_from_the_checkpoint(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    rows = pa.table({"seq": [1]})
    write_deltalake(path, rows)
    mark = CommitProperties(app_transactions=[Transaction("lakestream:U", 41)])
    write_deltalake(path, rows, mode="append", commit_properties=mark)
    write_deltalake(path, rows, mode="append")
    DeltaTable(path).create_checkpoint()
    for version in (0, 1):
        (tmp_path / "t" / "_delta_log" / f"{version:020d}.json").unlink()
    assert position_of(path, "U") == 41
    assert position_of(path, "V") is None


def test_each_commit_is_read_once_for_checks_and_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, rows = str(tmp_path / "streams" / "S"), pa.table({"seq": [1], "time_ns": [1]})
    write_deltalake(table, rows)
    follower = TableFollower(table, "U")
    check = TableCheck(open_storage(tmp_path), follower)
    index = TableIndex(follower, open_storage(table))
    assert check.look(follower.newest(), Budget())
    assert len(index.snapshot().files) == 1
    read: list[int] = []
    real = TableLog.commit

    def counted(log: TableLog, version: int, *lines: Any) -> Any:
        read.append(version)
        return real(log, version, *lines)

    monkeypatch.setattr(TableLog, "commit", counted)
    write_deltalake(table, rows, mode="append")
    assert len(index.refresh().files) == 2
    write_deltalake(table, rows, mode="append")
    assert check.look(follower.newest(), Budget())
    assert check.version == index.refresh().version == 2
    assert read == [1, 2]


def test_a_look_at_a_checked_table_that_has_not_moved_asks_twice_for_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = str(tmp_path / "streams" / "S")
    write_deltalake(table, pa.table({"seq": [1]}))
    follower = TableFollower(table, "U")
    check = TableCheck(open_storage(tmp_path), follower)
    assert check.look(follower.newest(), Budget())
    asked: list[str] = []
    real = LocalStorage.stat

    def stat(storage: LocalStorage, path: str) -> FileEntry | None:
        asked.append(path)
        return real(storage, path)

    monkeypatch.setattr(LocalStorage, "stat", stat)
    for name in ("list", "names", "read", "read_entry", "read_end"):
        monkeypatch.setattr(LocalStorage, name, lambda *_: pytest.fail("an idle table is read"))
    assert check.look(follower.newest(), Budget())
    assert [path.rpartition("/")[2] for path in asked] == [f"{0:020d}.json", f"{1:020d}.json"]


def test_a_commit_that_is_damaged_beside_its_position_moves_it_and_is_named_until_it_is_mended(tmp_path: Path) -> None:
    table = tmp_path / "S"
    write_deltalake(table, pa.table({"seq": [1], "time_ns": [1]}))
    follower = TableFollower(str(table), "U")
    before = follower.advance()
    commit(table, 1, 7, text='{"uid":"U","last_index":7,"last_seq":5,"last_time_ns":4}')
    file = table / "_delta_log" / f"{1:020d}.json"
    content = file.read_bytes()
    file.write_bytes(content + b'\n{"add":{"path":')
    assert follower.position() == 7
    for _ in range(2):
        with pytest.raises(DamagedLog, match=file.name):
            follower.advance()
    assert follower.state is before
    file.write_bytes(content)
    state = follower.advance()
    assert (state.version, state.head.position, len(state.files)) == (1, 7, 1)


def test_a_table_whose_stream_does_not_matter_is_not_searched_for_a_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in range(20):
        commit(tmp_path, version, version)
    monkeypatch.setattr(TableLog, "commit", lambda *_: pytest.fail("read a commit"))
    assert TableFollower(str(tmp_path)).newest().version == 19
