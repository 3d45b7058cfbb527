"""Time and threads of a running server.

Belongs here: the asyncio implementations of the `Clock` and `Io` ports.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from lakestream.log.format.files import Brief, Io
from lakestream.logging import Logger

T = TypeVar("T")

IO_THREADS = 8
"""Writes of different streams at once; further ones queue."""
BRIEF_NS = 1_000_000
"""Brief work that took longer than this (1 ms) shows that the disk is slow at the moment."""
BRIEF_PAUSE = 10
"""Threads do the brief work then for so many times as long as it took: a disk that stalls now and then holds up the
event loop for at most a tenth of the time."""
BRIEF_SPARED_NS = 100_000_000
"""So much of these pauses is spared (100 ms): single stalls of up to 10 ms change nothing. Each switch to a thread and
back costs a lone publisher more than they do."""

WAIT_NS = 1_000_000
"""Work counts as having waited for a thread when that took longer than this (1 ms)."""

SLOW_NS = 50_000_000
"""Work of a lane that took longer than this (50 ms) shows that its disk is slow."""
SLOW_PAUSE = 20
"""Its work then goes to the threads for slow lanes for so many times as long, and until a piece was quick again."""
SLOW_THREADS = 32
"""Most threads for slow lanes; each is started when no other is free. They mostly wait for a disk."""

STEP_NS = 1_000_000_000
"""Steps of the system clock of at least this much (1 s) are logged."""
STEP_LOOK_NS = 1_000_000_000
"""Interval at which the clocks are compared (1 s)."""

_NEVER = 1 << 63
_UPTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A clock that includes suspended time, where the system has one (Linux)."""
_clock = time.clock_gettime_ns


CLOSING_NS = 4_000_000
"""Time after which the rest of what is to be done at the end of a turn, mostly deliveries of many consumers, is left to
the next one (4 ms)."""


class Phases:
    """End of each turn of the event loop, after the reads, in phases: batches are closed, and output is written before
    and after.

    All of it is one callback of the loop. A lone publish is thus written, synced and acked without another look at the
    sockets in between, and what the reads gathered for clients does not wait for a disk.

    Deliveries of stored messages are made right before output is written, so that they leave with the pub acks of these
    messages: what a client sends once it has an ack, or reads elsewhere, does not overtake them.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, log: Logger) -> None:
        self._loop, self._log = loop, log
        self._reading: list[Callable[[], None]] = []
        self._closing: list[Callable[[], None]] = []
        self._closed: list[Callable[[], None]] = []
        self._delivering: list[Callable[[], None]] = []
        self._writing: list[Callable[[], None]] = []
        self._next: list[Callable[[], None]] = []
        self._asked = False  # the loop will call `_end`
        self._ending = False  # `_end` runs
        self._gathers = False  # another batch of this turn is to be closed, after the one that is being closed
        self._waited = False  # `_begin` has waited for an end
        self.steady: Callable[[], int] = lambda: 0
        """Returns the time in ns: that of the server's clock, once there is one."""
        self.last: Callable[..., object] = self._end
        """The newest callback: called here, for the result of a thread, or by a timer of the clock. Work of the event
        loop outside of any function, such as freeing that result, is mostly its doing."""

    def call_first(self, callback: Callable[[], None]) -> None:
        """Call after the reads of this turn, before batches are closed."""
        self._reading.append(callback)
        self._ask()

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call at the end of this turn; of the next one, if this one ends already."""
        self._closing.append(callback)
        self._ask()

    def call_closed(self, callback: Callable[[], None]) -> bool:
        """Call when all batches of this turn are closed, before output is written; return False if it does not end."""
        if self._ending:
            self._closed.append(callback)
        return self._ending

    def gathers(self) -> bool:
        """Return True if `call_closed` takes calls, and another batch of this turn is to be closed."""
        return self._gathers

    def call_with_output(self, callback: Callable[[], None]) -> None:
        """Call before output is written, in this turn also while its batches are closed."""
        self._delivering.append(callback)
        if not self._ending:
            self._ask()

    def call_last(self, callback: Callable[[], None]) -> None:
        """Call when output is written, in this turn also while it ends."""
        self._writing.append(callback)
        if not self._ending:
            self._ask()

    def call_next(self, callback: Callable[[], None]) -> None:
        """Call at the beginning of the next turn, which comes after the end of this one: what takes long does not delay
        the output of what the sockets have brought before."""
        self._next.append(callback)
        if len(self._next) == 1:
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        if self._asked and not self._waited:  # the end of the turn is behind this callback
            self._waited = True
            self._loop.call_soon(self._begin)
            return
        self._waited = False
        callbacks, self._next = self._next, []
        self._call(callbacks)

    def run(self, callback: Callable[..., object], *args: object) -> None:
        """Call, and note the callback as the last one."""
        self.last = callback
        callback(*args)

    def _ask(self) -> None:
        if not self._asked:
            self._asked = True
            self._loop.call_soon(self._end)

    def _end(self) -> None:
        if self._reading:  # what they ask for is done in this turn
            reading, self._reading = self._reading, []
            self._call(reading)
        self._asked, self._ending = False, True
        closing, self._closing = self._closing, []
        self._put_out()
        late = self.steady() + CLOSING_NS if len(closing) > 1 else 0
        for at, callback in enumerate(closing, 1):
            self._gathers = at < len(closing)
            self._call([callback])
            if at < len(closing) and self.steady() > late:
                self._closing[:0] = closing[at:]  # others are served first
                self._gathers = False
                break
        while self._closed:
            closed, self._closed = self._closed, []
            self._call(closed)
        self._put_out()
        self._ending = False
        if self._closing or self._writing or self._delivering:  # the last two: noted by the last writes themselves
            self._ask()

    def _put_out(self) -> None:
        if self._delivering:
            delivering, self._delivering = self._delivering, []
            self._call(delivering)
        if self._writing:
            self._write()

    def _write(self) -> None:
        writing, self._writing = self._writing, []
        self._call(writing)

    def _call(self, callbacks: list[Callable[[], None]]) -> None:
        for callback in callbacks:
            self.last = callback
            try:
                callback()
            except Exception as error:
                self._log.exception("a callback of the event loop failed", error)


class LoopClock:
    """`Clock` over the running event loop.

    Attributes:
        call_soon, call_with_output: see `Phases`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, log: Logger, phases: Phases | None = None) -> None:
        self._loop = loop
        self._log = log
        phases = phases or Phases(loop, log)
        self.call_soon, self.call_with_output, self._run = phases.call_soon, phases.call_with_output, phases.run
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
        return self._loop.call_later(delay_ns / 1e9, self._run, callback)

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
    """Work of threads, times in ns.

    Attributes:
        waits: pieces of work that waited for a thread.
        total_ns, max_ns: of their waits.
        done: pieces of work that are done, without those of background lanes.
    """

    __slots__ = ("done", "max_ns", "total_ns", "waits")

    def __init__(self) -> None:
        self.waits = self.total_ns = self.max_ns = self.done = 0

    def add(self, waits: int, total_ns: int, max_ns: int) -> None:
        """Count waits."""
        self.waits += waits
        self.total_ns += total_ns
        self.max_ns = max(self.max_ns, max_ns)


