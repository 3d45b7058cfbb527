"""`lakestream bench`: workloads against a running NATS server.

Belongs here: the command, the streams and buckets that a run needs (made before it, removed after it, also after
Ctrl-C), its processes, and the result as table, plot and JSON. The clients are in client.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from lakestream.cli.link import TransferFailed, connect_once, exits
from lakestream.cli.server_options import Server, with_server
from lakestream.cli.terminal import JsonOption, complain, console, print_json, seconds, size
from lakestream.lake.flush import plain_url
from lakestream.lake.progress import Advance, progress
from lakestream_bench import client as bench_client
from lakestream_bench import plot
from lakestream_bench.client import REPORTS, SAMPLE_S, BenchPlan, Report

if TYPE_CHECKING:
    from nats.aio.client import Client

WORKLOADS = tuple(bench_client.WORKLOADS)
IN_FLIGHT = {"js": 1000, "kv": 16, "request": 16}
"""Publishes or requests without an answer, by default."""
READY_S = 30.0
"""Time that the clients may take to connect."""
END_S = 30.0
"""Time after the end of a workload that its clients may take to report."""
PRELOAD = 50_000
"""Messages that the workload consume finds, unless --messages says otherwise."""
PRELOAD_BYTES = 256 << 20
"""Bytes of these at most."""
BATCH = 500

app = typer.Typer(add_completion=False)


class BenchFailed(Exception):
    """Raised when a workload cannot run; the text says why and what to do."""


class BenchResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a workload. Latencies are in seconds; 0: the workload has none. `samples`: messages/s by SAMPLE_S."""

    workload: str
    clients: int
    size: int
    in_flight: int
    messages: int
    errors: int
    seconds: float
    messages_per_second: float
    bytes_per_second: float
    p50: float
    p90: float
    p99: float
    longest: float
    sample_seconds: float
    samples: list[float]


