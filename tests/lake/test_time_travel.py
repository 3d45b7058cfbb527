"""Tests that all ways of reading the past agree, message for message.

as_of, VERSION AS OF and TIMESTAMP AS OF in SQL, by DuckDB and by Spark, and the server's direct get with `up_to_time`.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from typer.testing import CliRunner

from lakestream.cli.app import app
from lakestream.lake import as_of, instant, table_path, version_at
from lakestream.lake.table.at import latest_progress, open_log
from lakestream.protocol.instants import rfc3339
from lakestream_spark.functions import as_of as spark_as_of
from lakestream_sql.session import Session
from tests.lake.test_end_to_end import Compaction
from tests.lake.test_literal_form import environment, options, program
from tests.servers import Kind, Server
from tests.wire import Wire

pytestmark = pytest.mark.lake

CONFIG = """
lake { seal_bytes: 16384, seal_age: "100ms", retain_bytes: 0, poll: "100ms" }
"""
SUBJECTS = [f"TIME.{number}" for number in range(4)]
PARTS = 3
DEADLINE_S = 240.0
TABLE = "delta.`streams/TIME`"
TIMESTAMPS = "spark.lakestream.timestampAsOf"
Found = dict[str, int]
"""Subject → sequence."""


class Past:
    """Stream in three compacted commits, and the four readers of its past."""

    def __init__(self, spark: Any, server: Server) -> None:
        self.spark, self.server = spark, server
        self.lake = str(server.store / "lake")
        self.table = table_path(self.lake, "TIME")
        self.times: dict[int, int] = {}
        self.borders: list[int] = []

    async def fill(self) -> None:
        """Publish and compact in parts; some messages are deleted before they are compacted."""
        compaction = Compaction(self.spark, self.server)
        client = await nats.connect(self.server.url)
        js = client.jetstream()
        await js.add_stream(name="TIME", subjects=["TIME.*"], allow_direct=True)
        for part in range(PARTS):
            for number in range(4 + part):
                ack = await js.publish(SUBJECTS[(number + part) % len(SUBJECTS)], b"%d" % number)
                if number == 2 and part < 2:
                    await js.delete_msg("TIME", ack.seq - 1)

            async def committed(seq: int = ack.seq) -> bool:
                await compaction.run()
                progress = latest_progress(self.table)
                return progress is not None and progress.last_seq == seq

            async with asyncio.timeout(DEADLINE_S):
                while not await committed():
                    await asyncio.sleep(0.05)  # only files show it
            self.borders.append(ack.seq)
        info = await js.stream_info("TIME")
        for seq in range(1, info.state.last_seq + 1):
            reply = await client.request("$JS.API.STREAM.MSG.GET.TIME", json.dumps({"seq": seq}).encode(), timeout=30)
            if (message := json.loads(reply.data).get("message")) is not None:
                self.times[seq] = instant(message["time"])
        compaction.stop()
        await client.close()

    async def server_last(self, client: Client, at_ns: int) -> Found:
        """Return the last message of each subject before a time, by one multi_last request."""
        inbox = client.new_inbox()
        sub = await client.subscribe(inbox)
        request = {"multi_last": ["TIME.*"], "up_to_time": rfc3339(at_ns)}
        await client.publish("$JS.API.DIRECT.GET.TIME", json.dumps(request).encode(), reply=inbox)
        found: Found = {}
        while True:
            headers = (message := await sub.next_msg(timeout=30)).headers or {}
            if "Nats-Subject" not in headers:
                assert headers.get("Status") in ("204", "404"), (headers, message.data)
                break
            found[headers["Nats-Subject"]] = int(headers["Nats-Sequence"])
        await sub.unsubscribe()
        return found

    def moments(self) -> list[int]:
        """Return times at every message, 1 ns before and after it, between messages, and outside of all."""
        times = list(self.times.values())
        around = {time + offset for time in times for offset in (-1, 0, 1)}
        between = {(one + other) // 2 for one, other in pairwise(times)}
        return sorted(around | between | {0, times[0] - 10**9, times[-1] + 10**9})


def last(rows: list[tuple[int, str]]) -> Found:
    """Return the last sequence of each subject."""
    return {subject: seq for seq, subject in sorted(rows)}


@pytest.fixture(scope="module")
def past(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Past]:
    server = Server(Kind.OURS, tmp_path_factory.mktemp("past") / "store", config=CONFIG)
    server.start()
    past = Past(spark, server)
    asyncio.run(past.fill())
    spark.conf.set("spark.lakestream.lake", past.lake)
    yield past
    server.kill()


async def test_the_servers_past_is_that_of_sql(past: Past) -> None:
    """The server's past is that of SQL: up_to_time T excludes a message stored at T, so it is as_of(T - 1 ns)."""
    client = await nats.connect(past.server.url)
    with Session(past.lake, committed=True) as session:
        for at_ns in past.moments():
            query = f"SELECT seq, subject FROM as_of('TIME', {at_ns - 1})"
            assert last(session.query(query).fetchall()) == await past.server_last(client, at_ns), at_ns
    await client.close()


