"""Tests of table partitioning: by rule, by metadata, and changes of the layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, QueryBuilder

from lakestream.lake.read.history.history import TableHistory
from lakestream.lake.table import schema
from lakestream.lake.table.state import TableFollower
from tests.lake.model import StreamModel, flights
from tests.lake.tables import ALL, partition_columns, rows
from tests.lake.test_compaction import check, compact

pytestmark = pytest.mark.lake

PARTITION = "lakestream.partition"


def files(table: str) -> list[dict[str, Any]]:
    """Return the files of the newest version with their statistics."""
    import pyarrow as pa

    return pa.table(DeltaTable(table).get_add_actions(flatten=True)).to_pylist()


def fill(model: StreamModel, lake: Path, subjects: list[str], times: int = 2) -> None:
    model.publish([(subject.encode(), b"", b"x") for subject in subjects * times], per_frame=10_000)
    model.stage(lake)


def test_tables_by_tokens_have_a_column_for_each(spark: Any, lake: Path, tmp_path: Path) -> None:
    model = StreamModel(tmp_path / "log")
    model.configure({PARTITION: "tokens:3,1"})
    fill(model, lake, ["orders.1.de", "orders.2.fr", "orders.3", "orders", "a=b.%.größe"])
    compact(spark, lake, model)
    check(lake, model)
    table = model.table(lake)
    assert partition_columns(table) == ["token3", "token1"]
    found = {(row["subject"], row["token1"], row["token3"]) for row in rows(table)}
    assert found == {
        ("orders.1.de", "orders", "de"),
        ("orders.2.fr", "orders", "fr"),
        ("orders.3", "orders", None),
        ("orders", "orders", None),
        ("a=b.%.größe", "a=b", "größe"),
    }
    assert len(TableHistory(table).read(1, ALL, 100, [b"orders.3"])) == 2


def test_too_many_combinations_of_tokens_become_buckets(
    spark: Any, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakestream_spark.write.stream_compaction.SUBJECT_MOST", 20)
    model = StreamModel(tmp_path / "log")
    model.configure({PARTITION: "tokens:2"})
    fill(model, lake, [f"sensor.{n % 15}.{n}" for n in range(60)])
    compact(spark, lake, model)
    assert partition_columns(model.table(lake)) == ["token2"]
    fill(model, lake, [f"sensor.{n}.x" for n in range(60)])
    compact(spark, lake, model)
    check(lake, model)
    assert partition_columns(model.table(lake)) == ["bucket"]
    fill(model, lake, ["sensor.1.1"])
    compact(spark, lake, model)
    check(lake, model)
    assert partition_columns(model.table(lake)) == ["bucket"], "no table goes back by itself"


def test_a_stream_that_asks_for_another_layout_gets_it_in_one_commit(spark: Any, lake: Path, tmp_path: Path) -> None:
    model = StreamModel(tmp_path / "log")
    table = model.table(lake)
    asked = ["auto", "bucket:4", "tokens:2", "bucket:16", "subject", "auto"]
    expected = [["subject"], ["bucket"], ["token2"], ["bucket"], ["subject"], ["subject"]]
    for text, columns in zip(asked, expected, strict=True):
        model.configure({PARTITION: text})
        model.remove([model.next_seq - 1])
        fill(model, lake, [f"orders.{n}" for n in range(40)])
        compact(spark, lake, model)
        check(lake, model)
        assert partition_columns(table) == columns
        delta = DeltaTable(table)
        layout = schema.layout_of(delta.metadata().partition_columns, delta.schema().to_json())
        assert layout is not None
        if text.startswith("bucket"):
            assert len(layout.bounds) + 1 == int(text[7:])
        watch = TableFollower(table, model.identity.uid)
        assert watch.position() == model.sealed[-1].last_index


def test_where_subject_prunes_by_statistics_alone(spark: Any, lake: Path, tmp_path: Path) -> None:
    model = StreamModel(tmp_path / "log")
    prefix = "plant.with.a.name.that.is.longer.than.usual.statistics."
    for _ in range(3):
        fill(model, lake, [f"{prefix}{n:05d}.temperature" for n in range(1000)], 1)
        compact(spark, lake, model)
    check(lake, model)
    table = model.table(lake)
    subject = f"{prefix}00321.temperature"
    held = [file for file in files(table) if file["min.subject"] <= subject <= file["max.subject"]]
    assert len(files(table)) == 24
    assert len(held) == 3, "one of eight buckets"
    query = QueryBuilder().register("t", DeltaTable(table))
    import pyarrow as pa

    sql = f"SELECT count(*) AS n FROM t WHERE subject = '{subject}'"
    assert pa.table(query.execute(sql).read_all()).to_pylist() == [{"n": 3}]
    plan = spark.read.format("delta").load(table).where(f"subject = '{subject}'")
    assert plan.count() == 3
    assert len(plan.inputFiles()) >= 1
    scanned = spark.sql(f"EXPLAIN COST SELECT * FROM delta.`{table}` WHERE subject = '{subject}'").collect()
    assert scanned


@pytest.mark.parametrize("properties", [{"delta.enableChangeDataFeed": "true", "team": "o'hare"}])
def test_delta_properties_come_and_go_with_the_metadata(
    spark: Any, lake: Path, tmp_path: Path, properties: dict[str, str]
) -> None:
    model = StreamModel(tmp_path / "log")
    table = model.table(lake)
    fill(model, lake, ["a"])
    compact(spark, lake, model)
    model.configure({f"lakestream.properties.{name}": value for name, value in properties.items()})
    fill(model, lake, ["a"])
    compact(spark, lake, model)
    configuration = DeltaTable(table).metadata().configuration
    assert {name: configuration.get(name) for name in properties} == properties
    assert json.loads(configuration["lakestream.set"]) == sorted(properties)
    model.configure({})
    fill(model, lake, ["a"])
    compact(spark, lake, model)
    check(lake, model)
    left = DeltaTable(table).metadata().configuration
    assert not {*properties, "lakestream.set"} & set(left)
    version = DeltaTable(table).version()
    fill(model, lake, ["a"])
    compact(spark, lake, model)
    assert DeltaTable(table).version() == version + 1, "nothing but the append"


def test_a_new_layout_takes_and_gives_each_row_once_in_the_change_feed(spark: Any, lake: Path, tmp_path: Path) -> None:
    model = StreamModel(tmp_path / "log")
    table = model.table(lake)
    model.configure({"lakestream.properties.delta.enableChangeDataFeed": "true"})
    model.publish(flights(100))
    model.stage(lake)
    compact(spark, lake, model)
    model.configure({"lakestream.properties.delta.enableChangeDataFeed": "true", PARTITION: "bucket:2"})
    model.operation()
    model.remove([5], erase=True)
    model.publish(flights(3))
    model.stage(lake)
    compact(spark, lake, model)
    check(lake, model)
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0).load(table)
    net: dict[int, int] = {}
    for row in feed.select("seq", "_change_type").collect():
        net[row.seq] = net.get(row.seq, 0) + (1 if row._change_type == "insert" else -1)
    assert net == {seq: 0 if seq == 5 else 1 for seq in range(1, 104)}


@pytest.mark.parametrize(
    ("subjects", "columns"), [(10, ["subject"]), (1_000, ["bucket"]), (1_000_000, ["bucket"])], ids=str
)
def test_ten_a_thousand_and_a_million_subjects(
    spark: Any, lake: Path, tmp_path: Path, subjects: int, columns: list[str]
) -> None:
    model = StreamModel(tmp_path / "log")
    model.publish(((b"sensor.%07d.t" % n, b"", b"") for n in range(subjects)), per_frame=20_000)
    model.stage(lake)
    compact(spark, lake, model)
    table = model.table(lake)
    assert partition_columns(table) == columns
    found = files(table)
    assert sum(file["num_records"] for file in found) == subjects
    assert len(found) <= 16, "no file for each subject"
    asked = f"sensor.{subjects // 3:07d}.t"
    assert [record.seq for record in TableHistory(table).read(1, ALL, 10, [asked.encode()])] == [subjects // 3 + 1]
    query = f"SELECT seq FROM delta.`{table}` WHERE subject = '{asked}'"
    assert [row.seq for row in spark.sql(query).collect()] == [subjects // 3 + 1]
    if columns == ["bucket"]:
        held = [file for file in found if file["min.subject"] <= asked <= file["max.subject"]]
        assert len(held) == len(found) // 8, "statistics alone leave out seven of eight files"


def test_a_key_that_is_overwritten_again_and_again_rewrites_no_file(spark: Any, lake: Path, tmp_path: Path) -> None:
    model = StreamModel(tmp_path / "log")
    table = model.table(lake)
    keys = [b"$KV.B.k%d" % n for n in range(20)]
    for _ in range(3):
        for _ in range(50):  # history 1: only the newest revision of each key is left
            before = [seq for seq, record in model.live.items() if record.subject in keys]
            model.publish([(key, b"", b"v") for key in keys])
            model.remove(before)
        model.stage(lake)
        compact(spark, lake, model)
        check(lake, model)
    assert len(rows(table)) == len(keys)
    history = spark.sql(f"DESCRIBE HISTORY delta.`{table}`").collect()
    writes = [row for row in history if row.operation == "WRITE"]
    deletes = [row.operationMetrics for row in history if row.operation == "DELETE"]
    assert [int(row.operationMetrics["numOutputRows"]) for row in writes] == [20, 20, 20], "dead rows never came"
    assert len(deletes) == 2
    assert all(int(metrics["numCopiedRows"]) == 0 for metrics in deletes)
