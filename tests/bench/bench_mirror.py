"""Measure the lag of a mirror and of a source at an even publish rate; ours and nats-server's.

    python -m tests.bench.bench_mirror [--rate 20000] [--seconds 10] [--size 128] [--rounds 1] [--store DIR]
                                       [--only origin,mirror,source,cluster,remote] [--against default,always,ours]

One server at a time (`cluster`: origin and mirror on different nodes of three; `remote`: a mirror of ours whose origin
is on another server, ours or nats-server, that its server is a client of), with an origin that another process
publishes to at an even rate, acks asked for. The newest message of the copy, and that of its origin, is asked for again
and again (a direct get by subject). The lag of a message is the time from just before it was sent until an answer first
showed it, or one after it: published to readable. `behind` is what of that it is readable at its origin already. The
row `origin` has no copy: its lag is what a publish alone takes. `cpu` is processor time of all servers for a message,
in µs; `look` the median time of one question: where that is long, whoever asks waits for a processor.

The first second is not counted. Rows of ours and of nats-server alternate; that one acks and shows before it syncs,
unless it is told `sync_interval: always`, with which (`--against always`) it does not keep up on a disk. Where the
disk's syncs stall, the stalls are what one sees here: `--store /dev/shm` has none.

Figures: docs/benchmarks.md#lag-of-mirrors-and-sources
"""

from __future__ import annotations

import argparse
import multiprocessing
import multiprocessing.connection
import os
import tempfile
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.cluster.nodes import Cluster
from tests.servers import Kind, Server
from tests.wire import Wire, pub

TICK_S = 0.001
"""Interval at which the publisher sends the messages that are due."""
WARM_S = 1.0
LEAST_PAUSE_S = 0.001
"""Pause between an answer and the next request."""
CPU_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
SUBJECT = "lag"
COPIES: dict[str, dict[str, Any]] = {
    "origin": {},
    "mirror": {"name": "COPY", "mirror": {"name": "ORIGIN"}},
    "source": {"name": "COPY", "sources": [{"name": "ORIGIN"}]},
    "cluster": {"name": "COPY", "mirror": {"name": "ORIGIN"}},
    "remote": {"name": "COPY", "mirror": {"name": "ORIGIN", "external": {"api": "$JS.there.API"}}},
}
VARIANTS = {"default": (Kind.REAL, False), "always": (Kind.REAL, True), "ours": (Kind.OURS, False)}
"""Program, and if nats-server syncs before it acks."""


class Load(NamedTuple):
    """Result of the publisher: (first number, ns of the monotonic clock) of each group, messages, seconds."""

    groups: list[tuple[int, int]]
    messages: int
    took: float


class Row(NamedTuple):
    """Figures of a row.

    Percentiles of the copy's lag, and of the part by which it is behind its origin, in ms; µs of processor time for a
    message; ms of a request; the achieved rate.
    """

    lag: list[float]
    behind: list[float]
    cpu: float
    look: float
    rate: float


def publish(
    address: tuple[str, int], rate: int, seconds: float, size: int, told: multiprocessing.connection.Connection
) -> None:
    """Publish evenly, in a process of its own; send the result to `told`."""
    with Wire(address, timeout=60) as wire:
        reply, acks = wire.new_reply(), _Acks(wire)
        wire.ping()
        groups: list[tuple[int, int]] = []
        number, began = 0, time.monotonic_ns()
        ends = began + int(seconds * 1e9)
        while (now := time.monotonic_ns()) < ends:
            due = (now - began) * rate // 1_000_000_000
            if due > number:
                groups.append((number, now))
                parts = [pub(SUBJECT, (b"%d %d" % (one, now)).ljust(size), reply) for one in range(number, due)]
                wire.socket.settimeout(60)
                wire.send(b"".join(parts))
                number = due
            acks.read()
            time.sleep(TICK_S)
        took = (time.monotonic_ns() - began) / 1e9
        while acks.count < number:
            acks.read(60)
    told.send(Load(groups, number, took))


class _Acks:
    """Counts pub acks."""

    def __init__(self, wire: Wire) -> None:
        self._socket, self.count = wire.socket, 0
        self._mark, self._rest = b'"seq":', b""

    def read(self, timeout: float = 0) -> None:
        """Read the acks that have arrived; wait up to `timeout` seconds for some."""
        self._socket.settimeout(timeout)
        try:
            data = self._socket.recv(1 << 20)
        except (BlockingIOError, TimeoutError):
            return
        assert data, "the server closed the connection"
        data = self._rest + data
        assert b'"error"' not in data, data[-300:]
        self.count += data.count(self._mark)
        self._rest = data[-(len(self._mark) - 1) :]


def cpu_s(server: Server) -> float:
    """Return the processor time that a server has used, all its threads, user and kernel."""
    assert server.process is not None
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * CPU_TICK_S


class Watch:
    """Requests the newest message of several streams at once, and records the time at which each was returned.

    Args:
        wires: a connection for each stream, by the stream's name.
    """

    def __init__(self, wires: dict[str, Wire]) -> None:
        self._wires = wires
        self.seen: dict[str, list[tuple[int, int]]] = {stream: [] for stream in wires}
        """(number of the newest message, ns of the monotonic clock) of each answer."""
        self.took: list[float] = []
        """Duration of each round of requests in ms."""

    def look(self) -> None:
        """Request the newest messages once."""
        began, body = time.monotonic_ns(), b'{"last_by_subj":"%b"}' % SUBJECT.encode()
        asked = {}
        for stream, wire in self._wires.items():
            asked[stream] = wire.new_reply()
            wire.publish(f"$JS.API.DIRECT.GET.{stream}", body, asked[stream])
        for stream, reply in asked.items():
            frame = self._wires[stream].message(reply, timeout=60)
            if not frame.status:
                self.seen[stream].append((int(frame.data.split()[0]), time.monotonic_ns()))
        self.took.append((time.monotonic_ns() - began) / 1e6)
        time.sleep(LEAST_PAUSE_S)

    def all_have(self, number: int) -> bool:
        """Return True if every stream has returned this message or a later one."""
        return all(seen and seen[-1][0] >= number for seen in self.seen.values())


