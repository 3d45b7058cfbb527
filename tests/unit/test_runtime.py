"""Tests of the I/O threads of a running server, of work done without them, and of the end of a turn."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from lakestream.log.format import files
from lakestream.log.format.files import Brief
from lakestream.logging import Logger
from lakestream.runtime import BRIEF_NS, BRIEF_PAUSE, BRIEF_SPARED_NS, CLOSING_NS, SLOW_NS, Lane, Phases, ThreadIo


class Failures(Logger):
    """Keeps the exceptions that are logged."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[BaseException] = []

    def exception(self, text: str, error: BaseException) -> None:
        self.errors.append(error)


class Io:
    """`files.Io` whose results can be awaited."""

    def __init__(self, io: files.Io) -> None:
        self._io = io

    async def run(self, work: Callable[[], Any], brief: Brief) -> str:
        """Do the work; return the name of the thread that did it."""
        ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        names: list[str] = []

        def named() -> Any:
            names.append(threading.current_thread().name)
            return work()

        self._io.submit(named, lambda _, error: ended.set_result(error), brief)
        error = await ended
        if error is not None:
            raise error
        return names[0]


@pytest.fixture
async def io() -> AsyncIterator[Io]:
    made = ThreadIo(asyncio.get_running_loop(), threads=2)
    yield Io(made)
    made.close()


def nothing() -> None:
    """Do nothing, in no time."""


HERE = threading.main_thread().name


async def test_brief_work_is_done_in_the_loop_and_other_work_in_a_thread(io: Io) -> None:
    assert await io.run(nothing, Brief.NOW) == HERE
    await asyncio.sleep(0)
    assert await io.run(nothing, Brief.SOON) == HERE
    assert await io.run(nothing, Brief.AFTER_SENDS) == HERE
    assert await io.run(nothing, Brief.NO) != HERE


async def test_what_follows_from_brief_work_in_the_same_turn_goes_to_a_thread() -> None:
    io = ThreadIo(asyncio.get_running_loop(), threads=2)
    names: list[str] = []
    ended = asyncio.Event()

    def work() -> None:
        names.append(threading.current_thread().name)

    def again(result: object, error: BaseException | None) -> None:
        if len(names) < 2:
            io.submit(work, again, Brief.NOW)
        else:
            ended.set()

    io.submit(work, again, Brief.NOW)
    assert names == [HERE], "done within the call"
    await ended.wait()
    assert names[1] != HERE
    io.close()


@pytest.mark.parametrize("brief", [Brief.SOON, Brief.AFTER_SENDS])
async def test_what_follows_from_brief_work_in_a_later_turn_stays_in_the_loop(brief: Brief) -> None:
    """A write that gathered while the one before it was under way needs no thread: the sockets are read in between."""
    io = ThreadIo(asyncio.get_running_loop(), threads=2)
    names: list[str] = []
    ended = asyncio.Event()

    def again(result: object, error: BaseException | None) -> None:
        if len(names) < 3:
            io.submit(lambda: names.append(threading.current_thread().name), again, brief)
        else:
            ended.set()

    again(None, None)
    await ended.wait()
    assert names == [HERE] * 3
    io.close()


@pytest.mark.parametrize("brief", [Brief.NOW, Brief.SOON, Brief.AFTER_SENDS])
async def test_of_two_pieces_of_brief_work_one_goes_to_a_thread(io: Io, brief: Brief) -> None:
    """Of two brief pieces of work one goes to a thread, so that syncs of several streams do not wait for each other."""
    names = await asyncio.gather(io.run(nothing, brief), io.run(nothing, brief))
    assert sorted(name == HERE for name in names) == [False, True]


async def test_a_slow_disk_is_used_from_threads(io: Io) -> None:
    for _ in range(2):
        assert await io.run(lambda: time.sleep(0.75 * BRIEF_SPARED_NS / BRIEF_PAUSE / 1e9), Brief.NOW) == HERE
        await asyncio.sleep(0)
    assert await io.run(nothing, Brief.NOW) != HERE


async def test_a_single_stall_of_the_disk_sends_no_work_to_threads(io: Io) -> None:
    await io.run(lambda: time.sleep(3 * BRIEF_NS / 1e9), Brief.NOW)
    await asyncio.sleep(0)
    assert await io.run(nothing, Brief.NOW) == HERE


async def test_brief_work_waits_in_no_loop_while_the_disk_has_other_work() -> None:
    """A small sync behind a large write takes as long as that: the other clients would wait, too."""
    threads = ThreadIo(asyncio.get_running_loop(), threads=2)
    large, small, release = Io(threads.lane()), Io(threads.lane()), threading.Event()
    held = asyncio.ensure_future(large.run(release.wait, Brief.NO))
    await asyncio.sleep(0)
    assert await small.run(nothing, Brief.NOW) != HERE
    release.set()
    await held
    assert await small.run(nothing, Brief.NOW) == HERE
    threads.close()


