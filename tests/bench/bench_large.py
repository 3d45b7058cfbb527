"""Measure one very large stream: publishes beside the compactor, memory, disk, a restart, and reads of the table.

    python -m tests.bench.bench_large [--messages 50000000] [--subjects 100000] [--dir DIRECTORY]

Starts `lakestream up` with its defaults on a store in DIRECTORY, publishes JSON of about 95 bytes to the subjects in
turn, and waits until the table has every message. Then: the memory of the server, and the most that it had; bytes of
log and lake; the time of a clean stop, and of a start until clients can connect; direct gets of sequences at random,
the first ones and later ones, and of the last messages of subjects at random; a replay of a million messages from the
beginning, by a consumer and by batches of direct gets; `count(*)`, and one subject, in SQL. Sequences and counts are
compared with what was published. Prints a line for each figure. Needs Java 17 or newer, and about 120 bytes of disk for
each message, 200 at times.

Figures: docs/campaigns.md#a-large-stream
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from lakestream.lake.table.at import latest_progress
from lakestream_sql.session import Session
from lakestream_sql.uncompacted import FlushServer
from tests.bench.load import Connection, blocks, pipelined, publish
from tests.bench.sql import payload

READY = b"Listening for client connections on "
MIB = 1 << 20
PIECE = 100_000
"""Most subjects of which the frames are prepared together."""
SHOWN = 10_000_000
GETS = {"first": 200, "next": 1_000}
REPLAYED = 1_000_000
BATCH = 10_000
SAMPLE_S = 0.5
LOOK_S = 0.2


class Peak(threading.Thread):
    """Samples the resident memory of a process."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._process = psutil.Process(pid)
        self._over = threading.Event()
        self.most = 0

    def run(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            while not self._over.wait(SAMPLE_S):
                self.most = max(self.most, self.now())

    def now(self) -> int:
        """Return the present bytes."""
        return int(self._process.memory_info().rss)

    def end(self) -> None:
        """Stop."""
        self._over.set()
        self.join()


@contextlib.contextmanager
def started(store: Path) -> Iterator[tuple[psutil.Popen, tuple[str, int], float]]:
    """Start `lakestream up`; yield its process, address, and the seconds until it listens. Stop it at the end."""
    command = [
        str(Path(sys.executable).with_name("lakestream")),
        "up",
        "-a",
        "127.0.0.1",
        "-p",
        "-1",
        "-sd",
        str(store),
    ]
    began = time.perf_counter()
    process = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        found = next(line.split(READY)[1].decode().strip() for line in process.stderr if READY in line)
        took = time.perf_counter() - began
        threading.Thread(target=process.stderr.read, daemon=True).start()
        host, _, port = found.rpartition(":")
        yield process, (host, int(port)), took
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(120)


def show(name: str, value: str) -> None:
    """Print a figure."""
    print(f"{name:<48} {value}", flush=True)


def size(directory: Path) -> int:
    """Return the bytes of the files below a directory; those that vanish meanwhile do not count."""
    total = 0
    for at, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(at, name)).st_size
    return total


def stored(table: Path) -> int:
    """Return the last sequence in a table."""
    progress = latest_progress(table)
    return progress.last_seq if progress is not None else 0


def fill(address: tuple[str, int], table: Path, messages: int, subjects: int) -> None:
    """Publish all messages, and wait for their table."""
    with Connection(address) as client:
        client.stream("LARGE", ["large.>"])
        reply = client.inbox + b".p"

        def frame(first: int, number: int) -> bytes:
            return publish(b"large.%d" % (first + number), reply, payload(first + number))

        size = min(PIECE, subjects)
        pieces = [blocks(functools.partial(frame, first), most=size) for first in range(0, subjects, size)]
        assert all(len(piece.frames) * piece.count == size for piece in pieces), "a piece has each of its subjects"
        began = time.perf_counter()
        for done, piece in zip(range(size, messages + 1, size), itertools.cycle(pieces), strict=False):
            pipelined(client, piece, most=size)
            if not done % SHOWN:
                show(f"{done:,} published", f"{done / (time.perf_counter() - began):,.0f}/s")
        took = time.perf_counter() - began
        behind = messages - stored(table)
        show("published beside the compactor", f"{messages / took:,.0f}/s, then {behind:,} behind")
        while stored(table) < messages:
            time.sleep(LOOK_S)
        show(
            "until the table has all",
            f"{time.perf_counter() - began:,.0f} s, {messages / (time.perf_counter() - began):,.0f}/s",
        )


