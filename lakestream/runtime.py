"""Time and threads of a running server.

Belongs here: the asyncio implementations of the `Clock` and `Io` ports.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from lakestream.log.format.files import Brief
from lakestream.logging import Logger

T = TypeVar("T")

IO_THREADS = 8
"""Writes of different streams at once; further ones queue."""
BRIEF_NS = 1_000_000
"""Brief work that took longer than this (1 ms) shows that the disk is slow at the moment."""
BRIEF_PAUSE = 10
"""Threads do the brief work then for so many times as long as it took: a disk that stalls now and then holds up the
event loop for at most a tenth of the time."""

WAIT_NS = 1_000_000
"""Work counts as having waited for a thread when that took longer than this (1 ms)."""

STEP_NS = 1_000_000_000
"""Steps of the system clock of at least this much (1 s) are logged."""
STEP_LOOK_NS = 1_000_000_000
"""Interval at which the clocks are compared (1 s)."""

_UPTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A clock that includes suspended time, where the system has one (Linux)."""
_clock = time.clock_gettime_ns


class Turns:
    """End of each turn of the event loop, after the reads: batches are closed, and output is written before and after.

    All of it is one callback of the loop. A lone publish is thus written, synced and acked without another look at the
    sockets in between, and what the reads gathered for clients does not wait for a disk.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, log: Logger) -> None:
        self._loop, self._log = loop, log
        self._closing: list[Callable[[], None]] = []
        self._writing: list[Callable[[], None]] = []
        self._asked = False  # the loop will call `_end`
        self._ending = False  # `_end` runs

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call at the end of this turn; of the next one, if this one ends already."""
        self._closing.append(callback)
        self._ask()

    def call_last(self, callback: Callable[[], None]) -> None:
        """Call when output is written, in this turn also while it ends."""
        self._writing.append(callback)
        if not self._ending:
            self._ask()

    def _ask(self) -> None:
        if not self._asked:
            self._asked = True
            self._loop.call_soon(self._end)

    def _end(self) -> None:
        self._asked, self._ending = False, True
        closing, self._closing = self._closing, []
        if self._writing:
            self._write()
        self._call(closing)
        if self._writing:
            self._write()
        self._ending = False
        if self._writing:  # noted by the last writes themselves
            self._ask()

    def _write(self) -> None:
        writing, self._writing = self._writing, []
        self._call(writing)

    def _call(self, callbacks: list[Callable[[], None]]) -> None:
        for callback in callbacks:
            try:
                callback()
            except Exception as error:
                self._log.exception("a callback of the event loop failed", error)


class LoopClock:
    """`Clock` over the running event loop.

    Attributes:
        call_soon: see `Turns`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, log: Logger, turns: Turns | None = None) -> None:
        self._loop = loop
        self._log = log
        self.call_soon = (turns or Turns(loop, log)).call_soon
        self._tasks: set[asyncio.Task[Any]] = set()
        self._began = self.now() - _clock(_UPTIME)
        self._difference = 0

    now = staticmethod(time.time_ns)  # called for each message: without a wrapper

    def steady(self) -> int:
        return self._began + _clock(_UPTIME)

    def watch_steps(self) -> None:
        """Log every step of the system clock from now on (`STEP_NS`)."""
        difference = self.now() - self.steady()
        if abs(stepped := difference - self._difference) >= STEP_NS:
            self._difference = difference
            self._log.warn(
                f"the system clock was stepped by {stepped / 1e9:+.3f} s: timers are not affected, times of "
                f"messages do not go backwards; it is {difference / 1e9:+.3f} s off since this process started"
            )
        self.call_later(STEP_LOOK_NS, self.watch_steps)

    def call_later(self, delay_ns: int, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_ns / 1e9, callback)

    def spawn(self, awaitable: Awaitable[Any]) -> None:
        task = asyncio.ensure_future(awaitable)
        self._tasks.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            error = task.exception()
            assert error is not None
            self._log.exception("background work failed", error)

    async def cancel_all(self) -> None:
        """Cancel all background tasks."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class IoWaits:
    """Work that waited for a thread, times in ns.

    Attributes:
        waits: pieces of work that waited.
        total_ns, max_ns: of their waits.
    """

    __slots__ = ("max_ns", "total_ns", "waits")

    def __init__(self) -> None:
        self.waits = self.total_ns = self.max_ns = 0

    def add(self, waits: int, total_ns: int, max_ns: int) -> None:
        """Count waits."""
        self.waits += waits
        self.total_ns += total_ns
        self.max_ns = max(self.max_ns, max_ns)


