#!/usr/bin/env python3
"""Measure many streams, and one stream with many messages and subjects; beside nats-server.

    python -m tests.bench.bench_scale [--streams 1000] [--messages 10000000] [--subjects 1000000] [--keep 5]
                                      [--against real]

Prints what creating each of many streams takes and what the server costs while nothing happens in them; then the
publish rate for each tenth of a long run of messages on many subjects, of each of which the newest few are kept, with
the server's processor time for a message, the longest time between two acks and the server's memory, and how long a
restart takes.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.servers import Kind, Server
from tests.wire import Wire

ROOT = Path(__file__).resolve().parents[2]

IDLE_S = 20.0
WINDOW = 8
"""Maximum number of unacked blocks of messages."""
BLOCK = 1000
PAYLOAD = b"x" * 64
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Run the measurements of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1000, help="streams without traffic; 0: skip (default: 1000)")
    parser.add_argument("--messages", type=int, default=10_000_000, help="0: skip (default: 10 million)")
    parser.add_argument("--subjects", type=int, default=1_000_000, help="(default: 1 million)")
    parser.add_argument("--keep", type=int, default=5, help="max_msgs_per_subject (default: 5)")
    parser.add_argument("--against", choices=["lakestream", "real"], default="lakestream", help="(default: lakestream)")
    options = parser.parse_args()
    kind = Kind.REAL if options.against == "real" else Kind.OURS
    with tempfile.TemporaryDirectory(prefix="bench-scale-") as directory:
        if options.streams:
            many_streams(Server(kind, Path(directory) / "streams"), options.streams)
        if options.messages:
            server = Server(kind, Path(directory) / "messages")
            many_messages(server, options.messages, options.subjects, options.keep)
    return 0


def many_streams(server: Server, count: int) -> None:
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
        idle(server)
        server.stop()
        began = time.perf_counter()
        server.start()
        print(f"  restart: {time.perf_counter() - began:.1f} s until ready")
        idle(server)
    finally:
        server.kill()


def idle(server: Server) -> None:
    """Print the processor time and memory of an idle server."""
    before = used(server)
    time.sleep(IDLE_S)
    share = (used(server) - before) / IDLE_S
    print(f"  idle: {share * 100:.1f} % of a core, {memory(server)} MiB")


def many_messages(server: Server, messages: int, subjects: int, keep: int) -> None:
    """Publish to random subjects, as fast as acks arrive."""
    server.start()
    try:
        with Wire(server.address, timeout=120) as wire:
            config = {"name": "BIG", "subjects": ["big.>"], "max_msgs_per_subject": keep}
            assert "error" not in wire.api("STREAM.CREATE.BIG", config)
            print(f"{messages} messages of {len(PAYLOAD)} B on {subjects} subjects, the newest {keep} of each are kept")
            run(wire, server, messages, subjects)
            state = wire.api("STREAM.INFO.BIG")["state"]
            print(f"  {state['messages']} messages of {state['num_subjects']} subjects, {state['bytes'] >> 20} MiB")
        began = time.perf_counter()
        server.stop()
        stopped = time.perf_counter()
        server.start()
        with Wire(server.address, timeout=120) as wire:
            again = wire.api("STREAM.INFO.BIG")["state"]
        assert {**again, "consumer_count": 0} == {**state, "consumer_count": 0}, (state, again)
        print(f"  stop {stopped - began:.1f} s, start {time.perf_counter() - stopped:.1f} s, {memory(server)} MiB")
    finally:
        server.kill()


def run(wire: Wire, server: Server, messages: int, subjects: int) -> None:
    """Publish in blocks, waiting for the ack of each block's last message."""
    rng = random.Random(1)
    size = len(PAYLOAD)
    tenth = max(messages // 10 // BLOCK, 1)
    waiting: list[str] = []
    began = last = time.perf_counter()
    longest, before = 0.0, used(server)
    for number in range(1, messages // BLOCK + 1):
        reply = wire.new_reply()
        lines = [b"PUB big.%07d %d\r\n%b\r\n" % (int(rng.random() * subjects), size, PAYLOAD) for _ in range(BLOCK - 1)]
        lines.append(b"PUB big.%07d %b %d\r\n%b\r\n" % (int(rng.random() * subjects), reply.encode(), size, PAYLOAD))
        wire.send(b"".join(lines))
        waiting.append(reply)
        if len(waiting) == WINDOW:
            frame = wire.message(waiting.pop(0))
            assert b'"error"' not in frame.data, frame
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
        if number % tenth == 0:
            rate = tenth * BLOCK / (time.perf_counter() - began)
            cost, pause = (used(server) - before) / tenth / BLOCK, longest * 1e3
            print(
                f"  {number * BLOCK:>10}: {rate:8.0f} msgs/s, {cost * 1e6:5.1f} us of processor time each, "
                f"longest pause {pause:6.0f} ms, {memory(server)} MiB"
            )
            began, longest, before = time.perf_counter(), 0.0, used(server)
    for reply in waiting:
        wire.message(reply)


def used(server: Server) -> float:
    """Return the seconds of processor time that the server has used so far."""
    assert server.process is not None
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory(server: Server) -> int:
    """Return the resident memory in MiB."""
    assert server.process is not None
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


if __name__ == "__main__":
    sys.exit(main())
