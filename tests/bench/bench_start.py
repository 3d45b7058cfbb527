"""Measure how fast the server starts and stops, and its memory at rest.

    python -m tests.bench.bench_start [--rounds 7] [--streams 300] [--messages 10] [--uncached] [--settle 2] [--plain]
    python -m tests.bench.bench_start --parts

Starts `lakestream serve` (and nats-server beside it, in turn) on a store and prints, as JSON, the medians of: the time
from exec to the log line `Server is ready`, the CPU time until then, the resident memory after `--settle` seconds, the
time from SIGTERM to the end, and from SIGTERM to the answer of a server that is started again on the same port. With
`--streams` the store has that many streams with messages in each. `--plain` starts without JetStream. `--uncached`
starts lakestream without bytecode. `--parts` prints what the parts of a server add to its memory, in the order in which
they are imported.

Figures: the table, docs/benchmarks.md#start-and-memory
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests.servers import Kind, Server
from tests.wire import Wire

BIN = Path(sys.executable).parent
READY = b"Server is ready"
PARTS = (
    ("Python", ()),
    ("OpenSSL", ("ssl", "hashlib")),
    ("asyncio and uvloop", ("asyncio", "uvloop")),
    ("msgspec, other libraries", ("msgspec", "json", "random", "secrets", "ctypes")),
    ("command line, options, protocol, compiled module", ("lakestream.cli.main", "lakestream.cli.serve")),
    ("log", ("lakestream.log.store.store",)),
    ("streams and consumers", ("lakestream.stream.assembly",)),
    ("meta layer, JetStream API", ("lakestream.account.engines", "lakestream.account.api.system")),
    ("connections, accounts", ("lakestream.net.connection", "lakestream.net.listener")),
    ("system account", ("lakestream.ops.system.system",)),
    ("lake", ("lakestream.server.lake.keeper",)),
    ("assembly", ("lakestream.server.node",)),
)
"""Parts of a server in the order of their imports; each has only what those before it lack."""
_PARTS = """
import importlib, json, sys

def resident():
    with open("/proc/self/smaps_rollup") as stream:
        return next(int(line.split()[1]) for line in stream if line.startswith("Rss:")) / 1024

sizes = []
for modules in json.loads(sys.argv[1]):
    for module in modules:
        importlib.import_module(module)
    sizes.append(resident())
print(json.dumps(sizes))
"""


class Start(NamedTuple):
    """One start: seconds to ready, CPU seconds until then, MiB at rest, seconds of the stop and of a restart."""

    start_to_ready_s: float
    start_cpu_s: float
    rest_mib: float
    stop_s: float
    restart_s: float


def started(
    program: list[str], store: str, port: int, environment: dict[str, str], log: int = subprocess.PIPE
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*program, "-a", "127.0.0.1", "-p", str(port), *(("-js", "-sd", store) if store else ())],
        stderr=log,
        start_new_session=True,
        env=os.environ | environment,
    )


def stopped(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGTERM)
    if process.stderr is not None:
        process.stderr.read()
    process.wait(60)


def answers(port: int) -> bool:
    """Return True once the server answers a client."""
    try:
        with Wire(("127.0.0.1", port), None) as wire:
            wire.ping()
    except OSError:
        return False
    return True


def once(program: list[str], store: str, settle_s: float, environment: dict[str, str]) -> Start:
    """Start and stop one server, start it again and stop it. Without a store it has no JetStream."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    began = time.perf_counter()
    process = started(program, store, port, environment)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if READY in line:
                break
        else:
            raise SystemExit(f"{program[0]} ended before it was ready")
        ready = time.perf_counter() - began
        tasks = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
        cpu = sum(int(task.read_text().split()[0]) for task in tasks) / 1e9
        time.sleep(settle_s)  # the server is to be at rest, which causes no event
        status = Path(f"/proc/{process.pid}/status").read_text()
        rss = next(int(row.split()[1]) for row in status.splitlines() if row.startswith("VmRSS")) / 1024
    finally:
        asked = time.perf_counter()
        stopped(process)
        ended = time.perf_counter()
    again = started(program, store, port, environment, subprocess.DEVNULL)
    try:
        while not answers(port):
            time.sleep(0.01)  # as a client that reconnects
        restarted = time.perf_counter()
    finally:
        stopped(again)
    return Start(ready, cpu, rss, ended - asked, restarted - asked)


def populate(kind: Kind, store: Path, streams: int, messages: int) -> None:
    """Create the streams, with the messages in each and a consumer."""
    server = Server(kind, store)
    server.start()
    try:
        with Wire(server.address, None) as wire:
            for number in range(streams):
                config = {"name": f"S{number}", "subjects": [f"s{number}.>"], "storage": "file"}
                answer = wire.api(f"STREAM.CREATE.S{number}", config)
                assert "error" not in answer, answer
                consumer = {"stream_name": f"S{number}", "config": {"durable_name": "c", "ack_policy": "explicit"}}
                wire.api(f"CONSUMER.CREATE.S{number}.c", consumer)
                for _ in range(messages):
                    wire.request(f"s{number}.a", b"x" * 100)
    finally:
        server.stop()


def parts() -> dict[str, float]:
    """Return the MiB that each part adds to the resident memory of a process."""
    command = [sys.executable, "-c", _PARTS, json.dumps([modules for _, modules in PARTS])]
    sizes = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    added = [new - old for old, new in zip([0.0, *sizes], sizes, strict=False)]
    return {name: round(size, 1) for (name, _), size in zip(PARTS, added, strict=True)} | {"sum": round(sizes[-1], 1)}


def main() -> None:
    """Measure both servers in turn and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--settle", type=float, default=2.0, help="seconds at rest before memory is read")
    parser.add_argument("--streams", type=int, default=0, help="streams on the store (default: none)")
    parser.add_argument("--messages", type=int, default=10, help="messages of each (default: 10)")
    parser.add_argument("--plain", action="store_true", help="without JetStream")
    parser.add_argument("--uncached", action="store_true", help="without cached bytecode")
    parser.add_argument("--parts", action="store_true", help="only the memory of each part")
    options = parser.parse_args()
    if options.parts:
        print(json.dumps(parts(), indent=1))
        return
    environment = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": "/nonexistent"} if options.uncached else {}
    programs = {
        Kind.OURS: [str(BIN / "lakestream"), "serve"],
        Kind.REAL: [str(BIN / "nats-server")],
    }
    figures: dict[str, list[Start]] = {kind.value: [] for kind in programs}
    with tempfile.TemporaryDirectory() as place:
        stores = {kind: Path(place) / kind.value for kind in programs}
        for kind, store in stores.items():
            if options.streams:
                populate(kind, store, options.streams, options.messages)
        for _ in range(options.rounds):
            for kind, program in programs.items():
                store = "" if options.plain else str(stores[kind])
                figures[kind.value].append(once(program, store, options.settle, environment))
    print(
        json.dumps(
            {
                name: {
                    field: round(statistics.median(column), 3)
                    for field, column in zip(Start._fields, zip(*rows, strict=True), strict=True)
                }
                for name, rows in figures.items()
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
