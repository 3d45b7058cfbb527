"""Tests of the data source's plan and offsets, without Spark."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, In, IsNull, LessThanOrEqual
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StringType, StructField, StructType

from lakestream.lake.errors import LakeError
from lakestream.lake.table.schema import END, TABLE_COLUMNS, table_schema
from lakestream_client.lake import view as views
from lakestream_client.lake.view import open_view
from lakestream_spark import datasource
from lakestream_spark.datasource import BadOption, Condition, PushingSource, StreamReplaced, pieces, read_piece
from tests.lake.model import StreamModel, flights
from tests.unit.lake.read.test_live import Table, expected

COLUMNS = [*TABLE_COLUMNS]


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    root = tmp_path / "lake"
    root.mkdir()
    return root


def source(root: Path, /, **options: str) -> PushingSource:
    return PushingSource({"lake": str(root), "stream": "ORDERS", "flush": "false", **options})


def read(found: list[Any], conditions: list[Condition] | None = None) -> dict[int, str]:
    rows: dict[int, str] = {}
    for piece in pickle.loads(pickle.dumps(found)):
        for batch in read_piece(piece, COLUMNS, conditions or []):
            assert batch.schema == table_schema(COLUMNS)
            for row in batch.to_pylist():
                assert row["seq"] not in rows
                rows[row["seq"]] = row["subject"]
    return rows


def made(tmp_path: Path, lake: Path) -> StreamModel:
    """Create a stream with 300 messages in its table, 120 in staged segments, and removals in both."""
    model = StreamModel(tmp_path / "log")
    table = Table(lake, model)
    for number in range(7):
        model.publish(flights(60))
        model.remove([seq for seq in model.live if seq % 50 == number])
        model.stage(lake)
        if number == 4:
            table.commit()
    model.purge(20)
    model.stage(lake)
    return model


def test_pieces_together_are_the_view(tmp_path: Path, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = made(tmp_path, lake)
    monkeypatch.setattr(views, "RANGE_ROWS", 25)
    monkeypatch.setattr(datasource, "TASK_RANGES", 3)
    monkeypatch.setattr(datasource, "TASK_BYTES", 1)
    whole = {seq: row[0] for seq, row in expected(model).items()}
    view = open_view(str(lake), "ORDERS", flush=False)
    found = pieces(view, 1, END)
    assert len([piece for piece in found if piece.ranges]) > 3
    assert len([piece for piece in found if piece.view.parts]) == 2
    assert read(list(found)) == whole
    for first, last in (
        (1, 10),
        (250, 333),
        (301, 301),
        (299, 302),
        (400, END),
        (421, END),
        (390, 350),
    ):
        some = read(list(pieces(view, first, last)))
        assert some == {seq: subject for seq, subject in whole.items() if first <= seq <= last}
    assert read(list(pieces(view, 350, 310))) == {}, "conditions that exclude each other, within one segment"


def test_filters_narrow_what_is_read(tmp_path: Path, lake: Path) -> None:
    model = made(tmp_path, lake)
    whole = {seq: row[0] for seq, row in expected(model).items()}
    asked: list[Filter] = [
        EqualTo(("subject",), "flights.7"),
        GreaterThan(("seq",), 200),
        LessThanOrEqual(("seq",), 380),
        IsNull(("headers",)),
        In(("subject",), ("flights.7", "it's")),
    ]
    reader: Any = source(lake).reader(_schema())
    assert list(reader.pushFilters(asked)) == asked, "Spark checks them again"
    found = list(reader.partitions())
    rows = {row["seq"] for piece in found for batch in reader.read(piece) for row in batch.to_pylist()}
    assert rows == {seq for seq, subject in whole.items() if subject == "flights.7" and 200 < seq <= 380}
    assert list(reader.read(None)) == [], "Spark's way of saying that there is no piece"


def _schema() -> StructType:
    """Return the part of a schema that a reader uses; parsing DDL would need a JVM."""
    return StructType([StructField(name, StringType()) for name in COLUMNS])


def test_offsets_are_sequences(tmp_path: Path, lake: Path) -> None:
    model = made(tmp_path, lake)
    reader = source(lake).streamReader(_schema())
    start = reader.initialOffset()
    assert start == {"seq": 0, "uid": "UID1"}
    assert reader.latestOffset(start, ReadAllAvailable()) == {"seq": 420, "uid": "UID1"}
    step = reader.latestOffset(start, ReadMaxRows(50))
    assert step["seq"] == 19 + 50, "what was purged makes for no empty batch"
    second = reader.latestOffset(step, ReadMaxRows(50))
    got = read(list(reader.partitions(start, step))) | read(list(reader.partitions(step, second)))
    assert got == {seq: row[0] for seq, row in expected(model).items() if seq <= 119}
    assert reader.partitions(second, second) == []
    reader.prepareForTriggerAvailableNow()
    model.publish(flights(10))
    model.stage(lake)
    assert reader.latestOffset(second, ReadAllAvailable())["seq"] == 420, "what came later is not of this run"
    assert source(lake, start_seq="latest").streamReader(_schema()).initialOffset()["seq"] == 430
    assert source(lake, start_seq="31").streamReader(_schema()).initialOffset()["seq"] == 30
    with pytest.raises(StreamReplaced, match="new checkpoint"):
        reader.latestOffset({"seq": 5, "uid": "OTHER"}, ReadAllAvailable())
    with pytest.raises(LakeError, match="older copy"):
        reader.partitions(second, {"seq": 1_000, "uid": "UID1"})


@pytest.mark.parametrize(
    "options",
    [{"start_seq": "x"}, {"end_seq": "-1"}, {"flush": "maybe"}, {"timeout": "0"}, {"stream": ""}, {"lake": ""}],
)
def test_options_that_mean_nothing(lake: Path, options: dict[str, str]) -> None:
    with pytest.raises(BadOption, match=next(iter(options))):
        source(lake, **options).streamReader(_schema())
