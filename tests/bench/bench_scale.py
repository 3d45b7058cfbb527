#!/usr/bin/env python3
"""Measure many streams: creating them, the idle server, and its start; beside nats-server.

    python -m tests.bench.bench_scale [--streams 1000] [--filled] [--against real]
    python -m tests.bench.bench_scale --changes 300 [--rounds 5]

Prints what creating each of many streams takes, and what the server costs while nothing happens in them. With
`--filled` each has a message, which is staged for a compactor that does not run. With `--changes`: creates and deletes
of streams, buckets and consumers, one request after the other, beside nats-server in rounds: wall time of a request,
processor time of the server for it, and the ratio of the wall times (medians of the rounds). TMPDIR chooses the disk.

Figures: docs/benchmarks.md#start-and-memory
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.load import Connection, processor_s, resident_mib
from tests.servers import Kind, Server
from tests.wire import Wire

ROOT = Path(__file__).resolve().parents[2]

IDLE_S = 20.0
BUCKET = {
    "max_msgs_per_subject": 1,
    "discard": "new",
    "allow_rollup_hdrs": True,
    "deny_delete": True,
    "allow_direct": True,
}
"""The configuration of a key-value bucket, but for its name."""


def main() -> int:
    """Run the measurements of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1000, help="streams without traffic (default: 1000)")
    parser.add_argument("--filled", action="store_true", help="each stream has a message, and no compactor runs")
    parser.add_argument("--against", choices=["lakestream", "real"], default="lakestream", help="(default: lakestream)")
    parser.add_argument("--changes", type=int, default=0, help="create and delete this many of each instead")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of --changes (default: 5)")
    options = parser.parse_args()
    if options.changes:
        changes(options.changes, options.rounds)
        return 0
    kind = Kind.REAL if options.against == "real" else Kind.OURS
    with tempfile.TemporaryDirectory(prefix="bench-scale-") as directory:
        many_streams(Server(kind, Path(directory) / "streams"), options.streams, filled=options.filled)
    return 0


def changes(count: int, rounds: int) -> None:
    """Print the times of creates and deletes, beside nats-server's."""
    found: dict[str, dict[Kind, list[tuple[float, float]]]] = {}
    for _ in range(rounds):
        for kind in (Kind.OURS, Kind.REAL):
            with tempfile.TemporaryDirectory(prefix="bench-scale-") as directory:
                for title, took in timed_changes(Server(kind, Path(directory) / "streams"), count):
                    found.setdefault(title, {}).setdefault(kind, []).append(took)
    print(f"{count} requests in sequence, medians of {rounds} rounds: ms of a request, and of it processor time")
    for title, by_kind in found.items():
        shown = []
        for kind in (Kind.OURS, Kind.REAL):
            wall, processor = (statistics.median(column) * 1e3 for column in zip(*by_kind[kind], strict=True))
            shown.append(f"{wall:5.2f} ({processor:4.2f})")
        rounds_of_both = zip(by_kind[Kind.OURS], by_kind[Kind.REAL], strict=True)
        ratio = statistics.median(ours[0] / theirs[0] for ours, theirs in rounds_of_both)
        print(f"  {title:<18} {shown[0]}; nats-server {shown[1]}; {ratio:4.1f} x")


def timed_changes(server: Server, count: int) -> list[tuple[str, tuple[float, float]]]:
    """Return seconds of wall and of processor time for each kind of request."""
    numbers = range(count)
    work: dict[str, list[tuple[str, object]]] = {
        "STREAM.CREATE": [(f"STREAM.CREATE.S{n}", {"name": f"S{n}", "subjects": [f"s{n}.>"]}) for n in numbers],
        "create of a bucket": [
            (f"STREAM.CREATE.KV_B{n}", {**BUCKET, "name": f"KV_B{n}", "subjects": [f"$KV.B{n}.>"]}) for n in numbers
        ],
        "CONSUMER.CREATE": [
            (
                f"CONSUMER.CREATE.S0.c{n}",
                {"stream_name": "S0", "config": {"durable_name": f"c{n}", "ack_policy": "explicit"}},
            )
            for n in numbers
        ],
        "CONSUMER.DELETE": [(f"CONSUMER.DELETE.S0.c{n}", None) for n in numbers],
        "STREAM.DELETE": [(f"STREAM.DELETE.S{n}", None) for n in numbers],
    }
    took = []
    server.start()
    try:
        with Connection(server.address) as client:
            for title, requests in work.items():
                began, before = time.perf_counter(), used(server)
                for subject, body in requests:
                    client.api(subject, body)
                took.append((title, ((time.perf_counter() - began) / count, (used(server) - before) / count)))
    finally:
        server.kill()
    return took


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
