"""The section of `make bench` that asks a growing stream in SQL, warm and cold.

Belongs here: one stream that is filled, compacted and asked, from ten thousand messages to ten million; a tail that is
not compacted, and deletes that no table has yet, belong to each step. Times are medians in ms; those of the last step
are figures of the table.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from lakestream_client import connect
from lakestream_sql.session import Session
from lakestream_sql.uncompacted import FlushServer
from tests.bench.figures import OURS, Section
from tests.bench.load import WINDOW, Connection
from tests.bench.sections import Plan, limited
from tests.servers import Kind, Server, program

STEPS = (10_000, 100_000, 1_000_000, 10_000_000)
QUICK_STEPS = (10_000, 100_000)
KEYS = 200_000
GROUP = 1_000
"""Keys with the same second token."""
SHARE = 5
"""Messages of a key at least, where the stream has few."""
TAIL = 1_000
"""Messages beyond the table."""
GONE = 5
"""Deleted messages beyond the table."""
WARM = 2
"""Queries of each kind that are not measured."""
TIMES = 7
SAMPLES = 50
"""Queries over NATS and Flight SQL."""
COLD = 3
LIMIT_S = 3_600
CONFIG = 'sql { flight: "127.0.0.1:-1" }\nlake { seal_age: "1h" }\n'
SITES = ("Augsburg", "Bilbao", "Cork", "Delft")
POINT = "SELECT * FROM last(ORDERS) WHERE subject = 'sensor.000.000007'"
QUERIES = {
    "count": "SELECT count(*) FROM ORDERS",
    "group": "SELECT subject, count(*), sum(octet_length(data)) FROM ORDERS GROUP BY subject",
    "one subject": "SELECT count(*), max(seq) FROM ORDERS WHERE subject = 'sensor.000.000007'",
    "last of one": POINT,
    "last of 1,000": "SELECT * EXCLUDE (json) FROM last(ORDERS, 'sensor.000.*')",
    "last of all": "SELECT * EXCLUDE (json) FROM last(ORDERS)",
}
FIGURE_OF = {
    "count": "sql_count_ms",
    "group": "sql_group_ms",
    "one subject": "sql_one_ms",
    "last of one": "sql_last_ms",
    "last of 1,000": "sql_last_1000_ms",
    "last of all": "sql_last_all_ms",
    "last of one, NATS": "sql_nats_ms",
    "last of one, Flight SQL": "sql_flight_ms",
    "cold command": "sql_cold_ms",
    "flush": "sql_flush_ms",
}
"""Names of the curves, and the figures with their last points."""


def sql(plan: Plan, found: Section) -> None:
    """Fill, compact and ask one stream, in steps."""
    curves = found.curves.setdefault("sql", {})
    with tempfile.TemporaryDirectory(prefix="bench-") as directory, limited(LIMIT_S):
        server = Server(Kind.OURS, Path(directory) / "store", config=CONFIG)
        server.start()
        try:
            with Connection(server.address) as client:
                client.stream("ORDERS", ["sensor.>"])
            stored = 0
            for step in QUICK_STEPS if plan.quick else STEPS:
                with Connection(server.address) as client:
                    stored = fill(client, stored, step)
                    staged(client)
                compact(server.store / "lake")  # for longer than a silent connection may last
                gone = stored
                with Connection(server.address) as client:
                    stored = fill(client, stored, stored + TAIL)
                    for seq in range(gone, gone - GONE, -1):
                        client.api("STREAM.MSG.DELETE.ORDERS", {"seq": seq})
                    messages = int(client.api("STREAM.INFO.ORDERS")["state"]["messages"])
                    for name, seconds in asked(server, client, messages).items():
                        curves.setdefault(name, []).append((step, seconds * 1e3))
                    plan.say(f"{step:,}: " + ", ".join(f"{name} {at[-1][1]:.1f} ms" for name, at in curves.items()))
        finally:
            server.kill()
    for name, points in curves.items():
        found.figures[FIGURE_OF[name]] = {OURS: [points[-1][1]]}


def fill(client: Connection, stored: int, wanted: int) -> int:
    """Publish messages until there are so many; each key gets its next message in turn."""
    keys = min(KEYS, max(wanted // SHARE, GROUP))
    for first in range(stored, wanted, WINDOW):
        numbers = range(first, min(first + WINDOW, wanted))
        places = [number * 7919 % keys for number in numbers]
        subjects = [b"sensor.%03d.%06d" % (place // GROUP, place) for place in places]
        client.publish(subjects, [payload(number) for number in numbers])
    return wanted


def payload(number: int) -> bytes:
    """Return JSON of about 95 bytes."""
    site, trace = SITES[number * 31 % len(SITES)], number * 0x9E3779B97F4A7C15 & (1 << 64) - 1
    price = f"{number * 17 % 1000}.{number % 100:02}"
    return f'{{"id":{number},"site":"{site}","price":{price},"qty":{number % 50},"trace":"{trace:016x}"}}'.encode()


def compact(lake: Path) -> None:
    """Move everything staged into the table. Raises RuntimeError if that fails."""
    command = [sys.executable, "-m", "lakestream", "compact", "--lake", str(lake), "--once"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"compact: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")


def asked(server: Server, client: Connection, messages: int) -> dict[str, float]:
    """Return the median seconds of each query. The count has to be exact."""
    lake, seconds = server.store / "lake", {}
    with Session(lake, server=FlushServer()) as session:
        assert session.query(QUERIES["count"]).fetchall() == [(messages,)]
        for name, query in QUERIES.items():
            seconds[name] = timed(lambda query=query: read(session, query), WARM, TIMES)
    seconds["last of one, NATS"] = asyncio.run(over_nats(server.url))
    seconds["last of one, Flight SQL"] = over_flight(server)
    seconds["cold command"] = timed(lambda: command(lake), 0, COLD)
    seconds["flush"] = timed(lambda: flush(client), WARM, SAMPLES)
    return seconds


def timed(work: Callable[[], object], warm: int, times: int) -> float:
    """Return the median seconds of some work, after some that is not measured."""
    took = list[float]()
    for _ in range(warm + times):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return statistics.median(took[warm:])


def read(session: Session, query: str) -> int:
    """Return the number of rows of a result, which are read."""
    return sum(batch.num_rows for batch in session.query(query).batches(100_000))


async def over_nats(url: str) -> float:
    """Return the median seconds of a point query over NATS."""
    async with await connect(url) as client:
        took = list[float]()
        for _ in range(SAMPLES):
            began = time.perf_counter()
            await (await client.sql(POINT)).to_arrow()
            took.append(time.perf_counter() - began)
    return statistics.median(took[WARM:])


def over_flight(server: Server) -> float:
    """Return the median seconds of a point query over Flight SQL."""
    import adbc_driver_flightsql.dbapi as adbc

    address = server.log().partition("Listening for Flight SQL on ")[2].split()[0]
    with adbc.connect(f"grpc://{address}", autocommit=True) as connection, connection.cursor() as cursor:

        def ask() -> None:
            cursor.execute(POINT)
            cursor.fetch_arrow_table()

        return timed(ask, WARM, SAMPLES)


def command(lake: Path) -> None:
    """Run the command with one query. Raises CalledProcessError."""
    lakestream: Sequence[str] = program(Kind.OURS)[:-1]
    subprocess.run([*lakestream, "sql", "--lake", str(lake), "-q", POINT], capture_output=True, check=True)


def flush(client: Connection) -> None:
    """Publish a message, and have it staged as before a query."""
    client.publish([b"sensor.000.000007"], [payload(0)])
    staged(client)


def staged(client: Connection) -> None:
    """Have the server stage what it has."""
    client.send(b"PUB $LAKE.API.FLUSH.ORDERS %b.f 0\r\n\r\n" % client.inbox)
    client.count(b'"last_seq":', 1)
