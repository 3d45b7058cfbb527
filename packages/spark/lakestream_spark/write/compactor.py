"""The compactor: one streaming query over all streams of a lake.

Belongs here: the query and its checkpoint, starting it again when it ends, and the lock that makes the compactor the
only one. source.py decides which streams are offered, lake_compaction.py has the micro-batches.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from lakestream.lake.errors import LakeError, LeaseLost, first_line
from lakestream.lake.staging import compactor_files
from lakestream.lake.staging.compactor_files import QueryProgress
from lakestream.lake.storage import lake as lakes
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.storage.locks import COMPACTOR_LOCK, open_lock
from lakestream_spark.write.lake_compaction import (
    PLAN_SECONDS,
    WORKER_LATE,
    BatchReport,
    BatchTally,
    LakeCompaction,
    is_worker_late,
)
from lakestream_spark.write.source import NAME, Offset, SegmentsSource, offset_of
from lakestream_spark.write.stream_compaction import CompactionOptions, clear_removed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DEFAULT_PARALLEL = 4
"""Number of streams that are planned, or committed, in parallel."""
WORKER_TRIES = 5
"""Maximum number of attempts in a row when a Python worker does not connect back to Spark. Spark gives a worker 10 s,
which cannot be configured, and a busy machine may need longer."""
WORKER_PAUSE_SECONDS = 1.0
"""Pause before the second attempt, doubled before each further one."""
TEND_SECONDS = 1.0
"""Time that `tend` waits for the end of a batch."""
HEALTHY_SECONDS = 60.0
"""Run time after which a query's attempts are counted from zero."""
CHECKPOINT_PARTS = ("metadata", "offsets", "commits", "sources", "state", ".metadata.crc")
"""Entries of Spark in a streaming query's checkpoint directory."""


class Checkpoint:
    """The checkpoint of the streaming query.

    It tells Spark which offsets were offered, and people how far the compactor has looked. The tables tell what is
    done, so a checkpoint may be lost, stale, or left half written by a kill.

    Args:
        directory: its path or URL.
    """

    def __init__(self, directory: str) -> None:
        self._storage = open_storage(directory)
        self._root = self._storage.root

    @property
    def location(self) -> str:
        """Return the directory as Spark spells it."""
        return self._storage.spark_path(self._root)

    def offered(self, batch: int) -> dict[str, int]:
        """Return the streams that a batch offers, and through which log index."""
        return self._offset(batch).offered_since(self._offset(batch - 1))

    def _offset(self, batch: int) -> Offset:
        """Return the end of a batch from Spark's log of offsets; its last line is the offset of the only source."""
        try:
            content = self._storage.read(f"{self._root}/offsets/{batch}")
        except FileNotFoundError:
            return Offset()
        return offset_of(msgspec.json.decode(content.splitlines()[-1]))

    def clear(self) -> None:
        """Delete the checkpoint. Only Spark's own entries: a user may have named the directory."""
        for name in CHECKPOINT_PARTS:
            path = f"{self._root}/{name}"
            if not self._storage.local:
                self._storage.delete_tree(path)
            elif os.path.isdir(path):
                shutil.rmtree(path)
            elif os.path.exists(path):
                os.unlink(path)


class _Tries:
    """Attempts left for work whose Python worker does not start.

    Args:
        stopping: ends a pause.
        complain: gets a line about each failure that another attempt follows.
    """

    def __init__(self, stopping: threading.Event, complain: Callable[[str], None]) -> None:
        self._stopping = stopping
        self._complain = complain
        self._failed = 0

    def again(self, what: str) -> bool:
        """Wait before another attempt; return False when there is none left, or when stopping."""
        self._failed += 1
        if self._failed >= WORKER_TRIES or self._stopping.is_set():
            return False
        pause = WORKER_PAUSE_SECONDS * 2 ** (self._failed - 1)
        self._complain(f"{what}: {WORKER_LATE}; try {self._failed} of {WORKER_TRIES}, the next in {pause:g} s")
        return not self._stopping.wait(pause)