def lags_ms(load: Load, seen: list[tuple[int, int]]) -> list[float]:
    """Return the lag of each group that was sent after the warm-up."""
    numbers = [number for number, _ in seen]
    begins = load.groups[0][1] + int(WARM_S * 1e9)
    following = [first for first, _ in load.groups[1:]] + [load.messages]
    lags = []
    for (_, sent), after in zip(load.groups, following, strict=True):
        if sent >= begins:
            at = bisect_left(numbers, after - 1)
            assert at < len(seen), f"message {after - 1} never came"
            lags.append((seen[at][1] - sent) / 1e6)
    return lags


def parts(values: list[float], *shares: int) -> list[float]:
    """Return percentiles."""
    values = sorted(values)
    return [values[min(len(values) - 1, len(values) * share // 100)] for share in shares]


@contextmanager
def servers(variant: str, row: str, parent: str | None) -> Iterator[Sequence[Server]]:
    """Return all servers; the first has the origin, the last the copy."""
    kind, always = VARIANTS[variant]
    with tempfile.TemporaryDirectory(prefix="bench-mirror-", dir=parent) as directory:
        if row == "cluster":
            cluster = Cluster(kind, Path(directory), tags=[[f"tag{number}"] for number in range(3)], durable=always)
            try:
                yield cluster.start().nodes
            finally:
                cluster.kill()
            return
        text = "jetstream { sync_interval: always }" if always else None
        server = Server(kind, Path(directory) / "store", config=text).start()
        started = [server]
        try:
            if row == "remote":
                link = f'remote {{ domain: there, url: "{server.url}" }}'
                started.append(Server(Kind.OURS, Path(directory) / "here", config=link).start())
            yield started
        finally:
            for each in started:
                each.kill()


def measure(variant: str, row: str, options: argparse.Namespace) -> Row:
    """Measure one row."""
    with servers(variant, row, options.store) as nodes, ExitStack() as stack:
        there, here = (stack.enter_context(Wire(node.address, timeout=60)) for node in (nodes[0], nodes[-1]))
        wires = {"ORIGIN": there}
        _create(there, {"name": "ORIGIN", "subjects": [SUBJECT]}, "tag0" if row == "cluster" else "")
        if COPIES[row]:
            wires["COPY"] = here
            _create(here, {"name": "COPY", **COPIES[row]}, "tag2" if row == "cluster" else "")
        answer = there.request(SUBJECT, b"-1", timeout=60)
        assert b'"seq"' in answer.data, answer
        watch = Watch(wires)
        while not watch.all_have(-1):  # let the copy's wait before its first attempt pass
            watch.look()
        told, tell = multiprocessing.Pipe(duplex=False)
        arguments = (nodes[0].address, options.rate, options.seconds + WARM_S, options.size, tell)
        publisher = multiprocessing.get_context("spawn").Process(target=publish, args=arguments)
        before = sum(map(cpu_s, nodes))
        publisher.start()
        tell.close()
        try:
            while not told.poll():
                watch.look()
            load: Load = told.recv()
        finally:
            publisher.kill()
            publisher.join()
        while not watch.all_have(load.messages - 1):
            watch.look()
        cpu = (sum(map(cpu_s, nodes)) - before) / load.messages * 1e6
    origin, copy = lags_ms(load, watch.seen["ORIGIN"]), lags_ms(load, watch.seen[list(wires)[-1]])
    behind = [max(late - first, 0.0) for first, late in zip(origin, copy, strict=True)]
    (look,), rate = parts(watch.took, 50), load.messages / load.took
    return Row(parts(copy, 50, 90, 99, 100), parts(behind, 50, 90, 99), cpu, look, rate)


def _create(wire: Wire, config: dict[str, Any], tag: str) -> None:
    """Create a stream that allows direct gets; `tag`: of the node that shall have it."""
    fields = {**config, "allow_direct": True}
    if tag:
        fields["placement"] = {"tags": [tag]}
    created = wire.api(f"STREAM.CREATE.{config['name']}", fields, timeout=60)
    assert "error" not in created, created


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=20_000, help="messages a second")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--size", type=int, default=128, help="bytes of a message")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(COPIES))
    parser.add_argument("--store", help="directory below which the servers store")
    parser.add_argument("--against", type=lambda text: text.split(","), default=["default", "ours"])
    options = parser.parse_args()
    columns = ("p50 ms", "p90", "p99", "longest", "behind50", "behind90", "behind99", "cpu µs", "look ms", "msgs/s")
    print(f"{'':18}" + "".join(f"{column:>10}" for column in columns) + f"{'load':>6}")
    for _ in range(options.rounds):
        for name in options.only:
            for variant in options.against:
                row = measure(variant, name, options)
                cells = [f"{value:10.1f}" for value in (*row.lag, *row.behind, row.cpu, row.look)] + [
                    f"{row.rate:10.0f}{os.getloadavg()[0]:6.1f}"
                ]
                print(f"{name:10}{variant:8}" + "".join(cells), flush=True)


if __name__ == "__main__":
    main()