def test_as_of_is_its_version_and_a_filter(past: Past) -> None:
    """as_of, VERSION AS OF that version, and TIMESTAMP AS OF its commit time return the same messages."""
    log = open_log(past.table)
    with Session(past.lake, committed=True) as session:
        for at_ns in past.moments():
            wanted = [seq for seq, time in past.times.items() if time <= at_ns]
            found = as_of(past.table, at_ns)
            for moment in (at_ns, f"'{rfc3339(at_ns)}'"):
                rows = session.query(f"SELECT seq FROM as_of('TIME', {moment}) ORDER BY seq").fetchall()
                assert [seq for (seq,) in rows] == wanted, at_ns
            if found.version is None:
                assert wanted == []
                continue
            committed = rfc3339(log.summary(found.version).time_ms * 1_000_000)
            assert version_at(past.table, committed) == found.version
            for travel in (f"VERSION AS OF {found.version}", f"TIMESTAMP AS OF '{committed}'"):
                query = f"SELECT seq FROM {TABLE} {travel} WHERE time_ns <= {at_ns} ORDER BY seq"
                assert [seq for (seq,) in session.query(query).fetchall()] == wanted, (at_ns, travel)


@pytest.mark.heavy
def test_spark_finds_the_same(past: Past) -> None:
    """Spark returns the same at the first and last message of every commit, to the ns."""
    log = open_log(past.table)
    edges = [past.times[seq] for border in past.borders for seq in (border, border + 1) if seq in past.times]
    for at_ns in [0, *(edge + offset for edge in edges for offset in (-1, 0))]:
        wanted = [seq for seq, time in past.times.items() if time <= at_ns]
        assert seqs(past.spark.sql(f"SELECT seq FROM as_of('TIME', {at_ns})")) == wanted
        found = as_of(past.table, at_ns)
        if found.version is None or at_ns not in edges:
            assert (found.version is None) == (wanted == [])
            continue
        where = f"WHERE time_ns <= {at_ns}"
        table = f"delta.`{past.table}`"
        assert seqs(past.spark.sql(f"SELECT seq FROM {table} VERSION AS OF {found.version} {where}")) == wanted
        committed = rfc3339(log.summary(found.version).time_ms * 1_000_000)
        assert seqs(past.spark.sql(f"SELECT seq FROM {table} TIMESTAMP AS OF '{committed}' {where}")) == wanted


