"""Load generator over raw sockets: prepared buffers out, answers counted instead of parsed.

Belongs here: one blocking connection, loads of the usual kinds (publishes in flight, one at a time, from many clients,
replays, pulls with acks), and what a server process uses for them. Standard library only, so that the server and not
the client is measured. Loads end after a time instead of a number of messages: a slow server does not make a run long.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Address = tuple[str, int]

WINDOW = 4_000
"""Maximum number of unanswered messages."""
BLOCK = 500
"""Messages that are sent at once."""
IN_FLIGHT = 8 << 20
"""Maximum number of unanswered payload bytes."""
PREPARED = 24 << 20
"""Approximate size of the prepared frames of one load, in bytes."""
READ = 1 << 18
"""Bytes of one read."""
ACKED = b'"seq":'
PATIENCE_S = 120.0
CPU_CLOCK = 2
"""Clock of a process's processor time in ns, where /proc counts ticks of 10 ms; see clock_getcpuclockid(3)."""
_ERROR = b'"error":'
_KEEP = 512
"""Bytes kept before new ones, in which an incomplete line may begin."""
_FLOW = re.compile(rb"HMSG \S+ \d+ (\S+) \d+ \d+\r\nNATS/1\.0 100 FlowControl Request")
_TO_ACK = re.compile(rb"(?:^|\r\n)MSG \S+ \S+ (\$JS\.ACK\.\S+) \d+\r\n")


class Refused(Exception):
    """Raised when the server answers with an error."""


class Rate(NamedTuple):
    """Result of a load: messages, and the seconds from the first one sent to the last answer."""

    messages: int
    seconds: float

    @property
    def per_s(self) -> float:
        """Return messages a second."""
        return self.messages / self.seconds


class Counter:
    """Counts a mark in data that comes in pieces."""

    def __init__(self, mark: bytes) -> None:
        self._mark = mark
        self._keep = len(mark) - 1
        self._tail = b""
        self.seen = 0

    def feed(self, data: bytes) -> None:
        """Count the marks in `data`, and one that began in the piece before."""
        keep = self._keep
        if keep:
            self.seen += (self._tail + data[:keep]).count(self._mark)
            self._tail = data[-keep:] if len(data) >= keep else (self._tail + data)[-keep:]
        self.seen += data.count(self._mark)


