"""The compactor: one streaming query over all streams of a lake.

Belongs here: the query and its trigger, distributing a batch over streams, housekeeping between batches (retries,
tables of deleted streams), and the lock that makes the compactor the only one. stream_compaction.py compacts one
stream, clone_worker.py handles requests of mirrors.

Invariant: an error of one stream stops only that stream. It is reported, and the stream is retried with growing pauses
and when it stages more.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from lakestream.lake.errors import LakeError, LeaseLost, StillCloned, TableBusy, first_line
from lakestream.lake.files import paths, staging
from lakestream.lake.files.lake import open_storage
from lakestream.lake.files.locks import COMPACTOR_LOCK, mark, open_lock
from lakestream.lake.files.scan import Scanner
from lakestream.lake.files.staging import StagedStream
from lakestream.lake.write.clone_worker import CloneWorker
from lakestream.lake.write.refusals import with_remedy
from lakestream.lake.write.source import NAME, SegmentsSource
from lakestream.lake.write.stream_compaction import Options, Outcome, StreamCompaction, clear_removed
from lakestream.lake.write.transactions import own_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FIRST_RETRY_SECONDS = 5.0
LONGEST_RETRY_SECONDS = 300.0
DEFAULT_PARALLEL = 4
"""Number of streams compacted in parallel."""
ROUND_SECONDS = 30.0
"""Duration of a batch. Streams that are still behind continue in the next batch or `sweep`."""
LOOK_SECONDS = 1.0
"""Interval at which a longer batch scans for newly staged segments."""


WORKER_TRIES = 5
"""Maximum number of attempts in a row when a Python worker does not connect back to Spark. Spark gives a worker 10 s,
which cannot be configured, and a busy machine may need longer."""
WORKER_PAUSE_SECONDS = 1.0
"""Pause before the second attempt, doubled before each further one."""
HEALTHY_SECONDS = 60.0
"""Run time after which a query's attempts are counted from zero."""
WORKER_LATE = "Spark's Python worker did not start within the 10 s that Spark gives it: the machine is too busy"

CHECKPOINT_PARTS = ("metadata", "offsets", "commits", "sources", "state", ".metadata.crc")
"""Entries of Spark in a streaming query's checkpoint directory."""


def clear_checkpoint(directory: str) -> None:
    """Delete the last query's checkpoint, which a kill may have left incomplete, so that Spark would reject it.

    Nothing is lost: the work follows from tables and staging. Only Spark's own entries are deleted, since the user may
    have named the directory.
    """
    if not paths.is_local(paths.normalise(directory)):
        storage = open_storage(directory)
        for name in CHECKPOINT_PARTS:
            storage.delete_tree(f"{storage.root}/{name}")
        return
    for name in CHECKPOINT_PARTS:
        path = os.path.join(directory, name)
        if os.path.isdir(path):
            shutil.rmtree(path)
        elif os.path.exists(path):
            os.unlink(path)


class BatchReport(msgspec.Struct, frozen=True):
    """Result of a batch: number of streams, messages, seconds, errors by stream, commits and misfits by table.

    `removed`: the tables of streams that were deleted.
    """

    streams: int
    rows: int
    seconds: float
    failures: dict[str, str]
    commits: dict[str, int] = {}
    misfits: dict[str, int] = {}
    removed: list[str] = []


class _Tally:
    """Counters of a running batch, by stream."""

    def __init__(self) -> None:
        self.rows: Counter[str] = Counter()
        self.commits: Counter[str] = Counter()
        self.misfits: Counter[str] = Counter()
        self.failures: dict[str, str] = {}
        self.removed: list[str] = []

    def report(self, seconds: float) -> BatchReport:
        """Return the counters as a report."""
        rows, commits, misfits = self.rows, dict(self.commits), dict(self.misfits)
        return BatchReport(len(rows), rows.total(), seconds, self.failures, commits, misfits, self.removed)


