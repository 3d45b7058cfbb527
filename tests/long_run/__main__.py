"""Mixed load for an hour: three nodes, a lake, a compactor with maintenance, rolling restarts.

python -m tests.long_run [--minutes 60] [--seed N] [--out DIR] [--save]

The nodes are restarted one after the other in the first quarter, three times. Until the middle, streams, logs and
caches reach their limits. The second half is compared with itself: memory, descriptors, latency and disk at its
beginning and at its end. Then the load stops, and what was acknowledged is looked for in the streams and in the tables.

Belongs here: processes, schedule and samples. The load is in load.py, the verdict in samples.py.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path

import msgspec
import nats
import psutil
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from lakestream.lake.storage import paths
from tests import campaigns
from tests.cluster.nodes import Cluster, Node
from tests.lake import tables
from tests.lake.conftest import job
from tests.long_run import samples
from tests.long_run.load import Load, config, streams
from tests.long_run.samples import Run, Sample
from tests.servers import Kind

SAMPLE_S = 10.0
ROUNDS = 3
"""Rolling restarts, in the first quarter."""
START_S = 120.0
"""Most time for a restarted node to serve (2 minutes); other work may use the processors."""
SHORTEST = 24
"""Fewest minutes of a run: a quarter with restarts, 8 minutes (`samples.FILLS_S`), and some to compare."""
SETTLE_S = 300.0
"""Most time for the tables to take in the last messages."""
RATES = {"orders_per_s": 100, "jobs_per_s": 30, "keys_per_s": 30}
CONFIG = 'lake {{ url: "{lake}", seal_bytes: 256k, seal_age: "5s", retain_bytes: 4m }}'
_CACHED = re.compile(rb"^lakestream_history_cache_bytes ([0-9.e+]+)$", re.MULTILINE)


class LongRun:
    """The processes of one run, and its samples."""

    def __init__(self, directory: Path, seed: int, minutes: float) -> None:
        self.directory = directory
        self.lake = directory / "lake"
        self.lake.mkdir(parents=True)
        self.cluster = Cluster(Kind.OURS, directory, 3, config=CONFIG.format(lake=self.lake))
        self.load = Load(self.cluster.urls, seed)
        self.run = Run(minutes, [], [], {}, {}, [])
        self._began = 0.0
        self._compactor: subprocess.Popen[bytes] | None = None

    async def whole(self) -> Run:
        """Start everything, run, compare, and stop everything."""
        await asyncio.to_thread(self.cluster.start)
        await self._create()
        self._compact()
        try:
            await self.load.start(**RATES)
            self._began = time.monotonic()
            sampling = asyncio.create_task(self._sample())
            await self._schedule()
            sampling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sampling
            await self.load.stop()
            await self._compare()
        finally:
            self._stop_compactor()
            self.cluster.kill()
        self.run.done, self.run.failed = dict(self.load.done), dict(self.load.failed)
        return self.run

    async def _create(self) -> None:
        client = await nats.connect(self.cluster.urls)
        for stream in streams():
            await client.jetstream(timeout=20).add_stream(config(*stream))
        await client.close()

    def _compact(self) -> None:
        log = (self.directory / "compactor.log").open("wb")
        self._compactor = subprocess.Popen(
            [sys.executable, str(job()), "--lake", str(self.lake), "--maintain-every", "60"],
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip

    def _stop_compactor(self) -> None:
        if self._compactor is not None and self._compactor.poll() is None:
            self._compactor.terminate()
            self._compactor.wait(60)

    async def _schedule(self) -> None:
        """Restart the nodes one after the other `ROUNDS` times in the first quarter, then let them run."""
        period_s = self.run.minutes * 15 / ROUNDS
        for number in range(ROUNDS):
            await asyncio.sleep(max(0.0, self._began + (number + 0.5) * period_s - time.monotonic()))
            for node in self.cluster.nodes:
                await asyncio.to_thread(self._restart, node)
            self.run.restarts_s.append(time.monotonic() - self._began)
            print(f"{self._minutes():6.1f} min  all nodes restarted", flush=True)
        await asyncio.sleep(max(0.0, self._began + self.run.minutes * 60 - time.monotonic()))

    def _restart(self, node: Node) -> None:
        node.stop()
        node.start(START_S)
        self.cluster.wait_ready(START_S)
        for name, _, _ in streams():
            self.cluster.wait_current(name, START_S)

    def _minutes(self) -> float:
        return (time.monotonic() - self._began) / 60

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_S)
            sample = await asyncio.to_thread(self._sampled, self.load.taken())
            self.run.samples.append(sample)
            rss = ", ".join(f"{name} {found >> 20}" for name, found in sample.rss.items())
            caches = "/".join(str(found >> 20) for found in sample.cache.values())
            waits = ", ".join(f"{kind} {wait * 1e3:.0f}" for kind, wait in sorted(sample.p99.items()))
            print(f"{self._minutes():6.1f} min  MiB {rss}  caches {caches}  lake {sample.lake >> 20}  p99 ms {waits}"
                  f"  repeated {sample.failed} {self.load.last_error[:80]}", flush=True)  # fmt: skip
            (self.directory / "samples.json").write_bytes(msgspec.json.encode(self.run))

    def _sampled(self, took: dict[str, list[float]]) -> Sample:
        rss, descriptors = {}, {}
        found = {node.name: node.process for node in self.cluster.nodes if node.running} | {
            "compactor": self._compactor
        }
        for name, process in found.items():
            with contextlib.suppress(psutil.NoSuchProcess):
                assert process is not None
                rss[name], descriptors[name] = samples.used(psutil.Process(process.pid))
        return Sample(
            time.monotonic() - self._began,
            rss,
            descriptors,
            {node.name: cached(node) for node in self.cluster.nodes if node.running},
            {node.name: samples.size(node.store) for node in self.cluster.nodes},
            samples.size(self.lake),
            self._live(),
            {kind: samples.percentile(each, 0.5) for kind, each in took.items()},
            {kind: samples.percentile(each, 0.99) for kind, each in took.items()},
            self.load.failed.total(),
        )

    def _live(self) -> int:
        with contextlib.suppress(DeltaError):  # a table between its creation and its first commit
            return samples.live(self.lake)
        return self.run.samples[-1].live if self.run.samples else 0

    async def _compare(self) -> None:
        """Compare acknowledged messages with the streams, and the streams with the tables."""
        client = await nats.connect(self.cluster.urls)
        js = client.jetstream(timeout=20)
        for name, count in sorted(self.load.acked.items()):
            state = (await js.stream_info(name)).state
            if state.last_seq != count:
                self.run.differences.append(f"{name}: {count} acknowledged messages, last sequence {state.last_seq}")
        for name, _, _ in streams():
            if name != "JOBS":  # empty
                await self._compare_table(js, name)
        await client.close()
        errors = [line for node in self.cluster.nodes for line in node.logged("[ERR]")]
        if errors:
            self.run.differences.append(f"{len(errors)} errors in the log, the first: {errors[0]}")
        assert self._compactor is not None
        if self._compactor.poll() is not None:
            self.run.differences.append("the compactor has ended")

    async def _compare_table(self, js: nats.js.JetStreamContext, name: str) -> None:
        state = (await js.stream_info(name)).state
        table = paths.table(str(self.lake), name)
        deadline = time.monotonic() + SETTLE_S
        seen: Counter[int] = Counter()
        while time.monotonic() < deadline:
            with contextlib.suppress(TableNotFoundError):
                seen = Counter(row["seq"] for row in await asyncio.to_thread(tables.rows, table))
                if len(seen) == state.messages and max(seen, default=0) == state.last_seq:
                    break
            await asyncio.sleep(1)
        else:
            self.run.differences.append(f"{name}: {state.messages} messages in the stream, {len(seen)} in the table")
        if twice := [seq for seq, count in seen.items() if count > 1]:
            self.run.differences.append(f"{name}: sequences twice in the table: {twice[:5]}")
        print(f"{name}: {state.messages} messages, table version {DeltaTable(table).version()}", flush=True)


def cached(node: Node) -> int:
    """Return the bytes of old messages in the cache of a node; 0 while it does not answer."""
    with contextlib.suppress(OSError):
        with urllib.request.urlopen(f"http://{node.host}:{node.http_port}/metrics", timeout=5) as answer:
            found = _CACHED.search(answer.read())
        return int(float(found[1])) if found else 0
    return 0


def main() -> int:
    """Run, draw, print the verdict; return 1 if a promise is not kept."""
    parser = argparse.ArgumentParser(prog="tests.long_run", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="directory for stores, logs and samples (default: a temporary one)")
    parser.add_argument("--save", action="store_true", help="replace the results and plots in docs/")
    options = parser.parse_args()
    if options.minutes < SHORTEST:
        parser.error(f"a run takes at least {SHORTEST} minutes: its limits are reached by then")
    with contextlib.ExitStack() as stack:
        out = options.out or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        run = asyncio.run(LongRun(out.resolve(), options.seed, options.minutes).whole())
    rows = samples.verdict(run, len(streams()))
    for row in rows:
        print(f"{row.promise}: {row.result}")
    print("operations:", run.done, "repeated:", run.failed)
    if options.save:
        samples.draw(run)
        command = f"python -m tests.long_run --minutes {options.minutes:g} --seed {options.seed}"
        campaigns.save(campaigns.Campaign("long-run", command, round(options.minutes * 60), rows, options.seed))
    return int(any(row.result.startswith("**") for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
