"""The section of `make bench` that lets the NATS command line load the servers: `nats bench`, as people try it first.

Belongs here: the runs of `nats bench`, and how the program is found. It is the `nats` of PATH; else it is built with Go
from its module, into build/bench.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from tests.bench.figures import KINDS, ROOT, B, Section
from tests.bench.sections import Plan, Target, alternating, served

MODULE = "github.com/nats-io/natscli/nats@latest"
BUILT = ROOT / "build" / "bench" / "bin"
RATE = re.compile(r"stats: ([\d,]+) msgs/sec")
RUN_LIMIT_S = 60
SECTION_LIMIT_S = 400
BESIDE_S = 0.5
"""Until a process beside the load has subscribed."""


class Run(NamedTuple):
    """One run of `nats bench`.

    Attributes:
        key: figure; its title and goal are in figures.py.
        words: what follows `nats bench`, without the number of messages.
        messages: of a whole run; a quick one has a tenth.
        sync: each message waits for the one before it, so that a sync of the disk is part of it.
        beside: what another `nats bench` does meanwhile.
        counts: True if the rate is that of the process beside.
    """

    key: str
    words: str
    messages: int
    sync: bool = False
    beside: str = ""
    counts: bool = False


STREAM = "--create --purge"
# `fetch` and `consume` have one durable consumer; the second goes on behind the first.
RUNS = (
    Run("cli_async", f"js pub async b.a {STREAM}", 200_000),
    Run("cli_async_1k", f"js pub async b.a {STREAM} --size 1KB", 100_000),
    Run("cli_async_16k", f"js pub async b.a {STREAM} --size 16KB", 10_000),
    Run("cli_async_4", f"js pub async b.a {STREAM} --clients 4", 200_000),
    Run("cli_async_16", f"js pub async b.a {STREAM} --clients 16", 200_000),
    Run("cli_batch", f"js pub atomic b.a {STREAM}", 200_000),
    Run("cli_sync", f"js pub sync b.a {STREAM}", 3_000, sync=True),
    Run("cli_sync_16", f"js pub sync b.a {STREAM} --clients 16", 20_000, sync=True),
    Run("cli_fill", f"js pub async b.a {STREAM}", 200_000),
    Run("cli_ordered", "js ordered", 200_000),
    Run("cli_fetch", "js fetch", 100_000),
    Run("cli_consume", "js consume", 100_000),
    Run("cli_get", "js get sync", 10_000),
    Run("cli_kv_put", "kv put", 3_000, sync=True),
    Run("cli_kv_put_16", "kv put --clients 16", 20_000, sync=True),
    Run("cli_kv_get", "kv get", 10_000),
    Run("cli_service", "service request b.s", 20_000, beside="service serve b.s"),
    Run("cli_service_16", "service request b.s --clients 16", 100_000, beside="service serve b.s"),
    Run("cli_pub", "pub b.c", 1_000_000),
    Run("cli_pubsub", "pub b.c", 500_000, beside="sub b.c", counts=True),
)


def binary() -> str:
    """Return the path of `nats`; build it where it is not installed. "" if there is no Go either."""
    found = shutil.which("nats") or shutil.which("nats", path=str(BUILT))
    if found:
        return found
    if not shutil.which("go"):
        return ""
    BUILT.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["go", "install", MODULE], env=os.environ | {"GOBIN": str(BUILT)}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"go install {MODULE}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
    return str(BUILT / "nats")


class Bench:
    """`nats bench` against one server.

    Args:
        program: path of `nats`.
        share: of the messages of a whole run.
    """

    def __init__(self, program: str, target: Target, share: float) -> None:
        self._program = program
        self._target = target
        self._share = share

    def run(self, run: Run) -> dict[str, float]:
        """Run it; return its rate in messages a second, and the server's processor time for a message in µs."""
        messages = int(run.messages * self._share)
        with self._beside(run, messages) as other:
            before = self._target.used()
            said = self._end(self._begin(run.words, messages))
            if other is not None and run.counts:
                said = self._end(other)
            spent = self._target.used() - before
        rates = RATE.findall(said)
        if not rates:
            raise RuntimeError(f"nats bench {run.words}: {(said.strip().splitlines() or ['no output'])[-1]}")
        return {run.key: float(rates[-1].replace(",", "")), f"{run.key}_cpu_us": spent / messages * 1e6}

    def _begin(self, words: str, messages: int) -> subprocess.Popen[str]:
        host, port = self._target.address
        command: Sequence[str] = [
            *(self._program, "--server", f"nats://{host}:{port}", "--no-context", "bench"),
            *(*words.split(), "--msgs", str(messages), "--no-progress"),
        ]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    @staticmethod
    def _end(process: subprocess.Popen[str]) -> str:
        try:
            said, _ = process.communicate(timeout=RUN_LIMIT_S)
        finally:
            process.kill()
        return said

    @contextmanager
    def _beside(self, run: Run, messages: int) -> Iterator[subprocess.Popen[str] | None]:
        if not run.beside:
            yield None
            return
        other = self._begin(run.beside, messages)
        try:
            time.sleep(BESIDE_S)
            yield other
        finally:
            other.kill()
            other.wait()


def cli(plan: Plan, found: Section) -> None:
    """Run `nats bench` against each server; what waits for syncs against the one that syncs, too."""
    program = binary()
    if not program:
        found.skipped = "neither `nats` nor Go is installed"
        return

    def once(kind: str) -> dict[str, float]:
        figures: dict[str, float] = {}
        with served(kind) as target:
            bench = Bench(program, target, 0.1 if plan.quick else 1.0)
            for run in RUNS:
                if kind != B or run.sync:
                    figures |= bench.run(run)
        return figures

    alternating(plan, found, KINDS, once, limit_s=SECTION_LIMIT_S)