def test_spark_takes_texts_times_and_expressions(past: Past) -> None:
    last_time = max(past.times.values())
    for moment, count in (
        (f"'{rfc3339(last_time - 1)}'", len(past.times) - 1),
        (f"'{rfc3339(last_time)}'", len(past.times)),
        (f"TIMESTAMP '{rfc3339(last_time + 1000)}'", len(past.times)),
        ("current_timestamp() - INTERVAL 1 SECOND + INTERVAL 1 DAY", len(past.times)),
        ("DATE '2001-01-01'", 0),
    ):
        found = past.spark.sql(f"SELECT count(*) AS n FROM as_of('TIME', {moment})").collect()
        assert found[0].n == count, moment
    assert seqs(spark_as_of(past.spark, "TIME", last_time - 1, past.lake)) == sorted(past.times)[:-1]


def test_spark_reads_as_of_as_a_table(past: Past) -> None:
    """Spark reads as_of as a table: filters and columns are pushed down, and two mentions can be joined."""
    at_ns = max(past.times.values())
    rows = past.spark.sql(f"SELECT seq FROM as_of('TIME', {at_ns}) WHERE subject = '{SUBJECTS[1]}' AND seq > 1")
    plan = rows._jdf.queryExecution().executedPlan().toString()
    filters = plan.partition("PartitionFilters")[2].partition("PushedFilters")[0]
    assert re.search(rf"\(subject#\d+ = {SUBJECTS[1]}\)", filters)
    assert "GreaterThan(se" in plan.partition("PushedFilters")[2]
    assert "data#" not in plan
    joined = past.spark.sql(f"SELECT a.seq FROM as_of('TIME', {at_ns}) a LEFT ANTI JOIN as_of('TIME', 0) b USING (seq)")
    assert seqs(joined) == sorted(past.times)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("as_of('NONE', 0)", "there is no stream NONE"),
        ("as_of('TIME', 'soon')", "cannot read 'soon' as a time"),
        ("as_of('TIME')", "as_of takes a stream's name and a moment"),
        ("as_of('TIME', NULL)", "as_of takes a stream's name and a moment"),
        ("as_of('TIME', 99999999999999999999)", "as_of takes a stream's name and a moment"),
    ],
)
def test_spark_says_what_is_wrong(past: Past, call: str, message: str) -> None:
    with pytest.raises(Exception, match=message):
        past.spark.sql(f"SELECT * FROM {call}")


@pytest.fixture
def by_message(past: Past) -> Iterator[Any]:
    """Yield Spark with TIMESTAMP AS OF by message time."""
    past.spark.conf.set(TIMESTAMPS, "message")
    yield past.spark
    past.spark.conf.unset(TIMESTAMPS)


