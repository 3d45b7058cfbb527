"""Presence of the lake.

Belongs here: the one place that decides that the lake is away, and that it is back. One probe at a time reads the
lake's id, with little patience and in a thread of its own; while the lake is away everything else fails at once,
instead of waiting for the timeouts of a client each. A directory without the lake's id is not the lake: it is not
mounted, say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from lakestream.lake.errors import LakeAway
from lakestream.lake.storage.probe import Probe
from lakestream.log.format.files import Io
from lakestream.logging import Logger
from lakestream.ports import Clock
from lakestream.protocol.gotime import format_time

T = TypeVar("T")

PROBE_NS = 10_000_000_000
"""Interval of probes of an object store (10 s), each a small GET."""
LOCAL_PROBE_NS = 1_000_000_000
"""Interval of probes of a directory (1 s)."""
AWAY_PROBE_NS = 2_000_000_000
"""Interval of probes while the lake is away (2 s)."""
LIMIT_NS = 5_000_000_000
"""Time (5 s) after which a probe without an answer means that the lake is away."""
SUSPECT_S = 2.0
"""Duration of a read of history (2 s) after which the lake is probed."""


class Presence:
    """Presence of the lake. For use in the event loop, except `require`, `confirm` and `probe`.

    Args:
        root: the lake's root.
        clock: the time.
        io: threads of the probe, which no other work may block.
        log: of the server.

    Attributes:
        probe: knows the id of the lake.
        away: the error of everything that needs the lake while it is away, else None.
        since_ns: time since which it is away, ns since the epoch; 0: it is not.
        on_return: called each time when it is back.
    """

    def __init__(self, root: str, clock: Clock, io: Io, log: Logger) -> None:
        self._root = root
        self._clock, self._io, self._log = clock, io, log
        self.probe = Probe(root)
        self._interval_ns = LOCAL_PROBE_NS if self.probe.is_local else PROBE_NS
        self.away: LakeAway | None = None
        self.since_ns = 0
        self.on_return: list[Callable[[], None]] = []
        self._probes = 0
        self._probing = False
        self._probed_at = 0
        self._waiting: list[Callable[[], None]] = []
        self._gone: asyncio.Future[None] | None = None

    def require(self) -> None:
        """Raise LakeAway while the lake is away."""
        if self.away is not None:
            raise self.away

    def confirm(self) -> None:
        """Raise LakeAway unless the lake is there, before something is made in it: where nothing is mounted, a new lake
        must not begin. Block, for a lake in a directory; of an object store the last probe tells."""
        self.require()
        if self.probe.is_local:
            self.probe.check()

    def poll(self) -> None:
        """Probe the lake if the last probe is long ago."""
        interval_ns = self._interval_ns if self.away is None else AWAY_PROBE_NS
        if self._clock.steady() - self._probed_at >= interval_ns or not self._probed_at:
            self.suspect()

    def suspect(self, then: Callable[[], None] | None = None) -> None:
        """Probe the lake, unless a probe runs, and call `then` once its result is known."""
        if then is not None:
            self._waiting.append(then)
        if self._probing:
            return
        self._probing, self._probed_at = True, self._clock.steady()
        self._probes += 1
        number = self._probes
        self._clock.call_later(LIMIT_NS, lambda: self._late(number))
        self._io.submit(self.probe.check, lambda _, error: self._probed(error))

    async def answer(self, work: asyncio.Future[T]) -> T:
        """Return the result of a read of the lake. Raise LakeAway as soon as the lake is away; the read then ends by
        itself."""
        while not work.done():
            if self.away is not None:
                work.add_done_callback(_forget)
                raise self.away
            if self._gone is None:
                self._gone = asyncio.get_running_loop().create_future()
            await asyncio.wait((work, self._gone), timeout=SUSPECT_S, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                self.suspect()
        return work.result()

    async def judge(self) -> None:
        """Probe the lake after an error. Raise LakeAway if that is the reason."""
        self.require()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.suspect(lambda: None if done.done() else done.set_result(None))
        await done
        self.require()

    def _late(self, number: int) -> None:
        if self._probing and number == self._probes and self.away is None:
            self._is_away(self.probe.away(f"no answer within {LIMIT_NS // 1_000_000_000} s"))
            self._tell()

    def _probed(self, error: BaseException | None) -> None:
        self._probing = False
        self._probed_at = self._clock.steady()
        if error is not None:
            self._is_away(error if isinstance(error, LakeAway) else self.probe.away(str(error)))
        elif self.away is not None:
            seconds = (self._clock.now() - self.since_ns) / 1e9
            self._log.info(f"the lake at {self._root} is back after {seconds:.0f} s")
            self.away, self.since_ns = None, 0
            for callback in self.on_return:
                callback()
        self._tell()

    def _is_away(self, error: LakeAway) -> None:
        first = self.away is None
        if first:
            self.since_ns = self._clock.now()
            error = self.probe.away(error.reason, format_time(self.since_ns))
        elif self.away is not None and self.away.reason != error.reason:
            error = self.probe.away(error.reason, format_time(self.since_ns))
        else:
            return
        self.away = error
        self._log.error(str(error))
        gone, self._gone = self._gone, None
        if gone is not None and not gone.done():
            gone.set_result(None)

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then()


def _forget(work: asyncio.Future[T]) -> None:
    """Take the error of a read that nobody awaits any more."""
    if not work.cancelled():
        work.exception()
