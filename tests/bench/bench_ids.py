#!/usr/bin/env python3
"""Measure the message ids of a duplicate window: publishing, memory, duplicates, a restart, and the end of the window.

    python -m tests.bench.bench_ids [--ids 1000000] [--limit 512] [--window 60] [--against real]

A stream that keeps one message gets `--ids` messages with ids of 22 bytes; its window is `--window` seconds longer than
that takes. `--limit`: `max_index_memory` in MiB. Then 2,000 of them, chosen at random, are sent again one at a time,
and in order with many in flight; the server is stopped and started; and left alone until the window is over. A pause is
the longest round trip of a connection that does nothing but PING.

Figures: docs/benchmarks.md#message-ids
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.bench_scale import memory, used
from tests.bench.bench_subjects import pause
from tests.bench.load import Connection
from tests.bench.scale import send
from tests.servers import Kind, Server

REPEATED = 2_000
REST_S = 15.0
"""Time in which freed memory is to return to the system."""
SECOND = 1_000_000_000


def main() -> int:
    """Run the measurement of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ids", type=int, default=1_000_000, help="(default: 1 million)")
    parser.add_argument("--limit", type=int, default=512, help="MiB (default: 512)")
    parser.add_argument("--window", type=int, default=60, help="seconds after the last publish (default: 60)")
    parser.add_argument("--against", choices=["lakestream", "real"], default="lakestream", help="(default: lakestream)")
    options = parser.parse_args()
    real = options.against == "real"
    config = "jetstream { }" if real else f"lake: false\njetstream {{ max_index_memory: {options.limit}M }}"
    with tempfile.TemporaryDirectory(prefix="bench-ids-") as directory:
        server = Server(Kind.REAL if real else Kind.OURS, Path(directory), config=config)
        server.start()
        try:
            measure(server, options.ids, options.window)
        finally:
            server.kill()
    return 0


def with_id(client: Connection, number: int, reply: int) -> bytes:
    """Return a publish with the id of this number."""
    header = b"NATS/1.0\r\nNats-Msg-Id: %022x\r\n\r\n" % (number * 2_654_435_761)
    return b"HPUB i %s.%d %d %d\r\n%s\r\n" % (client.inbox, reply, len(header), len(header), header)


def measure(server: Server, count: int, window_s: int) -> None:
    """Print the figures."""
    with Connection(server.address) as client:
        client.stream("S", ["i"], max_msgs=1, duplicate_window=86_400 * SECOND)
        empty, spent = memory(server), used(server)
        with pause(server, f"{count} publishes with ids"):
            send(client, lambda number: with_id(client, number, number), count)
        each = (used(server) - spent) / count * 1e6
        size = memory(server) - empty
        print(f"  {each:.1f} us of processor time each; {size} MiB more, {size * (1 << 20) / count:.0f} bytes an id")
        repeat(client, count)
    server.stop(timeout=300)
    began = time.perf_counter()
    server.start(timeout=300)
    with Connection(server.address) as client:
        last = client.api("STREAM.INFO.S")["state"]["last_seq"]
        print(
            f"  ready {time.perf_counter() - began:.2f} s after a start, {used(server):.2f} s of processor time, ",
            end="",
        )
        print(f"{memory(server)} MiB")
        assert last == count, last
        if server.kind is Kind.OURS:  # nats-server has forgotten the ids of messages that are gone
            repeat(client, count)
        client.api("STREAM.UPDATE.S", client.api("STREAM.INFO.S")["config"] | {"duplicate_window": window_s * SECOND})
        with pause(server, f"the window ends, {window_s} s"):
            time.sleep(window_s + REST_S)
        print(f"  {memory(server)} MiB afterwards; empty it took {empty}")


def repeat(client: Connection, count: int) -> None:
    """Send messages again."""
    took, rng = [], random.Random(7)
    for _ in range(min(REPEATED, count)):
        began = time.perf_counter()
        client.send(with_id(client, rng.randrange(count), 0))
        answer = b""
        while b'"seq":' not in answer:
            answer += client.receive()
        took.append(time.perf_counter() - began)
        assert b"duplicate" in answer, answer
    parts = statistics.quantiles(took, n=100)
    began, part = time.perf_counter(), min(100_000, count)
    send(client, lambda number: with_id(client, number, number), part, b'"duplicate"')
    rate = part / (time.perf_counter() - began)
    print(f"  a duplicate: p50 {parts[49] * 1e3:.2f} ms, p99 {parts[98] * 1e3:.2f}; in order {rate:.0f} a second")


if __name__ == "__main__":
    sys.exit(main())