class Compactor:
    """Compacts a lake until it is stopped.

    Args:
        spark: a session with Delta.
        lake: the lake's root.
        checkpoint: directory of the streaming query's checkpoint; `_compactor` in the lake by default.
        parallel: number of streams planned, or committed, in parallel.
        stopping: once set, by the caller or by `stop`, no further commit begins.
        report: called after each batch that did something.
        tell, complain: get a line about a clone, or about an error; also called in other threads.
    """

    def __init__(
        self,
        spark: SparkSession,
        lake: str,
        checkpoint: str | None = None,
        *,
        parallel: int = DEFAULT_PARALLEL,
        options: CompactionOptions | None = None,
        stopping: threading.Event | None = None,
        report: Callable[[BatchReport], None] = lambda report: None,
        tell: Callable[[str], None] = lambda line: None,
        complain: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._spark = spark
        self._lake = open_storage(lake).root
        self._complain = complain
        self._checkpoint = Checkpoint(checkpoint or paths.checkpoint(self._lake))
        self._options = options or CompactionOptions()
        self._progress = QueryProgress()
        self._told = -1  # the batch of the progress that was written
        self._stopping = stopping or threading.Event()
        self._lock = open_lock(spark, f"{self._lake}/{COMPACTOR_LOCK}")
        self._query: StreamingQuery | None = None
        self._interval = 0.0
        self._began = 0.0  # when the query was started
        self._ran = False  # it has had a batch
        self._tries = _Tries(self._stopping, complain)
        self._work = LakeCompaction(
            spark, self._lake, self._options, parallel, self._halted, self._stopping, report, tell, complain
        )

    @property
    def failing(self) -> int:
        """Return the number of streams that are retried after an error."""
        return len(self._work.failures)

    @property
    def progress(self) -> QueryProgress:
        """Return Spark's progress of the last batch that offered something."""
        query = self._query
        found = query.lastProgress if query is not None else None
        if found is not None and found.numInputRows:
            self._progress = _progress_of(msgspec.json.decode(found.json))
        return self._progress

    # The lock

    def acquire(self) -> bool:
        """Take the compactor's lock; return False while another process holds it."""
        if not self._lock.acquire():
            return False
        clear_removed(self._lake)
        return True

    def release(self) -> None:
        """Release the compactor's lock."""
        self._lock.release()

    # Running

    def once(self) -> BatchReport:
        """Compact everything that is staged now. Failures are in the report."""
        began, total, tries = time.monotonic(), BatchTally(), _Tries(self._stopping, self._complain)
        self._work.failures.clear()
        with self._work.busy:
            self._work.clones.look(self._work.scan()[0], at_once=True)
        again = True
        while again and not self._halted():
            self._worked(lambda: self._begin({"availableNow": True}, 0, total))
            failed = self._work.failures
            late = set(failed.values()) == {WORKER_LATE}
            again = self._work.clones.wait() or (late and tries.again(f"{len(failed)} streams failed"))
        self._lock.check()  # losing the lock is no failure of a stream
        total.failures = self._work.failures | self._work.scanner.troubles
        return total.report(time.monotonic() - began)

    def start(self, interval: float) -> None:
        """Start the query: a batch begins when segments are staged; it scans for them at least every `interval` s."""
        self._interval, self._work.patience = interval, PLAN_SECONDS
        self._worked(self._serve)

    def check(self) -> None:
        """Raise the error that ended the query, or LeaseLost when another process may be the compactor by now.

        A query that ended because its Python worker did not start is started again, up to `WORKER_TRIES` times in a
        row.
        """
        self._lock.check()
        query = self._query
        if query is None or self._stopping.is_set():
            return
        if query.isActive:
            if time.monotonic() - self._began > HEALTHY_SECONDS:
                self._tries = _Tries(self._stopping, self._complain)
            return
        error = query.exception() or LakeError("the streaming query has ended")
        if self._is_checkpoint(error):
            self._serve()
        elif not is_worker_late(error):
            raise error
        elif self._tries.again("the streaming query has ended"):
            self._worked(self._serve)
        elif not self._stopping.is_set():
            raise LakeError(f"the streaming query has ended: {WORKER_LATE}")

    def tend(self) -> None:
        """Look for requests of mirrors, also while there is no batch; tell the progress, and what takes long. Call it
        every second."""
        self._work.report_long()
        if self._work.busy.acquire(timeout=TEND_SECONDS):
            try:
                self._work.clones.look(self._work.scan()[0])
            finally:
                self._work.busy.release()
        if (progress := self.progress).batch != self._told:
            compactor_files.PROGRESS.write(self._lake, progress)
            self._told = progress.batch

    def stop(self) -> None:
        """Stop the query between two batches; running commits finish. Return when it has ended."""
        self._stopping.set()
        with self._work.busy:  # stopping a query in mid-batch makes Spark print a stack trace a thousand lines long
            if self._query is not None:
                self._query.stop()
        self._work.close()
        self._work.clones.stop()

    def abandon(self) -> None:
        """End the query and release the lock after an error, so that another `Compactor` can take over here."""
        with contextlib.suppress(Exception):  # what it was is known
            if self._query is not None:
                self._query.stop()
        for end in (self._work.close, self._work.clones.stop, self._lock.release):
            with contextlib.suppress(Exception):
                end()

    # The query

    def _serve(self) -> None:
        self._begin({"processingTime": "0 seconds"}, self._interval)

    def _begin(self, trigger: dict[str, Any], wait_seconds: float, total: BatchTally | None = None) -> None:
        """Start the query; with a total, wait until it has ended, and add its batches there."""
        while True:
            self._began = time.monotonic()
            try:
                self._query = self._start(trigger, wait_seconds, total)
                if total is not None:
                    self._query.awaitTermination()
                return
            except Exception as error:
                if not self._is_checkpoint(error):
                    raise

    def _start(self, trigger: dict[str, Any], wait_seconds: float, total: BatchTally | None = None) -> StreamingQuery:
        self._spark.dataSource.register(SegmentsSource)
        staged = self._spark.readStream.format(NAME).option("lake", self._lake).option("wait", f"{wait_seconds:g}")
        staged = staged.option("tasks", str(self._spark.sparkContext.defaultParallelism))
        staged = staged.option("commit_bytes", str(self._options.commit_bytes))

        def batch(rows: DataFrame, number: int) -> None:
            self._ran = True
            self.batch(rows, self._checkpoint.offered(number), total)

        writer = staged.load().writeStream.queryName("lakestream").foreachBatch(batch)
        return writer.option("checkpointLocation", self._checkpoint.location).trigger(**trigger).start()

    def _is_checkpoint(self, error: BaseException) -> bool:
        """Delete the checkpoint if it may be why the first query ended before a batch; return False if not."""
        if self._ran or self._stopping.is_set() or is_worker_late(error):
            return False
        try:
            lakes.require(self._lake)
        except (LakeError, OSError):
            return False
        self._complain(f"the streaming checkpoint is begun anew; it could not be used: {first_line(error)}")
        self._checkpoint.clear()
        self._ran = True  # the next error has another cause
        return True

    def _worked(self, work: Callable[[], object]) -> None:
        """Run work on the query, again while its Python worker does not start.

        Raises:
            LakeError: it did not start `WORKER_TRIES` times.
        """
        tries = _Tries(self._stopping, self._complain)
        while True:
            try:
                work()
                return
            except Exception as error:
                if not is_worker_late(error):
                    raise
            if not tries.again("the streaming query has ended"):
                if self._stopping.is_set():
                    return
                raise LakeError(f"the streaming query has ended: {WORKER_LATE}")

    def batch(self, rows: DataFrame, offered: Mapping[str, int], total: BatchTally | None = None) -> None:
        """Compact the streams that a batch offers; see `LakeCompaction.batch`."""
        self._work.batch(rows, offered, total)

    def _halted(self) -> bool:
        """Return True if no further commit may begin: we are stopping, or may no longer hold the compactor's lock."""
        try:
            self._lock.check()
        except LeaseLost:
            return True
        return self._stopping.is_set()


def _progress_of(found: Mapping[str, Any]) -> QueryProgress:
    """Return Spark's progress as the record of it."""
    return QueryProgress(
        batch=int(found.get("batchId", -1)),
        began=str(found.get("timestamp", "")),
        segments=int(found.get("numInputRows", 0)),
        input_per_second=float(found.get("inputRowsPerSecond") or 0.0),
        processed_per_second=float(found.get("processedRowsPerSecond") or 0.0),
        seconds=float(found.get("durationMs", {}).get("triggerExecution", 0)) / 1000,
    )
