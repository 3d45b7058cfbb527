"""Tests of views with typed columns: DuckDB and Spark agree on every row, and each row is in one of the two views."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lakestream.lake.staging import scan
from lakestream.lake.table import json_schema
from lakestream.lake.table.json_schema import BadJsonSchema
from lakestream.lake.table.schema import doubled
from lakestream_spark import functions as spark_functions
from lakestream_sql import typed
from lakestream_sql.connection import add_functions
from lakestream_sql.session import Session, SqlError
from tests.lake.compacting import compact as compact_stream
from tests.lake.model import StreamModel

pytestmark = pytest.mark.lake

DDL = (
    "price DOUBLE, qty INT, big BIGINT, small TINYINT, flag BOOLEAN, exact DECIMAL(7, 2), single FLOAT, name STRING, "
    "`größe in m` DOUBLE, day DATE, at TIMESTAMP, meta STRUCT<a: STRING, deep: STRUCT<n: INT>>, tags ARRAY<STRING>, "
    "marks ARRAY<STRUCT<x: INT, y: DOUBLE>>, extra MAP<STRING, DECIMAL(5, 1)>"
)
EDGES = [
    b"",
    b"{}",
    b"null",
    b"[]",
    b"no json",
    b'{"price":1',
    b'{"price":NaN}',
    b'{"price":Infinity}',
    b'{"price":1e400}',
    b'{"price":-0.0,"qty":-0}',
    b'{"price":5e-324}',
    b'{"price":0.1000000000000000055511151231257827}',
    b'{"price":' + b"9" * 300 + b"}",
    b'{"price":1,"price":2}',
    b'{"price":"x","price":2}',
    b'{"qty":1.0}',
    b'{"qty":1e2}',
    b'{"qty":2147483648}',
    b'{"big":9223372036854775807,"small":-128}',
    b'{"big":9223372036854775808}',
    b'{"small":128}',
    b'{"flag":true}',
    b'{"flag":"true"}',
    b'{"exact":99999.99}',
    b'{"exact":"1.50"}',
    b'{"exact":100000}',
    b'{"exact":1.005}',
    b'{"single":3.4028234663852886e38}',
    b'{"single":0.1}',
    b'{"name":"\\ud83d\\ude00 \\u0000 \\" \\\\"}',
    b'{"name":"\\ud800"}',
    b'{"name":"\xff"}',
    b'{"name":"tab\t"}',
    '{"größe in m":1.8}'.encode(),
    b'{"gr\\u00f6\\u00dfe in m":1.9}',
    b'{"day":"1582-10-10","at":"1582-10-10T00:00:00Z"}',
    b'{"day":"0001-01-01","at":"9999-12-31T23:59:59.999999Z"}',
    b'{"at":"2024-03-31T02:30:00+01:00"}',
    b'{"at":"2024-03-31 02:30:00.1234567Z"}',
    b'{"meta":{"a":"b","deep":{"n":1}}}',
    b'{"meta":{},"tags":[],"marks":[],"extra":{}}',
    b'{"meta":null,"tags":[null,"x"],"marks":[null,{"x":1},{}],"extra":{"":1,"b":null}}',
    b'{"meta":[]}',
    b'{"marks":[{"x":1},{"x":"1"}]}',
    b'{"PRICE":"x"}',
    b' {"price":1} \r\n\t',
    b'{"price":1} {}',
    b'{"price":1,}',
    b"{'price':1}",
    b"\xef\xbb\xbf{}",
    b'{"x":' * 300 + b"1" + b"}" * 300,
    bytes(range(256)),
]


class Engines:
    """The view of given payloads, by each engine."""

    def __init__(self, spark: Any, ddl: str) -> None:
        self.schema = json_schema.parse(ddl)
        self._spark = spark
        self._duckdb = duckdb.connect()
        self._duckdb.execute("SET TimeZone = 'UTC'")
        add_functions(self._duckdb, typed.duckdb_functions(self.schema))
        spark_functions.prepare_spark(spark, self.schema)

    def by_duckdb(self, payloads: list[bytes]) -> list[dict[str, Any]]:
        rows = pa.table({"seq": pa.array(range(len(payloads)), pa.int64()), "data": pa.array(payloads, pa.binary())})
        self._duckdb.register("payloads", rows)
        select = typed.view_sql(self.schema, "payloads", rows.column_names, doubled)
        found = self._duckdb.execute(f"SELECT * FROM ({select}) ORDER BY seq")
        return found.to_arrow_table().to_pylist()

    def by_spark(self, payloads: list[bytes]) -> list[dict[str, Any]]:
        rows = [(number, bytearray(payload)) for number, payload in enumerate(payloads)]
        self._spark.createDataFrame(rows, "seq bigint, data binary").createOrReplaceTempView("payloads")
        select = typed.view_sql(self.schema, "payloads", ["seq", "data"])
        return self._spark.sql(f"SELECT * FROM ({select}) ORDER BY seq").toArrow().to_pylist()

    def plain(self, payloads: list[bytes]) -> list[dict[str, Any]]:
        found = self.schema.values(pa.array(payloads, pa.binary())).to_pylist()
        return [{"seq": number, **row} for number, row in enumerate(found) if row is not None]


@pytest.fixture(scope="module")
def engines(spark: Any) -> Engines:
    return Engines(spark, DDL)


numbers = st.one_of(
    st.integers(),
    st.integers(-(2**65), 2**65),
    st.floats(allow_nan=True, allow_infinity=True),
    st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-200_000, max_value=200_000).map(float),
)
strings = st.one_of(st.text(max_size=8), st.dates().map(str), st.datetimes().map(lambda at: at.isoformat() + "Z"))
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, strings),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=6,
)
fitting = st.fixed_dictionaries(
    {},
    optional={
        "price": numbers,
        "qty": st.integers(-(2**31), 2**31 - 1),
        "flag": st.booleans() | st.none(),
        "name": st.text(max_size=8),
        "meta": st.fixed_dictionaries({}, optional={"a": st.text(max_size=3), "deep": st.just({"n": 1})}),
        "tags": st.lists(st.none() | st.text(max_size=3), max_size=3),
        "marks": st.lists(st.fixed_dictionaries({"x": st.integers(0, 9), "y": numbers}), max_size=3),
        "at": st.datetimes().map(lambda at: at.isoformat() + "Z"),
    },
)
columns = st.sampled_from([*json_schema.parse(DDL).names, "other"])
objects = st.one_of(fitting, st.dictionaries(columns, anything, max_size=4))
encoded = st.builds(lambda value, escaped: json.dumps(value, ensure_ascii=escaped), objects, st.booleans()).map(
    lambda text: text.encode("utf-8", "surrogatepass")
)
payloads_of = st.one_of(encoded, encoded.map(lambda raw: raw[: len(raw) * 2 // 3]), st.binary(max_size=20))


@settings(max_examples=4, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@example(payloads=EDGES)
@given(payloads=st.lists(payloads_of, min_size=100, max_size=150))
def test_duckdb_and_spark_agree_on_any_payload(engines: Engines, payloads: list[bytes]) -> None:
    wanted = engines.plain(payloads)
    assert engines.by_duckdb(payloads) == wanted
    assert engines.by_spark(payloads) == wanted


def test_what_the_edges_are(engines: Engines) -> None:
    fits = {EDGES[row["seq"]] for row in engines.plain(EDGES)}
    assert b'{"price":1,"price":2}' in fits
    assert '{"größe in m":1.8}'.encode() in fits
    assert b'{"qty":1.0}' not in fits
    assert b'{"price":NaN}' not in fits
    assert 20 < len(fits) < len(EDGES) - 20


class Stream:
    """Compacted stream with a schema."""

    def __init__(self, spark: Any, base: Path, name: str = "ORDERS") -> None:
        self.spark, self.lake = spark, base / "lake of $X #1"
        self.model = StreamModel(base / name, name)

    def stage(self, schema: str | None, payloads: list[bytes], **metadata: str) -> None:
        self.model.configure({**({} if schema is None else {"lakestream.json_schema": schema}), **metadata})
        self.model.operation()
        block = b"NATS/1.0\r\nN: 1\r\n\r\n"
        self.model.publish([(b"orders.%d" % (n % 3), block, each) for n, each in enumerate(payloads)])
        self.model.stage(self.lake)

    def compact(self, schema: str | None, payloads: list[bytes], **metadata: str) -> None:
        self.stage(schema, payloads, **metadata)
        [stream] = [
            each for each in scan.Scanner(str(self.lake)).scan() if each.identity.name == self.model.identity.name
        ]
        compact_stream(self.spark, str(self.lake), stream)

    def by_duckdb(self, name: str) -> list[dict[str, Any]]:
        """Return a view's rows from `lakestream sql`."""
        with Session(self.lake, committed=True) as session:
            found = session.query(f"SELECT * FROM delta.`streams/{name}` ORDER BY seq")
            return [dict(zip(found.columns, row, strict=True)) for row in found]

    def by_spark(self, name: str) -> list[dict[str, Any]]:
        """Return a view's rows from Spark in DuckDB's form: a map as a dict."""
        rows = self.spark.sql(f"SELECT * FROM {name} ORDER BY seq").toArrow().to_pylist()
        return [{**row, "headers": dict(row["headers"])} if "headers" in row else row for row in rows]


