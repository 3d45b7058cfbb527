"""Measure how fast staged segments are compacted, and the compactor's memory meanwhile.

    python -m tests.bench.bench_compaction [--messages 1000000] [--large] [--beside] [--profile]

128-byte messages that do not compress, in segments of 16 MiB, with 10, 1,000 and 10,000 subjects (`--large`: 1,000,000
too), each in a process of its own: the compactor as jobs/compact.py runs it (Spark with local[2], a heap of 512 MiB),
which is warmed up on other streams first. Prints messages a second from staged to committed, the CPU time it took, data
files, bytes per message in the table and in the segments, and the peak of memory of the JVM, of the Python driver, of
Spark's Python workers, and of all together (resident; looked at every 0.2 s; shared pages count once). `--profile` runs
its pieces by themselves too. With `--beside` a publisher keeps another server busy meanwhile (`lakestream bench js`;
its processes count in the CPU time and in the Python workers' memory). `--partitions N` measures commits of 5,000
messages into N partitions instead, where files are many and small. Needs Java 17 or newer.

Figures: the table, docs/benchmarks.md#the-lake
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakestream.lake.staging import scan, staging
from lakestream.lake.storage import lake as lakes
from lakestream.lake.storage import paths
from lakestream.lake.table import batches, segments
from lakestream.lake.table.departures import DeletedMessages
from lakestream_spark.write.compactor import Compactor
from lakestream_spark.write.data_files import DataFiles
from lakestream_spark.write.lake_compaction import BatchReport
from lakestream_spark.write.source import SCHEMA
from lakestream_spark.write.stream_compaction import StreamCompaction
from lakestream_spark.write.tasks import StreamTask, written
from tests.bench.lake_streams import Memory, Publisher, Staged, cpu_seconds, table_files
from tests.lake.compacting import compact as compact_stream
from tests.lake.model import StreamModel

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BIN = Path(sys.executable).parent
READY = b"Listening for client connections on "
SUBJECTS = (10, 1_000, 10_000)
LARGE = 1_000_000
WARM_MESSAGES = 150_000
WARM_ROUNDS = 2
PARTITION_COMMITS = 4
PARTITION_MESSAGES = 5_000
HEADINGS = {
    "rate": "msgs/s", "seconds": "s", "cpu": "CPU s", "files": "files", "table": "B/msg table", "log": "B/msg log",
    "java": "JVM, MiB", "workers": "workers, MiB", "driver": "driver, MiB", "all": "all, MiB",
}  # fmt: skip


@contextmanager
def publisher(directory: Path) -> Iterator[None]:
    """Context in which a client publishes into a server of its own, as fast as it can."""
    command = [str(BIN / "lakestream"), "serve", "-a", "127.0.0.1", "-p", "-1", "-js", "-sd", str(directory)]
    server = subprocess.Popen(command, stderr=subprocess.PIPE)
    assert server.stderr is not None
    url = next(line.split(READY)[1].decode().strip() for line in server.stderr if READY in line)
    command = [str(BIN / "lakestream"), "bench", "js", "--duration", "600", "--server", f"nats://{url}"]
    client = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        for process in (client, server):
            process.send_signal(signal.SIGINT)
            process.wait(60)


def measure(messages: int, subjects: int, profile: bool, beside: bool) -> dict[str, Any]:
    """Measure all figures of one table."""
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as busy:
        work, lake = Path(scratch) / "work", Path(scratch) / "lake"
        backlog = Publisher(work, Path(scratch) / "later", "MEASURED", subjects).publish(messages)
        warm = [Publisher(work, lake, f"WARM{n}", subjects) for n in range(WARM_ROUNDS)]
        reports: list[BatchReport] = []
        os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parents[2] / "spark_conf" / "local"))
        from lakestream_spark import session as sessions

        with Memory() as memory:
            spark = sessions.session("compaction benchmark", lake=str(lake))
            try:
                compactor = Compactor(spark, str(lake), report=reports.append)
                for each in warm:
                    each.publish(WARM_MESSAGES)
                    compactor.once()
                reports.clear()
                stage_again(backlog, lake)
                if beside:
                    busy.enter_context(publisher(Path(scratch) / "busy"))
                spent = cpu_seconds()
                report = compactor.once()
                spent = cpu_seconds() - spent
                assert not report.failures, report.failures
                compactor.stop()
                rows, seconds = sum(each.rows for each in reports), sum(each.seconds for each in reports)
                assert rows == messages, reports
                peaks = dict(memory.peaks)
                table = paths.table(str(lake), "MEASURED")
                files, size = table_files(table)
                found: dict[str, Any] = {"subjects": subjects, "rate": rows / seconds, "seconds": seconds, "cpu": spent}
                found |= {"files": files, "table": size / rows, "log": backlog.bytes / rows, **peaks}
                if profile:
                    found["profile"] = pieces(spark, str(lake), backlog, Path(scratch) / "pieces", seconds)
            finally:
                spark.stop()
    return found


def into_partitions(partitions: int) -> list[float]:
    """Return the seconds of some commits to a table by subject; the first one creates it."""
    seconds = []
    with tempfile.TemporaryDirectory() as scratch:
        lake = Path(scratch) / "lake"
        os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parents[2] / "spark_conf" / "local"))
        from lakestream_spark import session as sessions

        spark = sessions.session("compaction benchmark", lake=str(lake))
        model = StreamModel(Path(scratch) / "log")
        model.configure({"lakestream.partition": "subject"})
        for _ in range(PARTITION_COMMITS):
            model.publish([(b"orders.%d" % (n % partitions), b"", os.urandom(128)) for n in range(PARTITION_MESSAGES)])
            model.stage(lake)
            [stream] = scan.Scanner(str(lake)).scan()
            began = time.perf_counter()
            compact_stream(spark, str(lake), stream)
            seconds.append(time.perf_counter() - began)
        spark.stop()
    return seconds


def stage_again(staged: Staged, lake: Path) -> None:
    """Stage the segments of another lake's staging area in this one."""
    lakes.require(str(lake), create=True)
    for each in staging.segments(staged.directory):
        path = staging.stage(each.path, each.first_index, each.last_index, staged.identity, str(lake))
    staged.directory = str(Path(path).parent)