class Connection:
    """One blocking connection with an inbox: `SUB <inbox>.* 1`."""

    def __init__(self, address: Address) -> None:
        self._socket = socket.create_connection(address, timeout=PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""
        self._until(b"\r\n")
        options = b'{"verbose":false,"pedantic":false,"headers":true,"no_responders":true,"lang":"bench","protocol":1}'
        self.inbox = b"_INBOX.bench%x%s" % (os.getpid(), os.urandom(4).hex().encode())
        self.send(b"CONNECT %s\r\nSUB %s.* 1\r\n" % (options, self.inbox))
        self.round_trip()
        self._numbers = itertools.count(2)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def send(self, frames: bytes) -> None:
        """Send raw bytes."""
        self._socket.sendall(frames)

    def receive(self) -> bytes:
        """Wait for data and return it; answer a PING.

        Raises:
            Refused: the server sent `-ERR`.
        """
        data = self._socket.recv(READ)
        if not data:
            raise ConnectionError("the server closed the connection")
        if b"PING\r\n" in data:
            self._socket.sendall(b"PONG\r\n")
        if b"-ERR '" in data:
            raise Refused(data[data.index(b"-ERR '") :][:200].decode("latin-1"))
        return data

    def round_trip(self) -> None:
        """Send PING and wait for the PONG; skip everything before it."""
        self.send(b"PING\r\n")
        self._until(b"PONG\r\n")

    def subscribe(self, subject: bytes) -> int:
        """Subscribe; return the subscription's number, once the server knows it."""
        number = next(self._numbers)
        self.send(b"SUB %s %d\r\n" % (subject, number))
        self.round_trip()
        return number

    def api(self, subject: str, body: object = None) -> dict[str, Any]:
        """Send an API request; return its answer.

        Raises:
            Refused: the answer is an error.
        """
        content = b"" if body is None else json.dumps(body).encode()
        self.send(publish(b"$JS.API." + subject.encode(), self.inbox + b".a", content))
        head = self._until(b"\r\n")
        while not head.startswith(b"MSG %s.a " % self.inbox):
            head = self._until(b"\r\n")
        size = int(head.split()[-1])
        while len(self._rest) < size + 2:
            self._rest += self.receive()
        answer, self._rest = self._rest[:size], self._rest[size + 2 :]
        found: dict[str, Any] = json.loads(answer)
        if "error" in found:
            raise Refused(f"{subject}: {found['error']}")
        return found

    def stream(self, name: str, subjects: Sequence[str], **config: object) -> None:
        """Create a stream with file storage."""
        wanted = {"name": name, "subjects": list(subjects), "storage": "file", "allow_direct": True, **config}
        self.api(f"STREAM.CREATE.{name}", wanted)

    def bucket(self, name: str, **config: object) -> None:
        """Create the stream of a key-value bucket with history 1."""
        kept = {"max_msgs_per_subject": 1, "discard": "new", "allow_rollup_hdrs": True, "deny_delete": True}
        self.stream(f"KV_{name}", [f"$KV.{name}.>"], **kept, **config)

    def publish(self, subjects: Sequence[bytes], payloads: Sequence[bytes]) -> None:
        """Publish at most `WINDOW` messages, and wait for every ack."""
        assert len(subjects) <= WINDOW
        reply = self.inbox + b".p"
        frames = [publish(subject, reply, payload) for subject, payload in zip(subjects, payloads, strict=True)]
        self.send(b"".join(frames))
        self.count(ACKED, len(frames))

    def count(self, mark: bytes, wanted: int) -> None:
        """Read until `mark` has occurred `wanted` times; answer flow control."""
        tail, counter = b"", Counter(mark)
        while counter.seen < wanted:
            data = self.receive()
            counter.feed(data)
            window = tail + data
            for asked in _FLOW.finditer(window):
                if asked.end() > len(tail):
                    self.send(b"PUB %s 0\r\n\r\n" % asked[1])
            tail = data[-_KEEP:]

    def time_of(self, stream: str, seq: int) -> str:
        """Return the store time of a message."""
        return str(self.api(f"STREAM.MSG.GET.{stream}", {"seq": seq})["message"]["time"])

    def multi_last(self, stream: str, patterns: Sequence[str], messages: int, up_to_time: str = "") -> int:
        """Read `messages` answers and the closing status of a multi_last direct get, as of a time if that is given.

        Returns:
            Sequence as of which it was answered; 0 without one.
        """
        wanted: dict[str, object] = {"multi_last": list(patterns)}
        if up_to_time:
            wanted["up_to_time"] = up_to_time
        body = json.dumps(wanted).encode()
        self.send(publish(f"$JS.API.DIRECT.GET.{stream}".encode(), self.inbox + b".m", body))
        counter, tail = Counter(b"Nats-Time-Stamp"), b""
        while b"204 EOB" not in tail:
            data = self.receive()
            counter.feed(data)
            tail = tail[-_KEEP:] + data
            if b"NATS/1.0 4" in tail or b"NATS/1.0 5" in tail:
                raise Refused(tail.decode(errors="replace"))
        if counter.seen != messages:
            raise Refused(f"multi_last: {counter.seen} of {messages} messages")
        return int((tail.partition(b"UpTo-Sequence: ")[2].split() or [b"0"])[0])

    def read(self, stream: str, mark: bytes, messages: int, **config: object) -> float:
        """Read messages of a new consumer of the ordered kind: pushed, without acks, with flow control.

        Args:
            mark: bytes that occur once in each message, as `MSG orders.`.

        Returns:
            Seconds from the request for the consumer to the last message.
        """
        deliver = f"deliver.{os.urandom(6).hex()}"
        number = self.subscribe(deliver.encode())
        wanted = {
            "deliver_subject": deliver, "ack_policy": "none", "max_deliver": 1, "mem_storage": True, "num_replicas": 1,
            "flow_control": True, "idle_heartbeat": 5_000_000_000, "deliver_policy": "all", **config,
        }  # fmt: skip
        body = json.dumps({"stream_name": stream, "config": wanted}).encode()
        began = time.perf_counter()
        self.send(publish(f"$JS.API.CONSUMER.CREATE.{stream}".encode(), self.inbox + b".c", body))
        self.count(mark, messages)
        took = time.perf_counter() - began
        self.send(b"UNSUB %d\r\n" % number)
        self._rest = b""
        self.round_trip()
        return took

    def pull_and_ack(self, stream: str, durable: str, messages: int, batch: int = BLOCK) -> Rate:
        """Pull batches one after the other, with an ack for each message."""
        request = publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{durable}".encode(),
            self.inbox + b".n",
            json.dumps({"batch": batch, "expires": 10_000_000_000}).encode(),
        )
        began, done = time.perf_counter(), 0
        while done < messages:
            self.send(request)
            waiting, rest = batch, b""
            while waiting:
                data = rest + self.receive()
                at, acks = 0, []
                for found in _TO_ACK.finditer(data):
                    at = found.end() - 2
                    acks.append(b"PUB " + found[1] + b" 4\r\n+ACK\r\n")
                rest = data[at:]
                waiting -= len(acks)
                self.send(b"".join(acks))
            done += batch
        self.round_trip()
        return Rate(done, time.perf_counter() - began)

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._rest:
            self._rest += self.receive()
        head, _, self._rest = self._rest.partition(mark)
        return head


