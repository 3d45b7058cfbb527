"""Tests of the watch over the event loop, with a real loop that does not turn for a while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
import uvloop

from lakestream.logging import Logger
from lakestream.runtime import Phases, ThreadIo
from lakestream.server import stalls
from lakestream.server.stalls import StallWatch

pytestmark = pytest.mark.unit


def compute(seconds: float) -> None:
    """Use so much processor time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def watched(step: Callable[[], None]) -> tuple[StallWatch, str]:
    """Run a step in a watched loop; return the watch and the text of the log."""
    loop = asyncio.get_running_loop()
    lines: list[str] = []
    log = Logger()
    log.warn = lines.append  # type: ignore[method-assign]
    phases = Phases(loop, log)
    watch = StallWatch(log, lambda: phases.last)
    watch.start()
    await asyncio.sleep(0)
    loop.call_soon(phases.run, step)
    while not watch.longest.length_ns:
        await asyncio.sleep(0.01)
    watch.stop()
    return watch, "\n".join(lines)


async def test_a_step_that_computes_for_long_is_named_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(compute.__globals__, "__name__", "lakestream.stream.slow")
    watch, told = await watched(lambda: compute(0.4))
    assert watch.longest.length_ns > 0.2e9
    assert watch.longest.step == "stream.slow.compute"
    assert watch.seconds.read().count >= 1
    assert told.startswith("All clients waited ")
    assert told.endswith(" ms for one step of the server in stream.slow.compute")


class Result:
    """Takes long to free."""

    def __del__(self) -> None:
        compute(0.4)


@pytest.mark.parametrize("make", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_what_the_loop_does_by_itself_has_the_name_of_the_newest_callback(
    make: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """The loop frees the result of a thread once the callback has returned: no function of ours is on the stack."""

    async def freed() -> tuple[StallWatch, str]:
        loop, log, lines = asyncio.get_running_loop(), Logger(), list[str]()
        log.warn = lines.append  # type: ignore[method-assign]
        phases = Phases(loop, log)
        io, watch = ThreadIo(loop, 1, phases), StallWatch(log, lambda: phases.last)
        watch.start()
        await asyncio.sleep(0)
        io.submit(Result, Used.take)
        while not watch.longest.length_ns:
            await asyncio.sleep(0.01)
        watch.stop()
        io.close()
        return watch, "\n".join(lines)

    with asyncio.Runner(loop_factory=make) as runner:
        watch, told = runner.run(freed())
    assert watch.longest.step == f"native code behind {__name__}.Used.take"
    assert told.endswith(f" in native code behind {__name__}.Used.take")


class Used:
    """Takes results and keeps none."""

    @staticmethod
    def take(result: object, error: BaseException | None) -> None:
        """Take a result."""


async def test_a_loop_that_only_waits_is_counted_but_not_told() -> None:
    """The disk, or other programs: nothing that a step of ours has computed."""
    watch, told = await watched(lambda: time.sleep(0.3))
    assert watch.longest.length_ns > 0.2e9
    assert told == ""


async def test_the_longest_is_forgotten_after_two_periods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "PERIOD_NS", 100_000_000)
    watch, _ = await watched(lambda: time.sleep(0.2))
    while watch.longest.length_ns > 0.15e9:
        await asyncio.sleep(0.02)
