"""Time and threads for a running server.

Belongs here: the asyncio implementations of the `Clock` and `Io` ports, nothing that decides anything.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from lakestream.server.logging import Logger

T = TypeVar("T")

IO_THREADS = 8
"""Writes of different streams that may be in progress at once; further ones queue."""


class LoopClock:
    """`Clock` over the running event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, log: Logger) -> None:
        self._loop = loop
        self._log = log
        self._tasks: set[asyncio.Task[Any]] = set()

    def now(self) -> int:
        """See `Clock.now`."""
        return time.time_ns()

    def call_later(self, delay_ns: int, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """See `Clock.call_later`."""
        return self._loop.call_later(delay_ns / 1e9, callback)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """See `Clock.call_soon`."""
        self._loop.call_soon(callback)

    def spawn(self, awaitable: Awaitable[Any]) -> None:
        """See `Clock.spawn`."""
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
        """End what still runs in the background."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class ThreadIo:
    """`Io` over a few threads that take work from one queue.

    Leaner than an executor on purpose: every group commit goes through here, and a future with its locks for each would
    cost the event loop more than the write itself.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int = IO_THREADS) -> None:
        self._loop = loop
        self._queue: SimpleQueue[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]] | None]
        self._queue = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"lakestream-io-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """See `Io.submit`."""
        self._queue.put((work, done))

    def _work(self) -> None:
        get, tell = self._queue.get, self._loop.call_soon_threadsafe
        while (item := get()) is not None:
            work, done = item
            try:
                tell(done, work(), None)
            except BaseException as error:
                tell(done, None, error)
            del item, work, done  # nothing of a batch stays alive while the thread waits for the next

    async def call(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread and await its result."""
        future: asyncio.Future[T] = self._loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(cast(T, result))

        self.submit(work, settle)
        return await future

    def close(self) -> None:
        """Wait for work under way and end the threads. Blocks."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
