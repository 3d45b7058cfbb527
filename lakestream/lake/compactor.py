"""The compactor: one streaming query over all streams of a lake.

Belongs here: the query and its trigger, fanning a batch out over streams, housekeeping between batches (streams that
failed are tried again, tables of deleted streams are removed), and the lock that keeps it alone. What happens to one
stream is compaction.py's.

Invariant: one stream's trouble stops only that stream. It is reported, and tried again with growing pauses and at the
next news of it.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec

from lakestream.lake import paths, staging
from lakestream.lake.compaction import Options, Outcome, StreamCompaction, clear_removed
from lakestream.lake.errors import LakeError
from lakestream.lake.source import NAME, SegmentsSource
from lakestream.lake.staging import StagedStream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOCK_FILE = "_compactor.lock"
FIRST_RETRY_SECONDS = 5.0
LONGEST_RETRY_SECONDS = 300.0
DEFAULT_PARALLEL = 4
"""Streams compacted at the same time."""


CHECKPOINT_PARTS = ("metadata", "offsets", "commits", "sources", "state", ".metadata.crc")
"""What Spark keeps in a streaming query's checkpoint directory."""


def clear_checkpoint(directory: str) -> None:
    """Begin without the last query's checkpoint, which a kill may have left half written: Spark would refuse it.

    Nothing is lost: what there is to do follows from tables and staging. Only Spark's own entries are removed, since
    the directory may be one that the user named.
    """
    for name in CHECKPOINT_PARTS:
        path = os.path.join(directory, name)
        if os.path.isdir(path):
            shutil.rmtree(path)
        elif os.path.exists(path):
            os.unlink(path)


class BatchReport(msgspec.Struct, frozen=True):
    """One batch: how many streams it moved, messages and seconds it took, and what went wrong, by stream."""

    streams: int
    rows: int
    seconds: float
    failures: dict[str, str]


class _Failure(msgspec.Struct):
    retry_at: float
    pause: float


