"""Event loop of one simulated process, on virtual time.

Belongs here: turns, timers, tasks and futures. Each process has its own loop; all of them take their turns one after
the other, as the queue of events says. What a turn costs is a few microseconds of virtual time. A paused process takes
no turn, one that has ended never takes another.
"""

from __future__ import annotations

import asyncio
import errno
import os
from asyncio import _get_running_loop, _set_running_loop
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.sim.events import US, Events

if TYPE_CHECKING:
    from tests.sim.whole.network import Network

TURN_NS = 2 * US
"""Time from the end of one turn to the next one."""

PRUNE_EVERY = 512


class Call(asyncio.TimerHandle):
    """A callback of a loop, without its context and what asyncio keeps for its debug mode: no part of a server has
    context variables, and half of the time of a turn went into these."""

    __slots__ = ()

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._callback, self._args, self._cancelled = callback, args, False

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None

    def __repr__(self) -> str:
        return f"<Call {self._callback!r}>"


class SimLoop(asyncio.AbstractEventLoop):
    """Loop of one process.

    Args:
        events: of the whole simulation.
        host: address of the machine.
        network: that the machine is in.

    Attributes:
        dead: the process has ended.
        clock_rate: of its timers; 1.0 is right.
        steps: callbacks that it has run.
        crashed: the process has ended within a callback.
        on_error: called with the context of an error that nobody has handled.
        on_thread: starts a thread.
    """

    def __init__(self, events: Events, host: str, network: Network) -> None:
        self.events, self.host, self.network = events, host, network
        self.dead = False
        self.clock_rate = 1.0
        self.steps = 0
        self.crashed = False
        self.on_crash: Callable[[], None] = lambda: None
        self.on_error: Callable[[dict[str, Any]], None] = lambda context: None
        self.on_turn: Callable[[], None] = lambda: None
        self.on_thread: Callable[[Callable[[], Any], Callable[[Any, BaseException | None], None]], None] = self._at_once
        self._ready: deque[Call] = deque()
        self._due = self._held = self._paused = False
        self._tasks: list[asyncio.Task[Any]] = []
        """Kept until they end: a task of an ended process must not be finalized within another one's turn."""

    # ------------------------------------------------------------------ turns
    def pause(self) -> None:
        """Take no turns until `go_on`."""
        self._paused = True

    def go_on(self) -> None:
        """Take turns again."""
        self._paused = False
        if self._held:
            self._held = False
            self._turn()

    @property
    def paused(self) -> bool:
        """Return True between `pause` and `go_on`."""
        return self._paused

    def end(self) -> None:
        """End the process: nothing of it runs any more."""
        self.dead = True
        self._ready.clear()

    def crash(self) -> None:
        """End the process behind the callback that runs."""
        self.crashed = True

    def _add(self, call: Call) -> None:
        self._ready.append(call)
        if not self._due:
            self._due = True
            self.events.after(TURN_NS, self._turn)

    def _turn(self) -> None:
        if self._paused:
            self._held = True
            return
        self._due = False
        if self.dead:
            return
        ready = self._ready
        before = _get_running_loop()
        _set_running_loop(self)
        try:
            self.on_turn()
            for _ in range(len(ready)):
                if not ready:
                    break
                call = ready.popleft()
                if call._cancelled:
                    continue
                self.steps += 1
                try:
                    call._callback(*call._args)  # type: ignore[misc]
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self.call_exception_handler({"message": f"Exception in callback {call}", "exception": error})
                if self.crashed:
                    break
        finally:
            _set_running_loop(before)
        if self.crashed and not self.dead:
            self.on_crash()
        if ready and not self._due:
            self._due = True
            self.events.after(TURN_NS, self._turn)

    # ------------------------------------------------------------------ asyncio.AbstractEventLoop
    def time(self) -> float:
        return self.events.now / 1e9

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        call = Call(callback, args)
        if not self.dead:
            self._add(call)
        return call

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.after(max(0, int(delay * 1e9)), callback, *args)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.after(max(0, int(when * 1e9) - self.events.now), callback, *args)

    def after(self, delay_ns: int, callback: Callable[..., object], *args: Any) -> Call:
        """Call something `delay_ns` from now, by this process's timers."""
        call = Call(callback, args)
        if not self.dead:
            delay = delay_ns if self.clock_rate == 1.0 else int(delay_ns / self.clock_rate)
            self.events.after(delay, self._fire, call)
        return call

    def _fire(self, call: Call) -> None:
        """Run a timer's callback in the next turn; of one that was cancelled, the event has no effect."""
        if not call._cancelled and not self.dead:
            self._add(call)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.append(task)
        if len(self._tasks) % PRUNE_EVERY == 0:
            self._tasks = [task for task in self._tasks if not task.done()]
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future = self.create_future()

        def done(result: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.on_thread(lambda: func(*args), done)
        return future

    def _at_once(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        def run() -> None:
            try:
                result = work()
            except Exception as error:
                done(None, error)
            else:
                done(result, None)

        self.call_later(20e-6, run)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.dead

    def is_closed(self) -> bool:
        return self.dead

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.dead and not self.crashed:
            self.on_error(context)

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        """Do nothing: a simulated process gets no signals."""

    def remove_signal_handler(self, sig: int) -> bool:
        return True

    # ------------------------------------------------------------------ connections
    async def create_server(self, factory: Any, host: Any = None, port: Any = None, **kwargs: Any) -> Any:  # type: ignore[override]
        sock = kwargs.get("sock")
        if sock is not None:
            host, port = sock.getsockname()[:2]
        server = self.network.server(self, factory, (host, port))
        if kwargs.get("start_serving", True):
            await server.start_serving()
        return server

    async def create_connection(self, factory: Any, host: Any = None, port: Any = None, **kwargs: Any) -> Any:  # type: ignore[override]
        made: asyncio.Future[Any] = self.create_future()
        self.network.connect(self, factory, (host, port), made)
        return await made


def refused(address: tuple[str, int]) -> OSError:
    """Return the error of an address where nobody listens."""
    return ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED), str(address))
