"""The compactor: one streaming query over all streams of a lake.

Belongs here: the query and its checkpoint, a micro-batch over the streams that it offers, and the lock that makes the
compactor the only one. source.py decides which streams are offered, stream_compaction.py prepares and commits one
stream, tasks.py writes the files, clone_worker.py handles requests of mirrors.

A micro-batch is one Spark job, whatever the number of streams:

    offered by the source ▶ plan of each stream (driver) ▶ files of all (tasks) ▶ commit of each (driver)

Nothing else appends rows to a table. A stream whose plan takes long, because rows have to be deleted first, does not
hold the batch up: it is planned on, and written with a later batch.

Invariant: an error of one stream stops only that stream. It is reported and noted for the server, and the source offers
the stream again, with growing pauses and when it stages more.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import msgspec

from lakestream.lake.errors import LakeError, LeaseLost, StillCloned, TableBusy, first_line
from lakestream.lake.files import lake as lakes
from lakestream.lake.files import paths, query_progress, staging
from lakestream.lake.files.lake import open_storage
from lakestream.lake.files.locks import COMPACTOR_LOCK, mark, open_lock
from lakestream.lake.files.query_progress import QueryProgress
from lakestream.lake.files.scan import Scanner
from lakestream.lake.files.staging import StagedStream
from lakestream.lake.write.clone_worker import CloneWorker
from lakestream.lake.write.refusals import with_remedy
from lakestream.lake.write.source import NAME, Offset, SegmentsSource, offset_of
from lakestream.lake.write.stream_compaction import Options, Outcome, Plan, StreamCompaction, clear_removed
from lakestream.lake.write.tasks import Output, written
from lakestream.lake.write.transactions import own_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DEFAULT_PARALLEL = 4
"""Number of streams that are planned, or committed, in parallel."""
PLAN_SECONDS = 1.0
"""Time that a batch gives the plans of its streams. Those that take longer are written with a later batch."""

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

    def add(self, more: _Tally) -> None:
        """Add another batch; failures are those of the last one."""
        self.rows += more.rows
        self.commits += more.commits
        self.misfits += more.misfits
        self.removed += more.removed

    def report(self, seconds: float) -> BatchReport:
        """Return the counters as a report."""
        rows, commits, misfits = self.rows, dict(self.commits), dict(self.misfits)
        return BatchReport(len(rows), rows.total(), seconds, self.failures, commits, misfits, self.removed)


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
        self._checkpoint = Checkpoint(checkpoint or paths.checkpoint(self._lake))
        self._options = options or Options()
        self._report = report
        self._pool = ThreadPoolExecutor(parallel, thread_name_prefix="compact")
        self._streams: dict[str, StreamCompaction] = {}
        self._plans: dict[str, Future[Plan | None]] = {}  # of streams that have been offered, until they are committed
        self._clearing: dict[str, Future[None]] = {}  # deletions behind commits
        self._failures: dict[str, str] = {}
        self._noted: dict[str, str] = {}
        self._patience: float | None = None
        self._progress = QueryProgress()
        self._told = -1  # the batch of the progress that was written
        self._busy = threading.Lock()  # a batch or housekeeping is under way
        self._stopping = stopping or threading.Event()
        self._lock = open_lock(spark, f"{self._lake}/{COMPACTOR_LOCK}")
        self._query: StreamingQuery | None = None
        self._interval = 0.0
        self._began = 0.0  # when the query was started
        self._ran = False  # it has had a batch
        self._tries = _Tries(self._stopping, complain)
        self._clones = CloneWorker(spark, self._lake, self._halted, tell, complain)

    @property
    def failing(self) -> int:
        """Return the number of streams that are retried after an error."""
        return len(self._failures)

    @property
    def progress(self) -> QueryProgress:
        """Return Spark's progress of the last batch that offered something."""
        query = self._query
        found = query.lastProgress if query is not None else None
        if found is not None and found.numInputRows:
            self._progress = query_progress.of_spark(msgspec.json.decode(found.json))
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
        began, total, tries = time.monotonic(), _Tally(), _Tries(self._stopping, self._complain)
        self._failures.clear()
        with self._busy:
            self._clones.look(self._scan()[0], at_once=True)
        again = True
        while again and not self._halted():
            self._worked(lambda: self._begin({"availableNow": True}, 0, total))
            late = set(self._failures.values()) == {WORKER_LATE}
            again = self._clones.wait() or (late and tries.again(f"{len(self._failures)} streams failed"))
        self._lock.check()  # losing the lock is no failure of a stream
        total.failures = self._failures | self._scanner.troubles
        return total.report(time.monotonic() - began)

    def start(self, interval: float) -> None:
        """Start the query: a batch begins when segments are staged; it scans for them at least every `interval` s."""
        self._interval, self._patience = interval, PLAN_SECONDS
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
        elif not _is_worker_late(error):
            raise error
        elif self._tries.again("the streaming query has ended"):
            self._worked(self._serve)
        elif not self._stopping.is_set():
            raise LakeError(f"the streaming query has ended: {WORKER_LATE}")

    def tend(self) -> None:
        """Look for requests of mirrors, also while there is no batch, and tell the progress. Call it every second."""
        with self._busy:
            self._clones.look(self._scan()[0])
        if (progress := self.progress).batch != self._told:
            query_progress.write(self._lake, progress)
            self._told = progress.batch

    def stop(self) -> None:
        """Stop the query between two batches; running commits finish. Return when it has ended."""
        self._stopping.set()
        with self._busy:  # stopping a query in mid-batch makes Spark print a stack trace a thousand lines long
            if self._query is not None:
                self._query.stop()
        self._end()
        self._clones.stop()

    def abandon(self) -> None:
        """End the query and release the lock after an error, so that another `Compactor` can take over here."""
        with contextlib.suppress(Exception):  # what it was is known
            if self._query is not None:
                self._query.stop()
        for end in (self._end, self._clones.stop, self._lock.release):
            with contextlib.suppress(Exception):
                end()

    def _end(self) -> None:
        self._pool.shutdown()
        for compaction in self._streams.values():
            with contextlib.suppress(Exception):  # its process is about to end
                compaction.release()

    # The query

    def _serve(self) -> None:
        self._begin({"processingTime": "0 seconds"}, self._interval)

    def _begin(self, trigger: dict[str, Any], wait_seconds: float, total: _Tally | None = None) -> None:
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

    def _start(self, trigger: dict[str, Any], wait_seconds: float, total: _Tally | None = None) -> StreamingQuery:
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
        if self._ran or self._stopping.is_set() or _is_worker_late(error):
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
                if not _is_worker_late(error):
                    raise
            if not tries.again("the streaming query has ended"):
                if self._stopping.is_set():
                    return
                raise LakeError(f"the streaming query has ended: {WORKER_LATE}")

    # A batch

    def batch(self, rows: DataFrame, offered: Mapping[str, int], total: _Tally | None = None) -> None:
        """Compact the streams that a batch offers (foreachBatch).

        Args:
            rows: of the source.
            offered: staging directories below the lake's root, and through which log index.
            total: gets the counts, too.
        """
        with self._busy:
            began, tally = time.monotonic(), _Tally()
            live, gone = self._scan()
            self._clones.look(live)
            known = {each.directory: each for each in [*live, *gone]}
            self._forget_vanished(known)
            self._failures = {name: why for name, why in self._failures.items() if name in known}
            wanted = [known[at] for name in offered if (at := f"{self._lake}/{name}") in known]
            deleted = {each.directory for each in gone}
            for some in _rounds(wanted):
                self._round(rows, some, offered, deleted, tally)
            report = tally.report(time.monotonic() - began)
            if report.streams or report.removed:
                mark(f"{self._lake}/{COMPACTOR_LOCK}")  # servers look at the tables
            if report.streams or report.failures or report.removed:
                self._report(report)
            if total is not None:
                total.add(tally)

    def _round(
        self,
        rows: DataFrame,
        wanted: list[StagedStream],
        offered: Mapping[str, int],
        deleted: set[str],
        tally: _Tally,
    ) -> None:
        """Plan, write and commit streams; remove what is left of deleted ones."""
        plans = self._planned(wanted, offered, deleted, tally)
        self._commit(plans, self._written(rows, plans, tally), tally)
        for stream in wanted:
            if stream.directory in plans and stream.directory in deleted and stream.directory not in tally.failures:
                self._forget(stream, tally)

    def _forget_vanished(self, known: Mapping[str, StagedStream]) -> None:
        """Forget streams whose staging directory is gone."""
        for directory in self._streams.keys() - known.keys() - self._clearing.keys():
            planned = self._plans.get(directory)
            if planned is None or planned.done():
                self._plans.pop(directory, None)
                self._streams.pop(directory).release()
        for directory, stream in known.items():
            if stream.refused:
                self._noted.setdefault(directory, "by an earlier compactor")

    def _planned(
        self, wanted: list[StagedStream], offered: Mapping[str, int], deleted: set[str], tally: _Tally
    ) -> dict[str, Plan]:
        """Return the plans of those streams that have something to commit, and are planned in time."""
        for stream in wanted:
            directory = stream.directory
            if self._halted() or directory in self._plans or not self._is_clear(directory, tally):
                continue
            try:
                compaction = self._compaction(stream, directory in deleted)
            except Exception as error:  # an invalid identity or directory: the others continue
                self._fail(directory, error, tally)
                continue
            if compaction is None:
                self._forget(stream, tally)
            else:
                through = offered[directory.removeprefix(f"{self._lake}/")]
                self._plans[directory] = self._pool.submit(compaction.plan, through)
        mine = {each.directory: self._plans[each.directory] for each in wanted if each.directory in self._plans}
        wait(mine.values(), self._patience)
        found: dict[str, Plan] = {}
        for directory, planned in mine.items():
            if not planned.done():
                continue
            del self._plans[directory]
            failure = planned.exception()
            if failure is not None:
                self._fail(directory, failure, tally)
            elif (plan := planned.result()) is not None:
                found[directory] = plan
            else:
                self._succeed(directory)
        return found

    def _is_clear(self, directory: str, tally: _Tally) -> bool:
        """Return True unless the deletions behind a stream's last commit go on; report an error of theirs."""
        clearing = self._clearing.get(directory)
        if clearing is None:
            return True
        if not clearing.done():
            return False
        del self._clearing[directory]
        if (error := clearing.exception()) is not None:
            self._fail(directory, error, tally)
        return error is None

    def _written(self, rows: DataFrame, plans: dict[str, Plan], tally: _Tally) -> dict[str, Output]:
        """Write the files of all plans in one Spark job, and those again for which the table had to change.

        Invariant: `plans` has the final ones.
        """
        outputs: dict[str, Output] = {}
        tried: Mapping[str, Plan] = dict(plans)
        while tried:
            again: dict[str, Plan] = {}
            for directory, output in self._job(rows, tried, tally).items():
                plan = tried[directory]
                try:
                    revised = self._streams[directory].revise(plan, output)
                except Exception as error:
                    self._fail(directory, error, tally)
                    self._streams[directory].release()
                    continue
                if revised is None:
                    plans[directory], outputs[directory] = plan, output
                else:
                    again[directory] = revised
            tried = again
        return outputs

    def _job(self, rows: DataFrame, plans: Mapping[str, Plan], tally: _Tally) -> dict[str, Output]:
        """Run the job. If it fails as a whole, run one for each stream, so that only one of them fails."""
        names = {directory: directory.removeprefix(f"{self._lake}/") for directory in plans}
        try:
            found = written(rows, {names[directory]: plan.task for directory, plan in plans.items()})
        except Exception as error:
            if len(plans) == 1 or _is_worker_late(error) or self._halted():
                for directory in plans:
                    self._fail(directory, error, tally)
                    self._streams[directory].release()
                return {}
            each = [self._job(rows, {directory: plan}, tally) for directory, plan in plans.items()]
            return {directory: output for outputs in each for directory, output in outputs.items()}
        return {directory: found[names[directory]] for directory in plans}

    def _commit(self, plans: Mapping[str, Plan], outputs: Mapping[str, Output], tally: _Tally) -> None:
        """Commit the files of streams, in parallel."""
        commits = {
            directory: self._pool.submit(self._commit_one, directory, plans[directory], output)
            for directory, output in outputs.items()
        }
        for directory, commit in commits.items():
            compaction = self._streams[directory]
            try:
                outcome = commit.result()
            except Exception as error:
                self._fail(directory, error, tally)
                continue
            if outcome is None:
                continue
            tally.rows[directory] += outcome.rows
            tally.commits[compaction.table] += outcome.commits
            if outcome.misfits:
                tally.misfits[compaction.table] += outcome.misfits
            self._succeed(directory)
        if self._patience is None:
            wait(self._clearing.values())

    def _commit_one(self, directory: str, plan: Plan, output: Output) -> Outcome | None:
        compaction = self._streams[directory]
        if self._halted():
            compaction.release()
            return None
        outcome = compaction.commit(plan, output)
        if not compaction.is_cleared:
            self._clearing[directory] = self._pool.submit(compaction.clear)
        return outcome

    def _compaction(self, stream: StagedStream, deleted: bool) -> StreamCompaction | None:
        """Return the compaction of a stream; None if nothing of a deleted one has to be compacted."""
        known = self._streams.get(stream.directory)
        if deleted:  # anew: its table may have been moved
            known = StreamCompaction.of_deleted(self._own, self._lake, stream, self._options)
        elif known is None:
            known = StreamCompaction(self._own, self._lake, stream, self._options)
        self._streams[stream.directory] = known
        return known if not deleted or known.lacks_segments() else None

    def _forget(self, stream: StagedStream, tally: _Tally) -> None:
        """Remove a deleted stream's table unless it is retained, then its staging directory. Do nothing while the
        retained table still lacks staged segments."""
        directory = stream.directory
        if directory in self._plans or directory in self._clearing:
            return
        try:
            last = self._streams[directory]
            if last.lacks_segments():
                return
            last.clean_up()
        except StillCloned as error:
            self._clones.release(error.table)  # offered again afterwards
            return
        except Exception as error:
            self._fail(directory, error, tally)
            return
        tally.removed.append(last.table)
        del self._streams[directory]
        self._failures.pop(directory, None)

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

    # Failures

    def _fail(self, directory: str, error: BaseException, tally: _Tally) -> None:
        """Report an error of one stream; the source offers it again. Errors while stopping are those of Spark's end."""
        if self._stopping.is_set():
            return
        if isinstance(error, StillCloned):  # an earlier stream's table is in the way
            self._clones.release(error.table)
            return
        known = self._streams.get(directory)
        reason = _reason(error) if known is None else with_remedy(_reason(error), known.table)
        tally.failures[directory] = self._failures[directory] = reason
        if reason != WORKER_LATE and not isinstance(error, TableBusy):
            self._note(directory, reason)

    def _succeed(self, directory: str) -> None:
        self._failures.pop(directory, None)
        self._note(directory, "")

    def _note(self, directory: str, reason: str) -> None:
        """Tell the server, and the source, why a stream's table does not follow; "": it does."""
        if self._noted.get(directory, "") == reason:
            return
        try:
            staging.refuse(self._storage, directory, reason)
            self._noted[directory] = reason
        except (OSError, LakeError) as error:
            self._complain(f"{directory}: the failure cannot be noted: {error}")


def _rounds(streams: Iterable[StagedStream]) -> list[list[StagedStream]]:
    """Return the streams of a batch in rounds: mostly one. Of streams with one name, which had the same table one after
    the other, the oldest is in the first."""
    rounds: list[list[StagedStream]] = [[]]
    names: Counter[tuple[str, str]] = Counter()
    for each in sorted(streams, key=lambda stream: (stream.identity.created_ns, stream.identity.uid)):
        name = (each.identity.account, each.identity.name)
        if names[name] == len(rounds):
            rounds.append([])
        rounds[names[name]].append(each)
        names[name] += 1
    return rounds


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
