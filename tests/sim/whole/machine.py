"""A simulated computer with a real server on it.

Belongs here: what the server takes from its computer (clock, threads, files, sockets, log), starting and ending its
process, and the options of a node.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from lakestream.config.options import ClusterOptions, JetStreamOptions, LakeOptions, Options, RouteUrl
from lakestream.log.format.files import Brief, Io
from lakestream.logging import Logger
from lakestream.runtime import LoopClock, Phases, ThreadIo
from lakestream.server.machine import Machine
from lakestream.server.node import Node
from tests.servers import KEY
from tests.sim.disk import Disk, PowerCut, SimFiles
from tests.sim.events import EPOCH, US, Events, S
from tests.sim.whole.loop import SimLoop
from tests.sim.whole.network import Network, Socket

CLIENTS, ROUTES = 4222, 6222
GIB = 1 << 30
LATEST_NS = 50 * US
"""Longest time until a thread begins with a piece of work."""


class SimClock(LoopClock):
    """The clock of a process. The system's clock may be wrong by `host.offset_ns`."""

    def __init__(self, host: Host, loop: SimLoop, log: Logger, phases: Phases) -> None:
        self._host, self._events = host, loop.events
        super().__init__(loop, log, phases)

    def now(self) -> int:  # type: ignore[override]
        return EPOCH + self._events.now + self._host.offset_ns

    def steady(self) -> int:
        return EPOCH + self._events.now