@app.command()
@with_server
def bench(
    server: Server,
    workloads: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WORKLOAD]...", help=f"Workloads, of {', '.join(WORKLOADS)} (default: all)."),
    ] = None,
    message_size: Annotated[int, typer.Option("--size", min=0, help="Size of a message in bytes.")] = 128,
    clients: Annotated[
        int, typer.Option("--clients", min=1, max=1000, help="Number of clients; each is a process.")
    ] = 1,
    duration: Annotated[float, typer.Option("--duration", min=0.1, help="Length of each workload in seconds.")] = 5.0,
    messages: Annotated[
        int, typer.Option("--messages", min=0, help="End a workload after this many messages (0: after --duration).")
    ] = 0,
    in_flight: Annotated[
        int,
        typer.Option(
            "--in-flight",
            min=0,
            help="Maximum publishes or requests in flight for each client (0: 1000 for js, 16 otherwise).",
        ),
    ] = 0,
    replicas: Annotated[int, typer.Option("--replicas", min=1, help="Replicas of the streams.")] = 1,
    memory: Annotated[bool, typer.Option("--memory", help="Keep the streams in memory instead of on disk.")] = False,
    svg: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Write the plot to an SVG file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a NATS server with workloads, and show rates and latencies as a table and a plot."""
    chosen = tuple(workloads or WORKLOADS)
    if unknown := [each for each in chosen if each not in WORKLOADS]:
        complain(f"there is no workload {', '.join(unknown)}; choose from {', '.join(WORKLOADS)}")
        raise typer.Exit(2)
    with exits("stopped; the streams of the bench were removed", BenchFailed):
        run = _Run(server, clients, message_size, duration, messages, in_flight, replicas, memory)
        results = [run.workload(name) for name in chosen]
        if svg is not None:
            _write_svg(svg, server.url, results)
        if as_json:
            print_json({"server": plain_url(server.url), "results": [msgspec.to_builtins(each) for each in results]})
        else:
            show(results)


def show(results: Sequence[BenchResult]) -> None:
    """Print the results as a table, and the rate of each over time."""
    from rich import box
    from rich.table import Table

    out = console()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("workload")
    for name in ("clients", "size", "messages", "seconds", "msgs/s", "bytes/s", "p50", "p90", "p99", "max", "errors"):
        table.add_column(name, justify="right")
    for each in results:
        latencies = [seconds(value) if value else "-" for value in (each.p50, each.p90, each.p99, each.longest)]
        table.add_row(
            each.workload,
            str(each.clients),
            size(each.size),
            f"{each.messages:,}",
            f"{each.seconds:.2f}",
            f"{each.messages_per_second:,.0f}",
            size(each.bytes_per_second),
            *latencies,
            str(each.errors),
        )
    out.print(table)
    for each in results:
        out.print(f"{each.workload}, messages/s over time")
        for line in plot.in_terminal(plot.Series(each.workload, each.samples, each.sample_seconds)):
            out.print(line, markup=False, no_wrap=True)


def _write_svg(file: Path, url: str, results: Sequence[BenchResult]) -> None:
    series = [plot.Series(each.workload, each.samples, each.sample_seconds) for each in results]
    first = results[0]
    noun = "client" if first.clients == 1 else "clients"
    title = f"{plain_url(url)}: {first.clients} {noun}, {size(first.size)} messages"
    try:
        file.write_text(plot.svg(title, "messages/s", series), encoding="utf-8")
    except OSError as error:
        raise BenchFailed(f"--svg {file}: {error.strerror}") from None


class _Run:
    """The settings of a run, and its names on the server, which nothing else has."""

    def __init__(
        self,
        server: Server,
        clients: int,
        message_size: int,
        duration: float,
        messages: int,
        in_flight: int,
        replicas: int,
        memory: bool,
    ) -> None:
        self._server, self._clients, self._size = server, clients, message_size
        self._duration, self._messages, self._in_flight = duration, messages, in_flight
        self._replicas, self._storage = replicas, "memory" if memory else "file"
        name = secrets.token_hex(4)
        self._subject = f"lakestream.bench.{name}"
        self._stream, self._bucket = f"BENCH_{name}", f"bench_{name}"

    def workload(self, name: str) -> BenchResult:
        """Run one workload and return its result."""
        try:
            # Also for a workload without preparation: one process says that there is no server, not each client.
            asyncio.run(self._prepare(name))
            with contextlib.ExitStack() as stack:
                if name == "request":
                    stack.enter_context(_Processes([self._plan(bench_client.REPLY, 0)]))
                return self._measure(name)
        finally:
            if name in ("js", "consume", "kv"):
                asyncio.run(self._remove())

    def _plan(self, name: str, client: int) -> BenchPlan:
        each, rest = divmod(self._messages, self._clients)
        return BenchPlan(
            workload=name,
            url=self._server.url,
            login=self._server.login,
            size=self._size,
            seconds=self._duration if not self._messages else 3600.0,
            count=0 if name == "consume" else each + (client < rest),
            in_flight=self._in_flight or IN_FLIGHT.get(name, 1),
            subject=self._subject,
            stream=self._stream,
            bucket=self._bucket,
            batch=BATCH,
            client=client,
        )

    def _measure(self, name: str) -> BenchResult:
        plans = [self._plan(name, client) for client in range(self._clients)]
        with _Processes(plans) as processes:
            shown = self._messages or None
            with progress(name, shown) as advance:
                reports, samples = processes.run(self._duration if not self._messages else 3600.0, advance)
        return _result(name, plans[0], reports, samples)

    # ---- what a workload needs on the server

    async def _prepare(self, name: str) -> None:
        async with self._connected() as client:
            if name in ("js", "consume"):
                await self._api(client.jetstream().add_stream(**self._stream_config()))
            if name == "consume":
                await self._preload(client)
            if name == "kv":
                from nats.js.api import KeyValueConfig, StorageType

                config = KeyValueConfig(
                    bucket=self._bucket, storage=StorageType(self._storage), replicas=self._replicas, direct=True
                )
                js = client.jetstream()
                bucket: Any = await self._api(js.create_key_value(config))
                payload = os.urandom(self._size)
                keys = [f"k{number}" for number in range(bench_client.KEYS)]
                for start in range(0, len(keys), 100):
                    await asyncio.gather(*(bucket.put(key, payload) for key in keys[start : start + 100]))

    def _stream_config(self) -> dict[str, Any]:
        return {
            "name": self._stream,
            "subjects": [f"{self._subject}.>"],
            "storage": self._storage,
            "num_replicas": self._replicas,
        }

    async def _preload(self, client: Client) -> None:
        from nats.js.api import AckPolicy, ConsumerConfig

        total = self._messages or max(min(PRELOAD, PRELOAD_BYTES // max(self._size, 1)), 1)
        js = client.jetstream(publish_async_max_pending=IN_FLIGHT["js"])
        payload = os.urandom(self._size)
        with progress("preload", total) as advance:
            for number in range(total):
                await js.publish_async(f"{self._subject}.{number % 100}", payload, wait_stall=bench_client.TIMEOUT_S)
                if number % 500 == 499:
                    advance(500)
            await js.publish_async_completed()
        config = ConsumerConfig(durable_name="bench", ack_policy=AckPolicy.EXPLICIT, max_ack_pending=-1)
        await self._api(js.add_consumer(self._stream, config))

    async def _remove(self) -> None:
        with contextlib.suppress(TransferFailed):
            async with self._connected() as client:
                for stream in (self._stream, f"KV_{self._bucket}"):
                    with contextlib.suppress(Exception):
                        await client.jetstream().delete_stream(stream)

    async def _api(self, request: Coroutine[Any, Any, Any]) -> Any:
        """Make a JetStream request. Raises BenchFailed with the server's reason."""
        from nats.errors import Error, NoRespondersError
        from nats.js.errors import ServiceUnavailableError

        try:
            return await request
        except (NoRespondersError, ServiceUnavailableError):
            raise BenchFailed(
                f"{plain_url(self._server.url)} has no JetStream for this user: start it with -js, or run "
                "`bench publish request`"
            ) from None
        except (Error, TimeoutError) as error:
            raise BenchFailed(f"the server refuses: {getattr(error, 'description', None) or error}") from None

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[Client]:
        client = await connect_once(self._server, "lakestream bench")
        try:
            yield client
        finally:
            await client.close()


