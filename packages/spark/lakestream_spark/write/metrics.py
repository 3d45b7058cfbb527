"""The metrics of the compactor.

Belongs here: name, kind and documentation of each, what is counted for them once per batch, and the memory of the JVM.
docs/reference/metrics.md is generated from here.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from lakestream import __version__
from lakestream.lake.catalogs.keeper import CHANGES
from lakestream.lake.staging.compactor_files import QueryProgress
from lakestream.lake.storage import paths
from lakestream.metrics.family import COUNTER, GAUGE, HISTOGRAM, Family, Sheet, families
from lakestream.metrics.histogram import Histogram

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakestream.lake.catalogs.address import CatalogAddress
    from lakestream_spark.write.compactor import Compactor
    from lakestream_spark.write.lake_compaction import BatchReport
    from lakestream_spark.write.maintainer import MaintenanceResult

COMPACTOR_STREAMS = 1_000
"""Streams with commits and failures of their own; those of further ones are counted under empty labels."""
BATCH_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0)
"""Upper bounds of the durations of batches and commits, 100 ms through 100 s."""

_STREAM = ("account", "stream_name")
INFO = Family("lakestream_compactor_build_info", GAUGE, "Version of the compactor as a label; always 1.", ("version",))
ACTIVE = Family(
    "lakestream_compactor_active", GAUGE, "1 if this compactor holds the lake's lock, 0 while it waits for it."
)
COMMITS = Family(
    "lakestream_compaction_commits_total", COUNTER, "Commits to the stream's table since the start.", _STREAM
)
FAILURES = Family(
    "lakestream_compaction_failures_total",
    COUNTER,
    "Failed compactions of the stream since the start; each is retried.",
    _STREAM,
)
FAILING = Family("lakestream_compaction_failing_streams", GAUGE, "Streams whose last compaction failed.")
MESSAGES = Family("lakestream_compaction_messages_total", COUNTER, "Messages written to tables since the start.")
MISFITS = Family(
    "lakestream_compaction_misfits_total",
    COUNTER,
    "Messages of the stream that did not fit their schema, since the start.",
    _STREAM,
)
BATCHES = Family(
    "lakestream_compaction_batch_duration_seconds", HISTOGRAM, "Duration of each batch that did something, in seconds."
)
BATCH = Family("lakestream_streaming_batch_id", GAUGE, "Number of the query's last micro-batch; -1: none yet.")
SEGMENTS = Family("lakestream_streaming_input_rows", GAUGE, "Rows (segments) of the last micro-batch.")
INPUT = Family(
    "lakestream_streaming_input_rows_per_second", GAUGE, "Rows a second that arrived for the last micro-batch."
)
PROCESSED = Family(
    "lakestream_streaming_processed_rows_per_second", GAUGE, "Rows a second that the last micro-batch processed."
)
DURATION = Family("lakestream_streaming_batch_duration_seconds", GAUGE, "Duration of the last micro-batch.")
LAST = Family(
    "lakestream_compaction_last_commit_timestamp_seconds",
    GAUGE,
    "Time of the last commit, since the epoch; 0: none yet.",
)
MAINTAINED = Family("lakestream_maintenance_tables_total", COUNTER, "Tables maintained since the start.", ("result",))
CATALOG_UP = Family(
    "lakestream_catalog_up",
    GAUGE,
    "1 if the tables are registered in the catalog as they are, 0 if the last attempt failed.",
    ("catalog",),
)
CATALOG_ENTRIES = Family(
    "lakestream_catalog_entries", GAUGE, "Entries of the lake in the catalog, by the last attempt.", ("catalog",)
)
CATALOG_CHANGES = Family(
    "lakestream_catalog_changes_total", COUNTER, "Changes of entries in the catalog.", ("catalog", "change")
)
CATALOG_FAILURES = Family(
    "lakestream_catalog_failures_total", COUNTER, "Failed attempts; each is repeated.", ("catalog",)
)
JVM_USED = Family("jvm_memory_used_bytes", GAUGE, "Memory that the JVM uses, in bytes.", ("area",))
JVM_COMMITTED = Family("jvm_memory_committed_bytes", GAUGE, "Memory that the JVM has reserved, in bytes.", ("area",))
JVM_MAX = Family("jvm_memory_max_bytes", GAUGE, "Limit of the JVM's memory, in bytes; -1: none.", ("area",))
JVM_RESIDENT = Family("lakestream_jvm_resident_memory_bytes", GAUGE, "Resident memory of the JVM's process, in bytes.")

FAMILIES = families(globals())
"""All of them, in the order of the reference."""


class PassResult(Protocol):
    """Result of a pass over a catalog. `error`: the reason for an early end."""

    @property
    def catalog(self) -> str: ...

    @property
    def error(self) -> str: ...

    @property
    def entries(self) -> int:
        """Return the number of entries that are as they should be."""

    @property
    def reason(self) -> str:
        """Return why the catalog is not as it should be, in one line; "" if it is."""

    def count(self, kind: str) -> int:
        """Count the decisions of a kind that have not failed."""

    def describe(self) -> str:
        """Return the changes in one line."""


class CompactorMetrics:
    """The metrics of one compactor. `collect` may be called in any thread, from before Spark starts until after it has
    ended.

    Args:
        lake: the lake's root.
        catalogs: the catalogs in which the tables are registered.
    """

    def __init__(self, lake: str, catalogs: Sequence[CatalogAddress] = ()) -> None:
        self._lake = lake
        self._catalogs = [str(each) for each in catalogs]
        self.compactor: Compactor | None = None
        """Set once it exists."""
        self.spark: SparkSession | None = None
        """Set while it runs."""
        self.active = False
        self._lock = threading.Lock()
        self._commits: Counter[tuple[str, str]] = Counter()
        self._failures: Counter[tuple[str, str]] = Counter()
        self._misfits: Counter[tuple[str, str]] = Counter()
        self._maintained: Counter[str] = Counter()
        self._catalog_ok: dict[str, bool] = {}
        self._entries: dict[str, int] = {}
        self._changes: Counter[tuple[str, str]] = Counter()
        self._catalog_failures: Counter[str] = Counter()
        self._messages = 0
        self._last = 0.0
        self._batches = Histogram(BATCH_SECONDS)

    def note(self, batch: BatchReport, now: float) -> None:
        """Count a batch that ended now (seconds since the epoch)."""
        self._batches.observe(batch.seconds)
        with self._lock:
            self._messages += batch.rows
            for table, commits in batch.commits.items():
                _count(self._commits, paths.stream_of(self._lake, table), commits)
            for table, misfits in batch.misfits.items():
                _count(self._misfits, paths.stream_of(self._lake, table), misfits)
            for directory in batch.failures:
                _count(self._failures, paths.stream_of(self._lake, directory), 1)
            if batch.commits:
                self._last = now

    def note_maintained(self, done: MaintenanceResult) -> None:
        """Count the maintenance of a table, unless there was nothing to do."""
        if done.failure is not None or done.plan:
            with self._lock:
                self._maintained["error" if done.failure is not None else "ok"] += 1

    def note_catalog(self, result: PassResult) -> None:
        """Count the changes of a pass over a catalog."""
        with self._lock:
            self._catalog_ok[result.catalog] = not result.reason
            if not result.error:
                self._entries[result.catalog] = result.entries
            for kind in CHANGES:
                self._changes[result.catalog, kind] += result.count(kind)
            self._catalog_failures[result.catalog] += bool(result.reason)

    def collect(self, sheet: Sheet) -> None:
        """Fill the sheet."""
        sheet.put(INFO, 1, {"version": __version__})
        sheet.put(ACTIVE, float(self.active))
        with self._lock:
            by_stream = ((COMMITS, self._commits), (FAILURES, self._failures), (MISFITS, self._misfits))
            for family, counts in by_stream:
                for (account, stream), count in counts.items():
                    sheet.put(family, count, {"account": account, "stream_name": stream})
            for result in ("ok", "error"):
                sheet.put(MAINTAINED, self._maintained[result], {"result": result})
            self._collect_catalogs(sheet)
            sheet.put(MESSAGES, self._messages)
            sheet.put(LAST, self._last)
        sheet.put(FAILING, self.compactor.failing if self.compactor is not None else 0)
        sheet.put(BATCHES, self._batches.read())
        progress = self.compactor.progress if self.compactor is not None else QueryProgress()
        sheet.put(BATCH, progress.batch)
        sheet.put(SEGMENTS, progress.segments)
        sheet.put(INPUT, progress.input_per_second)
        sheet.put(PROCESSED, progress.processed_per_second)
        sheet.put(DURATION, progress.seconds)
        if self.spark is not None:
            _jvm(sheet, self.spark)

    def _collect_catalogs(self, sheet: Sheet) -> None:
        """Add the catalogs; one without an attempt yet is not up. Invariant: `_lock` is held."""
        for catalog in self._catalogs:
            labels = {"catalog": catalog}
            sheet.put(CATALOG_UP, float(self._catalog_ok.get(catalog, False)), labels)
            sheet.put(CATALOG_ENTRIES, self._entries.get(catalog, 0), labels)
            sheet.put(CATALOG_FAILURES, self._catalog_failures[catalog], labels)
            for kind in CHANGES:
                sheet.put(CATALOG_CHANGES, self._changes[catalog, kind], {**labels, "change": kind})


def _count(counts: Counter[tuple[str, str]], key: tuple[str, str], count: int) -> None:
    counts[key if key in counts or len(counts) < COMPACTOR_STREAMS else ("", "")] += count


def _jvm(sheet: Sheet, spark: SparkSession) -> None:
    """Add the memory of the JVM, unless it has ended."""
    from py4j.protocol import Py4JError

    try:
        java = spark._jvm.java.lang  # type: ignore[union-attr]
        memory = java.management.ManagementFactory.getMemoryMXBean()
        for area, usage in (("heap", memory.getHeapMemoryUsage()), ("nonheap", memory.getNonHeapMemoryUsage())):
            sheet.put(JVM_USED, usage.getUsed(), {"area": area})
            sheet.put(JVM_COMMITTED, usage.getCommitted(), {"area": area})
            sheet.put(JVM_MAX, usage.getMax(), {"area": area})
        resident = _resident_bytes(java.ProcessHandle.current().pid())
    except (Py4JError, OSError, AttributeError):
        return  # it is about to end
    if resident:
        sheet.put(JVM_RESIDENT, resident)


def _resident_bytes(pid: int) -> int:
    """Return the resident memory of a process; 0 without /proc."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as stream:
            return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError:
        return 0
