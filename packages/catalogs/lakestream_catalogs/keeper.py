"""Keeping the entries of catalogs beside a compactor.

Belongs here: the schedule, in one thread: a look at the tables after commits and in between, a pass over each catalog
when the tables have changed, and now and then in any case. A catalog that fails is tried again after a growing pause;
the compactor never waits for it, and other catalogs only for its time limits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from lakestream.lake.catalogs.address import ICEBERG, CatalogAddress
from lakestream.lake.catalogs.keeper import Keeper
from lakestream.lake.errors import LakeError
from lakestream_catalogs.catalog import REQUEST_SECONDS, Catalog
from lakestream_catalogs.entries import Table
from lakestream_catalogs.opening import open_catalog
from lakestream_catalogs.plan import SyncResult
from lakestream_catalogs.sync import follow, sync
from lakestream_catalogs.tables import LakeTables, Tables

LOOK_SECONDS = 30.0
"""Interval of looks for new and deleted tables when no commit is announced."""
LEAST_SECONDS = 1.0
"""Minimum pause between two looks."""
FULL_SECONDS = 600.0
"""Interval at which everything is compared, for what other programs have changed."""
FIRST_RETRY_SECONDS = 5.0
LONGEST_RETRY_SECONDS = 300.0


class _Target(msgspec.Struct):
    """State of one catalog: lake and tables of the last complete pass, their entries, time of the next attempt, and the
    last error."""

    address: CatalogAddress
    done: tuple[str, tuple[Table, ...]] | None = None
    places: dict[str, tuple[str, str]] = {}
    due: float = 0.0
    pause: float = 0.0
    error: str = ""


class CatalogKeeper(Keeper):
    """Keeps the entries of a lake's tables in catalogs until it is stopped.

    Args:
        lake: the lake's root.
        catalogs: their addresses.
        report: called after each pass over a catalog, in another thread.
        complain: gets a line when an error begins, and when it has ended.
        active: false while another compactor works; then nothing happens here.
        connect: connects to a catalog.
    """

    def __init__(
        self,
        lake: str,
        catalogs: Sequence[CatalogAddress],
        report: Callable[[SyncResult], None],
        complain: Callable[[str], None],
        *,
        active: Callable[[], bool] = lambda: True,
        connect: Callable[[CatalogAddress], Catalog] = open_catalog,
    ) -> None:
        self._tables = LakeTables(lake, any(address.format == ICEBERG for address in catalogs))
        self._targets = [_Target(address) for address in catalogs]
        super().__init__("catalogs", active, LEAST_SECONDS, REQUEST_SECONDS + LEAST_SECONDS)
        self._report, self._complain, self._connect = report, complain, connect
        self._full_at = 0.0
        self._trouble = ""
        self._unfinished = False

    def once(self) -> list[SyncResult]:
        """Look at the tables and make a pass over each catalog that is due; return the results of these passes."""
        now = time.monotonic()
        full = now >= self._full_at
        changed = self.taken()
        try:
            found = self._tables.read(None if full else changed)
        except (OSError, LakeError) as error:
            self.note(changed)
            self._tell(f"catalogs: the tables cannot be listed: {error}")
            return []
        self._tell("; ".join(sorted(found.troubles.values())[:3]))
        if full:
            self._full_at = now + FULL_SECONDS
        passes = []
        for target in self._targets:
            if full and not target.error:
                target.done = None
            if not self.ending and self._is_due(target, found, now):
                passes.append(self._pass(target, found))
        self._unfinished = any(not (each.complete or each.error) for each in passes)
        return passes

    def pause(self) -> float:
        if self._unfinished:
            return 0.0
        now = time.monotonic()
        return max(0.0, min([LOOK_SECONDS, *(each.due - now for each in self._targets if each.error)]))

    def failed(self, error: Exception) -> None:
        self._tell(f"catalogs: {type(error).__name__}: {str(error).partition(chr(10))[0]}")

    def _is_due(self, target: _Target, found: Tables, now: float) -> bool:
        return now >= target.due and target.done != (found.lake, found.of(target.address.format).tables)

    def _pass(self, target: _Target, found: Tables) -> SyncResult:
        found = found.of(target.address.format)
        try:
            with self._connect(target.address) as catalog:
                result = None
                if target.done is not None and target.done[0] == found.lake:
                    result = follow(catalog, target.address, target.done[1], found, target.places)
                if result is None:
                    result = sync(catalog, target.address, found, lambda: self.ending)
                    target.places = result.places
        except (LakeError, ImportError) as error:
            result = SyncResult(str(target.address), complete=False, error=str(error))
        except Exception as error:  # of a client's library: the other catalogs and the compactor go on
            text = f"catalog {target.address}: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
            result = SyncResult(str(target.address), complete=False, error=text)
        self._settle(target, result, found)
        self._report(result)
        return result

    def _settle(self, target: _Target, result: SyncResult, found: Tables) -> None:
        if reason := result.reason:
            target.done = None
            target.pause = min(max(target.pause * 2, FIRST_RETRY_SECONDS), LONGEST_RETRY_SECONDS)
            target.due = time.monotonic() + target.pause
            if reason != target.error:
                self._complain(f"{reason}. Compaction goes on; entries follow once it is mended")
        else:
            target.pause = target.due = 0.0
            if target.error:
                self._complain(f"catalog {target.address} works again")
            if result.complete:
                target.done = (found.lake, found.tables)
        target.error = reason

    def _tell(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            self._complain(trouble)
        self._trouble = trouble
