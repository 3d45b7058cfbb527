"""Measure what Iceberg tables cost a compactor, and how far they are behind the Delta tables.

    python -m tests.bench.bench_iceberg [--tables 1 80] [--rounds 20] [--messages 2000]
    python -m tests.bench.bench_iceberg --commits 10000

A compactor as jobs/compact.py runs it compacts two sets of streams, one with Iceberg tables and one without, in turns:
a segment of `--messages` 128-byte messages a stream and round. Prints, for each number of tables, the processor time of
a round of either set, their ratio (median of the rounds), the metadata files of an Iceberg commit and their share of
the table's bytes, and its lag behind the Delta commit by the times of their files. `--commits` grows a table by a file
with each commit, and prints what a commit takes as it grows, and Iceberg's share of the table's files and bytes. Needs
Java 17 or newer.

Figures: docs/internals/iceberg.md
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream_iceberg.export import TableExport
from lakestream_iceberg.keeper import IcebergKeeper
from lakestream_iceberg.library import IcebergLibrary
from lakestream_spark.write.compactor import Compactor
from lakestream_spark.write.iceberg_files import HINT, VERSION
from lakestream_spark.write.lake_compaction import BatchReport
from tests.bench.lake_streams import Publisher, cpu_seconds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WARM_ROUNDS = 8
SUBJECTS = 10


class Streams:
    """Streams of one kind, and how much was committed of them."""

    def __init__(self, scratch: Path, lake: Path, form: str, count: int, subjects: int = SUBJECTS) -> None:
        self.form, self.lake = form, lake
        self.publishers = [Publisher(scratch / "work", lake, f"{form}{n}", subjects) for n in range(count)]
        config = msgspec.json.encode({"metadata": {"lakestream.iceberg": form}})
        for each in self.publishers:
            each.staged.identity = msgspec.structs.replace(each.staged.identity, config=msgspec.Raw(config))

    @property
    def tables(self) -> list[str]:
        """Return the paths of the tables."""
        return [paths.table(str(self.lake), each.staged.identity.name) for each in self.publishers]


class Bench:
    """A compactor with its keeper, and both sets of streams."""

    def __init__(self, spark: SparkSession, lake: Path) -> None:
        self.rows, self.more = 0, threading.Condition()
        self.keeper = IcebergKeeper(spark, str(lake), "off", print, moved=self._moved)
        self.compactor = Compactor(spark, str(lake), report=self._report, complain=print)

    def _report(self, batch: BatchReport) -> None:
        assert not batch.failures, batch.failures
        self.keeper.note(batch.commits)
        with self.more:
            self.rows += batch.rows
            self.more.notify_all()

    def _moved(self, tables: Collection[str]) -> None:
        with self.more:
            self.more.notify_all()

    def round(self, streams: Streams, messages: int) -> tuple[float, float]:
        """Publish to each stream, and return processor time and time until all is committed."""
        spent, began = cpu_seconds(), time.monotonic()
        with self.more:
            wanted = self.rows + messages * len(streams.publishers)
        for each in streams.publishers:
            each.publish(messages)
        with self.more:
            assert self.more.wait_for(lambda: self.rows >= wanted, 300)
        if streams.form != "off":
            for table in streams.tables:
                with self.more:  # a look reads a file of 100 KiB: it must not be part of what is measured
                    assert self.more.wait_for(partial(is_current, table), 300)
        return cpu_seconds() - spent, time.monotonic() - began


def commits(table: str) -> dict[int, Path]:
    """Return the files of Delta's commits by version."""
    return {int(path.stem): path for path in Path(table, "_delta_log").glob("0*.json") if path.stem.isdigit()}


def snapshots(table: str) -> dict[int, Path]:
    """Return the metadata files of the Iceberg table by Delta version."""
    found = {}
    for path in Path(table, "metadata").glob("v*.metadata.json"):
        found[int(json.loads(path.read_bytes())["properties"].get(VERSION, -1))] = path
    return found


def is_current(table: str) -> bool:
    """Return True once the Iceberg table has the newest Delta version."""
    hint = Path(table, "metadata", "version-hint.text")
    if not hint.exists():
        return False
    try:
        newest = json.loads(Path(table, "metadata", f"v{hint.read_text()}.metadata.json").read_bytes())
    except FileNotFoundError:
        return False
    return int(newest["properties"].get(VERSION, -1)) >= max(commits(table))


def share(table: str) -> tuple[float, float]:
    """Return the share of Iceberg's metadata in a table's directory, %: of the files, and of the bytes."""
    sizes: dict[bool, list[int]] = {True: [], False: []}
    for path in Path(table).rglob("*"):
        if path.is_file():
            sizes[path.parent.name == "metadata"].append(path.stat().st_size)
    own, every = sizes[True], sizes[True] + sizes[False]
    return 100 * len(own) / len(every), 100 * sum(own) / sum(every)


def lags(tables: Sequence[str]) -> list[float]:
    """Return the seconds between each Delta commit and its Iceberg commit, of those whose files are there."""
    found = []
    for table in tables:
        delta = commits(table)
        for version, path in snapshots(table).items():
            if version in delta:
                found.append(path.stat().st_mtime - delta[version].stat().st_mtime)
    return sorted(found)


