"""Tests of `lakestream_sql.session` on tables that the compactor wrote, compared with Spark on the same tables."""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from typer.testing import CliRunner

from lakestream.cli.app import app
from lakestream.lake.errors import UnsupportedLake
from lakestream.lake.staging import scan
from lakestream.lake.table.at import as_of, open_log
from lakestream.log.format.record import Record
from lakestream.protocol.instants import rfc3339
from lakestream.spark import session as spark_session
from lakestream_spark.functions import register_views
from lakestream_sql.session import Session
from tests.lake import common_sql
from tests.lake.compacting import compact as compact_stream
from tests.lake.model import StreamModel
from tests.s3_server import S3Server
from tests.servers import Kind, Server
from tests.unit.sql import test_sql_live

pytestmark = pytest.mark.lake

MS = 1_000_000
ORDERS = "delta.`streams/ORDERS`"
PRICES = "delta.`streams/PRICES`"


class Lake:
    """Stream compacted in three steps with deletes in between, and the expected content of each version."""

    def __init__(self, spark: Any, root: Path, log: Path) -> None:
        self.spark, self.root = spark, root
        self.model = StreamModel(log)
        self.stored: list[Record] = []
        self.step([self.message(n) for n in range(60)], [])
        self.step([self.message(n) for n in range(60, 90)], [3, 4, 50, 70])
        self.step([self.message(n) for n in range(90, 100)], [1, 89])
        self.table = self.model.table(root)
        self.log = open_log(self.table)

    @staticmethod
    def message(number: int) -> tuple[bytes, bytes, bytes]:
        header = b"NATS/1.0\r\nTrace: %d\r\nTrace: b\r\n\r\n" % number if number % 3 else b""
        order = {"id": number, "price": number * 1.25, "who": "Zoë", "tags": ["a", "b"], "at": {"city": "Köln"}}
        data = json.dumps(order, ensure_ascii=False).encode() if number % 7 else b"no json"
        return b"orders.%d.x" % (number % 4), header, data

    def step(self, messages: list[tuple[bytes, bytes, bytes]], removed: list[int]) -> None:
        self.stored += self.model.publish(messages)
        self.model.remove(removed)
        self.model.stage(self.root)
        [stream] = scan.Scanner(str(self.root)).scan()
        compact_stream(self.spark, str(self.root), stream)

    def by_spark(self, **options: object) -> list[int]:
        reader = self.spark.read.format("delta")
        for name, value in options.items():
            reader = reader.option(name, value)
        return sorted(row.seq for row in reader.load(self.table).select("seq").collect())


