"""Measure the protocol core and the interest graph: `python -m tests.bench.bench_protocol`.

Each figure is the best of several short runs, on one core, with no sockets.

Figures: docs/benchmarks.md#single-parts
"""

from __future__ import annotations

import timeit
from collections.abc import Callable
from typing import Any, cast

from lakestream.net.interest.interest import Interest
from lakestream.net.interest.subscription import Subscription
from lakestream.protocol import headers
from lakestream.protocol.parser import Parser
from lakestream.protocol.publishes import single

BUFFER = 256 * 1024
PAYLOAD = 128
RUNS = 5


def best(work: Callable[[], object], number: int = 3) -> float:
    """Return the minimum seconds of one call of `work`."""
    return min(timeit.repeat(work, number=number, repeat=RUNS)) / number


def bench_parser() -> None:
    """Parse whole read buffers, buffers cut at 64 KiB, and a large payload in pieces."""
    reply = b"_INBOX.abcdefghijklmnopqrstuv.000001"
    lines = {
        "PUB": b"PUB orders.new %d\r\n" % PAYLOAD,
        "PUB with reply": b"PUB orders.new %b %d\r\n" % (reply, PAYLOAD),
        "HPUB with reply": b"HPUB orders.new %b 32 %d\r\n%b" % (reply, PAYLOAD + 32, b"h" * 32),
        "PUB, bare LF": b"PUB orders.new %d\n" % PAYLOAD,
    }
    for name, line in lines.items():
        one = line + b"x" * PAYLOAD + b"\r\n"
        count = BUFFER // len(one)
        whole = one * count
        pieces = [whole[i : i + 65536] for i in range(0, len(whole), 65536)]

        def parse(parts: list[bytes], count: int = count) -> None:
            parser = Parser()
            parser.headers = True
            assert sum(1 for part in parts for _ in single(parser.feed(part))) == count

        seconds, cut = best(lambda parts=[whole]: parse(parts)), best(lambda parts=pieces: parse(parts))
        print(f"parse {name:18} {count / seconds / 1e6:6.2f} M/s whole, {count / cut / 1e6:6.2f} M/s in 64 KiB pieces")
    others = b"SUB _INBOX.abc.1 17\r\nUNSUB 17 1\r\nPING\r\n" * 2000
    print(f"parse SUB, UNSUB, PING   {6000 / best(lambda: Parser().feed(others)) / 1e6:6.2f} M/s")
    for size in (1 << 20, 8 << 20):
        large = b"PUB a %d\r\n" % size + b"x" * size + b"\r\n"
        pieces = [large[i : i + 65536] for i in range(0, len(large), 65536)]
        seconds = best(lambda parts=pieces, size=size: [_feed_large(parts, size)])
        print(f"parse {size >> 20} MiB payload in 64 KiB pieces {seconds * 1e3:6.2f} ms")


def _feed_large(parts: list[bytes], size: int) -> None:
    """Parse one large payload with a new parser."""
    parser = Parser(max_payload=size)
    assert sum(len(parser.feed(part)) for part in parts) == 1


def bench_match() -> None:
    """Match each kind of subject, as fresh bytes objects, on a graph like a busy server's."""
    graph = Interest()
    for i in range(1000):
        graph.insert(_subscription(b"_INBOX.client%d.*" % i))
        graph.insert(_subscription(b"deliver.%d" % i))
    for pattern in (
        b"$JS.API.>",
        b"$JS.ACK.>",
        b"$JS.API.DIRECT.GET.KV_b.>",
        b"$KV.b.>",
        b"orders.>",
        b"one.subject",
        b"x.*.y",
    ):
        graph.insert(_subscription(pattern))
    kinds = {
        "literal, repeated": lambda i: b"one.subje%b" % b"ct",
        "under a stream, repeated": lambda i: b"orders.ne%b" % b"w",
        "inbox reply": lambda i: b"_INBOX.client7.%d" % i,
        "under a stream, never twice": lambda i: b"orders.%d" % i,
        "key, never twice": lambda i: b"$KV.b.key.%d" % i,
        "ack": lambda i: b"$JS.ACK.ORDERS.C.1.%d.%d.1795235308980646697.0" % (i, i),
        "direct get": lambda i: b"$JS.API.DIRECT.GET.KV_b.$KV.b.%d" % i,
        "nobody listens": lambda i: b"nobody.there.%d" % i,
        "wildcard inside, never twice": lambda i: b"x.%d.y" % i,
    }
    for name, subject in kinds.items():
        count, seconds = 20000, []
        for run in range(RUNS):
            subjects = [subject(run * count + i) for i in range(count)]
            seconds.append(timeit.timeit(lambda subjects=subjects: _match_all(graph, subjects), number=1))
        print(f"match {name:29} {min(seconds) / count * 1e6:6.3f} µs")
    for name, pattern in {"inbox.*": b"_INBOX.c%d.*", "inbox": b"_INBOX.c%d", "inbox.>": b"_INBOX.c%d.>"}.items():
        subs = [_subscription(pattern % i) for i in range(5000)]

        def churn(subs: list[Subscription] = subs) -> None:
            for sub in subs:
                graph.insert(sub)
                graph.remove(sub)

        print(f"subscribe + unsubscribe {name:11} {best(churn, 1) / len(subs) * 1e6:6.2f} µs")


def _subscription(subject: bytes) -> Subscription:
    return Subscription(cast(Any, None), subject, b"", b"1")


def _match_all(graph: Interest, subjects: list[bytes]) -> None:
    match = graph.match
    for subject in subjects:
        match(subject)


def bench_headers() -> None:
    """Read and build one header block."""
    block = headers.build([(b"Nats-Expected-Last-Sequence", b"12"), (b"Nats-Msg-Id", b"abc"), (b"X", b"1")])
    for name, work in {
        "get, there": lambda: headers.get(block, b"Nats-Msg-Id"),
        "get, not there": lambda: headers.get(block, b"Nats-TTL"),
        "parse": lambda: headers.parse(block),
    }.items():
        print(f"headers {name:15} {best(work, 20000) * 1e6:6.3f} µs")


if __name__ == "__main__":
    bench_parser()
    bench_match()
    bench_headers()
