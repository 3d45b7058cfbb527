"""Compare encrypted stores with plain ones: `python -m tests.bench.bench_sealed`.

Servers with a plain store and with one of each cipher run beside each other, and each load goes to all of them, in
another order in every round. The table has medians: messages a second, and the server's processor time of a message in
µs, each with its ratio to the plain store's. Beside other programs only the ratios of processor time hold.

    python -m tests.bench.bench_sealed --rounds 5 --messages 100000 --only js_async_1024,replay

Figures: docs/security.md#encryption-at-rest
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.bench.load import BLOCK, Connection, Rate, blocks, pipelined, processor_s, publish
from tests.servers import Kind, Server, encrypting

STORES = {"plain": "", "aes": "k", "chachapoly": "kk"}
"""Keys of the stores, which decide the ciphers (`tests.servers.encrypting`)."""
_NO_LAKE = "lake { enabled: false }\n"


def main() -> None:
    """Run the loads that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=100_000, help="of a load")
    parser.add_argument("--only", default="", help="loads, with commas between them")
    given = parser.parse_args()
    wanted = [name for name in given.only.split(",") if name] or list(LOADS)
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        servers = {}
        for name, key in STORES.items():
            config = encrypting(_NO_LAKE, key) if key else _NO_LAKE
            servers[name] = Server(Kind.OURS, Path(folder) / name, config=config).start()
        try:
            assert all(bool(each.logged("Encryption:")) == (name != "plain") for name, each in servers.items())
            for _ in range(given.rounds):
                for load in wanted:
                    for name, server in random.sample(list(servers.items()), len(servers)):
                        found.setdefault((load, name), []).append(_measured(server, LOADS[load], given.messages))
        finally:
            for server in servers.values():
                server.kill()
    print(f"load {os.getloadavg()[0]:.1f}")
    for load in wanted:
        plain = _medians(found[load, "plain"])
        for name in STORES:
            rate, cpu = _medians(found[load, name])
            print(
                f"{load:14} {name:10} {rate:10,.0f}/s  ratio {rate / plain[0]:4.2f}   "
                f"{cpu:6.2f} µs  ratio {plain[1] / cpu:4.2f}"
            )


Load = Callable[[Connection, int, Callable[[], None]], Rate]


def _medians(rounds: list[tuple[float, float]]) -> tuple[float, float]:
    rates, times = zip(*rounds, strict=True)
    return statistics.median(rates), statistics.median(times)


def _measured(server: Server, load: Load, messages: int) -> tuple[float, float]:
    """Return messages a second, and the server's processor time of each in µs."""
    assert server.process is not None
    pid, begun = server.process.pid, [0.0]

    def begin() -> None:
        begun[0] = processor_s(pid)

    with Connection(server.address) as client:
        rate = load(client, messages, begin)
        return rate.per_s, (processor_s(pid) - begun[0]) / rate.messages * 1e6


def _publishes(size: int) -> Load:
    def run(client: Connection, messages: int, begin: Callable[[], None]) -> Rate:
        _fill(client, 0, size)
        begin()
        return _fill(client, messages, size)

    return run


def _fill(client: Connection, messages: int, size: int) -> Rate:
    """Publish to an empty stream; with 0 messages create it."""
    if not messages:
        if "B" in (client.api("STREAM.NAMES").get("streams") or ()):
            client.api("STREAM.DELETE.B")
        client.stream("B", ["b.>"])
        return Rate(0, 1.0)
    load = blocks(lambda at: publish(b"b.%d" % (at % 100), client.inbox + b".p", os.urandom(size // 2).hex().encode()))
    return pipelined(client, load, most=messages)


def _replays(client: Connection, messages: int, begin: Callable[[], None]) -> Rate:
    _fill(client, 0, 0)
    stored = _fill(client, messages, 128).messages
    begin()
    return Rate(stored, client.read("B", b"MSG b.", stored))


def _pulls(client: Connection, messages: int, begin: Callable[[], None]) -> Rate:
    _fill(client, 0, 0)
    stored = _fill(client, messages // 4, 128).messages
    consumer = {"durable_name": "P", "ack_policy": "explicit", "max_ack_pending": 10_000}
    client.api("CONSUMER.DURABLE.CREATE.B.P", {"stream_name": "B", "config": consumer})
    begin()
    return client.pull_and_ack("B", "P", stored // BLOCK * BLOCK)


LOADS = {"js_async_128": _publishes(128), "js_async_1024": _publishes(1024), "replay": _replays, "pull_ack": _pulls}

if __name__ == "__main__":
    main()
