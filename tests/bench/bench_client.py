"""Measure the Python client: reading a stream as Arrow data, from table, uncompacted segments and by NATS.

    python -m tests.bench.bench_client [--messages 500000] [--nats 50000]

A real server on 127.0.0.1 with a store in a temporary directory, 128-byte messages on ten subjects. The first reads are
of uncompacted segments; then one `lakestream compact --once` writes the table, and the same is read again. Memory is
the largest amount of Arrow data that was alive while a scan ran.

Figures: docs/python-client.md
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from nats.js.api import StreamConfig

from lakestream_client import connect, sync
from tests.servers import Kind, Server

BATCH = 1000


async def publish(url: str, count: int) -> None:
    async with await connect(url) as client:
        await client.jetstream.add_stream(StreamConfig(name="S", subjects=["S.>"], allow_direct=True))
        for start in range(0, count, BATCH):
            some = range(start, min(start + BATCH, count))
            acks = [await client.jetstream.publish_async(f"S.{number % 10}", b"x" * 128) for number in some]
            await asyncio.gather(*acks)


def scanned(reader: pa.RecordBatchReader) -> tuple[int, int]:
    """Return the number of rows, and the largest number of bytes of Arrow data that were alive."""
    rows = most = 0
    for batch in reader:
        rows += batch.num_rows
        most = max(most, pa.total_allocated_bytes())
    return rows, most


def show(name: str, read: Callable[[], Any]) -> None:
    began = time.perf_counter()
    rows, most = read()
    seconds = time.perf_counter() - began
    memory = f"  {most / 1e6:6.1f} MB" if most else ""
    print(f"{name:44} {rows:>9,} rows in {seconds:6.2f} s  {rows / seconds:>12,.0f} rows/s{memory}", flush=True)


def measure(client: sync.SyncClient, where: str, count: int, **filters: Any) -> None:
    show(f"{where}: scan", lambda: scanned(client.scan("S", **filters)))
    show(f"{where}: to_arrow", lambda: (client.to_arrow("S", **filters).num_rows, 0))
    show(f"{where}: to_arrow, seq and data", lambda: (client.to_arrow("S", ["seq", "data"], **filters).num_rows, 0))
    tenth = {**filters, "subject": "S.3"}
    show(f"{where}: to_arrow, one subject of ten", lambda: (client.to_arrow("S", **tenth).num_rows, 0))
    last = {**filters, "first_seq": count - 999}
    show(f"{where}: to_arrow, the last 1,000", lambda: (client.to_arrow("S", **last).num_rows, 0))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--nats", type=int, default=50_000, help="messages that are read through NATS")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        server = Server(Kind.OURS, Path(directory) / "store")
        server.start()
        try:
            asyncio.run(publish(server.url, given.messages))
            with sync.connect(server.url) as client:
                measure(client, "NATS", given.nats, source="nats", last_seq=given.nats)
                measure(client, "uncompacted segments", given.messages, source="lake")
                lake = str(server.store / "lake")
                command = [sys.executable, "-m", "lakestream.cli.main", "compact", "--once", "--lake", lake]
                subprocess.run(command, check=True, capture_output=True)
                measure(client, "table", given.messages, source="lake")
        finally:
            server.kill()


if __name__ == "__main__":
    main()
