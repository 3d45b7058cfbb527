"""Measure the compaction of payloads into typed columns, beside other ways to get them, and queries of them.

    python -m tests.bench.bench_typed [--messages 400000] [--kinds untyped,keep,…]

Orders of about 275 bytes of JSON with ten fields (tests/bench/bench_schemas.py), in segments of 16 MiB, with 10
subjects. Each table in a process of its own, with the compactor as jobs/compact.py runs it (Spark with local[2], a heap
of 512 MiB), warmed up on other streams: without a schema, with one, with `lakestream.data: drop-when-typed`, with an
upsert table beside it (`lakestream.table: latest($.email)`, up to a million keys), with three lines in each order, and
with the same orders in Avro and in Protobuf. For comparison the same orders as lines of JSON: `spark.read.json` with
the schema of the columns and a write to Delta, in the same Spark; and a loop of pyarrow's JSON reader and Parquet
writer over blocks of 10,000 lines, on one core, which commits nothing.

Prints messages a second from staged to committed, the CPU time it took, and bytes per message in the table; and the
seconds of a sum by country in DuckDB, of typed columns and of the payloads' JSON. The last line has the bytes per
message of the same orders in the store of nats-server. Needs Java 17 or newer.

Figures: the table, docs/typed-tables.md#cost
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.json as pa_json
import pyarrow.parquet as pq

from lakestream.lake.storage import lake as lakes
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table import schema_files as schemas
from lakestream.schemas.codec import codec_of
from lakestream.schemas.columns import arrow_schema, ddl
from lakestream.schemas.schema import Schema
from lakestream_schemas.formats import prepared
from lakestream_spark.write.compactor import Compactor
from lakestream_spark.write.lake_compaction import BatchReport
from lakestream_sql.session import extension_path
from tests.bench.bench_compaction import stage_again
from tests.bench.bench_schemas import AVRO, JSON_SCHEMA, PROTO, compact, of_avro, order, protobuf_writer
from tests.bench.lake_streams import Publisher, chunks, cpu_seconds, table_files
from tests.servers import Kind, Server
from tests.wire import Wire, pub

ORDERS = {"lakestream.schema": "orders@1"}
KINDS: dict[str, dict[str, str]] = {
    "untyped": {},
    "keep": ORDERS,
    "drop": ORDERS | {"lakestream.data": "drop-when-typed"},
    "latest": ORDERS | {"lakestream.table": "latest($.email)"},
    "nested": ORDERS,
    "avro": ORDERS,
    "protobuf": ORDERS,
    "spark": {},
    "pyarrow": {},
}
LINE = {"type": "object", "properties": {"sku": {"type": "string"}, "n": {"type": "integer"}, "at": {"type": "number"}}}
NESTED: dict[str, Any] = JSON_SCHEMA | {
    "properties": JSON_SCHEMA["properties"] | {"lines": {"type": "array", "items": LINE}}
}
FILE_LINES = 50_000
BLOCK = 10_000
"""Lines of JSON that pyarrow reads together."""
WARM_MESSAGES = 100_000
WARM_ROUNDS = 2
SUBJECTS = 10
STORED = 100_000
"""Orders that nats-server stores."""
TYPED_SUM = "SELECT country, sum(price) FROM t GROUP BY country ORDER BY country"
JSON_SUM = """SELECT j->>'country', sum((j->>'price')::DOUBLE) FROM (SELECT decode(data)::JSON AS j FROM t)
GROUP BY 1 ORDER BY 1"""


def schema_of(kind: str) -> Schema:
    """Return the schema of a kind's payloads."""
    if kind in ("avro", "protobuf"):
        return prepared(Schema("orders", 1, kind, AVRO if kind == "avro" else PROTO))
    return Schema("orders", 1, "json", json.dumps(NESTED if kind == "nested" else JSON_SCHEMA))


def payloads(kind: str) -> Callable[[int, int], list[bytes]]:
    """Return the function that returns the payloads of `count` orders from number `first` on."""
    write = protobuf_writer(schema_of(kind)) if kind == "protobuf" else of_avro if kind == "avro" else compact

    def orders(first: int, count: int) -> list[bytes]:
        chance = random.Random(first)
        found = [order(chance) for _ in range(count)]
        for each in found if kind == "nested" else ():
            each["lines"] = [{"sku": f"sku-{chance.randrange(999)}", "n": n, "at": n / 4} for n in range(3)]
        return list(map(write, found))

    return orders


def publisher(work: Path, lake: Path, name: str, kind: str) -> Publisher:
    """Return a stream with a kind's metadata and payloads."""
    found = Publisher(work, lake, name, SUBJECTS, payloads(kind))
    metadata = KINDS[kind]
    config = msgspec.Raw(msgspec.json.encode({"name": name, "metadata": metadata}))
    found.staged.identity = msgspec.structs.replace(found.staged.identity, config=config)
    return found


def measure(messages: int, kind: str) -> dict[str, Any]:
    """Measure all figures of one table."""
    os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parents[2] / "spark_conf" / "local"))
    from lakestream_spark import session as sessions

    with tempfile.TemporaryDirectory() as scratch:
        work, lake = Path(scratch) / "work", Path(scratch) / "lake"
        lakes.require(str(lake), create=True)
        schemas.write_schema(open_storage(str(lake)), "$G", schema_of(kind))
        backlog = publisher(work, Path(scratch) / "later", "MEASURED", kind).publish(messages)
        reports: list[BatchReport] = []
        spark = sessions.session("typed compaction benchmark", lake=str(lake))
        try:
            compactor = Compactor(spark, str(lake), report=reports.append)
            for number in range(WARM_ROUNDS):
                publisher(work, lake, f"WARM{number}", kind).publish(WARM_MESSAGES)
                compactor.once()
            reports.clear()
            stage_again(backlog, lake)
            spent = cpu_seconds()
            report = compactor.once()
            spent = cpu_seconds() - spent
            assert not report.failures, report.failures
            compactor.stop()
        finally:
            spark.stop()
        rows, spent_s = sum(each.rows for each in reports), sum(each.seconds for each in reports)
        assert rows == messages, reports
        table = paths.table(str(lake), "MEASURED")
        found = {"rate": rows / spent_s, "cpu": spent, "us": spent / rows * 1e6, "table": table_files(table)[1] / rows}
        seconds, sums = query_seconds(table, TYPED_SUM if KINDS[kind] else JSON_SUM)
        assert len(sums) == 3, sums
        return found | {"sum": seconds}


