#!/usr/bin/env python3
"""Measure many consumers, waiting requests, filters, unacked messages, subjects and messages; beside nats-server.

    python -m tests.bench.bench_consumers [--only NAME] [--messages 10000000] [--against real]

Prints, for each, what it does to those who publish and how long the server was away at most (the longest of many
round trips on a connection of its own).

Figures: docs/benchmarks.md#many-consumers
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench.bench_scale import memory, used
from tests.bench.load import WINDOW, Connection
from tests.servers import Kind, Server

ROOT = Path(__file__).resolve().parents[2]

CONSUMERS = 1_000
REQUESTS = 10_000
FILTERS = 1_000
UNACKED = 1_000_000
SUBJECTS = 1_000_000
GATHERED = 100_000
"""Number of messages whose subjects are made at once."""
PUBLISHES = 300
PAYLOAD = b"x" * 64
PING_S = 0.005


class Watch(threading.Thread):
    """Measures the longest round trip of a connection that does nothing else."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self._client = Connection(server.address)
        self._over = threading.Event()
        self.longest = 0.0

    def run(self) -> None:
        while not self._over.wait(PING_S):
            began = time.perf_counter()
            self._client.round_trip()
            self.longest = max(self.longest, time.perf_counter() - began)

    def end(self) -> float:
        """Stop; return the longest round trip in ms."""
        self._over.set()
        self.join()
        self._client.close()
        return self.longest * 1e3


def main() -> int:
    """Run the measurements of the command line."""
    parts: dict[str, Callable[[Server], None]] = {
        "consumers": many_consumers, "requests": many_requests, "filters": many_filters, "unacked": many_unacked,
        "subjects": many_subjects, "messages": lambda server: many_messages(server, options.messages),
    }  # fmt: skip
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(parts), help="one of the parts (default: all)")
    parser.add_argument("--messages", type=int, default=10_000_000, help="of the part `messages` (default: 10,000,000)")
    parser.add_argument("--against", choices=["lakestream", "real"], default="lakestream", help="(default: lakestream)")
    options = parser.parse_args()
    kind = Kind.REAL if options.against == "real" else Kind.OURS
    for name, part in parts.items():
        if options.only in (None, name):
            with tempfile.TemporaryDirectory(prefix="bench-consumers-") as directory:
                server = Server(kind, Path(directory))
                server.start()
                try:
                    part(server)
                finally:
                    server.stop()
    return 0


def many_consumers(server: Server) -> None:
    """Publish to a stream without consumers, with many consumers of one subject each, and with some of all subjects."""
    client = Connection(server.address)
    client.stream("S", ["s.>"])
    print(f"{CONSUMERS:,} consumers of one stream")
    print(f"  none:                            a publish takes {publish_ms(client):.2f} ms")
    for number in range(CONSUMERS):
        consumer(client, f"c{number}", filter_subject=f"s.{number}")
        client.send(request(f"c{number}", client.inbox + b".p", 1))
    client.round_trip()
    watch = Watch(server)
    watch.start()
    took = publish_ms(client)
    print(f"  each wants another subject:      a publish takes {took:.2f} ms; longest pause {watch.end():.0f} ms")
    for number in range(CONSUMERS):
        client.api(f"CONSUMER.DELETE.S.c{number}", {})
    for number in range(CONSUMERS):
        consumer(client, f"a{number}", deliver_policy="new", ack_policy="none")
        client.send(request(f"a{number}", client.inbox + b".p", 1_000_000))
    client.round_trip()
    began, watch = time.perf_counter(), Watch(server)
    watch.start()
    client.send(b"".join(b"PUB s.x 64\r\n%s\r\n" % PAYLOAD for _ in range(100)))
    client.count(b"$JS.ACK.S.a", 100 * CONSUMERS)
    rate = 100 * CONSUMERS / (time.perf_counter() - began)
    print(f"  all want all of 100 messages:    {rate:,.0f} deliveries/s; longest pause {watch.end():.0f} ms")
    client.close()


