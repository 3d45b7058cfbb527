"""Measure TLS: `python -m tests.bench.bench_tls [handshakes|throughput]`.

handshakes: round trip of a PING over one TLS connection while other clients make `--rate` TLS connections a second.
throughput: messages a second with TLS and without it, in alternating rounds: core publishes, a subscriber, and
JetStream publishes without waiting for each ack.

Figures: docs/benchmarks.md#tls
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.certificates import PLACE, client_context
from tests.servers import Kind, Server
from tests.wire import Closed, Secure, Wire, WireTimeout, pub

TLS = f'tls {{ cert_file: "{PLACE}/server.pem", key_file: "{PLACE}/server.key", timeout: 10 }}\n'
WRITE = 64 * 1024
"""Bytes of one write of a publisher."""
PING_PAUSE_S = 0.002
READ_SIZE = 1 << 18


def main() -> None:
    """Run the measurements that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", choices=["handshakes", "throughput"])
    parser.add_argument("--rate", type=int, default=200, help="TLS connections a second")
    parser.add_argument("--seconds", type=float, default=10.0, help="time of the handshakes")
    parser.add_argument("--messages", type=int, default=200_000, help="messages of each throughput round")
    parser.add_argument("--size", type=int, default=128, help="bytes of a payload")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=[kind.value for kind in Kind], help="one of the two programs")
    given = parser.parse_args()
    for kind in Kind if given.only is None else [Kind(given.only)]:
        print(f"{kind.value}, load {os.getloadavg()[0]:.1f}")
        if given.what != "throughput":
            handshakes(kind, given.rate, given.seconds)
        if given.what != "handshakes":
            throughput(kind, given.messages, given.size, given.rounds)


# ---------------------------------------------------------------------- handshakes


