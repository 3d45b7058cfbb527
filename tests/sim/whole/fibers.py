"""Threads of simulated processes: one runs at a time, and where it waits, virtual time goes on.

Belongs here: blocking code (requests to the lake, locks with their leases) on virtual time, and what it uses of
`threading`, `time.sleep` and executors. A fiber is a thread of the system that runs only while the simulation waits for
it, so a seed decides the order of everything. The fibers of a paused process stand still with its loop; those of an
ended one get PowerCut wherever they wait, and can change nothing any more.
"""

from __future__ import annotations

import _thread
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from tests.sim.disk import PowerCut
from tests.sim.whole.loop import SimLoop

Done = Callable[[Any, BaseException | None], None]

START_S = 20e-6
"""Virtual time until a new thread runs."""


class _Worker:
    """A thread of the system that runs one fiber after the other."""

    def __init__(self, main: _thread.LockType) -> None:
        self._main = main
        self.go = _thread.allocate_lock()
        self.go.acquire()
        self.work: Callable[[], None] | None = None
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        while True:
            self.go.acquire()
            work, self.work = self.work, None
            if work is None:
                return
            work()
            work = None  # release what it holds
            self._main.release()


class Fiber:
    """One thread of a simulated process."""

    def __init__(self, loop: SimLoop, work: Callable[[], Any], done: Done) -> None:
        self.loop, self._work, self.done = loop, work, done
        self.worker: _Worker
        self.killed = self.ended = False
        self.pauses = 0
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Run to the end; in the fiber's own thread."""
        try:
            self.result = self._work()
        except BaseException as error:
            self.error = error
        self.ended = True


class Fibers:
    """The threads of all processes of a run.

    Attributes:
        current: the one that runs; None: the simulation itself.
    """

    def __init__(self) -> None:
        self.current: Fiber | None = None
        self._main = _thread.allocate_lock()
        self._main.acquire()
        self._idle: list[_Worker] = []
        self._alive: dict[SimLoop, dict[Fiber, None]] = {}

    # ------------------------------------------------------------------ by the simulation
    def start(self, loop: SimLoop, work: Callable[[], Any], done: Done = lambda result, error: None) -> None:
        """Start a thread of a process soon; `done` gets its result in a turn of that process's loop."""
        loop.call_later(START_S, self._begin, Fiber(loop, work, done))

    def _begin(self, fiber: Fiber) -> None:
        fiber.worker = self._idle.pop() if self._idle else _Worker(self._main)
        self._alive.setdefault(fiber.loop, {})[fiber] = None
        fiber.worker.work = fiber.run
        self._switch(fiber)

    def _switch(self, fiber: Fiber) -> None:
        """Run a fiber until it waits or ends."""
        assert self.current is None, "fibers are run by the simulation alone"
        self.current = fiber
        fiber.worker.go.release()
        self._main.acquire()
        self.current = None
        if fiber.ended:
            self._idle.append(fiber.worker)
            self._alive[fiber.loop].pop(fiber, None)
            if not fiber.killed and not isinstance(fiber.error, PowerCut):
                fiber.done(fiber.result, fiber.error)

    def _resume(self, fiber: Fiber, pause: int) -> None:
        if fiber.pauses == pause and not fiber.ended:
            fiber.pauses += 1
            self._switch(fiber)

    def end(self, loop: SimLoop) -> None:
        """End all threads of a process."""
        for fiber in self._alive.pop(loop, {}):
            fiber.killed = True
            self._alive[loop] = {fiber: None}
            while not fiber.ended:
                fiber.pauses += 1
                self._switch(fiber)
        self._alive.pop(loop, None)

    def close(self) -> None:
        """End all threads of the run."""
        for loop in list(self._alive):
            self.end(loop)
        for worker in self._idle:
            worker.go.release()
        self._idle.clear()

    # ------------------------------------------------------------------ by a fiber
    def check(self) -> None:
        """Raise PowerCut if the process of the running fiber has ended."""
        if self.current is not None and self.current.killed:
            raise PowerCut

    def sleep(self, seconds: float) -> None:
        """Wait; the simulation itself does not."""
        if self.current is not None:
            self.wait(lambda resume: None, max(seconds, 1e-9))

    def wait(self, arrange: Callable[[Callable[[], object]], object], seconds: float | None = None) -> None:
        """Wait until the callback that `arrange` gets was called, or for so many seconds."""
        fiber = self.current
        assert fiber is not None, "the simulation itself must not wait"
        self.check()
        pause = fiber.pauses
        arrange(lambda: fiber.loop.call_soon(self._resume, fiber, pause))
        if seconds is not None:
            fiber.loop.call_later(seconds, self._resume, fiber, pause)
        self._main.release()
        fiber.worker.go.acquire()
        self.check()

    def new_event(self) -> FiberEvent:
        """Return the counterpart of `threading.Event`."""
        return FiberEvent(self)


class FiberEvent:
    """`threading.Event` among fibers."""

    def __init__(self, fibers: Fibers) -> None:
        self._fibers = fibers
        self._set = False
        self._waiting: list[Callable[[], object]] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        waiting, self._waiting = self._waiting, []
        for resume in waiting:
            resume()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            self._fibers.wait(self._waiting.append, timeout)
        return self._set


class FiberLock:
    """`threading.Lock` among fibers."""

    def __init__(self, fibers: Fibers) -> None:
        self._fibers = fibers
        self._held = False
        self._waiting: deque[Callable[[], object]] = deque()

    def acquire(self) -> bool:
        while self._held:
            self._fibers.wait(self._waiting.append)
        self._held = True
        return True

    def release(self) -> None:
        self._held = False
        if self._waiting:
            self._waiting.popleft()()

    def locked(self) -> bool:
        return self._held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class FiberThread:
    """`threading.Thread` as a fiber of the process that starts it."""

    def __init__(self, fibers: Fibers, target: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._fibers, self._target, self._args = fibers, target, args
        self._over = FiberEvent(fibers)

    def start(self) -> None:
        fiber = self._fibers.current
        assert fiber is not None, "only fibers start threads"
        self._fibers.start(fiber.loop, self._run)

    def _run(self) -> None:
        try:
            self._target(*self._args)
        finally:
            self._over.set()

    def join(self) -> None:
        self._over.wait()


class Threading:
    """The part of `threading` that modules of the lake use."""

    def __init__(self, fibers: Fibers) -> None:
        self._fibers = fibers

    def Lock(self) -> FiberLock:
        return FiberLock(self._fibers)

    def Event(self) -> FiberEvent:
        return FiberEvent(self._fibers)

    def Thread(
        self, *, target: Callable[..., object], args: tuple[Any, ...] = (), name: str = "", daemon: bool = False
    ) -> FiberThread:
        return FiberThread(self._fibers, target, args)


class InlineExecutor(Executor):
    """An executor without threads: work is done by who submits it."""

    def __init__(self, max_workers: int = 1, thread_name_prefix: str = "") -> None:
        """Take the arguments of ThreadPoolExecutor."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future