def measure(tables: int, rounds: int, messages: int) -> dict[str, Any]:
    """Measure with so many tables in each set."""
    os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parents[2] / "spark_conf" / "local"))
    from lakestream_spark import session as sessions

    with tempfile.TemporaryDirectory() as scratch:
        lake = Path(scratch) / "lake"
        plain, iceberg = (Streams(Path(scratch), lake, form, tables) for form in ("off", "v3"))
        plain.publishers[0].publish(1)
        spark = sessions.session("iceberg benchmark", lake=str(lake), iceberg=True)
        bench = Bench(spark, lake)
        try:
            bench.keeper.start()
            bench.compactor.start(0.5)
            for _ in range(WARM_ROUNDS):
                for streams in (plain, iceberg):
                    bench.round(streams, messages)
            spent: dict[str, list[tuple[float, float]]] = {"off": [], "v3": []}
            for number in range(rounds):
                for streams in (plain, iceberg) if number % 2 else (iceberg, plain):
                    spent[streams.form].append(bench.round(streams, messages))
            behind = lags(iceberg.tables)
            made = [len(list(Path(table, "metadata").iterdir())) for table in iceberg.tables]
            shares = [share(table) for table in iceberg.tables]
        finally:
            bench.keeper.stop()
            bench.compactor.stop()
            spark.stop()
    cpu = {form: statistics.median(each[0] for each in found) for form, found in spent.items()}
    wall = {form: statistics.median(each[1] for each in found) for form, found in spent.items()}
    ratio = statistics.median(v3[0] / off[0] for v3, off in zip(spent["v3"], spent["off"], strict=True))
    return {
        "tables": tables,
        "without": cpu["off"],
        "with": cpu["v3"],
        "more": 100 * (ratio - 1),
        "wall without": wall["off"],
        "wall with": wall["v3"],
        "files": statistics.mean(made) / (rounds + WARM_ROUNDS),
        "% of files": statistics.mean(each[0] for each in shares),
        "% of bytes": statistics.mean(each[1] for each in shares),
        "lag p50": behind[len(behind) // 2],
        "lag p99": behind[min(int(len(behind) * 0.99), len(behind) - 1)],
    }


def grow(commits_wanted: int) -> None:
    """Print how long Iceberg commits take while a table grows by a file with each, and what its metadata has then.

    Delta's commits are written here, as copies of the compactor's with other names of files: theirs would take an hour.
    """
    os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parents[2] / "spark_conf" / "local"))
    from lakestream_spark import session as sessions

    with tempfile.TemporaryDirectory() as scratch:
        lake = Path(scratch) / "lake"
        streams = Streams(Path(scratch), lake, "v3", 1, subjects=1)  # so that each commit has one file
        streams.publishers[0].publish(100)
        spark = sessions.session("iceberg benchmark", lake=str(lake), iceberg=True)
        Compactor(spark, str(lake), complain=print).once()
        [table] = streams.tables
        storage, log = open_storage(str(lake)), Path(table, "_delta_log")
        library = IcebergLibrary(spark, str(lake))
        export = TableExport(library, storage, table)
        export.run()
        first = max(commits(table))
        lines = (log / f"{first:020}.json").read_text().splitlines()
        [line] = [each for each in lines if each.startswith('{"add"')]
        name = json.loads(line)["add"]["path"]
        seconds = []
        for number in range(1, commits_wanted + 1):
            copy = name.replace("part-", f"part-{number}-")
            os.link(Path(table, name), Path(table, copy))
            text = "\n".join(lines).replace(name, copy)
            (log / f"{first + number:020}.json").write_text(text)
            (log / f"{first + number - 100:020}.json").unlink(missing_ok=True)  # as maintenance does
            began = time.perf_counter()
            export.run()
            seconds.append(time.perf_counter() - began)
            if number % (commits_wanted // 10) == 0:
                last = seconds[-commits_wanted // 10 :]
                there = Path(table, "metadata")
                newest = there / f"v{(there / HINT).read_text()}.metadata.json"
                manifests = sum(1 for _ in there.glob("*-m*.avro"))
                of_files, of_bytes = share(table)
                print(
                    f"{number:>8,} files: {1000 * statistics.median(last):6.1f} ms a commit (mean "
                    f"{1000 * statistics.mean(last):6.1f}), metadata.json {newest.stat().st_size >> 10} KiB, "
                    f"{manifests} manifests on disk, {of_files:.1f} % of the files, {of_bytes:.1f} % of the bytes",
                    flush=True,
                )
        library.table(table).sweep(int(time.time() * 1000))  # as the keeper does ten minutes later
        of_files, of_bytes = share(table)
        print(f"swept: {of_files:.1f} % of the files, {of_bytes:.1f} % of the bytes", flush=True)
        spark.stop()


def main() -> None:
    """Measure each number of tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, nargs="+", default=[1, 80])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--messages", type=int, default=2_000)
    parser.add_argument("--commits", type=int, metavar="N", help="grow a table by N commits instead")
    options = parser.parse_args()
    if options.commits:
        grow(options.commits)
        return
    for tables in options.tables:
        found = measure(tables, options.rounds, options.messages)
        print("  ".join(f"{name}: {value:.2f}" for name, value in found.items()), flush=True)


if __name__ == "__main__":
    main()
