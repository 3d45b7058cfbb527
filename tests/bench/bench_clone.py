"""Measure how long a mirror of a large stream takes when it begins as a clone, and what it costs.

    python -m tests.bench.bench_clone [--messages 5000000] [--subjects 10] [--keep DIR]

Starts `lakestream up` on a temporary store (or on DIR, which is kept for another run), fills a stream with messages of
128 bytes and waits until its table has them all. Then it makes a mirror and prints, as JSON, the seconds from the
request to the first SQL query that sees all messages in the mirror's table, to the first direct get, and to the first
message of a consumer with a filter; the bytes of the data files in the mirror's table, of its log, and of what the
server keeps beside its own log; the CPU seconds that server and compactor took; and the longest time that a ping waited
for its pong meanwhile. The mirror is deleted again. Needs Java 17 or newer.

Figures: docs/mirrors.md
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from lakestream.lake.table.at import latest_progress
from tests.wire import Wire, pub

BIN = Path(sys.executable).parent
READY = b"Listening for client connections on "
BURST = 10_000
LOOK_S = 0.05
SIZE = 128


def state(wire: Wire, name: str) -> dict[str, Any]:
    """Return the state in STREAM.INFO; {} while there is no such stream."""
    found: dict[str, Any] = wire.api(f"STREAM.INFO.{name}").get("state", {})
    return found


def fill(wire: Wire, messages: int, subjects: int) -> None:
    """Fill the stream BIG up to `messages`; each burst waits for the ack of its last one."""
    if not state(wire, "BIG"):
        wire.api("STREAM.CREATE.BIG", {"name": "BIG", "subjects": ["big.*"], "allow_direct": True})
    for first in range(state(wire, "BIG")["last_seq"] + 1, messages + 1, BURST):
        last = min(first + BURST, messages + 1) - 1
        reply = wire.new_reply()
        some = [pub(f"big.{number % subjects}", b"%0128d" % number) for number in range(first, last)]
        wire.send(b"".join([*some, pub(f"big.{last % subjects}", b"%0128d" % last, reply)]))
        assert b'"seq"' in wire.message(reply).data


def until_in_table(table: Path, messages: int) -> None:
    """Wait until a table holds the whole stream."""
    while (found := latest_progress(str(table)) if (table / "_delta_log").exists() else None) is None or (
        found.last_seq < messages
    ):
        time.sleep(LOOK_S)  # another process commits


def until_ready(wire: Wire, lake: Path) -> None:
    """Wait until the compactor runs, and has removed the files of an earlier run."""
    wire.api("STREAM.DELETE.COPY")
    wire.api("STREAM.CREATE.READY", {"name": "READY", "subjects": ["ready"]})
    reply = wire.new_reply()
    wire.send(pub("ready", b"", reply))
    until_in_table(lake / "streams" / "READY", wire.message(reply).json()["seq"])
    while (lake / "streams" / "COPY").exists():
        time.sleep(LOOK_S)


def count(table: Path) -> int:
    """Return the number of messages that SQL finds in a table; 0 while the stream has none."""
    from deltalake import DeltaTable, QueryBuilder

    try:
        delta = DeltaTable(str(table))
        if delta.metadata().configuration.get("lakestream.stream") != "COPY":
            return 0
        query = (
            QueryBuilder().register("t", delta).execute("SELECT count(*) AS n FROM t WHERE octet_length(subject) > 0")
        )
        found: int = query.read_all().column("n")[0].as_py()
    except Exception:  # while it is being created
        return 0
    return found


def cpu(process: psutil.Process) -> float:
    """Return the CPU seconds of a process tree."""
    return sum(sum(each.cpu_times()[:4]) for each in [process, *process.children(recursive=True)])


def size_of(directory: Path, pattern: str, log: bool = False) -> int:
    """Return the bytes of the files below a directory."""
    files = [path for path in directory.rglob(pattern) if path.is_file()]
    return sum(path.stat().st_size for path in files if ("_delta_log" in path.parts) == log)


async def measure(address: tuple[str, int], store: Path, messages: int, parent: psutil.Process) -> dict[str, Any]:
    """Create the mirror, and measure the time until each kind of read works."""
    table = store / "lake" / "streams" / "COPY"
    figures: dict[str, Any] = {}
    longest = 0.0

    def query(began: float) -> None:
        while count(table) < messages:
            time.sleep(LOOK_S)
        figures["first_sql_s"] = round(time.perf_counter() - began, 2)

    def get(began: float) -> None:
        with Wire(address, timeout=120) as wire:
            while not wire.request("$JS.API.DIRECT.GET.COPY", b'{"seq":%d}' % (messages // 2)).data:
                time.sleep(LOOK_S)
        figures["first_direct_get_s"] = round(time.perf_counter() - began, 2)

    def consume(began: float) -> None:
        with Wire(address, timeout=120) as wire:
            sid = wire.subscribe("out")
            config = {
                "deliver_subject": "out",
                "deliver_policy": "all",
                "ack_policy": "none",
                "filter_subject": "big.1",
            }
            wire.api("CONSUMER.CREATE.COPY", {"stream_name": "COPY", "config": config})
            wire.delivered(sid)
        figures["first_delivery_s"] = round(time.perf_counter() - began, 2)

    with Wire(address, timeout=120) as wire:
        before, began = cpu(parent), time.perf_counter()
        wire.api("STREAM.CREATE.COPY", {"name": "COPY", "mirror": {"name": "BIG"}, "allow_direct": True})
        figures["created_s"] = round(time.perf_counter() - began, 3)
        work = [asyncio.create_task(asyncio.to_thread(each, began)) for each in (query, get, consume)]
        while not all(each.done() for each in work):
            asked = time.perf_counter()
            await asyncio.to_thread(wire.ping)
            longest = max(longest, time.perf_counter() - asked)
            await asyncio.sleep(0.005)
        await asyncio.gather(*work)
        figures |= {"longest_pong_s": round(longest, 3), "cpu_s": round(cpu(parent) - before, 2)}
        assert state(wire, "COPY")["messages"] == messages
        own = store / "jetstream" / "$G" / "streams" / "COPY"
        figures |= {
            "new_data_bytes": size_of(table, "*.parquet"),
            "clone_log_bytes": size_of(table, "*", log=True),
            "beside_the_log_bytes": size_of(own / "base", "*"),
        }
        wire.api("STREAM.DELETE.COPY", {})
    return figures


def main() -> None:
    """Run one server with its compactor and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=5_000_000)
    parser.add_argument("--subjects", type=int, default=10)
    parser.add_argument("--keep", type=Path, help="a store that is made, or used again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        store = options.keep or Path(temporary)
        process = subprocess.Popen(
            [str(BIN / "lakestream"), "up", "-a", "127.0.0.1", "-p", "-1", "-sd", str(store)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            assert process.stderr is not None
            host, port = next(line.split(READY)[1].decode().strip() for line in process.stderr if READY in line).split(
                ":"
            )
            address = (host, int(port))
            with Wire(address, timeout=120) as wire:
                fill(wire, options.messages, options.subjects)
                until_in_table(store / "lake" / "streams" / "BIG", options.messages)
                until_ready(wire, store / "lake")
            figures = asyncio.run(measure(address, store, options.messages, psutil.Process(process.pid)))
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(120)
    print(json.dumps({"messages": options.messages, "subjects": options.subjects, **figures}, indent=1))


if __name__ == "__main__":
    main()