class Compactor:
    """Compacts a lake until told to stop.

    Args:
        spark: a session with Delta.
        lake: the lake's root, a directory.
        checkpoint: directory of the streaming query's checkpoint, begun anew by each query; see `clear_checkpoint`.
        parallel: streams compacted at the same time.
        stopping: set, from outside or by `stop`, it lets no further commit begin.
        report: called after each batch that did something.
    """

    def __init__(
        self,
        spark: SparkSession,
        lake: str,
        checkpoint: str | None = None,
        *,
        parallel: int = DEFAULT_PARALLEL,
        options: Options | None = None,
        stopping: threading.Event | None = None,
        report: Callable[[BatchReport], None] = lambda report: None,
    ) -> None:
        self._spark = spark
        self._lake = paths.local_root(lake)
        self._checkpoint = checkpoint or paths.checkpoint(self._lake)
        self._options = options or Options()
        self._report = report
        self._pool = ThreadPoolExecutor(parallel, thread_name_prefix="compact")
        self._streams: dict[str, StreamCompaction] = {}
        self._failures: dict[str, _Failure] = {}
        self._busy = threading.Lock()  # a batch or housekeeping is under way
        self._stopping = stopping or threading.Event()
        self._lock: list[Any] = []
        self._query: StreamingQuery | None = None
        os.makedirs(self._lake, exist_ok=True)

    # The lock

    def acquire(self) -> bool:
        """Become the lake's only compactor; False while another process is.

        The JVM holds the lock, not this interpreter: it is the JVM that commits, and it may outlive us for a moment.
        """
        jvm = self._spark.sparkContext._jvm
        assert jvm is not None
        channel = jvm.java.io.RandomAccessFile(os.path.join(self._lake, LOCK_FILE), "rw").getChannel()
        try:
            lock = channel.tryLock()
        except Exception:  # OverlappingFileLockException: this very JVM holds it for another Compactor
            lock = None
        if lock is None:
            channel.close()
            return False
        self._lock = [channel, lock]
        clear_removed(self._lake)
        return True

    def release(self) -> None:
        """Let another process compact the lake."""
        if self._lock:
            self._lock[0].close()
            self._lock = []

    # Running

    def once(self) -> BatchReport:
        """Compact everything that is staged now, then return. Failures are in the report."""
        query = self._start({"availableNow": True})
        query.awaitTermination()
        # Streams that the checkpoint believes done, but whose table is behind: an older failure, or a restored table.
        return self.sweep(retry_now=True)

    def start(self, interval: float) -> None:
        """Start the query, with a batch at most every `interval` seconds."""
        self._query = self._start({"processingTime": f"{interval:g} seconds"})

    def check(self) -> None:
        """Raise what ended the query, if it ended."""
        query = self._query
        if query is not None and not query.isActive and not self._stopping.is_set():
            raise query.exception() or LakeError("the streaming query has ended")

    def sweep(self, retry_now: bool = False) -> BatchReport:
        """Housekeeping: remove tables of deleted streams, try failed ones again, notice any that is behind."""
        with self._busy:
            live, gone = staging.current(staging.scan(self._lake))
            for stream in gone:
                self._forget(stream)
            names = {stream.directory for stream in live}
            for directory in self._failures.keys() - names:
                del self._failures[directory]
            now = time.monotonic()
            due = [each for each in live if retry_now or self._is_due(each.directory, now)]
            return self._compact(due)

    def stop(self) -> None:
        """End the query between two batches; commits under way are finished. Returns when it has ended."""
        self._stopping.set()
        with self._busy:  # stopping a query in mid-batch makes Spark print a stack trace a thousand lines long
            if self._query is not None:
                self._query.stop()
        self._pool.shutdown()

    # Batches

    def _start(self, trigger: dict[str, Any]) -> StreamingQuery:
        clear_checkpoint(self._checkpoint)
        self._spark.dataSource.register(SegmentsSource)
        news = self._spark.readStream.format(NAME).option("lake", self._lake).load()
        writer = news.writeStream.queryName("lakestream").foreachBatch(self._batch)
        return writer.option("checkpointLocation", self._checkpoint).trigger(**trigger).start()

    def _batch(self, news: DataFrame, number: int) -> None:
        """foreachBatch: compact the streams that the batch names."""
        directories = {row.directory for row in news.select("directory").distinct().collect()}
        with self._busy:
            live, _ = staging.current(staging.scan(self._lake))
            named = {os.path.join(self._lake, directory) for directory in directories}
            self._compact([stream for stream in live if stream.directory in named])

    def _compact(self, streams: Iterable[StagedStream]) -> BatchReport:
        """Compact streams side by side. Invariant: `_busy` is held."""
        began = time.monotonic()
        futures = {}
        for stream in streams:
            compaction = self._compaction(stream)
            if compaction.behind() and not self._stopping.is_set():
                futures[stream.directory] = self._pool.submit(compaction.run, self._stopping.is_set)
        outcomes: list[Outcome] = []
        failures: dict[str, str] = {}
        for directory, future in futures.items():
            error = future.exception()
            if error is None:
                self._failures.pop(directory, None)
                outcomes.append(future.result())
            elif not self._stopping.is_set():
                failures[directory] = _reason(error)
                self._postpone(directory)
        moved = [outcome for outcome in outcomes if outcome.commits]
        report = BatchReport(len(moved), sum(outcome.rows for outcome in moved), time.monotonic() - began, failures)
        if moved or failures:
            self._report(report)
        return report

    def _compaction(self, stream: StagedStream) -> StreamCompaction:
        known = self._streams.get(stream.directory)
        if known is None:
            known = StreamCompaction(self._spark, self._lake, stream, self._options)
            self._streams[stream.directory] = known
        return known

    def _forget(self, stream: StagedStream) -> None:
        """The stream is gone: its table goes, then what is left of its staging area."""
        compaction = self._streams.pop(stream.directory, None) or self._compaction(stream)
        self._streams.pop(stream.directory, None)
        compaction.drop_table()
        staging.discard(stream.directory)

    # Failures

    def _is_due(self, directory: str, now: float) -> bool:
        failure = self._failures.get(directory)
        return failure is not None and failure.retry_at <= now

    def _postpone(self, directory: str) -> None:
        before = self._failures.get(directory)
        pause = min(before.pause * 2, LONGEST_RETRY_SECONDS) if before else FIRST_RETRY_SECONDS
        self._failures[directory] = _Failure(time.monotonic() + pause, pause)


def _reason(error: BaseException) -> str:
    """One line about a failure; Spark's own texts go on with plans and stack traces."""
    if isinstance(error, LakeError | OSError):
        return str(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # A worker's exception stands in the middle of its traceback, as `module.Name: text`.
    inner = [line for line in lines if line.startswith("lakestream.lake.errors.")]
    return (inner or lines or [type(error).__name__])[0][:500]
