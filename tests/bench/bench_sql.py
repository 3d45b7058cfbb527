"""Measure queries of a stream: SQL on its table, against a replay through nats-server; and the bytes of both.

    python -m tests.bench.bench_sql [--rows 10000000] [--rounds 3] [--draw]

The same messages (128 bytes, which do not compress; 1,000 subjects) go into a real nats-server and, compacted as the
compactor does it, into a table. Then the same questions: by `lakestream sql`'s session (DuckDB) on the table alone
(committed) and with a tail of 50,000 staged messages (live), by a warm Spark, and by a consumer of nats-server: each
the median of the rounds. The consumer is read over a raw socket by a reader that only counts messages: what it would
take to compute something of them is not in its figure. It gets only what it has to: those of one subject are filtered
by the server, the last ones are `last_per_subject`, a range of time begins at `opt_start_time`.

Bytes per message are those of nats-server's store, of the log's segments, and of the table's data files, for these
payloads and for JSON of 300 bytes (200,000 messages each). `--draw` draws docs/pictures/sql.svg and bytes.svg. Needs
nats-server, and Java 17 or newer.

Figures: docs/benchmarks.md#the-lake
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lakestream.lake.storage import paths
from lakestream_sql.session import Session
from tests.bench.draw import bars, save
from tests.bench.lake_streams import (
    STEP_NS,
    T0_NS,
    Payloads,
    Publisher,
    chunks,
    json_payloads,
    random_payloads,
    subject,
    table_files,
)
from tests.bench.load import Connection
from tests.lake.compacting import compact as compact_stream
from tests.lake.model import unstage_through
from tests.servers import Kind, Server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

SUBJECTS = 1_000
TAIL = 50_000
SIZED = 200_000
PUBLISH_ROWS = 2_000
NAME = "S"
KINDS: dict[str, Payloads] = {"128 random bytes": random_payloads, "300 bytes of JSON": json_payloads}
PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
COMMITTED, LIVE, SPARK, REPLAY = "DuckDB, committed", "DuckDB, live", "Spark SQL, warm", "nats-server, replay"
WAYS = {COMMITTED: "DuckDB", LIVE: "DuckDB live", SPARK: "Spark", REPLAY: "replay"}
"""Names of the ways in the picture."""


def questions(rows: int) -> dict[str, str]:
    """Return the queries; `{0}` is the table."""
    begin, end = (T0_NS + at * STEP_NS for at in time_range(rows))
    one = subject(7, SUBJECTS).decode()
    sums = "count(*), sum(octet_length(data))"
    return {
        "count all": "SELECT count(*) FROM {0}",
        "one subject of 1,000": f"SELECT {sums} FROM {{0}} WHERE subject = '{one}'",
        "aggregate by subject": f"SELECT subject, {sums}, max(time) FROM {{0}} GROUP BY subject",
        "last of each subject": "SELECT subject, max_by(data, seq) FROM {0} GROUP BY subject",
        "1 % by time": f"SELECT {sums} FROM {{0}} WHERE time_ns >= {begin} AND time_ns < {end}",
    }


def time_range(rows: int) -> tuple[int, int]:
    """Return the message numbers of the hundredth part in the middle."""
    return rows // 2, rows // 2 + rows // 100


def median(work: Callable[[], object], rounds: int) -> float:
    """Return the median seconds, after one run that warms everything up."""
    work()
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


@contextmanager
def nats_server(work: Path, rows: int, payloads: Payloads) -> Iterator[tuple[Connection, float]]:
    """Yield a running nats-server with the messages, and its store's size."""
    server = Server(Kind.REAL, work / "nats")
    server.start()
    try:
        replay = Connection(server.address)
        replay.stream(NAME, ["sensor.>"])
        for first, count in chunks(rows, PUBLISH_ROWS):
            subjects = [subject(number, SUBJECTS) for number in range(first, first + count)]
            replay.publish(subjects, payloads(first, count))
        yield replay, tree_bytes(server.store)
        replay.close()
    finally:
        server.kill()


def tree_bytes(directory: Path) -> int:
    """Return the total size of the files below a directory."""
    return sum(os.path.getsize(path) for path in directory.rglob("*") if path.is_file())


def replayed(work: Path, rows: int, rounds: int) -> dict[str, float]:
    """Return the seconds of each query by nats-server."""
    begin, end = time_range(rows)
    with nats_server(work, rows, random_payloads) as (replay, _):
        at = replay.time_of(NAME, begin + 1)
        one = sum(number * 7919 % SUBJECTS == 7 * 7919 % SUBJECTS for number in range(rows))
        filtered = {"filter_subject": subject(7, SUBJECTS).decode()}
        everything = median(lambda: replay.read(NAME, b"MSG sensor.", rows), rounds)
        return {
            "count all": everything,
            "one subject of 1,000": median(lambda: replay.read(NAME, b"MSG sensor.", one, **filtered), rounds),
            "aggregate by subject": everything,
            "last of each subject": median(
                lambda: replay.read(
                    NAME, b"MSG sensor.", SUBJECTS, deliver_policy="last_per_subject", filter_subject="sensor.>"
                ),
                rounds,
            ),
            "1 % by time": median(
                lambda: replay.read(
                    NAME, b"MSG sensor.", end - begin, deliver_policy="by_start_time", opt_start_time=at
                ),
                rounds,
            ),
        }


