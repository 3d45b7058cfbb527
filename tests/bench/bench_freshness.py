"""How long a published message takes into its Delta table, and what the embedded compactor weighs.

    python tests/bench/bench_freshness.py [--messages 12]

Starts `lakestream up` with its defaults on a temporary store, publishes a message every few seconds and waits until the
table's log says that it holds it. Prints, as JSON, the time of the first message (the compactor is still starting) and
the median and maximum of the others, and the largest resident memory of the compactor's JVM. Needs Java 17 or newer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nats
import psutil

from lakestream.lake.timetravel import latest_progress

BIN = Path(sys.executable).parent
READY = b"Listening for client connections on "
GAP_S = 4.0
"""Between messages, so that they meet the segment's age at different moments."""


async def measure(url: str, table: Path, messages: int) -> list[float]:
    """Seconds from pub ack to the commit that holds the message, one by one."""
    client = await nats.connect(url)
    js = client.jetstream()
    await js.add_stream(name="FRESH", subjects=["fresh.>"])
    times = []
    for number in range(messages):
        ack = await js.publish(f"fresh.{number % 3}", b"x" * 128)
        began = time.perf_counter()
        while True:
            progress = latest_progress(str(table)) if table.exists() else None
            if progress is not None and progress.last_seq >= ack.seq:
                break
            await asyncio.sleep(0.05)  # the commit is made by another process
        times.append(time.perf_counter() - began)
        await asyncio.sleep(GAP_S)
    await client.close()
    return times


def jvm_mib(parent: int) -> float:
    """Resident MiB of the JVM below a process; 0 while there is none."""
    sizes = [0.0]
    for child in psutil.Process(parent).children(recursive=True):
        if child.name() == "java":
            sizes.append(child.memory_info().rss / (1 << 20))
    return max(sizes)


def main() -> None:
    """Run one server with its compactor and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=12)
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
            times = asyncio.run(measure(f"nats://{url}", table, options.messages))
            weight = jvm_mib(process.pid)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)
    print(
        json.dumps(
            {
                "first_s": round(times[0], 1),
                "then_median_s": round(statistics.median(times[1:]), 1),
                "then_max_s": round(max(times[1:]), 1),
                "jvm_mib": round(weight),
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
