#!/usr/bin/env python3
"""Keep the streams' Delta tables small and quick to open: OPTIMIZE, checkpoint, log cleanup, VACUUM.

    python jobs/maintain.py --lake ./data/lake --once            (a Spark of its own on this machine)
    spark-submit jobs/maintain.py --lake /mnt/lake --every 3600  (the Spark that spark-submit was configured for)

Belongs here: the command line, signals and the loop. The work is lakestream.lake.maintenance's.
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

from lakestream.lake import maintenance  # noqa: E402
from lakestream.lake.errors import LakeError  # noqa: E402

if TYPE_CHECKING:
    from lakestream.lake.maintenance import Done, Maintainer, Policy

DEFAULT_EVERY = 3600.0
LOCK_POLL_SECONDS = 1.0


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line; a wrong one ends the program with code 2 and one line on stderr."""
    parser = argparse.ArgumentParser(
        prog="maintain.py",
        description="OPTIMIZE and VACUUM the tables of all streams and clean their logs. Changes no row.",
        epilog="Runs until SIGTERM or SIGINT, unless --once or --dry-run is given. Needs Java 17 or newer.",
    )
    parser.add_argument("--lake", required=True, metavar="DIR", help="the lake's root (a path or file: URL)")
    parser.add_argument("--once", action="store_true", help="do what is due now, then exit")
    parser.add_argument("--dry-run", action="store_true", help="say what is due, then exit; starts no Spark")
    parser.add_argument("--stream", metavar="NAME", help="only the table of this stream")
    parser.add_argument(
        "--target-mib",
        type=_count,
        default=maintenance.DEFAULT_TARGET_BYTES // maintenance.MIB,
        metavar="MIB",
        help="size of files that OPTIMIZE aims at; below half of it one is small (default: %(default)s)",
    )
    parser.add_argument(
        "--min-files",
        type=_count,
        default=maintenance.DEFAULT_MIN_FILES,
        metavar="N",
        help="small files of one partition that are worth a rewrite, at least 2 (default: %(default)s)",
    )
    parser.add_argument(
        "--retain-hours",
        type=_positive,
        default=maintenance.DEFAULT_RETAIN_HOURS,
        metavar="HOURS",
        help=f"age to which versions stay readable, {maintenance.LEAST_RETAIN_HOURS:g} at least (default: %(default)g)",
    )
    parser.add_argument(
        "--every",
        type=_positive,
        default=DEFAULT_EVERY,
        metavar="SECONDS",
        help="pause between two rounds (default: %(default)g)",
    )
    parser.add_argument(
        "--cores", type=_count, default=2, metavar="N", help="threads of a Spark of its own (default: 2)"
    )
    parser.add_argument(
        "--heap", type=_count, default=512, metavar="MIB", help="heap of a Spark of its own in MiB (default: 512)"
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run the job. Returns the exit code: 0 when it did what was asked, 1 with a line on stderr otherwise."""
    logging.disable(logging.ERROR)  # py4j logs, with its traceback, what it raises anyway
    options = parse(sys.argv[1:] if arguments is None else arguments)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        return run(options, stop)
    except LakeError as error:
        reason = str(error)
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        reason = f"the maintainer ended: {lines[0]}"
    print(f"lakestream: {reason}", file=sys.stderr, flush=True)
    return 1


def run(options: argparse.Namespace, stop: threading.Event) -> int:
    """Start Spark, become the lake's maintainer, work until `stop` (or until done, with --once)."""
    from lakestream.lake import paths

    lake = paths.local_root(options.lake)
    if not os.path.isdir(lake):
        raise LakeError(f"{lake} is not there: a lake begins when a server stages its first segment")
    warning = maintenance.check_retention(options.retain_hours)
    if warning is not None:
        print(f"lakestream: {warning}", file=sys.stderr, flush=True)
    policy = maintenance.Policy(
        target_bytes=options.target_mib * maintenance.MIB,
        min_files=options.min_files,
        retain_ns=int(options.retain_hours * maintenance.HOUR_NS),
    )
    if options.dry_run:
        return _dry_run(lake, policy, options.stream)
    configuration = ROOT / "spark_conf" / "local"
    if configuration.is_dir():
        os.environ.setdefault("SPARK_CONF_DIR", str(configuration))
    from lakestream.lake import spark as sessions

    spark = sessions.session("lakestream maintainer", cores=options.cores, heap_mib=options.heap)
    # PySpark takes SIGINT for itself when a session starts.
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    try:
        maintainer = maintenance.Maintainer(spark, lake, policy, stop.is_set)
        if not _acquire(maintainer, lake, options.once, stop):
            return 0 if stop.is_set() else 1
        return _rounds(maintainer, options, stop)
    finally:
        spark.stop()  # and the JVM's locks go with it


def _rounds(maintainer: Maintainer, options: argparse.Namespace, stop: threading.Event) -> int:
    if not options.once:
        print("maintainer ready", flush=True)
    while True:
        began = time.monotonic()
        outcomes = maintainer.once(options.stream, _say)
        if options.once and options.stream is not None and not outcomes and not stop.is_set():
            print(f"lakestream: there is no table of a stream {options.stream}", file=sys.stderr, flush=True)
            return 1
        seconds = time.monotonic() - began
        noun = "table" if len(outcomes) == 1 else "tables"
        print(f"looked after {len(outcomes)} {noun}, {seconds:.2f} s", flush=True)
        if options.once:
            return 1 if stop.is_set() or any(done.failure for done in outcomes) else 0
        if stop.wait(options.every):
            return 0


def _dry_run(lake: str, policy: Policy, stream: str | None) -> int:
    found = [maintenance.look(table, policy, time.time_ns()) for table in maintenance.tables(lake)]
    for facts in found:
        if facts is not None and stream in (None, facts.stream):
            plan = maintenance.decide(facts, policy)
            print(f"{facts.stream}: {len(facts.files)} files at version {facts.version}: {plan.describe()}", flush=True)
    return 0


def _acquire(maintainer: Maintainer, lake: str, once: bool, stop: threading.Event) -> bool:
    """Be the only maintainer of the lake, waiting for that unless with --once."""
    if maintainer.acquire():
        return True
    if once:
        print(f"lakestream: another maintainer is at work on {lake}", file=sys.stderr, flush=True)
        return False
    print(f"another maintainer is at work on {lake}: waiting", flush=True)
    while not stop.wait(LOCK_POLL_SECONDS):
        if maintainer.acquire():
            return True
    return False


def _say(done: Done) -> None:
    if done.failure is not None:
        print(f"lakestream: {done.describe()}", file=sys.stderr, flush=True)
    elif done.plan:
        print(done.describe(), flush=True)


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
