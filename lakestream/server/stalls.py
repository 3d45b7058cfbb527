"""Stalls of the event loop: for how long everybody waited, and for which step.

Belongs here: a tick of the event loop, a thread that looks where the loop is when a tick is late, and their figures.

All clients share one event loop, so a step of 100 ms is a delay of 100 ms for each of them. The step cannot be timed by
itself, since nothing stands between the loop and its callbacks. So a timer asks for a tick every 50 ms: how late it
comes is how long somebody waited. The thread wakes as often, and notes the innermost function of ours if the tick is
overdue. It cannot look while native code holds the interpreter; then it names what runs just afterwards. That may be
the loop itself, which called the native code: to free what a thread has read, say. The newest callback is named then.

A late tick may also mean that the machine gave the processor to others. Therefore the log complains only of ticks
between which the loop itself has computed: 100 ms of processor time.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable, Container
from functools import partial
from types import CodeType, FrameType

from lakestream.logging import Logger
from lakestream.metrics.histogram import SECONDS, Histogram
from lakestream.ops.monitoring.monitored import Stall

TICK_NS = 50_000_000
"""Interval of ticks, and of looks at them (50 ms)."""
NOTED_NS = 10_000_000
"""A tick that is so late is a stall (10 ms)."""
TOLD_NS = 100_000_000
"""A stall of this length, and with so much processor time, is a warning in the log (100 ms)."""
PERIOD_NS = 60_000_000_000
"""The longest stall is that of the current minute and of the one before."""
_OURS, _CALLERS = "lakestream", (__name__, "lakestream.runtime")
"""Functions of these modules call what takes long."""


class StallWatch:
    """Watches one event loop, that of the thread that calls `start`.

    Args:
        last: returns the newest callback, such as `Phases.last`.

    Attributes:
        seconds: the lengths of stalls.
    """

    def __init__(self, log: Logger, last: Callable[[], Callable[..., object]]) -> None:
        self.seconds = Histogram(SECONDS)
        self._log, self._last = log, last
        self._longest = self._before = Stall()
        self._period_ends = self._due = self._cpu = 0
        self._step = ""  # what ran when the next tick was overdue
        self._seen = False  # it was on the stack
        self._callers: frozenset[CodeType] = frozenset()  # of the loop
        self._stopped = threading.Event()

    @property
    def longest(self) -> Stall:
        """Return the longest stall of the current period and of the one before."""
        return max(self._longest, self._before)

    def start(self) -> None:
        """Begin to watch the running event loop; the thread is a daemon."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._callers = frozenset(frame.f_code for frame, _ in traceback.walk_stack(None))
        self._due, self._cpu = time.monotonic_ns() + TICK_NS, time.thread_time_ns()
        self._period_ends = self._due + PERIOD_NS
        self._loop.call_later(TICK_NS / 1e9, self._tick)  # not by the clock: it would be the newest callback
        threading.Thread(target=self._look, name="stalls", daemon=True).start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()

    def _tick(self) -> None:
        now, cpu = time.monotonic_ns(), time.thread_time_ns()
        late_ns, used_ns, step = now - self._due, cpu - self._cpu, self._step
        self._due, self._cpu, self._step, self._seen = now + TICK_NS, cpu, "", False
        if now > self._period_ends:
            self._longest, self._before = Stall(), self._longest if now < self._period_ends + PERIOD_NS else Stall()
            self._period_ends = now + PERIOD_NS
        if late_ns > NOTED_NS:
            self.seconds.observe(late_ns / 1e9)
            self._longest = max(self._longest, Stall(late_ns, step))
            if min(late_ns, used_ns) > TOLD_NS:
                where = f" in {step}" if step else ""
                self._log.warn(f"All clients waited {late_ns / 1e6:.0f} ms for one step of the server{where}")
        self._loop.call_later(TICK_NS / 1e9, self._tick)

    def _look(self) -> None:
        """Note what the event loop does when a tick is overdue. Run in a thread."""
        while not self._stopped.wait(TICK_NS / 1e9):
            if not self._seen and time.monotonic_ns() - self._due > NOTED_NS:
                step = _step_of(sys._current_frames().get(self._thread), self._callers)
                self._seen, self._step = bool(step), step or f"native code behind {_name_of(self._last())}"


def _step_of(frame: FrameType | None, callers: Container[CodeType]) -> str:
    """Return the innermost function of ours on a stack, above the callers of the event loop; "" if there is none."""
    while frame is not None and frame.f_code not in callers:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0].startswith(_OURS) and module not in _CALLERS:
            return f"{module.removeprefix('lakestream.')}.{frame.f_code.co_qualname}"
        frame = frame.f_back
    return ""


def _name_of(callback: Callable[..., object]) -> str:
    """Return module and name of a function or a method."""
    while isinstance(callback, partial):
        callback = callback.func
    name = getattr(callback, "__qualname__", type(callback).__qualname__)
    return f"{str(callback.__module__).removeprefix('lakestream.')}.{name}"
