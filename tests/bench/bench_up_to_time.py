"""Measure multi_last with up_to_time where the answer is only in the lake.

    python -m tests.bench.bench_up_to_time [--messages 10000000] [--rounds 9] [--store DIRECTORY]

A stream of 1,000 busy keys, written in random order, and 1,000 quiet ones, each written once, anywhere in the first
half. All of it is compacted and has left the log. Asked over a socket, of a server that was just started and then again
and again for other times: the busy keys (their last messages lie close together), the quiet ones (they lie all over the
table), and ten of the busy ones. Prints milliseconds until the closing status: the first answer, the median of the
others, the longest; and of the median also the CPU time of the server's process. Stores are kept in DIRECTORY and found
again. Needs Java 17 or newer to make them.

Figures: docs/benchmarks.md#reads-from-the-lake
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tests.bench.bench_replay import LEFT_MOST, NAME, empty_the_log, server_of
from tests.bench.lake_streams import chunks, random_payloads
from tests.bench.load import Connection

ROOT = Path(__file__).resolve().parents[2]

KEYS = 1_000
PUBLISH_ROWS = 2_000
QUESTIONS = {
    "1,000 busy keys": (["key.*.busy"], KEYS),
    "1,000 quiet keys": (["key.*.quiet"], KEYS),
    "10 busy keys": ([f"key.{number * 97:05d}.busy" for number in range(10)], 10),
}


def prepare(store: Path, messages: int) -> None:
    """Create a store with the messages, unless it exists."""
    if (store / "complete").exists():
        return
    server = server_of("lake", store)
    server.start()
    try:
        client = Connection(server.address)
        client.stream(NAME, ["key.*.*"])
        choose = random.Random(3)
        quiet = {place: number for number, place in enumerate(choose.sample(range(messages // 2), KEYS))}
        for first, count in chunks(messages, PUBLISH_ROWS):
            subjects = [
                b"key.%05d.quiet" % quiet[n] if n in quiet else b"key.%05d.busy" % choose.randrange(KEYS)
                for n in range(first, first + count)
            ]
            client.publish(subjects, random_payloads(first, count))
        client.close()
        empty_the_log(store, messages)
    finally:
        server.stop()
    (store / "complete").touch()


def main() -> int:
    """Run the measurements of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--store", help="where the store is, or shall be kept")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-up-to-time-") as scratch:
        store = Path(asked.store or scratch) / f"{asked.messages}-keys"
        prepare(store, asked.messages)
        print(f"{asked.messages:,} messages; ms (CPU ms)")
        for title, (patterns, keys) in QUESTIONS.items():
            ask(store, title, patterns, keys, asked.messages, asked.rounds)
    return 0


def ask(store: Path, title: str, patterns: list[str], keys: int, messages: int, rounds: int) -> None:
    """Send one request for several times."""
    server = server_of("lake", store)
    server.start()
    try:
        assert server.process is not None
        process, choose = psutil.Process(server.process.pid), random.Random(5)
        client = Connection(server.address)
        times = []
        for _ in range(rounds):
            seq = choose.randint(messages // 2 + 1, int(messages * (1 - LEFT_MOST) * 0.9))
            when = client.time_of(NAME, seq)
            before, began = sum(process.cpu_times()[:2]), time.perf_counter()
            through = client.multi_last(NAME, patterns, keys, when)
            times.append(((time.perf_counter() - began) * 1e3, (sum(process.cpu_times()[:2]) - before) * 1e3))
            assert abs(through - seq) < messages // 100, (through, seq)
        client.close()
    finally:
        server.stop()
    wall, later = [at for at, _ in times], times[1:]
    cpu = statistics.median(spent for _, spent in later)
    median, longest = statistics.median(at for at, _ in later), max(at for at, _ in later)
    first = f"{wall[0]:6.0f} ({times[0][1]:.0f})"
    print(f"  {title:18} first {first}, then {median:6.0f} ({cpu:.0f}), longest {longest:6.0f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
