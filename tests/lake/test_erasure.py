"""Tests of secure deletes: the next maintenance run removes the messages' bytes from every file of the table."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table import erasures
from lakestream_spark.write import clone_maker, maintainer
from lakestream_spark.write.maintainer import Maintainer, MaintenanceResult
from lakestream_spark.write.maintenance_plan import Policy, decide
from lakestream_spark.write.stream_compaction import StreamCompaction
from tests.lake.model import StreamModel
from tests.lake.test_maintenance import KEEP, check, compact, maintain

pytestmark = pytest.mark.lake

WEEK = Policy()
"""Default policy: files with few deleted rows stay, and old versions for seven days."""


def secrets(count: int) -> list[bytes]:
    """Return distinct payloads."""
    return [b"secret %d" % number for number in range(count)]


def holders(table: str, payload: bytes) -> list[str]:
    """Return the data files in the table's directory, of any version, that contain a payload."""
    found = []
    for path in Path(table).rglob("*.parquet"):
        if "_delta_log" not in path.parts:
            with pq.ParquetFile(path) as file:
                found += [path.name] if payload in file.read(columns=["data"]).column(0).to_pylist() else []
    return found


def stored(spark: Any, lake: Path, model: StreamModel, payloads: Iterable[bytes], subjects: int = 2) -> None:
    model.publish([(b"s.%d" % (n % subjects), b"", payload) for n, payload in enumerate(payloads)])
    model.stage(lake)
    compact(spark, lake, model)


def test_one_deleted_message_of_many_leaves_all_files(spark: Any, lake: Path, tmp_path: Path) -> None:
    """One deleted message among many is removed from all files, also from those replaced by OPTIMIZE."""
    model, table = StreamModel(tmp_path / "log"), ""
    payloads = secrets(200)
    for start in range(0, 200, 50):
        stored(spark, lake, model, payloads[start : start + 50])
        table = model.table(lake)
    maintain(spark, lake, KEEP)
    assert len(holders(table, payloads[120])) == 2, "the file of the compactor, and the one of OPTIMIZE"
    changes = Path(table, "_change_data", "cdc-1.parquet")
    changes.parent.mkdir()
    shutil.copy(
        next(path for path in Path(table).rglob("part-*") if path.name in holders(table, payloads[120])), changes
    )
    model.remove([50], erase=True)
    model.remove([121], shred=True)
    stored(spark, lake, model, secrets(210)[200:])
    assert len(holders(table, payloads[120])) == 3, "a DELETE leaves the bytes"
    facts = maintainer.look(open_storage(lake), table, WEEK, time.time_ns())
    assert facts is not None
    assert decide(facts, WEEK).describe().endswith("erase 1 messages")
    done = maintain(spark, lake, WEEK)
    assert (done.removed, done.plan.erase) == (1, 1)
    assert "erased 1 messages" in done.describe()
    assert holders(table, payloads[120]) == []
    assert holders(table, payloads[49]), "an ordinary delete takes its time"
    assert holders(table, payloads[119])
    check(lake, model)
    assert not maintain(spark, lake, WEEK).plan, "and that was all"
    with pytest.raises(Exception, match=r"part-.*parquet|[Nn]o such file|[Nn]ot found"):
        spark.read.format("delta").option("versionAsOf", 4).load(table).collect()


def test_a_file_that_holds_nothing_else_goes(spark: Any, lake: Path, tmp_path: Path) -> None:
    """A file without other messages is removed; a message deleted before compaction needs no erasure."""
    model, payloads = StreamModel(tmp_path / "log"), secrets(50)
    stored(spark, lake, model, payloads[:20], 1)
    stored(spark, lake, model, payloads[20:40], 1)
    model.remove(range(1, 21), shred=True)
    model.publish([(b"s.0", b"", payload) for payload in payloads[40:]])
    model.remove([45], shred=True)
    model.stage(lake)
    compact(spark, lake, model)
    table = model.table(lake)
    assert holders(table, payloads[0])
    (note,) = erasures.notes(open_storage(lake), table)
    assert note.runs == [(1, 20)]
    assert maintain(spark, lake, WEEK).plan.erase == 20
    assert [payload for payload in payloads if holders(table, payload)] == payloads[20:44] + payloads[45:]
    check(lake, model)


def test_a_file_that_a_killed_writer_did_not_finish_goes_with_the_erased_messages(
    spark: Any, lake: Path, tmp_path: Path
) -> None:
    """Maintenance failed on it until a VACUUM a week later."""
    model, payloads = StreamModel(tmp_path / "log"), secrets(30)
    stored(spark, lake, model, payloads[:20], 1)
    table = Path(model.table(lake))
    whole = next(table.rglob("part-*.parquet"))
    unfinished = whole.parent / "part-00000-killed.c000.snappy.parquet"
    unfinished.write_bytes(whole.read_bytes()[:-100])
    model.remove([3], shred=True)
    stored(spark, lake, model, payloads[20:], 1)
    assert maintain(spark, lake, WEEK).plan.erase == 1
    assert not unfinished.exists()
    assert holders(str(table), payloads[2]) == []
    check(lake, model)


def test_a_kill_behind_the_delete_or_behind_the_note_is_made_good(spark: Any, lake: Path, tmp_path: Path) -> None:
    model, payloads = StreamModel(tmp_path / "log"), secrets(30)
    stored(spark, lake, model, payloads)
    table, storage = model.table(lake), open_storage(lake)
    model.remove([7], shred=True)
    model.stage(lake)

    class Killed(Exception):
        pass

    def killed(*_: Any) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(erasures, "leave_note", killed)
        with pytest.raises(Killed):
            compact(spark, lake, model)
    assert maintain(spark, lake, WEEK).plan.erase == 0, "nobody knows of it yet"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StreamCompaction, "_append", killed)
        with pytest.raises(Killed):
            compact(spark, lake, model)
    assert len(erasures.notes(storage, table)) == 1
    assert maintain(spark, lake, WEEK).plan.erase == 1
    assert holders(table, payloads[6]) == []
    compact(spark, lake, model)
    maintain(spark, lake, WEEK)
    assert erasures.notes(storage, table) == [], "the note that was written once more"
    check(lake, model)


def test_a_clone_keeps_its_files_and_the_note(spark: Any, lake: Path, tmp_path: Path) -> None:
    model, payloads = StreamModel(tmp_path / "log"), secrets(30)
    stored(spark, lake, model, payloads)
    table = model.table(lake)
    clone_maker.clone(spark, str(lake), table, str(lake / "copy"))
    model.remove([7], shred=True)
    model.stage(lake)
    compact(spark, lake, model)

    def once() -> MaintenanceResult:
        (done,) = Maintainer(spark, str(lake), WEEK).once("ORDERS")
        return done

    assert "shallow clone" in str(once().failure)
    assert spark.read.format("delta").load(str(lake / "copy")).count() == 30
    assert holders(table, payloads[6])
    open_storage(lake).delete_tree(str(lake / "copy"))
    assert once().failure is None
    assert holders(table, payloads[6]) == []