@pytest.fixture
def stream(spark: Any, tmp_path: Path) -> Iterator[Stream]:
    yield Stream(spark, tmp_path)
    for name in ("ORDERS_json", "ORDERS_json_misfits"):
        spark.catalog.dropTempView(name)


def test_views_follow_the_table_and_its_schema(spark: Any, stream: Stream) -> None:
    good = [b'{"price":1.5,"qty":2}', b"{}", b'{"qty":3,"more":[]}']
    bad = [b"no json", b'{"qty":"many"}']
    stream.compact("price DOUBLE, qty INT", good + bad)
    assert spark_functions.register_views(spark, str(stream.lake)) == ["ORDERS_json", "ORDERS_json_misfits"]
    rows = stream.by_spark("ORDERS_json")
    assert [(row["seq"], row["price"], row["qty"]) for row in rows] == [(1, 1.5, 2), (2, None, None), (3, None, 3)]
    assert list(rows[0]) == ["subject", "seq", "time", "time_ns", "headers", "price", "qty"]
    assert stream.by_duckdb("ORDERS_json") == rows
    misfits = stream.by_spark("ORDERS_json_misfits")
    assert [(row["seq"], row["data"]) for row in misfits] == [(4, b"no json"), (5, b'{"qty":"many"}')]
    assert "$.qty" in misfits[1]["reason"]
    assert stream.by_duckdb("ORDERS_json_misfits") == misfits
    # A deleted message leaves the view and a new one appears, without recreating the view.
    stream.model.remove([1], erase=True)
    stream.compact("price DOUBLE, qty INT", [b'{"qty":9}'])
    assert [row["seq"] for row in stream.by_spark("ORDERS_json")] == [2, 3, 6]
    assert stream.by_spark("ORDERS_json") == stream.by_duckdb("ORDERS_json")
    # With another schema other rows match it.
    stream.compact("qty STRING", [], **{"lakestream.retention": "archive"})
    assert spark_functions.register_views(spark, str(stream.lake)) == ["ORDERS_json", "ORDERS_json_misfits"]
    assert [(row["seq"], row["qty"]) for row in stream.by_spark("ORDERS_json")] == [(2, None), (5, "many")]
    assert "removed_time_ns" in stream.by_spark("ORDERS_json")[0]
    assert stream.by_spark("ORDERS_json") == stream.by_duckdb("ORDERS_json")