def pieces(spark: SparkSession, lake: str, staged: Staged, scratch: Path, whole: float) -> dict[str, float]:
    """Measure parts of the work separately: each one includes those before it, from `decode` on."""
    compaction = StreamCompaction(spark, lake, staged.stream)
    table = compaction._table
    layout = table.find().layout  # type: ignore[union-attr]
    assert layout is not None
    parts = batches.choose(table.path, 0, staging.segments(staged.directory))
    footers = [staging.footer(part.path) for part in parts]
    batch = batches.gather(staged.identity.uid, parts, footers, None)
    share = batch.rows / staged.messages

    def in_driver() -> None:
        files = DataFiles(str(scratch), layout)
        files.write(rows for part in parts for rows in segments.decode(part.path))

    def in_spark() -> None:
        wanted = {part.path: part.after for part in parts}
        task = StreamTask(
            parts=wanted, dead=DeletedMessages(), removals=None, table=str(scratch), layout=layout, random=True
        )
        rows = [("stream", part.path, part.after, part.last_index, part.size) for part in parts]
        written(spark.createDataFrame(rows, SCHEMA), {"stream": task})

    found = {
        "decode, one process": timed(lambda: [each for part in parts for each in segments.decode(part.path)]),
        "decode and write Parquet, one process": timed(in_driver),
        "decode and write Parquet in Spark": timed(in_spark),
    }
    if layout.kind == "bucket":
        found["bounds of buckets"] = timed(lambda: compaction._bounds(batch, len(layout.bounds) + 1, False))
    found = {key: seconds / share for key, seconds in found.items()}
    found["whole: and the commit, the table"] = whole
    return found


def timed(work: Callable[[], object]) -> float:
    """Return the better of two runs, so that caches are warm."""
    times = []
    for _ in range(2):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def main() -> None:
    """Measure each table in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--subjects", type=int, nargs="+", default=SUBJECTS)
    parser.add_argument("--large", action="store_true", help="a million subjects too")
    parser.add_argument("--beside", action="store_true", help="beside a server with a publisher")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--partitions", type=int, metavar="N", help="commits into so many partitions, up to 1,000")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.partitions:
        print(" ".join(f"{each:.2f}" for each in into_partitions(options.partitions)), "s")
        return
    if options.one:
        print(json.dumps(measure(options.messages, options.one, options.profile, options.beside)))
        return
    print(f"{'subjects':>10}" + "".join(f"{heading:>14}" for heading in HEADINGS.values()), flush=True)
    results = []
    for subjects in (*options.subjects, *([LARGE] if options.large else [])):
        command = [
            sys.executable,
            "-m",
            "tests.bench.bench_compaction",
            "--one",
            str(subjects),
            "--messages",
            str(options.messages),
        ]
        command += ["--profile"] if options.profile else []
        command += ["--beside"] if options.beside else []
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        found = json.loads(printed.strip().splitlines()[-1])
        results.append(found)
        print(f"{subjects:>10,}" + "".join(f"{found[key]:>14,.1f}" for key in HEADINGS), flush=True)
    for found in results:
        for piece, seconds in found.get("profile", {}).items():
            print(f"{found['subjects']:>10,}  {piece:<40}{seconds:>8.2f} s", flush=True)


if __name__ == "__main__":
    main()
