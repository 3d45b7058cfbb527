"""Tests of the decisions of a table repair: staged segments, positions and metadata of versions."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from lakestream.lake.staging import staging
from lakestream.lake.staging.staging import StagedSegment, StreamIdentity
from lakestream.lake.storage import lake as lakes
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table import check
from lakestream.lake.table.actions import AddFile
from lakestream.lake.table.check import Damage
from lakestream.lake.table.log import TableLog
from lakestream_spark.write.repair import staged_from

pytestmark = pytest.mark.unit


def segments(*ranges: tuple[int, int]) -> list[StagedSegment]:
    return [StagedSegment(first, last, f"{first}-{last}", 1) for first, last in ranges]


@pytest.mark.parametrize(
    ("staged", "position", "begins"),
    [
        ([], 50, 51),
        ([(1, 10), (11, 50)], 50, 1),
        ([(1, 10), (11, 50), (51, 70)], 50, 1),
        ([(1, 10), (21, 50)], 50, 21),
        ([(41, 60)], 50, 41),
        ([(1, 40)], 50, 51),
        ([(51, 60)], 50, 51),
        ([(60, 70)], 50, 51),
        ([(1, 30), (25, 50)], 50, 1),
        ([(1, 10), (60, 70)], 0, 1),
    ],
)
def test_staged_segments_reach_back_as_far_as_they_follow_on(
    staged: list[tuple[int, int]], position: int, begins: int
) -> None:
    assert staged_from(segments(*staged), position) == begins


def test_a_version_has_its_own_position_and_metadata_also_behind_a_checkpoint(tmp_path: Path) -> None:
    table = tmp_path / "t"
    for number in range(1, 5):
        write_deltalake(
            table,
            pa.table({"seq": [number]}),
            mode="append",
            commit_properties=CommitProperties(app_transactions=[Transaction("lakestream:U", number * 10)]),
        )
    log = TableLog(open_storage(tmp_path), str(table))
    expected = log.metadata_of(3)
    assert [log.state(version).transactions["lakestream:U"] for version in range(4)] == [10, 20, 30, 40]
    DeltaTable(table).create_checkpoint()
    for commit in (table / "_delta_log").glob("*.json"):
        commit.unlink()
    log = TableLog(open_storage(tmp_path), str(table))
    assert log.state().transactions == {"lakestream:U": 40}
    found = log.metadata_of(3)
    assert {name: found[name] for name in ("id", "schemaString", "partitionColumns", "configuration")} == {
        name: expected[name] for name in ("id", "schemaString", "partitionColumns", "configuration")
    }


def test_a_request_is_written_once_and_one_that_was_cut_counts(tmp_path: Path) -> None:
    lake, stream = str(tmp_path), StreamIdentity("S", "$G", "u1", 1)
    lakes.require(lake, create=True)
    storage, directory = open_storage(lake), staging.directory_of(lake, stream)
    assert check.asked(storage, directory) is None
    damaged = [
        Damage("/t/a", "it is missing", AddFile("a", {}, 1)),
        Damage("/t/b", "no", AddFile("b", {}, 1), lasting=True),
    ]
    check.ask(lake, stream, damaged)
    file = Path(directory, check.REQUEST_FILE)
    written = file.stat().st_mtime_ns
    check.ask(lake, stream, damaged)
    assert file.stat().st_mtime_ns == written
    said = check.asked(storage, directory)
    assert said is not None
    assert said.lasting == ["/t/b"]
    file.write_bytes(b"")
    assert check.asked(storage, directory) == check.RepairRequest()
    check.settle(storage, directory)
    assert not check.is_asked(storage, directory)
