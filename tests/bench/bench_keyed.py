"""Measure upsert tables (`lakestream.table: latest($.id)`) by their number of keys, in the whole pipeline.

    python -m tests.bench.bench_keyed [--keys 100000 1000000 10000000] [--changes 100000] [--rounds 5] [--profile]

Rows of about 90 bytes of JSON with five fields, in segments of 16 MiB, through the compactor as jobs/compact.py runs it
(Spark with local[2], a heap of 512 MiB), each number of keys in a process of its own. First a message for each key, in
batches of a million; then `--rounds` commits of `--changes` messages for keys at random. The compactor is warmed up on
another stream.

Prints, each for a message: the CPU time of loading the keys and of the later commits, for the whole compactor and for
the upsert table alone (in the driver, medians of the rounds); with the clock's seconds of that part; then the bytes of
the table for each key, its files, rows in deletion vectors, the driver's memory, and the seconds in which DuckDB counts
the rows and sums a column. `--profile` prints where the time of the upsert table's commits goes. Needs Java 17 or
newer.

Figures: docs/typed-tables.md#a-row-for-each-key
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil

from lakestream.lake.errors import LakeError
from lakestream.lake.storage import lake as lakes
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table import schema_files as schemas
from lakestream.lake.table.log import TableLog
from lakestream.lake.table.policy import StreamPolicy
from lakestream.schemas.schema import Schema
from lakestream_spark.write.compactor import Compactor
from lakestream_spark.write.keyed_table import KeyedTable
from lakestream_spark.write.lake_compaction import WORKER_LATE
from tests.bench.bench_typed import query_seconds
from tests.bench.lake_streams import MIB, Publisher, chunks, cpu_seconds, table_files

KINDS = {"id": "integer", "name": "string", "country": "string", "price": "number", "qty": "integer"}
METADATA = {"lakestream.schema": "rows@1", "lakestream.table": "latest($.id)"}
LOADED = 1_000_000
"""Messages of a batch while the keys are loaded."""
WARM_MESSAGES = 50_000
SUBJECTS = 10


class Rows:
    """The payloads: one for each key, then changes of keys at random."""

    def __init__(self, keys: int) -> None:
        self._keys = keys

    def __call__(self, first: int, count: int) -> list[bytes]:
        chance = random.Random(first)
        found = []
        for number in range(first, first + count):
            key = number * 7_368_787 % self._keys if number < self._keys else chance.randrange(self._keys)
            found.append(
                b'{"id": %d, "name": "customer %d", "country": "%s", "price": %.2f, "qty": %d}'
                % (key, number, (b"DE", b"FR", b"US")[number % 3], chance.random() * 100, chance.randrange(50))
            )
        return found


class Watch:
    """Time of the upsert table's commits: of the driver's processor, and by the clock, in seconds."""

    def __init__(self, profile: bool) -> None:
        self.cpu = self.seconds = 0.0
        self.profile = cProfile.Profile() if profile else None
        self._follow = KeyedTable.follow

    def __enter__(self) -> Watch:
        def follow(table: KeyedTable, asked: StreamPolicy, through: int) -> int:
            cpu, began = time.process_time(), time.perf_counter()
            try:
                if self.profile is not None:
                    return self.profile.runcall(self._follow, table, asked, through)
                return self._follow(table, asked, through)
            finally:
                self.cpu += time.process_time() - cpu
                self.seconds += time.perf_counter() - began

        setattr(KeyedTable, "follow", follow)  # noqa: B010
        return self

    def __exit__(self, *_: object) -> None:
        setattr(KeyedTable, "follow", self._follow)  # noqa: B010

    def taken(self) -> tuple[float, float]:
        """Return both times since the last call."""
        found = self.cpu, self.seconds
        self.cpu = self.seconds = 0.0
        return found


def measure(keys: int, changes: int, rounds: int, profile: bool) -> dict[str, Any]:
    """Measure all figures of one number of keys."""
    os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parents[2] / "spark_conf" / "local"))
    from lakestream_spark import session as sessions

    with tempfile.TemporaryDirectory() as scratch, Watch(profile) as watch:
        work, lake = Path(scratch) / "work", Path(scratch) / "lake"
        lakes.require(str(lake), create=True)
        text = json.dumps({"type": "object", "properties": {name: {"type": kind} for name, kind in KINDS.items()}})
        schemas.write_schema(open_storage(str(lake)), "$G", Schema("rows", 1, "json", text))
        stream = Publisher(work, lake, "KEYED", SUBJECTS, Rows(keys))
        config = msgspec.Raw(msgspec.json.encode({"name": "KEYED", "metadata": METADATA}))
        stream.staged.identity = msgspec.structs.replace(stream.staged.identity, config=config)
        spark = sessions.session("upsert table benchmark", lake=str(lake))
        try:
            compactor = Compactor(spark, str(lake))

            def compacted(of: Publisher, count: int) -> tuple[float, float, float]:
                of.publish(count)
                while True:
                    spent = cpu_seconds()
                    try:
                        report = compactor.once()
                    except LakeError as error:
                        if WORKER_LATE not in str(error):
                            raise
                    else:
                        assert not report.failures, report.failures
                        return (cpu_seconds() - spent, *watch.taken())

            compacted(Publisher(work, lake, "WARM", SUBJECTS, Rows(WARM_MESSAGES)), WARM_MESSAGES)

            loads = [compacted(stream, count) for _, count in chunks(keys, LOADED)]
            if watch.profile is not None:
                watch.profile = cProfile.Profile()  # of the changes alone
            later = [compacted(stream, changes) for _ in range(rounds)]
            memory = psutil.Process().memory_info().rss / MIB
            compactor.stop()
        finally:
            spark.stop()
        table = paths.table(str(lake), "KEYED") + "_latest"
        files, size = table_files(table)
        adds = TableLog(open_storage(str(lake)), table).state().files.values()
        marked = sum(each.deletion_vector.cardinality for each in adds if each.deletion_vector is not None)
        seconds, [(found, _)] = query_seconds(table, "SELECT count(*), sum(price) FROM t")
        assert found == keys, found
        if watch.profile is not None:
            pstats.Stats(watch.profile, stream=sys.stderr).sort_stats("tottime").print_stats(25)
        return {
            "load": sum(each[0] for each in loads) / keys * 1e6,
            "load_own": sum(each[1] for each in loads) / keys * 1e6,
            "change": statistics.median(each[0] for each in later) / changes * 1e6,
            "change_own": statistics.median(each[1] for each in later) / changes * 1e6,
            "seconds": statistics.median(each[2] for each in later),
            "bytes": size / keys,
            "files": files,
            "marked": marked,
            "memory": memory,
            "count": seconds,
        }


def main() -> None:
    """Measure each number of keys in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--changes", type=int, default=100_000, help="messages of a later commit")
    parser.add_argument("--rounds", type=int, default=5, help="number of later commits")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.keys[0], options.changes, options.rounds, options.profile)))
        return
    print(
        f"{'keys':>12}{'load us':>10}{'own us':>9}{'change us':>11}{'own us':>9}{'own s':>8}{'B/key':>8}{'files':>7}"
        f"{'marked':>10}{'MiB':>7}{'count s':>9}",
        flush=True,
    )
    for keys in options.keys:
        command = [sys.executable, "-m", "tests.bench.bench_keyed", "--one", "--keys", str(keys)]
        command += ["--changes", str(options.changes), "--rounds", str(options.rounds)]
        command += ["--profile"] * options.profile
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        found = json.loads(printed.strip().splitlines()[-1])
        print(
            f"{keys:>12,}{found['load']:>10.1f}{found['load_own']:>9.1f}{found['change']:>11.1f}"
            f"{found['change_own']:>9.1f}{found['seconds']:>8.2f}{found['bytes']:>8.1f}{found['files']:>7}"
            f"{found['marked']:>10,}{found['memory']:>7,.0f}{found['count']:>9.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
