"""Tests of the tables of the lake for monitoring, on real tables."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake

from lakestream.lake.table.state import TableFollower
from lakestream.ops.monitoring.monitored import MAX_COMMITS
from lakestream.runtime import ThreadIo
from lakestream.server.lake.tables import MAX_KEPT, REFRESH_NS, TableFigures
from lakestream_spark.write.maintenance_plan import Policy
from tests.unit.consumer_world import VirtualClock

pytestmark = pytest.mark.unit


@pytest.fixture
async def io() -> Iterator[ThreadIo]:
    threads = ThreadIo(asyncio.get_running_loop(), 1)
    yield threads
    threads.close()


def write(table: Path, rows: int, metadata: str = "") -> None:
    properties = CommitProperties(custom_metadata={"userMetadata": metadata}) if metadata else None
    write_deltalake(table, pa.table({"seq": range(rows)}), mode="append", commit_properties=properties)


async def test_a_table_with_its_commits(tmp_path: Path, io: ThreadIo) -> None:
    clock, table = VirtualClock(), tmp_path / "streams" / "S"
    tables = TableFigures(clock, io)
    assert (await tables.read(TableFollower(str(table)))).table is None
    clock.advance(REFRESH_NS)
    for rows in (3, 4):
        write(table, rows)
    found = await tables.read(TableFollower(str(table)))
    assert found.table is not None
    size = sum(path.stat().st_size for path in table.glob("*.parquet"))
    assert size < Policy().small_bytes
    assert found.table == {
        "version": 1, "files": 2, "bytes": size, "small_files": 2, "small_bytes": size, "rows": 7,
    }  # fmt: skip
    assert [(commit["version"], commit["operation"], commit["files_added"]) for commit in found.commits] == [
        (1, "WRITE", 1),
        (0, "WRITE", 1),
    ]


async def test_the_duration_of_a_commit_that_says_when_it_began(tmp_path: Path, io: ThreadIo) -> None:
    write(tmp_path / "S", 1, '{"uid": "x", "last_index": 1, "last_seq": 1, "last_time_ns": 1, "began_ms": 1000}')
    commit = (await TableFigures(VirtualClock(), io).read(TableFollower(str(tmp_path / "S")))).commits[0]
    assert commit["duration_ms"] > 1_000_000_000
    write(tmp_path / "T", 1, "not JSON")
    write(tmp_path / "T", 1, '{"began_ms": "x"}')
    commits = (await TableFigures(VirtualClock(), io).read(TableFollower(str(tmp_path / "T")))).commits
    assert [commit.get("duration_ms") for commit in commits] == [None, None]


async def test_a_table_is_read_again_after_a_while(tmp_path: Path, io: ThreadIo) -> None:
    clock, table = VirtualClock(), tmp_path / "S"
    tables = TableFigures(clock, io)
    write(table, 1)
    first = await tables.read(TableFollower(str(table)))
    write(table, 1)
    assert await tables.read(TableFollower(str(table))) is first
    clock.advance(REFRESH_NS)
    again = await tables.read(TableFollower(str(table)))
    assert again.table is not None
    assert again.table["version"] == 1
    clock.advance(REFRESH_NS)
    assert (await tables.read(TableFollower(str(table)))).commits is again.commits  # nothing is new


async def test_a_table_that_cannot_be_read(tmp_path: Path, io: ThreadIo) -> None:
    (tmp_path / "S" / "_delta_log").mkdir(parents=True)
    (tmp_path / "S" / "_delta_log" / f"{0:020d}.json").write_text("broken")
    assert "00000.json" in (await TableFigures(VirtualClock(), io).read(TableFollower(str(tmp_path / "S")))).error


async def test_commits_are_limited(tmp_path: Path, io: ThreadIo) -> None:
    for _ in range(MAX_COMMITS + 1):
        write(tmp_path / "S", 1)
    found = await TableFigures(VirtualClock(), io).read(TableFollower(str(tmp_path / "S")))
    assert [commit["version"] for commit in found.commits] == list(range(MAX_COMMITS, 0, -1))


async def test_kept_tables_are_limited(tmp_path: Path, io: ThreadIo) -> None:
    tables = TableFigures(VirtualClock(), io)
    first = await tables.read(TableFollower(str(tmp_path / "first")))
    for number in range(MAX_KEPT):
        await tables.read(TableFollower(str(tmp_path / str(number))))
    assert await tables.read(TableFollower(str(tmp_path / "first"))) is not first