class _Processes:
    """The clients of a workload. Leaving the context ends them."""

    def __init__(self, plans: Sequence[BenchPlan]) -> None:
        self._plans = plans
        self._children: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> _Processes:
        command = [sys.executable, "-m", "lakestream_bench.client"]
        try:
            for plan in self._plans:
                # A session of its own: Ctrl-C reaches this process only, which closes the client's standard input.
                child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
                self._children.append(child)
                self._write(child, msgspec.json.encode(plan) + b"\n")
            watchdog = threading.Timer(READY_S, self._kill)
            watchdog.start()
            try:
                for child in self._children:
                    ready = next(_reports(child), Report(error=f"a client did not connect within {READY_S:.0f} s"))
                    if ready.error:
                        raise BenchFailed(ready.error)
            finally:
                watchdog.cancel()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def run(self, duration: float, advance: Advance) -> tuple[list[Report], list[list[int]]]:
        """Start all clients at the same time; return their results when the last one is done."""
        done: list[Report | None] = [None] * len(self._children)
        counts = [0] * len(self._children)

        def follow(number: int) -> None:
            for report in _reports(self._children[number]):
                advance(max(report.count - counts[number], 0))
                counts[number] = max(report.count, counts[number])
                if report.done:
                    done[number] = report
                    return

        threads = [threading.Thread(target=follow, args=(number,), daemon=True) for number in range(len(done))]
        for child in self._children:
            self._write(child, b"go\n")
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + duration + END_S
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)
                if time.monotonic() > deadline:
                    raise BenchFailed(f"a client did not end within {END_S:.0f} s of the workload's end")
        reports = [each if each is not None else Report(error="a client ended early") for each in done]
        if wrong := [each.error for each in reports if each.error]:
            raise BenchFailed(wrong[0])
        return reports, [each.samples for each in reports]

    @staticmethod
    def _write(child: subprocess.Popen[bytes], line: bytes) -> None:
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the report says why it ended
            child.stdin.write(line)
            child.stdin.flush()

    def _kill(self) -> None:
        for child in self._children:
            child.kill()

    def _end(self) -> None:
        for child in self._children:
            assert child.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                child.stdin.close()
        deadline = time.monotonic() + 5
        for child in self._children:
            try:
                child.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            assert child.stdout is not None
            child.stdout.close()


def _reports(child: subprocess.Popen[bytes]) -> Iterator[Report]:
    assert child.stdout is not None
    while line := child.stdout.readline():
        with contextlib.suppress(msgspec.DecodeError):
            yield REPORTS.decode(line)


def _result(name: str, plan: BenchPlan, reports: Sequence[Report], samples: Sequence[Sequence[int]]) -> BenchResult:
    count = sum(each.count for each in reports)
    took = max(each.seconds for each in reports)
    latencies = sorted(value for each in reports for value in each.latencies)
    length = max(map(len, samples), default=0)
    rates = [sum(each[place] for each in samples if place < len(each)) / SAMPLE_S for place in range(length)]

    def percentile(part: float) -> float:
        return latencies[min(int(part * len(latencies)), len(latencies) - 1)] if latencies else 0.0

    return BenchResult(
        workload=name,
        clients=len(reports),
        size=plan.size,
        in_flight=plan.in_flight,
        messages=count,
        errors=sum(each.errors for each in reports),
        seconds=round(took, 3),
        messages_per_second=round(count / max(took, 1e-9), 1),
        bytes_per_second=round(count * plan.size / max(took, 1e-9), 1),
        p50=percentile(0.5),
        p90=percentile(0.9),
        p99=percentile(0.99),
        longest=latencies[-1] if latencies else 0.0,
        sample_seconds=SAMPLE_S,
        samples=rates,
    )
