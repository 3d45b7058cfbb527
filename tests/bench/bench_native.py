"""Measure the loops over messages, compiled and in Python: `python -m tests.bench.bench_native`.

µs per message, the median of several rounds in which the implementations take turns, beside the same work message by
message: the parser's commands, a record, a frame and an ack each by itself. One core, no sockets.

Figures: docs/benchmarks.md#single-parts
"""

from __future__ import annotations

import random
import statistics
import time
from array import array
from collections.abc import Callable
from itertools import accumulate
from typing import Any, TypeAlias

from lakestream.log.format.record import Record, encode_record
from lakestream.native import _fast, plain
from lakestream.protocol import frames
from lakestream.protocol.parser import Parser

READ = 64 * 1024
"""Bytes of a run, as a socket delivers them."""
ROUNDS, REPEATS = 9, 10
HEAD, SID, PREFIX, NOW = (
    b"_INBOX.abcdefghijklmnopqrstuv.",
    b"1",
    b'{"stream":"ORDERS","seq":',
    1_795_235_308_980_646_697,
)
LIMIT, WORD = 1 << 20, 2032
APART = b"$NRG.", b"_R_.", ord("$")
Run: TypeAlias = "tuple[bytes, list[bytes], array[int]]"


def run_of(size: int) -> Run:
    """Return a read buffer of publishes to three subjects, and its columns."""
    parts = []
    while sum(map(len, parts)) < READ:
        at = len(parts)
        reply = b"%b%06d " % (HEAD, at)
        parts.append(frames.PUB % (b"orders.eu.%d" % (at // 16 % 3), reply, size, random.randbytes(size)))
    buf = b"".join(parts)
    found = plain.parse_run(buf, 0, WORD, LIMIT, *APART)
    assert found is not None
    _, subjects, _, places, _ = found
    assert len(subjects) == len(parts)
    return buf, subjects, places


def works(native: Any, run: Run) -> dict[str, Callable[[], object]]:
    """Return the functions of one implementation, each for the whole run."""
    buf, subjects, places = run
    count = len(subjects)
    records, lengths = native.encode_run(buf, subjects, places, 0, count, 1, NOW, 1)
    offsets = list(accumulate(lengths, initial=0))[:-1]
    return {
        "parse_run": lambda: native.parse_run(buf, 0, WORD, LIMIT, *APART),
        "encode_run": lambda: native.encode_run(buf, subjects, places, 0, count, 1, NOW, 1),
        "frame_run": lambda: native.frame_run(buf, subjects, places, 0, count, SID),
        "frame_acks": lambda: native.frame_acks(buf, places, 0, count, HEAD, PREFIX, 1, SID),
        "split_records": lambda: native.split_records(records),
        "decode_spans": lambda: native.decode_spans(Record, records, offsets, lengths),
    }


def singly(run: Run) -> dict[str, Callable[[], object]]:
    """Return the same work message by message."""
    buf, subjects, places = run
    rows = [
        (subject, buf[at : at + length], buf[place : place + size])
        for subject, at, length, place, size in zip(
            subjects, places[::4], places[1::4], places[2::4], places[3::4], strict=True
        )
    ]

    def acks() -> bytes:
        payloads = [b"%b%d}" % (PREFIX, seq) for seq in range(len(rows))]
        return b"".join([frames.MSG % (row[1], SID, len(each), each) for row, each in zip(rows, payloads, strict=True)])

    return {
        "parse_run": lambda: Parser().feed(buf),
        "encode_run": lambda: b"".join([encode_record(1, NOW, subject, b"", body) for subject, _, body in rows]),
        "frame_run": lambda: b"".join(
            [frames.MSG_REPLY % (subject, SID, reply, len(body), body) for subject, reply, body in rows]
        ),
        "frame_acks": acks,
    }


def bench(size: int) -> None:
    """Print the table for payloads of `size` bytes."""
    run = run_of(size)
    count = len(run[1])
    ways = {"compiled": works(_fast, run), "Python": works(plain, run), "singly": singly(run)}
    seconds: dict[tuple[str, str], list[float]] = {}
    for _ in range(ROUNDS):
        for way, calls in ways.items():
            for name, call in calls.items():
                began = time.process_time()
                for _ in range(REPEATS):
                    call()
                seconds.setdefault((name, way), []).append((time.process_time() - began) / REPEATS)
    print(f"{size} bytes, runs of {count} messages: µs per message")
    for name in ways["compiled"]:
        columns = [
            f"{way} {statistics.median(seconds[name, way]) / count * 1e6:6.3f}"
            for way in ways
            if (name, way) in seconds
        ]
        print(f"  {name:14} {'   '.join(columns)}")


if __name__ == "__main__":
    for payload in (128, 1024):
        bench(payload)
