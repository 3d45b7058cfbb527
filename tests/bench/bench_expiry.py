#!/usr/bin/env python3
"""Measure the messages that are alive in a stream whose messages have a TTL, while it is written to.

    python -m tests.bench.bench_expiry [--rates 50,200,1000] [--ttl 5] [--seconds 28] [--against real]

Each message has a subject of its own, as new keys of a bucket have. Expected are rate times TTL, and those of one look.

Figures: docs/benchmarks.md#start-and-memory
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.servers import Kind, Server
from tests.wire import Wire, pub

TICK_S = 0.02
"""Interval at which the messages that are due are published."""


def main() -> int:
    """Run the measurements of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="50,200,1000", help="messages a second (default: 50,200,1000)")
    parser.add_argument("--ttl", type=int, default=5, help="seconds (default: 5)")
    parser.add_argument("--seconds", type=int, default=28, help="time for which messages are published (default: 28)")
    parser.add_argument("--against", choices=["lakestream", "real"], default="lakestream", help="(default: lakestream)")
    options = parser.parse_args()
    kind = Kind.REAL if options.against == "real" else Kind.OURS
    for rate in map(int, options.rates.split(",")):
        with tempfile.TemporaryDirectory(prefix="bench-expiry-") as directory:
            alive = measure(Server(kind, Path(directory)), rate, options.ttl, options.seconds)
        print(f"{rate} a second with a TTL of {options.ttl} s: {alive} alive, expected {rate * options.ttl}")
    return 0


def measure(server: Server, rate: int, ttl: int, seconds: int) -> int:
    """Publish evenly; return the number of live messages at the end."""
    server.start()
    try:
        with Wire(server.address, timeout=60) as wire:
            config = {"name": "S", "subjects": ["s.*"], "allow_msg_ttl": True}
            assert "error" not in wire.api("STREAM.CREATE.S", config)
            header, sent, began = {"Nats-TTL": f"{ttl}s"}, 0, time.monotonic()
            while (passed := time.monotonic() - began) < seconds:
                due = int(passed * rate)
                wire.send(b"".join(pub(f"s.{number}", b"x", "", header) for number in range(sent, due)))
                sent = due
                time.sleep(TICK_S)
            return int(wire.api("STREAM.INFO.S")["state"]["messages"])
    finally:
        server.kill()


if __name__ == "__main__":
    sys.exit(main())