def many_requests(server: Server) -> None:
    """Leave many requests of one consumer waiting until they expire one after another; then publish messages."""
    client = Connection(server.address)
    client.stream("S", ["s.>"])
    consumer(client, "c", max_waiting=REQUESTS, ack_policy="none")
    print(f"{REQUESTS:,} waiting requests")
    wait_s, before = 20, used(server)
    began, watch = time.perf_counter(), Watch(server)
    watch.start()
    for number in range(REQUESTS):  # they expire evenly over the second half of that time
        expires = int((wait_s * (0.5 + 0.5 * number / REQUESTS)) * 1e9)
        client.send(request("c", client.inbox + b".p", 1, expires))
    client.count(b"408 Request Timeout", REQUESTS)
    spent = used(server) - before
    passed = time.perf_counter() - began
    print(f"  all ended:   {spent:.2f} s of processor in {passed:.0f} s; longest pause {watch.end():.0f} ms")
    client.send(b"".join(request("c", client.inbox + b".p", 1, 60 * 10**9) for _ in range(REQUESTS)))
    client.round_trip()
    began, watch = time.perf_counter(), Watch(server)
    watch.start()
    for _ in range(REQUESTS // 1000):
        client.send(b"".join(b"PUB s.x 64\r\n%s\r\n" % PAYLOAD for _ in range(1000)))
    client.count(b"$JS.ACK.S.c", REQUESTS)
    rate = REQUESTS / (time.perf_counter() - began)
    print(f"  all served:  {rate:,.0f} messages/s; longest pause {watch.end():.0f} ms")
    client.close()


def many_filters(server: Server) -> None:
    """Read a stream with a consumer with many filters, and ten times as many subjects."""
    client = Connection(server.address)
    client.stream("S", ["sensor.>"])
    store(client, [b"sensor.%d.x" % (number % (10 * FILTERS)) for number in range(200_000)])
    print(f"{FILTERS:,} filters, one message in ten wanted")
    for title, filters in (
        ("one wildcard", ["sensor.>"]),
        ("literals", [f"sensor.{number}.x" for number in range(FILTERS)]),
        ("wildcards", [f"sensor.{number}.*" for number in range(FILTERS)]),
    ):
        wanted = 200_000 if title == "one wildcard" else 20_000
        began, watch = time.perf_counter(), Watch(server)
        watch.start()
        client.read("S", b"MSG sensor.", wanted, filter_subjects=filters)
        took = time.perf_counter() - began
        print(f"  {title + ':':<13} {wanted:,} in {took * 1e3:,.0f} ms; longest pause {watch.end():.0f} ms")
    client.close()


def many_unacked(server: Server) -> None:
    """Fetch many messages without acking, publish meanwhile, restart, ack all of them with one ack."""
    client = Connection(server.address)
    client.stream("S", ["s.>"])
    store(client, [b"s.x"] * UNACKED)
    consumer(client, "c", ack_policy="all", max_ack_pending=-1, ack_wait=3600 * 10**9)
    began, watch = time.perf_counter(), Watch(server)
    watch.start()
    for _ in range(UNACKED // 10_000):
        client.send(request("c", client.inbox + b".p", 10_000))
        client.count(b"$JS.ACK.S.c", 10_000)
    rate = UNACKED / (time.perf_counter() - began)
    print(f"{UNACKED:,} unacked messages: fetched at {rate:,.0f}/s; longest pause {watch.end():.0f} ms")
    watch = Watch(server)
    watch.start()
    took = publish_ms(client)
    print(f"  a publish takes {took:.2f} ms; longest pause {watch.end():.0f} ms; memory {memory(server)} MiB")
    client.close()
    server.stop()
    began = time.perf_counter()
    server.start()
    print(f"  restart: {time.perf_counter() - began:.1f} s until ready")
    client = Connection(server.address)
    assert client.api("CONSUMER.INFO.S.c", {})["num_ack_pending"] == UNACKED
    began, watch = time.perf_counter(), Watch(server)
    watch.start()
    ack = b"$JS.ACK.S.c.1.%d.%d.1.0" % (UNACKED, UNACKED)
    client.send(b"PUB %s %s.p 4\r\n+ACK\r\n" % (ack, client.inbox))
    client.count(b"MSG " + client.inbox + b".p", 1)
    took = time.perf_counter() - began
    assert client.api("CONSUMER.INFO.S.c", {})["num_ack_pending"] == 0
    print(f"  one ack for all: {took * 1e3:.0f} ms; longest pause {watch.end():.0f} ms")
    client.close()


def many_subjects(server: Server) -> None:
    """Read the last message of each of many subjects."""
    client = Connection(server.address)
    client.stream("S", ["sensor.>"])
    store(client, [b"sensor.%d" % number for number in range(SUBJECTS)])
    print(f"last_per_subject over {SUBJECTS:,} subjects")
    for wanted in (1, SUBJECTS):
        began, watch = time.perf_counter(), Watch(server)
        watch.start()
        client.read("S", b"MSG sensor.", wanted, deliver_policy="last_per_subject", filter_subject="sensor.*")
        took = time.perf_counter() - began
        print(f"  until message {wanted:,}: {took * 1e3:,.0f} ms; longest pause {watch.end():.0f} ms")
        client.close()
        client = Connection(server.address)
    client.close()


def many_messages(server: Server, number: int) -> None:
    """Create consumers with filters on a stream of many messages, and fetch the first message of each."""
    client = Connection(server.address)
    client.stream("S", ["m.>"])
    for first in range(0, number, GATHERED):
        store(client, [b"m.%d.%d" % (at % 10_000, at % 10) for at in range(first, min(first + GATHERED, number))])
    print(f"consumers of a stream of {number:,} messages of 10,000 subjects: created, and the first message")
    middle = client.api("STREAM.MSG.GET.S", {"seq": number // 2})["message"]["time"]
    for at, (title, config) in enumerate(
        (
            ("no filter", {}),
            ("one subject", {"filter_subject": "m.77.7"}),
            ("one in ten", {"filter_subject": "m.*.7"}),
            ("all by wildcards", {"filter_subjects": ["m.*.0", "m.*.1", "m.*.2", "m.*.3", "m.*.4", "m.*.5"]}),
            ("from a time", {"filter_subject": "m.*.7", "deliver_policy": "by_start_time", "opt_start_time": middle}),
            ("the last of each", {"filter_subject": "m.*.7", "deliver_policy": "last_per_subject"}),
        )
    ):
        began, watch = time.perf_counter(), Watch(server)
        watch.start()
        consumer(client, f"c{at}", **config)
        created = time.perf_counter() - began
        client.send(request(f"c{at}", client.inbox + b".p", 1))
        client.count(b"$JS.ACK.S.c%d" % at, 1)
        took = time.perf_counter() - began
        print(f"  {title + ':':<17} {created * 1e3:,.1f} ms, {took * 1e3:,.1f} ms; longest pause {watch.end():.0f} ms")
    client.close()


def consumer(client: Connection, name: str, **config: object) -> None:
    """Create a durable pull consumer of S."""
    fields = {"durable_name": name, "ack_policy": "explicit", **config}
    client.api(f"CONSUMER.CREATE.S.{name}", {"stream_name": "S", "config": fields})


def request(name: str, reply: bytes, batch: int, expires_ns: int = 600 * 10**9) -> bytes:
    """Return the bytes of a pull request."""
    body = b'{"batch":%d,"expires":%d}' % (batch, expires_ns)
    return b"PUB $JS.API.CONSUMER.MSG.NEXT.S.%s %s %d\r\n%s\r\n" % (name.encode(), reply, len(body), body)


def store(client: Connection, subjects: list[bytes]) -> None:
    """Publish to these subjects, and wait for every ack."""
    for at in range(0, len(subjects), WINDOW):
        some = subjects[at : at + WINDOW]
        client.publish(some, [PAYLOAD] * len(some))


def publish_ms(client: Connection) -> float:
    """Return the median of successive publishes, to subjects that match one consumer each."""
    took = []
    for number in range(PUBLISHES):
        began = time.perf_counter()
        client.publish([b"s.%d" % (number * 3)], [PAYLOAD])
        took.append(time.perf_counter() - began)
    return statistics.median(took) * 1e3


if __name__ == "__main__":
    sys.exit(main())
