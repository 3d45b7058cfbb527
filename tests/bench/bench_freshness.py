"""Measure how long a published message takes into its Delta table, and the embedded compactor's memory.

    python -m tests.bench.bench_freshness [--seconds 60] [--rate 10] [--draw]

Starts `lakestream up` with its defaults on a temporary store. The first message meets a compactor that is still
starting; then so many messages a second are published, evenly, and each is timed from its pub ack to the commit that
holds it, as a reader of the table's log sees it (looked at every 50 ms). Prints p50, p99 and the maximum, and the
resident memory of the compactor's JVM. `--draw` draws docs/pictures/freshness.svg. Needs Java 17 or newer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nats
import psutil

from lakestream.lake.delta.time_travel import latest_progress
from tests.bench.draw import lines

BIN = Path(sys.executable).parent
READY = b"Listening for client connections on "
LOOK_S = 0.05
PICTURE = Path(__file__).parents[2] / "docs" / "pictures" / "freshness.svg"


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


async def measure(url: str, table: Path, seconds: float, rate: float) -> tuple[float, list[float]]:
    """Return the seconds of the first message, and of all others."""
    client = await nats.connect(url)
    js = client.jetstream()
    await js.add_stream(name="FRESH", subjects=["fresh.>"])
    watch, last = Watch(table), asyncio.Event()
    last.set()
    watch.acked((await js.publish("fresh.0", b"x" * 128)).seq)
    await watch.until_empty(last)
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
    return first, watch.took


def jvm_mib(parent: int) -> float:
    """Return the resident MiB of the JVM below a process; 0 while there is none."""
    sizes = [0.0]
    for child in psutil.Process(parent).children(recursive=True):
        if child.name() == "java":
            sizes.append(child.memory_info().rss / (1 << 20))
    return max(sizes)


def main() -> None:
    """Run one server with its compactor and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rate", type=float, default=10, help="messages a second")
    parser.add_argument("--draw", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as store:
        process = subprocess.Popen(
            [str(BIN / "lakestream"), "up", "-a", "127.0.0.1", "-p", "-1", "-sd", store],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            assert process.stderr is not None
            url = next(line.split(READY)[1].decode().strip() for line in process.stderr if READY in line)
            table = Path(store) / "lake" / "streams" / "FRESH"
            first, times = asyncio.run(measure(f"nats://{url}", table, options.seconds, options.rate))
            weight = jvm_mib(process.pid)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)
    times.sort()
    parts = {f"p{share}_s": round(times[len(times) * share // 100], 1) for share in (50, 99)}
    figures = {"messages": len(times), "first_s": round(first, 1), **parts, "max_s": round(times[-1], 1)}
    print(json.dumps({**figures, "jvm_mib": round(weight)}, indent=1))
    if options.draw:
        points = [(share, times[min(len(times) - 1, len(times) * share // 100)]) for share in range(0, 101, 2)]
        title = "From pub ack to a commit in the table, defaults"
        lines(PICTURE, title, {f"{options.rate:g} messages/s": points}, "percentile of messages", "seconds")
        print(f"picture: {PICTURE}")


if __name__ == "__main__":
    main()