class _Failure(msgspec.Struct):
    retry_at: float
    pause: float


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
        checkpoint: directory of the streaming query's checkpoint, emptied by each query; see `clear_checkpoint`. By
            default a temporary one of the driver's: in the lake, Spark would make its directories, and with them a new
            lake, where a directory is not mounted any more.
        parallel: number of streams compacted in parallel.
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
        options: Options | None = None,
        stopping: threading.Event | None = None,
        report: Callable[[BatchReport], None] = lambda report: None,
        tell: Callable[[str], None] = lambda line: None,
        complain: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._spark = spark
        self._own = own_session(spark)
        self._storage = open_storage(lake)
        self._lake = self._storage.root
        self._scanner = Scanner(lake)  # used while `_busy` is held
        self._complain = complain
        self._reported: dict[str, str] = {}  # errors of the last scan
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if checkpoint is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="lakestream-checkpoint-")
            checkpoint = self._temporary.name
        self._checkpoint = checkpoint
        self._options = options or Options()
        self._report = report
        self._pool = ThreadPoolExecutor(parallel, thread_name_prefix="compact")
        self._streams: dict[str, StreamCompaction] = {}
        self._failures: dict[str, _Failure] = {}
        self._noted: dict[str, str] = {}
        self._unfinished: set[str] = set()  # behind at the end of their batch
        self._reached: dict[str, int] = {}  # the log index that a stream's table holds, as far as a batch has seen
        self._tried: dict[str, int] = {}  # the last staged log index at a stream's last attempt
        self._busy = threading.Lock()  # a batch or housekeeping is under way
        self._stopping = stopping or threading.Event()
        self._lock = open_lock(spark, f"{self._lake}/{COMPACTOR_LOCK}")
        self._query: StreamingQuery | None = None
        self._interval = 0.0
        self._began = 0.0  # when the query was started
        self._tries = _Tries(self._stopping, complain)
        self._clones = CloneWorker(spark, self._lake, self._halted, tell, complain)

    @property
    def failing(self) -> int:
        """Return the number of streams that are retried after an error."""
        return len(self._failures)

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
        with self._busy:
            live, gone = self._scan()
            goal = {each.directory: each.last_index for each in [*live, *gone]}
            self._clones.look(live)
        self._worked(lambda: self._start({"availableNow": True}, 0).awaitTermination())
        # Streams that are done by the checkpoint, but whose table is behind: an earlier failure, or a restored table.
        report = self._sweep_all()
        if self._clones.wait():
            report = self._sweep_all()
        while any(self._reached.get(each, 0) < goal.get(each, 0) for each in self._unfinished) and not self._halted():
            self._clones.wait()
            report = self._sweep_all()
            if not report.streams and not report.failures:
                break  # the rest waits for another stream's table, or another program
        self._lock.check()  # losing the lock is no failure of a stream
        return msgspec.structs.replace(report, failures=report.failures | self._scanner.troubles)

    def start(self, interval: float) -> None:
        """Start the query: a batch begins when segments are staged; it scans for them at least every `interval` s."""
        self._interval = interval
        self._worked(self._begin)

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
        if not _is_worker_late(error):
            raise error
        if self._tries.again("the streaming query has ended"):
            self._worked(self._begin)
        elif not self._stopping.is_set():
            raise LakeError(f"the streaming query has ended: {WORKER_LATE}")

    def sweep(self, retry_now: bool = False) -> BatchReport:
        """Do the housekeeping: remove or complete tables of deleted streams, retry failed streams, compact those
        behind, also while no query runs."""
        with self._busy:
            live, gone = self._scan()
            self._clones.look(live, at_once=retry_now)
            now = time.monotonic()
            tally = _Tally()
            owed = [
                stream
                for stream in gone
                if retry_now or stream.directory not in self._failures or self._is_due(stream.directory, now)
                if self._forget(stream, tally)
            ]
            names = {stream.directory for stream in live} | {stream.directory for stream in owed}
            for directory in self._failures.keys() - names - {stream.directory for stream in gone}:
                del self._failures[directory]
            self._unfinished &= names
            unfinished = self._unfinished | {e.directory for e in live if e.damaged} - self._failures.keys()
            news = {each.directory for each in self._with_news(live, set())}
            due = [e for e in live if retry_now or e.directory in unfinished | news or self._is_due(e.directory, now)]
            self._reached = {name: index for name, index in self._reached.items() if name in names}
            self._tried = {name: index for name, index in self._tried.items() if name in names}
            report = self._compact([*owed, *due], tally)
            for stream in owed:
                if stream.directory not in tally.failures and stream.directory not in self._unfinished:
                    self._forget(stream, tally)
            return report

    def stop(self) -> None:
        """Stop the query between two batches; running commits finish. Return when it has ended."""
        self._stopping.set()
        with self._busy:  # stopping a query in mid-batch makes Spark print a stack trace a thousand lines long
            if self._query is not None:
                self._query.stop()
        self._pool.shutdown()
        self._clones.stop()
        if self._temporary is not None:
            self._temporary.cleanup()

    def abandon(self) -> None:
        """End the query and release the lock after an error, so that another `Compactor` can take over here."""
        with contextlib.suppress(Exception):  # what it was is known
            if self._query is not None:
                self._query.stop()
        self._pool.shutdown()
        with contextlib.suppress(Exception):
            self._clones.stop()
        if self._temporary is not None:
            self._temporary.cleanup()
        with contextlib.suppress(Exception):
            self._lock.release()

    # Work that needs Python workers

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
                if not _is_worker_late(error):
                    raise
            if not tries.again("the streaming query has ended"):
                if self._stopping.is_set():
                    return
                raise LakeError(f"the streaming query has ended: {WORKER_LATE}")

    def _sweep_all(self) -> BatchReport:
        """Sweep all streams, again while streams fail only for lack of a Python worker."""
        tries = _Tries(self._stopping, self._complain)
        report = self.sweep(retry_now=True)
        while set(report.failures.values()) == {WORKER_LATE} and tries.again(f"{len(report.failures)} streams failed"):
            report = self.sweep(retry_now=True)
        return report

    # Batches

    def _begin(self) -> None:
        self._query = self._start({"processingTime": "0 seconds"}, self._interval)
        self._began = time.monotonic()

    def _start(self, trigger: dict[str, Any], wait_seconds: float) -> StreamingQuery:
        clear_checkpoint(self._checkpoint)
        self._spark.dataSource.register(SegmentsSource)
        staged = self._spark.readStream.format(NAME).option("lake", self._lake).option("wait", f"{wait_seconds:g}")
        writer = staged.load().writeStream.queryName("lakestream").foreachBatch(self._batch)
        checkpoint = self._checkpoint
        if self._temporary is not None:
            checkpoint = Path(checkpoint).as_uri()  # wherever Spark's own default file system is
        elif not paths.is_local(paths.normalise(checkpoint)):
            checkpoint = open_storage(checkpoint).spark_path(paths.normalise(checkpoint))
        return writer.option("checkpointLocation", checkpoint).trigger(**trigger).start()

    def _batch(self, staged: DataFrame, number: int) -> None:
        """Compact the streams with news (foreachBatch).

        The rows of the batch name them. They are not read, which would be a Spark job in a Python worker: the scan that
        has to follow finds the same streams, and those that have staged more since.
        """
        with self._busy:
            self._compact(self._newcomers(set()))

    def _compact(self, streams: Iterable[StagedStream], tally: _Tally | None = None) -> BatchReport:
        """Compact streams in parallel, one commit of each in turn. Invariant: `_busy` is held.

        A stream that stages segments meanwhile joins in, so that another's backlog does not delay it.
        """
        began = looked = time.monotonic()
        tally = tally or _Tally()
        turns: dict[Future[Outcome], str] = {}
        self._join(turns, streams, tally)
        while turns:
            done, _ = wait(turns, LOOK_SECONDS, FIRST_COMPLETED)
            now = time.monotonic()
            for turn in done:
                directory = turns.pop(turn)
                if not self._settle(directory, turn, tally):
                    continue
                if now - began < ROUND_SECONDS and not self._halted():
                    turns[self._take_turn(self._streams[directory])] = directory  # at the end of the queue
                else:
                    self._unfinished.add(directory)
            if now - looked >= LOOK_SECONDS and now - began < ROUND_SECONDS:
                looked = now
                self._join(turns, self._newcomers(set(turns.values())), tally)
        report = tally.report(time.monotonic() - began)
        if report.streams or report.removed:
            mark(f"{self._lake}/{COMPACTOR_LOCK}")  # servers look at the tables
        if report.streams or report.failures or report.removed:
            self._report(report)
        return report

    def _join(self, turns: dict[Future[Outcome], str], streams: Iterable[StagedStream], tally: _Tally) -> None:
        """Start a turn of those of the streams whose tables are behind."""
        for stream in streams:
            if self._halted():
                self._unfinished.add(stream.directory)
                continue
            self._unfinished.discard(stream.directory)
            self._tried[stream.directory] = stream.last_index
            try:
                compaction = self._compaction(stream)
            except Exception as error:  # an invalid identity or directory: the others continue
                self._fail(stream.directory, error, tally)
                continue
            if (behind := self._is_behind(stream.directory, tally)) is None:
                continue
            if behind:
                turns[self._take_turn(compaction)] = stream.directory
            else:
                self._reached[stream.directory] = stream.last_index

    def _is_behind(self, directory: str, tally: _Tally) -> bool | None:
        """Return True if a stream's table is behind; None on any error, which fails this stream alone."""
        try:
            return self._streams[directory].is_behind()
        except Exception as error:
            self._fail(directory, error, tally)
            return None

    def _newcomers(self, busy: set[str]) -> list[StagedStream]:
        """Return the streams that have staged segments since their table was last complete."""
        live, _ = self._scan()
        return self._with_news(live, busy)

    def _with_news(self, live: list[StagedStream], busy: set[str]) -> list[StagedStream]:
        """Return those of the streams; a failing one has news once it has staged more than at its last attempt."""
        found = []
        for each in live:
            seen = self._tried if each.directory in self._failures else self._reached
            if each.directory not in busy and each.last_index > seen.get(each.directory, 0):
                found.append(each)
        return found

    def _settle(self, directory: str, turn: Future[Outcome], tally: _Tally) -> bool:
        """Record the outcome of a turn; return True if the stream needs another one."""
        error = turn.exception()
        if error is not None:
            if not self._stopping.is_set():
                self._fail(directory, error, tally)
            return False
        outcome = turn.result()
        if outcome.commits:
            tally.rows[directory] += outcome.rows
            tally.commits[self._streams[directory].table] += outcome.commits
            if outcome.misfits:
                tally.misfits[self._streams[directory].table] += outcome.misfits
        self._reached[directory] = outcome.position
        if (behind := self._is_behind(directory, tally)) is None:
            return False
        if behind and outcome.commits:
            return True
        if behind:  # it was stopped before a commit
            self._unfinished.add(directory)
        self._failures.pop(directory, None)
        self._note(directory, "")
        return False

    def _take_turn(self, compaction: StreamCompaction) -> Future[Outcome]:
        return self._pool.submit(compaction.run, self._halted, 1)

    def _scan(self) -> tuple[list[StagedStream], list[StagedStream]]:
        """Scan the staging area: (live streams, deleted streams). Invariant: `_busy` is held.

        A directory that cannot be read is reported once for each error.
        """
        found = staging.current(self._scanner.scan())
        for directory, trouble in self._scanner.troubles.items():
            if self._reported.get(directory) != trouble:
                self._complain(trouble)
        self._reported = self._scanner.troubles
        return found

    def _halted(self) -> bool:
        """Return True if no further commit may begin: we are stopping, or may no longer hold the compactor's lock."""
        try:
            self._lock.check()
        except LeaseLost:
            return True
        return self._stopping.is_set()

    def _compaction(self, stream: StagedStream) -> StreamCompaction:
        known = self._streams.get(stream.directory)
        if known is None:
            known = StreamCompaction(self._own, self._lake, stream, self._options)
            self._streams[stream.directory] = known
        return known

    def _forget(self, stream: StagedStream, tally: _Tally) -> bool:
        """Remove a deleted stream's table unless it is retained, then its staging directory.

        Return True when the retained table still lacks staged segments; the stream then takes its turns like others.
        """
        self._streams.pop(stream.directory, None)
        try:
            last = StreamCompaction.of_deleted(self._own, self._lake, stream, self._options)
            if last.lacks_segments():
                self._streams[stream.directory] = last
                return True
            last.clean_up()
            tally.removed.append(last.table)
        except StillCloned as error:
            self._clones.release(error.table)  # retried afterwards
            self._postpone(stream.directory, FIRST_RETRY_SECONDS)
            return False
        except Exception as error:
            self._fail(stream.directory, error, tally)
            return False
        self._failures.pop(stream.directory, None)
        return False

    # Failures

    def _fail(self, directory: str, error: BaseException, tally: _Tally) -> None:
        """Record an error of one stream and schedule a retry."""
        if isinstance(error, StillCloned):  # an earlier stream's table is in the way
            self._clones.release(error.table)
            self._postpone(directory, FIRST_RETRY_SECONDS)
            return
        known = self._streams.get(directory)
        reason = _reason(error) if known is None else with_remedy(_reason(error), known.table)
        tally.failures[directory] = reason
        self._postpone(directory)
        if reason != WORKER_LATE and not isinstance(error, TableBusy):
            self._note(directory, reason)

    def _note(self, directory: str, reason: str) -> None:
        """Tell the server why a stream's table does not follow; "": it does."""
        if self._noted.get(directory) == reason:
            return
        try:
            staging.refuse(self._storage, directory, reason)
            self._noted[directory] = reason
        except (OSError, LakeError) as error:
            self._complain(f"{directory}: the failure cannot be noted: {error}")

    def _is_due(self, directory: str, now: float) -> bool:
        failure = self._failures.get(directory)
        return failure is not None and failure.retry_at <= now

    def _postpone(self, directory: str, longest: float = LONGEST_RETRY_SECONDS) -> None:
        before = self._failures.get(directory)
        pause = min(before.pause * 2, longest) if before else FIRST_RETRY_SECONDS
        self._failures[directory] = _Failure(time.monotonic() + pause, pause)


def _reason(error: BaseException) -> str:
    """Return an error in one line, without Spark's plans and stack traces."""
    if isinstance(error, LakeError | OSError):
        return str(error)
    if _is_worker_late(error):
        return WORKER_LATE
    # A worker's exception is in the middle of its traceback, as `module.Name: text`.
    return first_line(error, "lakestream.lake.errors.")


def _is_worker_late(error: BaseException) -> bool:
    """Return True if a Python worker did not connect back to Spark in time; another attempt may succeed."""
    return "worker to connect back" in str(error) or "worker failed to connect back" in str(error)
