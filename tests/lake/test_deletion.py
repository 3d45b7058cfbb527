"""Tests of deletion by sequence: the vectors that are written here are Delta's to every reader."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_delta
import pytest
from delta.tables import DeltaTable

from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table.log import TableLog
from lakestream_spark.write import deletion
from tests.lake.model import StreamModel
from tests.lake.tables import records
from tests.lake.test_maintenance import compact

pytestmark = pytest.mark.lake

COMMITS, ROWS = 4, 250
LAST = COMMITS * ROWS


@pytest.fixture
def table(spark: Any, lake: Path, tmp_path: Path) -> str:
    model = StreamModel(tmp_path / "log")
    for _ in range(COMMITS):
        model.publish([(b"s.%d" % (number % 3), b"", b"%d" % number) for number in range(ROWS)])
        model.stage(lake)
    compact(spark, lake, model, commit_bytes=1)
    return model.table(lake)


def delete(spark: Any, table: str, runs: list[tuple[int, int]]) -> bool:
    return deletion.delete(spark, open_storage(table), table, runs)


def by_spark(spark: Any, table: str) -> list[int]:
    return sorted(row.seq for row in spark.read.format("delta").load(table).select("seq").collect())


def by_duckdb(table: str) -> list[int]:
    home = Path(duckdb_extension_delta.__file__).parent / "extensions" / "v1.5.5"
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as connection:
        connection.execute(f"LOAD '{home / 'delta.duckdb_extension'}'")
        return sorted(seq for (seq,) in connection.execute("SELECT seq FROM delta_scan(?)", [table]).fetchall())


@pytest.mark.smoke
def test_every_reader_finds_what_is_left_after_each_deletion(spark: Any, table: str) -> None:
    rng, left = random.Random(7), set(range(1, LAST + 1))
    for number in range(6):
        runs = [(first, first + rng.choice((0, 0, 3, 40))) for first in rng.sample(range(1, LAST + 20), 15)]
        if number == 3:
            runs.append((0, ROWS + 10))  # a whole commit, and some of the next
        if number == 5:
            runs = [(0, LAST)]
        before = TableLog(open_storage(table), table).latest
        assert delete(spark, table, runs)
        left -= {seq for first, last in runs for seq in range(first, last + 1)}
        assert TableLog(open_storage(table), table).latest == before + 1
        assert by_spark(spark, table) == sorted(left)
        assert by_duckdb(table) == sorted(left)
        assert sorted(record.seq for record in records(table)) == sorted(left)
        assert delete(spark, table, runs), "again"
        assert TableLog(open_storage(table), table).latest == before + 1
    history = DeltaTable.forPath(spark, table).history(1).collect()[0]
    assert history.operation == "DELETE"
    assert not list(TableLog(open_storage(table), table).state().files)


@pytest.mark.parametrize("name", [deletion.CDF, deletion.VECTORS])
def test_what_needs_more_than_vectors_is_left_to_delta(spark: Any, table: str, name: str) -> None:
    value = "false" if name == deletion.VECTORS else "true"
    spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('{name}' = '{value}')")
    assert not delete(spark, table, [(1, 10)])


def test_many_files_are_left_to_the_executors(spark: Any, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion, "MOST_FILES", 2)
    assert not delete(spark, table, [(seq, seq) for seq in range(10, LAST, 50)])
    assert delete(spark, table, [(1, 2 * ROWS)]), "whole files are not read"
    assert by_spark(spark, table) == list(range(2 * ROWS + 1, LAST + 1))
