"""Measure a scrape: time, size, and the time for which it holds up the event loop.

    python -m tests.bench.bench_metrics [--streams 1000] [--consumers 5000]

Fills a server with streams and consumers, and measures the round trip of PING on an idle connection without scrapes
and during scrapes. A client's PING waits while the event loop is held.

Figures: docs/metrics.md
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from tests.servers import Kind, Server
from tests.wire import Wire

SCRAPES = 5
IDLE_SECONDS = 3.0
SETTLE_SECONDS = 15.0
"""Time in which the server stages the segments of the new streams."""
START_SECONDS = 120.0


class Pings:
    """Round trips of PING, measured in a thread until `stop`; in ms."""

    def __init__(self, server: Server) -> None:
        self._wire, self._stop = Wire(server.address), threading.Event()
        self.took: list[float] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.perf_counter()
            self._wire.ping()
            self.took.append((time.perf_counter() - began) * 1000)

    def stop(self) -> str:
        """Stop; return median, 99th percentile and maximum."""
        self._stop.set()
        self._thread.join()
        self._wire.close()
        ordered = sorted(self.took)
        return (
            f"{statistics.median(ordered):6.2f} {ordered[int(len(ordered) * 0.99)]:6.2f} {ordered[-1]:6.2f}   "
            f"({len(ordered)} PINGs)"
        )


def fill(server: Server, streams: int, consumers: int) -> None:
    """Create streams with a message each, and consumers spread over them."""
    with Wire(server.address, timeout=60) as client:
        for number in range(streams):
            client.api(f"STREAM.CREATE.S{number}", {"name": f"S{number}", "subjects": [f"s.{number}"]})
            client.request(f"s.{number}", b"x" * 100)
        for number in range(consumers):
            stream = f"S{number % streams}"
            config = {"durable_name": f"D{number}", "ack_policy": "explicit", "filter_subject": f"s.{number % streams}"}
            client.api(f"CONSUMER.CREATE.{stream}.D{number}", {"stream_name": stream, "config": config})


def scrape(server: Server, gzip: bool) -> tuple[float, int, int]:
    """Scrape; return seconds, bytes received and samples (0 if compressed)."""
    headers = {"Accept-Encoding": "gzip"} if gzip else {}
    request = urllib.request.Request(f"http://{server.host}:{server.http_port}/metrics", headers=headers)
    began = time.perf_counter()
    with urllib.request.urlopen(request, timeout=60) as answer:
        body = answer.read()
    return (
        time.perf_counter() - began,
        len(body),
        0 if gzip else sum(line[:1] not in b"#" for line in body.splitlines()),
    )


def main() -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--consumers", type=int, default=5000)
    parser.add_argument("--json", action="store_true", help="print the figures of the scrapes as JSON, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        server = Server(Kind.OURS, Path(directory) / "store", args=["-m", "-1"])
        server.start(START_SECONDS)
        try:
            measure(server, options)
        finally:
            server.kill()


def measure(server: Server, options: argparse.Namespace) -> None:
    """Fill and measure."""
    fill(server, options.streams, options.consumers)
    time.sleep(SETTLE_SECONDS)
    memory = server.page("/varz")["mem"]
    first = scrape(server, False)
    print(f"{options.streams} streams, {options.consumers} consumers: {first[2]} samples, {first[1] / 1e6:.1f} MB")
    print(f"first scrape {first[0]:.2f} s (imports prometheus-client)")
    print("PING round trip, ms:      median   99 %    max")
    pings = Pings(server)
    time.sleep(IDLE_SECONDS)
    print(f"  without scrapes        {pings.stop()}")
    for gzip in (False, True):
        pings = Pings(server)
        found = [scrape(server, gzip) for _ in range(SCRAPES)]
        line = pings.stop()
        seconds, size = statistics.median(each[0] for each in found), found[0][1]
        print(
            f"  during scrapes{' (gzip)' if gzip else '       '}  {line}  scrape {seconds:.2f} s, {size / 1e6:.2f} MB"
        )
        if options.json:
            print(json.dumps({"gzip": gzip, "seconds": [round(each[0], 3) for each in found], "bytes": size}))
    after = server.page("/varz")["mem"]
    count = 2 * SCRAPES + 1
    print(f"memory of the server: {memory / 1e6:.0f} MB before the first scrape, {after / 1e6:.0f} MB after {count}")


if __name__ == "__main__":
    main()
