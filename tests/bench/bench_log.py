"""Measure the log without a server.

Belongs here: micro-benchmarks of encoding, applying, reading and committing. Run `python -m tests.bench.bench_log`;
it writes below a temporary directory and prints one line for each figure.

Figures: docs/benchmarks.md#single-parts
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lakestream.log.format.files import Brief, InlineIo, Io
from lakestream.log.format.frame import Frame, Kind
from lakestream.log.format.record import encode_record
from lakestream.log.index.sequences import SequenceSet
from lakestream.log.index.subject_index import SubjectIndex
from lakestream.log.store.segment_log import LogOptions
from lakestream.log.store.segment_store import open_store
from lakestream.log.store.store import Store
from lakestream.raft.group.group import Callbacks, Committed, Proposal
from lakestream.raft.group.solo import SoloGroup

FRAME = 1000
FRAMES = 200
PAYLOAD = b"x" * 128
MANY = [b"ORDERS.region%d.item%d" % (i % 7, i * 7919 % 10_000) for i in range(FRAME)]


class Threads(Io):
    """`Io` over the running loop, as the server has it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(2)

    def submit(
        self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None], brief: Brief = Brief.NO
    ) -> None:
        def run() -> None:
            try:
                result = work()
            except BaseException as error:
                self._loop.call_soon_threadsafe(done, None, error)
            else:
                self._loop.call_soon_threadsafe(done, result, None)

        self._pool.submit(run)


def show(name: str, seconds: float, count: int) -> None:
    print(f"{name:<58} {seconds / count * 1e6:8.3f} µs   {count / seconds:12,.0f} /s")


def timed(work: Callable[[], object], repeat: int = 3) -> float:
    best = float("inf")
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def bench_encode() -> None:
    def plain() -> None:
        for seq, subject in enumerate(MANY * 20):
            encode_record(seq, 1, subject, b"", PAYLOAD)

    def with_header() -> None:
        for seq, subject in enumerate(MANY * 20):
            encode_record(seq, 1, subject, b"NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n", PAYLOAD)

    show("encode_record, 128 B", timed(plain), FRAME * 20)
    show("encode_record, 128 B and a header block", timed(with_header), FRAME * 20)


def filled(directory: str, subjects: list[bytes], apply_time: list[float]) -> Store:
    options = LogOptions(seal_age_ns=1 << 60, sync_always=False)
    store = open_store(directory, InlineIo(), options, uid="bench")
    seq = 1
    for index in range(1, FRAMES + 1):
        records = [encode_record(n, n, s, b"", PAYLOAD) for n, s in enumerate(subjects, seq)]
        state = store.log.seal_state(store.log.now())
        if state is not None:
            store.log.seal(state)
        (at,) = store.log.append([Frame(Kind.MESSAGES, 1, index, FRAME, b"".join(records))])
        lengths = list(map(len, records))
        start = time.perf_counter()
        store.apply_messages(at, seq, subjects, lengths, seq + FRAME)
        apply_time.append(time.perf_counter() - start)
        store.applied = index
        seq += FRAME
    return store


def bench_store(directory: str) -> None:
    spent: list[float] = []
    one = filled(os.path.join(directory, "one"), [b"ORDERS.one"] * FRAME, spent)
    show("apply_messages, frames of 1000, one subject", sum(spent), FRAME * FRAMES)
    one.close()
    spent = []
    store = filled(os.path.join(directory, "many"), MANY, spent)
    show("apply_messages, frames of 1000, 1000 subjects", sum(spent), FRAME * FRAMES)
    total = FRAME * FRAMES
    seqs = [n * 7919 % total + 1 for n in range(20_000)]
    show("read, random", timed(lambda: [store.read(seq) for seq in seqs]), len(seqs))

    def replay() -> None:
        seq = 1
        while run := store.read_run(seq, 1000, 1 << 20):
            seq = run[-1].seq + 1

    show("read_run of 1000, 128 B", timed(replay), total)

    def front() -> None:
        for seq in range(store.first_seq, store.first_seq + 20_000):
            store.remove(seq)

    show("remove the first", timed(front, 1), 20_000)
    middle = [seq for seq in seqs if seq > 30_000][:10_000]
    show("remove anywhere", timed(lambda: [store.remove(seq) for seq in middle], 1), len(middle))
    start = time.perf_counter()
    store.close()
    show("checkpoint at close (per message)", time.perf_counter() - start, total)
    start = time.perf_counter()
    open_store(os.path.join(directory, "many"), InlineIo())
    show("open from a checkpoint (per message)", time.perf_counter() - start, total)
    os.unlink(os.path.join(directory, "many", "checkpoint"))
    again = open_store(os.path.join(directory, "many"), InlineIo())
    from lakestream.log.format.record import iter_records

    def everything() -> None:
        for frame, at in again.replay():
            again.apply_records(at, iter_records(frame.body))

    show("replay of everything (per message)", timed(everything, 1), total)


def bench_indexes() -> None:
    index = SubjectIndex()
    names = [b"KV.%d" % n for n in range(200_000)]
    show("SubjectIndex.add_run, new subjects", timed(lambda: index.add_run(names, 1), 1), len(names))
    show("SubjectIndex.matching, wildcard (per subject)", timed(lambda: index.matching(b"KV.*")), len(names))
    live = SequenceSet()
    live.add_run(1, 1_000_000)
    show("SequenceSet.discard", timed(lambda: [live.discard(n) for n in range(1, 900_000, 9)], 1), 100_000)
    show("SequenceSet.next_at_or_after", timed(lambda: [live.next_at_or_after(n) for n in range(100_000)]), 100_000)


async def bench_commit(directory: str, size: int, writes: int) -> None:
    io = Threads()
    store = open_store(os.path.join(directory, f"commit{size}"), io, uid="bench")
    loop = asyncio.get_running_loop()
    finished = loop.create_future()
    seq = 1

    def committed(entries: list[Committed]) -> None:
        nonlocal seq
        for entry in entries:
            store.apply_messages(entry.at, seq, subjects, lengths, seq)
            store.applied = entry.frame.index
            seq += size
        if seq > writes * size:
            finished.set_result(None)
        else:
            propose()

    group = SoloGroup(store.log, io, Callbacks(committed, finished.set_exception))
    subjects = MANY[:size]

    def propose() -> None:
        nonlocal lengths
        records = [encode_record(n, n, s, b"", PAYLOAD) for n, s in enumerate(subjects, seq)]
        lengths = list(map(len, records))
        group.propose([Proposal(Kind.MESSAGES, records, size, None)])

    lengths: list[int] = []
    start = time.perf_counter()
    propose()
    await finished
    show(f"encode, fdatasync, apply: frames of {size}", time.perf_counter() - start, size * writes)


def main() -> None:
    directory = tempfile.mkdtemp(prefix="bench-log-", dir=sys.argv[1] if len(sys.argv) > 1 else None)
    try:
        bench_encode()
        bench_store(directory)
        bench_indexes()
        asyncio.run(bench_commit(directory, 1, 500))
        asyncio.run(bench_commit(directory, 1000, 200))
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
