"""Tests of archives: messages removed by limits stay in the table, marked; deleted ones are removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from lakestream.lake.read.history.history import TableHistory
from lakestream.lake.staging import staging
from lakestream.lake.storage.lake import open_storage
from lakestream_spark.write import clone_maker
from lakestream_spark.write.errors import StillCloned
from lakestream_spark.write.maintainer import Maintainer
from lakestream_spark.write.table import StreamTable
from tests.lake.model import StreamModel, flights
from tests.lake.tables import ALL, records, rows
from tests.lake.test_compaction import check, compact, compaction

pytestmark = pytest.mark.lake

ARCHIVE = {"lakestream.retention": "archive"}


def removed(table: str) -> dict[int, int | None]:
    """Return removed_time_ns of each sequence."""
    return {row["seq"]: row["removed_time_ns"] for row in rows(table)}


def test_what_limits_end_stays_with_its_time_and_what_is_deleted_goes(spark: Any, lake: Path, tmp_path: Path) -> None:
    model = StreamModel(tmp_path / "log")
    model.configure(ARCHIVE)
    model.publish(flights(20))
    model.remove([1, 2])  # the first sequence increases
    model.remove([7], erase=True)
    model.stage(lake)
    compact(spark, lake, model)
    table = model.table(lake)
    first = model.sealed[-1].closed_ns
    assert removed(table) == {seq: first if seq < 3 else None for seq in range(1, 21) if seq != 7}
    model.remove([3, 10, 11, 12, 13])
    model.remove([4, 15], erase=True)
    model.publish(flights(5))
    model.remove([22])
    model.stage(lake)
    middle = model.sealed[-1].closed_ns
    model.remove([23])
    model.stage(lake)
    last = model.sealed[-1].closed_ns
    compact(spark, lake, model)
    times = dict.fromkeys([1, 2], first) | dict.fromkeys([3, 10, 11, 12, 13, 22], middle) | {23: last}
    assert removed(table) == {seq: times.get(seq) for seq in range(1, 26) if seq not in (4, 7, 15)}
    history = TableHistory(table)
    assert history.read(1, ALL, 100) == model.expected(), "the server reads only what the stream has"


def test_a_purge_empties_an_archive_of_what_the_stream_had(spark: Any, lake: Path, tmp_path: Path) -> None:
    model = StreamModel(tmp_path / "log")
    model.configure(ARCHIVE)
    model.publish(flights(10))
    model.remove([1, 2])
    model.stage(lake)
    compact(spark, lake, model)
    model.purge(11)
    model.publish(flights(3))
    model.stage(lake)
    compact(spark, lake, model)
    assert list(removed(model.table(lake))) == [1, 2, 11, 12, 13]


def test_a_stream_becomes_an_archive_and_follows_again(spark: Any, lake: Path, tmp_path: Path) -> None:
    model = StreamModel(tmp_path / "log")
    model.publish(flights(10))
    model.remove([1])
    model.stage(lake)
    compact(spark, lake, model)
    check(lake, model)
    model.configure(ARCHIVE)
    model.remove([2])
    model.publish(flights(2))
    model.stage(lake)
    compact(spark, lake, model)
    found = removed(model.table(lake))
    assert list(found) == list(range(2, 13))
    assert [seq for seq, time in found.items() if time] == [2]
    model.configure({})
    model.publish(flights(2))
    model.stage(lake)
    compact(spark, lake, model)
    check(lake, model)


def test_a_table_that_was_to_be_kept_outlives_its_stream_and_makes_way(spark: Any, lake: Path, tmp_path: Path) -> None:
    old = StreamModel(tmp_path / "old", uid="OLD")
    old.configure({"lakestream.on_delete": "keep"})
    old.publish(flights(10))
    old.stage(lake)
    compact(spark, lake, old)
    assert not compaction(spark, lake, old).drop_table()
    check(lake, old)
    new = StreamModel(tmp_path / "new", uid="NEW")
    new.identity = msgspec.structs.replace(new.identity, created_ns=old.identity.created_ns + 1)
    new.publish(flights(3))
    new.stage(lake)
    compact(spark, lake, new)
    check(lake, new)
    assert records(str(lake / "kept" / "ORDERS-OLD")) == old.expected()


def test_a_table_is_kept_that_was_to_be_kept_since_its_last_commit(spark: Any, lake: Path, tmp_path: Path) -> None:
    model = StreamModel(tmp_path / "log")
    model.publish(flights(10))
    model.stage(lake)
    compact(spark, lake, model)
    model.configure({"lakestream.on_delete": "keep"})  # and deleted before another message was published
    staging.mark_deleted(str(lake), model.identity)
    last = compaction(spark, lake, model)
    assert not last.drop_table()
    check(lake, model)
    found = StreamTable(spark, open_storage(lake), model.identity).find()
    assert found is not None
    assert found.kept  # so that the next stream of that name moves it aside


def test_a_table_goes_once_its_clones_have_files_of_their_own(spark: Any, lake: Path, tmp_path: Path) -> None:
    model = StreamModel(tmp_path / "log")
    model.publish(flights(10))
    model.stage(lake)
    compact(spark, lake, model)
    target = str(lake / "copies" / "orders")
    clone_maker.clone(spark, str(lake), model.table(lake), target)
    with pytest.raises(StillCloned):
        compaction(spark, lake, model).drop_table()
    assert spark.read.format("delta").load(target).count() == 10
    (done,) = Maintainer(spark, str(lake)).release_clones(model.table(lake))
    assert done.files == len(list(Path(target, "detached").glob("*.parquet"))) > 0
    assert compaction(spark, lake, model).drop_table()
    assert spark.read.format("delta").load(target).count() == 10
