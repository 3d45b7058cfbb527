#!/usr/bin/env python3
"""Measure the compactor's cost of idle streams, and if a busy stream delays a quiet one.

    python -m tests.bench.bench_streams [--streams 1000] [--backlog 30] [--s3] [--without-spark] [--batch 200]

Prints the time of one look over the staging area (the first, and the ones after it), and what the requests are on an
object store; then, with Spark, how long a single message of a quiet stream takes into its table while another stream
has a backlog of many commits, among all those idle streams. With `--batch N` it measures micro-batches of N streams
with 50 messages each instead: the first makes their tables.

Figures: docs/cluster.md
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from lakestream.lake.staging import staging
from lakestream.lake.staging.scan import SETTLED_NS, Scanner
from lakestream.lake.staging.staging import StreamIdentity
from lakestream.lake.storage import lake as lakes
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table.state import TableFollower
from tests.bench.lake_streams import cpu_seconds
from tests.lake.model import StreamModel, flights

ROOT = Path(__file__).resolve().parents[2]

LOOKS = 50
DEADLINE_SECONDS = 600


def main() -> int:
    """Run the measurements of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1000, help="idle streams (default: 1000)")
    parser.add_argument("--backlog", type=int, default=30, help="commits of the busy stream (default: 30)")
    parser.add_argument("--s3", action="store_true", help="also look over a staging area in an object store (moto)")
    parser.add_argument("--without-spark", action="store_true", help="only look")
    parser.add_argument("--batch", type=int, metavar="N", help="micro-batches of so many streams")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-streams-") as directory:
        work = Path(directory)
        lake = str(work / "lake")
        if options.batch:
            micro_batches(lake, work, options.batch)
            return 0
        populate(lake, options.streams)
        print(f"{options.streams} idle streams in a directory")
        looks(lake, options.streams)
        if options.s3:
            object_store(options.streams)
        if not options.without_spark:
            fairness(lake, work, options.backlog)
    return 0


def populate(lake: str, count: int) -> None:
    """Create the staging directories of idle streams."""
    storage = open_storage(lake)
    for number in range(count):
        identity = StreamIdentity(name=f"IDLE-{number}", account="$G", uid=f"uid{number}", created_ns=number)
        directory = paths.staging(lake, identity.name, identity.uid)
        storage.write(f"{directory}/{paths.STREAM_FILE}", msgspec.json.encode(identity))


def looks(lake: str, count: int) -> None:
    """Time scans of the staging area."""
    scanner = Scanner(lake)
    began = time.perf_counter()
    assert len(scanner.scan()) == count
    first = time.perf_counter() - began
    if open_storage(lake).local:
        # Directories changed a moment ago are scanned again; an idle stream's are older.
        past = time.time_ns() - 2 * SETTLED_NS
        for parent, _, _ in os.walk(f"{lake}/{paths.SEGMENTS}"):
            os.utime(parent, ns=(past, past))
        scanner.scan()
    seconds = []
    for _ in range(LOOKS):
        began = time.perf_counter()
        scanner.scan()
        seconds.append(time.perf_counter() - began)
    again = statistics.median(seconds)
    print(f"  first look {first * 1e3:8.1f} ms; again {again * 1e3:6.2f} ms, {again / count * 1e6:.1f} us a stream")


def object_store(count: int) -> None:
    """Time the scans in an object store that runs as another process on this machine."""
    from tests.s3_server import S3Server

    server = S3Server()
    server.start()
    try:
        os.environ.update(server.variables())
        lake = server.url("lake")
        populate(lake, count)
        print(f"{count} idle streams in an object store (moto on this machine): one LIST for each 1,000 objects")
        looks(lake, count)
    finally:
        server.stop()


def fairness(lake: str, work: Path, commits: int) -> None:
    """Measure one message of a quiet stream beside a backlog of many commits."""
    from lakestream_spark import session as sessions
    from lakestream_spark.write.compactor import Compactor
    from lakestream_spark.write.stream_compaction import CompactionOptions

    busy, quiet = StreamModel(work / "busy", "BUSY", "busy"), StreamModel(work / "quiet", "QUIET", "quiet")
    for model in (busy, quiet):  # create both tables and warm Spark up
        publish(model, lake)
    session = sessions.session("bench streams")
    compactor = Compactor(session, lake, parallel=2, options=CompactionOptions(commit_bytes=1))
    try:
        compactor.once()
        compactor.start(0.5)
        backlog = time.perf_counter()
        for _ in range(commits):
            publish(busy, lake, 20_000)
        reached(lake, busy, len(busy.sealed) - commits + 1)
        began = time.perf_counter()
        publish(quiet, lake)
        reached(lake, quiet, len(quiet.sealed))
        waited = time.perf_counter() - began
        reached(lake, busy, len(busy.sealed))
        total = time.perf_counter() - backlog
        print(f"a backlog of {commits} commits took {total:.1f} s; meanwhile a quiet stream's {waited:.1f} s")
    finally:
        compactor.stop()
        session.stop()


def micro_batches(lake: str, work: Path, count: int) -> None:
    """Measure batches of many small streams, after others have warmed Spark up."""
    from lakestream_spark import session as sessions
    from lakestream_spark.write.compactor import Compactor
    from lakestream_spark.write.lake_compaction import BatchReport

    reports: list[BatchReport] = []
    session = sessions.session("bench streams")
    compactor = Compactor(session, lake, report=reports.append)
    try:
        for name, streams, rounds in (("WARM", 50, 3), ("MEASURED", count, 5)):
            models = [StreamModel(work / f"{name}{n}", f"{name}-{n}", f"{name}{n}") for n in range(streams)]
            for _ in range(rounds):
                for model in models:
                    publish(model, lake, 50)
                reports.clear()
                spent = cpu_seconds()
                compactor.once()
                spent = cpu_seconds() - spent
                if name != "WARM":
                    seconds = sum(each.seconds for each in reports)
                    print(f"{streams} streams with 50 messages each: {seconds:.1f} s, {spent:.1f} s of a processor")
    finally:
        compactor.stop()
        session.stop()


def publish(model: StreamModel, lake: Any, messages: int = 10) -> None:
    """Seal and stage one segment."""
    model.publish(flights(messages, subjects=2))
    lakes.require(str(lake), create=True)
    staging.stage(*_sealed(model), model.identity, lake)


def _sealed(model: StreamModel) -> tuple[str, int, int]:
    sealed = model.seal()
    return sealed.path, sealed.first_index, sealed.last_index


def reached(lake: str, model: StreamModel, segments: int) -> None:
    """Wait until the table holds a stream's first `segments` segments."""
    watch = TableFollower(paths.table(lake, model.identity.name), model.identity.uid)
    until = time.monotonic() + DEADLINE_SECONDS
    pause = threading.Event()
    while (watch.position() or 0) < model.sealed[segments - 1].last_index:
        if time.monotonic() > until:
            raise TimeoutError(model.identity.name)
        pause.wait(0.02)


if __name__ == "__main__":
    sys.exit(main())
