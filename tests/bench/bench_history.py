"""Measure how fast the server reads old messages back from tables of different shapes.

    python -m tests.bench.bench_history [--rows 1000000] [--tables DIRECTORY] [--picture docs/pictures/history.svg]
    python -m tests.bench.bench_history --growth 1000000 10000000 [--by-day] [--tables DIRECTORY]

Makes the tables first (Spark, once, if DIRECTORY is kept), then measures each of them in a fresh process bound to one
core: one message by sequence from a table just opened, from a known table, and from a cached block; everything in
sequence; the messages of one subject; the last message of each of ten subjects at a sequence; 1,000 single sequences;
and a refresh after no commit. Times are medians of CPU time, which on an otherwise idle core is the time it takes, as
the files are in the page cache; --wall takes the clock's. Prints a table, and as JSON with --json. Needs Java 17 or
newer.

With --growth, of tables of so many messages on 100,000 subjects in the compactor's own files, which need no Java:
single messages by sequence and subject, scattered over all of it (as of direct gets, also of the last message of a
subject), the first 1,000 of a process and the next; everything in sequence, up to a million messages; and the memory of
the process: with the libraries, after the scattered reads, the most, and after it was returned. With --by-day the same
messages also in partitions of `day(time), $.country`, 12 days and 10 countries a million, in the same run.

Figures: docs/internals/lake.md
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from lakestream.server.heap import resident, share_with_pyarrow, trim
from tests.bench.draw import bars, save
from tests.bench.history_tables import TABLES, compacted, ensure, key

ROUNDS = 15
SCATTERED = 1_000
MOST_READ = 1_000_000
MIB = 1 << 20
clock = time.process_time
FIGURES = {
    "opened": "just opened, ms",
    "cold": "cold, ms",
    "cached": "cached, µs",
    "sequence": "in sequence, msgs/s",
    "subject": "one subject, msgs/s",
    "many": "1,000 seqs, ms",
    "refresh": "refresh, µs",
    "index": "index, B/file",
}


def measure(table: str, rows: int) -> dict[str, float]:
    """Measure all figures of one table."""
    from lakestream.lake.read.history.history import TableHistory

    choose = random.Random(7)
    bucketed = table.endswith("buckets")

    def some() -> int:
        seq = choose.randint(1, rows - 1)
        return seq + (seq % 20 == 0)  # those are deleted in one of the tables

    def one(history: TableHistory) -> None:
        seq = some()
        assert [record.seq for record in history.read(seq, seq, 1)] == [seq]

    one(TableHistory(table))  # loads the libraries
    found = {"opened": _median(lambda: one(TableHistory(table))) * 1e3}
    history = TableHistory(table)

    def one_cold() -> None:
        history._cache.drop(history._singles)
        one(history)

    found["cold"] = _median(one_cold) * 1e3
    seq = some()
    history.read(seq, seq, 1)
    found["cached"] = _median(lambda: [history.read(seq, seq, 1) for _ in range(1000)]) * 1e3
    found["sequence"] = _rate(TableHistory(table), None)
    found["subject"] = _rate(TableHistory(table), [b"sensor.7" if bucketed else b"orders.7"])
    found["many"] = _median(lambda: history.read_many(sorted(choose.sample(range(1, rows), 1000))), 5) * 1e3
    found["refresh"] = _median(lambda: [history.max_seq() for _ in range(100)]) * 1e4
    found["index"] = index_bytes(table)
    return found


def grown(table: Path, rows: int) -> dict[str, float]:
    """Measure scattered and sequential reads of a table of `compacted`, and the memory that they take."""
    from lakestream.lake.read.history.history import TableHistory

    choose, history = random.Random(7), TableHistory(str(table))

    def one() -> None:
        seq = choose.randint(1, rows)
        assert history.read(seq, seq, 1, [key(seq).encode()]).seqs[0] == seq

    one()
    found: dict[str, float] = {"libraries, MiB": resident() / MIB}
    for name in ("first", "next"):
        took = [_median(one, 1) for _ in range(SCATTERED)]
        found[f"{name} 1,000: p50, ms"] = statistics.median(took) * 1e3
        found[f"{name} 1,000: mean, ms"] = statistics.mean(took) * 1e3
    found["scattered, MiB"] = resident() / MIB
    first, count, began = 1, 0, clock()
    most = 0.0
    while first <= min(rows, MOST_READ):
        seqs = history.read(first, rows, 2_048, None, 8 << 20).seqs
        count, first, most = count + len(seqs), seqs[-1] + 1, max(most, resident() / MIB)
    found["in sequence, msgs/s"] = count / (clock() - began)
    found["most, MiB"] = most
    trim()
    found["afterwards, MiB"] = resident() / MIB
    return found


def index_bytes(table: str) -> float:
    """Return the bytes of a table's index for each file."""
    import tracemalloc

    from lakestream.lake.read.history.index import TableIndex
    from lakestream.lake.storage.lake import open_storage
    from lakestream.lake.table.state import TableFollower

    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    index = TableIndex(TableFollower(table), open_storage(table))
    files = len(index.refresh().files)
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return held / files


