#!/usr/bin/env python3
"""Measure a cluster of three: ours and nats-server's, in alternating rounds on the same machine.

    python -m tests.bench.bench_cluster publish [--rounds 3] [--scale 1.0] [--size 3] [--only default,always,ours]
    python -m tests.bench.bench_cluster idle [--streams 500] [--seconds 20]
    python -m tests.bench.bench_cluster failover [--rounds 5]
    python -m tests.bench.bench_cluster grow [--messages 1000000] [--compact]
    python -m tests.bench.bench_cluster          a short run of all of them

`publish`: R3 publishing through one node (asynchronous, one at a time, 64 clients), and the processor time that the
leader and its followers spend on a message. `--wirebench FILE` lets that program do the publishing instead.
`idle`: the processor time of nodes that hold many R3 streams in which nothing happens.
`failover`: how long a publisher waits after kill -9 of the leader.
`grow`: how long a stream of one replica takes to get three, and the bytes that go between nodes meanwhile; with
`--compact` the stream is in the lake first (needs Java).
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.nodes import Cluster, Node, until
from tests.servers import Kind
from tests.wire import Wire

ROOT = Path(__file__).resolve().parents[2]

VARIANTS = {
    "default": (Kind.REAL, False),  # acks before it syncs
    "always": (Kind.REAL, True),  # sync_interval: always
    "ours": (Kind.OURS, False),
}
TICKS_S = os.sysconf("SC_CLK_TCK")
WINDOW = 4000
CLIENTS = 64
ACKED = b'"seq":'


def chosen(options: argparse.Namespace) -> list[tuple[Kind, bool]]:
    """Return the kinds of cluster that were asked for."""
    return [VARIANTS[name] for name in options.only.split(",")]


@contextmanager
def cluster(kind: Kind, size: int = 3, **options: Any) -> Iterator[Cluster]:
    """Yield a cluster on empty stores; stop it afterwards."""
    with tempfile.TemporaryDirectory(prefix="bench-cluster-") as directory:
        made = Cluster(kind, Path(directory), size, **options)
        try:
            yield made.start()
        finally:
            made.kill()


def processor_s(node: Node) -> float:
    """Return the processor seconds that a node's process has used."""
    assert node.process is not None
    fields = Path(f"/proc/{node.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_S


# ---------------------------------------------------------------------------------------------------- publish


class Client:
    """Connection that only counts answers, made for load."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.inbox = b"_INBOX.b%x" % id(self)
        hello = b'CONNECT {"verbose":false,"protocol":1,"headers":true,"no_responders":true}\r\n'
        self.socket.sendall(hello + b"SUB %s.* 1\r\nPING\r\n" % self.inbox)
        seen = b""
        while b"PONG\r\n" not in seen:
            seen += self._receive()
        self._rest = b""

    def _receive(self) -> bytes:
        data = self.socket.recv(1 << 20)
        if not data:
            raise ConnectionError("the server closed the connection")
        if b"PING\r\n" in data:
            self.socket.sendall(b"PONG\r\n")
        return data

    def publish(self, subject: bytes, size: int, count: int) -> None:
        """Send `count` messages that want acks."""
        frame = b"PUB %s %s.1 %d\r\n%s\r\n" % (subject, self.inbox, size, b"x" * size)
        self.socket.sendall(frame * count)

    def answers(self) -> int:
        """Wait for data; return the number of acks that are complete."""
        data = self._rest + self._receive()
        self._rest = data[-len(ACKED) + 1 :] if not data.endswith(ACKED) else b""
        if b'"error"' in data:
            raise RuntimeError(data[:300].decode("latin-1"))
        return data.count(ACKED)

    def close(self) -> None:
        """Close it."""
        self.socket.close()


def asynchronous(address: tuple[str, int], size: int, count: int) -> float:
    """Return acked messages a second, with thousands in flight."""
    client = Client(address)
    chunk = WINDOW // 4
    began = time.perf_counter()
    sent = acked = 0
    while acked < count:
        while sent < count and sent - acked <= WINDOW - chunk:
            client.publish(b"bench.a", size, min(chunk, count - sent))
            sent += min(chunk, count - sent)
        acked += client.answers()
    rate = count / (time.perf_counter() - began)
    client.close()
    return rate


def one_at_a_time(address: tuple[str, int], count: int) -> float:
    """Return the median microseconds until the ack."""
    client = Client(address)
    times = []
    for _ in range(count):
        began = time.perf_counter()
        client.publish(b"bench.s", 128, 1)
        while not client.answers():
            pass
        times.append(time.perf_counter() - began)
    client.close()
    return statistics.median(times) * 1e6


def many_clients(address: tuple[str, int], each: int) -> float:
    """Return acked messages a second of 64 clients with one message in flight each."""
    clients = [Client(address) for _ in range(CLIENTS)]
    left = dict.fromkeys(clients, each)
    with selectors.DefaultSelector() as selector:
        began = time.perf_counter()
        for client in clients:
            selector.register(client.socket, selectors.EVENT_READ, client)
            client.publish(b"bench.m", 128, 1)
        while any(left.values()):
            for key, _ in selector.select():
                client = key.data
                if client.answers():
                    left[client] -= 1
                    if left[client]:
                        client.publish(b"bench.m", 128, 1)
        rate = CLIENTS * each / (time.perf_counter() - began)
    for client in clients:
        client.close()
    return rate


def publish_once(made: Cluster, scale: float) -> dict[str, float]:
    """Run all workloads through node n1; return the figures by name."""
    made.stream("BENCH", ["bench.*"], min(len(made.nodes), 5))
    address = (made.nodes[0].host, made.nodes[0].wanted_port)
    leader = made.stream_leader("BENCH")
    figures: dict[str, float] = {}
    for size, count in ((128, int(100_000 * scale)), (1024, int(50_000 * scale))):
        before = {node.name: processor_s(node) for node in made.nodes}
        figures[f"js_async_{size}B_msgs_s"] = asynchronous(address, size, count)
        used = {node.name: (processor_s(node) - before[node.name]) / count * 1e6 for node in made.nodes}
        followers = [seconds for name, seconds in used.items() if name != leader.name]
        figures[f"leader_{size}B_us_a_message"] = used[leader.name]
        figures[f"follower_{size}B_us_a_message"] = statistics.mean(followers)
    figures["js_sync_p50_us"] = one_at_a_time(address, int(3000 * scale))
    figures["js_sync64_msgs_s"] = many_clients(address, int(300 * scale))
    figures["leader_is_n1"] = float(leader is made.nodes[0])
    return figures


def wirebench_once(program: str, made: Cluster, scale: float) -> dict[str, float]:
    """Run the workloads of the wirebench program; return the figures by name."""
    node = made.nodes[0]
    command = [sys.executable, program, "run", "--url", f"{node.host}:{node.wanted_port}", "--replicas", "3"]
    command += ["--only", "js_async,js_sync,js_sync_many", "--scale", str(scale)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {name: value for name, value in json.loads(done.stdout).items() if isinstance(value, int | float)}


def publish(options: argparse.Namespace) -> None:
    """Measure publishing in alternating rounds; print medians, and the ratio of ours to the others."""
    names = options.only.split(",")
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for turn in range(options.rounds):
        for name in names:
            kind, durable = VARIANTS[name]
            with cluster(kind, options.size, durable=durable) as made:
                if options.wirebench:
                    figures = wirebench_once(options.wirebench, made, options.scale)
                else:
                    figures = publish_once(made, options.scale)
            print(f"round {turn + 1} {name}: " + ", ".join(f"{k} {v:,.1f}" for k, v in figures.items()), flush=True)
            rounds[name].append(figures)
    keys = list(dict.fromkeys(key for taken in rounds.values() for figures in taken for key in figures))
    print(f"{'median of ' + str(options.rounds):34}" + "".join(f"{name:>14}" for name in names) + "  ours/always")
    for key in keys:
        medians = {name: statistics.median(f[key] for f in taken if key in f) for name, taken in rounds.items()}
        both = {"ours", "always"} <= medians.keys() and medians["always"]
        ratio = f"{medians['ours'] / medians['always']:12.2f}" if both else ""
        print(f"{key:34}" + "".join(f"{medians[name]:14,.1f}" for name in names) + ratio)


# ---------------------------------------------------------------------------------------------------- idle


def idle(options: argparse.Namespace) -> None:
    """Measure the share of a core that each node uses, without streams and with many."""
    for kind, durable in chosen(options):
        with cluster(kind, durable=durable) as made:
            for count in (0, options.streams):
                began = time.perf_counter()
                for number in range(count):
                    body = {"name": f"I{number}", "subjects": [f"i.{number}"], "num_replicas": 3}
                    made.ask(f"STREAM.CREATE.I{number}", body)
                if count:
                    made.wait_current(f"I{count - 1}")
                    print(f"  {count} streams made in {time.perf_counter() - began:.1f} s")
                time.sleep(5)  # let the work after their creation finish
                before = [processor_s(node) for node in made.nodes]
                time.sleep(options.seconds)
                shares = [(processor_s(n) - b) / options.seconds for n, b in zip(made.nodes, before, strict=True)]
                print(f"{kind.value}: {count} idle R3 streams: " + ", ".join(f"{share:.1%}" for share in shares))


# ---------------------------------------------------------------------------------------------------- failover


def failover(options: argparse.Namespace) -> None:
    """Measure the seconds from kill -9 of the leader to the next ack, for a client of another node that retries."""
    for kind, durable in chosen(options):
        times = []
        with cluster(kind, durable=durable) as made:
            made.stream("BENCH", ["bench.*"])
            for _ in range(options.rounds):
                leader = made.stream_leader("BENCH")
                leader.kill()
                began = time.perf_counter()
                with made.wire(made.others(leader)[0]) as wire:
                    until(lambda wire=wire: _acked(wire), "an ack")
                times.append(time.perf_counter() - began)
                leader.start()
                made.wait_ready()
                made.wait_current("BENCH")
        print(f"{kind.value}: back after kill -9: median {statistics.median(times):.2f} s, worst {max(times):.2f} s")


def _acked(wire: Wire) -> bool:
    return b'"seq"' in wire.request("bench.f", b"x", timeout=0.25).data


# ---------------------------------------------------------------------------------------------------- grow


def grow(options: argparse.Namespace) -> None:
    """Measure the change from one replica to three, with many messages in the stream."""
    for kind, durable in chosen(options):
        with tempfile.TemporaryDirectory(prefix="bench-lake-") as lake:
            ours = kind is Kind.OURS
            extra = f"lake {{ url: '{lake}/lake' }}" if ours else ""
            with cluster(kind, durable=durable, links=True, config=extra) as made:
                made.stream("BENCH", ["bench.*"], 1)
                holder = made.stream_leader("BENCH")
                asynchronous((holder.host, holder.wanted_port), 128, options.messages)
                if options.compact and ours:
                    compact(f"{lake}/lake", made)
                size = sum(path.stat().st_size for path in holder.store.rglob("*") if path.is_file())
                before = made.carried
                began = time.perf_counter()
                made.ask("STREAM.UPDATE.BENCH", {"name": "BENCH", "subjects": ["bench.*"], "num_replicas": 3})
                until(lambda made=made: len(made.followers("BENCH")) == 2, "two followers", 600)
                made.wait_current("BENCH", 600)
                took = time.perf_counter() - began
                moved = made.carried - before
        share = f"{moved / 2 / (128 * options.messages):.1%} of the payload for each new replica"
        print(f"{kind.value}: {options.messages:,} messages, R1 to R3 in {took:.1f} s, {moved:,} bytes, {share}")
        print(f"  the store of the first replica: {size:,} bytes")


def compact(lake: str, made: Cluster) -> None:
    """Compact the sealed segments, and wait until the node has released them."""
    lakestream = Path(sys.executable).with_name("lakestream")
    subprocess.run([str(lakestream), "compact", "--once", "--lake", lake], check=True, capture_output=True)
    time.sleep(5)  # the server polls the lake's tables


# ----------------------------------------------------------------------------------------------------


def short(options: argparse.Namespace) -> None:
    """Run all measurements briefly."""
    for run, arguments in (
        (publish, {"rounds": 1, "scale": 0.3, "size": 3, "wirebench": ""}),
        (idle, {"streams": 100, "seconds": 5}),
        (failover, {"rounds": 2}),
        (grow, {"messages": 100_000, "compact": False}),
    ):
        print(f"-- {run.__name__}")
        run(argparse.Namespace(only="ours,always", **arguments))


def main() -> int:
    """Run the measurements of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.set_defaults(run=short)
    commands = parser.add_subparsers()

    def command(run: Callable[[argparse.Namespace], None], only: str) -> argparse.ArgumentParser:
        made = commands.add_parser(run.__name__, help=(run.__doc__ or "").splitlines()[0])
        made.set_defaults(run=run)
        made.add_argument("--only", default=only, help=f"of {', '.join(VARIANTS)}, with commas (default: {only})")
        return made

    made = command(publish, "default,always,ours")
    made.add_argument("--rounds", type=int, default=3, help="how often each cluster is started (default: 3)")
    made.add_argument("--scale", type=float, default=1.0, help="of the number of messages (default: 1.0)")
    made.add_argument("--size", type=int, default=3, help="nodes (default: 3)")
    made.add_argument("--wirebench", default="", metavar="FILE", help="wirebench.py, which then does the publishing")
    made = command(idle, "ours,always")
    made.add_argument("--streams", type=int, default=500, help="R3 streams (default: 500)")
    made.add_argument("--seconds", type=float, default=20.0, help="how long to look (default: 20)")
    made = command(failover, "ours,always")
    made.add_argument("--rounds", type=int, default=5, help="kills (default: 5)")
    made = command(grow, "ours,always")
    made.add_argument("--messages", type=int, default=1_000_000, help="in the stream (default: 1,000,000)")
    made.add_argument("--compact", action="store_true", help="move them into the lake first")
    options = parser.parse_args()
    options.run(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
