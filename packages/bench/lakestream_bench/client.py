"""One client of `lakestream bench`, as a process of its own.

Belongs here: the workloads. The plan comes as a line of JSON on stdin, `go` follows, and the end of stdin stops the
client. Its lines on stdout are JSON: ready, counts for the progress bar, and the result.

    python -m lakestream_bench.client
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import random
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from lakestream.cli.link import connect_once
from lakestream.cli.server_options import Server
from lakestream.cli.terminal import quiet_asyncio
from lakestream.lake.flush import ServerCredentials

if TYPE_CHECKING:
    from nats.aio.client import Client

SAMPLE_S = 0.1
"""Interval of the samples of a plot."""
LATENCIES = 20_000
"""Latencies that a client keeps; of more it keeps a random choice."""
TURN = 64
"""Messages between two looks at the clock."""
TIMEOUT_S = 10.0
KEYS = 1000
"""Keys of the bucket of the workload kv."""
REPLY = "reply"
"""Workload of the process that answers requests."""


class BenchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Work of one client.

    Attributes:
        workload: one of WORKLOADS, or REPLY.
        seconds: time after which it ends; `count`: messages after which it ends (0: none).
        in_flight: publishes or requests without an answer, at most.
        subject, stream, bucket: names that belong to this run.
        batch: messages of a fetch.
    """

    workload: str
    url: str
    login: ServerCredentials
    size: int
    seconds: float
    count: int
    in_flight: int
    subject: str
    stream: str
    bucket: str
    batch: int
    client: int


class Report(msgspec.Struct, kw_only=True):
    """A line of a client: ready, its count so far, or with `done` its result. `samples`: messages by SAMPLE_S."""

    ready: bool = False
    done: bool = False
    error: str = ""
    count: int = 0
    errors: int = 0
    seconds: float = 0.0
    samples: list[int] = []
    latencies: list[float] = []


PLANS = msgspec.json.Decoder(BenchPlan)
REPORTS = msgspec.json.Decoder(Report)


class Tally:
    """Counts messages and latencies, and tells when a client is done."""

    def __init__(self, plan: BenchPlan) -> None:
        self._plan = plan
        self._began = time.perf_counter()
        self._random = random.Random(plan.client)
        self._seen = 0
        self._seconds = 0.0
        self.stopped = False
        self.count = 0
        self.errors = 0
        self.samples: list[int] = []
        self.latencies: list[float] = []

    def goes_on(self) -> bool:
        """Return True until the time is over, the messages are sent, or the client was told to stop."""
        if self.stopped or (self._plan.count and self.count >= self._plan.count):
            return False
        return time.perf_counter() - self._began < self._plan.seconds

    def add(self, count: int = 1) -> None:
        """Count messages now."""
        place = int((time.perf_counter() - self._began) / SAMPLE_S)
        if place >= len(self.samples):
            self.samples += [0] * (place + 1 - len(self.samples))
        self.samples[place] += count
        self.count += count
        self.touch()

    def touch(self) -> None:
        """Count the time until now; waiting for messages that do not come is no part of it."""
        self._seconds = time.perf_counter() - self._began

    def took(self, seconds: float) -> None:
        """Note a latency."""
        self._seen += 1
        if len(self.latencies) < LATENCIES:
            self.latencies.append(seconds)
        elif (place := self._random.randrange(self._seen)) < LATENCIES:
            self.latencies[place] = seconds

    def report(self) -> Report:
        """Return the result."""
        return Report(
            done=True,
            count=self.count,
            errors=self.errors,
            seconds=self._seconds,
            samples=self.samples,
            latencies=self.latencies,
        )


Work = Callable[["Client", BenchPlan, Tally], Awaitable[None]]


async def _publish(client: Client, plan: BenchPlan, tally: Tally) -> None:
    """Publish without acks."""
    payload, subject = os.urandom(plan.size), f"{plan.subject}.{plan.client}"
    while tally.goes_on():
        count = min(TURN, plan.count - tally.count) if plan.count else TURN
        for _ in range(count):
            await client.publish(subject, payload)
        tally.add(count)
        await asyncio.sleep(0)
    await client.flush(int(TIMEOUT_S))
    tally.touch()


