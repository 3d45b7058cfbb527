"""Measure how long a published message takes into its Delta table, the files that this costs, and the idle CPU time.

    python -m tests.bench.bench_freshness [--seconds 60] [--only sparse busy streams rest]

Starts `lakestream up` with its defaults on a temporary store, and measures in turn:

- `first`: from exec to the commit with the first message, which is published as soon as the server is ready,
- `sparse`: a message every 10 s into one stream,
- `busy`: 1,000 messages a second into one stream, 3 subjects,
- `streams`: a message a second into each of 20 streams,
- `rest`: nothing, after 30 s to settle: the CPU time of the server and of the compactor with its JVM.

Each message is timed from its pub ack to the commit that holds it, as a reader of the table's log sees it (looked at
every 50 ms). Of a commit's delay three parts are known: `sealed` (from the oldest message of its segments to the seal),
`staged` and `begun` (until the compactor works on it), and `commit`. Files are those made meanwhile, per stream and
extrapolated to a day. Needs Java 17 or newer.

Figures: the table
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import nats
import psutil

from lakestream.lake.staging import staging
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table.at import latest_progress
from lakestream.lake.table.log import TableLog

BIN = Path(sys.executable).parent
READY = b"Listening for client connections on "
LOOK_S = 0.05
DAY_S = 86_400
SETTLE_S = 30
PAYLOAD = b"x" * 128
SCENARIOS = ("sparse", "busy", "streams", "rest")


class Watch:
    """Records when messages of one stream were acked, and when its table was first seen to hold them."""

    def __init__(self, table: Path) -> None:
        self._table = table
        self._acked: deque[tuple[int, float]] = deque()
        self.took: list[float] = []
        """Seconds, in the order of commits."""

    def acked(self, seq: int) -> None:
        """Record that the server has just stored it."""
        self._acked.append((seq, time.perf_counter()))

    def look(self) -> bool:
        """Look at the table once; return True if it holds every acked message."""
        if self._acked and (self._table / "_delta_log").exists():
            progress = latest_progress(str(self._table))
            now = time.perf_counter()
            while progress is not None and self._acked and self._acked[0][0] <= progress.last_seq:
                self.took.append(now - self._acked.popleft()[1])
        return not self._acked


async def follow(watches: list[Watch], done: asyncio.Event) -> None:
    """Poll the tables until they hold every acked message and `done` is set, after which no other comes."""
    while True:
        found = [watch.look() for watch in watches]
        if all(found) and done.is_set():
            return
        await asyncio.sleep(LOOK_S)  # another process commits


def made(lake: Path, name: str) -> dict[str, int]:
    """Return the commits of a table with rows so far, the data files they named, and the files of its log."""
    table = str(lake / "streams" / name)
    log = TableLog(open_storage(table), table)
    commits = files = 0
    for version in log.commits:
        adds = sum(action.add is not None for action in log.commit(version).actions)
        commits, files = commits + bool(adds), files + adds
    return {"commits": commits, "data": files, "log": len(os.listdir(f"{table}/_delta_log"))}


def parts(lake: Path, name: str, since_ns: int) -> dict[str, float]:
    """Return the median seconds of the parts of commits since then."""
    table = str(lake / "streams" / name)
    log = TableLog(open_storage(table), table)
    begun: list[tuple[int, int, float]] = []
    for version in log.commits:
        info = log.commit(version).info
        stated = json.loads(info.user_metadata or "{}")
        if "began_ms" in stated:
            ended = os.stat(f"{table}/_delta_log/{version:020}.json").st_mtime
            begun.append((stated["last_index"], stated["began_ms"], ended))
    found: dict[str, list[float]] = {"sealed": [], "staged": [], "begun": [], "commit": []}
    for directory in (lake / "segments" / name).iterdir():
        for segment in staging.segments(str(directory)):
            footer, staged = staging.footer(segment.path), os.stat(segment.path).st_ctime
            took = [each for each in begun if each[0] >= segment.last_index]
            if footer.count and footer.first_time > since_ns and took:
                _, began_ms, ended = took[0]
                found["sealed"].append((footer.closed_ns - footer.first_time) / 1e9)
                found["staged"].append(staged - footer.closed_ns / 1e9)
                found["begun"].append(began_ms / 1000 - staged)
                found["commit"].append(ended - began_ms / 1000)
    return {key: round(sorted(values)[len(values) // 2], 2) for key, values in found.items() if values}


async def publish(url: str, lake: Path, names: list[str], seconds: float, rate: float) -> dict[str, Any]:
    """Publish evenly into streams, `rate` messages a second into each; return the figures."""
    client = await nats.connect(url)
    js = client.jetstream()
    for name in names:
        await js.add_stream(name=name, subjects=[f"{name}.>"])
    watches, done = [Watch(lake / "streams" / name) for name in names], asyncio.Event()
    for name, watch in zip(names, watches, strict=True):  # the table exists: no creation is measured
        watch.acked((await js.publish(f"{name}.0", PAYLOAD)).seq)
    done.set()
    await follow(watches, done)
    done.clear()
    for watch in watches:
        watch.took.clear()
    before = [made(lake, name) for name in names]
    looking = asyncio.create_task(follow(watches, done))
    began, began_ns = time.perf_counter(), time.time_ns()
    burst = max(1, round(rate / 100))  # 100 turns a second at most
    for number in range(round(seconds * rate / burst)):
        await asyncio.sleep(max(0.0, began + number * burst / rate - time.perf_counter()))
        for name, watch in zip(names, watches, strict=True):
            sent = [js.publish(f"{name}.{each % 3}", PAYLOAD) for each in range(number, number + burst)]
            for ack in await asyncio.gather(*sent):
                watch.acked(ack.seq)
    await asyncio.sleep(max(0.0, began + seconds - time.perf_counter()))
    spent = time.perf_counter() - began
    after = [made(lake, name) for name in names]
    done.set()
    await looking
    await client.close()
    times = sorted(took for watch in watches for took in watch.took)
    found: dict[str, Any] = {"messages": len(times)}
    found |= {f"p{share}_s": round(times[len(times) * share // 100], 1) for share in (50, 99)}
    found["max_s"] = round(times[-1], 1)
    for key in before[0]:
        count = sum(new[key] - old[key] for new, old in zip(after, before, strict=True)) / len(names)
        found[f"{key}_a_day"] = round(count * DAY_S / spent)
    found["parts_s"] = parts(lake, names[0], began_ns)
    return found | {"times": times}


async def first_row(url: str, lake: Path, began: float) -> float:
    """Publish one message and return the seconds from `began` until the table holds it."""
    client = await nats.connect(url)
    js = client.jetstream()
    await js.add_stream(name="FIRST", subjects=["FIRST.>"])
    watch, done = Watch(lake / "streams" / "FIRST"), asyncio.Event()
    watch.acked((await js.publish("FIRST.0", PAYLOAD)).seq)
    done.set()
    await follow([watch], done)
    await client.close()
    return time.perf_counter() - began


def cpu_seconds(server: psutil.Process) -> dict[str, float]:
    """Return the CPU time of the server, and of everything below it."""
    spent = {"server": sum(server.cpu_times()[:2]), "compactor": 0.0}
    for child in server.children(recursive=True):
        try:
            spent["compactor"] += sum(child.cpu_times()[:2])
        except psutil.NoSuchProcess:
            continue
    return spent


def rest(server: psutil.Process, seconds: float) -> dict[str, float]:
    """Return the share of a core, in percent, that server and compactor take without work."""
    time.sleep(SETTLE_S)
    before = cpu_seconds(server)
    time.sleep(seconds)
    after = cpu_seconds(server)
    return {f"{key}_percent": round(100 * (after[key] - before[key]) / seconds, 2) for key in before}


def jvm_mib(server: psutil.Process) -> float:
    """Return the resident MiB of the JVM below a process; 0 while there is none."""
    sizes = [0.0]
    for child in server.children(recursive=True):
        if child.name() == "java":
            sizes.append(child.memory_info().rss / (1 << 20))
    return max(sizes)


def run(only: Sequence[str], seconds: float) -> Iterator[tuple[str, dict[str, Any]]]:
    """Start `lakestream up` on an empty store; yield the figures of `first`, then of each scenario."""
    with tempfile.TemporaryDirectory() as store:
        began = time.perf_counter()
        process = subprocess.Popen(
            [str(BIN / "lakestream"), "up", "-a", "127.0.0.1", "-p", "-1", "-sd", store],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            assert process.stderr is not None
            found = next(line.split(READY)[1].decode().strip() for line in process.stderr if READY in line)
            url, lake, server = f"nats://{found}", Path(store) / "lake", psutil.Process(process.pid)
            yield "first", {"first_row_s": asyncio.run(first_row(url, lake, began))}
            for scenario in only:
                if scenario == "rest":
                    figures: dict[str, Any] = rest(server, seconds)
                else:
                    names = [f"S{number}" for number in range(20)] if scenario == "streams" else [scenario.upper()]
                    rate = {"sparse": 0.1, "busy": 1000.0, "streams": 1.0}[scenario]
                    figures = asyncio.run(publish(url, lake, names, seconds, rate))
                yield scenario, figures | {"jvm_mib": round(jvm_mib(server)), "load": round(os.getloadavg()[0], 1)}
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def main() -> None:
    """Print the figures of each scenario."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, default=SCENARIOS)
    options = parser.parse_args()
    for scenario, figures in run(options.only, options.seconds):
        print(json.dumps({scenario: {key: each for key, each in figures.items() if key != "times"}}), flush=True)


if __name__ == "__main__":
    main()