class Lane(Io):
    """The work of one user of a `ThreadIo`.

    Attributes:
        slow: its disk was slow: its work goes to the threads for slow lanes.
        slow_until: the earliest end of that (monotonic ns).
    """

    def __init__(self, io: ThreadIo) -> None:
        self._io = io
        # Called for each write: without a wrapper.
        self.call_gathered, self.gathers = io.call_gathered, io.gathers  # type: ignore[method-assign]
        self.slow = False
        self.slow_until = 0

    @property
    def background(self) -> bool:
        """Return True if nobody waits for the lane's work."""
        return self.slow_until == _NEVER

    def submit(
        self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None], brief: Brief = Brief.NO
    ) -> None:
        self._io.submit_in(self, work, done, brief)

    def took(self, ended_ns: int, took_ns: int) -> None:
        """Note how long a piece of work took."""
        if took_ns > SLOW_NS:
            self.slow, self.slow_until = True, max(self.slow_until, ended_ns + took_ns * SLOW_PAUSE)
        elif self.slow and ended_ns > self.slow_until:
            self.slow = False


class _Threads:
    """Some threads and their queue.

    Args:
        tell: calls a function in the event loop.
        most: number of threads.
        name: prefix of the threads' names.
        begin: of them are started now, each further one when no other is free.
    """

    def __init__(self, tell: Callable[..., object], most: int, name: str, begin: int) -> None:
        self._tell, self._most, self._name = tell, most, name
        self._free = threading.Semaphore(begin)  # counted only where threads are started later
        self._grows = begin < most
        self._work: SimpleQueue[
            tuple[Callable[[], Any], Callable[[Any, BaseException | None], None], int, Lane] | None
        ] = SimpleQueue()
        self.waits: list[IoWaits] = []  # each counted by its thread alone
        self._threads: list[threading.Thread] = []
        self._given = self._ended = 0  # of these, that many had ended at the last look
        self.waiting = self._work.qsize
        for _ in range(begin):
            self._start()

    def _start(self) -> None:
        waits, name = IoWaits(), f"{self._name}-{len(self._threads)}"
        thread = threading.Thread(target=self._run, args=(waits,), name=name, daemon=True)
        self.waits.append(waits)
        thread.start()
        self._threads.append(thread)  # a stop in another thread may have begun: it could not join one before its start

    def put(
        self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None], lane: Lane, now_ns: int
    ) -> None:
        """Let a thread do a piece of work."""
        self._given += not lane.background
        self._work.put((work, done, now_ns, lane))

    def busy(self) -> bool:
        """Return True if some work is not done, leaving aside that of background lanes."""
        if self._ended != self._given:
            self._ended = sum([each.done for each in self.waits])
        return self._ended != self._given

    def room(self) -> None:
        """Make sure that a thread is free for the next piece of work, if there may be another."""
        if not self._free.acquire(blocking=False) and len(self._threads) < self._most:
            self._start()

    def _run(self, waits: IoWaits) -> None:
        get, tell, now = self._work.get, self._tell, time.monotonic_ns
        while (item := get()) is not None:
            work, done, put_ns, lane = item
            began_ns = now()
            waited_ns = began_ns - put_ns
            if waited_ns > WAIT_NS:
                waits.add(1, waited_ns, waited_ns)
            result, wrong = None, None
            try:
                result = work()
            except BaseException as error:
                wrong = error
            ended_ns = now()
            waits.done += not lane.background
            lane.took(ended_ns, ended_ns - began_ns)
            if self._grows:
                self._free.release()
            try:
                tell(done, result, wrong)
            except RuntimeError:
                return  # the loop is closed
            item = work = done = result = wrong = lane = None  # type: ignore[assignment]  # release what may be large
        self._work.put(None)  # for the other threads

    def close(self) -> None:
        """Wait for work under way and end the threads."""
        self._work.put(None)
        for thread in list(self._threads):
            thread.join()