@pytest.fixture(scope="module")
def lake(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    base = tmp_path_factory.mktemp("sql")
    root = base / "lake of $X #1"
    root.mkdir()
    return Lake(spark, root, base / "log")


@pytest.fixture(scope="module")
def session(lake: Lake) -> Iterator[Session]:
    with Session(lake.root) as session:
        yield session


def seqs(session: Session, suffix: str = "") -> list[int]:
    return [seq for (seq,) in session.query(f"SELECT seq FROM {ORDERS} {suffix} ORDER BY seq").fetchall()]


@pytest.mark.smoke
def test_the_current_version_is_the_stream(lake: Lake, session: Session) -> None:
    found = session.query(f"SELECT seq, subject, time_ns, data FROM {ORDERS} ORDER BY seq").fetchall()
    assert found == [
        (record.seq, record.subject.decode(), record.time_ns, record.data) for record in lake.model.expected()
    ]


@pytest.mark.smoke
def test_every_version_is_sparks(lake: Lake, session: Session) -> None:
    assert len(lake.log.versions) >= 6  # creation, three appends, two deletes
    for version in lake.log.versions:
        assert seqs(session, f"VERSION AS OF {version}") == lake.by_spark(versionAsOf=version), version


def test_timestamps_are_sparks_on_both_sides_of_every_commit(lake: Lake, session: Session) -> None:
    times = [lake.log.summary(version).time_ms for version in lake.log.versions]
    assert times == sorted(set(times))
    for time_ms in times:
        for at_ms in (time_ms - 1, time_ms):
            if at_ms >= times[0]:
                when = datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
                spark = lake.by_spark(timestampAsOf=when)
                assert seqs(session, f"TIMESTAMP AS OF '{rfc3339(at_ms * MS)}'") == spark, at_ms
    assert seqs(session, "TIMESTAMP AS OF now()") == seqs(session)


@pytest.mark.smoke
def test_as_of_holds_all_messages_stored_by_then(lake: Lake, session: Session) -> None:
    """As of a time T at, before and after every message, all messages stored by T are returned.

    Except one that was deleted before its first commit.
    """
    for record in lake.stored:
        for at_ns in (record.time_ns - 1, record.time_ns, record.time_ns + 1):
            found = as_of(lake.table, at_ns)
            wanted = [each.seq for each in lake.stored if each.time_ns <= at_ns and each.seq != 70]
            if found.version is None:
                assert wanted == []
                continue
            removed = {60: [], 90: [3, 4, 50], 100: [1, 3, 4, 50, 89]}[last_seq(lake, found.version)]
            held = seqs(session, f"VERSION AS OF {found.version} WHERE time_ns <= {at_ns}")
            assert held == [seq for seq in wanted if seq not in removed], (at_ns, found)


def last_seq(lake: Lake, version: int) -> int:
    progress = lake.log.progress(version)
    assert progress is not None
    return progress.last_seq


class Both:
    """The same statement on both engines."""

    def __init__(self, lake: Lake, session: Session) -> None:
        self._session, self._spark = session, spark_session(str(lake.root))
        versions = lake.log.versions
        early, middle = (
            datetime.datetime.fromtimestamp(lake.log.summary(at).time_ms / 1000, datetime.UTC)
            for at in (versions[1], versions[len(versions) // 2])
        )
        moment = lake.stored[69].time_ns
        written = "%Y-%m-%d %H:%M:%S.%f"
        self._names = {"early": early.strftime(written), "middle": middle.strftime(written), "ns": moment}
        self._names["text"] = rfc3339(moment)
        self._names["typed"] = self._typed(lake).strftime(written)
        quotes = [b'{"item": "tea %d", "price": %d.5, "paid": "2026-05-%02d"}' % (n % 3, n, n) for n in range(1, 10)]
        messages = [
            (b"quotes.%d" % (number % 2), b"", each) for number, each in enumerate([*quotes, b"A", b'{"price": 1}'])
        ]
        self._stream(lake, "QUOTES", messages, {"lakestream.json_schema": "item STRING, price DOUBLE, paid DATE"})
        register_views(self._spark, str(lake.root))
        gone = b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n"
        revisions = [(b"a", b"", b"1"), (b"b.x", b"", b"2"), (b"a", b"", b"3"), (b"c", b"", b"4"), (b"b.x", gone, b"")]
        made = self._stream(lake, "KV_conf", [(b"$KV.conf." + key, header, value) for key, header, value in revisions])
        self._names["put"] = rfc3339(made[2].time_ns)

    def _stream(
        self, lake: Lake, name: str, messages: list[tuple[bytes, bytes, bytes]], metadata: dict[str, str] | None = None
    ) -> list[Record]:
        """Compact a stream; return its messages."""
        model = StreamModel(lake.root.parent / name, name, f"UID of {name}")
        if metadata:
            model.configure(metadata)
        stored = model.publish(messages)
        model.stage(lake.root)
        [stream] = [each for each in scan.Scanner(str(lake.root)).scan() if each.identity.name == name]
        compact_stream(lake.spark, str(lake.root), stream)
        return stored

    def _typed(self, lake: Lake) -> datetime.datetime:
        """Write a table with typed columns in two commits; return the time of the first one."""
        values = {
            "id": "id",
            "price": "id * 1.25D",
            "who": "nullif(concat('person ', id % 3), 'person 2')",
            "tags": "array(concat('tag ', id), 'b')",
            "place": "named_struct('city', concat('Köln ', id % 4))",
            "day": "date_add(DATE '2026-05-01', CAST(id % 5 AS INT))",
            "amount": "CAST(id / 3 AS DECIMAL(9, 2))",
            "ok": "nullif(id % 2 = 0, id % 7 = 0 AND id % 2 = 0)",
            "moment": "TIMESTAMP '2026-05-01 00:00:00' + make_interval(0, 0, 0, 0, CAST(id AS INT), 30)",
        }
        path = lake.root / "streams" / "PRICES"
        for start in (0, 12):
            rows = self._spark.range(start, start + 12).selectExpr(*(f"{values[name]} AS {name}" for name in values))
            rows.coalesce(1).write.format("delta").mode("append").save(str(path))
        return datetime.datetime.fromtimestamp(open_log(str(path)).summary(0).time_ms / 1000, datetime.UTC)

    def rows(self, statement: str) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
        """Return the rows of DuckDB and those of Spark."""
        text = statement.format(t=ORDERS, p=PRICES, **self._names)
        ours = [tuple(map(common_sql.comparable, row)) for row in self._session.query(text)]
        return ours, [tuple(map(common_sql.comparable, row)) for row in self._spark.sql(text).collect()]


@pytest.fixture(scope="module")
def both(lake: Lake, session: Session) -> Both:
    return Both(lake, session)


def test_the_corpus_is_large() -> None:
    assert len([*common_sql.values(), *common_sql.aggregates(), *common_sql.statements()]) >= 340


@pytest.mark.parametrize("part", range(8))
def test_values_are_the_same_in_both_engines(both: Both, part: int) -> None:
    values = common_sql.values()[part::8]
    columns = ", ".join(f"{value} AS v{number}" for number, value in enumerate(values))
    ours, theirs = both.rows(f"SELECT {columns} FROM {{t}} ORDER BY seq")
    for value, one, other in zip(values, zip(*ours, strict=True), zip(*theirs, strict=True), strict=True):
        assert one == other, value


def test_aggregates_are_the_same_in_both_engines(both: Both) -> None:
    values = common_sql.aggregates()
    columns = ", ".join(f"{value} AS v{number}" for number, value in enumerate(values))
    ([ours], [theirs]) = both.rows(f"SELECT {columns} FROM {{t}}")
    for value, one, other in zip(values, ours, theirs, strict=True):
        assert one == other, value


@pytest.mark.parametrize("statement", common_sql.statements())
def test_statements_are_the_same_in_both_engines(both: Both, statement: str) -> None:
    ours, theirs = both.rows(statement)
    assert ours == theirs
    assert ours or " VERSION AS OF 0" in statement


# ---------------------------------------------------------------------------- live reads

LIVE = """
lake { seal_bytes: 1048576, seal_age: "1h", poll: "100ms" }
authorization { users: [ { user: "reader", password: "s3cret" } ] }
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(Kind.OURS, tmp_path_factory.mktemp("live") / "store", config=LIVE)
    server.start()
    yield server
    server.kill()


@pytest.mark.smoke
async def test_what_was_acked_a_moment_ago_is_there(server: Server) -> None:
    """A message acked a moment ago is returned, although no compactor runs and nothing is sealed.

    The server stages its open segment on request.
    """
    lake = str(server.store / "lake")
    client = await nats.connect(server.url, user="reader", password="s3cret")
    js = client.jetstream()
    await js.add_stream(name="NOW", subjects=["NOW.*"])
    credentials = ["--user", "reader", "--password", "s3cret"]
    query = "SELECT seq, text(data) AS data FROM NOW ORDER BY seq"
    for count in range(1, 4):
        await js.publish(f"NOW.{count}", b"%d" % count)
        code, out, said = await asyncio.to_thread(ask, lake, query, *credentials)
        assert (code, said) == (0, "")
        assert json.loads(out) == [{"seq": seq, "data": f"{seq}"} for seq in range(1, count + 1)]
    await js.delete_msg("NOW", 2)
    for place in ([], ["--server", server.url]):
        code, out, _ = await asyncio.to_thread(ask, lake, query, *credentials, *place)
        assert [row["seq"] for row in json.loads(out)] == [1, 3]

    # Without access to the server, a notice says that newer messages may exist, and staged ones are returned.
    await js.publish("NOW.4", b"4")
    code, out, said = await asyncio.to_thread(ask, lake, query)
    assert (code, [row["seq"] for row in json.loads(out)]) == (0, [1, 3])
    assert said.count("\n") == 1
    assert "messages that are not staged yet are missing" in said
    code, _, said = await asyncio.to_thread(ask, lake, query, "--committed")
    assert (code, "NOW has no table yet" in said) == (1, True)
    await client.close()


def ask(lake: str, query: str, *options: str) -> tuple[int, str, str]:
    """Run the command inside this process; return exit code, output and errors."""
    result = CliRunner().invoke(app, ["sql", "--lake", lake, "-f", "json", "-q", query, *options])
    return result.exit_code, result.stdout, result.stderr


# ---------------------------------------------------------------------------- in an object store


def test_a_lake_in_an_object_store(s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Table and staged segments in an object store are read as in a directory, present and past."""
    s3_server.enter(monkeypatch)
    lake = test_sql_live.Lake(tmp_path, s3_server.url("a_lake"))
    lake.publish(5)
    lake.stage()
    lake.commit()
    lake.publish(3)
    lake.model.remove([2])
    lake.stage()
    with Session(lake.root) as session:
        assert session.query("SHOW TABLES").fetchall() == [(ORDERS, 1, 5, 3)]
        assert seqs(session) == [1, 3, 4, 5, 6, 7, 8]
        assert seqs(session, "VERSION AS OF 1") == [1, 2, 3, 4, 5]
        found = session.query(f"SELECT seq FROM as_of('ORDERS', {lake.time(3)}) ORDER BY seq").fetchall()
        assert found == [(1,), (2,), (3,)]
        secrets = str(session.query("FROM duckdb_secrets()").fetchall())
        assert s3_server.secret_key not in secrets
    with pytest.raises(UnsupportedLake), Session("s3://user:pass@bucket/lake"):
        pass