def handshakes(kind: Kind, rate: int, seconds: float) -> None:
    """Measure pings before and during handshakes."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(kind, Path(folder) / "store", config=TLS, jetstream=False).start()
        try:
            context = client_context(server.certificates)
            with Wire(server.address, secure=Secure(context)) as wire:
                quiet = _pings(wire, time.monotonic() + seconds / 3, lambda: True)
                done = multiprocessing.Value("i", 0)
                others = multiprocessing.Process(
                    target=_connect_often, args=(server.address, server.certificates, rate, seconds, done)
                )
                others.start()
                while not done.value and others.is_alive():
                    wire.ping()
                busy = _pings(wire, time.monotonic() + 2 * seconds, others.is_alive)
                others.join()
        finally:
            server.kill()
    print(f"  pings without handshakes   {_times(quiet)}")
    print(f"  {done.value / seconds:5.0f} handshakes a second   {_times(busy)}")


def _pings(wire: Wire, until: float, wanted: Callable[[], bool]) -> list[float]:
    times = []
    while time.monotonic() < until and wanted():
        began = time.perf_counter()
        wire.ping()
        times.append(time.perf_counter() - began)
        time.sleep(PING_PAUSE_S)
    return times


def _times(seconds: list[float]) -> str:
    marks = statistics.quantiles(seconds, n=1000)
    shown = {"p50": marks[499], "p99": marks[989], "p99.9": marks[998], "max": max(seconds)}
    return "  ".join(f"{name} {value * 1e3:6.2f} ms" for name, value in shown.items())


def _connect_often(address: tuple[str, int], certificates: Path, rate: int, seconds: float, done: object) -> None:
    """Make TLS connections at a steady rate in another process, with a full handshake each; count them."""
    context, threads = client_context(certificates), 8
    began = time.monotonic()

    def work(number: int) -> None:
        for turn in range(number, int(rate * seconds), threads):
            time.sleep(max(0.0, began + turn / rate - time.monotonic()))
            try:
                with Wire(address, secure=Secure(context)) as wire:
                    wire.ping()
            except (OSError, Closed, WireTimeout):
                continue
            with done.get_lock():  # type: ignore[attr-defined]
                done.value += 1  # type: ignore[attr-defined]

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


# ---------------------------------------------------------------------- throughput


def throughput(kind: Kind, messages: int, size: int, rounds: int) -> None:
    """Measure each way of using messages with TLS and without it."""
    figures: dict[str, dict[bool, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        servers = {
            secure: Server(kind, Path(folder) / f"store{secure}", config=TLS if secure else None).start()
            for secure in (False, True)
        }
        try:
            for _ in range(rounds):
                for secure, server in servers.items():
                    for name, measure in MEASUREMENTS.items():
                        rate = messages / measure(server, secure, messages, size)
                        figures.setdefault(name, {}).setdefault(secure, []).append(rate)
        finally:
            for server in servers.values():
                server.kill()
    for name, found in figures.items():
        plain, tls = (statistics.median(found[secure]) for secure in (False, True))
        print(f"  {name:18} plain {plain:10,.0f}/s   TLS {tls:10,.0f}/s   ratio {tls / plain:.2f}")


def _open(server: Server, secure: bool) -> Wire:
    options = {"secure": Secure(client_context(server.certificates))} if secure else {}
    return Wire(server.address, timeout=60, **options)


def _buffers(one: Callable[[int], bytes], messages: int) -> list[bytes]:
    """Return the frames of all messages, joined to writes."""
    joined, found = bytearray(), []
    for number in range(messages):
        joined += one(number)
        if len(joined) >= WRITE:
            found.append(bytes(joined))
            joined.clear()
    return [*found, bytes(joined)]


def _publish(server: Server, secure: bool, messages: int, size: int) -> float:
    buffers = _buffers(lambda _: pub("nobody", b"x" * size), messages)
    with _open(server, secure) as wire:
        wire.ping()
        began = time.perf_counter()
        for buffer in buffers:
            wire.send(buffer)
        wire.ping()
        return time.perf_counter() - began


def _subscribe(server: Server, secure: bool, messages: int, size: int) -> float:
    """Measure until one subscriber has read everything that a publisher sends."""
    buffers = _buffers(lambda _: pub("somebody", b"x" * size), messages)
    wanted = messages * (len(b"MSG somebody 1 %d\r\n" % size) + size + 2)
    with _open(server, secure) as wire, _open(server, secure) as publisher:
        wire.subscribe("somebody")
        wire.ping()
        began = time.perf_counter()
        sender = threading.Thread(target=lambda: [publisher.send(buffer) for buffer in buffers])
        sender.start()
        _read(wire, wanted)
        took = time.perf_counter() - began
        sender.join()
        return took


def _js_publish(server: Server, secure: bool, messages: int, size: int) -> float:
    # Two connections, because a TLS socket is not for two threads.
    with _open(server, secure) as wire, _open(server, secure) as publisher:
        wire.api("STREAM.DELETE.BENCH")
        assert "error" not in wire.api("STREAM.CREATE.BENCH", {"name": "BENCH", "subjects": ["bench"]})
        wire.subscribe("acks")
        wire.ping()
        wire.socket.settimeout(60)
        buffers = _buffers(lambda _: pub("bench", b"x" * size, "acks"), messages)
        began = time.perf_counter()
        sender = threading.Thread(target=lambda: [publisher.send(buffer) for buffer in buffers])
        sender.start()
        seen, tail = 0, b""
        while seen < messages:
            data = tail + wire.socket.recv(READ_SIZE)
            seen += data.count(b"MSG acks ")
            tail = data[-8:]
        took = time.perf_counter() - began
        sender.join()
        return took


def _read(wire: Wire, size: int) -> None:
    wire.socket.settimeout(60)
    while size > 0:
        data = wire.socket.recv(READ_SIZE)
        assert data, "closed"
        size -= len(data)


MEASUREMENTS: dict[str, Callable[[Server, bool, int, int], float]] = {
    "core publish": _publish,
    "core subscriber": _subscribe,
    "JetStream publish": _js_publish,
}

if __name__ == "__main__":
    main()
