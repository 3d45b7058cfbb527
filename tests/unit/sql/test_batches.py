"""Tests of results in batches."""

from __future__ import annotations

import json
from typing import Literal

import duckdb
import pyarrow as pa
import pytest

from lakestream_sql.batches import CountedRows, RowTooLarge, batches, schema_of
from lakestream_sql.session import Result, SqlError

pytestmark = pytest.mark.unit

FORMS: tuple[Literal["json", "arrow"], ...] = ("json", "arrow")


def result(query: str) -> Result:
    """Return the result of a query of DuckDB."""
    return Result(duckdb.connect().execute(query))


@pytest.mark.parametrize("most", [0, 1, 4096, 9999, 10_000])
def test_all_rows_are_in_batches_of_limited_size(most: int) -> None:
    for form in FORMS:
        counted = CountedRows(most)
        found = list(batches(result("SELECT range AS a FROM range(10000)"), form, counted, 4000, 9000))
        whole = b"".join(found)
        rows = (
            [json.loads(line)["a"] for line in whole.splitlines()]
            if form == "json"
            else pa.ipc.open_stream(whole).read_all().column("a").to_pylist()
        )
        assert rows == list(range(most or 10_000))
        assert (counted.rows, counted.truncated) == (len(rows), 0 < most < 10_000)
        assert max(map(len, found)) <= 9000
        assert len(found) > len(rows) * 8 // 9000


def test_a_row_that_is_too_large_is_an_error() -> None:
    for form in FORMS:
        with pytest.raises(RowTooLarge):
            list(batches(result("SELECT repeat('x', 10000) AS a"), form, CountedRows(0), 4000, 9000))


def test_columns_of_one_name_are_told_apart() -> None:
    (found,) = batches(result("SELECT 1 AS a, 2 AS a"), "json", CountedRows(0), 4000, 9000)
    assert json.loads(found) == {"a": 1, "a_2": 2}


def test_a_stream_has_no_dictionaries() -> None:
    query = "SELECT 'x'::ENUM('x', 'y') AS a"
    found = pa.ipc.open_stream(b"".join(batches(result(query), "arrow", CountedRows(0), 4000, 9000))).read_all()
    assert found.to_pylist() == [{"a": "x"}]
    assert pa.ipc.read_schema(pa.py_buffer(schema_of(result(query)))) == found.schema


@pytest.mark.parametrize(
    "value", ["'101'::BIT", "340282366920938463463374607431768211455::UHUGEINT", "TIMETZ '12:00:00+02'"]
)
def test_a_value_that_arrow_would_change_is_refused(value: str) -> None:
    for query in (f"SELECT {value} AS a", f"SELECT [{value}] AS a"):
        with pytest.raises(SqlError, match=r"column a has the type .*: cast it to VARCHAR"):
            list(batches(result(query), "arrow", CountedRows(0), 4000, 9000))
        (found,) = batches(result(query), "json", CountedRows(0), 4000, 9000)
        assert "-1" not in found.decode()
