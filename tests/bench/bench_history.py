"""Measure how fast the server reads old messages back from tables of different shapes.

    python -m tests.bench.bench_history [--rows 1000000] [--tables DIRECTORY] [--picture docs/pictures/history.svg]

Makes the tables first (Spark, once, if DIRECTORY is kept), then measures each of them in a fresh process bound to one
core: one message by sequence from a table just opened, from a known table, and from a cached block; everything in
sequence; the messages of one subject; the last message of each of ten subjects at a sequence; 1,000 single sequences;
and a refresh after no commit. Times are medians of CPU time, which on an otherwise idle core is the time it takes, as
the files are in the page cache; --wall takes the clock's. Prints a table, and as JSON with --json. Needs Java 17 or
newer.

Figures: docs/internals/lake.md
"""

from __future__ import annotations

import argparse
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

from tests.bench.draw import bars, save
from tests.bench.history_tables import TABLES, ensure

ROUNDS = 15
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
    found["cold"] = _median(lambda: (history._cache.drop(history._slabs), one(history))) * 1e3
    seq = some()
    history.read(seq, seq, 1)
    found["cached"] = _median(lambda: [history.read(seq, seq, 1) for _ in range(1000)]) * 1e3
    found["sequence"] = _rate(TableHistory(table), None)
    found["subject"] = _rate(TableHistory(table), [b"sensor.7" if bucketed else b"orders.7"])
    found["many"] = _median(lambda: history.read_many(sorted(choose.sample(range(1, rows), 1000))), 5) * 1e3
    found["refresh"] = _median(lambda: [history.max_seq() for _ in range(100)]) * 1e4
    found["index"] = index_bytes(table)
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


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rows", type=int, default=1_000_000)
    options.add_argument("--tables", help="where the tables are, or shall be kept")
    options.add_argument("--picture", default=str(Path(__file__).parents[2] / "docs" / "pictures" / "history.svg"))
    options.add_argument("--json", action="store_true")
    options.add_argument("--wall", action="store_true")
    options.add_argument("--one", help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.wall:
        global clock
        clock = time.perf_counter
    if asked.one:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        print(json.dumps(measure(asked.one, asked.rows)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(asked.tables or scratch)
        ensure(root, asked.rows)
        found: dict[str, dict[str, float]] = {}
        for title, name in TABLES.items():
            command = [
                sys.executable,
                "-m",
                "tests.bench.bench_history",
                "--one",
                str(root / name),
                "--rows",
                str(asked.rows),
            ]
            command += ["--wall"] if asked.wall else []
            found[title] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
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
