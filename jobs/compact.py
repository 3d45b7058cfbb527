#!/usr/bin/env python3
"""Compact staged segments of all streams into their Delta tables.

    python jobs/compact.py --lake ./data/lake                    (a Spark of its own on this machine)
    spark-submit jobs/compact.py --lake /mnt/lake --once         (the Spark that spark-submit was configured for)

Belongs here: the command line, signals and the loop. The work is lakestream.lake.compactor's.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
if (ROOT / "lakestream").is_dir():
    sys.path.insert(0, str(ROOT))  # run from a checkout, installed or not

from lakestream.lake.errors import LakeError  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakestream.lake.compactor import BatchReport, Compactor

DEFAULT_INTERVAL = 1.0
DEFAULT_PARALLEL = 4
LOCK_POLL_SECONDS = 1.0
ORPHAN_GRACE_SECONDS = 30.0
"""How long a compactor whose parent has died may take to stop in order."""


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line; a wrong one ends the program with code 2 and one line on stderr."""
    parser = argparse.ArgumentParser(
        prog="compact.py",
        description="Move staged segments of all streams into their Delta tables, exactly once.",
        epilog="Runs until SIGTERM or SIGINT, unless --once is given. Needs Java 17 or newer.",
    )
    parser.add_argument("--lake", required=True, metavar="DIR", help="the lake's root (a path or file: URL)")
    parser.add_argument("--checkpoint", metavar="DIR", help="the streaming checkpoint (default: <lake>/_compactor)")
    parser.add_argument("--once", action="store_true", help="compact what is staged now, then exit")
    parser.add_argument(
        "--interval",
        type=_positive,
        default=DEFAULT_INTERVAL,
        metavar="SECONDS",
        help=f"start a batch at most this often (default: {DEFAULT_INTERVAL:g})",
    )
    parser.add_argument(
        "--parallel",
        type=_count,
        default=DEFAULT_PARALLEL,
        metavar="N",
        help=f"streams compacted at the same time (default: {DEFAULT_PARALLEL})",
    )
    parser.add_argument(
        "--cores", type=_count, default=2, metavar="N", help="threads of a Spark of its own (default: 2)"
    )
    parser.add_argument(
        "--heap", type=_count, default=512, metavar="MIB", help="heap of a Spark of its own in MiB (default: 512)"
    )
    parser.add_argument(
        "--exit-with-parent", action="store_true", help="stop when standard input is closed (not under spark-submit)"
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run the job. Returns the exit code: 0 when it did what was asked, 1 with a line on stderr otherwise."""
    logging.disable(logging.ERROR)  # py4j logs, with its traceback, what it raises anyway
    options = parse(sys.argv[1:] if arguments is None else arguments)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if options.exit_with_parent:
        threading.Thread(target=_watch_parent, args=(stop,), name="parent", daemon=True).start()
    try:
        return run(options, stop)
    except LakeError as error:
        reason = str(error)
    except Exception as error:
        # The JVM died, or the query ended by itself: whoever started us may start us again, nothing is lost.
        lines = str(error).splitlines() or [type(error).__name__]
        reason = f"the compactor ended: {lines[0]}"
    print(f"lakestream: {reason}", file=sys.stderr, flush=True)
    return 1


def run(options: argparse.Namespace, stop: threading.Event) -> int:
    """Start Spark, become the lake's compactor, work until `stop` (or until done, with --once)."""
    from lakestream.lake import paths

    lake = paths.local_root(options.lake)
    configuration = ROOT / "spark_conf" / "local"
    if configuration.is_dir():
        os.environ.setdefault("SPARK_CONF_DIR", str(configuration))
    from lakestream.lake import spark as sessions
    from lakestream.lake.compaction import Options
    from lakestream.lake.compactor import Compactor

    spark = sessions.session("lakestream compactor", cores=options.cores, heap_mib=options.heap)
    # PySpark takes SIGINT for itself when a session starts.
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    compactor = Compactor(
        spark,
        lake,
        options.checkpoint,
        parallel=options.parallel,
        options=Options(tasks=options.cores),
        stopping=stop,
        report=_say_batch,
    )
    try:
        if not _acquire(compactor, lake, options.once, stop):
            return 0 if stop.is_set() else 1
        if options.once:
            failures = compactor.once().failures
            return 1 if failures or stop.is_set() else 0
        return _serve(compactor, options.interval, stop)
    finally:
        _close(compactor, spark)


def _close(compactor: Compactor, spark: SparkSession) -> None:
    """End the query, then Spark. When the JVM is gone already, so are they, and the lock with them."""
    from py4j.protocol import Py4JError

    try:
        compactor.stop()
        compactor.release()
        spark.stop()
    except (Py4JError, OSError) as error:
        print(f"lakestream: Spark did not end by itself: {type(error).__name__}", file=sys.stderr, flush=True)


def _serve(compactor: Compactor, interval: float, stop: threading.Event) -> int:
    compactor.start(interval)
    print("compactor ready", flush=True)
    compactor.sweep(retry_now=True)  # what the checkpoint believes done and the table lacks
    while not stop.wait(interval):
        compactor.check()
        compactor.sweep()
    return 0


def _acquire(compactor: Compactor, lake: str, once: bool, stop: threading.Event) -> bool:
    """Be the only compactor of the lake, waiting for that unless with --once."""
    if compactor.acquire():
        return True
    if once:
        print(f"lakestream: another compactor is at work on {lake}", file=sys.stderr, flush=True)
        return False
    print(f"another compactor is at work on {lake}: waiting", flush=True)
    while not stop.wait(LOCK_POLL_SECONDS):
        if compactor.acquire():
            return True
    return False


def _say_batch(report: BatchReport) -> None:
    if report.streams:
        noun = "stream" if report.streams == 1 else "streams"
        print(f"compacted {report.streams} {noun}, {report.rows} rows, {report.seconds:.2f} s", flush=True)
    for directory, reason in report.failures.items():
        print(f"lakestream: {directory}: {reason}", file=sys.stderr, flush=True)


def _watch_parent(stop: threading.Event) -> None:
    # Not sys.stdin: its lock, held by this daemon thread, would abort the interpreter at exit.
    while os.read(0, 4096):
        pass
    stop.set()
    time.sleep(ORPHAN_GRACE_SECONDS)
    os._exit(1)  # nobody is left to insist; the JVM ends when its standard input does


def _positive(text: str) -> float:
    value = float(text)
    if value <= 0:
        raise argparse.ArgumentTypeError("must be above 0")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.exit(code)