class ThreadIo:
    """`Io` over a bounded number of threads.

    Every write takes this way: a queue and a callback cost a third of an executor's futures. Brief work runs in the
    event loop, one piece in a turn and only while the disk is fast: two thread switches cost as much as the sync.

    Args:
        call_last: calls at the end of the turn.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        threads: int = IO_THREADS,
        call_last: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        self._loop = loop
        self._call_last = call_last or loop.call_soon
        self._work: SimpleQueue[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None], int] | None] = (
            SimpleQueue()
        )
        self._waits = [IoWaits() for _ in range(threads)]  # each counted by its thread alone
        self._threads = [
            threading.Thread(target=self._run, args=(waits,), name=f"lakestream-io-{number}", daemon=True)
            for number, waits in enumerate(self._waits)
        ]
        self._later = False  # a piece of brief work waits for its turn of the loop
        self._done = False  # a piece of brief work was done in this turn
        self._threads_until = 0  # the disk was slow: until then (monotonic ns) no brief work in the loop
        for thread in self._threads:
            thread.start()

    def submit(
        self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None], brief: Brief = Brief.NO
    ) -> None:
        taken = self._later or (self._done and brief is Brief.NOW)
        if not brief or taken or time.monotonic_ns() < self._threads_until:
            self._work.put((work, done, time.monotonic_ns()))
        elif brief is Brief.NOW:
            self._do_brief(work, done)
        else:
            self._later = True
            if brief is Brief.SOON:
                self._loop.call_soon(self._do_later, work, done)
            else:  # messages of this turn are written at the end of the next
                self._loop.call_soon(self._loop.call_soon, self._do_later, work, done)

    def _do_later(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        self._later = False
        self._do_brief(work, done)

    def _do_brief(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        result, wrong = None, None
        began = time.monotonic_ns()
        try:
            result = work()
        except Exception as error:
            wrong = error
        ended = time.monotonic_ns()
        if ended - began > BRIEF_NS:
            self._threads_until = ended + (ended - began) * BRIEF_PAUSE
        # One piece in a turn: what else is submitted for it is done by threads meanwhile.
        if not self._done:
            self._done = True
            self._call_last(self._end_turn)
        done(result, wrong)

    def _end_turn(self) -> None:
        self._done = False

    @property
    def waiting(self) -> int:
        """Return the pieces of work that no thread has begun."""
        return self._work.qsize()

    def waits(self) -> IoWaits:
        """Return the waits since the start that were longer than `WAIT_NS`."""
        found = IoWaits()
        for each in self._waits:
            found.add(each.waits, each.total_ns, each.max_ns)
        return found

    def _run(self, waits: IoWaits) -> None:
        get, tell = self._work.get, self._loop.call_soon_threadsafe
        while (item := get()) is not None:
            work, done, put_ns = item
            waited_ns = time.monotonic_ns() - put_ns
            if waited_ns > WAIT_NS:
                waits.add(1, waited_ns, waited_ns)
            result, wrong = None, None
            try:
                result = work()
            except BaseException as error:
                wrong = error
            try:
                tell(done, result, wrong)
            except RuntimeError:
                return  # the loop is closed
            item = work = done = result = wrong = None  # type: ignore[assignment]  # release what may be large

    async def call(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread and await its result."""
        waiting: asyncio.Future[T] = self._loop.create_future()

        def done(result: T | None, error: BaseException | None) -> None:
            if waiting.cancelled():
                return
            if error is not None:
                waiting.set_exception(error)
            else:
                waiting.set_result(cast(T, result))

        self.submit(work, done)
        return await waiting

    def close(self) -> None:
        """Wait for work under way and end the threads."""
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()