class SimIo(ThreadIo):
    """Threads of a process: work begins a while after it was submitted, and takes as long as its files say.

    The effects of a piece of work happen when it begins; its end is reported later.
    """

    def __init__(
        self,
        host: Host,
        loop: SimLoop,
        files: SimFiles,
        phases: Phases,
    ) -> None:
        super().__init__(loop, 0, phases)
        self._host, self._sim, self._files = host, loop, files

    def lane(self, background: bool = False) -> Io:
        return self

    def submit(
        self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None], brief: Brief = Brief.NO
    ) -> None:
        self._sim.after(US + int(self._host.random.random() * LATEST_NS), self._perform, work, done)

    def _perform(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        files, result, failed = self._files, None, None
        files.spent = 0
        try:
            result = work()
        except Exception as error:
            failed = error
        except PowerCut:
            return  # the loop asks for it after each callback
        self._sim.after(files.spent, done, result, failed)

    def close(self) -> None:
        """Do nothing: there are no threads."""


class SimThreads(ThreadIo):
    """Threads that wait for the lake: as many pieces of work at once as the real server has threads."""

    def __init__(self, loop: SimLoop, threads: int) -> None:
        super().__init__(loop, 0)
        self._sim, self._free = loop, threads
        self._queued: deque[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = deque()

    def lane(self, background: bool = False) -> Io:
        return self

    def submit(
        self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None], brief: Brief = Brief.NO
    ) -> None:
        self._queued.append((work, done))
        self._begin()

    def _begin(self) -> None:
        while self._free and self._queued:
            self._free -= 1
            work, done = self._queued.popleft()
            self._sim.on_thread(work, partial(self._ended, done))

    def _ended(
        self, done: Callable[[Any, BaseException | None], None], result: Any, error: BaseException | None
    ) -> None:
        self._free += 1
        self._begin()
        done(result, error)

    def close(self) -> None:
        """Do nothing: the threads are the simulation's."""


class SimLogger(Logger):
    """Log of a process: lines for the trace, and failures that nobody expects.

    Args:
        tell: takes level and text of a line.
        failed: takes an unexpected failure.
    """

    def __init__(self, tell: Callable[[str, str], None], failed: Callable[[str, BaseException], None]) -> None:
        super().__init__(logtime=False)
        self._tell, self._failed = tell, failed

    def info(self, text: str) -> None:
        self._tell("INF", text)

    def warn(self, text: str) -> None:
        self._tell("WRN", text)

    def error(self, text: str) -> None:
        self._tell("ERR", text)

    def exception(self, text: str, error: BaseException) -> None:
        self._tell("ERR", f"{text}: {type(error).__name__}: {error}")
        self._failed(text, error)


class SimMachine(Machine):
    """The parts of a host that one process takes."""

    def __init__(self, host: Host, loop: SimLoop, files: SimFiles) -> None:
        super().__init__()
        self.files = files
        self._host, self._loop = host, loop

    def clock(self, loop: asyncio.AbstractEventLoop, log: Logger, phases: Phases) -> LoopClock:
        return SimClock(self._host, self._loop, log, phases)

    def io(self, loop: asyncio.AbstractEventLoop, phases: Phases) -> ThreadIo:
        return SimIo(self._host, self._loop, self.files, phases)  # type: ignore[arg-type]

    def threads(self, loop: asyncio.AbstractEventLoop, count: int) -> ThreadIo:
        return SimThreads(self._loop, count)

    def bind(self, host: str, port: int, *, shared: bool = False, listens: bool = True) -> Any:
        return Socket((host, port))

    def resident(self) -> int:
        """Return 0: the memory of this process says nothing about a simulated server, and differs between runs."""
        return 0


class Watch:
    """Notes of what happens on a host, for the simulation to take."""

    def said(self, host: Host, level: str, text: str) -> None:
        """Note a line of the log."""

    def failed(self, host: Host, text: str, error: BaseException | None) -> None:
        """Note a failure that nobody has handled."""

    def died(self, host: Host) -> None:
        """Note that a process ended in the middle of an operation of its disk."""

    def turns(self, host: Host) -> None:
        """Note that a turn of this host's process begins."""

    def started(self, loop: SimLoop) -> None:
        """Note that a process begins."""

    def ended(self, loop: SimLoop) -> None:
        """Note that a process has ended."""


class Host:
    """A computer: its disk survives, its process does not.

    Attributes:
        offset_ns: error of the system's clock.
        node: the server; None: no process runs.
    """

    def __init__(self, name: str, options: Options, events: Events, network: Network, seed: str, watch: Watch) -> None:
        self.name, self.options, self.events, self.network, self.watch = name, options, events, network, watch
        self.address = options.host
        self.random = Random(f"host {name} {seed}")
        self.disk = Disk(self.random)
        self.offset_ns = 0
        self.slow = 1
        self.boots = 0
        self.steps = 0
        self.node: Node | None = None
        self.loop: SimLoop | None = None
        self.files: SimFiles | None = None
        self.ready = False

    @property
    def paused(self) -> bool:
        """Return True if the process stands still."""
        return self.loop is not None and self.loop.paused

    def start(self) -> None:
        """Start the server."""
        assert self.node is None, "one process at a time"
        self.boots += 1
        self.network.started(self.address)
        loop = self.loop = SimLoop(self.events, self.address, self.network)
        files = self.files = SimFiles(self.disk, self.random)
        files.slow = self.slow
        files.on_cut = loop.crash
        loop.on_crash = self._died
        loop.on_turn = partial(self.watch.turns, self)
        self.watch.started(loop)
        loop.on_error = lambda context: self.watch.failed(self, str(context.get("message")), context.get("exception"))
        log = SimLogger(
            lambda level, text: self.watch.said(self, level, text),
            lambda text, error: None if files.dead else self.watch.failed(self, text, error),
        )
        node = self.node = Node(self.options, log, machine=SimMachine(self, loop, files))
        self.ready = False

        async def serve() -> None:
            try:
                await node.start()
                self.ready = self.node is node
            except Exception as error:
                if not files.dead:
                    self.watch.failed(self, "the server does not start", error)
                    raise

        loop.call_soon(lambda: loop.create_task(serve()))

    def end(self, *, power: bool) -> None:
        """Kill the process, or cut the power: then unsynced bytes are lost."""
        loop, files = self.loop, self.files
        if loop is None or files is None:
            return
        files.dead = True
        self.steps += loop.steps
        loop.end()
        self.watch.ended(loop)
        self.network.ended(loop, power=power)
        power = power or files.unsure
        self.node = self.loop = self.files = None
        self.ready = False
        if power:
            self.disk.cut_power()

    def _died(self) -> None:
        assert self.files is not None
        self.end(power=self.files.power)
        self.watch.died(self)


def options_of(number: int, count: int, lake: str) -> Options:
    """Return the settings of node `number` of a cluster with a lake; "": without one."""
    addresses = [f"10.0.0.{each + 1}" for each in range(count)]
    return Options(
        host=addresses[number],
        port=CLIENTS,
        server_name=f"n{number + 1}",
        jetstream=JetStreamOptions(
            store_dir="/store",
            max_memory=GIB,
            max_file=100 * GIB,
            encryption_key=KEY and f"{KEY}-{number}",
            cipher=("aes", "chachapoly")[number % 2],
        ),
        cluster=ClusterOptions(
            name="sim", host=addresses[number], port=ROUTES, routes=tuple(RouteUrl(each, ROUTES) for each in addresses)
        ),
        lake=LakeOptions(
            enabled=bool(lake),
            url=lake,
            seal_bytes=64 << 10,
            seal_age_ns=2 * S,
            retain_bytes=64 << 10,
            staged_grace_ns=2 * S,
        ),
    )
