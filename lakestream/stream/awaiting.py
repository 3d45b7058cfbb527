"""Callbacks as something to wait for.

Belongs here: the bridge from the callbacks of streams, groups and threads to coroutines, for work that takes many steps
and is not on the way of a message (snapshots, restores).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar, cast

from lakestream.ports import Clock, Io

T = TypeVar("T")


async def in_thread(io: Io, work: Callable[[], T]) -> T:
    """Run `work` in a thread. Raises what it raises."""
    outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(result: T | None, error: BaseException | None) -> None:
        if outcome.cancelled():
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(cast(T, result))

    io.submit(work, done)
    return await outcome


async def told(ask: Callable[[Callable[[T], None]], object]) -> T:
    """Call `ask` with a callback; return what the callback is called with first."""
    outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(result: T) -> None:
        if not outcome.done():
            outcome.set_result(result)

    ask(done)
    return await outcome


async def pause(clock: Clock, delay_ns: int) -> None:
    """Wait `delay_ns`."""

    def ask(done: Callable[[None], None]) -> None:
        clock.call_later(delay_ns, lambda: done(None))

    await told(ask)


class Signal:
    """Something that happens now and then. One waits for it at a time; what happens meanwhile is not forgotten."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._set = False
        self._waiting: asyncio.Future[bool] | None = None

    def happened(self) -> None:
        """Wake the waiting task, or the next one at once."""
        self._set = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(True)

    async def wait(self, timeout_ns: int) -> bool:
        """Wait until it has happened since the last wait; False when it has not in time."""
        if not self._set:
            waiting = self._waiting = asyncio.get_running_loop().create_future()
            timer = self._clock.call_later(timeout_ns, lambda: None if waiting.done() else waiting.set_result(False))
            try:
                await waiting
            finally:
                timer.cancel()
                self._waiting = None
        happened, self._set = self._set, False
        return happened