async def test_background_work_leaves_brief_work_in_the_loop() -> None:
    threads = ThreadIo(asyncio.get_running_loop(), threads=2)
    background, release = Io(threads.lane(background=True)), threading.Event()
    held = asyncio.ensure_future(background.run(release.wait, Brief.NO))
    await asyncio.sleep(0)
    assert await Io(threads.lane()).run(nothing, Brief.NOW) == HERE
    release.set()
    await held
    threads.close()


async def test_work_on_a_fast_disk_does_not_wait_for_slow_disks() -> None:
    """A lane whose work was slow gets other threads, however many such lanes there are."""
    threads = ThreadIo(asyncio.get_running_loop(), threads=2)
    slow = [Io(threads.lane()) for _ in range(5)]
    await asyncio.gather(*(each.run(lambda: time.sleep(2 * SLOW_NS / 1e9), Brief.NO) for each in slow))
    release = threading.Event()
    held = [asyncio.ensure_future(each.run(release.wait, Brief.NOW)) for each in slow]
    fast = Io(threads.lane())
    assert (await fast.run(nothing, Brief.NO)).startswith("lakestream-io")
    assert not any(each.done() for each in held)
    release.set()
    assert all(name.startswith("lakestream-slow-io") for name in await asyncio.gather(*held))
    threads.close()


async def test_background_work_never_uses_the_threads_of_others() -> None:
    threads = ThreadIo(asyncio.get_running_loop(), threads=1)
    lane = Io(threads.lane(background=True))
    for _ in range(3):
        assert (await lane.run(nothing, Brief.NOW)).startswith("lakestream-slow-io")
    threads.close()


