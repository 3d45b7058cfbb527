"""Clone work beside the compactor's batches.

Belongs here: scheduling requests for clones (clone_maker.py), and the detaching of clones of tables that have to be
removed (maintainer.py). Both may take long, so they run in threads of their own, and no other stream waits for them.
Failed tasks are retried with growing pauses.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from lakestream.lake.errors import LakeError, first_line
from lakestream.lake.staging import clone_request
from lakestream.lake.staging.clone_request import MADE, REFUSED, CloneAnswer
from lakestream.lake.staging.staging import StagedStream
from lakestream.lake.storage.lake import open_storage
from lakestream_spark.write.clone_maker import CloneMaker
from lakestream_spark.write.errors import StillCloned
from lakestream_spark.write.maintainer import Maintainer, TableInUse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

THREADS = 2
"""Number of parallel tasks: a clone that is copied does not delay one that shares files."""
FIRST_PAUSE_SECONDS = 2.0
LONGEST_PAUSE_SECONDS = 60.0
LOOK_SECONDS = 1.0
"""Interval at which a request is checked that waits for its origin's table."""


class _Task:
    """A task for one stream or table, and the earliest time of its next attempt."""

    def __init__(self) -> None:
        self.future: Future[str | None] | None = None
        self.pause = FIRST_PAUSE_SECONDS
        self.due = 0.0


class CloneWorker:
    """Handles the clones of one lake. Its methods are called by one thread at a time and return at once.

    Args:
        spark: a session with Delta.
        lake: the lake's root.
        stopping: asked before each step.
        report: gets a line when a clone was made, refused or detached; called in another thread.
        complain: the same, for errors.
    """

    def __init__(
        self,
        spark: SparkSession,
        lake: str,
        stopping: Callable[[], bool],
        report: Callable[[str], None],
        complain: Callable[[str], None],
    ) -> None:
        self._spark = spark
        self._storage = open_storage(lake)
        self._stopping = stopping
        self._report = report
        self._complain = complain
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="clones")
        self._tasks: dict[str, _Task] = {}
        self._makers: dict[str, CloneMaker] = {}
        self._group = f"lakestream-clones-{uuid.uuid4().hex}"

    def look(self, streams: Iterable[StagedStream], at_once: bool = False) -> None:
        """Start tasks for open requests of live streams; `at_once` also for those that failed a moment ago."""
        asking = [each for each in streams if each.asks]
        for gone in self._makers.keys() - {each.directory for each in asking}:
            self._makers.pop(gone, None)
        for stream in asking:
            if self._is_open(stream.directory):
                self._do(stream.directory, partial(self._make, stream), at_once)

    def _is_open(self, directory: str) -> bool:
        """Return True if a request has to be handled. The error of an unreadable one is reported by its task."""
        try:
            return clone_request.is_open(self._storage, directory)
        except (LakeError, OSError, msgspec.MsgspecError):
            return True

    def release(self, table: str) -> None:
        """Detach the clones of a table that has to be removed."""
        self._do(table, partial(self._detach, table))

    def wait(self) -> bool:
        """Wait for running tasks; return True if there were any."""
        busy = [each.future for each in self._tasks.values() if each.future is not None and not each.future.done()]
        wait(busy)
        return bool(busy)

    def stop(self) -> None:
        """Cancel the running Spark jobs; return when no task is running."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._spark.sparkContext.cancelJobGroup(self._group)
        self._pool.shutdown()

    def _do(self, key: str, work: Callable[[], str | None], at_once: bool = False) -> None:
        """Start a task, unless it is running, or failed a moment ago."""
        now = time.monotonic()
        self._tasks = {
            name: each
            for name, each in self._tasks.items()
            if each.due > now - 2 * LONGEST_PAUSE_SECONDS or (each.future is not None and not each.future.done())
        }
        task = self._tasks.setdefault(key, _Task())
        if self._stopping() or (now < task.due and not at_once) or (task.future is not None and not task.future.done()):
            return
        task.future = self._pool.submit(self._run, key, task, work)

    def _run(self, key: str, task: _Task, work: Callable[[], str | None]) -> str | None:
        try:
            self._spark.sparkContext.setJobGroup(self._group, key)
            said = work()
            task.due, task.pause = time.monotonic() + LOOK_SECONDS, FIRST_PAUSE_SECONDS
        except Exception as error:
            task.due = time.monotonic() + task.pause
            task.pause = min(2 * task.pause, LONGEST_PAUSE_SECONDS)
            if self._stopping():
                return None
            said = f"{key}: {first_line(error)}"
            self._complain(said)
            return said
        if said is not None:
            self._report(said)
        return said

    def _make(self, stream: StagedStream) -> str | None:
        maker = self._makers.get(stream.directory)
        if maker is None:  # kept, since it has Spark sessions and may be called every second
            maker = self._makers[stream.directory] = CloneMaker(self._spark, self._storage.root, stream)
        try:
            answer = maker.run()
        except StillCloned as error:
            return self._detach(error.table)  # retried afterwards
        if answer is None:
            return None
        self._makers.pop(stream.directory, None)
        return _line(stream.identity.name, answer)

    def _detach(self, table: str) -> str | None:
        maintainer = Maintainer(self._spark, self._storage.root, stopping=self._stopping)
        if not maintainer.acquire():
            raise TableInUse(f"{table} is removed once the running round of maintenance has ended")
        try:
            done = maintainer.release_clones(table)
        finally:
            maintainer.release()
        files = sum(each.files for each in done)
        return f"detached {len(done)} clones of {table}: {files} files" if done else None


def _line(name: str, answer: CloneAnswer) -> str | None:
    """Return the outcome of a request in one line."""
    if answer.state == MADE:
        how = "copied" if answer.copied else "shared"
        return f"{name} begins with {answer.messages} rows of its origin, {how}, {answer.seconds:.2f} s"
    if answer.state == REFUSED:
        return f"{name} begins without a clone: {answer.reason}"
    return f"{name}: its request for a clone was withdrawn"