def measure_other(messages: int, kind: str) -> dict[str, Any]:
    """Measure another way to get the columns from lines of JSON."""
    schema = arrow_schema(codec_of(schema_of(kind)).record)
    with tempfile.TemporaryDirectory() as scratch:
        for name, count in (("warm", WARM_MESSAGES), ("lines", messages)):
            (Path(scratch) / name).mkdir()
            for first, size in chunks(count, FILE_LINES):
                (Path(scratch) / name / f"{first}.json").write_bytes(b"\n".join(payloads(kind)(first, size)))
        convert = by_spark(scratch) if kind == "spark" else partial(by_pyarrow, schema)
        for _ in range(WARM_ROUNDS):
            convert(f"{scratch}/warm", f"{scratch}/warm{time.time_ns()}")
        spent, began = cpu_seconds(), time.perf_counter()
        convert(f"{scratch}/lines", f"{scratch}/table")
        spent, seconds = cpu_seconds() - spent, time.perf_counter() - began
        size = sum(each.stat().st_size for each in Path(scratch, "table").glob("*.parquet")) / messages
        return {"rate": messages / seconds, "cpu": spent, "us": spent / messages * 1e6, "table": size}


def by_spark(scratch: str) -> Callable[[str, str], None]:
    """Return the function that reads a directory of JSON in Spark, and writes a Delta table."""
    from lakestream_spark import session as sessions

    os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parents[2] / "spark_conf" / "local"))
    lakes.require(f"{scratch}/lake", create=True)
    spark = sessions.session("JSON benchmark", lake=f"{scratch}/lake")
    columns = ", ".join(f"{each.column} {ddl(each.type)}" for each in codec_of(schema_of("spark")).record.fields)
    return lambda lines, table: spark.read.schema(columns).json(lines).write.format("delta").save(table)


def by_pyarrow(schema: pa.Schema, lines: str, table: str) -> None:
    """Read a directory of JSON in blocks, and write it to a Parquet file, on one core."""
    options = pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    reading = pa_json.ReadOptions(use_threads=False, block_size=1 << 26)
    os.mkdir(table)
    with pq.ParquetWriter(f"{table}/0.parquet", schema) as writer:
        for path in sorted(Path(lines).iterdir()):
            text = path.read_bytes().splitlines(keepends=True)
            for first, count in chunks(len(text), BLOCK):
                block = pa.py_buffer(b"".join(text[first : first + count]))
                writer.write_table(pa_json.read_json(block, reading, options))


def stored_bytes() -> float:
    """Return the bytes per message of orders in the store of a nats-server that was stopped."""
    with tempfile.TemporaryDirectory() as scratch:
        server = Server(Kind.REAL, Path(scratch) / "store")
        server.start()
        with Wire(server.address, {}, 60) as wire:
            wire.api("STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders.*"]})
            wire.send(
                b"".join(pub(f"orders.{at % SUBJECTS}", each) for at, each in enumerate(payloads("untyped")(0, STORED)))
            )
            wire.ping()
            while wire.api("STREAM.INFO.ORDERS")["state"]["messages"] < STORED:
                time.sleep(0.1)
        server.stop()
        blocks = Path(scratch).glob("store/jetstream/$G/streams/ORDERS/msgs/*.blk")
        return sum(each.stat().st_size for each in blocks) / STORED


def query_seconds(table: str, sql: str) -> tuple[float, list[tuple[Any, ...]]]:
    """Return the least of three runs of a query over the table `t` in DuckDB, in seconds, and its rows."""
    connection = duckdb.connect()
    connection.execute(f"LOAD '{extension_path()}'")
    connection.execute(f"CREATE VIEW t AS SELECT * FROM delta_scan('{table}')")
    times = []
    for _ in range(3):
        began = time.perf_counter()
        rows = connection.execute(sql).fetchall()
        times.append(time.perf_counter() - began)
    return min(times), rows


def main() -> None:
    """Measure each table in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=400_000)
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of {', '.join(KINDS)} (default: all)")
    parser.add_argument("--one", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        way = measure_other if options.one in ("spark", "pyarrow") else measure
        print(json.dumps(way(options.messages, options.one)))
        return
    print(
        f"{'':>8}{'msgs/s':>12}{'CPU s':>10}{'CPU us/msg':>12}{'B/msg table':>14}{'sum by country, s':>20}", flush=True
    )
    for kind in options.kinds.split(","):
        command = [sys.executable, "-m", "tests.bench.bench_typed", "--one", kind, "--messages", str(options.messages)]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        found = json.loads(printed.strip().splitlines()[-1])
        print(
            f"{kind:>8}{found['rate']:>12,.0f}{found['cpu']:>10.1f}{found['us']:>12.1f}{found['table']:>14.1f}"
            f"{found.get('sum', math.nan):>20.3f}",
            flush=True,
        )
    print(f"nats-server: {stored_bytes():.1f} bytes a message in its store")


if __name__ == "__main__":
    main()
