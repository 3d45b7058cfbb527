"""Measure how long a published message takes into its Delta table, and the embedded compactor's memory.

    python -m tests.bench.bench_freshness [--seconds 60] [--rate 10] [--idle 30]

Starts `lakestream up` with its defaults on a temporary store. The first message meets a compactor that is still
starting; then so many messages a second are published, evenly, and each is timed from its pub ack to the commit that
holds it, as a reader of the table's log sees it (looked at every 50 ms). Prints p50, p99 and the maximum, the share of
a core that server and compactor use afterwards, and the resident memory of the compactor's JVM. Needs Java 17 or newer.

Figures: the table
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import nats
import psutil

from lakestream.lake.delta.time_travel import latest_progress
from tests.bench.load import processor_s

BIN = Path(sys.executable).parent
READY = b"Listening for client connections on "
LOOK_S = 0.05
SETTLE_S = 15.0


class Watch:
    """Records when messages were acked, and when a table was first seen to hold them."""

    def __init__(self, table: Path) -> None:
        self._table = table
        self._acked: dict[int, float] = {}
        self.took: list[float] = []
        """Seconds, in the order of commits."""

    def acked(self, seq: int) -> None:
        """Record that the server has just stored it."""
        self._acked[seq] = time.perf_counter()

    async def until_empty(self, more: asyncio.Event) -> None:
        """Poll the table until it holds every acked message and `more` is set, after which no other comes."""
        while self._acked or not more.is_set():
            progress = latest_progress(str(self._table)) if self._table.exists() else None
            now = time.perf_counter()
            for seq in sorted(self._acked):
                if progress is None or seq > progress.last_seq:
                    break
                self.took.append(now - self._acked.pop(seq))
            await asyncio.sleep(LOOK_S)  # another process commits


class Freshness(NamedTuple):
    """Figures of one `lakestream up`.

    Attributes:
        first_row_s: seconds from the start of the process to a commit that holds the first message.
        first_s: seconds of that message from its ack.
        took: seconds of all others, sorted.
        idle_share: share of a core that server and compactor use without traffic.
    """

    first_row_s: float
    first_s: float
    took: list[float]
    idle_share: float
    jvm_mib: float

    def share(self, percent: int) -> float:
        """Return the seconds within which so many percent of the messages were visible."""
        return self.took[min(len(self.took) - 1, len(self.took) * percent // 100)]


async def measure(url: str, table: Path, seconds: float, rate: float) -> tuple[float, float, list[float]]:
    """Return the clock when the first message was visible, its seconds, and those of all others."""
    client = await nats.connect(url)
    js = client.jetstream()
    await js.add_stream(name="FRESH", subjects=["fresh.>"])
    watch, last = Watch(table), asyncio.Event()
    last.set()
    watch.acked((await js.publish("fresh.0", b"x" * 128)).seq)
    await watch.until_empty(last)
    seen_at = time.perf_counter()
    first, watch.took = watch.took[0], []
    last.clear()
    looking = asyncio.create_task(watch.until_empty(last))
    began = time.perf_counter()
    for number in range(round(seconds * rate)):
        await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
        watch.acked((await js.publish(f"fresh.{number % 3}", b"x" * 128)).seq)
    last.set()
    await looking
    await client.close()
    return seen_at, first, sorted(watch.took)


def jvm_mib(parent: int) -> float:
    """Return the resident MiB of the JVM below a process; 0 while there is none."""
    sizes = [0.0]
    for child in psutil.Process(parent).children(recursive=True):
        if child.name() == "java":
            sizes.append(child.memory_info().rss / (1 << 20))
    return max(sizes)


def run(seconds: float, rate: float, idle_s: float = 0.0) -> Freshness:
    """Run one server with its compactor; leave it alone for `idle_s` seconds at the end."""
    with tempfile.TemporaryDirectory() as store:
        began = time.perf_counter()
        process = subprocess.Popen(
            [str(BIN / "lakestream"), "up", "-a", "127.0.0.1", "-p", "-1", "-sd", store],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            assert process.stderr is not None
            url = next(line.split(READY)[1].decode().strip() for line in process.stderr if READY in line)
            threading.Thread(target=process.stderr.read, daemon=True).start()
            table = Path(store) / "lake" / "streams" / "FRESH"
            seen_at, first, took = asyncio.run(measure(f"nats://{url}", table, seconds, rate))
            weight = jvm_mib(process.pid)
            idle = 0.0
            if idle_s:
                time.sleep(SETTLE_S)  # the work after the last commit ends
                before = processor_s(process.pid)
                time.sleep(idle_s)
                idle = (processor_s(process.pid) - before) / idle_s
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)
    return Freshness(seen_at - began, first, took, idle, weight)


def main() -> None:
    """Run one server with its compactor and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rate", type=float, default=10, help="messages a second")
    parser.add_argument("--idle", type=float, default=30, help="seconds without traffic at the end")
    options = parser.parse_args()
    seen = run(options.seconds, options.rate, options.idle)
    parts = {f"p{share}_s": round(seen.share(share), 1) for share in (50, 99)}
    figures = {"messages": len(seen.took), "first_row_s": round(seen.first_row_s, 1), "first_s": round(seen.first_s, 1)}
    figures |= {**parts, "max_s": round(seen.took[-1], 1), "idle_percent": round(seen.idle_share * 100, 1)}
    print(json.dumps({**figures, "jvm_mib": round(seen.jvm_mib)}, indent=1))


if __name__ == "__main__":
    main()
