"""Measure how fast the server starts, and its memory at rest.

    python -m tests.bench.bench_start [--rounds 7]

Starts `lakestream serve` (and nats-server beside it, in turn) on an empty store and prints, as JSON, the median time
from exec to the log line `Server is ready` and the resident memory two seconds later.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BIN = Path(sys.executable).parent
READY = b"Server is ready"


def once(program: list[str], settle_s: float) -> tuple[float, float]:
    """Start one server; returns (seconds from exec to ready, MiB resident at rest)."""
    with tempfile.TemporaryDirectory() as store:
        began = time.perf_counter()
        process = subprocess.Popen(
            [*program, "-a", "127.0.0.1", "-p", "-1", "-js", "-sd", store],
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if READY in line:
                    break
            else:
                raise SystemExit(f"{program[0]} ended before it was ready")
            ready = time.perf_counter() - began
            time.sleep(settle_s)  # the server is to be at rest, which causes no event
            status = Path(f"/proc/{process.pid}/status").read_text()
            rss = next(int(row.split()[1]) for row in status.splitlines() if row.startswith("VmRSS")) / 1024
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(20)
    return ready, rss


def main() -> None:
    """Measure both servers in turn and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--settle", type=float, default=2.0, help="seconds at rest before memory is read")
    options = parser.parse_args()
    programs = {"lakestream": [str(BIN / "lakestream"), "serve"], "nats-server": [str(BIN / "nats-server")]}
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for _ in range(options.rounds):
        for name, program in programs.items():
            figures[name].append(once(program, options.settle))
    print(
        json.dumps(
            {
                name: {
                    "start_to_ready_s": round(statistics.median(ready for ready, _ in rows), 3),
                    "rest_mib": round(statistics.median(rss for _, rss in rows), 1),
                }
                for name, rows in figures.items()
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
