"""Measure the effect of maintenance on reads: a table of many small files, after Delta's OPTIMIZE, and after ours.

    python -m tests.bench.bench_optimize [--rows 1000000] [--commits 125]

The table has 8 buckets and 1,000 subjects, 128-byte payloads, and a file for each bucket and commit. Prints, as JSON,
for each state its files, MiB, the seconds that OPTIMIZE took, and the median milliseconds with deltalake's engine of
reading one message by sequence, 10,000 successive sequences, and all messages of one subject. Needs Java 17 or newer.

Figures: docs/maintenance.md
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from lakestream.lake.storage.lake import open_storage
from lakestream_spark.write.maintainer import data_files
from lakestream_spark.write.maintenance_plan import MIB, Policy, decide_bins
from lakestream_spark.write.rewrite import Rewriter

if TYPE_CHECKING:
    from collections.abc import Iterator

SUBJECTS = 1000
BUCKETS = 8
TIMES = 15
COLUMNS = "seq, time_ns, subject, subject_bytes, headers, header_block, data"


def make(spark: Any, table: str, rows: int, commits: int) -> None:
    """Create the table, with a contiguous range of sequences in each file."""
    found = spark.range(0, rows, 1, commits).selectExpr(
        f"concat('sensor.', lpad(id * 7919 % {SUBJECTS}, 5, '0')) AS subject",
        "id + 1 AS seq",
        "timestamp_micros(1700000000000000 + id * 1000) AS time",
        "1700000000000000000 + id * 1000000 AS time_ns",
        "CAST(NULL AS map<string, array<string>>) AS headers",
        "CAST(rpad(concat_ws('-', hash(id, 1), hash(id, 2), hash(id, 3)), 128, id) AS binary) AS data",
        "CAST(NULL AS binary) AS header_block",
        "CAST(NULL AS binary) AS subject_bytes",
        f"CAST(id * 7919 % {SUBJECTS} * {BUCKETS} DIV {SUBJECTS} AS int) AS bucket",
    )
    writer = found.sortWithinPartitions("bucket", "subject", "seq").write.format("delta").partitionBy("bucket")
    writer.option("delta.enableInCommitTimestamps", "true").save(table)


def reads(table: str, rows: int) -> dict[str, float]:
    """Return the median milliseconds of three kinds of reads."""
    query = QueryBuilder().register("t", DeltaTable(table))

    def median(where: str, expected: int) -> float:
        taken = []
        for turn in range(TIMES):
            first = turn * 65_537 % (rows - 10_000) + 1
            sql = where.format(first=first, last=first + 9_999, subject=turn * 37 % SUBJECTS)
            began = time.perf_counter()
            found = pa.table(query.execute(f"SELECT {COLUMNS} FROM t WHERE {sql} ORDER BY seq").read_all())
            taken.append(time.perf_counter() - began)
            assert found.num_rows == expected
        return round(statistics.median(taken) * 1000, 1)

    return {
        "one_ms": median("seq = {first}", 1),
        "range_ms": median("seq >= {first} AND seq <= {last}", 10_000),
        "subject_ms": median("subject = 'sensor.{subject:05d}'", rows // SUBJECTS),
    }


def ours(spark: Any, table: str) -> None:
    """Run the maintainer's rewrite."""
    storage = open_storage(table)
    policy = Policy()
    rewriter = Rewriter(spark.newSession(), storage, policy.target_bytes)
    commit = rewriter.begin(table)
    state = commit.state()

    @contextmanager
    def alone() -> Iterator[bool]:
        yield True

    rewriter.rewrite(commit, state, decide_bins(data_files(state), policy), alone)


def main() -> None:
    """Run the measurements of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--commits", type=int, default=125)
    options = parser.parse_args()
    from lakestream_spark import session as sessions

    root = Path(tempfile.mkdtemp(prefix="optimize-"))
    spark = sessions.session("lakestream optimize")
    try:
        tables = {name: str(root / name) for name in ("committed", "delta", "ours")}
        make(spark, tables["committed"], options.rows, options.commits)
        for name in ("delta", "ours"):
            shutil.copytree(tables["committed"], tables[name])
        for name, table in tables.items():
            began = time.monotonic()
            if name == "delta":
                spark.sql(f"OPTIMIZE delta.`{table}`").collect()
            elif name == "ours":
                ours(spark, table)
            seconds = round(time.monotonic() - began, 1)
            sizes = pa.table(DeltaTable(table).get_add_actions()).column("size_bytes").to_pylist()
            about = {"table": name, "files": len(sizes), "mib": round(sum(sizes) / MIB, 1), "seconds": seconds}
            print(json.dumps({**about, **reads(table, options.rows)}), flush=True)
    finally:
        spark.stop()
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
