#!/usr/bin/env python3
"""Make a shallow clone of a stream's Delta table, and have maintenance keep the files that it needs.

    python jobs/clone.py --lake ./data/lake --stream ORDERS --target ./data/lake/clones/orders
    python jobs/clone.py --lake ./data/lake --stream ORDERS --target /srv/what-if --as-of 2026-01-31T12:00:00Z

Belongs here: the command line. lakestream_spark.write.clone_maker does the work.
"""

from __future__ import annotations

import argparse
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if (ROOT / "lakestream").is_dir():
    sys.path.insert(0, str(ROOT))  # run from a checkout, installed or not

from lakestream.protocol.instants import has_zone, instant  # noqa: E402
from lakestream_spark import job  # noqa: E402
from lakestream_spark.write.clones import CloneRefused  # noqa: E402


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line; an error ends the program with code 2 and one line on stderr."""
    parser = job.JobParser(
        prog="clone.py",
        description="Make a shallow clone of a stream's table: a separate table that shares the existing files.",
        epilog="Needs Java 17 or newer. DuckDB's delta_scan cannot read clones; lakestream sql can.",
    )
    job.add_lake(parser)
    parser.add_argument("--stream", required=True, metavar="NAME", help="stream whose table is cloned")
    parser.add_argument("--account", default="$G", metavar="NAME", help="account of the stream (default: $G)")
    parser.add_argument("--target", required=True, metavar="PATH", help="path of the clone, which must not exist")
    version = parser.add_mutually_exclusive_group()
    version.add_argument("--version", type=int, metavar="N", help="version to clone (default: the newest)")
    version.add_argument("--as-of", type=_time, metavar="TIME", help="clone the version of this commit time, RFC 3339")
    job.add_spark(parser)
    job.add_json(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run the job; return the exit code: 0 when the clone exists, 1 with a line on stderr otherwise."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    return job.run("clone", lambda stop: run(options, stop))


def run(options: argparse.Namespace, stop: threading.Event) -> int:
    """Find the version, start Spark, make the clone."""
    import time

    from lakestream.lake.storage import lake as lakes
    from lakestream.lake.storage import paths
    from lakestream.lake.table.at import NotATable, open_log, version_for_commit_time
    from lakestream_spark.write import clone_maker

    lake = paths.root(options.lake)
    lakes.require(lake)
    table = paths.table(lake, options.stream, options.account)
    version = options.version
    try:
        log = open_log(table)
        if options.as_of is not None:
            version = version_for_commit_time(log, options.as_of, time.time_ns())
    except NotATable:
        raise CloneRefused(f"stream {options.stream} has no table") from None
    spark = job.start_spark("lakestream clone", lake, options, stop)
    try:
        made = clone_maker.clone(spark, lake, table, options.target, version)
    finally:
        spark.stop()
    text = f"{options.target} is a clone of {options.stream} at version {made}"
    job.tell(options.json, text, clone=options.target, stream=options.stream, version=made)
    return 0


def _time(text: str) -> int:
    try:
        found = instant(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"cannot read {text!r} as a time; write 2026-05-01T12:30:00Z") from None
    if not has_zone(text):
        raise argparse.ArgumentTypeError("needs a time zone, such as Z")
    return found


if __name__ == "__main__":
    job.leave(main())
