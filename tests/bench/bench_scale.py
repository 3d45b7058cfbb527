#!/usr/bin/env python3
"""Measure many streams: creating them, the idle server, and its start; beside nats-server.

    python -m tests.bench.bench_scale [--streams 1000] [--filled] [--against real]

Prints what creating each of many streams takes, and what the server costs while nothing happens in them. With
`--filled` each has a message, which is staged for a compactor that does not run.

Figures: docs/benchmarks.md#start-and-memory
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.load import processor_s, resident_mib
from tests.servers import Kind, Server
from tests.wire import Wire

ROOT = Path(__file__).resolve().parents[2]

IDLE_S = 20.0


def main() -> int:
    """Run the measurements of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1000, help="streams without traffic (default: 1000)")
    parser.add_argument("--filled", action="store_true", help="each stream has a message, and no compactor runs")
    parser.add_argument("--against", choices=["lakestream", "real"], default="lakestream", help="(default: lakestream)")
    options = parser.parse_args()
    kind = Kind.REAL if options.against == "real" else Kind.OURS
    with tempfile.TemporaryDirectory(prefix="bench-scale-") as directory:
        many_streams(Server(kind, Path(directory) / "streams"), options.streams, filled=options.filled)
    return 0


def many_streams(server: Server, count: int, *, filled: bool) -> None:
    """Create the streams, measure the idle server, restart it."""
    server.start()
    try:
        took = []
        with Wire(server.address, timeout=60) as wire:
            print(f"{count} streams; before: {memory(server)} MiB")
            for number in range(count):
                name = f"S{number}"
                began = time.perf_counter()
                answer = wire.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"]})
                took.append(time.perf_counter() - began)
                assert "error" not in answer, answer
        parts = statistics.quantiles(took, n=100)
        print(
            f"  creating one: median {parts[49] * 1e3:.1f} ms, p99 {parts[98] * 1e3:.1f}, longest {max(took) * 1e3:.1f}"
        )
        if filled:
            fill(server, count)
        idle(server)
        server.stop()
        began = time.perf_counter()
        server.start()
        print(f"  restart: {time.perf_counter() - began:.1f} s until ready")
        idle(server)
    finally:
        server.kill()


def fill(server: Server, count: int) -> None:
    """Publish a message to each stream, and wait until all are staged."""
    with Wire(server.address, timeout=60) as wire:
        for number in range(count):
            wire.request(f"S{number}.a", b"x")
    while server.kind is Kind.OURS and len(list(server.store.glob("lake/segments/**/*.seg"))) < count:
        time.sleep(1)


def idle(server: Server) -> None:
    """Print the processor time and memory of an idle server."""
    before = used(server)
    time.sleep(IDLE_S)
    share = (used(server) - before) / IDLE_S
    print(f"  idle: {share * 100:.1f} % of a core, {memory(server)} MiB")


def used(server: Server) -> float:
    """Return the seconds of processor time that the server has used so far."""
    assert server.process is not None
    return processor_s(server.process.pid)


def memory(server: Server) -> int:
    """Return the resident memory in MiB."""
    assert server.process is not None
    return int(resident_mib(server.process.pid))


if __name__ == "__main__":
    sys.exit(main())
