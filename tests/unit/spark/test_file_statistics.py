"""Tests of the statistics of typed columns: bounds hold for every value, and readers find every row by them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakestream.lake.table import typed_columns
from lakestream.lake.table.schema import TABLE_COLUMNS, Layout, message_schema, table_schema
from lakestream.schemas.columns import (
    BOOLEAN,
    BYTES,
    DATE,
    INSTANT,
    INTEGER,
    NUMBER,
    STRING,
    UINT64,
    Field,
    List,
    RecordType,
    Scalar,
    Type,
    arrow_type,
)
from lakestream_spark.write.data_files import DataFiles, NewFile
from lakestream_spark.write.file_statistics import MOST, TEXT_CHARS, indexed
from lakestream_spark.write.widening import widened
from lakestream_sql.connection import connect

pytestmark = pytest.mark.unit

BUCKET = Layout("bucket", bounds=())
INSTANTS = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)).map(lambda each: each.replace(tzinfo=UTC))
TEXTS = st.text(max_size=4) | st.text(st.sampled_from(["a", "é", MOST, "\0"]), min_size=30, max_size=70)
VALUES: dict[str, tuple[Type, st.SearchStrategy[Any]]] = {
    "n": (INTEGER, st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-3, 3)),
    "x": (NUMBER, st.floats() | st.sampled_from([0.0, -0.0, 1e308])),
    "text": (STRING, TEXTS),
    "day": (DATE, st.dates()),
    "at": (INSTANT, INSTANTS),
    "price": (Scalar("decimal", 15, 3), st.decimals(-(10**11), 10**11, places=3)),
    "big": (UINT64, st.integers(0, (1 << 64) - 1).map(Decimal)),
    "flag": (BOOLEAN, st.booleans()),
    "raw": (BYTES, st.binary(max_size=5)),
    "tags": (List(STRING), st.lists(st.text(max_size=3), max_size=2)),
}
INNER = ("n", "text", "at")
TABLE = RecordType(
    (
        *(Field(name, name, kind) for name, (kind, _) in VALUES.items()),
        Field("in", "in", RecordType(tuple(Field(name, name, VALUES[name][0]) for name in INNER))),
    )
)
ORDERED = ("n", "x", "text", "day", "at", "price")
Row = dict[str, Any]


@st.composite
def rows(draw: st.DrawFn) -> Row:
    """Draw the typed columns of a row."""
    found = {name: draw(st.none() | values) for name, (_, values) in VALUES.items()}
    return found | {"in": draw(st.none() | st.fixed_dictionaries({n: st.none() | VALUES[n][1] for n in INNER}))}


def written(table: Path, parts: list[list[Row]], paths: Any, spool: int = 1 << 25, first: int = 1) -> list[NewFile]:
    """Write rows as messages with typed columns: a batch for each part."""
    batches, seq = [], first - 1
    for part in parts:
        count = len(part)
        base: dict[str, Any] = {"subject": ["s"] * count, "seq": range(seq + 1, seq + count + 1)}
        base |= {"time_ns": [1_700_000_000_000_000_700 + seq] * count, "data": [b""] * count}
        seq += count
        columns = {f.name: pa.array(base.get(f.name, [None] * count), f.type) for f in message_schema()}
        typed = {f.column: pa.array([row[f.name] for row in part], arrow_type(f.type)) for f in TABLE.fields}
        batches.append(pa.RecordBatch.from_pydict(columns | {"schema": pa.array(["s@1"] * count)} | typed))
    return DataFiles(str(table), BUCKET, random=False, spool_bytes=spool, indexed=paths).write(batches)


def separate(table: Path, rows: list[Row]) -> Iterator[NewFile]:
    """Write a file for each row."""
    for number, row in enumerate(rows, 1):
        yield from written(table, [[row]], indexed(TABLE, 0, -1), first=number)


def committed(table: Path, files: list[NewFile]) -> None:
    """Make a Delta table of files."""
    columns = [*TABLE_COLUMNS, "bucket"]
    plain = pa.schema([*table_schema(columns), pa.field("schema", pa.string())])
    empty = DeltaTable.create(str(table), plain, partition_by=["bucket"])
    schema = widened(empty.schema().to_json(), typed_columns.delta_type(TABLE)["fields"])
    log = table / "_delta_log" / f"{0:020}.json"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        if "metaData" in line:
            line["metaData"]["schemaString"] = schema
    adds = [{"add": msgspec.to_builtins(file)} for file in files]
    log.write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in [*lines, *adds]) + "\n")


def bound(stats: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """Return a value of statistics; None for none."""
    for name in path:
        stats = stats.get(name, {})
    return None if stats == {} else stats


def value_of(row: Row, path: tuple[str, ...]) -> Any:
    for name in path:
        row = (row or {}).get(name)  # type: ignore[assignment]
    return row


def parsed(text: Any, like: Any) -> Any:
    if isinstance(like, datetime):
        return datetime.fromisoformat(text.replace("Z", "+00:00"))
    if isinstance(like, date):
        return date.fromisoformat(text)
    return Decimal(str(text)) if isinstance(like, Decimal) else text


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.lists(st.lists(rows(), min_size=1, max_size=6), min_size=1, max_size=3),
    spool=st.sampled_from([1, 1 << 25]),
)
def test_bounds_hold_for_every_value(
    parts: list[list[Row]], spool: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    table = tmp_path_factory.mktemp("table")
    paths = indexed(TABLE, 0, -1)
    assert ("in", "text") in paths
    everything = [row for part in parts for row in part]
    for file in written(table, parts, paths, spool):
        stats = msgspec.json.decode(file.stats)
        for path in paths:
            values = [value_of(row, path) for row in everything]
            assert bound(stats["nullCount"], path) == values.count(None), path
            values = [value for value in values if value is not None]
            least, most = bound(stats["minValues"], path), bound(stats["maxValues"], path)
            odd = any(isinstance(value, float) and (value != value or abs(value) == float("inf")) for value in values)
            if not values or path[-1] not in ORDERED or odd:
                assert (least, most) == (None, None), path
                continue
            assert None not in (least, most), path
            assert all(parsed(least, value) <= value <= parsed(most, value) for value in values), (path, least, most)
            if path == ("n",):
                assert (least, most) == (min(values), max(values))
            if path[-1] == "text" and max(map(len, values)) <= TEXT_CHARS:
                assert (least, most) == (min(values), max(values))
            if path[-1] == "at":
                assert parsed(most, values[0]) - max(values) < timedelta(milliseconds=1)


EDGES: list[Row] = [
    {
        "n": 0,
        "x": -0.0,
        "text": "",
        "day": date(1, 1, 1),
        "at": datetime(1, 1, 1, tzinfo=UTC),
        "price": Decimal("0.001"),
    },
    {"n": -(1 << 63), "x": 0.0, "text": "a" * 32, "price": Decimal("-999999999999.999")},
    {"n": (1 << 63) - 1, "x": 1e308, "text": "a" * 33, "price": Decimal("999999999999.999")},
    {"n": (1 << 53) + 1, "x": 0.1, "text": "é" * 32 + MOST, "day": date(9999, 12, 30)},
    {"n": 1, "x": 1 / 3, "text": "é" * 31 + MOST * 3 + "x", "at": datetime(2026, 5, 1, 12, 0, 0, 999_999, tzinfo=UTC)},
    {"x": float("inf"), "text": MOST * 40, "at": datetime(2500, 1, 1, 0, 0, 0, 1, tzinfo=UTC)},
    {"x": float("nan"), "day": date(1969, 12, 31), "at": datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)},
]
"""Rows of which each is a file of its own."""


def rows_at_edges() -> list[Row]:
    none = dict.fromkeys((*VALUES, "in"))
    return [none | row | {"in": {name: row.get(name) for name in INNER}} for row in EDGES]


def conditions(row: Row) -> Iterator[tuple[str, str, Any]]:
    """Yield conditions that a row fulfils, for DuckDB, DataFusion and Polars."""
    for path in [*((name,) for name in ORDERED), *(("in", name) for name in INNER)]:
        value = value_of(row, path)
        if value is None or value != value:
            continue
        name = f'"{path[0]}"' if len(path) == 1 else f"\"in\"['{path[1]}']"
        column = polars.col(path[0]) if len(path) == 1 else polars.col(path[0]).struct.field(path[1])
        literal = polars.lit(value)
        if isinstance(value, str):
            by_duckdb = by_datafusion = f"'{value}'"
        elif isinstance(value, datetime):
            us = (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
            by_duckdb = f"make_timestamptz({us})"
            by_datafusion = f"""arrow_cast({us}, 'Timestamp(Microsecond, Some("UTC"))')"""
        elif isinstance(value, date):
            by_duckdb = by_datafusion = f"DATE '{value.isoformat()}'"
        elif isinstance(value, Decimal):
            literal = polars.lit(value, polars.Decimal(15, 3))
            by_duckdb = by_datafusion = f"CAST('{value}' AS DECIMAL(15, 3))"
        else:
            by_duckdb = by_datafusion = f"CAST('{value}' AS {'BIGINT' if isinstance(value, int) else 'DOUBLE'})"
        yield f"{name} = {by_duckdb}", f"{name} = {by_datafusion}", column == literal
        yield f"{name} <= {by_duckdb}", f"{name} <= {by_datafusion}", column <= literal
        yield f"{name} >= {by_duckdb}", f"{name} >= {by_datafusion}", column >= literal


def test_readers_find_every_row_by_them(tmp_path: Path) -> None:
    found = rows_at_edges()
    committed(tmp_path, list(separate(tmp_path, found)))
    duckdb, delta = connect(str(tmp_path), itself=True)[0], QueryBuilder().register("t", DeltaTable(str(tmp_path)))
    scan = polars.scan_delta(str(tmp_path))
    for number, row in enumerate(found, 1):
        for by_duckdb, by_datafusion, by_polars in conditions(row):
            query = f"SELECT seq FROM delta_scan('{tmp_path}') WHERE {by_duckdb}"
            assert (number,) in duckdb.execute(query).fetchall(), by_duckdb
            answer = pa.table(delta.execute(f"SELECT seq FROM t WHERE {by_datafusion}").read_all())
            assert number in answer.column("seq").to_pylist(), by_datafusion
            assert number in scan.filter(by_polars).select("seq").collect()["seq"].to_list(), str(by_polars)