def compacted(spark: SparkSession, work: Path, lake: Path, rows: int, payloads: Payloads) -> tuple[Publisher, float]:
    """Compact the messages; return the publisher of the stream, and the bytes per message of its segments."""
    publisher = Publisher(work, lake, NAME, SUBJECTS, payloads)
    staged = publisher.publish(rows)
    began = time.perf_counter()
    outcome = compact_stream(spark, str(lake), staged.stream)
    assert outcome.rows == rows
    print(f"compacted {rows / (time.perf_counter() - began):,.0f} messages/s", flush=True)
    unstage_through(str(lake), staged.identity, outcome.position)
    return publisher, staged.bytes


def asked(spark: SparkSession, work: Path, rows: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return the seconds of each query by SQL, by way."""
    lake = work / "lake"
    publisher, _ = compacted(spark, work, lake, rows, random_payloads)
    table = paths.table(str(lake), NAME)
    files, size = table_files(table)
    print(f"table: {rows:,} rows, {files} files, {size / rows:.1f} B/row", flush=True)
    publisher.publish(TAIL)
    found: dict[str, dict[str, float]] = {way: {} for way in (COMMITTED, LIVE, SPARK)}
    with Session(lake, committed=True) as committed, Session(lake) as live:
        assert committed.query(f"SELECT count(*) FROM delta.`streams/{NAME}`").fetchall() == [(rows,)]
        assert live.query(f"SELECT count(*) FROM delta.`streams/{NAME}`").fetchall() == [(rows + TAIL,)]
        for title, text in questions(rows).items():
            short = text.format(f"delta.`streams/{NAME}`")
            for way, session in ((COMMITTED, committed), (LIVE, live)):
                found[way][title] = ask(session, short, rounds)
            whole = text.format(f"delta.`{table}`")
            found[SPARK][title] = median(lambda text=whole: spark.sql(text).collect(), rounds)
            print(
                f"{title}: {', '.join(f'{way} {figures[title]:.3f} s' for way, figures in found.items())}", flush=True
            )
    return found


def ask(session: Session, text: str, rounds: int) -> float:
    """Return the seconds of one query of DuckDB."""
    return median(lambda: session.query(text).fetchall(), rounds)


def sizes(spark: SparkSession, work: Path) -> dict[str, dict[str, float]]:
    """Return the bytes per message, by payload and by store."""
    found: dict[str, dict[str, float]] = {}
    for number, (title, payloads) in enumerate(KINDS.items()):
        here = work / f"sizes{number}"
        here.mkdir()
        with nats_server(here, SIZED, payloads) as (_, stored):
            found[title] = {"nats-server's store": stored / SIZED}
        _, segments = compacted(spark, here, here / "lake", SIZED, payloads)
        found[title]["log segments"] = segments / SIZED
        found[title]["table"] = table_files(paths.table(str(here / "lake"), NAME))[1] / SIZED
    return found


def show(found: dict[str, dict[str, float]], unit: str, digits: int) -> None:
    """Print a table: a row for each inner key, a column for each outer key."""
    print(f"{unit:<24}" + "".join(f"{heading:>22}" for heading in found))
    for key in next(iter(found.values())):
        print(f"{key:<24}" + "".join(f"{column[key]:>22,.{digits}f}" for column in found.values()), flush=True)


def draw(answers: dict[str, dict[str, float]], stored: dict[str, dict[str, float]], rows: int) -> None:
    """Draw the pictures."""
    bars_of = [
        (f"{title}, {short}", answers[way][title], "") for title in questions(rows) for way, short in WAYS.items()
    ]
    save(PICTURES / "sql.svg", bars(f"Questions to {rows:,} messages", bars_of, "seconds"))
    sizes_of = [(f"{title}: {where}", size, "") for title, column in stored.items() for where, size in column.items()]
    save(PICTURES / "bytes.svg", bars("Bytes per message", sizes_of, "bytes"))
    print(f"pictures: {PICTURES}/sql.svg, bytes.svg")


def main() -> None:
    """Run both measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--draw", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        replay = replayed(work, options.rows, options.rounds)
        show({REPLAY: replay}, "seconds", 3)
        from lakestream_spark import session as sessions

        spark = sessions.session("sql benchmark", heap_mib=1024)
        try:
            answers = asked(spark, work, options.rows, options.rounds)
            stored = sizes(spark, work)
        finally:
            spark.stop()
    answers[REPLAY] = replay
    show(answers, "seconds", 3)
    show(stored, "bytes per message", 1)
    if options.draw:
        draw(answers, stored, options.rows)


if __name__ == "__main__":
    main()
