"""Measure live reads: a flush, and opening and reading a live view.

    python -m tests.bench.bench_live [--messages 200000]

A real server on 127.0.0.1 with a store in a temporary directory, 128-byte messages, ten subjects. Nothing is compacted:
the whole stream is tail.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import nats

from lakestream.lake.read.flush import Flusher
from lakestream.lake.read.live import open_view
from tests.servers import Kind, Server

BATCH = 1000


async def publish(url: str, count: int) -> None:
    client = await nats.connect(url)
    js = client.jetstream()
    for start in range(0, count, BATCH):
        acks = [await js.publish_async(f"S.{number % 10}", b"x" * 128) for number in range(start, start + BATCH)]
        await asyncio.gather(*acks)
    await client.close()


async def prepare(url: str) -> None:
    client = await nats.connect(url)
    await client.jetstream().add_stream(name="S", subjects=["S.>"])
    await client.close()


def timed(times: int, work: Any) -> str:
    """Return median and maximum duration of some calls, in ms."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        found.append((time.perf_counter() - began) * 1000)
    return f"median {statistics.median(found):8.1f} ms, worst {max(found):8.1f} ms"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=200_000)
    count = parser.parse_args().messages
    with tempfile.TemporaryDirectory() as directory:
        server = Server(Kind.OURS, Path(directory) / "store")
        server.start()
        lake = str(server.store / "lake")
        try:
            asyncio.run(prepare(server.url))
            with Flusher([[server.url]]) as flusher:
                asyncio.run(publish(server.url, BATCH))
                flusher.flush("S")
                print("flush without news      ", timed(50, lambda: flusher.flush("S")))

                def news() -> None:
                    asyncio.run(publish(server.url, BATCH))
                    began = time.perf_counter()
                    flusher.flush("S")
                    took.append((time.perf_counter() - began) * 1000)

                took: list[float] = []
                for _ in range(20):
                    news()
                print(f"flush of 1,000 messages  median {statistics.median(took):8.1f} ms, worst {max(took):8.1f} ms")
            asyncio.run(publish(server.url, count))
            print("open a view, flushing   ", timed(20, lambda: open_view(lake, "S")))
            print("open a view, no flush   ", timed(20, lambda: open_view(lake, "S", flush=False)))
            view = open_view(lake, "S")
            began = time.perf_counter()
            rows = sum(batch.num_rows for batch in view.tail_batches())
            print(
                f"read its tail            {rows / (time.perf_counter() - began):,.0f} messages/s ({rows:,} messages)"
            )
        finally:
            server.kill()


if __name__ == "__main__":
    main()
