"""NATS client for benchmarks with minimal cost: it counts the messages that it gets without parsing them.

Belongs here: publishing with acks and reading a consumer over a raw socket, so that the server is what is measured.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
from collections.abc import Sequence
from typing import Any

WINDOW = 4_000
"""Maximum number of unacked publishes."""
_FLOW = re.compile(rb"HMSG \S+ \d+ (\S+) \d+ \d+\r\nNATS/1\.0 100 FlowControl Request")
_KEEP = 512
"""Bytes kept before new ones, in which an incomplete line may begin."""
_ACK = b'"seq":'


class Replay:
    """One blocking connection."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=120)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""
        self._until(b"\r\n")
        options = b'{"verbose":false,"pedantic":false,"headers":true,"lang":"bench","version":"1","protocol":1}'
        self._socket.sendall(b"CONNECT %s\r\nPING\r\n" % options)
        self._until(b"PONG\r\n")
        self._inbox = b"_INBOX.bench%d" % os.getpid()
        self._socket.sendall(b"SUB %s.* 1\r\n" % self._inbox)
        self._numbers = itertools.count(1)

    @property
    def inbox(self) -> bytes:
        """Return the prefix of reply subjects whose messages are read by `count`."""
        return self._inbox

    def send(self, frames: bytes) -> None:
        """Send raw bytes."""
        self._socket.sendall(frames)

    def round_trip(self) -> None:
        """Send PING and wait for the PONG; skip everything before it."""
        self._socket.sendall(b"PING\r\n")
        self._until(b"PONG\r\n")

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def stream(self, name: str, subjects: list[str]) -> None:
        """Create a stream with file storage."""
        self.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": subjects, "storage": "file", "allow_direct": True})

    def publish(self, subjects: Sequence[bytes], payloads: Sequence[bytes]) -> None:
        """Publish, and wait for every ack."""
        inbox = self._inbox
        frames = [
            b"PUB %s %s.p %d\r\n%s\r\n" % (subject, inbox, len(payload), payload)
            for subject, payload in zip(subjects, payloads, strict=True)
        ]
        assert len(frames) <= WINDOW
        self._socket.sendall(b"".join(frames))
        self.count(_ACK, len(frames))

    def time_of(self, stream: str, seq: int) -> str:
        """Return the store time of a message."""
        return str(self.api(f"STREAM.MSG.GET.{stream}", {"seq": seq})["message"]["time"])

    def multi_last(self, stream: str, patterns: list[str], up_to_time: str, messages: int) -> int:
        """Read `messages` answers and the final status of a multi_last direct get as of a time.

        Returns the sequence as of which it was answered.
        """
        body = json.dumps({"multi_last": patterns, "up_to_time": up_to_time}).encode()
        subject = f"$JS.API.DIRECT.GET.{stream}".encode()
        self._socket.sendall(b"PUB %s %s.m %d\r\n%s\r\n" % (subject, self._inbox, len(body), body))
        window, seen = b"", 0
        while b"204 EOB" not in window:
            tail, window = window[-_KEEP:], window[-_KEEP:] + self._receive()
            seen += window.count(b"Nats-Time-Stamp") - tail.count(b"Nats-Time-Stamp")
            if b"NATS/1.0 4" in window or b"NATS/1.0 5" in window:
                raise RuntimeError(window.decode(errors="replace"))
        assert seen == messages, f"{seen} of {messages} messages"
        return int(window.partition(b"UpTo-Sequence: ")[2].split()[0])

    def read(self, stream: str, messages: int, deliver_policy: str = "all", **config: Any) -> None:
        """Read `messages` messages of a new consumer of the ordered kind: pushed, without acks, with flow control."""
        number = next(self._numbers)
        deliver = f"deliver.{number}"
        self._socket.sendall(b"SUB %s %d\r\n" % (deliver.encode(), number + 1))
        wanted = {
            "deliver_subject": deliver, "ack_policy": "none", "max_deliver": 1, "mem_storage": True, "num_replicas": 1,
            "flow_control": True, "idle_heartbeat": 5_000_000_000, "deliver_policy": deliver_policy, **config,
        }  # fmt: skip
        body = json.dumps({"stream_name": stream, "config": wanted}).encode()
        subject = f"$JS.API.CONSUMER.CREATE.{stream}".encode()
        self._socket.sendall(b"PUB %s %s.c %d\r\n%s\r\n" % (subject, self._inbox, len(body), body))
        self.count(b"MSG sensor.", messages)
        self._socket.sendall(b"UNSUB %d\r\nPING\r\n" % (number + 1))
        self._until(b"PONG\r\n")
        self._rest = b""

    def count(self, mark: bytes, wanted: int) -> None:
        """Read until `mark` has occurred `wanted` times."""
        tail, seen = b"", 0
        while seen < wanted:
            data = self._receive()
            window = tail + data
            seen += window.count(mark) - tail.count(mark)
            for asked in _FLOW.finditer(window):
                if asked.end() > len(tail):
                    self._socket.sendall(b"PUB %s 0\r\n\r\n" % asked[1])
            if b"PING\r\n" in data[:6] or b"\r\nPING\r\n" in data:
                self._socket.sendall(b"PONG\r\n")
            tail = window[-_KEEP:]

    def api(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send an API request; return its answer.

        Raises:
            RuntimeError: the request is refused.
        """
        content = json.dumps(body).encode()
        request = b"PUB $JS.API.%s %s.a %d\r\n%s\r\n" % (subject.encode(), self._inbox, len(content), content)
        self._socket.sendall(request)
        head = self._until(b"\r\n")
        while not head.startswith(b"MSG %s.a " % self._inbox):
            head = self._until(b"\r\n")
        size = int(head.split()[-1])
        while len(self._rest) < size + 2:
            self._rest += self._receive()
        answer, self._rest = self._rest[:size], self._rest[size + 2 :]
        found: dict[str, Any] = json.loads(answer)
        if "error" in found:
            raise RuntimeError(f"{subject}: {found['error']}")
        return found

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._rest:
            self._rest = self._rest + self._receive()
        head, _, self._rest = self._rest.partition(mark)
        return head

    def _receive(self) -> bytes:
        data = self._socket.recv(1 << 20)
        if not data:
            raise ConnectionError("the server closed the connection")
        return data
