"""Old messages for the event loop.

Belongs here: the asyncio side of reading a stream's table; the reader itself is synchronous and runs in a thread. Reads
have threads of their own, so that a slow lake does not delay the log's writes.
"""

from __future__ import annotations

import asyncio
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from lakestream import extras
from lakestream.lake.errors import HistoryUnavailable, LakeAway, LakeError, StorageFailed
from lakestream.lake.table.at import TimeTravelError
from lakestream.lake.table.foreign_commits import Run
from lakestream.log.format.departures import Point
from lakestream.log.format.record import Record
from lakestream.metrics.histogram import SECONDS, Histogram
from lakestream.ops.monitoring.monitored import HistoryFigures
from lakestream.ports import PastUnavailableError, Was
from lakestream.server.lake.presence import Presence
from lakestream.stream.core.reader import HistoryUnavailableError

if TYPE_CHECKING:
    from lakestream.lake.read.history.cache import BlockCache
    from lakestream.lake.read.history.history import TableHistory
    from lakestream.lake.read.history.past_table import TablePast
    from lakestream.lake.read.history.staged import FallbackHistory, StagedRows
    from lakestream.lake.table.state import TableFollower

T = TypeVar("T")

THREADS = 4
"""Maximum number of parallel reads from the lake in a server; further ones queue."""
FORGET_SECONDS = 1.0
"""Time (1 s) within which the cache of a table is not dropped again: reading its log takes some time."""
RECHECK_SECONDS = 30.0
"""Time (30 s) within which failed reads of a table have its files checked once."""
PER_STREAM = 3
"""Maximum number of them for one stream, so that a slow table leaves room for others."""


UNREADABLE = "the message cannot be read from its table in the lake; the server's log says why"
REFUSED = "the stream's table in the lake is not read now; the server's log says why"
FAILING = "the message is in the lake, whose object store fails some requests now; the server's log says why"
"""Texts for clients."""

READING = "reading old messages from the tables of the lake"
"""Beginning of the text about libraries for it that are not installed."""
FAILING_RETRY_S = 2
"""Seconds after which clients are told to try again while the object store fails some requests (2)."""


CACHE_IDLE_S = 60.0
"""Seconds without a read of any table after which the messages and footers that were read are dropped from memory."""


