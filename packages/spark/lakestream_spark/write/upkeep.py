"""Maintenance beside a compactor, in the same JVM.

Belongs here: the schedule: all tables at an interval, and in between a table that got many commits, or that a server
asks for (lake/staging/compactor_files.py), also a replay of its misfits. One table at a time, in one thread, and with
one Spark task, so that the compactor has the other cores; it waits for a table only while maintenance commits to that
very one.

The lake's maintainer lock is held for a round at a time. While a separate maintainer holds it, nothing happens here.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from lakestream.lake.errors import LakeError
from lakestream.lake.staging import compactor_files
from lakestream.lake.staging.compactor_files import UpkeepRequest, UpkeepState
from lakestream_spark.write.maintainer import Maintainer, MaintenanceResult
from lakestream_spark.write.maintenance_plan import MaintenancePlan

DEFAULT_EVERY_SECONDS = 600.0
DEFAULT_COMMITS = 100
"""Number of commits after which a table is maintained early."""
LOOK_SECONDS = 2.0
"""Interval of looks for requests of servers."""

_DRIFT_NS = 1_000_000_000


class Upkeep:
    """Maintains a lake's tables until it is stopped.

    Args:
        maintainer: its lock is not held; its `stopping` has to become true with `stop`.
        every: seconds between two rounds.
        report: called after each table, in another thread.
        commits: see DEFAULT_COMMITS.
        lake: the lake's root, where servers ask for the maintenance of a table and see its state; "": nowhere.
    """

    def __init__(
        self,
        maintainer: Maintainer,
        every: float,
        report: Callable[[MaintenanceResult], None],
        commits: int = DEFAULT_COMMITS,
        lake: str = "",
    ) -> None:
        self._maintainer = maintainer
        self._every = every
        self._report = report
        self._lake = lake
        self._asked: dict[UpkeepRequest, None] = {}
        self._told = UpkeepState()
        self._limit = commits
        self._commits: Counter[str] = Counter()
        self._guard = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._full_at = 0.0
        self._thread = threading.Thread(target=self._run, name="upkeep", daemon=True)

    def start(self) -> None:
        """Start, unless it is running. The first round comes after the first pause: the start is busy enough."""
        if self._thread.ident is None:
            self._thread.start()

    def note(self, commits: Mapping[str, int]) -> None:
        """Count commits by table path. Returns at once."""
        with self._guard:
            self._commits.update(commits)
            if any(self._commits[table] >= self._limit for table in commits):
                self._wake.set()

    def stop(self) -> None:
        """Stop; a running rewrite is cancelled, a commit is not. Return when it has ended."""
        self._stopping = True
        self._wake.set()
        if self._thread.ident is not None:
            self._maintainer.cancel()
            self._thread.join()

    def _run(self) -> None:
        self._full_at = time.monotonic() + self._every
        while not self._stopping:
            self._look()
            # Tables with many commits do not put off the round over all of them.
            left = max(self._full_at - time.monotonic(), 0.0)
            woken = self._wake.wait(min(left, LOOK_SECONDS) if self._lake else left)
            self._wake.clear()
            if self._stopping:
                return
            full = time.monotonic() >= self._full_at
            if not (full or woken or self._asked):
                continue
            try:
                self._round(full)
            except Exception as error:  # the lake cannot be listed, or Spark has ended; the compactor reports it
                if not self._stopping:
                    self._report(
                        MaintenanceResult("all tables", MaintenancePlan(), failure=str(error).partition("\n")[0])
                    )
            if full:
                self._full_at = time.monotonic() + self._every

    def _round(self, full: bool) -> None:
        if not self._maintainer.acquire():
            return
        try:
            while self._asked and not self._stopping:
                request = next(iter(self._asked))
                del self._asked[request]  # first: one that fails must not come again and again, before the others
                self._maintain(request.table, request.replay)
            if not full:
                self._some()
                return
            with self._guard:
                self._commits.clear()
            self._tell(running="all tables")
            self._maintainer.once(report=self._done)
        finally:
            self._maintainer.release()
            self._tell(running="")

    def _look(self) -> None:
        """Note what servers ask for, and when the next round is due. The compactor reports a lake that is away."""
        if not self._lake:
            return
        with contextlib.suppress(OSError, LakeError):
            self._asked |= dict.fromkeys(compactor_files.take(self._lake))
        due = time.time_ns() + int((self._full_at - time.monotonic()) * 1e9)
        if abs(due - self._told.next_ns) > _DRIFT_NS:
            self._tell(next_ns=due)

    def _tell(self, **changed: Any) -> None:
        """Tell servers the state, as far as it has changed."""
        state = msgspec.structs.replace(self._told, **changed)
        if self._lake and state != self._told:
            self._told = state
            with contextlib.suppress(OSError, LakeError):
                compactor_files.UPKEEP.write(self._lake, state)

    def _maintain(self, table: str, replay: bool = False) -> None:
        self._tell(running=table.rpartition("/")[2])
        if (done := self._maintainer.replay(table) if replay else self._maintainer.maintain(table)) is not None:
            self._done(done)

    def _done(self, done: MaintenanceResult) -> None:
        self._tell(last=done.describe(), last_ns=time.time_ns())
        self._report(done)

    def _some(self) -> None:
        """Maintain tables with many commits, while there are any and the round over all tables is not due."""
        while not self._stopping and time.monotonic() < self._full_at:
            with self._guard:
                table = max(self._commits, key=self._commits.__getitem__, default=None)
                if table is None or self._commits[table] < self._limit:
                    return
                del self._commits[table]
            self._maintain(table)
