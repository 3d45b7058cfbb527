#!/usr/bin/env python3
"""Measure core messages over WebSocket beside TCP, with and without compression; beside nats-server.

    python -m tests.bench.bench_websocket [--messages 300000] [--size 128] [--runs 3]

publish:  one client publishes without subscribers, in writes of 64 KiB: over WebSocket a write is one frame.
single:   the same, but each command is a frame of its own, as nats-py and some others send them.
receive:  one client over TCP publishes, another one receives over the transport.

The clients are loops over prepared bytes in this process, so that the server is what is measured. A figure is the
median of the runs, in thousands of messages per second.

Figures: docs/benchmarks.md#websocket
"""

from __future__ import annotations

import argparse
import socket
import statistics
import tempfile
import threading
import time
import zlib
from pathlib import Path
from typing import NamedTuple

from tests.servers import Kind, Server
from tests.websocket import DEFLATE, frame, request, shake

WRITE = 1 << 16
CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"protocol":0}\r\n'
CONFIG = 'websocket { listen: "127.0.0.1:-1", no_tls: true, compression: true }\n'
TIMEOUT_S = 120.0


class Way(NamedTuple):
    """One way to a server: over WebSocket or TCP, compressed or not."""

    name: str
    web: bool = False
    compressed: bool = False

    def connect(self, server: Server) -> socket.socket:
        """Return a connection that is logged in."""
        port = server.websocket_port if self.web else server.port
        opened = socket.create_connection((server.host, port), TIMEOUT_S)
        if self.web:
            fields = {"Sec-WebSocket-Extensions": DEFLATE} if self.compressed else {}
            assert shake(opened, request(fields, host="h"), TIMEOUT_S).accepted
        opened.sendall(self.framed(CONNECT + b"PING\r\n"))
        _until(opened, b"PONG\r\n")
        return opened

    def framed(self, data: bytes) -> bytes:
        """Return the data as it is sent."""
        if not self.web:
            return data
        if not self.compressed or len(data) <= 64:
            return frame(2, data)
        packer = zlib.compressobj(1, zlib.DEFLATED, -15)
        return frame(2, (packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH))[:-4], reserved=4)


WAYS = (Way("TCP"), Way("WebSocket", True), Way("WebSocket, compressed", True, True))


def _until(opened: socket.socket, end: bytes) -> None:
    """Read until `end` has come. Short frames are not compressed, so it is found over WebSocket too."""
    got = b""
    while end not in got:
        got = got[-len(end) :] + opened.recv(1 << 20)


class Frames:
    """Counts the bytes of messages in the frames of a server."""

    def __init__(self) -> None:
        self._buffer = b""
        self.count = 0

    def feed(self, data: bytes) -> None:
        buffer, at = self._buffer + data, 0
        while len(buffer) - at >= 10:
            size, begin = buffer[at + 1], at + 2
            if size > 125:
                begin += 2 if size == 126 else 8
                size = int.from_bytes(buffer[at + 2 : begin])
            if begin + size > len(buffer):
                break
            packed = buffer[begin : begin + size]
            plain = zlib.decompressobj(-15).decompress(packed + b"\0\0\xff\xff") if buffer[at] & 0x40 else packed
            self.count += plain.count(b"MSG ")
            at = begin + size
        self._buffer = buffer[at:]


def publish(server: Server, way: Way, messages: int, body: bytes, one: bool = False) -> float:
    """Return the seconds until the server has taken all messages; `one`: each in a frame of its own."""
    command = b"PUB orders.new %d\r\n%b\r\n" % (len(body), body)
    per_block = WRITE // len(command)
    block = way.framed(command) * per_block if one else way.framed(command * per_block)
    with way.connect(server) as opened:
        began = time.perf_counter()
        for _ in range(messages // per_block):
            opened.sendall(block)
        opened.sendall(way.framed(b"SUB end 1\r\nPUB end 0\r\n\r\n"))
        _until(opened, b"MSG end 1 0")
        return (time.perf_counter() - began) * messages / (messages // per_block * per_block)


def single(server: Server, way: Way, messages: int, body: bytes) -> float:
    """Return the seconds until the server has taken all messages, each of which is a frame."""
    return publish(server, way, messages, body, one=True)


def receive(server: Server, way: Way, messages: int, body: bytes) -> float:
    """Return the seconds until the receiver has all messages."""
    command = b"PUB orders.new %d\r\n%b\r\n" % (len(body), body)
    count = WRITE // len(command)
    block = command * count
    with way.connect(server) as receiver, WAYS[0].connect(server) as publisher:
        receiver.sendall(way.framed(b"SUB orders.new 1\r\n"))
        time.sleep(0.1)
        total = messages // count * count
        sender = threading.Thread(target=lambda: [publisher.sendall(block) for _ in range(messages // count)])
        seen, frames, tail = 0, Frames(), b""
        began = time.perf_counter()
        sender.start()
        while seen < total:
            data = receiver.recv(1 << 20)
            if way.web:
                frames.feed(data)
                seen = frames.count
            else:
                seen += (tail + data).count(b"MSG ")
                tail = data[-3:]
        took = time.perf_counter() - began
        sender.join()
        return took * messages / total


MEASURES = {"publish": publish, "single": single, "receive": receive}


def main() -> int:
    """Run the measurements of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=300_000, help="of a run (default: 300,000)")
    parser.add_argument("--size", type=int, default=128, help="bytes of a message (default: 128)")
    parser.add_argument("--runs", type=int, default=3, help="(default: 3)")
    options = parser.parse_args()
    body = (b'{"order":%d,"state":"new","at":"2026-01-01T00:00:00Z"}' % 12345 * (options.size // 40 + 1))[
        : options.size
    ]
    messages = options.messages
    for kind in (Kind.OURS, Kind.REAL):
        with tempfile.TemporaryDirectory(prefix="bench-websocket-") as directory:
            server = Server(kind, Path(directory) / "data", config=CONFIG, jetstream=False)
            server.start()
            try:
                for way, name in ((way, name) for way in WAYS for name in MEASURES):
                    measure = MEASURES[name]
                    seconds = statistics.median(measure(server, way, messages, body) for _ in range(options.runs))
                    print(f"{kind.value:12} {name:8} {way.name:22} {messages / seconds / 1e3:8.0f} k/s", flush=True)
            finally:
                server.kill()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
