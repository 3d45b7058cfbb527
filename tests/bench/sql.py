"""The section of `make bench` that asks a growing stream in SQL, warm and cold.

Belongs here: one stream that is filled, compacted and asked, from ten thousand messages to ten million; a tail that is
not compacted, and deletes that no table has yet, belong to each step. Times are in ms: the quickest of some, as other
programs may run, and medians of what has a p50 as its goal. Those of the last step are figures of the table.
"""

from __future__ import annotations

import asyncio
import random
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
CHOSEN = 1_000
"""Keys of the query by `IN`, chosen at random: their last messages lie scattered."""
FIGURE_OF = {
    "count": "sql_count_ms",
    "group": "sql_group_ms",
    "one subject": "sql_one_ms",
    "last of one": "sql_last_ms",
    "last of 1,000": "sql_last_1000_ms",
    "last of 1,000 by IN": "sql_last_in_ms",
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


def keys_of(messages: int) -> int:
    """Return the number of keys of a stream with so many messages."""
    return min(KEYS, max(messages // SHARE, GROUP))


def subject(place: int) -> str:
    """Return the subject of a key."""
    return f"sensor.{place // GROUP:03}.{place:06}"


def point(keys: int) -> str:
    """Return the query for the last message of a key in the middle."""
    return f"SELECT * FROM last(ORDERS) WHERE subject = '{subject(keys // 2)}'"


def queries(keys: int) -> dict[str, str]:
    """Return the queries of a stream with so many keys."""
    group = keys // 2 // GROUP
    chosen = ", ".join(f"'{subject(place)}'" for place in random.Random(CHOSEN).sample(range(keys), CHOSEN))
    return {
        "count": "SELECT count(*) FROM ORDERS",
        "group": "SELECT subject, count(*), sum(octet_length(data)) FROM ORDERS GROUP BY subject",
        "one subject": f"SELECT count(*), max(seq) FROM ORDERS WHERE subject = '{subject(keys // 2)}'",
        "last of one": point(keys),
        "last of 1,000": f"SELECT * EXCLUDE (json) FROM last(ORDERS, 'sensor.{group:03}.*')",
        "last of 1,000 by IN": f"SELECT * EXCLUDE (json) FROM last(ORDERS) WHERE subject IN ({chosen})",
        "last of all": "SELECT * EXCLUDE (json) FROM last(ORDERS)",
    }


def fill(client: Connection, stored: int, wanted: int) -> int:
    """Publish messages until there are so many; each key gets its next message in turn."""
    keys = keys_of(wanted)
    for first in range(stored, wanted, WINDOW):
        numbers = range(first, min(first + WINDOW, wanted))
        places = [number * 7919 % keys for number in numbers]
        subjects = [subject(place).encode() for place in places]
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
    """Return the seconds of each query. The count has to be exact."""
    lake, keys, seconds = server.store / "lake", keys_of(messages), {}
    with Session(lake, server=FlushServer()) as session:
        wanted = queries(keys)
        assert session.query(wanted["count"]).fetchall() == [(messages,)]
        for name, query in wanted.items():
            seconds[name] = min(timed(lambda query=query: read(session, query), WARM, TIMES))
    seconds["last of one, NATS"] = asyncio.run(over_nats(server.url, point(keys)))
    seconds["last of one, Flight SQL"] = over_flight(server, point(keys))
    seconds["cold command"] = min(timed(lambda: command(lake, point(keys)), 0, COLD))
    seconds["flush"] = statistics.median(timed(lambda: flush(client), WARM, SAMPLES))
    return seconds


def timed(work: Callable[[], object], warm: int, times: int) -> list[float]:
    """Return the seconds of some work, after some that is not measured."""
    took = list[float]()
    for _ in range(warm + times):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return took[warm:]


def read(session: Session, query: str) -> int:
    """Return the number of rows of a result, which are read."""
    return sum(batch.num_rows for batch in session.query(query).batches(100_000))


async def over_nats(url: str, query: str) -> float:
    """Return the median seconds of a point query over NATS."""
    async with await connect(url) as client:
        took = list[float]()
        for _ in range(SAMPLES):
            began = time.perf_counter()
            await (await client.sql(query)).to_arrow()
            took.append(time.perf_counter() - began)
    return statistics.median(took[WARM:])


def over_flight(server: Server, query: str) -> float:
    """Return the median seconds of a point query over Flight SQL."""
    import adbc_driver_flightsql.dbapi as adbc

    address = server.log().partition("Listening for Flight SQL on ")[2].split()[0]
    with adbc.connect(f"grpc://{address}", autocommit=True) as connection, connection.cursor() as cursor:

        def ask() -> None:
            cursor.execute(query)
            cursor.fetch_arrow_table()

        return statistics.median(timed(ask, WARM, SAMPLES))


def command(lake: Path, query: str) -> None:
    """Run the command with one query. Raises CalledProcessError."""
    lakestream: Sequence[str] = program(Kind.OURS)[:-1]
    subprocess.run([*lakestream, "sql", "--lake", str(lake), "-q", query], capture_output=True, check=True)


def flush(client: Connection) -> None:
    """Publish a message, and have it staged as before a query."""
    client.publish([b"sensor.000.000007"], [payload(0)])
    staged(client)


def staged(client: Connection) -> None:
    """Have the server stage what it has."""
    client.send(b"PUB $LAKE.API.FLUSH.ORDERS %b.f 0\r\n\r\n" % client.inbox)
    client.count(b'"last_seq":', 1)
