#!/usr/bin/env python3
"""Compact staged segments of all streams into their Delta tables, and keep the tables small meanwhile.

    python jobs/compact.py --lake ./data/lake                    (a Spark of its own on this machine)
    spark-submit jobs/compact.py --lake /mnt/lake --once         (the Spark that spark-submit was configured for)

Belongs here: the command line and the loop. The work is lakestream.lake.write.compactor's, and upkeep's.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
if (ROOT / "lakestream").is_dir():
    sys.path.insert(0, str(ROOT))  # run from a checkout, installed or not

from lakestream.lake.errors import StorageFailed  # noqa: E402
from lakestream.lake.spark import job  # noqa: E402
from lakestream.lake.spark.job import complain, say  # noqa: E402
from lakestream.lake.write.upkeep import DEFAULT_EVERY_SECONDS, Upkeep  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakestream.lake.write.compactor import BatchReport, Compactor
    from lakestream.lake.write.maintainer import Done

DEFAULT_INTERVAL = 1.0
DEFAULT_PARALLEL = 4
ORPHAN_GRACE_SECONDS = 30.0
"""How long a compactor whose parent has died may take to stop in order."""


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line; a wrong one ends the program with code 2 and one line on stderr."""
    parser = job.Parser(
        prog="compact.py",
        description="Append staged segments of all streams to their Delta tables, exactly once.",
        epilog="Runs until SIGTERM or SIGINT, unless --once is given. Needs Java 17 or newer.",
    )
    job.add_lake(parser)
    parser.add_argument(
        "--checkpoint",
        metavar="DIR",
        help="the streaming checkpoint (default: <lake>/_compactor, or a temporary directory)",
    )
    parser.add_argument("--create", action="store_true", help="create an empty lake if there is none")
    parser.add_argument("--once", action="store_true", help="compact the segments that are staged now, then exit")
    parser.add_argument(
        "--interval",
        type=job.positive,
        default=DEFAULT_INTERVAL,
        metavar="SECONDS",
        help=f"start a batch at most this often (default: {DEFAULT_INTERVAL:g})",
    )
    parser.add_argument(
        "--parallel",
        type=job.count,
        default=DEFAULT_PARALLEL,
        metavar="N",
        help=f"streams compacted at the same time (default: {DEFAULT_PARALLEL})",
    )
    parser.add_argument(
        "--maintain-every",
        type=job.not_negative,
        default=DEFAULT_EVERY_SECONDS,
        metavar="SECONDS",
        help="interval of the maintenance of jobs/maintain.py; 0: never (default: %(default)g)",
    )
    job.add_spark(parser)
    parser.add_argument(
        "--exit-with-parent", action="store_true", help="stop when standard input is closed (not under spark-submit)"
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run the job. Returns the exit code: 0 when it did what was asked, 1 with a line on stderr otherwise."""
    options = parse(sys.argv[1:] if arguments is None else arguments)

    def work(stop: threading.Event) -> int:
        if options.exit_with_parent:
            threading.Thread(target=_watch_parent, args=(stop,), name="parent", daemon=True).start()
        return run(options, stop)

    return job.run("compactor", work)


def run(options: argparse.Namespace, stop: threading.Event) -> int:
    """Start Spark, become the lake's compactor, work until `stop` (or until done, with --once).

    With --once and nothing to do there is no need of Spark.
    """
    from lakestream.lake.files import lake as lakes
    from lakestream.lake.files import paths

    lake = paths.root(options.lake)
    lakes.require(lake, options.create)
    began, moved = time.monotonic(), 0
    if options.once and not _has_work(lake):
        _say_result(0, 0, time.monotonic() - began)
        return 0
    spark = job.start_spark("lakestream compactor", lake, options, stop)
    from lakestream.lake.write.compactor import Compactor
    from lakestream.lake.write.stream_compaction import Options

    upkeep = None if options.once or not options.maintain_every else _upkeep(spark, lake, options.maintain_every, stop)

    def report(batch: BatchReport) -> None:
        nonlocal moved
        moved += batch.streams
        _say_batch(batch)
        if upkeep is not None:
            upkeep.note(batch.commits)

    compactor = Compactor(
        spark,
        lake,
        options.checkpoint,
        parallel=options.parallel,
        options=Options(tasks=options.cores),
        stopping=stop,
        report=report,
        tell=say,
        complain=complain,
    )
    try:
        if not job.become_only(compactor, "compactor", lake, options.once, stop):
            return 0 if stop.is_set() else 1
        if options.once:
            failures = compactor.once().failures
            if not moved:
                _say_result(0, 0, time.monotonic() - began)
            return 1 if failures or stop.is_set() else 0
        return _serve(compactor, upkeep, options.interval, stop)
    finally:
        _close(compactor, upkeep, spark)


def _upkeep(spark: SparkSession, lake: str, every: float, stop: threading.Event) -> Upkeep:
    from lakestream.lake.write.maintainer import Maintainer

    return Upkeep(Maintainer(spark, lake, stopping=stop.is_set), every, _say_done)


def _close(compactor: Compactor, upkeep: Upkeep | None, spark: SparkSession) -> None:
    """End the query, then Spark. When the JVM is gone already, so are they, and the lock with them."""
    from py4j.protocol import Py4JError

    try:
        compactor.stop()
        if upkeep is not None:
            upkeep.stop()
        compactor.release()
        spark.stop()
    except (Py4JError, OSError) as error:
        complain(f"Spark did not end by itself: {type(error).__name__}")


def _serve(compactor: Compactor, upkeep: Upkeep | None, interval: float, stop: threading.Event) -> int:
    compactor.start(interval)
    say("compactor ready")
    compactor.sweep(retry_now=True)  # what the checkpoint believes done and the table lacks
    if upkeep is not None:
        upkeep.start()
    while not stop.wait(interval):
        compactor.check()
        compactor.sweep()
    return 0


def _has_work(lake: str) -> bool:
    """Return True if the lake may have something to compact; also when that cannot be told, which is then said."""
    from lakestream.lake.delta import batch as pending

    try:
        return pending.has_work(lake)
    except StorageFailed:
        raise
    except Exception:  # a damaged table, say: the compactor names the stream, and goes on with the others
        return True


def _say_result(streams: int, rows: int, seconds: float) -> None:
    say(f"compacted {streams} {'stream' if streams == 1 else 'streams'}, {rows} rows, {seconds:.2f} s")


def _say_batch(report: BatchReport) -> None:
    if report.streams:
        _say_result(report.streams, report.rows, report.seconds)
    for directory, reason in report.failures.items():
        complain(f"{directory}: {reason}")


def _say_done(done: Done) -> None:
    if done.failure is not None:
        complain(f"maintenance of {done.describe()}")
    elif done.plan:
        say(f"maintained {done.describe()}")


def _watch_parent(stop: threading.Event) -> None:
    # Not sys.stdin: its lock, held by this daemon thread, would abort the interpreter at exit.
    while os.read(0, 4096):
        pass
    stop.set()
    time.sleep(ORPHAN_GRACE_SECONDS)
    os._exit(1)  # nobody is left to insist; the JVM ends when its standard input does


if __name__ == "__main__":
    job.leave(main())