def read(process: psutil.Popen, address: tuple[str, int], store: Path, messages: int, subjects: int) -> None:
    """Read in every way, and compare."""
    chance = random.Random(1)

    def spent() -> float:
        return float(sum(process.cpu_times()[:2]))

    with Connection(address) as client:
        assert client.api("STREAM.INFO.LARGE")["state"]["messages"] == messages
        took = list[float]()
        for name, count in GETS.items():
            took.clear()
            before = spent()
            for _ in range(count):
                seq = chance.randint(1, messages)
                began = time.perf_counter()
                client.send(publish(b"$JS.API.DIRECT.GET.LARGE", client.inbox + b".g", b'{"seq":%d}' % seq))
                client.count(b"Nats-Sequence: %d\r\n" % seq, 1)
                took.append(time.perf_counter() - began)
            used = f"{(spent() - before) / count * 1e3:.2f} ms of processor time"
            show(f"direct gets by sequence, the {name} {count:,}", f"{_times(took)}, {used}")
        took.clear()
        for _ in range(GETS["next"]):
            number = chance.randrange(subjects)
            last = messages - (messages - 1 - number) % subjects
            began = time.perf_counter()
            client.send(publish(b"$JS.API.DIRECT.GET.LARGE.large.%d" % number, client.inbox + b".g", b""))
            client.count(b"Nats-Sequence: %d\r\n" % last, 1)
            took.append(time.perf_counter() - began)
        show("direct gets of the last of a subject, p50, p99", _times(took))
        before = spent()
        seconds = client.read("LARGE", b"MSG large.", REPLAYED)
        used = f"{REPLAYED / (spent() - before):,.0f} per second of processor time"
        show("replay from the beginning", f"{REPLAYED / seconds:,.0f}/s, {used}")
        before, began = spent(), time.perf_counter()
        for seq in range(REPLAYED + 1, 2 * REPLAYED, BATCH):
            asked = b'{"seq":%d,"batch":%d}' % (seq, BATCH)
            client.send(publish(b"$JS.API.DIRECT.GET.LARGE", client.inbox + b".b", asked))
            client.count(b"EOB", 1)
        used = f"{REPLAYED / (spent() - before):,.0f} per second of processor time"
        show("the next as batches of direct gets", f"{REPLAYED / (time.perf_counter() - began):,.0f}/s, {used}")
    with Session(store / "lake", server=FlushServer()) as session:
        for query, answer in (
            ("SELECT count(*) FROM LARGE", messages),
            ("SELECT count(*) FROM LARGE WHERE subject = 'large.77'", messages // subjects),
        ):
            session.query(query).fetchall()
            began = time.perf_counter()
            assert session.query(query).fetchall() == [(answer,)], query
            show(query, f"{(time.perf_counter() - began) * 1e3:,.0f} ms")


def _times(took: list[float]) -> str:
    ordered = sorted(took)
    return f"{statistics.median(took) * 1e3:.2f} ms, {ordered[int(len(took) * 0.99)] * 1e3:.2f} ms"


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=50_000_000)
    parser.add_argument("--subjects", type=int, default=100_000, help=f"a divisor or a multiple of {PIECE:,}")
    parser.add_argument("--dir", type=Path)
    options = parser.parse_args()
    subjects = options.subjects
    messages = options.messages // max(PIECE, subjects) * max(PIECE, subjects)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.dir) as directory:
        store = Path(directory) / "store"
        table = store / "lake" / "streams" / "LARGE"
        with started(store) as (process, address, _):
            peak = Peak(process.pid)
            peak.start()
            fill(address, table, messages, subjects)
            peak.end()
            show("server's memory: at the end, the most", f"{peak.now() / MIB:,.0f} MiB, {peak.most / MIB:,.0f} MiB")
            show(
                "bytes of a message in the lake, in the log",
                f"{size(store / 'lake') / messages:.1f}, {size(store / 'jetstream') / messages:.1f}",
            )
            began = time.perf_counter()
        show("clean stop", f"{time.perf_counter() - began:.2f} s")
        with started(store) as (process, address, took):
            show("start until it listens", f"{took:.2f} s")
            peak = Peak(process.pid)
            peak.start()
            read(process, address, store, messages, subjects)
            peak.end()
            show("server's memory after reads, the most", f"{peak.now() / MIB:,.0f} MiB, {peak.most / MIB:,.0f} MiB")


if __name__ == "__main__":
    main()