def test_timestamp_as_of_may_mean_the_time_of_messages(past: Past, by_message: Any) -> None:
    """TIMESTAMP AS OF T is then as_of(T), in µs as Spark's times are, in DuckDB and in Spark."""
    ends = [seq for border in past.borders for seq in (border, border + 1) if seq in past.times]
    edges = sorted({past.times[seq] // 1000 for seq in ends})
    with Session(past.lake, committed=True, timestamps="message") as session:
        for micros in (*edges, edges[0] - 10**6):
            at = rfc3339(micros * 1000)
            wanted = [seq for seq, time in past.times.items() if time <= micros * 1000]
            query = f"SELECT seq FROM {TABLE} TIMESTAMP AS OF '{at}' ORDER BY seq"
            assert [seq for (seq,) in session.query(query).fetchall()] == wanted, at
            assert seqs(by_message.sql(query)) == wanted, at
    last = rfc3339(edges[-1] * 1000)
    qualified = (
        f"SELECT delta.`streams/TIME`.seq, t.seq FROM {TABLE} TIMESTAMP AS OF '{last}', {TABLE} AS t WHERE t.seq = 1"
    )
    assert len(by_message.sql(qualified).collect()) == len(
        [time for time in past.times.values() if time <= edges[-1] * 1000]
    )
    ahead = "current_timestamp() + INTERVAL 1 DAY"
    assert seqs(by_message.sql(f"SELECT o.seq FROM {TABLE} TIMESTAMP AS OF {ahead} AS o")) == sorted(past.times)
    by_message.conf.set(TIMESTAMPS, "message time")
    with pytest.raises(Exception, match="'commit' or 'message', not 'message time'"):
        by_message.sql(f"SELECT * FROM {TABLE} TIMESTAMP AS OF '{last}'")


def test_times_of_an_absolute_path_stay_those_of_commits(past: Past, by_message: Any) -> None:
    committed = rfc3339(open_log(past.table).summary(0).time_ms * 1_000_000)
    assert seqs(by_message.sql(f"SELECT seq FROM delta.`{past.table}` TIMESTAMP AS OF '{committed}'")) == []


def test_as_of_may_stand_wherever_a_table_may(past: Past) -> None:
    spark, at_ns = past.spark, past.times[past.borders[0]]
    wanted = [seq for seq, time in past.times.items() if time <= at_ns]
    spark.sql(f"CREATE OR REPLACE TEMP VIEW then AS SELECT * FROM as_of('TIME', {at_ns})")
    for query in (
        f"SELECT a.s AS seq FROM (SELECT seq AS s FROM AS_OF('TIME', {at_ns})) a",
        f"WITH t AS (SELECT * FROM as_of('streams/TIME', {at_ns})) SELECT t.seq FROM t",
        f"SELECT seq FROM {TABLE} WHERE seq IN (SELECT seq FROM as_of('TIME', {at_ns}))",
        f"SELECT t.seq FROM as_of('{past.table}', CAST({at_ns} AS BIGINT)) AS t",
        "SELECT seq FROM then",
    ):
        assert seqs(spark.sql(query)) == wanted, query
    assert seqs(spark.sql("SELECT seq FROM as_of('TIME', :at)", args={"at": at_ns})) == wanted


@pytest.mark.heavy
def test_the_stock_spark_sql_shell_has_as_of(past: Past, tmp_path: Path) -> None:
    """Python is not there: the JAR reads the log of the table itself."""
    at_ns = past.times[past.borders[0]]
    wanted = len([time for time in past.times.values() if time <= at_ns])
    text = f"SELECT count(*) FROM as_of('TIME', {at_ns}); SET {TIMESTAMPS}=message; "
    text += f"SELECT count(*) FROM {TABLE} TIMESTAMP AS OF current_timestamp()"
    done = subprocess.run(
        [program("spark-sql"), *options("--conf", f"spark.lakestream.lake={past.lake}"), "-S", "-e", text],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        env=environment(),
        check=False,
    )
    counts = [line for line in done.stdout.splitlines() if line.isdecimal()]
    assert counts == [str(wanted), str(len(past.times))], done.stderr


def test_a_version_is_restored_as_a_stream(past: Past) -> None:
    """A past version is restored as a stream: at the edges of commits, within one, and after all."""
    first, final = min(past.times.values()), max(past.times.values())
    moments = [past.times[border] - 1 for border in past.borders] + [first, final, final + 10**15]
    for number, at_ns in enumerate(moments):
        name = f"PAST{number}"
        arguments = ("--stream", "TIME", "--as-of", rfc3339(at_ns), "--to", name)
        where = ("--lake", past.lake, "--server", past.server.url)
        result = CliRunner().invoke(app, ["restore", *arguments, *where], catch_exceptions=False)
        assert result.exit_code == 0, result.stderr
        wanted = [seq for seq, time in past.times.items() if time <= at_ns]
        with Wire(past.server.address) as wire:
            info = wire.api(f"STREAM.INFO.{name}")["state"]
            assert (info["messages"], info["first_seq"], info["last_seq"]) == (len(wanted), wanted[0], wanted[-1])
            for seq in wanted:
                then, now = (wire.api(f"STREAM.MSG.GET.{each}", {"seq": seq}) for each in ("TIME", name))
                assert now["message"] == then["message"]
            wire.api(f"STREAM.DELETE.{name}")


def seqs(rows: Any) -> list[int]:
    return sorted(row.seq for row in rows.collect())
