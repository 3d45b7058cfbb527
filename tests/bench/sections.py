"""Sections of `make bench`: each measures some figures of the table, in rounds that alternate between the servers.

Belongs here: starting the servers and what is done to them. Loads are in load.py, names and goals in figures.py,
sections that make curves in growth.py.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from tests.bench import bench_freshness, bench_start, bench_typed
from tests.bench.figures import KINDS, OURS, PINNED, A, B, Section
from tests.bench.load import (
    BLOCK,
    Address,
    Connection,
    Rate,
    blocks,
    many_clients,
    one_at_a_time,
    percentile,
    pipelined,
    processor_s,
    publish,
    spread,
    steadily,
    unanswered,
)
from tests.cluster.nodes import Cluster
from tests.servers import Kind, Server, program, run_to_end

CLIENTS = 64
KEYS = 20_000
GROUP = 100
"""Keys of one multi_last pattern."""
PATTERNS = 10
PAYLOAD = b"x" * 128
GOT = b"Nats-Sequence:"
BESIDE_PER_S = 10_000
"""Messages a second of the publisher beside the compactor."""
SYNCS = 200
IDLE_STREAMS = IDLE_CONNECTIONS = 1_000
IDLE_GROUPS = 100
"""R3 streams of an idle cluster."""
SETTLE_S = 5.0
"""Pause before an idle server is measured."""
IDLE_LIMIT_S = 600
LIMIT_S = 120
"""Seconds of one turn of a section, from the start of its servers."""
LAKE_LIMIT_S = 1_200
ALWAYS = "jetstream { sync_interval: always }\n"
"""Configuration of B."""


class Plan(NamedTuple):
    """Scope of a run.

    Attributes:
        seconds: length of one load.
        stored: messages that are read back.
        say: prints a line of progress.
        full: the section `scale` takes its sizes as they are, not a tenth.
    """

    quick: bool
    rounds: int
    seconds: float
    stored: int
    say: Callable[[str], None]
    full: bool = False


class TooLong(Exception):
    """Raised when a measurement does not end within its time."""


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise TooLong in the main thread if the block takes longer than so many seconds."""

    def over(number: int, frame: FrameType | None) -> None:
        raise TooLong(f"not done within {seconds} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class Target(NamedTuple):
    """Server under load: its address, and the processes whose processor time counts."""

    address: Address
    pids: Sequence[int]

    def used(self) -> float:
        """Return the processor seconds used so far."""
        return sum(map(processor_s, self.pids))

    def rated(self, name: str, load: Callable[[], Rate]) -> dict[str, float]:
        """Run a load; return its rate, and the server's processor time for a message in µs."""
        before = self.used()
        rate = load()
        spent = self.used() - before
        return {name: rate.per_s, f"{name}_cpu_us": spent / rate.messages * 1e6}


@contextmanager
def served(kind: str, config: str = "") -> Iterator[Target]:
    """Yield a server with an empty store; end it afterwards."""
    if kind == B:
        config += ALWAYS
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        server = Server(Kind.OURS if kind == OURS else Kind.REAL, Path(directory) / "store", config=config or None)
        server.start()
        assert server.process is not None
        try:
            yield Target(server.address, [server.process.pid])
        finally:
            server.kill()


@contextmanager
def clustered(kind: str) -> Iterator[Target]:
    """Yield a cluster of three with an R3 stream BENCH; its address is that of the stream's leader."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        made = Cluster(Kind.OURS if kind == OURS else Kind.REAL, Path(directory), durable=kind == B)
        try:
            made.start()
            made.stream("BENCH", ["bench.*"], 3)
            leader = made.stream_leader("BENCH")
            made.wait_current("BENCH")
            pids = [node.process.pid for node in made.nodes if node.process is not None]
            yield Target((leader.host, leader.wanted_port), pids)
        finally:
            made.kill()


Work = Callable[[Target, Plan], dict[str, float]]


def alternating(
    plan: Plan,
    found: Section,
    kinds: Sequence[str],
    work: Callable[[str], dict[str, float]],
    rounds: int | None = None,
    limit_s: int = LIMIT_S,
) -> None:
    """Measure each kind in turn, in every round in another order; an error costs its turn only."""
    for turn in range(rounds or plan.rounds):
        at = turn % len(kinds)
        for kind in (*kinds[at:], *kinds[:at]):
            plan.say(f"round {turn + 1} of {rounds or plan.rounds}: {kind}")
            try:
                with limited(limit_s):
                    figures = work(kind)
            except Exception as error:  # a figure that cannot be measured must not end the run
                found.errors.append(f"{kind}: {type(error).__name__}: {error}".splitlines()[0][:200])
                continue
            for key, value in figures.items():
                found.figures.setdefault(key, {}).setdefault(kind, []).append(value)


def single(kinds: Sequence[str], work: Work) -> Callable[[Plan, Section], None]:
    """Return a section that does some work on fresh servers of these kinds."""

    def section(plan: Plan, found: Section) -> None:
        def once(kind: str) -> dict[str, float]:
            with served(kind) as target:
                return work(target, plan)

        alternating(plan, found, kinds, once)

    return section


# ---------------------------------------------------------------------- one server


def in_flight(target: Target, plan: Plan) -> dict[str, float]:
    """Publish with thousands of messages in flight."""
    figures = {}
    for size in (128, 1024):
        with Connection(target.address) as client:
            client.stream(f"P{size}", [f"p{size}.>"])
            frames = acked(client, b"p%d" % size, b"x" * size)
            load = blocks(frames)
            figures |= target.rated(
                f"js_async_{size}", lambda client=client, load=load: pipelined(client, load, seconds=plan.seconds)
            )
            client.api(f"STREAM.DELETE.P{size}")
    return figures


def acked(client: Connection, subject: bytes, payload: bytes, subjects: int = 100) -> Callable[[int], bytes]:
    """Return a function that makes publish number n on one of some subjects, with a reply subject of its own."""
    return lambda n: publish(b"%s.%d" % (subject, n % subjects), b"%s.%d" % (client.inbox, n), payload)


def waiting(target: Target, plan: Plan) -> dict[str, float]:
    """Publish from one client and from 64, each one message at a time."""
    with Connection(target.address) as client:
        client.stream("S", ["s.>"])
        frames = [publish(b"s.%d" % n, client.inbox + b".1", PAYLOAD) for n in range(10)]
        alone = one_at_a_time(client, frames, b'"seq":', plan.seconds)
    latencies: list[float] = []

    def together() -> Rate:
        rate, took = many_clients(target.address, b"s.m", PAYLOAD, CLIENTS, plan.seconds)
        latencies.extend(took)
        return rate

    figures = target.rated("js_sync64", together)
    return {
        **figures,
        "js_sync64_p99": percentile(latencies, 0.99) * 1e6,
        "js_sync_p50": percentile(alone, 0.5) * 1e6,
    }


def key(number: int) -> bytes:
    """Return the subject of a key."""
    return b"$KV.b.key.%d.%d" % divmod(number % KEYS, GROUP)


def bucket(target: Target, plan: Plan) -> dict[str, float]:
    """Put and get keys of a bucket."""
    with Connection(target.address) as client:
        client.bucket("b")
        puts = blocks(lambda n: publish(key(n), b"%s.%d" % (client.inbox, n), PAYLOAD))
        figures = target.rated("kv_put", lambda: pipelined(client, puts, seconds=plan.seconds, most=10 * KEYS))
        pipelined(client, puts, most=KEYS)  # now all keys exist, also where little was put
        gets = [publish(b"$JS.API.DIRECT.GET.KV_b." + key(n * 7919), client.inbox + b".1", b"") for n in range(KEYS)]
        alone = one_at_a_time(client, gets, GOT, plan.seconds)
        figures["direct_get_p50"] = percentile(alone, 0.5) * 1e6
        prepared = blocks(
            lambda n: publish(b"$JS.API.DIRECT.GET.KV_b." + key(n * 7919), b"%s.%d" % (client.inbox, n), b""), 2000
        )
        figures |= target.rated("direct_get", lambda: pipelined(client, prepared, GOT, seconds=plan.seconds))
        patterns = [f"$KV.b.key.{group}.*" for group in range(PATTERNS)]

        def last() -> Rate:
            began, count = time.perf_counter(), 0
            while time.perf_counter() - began < plan.seconds:
                client.multi_last("KV_b", patterns, PATTERNS * GROUP)
                count += PATTERNS * GROUP
            return Rate(count, time.perf_counter() - began)

        return figures | target.rated("multi_last", last)


def consume(target: Target, plan: Plan) -> dict[str, float]:
    """Replay a stream to a push consumer; pull and ack its messages."""
    with Connection(target.address) as client:
        client.stream("C", ["c.>"])
        stored = pipelined(client, blocks(acked(client, b"c", PAYLOAD, 10)), most=plan.stored).messages
        figures = target.rated("replay", lambda: Rate(stored, client.read("C", b"MSG c.", stored)))
        wanted = {"durable_name": "P", "ack_policy": "explicit", "max_ack_pending": KEYS, "ack_wait": 60_000_000_000}
        client.api("CONSUMER.CREATE.C.P", {"stream_name": "C", "config": wanted})
        batches = max(1, int(stored * 0.4) // BLOCK)
        return figures | target.rated("pull_ack", lambda: client.pull_and_ack("C", "P", batches * BLOCK))


def core(target: Target, plan: Plan) -> dict[str, float]:
    """Publish core messages without a subscriber, and with one."""
    with Connection(target.address) as client, Connection(target.address) as reader:
        figures = target.rated(
            "core_pub",
            lambda: unanswered(client, blocks(lambda n: publish(b"core.a", b"", PAYLOAD)), plan.seconds),
        )
        reader.subscribe(b"core.b")
        load = blocks(lambda n: publish(b"core.b", b"", PAYLOAD))
        return figures | target.rated(
            "core_pubsub",
            lambda: pipelined(client, load, b"MSG core.b ", seconds=plan.seconds, reader=reader),
        )


def rest(plan: Plan, found: Section) -> None:
    """Start servers on empty stores; read their memory at rest."""

    def once(kind: str) -> dict[str, float]:
        with tempfile.TemporaryDirectory(prefix="bench-") as store:
            start = bench_start.once(program(Kind.OURS if kind == OURS else Kind.REAL), store, 1.0, {})
        return {"ready_s": start.start_to_ready_s, "rest_mib": start.rest_mib}

    alternating(plan, found, (OURS, A), once)


def idle(plan: Plan, found: Section) -> None:
    """Leave servers alone: without streams, with many, with many connections, and with many Raft groups."""
    seconds = 5.0 if plan.quick else 60.0

    def share(target: Target) -> float:
        """Return the share of a core in percent, of the process that takes most, without work."""
        time.sleep(SETTLE_S)  # the work after a creation is to end, which causes no event
        before = [processor_s(pid) for pid in target.pids]
        time.sleep(seconds)
        after = [processor_s(pid) for pid in target.pids]
        return max(new - old for new, old in zip(after, before, strict=True)) / seconds * 100

    def once(kind: str) -> dict[str, float]:
        figures = {}
        with served(kind) as target:
            figures["idle_empty"] = share(target)
            with Connection(target.address) as client:
                for number in range(IDLE_STREAMS):
                    client.stream(f"I{number}", [f"i.{number}"])
            figures["idle_streams"] = share(target)
        with served(kind) as target, ExitStack() as stack:
            for _ in range(IDLE_CONNECTIONS):
                stack.enter_context(Connection(target.address))
            figures["idle_connections"] = share(target)
        with clustered(kind) as target, Connection(target.address) as client:
            for number in range(IDLE_GROUPS):
                client.api(
                    f"STREAM.CREATE.I{number}", {"name": f"I{number}", "subjects": [f"i.{number}"], "num_replicas": 3}
                )
            figures["idle_r3"] = share(target)
        return figures

    alternating(plan, found, (OURS, A), once, rounds=1, limit_s=IDLE_LIMIT_S)


# ---------------------------------------------------------------------- several processes


def cluster(plan: Plan, found: Section) -> None:
    """Publish to an R3 stream through its leader."""

    def once(kind: str) -> dict[str, float]:
        with clustered(kind) as target, Connection(target.address) as client:
            load = blocks(acked(client, b"bench", PAYLOAD))
            pipelined(client, load, most=BLOCK)  # the first messages meet routes that have no interest yet
            figures = target.rated("r3_async", lambda: pipelined(client, load, seconds=plan.seconds))
            frames = [publish(b"bench.s", client.inbox + b".1", PAYLOAD)]
            alone = one_at_a_time(client, frames, b'"seq":', plan.seconds)
            rate, _ = many_clients(target.address, b"bench.m", PAYLOAD, CLIENTS, plan.seconds)
            return {**figures, "r3_sync_p50": percentile(alone, 0.5) * 1e6, "r3_sync64": rate.per_s}

    alternating(plan, found, KINDS, once)


def workers(plan: Plan, found: Section) -> None:
    """Publish from four clients to four streams, with two server processes and with one."""
    config = "workers: 2\n"
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        path = Path(directory) / "workers.conf"
        path.write_text(config)
        checked = run_to_end(Kind.OURS, "-t", "-c", str(path))
    if checked.returncode:
        found.skipped = "this version has no `workers`"
        return

    def once(kind: str) -> dict[str, float]:
        figures = {}
        for name, text in (("one_worker_rate", ""), ("workers_rate", config)):
            with served(kind, text) as target:
                clients = [Connection(target.address) for _ in range(4)]
                for number, client in enumerate(clients):
                    client.stream(f"W{number}", [f"w{number}.>"])
                loads = [blocks(acked(client, b"w%d" % n, PAYLOAD)) for n, client in enumerate(clients)]
                figures |= target.rated(name, lambda clients=clients, loads=loads: spread(clients, loads, plan.seconds))
                for client in clients:
                    client.close()
        return figures

    alternating(plan, found, (OURS,), once)


def pinned(plan: Plan, found: Section) -> None:
    """Do what is measured on one server once more, with the server on one core and the client on another one."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        found.skipped = "needs two cores"
        return

    def once(kind: str) -> dict[str, float]:
        figures = dict[str, float]()
        for work in (in_flight, waiting, bucket, consume):
            os.sched_setaffinity(0, cores[:1])  # a process that is started inherits it
            try:
                with served(kind) as target:
                    os.sched_setaffinity(0, cores[1:2])
                    figures |= work(target, plan)
            finally:
                os.sched_setaffinity(0, cores)
        return {f"{PINNED}{name}": value for name, value in figures.items()}

    alternating(plan, found, (OURS, A), once)


# ---------------------------------------------------------------------- the lake


def fresh(plan: Plan, found: Section) -> None:
    """Publish beside the compactor of `lakestream up`; then leave both alone."""

    def once(kind: str) -> dict[str, float]:
        seen = dict(bench_freshness.run(("busy", "rest"), 20 if plan.quick else 240))
        times = seen["busy"]["times"]
        curve = [(share, times[min(len(times) - 1, len(times) * share // 100)]) for share in range(0, 101, 2)]
        found.curves["fresh"] = {"1,000 messages/s": curve}
        return {
            "first_row_s": seen["first"]["first_row_s"],
            "fresh_p50_s": seen["busy"]["p50_s"],
            "fresh_p99_s": seen["busy"]["p99_s"],
            "idle_share": seen["rest"]["server_percent"] + seen["rest"]["compactor_percent"],
        }

    alternating(plan, found, (OURS,), once, rounds=1, limit_s=LAKE_LIMIT_S)


def compaction(plan: Plan, found: Section) -> None:
    """Compact staged segments, with the machine to itself and beside a publisher."""
    messages = 200_000 if plan.quick else 1_000_000
    command = [sys.executable, "-m", "tests.bench.bench_compaction", "--one", "10", "--messages", str(messages)]

    def compact(key: str) -> dict[str, float]:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"bench_compaction: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
        seen = json.loads(done.stdout.strip().splitlines()[-1])
        cpu = seen["cpu"] / messages * 1e6
        return {key: seen["rate"], f"{key}_mib": seen["all"], f"{key}_cpu_us": cpu}

    def beside(kind: str) -> dict[str, float]:
        over = threading.Event()
        with served(kind) as target, Connection(target.address) as client:
            client.stream("P", ["p.>"])
            frames = b"".join(map(acked(client, b"p", PAYLOAD), range(BLOCK)))
            load = threading.Thread(target=steadily, args=(client, frames, BLOCK, BESIDE_PER_S, over.is_set))
            load.start()
            try:
                return compact("compaction_beside")
            finally:
                over.set()
                load.join()

    alternating(plan, found, (OURS,), lambda kind: compact("compaction"), rounds=1, limit_s=LAKE_LIMIT_S)
    alternating(plan, found, (OURS,), beside, rounds=1, limit_s=LAKE_LIMIT_S)


def typed(plan: Plan, found: Section) -> None:
    """Compact orders into typed columns, beside other ways to get these."""
    messages = 200_000 if plan.quick else 1_000_000
    command = [sys.executable, "-m", "tests.bench.bench_typed", "--messages", str(messages), "--one"]

    def once(kind: str) -> dict[str, float]:
        figures = {}
        for way in bench_typed.KINDS:
            done = subprocess.run([*command, way], capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"bench_typed {way}: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
            seen = json.loads(done.stdout.strip().splitlines()[-1])
            figures |= {f"typed_{way}": seen["rate"], f"typed_{way}_cpu_us": seen["us"]}
        return figures

    alternating(plan, found, (OURS,), once, rounds=1, limit_s=LAKE_LIMIT_S)


def sync_ms() -> float:
    """Return the median ms of writing and syncing 4 KiB in the directory for temporary files."""
    took = []
    with tempfile.NamedTemporaryFile(prefix="bench-") as file:
        for _ in range(SYNCS):
            began = time.perf_counter()
            os.write(file.fileno(), bytes(4096))
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - began)
    return statistics.median(took) * 1e3
