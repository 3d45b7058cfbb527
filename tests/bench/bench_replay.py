"""Measure how fast a consumer replays messages from the lake only, beside the same messages from the log.

    python -m tests.bench.bench_replay [--messages 1000000] [--subjects 10 1000] [--rounds 3] [--store DIRECTORY]

The same messages (128 bytes, which do not compress) go into two servers: one without a lake, and one whose sealed
segments the compactor moves into its table, so that they leave the log. Each replay is a push consumer as an ordered
one is, read over a raw socket that only counts, from a server that was started for it and has answered one get of the
first message: libraries are loaded, no cache of ours holds anything else. The two take turns. `filter` is a consumer
that wants the subjects of one token of ten, `sensor.d.>`.

Prints messages a second by the clock, by the CPU time of the server's process (by which two figures can be compared
on a busy machine too), and the ratio of each, lake to log. Stores are kept in DIRECTORY and found again. Needs Java 17
or newer to make them.

Figures: docs/benchmarks.md#reads-from-the-lake
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tests.bench.lake_streams import chunks, random_payloads
from tests.bench.load import Connection
from tests.servers import Kind, Server

ROOT = Path(__file__).resolve().parents[2]

NAME = "S"
PUBLISH_ROWS = 2_000
GROUPS = "abcdefghij"
FILTERS = {"everything": "", "filter": "sensor.d.>"}
LAKE = 'lake { seal_bytes: 1048576, seal_age: "1s", retain_bytes: 0, poll: "250ms", staged_grace: 0 }'
"""Configuration with small segments, so that hardly anything stays in the log."""
SIDES = ("log", "lake")
LEFT_MOST = 0.05
"""Maximum share of the messages that may stay in the log."""


def names(subjects: int) -> list[bytes]:
    """Return the stream's subjects, as many under each token."""
    return [b"sensor.%s.%05d" % (GROUPS[n % len(GROUPS)].encode(), n // len(GROUPS)) for n in range(subjects)]


def server_of(side: str, store: Path) -> Server:
    """Return one of the two servers."""
    return Server(Kind.OURS, store, **({"args": ["--no-lake"]} if side == "log" else {"config": LAKE}))


def prepare(side: str, store: Path, messages: int, subjects: int) -> None:
    """Create a store with the messages, unless it exists."""
    if (store / "complete").exists():
        return
    server = server_of(side, store)
    server.start()
    try:
        client = Connection(server.address)
        client.stream(NAME, ["sensor.>"])
        every, choose = names(subjects), random.Random(3)
        for first, count in chunks(messages, PUBLISH_ROWS):
            client.publish([choose.choice(every) for _ in range(count)], random_payloads(first, count))
        client.close()
        if side == "lake":
            empty_the_log(store, messages)
    finally:
        server.stop()
    (store / "complete").touch()


def empty_the_log(store: Path, messages: int) -> None:
    """Have sealed segments compacted until hardly anything is left in the log."""
    lakestream = Path(sys.executable).with_name("lakestream")
    log = store / "jetstream" / "$G" / "streams" / NAME / "log"
    deadline = time.monotonic() + 1200
    while True:
        command = [str(lakestream), "compact", "--once", "--lake", str(store / "lake")]
        subprocess.run(command, check=True, capture_output=True)
        for _ in range(20):
            left = sum(path.stat().st_size for path in log.glob("*.seg"))
            if left < LEFT_MOST * messages * 170:
                return
            time.sleep(0.5)  # the server polls the tables
        assert time.monotonic() < deadline, f"{left:,} bytes stay in the log"


def replay(side: str, store: Path, wanted: str, messages: int) -> tuple[float, float]:
    """Return the seconds by the clock and of the server's CPU."""
    server = server_of(side, store)
    server.start()
    try:
        assert server.process is not None
        process = psutil.Process(server.process.pid)
        client = Connection(server.address)
        client.time_of(NAME, 1)
        if wanted:
            messages = client.api(f"STREAM.INFO.{NAME}", {"subjects_filter": wanted})["state"]["subjects"]
            messages = sum(messages.values())
        before, began = sum(process.cpu_times()[:2]), time.perf_counter()
        client.read(NAME, b"MSG sensor.", messages, **({"filter_subject": wanted} if wanted else {}))
        wall, spent = time.perf_counter() - began, sum(process.cpu_times()[:2]) - before
        client.close()
    finally:
        server.stop()
    return messages / wall, messages / spent


def main() -> int:
    """Run the measurements of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--subjects", type=int, nargs="+", default=[10, 1_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--store", help="where the stores are, or shall be kept")
    parser.add_argument("--only", choices=list(FILTERS))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-replay-") as scratch:
        root = Path(asked.store or scratch)
        for subjects in asked.subjects:
            stores = {side: root / f"{asked.messages}-{subjects}-{side}" for side in SIDES}
            for side, store in stores.items():
                prepare(side, store, asked.messages, subjects)
            print(f"{asked.messages:,} messages on {subjects:,} subjects, msgs/s (by the server's CPU time)")
            for title, wanted in FILTERS.items():
                if asked.only in (None, title):
                    compare(title, wanted, stores, asked.messages, asked.rounds)
    return 0


def compare(title: str, wanted: str, stores: dict[str, Path], messages: int, rounds: int) -> None:
    """Measure both by turns; print medians, and the ratios of each round."""
    taken = [{side: replay(side, store, wanted, messages) for side, store in stores.items()} for _ in range(rounds)]
    said = []
    for side in SIDES:
        wall, cpu = (statistics.median(figures[side][which] for figures in taken) for which in (0, 1))
        said.append(f"{side} {wall:>9,.0f} ({cpu:>9,.0f})")
    ratios = [statistics.median(f["lake"][which] / f["log"][which] for f in taken) for which in (0, 1)]
    print(f"  {title:11} {'  '.join(said)}  ratio {ratios[0]:.2f} ({ratios[1]:.2f})", flush=True)


if __name__ == "__main__":
    sys.exit(main())