def test_views_are_there_before_the_table_is(spark: Any, stream: Stream) -> None:
    lake = str(stream.lake)
    stream.stage("price DOUBLE", [b'{"price":1.5}', b"no json"])
    assert spark_functions.register_views(spark, lake) == ["ORDERS_json", "ORDERS_json_misfits"]
    assert [(row["seq"], row["price"]) for row in stream.by_spark("ORDERS_json")] == [(1, 1.5)]
    assert [row["seq"] for row in stream.by_spark("ORDERS_json_misfits")] == [2]
    stream.compact("price DOUBLE", [b'{"price":2.5}'])
    assert [row["price"] for row in stream.by_spark("ORDERS_json")] == [1.5, 2.5], "the same view"
    # The newest metadata of the stream applies before its table's next commit.
    stream.stage("price STRING", [b'{"price":"none"}'])
    found = typed.typed_of(f"{lake}/streams/ORDERS")
    assert found is not None
    assert found.text == "price STRING"


def test_streams_without_a_schema_or_with_a_wrong_one_have_no_views(spark: Any, stream: Stream) -> None:
    lake = str(stream.lake)
    assert typed.typed_of(f"{lake}/streams/ORDERS") is None
    stream.compact(None, [b"{}"])
    with pytest.raises(SqlError):
        stream.by_duckdb("ORDERS_json")
    table = f"delta.`{stream.model.table(stream.lake)}`"
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('lakestream.json_schema' = 'seq INT')")
    assert spark_functions.register_views(spark, lake) == []
    found = typed.typed_of(f"{lake}/streams/ORDERS")
    assert found is not None
    with pytest.raises(BadJsonSchema, match="'seq'"):
        json_schema.parse(found.text)
