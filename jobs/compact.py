#!/usr/bin/env python3
"""Compact staged segments of all streams into their Delta tables, and maintain the tables meanwhile.

    python jobs/compact.py --lake ./data/lake                    (a Spark of its own on this machine)
    spark-submit jobs/compact.py --lake /mnt/lake --once         (the Spark that spark-submit was configured for)

Belongs here: the command line and the loop. lakestream_spark.write.compactor and upkeep do the work, and
lakestream_catalogs.keeper (packages/catalogs) keeps the tables registered in catalogs, and lakestream_iceberg.keeper
(packages/iceberg) their Iceberg tables.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
if (ROOT / "lakestream").is_dir():
    sys.path.insert(0, str(ROOT))  # run from a checkout, installed or not

from lakestream.extras import ExtraMissing, load  # noqa: E402
from lakestream.lake.catalogs import address  # noqa: E402
from lakestream.lake.catalogs.address import CatalogAddress  # noqa: E402
from lakestream.lake.errors import JarsMissing, StorageFailed, first_line  # noqa: E402
from lakestream.lake.storage import paths  # noqa: E402
from lakestream.lake.table.policy import ICEBERG_FORMATS  # noqa: E402
from lakestream.spans import Spans, configured, open_spans  # noqa: E402
from lakestream_spark import job  # noqa: E402
from lakestream_spark.connect import HEAP_MIB, ConnectServer  # noqa: E402
from lakestream_spark.job import complain, say  # noqa: E402
from lakestream_spark.write.metrics import CompactorMetrics, PassResult  # noqa: E402
from lakestream_spark.write.upkeep import DEFAULT_EVERY_SECONDS, Upkeep  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakestream.lake.catalogs.keeper import Keeper
    from lakestream_spark.session import Rest
    from lakestream_spark.write.compactor import Compactor
    from lakestream_spark.write.lake_compaction import BatchReport
    from lakestream_spark.write.maintainer import MaintenanceResult

DEFAULT_INTERVAL = 1.0
DEFAULT_PARALLEL = 4
ORPHAN_GRACE_SECONDS = 30.0
"""Time for a compactor whose parent has died to stop in order."""

REPORT_SECONDS = 60.0
"""The batches of a minute have one line together."""


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line; an error ends the program with code 2 and one line on stderr."""
    parser = job.JobParser(
        prog="compact.py",
        description="Append staged segments of all streams to their Delta tables, exactly once.",
        epilog="Runs until SIGTERM or SIGINT, unless --once is given. Needs Java 17 or newer.",
    )
    job.add_lake(parser)
    parser.add_argument(
        "--checkpoint",
        metavar="DIR",
        help="the streaming checkpoint (default: _compactor in the lake)",
    )
    parser.add_argument("--create", action="store_true", help="create an empty lake if there is none")
    parser.add_argument("--once", action="store_true", help="compact the segments that are staged now, then exit")
    parser.add_argument(
        "--interval",
        type=job.positive,
        default=DEFAULT_INTERVAL,
        metavar="SECONDS",
        help=f"look for staged segments at least this often (default: {DEFAULT_INTERVAL:g})",
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
    parser.add_argument(
        "--report-every",
        type=job.not_negative,
        default=REPORT_SECONDS,
        metavar="SECONDS",
        help="one line for the batches of so many seconds; 0: one for each batch (default: %(default)g)",
    )
    parser.add_argument(
        "--catalog",
        action="append",
        default=[],
        metavar="URL",
        help="keep the tables registered in this catalog; may be repeated (default: those of $LAKESTREAM_CATALOGS)",
    )
    parser.add_argument(
        "--iceberg",
        choices=ICEBERG_FORMATS,
        default="off",
        help="Iceberg tables over the same files, for streams that do not say otherwise (default: off)",
    )
    parser.add_argument(
        "--metrics",
        type=job.listening,
        metavar="[HOST:]PORT",
        help="serve metrics for Prometheus there at /metrics (default host: 127.0.0.1)",
    )
    parser.add_argument(
        "--connect",
        type=job.listening,
        metavar="[HOST:]PORT",
        help="serve Spark Connect there (default host: 127.0.0.1), with the token in "
        "$SPARK_CONNECT_AUTHENTICATE_TOKEN, else one of its own; the heap is 1024 MiB then",
    )
    job.add_spark(parser)
    job.add_json(parser)
    parser.add_argument(
        "--exit-with-parent", action="store_true", help="stop when standard input is closed (not under spark-submit)"
    )
    given = parser.parse_args(arguments)
    if given.connect is not None and given.heap == job.DEFAULT_HEAP_MIB:
        given.heap = HEAP_MIB
    if given.connect is not None:
        given.cores += 1  # a slot that is kept (jvm/, Preemption.java)
    return given


def main(arguments: list[str] | None = None) -> int:
    """Run the job; return the exit code: 0 on success, 1 with a line on stderr otherwise."""
    options = parse(sys.argv[1:] if arguments is None else arguments)

    def work(stop: threading.Event) -> int:
        if options.exit_with_parent:
            threading.Thread(target=_watch_parent, args=(stop,), name="parent", daemon=True).start()
        catalogs = address.given(options.catalog, os.environ)
        metrics = CompactorMetrics(paths.root(options.lake), catalogs)
        serving = job.serve_metrics(options.metrics, metrics.collect)
        try:
            return run(options, stop, metrics, catalogs)
        finally:
            if serving is not None:
                serving.close()

    return job.run("compactor", work)


def run(
    options: argparse.Namespace,
    stop: threading.Event,
    metrics: CompactorMetrics,
    catalogs: Sequence[CatalogAddress],
) -> int:
    """Start Spark, take the compactor's lock, work until `stop` (or until done, with --once).

    With --once and nothing to do Spark is not started.
    """
    from lakestream.lake.storage import lake as lakes
    from lakestream_spark.write.outages import Outages

    lake = paths.root(options.lake)
    lakes.require(lake, options.create)
    outages = Outages(lake, stop, complain)
    keeper = _keeper(lake, catalogs, metrics)
    began, moved = time.monotonic(), 0
    if options.once and not _has_work(lake) and not _iceberg_behind(lake, options.iceberg):
        _say_result(options.json, 0, 0, time.monotonic() - began)
        if keeper is not None:
            keeper.once()
        return 0
    connect = None if options.connect is None or options.once else ConnectServer(lake, options.connect)
    settings = None if connect is None else connect.settings(options.heap)
    with_iceberg = find_spec("lakestream_iceberg") is not None
    spark = metrics.spark = job.start_spark("lakestream compactor", lake, options, stop, settings, with_iceberg)
    iceberg = None
    if with_iceberg or options.iceberg != "off":
        iceberg = _iceberg(spark, lake, options.iceberg, metrics, keeper)
    keepers = [each for each in (iceberg, keeper) if each is not None]  # in this order with --once
    if connect is not None:
        connect.spark = spark
    from lakestream.lake.progress import watched
    from lakestream_spark.session import Rest
    from lakestream_spark.write.backlog import Backlog
    from lakestream_spark.write.compactor import Compactor
    from lakestream_spark.write.spans import CommitSpans
    from lakestream_spark.write.stream_compaction import CompactionOptions

    upkeep = (
        None if options.once or not options.maintain_every else _upkeep(spark, lake, options, stop, metrics, keepers)
    )

    rest, lines = Rest(spark), BatchLines(options.json, 0 if options.once else options.report_every)

    def report(batch: BatchReport) -> None:
        nonlocal moved
        if batch.streams:
            rest.worked()
        moved += batch.streams
        lines.add(batch)
        metrics.note(batch, time.time())
        if upkeep is not None:
            upkeep.note(batch.commits)
        for each in keepers:
            each.note([*batch.commits, *batch.keyed, *batch.removed])

    spans = _open_spans(lake)

    def make() -> Compactor:
        return Compactor(
            spark,
            lake,
            options.checkpoint,
            parallel=options.parallel,
            options=CompactionOptions(spans=None if spans is None else CommitSpans(spans)),
            stopping=stop,
            report=report,
            tell=say,
            complain=complain,
        )

    compactor = metrics.compactor = make()
    try:
        while True:
            try:
                if not job.become_only(compactor.acquire, "compactor", lake, options.once, stop):
                    return 0 if stop.is_set() else 1
                metrics.active = True
                if options.once:
                    backlog = Backlog(lake)
                    with watched("compact", backlog.total, backlog.done):
                        failures = compactor.once().failures
                    for each in keepers:
                        each.once()
                    if not moved:
                        _say_result(options.json, 0, 0, time.monotonic() - began)
                    return 1 if failures or stop.is_set() else 0
                outages.working()
                for each in keepers:
                    each.start()
                return _serve(compactor, upkeep, rest, lines, connect, options.interval, stop)
            except Exception as error:
                if options.once or not outages.outlast(error):
                    raise
            # Another one may have worked meanwhile: take the lock again, and read everything anew.
            metrics.active = False
            compactor.abandon()
            compactor = metrics.compactor = make()
    finally:
        metrics.spark = None
        lines.flush()
        for each in keepers:
            each.stop()
        _close(compactor, upkeep, connect, spark)
        if spans is not None:
            spans.close()


def _keeper(lake: str, catalogs: Sequence[CatalogAddress], metrics: CompactorMetrics) -> Keeper | None:
    """Return the keeper of the catalogs' entries, if there are any; without its package, None after a line."""
    if not catalogs:
        return None
    from lakestream.lake.catalogs.keeper import KEEPERS

    try:
        keeper = load(KEEPERS, "catalogs", "catalogs", f"the catalog {catalogs[0]}")
    except ExtraMissing as error:
        complain(f"{error}. Compaction goes on")
        return None

    def report(result: PassResult) -> None:
        metrics.note_catalog(result)
        if any(result.count(kind) for kind in ("create", "alter", "drop")):
            say(f"catalog {result.catalog}: {result.describe()}")

    made: Keeper = keeper(lake, catalogs, report, complain, active=lambda: metrics.active)
    return made


def _iceberg(
    spark: SparkSession, lake: str, default: str, metrics: CompactorMetrics, catalogs: Keeper | None
) -> Keeper | None:
    """Return the keeper of Iceberg tables; without its package or JARs, None after a line."""
    from lakestream.lake.catalogs.keeper import KEEPERS
    from lakestream_spark import pins, session

    try:
        keeper = load(KEEPERS, "iceberg", "iceberg", f"--iceberg={default}")
        session.require_package(spark, pins.ICEBERG, "Iceberg tables need it")
    except (ExtraMissing, JarsMissing) as error:
        if default != "off":
            complain(f"{error}. Compaction goes on")
        return None
    follow = {} if catalogs is None else {"moved": catalogs.note}
    made: Keeper = keeper(spark, lake, default, complain, active=lambda: metrics.active, **follow)
    return made


def _open_spans(lake: str) -> Spans | None:
    """Return the exporter of spans if OpenTelemetry's variables configure one."""
    if not configured():
        return None
    try:
        return open_spans("lakestream-compactor", lake, "", complain)
    except ExtraMissing as error:
        complain(str(error))
        return None


def _upkeep(
    spark: SparkSession,
    lake: str,
    options: argparse.Namespace,
    stop: threading.Event,
    metrics: CompactorMetrics,
    keepers: Sequence[Keeper],
) -> Upkeep:
    from lakestream_spark.write.maintainer import Maintainer

    def done(result: MaintenanceResult) -> None:
        _say_done(result)
        metrics.note_maintained(result)
        if result.plan or result.removed:
            for each in keepers:
                each.note([result.table])

    return Upkeep(Maintainer(spark, lake, stopping=stop.is_set), options.maintain_every, done, lake=lake)


def _start(connect: ConnectServer) -> None:
    """Serve Spark Connect. A port that is taken is reported: compaction matters more."""
    from py4j.protocol import Py4JError

    try:
        connect.start()
    except Py4JError as error:
        complain(f"no Spark Connect at {connect.address}: {first_line(error)}")
        return
    say(f"Spark Connect at {connect.address}")


def _close(compactor: Compactor, upkeep: Upkeep | None, connect: ConnectServer | None, spark: SparkSession) -> None:
    """Stop the query, then Spark. A JVM that is gone already has released its locks."""
    from py4j.protocol import Py4JError

    try:
        if connect is not None:
            connect.stop()
        compactor.stop()
        if upkeep is not None:
            upkeep.stop()
        compactor.release()
        spark.stop()
    except (Py4JError, OSError) as error:
        complain(f"Spark did not end by itself: {type(error).__name__}")


def _serve(
    compactor: Compactor,
    upkeep: Upkeep | None,
    rest: Rest,
    lines: BatchLines,
    connect: ConnectServer | None,
    interval: float,
    stop: threading.Event,
) -> int:
    compactor.start(interval)
    say("compactor ready")
    if connect is not None:
        _start(connect)
    if upkeep is not None:
        upkeep.start()
    while not stop.wait(interval):
        compactor.check()
        compactor.tend()
        rest.check()
        lines.check()
    return 0


def _has_work(lake: str) -> bool:
    """Return True if the lake may have something to compact, or cannot be checked."""
    from lakestream_spark.write.backlog import has_work

    try:
        return has_work(lake)
    except StorageFailed:
        raise
    except Exception:  # for instance a damaged table: the compactor reports the stream and continues with the others
        return True


def _iceberg_behind(lake: str, default: str) -> bool:
    """Return True if an Iceberg table does not hold what its Delta table does: an earlier run was interrupted."""
    from lakestream.lake.catalogs.keeper import KEEPERS

    try:
        keeper = load(KEEPERS, "iceberg", "iceberg", f"--iceberg={default}")
        return bool(keeper.is_behind(lake, default))
    except ExtraMissing:
        return False
    except Exception:  # a table that cannot be read: the keeper reports it
        return True


class BatchLines:
    """Lines about batches: failures and the first batch at once, then one line for those of some time.

    Args:
        as_json: print JSON.
        every: seconds of a line; 0: each batch has its own.
    """

    def __init__(self, as_json: bool, every: float) -> None:
        self._json, self._every = as_json, every
        self._due = time.monotonic()
        self._batches: list[BatchReport] = []
        self._lock = threading.Lock()

    def add(self, batch: BatchReport) -> None:
        """Take the report of a batch. Called by one thread, `check` by another."""
        if batch.streams:
            with self._lock:
                self._batches.append(batch)
            self.check()
        for directory, reason in batch.failures.items():
            (say if directory in batch.waiting else complain)(f"{directory}: {reason}")

    def check(self) -> None:
        """Print what is due."""
        if self._batches and time.monotonic() >= self._due:
            self.flush()

    def flush(self) -> None:
        """Print what was not printed yet."""
        with self._lock:
            batches, self._batches = self._batches, []
            self._due = time.monotonic() + self._every
        if batches:
            tables = {name for each in batches for name in each.commits}
            streams = batches[0].streams if len(batches) == 1 else len(tables)
            rows, seconds = sum(each.rows for each in batches), sum(each.seconds for each in batches)
            _say_result(self._json, streams, rows, seconds, len(batches))


def _say_result(as_json: bool, streams: int, rows: int, seconds: float, batches: int = 1) -> None:
    text = f"compacted {streams} {'stream' if streams == 1 else 'streams'}"
    text += f" in {batches} batches" if batches > 1 else ""
    text += f", {rows} {'row' if rows == 1 else 'rows'}, {seconds:.2f} s"
    job.tell(as_json, text, streams=streams, rows=rows, seconds=round(seconds, 3), batches=batches)


def _say_done(done: MaintenanceResult) -> None:
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
    os._exit(1)  # the parent is gone; the JVM ends when its standard input does


if __name__ == "__main__":
    job.leave(main())
