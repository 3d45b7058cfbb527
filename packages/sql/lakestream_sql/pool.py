"""The processes that answer queries, of the service over NATS or of the console.

Belongs here: which account has how many, reusing idle ones, and their end. A process serves one account only.
"""

from __future__ import annotations

from contextlib import suppress

from lakestream.config.options import SqlOptions
from lakestream.ops.sql.processes import Process, ProcessEnded, started
from lakestream.ports import Clock

IDLE_NS = 120_000_000_000
"""Time after which an idle process ends (2 min)."""


class TooManyQueries(Exception):
    """Raised when as many queries run as may."""


class Pool:
    """The processes of all accounts: as many as queries may run at the same time.

    Args:
        lake: the lake's root.
    """

    def __init__(self, lake: str, options: SqlOptions, clock: Clock) -> None:
        self._lake, self._options, self._clock = lake, options, clock
        self._idle: dict[str, list[Process]] = {}
        self._busy: dict[str, int] = {}
        self._running: set[Process] = set()
        self._closed = False

    @property
    def busy(self) -> int:
        """Return the number of queries that run."""
        return sum(self._busy.values())

    def reserve(self, account: str) -> None:
        """Count a query. Raises TooManyQueries; otherwise call `release` at its end."""
        options = self._options
        if self._busy.get(account, 0) >= options.max_account_concurrent:
            raise TooManyQueries(f"{options.max_account_concurrent} queries of this account are running: try again")
        if self.busy >= options.max_concurrent:
            raise TooManyQueries(f"{options.max_concurrent} queries are running on this server: try again")
        self._busy[account] = self._busy.get(account, 0) + 1

    def release(self, account: str) -> None:
        """Count a query no more."""
        self._busy[account] -= 1
        if not self._busy[account]:
            del self._busy[account]

    async def take(self, account: str) -> Process:
        """Return a process for a query that was counted. Raises CannotStart, ProcessEnded, QueryFailed."""
        own = self._idle.get(account, [])
        while own:
            process = own.pop()
            if process.timer is not None:
                process.timer.cancel()
            if not process.ended:
                self._running.add(process)
                return process
        idle = [(each.used_ns, name) for name, some in self._idle.items() for each in some]
        if idle and len(idle) + self.busy > self._options.max_concurrent:
            _, name = min(idle)
            await self._idle[name].pop(0).kill()
        options = self._options
        process = await start(self._lake, account, memory=options.memory, threads=options.threads)
        self._running.add(process)
        return process

    async def give(self, account: str, process: Process) -> None:
        """Take back the process of a query that has ended; it is kept if it can take another one."""
        if process.waits:
            with suppress(ProcessEnded):
                await process.decide(go=False)
        self._running.discard(process)
        if not process.is_idle:
            await process.kill()
            return
        process.used_ns = self._clock.steady()
        self._idle.setdefault(account, []).append(process)
        process.timer = self._clock.call_later(IDLE_NS, lambda: self._expire(account, process))

    def _expire(self, account: str, process: Process) -> None:
        if process in self._idle.get(account, ()):
            self._idle[account].remove(process)
            self._clock.spawn(process.kill())

    async def drop(self, process: Process) -> None:
        """End a process, whatever it does."""
        self._running.discard(process)
        await process.kill()

    async def close(self) -> None:
        """End all processes."""
        idle = [each for some in self._idle.values() for each in some]
        self._idle.clear()
        for process in (*idle, *self._running):
            await process.kill()


async def start(lake: str, account: str, *, memory: int, threads: int) -> Process:
    """Start a process for the streams of an account.

    Args:
        memory, threads: what DuckDB may use; memory in bytes.

    Raises:
        CannotStart, ProcessEnded.
        ProcessQueryFailed: the lake cannot be queried.
    """
    return await started(
        "lakestream_sql.child", {"lake": lake, "account": account, "memory": memory, "threads": threads}
    )
