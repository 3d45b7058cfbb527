"""Compare a server of several worker processes with one of a single process.

    python -m tests.bench.bench_workers [--workers N] [--clients N] [--messages N] [--rounds N] [--only js_async,pubsub]

Both run in turn, in the same rounds, on empty stores; the table shows medians. `rate` depends on what else the machine
does: clients and workers share its cores. Processor time does not: it is that of all processes of the server, threads
and kernel included, per message. Clients are processes of their own, each with a stream and a subject of its own;
`across` of them are connected to another worker than the one that holds their stream.

Figures: docs/internals/workers.md
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.servers import Kind, Server
from tests.wire import Wire, pub

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PAYLOAD = b"x" * 128
WINDOW = 1000


class Figures(NamedTuple):
    """Messages per second of all clients together, and the server's processor time of each message in µs."""

    rate: float
    cpu_us: float


def _processes(server: Server) -> list[int]:
    assert server.process is not None
    pid = server.process.pid
    return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def _cpu_s(server: Server) -> float:
    total = 0
    for pid in _processes(server):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total * TICK_S


def _js_async(number: int, address: tuple[str, int], messages: int, ready: Callable[[], object]) -> None:
    """Publish to a stream of one's own with `WINDOW` unanswered messages."""
    wire = Wire(address, timeout=120)
    reply = wire.new_reply()
    wire.ping()
    frames = pub(f"s{number}.a", PAYLOAD, reply) * (WINDOW // 2)
    mark = f"MSG {reply} ".encode()
    link = wire.socket
    link.settimeout(120)
    ready()
    sent = answered = 0
    rest = b""
    while answered < messages:
        if sent < messages and sent - answered <= WINDOW // 2:
            link.sendall(frames)
            sent += WINDOW // 2
        got = rest + link.recv(1 << 20)
        answered += got.count(mark)
        rest = got[-(len(mark) - 1) :]
    wire.close()


def _js_sync(number: int, address: tuple[str, int], messages: int, ready: Callable[[], object]) -> None:
    """Publish to a stream of one's own, one message at a time."""
    wire = Wire(address, timeout=120)
    wire.new_reply()
    wire.ping()
    ready()
    for _ in range(messages // 20):
        wire.request(f"s{number}.a", PAYLOAD)
    wire.close()


def _pubsub(number: int, address: tuple[str, int], messages: int, ready: Callable[[], object]) -> None:
    """Publish to a subscriber of one's own, which may be connected to another worker."""
    subscriber, publisher = Wire(address, timeout=120), Wire(address, timeout=120)
    subscriber.subscribe(f"p{number}")
    subscriber.ping()
    publisher.ping()
    frames = pub(f"p{number}", PAYLOAD) * 500
    mark = f"MSG p{number} ".encode()
    link = subscriber.socket
    link.settimeout(120)
    ready()
    sent = came = 0
    rest = b""
    while came < messages:
        if sent < messages and sent - came <= 2000:
            publisher.send(frames)
            sent += 500
        got = rest + link.recv(1 << 20)
        came += got.count(mark)
        rest = got[-(len(mark) - 1) :]
    subscriber.close()
    publisher.close()


WORKLOADS: dict[str, tuple[Callable[..., None], int]] = {
    "js_async": (_js_async, 1),
    "js_sync": (_js_sync, 20),
    "pubsub": (_pubsub, 1),
}


def _client(work: Callable[..., None], number: int, address: tuple[str, int], messages: int, ready: object) -> None:
    work(number, address, messages, ready.wait)  # type: ignore[attr-defined]


def measure(workers: int, name: str, clients: int, messages: int) -> Figures:
    """Run one workload with so many clients on a new server."""
    work, fraction = WORKLOADS[name]
    forking = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as directory:
        server = Server(Kind.OURS, Path(directory) / "store", args=["--workers", str(workers), "--no-lake"]).start()
        try:
            with Wire(server.address, timeout=30) as wire:
                for number in range(clients):
                    made = wire.api(f"STREAM.CREATE.S{number}", {"name": f"S{number}", "subjects": [f"s{number}.>"]})
                    assert "error" not in made, made
            ready = forking.Barrier(clients + 1)
            started = [
                forking.Process(target=_client, args=(work, number, server.address, messages, ready))
                for number in range(clients)
            ]
            for each in started:
                each.start()
            ready.wait()
            before, began = _cpu_s(server), time.perf_counter()
            for each in started:
                each.join()
                assert each.exitcode == 0
            took, used = time.perf_counter() - began, _cpu_s(server) - before
        finally:
            server.kill()
    total = clients * messages // fraction
    return Figures(total / took, used / total * 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--messages", type=int, default=50_000, help="of each client")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(WORKLOADS))
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {arguments.clients} clients")
    print(f"{'':10}{'workers':>8}{'msgs/s':>12}{'ratio':>8}{'CPU µs/msg':>12}{'ratio':>8}")
    for name in arguments.only:
        found: dict[int, list[Figures]] = {1: [], arguments.workers: []}
        for _ in range(arguments.rounds):
            for workers, rounds in found.items():
                rounds.append(measure(workers, name, arguments.clients, arguments.messages))
        first = Figures(*(statistics.median(column) for column in zip(*found[1], strict=True)))
        for workers, rounds in found.items():
            rate, cpu = (statistics.median(column) for column in zip(*rounds, strict=True))
            ratios = rate / first.rate, cpu / first.cpu_us
            print(f"{name:10}{workers:8}{rate:12,.0f}{ratios[0]:8.2f}{cpu:12.2f}{ratios[1]:8.2f}")


if __name__ == "__main__":
    main()