def _median(work: Callable[[], Any], rounds: int = ROUNDS) -> float:
    times = []
    for _ in range(rounds):
        began = clock()
        work()
        times.append(clock() - began)
    return statistics.median(times)


def _rate(history: Any, subjects: list[bytes] | None) -> float:
    """Return messages a second when everything is read as a consumer does: 1,024 at a time."""
    first, count, last = 1, 0, history.max_seq()
    began = clock()
    while first <= last:
        records = history.read(first, last, 1024, subjects)
        if not records:
            break
        count += len(records)
        first = records[-1].seq + 1
    return count / (clock() - began)


def run(*arguments: str) -> dict[str, float]:
    """Return what a process of its own measures."""
    command = [sys.executable, "-m", "tests.bench.bench_history", *arguments]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return msgspec.json.decode(said, type=dict[str, float])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rows", type=int, default=1_000_000)
    options.add_argument("--tables", help="where the tables are, or shall be kept")
    options.add_argument("--picture", default=str(Path(__file__).parents[2] / "docs" / "pictures" / "history.svg"))
    options.add_argument("--json", action="store_true")
    options.add_argument("--wall", action="store_true")
    options.add_argument("--growth", type=int, nargs="+", help="numbers of messages")
    options.add_argument("--by-day", action="store_true")
    options.add_argument("--one", help=argparse.SUPPRESS)
    options.add_argument("--grown", help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.wall:
        global clock
        clock = time.perf_counter
    if asked.one:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        print(json.dumps(measure(asked.one, asked.rows)))
        return
    if asked.grown:
        share_with_pyarrow()  # as a server
        print(json.dumps(grown(Path(asked.grown), asked.rows)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(asked.tables or scratch)
        if asked.growth:
            kinds = [("compacted", False), *([("by-day", True)] if asked.by_day else [])]
            for rows, (name, by_day) in itertools.product(asked.growth, kinds):
                compacted(root / f"{name}-{rows}", rows, by_day)
                figures = run("--grown", str(root / f"{name}-{rows}"), "--rows", str(rows))
                print(
                    f"{rows:,} {name}: " + ", ".join(f"{each} {value:,.2f}" for each, value in figures.items()),
                    flush=True,
                )
            return
        ensure(root, asked.rows)
        found: dict[str, dict[str, float]] = {}
        for title, name in TABLES.items():
            more = ["--wall"] if asked.wall else []
            found[title] = run("--one", str(root / name), "--rows", str(asked.rows), *more)
    if asked.json:
        print(json.dumps(found, indent=1))
    else:
        print(f"{'':36}" + "".join(f"{heading:>22}" for heading in FIGURES.values()))
        for title, figures in found.items():
            print(f"{title:36}" + "".join(f"{figures[key]:>22,.1f}" for key in FIGURES))
    rows = [
        (title, figures["sequence"], f"({figures['cold']:.1f} ms for one, cold)") for title, figures in found.items()
    ]
    unit = "messages a second in sequence, one core"
    save(asked.picture, bars("Reading old messages back from a table", rows, unit))
    print(f"picture: {asked.picture}")


if __name__ == "__main__":
    main()
