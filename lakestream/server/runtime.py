"""Time and threads for a running server.

Belongs here: the asyncio implementations of the `Clock` and `Io` ports, nothing that decides anything.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

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
    """`Io` over a bounded pool of threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int = IO_THREADS) -> None:
        self._loop = loop
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="lakestream-io")

    def submit(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """See `Io.submit`."""

        def run() -> None:
            try:
                result = work()
            except BaseException as error:
                self._loop.call_soon_threadsafe(done, None, error)
            else:
                self._loop.call_soon_threadsafe(done, result, None)

        self._pool.submit(run)

    async def call(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread and await its result."""
        return await self._loop.run_in_executor(self._pool, work)

    def close(self) -> None:
        """Wait for work under way and end the threads."""
        self._pool.shutdown(wait=True)
