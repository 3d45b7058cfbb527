#!/usr/bin/env python3
"""Measure a cluster of three: ours and nats-server's, in alternating rounds on the same machine.

    python -m tests.bench.bench_cluster idle [--only default,always,ours] [--streams 500] [--seconds 20]
    python -m tests.bench.bench_cluster failover [--rounds 5]
    python -m tests.bench.bench_cluster grow [--messages 1000000] [--compact]
    python -m tests.bench.bench_cluster many [--streams 1000]
    python -m tests.bench.bench_cluster          a short run of all of them

`idle`: the processor time of nodes that hold many R3 streams in which nothing happens.
`failover`: how long a publisher waits after kill -9 of the leader.
`grow`: how long a stream of one replica takes to get three, and the bytes that go between nodes meanwhile; with
`--compact` the stream is in the lake first (needs Java).
`many`: a burst of creates of R3 streams, with their answers by code; publishes over all of them, first one and then
many in flight; their idle cost; the restart after kill -9 of all nodes, until each stream takes a message.

Figures: docs/benchmarks.md#a-cluster-of-three
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.bench.load import Connection, blocks, pipelined, processor_s, publish
from tests.cluster.nodes import Cluster, Node, until
from tests.servers import Kind
from tests.wire import Wire

ROOT = Path(__file__).resolve().parents[2]

VARIANTS = {
    "default": (Kind.REAL, False),  # acks before it syncs
    "always": (Kind.REAL, True),  # sync_interval: always
    "ours": (Kind.OURS, False),
}


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


def used(node: Node) -> float:
    """Return the processor seconds that a node's process has used."""
    assert node.process is not None
    return processor_s(node.process.pid)


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
                before = [used(node) for node in made.nodes]
                time.sleep(options.seconds)
                shares = [(used(n) - b) / options.seconds for n, b in zip(made.nodes, before, strict=True)]
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
                with Connection((holder.host, holder.wanted_port)) as client:
                    frames = blocks(lambda n, client=client: publish(b"bench.a", client.inbox + b".1", b"x" * 128))
                    pipelined(client, frames, most=options.messages)
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


# ---------------------------------------------------------------------------------------------------- many


def many(options: argparse.Namespace) -> None:
    """Measure what many R3 streams cost: a burst of creates, publishes, idling, a restart."""
    for kind, durable in chosen(options):
        with cluster(kind, durable=durable) as made:
            made.wait_ready()
            count, nodes = options.streams, made.nodes
            bodies = [{"name": f"M{at}", "subjects": [f"m.{at}"], "num_replicas": 3} for at in range(count)]
            used_before, began = sum(map(used, nodes)), time.perf_counter()
            with made.wire(timeout=options.patience) as wire:
                answers = _burst(wire, [(f"$JS.API.STREAM.CREATE.{each['name']}", each) for each in bodies])
            took, cpu = time.perf_counter() - began, sum(map(used, nodes)) - used_before
            print(f"{kind.value}: {count} creates in a burst: {took:.1f} s, {cpu:.1f} s of processor time, {answers}")
            for at in range(count):  # those that were refused
                made.ask(f"STREAM.CREATE.M{at}", bodies[at])
            made.wait_current(f"M{count - 1}")
            for window, rounds in ((1, 1), (100, 5)):
                used_before = sum(map(used, nodes))
                with made.wire(timeout=options.patience) as wire:
                    took = _publishes(wire, [f"m.{at}" for at in range(count)] * rounds, window)
                cpu, msgs = sum(map(used, nodes)) - used_before, count * rounds
                print(
                    f"  {msgs} publishes, {window} in flight: {took:.2f} s, {msgs / took:.0f}/s, processor {cpu:.1f} s"
                )
            time.sleep(5)
            before = [used(node) for node in nodes]
            time.sleep(options.seconds)
            shares = [(used(node) - b) / options.seconds for node, b in zip(nodes, before, strict=True)]
            print("  idle: " + ", ".join(f"{share:.1%}" for share in shares))
            for node in nodes:
                node.kill()
            began = time.perf_counter()
            made.start()
            with made.wire(timeout=options.patience) as wire:
                for at in range(count):
                    until(lambda at=at: _stored(wire, f"m.{at}"), f"stream M{at}", options.patience)
            print(f"  restart after kill -9 of all nodes: {time.perf_counter() - began:.1f} s")


def _burst(wire: Wire, requests: list[tuple[str, object]]) -> dict[str, int]:
    """Send requests at once; return how many answers had which error code, "ok" for none."""
    wire.send(b"SUB burst.* 99\r\n")
    frames = []
    for at, (subject, body) in enumerate(requests):
        payload = json.dumps(body).encode()
        frames.append(b"PUB %b burst.%d %d\r\n%b\r\n" % (subject.encode(), at, len(payload), payload))
    wire.send(b"".join(frames))
    found: dict[str, int] = {}
    for _ in requests:
        error = json.loads(_message(wire)).get("error")
        name = "ok" if error is None else str(error["err_code"])
        found[name] = found.get(name, 0) + 1
    return found


def _publishes(wire: Wire, subjects: list[str], window: int) -> float:
    """Publish to each subject, with so many acks outstanding; return the seconds."""
    wire.send(b"SUB pa.* 98\r\n")
    began, waiting = time.perf_counter(), 0
    for subject in subjects:
        wire.send(b"PUB %b pa.1 1\r\nx\r\n" % subject.encode())
        waiting += 1
        if waiting == window:
            _check_ack(wire)
            waiting -= 1
    for _ in range(waiting):
        _check_ack(wire)
    return time.perf_counter() - began


def _check_ack(wire: Wire) -> None:
    answer = _message(wire)
    assert b'"seq"' in answer, answer


def _message(wire: Wire) -> bytes:
    return wire.next(lambda frame: frame.verb in ("MSG", "HMSG")).data


def _stored(wire: Wire, subject: str) -> bool:
    return b'"seq"' in wire.request(subject, b"x", timeout=2).data


# ----------------------------------------------------------------------------------------------------


def short(options: argparse.Namespace) -> None:
    """Run all measurements briefly."""
    for run, arguments in (
        (idle, {"streams": 100, "seconds": 5}),
        (failover, {"rounds": 2}),
        (grow, {"messages": 100_000, "compact": False}),
        (many, {"streams": 100, "seconds": 5, "patience": 60}),
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

    made = command(idle, "ours,always")
    made.add_argument("--streams", type=int, default=500, help="R3 streams (default: 500)")
    made.add_argument("--seconds", type=float, default=20.0, help="how long to look (default: 20)")
    made = command(failover, "ours,always")
    made.add_argument("--rounds", type=int, default=5, help="kills (default: 5)")
    made = command(grow, "ours,always")
    made.add_argument("--messages", type=int, default=1_000_000, help="in the stream (default: 1,000,000)")
    made.add_argument("--compact", action="store_true", help="move them into the lake first")
    made = command(many, "ours,default")
    made.add_argument("--streams", type=int, default=1000, help="R3 streams (default: 1000)")
    made.add_argument("--seconds", type=float, default=10.0, help="how long to look at them idle (default: 10)")
    made.add_argument("--patience", type=float, default=300.0, help="seconds to wait for an answer (default: 300)")
    options = parser.parse_args()
    options.run(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
