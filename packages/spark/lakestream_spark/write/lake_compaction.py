"""The compaction of a lake: its streams through micro-batches.

Belongs here: a micro-batch over the streams that it offers, their plans, files and commits, and their failures.
compactor.py runs the query that makes micro-batches; stream_compaction.py prepares and commits one stream, tasks.py
writes the files, clone_worker.py handles requests of mirrors.

A micro-batch is one Spark job, whatever the number of streams:

    offered by the source ▶ plan of each stream (driver) ▶ files of all (tasks) ▶ commit of each (driver)

Nothing else appends rows to a table. A stream whose plan takes long, because rows have to be deleted first, does not
hold the batch up: it is planned on, and written with a later batch.

Invariant: an error of one stream stops only that stream. It is reported and noted for the server, and the source offers
the stream again, with growing pauses and when it stages more.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import msgspec

from lakestream.lake.errors import LakeError, TableBusy, first_line
from lakestream.lake.staging import staging
from lakestream.lake.staging.scan import Scanner
from lakestream.lake.staging.staging import StagedStream
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.storage.locks import COMPACTOR_LOCK, mark
from lakestream_spark.write.clone_worker import CloneWorker
from lakestream_spark.write.commit import own_session
from lakestream_spark.write.errors import StillCloned, with_remedy
from lakestream_spark.write.stream_compaction import CommitPlan, CompactionOptions, Outcome, StreamCompaction
from lakestream_spark.write.tasks import Output, written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

P = ParamSpec("P")
T = TypeVar("T")
PLAN_SECONDS = 1.0
"""Time that a batch gives the plans of its streams. Those that take longer are written with a later batch."""
LONG_SECONDS = 600.0
"""Time that a plan, the files of a batch, a commit, or its deletions may take before a line says that they go on."""
WORKER_LATE = "Spark's Python worker did not start within the 10 s that Spark gives it: the machine is too busy"


class BatchReport(msgspec.Struct, frozen=True):
    """Result of a batch: number of streams, messages, seconds, errors by stream, commits and misfits by table.

    `keyed`: upsert tables that have followed. `removed`: the tables of streams that were deleted. `waiting`: streams
    among the failures with which nothing is wrong: their tables are under maintenance.
    """

    streams: int
    rows: int
    seconds: float
    failures: dict[str, str]
    commits: dict[str, int] = {}
    misfits: dict[str, int] = {}
    keyed: list[str] = []
    removed: list[str] = []
    waiting: frozenset[str] = frozenset()


class BatchTally:
    """Counters of a running batch, by stream."""

    def __init__(self) -> None:
        self.rows: Counter[str] = Counter()
        self.commits: Counter[str] = Counter()
        self.misfits: Counter[str] = Counter()
        self.failures: dict[str, str] = {}
        self.waiting = set[str]()
        self.keyed: list[str] = []
        self.removed: list[str] = []

    def add(self, more: BatchTally) -> None:
        """Add another batch; failures are those of the last one."""
        self.rows += more.rows
        self.commits += more.commits
        self.misfits += more.misfits
        self.keyed += more.keyed
        self.removed += more.removed

    def report(self, seconds: float) -> BatchReport:
        """Return the counters as a report."""
        rows, commits, misfits = self.rows, dict(self.commits), dict(self.misfits)
        waiting = frozenset(self.waiting)
        changed = (commits, misfits, self.keyed, self.removed)
        return BatchReport(len(rows), rows.total(), seconds, self.failures, *changed, waiting)


class LakeCompaction:
    """Compacts the streams of a lake, a micro-batch at a time.

    Args:
        spark: a session with Delta.
        lake: the lake's root.
        parallel: number of streams planned, or committed, in parallel.
        halted: returns True if no further commit may begin.
        stopping: once set, errors are those of Spark's end.
        report: called after each batch that did something.
        tell, complain: get a line about a clone, or about an error; also called in other threads.
    """

    def __init__(
        self,
        spark: SparkSession,
        lake: str,
        options: CompactionOptions,
        parallel: int,
        halted: Callable[[], bool],
        stopping: threading.Event,
        report: Callable[[BatchReport], None],
        tell: Callable[[str], None],
        complain: Callable[[str], None],
    ) -> None:
        self._own = own_session(spark)
        self._storage = open_storage(lake)
        self._lake = self._storage.root
        self._options, self._halted, self._stopping = options, halted, stopping
        self._report, self._complain = report, complain
        self._pool = ThreadPoolExecutor(parallel, thread_name_prefix="compact")
        self._streams: dict[str, StreamCompaction] = {}
        self._plans: dict[
            str, Future[CommitPlan | None]
        ] = {}  # of streams that have been offered, until they are committed
        self._clearing: dict[str, Future[None]] = {}  # deletions behind commits
        self._noted: dict[str, str] = {}
        self._reported: dict[str, str] = {}  # errors of the last scan
        self._since: dict[str, float] = {}  # what is under way, by its description, and when it began
        self._long = set[str]()  # of it, what was reported for its duration
        self.busy = threading.Lock()
        """Held while a batch or housekeeping is under way."""
        self.scanner = Scanner(lake)
        """Used while `busy` is held."""
        self.patience: float | None = None
        """Seconds that a batch waits for the plans of its streams; None: until they are made, and rows are deleted."""
        self.failures: dict[str, str] = {}
        """Streams that are retried after an error, by staging directory."""
        self.clones = CloneWorker(spark, self._lake, halted, tell, complain)

    def close(self) -> None:
        """End running plans and commits, and release the tables."""
        self._pool.shutdown()
        for compaction in self._streams.values():
            with contextlib.suppress(Exception):  # its process is about to end
                compaction.release()

    # A batch

    def batch(self, rows: DataFrame, offered: Mapping[str, int], total: BatchTally | None = None) -> None:
        """Compact the streams that a batch offers (foreachBatch).

        Args:
            rows: of the source.
            offered: staging directories below the lake's root, and through which log index.
            total: gets the counts, too.
        """
        with self.busy:
            began, tally = time.monotonic(), BatchTally()
            live, gone = self.scan()
            self.clones.look(live)
            known = {each.directory: each for each in [*live, *gone]}
            self._forget_vanished(known)
            self.failures = {name: why for name, why in self.failures.items() if name in known}
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
        tally: BatchTally,
    ) -> None:
        """Plan, write and commit streams; remove what is left of deleted ones."""
        plans = self._planned(wanted, offered, deleted, tally)
        written = self._timed(f"{self._lake}: the files of a batch", self._written, rows, plans, tally)
        self._commit(plans, written, tally)
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
        self, wanted: list[StagedStream], offered: Mapping[str, int], deleted: set[str], tally: BatchTally
    ) -> dict[str, CommitPlan]:
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
                self._plans[directory] = self._pool.submit(
                    self._timed, f"{directory}: the plan of a commit", compaction.plan, through
                )
        mine = {each.directory: self._plans[each.directory] for each in wanted if each.directory in self._plans}
        wait(mine.values(), self.patience)
        found: dict[str, CommitPlan] = {}
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

    def _is_clear(self, directory: str, tally: BatchTally) -> bool:
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

    def _written(self, rows: DataFrame, plans: dict[str, CommitPlan], tally: BatchTally) -> dict[str, Output]:
        """Write the files of all plans in one Spark job, and those again for which the table had to change.

        Invariant: `plans` has the final ones.
        """
        outputs: dict[str, Output] = {}
        tried: Mapping[str, CommitPlan] = dict(plans)
        while tried:
            again: dict[str, CommitPlan] = {}
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

    def _job(self, rows: DataFrame, plans: Mapping[str, CommitPlan], tally: BatchTally) -> dict[str, Output]:
        """Run the job. If it fails as a whole, run one for each stream, so that only one of them fails."""
        names = {directory: directory.removeprefix(f"{self._lake}/") for directory in plans}
        try:
            found = written(rows, {names[directory]: plan.task for directory, plan in plans.items()})
        except Exception as error:
            if len(plans) == 1 or is_worker_late(error) or self._halted():
                for directory in plans:
                    self._fail(directory, error, tally)
                    self._streams[directory].release()
                return {}
            each = [self._job(rows, {directory: plan}, tally) for directory, plan in plans.items()]
            return {directory: output for outputs in each for directory, output in outputs.items()}
        return {directory: found[names[directory]] for directory in plans}

    def _commit(self, plans: Mapping[str, CommitPlan], outputs: Mapping[str, Output], tally: BatchTally) -> None:
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
            if outcome.keyed:
                tally.keyed.append(outcome.keyed)
            if outcome.misfits:
                tally.misfits[compaction.table] += outcome.misfits
            self._succeed(directory)
        if self.patience is None:
            wait(self._clearing.values())

    def _commit_one(self, directory: str, plan: CommitPlan, output: Output) -> Outcome | None:
        compaction = self._streams[directory]
        if self._halted():
            compaction.release()
            return None
        outcome = self._timed(f"{directory}: a commit", compaction.commit, plan, output)
        if not compaction.is_cleared:
            self._clearing[directory] = self._pool.submit(
                self._timed, f"{directory}: the deletion of rows", compaction.clear
            )
        return outcome

    def _timed(self, what: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self._since[what] = time.monotonic()
        try:
            return work(*args, **kwargs)
        finally:
            del self._since[what]
            self._long.discard(what)

    def report_long(self) -> None:
        """Report once each piece of work that takes longer than LONG_SECONDS. May be called in any thread."""
        for what, since in list(self._since.items()):
            seconds = time.monotonic() - since
            if seconds > LONG_SECONDS and what not in self._long:
                self._long.add(what)
                self._complain(
                    f"{what} has taken {seconds:.0f} s and goes on; if nothing moves, start the compactor again"
                )

    def _compaction(self, stream: StagedStream, deleted: bool) -> StreamCompaction | None:
        """Return the compaction of a stream; None if nothing of a deleted one has to be compacted."""
        known = self._streams.get(stream.directory)
        if deleted:  # anew: its table may have been moved
            known = StreamCompaction.of_deleted(self._own, self._lake, stream, self._options)
        elif known is None:
            known = StreamCompaction(self._own, self._lake, stream, self._options)
        self._streams[stream.directory] = known
        return known if not deleted or known.lacks_segments() else None

    def _forget(self, stream: StagedStream, tally: BatchTally) -> None:
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
            self.clones.release(error.table)  # offered again afterwards
            return
        except Exception as error:
            self._fail(directory, error, tally)
            return
        tally.removed.append(last.table)
        del self._streams[directory]
        self.failures.pop(directory, None)

    def scan(self) -> tuple[list[StagedStream], list[StagedStream]]:
        """Scan the staging area: (live streams, deleted streams). Invariant: `busy` is held.

        A directory that cannot be read is reported once for each error.
        """
        found = staging.current(self.scanner.scan())
        for directory, trouble in self.scanner.troubles.items():
            if self._reported.get(directory) != trouble:
                self._complain(trouble)
        self._reported = self.scanner.troubles
        return found

    def _fail(self, directory: str, error: BaseException, tally: BatchTally) -> None:
        """Report an error of one stream; the source offers it again. Errors while stopping are those of Spark's end."""
        if self._stopping.is_set():
            return
        if isinstance(error, StillCloned):  # an earlier stream's table is in the way
            self.clones.release(error.table)
            return
        if self._has_vanished(directory):  # with its stream, which the server has deleted meanwhile
            self.failures.pop(directory, None)
            return
        known = self._streams.get(directory)
        reason = _reason(error) if known is None else with_remedy(_reason(error), known.table)
        tally.failures[directory] = self.failures[directory] = reason
        if isinstance(error, TableBusy):
            tally.waiting.add(directory)
        elif reason != WORKER_LATE:
            self._note(directory, reason)

    def _has_vanished(self, directory: str) -> bool:
        try:
            return not self._storage.exists(f"{directory}/{paths.STREAM_FILE}")
        except (OSError, LakeError):
            return False  # the lake is away

    def _succeed(self, directory: str) -> None:
        self.failures.pop(directory, None)
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
    if is_worker_late(error):
        return WORKER_LATE
    # A worker's exception is in the middle of its traceback, as `module.Name: text`.
    return first_line(error, "lakestream.lake.errors.")


def is_worker_late(error: BaseException) -> bool:
    """Return True if a Python worker did not connect back to Spark in time; another attempt may succeed."""
    return "worker to connect back" in str(error) or "worker failed to connect back" in str(error)
