#!/usr/bin/env python3
"""Measure many subjects in a real server: memory, restart, wildcards and purges, with more of them than memory.

    python -m tests.bench.bench_subjects [memory] [restart] [more] [cold] [--subjects 1000000] [--messages 10000000]
                                         [--many 10000000] [--limit 256]

memory:  what the index takes for each subject, by itself in a fresh process, with 1, 5 and 10 messages of each.
restart: a server with `--messages` on `--subjects` subjects is stopped, then killed: how long until it is ready;
         then direct gets, wildcards and purges of a tenth of the subjects, with the pause that each makes.
more:    `--many` subjects, with `max_index_memory` of `--limit` MiB: rates, memory of the process, wildcards, restart.
cold:    the index alone, with most of `--subjects` in a file: runs of 4,000 messages, added at once and, in turn,
         behind the steps of `SubjectIndex.warming`; processor time of a message, and of the longest part.

A pause is the longest round trip of a connection that does nothing but PING.

Figures: docs/benchmarks.md#many-subjects
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from lakestream.log.format.files import Files
from lakestream.log.index.memory_limit import IndexMemory
from lakestream.log.index.subject_index import SubjectIndex
from tests.bench.bench_scale import memory, used
from tests.servers import Kind, Server
from tests.wire import Wire, pub

ROOT = Path(__file__).resolve().parents[2]

PAYLOAD = b"x" * 16
WINDOW = 8
"""Maximum number of unacked blocks of messages."""
BLOCK = 1000
KEY = b"kv.%d.%02d.%07d"
"""Subject pattern: a wildcard behind the first token after kv matches a tenth, behind the second a thousandth."""


def main() -> int:
    """Run the measurements of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["memory", "restart", "more"])
    parser.add_argument("--subjects", type=int, default=1_000_000, help="(default: 1 million)")
    parser.add_argument("--messages", type=int, default=10_000_000, help="(default: 10 million)")
    parser.add_argument("--many", type=int, default=10_000_000, help="(default: 10 million)")
    parser.add_argument("--limit", type=int, default=256, help="MiB (default: 256)")
    parser.add_argument("--history", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.history:
        one_index(options.subjects, options.history)
        return 0
    if "memory" in options.parts:
        for history in (1, 5, 10):
            command = [
                sys.executable,
                "-m",
                "tests.bench.bench_subjects",
                "--history",
                str(history),
                "--subjects",
                str(options.subjects),
            ]
            subprocess.run(command, check=True)
    with tempfile.TemporaryDirectory(prefix="bench-subjects-") as directory:
        if "restart" in options.parts:
            restart(Path(directory) / "restart", options.subjects, options.messages)
        if "cold" in options.parts:
            cold_runs(Path(directory), options.subjects)
        if "more" in options.parts:
            more(Path(directory) / "more", options.many, options.limit)
    return 0


def key(number: int) -> bytes:
    """Return the subject of that number; groups alternate."""
    return KEY % (number % 10, number // 10 % 100, number)


# ---------------------------------------------------------------------- the index alone


def one_index(subjects: int, history: int) -> None:
    """Fill an index; print its memory and time."""
    rng = random.Random(1)
    with tempfile.TemporaryDirectory() as directory:
        index = SubjectIndex()
        index.keep_within(IndexMemory(1 << 40), Files(), directory)
        gc.collect()
        before, began = resident(), time.process_time()
        for turn in range(history):
            for first in range(0, subjects, BLOCK):
                names = [key(number) for number in range(first, first + BLOCK)]
                rng.shuffle(names)
                index.add_run(names, turn * subjects + first + 1)
        spent = time.process_time() - began
        gc.collect()
        size = resident() - before
    each, spent = size / subjects, spent / subjects / history * 1e6
    print(f"index of {subjects} subjects of {len(key(0))} bytes, {history} messages each: {each:.0f} bytes a subject, ")
    print(f"  {size >> 20} MiB (by its own guess {index.memory >> 20}), {spent:.2f} us of processor time a message")


def cold_runs(directory: Path, subjects: int) -> None:
    """Add runs of subjects that are mostly in a file, at once and in steps; print what either takes."""
    rng = random.Random(1)
    index = SubjectIndex()
    index.keep_within(IndexMemory(subjects * 30), Files(), str(directory))
    index.share()
    seq = 1
    for first in range(0, subjects, BLOCK):
        index.add_run([key(number * 7_919 % subjects) for number in range(first, first + BLOCK)], seq)
        seq += BLOCK
    spent: dict[str, list[list[float]]] = {"at once": [], "in steps": []}
    gc.disable()
    for turn in range(100):
        how = ("at once", "in steps")[turn % 2]
        run, parts = [key(rng.randrange(subjects)) for _ in range(4 * BLOCK)], list[float]()
        began = time.process_time()
        for _ in (index.warming(run) if how == "in steps" else None) or ():
            parts.append(time.process_time() - began)
            began = time.process_time()
        index.add_run(run, seq)
        parts.append(time.process_time() - began)
        spent[how].append(parts)
        seq += len(run)
    print(f"{subjects} subjects, {index.cold_subjects} of them in a file; runs of {4 * BLOCK} messages:")
    for how, runs in spent.items():
        each = sum(map(sum, runs)) / len(runs) / (4 * BLOCK) * 1e6
        longest = sorted(max(parts) * 1e3 for parts in runs)
        print(
            f"  {how}: {each:.1f} us of processor time a message; longest part of a run: median "
            f"{longest[len(longest) // 2]:.1f} ms, longest of all {longest[-1]:.1f} ms"
        )


def resident() -> int:
    """Return the resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# ---------------------------------------------------------------------- through a server


def restart(directory: Path, subjects: int, messages: int) -> None:
    """Fill a stream, stop and start the server, kill and start it; then read and purge."""
    server = Server(Kind.OURS, directory)
    server.start()
    try:
        with Wire(server.address, timeout=300) as wire:
            create(wire, {"name": "KV_BIG", "subjects": ["kv.>"], "allow_direct": True})
            print(f"{messages} messages on {subjects} subjects; empty: {memory(server)} MiB")
            publish(wire, server, range(messages), lambda number: key(number * 7919 % subjects))
            state = wire.api("STREAM.INFO.KV_BIG")["state"]
        for how in (partial(server.stop, timeout=300), server.kill):
            began = time.perf_counter()
            how()
            stopped = time.perf_counter()
            server.start()
            with Wire(server.address, timeout=300) as wire:
                again = wire.api("STREAM.INFO.KV_BIG")["state"]
                took = time.perf_counter() - stopped
            assert {**again, "consumer_count": 0} == {**state, "consumer_count": 0}, (state, again)
            print(
                f"  {'kill' if how == server.kill else 'stop'} {stopped - began:.1f} s, ready after {took:.2f} s "
                f"({used(server):.2f} s of processor time), {memory(server)} MiB"
            )
        with Wire(server.address, timeout=300) as wire:
            ask(wire, server, subjects)
            for body in ({"filter": "kv.3.>", "keep": subjects // 20}, {"filter": "kv.4.>"}):
                with pause(server, f"purge of a tenth of the subjects, {body}"):
                    answer = wire.api("STREAM.PURGE.KV_BIG", body, timeout=300)
                assert answer.get("success"), answer
    finally:
        server.kill()


def more(directory: Path, subjects: int, limit: int) -> None:
    """Measure a stream with more subjects than fit in memory."""
    directory.mkdir(parents=True)
    server = Server(Kind.OURS, directory / "data", config=f"jetstream {{ max_index_memory: {limit}MB }}\n")
    server.start()
    try:
        with Wire(server.address, timeout=300) as wire:
            create(wire, {"name": "KV_BIG", "subjects": ["kv.>"], "allow_direct": True, "max_msgs_per_subject": 1})
            print(f"{subjects} subjects, one message each, max_index_memory {limit} MiB; empty: {memory(server)} MiB")
            publish(wire, server, range(subjects), key)
            rng = random.Random(1)
            print("  the same again, in random order, a tenth of them")
            publish(wire, server, range(subjects // 10), lambda _: key(rng.randrange(subjects)))
            ask(wire, server, subjects)
        began = time.perf_counter()
        server.stop(timeout=300)
        print(f"  stop {time.perf_counter() - began:.1f} s")
        began = time.perf_counter()
        server.start()
        with Wire(server.address, timeout=300) as wire:
            wire.api("STREAM.INFO.KV_BIG")
            took = time.perf_counter() - began
            print(f"  ready after {took:.2f} s ({used(server):.2f} s of processor time), {memory(server)} MiB")
            ask(wire, server, subjects)
    finally:
        server.kill()


def create(wire: Wire, config: dict[str, object]) -> None:
    """Create the stream of all parts."""
    answer = wire.api("STREAM.CREATE.KV_BIG", config)
    assert "error" not in answer, answer


def publish(wire: Wire, server: Server, numbers: range, subject: Callable[[int], bytes]) -> None:
    """Publish in blocks, waiting for the ack of each block's last message; print the rate of each tenth."""
    waiting: list[str] = []
    tenth = max(len(numbers) // 10 // BLOCK, 1)
    began, before, last, longest = time.perf_counter(), used(server), time.perf_counter(), 0.0
    for block in range(len(numbers) // BLOCK):
        reply = wire.new_reply().encode()
        at = numbers[block * BLOCK]
        tail = b" %d\r\n%b\r\n" % (len(PAYLOAD), PAYLOAD)
        lines = [b"PUB %b%b" % (subject(number), tail) for number in range(at, at + BLOCK - 1)]
        lines.append(b"PUB %b %b%b" % (subject(at + BLOCK - 1), reply, tail))
        wire.send(b"".join(lines))
        waiting.append(reply.decode())
        if len(waiting) == WINDOW:
            frame = wire.message(waiting.pop(0))
            assert b'"error"' not in frame.data, frame
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
        if (block + 1) % tenth == 0:
            now, spent = time.perf_counter(), used(server)
            count = tenth * BLOCK
            rate, cost = count / (now - began), (spent - before) / count * 1e6
            print(
                f"  {(block + 1) * BLOCK:>10}: {rate:8.0f} msgs/s, {cost:5.1f} us of processor time each, "
                f"longest pause {longest * 1e3:5.0f} ms, {memory(server)} MiB",
                flush=True,
            )
            began, before, longest = now, spent, 0.0
    for each in waiting:
        wire.message(each)


def ask(wire: Wire, server: Server, subjects: int) -> None:
    """Read single subjects, and wildcards that match a thousandth and a few."""
    rng = random.Random(2)
    before, began = used(server), time.perf_counter()
    count = 20_000
    inbox = wire.new_reply()
    for _ in range(count // BLOCK):
        some = [key(rng.randrange(subjects)) for _ in range(BLOCK)]
        wire.send(b"".join(b"PUB $JS.API.DIRECT.GET.KV_BIG.%b %b 0\r\n\r\n" % (name, inbox.encode()) for name in some))
        for _ in range(BLOCK):
            wire.message(inbox)
    print(
        f"  {count} direct gets of random subjects: {count / (time.perf_counter() - began):.0f} a second, "
        f"{(used(server) - before) / count * 1e6:.1f} us of processor time each"
    )
    for turn in ("first", "second"):
        if subjects <= 1_024_000:
            with pause(server, f"multi_last of a thousandth, {turn} time"):
                reply = wire.new_reply()
                wire.send(pub("$JS.API.DIRECT.GET.KV_BIG", b'{"multi_last": ["kv.1.23.>"]}', reply))
                count = 0
                while not wire.message(reply).header.startswith(b"NATS/1.0 204"):
                    count += 1
            assert count == subjects // 1000, count
        with pause(server, f"STREAM.INFO with the subjects of a thousandth, {turn} time"):
            answer = wire.api("STREAM.INFO.KV_BIG", {"subjects_filter": "kv.1.23.>"}, timeout=300)
        assert len(answer["state"]["subjects"]) == subjects // 1000, len(answer["state"]["subjects"])


@contextmanager
def pause(server: Server, what: str) -> Iterator[None]:
    """Print the duration of an operation, and the longest round trip of another connection meanwhile."""
    longest, over = 0.0, threading.Event()

    def ping() -> None:
        nonlocal longest
        with Wire(server.address, timeout=300) as other:
            while not over.is_set():
                began = time.perf_counter()
                other.ping()
                longest = max(longest, time.perf_counter() - began)

    thread = threading.Thread(target=ping)
    thread.start()
    began, before = time.perf_counter(), used(server)
    yield
    took, spent = time.perf_counter() - began, used(server) - before
    over.set()
    thread.join()
    print(f"  {what}: {took:.3f} s, pause {longest * 1e3:.0f} ms, {spent:.2f} s of processor time")


if __name__ == "__main__":
    sys.exit(main())
