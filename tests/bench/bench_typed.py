"""Measure the compaction of JSON payloads into typed columns, and queries of them.

    python -m tests.bench.bench_typed [--messages 400000]

Orders of about 275 bytes with ten fields (tests/bench/bench_schemas.py), in segments of 16 MiB, with 10 subjects. Each
of three tables in a process of its own, with the compactor as jobs/compact.py runs it (Spark with local[2], a heap of
512 MiB), warmed up on other streams: without a schema, with one, and with `lakestream.data: drop-when-typed`. Prints
messages a second from staged to committed, the CPU time it took, and bytes per message in the table; and the seconds of
a sum by country in DuckDB, of typed columns and of the payloads' JSON. The last line has the bytes per message of the
same orders in the store of nats-server. Needs Java 17 or newer.

Figures: the table, docs/typed-tables.md#cost
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from lakestream.lake.storage import lake as lakes
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table import schema_files as schemas
from lakestream.schemas.schema import Schema
from lakestream_spark.write.compactor import Compactor
from lakestream_spark.write.lake_compaction import BatchReport
from lakestream_sql.session import extension_path
from tests.bench.bench_compaction import stage_again
from tests.bench.bench_schemas import JSON_SCHEMA, compact, order
from tests.bench.lake_streams import Publisher, cpu_seconds, table_files
from tests.servers import Kind, Server
from tests.wire import Wire, pub

KINDS: dict[str, dict[str, str]] = {
    "untyped": {},
    "keep": {"lakestream.schema": "orders@1"},
    "drop": {"lakestream.schema": "orders@1", "lakestream.data": "drop-when-typed"},
}
WARM_MESSAGES = 100_000
WARM_ROUNDS = 2
SUBJECTS = 10
STORED = 100_000
"""Orders that nats-server stores."""
TYPED_SUM = "SELECT country, sum(price) FROM t GROUP BY country ORDER BY country"
JSON_SUM = """SELECT j->>'country', sum((j->>'price')::DOUBLE) FROM (SELECT decode(data)::JSON AS j FROM t)
GROUP BY 1 ORDER BY 1"""


def orders(first: int, count: int) -> list[bytes]:
    """Return the payloads of `count` orders from number `first` on."""
    chance = random.Random(first)
    return [compact(order(chance)) for _ in range(count)]


def publisher(work: Path, lake: Path, name: str, metadata: dict[str, str]) -> Publisher:
    """Return a stream with this metadata."""
    found = Publisher(work, lake, name, SUBJECTS, orders)
    config = msgspec.Raw(msgspec.json.encode({"name": name, "metadata": metadata}))
    found.staged.identity = msgspec.structs.replace(found.staged.identity, config=config)
    return found


def measure(messages: int, kind: str) -> dict[str, Any]:
    """Measure all figures of one table."""
    os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parents[2] / "spark_conf" / "local"))
    from lakestream_spark import session as sessions

    metadata = KINDS[kind]
    with tempfile.TemporaryDirectory() as scratch:
        work, lake = Path(scratch) / "work", Path(scratch) / "lake"
        lakes.require(str(lake), create=True)
        schemas.write_schema(open_storage(str(lake)), "$G", Schema("orders", 1, "json", json.dumps(JSON_SCHEMA)))
        backlog = publisher(work, Path(scratch) / "later", "MEASURED", metadata).publish(messages)
        reports: list[BatchReport] = []
        spark = sessions.session("typed compaction benchmark", lake=str(lake))
        try:
            compactor = Compactor(spark, str(lake), report=reports.append)
            for number in range(WARM_ROUNDS):
                publisher(work, lake, f"WARM{number}", metadata).publish(WARM_MESSAGES)
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
        rows, seconds = sum(each.rows for each in reports), sum(each.seconds for each in reports)
        assert rows == messages, reports
        table = paths.table(str(lake), "MEASURED")
        found = {"rate": rows / seconds, "cpu": spent, "us": spent / rows * 1e6, "table": table_files(table)[1] / rows}
        return found | {"sum": query_seconds(table, TYPED_SUM if metadata else JSON_SUM)}


def stored_bytes() -> float:
    """Return the bytes per message of orders in the store of a nats-server that was stopped."""
    with tempfile.TemporaryDirectory() as scratch:
        server = Server(Kind.REAL, Path(scratch) / "store")
        server.start()
        with Wire(server.address, {}, 60) as wire:
            wire.api("STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders.*"]})
            wire.send(b"".join(pub(f"orders.{at % SUBJECTS}", each) for at, each in enumerate(orders(0, STORED))))
            wire.ping()
            while wire.api("STREAM.INFO.ORDERS")["state"]["messages"] < STORED:
                time.sleep(0.1)
        server.stop()
        blocks = Path(scratch).glob("store/jetstream/$G/streams/ORDERS/msgs/*.blk")
        return sum(each.stat().st_size for each in blocks) / STORED


def query_seconds(table: str, sql: str) -> float:
    """Return the least of three runs of a query over the table `t` in DuckDB."""
    connection = duckdb.connect()
    connection.execute(f"LOAD '{extension_path()}'")
    connection.execute(f"CREATE VIEW t AS SELECT * FROM delta_scan('{table}')")
    times = []
    for _ in range(3):
        began = time.perf_counter()
        assert len(connection.execute(sql).fetchall()) == 3
        times.append(time.perf_counter() - began)
    return min(times)


def main() -> None:
    """Measure each table in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=400_000)
    parser.add_argument("--one", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.messages, options.one)))
        return
    print(
        f"{'':>8}{'msgs/s':>12}{'CPU s':>10}{'CPU us/msg':>12}{'B/msg table':>14}{'sum by country, s':>20}", flush=True
    )
    for kind in KINDS:
        command = [sys.executable, "-m", "tests.bench.bench_typed", "--one", kind, "--messages", str(options.messages)]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        found = json.loads(printed.strip().splitlines()[-1])
        print(
            f"{kind:>8}{found['rate']:>12,.0f}{found['cpu']:>10.1f}{found['us']:>12.1f}{found['table']:>14.1f}"
            f"{found['sum']:>20.3f}",
            flush=True,
        )
    print(f"nats-server: {stored_bytes():.1f} bytes a message in its store")


if __name__ == "__main__":
    main()