async def test_a_stop_while_a_thread_is_being_started_ends_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    started, threads, before = threading.Thread.start, list[threading.Thread](), set(threading.enumerate())
    io = ThreadIo(asyncio.get_running_loop(), threads=1)

    def start(thread: threading.Thread) -> None:
        threads.append(thread)
        io.close()
        started(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    io.lane(background=True).submit(nothing, lambda result, error: None)
    assert len(threads) == 1
    for thread in {*threads, *threading.enumerate()} - before:
        thread.join(10)
        assert not thread.is_alive()


async def test_a_lane_that_was_slow_is_quick_again_after_a_while() -> None:
    threads = ThreadIo(asyncio.get_running_loop(), threads=1)
    lane = threads.lane()
    assert isinstance(lane, Lane)
    lane.took(time.monotonic_ns(), 2 * SLOW_NS)
    assert (await Io(lane).run(nothing, Brief.NO)).startswith("lakestream-slow-io")
    lane.slow_until = time.monotonic_ns()
    assert (await Io(lane).run(nothing, Brief.NO)).startswith("lakestream-slow-io"), "known to be quick after it"
    assert not (await Io(lane).run(nothing, Brief.NO)).startswith("lakestream-slow-io")
    threads.close()


async def test_brief_work_leaves_the_turn_in_which_it_was_asked_for_and_the_next(io: Io) -> None:
    """Brief work starts two turns later: messages to other nodes are gathered in one turn and written in the next."""
    turns: list[int] = []
    loop = asyncio.get_running_loop()

    def count(left: int) -> None:
        turns.append(left)
        if left:
            loop.call_soon(count, left - 1)

    count(5)
    seen: list[int] = []
    await io.run(lambda: seen.append(len(turns)), Brief.AFTER_SENDS)
    assert seen[0] > 2


async def test_an_error_of_brief_work_reaches_its_caller(io: Io) -> None:
    def fail() -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        await io.run(fail, Brief.NOW)


async def turns_order(begin: Callable[[Phases, list[str]], None], log: Logger | None = None) -> list[str]:
    """Return what was called in the turn that `begin` fills and, after "next", in the next one."""
    loop = asyncio.get_running_loop()
    seen: list[str] = []
    begin(Phases(loop, log or Logger()), seen)
    loop.call_soon(seen.append, "next")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return seen


async def test_output_is_written_before_batches_are_closed_and_after() -> None:
    def begin(phases: Phases, seen: list[str]) -> None:
        def close() -> None:
            seen.append("batch")
            phases.call_last(lambda: seen.append("its acks"))

        phases.call_soon(close)
        phases.call_last(lambda: seen.append("answers"))

    assert await turns_order(begin) == ["answers", "batch", "its acks", "next"]


async def test_deliveries_leave_with_the_acks_of_their_messages() -> None:
    """Those of a write that a thread has done, and of one that ends with its batch."""

    def begin(phases: Phases, seen: list[str]) -> None:
        def close() -> None:
            seen.append("batch")
            phases.call_last(lambda: seen.append("its acks"))
            phases.call_with_output(lambda: seen.append("its deliveries"))

        phases.call_soon(close)
        phases.call_last(lambda: seen.append("acks"))
        phases.call_with_output(lambda: seen.append("deliveries"))

    assert await turns_order(begin) == ["deliveries", "acks", "batch", "its deliveries", "its acks", "next"]


async def test_what_batches_have_gathered_is_written_when_all_are_closed_and_before_output() -> None:
    def begin(phases: Phases, seen: list[str]) -> None:
        def close(name: str) -> None:
            seen.append(name)
            assert phases.gathers() is (name == "batch")
            assert phases.call_closed(gathered)

        def gathered() -> None:
            assert not phases.gathers()
            seen.append("gathered")
            phases.call_with_output(lambda: seen.append("deliveries"))
            phases.call_last(lambda: seen.append("acks"))

        assert not phases.call_closed(gathered), "no turn ends"
        for name in ("batch", "another"):
            phases.call_soon(functools.partial(close, name))

    together = ["batch", "another", "gathered", "gathered", "deliveries", "deliveries", "acks", "acks", "next"]
    assert await turns_order(begin) == together


async def test_what_was_read_together_is_handled_before_batches_are_closed() -> None:
    def begin(phases: Phases, seen: list[str]) -> None:
        def handle() -> None:
            seen.append("reads")
            phases.call_soon(lambda: seen.append("their batch"))
            phases.call_last(lambda: seen.append("their answers"))

        phases.call_soon(lambda: seen.append("batch"))
        phases.call_first(handle)

    assert await turns_order(begin) == ["reads", "their answers", "batch", "their batch", "next"]


async def test_what_a_delivery_leaves_over_comes_in_the_next_turn() -> None:
    def begin(phases: Phases, seen: list[str]) -> None:
        phases.call_with_output(lambda: phases.call_soon(lambda: seen.append("the rest")))

    assert await turns_order(begin) == ["next", "the rest"]


async def test_what_a_batch_asks_for_comes_in_the_next_turn() -> None:
    def begin(phases: Phases, seen: list[str]) -> None:
        phases.call_soon(lambda: phases.call_soon(lambda: seen.append("later")))

    assert await turns_order(begin) == ["next", "later"]


async def test_the_next_turn_begins_behind_the_end_of_this_one() -> None:
    def begin(phases: Phases, seen: list[str]) -> None:
        phases.call_next(lambda: seen.append("a flood"))
        phases.call_last(lambda: seen.append("output"))

    assert await turns_order(begin) == ["output", "next", "a flood"]


async def test_the_next_turn_waits_for_one_end_only() -> None:
    """Clients that ask again and again do not keep others waiting for good."""
    loop = asyncio.get_running_loop()
    phases, seen = Phases(loop, Logger()), list[str]()

    def read() -> None:
        seen.append("read")
        phases.call_last(lambda: seen.append("output"))
        if len(seen) < 20:
            loop.call_soon(read)

    phases.call_next(lambda: seen.append("a flood"))
    read()
    while len(seen) < 20:
        await asyncio.sleep(0)
    assert "a flood" in seen[:6]


async def test_a_failure_at_the_end_of_a_turn_is_logged_and_stops_nothing_else() -> None:
    def fail() -> None:
        raise ValueError("of one stream")

    def begin(phases: Phases, seen: list[str]) -> None:
        phases.call_soon(fail)
        phases.call_soon(lambda: seen.append("of another"))
        phases.call_last(lambda: seen.append("output"))

    log = Failures()
    assert await turns_order(begin, log) == ["output", "of another", "next"]
    assert [str(error) for error in log.errors] == ["of one stream"]


async def test_output_that_comes_while_the_last_output_is_written_is_written_in_the_next_turn() -> None:
    def begin(phases: Phases, seen: list[str]) -> None:
        def write() -> None:
            phases.call_last(lambda: seen.append("told to others"))

        phases.call_soon(lambda: phases.call_last(write))

    assert await turns_order(begin) == ["next", "told to others"]


async def test_what_ends_a_turn_for_too_long_goes_on_in_the_next_one() -> None:
    """The deliveries of many consumers do not keep everybody else waiting together."""
    loop = asyncio.get_running_loop()
    phases, seen, now = Phases(loop, Logger()), list[str](), [0]
    phases.steady = lambda: now[0]

    def deliver(name: str) -> None:
        seen.append(name)
        now[0] += CLOSING_NS // 2 + 1

    for number in range(5):
        phases.call_soon(functools.partial(deliver, f"consumer {number}"))
    loop.call_soon(seen.append, "read")
    loop.call_soon(loop.call_soon, seen.append, "read")
    while len(seen) < 7:
        await asyncio.sleep(0)
    assert [each for each in seen if each != "read"] == [f"consumer {number}" for number in range(5)]
    assert seen.index("read") == 2
    assert seen[2:].count("read") == 2