def publish(subject: bytes, reply: bytes, payload: bytes) -> bytes:
    """Return the frame of a publish; an empty reply is left out."""
    return b"PUB %s%s %d\r\n%s\r\n" % (subject, b" " + reply if reply else b"", len(payload), payload)


# ---------------------------------------------------------------------- loads


class Blocks(NamedTuple):
    """Prepared frames, in blocks of `count` messages, and the number of messages that may be unanswered."""

    frames: Sequence[bytes]
    count: int
    window: int


def blocks(frame: Callable[[int], bytes], window: int = WINDOW, most: int = 200_000) -> Blocks:
    """Prepare frames number 0, 1, … up to `most`, as many as `PREPARED` bytes hold; a load repeats them."""
    size = len(frame(0))
    window = max(1, min(window, IN_FLIGHT // size))
    count = max(1, min(BLOCK, window // 4))
    number = max(1, min(most, PREPARED // size) // count)
    return Blocks([b"".join(map(frame, range(at * count, (at + 1) * count))) for at in range(number)], count, window)


def pipelined(
    connection: Connection,
    prepared: Blocks,
    mark: bytes = ACKED,
    *,
    seconds: float = float("inf"),
    most: float = float("inf"),
    reader: Connection | None = None,
) -> Rate:
    """Send blocks for so many seconds, or until `most` messages, with a bounded number unanswered; read all answers.

    Args:
        mark: bytes that occur once in each answer.
        reader: connection that gets the answers, if that is another one.
    """
    counter, sent = Counter(mark), 0
    source = reader or connection
    began = time.perf_counter()
    for frames in itertools.cycle(prepared.frames):
        connection.send(frames)
        sent += prepared.count
        while sent - counter.seen > prepared.window - prepared.count:
            _count(source, counter)
        if sent >= most or time.perf_counter() - began >= seconds:
            break
    while counter.seen < sent:
        _count(source, counter)
    return Rate(sent, time.perf_counter() - began)


def _count(connection: Connection, counter: Counter) -> None:
    data = connection.receive()
    if _ERROR in data:
        raise Refused(data[max(0, data.index(_ERROR) - 100) :][:300].decode("latin-1"))
    counter.feed(data)


def spread(connections: Sequence[Connection], prepared: Sequence[Blocks], seconds: float) -> Rate:
    """Do as `pipelined` on several connections in turn, each with blocks of its own; return their common rate."""
    counters = [Counter(ACKED) for _ in connections]
    sent, at, began = 0, 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for connection, load, counter in zip(connections, prepared, counters, strict=True):
            connection.send(load.frames[at % len(load.frames)])
            while (at + 1) * load.count - counter.seen > load.window - load.count:
                _count(connection, counter)
            sent += load.count
        at += 1
    for connection, load, counter in zip(connections, prepared, counters, strict=True):
        while counter.seen < at * load.count:
            _count(connection, counter)
    return Rate(sent, time.perf_counter() - began)


def unanswered(connection: Connection, prepared: Blocks, seconds: float) -> Rate:
    """Send blocks that nothing answers for so many seconds; the PONG of a PING is the end."""
    sent, began = 0, time.perf_counter()
    for frames in itertools.cycle(prepared.frames):
        connection.send(frames)
        sent += prepared.count
        if time.perf_counter() - began >= seconds:
            break
    connection.round_trip()
    return Rate(sent, time.perf_counter() - began)


def one_at_a_time(connection: Connection, frames: Sequence[bytes], mark: bytes, seconds: float) -> list[float]:
    """Send one frame after the other for so many seconds; return the seconds until each answer, sorted."""
    took = []
    end = time.perf_counter() + seconds
    for frame in itertools.cycle(frames):
        began = time.perf_counter()
        connection.send(frame)
        data = connection.receive()
        while mark not in data or not data.endswith(b"\r\n"):
            data += connection.receive()
        now = time.perf_counter()
        took.append(now - began)
        if now >= end:
            break
    if _ERROR in data:
        raise Refused(data[:300].decode("latin-1"))
    return sorted(took)


def many_clients(
    address: Address, subject: bytes, payload: bytes, clients: int, seconds: float
) -> tuple[Rate, list[float]]:
    """Publish from so many clients at once, each one message at a time; return the rate and the sorted waits."""
    made = [Connection(address) for _ in range(clients)]
    frames = {each.fileno(): publish(subject, each.inbox + b".1", payload) for each in made}
    of = {each.fileno(): each for each in made}
    sent: dict[int, float] = {}
    took = []
    poll = select.epoll()
    try:
        for number in of:
            poll.register(number, select.EPOLLIN)
        began = time.perf_counter()
        end = began + seconds
        for number, each in of.items():
            sent[number] = time.perf_counter()
            each.send(frames[number])
        while sent:
            for number, _ in poll.poll(PATIENCE_S):
                data = of[number].receive()
                while not data.endswith(b"\r\n") or ACKED not in data:
                    if _ERROR in data:
                        raise Refused(data[:300].decode("latin-1"))
                    data += of[number].receive()
                now = time.perf_counter()
                took.append(now - sent.pop(number))
                if now < end:
                    sent[number] = now
                    of[number].send(frames[number])
                else:
                    poll.unregister(number)  # a PING may come, which no ack follows any more
        rate = Rate(len(took), time.perf_counter() - began)
    finally:
        poll.close()
        for each in made:
            each.close()
    return rate, sorted(took)


def steadily(connection: Connection, frames: bytes, count: int, per_s: float, is_over: Callable[[], bool]) -> Rate:
    """Send `frames`, which are `count` messages that want acks, at an even rate until `is_over` returns True."""
    counter, sent, began = Counter(ACKED), 0, time.perf_counter()
    while not is_over():
        connection.send(frames)
        sent += count
        while counter.seen < sent:
            _count(connection, counter)
        time.sleep(max(0.0, began + sent / per_s - time.perf_counter()))
    return Rate(sent, time.perf_counter() - began)


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which this share of the sorted values lies."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


# ---------------------------------------------------------------------- processes


def family(pid: int) -> Iterator[int]:
    """Yield a process and its descendants."""
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*"):  # a child belongs to the thread that started it
        try:
            children = (task / "children").read_text().split()
        except OSError:
            continue
        for child in children:
            yield from family(int(child))


def processor_s(pid: int) -> float:
    """Return the processor seconds of a process and its descendants, kernel included."""
    spent = 0.0
    for each in family(pid):
        with contextlib.suppress(OSError):  # it has ended
            spent += time.clock_gettime((~each << 3) | CPU_CLOCK)
    return spent


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process and its descendants."""
    size = 0
    for each in family(pid):
        try:
            size += int(Path(f"/proc/{each}/statm").read_text().split()[1])
        except OSError:
            continue
    return size * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