async def _js(client: Client, plan: BenchPlan, tally: Tally) -> None:
    """Publish to a stream, with many publishes in flight."""
    js = client.jetstream(publish_async_max_pending=plan.in_flight)
    payload, subject = os.urandom(plan.size), f"{plan.subject}.{plan.client}"
    sent = 0

    def settled(began: float, ack: asyncio.Future[Any]) -> None:
        if ack.cancelled() or ack.exception() is not None:
            tally.errors += 1
            return
        tally.took(time.perf_counter() - began)
        tally.add()

    while tally.goes_on() and not (plan.count and sent >= plan.count):
        for _ in range(min(TURN, plan.count - sent) if plan.count else TURN):
            ack = await js.publish_async(subject, payload, wait_stall=TIMEOUT_S)
            ack.add_done_callback(functools.partial(settled, time.perf_counter()))
            sent += 1
    async with asyncio.timeout(TIMEOUT_S):
        await js.publish_async_completed()
    await asyncio.sleep(0)  # the callbacks of the last acks run in the next turn


async def _consume(client: Client, plan: BenchPlan, tally: Tally) -> None:
    """Fetch and ack messages of a consumer that all clients share, until there are none."""
    from nats.errors import TimeoutError as NoMessages

    js = client.jetstream()
    fetcher = await js.pull_subscribe_bind(durable="bench", stream=plan.stream)
    while tally.goes_on():
        began = time.perf_counter()
        try:
            found = await fetcher.fetch(plan.batch, timeout=1)
        except NoMessages:
            return
        tally.took(time.perf_counter() - began)
        for message in found:
            await message.ack()
        tally.add(len(found))


async def _kv(client: Client, plan: BenchPlan, tally: Tally) -> None:
    """Put and get keys in turn."""
    bucket = await client.jetstream().key_value(plan.bucket)
    payload, choice = os.urandom(plan.size), random.Random(plan.client)

    async def one() -> None:
        key = f"k{choice.randrange(KEYS)}"
        await bucket.put(key, payload)
        tally.add()
        await bucket.get(key)

    await _abreast(plan, tally, one)


async def _request(client: Client, plan: BenchPlan, tally: Tally) -> None:
    """Request a service and wait for its answers."""
    payload = os.urandom(plan.size)

    async def one() -> None:
        await client.request(plan.subject, payload, timeout=TIMEOUT_S)

    await _abreast(plan, tally, one)


async def _abreast(plan: BenchPlan, tally: Tally, one: Callable[[], Awaitable[None]]) -> None:
    """Do single operations, `in_flight` of them at the same time, and time them."""
    from nats.errors import Error

    async def run() -> None:
        while tally.goes_on():
            began = time.perf_counter()
            try:
                await one()
            except Error:
                tally.errors += 1
                continue
            tally.took(time.perf_counter() - began)
            tally.add()

    await asyncio.gather(*(run() for _ in range(plan.in_flight)))


async def _reply(client: Client, plan: BenchPlan, tally: Tally) -> None:
    """Answer requests until stopped."""

    async def answer(message: Any) -> None:
        await message.respond(message.data)

    await client.subscribe(plan.subject, queue="bench", cb=answer)
    await client.flush()
    _say(Report(ready=True))
    while not tally.stopped:
        await asyncio.sleep(SAMPLE_S)


WORKLOADS: dict[str, Work] = {"publish": _publish, "js": _js, "consume": _consume, "kv": _kv, "request": _request}


def _say(report: Report) -> None:
    sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    sys.stdout.flush()


async def _run(plan: BenchPlan) -> None:
    client = await connect_once(Server(plan.url, plan.login), "lakestream bench")
    try:
        if plan.workload == REPLY:
            tally = Tally(plan)
            _watch_stdin(tally)
            await _reply(client, plan, tally)
            return
        _say(Report(ready=True))
        if not await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline):
            return
        tally = Tally(plan)
        _watch_stdin(tally)
        counts = asyncio.create_task(_count(tally))
        try:
            await WORKLOADS[plan.workload](client, plan, tally)
        finally:
            counts.cancel()
        report = tally.report()
        report.error = str(client.last_error or "") if not tally.count else ""
        _say(report)
    finally:
        with contextlib.suppress(Exception):
            await client.close()


async def _count(tally: Tally) -> None:
    while True:
        await asyncio.sleep(0.5)
        _say(Report(count=tally.count))


def _watch_stdin(tally: Tally) -> None:
    """Stop the client when its standard input ends: the command was stopped, or died."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        tally.stopped = True

    threading.Thread(target=watch, name="stdin", daemon=True).start()


def main() -> int:
    """Run one client; return the exit code."""
    quiet_asyncio()
    try:
        asyncio.run(_run(PLANS.decode(sys.stdin.readline())))
    except Exception as error:
        _say(Report(done=True, error=str(error) or type(error).__name__))
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # a thread may still read stdin
