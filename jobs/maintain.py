#!/usr/bin/env python3
"""Maintain the streams' Delta tables: OPTIMIZE, checkpoint, log clean-up, VACUUM.

    python jobs/maintain.py --lake ./data/lake --once            (a Spark of its own on this machine)
    spark-submit jobs/maintain.py --lake /mnt/lake --every 3600  (the Spark that spark-submit was configured for)
    python jobs/maintain.py --lake ./data/lake --detach MIRROR   (give a clone files of its own, then end)

Belongs here: the command line and the loop. lakestream_spark.write.maintainer does the work.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
if (ROOT / "lakestream").is_dir():
    sys.path.insert(0, str(ROOT))  # run from a checkout, installed or not

from lakestream.lake.table.policy import HOUR_NS, TARGET_BYTES  # noqa: E402
from lakestream_spark import job  # noqa: E402
from lakestream_spark.job import complain, say  # noqa: E402
from lakestream_spark.write import maintenance_plan  # noqa: E402
from lakestream_spark.write.maintenance_plan import Policy  # noqa: E402

if TYPE_CHECKING:
    from lakestream_spark.write.detach import DetachResult
    from lakestream_spark.write.maintainer import Maintainer, MaintenanceResult

DEFAULT_EVERY = 3600.0
PROGRESS_SECONDS = 1.0


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line; an error ends the program with code 2 and one line on stderr."""
    parser = job.JobParser(
        prog="maintain.py",
        description="OPTIMIZE and VACUUM the tables of all streams and clean their logs. Changes no row.",
        epilog="Runs until SIGTERM or SIGINT, unless --once or --dry-run is given. Needs Java 17 or newer.",
    )
    job.add_lake(parser)
    parser.add_argument("--once", action="store_true", help="do what is due now, then exit")
    parser.add_argument("--dry-run", action="store_true", help="list what is due, then exit; starts no Spark")
    parser.add_argument("--stream", metavar="NAME", help="only the table of this stream")
    parser.add_argument(
        "--detach", metavar="MIRROR", help="give the table of this stream (or the clone at this path) its own files"
    )
    parser.add_argument("--account", default="$G", metavar="NAME", help="with --detach: its account (default: $G)")
    parser.add_argument(
        "--target-mib",
        type=job.count,
        default=TARGET_BYTES // maintenance_plan.MIB,
        metavar="MIB",
        help="target size of files for OPTIMIZE; smaller ones than half of it are small (default: %(default)s)",
    )
    parser.add_argument(
        "--min-files",
        type=job.count,
        default=maintenance_plan.DEFAULT_MIN_FILES,
        metavar="N",
        help="number of small files of a partition for OPTIMIZE, at least 2 (default: %(default)s)",
    )
    parser.add_argument(
        "--retain-hours",
        type=job.positive,
        default=maintenance_plan.DEFAULT_RETAIN_HOURS,
        metavar="HOURS",
        help="age to which versions stay readable, for streams without lakestream.time_travel; "
        f"at least {maintenance_plan.LEAST_RETAIN_HOURS:g} (default: %(default)g)",
    )
    parser.add_argument(
        "--every",
        type=job.positive,
        default=DEFAULT_EVERY,
        metavar="SECONDS",
        help="pause between two rounds (default: %(default)g)",
    )
    job.add_spark(parser)
    job.add_json(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run the job; return the exit code: 0 on success, 1 with a line on stderr otherwise."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    return job.run("maintainer", lambda stop: run(options, stop))


def run(options: argparse.Namespace, stop: threading.Event) -> int:
    """Start Spark, take the maintainer's lock, work until `stop` (or until done, with --once)."""
    from lakestream.lake.storage import lake as lakes
    from lakestream.lake.storage import paths

    lake = paths.root(options.lake)
    lakes.require(lake)
    warning = maintenance_plan.check_retention(options.retain_hours)
    if warning is not None:
        complain(warning)
    policy = Policy(
        target_bytes=options.target_mib * maintenance_plan.MIB,
        min_files=options.min_files,
        retain_ns=int(options.retain_hours * HOUR_NS),
    )
    if options.dry_run:
        return _dry_run(lake, policy, options.stream, options.json)
    spark = job.start_spark("lakestream maintainer", lake, options, stop)
    from lakestream_spark.write.maintainer import Maintainer

    try:
        maintainer = Maintainer(spark, lake, policy, stop.is_set)
        threading.Thread(target=_cancel, args=(stop, maintainer), name="cancel", daemon=True).start()
        if not job.become_only(maintainer.acquire, "maintainer", lake, options.once, stop):
            return 0 if stop.is_set() else 1
        try:
            if options.detach is not None:
                return _detach(maintainer, lake, options.detach, options.account)
            return _rounds(maintainer, options, lake, stop)
        finally:
            maintainer.release()
    finally:
        spark.stop()


def _cancel(stop: threading.Event, maintainer: Maintainer) -> None:
    """Cancel a running rewrite when told to stop; nothing of it is in the table yet."""
    stop.wait()
    maintainer.cancel()


def _rounds(maintainer: Maintainer, options: argparse.Namespace, lake: str, stop: threading.Event) -> int:
    from lakestream.lake.progress import Advance, progress
    from lakestream.lake.storage.lake import open_storage
    from lakestream_spark.write.maintainer import tables

    if not options.once:
        say("maintainer ready")
    while True:
        began = time.monotonic()
        with progress("maintain", len(tables(open_storage(lake)))) as advance:

            def report(done: MaintenanceResult, advance: Advance = advance) -> None:
                _say(done, options.json)
                advance(1)

            outcomes = maintainer.once(options.stream, report)
        if options.once and options.stream is not None and not outcomes and not stop.is_set():
            complain(f"stream {options.stream} has no table")
            return 1
        noun = "table" if len(outcomes) == 1 else "tables"
        seconds = time.monotonic() - began
        job.tell(
            options.json,
            f"maintained {len(outcomes)} {noun} in {seconds:.2f} s",
            tables=len(outcomes),
            failures=sum(done.failure is not None for done in outcomes),
            seconds=round(seconds, 3),
        )
        if options.once:
            return 1 if stop.is_set() or any(done.failure for done in outcomes) else 0
        maintainer.release()  # lets other programs take the lock, to detach a clone for instance
        if stop.wait(options.every) or not job.become_only(maintainer.acquire, "maintainer", lake, False, stop):
            return 0


def _detach(maintainer: Maintainer, lake: str, name: str, account: str) -> int:
    """Detach one clone, reporting progress every second at most."""
    from lakestream.lake.storage import paths

    table = paths.normalise(name) if "/" in name else paths.table(lake, name, account)
    said = began = time.monotonic()

    def tell(done: DetachResult) -> None:
        nonlocal said
        if time.monotonic() - said >= PROGRESS_SECONDS:
            said = time.monotonic()
            say(f"{name}: {done.files} of {done.of} files, {done.size / maintenance_plan.MIB:.1f} MiB")

    done = maintainer.detach(table, report=tell)
    if done is None:
        say(f"{name} has all of its files")
        return 0
    size = done.size / maintenance_plan.MIB
    say(f"{name} is detached: {done.files} files, {size:.1f} MiB, {time.monotonic() - began:.2f} s")
    return 0


def _dry_run(lake: str, policy: Policy, stream: str | None, as_json: bool) -> int:
    from lakestream.lake.errors import LacksFiles
    from lakestream.lake.storage.lake import open_storage
    from lakestream_spark.write import maintainer

    storage, code = open_storage(lake), 0
    for table in maintainer.tables(storage):
        try:
            facts = maintainer.look(storage, table, policy, time.time_ns())
        except LacksFiles as error:
            complain(str(error))
            code = 1
            continue
        if facts is not None and stream in (None, facts.stream):
            plan = maintenance_plan.decide(facts, policy)
            job.tell(
                as_json,
                f"{facts.stream}: {len(facts.files)} files at version {facts.version}: {plan.describe()}",
                stream=facts.stream,
                files=len(facts.files),
                version=facts.version,
                plan=plan.describe(),
                due=bool(plan),
            )
    return code


def _say(done: MaintenanceResult, as_json: bool) -> None:
    if done.failure is not None:
        complain(done.describe())
    elif done.plan:
        job.tell(as_json, done.describe(), stream=done.stream, done=done.describe(), seconds=round(done.seconds, 3))


if __name__ == "__main__":
    job.leave(main())