class SharedCache:
    """Shared parts of the histories of a server's streams: the block cache and the threads. Made at the first read."""

    def __init__(self) -> None:
        self._cache: BlockCache | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._seconds = Histogram(SECONDS)
        self._failures = 0
        self._used = 0.0
        self._looking = False

    def figures(self) -> HistoryFigures:
        """Return the reads so far, and the state of the cache."""
        cache = self._cache
        blocks = (0, 0, 0) if cache is None else (cache.hits, cache.misses, cache.size)
        return HistoryFigures(self._seconds.read(), self._failures, *blocks)

    def answered(self, began: float, failed: bool) -> None:
        """Count a read that began at this `time.perf_counter()`."""
        self._seconds.observe(time.perf_counter() - began)
        self._failures += failed

    def get(self) -> BlockCache:
        """Return the cache; loads pyarrow."""
        if self._cache is None:
            from lakestream.lake.read.history.cache import BlockCache

            self._cache = BlockCache()
        return self._cache

    def submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run `work` in one of the threads."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="lakestream-history")
        loop = asyncio.get_running_loop()
        self.note_use()
        if not self._looking:
            self._looking = True
            loop.call_later(CACHE_IDLE_S, self._look, loop)
        return loop.run_in_executor(self._threads, work)

    def note_use(self) -> None:
        """Note that what was read is in use."""
        self._used = asyncio.get_running_loop().time()

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Drop what was read if nobody has read for a while."""
        left = self._used + CACHE_IDLE_S - loop.time()
        self._looking = left > 0
        if self._looking:
            loop.call_later(left, self._look, loop)
        elif self._cache is not None and self._threads is not None:
            self._threads.submit(self._cache.clear)

    def close(self, table: TableHistory) -> None:
        """Close a table in a thread, since a running read may have it locked."""
        assert self._threads is not None, "a table is opened in one of them"
        self._threads.submit(table.close)


class ThreadHistory:
    """`History` over one stream's Delta table. The reader (and pyarrow with it) is loaded at the first read.

    Args:
        table: the table's path.
        follower: returns what follows the table, at the first read.
        uid: the stream's.
        directory: the stream's staging directory: what segments there still have does not need the table.
        presence: of the lake: while it is away reads fail at once.
        report: logs an error of a read.
    """

    def __init__(
        self,
        table: str,
        follower: Callable[[], TableFollower],
        uid: str,
        directory: str,
        presence: Presence,
        cache: SharedCache,
        report: Callable[[str], None],
    ) -> None:
        self._follower = follower
        self._path = table
        self._directory = directory
        self._uid = uid
        self._shared = cache
        self._presence = presence
        self._report = report
        self._table: TableHistory | None = None
        self._past: TablePast | None = None
        self._opening = asyncio.Lock()
        self._under_way = asyncio.Semaphore(PER_STREAM)
        self._closed = False
        self._refusal = ""
        self._damaged = False
        self._excluded: list[Run] = []
        self._firsts: list[int] = []
        self._forgotten = 0.0
        self.is_suspect = False
        """True from a read that failed until the table's files are checked again."""
        self.on_failure: Callable[[], None] = lambda: None
        """Called when a read has failed."""
        self._rechecked_at = -RECHECK_SECONDS
        self._guard = threading.Lock()
        self._staged: StagedRows | None = None
        self._below: TableHistory | None = None
        self._loading: asyncio.Future[None] | None = None  # kept, so that it is not collected meanwhile

    def refuse(self, why: str) -> None:
        """Set the reason why the table must not be read now (it is an older copy than the log requires), or ""."""
        if why != self._refusal:
            self._past = None
            if self._table is not None:
                self._forget(self._table)  # cached data is of another copy of the table
        self._refusal = why

    def forget(self) -> bool:
        now = time.monotonic()
        if self._table is None or now - self._forgotten < FORGET_SECONDS:
            return False
        self._forgotten = now
        self._forget(self._table)
        return True

    @property
    def has_failed(self) -> bool:
        """Return True if a read has failed, and the table's files were not checked in the last RECHECK_SECONDS."""
        return self.is_suspect and time.monotonic() - self._rechecked_at >= RECHECK_SECONDS

    def take_failure(self) -> bool:
        """Return True if the table's files are to be checked again now, since a read has failed."""
        failed = self.has_failed
        if failed:
            self.is_suspect, self._rechecked_at = False, time.monotonic()
        return failed

    def exclude(self, runs: list[Run]) -> None:
        """Set the sequences (ascending runs) whose rows another program has changed; they are not read."""
        if runs != self._excluded:
            self._excluded = runs
            self._firsts = [first for first, _ in runs]
            if self._table is not None:
                self._forget(self._table)

    def _is_excluded(self, seq: int) -> bool:
        at = bisect_right(self._firsts, seq) - 1
        return at >= 0 and seq <= self._excluded[at][1]

    def _trusted(self, rows: Sequence[Record]) -> Sequence[Record]:
        return [row for row in rows if not self._is_excluded(row.seq)] if self._excluded else rows

    def note_damage(self, damaged: bool) -> None:
        """Note whether the table lacks messages that have left the log; they are read from staged segments."""
        self._damaged = damaged
        below = self._below
        if not damaged and below is not None:
            self._below = self._staged = None
            self._shared.close(below)

    async def read(
        self, first: int, last: int, limit: int, subjects: Sequence[bytes] | None = None, max_bytes: int = 0
    ) -> Sequence[Record]:
        found = self._at_once(first, last, limit, max_bytes) if subjects is None else None
        if found is None:
            found = await self._ask(lambda table: table.read(first, last, limit, subjects, max_bytes))
        return self._trusted(found)

    def _at_once(self, first: int, last: int, limit: int, max_bytes: int) -> Sequence[Record] | None:
        """Return what is in memory, and have a thread load what is read next; None if the table is to be asked."""
        table = self._table
        if table is None or self._damaged or self._refusal:
            return None
        began = time.perf_counter()
        found, ahead = table.at_once(first, last, limit, max_bytes)
        if found is not None:
            self._shared.note_use()
            self._shared.answered(began, False)
        if ahead:
            self._loading = asyncio.ensure_future(self._load(table, ahead))
        return found

    async def _load(self, table: TableHistory, first: int) -> None:
        async with self._under_way:
            try:
                with suppress(HistoryUnavailable, LakeAway):  # the read that needs it raises that again
                    await self._call(lambda: table.load(first))
            finally:
                if self._closed or table is not self._table:
                    self._shared.close(table)

    async def read_many(self, seqs: Sequence[int], subjects: Sequence[bytes] | None = None) -> Sequence[Record]:
        return self._trusted(await self._ask(lambda table: table.read_many(seqs, subjects)))

    async def first_at(self, time_ns: int) -> int:
        return await self._ask(lambda table: table.first_at(time_ns))

    async def was(self, patterns: Sequence[bytes], point: Point, limit: int, without: Sequence[tuple[int, int]]) -> Was:
        found = await self._ask_past(lambda past: past.was(patterns, point, limit, without))
        return Was(found.within, found.position, found.through, found.newest, found.kept)

    async def was_rows(self, seqs: Sequence[int], point: Point, max_bytes: int) -> list[Record]:
        rows = await self._ask_past(lambda past: past.rows(seqs, point, max_bytes))
        if len(self._trusted(rows)) < len(rows):
            raise HistoryUnavailable(f"other programs have changed some of these rows in {self._path}")
        return rows

    async def _ask_past(self, work: Callable[[TablePast], T]) -> T:
        began, failed = time.perf_counter(), True

        def ask() -> T:
            from lakestream.lake.read.history.past_table import TablePast  # loads pyarrow

            past = self._past
            if past is None:
                past = self._past = TablePast(self._path, self._uid, self._shared.get().footers)
            return work(past)

        try:
            self._require()
            async with self._under_way:
                found = await self._call(ask)
            failed = False
            return found
        except TimeTravelError as error:
            await self._judge()
            raise PastUnavailableError(str(error).replace(self._path, "the stream's table")) from error
        except LakeAway as error:
            raise _away(error) from error
        except (LakeError, OSError) as error:
            await self._judge()
            self._report(str(error))
            raise _unreadable(error) from error
        finally:
            self._shared.answered(began, failed)

    async def _ask(self, work: Callable[[TableHistory | FallbackHistory], T]) -> T:
        began, failed = time.perf_counter(), True
        try:
            self._require()
            found = await self._read(work)
            failed = False
            return found
        except LakeAway as error:
            raise _away(error) from error
        except HistoryUnavailable as error:
            await self._judge()
            self.is_suspect = True
            self.on_failure()
            self._report(str(error))
            raise _unreadable(error) from error
        finally:
            self._shared.answered(began, failed)

    def _require(self) -> None:
        """Raise an error if nothing has to be read now."""
        if self._refusal:
            raise HistoryUnavailableError(self._refusal, REFUSED)
        try:
            extras.require("tables", READING)
        except extras.ExtraMissing as error:
            self._report(str(error))
            raise HistoryUnavailableError(str(error), REFUSED) from None
        self._presence.require()

    async def _judge(self) -> None:
        """Raise HistoryUnavailableError with the time of the next attempt if an error has come from a lake that is
        away."""
        try:
            await self._presence.judge()
        except LakeAway as error:
            raise _away(error) from error

    async def _call(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread and await its result. Raise LakeAway as soon as the lake is away."""
        return await self._presence.answer(self._shared.submit(work))

    async def _read(self, work: Callable[[TableHistory | FallbackHistory], T]) -> T:
        async with self._under_way:
            failure: HistoryUnavailable | None = None
            if not self._damaged:
                try:
                    return await self._ask_table(work)
                except HistoryUnavailable as error:
                    failure = error
                    await self._presence.judge()
            fallback = await self._call(self._fallback)
            if fallback is not None:
                found = await self._call(lambda: self._ask_fallback(work, fallback))
                self._damaged = True  # until the table was verified
                return found
            if failure is not None:
                raise failure
            return await self._ask_table(work)

    @staticmethod
    def _ask_fallback(work: Callable[[TableHistory | FallbackHistory], T], fallback: FallbackHistory) -> T:
        try:
            return work(fallback)
        except HistoryUnavailable:
            raise
        except (LakeError, OSError) as error:  # a segment was deleted meanwhile, or is damaged itself
            raise HistoryUnavailable(f"the table is damaged, and so is what is staged: {error}") from error

    async def _ask_table(self, work: Callable[[TableHistory | FallbackHistory], T]) -> T:
        table = self._table or await self._open()
        try:
            return await self._call(lambda: work(table))
        finally:
            if self._closed or table is not self._table:
                self._shared.close(table)  # blocks that the read has cached since

    def _fallback(self) -> FallbackHistory | None:
        """Return table and staged segments as one history; None while nothing is staged. Blocks."""
        from lakestream.lake.read.history.history import TableHistory  # loads pyarrow
        from lakestream.lake.read.history.staged import FallbackHistory, StagedRows

        with self._guard:
            self._staged = staged = self._staged or StagedRows(self._directory)
        try:
            begins = staged.begins()
        except (LakeError, OSError):
            return None
        if not begins:
            return None
        with self._guard:
            before = self._below
            if before is not None and before.below == begins:
                return FallbackHistory(before, staged)
            self._below = below = TableHistory(self._path, self._shared.get(), begins, self._follower())
        if before is not None:
            before.close()
        return FallbackHistory(below, staged)

    async def _open(self) -> TableHistory:
        async with self._opening:
            if self._table is None:

                def make() -> TableHistory:
                    from lakestream.lake.read.history.history import TableHistory  # loads pyarrow

                    return TableHistory(self._path, self._shared.get(), follower=self._follower())

                self._table = await self._call(make)
            return self._table

    def close(self) -> None:
        """Remove a deleted stream's blocks from the cache."""
        self._closed = True
        if self._table is not None:
            self._forget(self._table)
        if self._below is not None:
            self._shared.close(self._below)

    def _forget(self, table: TableHistory) -> None:
        self._table = None
        self._shared.close(table)


def _unreadable(error: LakeError | OSError) -> HistoryUnavailableError:
    """Return the error for a table that could not be read, with the time of the next attempt if the object store fails
    requests, such as a throttled one with 503: nothing has to be mended then."""
    if isinstance(error, StorageFailed) or isinstance(error.__cause__, StorageFailed):
        return HistoryUnavailableError(str(error), FAILING, FAILING_RETRY_S)
    return HistoryUnavailableError(str(error), UNREADABLE)


def _away(error: LakeAway) -> HistoryUnavailableError:
    what = f"the message is in the lake, and {error.for_clients}"
    return HistoryUnavailableError(str(error), what, error.retry_s)
