"""Program that test_metastore.py runs in a process of its own, because a session's catalog is set when its JVM starts.

Prints one JSON object with the result of each step.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from lakestream.lake.staging import scan
from lakestream.lake.storage import paths
from lakestream_catalogs.metastore import register
from lakestream_spark import session as sessions
from tests.lake.compacting import compact as compact_stream
from tests.lake.model import StreamModel, flights


class Program:
    """Streams that get messages, and a metastore with their tables."""

    def __init__(self, base: Path) -> None:
        self.lake = base / "lake of $X #1"
        self.seen: dict[str, Any] = {}
        self.orders = StreamModel(base / "ORDERS")
        extra = {
            "spark.sql.catalogImplementation": "hive",
            "spark.sql.warehouse.dir": str(base / "warehouse"),
            "spark.driver.extraJavaOptions": f"{sessions.JAVA_OPTIONS} -Dderby.system.home={base / 'derby'}",
            "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        }
        self.spark = sessions.session("metastore", extra=extra)

    def compact(self) -> None:
        self.orders.stage(self.lake)
        [stream] = scan.Scanner(str(self.lake)).scan()
        compact_stream(self.spark, str(self.lake), stream)

    def seqs(self, query: str) -> list[int]:
        return sorted(row.seq for row in self.spark.sql(query).collect())

    def run(self) -> None:
        orders = self.orders
        orders.publish(flights(5))
        self.compact()
        for name in ("a-b", "a_b", "größe"):
            write_deltalake(paths.table(str(self.lake), name), pa.table({"seq": [1, 2]}))
        table = orders.table(self.lake)
        self.spark.sql(f"CREATE TABLE orders USING delta LOCATION '{table}'")
        self.seen["made by hand"] = self.seqs("SELECT seq FROM orders")
        self.seen["registered"] = [(each.stream, each.name) for each in register(self.spark, str(self.lake))]
        self.seen["again"] = [(each.stream, each.name) for each in register(self.spark, str(self.lake))]
        self.seen["tables"] = sorted(row.tableName for row in self.spark.sql("SHOW TABLES").collect())
        version = self.spark.sql("DESCRIBE HISTORY orders LIMIT 1").collect()[0].version
        orders.remove([2, 3], erase=True)
        orders.publish(flights(4))
        self.compact()
        self.seen["after a commit"] = self.seqs("SELECT seq FROM orders")
        self.seen["earlier"] = self.seqs(f"SELECT seq FROM orders VERSION AS OF {version}")
        self.spark.sql("OPTIMIZE orders")
        self.spark.sql("VACUUM orders RETAIN 0 HOURS")
        self.seen["after maintenance"] = self.seqs("SELECT seq FROM orders")
        orders.configure({"lakestream.retention": "archive"})
        orders.remove([1])
        orders.publish(flights(1))
        self.compact()
        self.seen["ended"] = self.seqs("SELECT seq FROM orders WHERE removed_time_ns IS NOT NULL")
        self.seen["whole"] = self.seqs("SELECT seq FROM orders")
        self.drop(table)
        self.remove_stream()
        self.seen["database"] = [(each.stream, each.name) for each in register(self.spark, str(self.lake), "streams_x")]
        self.seen["there"] = self.seqs("SELECT seq FROM streams_x.a_b")

    def drop(self, table: str) -> None:
        self.spark.sql("DROP TABLE orders")
        self.seen["dropped"] = os.path.isdir(f"{table}/_delta_log")
        self.seen["by path"] = self.seqs(f"SELECT seq FROM delta.`{table}`")

    def remove_stream(self) -> None:
        self.spark.sql("CREATE TABLE other (x INT) USING parquet")
        shutil.rmtree(paths.table(str(self.lake), "a-b"))
        self.seen["one less"] = [(each.stream, each.name) for each in register(self.spark, str(self.lake))]
        self.seen["left"] = sorted(row.tableName for row in self.spark.sql("SHOW TABLES").collect())


if __name__ == "__main__":
    program = Program(Path(sys.argv[1]))
    try:
        program.run()
    finally:
        program.spark.stop()
    print(json.dumps(program.seen))
