#!/usr/bin/env python3
"""Decode the misfits of a stream again, and write the columns of those that fit now.

    python jobs/replay.py --lake ./data/lake --stream ORDERS

Belongs here: the command line. lakestream_spark.write.replay does the work.
"""

from __future__ import annotations

import argparse
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if (ROOT / "lakestream").is_dir():
    sys.path.insert(0, str(ROOT))  # run from a checkout, installed or not

from lakestream_spark import job  # noqa: E402


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line; an error ends the program with code 2 and one line on stderr."""
    parser = job.JobParser(
        prog="replay.py",
        description="Decode the messages that did not fit their schema again, after it was mended.",
        epilog="Needs Java 17 or newer. Rows that do not fit stay as they are.",
    )
    job.add_lake(parser)
    parser.add_argument("--stream", required=True, metavar="NAME", help="stream whose misfits are decoded again")
    parser.add_argument("--account", default="$G", metavar="NAME", help="account of the stream (default: $G)")
    job.add_spark(parser)
    job.add_json(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run the job; return the exit code: 0 on success, 1 with a line on stderr otherwise."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    return job.run("replay", lambda stop: run(options, stop))


def run(options: argparse.Namespace, stop: threading.Event) -> int:
    """Find the stream, start Spark, replay its misfits."""
    from lakestream.lake.staging.scan import Scanner
    from lakestream.lake.storage import lake as lakes
    from lakestream.lake.storage import paths
    from lakestream_spark.write.replay import NoReplay, Replay

    lake = paths.root(options.lake)
    lakes.require(lake)
    names = (options.stream, options.account)
    found = [each for each in Scanner(lake).scan() if (each.identity.name, each.identity.account) == names]
    stream = next((each for each in found if not each.deleted), None)
    if stream is None:
        raise NoReplay(f"the lake has no stream {options.stream} of account {options.account}")
    spark = job.start_spark("lakestream replay", lake, options, stop)
    try:
        done = Replay(spark, lake, stream.identity).run()
    finally:
        spark.stop()
    left = done.misfits - done.mended - done.gone
    text = f"{options.stream}: {done.misfits} misfits, {done.mended} fit now, {left} do not, {done.gone} are gone"
    job.tell(
        options.json, text, stream=options.stream, misfits=done.misfits, mended=done.mended, left=left, gone=done.gone
    )
    return 0


if __name__ == "__main__":
    job.leave(main())
