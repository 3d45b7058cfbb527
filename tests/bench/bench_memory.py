"""Measure the memory of a server and its compactor: before a load, after it, in the table, and at rest.

    python -m tests.bench.bench_memory [--messages 1000000] [--rest 120]

A real `lakestream up` with a store in a temporary directory, 100-byte messages, 100 subjects. Figures in MiB: RSS, in
parentheses the private part (without the code of libraries, which the system shares and can drop).

Figures: docs/sizing.md
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

import nats
import psutil

from tests.servers import Kind, program

WINDOW = 20_000
"""Messages in flight."""
READY_S = 60.0


def figure(process: psutil.Process) -> str:
    memory = process.memory_full_info()
    return f"{memory.rss >> 20} ({memory.uss >> 20})"


def show(stage: str, server: psutil.Process) -> None:
    """Print the memory of the server, of the compactor's JVM, and of its Python processes together."""
    children = server.children(recursive=True)
    java = [each for each in children if "java" in each.name()]
    workers = sum(each.memory_info().rss for each in children if each not in java) >> 20
    jvm = ", ".join(figure(each) for each in java) or "-"
    print(f"{stage:22} server {figure(server):>12}   JVM {jvm:>12}   Python {workers:5}", flush=True)


async def publish(url: str, count: int) -> None:
    client = await nats.connect(url)
    js = client.jetstream(publish_async_max_pending=WINDOW)
    await js.add_stream(name="S", subjects=["s.>"])
    for start in range(0, count, WINDOW):
        some = range(start, min(start + WINDOW, count))
        await asyncio.gather(*[await js.publish_async(f"s.{number % 100}", b"x" * 100) for number in some])
    await client.close()


def wait_until_compacted(page: str) -> None:
    while True:
        with urllib.request.urlopen(page) as answer:
            if json.load(answer)["lake"]["lag"].get("S") == 0:
                return
        time.sleep(1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rest", type=int, default=120, metavar="SECONDS")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        command = [program(Kind.OURS)[0], "up", "-a", "127.0.0.1", "-p", "-1", "-m", "-1", "-sd", f"{directory}/data"]
        with log.open("wb") as stream:
            up = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, cwd=directory)
        try:
            deadline = time.monotonic() + READY_S
            while "compactor ready" not in (text := log.read_text()):
                if time.monotonic() > deadline or up.poll() is not None:
                    raise SystemExit(f"the compactor is not ready:\n{text}")
                time.sleep(0.1)
            (port,) = re.findall(r"client connections on 127\.0\.0\.1:(\d+)", text)
            (http,) = re.findall(r"http monitor on 127\.0\.0\.1:(\d+)", text)
            server = psutil.Process(up.pid)
            show("before", server)
            asyncio.run(publish(f"nats://127.0.0.1:{port}", options.messages))
            show(f"{options.messages:,} published", server)
            wait_until_compacted(f"http://127.0.0.1:{http}/varz")
            show("in the table", server)
            time.sleep(options.rest)
            show(f"after {options.rest} s at rest", server)
        finally:
            os.kill(up.pid, signal.SIGTERM)
            up.wait()


if __name__ == "__main__":
    main()
