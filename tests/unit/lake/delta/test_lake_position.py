"""Tests of reading the compactor's position from transaction logs as Delta writes them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from lakestream.lake.delta import position
from lakestream.lake.delta.position import PositionWatch, Progress
from lakestream.lake.errors import DamagedLog

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
    assert position.PositionWatch(str(tmp_path / "t"), "U").read() is None


def test_the_position_moves_with_the_commits(tmp_path: Path) -> None:
    watch = PositionWatch(str(tmp_path), "U")
    commit(tmp_path, 0)
    assert watch.read() is None
    progress = '{"uid":"U","last_index":7,"last_seq":5,"last_time_ns":4,"floor":1}'
    commit(tmp_path, 1, 7, text=progress)
    assert watch.read() == 7
    assert watch.progress == Progress(uid="U", last_index=7, last_seq=5, last_time_ns=4, floor=1)
    assert watch.rows == 12
    commit(tmp_path, 2)
    assert watch.read() == 7
    commit(tmp_path, 3, 9, text="somebody's note")
    commit(tmp_path, 4, 99, uid="OTHER")
    assert watch.read() == 9
    assert watch.progress is None
    assert position.PositionWatch(str(tmp_path), "U").read() == 9
    assert position.PositionWatch(str(tmp_path), "OTHER").read() == 99


def test_a_commit_that_states_a_position_and_does_not_set_it_is_damaged(tmp_path: Path) -> None:
    """A flipped bit in the name of the application hides the position; the table would be taken for shorter."""
    early = '{"uid":"U","last_index":7,"last_seq":5,"last_time_ns":4}'
    late = early.replace("7", "9")
    commit(tmp_path, 0, 7, text=early)
    watch = PositionWatch(str(tmp_path), "U")
    assert watch.read() == 7
    commit(tmp_path, 1, text=early)  # a change of the layout
    assert watch.read() == 7
    assert PositionWatch(str(tmp_path), "U").read() == 7
    commit(tmp_path, 2, 9, uid="V", text=late)
    for one in (watch, PositionWatch(str(tmp_path), "U")):
        with pytest.raises(DamagedLog, match="states the log index 9"):
            one.read()


def test_a_table_made_anew_is_noticed_at_the_same_version(tmp_path: Path) -> None:
    watch = PositionWatch(str(tmp_path), "U")
    commit(tmp_path, 0)
    commit(tmp_path, 1, 50, uid="OLD")
    assert watch.read() is None
    for name in os.listdir(tmp_path / "_delta_log"):
        os.unlink(tmp_path / "_delta_log" / name)
    assert watch.read() is None
    commit(tmp_path, 0)
    commit(tmp_path, 1, 3)
    assert watch.read() == 3


def test_nothing_new_costs_no_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(tmp_path, 0, 5)
    watch = PositionWatch(str(tmp_path), "U")
    assert watch.read() == 5

    def refuse(*_: object) -> None:
        raise AssertionError("read a commit again")

    monkeypatch.setattr(watch, "_take", refuse)
    monkeypatch.setattr(watch, "_start_over", refuse)
    assert watch.read() == 5


def test_a_position_older_than_the_kept_commits_comes_from_the_checkpoint(tmp_path: Path) -> None:
    import pyarrow as pa

    path = str(tmp_path / "t")
    rows = pa.table({"seq": [1]})
    write_deltalake(path, rows)
    mark = CommitProperties(app_transactions=[Transaction("lakestream:U", 41)])
    write_deltalake(path, rows, mode="append", commit_properties=mark)
    write_deltalake(path, rows, mode="append")
    DeltaTable(path).create_checkpoint()
    for version in (0, 1):
        (tmp_path / "t" / "_delta_log" / f"{version:020d}.json").unlink()
    assert position.PositionWatch(path, "U").read() == 41
    assert position.PositionWatch(path, "V").read() is None