class ThreadIo(Io):
    """`Io` over a bounded number of threads.

    Every write takes this way: a queue and a callback cost a third of an executor's futures. Brief work runs in the
    event loop, one piece in a turn and only while the disk is fast and has nothing else to do: two thread switches cost
    as much as the sync, but behind a large write a small sync takes as long as that.
    Lanes whose work is slow share other threads, so that those with a fast disk do not wait for them.

    Args:
        phases: of the loop's turns; None: the end of a turn is the next one.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        threads: int = IO_THREADS,
        phases: Phases | None = None,
    ) -> None:
        self._loop = loop
        self._call_last = loop.call_soon if phases is None else phases.call_last
        if phases is not None:
            self.call_gathered = phases.call_closed  # type: ignore[assignment, method-assign]
            self.gathers = phases.gathers  # type: ignore[method-assign]
        tell: Callable[..., object] = loop.call_soon_threadsafe
        self._tell = tell if phases is None else partial(tell, phases.run)
        self._threads = _Threads(self._tell, threads, "lakestream-io", threads)
        self._slow: _Threads | None = None
        self._shared = Lane(self)
        self._later = False  # a piece of brief work waits for its turn of the loop
        self._done = False  # a piece of brief work was done in this turn
        self._pause_ends = 0  # of all pauses one after the other (monotonic ns): the disk was slow

    def lane(self, background: bool = False) -> Io:
        made = Lane(self)
        if background:
            made.slow, made.slow_until = True, _NEVER
        return made

    def submit(
        self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None], brief: Brief = Brief.NO
    ) -> None:
        self.submit_in(self._shared, work, done, brief)

    def submit_in(
        self,
        lane: Lane,
        work: Callable[[], T],
        done: Callable[[T | None, BaseException | None], None],
        brief: Brief,
    ) -> None:
        """Do what `Lane.submit` says."""
        if lane.slow and lane is not self._shared:
            if self._slow is None:
                self._slow = _Threads(self._tell, SLOW_THREADS, "lakestream-slow-io", 0)
            self._slow.room()
            self._slow.put(work, done, lane, time.monotonic_ns())
            return
        now_ns = time.monotonic_ns()
        if not brief or self._later or (self._done and brief is Brief.NOW) or self._is_disk_busy(now_ns):
            self._threads.put(work, done, lane, now_ns)
        elif brief is Brief.NOW:
            self._do_brief(lane, work, done)
        else:
            self._later = True
            if brief is Brief.SOON:
                self._loop.call_soon(self._do_later, lane, work, done)
            else:  # messages of this turn are written at the end of the next
                self._loop.call_soon(self._loop.call_soon, self._do_later, lane, work, done)

    def _is_disk_busy(self, now_ns: int) -> bool:
        """Return True if brief work is likely to take long: the disk was slow, or has other work."""
        slow = self._slow
        paused = now_ns < self._pause_ends - BRIEF_SPARED_NS
        return paused or self._threads.busy() or (slow is not None and slow.busy())

    def _do_later(
        self, lane: Lane, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]
    ) -> None:
        self._later = False
        self._do_brief(lane, work, done)

    def _do_brief(
        self, lane: Lane, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]
    ) -> None:
        result, wrong = None, None
        began = time.monotonic_ns()
        try:
            result = work()
        except Exception as error:
            wrong = error
        ended = time.monotonic_ns()
        if ended - began > BRIEF_NS:
            self._pause_ends = max(self._pause_ends, ended) + (ended - began) * BRIEF_PAUSE
            lane.took(ended, ended - began)
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
        return self._threads.waiting() + (self._slow.waiting() if self._slow is not None else 0)

    def waits(self) -> IoWaits:
        """Return the waits since the start that were longer than `WAIT_NS`."""
        found = IoWaits()
        for each in [*self._threads.waits, *(self._slow.waits if self._slow is not None else ())]:
            found.add(each.waits, each.total_ns, each.max_ns)
        return found

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
        self._threads.close()
        if self._slow is not None:
            self._slow.close()
